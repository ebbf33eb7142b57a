"""Values of numpy and torch as values of the graph, so that they can be saved.

Neither library is imported: such a value can exist only if the caller imported them.
"""

from __future__ import annotations

import sys
from typing import Any

from ..errors import UnsupportedError
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.python import Device, TorchConstant, TorchSize
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import Path, Rebuilder, fill_dict, fill_list


class Adopter(Rebuilder):
    """Rebuilds dicts and lists that hold foreign values; sharing is preserved.

    Results are remembered between calls, so that the values of one file share memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._torch: Any = None
        self._numpy: Any = None
        self._memory: dict[int, Storage] = {}

    def run(self, root: Any) -> Any:
        """Return the value without anything of torch or numpy in it."""
        self._torch, self._numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        return root if self._torch is None and self._numpy is None else super().run(root)

    def make(self, value: Any, path: Path) -> Any:
        """Return a value of the graph, or a container to be filled."""
        if self._numpy is not None and isinstance(value, (self._numpy.ndarray, self._numpy.generic)):
            value = self._array(value) if isinstance(value, self._numpy.ndarray) else value.item()
        elif self._torch is not None:
            value = self._of_torch(value)
        if isinstance(value, dict) and (hasattr(value, "factory") or type(value).__name__ in ("dict", "OrderedDict")):
            made: dict[Any, Any] = value.copy() if hasattr(value, "factory") else type(value)()
            if vars_of := getattr(value, "__dict__", None):
                made.__dict__.update(vars_of)
            return fill_dict(made, value, value.values())
        if type(value) is list or (type(value) is tuple and any(self._is_foreign(item) for item in value)):
            return fill_list(value, tuple if type(value) is tuple else None)
        return value

    def _of_torch(self, value: Any) -> Any:
        torch = self._torch
        if isinstance(value, torch.nn.Module):
            return value.state_dict()
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.Size):
            return TorchSize(value)
        if isinstance(value, torch.dtype):
            return TorchConstant("dtype", str(value).removeprefix("torch."))
        return Device(value.type, value.index) if isinstance(value, torch.device) else value

    def _is_foreign(self, value: Any) -> bool:
        torch, numpy = self._torch, self._numpy
        return (torch is not None and isinstance(value, (torch.Tensor, torch.nn.Module))) or (
            numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))
        )

    def _array(self, array: Any) -> Any:
        if array.dtype.kind in "biufc":
            return Tensor.from_numpy(array)
        if array.dtype.kind in "OSU":
            return array.tolist()
        element = ELEMENT_TYPES.get(array.dtype.name)  # types of ml_dtypes
        if element is None:
            raise UnsupportedError(f"a numpy array of type {array.dtype} cannot be saved")
        flat = self._numpy.ascontiguousarray(array).reshape(-1).view(element.code)
        whole = Tensor.from_numpy(flat.reshape(array.shape))
        return Tensor(element, Storage(element, flat.size, flat), array.shape, whole.stride, is_scalar=not array.shape)

    def _tensor(self, tensor: Any) -> Tensor:
        torch = self._torch
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            raise UnsupportedError(
                "only dense tensors with elements can be saved", found=f"{tensor.layout} on {tensor.device}"
            )
        name = str(tensor.dtype).removeprefix("torch.")
        element = ELEMENT_TYPES.get(name)
        if element is None:
            raise UnsupportedError(f"a tensor of {name} cannot be saved")
        plain = tensor.detach().resolve_conj().resolve_neg()
        memory = plain.untyped_storage()
        pointer = memory.data_ptr()
        storage = self._memory.get(pointer) if pointer else None
        if storage is None or storage.element is not element:
            base = torch.empty(0, dtype=torch.uint8).set_(memory.cpu())
            count = memory.nbytes() // element.itemsize
            data = base[: count * element.itemsize].numpy().view(element.code)
            self._kept.append(memory)
            storage = self._memory[pointer] = Storage(element, count, data)
        return Tensor(
            element,
            storage,
            tuple(plain.shape),
            tuple(plain.stride()),
            plain.storage_offset(),
            is_scalar=plain.dim() == 0,
            requires_grad=bool(tensor.requires_grad and tensor.is_leaf),
            is_parameter=isinstance(tensor, torch.nn.Parameter),
        )


def adopt(value: Any) -> Any:
    """Return a value in which numpy's and torch's arrays, tensors and modules are values of the graph.

    Args:
        value: builtins, arrays, tensors, modules (which become their state dicts), and values of the graph.

    Returns:
        The value itself if neither numpy nor torch is imported. Memory is shared, with offsets and strides of torch's
        tensors; an array that is not contiguous is copied.

    Raises:
        UnsupportedError: no file can hold the elements or the layout of an array or tensor.
    """
    return Adopter().run(value)
