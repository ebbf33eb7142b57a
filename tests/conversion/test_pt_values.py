"""Names in a `.pt`: state dicts for whole modules, plain data for foreign classes, and notes about both."""

from __future__ import annotations

import argparse
import collections
import datetime
import io
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TESTFILES
from pt_helpers import saved, text, zipped

import t7bridge
from t7bridge.conversion import note_foreign
from t7bridge.errors import T7BridgeError
from t7bridge.formats import WEIGHTS_ONLY


class Trainer:
    """A class of a user's own."""

    def __init__(self) -> None:
        self.step = 3
        self.weights = torch.ones(2)


class Net(torch.nn.Module):
    """A module with everything that a state dict has and leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(3, 3)
        self.first = torch.nn.BatchNorm1d(3)
        self.last.weight = torch.nn.Parameter(torch.eye(3))
        self.tied = torch.nn.Linear(3, 3, bias=False)
        self.tied.weight = self.last.weight
        self.register_buffer("kept", torch.ones(1))
        self.register_buffer("dropped", torch.ones(1), persistent=False)


def converted(value: Any, folder: pathlib.Path, **options: Any) -> tuple[Any, t7bridge.Report]:
    """Return the value of PyTorch's safe loader after a conversion, and the report."""
    (folder / "x.pt").write_bytes(saved(value))
    report = t7bridge.convert(folder / "x.pt", folder / "y.pt", force=True, **options)
    return torch.load(folder / "y.pt", weights_only=True), report


def test_allowed_names_are_pytorchs_own() -> None:
    """The names accepted by PyTorch's safe loader are those that the installed PyTorch lists."""
    from torch._weights_only_unpickler import _get_allowed_globals

    if not torch.__version__.startswith("2.13."):
        pytest.skip("each release has another list; ours is that of 2.13")
    assert set(_get_allowed_globals()) == WEIGHTS_ONLY


@pytest.mark.parametrize("wrap", [lambda net: net, lambda net: {"epoch": 1, "nets": [net, (net, 2)]}])
def test_whole_modules_are_state_dicts(wrap: Any, tmp_path: pathlib.Path) -> None:
    """A pickled module is its state dict, in PyTorch's order, without what is not persistent; what is tied stays so."""
    net = Net()
    value, report = converted(wrap(net), tmp_path)
    found = value if not isinstance(value, dict) or "nets" not in value else value["nets"][0]

    assert list(found) == list(net.state_dict())
    assert all(torch.equal(found[key], wanted) for key, wanted in net.state_dict().items())
    assert found["tied.weight"].data_ptr() == found["last.weight"].data_ptr()
    assert any("is written as its state dict" in note.message for note in report.notes)
    if found is not value:
        assert value["nets"][1][0] is found
        assert value["epoch"] == 1


def test_tree_mode_keeps_modules_on_request(tmp_path: pathlib.Path) -> None:
    """In tree mode a module is a dict of its attributes; on request its object, and the notes name who refuses it."""
    (tmp_path / "x.pt").write_bytes(saved(torch.nn.Sequential(torch.nn.Linear(2, 2))))
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "plain.pt", mode="tree")
    plain = torch.load(tmp_path / "plain.pt", weights_only=True)
    assert plain["__class__"] == "torch.nn.modules.container.Sequential"
    assert plain["_modules"]["0"]["_parameters"]["weight"].shape == (2, 2)

    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "y.pt", mode="tree", allow_foreign=True)
    assert isinstance(torch.load(tmp_path / "y.pt", weights_only=False), torch.nn.Sequential)
    refused = [note.message for note in report.notes if "weights_only=True" in note.message]
    assert any("torch.nn.modules.container.Sequential" in message for message in refused)


@pytest.mark.parametrize("mode", ["auto", "tree"])
def test_what_is_written_is_loaded_safely(mode: str, tmp_path: pathlib.Path) -> None:
    """Values of every kind, of files that need trust, are written so that the safe loader takes the file."""
    for path in sorted((TESTFILES / "scan/trust").glob("*.p*t*")):
        t7bridge.convert(path, tmp_path / "y.pt", mode=mode, force=True)
        torch.load(tmp_path / "y.pt", weights_only=True)


def test_records_restore_no_programs(subtests: pytest.Subtests, tmp_path: pathlib.Path) -> None:
    """What a file names that runs code does not come back from its record, nor is it in the file that was written."""
    for path in sorted((TESTFILES / "scan/runs").glob("*.pt")):
        with subtests.test(path.name):
            target = tmp_path / f"{path.stem}.pt"
            try:
                t7bridge.convert(path, tmp_path / "x.t7", force=True)
                t7bridge.convert(tmp_path / "x.t7", target, strict=False)
            except T7BridgeError:
                continue
            torch.load(target, weights_only=True, map_location="cpu")
            assert t7bridge.scan(target).clean


def test_foreign_objects_are_plain_data(tmp_path: pathlib.Path) -> None:
    """An object of a user's class is a dict that names it, wherever it is; with `allow_foreign` it is itself."""
    trainer = Trainer()
    value, report = converted({"t": trainer, "again": [trainer], "cls": Trainer, ("k", Trainer): 1}, tmp_path)

    assert value["t"]["__class__"] == value["cls"] == f"{__name__}.Trainer"
    assert value["t"]["step"] == 3
    assert torch.equal(value["t"]["weights"], torch.ones(2))
    assert value["again"][0] is value["t"]
    *keys, note = [note for note in report.notes if note.code == "plain-data"]
    assert (note.level, note.path, note.loss) == ("warning", "root.t", "type")
    assert "allow_foreign=True" in note.message
    assert ["a key with" in each.message for each in keys] == [True]

    t7bridge.convert(tmp_path / "x.pt", tmp_path / "z.pt", allow_foreign=True)
    back = torch.load(tmp_path / "z.pt", weights_only=False)
    assert type(back["t"]) is Trainer
    assert back["cls"] is Trainer


def test_objects_in_sets_and_keys_are_text(tmp_path: pathlib.Path) -> None:
    """If only hashable values are allowed, an object that would become a dict is text."""
    one, two = (b"cmy.pkg\nColour\nK%c\x85R" % number for number in (1, 2))
    a_set = b"c__builtin__\nset\n](" + two + one + b"e\x85R"
    opcodes = b"\x80\x02}(" + one + b"K\x01" + two + b"K\x02" + text("s") + a_set + b"u."
    (tmp_path / "x.pt").write_bytes(zipped({"a/data.pkl": opcodes, "a/version": b"3\n"}))
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "y.pt")
    value = torch.load(tmp_path / "y.pt", weights_only=True)

    assert [number for key, number in value.items() if key != "s"] == [1, 2]
    assert len(value["s"]) == 2
    assert all(key.startswith("<my.pkg.Colour>") for key in [*value["s"], *(key for key in value if key != "s")])


def test_harmless_classes_are_plain_data(tmp_path: pathlib.Path) -> None:
    """Values of Python's and numpy's classes become what PyTorch's safe loader reads; on request they are kept."""
    value = {
        "args": argparse.Namespace(lr=0.1),
        "when": datetime.datetime(2020, 1, 2),
        "where": pathlib.PurePosixPath("a/b"),
        "queue": collections.deque([1], 3),
        "counts": collections.defaultdict(list, {"a": np.int64(3)}),
        "array": np.arange(3),
        "words": np.array(["a", "bc"]),
        "number": np.float32(2),
        "dtype": np.dtype("f4"),
        np.int64(7): 1,
    }
    (tmp_path / "x.pt").write_bytes(saved(value))
    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "y.pt")
    back = torch.load(tmp_path / "y.pt", weights_only=True)

    assert back["array"].tolist() == [0, 1, 2]
    assert back["words"] == ["a", "bc"]
    assert back["args"] == {"lr": 0.1}
    assert (back["counts"], back["queue"], back["number"], back["dtype"], back[7]) == ({"a": 3}, [1], 2.0, "f4", 1)
    assert type(back["counts"]) is dict
    assert type(back["number"]) is float
    where = back["where"]  # Python 3.13 pickles paths in another way
    assert (where["__class__"].replace("._local", ""), "/".join(where["__args__"])) == ("pathlib.PurePosixPath", "a/b")
    codes = [note.code for note in report.notes]
    assert set(codes) == {"plain-data"}
    assert all("allow_foreign=True" in note.message for note in report.notes)

    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "z.pt", allow_foreign=True)
    back = torch.load(tmp_path / "z.pt", weights_only=False)
    value = {key: item for key, item in value.items() if key not in ("words", "dtype")}
    assert {key: back[key] for key in value if key != "array"} == {key: value[key] for key in value if key != "array"}
    assert back["array"].tolist() == [0, 1, 2]
    assert not [note for note in report.notes if note.level == "warning"]
    named = {note.path: note.message for note in report.notes if "weights_only=True" in note.message}
    assert "argparse.Namespace" in named["root.args"]


def test_nested_pickles_are_not_carried(tmp_path: pathlib.Path) -> None:
    """A call that would unpickle bytes of the file is never written."""
    inner = b"c_codecs\nencode\n(" + text("\x80\x02K\x01.") + text("latin1") + b"tR"
    opcodes = b"\x80\x02ctorch.storage\n_load_from_bytes\n" + inner + b"\x85R."
    (tmp_path / "x.pt").write_bytes(zipped({"a/data.pkl": opcodes, "a/version": b"3\n"}))
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "y.pt")

    assert b"_load_from_bytes\n" not in (tmp_path / "y.pt").read_bytes()


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_frozen_modules_keep_their_weights(tmp_path: pathlib.Path) -> None:
    """The weights of a frozen module are constants of its code: they are in the output, and a note says so."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 2)).eval()
    file = io.BytesIO()
    torch.jit.save(torch.jit.freeze(torch.jit.script(net)), file)
    (tmp_path / "x.pt").write_bytes(file.getvalue())
    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "y.pt")
    value = torch.load(tmp_path / "y.pt", weights_only=True)

    assert any(torch.equal(tensor, net[0].weight) for tensor in value.values())
    assert all(key.startswith("constants.") for key in value)
    assert any("constants of its code" in note.message for note in report.notes)


def test_very_many_names_are_counted() -> None:
    """One note names the first classes that are not data, and counts the others."""
    report = t7bridge.Report("x.pt", "y.pt")
    note_foreign([f"my.pkg.C{number}" for number in range(25)], report)
    (note,) = report.notes
    assert (note.count, "my.pkg.C19" in note.message, "my.pkg.C20" in note.message) == (25, True, False)
    assert "5 more" in note.message
    few = t7bridge.Report("x.pt", "y.pt")
    note_foreign([f"my.pkg.C{number}" for number in range(20)], few)
    assert "more" not in few.notes[0].message


def _pickle(opcodes: bytes, folder: pathlib.Path) -> t7bridge.Report:
    (folder / "x.pt").write_bytes(zipped({"a/data.pkl": b"\x80\x02" + opcodes + b".", "a/version": b"3\n"}))
    return t7bridge.convert(folder / "x.pt", folder / "y.pt", force=True)


COLOUR = b"cmy.pkg\nColour\nK\x01\x85R"


@pytest.mark.parametrize(
    ("opcodes", "path", "count"),
    [
        (b"](]q\x01h\x01" + COLOUR + b"e", "root[2]", 1),  # behind a list that stands there twice
        (b"](" + COLOUR + COLOUR + COLOUR + b"e", "root[0]", 3),
        (b"}" + text("a") + b"}" + text("b") + COLOUR + b"ss", "root.a.b", 1),
    ],
    ids=["behind a list twice", "three", "nested"],
)
def test_notes_say_where_and_how_many(opcodes: bytes, path: str, count: int, tmp_path: pathlib.Path) -> None:
    """The note about a class that became plain data has the path of its first object, and their number."""
    report = _pickle(opcodes, tmp_path)
    (note,) = [note for note in report.notes if note.code == "plain-data"]
    assert note.path.startswith(path)
    assert note.count == count
    assert (f", and {count - 1} more" in note.message) == (count > 1)


def test_classes_without_a_note_of_their_own_are_counted(tmp_path: pathlib.Path) -> None:
    """Twenty classes have a note each; one more says how many others became plain data."""
    objects = [b"cmy.pkg\nClass%d\nK\x01\x85R" % number for number in range(23)]
    report = _pickle(b"](" + b"".join(objects) + b"e", tmp_path)
    *of_classes, of_others = [note for note in report.notes if note.code == "plain-data"]
    assert len(of_classes) == 20
    assert (of_others.message, of_others.count) == ("values of 3 more classes are written as plain data", 3)


def test_modules_inside_other_objects_are_state_dicts(tmp_path: pathlib.Path) -> None:
    """A module among the arguments, entries or attributes of an object of another class is a state dict there, too."""
    trainer = Trainer()
    trainer.net = {"inner": torch.nn.Linear(2, 1)}
    value, _ = converted({"t": trainer}, tmp_path)
    assert list(value["t"]["net"]["inner"]) == ["weight", "bias"]
