"""safetensors, HDF5 and npz: their own libraries read what torchfile and PyTorch read from the source."""

import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torchfile
from bounds import bounded
from helpers import TESTFILES

import t7bridge
from t7bridge import Storage, Tensor, formats
from t7bridge.conversion import differences
from t7bridge.conversion.named_tensors import _reserve_in_groups, _UniqueNames
from t7bridge.errors import LimitError, ModelError, StrictError, UnsupportedError
from t7bridge.formats import FORMATS, NamedTensors
from t7bridge.limits import DEFAULT_LIMITS

FLAT_FORMATS = {"safetensors": ".safetensors", "hdf5": ".h5", "npz": ".npz"}

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.numpy")
h5py = pytest.importorskip("h5py")

KINDS = ("byte", "char", "short", "int", "long", "float", "double")


def flat(source: Path, target: Path) -> t7bridge.Report:
    """Write one file in the format of its suffix."""
    report = t7bridge.convert(source, target)
    assert differences(str(source), str(target), DEFAULT_LIMITS) == []
    return report


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["", ".big", ".ascii"])
def test_elements(tmp_path: Path, kind: str, layout: str) -> None:
    """Tensors of every type, in every encoding, have the elements that torchfile reads from the binary file."""
    source = TESTFILES / f"format/tensor_{kind}{layout}.t7"
    wanted = torchfile.load(str(TESTFILES / f"format/tensor_{kind}.t7"))
    flat(source, tmp_path / "x.safetensors")
    flat(source, tmp_path / "x.h5")

    read = safetensors.load_file(tmp_path / "x.safetensors")
    assert list(read) == ["root"]
    assert read["root"].dtype == wanted.dtype
    np.testing.assert_array_equal(read["root"], wanted)
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(file["root"][()], wanted)


@pytest.mark.parametrize("suffix", FLAT_FORMATS.values())
def test_models_have_state_dicts(tmp_path: Path, suffix: str) -> None:
    """Modules have PyTorch's names and shapes, in a checkpoint under their own; the same bytes each time."""
    for name in ("one", "two"):
        flat(TESTFILES / "models/training_checkpoint.t7", tmp_path / f"{name}{suffix}")
    t7bridge.convert(TESTFILES / "models/training_checkpoint.t7", tmp_path / "x.pt")
    state = t7bridge.load(tmp_path / "x.pt")["model"]

    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()
    if suffix == ".h5":
        with h5py.File(tmp_path / "one.h5") as file:
            read = {name: file["model"][name][()] for name in file["model"]}
    else:
        found = np.load(tmp_path / "one.npz") if suffix == ".npz" else safetensors.load_file(tmp_path / f"one{suffix}")
        read = {name.removeprefix("model."): array for name, array in found.items() if name.startswith("model.")}
    assert set(read) == set(state)
    for name, tensor in state.items():
        np.testing.assert_array_equal(read[name], tensor.numpy())


def test_views_and_sharing(tmp_path: Path) -> None:
    """Views are written row by row, under each name, and the report names them."""
    base = np.arange(12, dtype="f4")
    storage = Storage.from_array(base)
    element = storage.element
    views = {"a": Tensor(element, storage, (3, 4), (4, 1), 0), "t": Tensor(element, storage, (4, 3), (1, 4), 0)}
    t7bridge.save(views, tmp_path / "views.pt")
    report = flat(tmp_path / "views.pt", tmp_path / "views.safetensors")

    read = safetensors.load_file(tmp_path / "views.safetensors")
    np.testing.assert_array_equal(read["t"], base.reshape(3, 4).T)
    assert "2 tensors of 1 storage share memory" in report.notes[0].message


def test_what_is_no_tensor(tmp_path: Path) -> None:
    """Numbers and strings become metadata; what has no place there is named."""
    element = Storage.from_array(np.zeros(2, "f4"))
    tensor = Tensor(element.element, element, (2,), (1,), 0)
    t7bridge.save({"w": tensor, "epoch": 3, "name": "net", "raw": b"\xff", "inner": {"x/y": tensor}}, tmp_path / "x.pt")
    report = flat(tmp_path / "x.pt", tmp_path / "x.safetensors")
    flat(tmp_path / "x.pt", tmp_path / "x.h5")

    from safetensors import safe_open

    with safe_open(tmp_path / "x.safetensors", "np") as file:
        metadata = file.metadata()
        assert "inner.x/y" in metadata.pop("t7bridge")
        assert metadata == {"format": "pt", "epoch": "3", "name": '"net"'}
    assert [note.path for note in report.notes if note.level == "warning"] == ["raw"]
    with h5py.File(tmp_path / "x.h5") as file:
        assert (sorted(file), sorted(file["inner"]), file.attrs["epoch"]) == (["inner", "w"], ["x_y"], "3")


def test_types_that_one_format_lacks(tmp_path: Path) -> None:
    """bfloat16 is itself in safetensors and float32 in HDF5; what a format does not have is refused."""
    bits = np.array([0x3F80, 0xC040], "u2")
    bfloat = t7bridge.graph.dtypes.ELEMENT_TYPES["bfloat16"]
    storage = Storage.from_array(bits, bfloat)
    t7bridge.save({"w": Tensor(bfloat, storage, (2,), (1,), 0)}, tmp_path / "b.pt")
    flat(tmp_path / "b.pt", tmp_path / "b.safetensors")
    flat(tmp_path / "b.pt", tmp_path / "b.h5")
    bits16 = t7bridge.graph.dtypes.ELEMENT_TYPES["bits16"]
    storage = Storage.from_array(bits, bits16)
    t7bridge.save({"w": Tensor(bits16, storage, (2,), (1,), 0)}, tmp_path / "c.pt")

    from safetensors import deserialize

    [(_, found)] = deserialize((tmp_path / "b.safetensors").read_bytes())
    assert (found["dtype"], bytes(found["data"])) == ("BF16", bits.tobytes())
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["w"][()].tolist() == [1.0, -3.0]
    with pytest.raises(UnsupportedError, match="w: safetensors has no elements of type bits16"):
        flat(tmp_path / "c.pt", tmp_path / "c.safetensors")


@pytest.mark.parametrize("suffix", FLAT_FORMATS.values())
def test_no_tensors(tmp_path: Path, suffix: str) -> None:
    """A file without tensors is refused, and nothing is left."""
    with pytest.raises(ModelError, match="holds no tensor"):
        flat(TESTFILES / "format/nil.t7", tmp_path / f"x{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", FLAT_FORMATS.values())
def test_differences_are_found(tmp_path: Path, suffix: str) -> None:
    """Comparing finds other elements, and tensors that are missing."""
    flat(TESTFILES / "format/tensor_float.t7", tmp_path / f"x{suffix}")

    for other in ("format/tensor_double.t7", "models/lenet_mm.t7"):
        assert differences(str(TESTFILES / other), str(tmp_path / f"x{suffix}"), DEFAULT_LIMITS)


@pytest.mark.slow
def test_zoo(tmp_path: Path) -> None:
    """A zoo of models in one format, verified by its library."""
    for to, suffix in FLAT_FORMATS.items():
        report = t7bridge.convert_zoo(TESTFILES / "models", tmp_path / to, to=to, verify=True, workers=0)
        assert report.ok, report.failures
        assert len(report.rows) > 20
        assert all(row.output.endswith(suffix) for row in report.rows)


def test_elements_that_are_shown_very_often(tmp_path: Path) -> None:
    """A view that repeats one element many millions of times is refused before any of it is written."""
    torch.save({"w": torch.zeros(1).expand(20_000_000)}, tmp_path / "x.pt")
    for suffix in ("safetensors", "npz", "h5"):
        with pytest.raises(LimitError, match="repeat the same elements"):
            t7bridge.convert(tmp_path / "x.pt", tmp_path / f"x.{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]


@pytest.mark.parametrize(("count", "single"), [(1000, True), (1001, False)])
def test_numbers_beside_tensors(count: int, single: bool, tmp_path: Path) -> None:
    """A thousand numbers are metadata beside the tensors; of more those of one table are one text."""
    torch.save({"w": torch.ones(2), **{f"n{number}": number for number in range(count)}}, tmp_path / "x.pt")
    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.safetensors")
    with safetensors.safe_open(tmp_path / "x.safetensors", "np") as file:
        metadata = file.metadata() or {}
    found = metadata if single else json.loads(metadata["values"])
    assert {key: int(found[key]) for key in found if key.startswith("n")} == {f"n{n}": n for n in range(count)}
    assert not report.notes


NUMBERS = {
    "w": torch.ones(2), "n": 3, "x": 0.1, "yes": True, "big": 1 << 70, "minus": -0.0,
    "state": (3, (1, 2, 3), None), "losses": [0.5, 1, 2.25], "ints": [1, -(1 << 63)], "floats": [1.0, 2.0],
    "flags": [True, False], "odd": [1.0, 2], "kinds": [1, True], "deep": [[1, 2], [3.5]], "empty": [],
}  # fmt: skip


def test_numbers_are_arrays_of_an_npz(tmp_path: Path) -> None:
    """numpy finds numbers and lists of numbers as `numpy.savez` writes them; they are Python's on the way back."""
    torch.save(NUMBERS, tmp_path / "x.pt")
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.npz", to="npz")
    with np.load(tmp_path / "x.npz") as file:
        arrays = dict(file)
    for name in ("n", "x", "yes", "minus", "losses", "ints", "floats", "flags"):
        expected = np.asarray(NUMBERS[name])
        assert (arrays[name].dtype, arrays[name].tobytes()) == (expected.dtype, expected.tobytes()), name
    assert {name for name in arrays if arrays[name].ndim == 1} >= {"state.1", "deep.0", "deep.1"}
    assert {"odd.0", "odd.1", "kinds.0", "kinds.1", "state.0"} <= set(arrays)
    assert "big" not in arrays

    assert t7bridge.verify(tmp_path / "x.pt", tmp_path / "x.npz").same
    back = t7bridge.load(tmp_path / "x.npz")
    for name in ("n", "x", "yes", "minus", "losses", "ints", "floats", "flags"):
        assert repr(back[name]) == repr(NUMBERS[name])
    assert (back["state.0"], back["state.1"], back["deep.1"]) == (3, (1, 2, 3), [3.5])
    assert [repr(back[name]) for name in ("odd.0", "odd.1", "kinds.0", "kinds.1")] == ["1.0", "2", "1", "True"]
    for suffix in ("npz", "safetensors", "h5"):
        t7bridge.convert(tmp_path / "x.npz", tmp_path / f"y.{suffix}")
        assert t7bridge.verify(tmp_path / "x.npz", tmp_path / f"y.{suffix}").same


def test_arrays_of_numbers_that_were_edited(tmp_path: Path) -> None:
    """What a file shows counts: other numbers, other types and other shapes than those recorded."""
    torch.save({"w": torch.ones(2), "n": 3, "mixed": [0.5, 1], "m": [1, 2], "t": (1, 2)}, tmp_path / "x.pt")
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.npz", to="npz")
    with np.load(tmp_path / "x.npz") as file:
        arrays = dict(file) | {"n": np.float32(2.5), "mixed": np.array([2, 0.25, -0.0]), "m": np.eye(2)}
    with t7bridge.open(tmp_path / "x.npz") as document:
        comment = document.content.comment
    arrays["t"] = np.array(7)
    np.savez(tmp_path / "y.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "y.npz", "a") as archive:
        archive.comment = comment

    back = t7bridge.load(tmp_path / "y.npz")
    assert (back["n"], repr(back["mixed"])) == (2.5, "[2, 0.25, -0.0]")
    assert back["m"].shape == (2, 2)
    assert back["t"].item() == 7


@pytest.mark.slow
@pytest.mark.parametrize(("count", "arrays"), [(1000, True), (1001, False)])
def test_very_many_numbers_are_no_arrays(count: int, arrays: bool, tmp_path: Path) -> None:
    """Of more than a thousand numbers none is an array of its own."""
    torch.save({"w": torch.ones(2), "n": {str(n): n for n in range(count)}}, tmp_path / "x.pt")
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.npz", to="npz")
    with np.load(tmp_path / "x.npz") as file:
        assert len(file.files) == (1 + count if arrays else 1)
    assert t7bridge.verify(tmp_path / "x.pt", tmp_path / "x.npz").same


@pytest.mark.parametrize("suffix", FLAT_FORMATS.values())
def test_texts_that_metadata_have_no_room_for(suffix: str, tmp_path: Path) -> None:
    """Every string of a large vocabulary is in the metadata or counted in a note, and nothing else is affected."""
    words = {f"{number:x}" * 20: random.Random(number).random() for number in range(9000)}
    value = {"w": torch.ones(2), "v": {"words": words}, "long": "".join(map(str, words.values())), "none": None}
    torch.save(value, tmp_path / "x.pt")
    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / f"x{suffix}")
    with t7bridge.open(tmp_path / f"x{suffix}") as document:
        texts = {name: json.loads(text) for name, text in document.metadata.items() if name != "format"}
    found = {word: number for text in texts.values() if isinstance(text, dict) for word, number in text.items()}
    left = sum(note.count for note in report.notes if note.code == "left-out")
    assert texts["none"] is None
    assert found.items() <= words.items()
    assert len(found) + ("long" in texts) + left == len(words) + 1
    assert (left == 0) == (suffix == ".safetensors")
    assert len(found) == len(words) or suffix == ".npz"


def test_paths_in_notes_are_counted(tmp_path: Path) -> None:
    """Of what is left out, a note has the number and the first five paths."""
    for count in (1, 5, 6):
        torch.save({"w": torch.ones(2), "raw": [b"\xff"] * count}, tmp_path / "x.pt")
        report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.npz", force=True)
        (note,) = [note for note in report.notes if note.code == "left-out"]
        assert (note.count, note.path) == (count, "raw.0")
        assert ("raw.4" in note.message) == (count >= 5)
        assert ("1 more" in note.message) == (count > 5)


def test_formats_without_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a format has no metadata, the loss of sharing is named, and so is each kind of value, once."""
    monkeypatch.setitem(FORMATS, "npz", FORMATS["npz"]._replace(text_bytes=0, numbers=False))
    base = Tensor.from_numpy(np.arange(6, dtype=np.float32))
    t7bridge.save({"a": base, "b": base[2:4], "epoch": 3, "rate": 4, "name": "x"}, tmp_path / "x.pt")
    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.npz", to="npz")
    notes = [(note.code, note.loss, note.message) for note in report.notes]
    assert notes == [
        ("left-out", "", "int: 2 of them: left out, as a numpy archive holds tensors only (epoch, rate)"),
        ("left-out", "", "str: left out, as a numpy archive holds tensors only"),
        ("unshared", "sharing", "2 tensors that share memory are written separately: a, b"),
    ]
    with np.load(tmp_path / "x.npz") as file:
        assert set(file) == {"a", "b"}
    with pytest.raises(StrictError):
        t7bridge.convert(tmp_path / "x.pt", tmp_path / "y.npz", to="npz", strict=True)


def test_many_tensors_of_one_name(tmp_path: Path) -> None:
    """Keys that differ may have one text: each tensor has a name of its own."""

    def keys(depth: int) -> object:
        return {1: keys(depth - 1), "1": keys(depth - 1)} if depth else Tensor.from_numpy(np.zeros(1))

    t7bridge.save(keys(8), tmp_path / "x.pt")
    flat(tmp_path / "x.pt", tmp_path / "x.npz")
    name = ".".join(["1"] * 8)
    with np.load(tmp_path / "x.npz") as file:
        assert {name, f"{name}~2", f"{name}~256"} < {*file}


def test_free_names_are_found_at_once() -> None:
    """The search for a free name does not start from the first one each time."""
    names = _UniqueNames()
    with bounded(60):
        for _ in range(20_000):
            last = names.reserve(("1",))
    assert last == ("1~20000",)


def test_groups_that_are_nested_deeply(tmp_path: Path) -> None:
    """The names of all groups around a tensor of an HDF5 file are far longer than the file."""
    value: object = Tensor.from_numpy(np.zeros(1))
    for _ in range(3000):
        value = {"a": value}
    t7bridge.save(value, tmp_path / "x.pt")
    with pytest.raises(LimitError, match="nested values as groups"):
        t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.h5")


def test_other_names_are_those_of_no_group(tmp_path: Path) -> None:
    """A name made because another is taken may be taken, too: by a tensor or by a group."""
    tensors = [Tensor.from_numpy(np.full(1, number)) for number in range(3)]
    t7bridge.save({"1": tensors[0], "1~2": {"b": tensors[1]}, 1: {"b": {"c": tensors[2]}}}, tmp_path / "x.pt")
    report = flat(tmp_path / "x.pt", tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        assert [file[name][()].item() for name in ("1", "1~2/b", "1~2/b~2/c")] == [0, 1, 2]
    assert any(note.message.endswith("written as 1~2.b~2.c") for note in report.notes)

    value = {1: tensors[0], "1": {"b": tensors[1], "c": tensors[2]}}
    t7bridge.save(value, tmp_path / "y.pt")
    flat(tmp_path / "y.pt", tmp_path / "y.h5")
    with h5py.File(tmp_path / "y.h5") as file:  # what is in one group stays in one
        assert {name: sorted(group) for name, group in file.items() if name != "1"} == {"1~2": ["b", "c"]}

    names = _UniqueNames({("a",)})
    assert _reserve_in_groups(("a",), names, groups={("a~2",)}) == ("a~",)


def test_texts_of_one_name(tmp_path: Path) -> None:
    """Texts whose keys have one text, or are joined to one, are kept under other names, and named."""
    value = {"w": Tensor.from_numpy(np.zeros(1)), 1: "number", "1": "text", "a": {"b": "inside"}, "a.b": "beside"}
    t7bridge.save(value, tmp_path / "x.pt")
    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.safetensors")
    assert [(note.path, note.message.rpartition(" ")[2]) for note in report.notes if note.code == "renamed"] == [
        ("1", "1~2"),
        ("a.b", "a.b~2"),
    ]
    with safetensors.safe_open(tmp_path / "x.safetensors", "np") as file:
        texts = {key: json.loads(text) for key, text in file.metadata().items() if key != "format"}
    assert texts == {"1": "number", "1~2": "text", "a.b": "inside", "a.b~2": "beside"}


def test_names_of_texts_that_hdf5_cannot_have(tmp_path: Path) -> None:
    """A text of such a name has another one, which is noted and which no other has; one without room is left out."""
    texts = {"": "nothing", "a\0b": "zero", "a_b": "plain", "\ud800": "half", "long": "x" * 70_000}
    t7bridge.save({"w": Tensor.from_numpy(np.zeros(1)), **texts}, tmp_path / "x.pt")
    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        attributes = {name: json.loads(text) for name, text in file.attrs.items()}
    assert attributes == {"_": "nothing", "a_b": "zero", "a_b~2": "plain", "\\ud800": "half"}
    assert [note.path for note in report.notes if note.code == "renamed"] == ["", "a\0b", "a_b", "\ud800"]
    assert [note.path for note in report.notes if note.code == "left-out"] == ["long"]
    verified = t7bridge.verify(tmp_path / "x.pt", tmp_path / "x.h5")
    assert not verified.differences
    assert list(verified.left_out) == [str(tmp_path / "x.pt")]

    # Metadata of another format have names and texts that HDF5 cannot have, too.
    metadata = {"": "nothing", "a": "zero\0", "b": "half \ud800", "c": "é"}
    formats.write(NamedTensors({("w",): Tensor.from_numpy(np.zeros(1))}, metadata), tmp_path / "y.h5")
    with h5py.File(tmp_path / "y.h5") as file:
        assert dict(file.attrs) == {"_": "nothing", "c": "é"}
