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
from typing import Any

from attrs import evolve

from ..graph import python
from ..graph.lua import COMPOSITE, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import Holder
from .tree import Tree

_MISSING = object()
_SCALARS = (bool, int, float, str, bytes, type(None))


class Plain(Tree):
    """Builds plain values with an explicit stack. Tuples and sets are made after their content.

    Scalars inside Lua values become Python's; those inside Python's containers and objects stay as they are.
    """

    _reads_lua = True

    def __init__(self, torch: bool) -> None:
        super().__init__(None)
        self._torch = torch
        self._storages: dict[int, Any] = {}
        self._waiting: dict[int, list[tuple[Any, Any]]] = {}
        """Places that refer to a tuple still being made, by its identity."""

    def run(self, root: Value) -> Any:
        """Convert a value and everything in it."""
        self._is_lua = self._reads_lua and not isinstance(root, (dict, list, tuple, set, frozenset, Holder))
        return super().run(root)

    def _put(self, target: Any, place: Any, value: Value) -> None:
        if isinstance(value, _Finish):
            made = value.make()
            self._built[id(value.original)] = made
            for holder, key in self._waiting.pop(id(value.original)):
                holder[key] = made
        elif isinstance(value, (tuple, set, frozenset)) and id(value) not in self._built:
            if id(value) in self._waiting:
                self._waiting[id(value)].append((target, place))
                return
            self._kept.append(value)
            self._waiting[id(value)] = [(target, place)]
            parts: list[Any] = list(value)
            held: list[Any] = [None] * len(parts)
            self._open.append((None, None, _Finish(value, held, self._torch)))
            self._open.extend((held, number, part) for number, part in reversed(list(enumerate(parts))))
        else:
            super()._put(target, place, value)

    def _convert(self, value: Value) -> Any:
        if isinstance(value, (Tensor, Storage)):
            made = self._built.get(id(value), _MISSING)
            if made is _MISSING:
                self._kept.append(value)
                made = self._built[id(value)] = self._tensor(value)
            return made
        return value if not self._is_lua and isinstance(value, _SCALARS) else super()._convert(value)

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

    def _object(self, value: Value) -> Any:
        if isinstance(value, COMPOSITE):
            return super()._object(value)
        if isinstance(value, Counter):
            return Counter(value)
        if isinstance(value, dict):
            result: dict[Any, Any] = OrderedDict() if isinstance(value, OrderedDict) else {}
            return self._entries(result, value)
        if isinstance(value, list):
            return self._list(value)
        if isinstance(value, bytearray):
            return bytearray(value)
        if isinstance(value, complex):
            return value
        if isinstance(value, python.UntypedStorage):
            return self._convert(value.storage)
        if isinstance(value, (python.NumpyArray, python.NumpyScalar)):
            return self._numpy(value)
        if isinstance(value, python.SparseTensor):
            names = ("layout", "indices", "plain_indices", "values", "size", "is_coalesced")
            return self._parts("torch.sparse", {name: getattr(value, name) for name in names})
        if isinstance(value, python.QuantizedTensor):
            quantized = ("tensor", "scheme", "scale", "zero_point", "axis")
            return self._parts("torch.quantized", {name: getattr(value, name) for name in quantized})
        if isinstance(value, python.PythonObject):
            return self._python_object(value)
        return self._name(value)

    def _entries(self, result: dict[Any, Any], entries: dict[Any, Any]) -> dict[Any, Any]:
        result.update(dict.fromkeys(entries))
        self._open.extend((result, key, item) for key, item in reversed(list(entries.items())))
        return result

    def _parts(self, name: str, parts: dict[str, Any]) -> dict[Any, Any]:
        return self._entries({"__class__": name}, {key: part for key, part in parts.items() if part is not None})

    def _python_object(self, value: python.PythonObject) -> Any:
        parts: dict[Any, Any] = {} if value.args in ((), python.UNSET) else {"__args__": value.args}
        parts |= {"__kwargs__": value.kwargs} if value.kwargs else {}
        attributes = value.attributes
        if attributes:
            parts |= attributes
        elif value.state is not python.UNSET and value.state is not None:
            parts["__state__"] = value.state
        parts |= {"__items__": value.items} if value.items else {}
        parts |= {"__pairs__": [list(pair) for pair in value.pairs]} if value.pairs else {}
        return self._entries({"__class__": value.path}, parts)

    def _numpy(self, value: python.NumpyArray | python.NumpyScalar) -> Any:
        from ..formats.pt.numpy_tensors import numpy_value

        array = value if isinstance(value, python.NumpyArray) else python.NumpyArray(value.dtype, (), False, value.data)
        if isinstance(array.data, list):
            return self._list(array.data)
        made = numpy_value(array)
        return made if isinstance(value, python.NumpyArray) else made[()].item()

    def _name(self, value: Any) -> Any:
        if isinstance(value, python.TorchConstant) and self._torch:
            import torch

            return getattr(torch, value.name, f"torch.{value.name}")
        if isinstance(value, python.Device):
            if self._torch:
                import torch

                return torch.device(str(value))
            return str(value)
        if isinstance(value, python.TorchConstant):
            return f"torch.{value.name}"
        if isinstance(value, python.PythonGlobal):
            return value.path
        return value.code if isinstance(value, python.NumpyDtype) else value


class _Finish:
    """A tuple or set to be made once its parts are."""

    def __init__(self, original: Any, parts: list[Any], torch: bool) -> None:
        self.original = original
        self.parts = parts
        self.torch = torch

    def make(self) -> Any:
        if isinstance(self.original, (set, frozenset)):
            kind = frozenset if isinstance(self.original, frozenset) else set
            try:
                return kind(self.parts)
            except TypeError:  # an item has become a list or dict
                return kind(self.original)
        if isinstance(self.original, python.TorchSize) and self.torch:
            import torch

            return torch.Size(self.parts)
        return tuple(self.parts)


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
