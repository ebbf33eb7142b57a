"""Identification of a file by its first and last bytes, in supported and other formats."""

from __future__ import annotations

import re

from .table import FORMATS, Signature

HEAD_BYTES = 512
ZIP_TAIL_BYTES = 22 + 0xFFFF
"""Maximum number of bytes after an archive's directory: the end record and a comment."""


def _starts(text: bytes) -> bytes:
    return re.escape(text)


_OTHERS = (
    Signature(
        "lfs",
        "a Git LFS pointer, not the file itself",
        _starts(b"version https://git-lfs"),
        "Fetch the file with `git lfs pull`.",
    ),
    Signature("gzip", "gzip-compressed", _starts(b"\x1f\x8b"), "Unpack it with gunzip or tar -xzf first."),
    Signature("bzip2", "bzip2-compressed", _starts(b"BZh"), "Unpack it with bunzip2 or tar -xjf first."),
    Signature("xz", "xz-compressed", _starts(b"\xfd7zXZ\x00"), "Unpack it with unxz or tar -xJf first."),
    Signature("7z", "a 7-Zip archive", _starts(b"7z\xbc\xaf\x27\x1c"), "Unpack it first."),
    Signature("rar", "a RAR archive", _starts(b"Rar!"), "Unpack it first."),
    Signature("npy", "a numpy array file", _starts(b"\x93NUMPY"), "Save it with numpy.savez, as a .npz."),
    Signature("lua", "Lua bytecode", _starts(b"\x1bL")),
    Signature(
        "html",
        "an HTML page, as a failed download leaves behind",
        rb"\s*(?i:<!doctype html|<html|<head|<\?xml)",
        "Download the file again; look at the page in a browser to see why.",
    ),
    Signature("json", "JSON text", rb"\s*[{\[]\s*(?:[\"{\[\]}]|$)"),
)
"""Files that are not models, with a hint for each."""

# The order matters if one pattern is part of another; `sorted` keeps it among equals.
SIGNATURES: tuple[Signature, ...] = tuple(
    sorted((*(each for spec in reversed(FORMATS.values()) for each in spec.signatures), *_OTHERS), key=lambda s: s.late)
)
_any = re.compile(b"|".join(b"(%b)" % signature.pattern for signature in SIGNATURES), re.DOTALL)


def identify(head: bytes) -> Signature | None:
    """Return the kind of a file by its first `HEAD_BYTES` bytes; `None` for anything else, including `.t7`."""
    found = _any.match(head)  # groups are numbered like the table, and the first matching alternative wins
    return SIGNATURES[found.lastindex - 1] if found and found.lastindex else None


def ends_as_zip(tail: bytes) -> bool:
    """Return whether the last `ZIP_TAIL_BYTES` bytes of a file end a zip archive, for readers that begin at the end."""
    place = tail.rfind(b"PK\x05\x06")
    while place >= 0:
        record = tail[place : place + 22]
        if len(record) == 22 and place + 22 + int.from_bytes(record[20:], "little") == len(tail):
            directory = place - int.from_bytes(record[12:16], "little")
            return tail[directory : directory + 4] == b"PK\x01\x02" or (directory < 0 and any(record[10:12]))
        place = tail.rfind(b"PK\x05\x06", 0, place)
    return False
