"""Names in a zoo: of inputs, which must stay inside the output folder, and of outputs, which must differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ..formats import SUFFIXES
from ..io import platform
from .journal import NAME, Journal

PAGES = "report.pages"
"""Folder of the rows of the report beyond its first page."""
REPORTS = ("report.html", "report.json", "report.csv", PAGES)
_STRIPPED = {*SUFFIXES, ".th", ".dat"}
"""Suffixes of inputs that their outputs do not keep."""


def safe_name(inside: str) -> str:
    """Return a path that stays inside its folder, whatever an archive or a server calls its members.

    Its parts are separated by `/`; where a system forbids characters or names, they are replaced.
    """
    parts: list[str] = []
    for part in inside.replace("\\", "/").replace("\0", "_").split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            part = "__"
        elif platform.IS_WINDOWS:
            part = platform.windows_name(part)
        parts.append(part)
    return "/".join(parts) or "_"


def stem_of(name: str) -> str:
    """Return `a/net` for `a/net.t7` and `a/net.pth.tar`; an unknown suffix stays."""
    stem, suffix = os.path.splitext(name)
    inner_stem, inner_suffix = os.path.splitext(stem)
    if suffix.lower() == ".tar" and inner_suffix.lower() in _STRIPPED:
        stem = inner_stem
        suffix = inner_suffix
    # A name that is nothing but a suffix stays.
    if suffix.lower() in _STRIPPED and os.path.basename(stem):
        return stem
    return name


class OutputNames:
    """Names of the outputs of new inputs: those of the inputs, with the suffix of the format.

    If two would get the same name, or a file that of a folder, both keep their own suffix too: `net.t7.pt`. Names
    differ in more than case, which some file systems ignore. All inputs say what they want before the first chooses.

    Args:
        journal: has the names in temporary tables, since there may be millions.
        suffix_of: returns the suffix of the output for the name of an input format.
    """

    def __init__(self, journal: Journal, suffix_of: Callable[[str], str]) -> None:
        self._journal = journal
        self._suffix_of = suffix_of
        self.has_wanted_names = False
        """Whether `note_wanted_name` was called, and `choose_name` will be."""
        self._last_folder = ""
        """The folder whose name was reserved last: names come in order, and most share it with the one before."""
        # The names that are reserved, and how many inputs want each name: all as keys without case.
        journal.execute("CREATE TEMP TABLE IF NOT EXISTS used (key TEXT PRIMARY KEY) WITHOUT ROWID")
        journal.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (key TEXT PRIMARY KEY, times INTEGER) WITHOUT ROWID")
        for name in (*REPORTS, NAME):
            self.reserve(name)

    def reserve(self, name: str) -> None:
        """Reserve a name, and those of its folders: no output will get it."""
        self._reserve_folders(name)
        self._reserve_if_free(name)

    def _reserve_if_free(self, name: str) -> bool:
        """Reserve a name, in whatever case, unless it is reserved already; return whether it was free."""
        return self._journal.execute("INSERT OR IGNORE INTO used VALUES (?)", name.casefold()) > 0

    def _reserve_folders(self, name: str) -> None:
        """Reserve the names of the folders around a file, unless they are: no output may have them."""
        folder, _, _ = name.rpartition("/")
        if folder == self._last_folder:
            return
        self._last_folder = folder
        for parent in _with_parents(folder):
            self._reserve_if_free(parent)

    def _short_name(self, name: str, kind: str) -> str:
        """Return the name that an input of a format wants for its output: `net.pt` for `net.t7`."""
        return stem_of(name) + self._suffix_of(kind)

    def note_wanted_name(self, name: str, kind: str) -> None:
        """Note the name that an input of a format wants for its output, and reserve those of its folders.

        Args:
            name: of the input.
            kind: its format.
        """
        short = self._short_name(name, kind)
        self.has_wanted_names = True
        self._reserve_folders(short)
        add = "INSERT INTO wanted VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET times = times + 1"
        self._journal.execute(add, short.casefold())

    def choose_name(self, name: str, kind: str) -> str:
        """Return a free name for the output of an input of a format, and reserve it.

        It is `net.pt`, or else `net.t7.pt`, `net.t7.2.pt`, …

        Args:
            name: of the input, for which `note_wanted_name` was called.
            kind: its format.
        """
        short = self._short_name(name, kind)
        ((inputs_that_want_it,),) = self._journal.query("SELECT times FROM wanted WHERE key = ?", short.casefold())
        if inputs_that_want_it == 1 and self._reserve_if_free(short):
            return short
        for longer in self._longer_names(name, kind):
            # A name that several inputs want goes to none of them, and so not to `net` either, an input without a
            # suffix, whose longer name is the short one, `net.pt`.
            is_wanted_by_several = inputs_that_want_it > 1 and longer == short
            if not is_wanted_by_several and self._reserve_if_free(longer):
                return longer
        raise AssertionError("numbers do not end")

    def _longer_names(self, name: str, kind: str) -> Iterator[str]:
        """Yield names that keep the suffix of the input, without end: all but the first with a number."""
        suffix = self._suffix_of(kind)
        yield name + suffix
        number = 2
        while True:
            yield f"{name}.{number}{suffix}"
            number += 1


def _with_parents(folder: str) -> Iterator[str]:
    """Yield a folder and those that contain it, the innermost first: `a/b`, `a`; nothing for an empty text."""
    while folder:
        yield folder
        folder, _, _ = folder.rpartition("/")
