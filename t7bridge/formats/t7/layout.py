"""The tables of Lua Torch's serialization: type tags, encodings and constants shared by reader and writer.

The whole layout is described in `docs/format-t7.md`. Source: torch7 814ea4a, `File.lua`, `lib/TH/THDiskFile.c`,
`generic/Tensor.c`, `generic/Storage.c`.
"""

from __future__ import annotations

import re

from attrs import field, validators

from ...data import define

NIL, NUMBER, STRING, TABLE, TORCH, BOOLEAN = 0, 1, 2, 3, 4, 5
FUNCTION_WITHOUT_INDEX, LEGACY_FUNCTION, FUNCTION = 6, 7, 8

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

VERSION_PATTERN = re.compile(rb"V (.*)\Z", re.DOTALL)
"""The string before a class name; a string that does not match is the class name itself, without a version."""

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
    digits: int = field(default=17, validator=validators.in_((6, 17)))
    numbers: tuple[int, ...] = field(default=(), repr=False)
    vintage: str = field(default="", validator=validators.in_(VINTAGES))
    headless: bool = False
    unowned: tuple[int, ...] = field(default=(), repr=False)


BINARY_LAYOUTS = tuple(
    T7Layout(byte_order=byte_order, long_size=long_size) for byte_order in ("little", "big") for long_size in (8, 4)
)
"""Every binary layout, the most likely first."""
