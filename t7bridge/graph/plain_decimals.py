"""Decimal text of many numbers, one by one: `decimals` for where there is no numpy."""

from __future__ import annotations

from typing import Any

from ..data import np

HALF_NAN = 0x7FFF
"""The bits of the one nan that Torch makes when it turns numbers into halves."""


def parse_numbers(text: bytes, native: Any) -> Any:
    """See `decimals.parse_numbers`."""
    if native.kind != "f":
        return np.array([int(token) for token in text.split()], native)
    floats = np.array([float(token) for token in text.split()], "f8").astype(native, copy=False)
    if native.itemsize == 2:
        floats.view("u2")[np.isnan(floats)] = HALF_NAN
    return floats


def count_odd_nans(array: Any) -> int:
    """See `decimals.count_odd_nans`."""
    bits = array.view(f"u{array.itemsize}")
    if array.itemsize == 2:
        return sum(pattern & 0x7FFF > 0x7C00 and pattern != HALF_NAN for pattern in bits.tolist())
    canonical = np.array(np.nan, array.dtype).view(bits.dtype).item()
    sign = 1 << (8 * array.itemsize - 1)
    pairs = zip(array.tolist(), bits.tolist())
    return sum(number != number and pattern & ~sign != canonical for number, pattern in pairs)


def format_floats(array: Any, digits: int) -> None:
    """Return nothing: the caller writes them by Python's own conversion."""
    return


def format_integers(array: Any) -> bytes:
    """See `decimals.format_integers`."""
    return " ".join(map(str, array.tolist())).encode()
