"""Reductions of rare values: parameters, sparse and quantized tensors, numpy's, other objects.

The counterpart of `globals`, `rebuild_tensors` and `rebuild_numpy`. Source: PyTorch 2.13 `torch/_tensor.py`
`__reduce_ex__`, `torch/_utils.py`; numpy 2.4 `array_reduce`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

from attrs import evolve

from ....errors import UnsupportedError
from ....graph.keys import in_order
from ....graph.python import (
    UNSET,
    DefaultDict,
    Device,
    NumpyArray,
    NumpyDtype,
    NumpyScalar,
    PythonGlobal,
    PythonObject,
    QuantizedTensor,
    SparseTensor,
    TensorExtras,
    TorchConstant,
    TorchSize,
    UntypedStorage,
)
from ....graph.storage import Storage
from ....graph.tensor import Tensor
from .reductions import Global, NamedStorage, Reduction, dense, is_typed, named, of_ordered, of_storage, place, whole


def lower(value: Any, marks: dict[int, bytes]) -> Reduction | Global | NamedStorage:
    """Return the reduction of a value.

    Args:
        value: any except builtins that have opcodes of their own.
        marks: of the parts of sets, for `in_order`.

    Raises:
        UnsupportedError: a pickle cannot represent it.
    """
    if isinstance(value, (set, frozenset)):
        return Reduction(named("builtins", type(value).__name__), (in_order(value, marks),))
    for kind, how in _WAYS:
        if isinstance(value, kind):
            return how(value)  # type: ignore[no-any-return]
    raise UnsupportedError(f"a value of type {type(value).__name__} cannot be written to a .pt")


# Tensors


def _tensor(tensor: Tensor) -> Reduction:
    extras = tensor.extras or TensorExtras()
    if tensor.is_parameter:
        data = evolve(tensor, is_parameter=False, requires_grad=False, extras=evolve(extras, state=UNSET, hooks=None))
        if extras.state is UNSET:
            return Reduction(named("torch._utils", "_rebuild_parameter"), (data, tensor.requires_grad, _hooks(extras)))
        arguments = (data, tensor.requires_grad, _hooks(extras), extras.state)
        return Reduction(named("torch._utils", "_rebuild_parameter_with_state"), arguments)
    call = _dense(tensor, extras)
    if extras.state is UNSET and extras.subclass is None:
        return call
    cls = extras.subclass or PythonGlobal("torch", "Tensor")
    state = {} if extras.state is UNSET else extras.state
    return Reduction(named("torch._tensor", "_rebuild_from_type_v2"), (call.constructor, cls, call.args, state))


def _dense(tensor: Tensor, extras: TensorExtras) -> Reduction:
    call = dense(tensor, extras.hooks)
    arguments, name = call.args, "_rebuild_tensor_v2"
    if not is_typed(tensor):
        storage, _ = place(tensor)
        untyped = NamedStorage(storage, "UntypedStorage", storage.nbytes)
        arguments = (untyped, *arguments[1:], TorchConstant("dtype", tensor.element.name))
        name = "_rebuild_tensor_v3"
    if extras.conj or extras.neg:
        bits = (("conj", extras.conj), ("neg", extras.neg))
        arguments = (*arguments, {name: True for name, is_set in bits if is_set})
    return Reduction(named("torch._utils", name), arguments)


def _hooks(extras: TensorExtras) -> Any:
    return OrderedDict() if extras.hooks is None else extras.hooks


def _untyped(value: UntypedStorage) -> NamedStorage:
    storage = whole(value.storage)
    return NamedStorage(storage, "UntypedStorage", storage.nbytes)


def _quantized(value: QuantizedTensor) -> Reduction:
    tensor = value.tensor
    storage, offset = place(tensor)
    rest = () if value.axis is None else (value.axis,)
    arguments: tuple[Any, ...] = (
        NamedStorage(storage, tensor.element.torch_storage, storage.nbytes // tensor.element.itemsize),
        offset,
        tensor.shape,
        tensor.stride,
        (TorchConstant("qscheme", value.scheme), value.scale, value.zero_point, *rest),
        tensor.requires_grad,
        OrderedDict(),
    )
    return Reduction(named("torch._utils", "_rebuild_qtensor"), arguments)


def _sparse(value: SparseTensor) -> Reduction:
    layout = TorchConstant("layout", value.layout)
    parts: tuple[Any, ...] = (value.indices, value.plain_indices, value.values, value.size)
    if value.plain_indices is None:
        coalesced = () if value.is_coalesced is None else (value.is_coalesced,)
        parts = (value.indices, value.values, value.size, *coalesced)
    if value.is_parameter:
        data = evolve(value, is_parameter=False, requires_grad=False)
        return Reduction(named("torch._utils", "_rebuild_parameter"), (data, value.requires_grad, OrderedDict()))
    return Reduction(named("torch._utils", "_rebuild_sparse_tensor"), (layout, parts))


# PyTorch's constants


def _constant(value: TorchConstant) -> Reduction | Global:
    if value.kind == "layout":
        return Reduction(named("torch.serialization", "_get_layout"), (f"torch.{value.name}",))
    return named("torch", value.name)


def _device(value: Device) -> Reduction:
    return Reduction(named("torch", "device"), (value.type,) if value.index is None else (value.type, value.index))


# Python's own, and numpy's


def _default(value: DefaultDict) -> Reduction:
    factory = () if value.factory is None else (value.factory,)
    return Reduction(named("collections", "defaultdict"), factory, pairs=list(value.items()))


def _numpy_dtype(value: NumpyDtype) -> Reduction:
    state = value.state or (3, value.order, None, None, None, -1, -1, 0)
    return Reduction(named("numpy", "dtype"), (value.code, False, True), state=state)


def _numpy_array(value: NumpyArray) -> Reduction:
    module, _, name = value.cls.rpartition(".")
    state = (1, value.shape, value.dtype, value.fortran, value.data)
    return Reduction(named("numpy.core.multiarray", "_reconstruct"), (named(module, name), (0,), b"b"), state=state)


def _python_object(value: PythonObject) -> Reduction:
    rest: dict[str, Any] = {"state": value.state, "items": value.items, "pairs": value.pairs}
    if value.how == "newobj":
        return Reduction(value.constructor, value.args, new=True, **rest)
    if value.how == "newobj_ex":
        arguments = (value.constructor, value.args, value.kwargs or {})
        return Reduction(named("copyreg", "__newobj_ex__"), arguments, **rest)
    return Reduction(value.constructor, value.args, **rest)


_WAYS: tuple[tuple[type, Any], ...] = (
    (Tensor, _tensor),
    (Storage, of_storage),
    (UntypedStorage, _untyped),
    (QuantizedTensor, _quantized),
    (SparseTensor, _sparse),
    (TorchConstant, _constant),
    (Device, _device),
    (TorchSize, lambda value: Reduction(named("torch", "Size"), (tuple(value),))),
    (OrderedDict, of_ordered),
    (DefaultDict, _default),
    (Counter, lambda value: Reduction(named("collections", "Counter"), pairs=list(value.items()))),
    (complex, lambda value: Reduction(named("builtins", "complex"), (value.real, value.imag))),
    (bytearray, lambda value: Reduction(named("builtins", "bytearray"), (bytes(value),))),
    (NumpyDtype, _numpy_dtype),
    (NumpyArray, _numpy_array),
    (NumpyScalar, lambda value: Reduction(named("numpy.core.multiarray", "scalar"), (value.dtype, value.data))),
    (PythonGlobal, lambda value: named(value.module, value.name)),
    (PythonObject, _python_object),
)
