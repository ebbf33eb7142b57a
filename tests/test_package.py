"""The archives that users install: complete, the same bytes whenever they are built, with a text for an index."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from helpers import ROOT

import t7bridge

TOP = ("t7bridge", "tests", "testfiles", "docs", "examples", "benchmarks", "fuzz", ".ci")
GENERATED = {"__pycache__", ".pytest_cache", ".hypothesis", ".ruff_cache", ".mypy_cache"}


def files_of(folder: str) -> set[str]:
    """Return the paths below a folder of the project, from its top, without what running Python leaves."""
    paths = [path for path in (ROOT / folder).rglob("*") if path.is_file() and GENERATED.isdisjoint(path.parts)]
    return {path.relative_to(ROOT).as_posix() for path in paths}


def description(root: Path = ROOT) -> str:
    """Return the text that an index shows."""
    return ProjectMetadata(str(root), PluginManager()).core.readme


def test_the_source_distribution_has_all_files() -> None:
    """Tests, the files they read, documents and examples."""
    inside = {item.distribution_path for item in SdistBuilder(str(ROOT)).recurse_included_files()}
    wanted = {name for folder in TOP for name in files_of(folder)}
    assert len(wanted) > 1000
    assert wanted - inside == set()
    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "mkdocs.yml", "pyproject.toml"} <= inside


def test_the_wheel_has_the_package_alone() -> None:
    """Sources, the files that they read and the mark of types; no settings of tools."""
    inside = {item.distribution_path for item in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert inside == {name for name in files_of("t7bridge") if not name.endswith("ruff.toml")}


def test_built_twice_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies made in another order, with other times and permissions, give the same archives."""
    names = ["README.md", "LICENSE", "pyproject.toml", "t7bridge/data.py", "t7bridge/py.typed", "tests/helpers.py"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    archives: list[list[bytes]] = []
    for copy, order, mode in (("one", names, 0o644), ("two", names[::-1], 0o600)):
        root = tmp_path / copy
        for count, name in enumerate(order):
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
            target.chmod(mode)
            os.utime(target, (1_000_000_000 + count,) * 2)
        archives.append(
            [
                Path(path).read_bytes()
                for builder in (SdistBuilder, WheelBuilder)
                for path in builder(str(root)).build(directory=str(tmp_path / f"dist-{copy}"))
            ]
        )
    assert len(archives[0]) == 2
    assert archives[0] == archives[1]


def test_the_text_of_an_index_has_no_dead_link() -> None:
    """Relative links and pictures are replaced by their text; links to the web stay."""
    text = description()
    targets = re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)\"", text)
    assert targets
    assert all("".join(target).startswith("https://") for target in targets)
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)|<img[^>]*>\n", r"\1", readme)
    assert re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text) == shown


def test_the_version_is_that_of_the_next_release() -> None:
    """With unreleased changes it ends in `.dev0`, and is above the newest release, which the citation has."""
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    version, date = (re.search(rf"^{key}: (.*)$", citation, re.M) for key in ("version", "date-released"))
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    release = re.search(r"^## \[(\d[^]]*)\] - (.*)$", changelog, re.M)
    assert version is not None
    assert date is not None
    assert release is not None
    assert version[1] == release[1]
    assert date[1].strip('"') == release[2]
    if "## [Unreleased]" not in changelog:
        assert t7bridge.__version__ == release[1]
        return
    number = t7bridge.__version__.removesuffix(".dev0")
    assert number != t7bridge.__version__
    assert [int(part) for part in number.split(".")] > [int(part) for part in release[1].split(".")]
    # A release that removes what was public is a major one (docs/stability.md).
    unreleased = changelog.partition("## [Unreleased]")[2].partition("\n## [")[0]
    if "### Removed" in unreleased:
        assert number.split(".")[1:] == ["0", "0"]
