"""The command line in a page: runs a verb and returns what it printed."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import shutil
import zipfile
from collections.abc import Callable
from typing import Any

from t7bridge import cli

OUT = pathlib.Path("/out")
WORK = OUT / ".work"
"""Where a folder is written; beside the outputs, which are on disk."""


class Messages(io.StringIO):
    """Standard error, of which the page has each part at once: Python may end while it frees a value that it refused.

    Args:
        tell: takes each part.
    """

    def __init__(self, tell: Callable[[str], Any]) -> None:
        super().__init__()
        self._tell = tell

    def write(self, text: str) -> int:
        """Write, and tell the page."""
        self._tell(text)
        return super().write(text)


def run(arguments: Any, folder: str, tell: Callable[[str], Any]) -> dict[str, Any]:
    """Run `t7bridge ARGUMENTS` in a folder; messages are those of the command line.

    The folder that `module` writes is packed when it is done: a browser saves files.

    Args:
        arguments: the verb, its options and files.
        folder: where the files are.
        tell: takes each part of the messages when it is written.

    Returns:
        The exit code, and the texts of standard output and standard error.
    """
    arguments = list(arguments)
    os.chdir(folder)
    target = arguments[-1]
    is_folder = arguments[0] == "module"
    if is_folder:
        arguments[-1] = str(WORK / target.removesuffix(".zip"))
    elif arguments[0] in ("convert", "draw"):
        arguments[-1] = str(OUT / target)
    output = io.StringIO()
    messages = Messages(tell)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(messages):
        try:
            code = cli.main(arguments)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 2
    if is_folder and code == 0:
        pack(pathlib.Path(arguments[-1]), OUT / target)
    shutil.rmtree(WORK, ignore_errors=True)  # after an error, too
    texts = [text.getvalue().replace(f"{WORK}/", "").replace(f"{OUT}/", "") for text in (output, messages)]
    return {"code": code, "output": texts[0], "messages": texts[1]}


def pack(folder: pathlib.Path, target: pathlib.Path) -> None:
    """Pack a folder into a zip archive; times are those of no day, so that the same model gives the same bytes."""
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                member = zipfile.ZipInfo(f"{folder.name}/{file.relative_to(folder)}")
                with archive.open(member, "w") as target_file, file.open("rb") as source:
                    shutil.copyfileobj(source, target_file)
