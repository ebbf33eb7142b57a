"""Lists of parameters without names, and rules for the names of a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TESTFILES
from torch import nn

import t7bridge
from t7bridge import match
from t7bridge.cli import main
from t7bridge.errors import ModelError
from t7bridge.workshop.match import write_match

CRNN = TESTFILES / "beside/crnn.t7"
LENET = TESTFILES / "models/lenet_mm.t7"


class Recognizer(nn.Module):
    """A network that the lists of `crnn.t7` fit."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4, affine=False)
        self.fc = nn.Linear(36, 6, bias=False)


def test_lists_need_to_be_asked_for() -> None:
    """Without names only the order tells tensors of one shape apart: it is offered, and not taken."""
    found = match(CRNN, Recognizer())
    assert not found.complete
    assert [group.target for group in found.ambiguous] == [
        ("conv.weight", "conv.bias", "fc.weight"),
        ("norm.running_mean", "norm.running_var"),
    ]
    assert "--order" in found.problems()


def test_lists_in_order() -> None:
    """Parameters and statistics are two lists, as `model:parameters()` and its batch normalizations have them."""
    found = match(CRNN, Recognizer(), order=True)
    assert found.complete
    assert {pair.target: pair.source for pair in found.pairs if pair.source} == {
        "conv.weight": "parameters.0",
        "conv.bias": "parameters.1",
        "fc.weight": "parameters.2",
        "norm.running_mean": "bnVars.0",
        "norm.running_var": "bnVars.1",
    }
    lists = t7bridge.to_torch(t7bridge.load(CRNN))
    state = t7bridge.to_torch(found.state_dict())
    assert torch.equal(state["conv.weight"], lists["parameters"][0])
    assert torch.equal(state["norm.running_var"], lists["bnVars"][1])
    Recognizer().load_state_dict(state)


def test_several_layers_of_one_size(tmp_path: Path) -> None:
    """Statistics that Lua keeps in a list of their own are not mixed with weights of their shape."""
    net = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))])
    torch.manual_seed(44_060)
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.copy_(torch.randint(1, 1000, tensor.shape))
    named = net.state_dict()
    statistics = [tensor for key, tensor in named.items() if ".running_" in key]
    weights = [parameter.detach() for parameter in net.parameters()]
    t7bridge.save({"weights": weights, "stats": statistics}, tmp_path / "in.t7")
    state = t7bridge.to_torch(match(tmp_path / "in.t7", net, order=True).state_dict())
    for key, tensor in named.items():
        assert torch.equal(state[key], tensor) or key.endswith("num_batches_tracked"), key


def test_lists_in_a_checkpoint_of_pytorch(tmp_path: Path) -> None:
    """Those of a `.pt` are taken in the same way, where there is no state dict, or at a path."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    weights = [parameter.detach() for parameter in net.parameters()]
    files: dict[str, tuple[object, str | None]] = {
        "list": (weights, None),
        "table": ({"epoch": 3, "params": weights}, None),
        "both": ({"state": net.state_dict(), "params": weights}, "root.params"),
    }
    for name, (value, at) in files.items():
        torch.save(value, tmp_path / f"{name}.pt")
        found = match(tmp_path / f"{name}.pt", net, at=at, order=True)
        assert found.complete, name
        assert all(pair.source.rpartition(".")[2].isdecimal() for pair in found.pairs if pair.source)


def test_lists_that_do_not_fit(tmp_path: Path) -> None:
    """Another length or shape is no pair, also where the order is asked for."""
    for shapes in ([(4, 1, 3, 3), (4,)], [(4, 1, 3, 3), (4,), (6, 35)], [(4,), (4, 1, 3, 3), (6, 36)]):
        t7bridge.save([torch.ones(shape) for shape in shapes], tmp_path / "in.t7", force=True)
        assert not match(tmp_path / "in.t7", Recognizer(), order=True).complete


def test_a_line_of_the_mapping_takes_from_a_list() -> None:
    """Keys of lists are those of the note; what is mapped takes the list apart."""
    pairs = {"parameters.2": "fc.weight", "parameters.0": "conv.weight", "parameters.1": "conv.bias"}
    found = match(CRNN, Recognizer(), pairs | {"bnVars.0": "norm.running_mean", "bnVars.1": "norm.running_var"})
    assert found.complete


def test_a_part_of_a_file_without_modules() -> None:
    """`at` names one of the lists."""
    found = match(CRNN, Recognizer(), at="root.parameters", order=True)
    assert {pair.source for pair in found.pairs if pair.source} == {"0", "1", "2"}
    assert found.unmatched_target == ["norm.running_mean", "norm.running_var"]


def test_rules_for_the_source(tmp_path: Path) -> None:
    """They make names equal, for state dicts and for Lua's models, whose graphs still count."""
    t7bridge.convert(LENET, tmp_path / "in.pt", rename={"": "module.net"})
    found = match(tmp_path / "in.pt", LENET, strip=["module"], rename={"net": ""})
    assert found.complete
    assert {pair.source for pair in found.pairs} == {pair.target for pair in found.pairs}
    back = match(LENET, tmp_path / "in.pt", rename={"": "module.net"})
    assert back.complete
    assert back.source_side.has_graph
    with pytest.raises(ModelError, match="t7: strip modul renames nothing"):
        match(LENET, LENET, strip=["modul"])


def test_types_of_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The `.pt` has the type asked for; a `.t7` keeps those of its model, and refuses."""
    t7bridge.convert(LENET, tmp_path / "target.pt")
    out = tmp_path / "out.pt"
    code = main(["match", str(LENET), str(tmp_path / "target.pt"), "-o", str(out), "--dtype", "bfloat16", "--no-run"])
    assert code == 0
    assert "8 tensors written as bfloat16" in capsys.readouterr().err
    expected = t7bridge.load_state_dict(LENET, dtype="bfloat16")
    state = torch.load(out, weights_only=True)
    assert all(torch.equal(state[key], tensor) for key, tensor in expected.items())
    code = main(["match", str(tmp_path / "target.pt"), str(LENET), "-o", str(tmp_path / "o.t7"), "--dtype", "float16"])
    assert code == 2
    assert "--dtype does not apply to a .t7" in capsys.readouterr().err


def test_tables_in_tables(tmp_path: Path) -> None:
    """Of a file without modules all tensors count, by the names of the tables around them."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    tables = {"a": {"weight": net[0].weight, "bias": net[0].bias}, "b": {"weight": net[1].weight, "bias": net[1].bias}}
    t7bridge.save(tables, tmp_path / "in.t7")
    found = match(tmp_path / "in.t7", net)
    assert {pair.target: pair.source for pair in found.pairs} == {
        "0.weight": "a.weight", "0.bias": "a.bias", "1.weight": "b.weight", "1.bias": "b.bias",
    }  # fmt: skip


@pytest.mark.parametrize("live", [False, True])
def test_storages_of_what_is_written(tmp_path: Path, live: bool) -> None:
    """A slice does not bring the storage that it views; tied tensors stay tied, and views of one storage share one."""
    torch.manual_seed(44_004)
    big = torch.randn(100_000)
    weight = big[5_000:5_012].view(4, 3)
    state: dict[str, Any] = {
        "a.weight": weight,
        "a.bias": big[90_000:90_004],
        "b.weight": torch.randn(1_000, 50)[:, 7:9],
        "tied.weight": weight,
    }
    torch.save(state, tmp_path / "in.pt")
    names = {"a.weight": "x.w", "a.bias": "x.b", "b.weight": "y.w", "tied.weight": "z.w"}
    torch.save({new: torch.zeros(state[old].shape) for old, new in names.items()}, tmp_path / "target.pt")
    found = match(state if live else tmp_path / "in.pt", tmp_path / "target.pt", names)
    write_match(found, tmp_path / "out.pt")
    result = torch.load(tmp_path / "out.pt", weights_only=True)
    for old, new in names.items():
        assert torch.equal(result[new], state[old])
    sizes = {name: tensor.untyped_storage().nbytes() for name, tensor in result.items()}
    assert sizes == {"x.w": 64, "x.b": 64, "y.w": 8_000, "z.w": 64}
    assert result["x.w"].untyped_storage().data_ptr() == result["x.b"].untyped_storage().data_ptr()
    assert result["x.w"].data_ptr() == result["z.w"].data_ptr()
