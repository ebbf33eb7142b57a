"""Layout changes between a Lua tensor and PyTorch's, as data: each is a step with an inverse.

A change that a view can express is a view of the same storage, so that tied weights stay tied and nothing is read from
the file; only what no view can express is copied.

A tensor is written with its whole storage, which after `getParameters()` is that of the whole model. Compacting copies
each view to elements of its own. Overlapping views keep a common storage, cut to the range that they use, and so do
tied tensors; views that lie between each other's elements (the columns of a matrix) count as overlapping. May import
graph, limits and errors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, Protocol, TypeVar

from attrs import evolve

from ..data import define, np
from ..errors import ModelError
from ..graph.dtypes import PACKED
from ..graph.storage import Derived, Joined, Span, Storage, part_of
from ..graph.tensor import Tensor, contiguous
from ..limits import Budget, Limits
from .fields import Fields

_MOST_REPEATED = 1 << 24
"""Maximum elements of a copy whose storage has fewer."""

Extent = int | str
"""An extent of a shape: a number, the name of the field that holds it, `REST`, `FIRST` or `LAST`."""

REST = "*"
"""The extent determined by the others."""
FIRST = "[0]"
"""The first extent of the tensor, unchanged."""
LAST = "[-1]"
"""The last extent of the tensor, unchanged."""


class LayoutStep(Protocol):
    """One layout change."""

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """Convert a tensor to PyTorch's layout: a view of the same storage where that is possible.

        Args:
            tensor: Lua's, after the steps before this one.
            fields: of the Lua object.

        Raises:
            ModelError: the tensor, or the fields, do not allow it.
        """
        ...

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """Convert PyTorch's tensor to Lua's layout.

        Args:
            tensor: PyTorch's.
            before: the sizes of the Lua tensor.
            fields: of the Lua object.
        """
        ...


Layout = tuple[LayoutStep, ...]


# Views


def view(tensor: Tensor, size: tuple[int, ...]) -> Tensor | None:
    """Return the same elements in another shape as a view of the same storage, or `None` if impossible.

    Args:
        tensor: of any strides.
        size: as many elements as the tensor has.

    Source: the rule of torch7 `TensorUtils`/PyTorch `computeStride`: only dimensions whose strides follow one another
    can be merged.
    """
    if size == tensor.size:
        return tensor
    # Without elements any strides are right.
    stride = _stride_in_runs(_runs(tensor), size) if tensor.numel else contiguous(size)
    if stride is None:
        return None
    return evolve(tensor, size=size, stride=stride, is_scalar=not size)


def _runs(tensor: Tensor) -> list[tuple[int, int]]:
    """Return the runs of elements at equal distances that make up a tensor, as (count, distance), the innermost last.

    Dimensions whose strides follow one another are one run; those of one element are in none.
    """
    runs: list[tuple[int, int]] = []
    for extent, step in zip(tensor.size, tensor.stride):
        if extent == 1:
            continue
        outer_count, outer_step = runs[-1] if runs else (0, 0)
        if runs and outer_step == extent * step:
            runs[-1] = (outer_count * extent, step)
        else:
            runs.append((extent, step))
    return runs


def _stride_in_runs(runs: list[tuple[int, int]], size: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the strides of a shape whose elements are those of runs; `None` if a dimension reached into two of them.

    Args:
        runs: see `_runs`; none for a tensor of one element.
        size: as many elements as the runs have together, at least one.
    """
    *outer_runs, (remaining, step) = runs or [(1, 1)]
    reversed_stride: list[int] = []
    # From the last dimension on, each is split off the innermost run that has elements left.
    for extent in reversed(size):
        if extent > 1 and remaining == 1 and outer_runs:
            remaining, step = outer_runs.pop()
        if remaining % extent:
            return None
        reversed_stride.append(step)
        remaining //= extent
        step *= extent
    return tuple(reversed(reversed_stride))


def reshape(tensor: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return the same elements in another shape: a view where possible, else a copy.

    Args:
        tensor: of any strides.
        size: the shape, of as many elements.

    Raises:
        ModelError: the number of elements differs.
    """
    if prod(size) != tensor.numel:
        raise ModelError("a tensor cannot have this shape", expected=f"{list(size)}", found=f"{list(tensor.shape)}")
    same_storage = view(tensor, size)
    if same_storage is not None:
        return same_storage
    return copied(tensor, elements(tensor).reshape(size))


def elements(tensor: Tensor) -> np.ndarray:
    """Return the elements of a tensor that is about to be copied, as an array.

    Raises:
        ModelError: a small storage is viewed as a huge tensor, by strides of 0.
    """
    stored = tensor.storage.count if tensor.storage is not None else 0
    if tensor.numel > max(stored, _MOST_REPEATED):
        raise ModelError(
            "a tensor repeats the elements of its storage too often to be copied",
            expected=f"at most {_MOST_REPEATED} elements",
            found=f"{tensor.numel} of {stored}",
        )
    return tensor.array


def nested(value: Any) -> Any:
    """Return nested lists as nested tuples, which source can express."""
    return tuple(map(nested, value)) if isinstance(value, list) else value


def copied(tensor: Tensor, array: np.ndarray) -> Tensor:
    """Return a tensor with the elements of an array, and the element type, device and flags of another tensor.

    It has a storage of its own, whose memory is that of the array if this is contiguous. An array without dimensions
    becomes a tensor of one dimension, as Lua has no other.

    Args:
        tensor: the other one.
        array: the elements, of that type; of types that numpy lacks their bits, as integers.
    """
    new = Tensor.from_numpy(np.ascontiguousarray(array))
    assert new.storage is not None
    storage = evolve(new.storage, element=tensor.element, device=tensor.device)
    return evolve(tensor, storage=storage, size=new.size, stride=new.stride, offset=0, is_scalar=new.is_scalar)


def permute(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return the dimensions in another order: always a view.

    Args:
        tensor: any.
        order: the old dimension for each new one.

    Raises:
        ModelError: the number of dimensions differs.
    """
    if len(order) != len(tensor.size):
        raise ModelError(
            "a tensor has too many or too few dimensions", expected=f"{len(order)}", found=f"{len(tensor.size)}"
        )
    size = tuple(tensor.size[dim] for dim in order)
    stride = tuple(tensor.stride[dim] for dim in order)
    return evolve(tensor, size=size, stride=stride)


def narrow(tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Return a part along one dimension: always a view.

    Args:
        tensor: any.
        dim: the dimension, from 0.
        start: its first element, from 0.
        length: number of its elements.

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
    """Return an extent as a number: of the tensor itself for `FIRST` and `LAST`, of a field for its name.

    Args:
        extent: a number, a name, `FIRST` or `LAST`.
        tensor: the tensor that gets a new shape.
        fields: of the Lua object.

    Raises:
        ModelError: the field is missing, or is not a positive whole number.
    """
    if isinstance(extent, int):
        return extent
    if extent in (FIRST, LAST):
        if not tensor.size:
            raise ModelError("a tensor has no dimensions", expected="at least one")
        return tensor.size[0 if extent == FIRST else -1]
    value = fields.integer(extent)
    if value < 1:
        raise fields.wrong(extent, "a positive number", float(value))
    return value


def _in_extents(tensor: Tensor, extents: tuple[Extent, ...], fields: Fields) -> Tensor:
    """Return a tensor in the shape of these extents; the one that is `REST` follows from the others."""
    size = [_extent(extent, tensor, fields) for extent in extents if extent != REST]
    if REST in extents:
        rest = tensor.numel // prod(size)  # `reshape` refuses it if there is a remainder
        size.insert(extents.index(REST), rest)
    return reshape(tensor, tuple(size))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order that undoes another one."""
    return tuple(map(order.index, range(len(order))))


@define(frozen=True)
class Reshape:
    """Another shape. A tensor that already has as many dimensions is unchanged.

    Attributes:
        extents: one of each new dimension; at most one is `REST`.
    """

    extents: tuple[Extent, ...]

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """Return a Lua tensor in the shape of the extents; see `LayoutStep.apply`."""
        # Releases of Lua differ in whether they keep a kernel as a matrix, or with all its dimensions.
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
    """Dimensions in another order, then a shape, also if it has as many dimensions, where `Reshape` would do nothing.

    Attributes:
        order: the old dimension for each new one.
        extents: the shape after that.
    """

    order: tuple[int, ...]
    extents: tuple[Extent, ...]

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """Return a Lua tensor in that order and shape; see `LayoutStep.apply`."""
        return _in_extents(permute(tensor, self.order), self.extents, fields)

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """Return PyTorch's tensor in Lua's shape, of the sizes `before`; see `LayoutStep.undo`."""
        # Backwards: the permuted dimensions first, which the shape had merged.
        permuted = reshape(tensor, tuple(before[dim] for dim in self.order))
        return permute(permuted, _inverse(self.order))


@define(frozen=True)
class Narrow:
    """A part along one dimension. Its inverse is that part of the Lua tensor, not the whole.

    Attributes:
        dim: the dimension, from 0.
        start: its first element, from 0, a number or the name of the field that holds it.
        length: the number of its elements, likewise, at least 1; `REST` for all that follow.
    """

    dim: int
    start: Extent
    length: Extent

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """Return the part of a Lua tensor, a view; `fields` are those of its object. See `LayoutStep.apply`."""
        start = _extent(self.start, tensor, fields)
        if self.length == REST:
            # A dimension that the tensor does not have is refused by `narrow`, whatever the length is.
            whole = tensor.size[self.dim] if self.dim < len(tensor.size) else 0
            return narrow(tensor, self.dim, start, whole - start)
        return narrow(tensor, self.dim, start, _extent(self.length, tensor, fields))

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """Return the part itself: `assignment` writes it to the part of the Lua tensor that `apply` returns."""
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
    blocks = np.split(array, len(order))
    return copied(tensor, np.concatenate([blocks[number] for number in order]))


@define(frozen=True)
class DeviationToVariance:
    """The running variance of a batch normalization, of which Lua once kept `running_std`: 1 / sqrt(variance + eps).

    Source: nn 8726825 `BatchNormalization.lua` `read`; facts of nn commits a142233 and 4d2496d.

    Attributes:
        eps: the field that was added to the variance.
    """

    eps: str = "eps"

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """Return the variance that belongs to Lua's `running_std`; `fields` has eps. See `LayoutStep.apply`."""
        array = elements(tensor)
        # In doubles, and without warnings: a deviation of 0 is an infinite variance.
        with np.errstate(all="ignore"):
            variance = array.astype("f8") ** -2 - fields.number(self.eps, 1e-5)
            return copied(tensor, variance.astype(array.dtype))

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """Return Lua's `running_std` for a variance; `fields` has eps. See `LayoutStep.undo`."""
        array = elements(tensor)
        with np.errstate(all="ignore"):
            deviation = (array.astype("f8") + fields.number(self.eps, 1e-5)) ** -0.5
            return copied(tensor, deviation.astype(array.dtype))


def apply_layout(layout: Layout, tensor: Tensor, fields: Fields) -> Tensor:
    """Return a Lua tensor in PyTorch's layout.

    Args:
        layout: the steps from Lua to PyTorch.
        tensor: Lua's.
        fields: of the Lua object.

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
    # The steps are applied to the template, for the sizes before each of them.
    sizes_before: list[tuple[int, ...]] = []
    current = template
    for step in layout:
        sizes_before.append(current.size)
        current = step.apply(current, fields)
    if tensor.shape != current.shape:
        raise ModelError(
            "a tensor has another shape than the Lua model", expected=f"{current.shape}", found=f"{tensor.shape}"
        )
    for step, size in zip(reversed(layout), reversed(sizes_before)):
        tensor = step.undo(tensor, size, fields)
    return tensor


# Compacting


def compacted(tensors: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a state dict with the same tensors on storages that hold no more than they use.

    Args:
        tensors: tensors by name; other values are unchanged.

    Returns:
        A new dict, in the same order. Elements are still read on demand only.
    """
    result = _same_tensors(tensors)
    compact_in(result)
    return result


def _same_tensors(tensors: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a new state dict of the same tensors, with the versions of modules that PyTorch keeps in `_metadata`."""
    result = OrderedDict(tensors)
    if hasattr(tensors, "_metadata"):
        result._metadata = tensors._metadata  # type: ignore[attr-defined]
    return result


def compact_in(value: Any) -> Any:
    """Compact all tensors in a value's dicts and lists, which receive new tensors in their place.

    A storage that occurs in the value outside of tensors is kept whole, with the tensors on it.

    Args:
        value: of any type; other types than tensors, dicts and lists stay as they are.

    Returns:
        The value; another one if it is a tensor itself.
    """
    # In a list, a value that is a tensor itself can be replaced like any other.
    holder_of_value = [value]
    # The new tensors, by the ids of the old ones. Views that overlap stay on one storage.
    compact: dict[int, Tensor] = {}
    for views in _views_by_storage(holder_of_value):
        for cluster in _clusters(views):
            _move_to_own_storage(cluster, compact)
    for holder, key, item in list(_entries(holder_of_value)):
        if isinstance(item, Tensor) and id(item) in compact:
            holder[key] = compact[id(item)]
    return holder_of_value[0]


def _entries(value: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield everything in dicts and lists, also nested ones: the dict or list, key or index, item."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        holder = stack.pop()
        if id(holder) in seen or not isinstance(holder, (dict, list)):
            continue
        seen.add(id(holder))
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        # A list of them, as the caller replaces items meanwhile.
        for key, item in list(items):
            yield holder, key, item
            if isinstance(item, (dict, list)):
                stack.append(item)


def _common_dimensions(views: list[Tensor], count: int) -> list[tuple[int, int]] | None:
    """Return the dimensions, as (extent, stride), that several tensors share which are the same view with gaps.

    Args:
        views: of one storage.
        count: elements of the range that they use, gaps included.

    Returns:
        The dimensions of more than one element, the largest stride first, all strides positive and different. `None` if
        the views differ, have no gaps, or have an element of the storage at several indices (but for strides of 0).
    """
    first = views[0]
    if any((view.offset, view.size, view.stride) != (first.offset, first.size, first.stride) for view in views):
        return None
    # A stride of 0 repeats all elements of the other dimensions, which are stored once.
    dimensions = [(extent, step) for extent, step in zip(first.size, first.stride) if extent > 1 and step]
    dimensions.sort(key=lambda dimension: -dimension[1])
    inner_reach = 0  # distance of the first and the last element of the dimensions inside
    for extent, step in reversed(dimensions):
        repeats_elements = step <= inner_reach
        if repeats_elements:
            return None
        inner_reach += (extent - 1) * step
    has_gaps = prod(extent for extent, _ in dimensions) < count
    return dimensions if has_gaps else None


@define(frozen=True)
class _Cluster:
    """Tensors of one storage whose ranges in it overlap.

    Attributes:
        storage: the storage.
        first: the first element that they use.
        end: the one after the last.
        views: the tensors, by their first elements.
    """

    storage: Storage
    first: int
    end: int
    views: list[Tensor]


def _clusters(views: list[Tensor]) -> Iterator[_Cluster]:
    """Yield the clusters of the tensors of a storage, in order; one without elements is a cluster at 0."""
    storage = views[0].storage
    assert storage is not None
    rows = []
    for view in views:
        first, end = view.reach() if view.numel else (0, 0)
        rows.append((first, end, view))
    for group in overlapping(rows):
        first, _, _ = group[0]
        yield _Cluster(storage, first, max(end for _, end, _ in group), [view for _, _, view in group])


def _views_by_storage(value: Any) -> Iterator[list[Tensor]]:
    """Yield the tensors of each storage in a value, but not of storages that stay whole.

    These are the storages that occur in the value outside of tensors, and those of which others see the memory.
    """
    by_storage: dict[int, list[Tensor]] = {}
    kept_whole: set[int] = set()
    seen: set[int] = set()
    for _, _, item in _entries(value):
        if isinstance(item, Storage):
            kept_whole.add(id(item))
        if not isinstance(item, Tensor) or item.storage is None or id(item) in seen:
            continue
        seen.add(id(item))
        by_storage.setdefault(id(item.storage), []).append(item)
        # A storage with a base is a part of that one's memory.
        if item.storage.base is not None:
            kept_whole.update((id(item.storage), id(item.storage.base)))
    for views in by_storage.values():
        storage = views[0].storage
        assert storage is not None
        # Several packed elements are one of the storage, so that ranges of tensors are not ranges of the storage.
        if id(storage) not in kept_whole and storage.element.name not in PACKED:
            yield views


_Row = TypeVar("_Row", bound=tuple[Any, ...])


def overlapping(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Yield groups of rows whose ranges overlap: in a group, each row but the first begins before an earlier one ends.

    Args:
        rows: tuples whose first two elements are begin and end.

    Yields:
        The rows of a group, by begin and end.
    """
    group: list[_Row] = []
    group_end = 0
    for row in sorted(rows, key=lambda row: row[:2]):
        begin, end, *_ = row
        if group and begin >= group_end:
            yield group
            group = []
        group.append(row)
        group_end = max(group_end, end)
    if group:
        yield group


def check_size(tensors: Mapping[str, Tensor], limits: Limits, task: str) -> None:
    """Refuse tensors that are much larger than the storages they view: a stride of 0 repeats endlessly.

    Args:
        tensors: by name.
        limits: resource limits.
        task: what is about to be done, for the message.

    Raises:
        LimitError: together they exceed the storages by more bytes than the limit `work` allows.
    """
    budget = Budget(limits, task)
    for key, tensor in tensors.items():
        storage = tensor.storage
        budget.allocate(tensor.numel * tensor.element.itemsize, storage.nbytes if storage else 0, key)


def _move_to_own_storage(cluster: _Cluster, compact: dict[int, Tensor]) -> None:
    """Make the views of a cluster again, on a storage that has no more than they use; nothing if theirs has no more.

    Args:
        cluster: the views.
        compact: receives the new tensors, by the ids of the old.
    """
    count = cluster.end - cluster.first
    dimensions = _common_dimensions(cluster.views, count)
    if dimensions is not None:  # the same view each, with gaps, which the new storage lacks
        part = _gathered(cluster.storage, cluster.first, cluster.end, dimensions)
        stride = _packed_stride(cluster.views[0].stride, dimensions)
        for view in cluster.views:
            compact[id(view)] = evolve(view, storage=part, offset=0, stride=stride)
    elif count < cluster.storage.count:
        part = _part(cluster.storage, cluster.first, cluster.end)
        for view in cluster.views:
            offset = view.offset - cluster.first if view.numel else 0  # without elements, an offset says nothing
            compact[id(view)] = evolve(view, storage=part, offset=offset)


def _packed_stride(stride: tuple[int, ...], dimensions: list[tuple[int, int]]) -> tuple[int, ...]:
    """Return the strides of a view once its elements are packed, the dimension of the largest stride outermost.

    Args:
        stride: the strides of the view in its storage.
        dimensions: see `_common_dimensions`.
    """
    packed_steps = contiguous([extent for extent, _ in dimensions])
    new_steps = {step: new_step for (_, step), new_step in zip(dimensions, packed_steps)}
    # A stride that none of the dimensions has is 0, or of a dimension of one element, and stays.
    return tuple(new_steps.get(step, step) for step in stride)


def _part(storage: Storage, first: int, end: int) -> Storage:
    """Return a contiguous part of a storage. Nothing is read if the file has the elements in this form."""
    if not isinstance(storage.data, Span):
        storage.data = storage.array  # text has no random access, so it is read once
    return part_of(storage, first, end - first)


def _gathered(storage: Storage, first: int, end: int, dimensions: list[tuple[int, int]]) -> Storage:
    """Return the elements of a view, the largest stride first, in a storage of their own.

    They are read on demand, in pieces of whole rows: a row is the range from one element of the outermost dimension to
    the next.

    Args:
        storage: of the view.
        first: its first element.
        end: the end of its last.
        dimensions: extents and strides, the largest stride first.
    """
    row_count, row_length = dimensions[0]
    # The last row may be shorter than the others, and end with the storage. Then all rows begin earlier, with elements
    # that are skipped.
    skipped = max(0, first + row_count * row_length - storage.count)
    if first >= skipped:
        begin = first - skipped
        origin = _part(storage, begin, begin + row_count * row_length)
        pieces = _Pieces(dimensions, length=row_length, row_count=1, skipped=skipped)
    else:
        # There is no room before the view either: all of it is one piece.
        origin = _part(storage, first, end)
        pieces = _Pieces(dimensions, length=end - first, row_count=row_count, skipped=0)
    count = prod(extent for extent, _ in dimensions)
    return evolve(storage, count=count, data=Derived(origin, pieces.pick, group=pieces.length))


@define(frozen=True)
class _Pieces:
    """Where the elements of a view are in a part of its storage, which is cut into pieces of whole rows.

    Attributes:
        dimensions: extents and strides of the view, the largest stride first; the first extent is that of all rows.
        length: number of elements of a piece.
        row_count: number of rows in each.
        skipped: number of elements at the beginning of each row that are not of the view.
    """

    dimensions: list[tuple[int, int]]
    length: int
    row_count: int
    skipped: int

    def pick(self, flat: np.ndarray) -> np.ndarray:
        """Return the elements of the view in some pieces, which follow one another in `flat`."""
        rows = len(flat) // self.length * self.row_count
        inner_extents = [extent for extent, _ in self.dimensions[1:]]
        strides = [step * flat.dtype.itemsize for _, step in self.dimensions]  # numpy's are in bytes
        strided = np.lib.stride_tricks.as_strided(flat[self.skipped :], [rows, *inner_extents], strides)
        return np.ascontiguousarray(strided).reshape(-1)


def trimmed(tensors: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a state dict whose storages have no elements that none of its tensors uses.

    Tensors that shared a storage share one again, those of one view too; a storage that is used as a whole stays.

    Args:
        tensors: tensors by name; other values are unchanged.

    Returns:
        A new dict, in the same order. Elements are still read on demand only.
    """
    result = _same_tensors(tensors)
    # The new tensors, by the ids of the old ones.
    compact: dict[int, Tensor] = {}
    for views in _views_by_storage(result):
        _trim_storage(views, compact)
    for key, item in result.items():
        if isinstance(item, Tensor) and id(item) in compact:
            result[key] = compact[id(item)]
    return result


def _trim_storage(views: list[Tensor], compact: dict[int, Tensor]) -> None:
    """Make the views of a storage again, on one without elements that none of them uses; nothing if theirs has none.

    Args:
        views: all tensors of the storage.
        compact: receives the new tensors, by the ids of the old.
    """
    clusters = list(_clusters(views))
    if len(clusters) == 1:
        _move_to_own_storage(clusters[0], compact)
        return
    used_count = sum(cluster.end - cluster.first for cluster in clusters)
    if used_count == clusters[0].storage.count:
        return
    for cluster in clusters:
        _move_to_own_storage(cluster, compact)
    _join_storages(clusters, compact)


def _join_storages(clusters: list[_Cluster], compact: dict[int, Tensor]) -> None:
    """Put the new tensors of several clusters of one storage, which have a storage each now, on one again.

    Args:
        clusters: the clusters.
        compact: the new tensors, by the ids of the old; receives those on the common storage in their place.
    """
    parts: list[Storage] = []
    for cluster in clusters:
        part = compact[id(cluster.views[0])].storage
        assert part is not None
        parts.append(part)
    joined = evolve(clusters[0].storage, count=sum(part.count for part in parts), data=Joined(parts))
    start = 0  # of the part in the joined storage
    for part, cluster in zip(parts, clusters):
        for view in cluster.views:
            tensor = compact[id(view)]
            compact[id(view)] = evolve(tensor, storage=joined, offset=start + tensor.offset)
        start += part.count
