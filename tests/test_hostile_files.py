"""Valid files made to deceive or to cost: what is shown of them, what they cost, and what is refused."""

from __future__ import annotations

import io
import json
import pickle
import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from bounds import bounded
from helpers import LITTLE8, TESTFILES, Parts

import t7bridge
from t7bridge import Limits, T7Layout, Table, Tensor, TorchObject, cli, torchfile
from t7bridge.errors import CorruptError, IncompleteFileWarning, LimitError
from t7bridge.formats import T7Writer
from t7bridge.io import Output
from t7bridge.text import printable, printable_json
from t7bridge.values import ValueComparer, differences, outline

HOSTILE = TESTFILES / "hostile"
ROW = re.compile(r"\| `(.*?)` \|")
FORBIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
NAMES = [
    "\x1b[2J",
    "\x9b31m",
    "\x7f",
    "\rb",
    "\u202egnp",
    "\u2066x",
    "\u200ex",
    "\u061c",
    "\u2028",
    "\u200b",
    "\ufeff",
]
NAMES.append("\U000e0041")


def zipped(value: object) -> bytes:
    """A checkpoint of builtins."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(value, 2))
        archive.writestr("a/version", "3\n")
    return file.getvalue()


def written(*values: object) -> bytes:
    """A `.t7` with some values."""
    file = io.BytesIO()
    output = Output(file)
    writer = T7Writer(output, T7Layout())
    for value in values:
        writer.write_object(value)
    output.flush()
    return file.getvalue()


def run(*arguments: object) -> int:
    """Return a verb's exit code, within the bounds of work."""
    with bounded():
        return cli.main([str(each) for each in arguments])


def test_rows_and_files_agree() -> None:
    """Every file has a row that states what must hold, and every row a file."""
    rows = ROW.findall((HOSTILE / "README.md").read_text())
    assert sorted(rows) == sorted(path.name for path in HOSTILE.iterdir() if path.name != "README.md")


# What is shown


def hostile_values(folder: Path) -> list[Path]:
    """Files whose every name is hostile: keys, strings, classes, fields and modules."""
    layers = TorchObject("nn.Linear", 1, Table.of({"weight": Tensor.from_numpy(np.ones((2, 3), "f4"))}))
    layers["bias"] = Tensor.from_numpy(np.ones(2, "f4"))
    table = Table.of({name: Table.of({name: name}) for name in NAMES})
    table["model"] = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([layers])}))
    for name in NAMES:
        table["model"][name] = name.encode()
    (folder / "names.t7").write_bytes(written(table))
    (folder / "names.pt").write_bytes(zipped({name: [name, (name,), {name}, {name: name}] for name in NAMES}))
    return [folder / "names.t7", folder / "names.pt", *sorted(HOSTILE.glob("terminal_*"))]


@pytest.mark.slow
def test_no_verb_prints_what_a_terminal_obeys(tmp_path, capsys) -> None:
    """No control character, mark of direction or separator of lines comes through, in output, errors or pictures."""
    pages = 0
    for number, path in enumerate(hostile_values(tmp_path)):
        to = tmp_path / f"{number}"
        for verb in (
            ["inspect", path],
            ["describe", path],
            ["scan", path],
            ["scan", path, "--json"],
            ["verify", "--quick", path, HOSTILE / "terminal_root.pt"],
            ["diff", path, HOSTILE / "terminal_c1.pt"],
            ["diff", path, HOSTILE / "terminal_c1.pt", "--json"],
            ["convert", path, f"{to}.pt", "--force"],
            ["convert", path, f"{to}.t7", "--force"],
            ["module", path, "-o", f"{to}.d", "--force"],
            ["match", path, path],
            ["zoo", path, "-o", f"{to}.z", "--workers", "0"],
        ):
            assert run(*verb) in (0, 1, 2), verb
            shown = capsys.readouterr()
            assert not FORBIDDEN.search(shown.out), (verb, FORBIDDEN.search(shown.out))
            assert not FORBIDDEN.search(shown.err), (verb, FORBIDDEN.search(shown.err))
        for page in (to.with_suffix(".z") / "report.html", to.with_suffix(".z") / "report.csv"):
            if page.exists():
                assert not FORBIDDEN.search(page.read_text().replace("\r\n", "\n")), page
                pages += 1
    assert pages >= 6


def test_errors_and_notes_are_printable() -> None:
    """Printed errors, notes and differences are escaped as well."""
    error = t7bridge.T7BridgeError("no \x1b[2J", file="a\u202eb", path="root.\x9b")
    assert str(error) == "a\\u202eb: root.\\x9b: no \\x1b[2J"
    assert error.message == "no \x1b[2J"
    assert not FORBIDDEN.search(str(t7bridge.Note("info", "\x85", "\u2028", code="layer")))
    found = differences({"\x1b[2J": 1}, {"\x1b[2J": "\x07"})
    assert not FORBIDDEN.search(str(found[0]))


@pytest.mark.parametrize("name", [*NAMES, "\ud800", "\u00a0"])
def test_escaping_by_kind_of_text(name: str) -> None:
    """Each kind is escaped as Python writes it, in JSON as JSON does; letters of all languages stay."""
    text = f"é漢{name}я"
    assert printable(text).isprintable()
    assert printable(text).startswith("é漢\\")
    assert printable(text).endswith("я")
    assert json.loads(printable_json(json.dumps(text, ensure_ascii=False))) == text


# What it costs


@pytest.mark.parametrize("name", ["shared_tuples.pt", "shared_sets.pt", "shared_objects.pt", "double_concat.t7"])
def test_sharing_costs_nothing(name: str, capsys) -> None:
    """Shared values are compared and shown once, however many paths lead to them."""
    path = HOSTILE / name
    assert run("verify", "--quick", path, path) == 0
    assert run("diff", path, path) == 0
    assert run("inspect", path) == 0
    assert len(capsys.readouterr().out) < 20_000


def colliding(count: int) -> list[int]:
    """Integers that Python's dicts cannot tell apart by their hashes."""
    return [number * (2**61 - 1) for number in range(1, count + 1)]


def test_keys_that_collide_are_compared_in_linear_time() -> None:
    """20 000 integers of one hash, in two orders, take no longer than others."""
    keys = colliding(20_000)
    a, b = Table(list(keys), list(keys)), Table(keys[::-1], keys[::-1])
    with bounded(60):
        assert differences(a, b) == []


def test_deep_values_have_short_paths() -> None:
    """A difference 20 000 levels deep is found in linear time, and its path names the last steps."""
    a: dict[str, object] = {"x": 1}
    b: dict[str, object] = {"x": 2}
    for _ in range(20_000):
        a, b = {"inside": a}, {"inside": b}
    with bounded(60):
        (found,) = differences(a, b)
    assert found.path.startswith("root….inside")
    assert found.path.endswith(".inside.x")


def test_pairs_of_shared_values_meet_the_limit() -> None:
    """Values shared in different ways make as many pairs as both have values together: that is charged."""
    a: tuple[object, ...] = ()
    b: tuple[object, ...] = ()
    step: list[tuple[object, ...]] = [(), ()]
    for _ in range(3000):
        step.append((step[-1], step[-2]))
        b = (b, b)
    a = step[-1]
    with pytest.raises(LimitError, match="the limit work"):
        differences(a, b, limits=Limits(work=10_000))
    with pytest.raises(LimitError, match="the limit work"):
        ValueComparer(limits=Limits(work=10_000)).run(a, b)


def test_one_storage_in_many_views_is_charged() -> None:
    """A thousand views of one storage are a thousand times its elements."""
    storage = Tensor.from_numpy(np.zeros(1 << 16, "f4")).storage

    def views() -> list[Tensor]:
        assert storage is not None
        return [Tensor(storage.element, storage, (1 << 15,), (1,), offset) for offset in range(1000)]

    with pytest.raises(LimitError, match="the limit work"):
        ValueComparer(limits=Limits(work=10_000)).run(views(), views())


def test_outline_of_wide_shared_tuples_is_short() -> None:
    """Tuples of forty that are one and the same are expanded once a level."""
    value: tuple[object, ...] = (1,)
    for _ in range(10):
        value = (value,) * 40
    assert sum(1 for _ in outline(value, depth=20, items=40)) < 1000


@pytest.mark.slow
def test_stride_zero_is_no_live_module(tmp_path, capsys) -> None:
    """A weight of 37 GiB in 308 bytes is refused where it would be made, and converted as the view that it is."""
    path = HOSTILE / "stride_zero.t7"
    with pytest.raises(LimitError, match="the limit work"):
        t7bridge.load_module(path)
    assert run("convert", path, tmp_path / "x.pt") == 0
    assert (tmp_path / "x.pt").stat().st_size < 10_000
    assert run("verify", "--quick", path, path) == 0
    assert run("diff", path, path) == 0
    capsys.readouterr()


# What is not a value


@pytest.mark.parametrize("size", [8, 64, 1 << 20])
def test_zeros_are_no_value(size: int) -> None:
    """Zeros read as nil, which explains nothing of a file of them; four of them are nil as Lua writes it."""
    for read in (t7bridge.load, t7bridge.load_as_torchfile):
        with pytest.raises(CorruptError, match="nil, accounts for next to nothing"):
            read(bytes(size))
        assert read(bytes(4)) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("count_zeroed.t7", "an empty table, accounts for next to nothing"),
        ("table_of_text.t7", "a number, accounts for next to nothing"),
        ("nil_first.t7", "nil, accounts for next to nothing"),
        ("second_value_big.t7", "nil, accounts for next to nothing"),
        ("second_object_big.t7", "nil, accounts for next to nothing"),
    ],
)
def test_what_explains_next_to_nothing_is_refused(name: str, words: str, tmp_path, capsys) -> None:
    """In every way of reading, with a message that has the values read and the number of bytes left."""
    readers = (t7bridge.load, t7bridge.describe, lambda path: t7bridge.convert(path, tmp_path / "x.pt"))
    for read in (*readers, t7bridge.load_as_torchfile, torchfile.load):
        with pytest.raises(CorruptError, match=words):
            read(HOSTILE / name)
    assert run("inspect", HOSTILE / name) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_values_before_what_is_cut_off(tmp_path, capsys) -> None:
    """Values that were read are returned with a warning, which every verb prints; a record of ours is none."""
    whole = written(Table.of({"a": 1}), Table.of({"b": [2.0][0]}), Table.of({"c": Tensor.from_numpy(np.ones(9, "f4"))}))
    path = tmp_path / "cut.t7"
    path.write_bytes(whole[:-10])
    with pytest.warns(IncompleteFileWarning, match="the last of 2 values are not a value: a value is cut off"):
        assert t7bridge.load(path)["a"] == 1
    for verb in (["inspect", path], ["describe", path], ["convert", path, tmp_path / "x.pt"]):
        assert run(*verb) == 0
        assert "are not a value: a value is cut off" in capsys.readouterr().err
    path.write_bytes(whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t7bridge.load(path)
        assert [node["t"] for node in t7bridge.describe(path)["v"]] == ["table"] * 3
    assert run("inspect", path) == 0
    out = capsys.readouterr().out
    assert "root[1].b  2\n" in out
    assert re.search(r"^2 +c 9 +9$", out, re.MULTILINE), out  # the tensor c of the value 2, as a layer of that name


def test_empty_values_alone_are_values() -> None:
    """An empty table, a number or an object without fields is what Lua wrote, where nothing follows."""
    for value in (Table(), 1.0, b"", True, TorchObject("nn.Abs")):
        assert type(t7bridge.load(written(value))) is type(value)
    assert len(t7bridge.load(Parts(LITTLE8).ints(3, 1, 0).data)) == 0


# Records


def test_forged_record_of_a_t7_is_not_used(tmp_path, capsys) -> None:
    """The conversion of a `.pt` is the value that every reader shows, whatever its record holds."""
    assert run("convert", HOSTILE / "forged_record.pt", tmp_path / "x.t7") == 0
    assert "its record is not used" in capsys.readouterr().err
    shown = t7bridge.load(HOSTILE / "forged_record.pt")
    made = t7bridge.load(tmp_path / "x.t7")
    assert {key: made[key] for key in shown} == shown
    assert run("verify", "--quick", HOSTILE / "forged_record.pt", tmp_path / "x.t7") == 0


def test_forged_record_of_a_pt_is_not_used(tmp_path, capsys) -> None:
    """Likewise the other way: weights too are those that Lua sees."""
    assert run("convert", HOSTILE / "forged_record.t7", tmp_path / "x.pt") == 0
    assert "its record is not used" in capsys.readouterr().err
    made, shown = t7bridge.load(tmp_path / "x.pt"), t7bridge.load(HOSTILE / "forged_record.t7")
    assert made["lr"] == shown["lr"] == 0.001
    assert made["w"].numpy().tolist() == shown["w"].numpy().tolist() == [0, 0, 0]
    assert run("verify", "--quick", HOSTILE / "forged_record.t7", tmp_path / "x.pt") == 0


@pytest.mark.parametrize("name", ["record_head_1.pt", "record_head_2.pt"])
def test_damaged_heads_of_records(name: str, tmp_path) -> None:
    """An impossible head is an error of ours, and the value is readable without the record."""
    with pytest.raises(CorruptError, match="--no-record"):
        t7bridge.convert(HOSTILE / name, tmp_path / "x.t7")
    t7bridge.convert(HOSTILE / name, tmp_path / "x.t7", record=False)
