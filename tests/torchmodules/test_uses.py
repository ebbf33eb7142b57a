"""What PyTorch and its tools do with live modules and programs is what the page says."""

from __future__ import annotations

import re

import pytest
from helpers import ROOT, TESTFILES

import t7bridge


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_table_is_what_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell of `docs/live-modules.md` is made again."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import generate_uses

    page = generate_uses.PAGE.read_text("utf-8")
    shown = page.partition(generate_uses.MARKS[0])[2].partition(generate_uses.MARKS[1])[0]
    assert shown == generate_uses.table(), "run `python docs/generate_uses.py`"


def test_the_table_of_libraries_has_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are those that the script tries, each with a release; the libraries are not installed here."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import generate_libraries

    page = generate_libraries.PAGE.read_text("utf-8")
    shown = page.partition(generate_libraries.MARKS[0])[2].partition(generate_libraries.MARKS[1])[0]
    rows = [line.strip("| ").split(" | ") for line in shown.splitlines()[2:]]
    assert [row[1] for row in rows] == list(generate_libraries.USES)
    for row, (library, _) in zip(rows, generate_libraries.USES.values()):
        assert re.fullmatch(rf"{library} \d+(\.\d+)+", row[0])
        assert all(re.fullmatch("yes|no|yes, but not [a-z_, ]+", verdict) for verdict in row[2:])


def test_load_module_returns_a_model_for_evaluation() -> None:
    """Whatever the file says of training, each module inside is in evaluation mode, as the documents say."""
    for name in ("models/resnet_small", "models/training_checkpoint", "prove/lenet.train"):
        model = t7bridge.load_module(TESTFILES / f"{name}.t7", at="root.model" if "checkpoint" in name else None)
        assert not any(module.training for module in model.modules())
    assert "evaluation mode" in (t7bridge.load_module.__doc__ or "")
    readme = (ROOT / "README.md").read_text("utf-8")
    program = readme.partition("model = t7bridge.load_module(path)")[2].partition("```")[0]
    assert program.index("model.train()") < program.index("loss.backward()")
