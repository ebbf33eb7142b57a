"""Files whose values share their parts, have keys of one hash, or repeat their storage: no verb takes longer for it."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from bounds import bounded

import t7bridge
from t7bridge import T7Layout, Table, Tensor, TorchObject, cli
from t7bridge.errors import LimitError
from t7bridge.formats import T7Writer
from t7bridge.io import Output
from t7bridge.nn import Example

FOREIGN = b"cmy\nThing\n)R"
"""A call of a class that nobody knows."""


def timed(action: Callable[[], Any]) -> Any:
    """Return the result of a function, within the bounds of work for a small file."""
    with bounded():
        return action()


def doubled(first: bytes, mark: bytes, end: bytes, levels: int = 60) -> bytes:
    """A pickle of a value that holds itself twice, so many levels deep: `levels` bytes for `2**levels` values."""
    data = b"\x80\x02" + first + b"q\0"
    for level in range(levels):
        get = b"h" + bytes([level])
        data += mark + get + (get if end != b"\x91" else b"K" + bytes([level]) + get) + end + b"q" + bytes([level + 1])
    return data


@pytest.mark.parametrize("target", ["x.pt", "x.t7"])
@pytest.mark.parametrize(("mark", "end"), [(b"(", b"t"), (b"(", b"\x91")], ids=["tuples", "frozensets"])
def test_doubled_keys_with_a_foreign_object(tmp_path, target, mark, end) -> None:
    """A key that holds a foreign object 2**60 times is written as text, or refused, at once."""
    key = doubled(FOREIGN, mark, end)
    path = tmp_path / "keys.pt"
    path.write_bytes(b"\x80\x04" + key[2:] + b"q\xfe0}h\xfeNs.")

    def run() -> None:
        try:
            t7bridge.convert(path, tmp_path / target)
        except LimitError:
            return
        assert (tmp_path / target).stat().st_size < 100_000

    timed(run)


def test_doubled_tuples_beside_a_module(tmp_path) -> None:
    """Modules are looked for in each tuple once, and found in tuples of any depth."""
    module = b"ctorch.nn.modules.activation\nReLU\n)R}(X\x08\0\0\0trainingI01\nX\x0b\0\0\0_parameters}ub"
    path = tmp_path / "tuples.pt"
    path.write_bytes(doubled(module, b"(", b"t") + b"0]h\x3ca.")
    report = timed(lambda: t7bridge.convert(path, tmp_path / "x.pt"))
    assert "ReLU" in str(report.notes[0])


@pytest.mark.slow
def test_order_of_sets_that_share_their_elements(tmp_path) -> None:
    """Layers of sets that all hold all sets of the layer below are brought in order in proportion to the file."""
    data, layer = bytearray(b"\x80\x04]("), range(0)
    for level in range(16):
        for number in range(50):
            data += b"(J" + struct.pack("<i", level * 50 + number)
            data += b"".join(b"j" + struct.pack("<I", place) for place in layer) + b"\x91\x94"
        layer = range(level * 50, level * 50 + 50)
    path = tmp_path / "layers.pt"
    path.write_bytes(data + b"e.")
    for action in (
        lambda: t7bridge.convert(path, tmp_path / "x.pt"),
        lambda: t7bridge.convert(path, tmp_path / "x.t7"),
        lambda: cli.main(["inspect", "--all", str(path)]),
        lambda: t7bridge.verify(path, path),
    ):
        timed(action)


def test_many_keys_of_one_text(tmp_path) -> None:
    """Keys that have one text as they hold objects of one class get numbers, without a search for each."""
    count = 5_000
    path = tmp_path / "keys.pt"
    path.write_bytes(b"\x80\x02}(" + (FOREIGN + b"N") * count + b"u.")
    timed(lambda: t7bridge.convert(path, tmp_path / "x.pt"))
    keys = list(t7bridge.load(tmp_path / "x.pt"))
    assert len(set(keys)) == count
    assert keys[:2] == ["<my.Thing>", "<my.Thing> #2"]


def complex_keys(count: int) -> list[complex]:
    """Complex numbers of one hash, of which Python's is `hash(real) + 1000003 * hash(imag)`."""
    return [complex(1_000_003 * number, -number) for number in range(2, count + 2)]  # hash(-1.0) is -2


COLLIDING = {
    "integers": [((1 << 61) - 1) * number for number in range(1, 1201)],
    "complex numbers": complex_keys(1200),
    "tuples": [(key,) for key in complex_keys(1200)],
}


@pytest.mark.parametrize("kind", COLLIDING)
@pytest.mark.parametrize("container", [dict.fromkeys, set, frozenset])
def test_keys_of_one_hash_are_refused(kind, container) -> None:
    """Filling a dict or a set takes quadratic time: more than a thousand equal hashes are refused."""
    keys = COLLIDING[kind]
    assert len({hash(key) for key in keys}) == 1
    with pytest.raises(LimitError, match="have the same hash"):
        t7bridge.PtReader(pickle.dumps(container(keys), 4)).read()


def test_keys_that_repeat_from_dict_to_dict_are_not_refused() -> None:
    """The same tuple, complex number or large integer as a key of each of many dicts, or an element of many sets."""
    keys = [(1, 2), 3j, 1 << 70]
    value = [[dict.fromkeys(keys, number), set(keys), frozenset([*keys, number])] for number in range(3000)]
    assert t7bridge.PtReader(pickle.dumps(value, 4)).read() == value


def test_many_keys_of_many_hashes_are_not_refused() -> None:
    """A table of merges as tokenizers have it, with pairs of numbers for keys."""
    value = {(number, number * 7 % 50_000): number for number in range(50_000)}
    assert t7bridge.PtReader(pickle.dumps(value, 2)).read() == value


def t7_file(path: Path, value: Any) -> Path:
    """Write one value."""
    file = io.BytesIO()
    output = Output(file)
    T7Writer(output, T7Layout()).write_object(value)
    output.flush()
    path.write_bytes(file.getvalue())
    return path


def repeated(size: tuple[int, ...], stride: tuple[int, ...], count: int = 4) -> Tensor:
    """A tensor that repeats a small storage."""
    return evolve(Tensor.from_numpy(np.arange(count, dtype="f4")), size=size, stride=stride)


@pytest.mark.parametrize(
    ("size", "stride", "count"), [((1 << 20, 1 << 20), (0, 0), 4), ((20_000, 20_000), (1, 1), 40_000)]
)
def test_verify_of_a_tensor_that_repeats_its_storage(tmp_path, size, stride, count) -> None:
    """The other readers check the elements stored in the file, not each repetition in a view."""
    path = t7_file(tmp_path / "x.t7", Table.of({"x": repeated(size, stride, count)}))
    report = timed(lambda: t7bridge.verify(path, path))
    assert report.differences == []


def test_signaling_nans(tmp_path, recwarn) -> None:
    """A NaN that no calculation makes is counted like any other, without a warning of numpy."""
    bits = np.array([0x7F800001, 0xFFBFFFFF, 0x3F800000], "u4")
    path = t7_file(tmp_path / "x.t7", Tensor.from_numpy(bits.view("f4")))
    assert cli.main(["inspect", "--stats", str(path)]) == 0
    assert not [each for each in recwarn if issubclass(each.category, RuntimeWarning)]


def test_hdf5_that_points_beyond_its_end(tmp_path) -> None:
    """The library seeks to any offset in the file; nothing is there, and an error says so."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.ones(3, "f4")
    data, refused = bytearray(path.read_bytes()), 0
    for place in range(24, 96, 8):
        path.write_bytes(data[:place] + b"\xff" * 7 + b"\x7f" + data[place + 8 :])
        try:
            assert t7bridge.load(path)["a"].tolist() == [1, 1, 1], place
        except t7bridge.T7BridgeError as error:
            refused += "x.h5" in str(error)
    assert refused >= 3


def test_weights_for_lua_are_read_like_any_file(tmp_path, capsys) -> None:
    """`lua` reads weights with the reader that refuses what is hostile: no error of PyTorch's unpickler comes out."""
    for name, data in {"x.t7": b"\x04\0\0\0", "x.pt": b"\x80\x02cposix\nsystem\nX\1\0\0\0x\x85R."}.items():
        (tmp_path / name).write_bytes(data)
        code = cli.main(
            ["lua", "torch.nn:Linear(4, 3)", str(tmp_path / name), "--input", "1x4", "-o", str(tmp_path / "out")]
        )
        assert code == 2
        assert "internal error" not in capsys.readouterr().err


def test_a_member_that_is_marked_as_a_folder_and_empty(tmp_path) -> None:
    """Zip tools write entries for folders, which have no bytes: they are not weights, and do not matter."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        folder = zipfile.ZipInfo("a/")
        folder.external_attr = 0x10
        archive.writestr(folder, b"")
        archive.writestr("a/data.pkl", b"\x80\x02}X\1\0\0\0aK\1s.")
        archive.writestr("a/version", b"3\n")
    assert t7bridge.PtReader(file.getvalue()).read() == {"a": 1}


@pytest.mark.slow
def test_shapes_of_a_model_that_calls_itself_twice() -> None:
    """A table of a module twice, twice, and so on has 2**14 outputs: their shapes are not looked for."""
    pytest.importorskip("torch")
    from t7bridge.torchmodules import output_shapes

    module = TorchObject("nn.ReLU", 1, Table.of({"inplace": False}))
    assert output_shapes(module, "root", Example("", (1, 2)))[""] == ((1, 2),)  # which loads PyTorch
    for _ in range(14):
        module = TorchObject("nn.ConcatTable", 1, Table.of({"modules": Table.from_list([module, module])}))

    def run() -> None:
        with pytest.raises(LimitError, match="takes more work than the size of the file explains"):
            output_shapes(module, "root", Example("", (1, 2)))

    timed(run)


def test_torchscript_of_tables_that_hold_themselves(tmp_path) -> None:
    """Names of a table that holds itself have no end, and of one that is shared again and again too many."""
    table = Table.of({"w": Tensor.from_numpy(np.ones(2, "f4"))})
    cyclic = Table.of({"w": table["w"]})
    cyclic["inner"] = cyclic
    for _ in range(40):
        table = Table.of({"a": table, "b": table})
    for number, value in enumerate((cyclic, table)):
        path = t7_file(tmp_path / f"{number}.t7", value)
        with pytest.raises(LimitError):
            timed(lambda path=path: t7bridge.convert(path, tmp_path / "x.pt", pt_format="torchscript"))


@pytest.mark.parametrize("size", [(1 << 40, 1 << 40), (1 << 62, 4, 0)])
def test_sizes_that_pytorch_does_not_have(tmp_path, size) -> None:
    """A tensor with strides of 0, or without elements, whose sizes PyTorch cannot multiply is an error of ours."""
    pytest.importorskip("torch")
    with pytest.raises(t7bridge.T7BridgeError, match="sizes"):
        t7bridge.to_torch(repeated(size, (0,) * len(size)))
