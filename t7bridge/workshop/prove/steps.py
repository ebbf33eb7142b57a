"""The runs inside a cell: a recurrent module of rnn that runs copies of one module, one for each step of a sequence.
In evaluation the module itself runs all steps. Tables such as `outputs` and `cells` have what each step returned.

The copies, which share the weights, are in the field `sharedClones`. Sources: rnn ba937a0
`AbstractRecurrent.lua`, `Recursor.lua`, `LSTM.lua`, `GRU.lua`, `Recurrent.lua`, `Recurrence.lua`.
May import graph and nn. Knows nothing of PyTorch.
"""

from __future__ import annotations

from ...graph.lua import Table, TorchObject, Value
from ...nn.fields import lookup
from ...nn.registry import Recording
from .recorded import Recorded, recorded_of_step, zeros_like
from .run import Place, Run, modules_of


def add_run_of_step(run: Run, recording: Recording) -> None:
    """Add the run of the module inside a cell in one step; outside of sequences in its last one.

    None is added if that module is not in the file.

    Args:
        run: that of the cell.
        recording: what the cell keeps of its steps.
    """
    has_module_of_first_step = bool(recording.first_step)  # as nn.Recurrent, whose first step has no state to add
    if has_module_of_first_step and run.is_unknown_step:
        return  # it is not known which module ran: that of the first step, or of the others
    if has_module_of_first_step and run.step_in_tables == 1:
        module = run.obj.get(recording.first_step)
        step_in_path = ".recurrentModule"  # it is shown at the path of the module of the other steps
        inputs = run.input  # and no states
    else:
        step_in_path, module = _module_of_step(run)
        inputs = _with_states(run, recording)
    if not isinstance(module, TorchObject):
        return
    inside = run.add_run_inside(step_in_path, module, inputs)
    inside.previous_output = run.previous_output  # what the module returns is what the cell returns
    if recording.places:
        # A copy of the cell's module, made for this step, has modules of its own inside, which share the weights of
        # those in the cell's field `modules`: the places of these are shown.
        inside.places_in_copy = _places_in_copy(run, module, recording)


def _module_of_step(run: Run) -> tuple[str, Value]:
    """Return the path from a cell to its module, and the module that ran a step; `None` if this is not in the file.

    In evaluation that is the cell's module itself, in training a copy of it, which is shown at the same path.

    Args:
        run: that of the cell, which knows the step.
    """
    step_in_path, module = _module_of_cell(run.obj)
    if run.is_in_evaluation:
        return step_in_path, module
    copies = run.obj.get("sharedClones")
    return step_in_path, copies.get(float(run.step_in_tables)) if isinstance(copies, Table) else None


def _module_of_cell(cell: TorchObject) -> tuple[str, Value]:
    """Return the path from a cell to the module that it copies, and this module; `None` if it is not in the file."""
    children = modules_of(cell)
    module = cell.get("recurrentModule")
    if module is None and children:
        module = children[0]  # cells without the field have the module as their only one
    # A module that `modules` lists has its place in the model there.
    for number, child in enumerate(children, 1):
        if child is module:
            return f".modules[{number}]", module
    return ".recurrentModule", module


def _with_states(run: Run, recording: Recording) -> Recorded:
    """Return what the module inside a cell takes in a step: a list of its input and its states, or the input alone.

    Args:
        run: that of the cell.
        recording: what the cell keeps of its steps; its `states` are in the order in which the module takes them.
    """
    states = [_state_before(run, name, field_of_user) for name, field_of_user in recording.states or ()]
    return [run.input, *states] if states else run.input


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
    if run.step_in_tables == 1 and not is_set_by_user:
        return zeros_like(recorded_of_step(run.obj, name, 1))
    if run.is_in_evaluation:
        # In evaluation only the last states are kept; a sequence has copies of the outputs.
        return run.previous_output if name == "outputs" else None
    # Before a first step with a state of the user's there is none in the table: the result is `None`.
    return recorded_of_step(run.obj, name, run.step_in_tables - 1)


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
    numbers = {id(item): number for number, item in enumerate(modules_of(run.obj), 1)}
    is_first_step = run.step_in_tables == 1
    for path, number in recording.places.items():
        field_of_cell, _, path_in_module = path.partition(".")
        # Paths that begin with the field of the other module do not lead into this one.
        is_of_first_step = field_of_cell == recording.first_step
        if is_of_first_step != is_first_step:
            continue
        inside = lookup(module, path_in_module)
        if inside is not None:  # it is in the file
            numbers[id(inside)] = number
    return {identity: Place(run.place, f".modules[{number}]") for identity, number in numbers.items()}
