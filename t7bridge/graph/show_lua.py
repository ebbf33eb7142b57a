"""Values as Lua's `print` shows them, and in notebooks: `str` of objects and tables; bounded if shared or cyclic.

Source: nn 8726825, the `__tostring__` of each class. Lua prints a shared module again at each place, and never ends on
a cycle; here lines and depth are limited, and `…` marks the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from html import escape
from itertools import islice
from typing import Any

from .lua import Table, TdsHash, TdsVec, TorchObject, Value
from .show import clean, short
from .storage import Storage
from .tensor import Tensor

_LINES = 1000
_DEPTH = 60
_ENTRIES = 100
_SIZES = 20
_HTML_ENTRIES = 2000
_HTML_DEPTH = 40
_HTML_WIDE = 200

_SEQUENTIAL = frozenset(("Sequential", "LayerNormalization", "Maxout", "SpatialLPPooling"))
_BRANCHES = frozenset(("Concat", "DepthConcat", "ConcatTable", "ParallelTable", "Parallel"))
_DECORATORS = frozenset(("Decorator", "Bottle", "DontCast", "Profile", "WeightNorm", "GPU", "NaN"))


TEXTS: dict[str, Callable[[TorchObject], str]] = {}
"""The texts of registered classes after their names, by full names."""


class _Absent(Exception):
    """A field that the text needs is missing, or has another type."""


class _Field:
    """A field of a layer in a template: `%d` by default, otherwise as the letter after the colon says.

    `f` is `%f`, `s` what Lua's `..` writes; a digit is the size of that dimension of a tensor, 1-based, `n` its number
    of elements; `p` is a number as `%d` where it is whole, else `%f`. After `*` comes what joins the numbers of a
    LongStorage, of very many the first.
    """

    def __init__(self, value: Value) -> None:
        self._value = value

    def __format__(self, form: str) -> str:
        value = self._value
        if isinstance(value, (bytes, str)) and form == "s":
            return clean(value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value)
        if isinstance(value, Tensor) and (form == "n" or (form.isdecimal() and int(form) <= len(value.size))):
            return str(value.numel if form == "n" else value.size[int(form) - 1])
        if isinstance(value, Storage) and form[:1] == "*" and not value.element.name.startswith("float"):
            from .arrays import elements

            numbers = elements(Tensor(value.element, value, (value.count,), (1,)), _SIZES)
            return form[1:].join([*map(str, numbers), *["…"] * (value.count > _SIZES)])
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if form in ("s", "g"):
                return f"{value:{'.14g' if form == 's' else form}}"
            if abs(value) < 2**53:
                return (
                    f"{value:f}" if form == "f" or (form == "p" and not float(value).is_integer()) else str(int(value))
                )
        raise _Absent


class _Fields(dict[str, Any]):
    """The fields of a layer, by name; `without` is a text."""

    def __init__(self, obj: TorchObject) -> None:
        super().__init__(without=" without bias" if obj.get("bias") in (None, False) else "")
        self._obj = obj

    def __missing__(self, name: str) -> _Field:
        return _Field(self._obj.get(name))


def _window(obj: TorchObject, axes: str, *, planes: bool, extra: str = "", always: bool = False) -> str:
    """Return kernel, step and padding: `(3 -> 8, 5x5, 2,2, 1,1)`.

    Args:
        obj: the layer.
        axes: of its fields `kW`, `dW`, `padW`: `WH` or `TWH`.
        planes: begin with `nInputPlane -> nOutputPlane`; the step is then shown only where it, or the padding, is not
            the default.
        extra: prefix of further fields, shown where one of them is present and not 0.
        always: show `extra` always.
    """
    steps, pads = [obj.get(f"d{axis}") for axis in axes], [obj.get(f"pad{axis}") for axis in axes]
    text = "({nInputPlane} -> {nOutputPlane}, " if planes else "("
    text += "x".join(f"{{k{axis}}}" for axis in axes)
    # In Lua nil ~= 0 is true, so that layers of releases without padding show their step.
    if not planes or any(step != 1 for step in steps) or any(pad != 0 for pad in pads):
        text += ", " + ",".join(f"{{d{axis}}}" for axis in axes)
    for prefix in ("pad", extra) if extra else ("pad",):
        found = [obj.get(f"{prefix}{axis}") for axis in axes]
        if any(each not in (None, 0) for each in found) or (always and prefix == extra):
            text += ", " + ",".join(f"{{{prefix}{axis}:s}}" for axis in axes)
    return text + ")"


_LINEAR = "({weight:2} -> {weight:1}){without}"
_PADS = "(l={pad_l}, r={pad_r}, t={pad_t}, b={pad_b})"
_AFTER: dict[str, tuple[str, ...]] = {
    "Linear": (_LINEAR,),
    "LinearWeightNorm": ("({inputSize} -> {outputSize}){without}",),
    "PartialLinear": ("({inputsize} -> {outputsize}){without}",),
    "Bilinear": ("({weight:2}x{weight:3} -> {weight:1}) {without}",),
    "SpatialFractionalMaxPooling": (
        "({outW}x{outH}, {poolSizeW},{poolSizeH})",
        "({ratioW}x{ratioH}, {poolSizeW},{poolSizeH})",
    ),
    "VolumetricFractionalMaxPooling": (
        "({outT}x{outW}x{outH}, {poolSizeT},{poolSizeW},{poolSizeH})",
        "({ratioT}x{ratioW}x{ratioH}, {poolSizeT},{poolSizeW},{poolSizeH})",
    ),
    **dict.fromkeys(("Dropout", "SpatialDropout", "VolumetricDropout"), ("({p:f})",)),
    "BatchNormalization": (" (2D) ({running_mean:n})",),
    "SpatialBatchNormalization": (" (4D) ({running_mean:n})",),
    "VolumetricBatchNormalization": (" (5D) ({running_mean:n})",),
    "ELU": (" (alpha:{alpha:f})",),
    "LeakyReLU": ("({negval:g})",),
    "RReLU": (" (l:{lower:f}, u:{upper:f})",),
    "Normalize": ("({p:p})",),
    "Reshape": ("({size:*x})",),
    "View": ("({size:*, })",),
    "SelectTable": ("({index:s})",),
    "Unsqueeze": ("(dim {pos:s})",),
    "UpSampling": (
        "({scale_factor}x, {mode:s})",
        "({odepth}x{oheight}x{owidth}, {mode:s})",
        "({oheight}x{owidth}, {mode:s})",
    ),
    "SpatialUpSamplingBilinear": ("({scale_factor})", "({oheight}, {owidth})"),
    **dict.fromkeys(("SpatialZeroPadding", "SpatialReflectionPadding", "SpatialReplicationPadding"), (_PADS,)),
    "WhiteNoise": (" mean: {mean:f}, std: {std:f}",),
}
"""Text after the class name; of several forms the first for which there are fields."""
_WINDOWS: dict[str, tuple[bool, str, bool]] = {
    **dict.fromkeys(("Convolution", "ConvolutionMM", "DepthWiseConvolution"), (True, "", False)),
    "DilatedConvolution": (True, "dilation", True),
    "FullConvolution": (True, "adj", False),
    **dict.fromkeys(("MaxPooling", "AveragePooling"), (False, "", False)),
    "DilatedMaxPooling": (False, "dilation", True),
}
"""Layers with a window, in two and three dimensions: whether they have planes, further fields, and shown always."""


def _after(obj: TorchObject, name: str) -> str:
    """Return the text after the class name."""
    axes = "WH" if name.startswith("Spatial") else "TWH" if name.startswith("Volumetric") else ""
    window = _WINDOWS.get(name.removeprefix("Spatial").removeprefix("Volumetric")) if axes else None
    forms = _AFTER.get(name, ("",))
    if window is not None:
        planes, extra, always = window
        form = _window(obj, axes, planes=planes, extra=extra, always=always)
        forms = (form + "{without}" if planes and axes == "WH" else form,)
    fields = _Fields(obj)
    for form in forms:
        with suppress(_Absent, TypeError, ValueError, OverflowError):  # a field is missing or has another type
            return form.format_map(fields)
    return ""


def _family(obj: TorchObject) -> tuple[str, str]:
    """Split into package and class: `("nn", "Linear")`."""
    package, _, name = str(obj.class_name).partition(".")
    return package, name


def layer_text(obj: TorchObject) -> str:
    """Return a layer on one line, as its `__tostring__` writes it, without its children: `nn.Linear(3 -> 4)`."""
    package, name = _family(obj)
    shown, own = clean(str(obj.class_name)), TEXTS.get(str(obj.class_name))
    if own is not None:
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):  # a field is missing or has another type
            return shown + own(obj)
        return shown
    return "CReLU()" if shown == "nn.CReLU" else shown + (_after(obj, name) if package in ("nn", "cudnn") else "")


_Work = tuple[str, Value, str, int]
"""The start of the first line, what to show after it (`None`: nothing), the start of further lines, depth."""


def _inside(obj: TorchObject, head: str, indent: str, depth: int) -> list[_Work]:
    """Return the lines of a module; those of the modules inside it are still to be expanded."""
    package, name = _family(obj)
    if package != "nn":
        return [(head + layer_text(obj), None, "", 0)]
    modules = obj.get("modules")
    inner = modules.as_list() if isinstance(modules, Table) else None
    shown = clean(str(obj.class_name))
    if name == "MapTable":
        module = obj.get("module")
        if module is None:
            return [(f"{head}{shown} {{ }}", None, "", 0)]
        return [
            (f"{head}{shown} {{", None, "", 0),
            (indent + "  ", module, indent + "        ", depth + 1),
            (indent + "}", None, "", 0),
        ]
    if inner is None:
        return [(head + layer_text(obj), None, "", 0)]
    if name in _DECORATORS and inner:
        about = {"GPU": "device", "NaN": "id"}.get(name)
        number = obj.get(about) if about else None
        own = f"({_Field(number):s})" if isinstance(number, (int, float)) else ""
        return [(f"{head}{shown}{own} @ ", inner[0], indent, depth + 1)]
    if name in _SEQUENTIAL:
        arrows = "".join(f" -> ({number})" for number in range(1, min(len(inner), _LINES) + 1))
        work: list[_Work] = [
            (head + "nn.Sequential {", None, "", 0),
            (f"{indent}  [input{arrows}{' -> …' if len(inner) > _LINES else ''} -> output]", None, "", 0),
        ]
        work += [(f"{indent}  ({number}): ", item, indent + "  ", depth + 1) for number, item in enumerate(inner, 1)]
        return [*work, (indent + "}", None, "", 0)]
    if name in _BRANCHES:
        work = [(f"{head}{shown} {{", None, "", 0), (indent + "  input", None, "", 0)]
        for number, item in enumerate(inner, 1):
            last = number == len(inner)
            start = f"{indent}{'     `-> ' if last else '    |`-> '}({number}): "
            work.append((start, item, indent + ("         " if last else "    |    "), depth + 1))
        return [*work, (indent + "     ... -> output", None, "", 0), (indent + "}", None, "", 0)]
    return [(head + layer_text(obj), None, "", 0)]


def module_text(value: TorchObject) -> str:
    """Return the tree of modules, at most 1000 lines of it."""
    lines: list[str] = []
    stack: list[_Work] = [("", value, "", 0)]
    while stack:
        head, item, indent, depth = stack.pop()
        if len(lines) >= _LINES:
            lines.append("…")
            break
        if item is None:
            lines.append(head)
        elif depth >= _DEPTH:
            lines.append(head + "…")
        elif isinstance(item, TorchObject):
            stack += reversed(_inside(item, head, indent, depth))
        else:
            lines.append(head + short(item))
    return "\n".join(lines)


def lua_text(value: Value) -> str:
    """Return the output of `print` for a Lua object, table or collection; of tables the first entries, one per line."""
    if isinstance(value, TorchObject):
        return module_text(value)
    lines = [f"  {_key_text(key)} : {short(item)}" for key, item in islice(value._inside(), _ENTRIES)]
    left = len(value.elements if isinstance(value, TdsVec) else value._table().raw_keys) - len(lines)
    return "\n".join(["{", *lines, *[f"  … {left} more"] * (left > 0), "}"])


def _key_text(key: Value) -> str:
    if isinstance(key, (bytes, str)):
        return clean(key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key)
    return f"{key:.14g}" if isinstance(key, float) else short(key)


def html(root: Value) -> str:
    """Return HTML of a table, an object or a `tds.Hash`, for notebooks: an expandable table of fields.

    Bounded and escaped; an object that occurs again is only named.
    """
    pieces: list[str] = []
    seen: set[int] = set()
    left = _HTML_ENTRIES
    stack: list[tuple[str, Value, int] | str] = [("", root, 0)]
    while stack:
        entry = stack.pop()
        if isinstance(entry, str):
            pieces.append(entry)
            continue
        start, value, depth = entry
        title = escape(layer_text(value) if isinstance(value, TorchObject) else short(value))
        table = value._table() if isinstance(value, (Table, TorchObject, TdsHash)) else None
        if table is None or not table.raw_keys or id(value) in seen or depth >= _HTML_DEPTH or left <= 0:
            again = " (shown above)" if id(value) in seen else ""
            shown = f"<code>{title}</code>" if isinstance(value, Tensor) else title
            pieces.append(f"<div>{start}{shown}{again}</div>")
            continue
        seen.add(id(value))
        pieces.append(f"<details{' open' * (depth == 0)}><summary>{start}{title}</summary>")
        pieces.append("<div style='margin-left:1.5em'>")
        count = min(len(table.raw_keys), _HTML_WIDE, left)
        left -= count
        more = [f"<div>… {len(table.raw_keys) - count} more</div>"] * (len(table.raw_keys) > count)
        stack += ["</div></details>", *more]
        inside = list(islice(table.raw_items(), count))
        stack += [(f"<b>{escape(_key_text(key))}</b>: ", item, depth + 1) for key, item in reversed(inside)]
    return "".join(pieces)
