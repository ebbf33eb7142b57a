"""Effects of the command line on its process: signals, streams, limits, owners of files."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from helpers import PATIENCE, TESTFILES

import t7bridge
from t7bridge import cli
from t7bridge.errors import T7BridgeError

ABS = TESTFILES / "nn" / "Abs.t7"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return the output of a shell command; `$T` is the command line."""
    line = line.replace("$T", f"{sys.executable} -m t7bridge")
    return subprocess.run(["/bin/sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


def state() -> tuple[object, ...]:
    """Everything of a process that a library could change."""
    handlers = tuple(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    streams = (sys.stdout, sys.stderr, getattr(sys.stdout, "errors", ""), getattr(sys.stderr, "errors", ""))
    mask = os.umask(0o022)
    os.umask(mask)
    collector = (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())
    return handlers, streams, mask, collector, sys.getrecursionlimit(), list(warnings.filters), warnings.showwarning


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("verb", [["describe", str(ABS)], ["inspect", "missing"], ["frobnicate"], []])
def test_the_process_is_as_it_was(verb, capsys) -> None:
    """A verb that succeeds, fails or does not exist changes no handlers, streams, collector, warnings or limits."""
    before = state()
    with contextlib.suppress(SystemExit):  # wrong usage
        cli.main(verb)
    assert state() == before
    capsys.readouterr()


@pytest.mark.usefixtures("nothing_frozen")
def test_reading_leaves_the_process_alone() -> None:
    """Likewise of the library, with a value nested deeper than Python's recursion limit."""
    before = state()
    t7bridge.describe(TESTFILES / "format" / "table_deep.t7")
    t7bridge.load(ABS)
    assert state() == before


@pytest.mark.slow
def test_closed_standard_output(tmp_path) -> None:
    """Verbs that only print fail with a message; verbs that write a file succeed."""
    done = shell(f"$T describe {ABS} >&-", tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == "t7bridge: error: standard output: is closed"
    done = shell(f"$T convert {ABS} - --to pt >&-", tmp_path)
    assert (done.returncode, done.stderr.strip()) == (2, "t7bridge: error: standard output: is closed")
    done = shell(f"$T convert {ABS} x.pt --mode tree >&-", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "x.pt").stat().st_size > 1000
    done = shell(f"$T graph {ABS} -o x.svg >&-", tmp_path)  # by its former name
    assert (done.returncode, done.stderr) == (0, "")
    done = shell(f"$T describe {tmp_path}/missing 2>&-", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_interrupt_while_modules_are_loaded(tmp_path) -> None:
    """Ctrl-C before there is a verb ends with 130 and without a traceback."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('t7bridge.cli', 't7bridge.cli.verbs'):\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
    )
    command = [sys.executable, "-m", "t7bridge", "describe", str(ABS)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_interrupted_zoo_says_what_stays(tmp_path, monkeypatch, capsys) -> None:
    """The message names the folder, and that the same command resumes."""
    from t7bridge.cli import zoo

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zoo, "convert_zoo", interrupted)
    assert cli.main(["zoo", str(ABS), "-o", str(tmp_path / "out")]) == 130
    message = capsys.readouterr().err
    assert f"complete outputs stay in {tmp_path / 'out'}" in message
    assert "the same command resumes" in message


@pytest.mark.parametrize(("interruption", "code"), [(KeyboardInterrupt(), 130), (SystemExit(129), 129)])
def test_a_signal_while_a_class_is_made(
    monkeypatch: pytest.MonkeyPatch, interruption: BaseException, code: int
) -> None:
    """Up to 3.11, Python makes an error of what is raised in `__set_name__`; the verb ends as by any signal."""

    class Interrupted:
        def __set_name__(self, owner: type, name: str) -> None:
            raise interruption

    def verb(arguments: object) -> int:
        type("Late", (), {"member": Interrupted()})
        return 0

    monkeypatch.setattr(cli, "_verb", verb)
    if isinstance(interruption, KeyboardInterrupt):
        assert cli.main(["inspect", str(ABS)]) == code
        return
    with pytest.raises(SystemExit) as ended:
        cli.main(["inspect", str(ABS)])
    assert ended.value.code == code


@pytest.mark.parametrize(
    "verb",
    [["describe", "a\0b"], ["convert", str(ABS), "x\0.pt"], ["convert", "a\0b.t7", "x.pt"], ["scan", "a\0b"],
     ["module", str(ABS), "-o", "d\0"], ["zoo", "a\0b", "-o", "z"], ["zoo", str(ABS), "-o", "z\0", "--workers", "0"],
     ["match", "a\0", "b\0"], ["verify", "a\0", "b"], ["convert", str(ABS), "x.pt", "--template", "a\0"]],
    ids=lambda verb: repr(" ".join(verb))[:30],
)  # fmt: skip
def test_nul_in_a_path(verb, tmp_path, monkeypatch, capsys) -> None:
    """A path with NUL causes a message and no traceback, wherever there is a path."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(verb) in (1, 2)
    shown = capsys.readouterr()
    assert "\0" not in shown.out + shown.err
    assert "internal error" not in shown.err


def test_nul_in_python() -> None:
    """Likewise from Python: the error is one of the package."""
    with pytest.raises(T7BridgeError, match="NUL"):
        t7bridge.load("a\0b")
    with pytest.raises(T7BridgeError, match="NUL"):
        t7bridge.convert(ABS, "x\0.pt")


@pytest.mark.skipif(os.name == "nt", reason="Windows has such names")
def test_lone_surrogate_in_python(tmp_path) -> None:
    """A character that the system's encoding lacks is not called NUL; an output with it is an error at once."""
    with pytest.raises(T7BridgeError, match="cannot be read: its name holds a character that utf-8 lacks"):
        t7bridge.load("a\ud800b")
    with pytest.raises(T7BridgeError, match="cannot be written: its name holds a character that utf-8 lacks"):
        t7bridge.convert(ABS, tmp_path / "x\ud800.pt")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only the superuser gives files away")
def test_owner_of_a_replaced_file(tmp_path, monkeypatch) -> None:
    """A file that is replaced keeps its owner and mode; where the system does not allow that, setuid goes."""
    target = tmp_path / "x.pt"
    target.write_bytes(b"")
    os.chown(target, 1234, 1234)
    target.chmod(0o4755)
    t7bridge.convert(ABS, target, force=True)
    status = target.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 1234, 0o4755)

    def refused(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refused)
    t7bridge.convert(ABS, target, force=True)
    status = target.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o755)


@pytest.mark.slow
def test_one_model_and_its_criterion_need_no_path(tmp_path) -> None:
    """Of a model and its criterion the model is chosen; for two models the message names `--at`."""
    import torch

    from t7bridge import Table

    model, criterion = t7bridge.load(ABS), t7bridge.load(TESTFILES / "nn" / "MSECriterion.t7")
    t7bridge.save(Table.of({"model": model, "criterion": criterion}), tmp_path / "one.t7")
    t7bridge.save(Table.of({"a": model, "b": t7bridge.load(ABS)}), tmp_path / "two.t7")
    value = torch.tensor([-1.5, 2])
    assert torch.equal(t7bridge.load_module(tmp_path / "one.t7")(value), value.abs())
    with pytest.raises(T7BridgeError, match="--at"):
        t7bridge.load_module(tmp_path / "two.t7")
