"""A drop-in for torchfile 0.1.0: `import t7bridge.torchfile as torchfile`.

The same functions, classes and values, from a reader that checks what it reads and also reads ascii files, files of
other byte orders and sizes of `long`, half precision, and objects in file objects that are not files. Fields that an
object does not have are `None`, as in torchfile; damaged files raise `T7ReaderException`.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from typing import IO, Any

from .data import np
from .errors import FormatError, UnsupportedError
from .formats.t7 import layout as tags
from .formats.t7.file import refuse_unexplained
from .formats.t7.reader import T7Reader as _Reader
from .graph.lua import LuaFunction as GraphFunction
from .graph.lua import Table, TdsHash, TdsVec, Value
from .graph.lua import TorchObject as GraphObject
from .graph.storage import Storage, storage_array
from .graph.tensor import Tensor, byte_strides
from .graph.walk import Fill, Path, Rebuilder, fill_list
from .limits import DEFAULT_LIMITS, Limits
from .text import Shown, clean, counted

__all__ = ["LuaFunction", "T7Reader", "T7ReaderException", "TorchObject", "hashable_uniq_dict", "load"]

T7ReaderException = FormatError
TYPE_NIL, TYPE_NUMBER, TYPE_STRING, TYPE_TABLE, TYPE_TORCH, TYPE_BOOLEAN = (
    tags.NIL,
    tags.NUMBER,
    tags.STRING,
    tags.TABLE,
    tags.TORCH,
    tags.BOOLEAN,
)
TYPE_FUNCTION, LEGACY_TYPE_RECUR_FUNCTION, TYPE_RECUR_FUNCTION = (
    tags.FUNCTION_WITHOUT_INDEX,
    tags.LEGACY_FUNCTION,
    tags.FUNCTION,
)


_MOST_DIMENSIONS = 64
"""Maximum dimensions of numpy's arrays."""

LuaFunction = namedtuple("LuaFunction", ["size", "dumped", "upvalues"])
"""A function: length of the bytecode in bytes, the bytecode, and the upvalues as in the file."""


def _found(entries: Any, name: Any) -> Any:
    """Return an entry by its name, text or bytes; `None` if there is none, as torchfile does.

    Args:
        entries: a dict; a list and `None` have no names.
        name: the name; names of the file are bytes, unless these were decoded.
    """
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


class T7Reader:
    """Read a stream of values and objects with torchfile's methods.

    Args:
        fileobj: a binary file object; reading starts at its position.
        use_list_heuristic: return tables with the keys 1 to n, and tables without entries, as lists.
        use_int_heuristic: return integral numbers as `int`.
        utf8_decode_strings: return strings as `str`, else as `bytes`. Class names are `bytes` in any case.
        force_deserialize_classes: as in torchfile 0.1.0, must be None.
        force_8bytes_long: the file has 8-byte longs; otherwise their size is detected.
        limits: resource limits.

    Raises:
        DeprecationWarning: `force_deserialize_classes` is set.
    """

    def __init__(
        self,
        fileobj: IO[bytes],
        use_list_heuristic: bool = True,
        use_int_heuristic: bool = True,
        utf8_decode_strings: bool = False,
        force_deserialize_classes: bool | None = None,
        force_8bytes_long: bool = False,
        *,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if force_deserialize_classes is not None:
            raise DeprecationWarning("force_deserialize_classes is now always forced to be true, so no longer required")
        self.f = fileobj
        self.use_list_heuristic = use_list_heuristic
        self.use_int_heuristic = use_int_heuristic
        self.utf8_decode_strings = utf8_decode_strings
        self.force_8bytes_long = force_8bytes_long
        self._reader = _Reader(fileobj, limits=limits, long_size=8 if force_8bytes_long else None)
        self._builder = TorchfileBuilder(use_list_heuristic, use_int_heuristic, utf8_decode_strings)

    def read_obj(self) -> Any:
        """Read one value and everything inside it."""
        return self._builder.run(self._reader.read_object())

    def _only_object(self) -> Any:
        """Read the first value of a file, which must account for some of its bytes."""
        value = self._reader.read_object()
        refuse_unexplained(self._reader, value)
        return self._builder.run(value)

    def read_boolean(self) -> bool:
        """Read an integer; 1 is True."""
        return self.read_int() == 1

    def read_int(self) -> int:
        """Read a 4-byte integer."""
        return self._reader.read_int()

    def read_long(self) -> int:
        """Read a C long, of the file's size."""
        return self._reader.read_long()

    def read_long_array(self, n: int) -> list[int]:
        """Read `n` C longs."""
        return [self._reader.read_long() for _ in range(n)]

    def read_float(self) -> float:
        """Read a 4-byte float."""
        return self._reader.read_float()

    def read_double(self) -> float:
        """Read an 8-byte float."""
        return self._reader.read_double()

    def read_string(self, disable_utf8: bool = False) -> bytes | str:
        """Read a length and that many bytes."""
        data = self._reader.read_string()
        return data if disable_utf8 or not self.utf8_decode_strings else data.decode()


def load(filename: str, **kwargs: Any) -> Any:
    """Load a `.t7` file.

    Args:
        filename: path of the file.
        kwargs: those of `T7Reader`.

    Raises:
        FileNotFoundError: there is no such file.
        T7ReaderException: the file is damaged, or is not a `.t7`.
    """
    with open(filename, "rb") as file:
        reader = T7Reader(file, **kwargs)
        return reader._only_object()


class TorchfileBuilder(Rebuilder):
    """Builds torchfile's values. Results of earlier calls are reused.

    Args:
        lists: see `T7Reader`.
        ints: likewise.
        text: likewise.
        kinds: the module whose classes the values have: this one, or torchfile itself.
    """

    def __init__(self, lists: bool, ints: bool, text: bool, kinds: Any = None) -> None:
        super().__init__()
        self._lists = lists
        self._ints = ints
        self._text = text
        self._kinds = kinds or sys.modules[__name__]
        self._arrays: dict[int, np.ndarray] = {}

    def scalar(self, value: Any, path: Path | None, key: Any) -> Any:
        """Return torchfile's scalar."""
        if type(value) is float:
            return int(value) if self._ints and value.is_integer() else value
        return value.decode() if self._text and type(value) is bytes else value

    def make(self, value: Value, path: Path) -> Any:
        """Return torchfile's value, or a `Fill` of one whose parts are built later, before it is complete.

        Args:
            value: of the graph.
            path: where it is, for messages.

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
            torch_object = self._kinds.TorchObject(value.class_name.encode(), version_number=value.version or 0)
            # The fields were read as a table of their own, so torchfile turns a list of them into a list as well.
            # An object without fields has what its class wrote in a layout of its own: nothing to be filled.
            fields = self._table(value.fields) if value.fields is not None else Fill(value.payload, parts=())
            torch_object._obj = fields.value  # a list or dict already, into which its entries are put later
            return Fill(torch_object, fields.parts, on_filled=fields.on_filled)
        if isinstance(value, GraphFunction):
            code = value.code
            # A named tuple cannot be filled: it is made when its upvalues are.
            return fill_list([value.upvalues], lambda parts: self._kinds.LuaFunction(len(code), code, *parts))
        if isinstance(value, Storage):
            return self._array(value)
        return self._view(value, path) if isinstance(value, Tensor) else value

    def _table(self, table: Table) -> Fill:
        """Return a list or dict to be filled, by torchfile's heuristic: keys of a list are whole numbers."""
        if self._lists and (not table.raw_keys or (self._ints and table.sequence() is not None)):
            return fill_list(table.sequence() or [])
        return self._dict(table)

    def _dict(self, table: Table) -> Fill:
        """Return a dict to be filled: its keys are built values too, so that its entries are made last."""
        entries = self._kinds.hashable_uniq_dict()
        pairs = [[key, item] for key, item in table.raw_items()]

        def enter_pairs() -> None:
            for key, (built_key, built_item) in zip(table.raw_keys, pairs):
                try:
                    entries[built_key] = built_item
                except TypeError:  # it cannot be hashed, such as a list: the graph's own key is, by its identity
                    entries[key] = built_item

        # Key and item of each pair are replaced by what is built of them.
        parts = ((pair, place, key, pair[place]) for key, pair in zip(table.raw_keys, pairs) for place in (0, 1))
        return Fill(entries, parts, on_filled=enter_pairs)

    def _array(self, storage: Storage) -> np.ndarray:
        """Return a storage as a writable array, one for each storage."""
        array = self._arrays.get(id(storage))
        if array is None:
            array = storage_array(storage)
            if not array.flags.writeable:
                array = array.copy()
            self._arrays[id(storage)] = array
            self._alive.append(storage)  # so that no other gets its id
        return array

    def _view(self, tensor: Tensor, path: Path) -> np.ndarray:
        """Return a tensor as a view of the array of its storage.

        Raises:
            UnsupportedError: numpy has no such array.
        """
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
