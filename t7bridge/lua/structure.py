"""From steps to nested modules: chains become nn.Sequential along PyTorch's modules, the rest nn.gModule."""

from __future__ import annotations

from ..errors import UnsupportedError
from .layers import LuaLayer, LuaNode, make, sequential


def structured(inputs: list[LuaNode], steps: list[LuaNode], outputs: list[LuaNode]) -> LuaLayer:
    """Combine a whole program into one layer.

    Args:
        inputs: the input steps.
        steps: all other steps, in order.
        outputs: the steps whose values are returned.

    Raises:
        UnsupportedError: the program returns nothing that depends on its inputs.
    """
    if not outputs:
        raise UnsupportedError("the module returns no tensor")
    steps = _needed(steps, outputs)
    unused = [step for step in inputs if step not in outputs and not any(step in other.inputs for other in steps)]
    if len(inputs) > 1:
        for step in unused:  # nngraph refuses unused inputs
            outputs[0] = LuaNode(make("nn.SelectTable", 1), [outputs[0], step], outputs[0].shape)
            steps.append(outputs[0])
    users = _users(steps, outputs)
    replaced: dict[int, LuaNode] = {}
    grouped = _group(steps, 0, users, replaced)
    return _assemble(inputs, grouped, [_final(step, replaced) for step in outputs], replaced)


def _needed(steps: list[LuaNode], outputs: list[LuaNode]) -> list[LuaNode]:
    wanted = {id(step) for step in outputs}
    kept = []
    for step in reversed(steps):
        if id(step) in wanted:
            kept.append(step)
            wanted.update(id(source) for source in step.inputs)
    return kept[::-1]


def _users(steps: list[LuaNode], outputs: list[LuaNode]) -> dict[int, list[int]]:
    """Return for each step the ids of the steps that use its value; 0 is the caller."""
    users: dict[int, list[int]] = {}
    for step in steps:
        for source in step.inputs:
            users.setdefault(id(source), []).append(id(step))
    for step in outputs:
        users.setdefault(id(step), []).append(0)
    return users


def _final(step: LuaNode, replaced: dict[int, LuaNode]) -> LuaNode:
    while id(step) in replaced:
        step = replaced[id(step)]
    return step


def _group(
    steps: list[LuaNode], depth: int, users: dict[int, list[int]], replaced: dict[int, LuaNode]
) -> list[LuaNode]:
    """Replace the runs of one PyTorch module's call that have one input and one output by single steps."""
    result: list[LuaNode] = []
    place = 0
    while place < len(steps):
        first = steps[place]
        if len(first.stack) <= depth:
            result.append(first)
            place += 1
            continue
        end = place
        while end < len(steps) and len(steps[end].stack) > depth and steps[end].stack[depth] == first.stack[depth]:
            end += 1
        run = steps[place:end]
        place = end
        inside = {id(step) for step in run}
        sources = {id(source): source for step in run for source in step.inputs if id(source) not in inside}
        leaving = [step for step in run if any(user not in inside for user in users.get(id(step), ()))]
        inner = _group(run, depth + 1, users, replaced)
        if len(run) == 1 or len(sources) != 1 or len(leaving) != 1 or leaving[0] is not run[-1]:
            result.extend(inner)
            continue
        source = next(iter(sources.values()))
        gate = LuaNode(None, [], source.shape, (), 0)
        path = first.stack[depth].partition("|")[2]
        layer = _assemble([gate], inner, [_final(leaving[0], replaced)], replaced, {id(_final(source, replaced)): gate})
        layer.path = path
        made = LuaNode(layer, [source], leaving[0].shape, first.stack[:depth])
        replaced[id(_final(leaving[0], replaced))] = made
        users[id(made)] = users.get(id(leaving[0]), [])
        result.append(made)
    return result


def _assemble(
    inputs: list[LuaNode],
    steps: list[LuaNode],
    outputs: list[LuaNode],
    replaced: dict[int, LuaNode],
    gates: dict[int, LuaNode] | None = None,
) -> LuaLayer:
    """Combine steps into an nn.Sequential if they form a chain, else into an nn.gModule."""
    gates = gates or {}
    inside = {id(step): step for step in steps}

    def resolved(step: LuaNode) -> LuaNode:
        while id(step) not in inside and id(step) in replaced:
            step = replaced[id(step)]
        return gates.get(id(step), step)

    links = {id(step): [resolved(source) for source in step.inputs] for step in steps}
    outputs = [resolved(step) for step in outputs]
    if len(inputs) == 1 and len(outputs) == 1 and steps:
        before = inputs[0]
        chain = outputs[0] is steps[-1]
        for step in steps:
            chain = chain and links[id(step)] == [before]
            before = step
        if chain:
            return sequential(*(step.layer for step in steps if step.layer is not None))
    if not steps and len(inputs) == 1 and outputs == inputs:
        return make("nn.Identity")
    nodes = list(inputs)
    for step in steps:
        nodes.append(LuaNode(step.layer, _apart(links[id(step)], nodes), step.shape, step.stack))
        _rename(links, outputs, step, nodes[-1])
    return LuaLayer("nn.gModule", inputs=len(inputs), steps=nodes, outputs=_apart(outputs, nodes))


def _rename(links: dict[int, list[LuaNode]], outputs: list[LuaNode], old: LuaNode, new: LuaNode) -> None:
    for sources in links.values():
        for place, source in enumerate(sources):
            if source is old:
                sources[place] = new
    for place, step in enumerate(outputs):
        if step is old:
            outputs[place] = new


def _apart(sources: list[LuaNode], nodes: list[LuaNode]) -> list[LuaNode]:
    """Insert an nn.Identity before each further use of a value by the same node, which nngraph refuses."""
    taken: list[LuaNode] = []
    for source in sources:
        if any(source is known for known in taken):
            source = LuaNode(make("nn.Identity"), [source], source.shape)
            nodes.append(source)
        taken.append(source)
    return taken
