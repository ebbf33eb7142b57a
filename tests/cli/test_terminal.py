"""The command line on a terminal: colours, the progress bar, quiet runs and completion."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import PATIENCE, TESTFILES

from t7bridge.cli import SHELLS, VERBS, completed, main, parser_for, script

MODEL = TESTFILES / "models" / "lenet_mm.t7"
SLOW = """
import sys, time
from t7bridge.cli import main, verbs
from t7bridge.io import progress
progress._PATIENCE_SECONDS, progress._REDRAW_SECONDS = {patience}, 0.05
run = verbs.{verb}
def slow(options):
    time.sleep({seconds})
    return run(options)
verbs.{verb} = slow
code = main(sys.argv[1:])
raise SystemExit(code)
"""


def on_a_terminal(command: list[object], **environment: str) -> tuple[int, str, str]:
    """Exit code, standard output and what a terminal at standard error got."""
    ours, theirs = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    variables |= {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", **environment}
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, env=variables
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    printed, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, printed.decode(), shown.decode()


def slowed(verb: str, *words: object, seconds: float, patience: float = 0.1) -> tuple[int, str, str]:
    """A verb that takes some seconds, on a terminal."""
    program = SLOW.format(verb=verb, seconds=seconds, patience=patience)
    return on_a_terminal([sys.executable, "-c", program, verb, *words])


@pytest.mark.slow
def test_a_bar_for_what_takes_long(tmp_path: Path) -> None:
    """After the patience of two seconds a terminal gets a bar, removed before the result is printed."""
    code, printed, shown = slowed("convert", MODEL, tmp_path / "x.pt", seconds=1)
    assert code == 0
    assert "convert lenet_mm.t7" in shown
    assert "0%" in shown
    *_, last = shown.partition("t7bridge: info:")[0].rpartition("lenet_mm.t7")
    assert " " * 60 + "\r" in last, "the bar is erased before anything is printed"
    assert "tensors" in printed
    assert all(len(line) < 80 for line in shown.partition("t7bridge: info:")[0].split("\r"))
    code, _, shown = slowed("verify", MODEL, tmp_path / "x.pt", seconds=1)
    assert code == 0
    assert "verify lenet_mm.t7 x.pt" in shown


@pytest.mark.slow
def test_no_bar_for_what_is_quick(tmp_path: Path) -> None:
    """Work done before the delay ends shows no progress; nor do quiet runs, or those with JSON."""
    _, _, shown = slowed("convert", MODEL, tmp_path / "x.pt", seconds=0, patience=60)
    assert "━" not in shown
    for number, option in enumerate(("--quiet", "--json")):
        _, _, shown = slowed("convert", MODEL, tmp_path / f"{number}.pt", option, seconds=0.5)
        assert not shown, option


@pytest.mark.slow
def test_a_bar_in_notebooks(tmp_path: Path) -> None:
    """Functions that take long display a bar where a kernel of Jupyter runs them, one for those within others.

    A saved notebook has nothing of it: the display is empty in the end.
    """
    program = """
import sys, time, types
class Shell: kernel = None
shown = []
class Display:
    def __init__(self, data, raw, display_id): self.update(data, raw)
    def update(self, data, raw): shown.append(data["text/plain"])
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=Shell, display=types.SimpleNamespace(display=Display))
import t7bridge
from t7bridge.io import progress
from t7bridge.tools import inspect
progress._PATIENCE_SECONDS, progress._REDRAW_SECONDS = 0.1, 0.05
whole = inspect._number_facts
inspect._number_facts = lambda roots: [time.sleep(1), t7bridge.diff(sys.argv[1], sys.argv[1])] and whole(roots)
assert t7bridge.inspect(sys.argv[1]).header["modules"]
print(*shown, sep="\\n", end="|")
"""
    done = subprocess.run([sys.executable, "-c", program, MODEL], capture_output=True, check=True, encoding="utf-8")
    *lines, last = done.stdout.removesuffix("|").split("\n")
    assert len(lines) > 5
    assert all(line.startswith("inspect ") for line in lines)
    assert last == done.stderr == ""


@pytest.mark.slow
def test_colours(tmp_path: Path) -> None:
    """Errors are red on a terminal; not with NO_COLOR, with TERM=dumb, or through a pipe."""
    command = [sys.executable, "-m", "t7bridge", "describe", tmp_path / "none.t7"]
    assert on_a_terminal(command)[2].startswith("\x1b[31mt7bridge: error:\x1b[0m ")
    assert on_a_terminal(command, NO_COLOR="")[2].startswith("\x1b[31m"), "an empty NO_COLOR is none"
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        code, _, shown = on_a_terminal(command, **environment)
        assert code == 2
        assert shown.startswith("t7bridge: error: ")
    piped = subprocess.run(list(map(str, command)), capture_output=True, check=False)
    assert piped.stderr.startswith(b"t7bridge: error: ")


@pytest.mark.slow
def test_the_next_step(tmp_path: Path) -> None:
    """On a terminal a success ends with the command that users need next; through a pipe it does not."""
    command = [sys.executable, "-m", "t7bridge", "convert", MODEL, tmp_path / "a b.pt"]
    code, _, shown = on_a_terminal(command)
    assert (code, shown.splitlines()[-1]) == (
        0,
        f"t7bridge: hint: {tmp_path}/a b.pt has weights only; a module to run them: "
        f"t7bridge module {MODEL} -o '{tmp_path}/a b'",
    )
    piped = subprocess.run([*map(str, command), "--force"], capture_output=True, check=True)
    assert b"hint" not in piped.stderr
    _, _, shown = on_a_terminal([*command[:3], "draw", MODEL, "-o", tmp_path / "x.html"])
    assert shown.endswith(f"open {tmp_path}/x.html in a browser\r\n")


QUIET: dict[str, Callable[[Path], list[object]]] = {
    "completion": lambda folder: ["bash"],
    "convert": lambda folder: [MODEL, folder / "x.pt"],
    "describe": lambda folder: [MODEL],
    "diff": lambda folder: [MODEL, MODEL],
    "draw": lambda folder: [MODEL, "-o", folder / "x.html"],
    "inspect": lambda folder: [MODEL],
    "match": lambda folder: [MODEL, MODEL],
    "module": lambda folder: [MODEL, "-o", folder],
    "prove": lambda folder: [TESTFILES / "prove" / "graph.eval.t7"],
    "scan": lambda folder: [MODEL],
    "verify": lambda folder: [MODEL, MODEL, "--quick"],
    "export": lambda folder: [MODEL, folder / "x.pt2", "--input", "1x1x32x32"],
    "lua": lambda folder: ["torch.nn:ReLU", "--input", "1x2", "-o", folder],
    "zoo": lambda folder: [MODEL, "-o", folder / "zoo"],
}
LONG = ("export", "lua", "zoo")


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=pytest.mark.slow) if verb in LONG else verb for verb in QUIET]
)
def test_quiet(verb: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With --quiet a verb prints nothing where all is well, and an error where it is not."""
    assert main([verb, *map(str, QUIET[verb](tmp_path)), "--quiet"]) in (0, 1)
    assert capfd.readouterr() == ("", "")
    if verb not in ("completion", "export", "lua"):
        assert main([verb, str(tmp_path / "none.t7"), *map(str, QUIET[verb](tmp_path)[1:]), "-q"]) in (1, 2)
        out, err = capfd.readouterr()
        assert out == ""
        assert "none.t7" in err


def test_every_verb_has_a_quiet_run() -> None:
    """The table above has all verbs."""
    assert set(QUIET) == set(VERBS)


def test_completion_of_every_verb() -> None:
    """In bash each verb completes all of its options, and the values of those that have a list."""
    wanted: dict[str, str] = {"t7bridge ''": " ".join([*VERBS, "help", "--help", "--version"])}
    wanted["t7bridge completion ''"] = "bash zsh fish"
    for verb in VERBS:
        parser = parser_for(verb)
        actions = [action for action in parser._actions if action.option_strings]
        wanted[f"t7bridge {verb} -"] = " ".join(word for action in actions for word in action.option_strings)
        for action in actions:
            if action.choices:
                line = f"t7bridge {verb} {action.option_strings[-1]} ''"
                wanted[line] = " ".join(map(str, action.choices))
    asked = "".join(
        f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _t7bridge; echo ${{COMPREPLY[@]}}\n"
        for line in wanted
    )
    found = subprocess.run(["bash", "-c", script("bash") + asked], capture_output=True, text=True, check=True)
    assert dict(zip(wanted, found.stdout.splitlines())) == wanted
    fish = script("fish")
    assert all(f"__fish_seen_subcommand_from {verb}'" in fish for verb in VERBS)
    assert script("zsh").startswith("#compdef t7bridge\n")
    for shell in SHELLS:
        assert completed(shell) == script(shell), "run `python docs/generate_options.py`"
