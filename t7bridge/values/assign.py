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
        target: the tensor whose elements change; its storage, which it has, is the one that is written to.
        source: the new elements: the same shape, an element type supported by numpy.
        loss: after `assign`: empty where the target's element type holds every new element exactly, `rounded` where the
            nearest value was taken, `changed` where values were altered: infinite, truncated, wrapped around.
    """

    name: str
    target: Tensor
    source: Tensor
    loss: str = ""


def assign(items: list[Assignment]) -> list[tuple[str, str]]:
    """Write new elements into the storages of tensors, in place.

    A storage whose elements all come from one tensor, in the same layout, refers to that tensor's file;
    nothing is read. Any other storage that is written to becomes an array in memory.

    Args:
        items: tensors may share memory if they get the same values there.

    Returns:
        The names of each two tensors that share memory and would get different values there; the same name twice where
        a tensor repeats its own elements.

    Raises:
        LimitError: tensors repeat the elements of small storages excessively.
    """
    items_of_storages: dict[int, list[Assignment]] = {}  # by the identity of the storage
    budget = Budget(DEFAULT_LIMITS, "writing the elements of tensors that repeat their storage")
    for item in items:
        storage = item.target.storage
        assert storage is not None
        # A tensor may repeat its storage, by strides of 0; the bytes that the storage has are free.
        itemsize = item.target.element.itemsize
        budget.allocate(item.target.numel * itemsize, storage.count * itemsize, item.name)
        items_of_storages.setdefault(id(storage), []).append(item)
    clashes: list[tuple[str, str]] = []
    for items_of_storage in items_of_storages.values():
        clashes += _assign_storage(items_of_storage)
    return clashes


def same_elements(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape and the same elements, whatever their types; NaNs are equal.

    Raises:
        LimitError: they repeat the elements of small storages excessively.
    """
    if one.shape != other.shape:
        return False
    # As many elements as one of the two has in its storage are no excess.
    stored_elements = max(tensor.storage.count if tensor.storage is not None else 0 for tensor in (one, other))
    budget = Budget(DEFAULT_LIMITS, "comparing tensors that repeat their storage")
    budget.allocate(one.numel, stored_elements)
    return _are_equal(one.array, other.array)


def _data_to_refer_to(item: Assignment) -> Data | None:
    """Return data of the source to which the target's storage can refer: all its elements, in their order and type.

    `None` if they must be gathered or converted, or the target is only a part of its storage.
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
    """Write the new elements of all tensors of one storage; return the clashes, as `assign` does.

    Args:
        group: the tensors, at least one; all have the same storage.
    """
    first, *others = group
    storage = first.target.storage
    assert storage is not None
    data_of_sources = [_data_to_refer_to(item) for item in group]
    if all(data is not None for data in data_of_sources):
        # Each source alone is the whole storage: it gets the first, and the others must be equal to that.
        # They are compared first, as one of them may be this very storage.
        clashes = [(first.name, item.name) for item in others if not _are_sources_equal(first, item)]
        data_of_first, *_ = data_of_sources
        assert data_of_first is not None
        storage.data = data_of_first
        return clashes
    storage.data = own_array(storage)
    arrays = [_converted(item) for item in group]
    for item, array in zip(group, arrays):
        item.target.array[...] = array
    return _overwritten(group, arrays)


def _overwritten(group: list[Assignment], arrays: list[np.ndarray]) -> list[tuple[str, str]]:
    """Return the clashes of tensors of one storage: those that a later one wrote over with other elements.

    Args:
        group: the tensors, which were all written.
        arrays: what each was to get.
    """
    clashes: list[tuple[str, str]] = []
    for item, array in zip(group, arrays):
        current = item.target.array
        if not _are_equal(current, array):
            are_nans = (current != current) & (array != array)
            is_lost = ~((current == array) | are_nans)
            clashes.append((item.name, _last_writer(group, item, is_lost)))
    return clashes


def _are_sources_equal(one: Assignment, other: Assignment) -> bool:
    """Return whether two contiguous sources of equal length have the same values."""
    first, second = one.source, other.source
    if first.storage is second.storage and first.offset == second.offset:
        return True
    return _are_equal(first.array.reshape(-1), second.array.reshape(-1))


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether shapes and elements are equal; a NaN equals a NaN."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _converted(item: Assignment) -> np.ndarray:
    """Return the new elements in the target's element type, and set `loss` of the item where some are not exact."""
    array = item.source.array
    target_dtype = np.dtype(item.target.element.code)
    if np.can_cast(array.dtype, target_dtype):
        return array.astype(target_dtype, copy=False)
    with np.errstate(all="ignore"):
        converted = array.astype(target_dtype)
        # A loss shows when the elements are converted back.
        if not _are_equal(converted.astype(array.dtype), array):
            # A number that became infinite is not rounded.
            is_rounded = target_dtype.kind == "f" and (np.isfinite(converted) == np.isfinite(array)).all()
            item.loss = "rounded" if is_rounded else "changed"
    return converted


def _last_writer(group: list[Assignment], item: Assignment, is_lost: np.ndarray) -> str:
    """Return the name of the last tensor that wrote to the elements that another one lost.

    Args:
        group: the tensors of the storage, in the order in which they were written.
        item: the one whose elements were lost.
        is_lost: which they are, in the shape of that tensor.
    """
    storage = item.target.storage
    assert storage is not None
    positions = Storage(INT64, storage.count, np.arange(storage.count))

    def positions_of(tensor: Tensor) -> np.ndarray:
        """Return the positions in the storage of a tensor's elements: the same view of a storage of positions."""
        return evolve(tensor, element=INT64, storage=positions).array

    lost_positions = positions_of(item.target)[is_lost]
    for other in reversed(group):
        if np.isin(lost_positions, positions_of(other.target)).any():
            return other.name
    return item.name  # it repeats its own elements
