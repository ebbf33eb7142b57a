"""Decimal text of many numbers at once: parse and format whole arrays as C's `strtod` and `printf` do.

Numbers whose result is not certain, a few in a thousand, go through Python's own conversions, which are exact.

Imports numpy, and is imported on first use. Source: W. Clinger, "How to read floating point numbers accurately" (1990),
for exact powers of ten; `printf` of C17 7.21.6.1 for `%g`.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from ..text import number_text

_FLOAT_BYTES = b"0123456789+-.eE "
_INTEGER_BYTES = b"0123456789- \n"
"""The characters of the texts that are read by the fast ways."""
_TO_INTEGERS = bytes.maketrans(b"eE", b"  ")
"""Makes two words of a number with an exponent."""
_POINT, _SPACE, _MINUS, _PLUS, _SMALL_E, _ZERO, _NINE = b". -+e09"
_EXACT_INTEGERS = 2**53
"""Up to here each integer is a double."""
_LARGE = 10**18
"""From here on an integer of a text may be one that does not fit 64 bits, which numpy makes the largest there is."""
_LARGEST_POWER = 22
_POWERS = 10.0 ** np.arange(_LARGEST_POWER + 1)
"""The powers of ten that are exact as doubles: 5**22 has 52 bits."""
_EXTENDED = np.finfo(np.longdouble).nmant == 63 and np.dtype(np.longdouble).itemsize == 16
"""`longdouble` is the 80-bit type of x86, whose 64 bits of mantissa hold any 64-bit integer."""
_LARGEST_WIDE_POWER = 27
_WIDE_POWERS = np.cumprod(np.array([1] + [10] * _LARGEST_WIDE_POWER, np.longdouble))
"""The powers of ten that are exact in 64 bits of mantissa: 5**27 has 63 bits."""
_BELOW_DOUBLE = 0x7FF
"""The bits of a 64-bit mantissa that a double, which has 53, does not have."""
_TIE = 0x400
"""These bits where a number lies between two doubles."""
_TEXT_AT_ONCE = 1 << 17
"""Bytes of text read at once, so that all intermediate arrays stay in the processor's cache."""
_ONE_UNSURE_IN = 4
"""One number in this many may need Python's own conversion, so that the fast path pays off."""


HALF_NAN = 0x7FFF
"""The bits of the one nan that Torch makes when it turns numbers into halves."""


# From text


def parse_numbers(text: bytes, native: np.dtype[Any]) -> np.ndarray:
    """Return the numbers of a text, separated by white space, as elements of a numpy type.

    float32 and float16 are rounded from double. For the at most 9 digits that Torch writes of them, this is the same as
    to round the text to the type itself.

    `1-2` may be two numbers, as numpy reads it: callers that read a whole storage count them.

    Args:
        text: decimal numbers.
        native: the type, in the machine's byte order.

    Raises:
        ValueError: the text has something else.
        OverflowError: an integer is beyond the type.
    """
    if native.kind == "f":
        # From the fastest way to the one that reads everything.
        array = parse_floats(text)
        if array is None:
            array = _parse_by_numpy(text)
        if array is None:
            array = np.array([float(token) for token in text.split()], "f8")
        return _rounded(array, native)
    array = parse_integers(text)
    bounds = np.iinfo(native)
    if array is not None:
        is_within = not array.size or (array.min() >= bounds.min and array.max() <= bounds.max)
        if is_within:
            return array.astype(native, copy=False)
    numbers = [int(token) for token in text.split()]
    beyond = [number for number in numbers if not bounds.min <= number <= bounds.max]
    if beyond:  # numpy before 1.24 would wrap them
        raise OverflowError(f"{beyond[0]} is out of bounds for {native}")
    return np.array(numbers, native)


def _rounded(array: np.ndarray, native: np.dtype[Any]) -> np.ndarray:
    """Return the doubles of a text as floats of a storage; what is beyond the type is infinite, as C's scanf has it.

    Every NaN of a half is the one that Torch makes. Source: torch7 lib/TH/THHalf.c `TH_float2halfbits`.

    Args:
        array: the doubles.
        native: the type of the floats, in the machine's byte order.
    """
    with np.errstate(over="ignore"):
        floats = array.astype(native, copy=False)
    if native.itemsize == 2:
        floats.view("u2")[np.isnan(floats)] = HALF_NAN
    return floats


def _parse_by_numpy(text: bytes) -> np.ndarray | None:
    """Parse floats that are very large, small or long, or on several lines; return `None` for other text."""
    return None if text.translate(None, _FLOAT_BYTES + b"\n") else _from_text(text, "f8")


def parse_integers(text: bytes) -> np.ndarray | None:
    """Return the 64-bit integers of a text with single spaces; `None` for any other text.

    numpy reads `1-2` as two numbers: callers that read a whole storage count them.
    """
    if text.translate(None, _INTEGER_BYTES):
        return None
    integers = _from_text(text, "i8")
    if integers is None or not integers.size:
        return integers
    # Values beyond 64 bits saturate.
    limits = np.iinfo("i8")
    if integers.max() == limits.max or integers.min() == limits.min:
        return None
    return integers


def _from_text(text: bytes, dtype: str) -> np.ndarray | None:
    """Return the numbers of a text as numpy reads them; `None` where it has something else."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy stops at the first non-number, with a warning
        try:
            return np.fromstring(text, dtype, sep=" ")
        except (ValueError, DeprecationWarning):
            return None


def parse_floats(text: bytes) -> np.ndarray | None:
    """Return the doubles of a text with single spaces; `None` for any other text.

    Digits are read as integers, much faster than as doubles, and divided by an exact power of ten.
    """
    text = text.strip()
    if not text or text.translate(None, _FLOAT_BYTES):  # other characters are left
        return None
    parts: list[np.ndarray] = []
    start = 0
    while start < len(text):
        end = text.find(b" ", start + _TEXT_AT_ONCE)
        end = len(text) if end < 0 else end
        part = _parse_floats(text[start:end])
        if part is None:
            return None
        parts.append(part)
        start = end + 1
    return np.concatenate(parts)


def _parse_floats(text: bytes) -> np.ndarray | None:
    """Return the doubles of a part of the text of `parse_floats`, which has checked the characters; `None` as there."""
    # `-1.25e-3 7` are three words, read as the integers -125, -3 and 7: points are left out, and exponents are words.
    has_exponents = b"e" in text or b"E" in text
    words = text.translate(_TO_INTEGERS, b".") if has_exponents else text.replace(b".", b"")
    integers = _from_text(words, "i8")
    data = np.frombuffer(text, "u1")
    is_break = data == _SPACE
    if has_exponents:
        is_break |= (data | 0x20) == _SMALL_E  # the bit that makes small letters of capitals
    breaks = np.flatnonzero(is_break)
    count = len(breaks) + 1
    if integers is None or len(integers) != count:
        return None
    # Where each word starts and ends in the text.
    starts = np.concatenate([[0], breaks + 1])
    ends = np.concatenate([breaks, [len(data)]])
    decimals = _decimals(data, starts, ends)
    if decimals is None:
        return None
    if not has_exponents:
        return _scaled(integers, -decimals, text, starts, ends)
    # A word behind an `e`, not a space, is the exponent of the word before it.
    is_exponent = np.zeros(count, bool)
    is_exponent[1:] = data[breaks] != _SPACE
    return _scaled_by_exponents(integers, decimals, is_exponent, text, starts, ends)


def _scaled_by_exponents(
    integers: np.ndarray,
    decimals: np.ndarray,
    is_exponent: np.ndarray,
    text: bytes,
    starts: np.ndarray,
    ends: np.ndarray,
) -> np.ndarray | None:
    """Return the numbers of words of which some are the exponents of the words before them.

    Args:
        integers: the digits of each word, with its sign.
        decimals: how many of these are behind a point.
        is_exponent: whether a word is an exponent.
        text: as for `_scaled`.
        starts: of each word, positions in the text.
        ends: of each word, behind it.

    Returns:
        `None` where an exponent is not one of a double, or too many numbers are not certain.
    """
    exponents = integers[is_exponent]
    has_two_exponents = (is_exponent[1:] & is_exponent[:-1]).any()
    # Doubles have exponents below 400; larger ones could overflow the sums.
    if has_two_exponents or decimals[is_exponent].any() or (abs(exponents) > 400).any():
        return None
    # From words to numbers: each begins with the word that is not an exponent.
    is_number = ~is_exponent
    numbers_of_words = np.cumsum(is_number) - 1
    powers = -decimals[is_number]
    powers[numbers_of_words[is_exponent]] += exponents
    is_last_word = np.append(is_number[1:], True)
    return _scaled(integers[is_number], powers, text, starts[is_number], ends[is_last_word])


def _have_digits_behind(data: np.ndarray, points: np.ndarray) -> bool:
    """Return whether a digit follows each of the points, at least one, at positions in ascending order."""
    if points[-1] == len(data) - 1:
        return False
    behind = data[points + 1]
    return not ((behind < _ZERO) | (behind > _NINE)).any()


def _decimals(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """Return the number of decimals of each word; `None` where a word has several points, or is not a number.

    Args:
        data: the characters.
        starts: of each word, positions in these.
        ends: of each word, behind it.
    """
    first = data[starts]
    is_signed = (first == _MINUS) | (first == _PLUS)
    if starts[-1] + is_signed[-1] == len(data):  # the last word is a sign alone
        return None
    first = data[starts + is_signed]
    if ((first < _POINT) | (first > _NINE)).any():  # numpy reads a lone sign as 0
        return None
    points = np.flatnonzero(data == _POINT)
    if points.size and not _have_digits_behind(data, points):
        return None
    has_each_one_point = len(points) == len(starts) and (points >= starts).all() and (points < ends).all()
    if has_each_one_point:
        return ends - points - 1
    words = np.searchsorted(ends, points)  # the word of each point
    if len(points) > 1 and (words[1:] == words[:-1]).any():
        return None
    decimals = np.zeros(len(starts), "i8")
    decimals[words] = ends[words] - points - 1
    return decimals


def _scaled(
    integers: np.ndarray, powers: np.ndarray, text: bytes, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray | None:
    """Return each integer times ten to its power, rounded once; `None` where too many are not certain.

    Args:
        integers: the digits of each number, with its sign.
        powers: of ten, for each.
        text: the text, for Python's conversion of numbers that are not certain.
        starts: of each number, positions in the text.
        ends: of each number, behind it.
    """
    # An exact integer times or divided by an exact power of ten is rounded once.
    is_sure = (integers <= _EXACT_INTEGERS) & (integers >= -_EXACT_INTEGERS)
    is_sure &= (powers >= -_LARGEST_POWER) & (powers <= _LARGEST_POWER)
    unsure = np.flatnonzero(~is_sure)
    if _EXTENDED and len(unsure) * 2 > len(integers):
        # With 64 bits of mantissa all at once, which is faster than to pick out most of them.
        values, unsure = _scale_wide(integers, powers)
    else:
        values = _times(integers.astype("f8"), powers, _POWERS)
        if _EXTENDED and len(unsure):
            values[unsure], still_unsure = _scale_wide(integers[unsure], powers[unsure])
            unsure = unsure[still_unsure]
    if len(unsure):
        if len(unsure) * _ONE_UNSURE_IN > len(values):
            return None
        for place in unsure.tolist():
            values[place] = float(text[starts[place] : ends[place]])
    # Integers have no -0: the sign is in the text.
    zeros = np.flatnonzero(integers == 0)
    if zeros.size:
        values[zeros] = np.where(np.frombuffer(text, "u1")[starts[zeros]] == _MINUS, -0.0, 0.0)
    return values


def _times(numbers: np.ndarray, powers: np.ndarray, tens: np.ndarray) -> Any:
    """Return numbers times ten to their powers.

    Args:
        numbers: floats.
        powers: for each; beyond the table, either way, the result is wrong.
        tens: the table: the powers of ten from 0 that are exact.
    """
    factors = tens[np.minimum(np.abs(powers), len(tens) - 1)]
    if powers.max() <= 0:  # the usual case, in half the time
        return numbers / factors
    return np.where(powers > 0, numbers * factors, numbers / factors)


def _scale_wide(integers: np.ndarray, powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return integers times ten to their powers, with 64 bits of mantissa; and where rounding to 53 is not certain.

    Returns:
        The doubles, and the positions of those that may be wrong.
    """
    wide = _times(integers.astype(np.longdouble), powers, _WIDE_POWERS)
    mantissas = wide.view("u8")[::2]  # the first 8 of 16 bytes
    is_tie = mantissas & _BELOW_DOUBLE == _TIE
    is_large = (integers >= _LARGE) | (integers <= -_LARGE)  # may be saturated
    is_beyond_table = (powers < -_LARGEST_WIDE_POWER) | (powers > _LARGEST_WIDE_POWER)
    return wide.astype("f8"), np.flatnonzero(is_tie | is_large | is_beyond_table)


# To text


def count_odd_nans(array: np.ndarray) -> int:
    """Count the NaNs whose bits are not the canonical ones; the sign counts for halves only.

    Args:
        array: floating point elements.
    """
    nans = array[np.isnan(array)]
    bits = f"u{array.itemsize}"
    if array.itemsize == 2:  # Torch's halves have one nan without sign only
        return int(np.count_nonzero(nans.view(bits) != HALF_NAN))
    canonical = np.array(np.nan, array.dtype).view(bits)
    return int(np.count_nonzero(np.copysign(nans, 1).view(bits) != canonical))


def _digit_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits of numbers as blocks of 4 bytes, in which a digit that is not printed is a zero byte.

    Returns:
        Two tables of 20 000 blocks: each has the numbers below 10 000 with all four digits, and behind these once more,
        in the first table without leading zeros, in the second without trailing ones.
    """
    numbers = np.arange(10_000)
    digits = np.stack([numbers // 10**place % 10 for place in (3, 2, 1, 0)], axis=1)
    whole = (digits + _ZERO).astype("u1")
    leading = np.logical_or.accumulate(digits != 0, axis=1)
    trailing = np.logical_or.accumulate(digits[:, ::-1] != 0, axis=1)[:, ::-1]
    return (
        np.concatenate([whole, whole * leading]).view("u4").ravel(),
        np.concatenate([whole, whole * trailing]).view("u4").ravel(),
    )


_LEADING, _TRAILING = _digit_tables()
_BLOCK_NUMBERS = 10_000
"""How many numbers the four digits of a block have; from here on, the tables are without zeros."""
_AT_ONCE = 1 << 13
"""Numbers formatted at once, so that all intermediate arrays stay in the processor's cache."""


def _block(text: bytes) -> int:
    """Return up to four characters as one 4-byte integer, zero bytes before them."""
    return int(np.frombuffer(text.rjust(4, b"\0"), "u4")[0])


# By whether a number is negative.
_SIGNS = np.array([_block(b""), _block(b"-")], "u4")
# Nothing; or the point, with so many zeros behind it as the number has before its first digit.
_POINTS = np.array([_block(b""), *(_block(b"." + b"0" * zeros) for zeros in range(4))], "u4")
_LARGEST_EXPONENT = 99
_EXPONENTS = np.array([_block(b"e%+03d" % power) for power in range(-_LARGEST_EXPONENT, _LARGEST_EXPONENT + 1)], "u4")
"""The exponents of two digits, from the least on."""


def format_integers(array: np.ndarray) -> bytes:
    """Return integers as text, separated by single spaces, with none at the end."""
    if not array.size:
        return b""
    largest = max(int(array.max()), -int(array.min()))
    if largest >= 10**16:  # more than four blocks: such are rare
        return str(array.tolist())[1:-1].replace(",", "").encode()
    sizes = np.abs(array.astype("i8"))
    # A row of blocks of four characters for each number: sign, digits, space. Zero bytes fill them, and are left out.
    digit_blocks = (len(str(largest)) + 3) // 4
    rows = np.empty((len(array), digit_blocks + 2), "u4")
    rows[:, 0] = _SIGNS[(array < 0).view("u1")]
    _write_whole(rows[:, 1:-1], sizes)
    rows[:, -1] = _block(b" ")
    return rows.tobytes().translate(None, b"\0")[:-1]


def _write_whole(blocks: np.ndarray, sizes: np.ndarray) -> None:
    """Write whole numbers into rows of blocks without leading zeros, 0 as one digit.

    Args:
        blocks: of shape (numbers, blocks of four digits), which are written.
        sizes: the numbers, not negative.
    """
    rest = sizes
    for column in range(blocks.shape[1] - 1, -1, -1):
        higher = rest // _BLOCK_NUMBERS
        digits = rest - higher * _BLOCK_NUMBERS
        # The second half of the table has no leading zeros: for the first digits of a number.
        blocks[:, column] = _LEADING[digits + _BLOCK_NUMBERS * (higher == 0)]
        rest = higher
    zeros = np.flatnonzero(sizes == 0)
    if zeros.size:
        blocks[zeros, -1] = _block(b"0")


def format_floats(array: np.ndarray, digits: int) -> bytes | None:
    """Return floats as C's `%.{digits}g` prints them, separated by single spaces, with none at the end.

    Args:
        array: floats of 2 to 8 bytes.
        digits: 6, 9 or 17; at most 9 for those of fewer bytes.

    Returns:
        `None` where too many numbers need C's own conversion: very large or small ones, NaNs, infinities.
    """
    parts: list[bytes] = []
    for start in range(0, len(array), _AT_ONCE):
        with np.errstate(invalid="ignore"):  # a signaling NaN becomes a quiet one
            part = array[start : start + _AT_ONCE].astype("f8", copy=False)
        integers = _as_integers(part, digits)
        if integers is not None:
            text: bytes | None = format_integers(integers)
        else:
            # Those of 2 bytes have fewer, and each is a float of 4 bytes, too.
            text = _format_floats(part, digits, bits=53 if array.itemsize == 8 else 24)
        if text is None:
            return None
        parts.append(text)
    return b" ".join(parts)


def _as_integers(array: np.ndarray, digits: int) -> np.ndarray | None:
    """Return floats as integers if all print as integers, else `None`.

    Args:
        array: the floats, at least one.
        digits: number of digits that are printed.
    """
    largest = np.abs(array).max()
    if not largest < min(10**digits, _EXACT_INTEGERS):  # NaN, too; from 10**digits on there is an exponent
        return None
    has_negative_zero = (np.signbit(array) & (array == 0)).any()
    if has_negative_zero or (array != np.rint(array)).any():
        return None
    return array.astype("i8")


def _format_floats(array: np.ndarray, digits: int, bits: int) -> bytes | None:
    """Return a part of the floats as text, or `None`, as `format_floats` does.

    Args:
        array: the part, as doubles.
        digits: number of digits.
        bits: of the mantissa of the type that the floats had.
    """
    number, power, is_sure = _digits_and_powers(np.abs(array), digits, bits)
    unsure = np.flatnonzero(~is_sure)
    if len(unsure) * _ONE_UNSURE_IN > len(array):
        return None
    rows = _rows(array, number, power, digits)
    if unsure.size:
        texts = [number_text(value, digits).encode() + b" " for value in array[unsure].tolist()]
        width = rows.shape[1] * 4  # bytes of a row, which has room for every number
        rows[unsure] = np.array(texts, f"S{width}").view("u4").reshape(-1, rows.shape[1])
    return rows.tobytes().translate(None, b"\0")[:-1]


def _digits_and_powers(size: np.ndarray, digits: int, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first `digits` digits of numbers as integers, the power of ten of the first digit, and a mask.

    The mask is true where both are certain; elsewhere, and for zeros, they are 0.

    Args:
        size: numbers that are not negative.
        digits: number of digits.
        bits: bits of mantissa of each.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.floor(np.log10(size))
    is_sure = np.isfinite(power) & (np.abs(power) < 90)  # well inside the table of exponents, of two digits
    power = np.where(is_sure, power, 0).astype("i8")
    number, is_exact, error = _significant(size, power, digits, bits)
    wrong = np.flatnonzero(error)  # where the rounded logarithm is off by one
    if wrong.size:
        power[wrong] += error[wrong]
        number[wrong], is_exact[wrong], error[wrong] = _significant(size[wrong], power[wrong], digits, bits)
    is_rounded_up = number == 10**digits  # 9.9996 to 10.00: the first digits of a higher power
    if is_rounded_up.any():
        number = np.where(is_rounded_up, 10 ** (digits - 1), number)
        power = power + is_rounded_up
    is_sure &= is_exact & (error == 0)
    is_zero = size == 0
    has_digits = is_sure & ~is_zero
    number[~has_digits] = 0
    power[~has_digits] = 0
    return number, power, is_sure | is_zero


class _Products(NamedTuple):
    """The type in which numbers are multiplied with powers of ten.

    Attributes:
        powers: of ten, from 1 on, which are exact in the type.
        mantissa: bits of its mantissa.
        doubt: how near to a tie a rounded product decides nothing: some units in the last place of the largest one.
    """

    powers: np.ndarray
    mantissa: int
    doubt: float


_DOUBLES = _Products(_POWERS, mantissa=53, doubt=1e-6)
"""For products of up to 9 digits before the point, whose last place is at 2**-23."""
_WIDE = _Products(_WIDE_POWERS, mantissa=64, doubt=1 / 64)
"""For products of up to 17 digits, whose last place is at 2**-7."""


def _significant(
    size: np.ndarray, power: np.ndarray, digits: int, bits: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first `digits` digits of numbers as integers, a mask of certain ones, and the errors of `power`.

    Each number is multiplied with a power of ten, after which these digits are before its point, and rounded.

    Args:
        size: positive numbers.
        power: of ten, of the first digit of each.
        digits: number of digits.
        bits: bits of mantissa of each.

    Returns:
        The integers, 0 where they are not certain; the mask; and what is to be added to `power`: 1 where there is a
        digit too many before the point, -1 where there is one too few.
    """
    if digits <= 9:
        products = _DOUBLES
    elif _EXTENDED:
        products = _WIDE
    else:  # no type here has the bits for 17 digits
        none = np.zeros(len(size), "i8")
        return none, none.astype(bool), none
    size = size.astype(products.powers.dtype, copy=False)
    shift = digits - 1 - power  # the power of ten of the product
    largest_power = len(products.powers) - 1
    # A product with 10**n has the bits of the number and those of 5**n, 7 for n = 3. Where there is room for all, it is
    # exact, and what looks like a tie is one.
    largest_exact_shift = (products.mantissa - bits) * 3 // 7
    tens = products.powers[np.minimum(np.abs(shift), largest_power)]
    with np.errstate(all="ignore"):
        scaled = size * tens
        if (shift < 0).any():
            scaled = np.where(shift >= 0, scaled, size / tens)
        nearest = np.rint(scaled)
        is_far_from_tie = np.abs(np.abs(scaled - nearest) - 0.5) > products.doubt
        is_sure = is_far_from_tie | ((shift >= 0) & (shift <= largest_exact_shift))
        is_sure &= (np.abs(shift) <= largest_power) & (nearest <= 10**digits)
        error = (nearest > 10**digits).astype("i8") - (scaled < 10 ** (digits - 1))
        return np.where(is_sure, nearest, 0).astype("i8"), is_sure, error


def _rows(array: np.ndarray, number: np.ndarray, power: np.ndarray, digits: int) -> np.ndarray:
    """Return a row of 4-byte blocks for each number, with zero bytes where nothing is printed.

    The blocks are the sign, the digits before the point, the point with the zeros behind it, the other decimals, the
    exponent, and a space.

    Args:
        array: the numbers, for their signs.
        number: their significant digits, as integers.
        power: of ten, of the first of these.
        digits: how many.
    """
    has_exponent = (power < -4) | (power >= digits)  # as C's %g has it
    # With an exponent, the point is behind the first digit.
    first_power = np.where(has_exponent, 0, power)
    whole, fraction = _whole_and_fraction(number, first_power, digits)
    zeros_behind_point = np.maximum(-first_power - 1, 0)
    # Where each kind of block is in a row; the others are between these.
    sign = 0
    most_whole_digits = len(str(int(whole.max(initial=0))))
    point = sign + 1 + max(1, (most_whole_digits + 3) // 4)
    exponent = point + 1 + (digits + 3) // 4
    space = exponent + 1
    rows = np.empty((len(array), space + 1), "u4")
    rows[:, sign] = _SIGNS[np.signbit(array).view("u1")]
    _write_whole(rows[:, sign + 1 : point], whole)
    rows[:, point] = _POINTS[np.where(fraction == 0, 0, 1 + zeros_behind_point)]
    _write_decimals(rows[:, point + 1 : exponent], fraction, digits)
    rows[:, exponent] = 0
    with_exponent = np.flatnonzero(has_exponent)
    rows[with_exponent, exponent] = _EXPONENTS[power[with_exponent] + _LARGEST_EXPONENT]
    rows[:, space] = _block(b" ")
    return rows


def _whole_and_fraction(number: np.ndarray, power: np.ndarray, digits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the digits before the point and those behind it, as integers.

    Args:
        number: the significant digits of each number, as an integer.
        power: of ten, of the first of these; less than `digits`.
        digits: how many.

    Returns:
        The second are `digits` digits from the point on, or from the first significant one if that is behind the point,
        filled with zeros at the end.
    """
    tens = 10 ** np.arange(digits + 1)
    # Digits before the point, less one; -1 where the first digit is behind it.
    last_whole = np.maximum(power, -1)
    unit = tens[digits - 1 - last_whole]
    whole = number // unit
    fraction = (number - whole * unit) * tens[last_whole + 1]
    return whole, fraction


def _write_decimals(blocks: np.ndarray, fraction: np.ndarray, digits: int) -> None:
    """Write decimals into rows of blocks; zeros at their end are not printed.

    Args:
        blocks: of shape (numbers, blocks of four digits), which are written.
        fraction: the decimals of each number as an integer.
        digits: how many these are.
    """
    count = blocks.shape[1]
    if 4 * count <= 18:  # digits that any integer of 64 bits has
        rest = fraction * 10 ** (4 * count - digits)
        is_end = np.ones(len(fraction), bool)
    else:  # five blocks for 17 digits: the last one has only the 17th, as the first of its digits
        rest = fraction // 10
        last_digit = fraction - rest * 10
        is_end = last_digit == 0
        without_zeros = last_digit * 1000 + _BLOCK_NUMBERS
        blocks[:, -1] = np.where(is_end, 0, _TRAILING[without_zeros])
        count -= 1
    # From the last block to the first: `is_end` is true where all behind is zero, and not printed. The table has four
    # digits for each number, and from `_BLOCK_NUMBERS` on those without zeros at the end.
    for column in range(count - 1, -1, -1):
        higher = rest // _BLOCK_NUMBERS
        block_digits = rest - higher * _BLOCK_NUMBERS
        blocks[:, column] = _TRAILING[block_digits + _BLOCK_NUMBERS * is_end]
        is_end &= block_digits == 0
        rest = higher
