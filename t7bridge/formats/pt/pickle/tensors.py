"""Tensors, parameters and storages in PyTorch's pickles: how each release's calls are read, and those that are written.

`torch.distributed` divides a DTensor among processes; each (a rank) pickles its part, in `_local_tensor`.

Source: PyTorch 2.13 `torch/_utils.py` (the functions of the same names), `torch/_tensor.py` `__reduce_ex__`,
`__setstate__`, `torch/distributed/tensor/_api.py` `DTensor`; PyTorch 0.1.12 `torch/tensor.py`,
`torch/autograd/variable.py`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial
from typing import Any

from attrs import evolve

from ....errors import CorruptError, UnsupportedError
from ....graph.dtypes import BY_LUA_WORD, BY_TORCH_STORAGE, ELEMENT_TYPES, PACKED, ElementType
from ....graph.python import UNSET, Device, NumpyArray, PythonGlobal, PythonObject, TorchConstant, TorchSize
from ....graph.storage import Storage
from ....graph.tensor import QuantizedTensor, SparseTensor, Tensor, TensorExtras, UntypedStorage, contiguous, view_fault
from ....graph.walk import walk
from ....io.source import ByteSource
from ...fields import shown
from ...table import WHOLE_CHECKPOINT
from ..arrays import elements_of_list, tensor_of_array
from ..storages import STORAGE_CLASSES, is_count, span_of_bytes
from .context import STATES, PickleContext, register_call
from .names import SAFE, WEIGHTS_ONLY, words
from .reductions import FORMS, NamedStorage, Naming, Reduction, call_of, global_named

_PLAIN_CLASSES = frozenset({"torch.Tensor", "torch._tensor.Tensor", "torch.autograd.variable.Variable"})
"""Names of the class of plain tensors, which is no subclass."""
_PARAMETER = "torch.nn.parameter.Parameter"
_INT64 = ELEMENT_TYPES["int64"]
_TYPES_OF_SPARSE = ("float", "bfloat", "complex", "int8", "int16", "int32", "int64", "uint8", "bool")
"""Beginnings of the names of the types that values of sparse tensors may have."""
_COMPRESSED_LAYOUTS = frozenset({"sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"})
"""The sparse layouts besides `sparse_coo`."""


def _wrong(what: str, value: Any = UNSET) -> CorruptError:
    """Return the error for a tensor with a wrong part, and with the value found, if any."""
    return CorruptError(f"a tensor has {what}", found="" if value is UNSET else shown(value))


def _integers(values: Any, what: str) -> tuple[int, ...]:
    """Return sizes or strides, checked."""
    if not isinstance(values, (tuple, list)) or not all(type(value) is int for value in values):
        raise _wrong(f"{what} that are not integers")
    return tuple(values)


def view(context: PickleContext, storage: Storage, offset: Any, size: Any, stride: Any) -> Tensor:
    """Return a tensor on a storage, after checking that it lies inside.

    Args:
        context: has the limits, and is charged for the dimensions.
        storage: with its element type, which is the tensor's.
        offset: of the first element, 0-based, in elements. Like size and stride, any value of a damaged file.
        size: the extents; a tensor without dimensions is a scalar.
        stride: in elements.

    Raises:
        CorruptError: it does not lie inside, or offset, sizes or strides are not integers.
        LimitError: it has too many dimensions.
    """
    size = _integers(size, "sizes")
    stride = _integers(stride, "strides")
    if type(offset) is not int:
        raise _wrong("an offset that is not an integer", offset)
    context.work.spend(len(size))  # one tuple in the pickle may be the size of very many tensors
    if len(size) > context.limits.dimensions:
        raise context.limits.exceeded("dimensions", "a tensor has too many dimensions", found=f"{len(size)}")
    # PyTorch has 64-bit numbers, and no negative strides. `view_fault` refuses negative sizes and offsets.
    if max((offset, *size, *stride), default=0) >= 1 << 63 or min(stride, default=0) < 0:
        raise _wrong("sizes, strides or an offset out of range")
    # Quantized elements of less than a byte share one, so that there are more of them than in the storage.
    count = storage.count * PACKED.get(storage.element.name, 1)
    is_scalar = not size
    reason = view_fault(size, stride, offset, count, is_scalar=is_scalar)
    if reason:
        raise CorruptError(f"a tensor is not a view of its storage: {reason}")
    return Tensor(storage.element, storage, size, stride, offset, is_scalar, device=storage.device)


def _view(
    context: PickleContext, storage: Any, offset: Any, size: Any, stride: Any, element: ElementType | None = None
) -> Tensor:
    """Return a tensor on a storage as a pickle has it: typed, or untyped with an element type beside it."""
    return view(context, context.storages.typed(storage, element), offset, size, stride)


def has_gradient(element: ElementType) -> bool:
    """Return whether PyTorch computes gradients of a type: it refuses to mark tensors of others."""
    return element.name.startswith(("float", "bfloat", "complex"))


def _requires_grad(context: PickleContext, element: ElementType, value: Any) -> bool:
    """Return whether a tensor requires a gradient; note where PyTorch refuses to mark it."""
    if type(value) is not bool or (value and not has_gradient(element)):
        context.note_refused_use(f"a tensor of {element.name} with requires_grad {shown(value)}")
    return bool(value) and has_gradient(element)


def _set_marks(context: PickleContext, tensor: Tensor, requires_grad: Any, hooks: Any, metadata: Any = None) -> Tensor:
    """Set on a tensor what PyTorch's calls have after its stride, in their order, and return it.

    Args:
        context: notes what the safe loader refuses.
        tensor: is changed. Its extras are replaced if there are hooks or metadata.
        requires_grad: whether it requires a gradient.
        hooks: its backward hooks; empty if there are none.
        metadata: `conj` and `neg`, whether it is conjugated or negated when it is read; empty or `None` if neither.

    Raises:
        CorruptError: the metadata are not these.
    """
    tensor.requires_grad = _requires_grad(context, tensor.element, requires_grad)
    metadata = metadata or {}  # PyTorch asks for its truth value, too, so that any empty value is none
    if not isinstance(metadata, dict) or not set(metadata) <= {"conj", "neg"}:
        raise _wrong("unknown metadata", metadata)
    if metadata.get("conj") and not tensor.element.name.startswith("complex"):
        raise _wrong(f"elements of {tensor.element.name}, and is marked as conjugated")
    if hooks or any(metadata.values()):
        tensor.extras = TensorExtras(bool(metadata.get("conj")), bool(metadata.get("neg")), hooks=hooks or None)
    return tensor


def _element(dtype: Any) -> ElementType:
    """Return the element type of a dtype, `torch.float32`."""
    if isinstance(dtype, TorchConstant) and dtype.kind == "dtype":
        element = ELEMENT_TYPES.get(dtype.name)
        if element is not None:
            return element
    raise _wrong("an unknown element type", dtype.path if isinstance(dtype, PythonGlobal) else dtype)


# Newer releases have a last argument more: the metadata.
@register_call("torch._utils._rebuild_tensor_v2", *[object] * 7, min_args=6)
def _tensor_v2(context: PickleContext, storage: Any, offset: Any, size: Any, stride: Any, *marks: Any) -> Tensor:
    """Return a tensor on a typed storage; `marks` are those of `_set_marks`: requires_grad, hooks and metadata."""
    return _set_marks(context, _view(context, storage, offset, size, stride), *marks)


@register_call("torch._utils._rebuild_tensor_v3", *[object] * 8, min_args=7)
def _tensor_v3(
    context: PickleContext,
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any,
    hooks: Any,
    dtype: Any,
    *metadata: Any,
) -> Tensor:
    """Return a tensor on an untyped storage.

    Args:
        context: resolves the storage, and notes what the safe loader refuses.
        storage: the storage, without an element type.
        offset: of the first element, 0-based, in elements.
        size: the extents.
        stride: in elements.
        requires_grad: whether it requires a gradient.
        hooks: its backward hooks; empty if there are none.
        dtype: the element type, `torch.float32`.
        *metadata: nothing, or one dict: see `_set_marks`.
    """
    element = _element(dtype)
    if requires_grad is not False:  # PyTorch marks it before it sets its elements, and cannot set them then
        context.note_refused_use("a tensor of _rebuild_tensor_v3 that requires a gradient")
    tensor = _view(context, storage, offset, size, stride, element)
    return _set_marks(context, tensor, requires_grad, hooks, *metadata)


# The call of releases before 0.4, with storage, offset, size and stride.
register_call("torch._utils._rebuild_tensor", *[object] * 4)(_view)


@register_call("torch._utils._rebuild_parameter", (Tensor, SparseTensor), object, object)
@register_call("torch._utils._rebuild_parameter_with_state", (Tensor, SparseTensor), object, object, object)
def _parameter(context: PickleContext, data: Any, requires_grad: Any, hooks: Any, state: Any = None) -> Any:
    """Return a parameter of a tensor; the tensor itself may be in the value too, and stays as it is.

    Of a sparse parameter hooks and state are dropped: `SparseTensor` has no place for them.

    Args:
        context: notes what the safe loader refuses.
        data: the tensor.
        requires_grad: whether the parameter requires a gradient.
        hooks: the parameter's backward hooks; empty if there are none.
        state: its Python attributes; see `_is_settable`.
    """
    element = data.values.element if isinstance(data, SparseTensor) else data.element
    needs_gradient = _requires_grad(context, element, requires_grad)
    parameter = evolve(data, is_parameter=True, requires_grad=needs_gradient)
    if isinstance(parameter, SparseTensor):
        return parameter
    if data.extras or hooks:
        # Its own: the tensor's, such as whether it is conjugated, with the hooks of the parameter.
        parameter.extras = evolve(data.extras or TensorExtras(), hooks=hooks or None)
    return _set_python_state(parameter, state)


def _is_settable(state: Any) -> bool:
    """Return whether PyTorch can set the attributes of a state of a tensor.

    A state is the attributes, or a pair: the attributes, and those in slots.
    """
    parts = state if isinstance(state, tuple) else (state, None)
    if len(parts) != 2 or not all(part is None or isinstance(part, dict) for part in parts):
        return False
    names = [name for part in parts for name in part or ()]
    # `SAFE.attributes` are those of a tensor that are read only.
    return all(type(name) is str and name not in SAFE.attributes for name in names)


def _set_python_state(tensor: Tensor, state: Any) -> Tensor:
    """Set the Python attributes of a tensor, and return it.

    Args:
        tensor: is changed, if there are any.
        state: the attributes, see `_is_settable`; of a class of another package anything, which is kept as it is.

    Raises:
        CorruptError: PyTorch could not set them.
    """
    is_plain = tensor.extras is None or tensor.extras.subclass is None
    if is_plain and not _is_settable(state):
        raise _wrong("a state that PyTorch cannot set", state)
    is_empty = state is None or state == {} or state == (None, {}) or state == ({}, {})
    if not is_empty:
        tensor.extras = tensor.extras or TensorExtras()
        tensor.extras.state = state
    return tensor


@register_call(
    "torch._utils._rebuild_device_tensor_from_numpy torch._utils._rebuild_xla_tensor",
    NumpyArray, object, object, object,
)  # fmt: skip
def _from_numpy(context: PickleContext, array: NumpyArray, dtype: Any, device: Any, requires_grad: Any) -> Any:
    """Return a tensor of a device without storages of its own (XLA), saved as a numpy array.

    `NotImplemented` if no tensor has the elements of such an array.

    Args:
        context: notes what the safe loader refuses.
        array: the elements.
        dtype: the element type of the tensor, to which they are converted.
        device: its device; `cpu` if it is none.
        requires_grad: whether it requires a gradient.
    """
    tensor = tensor_of_array(array, _element(dtype), _device_name(device))
    if tensor is None:
        return NotImplemented
    return _set_marks(context, tensor, requires_grad, hooks=None)


@register_call("torch._utils._rebuild_device_tensor_from_cpu_tensor", Tensor, object, object, object)
def _from_cpu(context: PickleContext, tensor: Tensor, dtype: Any, device: Any, requires_grad: Any) -> Any:
    """Return a tensor of another device, saved as one of the CPU.

    `NotImplemented` if the element type is another than that of the saved one.

    Args:
        context: notes what the safe loader refuses.
        tensor: the saved one, which stays as it is.
        dtype: the element type of the tensor.
        device: its device; `cpu` if it is none.
        requires_grad: whether it requires a gradient.
    """
    if _element(dtype) is not tensor.element:  # PyTorch would convert it
        return NotImplemented
    needs_gradient = _requires_grad(context, tensor.element, requires_grad)
    return evolve(tensor, device=_device_name(device), requires_grad=needs_gradient)


def _device_name(device: Any) -> str:
    return str(device) if isinstance(device, (str, Device)) else "cpu"


_TENSOR_FUNCTIONS = words(
    "tensor tensor_v2 tensor_v3 parameter parameter_with_state device_tensor_from_numpy xla_tensor "
    "device_tensor_from_cpu_tensor",
    "torch._utils._rebuild_",
)
"""The functions that build a `Tensor`, to which a subclass and a state can be added."""


@register_call("torch._tensor._rebuild_from_type torch._tensor._rebuild_from_type_v2", object, object, tuple, object)
def _from_type(context: PickleContext, function: Any, cls: Any, arguments: tuple[Any, ...], state: Any) -> Any:
    """Return a tensor of a subclass, or with Python attributes.

    Args:
        context: resolves the inner call.
        function: the function that PyTorch calls for the tensor.
        cls: the class that it gives the tensor.
        arguments: of the function.
        state: the attributes that it sets.

    Returns:
        `NotImplemented` if the call stays an inert object: it is not of a tensor, or only a part of one.
    """
    if _is_distributed(cls):
        local_tensor = _whole_tensor(arguments, state)
        if local_tensor is None:  # `check_whole` refuses the inert object
            return NotImplemented
        # The last argument of `_rebuild_wrapper_subclass` is requires_grad.
        return evolve(local_tensor, requires_grad=arguments[-1] is True)
    if not isinstance(function, PythonGlobal) or not isinstance(cls, PythonGlobal):
        return NotImplemented
    if function.path not in _TENSOR_FUNCTIONS:
        return NotImplemented
    tensor = context.value_of_call(function, arguments, "reduce")
    if not isinstance(tensor, Tensor):
        return NotImplemented
    # The tensor was built for this call alone, so that it may be changed.
    if cls.path == _PARAMETER:
        tensor.is_parameter = True
    elif cls.path not in _PLAIN_CLASSES:
        if cls.path in WEIGHTS_ONLY:  # a class of PyTorch or Python, of something else than tensors
            return NotImplemented
        tensor.extras = tensor.extras or TensorExtras()
        tensor.extras.subclass = cls
    return _set_python_state(tensor, state)


@register_call("torch._utils._rebuild_qtensor", object, object, object, object, tuple, object, object)
def _quantized(
    context: PickleContext, storage: Any, offset: Any, size: Any, stride: Any, scheme: Any, grad: Any, hooks: Any
) -> Any:
    """Return a quantized tensor; `NotImplemented` for a scheme that PyTorch does not have.

    A scheme is its name, then the scale and zero point of the tensor, or those of its channels and their dimension.

    Args:
        context: resolves the storage, and notes what the safe loader refuses.
        storage: with the integers of the elements.
        offset: of the first element, 0-based, in elements.
        size: the extents.
        stride: in elements.
        scheme: how the integers stand for numbers.
        grad: whether it requires a gradient.
        hooks: its backward hooks; empty if there are none.

    Raises:
        CorruptError: the tensor does not lie in its storage, or the channels do not fit it.
    """
    if not scheme:
        return NotImplemented
    tensor = _tensor_v2(context, storage, offset, size, stride, grad, hooks)
    kind, *parameters = scheme
    if not isinstance(kind, TorchConstant) or not tensor.element.name.startswith(("qint", "quint")):
        return NotImplemented
    if kind.name == "per_tensor_affine" and len(parameters) == 2:
        scale, zero_point = parameters
        if type(scale) not in (int, float) or type(zero_point) is not int or abs(zero_point) >= 1 << 31:
            return NotImplemented  # a zero point is a value of the elements, of at most 32 bits
        return QuantizedTensor(tensor, kind.name, scale, zero_point)
    if kind.name in ("per_channel_affine", "per_channel_affine_float_qparams") and len(parameters) == 3:
        scales, zero_points, axis = parameters
        return _quantized_by_channel(tensor, kind.name, scales, zero_points, axis)
    return NotImplemented


def _quantized_by_channel(tensor: Tensor, scheme: str, scales: Any, zero_points: Any, axis: Any) -> QuantizedTensor:
    """Return a quantized tensor with a scale and a zero point for each channel.

    Args:
        tensor: the quantized elements.
        scheme: name of the scheme.
        scales: of the channels: a tensor or, in older releases, a list.
        zero_points: of the channels, as the scales.
        axis: the dimension of the channels, 0-based.

    Raises:
        CorruptError: there is no such dimension, or the numbers of channels differ.
    """
    if not is_count(axis) or axis >= len(tensor.size):
        raise _wrong("channels along a missing dimension", axis)
    channels = tensor.size[axis]
    counts = (_channel_count(scales), _channel_count(zero_points))
    if counts != (channels, channels) or type(scales) is not type(zero_points):
        raise _wrong("other numbers of scales, zero points and channels", counts)
    return QuantizedTensor(tensor, scheme, scales, zero_points, axis)


def _channel_count(values: Any) -> int:
    """Return the number of scales or zero points of channels; -1 if the values are neither a vector nor a list."""
    if isinstance(values, Tensor) and len(values.shape) == 1:
        return values.shape[0]
    if isinstance(values, list) and all(type(value) in (int, float) for value in values):
        return len(values)
    return -1


@register_call("torch._utils._rebuild_sparse_tensor torch._utils._rebuild_sparse_csr_tensor", TorchConstant, tuple)
def _sparse(context: PickleContext, layout: TorchConstant, parts: tuple[Any, ...]) -> Any:
    """Return a sparse tensor: by coordinates (COO), or by compressed rows or columns (CSR and its like).

    `NotImplemented` for another layout, or another number of parts, of which PyTorch makes no tensor either.
    """
    if layout.name == "sparse_coo" and len(parts) in (3, 4):
        return _sparse_by_coordinates(*parts)
    if layout.name in _COMPRESSED_LAYOUTS and len(parts) == 4:
        return _sparse_by_compressed_indices(layout.name, *parts)
    return NotImplemented


def _sparse_by_coordinates(indices: Any, values: Any, size: Any, is_coalesced: Any = None) -> SparseTensor:
    """Return a sparse tensor of the layout `sparse_coo`.

    Args:
        indices: of shape (sparse dimensions, elements).
        values: of shape (elements, …), where the others are dense dimensions.
        size: of the whole tensor.
        is_coalesced: whether indices are sorted and none occurs twice; `None` of older releases, which do not say it.

    Raises:
        CorruptError: the parts do not fit one another.
    """
    _check_sparse_parts(values, indices)
    _check_coordinates(indices, values, size)
    return SparseTensor(
        "sparse_coo",
        indices,
        plain_indices=None,
        values=values,
        size=TorchSize(_integers(size, "sizes")),
        is_coalesced=None if is_coalesced is None else bool(is_coalesced),
    )


def _sparse_by_compressed_indices(
    layout: str, compressed_indices: Any, plain_indices: Any, values: Any, size: Any
) -> SparseTensor:
    """Return a sparse tensor of a layout with compressed rows or columns. That its indices fit is not checked.

    Args:
        layout: one of `_COMPRESSED_LAYOUTS`.
        compressed_indices: where each row, or column, begins among the values.
        plain_indices: of each value its place in the row, or column.
        values: the values.
        size: of the whole tensor.
    """
    _check_sparse_parts(values, compressed_indices, plain_indices)
    return SparseTensor(layout, compressed_indices, plain_indices, values, TorchSize(_integers(size, "sizes")))


def _check_sparse_parts(values: Any, *indices: Any) -> None:
    """Check that values and indices are tensors, and that a sparse tensor can have values of this type.

    Raises:
        CorruptError: they are not, or it cannot.
    """
    if not all(isinstance(tensor, Tensor) for tensor in (values, *indices)):
        raise _wrong("no indices or values")
    if not values.element.name.startswith(_TYPES_OF_SPARSE):
        raise _wrong("values of a type that no sparse tensor has", values.element.name)


def _check_coordinates(indices: Tensor, values: Tensor, size: Any) -> None:
    """Check the parts of a tensor by coordinates.

    Args:
        indices: of shape (sparse dimensions, elements).
        values: of shape (elements, …), where the others are dense dimensions.
        size: of the whole tensor: sparse dimensions, then dense ones.

    Raises:
        CorruptError: the shapes do not fit one another, or the indices are not int64, the only type that PyTorch takes.
    """
    fits = len(indices.shape) == 2 and len(values.shape) > 0 and indices.element.name == "int64"
    if fits:
        sparse_dimensions, elements = indices.shape
        value_count, *dense_extents = values.shape
        dimensions = sparse_dimensions + len(dense_extents)
        fits = elements == value_count and dimensions == len(_integers(size, "sizes"))
    if not fits:
        shapes = f"{list(indices.shape)}, {list(values.shape)}"
        raise _wrong("indices that do not fit its values and size", shapes)


# PyTorch 0.1: classes by name, called with lists: `torch.FloatTensor([[1.0, 2.0]])`, `torch.FloatStorage([1.0, 2.0])`


def _of_list(
    context: PickleContext, items: list[Any] | None = None, *, element: ElementType, device: str, is_tensor: bool
) -> Any:
    """Return the storage or the tensor of a nested list of numbers; an empty one without a list, or of an empty list.

    Args:
        context: is charged for the elements.
        items: the argument of the call.
        element: the element type of the class.
        device: that of the class.
        is_tensor: whether the class is one of tensors; else it is one of storages.

    Returns:
        `NotImplemented` for a storage of lists in lists, which has no such shape.
    """
    shape: tuple[int, ...] = (0,)
    span = span_of_bytes(b"", element.itemsize)
    if items:
        # A number takes at least a byte of the pickle.
        shape, span = elements_of_list(items, element, most=context.origin.source.size)
        context.work.spend(math.prod(shape))
    storage = Storage(element, math.prod(shape), span, device)
    if is_tensor:
        return Tensor(element, storage, shape, contiguous(shape), device=device)
    return storage if len(shape) == 1 else NotImplemented


def _register_classes() -> None:
    """Register the classes of tensors and storages of both devices: calls with a list create one from it."""
    # Element types that Lua Torch does not have, and for which PyTorch added classes later.
    later_types = [BY_TORCH_STORAGE[f"{word}Storage"] for word in ("Bool", "BFloat16", "ComplexFloat", "ComplexDouble")]
    tensor_classes = {}
    for element in (*BY_LUA_WORD.values(), *later_types):
        name = f"{element.torch_storage.removesuffix('Storage')}Tensor"
        tensor_classes[f"torch.{name}"] = element
        tensor_classes[f"torch.cuda.{name}"] = element
    for path, element in (*STORAGE_CLASSES.items(), *tensor_classes.items()):
        device = "cuda:0" if path.startswith("torch.cuda.") else "cpu"
        is_tensor = path in tensor_classes
        from_list = partial(_of_list, element=element, device=device, is_tensor=is_tensor)
        register_call(path, list, min_args=0)(from_list)


_register_classes()


# A `Parameter` of 0.1: the class is called with the tensor.
@register_call(_PARAMETER, Tensor, object, min_args=1)
def _parameter_of_class(context: PickleContext, data: Tensor, requires_grad: Any = True) -> Tensor:
    """Return a parameter of a tensor, which itself stays as it is."""
    needs_gradient = _requires_grad(context, data.element, requires_grad)
    return evolve(data, is_parameter=True, requires_grad=needs_gradient)


# A copy: a state that is set on the variable must not change the tensor.
register_call("torch.autograd.variable.Variable", Tensor)(lambda context, data: evolve(data))


def _set_tensor_state(context: PickleContext, tensor: Tensor, state: Any) -> Tensor:
    """Apply a state to a tensor as `__setstate__` of the releases that pickled tensors by state; return the tensor.

    The number of its items tells what it is: 3 are the marks of a parameter, 4 the view of a storage, 5 a variable of
    0.1 with its tensor. Any other state is attributes, as in today's releases. Of a variable its gradient is dropped,
    as today's PyTorch does, and `volatile`, a mark for computing without gradients that 0.4 removed.
    """
    length = len(state) if isinstance(state, tuple) else 0
    memory = None
    """The tensor whose storage and shape are set; `None` where they stay."""
    if length == 3:
        requires_grad, _volatile, hooks = state
        _set_marks(context, tensor, requires_grad, hooks)
    elif length == 4:
        storage, offset, size, stride = state
        memory = _view(context, storage, offset, size, stride)
        if memory.element is not tensor.element:  # that of its class, `torch.FloatTensor`, which is empty until now
            raise _wrong("a storage of another element type", memory.element.name)
    elif length == 5:
        data, _gradient, hooks, requires_grad, _volatile = state
        if isinstance(data, Tensor):  # of any element type: the class of a variable does not say one
            memory = data
        _set_marks(context, tensor, requires_grad, hooks)
    else:
        _set_python_state(tensor, state)
    if memory is not None:
        for name in ("element", "storage", "size", "stride", "offset", "is_scalar", "device"):
            setattr(tensor, name, getattr(memory, name))
    return tensor


STATES[Tensor] = _set_tensor_state


# TorchScript


for _kind in ("int", "double", "bool", "tensor"):
    register_call(f"torch.jit._pickle.build_{_kind}list", list)(lambda context, items: items)
register_call("torch.jit._pickle.restore_type_tag", object, object)(lambda context, value, tag: value)


@register_call("torch.jit._pickle.build_tensor_from_id", int)
def _tensor_from_id(context: PickleContext, number: int) -> Any:
    """Return a tensor of `model.json` by its number; `NotImplemented` if there is none."""
    return context.tensors[number] if 0 <= number < len(context.tensors) else NotImplemented


@register_call("torch.storage._load_from_bytes", (bytes, bytearray))
def _load_from_bytes(context: PickleContext, data: bytes | bytearray) -> Any:
    """Return a storage that was pickled as an embedded file: by anything but `torch.save`.

    `NotImplemented` if the file has another value, or files inside others are not read.
    """
    context.work.spend(len(data))
    origin = context.origin
    value = origin.read_nested(origin, ByteSource.from_bytes(bytes(data), origin.source.name))
    return value if isinstance(value, Storage) else NotImplemented


# Calls that PyTorch's safe loader takes, of which the result has no type of its own here


@register_call("torch._utils._rebuild_nested_tensor", Tensor, Tensor, Tensor, Tensor)
def _nested(context: PickleContext, buffer: Tensor, sizes: Tensor, strides: Tensor, offsets: Tensor) -> Any:
    """Keep a valid nested tensor as an object: its buffer, and for each inner tensor sizes, strides and an offset.

    `NotImplemented` for an invalid one: it becomes the same object, and is noted as a call that the safe loader may
    refuse (see `PickleContext.value_of_call`).
    """
    has_ranks = len(buffer.shape) == 1 and len(sizes.shape) == 2
    fits = sizes.shape == strides.shape and offsets.shape == sizes.shape[:1]
    if not has_ranks or not fits or {sizes.element, strides.element, offsets.element} != {_INT64}:
        return NotImplemented
    function = global_named("torch._utils._rebuild_nested_tensor")
    return PythonObject(function, "reduce", (buffer, sizes, strides, offsets))


@register_call("torch._utils._rebuild_meta_tensor_no_storage", TorchConstant, tuple, tuple, bool)
def _meta(context: PickleContext, dtype: TorchConstant, size: Any, stride: Any, requires_grad: bool) -> Any:
    """Keep a valid tensor without elements, of the device `meta`, as an object; `NotImplemented` for an invalid one.

    Args:
        context: of the pickle; not needed here.
        dtype: the element type, `torch.float32`.
        size: the extents.
        stride: in elements.
        requires_grad: whether it requires a gradient.
    """
    element = _element(dtype)
    sizes = _integers(size, "sizes")
    strides = _integers(stride, "strides")
    # PyTorch may refuse larger numbers: their products do not fit 64 bits.
    if len(sizes) != len(strides) or not all(0 <= extent < 1 << 31 for extent in (*sizes, *strides)):
        return NotImplemented
    if requires_grad and not has_gradient(element):
        return NotImplemented
    path = "torch._utils._rebuild_meta_tensor_no_storage"
    return PythonObject(global_named(path), "reduce", (dtype, size, stride, requires_grad))


# Written forms


def without_retyping(storage: Storage) -> Storage:
    """Return the storage of which another is a view of all bytes as another element type; itself if it is none.

    One that is a part of another, as PyTorch had them until 1.5, stays a storage of its own: today's files cannot
    express the relation.
    """
    while storage.base is not None and not storage.base_offset and storage.nbytes == storage.base.nbytes:
        storage = storage.base
    return storage


def _untyped(storage: Storage) -> NamedStorage:
    """Return the persistent id of a storage without an element type."""
    storage = without_retyping(storage)
    return NamedStorage(storage, "UntypedStorage", storage.nbytes)


def _of_storage(storage: Storage, _: Naming) -> NamedStorage:
    """Return the persistent id of a storage in the value, outside of any tensor.

    Raises:
        UnsupportedError: PyTorch has no storage class for its element type, or it is a view as another type.
    """
    if without_retyping(storage) is not storage or not storage.element.torch_storage:
        raise UnsupportedError(f"a storage of {storage.element.name} outside of a tensor cannot be written to a .pt")
    return NamedStorage(storage, storage.element.torch_storage, storage.count)


def _dense(tensor: Tensor, extras: TensorExtras | None, naming: Naming) -> Reduction:
    """Return the call for a tensor without attributes of Python: `_rebuild_tensor_v2`, or `v3` where v2 cannot.

    v2 needs a storage class for the element type, and that the storage is of this type.

    Args:
        tensor: the tensor.
        extras: its conjugation, negation and hooks, in place of `tensor.extras`; class and state are for the caller.
        naming: says whether the file is for PyTorch's safe loader.

    Raises:
        UnsupportedError: it has a negative stride.
    """
    if min(tensor.stride, default=0) < 0:
        raise UnsupportedError("PyTorch has no negative strides", hint="Write a copy of the tensor: its numpy().")
    element = tensor.element
    storage = without_retyping(tensor.storage or Storage.empty(element))
    # The empty tensor of Lua, without dimensions, has shape (0,) in PyTorch.
    stride = tensor.stride if tensor.size or tensor.is_scalar else (1,)
    requires_grad = tensor.requires_grad and has_gradient(element)
    metadata: tuple[Any, ...] = ()  # left out where it is empty, as PyTorch does
    if extras is not None and (extras.conj or extras.neg):
        metadata = ({bit: True for bit in ("conj", "neg") if getattr(extras, bit)},)
    view_arguments = (tensor.offset, tensor.shape, stride)
    hooks = _hooks(extras)
    if element.torch_storage and storage.element is element:
        typed = NamedStorage(storage, element.torch_storage, storage.count)
        path = "torch._utils._rebuild_tensor_v2"
        return call_of(path, typed, *view_arguments, requires_grad, hooks, *metadata)
    # PyTorch marks this tensor before it sets the elements, and refuses to set those of a marked one: a file for the
    # safe loader loses the mark rather than fail.
    requires_grad = requires_grad and naming.allow_foreign
    dtype = TorchConstant("dtype", element.name)
    path = "torch._utils._rebuild_tensor_v3"
    return call_of(path, _untyped(storage), *view_arguments, requires_grad, hooks, dtype, *metadata)


def _hooks(extras: TensorExtras | None) -> Any:
    """Return the hooks of a tensor as PyTorch pickles them: an empty `OrderedDict` if there are none."""
    if extras is None or extras.hooks is None:
        return OrderedDict()
    return extras.hooks


def _of_tensor(tensor: Tensor, naming: Naming) -> Reduction:
    """Return the call for a tensor, which may be a parameter, of a subclass, or have attributes of Python.

    Args:
        tensor: the tensor.
        naming: says whether its subclass is written, and notes it if not.
    """
    extras = tensor.extras
    if extras is not None and extras.subclass is not None and not naming.may_write(extras.subclass):
        # The class is not written, and what it does with its state is not known: a plain tensor keeps attributes only.
        state = extras.state if _is_settable(extras.state) else UNSET
        extras = evolve(extras, subclass=None, state=state)
    if tensor.is_parameter:
        # A parameter is a call with a tensor, which is written as any other. State, hooks and the mark are those of the
        # parameter; class, conjugation and negation those of the tensor inside.
        inner_extras = None if extras is None else evolve(extras, state=UNSET, hooks=None)
        data = evolve(tensor, is_parameter=False, requires_grad=False, extras=inner_extras)
        state = UNSET if extras is None else extras.state
        return _of_parameter(data, tensor.requires_grad, _hooks(extras), state)
    call = _dense(tensor, extras, naming)
    if extras is None or (extras.state is UNSET and extras.subclass is None):
        return call
    # Attributes need this call too: that of a plain tensor has no place for them.
    cls = extras.subclass or PythonGlobal("torch", "Tensor")
    state = {} if extras.state is UNSET else extras.state
    return call_of("torch._tensor._rebuild_from_type_v2", call.constructor, cls, call.args, state)


def _of_parameter(data: Any, requires_grad: bool, hooks: Any, state: Any = UNSET) -> Reduction:
    """Return the call for a parameter.

    Args:
        data: the tensor inside it, which is no parameter.
        requires_grad: whether the parameter requires a gradient.
        hooks: see `_hooks`.
        state: its Python attributes; `UNSET` if there are none.
    """
    if state is UNSET:
        return call_of("torch._utils._rebuild_parameter", data, requires_grad, hooks)
    return call_of("torch._utils._rebuild_parameter_with_state", data, requires_grad, hooks, state)


def _of_quantized(value: QuantizedTensor, _: Naming) -> Reduction:
    """Return the call for a quantized tensor, by tensor or by channels: see `_quantized`, which reads it."""
    tensor = value.tensor
    element = tensor.element
    storage = without_retyping(tensor.storage or Storage.empty(element))
    # The storage may have another element type. It is named with the class of this tensor's, as the call has no place
    # for a type beside an untyped storage.
    count = storage.nbytes // element.itemsize
    scheme: tuple[Any, ...] = (TorchConstant("qscheme", value.scheme), value.scale, value.zero_point)
    if value.axis is not None:
        scheme = (*scheme, value.axis)
    return call_of(
        "torch._utils._rebuild_qtensor",
        NamedStorage(storage, element.torch_storage, count),
        tensor.offset,
        tensor.shape,
        tensor.stride,
        scheme,
        tensor.requires_grad,
        _hooks(extras=None),
    )


def _of_sparse(value: SparseTensor, _: Naming) -> Reduction:
    """Return the call for a sparse tensor, by coordinates or by compressed rows or columns.

    Of a parameter it is a call with a plain sparse tensor, which is written as any other value.
    """
    if value.is_parameter:
        data = evolve(value, is_parameter=False, requires_grad=False)
        return _of_parameter(data, value.requires_grad, _hooks(extras=None))
    parts: tuple[Any, ...]
    if value.plain_indices is not None:
        parts = (value.indices, value.plain_indices, value.values, value.size)
    elif value.is_coalesced is not None:
        parts = (value.indices, value.values, value.size, value.is_coalesced)
    else:
        parts = (value.indices, value.values, value.size)
    # PyTorch's function makes tensors of all layouts.
    return call_of("torch._utils._rebuild_sparse_tensor", TorchConstant("layout", value.layout), parts)


FORMS.update(
    {
        Storage: _of_storage,
        UntypedStorage: lambda value, _: _untyped(value.storage),
        Tensor: _of_tensor,
        QuantizedTensor: _of_quantized,
        SparseTensor: _of_sparse,
    }
)


_DISTRIBUTED_CLASSES = frozenset(("DTensor", "ShardedTensor", "DistributedTensor"))
_PLACEMENTS_OF_ELEMENTS = frozenset(("Replicate", "Shard", "_StridedShard"))
"""Placements by which each process has elements of the whole; by `Partial` it has addends of them."""


def _is_distributed(name: Any) -> bool:
    """Return whether a class is that of a tensor divided among processes."""
    if not isinstance(name, PythonGlobal):
        return False
    return name.name in _DISTRIBUTED_CLASSES and name.module.startswith("torch.distributed")


def _whole_tensor(arguments: tuple[Any, ...], state: Any) -> Tensor | None:
    """Return the tensor of a `DTensor` of which this process has all elements; `None` if it has not.

    Args:
        arguments: of `_rebuild_wrapper_subclass`.
        state: of the object.
    """
    # An object only to parse the state: attributes, or a pair of them and those in slots.
    attributes = PythonObject(constructor=None, how="", state=state).attributes
    local_tensor = attributes.get("_local_tensor")
    spec = attributes.get("_spec")
    if not isinstance(local_tensor, Tensor) or not isinstance(spec, PythonObject):
        return None
    placements = spec.attributes.get("placements")
    if not isinstance(placements, tuple) or len(arguments) <= 2:
        return None
    # The arguments begin with class, dtype and the shape of the whole tensor.
    whole_shape = arguments[2]
    if local_tensor.shape != whole_shape:
        return None
    # Of a sum (`Partial`) this process has an addend of the whole shape, and of an unknown placement anything.
    for placement in placements:
        if not isinstance(placement, PythonObject):
            return None
        _module, _, class_name = placement.path.rpartition(".")
        if class_name not in _PLACEMENTS_OF_ELEMENTS:
            return None
    return local_tensor


def check_whole(value: Any) -> None:
    """Refuse a value with one process's part of a tensor.

    Raises:
        UnsupportedError: there is one; the message names the process.
    """
    for visit in walk(value):
        item = visit.value
        if not isinstance(item, PythonObject):
            continue
        # A function that builds tensors of a class has it as its first argument, `_rebuild_from_type_v2` as its second.
        args = item.args if isinstance(item.args, tuple) else ()
        if _is_distributed(item.cls) or any(_is_distributed(argument) for argument in args[:2]):
            raise UnsupportedError(
                f"holds the part that {_rank(item)} has of a tensor divided among processes",
                path=visit.text(),
                hint="Save full_tensor() of each, or a torch.distributed.checkpoint, of which "
                f"{WHOLE_CHECKPOINT} makes one file.",
            )


def _rank(value: PythonObject) -> str:
    """Return which process wrote a part of a tensor, for a message: `rank 0 of 2`, or `one rank` if it does not say."""
    for visit in walk(value):
        mesh = visit.value
        if isinstance(mesh, PythonObject) and mesh.path.endswith(".DeviceMesh"):
            ranks, rank = _ranks(mesh)
            if rank is not None:
                return f"rank {rank} of {ranks}"
    return "one rank"


def _ranks(mesh: PythonObject) -> tuple[int, int | None]:
    """Return the number of processes in a `DeviceMesh`, and that of the one that wrote it; 0 and `None` if unknown."""
    attributes = mesh.attributes
    # Releases name these attributes differently.
    ranks = attributes["_rank_map"] if "_rank_map" in attributes else attributes.get("mesh")
    if "_rank" in attributes:
        rank = attributes["_rank"]
    else:
        # The place of the process along each dimension; that along the first is taken for its number.
        coordinates = attributes.get("_coordinate_on_dim") or ()
        rank = next(iter(coordinates), None)
    if not isinstance(ranks, Tensor) or type(rank) is not int:
        return 0, None
    return ranks.numel, rank
