"""What a recurrent model is: the kind and sizes of its layers, and the states that it takes and returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...data import define
from ...nn.mapping import ModuleSpec, specs_in
from ...nn.pieces import STATEFUL
from ...nn.registry import traits_of
from ...nn.torch_nn import argument_at
from .layers import recurrent_layer
from .stacks import output_of
from .values import graph_of


class StateOfStep(NamedTuple):
    """A state that a model of one step takes, and returns as it is after the step.

    Attributes:
        input_place: its place among the inputs, from 0.
        output_place: its place among the outputs.
        features: its number of features.
    """

    input_place: int
    output_place: int
    features: int


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
        states: those that a model of one step takes and returns; `None` for a model over sequences.
    """

    kind: str
    layers: int
    features: int
    inputs: int
    takes_tokens: bool
    outputs: int
    states: tuple[StateOfStep, ...] | None

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
    # Layers and cells: their first two arguments are the numbers of features that they take and return. Some containers
    # around cells have a kind, too, but no such arguments.
    layers = [spec for spec in specs if traits_of(spec.target).recurrent is not None and len(spec.args) > 1]
    kinds = {recurrent_layer(spec).kind for spec in layers}
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    receiver = _receiver_of_input(specs, layers[0])
    linear_sizes = [argument_at(spec, 1) for spec in specs if spec.target == "torch.nn.Linear"]
    # A graph of cells is one step, the graph that `take_state` makes is over sequences.
    is_step = root.graph is not None and root.target != STATEFUL
    return Recurrence(
        kind=kind,
        layers=sum(spec.kwargs.get("num_layers", 1) for spec in layers),
        features=layers[-1].args[1],
        inputs=argument_at(receiver, 0),
        takes_tokens=traits_of(receiver.target).takes_tokens,
        outputs=linear_sizes[-1] if linear_sizes else 0,
        states=tuple(_states_of_step(root)) if is_step else None,
    )


def _receiver_of_input(specs: list[ModuleSpec], first_recurrent: ModuleSpec) -> ModuleSpec:
    """Return the layer that gets the input of a recurrent model: the first recurrent one, or an earlier one.

    That is a linear layer or a table of tokens: its first argument is the number of features, or of tokens, that it
    takes.

    Args:
        specs: all modules of the model, in their order.
        first_recurrent: the first recurrent layer among them.
    """
    for spec in specs:
        if traits_of(spec.target).features is not None:
            return spec
        if spec is first_recurrent:
            break
    return first_recurrent


def _states_of_step(root: ModuleSpec) -> Iterator[StateOfStep]:
    """Yield the states of the cells of a graph that is one step.

    States that are no element of the graph's input, or not among its outputs after the step, are left out.
    """
    graph = graph_of(root)
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
            new_state = output_of(number, element=index if len(states) > 1 else None)
            is_element_of_input = source == 0 and bool(path)  # 0 is the input of the graph
            if is_element_of_input and new_state in graph.outputs:
                _, hidden_size, *_ = spec.args
                yield StateOfStep(path[0], graph.outputs.index(new_state), hidden_size)
