"""StateDict: tensors by PyTorch's names, their origins, and memory that they share or no longer share.

A tensor is written with its whole storage, which after `getParameters()` is that of the whole model. Compacting copies
each view to elements of its own. Overlapping views keep a common storage, cut to the range that they use, and so do
tied tensors; views that lie between each other's elements (the columns of a matrix) count as overlapping.

`save_module` writes a field `t7bridge` into each module with weights, and one into the root; see `lua/objects.py`. They
are read back here: the model's current state dict becomes the recorded one, and vice versa.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from attrs import evolve, field

from ..data import define, np
from ..graph.dtypes import PACKED
from ..graph.lua import Table, TorchObject, Value
from ..graph.storage import Derived, Span, Storage
from ..graph.tensor import Tensor
from ..report import Note, Report
from ..text import counted, listed
from .fields import items_of
from .registry import Param, Source


@define(eq=False)
class Origin:
    """Origin of a tensor of a state dict.

    Attributes:
        obj: the Lua object.
        param: the entry that named it; `None` for a class without an entry.
        source: its field and layout; `None` if it was computed, or its layout could not be changed.
        tensor: the Lua tensor; `None` if it was computed.
    """

    obj: TorchObject
    param: Param | None
    source: Source | None
    tensor: Tensor | None


class StateDict(OrderedDict[str, Tensor]):
    """A PyTorch state dict, made from a Lua model: tensors by PyTorch's names, in PyTorch's order.

    Tensors that shared memory in Lua do so here.

    Attributes:
        notes: notes for the user.
        origins: the origin of each tensor.
        data: strings, numbers and tables of them in fields of the model that its classes do not set, such as a
            vocabulary: under the prefix of the module and the name of the field.
        data_fields: identity of the object and name of the field of each of these, and of the record of `save_module`.
    """

    __slots__ = ("data", "data_fields", "notes", "origins")

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Note] = []
        self.origins: dict[str, Origin] = {}
        self.data: dict[str, Value] = {}
        self.data_fields: set[tuple[int, str]] = set()

    @property
    def tensors(self) -> StateDict:
        """The state dict itself."""
        return self

    def __repr__(self) -> str:
        return f"<StateDict: {counted(len(self), 'tensor')}>"

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


_SHOWN = 8


def note_lost_sharing(models: Iterable[StateDict], report: Report) -> None:
    """Note the tensors that were copied into another layout, and share their original memory with others of the result.

    Args:
        models: the state dicts of the result.
        report: receives the note.
    """
    places: dict[int, list[tuple[int, int, str, Tensor, int]]] = {}
    for model in models:
        for key, origin in model.origins.items():
            before, now = origin.tensor, model.tensors[key]
            if before is not None and before.storage is not None and before.numel:
                first, end = before.reach()
                places.setdefault(id(before.storage), []).append((first, end, key, now, id(before)))
    lost: dict[str, None] = {}
    for found in places.values():
        found.sort(key=lambda place: place[:3])
        reach, last = -1, found[0]
        for place in found:
            is_part = place[4] == last[4]  # parts of one tensor share nothing
            if place[0] < reach and place[3].storage is not last[3].storage and not is_part:
                lost[last[2]] = lost[place[2]] = None
            if place[1] > reach:
                reach, last = place[1], place
    if lost:
        names = listed(lost, _SHOWN)
        message = f"memory that Lua shares between tensors of different layouts is no longer shared: {names}"
        report.notes.append(Note("info", "", message, "sharing", code="unshared"))


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


FIELD = "t7bridge"
ROOT_FIELD = "t7bridge_state_dict"


@define(frozen=True)
class Piece:
    """A part of a recorded tensor.

    Attributes:
        key: of the model's own state dict; its elements are a run of the tensor's.
        start: of the run, in elements, 0-based.
        count: elements of the run.
        transposed: whether the model holds the transpose of the tensor.
    """

    key: str
    start: int
    count: int
    transposed: bool = False


@define(eq=False)
class Recorded:
    """A recorded state dict.

    Attributes:
        keys: in order.
        sizes: of the tensors held by modules, by key.
        pieces: their locations.
        copies: parts that other pieces hold as well, as in the cells of an unrolled layer.
        tied: other keys of a tensor → its first key.
        other: tensors that no module holds, or holds only in part.
        scalars: outputs without dimensions, counted from 1.
    """

    keys: list[str] = field(factory=list)
    sizes: dict[str, tuple[int, ...]] = field(factory=dict)
    pieces: dict[str, list[Piece]] = field(factory=dict)
    copies: dict[str, list[Piece]] = field(factory=dict)
    tied: dict[str, str] = field(factory=dict)
    other: dict[str, Tensor] = field(factory=dict)
    scalars: list[int] = field(factory=list)

    def outer(self, found: StateDict) -> dict[str, Tensor]:
        """Convert a model's own state dict to the recorded one: views of the same memory where possible."""
        made = {key: self._joined(key, found) for key in self.pieces}
        result: dict[str, Tensor] = {}
        for key in self.keys:
            first = self.tied.get(key, key)
            result[key] = made[first] if first in made else self.other[first]
        return result

    def _joined(self, key: str, found: StateDict) -> Tensor:
        size, pieces = self.sizes[key], self.pieces[key]
        tensors = [found[piece.key] for piece in pieces]
        first = tensors[0]
        places = {
            (id(tensor.storage), tensor.offset - piece.start) if tensor.is_contiguous else None
            for piece, tensor in zip(pieces, tensors)
        }
        stride = tuple(prod(size[place + 1 :]) for place in range(len(size)))
        if len(pieces) == 1 and pieces[0].transposed:
            return Tensor(first.element, first.storage, size, first.stride[::-1], first.offset)
        if len(places) == 1 and None not in places and key not in self.other:
            return Tensor(first.element, first.storage, size, stride, first.offset - pieces[0].start, not size)
        rest = self.other.get(key)
        whole = np.empty(prod(size), np.dtype(first.element.code)) if rest is None else rest.numpy().reshape(-1).copy()
        for piece, tensor in zip(pieces, tensors):
            whole[piece.start : piece.start + piece.count] = tensor.numpy().reshape(-1)
        return Tensor.from_numpy(whole.reshape(size))  # one without dimensions is a scalar

    def inner(self, state: dict[Any, Any], found: StateDict) -> dict[Any, Any]:
        """Convert a recorded state dict to the model's own; tensors that no module holds are left out."""
        result: dict[Any, Any] = {}
        for key in self.pieces:
            names = [key, *(other for other, first in self.tied.items() if first == key)]
            tensor = next((state[name] for name in names if isinstance(state.get(name), Tensor)), None)
            if tensor is None:
                continue
            array = tensor.numpy()
            for piece in self.places(key):
                part = (array.T if piece.transposed else array).reshape(-1)[piece.start : piece.start + piece.count]
                wanted = found[piece.key].shape
                fits = part.size == prod(wanted) and array.size == prod(self.sizes[key])
                result[piece.key] = Tensor.from_numpy(part.reshape(wanted)) if fits else tensor
        held = {piece.key for key in self.pieces for piece in self.places(key)}
        kept = {
            key: found[key] for key, origin in found.origins.items() if key not in held and origin.tensor is not None
        }
        return {**result, **kept}

    def places(self, key: str) -> list[Piece]:
        """Return all pieces that hold parts of a tensor, including copies."""
        return [*self.pieces[key], *self.copies.get(key, [])]


def recorded(root: TorchObject, found: StateDict) -> Recorded | None:
    """Return the state dict recorded in a model, `None` if there is none, or it does not match.

    Args:
        root: the model.
        found: its own state dict.
    """
    record = root.get(ROOT_FIELD)
    if not isinstance(record, Table):
        return None
    result = Recorded([_text(key) for key in items_of(record.get("keys")) or ()])
    result.tied = {_text(key): _text(value) for key, value in _pairs(record.get("tied"))}
    result.scalars = [int(place) for place in items_of(record.get("scalars")) or () if isinstance(place, (int, float))]
    for key, value in _pairs(record.get("other")):
        scalar = value.get("scalar") if isinstance(value, Table) else None
        if isinstance(scalar, Tensor) and scalar.numel == 1:
            result.other[_text(key)] = Tensor(scalar.element, scalar.storage, (), (), scalar.offset, is_scalar=True)
        elif isinstance(value, Tensor):
            result.other[_text(key)] = value
    for own, origin in found.origins.items():
        name = own.rpartition(".")[2]
        entry = origin.obj.get(FIELD)
        entry = entry.get(name) if isinstance(entry, Table) else None
        if isinstance(entry, Table):
            _add(result, own, entry, found[own].numel)
    fits = all(_whole(result, key) for key in result.pieces)
    known = {*result.pieces, *result.other}
    return result if fits and all(result.tied.get(key, key) in known for key in result.keys) else None


def _add(result: Recorded, own: str, entry: Table, count: int) -> None:
    key = _text(entry.get("key"))
    size = tuple(int(extent) for extent in items_of(entry.get("size")) or () if isinstance(extent, (int, float)))
    start = entry.get("start", 0)
    start = int(start) if isinstance(start, (int, float)) else 0
    piece = Piece(own, start, count, entry.get("transposed") is True)
    known = result.pieces.setdefault(key, [])
    result.sizes.setdefault(key, size)
    same = any((other.start, other.count) == (start, count) for other in known)
    (result.copies.setdefault(key, []) if same else known).append(piece)


def _whole(result: Recorded, key: str) -> bool:
    """Return whether the pieces of a tensor cover all of it, in order and without overlap."""
    pieces = sorted(result.pieces[key], key=lambda piece: piece.start)
    total = prod(result.sizes[key])
    for piece in pieces:
        if (piece.start, piece.count) == (0, total):  # one holds all: further parts share its memory
            result.copies.setdefault(key, []).extend(other for other in pieces if other is not piece)
            result.pieces[key] = [piece]
            return not piece.transposed or len(result.sizes[key]) == 2
    place, gaps = 0, False
    for piece in pieces:
        if piece.start < place or piece.transposed:
            return False
        gaps |= piece.start > place
        place = piece.start + piece.count
    result.pieces[key] = pieces
    kept = result.other.get(key)
    return place <= total and ((place == total and not gaps) or (kept is not None and kept.numel == total))


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, Table) else []
