"""Recurrent layers over whole sequences as people write them in PyTorch: a sequencer of a cell is a layer of torch.nn,
several in a row are one with more levels, and a model that remembers its last sequence takes the state and returns it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve

from ..data import define
from ..graph.tensor import Tensor, place_of
from .flows import ANY, DataFlow, Kind
from .lift import Lifted, Piece, compose, lifted
from .mapping import LAYERS, SEQUENTIAL, GraphNode, GraphSpec, Link, ModuleSpec, Plan, specs_in
from .plan import graph_arguments
from .registry import Param, tensor_shapes, traits_of
from .state_dict import Origin, StateDict

STATEFUL = LAYERS + "containers.Stateful"
"""The graph whose inputs after the first are states."""
_TEXT_MODEL = LAYERS + "sequence.TextModel"
_SEQUENCER = LAYERS + "sequence.Sequencer"
_STEPS = LAYERS + "sequence.Steps"
"""Layers over sequences that take a list of steps."""
_MASK = LAYERS + "recurrent.MaskZero"
_OTHERS = (LAYERS + "sequence.MaskedSequencer", LAYERS + "sequence.SteppedLSTM")
"""Layers over sequences that torch.nn lacks."""
_EMBEDDING = LAYERS + "linear.LookupTable"
_TOKENS = (_EMBEDDING, "torch.nn.Embedding", LAYERS + "shape.OneHot")
_DROPOUT = "torch.nn.Dropout"
_KINDS = {
    "sequence.SeqLSTM": "LSTM",
    "sequence.OutputsLSTM": "LSTM",
    "sequence.OutputsGRU": "GRU",
    "sequence.OutputsRNN": "RNN",
}
"""Layers over sequences, and the classes of torch.nn that they are."""
_BY_ROW = {f"torch.nn.{name}" for name in ("Linear", "Dropout", "Tanh", "Sigmoid", "ReLU", "Identity")}
"""Layers that treat each step of each sequence by itself, however many there are."""
_LAST = {f"{LAYERS}activation.{name}": f"torch.nn.{name}" for name in ("Softmax", "LogSoftmax")}
"""Layers that find the dimension of the features by the number of dimensions, and those that have it as an argument."""
_NAMES = {_EMBEDDING: "embedding", "torch.nn.Linear": "linear", _DROPOUT: "dropout"}
_STATES = ("remember", "state", "hidden", "start", "mask_zero")
"""Arguments of recurrent layers about states, and about steps that are left out."""

Named = tuple[str, ModuleSpec]
"""A module with the beginning of its keys."""


def recognized(plan: Plan, state: StateDict, only_torch: bool = False) -> Lifted:
    """Return a model as people write it in PyTorch: cells as single modules, layers over sequences with their state.

    Args:
        plan: the plan; it is modified.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks stay as they are.
    """
    result = lifted(plan, state, only_torch)
    once = _once(plan.root)
    is_tree = len(once) == sum(1 for _ in specs_in(plan.root))
    unrolled = _unroll(result, once)
    moved, tied = Moves(), _tied_in(result.state)
    for prefix, spec in [*once.values()][::-1]:  # inside first: what is outside has its keys until all are moved
        inside = [each for child in spec.children.values() for each in (child, *child.children.values())]
        is_own = id(spec) not in unrolled or spec is plan.root
        if spec.target in (SEQUENTIAL, _STEPS) and is_own and all(id(each) in once for each in inside):
            _merge(result, moved, prefix, spec, unrolled, tied)
            once.update((id(each), (prefix, each)) for each in spec.children.values())
    _move(result, moved)
    if is_tree:
        _take_state(result)
    return result


def _once(root: ModuleSpec) -> dict[int, tuple[str, ModuleSpec]]:
    """Return the prefix of each module that occurs at one place only, and in which no other occurs again."""
    found: dict[int, list[tuple[str, ModuleSpec]]] = {}
    stack = [("", root)]
    for _ in range(4 * sum(1 + len(spec.children) for spec in specs_in(root))):
        if not stack:
            break
        prefix, spec = stack.pop()
        found.setdefault(id(spec), []).append((prefix, spec))
        stack += [(f"{prefix}{name}.", child) for name, child in spec.children.items()]
    return {key: places[0] for key, places in found.items() if len(places) == 1 and not stack}


# Sequencers


_RECURRENT = (LAYERS + "recurrent.", _OTHERS[1])
_RECURRENT_NAME = re.compile(r"(?:LSTM|GRU|RNN)(?=\w*\Z)")
_GATES = tuple(tuple(name + gate for gate in "ifgo") for name in ("weight_i", "weight_h", "bias_"))
_CELLS = {
    f"{LAYERS}recurrent.FastLSTM": (("weight_ih",), ("weight_hh",), ("bias",)),
    f"{LAYERS}recurrent.LSTM": _GATES,
}
"""The tensors of cells in the order of the rows of `weight_ih_l0`, `weight_hh_l0` and `bias_ih_l0` of torch.nn.LSTM."""


_NO_LIST = "recognized: layers over sequences, which take a tensor (steps, batch, features) and no list"
_LIST = "recognized: layers over sequences, which take a list of steps of one shape"


class _Inputs(DataFlow):
    """The flow of a model that is called with anything, with the kinds of the inputs of layers over sequences."""

    def __init__(self) -> None:
        super().__init__(traits_of)
        self.kinds: dict[int, set[Kind]] = {}

    def __call__(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of the output of a module."""
        if spec.target == _SEQUENCER or _kind(spec):
            self.kinds.setdefault(id(spec), set()).add(kind)
        return super().__call__(spec, kind)

    def names(self, spec: ModuleSpec) -> set[str]:
        """Return the names of the kinds of the inputs of a module."""
        return {kind.name for kind in self.kinds.get(id(spec), {ANY})}


def _unroll(result: Lifted, once: dict[int, tuple[str, ModuleSpec]]) -> set[int]:
    """Make containers over sequences of sequencers that forget, whose modules treat each step by itself.

    Returns:
        The ids of those that are Sequentials.
    """
    own = {id(spec): prefix for prefix, spec in once.values() if all(id(each) in once for each in specs_in(spec))}
    every = [*specs_in(result.plan.root)]
    sequencers = [spec for spec in every if spec.target == _SEQUENCER or spec.target in _OTHERS]
    layers = [spec for spec in every if _kind(spec) and id(spec) in own]
    flow = _Inputs()
    if sequencers or layers:
        flow(result.plan.root, ANY)
    _take_tensors(layers, flow)
    pieces: list[Piece] = []
    shapes: dict[str, tuple[int, ...]] = {}
    moved, tied = Moves(), _tied_in(result.state)
    for spec in sequencers:
        kinds, prefix = flow.names(spec), own.get(id(spec))
        against = (
            "a module in it has several places" if prefix is None else _against_unrolling(spec, prefix, kinds, tied)
        )
        message = ""
        if prefix is not None and not against:
            _over_sequences(prefix, spec, pieces, shapes, moved)
            is_list = _takes_list(spec, kinds)
            spec.target = _STEPS if is_list else SEQUENTIAL
            message = _LIST if is_list else _NO_LIST * (kinds != {"tensor"})
        elif any(each.target.startswith(_RECURRENT) for each in specs_in(spec)):
            message = f"{spec.class_name} stays as it is: {against}"
        if message:
            result.note(spec.path, message)
    _move(result, moved, pieces, shapes)
    return {id(spec) for spec in sequencers if spec.target == SEQUENTIAL}


def _take_tensors(layers: list[ModuleSpec], flow: _Inputs) -> None:
    """Make layers of torch.nn of layers over sequences that begin with zeros and take tensors."""
    for spec in layers:
        if not _keeps(spec) and flow.names(spec) == {"tensor"}:
            spec.plain = f"torch.nn.{_kind(spec)}"


def _over_sequences(
    prefix: str, spec: ModuleSpec, pieces: list[Piece], shapes: dict[str, tuple[int, ...]], moved: Moves
) -> None:
    """Make layers over sequences of the cells of a sequencer, and its children of all its modules.

    Args:
        prefix: of the sequencer's keys.
        spec: the sequencer.
        pieces: receives what the tensors of the layers are made of.
        shapes: receives the shapes of these tensors.
        moved: receives the new beginnings of the keys of other modules.
    """
    steps = list(_inside(spec, prefix))
    for at, (above, step) in enumerate(steps):
        place, layer = _unmasked(above, step)
        home = f"{prefix}{at}.{place[len(above) :]}"
        if layer.target in _CELLS:
            pieces += _as_layer(place, home, layer, shapes)
        elif place != home:
            moved[place] = home
        if layer.target in _LAST:
            layer.target, layer.args, layer.plain = _LAST[layer.target], (-1,), ""
    spec.kwargs, spec.children = {}, {str(at): each for at, (_, each) in enumerate(steps)}


def _inside(spec: ModuleSpec, prefix: str) -> Iterator[tuple[str, ModuleSpec]]:
    """Yield the modules of a sequencer in their order, those of a Sequential instead of it."""
    for name, child in spec.children.items():
        if child.target == SEQUENTIAL:
            yield from _inside(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}.", child


def _unmasked(place: str, spec: ModuleSpec) -> Named:
    """Return the module inside of one that returns zeros for rows of zeros, or the module itself."""
    if spec.target == _MASK and spec.kwargs.get("n_input_dims") == 1 and not spec.kwargs.get("zero_mask"):
        name, child = next(iter(spec.children.items()))
        return f"{place}{name}.", child
    return place, spec


def _takes_list(spec: ModuleSpec, kinds: set[str]) -> bool:
    """Return whether the input of a sequencer is a list, or was one in its last call."""
    last = spec.obj.get("output") if spec.obj is not None else None
    return "list" in kinds or (kinds != {"tensor"} and not isinstance(last, Tensor))


def _against_unrolling(spec: ModuleSpec, prefix: str, kinds: set[str], tied: set[str]) -> str:
    """Return what stands against a sequencer as layers over sequences; empty for nothing.

    Args:
        spec: the sequencer.
        prefix: of its keys.
        kinds: the kinds of its inputs.
        tied: see `_tied_in`.
    """
    if spec.target in _OTHERS:
        is_masked = spec.target == _OTHERS[0] or spec.kwargs.get("mask_zero")
        return "it skips steps of zeros" if is_masked else "its projection is not smaller than its cell"
    inside = [_unmasked(*step) for step in _inside(spec, prefix)]
    other = next((each for _, each in inside if each.target not in (*_CELLS, *_BY_ROW, *_LAST)), None)
    if other is not None:
        return f"it has {other.class_name}"
    cells = [each for _, each in inside if each.target in _CELLS]
    if not cells and kinds != {"tensor"}:
        return "its input may be a list"
    if any(each.kwargs.get("peephole") is not False for each in cells if each.target.endswith(".LSTM")):
        return "its gates see the cell"
    if any(each.kwargs.get(name) for each in (spec, *cells) for name in _STATES if each.kwargs.get(name) != "neither"):
        return "it remembers a state, or skips steps"
    return _against_moving(tied, (place for place, each in inside if each.target in _CELLS))


def _tied_in(state: StateDict) -> set[str]:
    """Return the beginnings, up to a dot, of all keys whose tensor another key has, too."""
    times = Counter(map(place_of, state.values()))
    tied = [key for key, tensor in state.items() if times[place_of(tensor)] > 1]
    return {key[:end] for key in tied for end in _dots(key)}


def _dots(key: str) -> list[int]:
    """Return the lengths of the beginnings of a key up to a dot, the longest first."""
    return [at for at in range(len(key), 0, -1) if key[at - 1] == "."]


def _against_moving(tied: set[str], prefixes: Iterable[str]) -> str:
    """Return what stands against tensors of their own for modules; empty for nothing."""
    return "" if tied.isdisjoint(prefixes) else "another layer has the same weights"


def _as_layer(prefix: str, home: str, spec: ModuleSpec, shapes: dict[str, tuple[int, ...]]) -> Iterator[Piece]:
    """Make a cell a layer over sequences, and yield what its tensors are made of.

    Args:
        prefix: of the cell's keys.
        home: of the layer's.
        spec: the cell.
        shapes: receives the shapes of the layer's tensors.
    """
    rows = _CELLS[spec.target]
    spec.target, spec.args, spec.kwargs = f"{LAYERS}sequence.OutputsLSTM", spec.args[:2], {}
    spec.plain = "torch.nn.LSTM"
    own = tensor_shapes(spec.target, spec.args, spec.kwargs)
    shapes.update((home + name, shape) for name, shape in own.items())
    for target, names in zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"), rows):
        height, *width = own[target]
        size = (height // len(names), *width)
        adds = f"{home}bias_hh_l0" if target == "bias_ih_l0" else ""
        for number, name in enumerate(names):
            at = (number * size[0], *[0] * len(width))
            yield Piece(prefix + name, (0,) * len(size), size, home + target, at, adds=adds)


# Layers in a row


def _merge(result: Lifted, moved: Moves, prefix: str, spec: ModuleSpec, unrolled: set[int], tied: set[str]) -> None:
    """Make one layer of recurrent layers of a Sequential that follow one another; the others get new numbers.

    Args:
        result: receives notes.
        moved: receives the new beginnings of keys.
        prefix: of the Sequential's keys.
        spec: the Sequential.
        unrolled: the Sequentials inside, by id, that are no modules of their own.
        tied: see `_tied_in`.
    """
    steps: list[Named] = []
    for name, child in spec.children.items():
        inside = [(f"{prefix}{name}.{step}.", each) for step, each in child.children.items()]
        steps += inside if id(child) in unrolled else [(f"{prefix}{name}.", child)]
    children: dict[str, ModuleSpec] = {}
    for group in _groups(steps):
        begins = all(not _keeps(each) for _, each in group)
        if len(group) > 1 and begins and not _against_moving(tied, [step for step, _ in group]):
            name = str(len(children))
            children[name] = _merged(group, "Outputs")
            if not children[name].plain:
                children[name].plain = f"torch.nn.{_kind(group[0][1])}"
                message = f"recognized: {_kind(group[0][1])} layers in a row, which take a tensor and no list"
                result.note(group[0][1].path, message)
            moved.update(_levels(f"{prefix}{name}", group))
            continue
        for step, each in group:
            home = f"{prefix}{len(children)}."
            if step != home:
                moved[step] = home
            children[str(len(children))] = each
    spec.children = children


def _kind(spec: ModuleSpec) -> str:
    """Return the class of torch.nn of a layer over sequences; empty for other layers."""
    return _KINDS.get(spec.target.removeprefix(LAYERS), "")


def _keeps(spec: ModuleSpec) -> bool:
    """Return whether a recurrent layer begins a sequence with anything but zeros."""
    return bool(_kind(spec)) and any(spec.kwargs.get(name) not in (None, False, "neither") for name in _STATES)


def _groups(steps: list[Named]) -> Iterator[list[Named]]:
    """Yield the layers one by one, and recurrent layers with equal options and equal dropout in between together."""
    at = 0
    while at < len(steps):
        group = [steps[at]]
        while _kind(group[0][1]) and (more := _following(group, steps[at + len(group) : at + len(group) + 2])):
            group += more
        yield group
        at += len(group)


def _following(group: list[Named], rest: list[Named]) -> list[Named]:
    """Return the dropout, if any, and the layer that can be part of the same layer of torch.nn."""
    between = 1 if rest and rest[0][1].target == _DROPOUT else 0
    found = rest[: between + 1]
    if len(found) <= between or not _joins(group[0][1], found[-1][1]):
        return []
    if len(group) == 1:
        return found
    before, behind = (_rate(spec) if spec.target == _DROPOUT else None for _, spec in (group[1], found[0]))
    return found if before == behind else []


def _rate(spec: ModuleSpec) -> Any:
    return spec.args[0] if spec.args else spec.kwargs.get("p", 0.5)


def _joins(first: ModuleSpec, other: ModuleSpec) -> bool:
    """Return whether a layer can be another level of one."""
    hidden = first.args[1]
    alike = all(_options(first)[name] == _options(other)[name] for name in ("batch_first", "nonlinearity", "remember"))
    several = (
        each.kwargs.get(name) for each in (first, other) for name in ("num_layers", "bidirectional", "proj_size")
    )
    return _kind(other) == _kind(first) and other.args[:2] == (hidden, hidden) and alike and not any(several)


_USUAL: dict[str, Any] = {
    "num_layers": 1,
    "nonlinearity": "tanh",
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
    "remember": "neither",
}


def _options(spec: ModuleSpec) -> dict[str, Any]:
    return {name: spec.kwargs.get(name, value) for name, value in _USUAL.items()}


def _merged(group: list[Named], begin: str) -> ModuleSpec:
    """Return one layer for several, of a class whose name begins so."""
    first = group[0][1]
    options = _options(first)
    levels = [spec for _, spec in group if _kind(spec)]
    rates = [_rate(spec) for _, spec in group if spec.target == _DROPOUT]
    if len(levels) > 1:
        options |= {"num_layers": len(levels), "dropout": rates[0] if rates else 0.0}
    kwargs = {name: value for name, value in options.items() if value != _USUAL[name] and name != "remember"}
    return evolve(first, target=f"{LAYERS}sequence.{begin}{_kind(first)}", args=first.args[:2], kwargs=kwargs)


def _levels(name: str, group: list[Named]) -> dict[str, str]:
    """Return the beginnings of the new keys by those of the old, with the number of the level."""
    recurrent = [step for step, spec in group if _kind(spec)]
    return {step: f"{name}.{level}" for level, step in enumerate(recurrent)}


# States


def _take_state(result: Lifted) -> None:
    """Make a model that remembers its last sequence a graph of input and state, if it is a sequence of layers.

    The layers that remember become layers of torch.nn that take a state and return it.
    """
    root = result.plan.root
    steps = _steps(root)
    if not any(_remembers(spec) for _, spec in steps):
        return
    against = next(filter(None, (_against(spec) for _, spec in steps)), "")
    against = against or _against_moving(_tied_in(result.state), [step for step, spec in steps if _kind(spec)])
    if against:
        result.note(root.path, f"the state stays inside of the model: {against}")
        return
    made = ModuleSpec(STATEFUL, class_name=root.class_name, obj=root.obj, path=root.path)
    groups = list(_groups(steps))
    layers = sum(bool(_kind(group[0][1])) for group in groups)
    names = [
        "tokens" if steps[0][1].target == _EMBEDDING else "x",
        "state",
        *(f"state{at}" for at in range(2, layers + 1)),
    ]
    nodes = [GraphNode(None, ((0, (at,)),), name) for at, name in enumerate(names)]
    states: list[Link] = []
    moved, taken = Moves(), Counter[str]()
    value: Link = (1, ())
    for group in groups:
        is_recurrent = bool(_kind(group[0][1]))
        spec = _merged(group, "Stateful") if is_recurrent else group[0][1]
        name = _name(spec, taken)
        made.children[name] = spec
        nodes.append(GraphNode(name, (value, (len(states) + 2, ())) if is_recurrent else (value,)))
        value = len(nodes), (0,) if is_recurrent else ()
        if is_recurrent:
            states.append((len(nodes), (1,)))
            moved.update(_levels(name, group))
        else:
            moved[group[0][0]] = f"{name}."
    made.graph = GraphSpec(tuple(nodes), (value, *states), True)
    made.kwargs = graph_arguments(made.graph)
    _move(result, moved)
    result.plan.root = made
    found = ", ".join(name for name, spec in made.children.items() if ".Stateful" in spec.target)
    message = f"recognized: {found}; the model takes the state and returns it"
    if any(spec.kwargs.get(name) is not None for _, spec in steps for name in ("state", "hidden")):
        message += "; that of the last sequence, which is in the file, is left out"
    result.note(root.path, message)


def _steps(root: ModuleSpec) -> list[Named]:
    """Return the layers of a model that is a sequence of them, without the views of torch-rnn."""
    if root.target not in (SEQUENTIAL, _TEXT_MODEL):
        return []
    views = root.kwargs.get("views", ()) if root.target == _TEXT_MODEL else ()
    return [(f"{name}.", spec) for at, (name, spec) in enumerate(root.children.items()) if at not in views]


def _remembers(spec: ModuleSpec) -> bool:
    return bool(_kind(spec)) and spec.kwargs.get("remember") in (True, "always", "both")


def _against(spec: ModuleSpec) -> str:
    """Return what stands against a layer in a model with its state outside; empty for nothing."""
    if _kind(spec):
        if not _remembers(spec):
            return f"{spec.class_name} forgets"
        return f"{spec.class_name} has a projection" if spec.kwargs.get("proj_size") else ""
    return "" if spec.target in (*_BY_ROW, _EMBEDDING) else f"it has {spec.class_name}"


def _name(spec: ModuleSpec, taken: Counter[str]) -> str:
    base = _NAMES.get(spec.target) or spec.target.rpartition(".")[2].removeprefix("Stateful").lower()
    taken[base] += 1
    return f"{base}{taken[base]}" if taken[base] > 1 else base


# What a model is


@define(frozen=True)
class Recurrence:
    """What a recurrent model is.

    Attributes:
        kind: of its recurrent layers: `LSTM`, `GRU` or `RNN`.
        layers: their number.
        features: of the last of them.
        inputs: number of features of the input, or of tokens, whose numbers it takes.
        takes_tokens: whether it takes tokens.
        outputs: of the last linear layer; 0 without.
        states: for each state that a model of one step takes and returns, its places among inputs and outputs, 0-based,
            and its number of features; `None` for a model over sequences.
    """

    kind: str
    layers: int
    features: int
    inputs: int
    takes_tokens: bool
    outputs: int
    states: tuple[tuple[int, int, int], ...] | None

    def __str__(self) -> str:
        is_text = self.takes_tokens and self.inputs == self.outputs
        begin = f"{self.layers}-layer {self.kind}{' language model' * is_text}"
        return f"{begin}, {self.features} features" + f", {self.inputs} tokens" * is_text


def recurrence(root: ModuleSpec) -> Recurrence | None:
    """Return what a model is, from its plan; `None` if no layer of it is recurrent, or they are of several kinds."""
    specs = [*specs_in(root)]
    found = [(kind[0], spec) for spec in specs if (kind := _RECURRENT_NAME.search(spec.target)) and len(spec.args) > 1]
    if len({kind for kind, _ in found}) != 1:
        return None
    layers = sum(spec.kwargs.get("num_layers", 1) for _, spec in found)
    first = next(spec for spec in specs if spec is found[0][1] or spec.target in (*_TOKENS, "torch.nn.Linear"))
    scored = [spec.args[1] for spec in specs if spec.target == "torch.nn.Linear"]
    states = None if root.graph is None or root.target == STATEFUL else tuple(_stepped(root))
    is_text = first.target in _TOKENS
    outputs = scored[-1] if scored else 0
    return Recurrence(found[0][0], layers, found[-1][1].args[1], first.args[0], is_text, outputs, states)


def _stepped(root: ModuleSpec) -> Iterator[tuple[int, int, int]]:
    """Yield the states of a graph that is one step, as `Recurrence` has them."""
    graph = root.graph
    for number, node in enumerate(graph.nodes if graph is not None else (), 1):
        spec = root.children[node.module] if node.module else root
        if spec.target.startswith(_RECURRENT[0]) and _RECURRENT_NAME.search(spec.target):
            states = node.takes[1:]
            for at, (source, path) in enumerate(states):
                link = number, (at,) if len(states) > 1 else ()
                assert graph is not None
                if source == 0 and path and link in graph.outputs:
                    yield path[0], graph.outputs.index(link), spec.args[1]


# State dicts


class Moves(dict[str, str]):
    """New beginnings of keys by the old ones, which end in a dot, as what they end in; a number is that of a level."""

    def of(self, key: str) -> str:
        """Return the new key: modules move inside those that move."""
        made = key
        for end in _dots(key):
            old = key[:end]
            if old in self and made.startswith(old):
                name, _, level = self[old].rpartition(".")
                rest = made[end:].replace("_l0", f"_l{level}") if level else made[end:]
                made = f"{name}.{rest}"
        return made


def _move(
    result: Lifted, moved: Moves, pieces: Iterable[Piece] = (), shapes: Mapping[str, tuple[int, ...]] | None = None
) -> None:
    """Give tensors new keys, and replace those that are pieces of new ones.

    Args:
        result: the model.
        moved: new beginnings of keys.
        pieces: what new tensors are made of.
        shapes: of the new tensors, by key.
    """
    pieces, shapes = list(pieces), dict(shapes or {})
    used = {piece.key for piece in pieces}
    for key, tensor in result.state.items() if moved else ():
        target = moved.of(key)
        if key != target and key not in used:
            begin = (0,) * len(tensor.shape)
            pieces.append(Piece(key, begin, tensor.shape, target, begin))
            shapes[target] = tensor.shape
    if pieces:
        _replace(result, pieces, shapes)


def _replace(result: Lifted, pieces: list[Piece], shapes: dict[str, tuple[int, ...]]) -> None:
    """Replace the tensors that pieces are of by those that they make.

    Args:
        result: the model.
        pieces: what the new tensors are made of.
        shapes: of the new tensors, by key.
    """
    old, learned = result.state, set(result.plan.parameters)
    whole = {piece.target: piece.key for piece in pieces if shapes[piece.target] == old[piece.key].shape}
    made = compose(pieces, shapes, old) | {target: old[key] for target, key in whole.items()}
    homes: dict[str, list[str]] = {}
    for name in made:
        homes.setdefault(name.rpartition(".")[0], []).append(name)
    first = {piece.key: piece for piece in reversed(pieces)}
    state = result.state = StateDict()
    state.notes, state.data, state.data_fields = old.notes, old.data, old.data_fields
    for key, tensor in old.items():
        if key not in first:
            state[key], state.origins[key] = tensor, old.origins[key]
            continue
        learned.discard(key)
        for name in homes.pop(first[key].target.rpartition(".")[0], ()):
            state[name], source = made[name], whole.get(name)
            made_of = Origin(old.origins[key].obj, Param(name), None, None)
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
