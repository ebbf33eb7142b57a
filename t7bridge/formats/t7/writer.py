"""T7Writer: a graph as a `.t7` file. Layout: `docs/format-t7.md`."""

from __future__ import annotations

from itertools import chain, count
from typing import IO, TYPE_CHECKING

from ...data import collector_paused, define
from ...errors import T7BridgeError, UnsupportedError, WriteError
from ...graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor, view_fault
from ...graph.walk import step_name
from ...io.output import Output
from ...limits import DEFAULT_LIMITS
from . import layout as tags
from .binary import BinaryWriter
from .layout import Payload, T7Layout
from .reader import payload_of

if TYPE_CHECKING:
    from .text import TextWriter

_SHORT_STRING = 1 << 16
"""Bytes of a string that is written together with its neighbours."""


def _keys_and_values(value: Value) -> tuple[list[Value] | None, list[Value]]:
    """Return the keys and the values inside an object; `None` for the keys of one whose values have none."""
    if isinstance(value, (Table, TdsHash)):
        table = value if isinstance(value, Table) else value.content
        return table.raw_keys, table.raw_values
    if isinstance(value, TdsVec):
        return None, value.elements
    if isinstance(value, TorchObject):
        return None, [value.fields]
    if isinstance(value, Tensor):
        return None, [value.storage]
    return None, [value.upvalues]  # a LuaFunction


@define(eq=False)
class _Unfinished:
    """An object that is being written: its start is written, and some of the keys and values inside it.

    Attributes:
        value: the object.
        keys: all keys inside it; `None` for one whose values have none.
        values: all values inside it.
        next_entry: place, 0-based, of the entry to go on with.
        is_key_begun: whether to go on with the value of that entry, as its key is written, or being written.
    """

    value: Value
    keys: list[Value] | None
    values: list[Value]
    next_entry: int = 0
    is_key_begun: bool = False

    def step(self) -> str:
        """Return the step of a path, for errors, from the object to what is being written inside it.

        Empty for the table of fields of an object, and if nothing inside was begun.
        """
        if self.keys is not None and self.is_key_begun:
            return f"<key {step_name(self.keys[self.next_entry])}>"
        entry = self.next_entry - 1  # whose value was begun
        if entry < 0:
            return ""
        if self.keys is not None:
            return step_name(self.keys[entry])
        if isinstance(self.value, TdsVec):
            return f"[{entry + 1}]"
        if isinstance(self.value, Tensor):
            return ".storage"
        return "<upvalues>" if isinstance(self.value, LuaFunction) else ""


def _stream_for(output: Output, layout: T7Layout) -> BinaryWriter | TextWriter:
    """Return the writer of primitives in the encoding of a layout."""
    if layout.encoding == "ascii":
        from .text import TextWriter  # few files are in ascii

        return TextWriter(output, layout)
    return BinaryWriter(output, layout)


class T7Writer:
    """Writes Lua's values to a `.t7` file, one after another, as `torch.DiskFile` does.

    `t7bridge.T7Writer` extends this class by values of numpy, torch and Python.

    Args:
        target: a binary file object, or an output, which its owner closes.
        layout: the encoding; by default that of `T7Layout()`.
        referenced: whether an object that occurs again is written as a reference; otherwise it is written again.
        payloads: receives the storages in order, whose elements are then not written; by default they are.

    Attributes:
        layout: the encoding.
        places: each storage by the position of its elements in the output, in bytes; filled while writing.
    """

    def __init__(
        self,
        target: IO[bytes] | Output,
        layout: T7Layout | None = None,
        *,
        referenced: bool = True,
        payloads: list[Storage] | None = None,
    ) -> None:
        self._output = target if isinstance(target, Output) else Output(target)
        self._is_own_output = not isinstance(target, Output)
        """Whether the target is a file object, which gets each value as soon as it is complete."""
        self.layout = T7Layout() if layout is None else layout
        self._stream = _stream_for(self._output, self.layout)
        self._referenced = referenced
        """Whether an object that occurs again is a reference, by its number, and not written again."""
        self._external_storages = payloads
        """Receives the storages whose elements are not written; `None` if they are."""
        self._numbers: dict[Value, int] = {}
        """The number of each object, which is equal to itself only. Without references, of those being written only."""
        self.places: dict[int, Storage] = {}
        """Each storage by the position of its elements in the output."""
        self._has_numbered = False
        """Whether an object has received a number."""
        self._stack: list[_Unfinished] = []
        """The objects being written, each inside the one before. After an error it stays as it was then."""
        first_free_number = max(self.layout.numbers, default=0) + 1
        self._next_numbers = chain(self.layout.numbers, count(first_free_number))
        """The numbers of the objects still to be written: the layout's, and after these the free ones."""
        self._payload_depth = 0
        """How many payloads, each inside another, are being written: their values are not values of the file."""

    @property
    def plain_nans(self) -> int:
        """Number of NaNs that were written as text, which cannot express their bits."""
        return self._stream.plain_nans

    # Single values, as `torch.DiskFile` writes them

    def write_int(self, value: int) -> None:
        """Write a 4-byte integer."""
        self._stream.write_int(value)
        self._flush_own_output()

    def write_short(self, value: int) -> None:
        """Write a 2-byte integer."""
        self._stream.write_short(value)
        self._flush_own_output()

    def write_long(self, value: int) -> None:
        """Write a C long, of the layout's size."""
        self._stream.write_long(value)
        self._flush_own_output()

    def write_float(self, value: float) -> None:
        """Write a 4-byte float."""
        self._stream.write_float(value)
        self._flush_own_output()

    def write_double(self, value: float) -> None:
        """Write an 8-byte float."""
        self._stream.write_double(value)
        self._flush_own_output()

    def write_bool(self, value: bool) -> None:
        """Write a boolean as the integer 0 or 1."""
        self.write_int(int(value))

    def write_string(self, data: bytes | str) -> None:
        """Write a length (an integer, in bytes) and the bytes."""
        data = data.encode() if isinstance(data, str) else data
        self._stream.write_int(len(data))
        self._stream.write_raw(data)
        self._flush_own_output()

    def write_raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._stream.write_raw(data)
        self._flush_own_output()

    @property
    def objects(self) -> list[Value]:
        """The objects written so far, in the order of their numbers."""
        return list(self._numbers)

    def flush(self) -> None:
        """Write everything buffered to the file object."""
        self._output.flush()

    def _flush_own_output(self) -> None:
        """Write what is buffered, after a whole value, to a file object, which its owner may use before the next."""
        if self._is_own_output and not self._payload_depth:
            self._output.flush()

    # Objects

    def write_object(self, value: Value) -> None:
        """Write one value and everything inside it.

        Args:
            value: `None`, `bool`, `int`, `float`, `bytes`, `str` (as UTF-8), or an object of `t7bridge.graph`.

        Raises:
            UnsupportedError: the value is none of these, or a tensor of a type that Lua Torch does not have.
            WriteError: a number does not fit the layout, or the output cannot be written.
        """
        # Only the first value of a file can be without its class.
        if self.layout.headless and not self._has_numbered and not self._payload_depth:
            from .releases_2010 import can_be_headless, write_headless

            if can_be_headless(value):
                write_headless(self, value)
                return
        if not self._payload_depth:  # a value in a payload is inside those on the stack
            self._stack.clear()
        try:
            self._write_tree(value)
        except T7BridgeError as error:
            if not error.path:
                error.path = "root" + "".join(unfinished.step() for unfinished in self._stack)
            raise
        self._flush_own_output()

    @collector_paused()
    def _write_tree(self, value: Value) -> None:
        """Write a value with everything inside it; an explicit stack, not calls of Python, allows any nesting depth."""
        outer_objects = len(self._stack)  # those around a payload that the value is part of
        next_value: tuple[Value] | None = (value,)
        while next_value is not None:
            (value,) = next_value
            if self._open(value):
                keys, values = _keys_and_values(value)
                self._stack.append(_Unfinished(value, keys, values))
            else:
                self._forget_number(value)
            next_value = self._continue(outer_objects)

    def _forget_number(self, value: Value) -> None:
        """Forget the number of an object that is complete, if each is written again wherever it occurs.

        Then numbers are only kept to notice that an object is inside itself.
        """
        if not self._referenced:
            self._numbers.pop(value, None)

    def _continue(self, outer_objects: int) -> tuple[Value] | None:
        """Write on, from the innermost object outwards, up to the next value that has to be opened.

        Objects that are written completely leave the stack.

        Args:
            outer_objects: how many objects on the stack are left as they are.

        Returns:
            The next value, in a tuple, as it may be `None` itself; `None` if all other objects are complete.
        """
        stack = self._stack
        while len(stack) > outer_objects:
            next_value = self._write_scalars(stack[-1])
            if next_value is not None:
                return next_value
            self._forget_number(stack.pop().value)
        return None

    def _open(self, value: Value) -> bool:
        """Write a scalar, or the start of an object; return whether values inside it are still to be written."""
        stream = self._stream
        if type(value) is Table:  # by far the most of those that come here, and spared the questions below
            return self._open_object(value)
        if value is None:
            stream.write_int(tags.NIL)
        elif value is True or value is False:
            stream.write_boolean(value)
        elif isinstance(value, (float, int)):
            self._write_number(value)
        elif isinstance(value, bytes):
            stream.write_string(value)
        elif isinstance(value, str):
            stream.write_string(value.encode())
        else:
            return self._open_object(value)
        return False

    def _write_number(self, value: float) -> None:
        """Write a number, which must be a double exactly.

        Raises:
            WriteError: it is an integer that no double is.
        """
        try:
            number = float(value)
        except OverflowError:
            raise WriteError(f"the integer {value} does not fit a Lua number") from None
        is_nan = value != value
        if number != value and not is_nan:
            raise WriteError(
                f"the integer {value} is not a Lua number",
                hint="Lua's numbers are doubles, exact up to 2^53; use a float.",
            )
        self._stream.write_number(number)

    def _number_of(self, value: Value) -> int | None:
        """Return the number of an object that was written before, or is being written; `None` for any other."""
        number = self._numbers.get(value)
        if number is not None and not self._referenced:
            raise WriteError("a cycle cannot be written without references")
        return number

    def _open_object(self, value: Value) -> bool:
        """Write an object, its start, or a reference; return whether values inside it are still to be written.

        Raises:
            UnsupportedError: Lua Torch has no such object.
            WriteError: it is inside itself, and there are no references.
        """
        stream = self._stream
        tag = self._tag_of(value)
        if tag == tags.FUNCTION_WITHOUT_INDEX:
            # Such a function has no number, and is written wherever it occurs.
            stream.write_int(tag)
            self._write_bytecode(value)
            return True  # its upvalues follow
        number = self._number_of(value)
        if number is not None:
            stream.write_ints(tag, number)
            return False
        if isinstance(value, Table):
            stream.write_ints(tag, self._new_number(value), len(value.raw_keys))
            return True
        if isinstance(value, LuaFunction):
            stream.write_ints(tag, self._new_number(value))
            self._write_bytecode(value)
            return True  # its upvalues follow
        name = self._class_name(value)  # before anything is written, as it may be refused
        stream.write_ints(tag, self._new_number(value))
        return self._open_torch(value, name)

    @staticmethod
    def _tag_of(value: Value) -> int:
        """Return the type tag of an object.

        Raises:
            UnsupportedError: Lua Torch has no such object.
        """
        if isinstance(value, Table):
            return tags.TABLE
        if isinstance(value, (Tensor, Storage, TorchObject, TdsHash, TdsVec)):
            return tags.TORCH
        if isinstance(value, LuaFunction):
            return value.tag
        raise UnsupportedError(f"a value of type {type(value).__name__} cannot be stored in a .t7 file")

    def _new_number(self, value: Value) -> int:
        """Return the number of an object that is written now, and keep it."""
        number = next(self._next_numbers)
        self._has_numbered = True
        self._numbers[value] = number
        return number

    @staticmethod
    def _class_name(value: Value) -> str:
        """Return the class name of an object.

        Raises:
            UnsupportedError: it is a tensor or storage of a type that Lua Torch does not have.
        """
        if isinstance(value, (Tensor, Storage)):
            name = value.lua_class
            if name is None:
                raise UnsupportedError(f"Lua Torch has no tensors of type {value.element.name}")
            return name
        return str(value.class_name if isinstance(value, TorchObject) else value.lua_class)

    def _open_torch(self, value: Value, name: str) -> bool:
        """Write version, class name and start of an object; return whether values inside it are still to be written.

        The start is all that precedes them: of a tensor its sizes, of a collection their number. A storage, and an
        object whose class has a layout of its own, is written as a whole.

        Args:
            value: a tensor, a storage, a tds collection or a `TorchObject`, whose number was written.
            name: of its class.

        Raises:
            WriteError: no class of Lua Torch has such a name.
        """
        self._write_class(name, value.version)
        if isinstance(value, Storage):
            self._write_storage(value)
            return False
        if isinstance(value, Tensor):
            self._write_tensor(value)
            return True
        if isinstance(value, (TdsHash, TdsVec)):
            _, values = _keys_and_values(value)
            self._stream.write_long(len(values))
            return True
        payload = payload_of(name, value.version, self.layout.vintage)
        if payload is None:  # a table of fields follows
            return True
        self._write_payload(value, payload)
        return False

    def _write_class(self, name: str, version: int | None) -> None:
        """Write the version of an object's class, if there is one, and the name.

        Args:
            name: of the class.
            version: of the class; `None` as in files that predate versions.

        Raises:
            WriteError: no class of Lua Torch has such a name, and `T7Reader` refuses it.
        """
        stream = self._stream
        # An object without a version begins with its name.
        is_read_as_version = version is None and name.startswith("V ")
        if not name or not name.isprintable() or is_read_as_version:
            raise WriteError(f"{name!r} is not a class name", expected="printable text that is not empty")
        if version is not None:
            text = b"V %d" % version
            stream.write_int(len(text))
            stream.write_raw(text)
        encoded = name.encode()
        stream.write_int(len(encoded))
        stream.write_raw(encoded)

    def _write_payload(self, value: TorchObject, payload: Payload) -> None:
        """Write what an object of a class with a layout of its own has after its class name.

        Args:
            value: the object.
            payload: how its class is written; it may write values with this writer.

        Raises:
            WriteError: such objects are nested too deep.
        """
        if self._payload_depth >= DEFAULT_LIMITS.payload_depth:  # no reader could read more
            raise WriteError(
                f"objects with payloads of their own are nested too deep: {value.class_name}",
                expected=f"at most {DEFAULT_LIMITS.payload_depth} levels",
            )
        self._payload_depth += 1
        try:
            payload.write(self, value)
        finally:
            self._payload_depth -= 1

    def _write_scalars(self, unfinished: _Unfinished) -> tuple[Value] | None:
        """Write keys and values inside an object, up to the next that is neither a number nor a short string.

        Returns:
            That one, which the caller writes, in a tuple, as it may be `None` itself; `unfinished` then says where to
            go on behind it. `None` if there is none: the object is complete.

        Raises:
            WriteError: a key is nil or nan.
        """
        stream = self._stream
        keys = unfinished.keys
        values = unfinished.values
        is_key_written = unfinished.is_key_begun
        for entry in range(unfinished.next_entry, len(values)):
            if keys is not None and not is_key_written:
                key = keys[entry]
                if type(key) is bytes and len(key) < _SHORT_STRING:
                    stream.write_string(key)
                elif key is None or key != key:
                    raise WriteError(f"a table key is {'nil' if key is None else 'nan'}, which Lua does not allow")
                elif type(key) is float:
                    stream.write_number(key)
                else:
                    unfinished.next_entry = entry
                    unfinished.is_key_begun = True
                    return (key,)
            is_key_written = False  # that of the next entry
            value = values[entry]
            if type(value) is float:
                stream.write_number(value)
            elif type(value) is bytes and len(value) < _SHORT_STRING:
                stream.write_string(value)
            else:
                unfinished.next_entry = entry + 1
                unfinished.is_key_begun = False
                return (value,)
        return None

    def _write_bytecode(self, function: LuaFunction) -> None:
        """Write the bytecode of a function, with its length."""
        self._stream.write_int(len(function.code))
        self._stream.write_raw(function.code)

    def _write_tensor(self, tensor: Tensor) -> None:
        """Write a tensor up to its storage.

        Raises:
            UnsupportedError: it has no dimensions.
            WriteError: it is not a view of its storage.
        """
        if tensor.is_scalar:
            raise UnsupportedError("Lua Torch has no tensors without dimensions", hint="Give it the size (1,).")
        fault = view_fault(tensor.size, tensor.stride, tensor.offset, tensor.storage.count if tensor.storage else 0)
        if fault:
            raise WriteError(f"a tensor is not a view of its storage: {fault}")
        self._stream.write_int(len(tensor.size))
        self._stream.write_longs(tensor.size)
        self._stream.write_longs(tensor.stride)
        self._stream.write_long(tensor.offset + 1)  # 1-based in the file
        if self.layout.vintage == tags.TORCH5:
            owns_storage = self._numbers.get(tensor) not in self.layout.unowned
            self._stream.write_int(int(owns_storage))  # a field that later releases do not have

    def _write_storage(self, storage: Storage) -> None:
        """Write the size and the elements of a storage, and note their place in the output.

        If elements are kept elsewhere, the storage is put into the list of those instead.
        """
        self._stream.write_long(storage.count)
        if self._external_storages is not None:
            self._external_storages.append(storage)
        else:
            self.places[self._output.position] = storage
            self._stream.write_elements(storage)
