"""Steps become statements: chains become Sequentials, values used once are inlined, equal classes are one."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

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
from .flow import Attribute, CodeBlock, Ref, Step, Value, refs

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
    for step in block.steps:
        if step and step.unseen and step.attribute and not step.attribute.own and not exposed.seen_in(step):
            step.write, step.attribute, step.inplace, step.same = step.unseen, None, False, False
    _join_chains(block)
    for step in block.steps:
        if step and step.function and step.attribute and len(step.attribute.calls) == 1:
            step.write, step.attribute, step.inplace = step.function, None, False
    held = {id(step.attribute) for step in block.steps if step}
    block.attributes = [each for each in block.attributes if id(each) in held]
    _name(block.attributes)


def _name_gates(block: CodeBlock) -> None:
    """Name the parts of a value gates if each is only the input of a sigmoid or tanh."""
    users: dict[int, set[str]] = {}
    for number, ref in block.links():
        step = block.steps[number] if number < len(block.steps) else None
        held = step.attribute if step and len(ref.path) == 1 else None
        users.setdefault(ref.step, set()).add(held.calls[0].name if held else "")
    for number, step in enumerate(block.steps):
        names = users.get(number, set())
        if step and step.hint == "parts" and "nn.Sigmoid" in names and names <= {"nn.Sigmoid", "nn.Tanh"}:
            step.hint = "gates"


def _join_chains(block: CodeBlock) -> None:
    """Join modules that only feed one another into one Sequential; nothing moves across in-place changes."""
    exposed = _Exposed(block)
    barriers = [number for number, step in enumerate(block.steps) if step and exposed.changed_by(step)]
    for number, step in enumerate(block.steps):
        source = step.takes[0] if step and _chainable(step) else None
        if not step or not isinstance(source, Ref) or source.path or exposed.uses[source.step] != 1:
            continue
        earlier = block.steps[source.step]
        if earlier is None or not _chainable(earlier) or earlier.named:
            continue
        between = any(block.steps[source.step + 1 : number])
        if between and any(source.step <= each <= number for each in barriers):
            continue
        joined, moved = earlier.attribute, step.attribute
        assert joined is not None
        assert moved is not None
        joined.calls += moved.calls
        joined.base = moved.base if moved.base in ("body", "shortcut", "branch") else "layers"
        step.attribute, step.takes, step.function = joined, earlier.takes, None
        step.inplace, step.same = earlier.inplace or (earlier.same and step.inplace), earlier.same and step.same
        block.steps[source.step] = None


def _chainable(step: Step) -> bool:
    return step.write is applied and step.attribute is not None and not step.attribute.own and len(step.takes) == 1


class _Exposed:
    """Determines which steps use shared memory; computed once for each step.

    Attributes:
        uses: number of uses of each step's result.
    """

    def __init__(self, block: CodeBlock) -> None:
        self._block = block
        self.uses = block.uses()
        self._known: list[bool] = []

    def changed_by(self, step: Step) -> bool:
        """Return whether a step changes shared memory in place: that of its input, or of its input's source."""
        if not step.inplace:
            return False
        return any(ref.path or self._is(ref.step) for ref in refs(step.takes))

    def seen_in(self, step: Step) -> bool:
        """Return whether other steps, also outside of the class, see that a step writes into its first operand."""
        first = step.takes[0]
        while isinstance(first, list):
            if not first:
                return True
            first = first[0]
        if not self._block.whole and not self._known:
            self._known.append(True)
        return bool(first.path) or self._is(first.step)

    def _is(self, number: int) -> bool:
        for place in range(len(self._known), number + 1):
            step = self._block.steps[place]
            sources = refs(step.takes) if step and step.same else ()
            self._known.append(self.uses[place] > 1 or any(self._known[ref.step] for ref in sources))
        return self._known[number]


def _name(attributes: list[Attribute]) -> None:
    """Return names in the order of use, numbered if several would be the same."""
    bases = Counter(attribute.base for attribute in attributes)
    numbers: dict[str, int] = {}
    taken: set[str] = set()
    for each in attributes:
        base = each.base
        if bases[base] > 1:
            numbers[base] = numbers.get(base, 0) + 1
            base = f"{base}{numbers[base]}"
        while base in taken or not is_free_name(base):
            base += "_"
        taken.add(base)
        each.name = base


# Statements


def _called(step: Step) -> CodeBlock | None:
    """Return the class of the page that a step calls with a list of values."""
    call = step.attribute.call if step.attribute and len(step.attribute.calls) == 1 else None
    is_call = call is not None and step.write is applied and len(step.takes) == 1 and isinstance(step.takes[0], list)
    return call.block if call is not None and is_call else None


class Writer:
    """Writes the statements of `forward`.

    Args:
        block: the class.
        taken: names of the classes of the page.

    Attributes:
        source: the name of the argument: `inputs` if its elements are used, or `input`.
        unpacked: the names of the elements of the input, if only they are used.
        statements: the statements.
    """

    def __init__(self, block: CodeBlock, taken: frozenset[str] = frozenset()) -> None:
        self._block = block
        self._taken = taken
        self._exposed = _Exposed(block)
        self._uses = self._exposed.uses
        self._last = {ref.step: number for number, ref in block.links()}
        self._nodes: dict[int, ast.expr] = {}
        self._pending: dict[int, set[str]] = {}
        """Steps whose values have no variable yet → the names in their expressions."""
        self._waiting: Counter[str] = Counter()
        """Number of pending expressions that read a variable."""
        self._busy: dict[str, int] = {}
        """Variable → the last step that uses it."""
        self._parts: dict[int, list[str]] = {}
        """The variables of the results of cells."""
        self._inputs: dict[tuple[int | str, ...], str] = {}
        """Paths of elements of the input, if these have names, and of their elements → variables."""
        self.source = "input"
        self.statements: list[ast.stmt] = []
        self._name_results_of_calls()
        self.unpacked = self._unpack()
        for number, step in enumerate(block.steps):
            if number and step is not None:
                self._write(number, step)
        result = block.result
        if isinstance(result, Ref) and not result.path and result.step:
            step = block.steps[result.step]
            if step is not None and step.element is not None:
                self._nodes[result.step] = apply("list", self._nodes[result.step])
        node = self._value(result)
        if block.is_stateful and isinstance(node, ast.List):
            node = ast.Tuple(node.elts)
        self.statements.append(ast.Return(node))
        block.states, block.returns = self._states(), self._returned()

    def shape(self) -> str:
        """Return the names and statements as text, for comparison."""
        text = [line for statement in self.statements for line in lines(statement, 0)]
        return "\n".join((*text, *self.unpacked, "*_" if self._block.more else "", self.source))

    def reads(self, name: str) -> bool:
        """Return whether a variable is used."""
        return any(name in names_in(statement) for statement in self.statements)

    def _unpack(self) -> list[str]:
        """Return the names of the elements of the input, if only they are used."""
        block, paths = self._block, {ref.path for _, ref in self._block.links() if not ref.step}
        positions = {path[0] if path else None for path in paths}
        if positions - {None} or block.input_kind.is_list:
            self.source = "inputs"
        if not block.width or not all(isinstance(at, int) and 0 <= at < block.width for at in positions):
            self._nodes[0] = ast.Name(self.source)
            return []
        self.source = "inputs"
        known = {} if block.is_stateful else block.lists  # a state may be None
        lists = {at: width for at, width in known.items() if self._only_elements(at, width, paths)}
        places: list[tuple[int | str, ...]] = [(at,) for at in range(block.width)]
        places += [(at, inner) for at, width in sorted(lists.items()) for inner in range(width)]
        used = {path[:size] for path in paths for size in (1, 2)}
        self._name_inputs(places, used, self._states())
        for at in sorted(lists):
            names = [self._inputs.get((at, inner), "_") for inner in range(lists[at])]
            self.statements.append(ast.Assign([ast.Tuple([*map(dotted, names)])], dotted(self._inputs[at,])))
        return [self._inputs.get((at,), "_") for at in range(block.width)]

    def _only_elements(self, at: int | str, width: int, paths: set[tuple[int | str, ...]]) -> bool:
        """Return whether only elements of an element of the input are used, and not too many for one line."""
        inner = {path[1] if len(path) > 1 else None for path in paths if path[:1] == (at,)}
        return bool(inner) and width <= _MOST_INNER and inner <= {*range(width)}

    def _name_inputs(
        self, places: list[tuple[int | str, ...]], used: set[tuple[int | str, ...]], states: dict[Any, str]
    ) -> None:
        """Name what is used of the input: as the user did, by its use in cells, or x, or x1, x2, … in turn."""
        known = {**states, **self._block.inputs}
        for at, *inner in places:
            if inner and all(place in states for place in places if place[:-1] == (at,)):
                known.setdefault((at,), "state")
        places = [place for place in places if place in used]
        others = [place for place in places if place not in known]
        known.update((place, f"x{number}" if len(others) > 1 else "x") for number, place in enumerate(others, 1))
        for place in places:
            name, is_state = known[place], self._block.is_stateful or known[place] == states.get(place)
            while name in self._inputs.values() or not free_variable(name, self._taken):
                name += "_"
            self._inputs[place] = name
            self._busy[name] = self._last_of_input(place) if is_state else len(self._block.steps)

    def _input(self, path: tuple[int | str, ...]) -> tuple[ast.expr, tuple[int | str, ...]]:
        """Return the variable of an input, and the rest of its path."""
        size = 2 if path[:2] in self._inputs else 1
        return dotted(self._inputs[path[:size]]), path[size:]

    def _states(self) -> dict[Any, str]:
        """Return the names of the inputs that are states of cells, by their paths."""
        names: dict[Any, str] = {}
        for step in self._block.steps:
            if step is None or not step.parts:
                continue
            operands = step.takes[0] if isinstance(step.takes[0], list) else step.takes
            called = _called(step)
            letters = [called.states.get((at,), "") for at in range(len(operands))] if called else ["", *step.parts]
            for letter, value in zip(letters, operands):
                if letter and isinstance(value, Ref) and not value.step:
                    names.setdefault(value.path, self._state(step, letter))
        return names

    def _name_results_of_calls(self) -> None:
        """Give results of other classes that are states of cells names of their own, if no list of them is used."""
        whole = {ref.step for _, ref in self._block.links() if not ref.path}
        for number, step in enumerate(self._block.steps):
            called = _called(step) if step and not step.hint else None
            if step and called and any(called.returns) and (number in whole) == (len(called.returns) == 1):
                step.parts = called.returns

    def _returned(self) -> tuple[str, ...]:
        """Return the names of the results, empty for those that are no states of cells."""
        result = self._block.result

        def name(value: Value) -> str:
            step = self._block.steps[value.step] if isinstance(value, Ref) else None
            if not isinstance(value, Ref) or step is None or len(value.path) != (len(step.parts) > 1):
                return ""
            return self._state(step, step.parts[int((*value.path, 0)[0])]) if step.parts else ""

        if isinstance(result, list) and len(result) == 1:
            return ()
        return tuple(map(name, result if isinstance(result, list) else [result]))

    def _state(self, step: Step | None, letter: str) -> str:
        """Return the name of a state of a cell, with the number of its module."""
        name = step.attribute.name if step and step.attribute else ""
        return letter if not letter or letter[-1].isdigit() else letter + name[len(name.rstrip("0123456789")) :]

    def _last_of_input(self, path: tuple[int | str, ...]) -> int:
        size, links = len(path), self._block.links()
        return max((number for number, ref in links if not ref.step and ref.path[:size] == path), default=0)

    def _write(self, number: int, step: Step) -> None:
        changes = self._exposed.changed_by(step)
        if changes:
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
        wanted = step.hint and (step.attribute is None or step.attribute.name != step.hint)
        if self._uses[number] > 1 or wanted or changes:
            self._assign(number)

    def _unpack_result(self, number: int, step: Step, node: ast.expr) -> None:
        """Assign the results of a cell to a variable each."""
        used = {ref.path[:1] for _, ref in self._block.links() if ref.step == number}
        self._parts[number] = []
        for at, letter in enumerate(step.parts):
            name = self._state(step, letter)
            numbered = (f"{name}_{more}" for more in range(2, _MOST_VARIABLES))
            choices = [name, f"next_{name}", *numbered] if letter else _VARIABLES
            name = next(name for name in choices if self._is_free(name, number))
            self._parts[number].append(name if (at,) in used or () in used else "_")
            self._busy[self._parts[number][-1]] = self._last.get(number, number)
        names = [dotted(name) for name in self._parts[number]]
        self.statements.append(ast.Assign([ast.Tuple(names) if len(names) > 1 else names[0]], node))

    def _settle(self, number: int) -> None:
        """Make a pending value part of another expression, or assign it to a variable."""
        if number in self._pending:
            self._waiting.subtract(self._pending.pop(number))

    def _fill(self, step: Step) -> ast.expr:
        """Return the expression of a step; operands get variables until it is short enough."""
        module = () if step.attribute is None else (attribute(ast.Name("self"), step.attribute.name),)
        inner = {ref.step: len(text_of(self._nodes[ref.step])) for ref in refs(step.takes) if ref.step in self._pending}
        longest = sorted((each for each in inner if inner[each] > 12), key=lambda each: -inner[each])
        # The sum of many is certainly too long.
        total = sum(inner.values()) if len(longest) > 8 else 0
        for each in longest:
            if total <= _TEXT:
                node = step.write(*module, *map(self._value, step.takes))
                total = len(text_of(node))
            if total <= _TEXT:
                return node
            total -= inner[each]
            self._assign(each)
        return step.write(*module, *map(self._value, step.takes))

    def _value(self, value: Value) -> ast.expr:
        if isinstance(value, list):
            return ast.List([*map(self._value, value)])
        if not value.step and self.unpacked:
            node, path = self._input(value.path)
        elif value.step in self._parts:
            names = self._parts[value.step]
            node, path = dotted(names[int(value.path[0])] if len(names) > 1 else names[0]), value.path[len(names) > 1 :]
        else:
            node, path = self._nodes[value.step], value.path
        for index in path:
            node = ast.Subscript(node, expression(index))
        return node

    def _is_free(self, name: str, number: int) -> bool:
        """Return whether the result of a step can have a name; pending expressions still need their variables."""
        return self._busy.get(name, 0) <= number and not self._waiting[name] and free_variable(name, self._taken)

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


def merge_alike(blocks: list[CodeBlock], taken: frozenset[str]) -> list[CodeBlock]:
    """Set the class name of every block, and keep one block for each class, with parameters.

    Args:
        blocks: all blocks, those that others contain first.
        taken: names of other classes in the same source.

    Returns:
        The classes in the same order. Calls of the others become calls of these, with arguments.
    """
    users: dict[int, list[Construction]] = {}
    heights: dict[int, int] = {}
    levels: dict[int, list[CodeBlock]] = {}
    for block in blocks:
        calls = [call for call in block.constructions() if call.block is not None]
        for call in calls:
            users.setdefault(id(call.block), []).append(call)
        heights[id(block)] = 1 + max((heights[id(call.block)] for call in calls), default=0)
        levels.setdefault(heights[id(block)], []).append(block)
    kept: list[CodeBlock] = []
    names: Counter[str] = Counter()
    for _, level in sorted(levels.items()):
        groups: dict[str, list[CodeBlock]] = {}
        for block in level:
            groups.setdefault(_shape(block), []).append(block)
        for group in groups.values():
            block = group[0]
            names[block.base] += 1
            while f"{block.base}{names[block.base]}" in taken:
                names[block.base] += 1
            block.name = f"{block.base}{names[block.base]}"
            kept.append(block)
            _parametrize(group, users)
    for block in kept:  # a number only if there are several
        if names[block.base] == 1 and (block.base not in taken or block is blocks[-1]):
            block.name = block.base
    for call in (call for calls in users.values() for call in calls):
        call.name = call.block.name
    return kept


def _shape(block: CodeBlock) -> str:
    """Return the shape of a block: equal for blocks that differ only in numbers."""

    def masked(value: Any) -> str:
        if isinstance(value, Construction):
            name = value.block.name if value.block is not None else value.name
            return f"{name}({', '.join(f'{place}={masked(each)}' for place, each in value.places())})"
        return value.id if isinstance(value, ast.Name) else "0" if _numeric(value) else repr(value)

    modules = [f"{each.name}={masked(each.call)}" for each in block.attributes]
    return "\n".join((block.base, *modules, Writer(block).shape()))


def _numeric(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_numeric, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parametrize(group: list[CodeBlock], users: dict[int, list[Construction]]) -> None:
    """Make the numbers that differ within a group parameters of its first block, and arguments of all calls."""
    rows = [[each for item in block.attributes for each in item.call.literals()] for block in group]
    # Keyed by the literals: 1, 1.0 and True are equal, but not the same.
    differing: dict[tuple[str, ...], tuple[list[Any], list[tuple[Construction, int | str]]]] = {}
    for column in zip(*rows):
        values = [value for _, _, value in column]
        key = tuple(map(repr, values))
        if len(set(key)) > 1:
            differing.setdefault(key, (values, []))[1].append(column[0][:2])
    chosen: dict[str, list[Any]] = {}
    for values, places in differing.values():
        names = [owner.argument(place) for owner, place in places]
        name = _BOTH.get(frozenset(names[:2])) or next(filter(None, names), "size")
        number = 2
        while name in chosen:
            name = f"{name.rstrip('0123456789')}{number}"
            number += 1
        chosen[name] = values
        for owner, place in places:
            owner.put(place, dotted(name))
    group[0].parameters = {name: _annotation(values) for name, values in chosen.items()}
    for number, block in enumerate(group):
        for call in users.get(id(block), ()):
            call.block = group[0]
            call.args, call.names = [values[number] for values in chosen.values()], tuple(chosen)


def _annotation(values: list[Any]) -> str:
    """Return the type of a parameter with these values."""
    kinds = {"tuple[int, ...]" if isinstance(value, tuple) else type(value).__name__ for value in values}
    return " | ".join(sorted(kinds))
