"""Write `docs/scanners.md`: what `t7bridge scan`, picklescan, fickling and modelscan say of the same files.

A folder of examples has `runs`, files that a loader executes, and `harmless`, ordinary ones; an entry may be a folder.
Each tool is asked by its own functions for files: something was found, nothing was, or there was an error.

Run: python docs/compare_scanners.py testfiles/scan --tools PATH_TO_BIN  (of an environment with the three others)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "scanners.md"

# Programs that answer for the paths in their arguments, as JSON; each tool answers by its own functions.
_LOOP = """
import contextlib, io, json, os, sys, zipfile
def answers(scan):
    found = {}
    for path in sys.argv[1:]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                found[path] = scan(path)
            except (Exception, SystemExit):
                found[path] = "error"
    print(json.dumps(found))
def of(issues, error):
    return "found" if issues else "error" if error else "nothing"
"""
TOOLS = {
    "t7bridge": """
from t7bridge import scan
def one(path):
    report = scan(path)
    return of(report.findings, report.error)
answers(one)
""",
    "picklescan": """
from picklescan.scanner import scan_directory_path, scan_file_path
def one(path):
    result = (scan_directory_path if os.path.isdir(path) else scan_file_path)(path)
    return of(result.infected_files, result.scan_err)
answers(one)
""",
    "fickling": """
from fickling.analysis import Severity
from fickling.loader import scan_file, scan_zip_archive
def one(path):
    if os.path.isdir(path):
        inside = [one(os.path.join(path, name)) for name in os.listdir(path)]
        return next(answer for answer in ("found", "error", "nothing") if answer in inside)
    found = scan_zip_archive(path).values() if zipfile.is_zipfile(path) else [scan_file(path)]
    return of(any(each.severity > Severity.LIKELY_SAFE for each in found), False)
answers(one)
""",
    "modelscan": """
from modelscan.modelscan import ModelScan
def one(path):
    result = ModelScan().scan(path)
    return of(result["summary"]["total_issues"], result["errors"])
answers(one)
""",
}


def _python(name: str, tools: Path) -> str:
    return sys.executable if name == "t7bridge" else str(tools / "python")


def ask(name: str, paths: list[Path], tools: Path) -> dict[str, str]:
    """Return what a tool says of files and folders, by path."""
    command = [_python(name, tools), "-c", _LOOP + TOOLS[name], *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answers: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answers


def versions(tools: Path) -> dict[str, str]:
    """Return the version of each tool."""
    found = {}
    for name in TOOLS:
        code = f"import importlib.metadata as m; print(m.version({name!r}))"
        found[name] = subprocess.run(
            [_python(name, tools), "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
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
        "names something; *error*: it refuses the file, or fails; *nothing*: neither. A pipeline that loads a file",
        "only after *nothing* is protected by *found* and *error* alike.",
        "",
    ]
    for kind, wanted in (("runs", "Files that a loader executes"), ("harmless", "Ordinary files")):
        entries = sorted((examples / kind).iterdir())
        said = {name: ask(name, entries, tools) for name in names}
        rows = [f"| `{path.name}` | " + " | ".join(said[name][str(path)] for name in names) + " |" for path in entries]
        harmless = {name: sum(answer == "nothing" for answer in said[name].values()) for name in names}
        right = {name: count if kind == "harmless" else len(entries) - count for name, count in harmless.items()}
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
    options.output.write_text(page(options.examples, options.tools))


if __name__ == "__main__":
    main()
