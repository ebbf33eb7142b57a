"""A run: one call of one module in the last pass of a Lua model, and what the file records of it.

A pass is a call of the model's `forward` in Lua, and perhaps of its `backward`. A module's fields hold the results of
its last run in the pass, except that a recurrent module keeps tables of all its steps. Sources: rnn ba937a0
`AbstractRecurrent.lua`, `Sequencer.lua`. May import graph and nn. Knows nothing of PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field

from ...data import define
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from ...limits import STEPS_PER_NODE, Budget
from ...nn.fields import items_of
from ...nn.registry import recording_of, stock_name
from .recorded import DEEPEST, Recorded, first_of, grad_input_of, output_of, recorded_of_step

STEP_BEFORE = "continues from the step before"
_NEVER_A_STEP = 1e6
"""A field `step` from this number on is not that of a sequence."""


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


@define(frozen=True)
class SequenceStep:
    """A step of the sequence that a container, such as nn.Sequencer, passes through its module.

    Attributes:
        index: of the step, from 0.
        count: how many steps the sequence has.
    """

    index: int
    count: int

    @property
    def is_last(self) -> bool:
        """Whether no step follows."""
        return self.index + 1 == self.count


@define(eq=False)
class Reading:
    """One of two readings of a model's last pass: the first counts how often each module runs, the second uses that.

    Attributes:
        in_other_mode: whether the model ran in another mode than that in which it was saved.
        budget: limits the number of runs of this reading.
        run_counts: how often each module runs in the pass, by its id; empty in the first reading.
    """

    in_other_mode: bool
    budget: Budget = field(repr=False)
    run_counts: Mapping[int, int] = field(factory=dict)

    @property
    def is_first(self) -> bool:
        """Whether nobody has counted yet how often each module runs."""
        return not self.run_counts

    def ran_in_evaluation(self, obj: TorchObject) -> bool:
        """Return whether a module ran in evaluation; False if it has no field with its mode."""
        saved_in_training = obj.get("train")
        return isinstance(saved_in_training, bool) and saved_in_training == self.in_other_mode


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
    """One call of one module in the last pass of a model. The run of a container holds those of the modules inside. The
    pass is read twice: what is known at the end of the first reading, the second uses (`first_reading`, `is_last`).

    Attributes:
        place: the module's place in the file.
        obj: the module.
        input: its input; `None` if missing from the file.
        reading: the reading of the pass that it is part of.
        grad_output: the gradient with respect to its output.
        output: its output.
        grad_input: the gradient with respect to its input.
        inside: the runs of the modules inside, in order.
        is_compared: whether it is compared itself: not if only what is inside is.
        is_container: whether this is a container, whose modules have runs of their own.
        joined: the outputs of its modules, if it only joins them.
        is_last: whether its module does not run again later in the pass, which would overwrite its output. True of all
            until the first reading has ended.
        why_no_input: why the input is missing, if known; else empty.
        contradiction: what is wrong with the fields of a container, which cannot have run with them.
        step: of the sequence that it is part of; `None` outside of sequences.
        previous_output: the module's output one step before, if a sequence keeps a copy of it; else `None`.
        places_in_copy: in the copy of a cell that ran a step, the place at which each module inside is shown, by its
            id: that of the module whose weights it shares. The runs inside have the same.
        first_reading: the same run in the first reading of the pass; `None` in that itself.
    """

    place: Place
    obj: TorchObject
    input: Recorded
    reading: Reading = field(repr=False)
    grad_output: Recorded = None
    output: Recorded = None
    grad_input: Recorded = None
    inside: list[Run] = field(factory=list, repr=False)
    is_compared: bool = True
    is_container: bool = False
    joined: Joined | None = None
    is_last: bool = True
    why_no_input: str = ""
    contradiction: str = ""
    step: SequenceStep | None = None
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
    def is_recurrent(self) -> bool:
        """True if the module keeps tables of all steps, as cells and sequencers of rnn do."""
        return keeps_steps(self.obj)

    @property
    def is_in_evaluation(self) -> bool:
        """True if the module ran in evaluation."""
        return self.reading.ran_in_evaluation(self.obj)

    @property
    def step_in_tables(self) -> int:
        """The key of this step in the tables of a recurrent module, from 1.

        It counts on over several sequences, until it is told to forget: then this sequence does not begin with 1.
        """
        # Outside of a sequence only its last step is known: it counts as a sequence of one step.
        step = self.step or SequenceStep(index=0, count=1)
        first_key = 1
        if self._next_step_in_tables is not None:
            # The last step of the sequence is the one before the next step.
            first_key = max(self._next_step_in_tables - step.count, 1)
        return first_key + step.index

    @property
    def _next_step_in_tables(self) -> int | None:
        """The field `step` of a recurrent module: the step after its last one; `None` if that cannot be its number."""
        number = self.obj.get("step")
        return int(number) if isinstance(number, float) and 1 <= number < _NEVER_A_STEP else None

    @property
    def is_unknown_step(self) -> bool:
        """True outside of sequences if the module has forgotten its steps: the next one is its first."""
        return self.step is None and self.obj.get("step") == 1.0

    def add_run_inside(self, step_in_path: str, obj: TorchObject, inputs: Recorded) -> Run:
        """Add the run of a module inside, the one after those in `inside`, and return it.

        It is part of the same reading, the same step of a sequence and the same copy of a cell as this run.

        Args:
            step_in_path: the step from this module to it, `.modules[1]`.
            obj: the module.
            inputs: its input.

        Raises:
            LimitError: there are too many runs.
        """
        self.reading.budget.spend(STEPS_PER_NODE)
        # A module in the copy of a cell has the place of the one whose weights it shares.
        place = self.places_in_copy.get(id(obj)) or Place(self.place, step_in_path)
        run = Run(place, obj, inputs, self.reading, step=self.step, places_in_copy=self.places_in_copy)
        if not self.reading.is_first:
            # What the first reading has found out when it had ended: whether the module runs again later.
            run.first_reading = self._run_in_first_reading(index=len(self.inside))
            run.is_last = self._is_last(run)
        self.inside.append(run)
        return run

    def _run_in_first_reading(self, index: int) -> Run | None:
        """Return the same run inside in the first reading, by its place among those inside; `None` if it had none."""
        if self.first_reading is None or index >= len(self.first_reading.inside):
            return None
        return self.first_reading.inside[index]

    def _is_last(self, run: Run) -> bool:
        """Return whether the module of a run inside does not run again later in the pass."""
        if run.first_reading is not None:
            return run.first_reading.is_last
        # The readings know different outputs, and so may find different runs. Of one that only the second finds, it is
        # not known when it runs.
        return self.reading.run_counts.get(id(run.obj), 0) <= 1

    def recorded_output(self) -> Recorded:
        """Return the output; `None` if the module runs again and overwrites it, or if it is not in the file."""
        if self.is_recurrent and not self.is_in_evaluation:
            # In training it keeps the outputs of all steps, however often it runs.
            if self.step is not None:
                return recorded_of_step(self.obj, "outputs", self.step_in_tables)
        elif not self.is_last:
            return None
        elif self.is_recurrent and self.step is not None:
            # This is the last step, as others have no run in evaluation. A backward has set the field `output` to that
            # of the first step; the table has the last.
            output_of_last_step = self._output_of_last_step()
            if isinstance(output_of_last_step, Tensor):
                return output_of_last_step
        output = output_of(self.obj)
        if output is None and self.in_place:
            # Its own field was cleared; the output is in the memory of the input.
            return first_of(self.input)
        return output

    def _output_of_last_step(self) -> Recorded:
        """Return the output of a recurrent module's last step by its table of outputs; `None` if it has none there."""
        if self._next_step_in_tables is None:
            return None
        return recorded_of_step(self.obj, "outputs", self._next_step_in_tables - 1)

    def recorded_grad_input(self) -> Recorded:
        """Return the gradient with respect to the input; `None` if it is not in the file, or of several runs.

        Which of its runs the gradient in a module's field is of is not known.
        """
        is_step_of_recurrent = self.is_recurrent and self.step is not None
        if is_step_of_recurrent or self.reading.run_counts.get(id(self.obj), 0) > 1:
            return None
        return grad_input_of(self.obj)

    def read_recorded(self) -> None:
        """Set `output` and `grad_input` to what is recorded, and clear `input` if the output does not follow from it.

        It does not where the output depends on an earlier step, too. To be called after the runs inside were added,
        which are given the input.
        """
        # A module over sequences has all its steps in the input.
        if self.is_recurrent and not recording_of(self.obj).over_sequences:
            self.input = None
        # A container around such a module continues from its step before, too.
        if self.is_container and self.step is not None and _keeps_state(self.obj):
            self.input = None
            self.why_no_input = STEP_BEFORE
        self.output = self.recorded_output()
        self.grad_input = self.recorded_grad_input()


def keeps_steps(obj: TorchObject) -> bool:
    """Return whether a module keeps tables of all steps: it is recurrent."""
    return isinstance(obj.get("sharedClones"), Table) and isinstance(obj.get("outputs"), Table)


def modules_of(obj: Value) -> list[Value]:
    """Return the elements of a module's field `modules`, in order; none if there is no such list."""
    if not isinstance(obj, TorchObject):
        return []
    return items_of(obj.get("modules")) or []


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
    if keeps_steps(obj) and has_own_states:
        return True
    if depth >= DEEPEST:
        return False
    return any(_keeps_state(item, depth + 1) for item in modules_of(obj) if isinstance(item, TorchObject))
