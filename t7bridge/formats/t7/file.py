"""Whole `.t7` files."""

from __future__ import annotations

import warnings
from functools import cache
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
from ...graph.walk import objects
from ...io.source import ByteSource, Readable
from ...limits import DEFAULT_LIMITS, Limits
from ...text import printable_lines
from ..table import Document, Written, refuse_two
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
        trailing: bytes after the last value that are not a value, as in files with several kinds of data.
        objects: its objects in the order of their numbers.
        message: description of these bytes if they are not a record either.
    """

    roots: list[Value]
    layout: T7Layout
    trailing: bytes = field(default=b"", repr=False)
    objects: list[Value] = field(factory=list, repr=False)
    message: str = ""

    @property
    def tensors(self) -> int:
        """Number of tensors."""
        return sum(isinstance(value, Tensor) for value in self.objects)

    @property
    def storages(self) -> int:
        """Number of storages."""
        return sum(isinstance(value, Storage) for value in self.objects)

    def part(self, value: Value) -> T7File:
        """Return the content of a file with only this value of it."""
        return T7File([value], self.layout, objects=list(objects(value)))

    @property
    def has_pt_record(self) -> bool:
        """Return whether the bytes after the value are the record of the `.pt` that the file was made from."""
        return self.trailing.startswith(PT_RECORD_START)


@define(eq=False)
class _Values:
    """The values of a `.t7`, one after another.

    Attributes:
        reader: the reader that read them.
        roots: the values.
        ends: end of each, in bytes.
        orders: byte order and size of longs of each.
        reason: why the following bytes are not a value; empty if nothing follows, or the record of a `.pt`.
        layout: how they are encoded, once all are read.
        objects: their objects, once all are read.
    """

    reader: T7Reader
    roots: list[Value] = field(factory=list)
    ends: list[int] = field(factory=list)
    orders: list[dict[str, Any]] = field(factory=list)
    reason: str = ""
    layout: T7Layout = field(factory=T7Layout)
    objects: list[Value] = field(factory=list)

    def finish(self) -> _Values:
        """Keep the objects without their numbers, as nothing more is read."""
        self.layout, self.objects = self.reader.layout, self.reader.objects
        self.reader.forget()
        return self

    def add(self, value: Value) -> None:
        """Add a value that was read."""
        self.roots.append(value)
        self.ends.append(self.reader.position)
        self.orders.append(self.order())

    def order(self) -> dict[str, Any]:
        """Return byte order and size of longs as the reader knows them now."""
        layout = self.reader.layout
        return {"byte_order": layout.byte_order, "long_size": layout.long_size}

    def read_rest(self) -> None:
        """Read what follows the first value."""
        reader = self.reader
        while not reader.at_end and reader.source.read(reader.position, len(PT_RECORD_START)) != PT_RECORD_START:
            try:
                value = reader.read_object()
            except FormatError as error:
                cut_off = isinstance(error, TruncatedError)
                self.reason = f"a value is cut off ({error.message})" if cut_off else error.message
                return
            if value is None:  # zeros read as nil, which is never written after a value
                self.reason = "they begin with zeros"
                return
            self.add(value)

    @property
    def left(self) -> int:
        """Number of bytes after the last value."""
        return self.reader.source.size - self.ends[-1]

    @property
    def message(self) -> str:
        """Description of unreadable bytes after the values; empty if there are none."""
        if not self.reason:
            return ""
        count = len(self.roots)
        which = "the value" if count == 1 else f"the last of {count} values"
        return f"{self.left} bytes after {which} are not a value: {self.reason}"

    def warn(self, stacklevel: int) -> None:
        """Issue an `IncompleteFileWarning` if unreadable bytes follow the values."""
        if message := self.message:
            text = printable_lines(f"{self.reader.source.name}: {message}")
            warnings.warn(text, IncompleteFileWarning, stacklevel=stacklevel + 1)

    def content(self) -> T7File:
        """Return the content of the file."""
        trailing = self.reader.source.read(self.ends[-1], self.left) if self.left else b""
        return T7File(self.roots, self.layout, trailing, self.objects, self.message)


def _read_values(source: Readable | ByteSource, limits: Limits) -> _Values:
    """Read all values of a `.t7` file, up to its end or to bytes that are not a value.

    Raises:
        FormatError: the first value cannot be read.
        CorruptError: the values read account for next to nothing of the file, or a value is in another byte order.
    """
    found = _read_all(T7Reader(source, limits=limits))
    if len(found.roots) > 1 and found.reader.layout.encoding == "binary":
        # A value without numbers is the same in every layout. The layout of the last one applies to all.
        last = found.order()
        if any(each != last for each in found.orders):
            again = _read_all(T7Reader(source, encoding="binary", limits=limits, **last))
            if again.ends[-1] != found.ends[-1] or len(again.roots) != len(found.roots):
                raise CorruptError(
                    "its values are in different byte orders",
                    file=found.reader.source.name,
                    offset=found.ends[0],
                    hint="Write each to a file of its own.",
                )
            found = again
    _refuse_unexplained(found)
    if found.left:
        refuse_two(found.reader.source, found.ends[-1], "a .t7")
    return found.finish()


def _read_all(reader: T7Reader) -> _Values:
    found = _Values(reader)
    found.add(reader.read_object())
    found.read_rest()
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
        found = _Values(reader)
        found.add(value)
        found.read_rest()
        _refuse_unexplained(found)


def _refuse_unexplained(values: _Values) -> None:
    """Refuse a file of which the values read account for next to nothing: zeros, a table of text, a damaged count."""
    source, first = values.reader.source, values.roots[0]
    end, first_end = values.ends[-1], values.ends[0]
    start = source.read(end, 1 << 12)
    if start.startswith(PT_RECORD_START) or not (values.left or len(values.roots) > 1):
        return
    if not start.strip() and values.left == len(start) and values.reader.layout.encoding == "ascii":
        return  # white space at the end of a text
    follows = source.size - first_end
    if _is_empty(first):
        wrong = follows > first_end
    else:
        hollow = all(value is None or isinstance(value, (bool, float, bytes)) for value in values.roots)
        wrong = bool(values.reason) and hollow and (first is None or values.left > end)
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
    return _read_values(source, limits).content()


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a `.t7` file; of a file object whose position is not 0, only the value there is read.

    Raises:
        FormatError: it is empty, or in another format.
    """
    opened, start = ByteSource.open(source)

    @cache
    def values() -> _Values:
        if not start:
            return _read_values(opened, limits)
        found = _Values(reader := T7Reader(source, limits=limits))
        found.add(reader.read_object())
        found.ends = [reader.source.size]  # the caller knows the rest of the file
        return found.finish()

    @cache
    def content() -> T7File:
        return values().content()

    def forget() -> None:
        if not start:
            values.cache_clear()
            content.cache_clear()

    return Document(
        "t7",
        opened,
        lambda: values().roots,
        content=content,
        layout=lambda: values().layout,
        warn=lambda stacklevel: values().warn(stacklevel + 1),
        forget=forget,
    )


def write(output: Output, value: Value, layout: T7Layout | None = None) -> Written:
    """Write one Lua value as a `.t7`.

    Raises:
        UnsupportedError: something in it is not a Lua value.
        WriteError: the output does not accept the bytes.
    """
    writer = T7Writer(output, layout or T7Layout())
    writer.write_object(value)
    written = T7File([value], writer.layout, objects=writer.objects)
    return Written(written.tensors, written.storages)
