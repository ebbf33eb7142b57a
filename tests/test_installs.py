"""What users are told to install: libraries that this project names as its own dependencies, and its own copy by path.

The name of this project on an index is not ours: anyone may take it.
"""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path

from helpers import ROOT

from t7bridge.io.addresses import _LIBRARIES

COMMAND = re.compile(r"pip install ([^\n`]*)")
REQUIREMENT = re.compile(r"[\w.-]+(?:\[[\w,]+\])?(?:>=[\d.]+)?")
OF_NO_EXTRA = {"hdf5plugin", "ml_dtypes", "torchvision", "timm"}
"""Libraries that messages name and that no extra has."""
IN_SENTENCES = (".py", ".html", ".js", ".lua")


def commands(paths: list[Path]) -> list[tuple[str, str]]:
    """Return what each `pip install` of some files installs, with the name of the file."""
    texts = {path: path.read_text("utf-8") for path in paths}
    return [(str(path.relative_to(ROOT)), command) for path, text in texts.items() for command in COMMAND.findall(text)]


def dependencies() -> set[str]:
    """Return the names of the libraries that the project depends on, with all extras."""
    return {re.split(r"[^\w-]", requirement)[0] for requirement in requires("t7bridge") or ()} - {"t7bridge"}


def test_messages_name_libraries() -> None:
    """Hints of errors install libraries by their own names, never this project or one of its extras."""
    sources = [path for path in (ROOT / "t7bridge").rglob("*") if path.suffix in IN_SENTENCES]
    hints = commands(sources)
    assert len(hints) >= 9
    known = dependencies() | OF_NO_EXTRA
    for name, command in hints:
        if command.startswith(("{library}", "{packages}")):  # those of the next test
            continue
        # The command ends with the string, or where the sentence resumes.
        words = re.split(r"[,)\"]|' ", command.replace("'", "") + " ")[0].split()
        assert words, name
        for word in words:
            assert REQUIREMENT.fullmatch(word), (name, command)
            assert re.split(r"[\[>]", word)[0] in known, (name, command)


def test_messages_about_addresses_name_libraries() -> None:
    """What fsspec needs for an address is a library, too, and named as fsspec's own table of places names it."""
    from fsspec.registry import known_implementations

    for protocol, library in _LIBRARIES.items():
        assert REQUIREMENT.fullmatch(library), protocol
        if protocol != "abfss":  # which adlfs itself adds to fsspec
            assert library in known_implementations[protocol]["err"], protocol


def test_pages_install_the_copy() -> None:
    """Documents install extras of the copy that the reader has, `.[torch]`, and nothing called t7bridge."""
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.ipynb")]
    found = commands([page for page in pages if page.name != "CHANGELOG.md"])
    assert len(found) >= 9
    for name, command in found:
        assert not re.search(r"(?<![\w/.])t7bridge", command.partition("&&")[0]), (name, command)
