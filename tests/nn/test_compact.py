"""Compact state dicts: the same tensors on storages that hold no more than they use."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from helpers import ASCII, TESTFILES, peak_mib, read
from hypothesis import given
from hypothesis import strategies as st

import t7bridge
from t7bridge import PtReader, Storage, Table, Tensor, TorchObject, convert, state_dict
from t7bridge.cli import main
from t7bridge.errors import OptionError
from t7bridge.graph import CHUNK_BYTES, Span
from t7bridge.nn import compact_in, compacted

FLAT = TESTFILES / "models/autoencoder_flat.t7"


def storage(count: int) -> Storage:
    """The numbers from 0 on."""
    return Storage.from_array(np.arange(count, dtype="f4"))


def view(on: Storage, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Tensor:
    """A view of a storage."""
    return Tensor(on.element, on, size, stride, offset)


def check(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Compact, check the elements, and that every view lies inside its storage; return the result."""
    result = compacted(tensors)
    assert list(result) == list(tensors)
    for name, tensor in result.items():
        tensor.check()
        np.testing.assert_array_equal(tensor.numpy(), tensors[name].numpy())
    return result


def test_views_get_their_own_elements():
    """Views that lie apart get a storage each, of their own size."""
    flat = storage(1000)
    result = check({"a": view(flat, (2, 3), (3, 1), 10), "b": view(flat, (4,), (1,), 500)})
    assert [tensor.storage.count for tensor in result.values()] == [6, 4]


def test_whole_storages_stay():
    """A tensor that uses all of its storage keeps both."""
    whole = view(storage(6), (2, 3), (3, 1))
    assert compacted({"a": whole})["a"] is whole


def test_tied_views_stay_tied():
    """The same view twice, and a transposed one of the same memory, share what is written."""
    flat = storage(100)
    one = view(flat, (2, 3), (3, 1), 10)
    result = check({"a": one, "b": one, "c": view(flat, (2, 3), (3, 1), 10), "d": view(flat, (3, 2), (1, 3), 10)})
    assert result["a"] is result["b"]
    assert len({id(tensor.storage) for tensor in result.values()}) == 1
    assert result["d"].storage.count == 6


def test_overlapping_views_keep_a_storage_in_common():
    """Views that overlap are cut to the range that they use together."""
    flat = storage(100)
    result = check(
        {"a": view(flat, (10,), (1,), 20), "b": view(flat, (10,), (1,), 25), "c": view(flat, (5,), (1,), 60)}
    )
    assert result["a"].storage is result["b"].storage
    assert result["a"].storage.count == 15
    assert result["c"].storage.count == 5


def test_interleaved_views_count_as_overlapping():
    """The columns of a matrix lie between each other's elements."""
    flat = storage(100)
    result = check({"a": view(flat, (5, 2), (10, 1), 20), "b": view(flat, (5, 3), (10, 1), 22)})
    assert result["a"].storage is result["b"].storage
    assert result["a"].storage.count == 45


@pytest.mark.parametrize(
    ("size", "stride", "offset", "count"),
    [
        ((5, 2), (10, 1), 20, 10),  # some columns
        ((10, 2), (10, 1), 8, 20),  # the last columns of the last rows
        ((2, 5), (1, 10), 20, 10),  # transposed columns
        ((5, 4), (10, 0), 20, 5),  # repeated
        ((3, 2, 2), (40, 8, 2), 1, 12),
        ((4,), (33,), 0, 4),
        ((2, 3), (1, 1), 50, 4),  # shows elements twice: kept as it is
    ],
)
def test_views_with_gaps_are_copied_out(size, stride, offset, count):
    """A view that leaves elements out uses only those that it covers; repeated ones are still repeated."""
    result = check({"a": view(storage(100), size, stride, offset)})
    assert result["a"].storage.count == count


def test_rows_longer_than_a_chunk(tmp_path):
    """Two rows so far apart that the first chunk of their range has no whole row, and nothing is read beyond it."""
    source, target = tmp_path / "m.t7", tmp_path / "m.pt"
    distance = 3 * CHUNK_BYTES // 8  # one and a half chunks of 4-byte numbers
    tensor = view(storage(distance + 10), (2, 5), (distance, 1))
    t7bridge.save(Table.of({"a": tensor}), source)
    convert(source, target, compact=True)
    assert torch.load(target, weights_only=True)["a"].tolist() == tensor.numpy().tolist()


def test_empty_tensors():
    """A tensor without elements needs no memory, and one without storage none either."""
    flat = storage(100)
    result = check({"a": view(flat, (0, 3), (3, 1), 50), "b": Tensor(flat.element, None)})
    assert result["a"].storage.count == 0
    assert result["b"].storage is None


def test_storages_by_themselves_are_kept():
    """A storage that the value shows keeps all of its elements, and the tensors on it."""
    flat = storage(100)
    value = compact_in({"weights": [view(flat, (4,), (1,), 5)], "all": flat})
    assert value["weights"][0].storage is flat


def test_nothing_is_changed():
    """The original tensors are unchanged."""
    one = view(storage(100), (4,), (1,), 5)
    holder = [one]
    result = compact_in(OrderedDict(a=one))
    assert holder[0].storage.count == 100
    assert result["a"] is not one


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=3), st.integers(0, 30), st.booleans()
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_views(rows):
    """For any views: the same elements, nothing larger, and the same sharing of overlapping ones."""
    flat = storage(150)
    tensors = {}
    for number, (dims, offset, scalar) in enumerate(rows):
        size, stride = tuple(extent for extent, _ in dims), tuple(step for _, step in dims)
        tensors[str(number)] = Tensor(flat.element, flat, size, stride, offset, is_scalar=scalar and not size)
    before = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
    result = check(tensors)
    assert sum({id(t.storage): t.storage.count for t in result.values()}.values()) <= 150
    for one in tensors:
        for other in tensors:
            if before[one].size and before[other].size and set(before[one].flat) & set(before[other].flat):
                assert result[one].storage is result[other].storage


def test_elements_stay_in_the_file(tmp_path):
    """A part of a span is a span; nothing is read."""
    model = read(str(FLAT))
    tensors = state_dict(model, compact=True).tensors
    assert all(isinstance(tensor.storage.data, Span) for tensor in tensors.values())
    assert [tensor.storage.count for tensor in tensors.values()] == [32, 4, 32, 8]
    plain = state_dict(model).tensors
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), plain[name].numpy())
        assert plain[name].storage.count == 76


def large(path, *, layout=None) -> None:
    """A module with a small weight on a large storage, and columns of another."""
    flat = Storage.from_array(np.arange(200_000, dtype="f4"))
    inside = [
        TorchObject(
            "nn.Linear", 1, Table.of({"weight": view(flat, (2, 3), (3, 1), 1000), "bias": view(flat, (2,), (1,))})
        ),
        TorchObject("nn.Linear", 1, Table.of({"weight": view(flat, (300, 2), (100, 1), 100_000)})),
    ]
    value = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(inside)}))
    t7bridge.save(value, path, layout=layout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [None, ASCII, t7bridge.T7Layout(byte_order="big")], ids=["little", "ascii", "big"])
def test_convert(tmp_path, layout):
    """The file holds only what is used, and PyTorch reads the same values."""
    source, plain, small = tmp_path / "m.t7", tmp_path / "plain.pt", tmp_path / "small.pt"
    large(source, layout=layout)
    convert(source, plain)
    convert(source, small, compact=True)
    assert plain.stat().st_size > 800_000
    assert small.stat().st_size < 6_000
    one, other = (torch.load(path, weights_only=True) for path in (plain, small))
    assert list(one) == list(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0)


def test_convert_compact_keeps_ties(tmp_path):
    """Tied weights are tied in a compact file, across the modules of a checkpoint too."""
    flat = storage(1000)
    weight = view(flat, (2, 3), (3, 1), 100)
    table = Table.of({
        "model": TorchObject("nn.Linear", 1, Table.of({"weight": weight})),
        "copy": TorchObject("nn.Linear", 1, Table.of({"weight": view(flat, (2, 3), (3, 1), 100)})),
        "epoch": 3.0,
    })  # fmt: skip
    source, target = tmp_path / "m.t7", tmp_path / "m.pt"
    t7bridge.save(table, source)
    assert main(["convert", "--compact", str(source), str(target)]) == 0
    state = torch.load(target, weights_only=True)
    assert state["epoch"] == 3
    assert state["model"]["weight"].data_ptr() == state["copy"]["weight"].data_ptr()
    assert state["model"]["weight"].untyped_storage().nbytes() == 24


def test_compact_tables_of_tensors(tmp_path):
    """Without modules it applies as well, and there is no record then."""
    source, target = tmp_path / "m.t7", tmp_path / "m.pt"
    t7bridge.save(Table.of({"a": view(storage(1000), (4,), (1,), 7)}), source)
    convert(source, target, compact=True)
    assert torch.load(target, weights_only=True)["a"].tolist() == [7, 8, 9, 10]
    assert target.stat().st_size < 3000
    assert PtReader(str(target)).read()["a"].storage.count == 4


def test_compact_has_no_meaning_in_tree_mode(tmp_path):
    """If every field is kept, so is every element, and the option is refused."""
    with pytest.raises(OptionError, match="compact does not apply in mode tree"):
        convert(FLAT, tmp_path / "m.pt", "tree", compact=True)


def test_small_files_are_not_noted(tmp_path):
    """A few bytes more than needed cause no note."""
    assert not [note for note in convert(FLAT, tmp_path / "m.pt").notes if "--compact" in note.message]


@pytest.mark.slow
def test_memory(tmp_path):
    """Views of a large storage cost no memory: neither those in one piece nor those with gaps."""
    count = 20_000_000
    flat = Storage.from_array(np.zeros(count, "f4"))
    layers = [
        TorchObject("nn.Linear", 1, Table.of({"weight": view(flat, (3000, 3000), (3000, 1), 500)})),
        TorchObject("nn.Linear", 1, Table.of({"weight": view(flat, (900, 9000), (10_000, 1), 10_000_000)})),
    ]
    source, target = tmp_path / "m.t7", tmp_path / "m.pt"
    t7bridge.save(TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(layers)})), source)
    baseline = peak_mib("convert", FLAT, tmp_path / "small.pt", "--compact")
    assert peak_mib("convert", source, target, "--compact") < baseline + 40
    assert target.stat().st_size < 4 * (9_000_000 + 8_100_000) + 10_000
