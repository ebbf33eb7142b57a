"""Decimal text of many numbers, one by one: `decimals` for where there is no numpy."""

from __future__ import annotations

from typing import Any

from ..data import np

HALF_NAN = 0x7FFF
"""The bits of the one nan that Torch makes when it turns numbers into halves."""


def parse_numbers(text: bytes, native: Any) -> Any:
    """Return the numbers of a text, separated by white space, as elements of a numpy type; as `decimals` does.

    Raises:
        ValueError: the text has something else.
        OverflowError: an integer is beyond the type.
    """
    if native.kind != "f":
        return np.array([int(token) for token in text.split()], native)
    floats = np.array([float(token) for token in text.split()], "f8").astype(native, copy=False)
    if native.itemsize == 2:
        floats.view("u2")[np.isnan(floats)] = HALF_NAN
    return floats


def count_odd_nans(array: Any) -> int:
    """Count the NaNs whose bits are not the canonical ones, as `decimals` does; the sign counts for halves only."""
    bits = array.view(f"u{array.itemsize}")
    if array.itemsize == 2:
        # A NaN has more than the exponent of all ones, 0x7C00. Torch's halves have one without sign only.
        return sum(pattern & 0x7FFF > 0x7C00 and pattern != HALF_NAN for pattern in bits.tolist())
    canonical = np.array(np.nan, array.dtype).view(bits.dtype).item()
    sign = 1 << (8 * array.itemsize - 1)
    pairs = zip(array.tolist(), bits.tolist())
    return sum(number != number and pattern & ~sign != canonical for number, pattern in pairs)


def format_floats(array: Any, digits: int) -> None:
    """Return nothing: the caller writes them by Python's own conversion."""
    return


def format_integers(array: Any) -> bytes:
    """Return integers as text, separated by single spaces."""
    return " ".join(map(str, array.tolist())).encode()
