"""State dicts that carry only the used parts of storages.

A tensor is written with its whole storage, which after `getParameters()` is that of the whole model. Compacting copies
each view to elements of its own. Overlapping views keep a common storage, cut to the range that they use, and so do
tied tensors; views that lie between each other's elements (the columns of a matrix) count as overlapping.
May import graph and report.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from attrs import evolve, field

from ..data import define
from ..graph.dtypes import PACKED
from ..graph.storage import Derived, Span, Storage
from ..graph.tensor import Tensor
from ..lazy import np


@define(eq=False)
class _Cluster:
    """Overlapping views of one storage, and the range that they use.

    Attributes:
        storage: their storage.
        first: the first element used.
        end: the element after the last one.
        views: the views, of any geometry.
        pinned: whether the whole storage is kept unchanged.
    """

    storage: Storage
    first: int
    end: int
    views: list[Tensor] = field(factory=list)
    pinned: bool = False

    @property
    def elements(self) -> int:
        """Number of elements kept."""
        return self.storage.count if self.pinned else self.end - self.first if self.rows() is None else self.dense()

    def rows(self) -> list[tuple[int, int]] | None:
        """Extents and strides, the largest stride first, if all views are the same one and it leaves elements out."""
        view = self.views[0]
        if self.pinned or any(_geometry(other) != _geometry(view) for other in self.views):
            return None
        rows = sorted(
            ((extent, step) for extent, step in zip(view.size, view.stride) if extent > 1 and step),
            key=lambda row: -row[1],
        )
        reach = 0
        for extent, step in reversed(rows):
            if step <= reach:
                return None  # it repeats elements
            reach += (extent - 1) * step
        return rows if prod(extent for extent, _ in rows) < self.end - self.first else None

    def dense(self) -> int:
        """Count the elements of one view, each once."""
        return prod(extent for extent, step in zip(self.views[0].size, self.views[0].stride) if step)


def compacted(tensors: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a state dict with the same tensors on storages that hold no more than they use.

    Args:
        tensors: tensors by name; other values are unchanged.

    Returns:
        A new dict, in the same order. Elements are still read on demand only.
    """
    result = OrderedDict(tensors)
    if hasattr(tensors, "_metadata"):
        result._metadata = tensors._metadata  # type: ignore[attr-defined]
    compact_in(result)
    return result


def compact_in(value: Any) -> Any:
    """Compact all tensors in a value's dicts and lists, which receive new tensors in their place.

    A storage that occurs in the value outside of tensors is kept whole, with the tensors on it.

    Returns:
        The value; another one if it is a tensor itself.
    """
    holder = [value]
    fresh: dict[int, Tensor] = {}
    for cluster in list(_clusters(holder)):
        _cut(cluster, fresh)
    for place, key, item in list(_entries(holder)):
        if isinstance(item, Tensor) and id(item) in fresh:
            place[key] = fresh[id(item)]
    return holder[0]


def _entries(value: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield everything in dicts and lists: holder, key or index, item."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        holder = stack.pop()
        if id(holder) in seen or not isinstance(holder, (dict, list)):
            continue
        seen.add(id(holder))
        for place, item in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            yield holder, place, item
            if isinstance(item, (dict, list)):
                stack.append(item)


def _geometry(view: Tensor) -> tuple[Any, ...]:
    return view.offset, view.size, view.stride


def _clusters(value: Any) -> Iterator[_Cluster]:
    """Return the tensors of a value grouped by shared memory."""
    views: dict[int, list[Tensor]] = {}
    pinned: set[int] = set()
    known: set[int] = set()
    for _, _, item in _entries(value):
        if isinstance(item, Storage):
            pinned.add(id(item))
        if not isinstance(item, Tensor) or item.storage is None or id(item) in known:
            continue
        known.add(id(item))
        views.setdefault(id(item.storage), []).append(item)
        if item.storage.base is not None:
            pinned.update((id(item.storage), id(item.storage.base)))
    for tensors in views.values():
        storage = tensors[0].storage
        assert storage is not None
        if id(storage) in pinned or storage.element.name in PACKED:
            yield _Cluster(storage, 0, storage.count, tensors, pinned=True)
            continue
        last: _Cluster | None = None
        for first, end, view in sorted(((*_range(view), view) for view in tensors), key=lambda row: row[:2]):
            if last is None or first >= last.end:
                if last is not None:
                    yield last
                last = _Cluster(storage, first, end, [view])
            else:
                last.views.append(view)
                last.end = max(last.end, end)
        assert last is not None
        yield last


def _range(view: Tensor) -> tuple[int, int]:
    """Return the range from the first to the last element of a view; empty at 0 for an empty one."""
    if not view.numel:
        return 0, 0
    return view.reach()


def _cut(cluster: _Cluster, fresh: dict[int, Tensor]) -> None:
    """Move the views of a cluster to a storage of their own."""
    storage = cluster.storage
    rows = cluster.rows()
    if rows is not None:
        part = _gathered(storage, cluster.first, cluster.end, rows)
        steps, left = {}, 1
        for extent, step in reversed(rows):
            steps[step] = left
            left *= extent
        for view in cluster.views:
            stride = tuple(steps.get(step, step) for step in view.stride)
            fresh[id(view)] = evolve(view, storage=part, offset=0, stride=stride)
    elif not cluster.pinned and cluster.end - cluster.first < storage.count:
        part = _part(storage, cluster.first, cluster.end)
        for view in cluster.views:
            fresh[id(view)] = evolve(view, storage=part, offset=view.offset - cluster.first if view.numel else 0)


def _part(storage: Storage, first: int, end: int) -> Storage:
    """Return a contiguous part of a storage. Nothing is read if the file has the elements in this form."""
    data = storage.data
    if isinstance(data, Span):
        return evolve(
            storage,
            count=end - first,
            data=Span(data.source, data.offset + first * data.width, data.width, data.order),
        )
    array = storage.data = storage.array  # text has no random access, so it is read once
    return evolve(storage, count=end - first, data=array[first:end])


def _gathered(storage: Storage, first: int, end: int, rows: list[tuple[int, int]]) -> Storage:
    """Yield the elements of a view, the largest stride first, in pieces of whole outer rows."""
    count, step = rows[0]
    # The rows are cut so that the last one ends with the storage, if it is shorter than the others.
    shift = max(0, first + count * step - storage.count)
    whole = first >= shift
    if whole:
        origin = _part(storage, first - shift, first - shift + count * step)
    else:
        origin, shift, step = _part(storage, first, end), 0, end - first

    def pick(flat: np.ndarray) -> np.ndarray:
        shape = [extent for extent, _ in rows]
        shape[0] = len(flat) // step if whole else shape[0]
        strides = [each * flat.dtype.itemsize for _, each in rows]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat[shift:], shape, strides)).reshape(-1)

    return evolve(storage, count=prod(extent for extent, _ in rows), data=Derived(origin, pick, step))
