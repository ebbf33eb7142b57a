"""Rules by which the recurrent modules of rnn pass values from step to step.

Sources: rnn ba937a0 `Sequencer.lua`, `BiSequencer.lua`, `BiSequencerLM.lua`, `Repeater.lua`, `Recursor.lua`,
`LSTM.lua`, `GRU.lua`, `Recurrent.lua`, `Recurrence.lua`, `MaskZero.lua`. May import graph and nn.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.lua import Table, TorchObject
from ...graph.tensor import Tensor
from ...nn.fields import items_of, lookup
from .values import Recorded, element, recorded, select, zeros_like
from .visits import Flow, Step, Visit, as_whole, base_name, children_of, first_step, in_place_of

CELLS: dict[str, tuple[tuple[str, str, str], ...]] = {
    **dict.fromkeys(
        ("LSTM", "FastLSTM"), (("outputs", "userPrevOutput", "_gradOutputs"), ("cells", "userPrevCell", "gradCells"))
    ),
    **dict.fromkeys(("GRU", "Recurrence"), (("outputs", "userPrevOutput", "_gradOutputs"),)),
}
"""Cells of rnn: the fields of each state that is passed from step to step, of the initial state set by the user, and of
the gradient with respect to it.
"""


def chain(visit: Visit) -> Iterator[Visit | Step]:
    """Modules in a chain."""
    kids = children_of(visit)
    given = visit.input
    for place, (path, child) in enumerate(kids):
        after = visit.grad_output if place + 1 == len(kids) else visit.grad_input_of(kids[place + 1][1])
        yield visit.inner(path, child, given, after)
        output = visit.output_of(child)
        given = in_place_of(child, given) if output is None and visit.walk.is_last(child) else output


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
    kids = children_of(visit)
    if kids and outputs:
        yield from _steps(visit, *kids[0], inputs, outputs)
    yield as_whole(visit)


def _repeater(visit: Visit) -> Iterator[Visit | Step]:
    outputs = _sequence(visit.output_of(visit.obj))
    kids = children_of(visit)
    if kids and outputs:
        yield from _steps(visit, *kids[0], [visit.input] * len(outputs), outputs)
    yield as_whole(visit)


def _steps(
    visit: Visit, path: str, child: TorchObject, inputs: list[Recorded], outputs: list[Recorded]
) -> Iterator[Visit]:
    # In evaluation one module runs all steps; its fields are of the last.
    count = len(outputs)
    for number in range(count) if child.get("train") is not False else [count - 1]:
        one = Visit(path, child, element(inputs, number), None, visit.walk, (number, count), names=visit.names)
        if number and child.get("train") is False:
            one.before = outputs[number - 1]
        yield one


def _both_ways(visit: Visit) -> Iterator[Visit | Step]:
    """Forward over all steps but the last, backward over all but the first, and both joined."""
    kids = children_of(visit)
    steps = visit.input if isinstance(visit.input, list) else []
    given = [steps[:-1] or None, steps[1:] or None, recorded(visit.obj.get("_mergeInput"))]
    for (path, child), one in zip(kids, given):
        yield visit.inner(path, child, one)
    yield as_whole(visit)


def _clone(obj: TorchObject, path: str, number: int) -> tuple[str, TorchObject] | None:
    """Return the module that ran a step: its shared clone in training, the one module in evaluation; under the path of
    the latter, whose weights they share.
    """
    inside = items_of(obj.get("modules")) or []
    found = obj.get("recurrentModule") or (inside[0] if inside else None)
    at = next((f".modules[{place}]" for place, item in enumerate(inside, 1) if item is found), ".recurrentModule")
    if obj.get("train") is not False:
        clones = lookup(obj, "sharedClones")
        found = clones.get(float(number)) if isinstance(clones, Table) else None
    return (path + at, found) if isinstance(found, TorchObject) else None


def _states(visit: Visit, names: tuple[tuple[str, str, str], ...], at: int) -> list[Recorded]:
    """Return the states of a cell before its step `at`."""
    obj, found = visit.obj, []
    for place, (name, by_user, _) in enumerate(names):
        table = obj.get(name)
        kept = table if isinstance(table, Table) else Table()
        before = recorded(kept.get(float(at - 1)))
        if visit.number is None and obj.get("step") == 1.0:
            before = None  # its steps are not recorded
        elif at == 1 and obj.get(by_user) is None and obj.get("startState") is None:
            before = zeros_like(recorded(kept.get(1.0)))
        elif obj.get("train") is False:
            # In evaluation only the last states are kept; a sequence has copies of the outputs.
            before = visit.before if not place else None
        found.append(before)
    return found


def _cell(visit: Visit) -> Iterator[Visit | Step]:
    """One step of a cell; outside of sequences its last one."""
    obj = visit.obj
    number, count = visit.number or (0, 1)
    at = first_step(obj, count) + number
    clone = _clone(obj, visit.path, at)
    names = CELLS[base_name(obj.class_name)]
    slopes: list[Recorded] = []
    for _, _, gradients in names:
        table = obj.get(gradients)
        slopes.append(recorded(table.get(float(at))) if isinstance(table, Table) else None)
    if len(slopes) > 1 and slopes[1] is None and number == count - 1:
        slopes[1] = zeros_like(slopes[0])  # no step follows the last
    if clone is not None:
        after = slopes if len(names) > 1 else slopes[0]
        yield visit.inner(*clone, [visit.input, *_states(visit, names, at)], after)


def _recurrent(visit: Visit) -> Iterator[Visit | Step]:
    """One step of the simple recurrence, with a separate module for the first step."""
    obj = visit.obj
    number, count = visit.number or (0, 1)
    at = first_step(obj, count) + number
    inside = items_of(obj.get("modules")) or []
    names = {
        id(item): f"{visit.path}.modules[{place}]"
        for place, item in enumerate(inside, 1)
        if isinstance(item, TorchObject)
    }
    if at == 1:
        first = obj.get("initialModule")
        parts = items_of(first.get("modules")) or [] if isinstance(first, TorchObject) else []
        places, given = (2, 1, 4), visit.input
    else:
        clone = _clone(obj, visit.path, at)
        first = clone[1] if clone is not None else None
        parts = items_of(first.get("modules")) or [] if isinstance(first, TorchObject) else []
        both = items_of(parts[0].get("modules")) or [] if parts and isinstance(parts[0], TorchObject) else []
        for place, item in zip((2, 3), both):
            names[id(item)] = f"{visit.path}.modules[{place}]"
        table = obj.get("outputs")
        before = recorded(table.get(float(at - 1))) if isinstance(table, Table) else None
        places, given = (0, 5, 4), [visit.input, before if obj.get("train") is not False else visit.before]
    if visit.number is None and obj.get("step") == 1.0:
        return
    for place, item in zip(places, parts):
        if place:
            names[id(item)] = f"{visit.path}.modules[{place}]"
    if isinstance(first, TorchObject):
        table = obj.get("_gradOutputs")
        after = recorded(table.get(float(at))) if isinstance(table, Table) and number < count - 1 else None
        one = visit.inner(f"{visit.path}.recurrentModule", first, given, after)
        one.names = names
        yield one


def _recursor(visit: Visit) -> Iterator[Visit | Step]:
    number, count = visit.number or (0, 1)
    clone = _clone(visit.obj, visit.path, first_step(visit.obj, count) + number)
    if clone is not None:
        one = visit.inner(*clone, visit.input, visit.grad_output)
        one.before = visit.before
        yield one


def _masked(visit: Visit) -> Iterator[Visit | Step]:
    """A module whose outputs are set to zero wherever the input is."""
    for path, child in children_of(visit)[:1]:
        yield visit.inner(path, child, visit.input)
    yield as_whole(visit)


FLOWS: dict[str, Flow] = {
    "Sequencer": _sequencer,
    "Repeater": _repeater,
    "BiSequencer": chain,
    "BiSequencerLM": _both_ways,
    "Recursor": _recursor,
    "Recurrent": _recurrent,
    "MaskZero": _masked,
    **dict.fromkeys(CELLS, _cell),
}
"""Flows by the name of the class."""
