"""Parts of a state dict, each the tensors of one module, and which of them look alike. These are of one class (`cls`),
which has the names and shapes of their tensors, as strictly as both sides of a match allow. Derived tensors follow from
others, or do not matter, as counts of batches: a side may lack them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from attrs import field

from ...data import define

if TYPE_CHECKING:
    from ...graph.tensor import Tensor

BATCHES = "num_batches_tracked"
"""PyTorch's batch counter, which is not used by trained models."""
_NAME_IN_RECURRENT = re.compile(r"((?:weight|bias)_(?:ih|hh|hr))_l(\d+)(_reverse)?\Z")
"""Names in `torch.nn.LSTM` of the parameters of one layer and direction."""

_NAMES_OF_LAYERS = {"weight", "bias", "running_mean", "running_var", BATCHES}

Class = tuple[Any, ...]
"""A key that is equal for parts that may be paired: names and shapes."""
Path = tuple[str, ...]
Shape = tuple[int, ...]


@define(eq=False)
class Part:
    """Tensors of one module; of a recurrent module of PyTorch, those of one layer and direction.

    Attributes:
        path: the steps to it.
        keys: its keys in the state dict, by the names of its tensors: `weight`, `bias`.
        shapes: the shapes of these, likewise.
        optional: the names of its derived tensors, and of batch counters, which a side may lack.
        number: its place among the parts of its side, from 0, in one comparison; `classify` sets it.
        cls: its class in one comparison, likewise.
    """

    path: Path
    keys: dict[str, str] = field(factory=dict)
    shapes: dict[str, Shape] = field(factory=dict)
    optional: set[str] = field(factory=set)
    number: int = 0
    cls: Class = ()


def parts_of(tensors: Mapping[str, Tensor], derived: Iterable[str] = ()) -> list[Part]:
    """Cut a state dict into parts, in the order of first occurrence, but for those of derived tensors alone.

    Args:
        tensors: the state dict.
        derived: its derived keys, besides the batch counters.
    """
    parts: dict[Path, Part] = {}
    optional = set(derived)
    for key, tensor in tensors.items():
        *steps, name = key.split(".")
        recurrent = _NAME_IN_RECURRENT.match(name)
        if recurrent:
            name, layer, direction = recurrent.groups()
            steps.append(f"_l{layer}{direction or ''}")
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


def prefix_of(key: str) -> str:
    """Return what the keys of all tensors of the same module begin with: `rnn.` for `rnn.weight`."""
    return key[: key.rfind(".") + 1]


def sibling(key: str, name: str) -> str:
    """Return the key of another tensor of the same module."""
    return prefix_of(key) + name


def keys_under(name: str, keys: Iterable[str]) -> list[str]:
    """Return the keys that a user's name is of: the key itself, or all below a prefix, which ends in a dot."""
    return [key for key in keys if key == name or (name.endswith(".") and key.startswith(name))]


def trimmed(shape: Shape) -> Shape:
    """Return a shape without broadcasting dimensions: (n, c, 1, 1) is (n, c), and (1, n, 1, 1) is (n)."""
    others = tuple(extent for extent in shape if extent != 1)
    if len(others) <= 1:  # a vector, or a single number
        return others or (1,)
    # Only those at the end: a kernel with one output has 1 as its first dimension.
    while shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _matrix(shape: Shape) -> Shape:
    """Return a kernel as the matrix of its layer on one patch: (n, c, h, w) is (n, c * h * w)."""
    shape = trimmed(shape)
    if len(shape) <= 2:
        return shape
    outputs, *rest = shape
    return outputs, prod(rest)


def shapes_agree(one: Shape, other: Shape) -> bool:
    """Return whether tensors of two shapes may have each other's elements, in the same order, and mean the same.

    That is so of shapes that broadcast alike, and of a matrix and the kernels of a convolution.
    """
    one = trimmed(one)
    other = trimmed(other)
    if one == other:
        return True
    # A linear layer on patches is a convolution: its matrix (n, c * h * w) has the elements of kernels (n, c, h, w) in
    # the same order. Kernels on both sides that have the same matrix, but other extents, do not agree.
    is_matrix_on_one_side = min(len(one), len(other)) == 2
    return is_matrix_on_one_side and _matrix(one) == _matrix(other)


def _needed(part: Part) -> dict[str, Shape]:
    """Return the shapes of the tensors that are not derived."""
    return {name: shape for name, shape in part.shapes.items() if name not in part.optional}


def _class_of(shapes: Mapping[str, Shape], simplify: Callable[[Shape], Any] = tuple) -> Class:
    """Return what is equal for parts with tensors of the same names, whose shapes are the same after a function."""
    return tuple(sorted((name, simplify(shape)) for name, shape in shapes.items()))


def _bare(part: Part) -> Class:
    """Return a class that omits tensors that a module of the same kind may lack; kernels are compared as matrices.

    Where the weight has several dimensions, that is the bias; where it is a vector, of a normalization, the statistics:
    its bias comes with its weight.
    """
    needed = _needed(part)
    weight = needed.get("weight")
    if weight is not None:
        lacks = ("bias",) if len(weight) > 1 else ("running_mean", "running_var")
        needed = {name: shape for name, shape in needed.items() if name not in lacks}
    return _class_of(needed, simplify=_matrix)


def _nameless(part: Part) -> Class:
    """Return a class of shapes alone, where they distinguish the tensors of a part; `_bare` otherwise."""
    shapes = sorted(trimmed(shape) for shape in _needed(part).values())
    are_all_different = len(set(shapes)) == len(shapes)
    # No tensor has an empty name: such a class is none of `_bare`.
    return ("", *shapes) if are_all_different else _bare(part)


def _strict(part: Part) -> Class:
    """Return a class of all names and shapes, but of the batch counter."""
    return _class_of({name: shape for name, shape in part.shapes.items() if name != BATCHES})


_LEVELS: tuple[Callable[[Part], Class], ...] = (
    _strict,
    lambda part: _class_of(_needed(part)),
    lambda part: _class_of(_needed(part), trimmed),
    lambda part: _class_of(_needed(part), _matrix),
    _bare,
    _nameless,
)
"""What must be equal in parts of one class, the strictest comparison first."""


def classify(source: list[Part], target: list[Part]) -> None:
    """Set the numbers and classes of the parts on both sides.

    Parts are in one class as strictly as possible: looser comparisons are tried only on the parts that the stricter
    ones leave in unequal numbers.

    Args:
        source: the parts of one side; `number` and `cls` of each are set.
        target: those of the other, likewise.
    """
    parts = (*source, *target)
    strictest, *looser = _LEVELS
    for part in parts:
        part.cls = (0, *strictest(part))  # the level comes first, so that classes of two levels are never equal
    for level, compare in enumerate(looser, 1):
        # As the level before has left them; the classes change below.
        in_source = Counter(part.cls for part in source)
        in_target = Counter(part.cls for part in target)
        for part in parts:
            source_count = in_source[part.cls]
            target_count = in_target[part.cls]
            if source_count == target_count:
                continue  # the stricter comparison of an earlier level will do
            # Names count as long as both sides have parts of the class.
            if compare is _nameless and source_count > 0 and target_count > 0:
                continue
            part.cls = (level, *compare(part))
    for side in (source, target):
        for number, part in enumerate(side):
            part.number = number


def names_between(source: Part, target: Part) -> dict[str, str]:
    """Return which tensors of two paired parts belong together: names in the source, by names in the target.

    Tensors of the same name do; if the parts have no name in common, tensors of the same shape.
    """
    common = {name: name for name in target.shapes if name in source.shapes}
    # Names of PyTorch's layers mean what they say: a weight is no bias, whatever its shape.
    if common or _NAMES_OF_LAYERS.issuperset([*source.shapes, *target.shapes]):
        return common
    # The shapes of a part differ, as the parts are of one class by shapes alone (`_nameless`).
    source_names = {trimmed(shape): name for name, shape in _needed(source).items()}
    names = {}
    for name, shape in _needed(target).items():
        if trimmed(shape) in source_names:
            names[name] = source_names[trimmed(shape)]
    return names
