"""cuDNN's recurrent layers: one flat vector holds all matrices, then all biases.

Sources: cudnn.torch `RNN.lua`; the cuDNN documentation of `cudnnGetRNNLinLayerMatrixParams`. PyTorch has cuDNN's order
of the gates, so every tensor is a view of the vector.
"""

from __future__ import annotations

from typing import Any

from ..fields import Fields
from ..layouts import Narrow, Reshape
from ..mapping import LAYERS, Call, Lua, NotMappedError, becomes, of_runtime
from ..registry import Param, Source, Traits, keeps, modules, param, register_layer
from ..torch_nn import Tensors, constructed, positive
from .recurrent_cells import values

# Gates of each class: i, f, g, o of the LSTM; r, z, n of the GRU.
_GATES = {
    "cudnn.LSTM": 4,
    "cudnn.BLSTM": 4,
    "cudnn.GRU": 3,
    "cudnn.BGRU": 3,
    "cudnn.RNN": 1,
    "cudnn.RNNReLU": 1,
    "cudnn.RNNTanh": 1,
}


def _gates(fields: Fields) -> int:
    """Return the number of gates of a layer. A cudnn.RNN may be any of them, according to its mode."""
    if fields.obj.class_name == "cudnn.RNN":
        return {"CUDNN_LSTM": 4, "CUDNN_GRU": 3}.get(fields.text("mode"), 1)
    return _GATES.get(fields.obj.class_name, 1)


def _skips_input(fields: Fields) -> bool:
    """Return whether the input of the first layer is added to all gates directly, without matrices."""
    return fields.text("inputMode") == "CUDNN_SKIP_INPUT"


def _names(layers: int, directions: int) -> list[tuple[str, int]]:
    return [(f"_l{layer}" + "_reverse" * turn, layer) for layer in range(layers) for turn in range(directions)]


@keeps("weight_ih_l*", "weight_hh_l*", "bias_ih_l*", "bias_hh_l*", "weight")
def _params(fields: Fields) -> tuple[Param, ...]:
    """Return the parameters of torch.nn.LSTM, GRU or RNN, or the flat vector if it has another length."""
    flat = fields.find_tensor("weight")
    if flat is None:
        return ()
    gates = _gates(fields)
    size, hidden = fields.integer("inputSize", 0), fields.integer("hiddenSize", 0)
    layers, directions = fields.integer("numLayers", 1), fields.integer("numDirections", 1)
    rows = gates * hidden
    plausible = size > 0 and hidden > 0 and directions in (1, 2) and 0 < layers <= 1000
    names = _names(layers, directions) if plausible else []
    first = 0 if _skips_input(fields) else size
    matrices = [(first if layer == 0 else hidden * directions, hidden) for _, layer in names]
    if flat.numel != sum(rows * (columns + inner + 2) for columns, inner in matrices):
        note = "the flat weights of a cuDNN layer do not have the length that its fields imply: left as they are"
        return (param("weight", note=note),)
    found: list[Param] = []
    start, bias_start = 0, rows * sum(columns + inner for columns, inner in matrices)

    def piece(name: str, begin: int, length: int, *shape: int) -> Param:
        return Param(name, (Source("weight", (Narrow(0, begin, length), *((Reshape(shape),) if shape else ()))),))

    for (name, _), (columns, inner) in zip(names, matrices):
        # PyTorch's order: the two weights and the two biases of one layer and direction together.
        if columns:
            found.append(piece(f"weight_ih{name}", start, rows * columns, rows, columns))
        found.append(piece(f"weight_hh{name}", start + rows * columns, rows * inner, rows, inner))
        found.append(piece(f"bias_ih{name}", bias_start, rows))
        found.append(piece(f"bias_hh{name}", bias_start + rows, rows))
        start += rows * (columns + inner)
        bias_start += 2 * rows
    return tuple(found)


def _state(lua: Lua, layers: int) -> Any:
    """Return the initial state of the next sequence: that of the file, or the last one's final state if it is kept."""
    remembers = lua.flag("rememberStates")
    found = [lua.find_tensor(name + ("Output" if remembers else "Input")) for name in ("hidden", "cell")]
    if found[0] is None or found[0].shape[:1] != (layers,) or len(found[0].shape) != 3:
        return None
    output = values(found[0])
    if _gates(lua) != 4:
        return output
    if found[1] is None or found[1].shape != found[0].shape:
        return (output, _zeros(output))
    return (output, values(found[1]))


def _zeros(value: Any) -> Any:
    return tuple(_zeros(item) for item in value) if isinstance(value, tuple) else 0.0


def _bare_rnn(lua: Lua, layers: int, directions: int) -> Call:
    """Map a layer without matrices for its input, as in DeepSpeech after a batch normalization."""
    if _gates(lua) != 1 or layers != 1 or lua.flag("rememberStates") or lua.find_tensor("hiddenInput") is not None:
        raise NotMappedError("has no weights for its input", path=lua.path)
    kwargs: dict[str, Any] = {}
    if directions == 2:
        kwargs["bidirectional"] = True
    if lua.flag("batchFirst"):
        kwargs["batch_first"] = True
    if lua.text("mode", "CUDNN_RNN_RELU") != "CUDNN_RNN_TANH":
        kwargs["nonlinearity"] = "relu"
    return Call(f"{LAYERS}sequence.BareRNN", (lua.integer("hiddenSize"),), kwargs)


@becomes("sequence.OutputsLSTM", "sequence.OutputsGRU", "sequence.OutputsRNN", "sequence.BareRNN")
def _module(lua: Lua) -> Call:
    """Map to torch.nn.LSTM, GRU or RNN, returning the outputs only."""
    if "weight_hh_l0" not in lua.shapes:
        raise NotMappedError("its flat weights do not have the length that its fields imply", path=lua.path)
    layers, directions = lua.integer("numLayers", 1), lua.integer("numDirections", 1)
    if _skips_input(lua):
        return _bare_rnn(lua, layers, directions)
    kwargs: dict[str, Any] = {}
    if layers != 1:
        kwargs["num_layers"] = layers
    if directions == 2:
        kwargs["bidirectional"] = True
    if lua.flag("batchFirst"):
        kwargs["batch_first"] = True
    if lua.number("dropout", 0.0):
        kwargs["dropout"] = float(lua.number("dropout"))
    if lua.flag("rememberStates"):
        kwargs["remember"] = True
    state = _state(lua, layers * directions)
    if state is not None:
        kwargs["hidden"] = state
    kind = {4: "LSTM", 3: "GRU"}.get(_gates(lua), "RNN")
    if kind == "RNN" and lua.text("mode", "CUDNN_RNN_RELU") != "CUDNN_RNN_TANH":
        kwargs["nonlinearity"] = "relu"
    return Call(f"{LAYERS}sequence.Outputs{kind}", (lua.integer("inputSize"), lua.integer("hiddenSize")), kwargs)


def _outputs(kind: str) -> Traits:
    return Traits(shapes=lambda *sizes, remember=False, hidden=None, **options: constructed(kind, sizes, options))


def _bare_shapes(hidden_size: int, nonlinearity: str = "", bidirectional: bool = False, *_: Any, **__: Any) -> Tensors:
    hidden = positive(hidden_size)
    shapes = {"weight_hh": (hidden, hidden), "bias_ih": (hidden,), "bias_hh": (hidden,)}
    suffixes = ("_l0", "_l0_reverse") if bidirectional else ("_l0",)
    return {f"{name}{suffix}": shape for suffix in suffixes for name, shape in shapes.items()}


register_layer(
    params=_params,
    module=dict.fromkeys(_GATES, _module),
    traits={
        **{f"sequence.Outputs{kind}": _outputs(kind) for kind in ("LSTM", "GRU", "RNN")},
        "sequence.BareRNN": Traits(shapes=_bare_shapes),
    },
    scratch="reserve hiddenOutput cellOutput hiddenInput cellInput gradHiddenInput gradCellInput gradHiddenOutput "
    "gradCellOutput dropoutStates dropoutStatesSize workspace",
)

# DeepSpeech: a linear layer and a batch normalization over all steps together, then the recurrent layer.
register_layer(
    children=modules,
    scratch="view_in view_out rnn",
    module=dict.fromkeys(("cudnn.BatchBRNN", "cudnn.BatchBRNNReLU"), of_runtime("sequence.BatchRNN")),
)
