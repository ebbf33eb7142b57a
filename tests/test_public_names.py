"""The public line: names and signatures are those of `docs/public.txt`, and names of earlier releases still work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import ROOT, TESTFILES

import t7bridge


def test_public_names_and_signatures_are_the_committed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes one changes `docs/public.txt` too (`python docs/generate_api.py`)."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import generate_api

    assert generate_api.page() == (ROOT / "docs/public.txt").read_text("utf-8"), "run `python docs/generate_api.py`"


def test_each_public_name_is_on_one_page() -> None:
    """The pages of `docs/api` divide the names of the package by theme; those without a docstring are in their text."""
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "docs/api").glob("*.md"))]
    assert len(texts) == 7
    listed = [
        name
        for text in texts
        for names in re.findall(r"::: t7bridge\n(?: .*\n)*? *members: \[(.*)\]", text)
        for name in re.split(r",\s*", names)
    ]
    without_docstring = {"Key", "Value", "__version__"}
    modules = {"errors", "layers", "torchfile", "T7BridgeError", "register_module"}
    assert sorted(listed) == sorted(set(t7bridge.__all__) - without_docstring - modules)
    for module in ("errors", "formats", "layers", "lua", "torchfile"):
        assert any(f"::: t7bridge.{module}\n" in text for text in texts), module


def test_arguments_of_earlier_releases(tmp_path: Path) -> None:
    """`src`, `dst`, `a` and `b` by keyword, with a warning that has the new name; not together with it."""
    old: dict[str, object] = {"src": TESTFILES / "nn/Linear.t7", "dst": tmp_path / "x.pt"}
    convert, verify, scan = (getattr(t7bridge, name) for name in ("convert", "verify", "scan"))
    with pytest.warns(DeprecationWarning, match=r"convert\((src|dst)=…\) is deprecated; use (source|target)=…"):
        convert(**old)
    with pytest.warns(DeprecationWarning, match=r"verify\((a|b)="):
        assert not verify(a=old["src"], b=old["dst"]).differences
    with pytest.warns(DeprecationWarning, match=r"scan\(path="):
        assert scan(path=old["dst"]).clean == scan(source=old["dst"]).clean
    with pytest.raises(TypeError, match="src"):
        convert(source=old["src"], target=tmp_path / "y.pt", src=old["src"])
