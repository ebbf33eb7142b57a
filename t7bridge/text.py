"""Text from files, made safe for terminals, pages, pictures and logs; lists, counts and numbers in messages; `repr`s.

`show` is one bounded line for any value, the `repr` of everything in the graph: in constant time, whatever it is.
Imports nothing of the package but `data`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from .data import pattern


def printable(text: str) -> str:
    r"""Escape every character that a terminal or a page could obey instead of showing.

    Control characters (C0, C1, DEL), bidirectional marks, zero-width characters, line separators and surrogates become
    `\x1b`, `\u202e`, as Python's `repr` writes them.

    Example:
        >>> printable("weight\x1b[2J")
        'weight\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)  # `repr` without its quotes


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 module`, `7 modules`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def and_more(number: int) -> str:
    """Return `, and 3 more`; nothing for 0 and less."""
    return f", and {number} more" if number > 0 else ""


def and_elsewhere(places: int) -> str:
    """Return ` (and at 2 more places)` for two places besides the first; nothing for none."""
    return f" (and at {counted(places, 'more place')})" if places > 0 else ""


def listed(names: Iterable[object], most: int = 4) -> str:
    """Return the first names, and the number of the others: `a, b, and 7 more`."""
    found = list(map(str, names))
    return ", ".join(found[:most]) + and_more(len(found) - most)


def few(names: Iterable[str], most: int = 5, longest: int | None = None) -> str:
    """Return the first names, each of so many letters at most, and a mark if there are others: `a, b, …`."""
    found = list(names)
    return ", ".join(name[:longest] for name in found[:most]) + (", …" if len(found) > most else "")


def printable_lines(text: str) -> str:
    """Escape a text of several lines; indented lines, as lists in messages have them, stay lines of their own."""
    return "\n  ".join(map(printable, text.split("\n  ")))


def printable_json(text: str) -> str:
    r"""Escape in JSON what `printable` escapes elsewhere, as `\u202e`: the value stays the same.

    Args:
        text: JSON without line breaks.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _unit_escapes(char) for char in text)


def _unit_escapes(char: str) -> str:
    """Return the escapes of a character's one or two UTF-16 units."""
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[place : place + 2], 'big'):04x}" for place in range(0, len(units), 2))


LINE = 120
"""Maximum characters of a line."""
_TEXT = 60
"""Maximum characters or bytes of a text that are shown."""
_DIMENSIONS = 8
"""Maximum dimensions of a shape that are shown."""
_BITS = 256
"""Maximum bits of an integer whose digits are shown."""

_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_next_number = count(1)


def storage_number(storage: Any) -> int:
    """Return the number that shows which tensors share memory: storages are numbered as they are first shown."""
    number = _numbers.get(storage)
    if number is None:
        number = _numbers[storage] = next(_next_number)
    return number


def clean(text: str, most: int = _TEXT) -> str:
    """Return text on one line, with unprintable characters escaped, cut with `…` after `most` characters."""
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def sizes(shape: tuple[int, ...]) -> str:
    """Return `[64, 784]`; of very many dimensions the first."""
    shown = [str(extent)[:20] for extent in shape[:_DIMENSIONS]]
    return f"[{', '.join(shown)}{', …' if len(shape) > _DIMENSIONS else ''}]"


def extents(shape: tuple[int, ...]) -> str:
    """Return `1×64×56×56`; `scalar` of no dimensions."""
    return "×".join(map(str, shape)) or "scalar"


def number_text(value: float, digits: int) -> str:
    """Return a number as C's `%.17g` prints it on Linux, with `digits` digits: a NaN keeps its sign."""
    if value != value:
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return f"{value:.{digits}g}"


def short(value: Any) -> str:
    """Return one line of at most `LINE` characters for any value."""
    if isinstance(value, Shown):
        return repr(value)
    if isinstance(value, str):
        return clean(repr(value[:_TEXT]), LINE) + ("…" if len(value) > _TEXT else "")
    if isinstance(value, (bytes, bytearray)):
        longest = LINE - 3  # with room for `b` and `…`
        try:
            text = "b" + clean(repr(bytes(value[:_TEXT]).decode()), longest)
        except UnicodeDecodeError:
            # Fewer, as a byte that is no text takes four characters: `\xff`.
            text = clean(repr(bytes(value[: _TEXT // 3])), longest)
        return text + ("…" if len(value) > _TEXT else "")
    # Python refuses to print integers of very many digits (`int_max_str_digits`).
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"<int of {value.bit_length()} bits>"
    if value is None or isinstance(value, (bool, int, float, complex)):
        return clean(repr(value), LINE)
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return f"<{clean(type(value).__name__)}: {counted(len(value), 'entry', 'entries')}>"
    return f"<{clean(type(value).__name__)}>"


def one_line(value: Any, text: str) -> str:
    """Return the `repr` of a result: its class and a text, on one bounded line."""
    return f"<{clean(f'{type(value).__name__}: {text}', LINE - 2)}>"


class Shown:
    """Base of the graph's values: the `repr` is one bounded line."""

    __slots__ = ()

    def _short(self) -> str:
        """Return the line, before it is escaped and cut."""
        raise NotImplementedError

    def __repr__(self) -> str:
        try:
            return f"<{clean(self._short(), LINE - 2)}>"
        except AttributeError:  # not yet initialized
            return f"<{type(self).__name__}>"


class Holder(Shown):
    """A value with an identity that may hold others."""

    __slots__ = ()

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        """Return the values directly inside, each with its key, or the `Step` to it."""
        return ()


class Step(str):
    """A step of a path that is not a key: `.storage`, `<upvalues>`."""

    __slots__ = ()


_OTHERS_NAN = pattern(rb"1\.#(?:QNAN|SNAN|IND)0*|nan\(\w*\)")
_OTHERS_INFINITY = pattern(rb"1\.#INF0*")


def plain_numbers(text: bytes) -> bytes:
    """Return numbers that other C libraries printed as this one would.

    Microsoft's library had `1.#QNAN`, `1.#IND` and `1.#INF` before Visual Studio 2015, and has `nan(ind)` since
    (printf, "Floating-point"); in many languages the decimal point is a comma, and numbers have no other.
    """
    text = _OTHERS_INFINITY.sub(b"inf", _OTHERS_NAN.sub(b"nan", text))
    return text.replace(b",", b".")
