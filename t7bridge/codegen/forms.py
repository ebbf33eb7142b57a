"""Shapes of values in generated source, as far as the preceding layers determine them.

A value has the dimensions of one example, preceded by one more if the input is a batch. Lua adds tensors of
equal counts in memory order; PyTorch's `a + b` is the same only if both have one shape, which `alike` proves.
"""

from __future__ import annotations

from typing import TypeAlias

from attrs import field

from ..data import define

Extent: TypeAlias = object
"""A number, or the expression it is computed from: equal expressions are equal numbers."""
_DEEPEST = 12
"""Maximum nesting of formulas; the extents of deeper ones are unknown."""


@define(eq=False)
class BatchOrigin:
    """Source of the batch dimension of values: all of one origin have it, with the same extent, or none has.

    Attributes:
        given: whether it is an input of the whole model. All of these are batches, or none is.
        known: extents required by a layer, by the dimensions of one example and the index among them.
    """

    given: bool = False
    known: dict[tuple[int, int], int] = field(factory=dict)


@define(frozen=True)
class Form:
    """Shape of a value, as far as it is known.

    Attributes:
        rank: dimensions of one example; `None` if unknown. The value has one more if it is a batch.
        origin: the source of its batch dimension.
        extents: those of one example; empty if they are unknown, or the input's own.
    """

    rank: int | None = None
    origin: BatchOrigin = field(factory=BatchOrigin)
    extents: tuple[Extent, ...] = ()

    def of_rank(self, rank: int, at: int = 0, extent: int | None = None) -> Form:
        """Return the form of the input of a layer for examples of `rank` dimensions.

        Args:
            rank: the dimensions of one example.
            at: the one whose extent the layer knows.
            extent: that extent.
        """
        if self.rank not in (None, rank):
            return Form(rank).of_rank(rank, at, extent)
        if extent is not None and not self.extents:
            self.origin.known.setdefault((rank, at), extent)
        if self.extents:
            return self
        return Form(rank, self.origin, tuple((self.origin, rank, place) for place in range(rank)))

    def whole(self) -> tuple[int, ...] | None:
        """The extents of one example, if all are numbers."""
        found = tuple(_resolved(each) for each in self.extents)
        return found if found and all(isinstance(each, int) for each in found) else None  # type: ignore[return-value]


def _resolved(extent: Extent) -> Extent:
    if isinstance(extent, tuple) and len(extent) == 3 and isinstance(extent[0], BatchOrigin):
        return extent[0].known.get(extent[1:], extent)
    return extent


def alike(one: Form, other: Form) -> bool:
    """Return whether two values certainly have the same shape."""
    if one.origin is not other.origin and not (one.origin.given and other.origin.given):
        return False
    rank = one.rank if one.rank is not None else other.rank
    if rank is None:
        return one.origin is other.origin
    if any(each.rank not in (None, rank) for each in (one, other)):
        return False
    first, second = one.of_rank(rank).extents, other.of_rank(rank).extents
    return [*map(_resolved, first)] == [*map(_resolved, second)]


def slid(extent: Extent, kernel: int, stride: int, padding: int, dilation: int = 1) -> Extent:
    """Return the extent that remains when a window slides over another, rounded down."""
    shift = 2 * padding - dilation * (kernel - 1)
    if isinstance(extent, int):
        return (extent + shift - 1) // stride + 1
    if stride == 1:
        return added(extent, shift)
    return _formula("slid", extent, shift, stride)


def added(extent: Extent, more: int) -> Extent:
    """Return the sum of an extent and a number."""
    if not more:
        return extent
    if isinstance(extent, int):
        return extent + more
    if isinstance(extent, tuple) and extent[0] == "added":
        return added(extent[2], more + extent[3])
    return _formula("added", extent, more)


def _formula(kind: str, extent: Extent, *numbers: int) -> Extent:
    depth = 1 + extent[1] if isinstance(extent, tuple) and isinstance(extent[0], str) else 1
    return (kind, depth, extent, *numbers) if depth <= _DEEPEST else BatchOrigin()
