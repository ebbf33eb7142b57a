"""Recurrent layers. Sources: rnn 83a5f17 of torch and its predecessor of Element-Research, torch-rnn."""

from __future__ import annotations

from typing import Any

from ...graph.lua import TorchObject, Value
from ...graph.tensor import Tensor
from ...lazy import np
from .. import flows
from ..compounds import require
from ..fields import Fields, items_of
from ..layouts import REST, BlockOrder, Extent, Layout, Merge, Narrow, Permute, copied, elements
from ..mapping import LAYERS, Call, Lua, NotMappedError, becomes, flag, integer, of_runtime, sizes
from ..registry import Param, Source, Traits, keeps, modules, param, register_layer
from ..torch_nn import Tensors, positive
from .containers import are_clones
from .recurrent_cells import (
    FAST_LSTM_KEYS,
    GRU_KEYS,
    LSTM_KEYS,
    MUFURU_KEYS,
    begin,
    carried,
    cell_children,
    cell_params,
    last_column,
    last_of,
    masks_rows,
    nested_sizes,
    operations,
    remembered,
)

_REC = f"{LAYERS}recurrent."
_SEQUENCE = f"{LAYERS}sequence."

_MOST = 10_000
"""Maximum number of modules searched for one that needs to know about zeros."""

# State that the classes keep of the last sequence, and aliases of modules inside `modules`.
_STATE = (
    "outputs cells hiddens gradCells gradHiddens gradOutputs gradInputs gradActions actions cell hidden zeroTensor "
    "typeTensor tableoutput tablegradInput sharedClones recurrentModule rnn action module forwardModule backwardModule "
    "mergeModule merge fwdSeq bwdSeq mergeSeq inputModule feedbackModule transferModule initialModule startModule "
    "inputGate forgetGate outputGate hiddenLayer cellLayer cellGate i2g o2g zeroMask userPrevOutput userPrevCell "
    "userNextGradCell userNextGradOutput userGradPrevOutput userGradPrevCell prevOutput prevCell startState "
    "operations zeroOutput zeroCell indexes mappedLengths temp"
)


def _kept(**states: object) -> dict[str, object]:
    """Return the arguments that are not `None`."""
    return {name: value for name, value in states.items() if value not in (None, False, "", "neither", 0)}


# Cells: one step of a sequence at each call.


def _sizes(lua: Lua) -> tuple[int, int]:
    inputs, outputs = lua.integer("inputSize|inputsize"), lua.integer("outputSize|outputsize")
    if min(inputs, outputs) < 1:
        raise lua.wrong("inputSize" if inputs < 1 else "outputSize", "a positive number", float(min(inputs, outputs)))
    return inputs, outputs


def _lstm_state(lua: Lua) -> dict[str, object]:
    first = begin(lua, "userPrevOutput|outputs.0", "userPrevCell|cells.0")
    return _kept(start=first, state=carried(lua, "outputs", "cells"))


def _gru_state(lua: Lua) -> dict[str, object]:
    return _kept(start=begin(lua, "userPrevOutput|outputs.0|startState"), state=carried(lua, "outputs"))


@becomes("recurrent.LSTM", "recurrent.FastLSTM", "sequence.SeqLSTM", "recurrent.RecLSTM")
def _lstm(lua: Lua) -> Call:
    """Map a cell of rnn, or torch-rnn's class of the same name, which processes whole sequences."""
    if lua.find_tensor("weight") is not None:
        return _torch_rnn_lstm(lua)
    params = cell_params(lua.obj)
    if not params:
        output = lua.integer("outputSize")
        return Call(f"{_REC}RecLSTM", (output, output), _lstm_state(lua))
    kwargs = {**_kept(mask_zero=masks_rows(lua.obj)), **_lstm_state(lua)}
    if lua.obj.class_name == "nn.FastLSTM":
        return Call(f"{_REC}FastLSTM", _sizes(lua), kwargs)
    if not any(one.name == "weight_ci" for one in params):
        kwargs["peephole"] = False
    return Call(f"{_REC}LSTM", _sizes(lua), kwargs)


@becomes("recurrent.GRU", "recurrent.MuFuRu", "recurrent.RecGRU")
def _gru(lua: Lua) -> Call:
    if cell_params(lua.obj):
        kwargs = {**_kept(mask_zero=masks_rows(lua.obj)), **_gru_state(lua)}
        if lua.obj.class_name == "nn.MuFuRu":
            return Call(f"{_REC}MuFuRu", (*_sizes(lua), operations(lua.obj)), kwargs)
        return Call(f"{_REC}GRU", _sizes(lua), kwargs)
    return Call(f"{_REC}RecGRU", (lua.integer("outputSize|outputsize"),), _gru_state(lua))


@becomes("recurrent.RecLSTM")
def _rec_lstm(lua: Lua) -> Call:
    state = _kept(start=begin(lua, "startState.1", "startState.2"), state=carried(lua, "outputs", "cells"))
    return Call(f"{_REC}RecLSTM", (lua.integer("outputsize"), lua.integer("hiddensize")), state)


@becomes("recurrent.Recurrence")
def _recurrence(lua: Lua) -> Call:
    size = nested_sizes(lua.get("outputSize") if lua.has("outputSize") else lua.get("outputsize"))
    if size is None:
        raise lua.wrong("outputSize", "sizes, or a table of sizes", lua.get("outputSize"))
    return Call(f"{_REC}Recurrence", (size, lua.integer("nInputDim")), _gru_state(lua))


@becomes("recurrent.Recurrent")
def _recurrent(lua: Lua) -> Call:
    """Map a Recurrent, whose first step has clones of its modules."""
    for place, name in enumerate(("inputModule", "startModule", "transferModule"), 1):
        first, other = lua.get(f"initialModule.modules.{place}"), lua.get(name)
        if first is not None and other is not None and not are_clones(first, other, sharing=False):
            raise NotMappedError("its modules inside were changed", path=f"{lua.path}.initialModule")
    return Call(f"{_REC}Recurrent", (), _kept(state=carried(lua, "outputs")))


@becomes("recurrent.MaskZero")
def _mask_zero(lua: Lua) -> Call:
    """Map MaskZero: Element-Research's has the dimensions of an example; torch's uses batches, or receives the mask."""
    kwargs = _kept(n_input_dims=lua.optional("nInputDim"), mask_input=lua.flag("maskinput"), zero_mask=lua.flag("v2"))
    if not lua.flag("maskoutput", True):
        kwargs["mask_output"] = False
    return Call(f"{_REC}MaskZero", (), kwargs)


_SEQUENCERS = ("nn.Sequencer", "nn.Repeater", "nn.RecurrentAttention")


def _is_told(obj: TorchObject) -> bool:
    """Return whether something inside a module of torch's rnn must be told which steps are zeros."""
    stack: list[Value] = [obj]
    for _ in range(_MOST):
        inside = stack.pop() if stack else None
        if isinstance(inside, TorchObject):
            masks = inside.class_name == "nn.MaskZero" or inside.get("maskzero") is True
            if masks and inside.get("v2") is True:
                return True
            stack += items_of(inside.get("modules")) or []
    return False


@becomes("sequence.Sequencer", "sequence.MaskedSequencer")
def _sequencer(lua: Lua) -> Call:
    name = "sequence.MaskedSequencer" if _is_told(lua.obj) else "sequence.Sequencer"
    return Call(LAYERS + name, (), _kept(remember=remembered(lua.obj)))


@becomes("recurrent.Recursor", "sequence.MaskedSequential", "torch.nn.Sequential")
def _recursor(lua: Lua) -> Call:
    """Map to the module inside: containers of a Recursor make all modules forget, so that it adds nothing."""
    if lua.obj.class_name == "nn.Recursor" and lua.above and lua.above[0].class_name in _SEQUENCERS:
        return Call("torch.nn.Sequential")
    told = lua.obj.class_name != "nn.Recursor" and _is_told(lua.obj)
    return Call(f"{LAYERS}sequence.MaskedSequential" if told else f"{_REC}Recursor")


_OWN_STEPS = (
    *("nn.BiSequencer", "nn.BiSequencerLM", "nn.RecurrentAttention", "nn.Recurrent", "nn.Recurrence", "nn.LinearRNN"),
    *("nn.LookupRNN", "nn.RecLSTM", "nn.RecGRU", "nn.LSTM", "nn.FastLSTM", "nn.GRU", "nn.MuFuRu", "nn.NormStabilizer"),
)
"""Classes whose `maxBPTTstep` does not pass the number of steps on to the modules inside."""


@becomes("recurrent.NormStabilizer")
def _norm_stabilizer(lua: Lua) -> Call:
    """Map a NormStabilizer, whose module inside returns its input, as do its copies for further steps."""
    for place in range(1, 1 + len(items_of(lua.get("sharedClones")) or ())):
        require(lua, f"sharedClones.{place}", "x")
    require(lua, "recurrentModule", "x")
    return Call(f"{LAYERS}recurrent.NormStabilizer", (float(lua.number("beta", 1.0)),), childless=True)


@becomes("sequence.Repeater")
def _repeater(lua: Lua) -> Call:
    """Map a Repeater: a Sequencer sets the steps of all that it reaches through containers to the number of its own."""
    kwargs = {}
    for obj in lua.above:
        if obj.class_name in ("nn.Sequencer", *_OWN_STEPS):
            kwargs = _kept(as_sequence=obj.class_name == "nn.Sequencer")
            break
    return Call(f"{LAYERS}sequence.Repeater", (lua.integer("rho|seqlen"),), kwargs)


@becomes("sequence.VariableLength")
def _variable_length(lua: Lua) -> Call:
    return Call(f"{LAYERS}sequence.VariableLength", (), _kept(last_only=lua.flag("lastOnly")))


register_layer(
    "nn.AbstractRecurrent",
    "nn.AbstractSequencer",
    children=modules,
    scratch=_STATE,
    module={
        **dict.fromkeys(
            ("nn.Recursor", "nn.BiSequencer", "nn.SeqBRNN", "nn.SeqBLSTM", "nn.SeqBGRU", "nn.BLSTM", "nn.BGRU"),
            _recursor,
        ),
        "nn.ReverseUnreverse": of_runtime("sequence.Reversed"),
        "nn.Recurrence": _recurrence,
        "nn.LinearRNN": _recurrence,
        "nn.LookupRNN": _recurrence,
        "nn.Recurrent": _recurrent,
        "nn.RecLSTM": _rec_lstm,
        "nn.RecGRU": _gru,
        "nn.MaskZero": _mask_zero,
        "nn.TrimZero": _mask_zero,
        "nn.NormStabilizer": _norm_stabilizer,
        "nn.Sequencer": _sequencer,
        "nn.Repeater": _repeater,
        "nn.BiSequencerLM": of_runtime("sequence.BiSequencerLM"),
        "nn.RecurrentAttention": of_runtime(
            "sequence.RecurrentAttention",
            integer("nStep"),
            sizes("hiddenSize"),
            returns_actions=flag("forwardActions"),
        ),
        "nn.VariableLength": _variable_length,
    },
    traits={
        "recurrent.Recursor": Traits(flow=flows.sequence),
        "recurrent.MaskZero": Traits(flow=flows.sequence),
        "recurrent.Recurrence": Traits(flow=flows.recurrence),
        "sequence.MaskedSequential": Traits(flow=flows.sequence),
        "sequence.Reversed": Traits(flow=flows.sequence),
        "sequence.MaskedSequencer": Traits(flow=flows.stepped),
        "sequence.VariableLength": Traits(flow=flows.unknown),
        "sequence.Sequencer": Traits(flow=flows.stepped),
        "sequence.Repeater": Traits(flow=flows.repeated),
        "sequence.BiSequencerLM": Traits(flow=flows.unknown),
        "sequence.RecurrentAttention": Traits(flow=flows.unknown),
    },
)
register_layer(
    module={"nn.ReverseSequence": of_runtime("sequence.ReverseSequence")},
    traits={"sequence.ReverseSequence": Traits(flow=flows.turned)},
)


def _cell_params(fields: Fields) -> tuple[Param, ...]:
    return cell_params(fields.obj)


def _lstm_shapes(input_size: int, hidden_size: int, peephole: bool = True, *_: Any, **__: Any) -> Tensors:
    hidden = (positive(hidden_size),)
    found: Tensors = {}
    for gate in "ifgo":
        found |= {f"weight_i{gate}": (*hidden, input_size), f"weight_h{gate}": hidden * 2, f"bias_{gate}": hidden}
        if peephole and gate != "g":
            found[f"weight_c{gate}"] = hidden
    return found


def _fast_shapes(input_size: int, hidden_size: int, *_: Any, **__: Any) -> Tensors:
    gates = 4 * positive(hidden_size)
    return {"weight_ih": (gates, input_size), "weight_hh": (gates, hidden_size), "bias": (gates,)}


def _gru_shapes(input_size: int, hidden_size: int, *_: Any, **__: Any) -> Tensors:
    hidden = positive(hidden_size)
    return {
        "weight_ih": (2 * hidden, input_size),
        "bias_ih": (2 * hidden,),
        "weight_hh": (2 * hidden, hidden),
        "weight_in": (hidden, input_size),
        "bias_in": (hidden,),
        "weight_hn": (hidden, hidden),
    }


def _mufuru_shapes(input_size: int, hidden_size: int, operations: tuple[str, ...], *_: Any, **__: Any) -> Tensors:
    linear = {
        "input_reset": (hidden_size, input_size),
        "output_reset": (hidden_size, hidden_size),
        "new": (hidden_size, input_size + hidden_size),
        "shares": (len(operations) * hidden_size, input_size + hidden_size),
    }
    weights = {f"{name}.weight": shape for name, shape in linear.items()}
    return weights | {f"{name}.bias": shape[:1] for name, shape in linear.items()}


for _name, _keys, _mapped, _facts in (
    ("nn.FastLSTM", FAST_LSTM_KEYS, _lstm, {"recurrent.FastLSTM": Traits(shapes=_fast_shapes)}),
    ("nn.GRU", GRU_KEYS, _gru, {"recurrent.GRU": Traits(shapes=_gru_shapes)}),
    ("nn.MuFuRu", MUFURU_KEYS, _gru, {"recurrent.MuFuRu": Traits(shapes=_mufuru_shapes)}),
):
    register_layer(
        _name,
        params=keeps(*_keys)(_cell_params),
        children=cell_children,
        scratch=_STATE,
        kind="layer",
        module=_mapped,
        traits=_facts,
    )


# Whole sequences.


def _inputs(*steps: Merge | BlockOrder) -> Layout:
    """Return the rows of a weight (in + hidden, gates * hidden) for the input, as (gates * hidden, in)."""
    return (Narrow(0, 0, _INPUT_SIZE), Permute((1, 0)), *steps)


def _hiddens(*steps: Merge | BlockOrder) -> Layout:
    """Return the rows for the last output, as (gates * hidden, out)."""
    return (Narrow(0, _INPUT_SIZE, REST), Permute((1, 0)), *steps)


_INPUT_SIZE: Extent = "inputsize|inputSize|input_dim|input_size"
# Lua's gates are i, f, o, g; PyTorch's i, f, g, o.
_GATES = BlockOrder((0, 1, 3, 2))


def _masking(lua: Lua) -> str:
    """Return whether examples that are zeros, or are marked, return zeros, as in torch's rnn."""
    return ("told" if lua.flag("v2") else "seen") if lua.flag("maskzero") else ""


def _zeros_like_bias(fields: Fields) -> Tensor | None:
    """Return a zero bias: PyTorch adds two biases, Lua has one."""
    bias = fields.find_tensor("bias")
    return None if bias is None else copied(bias, np.zeros_like(elements(bias)))


def _rnn(*steps: BlockOrder) -> tuple[Param, ...]:
    """Return the parameters of a one-layer torch.nn.LSTM or torch.nn.RNN, from a weight (in + out, gates * hidden)."""
    return (
        Param("weight_ih_l0", (Source("weight", _inputs(*steps)),)),
        Param("weight_hh_l0", (Source("weight", _hiddens(*steps)),)),
        param("bias_ih_l0", *steps, field="bias"),
        Param("bias_hh_l0", (), "derived", _zeros_like_bias, adds_to="bias_ih_l0"),
    )


@becomes("sequence.SeqLSTM", "sequence.SteppedLSTM")
def _seq_lstm(lua: Lua) -> Call:
    """Map to torch.nn.LSTM if it computes the same."""
    gates, size = lua.shape("weight_ih_l0")
    hidden = gates // 4
    project = lua.shape("weight_hr_l0")[0] if "weight_hr_l0" in lua.shapes else 0
    state = last_of(lua, ("_output|output", "cell"), ("h0", "c0"), ("userPrevOutput", "userPrevCell"))
    masked = _masking(lua)
    kwargs = _kept(proj_size=project, batch_first=lua.flag("batchfirst"), remember=remembered(lua.obj), state=state)
    if masked or project >= hidden:
        return Call(f"{_SEQUENCE}SteppedLSTM", (size, hidden), {**kwargs, **_kept(mask_zero=masked)})
    return Call(f"{_SEQUENCE}SeqLSTM", (size, hidden), kwargs)


def _torch_rnn_lstm(lua: Lua) -> Call:
    """Map torch-rnn's LSTM, which is batch-first."""
    gates, size = lua.shape("weight_ih_l0")
    kwargs: dict[str, object] = {"batch_first": True}
    if lua.flag("remember_states"):
        state = last_column(lua, ("output", "cell"), "h0")
        kwargs.update(_kept(remember="always", state=state))
    return Call(f"{_SEQUENCE}SeqLSTM", (size, gates // 4), kwargs)


@becomes("sequence.OutputsRNN")
def _vanilla_rnn(lua: Lua) -> Call:
    hidden, size = lua.shape("weight_ih_l0")
    kwargs: dict[str, object] = {"batch_first": True}
    if lua.flag("remember_states"):
        last = last_column(lua, ("output",), "h0")
        kwargs.update(remember=True, **_kept(hidden=last and (last,)))
    return Call(f"{LAYERS}sequence.OutputsRNN", (size, hidden), kwargs)


@becomes("sequence.SeqGRU")
def _seq_gru(lua: Lua) -> Call:
    rows, columns = lua.shape("weight")
    kwargs = _kept(
        batch_first=lua.flag("batchfirst"),
        mask_zero=_masking(lua),
        remember=remembered(lua.obj),
        state=last_of(lua, ("_output|output",), ("h0",), ("userPrevOutput",)),
    )
    return Call(f"{_SEQUENCE}SeqGRU", (rows - columns // 3, columns // 3), kwargs)


_BUFFERS = (
    "cell gates next_h next_c buffer1 buffer2 buffer3 grad_a_buffer h0 c0 grad_h0 grad_c0 grad_x gradWeightO hidden "
    "remember_states userPrevOutput userPrevCell userGradPrevOutput userGradPrevCell userNextGradCell zeroMask "
    "grad_next_h"
)
_PROJECTION = param("weight_hr_l0", Permute((1, 0)), field="weightO")


def _stepped_shapes(input_size: int, hidden_size: int, proj_size: int = 0, *_: Any, **__: Any) -> Tensors:
    gates = 4 * positive(hidden_size)
    return {
        "weight_ih_l0": (gates, input_size),
        "weight_hh_l0": (gates, proj_size or hidden_size),
        "bias_ih_l0": (gates,),
        "bias_hh_l0": (gates,),
        **({"weight_hr_l0": (proj_size, hidden_size)} if proj_size else {}),
    }


# torch.nn.LSTM; SeqLSTMP, and SeqLSTM of torch's rnn, project their outputs with weightO (hidden, out).
register_layer(
    params=(*_rnn(_GATES), _PROJECTION),
    scratch=_BUFFERS,
    module=dict.fromkeys(("nn.SeqLSTM", "nn.SequenceLSTM", "nn.SeqLSTMP"), _seq_lstm),
    traits={"sequence.SeqLSTM": Traits(like="LSTM"), "sequence.SteppedLSTM": Traits(shapes=_stepped_shapes)},
)
# torch.nn.RNN.
register_layer("nn.VanillaRNN", "nn.VanillaRnn", params=_rnn(), scratch=_BUFFERS, module=_vanilla_rnn)
# Lua resets the hidden state before it is multiplied, torch.nn.GRU after: another function, so Lua's layout is kept.
# weight (in + hidden, 3 * hidden), bias (3 * hidden), gates r, z, n.
_NOT_TORCH = "is not the function of torch.nn.GRU"


def _joined_shapes(input_size: int, hidden_size: int, *_: Any, **__: Any) -> Tensors:
    gates = 3 * positive(hidden_size)
    return {"weight": (input_size + hidden_size, gates), "bias": (gates,)}


register_layer(
    "nn.SeqGRU",
    params=(param("weight"), param("bias")),
    scratch=_BUFFERS,
    note=_NOT_TORCH,
    module=_seq_gru,
    traits={"sequence.SeqGRU": Traits(shapes=_joined_shapes)},
)


@keeps(*LSTM_KEYS, *(each.name for each in _rnn(_GATES)))
def _lstm_or_sequence(fields: Fields) -> tuple[Param, ...]:
    return cell_params(fields.obj) if fields.find_tensor("weight") is None else _rnn(_GATES)


# rnn's LSTM has modules, torch-rnn's of the same name has a weight of its own.
register_layer(
    "nn.LSTM",
    params=_lstm_or_sequence,
    children=cell_children,
    scratch=f"{_STATE} {_BUFFERS}",
    module=_lstm,
    traits={"recurrent.LSTM": Traits(shapes=_lstm_shapes)},
)


# One step of SeqLSTM and SeqGRU.


@becomes("recurrent.StepLSTM")
def _step_lstm(lua: Lua) -> Call:
    gates, size = lua.shape("weight_ih")
    project = lua.shape("weight_hr")[0] if "weight_hr" in lua.shapes else 0
    return Call(f"{_REC}StepLSTM", (size, gates // 4), _kept(proj_size=project, mask_zero=_masking(lua)))


@becomes("recurrent.StepGRU")
def _step_gru(lua: Lua) -> Call:
    rows, columns = lua.shape("weight")
    return Call(f"{_REC}StepGRU", (rows - columns // 3, columns // 3), _kept(mask_zero=_masking(lua)))


def _step_shapes(input_size: int, hidden_size: int, proj_size: int = 0, *_: Any, **__: Any) -> Tensors:
    fast = {**_fast_shapes(input_size, hidden_size), "weight_hh": (4 * hidden_size, proj_size or hidden_size)}
    return {**fast, "weight_hr": (proj_size, hidden_size)} if proj_size else fast


register_layer(
    "nn.StepLSTM",
    params=(
        Param("weight_ih", (Source("weight", _inputs(_GATES)),)),
        Param("weight_hh", (Source("weight", _hiddens(_GATES)),)),
        param("bias", _GATES),
        param("weight_hr", Permute((1, 0)), field="weightO"),
    ),
    scratch=_BUFFERS,
    module=_step_lstm,
    traits={"recurrent.StepLSTM": Traits(flow=flows.tensors, shapes=_step_shapes)},
)
register_layer(
    "nn.StepGRU",
    params=(param("weight"), param("bias")),
    scratch=_BUFFERS,
    note=_NOT_TORCH,
    module=_step_gru,
    traits={"recurrent.StepGRU": Traits(shapes=_joined_shapes)},
)
