"""The runs of the layers of a Lua model in order: `runs`, and the rules by which containers pass values.

The structure alone determines a layer's input: the previous layer's `output` in a Sequential, the same value for all
branches of a Concat, `data.input` of a node in nngraph, the step before in a sequence. Sources: nn 8726825, nngraph
3ed3b9b `gmodule.lua`, rnn ba937a0 `Sequencer.lua`, `BiSequencer.lua`, `BiSequencerLM.lua`, `Repeater.lua`,
`Recursor.lua`, `LSTM.lua`, `GRU.lua`, `Recurrent.lua`, `Recurrence.lua`, `MaskZero.lua`. May import graph, errors,
limits and nn.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits
from ...nn import flows
from ...nn.fields import items_of, lookup
from ...nn.graphs import graph_modules
from ...nn.mapping import LAYERS, Row
from ...nn.registry import layer_of, traits_of
from .runs import (
    VIEWS,
    Flow,
    Run,
    Visit,
    Walk,
    as_whole,
    base_name,
    children_of,
    first_step,
    in_place_of,
    leaf,
)
from .values import (
    Recorded,
    element,
    leaves,
    merged,
    narrow,
    output_of,
    recorded,
    region,
    same_values,
    select,
    zeros_like,
)


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
        undone: whether the last pass was a backward, in which the layers of `RESTORING` restore their inputs.

    Returns:
        The runs, and the ids of the storages of outputs that are missing from the file.

    Raises:
        LimitError: there are too many.
    """
    first = Walk(undone=undone)
    _follow(root, path, given, grad_output, limits, first)
    walk = Walk(first.done, undone=undone)
    return _follow(root, path, given, grad_output, limits, walk), walk.lost


def _follow(
    root: TorchObject, path: str, given: Recorded, grad_output: Recorded, limits: Limits, walk: Walk
) -> list[Run]:
    found: list[Run] = []
    stack: list[Iterator[Visit | Run]] = [iter([Visit(path, root, given, grad_output, walk)])]
    active: list[int] = [0]
    inside: set[int] = set()
    budget = Budget(limits, "following the runs of the layers")
    written: set[int] = set()
    while stack:
        item = next(stack[-1], None)
        if item is None:
            stack.pop()
            inside.discard(active.pop())
            continue
        budget.spend(STEPS_PER_NODE)
        if isinstance(item, Run):
            if walk.total:
                if not item.last:
                    item.output = item.grad_input = None
                _note_writes(item, written, walk.lost)
            found.append(item)
        elif id(item.obj) not in inside:
            walk.done[id(item.obj)] = walk.done.get(id(item.obj), 0) + 1
            stack.append(flow_of(item.obj)(item))
            active.append(id(item.obj))
            inside.add(id(item.obj))
    return found


def _note_writes(run: Run, written: set[int], lost: set[int]) -> None:
    """Determine the memory that a run changed; modules that return their input change none."""
    taken = {id(tensor.storage): tensor for tensor in leaves(run.input)}
    in_place = run.obj.get("inplace") is True
    is_view = base_name(run.obj.class_name) in VIEWS
    for tensor in leaves(run.output):
        shared = id(tensor.storage) in taken
        if shared and not in_place and (is_view or run.glue is not None or run.whole):
            continue
        if run.whole and id(tensor.storage) in written:
            continue  # the output of a module inside
        run.writes.append(region(tensor))
    if in_place:
        # In older releases in-place layers had memory of their own once a model had changed its type.
        source = run.input[0] if isinstance(run.input, list) and run.input else run.input
        target = run.output
        both = isinstance(source, Tensor) and isinstance(target, Tensor) and source.storage is not target.storage
        own = both and source.numel == target.numel and id(target.storage) not in lost
        if own and same_values(source, target):
            run.writes.append(region(source))
    written.update(storage for storage, _, _ in run.writes)


def flow_of(obj: TorchObject) -> Flow:
    """Return the flow of a module's class."""
    name = base_name(obj.class_name)
    if name in CELLS and isinstance(obj.get("weight"), Tensor):
        return leaf  # the LSTM of torch-rnn takes whole sequences
    flow = _FLOWS.get(name)
    if flow is not None:
        return flow
    layer = layer_of(obj.class_name)
    inside: Value = next(layer.children(obj), None) if layer is not None and layer.children else None
    if layer is None or inside is None:
        return leaf
    row = layer.module_of(obj.class_name)
    declared = (
        traits_of(row.target).flow
        if isinstance(row, Row) and not row.target.startswith((LAYERS, "torch.nn."))
        else None
    )
    return _OF_USERS.get(declared, _opaque)


def _same_for_all(visit: Visit) -> Iterator[Visit | Run]:
    kids = children_of(visit)
    for place, (path, child) in enumerate(kids):
        yield visit.inner(path, child, visit.input, element(visit.grad_output, place))


def _concat(visit: Visit) -> Iterator[Visit | Run]:
    kids = children_of(visit)
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
    yield as_whole(visit, outputs if exact else None)


def _by_element(visit: Visit) -> Iterator[Visit | Run]:
    for place, (path, child) in enumerate(children_of(visit)):
        yield visit.inner(path, child, element(visit.input, place), element(visit.grad_output, place))


def _parallel(visit: Visit) -> Iterator[Visit | Run]:
    dim = visit.obj.get("inputDimension")
    for place, (path, child) in enumerate(children_of(visit)):
        given = select(visit.input, int(dim) - 1, place) if isinstance(dim, float) else None
        yield visit.inner(path, child, given)
    yield as_whole(visit)


def _bottle(visit: Visit) -> Iterator[Visit | Run]:
    inside = visit.obj.get("nInputDim")
    for path, child in children_of(visit):
        given = visit.input
        if isinstance(given, Tensor):
            dims = len(given.size) - int(inside if isinstance(inside, float) else 2) + 1
            given = merged(given, dims) if dims > 1 else given
        yield visit.inner(path, child, given)
    yield as_whole(visit)


def _graph(visit: Visit) -> Iterator[Visit | Run]:
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
        taken = visit.walk.kept(recorded(data.get("input")))
        after = recorded(data.get("gradOutput"))
        one = element(taken, 0) if isinstance(taken, list) and len(taken) == 1 else taken
        back = element(after, 0) if isinstance(after, list) and len(after) == 1 else None
        yield visit.inner(paths.get(id(module), visit.path), module, one, back)
    known = visit.input if visit.input is not None else given
    yield as_whole(visit.inner(visit.path, visit.obj, known, visit.grad_output))


def _chain_and_whole(visit: Visit) -> Iterator[Visit | Run]:
    """A Sequential with a class of its own: its modules, and the whole, which is one module in PyTorch."""
    yield from chain(visit)
    yield as_whole(visit)


def _opaque(visit: Visit) -> Iterator[Visit | Run]:
    """A container whose flow is unknown: only the whole is a step, not the modules inside."""
    yield as_whole(visit)


CELLS: dict[str, tuple[tuple[str, str, str], ...]] = {
    **dict.fromkeys(
        ("LSTM", "FastLSTM"), (("outputs", "userPrevOutput", "_gradOutputs"), ("cells", "userPrevCell", "gradCells"))
    ),
    **dict.fromkeys(("GRU", "Recurrence"), (("outputs", "userPrevOutput", "_gradOutputs"),)),
}
"""Cells of rnn: the fields of each state that is passed from step to step, of the initial state set by the user, and of
the gradient with respect to it.
"""


def chain(visit: Visit) -> Iterator[Visit | Run]:
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


def _sequencer(visit: Visit) -> Iterator[Visit | Run]:
    outputs = _sequence(visit.output_of(visit.obj))
    inputs = _sequence(visit.input)
    kids = children_of(visit)
    if kids and outputs:
        yield from _steps(visit, *kids[0], inputs, outputs)
    yield as_whole(visit)


def _repeater(visit: Visit) -> Iterator[Visit | Run]:
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


def _both_ways(visit: Visit) -> Iterator[Visit | Run]:
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


def _cell(visit: Visit) -> Iterator[Visit | Run]:
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


def _recurrent(visit: Visit) -> Iterator[Visit | Run]:
    """One step of the simple recurrence, with a separate module for the first step."""
    obj = visit.obj
    number, count = visit.number or (0, 1)
    at = first_step(obj, count) + number
    if visit.number is None and obj.get("step") == 1.0:
        return
    named = list(zip((1, 2, 3, 4), _modules_of(obj)))
    if at == 1:
        first, given = obj.get("initialModule"), visit.input
        named += zip((2, 1, 4), _modules_of(first))
    else:
        clone = _clone(obj, visit.path, at)
        first = clone[1] if clone is not None else None
        parts = _modules_of(first)
        table = obj.get("outputs")
        before = recorded(table.get(float(at - 1))) if isinstance(table, Table) else None
        given = [visit.input, before if obj.get("train") is not False else visit.before]
        named += [*zip((2, 3), _modules_of(parts[0] if parts else None)), *zip((5, 4), parts[1:])]
    if isinstance(first, TorchObject):
        table = obj.get("_gradOutputs")
        after = recorded(table.get(float(at))) if isinstance(table, Table) and number < count - 1 else None
        one = visit.inner(f"{visit.path}.recurrentModule", first, given, after)
        one.names = {id(item): f"{visit.path}.modules[{place}]" for place, item in named}
        yield one


def _modules_of(obj: Value) -> list[Value]:
    return list(items_of(obj.get("modules")) or []) if isinstance(obj, TorchObject) else []


def _recursor(visit: Visit) -> Iterator[Visit | Run]:
    number, count = visit.number or (0, 1)
    clone = _clone(visit.obj, visit.path, first_step(visit.obj, count) + number)
    if clone is not None:
        one = visit.inner(*clone, visit.input, visit.grad_output)
        one.before = visit.before
        yield one


def _masked(visit: Visit) -> Iterator[Visit | Run]:
    """A module whose outputs are set to zero wherever the input is."""
    for path, child in children_of(visit)[:1]:
        yield visit.inner(path, child, visit.input)
    yield as_whole(visit)


_OF_USERS: dict[object, Flow] = {
    flows.sequence: _chain_and_whole,
    flows.branches: _same_for_all,
    flows.parallel: _by_element,
}
"""The flows of users' containers, by those that their entries declare."""
_FLOWS: dict[str, Flow] = {
    **dict.fromkeys(
        (
            "Sequential",
            "Decorator",
            "NaN",
            "Profile",
            "GPU",
            "Serial",
            "DontCast",
            "FireModule",
            "SpatialLPPooling",
            "Inception",
        ),
        chain,
    ),
    **dict.fromkeys(("LayerNormalization", "Maxout"), _chain_and_whole),
    "ConcatTable": _same_for_all,
    "Concat": _concat,
    "DepthConcat": _concat,
    "ParallelTable": _by_element,
    "MapTable": _by_element,
    "Parallel": _parallel,
    "Bottle": _bottle,
    "gModule": _graph,
    "Sequencer": _sequencer,
    "Repeater": _repeater,
    "BiSequencer": chain,
    "BiSequencerLM": _both_ways,
    "Recursor": _recursor,
    "Recurrent": _recurrent,
    "MaskZero": _masked,
    **dict.fromkeys(CELLS, _cell),
}
