"""What Python's prompt and a notebook show of results: one plain line each, and tables for people."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge.report import Note, Printed, Report
from t7bridge.text import LINE
from t7bridge.tools.scan import Finding, ScanReport
from t7bridge.tools.verify import DiffReport, VerifyReport
from t7bridge.values import Difference
from t7bridge.workshop.match.result import Ambiguity, Match, Pair
from t7bridge.workshop.match.sides import Side
from t7bridge.workshop.prove import Proof
from t7bridge.zoo import ZooReport

MODEL = TESTFILES / "models/lenet_mm.t7"
OTHER = TESTFILES / "models/resnet_small.t7"


def results(folder: Path) -> dict[str, Any]:
    """A result of each verb that needs no PyTorch."""
    target = folder / "a.pt"
    return {
        "<Report: lenet_mm.t7 to a.pt: state dict, 8 tensors; 1 note>": t7bridge.convert(MODEL, target),
        "<VerifyReport: no difference in what both can hold (lenet_mm.t7, a.pt)>": t7bridge.verify(MODEL, target),
        "<DiffReport: no difference; 8 tensors compared (a.pt, a.pt)>": t7bridge.diff(target, target),
        "<ScanReport: a.pt: clean>": t7bridge.scan(target),
        "<Summary of lenet_mm.t7>": t7bridge.inspect(MODEL),
        "<Drawing of lenet_mm.t7: 12 modules>": t7bridge.draw(MODEL),
        "<Match: 8 pairs, complete>": t7bridge.match(MODEL, target),
        "<Report: lenet_mm.t7 to page: module, 8 tensors>": t7bridge.write_module(MODEL, folder / "page"),
        "<ZooReport: zoo: 1 done>": t7bridge.convert_zoo([MODEL], folder / "zoo", workers=1),
    }


@pytest.mark.slow
def test_each_result_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what was done; so do its parts."""
    monkeypatch.chdir(tmp_path)
    for expected, result in results(Path()).items():
        assert re.sub(r"[^ (]*/(?=\w+\.t7)", "", repr(result)) == expected
        assert hasattr(result, "_repr_html_")
    assert repr(t7bridge.match(OTHER, "a.pt")) == "<Match: 42 keys without certain counterpart>"


def test_readers_and_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their line has the file, its kind, and how far they are."""
    monkeypatch.chdir(tmp_path)
    with t7bridge.T7Writer("a.t7") as writer:
        writer.write(1.0)
        assert repr(writer) == "<T7Writer: a.t7: 12 bytes, not closed>"
    assert repr(writer) == "<T7Writer: a.t7: 12 bytes, closed>"
    with t7bridge.T7Reader("a.t7") as reader:
        assert repr(reader) == "<T7Reader: a.t7: binary, at byte 0 of 12>"
        reader.read()
        assert repr(reader) == "<T7Reader: a.t7: binary, at byte 12 of 12>"
    assert "a.t7" in repr(reader)
    with t7bridge.PtWriter("a.pt") as pickles:
        pickles.write([1])
        assert repr(pickles) == "<PtWriter: a.pt: 1 value, not closed>"
    size = f"{Path('a.pt').stat().st_size:,}"
    assert repr(pickles) == f"<PtWriter: a.pt: {size} bytes, closed>"
    assert repr(t7bridge.PtReader("a.pt")) == f"<PtReader: a.pt: zip, {size} bytes>"
    assert repr(t7bridge.T7Writer(io.BytesIO())) == "<T7Writer: a stream: 0 bytes, not closed>"


def test_lines_are_bounded() -> None:
    """Names of files, keys and messages may be long, and hold what a terminal would obey."""
    evil = "\x1b[2J" + "x" * 300
    found: list[Any] = [
        Report(evil, evil, "t7", "pt", "copy", notes=[Note("info", evil, evil, code="left-out")]),
        Note("info", evil, evil, code="left-out"),
        VerifyReport(evil, evil, [Difference(evil, evil)]),
        DiffReport(evil, evil, [Difference(evil, evil)]),
        Difference(evil, evil, layer=evil, class_name=evil),
        ScanReport(evil, findings=[Finding("imported", evil)], error=evil),
        Finding("imported", evil),
        Proof(evil, problem=evil),
        ZooReport(evil),
        Match(unmatched_source=[evil]),
    ]
    for result in found:
        line = repr(result)
        assert len(line) <= LINE
        assert line.isprintable()
        assert line.startswith(f"<{type(result).__name__}")
        assert line.endswith(">")
    for kind in (Report, VerifyReport, DiffReport, ScanReport, Proof, ZooReport, Match):
        assert issubclass(kind, Printed)


def test_a_match_in_a_notebook() -> None:
    """A table of the pairs and of what has none, with text of the files escaped."""
    import numpy as np

    match = Match(
        pairs=[Pair("<b>", "a", (2, 3), (2, 3), "names")],
        ambiguous=[Ambiguity(("c", "d"), ("e", "f"), "no evidence")],
        unmatched_source=["one"],
        unmatched_target=["two"],
        source_side=Side(tensors={"one": t7bridge.Tensor.from_numpy(np.zeros(4))}),
        target_side=Side(tensors={"two": t7bridge.Tensor.from_numpy(np.zeros((5, 6)))}),
    )
    page = match._repr_html_()
    assert "<tr><td>&lt;b&gt;</td><td>a</td><td>2×3</td><td>names</td></tr>" in page
    assert "<tr><td>c, d</td><td>e, f</td><td></td><td>ambiguous: no evidence</td></tr>" in page
    assert "<tr><td>one</td><td></td><td>4</td><td>unmatched</td></tr>" in page
    assert "<tr><td></td><td>two</td><td>5×6</td><td>unmatched</td></tr>" in page
    assert "<b>" not in page
    assert str(match).splitlines()[-1] == "1 pair, 6 keys without certain counterpart"
