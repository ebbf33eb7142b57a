"""Conversion of a whole PyTorch module: traced, its calls built as Lua layers, and these turned into a Torch object."""

from __future__ import annotations

from math import prod
from typing import Any

from attrs import field

from ...data import define
from ...errors import ModelError, UnsupportedError
from ...extensions import LUA, load_extensions
from ...graph.dtypes import FLOAT32, FLOAT64
from ...graph.lua import Table, TorchObject
from ...graph.tensor import Tensor, covered
from ...nn.state_dict import ROOT_FIELD
from ...report import Note, Report
from . import operations as _operations
from .build import OPERATIONS
from .calls import ProgramBuilder
from .checks import Check, checked_by_layers, checks_of, guard, guard_of_pair, inputs_of_other_batches, texts_of
from .exporting import Freedom
from .layers import LuaLayer, LuaNode, walk
from .objects import ObjectMaker
from .sizes import ChangedError
from .source import PACKAGE, classes_source, flatten, lua_source
from .structure import structured
from .trace import Program, state_arrays, trace

__all__ = ["LuaModel", "convert_module"]
_ = _operations  # registers the operations


@define(eq=False)
class LuaModel:
    """A PyTorch module converted to a Lua model in memory, from which `model.t7` and `model.lua` are written.

    Attributes:
        layer: the whole model, as constructor calls.
        root: the same as a Torch object, with its weights.
        program: the traced program; its names and shapes are those of the source.
        notes: notes for the user, of what the Lua model does otherwise; empty if there is none.
        tensors: number of tensors of the state dict, tied ones counted once.
    """

    layer: LuaLayer
    root: TorchObject
    program: Program
    notes: list[Note] = field(factory=list)
    tensors: int = 0

    def source(self, name: str) -> str:
        """Return `model.lua`."""
        return lua_source(self.layer, self.program, name, self.root["_type"] == "torch.DoubleTensor")

    def classes(self) -> str:
        """Return `layers.lua`, the classes that nn lacks; empty if there are none."""
        return classes_source({layer.name for layer in walk(self.layer)})


def convert_module(
    module: Any, inputs: tuple[Any, ...], allow: tuple[str, ...] = (), inference: bool = False
) -> LuaModel:
    """Convert a PyTorch module to a Lua model.

    Args:
        module: the module, a script module, or an exported program.
        inputs: example inputs.
        allow: see `save_module`.
        inference: leave out the tensors of gradients; the model is then in evaluation mode.

    Raises:
        UnsupportedError: see `save_module`.
    """
    program, steps = _trace_and_build(module, inputs, allow)
    program.texts = texts_of(steps.checks)
    has_guards = _add_guards(steps)  # to the steps, and so before these are combined
    layer = structured(steps.inputs, steps.builder.steps, steps.outputs)
    flatten(layer, program)  # in place: fewer nn.Sequential
    arrays = state_arrays(program)
    is_training = bool(getattr(module, "training", False)) and not inference
    element = FLOAT64 if program.is_double else FLOAT32
    maker = ObjectMaker(element, arrays, is_training, has_gradients=not inference)
    root = maker.make(layer)
    root[ROOT_FIELD] = _state_record(layer, program, arrays, steps.builder.scalar_outputs)
    notes = _notes(layer, program, steps, arrays, has_guards)
    return LuaModel(layer, root, program, notes, tensors=len(arrays))


# Tracing and building


@define(eq=False)
class _Steps:
    """A program as steps of a Lua graph.

    Attributes:
        inputs: the input steps, whose layer is `None`.
        outputs: the steps whose values are returned; an output that is an input is its step.
        builder: has all steps but the inputs, in order, in `steps`.
        checks: for each input, the sizes that each of its dimensions may have.
    """

    inputs: list[LuaNode]
    outputs: list[LuaNode]
    builder: ProgramBuilder
    checks: list[list[Check]]


def _trace_and_build(module: Any, inputs: tuple[Any, ...], allow: tuple[str, ...]) -> tuple[Program, _Steps]:
    """Trace and build a module.

    Where that fails, as PyTorch decomposes some operations for given sizes only, it is traced again with fewer open
    sizes.

    Args:
        module: the module, a script module, or an exported program.
        inputs: example inputs.
        allow: the packages that may be used besides nn and nngraph, see `save.PACKAGES`.

    Raises:
        UnsupportedError: it cannot be built for the example either; the error is that of the attempt with most open
            sizes.
        ModelError: the example does not meet the conditions of a program.
    """
    load_extensions(LUA)  # before PyTorch decomposes what has no entry
    operations = frozenset(name for name, entry in OPERATIONS.items() if not entry.package or entry.package in allow)
    first_error: UnsupportedError | None = None
    for freedom in Freedom:  # from all sizes open to none
        program = trace(module, inputs, operations, freedom)
        # A decomposition may fix the batch of the trace, which is of two where the example has one. A program of the
        # user may not take the example at all.
        if not program.sizes.holds():
            continue
        try:
            return program, _build(program, allow)
        except UnsupportedError as error:
            if first_error is None:
                first_error = error
            if not program.sizes.example:  # no size was open: the other attempts would be the same
                break
    if first_error is None:
        raise ModelError("the program takes inputs of other sizes than the example's")
    raise first_error


def _build(program: Program, allow: tuple[str, ...]) -> _Steps:
    """Build a program: again whenever a condition on the sizes of its inputs is added, as it is built by these.

    Each condition fixes a size or limits it. This ends at the latest when all sizes are those of the example.
    """
    while True:
        program.settle()  # by the conditions added so far
        checks = checks_of([*program.inputs.values()], program.sizes)
        if checks is None:  # `checks_of` has added conditions
            continue
        builder = ProgramBuilder(program, allow=allow)
        try:
            inputs, outputs = builder.run()
        except ChangedError:  # the builder of an operation has added one
            continue
        return _Steps(inputs, outputs, builder, checks)


# Layers that check sizes


def _add_guards(steps: _Steps) -> bool:
    """Put layers behind the inputs that raise an error for sizes which the model cannot take; return whether any.

    Args:
        steps: of the program; receives the layers.
    """
    # All guards are made before one is inserted: what the layers check themselves is seen where they take the inputs.
    guards: list[tuple[LuaLayer, list[LuaNode]]] = []  # each with the input that it guards, and the one it compares
    for number, step in enumerate(steps.inputs):
        layer = guard(steps.checks[number], number, checked_by_layers(step, steps.builder.steps))
        if layer is not None:
            guards.append((layer, [step]))
    for step, axis, other, other_axis in _pairs_to_compare(steps):
        guards.append((guard_of_pair(len(step.shape), axis, len(other.shape), other_axis), [step, other]))
    for layer, inputs in guards:
        _insert(layer, inputs, steps)
    return bool(guards)


def _pairs_to_compare(steps: _Steps) -> list[tuple[LuaNode, int, LuaNode, int]]:
    """Return the dimensions of two inputs that have to be equal, and that no layer compares: input, axis, input, axis.

    The second input is an earlier one.
    """
    pairs = []
    for number, step in enumerate(steps.inputs):
        for check in steps.checks[number]:
            if check.equal is None:  # no other dimension has to be as long
                continue
            other_number, other_axis = check.equal
            if other_number != number:  # two dimensions of one input are compared by its own guard
                pairs.append((step, check.axis, steps.inputs[other_number], other_axis))
    batch = 0  # the dimension
    for step, other in inputs_of_other_batches(steps.inputs, steps.builder.steps):
        pairs.append((step, batch, other, batch))
    return pairs


def _insert(layer: LuaLayer, inputs: list[LuaNode], steps: _Steps) -> None:
    """Put a layer between an input and all that takes it.

    An input of whole numbers has a copy of the model's own type, as the layer needs it: that is the input here.

    Args:
        layer: takes the input, or a table of it and others, and returns the input.
        inputs: the input, which it guards; behind it the others. They stay the input steps.
        steps: of the program; receives the layer, and is changed so that all that took the input takes its output.
    """
    ordered = steps.builder.steps
    sources = [_copy_of(node, ordered) for node in inputs]
    guarded, *_ = sources
    guard_step = LuaNode(layer, sources, guarded.shape)

    def with_guard(nodes: list[LuaNode]) -> list[LuaNode]:
        """Return nodes with the new step in place of the input that it takes and returns."""
        return [guard_step if node is guarded else node for node in nodes]

    # Before the new step is among them, as it takes the input itself.
    for user in ordered:
        user.inputs = with_guard(user.inputs)
    steps.outputs = with_guard(steps.outputs)
    # Behind the last of its sources; inputs are not among the steps, and are before all.
    positions = [ordered.index(source) + 1 for source in sources if source in ordered]
    ordered.insert(max(positions, default=0), guard_step)


def _copy_of(step: LuaNode, steps: list[LuaNode]) -> LuaNode:
    """Return the copy of an input from whole numbers, if there is one, or the input."""
    return next((user for user in steps if user.inputs == [step] and _is_copy(user)), step)


def _is_copy(step: LuaNode) -> bool:
    return step.layer is not None and step.layer.name == "nn.Copy"


# Notes


def _notes(layer: LuaLayer, program: Program, steps: _Steps, arrays: dict[str, Any], has_guards: bool) -> list[Note]:
    """Return the notes for the user.

    Args:
        layer: the whole model.
        program: the traced program.
        steps: the program as it was built.
        arrays: the tensors of the state dict.
        has_guards: whether layers refuse inputs of other sizes.
    """
    report = Report()
    for text, is_warning in steps.builder.notes.items():
        if is_warning:
            report.note("warning", text, code="left-out")
        else:
            report.note("info", text, code="lua")
    _note_sizes(report, program, steps.checks, has_guards)
    for note in program.notes:
        report.note("warning", note.text, note.path, "type", code="left-out", class_name=note.class_name)
    if program.output_names:
        names = ", ".join(_names_of_outputs(program))
        text = f"the module returns a dictionary; the Lua model returns its values in order: {names}"
        report.note("info", text, code="order")
    if any(inner.name.startswith(PACKAGE) for inner in walk(layer)):
        text = "layers.lua has classes that nn lacks: `dofile` it before torch.load of the model"
        report.note("info", text, code="lua")
    _note_types(report, program, arrays)
    return report.notes


def _note_sizes(report: Report, program: Program, checks: list[list[Check]], has_guards: bool) -> None:
    """Note which sizes the model refuses.

    Args:
        report: receives the notes.
        program: has the texts of the sizes that the model takes.
        checks: for each input, the sizes that each of its dimensions may have.
        has_guards: whether layers refuse inputs of other sizes.
    """
    # An input without dimensions has no batch.
    has_fixed_batch = any(dimensions and dimensions[0].is_fixed for dimensions in checks)
    if has_fixed_batch:
        text = "the size of the batch is fixed: the module does not let its first dimension vary"
        report.note("info", text, code="fixed-batch")
    if has_guards:
        text = f"the sizes of the inputs are {', '.join(program.texts)}; Lua refuses others"
        report.note("info", text, code="fixed-sizes")


def _note_types(report: Report, program: Program, arrays: dict[str, Any]) -> None:
    """Note which element types of the inputs and weights become another in Lua.

    Args:
        report: receives the notes.
        program: has the types of the inputs, and whether the model is one of doubles.
        arrays: the tensors of the state dict.
    """
    inputs = [program.dtypes[name] for name in program.inputs]
    weights = {array.dtype.name for array in arrays.values()}
    floats = {dtype for dtype in [*inputs, *weights] if "float" in dtype}
    if program.is_double and floats != {"float64"}:
        report.note("info", "float32 parts are computed as float64, as others are float64", code="element-type")
    if "float16" in weights:
        bits = 64 if program.is_double else 32
        report.note("info", f"16-bit weights become {bits}-bit ones, which hold them exactly", code="element-type")


def _names_of_outputs(program: Program) -> list[str]:
    """Return the keys of a returned dictionary, without those whose value is `None`, which Lua does not return.

    A value that is a list is several outputs. Which of them are of which key is not known then: all keys are returned.
    """
    names = program.output_names
    if len(names) != len(program.outputs):
        return names
    return [name for name, output in zip(names, program.outputs) if output is not None]


# The record of the state dict


def _state_record(layer: LuaLayer, program: Program, arrays: dict[str, Any], scalar_outputs: list[int]) -> Table:
    """Return the record that the root object has for the way back to PyTorch, a table of up to four fields.

    `keys` are all keys of the state dict in order; `tied` has pairs of another key of a tensor and its first key;
    `other` has pairs of a key and a tensor that no layers hold whole; `scalars`, only there if there are any, the
    numbers of the outputs without dimensions.

    Args:
        layer: the whole model.
        program: has the keys in the order of the state dict, and which are names of one tensor.
        arrays: the tensors of the state dict.
        scalar_outputs: numbers of the outputs without dimensions, from 1.
    """
    keys_of_layers = _held_whole(layer, arrays)
    not_in_layers = {key: array for key, array in arrays.items() if key not in keys_of_layers}
    fields: dict[str, Any] = {
        "keys": Table.from_list(list(program.order)),
        "tied": Table.of(list(program.aliases.items())),
        "other": Table.of([(key, _recordable(array)) for key, array in not_in_layers.items()]),
    }
    if scalar_outputs:  # Lua's numbers are doubles
        fields["scalars"] = Table.from_list([float(number) for number in scalar_outputs])
    return Table.of(fields)


def _held_whole(layer: LuaLayer, arrays: dict[str, Any]) -> set[str]:
    """Return the keys of the tensors all of whose elements are held by layers, each of which may hold a part.

    Args:
        layer: the whole model.
        arrays: the tensors of the state dict, by their keys.
    """
    parts: dict[str, set[tuple[int, int]]] = {}
    for inner in walk(layer):
        for ref in inner.weights.values():
            parts.setdefault(ref.key, set()).add((ref.start, ref.start + prod(ref.size)))
    return {key for key, ranges in parts.items() if covered(ranges) == arrays[key].size}


def _recordable(array: Any) -> Tensor | Table:
    """Return a tensor for the record; Lua has none without dimensions, so a table represents it."""
    if array.ndim:
        return Tensor.from_numpy(array)
    return Table.of({"scalar": Tensor.from_numpy(array.reshape(1))})
