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


class Adopter:
    """Rebuild dicts and lists that hold foreign values, with an explicit stack; sharing is preserved.

    Results are remembered between calls, so that the values of one file share memory.
    """

    def __init__(self) -> None:
        self._torch: Any = None
        self._numpy: Any = None
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []
        self._memory: dict[int, Storage] = {}
        self._open: list[tuple[Any, Any, Any]] = []

    def run(self, root: Any) -> Any:
        """Return the value without anything of torch or numpy in it."""
        self._torch, self._numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if self._torch is None and self._numpy is None:
            return root
        result: list[Any] = [None]
        self._open.append((result, 0, root))
        while self._open:
            target, place, value = self._open.pop()
            target[place] = self._adopt(value)
        return result[0]

    def _adopt(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str, bytes, complex):
            return value
        if id(value) not in self._made:
            self._kept.append(value)
            self._made[id(value)] = self._one(value)
        return self._made[id(value)]

    def _one(self, value: Any) -> Any:
        torch, numpy = self._torch, self._numpy
        if torch is not None:
            if isinstance(value, torch.nn.Module):
                value = value.state_dict()
            elif isinstance(value, torch.Tensor):
                return self._tensor(value)
            elif isinstance(value, torch.Size):
                return TorchSize(value)
            elif isinstance(value, torch.dtype):
                return TorchConstant("dtype", str(value).removeprefix("torch."))
            elif isinstance(value, torch.device):
                return Device(value.type, value.index)
        if numpy is not None:
            if isinstance(value, numpy.ndarray):
                return self._array(value)
            if isinstance(value, numpy.generic):
                return value.item()
        if isinstance(value, dict):
            items = list(value.items())
            result = value.copy() if hasattr(value, "factory") else type(value)() if _is_plain(value) else value
            if result is value:
                return value
            result.update(dict.fromkeys(value))
            if vars_of := getattr(value, "__dict__", None):
                result.__dict__.update(vars_of)
            self._open.extend((result, key, item) for key, item in reversed(items))
            return result
        if type(value) is list:
            held: list[Any] = [None] * len(value)
            self._open.extend((held, place, item) for place, item in reversed(list(enumerate(value))))
            return held
        if type(value) is tuple and any(self._is_foreign(item) for item in value):
            return tuple(self._adopt(item) for item in value)
        return value

    def _is_foreign(self, value: Any) -> bool:
        torch, numpy = self._torch, self._numpy
        return (torch is not None and isinstance(value, (torch.Tensor, torch.nn.Module))) or (
            numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))
        )

    def _array(self, array: Any) -> Any:
        if array.dtype.kind in "biufc":
            return Tensor.from_numpy(array)
        if array.dtype.kind in "OSU":
            return self._adopt(array.tolist())
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


def _is_plain(value: dict[Any, Any]) -> bool:
    return type(value).__name__ in ("dict", "OrderedDict")


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
