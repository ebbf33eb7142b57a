"""Lua values as Python-side values: the content of a `.pt` made from a `.t7` in `tree` mode.

| Lua | Python |
| --- | --- |
| number | int where integral and exact, else float |
| string | str where valid UTF-8, else bytes |
| table with the keys 1 to n | list |
| other table | dict |
| table whose keys cannot be those of a dict | `{"__class__": "table", "pairs": [[key, value], …]}` |
| Torch object | dict of `__class__`, `__version__` and its fields |
| function | `{"__class__": "function", "code": bytes, "upvalues": […]}` |
| tensor, storage | the same; a PyTorch storage for a storage outside of tensors |

`to_python` and `to_torch` convert the other values of a `.pt`, too, to numpy's arrays and PyTorch's tensors:

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
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from attrs import evolve, field

from ..data import define
from ..errors import UnsupportedError
from ..formats.pt.arrays import numpy_value
from ..formats.pt.pickle.reductions import plain_data
from ..graph import python
from ..graph.lua import COMPOSITE, LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.python import NAMED, name_text
from ..graph.storage import Storage, storage_array
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor, UntypedStorage, torch_tensor
from ..graph.walk import SCALARS, Fill, Path, Rebuilder, fill_dict, fill_list
from ..values.widened import parts_of

_EXACT = 2.0**53
"""A larger double need not be the only one for its integer."""


@define(eq=False)
class Replaced:
    """What stands for an object, and what stands beside it.

    Attributes:
        value: in place of the object; a `Fill` where its content is still to be converted.
        beside: values that go into the dict that holds the object, under `<its key>.<name>`.
        placed: whether they are in the result.
        unnamed: what stands for the object at the root and in lists, where no key names it; `None` if it did not occur
            there.
    """

    value: Any
    beside: dict[str, Any] = field(factory=dict)
    placed: bool = False
    unnamed: Any = None


Replace = Callable[[TorchObject], Any]
"""Returns what stands for an object, a `Replaced` where something stands beside it; `None` to use its fields."""


def plain(value: Value) -> Any:
    """Return a Lua scalar as the equal Python value."""
    if type(value) is float:
        is_negative_zero = value == 0 and str(value) == "-0.0"
        if value.is_integer() and abs(value) <= _EXACT and not is_negative_zero:
            return int(value)
        return value
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


MERGED, WRAPPED = "merged", "wrapped"
"""Where values beside an object are if no key names it, as at the root: in its dict; or in `{state_dict, …}`."""


class Tree(Rebuilder):
    """Builds the Python side; lists and dicts are created before their content.

    Args:
        replace: as for `as_tree`.
        unnamed: `MERGED`, `WRAPPED`, or empty: values beside an object that no key names are not in the result.
    """

    has_paths = False

    def __init__(self, replace: Replace | None = None, unnamed: str = "") -> None:
        super().__init__()
        self._replace = replace
        self._unnamed = unnamed
        self._replaced: dict[int, Replaced] = {}
        """What stands for objects that have something beside them, by the identity of each."""

    def scalar(self, value: Any, path: Path | None, key: Any) -> Any:
        """Return Python's scalar."""
        return plain(value)

    def put(self, target: Any, place: Any, result: Any, value: Any) -> None:
        """Put what a value became at its place, and what stands beside it."""
        target[place] = result
        replaced = self._replaced.get(id(value)) if self._replaced else None
        if replaced is None:
            return
        if isinstance(target, dict) and isinstance(place, str):
            if replaced.unnamed is not result:  # else they are in its dict already
                self._add(target, f"{place}.", replaced)
        elif self._unnamed == MERGED:
            if not replaced.placed:
                replaced.unnamed = result
                self._add(result, "", replaced)
        elif self._unnamed == WRAPPED:
            if replaced.unnamed is None:  # one wrapper for all places where the object is shared
                replaced.unnamed = {"state_dict": result}
                self._add(replaced.unnamed, "", replaced)
            target[place] = replaced.unnamed

    def _add(self, target: dict[Any, Any], prefix: str, replaced: Replaced) -> None:
        """Add what stands beside an object to a dict, under keys that are free."""
        replaced.placed = True
        for name, item in replaced.beside.items():
            wanted = prefix + name
            key = wanted
            number = 2
            while key in target:
                key = f"{wanted}~{number}"
                number += 1
            target[key] = self.run(item)

    def stand_in(self, value: Any, replaced: Any) -> Any:
        """Return what stands for an object."""
        if not isinstance(replaced, Replaced):
            return replaced
        if replaced.beside:
            self._replaced[id(value)] = replaced
        stand_in = replaced.value
        if isinstance(stand_in, Fill):  # to be filled once; then it is what it fills
            replaced.value = stand_in.value
        return stand_in

    def make(self, value: Value, path: Path) -> Any:
        """Return the list or dict that a value becomes."""
        if isinstance(value, Table):
            items = value.sequence()
            if items is None:
                return self._dict({}, value)
            return fill_list(items)
        if isinstance(value, TorchObject):
            replaced = self._replace(value) if self._replace is not None else None
            if replaced is not None:
                return self.stand_in(value, replaced)
            return self._object(value)
        if isinstance(value, LuaFunction):
            upvalues = [entry.value for entry in value.upvalue_list()]
            return _list_in({"__class__": "function", "code": value.code}, "upvalues", upvalues)
        if isinstance(value, (TdsHash, TdsVec)):
            head = {"__class__": value.lua_class, "__version__": value.version}
            if isinstance(value, TdsVec):
                return _list_in(head, "items", value.elements)
            return self._dict(head, value.content)
        if isinstance(value, (Tensor, Storage)):
            return value
        raise TypeError(f"{type(value).__name__} is not a Lua value")

    def _object(self, value: TorchObject) -> Fill:
        """Return a dict to be filled with the class and the fields of an object."""
        result: dict[str, Any] = {"__class__": value.class_name, "__version__": value.version}
        table = value.fields or Table()
        if value.payload is None:
            return self._dict(result, table)
        payload = fill_dict(result, ["__payload__"], [value.payload])
        return Fill(result, chain(payload.parts, self._dict(result, table).parts))

    def _dict(self, result: dict[Any, Any], table: Table) -> Fill:
        """Add a table's entries to a dict, or as a list of pairs if they cannot be its keys."""
        keys = [plain(key) for key in table.raw_keys]
        if _fit_as_keys(keys, set(result)):
            return fill_dict(result, keys, table.raw_values)
        result.setdefault("__class__", "table")
        pairs: list[Value] = [Table.from_list([key, value]) for key, value in table.raw_items()]
        return _list_in(result, "pairs", pairs)


def _fit_as_keys(keys: list[Any], other_keys: set[Any]) -> bool:
    """Return whether keys of Lua can be keys of one dict, beside others: in Python, 1 and True are one key."""
    for key in keys:
        # Tensors and storages are hashed by identity, as in Lua.
        if isinstance(key, COMPOSITE) and not isinstance(key, (Tensor, Storage)):
            return False
    try:
        return len(other_keys.union(keys)) == len(other_keys) + len(keys)
    except TypeError:  # a key cannot be hashed
        return False


def _list_in(result: dict[Any, Any], key: str, items: list[Value]) -> Fill:
    """Return a dict with a list, to be filled from items, under a key."""
    inner = fill_list(items)
    result[key] = inner.value
    return Fill(result, inner.parts)


def as_tree(value: Value, replace: Replace | None = None, unnamed: str = "") -> Any:
    """Convert a Lua value; see the module's docstring.

    Args:
        value: the result of `T7Reader.read_object`. Tensors and storages are reused, not copied.
        replace: returns what stands for a Torch object, or `None` to use its fields.
        unnamed: where what stands beside an object is, if no key names it: `MERGED`, `WRAPPED`, or empty for nowhere.

    Returns:
        Builtins with `Tensor` and `Storage` in them; shared objects are shared, cycles are cycles.
    """
    return Tree(replace, unnamed).run(value)


class Plain(Tree):
    """Builds plain values. Tuples and sets are made after their content.

    Scalars inside Lua values become Python's; those inside Python's containers and objects stay as they are.
    """

    def __init__(self, torch: bool, unnamed: str = "") -> None:
        super().__init__(unnamed=unnamed)
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
            return self.entries(Counter(), value)
        if isinstance(value, dict):
            return self.entries(OrderedDict() if isinstance(value, OrderedDict) else {}, value)
        if isinstance(value, UntypedStorage):
            return self._tensor(value.storage)
        if isinstance(value, (python.NumpyArray, python.NumpyScalar)):
            return self.numpy(value)
        if isinstance(value, SparseTensor):
            sparse_parts = {**parts_of(value), "is_coalesced": value.is_coalesced}
            present = {name: part for name, part in sparse_parts.items() if part is not None}
            return self.entries({"__class__": "torch.sparse"}, present)
        if isinstance(value, QuantizedTensor):
            parts = parts_of(value)
            tensor = parts.pop("values")
            return self.entries({"__class__": "torch.quantized"}, {"tensor": tensor, **parts})
        if isinstance(value, python.PythonObject):
            return self.python_object(value)
        if isinstance(value, bytearray):
            return bytearray(value)
        return self.name(value)

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
        """Return an array or a PyTorch tensor; all of one storage share memory."""
        tensor = value if isinstance(value, Tensor) else Tensor(value.element, value, (value.count,), (1,))
        if self._torch:
            return torch_tensor(tensor, self._storages)
        storage = tensor.storage
        if storage is None:
            return tensor.numpy()
        if id(storage) not in self._storages:
            self._storages[id(storage)] = evolve(storage, data=storage_array(storage))
        return evolve(tensor, storage=self._storages[id(storage)]).numpy()

    def entries(self, result: dict[Any, Any], entries: dict[Any, Any]) -> Fill:
        """Return a dict to be filled with entries."""
        return fill_dict(result, entries, entries.values())

    def python_object(self, value: python.PythonObject) -> Any:
        """Return an object of any class as a dict of its class and content."""
        return self.entries({}, plain_data(value))

    def numpy(self, value: python.NumpyArray | python.NumpyScalar) -> Any:
        """Return an array, a list of objects, or a number or text."""
        array = value.array if isinstance(value, python.NumpyScalar) else value
        if isinstance(array.data, list):
            return fill_list(array.data)
        whole = numpy_value(array)
        if isinstance(value, python.NumpyScalar):
            return whole[()].item()
        return whole

    def name(self, value: Any) -> Any:
        """Return what a name stands for: torch's own value, or its text."""
        if not isinstance(value, NAMED):
            return value
        if self._torch and isinstance(value, python.Device):
            import torch

            try:
                return torch.device(str(value))
            except RuntimeError as error:
                raise UnsupportedError(f"this release of PyTorch has no device {value!s:.40}") from error
        if self._torch and isinstance(value, python.TorchConstant):
            import torch

            return getattr(torch, value.name, name_text(value))
        return name_text(value)


def to_python(value: Value) -> Any:
    """Convert a value to builtins and numpy arrays; the module's docstring has the table.

    Args:
        value: the result of `load` or a reader, or a part of it.

    Returns:
        Shared objects are shared, cycles are cycles, and arrays of one storage share memory. They can be written to
        without changing the file, unless it is mapped.

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
