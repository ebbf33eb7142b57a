"""Whole `.t7` files: all their values, and what follows these."""

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
from ...text import counted, printable_lines
from ..table import Document, Written, refuse_two_formats
from .layout import T7Layout
from .reader import T7Reader, encoding_of

if TYPE_CHECKING:
    from ...io.output import Output

PT_RECORD_START = b'{"record":"t7bridge pt record '
"""How the record of the `.pt` that a `.t7` was made from begins, after the value."""


@define(eq=False)
class T7File:
    """The content of a `.t7` file.

    Attributes:
        roots: its values; most files hold one.
        layout: how it is encoded.
        rest: the bytes after the last value; empty for most files.
        objects: its objects in the order of the file.
        message: description of the bytes of `rest`, if they are neither a value nor a record; otherwise empty.
    """

    roots: list[Value]
    layout: T7Layout
    rest: ByteSource = field(factory=lambda: ByteSource.from_bytes(b""), repr=False)
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
    def trailing(self) -> bytes:
        """The bytes after the last value that are not a value, as in files with several kinds of data."""
        return self.rest.read(0, self.rest.size)

    @property
    def has_pt_record(self) -> bool:
        """Return whether the bytes after the value are the record of the `.pt` that the file was made from."""
        return self.rest.read(0, len(PT_RECORD_START)) == PT_RECORD_START

    def warn(self, stacklevel: int) -> None:
        """Issue an `IncompleteFileWarning` if unreadable bytes follow the values."""
        if self.message:
            text = printable_lines(f"{self.rest.name}: {self.message}")
            warnings.warn(text, IncompleteFileWarning, stacklevel=stacklevel + 1)


class _Values:
    """The values of a `.t7` read so far, one after another, and why reading stopped.

    Args:
        reader: the reader that reads them.
        first: the first of them, which was read.

    Attributes:
        reader: the reader.
        roots: the values.
        ends: of each value the offset after it, in bytes.
        encodings: of each value the byte order and the size of longs with which it was read, as arguments of
            `T7Reader`.
        reason: why the following bytes are not a value; empty if nothing follows, or the record of a `.pt`, and before
            `read_rest`.
    """

    def __init__(self, reader: T7Reader, first: Value) -> None:
        self.reader = reader
        self.roots: list[Value] = []
        self.ends: list[int] = []
        """Of each value the offset after it."""
        self.encodings: list[dict[str, Any]] = []
        """Of each value its encoding as arguments of `T7Reader`."""
        self._object_count = 0
        """Number of objects in these values."""
        self.reason = ""
        """Why reading stopped; empty before `read_rest`."""
        self._add(first)

    @classmethod
    def first_of(cls, reader: T7Reader) -> _Values:
        """Read the first value."""
        return cls(reader, reader.read_object())

    def _add(self, value: Value) -> None:
        """Add a value that the reader has just read."""
        self.roots.append(value)
        self.ends.append(self.reader.position)
        self._object_count = len(self.reader.objects)
        self.encodings.append(encoding_of(self.reader))

    def read_rest(self) -> _Values:
        """Read the values after the first one, up to the end or to bytes that are not a value; return this object.

        These bytes may be the record of a `.pt`, which stops reading without a reason.
        """
        reader = self.reader
        while not reader.at_end and reader.source.read(reader.position, len(PT_RECORD_START)) != PT_RECORD_START:
            try:
                value = reader.read_object()
            except FormatError as error:
                cut_off = isinstance(error, TruncatedError)
                self.reason = f"a value is cut off ({error.message})" if cut_off else error.message
                break
            if value is None:  # zeros read as nil, which is never written after a value
                self.reason = "they begin with zeros"
                break
            self._add(value)
        return self

    @property
    def bytes_after(self) -> int:
        """Number of bytes after the last value."""
        return self.reader.source.size - self.ends[-1]

    def content(self, rest_bytes: int) -> T7File:
        """Return the content of the file; called last, as the reader forgets its objects.

        Args:
            rest_bytes: how many of the last bytes of the file are not part of a value.
        """
        reader = self.reader
        message = ""
        if self.reason:
            count = len(self.roots)
            which = "the value" if count == 1 else f"the last of {count} values"
            verb = "is" if rest_bytes == 1 else "are"
            message = f"{counted(rest_bytes, 'byte')} after {which} {verb} not a value: {self.reason}"
        rest = reader.source.window(reader.source.size - rest_bytes, rest_bytes)
        # A value that could not be read may have added objects.
        objects_of_values = reader.objects[: self._object_count]
        file = T7File(self.roots, reader.layout, rest, objects_of_values, message)
        reader.forget()
        return file


def read_t7(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> T7File:
    """Read all values of a `.t7` file, up to its end or to bytes that are not a value.

    Args:
        source: a path, bytes, or a binary file object.
        limits: resource limits.

    Raises:
        FormatError: the first value cannot be read.
        CorruptError: the values read account for next to nothing of the file, or a value is in another byte order.
    """
    values = _Values.first_of(T7Reader(source, limits=limits)).read_rest()
    # A value without numbers is the same in every layout, so that the reader may find the layout only at a later value.
    # That of the last one is the best known.
    last_encoding = values.encodings[-1]
    is_binary = values.reader.layout.encoding == "binary"
    if is_binary and any(encoding != last_encoding for encoding in values.encodings):
        values = _read_all_in(last_encoding, source, limits, values)
    _refuse_unexplained(values)
    if values.bytes_after:
        refuse_two_formats(values.reader.source, values.ends[-1], "a .t7")
    return values.content(rest_bytes=values.bytes_after)


def _read_all_in(
    last_encoding: dict[str, Any], source: Readable | ByteSource, limits: Limits, values: _Values
) -> _Values:
    """Return all values of a binary file, read again in the encoding in which the last one was read.

    Args:
        last_encoding: byte order and size of longs, as arguments of `T7Reader`.
        source: the file.
        limits: resource limits.
        values: those read before, in different encodings.

    Raises:
        CorruptError: in this encoding they are not as many values, up to the same end.
    """
    reader = T7Reader(source, encoding="binary", limits=limits, **last_encoding)
    values_in_last_encoding = _Values.first_of(reader).read_rest()
    has_same_end = values_in_last_encoding.ends[-1] == values.ends[-1]
    if not has_same_end or len(values_in_last_encoding.roots) != len(values.roots):
        raise CorruptError(
            "its values are in different byte orders",
            file=values.reader.source.name,
            offset=values.ends[0],
            hint="Write each to a file of its own.",
        )
    return values_in_last_encoding


def refuse_unexplained(reader: T7Reader, value: Value) -> None:
    """Refuse a file of which the first value accounts for next to nothing; what follows other values is not read.

    Args:
        reader: of the file, positioned after its first value.
        value: the first value.

    Raises:
        CorruptError: the value is a scalar or an empty table before a long rest that is not a value.
    """
    if value is None or isinstance(value, (bool, float, bytes)) or _is_empty(value):
        _refuse_unexplained(_Values(reader, value).read_rest())


_REST_BYTES = 1 << 12
"""Bytes after the values that are looked at: for the start of a record, or for white space."""


def _is_surely_explained(values: _Values) -> bool:
    """Return whether the values read, and what is known to follow them, are the whole file, without any doubt.

    Args:
        values: at least one; behind the last one is the end, a record, or what is not a value.
    """
    rest_start = values.reader.source.read(values.ends[-1], _REST_BYTES)
    if rest_start.startswith(PT_RECORD_START):
        return True  # t7bridge wrote the file, from a `.pt`
    if values.reader.layout.encoding == "ascii":
        # White space may follow the last value.
        is_whole_rest = values.bytes_after == len(rest_start)
        return is_whole_rest and not rest_start.strip()
    # In doubt are several values in binary, though they reach to the end: zeros and small numbers are read as values,
    # so that they may be there by accident.
    return not values.bytes_after and len(values.roots) == 1


def _refuse_unexplained(values: _Values) -> None:
    """Refuse a file of which the values read account for next to nothing: zeros, a table of text, a damaged count.

    Raises:
        CorruptError: an empty table, or scalars, are less than half of the file; or it begins with nil, as zeros do.
    """
    if _is_surely_explained(values):
        return
    source = values.reader.source
    first_value = values.roots[0]
    if _is_empty(first_value):
        # What follows an empty table may be read as values by accident, and does not count.
        explained_bytes = values.ends[0]
        is_refused = source.size - explained_bytes > explained_bytes  # more than half of the file
    else:
        explained_bytes = values.ends[-1]
        has_unreadable_rest = bool(values.reason)
        is_refused = has_unreadable_rest and _explain_little(values)
    if is_refused:
        raise CorruptError(
            f"its only readable part, {_in_words(first_value)}, accounts for next to nothing of the file",
            file=source.name,
            offset=explained_bytes,
            expected="the end of the file",
            found=f"{source.size - explained_bytes} bytes more",
            hint="It is not a .t7, or damaged at its beginning.",
        )


def _explain_little(values: _Values) -> bool:
    """Return whether values are scalars that may have been read by accident: nil, or less than half of the file."""
    are_scalars = all(value is None or isinstance(value, (bool, float, bytes)) for value in values.roots)
    is_less_than_half = values.bytes_after > values.ends[-1]
    starts_with_nil = values.roots[0] is None  # which zeros are read as
    return are_scalars and (starts_with_nil or is_less_than_half)


def _is_empty(value: Value) -> bool:
    """Return whether a value is an empty table, or an object with an empty table of fields."""
    if isinstance(value, TorchObject):
        return value.payload is None and value.fields is not None and not len(value.fields)
    return isinstance(value, Table) and not len(value)


def _in_words(value: Value) -> str:
    """Return what a value is, for a message: a scalar, or an object without content."""
    if value is None:
        return "nil"
    kinds = {bool: "a boolean", float: "a number", bytes: "a string", Table: "an empty table"}
    return kinds.get(type(value), "an object without fields")


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a `.t7` file; of a file object whose position is not 0, only the value there is read.

    Args:
        source: a path, bytes, or a binary file object.
        limits: resource limits.

    Raises:
        FormatError: it is empty, or in another format.
    """
    opened, start = ByteSource.open(source)
    if start:  # only the caller knows what the rest of the file is
        content = cache(lambda: _Values.first_of(T7Reader(opened, limits=limits, _start=start)).content(rest_bytes=0))
    else:
        content = cache(lambda: read_t7(opened, limits))
    return Document(
        "t7",
        source=opened,
        load=lambda: content().roots,
        content=content,
        layout=lambda: content().layout,
        warn=lambda stacklevel: content().warn(stacklevel + 1),
        forget=content.cache_clear,
    )


def write(output: Output, value: Value, layout: T7Layout | None = None) -> Written:
    """Write one Lua value as a `.t7`.

    Args:
        output: the output file.
        value: see `T7Writer.write_object`.
        layout: how it is encoded; by default that of `T7Layout()`.

    Raises:
        UnsupportedError: something in it is not a Lua value.
        WriteError: the output does not accept the bytes.
    """
    from .writer import T7Writer  # which readers do not need

    writer = T7Writer(output, layout)
    writer.write_object(value)
    written = T7File([value], writer.layout, objects=writer.objects)  # which counts its tensors and storages
    return Written(written.tensors, written.storages)
