"""T7Writer: a graph as a `.t7` file. Layout: `docs/format-t7.md`."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from ...data import collector_paused
from ...errors import T7BridgeError, UnsupportedError, WriteError
from ...graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor, view_fault
from ...graph.walk import step_name
from ...io.output import Output
from ...limits import DEFAULT_LIMITS
from . import layout as tags
from .binary import BinaryWriter
from .layout import T7Layout
from .reader import payload_of

if TYPE_CHECKING:
    from .text import TextWriter

_SHORT = 1 << 16


def _parts(value: Value) -> tuple[list[Value] | str, list[Value]]:
    """Return the keys and values inside a value; of one that has no keys, the step to them."""
    if isinstance(value, (Table, TdsHash)):
        table = value if isinstance(value, Table) else value.content
        return table.raw_keys, table.raw_values
    if isinstance(value, TdsVec):
        return "[%d]", value.elements
    if isinstance(value, TorchObject):
        return "", [value.fields]
    return (".storage", [value.storage]) if isinstance(value, Tensor) else ("<upvalues>", [value.upvalues])


def _step(value: Value, half: int) -> str:
    """Return the step from a value to the last of its so many halves of entries, for errors."""
    keys, place = _parts(value)[0], (half - 1) // 2
    if not half:
        return ""
    if isinstance(keys, str):
        return keys % (place + 1) if "%" in keys else keys
    return f"<key {step_name(keys[place])}>" if half % 2 else step_name(keys[place])


def _stream_for(output: Output, layout: T7Layout) -> BinaryWriter | TextWriter:
    """Return the writer of primitives in the encoding of a layout."""
    if layout.encoding == "ascii":
        from .text import TextWriter  # few files are in ascii

        return TextWriter(output, layout)
    return BinaryWriter(output, layout)


class T7Writer:
    """Writes Lua's values to a `.t7` file, one after another, as `torch.DiskFile` does.

    Arguments are those of `t7bridge.T7Writer`, which extends this class by values of numpy, torch and Python.
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
        self.layout = layout or T7Layout()
        self._stream = _stream_for(self._output, self.layout)
        self._referenced = referenced
        self._payloads = payloads
        self._numbers: dict[Value, int] = {}
        """The number of each object, which is equal to itself only."""
        self.places: dict[int, Storage] = {}
        """Each storage by the position of its elements in the output, in bytes."""
        self._count = 0
        """Number of objects that have a number."""
        self._inside: list[Value] = []
        """The values being written, each inside the one before."""
        self._halves: list[int] = []
        """For each of them how many keys and values, two an entry, are written or being written."""
        # The object after the last of the layout's has the number after the greatest of these: see `_new_number`.
        self._beyond = max(self.layout.numbers, default=0) - len(self.layout.numbers) + 1
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
        self._done()

    def write_short(self, value: int) -> None:
        """Write a 2-byte integer."""
        self._stream.write_short(value)
        self._done()

    def write_long(self, value: int) -> None:
        """Write a C long, of the layout's size."""
        self._stream.write_long(value)
        self._done()

    def write_float(self, value: float) -> None:
        """Write a 4-byte float."""
        self._stream.write_float(value)
        self._done()

    def write_double(self, value: float) -> None:
        """Write an 8-byte float."""
        self._stream.write_double(value)
        self._done()

    def write_bool(self, value: bool) -> None:
        """Write a boolean as the integer 0 or 1."""
        self.write_int(int(value))

    def write_string(self, data: bytes | str) -> None:
        """Write a length (an integer, in bytes) and the bytes."""
        data = data.encode() if isinstance(data, str) else data
        self._stream.write_int(len(data))
        self._stream.write_raw(data)
        self._done()

    def write_raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._stream.write_raw(data)
        self._done()

    @property
    def objects(self) -> list[Value]:
        """The objects written so far, in the order of their numbers."""
        return list(self._numbers)

    def flush(self) -> None:
        """Write everything buffered to the file object."""
        self._output.flush()

    def _done(self) -> None:
        """Write what is buffered after a value of its own, to a file object that may be used between values."""
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
        if self.layout.headless and not self._count and not self._payload_depth:
            from .releases_2010 import can_be_headless, write_headless

            if can_be_headless(value):
                write_headless(self, value)
                return
        base = len(self._inside) if self._payload_depth else 0
        del self._inside[base:], self._halves[base:]
        try:
            self._write_tree(value, base)
        except T7BridgeError as error:
            if not error.path:
                error.path = "root" + "".join(map(_step, self._inside, self._halves))
            raise
        self._done()

    @collector_paused()
    def _write_tree(self, value: Value, base: int) -> None:
        """Write with an explicit stack, at any nesting depth."""
        inside, halves = self._inside, self._halves
        while True:
            if self._open(value):
                inside.append(value)
                halves.append(0)
            elif not self._referenced:
                self._numbers.pop(value, None)
            # The innermost value goes on with the next one inside it; those that have no more are left.
            next_value = None
            while len(inside) > base:
                next_value = self._entries(*_parts(inside[-1]), halves[-1])
                if next_value is not None:
                    break
                halves.pop()
                value = inside.pop()
                if not self._referenced:
                    self._numbers.pop(value, None)
            if next_value is None:
                return
            value = next_value[0]

    def _open(self, value: Value) -> bool:
        """Write a value, or its start; return whether values inside it are still to be written."""
        stream = self._stream
        if type(value) is Table:
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
        """Write a number, which must be a double exactly."""
        try:
            number = float(value)
        except OverflowError:
            raise WriteError(f"the integer {value} does not fit a Lua number") from None
        if number != value and value == value:
            raise WriteError(
                f"the integer {value} is not a Lua number",
                hint="Lua's numbers are doubles, exact up to 2^53; use a float.",
            )
        self._stream.write_number(number)

    def _number_of(self, value: Value) -> int | None:
        """Return the number of an object that was written before, or is being written."""
        number = self._numbers.get(value)
        if number is not None and not self._referenced:
            raise WriteError("a cycle cannot be written without references")
        return number

    def _open_object(self, value: Value) -> bool:
        stream = self._stream
        if isinstance(value, Table):
            tag = tags.TABLE
        elif isinstance(value, (Tensor, Storage, TorchObject, TdsHash, TdsVec)):
            tag = tags.TORCH
        elif isinstance(value, LuaFunction):
            tag = value.tag
        else:
            raise UnsupportedError(f"a value of type {type(value).__name__} cannot be stored in a .t7 file")
        if tag == tags.FUNCTION_WITHOUT_INDEX:
            stream.write_int(tag)
            return self._function(value)
        number = self._number_of(value)
        if number is not None:
            stream.write_ints(tag, number)
            return False
        if isinstance(value, Table):
            stream.write_ints(tag, self._new_number(value), len(value.raw_keys))
            return True
        if isinstance(value, LuaFunction):
            stream.write_ints(tag, self._new_number(value))
            return self._function(value)
        name = self._class_name(value)  # before anything is written, as it may be refused
        stream.write_ints(tag, self._new_number(value))
        return self._torch(value, name)

    def _new_number(self, value: Value) -> int:
        """Return the number of an object that is written now: the layout's, and after these the next free one."""
        numbers = self.layout.numbers
        number = self._beyond + self._count
        if self._count < len(numbers):
            number = numbers[self._count]
        self._count += 1
        self._numbers[value] = number
        return number

    @staticmethod
    def _class_name(value: Value) -> str:
        """Return the class name of an object; a tensor or storage may have a type that Lua Torch does not have."""
        if isinstance(value, (Tensor, Storage)):
            name = value.lua_class
            if name is None:
                raise UnsupportedError(f"Lua Torch has no tensors of type {value.element.name}")
            return name
        return str(value.class_name if isinstance(value, TorchObject) else value.lua_class)

    def _torch(self, value: Value, name: str) -> bool:
        """Write version, class name and start of an object; return whether values inside it are still to be written.

        Raises:
            WriteError: no class of Lua Torch has such a name.
        """
        stream = self._stream
        # `T7Reader` refuses these, too; an object without a version begins with its name.
        is_version = value.version is None and name.startswith("V ")
        if not name or not name.isprintable() or is_version:
            raise WriteError(f"{name!r} is not a class name", expected="printable text that is not empty")
        if value.version is not None:
            text = b"V %d" % value.version
            stream.write_int(len(text))
            stream.write_raw(text)
        encoded = name.encode()
        stream.write_int(len(encoded))
        stream.write_raw(encoded)
        if isinstance(value, Storage):
            self._storage(value)
            return False
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, TdsHash):
            stream.write_long(len(value.content.raw_keys))
            return True
        if isinstance(value, TdsVec):
            stream.write_long(len(value.elements))
            return True
        payload = payload_of(name, value.version, self.layout.vintage)
        if payload is None:
            return True
        if self._payload_depth >= DEFAULT_LIMITS.payload_depth:
            raise WriteError(
                f"objects with payloads of their own are nested too deep: {value.class_name}",
                expected=f"at most {DEFAULT_LIMITS.payload_depth} levels",
            )
        self._payload_depth += 1
        try:
            payload.write(self, value)
        finally:
            self._payload_depth -= 1
        return False

    def _entries(self, keys: list[Value] | str, values: list[Value], half: int) -> tuple[Value] | None:
        """Write keys and values, from one of these on, up to the next that is neither a number nor a short string.

        Returns:
            That one, whose half is noted; `None` where there is none.
        """
        stream = self._stream
        for place in range(half // 2, len(values)):
            if half <= 2 * place and type(keys) is list:
                key = keys[place]
                if type(key) is bytes and len(key) < _SHORT:
                    stream.write_string(key)
                elif key is None or key != key:
                    raise WriteError(f"a table key is {'nil' if key is None else 'nan'}, which Lua does not allow")
                elif type(key) is float:
                    stream.write_number(key)
                else:
                    self._halves[-1] = 2 * place + 1
                    return (key,)
            value = values[place]
            if type(value) is float:
                stream.write_number(value)
            elif type(value) is bytes and len(value) < _SHORT:
                stream.write_string(value)
            else:
                self._halves[-1] = 2 * place + 2
                return (value,)
        return None

    def _function(self, function: LuaFunction) -> bool:
        self._stream.write_int(len(function.code))
        self._stream.write_raw(function.code)
        return True

    def _tensor(self, tensor: Tensor) -> bool:
        if tensor.is_scalar:
            raise UnsupportedError("Lua Torch has no tensors without dimensions", hint="Give it the size (1,).")
        fault = view_fault(tensor.size, tensor.stride, tensor.offset, tensor.storage.count if tensor.storage else 0)
        if fault:
            raise WriteError(f"a tensor is not a view of its storage: {fault}")
        self._stream.write_int(len(tensor.size))
        self._stream.write_longs(tensor.size)
        self._stream.write_longs(tensor.stride)
        self._stream.write_long(tensor.offset + 1)
        if self.layout.vintage == tags.TORCH5:
            self._stream.write_int(int(self._numbers.get(tensor) not in self.layout.unowned))
        return True

    def _storage(self, storage: Storage) -> None:
        self._stream.write_long(storage.count)
        if self._payloads is not None:
            self._payloads.append(storage)
        else:
            self.places[self._output.position] = storage
            self._stream.write_elements(storage)
