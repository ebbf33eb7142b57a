"""Inferred shapes are those that Lua recorded and PyTorch computes, or unknown."""

from pathlib import Path
from typing import Any

import pytest
from bounds import bounded
from helpers import ROOT

import t7bridge
from t7bridge import Table, Tensor, TorchObject
from t7bridge.nn import Example, blocks_of, find_models, is_module
from t7bridge.tools import Evaluation, evaluate, infer

FILES = ROOT / "testfiles"
RECORDED = sorted(
    path
    for folder in ("models", "nn", "rnn", "legacy")
    for path in (FILES / folder).glob("*.t7")
    if (path.parent / f"{path.stem}.io.t7").exists()
)
# Lua's own output is another there: random windows, fields of another release, and a file without its modules.
OTHERS = {"Serial", "SpatialFractionalMaxPooling", "VolumetricFractionalMaxPooling"}


def shapes(value: Any) -> Any:
    """The shapes of a value: tuples for tensors, lists for tables."""
    if isinstance(value, Tensor):
        return value.shape
    items = value.sequence() if isinstance(value, Table) else None
    return None if items is None else [shapes(each) for each in items]


def trial(module: TorchObject, x: Any) -> tuple[Evaluation, Any]:
    """Infer the output for one input."""
    run = evaluate(blocks_of(module, "root"), x)
    return run, run.output


def inferred(path: Path) -> tuple[Evaluation, Any, Any]:
    """Return the shapes inferred for the input that Lua recorded, the output among them, and the recorded one."""
    values = t7bridge.load(path.parent / f"{path.stem}.io.t7")
    module = t7bridge.load(path)
    module = module if is_module(module) else find_models(module)[0][1]
    run, found = trial(module, shapes(values["input"]))
    return run, found, shapes(values["output"]) if "output" in values else None


def test_recorded_outputs(subtests: pytest.Subtests) -> None:
    """For the input that Lua recorded, a module's inferred output is that which Lua recorded, or unknown."""
    for path in RECORDED:
        with subtests.test(path=path):
            run, found, recorded = inferred(path)
            if path.stem in OTHERS or recorded is None:
                continue
            assert not run.failed
            if found is not None:
                assert found == recorded


def test_most_are_known() -> None:
    """Most modules of nn have a rule, and so do all models of the corpus but the recurrent ones."""
    outputs = {path.stem: inferred(path)[1:] for path in RECORDED if path.stem not in OTHERS}
    known = [name for name, (found, recorded) in outputs.items() if found is not None and recorded is not None]
    assert len(known) > 120
    assert {"lenet_mm", "resnet_small", "char_lstm_nngraph", "unet_nngraph", "dcgan_generator", "text_cnn"} <= set(
        known
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet_mm", "resnet_small", "unet_nngraph", "dcgan_generator", "autoencoder_flat"])
def test_inner_shapes(name: str) -> None:
    """The shapes of all modules inside are those that PyTorch computes for the guessed input."""
    from t7bridge.torchmodules import output_shapes

    module = t7bridge.load(FILES / "models" / f"{name}.t7")
    blocks = blocks_of(module, "root")
    given = infer(blocks)
    expected = output_shapes(module, "root", Example("", tuple(map(int, given.input.split("×")))))
    found = {block.key: block.shape for block in blocks if block.kind != "end" and block.mark != "again"}
    assert len(found) > 2
    assert found == {key: expected[key] for key in found}


def test_guesses_fit() -> None:
    """A guessed input has the extents that the layers require, including states, and is marked as a guess."""
    expected = {
        "lenet_mm": ("1×1×32×32", "1×10"),
        "resnet_small": ("1×3×16×16", "1×5"),
        "char_lstm_nngraph": ("1, 1×6, 1×6, 1×6, 1×6", "1×6, 1×6, 1×6, 1×6, 1×9"),
        "siamese_shared": ("1×6, 1×6", "1"),
        "gmodule_two_in_two_out": ("1×4, 1×5", "1×2, 1×1"),
    }
    for name, wanted in expected.items():
        found = infer(blocks_of(t7bridge.load(FILES / "models" / f"{name}.t7"), "root"))
        assert (found.input, found.output) == wanted
        assert "a guess" in found.source


def test_records_count_more() -> None:
    """Recorded outputs stay, and the input is one that leads to them; where none does, it is not known."""
    module = t7bridge.load(FILES / "models" / "lenet_mm.t7")
    values = t7bridge.load(FILES / "models" / "lenet_mm.io.t7")
    module["output"] = values["output"]
    found = infer(blocks_of(module, "root"))
    assert (found.input, found.output, found.source) == ("3×1×32×32", "3×10", "as recorded by the last forward")
    module["output"] = values["input"]
    found = infer(blocks_of(module, "root"))
    assert (found.input, found.output) == ("", "3×1×32×32")


def test_hostile_arguments_cost_nothing() -> None:
    """Huge numbers, and lists of a billion elements, are answered at once, and never with an error."""
    import numpy as np

    one = Tensor.from_numpy(np.zeros((1, 1), np.float32))
    layers = [TorchObject("nn.Linear", 1, Table.of({"weight": one}))]
    layers += [TorchObject("nn.Replicate", 1, Table.of({"nfeatures": 1e15, "dim": 1.0})) for _ in range(300)]
    layers.append(TorchObject("nn.SplitTable", 1, Table.of({"dimension": 1.0})))
    layers.append(TorchObject("nn.View", 1, Table.of({"size": Table.from_list([-1.0]), "numElements": -1.0})))
    model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(layers)}))
    with bounded(60):
        infer(blocks_of(model, "root"))


def test_deep_models() -> None:
    """Shapes of a model of 300 nested containers are inferred, as far in as the interpreter allows, and drawn."""
    model = TorchObject("nn.Tanh", 1, Table())
    for _ in range(300):
        relu = TorchObject("nn.ReLU", 1, Table())
        model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([model, relu])}))
    blocks = blocks_of(model, "root")

    infer(blocks)

    assert sum(bool(block.title) for block in blocks) == 601
