"""Lua Torch's ascii encoding: integers, floats, strings and arrays of elements, read and written.

Numbers are separated by white space; after each call that reads numbers or raw bytes one line feed is passed over.
Strings, and the elements of Byte and Char storages, are raw bytes here too. Arrays without elements write nothing.
"""

from __future__ import annotations

import math
import struct
import sys

from ...data import decimal_text, np, pattern
from ...errors import FormatError, TruncatedError, WriteError
from ...graph.dtypes import ElementType
from ...graph.storage import Span, Storage, TextSpan, array_chunks
from ...io.copy import Extent
from ...io.output import Output
from ...text import number_text, plain_numbers
from . import layout as tags
from .layout import WINDOW_BYTES, T7Layout, Window

_WINDOW = 1 << 16
"""Bytes that are read at a time, at least."""
_TOKEN = pattern(rb"[ \t\r\n\v\f]*([^ \t\r\n\v\f]*)")
"""White space, as C has it, and the word after it."""
_INTEGER = pattern(rb"[+-]?\d{1,20}\Z")
_NUMBER = pattern(rb"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|nan)\Z")
"""A number as C prints it on this system."""
_OTHERS_NUMBER = pattern(rb"[+-]?(\d+,\d*([eE][+-]?\d+)?|1\.#(?:QNAN|SNAN|IND|INF)0*|nan\(\w*\))\Z")
"""Numbers as other C libraries print them: see `plain_numbers`."""
_NUMBER_BYTES = b"0123456789+-.eEinfa \n"
"""The bytes of the numbers that C prints on this system, and of what is between them."""

_FLOAT_DIGITS = 9
"""Digits with which a float is written exactly."""

_SAMPLE_BYTES = 1 << 12
"""Bytes of a storage that are searched for a number which shows the digits."""
_WORTH_LOADING_NUMPY = 1 << 22
"""Numbers from which on it pays to load numpy only to count them."""
_LARGEST_FLOAT = 3.4e38
"""Below the largest float, which `struct` would refuse to round to."""


def _words_of_plain_line(line: bytes, is_large: bool) -> int:
    """Return how many words a line of numbers with one space between has; 0 for any other line.

    Args:
        line: without its line feed.
        is_large: whether there are so many numbers that it pays to load numpy.
    """
    has_other_bytes = bool(line.translate(None, _NUMBER_BYTES))
    if has_other_bytes or line.startswith(b" ") or line.endswith(b" "):
        return 0
    if is_large or "numpy" in sys.modules:  # four times as fast, and slow to load
        spaces = _single_spaces(line)
        return 0 if spaces is None else spaces + 1
    return 0 if b"  " in line else line.count(b" ") + 1


class TextInput(Window):
    """Reads the numbers, strings and arrays of a file in ascii at a moving position in a window of its bytes.

    Methods as in `BinaryInput`.
    """

    is_text = True
    _has_carriage_returns = False
    """Whether a line ended with CR and LF, as after a transfer as text: raw bytes of such a file are damaged."""

    def _refill(self, length: int) -> None:
        """Start the window at the position, with at least `length` bytes or all there are."""
        self._base = self.position
        self._at = 0
        self._window = self.source.read(self._base, max(length, _WINDOW))

    def _token(self, what: str) -> bytes:
        """Return the next word; the white space before it is passed over.

        Raises:
            TruncatedError: there is none; `what` says what should be there.
        """
        while True:
            match = _TOKEN.match(self._window, self._at)
            assert match is not None  # it matches the empty text
            if match.end() < len(self._window):
                break
            # The word may go on after the window, unless the file ends there.
            if self._base + len(self._window) >= self.source.size:
                if match.group(1):
                    break
                raise self.fault(f"the file ends where {what} is expected", TruncatedError)
            # Twice as much each time, so that what is long is not matched again for each window.
            self._refill(2 * (len(self._window) - self._at))
        self._at = match.end()
        return match.group(1)

    def _pass_line_feed(self) -> None:
        """Pass over one line feed, if there is one, as Lua Torch does; note a carriage return, which stays."""
        if self._at == len(self._window):
            self._refill(1)
        if self._window[self._at : self._at + 1] == b"\n":
            self._at += 1
        elif self._window[self._at : self._at + 1] == b"\r":
            self._has_carriage_returns = True

    def _refuse_carriage_returns(self, what: str) -> None:
        """Refuse raw bytes, before they are read, of a file in which a line ended with CR and LF.

        White space between numbers may be any. Raw bytes would be read from the wrong place, and may be changed, too.

        Raises:
            CorruptError: a line ended so.
        """
        if self._has_carriage_returns:
            raise self.fault(
                f"its lines end with CR and LF, so that {what} is not where it was written",
                hint="It was transferred as text. Transfer it again, as binary; or convert it back: dos2unix FILE.",
            )

    def _wrong(self, token: bytes, what: str) -> FormatError:
        """Return the error for a word, which was just read, that is not what is expected."""
        shown_token = repr(token[:40])[1:]  # without the `b`
        return self.fault(f"is not {what}", offset=self.position - len(token), expected=what, found=shown_token)

    def _read_integer(self, what: str) -> int:
        token = self._token(what)
        if not _INTEGER.match(token):
            raise self._wrong(token, what)
        return int(token)

    def read_int(self, what: str = "an integer") -> int:
        """Read an integer."""
        value = self._read_integer(what)
        self._pass_line_feed()
        return value

    def read_long(self, what: str = "a long") -> int:
        """Read an integer."""
        return self.read_int(what)

    read_short = read_long

    def read_longs(self, count: int, what: str) -> tuple[int, ...]:
        """Read integers on one line."""
        values = tuple(self._read_integer(what) for _ in range(count))
        if count:
            self._pass_line_feed()
        return values

    def read_double(self, what: str = "a number") -> float:
        """Read a number, which may show whether numbers are rounded to 6 digits: see `_learn_digits`."""
        token = self._token(what)
        if _OTHERS_NUMBER.match(token):
            token = plain_numbers(token)
        if not _NUMBER.match(token):
            raise self._wrong(token, what)
        value = float(token)
        # One that is not rounded is enough for all, and no other is looked at; until then each may be the one.
        if self.rounded is not False:
            self._learn_digits(token, value, exact_digits=tags.FULL_DIGITS)
        self._pass_line_feed()
        return value

    read_float = read_double

    def read_raw(self, length: int, what: str) -> bytes:
        """Return bytes as they are, and pass over the line feed behind them.

        Args:
            length: number of bytes.
            what: describes them in errors.

        Raises:
            CorruptError: the length is negative, or the lines of the file end with CR and LF.
            TruncatedError: the file ends early.
            LimitError: they are more than a string may have.
        """
        # The length is compared with the file, then with the limit, before any byte is loaded into the window.
        self.require(length, least_bytes=1, what=what)
        self.check_length(length, what)
        if not length:  # Lua Torch writes no line feed then
            return b""
        self._refuse_carriage_returns(what)
        if len(self._window) - self._at < length:
            self._refill(length)
        data = self._window[self._at : self._at + length]
        if len(data) < length:
            message = f"the file ends inside {what}"
            raise self.fault(message, TruncatedError, expected=f"{length} bytes", found=f"{len(data)}")
        self._at += length
        self._pass_line_feed()
        return data

    def read_elements(self, element: ElementType, count: int) -> Span | TextSpan:
        """Pass over a storage's elements and return where they are.

        Elements of one byte are raw bytes, others numbers on a line, whose first floats may show whether numbers are
        rounded to 6 digits.

        Args:
            element: their type.
            count: how many.

        Raises:
            CorruptError: the count is negative, or there are other words than numbers.
            TruncatedError: the file has fewer.
        """
        what = f"elements of type {element.name}"
        if element.itemsize == 1:
            return self._read_bytes(count, what)
        self.require(count, least_bytes=2, what=what)  # a digit and a space
        start = self.position
        if not count:
            return TextSpan(self.source, start, 0)
        is_plain = self._pass_numbers(count, what)
        end = self.position
        self._pass_line_feed()
        is_float = element.code[0] == "f"
        # No storage is searched once a number has shown the digits: a sample of each of many would take long.
        if self.rounded is None and is_float:
            self._learn_digits_of_elements(self.source.read(start, min(_SAMPLE_BYTES, end - start)), element)
        return TextSpan(self.source, start, end - start, is_plain=is_plain)

    def _read_bytes(self, count: int, what: str) -> Span:
        """Pass over raw bytes, and the line feed behind them; return where they are.

        Args:
            count: how many.
            what: describes them in errors.
        """
        self.require(count, least_bytes=1, what=what)
        span = Span(self.source, self.position, width=1)
        if count:  # Lua Torch writes no line feed behind none
            self._refuse_carriage_returns(what)
            self.position += count
            self._pass_line_feed()
        return span

    def _learn_digits_of_elements(self, text: bytes, element: ElementType) -> None:
        """Set `rounded` by the first number of a storage that shows it, see `_learn_digits`; if none does, leave it.

        Args:
            text: the beginning of its elements, whose last word may be cut off.
            element: their type, of floats of 4 or 8 bytes.
        """
        whole_words = text.split()[:-1]
        for token in whole_words:
            value = float(token) if _NUMBER.match(token) else math.nan  # a NaN shows nothing
            if element.itemsize == 8:
                self._learn_digits(token, value, exact_digits=tags.FULL_DIGITS)
            elif abs(value) < _LARGEST_FLOAT:
                (value_as_float,) = struct.unpack("f", struct.pack("f", value))
                self._learn_digits(token, value_as_float, exact_digits=_FLOAT_DIGITS)
            if self.rounded is not None:
                return

    def _learn_digits(self, token: bytes, value: float, exact_digits: int) -> None:
        """Set `rounded`, whether the file's numbers have 6 digits, by one number; leave it if that shows nothing.

        It shows nothing if 6 digits and all digits are the same text, as for `0.5`.

        Args:
            token: the text of the number in the file.
            value: the number.
            exact_digits: how many digits a number of its type needs to be written exactly.
        """
        is_nan = value != value
        is_short_integer = token.isdigit() and len(token) <= tags.OLD_DIGITS  # spares most numbers the formatting
        if is_nan or is_short_integer:
            return
        short = number_text(value, tags.OLD_DIGITS).encode()
        if short != number_text(value, exact_digits).encode():
            self.rounded = token == short

    def _pass_numbers(self, count: int, what: str) -> bool:
        """Move behind `count` numbers, which are not converted: line by line if these are plain, else word by word.

        Args:
            count: how many.
            what: describes them in errors.

        Returns:
            Whether all are plain, as C on this system prints them; others match `_OTHERS_NUMBER`.
        """
        are_plain = True
        while count:
            if self._at == len(self._window):
                self._refill(min(2 * count, WINDOW_BYTES))  # a digit and a space for each, at least
                if not self._window:
                    raise self.fault(f"the file ends inside {what}", TruncatedError, found=f"{count} missing")
            passed = self._pass_plain_line(count)
            if not passed:
                # Word by word to the end of this line, or of the window: so much was looked at, and is not once more. A
                # line feed at the position is white space before a word; there may be one number a line, so that many
                # are passed at once, to the end of the window.
                line_end = self._window.find(b"\n", self._at)
                is_in_line = line_end > self._at
                stop_in_window = line_end if is_in_line else len(self._window)
                passed, words_are_plain = self._pass_words(count, self._base + stop_in_window, what)
                are_plain = are_plain and words_are_plain
            count -= passed
        return are_plain

    def _pass_plain_line(self, count: int) -> int:
        """Move behind a line of numbers with one space between, as Lua Torch writes them; return how many they are.

        Of a line that goes on after the window, the words that are whole are passed. Nothing is passed, and 0 returned,
        if the line has anything else, or more numbers. Its line feed is not passed.

        Args:
            count: how many numbers are passed at most.
        """
        window = self._window
        line_end = window.find(b"\n", self._at)
        # If the line goes on after the window, its last word there may be cut off: up to the space before that.
        end = line_end if line_end >= 0 else window.rfind(b" ", self._at)
        has_space = window.startswith(b" ", self._at)  # between the words passed before and these
        start = self._at + 1 if has_space else self._at
        if end <= start:
            return 0
        words = _words_of_plain_line(window[start:end], count > _WORTH_LOADING_NUMPY)
        if words > count:
            return 0
        if words:
            self._at = end
        return words

    def _pass_words(self, most: int, stop: int, what: str) -> tuple[int, bool]:
        """Move behind one number, and all that begin before an offset; check of each word that it is a number.

        Args:
            most: how many numbers are passed at most.
            stop: the offset in the source.
            what: the numbers, for errors.

        Returns:
            How many were passed, and whether all of them are plain, see `_pass_numbers`.
        """
        passed = 0
        is_plain = True
        while passed < most:
            token = self._token(what)
            if not _NUMBER.match(token):
                if not _OTHERS_NUMBER.match(token):
                    raise self._wrong(token, what)
                is_plain = False  # as another C library prints it: it is converted when the elements are read
            passed += 1
            if self.position >= stop:
                break
        return passed, is_plain


_NAN = struct.pack(">d", math.nan)
"""The bytes of the NaN that text stands for."""


class TextWriter:
    """Writes numbers, strings and arrays in Lua Torch's ascii encoding. The same methods as `BinaryWriter`.

    Attributes:
        output: where the file is written to.
        layout: its encoding.
        plain_nans: NaNs so far whose bits say more than that they are NaNs, which text does not show.
    """

    def __init__(self, output: Output, layout: T7Layout) -> None:
        self.output = output
        self.layout = layout
        self._float_digits = _FLOAT_DIGITS if layout.digits == tags.FULL_DIGITS else tags.OLD_DIGITS
        """Digits of floats; those of doubles are the layout's."""
        self.plain_nans = 0

    def write_int(self, value: int) -> None:
        """Write an integer, which C reads into 4 bytes."""
        self._write_integer(value, 4, "a 4-byte integer")

    def write_long(self, value: int) -> None:
        """Write an integer, which C reads into a long."""
        self._write_integer(value, 8, "an 8-byte long")

    def write_short(self, value: int) -> None:
        """Write an integer, which C reads into 2 bytes."""
        self._write_integer(value, 2, "a 2-byte integer")

    def _write_integer(self, value: int, size: int, what: str) -> None:
        """Write an integer.

        Args:
            value: the integer.
            size: bytes that it has in memory, with a sign.
            what: describes the type in the error.

        Raises:
            WriteError: it does not fit.
        """
        limit = 1 << (8 * size - 1)
        if not -limit <= value < limit:
            raise WriteError(f"{value} does not fit {what}", file=self.output.name)
        self.output.write(b"%d\n" % value)

    def write_ints(self, *values: int) -> None:
        """Write integers, each on a line."""
        self.output.write(b"%d\n" * len(values) % values)

    def write_longs(self, values: tuple[int, ...]) -> None:
        """Write integers on one line."""
        if values:
            self.output.write(b" ".join(b"%d" % value for value in values) + b"\n")

    def write_float(self, value: float) -> None:
        """Write a number with 9 digits, or 6 in an old layout."""
        self.output.write(number_text(value, self._float_digits).encode() + b"\n")

    def write_double(self, value: float) -> None:
        """Write a number with 17 digits, or 6 in an old layout."""
        self.output.write(self._double(value) + b"\n")

    def _double(self, value: float) -> bytes:
        """Return a number as text, and count a NaN whose bits text does not show; its sign is shown."""
        if value != value:
            self.plain_nans += struct.pack(">d", math.copysign(value, 1.0)) != _NAN
        return number_text(value, self.layout.digits).encode()

    def write_raw(self, data: bytes) -> None:
        """Write bytes as they are, and a line feed behind them."""
        if data:
            self.output.write(data)
            self.output.write(b"\n")

    def write_number(self, value: float) -> None:
        """Write a tagged number."""
        self.output.write(b"%d\n%s\n" % (tags.NUMBER, self._double(value)))

    def write_string(self, data: bytes) -> None:
        """Write a tagged string."""
        self.output.write(b"%d\n%d\n" % (tags.STRING, len(data)))
        self.write_raw(data)

    def write_boolean(self, value: bool) -> None:
        """Write a tagged boolean."""
        self.output.write(b"%d\n%d\n" % (tags.BOOLEAN, value))

    def write_elements(self, storage: Storage) -> None:
        """Write a storage's elements; text of numbers as C prints them is copied from its file, with its digits."""
        if not storage.count:  # not even a line feed
            return
        data = storage.data
        if storage.element.itemsize == 1:  # raw bytes in Lua's ascii, too
            for chunk in storage.chunks():
                self.output.write(chunk)
        elif isinstance(data, TextSpan) and data.is_plain:
            self.output.copy(Extent(data.source, data.offset, data.length))
        else:
            self._write_numbers(storage)
        self.output.write(b"\n")

    def _write_numbers(self, storage: Storage) -> None:
        """Write a storage's elements as numbers with one space between; count in `plain_nans` those that lose bits."""
        decimals = decimal_text()
        digits = self.layout.digits if storage.element.itemsize == 8 else self._float_digits
        is_first = True
        for array in array_chunks(storage):
            if array.dtype.kind == "f":
                self.plain_nans += decimals.count_odd_nans(array)
                text = _formatted_floats(array, digits)
            else:
                text = decimals.format_integers(array)
            self.output.write(text if is_first else b" " + text)
            is_first = False


def _formatted_floats(array: np.ndarray, digits: int) -> bytes:
    """Return floats as C's `%.{digits}g` prints them, with one space between."""
    if array.itemsize == 2:  # Torch's halves have one nan, without a sign; others keep theirs: `-nan`
        array = np.where(np.isnan(array), np.float16(np.nan), array)
    text = decimal_text().format_floats(array, digits)
    # There is none where the fast conversion does not pay, as for many infinities, and without numpy.
    return _formatted_by_c(array, digits) if text is None else text


def _formatted_by_c(array: np.ndarray, digits: int) -> bytes:
    """Return floats as text with one space between, by C's own conversion."""
    with np.errstate(invalid="ignore"):  # a signaling NaN becomes quiet without a warning
        values = array.astype("f8", copy=False).tolist()
    if any(map(math.isnan, values)):  # a nan keeps its sign, which `%` would drop
        return " ".join([number_text(value, digits) for value in values]).encode()
    return (" ".join([f"%.{digits}g"] * len(values)) % tuple(values)).encode()


def _single_spaces(line: bytes) -> int | None:
    """Return the number of spaces on a line; `None` if two are adjacent."""
    is_space = np.frombuffer(line, "u1") == 0x20
    if (is_space[1:] & is_space[:-1]).any():
        return None
    return int(np.count_nonzero(is_space))
