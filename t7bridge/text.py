"""Text from files, made safe for terminals, pages, pictures and logs; lists and counts in messages.

Imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Iterable


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
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 module`, `7 modules`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def and_more(number: int) -> str:
    """Return `, and 3 more`; nothing for 0 and less."""
    return f", and {number} more" if number > 0 else ""


def listed(names: Iterable[object], most: int = 4) -> str:
    """Return the first names, and the number of the others: `a, b, and 7 more`."""
    found = list(map(str, names))
    return ", ".join(found[:most]) + and_more(len(found) - most)


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
