"""The public line: names and signatures are those of `docs/public.txt`, and names of earlier releases still work."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import ROOT, TESTFILES

import t7bridge


def test_public_names_and_signatures_are_the_committed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes one changes `docs/public.txt` too (`python docs/generate_api.py`)."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import generate_api

    page, names = generate_api.pages()
    assert names == (ROOT / "docs/public.txt").read_text("utf-8")
    assert page == (ROOT / "docs/api.md").read_text("utf-8")


def test_arguments_of_earlier_releases(tmp_path: Path) -> None:
    """`src`, `dst`, `a` and `b` by keyword; not together with the new name."""
    old: dict[str, object] = {"src": TESTFILES / "nn/Linear.t7", "dst": tmp_path / "x.pt"}
    convert, verify, scan = (getattr(t7bridge, name) for name in ("convert", "verify", "scan"))
    convert(**old)
    assert verify(a=old["src"], b=old["dst"]).same
    assert scan(path=old["dst"]).clean == scan(source=old["dst"]).clean
    with pytest.raises(TypeError, match="src"):
        convert(source=old["src"], target=tmp_path / "y.pt", src=old["src"])
