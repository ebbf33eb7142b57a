"""Merge classes that differ only in numbers into one, with parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .code import Construction, Lit, Name, Parameter
from .flow import CodeBlock
from .statements import Writer

_BOTH = {frozenset(("in_channels", "out_channels")): "channels", frozenset(("in_features", "out_features")): "features"}
"""Name of an argument with two meanings."""


def merge_alike(blocks: list[CodeBlock], taken: frozenset[str]) -> list[CodeBlock]:
    """Set the class name of every block, and keep one block for each class.

    Args:
        blocks: all blocks, those that others contain first, as created by `Builder`.
        taken: names of other classes in the same source.

    Returns:
        The classes in the same order. Calls of the others become calls of these, with arguments.
    """
    users: dict[int, list[Construction]] = {}
    for block in blocks:
        for call in calls_in(block):
            if call.block is not None:
                users.setdefault(id(call.block), []).append(call)
    heights: dict[int, int] = {}
    for block in blocks:
        inner = [heights[id(call.block)] for call in calls_in(block) if call.block is not None]
        heights[id(block)] = 1 + max(inner, default=0)
    kept: list[CodeBlock] = []
    names: dict[str, int] = {}
    levels: dict[int, list[CodeBlock]] = {}
    for block in blocks:
        levels.setdefault(heights[id(block)], []).append(block)
    for _, level in sorted(levels.items()):
        groups: dict[str, list[CodeBlock]] = {}
        for block in level:
            groups.setdefault(_shape(block), []).append(block)
        for group in groups.values():
            block = group[0]
            names[block.base] = names.get(block.base, 0) + 1
            while f"{block.base}{names[block.base]}" in taken:
                names[block.base] += 1
            block.name = f"{block.base}{names[block.base]}"
            kept.append(block)
            _parametrize(group, users)
    for block in kept:  # a number only if there are several
        if names[block.base] == 1 and (block.base not in taken or block is blocks[-1]):
            block.name = block.base
    for calls in users.values():
        for call in calls:
            call.name = call.block.name
    return kept


def calls_in(block: CodeBlock) -> Iterator[Construction]:
    """Yield all constructions in a block, outer ones first."""

    def inside(call: Construction) -> Iterator[Construction]:
        yield call
        for node in (*call.args, *call.kwargs.values()):
            if isinstance(node, Construction):
                yield from inside(node)

    for attribute in block.attributes:
        yield from inside(attribute.call)


def _shape(block: CodeBlock) -> str:
    """Return the shape of a block: equal for blocks that differ only in numbers."""

    def masked(node: Any) -> str:
        if isinstance(node, Lit):
            return "0" if _numeric(node.value) else node.text
        if isinstance(node, Name):
            return node.name
        name = node.block.name if node.block is not None else node.name
        named = (f"{key}={masked(value)}" for key, value in node.kwargs.items())
        return f"{name}({', '.join((*map(masked, node.args), *named))})"

    writer = Writer(block)
    modules = [f"{attribute.name}={masked(attribute.call)}" for attribute in block.attributes]
    return "\n".join((block.base, *modules, writer.text))


def _numeric(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_numeric, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parametrize(group: list[CodeBlock], users: dict[int, list[Construction]]) -> None:
    """Make the numbers that differ within a group parameters of its first block, and arguments of all calls."""
    first = group[0]
    rows = [[each for call in _outer(block) for each in call.literals()] for block in group]
    # Keyed by the literal: 1, 1.0 and True are equal, but not the same.
    chosen: dict[tuple[str, ...], tuple[str, tuple[Any, ...]]] = {}
    wanted: dict[tuple[str, ...], list[str]] = {}
    columns = [[literal.value for _, _, literal in column] for column in zip(*rows)]
    keys = [tuple(map(repr, values)) for values in columns]
    for key, column in zip(keys, zip(*rows)):
        if len(set(key)) > 1:
            wanted.setdefault(key, []).append(column[0][2].name)
    given = dict(zip(keys, columns))
    for key, names in wanted.items():
        name = _BOTH.get(frozenset(names[:2]), "") if len(names) > 1 else ""
        name = name or next((each for each in names if each), "size")
        taken = {each for each, _ in chosen.values()}
        number = 2
        while name in taken:
            name = f"{name.rstrip('0123456789')}{number}"
            number += 1
        chosen[key] = (name, tuple(given[key]))
    for key, column in zip(keys, zip(*rows)):
        if key in chosen:
            owner, place, _ = column[0]
            if isinstance(place, int):
                owner.args[place] = Parameter(chosen[key][0])
            else:
                owner.kwargs[place] = Parameter(chosen[key][0])
    first.parameters = {name: _annotation(values) for name, values in chosen.values()}
    for number, block in enumerate(group):
        for call in users.get(id(block), []):
            call.block = first
            call.args = [Lit(values[number], name) for name, values in chosen.values()]


def _annotation(values: tuple[Any, ...]) -> str:
    """Return the type of a parameter with these values."""
    kinds = {"tuple[int, ...]" if isinstance(value, tuple) else type(value).__name__ for value in values}
    return " | ".join(sorted(kinds))


def _outer(block: CodeBlock) -> list[Construction]:
    return [attribute.call for attribute in block.attributes]
