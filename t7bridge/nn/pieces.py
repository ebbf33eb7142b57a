"""Tensors made of blocks of others, and models in which recognized cells are single modules.

`workshop/cells` recognizes cells, and sets the hook through which `recognized` asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from operator import add
from typing import Any

from attrs import evolve, field

from ..data import define, hooks, np
from ..errors import WriteError
from ..graph.storage import Storage
from ..graph.tensor import Assembled, Tensor, contiguous, place_of
from ..report import Note
from .layouts import copied, elements, narrow, reshape
from .mapping import LAYERS, Plan
from .registry import Param
from .state_dict import Origin, StateDict

IN_TORCH = {f"{LAYERS}recurrent.{name}": name for name in ("LSTMCell", "GRUCell", "RNNCell")}
"""The classes of cells that torch.nn has, by their targets."""
STATEFUL = LAYERS + "containers.Stateful"
"""The graph whose inputs after the first are states."""
WITH_STATE = {f"{LAYERS}sequence.Stateful{name}": name for name in ("LSTM", "GRU", "RNN")}
"""Layers that take and return their state, and the classes of torch.nn that they are."""


@define(frozen=True)
class Piece:
    """A block of a tensor that is also a block of a tensor of a cell.

    Attributes:
        key: of the source tensor.
        start: the first row and column of the block in it; of a vector the first element.
        size: rows and columns of the block.
        target: key of the cell's tensor.
        at: the first row and column there.
        negated: whether the cell has the negative values.
        adds: key of a second tensor of the cell, whose block at this place is added on the way back: Lua has one bias.
    """

    key: str
    start: tuple[int, ...]
    size: tuple[int, ...]
    target: str
    at: tuple[int, ...]
    negated: bool = False
    adds: str = ""


@define(eq=False)
class Lifted:
    """A model with its cells as single modules.

    Attributes:
        plan: the plan.
        state: its state dict.
        pieces: what the tensors of the cells are made of; what no piece covers is zero.
        notes: which cells were recognized, and what stood against others.
    """

    plan: Plan
    state: StateDict
    pieces: list[Piece] = field(factory=list)
    notes: list[Note] = field(factory=list)

    def note(self, path: str, message: str, count: int = 1) -> None:
        """Add a note about a module, by its path."""
        self.notes.append(Note("info", path, message, code="lift", count=count))


Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]
"""The shapes of the tensors of modules, by the prefix of their keys, and by name."""


def compose(pieces: Iterable[Piece], shapes: Shapes, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of modules, equal for equal blocks; nothing is read from a file until their elements are.

    Args:
        pieces: what they are made of.
        shapes: of the tensors.
        tensors: the source tensors.
    """
    homes = {home + name: home for home, names in shapes.items() for name in names}
    modules: dict[str, list[Piece]] = {}
    for piece in pieces:
        modules.setdefault(homes[piece.target], []).append(piece)
    known: dict[Any, Tensor] = {}
    made: dict[str, Tensor] = {}
    for home, names in shapes.items():
        views = tuple(view_of_piece(piece, tensors[piece.key], home) for piece in modules[home])
        for name, shape in names.items():
            if (name, views) not in known:
                known[name, views] = _composed(home + name, shape, modules[home], tensors)
            made[home + name] = known[name, views]
    return made


def view_of_piece(piece: Piece, tensor: Tensor, home: str = "") -> Any:
    """Return what is equal for pieces of the same memory that are at the same place of their modules."""
    names = piece.target.removeprefix(home), piece.adds.removeprefix(home)
    return place_of(tensor), evolve(piece, key="", target=names[0], adds=names[1])


def _composed(key: str, shape: tuple[int, ...], around: list[Piece], tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor made of the pieces of its module; where it has none it is zero, of the type of the first."""
    found = [(piece.at, _block(tensors[piece.key], piece)) for piece in around if piece.target == key]
    if [tensor.shape for _, tensor in found] == [shape]:
        return found[0][1]
    found.sort(key=lambda part: part[0])
    like = tensors[around[0].key]
    row = 0
    for start, tensor in [*found, (shape[:1], like)]:
        if row < start[0]:  # a bias that Lua does not have
            found.append(((row, *start[1:]), copied(like, np.zeros((start[0] - row, *shape[1:]), like.element.code))))
        row = start[0] + tensor.shape[0]
    first = found[0][1]
    assert first.storage is not None
    storage = Storage(first.element, prod(shape), Assembled(shape, tuple(found)), first.storage.device)
    return evolve(first, storage=storage, size=shape, stride=contiguous(shape), offset=0)


def _block(tensor: Tensor, piece: Piece) -> Tensor:
    """Return the block of a source tensor; a vector may have more dimensions of one element."""
    if len(tensor.shape) != len(piece.size):
        tensor = reshape(tensor, (tensor.numel,))
    for dim, (start, length) in enumerate(zip(piece.start, piece.size)):
        tensor = tensor if length == tensor.shape[dim] else narrow(tensor, dim, start, length)
    return copied(tensor, -elements(tensor)) if piece.negated else tensor


def replace_tensors(result: Lifted, pieces: list[Piece], shapes: Shapes) -> None:
    """Replace the tensors that pieces are of by those that they make; one that is whole keeps its origin.

    Args:
        result: the model.
        pieces: what the new tensors are made of.
        shapes: of the new tensors.
    """
    old, learned = result.state, set(result.plan.parameters)
    made = compose(pieces, shapes, old)
    whole = {piece.target: piece.key for piece in pieces if made[piece.target] is old[piece.key]}
    modules = {home: [home + name for name in names] for home, names in shapes.items()}
    homes = {name: home for home, names in modules.items() for name in names}
    first = {piece.key: homes[piece.target] for piece in reversed(pieces)}
    state = result.state = StateDict()
    state.notes, state.data, state.data_fields = old.notes, old.data, old.data_fields
    for key, tensor in old.items():
        if key not in first:
            state[key], state.origins[key] = tensor, old.origins[key]
            continue
        learned.discard(key)
        for name in modules.pop(first[key], ()):
            state[name], source = made[name], whole.get(name)
            made_of = Origin(old.origins[key].obj, Param(name.rpartition(".")[2]), None, None)
            state.origins[name] = made_of if source is None else old.origins[source]
            if source is None or source in result.plan.parameters:
                learned.add(name)
    result.plan.parameters = frozenset(learned)
    known = {key for each in result.pieces for key in (each.target, each.adds)}
    again = {piece.key: piece.target for piece in pieces if piece.key in known}
    result.pieces = [
        evolve(each, target=again.get(each.target, each.target), adds=again.get(each.adds, each.adds))
        for each in result.pieces
    ]
    result.pieces += [piece for piece in pieces if piece.key not in again]


def undo(pieces: Iterable[Piece], state: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the source tensors of cells: the same bits where nothing was changed.

    Args:
        pieces: what the cells' tensors are made of.
        state: the cells' tensors.
        wanted: tensors of the shapes of the sources, by key.

    Raises:
        WriteError: the cells have an element that is not zero, and no layer of the source has.
    """
    found: dict[str, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.key, []).append(piece)
    made: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    """Whether elements of cells' tensors are not zero, and in no piece."""
    for key, blocks in found.items():
        first, shape = state[blocks[0].target], wanted[key].shape
        if len(blocks) == 1 and first.shape == shape and not blocks[0].negated and not blocks[0].adds:
            made[key] = first
            continue
        whole = np.empty(shape, first.array.dtype)
        flat = whole if len(shape) == len(blocks[0].size) else whole.reshape(-1)
        for piece in blocks:
            there, here = (tuple(map(slice, at, map(add, at, piece.size))) for at in (piece.at, piece.start))
            for name in filter(None, (piece.target, piece.adds)):
                if name not in rest:
                    rest[name] = state[name].array != 0
                rest[name][there] = False
            block = state[piece.target].array[there]
            other = state[piece.adds].array[there] if piece.adds else None
            if other is not None and other.any():
                block = (block.astype("f8") + other).astype(block.dtype)
            flat[here] = -block if piece.negated else block
        made[key] = copied(first, whole)
    for name, each in rest.items():
        if each.any():
            raise WriteError(
                "the Lua model has no place for an element of a cell, as its layers lack a bias",
                path=name,
                expected="0",
                found=str(state[name].array[each][0]),
            )
    return made


# Cells in a graph


def constant_biases(cells: Lifted) -> set[str]:
    """Return the keys of biases that are zero and must not be trained: Lua has one bias where PyTorch adds two.

    Both would receive the gradient of the one, so that a step of training would move their sum twice as far.
    """
    origins = cells.state.origins
    derived = {key for key, origin in origins.items() if origin.param is not None and origin.param.adds_to}
    second = {piece.adds for piece in cells.pieces if piece.adds}
    # A second bias that has learned elements, too, is trained as a whole.
    second -= {piece.target for piece in cells.pieces}
    return {key for key in derived | second if key in cells.state}


def recognized(plan: Plan, state: StateDict, only_torch: bool = False) -> Lifted:
    """Return a model as people write it in PyTorch, as `workshop/cells` recognizes it: see the function there.

    Args:
        plan: the plan; it is modified.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks stay as they are.
    """
    result: Lifted = hooks["recognized"](plan, state, only_torch)
    return result
