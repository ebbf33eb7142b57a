"""Expressions as Python's own syntax tree (`ast`), and their layout as by Black and Ruff.

Nothing else becomes source: values are literals, names are checked, templates are texts of this package.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, TypeAlias

from attrs import field

from ..data import define
from ..errors import ModelError
from ..nn.mapping import ModuleSpec

WIDTH = 88
"""Line length, the default of Black and Ruff."""
MAX_DIGITS = 400
"""Maximum digits of a whole number; more than a number of Lua can have."""
MAX_NAME = 60
"""Maximum length of a name; a longer one of a file is not used."""
_OWN = "self torch nn F input inputs Tensor target Path Any Model load model weights path"
TAKEN = frozenset((*dir(builtins), *_OWN.split()))
"""Names reserved by a page, and those of Python; no variable has one."""
Write: TypeAlias = Callable[..., ast.expr]
"""Makes an expression from operands: a module, if any, and values."""


# Names


def checked_name(name: str) -> str:
    """Return a name that Python reads unchanged.

    Raises:
        ModelError: it is not an identifier, a keyword, or one that Python normalizes.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or unicodedata.normalize("NFKC", name) != name:
        raise ModelError("a name is not a valid Python identifier", found=f"{name!r:.60}")
    return name


def usable_name(name: str) -> str:
    """Return the Python name derived from a name of the file; empty if there is none.

    Python normalizes identifiers to NFKC, in which two names can become one.
    """
    if len(name) > MAX_NAME:
        return ""
    normalized = unicodedata.normalize("NFKC", name)
    if not normalized.isidentifier() or normalized.startswith("_"):
        return ""
    return normalized if len(normalized) <= MAX_NAME else ""  # normalization may lengthen a name


def free_variable(name: str, class_names: frozenset[str]) -> bool:
    """Return whether a variable can have a name without shadowing another in the page, such as its classes'."""
    return not keyword.iskeyword(name) and name not in TAKEN and name not in class_names


# Expressions


def dotted(name: str) -> ast.expr:
    """Return a dotted name: `torch.nn.Linear`."""
    first, *rest = name.split(".")
    return attribute(ast.Name(checked_name(first)), *rest)


def attribute(value: ast.expr, *names: str) -> ast.expr:
    """Return an attribute of an attribute …: `self.conv.weight`."""
    for name in names:
        value = ast.Attribute(value, checked_name(name))
    return value


def apply(function: ast.expr | str, *args: Any, **kwargs: Any) -> ast.Call:
    """Return a call of a function, by its dotted name; arguments that are not expressions are literals."""
    called = dotted(function) if isinstance(function, str) else function
    keywords = [ast.keyword(checked_name(name), expression(value)) for name, value in kwargs.items()]
    return _Call(called, [*map(expression, args)], keywords)


def method(value: ast.expr, name: str, *args: Any, **kwargs: Any) -> ast.Call:
    """Return a call of a method; arguments that are not expressions are literals."""
    return apply(attribute(value, name), *args, **kwargs)


def formula(template: str, **values: Any) -> Write:
    """Return what makes an expression from operands.

    Args:
        template: a lambda of the operands, a text of this package: `lambda x: x.narrow(dim, 0, 1)`.
        **values: literals or expressions for names in it.

    Example:
        >>> ast.unparse(formula("lambda x: x.narrow(dim, 0, 1)", dim=-2)(dotted("self.size")))
        'self.size.narrow(-2, 0, 1)'
    """
    function = _parsed(template)
    parameters = [argument.arg for argument in function.args.args]
    constants = {name: expression(value) for name, value in values.items()}

    def write(*operands: ast.expr) -> ast.expr:
        filled: ast.expr = _filled(function.body, {**constants, **dict(zip(parameters, operands))})
        return filled

    return write


@cache
def _parsed(template: str) -> ast.Lambda:
    function = ast.parse(template, mode="eval").body
    assert isinstance(function, ast.Lambda)
    return function


def _filled(node: Any, values: dict[str, ast.expr]) -> Any:
    """Return a copy of a tree in which some names are replaced."""
    if isinstance(node, list):
        return [_filled(item, values) for item in node]
    if isinstance(node, ast.Name):
        return values.get(node.id, node)
    if not isinstance(node, ast.AST):
        return node
    fields = {name: _filled(value, values) for name, value in ast.iter_fields(node)}
    return type(node)(**fields)


applied = formula("lambda module, x: module(x)")
"""The expression of a step that only passes its input through its module."""


def text_of(node: ast.expr) -> str:
    """Return an expression as source; printed once."""
    attributes = vars(node)
    if "text" not in attributes:
        attributes["text"] = ast.unparse(node)
    return str(attributes["text"])


def names_in(node: Any) -> set[str]:
    """Return the variables of an expression or statement, and other names that it uses without a dot."""
    if isinstance(node, ast.Name):
        return {node.id}
    parts: Iterable[Any] = ()
    if isinstance(node, list):
        parts = node
    elif isinstance(node, ast.AST):
        parts = vars(node).values()
    names: set[str] = set()
    for part in parts:
        if isinstance(part, (list, ast.AST)):
            names |= names_in(part)
    return names


def same_literal(value: Any, other: Any) -> bool:
    """Return whether two literals have the same type and value: 1, 1.0 and True are three."""
    return type(value) is type(other) and repr(value) == repr(other)


def expression(value: Any) -> ast.expr:
    """Return an expression as it is, a construction as a call, any other value as a literal.

    Raises:
        ModelError: it cannot be written as a literal.
    """
    if isinstance(value, ast.expr):
        return value
    if isinstance(value, Construction):
        return value.node()
    if value is None or type(value) is bool:
        return ast.Constant(value)
    if type(value) is float and not math.isfinite(value):
        return apply("float", str(value))
    # A decimal digit has more than 3 bits; Python refuses to print integers of very many digits.
    if type(value) is float or (type(value) is int and value.bit_length() < 3 * MAX_DIGITS):
        magnitude = ast.Constant(abs(value))
        is_negative = repr(value)[0] == "-"  # -0.0 is, too
        return ast.UnaryOp(ast.USub(), magnitude) if is_negative else magnitude
    if type(value) is str:
        return ast.Constant(_Quoted(value))
    if type(value) is tuple:
        return ast.Tuple([*map(expression, value)], ast.Load())
    raise ModelError("a value cannot be written in a source file", found=type(value).__name__)


class _Quoted(str):
    """A string that `ast.unparse` prints in double quotes; in single ones where that saves escapes, as Ruff does."""

    __slots__ = ()

    def __repr__(self) -> str:
        if '"' in self and "'" not in self:
            return super().__repr__()
        # Python chooses double quotes for a text with a single one: one is put before each part, and cut off.
        parts = [repr(f"'{part}")[2:-1] for part in self.split('"')]
        return '"' + '\\"'.join(parts) + '"'


# Modules


@define(eq=False)
class Construction:
    """The construction of a module.

    Attributes:
        name: the class, as named in the source: `nn.Linear`, `Residual`.
        args: positional arguments: literals, constructions, or names of parameters.
        kwargs: arguments by keyword, likewise.
        defaults: keyword arguments that are omitted if they have these values.
        names: the names of positional arguments, to name parameters after.
        spec: the module it constructs; `None` for a `Sequential` that groups adjacent modules.
        block: the class, if defined in the same source; an object with `attributes`.
        origin: the block made for this very module; `block` may be replaced by a similar one.
        depth: nesting depth of constructions in it.
    """

    name: str
    args: list[Any] = field(factory=list)
    kwargs: dict[str, Any] = field(factory=dict)
    defaults: dict[str, Any] = field(factory=dict)
    names: tuple[str, ...] = ()
    spec: ModuleSpec | None = field(default=None, repr=False)
    block: Any = field(default=None, repr=False)
    origin: Any = field(default=None, repr=False)
    depth: int = 1

    def literals(self) -> Iterator[tuple[Construction, int | str, Any]]:
        """Yield all values in it, with the construction and place of each, in order."""
        for place, value in self.places():
            if isinstance(value, Construction):
                yield from value.literals()
            elif not isinstance(value, ast.expr):
                yield self, place, value

    def put(self, place: int | str, value: Any) -> None:
        """Replace an argument."""
        if isinstance(place, int):
            self.args[place] = value
        else:
            self.kwargs[place] = value

    def argument(self, place: int | str) -> str:
        """Return the name of an argument; empty if it is unknown."""
        if isinstance(place, str):
            return place
        return self.names[place] if place < len(self.names) else ""

    def named(self) -> dict[str, Any]:
        """Return the arguments whose names are known."""
        return {**dict(zip(self.names, self.args)), **self.kwargs}

    def places(self) -> list[tuple[int | str, Any]]:
        """Return all arguments, with the position or keyword of each."""
        return [*enumerate(self.args), *self.kwargs.items()]

    def inside(self) -> list[tuple[str, Construction]]:
        """Return the modules among the arguments, by their names in a state dict."""
        return [(str(place), value) for place, value in self.places() if isinstance(value, Construction)]

    def nested(self) -> Iterator[Construction]:
        """Yield this construction and all in it, outer ones first."""
        yield self
        for _, inner in self.inside():
            yield from inner.nested()

    def node(self) -> ast.Call:
        """Return the call, without arguments that have their defaults; of many modules, each gets a line."""
        written = {
            name: value
            for name, value in self.kwargs.items()
            if name not in self.defaults or not same_literal(value, self.defaults[name])
        }
        call = apply(self.name, *self.args, **written)
        assert isinstance(call, _Call)
        arguments = [*call.args, *(argument.value for argument in call.keywords)]
        # Two modules may share a line.
        call.spread = (self.name == SEQUENTIAL and len(self.args) > 2) or any(map(_spreads, arguments))
        return call


SEQUENTIAL = "nn.Sequential"


def sequential(calls: list[Construction], spec: ModuleSpec | None = None) -> Construction:
    """Return an `nn.Sequential` of several modules."""
    return Construction(SEQUENTIAL, [*calls], spec=spec)


# Lines


class _Call(ast.Call):
    """A call; `spread` if every argument gets a line of its own. `ast` chooses printers by the name of a class."""

    spread = False


_Call.__name__ = "Call"


def _spreads(node: ast.expr) -> bool:
    return isinstance(node, _Call) and node.spread


def lines(statement: ast.stmt, indent: int) -> list[str]:
    """Return an assignment, `return` or expression as lines of source."""
    assert isinstance(statement, (ast.Assign, ast.Return, ast.Expr))
    assert statement.value is not None
    before = "return " if isinstance(statement, ast.Return) else ""
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        before = f"{_without_brackets(target)} = "
    return _laid_out(before, statement.value, "", indent)


def _without_brackets(node: ast.expr) -> str:
    """Return an expression as text, a tuple without its brackets."""
    text = text_of(node)
    return text[1:-1] if isinstance(node, ast.Tuple) and node.elts else text


def _laid_out(before: str, node: ast.expr, after: str, indent: int) -> list[str]:
    """Return an expression as lines, with the text before and after it."""
    pad = " " * indent
    text = text_of(node)
    if isinstance(node, ast.Tuple) and before == "return ":
        text = _without_brackets(node)
    line = f"{pad}{before}{text}{after}"
    if len(line) <= WIDTH and not _spreads(node):
        return [line]
    if isinstance(node, ast.BinOp):
        terms = [text] if len(f"{pad}    {text}") <= WIDTH else _operands(node)
        return [f"{pad}{before}(", *(f"{pad}    {term}" for term in terms), f"{pad}){after}"]
    opening, arguments, closing = _inside_brackets(node)
    if not arguments:
        return [line]
    items = [name + text_of(value) for name, value in arguments]
    if isinstance(node, ast.Tuple) and len(items) == 1:
        items[0] += ","  # which makes it a tuple
    spread: list[str] = []
    for name, value in arguments:
        spread += _laid_out(name, value, ",", indent + 4)
    return bracketed(before + opening, items, closing + after, indent, spread, _spreads(node))


def _inside_brackets(node: ast.expr) -> tuple[str, list[tuple[str, ast.expr]], str]:
    """Return a call, list or tuple as its beginning, what is inside its brackets, and its end.

    Each item has the text before it: `bias=`, empty for most. There are none in other expressions.
    """
    if isinstance(node, ast.Call):
        arguments = [("", argument) for argument in node.args]
        arguments += [(f"{item.arg}=", item.value) for item in node.keywords]
        return f"{text_of(node.func)}(", arguments, ")"
    if isinstance(node, ast.List):
        return "[", [("", item) for item in node.elts], "]"
    if isinstance(node, ast.Tuple):
        return "(", [("", item) for item in node.elts], ")"
    return "", [], ""


def bracketed(
    before: str, items: list[str], after: str, indent: int, spread: list[str] | None = None, always: bool = False
) -> list[str]:
    """Return a bracketed list as lines: on one if it fits, inside brackets on one, or an item on each.

    Args:
        before: text before the items, which ends with the opening bracket.
        items: the items.
        after: text after them.
        indent: spaces before the first line.
        spread: the items on lines of their own, indented.
        always: whether they are always spread.
    """
    pad = " " * indent
    joined = ", ".join(items)
    if spread is None:
        spread = [f"{pad}    {item}," for item in items]
    if not always:
        if len(f"{pad}{before}{joined}{after}") <= WIDTH:
            return [f"{pad}{before}{joined}{after}"]
        # Black gives each item of a list, and each of several names to unpack, a line of its own.
        is_list_or_names = before.endswith("[") or before == "("
        if len(f"{pad}    {joined}") <= WIDTH and not is_list_or_names:
            spread = [f"{pad}    {joined}"]
    return [f"{pad}{before}", *spread, f"{pad}{after}"]


def _operands(node: ast.BinOp) -> list[str]:
    """Split a sum or product into its terms, each but the first with the operator before it."""
    operators: tuple[type[ast.operator], ...] = (ast.Mult, ast.MatMult, ast.Div)
    if isinstance(node.op, (ast.Add, ast.Sub)):
        operators = (ast.Add, ast.Sub)
    terms: list[str] = []
    before: ast.expr = node
    # `_` stands for the other operand, so that `ast` adds the parentheses that a term needs; then it is cut off.
    while isinstance(before, ast.BinOp) and isinstance(before.op, operators):
        term = ast.unparse(ast.BinOp(ast.Name("_"), before.op, before.right))
        terms.append(term.removeprefix("_ "))
        before = before.left
    first = ast.unparse(ast.BinOp(before, node.op, ast.Name("_")))
    # Without the operator, of one letter, and `_`, with the spaces around them.
    return [first[:-4], *reversed(terms)]
