"""The PyTorch state dict recorded in a Lua model: which of its tensors each module holds.

`save_module` writes a field `t7bridge` into each module with weights, and one into the root; see `lua/objects.py`.
They are read back here: the model's current state dict becomes the recorded one, and vice versa.
"""

from __future__ import annotations

from math import prod
from typing import Any

from attrs import field

from ..data import define
from ..graph.lua import Table, TorchObject
from ..graph.tensor import Tensor
from ..lazy import np
from .fields import items_of
from .named import StateDict

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
