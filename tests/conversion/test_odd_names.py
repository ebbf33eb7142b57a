"""Names, numbers and views that formats of named tensors do not have: nothing is lost, as their libraries see."""

from __future__ import annotations

import json

import numpy as np
import pytest
from looping import new_folder

import t7bridge

torch = pytest.importorskip("torch")
h5py = pytest.importorskip("h5py")
safetensors_torch = pytest.importorskip("safetensors.torch")


def of_hdf5(path):
    """The data sets of an HDF5 file as h5py reads them, by path."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
    return found


def of_safetensors(path):
    """The tensors as the safetensors library reads them."""
    return {name: tensor.numpy() for name, tensor in safetensors_torch.load_file(path).items()}


def of_npz(path):
    """The arrays as numpy reads them."""
    with np.load(path) as file:
        return dict(file)


LIBRARIES = {"h5": of_hdf5, "safetensors": of_safetensors, "npz": of_npz}


def through(tmp_path, value, suffix):
    """The file that PyTorch's own becomes, with the report, and what PyTorch loads of the way back."""
    torch.save(value, tmp_path / "a.pt")
    middle = tmp_path / f"a.{suffix}"
    report = t7bridge.convert(tmp_path / "a.pt", middle)
    t7bridge.convert(middle, tmp_path / "b.pt")
    return middle, report, torch.load(tmp_path / "b.pt", weights_only=True)


def leaves(value):
    """The tensors of nested dicts, in order."""
    return [leaf for item in value.values() for leaf in leaves(item)] if isinstance(value, dict) else [value]


ODD_NAMES = {
    "one_text": [1.0, "1.0", 1, "1", True, "True", "true", None, "None", b"x", "x"],
    "case": ["A", "a", "weight", "Weight"],
    "invalid": ["", ".", "..", "/", "//", "a/b", "a", "a\0b", "a_b", "__metadata__", "__metadata___", "\ud800", "é"],
    "ours": ["t7bridge", "t7bridge.elements", "format", "a.npy", "a"],
    "groups": ["1", "1.x", "1_"],
}  # fmt: skip


@pytest.mark.parametrize("suffix", LIBRARIES)
def test_every_tensor_has_a_name(subtests, tmp_path, suffix):
    """Each tensor is in the file under a name of its own, whatever its key is."""
    for case in ODD_NAMES:
        with subtests.test(case=case), new_folder(tmp_path) as folder:
            value = {key: torch.full((2,), float(number)) for number, key in enumerate(ODD_NAMES[case])}
            if case == "groups":
                value[1] = {"x": torch.full((2,), 20.0), "y": {"z": torch.full((2,), 21.0)}}
            want = sorted(float(tensor[0]) for tensor in leaves(value))
            middle, _, back = through(folder, value, suffix)
            assert sorted(float(array[0]) for array in LIBRARIES[suffix](middle).values()) == want
            assert sorted(float(tensor[0]) for tensor in leaves(back)) == want
            t7bridge.verify(folder / "a.pt", middle)


@pytest.mark.parametrize("suffix", LIBRARIES)
def test_other_names_are_reported(tmp_path, suffix):
    """A key whose text is taken is written under another name, and the report has both."""
    _, report, back = through(tmp_path, {"1.5": torch.zeros(1), 1.5: torch.ones(1)}, suffix)
    (note,) = [note for note in report.notes if note.code == "renamed"]
    assert (note.level, note.path) == ("warning", "1.5")
    assert note.message.endswith("written as 1.5~2")
    assert back["1.5~2"].tolist() == [1.0]


def test_keys_that_are_tensors(tmp_path):
    """The names of what is under them are the same whenever the file is converted."""
    torch.save({torch.zeros(2): {"step": torch.ones(1)}, torch.ones(2): {"step": torch.ones(2)}}, tmp_path / "a.pt")
    for target in ("b.npz", "c.npz"):
        t7bridge.convert(tmp_path / "a.pt", tmp_path / target)
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "c.npz").read_bytes()


@pytest.mark.parametrize("suffix", LIBRARIES)
def test_values_called_as_our_metadata(tmp_path, suffix):
    """Numbers and strings whose keys are those of our own metadata do not take their place."""
    base = torch.arange(6.0)
    keys = {"t7bridge": 3, "t7bridge.elements": "x", "format": 7, "": "s", "\ud800": "\ud800", "k" * 70_000: 1}
    value = {**keys, "a": base, "b": base[2:], "c": base.to(torch.float8_e4m3fn)}
    _, _, back = through(tmp_path, value, suffix)
    assert {name: each.dtype for name, each in back.items() if isinstance(each, torch.Tensor)} == {
        "a": torch.float32, "b": torch.float32, "c": torch.float8_e4m3fn
    }  # fmt: skip
    assert back["a"].data_ptr() + 8 == back["b"].data_ptr()


@pytest.mark.parametrize("suffix", LIBRARIES)
def test_strides_of_one_element_through_names(tmp_path, suffix):
    """Views with the largest strides that PyTorch has, along dimensions of one element, are tied again."""
    base = torch.arange(6.0)
    value = {"a": base, "b": base.as_strided((3, 1), (2, 2**63 - 1)), "c": base.as_strided((1, 2), (2**62, 1), 3)}
    middle, _, back = through(tmp_path, value, suffix)
    assert LIBRARIES[suffix](middle)["b"].tolist() == [[0.0], [2.0], [4.0]]
    assert {name: tensor.tolist() for name, tensor in back.items()} == {n: t.tolist() for n, t in value.items()}
    assert len({tensor.untyped_storage().data_ptr() for tensor in back.values()}) == 1


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize(("suffix", "kind"), [
    ("safetensors", "complex128"), ("safetensors", "complex32"), ("npz", "complex32"), ("h5", "complex32"),
])  # fmt: skip
def test_complex_numbers_as_pairs(tmp_path, suffix, kind):
    """Complex numbers that a format lacks are pairs in the file, and the same complex tensors afterwards."""
    base = torch.randn(3, 4, dtype=torch.complex128).to(getattr(torch, kind))
    value = {"a": base, "t": base.t()[1:3], "scalar": base[1, 2].clone(), "alone": base[:2].clone().t()}
    if kind == "complex128":
        value["conj"] = base.conj()
    middle, report, back = through(tmp_path, value, suffix)
    assert "element-type" in {note.code for note in report.notes}
    found = LIBRARIES[suffix](middle)
    for name, tensor in value.items():
        pairs = torch.view_as_real(tensor.resolve_conj().contiguous()).numpy()
        assert (found[name].dtype, found[name].tolist()) == (pairs.dtype, pairs.tolist())
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(torch.view_as_real(back[name].contiguous()), torch.as_tensor(pairs))
    assert back["a"].untyped_storage().data_ptr() == back["t"].untyped_storage().data_ptr()


@pytest.mark.parametrize("suffix", LIBRARIES)
def test_storages_become_tensors(tmp_path, suffix):
    """A storage is a tensor of one dimension where only tensors exist, and the report says so."""
    storage = t7bridge.Storage.from_array(np.arange(4, dtype="i8"))
    t7bridge.save({"sizes": storage, "w": t7bridge.Tensor.from_numpy(np.ones(2, "f4"))}, tmp_path / "a.t7")
    report = t7bridge.convert(tmp_path / "a.t7", tmp_path / f"a.{suffix}")
    assert LIBRARIES[suffix](tmp_path / f"a.{suffix}")["sizes"].tolist() == [0, 1, 2, 3]
    assert "storage" in {note.code for note in report.notes}


def test_safetensors_that_begin_like_a_pickle(subtests, tmp_path):
    """The length of a header may be the two bytes of a pickle: 640 those of protocol 2, 896 those of 3."""
    for protocol in [2, 3, 4, 5]:
        with subtests.test(protocol=protocol), new_folder(tmp_path) as folder:
            length = protocol * 256 + 128
            header = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
            text = json.dumps(header).ljust(length).encode()
            path = folder / "a.bin"
            path.write_bytes(length.to_bytes(8, "little") + text + np.ones(2, "f4").tobytes())
            assert safetensors_torch.load_file(path)["w"].tolist() == [1.0, 1.0]
            assert t7bridge.load(path)["w"].tolist() == [1.0, 1.0]


def test_names_that_zip_cannot_have(tmp_path):
    """A name of more than 65 531 bytes is refused for npz, in a message of bounded length."""
    torch.save({"k" * 70_000: torch.ones(1)}, tmp_path / "a.pt")
    with pytest.raises(t7bridge.errors.UnsupportedError, match="names of at most 65531 bytes") as caught:
        t7bridge.convert(tmp_path / "a.pt", tmp_path / "a.npz")
    assert len(str(caught.value)) < 700
    assert len(caught.value.path) == 70_000
    assert not (tmp_path / "a.npz").exists()
