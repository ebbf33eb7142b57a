"""Steps become statements: chains become Sequentials, values used once are inlined, equal classes are one."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from ..data import define
from ..errors import LimitError
from ..nn.graphs import is_free_name
from .code import (
    WIDTH,
    Construction,
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
from .steps import Attribute, CodeBlock, ElementPath, Ref, Step, Value, refs

_TEXT = WIDTH - 24
"""Maximum length of an expression with inlined operands."""
_MOST_INNER = 16
"""Maximum number of names for the elements of one element of the input."""
_MOST_VARIABLES = 1000
"""Maximum number of values of one `forward` that wait for their last use."""
_VARIABLES = ["x", "y", "z", *(f"x{at}" for at in range(1, _MOST_VARIABLES))]
"""Names of values without one of their own."""


# Chains and names


def tidy(block: CodeBlock) -> None:
    """Join chains of modules, replace stateless modules by functions, and name the modules."""
    _name_gates(block)
    exposed = _Exposed(block)
    # In-place layers whose writing nobody sees become expressions first: then they are no barriers between chains.
    for step in block.steps:
        if step and step.unseen and step.attribute and not step.attribute.own and not exposed.seen_in(step):
            step.write = step.unseen
            step.attribute = None
            step.inplace = False
            step.same = False
    _join_chains(block)
    # Functions replace only what is left alone: in a chain, a module reads better.
    for step in block.steps:
        if step and step.function and step.attribute and len(step.attribute.calls) == 1:
            step.write = step.function
            step.attribute = None
            step.inplace = False
    used = {id(step.attribute) for step in block.steps if step}
    block.attributes = [attribute for attribute in block.attributes if id(attribute) in used]
    _name(block.attributes)


def _name_gates(block: CodeBlock) -> None:
    """Name the parts of a value gates if each is only the input of a sigmoid or tanh."""
    readers: dict[int, set[str]] = {}
    """The classes that read an element of each step's result; an empty name for all other uses."""
    for number, ref in block.links():
        reader = ""
        is_result = number >= len(block.steps)
        if not is_result and len(ref.path) == 1:
            step = block.steps[number]
            if step is not None and step.attribute is not None:
                reader = step.attribute.calls[0].name
        readers.setdefault(ref.step, set()).add(reader)
    for number, step in enumerate(block.steps):
        names = readers.get(number, set())
        if step and step.hint == "parts" and "nn.Sigmoid" in names and names <= {"nn.Sigmoid", "nn.Tanh"}:
            step.hint = "gates"


def _join_chains(block: CodeBlock) -> None:
    """Join modules into one Sequential where the result of one has no other use than to be the input of the next.

    All modules of a chain are called where the last of them was. A module is not moved in this way to behind a step
    that changes shared memory in place: it would read what that step writes.
    """
    exposed = _Exposed(block)
    changing_steps = [number for number, step in enumerate(block.steps) if step and exposed.changed_by(step)]
    for number, step in enumerate(block.steps):
        if step is None or not _chainable(step):
            continue
        source = step.takes[0]
        if not isinstance(source, Ref) or source.path or exposed.uses[source.step] != 1:
            continue
        earlier = block.steps[source.step]
        if earlier is None or not _chainable(earlier):
            continue
        # What the user gave a name keeps its variable.
        if earlier.named:
            continue
        are_adjacent = not any(block.steps[source.step + 1 : number])
        if not are_adjacent and any(source.step <= changing <= number for changing in changing_steps):
            continue
        _append_to_chain(earlier, step)
        block.steps[source.step] = None


def _append_to_chain(chain: Step, step: Step) -> None:
    """Append the module of a step to those of an earlier one; the later step becomes that of the whole chain.

    The later, so that the steps that use its result need no change.
    """
    modules = chain.attribute
    last = step.attribute
    assert modules is not None
    assert last is not None
    modules.calls += last.calls
    modules.base = last.base if last.base in _BRANCHES else "layers"
    step.attribute = modules
    step.takes = chain.takes
    step.function = None
    # The last module changes the input of the chain if those before it pass on its memory.
    step.inplace = chain.inplace or (chain.same and step.inplace)
    step.same = chain.same and step.same


_BRANCHES = ("body", "shortcut", "branch")
"""Names for modules by their places; they stay when the modules become chains."""


def _chainable(step: Step) -> bool:
    """Return whether a step only passes one value through a module that has no attribute of its own."""
    return step.write is applied and step.attribute is not None and not step.attribute.own and len(step.takes) == 1


class _Exposed:
    """Determines which steps use shared memory; computed once for each step.

    Attributes:
        uses: number of uses of each step's result.
    """

    def __init__(self, block: CodeBlock) -> None:
        self._block = block
        self.uses = block.uses()
        self._shared: list[bool] = []
        """Of each step so far, whether something else uses the memory of its result; step 0 is the input."""

    def changed_by(self, step: Step) -> bool:
        """Return whether a step changes shared memory in place: that of its input, or of its input's source."""
        if not step.inplace:
            return False
        return any(ref.path or self._is_shared(ref.step) for ref in refs(step.takes))

    def seen_in(self, step: Step) -> bool:
        """Return whether other steps, also outside of the class, see that a step writes into its first operand."""
        first = step.takes[0]
        while isinstance(first, list):
            if not first:
                return True
            first = first[0]
        # What calls a class inside the model may use the input again.
        if not self._block.whole and not self._shared:
            self._shared.append(True)
        return bool(first.path) or self._is_shared(first.step)

    def _is_shared(self, number: int) -> bool:
        for place in range(len(self._shared), number + 1):
            step = self._block.steps[place]
            sources = refs(step.takes) if step and step.same else ()
            self._shared.append(self.uses[place] > 1 or any(self._shared[ref.step] for ref in sources))
        return self._shared[number]


def _name(attributes: list[Attribute]) -> None:
    """Name attributes after their bases, numbered in the order of use if several have the same."""
    counts = Counter(attribute.base for attribute in attributes)
    numbers: dict[str, int] = {}
    names: set[str] = set()
    for item in attributes:
        name = item.base
        if counts[name] > 1:
            numbers[name] = numbers.get(name, 0) + 1
            name = f"{name}{numbers[name]}"
        while name in names or not is_free_name(name):
            name += "_"
        names.add(name)
        item.name = name


# Statements


def _called(step: Step) -> CodeBlock | None:
    """Return the class of the page that a step calls with a list of values."""
    if step.attribute is None or len(step.attribute.calls) != 1 or step.write is not applied:
        return None
    if len(step.takes) != 1 or not isinstance(step.takes[0], list):
        return None
    block: CodeBlock | None = step.attribute.call.block
    return block


class Writer:
    """Writes the statements of `forward`.

    Args:
        block: the class.
        class_names: names of the classes of the page.

    Attributes:
        source: the name of the argument: `inputs` if its elements are used, or `input`.
        unpacked: the names of the elements of the input, if only they are used.
        statements: the statements.
    """

    def __init__(self, block: CodeBlock, class_names: frozenset[str] = frozenset()) -> None:
        self._block = block
        self._class_names = class_names
        self._exposed = _Exposed(block)
        self._uses = self._exposed.uses
        self._last = {ref.step: number for number, ref in block.links()}
        """The last step that uses the value of each step."""
        self._nodes: dict[int, ast.expr] = {}
        """The value of each step that is written: its variable, or its expression while it is pending."""
        self._pending: dict[int, set[str]] = {}
        """Steps whose values have no variable yet → the names in their expressions."""
        self._waiting: Counter[str] = Counter()
        """Number of pending expressions that read a variable."""
        self._busy: dict[str, int] = {}
        """Variable → the last step that uses it."""
        self._parts: dict[int, list[str]] = {}
        """The variables of the results of cells."""
        self._inputs: dict[ElementPath, str] = {}
        """Paths of elements of the input, if these have names, and of their elements → variables."""
        self.source = "input"
        self.statements: list[ast.stmt] = []
        self._name_results_of_calls()
        self.unpacked = self._unpack()
        for number, step in enumerate(block.steps):
            if number and step is not None:  # step 0 is the input
                self._write(number, step)
        self.statements.append(ast.Return(self._result()))
        block.states = self._states()
        block.returns = self._returned()

    def _result(self) -> ast.expr:
        """Return the expression after `return`."""
        result = self._block.result
        if isinstance(result, Ref) and not result.path and result.step:
            step = self._block.steps[result.step]
            # Operations with many results return tuples; Lua's users get a list.
            if step is not None and step.element is not None:
                self._nodes[result.step] = apply("list", self._nodes[result.step])
        node = self._value(result)
        if self._block.is_stateful and isinstance(node, ast.List):
            return ast.Tuple(node.elts)
        return node

    def shape(self) -> str:
        """Return the names and statements as text, for comparison."""
        text = [line for statement in self.statements for line in lines(statement, 0)]
        return "\n".join((*text, *self.unpacked, "*_" if self._block.more else "", self.source))

    def reads(self, name: str) -> bool:
        """Return whether a variable is used."""
        return any(name in names_in(statement) for statement in self.statements)

    def _unpack(self) -> list[str]:
        """Give elements of the input variables, if it is used in no other way: `a, b = inputs`.

        Elements that are lists get a statement each: `h, c = b`.

        Returns:
            The names of all elements, `_` for one without use; empty if the input is used as a whole.
        """
        block = self._block
        paths = {ref.path for _, ref in block.links() if ref.step == 0}  # step 0 is the input
        if any(paths) or block.input_kind.is_list:  # an empty path is the input as a whole
            self.source = "inputs"
        if not block.width or not all(path and path[0] in range(block.width) for path in paths):
            self._nodes[0] = ast.Name(self.source)
            return []
        self.source = "inputs"
        lists = self._lists_to_unpack(paths)
        places: list[ElementPath] = [(at,) for at in range(block.width)]
        for at, width in lists:
            places += [(at, inner) for inner in range(width)]
        used_places = {path[:1] for path in paths} | {path[:2] for path in paths}
        self._name_inputs([place for place in places if place in used_places], places, self._states())
        for at, width in lists:
            names = [self._inputs.get((at, inner), "_") for inner in range(width)]
            self.statements.append(ast.Assign([ast.Tuple([*map(dotted, names)])], dotted(self._inputs[at,])))
        return [self._inputs.get((at,), "_") for at in range(block.width)]

    def _lists_to_unpack(self, paths: set[ElementPath]) -> list[tuple[int | str, int]]:
        """Return the elements of the input that are lists to unpack, each with its number of elements."""
        if self._block.is_stateful:  # a state may be None, and is never unpacked
            return []
        lists = [(at, width) for at, width in self._block.lists.items() if self._only_elements(at, width, paths)]
        return sorted(lists)

    def _only_elements(self, at: int | str, width: int, paths: set[ElementPath]) -> bool:
        """Return whether only elements of an element of the input are used, and not too many for one line."""
        paths_inside = [path[1:] for path in paths if path[:1] == (at,)]
        if not paths_inside or width > _MOST_INNER:
            return False
        # An empty path is the element as a whole.
        return all(path and path[0] in range(width) for path in paths_inside)

    def _name_inputs(
        self, used_places: list[ElementPath], places: list[ElementPath], states: dict[ElementPath, str]
    ) -> None:
        """Name what is used of the input: as the user did, by its use in cells, or x, or x1, x2, … in turn.

        Args:
            used_places: the elements of the input, and of lists in it, that are used.
            places: all of them.
            states: the names of those that are states of cells.
        """
        names = {**states, **self._block.inputs}  # the user's come last, and win
        for at, *inner in places:
            # A list of states and of nothing else is `state`.
            if inner and all(place in states for place in places if place[:-1] == (at,)):
                names.setdefault((at,), "state")
        unnamed = [place for place in used_places if place not in names]
        if len(unnamed) == 1:
            names[unnamed[0]] = "x"
        else:
            names.update((place, f"x{number}") for number, place in enumerate(unnamed, 1))
        for place in used_places:
            name = names[place]
            is_state = self._block.is_stateful or name == states.get(place)
            while name in self._inputs.values() or not free_variable(name, self._class_names):
                name += "_"
            self._inputs[place] = name
            # The next state may have the name of the last one; other inputs keep theirs to the end.
            self._busy[name] = self._last_of_input(place) if is_state else len(self._block.steps)

    def _input(self, path: ElementPath) -> tuple[ast.expr, ElementPath]:
        """Return the variable of an input, and the rest of its path."""
        size = 2 if path[:2] in self._inputs else 1
        return dotted(self._inputs[path[:size]]), path[size:]

    def _states(self) -> dict[ElementPath, str]:
        """Return the names of the inputs that are states of cells, by their paths."""
        names: dict[ElementPath, str] = {}
        for step in self._block.steps:
            if step is None or not step.parts:
                continue
            operands = step.takes[0] if isinstance(step.takes[0], list) else step.takes
            called = _called(step)
            if called is not None:
                letters = [called.states.get((at,), "") for at in range(len(operands))]
            else:
                letters = ["", *step.parts]  # the input of the step, then its states
            for letter, value in zip(letters, operands):
                if letter and isinstance(value, Ref) and not value.step:
                    names.setdefault(value.path, self._state(step, letter))
        return names

    def _name_results_of_calls(self) -> None:
        """Give results of other classes that are states of cells names of their own, if no list of them is used."""
        used_whole = {ref.step for _, ref in self._block.links() if not ref.path}
        for number, step in enumerate(self._block.steps):
            if step is None or step.hint:
                continue
            called = _called(step)
            if called is None or not any(called.returns):
                continue
            is_used_whole = number in used_whole
            # One result is the whole; of several, only elements may be used.
            has_one_result = len(called.returns) == 1
            if has_one_result == is_used_whole:
                step.parts = called.returns

    def _returned(self) -> tuple[str, ...]:
        """Return the names of the results, empty for those that are no states of cells."""
        result = self._block.result

        def name(value: Value) -> str:
            if not isinstance(value, Ref):
                return ""
            step = self._block.steps[value.step]
            if step is None or not step.parts:
                return ""
            # One part is the result itself; of several, each is an element of it.
            if len(step.parts) == 1:
                return "" if value.path else self._state(step, step.parts[0])
            if len(value.path) != 1:
                return ""
            return self._state(step, step.parts[int(value.path[0])])

        if not isinstance(result, list):
            return (name(result),)
        return () if len(result) == 1 else tuple(map(name, result))

    def _state(self, step: Step | None, letter: str) -> str:
        """Return the name of a state of a cell, with the number of its module: `h2` of `lstm2`."""
        if not letter or letter[-1].isdigit():
            return letter
        name = step.attribute.name if step and step.attribute else ""
        number = name[len(name.rstrip("0123456789")) :]
        return letter + number

    def _last_of_input(self, path: ElementPath) -> int:
        """Return the last step that reads an element of the input."""
        steps = [number for number, ref in self._block.links() if not ref.step and ref.path[: len(path)] == path]
        return max(steps, default=0)

    def _write(self, number: int, step: Step) -> None:
        """Write a step: as an assignment, or as an expression to be part of a later statement."""
        changes = self._exposed.changed_by(step)
        if changes:
            # What was read before the change must be computed before it.
            for pending in list(self._pending):
                self._assign(pending)
        node = self._fill(step)
        for ref in refs(step.takes):
            self._settle(ref.step)
        if step.parts:
            self._unpack_result(number, step, node)
            return
        if number not in self._uses:
            if changes:
                self.statements.append(ast.Expr(node))
            return
        self._nodes[number] = node
        self._pending[number] = names_in(node)
        self._waiting.update(self._pending[number])
        # A value gets a variable for its name, unless its module has the same.
        has_name = step.hint and (step.attribute is None or step.attribute.name != step.hint)
        if self._uses[number] > 1 or has_name or changes:
            self._assign(number)

    def _unpack_result(self, number: int, step: Step, node: ast.expr) -> None:
        """Assign the results of a cell to a variable each."""
        used_elements = {ref.path[:1] for _, ref in self._block.links() if ref.step == number}
        is_used_whole = () in used_elements
        names: list[str] = []
        self._parts[number] = names
        for at, letter in enumerate(step.parts):
            name = "_"
            if is_used_whole or (at,) in used_elements:
                choices = self._names_of_state(self._state(step, letter)) if letter else _VARIABLES
                name = next(choice for choice in choices if self._is_free(choice, number))
            names.append(name)
            self._busy[name] = self._last.get(number, number)
        targets = [dotted(name) for name in names]
        self.statements.append(ast.Assign([ast.Tuple(targets) if len(targets) > 1 else targets[0]], node))

    def _names_of_state(self, state: str) -> Iterator[str]:
        """Yield names for the next value of a state, the best first: `h`, `next_h`, `h_2`, `h_3`, …"""
        yield state
        yield f"next_{state}"
        for number in range(2, _MOST_VARIABLES):
            yield f"{state}_{number}"

    def _settle(self, number: int) -> None:
        """Make a pending value part of another expression, or assign it to a variable."""
        if number in self._pending:
            self._waiting.subtract(self._pending.pop(number))

    def _fill(self, step: Step) -> ast.expr:
        """Return the expression of a step; operands get variables until it is short enough."""
        module = () if step.attribute is None else (attribute(ast.Name("self"), step.attribute.name),)
        lengths: dict[int, int] = {}
        for ref in refs(step.takes):
            if ref.step in self._pending:
                lengths[ref.step] = len(text_of(self._nodes[ref.step]))
        # The longest get variables first; one of up to 12 letters would hardly be shorter.
        long_operands = [operand for operand, length in lengths.items() if length > 12]
        longest = sorted(long_operands, key=lambda operand: -lengths[operand])
        # The sum of many is certainly too long: then no text is made just to measure it.
        total = sum(lengths.values()) if len(longest) > 8 else 0
        for operand in longest:
            if total <= _TEXT:
                node = step.write(*module, *map(self._value, step.takes))
                total = len(text_of(node))
            if total <= _TEXT:
                return node
            total -= lengths[operand]
            self._assign(operand)
        return step.write(*module, *map(self._value, step.takes))

    def _value(self, value: Value) -> ast.expr:
        """Return the expression of a value: a variable, an element of one, or a pending expression."""
        if isinstance(value, list):
            return ast.List([*map(self._value, value)])
        if not value.step and self.unpacked:
            node, path = self._input(value.path)
        elif value.step in self._parts and len(self._parts[value.step]) > 1:
            at, *path_in_part = value.path
            node = dotted(self._parts[value.step][int(at)])
            path = tuple(path_in_part)
        elif value.step in self._parts:
            node = dotted(self._parts[value.step][0])
            path = value.path
        else:
            node = self._nodes[value.step]
            path = value.path
        for index in path:
            node = ast.Subscript(node, expression(index))
        return node

    def _is_free(self, name: str, number: int) -> bool:
        """Return whether the result of a step can have a name; pending expressions still need their variables."""
        return self._busy.get(name, 0) <= number and not self._waiting[name] and free_variable(name, self._class_names)

    def _assign(self, number: int) -> None:
        """Assign a pending value to a variable: with the user's name, or x, y, z, x1, … in turn."""
        step = self._block.steps[number]
        assert step is not None
        self._settle(number)

        choices = [step.hint] if step.hint else []
        if step.hint in ("parts", "gates"):
            choices += [f"{step.hint}{at}" for at in range(2, 100)]
        choices += _VARIABLES
        name = next((choice for choice in choices if self._is_free(choice, number)), "")
        if not name:
            raise LimitError(
                f"a forward method with more than {_MOST_VARIABLES} values at a time cannot be written",
                path=self._block.spec.path,
            )
        self._busy[name] = self._last.get(number, number)
        self.statements.append(ast.Assign([dotted(name)], self._nodes[number]))
        self._nodes[number] = dotted(name)


# Classes that differ only in numbers

_BOTH = {frozenset(("in_channels", "out_channels")): "channels", frozenset(("in_features", "out_features")): "features"}
"""Name of an argument with two meanings."""


def merge_alike(blocks: list[CodeBlock], class_names: frozenset[str]) -> list[CodeBlock]:
    """Set the class name of every block, and keep one block for each class, with parameters.

    Args:
        blocks: all blocks, those that others contain first.
        class_names: names of other classes in the same source.

    Returns:
        The classes in the same order. Calls of the others become calls of these, with arguments.
    """
    users: dict[int, list[Construction]] = {}
    heights: dict[int, int] = {}
    levels: dict[int, list[CodeBlock]] = {}
    for block in blocks:
        inner_calls = [call for call in block.constructions() if call.block is not None]
        for call in inner_calls:
            users.setdefault(id(call.block), []).append(call)
        heights[id(block)] = 1 + max((heights[id(call.block)] for call in inner_calls), default=0)
        levels.setdefault(heights[id(block)], []).append(block)
    classes: list[CodeBlock] = []
    numbers: Counter[str] = Counter()
    # Inner classes first: those that contain them are compared by the names of what they call.
    for _, level in sorted(levels.items()):
        groups: dict[str, list[CodeBlock]] = {}
        for block in level:
            groups.setdefault(_shape(block), []).append(block)
        for group in groups.values():
            block = group[0]
            numbers[block.base] += 1
            while f"{block.base}{numbers[block.base]}" in class_names:
                numbers[block.base] += 1
            block.name = f"{block.base}{numbers[block.base]}"
            classes.append(block)
            _parametrize(group, users)
    for block in classes:
        is_only_one = numbers[block.base] == 1
        if is_only_one and (block.base not in class_names or block is blocks[-1]):
            block.name = block.base
    for calls in users.values():
        for call in calls:
            call.name = call.block.name
    return classes


def _shape(block: CodeBlock) -> str:
    """Return the shape of a block: equal for blocks that differ only in numbers."""

    def masked(value: Any) -> str:
        """Return a construction or literal as text, with 0 for each number."""
        if isinstance(value, Construction):
            name = value.block.name if value.block is not None else value.name
            arguments = [f"{place}={masked(argument)}" for place, argument in value.places()]
            return f"{name}({', '.join(arguments)})"
        if isinstance(value, ast.Name):
            return value.id
        return "0" if _numeric(value) else repr(value)

    modules = [f"{attribute.name}={masked(attribute.call)}" for attribute in block.attributes]
    return "\n".join((block.base, *modules, Writer(block).shape()))


def _numeric(value: Any) -> bool:
    """Return whether a literal is a number or a tuple of numbers."""
    if isinstance(value, tuple):
        return all(map(_numeric, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parametrize(group: list[CodeBlock], users: dict[int, list[Construction]]) -> None:
    """Make the numbers that differ within a group parameters of its first block, and arguments of all calls.

    Args:
        group: blocks of equal shape.
        users: the constructions of each block, by its id.
    """
    first = group[0]
    parameters: dict[str, list[Any]] = {}
    """The value of each parameter in each block, by the parameter's name."""
    for literal in _differing_literals(group):
        name = _parameter_name(literal, parameters)
        parameters[name] = literal.values
        for owner, place in literal.places:
            owner.put(place, dotted(name))
    first.parameters = {name: _annotation(values) for name, values in parameters.items()}
    for number, block in enumerate(group):
        for call in users.get(id(block), ()):
            call.block = first
            call.args = [values[number] for values in parameters.values()]
            call.names = tuple(parameters)


@define(eq=False)
class _Literal:
    """A literal that differs between blocks of equal shape.

    Attributes:
        values: its value in each block.
        places: where it is in the first block: a construction, and the position or keyword of its argument.
    """

    values: list[Any]
    places: list[tuple[Construction, int | str]]


def _differing_literals(group: list[CodeBlock]) -> list[_Literal]:
    """Return the literals that differ between blocks of equal shape; those that agree in each block are one."""
    literals_of_blocks = [[literal for item in block.attributes for literal in item.call.literals()] for block in group]
    # By texts of the values, as 1, 1.0 and True are equal, but not the same.
    differing: dict[tuple[str, ...], _Literal] = {}
    for occurrences in zip(*literals_of_blocks):
        values = [value for _, _, value in occurrences]
        texts = tuple(map(repr, values))
        if len(set(texts)) == 1:
            continue
        owner, place, _ = occurrences[0]  # in the first block
        differing.setdefault(texts, _Literal(values, [])).places.append((owner, place))
    return list(differing.values())


def _parameter_name(literal: _Literal, taken_names: Collection[str]) -> str:
    """Return a name for the parameter that replaces a literal, after the arguments that it is: `channels2`."""
    arguments = [owner.argument(place) for owner, place in literal.places]
    name = _BOTH.get(frozenset(arguments[:2])) or next(filter(None, arguments), "size")
    number = 2
    while name in taken_names:
        name = f"{name.rstrip('0123456789')}{number}"
        number += 1
    return name


def _annotation(values: list[Any]) -> str:
    """Return the type of a parameter with these values."""
    kinds = {"tuple[int, ...]" if isinstance(value, tuple) else type(value).__name__ for value in values}
    return " | ".join(sorted(kinds))
