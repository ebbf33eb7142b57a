"""cuDNN's recurrent layers: one flat vector that holds all matrices, then all biases.

Sources: cudnn.torch `RNN.lua`; the cuDNN documentation of `cudnnGetRNNLinLayerMatrixParams`. PyTorch keeps cuDNN's
order of the gates, so every tensor is a view of the vector.
"""

from __future__ import annotations

from .fields import Fields
from .layouts import Narrow, Reshape
from .registry import Param, Source, param, register_layer

# Gates of each class: of the LSTM i, f, g, o; of the GRU r, z, n.
_GATES = {
    "cudnn.LSTM": 4,
    "cudnn.BLSTM": 4,
    "cudnn.GRU": 3,
    "cudnn.BGRU": 3,
    "cudnn.RNN": 1,
    "cudnn.RNNReLU": 1,
    "cudnn.RNNTanh": 1,
}


def _names(layers: int, directions: int) -> list[tuple[str, int]]:
    return [(f"_l{layer}" + "_reverse" * turn, layer) for layer in range(layers) for turn in range(directions)]


def _params(fields: Fields) -> tuple[Param, ...]:
    """Parameters of torch.nn.LSTM, GRU or RNN, or the flat vector where its length is not theirs."""
    flat = fields.find_tensor("weight")
    if flat is None:
        return ()
    gates = _GATES.get(fields.obj.class_name, 1)
    size, hidden = fields.integer("inputSize", 0), fields.integer("hiddenSize", 0)
    layers, directions = fields.integer("numLayers", 1), fields.integer("numDirections", 1)
    rows = gates * hidden
    plausible = size > 0 and hidden > 0 and directions in (1, 2) and 0 < layers <= 1000
    names = _names(layers, directions) if plausible else []
    matrices = [(size if layer == 0 else hidden * directions, hidden) for _, layer in names]
    if flat.numel != sum(rows * (columns + inner + 2) for columns, inner in matrices):
        note = "the flat weights of a cuDNN layer do not have the length that its fields give: left as they are"
        return (param("weight", note=note),)
    weights: list[Param] = []
    biases: list[Param] = []
    start, bias_start = 0, rows * sum(columns + inner for columns, inner in matrices)

    def piece(name: str, begin: int, length: int, *shape: int) -> Param:
        return Param(name, (Source("weight", (Narrow(0, begin, length), *((Reshape(shape),) if shape else ()))),))

    for (name, _), (columns, inner) in zip(names, matrices):
        for part, width in (("ih", columns), ("hh", inner)):
            weights.append(piece(f"weight_{part}{name}", start, rows * width, rows, width))
            biases.append(piece(f"bias_{part}{name}", bias_start, rows))
            start += rows * width
            bias_start += rows
    # PyTorch's order: the two weights and the two biases of one layer and direction together.
    return tuple(item for at in range(0, len(weights), 2) for item in (*weights[at : at + 2], *biases[at : at + 2]))


register_layer(
    *_GATES,
    params=_params,
    scratch="reserve hiddenOutput cellOutput hiddenInput cellInput gradHiddenInput gradCellInput gradHiddenOutput "
    "gradCellOutput dropoutStates dropoutStatesSize workspace",
)
