"""The runs of the layers of a Lua model in order, and the memory that they wrote.

The structure alone determines a layer's input: the previous layer's `output` in a Sequential, the same value for all
branches of a Concat, `data.input` of a node in nngraph, the step before in a sequence. Sources: nn 8726825, nngraph
3ed3b9b `gmodule.lua`, rnn ba937a0 `AbstractRecurrent.lua`, `Sequencer.lua`, `BiSequencer.lua`, `BiSequencerLM.lua`,
`Repeater.lua`, `Recursor.lua`, `LSTM.lua`, `GRU.lua`, `Recurrent.lua`, `Recurrence.lua`, `MaskZero.lua`.
May import graph and nn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve, field

from ...data import define
from ...graph.lua import Table, TorchObject, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor, contiguous
from ...lazy import np
from ...limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits
from ...nn import flows
from ...nn.fields import items_of, lookup
from ...nn.graphs import graph_modules
from ...nn.mapping import LAYERS, Row
from ...nn.places import is_module
from ...nn.registry import layer_of, traits_of
from .recorded import (
    Recorded,
    alone,
    element,
    grad_input_of,
    leaves,
    merged,
    narrow,
    output_of,
    overlap,
    recorded,
    region,
    same_values,
    select,
    zeros_like,
)

STEP_BEFORE = "continues from the step before"
_RESTORING = frozenset(("MulConstant", "AddConstant"))
"""In-place layers that undo their change of the input when they run backwards. Source: nn 8726825 `MulConstant.lua`."""
_WHOLE_SEQUENCES = frozenset(("SeqLSTM", "SeqLSTMP", "SeqGRU", "SeqBRNN"))
_SEQUENCES = _WHOLE_SEQUENCES | {"Sequencer", "BiSequencer", "BiSequencerLM", "Repeater"}
"""Recurrent modules with whole sequences as input."""
_MOST_STEPS = 10_000
"""Steps of a sequence that is one tensor."""


@define(eq=False)
class Run:
    """One run of one layer.

    Attributes:
        path: the layer's path in the file.
        obj: the layer.
        input: its input; `None` if missing from the file.
        output: its output.
        grad_output: the gradient with respect to its output.
        grad_input: the gradient with respect to its input.
        glue: of a container, the outputs of the modules inside, which it only combines; otherwise `None`.
        whole: whether this is a container as a whole, whose modules have runs of their own.
        last: whether the module does not run again later, so that its fields are those of this run.
        writes: the memory that it wrote.
        reason: why the input is missing, if known.
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
    reason: str = ""

    @property
    def name(self) -> str:
        """The class without its package."""
        return base_name(self.obj.class_name)

    @property
    def in_place(self) -> bool:
        """True if the layer works in the memory of its input."""
        return self.obj.get("inplace") is True


@define(eq=False)
class Walk:
    """What is known while a model is followed.

    Attributes:
        total: how often each module runs, by its id; empty if not yet known.
        undone: whether the last pass was a backward, in which some in-place layers restored their inputs.
        done: how often each module ran so far.
        lost: storages of outputs that are missing from the file.
    """

    total: dict[int, int] = field(factory=dict)
    undone: bool = False
    done: dict[int, int] = field(factory=dict)
    lost: set[int] = field(factory=set)
    _in_place_of: dict[int, tuple[Tensor, Tensor]] = field(factory=dict)

    def is_last(self, obj: TorchObject) -> bool:
        """Return whether a module has run for the last time; recurrent ones keep their outputs of all steps."""
        kept = is_recurrent(obj) and obj.get("train") is not False
        return kept or self.done.get(id(obj), 0) >= self.total.get(id(obj), 0)

    def kept(self, value: Recorded, obj: TorchObject | None = None) -> Recorded:
        """Return a recorded value, or a lost tensor in place of one that `obj` changed and a backward restored."""
        if isinstance(value, list):
            return [self.kept(item) for item in value]
        if not self.undone or not isinstance(value, Tensor):
            return value
        if id(value) not in self._in_place_of:
            if obj is None or not may_be_undone(obj):
                return value
            storage = Storage.from_array(np.zeros(value.numel, value.numpy().dtype))
            self.lost.add(id(storage))
            made = Tensor(value.element, storage, value.size, contiguous(value.size))
            self._in_place_of[id(value)] = value, made
        return self._in_place_of[id(value)][1]


@define(eq=False)
class Visit:
    """A module to visit, with its input as far as it is known.

    Attributes:
        path: of the module.
        obj: the module.
        input: its input.
        grad_output: the gradient with respect to its output.
        walk: the walk over the whole model.
        number: in a sequence, the step from 0 and the number of steps; `None` elsewhere.
        before: the module's output one step before, if a sequence keeps a copy of it.
        names: the paths of modules inside that differ from their places, by id.
    """

    path: str
    obj: TorchObject
    input: Recorded
    grad_output: Recorded
    walk: Walk
    number: tuple[int, int] | None = None
    before: Recorded = None
    names: dict[int, str] = field(factory=dict)

    def inner(self, path: str, obj: TorchObject, given: Recorded, grad_output: Recorded = None) -> Visit:
        """A module inside, in the same step of a sequence."""
        path = self.names.get(id(obj), path)
        return evolve(self, path=path, obj=obj, input=given, grad_output=grad_output, before=None)

    @property
    def children(self) -> list[tuple[str, TorchObject]]:
        """The modules inside, with their paths."""
        found = [(f"{self.path}.modules[{at}]", item) for at, item in enumerate(_modules_of(self.obj), 1)]
        if not found and is_module(self.obj.get("module")):
            found = [(f"{self.path}.module", self.obj.get("module"))]
        return [(path, item) for path, item in found if isinstance(item, TorchObject)]

    @property
    def step(self) -> int:
        """The step of a recurrent module, from 1."""
        number, count = self.number or (0, 1)
        done = self.obj.get("step")
        return number + (max(int(done) - count, 1) if isinstance(done, float) and 1 < done < 1e6 else 1)

    @property
    def is_unknown_step(self) -> bool:
        """True outside of sequences where the steps of a recurrent module are not recorded."""
        return self.number is None and self.obj.get("step") == 1.0

    def output_of(self, obj: TorchObject) -> Recorded:
        """Return the output of a module inside, after it ran; `None` if it runs again later and overwrites this one."""
        if not self.walk.is_last(obj):
            return None
        if self.number is not None and is_recurrent(obj):
            if obj.get("train") is not False:
                return _state(obj, "outputs", evolve(self, obj=obj).step)
            after = obj.get("step")
            last = _state(obj, "outputs", int(after) - 1) if isinstance(after, float) else None
            if isinstance(last, Tensor):  # backward sets `output` to that of the first step
                return self.walk.kept(last, obj)
        return self.walk.kept(output_of(obj), obj)

    def grad_input_of(self, obj: TorchObject) -> Recorded:
        """Return the gradient with respect to the input of a module inside; unknown in a sequence."""
        return None if self.number is not None and is_recurrent(obj) else grad_input_of(obj)

    def run(self) -> Run:
        """Return the module as one run."""
        obj, last = self.obj, self.walk.is_last(self.obj)
        recurrent = is_recurrent(obj)
        given = None if recurrent and base_name(obj.class_name) not in _SEQUENCES else self.input
        output = self.output_of(obj) if recurrent else self.walk.kept(output_of(obj), obj)
        if output is None and last:
            output = _memory_of(obj, given)
        return Run(self.path, obj, given, output, self.grad_output, self.grad_input_of(obj), last=last)

    def whole(self, glue: list[Recorded] | None = None) -> Run:
        """Return a container as a run, in addition to those of its modules."""
        run = evolve(self.run(), glue=glue, whole=True)
        if self.number is not None and _keeps_state(self.obj):
            run.input, run.reason = None, STEP_BEFORE
        return run


def runs(
    root: TorchObject,
    path: str = "root",
    given: Recorded = None,
    grad_output: Recorded = None,
    limits: Limits = DEFAULT_LIMITS,
    undone: bool = False,
) -> tuple[list[Run], set[int]]:
    """List the runs of a model's layers in order.

    Args:
        root: the model.
        path: its own path.
        given: its input, if known.
        grad_output: the gradient with respect to its output, if known.
        limits: `work` bounds the number of runs.
        undone: whether the last pass was a backward, in which some in-place layers restored their inputs.

    Returns:
        The runs, and the ids of the storages of outputs that are missing from the file.

    Raises:
        LimitError: there are too many.
    """
    first = Walk(undone=undone)
    _follow(Visit(path, root, given, grad_output, first), limits)
    walk = Walk(first.done, undone)
    return _follow(Visit(path, root, given, grad_output, walk), limits), walk.lost


def _follow(start: Visit, limits: Limits) -> list[Run]:
    walk, budget = start.walk, Budget(limits, "following the runs of the layers")
    found: list[Run] = []
    written: set[int] = set()
    stack: list[tuple[int, Iterator[Visit | Run]]] = [(0, iter([start]))]
    inside: set[int] = set()
    while stack:
        item = next(stack[-1][1], None)
        if item is None:
            inside.discard(stack.pop()[0])
            continue
        budget.spend(STEPS_PER_NODE)
        if isinstance(item, Run):
            if not item.last:
                item.output = item.grad_input = None
            _note_writes(item, written, walk.lost)
            found.append(item)
        elif id(item.obj) not in inside:
            walk.done[id(item.obj)] = walk.done.get(id(item.obj), 0) + 1
            stack.append((id(item.obj), _flow_of(item.obj)(item)))
            inside.add(id(item.obj))
    return found


def _note_writes(run: Run, written: set[int], lost: set[int]) -> None:
    """Determine the memory that a run changed: not that of a view of its input."""
    taken = [region(tensor) for tensor in leaves(run.input)]
    for tensor in leaves(run.output):
        here = region(tensor)
        is_view = not run.in_place and any(overlap(here, one) for one in taken)
        if not is_view and not (run.whole and here[0] in written):  # which is the output of a module inside
            run.writes.append(here)
    # In older releases in-place layers had memory of their own once a model had changed its type.
    source, target = run.input[0] if isinstance(run.input, list) and run.input else run.input, run.output
    if run.in_place and isinstance(source, Tensor) and isinstance(target, Tensor):
        apart = source.storage is not target.storage and id(target.storage) not in lost
        if apart and source.numel == target.numel and same_values(source, target):
            run.writes.append(region(source))
    written.update(storage for storage, _, _ in run.writes)


class Memory:
    """Which recorded values are unchanged since a layer read or wrote them.

    In-place layers and buffers that several layers share overwrite outputs that earlier layers recorded. Storages and
    the order of the runs show which ones.

    Args:
        runs: in order.
        lost: ids of storages of outputs that are missing from the file.
    """

    def __init__(self, runs: list[Run], lost: set[int]) -> None:
        self._lost = lost
        self._writes: dict[int, list[tuple[int, tuple[int, int, int]]]] = {}
        self._gradients: dict[int, set[int]] = {}
        for number, run in enumerate(runs):
            for here in run.writes:
                self._writes.setdefault(here[0], []).append((number, here))
            passed_on = set() if run.in_place else {id(tensor.storage) for tensor in leaves(run.grad_output)}
            for tensor in [] if run.whole else leaves(run.grad_input):
                if id(tensor.storage) not in passed_on:
                    self._gradients.setdefault(id(tensor.storage), set()).add(number)

    def overwritten(self, value: Recorded, run: int) -> bool:
        """Return whether a run after this one changed the memory of any tensor of a value."""
        return any(
            id(tensor.storage) in self._lost
            or any(at > run and overlap(here, region(tensor)) for at, here in self._writes.get(id(tensor.storage), ()))
            for tensor in leaves(value)
        )

    def holds_gradients(self, output: Recorded, given: Recorded) -> bool:
        """Return whether the gradients with respect to an output and an input are in memory that one layer writes.

        Layers that work in place return the gradient in the memory in which they received it.
        """
        both = [{id(tensor.storage) for tensor in leaves(value)} for value in (output, given)]
        return not both[0] & both[1] and all(len(self._gradients.get(one, ())) <= 1 for one in both[0] | both[1])


# Modules


def base_name(class_name: str) -> str:
    """Return the name of a class without its package: `SpatialConvolution` of `cudnn.SpatialConvolution`."""
    return class_name.rpartition(".")[2]


def may_be_undone(obj: TorchObject) -> bool:
    """Return whether a backward restores the input of an in-place layer, and has run at least once."""
    restores = base_name(obj.class_name) in _RESTORING and obj.get("inplace") is True
    return restores and grad_input_of(obj) is not None


def is_recurrent(obj: TorchObject) -> bool:
    """Return whether a module keeps its outputs of all steps."""
    return isinstance(obj.get("sharedClones"), Table) and isinstance(obj.get("outputs"), Table)


def own_parameters(obj: TorchObject) -> int:
    """Count the weights in an object's own fields."""
    return sum(item.numel for item in (obj.get("weight"), obj.get("bias")) if isinstance(item, Tensor))


def _keeps_state(obj: TorchObject, depth: int = 0) -> bool:
    """Return whether a module, or one inside it, continues from the previous step."""
    name = base_name(obj.class_name)
    if is_recurrent(obj) and name != "Recursor":
        return True
    if name in _SEQUENCES or depth > 20:
        return False
    return any(_keeps_state(item, depth + 1) for item in _modules_of(obj) if isinstance(item, TorchObject))


def _memory_of(obj: TorchObject, given: Recorded) -> Recorded:
    """Return the output of an in-place layer whose own field was cleared: its input's memory."""
    if obj.get("inplace") is not True:
        return None
    return given[0] if isinstance(given, list) and given else given


def _modules_of(obj: Value) -> list[Value]:
    return items_of(obj.get("modules")) or [] if isinstance(obj, TorchObject) else []


def _state(obj: TorchObject, name: str, step: int) -> Recorded:
    """Return what a recurrent module keeps of a step."""
    table = obj.get(name)
    return recorded(table.get(float(step))) if isinstance(table, Table) else None


# How containers pass values

Flow = Callable[[Visit], Iterator["Visit | Run"]]


def _flow_of(obj: TorchObject) -> Flow:
    name = base_name(obj.class_name)
    if name in _CELLS and isinstance(obj.get("weight"), Tensor):
        return _leaf  # the LSTM of torch-rnn takes whole sequences
    layer = layer_of(obj.class_name)
    if name in _FLOWS or layer is None or layer.children is None or not any(True for _ in layer.children(obj)):
        return _FLOWS.get(name, _leaf)
    row = layer.module_of(obj.class_name)
    is_own = isinstance(row, Row) and not row.target.startswith((LAYERS, "torch.nn."))
    # Of a container whose flow is unknown, only the whole is a run.
    return _OF_USERS.get(traits_of(row.target).flow, _unknown) if is_own else _unknown  # type: ignore[union-attr]


def _leaf(visit: Visit) -> Iterator[Visit | Run]:
    yield visit.run()


def _unknown(visit: Visit) -> Iterator[Visit | Run]:
    yield visit.whole()


def _chain(visit: Visit) -> Iterator[Visit | Run]:
    kids, given = visit.children, visit.input
    for place, (path, child) in enumerate(kids):
        after = visit.grad_output if place + 1 == len(kids) else visit.grad_input_of(kids[place + 1][1])
        yield visit.inner(path, child, given, after)
        output = visit.output_of(child)
        given = _memory_of(child, given) if output is None and visit.walk.is_last(child) else output


def _chain_and_whole(visit: Visit) -> Iterator[Visit | Run]:
    """A Sequential with a class of its own: its modules, and the whole, which is one module in PyTorch."""
    yield from _chain(visit)
    yield visit.whole()


def _same_for_all(visit: Visit) -> Iterator[Visit | Run]:
    for place, (path, child) in enumerate(visit.children):
        yield visit.inner(path, child, visit.input, element(visit.grad_output, place))


def _concat(visit: Visit) -> Iterator[Visit | Run]:
    outputs: list[Recorded] = []
    dim, start = visit.obj.get("dimension"), 0
    exact = base_name(visit.obj.class_name) == "Concat"
    for path, child in visit.children:
        after, output = None, output_of(child)
        if exact and isinstance(dim, float) and isinstance(output, Tensor) and 1 <= dim <= len(output.size):
            length = output.size[int(dim) - 1]
            after = narrow(visit.grad_output, int(dim) - 1, start, length)
            start += length
        yield visit.inner(path, child, visit.input, after)
        outputs.append(visit.output_of(child))
    yield visit.whole(outputs if exact else None)


def _by_element(visit: Visit) -> Iterator[Visit | Run]:
    for place, (path, child) in enumerate(visit.children):
        yield visit.inner(path, child, element(visit.input, place), element(visit.grad_output, place))


def _parallel(visit: Visit) -> Iterator[Visit | Run]:
    dim = visit.obj.get("inputDimension")
    for place, (path, child) in enumerate(visit.children):
        yield visit.inner(path, child, select(visit.input, int(dim) - 1, place) if isinstance(dim, float) else None)
    yield visit.whole()


def _bottle(visit: Visit) -> Iterator[Visit | Run]:
    inside, given = visit.obj.get("nInputDim"), visit.input
    for path, child in visit.children:
        if isinstance(given, Tensor):
            dims = len(given.size) - int(inside if isinstance(inside, float) else 2) + 1
            given = merged(given, dims) if dims > 1 else given
        yield visit.inner(path, child, given)
    yield visit.whole()


def _graph(visit: Visit) -> Iterator[Visit | Run]:
    paths: dict[int, str] = {}
    for child in graph_modules(visit.obj):
        paths.setdefault(id(child.value), visit.path + child.path)
    begin = lookup(visit.obj, "innode.data.input")
    for node in items_of(visit.obj.get("forwardnodes")) or []:
        module = lookup(node, "data.module")
        if isinstance(module, TorchObject):
            given = visit.walk.kept(recorded(lookup(node, "data.input")))
            after = recorded(lookup(node, "data.gradOutput"))
            back = alone(after) if isinstance(after, list) and len(after) == 1 else None
            yield visit.inner(paths.get(id(module), visit.path), module, alone(given), back)
    known = visit.input if visit.input is not None else alone(recorded(begin))
    yield evolve(visit, input=known).whole()


def _sequencer(visit: Visit) -> Iterator[Visit | Run]:
    yield from _steps(visit, _sequence(visit.input))


def _repeater(visit: Visit) -> Iterator[Visit | Run]:
    yield from _steps(visit, [visit.input] * len(_sequence(visit.output_of(visit.obj))))


def _sequence(value: Recorded) -> list[Recorded]:
    """The steps of a sequence: the elements of a table, or the slices of a tensor along its first dimension."""
    if isinstance(value, Tensor) and value.size and value.size[0] <= _MOST_STEPS:
        return [select(value, 0, index) for index in range(value.size[0])]
    return value if isinstance(value, list) else []


def _steps(visit: Visit, inputs: list[Recorded]) -> Iterator[Visit | Run]:
    outputs = _sequence(visit.output_of(visit.obj))
    count = len(outputs)
    for path, child in visit.children[: 1 if outputs else 0]:
        # In evaluation one module runs all steps; its fields are of the last.
        evaluated = child.get("train") is False
        for number in range(count - 1 if evaluated else 0, count):
            before = outputs[number - 1] if number and evaluated else None
            one = visit.inner(path, child, element(inputs, number))
            yield evolve(one, number=(number, count), before=before)
    yield visit.whole()


def _both_ways(visit: Visit) -> Iterator[Visit | Run]:
    """Forward over all steps but the last, backward over all but the first, and both joined."""
    steps = visit.input if isinstance(visit.input, list) else []
    given = [steps[:-1] or None, steps[1:] or None, recorded(visit.obj.get("_mergeInput"))]
    for (path, child), one in zip(visit.children, given):
        yield visit.inner(path, child, one)
    yield visit.whole()


def _masked(visit: Visit) -> Iterator[Visit | Run]:
    """A module whose outputs are set to zero wherever the input is."""
    for path, child in visit.children[:1]:
        yield visit.inner(path, child, visit.input)
    yield visit.whole()


# Recurrent modules


def _clone(visit: Visit) -> tuple[str, TorchObject] | None:
    """Return the module that ran a step: its shared clone in training, the one module in evaluation; under the path of
    the latter, whose weights they share.
    """
    obj, inside = visit.obj, _modules_of(visit.obj)
    found = obj.get("recurrentModule") or (inside[0] if inside else None)
    at = next((f".modules[{place}]" for place, item in enumerate(inside, 1) if item is found), ".recurrentModule")
    if obj.get("train") is not False:
        clones = obj.get("sharedClones")
        found = clones.get(float(visit.step)) if isinstance(clones, Table) else None
    return (visit.path + at, found) if isinstance(found, TorchObject) else None


_CELLS: dict[str, tuple[tuple[str, str], ...]] = {
    **dict.fromkeys(("LSTM", "FastLSTM"), (("outputs", "userPrevOutput"), ("cells", "userPrevCell"))),
    **dict.fromkeys(("GRU", "Recurrence"), (("outputs", "userPrevOutput"),)),
}
"""Cells of rnn: the fields of each state that is passed from step to step, and of its initial value set by the user."""


def _cell(visit: Visit) -> Iterator[Visit | Run]:
    """One step of a cell; outside of sequences its last one."""
    obj, at, clone = visit.obj, visit.step, _clone(visit)
    states: list[Recorded] = []
    for name, by_user in _CELLS[base_name(obj.class_name)]:
        before = _state(obj, name, at - 1)
        if visit.is_unknown_step:
            before = None
        elif at == 1 and obj.get(by_user) is None and obj.get("startState") is None:
            before = zeros_like(_state(obj, name, 1))
        elif obj.get("train") is False:
            # In evaluation only the last states are kept; a sequence has copies of the outputs.
            before = visit.before if name == "outputs" else None
        states.append(before)
    if clone is not None:
        yield visit.inner(*clone, [visit.input, *states])


def _recurrent(visit: Visit) -> Iterator[Visit | Run]:
    """One step of the simple recurrence, with a separate module for the first step."""
    obj, at = visit.obj, visit.step
    if visit.is_unknown_step:
        return
    named = list(zip((1, 2, 3, 4), _modules_of(obj)))
    first, given = obj.get("initialModule"), visit.input
    if at == 1:
        named += zip((2, 1, 4), _modules_of(first))
    else:
        clone = _clone(visit)
        first = clone[1] if clone is not None else None
        parts = _modules_of(first)
        given = [given, visit.before if obj.get("train") is False else _state(obj, "outputs", at - 1)]
        named += [*zip((2, 3), _modules_of(parts[0] if parts else None)), *zip((5, 4), parts[1:])]
    if isinstance(first, TorchObject):
        names = {id(item): f"{visit.path}.modules[{place}]" for place, item in named}
        yield evolve(visit.inner(f"{visit.path}.recurrentModule", first, given), names=names)


def _recursor(visit: Visit) -> Iterator[Visit | Run]:
    clone = _clone(visit)
    if clone is not None:
        yield evolve(visit.inner(*clone, visit.input), before=visit.before)


_OF_USERS: dict[object, Flow] = {
    flows.sequence: _chain_and_whole,
    flows.branches: _same_for_all,
    flows.parallel: _by_element,
}
"""The flows of users' containers, by those that their entries declare."""
_CHAINS = "Sequential Decorator NaN Profile GPU Serial DontCast FireModule SpatialLPPooling Inception BiSequencer"
_FLOWS: dict[str, Flow] = {
    **dict.fromkeys(_CHAINS.split(), _chain),
    **dict.fromkeys(("LayerNormalization", "Maxout"), _chain_and_whole),
    **dict.fromkeys(("Concat", "DepthConcat"), _concat),
    **dict.fromkeys(("ParallelTable", "MapTable"), _by_element),
    **dict.fromkeys(_CELLS, _cell),
    "ConcatTable": _same_for_all,
    "Parallel": _parallel,
    "Bottle": _bottle,
    "gModule": _graph,
    "Sequencer": _sequencer,
    "Repeater": _repeater,
    "BiSequencerLM": _both_ways,
    "Recursor": _recursor,
    "Recurrent": _recurrent,
    "MaskZero": _masked,
}
