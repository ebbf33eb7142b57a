"""Values as plain Python, `to_python` with numpy arrays, `to_torch` with PyTorch tensors; and back, to be saved.

Lua values are converted as in `conversion/tree.py`: tables become lists or dicts, objects dicts of `__class__`,
`__version__` and their fields. Other values of a `.pt` besides builtins:

| value | plain |
| --- | --- |
| tensor, storage, untyped storage | array (`to_python`), tensor (`to_torch`); a storage has one dimension |
| numpy array, numpy scalar | array; Python's number or text. An array of objects is a list |
| sparse, quantized tensor | dict of `__class__` and its parts, in which tensors are converted |
| `torch.Size` | tuple, or `torch.Size` |
| dtype, device, layout | its name, or torch's own |
| class or function | its name |
| object of a class | dict of `__class__` and its attributes, or `__args__`, `__state__`, `__items__`, `__pairs__` |
| defaultdict, `OrderedDict` | dict, `OrderedDict` |

Identity is preserved: shared objects stay shared, and cycles stay cycles. Keys of dicts are unchanged. On the way back
neither library is imported: such a value can exist only if the caller imported them.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from functools import partial
from typing import Any

from attrs import evolve

from ..errors import UnsupportedError
from ..formats.pt.numpy_tensors import numpy_value
from ..graph import python
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.lua import COMPOSITE, Value
from ..graph.python import NAMED, Device, TorchConstant, TorchSize, name_text
from ..graph.storage import Storage, storage_array
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor, UntypedStorage, torch_tensor
from ..graph.walk import SCALARS, Fill, Path, Rebuilder, fill_dict, fill_list
from .tree import Tree, plain

_PARTS = {
    SparseTensor: ("layout", "indices", "plain_indices", "values", "size", "is_coalesced"),
    QuantizedTensor: ("tensor", "scheme", "scale", "zero_point", "axis"),
}


class Plain(Tree):
    """Builds plain values. Tuples and sets are made after their content.

    Scalars inside Lua values become Python's; those inside Python's containers and objects stay as they are.
    """

    def __init__(self, torch: bool) -> None:
        super().__init__()
        self._torch = torch
        self._storages: dict[int, Any] = {}
        self._is_lua = False

    def run(self, root: Value) -> Any:
        """Convert a value and everything in it."""
        self._is_lua = isinstance(root, COMPOSITE) or type(root) in SCALARS
        return super().run(root)

    def scalar(self, value: Any, path: Path | None, key: Any) -> Any:
        """Return Python's scalar."""
        return plain(value) if self._is_lua else value

    def make(self, value: Value, path: Path) -> Any:
        """Return the plain value, or one to be filled."""
        if isinstance(value, (Tensor, Storage)):
            return self._tensor(value)
        if isinstance(value, COMPOSITE):
            return super().make(value, path)
        if isinstance(value, (tuple, set, frozenset)):
            return fill_list(tuple(value), partial(self._finished, value))
        if isinstance(value, list):
            return fill_list(value)
        if isinstance(value, Counter):
            return Counter(value)
        if isinstance(value, dict):
            return self.entries(OrderedDict() if isinstance(value, OrderedDict) else {}, value)
        if isinstance(value, UntypedStorage):
            return self._tensor(value.storage)
        if isinstance(value, (python.NumpyArray, python.NumpyScalar)):
            return self.numpy(value)
        if isinstance(value, (SparseTensor, QuantizedTensor)):
            kind = "sparse" if isinstance(value, SparseTensor) else "quantized"
            parts = {name: part for name in _PARTS[type(value)] if (part := getattr(value, name)) is not None}
            return self.entries({"__class__": f"torch.{kind}"}, parts)
        if isinstance(value, python.PythonObject):
            return self.python_object(value)
        return bytearray(value) if isinstance(value, bytearray) else self.name(value)

    def _finished(self, original: Any, parts: list[Any]) -> Any:
        """Return a tuple or set of parts that are complete."""
        if isinstance(original, (set, frozenset)):
            kind = frozenset if isinstance(original, frozenset) else set
            try:
                return kind(parts)
            except TypeError:  # an item has become a list or dict
                return kind(original)
        if isinstance(original, python.TorchSize) and self._torch:
            import torch

            return torch.Size(parts)
        return tuple(parts)

    def _tensor(self, value: Tensor | Storage) -> Any:
        view = Tensor(value.element, value, (value.count,), (1,)) if isinstance(value, Storage) else value
        if self._torch:
            return torch_tensor(view, self._storages)
        storage = view.storage
        if storage is None:
            return view.numpy()
        if id(storage) not in self._storages:
            self._storages[id(storage)] = evolve(storage, data=storage_array(storage))
        return evolve(view, storage=self._storages[id(storage)]).numpy()

    def entries(self, result: dict[Any, Any], entries: dict[Any, Any]) -> Fill:
        """Return a dict to be filled with entries."""
        return fill_dict(result, entries, entries.values())

    def python_object(self, value: python.PythonObject) -> Any:
        """Return an object of any class as a dict of its class and content."""
        parts: dict[Any, Any] = {} if value.args in ((), python.UNSET) else {"__args__": value.args}
        parts |= {"__kwargs__": value.kwargs} if value.kwargs else {}
        attributes = value.attributes
        if attributes:
            parts |= attributes
        elif value.state is not python.UNSET and value.state is not None:
            parts["__state__"] = value.state
        parts |= {"__items__": value.items} if value.items else {}
        parts |= {"__pairs__": [list(pair) for pair in value.pairs]} if value.pairs else {}
        return self.entries({"__class__": value.path}, parts)

    def numpy(self, value: python.NumpyArray | python.NumpyScalar) -> Any:
        """Return an array, a list of objects, or a number or text."""
        array = value.array if isinstance(value, python.NumpyScalar) else value
        if isinstance(array.data, list):
            return fill_list(array.data)
        made = numpy_value(array)
        return made if array is value else made[()].item()

    def name(self, value: Any) -> Any:
        """Return what a name stands for: torch's own value, or its text."""
        if self._torch and isinstance(value, (python.TorchConstant, python.Device)):
            import torch

            if isinstance(value, python.Device):
                return torch.device(str(value))
            return getattr(torch, value.name, name_text(value))
        return name_text(value) if isinstance(value, NAMED) else value


def to_python(value: Value) -> Any:
    """Convert a value to builtins and numpy arrays; the module's docstring has the table.

    Args:
        value: the result of `load` or a reader, or a part of it.

    Returns:
        Shared objects are shared, cycles are cycles, and arrays of one storage share memory. Arrays of a file are
        read-only views of it.

    Raises:
        UnsupportedError: numpy has no arrays of a tensor's type (bfloat16 and float8 need `ml_dtypes`).
    """
    return Plain(torch=False).run(value)


def to_torch(value: Value) -> Any:
    """Convert a value to builtins and PyTorch tensors; the module's docstring has the table.

    Args:
        value: the result of `load` or a reader, or a part of it.

    Returns:
        As `to_python`; tensors of one storage share memory, with the strides of the file, and can be written to without
        changing the file.

    Raises:
        ImportError: PyTorch is not installed.
    """
    return Plain(torch=True).run(value)


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
