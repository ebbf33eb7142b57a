"""Mistakes that fuzzing and random graphs have found, each with the smallest file that showed it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from helpers import BIG8, LITTLE4, LITTLE8, TESTFILES, Parts, description, lines, read, stated, written
from pt_helpers import described, text, zipped

import t7bridge
from t7bridge import PtReader, Storage, T7Reader
from t7bridge.errors import CorruptError, FormatError, TruncatedError, UnsupportedError


def matrix(layout, **lie) -> bytes:
    """A 2 by 2 FloatTensor; the offset or the count may lie."""
    parts = Parts(layout).torch(1, "torch.FloatTensor").ints(2).longs(2, 2).longs(2, 1).longs(lie.get("offset", 1))
    return parts.torch(2, "torch.FloatStorage").longs(lie.get("count", 4)).elements("f", 1.0, 2.0, 3.0, 4.0).data


@pytest.mark.parametrize("layout", [LITTLE8, BIG8], ids=["little", "big"])
def test_damage_is_no_other_layout(layout):
    """A tensor that is cut off or wrong is an error, not an empty one with 4-byte longs, as its zeros suggest."""
    for length in range(len(matrix(layout))):
        with pytest.raises(FormatError):
            T7Reader(matrix(layout)[:length]).read_object()
    with pytest.raises(CorruptError, match="its offset is -1"):
        T7Reader(matrix(layout, offset=0)).read_object()
    with pytest.raises(TruncatedError, match="claims more than the file holds"):
        T7Reader(matrix(layout, count=400)).read_object()


def test_short_values_of_another_layout_are_read():
    """A file with 4-byte longs is found out also where its first value is over before the other layout fails."""
    empty = Parts(LITTLE4).torch(1, "torch.FloatStorage").longs(0).data
    reader = T7Reader(empty + Parts(LITTLE4).ints(3, 2, 1).number(1).number(2).data)

    first = reader.read_object()
    assert isinstance(first, Storage)
    assert first.count == 0
    assert reader.read_object()[1] == 2
    assert reader.layout == LITTLE4


def test_digits_of_ascii_files():
    """A number with more than 6 digits shows that all have: none of them is rounded when the file is written."""
    for numbers in ((0.1, 1 / 3), (9.224, 9007199254740992.0), (9.224, 4.0368547758e18)):
        data = lines(f"3\n1\n2\n1\n1\n1\n{numbers[0]:.6g}\n1\n2\n1\n{numbers[1]:.17g}\n")
        reader = T7Reader(data)
        value = reader.read_object()
        assert reader.layout.digits == 17
        again = read(written(value, reader.layout), **stated(reader.layout))
        assert description(again) == description(value)
    rounded = lines("3\n1\n2\n1\n1\n1\n0.1\n1\n2\n1\n0.333333\n")
    reader = T7Reader(rounded)
    assert written(reader.read_object(), reader.layout) == rounded


def test_items_of_a_counter():
    """The items of a Counter that follow it in a pickle are its counts, and are not counted."""
    pickle = b"\x80\x02ccollections\nCounter\n)R(" + text("a") + b"K\x05" + text("b") + b"Nu."
    value = PtReader(pickle).read()

    assert type(value) is Counter
    assert dict(value) == {"a": 5, "b": None}
    assert described(pickle)["v"][0][1] == {"t": "int", "v": "5"}


def test_pickle_that_ends_in_a_call():
    """An empty stack at the end of a complete pickle is not a truncated pickle."""
    for opcodes in (b"R", b"\x86", b"u"):
        with pytest.raises(CorruptError, match="pops from an empty stack"):
            PtReader(zipped({"a/data.pkl": b"\x80\x02" + opcodes + b".", "a/version": b"3\n"})).read()


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("array_of_records.pt", UnsupportedError, "elements of a class, 'numpy.record'"),
        ("array_of_texts.pt", UnsupportedError, "elements of a class"),
        ("ascii_crlf.t7", CorruptError, "its lines end with CR and LF"),
    ],
)
def test_files_that_met_an_error_of_ours(name: str, error: type[Exception], words: str) -> None:
    """What PyTorch does not make, numpy's classes, and text of another system are errors that say so."""
    pytest.importorskip("torch")
    with pytest.raises(error, match=words):
        t7bridge.to_torch(t7bridge.load(TESTFILES / "found" / name))


def test_calls_that_pytorch_refuses_are_read_as_data() -> None:
    """A parameter of integers has no gradient, and a size of floats is no size."""
    pytest.importorskip("torch")
    parameter = t7bridge.to_torch(t7bridge.load(TESTFILES / "found/parameter_of_bytes.pt"))
    assert not parameter.requires_grad
    sizes = t7bridge.to_torch(t7bridge.load(TESTFILES / "found/size_of_floats.pt"))
    assert sizes["size"]["__class__"] == "torch.Size"


def test_a_sequencer_without_a_module(tmp_path: Path) -> None:
    """A picture shows a sequencer whose module was taken away."""
    t7bridge.draw(TESTFILES / "found/sequencer_without_module.t7", tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size


def test_ascii_of_other_systems() -> None:
    """Numbers are those that the other system printed."""
    found = t7bridge.load(TESTFILES / "found/ascii_windows.t7").tolist()
    assert str(found) == "[1.5, nan, nan, inf, -inf]"
    assert t7bridge.load(TESTFILES / "found/ascii_comma.t7").tolist() == [1.5, 2.25, 3]
