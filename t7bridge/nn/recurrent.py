"""Recurrent layers. Sources: rnn 83a5f17, torch-rnn `LSTM.lua` and `VanillaRNN.lua`, cudnn.torch `RNN.lua`."""

from __future__ import annotations

from ..graph.tensor import Tensor
from .fields import Fields
from .layouts import REST, Blocks, Extent, Layout, Merge, Narrow, Permute, copied, elements
from .registry import Param, Source, modules, param, register_layer

# What the classes keep of the last sequence, and aliases of modules inside `modules`.
_STATE = (
    "outputs cells hiddens gradCells gradHiddens gradOutputs gradInputs gradActions actions cell hidden zeroTensor "
    "typeTensor tableoutput tablegradInput sharedClones recurrentModule rnn action module forwardModule backwardModule "
    "mergeModule merge fwdSeq bwdSeq mergeSeq inputModule feedbackModule transferModule initialModule startModule "
    "inputGate forgetGate outputGate hiddenLayer cellLayer cellGate i2g o2g zeroMask userPrevOutput userPrevCell "
    "userNextGradCell prevOutput prevCell"
)

# The steps of a sequence share their weights, which are those of the first; `sharedClones` are copies of it.
register_layer(
    "nn.Recursor",
    "nn.Recurrence",
    "nn.Sequencer",
    "nn.BiSequencer",
    "nn.BiSequencerLM",
    "nn.Repeater",
    "nn.RecurrentAttention",
    "nn.Recurrent",
    "nn.FastLSTM",
    "nn.GRU",
    "nn.MuFuRu",
    "nn.RecLSTM",
    "nn.RecGRU",
    "nn.LinearRNN",
    "nn.LookupRNN",
    "nn.SeqBRNN",
    "nn.SeqBLSTM",
    "nn.SeqBGRU",
    "nn.BLSTM",
    "nn.BGRU",
    "nn.NormStabilizer",
    "nn.MaskZero",
    "nn.TrimZero",
    "nn.VariableLength",
    "nn.SpatialGlimpse",
    "nn.AbstractRecurrent",
    "nn.AbstractSequencer",
    children=modules,
    scratch=_STATE,
)


def _inputs(*steps: Merge | Blocks) -> Layout:
    """The rows of a weight (in + hidden, gates * hidden) that meet the input, as (gates * hidden, in)."""
    return (Narrow(0, 0, _INPUT_SIZE), Permute((1, 0)), *steps)


def _hiddens(*steps: Merge | Blocks) -> Layout:
    """The rows that meet the last output, as (gates * hidden, out)."""
    return (Narrow(0, _INPUT_SIZE, REST), Permute((1, 0)), *steps)


_INPUT_SIZE: Extent = "inputsize|inputSize|input_dim|input_size"
# Lua's gates are i, f, o, g; PyTorch's i, f, g, o.
_GATES = Blocks((0, 1, 3, 2))


def _zeros_like_bias(fields: Fields) -> Tensor | None:
    """PyTorch adds two biases, Lua has one."""
    import numpy as np

    bias = fields.find_tensor("bias")
    return None if bias is None else copied(bias, np.zeros_like(elements(bias)))


def _rnn(*steps: Blocks) -> tuple[Param, ...]:
    """Parameters of torch.nn.LSTM or torch.nn.RNN of one layer, from a weight (in + out, gates * hidden)."""
    return (
        Param("weight_ih_l0", (Source("weight", _inputs(*steps)),)),
        Param("weight_hh_l0", (Source("weight", _hiddens(*steps)),)),
        param("bias_ih_l0", *steps, field="bias"),
        Param("bias_hh_l0", (), "derived", _zeros_like_bias, adds_to="bias_ih_l0"),
    )


_BUFFERS = (
    "cell gates next_h next_c buffer1 buffer2 buffer3 grad_a_buffer h0 c0 grad_h0 grad_c0 grad_x gradWeightO hidden "
    "remember_states userPrevOutput userPrevCell"
)
# torch.nn.LSTM; SeqLSTMP projects its outputs with weightO (hidden, out): LSTM(proj_size=…).
register_layer("nn.SeqLSTM", "nn.SequenceLSTM", params=_rnn(_GATES), scratch=_BUFFERS)
register_layer(
    "nn.SeqLSTMP", params=(*_rnn(_GATES), param("weight_hr_l0", Permute((1, 0)), field="weightO")), scratch=_BUFFERS
)
# torch.nn.RNN.
register_layer("nn.VanillaRNN", "nn.VanillaRnn", params=_rnn(), scratch=_BUFFERS)
# Lua resets the hidden state before it is multiplied, torch.nn.GRU after: another function, so Lua's layout stays.
# weight (in + hidden, 3 * hidden), bias (3 * hidden), gates r, z, n.
register_layer(
    "nn.SeqGRU", params=(param("weight"), param("bias")), scratch=_BUFFERS, note="is not the function of torch.nn.GRU"
)


def _lstm_or_steps(fields: Fields) -> tuple[Param, ...]:
    return () if fields.find_tensor("weight") is None else _rnn(_GATES)


# rnn's LSTM has modules, torch-rnn's of the same name a weight of its own.
register_layer("nn.LSTM", params=_lstm_or_steps, children=modules, scratch=f"{_STATE} {_BUFFERS}")

# One step of SeqLSTM and SeqGRU, whose gates keep Lua's order as the layer is not one of torch.nn.
register_layer("nn.StepLSTM", "nn.StepGRU", params=(param("weight"), param("bias"), param("weightO")), scratch=_BUFFERS)
