"""cuDNN's recurrent layers: one flat vector holds all matrices, then all biases.

Sources: cudnn.torch `RNN.lua`; the cuDNN documentation of `cudnnGetRNNLinLayerMatrixParams`. PyTorch has cuDNN's order
of the gates, so every tensor is a view of the vector.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..fields import Fields
from ..layouts import Narrow, Reshape
from ..mapping import Call, Lua, NotMappedError, becomes, flag, integer, made, number, of_runtime
from ..registry import Param, Source, Traits, keeps, modules, param, register_layer
from ..torch_nn import Refused, Tensors, constructed, positive
from .recurrent_cells import tensors, together, values

_KINDS = {
    **dict.fromkeys(("cudnn.LSTM", "cudnn.BLSTM"), "LSTM"),
    **dict.fromkeys(("cudnn.GRU", "cudnn.BGRU"), "GRU"),
    **dict.fromkeys(("cudnn.RNN", "cudnn.RNNReLU", "cudnn.RNNTanh"), "RNN"),
}


def _kind(fields: Fields) -> str:
    """Return the class of torch.nn of a layer. A cudnn.RNN may be any of them, according to its mode."""
    if fields.obj.class_name == "cudnn.RNN":
        return {"CUDNN_LSTM": "LSTM", "CUDNN_GRU": "GRU"}.get(fields.text("mode"), "RNN")
    return _KINDS.get(fields.obj.class_name, "RNN")


def _skips_input(fields: Fields) -> bool:
    """Return whether the input of the first layer is added to all gates directly, without matrices."""
    return fields.text("inputMode") == "CUDNN_SKIP_INPUT"


def _tensors(fields: Fields) -> Tensors:
    """Return the shapes of the tensors of torch.nn's layer, in its order; none for impossible sizes."""
    sizes = fields.integer("inputSize", 0), fields.integer("hiddenSize", 0), fields.integer("numLayers", 1)
    directions = fields.integer("numDirections", 1)
    try:
        found = constructed(_kind(fields), sizes, {"bidirectional": directions == 2})
    except Refused:
        return {}
    skipped = ("weight_ih_l0", "weight_ih_l0_reverse") if _skips_input(fields) else ()
    return {name: shape for name, shape in found.items() if name not in skipped} if directions in (1, 2) else {}


@keeps("weight_ih_l*", "weight_hh_l*", "bias_ih_l*", "bias_hh_l*", "weight")
def _params(fields: Fields) -> tuple[Param, ...]:
    """Return the parameters of torch.nn.LSTM, GRU or RNN, or the flat vector if it has another length."""
    flat = fields.find_tensor("weight")
    if flat is None:
        return ()
    shapes = _tensors(fields)
    layouts, start = {}, 0
    for name, shape in sorted(shapes.items(), key=lambda row: -len(row[1])):  # all matrices, then all biases
        layouts[name] = (Narrow(0, start, prod(shape)), *((Reshape(shape),) if len(shape) > 1 else ()))
        start += prod(shape)
    if flat.numel != start:
        note = "the flat weights of a cuDNN layer do not have the length that its fields imply: left as they are"
        return (param("weight", note=note),)
    return tuple(Param(name, (Source("weight", layouts[name]),)) for name in shapes)


def _state(lua: Lua) -> Any:
    """Return the initial state of the next sequence: that of the file, or the last one's final state if it is kept."""
    when = "Output" if lua.flag("rememberStates") else "Input"
    output, cell = lua.find_tensor(f"hidden{when}"), lua.find_tensor(f"cell{when}")
    layers = lua.integer("numLayers", 1) * lua.integer("numDirections", 1)
    if output is None or output.shape[:1] != (layers,) or len(output.shape) != 3:
        return None
    if _kind(lua) != "LSTM":
        return values(output)
    return together([values(output), values(cell) if cell is not None and cell.shape == output.shape else None])


def _nonlinearity(lua: Lua) -> str:
    is_relu = _kind(lua) == "RNN" and lua.text("mode", "CUDNN_RNN_RELU") != "CUDNN_RNN_TANH"
    return "relu" if is_relu else "tanh"


_OPTIONS: dict[str, Any] = {
    "bidirectional": made(lambda lua: lua.integer("numDirections", 1) == 2).unless(False),
    "batch_first": flag("batchFirst").unless(False),
    "nonlinearity": made(_nonlinearity).unless("tanh"),
}
_ROWS = {
    kind: of_runtime(
        f"sequence.Outputs{kind}",
        integer("inputSize"),
        integer("hiddenSize"),
        num_layers=integer("numLayers", 1).unless(1),
        dropout=number("dropout", 0.0).unless(0.0),
        remember=flag("rememberStates").unless(False),
        hidden=made(_state).unless(None),
        **_OPTIONS,
    )
    for kind in ("LSTM", "GRU", "RNN")
}
# Without matrices for its input, as in DeepSpeech after a batch normalization.
_BARE = of_runtime("sequence.BareRNN", integer("hiddenSize"), **_OPTIONS)


@becomes(*(f"sequence.Outputs{kind}" for kind in _ROWS), "sequence.BareRNN")
def _module(lua: Lua) -> Call:
    """Map to torch.nn.LSTM, GRU or RNN, returning the outputs only."""
    if "weight_hh_l0" not in lua.shapes:
        raise NotMappedError("its flat weights do not have the length that its fields imply", path=lua.path)
    if not _skips_input(lua):
        return _ROWS[_kind(lua)](lua)
    kept = lua.flag("rememberStates") or lua.find_tensor("hiddenInput") is not None
    if _kind(lua) != "RNN" or lua.integer("numLayers", 1) != 1 or kept:
        raise NotMappedError("has no weights for its input", path=lua.path)
    return _BARE(lua)


def _outputs(kind: str) -> Traits:
    return Traits(shapes=lambda *sizes, remember=False, hidden=None, **options: constructed(kind, sizes, options))


def _bare_shapes(hidden_size: int, nonlinearity: str = "", bidirectional: bool = False, *_: Any, **__: Any) -> Tensors:
    rows = "weight_hh_l0: h h, bias_ih_l0: h, bias_hh_l0: h"
    shapes = tensors(rows, 0, positive(hidden_size))
    return {**shapes, **({f"{name}_reverse": shape for name, shape in shapes.items()} if bidirectional else {})}


register_layer(
    params=_params,
    module=dict.fromkeys(_KINDS, _module),
    traits={
        **{f"sequence.Outputs{kind}": _outputs(kind) for kind in _ROWS},
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
