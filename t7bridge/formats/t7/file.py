"""Whole `.t7` files."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from attrs import field

from ...data import define
from ...errors import (
    CorruptError,
    FormatError,
    IncompleteFileWarning,
    TruncatedError,
)
from ...graph.lua import Table, TorchObject, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from ...io.source import ByteSource, Readable
from ...limits import DEFAULT_LIMITS, Limits
from ...text import printable_lines
from ..document import Document, Written
from ..table import refuse_two
from .layout import T7Layout
from .reader import T7Reader
from .writer import T7Writer

if TYPE_CHECKING:
    from ...io.output import Output

PT_RECORD_START = b'{"record":"t7bridge pt record '


@define(eq=False)
class T7File:
    """The content of a `.t7` file.

    Attributes:
        roots: its values; most files hold one.
        layout: how it is encoded.
        objects: its objects in the order of their numbers.
        trailing: bytes after the last value that are not a value, as in files with several kinds of data.
        tensors: number of tensors.
        storages: number of storages.
    """

    roots: list[Value]
    layout: T7Layout
    trailing: bytes = field(default=b"", repr=False)
    objects: list[Value] = field(factory=list, repr=False)
    tensors: int = 0
    storages: int = 0
    message: str = ""
    """Description of the bytes after the values that are neither a value nor a record."""

    name: str = ""

    def warn(self, stacklevel: int = 4) -> None:
        """Issue an `IncompleteFileWarning` if unreadable bytes follow the values."""
        _warn(self.name, self.message, stacklevel)

    @property
    def has_pt_record(self) -> bool:
        """Return whether the bytes after the value are the record of the `.pt` that the file was made from."""
        return self.trailing.startswith(PT_RECORD_START)


@define(eq=False)
class Values:
    """The values of a `.t7`, one after another.

    Attributes:
        reader: the reader that read them.
        roots: the values.
        end: end of the last one, in bytes.
        reason: why the following bytes are not a value; empty if nothing follows, or the record of a `.pt`.
    """

    reader: T7Reader
    roots: list[Value]
    end: int
    reason: str = ""

    @property
    def left(self) -> int:
        """Number of bytes after the last value."""
        return self.reader.source.size - self.end

    @property
    def message(self) -> str:
        """Description of unreadable bytes after the values; empty if there are none."""
        if not self.reason:
            return ""
        count = len(self.roots)
        which = "the value" if count == 1 else f"the last of {count} values"
        return f"{self.left} bytes after {which} are not a value: {self.reason}"

    def warn(self, stacklevel: int = 3) -> None:
        """Issue an `IncompleteFileWarning` if unreadable bytes follow the values."""
        _warn(self.reader.source.name, self.message, stacklevel)


def _warn(name: str, message: str, stacklevel: int) -> None:
    if message:
        warnings.warn(printable_lines(f"{name}: {message}"), IncompleteFileWarning, stacklevel=stacklevel + 1)


def read_values(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Values:
    """Read all values of a `.t7` file, up to its end or to bytes that are not a value.

    Raises:
        FormatError: the first value cannot be read.
        CorruptError: the values read account for next to nothing of the file, or a value is in another byte order.
    """
    reader = T7Reader(source, limits=limits)
    found = _read_all(reader)
    if len(found.roots) > 1 and reader.layout.encoding == "binary":
        # A value without numbers is the same in every layout. The layout of the last one applies to all.
        last = reader.layout
        orders: dict[str, Any] = {"byte_order": last.byte_order, "long_size": last.long_size}
        if any(each != orders for each in found.orders):
            again = _read_all(T7Reader(source, encoding="binary", limits=limits, **orders))
            if again.end != found.end or len(again.roots) != len(found.roots):
                raise CorruptError(
                    "its values are in different byte orders",
                    file=reader.source.name,
                    offset=found.ends[0],
                    hint="Write each to a file of its own.",
                )
            found = again
    values = Values(found.reader, found.roots, found.end, found.reason)
    _refuse_unexplained(values, found.ends[0])
    if values.left:
        refuse_zip_behind(reader.source, values.end)
    return values


@define(eq=False)
class _Found:
    """The values found by a reader, the end and byte order of each, and why the bytes that follow are not a value."""

    reader: T7Reader
    roots: list[Value] = field(factory=list)
    ends: list[int] = field(factory=list)
    orders: list[dict[str, Any]] = field(factory=list)
    reason: str = ""

    @property
    def end(self) -> int:
        return self.ends[-1]


def _read_all(reader: T7Reader) -> _Found:
    return _read_on(reader, reader.read_object())


def _read_on(reader: T7Reader, value: Value) -> _Found:
    """Read what follows the first value of a file."""
    found = _Found(reader)
    while True:
        found.roots.append(value)
        found.ends.append(reader.position)
        found.orders.append({"byte_order": reader.layout.byte_order, "long_size": reader.layout.long_size})
        if reader.at_end:
            return found
        start = reader.position
        if reader.source.read(start, len(PT_RECORD_START)) == PT_RECORD_START:
            return found
        try:
            value = reader.read_object()
        except FormatError as error:
            found.reason = error.message
            if isinstance(error, TruncatedError):
                found.reason = f"a value is cut off ({error.message})"
            return found
        if value is None:  # zeros read as nil, which is never written after a value
            found.reason = "they begin with zeros"
            return found


def refuse_unexplained(reader: T7Reader, value: Value) -> None:
    """Refuse a file of which the first value accounts for next to nothing; what follows other values is not read.

    Args:
        reader: of the file, positioned after its first value.
        value: the first value.

    Raises:
        CorruptError: the value is a scalar or an empty table before a long rest that is not a value.
    """
    if value is None or isinstance(value, (bool, float, bytes)) or _is_empty(value):
        found = _read_on(reader, value)
        _refuse_unexplained(Values(reader, found.roots, found.end, found.reason), found.ends[0])


def _refuse_unexplained(values: Values, first_end: int) -> None:
    """Refuse a file of which the values read account for next to nothing: zeros, a table of text, a damaged count."""
    source, first = values.reader.source, values.roots[0]
    start = source.read(values.end, 1 << 12)
    if start.startswith(PT_RECORD_START) or not (values.left or len(values.roots) > 1):
        return
    if not start.strip() and values.left == len(start) and values.reader.layout.encoding == "ascii":
        return  # white space at the end of a text
    follows = source.size - first_end
    if _is_empty(first):
        wrong = follows > first_end
    else:
        hollow = all(value is None or isinstance(value, (bool, float, bytes)) for value in values.roots)
        wrong = bool(values.reason) and hollow and (first is None or values.left > values.end)
        follows = values.left
    if wrong:
        raise CorruptError(
            f"its only readable part, {_in_words(first)}, accounts for next to nothing of the file",
            file=source.name,
            offset=source.size - follows,
            expected="the end of the file",
            found=f"{follows} bytes more",
            hint="It is not a .t7, or damaged at its beginning.",
        )


def _is_empty(value: Value) -> bool:
    """Return whether a value is an empty table, or an object with an empty table of fields."""
    if isinstance(value, TorchObject):
        return value.payload is None and value.fields is not None and not len(value.fields)
    return isinstance(value, Table) and not len(value)


def _in_words(value: Value) -> str:
    if value is None:
        return "nil"
    kinds = {bool: "a boolean", float: "a number", bytes: "a string", Table: "an empty table"}
    return kinds.get(type(value), "an object without fields")


def read_t7(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> T7File:
    """Read the whole content of a `.t7` file.

    Raises:
        FormatError: the first value cannot be read.
        CorruptError: the values read account for next to nothing of the file, or a value is in another byte order.
    """
    return content_of(read_values(source, limits))


def content_of(values: Values) -> T7File:
    """Return the content of a file whose values were read."""
    reader = values.reader
    trailing = reader.source.read(values.end, values.left) if values.left else b""
    return T7File(
        values.roots,
        reader.layout,
        trailing,
        list(reader.objects),
        *reader.count_views(),
        values.message,
        reader.source.name,
    )


def refuse_zip_behind(source: ByteSource, position: int) -> None:
    """Refuse a `.t7` that is a zip archive for readers that begin at the end.

    Args:
        source: the file.
        position: end of its value, in bytes.

    Raises:
        CorruptError: it is one.
    """
    refuse_two(source, position, "a .t7")


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a `.t7` file; of a file object whose position is not 0, only the value there is read.

    Raises:
        FormatError: it is empty, or in another format.
    """
    opened, start = ByteSource.open(source)
    made = _T7Document(source if start else opened, bool(start), limits)
    return Document("t7", opened, made.roots, content=made.content, layout=made.layout, warn=made.warn)


class _T7Document:
    """Reader of the values of a `.t7`, once, on demand."""

    def __init__(self, source: Readable | ByteSource, only_one: bool, limits: Limits) -> None:
        self._source = source
        self._only_one = only_one  # the caller knows the rest of the file
        self._limits = limits
        self._values: Values | None = None
        self._content: T7File | None = None

    def values(self) -> Values:
        """Return the values."""
        if self._values is None:
            if self._only_one:
                reader = T7Reader(self._source, limits=self._limits)
                value = reader.read_object()
                self._values = Values(reader, [value], reader.source.size)
            else:
                self._values = read_values(self._source, self._limits)
        return self._values

    def roots(self) -> list[Value]:
        """Return the values in a list."""
        return self.values().roots

    def content(self) -> T7File:
        """Return the content of the file."""
        if self._content is None:
            self._content = content_of(self.values())
        return self._content

    def layout(self) -> T7Layout:
        """Encoding of the file."""
        return self.values().reader.layout

    def warn(self, stacklevel: int) -> None:
        """Issue a warning if unreadable bytes follow the values."""
        self.values().warn(stacklevel + 1)


def write(output: Output, value: Value, layout: T7Layout | None = None) -> Written:
    """Write one Lua value as a `.t7`.

    Raises:
        UnsupportedError: something in it is not a Lua value.
        WriteError: the output does not accept the bytes.
    """
    writer = T7Writer(output, layout or T7Layout())
    writer.write_object(value)
    storages = sum(isinstance(found, Storage) for found in writer.objects)
    return Written(sum(isinstance(found, Tensor) for found in writer.objects), storages)
