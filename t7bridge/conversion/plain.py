"""Values as plain Python: `to_python` with numpy arrays, `to_torch` with PyTorch tensors.

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

Identity is preserved: shared objects stay shared, and cycles stay cycles. Keys of dicts are unchanged.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from functools import partial
from typing import Any

from attrs import evolve

from ..graph import python
from ..graph.keys import NAMED, name_text
from ..graph.lua import COMPOSITE, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import SCALARS, Fill, Path, fill_dict, fill_list
from .tree import Tree, plain

_PARTS = {
    python.SparseTensor: ("layout", "indices", "plain_indices", "values", "size", "is_coalesced"),
    python.QuantizedTensor: ("tensor", "scheme", "scale", "zero_point", "axis"),
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
        if isinstance(value, python.UntypedStorage):
            return self._tensor(value.storage)
        if isinstance(value, (python.NumpyArray, python.NumpyScalar)):
            return self.numpy(value)
        if isinstance(value, (python.SparseTensor, python.QuantizedTensor)):
            kind = "sparse" if isinstance(value, python.SparseTensor) else "quantized"
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
            from ..graph.torch_values import torch_tensor

            return torch_tensor(view, self._storages)
        storage = view.storage
        if storage is None:
            return view.numpy()
        if id(storage) not in self._storages:
            from ..graph.arrays import storage_array

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
        from ..formats.pt.numpy_tensors import numpy_value

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
