"""Decimal text of many numbers at once: what C and Python read and print, to the last bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from t7bridge.graph import format_floats, format_integers, parse_floats, parse_integers
from t7bridge.graph.decimals import parse_numbers

RNG = np.random.default_rng(7)
TENS = [10.0**power for power in range(-20, 21)]
EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    9.9999999996,
    0.99999999999,
    1e-4,
    1e-5,
    9.99999e-5,
    99999999.95,
    1e22,
    1e23,
    5e-324,
]
EDGES += [*TENS, *(float(np.nextafter(ten, 0)) for ten in TENS), *(float(np.nextafter(ten, 1e99)) for ten in TENS)]
EDGES += [1.7e308, 2.0**53 + 2, 2.0**63, 0.1, 0.3, 123456789012345678.0]
SAMPLES: dict[str, np.ndarray] = {
    "weights": RNG.standard_normal(3000),
    "counts": RNG.integers(-1000, 1000, 3000).astype("f8"),
    "large": RNG.random(3000) * 1e6,
    "moments": RNG.standard_normal(3000) ** 2 * 1e-9,
    "ties": RNG.integers(0, 2**40, 3000) / 2.0 ** RNG.integers(0, 40, 3000),
    "edges": np.concatenate([RNG.standard_normal(2000), EDGES]),
    "halves": RNG.integers(0, 2**20, 3000) / 2.0 ** RNG.integers(0, 20, 3000),
}
WORDS = """
1 -1 0 -0 -0.0 .5 -.5 5. 1e5 1E5 1e+5 -1.5e-10 123456789012345678901 9223372036854775808 1e400 1e-400 00012 e5 1e
1-2 .-5 -. . + - +5 1.+5 1e.5 1e2e3 1..2 4.35 2.2250738585072011e-308 9007199254740993 8.5e22
"""
ODD = WORDS.split()


def bits(values: np.ndarray) -> list[int]:
    """The bits of doubles, in which -0 is not 0."""
    return list(values.view("u8").tolist())


@pytest.mark.parametrize("digits", [6, 9, 17])
def test_format_as_printf(subtests, digits):
    """Formatting in bulk equals C's printf for each number."""
    for name in SAMPLES:
        with subtests.test(name=name):
            values = SAMPLES[name]
            if digits < 17:
                values = values[np.abs(values) < 3e38].astype("f4")
            text = format_floats(values, digits)
            if text is not None:
                assert text.decode().split(" ") == [f"{value:.{digits}g}" for value in values.astype("f8").tolist()]
            assert text is not None or name in ("moments", "large")


def test_format_old_doubles_with_six_digits():
    """Doubles that are printed with 6 digits are rounded once, ties too."""
    values = np.concatenate([SAMPLES["ties"], SAMPLES["halves"], SAMPLES["large"]])
    text = format_floats(values, 6)
    assert text is not None
    assert text.decode().split(" ") == [f"{value:.6g}" for value in values.tolist()]


def test_format_what_is_no_number():
    """NaNs and infinities among numbers are Python's text."""
    values = np.concatenate([RNG.standard_normal(100), [np.nan, np.inf, -np.inf]])
    assert format_floats(values, 17) == " ".join(f"{value:.17g}" for value in values.tolist()).encode()


def test_format_integers(subtests):
    """Integers of every type are their digits, the smallest and the largest too."""
    for kind in ["i1", "u1", "i2", "i4", "i8"]:
        with subtests.test(kind=kind):
            limits = np.iinfo(kind)
            values = np.concatenate(
                [RNG.integers(max(limits.min, -9999), min(limits.max, 99999), 1000), [0, 1, limits.min, limits.max]]
            )
            values = values.astype(kind)
            assert format_integers(values) == " ".join(map(str, values.tolist())).encode()
            assert format_integers(values[:-2]) == " ".join(map(str, values[:-2].tolist())).encode()


@pytest.mark.parametrize("digits", [6, 9, 17])
def test_parse_as_python(subtests, digits):
    """Parsing in bulk equals Python's for each word, to the last bit."""
    for name in SAMPLES:
        with subtests.test(name=name):
            words = [f"{value:.{digits}g}" for value in SAMPLES[name].tolist()]
            found = parse_floats(" ".join(words).encode())
            assert found is not None
            assert bits(found) == bits(np.array([float(word) for word in words]))


@pytest.mark.slow
def test_parse_refuses_what_is_no_number():
    """Of odd words each text is left alone, or read as Python reads it."""
    chosen = random.Random(7)
    read = 0
    for _ in range(20_000):
        odd = chosen.random() < 0.5
        words = [chosen.choice(ODD if odd else ["1", "2.5", "-3.25", "1e5"]) for _ in range(chosen.randint(1, 5))]
        found = parse_floats(" ".join(words).encode())
        if found is not None:
            assert bits(found) == bits(np.array([float(word) for word in words]))
            read += 1
    assert read > 5_000


@pytest.mark.slow
def test_parse_garbage():
    """No text of the bytes of numbers is read as something that Python does not read."""
    chosen, read = random.Random(9), 0
    for _ in range(30_000):
        text = bytes(chosen.choice(b"0123456789+-.eE ") for _ in range(chosen.randint(1, 9)))
        found = parse_floats(text)
        if found is not None:
            assert bits(found) == bits(np.array([float(word) for word in text.split()]))
            read += 1
    assert read > 500


def test_parse_integers_beyond_64_bits():
    """Numbers that numpy would saturate at 64 bits are left to the slow path."""
    assert parse_integers(b"1 -2 3").tolist() == [1, -2, 3]  # type: ignore[union-attr]
    assert parse_integers(b"9223372036854775808") is None
    assert parse_integers(b"-9223372036854775809") is None
    assert parse_integers(b"1.5") is None


def test_parse_numbers_names_the_first_beyond_its_type():
    """The message has a number that does not fit, not a larger one that does."""
    with pytest.raises(OverflowError, match=r"^-1 is out of bounds for uint8$"):
        parse_numbers(b"200 -1 7", np.dtype("u1"))
