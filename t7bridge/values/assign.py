"""Assign new elements to tensors by writing into the storages that they view, so that all sharing survives."""

from __future__ import annotations

from attrs import evolve

from ..data import define, np
from ..graph.dtypes import INT64
from ..graph.storage import Data, Span, Storage, own_array
from ..graph.tensor import Tensor, as_stored
from ..limits import DEFAULT_LIMITS, Budget


@define(eq=False)
class Assignment:
    """New elements for one tensor.

    Attributes:
        name: what messages call it.
        target: the tensor whose elements change; its storage is the one that is written to.
        source: the new elements: the same shape, an element type supported by numpy.
        loss: after `assign`: empty where the target's element type holds every new element exactly, `rounded` where the
            nearest value was taken, `changed` where values were altered: infinite, truncated, wrapped around.
    """

    name: str
    target: Tensor
    source: Tensor
    loss: str = ""


def assign(items: list[Assignment]) -> list[tuple[str, str]]:
    """Write new elements into storages.

    A storage whose elements all come from one tensor, in the same layout, refers to that tensor's file;
    nothing is read. Any other storage that is written to becomes an array in memory.

    Args:
        items: tensors may share memory if they get the same values there.

    Returns:
        The names of each two tensors that share memory and would get different values there; the same name twice where
        a tensor repeats its own elements.
    """
    groups: dict[int, list[Assignment]] = {}
    budget = Budget(DEFAULT_LIMITS, "writing the elements of tensors that repeat their storage")
    for item in items:
        if item.target.storage is not None:
            # A tensor may repeat its storage, by strides of 0; the bytes that the storage has are free.
            width = item.target.element.itemsize
            budget.allocate(item.target.numel * width, item.target.storage.count * width, item.name)
        groups.setdefault(id(item.target.storage), []).append(item)
    clashes: list[tuple[str, str]] = []
    for group in groups.values():
        clashes += _assign_storage(group)
    return clashes


def same_elements(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape and the same elements; NaNs are equal.

    Raises:
        LimitError: they repeat the elements of small storages excessively.
    """
    stored = max(tensor.storage.count if tensor.storage is not None else 0 for tensor in (one, other))
    Budget(DEFAULT_LIMITS, "comparing tensors that repeat their storage").allocate(one.numel, stored)
    return one.shape == other.shape and _same(one.array, other.array)


def _direct(item: Assignment) -> Data | None:
    """Return the source's bytes for the whole storage of the target, if they can be copied unchanged.

    `None` if they must be gathered or converted.
    """
    target, source = item.target, item.source
    assert target.storage is not None
    if target.offset or target.numel != target.storage.count or not target.is_contiguous:
        return None
    if source.element != target.element:
        return None
    stored = as_stored(source)
    if stored is None or not isinstance(stored.data, (Span, np.ndarray)):
        return None
    return stored.data


def _assign_storage(group: list[Assignment]) -> list[tuple[str, str]]:
    """Write the new elements of all tensors of one storage; return the clashes."""
    first = group[0]
    storage = first.target.storage
    assert storage is not None
    whole_data = [_direct(item) for item in group]
    if whole_data[0] is not None and all(data is not None for data in whole_data):
        clashes = [(first.name, item.name) for item in group[1:] if not _equal(first, item)]
        storage.data = whole_data[0]
        return clashes
    storage.data = own_array(storage)
    arrays = [_converted(item) for item in group]
    for item, array in zip(group, arrays):
        item.target.array[...] = array
    # What a later tensor of the group wrote over is not what the earlier one was to get.
    clashes = []
    for item, array in zip(group, arrays):
        current = item.target.array
        if not _same(current, array):
            is_same = (current == array) | ((current != current) & (array != array))
            clashes.append((item.name, _last_writer(group, item, ~is_same)))
    return clashes


def _equal(one: Assignment, other: Assignment) -> bool:
    """Return whether two contiguous sources of equal length have the same values."""
    first, second = one.source, other.source
    if first.storage is second.storage and first.offset == second.offset:
        return True
    return _same(first.array.reshape(-1), second.array.reshape(-1))


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _converted(item: Assignment) -> np.ndarray:
    """Return the new elements in the target's element type; `loss` describes what was lost."""
    array = item.source.array
    wanted = np.dtype(item.target.element.code)
    if np.can_cast(array.dtype, wanted):
        return array.astype(wanted, copy=False)
    with np.errstate(all="ignore"):
        converted = array.astype(wanted)
        if not _same(converted.astype(array.dtype), array):
            is_rounded = wanted.kind == "f" and (np.isfinite(converted) == np.isfinite(array)).all()
            item.loss = "rounded" if is_rounded else "changed"
    return converted


def _last_writer(group: list[Assignment], item: Assignment, wrong: np.ndarray) -> str:
    """Return the last tensor that wrote to the elements that another one lost."""
    storage = item.target.storage
    assert storage is not None
    numbers = Storage(INT64, storage.count, np.arange(storage.count))

    def places(tensor: Tensor) -> np.ndarray:
        """Return the positions in the storage of a tensor's elements: the same view of a storage of numbers."""
        return evolve(tensor, element=INT64, storage=numbers).array

    lost = places(item.target)[wrong]
    for other in reversed(group):
        if np.isin(lost, places(other.target)).any():
            return other.name
    return item.name
