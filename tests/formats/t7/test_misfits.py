"""A registered class that writes unrepresentable values: an error with the number, and no wrong bytes."""

from __future__ import annotations

import io

import pytest

from t7bridge.errors import WriteError
from t7bridge.formats import T7Writer
from t7bridge.formats.t7.layout import T7Layout
from t7bridge.graph.lua import Table, TorchObject


@pytest.mark.parametrize("encoding", ["binary", "ascii"])
@pytest.mark.parametrize(
    ("method", "value", "words"),
    [
        ("write_int", 2**31, "2147483648 does not fit a 4-byte integer"),
        ("write_long", 2**63, "does not fit an? 8-byte long"),
        ("write_float", 1e300, "does not fit a 4-byte float"),
        ("write_float", -1e40, "-1e\\+40 does not fit a 4-byte float"),
        ("write_double", 10**400, "does not fit an 8-byte float"),
    ],
)
def test_numbers_that_do_not_fit(method, value, words, encoding):
    """A number beyond its field is refused."""
    output = io.BytesIO()
    with pytest.raises(WriteError, match=words):
        getattr(T7Writer(output, T7Layout(encoding)), method)(value)
    assert not output.getvalue()


@pytest.mark.parametrize("name", ["", "\0", "nn\n.Tanh", "\x1bLJ", "\ud800", "V 1"])
def test_class_names(name: str) -> None:
    """A name that the reader refuses is not written, nor one that is read as a version."""
    version = None if name.startswith("V") else 1
    with pytest.raises(WriteError, match="is not a class name"):
        T7Writer(io.BytesIO()).write_object(TorchObject(name, version, Table()))
