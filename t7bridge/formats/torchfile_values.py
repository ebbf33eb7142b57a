"""torchfile's types of values, and their construction from the graph. Does not import torchfile."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..graph.arrays import byte_strides, storage_array
from ..graph.lua import LuaFunction as GraphFunction
from ..graph.lua import Table, TdsHash, TdsVec, Value
from ..graph.lua import TorchObject as GraphObject
from ..graph.show import Shown, clean
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import walk
from ..text import counted

LuaFunction = namedtuple("LuaFunction", ["size", "dumped", "upvalues"])
"""A function: length of the bytecode in bytes, the bytecode, and the upvalues as in the file."""

_MOST_DIMENSIONS = 64


def _found(entries: Any, name: Any) -> Any:
    """Return an entry by its name, text or bytes, or `None`, as torchfile does."""
    if isinstance(entries, dict):
        if name in entries:
            return entries[name]
        if isinstance(name, str):
            return entries.get(name.encode("utf-8", "surrogatepass"))
    return None


class hashable_uniq_dict(dict[Any, Any]):  # torchfile's name
    """A table: a dict that is equal only to itself, so that it can be a key. Its entries are attributes too."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _found(self, name)

    def _no_order(self, other: object) -> Any:
        raise TypeError("hashable_uniq_dict does not support these comparisons")

    __le__ = __gt__ = __lt__ = __ge__ = _no_order


class TorchObject(Shown):
    """An object of a Torch class. `obj.name` and `obj["name"]` are its fields; `None` if there is no such field."""

    def __init__(self, typename: bytes, obj: Any = None, version_number: int = 0) -> None:
        self._typename = typename
        self._obj = obj
        self._version_number = version_number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_typename", "_obj", "_version_number"):
            raise AttributeError(name)
        return _found(self._obj, name)

    def __getitem__(self, name: Any) -> Any:
        if isinstance(self._obj, list):
            return self._obj[name]
        return _found(self._obj, name)

    def torch_typename(self) -> bytes:
        """The name of its class in Lua, `b"nn.Linear"`."""
        return self._typename

    def _short(self) -> str:
        name = self._typename.decode("utf-8", "backslashreplace")
        held = f": {counted(len(self._obj), 'field')}" if isinstance(self._obj, (dict, list)) else ""
        return f"TorchObject {clean(name)}{held}"

    def __dir__(self) -> list[str]:
        names = list(self._obj) if isinstance(self._obj, dict) else []
        texts = [name.decode() for name in names if isinstance(name, bytes) and name.isalnum() and name.isascii()]
        return ["torch_typename", *texts, *(name for name in names if isinstance(name, str))]


class Kinds:
    """The classes that values are made of: torchfile's own, or those of this module."""

    def __init__(self, table: Any = hashable_uniq_dict, obj: Any = TorchObject, function: Any = LuaFunction) -> None:
        self.table = table
        self.obj = obj
        self.function = function


class TorchfileBuilder:
    """Builds torchfile's values with an explicit stack. The content of an object is complete before its owner."""

    def __init__(self, lists: bool, ints: bool, text: bool, kinds: Kinds | None = None) -> None:
        self._lists = lists
        self._ints = ints
        self._text = text
        self._kinds = kinds or Kinds()
        self._built: dict[int, Any] = {}
        self._kept: list[Value] = []
        self._arrays: dict[int, np.ndarray] = {}

    def run(self, root: Value) -> Any:
        """Return the value as torchfile has it. Results of earlier calls are reused.

        Raises:
            UnsupportedError: a tensor has more dimensions than numpy's arrays.
        """
        visits = [visit for visit in walk(root) if id(visit.value) not in self._built]
        for visit in visits:
            self._kept.append(visit.value)
            self._built[id(visit.value)] = self._shell(visit.value, visit)
        for visit in reversed(visits):
            if isinstance(visit.value, GraphFunction):  # a named tuple: needs its upvalues at construction
                function = visit.value
                self._built[id(function)] = self._kinds.function(
                    len(function.code), function.code, self._value(function.upvalues)
                )
        for visit in visits:
            self._fill(visit.value)
        return self._value(root)

    def _value(self, value: Value) -> Any:
        if isinstance(value, float):
            return int(value) if self._ints and value.is_integer() else value
        if isinstance(value, bytes):
            return value.decode() if self._text else value
        return self._built.get(id(value), value)

    def _is_list(self, table: Table) -> bool:
        return self._lists and (not table.raw_keys or (self._ints and table.sequence() is not None))

    def _shell(self, value: Value, visit: Any) -> Any:
        if isinstance(value, Table):
            return [] if self._is_list(value) else self._kinds.table()
        if isinstance(value, TdsVec):
            return []
        if isinstance(value, TdsHash):
            return self._kinds.table()
        if isinstance(value, GraphObject):
            return self._kinds.obj(value.class_name.encode(), version_number=value.version or 0)
        if isinstance(value, Storage):
            return self._array(value)
        if isinstance(value, Tensor):
            if len(value.size) > _MOST_DIMENSIONS:
                raise UnsupportedError(
                    f"a tensor of {len(value.size)} dimensions is not a numpy array",
                    path=visit.path,
                    expected=f"at most {_MOST_DIMENSIONS}",
                )
            try:
                return self._view(value)
            except (ValueError, OverflowError) as error:
                raise UnsupportedError(f"a tensor is not a numpy array: {error}", path=visit.path) from error
        return None

    def _array(self, storage: Storage) -> np.ndarray:
        """Return a storage as a writable array, one for each storage."""
        array = self._arrays.get(id(storage))
        if array is None:
            array = storage_array(storage)
            array = self._arrays[id(storage)] = array if array.flags.writeable else array.copy()
        return array

    def _view(self, tensor: Tensor) -> np.ndarray:
        if tensor.storage is None or not tensor.size:
            return np.empty(0, tensor.element.code)
        base = self._array(tensor.storage)
        strides = byte_strides(tensor.size, tensor.stride, base.itemsize)
        return np.lib.stride_tricks.as_strided(base[tensor.offset :], tensor.size, strides)

    def _fill(self, value: Value) -> None:
        built = self._built[id(value)]
        if isinstance(value, Table):
            if self._is_list(value):
                built.extend(self._value(item) for item in value.sequence() or ())
            else:
                self._fill_dict(built, value)
        elif isinstance(value, TdsVec):
            built.extend(self._value(item) for item in value.elements)
        elif isinstance(value, TdsHash):
            self._fill_dict(built, value.content)
        elif isinstance(value, GraphObject):
            # The fields were read as a table of their own, so torchfile turns a list of them into a list as well.
            built._obj = self._fields(value)

    def _fields(self, obj: GraphObject) -> Any:
        if obj.fields is None:
            return obj.payload
        if self._is_list(obj.fields):
            return [self._value(item) for item in obj.fields.sequence() or ()]
        return self._fill_dict(self._kinds.table(), obj.fields)

    def _fill_dict(self, target: Any, table: Table) -> Any:
        for key, item in table.raw_items():
            target[self._key(key)] = self._value(item)
        return target

    def _key(self, key: Value) -> Any:
        """Return a key as torchfile has it; unhashable keys are compared by identity."""
        built = self._value(key)
        if isinstance(built, (list, np.ndarray)):
            return key
        return built
