"""State dicts as sequences of parts: the tensors of each module, in order, and its containers.

May import graph, nn and errors. Names of modules only delimit containers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from attrs import evolve, field

from ...data import define
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...nn.plan.graph_spec import graphs_in
from ...nn.plan.spec import GraphSpec

BATCHES = "num_batches_tracked"
"""PyTorch's batch counter, which is not used by trained models."""
_RECURRENT = re.compile(r"((?:weight|bias)_(?:ih|hh|hr))_l(\d+)(_reverse)?\Z")
"""Names in `torch.nn.LSTM` of the parameters of one layer and direction."""

Path = tuple[str, ...]
Shape = tuple[int, ...]


@define(eq=False)
class Part:
    """Tensors of one module; of a recurrent module of PyTorch, those of one layer and direction.

    Attributes:
        path: the steps to it; those that begin with `~` are runs of a graph's nodes.
        keys: its keys in the state dict, by the names of its tensors: `weight`, `bias`.
        shapes: likewise.
        optional: the names of its derived tensors.
    """

    path: Path
    keys: dict[str, str] = field(factory=dict)
    shapes: dict[str, Shape] = field(factory=dict)
    optional: set[str] = field(factory=set)


def parts_of(tensors: Mapping[str, Tensor], derived: Iterable[str] = ()) -> list[Part]:
    """Cut a state dict into parts, in the order of first occurrence.

    Args:
        tensors: the state dict.
        derived: its derived keys, besides the batch counters.
    """
    parts: dict[Path, Part] = {}
    optional = set(derived)
    for key, tensor in tensors.items():
        *steps, name = key.split(".")
        recurrent = _RECURRENT.match(name)
        if recurrent:
            name = recurrent[1]
            steps.append(f"_l{recurrent[2]}{recurrent[3] or ''}")
        path = tuple(steps)
        part = parts.get(path)
        if part is None:
            part = parts[path] = Part(path)
        part.keys[name] = key
        part.shapes[name] = tensor.shape
        if name == BATCHES or key in optional:
            part.optional.add(name)
    # A part of counters and derived tensors alone carries no information.
    return [part for part in parts.values() if len(part.optional) < len(part.keys)]


def shared(x: Path, y: Path) -> int:
    """Return the length of the common prefix of two paths, in steps."""
    count = 0
    for one, other in zip(x, y):
        if one != other:
            break
        count += 1
    return count


def graph_runs(root: TorchObject) -> dict[Path, str]:
    """Return the runs of nodes in the graphs of a model: chains of nodes whose output has exactly one use.

    Returns:
        The name of the run for the path of each module in a graph.
    """
    runs: dict[Path, str] = {}
    for place, graph in graphs_in(root):
        above = tuple(place.prefix.split(".")[:-1])
        for name, number in _runs(graph).items():
            path = (*above, name)
            runs[path] = f"~{number}"
    return runs


def _runs(graph: GraphSpec) -> dict[str, int]:
    takers = [0] * (len(graph.nodes) + 1)
    for node in graph.nodes:
        for before, _ in node.takes:
            takers[before] += 1
    for before, _ in graph.outputs:
        takers[before] += 1
    run_of: list[int] = [0]
    named: dict[str, int] = {}
    for number, node in enumerate(graph.nodes, 1):
        before = node.takes[0][0] if len(node.takes) == 1 else 0
        run_of.append(run_of[before] if before and takers[before] == 1 else number)
        if node.module is not None:
            named.setdefault(node.module, run_of[number])
    return named


def in_runs(parts: list[Part], runs: Mapping[Path, str]) -> list[Part]:
    """Return the same parts with the runs of graphs as containers, each container contiguous."""
    changed = []
    for part in parts:
        steps: list[str] = []
        for depth, step in enumerate(part.path, 1):
            run = runs.get(part.path[:depth])
            steps += [step] if run is None else [run, step]
        changed.append(evolve(part, path=tuple(steps)))
    first: dict[Path, int] = {}
    for number, part in enumerate(changed):
        for depth in range(1, len(part.path) + 1):
            first.setdefault(part.path[:depth], number)
    return sorted(changed, key=lambda part: [first[part.path[:depth]] for depth in range(1, len(part.path) + 1)])
