"""Checksums: CRC-32 by the fastest implementation installed, with a rule to combine parts, and SHA-256."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform: the same results, slower
    from zlib import crc32

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["combine", "crc32", "digest", "sha256"]

_POLYNOMIAL = 0xEDB88320
"""The polynomial of CRC-32 (ISO 3309), lowest power first."""


def combine(first: int, second: int, length: int) -> int:
    """Return the CRC-32 of two consecutive runs of bytes from those of each.

    Args:
        first: CRC-32 of the first run.
        second: CRC-32 of the second.
        length: bytes of the second.
    """
    return _product(_shift(length), first) ^ second


def _product(first: int, second: int) -> int:
    """Return the product of two polynomials over GF(2), modulo that of CRC-32."""
    product = 0
    bit = 1 << 31
    while bit:
        if first & bit:
            product ^= second
        second = (second >> 1) ^ (_POLYNOMIAL if second & 1 else 0)
        bit >>= 1
    return product


@cache
def _shift(length: int) -> int:
    """Return x to the power of this many bytes: the factor of a CRC-32 that they follow."""
    power, square = 1 << 31, 1 << 23  # 1 and x to the eighth
    while length:
        if length & 1:
            power = _product(square, power)
        square = _product(square, square)
        length >>= 1
    return power


def sha256(data: bytes = b"") -> _Hash:
    """Return a SHA-256 of `data` that can be updated."""
    import hashlib  # here, as loading it takes longer than converting most files

    return hashlib.sha256(data)


def digest(path: str | os.PathLike[str]) -> tuple[str, int]:
    """Return SHA-256 in hexadecimal and size in bytes of a file; of a folder, of its files by name.

    Raises:
        OSError: it cannot be read.
    """
    found, size = sha256(), 0
    if os.path.isdir(path):
        for name in sorted(os.listdir(path)):
            inner, count = digest(os.path.join(path, name))
            found.update(f"{name}\0{inner}\n".encode("utf-8", "surrogateescape"))
            size += count
        return found.hexdigest(), size
    with open(path, "rb", buffering=0) as file:
        # A small first piece: most files are small, and a large buffer would be allocated each time.
        while piece := file.read(1 << 20 if size else 1 << 16):
            found.update(piece)
            size += len(piece)
    return found.hexdigest(), size
