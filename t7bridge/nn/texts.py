"""What Lua's `print` shows of modules. Source: nn 8726825, the `__tostring__` of each class.

Lua prints a shared module again at each place, and never ends on a cycle; here lines and depth are limited, and `…`
marks the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal

from ..data import define
from ..graph.lua import Table, TorchObject, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor, elements
from ..text import clean, short
from .fields import Fields
from .late import load_more

_LINES = 1000
"""Maximum number of lines of a module."""
_DEPTH = 60
"""Maximum depth of modules that are shown."""
_SIZES = 20
"""Maximum number of sizes of a LongStorage that are shown."""


@define(frozen=True)
class Printed:
    """How Lua prints a module with modules inside.

    Attributes:
        inside: how those of its field `modules` follow; of `map` it is the one in `module`.
        after: the text after the name of the class, as a template.
        whole: the text of the module, instead of name, `after` and modules.
    """

    inside: Literal["", "sequential", "branches", "decorator", "map"] = ""
    after: str = ""
    whole: str = ""


Text = str | tuple[str, ...] | Callable[[Fields], str] | Printed
"""What Lua prints after the name of a class: a template such as `({weight:2} -> {weight:1}){without}`, of several the
first for which there are fields, a function of the fields, or `Printed`.

`{field}` is `%d`; `:f` `%f`, `:g` `%g`, `:s` what Lua's `..` writes; a digit is the size of that dimension of a tensor,
1-based, and `n` its number of elements; `p` is a number as `%d` where it is whole, else `%f`. After `*` comes what
joins the numbers of a LongStorage, of very many the first. `{without}` is ` without bias` where there is none.
"""

_TEXTS: dict[str, tuple[Text, Mapping[str, Value]]] = {}
"""The texts of classes that have an entry, by full names, with values of missing fields; empty if none is declared."""


class _AbsentError(ValueError):
    """A field that the text needs is missing, or has another type."""


class _Formatted:
    """A field of a layer in a template."""

    def __init__(self, value: Value) -> None:
        self._value = value

    def __format__(self, form: str) -> str:
        value = self._value
        if isinstance(value, (bytes, str)) and form == "s":
            return clean(value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value)
        if isinstance(value, Tensor) and form == "n":
            return str(value.numel)
        if isinstance(value, Tensor) and form.isdecimal() and int(form) <= len(value.size):
            return str(value.size[int(form) - 1])
        if isinstance(value, Storage) and form[:1] == "*" and not value.element.name.startswith("float"):
            numbers = list(map(str, elements(Tensor(value.element, value, (value.count,), (1,)), _SIZES)))
            if value.count > _SIZES:
                numbers.append("…")
            return form[1:].join(numbers)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self._number(value, form)
        raise _AbsentError

    @staticmethod
    def _number(value: float, form: str) -> str:
        """Return a number as Lua prints it.

        Args:
            value: the number.
            form: `s` as `tostring` does, `g` and `f` as `string.format` does with `%g` and `%f`; `p` is a whole number
                if it is one, and `%f` if not; others are whole numbers.
        """
        if form == "s":
            return f"{value:.14g}"
        if form == "g":
            return f"{value:g}"
        # `%d` of larger numbers is undefined in C.
        if abs(value) >= 2**53:
            raise _AbsentError
        is_fraction = form == "p" and not float(value).is_integer()
        if form == "f" or is_fraction:
            return f"{value:f}"
        return str(int(value))


class _Values:
    """The fields of a layer for a template, by name; `without` is a text."""

    def __init__(self, obj: TorchObject) -> None:
        self._obj = obj

    def __getitem__(self, name: str) -> str | _Formatted:
        if name == "without":
            return " without bias" if self._obj.get("bias") in (None, False) else ""
        return _Formatted(self._obj.get(name))


def window(*, planes: bool = False, extra: str = "", always: bool = False) -> Callable[[Fields], str]:
    """Return the text of kernel, step and padding in two or three dimensions: `(3 -> 8, 5x5, 2,2, 1,1)`.

    Args:
        planes: begin with `nInputPlane -> nOutputPlane`; the step is then shown only where it, or the padding, is not
            the default.
        extra: prefix of further fields, shown where one of them is present and not 0.
        always: show `extra` always.
    """
    return partial(_window, planes=planes, extra=extra, always=always)


def _window(fields: Fields, *, planes: bool, extra: str, always: bool) -> str:
    axes = "TWH" if ".Volumetric" in fields.obj.class_name else "WH"

    def values(prefix: str) -> list[Value]:
        return [fields.obj.get(prefix + axis) for axis in axes]

    def template(prefix: str, form: str = "", mark: str = ",") -> str:
        return mark.join(f"{{{prefix}{axis}{form}}}" for axis in axes)

    parts = ["{nInputPlane} -> {nOutputPlane}"] if planes else []
    parts.append(template("k", mark="x"))
    # In Lua nil ~= 0 is true, so that layers of releases without padding show their step.
    if not planes or values("d") != [1] * len(axes) or values("pad") != [0] * len(axes):
        parts.append(template("d"))
    for prefix in filter(None, ("pad", extra)):
        is_used = any(value not in (None, 0) for value in values(prefix))
        if is_used or (always and prefix == extra):
            parts.append(template(prefix, ":s"))
    # Only nn's convolutions of images say that they have no bias.
    without = "{without}" if planes and axes == "WH" else ""
    return f"({', '.join(parts)}){without}".format_map(_Values(fields.obj))


def add_texts(texts: Mapping[str, Text], defaults: Mapping[str, Value]) -> None:
    """Declare what is printed of classes, by full names."""
    _TEXTS.update({name: (text, defaults) for name, text in texts.items()})


def remove_text(name: str) -> None:
    """Forget what is printed of a class."""
    _TEXTS.pop(name, None)


def _text_of(obj: TorchObject) -> tuple[Text, Mapping[str, Value]]:
    """Return the text of a class; a class of cudnn prints as that of nn."""
    name = str(obj.class_name)
    in_nn = "nn." + name.removeprefix("cudnn.") if name.startswith("cudnn.") else name
    for listed in (name, in_nn):
        if listed not in _TEXTS:
            load_more(listed)
        text, defaults = _TEXTS.get(listed, ("", {}))
        if text:
            return text, defaults
    return "", {}


def layer_text(obj: TorchObject) -> str:
    """Return a layer on one line, as its `__tostring__` writes it, without its children: `nn.Linear(3 -> 4)`."""
    class_name = clean(str(obj.class_name))
    text, defaults = _text_of(obj)
    if isinstance(text, Printed):
        if text.whole:
            return text.whole
        text = text.after
    for form in text if isinstance(text, tuple) else (text,):
        # A field is missing or has another type: the next form may do without it.
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):
            if callable(form):
                return class_name + form(Fields(obj, "", defaults))
            return class_name + form.format_map(_Values(obj))
    return class_name


_Work = str | tuple[str, Value, str, int]
"""A line; or the start of the first line, what to show after it, the start of further lines, depth."""


def _lines(obj: TorchObject, head: str, indent: str, depth: int) -> list[_Work]:
    """Return the lines of a module; those of the modules inside it are still to be expanded."""
    text, _ = _text_of(obj)
    style = text.inside if isinstance(text, Printed) else ""
    modules = obj.get("modules")
    inner = modules.as_list() if isinstance(modules, Table) else None
    if style == "map":
        return _map_lines(obj, head, indent, depth)
    if style == "decorator" and inner:
        return [(f"{head}{layer_text(obj)} @ ", inner[0], indent, depth + 1)]
    if style == "sequential" and inner is not None:
        return _sequential_lines(inner, head, indent, depth)
    if style == "branches" and inner is not None:
        return _branch_lines(obj, inner, head, indent, depth)
    return [head + layer_text(obj)]


def _map_lines(obj: TorchObject, head: str, indent: str, depth: int) -> list[_Work]:
    class_name = clean(str(obj.class_name))
    module = obj.get("module")
    if module is None:
        return [f"{head}{class_name} {{ }}"]
    return [
        f"{head}{class_name} {{",
        (indent + "  ", module, indent + "        ", depth + 1),
        indent + "}",
    ]


def _sequential_lines(inner: list[Value], head: str, indent: str, depth: int) -> list[_Work]:
    arrows = "".join(f" -> ({number})" for number in range(1, min(len(inner), _LINES) + 1))
    if len(inner) > _LINES:
        arrows += " -> …"
    lines: list[_Work] = [
        head + "nn.Sequential {",
        f"{indent}  [input{arrows} -> output]",
    ]
    for number, module in enumerate(inner, 1):
        lines.append((f"{indent}  ({number}): ", module, indent + "  ", depth + 1))
    return [*lines, indent + "}"]


def _branch_lines(obj: TorchObject, inner: list[Value], head: str, indent: str, depth: int) -> list[_Work]:
    lines: list[_Work] = [f"{head}{clean(str(obj.class_name))} {{", indent + "  input"]
    for number, module in enumerate(inner, 1):
        is_last = number == len(inner)
        start = "     `-> " if is_last else "    |`-> "
        further = "         " if is_last else "    |    "
        lines.append((f"{indent}{start}({number}): ", module, indent + further, depth + 1))
    return [*lines, indent + "     ... -> output", indent + "}"]


def module_text(value: TorchObject) -> str:
    """Return the tree of modules, at most 1000 lines of it."""
    lines: list[str] = []
    stack: list[_Work] = [("", value, "", 0)]
    while stack:
        work = stack.pop()
        if len(lines) >= _LINES:
            lines.append("…")
            break
        if isinstance(work, str):
            lines.append(work)
            continue
        head, item, indent, depth = work
        if item is None:
            lines.append(head)
        elif depth >= _DEPTH:
            lines.append(head + "…")
        elif isinstance(item, TorchObject):
            stack += reversed(_lines(item, head, indent, depth))
        else:
            lines.append(head + short(item))
    return "\n".join(lines)
