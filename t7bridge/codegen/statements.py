"""Steps become statements: chains become Sequentials, values used once are inlined, equal classes are one. A step
applies a module or an operation to the results of earlier steps; step 0 is the input of the class. A block is one class
with its steps and modules, a construction the call that makes a module.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from ..errors import LimitError
from .code import (
    WIDTH,
    applied,
    apply,
    attribute,
    dotted,
    expression,
    free_variable,
    lines,
    names_in,
    text_of,
)
from .steps import GATES, INPUT, PARTS, CodeBlock, ElementPath, Ref, Step, Value, refs
from .tidy import SharedMemory

_MOST_LETTERS = WIDTH - 24
"""Maximum length of an expression with inlined operands: of a line, less its indentation and a variable."""
_SHORT_OPERAND = 12
"""Length of an operand that would hardly become shorter by a variable, such as `self.conv(x)`."""
_MOST_UNPACKED = 100
"""Maximum number of elements of an input with names of their own."""
_MOST_INNER_NAMES = 16
"""Maximum number of names for the elements of one element of the input."""
_MOST_VARIABLES = 1000
"""Maximum number of values of one `forward` that wait for their last use."""
_MOST_LISTS_OF_PARTS = 100
"""Maximum number of values named `parts` or `gates` with a number; further ones are named as any value."""
_VARIABLES = ["x", "y", "z", *(f"x{at}" for at in range(1, _MOST_VARIABLES))]
"""Names of values without one of their own."""


def _needs_name(step: Step) -> bool:
    """Return whether the value of a step needs a variable for its name: not if its module has the same."""
    has_name = step.suggested_name != ""
    return has_name and (step.attribute is None or step.attribute.name != step.suggested_name)


def _class_called_by(step: Step) -> CodeBlock | None:
    """Return the class of the page that a step calls with a list of values; `None` if it does anything else."""
    if step.attribute is None or len(step.attribute.calls) != 1 or step.write is not applied:
        return None
    if len(step.operands) != 1 or not isinstance(step.operands[0], list):
        return None
    block: CodeBlock | None = step.attribute.call.block
    return block


class Writer:
    """Turns the steps of a class into the statements of its `forward`, with names for values.

    A value that is used once stays an expression, which is pending until the statement that uses it is written, unless
    that statement would become too long. All is done when it is constructed.

    Args:
        block: the class; the names of its states (`state_names`, `result_names`) are set.
        class_names: names of the classes of the page, which no variable may have.

    Attributes:
        source: the name of the argument: `inputs` if its elements are used or it is a list, otherwise `input`.
        unpacked: the names of the elements of the input, if only they are used; empty if it is not unpacked.
        statements: the statements, without that which unpacks the input (`a, b = inputs`).
    """

    def __init__(self, block: CodeBlock, class_names: frozenset[str] = frozenset()) -> None:
        """Write the statements, and set the names of the class's states for the writers of classes that call it."""
        self._block = block
        self._class_names = class_names
        self._shared_memory = SharedMemory(block)
        self._uses = self._shared_memory.uses
        self._last_use: dict[int, int] = {}
        """The last step that uses the value of each step; the number after all steps if the class returns it."""
        self._used_elements: dict[int, set[ElementPath]] = {}
        """What is used of the result of each step: elements, as paths of one index, or the whole, the empty path."""
        for number, ref in block.links():  # in the order of the steps
            self._last_use[ref.step] = number
            self._used_elements.setdefault(ref.step, set()).add(ref.path[:1])
        self._expressions: dict[int, ast.expr] = {}
        """The expression for the result of each step that is written: its variable, or a longer one while pending."""
        self._pending: dict[int, set[str]] = {}
        """Steps whose values have no variable yet → the names in their expressions."""
        self._pending_reads: Counter[str] = Counter()
        """Number of pending expressions that read a variable."""
        self._in_use_until: dict[str, int] = {}
        """Variable → the last step that uses its value; for another value it is free from there on."""
        self._result_variables: dict[int, list[str]] = {}
        """The variables of the results of recurrent layers, by the number of the step; `_` for one without use."""
        self._input_variables: dict[ElementPath, str] = {}
        """Paths of elements of the input, if these have names, and of their elements → variables."""
        self.source = "input"
        self.unpacked: list[str] = []
        self.statements: list[ast.stmt] = []
        self._write_all()

    def _write_all(self) -> None:
        """Set `source`, `unpacked` and `statements`, and in the class, the names of its states."""
        # Before the input: a state in it is named after the result that it becomes.
        self._name_results_of_calls()
        self.unpacked = self._unpack_input()
        for number, step in enumerate(self._block.steps):
            if number and step is not None:  # step 0 is the input
                self._write(number, step)
        self.statements.append(ast.Return(self._result()))
        # By these, the writers of classes that call this one name what they pass to it and what it returns.
        self._block.state_names = self._input_state_names()
        self._block.result_names = self._result_state_names()

    def _result(self) -> ast.expr:
        """Return the expression after `return`: a tuple in a class with a state, else what Lua's module returns."""
        result = self._block.result
        node = self._expression_of_value(result)
        if isinstance(result, Ref) and not result.path:
            step = self._block.steps[result.step]
            # A step with a form of elements is an `unbind`, which returns a tuple, and Lua's module a list.
            if step is not None and step.element_form is not None:
                return apply("list", node)
        # As layers of torch.nn return their output and state.
        if self._block.is_stateful and isinstance(node, ast.List):
            return ast.Tuple(node.elts)
        return node

    def text(self) -> str:
        """Return the names and statements as text, equal for classes whose `forward` is the same."""
        lines_of_statements = [line for statement in self.statements for line in lines(statement, 0)]
        further = "*_" if self._block.ignores_further_inputs else ""
        return "\n".join((*lines_of_statements, *self.unpacked, further, self.source))

    def reads(self, name: str) -> bool:
        """Return whether a variable is used in the statements."""
        return any(name in names_in(statement) for statement in self.statements)

    def _unpack_input(self) -> list[str]:
        """Give the elements of the input variables, if it is used in no other way: `a, b = inputs`.

        `source` is set, and if the input is not unpacked, its expression: an element is then written `inputs[0]`.

        Returns:
            The names of all elements, `_` for one without use; empty if the input is not unpacked.
        """
        block = self._block
        read_paths = {ref.path for _, ref in block.links() if ref.is_in_input}
        is_any_element_read = any(read_paths)  # an empty path is the input as a whole
        # A damaged file may use an element that is none of the list's.
        is_read_by_element = all(path and path[0] in range(block.input_count) for path in read_paths)
        is_unpacked = is_read_by_element and 0 < block.input_count <= _MOST_UNPACKED
        if is_unpacked or is_any_element_read or block.input_kind.is_list:
            self.source = "inputs"  # "input" until here
        if not is_unpacked:
            self._expressions[INPUT.step] = ast.Name(self.source)
            return []
        self._unpack_elements(read_paths)
        return [self._input_variables.get((index,), "_") for index in range(block.input_count)]

    def _unpack_elements(self, read_paths: set[ElementPath]) -> None:
        """Set the variables of what is read of the input, and add a statement for each list in it: `h, c = b`.

        Args:
            read_paths: the elements of the input, and deeper ones, that are read.
        """
        lists = self._lists_to_unpack(read_paths)
        all_paths: list[ElementPath] = [(index,) for index in range(self._block.input_count)]
        for index, length in lists:
            all_paths += [(index, inner) for inner in range(length)]
        # Reading `inputs[1][0]`, path (1, 0), uses the variable of (1, 0) if list 1 is unpacked, else that of (1,); and
        # to unpack it, (1,) has to be a variable too.
        used_beginnings = {path[:1] for path in read_paths} | {path[:2] for path in read_paths}
        used_paths = [path for path in all_paths if path in used_beginnings]
        self._name_inputs(used_paths, all_paths, self._input_state_names())
        for index, length in lists:
            self._unpack_list(index, length)

    def _unpack_list(self, index: int, length: int) -> None:
        """Add the statement that unpacks an element of the input, which has a variable: `h, c = b`.

        Args:
            index: of the element in the input.
            length: number of its elements; those without use become `_`.
        """
        names = [self._input_variables.get((index, inner), "_") for inner in range(length)]
        targets = ast.Tuple([*map(dotted, names)])
        self.statements.append(ast.Assign([targets], dotted(self._input_variables[index,])))

    def _lists_to_unpack(self, paths: set[ElementPath]) -> list[tuple[int, int]]:
        """Return the elements of the input that are lists to unpack: the index of each, and its number of elements.

        Args:
            paths: those of the input that are read.
        """
        if self._block.is_stateful:  # a state may be None, and is never unpacked
            return []
        lists = [
            (index, length)
            for index, length in self._block.list_lengths.items()
            if self._is_only_read_by_element(index, length, paths)
        ]
        return sorted(lists)

    def _is_only_read_by_element(self, index: int, length: int, paths: set[ElementPath]) -> bool:
        """Return whether an element of the input, a list, is used by its elements alone, and has few enough for a line.

        Args:
            index: of the list in the input.
            length: the number of its elements.
            paths: those of the input that are read.
        """
        paths_inside = [path[1:] for path in paths if path[:1] == (index,)]
        if not paths_inside or length > _MOST_INNER_NAMES:
            return False
        # An empty path is the element as a whole.
        return all(path and path[0] in range(length) for path in paths_inside)

    def _name_inputs(
        self, used_paths: list[ElementPath], all_paths: list[ElementPath], states: dict[ElementPath, str]
    ) -> None:
        """Give what is used of the input its variables, and note how long they are in use.

        Args:
            used_paths: the elements of the input, and of lists in it, that are used.
            all_paths: all elements of the input, and of lists in it.
            states: the names of those that are states of cells.
        """
        names = self._names_of_inputs(used_paths, all_paths, states)
        for path in used_paths:
            name = names[path]
            # The next state may have the name of the last one, as may any value of a class with a state, whose inputs
            # are arguments; other inputs keep theirs to the end.
            may_be_reused = self._block.is_stateful or name == states.get(path)
            while name in self._input_variables.values() or not free_variable(name, self._class_names):
                name += "_"
            self._input_variables[path] = name
            self._in_use_until[name] = self._last_use_of_input(path) if may_be_reused else len(self._block.steps)

    def _names_of_inputs(
        self, used_paths: list[ElementPath], all_paths: list[ElementPath], states: dict[ElementPath, str]
    ) -> dict[ElementPath, str]:
        """Return names for what is used of the input: the user's, by its use in cells, or x, or x1, x2, … in turn.

        Two may be the same, or reserved: `_name_inputs` changes these. There may be names for other elements, too.

        Args:
            used_paths: the elements of the input, and of lists in it, that are used.
            all_paths: all elements of the input, and of lists in it.
            states: the names of those that are states of cells.
        """
        names = {**states, **self._block.input_names}  # the user's come last, and win
        elements_of_lists: dict[ElementPath, list[ElementPath]] = {}
        for path in all_paths:
            if len(path) == 2:
                elements_of_lists.setdefault(path[:1], []).append(path)
        for path_of_list, elements in elements_of_lists.items():
            if all(element in states for element in elements):  # a list of states and of nothing else
                names.setdefault(path_of_list, "state")
        unnamed = [path for path in used_paths if path not in names]
        if len(unnamed) == 1:
            names[unnamed[0]] = "x"
        else:
            names.update((path, f"x{number}") for number, path in enumerate(unnamed, 1))
        return names

    def _input_variable(self, path: ElementPath) -> tuple[ast.expr, ElementPath]:
        """Return the variable of the longest beginning of a path in the unpacked input, and the rest of the path."""
        size = 2 if path[:2] in self._input_variables else 1  # 2 in a list that is unpacked, too
        return dotted(self._input_variables[path[:size]]), path[size:]

    def _input_state_names(self) -> dict[ElementPath, str]:
        """Return the names of the inputs that are states of cells, by their paths; the first cell names its state."""
        names: dict[ElementPath, str] = {}
        for step in self._block.steps:
            if step is None or not step.result_names:  # no cell, and no class with any
                continue
            # A module takes a list as one operand, an expression its elements.
            first_operand = step.operands[0]
            operands = first_operand if isinstance(first_operand, list) else step.operands
            called_class = _class_called_by(step)
            if called_class is not None:
                # Known, as classes that others contain are written first.
                state_names = [called_class.state_names.get((index,), "") for index in range(len(operands))]
            else:
                # The input of a cell, then its states, of which it returns the next ones.
                state_names = ["", *step.result_names]
            for state_name, value in zip(state_names, operands):
                if state_name and isinstance(value, Ref) and value.is_in_input:
                    names.setdefault(value.path, self._numbered_state(step, state_name))
        return names

    def _name_results_of_calls(self) -> None:
        """Give results of other classes that are states of cells names of their own, where each can have a variable."""
        for number, step in enumerate(self._block.steps):
            if step is None or step.suggested_name:
                continue
            called_class = _class_called_by(step)
            if called_class is None or not any(called_class.result_names):
                continue
            if self._can_have_variables(number, len(called_class.result_names)):
                step.result_names = called_class.result_names

    def _can_have_variables(self, number: int, count: int) -> bool:
        """Return whether the results of a step, given by its number, can be assigned to as many variables.

        A single result has to be used as it is; several only one by one, not as the list that the class returns, and
        counted from the front: no variable would be found for the element -1.
        """
        used_elements = self._used_elements.get(number, set())
        is_used_whole = () in used_elements
        if count == 1:
            return is_used_whole
        # A damaged file may use an element that is none of them.
        return not is_used_whole and all(index in range(count) for (index,) in used_elements)

    def _result_state_names(self) -> tuple[str, ...]:
        """Return the names of the results that are states of cells, empty for other results.

        There is one for each element of a returned list, and one for any other result. For a list of one there is none:
        it would be taken for that of a result that is no list.
        """
        result = self._block.result
        if not isinstance(result, list):
            return (self._name_as_state(result),)
        if len(result) == 1:
            return ()
        return tuple(map(self._name_as_state, result))

    def _name_as_state(self, value: Value) -> str:
        """Return the name of a value that the class returns, if it is a state of a cell; otherwise an empty one."""
        if not isinstance(value, Ref):
            return ""
        step = self._block.steps[value.step]
        if step is None or not step.result_names:
            return ""
        if len(step.result_names) == 1:
            # The state is the whole result of the step; an element of it has no name.
            (state_name,) = step.result_names
            return "" if value.path else self._numbered_state(step, state_name)
        # The result of the step is a list with a state in each place.
        if len(value.path) != 1:
            return ""
        (index,) = value.path
        return self._numbered_state(step, step.result_names[int(index)])

    def _numbered_state(self, step: Step, state_name: str) -> str:
        """Return the name of a state of a cell, with the number of its module: `h2` of `lstm2`.

        The name of a state of a class, which contains cells, may have a number already.
        """
        if not state_name or state_name[-1].isdigit():
            return state_name
        module_name = step.attribute.name if step.attribute is not None else ""
        number = module_name[len(module_name.rstrip("0123456789")) :]
        return state_name + number

    def _last_use_of_input(self, path: ElementPath) -> int:
        """Return the number of the last step that reads an element of the input; 0 if none does.

        Args:
            path: of the element.
        """
        # A longer path leads into the element.
        steps = [number for number, ref in self._block.links() if ref.is_in_input and ref.path[: len(path)] == path]
        return max(steps, default=0)

    def _write(self, number: int, step: Step) -> None:
        """Write a step: as an assignment, or as an expression to be part of a later statement (`_pending`).

        Args:
            number: of the step.
            step: the step; after `tidy`.
        """
        changes_shared_memory = self._shared_memory.is_changed_by(step)
        if changes_shared_memory:
            # What was read before the change must be computed before it.
            for pending in list(self._pending):
                self._assign_variable(pending)
        node = self._expression_of_step(step)
        # The expressions of the operands are parts of this one now.
        for ref in refs(step.operands):
            self._end_pending(ref.step)
        if step.result_names:
            self._assign_results(number, step, node)
        elif number in self._uses:
            self._begin_pending(number, node)
            # A change has to be made at once.
            if self._uses[number] > 1 or _needs_name(step) or changes_shared_memory:
                self._assign_variable(number)
        elif changes_shared_memory:  # without a use of its value
            self.statements.append(ast.Expr(node))

    def _begin_pending(self, number: int, node: ast.expr) -> None:
        """Note the expression of a step, given by its number, that has no variable yet."""
        self._expressions[number] = node
        self._pending[number] = names_in(node)
        self._pending_reads.update(self._pending[number])

    def _assign_results(self, number: int, step: Step, node: ast.expr) -> None:
        """Assign the results of a recurrent layer to a variable each, those without use to `_`.

        Args:
            number: of the step.
            step: the step.
            node: its expression.
        """
        used_elements = self._used_elements.get(number, set())
        is_used_whole = () in used_elements  # an only result, which is no list
        variables: list[str] = []
        for index, state_name in enumerate(step.result_names):
            if not is_used_whole and (index,) not in used_elements:
                variables.append("_")
                continue
            choices: Iterable[str] = _VARIABLES
            if state_name:
                choices = self._choices_for_state(self._numbered_state(step, state_name))
            variable = self._first_free(choices, number)
            variables.append(variable)
            # As long as any of the results is used.
            self._in_use_until[variable] = self._last_use[number]
        self._result_variables[number] = variables
        targets = [dotted(variable) for variable in variables]
        self.statements.append(ast.Assign([ast.Tuple(targets) if len(targets) > 1 else targets[0]], node))

    def _choices_for_state(self, state: str) -> Iterator[str]:
        """Yield names for the next value of a state, the best first: `h`, `next_h`, `h_2`, `h_3`, …"""
        yield state
        yield f"next_{state}"
        for number in range(2, _MOST_VARIABLES):
            yield f"{state}_{number}"

    def _end_pending(self, number: int) -> None:
        """Note that a value is no longer pending: it is part of another expression now, or has a variable."""
        if number in self._pending:
            self._pending_reads.subtract(self._pending.pop(number))

    def _expression_of_step(self, step: Step) -> ast.expr:
        """Return the expression of a step, after as many operands got variables, the longest first, as make it short.

        Operands of few letters are always part of the expression, which may stay too long.
        """
        lengths: dict[int, int] = {}
        """The lengths of the operands that have no variables, by the numbers of their steps."""
        for ref in refs(step.operands):
            if ref.step in self._pending:
                lengths[ref.step] = len(text_of(self._expressions[ref.step]))
        long_operands = [operand for operand, length in lengths.items() if length > _SHORT_OPERAND]
        letters_of_operands = sum(lengths.values())
        for operand in sorted(long_operands, key=lambda operand: -lengths[operand]):
            # The text is only made, to measure it, where the operands alone are short enough: there may be very many.
            if letters_of_operands <= _MOST_LETTERS:
                node = self._with_operands(step)
                if len(text_of(node)) <= _MOST_LETTERS:
                    return node
            self._assign_variable(operand)
            letters_of_operands -= lengths[operand]
        return self._with_operands(step)

    def _with_operands(self, step: Step) -> ast.expr:
        """Return the expression of a step from those of its module and operands."""
        operands = [self._expression_of_value(operand) for operand in step.operands]
        if step.attribute is not None:
            operands.insert(0, attribute(ast.Name("self"), step.attribute.name))
        return step.write(*operands)

    def _expression_of_value(self, value: Value) -> ast.expr:
        """Return the expression of a value: a variable, an element of one, or a pending expression."""
        if isinstance(value, list):
            return ast.List([*map(self._expression_of_value, value)])
        result_variables = self._result_variables.get(value.step, [])
        if value.is_in_input and self.unpacked:
            node, path = self._input_variable(value.path)
        elif len(result_variables) > 1:  # each element of the result has one, so that the whole is never used
            index_of_result, *path_in_result = value.path
            node = dotted(result_variables[int(index_of_result)])
            path = tuple(path_in_result)
        elif result_variables:
            node = dotted(result_variables[0])
            path = value.path
        else:
            node = self._expressions[value.step]
            path = value.path
        for index in path:
            node = ast.Subscript(node, expression(index))
        return node

    def _is_free(self, name: str, number: int) -> bool:
        """Return whether the result of a step, given by its number, can have a name."""
        if self._in_use_until.get(name, 0) > number or self._pending_reads[name]:
            return False
        return free_variable(name, self._class_names)

    def _first_free(self, choices: Iterable[str], number: int) -> str:
        """Return the first of several names that the result of a step can have.

        Args:
            choices: the names, the best first.
            number: of the step.

        Raises:
            LimitError: all are in use.
        """
        for name in choices:
            if self._is_free(name, number):
                return name
        raise LimitError(
            f"a forward method with more than {_MOST_VARIABLES} values at a time cannot be written",
            path=self._block.spec.path,
        )

    def _assign_variable(self, number: int) -> None:
        """Assign a pending value to a variable: with the user's name, or x, y, z, x1, … in turn.

        Args:
            number: of the step whose value it is; some step uses it.
        """
        step = self._block.steps[number]
        assert step is not None
        # First, so that its own expression does not keep its variable from being used again: `x = f(x)`.
        self._end_pending(number)
        choices = [step.suggested_name] if step.suggested_name else []
        if step.suggested_name in (PARTS, GATES):
            # These are suggested for each value of their kind, others once.
            choices += [f"{step.suggested_name}{suffix}" for suffix in range(2, _MOST_LISTS_OF_PARTS)]
        choices += _VARIABLES
        name = self._first_free(choices, number)
        self._in_use_until[name] = self._last_use[number]
        self.statements.append(ast.Assign([dotted(name)], self._expressions[number]))
        self._expressions[number] = dotted(name)
