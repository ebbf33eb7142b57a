"""The runs of the layers of a Lua model in its last pass, in order, and which of the values that they recorded are
unchanged in the file.

A domain of `nn/walk`: a value is what Lua recorded of it. The flow of a container determines the inputs of the modules
inside: the previous layer's `output` in a sequence, the same value for all branches. What a class keeps besides, as a
cell keeps the copies that ran its steps, its entry declares (`Recording`). Sources: nn 8726825, nngraph
3ed3b9b `gmodule.lua`, rnn ba937a0 `AbstractRecurrent.lua`, `Sequencer.lua`, `BiSequencer.lua`, `BiSequencerLM.lua`,
`Repeater.lua`, `Recursor.lua`, `LSTM.lua`, `GRU.lua`, `Recurrent.lua`, `Recurrence.lua`, `MaskZero.lua`.
May import graph and nn. Knows nothing of PyTorch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

from attrs import evolve, field

from ...data import define, np
from ...errors import LimitError, ModelError
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor, contiguous
from ...limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits
from ...nn.fields import Fields, items_of, lookup
from ...nn.graphs import graph_spec, recorded_nodes
from ...nn.mapping import Call, GraphSpec, Lua, ModuleSpec, NotMappedError
from ...nn.registry import (
    Child,
    Layer,
    Recording,
    first_module,
    layer_of,
    listed_modules,
    recording_of,
    stock_name,
    traits_of,
)
from ...nn.walk import FLOW_ERRORS, Domain, Flow

Recorded = Any
"""A `Tensor` with elements, a `float`, a list of these, or `None` for values missing from the file."""
Region = tuple[int, int, int]
"""A storage, by id, and the first and last element of it that a tensor uses."""
View = tuple[Region, tuple[int, ...], tuple[int, ...]]
"""What tells the views of one memory apart: the region, sizes and strides."""

STEP_BEFORE = "continues from the step before"
_NEVER_A_STEP = 1e6
"""A field `step` from this number on is not that of a sequence."""
_DEEPEST = 32
"""Maximum nesting of tables of tensors."""
_LONGEST = 100_000
"""Maximum number of elements of a table of tensors, or of steps in a tensor."""
_MOST_REPEATED = 1 << 22
"""Maximum number of elements of a recorded tensor whose storage has fewer."""

# Recorded values


def recorded(value: Any, depth: int = 0) -> Recorded:
    """Return a field's value as recorded tensors and lists; empty, cleared and too large values are `None`.

    A list in which some elements are missing stays a list; one in which all are is `None`.

    Args:
        value: the field's value.
        depth: how many tables it is inside of, whose reading this is part of.
    """
    if isinstance(value, Tensor):
        if not value.numel or value.storage is None or value.element.name.startswith("complex"):
            return None  # Lua Torch computes no complex numbers
        # A view may repeat few elements of a file any number of times.
        return value if value.numel <= max(value.storage.count, _MOST_REPEATED) else None
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


def flattened(value: Any) -> Iterator[Any]:
    """Yield what is in the lists of a value, and in lists in these, in order; a value that is no list as it is."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flattened(item)
    else:
        yield value


def map_instances(value: Any, kind: type | tuple[type, ...], change: Callable[..., Any]) -> Any:
    """Return a value with a function applied to all objects of one type, or of several, in its lists."""
    if isinstance(value, (list, tuple)):
        return [map_instances(item, kind, change) for item in value]
    return change(value) if isinstance(value, kind) else value


def tensors_in(value: Recorded) -> Iterator[Tensor]:
    """Yield the tensors of a value, in order."""
    return (item for item in flattened(value) if isinstance(item, Tensor))


def is_complete(value: Recorded) -> bool:
    """Return whether no part of a value is missing from the file."""
    if isinstance(value, list):
        return bool(value) and all(map(is_complete, value))
    return value is not None


def first_of(value: Recorded) -> Recorded:
    """Return the first element of a table; other values as they are."""
    return value[0] if isinstance(value, list) and value else value


def zeros_like(value: Recorded) -> Recorded:
    """Return zeros in the structure of a value."""
    return map_instances(value, Tensor, lambda item: Tensor.from_numpy(np.zeros(item.shape, item.numpy().dtype)))


def _element(value: Recorded, index: int) -> Recorded:
    """Return an element of a table, from 0, or from -1 backwards; `None` if there is none, which is nil in Lua."""
    return value[index] if isinstance(value, list) and -len(value) <= index < len(value) else None


def _without_table(value: Recorded) -> Recorded:
    """Return the element of a table of one element; other values as they are."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _slice_along(value: Recorded, dim: int, places: int | slice) -> Recorded:
    """Return a part of a tensor along a dimension, as a view; `None` if there is none.

    Args:
        value: the tensor; of anything else there is no part.
        dim: the dimension, from 0.
        places: one place, of which the view has a dimension less, or several.
    """
    if not isinstance(value, Tensor) or not 0 <= dim < value.ndim:
        return None
    if value.ndim == 1 and isinstance(places, int):
        # In Lua, an element of a vector is a vector of one element.
        places = slice(places, places + 1)
    all_of_dims_before = (slice(None),) * dim
    key = (*all_of_dims_before, places)
    try:
        return value[key]
    except IndexError:
        return None


def _region(tensor: Tensor) -> Region:
    """Return the elements of its storage that a tensor reaches."""
    low, end = tensor.reach()
    return id(tensor.storage), low, end - 1


def overlap(one: Region, other: Region) -> bool:
    """Return whether two regions have elements in common."""
    storage, first, last = one
    other_storage, other_first, other_last = other
    return storage == other_storage and first <= other_last and other_first <= last


def view_of(tensor: Tensor) -> View:
    """Return which view of its memory a tensor is."""
    return _region(tensor), tensor.size, tensor.stride


# Modules


def own_weights(obj: TorchObject) -> dict[str, Tensor]:
    """Return the weights in an object's own fields, by their names there.

    Those that are missing, or empty, are left out.
    """
    weights = {}
    for name in _names_of_weights(obj):
        value = obj.get(name)
        if isinstance(value, Tensor) and value.numel:
            weights[name] = value
    return weights


def _names_of_weights(obj: TorchObject) -> list[str]:
    """Return the fields of an object that its entry maps to parameters, and not to buffers.

    Of a class without an entry these are `weight` and `bias`, as of most classes of Lua.
    """
    layer = layer_of(obj.class_name)
    if layer is None:
        return ["weight", "bias"]
    names = []
    with suppress(ModelError):  # its fields contradict one another: the names before that count
        for parameter in layer.params_of(Fields(obj, path="", defaults=layer.defaults)):
            if parameter.kind == "parameter":
                names += [source.path for source in parameter.sources]
    return names


def own_parameters(obj: TorchObject) -> int:
    """Count the elements of the weights in an object's own fields."""
    return sum(item.numel for item in own_weights(obj).values())


def is_recurrent(obj: TorchObject) -> bool:
    """Return whether a module keeps its outputs of all steps."""
    return isinstance(obj.get("sharedClones"), Table) and isinstance(obj.get("outputs"), Table)


def _modules_of(obj: Value) -> list[Value]:
    """Return the elements of a module's field `modules`, in order; none if there is no such list."""
    if not isinstance(obj, TorchObject):
        return []
    return items_of(obj.get("modules")) or []


def _children_of(obj: TorchObject) -> list[Child]:
    """Return the modules inside."""
    return [child for child in listed_modules(obj) if isinstance(child.value, TorchObject)]


def _keeps_state(obj: TorchObject, depth: int = 0) -> bool:
    """Return whether a module, or one inside it, continues from the previous step of a sequence.

    Args:
        obj: the module.
        depth: how many modules it is inside of, whose search this is part of.
    """
    recording = recording_of(obj)
    if recording.over_sequences:
        return False  # each of its inputs is a whole sequence
    # `()` is of a cell without states of its own, which may have them in the modules inside. A class that declares
    # nothing (`None`), but keeps outputs, may have states.
    has_own_states = recording.states != ()
    if is_recurrent(obj) and has_own_states:
        return True
    if depth >= _DEEPEST:
        return False
    return any(_keeps_state(item, depth + 1) for item in _modules_of(obj) if isinstance(item, TorchObject))


def _state(obj: TorchObject, name: str, step: int) -> Recorded:
    """Return what a recurrent module keeps of a step; `None` if it is not in the file.

    Args:
        obj: the module.
        name: the field with a table of all steps.
        step: from 1.
    """
    table = obj.get(name)
    return recorded(table.get(float(step))) if isinstance(table, Table) else None


# Runs


@define(eq=False)
class Place:
    """Where a module is; the whole path is made only when somebody asks for it, as files nest deep.

    Attributes:
        parent: the place of the container; `None` for the model.
        step_in_path: the step from there, `.modules[1]`; of the model its whole path.
    """

    parent: Place | None
    step_in_path: str

    def path(self) -> str:
        """Return the path in the file."""
        steps: list[str] = []
        place: Place | None = self
        while place is not None:
            steps.append(place.step_in_path)
            place = place.parent
        return "".join(reversed(steps))


@define(eq=False)
class Pass:
    """One pass through a model: a call of its `forward` in Lua, and perhaps of its `backward`.

    Attributes:
        in_other_mode: whether the model ran in another mode than that in which it was saved.
        budget: resource limits of following it, which each reading of the pass has for itself.
        run_counts: how often each module runs in it, by its id; empty in the first reading, which counts them.
    """

    in_other_mode: bool
    budget: Budget = field(repr=False)
    run_counts: Mapping[int, int] = field(factory=dict)

    @property
    def is_first_reading(self) -> bool:
        """Whether nobody has counted yet how often each module runs."""
        return not self.run_counts

    def is_in_evaluation(self, obj: TorchObject) -> bool:
        """Return whether a module ran in evaluation, for which it must say so."""
        mode = obj.get("train")
        return isinstance(mode, bool) and mode == self.in_other_mode


@define(frozen=True)
class Joined:
    """The outputs of modules that a container only concatenates.

    Attributes:
        parts: the outputs.
        dim: the dimension, from 0.
    """

    parts: list[Recorded]
    dim: int


@define(eq=False)
class Run:
    """One run of one module. A container has a run, too, which holds the runs of the modules inside.

    Attributes:
        place: the module's place in the file.
        obj: the module.
        input: its input; `None` if missing from the file.
        model_pass: the pass of the model that it is part of.
        grad_output: the gradient with respect to its output.
        output: its output.
        grad_input: the gradient with respect to its input.
        inside: the runs of the modules inside, in order.
        is_compared: whether it is compared itself: not if only what is inside is.
        is_container: whether this is a container, whose modules have runs of their own.
        joined: the outputs of its modules, if it only joins them.
        is_last: whether its module does not run again later in the pass, which would overwrite its output. True of all
            until the first reading has ended.
        writes: the memory that it wrote.
        reason: why the input is missing, if known.
        contradiction: what is wrong with the fields of a container, which cannot have run with them.
        step_and_count: in a sequence, the step from 0 and the number of steps; `None` elsewhere.
        previous_output: the module's output one step before, if a sequence keeps a copy of it; else `None`.
        places_in_copy: in the copy of a cell that ran a step, the place at which each module inside is shown, by its
            id: that of the module whose weights it shares. `_add_run_of_step` sets it; the runs inside have the same.
        first_reading: the same run in the first reading of the pass; `None` in that itself.
    """

    place: Place
    obj: TorchObject
    input: Recorded
    model_pass: Pass = field(repr=False)
    grad_output: Recorded = None
    output: Recorded = None
    grad_input: Recorded = None
    inside: list[Run] = field(factory=list, repr=False)
    is_compared: bool = True
    is_container: bool = False
    joined: Joined | None = None
    is_last: bool = True
    writes: list[Region] = field(factory=list)
    reason: str = ""
    contradiction: str = ""
    step_and_count: tuple[int, int] | None = None
    previous_output: Recorded = None
    places_in_copy: dict[int, Place] = field(factory=dict)
    first_reading: Run | None = field(default=None, repr=False)

    @property
    def path(self) -> str:
        """The module's path in the file."""
        return self.place.path()

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
        return self.in_place and recording_of(self.obj).restores_input and grad_input_of(self.obj) is not None

    @property
    def step(self) -> int:
        """The step of a recurrent module, from 1, by which its tables are indexed."""
        # Outside of a sequence only the last step is recorded: it counts as a sequence of one step.
        step_in_sequence, count = self.step_and_count or (0, 1)
        first = 1
        if self._next_step is not None:
            # It may count on over several sequences: then this one does not begin with 1.
            first = max(self._next_step - count, 1)
        return first + step_in_sequence

    @property
    def _next_step(self) -> int | None:
        """The field `step` of a recurrent module: the one after its last step; `None` if that cannot be its number."""
        number = self.obj.get("step")
        return int(number) if isinstance(number, float) and 1 <= number < _NEVER_A_STEP else None

    @property
    def is_unknown_step(self) -> bool:
        """True outside of sequences where the steps of a recurrent module are not recorded."""
        return self.step_and_count is None and self.obj.get("step") == 1.0

    def add_run_inside(self, step_in_path: str, obj: TorchObject, inputs: Recorded) -> Run:
        """Add the run of a module inside, the one after those in `inside`, and return it.

        It is part of the same pass, the same step of a sequence and the same copy of a cell as this run.

        Args:
            step_in_path: the step from this module to it, `.modules[1]`.
            obj: the module.
            inputs: its input.

        Raises:
            LimitError: there are too many runs.
        """
        self.model_pass.budget.spend(STEPS_PER_NODE)
        # In the copy of a cell the module is shown elsewhere.
        place = self.places_in_copy.get(id(obj)) or Place(self.place, step_in_path)
        run = Run(
            place, obj, inputs, self.model_pass, step_and_count=self.step_and_count, places_in_copy=self.places_in_copy
        )
        if not self.model_pass.is_first_reading:
            self._set_is_last(run, number=len(self.inside))
        self.inside.append(run)
        return run

    def _set_is_last(self, run: Run, number: int) -> None:
        """Set whether a run inside is the last one of its module, as the first reading of the pass has found.

        What is recorded differs between the readings, and with it sometimes what runs. Where the first reading has no
        such run, it counts as the last one only if its module runs at most once.

        Args:
            run: the run.
            number: its place among the runs inside, from 0.
        """
        if self.first_reading is not None and number < len(self.first_reading.inside):
            run.first_reading = self.first_reading.inside[number]
            run.is_last = run.first_reading.is_last
        else:
            run.is_last = self.model_pass.run_counts.get(id(run.obj), 0) <= 1

    def recorded_output(self) -> Recorded:
        """Return the output; `None` if the module runs again and overwrites it, or if it is not in the file."""
        in_sequence = is_recurrent(self.obj) and self.step_and_count is not None
        # In training; in evaluation it overwrites its output in each step.
        keeps_all_steps = is_recurrent(self.obj) and not self.model_pass.is_in_evaluation(self.obj)
        if not keeps_all_steps and not self.is_last:
            return None
        if in_sequence and keeps_all_steps:
            return _state(self.obj, "outputs", self.step)
        if in_sequence and self._next_step is not None:
            # This is the last step. A backward has set `output` to that of the first one; the table has the last.
            last = _state(self.obj, "outputs", self._next_step - 1)
            if isinstance(last, Tensor):
                return last
        output = output_of(self.obj)
        if output is None and self.in_place:
            # Its own field was cleared; the output is in the memory of the input.
            return first_of(self.input)
        return output

    def recorded_grad_input(self) -> Recorded:
        """Return the gradient with respect to the input; `None` in a sequence, or of several runs: it is the last's."""
        in_sequence = self.step_and_count is not None and is_recurrent(self.obj)
        if in_sequence or self.model_pass.run_counts.get(id(self.obj), 0) > 1:
            return None
        return grad_input_of(self.obj)

    def read_recorded(self) -> None:
        """Set `output` and `grad_input` to what is recorded of a run, and `input` to `None` if it does not suffice.

        It does not where the output depends on the step before, too. The runs inside are given the input: they have to
        be added before.
        """
        # A module over sequences has all its steps in the input.
        continues_from_step = is_recurrent(self.obj) and not recording_of(self.obj).over_sequences
        if continues_from_step:
            self.input = None
        # Of a container around such a module, its class does not tell the reason.
        if self.is_container and self.step_and_count is not None and _keeps_state(self.obj):
            self.input = None
            self.reason = STEP_BEFORE
        self.output = self.recorded_output()
        self.grad_input = self.recorded_grad_input()


def runs(
    root: TorchObject, path: str = "root", limits: Limits = DEFAULT_LIMITS, in_other_mode: bool = False
) -> list[Run]:
    """List the runs of a model's layers that are compared, in the order in which they end.

    Args:
        root: the model.
        path: its own path.
        limits: `work` bounds the number of runs.
        in_other_mode: see `Pass`.

    Raises:
        LimitError: there are too many.
    """
    # How often a module runs, and which of its runs was the last, is known after a first reading of the pass.
    first_reading = Run(Place(None, path), root, input=None, model_pass=_new_pass(limits, in_other_mode))
    begun, _ = _follow(first_reading)
    _mark_last_runs(begun)
    # In the second one, a module that runs again has no recorded output but in its last run.
    second_pass = _new_pass(limits, in_other_mode, run_counts=Counter(id(run.obj) for run in begun))
    _, ended = _follow(_begin_again(first_reading, second_pass))
    compared = [run for run in ended if run.is_compared]
    _note_all_writes(compared)
    return compared


def _begin_again(first_reading: Run, second_pass: Pass) -> Run:
    """Return the run of a model for the second reading, without runs inside.

    Args:
        first_reading: its run in the first reading.
        second_pass: the pass in the second.
    """
    return Run(
        first_reading.place,
        first_reading.obj,
        input=None,
        model_pass=second_pass,
        is_last=first_reading.is_last,
        first_reading=first_reading,
    )


def _new_pass(limits: Limits, in_other_mode: bool, run_counts: Mapping[int, int] | None = None) -> Pass:
    """Return a pass for one reading; see `Pass`.

    Args:
        limits: `work` bounds the number of its runs.
        in_other_mode: whether the model ran in another mode than that in which it was saved.
        run_counts: how often each module runs; `None` for the first reading.
    """
    return Pass(in_other_mode, Budget(limits, "following the runs of the layers"), run_counts or {})


def _mark_last_runs(begun: list[Run]) -> None:
    """Set which run of each module is its last one.

    Args:
        begun: all runs, in the order in which they begin.
    """
    seen: set[int] = set()  # modules, by their ids
    for run in reversed(begun):
        run.is_last = id(run.obj) not in seen
        seen.add(id(run.obj))


def _follow(start: Run) -> tuple[list[Run], list[Run]]:
    """Add the runs inside a run, those inside these, and so on, each with what is recorded of it.

    Returns:
        All of them and the run itself, twice: in the order in which they begin, of which it is the first, and in that
        in which they end. Lua's containers write their output after their modules: the second order is that of the
        writes. Of modules that contain themselves the run inside is in neither.
    """
    begun: list[Run] = []
    ended: list[Run] = []
    # A run is twice on the stack: to begin, and, below the runs inside it, to end. The truth value tells which.
    stack: list[tuple[Run, bool]] = [(start, False)]
    running: set[int] = set()  # modules, by their ids
    while stack:
        run, is_at_end = stack.pop()
        if is_at_end:
            running.discard(id(run.obj))
            ended.append(run)
            continue
        if id(run.obj) in running:
            continue  # it contains itself
        begun.append(run)
        running.add(id(run.obj))
        _add_runs_inside(run)
        run.read_recorded()
        stack.append((run, True))
        stack += [(inside, False) for inside in reversed(run.inside)]
    return begun, ended


def _note_all_writes(ended: list[Run]) -> None:
    """Set the `writes` of runs.

    Args:
        ended: the runs that are compared, in the order in which they end.
    """
    written: set[int] = set()
    for run in ended:
        _note_writes(run, written)
        written.update(storage for storage, _, _ in run.writes)


def _note_writes(run: Run, written: set[int]) -> None:
    """Add the memory that a run wrote to its `writes`: that of its output, unless something else wrote it.

    Args:
        run: the run.
        written: the storages, by id, that runs before it wrote.
    """
    regions_of_input = [_region(tensor) for tensor in tensors_in(run.input)]
    for region in map(_region, tensors_in(run.output)):
        # nn.View, for one, returns the memory of its input as it is; a layer that works in place writes it.
        is_view = not run.in_place and any(overlap(region, one) for one in regions_of_input)
        storage, _, _ = region
        is_of_module_inside = run.is_container and storage in written
        if not is_view and not is_of_module_inside:
            run.writes.append(region)
    if run.in_place and _wrote_input_too(first_of(run.input), run.output):
        run.writes.append(_region(first_of(run.input)))


def _wrote_input_too(source: Recorded, target: Recorded) -> bool:
    """Return whether a layer that works in place wrote the memory of its input, though its output is in other memory.

    In older releases the output had memory of its own once a model had changed its type, and the layer wrote both: then
    both have the same values.

    Args:
        source: its input.
        target: its output.
    """
    if not isinstance(source, Tensor) or not isinstance(target, Tensor):
        return False
    has_own_memory = source.storage is not target.storage and source.shape == target.shape
    return has_own_memory and np.array_equal(source.numpy(), target.numpy(), equal_nan=True)


class Memory:
    """Which recorded values are unchanged since a layer read or wrote them.

    In-place layers and buffers that several layers share overwrite outputs that earlier layers recorded. Storages and
    the order of the runs show which ones. Where a backward may have restored the input of an in-place layer, nobody
    knows which of the two values is in the file: such memory counts as overwritten.

    Args:
        runs: in order.
    """

    def __init__(self, runs: list[Run]) -> None:
        self._writes: dict[int, list[tuple[int, Region]]] = {}
        """The numbers of the runs that wrote a storage, by its id, and what of it."""
        self._gradient_writers: dict[int, set[int]] = {}
        """The numbers of the runs whose backward wrote its gradient into a storage, by its id."""
        for number, run in enumerate(runs):
            # The backward of such an in-place layer may take its change back, after all runs. This one late write
            # stands for both: as it is later than any run, nobody takes the memory for unchanged.
            writer = len(runs) if run.may_be_undone else number
            for region in run.writes:
                storage, _, _ = region
                self._writes.setdefault(storage, []).append((writer, region))
            # The gradInput of a container is often that of a module inside: noted again, it would have two writers. Of
            # outputs, `writes` leaves out what a module inside wrote.
            if not run.is_container:
                self._note_gradients(number, run)

    def _note_gradients(self, number: int, run: Run) -> None:
        """Note where the backward of a run wrote the gradient with respect to its input, in `_gradient_writers`."""
        # A layer that passes a gradient on, as nn.View does, does not write it. One that works in place does, into the
        # memory of gradOutput.
        passed_on = set()
        if not run.in_place:
            passed_on = {id(tensor.storage) for tensor in tensors_in(run.grad_output)}
        for tensor in tensors_in(run.grad_input):
            if id(tensor.storage) not in passed_on:
                self._gradient_writers.setdefault(id(tensor.storage), set()).add(number)

    def is_overwritten(self, value: Recorded, number: int) -> bool:
        """Return whether a run after one changed the memory of any tensor of a value.

        Args:
            value: the value.
            number: of the one, from 0: all with higher numbers count; -1 if all do.
        """
        for tensor in tensors_in(value):
            region = _region(tensor)
            for writer, written in self._writes.get(id(tensor.storage), ()):
                if writer > number and overlap(written, region):
                    return True
        return False

    def holds_gradients(self, run: Run) -> bool:
        """Return whether the gradients with respect to output and input are in memory that one layer alone writes.

        Asked only of runs for which both are recorded: without any it is true.
        """
        received = {id(tensor.storage) for tensor in tensors_in(run.grad_output)}
        returned = {id(tensor.storage) for tensor in tensors_in(run.grad_input)}
        # A layer that works in place returns the gradient in the memory in which it received another.
        if received & returned:
            return False
        return all(len(self._gradient_writers.get(storage, ())) <= 1 for storage in received | returned)


# How containers pass values


def _add_runs_inside(run: Run) -> None:
    """Add the runs of the modules inside a container, with their inputs and the gradients of their outputs.

    Sets also whether the run is that of a container, whether it is compared itself, and what it joins. Of a layer
    without modules, or a container of which nobody knows what it does with them, no runs are added.
    """
    recording = recording_of(run.obj)
    # A cell of one step has modules inside, which are compared instead. The LSTM of torch-rnn has the same name,
    # but a weight of its own: it takes whole sequences, and is compared itself.
    if recording.states is not None and not isinstance(run.obj.get("weight"), Tensor):
        run.is_compared = False
        _add_run_of_step(run, recording)
        return
    container = _container_of(run)
    if container is None:
        # Its modules have no runs, but it counts as a container all the same.
        run.is_container = _has_modules(run.obj)
        return
    run.is_container = True
    _add_runs_of_flow(run, container)


def _has_modules(obj: TorchObject) -> bool:
    """Return whether an object's entry finds modules inside it."""
    layer = layer_of(obj.class_name)
    if layer is None or layer.children is None:
        return False
    return next(iter(layer.children(obj)), None) is not None


@define(frozen=True)
class _Container:
    """What a container does with the modules inside.

    Attributes:
        spec: the container, with these modules.
        flow: how it passes values through them.
        is_transparent: whether it does nothing besides; see `Traits.transparent`.
    """

    spec: ModuleSpec
    flow: Flow
    is_transparent: bool


def _add_runs_of_flow(run: Run, container: _Container) -> None:
    """Add the runs of the modules that a container calls; none if the recorded values do not fit what it does.

    Args:
        run: that of the container.
        container: what it does.

    Raises:
        LimitError: there are too many runs.
    """
    values = RecordedValues(run)
    try:
        result: PassedValue = container.flow(container.spec, PassedValue(run.input), values)
    except LimitError:
        raise  # a ValueError, too, but not the flow's
    except FLOW_ERRORS:
        # The recorded values do not fit the flow: what runs inside is not known.
        run.inside.clear()
        return
    values.pass_back(result)
    if container.is_transparent:
        # It does nothing itself: what its modules return is compared, and perhaps what it makes of that.
        run.is_compared = result.is_computed
        run.joined = result.joined


def _container_of(run: Run) -> _Container | None:
    """Return what a container does; `None` if it is not known, and for a layer without modules inside.

    How it passes values through the modules inside, its flow, is that which Lua's class declares, if it runs them in
    another way than PyTorch's; else that of the PyTorch class which its entry maps it to. If its fields contradict one
    another, the run's `contradiction` says so.

    Args:
        run: that of the module, whose `obj` may be of any class.
    """
    obj = run.obj
    recording = recording_of(obj)
    if recording.flow is not None:
        # Lua runs other modules than PyTorch: the class of PyTorch does not matter.
        children = {str(number): child for number, child in enumerate(_children_of(obj))}
        return _Container(_spec(run, Call(target=""), children), recording.flow, recording.transparent)
    layer = layer_of(obj.class_name)
    if layer is None or layer.children is None:
        return None
    if layer.children is first_module:
        return None  # copies of one module for several devices have seen parts of the batch
    inside = [child for child in layer.children(obj) if isinstance(child.value, TorchObject)]
    return _container_as_in_pytorch(run, layer, inside)


def _container_as_in_pytorch(run: Run, layer: Layer, inside: list[Child]) -> _Container | None:
    """Return what a container does if it does what its PyTorch class does; `None` if that is not known.

    Args:
        run: that of the container, whose `contradiction` may be set.
        layer: its entry in the registry of Lua's classes.
        inside: the modules that run, by this entry.
    """
    call_and_graph = _call_and_graph(run, layer)
    if call_and_graph is None:
        return None
    call, graph = call_and_graph
    facts = traits_of(call.target)
    if facts.flow is None:
        return None  # PyTorch's class is a layer, or runs its modules in a way that only its code says
    if graph is None and _runs_others_than_listed(run.obj, inside):
        return None
    spec = _spec(run, call, {child.name: child for child in inside})
    spec.graph = graph
    return _Container(spec, facts.flow, facts.transparent)


def _call_and_graph(run: Run, layer: Layer) -> tuple[Call, GraphSpec | None] | None:
    """Return the call that makes a container in PyTorch, and of a graph its nodes.

    `None` if PyTorch has no such module, or the container's fields are damaged. If they contradict one another, the
    run's `contradiction` says so.

    Args:
        run: that of the container.
        layer: its entry in the registry of Lua's classes.
    """
    module = layer.module_of(run.obj.class_name)
    if module is None:
        return None
    try:
        # No shapes are known of tensors of its own: only rules of layers ask for these.
        call = module(Lua(run.obj, path="", defaults=layer.defaults, shapes={}))
        is_graph = traits_of(call.target).is_graph
        return call, graph_spec(run.obj, path="") if is_graph else None
    except NotMappedError:
        # With these fields PyTorch has no such module, or the nodes of its graph are not in the file.
        return None
    except ModelError as error:  # the registry's rule for this class read the fields, and refuses them
        run.contradiction = f"{error.message}: expected {error.expected}, found {error.found}"
        return None
    except FLOW_ERRORS:  # the rule fails at damaged fields, before it could refuse them
        return None


def _runs_others_than_listed(obj: TorchObject, inside: list[Child]) -> bool:
    """Return whether a user put other modules into `modules` than a container runs, so that their records do not fit.

    Args:
        obj: the container.
        inside: the modules that run, by its entry.
    """
    listed = [id(child.value) for child in _children_of(obj)]
    return bool(listed) and listed != [id(child.value) for child in inside]


def _spec(run: Run, call: Call, children: Mapping[str, Child]) -> ModuleSpec:
    """Return a container as a flow reads it; of the modules inside only objects and the steps to them are known."""
    inside = {name: ModuleSpec("", obj=child.value, path=child.path) for name, child in children.items()}
    return ModuleSpec(call.target, call.args, call.kwargs, inside, obj=run.obj)


@define(eq=False)
class PassedValue:
    """A value that a container passes from module to module; `pass_back` finds its uses by its identity.

    Attributes:
        value: as it is recorded; `None` if missing from the file.
        items: the elements of a list that the container makes.
        joined: of a tensor that the container concatenates, the recorded parts and the dimension.
        parts: these parts, as values passed.
        is_computed: whether the container itself computes something of it.
    """

    value: Recorded = None
    items: list[PassedValue] | None = None
    joined: Joined | None = None
    parts: list[PassedValue] = field(factory=list)
    is_computed: bool = False


class RecordedValues(Domain[PassedValue]):
    """What Lua recorded of the values that a container passes; `call` adds the run of a module inside.

    Args:
        run: that of the container, which receives the runs of the modules inside.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._fields_of_inputs = recording_of(run.obj).inputs
        """The fields in which the container keeps what modules inside took, by their names."""
        self._nodes = recorded_nodes(run.obj)
        """What each node of a graph took and got back, in the order of the calls."""
        self._calls: list[tuple[PassedValue, PassedValue]] = []
        """The input and the output of each module that was called, in the order of `run.inside`."""
        self._step_and_count: tuple[int, int] | None = None
        """In a sequence, the step, from 0, and the number of steps; `None` elsewhere."""
        self._previous_output: Recorded = None
        """In a sequence, the output of the container in the step before; `None` in the first, and elsewhere."""

    def tensor(self) -> PassedValue:
        """Return a value that is not recorded."""
        return PassedValue(is_computed=True)

    def items(self, values: Sequence[PassedValue]) -> PassedValue:
        """Return a list of values; recorded if any of them is, as elements that are not stay `None`."""
        elements = [value.value for value in values]
        is_known = any(element is not None for element in elements)
        is_computed = any(value.is_computed for value in values)
        return PassedValue(elements if is_known else None, list(values), is_computed=is_computed)

    def item(self, value: PassedValue, index: int, dim: int | None = None) -> PassedValue:
        """Return an element of a list, or a slice of a tensor.

        Args:
            value: the list or tensor.
            index: of the element, from 0, or from -1 backwards; or of the slice, from 0.
            dim: the dimension that is sliced, from 0; `None` for a list.
        """
        if dim is not None:
            # Unlike an element of a list, Lua has to make it.
            return PassedValue(_slice_along(value.value, dim, index), is_computed=True)
        if value.items is None:
            return PassedValue(_element(value.value, index))
        # An element that a list does not have is nil in Lua.
        has_element = -len(value.items) <= index < len(value.items)
        return value.items[index] if has_element else PassedValue()

    def length(self, value: PassedValue, dim: int | None = None) -> int | None:
        """Return the number of elements of a list, or of slices along a dimension; `None` if it is not recorded."""
        if dim is None:
            return len(value.value) if isinstance(value.value, list) else None
        is_tensor = isinstance(value.value, Tensor) and 0 <= dim < len(value.value.size)
        return int(value.value.size[dim]) if is_tensor else None

    def is_list(self, value: PassedValue) -> bool | None:
        """Return whether a value is a list; `None` if it is not recorded."""
        return None if value.value is None else isinstance(value.value, list)

    def concat(self, values: Sequence[PassedValue], dim: int, *, pads: bool = False) -> PassedValue:
        """Return a tensor that is joined of others.

        Args:
            values: the parts.
            dim: along which dimension, from 0.
            pads: whether smaller parts are filled up: where each of them is in the result is not known then.
        """
        joined = None if pads else Joined([value.value for value in values], dim)
        return PassedValue(joined=joined, parts=list(values), is_computed=True)

    def merge(self, value: PassedValue, dims: int, apply: Callable[[PassedValue], PassedValue]) -> PassedValue:
        """Apply a function to a tensor whose first dimensions are merged into one, so that `dims` remain.

        Unlike that of `Domain.merge`, the result is not split again: of what a container returns only `is_computed`
        counts then, as its output is recorded by itself.
        """
        if isinstance(value.value, Tensor):
            value = PassedValue(_with_merged_dims(value.value, dims))
        return evolve(apply(value), is_computed=True)

    def steps(self, value: PassedValue, apply: Callable[[PassedValue], PassedValue]) -> PassedValue:
        """Apply a function to each step of a sequence, of which there are as many as recorded outputs."""
        inputs = _sequence(value.value)
        return self._in_steps(lambda number: apply(PassedValue(_element(inputs, number))))

    def repeat(self, times: int | None, apply: Callable[[], PassedValue]) -> PassedValue:
        """Call a function in each step of a sequence, of which there are as many as recorded outputs."""
        return self._in_steps(lambda number: apply())

    def _in_steps(self, apply: Callable[[int], PassedValue]) -> PassedValue:
        """Call a function with the number of each step, from 0; meanwhile `call` notes in its runs which step it is.

        There are as many steps as the container has recorded outputs; without these it is not called.

        Returns:
            The sequence that the container makes of what the steps return, which is not recorded.
        """
        outputs = _sequence(self._run.recorded_output())
        for number in range(len(outputs)):
            self._step_and_count = (number, len(outputs))
            self._previous_output = outputs[number - 1] if number else None
            apply(number)
        self._step_and_count = None
        self._previous_output = None
        return PassedValue(is_computed=True)

    def call(self, spec: ModuleSpec, child: str, value: PassedValue, node: int | None = None) -> PassedValue:
        """Add the run of a module inside, and return its recorded output.

        Of a module that ran all steps of a sequence in evaluation, only the run of the last step is added: its fields
        are of that.

        Args:
            spec: the container.
            child: the name of the module.
            value: its input as the flow has it; what the file records counts more.
            node: of a graph, the number of the node.
        """
        inside = spec.children[child]
        assert inside.obj is not None  # see `_spec`
        is_in_evaluation = self._run.model_pass.is_in_evaluation(inside.obj)
        if is_in_evaluation and self._is_before_last_step():
            return PassedValue()
        value, gradient = self._recorded_around(child, value, is_node=node is not None)
        run = self._run.add_run_inside(inside.path, inside.obj, value.value)
        run.grad_output = gradient
        if self._step_and_count is not None:
            run.step_and_count = self._step_and_count
            if is_in_evaluation:
                run.previous_output = self._previous_output  # in training it is among the module's own `outputs`
        output = PassedValue(run.recorded_output())
        self._calls.append((value, output))  # `pass_back` finds both by their identity
        return output

    def _is_before_last_step(self) -> bool:
        """Return whether a step of a sequence runs after which others follow."""
        if self._step_and_count is None:
            return False
        step, count = self._step_and_count
        return step + 1 < count

    def _recorded_around(self, child: str, value: PassedValue, is_node: bool) -> tuple[PassedValue, Recorded]:
        """Return the input of the module that is called next, and the gradient with respect to its output, if recorded.

        What the file records of the input counts more than what the flow passes.

        Args:
            child: the name of the module.
            value: its input as the flow has it.
            is_node: whether it is a node of a graph, which keeps what it took, and what came back.
        """
        if child in self._fields_of_inputs:
            # Lua adds steps of zeros to what the flow passes: without the field nothing is known.
            value = PassedValue(recorded(self._run.obj.get(self._fields_of_inputs[child])))
        # A graph calls its nodes alone, in the order of `_nodes`, of which there may be fewer.
        number_of_node = len(self._calls)
        if not is_node or number_of_node >= len(self._nodes):
            return value, None
        data = self._nodes[number_of_node]
        # A node keeps both in lists, of one element if it has one input, or one use.
        input_of_node = _without_table(recorded(data.get("input")))
        if input_of_node is not None:
            value = PassedValue(input_of_node)
        gradient = _without_table(recorded(data.get("gradOutput")))
        # Those of several uses are a list, which Lua adds up; their sum is not kept.
        return value, None if isinstance(gradient, list) else gradient

    def pass_back(self, result: PassedValue) -> None:
        """Set the gradients with respect to the outputs of modules that are used once.

        They are the gradients with respect to the inputs of the modules that take these outputs. Of an output with
        several uses Lua adds them up, and the sum is not kept.

        Args:
            result: the output of the container.
        """
        gradients = self._gradients_of_uses(result)
        for (_, output), run in zip(self._calls, self._run.inside):
            gradients_of_output = gradients.get(id(output), [])
            if run.grad_output is None and len(gradients_of_output) == 1:
                run.grad_output = gradients_of_output[0]

    def _gradients_of_uses(self, result: PassedValue) -> dict[int, list[Recorded]]:
        """Return the gradients with respect to all uses of each value that was passed, by its id; `None` among them.

        Args:
            result: the output of the container, which is a use of it.
        """
        # Values that were used, and the gradient with respect to each use.
        uses = [(result, self._run.grad_output)]
        for (value, _), run in zip(self._calls, self._run.inside):
            uses.append((value, run.recorded_grad_input()))
        gradients: dict[int, list[Recorded]] = {}
        while uses:
            value, gradient = uses.pop()
            gradients.setdefault(id(value), []).append(gradient)
            # Who uses a list, or a joined tensor, uses what it is made of.
            for index, item in enumerate(value.items or ()):
                uses.append((item, _element(gradient, index)))
            if value.joined is not None:
                uses += zip(value.parts, _split(gradient, value.joined))
        return gradients


def _with_merged_dims(tensor: Tensor, dims: int) -> Tensor | None:
    """Return a view of a tensor whose first dimensions are one; `None` if there is no such view.

    Args:
        tensor: the tensor; one that is not contiguous has none.
        dims: dimensions of the view; a tensor that has no more keeps its own.
    """
    merged_dims = max(len(tensor.size) - dims + 1, 1)
    if merged_dims > len(tensor.size) or tensor.stride != contiguous(tensor.size):
        return None
    size = (prod(tensor.size[:merged_dims]), *tensor.size[merged_dims:])
    return evolve(tensor, size=size, stride=contiguous(size))


def _split(gradient: Recorded, joined: Joined) -> list[Recorded]:
    """Return the gradients with respect to tensors that were joined, as views of that of the whole.

    Args:
        gradient: with respect to the joined tensor; `None` if it is not in the file.
        joined: the tensors that were joined, and along which dimension.

    Returns:
        One for each tensor; `None` for all if the size of any is not known, and for one beyond the gradient's end.
    """
    parts: list[Recorded] = []
    start = 0
    for part in joined.parts:
        if not isinstance(part, Tensor) or not 0 <= joined.dim < len(part.size):
            return [None] * len(joined.parts)
        length = part.size[joined.dim]
        parts.append(_slice_along(gradient, joined.dim, slice(start, start + length)))
        start += length
    return parts


def _sequence(value: Recorded) -> list[Recorded]:
    """Return the steps of a sequence: the elements of a list, or the slices of a tensor along its first dimension.

    It is empty for a value that is neither, and for a tensor of more than `_LONGEST` slices; lists are never longer.
    """
    if isinstance(value, Tensor) and value.size and value.size[0] <= _LONGEST:
        return [_slice_along(value, 0, index) for index in range(value.size[0])]
    return value if isinstance(value, list) else []


# Cells


def _add_run_of_step(run: Run, recording: Recording) -> None:
    """Add the run of the module inside a cell in one step; outside of sequences in its last one.

    None is added if that module is not in the file.

    Args:
        run: that of the cell.
        recording: what the cell keeps of its steps.
    """
    if recording.first_step and run.is_unknown_step:
        return  # it is not known which module ran: that of the first step, or of the others
    if recording.first_step and run.step == 1:
        # A module of its own runs the first step, on the input alone. It is shown where that of the other steps is.
        step_in_path = ".recurrentModule"
        module = run.obj.get(recording.first_step)
        inputs = run.input
    else:
        step_in_path, module = _copy_of_step(run)
        inputs = _with_states(run, recording)
    if not isinstance(module, TorchObject):
        return
    inside = run.add_run_inside(step_in_path, module, inputs)
    inside.previous_output = run.previous_output
    if recording.places:
        # A copy of the cell's module, made for this step, has modules of its own inside, which share the weights of
        # those in the cell's field `modules`: the places of these are shown.
        inside.places_in_copy = _places_in_copy(run, module, recording)


def _with_states(run: Run, recording: Recording) -> Recorded:
    """Return what the module inside a cell takes in a step: a list of its input and its states, or the input alone.

    Args:
        run: that of the cell.
        recording: what the cell keeps of its steps; its `states` are in the order in which the module takes them.
    """
    states = [_state_before(run, name, field_of_user) for name, field_of_user in recording.states or ()]
    return [run.input, *states] if states else run.input


def _places_in_copy(run: Run, module: TorchObject, recording: Recording) -> dict[int, Place]:
    """Return the places at which modules inside a copy are shown: those of the cell's modules with the same weights.

    Args:
        run: the run of the cell, in whose field `modules` those are.
        module: what ran this step: a copy of the module in the cell's field `recurrentModule`; in the first step what
            `recording.first_step` names.
        recording: its `places` has paths from the cell, and the number of the element of `modules` for each, from 1:
            `recurrentModule.modules.3` has the weights of 4, `initialModule.modules.1` those of 2.

    Returns:
        Places by the id of the module.
    """
    # Modules of the cell that ran themselves, as all do in evaluation, have their own places.
    numbers = {id(item): number for number, item in enumerate(_modules_of(run.obj), 1)}
    is_first_step = run.step == 1
    for path, number in recording.places.items():
        field_of_cell, _, path_in_module = path.partition(".")
        # Those of the other of the two fields are not paths in this module.
        is_of_first_step = field_of_cell == recording.first_step
        if is_of_first_step == is_first_step:
            numbers[id(lookup(module, path_in_module))] = number
    return {identity: Place(run.place, f".modules[{number}]") for identity, number in numbers.items()}


def _copy_of_step(run: Run) -> tuple[str, Value]:
    """Return the path from a cell to its module, and the module that ran a step.

    The second is in evaluation the cell's module itself, in training a clone that shares its weights, and is shown at
    its path; `None` if it is not in the file.

    Args:
        run: that of the cell, which knows the step.
    """
    children = _modules_of(run.obj)
    module = run.obj.get("recurrentModule")
    if module is None and children:
        module = children[0]  # cells without the field have the module as their only one
    # Where `modules` lists it, it has its place in the model there.
    step_in_path = ".recurrentModule"
    for number, child in enumerate(children, 1):
        if child is module:
            step_in_path = f".modules[{number}]"
            break
    if run.model_pass.is_in_evaluation(run.obj):
        return step_in_path, module
    clones = run.obj.get("sharedClones")
    return step_in_path, clones.get(float(run.step)) if isinstance(clones, Table) else None


def _state_before(run: Run, name: str, field_of_user: str) -> Recorded:
    """Return a state with which a step of a cell begins; `None` if it is not recorded.

    The first step begins with zeros, of the sizes of the state after it, unless the user sets the state: in
    `field_of_user`, or in `startState` for all.

    Args:
        run: that of the cell, which knows the step.
        name: the field with a table of the states after all steps, `outputs` or `cells`.
        field_of_user: the field with the first state, if the user sets it.
    """
    if run.is_unknown_step:
        return None
    is_set_by_user = run.obj.get(field_of_user) is not None or run.obj.get("startState") is not None
    if run.step == 1 and not is_set_by_user:
        return zeros_like(_state(run.obj, name, 1))
    if run.model_pass.is_in_evaluation(run.obj):
        # In evaluation only the last states are kept; a sequence has copies of the outputs.
        return run.previous_output if name == "outputs" else None
    return _state(run.obj, name, run.step - 1)
