"""Layout changes between a Lua tensor and PyTorch's, as data: each is a step with an inverse.

A change that a view can express is a view of the same storage, so that tied weights stay tied and nothing is read from
the file; only what no view can express is copied. May import graph and errors.
"""

from __future__ import annotations

from math import prod
from typing import Any, Protocol

from attrs import evolve

from ..data import define, np
from ..errors import ModelError
from ..graph.tensor import Tensor
from .fields import Fields

_REPEATED = 1 << 24
"""Maximum elements of a copy whose storage has fewer."""

Extent = int | str
"""An extent of a shape: a number, the name of the field that holds it, `REST`, or one of the old extents."""

REST = "*"
"""The extent determined by the others."""
FIRST = "[0]"
"""The first extent of the tensor, unchanged."""
LAST = "[-1]"
"""The last extent of the tensor, unchanged."""


class LayoutStep(Protocol):
    """One layout change."""

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """Convert a tensor to PyTorch's layout. Raises ModelError if the fields do not allow it."""
        ...

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """Convert PyTorch's tensor to Lua's layout, for a Lua tensor with the sizes `before`."""
        ...


Layout = tuple[LayoutStep, ...]


# Views


def view(tensor: Tensor, size: tuple[int, ...]) -> Tensor | None:
    """Return the same elements in another shape as a view of the same storage, or `None` if impossible.

    Args:
        tensor: of any strides, with elements.
        size: as many elements as the tensor has.

    Source: the rule of torch7 `TensorUtils`/PyTorch `computeStride`: only dimensions whose strides follow one another
    can be merged.
    """
    if size == tensor.size:
        return tensor
    # Dimensions of one element do not matter; the others form runs of memory that can be split in any way.
    runs: list[tuple[int, int]] = []
    for extent, step in zip(tensor.size, tensor.stride):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * step:
            runs[-1] = (runs[-1][0] * extent, step)
        else:
            runs.append((extent, step))
    stride: list[int] = []
    left, step = runs.pop() if runs else (1, 1)
    for extent in reversed(size):
        if extent > 1 and left == 1 and runs:
            left, step = runs.pop()
        if left % extent:
            return None
        stride.append(step)
        left //= extent
        step *= extent
    if left != 1 or runs:
        return None
    return evolve(tensor, size=size, stride=tuple(reversed(stride)), is_scalar=not size)


def reshape(tensor: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return the same elements in another shape: a view where possible, else a copy.

    Raises:
        ModelError: the number of elements differs.
    """
    if prod(size) != tensor.numel:
        raise ModelError("a tensor cannot have this shape", expected=f"{list(size)}", found=f"{list(tensor.shape)}")
    viewed = view(tensor, size)
    return viewed if viewed is not None else copied(tensor, elements(tensor).reshape(size))


def elements(tensor: Tensor) -> np.ndarray:
    """Return the elements of a tensor that is about to be copied.

    Raises:
        ModelError: a small storage is viewed as a huge tensor, by strides of 0.
    """
    held = tensor.storage.count if tensor.storage is not None else 0
    if tensor.numel > max(held, _REPEATED):
        raise ModelError(
            "a tensor repeats the elements of its storage too often to be copied",
            expected=f"at most {_REPEATED} elements",
            found=f"{tensor.numel} of {held}",
        )
    return tensor.array


def nested(value: Any) -> Any:
    """Return nested lists as nested tuples, which source can express."""
    return tuple(map(nested, value)) if isinstance(value, list) else value


def copied(tensor: Tensor, array: np.ndarray) -> Tensor:
    """Return a tensor in new memory with the element type, device and flags of another."""
    fresh = Tensor.from_numpy(np.ascontiguousarray(array))
    assert fresh.storage is not None
    # Element types that numpy lacks have their bits in an integer array.
    storage = evolve(fresh.storage, element=tensor.element, device=tensor.device)
    return evolve(tensor, storage=storage, size=fresh.size, stride=fresh.stride, offset=0, is_scalar=fresh.is_scalar)


def permute(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return the dimensions in another order: always a view.

    Raises:
        ModelError: the number of dimensions differs.
    """
    if len(order) != len(tensor.size):
        raise ModelError(
            "a tensor has too many or too few dimensions", expected=f"{len(order)}", found=f"{len(tensor.size)}"
        )
    size, stride = tensor.size, tensor.stride
    return evolve(tensor, size=tuple(size[dim] for dim in order), stride=tuple(stride[dim] for dim in order))


def narrow(tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a part along one dimension: always a view.

    Raises:
        ModelError: it is out of range.
    """
    if dim >= len(tensor.size) or start < 0 or length < 0 or start + length > tensor.size[dim]:
        raise ModelError(
            "a tensor is too small", expected=f"{start + length} along dimension {dim}", found=f"{list(tensor.shape)}"
        )
    size = (*tensor.size[:dim], length, *tensor.size[dim + 1 :])
    return evolve(tensor, size=size, offset=tensor.offset + start * tensor.stride[dim])


# Steps


def _extent(extent: Extent, tensor: Tensor, fields: Fields) -> int:
    if isinstance(extent, int):
        return extent
    if extent in (FIRST, LAST):
        if not tensor.size:
            raise ModelError("a tensor has no dimensions", expected="at least one")
        return tensor.size[0 if extent == FIRST else -1]
    value = fields.integer(extent)
    if value < 1:
        raise fields.wrong(extent.split("|")[0], "a positive number", float(value))
    return value


def _in_extents(tensor: Tensor, extents: tuple[Extent, ...], fields: Fields) -> Tensor:
    """Return a tensor in the shape of these extents."""
    known = [None if extent == REST else _extent(extent, tensor, fields) for extent in extents]
    rest = prod(extent for extent in known if extent is not None)
    return reshape(tensor, tuple(tensor.numel // rest if extent is None else extent for extent in known))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(order.index, range(len(order))))


@define(frozen=True)
class Reshape:
    """Another shape. A tensor that already has as many dimensions is unchanged.

    Attributes:
        extents: one of each new dimension; at most one is `REST`.
    """

    extents: tuple[Extent, ...]

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """See `LayoutStep.apply`."""
        if len(tensor.size) == len(self.extents):
            return tensor
        return _in_extents(tensor, self.extents, fields)

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """See `LayoutStep.undo`."""
        return reshape(tensor, before)


@define(frozen=True)
class Permute:
    """The dimensions in another order.

    Attributes:
        order: the old dimension for each new one.
    """

    order: tuple[int, ...]

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """See `LayoutStep.apply`."""
        return permute(tensor, self.order)

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """See `LayoutStep.undo`."""
        return permute(tensor, _inverse(self.order))


@define(frozen=True)
class Merge:
    """Dimensions in another order, then a shape: `Permute` and `Reshape` combined where the rank is ambiguous.

    Attributes:
        order: the old dimension for each new one.
        extents: the shape after that.
    """

    order: tuple[int, ...]
    extents: tuple[Extent, ...]

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """See `LayoutStep.apply`."""
        return _in_extents(permute(tensor, self.order), self.extents, fields)

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """See `LayoutStep.undo`."""
        turned = reshape(tensor, tuple(before[dim] for dim in self.order))
        return permute(turned, _inverse(self.order))


@define(frozen=True)
class Narrow:
    """A part along one dimension. Its inverse is that part of the Lua tensor, not the whole.

    Attributes:
        dim: the dimension.
        start: its first element, a number or a field name.
        length: its length; `REST` for all that follow.
    """

    dim: int
    start: Extent
    length: Extent

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """See `LayoutStep.apply`."""
        start = _extent(self.start, tensor, fields) if self.start != 0 else 0
        if self.length == REST:
            whole = tensor.size[self.dim] if self.dim < len(tensor.size) else 0
            return narrow(tensor, self.dim, start, whole - start)
        return narrow(tensor, self.dim, start, _extent(self.length, tensor, fields))

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """See `LayoutStep.undo`."""
        return tensor


@define(frozen=True)
class BlockOrder:
    """Equal blocks along the first dimension in another order: the gates of a recurrent layer.

    Attributes:
        order: the old block for each new one.
    """

    order: tuple[int, ...]

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """See `LayoutStep.apply`."""
        return reblocked(tensor, self.order)

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """See `LayoutStep.undo`."""
        return reblocked(tensor, _inverse(self.order))


def reblocked(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return a copy whose equal blocks along the first dimension are in another order.

    Args:
        tensor: any.
        order: the old block for each new one.

    Raises:
        ModelError: it does not consist of that many blocks.
    """
    array = elements(tensor)
    if not array.ndim or array.shape[0] % len(order):
        raise ModelError(
            "a tensor does not consist of equal gates", expected=f"{len(order)} blocks", found=f"{array.shape}"
        )
    parts = np.split(array, len(order))
    return copied(tensor, np.concatenate([parts[block] for block in order]))


@define(frozen=True)
class DeviationToVariance:
    """`running_std`, the running mean of 1 / sqrt(variance + eps), to `running_var`.

    Source: nn 8726825 `BatchNormalization.lua` `read`; facts of nn commits a142233 and 4d2496d.

    Attributes:
        eps: the field that was added to the variance.
    """

    eps: str = "eps"

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """See `LayoutStep.apply`."""
        array = elements(tensor)
        with np.errstate(all="ignore"):
            variance = array.astype("f8") ** -2 - fields.number(self.eps, 1e-5)
            return copied(tensor, variance.astype(array.dtype))

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """See `LayoutStep.undo`."""
        array = elements(tensor)
        with np.errstate(all="ignore"):
            deviation = (array.astype("f8") + fields.number(self.eps, 1e-5)) ** -0.5
            return copied(tensor, deviation.astype(array.dtype))


def apply_layout(layout: Layout, tensor: Tensor, fields: Fields) -> Tensor:
    """Return a Lua tensor in PyTorch's layout.

    Raises:
        ModelError: the tensor and the fields of its object are inconsistent.
    """
    for step in layout:
        tensor = step.apply(tensor, fields)
    return tensor


def undo_layout(layout: Layout, tensor: Tensor, template: Tensor, fields: Fields) -> Tensor:
    """Return PyTorch's tensor in Lua's layout.

    Args:
        layout: the steps from Lua to PyTorch.
        tensor: PyTorch's.
        template: the Lua tensor that was converted; its sizes determine the result.
        fields: of the Lua object.

    Raises:
        ModelError: the tensor does not have the shape that the layout results in.
    """
    before: list[tuple[int, ...]] = []
    current = template
    for step in layout:
        before.append(current.size)
        current = step.apply(current, fields)
    if tensor.shape != current.shape:
        raise ModelError(
            "a tensor has another shape than the Lua model", expected=f"{current.shape}", found=f"{tensor.shape}"
        )
    for step, size in zip(reversed(layout), reversed(before)):
        tensor = step.undo(tensor, size, fields)
    return tensor
