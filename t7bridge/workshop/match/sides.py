"""The two sides of a match: state dicts from files, models and dicts. The gates of a recurrent layer are blocks of rows
of its tensors, in an order that PyTorch and each Lua package choose for themselves. A recognized cell is a module of
PyTorch that stands for several layers of Lua.

Models have a data flow between their parts, and cells, whose order of gates shapes do not show: i f g o in PyTorch,
i f o g in char-rnn.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from attrs import evolve, field

from ... import formats, torchmodules
from ...conversion.adopt import adopt, is_live
from ...conversion.checkpoints import plain_states
from ...conversion.named_tensors import flatten
from ...conversion.naming import Naming
from ...conversion.template import state_dict_in
from ...conversion.tree import as_tree
from ...data import define, np
from ...errors import ModelError, T7BridgeError, about_file
from ...formats.pt.modules import VisitedModules, module_state_dict
from ...formats.table import Document
from ...graph.dtypes import ELEMENT_TYPES
from ...graph.lua import COMPOSITE, TorchObject
from ...graph.python import is_pickled_module
from ...graph.storage import Elements, Storage, array_chunks
from ...graph.tensor import Tensor
from ...graph.walk import Path, walk
from ...io.platform import require_torch
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.pieces import Lifted, undo
from ...nn.places import choose, find_modules, preprocessing
from ...nn.plan import build_plan
from ...nn.state_dict import ROOT_FIELD, StateDict, state_dict
from ...report import Note
from ...torchmodules.factories import Factory, is_factory
from ..cells import recognized, recurrence
from .parts import keys_under, name_of, prefix_of, sibling

if TYPE_CHECKING:
    from ...torchmodules import Wiring

_KEY_WITH_GATES = re.compile(r"(?:.*\.)?(?:weight|bias)_(?:ih|hh)((?:_l\d+)?(?:_reverse)?)\Z")
"""The key of a tensor whose rows are gates in a module of PyTorch, with the layer and direction: `rnn.weight_ih_l0`."""
ORDERS = {4: "ifgo", 3: "rzn"}
"""PyTorch's order, by the number of gates."""
LUA_ORDERS = {4: "ifog", 3: "rzn"}
"""The order of most Lua packages, for examples in messages: that of char-rnn and SeqLSTM, and of SeqGRU."""


@define(frozen=True)
class Gates:
    """Reordering of the gates in the rows of a recurrent layer's tensor into the order of the target.

    Attributes:
        order: the source block of each target block.
        words: the change in words.
    """

    order: tuple[int, ...]
    words: str


_UNREAD: Any = object()
"""Instead of a data flow that is not read yet."""


@define(eq=False)
class Side:
    """One state dict of a match, and what is known of the model that it comes from.

    Attributes:
        name: of the file, or its name in messages.
        format: the name of the file's format; empty for a value in memory.
        tensors: its tensors by key, in order.
        others: its entries that are not plain tensors, which are not matched.
        keys: all keys, of `tensors` and `others`, in order.
        derived: keys of derived tensors, which follow from others and need no counterpart.
        gates: prefix of a layer whose rows are gates → their order; see `gate_orders`. Empty unless `with_cells` keeps
            the layers of cells.
        cells: the model with its cells as single modules of PyTorch, whose keys `keys` and `tensors` are then; `None`
            unless `with_cells` changed them.
        layers: with `cells`, the tensors of the Lua layers themselves, by their own keys; else empty.
        metadata: PyTorch's `_metadata`; `None` if the state dict has none.
        notes: notes of its construction.
        document: the file it comes from, open; `None` for a value in memory and a factory.
        module: the Lua module it comes from, or `None`.
        factory: the factory of PyTorch that it comes from, or `None`.
        live: the live PyTorch module that it comes from, or `None`.
        lists: the keys of each list of tensors, which have no names, in order.
        own_keys: the key after renaming → the key that the model itself has; empty if none was renamed.
        wired: what `wiring_of` has read, which takes time; `_UNREAD` before.
    """

    name: str = ""
    format: str = ""
    tensors: dict[str, Tensor] = field(factory=dict)
    others: dict[str, Any] = field(factory=dict)
    keys: list[str] = field(factory=list)
    derived: set[str] = field(factory=set)
    gates: dict[str, str] = field(factory=dict)
    cells: Lifted | None = None
    layers: dict[str, Tensor] = field(factory=dict)
    metadata: Any = None
    notes: list[Note] = field(factory=list)
    document: Document | None = None
    module: TorchObject | None = None
    factory: Factory | None = None
    live: Any = None
    lists: list[list[str]] = field(factory=list)
    own_keys: dict[str, str] = field(factory=dict)
    wired: Wired | None = field(default=_UNREAD, init=False, repr=False)

    @property
    def has_graph(self) -> bool:
        """Return whether it comes from a model, and not from a state dict alone."""
        return self.module is not None or self.factory is not None or self.live is not None


def side_of(
    value: Any,
    name: str,
    at: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    naming: Naming | None = None,
) -> Side:
    """Return one side of a match from a file, a model or a state dict; values are not read.

    Args:
        value: a path; a Lua module; a `StateDict`; a dict of tensors, t7bridge's or PyTorch's; a `torch.nn.Module`; the
            name of a factory of PyTorch's modules, `torchvision.models:resnet50`.
        name: its name in messages, if it is not a file.
        at: the path inside the value if it holds several state dicts: `root.protos.rnn`.
        limits: resource limits.
        naming: rules for its keys.

    Raises:
        ModelError: there is no state dict, or there are several and `at` names none of them; or the rules rename
            nothing, or give two keys one name.
        FormatError: the file is damaged, or in no supported format.
    """
    side = Side(name)
    state = _state_behind(side, value, at, limits)
    _add_tensors(side, adopt(state))
    if naming:
        _rename(side, naming)
    return side


def _state_behind(side: Side, value: Any, at: str | None, limits: Limits) -> Any:
    """Return the state dict that a value is, holds or makes, or a live module that has one; see `side_of`.

    Args:
        side: receives what is known of the model: its file, module or factory, notes and derived keys.
        value: the value.
        at: the path inside it.
        limits: resource limits.
    """
    # Each kind of value becomes a simpler one: of a file or factory what it holds or makes, of a Lua module its
    # `StateDict`.
    if isinstance(value, Factory) or is_factory(value):
        side.factory = value if isinstance(value, Factory) else Factory.parse(value)
        side.name = str(side.factory)
        value = _state_of(side.factory)
    elif isinstance(value, (str, os.PathLike)):
        value = _open(side, value, at, limits)
    if isinstance(value, TorchObject):
        side.module = value
        value = state_dict(value, limits=limits)
    if isinstance(value, StateDict):
        side.derived |= _derived_keys(value)
        side.notes += value.notes
    if is_live(value):
        side.live = value
    return value


def _derived_keys(state: StateDict) -> set[str]:
    """Return the keys of the tensors of a state dict that follow from others."""
    derived = set()
    for key in state:
        origin = state.origins.get(key)  # tensors that a user has added have none
        if origin is not None and origin.param is not None and origin.param.kind == "derived":
            derived.add(key)
    return derived


def _rename(side: Side, naming: Naming) -> None:
    """Give the keys of a side new names, wherever the side has keys; `own_keys` has the old ones.

    Args:
        side: the side.
        naming: the rules.

    Raises:
        ModelError: a rule renames nothing, or two keys get one name.
    """
    keys = side.keys
    own_keys = naming.renamed({key: key for key in keys})  # by their new names
    naming.check_used(keys, side.name)
    new_names = {key: name for name, key in own_keys.items()}
    side.keys = list(own_keys)
    side.tensors = {new_names[key]: tensor for key, tensor in side.tensors.items()}
    side.others = {new_names[key]: item for key, item in side.others.items()}
    side.derived = {new_names[key] for key in side.derived}
    side.lists = [[new_names[key] for key in keys_of_list] for keys_of_list in side.lists]
    side.own_keys = dict(own_keys)


def _add_tensors(side: Side, state: Any) -> None:
    """Add the tensors of a state dict to a side; other entries are kept apart, and so are tensors with further data.

    Args:
        side: receives `keys`, `tensors`, `others` and `metadata`.
        state: the state dict.

    Raises:
        ModelError: it is not a state dict, or holds no tensors.
    """
    if not isinstance(state, Mapping):
        raise ModelError("is not a state dict", file=side.name, found=type(state).__name__)
    side.metadata = getattr(state, "_metadata", None)
    for key, item in state.items():
        if not isinstance(key, str):
            raise ModelError("a state dict has a key that is not text", file=side.name, found=type(key).__name__)
        side.keys.append(key)
        if isinstance(item, Tensor) and item.extras is None:  # those of conjugated tensors are not all of its value
            side.tensors[key] = item
        else:
            side.others[key] = item
    if not side.tensors:
        raise ModelError("holds no tensors", file=side.name)


def _open(side: Side, path: Any, at: str | None, limits: Limits) -> Any:
    """Open the file of a side, and return its module or its state dict, or that at a path inside.

    Args:
        side: receives the document, its name and format, and notes of preprocessing that the file states.
        path: of the file.
        at: the path of the module or state dict inside; `None` takes the only one.
        limits: resource limits.
    """
    document = formats.open(path, limits=limits)
    side.name = document.path
    side.format = document.format
    side.document = document
    if document.spec.values != formats.LUA:
        with about_file(side.name):
            return _state_in(side, document.value, at, limits)
    document.warn(3)  # at the caller of `match`
    _note_preprocessing(side, document.roots)
    has_modules = any(map(find_modules, document.roots))
    if not has_modules:
        return _tables_in(side, document.first, at)  # of several values that which Lua's `torch.load` returns
    return _module_in(document.value, side.name, at)


def _note_preprocessing(side: Side, roots: Iterable[Any]) -> None:
    """Add a note of what the values of a file say about the preprocessing of inputs, if they do."""
    texts: list[str] = []
    for root in roots:
        texts += [f"{place}: {text}" for place, text in preprocessing(root).items()]
    if texts:
        message = f"input, as the file says: {'; '.join(texts)}"
        side.notes.append(Note("info", path="", message=message, code="match"))


def _tables_in(side: Side, root: Any, at: str | None) -> dict[str, Tensor]:
    """Return the tensors in the tables or lists of a file without modules, or at a path, by keys joined with dots.

    Lists of tensors alone, whose keys are the numbers from 0, are noted in the side's `lists`.

    Args:
        side: receives the lists.
        root: the content of the file.
        at: the path of what is meant, `root.parameters`; `None` for all of it.
    """
    part = root if at is None else Path.parse(at).get(root)
    value = as_tree(part) if isinstance(part, COMPOSITE) else part
    flat = flatten(value)
    tensors = {".".join(steps): tensor for steps, tensor in flat.tensors.items()}
    lists: dict[str, list[str]] = {}
    for key in tensors:
        list_path, _, last = key.rpartition(".")
        if last.isdecimal():
            lists.setdefault(list_path, []).append(key)
    for list_path, keys in lists.items():
        prefix = f"{list_path}." if list_path else ""
        if keys == [f"{prefix}{number}" for number in range(len(keys))]:
            side.lists.append(keys)
    return tensors


def _state_of(factory: Factory) -> OrderedDict[str, Any]:
    """Return the state dict of a factory's module, whose parameters get their values when these are asked for."""
    require_torch()
    state = torchmodules.skeleton(factory).state_dict()
    # The module with values is made once, when the first of them is asked for. It downloads nothing on its own.
    load_values = cache(lambda: adopt(torchmodules.make_module(factory, fetch=False)))
    storages: dict[int, Storage] = {}
    result: OrderedDict[str, Any] = OrderedDict()
    for key, value in state.items():
        if not getattr(value, "is_meta", False):  # it has its value already
            result[key] = value
            continue
        element = ELEMENT_TYPES[str(value.dtype).removeprefix("torch.")]
        memory = value.untyped_storage()
        count = memory.nbytes() // element.itemsize
        # Parameters of one memory are tied.
        storage = storages.setdefault(memory._cdata, Storage(element, count, _InitialValue(load_values, key)))
        shape = tuple(value.shape)
        stride = tuple(value.stride())
        result[key] = Tensor(element, storage, shape, stride, value.storage_offset(), is_scalar=not shape)
    result._metadata = getattr(state, "_metadata", None)  # type: ignore[attr-defined]
    return adopt(result)  # type: ignore[no-any-return]


class _InitialValue(Elements):
    """The value of a parameter in a module that a factory has just made.

    Args:
        load_values: makes the module, and returns its state dict.
        key: of the parameter.
    """

    def __init__(self, load_values: Callable[[], Mapping[str, Tensor]], key: str) -> None:
        self._load_values = load_values
        self._key = key

    def arrays(self, storage: Storage) -> Iterator[np.ndarray]:
        """Yield the elements of a storage in pieces; the module with its values is made for the first of all storages.

        Raises:
            ModelError: this module has no such parameter, or one of another size.
        """
        value = self._load_values().get(self._key)
        if value is None or value.storage is None or value.storage.count != storage.count:
            raise ModelError(f"the module has other parameters when it is made with its weights: {self._key}")
        return array_chunks(value.storage)


def _module_in(value: Any, name: str, at: str | None) -> TorchObject:
    """Return the only module with tensors in a `.t7`, or that at a path.

    Args:
        value: the content of the file; a list of several values, `root[0]` and so on in paths.
        name: of the file, for messages.
        at: the path; `None` for the only one.
    """
    modules = find_modules(value)
    if at is None and len(modules) > 1:
        # A module without tensors, such as a criterion, counts only if none has any.
        modules = [(path, module) for path, module in modules if state_dict(module)] or modules
    _, module = choose(modules, at, name)
    return module


def _state_in(side: Side, value: Any, at: str | None, limits: Limits) -> Any:
    """Return the only state dict in a `.pt`, or that at a path, as a dict of tensors and perhaps other values.

    State dicts are dicts with tensors, and pickled modules, inside of which none are looked for. A list of tensors is
    one if the file has nothing else, or if the path leads to it.

    Args:
        side: the side that gets it; it is given the keys of lists, see `_tables_in`.
        value: the content of the file.
        at: the path, `root.model`; `None` for the only one.
        limits: resource limits.

    Raises:
        ModelError: there is none, or there are several, or none at the path.
    """
    if at is None:
        # Of a checkpoint that of the model, which has a usual key: the others are an optimizer's, say.
        state = state_dict_in(value)
        if state:
            return state
    states = _dicts_and_modules(value, limits)
    lists = [path for path, state in plain_states(value) if not isinstance(state, dict)]
    has_only_lists = at is None and not states and bool(lists)
    is_path_of_list = at in lists or f"root.{at}" in lists  # `root.` may be left out
    if has_only_lists or is_path_of_list:
        return _tables_in(side, value, at)
    _, state = choose(states, at, side.name, "state dict")
    return state


def _dicts_and_modules(value: Any, limits: Limits) -> list[tuple[str, Any]]:
    """Return the path and the state dict of each dict with tensors and each pickled module, but for those in modules.

    Args:
        value: the content of a `.pt`.
        limits: resource limits.
    """
    states: list[tuple[str, Any]] = []
    inside_modules: set[Any] = set()
    visited = VisitedModules(limits)
    for visit in walk(value):
        if visit.parent in inside_modules:
            inside_modules.add(visit)
        elif is_pickled_module(visit.value):
            inside_modules.add(visit)
            states.append((visit.text(), module_state_dict(visit.value, limits=limits, visited=visited)))
        elif isinstance(visit.value, dict) and any(isinstance(item, Tensor) for item in visit.value.values()):
            states.append((visit.text(), visit.value))
    return states


Wired = tuple["Wiring", dict[str, str]]
"""The data flow of a model, and the keys that the model itself has for those of a side, where they are others."""


def wiring_of(side: Side) -> Wired | None:
    """Return the data flow of the model that a side comes from; `None` if there is none, or it cannot be read."""
    if side.wired is _UNREAD:
        side.wired = _read_wiring(side) if side.has_graph else None
    return side.wired


def _read_wiring(side: Side) -> Wired | None:
    """Return the data flow of a side's model, see `wiring_of`; each call makes the module, without memory for weights.

    `None` if the module cannot be made, as of layers that PyTorch does not have, or if it cannot be traced.
    """
    try:
        require_torch()
        live, keys_in_model = _live_model(side)
    except (T7BridgeError, RecursionError):  # layers without modules, or nested too deep
        return None
    wiring = torchmodules.wiring_of(live)
    if wiring is None:
        return None
    if side.own_keys:  # the user has renamed them
        keys_in_model = {key: keys_in_model.get(key, own_key) for key, own_key in side.own_keys.items()}
    return wiring, keys_in_model


def _live_model(side: Side) -> tuple[Any, dict[str, str]]:
    """Return the live module of a side that has a graph, and its own keys, by those of the side, where they differ.

    Raises:
        T7BridgeError: it cannot be made.
    """
    if side.live is not None:
        return side.live, {}
    if side.factory is not None:
        return torchmodules.skeleton(side.factory), {}
    if side.cells is not None:
        return torchmodules.construct(side.cells.plan.root), {}
    assert side.module is not None
    state = state_dict(side.module, own_keys=True)
    live = torchmodules.construct(build_plan(side.module, state=state).root)
    if ROOT_FIELD in side.module:  # `save_module` has recorded PyTorch's keys, which the side has
        return live, _keys_in_lua(side.tensors, state)
    return live, {}


def _keys_in_lua(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the keys in Lua of tensors that have other keys here: tensors with the same memory are the same.

    The key in Lua is empty for tied tensors, which have two, and for tensors that are none of Lua's.

    Args:
        tensors: by their keys here.
        own: the same tensors by their keys in Lua.
    """
    keys_in_lua: dict[tuple[int, int, int], str] = {}
    for key, tensor in own.items():
        memory = _memory(tensor)
        keys_in_lua[memory] = "" if memory in keys_in_lua else key
    return {key: keys_in_lua.get(_memory(tensor), "") for key, tensor in tensors.items()}


def _memory(tensor: Tensor) -> tuple[int, int, int]:
    """Return what is equal for tensors of the same elements in memory, whatever their shape."""
    return id(tensor.storage), tensor.offset, tensor.numel


def is_sorted(side: Side) -> bool:
    """Return whether the keys of a side are sorted by name, and not in the order of definition, as far as they show it.

    safetensors and HDF5 sort keys. PyTorch's modules define a weight before its bias. Those of models, and of lists of
    tensors, are in the order of definition.
    """
    if side.has_graph or side.lists:
        return False
    keys = list(side.tensors)
    if keys == sorted(keys):
        return True
    place = {key: number for number, key in enumerate(keys)}
    for key in keys:
        weight = sibling(key, "weight")
        if name_of(key) == "bias" and weight in place and place[key] < place[weight]:
            return True
    return False


def in_target_order(side: Side, tensors: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a state dict with exactly the keys of a side, in their order, and its metadata.

    Args:
        side: the target.
        tensors: the values, by key; if its cells were matched as single modules, by the keys of these.
    """
    if side.cells is None:
        result = OrderedDict((key, tensors[key]) for key in side.keys)
    else:
        # Cells were matched as the modules of PyTorch that they are; their weights go back to the Lua layers inside.
        of_layers = {**tensors, **undo(side.cells.pieces, tensors, side.layers)}
        result = OrderedDict((key, of_layers[key]) for key in (*side.layers, *side.others))
    if side.metadata is not None:
        result._metadata = side.metadata  # type: ignore[attr-defined]
    return result


def gate_count(key: str, tensors: Mapping[str, Tensor]) -> int:
    """Return the number of gates in a key of a PyTorch state dict: 4 for an LSTM, 3 for a GRU, 1 for any other key.

    It is the number of rows for each feature of the cell, and 1 if the features are not known. 0 for a tensor with
    fewer rows than features, which no cell of PyTorch has.

    Args:
        key: one of the state dict.
        tensors: the state dict.
    """
    match = _KEY_WITH_GATES.match(key)
    if not match:
        return 1
    suffix = match[1]  # the layer and direction
    # The columns of a projection, or else of the matrix of the last output, are the features of the cell.
    hidden = tensors.get(sibling(key, f"weight_hr{suffix}")) or tensors.get(sibling(key, f"weight_hh{suffix}"))
    shape = tensors[key].shape
    if hidden is None or len(hidden.shape) != 2 or not shape:
        return 1
    _, features = hidden.shape
    return shape[0] // features if features else 1


def reorder(letters: str, count: int, into_pytorch: bool) -> Gates:
    """Return the reordering of the source's gates into the target's order; one of the two is PyTorch's.

    Args:
        letters: the order of the side that is not PyTorch's, a letter a gate: `ifog`.
        count: number of gates.
        into_pytorch: whether the target is the side with PyTorch's order.

    Raises:
        ModelError: the letters are not those of that many gates.
    """
    in_pytorch = ORDERS.get(count, "")
    if not in_pytorch or sorted(letters) != sorted(in_pytorch):
        expected = f"the letters {in_pytorch or 'of 3 or 4 gates'}"
        raise ModelError("is not an order of the gates", expected=expected, found=letters[:20])
    source, target = (letters, in_pytorch) if into_pytorch else (in_pytorch, letters)
    order = tuple(source.index(gate) for gate in target)
    return Gates(order, f"{' '.join(source)} become {' '.join(target)}")


def gate_orders(cells: Lifted) -> dict[str, str]:
    """Return the orders of gates shown by the graphs of a model, from its recognized cells.

    Args:
        cells: the model with its cells as modules of PyTorch. Its `pieces` tell which rows of which tensor in Lua
            became which rows of theirs.

    Returns:
        For the prefix of each linear layer whose rows are gates of an LSTM, their order: `{"3.": "ifog"}`.
    """
    orders = {}
    for prefix, gates in _gates_of_layers(cells).items():
        order = "".join(letter for _, letter in sorted(gates))
        if len(order) == 4:  # a layer with all gates, and not one for each
            orders[prefix] = order
    return orders


def _gates_of_layers(cells: Lifted) -> dict[str, list[tuple[int, str]]]:
    """Return the gates of LSTMs in each linear layer, by its prefix: the first row of each gate there, and its letter.

    Args:
        cells: see `gate_orders`.
    """
    gates: dict[str, list[tuple[int, str]]] = {}
    for piece in cells.pieces:
        # A piece is the matrix or bias of one gate: a block of rows in Lua's layer, and one in PyTorch's cell.
        rows_of_gate, *columns = piece.size
        row_in_lua, *_ = piece.start
        row_in_cell, *_ = piece.at
        rows_of_cell, *_ = cells.state[piece.target].shape
        if columns and rows_of_cell == 4 * rows_of_gate:  # a matrix, of an LSTM
            letter = ORDERS[4][row_in_cell // rows_of_gate]
            gates.setdefault(prefix_of(piece.key), []).append((row_in_lua, letter))
    return gates


def _recognized(root: TorchObject, *, only_torch: bool) -> Lifted | None:
    """Return a model as people write it in PyTorch, see `cells.recognized`; `None` if it has layers without modules."""
    try:
        state = state_dict(root, own_keys=True)
        return recognized(build_plan(root, state=state), state, only_torch)
    except (T7BridgeError, RecursionError):  # of modules nested too deep
        return None


def recurrent_in_words(root: TorchObject) -> str:
    """Return what a recurrent model is, `2-layer LSTM language model, 128 features, 65 tokens`; empty for others."""
    model = _recognized(root, only_torch=False)
    recurrent = None if model is None else recurrence(model.plan.root)
    return "" if recurrent is None else str(recurrent)


def with_cells(side: Side, other: Side, mapped: Iterable[str]) -> Side:
    """Return a side with the layers of each recognized cell as one module of PyTorch, whose keys those of the side are.

    It is the side itself if the other one has no recurrent modules, or if this one has no cells.

    Args:
        side: the side.
        other: the other.
        mapped: the user's keys and prefixes of this side. If one is of a Lua layer in a cell, the side keeps its
            layers, and gets the order of their gates.
    """
    if side.module is None or not any(map(_KEY_WITH_GATES.match, other.tensors)):
        return side
    # The side has other keys than Lua's layers, of which cells are recognized: `save_module` recorded those of PyTorch
    # in the field, or the user renamed them.
    if ROOT_FIELD in side.module or side.own_keys:
        return side
    cells = _recognized(side.module, only_torch=True)
    if cells is None or not cells.pieces:
        return side
    keys_in_cells = {piece.key for piece in cells.pieces}
    if any(keys_under(name, keys_in_cells) for name in mapped):
        return evolve(side, gates=gate_orders(cells))
    # What the side does not match, as the tensor is not all of its value, is not matched in a cell either.
    tensors = {key: tensor for key, tensor in cells.state.items() if key not in side.others}
    return evolve(side, tensors=tensors, keys=[*cells.state], cells=cells, layers=side.tensors)
