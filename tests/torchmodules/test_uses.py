"""What PyTorch and its tools do with live modules and programs is what the page says."""

from __future__ import annotations

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


def test_load_module_returns_a_model_for_evaluation() -> None:
    """Whatever the file says of training, each module inside is in evaluation mode, as the documents say."""
    for name in ("models/resnet_small", "models/training_checkpoint", "prove/lenet.train"):
        model = t7bridge.load_module(TESTFILES / f"{name}.t7", at="root.model" if "checkpoint" in name else None)
        assert not any(module.training for module in model.modules())
    assert "evaluation mode" in (t7bridge.load_module.__doc__ or "")
    readme = (ROOT / "README.md").read_text("utf-8")
    program = readme.partition("model = t7bridge.load_module(path)")[2].partition("```")[0]
    assert program.index("model.train()") < program.index("loss.backward()")
