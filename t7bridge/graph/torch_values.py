"""Tensors of the graph as PyTorch's, with shared storages. Torch is imported when a tensor is requested."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from ..lazy import np
from .dtypes import PACKED
from .storage import Storage
from .tensor import Tensor

if TYPE_CHECKING:
    import torch


def torch_tensor(tensor: Tensor, storages: dict[int, Any]) -> torch.Tensor:
    """Return a PyTorch tensor with the tensor's elements, sizes and strides.

    Args:
        tensor: of the graph. With a negative stride, which PyTorch lacks, the elements are copied.
        storages: PyTorch storages made so far, by the identity of ours; new ones are added. A writable array in memory
            is shared with the tensor, other elements are copied once.

    Raises:
        UnsupportedError: PyTorch has no such element type outside of quantized tensors, or the tensor is too large.
    """
    import torch

    if prod(extent or 1 for extent in tensor.shape) >= 1 << 60:  # of an empty tensor, PyTorch multiplies the sizes, too
        raise UnsupportedError("PyTorch has no tensors of these sizes", found="x".join(map(str, tensor.shape))[:80])
    name = tensor.element.name
    dtype = getattr(torch, name, None)
    if name in PACKED or name.startswith(("quint", "qint")):
        dtype = {"quint8": torch.uint8, "qint8": torch.int8, "qint32": torch.int32}.get(name, torch.uint8)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"this release of PyTorch has no {name}")
    storage = tensor.storage
    if storage is None or not tensor.numel:
        return torch.empty(tensor.shape, dtype=dtype)
    if any(step < 0 for step in tensor.stride):
        return torch.from_numpy(np.ascontiguousarray(tensor.array)).view(dtype).reshape(tensor.size)
    flat = _flat(storage, storages).view(dtype)
    made: torch.Tensor = flat.as_strided(tensor.size, tensor.stride, tensor.offset)
    if tensor.extras is not None:
        made = made.conj() if tensor.extras.conj else made
        made = torch._neg_view(made) if tensor.extras.neg else made
    if tensor.is_parameter:
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_() if tensor.requires_grad and dtype.is_floating_point else made


def _flat(storage: Storage, storages: dict[int, Any]) -> Any:
    """Return all elements of a storage as a 1-D tensor."""
    import torch

    made = storages.get(id(storage))
    if made is None:
        if storage.base is not None:
            base = _flat(storage.base, storages).view(torch.uint8)
            start = storage.base_offset
            made = base[start : start + storage.nbytes].view(getattr(torch, storage.element.name))
        else:
            from .arrays import storage_array

            array = storage_array(storage)
            made = torch.from_numpy(array if array.flags.writeable else array.copy())
        storages[id(storage)] = made
    return made
