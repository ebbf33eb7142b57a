"""Inert forms of the Python values in a `.pt` that are neither builtins nor tensors. Nothing here is ever called.

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

from ..data import define
from ..text import counted
from .show import Holder, Shown, Step, clean, short, sizes
from .storage import Storage
from .tensor import UNSET as UNSET
from .tensor import Tensor

MODULE_PARTS = ("_parameters", "_buffers", "_modules")
"""The attributes that every `nn.Module` has, in the order of its state dict."""


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
        made = self.constructor
        if isinstance(made, PythonGlobal) and made.module in ("copy_reg", "copyreg") and isinstance(self.args, tuple):
            made = self.args[0] if self.args else made
        return made if isinstance(made, PythonGlobal) else None

    @property
    def path(self) -> str:
        """`torch.nn.modules.linear.Linear`, or `<computed>` where the class is not a name."""
        named = self.cls
        return named.path if named else "<computed>"

    @property
    def attributes(self) -> dict[str, Any]:
        """The result of `vars()` of the object, where the file states it in the usual form; else empty."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # (vars, slots)
            slots = {key: value for key, value in state[1].items() if isinstance(key, str)}
            return {**(state[0] if isinstance(state[0], dict) else {}), **slots}
        return state if isinstance(state, dict) else {}

    @property
    def is_module(self) -> bool:
        """Return whether this is a pickled `nn.Module`: an object of any class with parameters, buffers and modules."""
        attributes = self.attributes
        return all(isinstance(attributes.get(name), dict) for name in MODULE_PARTS)

    def _inside(self) -> Iterator[tuple[Any, Any]]:
        attributes = self.attributes
        parts = MODULE_PARTS if self.is_module else ()
        for part in parts:
            yield from attributes[part].items()
        yield from ((name, item) for name, item in attributes.items() if name not in parts)
        if self.state is not UNSET and not attributes:
            yield Step(".<state>"), self.state
        for name in ("args", "kwargs", "items", "pairs"):
            if part := getattr(self, name):
                yield Step(f".<{name}>"), part

    def _short(self) -> str:
        named = self.cls
        path = f"{clean(str(named.module))}.{clean(str(named.name), 40)}" if named else "<computed>"
        return f"PythonObject {path}"


@define(eq=False)
class TensorExtras(Shown):
    """State of a PyTorch tensor besides its elements, which a Lua tensor does not have.

    Attributes:
        conj: the elements are to be conjugated when read.
        neg: the elements are to be negated when read.
        state: Python attributes of the tensor; `UNSET` if there are none.
        hooks: backward hooks; None if there are none.
        subclass: the class, if it is neither `torch.Tensor` nor `Parameter`.
    """

    conj: bool = False
    neg: bool = False
    state: Any = UNSET
    hooks: Any = None
    subclass: PythonGlobal | None = None

    def _short(self) -> str:
        return f"TensorExtras{' conj' * bool(self.conj)}{' neg' * bool(self.neg)}"


@define(eq=False)
class SparseTensor(Holder):
    """A sparse tensor.

    Attributes:
        layout: `sparse_coo`, `sparse_csr`, `sparse_csc`, `sparse_bsr` or `sparse_bsc`.
        indices: of `sparse_coo`: shape (dimensions, entries); else the compressed indices.
        plain_indices: the other indices; None for `sparse_coo`.
        values: the entries.
        size: of the whole tensor.
        is_coalesced: of `sparse_coo`; None if the file does not say.
        is_parameter: whether it is an `nn.Parameter`.
        requires_grad: PyTorch's mark.
    """

    layout: str
    indices: Tensor
    plain_indices: Tensor | None
    values: Tensor
    size: TorchSize
    is_coalesced: bool | None = None
    is_parameter: bool = False
    requires_grad: bool = False

    def _inside(self) -> Iterator[tuple[Any, Any]]:
        yield "indices", self.indices
        if self.plain_indices is not None:
            yield "plain_indices", self.plain_indices
        yield "values", self.values

    def _short(self) -> str:
        return f"SparseTensor {clean(str(self.layout), 20)} of {short(self.values)}"


@define(eq=False)
class QuantizedTensor(Holder):
    """A quantized tensor: integers that mean (value - zero_point) * scale.

    Attributes:
        tensor: the integers: a view of a storage of `quint8`, `qint8`, `qint32`, `quint4x2` or `quint2x4`.
        scheme: `per_tensor_affine`, `per_channel_affine` or `per_channel_affine_float_qparams`.
        scale: a float; with the other schemes a `Tensor` or list with one value a channel.
        zero_point: an int, or likewise.
        axis: the dimension of the channels; None with `per_tensor_affine`.
    """

    tensor: Tensor
    scheme: str
    scale: Any
    zero_point: Any
    axis: int | None = None

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        return ("tensor", self.tensor), ("scale", self.scale), ("zero_point", self.zero_point)

    def _short(self) -> str:
        return f"QuantizedTensor {clean(str(self.scheme), 40)} of {short(self.tensor)}"


@define(eq=False)
class UntypedStorage(Holder):
    """A bare `torch.UntypedStorage`.

    Attributes:
        storage: the bytes; tensors on the same memory have the same storage.
    """

    storage: Storage

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        return (("storage", self.storage),)

    def _short(self) -> str:
        return f"UntypedStorage of {short(self.storage)}"


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
        """Bytes of one element according to the code; 0 for structured types and objects."""
        digits = self.code.lstrip("?biufcmMSUVOa")
        size = int(digits) if digits.isdecimal() and len(digits) < 10 else 0
        return size * 4 if self.code.startswith("U") else 0 if self.code.startswith(("V", "O")) else size

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
        return NumpyArray(self.dtype, (), False, self.data)

    def _short(self) -> str:
        return f"NumpyScalar {clean(self.dtype.code, 40)}"
