"""`scan`: what a file would do in a reader that trusts it; each finding once, nothing executed."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from bounds import bounded
from helpers import TESTFILES, corpus
from pt_helpers import saved, text, zipped

import t7bridge
from t7bridge import LuaFunction, Table, TorchObject, cli, scan
from t7bridge.errors import T7BridgeError


def pt(pickle: bytes, path: Path) -> Path:
    """A checkpoint with a pickle."""
    path.write_bytes(zipped({"a/data.pkl": pickle, "a/version": b"3\n"}))
    return path


def test_sound_files_have_no_findings(tmp_path):
    """Weights, and models of known classes, are clean."""
    for path in corpus("models/lenet_mm.t7", "format/checkpoint.t7", "pt/state_dict.pt", "pt/*.legacy.pt"):
        report = scan(path)
        assert report.clean, report
        assert report.format == ("pt" if path.suffix == ".pt" else "t7")
    (tmp_path / "x.pt").write_bytes(saved({"w": 1}))
    assert t7bridge.scan(tmp_path / "x.pt").clean


def test_what_loaders_execute_is_named_or_refused(subtests):
    """A loader executes something in each of these, or reads other values from it."""
    for path in sorted((TESTFILES / "scan/runs").iterdir()):
        with subtests.test(path=path):
            report = scan(path)
            assert not report.clean
            assert "internal error" not in report.error


def test_what_the_safe_loader_takes_is_clean(subtests):
    """Tensors and values of Python, and programs that only compute."""
    for path in sorted((TESTFILES / "scan/plain").iterdir()):
        with subtests.test(path=path):
            report = scan(path)
            assert report.clean, report
            assert not report.remedy


def test_what_needs_trust_is_named(subtests):
    """Modules, optimizers, numpy's values and other protocols are named, with what to do; none is called a program."""
    for path in sorted((TESTFILES / "scan/trust").iterdir()):
        with subtests.test(path=path):
            report = scan(path)
            assert not report.error
            kinds = {found.kind for found in report.findings}
            assert kinds
            assert kinds <= {"unsupported global", "refused"}
            assert path.suffix != ".pt" or report.remedy


def test_arrays_with_named_fields(tmp_path):
    """Only elements that numpy would unpickle are read as a pickle, whatever the names of fields."""
    np.save(tmp_path / "plain.npy", np.zeros(3, [("pos", "f4"), ("o", "i4", 2)]))
    np.save(tmp_path / "objects.npy", np.array([(print,)], [("a", "O")]), allow_pickle=True)
    assert scan(tmp_path / "plain.npy").clean
    names = [each.name for each in scan(tmp_path / "objects.npy").findings if each.kind == "unsupported global"]
    assert names[-1] == "builtins.print"


def test_folders_and_their_files(tmp_path):
    """Findings in a folder have the path of their file; files that are no models are passed over."""
    report = scan(TESTFILES / "scan/runs/plain_folder")
    assert "unsupported global: builtins.print at inside/weights.bin" in map(str, report.findings)
    assert report.error == ""
    (tmp_path / "weights.pt").write_bytes(b"no model")
    assert "weights.pt" in scan(tmp_path).error


def test_an_archive_of_text_is_no_model(tmp_path):
    """Nothing in it was scanned: text that begins with a number is passed over, though it may be tried as a `.t7`."""
    path = tmp_path / "x.zip"
    path.write_bytes(zipped({"classes.txt": b"17 apples\n4 pears\n"}))
    assert "expected the file of a model" in scan(path).error
    path.write_bytes(
        zipped({"classes.txt": b"17 apples\n4 pears\n", "y.t7": (TESTFILES / "format/nil.t7").read_bytes()})
    )
    assert scan(path).clean


def test_globals(tmp_path):
    """Names that run code are distinguished from foreign ones, each is named once."""
    pickle = b"\x80\x02](cposix\nsystem\ncposix\nsystem\ncmy.models\nNet\n\x8c\x0ctorch._utils\x8c\tos.system\x93e."
    report = scan(pt(pickle, tmp_path / "x.pt"))

    assert [(found.kind, found.name) for found in report.findings] == [
        ("forbidden global", "posix.system"),
        ("unsupported global", "my.models.Net"),
        ("forbidden global", "torch._utils.os.system"),
        ("refused", "the operation SHORT_BINUNICODE"),
    ]
    assert report.error == ""


@pytest.mark.parametrize("head", [b"", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."])
def test_damage_does_not_hide_what_comes_before_it(head, tmp_path):
    """Names in a pickle before its damage would have been called, so they are found, and the damage is reported."""
    (tmp_path / "x.pt").write_bytes(head + b"\x80\x02cposix\nsystem\n" + text("true") + b"\x85R\xff")
    report = scan(tmp_path / "x.pt")

    assert report.findings[0].name == "posix.system"
    assert "0xff is not an operation" in report.error
    assert not report.clean


def test_functions():
    """A function of Lua is found with its size, its upvalues, and where it is."""
    report = scan(TESTFILES / "format/function_upvalues.t7")

    (found,) = report.findings
    assert (found.kind, found.path) == ("function", "root")
    assert found.upvalues == ("x", "y")
    assert found.code_bytes == len(t7bridge.load(TESTFILES / "format/function_upvalues.t7").code)
    assert str(found.code_bytes) in str(found)


def test_classes_and_records(tmp_path):
    """Foreign classes are found, in a `.pt` that was made of a `.t7` too; a `.t7` made of a `.pt` names none."""
    value = Table.of({"a": TorchObject("evil.Net"), "b": TorchObject("evil.Net"), "c": LuaFunction(b"\x1bLJ", Table())})
    t7bridge.save(value, tmp_path / "x.t7")
    t7bridge.convert(tmp_path / "x.t7", tmp_path / "x.pt", mode="tree")
    wanted = [("foreign class", "root.a"), ("function", "root.c")]
    for name in ("x.t7", "x.pt"):
        assert [(found.kind, found.path) for found in scan(tmp_path / name).findings] == wanted

    t7bridge.convert(pt(b"\x80\x02]cmy.models\nNet\na.", tmp_path / "y.pt"), tmp_path / "y.t7")
    assert [found.name for found in scan(tmp_path / "y.pt").findings] == ["my.models.Net"]
    assert scan(tmp_path / "y.t7").clean


def test_command_line(tmp_path, capsys):
    """Exit code 1 on findings, else 2 on errors, 0 without; text or JSON; errors stop no other file."""
    sound, attack = str(TESTFILES / "format/nil.t7"), str(TESTFILES / "bad/call_system.pt")
    missing = str(tmp_path / "no\x1b.pt")

    assert cli.main(["scan", sound]) == 0
    assert capsys.readouterr().out == f"{sound}: nothing found\n"
    assert cli.main(["scan", attack, sound]) == 1
    assert capsys.readouterr().out == f"{attack}: forbidden global: posix.system\n{sound}: nothing found\n"
    assert cli.main(["scan", missing, attack]) == 1
    capsys.readouterr()
    assert cli.main(["scan", missing, sound]) == 2
    out, err = capsys.readouterr()
    assert "\x1b" not in err
    assert "No such file" in err
    assert out == f"{sound}: nothing found\n"
    shown = f"{attack}: forbidden global: posix.system\nerror: {attack}: holds weights"
    assert scan(attack)._repr_html_().startswith(f"<pre>{shown}")
    assert str(scan(TESTFILES / "bad/cut.t7")).startswith("error: ")
    assert cli.main(["scan", str(TESTFILES / "scan/trust/module_linear.pt")]) == 1
    assert "hint: t7bridge convert" in capsys.readouterr().err
    assert cli.main(["scan", "--json", sound, attack, missing]) == 1
    reports = json.loads(capsys.readouterr().out)
    assert [report["clean"] for report in reports] == [True, False, False]
    assert reports[1]["findings"][0]["name"] == "posix.system"
    with pytest.raises(T7BridgeError):
        scan(missing)


_TABLE = Table.of({f"key {number}": float(number) for number in range(9)})


def test_values_behind_the_first(tmp_path):
    """Every value of a `.t7` is scanned, also after a nil, as Lua can read one after another."""
    for name, values in (("x.t7", [_TABLE]), ("y.t7", [_TABLE, None])):
        with (tmp_path / name).open("wb") as file:
            writer = t7bridge.T7Writer(file)
            for value in [*values, LuaFunction(b"\x1bLJ", Table())]:
                writer.write_object(value)
            writer.flush()
        found = scan(tmp_path / name).findings
        assert [finding.kind for finding in found] == ["function"], name


def test_what_no_reader_looks_at(tmp_path):
    """Bytes after the value, and members that nothing refers to, are findings; pickles among them are read."""
    attack = b"\x80\x02cposix\nsystem\n" + text("true") + b"\x85R."
    (tmp_path / "x.pt").write_bytes(zipped({"a/data.pkl": b"\x80\x02}." + attack, "a/version": b"3\n"}))
    assert [found.kind for found in scan(tmp_path / "x.pt").findings] == ["forbidden global", "unread"]
    (tmp_path / "y.pt").write_bytes(zipped({"a/data.pkl": b"\x80\x02}.", "a/other.pkl": attack, "a/version": b"3\n"}))
    assert [found.name for found in scan(tmp_path / "y.pt").findings] == ["posix.system"]


def test_damage_of_a_nested_archive_does_not_hide_its_names(tmp_path, subtests):
    """An archive in another is unread if a member is damaged, however deep; the names found in it are listed."""
    attack = b"\x80\x02cposix\nsystem\n" + text("true") + b"\x85R."
    members = {"a/data.pkl": attack, "a/.format_version": b"1", "a/byteorder": b"little", "a/version": b"3\n"}
    archive = zipped(members)
    # The content of a member follows its name. With another byte it has not its CRC-32, which PyTorch does not compare.
    cases = {
        "a/.format_version1": ["m/inner cannot be read", "posix.system"],
        "a/byteorderl": ["m/inner cannot be read"],
    }
    for end_of_name_and_content, findings in cases.items():
        last = archive.index(end_of_name_and_content.encode()) + len(end_of_name_and_content) - 1
        damaged = archive[:last] + b"?" + archive[last + 1 :]
        outer = zipped({"m/data.pkl": b"\x80\x02}.", "m/inner": damaged, "m/version": b"3\n"})
        with subtests.test(end_of_name_and_content):
            (tmp_path / "x.pt").write_bytes(outer)
            assert sorted(found.name for found in scan(tmp_path / "x.pt").findings) == findings
        with subtests.test(end_of_name_and_content, depth=2):
            (tmp_path / "x.pt").write_bytes(
                zipped({"m/data.pkl": b"\x80\x02}.", "m/inner": outer, "m/version": b"3\n"})
            )
            assert sorted(found.name for found in scan(tmp_path / "x.pt").findings) == findings


def test_members_whose_bytes_cannot_be_read(tmp_path):
    """A deflated member that cannot be inflated may be anything, and so is unread, whatever its name."""
    outer = bytearray(
        zipped({"m/data.pkl": b"\x80\x02}.", "m/inner": b"text " * 99, "m/version": b"3\n"}, zipfile.ZIP_DEFLATED)
    )
    outer[outer.index(b"m/inner") + len(b"m/inner")] = 0xFF  # the first byte of its deflated bytes
    (tmp_path / "x.pt").write_bytes(outer)
    assert [found.name for found in scan(tmp_path / "x.pt").findings] == ["m/inner cannot be read"]


def test_names_of_script_classes(tmp_path):
    """`__torch__` is a package like any other, but in TorchScript archives."""
    report = scan(pt(b"\x80\x02c__torch__.my\nNet\n)\x81.", tmp_path / "x.pt"))
    assert [(found.kind, found.name) for found in report.findings] == [("unsupported global", "__torch__.my.Net")]
    assert scan(TESTFILES / "pt/torchscript_script.pt").clean


@pytest.mark.parametrize("name", [b"a." * 400_000 + b"x", b"a" * 800_000], ids=["dots", "letters"])
def test_long_names_take_linear_time(name, tmp_path):
    """A name of 800 kB is reported within the time that its size allows, and shown in part."""
    path = pt(b"\x80\x02c" + name + b"\nNet\n.", tmp_path / "x.pt")
    with bounded(60):
        (found,) = scan(path).findings
    assert len(found.name) <= 200


def test_graphs_of_nngraph_are_no_findings(subtests):
    """The nodes, edges and graphs of an nngraph model are known classes; nothing is found in it."""
    for name in ["char_lstm_nngraph", "gmodule_two_in_two_out", "unet_nngraph"]:
        with subtests.test(name=name):
            assert scan(TESTFILES / "models" / f"{name}.t7").clean
