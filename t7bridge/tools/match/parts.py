"""State dicts as sequences of parts: the tensors of each module, in order, and its containers.

Names of modules only delimit containers. Parts that look alike are of one class: by the names and shapes of their
tensors, as strictly as both sides allow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

from attrs import evolve, field

from ...data import define
from ...graph.tensor import Tensor

BATCHES = "num_batches_tracked"
"""PyTorch's batch counter, which is not used by trained models."""
_RECURRENT = re.compile(r"((?:weight|bias)_(?:ih|hh|hr))_l(\d+)(_reverse)?\Z")
"""Names in `torch.nn.LSTM` of the parameters of one layer and direction."""

_USUAL = {"weight", "bias", "running_mean", "running_var", BATCHES}

Class = tuple[Any, ...]
"""A key that is equal for parts that may be paired: names and shapes."""
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
        part = parts.setdefault(path, Part(path))
        part.keys[name] = key
        part.shapes[name] = tensor.shape
        if name == BATCHES or key in optional:
            part.optional.add(name)
    # A part of counters and derived tensors alone carries no information.
    return [part for part in parts.values() if len(part.optional) < len(part.keys)]


def name_of(key: str) -> str:
    """Return the name of a tensor in its module."""
    return key.rpartition(".")[2]


def sibling(key: str, name: str) -> str:
    """Return the key of another tensor of the same module."""
    return key[: key.rfind(".") + 1] + name


def shared(x: Path, y: Path) -> int:
    """Return the length of the common prefix of two paths, in steps."""
    count = 0
    for one, other in zip(x, y):
        if one != other:
            break
        count += 1
    return count


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


def trimmed(shape: Shape) -> Shape:
    """Return a shape without broadcasting dimensions: (n, c, 1, 1) is (n, c), and (1, n, 1, 1) is (n)."""
    others = tuple(extent for extent in shape if extent != 1)
    if len(others) <= 1:
        return others or (1,)
    while shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _matrix(shape: Shape) -> Shape:
    """Return a kernel as the matrix of its layer on one patch: (n, c, h, w) is (n, c * h * w)."""
    shape = trimmed(shape)
    return (shape[0], prod(shape[1:])) if len(shape) > 2 else shape


def fits(shape: Shape, wanted: Shape) -> bool:
    """Return whether elements of one shape are valid in another in the same order, by the layers' computation."""
    one, other = trimmed(shape), trimmed(wanted)
    if one == other:
        return True
    return min(len(one), len(other)) == 2 and _matrix(one) == _matrix(other)


def _needed(part: Part) -> dict[str, Shape]:
    return {name: shape for name, shape in part.shapes.items() if name not in part.optional}


def _named(shapes: Iterable[tuple[str, Any]]) -> Class:
    return tuple(sorted(shapes))


def _strict(part: Part) -> Class:
    return _named((name, shape) for name, shape in part.shapes.items() if name != BATCHES)


def _without_derived(part: Part) -> Class:
    return _named(_needed(part).items())


def _trimmed(part: Part) -> Class:
    return _named((name, trimmed(shape)) for name, shape in _needed(part).items())


def _flat(part: Part) -> Class:
    return _named((name, _matrix(shape)) for name, shape in _needed(part).items())


def _bare(part: Part) -> Class:
    """Omit tensors that a module of the same kind may lack: a bias, or the statistics of a normalization."""
    needed = _needed(part)
    weight = needed.get("weight")
    if weight is not None:
        lacks = ("bias",) if len(weight) > 1 else ("running_mean", "running_var")
        needed = {name: shape for name, shape in needed.items() if name not in lacks}
    return _named((name, _matrix(shape)) for name, shape in needed.items())


def _nameless(part: Part) -> Class:
    """Use shapes alone, where they distinguish the tensors of a part."""
    shapes = sorted(trimmed(shape) for shape in _needed(part).values())
    return ("", *shapes) if len(set(shapes)) == len(shapes) else _bare(part)


_LEVELS: tuple[Callable[[Part], Class], ...] = (_strict, _without_derived, _trimmed, _flat, _bare, _nameless)


def classify(source: list[Part], target: list[Part]) -> tuple[list[Class], list[Class]]:
    """Return the classes of the parts on both sides.

    Parts are in one class as strictly as possible: looser comparisons are tried only on the parts that the stricter
    ones leave in unequal numbers.
    """
    sides = (source, target)
    classes: list[list[Class]] = [[(0, *_LEVELS[0](part)) for part in side] for side in sides]
    for level, compare in enumerate(_LEVELS[1:], 1):
        counts = [Counter(side) for side in classes]
        for side, parts in enumerate(sides):
            for number, part in enumerate(parts):
                known = classes[side][number]
                few, many = sorted((counts[0][known], counts[1][known]))
                if few != many and not (few and compare is _nameless):
                    classes[side][number] = (level, *compare(part))
    return classes[0], classes[1]


def kind_of(part: Part) -> Class:
    """Return the kind of layer of a part: two-dimensional convolutions of all sizes are one kind."""
    return _named((name, len(shape)) for name, shape in _needed(part).items() if name != "bias")


def names_between(source: Part, target: Part) -> dict[str, str]:
    """Map the tensors of one part to those of another: by name, or by shape if no name is the same."""
    common = {name: name for name in target.shapes if name in source.shapes}
    if common or _USUAL.issuperset([*source.shapes, *target.shapes]):
        return common
    by_shape = {trimmed(shape): name for name, shape in _needed(source).items()}
    wanted = {name: trimmed(shape) for name, shape in _needed(target).items()}
    return {name: by_shape[shape] for name, shape in wanted.items() if shape in by_shape}
