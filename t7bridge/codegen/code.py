"""Expressions of generated source as Python's own syntax tree (`ast`), and their layout as by Black and Ruff. A
construction is the call that makes a module.

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
    """Return the Python name derived from a name of the file; empty if none can be.

    It may be a keyword or a name of the page: who gives it to a variable (`free_variable`) or an attribute changes it.
    """
    if len(name) > MAX_NAME:
        return ""
    normalized = unicodedata.normalize("NFKC", name)  # as Python does, for which two names may be one
    # A page has `_` for what is not used, and Python changes `__x` inside a class.
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
    """Return a function that makes an expression from operands, by a template.

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
        """Return the template's expression with the operands in place of its parameters, and values for other names."""
        filled: ast.expr = _filled(function.body, {**constants, **dict(zip(parameters, operands))})
        return filled

    return write


@cache
def _parsed(template: str) -> ast.Lambda:
    """Return the syntax tree of a template, which is a lambda."""
    function = ast.parse(template, mode="eval").body
    assert isinstance(function, ast.Lambda)
    return function


def _filled(node: Any, values: dict[str, ast.expr]) -> Any:
    """Return a copy of a template's syntax tree, or of a list or field in one, with values in place of names.

    Args:
        node: the tree; as its places in the template mean nothing, the copy has none.
        values: the expressions by name, each put in as it is, not copied.
    """
    if isinstance(node, list):
        return [_filled(item, values) for item in node]
    if isinstance(node, ast.Name):
        return values.get(node.id, node)
    if not isinstance(node, ast.AST):  # the value of a field: a text or a number
        return node
    fields = {name: _filled(value, values) for name, value in ast.iter_fields(node)}
    return type(node)(**fields)


applied = formula("lambda module, x: module(x)")
"""The expression of a step that only passes its input through its module."""


def text_of(node: ast.expr) -> str:
    """Return an expression as source; the text is kept in the node, as lengths are measured again and again."""
    attributes = vars(node)
    if "text" not in attributes:
        attributes["text"] = ast.unparse(node)
    return str(attributes["text"])


def names_in(node: Any) -> set[str]:
    """Return the variables of an expression, a statement or a list of them, and other names used without a dot."""
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
        return value.as_call()
    if value is None or type(value) is bool:
        return ast.Constant(value)
    if type(value) is float and not math.isfinite(value):
        return apply("float", str(value))
    # Python refuses to print integers of very many digits (`int_max_str_digits`); a decimal digit has more than 3 bits.
    is_printable_integer = type(value) is int and value.bit_length() < 3 * MAX_DIGITS
    if type(value) is float or is_printable_integer:
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
        """Return the string as a literal."""
        if '"' in self and "'" not in self:
            return super().__repr__()
        # Python chooses double quotes for a text with a single one: one is put before each part, and cut off.
        parts = [repr(f"'{part}")[2:-1] for part in self.split('"')]
        return '"' + '\\"'.join(parts) + '"'


# Modules


@define(eq=False)
class Construction:
    """A call that constructs a module in generated source: its class and arguments.

    Attributes:
        name: the class, as named in the source: `nn.Linear`, `Residual`.
        args: positional arguments: literals, constructions, or names of parameters.
        kwargs: arguments by keyword, likewise.
        defaults: keyword arguments that are omitted if they have these values.
        arg_names: the names of the positional arguments, as far as they are known; parameters are named after them.
        spec: the module it constructs; `None` for a `Sequential` that groups adjacent modules.
        block: the class, if defined in the same source; an object with `attributes`.
        original_block: the block made for this very module; `block` is replaced by an equal one that was made first.
        depth: nesting depth of constructions in it.
    """

    name: str
    args: list[Any] = field(factory=list)
    kwargs: dict[str, Any] = field(factory=dict)
    defaults: dict[str, Any] = field(factory=dict)
    arg_names: tuple[str, ...] = ()
    spec: ModuleSpec | None = field(default=None, repr=False)
    block: Any = field(default=None, repr=False)
    original_block: Any = field(default=None, repr=False)
    depth: int = 1

    def literals(self) -> Iterator[tuple[Construction, int | str, Any]]:
        """Yield all literals in it, in order: the construction whose argument it is, its place there, its value.

        No argument may be the name of a parameter yet.
        """
        for place, value in self.arguments():
            if isinstance(value, Construction):
                yield from value.literals()
            else:
                yield self, place, value

    def replace_argument(self, place: int | str, value: Any) -> None:
        """Replace an argument, given by its position or keyword."""
        if isinstance(place, int):
            self.args[place] = value
        else:
            self.kwargs[place] = value

    def argument_name(self, place: int | str) -> str:
        """Return the name of an argument, given by its position or keyword; empty if it is unknown."""
        if isinstance(place, str):
            return place
        return self.arg_names[place] if place < len(self.arg_names) else ""

    def arguments_by_name(self) -> dict[str, Any]:
        """Return the arguments whose names are known."""
        return {**dict(zip(self.arg_names, self.args)), **self.kwargs}

    def arguments(self) -> list[tuple[int | str, Any]]:
        """Return all arguments, with the position or keyword of each."""
        return [*enumerate(self.args), *self.kwargs.items()]

    def inner_modules(self) -> list[tuple[str, Construction]]:
        """Return the modules among the arguments, by their names in a state dict."""
        return [(str(place), value) for place, value in self.arguments() if isinstance(value, Construction)]

    def with_inner(self) -> Iterator[Construction]:
        """Yield this construction and all in it, outer ones first."""
        yield self
        for _, inner in self.inner_modules():
            yield from inner.with_inner()

    def as_call(self) -> ast.Call:
        """Return the call as source, without arguments that have their defaults; of many modules, each gets a line."""
        written = {
            name: value
            for name, value in self.kwargs.items()
            if name not in self.defaults or not same_literal(value, self.defaults[name])
        }
        call = apply(self.name, *self.args, **written)
        assert isinstance(call, _Call)
        arguments = [*call.args, *(argument.value for argument in call.keywords)]
        # Two modules may share a line; of more, each has its own.
        is_long_sequential = self.name == SEQUENTIAL and len(self.args) > 2
        call.has_one_argument_a_line = is_long_sequential or any(map(_has_one_argument_a_line, arguments))
        return call


SEQUENTIAL = "nn.Sequential"


def sequential(modules: list[Construction], spec: ModuleSpec | None = None) -> Construction:
    """Return an `nn.Sequential` of several modules."""
    return Construction(SEQUENTIAL, [*modules], spec=spec)


# Lines


class _Call(ast.Call):
    """A call that may ask for a line of its own for every argument, even if all fit on one."""

    has_one_argument_a_line = False


_Call.__name__ = "Call"  # by which `ast` chooses how to print a node


def _has_one_argument_a_line(node: ast.expr) -> bool:
    """Return whether an expression is a call that asks for a line for every argument."""
    return isinstance(node, _Call) and node.has_one_argument_a_line


def lines(statement: ast.stmt, indent: int) -> list[str]:
    """Return an assignment, `return` or expression as lines of source, `indent` spaces from the left."""
    assert isinstance(statement, (ast.Assign, ast.Return, ast.Expr))
    value = statement.value
    assert value is not None
    if isinstance(statement, ast.Assign):
        (target,) = statement.targets
        return _laid_out(f"{_without_brackets(target)} = ", value, "", indent)
    if isinstance(statement, ast.Return):
        line = " " * indent + "return " + _without_brackets(value)
        # Only where a tuple fits on the line it has no brackets.
        if isinstance(value, ast.Tuple) and len(line) <= WIDTH:
            return [line]
        return _laid_out("return ", value, "", indent)
    return _laid_out("", value, "", indent)


def _without_brackets(node: ast.expr) -> str:
    """Return an expression as text, a tuple without its brackets."""
    text = text_of(node)
    return text[1:-1] if isinstance(node, ast.Tuple) and node.elts else text


def _laid_out(before: str, node: ast.expr, after: str, indent: int) -> list[str]:
    """Return an expression as lines, as Black does: on one line if it fits, else with lines of their own for its parts.

    Args:
        before: text before it on its first line: `x = `, `bias=`.
        node: the expression.
        after: text after it on its last line, such as a comma.
        indent: spaces before the first line.
    """
    pad = " " * indent
    line = f"{pad}{before}{text_of(node)}{after}"
    if len(line) <= WIDTH and not _has_one_argument_a_line(node):
        return [line]
    if isinstance(node, ast.BinOp):
        # Brackets are added around it, with the whole on one line, or a term a line.
        is_one_line_enough = len(f"{pad}    {text_of(node)}") <= WIDTH
        terms = [text_of(node)] if is_one_line_enough else _operands(node)
        return [f"{pad}{before}(", *(f"{pad}    {term}" for term in terms), f"{pad}){after}"]
    return _laid_out_in_brackets(before, node, after, indent)


def _laid_out_in_brackets(before: str, node: ast.expr, after: str, indent: int) -> list[str]:
    """Return a call, list or tuple that does not fit on one line as lines; anything else, which is not broken, as one.

    Args:
        before: text before it on its first line: `x = `, `bias=`.
        node: the expression.
        after: text after it on its last line, such as a comma.
        indent: spaces before the first line.
    """
    pad = " " * indent
    opening, items, closing = _inside_brackets(node)
    if not items:  # the line stays too long
        return [f"{pad}{before}{text_of(node)}{after}"]
    lines_of_items: list[str] = []
    for name, value in items:
        lines_of_items += _laid_out(name, value, ",", indent + 4)
    if _has_one_argument_a_line(node):
        return [f"{pad}{before}{opening}", *lines_of_items, f"{pad}{closing}{after}"]
    texts = [name + text_of(value) for name, value in items]
    if isinstance(node, ast.Tuple) and len(texts) == 1:
        texts[0] += ","  # which makes it a tuple
    is_call = isinstance(node, ast.Call)
    return bracketed(before + opening, texts, closing + after, indent, lines_of_items, are_arguments=is_call)


def _inside_brackets(node: ast.expr) -> tuple[str, list[tuple[str, ast.expr]], str]:
    """Return a call, list or tuple as its beginning, what is inside its brackets, and its end.

    Each item inside is a pair of the text before it (`bias=`, empty for most) and its expression. Of any other
    expression, which has no brackets to break lines in, there are no items.
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
    before: str,
    items: list[str],
    after: str,
    indent: int,
    lines_of_items: list[str] | None = None,
    are_arguments: bool = True,
) -> list[str]:
    """Return a bracketed list as lines, as Black does: all on one line, else the items on one, else one item a line.

    Args:
        before: text before the items, which ends with the opening bracket.
        items: the items.
        after: text after them.
        indent: spaces before the first line.
        lines_of_items: the lines of the items, indented, if one may need several; by default each has one.
        are_arguments: whether they are those of a function; what is in a list or tuple never shares a line inside.
    """
    pad = " " * indent
    joined = ", ".join(items)
    if len(f"{pad}{before}{joined}{after}") <= WIDTH:
        return [f"{pad}{before}{joined}{after}"]
    if are_arguments and len(f"{pad}    {joined}") <= WIDTH:
        inside = [f"{pad}    {joined}"]
    elif lines_of_items is not None:
        inside = lines_of_items
    else:
        inside = [f"{pad}    {item}," for item in items]
    return [f"{pad}{before}", *inside, f"{pad}{after}"]


def _operands(node: ast.BinOp) -> list[str]:
    """Split a sum or product into its terms, each but the first with the operator before it: `["x", "+ y", "- z"]`."""
    operators: tuple[type[ast.operator], ...] = (ast.Mult, ast.MatMult, ast.Div)
    if isinstance(node.op, (ast.Add, ast.Sub)):
        operators = (ast.Add, ast.Sub)
    later_terms: list[str] = []
    # `x + y - z` is the tree `(x + y) - z`, so the last term comes first.
    rest: ast.expr = node
    # Each term is printed with `_` as the other operand, so that `ast` adds the parentheses that it needs.
    while isinstance(rest, ast.BinOp) and isinstance(rest.op, operators):
        term = ast.unparse(ast.BinOp(ast.Name("_"), rest.op, rest.right))
        later_terms.append(term.removeprefix("_ "))
        rest = rest.left
    # All these operators have one letter, and are printed between spaces.
    first_with_operator = ast.unparse(ast.BinOp(rest, node.op, ast.Name("_")))
    first_term = first_with_operator[: -len(" + _")]
    return [first_term, *reversed(later_terms)]
