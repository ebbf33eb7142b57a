"""Two models that compute almost the same: what differs is named, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import t7bridge
from t7bridge import Table, Tensor
from t7bridge.cli import main
from t7bridge.errors import ModelError
from t7bridge.workshop.prove.side_by_side import compare


class Block(nn.Module):
    """A bottleneck, whose stride may be in either convolution."""

    def __init__(self, first: int = 1, second: int = 2, eps: float = 1e-5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 4, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(4, eps)
        self.conv2 = nn.Conv2d(4, 8, 3, second, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(8, eps)
        self.short = nn.Conv2d(8, 8, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the branch to the shortcut."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.short(x))


class Net(nn.Module):
    """A small network with an option for each way in which ports of networks differ."""

    def __init__(
        self,
        begin: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
        end: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
        activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu,
        pool: nn.Module | None = None,
        mean: nn.Module | None = None,
        padding: int = 1,
        momentum: float = 0.1,
        bias: bool = True,
        **block: Any,
    ) -> None:
        super().__init__()
        self.begin, self.end, self.activation = begin, end, activation
        self.stem = nn.Conv2d(3, 8, 3, 1, padding, bias=bias)
        self.norm = nn.BatchNorm2d(8, momentum=momentum)
        self.pool = pool or nn.MaxPool2d(3, 2, ceil_mode=True)
        self.block = Block(**block)
        self.mean = mean or nn.AvgPool2d(3, 1, 1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify images."""
        x = self.pool(self.activation(self.norm(self.stem(self.begin(x)))))
        return self.end(self.fc(self.mean(self.block(x)).mean((2, 3))))


TWINS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "the same": ({}, []),
    "stride": (
        {"first": 2, "second": 1},
        [
            r"stride of Conv2d is \(1, 1\) in the .t7 and \(2, 2\) in Net: block.conv1 ",
            r"stride of Conv2d is \(2, 2\) in the .t7 and \(1, 1\) in Net: block.conv2 ",
        ],
    ),
    "eps": ({"eps": 1e-3}, ["eps of BatchNorm2d is 1e-05 in the .t7 and 0.001 in Net: block.bn1 .*, block.bn2 "]),
    "momentum": ({"momentum": 0.01}, ["in training, momentum of BatchNorm2d is 0.1 in the .t7 and 0.01 in Net: norm "]),
    "ceil mode": (
        {"pool": nn.MaxPool2d(3, 2)},
        ["ceil_mode of max_pool2d is True in the .t7 and False in Net: before block.conv1 .*, before block.short "],
    ),
    "padding": ({"padding": 0}, [r"padding of Conv2d is \(1, 1\) in the .t7 and \(0, 0\) in Net: stem "]),
    "padding of means": (
        {"mean": nn.AvgPool2d(3, 1, 1, count_include_pad=False)},
        ["count_include_pad of avg_pool2d is True in the .t7 and False in Net: before fc "],
    ),
    "other pooling": (
        {"mean": nn.MaxPool2d(3, 1, 1)},
        ["the .t7 computes avg_pool2d, .* where Net computes max_pool2d, .*: before fc "],
    ),
    "activation": (
        {"activation": nn.functional.softplus},
        ["the .t7 computes relu where Net computes softplus: before block.conv1 .*, before block.short "],
    ),
    "bias": ({"bias": False}, ["only the .t7 has a bias: stem "]),
    "order of channels": (
        {"begin": lambda x: x.flip(1)},
        ["Net computes flip, and the .t7 does not: before stem "],
    ),
    "index of channels": (
        {"begin": lambda x: x[:, [2, 1, 0]]},
        ["Net computes index, and the .t7 does not: before stem "],
    ),
    "scale": (
        {"begin": lambda x: torch.stack([x[:, 0] * 2 - 0.5, x[:, 1], x[:, 2] * 4], 1)},
        ["Net computes mul, sub, mul, stack, and the .t7 does not: before stem "],
    ),
    "softmax": ({"end": lambda x: x.softmax(1)}, ["at the end, Net computes softmax, and the .t7 does not"]),
    "log-softmax": (
        {"end": lambda x: x.log_softmax(1)},
        ["at the end, Net computes log_softmax, and the .t7 does not"],
    ),
    "three": (
        {"pool": nn.MaxPool2d(3, 2), "end": lambda x: x.softmax(1), "eps": 1e-3},
        ["ceil_mode", "eps", "at the end, Net computes softmax"],
    ),
}
"""Options of networks, and a pattern for each difference that is named."""


def lua_model(tmp_path: Path) -> Path:
    """The network as a Lua model, with weights of which none equals another."""
    torch.manual_seed(25)
    net = Net()
    for tensor in net.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.5 if tensor.dim() == 1 else torch.randn_like(tensor))
    t7bridge.write_lua(net.eval(), tmp_path / "lua", example_inputs=["2x3x16x16"])
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    return tmp_path / "lua" / "model.t7"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as a Lua model; its weights are beside the folder of that."""
    return lua_model(tmp_path_factory.mktemp("twins"))


def twin_of(source: Path, class_: type[nn.Module] = Net, **options: Any) -> nn.Module:
    """A network with the weights of the Lua model."""
    twin = class_(**options)
    twin.load_state_dict(torch.load(source.parent.parent / "weights.pt"), strict="bias" not in options)
    return twin


@pytest.mark.slow
def test_twins(source, subtests):
    """Of each wrong twin the difference is named, once, and with the right one nothing differs."""
    for name, (options, expected) in TWINS.items():
        with subtests.test(name):
            proof = t7bridge.prove(source, against=twin_of(source, **options), input=["2x3x16x16"])
            found = proof.differences
            assert len(found) == len(expected), found
            assert all(re.search(each, text) for each, text in zip(expected, found)), found
            assert proof.exit_code == bool(expected)
            assert not proof.misplaced
            assert proof.sentence().startswith("proven against 8 layers") == (not expected)


@pytest.mark.slow
def test_only_the_inputs_that_ran_in_training_are_said_to_have(source):
    """Without a stated input the models run on a second size, too, but not in training mode."""
    proof = t7bridge.prove(source, against=twin_of(source))
    first, second = proof.modes.removesuffix(" in training mode").split(" in evaluation mode and ")
    assert first.startswith(f"{second} and ")


class Written(Net):
    """The network with its forward written in other ways; `way` chooses one."""

    way = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute what `Net` does, or nearly."""
        layers = {"first": self.stem, "second": self.norm}
        if self.way == "attempts":
            with suppress(RuntimeError):
                self.fc(x)
        if self.way == "plain functions":
            x = nn.functional.conv2d(x, self.stem.weight, self.stem.bias, 1, 1)
            layers.pop("first")
        for layer in layers.values():
            x = layer(input=x) if self.way == "keywords" else layer(x)
        x = self.pool(x.relu_() if self.way == "in place" else x.relu())
        y = torch.relu(self.block.bn1(self.block.conv1(x)))
        y = self.block.bn2(self.block.conv2(y))
        short = self.block.short(x)
        if self.way == "in place":
            y += short
        elif self.way != "no shortcut":
            y = y + short
        y = self.fc(self.mean(y.relu_()).mean((2, 3)))
        if self.way == "stops":
            raise ValueError("no\nresult")
        return {"scores": y} if self.way == "a dict" else y


@pytest.mark.slow
def test_models_may_be_written_in_any_way(source, subtests):
    """Keywords, changes in place, plain functions and caught errors are no difference; a missing shortcut is."""
    for way in ("", "keywords", "in place", "plain functions", "attempts", "a dict"):
        with subtests.test(way):
            twin = twin_of(source, Written)
            twin.way = way
            proof = t7bridge.prove(source, against=twin, input=["2x3x16x16"])
            assert proof.differences == []
            assert proof.exit_code == 0
    twin = twin_of(source, Written)
    twin.way = "no shortcut"
    proof = t7bridge.prove(source, against=twin, input=["2x3x16x16"])
    assert (proof.exit_code, proof.misplaced) == (1, True)
    assert re.match(r"values come from .* in the \.t7 and .* in Written: before fc ", proof.differences[0])
    twin.way = "stops"
    proof = t7bridge.prove(source, against=twin, input=["2x3x16x16"])
    assert (proof.exit_code, proof.misplaced) == (1, False)
    assert proof.differences == ["then Written stops: ValueError: no"]


class Rows(nn.Module):
    """A table whose rows are chosen by numbers of any type, counted from `first`."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).sin().view(4, 3))
        self.first = first

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the rows."""
        return self.weight[tokens.long() - self.first]


class Matrix(nn.Module):
    """The same numbers as a matrix that multiplies vectors of any type."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Rows(0).weight

    def forward(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        return vector.double() @ self.weight.double()


class Called(nn.Module):
    """A layer whose input is made of that of the model."""

    def __init__(self, layer: nn.Module, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.make = layer, make

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the layer."""
        return self.layer(self.make(x))


def test_the_outputs_tell_whether_tokens_are_right():
    """They may be integers in one model and floats in the other, or one-hot, counted from 0 or 1; wrong ones differ."""
    tokens = torch.tensor([[1.0, 2.0], [3.0, 2.0]], dtype=torch.float64)

    def one_hot(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x.long() - 1, 4).double()

    right = (
        Called(Rows(1), lambda x: x),
        Called(Rows(1), torch.Tensor.long),
        Called(Rows(0), lambda x: x.long() - 1),
        Called(Matrix(), one_hot),
    )
    for mine in right:
        for theirs in (right[1], right[2]):
            assert compare(mine, theirs, "Net", tokens, training=False).differences == []
        for wrong in (Called(Rows(0), lambda x: x), Called(Rows(0), torch.Tensor.long)):
            comparison = compare(mine, wrong, "Net", tokens, training=False)
            assert len(comparison.differences) == 1
            assert comparison.differing == {id(comparison.mine.calls[0])}
    comparison = compare(right[1], Called(Rows(0), lambda x: x), "Net", tokens, training=False)
    assert comparison.differences == ["Net computes another Rows: layer (layer)"]


def test_what_is_not_finite_is_not_compared():
    """Of the logarithm of numbers below 0, and what is made of it, nobody can say whether it is the same."""
    x = torch.tensor([[0.5, 1.5, 2.25, 3.0]], dtype=torch.float64)
    model = Called(Matrix(), torch.log)
    assert compare(model, model, "Net", x, training=False).differences == []
    with pytest.raises(ModelError, match="a model computes no finite numbers for the input"):
        compare(model, model, "Net", -x, training=False)
    wrong = Called(Matrix(), lambda x: (-x).log())
    assert compare(model, wrong, "Net", x, training=False).differences


def test_integers_made_of_other_numbers_are_no_tokens():
    """A layer that multiplies gets something else if its input is cut to integers before."""
    x = torch.tensor([[0.5, 1.5, -2.25, 3.0]], dtype=torch.float64)
    mine = Called(Matrix(), lambda x: x)
    comparison = compare(mine, Called(Matrix(), torch.Tensor.long), "Net", x, training=False)
    assert comparison.differences == ["values come from the input in the .t7 and nothing in Net: before layer (layer)"]
    assert compare(mine, Called(Matrix(), lambda x: x), "Net", x, training=False).differences == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_of_torchscript_only_the_output_is_compared(source, tmp_path):
    """Its layers are not known, but what it returns is."""
    wrong = nn.Sequential(twin_of(source).stem, nn.Flatten(), nn.Linear(2048, 5)).eval()
    for model, code in ((t7bridge.load_module(source), 0), (wrong, 1)):
        torch.jit.trace(model, torch.randn(2, 3, 16, 16)).save(str(tmp_path / "model.pt"))
        proof = t7bridge.prove(source, against=tmp_path / "model.pt", input=["2x3x16x16"])
        assert proof.exit_code == code, proof.differences
        assert {layer.verdict for layer in proof.layers} <= {"agrees" if code == 0 else "differs", "not recorded"}


FACTORIES = """
from test_side_by_side import Net
from torch import nn
def right(): return Net()
def wrong(): return Net(pool=nn.MaxPool2d(3, 2))
"""


@pytest.mark.slow
def test_match_runs_the_factory(source, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`match` with a factory says that both compute the same, or what differs; what is written is the same."""
    (tmp_path / "nets.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    written = []
    for name, options, code, text in (
        ("right", [], 0, "proven against 8 layers of "),
        ("wrong", [], 1, "ceil_mode of max_pool2d is True in the .t7 and False in "),
        ("wrong", ["--no-run"], 0, ""),
    ):
        target = tmp_path / "out.pt"
        arguments = [str(source), f"{tmp_path}/nets.py:{name}", "-o", str(target), "--force", "--input", "2x3x16x16"]
        assert main(["match", *arguments, *options]) == code
        error = capsys.readouterr().err
        assert text in error
        assert bool(text) == ("proof" in error), error
        written.append(torch.load(target))
    assert all(torch.equal(state[key], written[0][key]) for state in written for key in written[0])


@pytest.mark.slow
def test_match_says_how_the_input_is_prepared(source, tmp_path, capsys: pytest.CaptureFixture[str]):
    """What a checkpoint says of means, ranges and sizes is shown, and nothing of its layers."""
    model = t7bridge.load(source)
    means = Table([b"mean", b"std"], [Table([1.0, 2.0, 3.0], [0.485, 0.456, 0.406]), Tensor.from_numpy(np.ones(3))])
    t7bridge.save(Table([b"model", b"meanstd", b"epoch"], [model, means, 7.0]), tmp_path / "checkpoint.t7")
    assert main(["match", str(tmp_path / "checkpoint.t7"), str(source.parent.parent / "weights.pt")]) == 0
    error = capsys.readouterr().err
    assert "root.meanstd.mean: 0.485, 0.456, 0.406; root.meanstd.std: 1, 1, 1\n" in error
    assert "epoch" not in error


def test_a_model_that_registers_a_buffer_while_it_runs():
    """A table that a model makes when it runs first, as of positions, may stay."""

    class Lazy(nn.Module):
        """A layer that makes its table in the first pass."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Add the table."""
            if not hasattr(self, "table"):
                self.register_buffer("table", torch.ones(3, dtype=torch.float64))
            return self.layer(x) + self.table

    model = Lazy()
    comparison = compare(model, model, "lazy", torch.ones(2, 3, dtype=torch.float64), training=False)
    assert not comparison.differences


@pytest.mark.parametrize(
    ("returned", "agrees"),
    [
        (torch.Tensor.to_sparse, True),
        (lambda x: torch.complex(x, x), False),
        (lambda x: torch.complex(x, 0 * x), False),
    ],
)
def test_outputs_of_any_type(returned: Callable[[torch.Tensor], torch.Tensor], agrees: bool):
    """Sparse tensors are compared as dense ones; complex numbers, which Lua lacks, differ from their real parts."""
    weight = Tensor.from_numpy(np.arange(16.0).reshape(4, 4))
    subject = t7bridge.TorchObject("nn.Linear", 1, Table.of({"weight": weight}))
    layer = nn.Linear(4, 4, bias=False, dtype=torch.float64)
    layer.load_state_dict({"weight": torch.from_numpy(weight.numpy())})
    model = nn.Sequential(layer)
    model.register_forward_hook(lambda layer, inputs, output: returned(output))
    proof = t7bridge.prove(subject, against=model, input=["2x4"])
    assert (proof.exit_code == 0) == agrees


class Scaled(nn.Module):
    """Its input times a number."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        return x * self.scale


def test_values_whose_norm_is_too_large_differ() -> None:
    """The squares of 1e200 are infinite in double precision: such values are not those of a model that returns 0."""
    value = torch.ones(2, 3, dtype=torch.float64)
    assert compare(Scaled(0.0), Scaled(1e200), "the other", value, training=False).differences
    assert not compare(Scaled(0.0), Scaled(0.0), "the other", value, training=False).differences
