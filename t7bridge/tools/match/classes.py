"""Classes of parts that look alike: by the names and shapes of their tensors, as strictly as both sides allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

from .parts import BATCHES, Part, Shape

_USUAL = {"weight", "bias", "running_mean", "running_var", BATCHES}
"""A key that is equal for parts that may be paired: names and shapes."""

Class = tuple[Any, ...]
"""Maps parts to such keys."""


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


def _strict(part: Part) -> Class:
    return tuple(sorted((name, shape) for name, shape in part.shapes.items() if name != BATCHES))


def _without_derived(part: Part) -> Class:
    return tuple(sorted(_needed(part).items()))


def _trimmed(part: Part) -> Class:
    return tuple(sorted((name, trimmed(shape)) for name, shape in _needed(part).items()))


def _flat(part: Part) -> Class:
    return tuple(sorted((name, _matrix(shape)) for name, shape in _needed(part).items()))


def _bare(part: Part) -> Class:
    """Omit tensors that a module of the same kind may lack: a bias, or the statistics of a normalization."""
    needed = _needed(part)
    weight = needed.get("weight")
    if weight is not None:
        lacks = ("bias",) if len(weight) > 1 else ("running_mean", "running_var")
        needed = {name: shape for name, shape in needed.items() if name not in lacks}
    return tuple(sorted((name, _matrix(shape)) for name, shape in needed.items()))


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
    return tuple(sorted((name, len(shape)) for name, shape in _needed(part).items() if name != "bias"))


def names_between(source: Part, target: Part) -> dict[str, str]:
    """Map the tensors of one part to those of another: by name, or by shape if no name is the same."""
    common = {name: name for name in target.shapes if name in source.shapes}
    if common or _USUAL.issuperset([*source.shapes, *target.shapes]):
        return common
    by_shape = {trimmed(shape): name for name, shape in _needed(source).items()}
    wanted = {name: trimmed(shape) for name, shape in _needed(target).items()}
    return {name: by_shape[shape] for name, shape in wanted.items() if shape in by_shape}
