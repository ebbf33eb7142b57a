"""Tensors rebuilt from PyTorch's pickles.

Source: PyTorch 2.13 `torch/_utils.py` (the functions of the same names), `torch/_tensor.py` `__reduce_ex__`,
`__setstate__`; PyTorch 0.1.12 `torch/tensor.py`, `torch/autograd/variable.py`.
"""

from __future__ import annotations

import math
import re
from typing import Any

from attrs import evolve

from ....errors import CorruptError, LimitError
from ....graph.dtypes import BY_LUA_WORD, PACKED, ElementType
from ....graph.python import (
    UNSET,
    Device,
    NumpyArray,
    PythonGlobal,
    QuantizedTensor,
    SparseTensor,
    TensorExtras,
    TorchConstant,
    TorchSize,
)
from ....graph.storage import Storage
from ....graph.tensor import Tensor, view_fault
from ..dtensor import is_distributed, whole_tensor
from ..storages import element_named, is_count, shown, span_of_bytes, storage_element
from .context import Context, Handler

_TENSOR_CLASS = re.compile(r"(\w+)Tensor\Z")
_MODERN_WORDS = {"Bool": "bool", "BFloat16": "bfloat16", "ComplexFloat": "complex64", "ComplexDouble": "complex128"}
_PLAIN_CLASSES = frozenset({"torch.Tensor", "torch._tensor.Tensor", "torch.autograd.variable.Variable"})
_PARAMETER = "torch.nn.parameter.Parameter"


def _wrong(what: str, found: Any = UNSET) -> CorruptError:
    return CorruptError(f"a tensor has {what}", found="" if found is UNSET else shown(found))


def _numbers(values: Any, what: str) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or not all(type(value) is int for value in values):
        raise _wrong(f"{what} that are not integers")
    return tuple(values)


def view(context: Context, storage: Storage, offset: Any, size: Any, stride: Any) -> Tensor:
    """Return a tensor on a storage, after checking that it lies inside.

    Raises:
        CorruptError: it does not, or its items are not integers.
        LimitError: it has too many dimensions.
    """
    size, stride = _numbers(size, "sizes"), _numbers(stride, "strides")
    if type(offset) is not int:
        raise _wrong("an offset that is not an integer", offset)
    context.work.spend(len(size))
    if len(size) > context.limits.dimensions:
        raise LimitError(
            "a tensor has too many dimensions",
            found=f"{len(size)}",
            limit="dimensions",
            value=context.limits.dimensions,
        )
    if max((offset, *size, *stride), default=0) >= 1 << 63 or min(stride, default=0) < 0:
        raise _wrong("sizes, strides or an offset out of range")
    count = storage.count * PACKED.get(storage.element.name, 1)
    reason = view_fault(size, stride, offset, count, is_scalar=not size)
    if reason:
        raise CorruptError(f"a tensor is not a view of its storage: {reason}")
    return Tensor(storage.element, storage, size, stride, offset, not size, device=storage.device)


def _tensor(context: Context, args: tuple[Any, ...], element: ElementType | None = None) -> Tensor:
    storage, offset, size, stride = args[:4]
    return view(context, context.storages.typed(storage, element), offset, size, stride)


def _marked(tensor: Tensor, requires_grad: Any, hooks: Any, metadata: Any = None) -> Tensor:
    tensor.requires_grad = bool(requires_grad)
    extras = TensorExtras(hooks=hooks or None)
    if metadata:
        if not isinstance(metadata, dict) or not set(metadata) <= {"conj", "neg"}:
            raise _wrong("unknown metadata", metadata)
        extras.conj, extras.neg = bool(metadata.get("conj")), bool(metadata.get("neg"))
    if extras.conj or extras.neg or extras.hooks is not None:
        tensor.extras = extras
    return tensor


def _rebuild_tensor(context: Context, args: tuple[Any, ...]) -> Any:
    return _tensor(context, args) if len(args) == 4 else NotImplemented


def _rebuild_tensor_v2(context: Context, args: tuple[Any, ...]) -> Any:
    if len(args) not in (6, 7):
        return NotImplemented
    return _marked(_tensor(context, args), *args[4:])


def _rebuild_tensor_v3(context: Context, args: tuple[Any, ...]) -> Any:
    if len(args) not in (7, 8):
        return NotImplemented
    return _marked(_tensor(context, args, _element(args[6])), args[4], args[5], *args[7:])


def _element(dtype: Any) -> ElementType:
    element = element_named(dtype.name) if isinstance(dtype, TorchConstant) and dtype.kind == "dtype" else None
    if element is None:
        raise _wrong("an unknown element type", dtype)
    return element


def _rebuild_parameter(context: Context, args: tuple[Any, ...]) -> Any:
    if len(args) not in (3, 4):
        return NotImplemented
    data, requires_grad, hooks = args[:3]
    if isinstance(data, SparseTensor):
        return evolve(data, is_parameter=True, requires_grad=bool(requires_grad))
    if not isinstance(data, Tensor):
        return NotImplemented
    parameter = _marked(evolve(data, is_parameter=True), requires_grad, hooks)
    if data.extras:
        parameter.extras = evolve(data.extras, hooks=hooks or None)
    if len(args) == 4:
        _set_python_state(parameter, args[3])
    return parameter


def _set_python_state(tensor: Tensor, state: Any) -> None:
    if state is not None and state != {} and state != (None, {}) and state != ({}, {}):
        tensor.extras = tensor.extras or TensorExtras()
        tensor.extras.state = state


def _rebuild_from_type(context: Context, args: tuple[Any, ...]) -> Any:
    """Return a tensor of a subclass, or with Python attributes."""
    if len(args) != 4:
        return NotImplemented
    function, cls, arguments, state = args
    if is_distributed(cls) and isinstance(arguments, tuple):
        whole = whole_tensor(arguments, state)
        return NotImplemented if whole is None else evolve(whole, requires_grad=arguments[-1] is True)
    handler = context.handler_of(function)
    if handler not in _SIMPLE or not isinstance(cls, PythonGlobal) or not isinstance(arguments, tuple):
        return NotImplemented
    assert handler is not None
    tensor = handler(context, arguments)
    if not isinstance(tensor, Tensor):
        return NotImplemented
    if cls.path == _PARAMETER:
        tensor.is_parameter = True
    elif cls.path not in _PLAIN_CLASSES:
        tensor.extras = tensor.extras or TensorExtras()
        tensor.extras.subclass = cls
    _set_python_state(tensor, state)
    return tensor


def _rebuild_quantized(context: Context, args: tuple[Any, ...]) -> Any:
    if len(args) != 7 or not isinstance(args[4], tuple) or not args[4]:
        return NotImplemented
    tensor = _marked(_tensor(context, args), args[5], args[6])
    scheme, *rest = args[4]
    if not isinstance(scheme, TorchConstant) or len(rest) not in (2, 3):
        return NotImplemented
    axis = rest[2] if len(rest) == 3 else None
    if axis is not None and not (is_count(axis) and axis < len(tensor.size)):
        raise _wrong("channels along a missing dimension", axis)
    return QuantizedTensor(tensor, scheme.name, rest[0], rest[1], axis)


def _rebuild_sparse(context: Context, args: tuple[Any, ...]) -> Any:
    if len(args) != 2 or not isinstance(args[0], TorchConstant) or not isinstance(args[1], tuple):
        return NotImplemented
    layout, parts = args[0].name, args[1]
    pair = layout != "sparse_coo"
    if len(parts) not in ((4,) if pair else (3, 4)):
        return NotImplemented
    tensors = parts[: 3 if pair else 2]
    size = parts[3 if pair else 2]
    if not all(isinstance(part, Tensor) for part in tensors):
        raise _wrong("no indices or values")
    plain = tensors[1] if pair else None
    coalesced = parts[3] if len(parts) == 4 and not pair else None
    coalesced = None if coalesced is None else bool(coalesced)
    return SparseTensor(layout, tensors[0], plain, tensors[-1], TorchSize(_numbers(size, "sizes")), coalesced)


def _device_name(device: Any) -> str:
    return str(device) if isinstance(device, (str, Device)) else "cpu"


def _rebuild_from_numpy(context: Context, args: tuple[Any, ...]) -> Any:
    """Return a tensor of a device without storages of its own (XLA), saved as a numpy array."""
    if len(args) != 4 or not isinstance(args[0], NumpyArray):
        return NotImplemented
    from ..numpy_tensors import tensor_of_array

    tensor = tensor_of_array(args[0], _element(args[1]), _device_name(args[2]))
    return NotImplemented if tensor is None else _marked(tensor, args[3], None)


def _rebuild_from_cpu(context: Context, args: tuple[Any, ...]) -> Any:
    if len(args) != 4 or not isinstance(args[0], Tensor) or _element(args[1]) is not args[0].element:
        return NotImplemented
    return evolve(args[0], device=_device_name(args[2]), requires_grad=bool(args[3]))


# PyTorch 0.1: classes by name, called with lists


def tensor_class(value: PythonGlobal) -> ElementType | None:
    """Return the element type of `torch.FloatTensor` or `torch.cuda.FloatTensor`, None for anything else."""
    match = _TENSOR_CLASS.match(value.name) if value.module in ("torch", "torch.cuda") else None
    if match is None:
        return None
    return BY_LUA_WORD.get(match[1]) or element_named(_MODERN_WORDS.get(match[1], ""))


def tensor_of_list(context: Context, cls: PythonGlobal, args: tuple[Any, ...]) -> Any:
    """Return the tensor of `torch.FloatTensor([[1.0, 2.0]])`: how 0.1 pickles a tensor without `torch.save`."""
    element = tensor_class(cls)
    assert element is not None
    device = "cuda:0" if cls.module == "torch.cuda" else "cpu"
    if not args:
        return Tensor(
            element, Storage(element, 0, span_of_bytes(b"", element.itemsize), device), (0,), (1,), device=device
        )
    if len(args) != 1 or not isinstance(args[0], list):
        return NotImplemented
    from ..numpy_tensors import contiguous_stride, elements_of_list

    shape, span = elements_of_list(args[0], element, context.size)
    context.work.spend(math.prod(shape))
    storage = Storage(element, math.prod(shape), span, device)
    return Tensor(element, storage, shape, contiguous_stride(shape), device=device)


def storage_of_list(context: Context, cls: PythonGlobal, args: tuple[Any, ...]) -> Any:
    """Return the storage of `torch.FloatStorage([1.0, 2.0])`."""
    element = storage_element(cls)
    assert element is not None
    if len(args) > 1 or (args and not isinstance(args[0], list)):
        return NotImplemented
    device = "cuda:0" if cls.module == "torch.cuda" else "cpu"
    if not args or not args[0]:
        return Storage(element, 0, span_of_bytes(b"", element.itemsize), device)
    from ..numpy_tensors import elements_of_list

    shape, span = elements_of_list(args[0], element, context.size)
    context.work.spend(math.prod(shape))
    return Storage(element, shape[0], span, device) if len(shape) == 1 else NotImplemented


def _parameter(context: Context, args: tuple[Any, ...]) -> Any:
    """Return a `Parameter` of 0.1: the class is called with the tensor."""
    if not 1 <= len(args) <= 2 or not isinstance(args[0], Tensor):
        return NotImplemented
    return evolve(args[0], is_parameter=True, requires_grad=bool(args[1]) if len(args) == 2 else True)


def _variable(context: Context, args: tuple[Any, ...]) -> Any:
    return evolve(args[0]) if len(args) == 1 and isinstance(args[0], Tensor) else NotImplemented


def set_tensor_state(context: Context, tensor: Tensor, state: Any) -> Tensor:
    """Apply a state to a tensor as `__setstate__` of the releases that pickled tensors by state."""
    if isinstance(state, tuple) and len(state) == 4:  # storage, offset, sizes, strides
        new = _tensor(context, state)
        if new.element is not tensor.element:
            raise _wrong("a storage of another element type", new.element.name)
        _take(tensor, new)
    elif isinstance(state, tuple) and len(state) == 3:  # requires_grad, volatile, hooks
        _marked(tensor, state[0], state[2])
    elif isinstance(state, tuple) and len(state) == 5:  # data, grad, hooks, requires_grad, volatile
        if isinstance(state[0], Tensor):
            _take(tensor, state[0])
        _marked(tensor, state[3], state[2])
    else:
        _set_python_state(tensor, state)
    return tensor


def _take(tensor: Tensor, other: Tensor) -> None:
    """Make a tensor a view of another one's storage."""
    for name in ("element", "storage", "size", "stride", "offset", "is_scalar", "device"):
        setattr(tensor, name, getattr(other, name))


# TorchScript


def _typed_list(context: Context, args: tuple[Any, ...]) -> Any:
    return args[0] if len(args) == 1 and isinstance(args[0], list) else NotImplemented


def _restore_type_tag(context: Context, args: tuple[Any, ...]) -> Any:
    return args[0] if len(args) == 2 else NotImplemented


def _tensor_from_id(context: Context, args: tuple[Any, ...]) -> Any:
    if len(args) != 1 or not is_count(args[0]) or args[0] >= len(context.tensors):
        return NotImplemented
    return context.tensors[args[0]]


_SIMPLE = (
    _rebuild_tensor,
    _rebuild_tensor_v2,
    _rebuild_tensor_v3,
    _rebuild_parameter,
    _rebuild_from_numpy,
    _rebuild_from_cpu,
)

HANDLERS: dict[str, Handler] = {
    **{f"torch._utils.{function.__name__}": function for function in _SIMPLE[:4]},
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch._utils._rebuild_qtensor": _rebuild_quantized,
    "torch._utils._rebuild_sparse_tensor": _rebuild_sparse,
    "torch._utils._rebuild_sparse_csr_tensor": _rebuild_sparse,
    "torch._utils._rebuild_device_tensor_from_numpy": _rebuild_from_numpy,
    "torch._utils._rebuild_xla_tensor": _rebuild_from_numpy,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _rebuild_from_cpu,
    "torch._tensor._rebuild_from_type": _rebuild_from_type,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    _PARAMETER: _parameter,
    "torch.autograd.variable.Variable": _variable,
    **{f"torch.jit._pickle.build_{kind}list": _typed_list for kind in ("int", "double", "bool", "tensor")},
    "torch.jit._pickle.restore_type_tag": _restore_type_tag,
    "torch.jit._pickle.build_tensor_from_id": _tensor_from_id,
}
