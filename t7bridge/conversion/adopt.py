"""Values of numpy and torch as values of the graph, so that they can be saved; the public writers, which accept them.

Neither library is imported: such a value can exist only if the caller imported them.
"""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any

from ..errors import UnsupportedError
from ..formats.pt import writer as pt_writer
from ..formats.t7 import writer as t7_writer
from ..graph.dtypes import ELEMENT_TYPES, ElementType
from ..graph.lua import COMPOSITE
from ..graph.python import Device, TorchConstant, TorchSize
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import Path, Rebuilder, fill_dict, fill_list
from .lua_tree import to_lua


class Adopter(Rebuilder):
    """Rebuilds dicts and lists that hold foreign values; sharing is preserved.

    Results are remembered between calls, so that the values of one file share memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._torch: Any = None
        self._numpy: Any = None
        self._memory: dict[int, Storage] = {}
        """The storage over PyTorch's memory at each address."""

    def run(self, root: Any) -> Any:
        """Return the value without anything of torch or numpy in it."""
        self._torch = sys.modules.get("torch")
        self._numpy = sys.modules.get("numpy")
        if self._torch is None and self._numpy is None:
            return root
        return super().run(root)

    def make(self, value: Any, path: Path) -> Any:
        """Return a value of the graph, or a container to be filled."""
        if self._numpy is not None and isinstance(value, self._numpy.ndarray):
            value = self._array(value)
        elif self._numpy is not None and isinstance(value, self._numpy.generic):
            value = value.item()
        elif self._torch is not None:
            value = self._of_torch(value)
        if isinstance(value, dict):
            return self._dict(value)
        if type(value) is list:
            return fill_list(value)
        # Other tuples stay the same objects.
        if type(value) is tuple and any(self._is_foreign(item) for item in value):
            return fill_list(value, tuple)
        return value

    def _dict(self, value: dict[Any, Any]) -> Any:
        """Return a dict of the same class to be filled; one of an unknown class as it is."""
        if hasattr(value, "factory"):  # a `DefaultDict` of the graph
            result = value.copy()
        elif type(value).__name__ in ("dict", "OrderedDict"):
            result = type(value)()
        else:
            return value
        attributes = getattr(value, "__dict__", None)
        if attributes:
            result.__dict__.update(attributes)
        return fill_dict(result, value, value.values())

    def _of_torch(self, value: Any) -> Any:
        """Return a value of PyTorch as one of the graph, a module as its state dict; anything else as it is."""
        torch = self._torch
        if isinstance(value, torch.nn.Module):
            return value.state_dict()
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.Size):
            return TorchSize(value)
        if isinstance(value, torch.dtype):
            return TorchConstant("dtype", str(value).removeprefix("torch."))
        if isinstance(value, torch.device):
            return Device(value.type, value.index)
        return value

    def _is_foreign(self, value: Any) -> bool:
        """Return whether a value is an array, tensor or module of numpy or PyTorch."""
        torch, numpy = self._torch, self._numpy
        if torch is not None and isinstance(value, (torch.Tensor, torch.nn.Module)):
            return True
        return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))

    def _array(self, array: Any) -> Any:
        """Return an array of numbers as a tensor, one of text or objects as a list."""
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
        """Return a tensor of PyTorch as one of the graph, over the same memory where that is possible.

        Raises:
            UnsupportedError: it is not dense, has no elements, or has elements of an unknown type.
        """
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
        storage = self._storage(plain.untyped_storage(), element)
        return Tensor(
            element,
            storage,
            tuple(plain.shape),
            tuple(plain.stride()),
            plain.storage_offset(),
            is_scalar=plain.dim() == 0,
            # Results of operations require gradients too, but no file restores the operations.
            requires_grad=bool(tensor.requires_grad and tensor.is_leaf),
            is_parameter=isinstance(tensor, torch.nn.Parameter),
        )

    def _storage(self, memory: Any, element: ElementType) -> Storage:
        """Return a storage over the memory of PyTorch's: one for each address, the last with this element type."""
        torch = self._torch
        address = memory.data_ptr()
        storage = self._memory.get(address) if address else None  # all empty storages are at address 0
        if storage is None or storage.element is not element:
            data_bytes = torch.empty(0, dtype=torch.uint8).set_(memory.cpu())
            count = memory.nbytes() // element.itemsize
            data = data_bytes[: count * element.itemsize].numpy().view(element.code)
            self._alive.append(memory)  # or its address could be given to other memory
            storage = Storage(element, count, data)
            self._memory[address] = storage
        return storage


def is_live(value: Any) -> bool:
    """Return whether a value is a live PyTorch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


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


_LUA = (*COMPOSITE, type(None), bool, int, float, str, bytes)


class T7Writer(t7_writer.T7Writer):
    """Writes values to a `.t7` file, one after another, as Lua's `torch.DiskFile` does.

    An object already written becomes a reference to it, so that sharing and cycles are kept. The elements of
    storages are copied from their source to the output without being loaded into memory.

    Args:
        target: a binary file object.
        layout: encoding, byte order, size of `long`.
        referenced: `False` writes every object again at each occurrence, as `file:referenced(false)` does; sharing
            is lost, and cycles are refused.
        payloads: if given, storages are appended to it and their elements are omitted from the stream.

    Example:
        >>> with open("out.t7", "wb") as file:
        ...     T7Writer(file).write_object({"epoch": 3, "weights": np.zeros((2, 3), "f4")})
    """

    @cached_property
    def _adopter(self) -> Adopter:
        """One for all values, so that tensors of different values share memory in the file as in Python."""
        return Adopter()

    def write_object(self, value: Any) -> None:
        """Write one value and everything inside it.

        Args:
            value: `None`, `bool`, `int`, `float`, `bytes`, `str` (as UTF-8), an object of `t7bridge.graph`, a numpy
                array, a torch tensor, a module (its state dict), or builtins of these, which become tables. Tensors
                that share memory do so in the file.

        Raises:
            UnsupportedError: the value is none of these, or a tensor of a type that Lua Torch does not have.
            WriteError: a number does not fit into the layout, or the output cannot be written.
        """
        if not isinstance(value, _LUA):
            value = self._adopter.run(value)
            if not isinstance(value, _LUA):
                value = to_lua(value).value
        super().write_object(value)


class PtWriter(pt_writer.PtWriter):
    """Writes one value to a `.pt` file that `torch.load(weights_only=True)` reads, also by memory map.

    Each storage is written once, with all its elements, so that sharing, offsets and strides are those of the
    value. Its bytes are copied from their source to the archive without being loaded into memory.

    Args:
        target: a binary file object.
        keep_device: whether tensors keep their device (`cuda:0`); otherwise all are on the CPU.
        place: the new device of tensors, by their old one, instead.
        allow_foreign: whether objects of other packages keep the names of their classes; otherwise they are written as
            plain data.

    Example:
        >>> with open("out.pt", "wb") as file:
        ...     writer = PtWriter(file)
        ...     writer.write({"weight": np.zeros((2, 3), "f4")})
        ...     writer.finish()
    """

    def write(self, value: Any) -> None:
        """Accept the value. `finish` writes it, with the storages named by it and by `storage_key`.

        Args:
            value: builtins, `OrderedDict`, `Tensor` and `Storage`, numpy arrays, torch tensors and modules (their state
                dicts), nested and shared in any way.

        Raises:
            UnsupportedError: the value contains something that the format cannot store.
        """
        super().write(Adopter().run(value))
