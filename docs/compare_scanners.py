"""Write `docs/scanners.md`: what `t7bridge scan`, picklescan, fickling and modelscan say of the same files.

A folder of examples has `runs`, files that a loader executes, and `harmless`, ordinary ones; an entry may be a folder.
Each tool is run by its own command line, fickling by its functions for files and archives; an answer is the exit code:
something was found, nothing was, or an error.

Run: python docs/compare_scanners.py testfiles/scan --tools PATH_TO_BIN  (of an environment with the three others)
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "scanners.md"
_SECONDS = 120
FOUND, CLEAN, ERROR = "found", "nothing", "error"


def _t7bridge(path: Path, tools: Path) -> list[str]:
    return [str(Path(sys.executable).parent / "t7bridge"), "scan", str(path)]


def _picklescan(path: Path, tools: Path) -> list[str]:
    return [str(tools / "picklescan"), "-p", str(path)]


_FICKLING = """
import sys, zipfile
from fickling.analysis import Severity
from fickling.loader import scan_file, scan_zip_archive
path = sys.argv[1]
found = scan_zip_archive(path).values() if zipfile.is_zipfile(path) else [scan_file(path)]
sys.exit(any(each.severity > Severity.LIKELY_SAFE for each in found) * 3)
"""


def _fickling(path: Path, tools: Path) -> list[str]:
    return [str(tools / "python"), "-c", _FICKLING, str(path)]


def _modelscan(path: Path, tools: Path) -> list[str]:
    return [str(tools / "modelscan"), "-p", str(path)]


TOOLS: dict[str, Callable[[Path, Path], list[str]]] = {
    "t7bridge": _t7bridge, "picklescan": _picklescan, "fickling": _fickling, "modelscan": _modelscan,
}  # fmt: skip


def ask(name: str, path: Path, tools: Path) -> str:
    """Return what a tool says of a file or folder."""
    if name == "fickling" and path.is_dir():  # it takes files only
        answers = {ask(name, inside, tools) for inside in sorted(path.iterdir())}
        return next(answer for answer in (FOUND, ERROR, CLEAN) if answer in answers)
    try:
        done = subprocess.run(TOOLS[name](path, tools), capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return ERROR
    if name == "t7bridge":
        return CLEAN if done.returncode == 0 else ERROR if not done.stdout.strip() else FOUND
    if name == "fickling":
        return {0: CLEAN, 3: FOUND}.get(done.returncode, ERROR)
    return {0: CLEAN, 1: FOUND}.get(done.returncode, ERROR)


def versions(tools: Path) -> dict[str, str]:
    """Return the version of each tool."""
    found = {}
    for name in TOOLS:
        python = sys.executable if name == "t7bridge" else str(tools / "python")
        code = f"import importlib.metadata as m; print(m.version({name!r}))"
        found[name] = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return found


def page(examples: Path, tools: Path) -> str:
    """Return the page."""
    names = list(TOOLS)
    numbers = versions(tools)
    head = "| file | " + " | ".join(f"{name} {numbers[name]}" for name in names) + " |"
    parts = [
        "# `t7bridge scan` beside other scanners",
        "",
        "Made by `python docs/compare_scanners.py`; `testfiles/scan/README.md` describes the files. *found*: the tool",
        "names something; *error*: it refuses the file, or fails; *nothing*: exit code 0. A pipeline that loads a file",
        "only after exit code 0 is protected by *found* and *error* alike.",
        "",
    ]
    for kind, wanted in (("runs", "Files that a loader executes"), ("harmless", "Ordinary files")):
        rows, right = [], dict.fromkeys(names, 0)
        entries = sorted((examples / kind).iterdir())
        for path in entries:
            answers = {name: ask(name, path, tools) for name in names}
            for name, answer in answers.items():
                right[name] += (answer == CLEAN) == (kind == "harmless")
            rows.append(f"| `{path.name}` | " + " | ".join(answers[name] for name in names) + " |")
        total = "| **not taken for harmless** | " if kind == "runs" else "| **taken for harmless** | "
        total += " | ".join(f"**{right[name]} of {len(entries)}**" for name in names) + " |"
        parts += [f"## {wanted}", "", head, "| --- |" + " --- |" * len(names), *rows, total, ""]
    return "\n".join(parts)


def main() -> None:
    """Ask all tools, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("examples", type=Path)
    parser.add_argument("--tools", type=Path, required=True, help="folder of the other tools' commands")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    options = parser.parse_args()
    missing = [name for name in TOOLS if name != "t7bridge" and not shutil.which(name, path=str(options.tools))]
    if missing:
        parser.error(f"{options.tools} lacks {', '.join(missing)}")
    options.output.write_text(page(options.examples, options.tools))


if __name__ == "__main__":
    main()
