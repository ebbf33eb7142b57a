"""Expressions that construct modules, and how they are laid out on lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import field

from ..data import define
from ..nn.plan.spec import ModuleSpec

WIDTH = 88
"""Characters of a line, the default of Black and Ruff."""


@define(eq=False)
class Lit:
    """A value written out.

    Attributes:
        value: None, bool, int, float, str, or a tuple of them.
        name: the argument it is given for, to name a parameter after.
    """

    value: Any
    name: str = ""

    @property
    def text(self) -> str:
        """As Python source."""
        return literal(self.value)


@define(eq=False)
class Param:
    """A parameter of the constructor that the expression is in."""

    name: str

    @property
    def text(self) -> str:
        """As Python source."""
        return self.name


@define(eq=False)
class Call:
    """The construction of a module.

    Attributes:
        name: the class, as the source names it.
        args: positional arguments.
        kwargs: arguments by keyword.
        defaults: arguments by keyword that are not written as long as they have these values.
        spec: the module it makes; `None` for a `Sequential` that groups what stood side by side.
        inside: the modules inside, by their names in a state dict; each is among the arguments too.
        block: the class, where it is one of the source's own; an object with `attributes`.
        origin: the block made for this very module; `block` may come to be that of one alike.
        spread: whether every argument gets a line of its own.
    """

    name: str
    args: list[Node] = field(factory=list)
    kwargs: dict[str, Node] = field(factory=dict)
    defaults: dict[str, Any] = field(factory=dict)
    spec: ModuleSpec | None = field(default=None, repr=False)
    inside: list[tuple[str, Call]] = field(factory=list, repr=False)
    block: Any = field(default=None, repr=False)
    origin: Any = field(default=None, repr=False)
    spread: bool = False

    def shown(self) -> list[tuple[str, Node]]:
        """The arguments that are written, with what stands before each."""
        written = [("", node) for node in self.args]
        for name, node in self.kwargs.items():
            default = name in self.defaults and isinstance(node, Lit) and node.value == self.defaults[name]
            if not default:
                written.append((f"{name}=", node))
        return written

    @property
    def text(self) -> str:
        """As Python source, on one line."""
        return f"{self.name}({', '.join(before + node.text for before, node in self.shown())})"

    def literals(self) -> Iterator[tuple[Call, str | int, Lit]]:
        """All values in it, with the place of each, in order."""
        places: list[tuple[str | int, Node]] = [*enumerate(self.args), *self.kwargs.items()]
        for place, node in places:
            if isinstance(node, Lit):
                yield self, place, node
            elif isinstance(node, Call):
                yield from node.literals()


Node = Lit | Param | Call


def sequential(calls: list[Call], spec: ModuleSpec | None = None) -> Call:
    """An `nn.Sequential` of several modules."""
    inside = [(str(number), call) for number, call in enumerate(calls)]
    return Call("nn.Sequential", list(calls), spec=spec, inside=inside, spread=len(calls) > 2)


def literal(value: Any) -> str:
    """A value as Python source."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if isinstance(value, str):
        return '"' + repr(value)[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        inner = ", ".join(literal(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def laid_out(before: str, node: Node, after: str = "", indent: int = 0) -> list[str]:
    """A statement or argument that holds an expression, as lines.

    Args:
        before: what stands before the expression, without indentation: `self.conv = `.
        node: the expression.
        after: what stands behind it.
        indent: spaces in front of the first line.
    """
    pad = " " * indent
    line = f"{pad}{before}{node.text}{after}"
    if not isinstance(node, Call) or (len(line) <= WIDTH and not _spreads(node)):
        return [line]
    arguments = [text + inner.text for text, inner in node.shown()]
    joined = f"{pad}    {', '.join(arguments)}"
    if len(joined) <= WIDTH and not _spreads(node):
        return [f"{pad}{before}{node.name}(", joined, f"{pad}){after}"]
    lines = [f"{pad}{before}{node.name}("]
    for text, inner in node.shown():
        lines += laid_out(text, inner, ",", indent + 4)
    return [*lines, f"{pad}){after}"]


def _spreads(node: Node) -> bool:
    return isinstance(node, Call) and (node.spread or any(_spreads(inner) for _, inner in node.shown()))


def bracketed(before: str, items: list[str], after: str, indent: int) -> list[str]:
    """A statement that ends in a bracketed list, as lines: `before` ends with the opening bracket."""
    pad = " " * indent
    line = f"{pad}{before}{', '.join(items)}{after}"
    if len(line) <= WIDTH:
        return [line]
    joined = f"{pad}    {', '.join(items)}"
    if len(joined) <= WIDTH and not before.endswith("[") and before != "(":
        return [f"{pad}{before}", joined, f"{pad}{after}"]
    return [f"{pad}{before}", *(f"{pad}    {item}," for item in items), f"{pad}{after}"]
