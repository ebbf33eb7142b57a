"""The names of the input of a class in its `forward`. An input of which only elements are used is unpacked: `a, b =
inputs`. What is used of it has a path: `(1,)` is the second element, `(1, 0)` the first one of that, if it is a list.
A block is one class of a page with the steps of its `forward`.
"""

from __future__ import annotations

import ast

from attrs import field

from ..data import define
from .code import dotted, free_variable
from .state_names import input_state_names
from .steps import CodeBlock, ElementPath

_MOST_UNPACKED = 100
"""Maximum number of elements of an input with names of their own."""
_MOST_INNER_NAMES = 16
"""Maximum number of names for the elements of one element of the input."""


@define(eq=False)
class NamedInput:
    """The input of a class with its names in `forward`.

    Attributes:
        argument: the name of the argument: `inputs` if its elements are used or it is a list, otherwise `input`.
        unpacked: the names of all its elements, `_` for one without use; empty if it is not unpacked.
        variables: the names of its elements that are used, and of those of lists that are unpacked, too, by path.
        statements: those that unpack such lists: `h, c = b`.
        in_use_until: by each of these names, the number of the last step that uses its value, or that after all steps.
    """

    argument: str
    unpacked: list[str] = field(factory=list)
    variables: dict[ElementPath, str] = field(factory=dict)
    statements: list[ast.stmt] = field(factory=list)
    in_use_until: dict[str, int] = field(factory=dict)


def named_input(block: CodeBlock, class_names: frozenset[str]) -> NamedInput:
    """Return the input of a class with its names; it is unpacked if only elements of it are used, and not very many.

    Args:
        block: the class.
        class_names: names of classes, which no variable may have.
    """
    read_paths = {ref.path for _, ref in block.links() if ref.is_in_input}
    # An empty path is the input as a whole. A damaged file may use an element that is none of the list's.
    is_read_by_element = all(path and path[0] in range(block.input_count) for path in read_paths)
    if is_read_by_element and 0 < block.input_count <= _MOST_UNPACKED:
        return _unpacked_input(block, read_paths, class_names)
    is_any_element_read = any(read_paths)
    is_plural = is_any_element_read or block.input_kind.is_list
    return NamedInput("inputs" if is_plural else "input")


def _unpacked_input(block: CodeBlock, read_paths: set[ElementPath], class_names: frozenset[str]) -> NamedInput:
    """Return the input of a class as it is unpacked, and lists in it, if these are read by their elements alone.

    Args:
        block: the class.
        read_paths: the elements of the input, and deeper ones, that are read.
        class_names: names of classes, which no variable may have.
    """
    lists = _lists_to_unpack(block, read_paths)
    used_paths = _used_paths(block, lists, read_paths)
    states = input_state_names(block)
    suggested = _suggested_names(block, lists, used_paths, states)
    named = NamedInput("inputs", variables=_free_variables(used_paths, suggested, class_names))
    for path, variable in named.variables.items():
        # A variable of a state may have the next state later. So may any variable of a class with a state, whose inputs
        # are the arguments of `forward`. Names of other inputs are given to nothing else.
        may_be_reused = block.is_stateful or suggested[path] == states.get(path)
        named.in_use_until[variable] = _last_use_of_input(block, path) if may_be_reused else len(block.steps)
    named.unpacked = [named.variables.get((index,), "_") for index in range(block.input_count)]
    for index, length in lists:
        names = [named.variables.get((index, inner), "_") for inner in range(length)]
        targets = ast.Tuple([*map(dotted, names)])
        named.statements.append(ast.Assign([targets], dotted(named.variables[index,])))
    return named


def _lists_to_unpack(block: CodeBlock, read_paths: set[ElementPath]) -> list[tuple[int, int]]:
    """Return the elements of the input that are lists to unpack: the index of each, and its number of elements."""
    if block.is_stateful:  # a state may be None, and is never unpacked
        return []
    lists = [
        (index, length)
        for index, length in block.list_lengths.items()
        if _is_only_read_by_element(index, length, read_paths)
    ]
    return sorted(lists)


def _is_only_read_by_element(index: int, length: int, read_paths: set[ElementPath]) -> bool:
    """Return whether an element of the input, a list, is used by its elements alone, and has few enough for a line.

    Args:
        index: of the list in the input.
        length: the number of its elements.
        read_paths: what is read of the input.
    """
    paths_inside = [path[1:] for path in read_paths if path[:1] == (index,)]
    if not paths_inside or length > _MOST_INNER_NAMES:
        return False
    # An empty path is the element as a whole.
    return all(path and path[0] in range(length) for path in paths_inside)


def _used_paths(block: CodeBlock, lists: list[tuple[int, int]], read_paths: set[ElementPath]) -> list[ElementPath]:
    """Return what has to have a variable: the elements of the input, and of the lists in it, that are used.

    Args:
        block: the class.
        lists: the elements of the input that are unpacked, too: the index of each, and its number of elements.
        read_paths: what is read of the input.
    """
    all_paths: list[ElementPath] = [(index,) for index in range(block.input_count)]
    for index, length in lists:
        all_paths += [(index, inner) for inner in range(length)]
    # Reading `inputs[1][0]`, path (1, 0), uses the variable of (1, 0) if list 1 is unpacked, else that of (1,); and to
    # unpack it, (1,) has to be a variable too.
    used_beginnings = {path[:1] for path in read_paths} | {path[:2] for path in read_paths}
    return [path for path in all_paths if path in used_beginnings]


def _suggested_names(
    block: CodeBlock,
    lists: list[tuple[int, int]],
    used_paths: list[ElementPath],
    states: dict[ElementPath, str],
) -> dict[ElementPath, str]:
    """Return names for what is used of the input: the user's, those of states, or x, or x1, x2, … in turn.

    Two may be the same, or not free for a variable. There may be names for elements without use, too.

    Args:
        block: the class.
        lists: the elements of the input that are unpacked, too: the index of each, and its number of elements.
        used_paths: what is used.
        states: the names of the elements that are states of cells.
    """
    names = {**states, **block.input_names}  # the user's come last, and win
    for index, length in lists:
        if all((index, inner) in states for inner in range(length)):  # a list of states and of nothing else
            names.setdefault((index,), "state")
    unnamed = [path for path in used_paths if path not in names]
    if len(unnamed) == 1:
        names[unnamed[0]] = "x"
    else:
        names.update((path, f"x{number}") for number, path in enumerate(unnamed, 1))
    return names


def _free_variables(
    used_paths: list[ElementPath], suggested: dict[ElementPath, str], class_names: frozenset[str]
) -> dict[ElementPath, str]:
    """Return a variable for each path, after the name suggested for it, that no other path and no class has."""
    variables: dict[ElementPath, str] = {}
    taken_names: set[str] = set()
    for path in used_paths:
        name = suggested[path]
        while name in taken_names or not free_variable(name, class_names):
            name += "_"
        taken_names.add(name)
        variables[path] = name
    return variables


def _last_use_of_input(block: CodeBlock, path: ElementPath) -> int:
    """Return the number of the last step that reads an element of the input, or something in it; 0 if none does."""
    steps = [number for number, ref in block.links() if ref.is_in_input and ref.path[: len(path)] == path]
    return max(steps, default=0)
