"""Tensors made of blocks of others, and models in which recognized cells are single modules.

`workshop/cells` recognizes cells, and sets the hook through which `recognized` asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from attrs import evolve, field

from ..data import define, hooks, np
from ..errors import WriteError
from ..graph.storage import Storage
from ..graph.tensor import Assembled, Tensor, contiguous, place_of
from ..report import Note
from .layouts import copied, elements, narrow, reshape
from .mapping import LAYERS, Plan, specs_in
from .registry import Param, traits_of
from .state_dict import Origin, StateDict

CLASS_IN_TORCH_OF_CELL = {f"{LAYERS}recurrent.{name}": name for name in ("LSTMCell", "GRUCell", "RNNCell")}
"""The classes of cells that torch.nn has, by their targets."""
STATEFUL = LAYERS + "containers.Stateful"
"""The graph whose inputs after the first are states."""
CLASS_IN_TORCH_WITH_STATE = {f"{LAYERS}sequence.Stateful{name}": name for name in ("LSTM", "GRU", "RNN")}
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
        second_bias: key of a second bias of the cell, which is zero here and added to the first on the way back: Lua
            has one bias where PyTorch adds two. Empty if there is none.
    """

    key: str
    start: tuple[int, ...]
    size: tuple[int, ...]
    target: str
    at: tuple[int, ...]
    negated: bool = False
    second_bias: str = ""


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
_Block = tuple[tuple[int, ...], Tensor]
"""A part of a tensor, after its first row and column there; of a vector the first element."""


def compose(pieces: Iterable[Piece], shapes: Shapes, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of modules, by key; the same one for modules made of the same blocks.

    Nothing is read from a file until their elements are.

    Args:
        pieces: what they are made of.
        shapes: of the tensors, by the prefix of each module and by name.
        tensors: the source tensors, by key.
    """
    module_of = _modules_by_key(shapes)
    pieces_of: dict[str, list[Piece]] = {}
    for piece in pieces:
        pieces_of.setdefault(module_of[piece.target], []).append(piece)
    # Modules of the same blocks have the same tensors: what Lua ties stays tied.
    by_content: dict[Any, Tensor] = {}
    composed: dict[str, Tensor] = {}
    for prefix, names in shapes.items():
        content = tuple(content_of_piece(piece, tensors[piece.key], prefix) for piece in pieces_of[prefix])
        for name, shape in names.items():
            if (name, content) not in by_content:
                by_content[name, content] = _composed(prefix + name, shape, pieces_of[prefix], tensors)
            composed[prefix + name] = by_content[name, content]
    return composed


def _modules_by_key(shapes: Shapes) -> dict[str, str]:
    """Return the prefix of the module of each tensor, by the tensor's key."""
    return {prefix + name: prefix for prefix, names in shapes.items() for name in names}


def content_of_piece(piece: Piece, tensor: Tensor, prefix: str = "") -> Any:
    """Return a hashable value that is equal for pieces of the same memory that are at the same place of their modules.

    Args:
        piece: the piece.
        tensor: its source.
        prefix: of the keys of its module, with the dot; empty if its keys have none.
    """
    # Without the keys of the source and of the module: tied tensors have several, and each module its own.
    target = piece.target.removeprefix(prefix)
    second_bias = piece.second_bias.removeprefix(prefix)
    return place_of(tensor), evolve(piece, key="", target=target, second_bias=second_bias)


def _composed(key: str, shape: tuple[int, ...], pieces: list[Piece], tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor of a module made of pieces; where it has none it is zero.

    Args:
        key: of the tensor.
        shape: its shape.
        pieces: those of all tensors of the module. Each is of whole rows, and no row is of two. The source of the first
            has the element type of a tensor without any.
        tensors: the source tensors.
    """
    blocks = [(piece.at, _block(tensors[piece.key], piece)) for piece in pieces if piece.target == key]
    if [block.shape for _, block in blocks] == [shape]:
        _, whole = blocks[0]
        return whole
    blocks.sort(key=lambda block: block[0])
    parts = (*blocks, *_zero_blocks(blocks, shape, like=tensors[pieces[0].key]))
    _, first = parts[0]
    assert first.storage is not None  # a layer's weights have elements
    storage = Storage(first.element, prod(shape), Assembled(shape, parts), first.storage.device)
    return evolve(first, storage=storage, size=shape, stride=contiguous(shape), offset=0)


def _zero_blocks(blocks: list[_Block], shape: tuple[int, ...], like: Tensor) -> Iterator[_Block]:
    """Yield blocks of zeros for the rows of a tensor that no block has: a bias that Lua does not have.

    Args:
        blocks: blocks of whole rows, in the order of the rows.
        shape: of the tensor.
        like: a tensor of the element type of the zeros.
    """
    first_column = (0,) * (len(shape) - 1)  # empty for a vector
    row = 0  # the first that is not looked at yet
    for (start_row, *_), block in blocks:
        if row < start_row:
            yield (row, *first_column), _zero_rows(start_row - row, shape, like)
        row = start_row + block.shape[0]
    if row < shape[0]:
        yield (row, *first_column), _zero_rows(shape[0] - row, shape, like)


def _zero_rows(count: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return rows of zeros for a tensor of a shape, of the element type of another."""
    return copied(like, np.zeros((count, *shape[1:]), like.element.code))


def _block(tensor: Tensor, piece: Piece) -> Tensor:
    """Return the block of a source tensor that a piece takes: a view, but a copy where the piece is negated.

    Args:
        tensor: the source tensor.
        piece: the piece.
    """
    # A vector may have more dimensions of one element in Lua.
    if len(tensor.shape) != len(piece.size):
        tensor = reshape(tensor, (tensor.numel,))
    for dim, (start, length) in enumerate(zip(piece.start, piece.size)):
        # A whole tensor stays itself, so that it keeps its origin.
        if length != tensor.shape[dim]:
            tensor = narrow(tensor, dim, start, length)
    return copied(tensor, -elements(tensor)) if piece.negated else tensor


def replace_tensors(result: Lifted, pieces: list[Piece], shapes: Shapes) -> None:
    """Replace the source tensors of pieces by those that they make, in a model's state dict, parameters and pieces.

    Args:
        result: the model, which is changed in place.
        pieces: what the new tensors are made of.
        shapes: of the new tensors.
    """
    old = result.state
    composed = compose(pieces, shapes, old)
    sources = {piece.key for piece in pieces}
    # New tensors that are a whole source tensor, which keep its origin.
    source_of_whole = {piece.target: piece.key for piece in pieces if composed[piece.target] is old[piece.key]}
    state = _without_tensors(old)
    parameters = set(result.plan.parameters - sources)
    for key, old_key in _keys_in_place(old, pieces, shapes):
        if old_key not in sources:
            state[key] = old[key]
            state.origins[key] = old.origins[key]
            continue
        state[key] = composed[key]
        source = source_of_whole.get(key)
        if source is None:
            # Made of parts of tensors. Only weights and biases of cells are cut and joined, which are all learned.
            # Of the origin only the object is left.
            state.origins[key] = Origin(old.origins[old_key].obj, Param(key.rpartition(".")[2]))
            parameters.add(key)
        else:
            state.origins[key] = old.origins[source]
            if source in result.plan.parameters:
                parameters.add(key)
    result.state = state
    result.plan.parameters = frozenset(parameters)
    result.pieces = _chained(result.pieces, pieces)


def _without_tensors(state: StateDict) -> StateDict:
    """Return a state dict without tensors that has the notes and data of another."""
    result = StateDict()
    result.notes = state.notes
    result.data = state.data
    result.data_fields = state.data_fields
    return result


def _keys_in_place(old: Iterable[str], pieces: list[Piece], shapes: Shapes) -> Iterator[tuple[str, str]]:
    """Yield the keys of a state dict in which new tensors are in the place of their sources, in order.

    Args:
        old: the keys with the sources.
        pieces: what the new tensors are made of.
        shapes: of the new tensors.

    Yields:
        A key, and the old one in whose place it is: itself, but for new tensors. Those of a module are all in the place
        of its first source, each once.
    """
    module_of = _modules_by_key(shapes)
    # Of each source tensor, the module of its first piece.
    module_of_source = {piece.key: module_of[piece.target] for piece in reversed(pieces)}
    placed: set[str] = set()
    for old_key in old:
        prefix = module_of_source.get(old_key)
        if prefix is None:
            yield old_key, old_key
        elif prefix not in placed:
            placed.add(prefix)
            for name in shapes[prefix]:
                yield prefix + name, old_key


def _chained(earlier: list[Piece], pieces: list[Piece]) -> list[Piece]:
    """Return pieces that make all tensors of cells from those of the layers, in one step.

    Some of the later pieces take a tensor that earlier ones make, always all of it, and give it a new key. The earlier
    pieces then have this key as their target, and the later one is left out.

    Args:
        earlier: pieces of the layers' tensors.
        pieces: later ones, of the layers' tensors and of those that the earlier ones make.
    """
    made_earlier: set[str] = set()
    for piece in earlier:
        made_earlier.update((piece.target, piece.second_bias))
    new_keys = {piece.key: piece.target for piece in pieces if piece.key in made_earlier}
    chained = []
    for piece in earlier:
        target = new_keys.get(piece.target, piece.target)
        second_bias = new_keys.get(piece.second_bias, piece.second_bias)
        chained.append(evolve(piece, target=target, second_bias=second_bias))
    return chained + [piece for piece in pieces if piece.key not in new_keys]


def undo(pieces: Iterable[Piece], state: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the source tensors of cells: the same bits where nothing was changed.

    Args:
        pieces: what the cells' tensors are made of.
        state: the cells' tensors.
        wanted: tensors of the shapes of the sources, by key.

    Raises:
        WriteError: the cells have an element that is not zero, and no layer of the source has.
    """
    pieces_of: dict[str, list[Piece]] = {}
    for piece in pieces:
        pieces_of.setdefault(piece.key, []).append(piece)
    sources: dict[str, Tensor] = {}
    parts: list[Piece] = []  # which may leave elements of a cell's tensor out
    for key, source_pieces in pieces_of.items():
        first_piece = source_pieces[0]
        tensor = state[first_piece.target]
        shape = wanted[key].shape
        is_plain = not first_piece.negated and not first_piece.second_bias
        if len(source_pieces) == 1 and tensor.shape == shape and is_plain:
            sources[key] = tensor  # the tensor of the cell itself
        else:
            sources[key] = _joined_source(source_pieces, shape, state)
            parts += source_pieces
    _check_covered(parts, state)
    return sources


def _joined_source(pieces: list[Piece], shape: tuple[int, ...], state: Mapping[str, Any]) -> Tensor:
    """Return the source tensor of some pieces, of the element type that the first has in its cell.

    Args:
        pieces: all that were taken from this tensor: together they cover it.
        shape: of the tensor.
        state: the cells' tensors, by key.
    """
    first_piece = pieces[0]
    first = state[first_piece.target]
    source = np.empty(shape, first.array.dtype)
    # A vector may have more dimensions of one element in Lua.
    in_piece_dims = source if len(shape) == len(first_piece.size) else source.reshape(-1)
    for piece in pieces:
        in_piece_dims[_slices(piece.start, piece.size)] = _block_of_source(piece, state)
    return copied(first, source)


def _check_covered(pieces: Iterable[Piece], state: Mapping[str, Any]) -> None:
    """Refuse cells with elements that the layers cannot hold: those that no piece takes must be zero.

    Args:
        pieces: all that take parts of tensors of cells; those that take the whole of one are not needed.
        state: the cells' tensors, by key.

    Raises:
        WriteError: there is such an element.
    """
    # Of each tensor of a cell, by its key, where it is not zero and no piece takes it.
    uncovered: dict[str, np.ndarray] = {}
    for piece in pieces:
        for key in filter(None, (piece.target, piece.second_bias)):
            if key not in uncovered:
                uncovered[key] = state[key].array != 0
            uncovered[key][_slices(piece.at, piece.size)] = False
    for key, is_lost in uncovered.items():
        if is_lost.any():
            raise WriteError(
                "the Lua model has no place for an element of a cell, as its layers lack a bias",
                path=key,
                expected="0",
                found=str(state[key].array[is_lost][0]),
            )


def _block_of_source(piece: Piece, state: Mapping[str, Any]) -> np.ndarray:
    """Return the block of a source tensor from the cells' tensors; of two biases their sum.

    Args:
        piece: what the block is in the source, and in the cell.
        state: the cells' tensors, by key.
    """
    in_cell = _slices(piece.at, piece.size)
    block: np.ndarray = state[piece.target].array[in_cell]
    if piece.second_bias:
        second = state[piece.second_bias].array[in_cell]
        # If it is zero, the bits stay as they are; else the sum is rounded once.
        if second.any():
            block = (block.astype("f8") + second).astype(block.dtype)
    return -block if piece.negated else block


def _slices(start: tuple[int, ...], size: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the index of a block in an array, by its first row and column, and its numbers of rows and columns."""
    return tuple(slice(first, first + length) for first, length in zip(start, size))


# Cells in a graph


def constant_biases(cells: Lifted) -> set[str]:
    """Return the keys of biases that are zero and must not be trained: Lua has one bias where PyTorch adds two.

    Both would receive the gradient of the one, so that a step of training would move their sum twice as far.
    """
    biases: set[str] = {piece.second_bias for piece in cells.pieces if piece.second_bias}
    # A second bias that has learned elements, too, is trained as a whole.
    biases -= {piece.target for piece in cells.pieces}
    # Of layers that are one module in Lua too, the entry says which bias is added to another on the way back.
    for key, origin in cells.state.origins.items():
        if origin.param is not None and origin.param.adds_to:
            biases.add(key)
    return biases & cells.state.keys()


def recognized(plan: Plan, state: StateDict, only_torch: bool = False) -> Lifted:
    """Return a model in which layers that compute an LSTM, GRU or RNN are one module: `recognized` of `workshop/cells`.

    It is not asked for a model without graphs and recurrent layers, which has no cells.

    Args:
        plan: the plan; it is modified.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks stay as they are.
    """
    if not any(spec.graph is not None or traits_of(spec.target).is_recurrent for spec in specs_in(plan.root)):
        return Lifted(plan, state)
    result: Lifted = hooks["recognized"](plan, state, only_torch)
    return result
