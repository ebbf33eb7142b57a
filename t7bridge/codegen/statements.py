"""Steps become the statements of a `forward`. A step applies a module or an operation to the results of earlier steps;
step 0 is the input of the class. A value that is used once stays an expression, which is pending until the statement
that uses it is written, unless that statement would become too long. A block is one class of a page with its steps.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from ..errors import LimitError
from .code import WIDTH, apply, attribute, dotted, expression, free_variable, lines, names_in, text_of
from .names import input_state_names, name_results_of_calls, named_input, numbered_state, result_state_names
from .steps import GATES, INPUT, PARTS, CodeBlock, ElementPath, Ref, SharedMemory, Step, Value, refs

_MOST_LETTERS = WIDTH - 24
"""Maximum length of an expression with inlined operands: of a line, less its indentation and a variable."""
_SHORT_OPERAND = 12
"""Length of an operand that would hardly become shorter by a variable, such as `self.conv(x)`."""
_MOST_VARIABLES = 1000
"""Maximum number of values of one `forward` that wait for their last use."""
_MOST_LISTS_OF_PARTS = 100
"""Maximum number of values named `parts` or `gates` with a number; further ones are named as any value."""
_VARIABLES = ["x", "y", "z", *(f"x{at}" for at in range(1, _MOST_VARIABLES))]
"""Names of values without one of their own."""


class _Variables:
    """The variables of one `forward`, each of which may have the values of several steps, one after another.

    A variable is free for the result of a step if nothing after that step uses its present value, and no pending
    expression reads it.

    Args:
        block: the class.
        class_names: names of classes, which no variable may have.
        in_use_until: by the names of the input, the last step that uses the value of each.
    """

    def __init__(self, block: CodeBlock, class_names: frozenset[str], in_use_until: dict[str, int]) -> None:
        self._block = block
        self._class_names = class_names
        self._in_use_until = dict(in_use_until)
        """By each variable, the last step that uses its present value."""
        self._pending_reads: Counter[str] = Counter()
        """Number of pending expressions that read a variable."""

    def begin_reading(self, names: set[str]) -> None:
        """Note that an expression is pending that reads these variables."""
        self._pending_reads.update(names)

    def end_reading(self, names: set[str]) -> None:
        """Note that an expression that reads these variables is not pending any more."""
        self._pending_reads.subtract(names)

    def take(self, choices: Iterable[str], number: int, until: int) -> str:
        """Return the first of several names that the result of a step can have, in use from now on.

        Args:
            choices: the names, the best first.
            number: of the step.
            until: the last step that uses the result.

        Raises:
            LimitError: all are in use.
        """
        for name in choices:
            if self._is_free(name, number):
                self._in_use_until[name] = until
                return name
        raise LimitError(
            f"a forward method with more than {_MOST_VARIABLES} values at a time cannot be written",
            path=self._block.spec.path,
        )

    def _is_free(self, name: str, number: int) -> bool:
        """Return whether the result of a step, given by its number, can have a name."""
        if self._in_use_until.get(name, 0) > number or self._pending_reads[name]:
            return False
        return free_variable(name, self._class_names)


class Writer:
    """Turns the steps of a class into the statements of its `forward`, when it is constructed.

    Args:
        block: the class, after `tidy`; the names of its states (`state_names`, `result_names`) are set, after which the
            writers of classes that call this one name what they pass to it and what it returns.
        class_names: names of the classes of the page, which no variable may have.

    Attributes:
        input: the input with its names.
        statements: the statements, without that which unpacks the input (`a, b = inputs`).
    """

    def __init__(self, block: CodeBlock, class_names: frozenset[str] = frozenset()) -> None:
        """Write the statements, and set the names of the class's states; see the class."""
        name_results_of_calls(block)  # first: a state in the input is named after the result that it becomes
        self.input = named_input(block, class_names)
        self.statements = [*self.input.statements]
        self._block = block
        self._shared_memory = SharedMemory(block)
        self._last_use = block.last_uses()
        self._used_elements = block.used_elements()
        self._variables = _Variables(block, class_names, self.input.in_use_until)
        self._element_variables: dict[Ref, str] = {}
        """The variables of elements of the input that is unpacked, and of results of recurrent layers."""
        self._expressions: dict[int, ast.expr] = {}
        """The expression for the result of each step that is written: its variable, or a longer one while pending."""
        self._pending: dict[int, set[str]] = {}
        """Steps whose values have no variable yet → the names in their expressions."""
        self._write_all()
        block.state_names = input_state_names(block)
        block.result_names = result_state_names(block)

    def _write_all(self) -> None:
        """Add the statements of all steps, and `return`, to those that unpack lists in the input."""
        if self.input.unpacked:
            for path, variable in self.input.variables.items():
                self._element_variables[Ref(INPUT.step, path)] = variable
        else:
            self._expressions[INPUT.step] = ast.Name(self.input.argument)
        for number, step in enumerate(self._block.steps):
            if number and step is not None:  # step 0 is the input
                self._write(number, step)
        self.statements.append(ast.Return(self._result()))

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
        return "\n".join((*lines_of_statements, *self.input.unpacked, further, self.input.argument))

    def reads(self, name: str) -> bool:
        """Return whether a variable is used in the statements."""
        return any(name in names_in(statement) for statement in self.statements)

    def _write(self, number: int, step: Step) -> None:
        """Write a step: as an assignment, or as an expression to be part of a later statement (`_pending`).

        Args:
            number: of the step.
            step: the step.
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
        is_used = number in self._last_use
        if step.result_names:
            self._assign_results(number, step, node)
        elif is_used:
            self._begin_pending(number, node)
            # What is used twice is computed once; a change has to be made at once.
            is_used_again = self._shared_memory.uses[number] > 1
            if is_used_again or _needs_name(step) or changes_shared_memory:
                self._assign_variable(number)
        elif _computes(node):
            # Nothing uses its value, but Lua runs it: it may refuse an input, draw random numbers, update statistics.
            is_call = isinstance(node, ast.Call)
            self.statements.append(ast.Expr(node) if is_call else ast.Assign([ast.Name("_")], node))

    def _begin_pending(self, number: int, node: ast.expr) -> None:
        """Note the expression of a step, given by its number, that has no variable yet."""
        self._expressions[number] = node
        self._pending[number] = names_in(node)
        self._variables.begin_reading(self._pending[number])

    def _end_pending(self, number: int) -> None:
        """Note that a value is no longer pending: it is part of another expression now, or has a variable."""
        if number in self._pending:
            self._variables.end_reading(self._pending.pop(number))

    def _assign_results(self, number: int, step: Step, node: ast.expr) -> None:
        """Assign the results of a recurrent layer to a variable each, those without use to `_`.

        Args:
            number: of the step.
            step: the step.
            node: its expression.
        """
        used_elements = self._used_elements.get(number, set())
        # A single result is the whole; of several, the whole is never used (`name_results_of_calls`).
        is_single = len(step.result_names) == 1
        variables: list[str] = []
        for index, state_name in enumerate(step.result_names):
            is_used = bool(used_elements) if is_single else (index,) in used_elements
            if not is_used:
                variables.append("_")
                continue
            choices = _choices_for_state(numbered_state(step, state_name)) if state_name else _VARIABLES
            # In use as long as any of the results is.
            variable = self._variables.take(choices, number, until=self._last_use[number])
            variables.append(variable)
            self._element_variables[Ref(number, () if is_single else (index,))] = variable
        targets = [dotted(variable) for variable in variables]
        self.statements.append(ast.Assign([targets[0] if is_single else ast.Tuple(targets)], node))

    def _expression_of_step(self, step: Step) -> ast.expr:
        """Return the expression of a step, after as many operands got variables, the longest first, as make it short.

        Operands of few letters are always part of the expression, which may stay too long.
        """
        lengths: dict[int, int] = {}
        """The lengths of the pending operands, by the numbers of their steps."""
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
        node, path = self._longest_part_with_expression(value)
        for index in path:
            node = ast.Subscript(node, expression(index))
        return node

    def _longest_part_with_expression(self, ref: Ref) -> tuple[ast.expr, ElementPath]:
        """Return the expression of an element, or of the smallest value around it with one, and the path from there.

        An element of a list in the input may have a variable, an element of a result, or the result as a whole.
        """
        for length in (2, 1, 0):
            variable = self._element_variables.get(Ref(ref.step, ref.path[:length]))
            if variable is not None:
                return dotted(variable), ref.path[length:]
        return self._expressions[ref.step], ref.path

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
        name = self._variables.take(choices, number, until=self._last_use[number])
        self.statements.append(ast.Assign([dotted(name)], self._expressions[number]))
        self._expressions[number] = dotted(name)


def _computes(node: ast.expr) -> bool:
    """Return whether an expression calls a function or computes, and does more than pick elements of lists."""
    return any(isinstance(part, (ast.Call, ast.BinOp, ast.UnaryOp)) for part in ast.walk(node))


def _needs_name(step: Step) -> bool:
    """Return whether the value of a step needs a variable for its name: not if its module has the same."""
    has_name = step.suggested_name != ""
    return has_name and (step.attribute is None or step.attribute.name != step.suggested_name)


def _choices_for_state(state: str) -> Iterator[str]:
    """Yield names for the next value of a state, the best first: `h`, `next_h`, `h_2`, `h_3`, …"""
    yield state
    yield f"next_{state}"
    for number in range(2, _MOST_VARIABLES):
        yield f"{state}_{number}"
