"""What Lua's `print` shows of modules. Source: nn 8726825, the `__tostring__` of each class.

Lua prints a shared module again at each place, and never ends on a cycle; here lines and depth are limited, and `…`
marks the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal, NamedTuple

from ..data import define
from ..graph.lua import Table, TorchObject, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor, elements, tensor_of_storage
from ..text import clean, short
from .fields import Fields
from .late import load_more

_LINES = 1000
"""Maximum number of lines of a module."""
_DEPTH = 60
"""Maximum depth of modules that are shown."""
_MOST_SIZES = 20
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
        """Return the field in one of the forms of `Text`, which stands after the colon in a template.

        Args:
            form: `s` for a text, `n` for the elements of a tensor, a number for one of its extents, from 1, `*` and a
                separator for a storage of sizes; for numbers see `_number`.

        Raises:
            _AbsentError: it is missing, or has no such form; a truth value has none.
        """
        value = self._value
        if isinstance(value, (bytes, str)) and form == "s":
            return clean(value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value)
        if isinstance(value, Tensor) and form == "n":
            return str(value.numel)
        if isinstance(value, Tensor) and form.isdecimal() and 0 < int(form) <= len(value.size):
            return str(value.size[int(form) - 1])
        if isinstance(value, Storage) and form.startswith("*"):
            return self._sizes(value, separator=form.removeprefix("*"))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self._number(value, form)
        raise _AbsentError

    @staticmethod
    def _sizes(storage: Storage, separator: str) -> str:
        """Return the numbers of a LongStorage, of very many the first.

        Args:
            storage: the storage.
            separator: written between two numbers.

        Raises:
            _AbsentError: it has other elements, which are no sizes.
        """
        if storage.element.name.startswith("float"):
            raise _AbsentError
        numbers = list(map(str, elements(tensor_of_storage(storage), _MOST_SIZES)))
        if storage.count > _MOST_SIZES:
            numbers.append("…")
        return separator.join(numbers)

    @staticmethod
    def _number(value: float, form: str) -> str:
        """Return a number as Lua prints it.

        Args:
            value: the number.
            form: `s` as `tostring` does, `g` and `f` as `string.format` does with `%g` and `%f`; any other as `%d`,
                which drops a fraction, but `p` only for whole numbers, and as `%f` for others.

        Raises:
            _AbsentError: the number is too large for `%d`, or NaN.
        """
        if form == "s":
            return f"{value:.14g}"
        if form == "g":
            return f"{value:g}"
        is_fraction = form == "p" and not float(value).is_integer()
        if form == "f" or is_fraction:
            return f"{value:f}"
        # `%d` of larger numbers and of NaN is undefined in C.
        if not abs(value) < 2**53:
            raise _AbsentError
        return str(int(value))


class _Values:
    """The fields of a layer as the mapping that fills a template; `without` is a text, not a field."""

    def __init__(self, obj: TorchObject) -> None:
        self._obj = obj

    def __getitem__(self, name: str) -> str | _Formatted:
        if name == "without":
            return " without bias" if self._obj.get("bias") in (None, False) else ""
        return _Formatted(self._obj.get(name))


def window(*, planes: bool = False, extra: str = "", always: bool = False) -> Callable[[Fields], str]:
    """Return the text of kernel, step and padding in two or three dimensions: `(3 -> 8, 5x5, 2,2, 1,1)`.

    Args:
        planes: begin with `nInputPlane -> nOutputPlane`, as convolutions do; the step is then shown only where it, or
            the padding, is not the default.
        extra: prefix of further fields of each axis, shown where one of them is present and not 0.
        always: show `extra` always.

    Returns:
        A function of the fields of a layer.
    """
    return partial(_window, planes=planes, extra=extra, always=always)


def _window(fields: Fields, *, planes: bool, extra: str, always: bool) -> str:
    """Return the text of the window of a layer, as `window` describes it.

    Args:
        fields: those of the layer.
        planes: whether the text begins with the numbers of planes, and shows the step only if it is needed.
        extra: prefix of further fields of each axis, such as `adj`; empty for none.
        always: whether these are shown even if they are 0.
    """
    # The width comes before the height, as in Lua's constructors.
    axes = "TWH" if ".Volumetric" in fields.obj.class_name else "WH"
    parts: list[str] = []  # templates, as those of `Text`
    if planes:
        parts.append("{nInputPlane} -> {nOutputPlane}")
    parts.append(_for_axes("{kA}", axes, separator="x"))
    steps = [fields.obj.get(f"d{axis}") for axis in axes]
    pads = [fields.obj.get(f"pad{axis}") for axis in axes]
    further = [fields.obj.get(extra + axis) for axis in axes]
    # In Lua nil ~= 0 is true, so that layers of releases without padding show their step.
    is_default = all(step == 1 for step in steps) and all(pad == 0 for pad in pads)
    if not planes or not is_default:
        parts.append(_for_axes("{dA}", axes))
    if any(pad not in (None, 0) for pad in pads):
        parts.append(_for_axes("{padA:s}", axes))
    if extra and (always or any(value not in (None, 0) for value in further)):
        parts.append(_for_axes(f"{{{extra}A:s}}", axes))
    # Only nn's convolutions of images say that they have no bias.
    without = "{without}" if planes and axes == "WH" else ""
    return f"({', '.join(parts)}){without}".format_map(_Values(fields.obj))


def _for_axes(template: str, axes: str, separator: str = ",") -> str:
    """Return a template with a field of each axis, of one such as `{kA}`, whose A stands for the axis: `{kW},{kH}`."""
    return separator.join(template.replace("A", axis) for axis in axes)


def add_texts(texts: Mapping[str, Text], defaults: Mapping[str, Value]) -> None:
    """Declare what is printed of classes, by full names, and the values of fields that their objects lack."""
    _TEXTS.update({name: (text, defaults) for name, text in texts.items()})


def remove_text(name: str) -> None:
    """Forget what is printed of a class."""
    _TEXTS.pop(name, None)


def _text_of(obj: TorchObject) -> tuple[Text, Mapping[str, Value]]:
    """Return the text of an object's class, empty if none is declared, and its values of missing fields.

    A class of cudnn without a text prints as that of nn, which it is derived from.
    """
    name = str(obj.class_name)
    name_in_nn = "nn." + name.removeprefix("cudnn.") if name.startswith("cudnn.") else name
    for class_name in (name, name_in_nn):
        if class_name not in _TEXTS:
            load_more(class_name)
        text, defaults = _TEXTS.get(class_name, ("", {}))
        if text:
            return text, defaults
    return "", {}


def layer_text(obj: TorchObject) -> str:
    """Return a layer on one line, as its `__tostring__` writes it, without its children: `nn.Linear(3 -> 4)`."""
    class_name = clean(str(obj.class_name))
    text, defaults = _text_of(obj)
    if isinstance(text, Printed):
        if text.whole:  # without the name of the class
            return text.whole
        text = text.after
    forms = text if isinstance(text, tuple) else (text,)
    for form in forms:
        # A field is missing or has another type: the next form may do without it.
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):
            if callable(form):
                return class_name + form(Fields(obj, path="", defaults=defaults))
            return class_name + form.format_map(_Values(obj))
    return class_name


class _ToExpand(NamedTuple):
    """A module, or another value in a list of modules, whose lines are still to be made.

    Attributes:
        head: the beginning of its first line.
        value: itself.
        indent: the beginning of its further lines.
        depth: number of modules around it.
    """

    head: str
    value: Value
    indent: str
    depth: int


_Line = str | _ToExpand


def _lines(module: TorchObject, head: str, indent: str, depth: int) -> list[_Line]:
    """Return the lines of a module; those of the modules inside it are still to be expanded.

    Args:
        module: the module.
        head: what its first line begins with, as for `_ToExpand`.
        indent: what its further lines begin with.
        depth: number of modules around it.
    """
    text, _ = _text_of(module)
    style = text.inside if isinstance(text, Printed) else ""
    table = module.get("modules")
    inside = table.as_list() if isinstance(table, Table) else None
    if style == "map":
        return _map_lines(module, head, indent, depth)
    if style == "decorator" and inside:
        return [_ToExpand(f"{head}{layer_text(module)} @ ", inside[0], indent, depth + 1)]
    if style == "sequential" and inside is not None:
        return _sequential_lines(inside, head, indent, depth)
    if style == "branches" and inside is not None:
        return _branch_lines(module, inside, head, indent, depth)
    return [head + layer_text(module)]


def _map_lines(module: TorchObject, head: str, indent: str, depth: int) -> list[_Line]:
    """Return the lines of an nn.MapTable, which shows the module that it applies to each element.

    Args:
        module: the nn.MapTable.
        head: the beginning of the first line.
        indent: the beginning of the further lines.
        depth: number of modules around it.
    """
    class_name = clean(str(module.class_name))
    inside = module.get("module")
    if inside is None:
        return [f"{head}{class_name} {{ }}"]
    # Lua indents the first line by two spaces, and further ones by six more.
    head_of_module = indent + "  "
    return [
        f"{head}{class_name} {{",
        _ToExpand(head_of_module, inside, indent=head_of_module + "      ", depth=depth + 1),
        indent + "}",
    ]


def _sequential_lines(inside: list[Value], head: str, indent: str, depth: int) -> list[_Line]:
    """Return the lines of an nn.Sequential, or of a subclass, which shows the same name: an overview, then its modules.

    The overview names as many modules as there may be lines; what is more, `module_text` cuts off.

    Args:
        inside: the modules, in order.
        head: the beginning of the first line.
        indent: the beginning of the further lines.
        depth: number of modules around it.
    """
    arrows = "".join(f" -> ({number})" for number in range(1, min(len(inside), _LINES) + 1))
    if len(inside) > _LINES:
        arrows += " -> …"
    lines: list[_Line] = [
        head + "nn.Sequential {",
        f"{indent}  [input{arrows} -> output]",
    ]
    for number, module in enumerate(inside, 1):
        head_of_module = f"{indent}  ({number}): "
        lines.append(_ToExpand(head_of_module, module, indent=indent + "  ", depth=depth + 1))
    return [*lines, indent + "}"]


def _branch_lines(container: TorchObject, inside: list[Value], head: str, indent: str, depth: int) -> list[_Line]:
    """Return the lines of an nn.Concat and the like, with an arrow from the input to each module.

    Args:
        container: the module.
        inside: the modules in it, in order.
        head: the beginning of the first line.
        indent: the beginning of the further lines.
        depth: number of modules around it.
    """
    lines: list[_Line] = [f"{head}{clean(str(container.class_name))} {{", indent + "  input"]
    # The line that leads down from the input ends at the last module.
    for number, module in enumerate(inside, 1):
        is_last = number == len(inside)
        start = "     `-> " if is_last else "    |`-> "
        further = "         " if is_last else "    |    "
        lines.append(_ToExpand(f"{indent}{start}({number}): ", module, indent + further, depth + 1))
    return [*lines, indent + "     ... -> output", indent + "}"]


def module_text(value: TorchObject) -> str:
    """Return a module with those inside it, as Lua prints it: at most 1000 lines, without recursion."""
    lines: list[str] = []
    stack: list[_Line] = [_ToExpand(head="", value=value, indent="", depth=0)]
    while stack:
        line = stack.pop()
        if len(lines) >= _LINES:
            lines.append("…")
            break
        if isinstance(line, str):
            lines.append(line)
            continue
        head, item, indent, depth = line
        if item is None:  # a hole in the list
            lines.append(head)
        elif depth >= _DEPTH:
            lines.append(head + "…")
        elif isinstance(item, TorchObject):
            stack += reversed(_lines(item, head, indent, depth))
        else:
            lines.append(head + short(item))
    return "\n".join(lines)
