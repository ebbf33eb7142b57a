"""Two models side by side: differences of structure, options and weights, each where it is."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import PROGRAM, Browser
from helpers import ROOT

import t7bridge
from t7bridge import Storage, Table, Tensor, TorchObject
from t7bridge.cli import main
from t7bridge.errors import ModelError, TargetExistsError

MODELS = ROOT / "testfiles" / "models"


def graphs(page: Path) -> list[dict[str, Any]]:
    """The two graphs of a page."""
    (data,) = re.findall(r'id="graph">(.*?)</script>', page.read_text())
    return list(json.loads(data)["graphs"])


def changes(graph: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Kind and text of each difference by the key of its block."""
    return {
        node.get("key", ""): (node["change"]["kind"], node["change"]["text"])
        for node in graph["nodes"]
        if "change" in node
    }


def changed(tmp_path: Path) -> Path:
    """LeNet with a changed weight, another stride, one more layer and another last one."""
    model = t7bridge.load(MODELS / "lenet_mm.t7")
    layers = list(model["modules"].sequence())
    weight = layers[0]["weight"].numpy().copy()
    weight[0, 0] += 0.5
    layers[0]["weight"] = Tensor.from_numpy(weight)
    layers[7]["weight"] = Tensor.from_numpy(layers[7]["weight"].numpy() + np.float32(1e-4))
    layers[2]["dW"] = 1.0
    layers[10] = TorchObject("nn.SoftMax", 1, Table.of({}))
    layers.insert(9, TorchObject("nn.Dropout", 1, Table.of({"p": 0.5, "v2": True})))
    model["modules"] = Table.from_list(layers)
    t7bridge.save(model, tmp_path / "b.t7")
    return tmp_path / "b.t7"


@pytest.mark.parametrize(("sizes", "found"), [([2, 3], []), ([3, 2], ["size: [2, 3] against [3, 2]"])])
def test_fields_with_storages(tmp_path: Path, sizes: list[int], found: list[str]) -> None:
    """Layers of unknown classes are compared by the content of their fields."""
    for name, each in (("a.t7", [2, 3]), ("b.t7", sizes)):
        layer = TorchObject("my.Layer", 1, Table.of({"size": Storage.from_array(np.array(each))}))
        fields = {"modules": Table.from_list([layer])}
        t7bridge.save(TorchObject("nn.Sequential", 1, Table.of(fields)), tmp_path / name)
    t7bridge.diff(tmp_path / "a.t7", tmp_path / "b.t7", draw=tmp_path / "x.html")
    assert [line for _, text in changes(graphs(tmp_path / "x.html")[0]).values() for line in text] == found


def test_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A layer of one model only, other options, and weights with the size of their difference, at their places."""
    other, page = str(changed(tmp_path)), tmp_path / "x.html"
    assert main(["diff", str(MODELS / "lenet_mm.t7"), other, "--draw", str(page)]) == 1
    assert "1 only second, 2 options, 2 weights" in capsys.readouterr().out
    first, second = map(changes, graphs(page))
    assert {key: kind for key, (kind, _) in first.items()} == {
        "0": "weights", "2": "options", "7": "weights", "10": "options",
    }  # fmt: skip
    assert {key: kind for key, (kind, _) in second.items()} == {
        "0": "weights", "2": "options", "7": "weights", "9": "only", "11": "options",
    }  # fmt: skip
    assert first["0"][1] == ["weight: 1 of 150 elements differ, by at most 0.5"]
    assert first["2"][1] == ["stride: 2 against (2, 1)"]
    assert first["10"][1] == ["class: LogSoftmax against Softmax"]
    nodes = graphs(page)[0]["nodes"]
    assert nodes[1]["change"]["share"] > nodes[8]["change"]["share"]  # 0.5 is more than 0.0001
    assert graphs(page)[1]["nodes"][nodes[11]["other"]]["key"] == "11"
    assert nodes[0]["changes_inside"] == 4


def test_equal_models_have_none(tmp_path: Path) -> None:
    """A model has no difference from itself, from its state dict, and from one within the tolerance."""
    page = tmp_path / "x.html"
    t7bridge.convert(MODELS / "unet_nngraph.t7", tmp_path / "x.pt")
    for other in (MODELS / "unet_nngraph.t7", tmp_path / "x.pt"):
        assert t7bridge.diff(MODELS / "unet_nngraph.t7", other, draw=page, force=True).drawn == {}
    model = t7bridge.load(MODELS / "autoencoder_flat.t7")
    model["modules"][1]["bias"] = Tensor.from_numpy(model["modules"][1]["bias"].numpy() + np.float32(1e-6))
    t7bridge.save(model, tmp_path / "b.t7")
    assert t7bridge.diff(MODELS / "autoencoder_flat.t7", tmp_path / "b.t7", draw=page, force=True).drawn == {
        "weights": 1
    }
    near = t7bridge.diff(MODELS / "autoencoder_flat.t7", tmp_path / "b.t7", draw=page, force=True, atol=1e-5)
    assert near.drawn == {}
    with pytest.raises(TargetExistsError):
        t7bridge.diff(tmp_path / "b.t7", tmp_path / "b.t7", draw=page)
    with pytest.raises(ModelError):
        t7bridge.diff(tmp_path / "b.t7", tmp_path / "b.t7", draw=tmp_path / "x.svg")


def test_state_dicts(tmp_path: Path) -> None:
    """State dicts are paired by name: other shapes, and keys that one lacks."""
    one = {"a": {"weight": np.zeros((2, 3), np.float32)}, "b": {"weight": np.zeros(4, np.float32)}}
    two = {"a": {"weight": np.zeros((3, 2), np.float32)}, "c": {"weight": np.zeros(4, np.float32)}}
    t7bridge.save(one, tmp_path / "1.pt")
    t7bridge.save(two, tmp_path / "2.pt")
    found = t7bridge.diff(tmp_path / "1.pt", tmp_path / "2.pt", draw=tmp_path / "x.html").drawn
    assert found == {"shape": 1, "only first": 1, "only second": 1}
    assert changes(graphs(tmp_path / "x.html")[0])["a"] == ("shape", ["weight: 2×3 against 3×2"])


def test_repeated_blocks_show_differences(tmp_path: Path) -> None:
    """A block that differs is not folded with its equal neighbours."""

    def model(odd: float) -> TorchObject:
        layers = [TorchObject("nn.MulConstant", 1, Table.of({"constant_scalar": 2.0})) for _ in range(9)]
        layers[4]["constant_scalar"] = odd
        return TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(layers)}))

    t7bridge.save(model(2.0), tmp_path / "1.t7")
    t7bridge.save(model(3.0), tmp_path / "2.t7")
    assert t7bridge.diff(tmp_path / "1.t7", tmp_path / "2.t7", draw=tmp_path / "x.html").drawn == {"options": 1}
    assert graphs(tmp_path / "x.html")[0]["nodes"][0]["repeats"] == [[0, 1, 4], [5, 1, 4]]


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")
def test_page(tmp_path: Path) -> None:
    """`n` goes from difference to difference, and the counterpart is selected in the other half."""
    t7bridge.diff(MODELS / "lenet_mm.t7", changed(tmp_path), draw=tmp_path / "x.html")
    with Browser() as browser:
        browser.open(tmp_path / "x.html")
        browser.press("n")
        panels = "[...document.querySelectorAll('.panel')].map(e => e.textContent)"
        first, second = browser.run(panels)
        assert "1 of 150 elements differ" in first
        assert "1 of 150 elements differ" in second
        browser.press("n")
        assert "stride: 2 against (2, 1)" in browser.run(panels)[0]
        assert browser.run("document.querySelectorAll('svg .d-weights').length") == 4
        assert browser.run("document.querySelectorAll('.half1 svg .d-only').length") == 1
        assert browser.errors == []
