"""HDF5 files: h5py is the referee for what is in them, and none makes the reader work beyond its size."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from bounds import bounded, calls_of
from helpers import TESTFILES, peak_mib

import t7bridge
from t7bridge import formats
from t7bridge.errors import CorruptError, LimitError, T7BridgeError, UnsupportedError
from t7bridge.formats.hdf5 import library
from t7bridge.formats.hdf5.library import LibraryFile, require_h5py
from t7bridge.formats.named import NamedTensors
from t7bridge.graph import TensorExtras
from t7bridge.io.source import ByteSource

h5py = pytest.importorskip("h5py")
VERSIONS = ("earliest", "v108", "v110", "latest")
TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16", "?", ">f4", ">i8", ">c8", ">f2")
CHUNKS: list[dict[str, Any]] = [
    {}, {"compression": "gzip", "shuffle": True, "fletcher32": True}, {"compression": "lzf"}, {"scaleoffset": 3},
    {"scaleoffset": 3, "fillvalue": 7},
]  # fmt: skip


def fill(file: Any) -> None:
    """Every element type, layout, index of chunks and filter."""
    numbers = np.random.default_rng(3)
    for kind in TYPES:
        file[f"types/{kind.replace('>', 'big ')}"] = (numbers.random((7, 5)) * 100).astype(kind)
    for most in ((12, 9), (None, 9), (12, None), (None, None)):
        for number, options in enumerate(CHUNKS):
            data = (numbers.standard_normal((12, 9)) * 100).astype("i4" if number % 2 else "f4")
            file.create_dataset(f"chunks/{most}{number}", data=data, chunks=(5, 4), maxshape=most, **options)
    file.create_dataset("chunks/slow axis", data=np.arange(480).reshape(2, 3, 80), chunks=(1, 2, 33))
    for name, options in (("fixed", {}), ("growing", {"maxshape": (None,)}), ("zipped", {"compression": "gzip"})):
        file.create_dataset(f"many/{name}", data=np.arange(2200, dtype="i2"), chunks=(2,), **options)
    sparse = file.create_dataset("sparse", (1000, 300), "f4", chunks=(10, 100), maxshape=(None, 300), fillvalue=7.5)
    sparse[990:, 250:] = 3
    file.create_dataset("nothing", (4, 5), "i4", fillvalue=6)
    file["type"] = np.dtype("f4")
    file.create_dataset("of a type", data=np.arange(5, dtype="f4"), dtype=file["type"])
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((6,))
    h5py.Dataset(h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F32LE, space, plan))[:] = np.arange(6)
    for number in numbers.permutation(100):
        file[f"names/{number}"] = np.float32(number)
        file["names"].attrs[f"a{number}"] = number
    for number in range(20):
        file.attrs[f"text {number}"] = "é" * 100 * number
    file.attrs["bytes"] = np.bytes_(b"fixed")
    file["soft"] = h5py.SoftLink("/types/f4")


@pytest.mark.parametrize(("version", "ordered"), [*zip(VERSIONS, [False, True, False, True]), ("latest", False)])
def test_h5py_reads_the_same(tmp_path, version, ordered) -> None:
    """Elements, order, shapes and texts are those that h5py reads, from files of every version."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=(version, "latest"), track_order=ordered) as file:
        fill(file)
    with t7bridge.open(path) as document, h5py.File(path) as file:
        stack = [(document.roots[0], file)]
        compared = 0
        while stack:
            found, group = stack.pop()
            items = {name: group.get(name) for name in group}
            sets = {name: item for name, item in items.items() if isinstance(item, h5py.Dataset)}
            assert [name for name in found if name in sets] == list(sets)
            for name, item in sets.items():
                want = np.asarray(item[()])
                assert found[name].shape == want.shape
                got = np.asarray(found[name])
                assert np.array_equal(got.view("u1") if got.ndim else got, want.astype(got.dtype, copy=False).view("u1")
                                      if got.ndim else want), name  # fmt: skip
                assert got.dtype == want.dtype.newbyteorder("=")
                compared += 1
            stack += [(found[name], item) for name, item in items.items() if isinstance(item, h5py.Group)]
        assert compared > 140
        texts = {name: text.decode() if isinstance(text, bytes) else text for name, text in file.attrs.items()}
        assert document.metadata == texts


def test_bfloat16_of_others(tmp_path) -> None:
    """Floating-point numbers with the bits of bfloat16 are bfloat16."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_precision(16)
    kind.set_ebias(127)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = h5py.Dataset(h5py.h5d.create(file.id, b"a", kind, h5py.h5s.create_simple((3,))))
        data[:] = [1.5, -2, 1e30]
    found = t7bridge.load(tmp_path / "x.h5")["a"]
    assert found.element.name == "bfloat16"
    assert found.array.tolist()[:2] == [0x3FC0, 0xC000]


def test_a_chunk_is_inflated_once(tmp_path, monkeypatch) -> None:
    """Reading a data set of one large chunk, or of columns, asks for the bytes of each chunk once."""
    data = np.random.default_rng(1).integers(0, 9, (1000, 1000)).astype("f4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("one", data=data, chunks=data.shape, compression="gzip", shuffle=True)
        file.create_dataset("columns", data=data, chunks=(1000, 100), compression="gzip")
    lengths = []
    read = ByteSource.read

    def counted_read(source: ByteSource, offset: int, length: int) -> bytes:
        lengths.append(length)
        return read(source, offset, length)

    monkeypatch.setattr(ByteSource, "read", counted_read)
    t7bridge.convert(tmp_path / "x.h5", tmp_path / "x.npz")
    assert sum(lengths) < 1.2 * (tmp_path / "x.h5").stat().st_size
    with np.load(tmp_path / "x.npz") as file:
        assert all(np.array_equal(file[name], data) for name in ("one", "columns"))


@pytest.mark.parametrize("number", range(3))
def test_limits_count_over_the_file(tmp_path, number) -> None:
    """Data sets without chunks, of one chunk, and many of them: what they grow to is bounded for all together."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        if number == 0:
            file.create_dataset("a", (1 << 23,), "f4")
        elif number == 1:
            file.create_dataset("a", (1 << 23,), "u2", chunks=(1 << 23,), compression="lzf")[:] = 0
        for each in range(20 if number == 2 else 0):
            file.create_dataset(f"a{each}", (1 << 20,), "u1", chunks=(1 << 18,))
    with pytest.raises(LimitError, match="inflate_bytes"):
        t7bridge.load(tmp_path / "x.h5", limits=t7bridge.Limits(inflate_bytes=1 << 23, inflate_ratio=1))


def test_each_link_is_one_member(tmp_path) -> None:
    """Groups, data sets and links count as the members of an archive, each once; another file can be read at once."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["group/a"] = file["group/b"] = np.ones(2, "f4")
        file["c"] = file["group/a"]
    with pytest.raises(LimitError, match="archive_members"):
        t7bridge.load(tmp_path / "x.h5", limits=t7bridge.Limits(archive_members=3))
    root = t7bridge.load(tmp_path / "x.h5", limits=t7bridge.Limits(archive_members=4))
    assert set(root) == {"group", "c"}
    assert set(root["group"]) == {"a", "b"}


def test_a_file_over_which_the_library_loops(tmp_path) -> None:
    """It ends at the limit of its time, as another does in `test_limits.py`; the next file is read."""
    path = TESTFILES / "hostile" / "loop_heap.h5"
    with pytest.raises(LimitError, match="library_seconds"):
        t7bridge.convert(path, tmp_path / "x.pt", limits=t7bridge.Limits(library_seconds=1))
    assert t7bridge.load(TESTFILES / "hostile/record_names.h5")


def test_a_data_set_of_fill_values(tmp_path) -> None:
    """A data set of 256 MiB without a chunk is read at once, without memory for it."""
    with bounded(100):
        t7bridge.convert(TESTFILES / "hostile/fill_everywhere.h5", tmp_path / "x.pt")


def test_trees_that_hold_themselves(tmp_path) -> None:
    """Pointers of trees, heaps and headers to any other block, and links to themselves: the reader comes to an end."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(20):
            file.create_dataset(f"g/{number}", data=np.arange(32), chunks=(8,))
        file["round"] = h5py.SoftLink("round")
        file["inside"] = file["/"]
    data = (tmp_path / "x.h5").read_bytes()
    places = [at for mark in (b"TREE", b"SNOD", b"HEAP") for at in _places(data, mark)]
    choose = random.Random(1)
    outcomes = set()
    for _ in range(25):
        broken = bytearray(data)
        where = choose.choice(places) + choose.choice([24, 32, 40, 48, 16])
        broken[where : where + 8] = choose.choice(places).to_bytes(8, "little")
        with bounded():
            try:
                root = t7bridge.load(bytes(broken), limits=t7bridge.Limits(library_seconds=1))
                [each.tolist() for each in root.get("g", {}).values()]
                outcomes.add("read")
            except T7BridgeError as error:
                outcomes.add(type(error).__name__)
    assert {"read", "CorruptError"} <= outcomes


def test_a_number_in_chunks(tmp_path) -> None:
    """A data set without dimensions has no chunks: one that says so is refused."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file.create_dataset("x", data=np.ones(1, "f4"), chunks=(1,), maxshape=(1,))
    data = bytearray(path.read_bytes())
    shape, layout = data.index(bytes([1, 1, 1, 0]) + bytes(4)), data.index(bytes([3, 2, 2]))
    data[shape + 1 : shape + 3], data[layout + 2] = b"\0\0", 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=r"x: cannot be read as HDF5"):
        t7bridge.load(path)


def _places(data: bytes, mark: bytes) -> list[int]:
    return [at for at in range(len(data)) if data[at : at + 4] == mark]


def test_damage_is_found(tmp_path) -> None:
    """Checksums of chunks and of metadata are compared; filters that HDF5 does not have are named."""
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as file:
        data = file.create_dataset("a", data=np.arange(100), chunks=(100,), fletcher32=True)
        place = data.id.get_chunk_info(0).byte_offset
    content = bytearray((tmp_path / "x.h5").read_bytes())
    for where in (place + 5, 60):
        content[where] ^= 1
        with pytest.raises(CorruptError, match="cannot be read as HDF5"):
            t7bridge.load(bytes(content))["a"].tolist()
        content[where] ^= 1
    with h5py.File(tmp_path / "x.h5", "w", libver="earliest") as file:
        file.create_dataset("a", data=np.arange(100), chunks=(100,), compression="lzf")
    content = bytearray((tmp_path / "x.h5").read_bytes())
    place = content.index(b"lzf\0") - 8  # the filter's number is before the name's length, the flags and the count
    assert content[place : place + 2] == (32000).to_bytes(2, "little")
    content[place] += 1
    with pytest.raises(UnsupportedError, match="a: a data set is compressed by lzf"):
        t7bridge.load(bytes(content))


def test_readers_of_one_file_share_its_chunks(tmp_path) -> None:
    """A file is opened once in the other process, until it changes."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("z", data=np.arange(9000), chunks=(9000,), compression="gzip")
    first, second = (t7bridge.load(tmp_path / "a.h5")["z"] for _ in range(2))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["z"][0] = 7
        file["more"] = np.arange(5)
    third = t7bridge.load(tmp_path / "a.h5")["z"]
    opened = [tensor.storage.data.source._file._opened for tensor in (first, second, third)]
    assert opened[0] is opened[1]
    assert opened[0] is not opened[2]
    assert third[0] == 7


PLUGIN = """
import ctypes, h5py
SIZE, ADDRESS = ctypes.c_size_t, ctypes.c_void_p
FUNCTION = ctypes.CFUNCTYPE(SIZE, ctypes.c_uint, SIZE, ADDRESS, SIZE, ADDRESS, ADDRESS)

class Filter(ctypes.Structure):  # H5Z_class2_t
    _fields_ = [
        ("version", ctypes.c_int), ("id", ctypes.c_int), ("encodes", ctypes.c_uint), ("decodes", ctypes.c_uint),
        ("name", ctypes.c_char_p), ("can_apply", ctypes.c_void_p), ("set_local", ctypes.c_void_p), ("run", FUNCTION),
    ]

same = FUNCTION(lambda flags, count, values, size, room, buffer: size)
filter = Filter(1, 32001, 1, 1, b"blosc", None, None, same)
h5py.h5z.register_filter(ctypes.addressof(filter))
"""
"""A module with a filter of its own, which changes nothing."""


def test_filters_of_the_plugin_collection(tmp_path, monkeypatch) -> None:
    """A compression that HDF5 does not have is read if hdf5plugin has it; without that, the error names it."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "hdf5plugin.py").write_text(PLUGIN)
    monkeypatch.setattr("sys.path", [str(tmp_path / "plugins"), *sys.path])
    import hdf5plugin  # noqa: F401  for this process, and stays

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=range(9), chunks=(4,), compression=32001)
    monkeypatch.setattr("sys.path", sys.path[1:])
    # Another limit of memory starts another process.
    with pytest.raises(UnsupportedError, match=r"compressed by blosc.*pip install hdf5plugin"):
        t7bridge.load(tmp_path / "a.h5", limits=t7bridge.Limits(library_bytes=(1 << 31) - 1))
    monkeypatch.syspath_prepend(tmp_path / "plugins")
    value = t7bridge.load(tmp_path / "a.h5", limits=t7bridge.Limits(library_bytes=(1 << 31) - 2))
    assert value["a"].tolist() == list(range(9))


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "shuffle"), [((3, 2_500_000), False), ((5_000_000,), True), ((20, 500, 800), False)])
def test_a_large_chunk_is_inflated_in_parts(shape, shuffle, tmp_path) -> None:
    """A large chunk is read like any other, in any order of reading."""
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape) // np.float32(100_000)
    whole = (1, *shape[1:]) if len(shape) == 2 else shape
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("z", data=values, chunks=whole, compression="gzip", shuffle=shuffle)
    limits = t7bridge.Limits(inflate_bytes=1 << 26, inflate_ratio=10_000)
    tensor = t7bridge.load(tmp_path / "a.h5", limits=limits)["z"]
    assert np.array_equal(tensor.numpy(), values)
    source = tensor.storage.data.source
    raw = values.tobytes()
    for offset in (len(raw) - 40, 4, 12_000_000, 8_000_000):
        assert source.read(offset, 100) == raw[offset : offset + 100]
    damaged = bytearray((tmp_path / "a.h5").read_bytes())
    with h5py.File(tmp_path / "a.h5") as file:
        last = file["z"].id.get_chunk_info(file["z"].id.get_num_chunks() - 1)
    place = last.byte_offset + last.size // 2
    damaged[place : place + 20] = bytes(byte ^ 0x5B for byte in damaged[place : place + 20])
    with pytest.raises(CorruptError, match="z: cannot be read as HDF5"):
        t7bridge.load(bytes(damaged), limits=limits)["z"].numpy()


@pytest.mark.slow
def test_statistics_and_differences_take_little_memory(tmp_path) -> None:
    """Elements of a large data set are read piece by piece; no process has more than a chunk of them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("z", (30 << 20,), "f4", chunks=(1 << 20,), compression="gzip")[:9] = 1
    assert peak_mib("inspect", "--stats", tmp_path / "a.h5") < 90
    assert peak_mib("diff", tmp_path / "a.h5", tmp_path / "a.h5") < 90


def assert_same(path: Any) -> int:
    """Compare all data sets of numbers with those that h5py reads; return how many."""
    compared = 0
    with t7bridge.open(path) as document, h5py.File(path) as file:
        stack = [(document.roots[0], file)]
        while stack:
            found, group = stack.pop()
            for name, item in group.items():
                if isinstance(item, h5py.Group):
                    stack.append((found.get(name, {}), item))
                    continue
                want = np.asarray(item[()])
                got = found[name].array
                assert (got.shape, got.dtype) == (want.shape, want.dtype.newbyteorder("=")), name
                assert got.tobytes() == want.astype(got.dtype).tobytes(), name
                compared += 1
    return compared


READ = {"userblock.h5": 3, "matlab_like.mat": 2, "scaleoffset_big_endian.h5": 1, "scaleoffset_full_bits.h5": 8,
        "shrunk.h5": 1, "tree2_empty.h5": 1, "extensible_stats.h5": 1}  # fmt: skip


def test_files_that_are_easily_misread(subtests) -> None:
    """User blocks, indexes without chunks, all bits of a filter: what h5py reads is read, and nothing else."""
    for path in sorted((TESTFILES / "hdf5").glob("*.[hm]*[5t]")):
        with subtests.test(path.name):
            if path.name in READ:
                assert assert_same(path) == READ[path.name]
                continue
            with pytest.raises(CorruptError, match="cannot be read as HDF5"):
                [tensor.array for tensor in t7bridge.load(path).values() if isinstance(tensor, t7bridge.Tensor)]


def test_user_blocks(tmp_path) -> None:
    """Bytes before the file, of whatever kind and of any power of two, do not hide it."""
    for size, text in ((512, b"MATLAB 7.3 MAT-file"), (1024, b"#!/bin/sh\nexit"), (1 << 16, b"\0"), (2048, b"{}")):
        path = tmp_path / f"{size}.h5"
        with h5py.File(path, "w", userblock_size=size) as file:
            file["a"] = np.arange(6.0)
            file.create_dataset("b", data=np.arange(9), chunks=(2,))
            file.create_dataset("late", (3,), "f4", fillvalue=7)
        with path.open("r+b") as raw:
            raw.write(text)
        assert assert_same(path) == 3


def test_texts(tmp_path) -> None:
    """A data set of text is a string or a list of strings; bytes that are not UTF-8 are bytes."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["one"] = "text"
        file["many"] = ["a", "é", ""]
        file["rows"] = np.array([[b"ab", b"c"], [b"\xff", b"d  "]], "S4")
        file["none"] = np.array([], h5py.string_dtype())
        file.create_dataset("packed", data=np.array([b"x" * 100] * 5000), compression="gzip")
    found = t7bridge.load(tmp_path / "x.h5")
    assert found["one"] == "text"
    assert found["many"] == ["a", "é", ""]
    assert found["rows"] == [["ab", "c"], [b"\xff", "d  "]]
    assert found["none"] == []
    assert found["packed"] == ["x" * 100] * 5000
    with pytest.raises(LimitError, match="inflate_bytes"):
        t7bridge.load(tmp_path / "x.h5", limits=t7bridge.Limits(inflate_bytes=100_000, inflate_ratio=1))


def test_numbers_of_odd_types(tmp_path) -> None:
    """Integers of some bits, packed to them or not, and arrays as elements: numpy's types, as h5py has them."""
    bits = h5py.h5t.STD_I32BE.copy()
    bits.set_precision(17)
    bits.set_offset(3)
    shape = h5py.h5s.create_simple((40, 3))
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        plain = h5py.Dataset(h5py.h5d.create(file.id, b"bits", bits, shape))
        plan.set_chunk((7, 2))
        plan.set_filter(h5py.h5z.FILTER_NBIT)
        packed = h5py.Dataset(h5py.h5d.create(file.id, b"packed", bits, shape, plan))
        plain[:] = packed[:] = np.arange(120).reshape(40, 3) - 60
        file.create_dataset("arrays", (4,), np.dtype(("<f4", (2, 3))))[:] = np.arange(24).reshape(4, 2, 3)
        file.create_dataset("enumeration", data=np.arange(3, dtype="i2"), dtype=h5py.enum_dtype({"a": 0, "b": 1}, "i2"))
    assert assert_same(tmp_path / "x.h5") == 4


def test_two_strings_of_one_attribute(tmp_path) -> None:
    """HDF5 has no zero bytes in names: of two that are the same without them the second is left out, and named."""
    named = NamedTensors({("x",): t7bridge.Tensor.from_numpy(np.ones(2))}, {"a\0": "first", "a_": "second", "": "none"})
    written = formats.write(named, tmp_path / "x.h5")
    assert written.left_out == ("a_",)
    with t7bridge.open(tmp_path / "x.h5") as document:
        assert document.metadata == {"a_": "first", "_": "none"}


@pytest.mark.parametrize("count", [3, 4000])
def test_many_names_of_one_tensor(tmp_path, count) -> None:
    """They are recorded once, as many as the attribute can have; the tensor is one under all of them."""
    tensor = t7bridge.Tensor.from_numpy(np.ones(2))
    formats.write(NamedTensors.of({f"a/{number}": tensor for number in range(count)}), tmp_path / "x.h5")
    assert (tmp_path / "x.h5").stat().st_size < 10_000 + 200 * count
    root = t7bridge.load(tmp_path / "x.h5")
    names = [f"a/{number}" for number in range(count)]
    recorded = [name for name in names if name in root]
    assert recorded == names[: len(recorded)]
    assert len(recorded) == count if count < 10 else len(recorded) > 1000
    assert set(root) == {*recorded, *(name.replace("/", "_") for name in names[len(recorded) :])}
    assert len(set(map(id, root.values()))) == 1


def test_many_names_that_become_one(tmp_path) -> None:
    """HDF5 has none of them, and underscores tell them apart: those in use are not tried again for each."""
    tensor = t7bridge.Tensor.from_numpy(np.ones(1))
    calls = []
    for count in (200, 800):
        names = [(f"{number:010b}".replace("0", "/").replace("1", "\0"),) for number in range(count)]
        named = NamedTensors(dict.fromkeys(names, tensor))
        path = tmp_path / f"{count}.h5"
        calls.append(calls_of(lambda named=named, path=path: formats.write(named, path)))
        with h5py.File(path) as file:
            assert set(file) == {"_" * (10 + number) for number in range(count)}
    assert calls[1] < 5 * calls[0]


def test_conjugated_views(tmp_path) -> None:
    """Two equal ones are one data set; the tensor that they are views of is another."""
    source = t7bridge.Tensor.from_numpy(np.array([1 + 2j, 3j]))
    views = [evolve(source, extras=TensorExtras(conj=True)) for _ in range(2)]
    t7bridge.save({"source": source, "one": views[0], "other": views[1]}, tmp_path / "a.pt")
    t7bridge.convert(tmp_path / "a.pt", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["one"][()].tolist() == [1 - 2j, -3j]
        assert file["one"] == file["other"] != file["source"]
    assert t7bridge.verify(tmp_path / "a.pt", tmp_path / "a.h5").same


def test_nothing_leads_to_other_files(tmp_path, subtests) -> None:
    """Links, elements and virtual data sets that lead to other files are left out or refused, and never followed."""
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.arange(3.0)
    (tmp_path / "secret.bin").write_bytes(b"secrets!" * 3)

    def link(file: Any) -> None:
        file["link"] = h5py.ExternalLink("secret.h5", "/")
        file["through"] = h5py.SoftLink("/link/x")

    def elements(file: Any) -> None:
        file.create_dataset("a", (3,), "f8", external=[("secret.bin", 0, 24)])

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout((3,), "f8")
        layout[:] = h5py.VirtualSource("secret.h5", "x", (3,))
        file.create_virtual_dataset("a", layout)

    for number, fill_in in enumerate((link, elements, virtual)):
        with subtests.test(fill_in.__name__):
            path = tmp_path / f"{number}.h5"
            with h5py.File(path, "w") as file:
                file["own"] = np.ones(2)
                fill_in(file)
            if fill_in is not link:
                with pytest.raises(UnsupportedError, match="a: a data set's elements are in another file"):
                    t7bridge.load(path)
                continue
            with t7bridge.open(path) as document:
                assert list(document.roots[0]) == ["own"]
                assert [note.path for note in document.notes] == ["link", "through"]


def test_memory_has_a_limit(tmp_path) -> None:
    """A chunk that is larger than the library may have is an error that names the limit."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("a", (1 << 24,), "f4", chunks=(1 << 24,), compression="gzip")[:5] = 1
    tensor = t7bridge.load(tmp_path / "x.h5", limits=t7bridge.Limits(library_bytes=1 << 26))["a"]
    with pytest.raises(LimitError, match="library_bytes"):
        tensor.tolist()


def test_random_files(tmp_path) -> None:
    """Layouts, filters, byte orders, fill values, partial writes and changes of the shape, at random."""
    choose = random.Random(20261127)
    numbers = np.random.default_rng(20261127)
    filters: list[dict[str, Any]] = [{}, {"compression": "gzip"}, {"compression": "lzf"}, {"scaleoffset": 0}]
    for number in range(12):
        path = tmp_path / f"{number}.h5"
        block = choose.choice([0, 512, 4096])
        version = choose.choice(VERSIONS)
        with h5py.File(path, "w", libver=(version, "latest"), userblock_size=block) as file:
            for place in range(8):
                shape = tuple(choose.randint(1, 12) for _ in range(choose.randint(1, 3)))
                most = tuple(choose.choice([None, extent, extent + 9]) for extent in shape)
                kind = choose.choice(["<i2", ">i4", "<i8", ">u2"])
                options = choose.choice(filters) | {"shuffle": choose.random() < 0.5, "fillvalue": choose.randint(0, 9)}
                chunks = tuple(choose.randint(1, extent) for extent in shape)
                data = file.create_dataset(
                    f"g{place % 3}/{place}", shape, kind, chunks=chunks, maxshape=most, **options
                )
                corner = tuple(choose.randrange(extent) for extent in shape)
                part = tuple(extent - start for extent, start in zip(shape, corner))
                data[tuple(slice(start, None) for start in corner)] = numbers.integers(0, 99, part)
                if choose.random() < 0.5:
                    data.resize(tuple(choose.randint(1, extent or 20) for extent in most))
        assert assert_same(path) == 8


def test_a_browser_is_told_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package would help there: a process of its own reads."""
    monkeypatch.setattr("sys.platform", "emscripten")
    with pytest.raises(UnsupportedError, match="On a computer with h5py"):
        require_h5py()


def test_a_process_that_a_file_has_taken_over(tmp_path, monkeypatch) -> None:
    """Whatever the process with the library says of a file, the file is read or refused."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs["text"] = "a"
        file["group/data"] = np.ones((2, 3), "f4")
        file["zipped"] = file["group/data"]
        file["group"].attrs["number"] = 5
        file["texts"] = ["a", "b"]
        file.create_dataset("chunks", data=np.ones(9), chunks=(3,))
        file["outside"] = h5py.ExternalLink("other.h5", "/")
    listing = LibraryFile.listing
    with ByteSource.from_path(tmp_path / "x.h5") as source:
        messages = list(listing(LibraryFile(source, t7bridge.Limits()), 1000, lambda _: ""))
    assert {message["object"] for message in messages} == {"group", "data set", "link", "text", "left out"}

    values = [None, -1, 10**30, 1.5, float("nan"), "x", [], [None], [-1, -1], {}, {"x": 1}]
    lists: list[Any] = [[], [5], [None], [[]], [{}], messages[1:], [*messages, *messages]]
    for number, message in enumerate(messages):
        for key in message:
            without = {name: value for name, value in message.items() if name != key}
            for changed in (without, *({**message, key: value} for value in values)):
                lists.append([*messages[:number], changed, *messages[number + 1 :]])
    refused = 0
    for changed_messages in lists:
        monkeypatch.setattr(LibraryFile, "listing", lambda *_, told=changed_messages: (item for item in told))
        try:
            t7bridge.open(tmp_path / "x.h5").roots  # noqa: B018
        except T7BridgeError:
            refused += 1
    assert refused > len(lists) / 3


@pytest.mark.parametrize(
    "said", [b"5", b"[]", b"null", b'{"elements": -1}', b'{"elements": 1e30}', b'{"elements": []}']
)
def test_a_process_that_sends_no_messages(said, tmp_path, monkeypatch) -> None:
    """What is not a message of the process with the library is an error of the file."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.ones(3)
    program = f"import sys; sys.stdin.readline(); print({said.decode()!r}, flush=True); sys.stdin.read()"
    monkeypatch.setattr(library, "_PROGRAM", program)
    library._forget_library()
    with pytest.raises(CorruptError, match="the HDF5 library ended"):
        t7bridge.load(tmp_path / "x.h5")
