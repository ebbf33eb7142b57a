"""Shapes of values in generated source, as far as the preceding layers determine them.

A value has the dimensions of one example, preceded by one more if the input is a batch. Lua adds tensors of
equal counts in memory order; PyTorch's `a + b` is the same only if both have one shape, which `alike` proves.
"""

from __future__ import annotations

from attrs import field

from ..data import define
from ..nn.output_shapes import Arguments, Extent, Mismatch, same
from ..nn.torch_nn import SAME, TORCH
from .code import Construction, Lit


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
        return found if found and all(isinstance(each, int) for each in found) else None


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


def form_after(call: Construction, form: Form) -> Form:
    """Return the form of a module's output.

    Args:
        call: the construction of a module; outside of torch.nn nothing is known.
        form: that of its input.
    """
    known = TORCH.get(call.name.removeprefix("nn.")) if call.name.startswith("nn.") else None
    if known is None or known.rank is None:
        return Form()
    if known.rank == SAME:
        return form if known.output is same else Form(form.rank)
    if known.extent is None or known.output is None:
        return Form(known.rank)
    nodes = {**dict(zip(known.arguments, call.args)), **call.kwargs}
    given = {key: node.value for key, node in nodes.items() if isinstance(node, Lit)}
    taken = form.of_rank(known.rank, 0, given.get(known.extent))
    try:
        return Form(known.rank, taken.origin, known.output(Arguments((), given), taken.extents))
    except (ArithmeticError, IndexError, Mismatch, TypeError, ValueError):
        return Form(known.rank)
