"""The names of values: of attention in a graph, of the states of recurrent cells, and of the input of a class in its
`forward`. A block is one class of a page; its steps apply modules and operations to the results of earlier steps; step
0 is its input.

Attention is a softmax whose output weighs a sum of values; its names are scores, attention and context. The numbers of
nodes are from 1; 0 is the input of the graph.

Variables are named after states: `h` and `c` of an LSTM, `h2` of `lstm2`. A step has `result_names` if its results are
states: its module is a cell, or of another class of the page with cells in it. An empty name stands for a value that is
no state.

An input of which only elements are used is unpacked: `a, b = inputs`. What is used of it has a path: `(1,)` is the
second element, `(1, 0)` the first one of that, if it is a list.
"""

from __future__ import annotations

import ast

from attrs import field

from ..data import define
from ..nn.mapping import GraphSpec, ModuleSpec
from ..nn.registry import Traits, traits_of
from .code import dotted, free_variable
from .steps import CodeBlock, ElementPath, Ref, Step, Value

# Attention in a graph

# How the layers of attention are written, in the words of their entries (`Traits.written`).
_SOFTMAX = ("softmax", "Softmax")
_MATRIX_PRODUCT = ("product",)
_PRODUCT = ("fold", "*")
_SUM = ("reduce", "sum")


def attention_names(spec: ModuleSpec, graph: GraphSpec) -> dict[int, str]:
    """Return names for outputs of nodes: what a softmax is applied to, its output, and the sum weighted with that.

    Args:
        spec: the module that is the graph.
        graph: its data flow.
    """
    nodes = _Nodes(spec, graph)
    names: dict[int, str] = {}
    for number, node in enumerate(graph.nodes, 1):
        if nodes.layers[number].written != _SOFTMAX or not node.takes:  # a damaged file may have one that takes nothing
            continue
        first_link, *_ = node.takes
        source, _path = first_link
        last_view = nodes.end_of_chain(number)  # the softmax itself if no view follows it
        for user in nodes.users.get(last_view, ()):
            if nodes.is_weighted_sum(user):
                names[source] = "scores"
                names[number] = "attention"
                # The user may only make the products, which are added up behind it.
                names[nodes.end_of_chain(user, also=_SUM)] = "context"
    return names


class _Nodes:
    """The nodes of a graph by their numbers.

    Attributes:
        layers: the traits of the layer of each node.
        users: the nodes that take the output of each node, or an element of it; a node without users has no entry.

    Args:
        spec: the module that is the graph.
        graph: its data flow.
    """

    def __init__(self, spec: ModuleSpec, graph: GraphSpec) -> None:
        self.layers: dict[int, Traits] = {}
        self.users: dict[int, list[int]] = {}
        for number, node in enumerate(graph.nodes, 1):
            self.layers[number] = traits_of(spec.children[node.module].target if node.module else "")
            for source, _ in node.takes:
                self.users.setdefault(source, []).append(number)

    def end_of_chain(self, number: int, also: tuple[str, ...] | None = None) -> int:
        """Return the last node of the chain of views behind a node, each the only user of the one before.

        Args:
            number: of the node, which is returned if there is no view.
            also: how another layer is written (`Traits.written`) that the chain goes through like a view.
        """
        while len(self.users.get(number, ())) == 1:
            (user,) = self.users[number]
            layer = self.layers[user]
            is_passed = layer.shares_memory or (also is not None and layer.written == also)
            if not is_passed:
                break
            number = user
        return number

    def is_weighted_sum(self, number: int) -> bool:
        """Return whether a node adds up values with weights: in one step, or by products that a user adds up."""
        if self.layers[number].written == _MATRIX_PRODUCT:
            return True
        is_product = self.layers[number].written == _PRODUCT
        return is_product and any(self.layers[user].written == _SUM for user in self.users.get(number, ()))


# States of recurrent cells


def name_results_of_calls(block: CodeBlock) -> None:
    """Set `result_names` of the steps that call other classes of the page, where each result can have a variable.

    The classes that are called are written, so that the names of their results are known.
    """
    used_elements = block.used_elements()
    for number, step in enumerate(block.steps):
        if step is None or step.suggested_name:
            continue
        called_class = _class_called_by(step)
        if called_class is None or not any(called_class.result_names):
            continue
        if _can_have_variables(used_elements.get(number, set()), len(called_class.result_names)):
            step.result_names = called_class.result_names


def _can_have_variables(used_elements: set[ElementPath], count: int) -> bool:
    """Return whether the results of a step can be assigned to `count` variables.

    A single result has to be used as it is; several only one by one, not as the list that the class returns, and
    counted from the front: no variable would be found for the element -1.

    Args:
        used_elements: what is used of the result: elements, as paths of one index, or the whole, the empty path.
        count: the number of results.
    """
    is_used_whole = () in used_elements
    if count == 1:
        return is_used_whole
    # A damaged file may use an element that is none of them.
    return not is_used_whole and all(index in range(count) for (index,) in used_elements)


def input_state_names(block: CodeBlock) -> dict[ElementPath, str]:
    """Return the names of the inputs of a class that are states of cells, by their paths; the first cell's, of several.

    The classes that it calls are written, so that the names of their inputs are known.
    """
    names: dict[ElementPath, str] = {}
    for step in block.steps:
        if step is None or not step.result_names:
            continue
        # A module takes a list as one operand, an expression its elements.
        first_operand = step.operands[0]
        inputs = first_operand if isinstance(first_operand, list) else step.operands
        called_class = _class_called_by(step)
        if called_class is not None:
            state_names = [called_class.state_names.get((index,), "") for index in range(len(inputs))]
        else:
            # The input of a cell is no state. After it come the states, of which the results are the next ones.
            state_names = ["", *step.result_names]
        for state_name, value in zip(state_names, inputs):
            if state_name and isinstance(value, Ref) and value.is_in_input:
                names.setdefault(value.path, numbered_state(step, state_name))
    return names


def result_state_names(block: CodeBlock) -> tuple[str, ...]:
    """Return the names of the results of a class that are states of cells.

    There is one for each element of a returned list, and one for any other result. For a list of one there is none: it
    would be taken for that of a result that is no list.
    """
    result = block.result
    if not isinstance(result, list):
        return (_name_as_state(block, result),)
    if len(result) == 1:
        return ()
    return tuple(_name_as_state(block, value) for value in result)


def _name_as_state(block: CodeBlock, value: Value) -> str:
    """Return the name of a value that a class returns, if it is a state of a cell; otherwise an empty one."""
    if not isinstance(value, Ref):
        return ""
    step = block.steps[value.step]
    if step is None or not step.result_names:
        return ""
    if len(step.result_names) == 1:
        # The state is the whole result of the step; an element of it has no name.
        (state_name,) = step.result_names
        return "" if value.path else numbered_state(step, state_name)
    # The result of the step is a list with a state in each place.
    if len(value.path) != 1:
        return ""
    (index,) = value.path
    return numbered_state(step, step.result_names[int(index)])


def numbered_state(step: Step, state_name: str) -> str:
    """Return the name of a state with the number of the step's module, if that has one: `h2` of `lstm2`.

    A name that ends with a number, as that of a state of another class may, stays as it is.
    """
    if not state_name or state_name[-1].isdigit():
        return state_name
    module_name = step.attribute.name if step.attribute is not None else ""
    number = module_name[len(module_name.rstrip("0123456789")) :]
    return state_name + number


def _class_called_by(step: Step) -> CodeBlock | None:
    """Return the class of the page that a step calls with a list of values; `None` if it does anything else."""
    module = step.called_module
    if module is None or len(module.constructions) != 1:
        return None
    if len(step.operands) != 1 or not isinstance(step.operands[0], list):
        return None
    block: CodeBlock | None = module.construction.block
    return block


# The input of a class

_MOST_UNPACKED = 100
"""Maximum number of elements of an input with names of their own."""
_MOST_INNER_NAMES = 16
"""Maximum number of names for the elements of one element of the input."""


@define(eq=False)
class NamedInput:
    """The input of a class with its names in `forward`.

    Attributes:
        is_plural: whether elements of it are used, or it is a list.
        unpacked: the names of all its elements, `_` for one without use; empty if it is not unpacked.
        variables: the names of its elements that are used, and of those of lists that are unpacked, too, by path.
        statements: those that unpack such lists: `h, c = b`.
        in_use_until: by each of these names, the number of the last step that uses its value, or that after all steps.
    """

    is_plural: bool
    unpacked: list[str] = field(factory=list)
    variables: dict[ElementPath, str] = field(factory=dict)
    statements: list[ast.stmt] = field(factory=list)
    in_use_until: dict[str, int] = field(factory=dict)

    @property
    def argument(self) -> str:
        """The name of the argument."""
        return "inputs" if self.is_plural else "input"


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
    return NamedInput(is_plural=is_any_element_read or block.input_kind.is_list)


def _unpacked_input(block: CodeBlock, read_paths: set[ElementPath], class_names: frozenset[str]) -> NamedInput:
    """Return the input of a class as it is unpacked, and lists in it, if these are read by their elements alone.

    Args:
        block: the class.
        read_paths: the elements of the input, and deeper ones, that are read.
        class_names: names of classes, which no variable may have.
    """
    inner_lengths = _lengths_of_lists_to_unpack(block, read_paths)
    used_paths = _used_paths(block, inner_lengths, read_paths)
    states = input_state_names(block)
    suggested = _suggested_names(block, inner_lengths, used_paths, states)
    named = NamedInput(is_plural=True, variables=_free_variables(used_paths, suggested, class_names))
    for path, variable in named.variables.items():
        # A variable of a state may have the next state later. So may any variable of a class with a state, whose inputs
        # are the arguments of `forward`. Names of other inputs are given to nothing else.
        may_be_reused = block.is_stateful or suggested[path] == states.get(path)
        named.in_use_until[variable] = _last_use_of_input(block, path) if may_be_reused else len(block.steps)
    named.unpacked = [named.variables.get((index,), "_") for index in range(block.input_count)]
    for index, length in inner_lengths.items():
        names = [named.variables.get((index, inner), "_") for inner in range(length)]
        targets = ast.Tuple([*map(dotted, names)])
        named.statements.append(ast.Assign([targets], dotted(named.variables[index,])))
    return named


def _lengths_of_lists_to_unpack(block: CodeBlock, read_paths: set[ElementPath]) -> dict[int, int]:
    """Return the lengths of the lists in the input that are to be unpacked, too, by their indices in it, in order."""
    if block.is_stateful:  # a state may be None, and is never unpacked
        return {}
    lengths: dict[int, int] = {}
    for index, length in sorted(block.list_lengths.items()):
        if _is_only_read_by_element(index, length, read_paths):
            lengths[index] = length
    return lengths


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


def _used_paths(block: CodeBlock, inner_lengths: dict[int, int], read_paths: set[ElementPath]) -> list[ElementPath]:
    """Return what has to have a variable: the elements of the input, and of the lists in it, that are used.

    Args:
        block: the class.
        inner_lengths: the lengths of the lists in the input that are unpacked, too, by their indices in it.
        read_paths: what is read of the input.
    """
    all_paths: list[ElementPath] = [(index,) for index in range(block.input_count)]
    for index, length in inner_lengths.items():
        all_paths += [(index, inner) for inner in range(length)]
    # Reading `inputs[1][0]`, path (1, 0), uses the variable of (1, 0) if list 1 is unpacked, else that of (1,); and to
    # unpack it, (1,) has to be a variable too.
    used_beginnings = {path[:1] for path in read_paths} | {path[:2] for path in read_paths}
    return [path for path in all_paths if path in used_beginnings]


def _suggested_names(
    block: CodeBlock,
    inner_lengths: dict[int, int],
    used_paths: list[ElementPath],
    states: dict[ElementPath, str],
) -> dict[ElementPath, str]:
    """Return names for what is used of the input: the user's, those of states, or x, or x1, x2, … in turn.

    Two may be the same, or not free for a variable. There may be names for elements without use, too.

    Args:
        block: the class.
        inner_lengths: the lengths of the lists in the input that are unpacked, too, by their indices in it.
        used_paths: what is used.
        states: the names of the elements that are states of cells.
    """
    names = {**states, **block.input_names}  # the user's come last, and win
    for index, length in inner_lengths.items():
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
