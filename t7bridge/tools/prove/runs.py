"""One run of one layer, a module to visit while the layers of a model are followed, and the memory that runs write.

May import graph and nn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import field

from ...data import define
from ...graph.lua import Table, TorchObject
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from ...lazy import np
from ...nn.fields import items_of
from ...nn.places import is_module
from .reasons import STEP_BEFORE
from .values import Recorded, grad_input_of, leaves, output_of, recorded, region

RESTORING = frozenset(("MulConstant", "AddConstant"))
"""In-place layers that undo their change of the input when they run backwards. Source: nn 8726825 `MulConstant.lua`."""
_VIEWS_NAMES = """
View Reshape Identity Contiguous Squeeze Unsqueeze Transpose Select Narrow SplitTable SelectTable FlattenTable
NarrowTable Replicate Copy Dropout GradientReversal L1Penalty Collapse ZipTable ReverseTable Print Padding
ConcatTable ParallelTable Unfold DontCast NaN Profile MixtureTable Recursor Sequencer Convert
"""
VIEWS = frozenset(_VIEWS_NAMES.split())
"""Layers whose output may be the memory of their input without changing it."""
SEQUENCES = frozenset(
    ("Sequencer", "BiSequencer", "BiSequencerLM", "Repeater", "SeqLSTM", "SeqLSTMP", "SeqGRU", "SeqBRNN")
)
"""Recurrent modules with whole sequences as input."""


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
        whole: whether this is a container as a whole, whose modules have steps of their own.
        last: whether the module does not run again later, so that its fields are those of this run.
        writes: the memory written by the run: storage, first and last element.
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
        return Visit(path, obj, given, grad_output, self.walk, self.number, names=self.names)

    def output_of(self, obj: TorchObject) -> Recorded:
        """Return the output of a module inside, after it ran; `None` if it runs again later and overwrites this one."""
        if not self.walk.is_last(obj):
            return None
        if self.number is not None and is_recurrent(obj):
            table = obj.get("outputs")
            outputs = table if isinstance(table, Table) else Table()
            if obj.get("train") is not False:
                return recorded(outputs.get(float(first_step(obj, self.number[1]) + self.number[0])))
            after = obj.get("step")
            last = outputs.get(after - 1) if isinstance(after, float) else None
            if isinstance(last, Tensor):  # backward sets `output` to that of the first step
                return self.walk.kept(recorded(last), obj)
        return self.walk.kept(output_of(obj), obj)

    def grad_input_of(self, obj: TorchObject) -> Recorded:
        """Return the gradient with respect to the input of a module inside in this step of a sequence."""
        if self.number is not None and is_recurrent(obj):
            slopes = obj.get("gradInputs")
            at = first_step(obj, self.number[1]) + self.number[0]
            return recorded(slopes.get(float(at))) if isinstance(slopes, Table) else None
        return grad_input_of(obj)


@define(eq=False)
class Walk:
    """Counts of the runs of each module, in total and so far.

    Attributes:
        total: by the id of the module; empty if not yet known.
        done: the same, so far.
        undone: whether the last pass was a backward, in which the layers of `RESTORING` restore their inputs.
        lost: storages of outputs that are missing from the file.
    """

    total: dict[int, int] = field(factory=dict)
    done: dict[int, int] = field(factory=dict)
    undone: bool = False
    lost: set[int] = field(factory=set)
    _stood: dict[int, tuple[Tensor, Recorded]] = field(factory=dict)

    def is_last(self, obj: TorchObject) -> bool:
        """Return whether a module has run for the last time; recurrent ones keep their outputs of all steps."""
        if is_recurrent(obj) and obj.get("train") is not False:
            return True
        return self.done.get(id(obj), 0) >= self.total.get(id(obj), 0)

    def kept(self, value: Recorded, obj: TorchObject | None = None) -> Recorded:
        """Return a recorded value, or a tensor in its place if a backward has undone the in-place change of `obj`, or
        of the layer of the value.
        """
        if isinstance(value, list):
            return [self.kept(item) for item in value]
        if not self.undone or not isinstance(value, Tensor):
            return value
        if id(value) in self._stood:
            return self._stood[id(value)][1]
        if obj is None or not may_be_undone(obj):
            return value
        storage = Storage.from_array(np.zeros(value.numel, value.numpy().dtype))
        self.lost.add(id(storage))
        made = Tensor(value.element, storage, value.size, contiguous(value.size), 0)
        self._stood[id(value)] = (value, made)
        return made


Flow = Callable[[Visit], Iterator["Visit | Run"]]


def base_name(class_name: str) -> str:
    """Return the name of a class without its package: `SpatialConvolution` of `cudnn.SpatialConvolution`."""
    return class_name.rpartition(".")[2]


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= extent
    return tuple(strides[::-1])


def may_be_undone(obj: TorchObject) -> bool:
    """Return whether a backward restores the input of an in-place layer, and has run at least once."""
    restores = base_name(obj.class_name) in RESTORING and obj.get("inplace") is True
    return restores and grad_input_of(obj) is not None


def is_recurrent(obj: TorchObject) -> bool:
    """Return whether a module keeps its outputs of all steps. Source: rnn ba937a0 `AbstractRecurrent.lua`."""
    return isinstance(obj.get("sharedClones"), Table) and isinstance(obj.get("outputs"), Table)


def keeps_state(obj: TorchObject, depth: int = 0) -> bool:
    """Return whether a module, or one inside it, continues from the previous step."""
    if is_recurrent(obj) and base_name(obj.class_name) != "Recursor":
        return True
    if base_name(obj.class_name) in SEQUENCES or depth > 20:
        return False
    inside = [item for item in items_of(obj.get("modules")) or [] if isinstance(item, TorchObject)]
    return any(keeps_state(item, depth + 1) for item in inside)


def first_step(obj: TorchObject, count: int) -> int:
    """Return a recurrent module's number of the first of the last `count` steps."""
    done = obj.get("step")
    return max(int(done) - count, 1) if isinstance(done, float) and 1 < done < 1e6 else 1


def children_of(visit: Visit, name: str = "modules") -> list[tuple[str, TorchObject]]:
    """Yield the modules of a container, with their paths."""
    items = items_of(visit.obj.get(name)) or []
    found = [(f"{visit.path}.{name}[{number}]", item) for number, item in enumerate(items, 1)]
    if not found and is_module(visit.obj.get("module")):
        found = [(f"{visit.path}.module", visit.obj.get("module"))]
    return [(path, item) for path, item in found if isinstance(item, TorchObject)]


def in_place_of(obj: TorchObject, given: Recorded) -> Recorded:
    """Return the output of an in-place layer, which is its input's memory, if its own field was cleared; `None` for
    others.
    """
    if obj.get("inplace") is not True:
        return None
    return given[0] if isinstance(given, list) and given else given


def leaf(visit: Visit) -> Iterator[Visit | Run]:
    """Return a module as one step."""
    obj = visit.obj
    last = visit.walk.is_last(obj)
    # The position of a recurrent module in its sequence is known for those visited by the flows of `recurrent`.
    given = None if is_recurrent(obj) and base_name(obj.class_name) not in SEQUENCES else visit.input
    output = visit.output_of(obj) if is_recurrent(obj) else visit.walk.kept(output_of(obj), obj)
    if output is None and last:
        output = in_place_of(obj, given)
    yield Run(visit.path, obj, given, output, visit.grad_output, visit.grad_input_of(obj), last=last)


def as_whole(visit: Visit, glue: list[Recorded] | None = None) -> Run:
    """Return a container as a step, in addition to those of its modules."""
    step = next(leaf(visit))
    assert isinstance(step, Run)
    step.glue, step.whole = glue, True
    if visit.number is not None and keeps_state(visit.obj):
        step.input, step.reason = None, STEP_BEFORE
    return step


def own_parameters(obj: TorchObject) -> int:
    """Count the weights in an object's own fields."""
    return sum(
        tensor.numel for tensor in (obj.get("weight"), obj.get("bias")) if isinstance(tensor, Tensor) and tensor.numel
    )


def view_of(tensor: Tensor) -> tuple[object, ...]:
    """Return what tells the views of one memory apart."""
    return (*region(tensor), tensor.size, tensor.stride)


def forget_written(known: dict[Any, Any], run: Run) -> None:
    """Remove what is known by `view_of` of the memory that a run wrote."""
    for storage, low, high in run.writes:
        for key in [key for key in known if isinstance(key, tuple) and key[0] == storage]:
            if key[1] <= high and low <= key[2]:
                del known[key]


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
        self._writes: dict[int, list[tuple[int, int, int]]] = {}
        self._gradients: dict[int, set[int]] = {}
        for number, run in enumerate(runs):
            for storage, low, high in run.writes:
                self._writes.setdefault(storage, []).append((number, low, high))
            name = base_name(run.obj.class_name)
            if (name in VIEWS and name != "Dropout") or run.whole:
                continue
            for tensor in leaves(run.grad_input):
                self._gradients.setdefault(id(tensor.storage), set()).add(number)

    def written_after(self, tensor: Tensor, run: int) -> bool:
        """Return whether any run after this one changed the memory of a tensor."""
        storage, low, high = region(tensor)
        return storage in self._lost or any(
            number > run and low <= last and first <= high for number, first, last in self._writes.get(storage, ())
        )

    def overwritten(self, value: Recorded, run: int) -> bool:
        """Return whether any tensor of a value was changed by a later run."""
        return any(self.written_after(tensor, run) for tensor in leaves(value))

    def holds_gradients(self, output: Recorded, given: Recorded) -> bool:
        """Return whether the gradients with respect to an output and an input are in memory that one layer writes.

        Layers that work in place return the gradient in the memory in which they received it.
        """
        both = [{id(tensor.storage) for tensor in leaves(value)} for value in (output, given)]
        return not both[0] & both[1] and all(len(self._gradients.get(one, ())) <= 1 for one in both[0] | both[1])
