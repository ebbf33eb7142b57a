"""Classes whose objects are not just a table of fields; their bytes are built by hand after the Lua and C sources."""

from __future__ import annotations

import pytest
from helpers import (
    ASCII,
    BIG8,
    LAYOUTS,
    LITTLE4,
    LITTLE8,
    Parts,
    check_read_write,
    description,
    read,
    stated,
    walk,
    written,
)

from t7bridge import Limits, Table, TorchObject, register_class
from t7bridge.errors import CorruptError, LimitError, ModelError, WriteError
from t7bridge.formats import payload_of, unregister_class

BEHIND = b"behind"


def in_a_table(layout, index: int = 1) -> Parts:
    """Return the start of a table {payload object, "behind"}: the data after the payload must be found."""
    return Parts(layout).ints(3, index, 2).number(1)


def finish(parts: Parts) -> bytes:
    """The rest of that table."""
    return parts.number(2).string(BEHIND).data


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gpu(layout):
    """`nn.GPU` writes a header {type, device} and then its fields: two objects."""
    parts = in_a_table(LAYOUTS[layout]).torch(2, "nn.GPU")
    parts.ints(3, 3, 2).number(1).string("torch.CudaTensor").number(2).number(3)  # the header
    parts.ints(3, 4, 1).string("modules").ints(3, 5, 1).number(1)  # the fields: {modules = {nn.Tanh}}
    parts.torch(6, "nn.Tanh").ints(3, 7, 0)
    data = finish(parts)
    root = read(data, **stated(LAYOUTS[layout]))
    gpu = root[1]
    assert gpu.payload.as_list() == [b"torch.CudaTensor", 3.0]
    assert gpu["modules"][1].class_name == "nn.Tanh"
    assert root[2] == BEHIND
    assert written(root, LAYOUTS[layout]) == data
    assert "root[1].modules[1]" in [visit.text() for visit in walk(root)]


def data_parallel(version: int | None) -> bytes:
    """A `nn.DataParallelTable` of a class version: since 2 its GPU assignments come first."""
    parts = in_a_table(LITTLE8).torch(2, "nn.DataParallelTable", version)
    number = 3
    if version and version >= 2:
        parts.ints(3, number, 2).number(1).number(1).number(2).number(2)
        number += 1
    return finish(parts.ints(3, number, 1).string("dimension").number(1))


@pytest.mark.parametrize("version", [2, 3])
def test_data_parallel_table(version):
    """Since class version 2 the GPU assignments are an object before the table of fields."""
    root = check_read_write(data_parallel(version))
    assert root[1].version == version
    assert root[1].payload.as_list() == [1.0, 2.0]
    assert root[1]["dimension"] == 1.0
    assert root[2] == BEHIND


@pytest.mark.parametrize("version", [None, 1])
def test_old_data_parallel_table(version):
    """Before class version 2 the object is just its table of fields."""
    root = check_read_write(data_parallel(version))
    assert root[1].payload is None
    assert root[1]["dimension"] == 1.0
    assert root[2] == BEHIND


@pytest.mark.parametrize(("layout", "size"), [(LITTLE8, 5048), (BIG8, 5048), (LITTLE4, 2544), (ASCII, 5048)])
def test_generator(layout, size):
    """A `torch.Generator` is the C struct in memory: 5 048 bytes where a long has 8, 2 544 where it has 4."""
    state = bytes((7 * place + 1) % 251 for place in range(size))
    data = finish(in_a_table(layout).torch(2, "torch.Generator").raw(state))
    root = read(data, **stated(layout))
    assert root[1].payload == state
    assert root[1].fields is None
    assert root[2] == BEHIND
    assert written(root, layout) == data
    assert '{"t":"userdata","class":"torch.Generator"}' in description(root)


def test_generator_of_4_byte_longs_is_found_out():
    """A generator of 2 544 bytes is met with longs of 4 bytes, although 8 are tried first."""
    data = finish(in_a_table(LITTLE4).torch(2, "torch.Generator").raw(bytes(2544)))
    root = check_read_write(data)
    assert len(root[1].payload) == 2544


@pytest.mark.parametrize("layout", LAYOUTS)
def test_timer(layout):
    """A `torch.Timer` writes nothing after its class name."""
    data = finish(in_a_table(LAYOUTS[layout]).torch(2, "torch.Timer"))
    root = read(data, **stated(LAYOUTS[layout]))
    assert root[1].fields is None
    assert root[2] == BEHIND
    assert written(root, LAYOUTS[layout]) == data


@pytest.mark.parametrize("layout", LAYOUTS)
def test_atomic_counter(layout):
    """A `tds.AtomicCounter` writes one long."""
    data = finish(in_a_table(LAYOUTS[layout]).torch(2, "tds.AtomicCounter", 0).longs(-(2**31)))
    root = read(data, **stated(LAYOUTS[layout]))
    assert root[1].payload == -(2**31)
    assert root[2] == BEHIND
    assert written(root, LAYOUTS[layout]) == data


@pytest.mark.parametrize(("name", "version"), [("tds_hash", 1), ("tds_hash", None), ("tds.Hash", 0)])
def test_hash_under_each_of_its_names(name, version):
    """`tds_hash`, the old name of `tds.Hash`, is read the same and keeps its name."""
    parts = in_a_table(LITTLE8).torch(2, name, version).longs(2)
    parts.string("a").number(1).number(3).string("three")
    root = check_read_write(finish(parts))
    assert root[1].lua_class == name
    assert root[1].content.raw_keys == [b"a", 3.0]


def test_vec():
    """A `tds.Vec` is a long count and that many values."""
    parts = in_a_table(LITTLE8).torch(2, "tds.Vec", 0).longs(3).number(1).string("two").ints(4, 2)
    root = check_read_write(finish(parts))
    assert root[1].elements[:2] == [1.0, b"two"]
    assert root[1].elements[2] is root[1]


def gpus(depth: int) -> bytes:
    """`nn.GPU`s nested in one another through their headers."""
    parts = Parts(LITTLE8)
    for number in range(1, depth + 1):
        parts.torch(number, "nn.GPU")
    parts.ints(0)
    for number in range(depth + 1, 2 * depth + 1):
        parts.ints(3, number, 0)
    return parts.data


def test_nested_payloads():
    """Payloads inside payloads are read down to the limit, and refused beyond it with the way to raise it."""
    gpu = check_read_write(gpus(64))
    for _ in range(63):
        gpu = gpu.payload
    assert gpu.payload is None
    with pytest.raises(LimitError, match=r"at most 64 .*payload_depth"):
        read(gpus(65))
    assert read(gpus(65), limits=Limits(payload_depth=65)).class_name == "nn.GPU"
    with pytest.raises(LimitError, match=r"at most 3 \(the limit payload_depth\)"):
        read(gpus(4), limits=Limits(payload_depth=3))


def test_payloads_nested_too_deep_are_not_written():
    """A payload that holds itself without end, or deeper than readers go, is refused and not an accident."""
    gpu = TorchObject("nn.GPU")
    for _ in range(500):
        gpu = TorchObject("nn.GPU", payload=gpu)
    with pytest.raises(WriteError, match="nested too deep"):
        written(gpu)
    gpu.payload = Table.from_list([gpu])
    with pytest.raises(WriteError):
        written(gpu, referenced=False)


def test_fields_that_are_no_table():
    """The second object of an `nn.GPU` must be a table."""
    data = Parts(LITTLE8).torch(1, "nn.GPU").ints(3, 2, 0).string("text").data
    with pytest.raises(CorruptError, match=r"fields of a nn\.GPU are not a table; found bytes"):
        read(data)


class Pair:
    """A payload of an int and an object."""

    @staticmethod
    def read(reader, obj):
        obj["count"] = float(reader.read_int())
        obj["content"] = reader.read_object()

    @staticmethod
    def write(writer, obj):
        writer.write_int(int(obj["count"]))
        writer.write_object(obj["content"])


@pytest.fixture
def pair():
    """`my.Pair` registered since class version 2 while a test runs."""
    register_class("my.Pair", since_version=2)(Pair)
    yield
    unregister_class("my.Pair")


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_registered_class(layout):
    """A registered class reads its payload, in which the object itself may be referred to."""
    parts = in_a_table(LAYOUTS[layout]).torch(2, "my.Pair", 2).ints(77).ints(3, 3, 1).string("owner").ints(4, 2)
    data = finish(parts)
    root = read(data, **stated(LAYOUTS[layout]))
    assert root[1]["count"] == 77.0
    assert root[1]["content"]["owner"] is root[1]
    assert written(root, LAYOUTS[layout]) == data


@pytest.mark.usefixtures("pair")
def test_lower_class_versions_are_plain_tables():
    """Objects of a class version below `since_version` are a table of fields."""
    root = check_read_write(finish(in_a_table(LITTLE8).torch(2, "my.Pair", 1).ints(3, 3, 1).string("k").number(1)))
    assert root[1]["k"] == 1.0


@pytest.mark.usefixtures("pair")
def test_registering_twice_is_refused():
    """A class cannot be registered a second time, nor one that the package knows itself."""
    with pytest.raises(ModelError, match=r"my\.Pair is already registered"):
        register_class("my.Pair")(Pair)
    with pytest.raises(ModelError, match=r"nn\.GPU is already registered"):
        register_class("nn.GPU")(Pair)


def test_registering_many_names_is_all_or_nothing():
    """If one of several names is taken, none of them is registered."""
    with pytest.raises(ModelError):
        register_class("my.First", "nn.GPU")(Pair)
    assert payload_of("my.First", 1) is None


def test_unknown_class_with_a_payload_is_explained():
    """An unregistered class without a table of fields is an error with a hint."""
    with pytest.raises(CorruptError, match=r"my\.Other is not followed by a table.*register_class"):
        read(Parts(LITTLE8).torch(1, "my.Other").ints(77).ints(3, 2, 0).data)
