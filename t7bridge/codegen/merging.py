"""Classes of a page that differ only in numbers become one class, with parameters for these numbers. A block is such a
class with its modules and the steps of its `forward`; a construction is the call that makes a module. A module may be
of another block, which is then inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from ..data import define
from .code import Construction, dotted
from .statements import Writer
from .steps import CodeBlock

_NAMES_OF_EQUAL_SIZES = {
    frozenset(("in_channels", "out_channels")): "channels",
    frozenset(("in_features", "out_features")): "features",
}
"""The name of a parameter that is both of two arguments of a layer."""


def merge_alike(blocks: list[CodeBlock], class_names: frozenset[str]) -> list[CodeBlock]:
    """Choose one of the blocks that differ only in numbers as their class, with parameters, and set its name.

    Args:
        blocks: all blocks, those that others contain first; the model's own is the last.
        class_names: names of other classes in the same source.

    Returns:
        The classes, those that others contain first; all constructions are of these now, with arguments.
    """
    constructions_by_block = _constructions_by_block(blocks)
    classes: list[CodeBlock] = []
    last_numbers: Counter[str] = Counter()
    """The number in the last class name given, by base name."""
    # Inner classes first: those that contain them are compared by the names of what they construct.
    for blocks_of_height in _by_height(blocks):
        for group in _groups_alike(blocks_of_height):
            first = group[0]
            first.name = _next_class_name(first.base_name, last_numbers, class_names)
            classes.append(first)
            _parametrize(group, constructions_by_block)  # from here on all constructions are of the first
    _drop_needless_numbers(classes, class_names)
    for constructions in constructions_by_block.values():
        for construction in constructions:
            construction.name = construction.block.name
    return classes


def _constructions_by_block(blocks: list[CodeBlock]) -> dict[int, list[Construction]]:
    """Return the constructions of each block, by its id; of one that none of these constructs, nothing."""
    constructions_by_block: dict[int, list[Construction]] = {}
    for block in blocks:
        for construction in _constructions_of_blocks(block):
            constructions_by_block.setdefault(id(construction.block), []).append(construction)
    return constructions_by_block


def _next_class_name(base_name: str, last_numbers: Counter[str], class_names: frozenset[str]) -> str:
    """Return the base name with the next number that no other class has, and note that in `last_numbers`."""
    last_numbers[base_name] += 1
    while f"{base_name}{last_numbers[base_name]}" in class_names:
        last_numbers[base_name] += 1
    return f"{base_name}{last_numbers[base_name]}"


def _drop_needless_numbers(classes: list[CodeBlock], class_names: frozenset[str]) -> None:
    """Name a class that is the only one of its base name without a number.

    Args:
        classes: the classes with their names, the model's own last.
        class_names: names of other classes in the same source.
    """
    counts = Counter(block.base_name for block in classes)
    *inner, model = classes
    for block in inner:
        if counts[block.base_name] == 1 and block.base_name not in class_names:
            block.name = block.base_name
    model.name = model.base_name  # `Model`, as `load` has it: no other class has this name, see `TAKEN`


def _constructions_of_blocks(block: CodeBlock) -> list[Construction]:
    """Return the constructions in a class whose classes are in the same source."""
    return [construction for construction in block.constructions() if construction.block is not None]


def _by_height(blocks: list[CodeBlock]) -> list[list[CodeBlock]]:
    """Group blocks by the length of the longest chain of blocks inside them, those without any first.

    Args:
        blocks: all blocks, those that others contain first.
    """
    heights: dict[int, int] = {}
    levels: dict[int, list[CodeBlock]] = {}
    for block in blocks:
        heights_inside = [heights[id(construction.block)] for construction in _constructions_of_blocks(block)]
        height = 1 + max(heights_inside, default=0)
        heights[id(block)] = height
        levels.setdefault(height, []).append(block)
    return [level for _, level in sorted(levels.items())]


def _groups_alike(blocks: list[CodeBlock]) -> Iterable[list[CodeBlock]]:
    """Group blocks that differ only in numbers; the blocks inside them are merged already, and have their names."""
    groups: dict[str, list[CodeBlock]] = {}
    for block in blocks:
        modules = [f"{item.name}={_without_numbers(item.construction)}" for item in block.attributes]
        # Writing it also sets the names of its states, by which outer classes are written.
        text = "\n".join((block.base_name, *modules, Writer(block).text()))
        groups.setdefault(text, []).append(block)
    return groups.values()


def _without_numbers(value: Any) -> str:
    """Return a construction or literal as text, with 0 for each number."""
    if isinstance(value, Construction):
        name = value.block.name if value.block is not None else value.name
        arguments = [f"{place}={_without_numbers(argument)}" for place, argument in value.arguments()]
        return f"{name}({', '.join(arguments)})"
    return "0" if _is_numeric(value) else repr(value)


def _is_numeric(value: Any) -> bool:
    """Return whether a literal is a number or a tuple of numbers."""
    if isinstance(value, tuple):
        return all(map(_is_numeric, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parametrize(group: list[CodeBlock], constructions_by_block: dict[int, list[Construction]]) -> None:
    """Make the numbers that differ within a group parameters of its first block, and arguments of all constructions.

    Args:
        group: blocks that differ in numbers only; the first one is kept and modified.
        constructions_by_block: the constructions of each block, by its id; they are modified.
    """
    first = group[0]
    parameters: dict[str, list[Any]] = {}
    """The value of each parameter in each block, by the parameter's name."""
    for literal in _differing_literals(group):
        name = _parameter_name(literal, parameters)
        parameters[name] = literal.values
        for owner, place in literal.places:
            owner.replace_argument(place, dotted(name))
    first.parameters = {name: _annotation(values) for name, values in parameters.items()}
    # The others are constructed as the first, each with the values of its own block.
    for number, block in enumerate(group):
        for construction in constructions_by_block.get(id(block), ()):
            construction.block = first
            construction.args = [values[number] for values in parameters.values()]
            construction.arg_names = tuple(parameters)


@define(eq=False)
class _Literal:
    """A literal that differs between blocks of a group.

    Attributes:
        values: its value in each block.
        places: where it is in the first block: a construction, and the position or keyword of its argument.
    """

    values: list[Any]
    places: list[tuple[Construction, int | str]]


def _differing_literals(group: list[CodeBlock]) -> list[_Literal]:
    """Return the literals that differ between blocks that differ in numbers only, and so have equally many literals.

    Literals that are equal to each other in every block are one, with several places.
    """
    literals_of_blocks = [
        [literal for item in block.attributes for literal in item.construction.literals()] for block in group
    ]
    # By texts of the values, as 1, 1.0 and True are equal, but not the same.
    differing: dict[tuple[str, ...], _Literal] = {}
    for occurrences in zip(*literals_of_blocks):
        values = [value for _, _, value in occurrences]
        texts = tuple(map(repr, values))
        if len(set(texts)) == 1:  # the same in all blocks
            continue
        owner, place, _ = occurrences[0]  # in the first block
        differing.setdefault(texts, _Literal(values, [])).places.append((owner, place))
    return list(differing.values())


def _parameter_name(literal: _Literal, taken_names: Collection[str]) -> str:
    """Return a name for the parameter that replaces a literal, after the first argument that it is: `channels2`."""
    # Empty where the class does not name its arguments.
    argument_names = [owner.argument_name(place) for owner, place in literal.places]
    # The first two places are in one layer if it keeps the number of channels or features.
    name = _NAMES_OF_EQUAL_SIZES.get(frozenset(argument_names[:2]))
    if name is None:
        name = next(filter(None, argument_names), "size")
    number = 2
    while name in taken_names:
        name = f"{name.rstrip('0123456789')}{number}"
        number += 1
    return name


def _annotation(values: list[Any]) -> str:
    """Return the type of a parameter with these values."""
    kinds = {"tuple[int, ...]" if isinstance(value, tuple) else type(value).__name__ for value in values}
    return " | ".join(sorted(kinds))
