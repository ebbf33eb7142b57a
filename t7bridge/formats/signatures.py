"""Identification of a file by its first and last bytes, in supported and other formats."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .table import FORMATS, Signature

if TYPE_CHECKING:
    from ..io.source import ByteSource

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


def refuse_two(source: ByteSource, start: int = 0, title: str = "") -> None:
    """Refuse a file that is another one for readers that look elsewhere.

    Readers of zip archives begin at the end of a file, and `torch.load` tries to read any file as a tar archive.

    Args:
        source: the file, which begins as neither.
        start: first byte that is not known to belong to the file's value.
        title: description of the format by its first bytes.

    Raises:
        CorruptError: it is both.
    """
    what = "a tar archive" if is_tar(source.read(0, HEAD_BYTES)) else ""
    if ends_as_zip(source, start):
        what = "a zip archive by its last"
    if what:
        from ..errors import CorruptError

        raise CorruptError(
            f"is {title or 'a model'} by its first bytes, and {what}",
            file=source.name,
            offset=start,
            expected="one file",
            found="two files in one; readers disagree about which",
            hint="Do not trust it: such files are made to deceive.",
        )


def is_tar(block: bytes) -> bool:
    """Return whether Python's `tarfile`, and so `torch.load`, reads the first 512 bytes of a file as a header.

    Source: CPython 3.11 `Lib/tarfile.py` `TarInfo.frombuf`; its signature is not checked there.
    """
    if len(block) < HEAD_BYTES:
        return False
    rest = block[:148] + block[156:]
    total = 256 + sum(rest)
    signed = total - 256 * sum(byte > 127 for byte in rest)
    if _tar_number(block[148:156]) not in (total, signed):
        return False
    fields = ((100, 108), (108, 116), (116, 124), (124, 136), (136, 148), (329, 337), (337, 345))
    return all(_tar_number(block[first:stop]) is not None for first, stop in fields)


def _tar_number(field: bytes) -> int | None:
    if field[0] in (0o200, 0o377):
        number = int.from_bytes(field[1:], "big")
        return number if field[0] == 0o200 else number - 256 ** (len(field) - 1)
    try:
        return int(field.partition(b"\0")[0].decode("ascii").strip() or "0", 8)
    except ValueError:
        return None


def ends_as_zip(source: ByteSource, start: int = 0) -> bool:
    """Return whether a file is a zip archive for readers that begin at the end.

    Args:
        source: the file.
        start: first byte that may belong to the archive's directory.
    """
    base = max(start, source.size - ZIP_TAIL_BYTES)
    tail = source.read(base, ZIP_TAIL_BYTES)
    place = tail.rfind(b"PK\x05\x06")
    while place >= 0:
        record = tail[place : place + 22]
        if len(record) == 22:
            ends = place + 22 + int.from_bytes(record[20:], "little") == len(tail)
            size, offset = int.from_bytes(record[12:16], "little"), int.from_bytes(record[16:20], "little")
            directories = {base + place - size, offset} - {base + place}
            if any(each >= 0 and source.read(each, 4) == b"PK\x01\x02" for each in directories):
                return True
            if tail[max(0, place - 20) : place][:4] == b"PK\x06\x07" or (ends and base + place < size):
                return True
        place = tail.rfind(b"PK\x05\x06", 0, place)
    return False
