"""Write `examples/*.ipynb`: the tutorials of the site as notebooks.

Run: python docs/generate_notebooks.py
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = Path(__file__).resolve().parent / "tutorials"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\n]*)\")?\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"<!-- file (\S+): (\S+) -->")
LINK = re.compile(r"\]\(([^):]*\.md)([^)]*)\)")
SETUP = """\
# A fresh folder, with the files of this tutorial.
import os
import shutil
import tempfile
from pathlib import Path

root, folder = Path.cwd().parent, Path(tempfile.mkdtemp())
shutil.copytree(root / "testfiles", folder / "testfiles")
os.chdir(folder)
"""


def notebooks() -> dict[str, str]:
    """Return the notebooks, by the names of their files."""
    return {f"{page.stem}.ipynb": notebook(page.read_text("utf-8")) for page in sorted(TUTORIALS.glob("*.md"))}


def notebook(page: str) -> str:
    """Return a page as a notebook: text, commands after `!`, Python, and what the page shows as output."""
    setup = SETUP
    for name, source in FILE.findall(page):
        setup += f'Path("{name}").parent.mkdir(parents=True, exist_ok=True)\n'
        setup += f'shutil.copyfile(root / "{source}", "{name}")\n'
    page = FILE.sub("", page)
    cells: list[dict[str, Any]] = []
    end = 0
    for block in BLOCK.finditer(page):
        kind, title, text = block.groups()
        before = page[end : block.start()]
        end = block.end()
        if "<!-- not run: " in before:
            prose(cells, re.sub("<!-- .* -->\n", "", before) + block[0])
            continue
        if kind == "text" and cells and not before.strip():
            cells[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text.splitlines(True)}]
            continue
        prose(cells, before)
        if kind == "console":
            for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
                command, _, output = part.partition("\n")
                code(cells, f"!{command}", output)
        elif kind == "python":
            code(cells, f"%%writefile {title}\n{text}" if title else text)
        else:
            prose(cells, block[0])
    prose(cells, page[end:])
    code(cells, setup)
    cells.insert(1, cells.pop())
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def prose(cells: list[dict[str, Any]], text: str) -> None:
    """Add text; its links lead to the pages in `docs/`."""
    text = LINK.sub(lambda link: f"]({posixpath.normpath('../docs/tutorials/' + link[1])}{link[2]})", text.strip())
    if text and cells and cells[-1]["cell_type"] == "markdown":
        cells[-1]["source"] += ["\n\n", *text.splitlines(True)]
    elif text:
        cells.append({"cell_type": "markdown", "metadata": {}, "source": text.splitlines(True)})


def code(cells: list[dict[str, Any]], text: str, output: str = "") -> None:
    """Add code with its output."""
    outputs = [{"name": "stdout", "output_type": "stream", "text": output.splitlines(True)}] if output else []
    source = text.rstrip("\n").splitlines(True)
    cells.append({"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": outputs, "source": source})


if __name__ == "__main__":
    for name, text in notebooks().items():
        (ROOT / "examples" / name).write_text(text, "utf-8")
