"""What a file is, by its first and last bytes and by its name: the one table of formats met as `.t7` or `.pt`."""

from __future__ import annotations

import re

from ..data import define

SUFFIXES = {
    ".t7": "t7", ".t7b": "t7", ".net": "t7", ".ascii": "t7",
    ".pt": "pt", ".pth": "pt", ".ckpt": "pt", ".bin": "pt",
}  # fmt: skip
"""The format that a target's suffix asks for."""
PT_KINDS = ("zip", "pickle", "tar")
"""The kinds of signatures that a `.pt` may have."""
HEAD_BYTES = 512
ZIP_TAIL_BYTES = 22 + 0xFFFF
"""What an archive has behind its directory, at most: the end record and a comment."""


@define(frozen=True)
class Signature:
    """A format known by its first bytes.

    Attributes:
        kind: short name: `zip`, `pickle`, `tar`; `t7` is decided by its reader.
        title: what it is, for people.
        pattern: an expression that matches the first bytes; `.` is any byte.
        hint: what to do with such a file.
    """

    kind: str
    title: str
    pattern: bytes
    hint: str = ""


def _starts(text: bytes) -> bytes:
    return re.escape(text)


# The order matters where one pattern is part of another.
SIGNATURES: tuple[Signature, ...] = (
    Signature("zip", "a zip archive, as PyTorch 1.6 and newer write", _starts(b"PK\x03\x04")),
    Signature("zip", "a zip archive without members", _starts(b"PK\x05\x06")),
    Signature("pickle", "a Python pickle, as PyTorch 0.2 to 1.5 write", rb"\x80[\x02-\x05]"),
    Signature(
        "pickle",
        "a Python pickle of an old protocol",
        rb"[(\]}]{0,9}(?:c[A-Za-z_][\w.]*\n[A-Za-z_]\w*\n|[dl]p\d+\n)",
    ),
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
    Signature("hdf5", "an HDF5 file, as Keras and torch-hdf5 write", _starts(b"\x89HDF\r\n\x1a\n")),
    Signature("npy", "a numpy array file", _starts(b"\x93NUMPY")),
    Signature("lua", "Lua bytecode", _starts(b"\x1bL")),
    Signature(
        "html",
        "an HTML page, as a failed download leaves behind",
        rb"\s*(?i:<!doctype html|<html|<head|<\?xml)",
        "Download the file again; look at the page in a browser to see why.",
    ),
    Signature("json", "JSON text", rb"\s*[{\[]\s*(?:[\"{\[\]}]|$)"),
    # A header of at most 100 MB. One of a few bytes, or of that in the other byte order, is the tag of a `.t7` whose
    # value is short, and behind which its record begins.
    Signature(
        "safetensors",
        "a safetensors file",
        rb"(?![\x00-\x0f]\x00{7}|\x00{3}[\x00-\x0f]\x00{4}).{3}[\x00-\x07]\x00{4}\{\s*\"",
    ),
    Signature("tar", "a tar archive", rb".{257}ustar"),
)


# The groups are numbered as the table is, and the first alternative that matches is taken.
_any = re.compile(b"|".join(b"(%b)" % signature.pattern for signature in SIGNATURES), re.DOTALL)


def identify(head: bytes) -> Signature | None:
    """The format of a file by its first `HEAD_BYTES` bytes; `None` for everything else, `.t7` included."""
    found = _any.match(head)
    return SIGNATURES[found.lastindex - 1] if found and found.lastindex else None


def ends_as_zip(tail: bytes) -> bool:
    """Whether a file whose last `ZIP_TAIL_BYTES` bytes are given is a zip archive to readers that begin at the end."""
    place = tail.rfind(b"PK\x05\x06")
    while place >= 0:
        record = tail[place : place + 22]
        if len(record) == 22 and place + 22 + int.from_bytes(record[20:], "little") == len(tail):
            directory = place - int.from_bytes(record[12:16], "little")
            return tail[directory : directory + 4] == b"PK\x01\x02" or (directory < 0 and any(record[10:12]))
        place = tail.rfind(b"PK\x05\x06", 0, place)
    return False
