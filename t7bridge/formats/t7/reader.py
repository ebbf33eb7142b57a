"""T7Reader: the values of a `.t7` file as a graph. Layout: `docs/format-t7.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...errors import FormatError, LimitError
from ...garbage import collector_paused
from ...graph.lua import TdsHash, TdsVec, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from ...io.source import ByteSource, Readable
from ...limits import DEFAULT_LIMITS, Limits
from .layout import T7Layout, possible_layouts
from .object_reader import ObjectReader


class T7Reader:
    """Reads values from a `.t7` file, one after another.

    Encoding, byte order and the size of `long` are detected from the content, unless they are given. As with Lua's
    `torch.DiskFile`, the objects of one file are numbered together, so that a later value may refer to an object of
    an earlier one. Tensors are not read: their storages know where their bytes are.

    Args:
        source: a path, bytes, or a binary file object; reading starts at a file object's position, which is not
            changed.
        encoding: `binary` or `ascii`.
        byte_order: `little` or `big`.
        long_size: bytes of a C long, 4 or 8.
        limits: resource limits.
        payloads: for a stream written without the elements of its storages: the storages, in order.

    Raises:
        T7BridgeError: the file cannot be opened.
        UnknownFormatError: the file is in another format; the message says which.

    Example:
        >>> with T7Reader("stream.t7") as reader:
        ...     flag, table = reader.read_bool(), reader.read_object()
    """

    def __init__(
        self,
        source: Readable | ByteSource,
        *,
        encoding: str | None = None,
        byte_order: str | None = None,
        long_size: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
        payloads: Iterator[Storage] | None = None,
    ) -> None:
        self._source, self._start = ByteSource.open(source)
        self._limits = limits
        self._is_record = payloads is not None
        self.vintage_objects = 0
        """Number of objects in the last attempt that wrote their fields one after another."""
        self._layouts = possible_layouts(self._source, self._start, encoding, byte_order, long_size)
        """The layouts still possible; the first one is current."""
        self._run = ObjectReader(self, self._source, self._start, self._layouts[0], limits, payloads)

    @property
    def layout(self) -> T7Layout:
        """The layout of the file as far as it is known."""
        return self._run.layout

    # Position

    @property
    def source(self) -> ByteSource:
        """The source of the bytes."""
        return self._source

    @property
    def position(self) -> int:
        """Offset in bytes of the next byte to read, 0-based."""
        return self._run.stream.position

    @property
    def at_end(self) -> bool:
        """True once everything has been read."""
        return self._run.stream.remaining <= 0

    @property
    def objects(self) -> Iterable[Value]:
        """The tables, tensors, storages, functions and Torch objects read so far, in the order of the file."""
        return self._run.objects.values()

    def count_views(self) -> tuple[int, int]:
        """Count the tensors and the storages read so far."""
        found = self._run.objects.values()
        return (
            sum(isinstance(value, Tensor) for value in found),
            sum(isinstance(value, Storage) for value in found),
        )

    def close(self) -> None:
        """Close the file. Storages whose elements are still in it can no longer be read."""
        self._source.close()

    def __enter__(self) -> T7Reader:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Leave the file open: the storages still need it. It is closed with the last of them."""

    # Single values, as `torch.DiskFile` reads them

    def read_int(self) -> int:
        """Read a 4-byte integer."""
        return self._run.stream.read_int()

    def read_short(self) -> int:
        """Read a 2-byte integer."""
        return self._run.stream.read_short()

    def read_long(self) -> int:
        """Read a C long, of the file's size."""
        return self._run.stream.read_long()

    def read_float(self) -> float:
        """Read a 4-byte float."""
        return self._run.stream.read_float()

    def read_double(self) -> float:
        """Read an 8-byte float."""
        return self._run.stream.read_double()

    def read_bool(self) -> bool:
        """Read an integer that is 0 or 1.

        Raises:
            CorruptError: it is neither.
        """
        number = self._run.stream.read_int("a boolean")
        if number not in (0, 1):
            raise self._run.stream.no_boolean(number)
        return number == 1

    def read_string(self) -> bytes:
        """Read a length (an integer, in bytes) and that many bytes."""
        return self.read_raw(self._run.stream.read_int("a string's length"))

    def read_raw(self, length: int) -> bytes:
        """Read `length` raw bytes, as Lua's `readByte(n):string()` and `readChar(n):string()` do."""
        return self._run.stream.read_raw(length, "raw bytes")

    # Objects

    def read_object(self) -> Value:
        """Read one value and everything inside it.

        Returns:
            `None`, `bool`, `float`, `bytes`, or an object of `t7bridge.graph`.

        Raises:
            TruncatedError: the file ends inside the value, or a count claims more than remains.
            CorruptError: the value contradicts itself or the format.
            LimitError: the value is larger than the limits allow.
        """
        first = self.position == self._start and not self._run.payload_depth and not self._is_record
        with collector_paused():
            if first and not self.layout.vintage:
                return self._read_first()
            return self._read_any()

    def _read_first(self) -> Value:
        """Read in today's form; a file that it does not explain to the end may be of 2010 or 2011."""
        start, layouts = self.position, list(self._layouts)
        value, failure = None, None
        try:
            try:
                value = self._read_any()
            except LimitError:
                raise
            except FormatError as error:
                failure = error
            if failure is None and self.at_end:
                return value
            from .releases_2010 import read_again

            return read_again(self, start, layouts, value, failure)
        finally:
            failure = None  # errors refer to this frame: break the reference cycle

    def _read_any(self) -> Value:
        if len(self._layouts) == 1 or self._run.payload_depth:
            return self._run.read_value()
        before, start = self._run, self.position
        failures: list[tuple[int, ObjectReader, FormatError]] = []
        try:
            for layout in self._layouts:
                self._run = before.restarted_at(self, start, layout)
                try:
                    value = self._run.read_value()
                except FormatError as error:
                    if isinstance(error, LimitError) and error.limit != "string_bytes":
                        raise  # reading on under another layout would cost as much again
                    failures.append((error.offset or 0, self._run, error))
                    continue
                if failures and not self._explains_more(layout, max(failure[0] for failure in failures)):
                    continue
                if any(isinstance(found, (Tensor, Storage, TdsHash, TdsVec)) for found in self.objects):
                    self._layouts = [layout]  # a long has been read, and what followed was valid
                return value
            # The layout that came furthest is the file's: the others failed because they are wrong.
            failures.sort(key=lambda failure: failure[0], reverse=True)
            self._run = failures[0][1]
            raise failures[0][2]
        finally:
            failures.clear()  # as in `_read_first`

    def _explains_more(self, layout: T7Layout, reached: int) -> bool:
        """Reject an accidental parse of a corrupt file: return whether another layout explains more of it.

        Args:
            layout: the layout of the parse.
            reached: how far the earlier layouts came, in bytes.
        """
        # Lua Torch writes no sizes for a tensor without memory, and the zero halves of longs are not storages.
        if any(isinstance(found, Tensor) and found.size and found.storage is None for found in self.objects):
            return False
        if self.at_end or self.position >= reached:
            return True
        rest = self._run.restarted_at(self, self.position, layout)
        try:
            while rest.stream.remaining:
                if rest.read_value() is None:  # nil is never written after a value, and zeros read as nil
                    return False
        except FormatError:
            return False
        return True

    def try_layout(self, layout: T7Layout, read: Callable[[], Value]) -> Value:
        """Return the result of `read` when the file is read again under a layout; on failure restore the reader."""
        before, layouts = self._run, self._layouts
        self._run = ObjectReader(self, self._source, self._start, layout, self._limits)
        self._layouts = [layout]
        self.vintage_objects = 0
        try:
            return read()
        except FormatError as error:
            error.file = error.file or self._source.name
            error.offset = self.position if error.offset is None else error.offset
            self._run, self._layouts = before, layouts
            raise
