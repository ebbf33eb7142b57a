"""The opcodes of pickles by name, shared by `unpickler` and `pickler`; numbers and strings of protocol 0.

These are lines of text, accepted only in the form that Python writes. CPython reads more forms, sometimes as a value
other than the text suggests: `010` is 8, and a zero byte ends a number.

Source: CPython 3.11 `Lib/pickle.py`, protocols 0 to 5; `Modules/_pickle.c` `load_int`, `load_long`, `load_float`,
`load_string`, `load_put`.
"""

from __future__ import annotations

import codecs
import math
import re
from typing import Any

from ....errors import CorruptError

MARK = b"("
STOP = b"."
POP = b"0"
POP_MARK = b"1"
DUP = b"2"
FLOAT = b"F"
INT = b"I"
BININT = b"J"
BININT1 = b"K"
LONG = b"L"
BININT2 = b"M"
NONE = b"N"
PERSID = b"P"
BINPERSID = b"Q"
REDUCE = b"R"
STRING = b"S"
BINSTRING = b"T"
SHORT_BINSTRING = b"U"
UNICODE = b"V"
BINUNICODE = b"X"
APPEND = b"a"
BUILD = b"b"
GLOBAL = b"c"
DICT = b"d"
EMPTY_DICT = b"}"
APPENDS = b"e"
GET = b"g"
BINGET = b"h"
INST = b"i"
LONG_BINGET = b"j"
LIST = b"l"
EMPTY_LIST = b"]"
OBJ = b"o"
PUT = b"p"
BINPUT = b"q"
LONG_BINPUT = b"r"
SETITEM = b"s"
TUPLE = b"t"
EMPTY_TUPLE = b")"
SETITEMS = b"u"
BINFLOAT = b"G"
PROTO = b"\x80"
NEWOBJ = b"\x81"
EXT1 = b"\x82"
EXT2 = b"\x83"
EXT4 = b"\x84"
TUPLE1 = b"\x85"
TUPLE2 = b"\x86"
TUPLE3 = b"\x87"
NEWTRUE = b"\x88"
NEWFALSE = b"\x89"
LONG1 = b"\x8a"
LONG4 = b"\x8b"
BINBYTES = b"B"
SHORT_BINBYTES = b"C"
SHORT_BINUNICODE = b"\x8c"
BINUNICODE8 = b"\x8d"
BINBYTES8 = b"\x8e"
EMPTY_SET = b"\x8f"
ADDITEMS = b"\x90"
FROZENSET = b"\x91"
NEWOBJ_EX = b"\x92"
STACK_GLOBAL = b"\x93"
MEMOIZE = b"\x94"
FRAME = b"\x95"
BYTEARRAY8 = b"\x96"
NEXT_BUFFER = b"\x97"
READONLY_BUFFER = b"\x98"

HIGHEST_PROTOCOL = 5

_LINE_FORMS = {
    INT: rb"0|-?[1-9]\d*",
    LONG: rb"(?:0|-?[1-9]\d*)L?",
    FLOAT: rb"-?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|inf|nan)",
    PUT: rb"\d{1,18}",
    GET: rb"\d{1,18}",
    STRING: rb"""(['"])((?:[^\\]|\\(?:[\\'"abfnrtv]|[0-3]?[0-7]{1,2}|x[0-9a-fA-F]{2}))*)\1""",
}
"""The line of text after each opcode, as Python writes it."""
_BOOLEANS = {b"00": False, b"01": True}
"""The lines with which INT stands for a truth value: no number begins with 0."""


def parse_line(opcode: bytes, line: bytes) -> Any:
    """Parse the argument of INT (a truth value or a number), LONG, FLOAT, PUT, GET or STRING.

    Args:
        opcode: that the line follows.
        line: without its line feed.

    Raises:
        CorruptError: the line has another form, or its number is not a double.
    """
    if opcode == INT and line in _BOOLEANS:
        return _BOOLEANS[line]
    match = re.fullmatch(_LINE_FORMS[opcode], line, re.DOTALL)
    if match is None:
        raise CorruptError("a number or string of the pickle is not as Python writes it", found=f"{line[:60]!r}")
    if opcode == STRING:
        _quote, content = match.groups()
        data, _ = codecs.escape_decode(content)
        return python2_text(data)
    if opcode != FLOAT:
        return int(line.rstrip(b"L"))  # the L after a LONG; lines of the others have none
    value = float(line)
    if math.isinf(value) and not line.endswith(b"inf"):  # Python rounds larger numbers to infinity
        raise CorruptError("a number of the pickle is beyond a double", found=f"{line[:60]!r}")
    return value


def python2_text(data: bytes) -> Any:
    """Decode a `str` of Python 2: text if it is valid UTF-8, as in `torch.load`, else bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
