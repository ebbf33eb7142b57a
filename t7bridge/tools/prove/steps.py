"""The layers of a Lua model in the order in which Lua ran them, each with its recorded inputs and outputs.

Structure alone decides what a layer's input was: the previous layer's `output` in a Sequential, the same value for all
branches of a Concat, `data.input` of a node in nngraph. Sources: nn 8726825, nngraph 3ed3b9b `gmodule.lua`,
rnn ba937a0 `Sequencer.lua`, `LSTM.lua`, `GRU.lua`, `Recursor.lua`. May import graph, errors, limits and nn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import field

from ...data import define
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits
from ...nn.fields import items_of, lookup
from ...nn.plan.places import is_module
from ...nn.registry import graph_modules, layer_of
from .values import (
    Recorded,
    element,
    grad_input_of,
    merged,
    narrow,
    output_of,
    recorded,
    region,
    same_values,
    select,
    zeros_like,
)

RESTORING = frozenset(("MulConstant", "AddConstant"))
"""In-place layers that undo their change of the input when they run backwards. Source: nn 8726825 `MulConstant.lua`."""
_VIEWS_NAMES = """
View Reshape Identity Contiguous Squeeze Unsqueeze Transpose Select Narrow SplitTable SelectTable FlattenTable
NarrowTable Replicate Copy Dropout GradientReversal L1Penalty Collapse ZipTable ReverseTable Print Padding
ConcatTable ParallelTable Unfold DontCast NaN Profile MixtureTable Recursor Sequencer Convert
"""
VIEWS = frozenset(_VIEWS_NAMES.split())
"""Layers whose output may be the very memory of their input without being a change of it."""


@define(eq=False)
class Step:
    """One run of one layer.

    Attributes:
        path: the layer's path in the file.
        obj: the layer.
        input: what it was given; `None` where the file does not hold it.
        output: what it returned.
        grad_output: the gradient that it was given backwards.
        grad_input: the gradient that it returned.
        glue: of a container, the outputs of the modules inside, which it only puts together; else `None`.
        whole: whether this is a container as a whole, whose modules have steps of their own.
        last: whether the module does not run again later, so that its fields are those of this run.
        writes: the memory that the run wrote: storage, first and last element.
    """

    path: str
    obj: TorchObject
    input: Recorded
    output: Recorded
    grad_output: Recorded = None
    grad_input: Recorded = None
    glue: list[Recorded] | None = None
    whole: bool = False
    last: bool = True
    writes: list[tuple[int, int, int]] = field(factory=list)


@define(eq=False)
class Visit:
    """A module to be entered, with what is known of its input.

    Attributes:
        path: of the module.
        obj: the module.
        input: what it was given.
        grad_output: the gradient that it was given.
        walk: the walk over the whole model.
        number: in a sequence, the step from 0 and how many there are; `None` elsewhere.
    """

    path: str
    obj: TorchObject
    input: Recorded
    grad_output: Recorded
    walk: Walk
    number: tuple[int, int] | None = None

    def inner(self, path: str, obj: TorchObject, given: Recorded, grad_output: Recorded = None) -> Visit:
        """A module inside, in the same step of a sequence."""
        return Visit(path, obj, given, grad_output, self.walk, self.number)

    def output_of(self, obj: TorchObject) -> Recorded:
        """The output of a module inside, after it ran; `None` where it runs again later and forgets this one."""
        if not self.walk.is_last(obj):
            return None
        if self.number is not None and base_name(obj.class_name) in _CELLS and obj.get("train") is not False:
            outputs = obj.get("outputs")
            first = _first_step(obj, self.number[1])
            return recorded(outputs.get(float(first + self.number[0]))) if isinstance(outputs, Table) else None
        return output_of(obj)


@define(eq=False)
class Walk:
    """Counts of how often each module runs, and has run so far.

    Attributes:
        total: by the id of the module; empty where that is not known yet.
        done: the same, so far.
    """

    total: dict[int, int] = field(factory=dict)
    done: dict[int, int] = field(factory=dict)

    def knows(self, obj: TorchObject) -> bool:
        """Return whether a recurrent module is a sequence by itself."""
        return base_name(obj.class_name) in (
            "Sequencer",
            "BiSequencer",
            "BiSequencerLM",
            "Repeater",
            "SeqLSTM",
            "SeqGRU",
        )

    def is_last(self, obj: TorchObject) -> bool:
        """Return whether a module has run for the last time; cells keep their outputs of all steps."""
        if base_name(obj.class_name) in _CELLS and obj.get("train") is not False:
            return True
        return self.done.get(id(obj), 0) >= self.total.get(id(obj), 0)


Flow = Callable[[Visit], Iterator["Visit | Step"]]


def base_name(class_name: str) -> str:
    """The name of a class without its package: `SpatialConvolution` of `cudnn.SpatialConvolution`."""
    return class_name.rpartition(".")[2]


def steps_of(
    root: TorchObject,
    path: str = "root",
    given: Recorded = None,
    grad_output: Recorded = None,
    limits: Limits = DEFAULT_LIMITS,
    undone: bool = False,
) -> list[Step]:
    """List the runs of a model's layers in order.

    Args:
        root: the model.
        path: its own path.
        given: its input, where that is known.
        grad_output: the gradient that it was given, where that is known.
        limits: `work` bounds the number of steps.
        undone: whether the last pass was a backward, in which the layers of `RESTORING` put their inputs back.

    Raises:
        LimitError: there are too many.
    """
    first = Walk()
    _follow(root, path, given, grad_output, limits, first)
    steps = _follow(root, path, given, grad_output, limits, Walk(first.done))
    for step in steps:
        if undone and may_be_undone(step):
            step.output = None
            step.writes.clear()
    return steps


def may_be_undone(step: Step) -> bool:
    """Return whether a backward has put back what a layer changed in place, if there was one after the last forward."""
    restores = base_name(step.obj.class_name) in RESTORING and step.obj.get("inplace") is True
    return restores and grad_input_of(step.obj) is not None


def _follow(
    root: TorchObject, path: str, given: Recorded, grad_output: Recorded, limits: Limits, walk: Walk
) -> list[Step]:
    found: list[Step] = []
    stack: list[Iterator[Visit | Step]] = [iter([Visit(path, root, given, grad_output, walk)])]
    active: list[TorchObject | None] = [None]
    budget = Budget(limits, "following the runs of the layers")
    written: set[int] = set()
    while stack:
        item = next(stack[-1], None)
        if item is None:
            stack.pop()
            active.pop()
            continue
        budget.spend(STEPS_PER_NODE)
        if isinstance(item, Step):
            if walk.total:
                if not item.last:
                    item.output = item.grad_input = None
                _note_writes(item, written)
            found.append(item)
        elif not any(item.obj is other for other in active):
            walk.done[id(item.obj)] = walk.done.get(id(item.obj), 0) + 1
            stack.append(_flow_of(item.obj)(item))
            active.append(item.obj)
    return found


def _note_writes(step: Step, written: set[int]) -> None:
    """Find out which memory a run changed; what hands its input through changes none."""
    taken = {id(tensor.storage): tensor for tensor in _tensors(step.input)}
    in_place = step.obj.get("inplace") is True
    is_view = base_name(step.obj.class_name) in VIEWS
    for tensor in _tensors(step.output):
        shared = id(tensor.storage) in taken
        if shared and not in_place and (is_view or step.glue is not None or step.whole):
            continue
        if step.whole and id(tensor.storage) in written:
            continue  # the output of a module inside
        step.writes.append(region(tensor))
    if in_place:
        # In older releases in-place layers had memory of their own once a model had changed its type.
        source = step.input[0] if isinstance(step.input, list) and step.input else step.input
        target = step.output
        both = isinstance(source, Tensor) and isinstance(target, Tensor) and source.storage is not target.storage
        if both and source.numel == target.numel and same_values(source, target):
            step.writes.append(region(source))
    written.update(storage for storage, _, _ in step.writes)


def _tensors(value: Recorded) -> list[Tensor]:
    from .values import leaves

    return list(leaves(value))


# How the containers pass values on


def _children(visit: Visit, name: str = "modules") -> list[tuple[str, TorchObject]]:
    items = items_of(visit.obj.get(name)) or []
    found = [(f"{visit.path}.{name}[{number}]", item) for number, item in enumerate(items, 1)]
    if not found and is_module(visit.obj.get("module")):
        found = [(f"{visit.path}.module", visit.obj.get("module"))]
    return [(path, item) for path, item in found if isinstance(item, TorchObject)]


def _leaf(visit: Visit) -> Iterator[Visit | Step]:
    obj = visit.obj
    last = visit.walk.is_last(obj)
    # Where a recurrent module stands in its sequence is known for the cells only.
    given = None if isinstance(obj.get("sharedClones"), Table) and not visit.walk.knows(obj) else visit.input
    yield Step(visit.path, obj, given, output_of(obj), visit.grad_output, grad_input_of(obj), last=last)


def _as_whole(visit: Visit, glue: list[Recorded] | None = None) -> Step:
    step = next(_leaf(visit))
    assert isinstance(step, Step)
    step.glue, step.whole = glue, True
    return step


def _chain(visit: Visit) -> Iterator[Visit | Step]:
    kids = _children(visit)
    given = visit.input
    for place, (path, child) in enumerate(kids):
        after = visit.grad_output if place + 1 == len(kids) else grad_input_of(kids[place + 1][1])
        yield visit.inner(path, child, given, after)
        given = visit.output_of(child)


def _same_for_all(visit: Visit) -> Iterator[Visit | Step]:
    kids = _children(visit)
    for place, (path, child) in enumerate(kids):
        yield visit.inner(path, child, visit.input, element(visit.grad_output, place))


def _concat(visit: Visit) -> Iterator[Visit | Step]:
    kids = _children(visit)
    sizes = [output_of(child) for _, child in kids]
    outputs: list[Recorded] = []
    dim, start = visit.obj.get("dimension"), 0
    exact = base_name(visit.obj.class_name) == "Concat"
    for (path, child), output in zip(kids, sizes):
        after = None
        if exact and isinstance(dim, float) and isinstance(output, Tensor) and 1 <= dim <= len(output.size):
            after = narrow(visit.grad_output, int(dim) - 1, start, output.size[int(dim) - 1])
            start += output.size[int(dim) - 1]
        yield visit.inner(path, child, visit.input, after)
        outputs.append(visit.output_of(child))
    yield _as_whole(visit, outputs if exact else None)


def _by_element(visit: Visit) -> Iterator[Visit | Step]:
    for place, (path, child) in enumerate(_children(visit)):
        yield visit.inner(path, child, element(visit.input, place), element(visit.grad_output, place))


def _parallel(visit: Visit) -> Iterator[Visit | Step]:
    dim = visit.obj.get("inputDimension")
    for place, (path, child) in enumerate(_children(visit)):
        given = select(visit.input, int(dim) - 1, place) if isinstance(dim, float) else None
        yield visit.inner(path, child, given)
    yield _as_whole(visit)


def _bottle(visit: Visit) -> Iterator[Visit | Step]:
    inside = visit.obj.get("nInputDim")
    for path, child in _children(visit):
        given = visit.input
        if isinstance(given, Tensor):
            dims = len(given.size) - int(inside if isinstance(inside, float) else 2) + 1
            given = merged(given, dims) if dims > 1 else given
        yield visit.inner(path, child, given)
    yield _as_whole(visit)


def _graph(visit: Visit) -> Iterator[Visit | Step]:
    paths: dict[int, str] = {}
    for child in graph_modules(visit.obj):
        paths.setdefault(id(child.value), visit.path + child.path)
    begin = lookup(visit.obj, "innode.data")
    known = recorded(begin.get("input")) if isinstance(begin, Table) else None
    given = element(known, 0) if isinstance(known, list) and len(known) == 1 else known
    for node in items_of(visit.obj.get("forwardnodes")) or []:
        data = lookup(node, "data")
        module = data.get("module") if isinstance(data, Table) else None
        if not isinstance(module, TorchObject):
            continue
        taken = recorded(data.get("input"))
        after = recorded(data.get("gradOutput"))
        one = element(taken, 0) if isinstance(taken, list) and len(taken) == 1 else taken
        back = element(after, 0) if isinstance(after, list) and len(after) == 1 else None
        yield visit.inner(paths.get(id(module), visit.path), module, one, back)
    known = visit.input if visit.input is not None else given
    yield _as_whole(visit.inner(visit.path, visit.obj, known, visit.grad_output))


def _sequence(value: Recorded) -> list[Recorded]:
    """The steps of a sequence: the elements of a table, or the slices of a tensor along its first dimension."""
    if isinstance(value, list):
        return value
    if isinstance(value, Tensor) and value.size and value.size[0] <= 10_000:
        return [select(value, 0, index) for index in range(value.size[0])]
    return []


def _sequencer(visit: Visit) -> Iterator[Visit | Step]:
    outputs = _sequence(visit.output_of(visit.obj))
    inputs = _sequence(visit.input)
    kids = _children(visit)
    if kids and outputs:
        path, child = kids[0]
        # In evaluation one module runs all steps; what it keeps is of the last.
        steps = range(len(outputs)) if child.get("train") is not False else [len(outputs) - 1]
        for number in steps:
            yield Visit(path, child, element(inputs, number), None, visit.walk, (number, len(outputs)))
    yield _as_whole(visit)


def _clone(obj: TorchObject, path: str, number: int) -> tuple[str, TorchObject] | None:
    """The module that ran a step: its shared clone in training, the one module in evaluation; under the path of the
    latter, whose weights they share.
    """
    found = obj.get("recurrentModule")
    inside = items_of(obj.get("modules")) or []
    at = next((f".modules[{place}]" for place, item in enumerate(inside, 1) if item is found), ".recurrentModule")
    if obj.get("train") is not False:
        clones = lookup(obj, "sharedClones")
        found = clones.get(float(number)) if isinstance(clones, Table) else None
    return (path + at, found) if isinstance(found, TorchObject) else None


_WHOLE_SEQUENCES = frozenset(("Sequencer", "BiSequencer", "BiSequencerLM", "Repeater", "SeqLSTM", "SeqGRU"))
_CELLS = {"LSTM": ("outputs", "cells"), "FastLSTM": ("outputs", "cells"), "GRU": ("outputs",)}
"""Cells of rnn, and where they keep the states that they pass from step to step."""


def _first_step(obj: TorchObject, count: int) -> int:
    """Return the cell's number of the first of the last `count` steps."""
    done = obj.get("step")
    return max(int(done) - count, 1) if isinstance(done, float) and 1 < done < 1e6 else 1


def _cell(visit: Visit) -> Iterator[Visit | Step]:
    """One step of a cell; outside of sequences the last that it took."""
    obj = visit.obj
    number, count = visit.number or (0, 1)
    at = _first_step(obj, count) + number
    clone = _clone(obj, visit.path, at)
    states: list[Recorded] = []
    for name in _CELLS[base_name(obj.class_name)]:
        table = obj.get(name)
        kept = table if isinstance(table, Table) else Table()
        before = recorded(kept.get(float(at - 1)))
        if visit.number is None and obj.get("step") == 1.0:
            before = None  # it has forgotten which step it took
        elif at == 1 and obj.get("userPrevOutput") is None:
            before = zeros_like(recorded(kept.get(1.0)))
        elif obj.get("train") is False:
            before = None  # evaluation keeps no states but the last
        states.append(before)
    if clone is not None:
        yield visit.inner(*clone, [visit.input, *states])


def _recursor(visit: Visit) -> Iterator[Visit | Step]:
    number, count = visit.number or (0, 1)
    clone = _clone(visit.obj, visit.path, _first_step(visit.obj, count) + number)
    if clone is not None:
        yield visit.inner(*clone, visit.input)


def _opaque(visit: Visit) -> Iterator[Visit | Step]:
    """A container whose way of passing values is not known: only the whole is a step, and all inside is not."""
    yield _as_whole(visit)


_FLOWS: dict[str, Flow] = {
    **dict.fromkeys(
        ("Sequential", "Decorator", "NaN", "Profile", "GPU", "Serial", "DontCast", "FireModule", "SpatialLPPooling"),
        _chain,
    ),
    "ConcatTable": _same_for_all,
    "Concat": _concat,
    "DepthConcat": _concat,
    "ParallelTable": _by_element,
    "MapTable": _by_element,
    "Parallel": _parallel,
    "Bottle": _bottle,
    "gModule": _graph,
    "Sequencer": _sequencer,
    "Recursor": _recursor,
    **dict.fromkeys(("LSTM", "FastLSTM", "GRU"), _cell),
}


def _flow_of(obj: TorchObject) -> Flow:
    flow = _FLOWS.get(base_name(obj.class_name))
    if flow is _cell and isinstance(obj.get("weight"), Tensor):
        return _leaf  # the LSTM of torch-rnn takes whole sequences
    if flow is not None:
        return flow
    layer = layer_of(obj.class_name)
    inside: Value = next(layer.children(obj), None) if layer is not None and layer.children else None
    return _opaque if inside is not None else _leaf
