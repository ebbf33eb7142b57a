"""Recurrent layers over whole sequences as people write them in PyTorch: a sequencer of a cell is a layer of torch.nn,
several in a row are one with more levels, and a model that remembers its last sequence takes the state and returns it.
A sequencer is Lua's container that runs its modules on each step of a sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ...data import define
from ...graph.tensor import Tensor
from ...nn.kinds import ANY, Kind, Kinds
from ...nn.mapping import LAYERS, SEQUENTIAL, GraphNode, GraphSpec, Link, ModuleSpec, Plan, short_name, specs_in
from ...nn.pieces import CLASS_IN_TORCH_WITH_STATE, STATEFUL, Lifted, Piece
from ...nn.plan import graph_arguments
from ...nn.registry import like_of, tensor_shapes, traits_of
from ...nn.state_dict import StateDict
from .layers import (
    has_state_argument,
    is_cell_of_torch,
    is_over_steps,
    is_recurrent,
    is_stepwise,
    is_stepwise_or_takes_tokens,
    keeps_state,
    modules_in_row,
    recurrent_class,
    recurrent_layer,
    remembers,
    why_not_in_torch,
    without_mask,
)
from .levels import groups_of_levels, levels_of, merged
from .lift import lifted
from .places import Places, TensorMoves

_NOTE_OF_TENSOR = "recognized: layers over sequences, which take a tensor (steps, batch, features) and no list"
_NOTE_OF_LIST = "recognized: layers over sequences, which take a list of steps of one shape"
_LAST_STATES = ("state", "hidden")
"""Arguments of recurrent layers with the state after the last sequence, which the file has."""


def recognized(plan: Plan, state: StateDict, only_torch: bool = False) -> Lifted:
    """Return a model as people write it in PyTorch: cells as single modules, layers over sequences with their state.

    Args:
        plan: the plan; it is modified.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks stay as they are.
    """
    result = lifted(plan, state, only_torch)
    # Most models have no layers over sequences: then their places and tensors need not be looked at.
    if not any(is_over_steps(spec) or recurrent_class(spec) for spec in specs_in(plan.root)):
        return result
    stacks = _Stacks(result)
    stacks.replace_sequencers()  # by layers over sequences
    stacks.merge_levels()  # layers in a row become one
    stacks.take_state()  # of the layers that there are then
    stacks.move_tensors()  # to where all this has put their modules
    return result


class _Stacks:
    """Makes layers of torch.nn over sequences of a model's sequencers and cells, in its plan. A module has one place if
    one container has it, under one name, and so has each container around that one: only such modules are changed.
    Layers in a row that can be the levels of one layer of torch.nn are a group, with the dropouts between them.

    The tensors of the state dict follow at the end, by the modules that they belong to.

    Args:
        result: the model, whose cells are single modules; it is modified, and given notes.
    """

    def __init__(self, result: Lifted) -> None:
        """Note where all modules and tensors are before anything is changed."""
        self._result = result
        self._places = Places(result.plan.root, result.state)
        self._moves = TensorMoves(result, self._places)
        self._former_sequencers: set[ModuleSpec] = set()
        """Sequencers that are Sequentials now."""
        self._list_stackers: set[ModuleSpec] = set()
        """Sequencers that are containers now which stack a list of steps, for modules that take all steps at once."""

    # Sequencers

    def replace_sequencers(self) -> None:
        """Turn sequencers that keep no state into containers whose modules take whole sequences at once.

        Layers that take whole sequences already are written as those of torch.nn, if their input is a tensor.
        """
        root = self._result.plan.root
        specs = [*specs_in(root)]
        sequencers = [spec for spec in specs if is_over_steps(spec)]
        layers = [spec for spec in specs if recurrent_class(spec) and self._places.is_single_throughout(spec)]
        follow = _InputKinds()
        if sequencers or layers:  # of other models nobody asks
            follow(root, ANY)  # the data flow through the whole model
        for spec in layers:
            if not keeps_state(spec) and follow.inputs_of(spec).are_tensors:
                spec.plain = f"torch.nn.{recurrent_class(spec)}"
        for spec in sequencers:
            message = self._replace_sequencer(spec, follow.inputs_of(spec))
            if message:
                self._result.note(spec.path, message)

    def _replace_sequencer(self, spec: ModuleSpec, inputs: _Inputs) -> str:
        """Turn a sequencer into a container over sequences, if possible; return the note about it, empty for none.

        It becomes a Sequential for tensors, or a container that stacks the steps of a list for the modules inside.

        Args:
            spec: the sequencer, modified.
            inputs: what it takes.
        """
        obstacle = self._obstacle_to_whole_sequences(spec, inputs)
        if obstacle:
            # Only of recurrent modules somebody expects a layer of torch.nn.
            somebody_asks = any(map(is_recurrent, specs_in(spec)))
            return f"{spec.class_name} stays as it is: {obstacle}" if somebody_asks else ""
        self._replace_modules(spec)
        if _takes_list(spec, inputs):
            spec.target = LAYERS + traits_of(spec.target).stacking
            self._list_stackers.add(spec)
            return _NOTE_OF_LIST
        spec.target = SEQUENTIAL
        self._former_sequencers.add(spec)
        return "" if inputs.are_tensors else _NOTE_OF_TENSOR

    def _obstacle_to_whole_sequences(self, spec: ModuleSpec, inputs: _Inputs) -> str:
        """Return why the modules of a sequencer cannot take whole sequences, in words; empty if they can.

        Args:
            spec: the sequencer.
            inputs: what it takes.
        """
        if not self._places.is_single_throughout(spec):
            return "a module in it has several places"
        obstacle = _obstacle_inside(spec, inputs)
        if obstacle:
            return obstacle
        # The tensors of cells become parts of those of layers, and could not stay tied. All others stay what they are.
        cells = [layer for layer in map(without_mask, modules_in_row(spec)) if is_cell_of_torch(layer)]
        return "another layer has the same weights" if self._places.have_ties(cells) else ""

    def _replace_modules(self, spec: ModuleSpec) -> None:
        """Turn the modules of a sequencer into layers that take whole sequences, and drop Sequentials around them.

        Args:
            spec: the sequencer, modified, but for its class; `_obstacle_to_whole_sequences` found none.
        """
        modules = [*modules_in_row(spec)]
        for module in modules:
            # A module that returns zeros for rows of zeros stays around its layer, which is modified.
            layer = without_mask(module)
            class_over_dim = traits_of(layer.target).over_dim
            if is_cell_of_torch(layer):
                self._moves.cell_became_layer(layer, _turn_into_layer(layer))
            elif class_over_dim:
                # `SoftMax` and the like take the matrix of a step, and would see another dimension in a sequence.
                layer.target = class_over_dim
                layer.args = (-1,)  # along the features
                layer.plain = ""  # the target is a class of torch.nn itself
        # Its arguments are about states, and say that there is none.
        spec.kwargs = {}
        spec.children = {str(number): module for number, module in enumerate(modules)}

    # Levels

    def merge_levels(self) -> None:
        """Make one layer of recurrent layers in a row; the modules of that row get new numbers as their names.

        Modules are in a row in a Sequential, and in a container that stacks a list for them.
        """
        # A former sequencer is dissolved in the row around it: its modules have to be merged with those of that row.
        # Other containers inside come first, as they are rows of their own.
        for spec in self._places.inner_first():
            is_row = spec.target == SEQUENTIAL or spec in self._list_stackers
            is_dissolved = spec in self._former_sequencers and spec is not self._result.plan.root
            if not is_row or is_dissolved or not self._may_be_moved(spec):
                continue
            layers: list[ModuleSpec] = []
            for group in groups_of_levels(self._dissolved(spec)):
                layers += self._merged_or_not(group)
            spec.children = {str(number): layer for number, layer in enumerate(layers)}

    def _may_be_moved(self, spec: ModuleSpec) -> bool:
        """Return whether all modules in a row, and those one level further inside, have one place.

        Tensors of a module of several places could not follow it. One level further inside are the modules of former
        sequencers, which are moved into the row; those of other containers are not, but are held to the same.

        Args:
            spec: the container of the row.
        """
        modules = [*spec.children.values()]
        for child in spec.children.values():
            modules += child.children.values()
        return all(map(self._places.is_single, modules))

    def _dissolved(self, spec: ModuleSpec) -> list[ModuleSpec]:
        """Return the modules in a row, with those of a former sequencer instead of itself."""
        modules: list[ModuleSpec] = []
        for child in spec.children.values():
            modules += child.children.values() if child in self._former_sequencers else [child]
        return modules

    def _merged_or_not(self, group: list[ModuleSpec]) -> list[ModuleSpec]:
        """Return one layer for several, in a list, or these if that is not possible.

        Args:
            group: layers that can be levels of one, and the dropouts between them.
        """
        # Layers that keep a state are left to `take_state`, which merges them too.
        if len(group) == 1 or any(map(keeps_state, group)) or self._places.have_ties(group):
            return group
        layer = self._merged(group, recurrent_layer(group[0]).layer)
        # `replace_sequencers` gave the first layer no class of torch.nn, as its input may be a list. But only that
        # class can be written with several levels.
        if not layer.plain:
            class_name = recurrent_class(layer)
            layer.plain = f"torch.nn.{class_name}"
            message = f"recognized: {class_name} layers in a row, which take a tensor and no list"
            self._result.note(layer.path, message)
        return [layer]

    def _merged(self, group: list[ModuleSpec], target: str) -> ModuleSpec:
        """Return one layer for several, at the place of the first; their tensors will follow.

        Args:
            group: layers that can be levels of one, and the dropouts between them.
            target: the class of the new layer.
        """
        layer = merged(group, target)
        self._moves.layers_became_levels(levels_of(group), layer)
        self._places.put(layer, former=group[0])  # so that a container around may merge, too
        return layer

    # States

    def take_state(self) -> None:
        """Make a model that remembers its last sequence a graph of input and state, if it is a sequence of layers.

        The layers that remember become layers of torch.nn that take a state and return it.
        """
        root = self._result.plan.root
        # Tensors follow modules of one place only.
        layers = _layers_in_sequence(root) if self._places.is_tree else []
        if not any(map(remembers, layers)):
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
        if self._places.have_ties(filter(recurrent_class, layers)):
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
        for group in groups_of_levels(layers):
            first = group[0]
            is_with_state = bool(recurrent_class(first))  # any other layer is a group of its own
            layer = self._merged(group, recurrent_layer(first).stateful) if is_with_state else first
            children[_name_in_graph(layer, counts)] = layer
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

    def move_tensors(self) -> None:
        """Give the tensors of the state dict the keys of their modules' new places, and make those of new layers."""
        self._moves.finish()


# What sequencers take


@define(frozen=True)
class _Inputs:
    """What a module takes in a model, where it may be called several times.

    Attributes:
        are_tensors: whether every input is a tensor.
        have_list: whether one is a list. It may also not be known what they are.
    """

    are_tensors: bool
    have_list: bool


class _InputKinds(Kinds):
    """Follows the data flow of a model, and notes what each layer over sequences takes: a tensor, a list, or either.

    Called with the model and the kind of its input.
    """

    def __init__(self) -> None:
        super().__init__(traits_of)
        self._kinds: dict[ModuleSpec, set[Kind]] = {}
        """The kinds of the inputs of each sequencer and recurrent layer that the flow reaches."""

    def __call__(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of the output of a module, and note that of its input; called for each module inside, too."""
        if traits_of(spec.target).stacking or recurrent_class(spec):
            self._kinds.setdefault(spec, set()).add(kind)
        return super().__call__(spec, kind)

    def inputs_of(self, spec: ModuleSpec) -> _Inputs:
        """Return what a module takes; of one that the flow did not reach nothing is known."""
        names = {kind.name for kind in self._kinds.get(spec, {ANY})}
        return _Inputs(are_tensors=names == {"tensor"}, have_list="list" in names)


def _takes_list(spec: ModuleSpec, inputs: _Inputs) -> bool:
    """Return whether the input of a sequencer is a list, or was one in its last call, or may have been one.

    Args:
        spec: the sequencer.
        inputs: what it takes.
    """
    if inputs.have_list:
        return True
    if inputs.are_tensors:
        return False
    # Of the last call the file may have the output, which is a list if the input was. Without it, nothing is known.
    last_output = spec.obj.get("output") if spec.obj is not None else None
    return not isinstance(last_output, Tensor)


def _obstacle_inside(spec: ModuleSpec, inputs: _Inputs) -> str:
    """Return what inside a sequencer cannot take whole sequences, in words; empty if everything can.

    Args:
        spec: the sequencer.
        inputs: what it takes.
    """
    if why_not_in_torch(spec):
        return why_not_in_torch(spec)
    layers = [*map(without_mask, modules_in_row(spec))]
    cells = [layer for layer in layers if is_cell_of_torch(layer)]
    for layer in layers:
        if not is_cell_of_torch(layer) and not is_stepwise(layer):
            return f"it has {layer.class_name}"
    # With a cell all steps have one shape, as its state has a batch. Without, a list may have steps of several shapes,
    # which no tensor holds.
    if not cells and not inputs.are_tensors:
        return "its input may be a list"
    for cell in cells:
        if why_not_in_torch(cell):
            return why_not_in_torch(cell)
    if any(map(has_state_argument, (spec, *cells))):
        return "it remembers a state, or skips steps"
    return ""


def _turn_into_layer(spec: ModuleSpec) -> list[Piece]:
    """Turn a cell into the layer over sequences of torch.nn that repeats it.

    Args:
        spec: the cell, which torch.nn has and which keeps no state from sequence to sequence; it is modified.

    Returns:
        What the layer's tensors are made of. Keys are names of tensors in the cell, targets in the layer.
    """
    recurrent = recurrent_layer(spec)
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


# States of models


def _layers_in_sequence(root: ModuleSpec) -> list[ModuleSpec]:
    """Return the layers of a model that is a sequence of them; empty for others.

    It is a Sequential, or of a class of Lua that is one but for some of its modules: views that merge the steps with
    the examples of a batch and split them again, which layers of torch.nn do not need. These are left out.
    """
    argument_of_places = traits_of(root.target).sequential_without  # the argument that has the places of the views
    if argument_of_places:
        places_of_views = root.kwargs.get(argument_of_places, ())
        return [spec for place, spec in enumerate(root.children.values()) if place not in places_of_views]
    return [*root.children.values()] if root.target == SEQUENTIAL else []


def _obstacle_in_layer(spec: ModuleSpec) -> str:
    """Return why a layer cannot be in a model that takes its state and returns it, in words; empty if it can."""
    if not recurrent_class(spec):
        # It must have no state.
        return "" if is_stepwise_or_takes_tokens(spec) else f"it has {spec.class_name}"
    if not remembers(spec):
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


def _graph_of_row(children: Mapping[str, ModuleSpec], first_input: str) -> GraphSpec:
    """Return the graph of layers in a row, of which those with a state take it as an input of the graph.

    Args:
        children: the layers, by their names in the graph; at least one has a state.
        first_input: the name of the input of the first one.
    """
    count_of_states = sum(spec.target in CLASS_IN_TORCH_WITH_STATE for spec in children.values())
    nodes = _nodes_of_inputs(first_input, count_of_states)
    value, *states = [output_of(number) for number in range(1, len(nodes) + 1)]
    new_states: list[Link] = []
    for name, spec in children.items():
        number = len(nodes) + 1  # of the node of this layer
        if spec.target in CLASS_IN_TORCH_WITH_STATE:  # it returns its outputs and its state
            state = states[len(new_states)]
            nodes.append(GraphNode(name, (value, state)))
            value = output_of(number, element=0)
            new_states.append(output_of(number, element=1))
        else:
            nodes.append(GraphNode(name, (value,)))
            value = output_of(number)
    return GraphSpec(tuple(nodes), outputs=(value, *new_states), returns_list=True)


def _nodes_of_inputs(first_input: str, count_of_states: int) -> list[GraphNode]:
    """Return the nodes that name the elements of a graph's input: the first one and, of one state or more, `state`,
    `state2`, …
    """
    names = [first_input, "state", *(f"state{number}" for number in range(2, count_of_states + 1))]
    nodes = []
    for place, name in enumerate(names):
        element = output_of(0, place)  # 0 is the input of the graph
        nodes.append(GraphNode(None, takes=(element,), name=name))
    return nodes


def output_of(node: int, element: int | None = None) -> Link:
    """Return the link to the output of a node, given by its number from 1, or to an element of it."""
    return node, () if element is None else (element,)
