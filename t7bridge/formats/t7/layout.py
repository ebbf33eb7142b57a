"""The tables of Lua Torch's serialization: type tags, encodings and their detection; and the window of both readers.

The whole layout is described in `docs/format-t7.md`. Source: torch7 814ea4a, `File.lua`, `lib/TH/THDiskFile.c`,
`generic/Tensor.c`, `generic/Storage.c`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from attrs import field, validators

from ...data import define
from ...errors import CorruptError, FormatError, LimitError, ModelError, TruncatedError, UnknownFormatError
from ...graph.lua import TorchObject
from ...io.source import ByteSource
from ...text import counted
from ..table import HEAD_BYTES, identify

NIL, NUMBER, STRING, TABLE, TORCH, BOOLEAN = 0, 1, 2, 3, 4, 5
FUNCTION_WITHOUT_INDEX, LEGACY_FUNCTION, FUNCTION = 6, 7, 8
OBJECTS = frozenset((TABLE, TORCH, FUNCTION_WITHOUT_INDEX, LEGACY_FUNCTION, FUNCTION))
"""The tags of values that may have others inside."""

TAG_NAMES = {
    NIL: "nil",
    NUMBER: "a number",
    STRING: "a string",
    TABLE: "a table",
    TORCH: "a Torch object",
    BOOLEAN: "a boolean",
    FUNCTION_WITHOUT_INDEX: "a function (before 2014)",
    LEGACY_FUNCTION: "a function (2014 to 2015)",
    FUNCTION: "a function",
}

FULL_DIGITS, OLD_DIGITS = 17, 6
"""Digits of numbers in ascii: those with which a double is written exactly; and those of `%g`, which Torch wrote until
2014 and 2015 (docs/format-t7.md)."""

VERSION_PREFIX = b"V "
"""Begins the string before a class name, the version; a string without it is the class name itself, of an old file."""

VINTAGES = ("", "2010-11", "2011-06", "2011-09", "2011-10")
"""Releases whose nn modules wrote their fields one after another, by their first months; the first is current Torch."""
TORCH5 = VINTAGES[1]


@define(frozen=True)
class T7Layout:
    """Encoding of a `.t7` file.

    Attributes:
        encoding: `binary` or `ascii`.
        byte_order: `little` or `big`; binary only.
        long_size: bytes of a C long, 4 or 8; binary only.
        digits: digits of numbers in ascii: 17 (doubles, 9 for floats) since April 2014 by DiskFile and since April 2015
            by MemoryFile, 6 before.
        numbers: the numbers of the file's objects in order of appearance, if they do not just count from 1.
        vintage: the release of 2010 or 2011 that wrote the file, if its nn modules wrote their fields one after
            another; see `releases_2010.py`.
        headless: whether the file is a network without its class: the result of `network:write(file)` at that time.
        unowned: in a file of Torch5, the numbers of the tensors that do not own their storages.
    """

    encoding: str = field(default="binary", validator=validators.in_(("binary", "ascii")))
    byte_order: str = field(default="little", validator=validators.in_(("little", "big")))
    long_size: int = field(default=8, validator=validators.in_((4, 8)))
    digits: int = field(default=FULL_DIGITS, validator=validators.in_((OLD_DIGITS, FULL_DIGITS)))
    numbers: tuple[int, ...] = field(default=(), repr=False)
    vintage: str = field(default="", validator=validators.in_(VINTAGES))
    headless: bool = False
    unowned: tuple[int, ...] = field(default=(), repr=False)


BINARY_LAYOUTS = tuple(
    T7Layout(byte_order=byte_order, long_size=long_size) for byte_order in ("little", "big") for long_size in (8, 4)
)
"""Every binary layout, the most likely first."""


ReadPayload = Callable[[Any, TorchObject], None]
WritePayload = Callable[[Any, TorchObject], None]


class PayloadClass(Protocol):
    """The interface of what `register_class` decorates: a class with two static methods."""

    @staticmethod
    def read(reader: Any, obj: TorchObject) -> None:
        """Fill an object from a `T7Reader`."""

    @staticmethod
    def write(writer: Any, obj: TorchObject) -> None:
        """Write an object to a `T7Writer`."""


@define(frozen=True)
class Payload:
    """How the objects of one Lua class are read and written after their class name.

    Attributes:
        read: fills an object, whose `fields` is an empty table, from the reader.
        write: writes the same to the writer.
        since_version: objects with lower class versions, or without one, are plain tables; 0 if none are.
    """

    read: ReadPayload
    write: WritePayload
    since_version: int = 0


def possible_layouts(
    source: ByteSource, start: int, encoding: str | None, byte_order: str | None, long_size: int | None
) -> list[T7Layout]:
    """Return the layouts that a file may have, the most likely first.

    Args:
        source: the bytes.
        start: where reading starts.
        encoding: `binary` or `ascii`, if known.
        byte_order: `little` or `big`, if known.
        long_size: 4 or 8, if known.

    Raises:
        ModelError: a given value is invalid.
        UnknownFormatError: nothing is given, and the file is in another format.
    """
    if encoding not in (None, "binary", "ascii"):
        raise ModelError(f"unknown encoding {encoding!r}", expected="binary or ascii")
    head = source.read(start, HEAD_BYTES)
    is_nothing_given = encoding is None and byte_order is None and long_size is None
    if is_nothing_given:
        _refuse_other_formats(source, head)
    # A byte order or a size of long is that of a binary file.
    if encoding == "ascii" or (is_nothing_given and _looks_like_text(head)):
        return [T7Layout(encoding="ascii")]
    return _binary_layouts(head, byte_order, long_size)


def _binary_layouts(head: bytes, byte_order: str | None, long_size: int | None) -> list[T7Layout]:
    """Return the binary layouts that a file may have, the most likely first.

    Args:
        head: its first bytes.
        byte_order: `little` or `big`, if known.
        long_size: 4 or 8, if known.

    Raises:
        ModelError: a given value is invalid.
    """
    # Any first value has a small first integer: a type tag, a count, a flag. It is small in the file's byte order.
    if_little = abs(int.from_bytes(head[:4], "little", signed=True))
    if_big = abs(int.from_bytes(head[:4], "big", signed=True))
    likely_order = "big" if if_big < if_little else "little"
    layouts = []
    # Those of the likely order first; of each order, longs of 8 bytes stay before those of 4.
    for layout in sorted(BINARY_LAYOUTS, key=lambda layout: layout.byte_order != likely_order):
        if byte_order in (None, layout.byte_order) and long_size in (None, layout.long_size):
            layouts.append(layout)
    if not layouts:
        raise ModelError("unknown layout", expected="byte order little or big, long size 4 or 8")
    return layouts


def _refuse_other_formats(source: ByteSource, head: bytes) -> None:
    """Raise an error for an empty file, or one with the signature of another format.

    Args:
        source: the file, for errors.
        head: its first bytes.

    Raises:
        TruncatedError: it is empty.
        UnknownFormatError: it has such a signature.
    """
    if not head:
        raise TruncatedError("is empty", file=source.name)
    signature = identify(head)
    if signature:
        hint = signature.hint or "A .t7 reader cannot read it, whatever its name."
        raise UnknownFormatError(f"is not a .t7 file but {signature.title}", file=source.name, hint=hint)


_LONGEST_NUMBER = 40
"""Bytes of text that hold any number."""


def _looks_like_text(head: bytes) -> bool:
    """Return whether a file is in ascii, by its first bytes: its first word is a number.

    A `.t7` begins with a tag, an integer. But what `T7Reader` reads may begin with any number, as Lua's `writeDouble`
    writes it.
    """
    words = head.lstrip()[:_LONGEST_NUMBER].split(maxsplit=1)
    if not words:
        return False
    first_word = words[0]
    try:
        float(first_word)
    except ValueError:
        return False
    # A file that is this word only, without white space, must be a tag: `nan` and `inf` are words too.
    is_whole_file = head == first_word
    return not is_whole_file or first_word.isdigit()


WINDOW_BYTES = 1 << 20
"""Maximum size of the window, in bytes."""


class Window:
    """A position in a source, and the bytes around it that have been read: the base of the readers of both encodings.

    Args:
        source: the bytes.
        position: offset at which reading starts.
        layout: how they are encoded.
        longest_string: maximum length of a string, in bytes; by default none that a file could have.

    Attributes:
        source, layout, longest_string: the arguments.
        rounded: whether numbers are printed with 6 digits; `None` as long as no number has decided it, and in binary.
        is_text: whether the encoding is ascii.
        entry: what messages call the beginning of an entry of a table.
    """

    rounded: bool | None = None
    is_text = False
    entry = "a type tag"

    def __init__(self, source: ByteSource, position: int, layout: T7Layout, longest_string: int = 1 << 62) -> None:
        self.source = source
        self.layout = layout
        self.longest_string = longest_string
        self._base = position
        """Offset in the source of the first byte of the window."""
        self._window = b""
        """The bytes that have been read; empty until the first are needed."""
        self._at = 0
        """The position, as an offset in the window; at most its length."""

    @property
    def position(self) -> int:
        """Offset in bytes of the next byte to read."""
        return self._base + self._at

    @position.setter
    def position(self, offset: int) -> None:
        offset_in_window = offset - self._base
        if 0 <= offset_in_window <= len(self._window):
            self._at = offset_in_window
        else:
            self._jump(offset)

    def _jump(self, offset: int) -> None:
        """Move to an offset outside the window."""
        self._base = offset
        self._at = 0
        self._window = b""

    @property
    def remaining(self) -> int:
        """Number of bytes from here to the end."""
        return self.source.size - self.position

    def fault(
        self, message: str, kind: type[FormatError] = CorruptError, offset: int | None = None, **facts: str
    ) -> FormatError:
        """Return an error at an offset, by default at the position."""
        return kind(message, file=self.source.name, offset=self.position if offset is None else offset, **facts)

    def require(self, count: int, least_bytes: int, what: str) -> None:
        """Check that so many items can still follow, before memory is used for them.

        Args:
            count: number of items.
            least_bytes: bytes of the shortest item in a binary file; 1 for raw bytes, which are the same in ascii.
            what: describes the items in the error.

        Raises:
            CorruptError: the count is negative.
            TruncatedError: the file is too short for them.
        """
        if count < 0:
            raise self.fault(f"a negative count for {what}", found=f"{count}")
        available = self.remaining
        if self.is_text and least_bytes > 1:
            # A number in ascii needs a digit and a space; no space follows the last one.
            least_bytes = 2
            available += 1
        if count * least_bytes > available:
            expected = f"at most {available // least_bytes} in the {counted(self.remaining, 'byte')} left"
            text = f"a count claims more than the file holds: {what}"
            raise self.fault(text, TruncatedError, expected=expected, found=f"{count}")

    def check_length(self, length: int, what: str) -> None:
        """Check the length of a string.

        Raises:
            LimitError: it exceeds the limit.
        """
        if length > self.longest_string:
            raise LimitError(
                f"{what} is too long",
                file=self.source.name,
                offset=self.position,
                found=f"{length} bytes",
                limit="string_bytes",
                value=self.longest_string,
            )

    def no_boolean(self, number: int, offset: int | None = None) -> FormatError:
        """Return the error for a boolean that is neither 0 nor 1."""
        return self.fault("a boolean is neither 0 nor 1", offset=offset, expected="0 or 1", found=f"{number}")

    def read_int(self, what: str = "an integer") -> int:
        """Read a 4-byte integer."""
        raise NotImplementedError

    def read_double(self, what: str = "a number") -> float:
        """Read an 8-byte float."""
        raise NotImplementedError

    def read_raw(self, length: int, what: str) -> bytes:
        """Read raw bytes."""
        raise NotImplementedError

    def read_scalars(self, keys: list[Any], values: list[Any], count: int) -> None:
        """Read entries of a table as long as keys and values are scalars.

        Args:
            keys: those read so far; receives more. There may be one key more than values: then a value is next.
            values: those read so far; receives more.
            count: number of values at which the table ends. Reading stops before the tag of an object.
        """
        while len(values) < count and self._read_scalar(keys, values):
            pass

    def _read_scalar(self, keys: list[Any], values: list[Any]) -> bool:
        """Read the next key or value, unless it is an object; return whether it was read.

        Args:
            keys: those read so far; receives a key, if there are as many values.
            values: those read so far; receives a value otherwise.

        Raises:
            CorruptError: it is a boolean or a key that Lua does not have.
            TruncatedError: the file ends before it does.
        """
        start = self.position
        tag = self.read_int(self.entry)
        self._require_rest_of_scalar(tag)  # of an object it requires nothing
        item: Any = None
        if tag == NUMBER:
            item = self.read_double()
        elif tag == STRING:
            item = self.read_raw(self.read_int("a string's length"), "a string")
        elif tag == BOOLEAN:
            item = self._read_boolean()
        elif tag != NIL:
            # An object: its tag is read again by whoever reads objects.
            self.position = start
            return False
        # After a key without a value this is its value; otherwise it is the next key.
        if len(keys) > len(values):
            values.append(item)
        elif item is None or item != item:
            kind = "nil" if item is None else "nan"
            raise self.fault(f"a table key is {kind}, which Lua does not allow", offset=start)
        else:
            keys.append(item)
        return True

    def _read_boolean(self) -> bool:
        """Read a boolean, whose tag was read.

        Raises:
            CorruptError: it is neither 0 nor 1.
        """
        # In binary an error is at the number; in ascii after it, where the position is then.
        offset = None if self.is_text else self.position
        number = self.read_int("a boolean")
        if number not in (0, 1):
            raise self.no_boolean(number, offset)
        return number == 1

    def _require_rest_of_scalar(self, tag: int) -> None:
        """Check that the rest of a scalar is in the file after its tag, which was read; text is checked as it is read.

        Tags of other values are not checked.
        """
