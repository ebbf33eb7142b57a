"""Properties of every verb of the command line: errors, pipes, paths, and the process around it."""

from __future__ import annotations

import contextlib
import gc
import json
import locale
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import PATIENCE, TESTFILES
from looping import new_folder
from test_bad_files import BAD

from t7bridge import cli

MODEL = TESTFILES / "nn" / "Linear.t7"
COMMANDS: dict[str, list[str]] = {
    "completion": ["bash"],
    "convert": ["FILE", "OUT.pt"],
    "describe": ["FILE"],
    "diff": ["FILE", "FILE"],
    "draw": ["FILE", "-o", "OUT.svg"],
    "export": ["FILE", "OUT.pt2", "--input", "2x5"],
    "inspect": ["FILE"],
    "lua": ["torch.nn:Linear(5, 3)", "FILE", "-o", "OUT", "--input", "1x5"],
    "match": ["FILE", "FILE"],
    "module": ["FILE", "-o", "OUT"],
    "prove": ["FILE"],
    "scan": ["FILE"],
    "verify": ["FILE", "FILE"],
    "zoo": ["FILE", "-o", "OUT", "--workers", "0"],
}
"""Arguments of each verb: FILE is read, OUT is written."""
WEIGHTS = {"lua"}
"""Verbs that read a state dict of `torch.nn.Linear(5, 3)`, and not a `.t7`."""
NEED_TORCH = {"export", "lua", "prove"}
NO_FILE = {"completion"}
READERS = {"convert", "describe", "diff", "draw", "inspect", "match", "verify"}
"""Verbs that read files of all formats for their values; `scan` reads on behind an attack, to list it."""
REFUSED = {"zoo": 1}
"""Exit codes where a file is refused, if not 2: a zoo goes on with the next file, and ends with 1."""


def command(verb: str, file: object, out: object) -> list[str]:
    """The arguments of a verb for a file."""
    return [verb, *(each.replace("FILE", str(file)).replace("OUT", str(out)) for each in COMMANDS[verb])]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound file for each verb."""
    return sound_files(tmp_path_factory.mktemp("sound"))


def sound_files(folder: Path) -> dict[str, Path]:
    """Return a sound file for each verb; one of them is written into the folder."""
    state = folder / "state.pt"
    torch.save(torch.nn.Linear(5, 3).state_dict(), state)
    recorded = {"prove": TESTFILES / "prove" / "graph.eval.t7"}
    return {verb: state if verb in WEIGHTS else recorded.get(verb, MODEL) for verb in COMMANDS}


def state() -> dict[str, Any]:
    """Everything of a process that a library could change."""
    mask = os.umask(0o022)
    os.umask(mask)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGALRM, signal.SIGXFSZ)
    limits = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
    return {
        "signals": [signal.getsignal(number) for number in numbers],
        "streams": (sys.stdin, sys.stdout, sys.stderr, getattr(sys.stdout, "errors", "")),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.callbacks[:]),
        "recursion": (sys.getrecursionlimit(), threading.stack_size(), sys.getswitchinterval()),
        "digits": sys.get_int_max_str_digits(),
        "hooks": (sys.excepthook, sys.displayhook, threading.excepthook, sys.unraisablehook),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "files": (mask, os.getcwd(), _environment(), locale.setlocale(locale.LC_ALL)),
        "limits": [resource.getrlimit(each) for each in limits],
        "path": (list(sys.path), list(sys.argv), sys.dont_write_bytecode),
        "threads": threading.active_count(),
        "numpy": (np.geterr(), np.get_printoptions()),
        "random": (random.getstate(), str(np.random.get_state())),
        "torch random": torch.get_rng_state().tolist(),
        "torch": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()),
    }


def _environment() -> dict[str, str]:
    """The environment but for the place of a cache that PyTorch's own exporter notes there."""
    return {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}


def test_every_verb_is_here() -> None:
    """A verb that is added gets a row above."""
    assert list(COMMANDS) == sorted(cli.VERBS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("nothing_frozen")
def test_the_process_is_as_it_was(
    subtests: pytest.Subtests, files: dict[str, Path], tmp_path: Path, capfd: Any
) -> None:
    """A verb leaves signals, collector, recursion limit, random numbers and all else alone, in success and failure."""
    for verb in COMMANDS:
        with subtests.test(verb=verb), new_folder(tmp_path) as folder:
            (folder / "bad").write_bytes((BAD / "view_beyond.t7").read_bytes())
            drawn = {"torch random": None} if verb == "lua" else {}  # the user's own factory draws the first weights
            before = state() | drawn
            assert cli.main(command(verb, files[verb], folder / "out")) == 0, capfd.readouterr().err
            assert state() | drawn == before
            if verb not in NO_FILE:
                assert cli.main(command(verb, folder / "bad", folder / "other")) == REFUSED.get(verb, 2)
                assert state() | drawn == before
            with contextlib.suppress(SystemExit):
                cli.main([verb, "--no-such-option"])
            assert state() | drawn == before


# Files that are refused: those of `testfiles/bad` are in `test_bars.py`


@pytest.mark.filterwarnings("ignore")
def test_paths_with_nul_and_missing_files(
    subtests: pytest.Subtests, files: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    """NUL in any path, a file that is not there, a folder in its place: one error, no traceback and no output."""
    for verb in [verb for verb in COMMANDS if verb not in NO_FILE]:
        with subtests.test(verb=verb), new_folder(tmp_path) as folder:
            given = [command(verb, "a\0b", folder / "out"), command(verb, folder / "missing", folder / "out")]
            given.append(command(verb, folder, folder / "out"))
            if "OUT" in str(COMMANDS[verb]):
                given.append(command(verb, files[verb], f"{folder}/x\0"))
            for arguments in given:
                code = cli.main(arguments)
                shown = capsys.readouterr()
                assert code in ((0, 1, 2) if verb == "zoo" else (REFUSED.get(verb, 2), 2)), (arguments, code)
                assert "\0" not in shown.out + shown.err
                assert "internal error" not in shown.err
                assert "Traceback" not in shown.err
                assert (verb == "zoo" and code == 0) or "t7bridge: " in shown.err, arguments
                assert verb == "zoo" or not list(folder.iterdir()), arguments


# Pipes


# Each run is a copy of one process, and ends as a process of its own does: with `run`, Python's last flush of standard
# output, and its exit code. Each verb runs once in the process itself before it is copied, for its imports; those that
# need PyTorch come last, as a process that has loaded it takes a third of a second to end.
FORKS = """
import contextlib, gc, io, json, os, sys
from t7bridge import cli
from t7bridge.__main__ import run

codes = []
for first, closed, arguments, errors in json.load(sys.stdin):
    if first is not None:
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            assert cli.main(first) == 0, first
        gc.freeze()
    child = os.fork()
    if not child:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        if closed:
            sys.stdout = sys.__stdout__ = None  # as Python has it where it finds no standard output
            os.close(1)
        else:
            reader, writer = os.pipe()
            os.close(reader)
            os.dup2(writer, 1)
        sys.argv = ["t7bridge", *arguments]
        run()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""


@pytest.mark.slow
def test_the_reader_of_a_pipe_is_gone(subtests: pytest.Subtests, files: dict[str, Path], tmp_path: Path) -> None:
    """`| head -1` and `>&-` end without a traceback; files that a verb writes are there and whole."""
    verbs = sorted(COMMANDS, key=NEED_TORCH.__contains__)
    runs = [(verb, closed, tmp_path / f"{verb}{closed:d}") for verb in verbs for closed in (False, True)]
    for _, _, folder in runs:
        folder.mkdir()
    asked = [
        (
            None if closed else command(verb, files[verb], tmp_path / f"first_{verb}"),
            closed,
            command(verb, files[verb], out / "x"),
            str(out) + ".err",
        )
        for verb, closed, out in runs
    ]
    done = subprocess.run(
        [sys.executable, "-c", FORKS], input=json.dumps(asked), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    for (verb, closed, folder), code in zip(runs, json.loads(done.stdout), strict=True):
        with subtests.test(verb=verb, closed=closed):
            errors = folder.with_name(folder.name + ".err").read_text()
            assert "Traceback" not in errors
            assert "Exception" not in errors
            writes = "OUT" in str(COMMANDS[verb])
            assert code in ((0,) if writes and closed else (0, 1) if writes else (1, 2)), errors
            if writes:
                assert list(folder.glob("x*")), errors
            if closed and not writes:
                assert errors == "t7bridge: error: standard output: is closed\n"


def test_errors_name_the_file(subtests: pytest.Subtests, tmp_path: Path, capsys: Any) -> None:
    """A sound file that holds nothing of what a verb wants is named in the error, also where many files are given."""
    for given in [
        ["convert", "FILE", "OUT.npz"],
        ["convert", "FILE", "OUT.safetensors"],
        ["convert", "FILE", "OUT.pt", "--pt-format", "torchscript"],
        ["convert", "FILE", "OUT.t7", "--template", str(MODEL)],
        ["module", "FILE", "-o", "OUT"],
        ["match", "FILE", "FILE"],
        ["draw", "FILE", "-o", "OUT.svg"],
        ["prove", "FILE"],
        ["export", "FILE", "OUT.onnx", "--input", "2x5"],
        ["inspect", "FILE", "--at", "root.nothing"],
        ["inspect", "FILE", "--at", "root.nothing", "--all"],
        ["inspect", "FILE", "--input-shape", "2x5"],
        ["lua", "torch.nn:Linear(5, 3)", "FILE", "-o", "OUT", "--input", "1x5"],
    ]:
        with subtests.test(f"{given[0]} {given[-1]}"[:40]), new_folder(tmp_path) as folder:
            torch.save({"epoch": None, "names": ["a"]}, folder / "x.pt")
            arguments = [
                each.replace("FILE", str(folder / "x.pt")).replace("OUT", str(folder / "out")) for each in given
            ]
            assert cli.main(arguments) == 2
            assert f"t7bridge: error: {folder / 'x.pt'}: " in capsys.readouterr().err
            assert [path.name for path in folder.iterdir()] == ["x.pt"]
