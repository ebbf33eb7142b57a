"""Steps become statements: chains become Sequentials, values that are used once are written where they are used."""

from __future__ import annotations

import keyword
import re

from ..nn.plan.names import RESERVED
from .code import WIDTH
from .flow import Block
from .steps import APPLY, ATOM, Attribute, Ref, Step, Value, count_uses, refs

_TEXT = WIDTH - 24
"""How long an expression may grow by taking others in."""


def tidy(block: Block) -> None:
    """Join chains of modules, say alone what a function says, and give the modules their names."""
    _join_chains(block)
    for step in block.steps:
        if step is not None and step.function and step.attribute is not None and len(step.attribute.calls) == 1:
            step.template, step.attribute, step.inplace = step.function, None, False
            if step.template.startswith("{0}."):
                step.needs = [ATOM]
    held = {id(step.attribute) for step in block.steps if step is not None}
    block.attributes = [attribute for attribute in block.attributes if id(attribute) in held]
    _name(block.attributes)


def _join_chains(block: Block) -> None:
    """Modules that only feed one another become one Sequential; across what changes its input nothing moves."""
    uses = count_uses(block.steps, block.result)
    barriers = [number for number, step in enumerate(block.steps) if step and _changes_others(block, step, uses)]
    for number, step in enumerate(block.steps):
        if step is None or not _chainable(step) or not isinstance(step.takes[0], Ref):
            continue
        before, path = step.takes[0].step, step.takes[0].path
        earlier = block.steps[before]
        if path or earlier is None or uses[before] != 1 or not _chainable(earlier) or earlier.named:
            continue
        moves = any(block.steps[before + 1 : number])
        if moves and any(before <= barrier <= number for barrier in barriers):
            continue
        assert earlier.attribute is not None
        assert step.attribute is not None
        joined = Attribute("layers", [*earlier.attribute.calls, *step.attribute.calls])
        if step.attribute.base in ("body", "shortcut", "branch"):
            joined.base = step.attribute.base
        block.attributes[block.attributes.index(earlier.attribute)] = joined
        block.attributes.remove(step.attribute)
        step.attribute, step.takes, step.function = joined, earlier.takes, ""
        step.inplace, step.same = earlier.inplace or (earlier.same and step.inplace), earlier.same and step.same
        block.steps[before] = None


def _chainable(step: Step) -> bool:
    return step.template == APPLY and step.attribute is not None and not step.attribute.own and len(step.takes) == 1


def _changes_others(block: Block, step: Step, uses: dict[int, int]) -> bool:
    """Whether a step changes, in place, memory that others use too: of its input, or of what that was made from."""
    if not step.inplace:
        return False
    numbers = [ref.step for taken in step.takes for ref in refs(taken)]
    if any(ref.path for taken in step.takes for ref in refs(taken)):
        return True
    while numbers:
        number = numbers.pop()
        if uses.get(number, 0) > 1:
            return True
        source = block.steps[number]
        if source is not None and source.same:
            numbers += [ref.step for taken in source.takes for ref in refs(taken)]
    return False


def _name(attributes: list[Attribute]) -> None:
    """Names in the order of use, with numbers where several would be called the same."""
    bases = [attribute.base for attribute in attributes]
    numbers: dict[str, int] = {}
    taken: set[str] = set()
    for attribute in attributes:
        base = attribute.base
        if bases.count(base) > 1:
            numbers[base] = numbers.get(base, 0) + 1
            base = f"{base}{numbers[base]}"
        while base in taken or base in RESERVED or keyword.iskeyword(base):
            base += "_"
        taken.add(base)
        attribute.name = base


class Writer:
    """Writes the statements of `forward`.

    Attributes:
        lines: the statements, without indentation.
        returned: the returned expression; its parts where it is a list.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._uses = count_uses(block.steps, block.result)
        self._last = self._last_uses()
        self._text: dict[int, tuple[str, int]] = {}
        self._pending: list[int] = []
        self._busy: dict[str, int] = {}
        """Variable → the last step that uses it."""
        self.lines: list[str] = []
        self.unpacked = self._unpack()
        for number, step in enumerate(block.steps):
            if number and step is not None:
                self._write(number, step)
        result = block.result
        if isinstance(result, Ref) and not result.path and result.step and self._is_tuple(result.step):
            text, _ = self._text[result.step]
            self._text[result.step] = (f"list({text})", ATOM)
        parts = [self._value(item) for item in result] if isinstance(result, list) else None
        self.returned: str | list[str] = self._value(result) if parts is None else parts

    def _is_tuple(self, number: int) -> bool:
        step = self._block.steps[number]
        return step is not None and step.kind.startswith("tuple")

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
        """The names of the elements of the input, if only they are used."""
        used = [
            ref for step in self._block.steps if step for taken in step.takes for ref in refs(taken) if not ref.step
        ]
        used += [ref for ref in refs(self._block.result) if not ref.step]
        positions = [ref.path[0] if ref.path else None for ref in used]
        if not self._block.width or not all(isinstance(at, int) and at >= 0 for at in positions):
            self._text[0] = ("inputs" if any(at is not None for at in positions) else "input", ATOM)
            return []
        names = []
        for at in range(self._block.width):
            name = self._block.inputs.get(at, f"input{at + 1}")
            name = f"input{at + 1}" if name in names or name in _TAKEN or keyword.iskeyword(name) else name
            names.append(name if at in positions else "_")
            self._busy[names[-1]] = len(self._block.steps)
        return names

    def _write(self, number: int, step: Step) -> None:
        changes = _changes_others(self._block, step, self._uses)
        if changes:
            for pending in list(self._pending):
                self._assign(pending)
        text = self._fill(number, step)
        for taken in step.takes:
            self._pending = [each for each in self._pending if each not in {ref.step for ref in refs(taken)}]
        if number not in self._uses:
            if changes:
                self.lines.append(text)
            return
        self._text[number] = (text, step.level)
        self._pending.append(number)
        if self._uses[number] > 1 or self._wanted(step) or changes:
            self._assign(number)

    def _wanted(self, step: Step) -> bool:
        """Whether a value gets a variable for its name, which its module does not have already."""
        return bool(step.hint) and (step.attribute is None or step.attribute.name != step.hint)

    def _fill(self, number: int, step: Step) -> str:
        """The source of a step; operands get variables until it is short enough."""
        while True:
            operands: list[str] = []
            for taken, need in zip(step.takes, step.needs):
                alone = step.template.count("(") == 1 and step.template.endswith(f"({{{len(operands)}}})")
                operands.append(self._value(taken, 0 if alone or isinstance(taken, list) else need))
            text = step.template
            for at, operand in enumerate(operands):
                text = text.replace(f"{{{at}}}", operand)
            if step.attribute is not None:
                text = text.replace("{m}", f"self.{step.attribute.name}")
            inner = [
                ref.step
                for taken in step.takes
                for ref in refs(taken)
                if ref.step in self._pending and len(self._text[ref.step][0]) > 12
            ]
            if len(text) <= _TEXT or not inner:
                return text
            self._assign(max(inner, key=lambda each: len(self._text[each][0])))

    def _value(self, value: Value, need: int = 0) -> str:
        if isinstance(value, list):
            return f"[{', '.join(self._value(item) for item in value)}]"
        if not value.step and self.unpacked:
            text, level = self.unpacked[int(value.path[0])], ATOM
            path = value.path[1:]
        else:
            (text, level), path = self._text[value.step], value.path
        if level < (ATOM if path else need):
            text = f"({text})"
        return text + "".join(f"[{index!r}]".replace("'", '"') for index in path)

    def _assign(self, number: int) -> None:
        """Give a pending value a variable."""
        self._pending.remove(number)
        step = self._block.steps[number]
        assert step is not None
        text = self._text[number][0]
        name = self._variable(number, step)
        self.lines.append(f"{name} = {text}")
        self._text[number] = (name, ATOM)

    def _variable(self, number: int, step: Step) -> str:
        """A name that is free: that of the user, or x, y, z, x1, … in turn."""
        live = {name for name, last in self._busy.items() if last > number}
        for pending in self._pending:  # what waits to be written still needs its variables
            live.update(re.findall(r"[A-Za-z_]\w*", self._text[pending][0]))
        choices = [step.hint] if step.hint and not keyword.iskeyword(step.hint) else []
        if step.hint == "parts":
            choices += [f"parts{at}" for at in range(2, 100)]
        choices += ["x", "y", "z", *(f"x{at}" for at in range(1, 10_000))]
        name = next(choice for choice in choices if choice not in live and choice not in _TAKEN)
        self._busy[name] = self._last.get(number, number)
        return name


_TAKEN = {"self", "torch", "nn", "F", "input", "inputs", "Tensor", "target", "list"}
