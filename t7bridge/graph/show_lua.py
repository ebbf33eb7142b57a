"""Values as Lua's `print` shows them: `str` of objects and tables. Bounded for shared and cyclic values.

Source: nn 8726825, the `__tostring__` of each class. Lua prints a shared module again at each place, and never ends on
a cycle; here lines and depth are limited, and `…` marks the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from .lua import Table, TdsHash, TdsVec, TorchObject, Value
from .show import clean, short
from .storage import Storage
from .tensor import Tensor

_LINES = 1000
_DEPTH = 60
_ENTRIES = 100
_SIZES = 20

_SEQUENTIAL = frozenset(("Sequential", "LayerNormalization", "Maxout", "SpatialLPPooling"))
_BRANCHES = frozenset(("Concat", "DepthConcat", "ConcatTable", "ParallelTable", "Parallel"))
_DECORATORS = frozenset(("Decorator", "Bottle", "DontCast", "Profile", "WeightNorm", "GPU", "NaN"))
_BATCH_DIMENSIONS = {"BatchNormalization": 2, "SpatialBatchNormalization": 4, "VolumetricBatchNormalization": 5}


TEXTS: dict[str, Callable[[TorchObject], str]] = {}
"""The texts of registered classes after their names, by full names."""


class _Absent(Exception):
    """A field that the text needs is missing, or not a number."""


def _text(value: Value) -> str:
    """Return a value as Lua's `..` writes it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if isinstance(value, (bytes, str)):
            return clean(value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value)
        raise _Absent
    return f"{value:.14g}"


def _whole(value: Value) -> str:
    """Format as `%d`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**53:
        raise _Absent
    return str(int(value))


def _decimal(value: Value) -> str:
    """Format as `%f`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**53:
        raise _Absent
    return f"{value:f}"


def _extents(obj: TorchObject, name: str) -> list[str]:
    """Return the numbers of a `LongStorage`; of very many the first."""
    value = obj.get(name)
    if isinstance(value, Storage) and not value.element.name.startswith("float"):
        whole = Tensor(value.element, value, (value.count,), (1,))
        from .arrays import elements

        return [str(number) for number in elements(whole, _SIZES)] + ["…"] * (value.count > _SIZES)
    raise _Absent


def _size(obj: TorchObject, name: str, *dimensions: int) -> list[str]:
    """Return sizes of a tensor's dimensions, 1-based."""
    tensor = obj.get(name)
    if not isinstance(tensor, Tensor) or len(tensor.size) < max(dimensions):
        raise _Absent
    return [str(tensor.size[dimension - 1]) for dimension in dimensions]


def _bias(obj: TorchObject) -> str:
    return " without bias" if obj.get("bias") in (None, False) else ""


def _linear(obj: TorchObject, inputs: str = "", outputs: str = "") -> str:
    if inputs:
        return f"({_whole(obj.get(inputs))} -> {_whole(obj.get(outputs))}){_bias(obj)}"
    wide, high = _size(obj, "weight", 2, 1)
    return f"({wide} -> {high}){_bias(obj)}"


def _window(obj: TorchObject, axes: str, *, planes: bool, extra: tuple[str, ...] = (), always: bool = False) -> str:
    """Return kernel, step and padding: `(3 -> 8, 5x5, 2,2, 1,1)`.

    Args:
        obj: the layer.
        axes: of its fields `kW`, `dW`, `padW`: `WH` or `TWH`.
        planes: begin with `nInputPlane -> nOutputPlane`; the step is then shown only where it, or the padding, is not
            the default.
        extra: prefixes of further fields, shown where one of them is present and not 0.
        always: show the last of `extra` always.
    """
    text = f"({_whole(obj.get('nInputPlane'))} -> {_whole(obj.get('nOutputPlane'))}, " if planes else "("
    text += "x".join(_whole(obj.get(f"k{axis}")) for axis in axes)
    steps, pads = [obj.get(f"d{axis}") for axis in axes], [obj.get(f"pad{axis}") for axis in axes]
    # In Lua nil ~= 0 is true, so that layers of releases without padding show their step.
    if not planes or any(step != 1 for step in steps) or any(pad != 0 for pad in pads):
        text += ", " + ",".join(_whole(step) for step in steps)
    for prefix in ("pad", *extra):
        found = [obj.get(f"{prefix}{axis}") for axis in axes]
        shown = any(each is not None for each in found) and any(each != 0 for each in found)
        if shown or (always and prefix == extra[-1]):
            text += ", " + ",".join(_text(each) for each in found)
    return text + ")"


def _up_sampling(obj: TorchObject) -> str:
    if obj.get("scale_factor") is not None:
        return f"({_whole(obj.get('scale_factor'))}x, {_text(obj.get('mode'))})"
    names = ("odepth", "oheight", "owidth") if obj.get("odepth") is not None else ("oheight", "owidth")
    return f"({'x'.join(_whole(obj.get(name)) for name in names)}, {_text(obj.get('mode'))})"


def _bilinear_up(obj: TorchObject) -> str:
    if obj.get("scale_factor") is not None:
        return f"({_whole(obj.get('scale_factor'))})"
    return f"({_whole(obj.get('oheight'))}, {_whole(obj.get('owidth'))})"


def _batch(obj: TorchObject) -> str:
    mean = obj.get("running_mean")
    if not isinstance(mean, Tensor):
        raise _Absent
    return f" ({_BATCH_DIMENSIONS[_family(obj)[1]]}D) ({mean.numel})"


def _pads(obj: TorchObject) -> str:
    return "(" + ", ".join(f"{side}={_whole(obj.get(f'pad_{side}'))}" for side in "lrtb") + ")"


def _fraction(obj: TorchObject, axes: str) -> str:
    out = [obj.get(f"out{axis}") or obj.get(f"ratio{axis}") for axis in axes]
    pools = ",".join(_whole(obj.get(f"poolSize{axis}")) for axis in axes)
    return f"({'x'.join(_whole(each) for each in out)}, {pools})"


# Text after the class name.
_AFTER: dict[str, Callable[[TorchObject], str]] = {
    "Linear": _linear,
    "LinearWeightNorm": lambda obj: _linear(obj, "inputSize", "outputSize"),
    "PartialLinear": lambda obj: _linear(obj, "inputsize", "outputsize"),
    "Bilinear": lambda obj: (
        "({}x{} -> {}) ".format(*_size(obj, "weight", 2, 3, 1)) + (_bias(obj) if obj.get("bias") is None else "")
    ),
    "SpatialConvolution": lambda obj: _window(obj, "WH", planes=True) + _bias(obj),
    "SpatialConvolutionMM": lambda obj: _window(obj, "WH", planes=True) + _bias(obj),
    "SpatialDepthWiseConvolution": lambda obj: _window(obj, "WH", planes=True) + _bias(obj),
    "SpatialDilatedConvolution": lambda obj: (
        _window(obj, "WH", planes=True, extra=("dilation",), always=True) + _bias(obj)
    ),
    "SpatialFullConvolution": lambda obj: _window(obj, "WH", planes=True, extra=("adj",)) + _bias(obj),
    "VolumetricConvolution": lambda obj: _window(obj, "TWH", planes=True),
    "VolumetricDilatedConvolution": lambda obj: (
        _window(obj, "TWH", planes=True, extra=("dilation",), always=True) + _bias(obj)
    ),
    "VolumetricFullConvolution": lambda obj: _window(obj, "TWH", planes=True, extra=("adj",)),
    "SpatialMaxPooling": lambda obj: _window(obj, "WH", planes=False),
    "SpatialAveragePooling": lambda obj: _window(obj, "WH", planes=False),
    "SpatialDilatedMaxPooling": lambda obj: _window(obj, "WH", planes=False, extra=("dilation",), always=True),
    "VolumetricMaxPooling": lambda obj: _window(obj, "TWH", planes=False),
    "VolumetricAveragePooling": lambda obj: _window(obj, "TWH", planes=False),
    "VolumetricDilatedMaxPooling": lambda obj: _window(obj, "TWH", planes=False, extra=("dilation",), always=True),
    "SpatialFractionalMaxPooling": lambda obj: _fraction(obj, "WH"),
    "VolumetricFractionalMaxPooling": lambda obj: _fraction(obj, "TWH"),
    **{name: lambda obj: f"({_decimal(obj.get('p'))})" for name in ("Dropout", "SpatialDropout", "VolumetricDropout")},
    **dict.fromkeys(_BATCH_DIMENSIONS, _batch),
    "ELU": lambda obj: f" (alpha:{_decimal(obj.get('alpha'))})",
    "LeakyReLU": lambda obj: f"({obj.get('negval'):g})",
    "RReLU": lambda obj: f" (l:{_decimal(obj.get('lower'))}, u:{_decimal(obj.get('upper'))})",
    "Normalize": lambda obj: (
        f"({_whole(obj.get('p')) if float(obj.get('p')).is_integer() else _decimal(obj.get('p'))})"
    ),
    "Reshape": lambda obj: f"({'x'.join(_extents(obj, 'size'))})",
    "View": lambda obj: f"({', '.join(_extents(obj, 'size'))})",
    "SelectTable": lambda obj: f"({_text(obj.get('index'))})",
    "Unsqueeze": lambda obj: f"(dim {_text(obj.get('pos'))})",
    "UpSampling": _up_sampling,
    "SpatialUpSamplingBilinear": _bilinear_up,
    **dict.fromkeys(("SpatialZeroPadding", "SpatialReflectionPadding", "SpatialReplicationPadding"), _pads),
    "WhiteNoise": lambda obj: f" mean: {_decimal(obj.get('mean'))}, std: {_decimal(obj.get('std'))}",
}


def _family(obj: TorchObject) -> tuple[str, str]:
    """Split into package and class: `("nn", "Linear")`."""
    package, _, name = str(obj.class_name).partition(".")
    return package, name


def layer_text(obj: TorchObject) -> str:
    """Return a layer on one line, as its `__tostring__` writes it, without its children: `nn.Linear(3 -> 4)`."""
    package, name = _family(obj)
    shown = clean(str(obj.class_name))
    known = TEXTS.get(str(obj.class_name)) or (_AFTER.get(name) if package in ("nn", "cudnn") else None)
    try:
        return "CReLU()" if shown == "nn.CReLU" else shown + (known(obj) if known else "")
    except (_Absent, ArithmeticError, LookupError, TypeError, ValueError):  # a field is missing or has another type
        return shown


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
        own = f"({_text(number)})" if isinstance(number, (int, float)) else ""
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
    if isinstance(value, TdsVec):
        pairs = [(str(number), item) for number, item in enumerate(value.elements[:_ENTRIES], 1)]
        count = len(value.elements)
    else:
        table = value.content if isinstance(value, TdsHash) else value
        pairs = [(_key_text(key), item) for key, item in islice(table.raw_items(), _ENTRIES)]
        count = len(table.raw_keys)
    lines = [f"  {key} : {short(item)}" for key, item in pairs]
    more = [f"  … {count - len(pairs)} more"] * (count > len(pairs))
    return "\n".join(["{", *lines, *more, "}"])


def _key_text(key: Value) -> str:
    if isinstance(key, (bytes, str)):
        return clean(key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key)
    return f"{key:.14g}" if isinstance(key, float) else short(key)
