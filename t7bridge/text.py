"""Text from files, made safe for terminals, pages, pictures and logs. Imports nothing of the package."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Escape every character of a text that a terminal or a page could obey instead of showing.

    Control characters (C0, C1, DEL), marks of direction, characters without width, separators of lines and surrogates
    become `\x1b`, `\u202e`, as Python's `repr` writes them.

    Example:
        >>> printable("weight\x1b[2J")
        'weight\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """Escape a text of several lines: an indented line, as lists in messages have them, begins a line here too."""
    return "\n  ".join(map(printable, text.split("\n  ")))


def printable_json(text: str) -> str:
    r"""Escape in JSON what `printable` escapes elsewhere, as `\u202e`: it reads as the same value.

    Args:
        text: JSON without line breaks.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _unit_escapes(char) for char in text)


def _unit_escapes(char: str) -> str:
    """The escapes of a character's one or two UTF-16 units."""
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[place : place + 2], 'big'):04x}" for place in range(0, len(units), 2))
