"""The record after a `.t7` made from a `.pt`: its content, and damaged records."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import t7bridge
from t7bridge import Storage, T7Layout, T7Reader, Table, Tensor
from t7bridge.conversion import decode_pt_record, pickle_of, restore_value, structure_hash, to_lua, write_pt_record
from t7bridge.errors import CorruptError, FormatError, RecordError
from t7bridge.formats import PT_RECORD_START, T7Writer
from t7bridge.graph import ELEMENT_TYPES, TensorExtras
from t7bridge.io import Output
from t7bridge.values import describe_python


def vector(name: str, count: int = 4, **more: Any) -> Tensor:
    """A tensor with the bits of the numbers from 0 on."""
    element = ELEMENT_TYPES[name]
    storage = Storage(element, count, np.arange(count).astype(element.code))
    return Tensor(element, storage, (count,), (1,), **more)


def recorded(value: Any, layout: T7Layout | None = None) -> tuple[bytes, list[Storage]]:
    """Return a value's record, and the storages of its `.t7`, as read."""
    tree = to_lua(value)
    file = io.BytesIO()
    writer = T7Writer(file, layout)
    writer.write_object(tree.value)
    length = file.tell()
    places = [found for found in writer.objects if isinstance(found, Storage)]
    output = Output(file)
    named = {id(storage): place for place, storage in enumerate(places)}
    write_pt_record(output, *pickle_of(value), structure_hash(tree.value), tree, named)
    output.flush()
    reader = T7Reader(file.getvalue()[:length])
    reader.read_object()
    return file.getvalue()[length:], [found for found in reader.objects if isinstance(found, Storage)]


def changed(data: bytes, **head: Any) -> bytes:
    """A record with other facts in its head."""
    line, _, rest = data.partition(b"\n")
    return json.dumps({**json.loads(line), **head}, separators=(",", ":")).encode() + b"\n" + rest


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_every_type(name: str) -> None:
    """A tensor of every type is restored from the elements that are in the `.t7`, none of which is in the record."""
    value = {"a": vector(name), "b": (1, None, b"x")}
    data, storages = recorded(value)
    record = decode_pt_record(data)
    back, foreign, _ = restore_value(record, storages)

    assert data.startswith(PT_RECORD_START)
    assert record.storages == ((name, 4, 0),)
    assert record.raw == b""
    assert describe_python(back) == describe_python(value)
    assert foreign == []


def test_what_lua_has_only_inexactly_is_in_the_record() -> None:
    """Numbers that were rounded for Lua, and those that it sees conjugated, follow the pickle unchanged."""
    large = Storage.from_array(np.array([2**63 + 1, 2**64 - 1], "u8"))
    value = [
        Tensor(large.element, large, (2,), (1,)),
        vector("float32"),
        vector("complex64", extras=TensorExtras(conj=True)),
    ]
    data, storages = recorded(value)
    record = decode_pt_record(data)
    back, _, _ = restore_value(record, storages)

    assert [place for _, _, place in record.storages] == [-1, 1, -1]
    assert len(record.raw) == 16 + 32
    assert describe_python(back) == describe_python(value)
    assert back[0].numpy().tolist() == [2**63 + 1, 2**64 - 1]


def test_the_hash_is_of_everything_but_elements() -> None:
    """Any other number, string, key, order, shape, type or sharing is another hash; other elements are not."""
    one, two = vector("float32"), vector("float32")

    def table(**more: Any) -> Table:
        return Table.of({"a": one, "b": one, "n": 1, **more})

    base = structure_hash(table())
    assert structure_hash(table()) == base
    reshaped = Tensor(one.element, one.storage, (2, 2), (2, 1))
    for other in (
        table(n=2),
        table(n=b"1"),
        table(n=True),
        table(c=1),
        table(b=two),
        table(b=vector("float64")),
        table(b=reshaped),
        Table.of({"n": 1, "a": one, "b": one}),
    ):
        assert structure_hash(other) != base
    assert one.storage is not None
    one.storage.data = np.full(4, 9, "f4")
    assert structure_hash(table()) == base


def test_the_hash_is_of_any_encoding() -> None:
    """A re-encoded `.t7` has the same hash, whatever numbers are in it."""
    value = Table.of({"x": 0.1, "nan": float("nan"), "other": -float("nan"), "big": 2.0**60, "t": vector("int64")})
    hashes = set()
    for layout in (T7Layout(), T7Layout(encoding="ascii"), T7Layout(byte_order="big"), T7Layout(long_size=4)):
        file = io.BytesIO()
        T7Writer(file, layout).write_object(value)
        hashes.add(structure_hash(T7Reader(file.getvalue()).read_object()))

    assert hashes == {structure_hash(value)}


@pytest.mark.parametrize(
    "head",
    [
        {"record": "t7bridge pt record 9"},
        {"record": None},
        {"storages": None},
        {"storages": 5},
        {"storages": [[]]},
        {"storages": [["float33", 4, 0]]},
        {"storages": [["float32", -4, 0]]},
        {"storages": [["float32", "x", 0]]},
        {"storages": [["float32", float("inf"), 0]]},
        {"storages": [["float32", float("nan"), 0]]},
        {"storages": [[1, 2, 3, 4]]},
        {"pickle_bytes": -1},
        {"pickle_bytes": 10**6},
        {"pickle_bytes": float("inf")},
        {"pickle_bytes": None},
        {"pickle_bytes": []},
    ],
    ids=str,
)
def test_heads_that_are_none(head: dict[str, Any]) -> None:
    """An invalid head is an error whose hint is to convert without the record."""
    data, _ = recorded([vector("float32")])

    with pytest.raises(CorruptError, match=r"record.*--no-record"):
        decode_pt_record(changed(data, **head))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"{}",
        b"[]\n",
        b"5\n",
        b'{"record":"t7bridge pt record 1"}\n',
        b"\xff\xfe\n",
        b"[" * 100_000,
        b"{" * 9,
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_record(data: bytes) -> None:
    """Bytes that are not a record are an error, however deep they pretend to be."""
    with pytest.raises(CorruptError, match="record"):
        decode_pt_record(data)


@pytest.mark.parametrize(
    "row",
    [
        ["float32", 5, 0],
        ["float32", 3, 0],
        ["float32", 4, 1],
        ["float32", 4, 2**70],
        ["float64", 4, 0],
        ["float64", 2, 0],
        ["bool", 16, 0],
        ["complex64", 4, 0],
        ["int32", 4, 0],
        ["uint16", 4, 0],
        ["float8_e5m2", 16, 0],
        ["float32", 4, -1],
        ["float32", 2**62, -1],
        ["float32", 2**70, -1],
    ],
    ids=str,
)
def test_storages_that_do_not_fit(row: list[Any]) -> None:
    """A storage of another type or size than the `.t7` has, or one that it does not have, is an error."""
    data, storages = recorded([vector("float32")])

    with pytest.raises(CorruptError, match="does not match"):
        restore_value(decode_pt_record(changed(data, storages=[row])), storages)


def test_types_that_share_their_bytes() -> None:
    """A record cannot reinterpret the bytes: it is only read as what Lua could have made of it."""
    data, storages = recorded([vector("uint8")])

    with pytest.raises(RecordError, match=r"2.* is not a number of type bool"):
        restore_value(decode_pt_record(changed(data, storages=[["bool", 4, 0]])), storages)


def test_a_storage_that_is_not_listed() -> None:
    """A pickle that names a storage missing from the record is an error when its elements are needed."""
    data, storages = recorded([vector("float32")])
    value, _, _ = restore_value(decode_pt_record(changed(data, storages=[])), storages)

    with pytest.raises(FormatError):
        list(value[0].storage.chunks())


def test_the_pickle_is_no_longer_than_it_says() -> None:
    """A pickle that is cut by its head is an error."""
    data, storages = recorded({"some": "value"})

    with pytest.raises(FormatError, match="pickle"):
        restore_value(decode_pt_record(changed(data, pickle_bytes=10)), storages)


def test_devices() -> None:
    """The record keeps where tensors were, though Lua's are on the CPU."""
    one = vector("float32", device="cuda:1")
    assert one.storage is not None
    one.storage.device = "cuda:1"
    data, storages = recorded([one])
    back, _, _ = restore_value(decode_pt_record(data), storages)

    assert (back[0].device, back[0].storage.device) == ("cuda:1", "cuda:1")


@pytest.mark.parametrize("storage_count", [1, 20])
def test_storages_that_a_record_does_not_use(storage_count: int, tmp_path: Path) -> None:
    """The value of a record has an array with other elements, which may get the identity of a storage not used."""
    shown = {"a": Tensor.from_numpy(np.arange(4, dtype="f4"))}
    data, _storages = recorded(shown)
    value = pickle.dumps({"a": np.full(4, 9, "f4")}, protocol=2)
    rows = [("bfloat16", 4, 0)] * storage_count  # each is made of the storage in the file
    line, _, _pickle = changed(data, storages=rows, pickle_bytes=len(value)).partition(b"\n")
    t7bridge.save(to_lua(shown).value, tmp_path / "x.t7")
    with open(tmp_path / "x.t7", "ab") as file:
        file.write(line + b"\n" + value)

    for target in ("x.pt", "x.npz"):
        report = t7bridge.convert(tmp_path / "x.t7", tmp_path / target)
        assert "record" in {note.code for note in report.notes}
        assert t7bridge.load(tmp_path / target)["a"].tolist() == [0, 1, 2, 3]
