"""Steps become statements: chains become Sequentials, values used once are inlined."""

from __future__ import annotations

from collections import Counter

from ..errors import LimitError
from .code import WIDTH, Assign, Attr, Listed, Lit, Name, Node, Subscript, apply, names_in
from .flow import CodeBlock
from .names import free_attribute, free_variable
from .steps import Attribute, Ref, Step, Value, applied, count_uses, refs

_TEXT = WIDTH - 24
"""Maximum length of an expression with inlined operands."""
_MOST_VARIABLES = 1000
"""Maximum number of values of one `forward` that wait for their last use."""


def tidy(block: CodeBlock) -> None:
    """Join chains of modules, replace stateless modules by functions, and name the modules."""
    exposed = _Exposed(block, count_uses(block.steps, block.result))
    for step in block.steps:
        alone = step is not None and step.attribute is not None and not step.attribute.own
        if step is not None and step.unseen and alone and not exposed.seen_in(step):
            step.write, step.attribute, step.inplace, step.same = step.unseen, None, False, False
    _join_chains(block)
    for step in block.steps:
        if step is not None and step.function and step.attribute is not None and len(step.attribute.calls) == 1:
            step.write, step.attribute, step.inplace = step.function, None, False
    held = {id(step.attribute) for step in block.steps if step is not None}
    block.attributes = [attribute for attribute in block.attributes if id(attribute) in held]
    _name(block.attributes)


def _join_chains(block: CodeBlock) -> None:
    """Join modules that only feed one another into one Sequential; nothing moves across in-place changes."""
    uses = count_uses(block.steps, block.result)
    exposed = _Exposed(block, uses)
    barriers = [number for number, step in enumerate(block.steps) if step and exposed.changed_by(step)]
    places = {id(attribute): place for place, attribute in enumerate(block.attributes)}
    attributes: list[Attribute | None] = list(block.attributes)
    for number, step in enumerate(block.steps):
        if step is None or not _chainable(step) or not isinstance(step.takes[0], Ref):
            continue
        before, path = step.takes[0].step, step.takes[0].path
        earlier = block.steps[before]
        if path or earlier is None or uses[before] != 1 or not _chainable(earlier) or earlier.named:
            continue
        if barriers and any(block.steps[before + 1 : number]) and any(before <= each <= number for each in barriers):
            continue
        joined, moved = earlier.attribute, step.attribute
        assert joined is not None
        assert moved is not None
        joined.calls += moved.calls
        joined.base = moved.base if moved.base in ("body", "shortcut", "branch") else "layers"
        attributes[places[id(moved)]] = None
        step.attribute, step.takes, step.function = joined, earlier.takes, None
        step.inplace, step.same = earlier.inplace or (earlier.same and step.inplace), earlier.same and step.same
        block.steps[before] = None
    block.attributes = [attribute for attribute in attributes if attribute is not None]


def _chainable(step: Step) -> bool:
    return step.write is applied and step.attribute is not None and not step.attribute.own and len(step.takes) == 1


class _Exposed:
    """Determines which steps use shared memory; computed once for each step."""

    def __init__(self, block: CodeBlock, uses: dict[int, int]) -> None:
        self._block = block
        self._uses = uses
        self._known: dict[int, bool] = {}

    def changed_by(self, step: Step) -> bool:
        """Return whether a step changes shared memory in place: that of its input, or of its input's source."""
        if not step.inplace:
            return False
        taken = [ref for value in step.takes for ref in refs(value)]
        return any(ref.path or self._is(ref.step) for ref in taken)

    def seen_in(self, step: Step) -> bool:
        """Return whether other steps, also outside of the class, see that a step writes into its first operand."""
        first = step.takes[0]
        while isinstance(first, list):
            if not first:
                return True
            first = first[0]
        if not self._block.whole:
            self._known.setdefault(0, True)
        return bool(first.path) or self._is(first.step)

    def _is(self, number: int) -> bool:
        stack = [number]
        while stack:
            each = stack[-1]
            source = self._block.steps[each]
            inner = [ref.step for value in source.takes for ref in refs(value)] if source and source.same else []
            missing = [other for other in inner if other not in self._known]
            if each in self._known or not missing or self._uses.get(each, 0) > 1:
                known = self._uses.get(each, 0) > 1 or any(self._known[other] for other in inner)
                self._known.setdefault(each, known)
                stack.pop()
            else:
                stack += missing
        return self._known[number]


def _name(attributes: list[Attribute]) -> None:
    """Return names in the order of use, numbered if several would be the same."""
    bases = Counter(attribute.base for attribute in attributes)
    numbers: dict[str, int] = {}
    taken: set[str] = set()
    for attribute in attributes:
        base = attribute.base
        if bases[base] > 1:
            numbers[base] = numbers.get(base, 0) + 1
            base = f"{base}{numbers[base]}"
        while base in taken or not free_attribute(base):
            base += "_"
        taken.add(base)
        attribute.name = base


class Writer:
    """Writes the statements of `forward`.

    Args:
        block: the class.
        taken: names of the classes of the page.

    Attributes:
        source: the name of the argument: `inputs` if its elements are used, or `input`.
        unpacked: the names of the elements of the input, if only they are used.
        statements: the statements before the last.
        returned: the returned expression; its parts where it is a list.
    """

    def __init__(self, block: CodeBlock, taken: frozenset[str] = frozenset()) -> None:
        self._block = block
        self._taken = taken
        self._uses = count_uses(block.steps, block.result)
        self._exposed = _Exposed(block, self._uses)
        self._last = self._last_uses()
        self._nodes: dict[int, Node] = {}
        self._pending: dict[int, None] = {}
        self._waiting: Counter[str] = Counter()
        """Number of pending expressions that read a variable."""
        self._busy: dict[str, int] = {}
        """Variable → the last step that uses it."""
        self.source = "input"
        self.statements: list[Assign] = []
        self.unpacked = self._unpack()
        for number, step in enumerate(block.steps):
            if number and step is not None:
                self._write(number, step)
        result = block.result
        if isinstance(result, Ref) and not result.path and result.step and self._is_tuple(result.step):
            self._nodes[result.step] = apply("list", self._nodes[result.step])
        parts = [self._value(item) for item in result] if isinstance(result, list) else None
        self.returned: Node | list[Node] = self._value(result) if parts is None else parts

    @property
    def text(self) -> str:
        """All statements, for comparison."""
        returned = self.returned if isinstance(self.returned, list) else [self.returned]
        lines = [line for statement in self.statements for line in statement.lines(0)]
        lines += [*self.unpacked, self.source, *(node.text for node in returned)]
        return "\n".join((*lines, "list" if returned is self.returned else "value"))

    def reads(self, name: str) -> bool:
        """Return whether a variable is used."""
        returned = self.returned if isinstance(self.returned, list) else [self.returned]
        return any(name in names_in(node) for node in (*(each.value for each in self.statements), *returned))

    def _is_tuple(self, number: int) -> bool:
        step = self._block.steps[number]
        return step is not None and step.element is not None

    def _last_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for number, step in enumerate(self._block.steps):
            for taken in step.takes if step else ():
                for ref in refs(taken):
                    last[ref.step] = number
        for ref in refs(self._block.result):
            last[ref.step] = len(self._block.steps)
        return last

    def _unpack(self) -> list[str]:
        """Return the names of the elements of the input, if only they are used."""
        used = [
            ref for step in self._block.steps if step for taken in step.takes for ref in refs(taken) if not ref.step
        ]
        used += [ref for ref in refs(self._block.result) if not ref.step]
        positions = {ref.path[0] if ref.path else None for ref in used}
        if any(at is not None for at in positions):
            self.source = "inputs"
        if not self._block.width or not all(isinstance(at, int) and at >= 0 for at in positions):
            self._nodes[0] = Name(self.source)
            return []
        self.source = "inputs"
        names: list[str] = []
        for at in range(self._block.width):
            name = self._block.inputs.get(at, "")
            if not name or name in names or not free_variable(name, self._taken):
                name = f"input{at + 1}"
            while name in names or not free_variable(name, self._taken):
                name += "_"
            names.append(name if at in positions else "_")
            self._busy[names[-1]] = len(self._block.steps)
        return names

    def _write(self, number: int, step: Step) -> None:
        changes = self._exposed.changed_by(step)
        if changes:
            for pending in list(self._pending):
                self._assign(pending)
        node = self._fill(step)
        for ref in (ref for taken in step.takes for ref in refs(taken)):
            self._settle(ref.step)
        if number not in self._uses:
            if changes:
                self.statements.append(Assign(None, node))
            return
        self._nodes[number] = node
        self._pending[number] = None
        self._waiting.update(set(names_in(node)))
        if self._uses[number] > 1 or self._wanted(step) or changes:
            self._assign(number)

    def _settle(self, number: int) -> None:
        """Make a pending value part of another expression, or assign it to a variable."""
        if number in self._pending:
            del self._pending[number]
            self._waiting.subtract(set(names_in(self._nodes[number])))

    def _wanted(self, step: Step) -> bool:
        """Return whether a value gets a variable for its name, which its module does not have already."""
        return bool(step.hint) and (step.attribute is None or step.attribute.name != step.hint)

    def _fill(self, step: Step) -> Node:
        """Return the expression of a step; operands get variables until it is short enough."""
        module = () if step.attribute is None else (Attr(Name("self"), step.attribute.name),)
        inner = {
            ref.step: len(self._nodes[ref.step].text)
            for taken in step.takes
            for ref in refs(taken)
            if ref.step in self._pending
        }
        longest = sorted((each for each in inner if inner[each] > 12), key=lambda each: -inner[each])
        total = 0
        if len(longest) > 8:  # the sum of many is certainly too long
            total = sum(inner.values())
        for each in longest:
            if total <= _TEXT:
                node = step.write(*module, *map(self._value, step.takes))
                total = len(node.text)
            if total <= _TEXT:
                return node
            total -= inner[each]
            self._assign(each)
        return step.write(*module, *map(self._value, step.takes))

    def _value(self, value: Value) -> Node:
        if isinstance(value, list):
            return Listed(tuple(map(self._value, value)))
        if not value.step and self.unpacked:
            node: Node = Name(self.unpacked[int(value.path[0])])
            path = value.path[1:]
        else:
            node, path = self._nodes[value.step], value.path
        for index in path:
            node = Subscript(node, Lit(index))
        return node

    def _assign(self, number: int) -> None:
        """Assign a pending value to a variable."""
        step = self._block.steps[number]
        assert step is not None
        self._settle(number)
        node = self._nodes[number]
        name = self._variable(number, step)
        self.statements.append(Assign(Name(name), node))
        self._nodes[number] = Name(name)

    def _variable(self, number: int, step: Step) -> str:
        """Return a free name: that of the user, or x, y, z, x1, … in turn."""

        def is_free(name: str) -> bool:
            # Pending expressions still need their variables.
            return self._busy.get(name, 0) <= number and not self._waiting[name] and free_variable(name, self._taken)

        choices = [step.hint] if step.hint else []
        if step.hint == "parts":
            choices += [f"parts{at}" for at in range(2, 100)]
        choices += ["x", "y", "z", *(f"x{at}" for at in range(1, _MOST_VARIABLES))]
        name = next(filter(is_free, choices), "")
        if not name:
            raise LimitError(
                f"a forward method with more than {_MOST_VARIABLES} values at a time cannot be written",
                path=self._block.spec.path,
            )
        self._busy[name] = self._last.get(number, number)
        return name
