"""What Lua's `print` shows of modules. Source: nn 8726825, the `__tostring__` of each class.

Lua prints a shared module again at each place, and never ends on a cycle; here lines and depth are limited, and `…`
marks the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal

from ..data import define, hooks
from ..graph.lua import Table, TorchObject, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor, elements
from ..text import clean, short
from .fields import Fields

_LINES = 1000
_DEPTH = 60
_SIZES = 20


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
        if isinstance(value, Tensor) and (form == "n" or (form.isdecimal() and int(form) <= len(value.size))):
            return str(value.numel if form == "n" else value.size[int(form) - 1])
        if isinstance(value, Storage) and form[:1] == "*" and not value.element.name.startswith("float"):
            numbers = elements(Tensor(value.element, value, (value.count,), (1,)), _SIZES)
            return form[1:].join([*map(str, numbers), *["…"] * (value.count > _SIZES)])
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if form in ("s", "g"):
                return f"{value:{'.14g' if form == 's' else form}}"
            if abs(value) < 2**53:
                return (
                    f"{value:f}" if form == "f" or (form == "p" and not float(value).is_integer()) else str(int(value))
                )
        raise _AbsentError


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

    def found(prefix: str) -> list[Value]:
        return [fields.obj.get(prefix + axis) for axis in axes]

    def listed(prefix: str, form: str = "", mark: str = ",") -> str:
        return mark.join(f"{{{prefix}{axis}{form}}}" for axis in axes)

    parts = ["{nInputPlane} -> {nOutputPlane}"] if planes else []
    parts.append(listed("k", mark="x"))
    # In Lua nil ~= 0 is true, so that layers of releases without padding show their step.
    if not planes or found("d") != [1] * len(axes) or found("pad") != [0] * len(axes):
        parts.append(listed("d"))
    for prefix in filter(None, ("pad", extra)):
        if any(each not in (None, 0) for each in found(prefix)) or (always and prefix == extra):
            parts.append(listed(prefix, ":s"))
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
            hooks["load_packages"](listed)
        text, defaults = _TEXTS.get(listed, ("", {}))
        if text:
            return text, defaults
    return "", {}


def layer_text(obj: TorchObject) -> str:
    """Return a layer on one line, as its `__tostring__` writes it, without its children: `nn.Linear(3 -> 4)`."""
    shown, (text, defaults) = clean(str(obj.class_name)), _text_of(obj)
    if isinstance(text, Printed):
        if text.whole:
            return text.whole
        text = text.after
    for form in text if isinstance(text, tuple) else (text,):
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):  # a field is missing or has another type
            fields = Fields(obj, "", defaults)
            return shown + (form(fields) if callable(form) else form.format_map(_Values(obj)))
    return shown


_Work = str | tuple[str, Value, str, int]
"""A line; or the start of the first line, what to show after it, the start of further lines, depth."""


def _lines(obj: TorchObject, head: str, indent: str, depth: int) -> list[_Work]:
    """Return the lines of a module; those of the modules inside it are still to be expanded."""
    text, _ = _text_of(obj)
    style = text.inside if isinstance(text, Printed) else ""
    modules = obj.get("modules")
    inner = modules.as_list() if isinstance(modules, Table) else None
    shown = clean(str(obj.class_name))
    if style == "map":
        module = obj.get("module")
        if module is None:
            return [f"{head}{shown} {{ }}"]
        return [
            f"{head}{shown} {{",
            (indent + "  ", module, indent + "        ", depth + 1),
            indent + "}",
        ]
    if style == "decorator" and inner:
        return [(f"{head}{layer_text(obj)} @ ", inner[0], indent, depth + 1)]
    if style == "sequential" and inner is not None:
        arrows = "".join(f" -> ({number})" for number in range(1, min(len(inner), _LINES) + 1))
        work: list[_Work] = [
            head + "nn.Sequential {",
            f"{indent}  [input{arrows}{' -> …' if len(inner) > _LINES else ''} -> output]",
        ]
        work += [(f"{indent}  ({number}): ", item, indent + "  ", depth + 1) for number, item in enumerate(inner, 1)]
        return [*work, indent + "}"]
    if style == "branches" and inner is not None:
        work = [f"{head}{shown} {{", indent + "  input"]
        for number, item in enumerate(inner, 1):
            last = number == len(inner)
            start = f"{indent}{'     `-> ' if last else '    |`-> '}({number}): "
            work.append((start, item, indent + ("         " if last else "    |    "), depth + 1))
        return [*work, indent + "     ... -> output", indent + "}"]
    return [head + layer_text(obj)]


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
