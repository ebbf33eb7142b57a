"""cuDNN's recurrent layers, which need a GPU in Lua: against the formulas of cuDNN's manual, on the flat weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from t7bridge import Table, Tensor, TorchObject, state_dict
from t7bridge.errors import UnsupportedLayerError
from t7bridge.torchmodules import live_module

GATES = {"LSTM": 4, "BLSTM": 4, "GRU": 3, "BGRU": 3, "RNNReLU": 1, "RNNTanh": 1}
MODES = {"LSTM": "LSTM", "BLSTM": "LSTM", "GRU": "GRU", "BGRU": "GRU", "RNNReLU": "RNN_RELU", "RNNTanh": "RNN_TANH"}
SIZE, HIDDEN, STEPS, BATCH = 3, 4, 5, 2


def layer(kind: str, layers: int = 1, **fields) -> TorchObject:
    """A layer as cudnn.torch writes it, with random weights."""
    gates, directions = GATES[kind], 2 if kind.startswith("B") else 1
    count = sum(
        directions * gates * HIDDEN * ((SIZE if number == 0 else HIDDEN * directions) + HIDDEN + 2)
        for number in range(layers)
    )
    weight = np.random.default_rng(1).normal(0, 0.5, count).astype("f4")
    content = {
        "inputSize": float(SIZE),
        "hiddenSize": float(HIDDEN),
        "numLayers": float(layers),
        "numDirections": float(directions),
        "mode": f"CUDNN_{MODES[kind]}".encode(),
        "dropout": 0.0,
        "weight": Tensor.from_numpy(weight),
        "batchFirst": False,
        "rememberStates": False,
        "train": False,
        **fields,
    }
    return TorchObject(f"cudnn.{kind}", 1, Table.of(content))


def sigmoid(x):
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def reference(obj: TorchObject, x: np.ndarray, first=None) -> np.ndarray:
    """Compute a layer as in cuDNN's manual: matrices, then biases; of an LSTM i, f, g, o, of a GRU r, i, n.

    Args:
        obj: the layer.
        x: (time, batch, in).
        first: outputs, and cells of an LSTM, before the first step, each (layers * directions, batch, hidden).
    """
    kind = obj.class_name.removeprefix("cudnn.")
    gates, directions, layers = GATES[kind], int(obj["numDirections"]), int(obj["numLayers"])
    flat, at = obj["weight"].numpy().astype("f8"), 0
    matrices = []
    for number in range(layers):
        for _ in range(directions):
            width = SIZE if number == 0 else HIDDEN * directions
            pair = []
            for columns in (width, HIDDEN):
                pair.append(
                    [
                        flat[at + g * HIDDEN * columns :][: HIDDEN * columns].reshape(HIDDEN, columns)
                        for g in range(gates)
                    ]
                )
                at += gates * HIDDEN * columns
            matrices.append(pair)
    biases = []
    for _ in matrices:
        pair = []
        for _ in range(2):
            pair.append([flat[at + g * HIDDEN :][:HIDDEN] for g in range(gates)])
            at += gates * HIDDEN
        biases.append(pair)
    assert at == flat.size
    for number in range(layers):
        outputs = []
        for direction in range(directions):
            place = number * directions + direction
            (w, r), (b, d) = matrices[place], biases[place]
            h, c = (first[part][place] if first else np.zeros((x.shape[1], HIDDEN)) for part in (0, -1))
            found = []
            for step in x[::-1] if direction else x:
                a = [step @ w[g].T + b[g] for g in range(gates)]
                u = [h @ r[g].T + d[g] for g in range(gates)]
                if gates == 4:
                    i, f, g, o = (p + q for p, q in zip(a, u))
                    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                    h = sigmoid(o) * np.tanh(c)
                elif gates == 3:
                    reset, keep = sigmoid(a[0] + u[0]), sigmoid(a[1] + u[1])
                    h = (1 - keep) * np.tanh(a[2] + reset * u[2]) + keep * h
                else:
                    h = np.maximum(a[0] + u[0], 0) if kind == "RNNReLU" else np.tanh(a[0] + u[0])
                found.append(h)
            outputs.append(np.stack(found[::-1] if direction else found))
        x = np.concatenate(outputs, -1)
    return x


def inputs(steps: int = STEPS, batch: int = BATCH) -> torch.Tensor:
    """A sequence."""
    return torch.randn(steps, batch, SIZE, generator=torch.Generator().manual_seed(2))


def check(found: torch.Tensor, wanted: np.ndarray) -> None:
    """Compare with the manual's result."""
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", GATES)
def test_outputs(kind, layers):
    """A layer returns Lua's outputs, and is a module of torch.nn with its keys."""
    obj, x = layer(kind, layers), inputs()
    module = live_module(obj)
    assert isinstance(module, {4: torch.nn.LSTM, 3: torch.nn.GRU, 1: torch.nn.RNN}[GATES[kind]])
    assert list(module.state_dict()) == list(state_dict(obj).tensors)
    check(module(x), reference(obj, x.numpy()))
    check(module(x[:2, :1]), reference(obj, x[:2, :1].numpy()))


@pytest.mark.parametrize("kind", GATES)
def test_batch_first(kind):
    """`batchFirst` uses (batch, time, …) for inputs and outputs."""
    obj, x = layer(kind, batchFirst=True), inputs()
    check(live_module(obj)(x.transpose(0, 1)).transpose(0, 1), reference(obj, x.numpy()))


def test_the_mode_counts_in_the_class_without_a_name():
    """The kind of a cudnn.RNN is its mode."""
    obj, x = layer("RNNTanh", 2), inputs()
    plain = TorchObject("cudnn.RNN", 1, obj.fields)
    check(live_module(plain)(x), reference(obj, x.numpy()))


def states(kind: str, layers: int = 2) -> list[np.ndarray]:
    """States of all layers and directions."""
    directions = 2 if kind.startswith("B") else 1
    return [np.random.default_rng(seed).normal(size=(layers * directions, BATCH, HIDDEN)) for seed in (3, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "BLSTM", "GRU", "RNNTanh"])
def test_states_that_are_given(kind):
    """`hiddenInput` and `cellInput` are what every sequence begins with."""
    first = states(kind)
    given = {"hiddenInput": Tensor.from_numpy(first[0]), "cellInput": Tensor.from_numpy(first[1])}
    obj, x = layer(kind, 2, **given), inputs()
    module = live_module(obj)
    for _ in range(2):
        check(module(x), reference(obj, x.numpy(), first))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNNReLU"])
def test_states_that_are_remembered(kind):
    """With `rememberStates` a sequence resumes from the last; another batch size, and `forget`, restart it."""
    obj, x = layer(kind, 2, rememberStates=True), inputs(6)
    module, wanted = live_module(obj), reference(layer(kind, 2), x.numpy())
    check(module(x[:4]), wanted[:4])
    check(module(x[4:]), wanted[4:])
    check(module(x[:, :1]), wanted[:, :1])
    module(x[:, :1])
    module.forget()
    check(module(x[:, :1]), wanted[:, :1])


def test_remembered_states_of_a_file():
    """The first sequence resumes from the state after the last call of Lua."""
    first = states("LSTM")
    given = {"hiddenOutput": Tensor.from_numpy(first[0]), "cellOutput": Tensor.from_numpy(first[1])}
    obj, x = layer("LSTM", 2, rememberStates=True, **given), inputs()
    module = live_module(obj)
    check(module(x), reference(obj, x.numpy(), first))
    plain = layer("LSTM", 2, **given)
    check(live_module(plain)(x), reference(plain, x.numpy()))


def test_dropout_between_layers():
    """Dropout acts in training, between layers only."""
    module = live_module(layer("LSTM", 2, dropout=0.5))
    assert module.dropout == 0.5
    assert torch.equal(module(inputs()), module(inputs()))
    assert not torch.equal(module.train()(inputs()), module(inputs()))


def test_weights_of_another_length():
    """A vector of a wrong length is refused."""
    obj = layer("LSTM")
    obj["hiddenSize"] = 5.0
    with pytest.raises(UnsupportedLayerError, match="do not have the length"):
        live_module(obj)


def bare(kind: str, directions: int) -> TorchObject:
    """A layer whose input is added directly, with the remaining matrices and biases."""
    weight = np.random.default_rng(5).normal(0, 0.5, directions * HIDDEN * (HIDDEN + 2)).astype("f4")
    fields = {"inputMode": b"CUDNN_SKIP_INPUT", "inputSize": float(HIDDEN), "numDirections": float(directions)}
    return layer(kind, **fields, weight=Tensor.from_numpy(weight))


def bare_reference(obj: TorchObject, x: np.ndarray) -> np.ndarray:
    """Outputs of such a layer."""
    directions, flat = int(obj["numDirections"]), obj["weight"].numpy().astype("f8")
    act = np.tanh if obj.class_name.endswith("Tanh") else lambda value: np.maximum(value, 0)
    outputs = []
    for turn in range(directions):
        matrix = flat[turn * HIDDEN * HIDDEN :][: HIDDEN * HIDDEN].reshape(HIDDEN, HIDDEN)
        bias = flat[directions * HIDDEN * HIDDEN + 2 * turn * HIDDEN :][: 2 * HIDDEN].reshape(2, HIDDEN).sum(0)
        h, found = np.zeros((x.shape[1], HIDDEN)), []
        for step in x[::-1] if turn else x:
            h = act(step + h @ matrix.T + bias)
            found.append(h)
        outputs.append(np.stack(found[::-1] if turn else found))
    return np.concatenate(outputs, -1)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", ["RNNReLU", "RNNTanh"])
def test_skipped_inputs(kind, directions):
    """A layer without matrices for its input adds it directly."""
    obj, x = bare(kind, directions), torch.randn(STEPS, BATCH, HIDDEN)
    module = live_module(obj)
    assert list(module.state_dict()) == list(state_dict(obj).tensors)
    check(module(x), bare_reference(obj, x.numpy()))


def test_skipped_inputs_of_gates():
    """A layer with gates and without matrices for its input is refused."""
    weight = np.zeros(GATES["LSTM"] * HIDDEN * (HIDDEN + 2), "f4")
    obj = layer("LSTM", inputMode=b"CUDNN_SKIP_INPUT", inputSize=float(HIDDEN), weight=Tensor.from_numpy(weight))
    with pytest.raises(UnsupportedLayerError, match="no weights for its input"):
        live_module(obj)


def test_deep_speech():
    """DeepSpeech's layer returns the sum of both directions, whatever sizes its views had in Lua."""

    def made(name: str, **fields) -> TorchObject:
        return TorchObject(name, 1, Table.of(fields))

    def numbers(*shape: int) -> Tensor:
        return Tensor.from_numpy(np.random.default_rng(6).uniform(0.5, 1.5, shape).astype("f4"))

    linear = made("nn.Linear", weight=numbers(HIDDEN, SIZE))
    norm = made(
        "cudnn.BatchNormalization",
        running_mean=numbers(HIDDEN),
        running_var=numbers(HIDDEN),
        eps=1e-5,
        momentum=0.1,
        weight=numbers(HIDDEN),
        bias=numbers(HIDDEN),
    )
    rnn = bare("RNNReLU", 2)
    sizes = Tensor.from_numpy(np.array([1, 1]))
    modules = [
        made("nn.View", size=sizes, numElements=1.0),
        linear,
        norm,
        made("nn.View", size=sizes, numElements=1.0),
        TorchObject("cudnn.RNN", 1, rnn.fields),
        made("nn.View", size=Tensor.from_numpy(np.array([-1, 2, HIDDEN])), numElements=-8.0, numInputDims=2.0),
        made("nn.Sum", dimension=3.0, nInputDims=-1.0),
    ]
    x = inputs()
    found = live_module(made("cudnn.BatchBRNNReLU", modules=Table.from_list(modules)))(x)

    seen = x.numpy() @ linear["weight"].numpy().T - norm["running_mean"].numpy()
    seen = seen / np.sqrt(norm["running_var"].numpy() + 1e-5) * norm["weight"].numpy() + norm["bias"].numpy()
    check(found, bare_reference(rnn, seen).reshape(STEPS, BATCH, 2, HIDDEN).sum(2))
