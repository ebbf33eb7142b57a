"""The runs of the layers of a Lua model, in order, and which of the values that they recorded are still in memory.

The structure alone determines a layer's input: the previous layer's `output` in a Sequential, the same value for all
branches of a Concat, `data.input` of a node in nngraph, the step before in a sequence. Sources: nn 8726825, nngraph
3ed3b9b `gmodule.lua`, rnn ba937a0 `AbstractRecurrent.lua`, `Sequencer.lua`, `BiSequencer.lua`, `BiSequencerLM.lua`,
`Repeater.lua`, `Recursor.lua`, `LSTM.lua`, `GRU.lua`, `Recurrent.lua`, `Recurrence.lua`, `MaskZero.lua`.
May import graph and nn. Knows nothing of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

from attrs import evolve, field

from ...data import define, np
from ...errors import ModelError
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor, contiguous
from ...limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits
from ...nn import walk
from ...nn.fields import Fields, items_of, lookup
from ...nn.graphs import graph_modules
from ...nn.mapping import OURS, SEQUENTIAL, Row
from ...nn.registry import Layer, first_module, layer_of, listed_modules, stock_name, traits_of

Recorded = Any
"""A `Tensor` with elements, a `float`, a list of these, or `None` for values missing from the file."""
Region = tuple[int, int, int]
"""A storage, by id, and the first and last element of it that a tensor uses."""

STEP_BEFORE = "continues from the step before"
_DEEPEST = 32
"""Maximum nesting of tables of tensors."""
_LONGEST = 100_000
"""Maximum number of elements of a table of tensors, or of steps in a tensor."""
_REPEATED = 1 << 22
"""Maximum number of elements of a recorded tensor whose storage has fewer."""
_RESTORING = ("nn.MulConstant", "nn.AddConstant")
"""In-place layers that undo their change of the input when they run backwards. Source: nn 8726825 `MulConstant.lua`."""
_OVER_SEQUENCES = frozenset(
    (
        "nn.SeqLSTM",
        "nn.SeqLSTMP",
        "nn.SeqGRU",
        "nn.SeqBRNN",
        "nn.Sequencer",
        "nn.BiSequencer",
        "nn.BiSequencerLM",
        "nn.Repeater",
    )
)
"""Recurrent modules with whole sequences as input."""

# Recorded values


def recorded(value: Any, depth: int = 0) -> Recorded:
    """Return a field's value as recorded tensors and lists; empty, cleared and too large values are `None`."""
    if isinstance(value, Tensor):
        if not value.numel or value.storage is None or value.element.name.startswith("complex"):
            return None  # Lua Torch computes no complex numbers
        # A tensor that repeats its elements is no output of a layer: its size is not limited.
        return value if value.numel <= max(value.storage.count, _REPEATED) else None
    if isinstance(value, float):
        return value
    if isinstance(value, Table) and depth < _DEEPEST and 0 < len(value) <= _LONGEST:
        elements = [recorded(item, depth + 1) for item in value.sequence() or ()]
        return elements if any(item is not None for item in elements) else None
    return None


def output_of(obj: Any) -> Recorded:
    """Return the recorded output of a module."""
    return recorded(obj.get("output")) if isinstance(obj, TorchObject) else None


def grad_input_of(obj: Any) -> Recorded:
    """Return the recorded gradient with respect to a module's input."""
    return recorded(obj.get("gradInput")) if isinstance(obj, TorchObject) else None


def items(value: Any) -> Iterator[Any]:
    """Yield what the lists of a value hold, in order."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from items(item)
    else:
        yield value


def replaced(value: Any, kind: type | tuple[type, ...], change: Callable[..., Any]) -> Any:
    """Return a value with a function applied to what is of one type, or of several, in its lists."""
    if isinstance(value, (list, tuple)):
        return [replaced(item, kind, change) for item in value]
    return change(value) if isinstance(value, kind) else value


def leaves(value: Recorded) -> Iterator[Tensor]:
    """Yield the tensors of a value, in order."""
    return (item for item in items(value) if isinstance(item, Tensor))


def is_whole(value: Recorded) -> bool:
    """Return whether a value is complete."""
    if isinstance(value, list):
        return bool(value) and all(map(is_whole, value))
    return value is not None


def first_of(value: Recorded) -> Recorded:
    """Return the first element of a table; other values as they are."""
    return value[0] if isinstance(value, list) and value else value


def zeros_like(value: Recorded) -> Recorded:
    """Return zeros in the structure of a value."""
    return replaced(value, Tensor, lambda item: Tensor.from_numpy(np.zeros(item.shape, item.numpy().dtype)))


def _element(value: Recorded, index: int) -> Recorded:
    return value[index] if isinstance(value, list) and index < len(value) else None


def _single(value: Recorded) -> Recorded:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _part(value: Recorded, dim: int, part: int | slice) -> Recorded:
    """Return a part of a tensor along a dimension, as a view that has sizes, as in Lua; `None` if there is none."""
    if not isinstance(value, Tensor) or not 0 <= dim < value.ndim:
        return None
    if value.ndim == 1 and isinstance(part, int):
        part = slice(part, part + 1)
    try:
        key = (*(slice(None),) * dim, part)
        return value[key]
    except IndexError:
        return None


def _region(tensor: Tensor) -> Region:
    low, end = tensor.reach()
    return id(tensor.storage), low, end - 1


def overlap(one: Region, other: Region) -> bool:
    """Return whether two regions have elements in common."""
    return one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]


def view_of(tensor: Tensor) -> tuple[Region, tuple[int, ...], tuple[int, ...]]:
    """Return what tells the views of one memory apart."""
    return _region(tensor), tensor.size, tensor.stride


# Modules


def own_weights(obj: TorchObject) -> dict[str, Tensor]:
    """Return the weights in an object's own fields, by their names there."""
    layer = layer_of(obj.class_name)
    names = ["weight", "bias"]
    if layer is not None:
        with suppress(ModelError):  # its fields are inconsistent
            parameters = [each for each in layer.params_of(Fields(obj, "", layer.defaults)) if each.kind == "parameter"]
            names = [source.path for each in parameters for source in each.sources]
    values = {name: obj.get(name) for name in names}
    return {name: item for name, item in values.items() if isinstance(item, Tensor) and item.numel}


def own_parameters(obj: TorchObject) -> int:
    """Count the elements of the weights in an object's own fields."""
    return sum(item.numel for item in own_weights(obj).values())


def is_recurrent(obj: TorchObject) -> bool:
    """Return whether a module keeps its outputs of all steps."""
    return isinstance(obj.get("sharedClones"), Table) and isinstance(obj.get("outputs"), Table)


def _modules_of(obj: Value) -> list[Value]:
    return items_of(obj.get("modules")) or [] if isinstance(obj, TorchObject) else []


def _children_of(obj: TorchObject) -> list[tuple[str, TorchObject]]:
    """Return the modules inside, with the steps to them."""
    return [(child.path, child.value) for child in listed_modules(obj) if isinstance(child.value, TorchObject)]


def _keeps_state(obj: TorchObject, depth: int = 0) -> bool:
    """Return whether a module, or one inside it, continues from the previous step."""
    name = stock_name(obj)
    if is_recurrent(obj) and name != "nn.Recursor":
        return True
    if name in _OVER_SEQUENCES or depth >= _DEEPEST:
        return False
    return any(_keeps_state(item, depth + 1) for item in _modules_of(obj) if isinstance(item, TorchObject))


def _state(obj: TorchObject, name: str, step: int) -> Recorded:
    """Return what a recurrent module keeps of a step."""
    table = obj.get(name)
    return recorded(table.get(float(step))) if isinstance(table, Table) else None


# Runs


@define(eq=False)
class Pass:
    """One pass through a model.

    Attributes:
        in_other_mode: whether the model ran in another mode than that in which it was saved.
        so_far: how often each module ran until now, by its id.
        in_all: how often each runs in the whole pass; empty while this is not known.
    """

    in_other_mode: bool = False
    so_far: dict[int, int] = field(factory=dict)
    in_all: dict[int, int] = field(factory=dict)

    def is_in_evaluation(self, obj: TorchObject) -> bool:
        """Return whether a module ran in evaluation, for which it must say so."""
        mode = obj.get("train")
        return isinstance(mode, bool) and mode == self.in_other_mode

    def runs_again(self, obj: TorchObject) -> bool:
        """Return whether a module runs again later in the pass."""
        return self.so_far.get(id(obj), 0) < self.in_all.get(id(obj), 0)


@define(eq=False)
class Run:
    """One run of one module; of a container, in addition to those of its modules, where it does more than these.

    Attributes:
        path: the module's path in the file.
        obj: the module.
        input: its input; `None` if missing from the file.
        grad_output: the gradient with respect to its output.
        of: the pass.
        output: its output.
        grad_input: the gradient with respect to its input.
        done: whether it ran; before, it is to be visited.
        whole: whether this is a container, whose modules have runs of their own.
        joined: of a Concat, the outputs of its modules.
        writes: the memory that it wrote.
        reason: why the input is missing, if known.
        number: in a sequence, the step from 0 and the number of steps; `None` elsewhere.
        before: the module's output one step before, if a sequence keeps a copy of it.
        names: the paths of modules inside that differ from their places, by id.
    """

    path: str
    obj: TorchObject
    input: Recorded
    grad_output: Recorded = None
    of: Pass = field(factory=Pass, repr=False)
    output: Recorded = None
    grad_input: Recorded = None
    done: bool = False
    whole: bool = False
    joined: list[Recorded] | None = None
    writes: list[Region] = field(factory=list)
    reason: str = ""
    number: tuple[int, int] | None = None
    before: Recorded = None
    names: dict[int, str] = field(factory=dict)

    @property
    def name(self) -> str:
        """The name of its entry; see `stock_name`."""
        return stock_name(self.obj)

    @property
    def in_place(self) -> bool:
        """True if the layer works in the memory of its input."""
        return self.obj.get("inplace") is True

    @property
    def may_be_undone(self) -> bool:
        """True if a backward, which has run, restores the input of this in-place layer."""
        return self.in_place and self.name in _RESTORING and grad_input_of(self.obj) is not None

    @property
    def children(self) -> list[tuple[str, TorchObject]]:
        """The modules inside, with their paths."""
        return [(self.path + step, item) for step, item in _children_of(self.obj)]

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

    def inside(self, path: str, obj: TorchObject, inputs: Recorded, after: Recorded = None) -> Run:
        """A module inside, to be visited in the same step of a sequence.

        Args:
            path: its path.
            obj: the module.
            inputs: its input.
            after: the gradient with respect to its output.
        """
        path = self.names.get(id(obj), path)
        return Run(path, obj, inputs, after, self.of, number=self.number, names=self.names)

    def output_of(self, obj: TorchObject, inputs: Recorded = None) -> Recorded:
        """Return the output of a module for an input, after it ran; `None` if it runs again and overwrites this one."""
        keeps_all_steps = is_recurrent(obj) and not self.of.is_in_evaluation(obj)
        if not keeps_all_steps and self.of.runs_again(obj):
            return None
        if is_recurrent(obj) and self.number is not None:
            if keeps_all_steps:
                return _state(obj, "outputs", evolve(self, obj=obj).step)
            after = obj.get("step")
            last = _state(obj, "outputs", int(after) - 1) if isinstance(after, float) else None
            if isinstance(last, Tensor):  # backward sets `output` to that of the first step
                return last
        output = output_of(obj)
        # An in-place layer whose own field was cleared has its output in the memory of its input.
        return first_of(inputs) if output is None and obj.get("inplace") is True else output

    def grad_input_of(self, obj: TorchObject) -> Recorded:
        """Return the gradient with respect to the input of a module; unknown in a sequence, or of several runs."""
        in_sequence = self.number is not None and is_recurrent(obj)
        if in_sequence or self.of.in_all.get(id(obj), 0) > 1:
            return None
        return grad_input_of(obj)

    def finish(self, *, whole: bool = False, joined: list[Recorded] | None = None) -> Run:
        """Return the module as it ran.

        Args:
            whole: whether the runs of the modules inside were listed.
            joined: their outputs, if it only joins these.
        """
        self.done = True
        self.whole = whole
        self.joined = joined
        if is_recurrent(self.obj) and self.name not in _OVER_SEQUENCES:
            self.input = None
        if whole and self.number is not None and _keeps_state(self.obj):
            self.input = None
            self.reason = STEP_BEFORE
        self.output = self.output_of(self.obj, self.input)
        self.grad_input = self.grad_input_of(self.obj)
        return self


def runs(
    root: TorchObject, path: str = "root", limits: Limits = DEFAULT_LIMITS, in_other_mode: bool = False
) -> list[Run]:
    """List the runs of a model's layers in order.

    Args:
        root: the model.
        path: its own path.
        limits: `work` bounds the number of runs.
        in_other_mode: see `Pass`.

    Raises:
        LimitError: there are too many.
    """
    first = Pass(in_other_mode)
    for _ in _follow(Run(path, root, None, of=first), limits):
        pass
    found = list(_follow(Run(path, root, None, of=Pass(in_other_mode, in_all=first.so_far)), limits))
    written: set[int] = set()
    for run in found:
        _note_writes(run, written)
        written.update(storage for storage, _, _ in run.writes)
    return found


def _note_writes(run: Run, written: set[int]) -> None:
    """Note the memory that a run wrote.

    Args:
        run: the run.
        written: the storages that runs before it wrote.
    """
    sources = [_region(tensor) for tensor in leaves(run.input)]
    for here in map(_region, leaves(run.output)):
        is_view = not run.in_place and any(overlap(here, one) for one in sources)
        is_of_module_inside = run.whole and here[0] in written
        if not is_view and not is_of_module_inside:
            run.writes.append(here)
    # In older releases in-place layers had memory of their own once a model had changed its type.
    source, target = first_of(run.input), run.output
    if run.in_place and isinstance(source, Tensor) and isinstance(target, Tensor):
        is_apart = source.storage is not target.storage and source.shape == target.shape
        if is_apart and np.array_equal(source.numpy(), target.numpy(), equal_nan=True):
            run.writes.append(_region(source))


def _follow(start: Run, limits: Limits) -> Iterator[Run]:
    """Yield the runs inside a run, and itself, in order."""
    budget = Budget(limits, "following the runs of the layers")
    stack: list[tuple[int, Iterator[Run]]] = [(0, iter([start]))]
    inside: set[int] = set()
    so_far = start.of.so_far
    while stack:
        run = next(stack[-1][1], None)
        if run is None:
            inside.discard(stack.pop()[0])
            continue
        budget.spend(STEPS_PER_NODE)
        here = id(run.obj)
        if run.done:
            yield run
        elif here not in inside:
            so_far[here] = so_far.get(here, 0) + 1
            stack.append((here, _flow_of(run.obj)(run)))
            inside.add(here)


class Memory:
    """Which recorded values are unchanged since a layer read or wrote them.

    In-place layers and buffers that several layers share overwrite outputs that earlier layers recorded. Storages and
    the order of the runs show which ones.

    Args:
        runs: in order.
        undone: whether a backward came last, in which some in-place layers restored their inputs.
    """

    def __init__(self, runs: list[Run], undone: bool) -> None:
        self._writes: dict[int, list[tuple[int, Region]]] = {}
        self._restored: dict[int, list[tuple[int, Region]]] = {}
        self._gradients: dict[int, set[int]] = {}
        for number, run in enumerate(runs):
            writes = self._restored if undone and run.may_be_undone else self._writes
            for here in run.writes:
                writes.setdefault(here[0], []).append((number, here))
            passed_on = {id(tensor.storage) for tensor in leaves(run.grad_output)} if not run.in_place else set()
            for tensor in [] if run.whole else leaves(run.grad_input):
                if id(tensor.storage) not in passed_on:
                    self._gradients.setdefault(id(tensor.storage), set()).add(number)

    def overwritten(self, value: Recorded, run: int) -> bool:
        """Return whether anything after this run changed the memory of any tensor of a value."""
        return any(
            at > run and overlap(here, _region(tensor))
            for tensor in leaves(value)
            for at, here in self._writes.get(id(tensor.storage), ())
        )

    def is_restored(self, value: Recorded, run: int) -> bool:
        """Return whether a backward has restored memory of a value that this run or one before wrote."""
        return any(
            at <= run and overlap(here, _region(tensor))
            for tensor in leaves(value)
            for at, here in self._restored.get(id(tensor.storage), ())
        )

    def holds_gradients(self, run: Run) -> bool:
        """Return whether the gradients with respect to output and input are in memory that one layer writes.

        Layers that work in place return the gradient in the memory in which they received it.
        """
        after = {id(tensor.storage) for tensor in leaves(run.grad_output)}
        before = {id(tensor.storage) for tensor in leaves(run.grad_input)}
        return not after & before and all(len(self._gradients.get(one, ())) <= 1 for one in after | before)


# How containers pass values

Flow = Callable[[Run], Iterator[Run]]


def _flow_of(obj: TorchObject) -> Flow:
    name, layer = stock_name(obj), layer_of(obj.class_name)
    if name in _BY_CLASS:
        # The LSTM of torch-rnn, which has a weight of its own, takes whole sequences.
        return _leaf if isinstance(obj.get("weight"), Tensor) else _BY_CLASS[name]
    if layer is None or layer.children is None:
        return _leaf
    row = layer.module_of(obj.class_name)
    target = row.target if isinstance(row, Row) and _runs_its_modules(obj, layer) else OURS
    flow = traits_of(target).flow
    if target == SEQUENTIAL:
        return _chain
    if flow is walk.sequence and not target.startswith(OURS):
        return _chain_and_whole
    known = _BY_FLOW.get(getattr(flow, "func", flow))
    if known is not None:
        return known
    has_modules = next(iter(layer.children(obj)), None) is not None
    return _whole if has_modules else _leaf


def _runs_its_modules(obj: TorchObject, layer: Layer) -> bool:
    """Return whether the modules that a container runs are all that its field `modules` lists.

    Copies of one module for several devices have seen parts of the batch.
    """
    if layer.children is None or layer.children is first_module:
        return False
    run = [id(child.value) for child in layer.children(obj)]
    return run == [id(item) for _, item in _children_of(obj)]


def _leaf(run: Run) -> Iterator[Run]:
    yield run.finish()


def _whole(run: Run) -> Iterator[Run]:
    """A container whose flow is not known: only the whole is a run."""
    yield run.finish(whole=True)


def _chain(run: Run) -> Iterator[Run]:
    children, inputs = run.children, run.input
    for place, (path, child) in enumerate(children):
        is_last = place + 1 == len(children)
        after = run.grad_output if is_last else run.grad_input_of(children[place + 1][1])
        yield run.inside(path, child, inputs, after)
        inputs = run.output_of(child, inputs)


def _chain_and_whole(run: Run) -> Iterator[Run]:
    """A Sequential with a class of its own in PyTorch."""
    yield from _chain(run)
    yield run.finish(whole=True)


def _concat(run: Run) -> Iterator[Run]:
    outputs: list[Recorded] = []
    dim, start = run.obj.get("dimension"), 0
    only_joins = run.name == "nn.Concat"  # nn.DepthConcat pads too
    for path, child in run.children:
        after, output = None, output_of(child)
        if only_joins and isinstance(dim, float) and isinstance(output, Tensor) and 1 <= dim <= len(output.size):
            length = output.size[int(dim) - 1]
            after = _part(run.grad_output, int(dim) - 1, slice(start, start + length))
            start += length
        yield run.inside(path, child, run.input, after)
        outputs.append(run.output_of(child))
    yield run.finish(whole=True, joined=outputs if only_joins else None)


def _by_element(run: Run, same: bool = False) -> Iterator[Run]:
    """One module for each element of the input, or all for the same input; each returns an element of the output."""
    for place, (path, child) in enumerate(run.children):
        inputs = run.input if same else _element(run.input, place)
        yield run.inside(path, child, inputs, _element(run.grad_output, place))


def _parallel(run: Run) -> Iterator[Run]:
    dim = run.obj.get("inputDimension")
    for place, (path, child) in enumerate(run.children):
        yield run.inside(path, child, _part(run.input, int(dim) - 1, place) if isinstance(dim, float) else None)
    yield run.finish(whole=True)


def _bottle(run: Run) -> Iterator[Run]:
    sizes, inputs = run.obj.get("nInputDim"), run.input
    for path, child in run.children:
        if isinstance(inputs, Tensor):
            dims = max(len(inputs.size) - int(sizes if isinstance(sizes, float) else 2) + 1, 1)
            size = (prod(inputs.size[:dims]), *inputs.size[dims:])
            fits = dims <= len(inputs.size) and inputs.stride == contiguous(inputs.size)
            inputs = evolve(inputs, size=size, stride=contiguous(size)) if fits else None
        yield run.inside(path, child, inputs)
    yield run.finish(whole=True)


def _graph(run: Run) -> Iterator[Run]:
    paths: dict[int, str] = {}
    for child in graph_modules(run.obj):
        paths.setdefault(id(child.value), run.path + child.path)
    for node in items_of(run.obj.get("forwardnodes")) or []:
        module = lookup(node, "data.module")
        if isinstance(module, TorchObject):
            inputs = _single(recorded(lookup(node, "data.input")))
            after = _single(recorded(lookup(node, "data.gradOutput")))
            after = None if isinstance(after, list) else after  # several are added up
            yield run.inside(paths.get(id(module), run.path), module, inputs, after)


def _sequence(value: Recorded) -> list[Recorded]:
    """The steps of a sequence: the elements of a table, or the slices of a tensor along its first dimension."""
    if isinstance(value, Tensor) and value.size and value.size[0] <= _LONGEST:
        return [_part(value, 0, index) for index in range(value.size[0])]
    return value if isinstance(value, list) else []


def _steps(run: Run) -> Iterator[Run]:
    """One module for each step of a sequence, or of a Repeater for the same input in each."""
    outputs = _sequence(run.output_of(run.obj))
    count = len(outputs)
    inputs = [run.input] * count if run.name == "nn.Repeater" else _sequence(run.input)
    for path, child in run.children[: 1 if outputs else 0]:
        # In evaluation one module runs all steps; its fields are of the last.
        evaluated = run.of.is_in_evaluation(child)
        for number in range(count - 1 if evaluated else 0, count):
            step = run.inside(path, child, _element(inputs, number))
            step.number = (number, count)
            step.before = outputs[number - 1] if number and evaluated else None
            yield step
    yield run.finish(whole=True)


def _both_ways(run: Run) -> Iterator[Run]:
    """Forward over all steps but the last, backward over all but the first, and both joined."""
    steps = run.input if isinstance(run.input, list) else []
    inputs = [steps[:-1] or None, steps[1:] or None, recorded(run.obj.get("_mergeInput"))]
    for (path, child), value in zip(run.children, inputs):
        yield run.inside(path, child, value)
    yield run.finish(whole=True)


# Recurrent modules


def _clone(run: Run) -> tuple[str, TorchObject] | None:
    """Return the module that ran a step: its shared clone in training, the one module in evaluation; under the path of
    the latter, whose weights they share.
    """
    obj, children = run.obj, _modules_of(run.obj)
    module = obj.get("recurrentModule") or (children[0] if children else None)
    at = next((f".modules[{place}]" for place, item in enumerate(children, 1) if item is module), ".recurrentModule")
    if not run.of.is_in_evaluation(obj):
        clones = obj.get("sharedClones")
        module = clones.get(float(run.step)) if isinstance(clones, Table) else None
    return (run.path + at, module) if isinstance(module, TorchObject) else None


_CELLS: dict[str, tuple[tuple[str, str], ...]] = {
    "nn.LSTM": (("outputs", "userPrevOutput"), ("cells", "userPrevCell")),
    "nn.FastLSTM": (("outputs", "userPrevOutput"), ("cells", "userPrevCell")),
    "nn.GRU": (("outputs", "userPrevOutput"),),
    "nn.Recurrence": (("outputs", "userPrevOutput"),),
    "nn.Recursor": (),
}
"""Cells of rnn: the fields of each state that is passed from step to step, and of its initial value set by the user."""


def _cell(run: Run) -> Iterator[Run]:
    """One step of a cell; outside of sequences its last one."""
    clone = _clone(run)
    if clone is None:
        return
    states = [_state_before(run, *fields) for fields in _CELLS[run.name]]
    step = run.inside(*clone, [run.input, *states] if states else run.input)
    step.before = run.before
    yield step


def _state_before(run: Run, name: str, by_user: str) -> Recorded:
    """Return a state with which a step of a cell begins.

    Args:
        run: the step.
        name: the field with the states of all steps.
        by_user: the field with the first, if the user sets it.
    """
    obj, at = run.obj, run.step
    if run.is_unknown_step:
        return None
    if at == 1 and obj.get(by_user) is None and obj.get("startState") is None:
        return zeros_like(_state(obj, name, 1))
    if run.of.is_in_evaluation(obj):
        # In evaluation only the last states are kept; a sequence has copies of the outputs.
        return run.before if name == "outputs" else None
    return _state(obj, name, at - 1)


def _recurrent(run: Run) -> Iterator[Run]:
    """One step of the simple recurrence, with a separate module for the first step."""
    obj, at = run.obj, run.step
    if run.is_unknown_step:
        return
    # The four modules of the object have the weights of the copies inside those that ran.
    named = list(zip((1, 2, 3, 4), _modules_of(obj)))
    first, inputs = obj.get("initialModule"), run.input
    if at == 1:
        named += zip((2, 1, 4), _modules_of(first))
    else:
        clone = _clone(run)
        first = clone[1] if clone is not None else None
        parts = _modules_of(first)
        inputs = [inputs, run.before if run.of.is_in_evaluation(obj) else _state(obj, "outputs", at - 1)]
        named += [*zip((2, 3), _modules_of(parts[0] if parts else None)), *zip((5, 4), parts[1:])]
    if isinstance(first, TorchObject):
        step = run.inside(f"{run.path}.recurrentModule", first, inputs)
        step.names = {id(item): f"{run.path}.modules[{place}]" for place, item in named}
        yield step


_BY_FLOW: dict[Any, Flow] = {
    walk.branches: partial(_by_element, same=True),
    walk.concatenated: _concat,
    walk.padded: _concat,
    walk.parallel: _by_element,
    walk.bottled: _bottle,
}
"""Containers by the flow that their entries declare."""
_BY_CLASS: dict[str, Flow] = {
    **dict.fromkeys(("nn.DontCast", "nn.Inception", "nn.BiSequencer"), _chain),
    **dict.fromkeys(_CELLS, _cell),
    **dict.fromkeys(("nn.LayerNormalization", "nn.MaskZero"), _chain_and_whole),
    **dict.fromkeys(("nn.Sequencer", "nn.Repeater"), _steps),
    "nn.MapTable": _by_element,
    "nn.Parallel": _parallel,
    "nn.gModule": _graph,
    "nn.BiSequencerLM": _both_ways,
    "nn.Recurrent": _recurrent,
}
"""Containers whose modules in PyTorch are another, or none, by the names of their entries."""
