"""Recurrent cells and layers. Sources: rnn 83a5f17 of torch and its predecessor of Element-Research, torch-rnn.

cuDNN's: one flat vector holds all matrices, then all biases. Sources: cudnn.torch `RNN.lua`; the cuDNN documentation of
`cudnnGetRNNLinLayerMatrixParams`. PyTorch has cuDNN's order of the gates, so every tensor is a view of the vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from attrs import evolve

from ...data import np
from ...graph.lua import TorchObject, Value
from ...graph.tensor import Tensor
from .. import walk
from ..compounds import require
from ..fields import Fields, items_of, lookup, path_steps
from ..layouts import REST, BlockOrder, Extent, Layout, Narrow, Permute, Reshape, copied, elements
from ..mapping import (
    LAYERS,
    Call,
    Choice,
    Literal,
    Lua,
    NotMappedError,
    Row,
    becomes,
    either,
    extent,
    flag,
    has,
    integer,
    made,
    number,
    of_runtime,
    of_torch,
    optional,
    sizes,
)
from ..output_shapes import Arguments
from ..registry import (
    Child,
    Param,
    Recording,
    RecurrentLayer,
    Source,
    Traits,
    add_traits,
    declare_recordings,
    keeps,
    listed_modules,
    modules,
    param,
    register_layer,
    run_elsewhere,
    run_from,
)
from ..torch_nn import Refused, Tensors, constructed, positive
from .cells import CELLS, cell_children, cell_params, gates_to_torch, masks_rows, mufuru_operations, shapes_by_extents
from .containers import are_clones
from .states import (
    initial_state,
    joined_parts,
    nested_sizes,
    nested_values,
    remembered,
    state_after_batch_first_sequence,
    state_after_last_step,
    state_after_sequence,
)

# Entries


_MOST_SEARCHED = 10_000
"""Maximum number of modules searched for one that needs to know about zeros."""
_TEMPORARY = (
    "outputs cells hiddens gradCells gradHiddens gradOutputs gradInputs gradActions actions cell hidden zeroTensor "
    "typeTensor tableoutput tablegradInput sharedClones recurrentModule rnn action module forwardModule backwardModule "
    "mergeModule merge fwdSeq bwdSeq mergeSeq inputModule feedbackModule transferModule initialModule startModule "
    "inputGate forgetGate outputGate hiddenLayer cellLayer cellGate i2g o2g zeroMask userPrevOutput userPrevCell "
    "userNextGradCell userNextGradOutput userGradPrevOutput userGradPrevCell prevOutput prevCell startState "
    "operations zeroOutput zeroCell indexes mappedLengths temp"
)
"""Fields with what the classes keep of the last sequence, and with aliases of modules in `modules`."""


# Cells: one step of a sequence at each call.


_LAST_OUTPUT = made(lambda lua: state_after_last_step(lua, "outputs"))
_OUTPUT_STATE: dict[str, Any] = {
    "start": lambda lua: initial_state(lua, "userPrevOutput|outputs.0|startState"),
    "state": _LAST_OUTPUT,
}
"""Arguments of cells whose state is their output: before the first step, and after the last one."""
_LAST_OUTPUT_AND_CELL = made(lambda lua: state_after_last_step(lua, "outputs", "cells"))
_OUTPUT_AND_CELL_STATE: dict[str, Any] = {
    "start": lambda lua: initial_state(lua, "userPrevOutput|outputs.0", "userPrevCell|cells.0"),
    "state": _LAST_OUTPUT_AND_CELL,
}
_REC_STATE: dict[str, Any] = {
    "start": lambda lua: initial_state(lua, "startState.1", "startState.2"),
    "state": _LAST_OUTPUT_AND_CELL,
}
_SIZE = integer("outputSize|outputsize")
_REC_GRU = of_runtime("recurrent.RecGRU", _SIZE, **_OUTPUT_STATE)


def _cell(class_name: str, *args: Any, **kwargs: Any) -> Choice:
    """Map cells to their own class, or if they are not recognized to one that applies their modules to input and state.

    Args:
        class_name: of the cell in Lua.
        *args: further arguments of its own class, after the sizes.
        **kwargs: its arguments by keyword, besides those of every cell.
    """
    cell = CELLS[class_name]
    has_cell_state = "c" in cell.inputs
    state = _OUTPUT_AND_CELL_STATE if has_cell_state else _OUTPUT_STATE
    kwargs = {"mask_zero": made(lambda lua: masks_rows(lua.obj)).unless(False), **state, **kwargs}
    as_class = of_runtime(cell.target, integer("inputSize"), integer("outputSize"), *args, **kwargs)
    # The output of such an LSTM is as large as its cell.
    as_modules = of_runtime("recurrent.RecLSTM", _SIZE, _SIZE, **state) if has_cell_state else _REC_GRU
    return either(lambda lua: cell_params(lua.obj), as_class, as_modules)


def _output_size(lua: Lua) -> Any:
    """Return the sizes of the output of a Recurrence: a tuple, or for a table of outputs a tuple of these.

    Raises:
        ModelError: the field has neither.
    """
    size = nested_sizes(lua.get("outputSize|outputsize"))
    if size is None:
        raise lua.wrong("outputSize", "sizes, or a table of sizes", lua.get("outputSize|outputsize"))
    return size


_RECURRENCE = of_runtime("recurrent.Recurrence", _output_size, integer("nInputDim"), **_OUTPUT_STATE)


_RUNNING_MODULES = (
    "initialModule.modules.2",
    "recurrentModule.modules.1.modules.1",
    "recurrentModule.modules.1.modules.2",
    "recurrentModule.modules.3",
    "recurrentModule.modules.2",
)
"""Where Lua runs the modules of a Recurrent: start, input, feedback, transfer and merge, as `modules` has them."""
_CLONES_OF_FIRST_STEP = {"initialModule.modules.1": 1, "initialModule.modules.3": 3}
"""Clones of the input and the transfer for the first step, with the places of their originals in `modules`, from 0."""


def _parts_of_recurrent(obj: TorchObject) -> Iterator[Child]:
    """Yield the modules of a Recurrent: those that Lua runs, where a program put others into `modules`.

    `run_from` does this for modules in fields; here they are deeper inside. Further ones in `modules` are never run.
    """
    listed = list(listed_modules(obj))
    for place, path in enumerate(_RUNNING_MODULES):
        child = listed[place] if place < len(listed) else None
        running = lookup(obj, path)
        if isinstance(running, TorchObject) and (child is None or running is not child.value):
            child = Child(str(place), path_steps(path), running)
        if child is not None:
            yield child


@becomes("recurrent.Recurrent")
def _recurrent(lua: Lua) -> Call:
    """Map a Recurrent, whose first step has clones of its modules.

    Raises:
        NotMappedError: the first step or the others run something else than its constructor made them run.
    """
    parts = [child.value for child in _parts_of_recurrent(lua.obj)]
    for path, place in _CLONES_OF_FIRST_STEP.items():
        clone = lua.get(path)
        # The weights of clones are not compared: PyTorch's class uses those of `modules` for all steps.
        if clone is not None and place < len(parts) and not are_clones(clone, parts[place], sharing=False):
            raise NotMappedError("its modules inside were changed", path=f"{lua.path}.initialModule")
    for name, form in _FORMS_OF_RECURRENT.items():
        if _form(lua.get(name)) not in (None, form):  # a missing container is as it was made
            raise NotMappedError("its modules inside were changed", path=f"{lua.path}.{name}")
    return of_runtime("recurrent.Recurrent", state=_LAST_OUTPUT)(lua)


_FORMS_OF_RECURRENT = {
    "initialModule": ("nn.Sequential", 3),
    "recurrentModule": ("nn.Sequential", 3),
    "recurrentModule.modules.1": ("nn.ParallelTable", 2),
}
"""The containers that the constructor of a Recurrent makes, with the number of modules in each."""


def _form(value: Value) -> tuple[str, int] | None:
    """Return the class of a container and the number of modules in it; `None` if it is missing."""
    if not isinstance(value, TorchObject):
        return None
    return value.class_name, len(list(modules(value)))


_MASK_ZERO = of_runtime(
    "recurrent.MaskZero",
    n_input_dims=optional("nInputDim"),  # Element-Research's; torch's uses batches, or receives the mask
    mask_input=flag("maskinput").unless(False),
    zero_mask=flag("v2").unless(False),
    mask_output=flag("maskoutput", True).unless(True),
)
_SEQUENCERS = ("nn.Sequencer", "nn.Repeater", "nn.RecurrentAttention")


def _needs_mask(obj: TorchObject) -> bool:
    """Return whether something inside a module of torch's rnn needs the mask of steps that are zeros.

    Only the first modules of a large model are searched.
    """
    stack: list[Value] = [obj]
    for _ in range(_MOST_SEARCHED):
        if not stack:
            return False
        module = stack.pop()
        if isinstance(module, TorchObject):
            masks_steps = module.class_name == "nn.MaskZero" or module.get("maskzero") is True
            receives_mask = module.get("v2") is True  # in their first version, modules find the zeros themselves
            if masks_steps and receives_mask:
                return True
            stack += items_of(module.get("modules")) or []
    return False


_REMEMBER = made(lambda lua: remembered(lua.obj)).unless("neither")
_SEQUENCER = either(
    lambda lua: _needs_mask(lua.obj),
    of_runtime("sequence.MaskedSequencer", remember=_REMEMBER),
    of_runtime("sequence.Sequencer", remember=_REMEMBER),
)
_RECURSOR = either(
    # These containers make all modules inside forget, so that a Recursor in one adds nothing.
    lambda lua: lua.above and lua.above[0].class_name in _SEQUENCERS,
    of_torch("Sequential"),
    of_runtime("recurrent.Recursor"),
)
_MASKED = either(
    lambda lua: _needs_mask(lua.obj), of_runtime("sequence.MaskedSequential"), of_runtime("recurrent.Recursor")
)

_OWN_STEPS = (
    *("nn.BiSequencer", "nn.BiSequencerLM", "nn.RecurrentAttention", "nn.Recurrent", "nn.Recurrence", "nn.LinearRNN"),
    *("nn.LookupRNN", "nn.RecLSTM", "nn.RecGRU", "nn.LSTM", "nn.FastLSTM", "nn.GRU", "nn.MuFuRu", "nn.NormStabilizer"),
)
"""Classes whose `maxBPTTstep` does not pass the number of steps on to the modules inside."""


def _zeroes_rows(arguments: Arguments) -> bool:
    """Return whether a MaskZero masks the output for rows that are zeros, and receives no mask."""
    return arguments.kwargs.get("n_input_dims") == 1 and not arguments.kwargs.get("zero_mask")


@becomes("recurrent.NormStabilizer")
def _norm_stabilizer(lua: Lua) -> Call:
    """Map a NormStabilizer, whose module inside returns its input, as do its copies for further steps.

    Raises:
        NotMappedError: a program changed these modules.
    """
    clone_count = len(items_of(lua.get("sharedClones")) or ())
    for place in range(1, clone_count + 1):
        require(lua, f"sharedClones.{place}", pattern="x", inputs="x")
    require(lua, "recurrentModule", pattern="x", inputs="x")
    return Call(f"{LAYERS}recurrent.NormStabilizer", (float(lua.number("beta", 1.0)),), childless=True)


def _is_sequence(lua: Lua) -> bool:
    """Return whether a Sequencer around a Repeater sets its number of steps to that of the sequence.

    It reaches the Repeater through containers that pass `maxBPTTstep` on, which `_OWN_STEPS` do not.
    """
    for obj in lua.above:  # the innermost first
        if obj.class_name == "nn.Sequencer":
            return True
        if obj.class_name in _OWN_STEPS:
            return False
    return False


# Element-Research's classes run modules from fields; `modules` lists the same ones.
run_elsewhere(
    {
        **dict.fromkeys(("nn.Recursor", "nn.Recurrence", *CELLS), run_from("recurrentModule")),
        **dict.fromkeys(("nn.Sequencer", "nn.Repeater"), run_from("module|rnn")),
        "nn.SeqBRNN": run_from("module"),
        "nn.BiSequencerLM": run_from("_fwd", "_bwd", "_merge"),
        "nn.RecurrentAttention": run_from("rnn", "action"),
        "nn.Recurrent": _parts_of_recurrent,
    }
)
_OUTPUTS = ("outputs", "userPrevOutput")
_CELLS_BEFORE = ("cells", "userPrevCell")
declare_recordings(
    {
        **dict.fromkeys(("nn.LSTM", "nn.FastLSTM"), Recording(states=(_OUTPUTS, _CELLS_BEFORE))),
        **dict.fromkeys(("nn.GRU", "nn.Recurrence"), Recording(states=(_OUTPUTS,))),
        "nn.Recursor": Recording(states=()),
        "nn.Recurrent": Recording(
            states=(_OUTPUTS,),
            first_step="initialModule",
            places={
                **{path: place + 1 for place, path in enumerate(_RUNNING_MODULES)},
                **{path: place + 1 for path, place in _CLONES_OF_FIRST_STEP.items()},
            },
        ),
        **dict.fromkeys(
            ("nn.Sequencer", "nn.Repeater", "nn.BiSequencer", "nn.SeqBRNN", "nn.SeqLSTM", "nn.SeqLSTMP", "nn.SeqGRU"),
            Recording(over_sequences=True),
        ),
        "nn.BiSequencerLM": Recording(flow=walk.both_ways, inputs={"2": "_mergeInput"}, over_sequences=True),
        # A TrimZero removes the examples that are zeros before it runs the module inside.
        "nn.TrimZero": Recording(flow=walk.unknown),
    }
)
register_layer(
    "nn.AbstractRecurrent",
    "nn.AbstractSequencer",
    children=modules,
    scratch=_TEMPORARY,
    module={
        "nn.Recursor": _RECURSOR,
        **dict.fromkeys(("nn.BiSequencer", "nn.SeqBRNN", "nn.SeqBLSTM", "nn.SeqBGRU", "nn.BLSTM", "nn.BGRU"), _MASKED),
        "nn.ReverseUnreverse": of_runtime("sequence.Reversed"),
        **dict.fromkeys(("nn.Recurrence", "nn.LinearRNN", "nn.LookupRNN"), _RECURRENCE),
        "nn.Recurrent": _recurrent,
        "nn.RecLSTM": of_runtime("recurrent.RecLSTM", integer("outputsize"), integer("hiddensize"), **_REC_STATE),
        "nn.RecGRU": _REC_GRU,
        "nn.MaskZero": _MASK_ZERO,
        "nn.TrimZero": _MASK_ZERO,
        "nn.NormStabilizer": _norm_stabilizer,
        "nn.Sequencer": _SEQUENCER,
        "nn.Repeater": of_runtime(
            "sequence.Repeater", integer("rho|seqlen"), as_sequence=made(_is_sequence).unless(False)
        ),
        "nn.BiSequencerLM": of_runtime("sequence.BiSequencerLM"),
        "nn.RecurrentAttention": of_runtime(
            "sequence.RecurrentAttention",
            integer("nStep"),
            sizes("hiddenSize"),
            returns_actions=flag("forwardActions"),
        ),
        "nn.VariableLength": of_runtime("sequence.VariableLength", last_only=flag("lastOnly").unless(False)),
    },
    traits={
        "recurrent.Recursor": Traits(flow=walk.sequence, by_step=True),
        "recurrent.MaskZero": Traits(flow=walk.sequence, by_step=True, zeroes_rows=_zeroes_rows),
        "recurrent.Recurrence": Traits(flow=walk.recurrence, by_step=True),
        "recurrent.Recurrent": Traits(by_step=True),
        "recurrent.NormStabilizer": Traits(by_step=True),
        "recurrent.RecLSTM": Traits(by_step=True, recurrent=RecurrentLayer("LSTM")),
        "recurrent.RecGRU": Traits(by_step=True),
        "sequence.MaskedSequential": Traits(flow=walk.sequence),
        "sequence.Reversed": Traits(flow=walk.sequence),
        "sequence.MaskedSequencer": Traits(flow=walk.stepped, not_in_torch=lambda arguments: "it skips steps of zeros"),
        "sequence.VariableLength": Traits(flow=walk.unknown),
        "sequence.Sequencer": Traits(flow=walk.stepped, stacking="sequence.Steps"),
        "sequence.Steps": Traits(takes_list=True, returns_list=True, flow=walk.stacked, transparent=True),
        "sequence.Repeater": Traits(flow=walk.repeated),
        "sequence.BiSequencerLM": Traits(flow=walk.unknown),
        "sequence.RecurrentAttention": Traits(flow=walk.unknown),
    },
)
register_layer(
    module={"nn.ReverseSequence": of_runtime("sequence.ReverseSequence")},
    traits=Traits(flow=walk.turned),
)


def _shapes(**extents: str) -> Any:
    """Return a function for the shapes of the tensors of a layer, by its sizes and the outputs of its projection.

    Args:
        **extents: of its tensors, as in `shapes_by_extents`.
    """

    def shapes(inputs: int, hidden: int, proj_size: int = 0, *_: Any, **__: Any) -> Tensors:
        """Return the shapes of one layer; its other arguments don't matter for them."""
        return shapes_by_extents(extents, inputs, positive(hidden), projected=proj_size)

    return shapes


def _mufuru_shapes(input_size: int, hidden_size: int, operations: tuple[str, ...], *_: Any, **__: Any) -> Tensors:
    return shapes_by_extents(CELLS["nn.MuFuRu"].extents, input_size, hidden_size, len(operations))


def _like_layer_of_torch(kind: str, *rows: tuple[str, ...]) -> RecurrentLayer:
    """Return the facts about a layer that computes as torch.nn's of a kind, or about a cell that runs as one.

    Args:
        kind: `LSTM`, `GRU` or `RNN`.
        *rows: of a cell, see `RecurrentLayer.rows`.
    """
    return RecurrentLayer(kind, layer=f"sequence.Outputs{kind}", stateful=f"sequence.Stateful{kind}", rows=rows)


_FAST_LSTM = _like_layer_of_torch("LSTM", ("weight_ih",), ("weight_hh",), ("bias",))
for _name, _args, _facts in (
    (
        "nn.FastLSTM",
        (),
        Traits(shapes=_shapes(**CELLS["nn.FastLSTM"].extents), by_step=True, recurrent=_FAST_LSTM),
    ),
    (
        "nn.GRU",
        (),
        Traits(shapes=_shapes(**CELLS["nn.GRU"].extents), by_step=True, recurrent=RecurrentLayer("GRU")),
    ),
    ("nn.MuFuRu", (lambda lua: mufuru_operations(lua.obj),), Traits(shapes=_mufuru_shapes, by_step=True)),
):
    register_layer(
        _name,
        params=keeps(*CELLS[_name].tensors)(lambda fields: cell_params(fields.obj)),
        children=cell_children,
        scratch=_TEMPORARY,
        kind="layer",
        module=_cell(_name, *_args),
        traits={CELLS[_name].target: _facts},
    )


# Whole sequences.


def _weight_of_input(*steps: BlockOrder) -> Layout:
    """Return the layout of the rows of a weight (in + out, gates * hidden) for the input, as (gates * hidden, in).

    Args:
        *steps: the order of gates, if that is not PyTorch's.
    """
    return (Narrow(dim=0, start=0, length=_INPUT_SIZE), Permute((1, 0)), *steps)


def _weight_of_output(*steps: BlockOrder) -> Layout:
    """Return the layout of the rows of the same weight for the last output, as (gates * hidden, out)."""
    return (Narrow(dim=0, start=_INPUT_SIZE, length=REST), Permute((1, 0)), *steps)


_INPUT_SIZE: Extent = "inputsize|inputSize|input_dim|input_size"
# i f o g in Lua; i f g o in PyTorch.
_GATES = gates_to_torch("ifog")


def _mask(lua: Lua) -> str:
    """Return for which examples torch's rnn returns zeros: those that are `zeros` or that a `mask` marks, or none."""
    if not lua.flag("maskzero"):
        return ""
    return "mask" if lua.flag("v2") else "zeros"


_MASK = made(_mask).unless("")


def _zeros_like_bias(fields: Fields) -> Tensor | None:
    """Return a second bias of zeros, as PyTorch adds two biases and Lua has one; `None` if it has none."""
    bias = fields.find_tensor("bias")
    return None if bias is None else copied(bias, np.zeros_like(elements(bias)))


def _params_of_torch(*steps: BlockOrder) -> tuple[Param, ...]:
    """Return the parameters of a one-layer torch.nn.LSTM or torch.nn.RNN, from a weight (in + out, gates * hidden).

    Args:
        *steps: the order of gates, if that is not PyTorch's.
    """
    return (
        Param("weight_ih_l0", sources=(Source("weight", _weight_of_input(*steps)),)),
        Param("weight_hh_l0", sources=(Source("weight", _weight_of_output(*steps)),)),
        param("bias_ih_l0", *steps, field="bias"),
        Param("bias_hh_l0", kind="derived", make=_zeros_like_bias, adds_to="bias_ih_l0"),
    )


def _projected(name: str) -> Any:
    """Read the number of projected outputs, the rows of a weight, if the layer has one."""
    return made(lambda lua: lua.shape(name)[0] if name in lua.shapes else 0).unless(0)


def _quarter(name: str) -> Any:
    """Read the hidden size from a weight of four gates, whose rows follow one another."""
    return made(lambda lua: lua.shape(name)[0] // 4)


_LSTM_SIZES = (extent("weight_ih_l0", 1), _quarter("weight_ih_l0"))
_SEQUENCE_LSTM: dict[str, Any] = {
    "proj_size": _projected("weight_hr_l0"),
    "batch_first": flag("batchfirst").unless(False),
    "remember": _REMEMBER,
    "state": lambda lua: state_after_sequence(
        lua,
        states=("_output|output", "cell"),
        before=("h0", "c0"),
        initial=("userPrevOutput", "userPrevCell"),
    ),
}


def _is_lstm_of_torch(lua: Lua) -> bool:
    """Return whether torch.nn.LSTM computes a layer: it masks nothing, and projects to fewer outputs only."""
    projected = _SEQUENCE_LSTM["proj_size"].get(lua)
    _, hidden = _LSTM_SIZES
    return not _MASK.get(lua) and projected < hidden.get(lua)


_SEQ_LSTM = either(
    _is_lstm_of_torch,
    of_runtime("sequence.SeqLSTM", *_LSTM_SIZES, **_SEQUENCE_LSTM),
    of_runtime("sequence.SteppedLSTM", *_LSTM_SIZES, **_SEQUENCE_LSTM, mask_zero=_MASK),
)


def _why_stepped(arguments: Arguments) -> str:
    """Return why a layer is none of torch.nn, in the words of a note; see `_is_lstm_of_torch`."""
    if arguments.kwargs.get("mask_zero"):
        return "it skips steps of zeros"
    return "its projection is not smaller than its cell"


def _last_hidden(lua: Lua) -> Literal:
    """Return the state of torch.nn.RNN, a tuple of one tensor of one layer."""
    state = state_after_batch_first_sequence(lua, "output")
    return None if state is None else (state,)


# torch-rnn's layers of whole sequences.
_TORCH_RNN_LSTM = of_runtime(
    "sequence.SeqLSTM",
    *_LSTM_SIZES,
    batch_first=True,
    remember=made(lambda lua: "always" if lua.flag("remember_states") else "").unless(""),
    state=lambda lua: state_after_batch_first_sequence(lua, "output", "cell"),
)
_VANILLA_RNN = of_runtime(
    "sequence.OutputsRNN",
    extent("weight_ih_l0", 1),
    extent("weight_ih_l0"),
    batch_first=True,
    remember=flag("remember_states").unless(False),
    hidden=_last_hidden,
)


def _reset_gru(name: str, **kwargs: Any) -> Row:
    """Map a GRU that resets its state before the product; its weight is (in + hidden, 3 * hidden).

    Args:
        name: of its class in `torchmodules/layers`.
        **kwargs: arguments by keyword.
    """

    def sizes_of(lua: Lua) -> tuple[int, int]:
        """Return the sizes of input and state, the first two arguments of the class."""
        rows, columns = lua.shape("weight")
        hidden = columns // 3
        return rows - hidden, hidden

    return of_runtime(name, made(sizes_of).each, **kwargs)  # `each` makes two arguments of the pair


_BUFFERS = (
    "cell gates next_h next_c buffer1 buffer2 buffer3 grad_a_buffer h0 c0 grad_h0 grad_c0 grad_x gradWeightO hidden "
    "remember_states userPrevOutput userPrevCell userGradPrevOutput userGradPrevCell userNextGradCell zeroMask "
    "grad_next_h"
)
_PROJECTION = param("weight_hr_l0", Permute((1, 0)), field="weightO")


register_layer(
    params=(*_params_of_torch(_GATES), _PROJECTION),
    scratch=_BUFFERS,
    module=dict.fromkeys(("nn.SeqLSTM", "nn.SequenceLSTM", "nn.SeqLSTMP"), _SEQ_LSTM),
    traits={
        "sequence.SeqLSTM": Traits(like="LSTM", written=("outputs",), recurrent=_like_layer_of_torch("LSTM")),
        "sequence.SteppedLSTM": Traits(
            shapes=_shapes(
                weight_ih_l0="4h i", weight_hh_l0="4h p", bias_ih_l0="4h", bias_hh_l0="4h", weight_hr_l0="r h"
            ),
            recurrent=RecurrentLayer("LSTM"),
            not_in_torch=_why_stepped,
        ),
    },
)
# torch.nn.RNN.
register_layer("nn.VanillaRNN", "nn.VanillaRnn", params=_params_of_torch(), scratch=_BUFFERS, module=_VANILLA_RNN)
# Lua resets the hidden state before it is multiplied, torch.nn.GRU after: another function, so Lua's layout is kept.
_NOT_TORCH = "is not the function of torch.nn.GRU"
# weight (in + hidden, 3 * hidden), bias (3 * hidden); r z n in Lua as in PyTorch.
_JOINED_GATES = Traits(shapes=_shapes(weight="j 3h", bias="3h"), recurrent=RecurrentLayer("GRU"))
register_layer(
    "nn.SeqGRU",
    params=(param("weight"), param("bias")),
    scratch=_BUFFERS,
    note=_NOT_TORCH,
    module=_reset_gru(
        "sequence.SeqGRU",
        batch_first=flag("batchfirst").unless(False),
        mask_zero=_MASK,
        remember=_REMEMBER,
        state=lambda lua: state_after_sequence(
            lua, states=("_output|output",), before=("h0",), initial=("userPrevOutput",)
        ),
    ),
    traits=_JOINED_GATES,
)


@keeps(*CELLS["nn.LSTM"].tensors, *(sequence_param.name for sequence_param in _params_of_torch(_GATES)))
def _lstm_or_sequence(fields: Fields) -> tuple[Param, ...]:
    """Return the tensors of rnn's cell, or of torch-rnn's layer of the same name."""
    return cell_params(fields.obj) if fields.find_tensor("weight") is None else _params_of_torch(_GATES)


def _lstm_shapes(input_size: int, hidden_size: int, peephole: bool = True, *_: Any, **__: Any) -> Tensors:
    shapes = shapes_by_extents(CELLS["nn.LSTM"].extents, input_size, positive(hidden_size))
    return {name: shape for name, shape in shapes.items() if peephole or not name.startswith("weight_c")}


# The order of the rows in PyTorch: i f g o.
_ROWS_OF_LSTM = (
    ("weight_ii", "weight_if", "weight_ig", "weight_io"),
    ("weight_hi", "weight_hf", "weight_hg", "weight_ho"),
    ("bias_i", "bias_f", "bias_g", "bias_o"),
)


def _why_not_lstm_of_torch(arguments: Arguments) -> str:
    """Return why an LSTM is none of torch.nn, in the words of a note; empty if it is one, as its gates see no cell."""
    return "" if arguments.kwargs.get("peephole") is False else "its gates see the cell"


# rnn's LSTM has modules, torch-rnn's of the same name has a weight of its own.
register_layer(
    "nn.LSTM",
    params=_lstm_or_sequence,
    children=cell_children,
    scratch=f"{_TEMPORARY} {_BUFFERS}",
    module=either(
        lambda lua: lua.find_tensor("weight") is None,
        _cell("nn.LSTM", peephole=has("weight_ci").unless(True)),
        _TORCH_RNN_LSTM,
    ),
    traits=Traits(
        shapes=_lstm_shapes,
        by_step=True,
        recurrent=_like_layer_of_torch("LSTM", *_ROWS_OF_LSTM),
        not_in_torch=_why_not_lstm_of_torch,
    ),
)


# One step of SeqLSTM and SeqGRU.


register_layer(
    "nn.StepLSTM",
    params=(
        Param("weight_ih", sources=(Source("weight", _weight_of_input(_GATES)),)),
        Param("weight_hh", sources=(Source("weight", _weight_of_output(_GATES)),)),
        param("bias", _GATES),
        param("weight_hr", Permute((1, 0)), field="weightO"),
    ),
    scratch=_BUFFERS,
    module=of_runtime(
        "recurrent.StepLSTM",
        extent("weight_ih", 1),
        _quarter("weight_ih"),
        proj_size=_projected("weight_hr"),
        mask_zero=_MASK,
    ),
    traits=Traits(
        flow=walk.tensors,
        shapes=_shapes(weight_ih="4h i", weight_hh="4h p", bias="4h", weight_hr="r h"),
        by_step=True,
        recurrent=RecurrentLayer("LSTM"),
    ),
)
register_layer(
    "nn.StepGRU",
    params=(param("weight"), param("bias")),
    scratch=_BUFFERS,
    note=_NOT_TORCH,
    module=_reset_gru("recurrent.StepGRU", mask_zero=_MASK),
    traits=evolve(_JOINED_GATES, by_step=True),
)


def _peephole_shapes(input_size: int, hidden_size: int, bias: bool = True) -> Tensors:
    shapes = constructed("LSTMCell", (input_size, positive(hidden_size), bias), {})
    return {**shapes, **{f"weight_c{gate}": (hidden_size,) for gate in "ifo"}}


# Cells recognized in graphs, and layers that return their state (`workshop/cells`); no class of Lua is one.
def _cell_of_torch(kind: str, **facts: Any) -> Traits:
    """Return the traits of a cell whose input is a list with its state, which it returns anew.

    Args:
        kind: `LSTM`, whose state is output and cell; or `GRU` or `RNN`, whose state is the output.
        **facts: further traits.
    """
    of_every_cell: Any = {"takes_list": True, "by_step": True, "recurrent": RecurrentLayer(kind), **facts}
    # `Lists.cell` of codegen writes the call, with a variable for each part of the state: output h, cell c.
    if kind == "LSTM":
        return Traits(returns_list=True, flow=walk.pair, written=("cell", "hc"), **of_every_cell)
    return Traits(written=("cell", "h"), **of_every_cell)


add_traits(
    {
        **{
            f"sequence.Stateful{kind}": Traits(
                takes_list=True,
                returns_list=True,
                flow=walk.with_state,
                like=kind,
                written=("recurrent",),
                recurrent=RecurrentLayer(kind),
            )
            for kind in ("LSTM", "GRU", "RNN")
        },
        "recurrent.LSTMCell": _cell_of_torch("LSTM", like="LSTMCell"),
        "recurrent.PeepholeLSTMCell": _cell_of_torch("LSTM", shapes=_peephole_shapes),
        "recurrent.GRUCell": _cell_of_torch("GRU", like="GRUCell"),
        "recurrent.ResetGRUCell": _cell_of_torch("GRU", like="GRUCell"),
        "recurrent.RNNCell": _cell_of_torch("RNN", like="RNNCell"),
    }
)


# cuDNN's.


_KINDS = {
    **dict.fromkeys(("cudnn.LSTM", "cudnn.BLSTM"), "LSTM"),
    **dict.fromkeys(("cudnn.GRU", "cudnn.BGRU"), "GRU"),
    **dict.fromkeys(("cudnn.RNN", "cudnn.RNNReLU", "cudnn.RNNTanh"), "RNN"),
}


def _kind(fields: Fields) -> str:
    """Return the class of torch.nn of a layer. A cudnn.RNN may be any of them, according to its mode."""
    if fields.obj.class_name == "cudnn.RNN":
        mode = fields.text("mode")
        return {"CUDNN_LSTM": "LSTM", "CUDNN_GRU": "GRU"}.get(mode, "RNN")
    return _KINDS.get(fields.obj.class_name, "RNN")


def _skips_input(fields: Fields) -> bool:
    """Return whether the input of the first layer is added to all gates directly, without matrices."""
    return fields.text("inputMode") == "CUDNN_SKIP_INPUT"


def _shapes_in_torch(fields: Fields) -> Tensors:
    """Return the shapes of the tensors of torch.nn's layer, in its order; none for impossible sizes."""
    inputs = fields.integer("inputSize", 0)
    hidden = fields.integer("hiddenSize", 0)
    layers = fields.integer("numLayers", 1)
    directions = fields.integer("numDirections", 1)
    if directions not in (1, 2):
        return {}
    try:
        shapes = constructed(_kind(fields), (inputs, hidden, layers), {"bidirectional": directions == 2})
    except Refused:
        return {}
    if _skips_input(fields):  # the first level adds its input to the gates without a matrix
        for name in ("weight_ih_l0", "weight_ih_l0_reverse"):
            shapes.pop(name, None)
    return shapes


@keeps("weight_ih_l*", "weight_hh_l*", "bias_ih_l*", "bias_hh_l*", "weight")
def _cudnn_params(fields: Fields) -> tuple[Param, ...]:
    """Return the parameters of torch.nn.LSTM, GRU or RNN, or the flat vector if it has another length."""
    flat = fields.find_tensor("weight")
    if flat is None:
        return ()
    shapes = _shapes_in_torch(fields)
    # The vector holds all matrices, then all biases. i f g o, and r z n of a GRU, in cuDNN as in PyTorch.
    matrices = [name for name, shape in shapes.items() if len(shape) > 1]
    biases = [name for name, shape in shapes.items() if len(shape) == 1]
    layouts: dict[str, Layout] = {}
    start = 0
    for name in matrices + biases:
        count = prod(shapes[name])
        layouts[name] = (Narrow(dim=0, start=start, length=count),)
        if name in matrices:
            layouts[name] += (Reshape(shapes[name]),)
        start += count
    if flat.numel != start:
        note = "the flat weights of a cuDNN layer do not have the length that its fields imply: left as they are"
        return (param("weight", note=note),)
    return tuple(Param(name, sources=(Source("weight", layouts[name]),)) for name in shapes)


def _cudnn_state(lua: Lua) -> Any:
    """Return the initial state of the next sequence: that of the file, or the final state of the last one, if kept.

    Returns:
        Elements of the sizes (layers * directions, batch, hidden), of an LSTM of output and cell; `None` for zeros.
    """
    fields_of_state = ("hiddenOutput", "cellOutput") if lua.flag("rememberStates") else ("hiddenInput", "cellInput")
    output, cell = map(lua.find_tensor, fields_of_state)
    layers = lua.integer("numLayers", 1) * lua.integer("numDirections", 1)
    if output is None or output.shape[:1] != (layers,) or len(output.shape) != 3:
        return None
    if _kind(lua) != "LSTM":
        return nested_values(output)
    has_cell = cell is not None and cell.shape == output.shape
    return joined_parts([nested_values(output), nested_values(cell) if has_cell else None])


def _nonlinearity(lua: Lua) -> str:
    """Return the function of a layer of kind RNN, ReLU unless its `mode` is another; `tanh`, a default, for others."""
    is_relu = _kind(lua) == "RNN" and lua.text("mode", "CUDNN_RNN_RELU") != "CUDNN_RNN_TANH"
    return "relu" if is_relu else "tanh"


_CUDNN_OPTIONS: dict[str, Any] = {
    "bidirectional": made(lambda lua: lua.integer("numDirections", 1) == 2).unless(False),
    "batch_first": flag("batchFirst").unless(False),
    "nonlinearity": made(_nonlinearity).unless("tanh"),
}
_CUDNN_LAYERS = {
    kind: of_runtime(
        f"sequence.Outputs{kind}",
        integer("inputSize"),
        integer("hiddenSize"),
        num_layers=integer("numLayers", 1).unless(1),
        dropout=number("dropout", 0.0).unless(0.0),
        remember=flag("rememberStates").unless(False),
        hidden=_cudnn_state,
        **_CUDNN_OPTIONS,
    )
    for kind in ("LSTM", "GRU", "RNN")
}
# Without matrices for its input, as in DeepSpeech after a batch normalization.
_BARE_RNN = of_runtime("sequence.BareRNN", integer("hiddenSize"), **_CUDNN_OPTIONS)


@becomes(*(f"sequence.Outputs{kind}" for kind in _CUDNN_LAYERS), "sequence.BareRNN")
def _cudnn_layer(lua: Lua) -> Call:
    """Map to torch.nn.LSTM, GRU or RNN, returning the outputs only, or to a class without weights for the input.

    Raises:
        NotMappedError: the flat vector has another length, or there is no class for a layer without weights for its
            input: only for one level of kind RNN, without a state.
    """
    if "weight_hh_l0" not in lua.shapes:
        raise NotMappedError("its flat weights do not have the length that its fields imply", path=lua.path)
    if not _skips_input(lua):
        return _CUDNN_LAYERS[_kind(lua)](lua)
    remembers = lua.flag("rememberStates") or lua.find_tensor("hiddenInput") is not None
    if _kind(lua) != "RNN" or lua.integer("numLayers", 1) != 1 or remembers:
        raise NotMappedError("has no weights for its input", path=lua.path)
    return _BARE_RNN(lua)


def _outputs(kind: str) -> Traits:
    """Return the traits of a layer of torch.nn that returns its outputs only."""

    def shapes(*sizes: int, remember: bool = False, hidden: Any = None, **options: Any) -> Tensors:
        """Return the shapes of the layer's tensors; the arguments that torch.nn lacks don't matter for them."""
        return constructed(kind, sizes, options)

    return Traits(shapes=shapes, written=("outputs",), recurrent=_like_layer_of_torch(kind))


def _bare_shapes(hidden_size: int, nonlinearity: str = "", bidirectional: bool = False, *_: Any, **__: Any) -> Tensors:
    extents = {"weight_hh_l0": "h h", "bias_ih_l0": "h", "bias_hh_l0": "h"}
    shapes = shapes_by_extents(extents, inputs=0, hidden=positive(hidden_size))
    if bidirectional:
        shapes.update([(f"{name}_reverse", shape) for name, shape in shapes.items()])
    return shapes


register_layer(
    params=_cudnn_params,
    module=dict.fromkeys(_KINDS, _cudnn_layer),
    traits={
        **{f"sequence.Outputs{kind}": _outputs(kind) for kind in _CUDNN_LAYERS},
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
