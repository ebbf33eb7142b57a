"""Inert forms of the Python values in a `.pt` that are neither builtins nor tensors; keys as text, sets in order.

Nothing here is ever called.

| In the file | Here |
| --- | --- |
| None, bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict | the same builtin |
| `collections.OrderedDict`, `Counter` | the same; an `OrderedDict` keeps its `_metadata` attribute |
| `collections.defaultdict` | `DefaultDict`: a dict that remembers its factory and does not use it |
| `torch.Size` | `TorchSize`, a tuple |
| `torch.float32`, `torch.strided`, `torch.per_tensor_affine` | `TorchConstant` |
| `torch.device` | `Device` |
| tensors and parameters | `Tensor`; state that Lua tensors lack is in `Tensor.extras` |
| sparse and quantized tensors | `SparseTensor`, `QuantizedTensor` |
| a storage without element type | `UntypedStorage` |
| numpy arrays, scalars, dtypes | `NumpyArray`, `NumpyScalar`, `NumpyDtype` |
| a class or function by name | `PythonGlobal` |
| an object of any other class | `PythonObject` |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import field

from ..data import define, pattern
from ..io.copy import sha256
from ..text import Holder, Shown, Step, clean, counted, sizes

MODULE_PARTS = ("_parameters", "_buffers", "_modules")
"""The attributes that every `nn.Module` has, in the order of its state dict."""


class _Unset:
    """The class of `UNSET`, which is not `None`: a state in a file may be `None`."""

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"  # the one object, in copies and pickles too


UNSET: Any = _Unset()
"""The state of an object or tensor that has none."""


class TorchSize(tuple[int, ...]):
    """A `torch.Size`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"TorchSize({sizes(self)})"


class DefaultDict(dict[Any, Any]):
    """A `collections.defaultdict` that creates no values.

    Attributes:
        factory: the factory: a `PythonGlobal`, or None.
    """

    __slots__ = ("factory",)

    def __init__(self, factory: Any = None) -> None:
        super().__init__()
        self.factory = factory

    def __repr__(self) -> str:
        return f"<defaultdict: {counted(len(self), 'entry', 'entries')}>"


@define(frozen=True)
class TorchConstant(Shown):
    """A named constant of PyTorch.

    Attributes:
        kind: `dtype`, `layout`, `memory_format` or `qscheme`: its class in `torch`.
        name: `float32`, `strided`, `per_tensor_affine`: its name in `torch`.
    """

    kind: str
    name: str

    def _short(self) -> str:
        return f"torch.{self.name}"


@define(frozen=True)
class Device(Shown):
    """A `torch.device`.

    Attributes:
        type: `cpu`, `cuda`, `mps`.
        index: its number, if any.
    """

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def _short(self) -> str:
        return f"device {self}"


@define(eq=False)
class PythonGlobal(Shown):
    """A class or function that the file names. It was not imported.

    Attributes:
        module: `torch.nn.modules.linear`.
        name: `Linear`.
    """

    module: str
    name: str

    @property
    def path(self) -> str:
        """`torch.nn.modules.linear.Linear`."""
        return f"{self.module}.{self.name}"

    def _short(self) -> str:
        return f"PythonGlobal {clean(str(self.module))}.{clean(str(self.name), 40)}"


@define(eq=False)
class PythonObject(Holder):
    """An object of a class without special meaning here: its constructor, arguments and state. Nothing was called.

    Attributes:
        constructor: the callable: a `PythonGlobal`, or another value in a malicious file.
        how: the kind of construction: `reduce` (call with `args`), `newobj` (`cls.__new__(cls, *args)`), `newobj_ex`
            (with `kwargs` too), `inst` (protocols 0 and 1).
        args: the arguments: a tuple in any valid file.
        kwargs: keyword arguments of `newobj_ex`.
        state: the argument of `__setstate__`, or the attributes; `UNSET` where there is none.
        items: the items to append.
        pairs: the entries to set, as (key, value).
    """

    constructor: Any
    how: str
    args: Any = ()
    kwargs: Any = field(default=None, repr=False)
    state: Any = field(default=UNSET, repr=False)
    items: list[Any] = field(factory=list, repr=False)
    pairs: list[tuple[Any, Any]] = field(factory=list, repr=False)

    @property
    def cls(self) -> PythonGlobal | None:
        """The class: the constructor, or the class passed to `copyreg`; None if it is not a name."""
        cls = self.constructor
        # `copyreg._reconstructor` and `__newobj__`, `copy_reg` in Python 2, have the class as their first argument.
        is_of_copyreg = isinstance(cls, PythonGlobal) and cls.module in ("copy_reg", "copyreg")
        if is_of_copyreg and isinstance(self.args, tuple) and self.args:
            cls = self.args[0]
        return cls if isinstance(cls, PythonGlobal) else None

    @property
    def path(self) -> str:
        """`torch.nn.modules.linear.Linear`, or `<computed>` where the class is not a name."""
        cls = self.cls
        return cls.path if cls else "<computed>"

    @property
    def attributes(self) -> dict[str, Any]:
        """The result of `vars()` of the object, where the file states it in the usual form; else empty."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:
            # Of a class with `__slots__`: its `__dict__`, or None, and the values of its slots.
            variables, slots = state
            if isinstance(slots, dict):
                attributes = dict(variables) if isinstance(variables, dict) else {}
                attributes.update((name, value) for name, value in slots.items() if isinstance(name, str))
                return attributes
        return state if isinstance(state, dict) else {}

    @property
    def is_module(self) -> bool:
        """Return whether this is a pickled `nn.Module`: an object of any class with parameters, buffers and modules."""
        attributes = self.attributes
        return all(isinstance(attributes.get(name), dict) for name in MODULE_PARTS)

    def _inside(self) -> Iterator[tuple[Any, Any]]:
        """Yield names and values of the attributes, of a module first its parts; then what else it is made of."""
        attributes = self.attributes
        parts = MODULE_PARTS if self.is_module else ()
        for part in parts:
            yield from attributes[part].items()
        yield from ((name, item) for name, item in attributes.items() if name not in parts)
        if self.state is not UNSET and not attributes:
            yield Step(".<state>"), self.state
        for name in ("args", "kwargs", "items", "pairs"):
            part = getattr(self, name)
            if part:
                yield Step(f".<{name}>"), part

    def _short(self) -> str:
        cls = self.cls
        path = f"{clean(str(cls.module))}.{clean(str(cls.name), 40)}" if cls else "<computed>"
        return f"PythonObject {path}"


QUANTIZED_CLASS = pattern(r"torch\.(?:ao\.)?nn\.(?:intrinsic\.)?quantized\.")
"""The classes of quantized modules."""
_CONV_STATE = (
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "transposed", "output_padding"),
    *("groups", "padding_mode", "weight", "bias", "scale", "zero_point", "training"),
)
"""The items of the state of a quantized convolution."""


def is_pickled_module(value: Any) -> bool:
    """Return whether a value is a pickled `nn.Module`: an object of any class with parameters, buffers and modules."""
    return isinstance(value, PythonObject) and (value.is_module or is_quantized_conv(value))


def is_quantized_conv(value: PythonObject) -> bool:
    """Return whether a value is a quantized convolution, the only modules whose state is a tuple."""
    state = value.state
    return isinstance(state, tuple) and len(state) == len(_CONV_STATE) and bool(QUANTIZED_CLASS.match(value.path))


def attributes_of(module: PythonObject) -> dict[str, Any]:
    """Return the attributes of a module, also of a quantized convolution, whose state is a tuple."""
    if not is_quantized_conv(module):
        return module.attributes
    return {**{part: {} for part in MODULE_PARTS}, **dict(zip(_CONV_STATE, module.state))}


@define(eq=False)
class NumpyDtype(Shown):
    """A numpy dtype as pickled.

    Attributes:
        code: kind and size, `f8`.
        order: `<`, `>`, `=` or `|`.
        state: the state tuple as in the file; it holds the fields of structured types.
    """

    code: str
    order: str = "|"
    state: Any = field(default=None, repr=False)

    @property
    def itemsize(self) -> int:
        """Bytes of one element according to the code; 0 for structured types, objects, and codes without a size."""
        digits = self.code.lstrip("?biufcmMSUVOa")
        if self.code.startswith(("V", "O")):
            return 0
        size = int(digits) if digits.isdecimal() and len(digits) < 10 else 0
        return size * 4 if self.code.startswith("U") else size  # `U` counts characters of UTF-32

    def _short(self) -> str:
        return f"NumpyDtype {clean(self.order, 2)}{clean(self.code, 40)}"


@define(eq=False)
class NumpyArray(Holder):
    """A numpy array.

    Attributes:
        dtype: its element type.
        shape: of the array.
        fortran: whether the first index runs fastest.
        data: the elements' bytes; a list of values where the elements are Python objects.
        cls: `numpy.ndarray`, or the subclass.
    """

    dtype: NumpyDtype
    shape: tuple[int, ...]
    fortran: bool
    data: Any = field(repr=False)
    cls: str = "numpy.ndarray"

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        return (("data", self.data),) if isinstance(self.data, list) else ()

    def _short(self) -> str:
        return f"NumpyArray {clean(self.dtype.code, 40)} {sizes(self.shape)}"


@define(eq=False)
class NumpyScalar(Shown):
    """A numpy scalar.

    Attributes:
        dtype: its type.
        data: its bytes.
    """

    dtype: NumpyDtype
    data: Any

    @property
    def array(self) -> NumpyArray:
        """The same as an array without dimensions."""
        return NumpyArray(self.dtype, (), fortran=False, data=self.data)

    def _short(self) -> str:
        return f"NumpyScalar {clean(self.dtype.code, 40)}"


NAMED = (NumpyDtype, TorchConstant, Device, PythonGlobal)
"""The types of value that are mere names."""

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_SHOWN_PARTS = 100
"""Most parts that the text of a key shows, at all depths together."""


def name_text(value: Any) -> str:
    """Return the name of one of `NAMED`: `torch.float32`, `cuda:0`, `f8`, `collections.deque`."""
    if isinstance(value, NumpyDtype):
        return value.code
    if isinstance(value, TorchConstant):
        return f"torch.{value.name}"
    return value.path if isinstance(value, PythonGlobal) else str(value)


def _integer_text(value: int) -> str:
    """Return an integer as Python writes it; in hexadecimal digits if it has more decimal ones than Python writes.

    Python's limit, `sys.set_int_max_str_digits`, is 4300 digits unless a program changes it.
    """
    try:
        return repr(value)
    except ValueError:
        return hex(value)


def key_text(key: Any, marks: dict[int, bytes] | None = None) -> str:
    """Return a key as Python writes it: `(1, 'a')`. Of one with very many parts only the first.

    Different keys may have the same text: parts that are left out or are objects do not show.

    Args:
        key: the key.
        marks: the hashes of parts of earlier keys, see `in_order`; new ones are added.
    """
    marks = {} if marks is None else marks
    parts_left = _SHOWN_PARTS

    def text(part: Any) -> str:
        """Return the text of the key or of a part of it, and count it.

        The limit is rough: of a tuple as many items are shown as were left before it, however many its first one takes.
        """
        nonlocal parts_left
        parts_left -= 1
        if isinstance(part, (tuple, frozenset)) and parts_left > 0:
            items = in_order(part, marks) if isinstance(part, frozenset) else part
            texts = [text(item) for item in items[:parts_left]]
            if len(texts) < len(part):
                texts.append("…")
            joined = ", ".join(texts)
            if isinstance(part, frozenset):
                return f"frozenset({{{joined}}})" if part else "frozenset()"
            return f"({joined},)" if len(part) == 1 else f"({joined})"
        if isinstance(part, int):
            return _integer_text(part)
        if isinstance(part, _SCALARS):
            return repr(part)
        if isinstance(part, NAMED):
            return name_text(part)
        return f"<{part.path if isinstance(part, PythonObject) else type(part).__name__}>"

    return text(key)


def in_order(items: Iterable[Any], marks: dict[int, bytes] | None = None) -> list[Any]:
    """Return the items of a set in an order that does not depend on Python's hashes.

    It is numbers, text, bytes, then the rest, each sorted; objects of unknown classes by class name only.

    Args:
        items: of the set.
        marks: the hashes of the content of parts of earlier sets, by identity, so that shared parts are hashed once;
            new ones are added. The parts must still exist.
    """
    marks = {} if marks is None else marks
    return sorted(items, key=lambda item: _sort_key(item, marks))


def _sort_key(item: Any, marks: dict[int, bytes]) -> tuple[int, Any]:
    """Return the key of an item for sorting: the number of its kind, then what orders items of this kind."""
    if isinstance(item, (int, float)) and item == item:  # NaN, which is not equal to itself, has no order
        return 0, item
    if isinstance(item, str):
        return 1, item
    if isinstance(item, bytes):
        return 2, item
    return 3, _content_hash(item, marks)


def _content_hash(root: Any, marks: dict[int, bytes]) -> bytes:
    """Return a hash of an item's content, and add it and those of its parts to the marks.

    Each part is hashed once, without recursion: below it on the stack is what it is a part of. Tuples and frozensets
    hold no cycles.
    """
    stack = [root]
    while stack:
        item = stack[-1]
        if id(item) in marks:
            stack.pop()
        elif isinstance(item, (tuple, frozenset)):
            missing = [part for part in item if id(part) not in marks]
            if missing:
                stack += missing
                continue
            hashes = [marks[id(part)] for part in item]
            if isinstance(item, frozenset):  # whose parts have no order
                hashes.sort()
            marks[id(item)] = sha256(type(item).__name__.encode() + b"".join(hashes)).digest()
        else:
            marks[id(item)] = sha256(_leaf_text(item).encode("utf-8", "surrogatepass")).digest()
    return marks[id(root)]


def _leaf_text(item: Any) -> str:
    """Return a text that tells items without parts apart: class and value, or the class alone."""
    if isinstance(item, (PythonGlobal, PythonObject)):
        return f"{type(item).__name__} {item.path}"
    if isinstance(item, (*_SCALARS, Device, TorchConstant)):
        return f"{type(item).__name__} {item!r}"
    return type(item).__name__
