"""A registered class that writes unrepresentable values: an error with the number, and no wrong bytes."""

from __future__ import annotations

import io

import pytest

from t7bridge.errors import WriteError
from t7bridge.formats import T7Writer


@pytest.mark.parametrize(
    ("method", "value", "words"),
    [
        ("write_int", 2**31, "2147483648 does not fit a 4-byte integer"),
        ("write_long", 2**63, "does not fit a 8-byte long"),
        ("write_float", 1e300, "does not fit a 4-byte float"),
    ],
)
def test_numbers_that_do_not_fit(method, value, words):
    """A number beyond its field is refused."""
    with pytest.raises(WriteError, match=words):
        getattr(T7Writer(io.BytesIO()), method)(value)
