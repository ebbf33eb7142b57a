"""Source as a syntax tree: literals, checked names, calls, operators; formatted as Black and Ruff do.

Nothing else becomes source: no text is inserted into text. The tree knows the precedence of each expression,
and adds parentheses where they are needed.
"""

from __future__ import annotations

import keyword
import math
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field

from ..data import define
from ..errors import ModelError
from ..nn.mapping import ModuleSpec

WIDTH = 88
"""Line length, the default of Black and Ruff."""
SUM, PRODUCT, UNARY, ATOM = 1, 2, 3, 4
"""Precedence of an expression."""
OPERATORS = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT}
MAX_DIGITS = 400
"""Maximum digits of a whole number; more than a number of Lua can have."""


def checked_name(name: str) -> str:
    """Return a name that Python reads unchanged.

    Raises:
        ModelError: it is not an identifier, a keyword, or one that Python normalizes.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or unicodedata.normalize("NFKC", name) != name:
        raise ModelError("a name is not a valid Python identifier", found=f"{name!r:.60}")
    return name


@define(eq=False)
class Lit:
    """A literal value.

    Attributes:
        value: None, bool, int, float, str, or a tuple of them.
        name: its argument, to name a parameter after.
    """

    value: Any
    name: str = ""

    @property
    def level(self) -> int:
        """Its precedence."""
        value = self.value
        negative = isinstance(value, (int, float)) and not isinstance(value, bool) and math.copysign(1, value) < 0
        return UNARY if negative and not _is_special(value) else ATOM

    @property
    def text(self) -> str:
        """As Python source."""
        return literal(self.value)


@define(eq=False, slots=True)
class Name:
    """A variable, class, function or package."""

    name: str
    level = ATOM

    def __attrs_post_init__(self) -> None:
        checked_name(self.name)

    @property
    def text(self) -> str:
        """As Python source."""
        return self.name


class Parameter(Name):
    """A parameter of the constructor that the expression is in."""


@define(eq=False)
class Attr:
    """An attribute: `self.conv`, `x.mT`."""

    value: Node
    name: str
    level = ATOM
    text: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.text = f"{operand(self.value, ATOM)}.{checked_name(self.name)}"


@define(eq=False)
class Subscript:
    """An item: `inputs[0]`, `x["mean"]`."""

    value: Node
    index: Node
    level = ATOM
    text: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.text = f"{operand(self.value, ATOM)}[{self.index.text}]"


@define(eq=False)
class Apply:
    """A call of anything but a constructor of modules."""

    function: Node
    args: tuple[Node, ...] = ()
    kwargs: Mapping[str, Node] = field(factory=dict)
    level = ATOM
    text: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        inner = [before + node.text for before, node in self.shown()]
        self.text = f"{operand(self.function, ATOM)}({', '.join(inner)})"

    def shown(self) -> list[tuple[str, Node]]:
        """Return the arguments, with the text before each."""
        named = [(f"{checked_name(name)}=", node) for name, node in self.kwargs.items()]
        return [*(("", node) for node in self.args), *named]


@define(eq=False)
class BinaryOperation:
    """An operator and its two operands."""

    left: Node
    symbol: str
    right: Node
    text: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.text = f"{operand(self.left, self.level)} {self.symbol} {operand(self.right, self.level + 1)}"

    @property
    def level(self) -> int:
        """Its precedence."""
        return OPERATORS[self.symbol]


@define(eq=False)
class Listed:
    """A list."""

    items: tuple[Node, ...]
    level = ATOM
    text: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.text = f"[{', '.join(item.text for item in self.items)}]"


@define(eq=False)
class Construction:
    """The construction of a module.

    Attributes:
        class_name: the class, as named in the source: `nn.Linear`, `Residual`.
        args: positional arguments.
        kwargs: arguments by keyword.
        defaults: keyword arguments that are omitted if they have these values.
        spec: the module it constructs; `None` for a `Sequential` that groups adjacent modules.
        inside: the modules inside, by their names in a state dict; each is also among the arguments.
        block: the class, if defined in the same source; an object with `attributes`.
        origin: the block made for this very module; `block` may be replaced by a similar one.
        spread: whether every argument gets a line of its own.
        depth: nesting depth of constructions in it.
    """

    name: str
    args: list[Node] = field(factory=list)
    kwargs: dict[str, Node] = field(factory=dict)
    defaults: dict[str, Any] = field(factory=dict)
    spec: ModuleSpec | None = field(default=None, repr=False)
    inside: list[tuple[str, Construction]] = field(factory=list, repr=False)
    block: Any = field(default=None, repr=False)
    origin: Any = field(default=None, repr=False)
    spread: bool = False
    depth: int = 1
    level = ATOM

    def hold(self, name: str, call: Construction) -> None:
        """Register a construction among the arguments as the module of a name inside."""
        self.inside.append((name, call))
        self.depth = max(self.depth, 1 + call.depth)

    def shown(self) -> list[tuple[str, Node]]:
        """Return the arguments to write, with the text before each."""
        written: list[tuple[str, Node]] = [("", node) for node in self.args]
        for name, node in self.kwargs.items():
            default = name in self.defaults and isinstance(node, Lit) and same_literal(node.value, self.defaults[name])
            if not default:
                written.append((f"{checked_name(name)}=", node))
        return written

    @property
    def text(self) -> str:
        """As Python source, on one line."""
        return f"{dotted(self.name).text}({', '.join(before + node.text for before, node in self.shown())})"

    def literals(self) -> Iterator[tuple[Construction, str | int, Lit]]:
        """Yield all values in it, with the position of each, in order."""
        places: list[tuple[str | int, Node]] = [*enumerate(self.args), *self.kwargs.items()]
        for place, node in places:
            if isinstance(node, Lit):
                yield self, place, node
            elif isinstance(node, Construction):
                yield from node.literals()


Node = Lit | Name | Attr | Subscript | Apply | BinaryOperation | Listed | Construction


@define(frozen=True)
class Assign:
    """A statement that assigns a value, or only computes it.

    Attributes:
        target: the variable or attribute; `None` if the result is not used.
        value: the expression.
    """

    target: Node | None
    value: Node

    def lines(self, indent: int) -> list[str]:
        """As Python source."""
        return laid_out(f"{self.target.text} = " if self.target else "", self.value, "", indent)


def operand(node: Node, level: int) -> str:
    """Return an expression as an operand; in parentheses where its precedence requires them."""
    number = level == ATOM and isinstance(node, Lit) and not isinstance(node.value, str)
    return f"({node.text})" if node.level < level or number else node.text


def dotted(name: str) -> Node:
    """Return a dotted name: `torch.nn.Linear`."""
    first, *rest = name.split(".")
    node: Node = Name(first)
    for each in rest:
        node = Attr(node, each)
    return node


def method(value: Node, name: str, *args: Any, **kwargs: Any) -> Apply:
    """Return a call of a method; arguments that are not nodes are literals."""
    return apply(Attr(value, name), *args, **kwargs)


def apply(function: Node | str, *args: Any, **kwargs: Any) -> Apply:
    """Return a call of a function, by its dotted name; arguments that are not nodes are literals."""
    called = dotted(function) if isinstance(function, str) else function
    return Apply(called, tuple(map(_node, args)), {name: _node(value) for name, value in kwargs.items()})


def _node(value: Any) -> Node:
    return value if isinstance(value, Node) else Lit(value)


def names_in(node: Node) -> Iterator[str]:
    """Return the variables that an expression reads, and other names that it uses without a dot."""
    stack: list[Node] = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Name):
            yield node.name
        elif isinstance(node, (Attr, Subscript)):
            stack.append(node.value)
        elif isinstance(node, BinaryOperation):
            stack += (node.left, node.right)
        elif isinstance(node, Listed):
            stack += node.items
        elif isinstance(node, Apply):
            stack += (node.function, *node.args, *node.kwargs.values())


def sequential(calls: list[Construction], spec: ModuleSpec | None = None) -> Construction:
    """Return an `nn.Sequential` of several modules."""
    made = Construction("nn.Sequential", list(calls), spec=spec, spread=len(calls) > 2)
    for number, call in enumerate(calls):
        made.hold(str(number), call)
    return made


# Literals


def _is_special(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def same_literal(value: Any, other: Any) -> bool:
    """Return whether two literals have the same type and value: 1, 1.0 and True are three."""
    return type(value) is type(other) and repr(value) == repr(other)


def literal(value: Any) -> str:
    """Return a value as Python source.

    Raises:
        ModelError: it cannot be written as a literal.
    """
    if value is None or isinstance(value, bool):
        return repr(value)
    if type(value) is float:
        return f'float("{value}")' if _is_special(value) else repr(value)
    if type(value) is int and value.bit_length() < 3 * MAX_DIGITS:
        return repr(value)
    if type(value) is str:
        return _quoted(value)
    if type(value) is tuple:
        inner = ", ".join(map(literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise ModelError("a value cannot be written in a source file", found=type(value).__name__)


def _quoted(value: str) -> str:
    """Return a string in double quotes; in single ones where that saves escapes, as Ruff does."""
    quote = "'" if '"' in value and "'" not in value else '"'
    return quote + "".join(map(_escaped, value)).replace(quote, f"\\{quote}") + quote


def _escaped(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


# Lines


def laid_out(before: str, node: Node, after: str = "", indent: int = 0) -> list[str]:
    """Return a statement or argument that contains an expression, as lines.

    Args:
        before: text before the expression, without indentation: `self.conv = `.
        node: the expression.
        after: text after it.
        indent: spaces before the first line.
    """
    pad = " " * indent
    line = f"{pad}{before}{node.text}{after}"
    spread = _spreads(node)
    if len(line) <= WIDTH and not spread:
        return [line]
    if isinstance(node, BinaryOperation):
        return _operands(before, node, after, indent)
    opening, arguments, closing = _brackets(node)
    if not arguments:
        return [line]
    joined = f"{pad}    {', '.join(text + inner.text for text, inner in arguments)}"
    if len(joined) <= WIDTH and not spread and opening != "[":
        return [f"{pad}{before}{opening}", joined, f"{pad}{closing}{after}"]
    lines = [f"{pad}{before}{opening}"]
    for text, inner in arguments:
        lines += laid_out(text, inner, ",", indent + 4)
    return [*lines, f"{pad}{closing}{after}"]


def _brackets(node: Node) -> tuple[str, list[tuple[str, Node]], str]:
    """Split an expression into the text before its brackets, the items inside and the text after them."""
    if isinstance(node, Construction):
        return f"{dotted(node.name).text}(", node.shown(), ")"
    if isinstance(node, Apply):
        return f"{operand(node.function, ATOM)}(", node.shown(), ")"
    if isinstance(node, Listed):
        return "[", [("", item) for item in node.items], "]"
    return "", [], ""


def _operands(before: str, node: BinaryOperation, after: str, indent: int) -> list[str]:
    """Format a sum or product that is too long for a line, in parentheses."""
    pad = " " * indent
    if len(f"{pad}    {node.text}") <= WIDTH:
        return [f"{pad}{before}(", f"{pad}    {node.text}", f"{pad}){after}"]
    parts: list[str] = []
    left: Node = node
    while isinstance(left, BinaryOperation) and left.level == node.level:
        parts.append(f"{pad}    {left.symbol} {operand(left.right, left.level + 1)}")
        left = left.left
    parts.append(f"{pad}    {operand(left, node.level)}")
    return [f"{pad}{before}(", *reversed(parts), f"{pad}){after}"]


def _spreads(node: Node) -> bool:
    return isinstance(node, Construction) and (node.spread or any(_spreads(inner) for _, inner in node.shown()))


def bracketed(before: str, items: list[str], after: str, indent: int) -> list[str]:
    """Return a statement that ends in a bracketed list, as lines: `before` ends with the opening bracket."""
    pad = " " * indent
    line = f"{pad}{before}{', '.join(items)}{after}"
    if len(line) <= WIDTH:
        return [line]
    joined = f"{pad}    {', '.join(items)}"
    if len(joined) <= WIDTH and not before.endswith("[") and before != "(":
        return [f"{pad}{before}", joined, f"{pad}{after}"]
    return [f"{pad}{before}", *(f"{pad}    {item}," for item in items), f"{pad}{after}"]
