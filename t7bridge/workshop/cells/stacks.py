"""Recurrent layers over whole sequences as people write them in PyTorch: a sequencer of a cell is a layer of torch.nn,
several in a row are one with more levels, and a model that remembers its last sequence takes the state and returns it.
A sequencer is Lua's container that runs its modules on each step of a sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve

from ...data import define
from ...graph.tensor import Tensor, place_of
from ...nn.kinds import ANY, Kind, Kinds
from ...nn.mapping import LAYERS, SEQUENTIAL, GraphNode, GraphSpec, Link, ModuleSpec, Plan, short_name, specs_in, way_to
from ...nn.output_shapes import Arguments
from ...nn.pieces import CLASS_IN_TORCH_WITH_STATE, STATEFUL, Lifted, Piece, replace_tensors
from ...nn.plan import graph_arguments
from ...nn.registry import RecurrentLayer, like_of, tensor_shapes, traits_of
from ...nn.state_dict import StateDict
from ...nn.torch_nn import argument_at
from .lift import lifted

_DROPOUT = "torch.nn.Dropout"
_STEPWISE = {f"torch.nn.{name}" for name in ("Linear", "Dropout", "Tanh", "Sigmoid", "ReLU", "Identity")}
"""Layers that treat each step of each sequence by itself, however many there are."""
_STATE_ARGUMENTS = ("remember", "state", "hidden", "start", "mask_zero")
"""Arguments of recurrent layers about states, and about steps that are left out."""
_LAST_STATES = ("state", "hidden")
"""Arguments of recurrent layers with the state after the last sequence, which the file has."""
_NO_MODULE = 0
"""Instead of the id of a module."""


def recognized(plan: Plan, state: StateDict, only_torch: bool = False) -> Lifted:
    """Return a model as people write it in PyTorch: cells as single modules, layers over sequences with their state.

    Args:
        plan: the plan; it is modified.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks stay as they are.
    """
    result = lifted(plan, state, only_torch)
    # Most models have no layers over sequences: then their places and tensors need not be looked at.
    if not any(_is_over_steps(spec) or _recurrent_class(spec) for spec in specs_in(plan.root)):
        return result
    stacks = _Stacks(result)
    stacks.unroll()  # sequencers of cells become layers over sequences
    stacks.merge()  # layers in a row become one
    stacks.take_state()  # of the layers that there are then
    stacks.move()  # the tensors, to where all this has put their modules
    return result


def _modules_at_one_place(root: ModuleSpec) -> dict[int, tuple[str, ModuleSpec]]:
    """Return the modules that occur at one place only, each with the prefix of its tensors, by their ids.

    A container comes before the modules in it.
    """
    holder_counts = Counter(id(child) for spec in specs_in(root) for child in spec.children.values())
    modules: dict[int, tuple[str, ModuleSpec]] = {}
    stack = [("", root)]
    while stack:
        prefix, spec = stack.pop()
        modules[id(spec)] = prefix, spec
        for name, child in spec.children.items():
            # What is inside of a module of several places has several, too.
            if holder_counts[id(child)] == 1:
                stack.append((f"{prefix}{name}.", child))
    return modules


def _prefixes_of_tied(state: StateDict) -> set[str]:
    """Return the prefixes of all keys whose tensor another key has, too: of `a.b.weight` these are `a.` and `a.b.`."""
    counts = Counter(place_of(tensor) for tensor in state.values())
    prefixes: set[str] = set()
    for key, tensor in state.items():
        if counts[place_of(tensor)] > 1:
            prefixes.update(key[: dot + 1] for dot, letter in enumerate(key) if letter == ".")
    return prefixes


# Sequencers


_NOTE_OF_TENSOR = "recognized: layers over sequences, which take a tensor (steps, batch, features) and no list"
_NOTE_OF_LIST = "recognized: layers over sequences, which take a list of steps of one shape"


class _InputKinds(Kinds):
    """Follows the data flow of a model, and notes what each layer over sequences takes: a tensor, a list, or either.

    Called with the model and the kind of its input.

    Attributes:
        kinds: the kinds of the inputs of each sequencer and recurrent layer that the flow reaches, by its id.
    """

    def __init__(self) -> None:
        super().__init__(traits_of)
        self.kinds: dict[int, set[Kind]] = {}

    def __call__(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of the output of a module, and note that of its input; called for each module inside, too."""
        if traits_of(spec.target).stacking or _recurrent_class(spec):
            self.kinds.setdefault(id(spec), set()).add(kind)
        return super().__call__(spec, kind)

    def names(self, spec: ModuleSpec) -> set[str]:
        """Return the names of the kinds of the inputs of a module, such as `tensor`, `list` and `any`, one or several.

        Of a module that the flow did not reach it is `any`.
        """
        return {kind.name for kind in self.kinds.get(id(spec), {ANY})}


class _Stacks:
    """Makes layers of torch.nn over sequences of a model's sequencers and cells, in its plan. A module has one place if
    one container has it, under one name, and so has each container around that one: only such modules are changed.

    The tensors of the state dict follow at the end, by the modules that they belong to.

    Args:
        result: the model, whose cells are single modules; it is modified.
    """

    def __init__(self, result: Lifted) -> None:
        """Note where all tensors are before anything is changed."""
        root = result.plan.root
        self._result = result  # modified, and given notes, by each method
        self._single_places = _modules_at_one_place(root)
        """The modules that have one place, with the prefixes of their tensors before all changes."""
        self._is_tree = len(self._single_places) == sum(1 for _ in specs_in(root))
        """Whether every module has one place."""
        self._tied = _prefixes_of_tied(result.state)
        """The prefixes of tensors that are another key's too, as before all changes."""
        self._owners = {key: self._owner(key) for key in result.state}
        """The module of each tensor before all changes, by its id, and the tensor's name in it."""
        self._cells: dict[tuple[int, str], Piece] = {}
        """What becomes of the tensors of cells that `unroll` turned into layers, by module and name."""
        self._levels: dict[int, list[ModuleSpec]] = {}
        """The layers that one layer is made of, by its id."""
        self._former_sequencers: set[int] = set()
        """The ids of sequencers that `unroll` made Sequentials."""
        self._for_lists: set[int] = set()
        """The ids of sequencers that `unroll` made containers which stack a list, for all its steps at once."""

    def _owner(self, key: str) -> tuple[int, str]:
        """Return the innermost module of one place around a tensor, by its id, and the tensor's name in it.

        Without such a module it is `_NO_MODULE`, and the whole key.
        """
        owner = _NO_MODULE, key
        for spec, _, rest in way_to(self._result.plan.root, key):
            if id(spec) in self._single_places:
                owner = id(spec), rest
        return owner

    def _has_ties(self, specs: Iterable[ModuleSpec]) -> bool:
        """Return whether another layer has the same weights as one of these modules, each of which has one place."""
        prefixes = [prefix for prefix, _ in (self._single_places[id(spec)] for spec in specs)]
        return not self._tied.isdisjoint(prefixes)

    def _is_at_one_place(self, spec: ModuleSpec) -> bool:
        """Return whether a module and all inside it have one place."""
        return all(id(inside) in self._single_places for inside in specs_in(spec))

    def unroll(self) -> None:
        """Turn sequencers that keep no state into containers whose modules take whole sequences at once.

        Layers that take whole sequences already are written as those of torch.nn, if their input is a tensor.
        """
        root = self._result.plan.root
        specs = [*specs_in(root)]
        sequencers = [spec for spec in specs if _is_over_steps(spec)]
        layers = [spec for spec in specs if _recurrent_class(spec) and self._is_at_one_place(spec)]
        input_kinds = _InputKinds()
        if sequencers or layers:  # of other models nobody asks
            input_kinds(root, ANY)  # follows the data flow through the whole model
        for spec in layers:
            if not _keeps_state(spec) and input_kinds.names(spec) == {"tensor"}:
                spec.plain = f"torch.nn.{_recurrent_class(spec)}"
        for spec in sequencers:
            message = self._unroll(spec, input_kinds.names(spec))
            if message:
                self._result.note(spec.path, message)

    def _unroll(self, spec: ModuleSpec, kinds: set[str]) -> str:
        """Turn a sequencer into a container over sequences, if possible; return the note about it, empty for none.

        It becomes a Sequential for tensors, or a container that stacks the steps of a list for the modules inside.

        Args:
            spec: the sequencer, modified.
            kinds: the names of the kinds of its inputs, see `_InputKinds.names`.
        """
        obstacle = self._obstacle_to_unrolling(spec, kinds)
        if obstacle:
            # Only of recurrent modules somebody expects a layer of torch.nn.
            is_recurrent = any(map(_is_recurrent, specs_in(spec)))
            return f"{spec.class_name} stays as it is: {obstacle}" if is_recurrent else ""
        self._replace_by_layers(spec)
        if _takes_list(spec, kinds):
            spec.target = LAYERS + traits_of(spec.target).stacking
            self._for_lists.add(id(spec))
            return _NOTE_OF_LIST
        spec.target = SEQUENTIAL
        self._former_sequencers.add(id(spec))
        return "" if kinds == {"tensor"} else _NOTE_OF_TENSOR

    def _obstacle_to_unrolling(self, spec: ModuleSpec, kinds: set[str]) -> str:
        """Return why the modules of a sequencer cannot take whole sequences; empty if they can.

        Args:
            spec: the sequencer.
            kinds: the names of the kinds of its inputs, see `_InputKinds.names`.
        """
        if not self._is_at_one_place(spec):
            return "a module in it has several places"
        obstacle = _obstacle_inside(spec, kinds)
        if obstacle:
            return obstacle
        layers = [_unmasked(layer) for layer in _inside(spec)]
        if self._has_ties(filter(_is_cell_of_torch, layers)):
            return "another layer has the same weights"
        return ""

    def _replace_by_layers(self, spec: ModuleSpec) -> None:
        """Turn the modules of a sequencer into layers that take whole sequences, and drop Sequentials around them.

        What becomes of the tensors of cells is noted in `_cells`, for `move`.

        Args:
            spec: the sequencer, modified; `_obstacle_to_unrolling` found none.
        """
        modules = [*_inside(spec)]
        for module in modules:
            # A module that returns zeros for rows of zeros stays around its layer, which is modified.
            layer = _unmasked(module)
            class_over_dim = traits_of(layer.target).over_dim
            if _is_cell_of_torch(layer):
                for piece in _turn_into_layer(layer):
                    self._cells[id(layer), piece.key] = piece
            elif class_over_dim:
                # `SoftMax` and the like take the matrix of a step, and would see another dimension in a sequence.
                layer.target = class_over_dim
                layer.args = (-1,)  # along the features
                layer.plain = ""  # the target is a class of torch.nn itself
        # Its arguments are about states, and say that there is none.
        spec.kwargs = {}
        spec.children = {str(number): module for number, module in enumerate(modules)}

    def merge(self) -> None:
        """Make one layer of recurrent layers that follow one another in a Sequential; the others get new numbers."""
        # `_single_places` has a container before what is inside, which has to be merged first.
        for _, spec in reversed([*self._single_places.values()]):
            if not self._may_merge(spec):
                continue
            layers: list[ModuleSpec] = []
            for group in _groups([*self._modules_in_row(spec)]):
                layers += self._merged_or_not(group)
            spec.children = {str(number): layer for number, layer in enumerate(layers)}

    def _may_merge(self, spec: ModuleSpec) -> bool:
        """Return whether the modules inside a module are those of a row in which layers may be merged.

        They are run in a row by a Sequential, and by a container that stacks a list for them (`_for_lists`). Those of a
        sequencer that is a Sequential now are in the row of the one around it, unless it is the whole model.
        """
        if spec.target != SEQUENTIAL and id(spec) not in self._for_lists:
            return False
        if id(spec) in self._former_sequencers and spec is not self._result.plan.root:
            return False
        # Tensors of a module of several places could not follow it to one level of a layer. The modules of a former
        # sequencer are in the row (`_modules_in_row`); those of any other container are not, but are held to the same.
        modules = [*spec.children.values()]
        for child in spec.children.values():
            modules += child.children.values()
        return all(id(module) in self._single_places for module in modules)

    def _modules_in_row(self, spec: ModuleSpec) -> Iterator[ModuleSpec]:
        """Yield the modules of a Sequential; those of a sequencer that is one now instead of itself."""
        for child in spec.children.values():
            if id(child) in self._former_sequencers:
                yield from child.children.values()
            else:
                yield child

    def _merged_or_not(self, group: list[ModuleSpec]) -> list[ModuleSpec]:
        """Return one layer for several, in a list, or these if that is not possible.

        Args:
            group: layers that can be levels of one, and the dropouts between them.
        """
        # Layers that keep a state are left to `take_state`, which merges them too.
        if len(group) == 1 or any(map(_keeps_state, group)) or self._has_ties(group):
            return group
        merged = self._merged(group, _recurrent(group[0]).layer)
        # `unroll` gave the first layer no class of torch.nn, as its input may be a list. But only that class can be
        # written with several levels.
        if not merged.plain:
            class_name = _recurrent_class(merged)
            merged.plain = f"torch.nn.{class_name}"
            message = f"recognized: {class_name} layers in a row, which take a tensor and no list"
            self._result.note(merged.path, message)
        return [merged]

    def _merged(self, group: list[ModuleSpec], target: str) -> ModuleSpec:
        """Return one layer for several, and note of which levels it is made, and its place, for `move`.

        Args:
            group: layers that can be levels of one, and the dropouts between them, all of one rate.
            target: the class of the new layer.
        """
        first = group[0]
        options = _options(first)
        levels = [spec for spec in group if _recurrent_class(spec)]
        rates = [_dropout_rate(spec) for spec in group if spec.target == _DROPOUT]
        if len(levels) > 1:  # `take_state` has groups of one, too
            options["num_layers"] = len(levels)
            options["dropout"] = rates[0] if rates else 0.0
        del options["remember"]  # torch.nn has none: the layer forgets, or takes its state as an input
        kwargs = {name: value for name, value in options.items() if value != _DEFAULTS[name]}
        input_size, hidden_size = first.args[:2]
        merged = evolve(first, target=LAYERS + target, args=(input_size, hidden_size), kwargs=kwargs)
        self._levels[id(merged)] = levels
        self._single_places[id(merged)] = self._single_places[id(first)]  # so that a container around may merge, too
        return merged

    def take_state(self) -> None:
        """Make a model that remembers its last sequence a graph of input and state, if it is a sequence of layers.

        The layers that remember become layers of torch.nn that take a state and return it.
        """
        root = self._result.plan.root
        # `move` follows modules of one place only.
        layers = _layers_of(root) if self._is_tree else []
        if not any(map(_remembers, layers)):
            return
        obstacle = self._obstacle_to_state(layers)
        if obstacle:
            self._result.note(root.path, f"the state stays inside of the model: {obstacle}")
            return
        model = self._with_state(layers)
        self._result.plan.root = model
        names = [name for name, spec in model.children.items() if spec.target in CLASS_IN_TORCH_WITH_STATE]
        message = f"recognized: {', '.join(names)}; the model takes the state and returns it"
        if any(spec.kwargs.get(name) is not None for spec in layers for name in _LAST_STATES):
            message += "; that of the last sequence, which is in the file, is left out"
        self._result.note(root.path, message)

    def _obstacle_to_state(self, layers: list[ModuleSpec]) -> str:
        """Return why a sequence of layers is no model that takes its state, in words; empty if it may be."""
        for layer in layers:
            obstacle = _obstacle_in_layer(layer)
            if obstacle:
                return obstacle
        if self._has_ties(filter(_recurrent_class, layers)):
            return "another layer has the same weights"
        return ""

    def _with_state(self, layers: list[ModuleSpec]) -> ModuleSpec:
        """Return a graph of layers in a row, whose inputs are the input and a state for each recurrent layer.

        Several levels of one layer have one state. The outputs are the last layer's output and the new states, in the
        same order.

        Args:
            layers: the layers, each of one place; `_obstacle_to_state` found none in them.
        """
        root = self._result.plan.root
        counts = Counter[str]()
        children: dict[str, ModuleSpec] = {}
        for group in _groups(layers):
            spec = self._stateful_or_plain(group)
            children[_name_in_graph(spec, counts)] = spec
        first_input = "tokens" if traits_of(layers[0].target).takes_tokens else "x"
        graph = _graph_of_row(children, first_input)
        return ModuleSpec(
            STATEFUL,
            kwargs=graph_arguments(graph),
            children=children,
            graph=graph,
            class_name=root.class_name,
            obj=root.obj,
            path=root.path,
        )

    def _stateful_or_plain(self, group: list[ModuleSpec]) -> ModuleSpec:
        """Return the recurrent layer with a state that several levels are, or the only layer of another group."""
        first = group[0]
        return self._merged(group, _recurrent(first).stateful) if _recurrent_class(first) else first

    def move(self) -> None:
        """Give the tensors of the state dict the keys of their modules' new places, and make those of new layers."""
        homes = self._homes_in_new_plan()
        pieces: list[Piece] = []
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        """The shapes of the tensors that are made, by the prefix of their module and their names there."""
        for key, tensor in self._result.state.items():
            owner, name = self._owners[key]
            home = homes.get(owner)
            if home is None:  # in modules of several places, which stay where they are
                continue
            if (owner, name) in self._cells:  # of a cell that is a layer now, whose tensors have those of all gates
                piece = self._cells[owner, name]
                layer = home.module
                shapes_of_module = tensor_shapes(layer.target, layer.args, layer.kwargs)
            elif home.key(name) == key:  # most tensors stay where they are
                continue
            else:  # only its key changes
                piece = _whole(name, tensor)
                shapes_of_module = {name: tensor.shape}
            second_bias = home.key(piece.second_bias) if piece.second_bias else ""
            pieces.append(evolve(piece, key=key, target=home.key(piece.target), second_bias=second_bias))
            for own_name, shape in shapes_of_module.items():
                shapes.setdefault(home.prefix, {})[home.name_of(own_name)] = shape
        if pieces:
            replace_tensors(self._result, pieces, shapes)

    def _homes_in_new_plan(self) -> dict[int, _Home]:
        """Return where the tensors of each module of one place belong in the changed plan, by the module's id."""
        homes: dict[int, _Home] = {}
        for ident, (prefix, spec) in _modules_at_one_place(self._result.plan.root).items():
            for level, layer in enumerate(self._levels.get(ident, [spec])):
                homes[id(layer)] = _Home(layer, prefix, level)
        return homes


@define(frozen=True)
class _Home:
    """Where the tensors of a module belong in the changed plan.

    Attributes:
        module: the module, as it was before several became one layer.
        prefix: that of their keys, which ends in a dot.
        level: of the module in that layer; 0 of any other.
    """

    module: ModuleSpec
    prefix: str
    level: int

    def name_of(self, name: str) -> str:
        """Return the new name of a tensor of the module: of level 1, `weight_ih_l0` becomes `weight_ih_l1`."""
        return name.replace("_l0", f"_l{self.level}") if self.level else name

    def key(self, name: str) -> str:
        """Return the new key of a tensor of the module."""
        return self.prefix + self.name_of(name)


def _graph_of_row(children: Mapping[str, ModuleSpec], first_input: str) -> GraphSpec:
    """Return the graph of layers in a row, of which those with a state take it as an input of the graph.

    Args:
        children: the layers, by their names in the graph.
        first_input: the name of the input of the first one.
    """
    count_of_states = sum(spec.target in CLASS_IN_TORCH_WITH_STATE for spec in children.values())
    nodes = _nodes_of_inputs(first_input, count_of_states)
    value, *states = [_output_of(number) for number in range(1, len(nodes) + 1)]
    new_states: list[Link] = []
    for name, spec in children.items():
        number = len(nodes) + 1
        if spec.target in CLASS_IN_TORCH_WITH_STATE:  # it returns its outputs and its state
            nodes.append(GraphNode(name, (value, states[len(new_states)])))
            value = _output_of(number, element=0)
            new_states.append(_output_of(number, element=1))
        else:
            nodes.append(GraphNode(name, (value,)))
            value = _output_of(number)
    return GraphSpec(tuple(nodes), outputs=(value, *new_states), returns_list=True)


def _nodes_of_inputs(first_input: str, count_of_states: int) -> list[GraphNode]:
    """Return the nodes that name the elements of a graph's input: the first one and, of one state or more, `state`,
    `state2`, …
    """
    names = [first_input, "state", *(f"state{number}" for number in range(2, count_of_states + 1))]
    nodes = []
    for place, name in enumerate(names):
        element = _output_of(0, place)  # 0 is the input of the graph
        nodes.append(GraphNode(None, takes=(element,), name=name))
    return nodes


def _output_of(node: int, element: int | None = None) -> Link:
    """Return the link to the output of a node, given by its number from 1, or to an element of it."""
    return node, () if element is None else (element,)


def _whole(name: str, tensor: Tensor) -> Piece:
    """Return the piece of a tensor that keeps its name and values, under another prefix."""
    start = (0,) * len(tensor.shape)
    return Piece(name, start, tensor.shape, target=name, at=start)


def _inside(spec: ModuleSpec) -> Iterator[ModuleSpec]:
    """Yield the modules of a sequencer in their order: of a Sequential those inside it, however deep."""
    for child in spec.children.values():
        if child.target == SEQUENTIAL:
            yield from _inside(child)
        else:
            yield child


def _unmasked(spec: ModuleSpec) -> ModuleSpec:
    """Return the module inside of one that returns zeros for rows of zeros, or the module itself."""
    zeroes_rows = traits_of(spec.target).zeroes_rows
    if zeroes_rows is None or not zeroes_rows(Arguments(spec.args, spec.kwargs)):
        return spec
    return next(iter(spec.children.values()))  # it has one


def _is_over_steps(spec: ModuleSpec) -> bool:
    """Return whether a module treats the steps of a sequence one by one, by modules inside or by itself."""
    traits = traits_of(spec.target)
    # `not_in_torch` is given for layers over sequences, and for their cells, which are called step by step.
    is_layer = traits.not_in_torch is not None and not traits.by_step
    return bool(traits.stacking) or is_layer


def _is_recurrent(spec: ModuleSpec) -> bool:
    """Return whether a module is a cell, something around one, or a layer over sequences that torch.nn lacks."""
    traits = traits_of(spec.target)
    return traits.by_step or (traits.recurrent is not None and not traits.recurrent.layer)


def _is_cell_of_torch(spec: ModuleSpec) -> bool:
    """Return whether a module is a cell that a layer of torch.nn repeats for each step."""
    recurrent = traits_of(spec.target).recurrent
    return recurrent is not None and bool(recurrent.rows)


def _recurrent(spec: ModuleSpec) -> RecurrentLayer:
    """Return what a recurrent layer or cell is in torch.nn."""
    recurrent = traits_of(spec.target).recurrent
    assert recurrent is not None
    return recurrent


def _why_not_in_torch(spec: ModuleSpec) -> str:
    """Return why torch.nn has no such layer; empty if it has."""
    reason = traits_of(spec.target).not_in_torch
    return "" if reason is None else reason(Arguments(spec.args, spec.kwargs))


def _takes_list(spec: ModuleSpec, kinds: set[str]) -> bool:
    """Return whether the input of a sequencer is a list, or was one in its last call, or may have been one.

    Args:
        spec: the sequencer.
        kinds: the names of the kinds of its inputs, see `_InputKinds.names`.
    """
    if "list" in kinds:
        return True
    if kinds == {"tensor"}:
        return False
    # Of the last call the file may have the output, which is a list if the input was. Without it, nothing is known.
    last_output = spec.obj.get("output") if spec.obj is not None else None
    return not isinstance(last_output, Tensor)


def _obstacle_inside(spec: ModuleSpec, kinds: set[str]) -> str:
    """Return what inside a sequencer cannot take whole sequences, in words; empty if everything can.

    Args:
        spec: the sequencer.
        kinds: the names of the kinds of its inputs, see `_InputKinds.names`.
    """
    why_not_sequencer = _why_not_in_torch(spec)
    if why_not_sequencer:
        return why_not_sequencer
    layers = [_unmasked(layer) for layer in _inside(spec)]
    for layer in layers:
        # A layer that has a class over a dimension (`Traits.over_dim`) treats each step by itself, along its features.
        is_stepwise = layer.target in _STEPWISE or bool(traits_of(layer.target).over_dim)
        if not _is_cell_of_torch(layer) and not is_stepwise:
            return f"it has {layer.class_name}"
    cells = [layer for layer in layers if _is_cell_of_torch(layer)]
    # With a cell all steps have one shape, as its state has a batch. Without, a list may have steps of several shapes,
    # which no tensor holds.
    if not cells and kinds != {"tensor"}:
        return "its input may be a list"
    for cell in cells:
        why_not_cell = _why_not_in_torch(cell)
        if why_not_cell:
            return why_not_cell
    for layer in (spec, *cells):
        if _has_state_argument(layer):
            return "it remembers a state, or skips steps"
    return ""


def _turn_into_layer(spec: ModuleSpec) -> list[Piece]:
    """Turn a cell into the layer over sequences of torch.nn that repeats it.

    Args:
        spec: the cell, which torch.nn has and which keeps no state from sequence to sequence; it is modified.

    Returns:
        What the layer's tensors are made of. Keys are names of tensors in the cell, targets in the layer.
    """
    recurrent = _recurrent(spec)
    input_size, hidden_size = spec.args[:2]
    spec.target = LAYERS + recurrent.layer
    spec.args = (input_size, hidden_size)
    # Those of the cell are about peepholes and states, which it does not have; see `_obstacle_inside`.
    spec.kwargs = {}
    spec.plain = f"torch.nn.{recurrent.kind}"
    shapes = tensor_shapes(spec.target, spec.args, spec.kwargs)
    pieces: list[Piece] = []
    for target, names in zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"), recurrent.rows):
        # Lua has one bias where PyTorch adds two.
        second_bias = "bias_hh_l0" if target == "bias_ih_l0" else ""
        pieces += _stacked(names, target, shapes[target], second_bias)
    return pieces


def _stacked(names: tuple[str, ...], target: str, shape: tuple[int, ...], second_bias: str) -> Iterator[Piece]:
    """Yield the pieces of a tensor in which the rows of several follow one another, each of as many.

    PyTorch stacks the rows of all gates in one tensor, where rnn's LSTM has one for each gate.

    Args:
        names: of the tensors of the cell, in the order of their rows.
        target: the name of the tensor of the layer.
        shape: its shape, a matrix or a vector.
        second_bias: see `Piece`.
    """
    rows_of_all, *columns = shape
    rows = rows_of_all // len(names)
    first_columns = [0] * len(columns)  # of a matrix one, of a bias none
    for number, name in enumerate(names):
        yield Piece(
            key=name,
            start=(0, *first_columns),
            size=(rows, *columns),
            target=target,
            at=(number * rows, *first_columns),
            second_bias=second_bias,
        )


# Layers in a row


def _recurrent_class(spec: ModuleSpec) -> str:
    """Return which class of torch.nn (`LSTM`, `GRU`, `RNN`) a recurrent layer over sequences is; empty for others."""
    traits = traits_of(spec.target)
    if traits.recurrent is None or not traits.recurrent.layer or traits.by_step:
        return ""
    return traits.recurrent.kind


_NO_STATE = (None, False, "", "neither")
"""Values of the arguments about states that mean that there is none."""


def _keeps_state(spec: ModuleSpec) -> bool:
    """Return whether a recurrent layer of torch.nn begins a sequence with anything but zeros, or skips steps."""
    return bool(_recurrent_class(spec)) and _has_state_argument(spec)


def _has_state_argument(spec: ModuleSpec) -> bool:
    """Return whether an argument says that a module keeps a state, or skips steps."""
    return any(spec.kwargs.get(name) not in _NO_STATE for name in _STATE_ARGUMENTS)


def _groups(layers: list[ModuleSpec]) -> Iterator[list[ModuleSpec]]:
    """Yield layers in groups: those that can be levels of one layer of torch.nn, with the dropouts between them.

    Any other layer is a group of its own.
    """
    position = 0
    while position < len(layers):
        group = [layers[position]]
        if _recurrent_class(group[0]):
            next_level = _next_level(group, layers[position + 1 :])
            while next_level:
                group += next_level
                next_level = _next_level(group, layers[position + len(group) :])
        yield group
        position += len(group)


def _next_level(group: list[ModuleSpec], rest: list[ModuleSpec]) -> list[ModuleSpec]:
    """Return the layer that can be the next level of a layer of torch.nn, after the dropout before it, if any.

    That is a list of one or two modules. It is empty if the next layer cannot be a level.

    Args:
        group: the levels so far, with the dropouts between them.
        rest: the layers that follow.
    """
    has_dropout = bool(rest) and rest[0].target == _DROPOUT
    length = 2 if has_dropout else 1
    dropout_and_layer = rest[:length]
    if len(dropout_and_layer) < length or not _is_possible_level(group[0], dropout_and_layer[-1]):
        return []
    if len(group) == 1:
        return dropout_and_layer
    # torch.nn has one dropout between all levels. group[1] is the first one, or, without any, the second level.
    has_same_dropout = _dropout_rate(group[1]) == _dropout_rate(dropout_and_layer[0])
    return dropout_and_layer if has_same_dropout else []


def _dropout_rate(spec: ModuleSpec) -> Any:
    """Return the rate of a dropout layer; `None` for any other layer."""
    if spec.target != _DROPOUT:
        return None
    return spec.args[0] if spec.args else spec.kwargs.get("p", 0.5)  # PyTorch's default


def _is_possible_level(first: ModuleSpec, other: ModuleSpec) -> bool:
    """Return whether a layer can be another level of the first in one layer of torch.nn.

    Each level but the first takes as many features as it returns, and all have one class and the same options. Whether
    they keep a state is left to the callers, as is the dropout between them.

    Args:
        first: a recurrent layer over sequences.
        other: any layer that follows it.
    """
    _, hidden_size, *_ = first.args
    if _recurrent_class(other) != _recurrent_class(first) or other.args[:2] != (hidden_size, hidden_size):
        return False
    options = _options(first)
    other_options = _options(other)
    # Not `dropout`, which does nothing in a single level. `remember`, an option of Lua's, says when a state is kept.
    if any(options[name] != other_options[name] for name in ("batch_first", "nonlinearity", "remember")):
        return False
    # With one of these a layer has more tensors than one level. They are given only if they are not 1, false or 0.
    for layer in (first, other):
        if any(layer.kwargs.get(name) for name in ("num_layers", "bidirectional", "proj_size")):
            return False
    return True


_DEFAULTS: dict[str, Any] = {
    "num_layers": 1,
    "nonlinearity": "tanh",
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
    "remember": "neither",
}
"""PyTorch's defaults of what a layer over sequences may have as keyword argument, and Lua's of `remember`. No `bias`:
Lua's layers have no option for it.
"""


def _options(spec: ModuleSpec) -> dict[str, Any]:
    """Return the keyword arguments of a layer over sequences, those that are not given with PyTorch's defaults."""
    return {name: spec.kwargs.get(name, value) for name, value in _DEFAULTS.items()}


# States


def _layers_of(root: ModuleSpec) -> list[ModuleSpec]:
    """Return the layers of a model that is a sequence of them; empty for others.

    It is a Sequential, or of a class that is one without the views that merge steps with examples and split them again,
    which layers of torch.nn do not need. An argument of such a class has the places of the views.
    """
    argument = traits_of(root.target).sequential_without
    if root.target != SEQUENTIAL and not argument:
        return []
    places_of_views = root.kwargs.get(argument, ())
    return [spec for place, spec in enumerate(root.children.values()) if place not in places_of_views]


def _remembers(spec: ModuleSpec) -> bool:
    """Return whether a recurrent layer begins a sequence with the state after the last one."""
    return bool(_recurrent_class(spec)) and spec.kwargs.get("remember") in (True, "always", "both")


def _obstacle_in_layer(spec: ModuleSpec) -> str:
    """Return why a layer cannot be in a model that takes its state and returns it, in words; empty if it can."""
    is_recurrent = bool(_recurrent_class(spec))
    if not is_recurrent:
        # It must have no state: those that treat each step, or each token, by itself have none.
        is_stepwise = spec.target in _STEPWISE or traits_of(spec.target).takes_tokens
        return "" if is_stepwise else f"it has {spec.class_name}"
    if not _remembers(spec):
        return f"{spec.class_name} forgets"
    if spec.kwargs.get("proj_size"):
        # The layer that `_merged` makes in its place would have no projection.
        return f"{spec.class_name} has a projection"
    return ""


def _name_in_graph(spec: ModuleSpec, counts: Counter[str]) -> str:
    """Return the name of a layer, `lstm`; the second of a kind is `lstm2`.

    Args:
        spec: the layer.
        counts: how many of each kind there are so far; this one is added.
    """
    # Of `sequence.StatefulLSTM` of this package, `LSTM`: the class of torch.nn that it is like.
    *_, class_name = short_name(like_of(spec.target)).split(".")
    base = class_name.lower()
    counts[base] += 1
    return f"{base}{counts[base]}" if counts[base] > 1 else base


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
        """Return the model in a few words for the user."""
        model = f"{self.layers}-layer {self.kind}"
        if self.takes_tokens and self.inputs == self.outputs:
            return f"{model} language model, {self.features} features, {self.inputs} tokens"
        return f"{model}, {self.features} features"


def recurrence(root: ModuleSpec) -> Recurrence | None:
    """Return the kind and sizes of a recurrent model, from its plan.

    It is `None` if no layer is recurrent, or they are of several kinds.
    """
    specs = [*specs_in(root)]
    # The first two arguments of each are the numbers of features that it takes and returns.
    layers = [spec for spec in specs if traits_of(spec.target).recurrent is not None and len(spec.args) > 1]
    kinds = {_recurrent(spec).kind for spec in layers}
    if len(kinds) != 1:
        return None
    # The input goes to the first recurrent layer, or to a linear layer or table of tokens before it, whose first
    # argument is the number of features, or of tokens, that it takes.
    first = next(spec for spec in specs if spec is layers[0] or traits_of(spec.target).features is not None)
    linear_sizes = [argument_at(spec, 1) for spec in specs if spec.target == "torch.nn.Linear"]
    # A graph of cells is one step, the graph that `take_state` makes is over sequences.
    is_step = root.graph is not None and root.target != STATEFUL
    return Recurrence(
        kind=kinds.pop(),
        layers=sum(spec.kwargs.get("num_layers", 1) for spec in layers),
        features=layers[-1].args[1],
        inputs=argument_at(first, 0),
        takes_tokens=traits_of(first.target).takes_tokens,
        outputs=linear_sizes[-1] if linear_sizes else 0,
        states=tuple(_states_of_step(root)) if is_step else None,
    )


def _states_of_step(root: ModuleSpec) -> Iterator[tuple[int, int, int]]:
    """Yield the place of each state among the inputs of a graph that is one step, that of the new state among its
    outputs, both 0-based, and the number of features; see `Recurrence`. States of other places are left out.
    """
    graph = root.graph
    assert graph is not None
    for number, node in enumerate(graph.nodes, 1):
        if node.module is None:
            continue
        spec = root.children[node.module]
        traits = traits_of(spec.target)
        is_cell = traits.by_step and traits.recurrent is not None
        if not is_cell:
            continue
        _, *states = node.takes  # the first is the input
        for index, (source, path) in enumerate(states):
            # A cell with several states returns a list of them.
            new_state = _output_of(number, element=index if len(states) > 1 else None)
            if source == 0 and path and new_state in graph.outputs:  # 0 is the input of the graph
                _, hidden_size, *_ = spec.args
                yield path[0], graph.outputs.index(new_state), hidden_size
