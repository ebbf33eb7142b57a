"""torchfile's types of values, and their construction from the graph. Does not import torchfile."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from ..data import np
from ..errors import UnsupportedError
from ..graph.lua import LuaFunction as GraphFunction
from ..graph.lua import Table, TdsHash, TdsVec, Value
from ..graph.lua import TorchObject as GraphObject
from ..graph.storage import Storage, storage_array
from ..graph.tensor import Tensor, byte_strides
from ..graph.walk import Fill, Path, Rebuilder, fill_list
from ..text import Shown, clean, counted

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


class TorchfileBuilder(Rebuilder):
    """Builds torchfile's values. Results of earlier calls are reused."""

    def __init__(self, lists: bool, ints: bool, text: bool, kinds: Kinds | None = None) -> None:
        super().__init__()
        self._lists = lists
        self._ints = ints
        self._text = text
        self._kinds = kinds or Kinds()
        self._arrays: dict[int, np.ndarray] = {}

    def scalar(self, value: Any, path: Path | None, key: Any) -> Any:
        """Return torchfile's scalar."""
        if type(value) is float:
            return int(value) if self._ints and value.is_integer() else value
        return value.decode() if self._text and type(value) is bytes else value

    def make(self, value: Value, path: Path) -> Any:
        """Return torchfile's value, or one to be filled.

        Raises:
            UnsupportedError: a tensor has more dimensions than numpy's arrays.
        """
        if isinstance(value, Table):
            return self._table(value)
        if isinstance(value, TdsVec):
            return fill_list(value.elements)
        if isinstance(value, TdsHash):
            return self._dict(value.content)
        if isinstance(value, GraphObject):
            made = self._kinds.obj(value.class_name.encode(), version_number=value.version or 0)
            # The fields were read as a table of their own, so torchfile turns a list of them into a list as well.
            inner = self._table(value.fields) if value.fields is not None else Fill(value.payload, ())
            made._obj = inner.value
            return Fill(made, inner.parts, done=inner.done)
        if isinstance(value, GraphFunction):  # a named tuple: needs its upvalues at construction
            code = value.code
            return fill_list([value.upvalues], lambda parts: self._kinds.function(len(code), code, *parts))
        if isinstance(value, Storage):
            return self._array(value)
        return self._view(value, path) if isinstance(value, Tensor) else value

    def _table(self, table: Table) -> Fill:
        if self._lists and (not table.raw_keys or (self._ints and table.sequence() is not None)):
            return fill_list(table.sequence() or [])
        return self._dict(table)

    def _dict(self, table: Table) -> Fill:
        made = self._kinds.table()
        slots = [[key, item] for key, item in table.raw_items()]

        def enter() -> None:
            for key, (built, item) in zip(table.raw_keys, slots):
                # Keys that cannot be hashed are compared by identity.
                made[key if isinstance(built, (list, np.ndarray)) else built] = item

        parts = ((slot, at, key, slot[at]) for key, slot in zip(table.raw_keys, slots) for at in (0, 1))
        return Fill(made, parts, done=enter)

    def _array(self, storage: Storage) -> np.ndarray:
        """Return a storage as a writable array, one for each storage."""
        array = self._arrays.get(id(storage))
        if array is None:
            array = storage_array(storage)
            array = self._arrays[id(storage)] = array if array.flags.writeable else array.copy()
            self._kept.append(storage)
        return array

    def _view(self, tensor: Tensor, path: Path) -> np.ndarray:
        if len(tensor.size) > _MOST_DIMENSIONS:
            raise UnsupportedError(
                f"a tensor of {len(tensor.size)} dimensions is not a numpy array",
                path=path.text(),
                expected=f"at most {_MOST_DIMENSIONS}",
            )
        if tensor.storage is None or not tensor.size:
            return np.empty(0, tensor.element.code)
        base = self._array(tensor.storage)
        strides = byte_strides(tensor.size, tensor.stride, base.itemsize)
        try:
            return np.lib.stride_tricks.as_strided(base[tensor.offset :], tensor.size, strides)
        except (ValueError, OverflowError) as error:
            raise UnsupportedError(f"a tensor is not a numpy array: {error}", path=path.text()) from error
