"""Lua Torch's binary encoding: integers, floats, strings and arrays of elements, read and written."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from typing import Any

from ...data import has_numpy, np
from ...errors import TruncatedError, WriteError
from ...graph.dtypes import INT64, ORDER_SIGNS, ElementType
from ...graph.storage import Span, Storage
from ...io.output import Output
from ...io.source import ByteSource
from . import layout as tags
from .layout import WINDOW_BYTES, T7Layout, Window

_SMALL_WINDOW, _LARGE_WINDOW = 1 << 12, WINDOW_BYTES
_SCALAR_BYTES = 12
"""Size of the longest scalar but strings, a number: its tag and a double."""
_ENTRY_BYTES = 24
"""Size of an entry of two numbers: tag, double, tag, double."""
_LONG_RUN = 64
"""Number of entries from which on a run of numbers is decoded by numpy."""
_WORTH_LOADING = 20_000
"""Entries read one by one before numpy is loaded for them: loading takes as long as these."""


class BinaryInput(Window):
    """Reads the integers, floats, strings and arrays of a binary file at a moving position in a window of its bytes.

    Bytes are read through a window that grows while reading is sequential and shrinks when a payload is skipped, so
    that the headers of a large file cost little.

    Args and attributes are those of `Window`.
    """

    entry = "a table entry"

    def __init__(self, source: ByteSource, position: int, layout: T7Layout, longest_string: int = 1 << 62) -> None:
        super().__init__(source, position, layout, longest_string)
        self._next_window = _SMALL_WINDOW
        """Bytes that are read next time, at least, if the file has them."""
        # A run is a sequence of entries with numbers as keys and values, which are decoded at once: `_number_run`.
        self._run = _LONG_RUN
        """Maximum number of entries of the next run: it grows with success."""
        self._pause = 0
        """How many of the next entries are read one by one before a run is tried again, after one that was short."""
        self._small_runs = 0
        """Entries that were read one by one because numpy was not loaded."""
        self._margin = _SCALAR_BYTES
        """Bytes from the end of the window in which `read_scalars` leaves a scalar to `_read_scalar`."""
        # `read_scalars` checks no length: a string in the window is shorter than that. With a lower limit the margin is
        # larger than any window, so that all scalars are left.
        if longest_string < WINDOW_BYTES:
            self._margin = longest_string + WINDOW_BYTES
        sign = self._sign = ORDER_SIGNS[layout.byte_order]
        self._long = "q" if layout.long_size == 8 else "i"
        self._int_at = struct.Struct(sign + "i").unpack_from
        self._two_at = struct.Struct(sign + "ii").unpack_from
        self._double_at = struct.Struct(sign + "d").unpack_from

    def _jump(self, offset: int) -> None:
        super()._jump(offset)
        self._next_window = _SMALL_WINDOW

    def _fill_window(self, length: int, what: str) -> None:
        """Make `length` bytes at the position available in the window, which may be moved and so begin elsewhere.

        Args:
            length: number of bytes.
            what: describes them in the error.

        Raises:
            TruncatedError: the file ends early.
        """
        if len(self._window) - self._at >= length:
            return
        position = self.position
        available = self.source.size - position  # negative behind the end
        if available < length:
            found = f"{max(0, available)}"
            raise self.fault(f"the file ends inside {what}", TruncatedError, expected=f"{length} bytes", found=found)
        window_bytes = min(max(length, self._next_window), available)
        self._window = self.source.read_exact(position, window_bytes, what)
        self._base, self._at = position, 0
        self._next_window = min(2 * self._next_window, _LARGE_WINDOW)

    def read_int(self, what: str = "an integer") -> int:
        """Read a 4-byte integer."""
        if len(self._window) - self._at < 4:
            self._fill_window(4, what)
        value: int = self._int_at(self._window, self._at)[0]
        self._at += 4
        return value

    def read_long(self, what: str = "a long") -> int:
        """Read a C long."""
        return self.read_longs(1, what)[0]

    def read_longs(self, count: int, what: str) -> tuple[int, ...]:
        """Read C longs."""
        length = count * self.layout.long_size
        self._fill_window(length, what)
        values: tuple[int, ...] = struct.unpack_from(f"{self._sign}{count}{self._long}", self._window, self._at)
        self._at += length
        return values

    def read_float(self, what: str = "a float") -> float:
        """Read a 4-byte float."""
        return float(self._read_one("f", 4, what))

    def read_double(self, what: str = "a number") -> float:
        """Read an 8-byte float."""
        return float(self._read_one("d", 8, what))

    def read_short(self, what: str = "a short") -> int:
        """Read a 2-byte integer."""
        return int(self._read_one("h", 2, what))

    def _read_one(self, code: str, length: int, what: str) -> Any:
        """Read one number.

        Args:
            code: its type, a code of `struct`.
            length: of such a number, in bytes.
            what: describes it in errors.
        """
        self._fill_window(length, what)
        value = struct.unpack_from(self._sign + code, self._window, self._at)[0]
        self._at += length
        return value

    def read_raw(self, length: int, what: str) -> bytes:
        """Read raw bytes.

        Args:
            length: number of bytes.
            what: describes them in errors.

        Raises:
            CorruptError: the length is negative.
            TruncatedError: the file ends early.
            LimitError: they are more than a string may have.
        """
        # The length is compared with the file, then with the limit, before any byte is loaded into the window.
        self.require(length, 1, what)  # items of one byte
        if length > self.longest_string:  # a call less for nearly all strings
            self.check_length(length, what)
        self._fill_window(length, what)
        data = self._window[self._at : self._at + length]
        self._at += length
        return data

    def window_at(self, room: int, at: int | None = None) -> tuple[bytes, int]:
        """Return the window around the position, and the position as an offset in it.

        Args:
            room: bytes that follow in the window, if the file has them.
            at: a new position, as an offset in the window returned before; by default the position stays.
        """
        if at is not None:
            self._at = at
        self._fill_window(min(room, self.remaining), "an entry")
        return self._window, self._at

    def move_to(self, at: int) -> None:
        """Move to an offset in the window."""
        self._at = at

    def read_elements(self, element: ElementType, count: int) -> Span:
        """Pass over a storage's elements and return where they are.

        Args:
            element: their type, which says how many bytes each has; 64-bit integers have those of a C long.
            count: how many.

        Raises:
            CorruptError: the count is negative.
            TruncatedError: the file has fewer.
        """
        # Elements of LongStorage are C longs.
        width = self.layout.long_size if element is INT64 else element.itemsize
        self.require(count, width, f"elements of type {element.name}")
        span = Span(self.source, self.position, width, self.layout.byte_order)
        self.position += count * width
        return span

    def read_scalars(self, keys: list[Any], values: list[Any], count: int) -> None:
        """Read entries of a table as long as keys and values are scalars.

        Scalars that the window holds as a whole are read here, in one loop. One at the end of the window, or one that
        is invalid, is left to `_read_scalar`, which reads on in the file and raises errors.

        Args:
            keys: those read so far; receives more. There may be one key more than values: then a value is next.
            values: those read so far; receives more.
            count: number of values at which the table ends. Reading stops before the tag of an object.
        """
        two_at, double_at = self._two_at, self._double_at
        add_key, add_value = keys.append, values.append
        while True:
            window, at = self._window, self._at
            end = len(window)
            last = end - self._margin  # where a scalar may begin: its tag and 8 bytes more are in the window
            missing = count - len(values)
            key_turn = len(keys) == len(values)
            while missing and at <= last:
                tag, second = two_at(window, at)  # the second is a length, a boolean, or the start of anything else
                if tag == tags.STRING:  # tag and length, 4 bytes each, and the bytes
                    stop = at + 8 + second
                    if not at + 8 <= stop <= end:  # a negative length, or beyond the window
                        break
                    item: Any = window[at + 8 : stop]
                    at = stop
                elif tag == tags.NUMBER:
                    # A run reads whole entries, so that a key is next again.
                    if key_turn and missing >= _LONG_RUN and self._number_run(keys, values, count, at):
                        window, at, missing = self._window, self._at, count - len(values)
                        end, last = len(window), len(window) - self._margin
                        continue
                    item = double_at(window, at + 4)[0]
                    if key_turn and item != item:  # nan is not a key
                        break
                    at += 12
                elif tag == tags.BOOLEAN and second in (0, 1):
                    item = second == 1
                    at += 8
                elif tag == tags.NIL and not key_turn:
                    item = None
                    at += 4
                elif tag in (tags.BOOLEAN, tags.NIL):  # an invalid one
                    break
                else:  # an object, whose tag is not read
                    self._at = at
                    return
                if key_turn:
                    add_key(item)
                    key_turn = False
                else:
                    add_value(item)
                    key_turn = True
                    missing -= 1
            self._at = at
            # The one scalar that was left, if any; then on in a window that it may have filled anew.
            if not missing or not self._read_scalar(keys, values):
                return

    def _require_rest_of_scalar(self, tag: int) -> None:
        """Check that the rest of a scalar is in the file after its tag, which was read; of a string its length.

        The position is moved back to the tag for that, so that an error is there, and counts the bytes of tag and rest.
        """
        self._at -= 4  # the tag, which is still in the window
        if tag in (tags.NUMBER, tags.STRING, tags.BOOLEAN):
            self._fill_window(8, "a table entry")  # the tag; a boolean, a length, or half of a double
        if tag == tags.NUMBER:
            self._fill_window(_SCALAR_BYTES, "a number")
        self._at += 4

    def _number_run(self, keys: list[Any], values: list[Any], count: int, at: int) -> bool:
        """Decode a run at once, if there may be one: entries with numbers as keys and values.

        After a short run the next entries are read one by one, so that a table of mixed values is not scanned
        repeatedly.

        Args:
            keys: receives the keys.
            values: receives the values.
            count: number of entries of the table.
            at: of the first entry, as an offset in the window. Its key is a number, and completely in the window.

        Returns:
            Whether a run was tried: then the position is behind the entries that it had, perhaps none, and the window
            may be another.
        """
        if self._pause:
            self._pause -= 1
            return False
        # numpy is only loaded for a large table, or after many numbers in small ones.
        if self._small_runs < _WORTH_LOADING and count < _WORTH_LOADING and "numpy" not in sys.modules:
            self._small_runs += 1
            return False
        # The tag of the value follows the 12 bytes of the key.
        if len(self._window) - at < _ENTRY_BYTES or self._int_at(self._window, at + 12)[0] != tags.NUMBER:
            return False
        self._at = at
        self._decode_run(keys, values, missing=count - len(values))
        return True

    def _decode_run(self, keys: list[Any], values: list[Any], missing: int) -> None:
        """Decode the entries with numbers as keys and values at the position, through one numpy view.

        How many are decoded at most grows with success; after a run that another entry ends, it begins anew, and the
        next entries are read one by one.

        Args:
            keys: receives the keys.
            values: receives the values.
            missing: number of entries up to the end of the table.
        """
        wanted = min(missing, self.remaining // _ENTRY_BYTES, self._run)
        self._fill_window(wanted * _ENTRY_BYTES, "a table entry")
        entries = memoryview(self._window)[self._at : self._at + wanted * _ENTRY_BYTES]
        new_keys, new_values = number_entries(entries, self._sign)
        keys += new_keys
        values += new_values
        self._at += len(new_values) * _ENTRY_BYTES
        if len(new_values) == wanted:
            self._run = min(2 * self._run, _LARGE_WINDOW // _ENTRY_BYTES)
        else:
            self._run = _LONG_RUN
            self._pause = _LONG_RUN


class BinaryWriter:
    """Writes the integers, floats, strings and arrays of a binary file, in the encoding of a layout.

    Attributes:
        output: where the file is written to.
        layout: its encoding.
        plain_nans: always 0, as every NaN keeps its bits; in text they are lost: see `TextWriter`.
    """

    plain_nans = 0

    def __init__(self, output: Output, layout: T7Layout) -> None:
        self.output = output
        self.layout = layout
        sign = self._sign = ORDER_SIGNS[layout.byte_order]
        self._long = "q" if layout.long_size == 8 else "i"  # a code of `struct`
        self._pack_int = struct.Struct(sign + "i").pack
        self._pack_number = struct.Struct(sign + "id").pack  # a tag and a number
        self._pack_two = struct.Struct(sign + "ii").pack  # a tag, and a boolean or the length of a string

    def write_int(self, value: int) -> None:
        """Write a 4-byte integer."""
        try:
            self.output.write(self._pack_int(value))
        except struct.error:
            self._pack("i", (value,), "a 4-byte integer")  # which raises an error that names the number

    def write_ints(self, *values: int) -> None:
        """Write 4-byte integers."""
        self._pack("i", values, "a 4-byte integer")

    def write_long(self, value: int) -> None:
        """Write a C long."""
        self.write_longs((value,))

    def write_longs(self, values: tuple[int, ...]) -> None:
        """Write C longs."""
        size = self.layout.long_size
        hint = "Write 8-byte longs (--long-size 8)." if size == 4 else ""
        self._pack(self._long, values, f"a {size}-byte long", hint)

    def write_short(self, value: int) -> None:
        """Write a 2-byte integer."""
        self._pack("h", (value,), "a 2-byte integer")

    def write_float(self, value: float) -> None:
        """Write a 4-byte float."""
        self._pack("f", (value,), "a 4-byte float")

    def write_double(self, value: float) -> None:
        """Write an 8-byte float."""
        self._pack("d", (value,), "an 8-byte float")

    def _pack(self, code: str, values: tuple[float, ...], what: str, hint: str = "") -> None:
        """Write numbers of a code of `struct`.

        Args:
            code: `i`, `q`, `h`, `f` or `d`.
            values: the numbers.
            what: describes the type in the error.
            hint: of the error.

        Raises:
            WriteError: one does not fit.
        """
        try:
            self.output.write(struct.pack(f"{self._sign}{len(values)}{code}", *values))
        except (struct.error, OverflowError):
            text = f"{max(values, key=abs)} does not fit {what}"  # if any does not, that one
            raise WriteError(text, file=self.output.name, hint=hint) from None

    def write_raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.output.write(data)

    def write_number(self, value: float) -> None:
        """Write a tagged number."""
        self.output.write(self._pack_number(tags.NUMBER, value))

    def write_string(self, data: bytes) -> None:
        """Write a tagged string."""
        if len(data) > 0x7FFFFFFF:  # the length is a signed integer of 4 bytes
            raise WriteError("a Lua string of 2 GiB or more cannot be written", file=self.output.name)
        self.output.write(self._pack_two(tags.STRING, len(data)))
        self.output.write(data)

    def write_boolean(self, value: bool) -> None:
        """Write a tagged boolean."""
        self.output.write(self._pack_two(tags.BOOLEAN, value))

    def write_elements(self, storage: Storage) -> None:
        """Write a storage's elements, copied from their file if they have the same form there."""
        width = self.layout.long_size if storage.element is INT64 else storage.element.itemsize
        order = self.layout.byte_order
        self.output.append(storage.extent(order, width) or storage.chunks(order, width))


def number_entries(data: memoryview, sign: str) -> tuple[array[float], array[float]]:
    """Decode the leading entries of a table whose keys and values are numbers.

    Args:
        data: whole entries of 24 bytes each: tag, double, tag, double.
        sign: byte order, `<` or `>`.

    Returns:
        The keys and the values up to the first entry of another kind, or with nan as its key, which is an error. They
        are arrays: a list is extended by an array faster than by another list, which would be created before.
    """
    if not has_numpy():
        return _number_entries_one_by_one(data, sign)
    entry = np.dtype(
        [("key_tag", sign + "i4"), ("key", sign + "f8"), ("value_tag", sign + "i4"), ("value", sign + "f8")]
    )
    entries = np.frombuffer(data, entry)
    is_other = (entries["key_tag"] != tags.NUMBER) | (entries["value_tag"] != tags.NUMBER) | np.isnan(entries["key"])
    count = int(is_other.argmax()) if is_other.any() else len(entries)
    keys = entries["key"][:count].astype("f8")  # in the machine's byte order
    values = entries["value"][:count].astype("f8")
    return array("d", keys.tobytes()), array("d", values.tobytes())


def _number_entries_one_by_one(data: memoryview, sign: str) -> tuple[array[float], array[float]]:
    """Decode the leading entries of a table whose keys and values are numbers, as `number_entries`, without numpy.

    Args:
        data: whole entries of 24 bytes each: tag, double, tag, double.
        sign: byte order, `<` or `>`.
    """
    keys, values = array("d"), array("d")
    for key_tag, key, value_tag, value in struct.iter_unpack(f"{sign}idid", data):
        if key_tag != tags.NUMBER or value_tag != tags.NUMBER or math.isnan(key):
            break
        keys.append(key)
        values.append(value)
    return keys, values
