"""Limits: each is hit by a file made for it, the error names it, and raising or lowering it works as described."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from attrs import evolve
from helpers import ASCII, BIG8, LITTLE8, TESTFILES, Parts, corpus
from pt_helpers import text, zipped

import t7bridge
from t7bridge import Limits, T7Reader, cli
from t7bridge.errors import LimitError
from t7bridge.graph.lua import Table, TorchObject
from t7bridge.graph.tensor import Tensor as T7Tensor
from t7bridge.limits import DEFAULT_LIMITS

TENSOR = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\1tQ"
)


def nested(kind: str, count: int) -> bytes:
    """`count` tables or nn.GPU inside one another."""
    parts = Parts(LITTLE8)
    for number in range(1, count + 1):
        parts = parts.ints(3, number, 1).number(1) if kind == "table" else parts.torch(number, "nn.GPU")
    parts = parts.ints(0)
    for number in range(count + 1, 2 * count + 1 if kind == "gpu" else 0):
        parts = parts.ints(3, number, 0)  # the fields, the innermost first
    return parts.data


def strings(layout, length: int) -> bytes:
    """A table with a string in it."""
    return Parts(layout).ints(3, 1, 1).number(1).string(b"x" * length).data


def pt(data: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    """A checkpoint with a pickle."""
    weights = {"a/data/0": bytes(4)} if b"FloatStorage" in data else {}
    return zipped({"a/data.pkl": data, **weights, "a/version": b"3\n"}, method)


def tensor(dimensions: int) -> bytes:
    """A checkpoint with a tensor of so many dimensions."""
    sizes = b"(" + b"K\1" * dimensions + b"t"
    return pt(TENSOR + b"K\0" + sizes + sizes + b"\x89NtR.")


def inside(depth: int) -> bytes:
    """A checkpoint whose pickle has a checkpoint as bytes, and so on."""
    data = b"\x80\x02]."
    for _ in range(depth):
        head = b"\x80\x03ctorch.storage\n_load_from_bytes\nB" + struct.pack("<I", len(data))
        data = head + data + b"\x85R."
    return data


def safetensors_header(length: int) -> bytes:
    """A safetensors file without tensors whose header has so many bytes."""
    return length.to_bytes(8, "little") + b"{}".ljust(length)


def large_chunk() -> bytes:
    """An HDF5 file with one chunk of 16 MiB."""
    h5py = pytest.importorskip("h5py")
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        file.create_dataset("a", (1 << 24,), "u1", chunks=(1 << 24,), compression="gzip")[:1] = 1
    return image.getvalue()


def read_hdf5(data: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
    """Read the elements of a file, too."""
    for tensor in t7bridge.load(data, limits=limits).values():
        assert tensor.array.size


def modules(depth: int) -> bytes:
    """TorchScript of 1.0 with modules in modules."""
    inner = '{"name":"m"}'
    for _ in range(depth):
        inner = f'{{"name":"m","submodules":[{inner}]}}'
    return zipped({"a/model.json": f'{{"mainModule":{inner}}}'.encode(), "a/version": b"2\n"})


def unknown_class() -> bytes:
    """An object of an unknown class with many tables."""
    rows = Table.from_list([Table.from_list([1.0]) for _ in range(20)])
    weight = T7Tensor.from_numpy(np.zeros(2, "f4"))
    fields_of_modules = {"gradInput": 0.0, "output": 0.0}
    return t7(TorchObject("my.Model", 1, Table.of({**fields_of_modules, "weight": weight, "rows": rows})))


def repeated() -> bytes:
    """A tensor of 64 MB and 4 bytes with one element in its storage."""
    one = T7Tensor.from_numpy(np.zeros(1, "f4"))
    return t7(Table.of({"x": evolve(one, size=((1 << 24) + 1,), stride=(0,))}))


def t7(value: object) -> bytes:
    """A `.t7` with a value."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "x.t7")
        t7bridge.save(value, path)
        return path.read_bytes()


def verb(*words: str) -> Callable[..., None]:
    """The action of a command on a file; `{}` is its path."""

    def run(data: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "x.t7")
            path.write_bytes(data)
            name, *arguments = (word.format(path) for word in words)
            getattr(t7bridge, name)(*arguments, limits=limits)

    return run


RESNET = (TESTFILES / "models" / "resnet_small.t7").read_bytes()
SHARED = b"\x80\x02]q\0(" + b"K\1" * 50 + b"eh\0h\0h\0\x87."
# Name of the limit → a value of it, a file that meets it, and what is done with the file.
MET = {
    "objects": (10, nested("table", 11), t7bridge.load),
    "depth": (10, nested("table", 12), t7bridge.load),
    "payload_depth": (3, nested("gpu", 5), t7bridge.load),
    "dimensions": (8, tensor(9), t7bridge.load),
    "string_bytes": (100, strings(LITTLE8, 101), t7bridge.load),
    "allocated_bytes": (2560, nested("table", 11), t7bridge.load),
    "pickle_operations": (100, pt(b"\x80\x02]" + b"N0" * 60 + b"."), t7bridge.load),
    "inflated_operations": (4, pt(b"\x80\x02]" + b"N0" * 300_000 + b".", zipfile.ZIP_DEFLATED), t7bridge.load),
    "nested_files": (2, inside(4), t7bridge.load),
    "module_depth": (5, modules(7), t7bridge.load),
    "following_pickles": (2, b"\x80\x02]." * 4, t7bridge.load),
    "archive_members": (1, pt(b"\x80\x02]."), t7bridge.load),
    "inflate_ratio": (2, None, t7bridge.load),
    "inflate_bytes": (1 << 20, None, t7bridge.load),
    "header_bytes": (64, safetensors_header(100), t7bridge.load),
    "library_seconds": (1, (TESTFILES / "hostile/loop_chunks.h5").read_bytes(), read_hdf5),
    "library_bytes": (1 << 24, large_chunk(), read_hdf5),
    "name_chars": (100, RESNET, verb("draw", "{}", "{}.svg")),
    "searched_values": (10, unknown_class(), verb("draw", "{}", "{}.svg")),
    "blocks": (10, RESNET, verb("draw", "{}", "{}.svg")),
    "repeats": (0, repeated(), verb("convert", "{}", "{}.safetensors")),
    "work": (500, pt(SHARED), t7bridge.describe),
}
# Name of the limit → the words of a command that meets it; for others it is `describe`.
COMMANDS = {
    **{name: ["draw", "{}", "-o", "{}.svg"] for name in ("name_chars", "searched_values", "blocks")},
    "repeats": ["convert", "{}", "{}.safetensors"],
}


def bomb() -> bytes:
    """A checkpoint whose deflated pickle grows to 2 MiB."""
    return pt(b"\x80\x02" + text("x" * (2 << 20)) + b".", zipfile.ZIP_DEFLATED)


def file_of(name: str) -> bytes:
    """The file that meets a limit."""
    return MET[name][1] or bomb()


def low(name: str) -> Limits:
    """Limits of which one is so low that its file meets it."""
    extra = {"inflate_bytes": {"inflate_ratio": 0}, "inflate_ratio": {"inflate_bytes": 0}}.get(name, {})
    return Limits(**{name: MET[name][0], **extra})


def test_every_limit_has_a_file():
    """No limit is left without a test."""
    assert set(MET) == set(Limits._fields)


@pytest.mark.slow
@pytest.mark.parametrize("name", MET)
def test_limits_are_met(name):
    """The file of each limit is refused with the limit, its value and both ways to raise it; it is read otherwise."""
    with pytest.raises(LimitError) as caught:
        MET[name][2](file_of(name), limits=low(name))
    error = caught.value
    if name != "inflate_bytes":  # which of both is met is said of the pair
        assert error.limit == name
        assert error.value == MET[name][0]
        assert f"--limit {name}=N" in str(error)
        assert f"limits=Limits({name}=N)" in str(error)
    assert f"(the limit {name})" in str(error)
    assert error.file
    assert pickle.loads(pickle.dumps(error)).limit == error.limit

    if name == "library_seconds":  # over whose file the library loops
        return
    if name != "inflated_operations":  # which is met with its own default, for a file like this one
        MET[name][2](file_of(name))
    else:
        MET[name][2](file_of(name), limits=Limits(inflated_operations=1000))


@pytest.mark.slow
@pytest.mark.parametrize("name", MET)
def test_limits_on_the_command_line(name, tmp_path, capsys):
    """`--limit` lowers and raises each of them."""
    path = tmp_path / "x.bin"
    path.write_bytes(file_of(name))
    options = [f"--limit={field}={value}" for field, value in low(name)._asdict().items()]

    command = [word.format(path) for word in COMMANDS.get(name, ["describe", "{}"])]
    assert cli.main([*command, *options]) == 2
    assert f"(the limit {name})" in capsys.readouterr().err
    if name == "library_seconds":
        return
    raised = ["--limit", "inflated_operations=1000"]
    assert cli.main([*command, *raised]) == 0


@pytest.mark.parametrize(
    "arguments",
    [["convert", "{}", "{}.pt"], ["inspect", "{}"], ["verify", "{}", "{}"], ["module", "{}", "-o", "{}.d"],
     ["scan", "{}"], ["match", "{}", "{}"], ["describe", "{}"]],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_every_verb_takes_limits(arguments, tmp_path, capsys):
    """Each verb that reads files passes the limits on."""
    path = tmp_path / "x.t7"
    path.write_bytes(nested("table", 11))
    code = cli.main([*(word.format(path) for word in arguments), "--limit", "objects=10", "--limit", "depth=50"])

    assert code == 2
    assert "(the limit objects)" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["x.t7"]


@pytest.mark.parametrize("word", ["frobs=3", "objects", "objects=-1", "objects=many", "=3"])
def test_wrong_limits_are_wrong_usage(word, capsys):
    """A limit that does not exist, or no number, ends with 2, and the message has the names."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["describe", "x.t7", "--limit", word])
    assert caught.value.code == 2
    assert "objects" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("layout", [LITTLE8, BIG8, ASCII], ids=["little8", "big8", "ascii"])
@pytest.mark.parametrize("limit", [10, 5000, 2 << 20])
def test_strings_of_t7(layout, limit):
    """A string of exactly the limit is read, one of a byte more is not: keys, values, code, elements."""
    for make in (
        lambda length: strings(layout, length),
        lambda length: Parts(layout).string(b"k" * length).data,
        lambda length: Parts(layout).ints(3, 1, 1).string(b"k" * length).number(1).data,
        lambda length: Parts(layout).ints(8, 1).text(b"c" * length).ints(0).data,
        lambda length: Parts(layout).torch(1, "tds.Vec", 0).longs(1).string(b"v" * length).data,
    ):
        t7bridge.load(make(limit), limits=Limits(string_bytes=limit))
        with pytest.raises(LimitError, match="string_bytes"):
            t7bridge.load(make(limit + 1), limits=Limits(string_bytes=limit))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [10, 5000, 2 << 20])
def test_strings_of_records(limit):
    """Likewise in a list of records, which are read many at once."""
    records = Parts(LITTLE8).ints(3, 1, 40)
    for number in range(40):
        records.number(number).ints(3, number + 2, 1).string(b"id").string(b"x" * (limit + (number == 39)))
    with pytest.raises(LimitError, match="string_bytes"):
        t7bridge.load(records.data, limits=Limits(string_bytes=limit))


@pytest.mark.parametrize("limit", [10, 200, 70_000])
def test_strings_of_pickles(limit):
    """Likewise in pickles, by each opcode that makes a string."""
    for code, width in (
        (b"X", 4),
        (b"B", 4),
        (b"T", 4),
        (b"\x8e", 8),
        (b"\x8d", 8),
        (b"\x96", 8),
        (b"\x8c", 1),
        (b"C", 1),
    ):
        for length in (limit, limit + 1):
            if length >= 1 << 8 * width:
                continue
            data = b"\x80\x05" + code + length.to_bytes(width, "little") + b"x" * length + b"."
            if length == limit:
                t7bridge.load(pt(data), limits=Limits(string_bytes=limit))
                continue
            with pytest.raises(LimitError, match="string_bytes"):
                t7bridge.load(pt(data), limits=Limits(string_bytes=limit))
    with pytest.raises(LimitError, match="string_bytes"):
        t7bridge.load(pt(b"\x80\x02V" + b"x" * (limit + 1) + b"\n."), limits=Limits(string_bytes=limit))


def test_wrong_order_does_not_meet_the_limit_of_strings():
    """A length that is huge in one byte order and small in the other is that of the other."""
    data = Parts(BIG8).string(b"x" * 3).data + bytes(8 << 20)
    assert T7Reader(data, limits=Limits(string_bytes=1000)).read_object() == b"xxx"


@pytest.mark.slow
def test_no_file_of_ours_meets_a_default():
    """All files of the corpus are read with a thousandth of most defaults."""
    defaults = Limits()
    small = Limits(
        objects=defaults.objects // 1000,
        depth=2000,
        string_bytes=defaults.string_bytes // 1000,
        allocated_bytes=defaults.allocated_bytes // 100,
        pickle_operations=defaults.pickle_operations // 1000,
        archive_members=1000,
        work=10_000,
    )
    for path in corpus("format/*.t7", "legacy/*.t7", "models/*.t7", "pt/*.pt"):
        if not path.name.startswith(("object_custom_write", "stream")):
            t7bridge.describe(path, limits=small)


def test_depth_of_payloads_beyond_python():
    """If the limit is raised beyond Python's abilities, the error is still one of the package."""
    with pytest.raises(LimitError, match="deeper than Python allows"):
        t7bridge.load(nested("gpu", 5000), limits=Limits(payload_depth=10**6))
