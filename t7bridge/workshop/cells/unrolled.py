"""The graphs of a model, and those among them that are steps of one recurrent layer, which is unrolled: graphs of the
same tensors, nodes of the graph around them. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...graph.tensor import place_of
from ...nn.mapping import ModuleSpec
from ...nn.state_dict import StateDict
from .values import graph_of

_Tensors = tuple[Any, ...]
"""The tensors of a graph, as `place_of` returns them: equal for graphs of the same tensors."""


def graphs_in(root: ModuleSpec) -> dict[ModuleSpec, str]:
    """Return the graphs of a model, with the prefix of each one's keys in the state dict, at its first place."""
    graphs: dict[ModuleSpec, str] = {}
    visited: set[ModuleSpec] = set()
    stack = [(root, "")]
    while stack:
        spec, prefix = stack.pop()
        if spec in visited:
            continue
        visited.add(spec)
        if spec.graph is not None:
            graphs[spec] = prefix
        stack += [(child, f"{prefix}{name}.") for name, child in reversed(spec.children.items())]
    return graphs


def carried_over(graphs: Mapping[ModuleSpec, str], state: StateDict) -> dict[ModuleSpec, frozenset[tuple[int, int]]]:
    """Return the states that the steps of unrolled layers pass on: of each graph, pairs of an input and an output.

    Where a step takes an output of another step, the place of the input and that of the output are a pair, from 0. All
    steps of a layer have the pairs of all of them.

    Args:
        graphs: the graphs of a model with their prefixes.
        state: its state dict.
    """
    places = {key: place_of(tensor) for key, tensor in state.items()}
    tensors_of: dict[ModuleSpec, _Tensors] = {}
    for graph, prefix in graphs.items():
        tensors_of[graph] = tuple(place for key, place in places.items() if key.startswith(prefix))
    pairs_of: dict[_Tensors, set[tuple[int, int]]] = {}
    for graph in graphs:
        for tensors, pair in _passed_on(graph, tensors_of):
            pairs_of.setdefault(tensors, set()).add(pair)
    return {graph: frozenset(pairs_of.get(tensors, ())) for graph, tensors in tensors_of.items()}


def _passed_on(
    spec: ModuleSpec, tensors_of: Mapping[ModuleSpec, _Tensors]
) -> Iterator[tuple[_Tensors, tuple[int, int]]]:
    """Yield where nodes of a graph that are steps of one layer take outputs of one another.

    Args:
        spec: the graph.
        tensors_of: the tensors of each graph of the model.

    Yields:
        The tensors of both steps, and the place of the input and that of the output, from 0.
    """
    steps: dict[int, _Tensors] = {}
    """The tensors of each node so far that is a graph with tensors, by its number from 1."""
    for number, node in enumerate(graph_of(spec).nodes, 1):
        if node.module is None:
            continue
        tensors = tensors_of.get(spec.children[node.module], ())  # none of a module that is no graph
        if not tensors:
            continue
        steps[number] = tensors
        for input_place, (source, path) in enumerate(node.takes):
            if steps.get(source) == tensors:
                output_place = path[0] if path else 0  # without a path it is the only output
                yield tensors, (input_place, output_place)
