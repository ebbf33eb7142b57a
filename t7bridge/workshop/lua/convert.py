"""Conversion of a whole module: traced, built, structured, and turned into a Torch object."""

from __future__ import annotations

from math import prod
from typing import Any

from attrs import field

from ...data import define
from ...errors import UnsupportedError
from ...graph.dtypes import FLOAT32, FLOAT64
from ...graph.lua import Table, TorchObject
from ...graph.tensor import Tensor, covered
from ...report import Note, Report
from . import operations as _operations
from .build import OPERATIONS, Builder
from .calls import ProgramBuilder
from .exporting import Freedom
from .layers import LuaLayer, LuaNode, structured, walk
from .objects import ROOT_FIELD, ObjectMaker
from .sizes import ChangedError, Check, checked_by_layers, checks_of, guard, guard_of_pair, texts_of
from .source import PACKAGE, classes_source, flatten, lua_source
from .trace import Program, state_arrays, trace

__all__ = ["LuaModel", "convert_module"]
_ = _operations  # registers the operations


@define(eq=False)
class LuaModel:
    """A PyTorch module as a Lua model.

    Attributes:
        layer: the whole model, as constructor calls.
        root: the same as a Torch object, with its weights.
        program: the traced program.
        notes: notes for the user.
        tensors: number of tensors of the state dict.
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
    """Convert a PyTorch module to a Lua model, with `inference` one without the tensors of gradients.

    Raises:
        UnsupportedError: see `save_module`.
    """
    program, (ins, outs, builder, checks) = _traced(module, inputs, allow)
    checked = [checked_by_layers(step, builder.steps) for step in ins]
    program.texts = texts_of(checks)
    has_guards = _with_guards(checks, checked, ins, outs, builder)
    layer = structured(ins, builder.steps, outs)
    flatten(layer, program)
    arrays = state_arrays(program)
    floats = {array.dtype.str[1:] for array in arrays.values() if array.dtype.kind == "f"}
    is_training = bool(getattr(module, "training", False)) and not inference
    maker = ObjectMaker(FLOAT64 if program.is_double else FLOAT32, arrays, is_training, not inference)
    root = maker.make(layer)
    root[ROOT_FIELD] = _state_record(layer, program, arrays, builder.scalars)
    report = Report()
    for text, warning in builder.notes.items():
        report.note("warning" if warning else "info", text, code="left-out" if warning else "lua")
    if any(dimensions and not dimensions[0].step for dimensions in checks):
        text = "the size of the batch is fixed: the module does not let its first dimension vary"
        report.note("info", text, code="fixed-batch")
    if has_guards:
        text = f"the sizes of the inputs are {', '.join(program.texts)}; Lua refuses others"
        report.note("info", text, code="fixed-sizes")
    for path, kind, text in program.notes:
        report.note("warning", text, path, "type", code="left-out", class_name=kind)
    if program.output_names:
        names = ", ".join(name for name, item in _named_outputs(program) if item is not None)
        text = f"the module returns a dictionary; the Lua model returns its values in order: {names}"
        report.note("info", text, code="order")
    if any(inner.name.startswith(PACKAGE) for inner in walk(layer)):
        text = "layers.lua has classes that nn lacks: `dofile` it before torch.load of the model"
        report.note("info", text, code="lua")
    kinds = floats.union(f"f{program.dtypes[name][5:]}" for name in program.inputs if "float" in program.dtypes[name])
    if program.is_double and kinds - {"f8", "f64"}:
        report.note("info", "float32 parts are computed as float64, as others are float64", code="element-type")
    if "f2" in floats:
        report.note("info", "16-bit weights become 32-bit ones, which hold them exactly", code="element-type")
    return LuaModel(layer, root, program, report.notes, len(arrays))


def _traced(module: Any, inputs: tuple[Any, ...], allow: tuple[str, ...]) -> tuple[Program, Any]:
    """Trace and build a module.

    Where that fails, as PyTorch decomposes some operations for given sizes only, it is traced again with fewer open
    sizes.

    Raises:
        UnsupportedError: it cannot be built for the example either.
    """
    first: UnsupportedError | None = None
    for freedom in Freedom:
        program = trace(module, inputs, _known(allow), freedom)
        try:
            return program, _built(program, allow)
        except UnsupportedError as error:
            first = first or error
            if not program.sizes.example:
                break
    assert first is not None
    raise first


def _named_outputs(program: Program) -> list[tuple[str, Any]]:
    """Return the keys of a returned dictionary with their values; those of lists inside are not told apart."""
    names, outputs = program.output_names, program.outputs
    return list(zip(names, outputs if len(names) == len(outputs) else names))


def _built(program: Program, allow: tuple[str, ...]) -> tuple[list[LuaNode], list[LuaNode], Builder, list[list[Check]]]:
    """Build a program: again whenever more is known of the sizes that it can take.

    Returns:
        The input steps, the output steps, the builder, and the sizes of each input.
    """
    while True:
        program.settle()
        checks = checks_of([*program.inputs.values()], program.sizes)
        if checks is None:
            continue
        builder = ProgramBuilder(program, allow)
        try:
            return *builder.run(), builder, checks
        except ChangedError:
            continue


def _with_guards(
    checks: list[list[Check]], checked: list[set[int]], inputs: list[LuaNode], outputs: list[LuaNode], builder: Builder
) -> bool:
    """Put layers that check its sizes behind each input, where any are refused; return whether there are any."""
    has_guards = False
    for number, step in enumerate(inputs):
        layer = guard(checks[number], number, checked[number])
        if layer is not None:
            _insert(layer, [], step, builder.steps, outputs)
            has_guards = True
    for number, step in enumerate(inputs):
        for check in checks[number]:
            if check.equal is not None and check.equal[0] != number:
                other = inputs[check.equal[0]]
                pair = guard_of_pair(len(step.shape), check.place, len(other.shape), check.equal[1])
                _insert(pair, [other], step, builder.steps, outputs)
                has_guards = True
    return has_guards


def _insert(
    layer: LuaLayer, others: list[LuaNode], step: LuaNode, steps: list[LuaNode], outputs: list[LuaNode]
) -> None:
    """Put a layer behind an input, or behind its copy from whole numbers, as layers are of the model's own type.

    Args:
        layer: takes the input, or a table of it and others.
        others: inputs that the layer takes besides.
        step: the input.
        steps: of the program.
        outputs: of the program.
    """
    sources = [_copy_of(node, steps) for node in (step, *others)]
    last = sources[0]
    made = LuaNode(layer, sources, step.shape)
    for user in steps:
        user.inputs = [made if source is last else source for source in user.inputs]
    outputs[:] = [made if source is last else source for source in outputs]
    steps.insert(max(steps.index(source) + 1 if source in steps else 0 for source in sources), made)


def _copy_of(step: LuaNode, steps: list[LuaNode]) -> LuaNode:
    """Return the copy of an input from whole numbers, if there is one, or the input."""
    return next((user for user in steps if user.inputs == [step] and _is_copy(user)), step)


def _is_copy(step: LuaNode) -> bool:
    return step.layer is not None and step.layer.name == "nn.Copy"


def _known(allow: tuple[str, ...]) -> frozenset[str]:
    """Return the operations that are not decomposed."""
    return frozenset(name for name, entry in OPERATIONS.items() if not entry.package or entry.package in allow)


def _state_record(layer: LuaLayer, program: Program, arrays: dict[str, Any], scalars: list[int]) -> Table:
    """Return the root's record: order of the keys, tied keys, tensors that no layer holds, scalar outputs."""
    held = _held_whole(layer, arrays)
    keys = [*program.state, *program.aliases]
    order = [key for key in program.order if key in keys]
    others = [(key, _recordable(array)) for key, array in arrays.items() if key not in held]
    return Table.of(
        {
            "keys": Table.from_list(order),
            "tied": Table.of(list(program.aliases.items())),
            "other": Table.of(others),
            **({"scalars": Table.from_list([float(place) for place in scalars])} if scalars else {}),
        }
    )


def _held_whole(layer: LuaLayer, arrays: dict[str, Any]) -> set[str]:
    """Return the keys of the tensors all of whose elements are held by layers."""
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
