"""State dicts as sequences of parts: what each module keeps, in order, and the containers it is in.

May import graph, nn and errors. Names of modules say where containers begin and end, and nothing else.
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
"""PyTorch's count of batches, which no computation of a trained model reads."""
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
        optional: the names of its tensors that follow from others.
    """

    path: Path
    keys: dict[str, str] = field(factory=dict)
    shapes: dict[str, Shape] = field(factory=dict)
    optional: set[str] = field(factory=set)


def parts_of(tensors: Mapping[str, Tensor], derived: Iterable[str] = ()) -> list[Part]:
    """Cut a state dict into parts, in the order in which each is met first.

    Args:
        tensors: the state dict.
        derived: its keys that follow from others, beside the counts of batches.
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
    # A part of counts and derived tensors alone says nothing.
    return [part for part in parts.values() if len(part.optional) < len(part.keys)]


def shared(x: Path, y: Path) -> int:
    """Return the length of the common beginning of two paths, in steps."""
    count = 0
    for one, other in zip(x, y):
        if one != other:
            break
        count += 1
    return count


def graph_runs(root: TorchObject) -> dict[Path, str]:
    """The runs of nodes in the graphs of a model: a node whose output one other takes, and takes alone, and so on.

    Returns:
        For the path of each module in a graph, the name of its run.
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
    for before, _ in graph.gives:
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
    """The same parts with the runs of graphs as containers, each container in one piece."""
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
