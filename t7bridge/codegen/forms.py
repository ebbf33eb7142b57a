"""The form of a value of generated source: what is known of its shape before the model runs, nothing in `Form()`.
An example is one element of a batch. The rank of a value is the number of dimensions of one example of it: 3 for
images, in a batch or not.

Lua adds tensors of equal counts in memory order; PyTorch's `a + b` is the same only if both have one shape, which
`certainly_same_shape` proves.
"""

from __future__ import annotations

from attrs import field

from ..data import define
from ..nn.output_shapes import Extent


@define(eq=False)
class BatchOrigin:
    """Source of the batch dimension of values: all of one origin have it, with the same extent, or none has.

    Attributes:
        is_input: whether it is an input of the whole model. All of these are batches, or none is.
        required_extents: what layers require of a value that has the shape of this origin: the extent, by the rank of
            the layer's input and the dimension of one example, from 0.
    """

    is_input: bool = False
    required_extents: dict[tuple[int, int], int] = field(factory=dict)


@define(frozen=True)
class Form:
    """Shape of a value, as far as it is known.

    Attributes:
        rank: dimensions of one example; `None` if unknown. The value has one more if it is a batch.
        origin: the source of its batch dimension.
        extents: those of one example: each a number, or a symbol `(origin, rank, dim)` for an extent that the origin
            has as an input of that rank. Without any, the value has the shape of its origin.

    `Form()` says nothing: neither the rank nor the extents are known, and the origin is one of its own.
    """

    rank: int | None = None
    origin: BatchOrigin = field(factory=BatchOrigin)
    extents: tuple[Extent, ...] = ()

    def as_input_of_rank(self, rank: int) -> Form:
        """Return the form of this value as the input of a layer for examples of `rank` dimensions, with extents."""
        if self.rank not in (None, rank):
            # The layer groups the dimensions in another way: nothing is known of the value as its input.
            return Form(rank).as_input_of_rank(rank)
        if self.extents:
            return self
        symbols = tuple((self.origin, rank, dim) for dim in range(rank))
        return Form(rank, self.origin, symbols)

    def as_input_with_extent(self, rank: int, dim: int, extent: int | None) -> Form:
        """Return the form of this value as the input of a layer that requires one extent of it.

        The extent is noted at the origin if the value has its shape: so all values of that shape have it.

        Args:
            rank: the dimensions of one example for the layer.
            dim: the dimension whose extent the layer requires, from 0.
            extent: that extent; `None` if the layer's is not known.
        """
        form = self.as_input_of_rank(rank)
        has_shape_of_origin = form is not self  # else it has extents of its own
        if has_shape_of_origin and extent is not None:
            # The first layer's counts: if another requires a different one, either of the two fails.
            form.origin.required_extents.setdefault((rank, dim), extent)
        return form

    def known_extents(self) -> tuple[int, ...] | None:
        """Return the extents of one example if all are known as numbers, otherwise `None`."""
        extents = tuple(map(_number_if_known, self.extents))
        if not extents or not all(isinstance(extent, int) for extent in extents):
            return None
        return extents


def _number_if_known(extent: Extent) -> Extent:
    """Return the number for a symbol `(origin, rank, dim)` if a layer requires one; any other extent as it is."""
    is_symbol = isinstance(extent, tuple) and len(extent) == 3 and isinstance(extent[0], BatchOrigin)
    if not is_symbol:
        return extent
    origin, rank, dim = extent
    return origin.required_extents.get((rank, dim), extent)


def certainly_same_shape(one: Form, other: Form) -> bool:
    """Return whether two values certainly have the same shape; `False` if that is not known."""
    # Both are batches of one size, or neither is a batch: of one origin, and as two inputs of the model.
    is_same_batch = one.origin is other.origin or (one.origin.is_input and other.origin.is_input)
    if not is_same_batch:
        return False
    if one.rank is None and other.rank is None:
        # Both have the shapes of their origins; those of two inputs of the model may differ.
        return one.origin is other.origin
    if one.rank is not None and other.rank is not None and one.rank != other.rank:
        return False
    rank = one.rank if one.rank is not None else other.rank
    assert rank is not None
    # A symbol is equal to itself alone, so that extents of two origins are equal only as numbers.
    extents = [_number_if_known(extent) for extent in one.as_input_of_rank(rank).extents]
    other_extents = [_number_if_known(extent) for extent in other.as_input_of_rank(rank).extents]
    return extents == other_extents
