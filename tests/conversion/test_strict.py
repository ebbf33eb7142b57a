"""`strict`: what a target cannot keep is always in the report, and an error where that was asked for."""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict

import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge import Storage, Table, Tensor, TorchObject, cli
from t7bridge.errors import StrictError

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


def shared() -> object:
    """Two tensors of different types on one memory."""
    base = torch.arange(
        8, dtype=torch.int32
    )  # PyTorch saves two types of one memory only where it has no class for them
    return {"a": base.view(torch.uint32), "b": base.view(torch.uint16)}


# What is lost → the value, and words of the note.
LOST = {
    "type": {
        "bfloat16": (lambda: {"w": torch.ones(2, dtype=torch.bfloat16)}, "bfloat16 is written as float32"),
        "bool": (lambda: {"w": torch.ones(2, dtype=torch.bool)}, "bool is written as uint8"),
        "complex": (lambda: {"w": torch.ones(2, dtype=torch.complex64)}, "complex64 is written as float32"),
        "key": (lambda: {(1, 2): 3}, "a key that Lua cannot look up"),
        "empty": (lambda: {"w": torch.ones(0, 3)}, "a tensor without elements has no dimensions"),
    },
    "precision": {
        "integer": (lambda: {"n": 2**53 + 1}, "is the nearest Lua number"),
        "large integer": (lambda: {"n": 10**400}, "an integer beyond Lua's numbers"),
        "uint64": (lambda: {"w": torch.tensor([2**64 - 1], dtype=torch.uint64)}, "exact to 2^53"),
    },
    "sharing": {
        "two types": (shared, "memory that is seen as two types"),
        "conjugate": (lambda: {"w": torch.ones(2, dtype=torch.complex64).conj()}, "has memory of its own"),
    },
}
CASES = [(loss, name) for loss, cases in LOST.items() for name in cases]


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_losses_are_reported_or_refused(loss, name, tmp_path):
    """A report names the loss and its kind; `strict` refuses it, with the notes, and leaves nothing."""
    make, words = LOST[loss][name]
    torch.save(make(), tmp_path / "x.pt")
    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.t7")
    assert any(note.loss == loss and words in note.message for note in report.notes)
    (tmp_path / "x.t7").unlink()

    with pytest.raises(StrictError, match=r"--strict \(strict=True\)") as caught:
        t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.t7", strict=True)
    assert any(note.loss == loss and words in note.message for note in caught.value.notes)
    assert caught.value.file == str(tmp_path / "x.pt")
    assert pickle.loads(pickle.dumps(caught.value)).notes == caught.value.notes
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]


@pytest.mark.parametrize(
    ("value", "lost"),
    [
        (struct.unpack("<d", struct.pack("<Q", 0x7FF8 << 48 | 5))[0], 1),
        (-float("nan"), 0),
        (Tensor.from_numpy(np.array([1, 0x7FC00001, 0xFFC00000, 0x7F800001], "u4").view("f4")), 2),
        (Tensor.from_numpy(np.array([0xFFF8 << 48, 0xFFF8 << 48 | 1], "u8").view("f8")), 1),
        (Tensor.from_numpy(np.array([0x7FF80001, 3], "u4").view("i4")), 0),
    ],
)
def test_bits_of_nans(value, lost, tmp_path):
    """Text has one nan of each sign; a NaN with other bits, by which some mark what is missing, is a loss."""
    t7bridge.save(value, tmp_path / "x.t7")
    report = t7bridge.convert(tmp_path / "x.t7", tmp_path / "y.t7", encoding="ascii")
    notes = [note.message for note in report.notes if note.loss == "precision"]
    assert notes == (
        [f"{lost} NaN payloads cannot be represented in an ascii file; they are written as nan"] if lost else []
    )
    if lost:
        with pytest.raises(StrictError, match="NaN payloads"):
            t7bridge.convert(tmp_path / "x.t7", tmp_path / "z.t7", encoding="ascii", strict=True)
    report = t7bridge.convert(tmp_path / "x.t7", tmp_path / "big.t7", byte_order="big", strict=True)
    t7bridge.convert(tmp_path / "big.t7", tmp_path / "back.t7", byte_order="little")
    assert (tmp_path / "back.t7").read_bytes() == (tmp_path / "x.t7").read_bytes()


def test_sound_conversions_pass(tmp_path):
    """If nothing is lost, `strict` changes nothing."""
    for number, (source, target) in enumerate((("models/lenet_mm.t7", "pt"), ("format/checkpoint.t7", "t7"))):
        path = tmp_path / f"{number}.{target}"
        t7bridge.convert(TESTFILES / source, path, strict=True)
        loose = t7bridge.convert(TESTFILES / source, tmp_path / f"loose{number}.{target}")
        assert path.stat().st_size == loose.target_bytes
    torch.save({"w": torch.ones(2, 3), "n": [1, 2.5, "x"]}, tmp_path / "x.pt")
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.t7", strict=True)


def tied(layout_changes: bool) -> Table:
    """Two layers on one memory: both Linear, or one of a class whose weights are laid out in another way."""
    storage = Storage.from_array(np.arange(16, dtype="f4"))
    weight = Tensor.from_numpy(np.zeros((4, 4), "f4"))
    one = TorchObject("nn.Linear", 1, Table.of({"weight": view(storage), "bias": Tensor.from_numpy(np.zeros(4, "f4"))}))
    other = TorchObject("nn.Linear", 1, Table.of({"weight": view(storage), "bias": weight}))
    if layout_changes:
        other = TorchObject("nn.BatchNormalization", 1, Table.of({
            "running_mean": Tensor.from_numpy(np.zeros(16, "f4")), "running_std": flat(storage), "eps": 1e-5,
            "affine": False,
        }))  # fmt: skip
    modules = Table([1.0, 2.0], [one, other])
    return Table.of({"model": TorchObject("nn.Sequential", 1, Table.of({"modules": modules}))})


def view(storage: Storage) -> Tensor:
    """All of a storage, 4 by 4."""
    return Tensor(storage.element, storage, (4, 4), (4, 1))


def flat(storage: Storage) -> Tensor:
    """All of a storage."""
    return Tensor(storage.element, storage, (16,), (1,))


@pytest.mark.parametrize("changes", [False, True])
def test_sharing_between_layouts(changes, tmp_path):
    """Memory that two layers share stays shared if the layouts agree; otherwise the report says so."""
    t7bridge.save(tied(changes), tmp_path / "x.t7")
    report = t7bridge.convert(tmp_path / "x.t7", tmp_path / "x.pt")
    notes = [note.message for note in report.notes if note.loss == "sharing"]
    state = t7bridge.load(tmp_path / "x.pt")["model"]
    stored = {id(tensor.storage) for key, tensor in state.items() if key in ("0.weight", "1.weight", "1.running_var")}

    assert len(stored) == (2 if changes else 1)
    assert len(notes) == changes
    if changes:
        assert "0.weight" in notes[0]
        assert "1.running_var" in notes[0]
        with pytest.raises(StrictError, match="is no longer shared"):
            t7bridge.convert(tmp_path / "x.t7", tmp_path / "y.pt", strict=True)


def test_template(tmp_path):
    """Weights that Lua's element type rounds are a loss of precision."""
    t7bridge.convert(TESTFILES / "nn/Linear.t7", tmp_path / "x.pt")
    state = torch.load(tmp_path / "x.pt", weights_only=True)
    wide = OrderedDict((key, value.double() + 1e-12) for key, value in state.items())
    torch.save(wide, tmp_path / "wide.pt")
    template = TESTFILES / "nn/Linear.t7"
    report = t7bridge.convert(tmp_path / "wide.pt", tmp_path / "y.t7", template=template)

    assert [note.loss for note in report.notes if "rounded" in note.message] == ["precision"]
    with pytest.raises(StrictError, match="rounded"):
        t7bridge.convert(tmp_path / "wide.pt", tmp_path / "z.t7", template=template, strict=True)
    assert not (tmp_path / "z.t7").exists()


def test_command_line(tmp_path, capsys):
    """`--strict` on convert, module and match: one line, exit code 1, nothing written."""
    torch.save({"n": 2**53 + 1}, tmp_path / "x.pt")
    assert cli.main(["convert", "--strict", str(tmp_path / "x.pt"), str(tmp_path / "x.t7")]) == 2
    assert "nearest Lua number" in capsys.readouterr().err
    model, target = TESTFILES / "models/lenet_mm.t7", tmp_path / "t.pt"
    assert cli.main(["module", "--strict", "--sync", str(model), "-o", str(tmp_path / "m")]) == 0
    assert cli.main(["convert", "--strict", "--sync", str(model), str(target)]) == 0
    matched = ["match", "--strict", "--sync", str(model), str(target), "-o", str(tmp_path / "o.pt")]
    assert cli.main(matched) == 0
    capsys.readouterr()

    class_ = Table.of(
        {"modules": Table([1.0], [TorchObject("my.Layer", 1, Table.of({"w": Tensor.from_numpy(np.ones(3))}))])}
    )
    t7bridge.save(TorchObject("nn.Sequential", 1, class_), tmp_path / "u.t7")
    assert cli.main(["convert", "--strict", str(tmp_path / "u.t7"), str(tmp_path / "u.pt")]) == 2
    assert "no mapping yet for class my.Layer" in capsys.readouterr().err
    state = str(tmp_path / "s.pt")
    assert cli.main(["convert", str(tmp_path / "u.t7"), state]) == 0
    assert cli.main(["match", "--strict", str(tmp_path / "u.t7"), state, "-o", str(tmp_path / "v.pt")]) == 2
    assert not (tmp_path / "x.t7").exists()
    assert not (tmp_path / "u.pt").exists()
    assert not (tmp_path / "v.pt").exists()
