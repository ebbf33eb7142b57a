"""Every block of README, the site and the examples runs as written, and prints what the page shows.

Blocks of a page run in order, in a fresh folder with `testfiles/` in it: `console` has commands after `$ ` and their
output, where `...` is any text; `sh` has commands alone; `python` is run, with `title="NAME"` written to a file, and a
`text` block behind it is what it prints. Comments before a block: `<!-- not run: REASON -->`, and anywhere
`<!-- file NAME: SOURCE -->`, a file or folder of the repository that the page has under that name.
"""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from attrs import define
from helpers import ROOT, module_of

from t7bridge import cli
from t7bridge.cli import parser_for
from t7bridge.layers import registered_layers, unregister_layer

BLOCK = re.compile(
    r"((?:<!-- [^\n]* -->\n)*)```(console|sh|python|text)(?: title=\"([^\n]*)\")?\n(.*?)^```$", re.M | re.S
)
FILE = re.compile(r"<!-- file (\S+): (\S+) -->")
TOP = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples/README.md")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*TOP, *(ROOT / "docs").rglob("*.md"))
    if re.search("^```(console|sh|python)", path.read_text("utf-8"), re.M)
)
NOT_RUN = 24
"""So many blocks at most have a reason not to run: they install something, or need Lua Torch or a cluster."""


@define
class Block:
    """A block of a page."""

    page: str
    line: int
    reason: str
    kind: str
    title: str
    text: str

    @property
    def where(self) -> str:
        """The place of the block."""
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page; a `text` block counts only directly behind one of Python."""
    text = (ROOT / page).read_text("utf-8")
    found: list[Block] = []
    end = 0
    for match in BLOCK.finditer(text):
        comments, kind, title, content = match.groups()
        reason = re.search("not run: (.*?) -->", comments)
        line = text.count("\n", 0, match.start(2)) + 1
        block = Block(page, line, reason[1] if reason else "", kind, title or "", content)
        if kind != "text" or (found and found[-1].kind == "python" and not text[end : match.start()].strip()):
            found.append(block)
        end = match.end()
    return found


def commands(block: Block) -> Iterator[tuple[str, str | None]]:
    """Yield the commands of a block, with the output that it shows."""
    text = block.text.replace("\\\n", "")
    if block.kind == "sh":
        for line in text.splitlines():
            if command := line.partition("  #")[0].strip():
                yield command, None
        return
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        yield command.partition("  #")[0], output.strip("\n") or None


def run(command: str) -> tuple[int, str]:
    """Run `t7bridge …` or `python FILE …` in this process, and return its exit code and what it prints."""
    program, *arguments = shlex.split(command)
    assert program in ("t7bridge", "python"), f"{command}: neither t7bridge nor python"
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with redirect_stdout(stream), redirect_stderr(stream):
        try:
            code = cli.main(arguments) if program == "t7bridge" else run_file(*arguments)
        except SystemExit as stop:  # wrong usage, and help
            code = int(stop.code or 0)
    return code, stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def run_file(path: str, *arguments: str) -> int:
    """Run a program of the page in this process."""
    argv, places, modules = sys.argv[:], sys.path[:], set(sys.modules)
    sys.argv, sys.path[0] = [path, *arguments], str(Path(path).resolve().parent)
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv[:], sys.path[:] = argv, places
        forget(modules, Path.cwd())
    return 0


def forget(known: set[str], folder: Path) -> None:
    """Forget modules that were imported from a folder since."""
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


def agrees(printed: str, shown: str) -> bool:
    """Tell whether a text is the one shown, in which `...` is any text and errors of rounding are any of them."""
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    pattern = re.escape("\n".join(line.rstrip() for line in shown.strip("\n").splitlines()))
    pattern = re.sub(r"\d(\\\.\d+)?e\\-(0[5-9]|1\d)", r"\\d(\\.\\d+)?e-(0[5-9]|1\\d)", pattern)
    return re.fullmatch(pattern.replace(r"\.\.\.", "(?s:.*)"), "\n".join(lines)) is not None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh folder with `testfiles/`, as the current one; layers and modules of the page are forgotten."""
    (tmp_path / "testfiles").symlink_to(ROOT / "testfiles", target_is_directory=True)
    forget(set(), tmp_path.parent)  # other tests have a `net.py` too
    modules, layers = set(sys.modules), set(registered_layers())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget(modules, tmp_path)
    for name in set(registered_layers()) - layers:
        unregister_layer(name)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the pages show paths of POSIX")
@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, folder: Path) -> None:
    """The blocks run in order."""
    for name, source in FILE.findall((ROOT / page).read_text("utf-8")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / source).is_dir() else shutil.copyfile)(ROOT / source, target)
    names: dict[str, Any] = {"__name__": "page"}
    printed = ""
    for block in blocks(page):
        if block.reason:
            continue
        if block.title:
            (folder / block.title).write_text(block.text, "utf-8")
        elif block.kind == "text":
            assert agrees(printed, block.text), f"{block.where} shows another text than\n{printed}"
        elif block.kind == "python":
            printed = python(block, names)
        else:
            for command, shown in commands(block):
                code, printed = run(command)
                assert code == 0 or shown, f"{block.where}: {command} exits with {code}\n{printed}"
                assert shown is None or agrees(printed, shown), f"{block.where}: {command} prints\n{printed}"


def python(block: Block, names: dict[str, Any]) -> str:
    """Run a block of Python, and return what it prints."""
    with io.StringIO() as stream, redirect_stdout(stream):
        try:
            exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
        except Exception:
            pytest.fail(f"{block.where} fails:\n{traceback.format_exc()}")
        return stream.getvalue()


def test_few_blocks_do_not_run() -> None:
    """Each has a reason, and they are few."""
    reasons = [(block.where, block.reason) for page in PAGES for block in blocks(page) if block.reason]
    assert len(reasons) <= NOT_RUN, reasons


def test_commands_in_the_text() -> None:
    """Those in a sentence or a table, and those that are not run, have a verb and options that exist."""
    for path in (*TOP, ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")):
        for command in re.findall(r"(?:^\$ |`)(t7bridge [a-z]+ [^`\n]+)", path.read_text("utf-8"), re.M):
            _, verb, *arguments = shlex.split(command, comments=True)
            if "…" not in command:
                try:
                    parser_for(verb).parse_args(arguments)
                except SystemExit as stop:
                    if stop.code:
                        pytest.fail(f"{path.name}: {command}")


def test_wrong_output_is_found() -> None:
    """A text agrees with itself, and with one that leaves parts out; not with another."""
    assert agrees("a 1 b\nc\n", "a ... b\n...")
    assert not agrees("a\nb\n", "a\nc\n")
    assert not agrees("a\nb\n", "a\n")


def notebooks() -> Any:
    """The script that makes the notebooks, as a module."""
    return module_of(ROOT / "docs/generate_notebooks.py")


@pytest.mark.slow
def test_notebooks_are_those_of_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`examples/*.ipynb` are what `docs/generate_notebooks.py` makes of the tutorials, and begin in a fresh folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = notebooks().notebooks()
    assert {path.name for path in (ROOT / "examples").glob("*.ipynb")} == set(made)
    for name, text in made.items():
        assert (ROOT / "examples" / name).read_text("utf-8") == text, "run `python docs/generate_notebooks.py`"
        cells = json.loads(text)["cells"]
        monkeypatch.chdir(ROOT / "examples")
        exec("".join(cells[1]["source"]), {})
        assert Path("testfiles/models").is_dir()
        assert Path.cwd().is_relative_to(tmp_path)
