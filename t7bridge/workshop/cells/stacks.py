"""Recurrent layers over whole sequences as people write them in PyTorch: a sequencer of a cell is a layer of torch.nn,
several in a row are one with more levels, and a model that remembers its last sequence takes the state and returns it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import evolve

from ...data import define
from ...graph.tensor import Tensor, place_of
from ...nn.kinds import ANY, Kind, Kinds
from ...nn.mapping import LAYERS, SEQUENTIAL, GraphNode, GraphSpec, Link, ModuleSpec, Plan, specs_in, way_to
from ...nn.pieces import STATEFUL, WITH_STATE, Lifted, Piece, replace_tensors
from ...nn.plan import graph_arguments
from ...nn.registry import tensor_shapes, traits_of
from ...nn.state_dict import StateDict
from .lift import lifted

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


def recognized(plan: Plan, state: StateDict, only_torch: bool = False) -> Lifted:
    """Return a model as people write it in PyTorch: cells as single modules, layers over sequences with their state.

    Args:
        plan: the plan; it is modified.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks stay as they are.
    """
    result = lifted(plan, state, only_torch)
    stacks = _Stacks(result)
    stacks.unroll()
    stacks.merge()
    stacks.take_state()
    stacks.move()
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


def _tied_in(state: StateDict) -> set[str]:
    """Return the prefixes, which end in a dot, of all keys whose tensor another key has, too."""
    times = Counter(map(place_of, state.values()))
    tied = [key for key, tensor in state.items() if times[place_of(tensor)] > 1]
    return {key[:end] for key in tied for end in range(len(key)) if key[end - 1] == "."}


# Sequencers


_RECURRENT = (LAYERS + "recurrent.", _OTHERS[1])
_RECURRENT_NAME = re.compile(r"(?:LSTM|GRU|RNN)(?=\w*\Z)")
_GATES = tuple(tuple(name + gate for gate in "ifgo") for name in ("weight_i", "weight_h", "bias_"))
_PEEPHOLE = f"{LAYERS}recurrent.LSTM"
_CELLS = {
    f"{LAYERS}recurrent.FastLSTM": (("weight_ih",), ("weight_hh",), ("bias",)),
    _PEEPHOLE: _GATES,
}
"""The tensors of cells in the order of the rows of `weight_ih_l0`, `weight_hh_l0` and `bias_ih_l0` of torch.nn.LSTM."""


_NO_LIST = "recognized: layers over sequences, which take a tensor (steps, batch, features) and no list"
_LIST = "recognized: layers over sequences, which take a list of steps of one shape"


class _Inputs(Kinds):
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


class _Stacks:
    """Changes the plan of a model; its tensors follow at the end, by their modules.

    Args:
        result: the model.
    """

    def __init__(self, result: Lifted) -> None:
        self._result, root = result, result.plan.root
        self._once = _once(root)
        """The modules that have one place, with the prefixes of their tensors before all changes."""
        self._is_tree = len(self._once) == sum(1 for _ in specs_in(root))
        self._tied = _tied_in(result.state)
        self._homes = {key: self._home(key) for key in result.state}
        """The module of each tensor, by its id, and the tensor's name in it."""
        self._cells: dict[tuple[int, str], Piece] = {}
        """What becomes of the tensors of cells, by module and name."""
        self._levels: dict[int, list[ModuleSpec]] = {}
        """The layers that one layer is made of, by its id."""
        self._unrolled: set[int] = set()
        """The ids of sequencers that are Sequentials."""

    def _home(self, key: str) -> tuple[int, str]:
        way = [(id(spec), rest) for spec, _, rest in way_to(self._result.plan.root, key) if id(spec) in self._once]
        return way[-1] if way else (0, key)

    def _has_ties(self, specs: Iterable[ModuleSpec]) -> bool:
        """Return whether another layer has the same weights as one of these modules."""
        return any(self._once[id(spec)][0] in self._tied for spec in specs)

    def unroll(self) -> None:
        """Make containers over sequences of sequencers that forget, whose modules treat each step by itself."""
        every = [*specs_in(self._result.plan.root)]
        sequencers = [spec for spec in every if spec.target == _SEQUENCER or spec.target in _OTHERS]
        layers = [spec for spec in every if _kind(spec) and self._is_own(spec)]
        flow = _Inputs()
        if sequencers or layers:
            flow(self._result.plan.root, ANY)
        for spec in layers:  # those that begin with zeros and take tensors
            if not _keeps(spec) and flow.names(spec) == {"tensor"}:
                spec.plain = f"torch.nn.{_kind(spec)}"
        for spec in sequencers:
            kinds, message = flow.names(spec), ""
            against = self._against_unrolling(spec, kinds)
            if not against:
                self._over_sequences(spec)
                if _takes_list(spec, kinds):
                    spec.target, message = _STEPS, _LIST
                else:
                    spec.target, message = SEQUENTIAL, _NO_LIST * (kinds != {"tensor"})
                    self._unrolled.add(id(spec))
            elif any(each.target.startswith(_RECURRENT) for each in specs_in(spec)):
                message = f"{spec.class_name} stays as it is: {against}"
            if message:
                self._result.note(spec.path, message)

    def _is_own(self, spec: ModuleSpec) -> bool:
        """Return whether a module and all inside it have one place."""
        return all(id(each) in self._once for each in specs_in(spec))

    def _against_unrolling(self, spec: ModuleSpec, kinds: set[str]) -> str:
        """Return what stands against layers over sequences for a sequencer, by its inputs' kinds; empty for nothing."""
        if not self._is_own(spec):
            return "a module in it has several places"
        cells = [each for each in map(_unmasked, _inside(spec)) if each.target in _CELLS]
        return _against_unrolling(spec, kinds) or "another layer has the same weights" * self._has_ties(cells)

    def _over_sequences(self, spec: ModuleSpec) -> None:
        """Make layers over sequences of the cells of a sequencer, and its children of all its modules."""
        steps = [*_inside(spec)]
        for layer in map(_unmasked, steps):
            if layer.target in _CELLS:
                self._cells |= {(id(layer), piece.key): piece for piece in _as_layer(layer)}
            elif layer.target in _LAST:
                layer.target, layer.args, layer.plain = _LAST[layer.target], (-1,), ""
        spec.kwargs, spec.children = {}, {str(at): each for at, each in enumerate(steps)}

    def merge(self) -> None:
        """Make one layer of recurrent layers that follow one another in a Sequential; the others get new numbers."""
        root = self._result.plan.root
        for _, spec in [*self._once.values()][::-1]:  # inside first
            inside = [each for child in spec.children.values() for each in (child, *child.children.values())]
            is_own = id(spec) not in self._unrolled or spec is root
            if spec.target in (SEQUENTIAL, _STEPS) and is_own and all(id(each) in self._once for each in inside):
                children = [each for group in _groups([*self._steps(spec)]) for each in self._merged_or_not(group)]
                spec.children = {str(at): each for at, each in enumerate(children)}

    def _steps(self, spec: ModuleSpec) -> Iterator[ModuleSpec]:
        """Yield the modules of a Sequential, those of unrolled sequencers instead of these."""
        for child in spec.children.values():
            yield from child.children.values() if id(child) in self._unrolled else (child,)

    def _merged_or_not(self, group: list[ModuleSpec]) -> list[ModuleSpec]:
        if len(group) == 1 or any(map(_keeps, group)) or self._has_ties(group):
            return group
        made = self._merged(group, "Outputs")
        if not made.plain:
            made.plain = f"torch.nn.{_kind(made)}"
            self._result.note(made.path, f"recognized: {_kind(made)} layers in a row, which take a tensor and no list")
        return [made]

    def _merged(self, group: list[ModuleSpec], begin: str) -> ModuleSpec:
        """Return one layer for several, of a class whose name begins so."""
        first, options = group[0], _options(group[0])
        levels = [spec for spec in group if _kind(spec)]
        rates = [_rate(spec) for spec in group if spec.target == _DROPOUT]
        if len(levels) > 1:
            options |= {"num_layers": len(levels), "dropout": rates[0] if rates else 0.0}
        kwargs = {name: value for name, value in options.items() if value != _USUAL[name] and name != "remember"}
        made = evolve(first, target=f"{LAYERS}sequence.{begin}{_kind(first)}", args=first.args[:2], kwargs=kwargs)
        self._levels[id(made)] = levels
        self._once[id(made)] = self._once[id(first)]
        return made

    def take_state(self) -> None:
        """Make a model that remembers its last sequence a graph of input and state, if it is a sequence of layers.

        The layers that remember become layers of torch.nn that take a state and return it.
        """
        result, root = self._result, self._result.plan.root
        steps = _layers_of(root) if self._is_tree else []
        if not any(map(_remembers, steps)):
            return
        against = next(filter(None, map(_against, steps)), "")
        if not against and self._has_ties(filter(_kind, steps)):
            against = "another layer has the same weights"
        if against:
            result.note(root.path, f"the state stays inside of the model: {against}")
            return
        made = ModuleSpec(STATEFUL, class_name=root.class_name, obj=root.obj, path=root.path)
        groups = list(_groups(steps))
        layers = sum(bool(_kind(group[0])) for group in groups)
        begin = "tokens" if steps[0].target == _EMBEDDING else "x"
        names = [begin, "state", *(f"state{at}" for at in range(2, layers + 1))]
        nodes = [GraphNode(None, ((0, (at,)),), name) for at, name in enumerate(names)]
        states: list[Link] = []
        taken = Counter[str]()
        value: Link = (1, ())
        for group in groups:
            is_recurrent = bool(_kind(group[0]))
            spec = self._merged(group, "Stateful") if is_recurrent else group[0]
            name = _name(spec, taken)
            made.children[name] = spec
            nodes.append(GraphNode(name, (value, (len(states) + 2, ())) if is_recurrent else (value,)))
            value = len(nodes), (0,) if is_recurrent else ()
            if is_recurrent:
                states.append((len(nodes), (1,)))
        made.graph = GraphSpec(tuple(nodes), (value, *states), True)
        made.kwargs = graph_arguments(made.graph)
        result.plan.root = made
        found = ", ".join(name for name, spec in made.children.items() if spec.target in WITH_STATE)
        message = f"recognized: {found}; the model takes the state and returns it"
        if any(spec.kwargs.get(name) is not None for spec in steps for name in ("state", "hidden")):
            message += "; that of the last sequence, which is in the file, is left out"
        result.note(root.path, message)

    def move(self) -> None:
        """Give the tensors the keys of their modules, and make those of layers over sequences."""
        root = self._result.plan.root
        homes: dict[int, tuple[str, int, ModuleSpec]] = {}
        for ident, (prefix, spec) in _once(root).items():
            for level, each in enumerate(self._levels.get(ident, [spec])):
                homes[id(each)] = prefix, level, each
        pieces: list[Piece] = []
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for key, tensor in self._result.state.items():
            owner, name = self._homes[key]
            home, level, spec = homes.get(owner, ("", 0, root))
            piece, own = self._cells.get((owner, name)), {name: tensor.shape}
            if piece is None:
                start = (0,) * len(tensor.shape)
                piece = Piece(name, start, tensor.shape, name, start)
            else:
                own = tensor_shapes(spec.target, spec.args, spec.kwargs)
            moved = {each: each.replace("_l0", f"_l{level}") if level else each for each in own}
            target = home + moved[piece.target]
            if target != key:
                pieces.append(evolve(piece, key=key, target=target, adds=piece.adds and home + moved[piece.adds]))
                shapes.setdefault(home, {}).update((moved[each], shape) for each, shape in own.items())
        if pieces:
            replace_tensors(self._result, pieces, shapes)


def _inside(spec: ModuleSpec) -> Iterator[ModuleSpec]:
    """Yield the modules of a sequencer in their order, those of a Sequential instead of it."""
    for child in spec.children.values():
        yield from _inside(child) if child.target == SEQUENTIAL else (child,)


def _unmasked(spec: ModuleSpec) -> ModuleSpec:
    """Return the module inside of one that returns zeros for rows of zeros, or the module itself."""
    is_mask = spec.target == _MASK and spec.kwargs.get("n_input_dims") == 1 and not spec.kwargs.get("zero_mask")
    return next(iter(spec.children.values())) if is_mask else spec


def _takes_list(spec: ModuleSpec, kinds: set[str]) -> bool:
    """Return whether the input of a sequencer is a list, or was one in its last call."""
    last = spec.obj.get("output") if spec.obj is not None else None
    return "list" in kinds or (kinds != {"tensor"} and not isinstance(last, Tensor))


def _against_unrolling(spec: ModuleSpec, kinds: set[str]) -> str:
    """Return what in a sequencer stands against layers over sequences, by its inputs' kinds; empty for nothing."""
    if spec.target in _OTHERS:
        is_masked = spec.target == _OTHERS[0] or spec.kwargs.get("mask_zero")
        return "it skips steps of zeros" if is_masked else "its projection is not smaller than its cell"
    inside = [*map(_unmasked, _inside(spec))]
    other = next((each for each in inside if each.target not in (*_CELLS, *_BY_ROW, *_LAST)), None)
    if other is not None:
        return f"it has {other.class_name}"
    cells = [each for each in inside if each.target in _CELLS]
    if not cells and kinds != {"tensor"}:
        return "its input may be a list"
    if any(each.kwargs.get("peephole") is not False for each in cells if each.target == _PEEPHOLE):
        return "its gates see the cell"
    states = {each.kwargs.get(name) or "neither" for each in (spec, *cells) for name in _STATES}
    return "" if states <= {"neither"} else "it remembers a state, or skips steps"


def _as_layer(spec: ModuleSpec) -> Iterator[Piece]:
    """Make a cell a layer over sequences, and yield what its tensors are made of, by the names in both."""
    rows = _CELLS[spec.target]
    spec.target, spec.args, spec.kwargs = f"{LAYERS}sequence.OutputsLSTM", spec.args[:2], {}
    spec.plain = "torch.nn.LSTM"
    own = tensor_shapes(spec.target, spec.args, spec.kwargs)
    for target, names in zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"), rows):
        height, *width = own[target]
        size = (height // len(names), *width)
        for number, name in enumerate(names):
            at = (number * size[0], *[0] * len(width))
            yield Piece(name, (0,) * len(size), size, target, at, adds="" if width else "bias_hh_l0")


# Layers in a row


def _kind(spec: ModuleSpec) -> str:
    """Return the class of torch.nn of a layer over sequences; empty for other layers."""
    return _KINDS.get(spec.target.removeprefix(LAYERS), "")


def _keeps(spec: ModuleSpec) -> bool:
    """Return whether a recurrent layer begins a sequence with anything but zeros."""
    return bool(_kind(spec)) and any(spec.kwargs.get(name) not in (None, False, "neither") for name in _STATES)


def _groups(steps: list[ModuleSpec]) -> Iterator[list[ModuleSpec]]:
    """Yield the layers one by one, and recurrent layers with equal options and equal dropout in between together."""
    at = 0
    while at < len(steps):
        group = [steps[at]]
        while _kind(group[0]) and (more := _following(group, steps[at + len(group) : at + len(group) + 2])):
            group += more
        yield group
        at += len(group)


def _following(group: list[ModuleSpec], rest: list[ModuleSpec]) -> list[ModuleSpec]:
    """Return the dropout, if any, and the layer that can be part of the same layer of torch.nn."""
    between = 1 if rest and rest[0].target == _DROPOUT else 0
    found = rest[: between + 1]
    if len(found) <= between or not _joins(group[0], found[-1]):
        return []
    if len(group) == 1:
        return found
    before, behind = (_rate(spec) if spec.target == _DROPOUT else None for spec in (group[1], found[0]))
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


# States


def _layers_of(root: ModuleSpec) -> list[ModuleSpec]:
    """Return the layers of a model that is a sequence of them, without those that only merge and split its steps."""
    omitted = traits_of(root.target).sequential_without
    if root.target != SEQUENTIAL and not omitted:
        return []
    views = root.kwargs.get(omitted, ())
    return [spec for place, spec in enumerate(root.children.values()) if place not in views]


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
    base = _NAMES.get(spec.target) or WITH_STATE.get(spec.target, "").lower() or spec.target.rpartition(".")[2].lower()
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
