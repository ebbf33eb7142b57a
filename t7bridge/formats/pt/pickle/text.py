"""Numbers and strings of protocol 0: lines of text, accepted only in the form that Python writes.

CPython reads more forms than these, sometimes as a value other than the text suggests: `010` is 8, and a zero byte ends
a number. Source: CPython 3.11 `Modules/_pickle.c` `load_int`, `load_long`, `load_float`, `load_string`, `load_put`.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable
from typing import Any

from ....errors import CorruptError
from . import opcodes

_INT = re.compile(rb"0|-?[1-9]\d*")
_LONG = re.compile(rb"(0|-?[1-9]\d*)L?")
_FLOAT = re.compile(rb"-?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|inf|nan)")
_INDEX = re.compile(rb"\d{1,18}")
_STRING = re.compile(rb"""(['"])((?:[^\\]|\\(?:[\\'"abfnrtv]|[0-3]?[0-7]{1,2}|x[0-9a-fA-F]{2}))*)\1""", re.DOTALL)
_BOOLEANS = {b"00": False, b"01": True}


def _match(form: re.Pattern[bytes], line: bytes) -> re.Match[bytes]:
    """Match a whole line.

    Raises:
        CorruptError: the line has another form.
    """
    match = form.fullmatch(line)
    if match is None:
        raise CorruptError("a number or string of the pickle is not as Python writes it", found=f"{line[:60]!r}")
    return match


def parse_int(line: bytes) -> int:
    """Parse the argument of INT: a truth value, or a decimal number."""
    return _BOOLEANS[line] if line in _BOOLEANS else int(_match(_INT, line)[0])


def parse_long(line: bytes) -> int:
    """Parse the argument of LONG: a decimal number, with an L if Python 2 wrote it."""
    return int(_match(_LONG, line)[1])


def parse_float(line: bytes) -> float:
    """Parse the argument of FLOAT."""
    value = float(_match(_FLOAT, line)[0])
    if math.isinf(value) and not line.endswith(b"inf"):
        raise CorruptError("a number of the pickle is beyond a double", found=f"{line[:60]!r}")
    return value


def parse_index(line: bytes) -> int:
    """Parse the argument of PUT and GET: an index of the memo."""
    return int(_match(_INDEX, line)[0])


def parse_string(line: bytes) -> str | bytes:
    """Parse the argument of STRING: a quoted string of Python 2."""
    return python2_text(codecs.escape_decode(_match(_STRING, line)[2])[0])


LINES: dict[bytes, Callable[[bytes], Any]] = {
    opcodes.INT: parse_int,
    opcodes.LONG: parse_long,
    opcodes.FLOAT: parse_float,
    opcodes.STRING: parse_string,
}
"""The parser for each opcode whose argument is a number or string on a line."""


def python2_text(data: bytes) -> str | bytes:
    """Decode a `str` of Python 2: text if it is valid UTF-8, as in `torch.load`, else bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
