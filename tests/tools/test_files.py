"""Loading, saving and describing by path."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TESTFILES

import t7bridge
from t7bridge.errors import T7BridgeError, TargetExistsError, TruncatedError, UnknownFormatError, UnsupportedError
from t7bridge.graph import DefaultDict, PythonGlobal
from t7bridge.io.source import ByteSource

ROOT = Path(__file__).parents[2] / "testfiles"


def test_public_names() -> None:
    """Every public name is there and has a docstring."""
    for name in t7bridge.__all__:
        value = getattr(t7bridge, name)
        assert name == "__version__" or value.__doc__
    assert set(t7bridge.__all__) <= set(dir(t7bridge))
    with pytest.raises(AttributeError, match="no attribute"):
        _ = t7bridge.frobnicate


def test_errors_on_arguments_name_the_verb() -> None:
    """Python's error on an unknown argument names the function that was called."""
    verbs = {name: value for name in t7bridge.__all__ if hasattr(value := getattr(t7bridge, name), "request")}
    assert {"convert", "describe", "verify"} <= verbs.keys()
    for name, verb in verbs.items():
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'unknown'"):
            verb(unknown=1)


def test_errors_in_notebooks(tmp_path: Path) -> None:
    """IPython shows the user's frames, without its own first one and those of the package, and one message."""

    def cell() -> None:
        t7bridge.load(tmp_path / "missing.t7")

    with pytest.raises(t7bridge.T7BridgeError) as caught:
        cell()
    frame, message = caught.value._render_traceback_()
    assert "in cell" in frame
    assert 'missing.t7")' in frame
    assert message == f"MissingFileError: {caught.value}"


def test_load_by_content(tmp_path: Path) -> None:
    """A file is identified by its content, whatever its name."""
    (tmp_path / "a.pt").write_bytes((ROOT / "format/table_list.t7").read_bytes())
    (tmp_path / "b.t7").write_bytes((ROOT / "pt/nested.pt").read_bytes())

    assert t7bridge.load(tmp_path / "a.pt").as_list() == [b"hello", b"world", b"third", 124.0, True]
    assert t7bridge.load(tmp_path / "b.t7")["a"][:3] == [1, 2.5, "x"]


def test_load_from_the_middle() -> None:
    """A file object is read from its position."""
    with open(ROOT / "format/stream.t7", "rb") as file:
        file.seek(4)
        assert t7bridge.load(file)["hello"] == 123.0


def test_open_in_the_middle(tmp_path: Path) -> None:
    """A document keeps the position at which the file object was when it was opened, and closes what it reads."""
    data = t7bridge.Tensor.from_numpy(np.arange(3.0))
    t7bridge.save(data, tmp_path / "x.t7")
    (tmp_path / "y.t7").write_bytes(b"head" + (tmp_path / "x.t7").read_bytes())
    with open(tmp_path / "y.t7", "rb") as file:
        file.seek(4)
        with t7bridge.open(file) as document:
            file.seek(0)
            tensor = document.value
            assert tensor.shape == (3,)
    with pytest.raises(T7BridgeError, match="closed"):
        tensor.numpy()


def test_load_something_else(tmp_path: Path) -> None:
    """Another kind of file is named as what it is."""
    np.save(tmp_path / "x.npy", np.zeros(3))

    with pytest.raises(UnknownFormatError, match="numpy"):
        t7bridge.load(tmp_path / "x.npy")


def test_save_lua_value(tmp_path: Path) -> None:
    """A Lua value goes to a `.t7` with the same bytes, and to a `.pt` that PyTorch loads."""
    value = t7bridge.load(ROOT / "format/checkpoint.t7")
    t7bridge.save(value, tmp_path / "x.t7")
    t7bridge.save(value, tmp_path / "x.pt")

    assert (ROOT / "format/checkpoint.t7").read_bytes() == (tmp_path / "x.t7").read_bytes()
    assert torch.load(tmp_path / "x.pt", weights_only=True)["epoch"] == 11


def test_save_python_value(tmp_path: Path) -> None:
    """Builtins with tensors go to both formats."""
    weight = t7bridge.Tensor.from_numpy(np.arange(6, dtype="f4").reshape(2, 3))
    value = {"weight": weight, "names": ["a", "b"], "epoch": 3}
    t7bridge.save(value, tmp_path / "x.pt")
    t7bridge.save(value, tmp_path / "x.t7", layout=t7bridge.T7Layout(encoding="ascii"))

    assert torch.load(tmp_path / "x.pt", weights_only=True)["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    table = t7bridge.load(tmp_path / "x.t7")
    assert table["names"].as_list() == [b"a", b"b"]
    assert table["weight"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (tmp_path / "x.t7").read_bytes().startswith(b"3\n1\n3\n")


@pytest.mark.parametrize("suffix", ["pt", "t7"])
def test_save_arrays_in_tuples(suffix: str, tmp_path: Path) -> None:
    """Arrays and tensors are saved at any depth of tuples, lists and dicts, as the states of a recurrent network."""
    state = (np.arange(2.0), torch.ones(3))
    layers = ((state, state), [{"last": (state[0],)}], (1, "x"))
    t7bridge.save({"layers": layers, "again": layers}, tmp_path / f"x.{suffix}")

    read_back = t7bridge.to_python(t7bridge.load(tmp_path / f"x.{suffix}"))
    first, second, third = read_back["layers"]
    assert first[0] is first[1]
    assert first[0][0].tolist() == [0, 1]
    assert first[0][1].tolist() == [1, 1, 1]
    assert second[0]["last"][0].tolist() == [0, 1]
    assert list(third) == [1, "x"]
    assert read_back["again"] is read_back["layers"]


@pytest.mark.parametrize("suffix", ["t7", "pt", "safetensors"])
@pytest.mark.parametrize("names", [("part", "whole"), ("whole", "part")])
def test_save_memory_that_begins_alike(names: tuple[str, str], suffix: str, tmp_path: Path) -> None:
    """Arrays of different lengths at one address are two storages of PyTorch: the shorter one is not taken for both."""
    array = np.arange(4, dtype=np.float32)
    tensors = {"part": torch.from_numpy(array[:2]), "whole": torch.from_numpy(array)}
    path = tmp_path / f"x.{suffix}"
    t7bridge.save({name: tensors[name] for name in names}, path)
    value = t7bridge.load(path)
    assert {name: value[name].numpy().tolist() for name in names} == {"part": [0, 1], "whole": [0, 1, 2, 3]}


def test_writer_keeps_default_dict(tmp_path: Path) -> None:
    """A defaultdict with an array in it stays one, with its factory, where the writer may name other packages."""
    value = DefaultDict(PythonGlobal("builtins", "list"))
    value["weight"] = np.arange(3.0)
    with t7bridge.PtWriter(tmp_path / "x.pt", allow_foreign=True) as writer:
        writer.write({"layers": value})

    read_back = t7bridge.load(tmp_path / "x.pt")["layers"]
    assert type(read_back) is DefaultDict
    assert read_back.factory.path == "builtins.list"
    assert read_back["weight"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("suffix", ["t7", "pt", "safetensors", "npz", "h5"])
def test_save_lua_values_in_builtins(suffix: str, tmp_path: Path) -> None:
    """Values loaded from a .t7 may be inside lists and dicts, next to arrays; every format has their tensors."""
    model = t7bridge.load(TESTFILES / "nn" / "Linear.t7")
    path = tmp_path / f"x.{suffix}"
    t7bridge.save({"model": model, "extra": np.arange(3.0)}, path)
    found = t7bridge.to_python(t7bridge.load(path))
    weight = found["model.weight"] if "model.weight" in found else found["model"]["weight"]
    np.testing.assert_array_equal(weight, model["weight"].numpy())
    np.testing.assert_array_equal(found["extra"], [0, 1, 2])


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "h5"])
@pytest.mark.parametrize("key", ["", "net"])
def test_save_modules_as_convert_does(suffix: str, key: str, tmp_path: Path) -> None:
    """In formats of named tensors, data of a module itself are text in the metadata, and all tensors are weights."""
    model = t7bridge.load(TESTFILES / "nn" / "Linear.t7")
    model["vocab"] = t7bridge.Table.of({"a": 1.0, "b": 2.0})
    value = t7bridge.Table.of({key: model}) if key else model
    t7bridge.save(value, tmp_path / "in.t7")
    t7bridge.convert(tmp_path / "in.t7", tmp_path / f"converted.{suffix}")
    t7bridge.save(value, tmp_path / f"saved.{suffix}")
    assert t7bridge.verify(tmp_path / f"converted.{suffix}", tmp_path / f"saved.{suffix}").same
    with t7bridge.open(tmp_path / f"saved.{suffix}") as document:
        texts = {name.removeprefix(f"{key}."): text for name, text in document.metadata.items()}
    assert texts["vocab.a"] == "1"
    assert texts["vocab.b"] == "2"


def test_save_refuses(tmp_path: Path) -> None:
    """An existing file and a name without a format are refused."""
    t7bridge.save(1.0, tmp_path / "x.t7")

    with pytest.raises(TargetExistsError):
        t7bridge.save(2.0, tmp_path / "x.t7")
    t7bridge.save(2.0, tmp_path / "x.t7", force=True)
    assert t7bridge.load(tmp_path / "x.t7") == 2.0
    with pytest.raises(UnsupportedError, match="format"):
        t7bridge.save(1.0, tmp_path / "x.xyz")


def test_lazy(tmp_path: Path) -> None:
    """Loading does not read the weights: they can be damaged and still be loaded, until they are asked for."""
    data = (ROOT / "format/tensor_float.t7").read_bytes()
    (tmp_path / "x.t7").write_bytes(data)
    tensor = t7bridge.load(tmp_path / "x.t7")
    (tmp_path / "x.t7").write_bytes(data[:-4])

    with pytest.raises(t7bridge.T7BridgeError):
        tensor.numpy()


def test_arrays_are_read_and_mapped_on_request(tmp_path) -> None:
    """Arrays are what was read, whatever becomes of the file; maps of it are for those who ask for them."""
    tensor = t7bridge.Tensor.from_numpy(np.arange(40_000, dtype="f4"))
    path = tmp_path / "x.npz"
    t7bridge.save({"w": tensor}, path)
    loaded = t7bridge.load(path)["w"]
    mapped = t7bridge.load(path, mmap=True)["w"]
    array = loaded.numpy()
    assert not array.flags.writeable
    shown = mapped.numpy()
    assert np.array_equal(shown, array)
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(bytes(4000))
    assert np.array_equal(array, tensor.array)
    assert not np.array_equal(shown, array)
    del shown
    os.truncate(path, 8192)
    assert array.sum() == tensor.array.sum()
    for each in (loaded, mapped):
        with pytest.raises(TruncatedError):
            each.numpy()


def test_of_a_large_storage_only_a_view_is_read(tmp_path, monkeypatch) -> None:
    """The array of a tensor costs the elements that it covers, not all of its storage."""
    whole = t7bridge.Tensor.from_numpy(np.arange(100_000, dtype="f4").reshape(1000, 100))
    t7bridge.save({"whole": whole, "part": whole[500:502, ::2]}, tmp_path / "x.pt")
    part = t7bridge.load(tmp_path / "x.pt")["part"]
    lengths = []
    read_into = ByteSource.read_into
    monkeypatch.setattr(
        ByteSource, "read_into", lambda self, at, into: lengths.append(len(into)) or read_into(self, at, into)
    )
    assert np.array_equal(part.numpy(), whole.array[500:502, ::2])
    assert sum(lengths) < 1000
