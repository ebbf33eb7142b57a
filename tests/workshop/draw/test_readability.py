"""What people find in a picture: cells as one block, labels beside their arrows, what signs mean, layers together."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge import Table, TorchObject
from t7bridge.cli import main
from t7bridge.nn import Block, Flow
from t7bridge.workshop.draw.boxes import Box, Line, width_of
from t7bridge.workshop.draw.layout import lay_out

MODELS = TESTFILES / "models"


def boxes_in(box: Box) -> list[Box]:
    """A box and all inside it."""
    return [box, *(deeper for inner in box.inside for deeper in boxes_in(inner))]


def lines_in(box: Box) -> list[Line]:
    """All arrows of a picture."""
    return [line for inner in boxes_in(box) for line in inner.lines]


def test_cells_are_one_block_that_opens() -> None:
    """The two LSTMs of a char-rnn are two boxes, and the 32 layers of which Lua builds them are inside."""
    drawing = t7bridge.draw(MODELS / "char_lstm_nngraph.t7")
    titles = [box.block.title for box in boxes_in(drawing.layout()) if box.block.kind != "end"]
    assert titles == ["Graph", "Identity", "LookupTable", "LSTM 6 → 6", "Dropout", "LSTM 6 → 6", "Linear", "LogSoftmax"]
    assert "LSTM 6 → 6" in drawing.svg()
    cells = [block for block in drawing.pictured if block.mark == "cell"]
    assert [block.parameters for block in cells] == [2 * (6 * 24 + 24)] * 2
    for cell in cells:
        assert cell.target == "recurrent.LSTMCell" or cell.target.endswith(".LSTMCell")
        kinds = [inner.class_name for inner in cell.inside if inner.kind != "end"]
        assert sorted(kinds)[-5:] == ["nn.Sigmoid", "nn.Sigmoid", "nn.SplitTable", "nn.Tanh", "nn.Tanh"]
        # Inside, everything is between the input and the output of the cell.
        ends = [number for number, inner in enumerate(cell.inside) if inner.kind == "end"]
        assert {flow.start for flow in cell.flows} | {flow.end for flow in cell.flows} == set(range(len(cell.inside)))
        assert not [flow for flow in cell.flows if flow.end == ends[0] or flow.start == ends[1]]
    # The data, the text for Graphviz and the counts have the layers as they are in the file.
    assert drawing.modules == 38
    assert not [node for node in drawing.graph()["nodes"] if node.get("mark") == "cell"]
    assert "LSTM" not in drawing.dot()


def test_cells_of_several_models() -> None:
    """Each model of a file has its own."""
    value = t7bridge.load(MODELS / "char_lstm_nngraph.t7")
    other = t7bridge.load(MODELS / "lenet_mm.t7")
    drawing = t7bridge.draw(Table.of({"rnn": value, "cnn": other}))
    assert [block.title for block in drawing.pictured if block.mark == "cell"] == ["LSTM 6 → 6"] * 2
    keys = {block.key for block in drawing.pictured if block.kind != "end" and block.mark != "cell"}
    assert keys == {block.key for block in drawing.blocks if block.kind != "end"}
    assert r"LSTM 6 \u2192 6" in drawing.html()


def test_the_layers_of_a_cell_are_its_own(subtests: pytest.Subtests) -> None:
    """Of recorded models: no block is lost or doubled, and every arrow of the file is in the picture, in one or two."""
    models = t7bridge.load(TESTFILES / "cells.t7")
    count = 0
    for number in range(1, 31):
        model = models[number]["model"]
        drawing = t7bridge.draw(model) if isinstance(model, TorchObject) else None
        if drawing is None or drawing.pictured is drawing.blocks:
            continue
        with subtests.test(number):
            count += 1
            kept = [block for block in drawing.pictured if block.kind != "end" and block.mark != "cell"]
            assert sorted(block.path for block in kept) == sorted(
                block.path for block in drawing.blocks if block.kind != "end"
            )
            for block in drawing.pictured:
                for flow in block.flows:
                    assert 0 <= flow.start < len(block.inside)
                    assert 0 <= flow.end < len(block.inside)
            drawing.svg()
    assert count > 3


def test_labels_of_long_arrows_are_in_their_middle() -> None:
    """Beside their own line, in room that no block and no other arrow has; those of short arrows begin beside them."""
    chain = [Flow(number, number + 1) for number in range(6)]
    blocks = [Block(str(number), "Layer") for number in range(7)]
    graph = Block("", "Graph", "graph", inside=blocks, flows=[*chain, Flow(0, 6, "2"), Flow(1, 5, "2: [1]")])
    root = lay_out([graph, *blocks])
    long = [line for line in lines_in(root) if line.label]
    assert [line.label for line in long] == ["#1", "#1 [1]"]
    for line in long:
        left = line.at[0]
        right = left + width_of(line.label)
        near = [x for x, y in line.points[1:-1]]
        assert min(abs(left - 4 - x) for x in near) < 1
        height = line.at[1] - 4  # the middle of the letters
        for other in lines_in(root):
            for (x, y), (next_x, next_y) in zip(other.points, other.points[1:]):
                if y < height < next_y:
                    crossing = x + (next_x - x) * (height - y) / (next_y - y)
                    assert not left < crossing < right
        top, bottom = line.points[0][1], line.points[-1][1]
        assert top + (bottom - top) / 4 < line.at[1] < bottom - (bottom - top) / 4
        for box in root.inside:
            is_beside = right < box.x or left > box.right
            assert is_beside or line.at[1] < box.y or line.at[1] - 11 > box.bottom


def test_a_norm_and_its_activation_stand_in_one_column() -> None:
    """A chain too tall for one column is divided before a convolution."""
    kinds = ["Conv2d", "BatchNorm2d", "ReLU"]
    for count in (12, 17, 23):
        blocks = []
        for number in range(3 * count):
            kind = kinds[number % 3]
            blocks.append(Block(str(number), kind, target=f"torch.nn.{kind}", lines=["3 → 4, kernel 3", "and more"]))
        root = lay_out([Block("", "Sequential", "chain", inside=blocks), *blocks])
        columns = sorted({round(box.middle) for box in root.inside})
        assert 1 < len(columns) < count
        for first in range(0, 3 * count, 3):
            assert len({round(box.middle) for box in root.inside[first : first + 3]}) == 1


def test_signs_are_explained() -> None:
    """`#0`, `[0]` and `last`, in pictures that have them and no others, in full width."""
    picture = t7bridge.draw(MODELS / "gmodule_two_in_two_out.t7").svg()
    assert "#0, #1: first, second input of a block" in picture
    assert "[0], [1]: first, second element of a list" in picture
    assert "last X" not in picture
    width = float(re.search(r'<svg [^>]*width="(\d+)"', picture)[1])  # type: ignore[index]
    assert width > width_of("[0], [1]: first, second element of a list")
    assert "first input" not in t7bridge.draw(MODELS / "autoencoder_flat.t7").svg()


def test_data_are_not_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A state dict has tensors; a file with models has modules, whatever is beside them."""
    t7bridge.convert(MODELS / "lenet_mm.t7", tmp_path / "a.pt")
    assert main(["draw", str(tmp_path / "a.pt"), "-o", str(tmp_path / "a.html")]) == 0
    assert capsys.readouterr().out.endswith("a.html: 8 tensors, 5,594 parameters\n")
    page = json.loads(re.findall(r'id="graph">(.*?)</script>', (tmp_path / "a.html").read_text())[0])
    assert page["contents"] == "8 tensors"
    assert repr(t7bridge.draw(MODELS / "training_checkpoint.t7")).endswith(": 4 modules>")
