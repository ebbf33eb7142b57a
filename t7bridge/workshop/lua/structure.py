"""The steps of a program as one module: chains along PyTorch's modules are nn.Sequential, the rest is nn.gModule."""

from __future__ import annotations

from itertools import groupby

from ...errors import UnsupportedError
from .layers import LuaLayer, LuaNode, make, sequential

_CALLER = 0
"""Stands for the user of the values that are returned, among the ids of steps."""


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
    users: dict[int, list[int]] = {id(step): [_CALLER] for step in outputs}  # by the id of a step
    used = []
    for step in reversed(steps):
        if id(step) in users:
            used.append(step)
            for source in step.inputs:
                users.setdefault(id(source), []).append(id(step))
    used.reverse()
    if len(inputs) > 1:
        for step in inputs:
            if id(step) not in users:
                # nngraph refuses unused inputs: a table of this one and an output returns the output.
                outputs[0] = LuaNode(make("nn.SelectTable", 1), [outputs[0], step], outputs[0].shape)
                used.append(outputs[0])
                users[id(outputs[0])] = [_CALLER]
    return _assemble(inputs, _group(used, 0, users), outputs)


def _group(steps: list[LuaNode], depth: int, users: dict[int, list[int]]) -> list[LuaNode]:
    """Replace the runs of one PyTorch module's call that have one input and one output by single steps.

    A first step that joins several values stays apart.

    Args:
        steps: in order.
        depth: of the calls in the stacks of the steps.
        users: the ids of the steps that use the value of a step, by its id.
    """
    result: list[LuaNode] = []
    for call, group in groupby(steps, lambda step: step.stack[depth] if len(step.stack) > depth else ""):
        run = list(group)
        if not call:  # steps of the outer module itself
            result += run
            continue
        is_block = len(run) > 1 and _is_block(run, users)
        if not is_block and len(run) > 2 and len(run[0].inputs) > 1 and _is_block(run[1:], users):
            is_block = True
            result.append(_moved_out(run.pop(0), call, depth))
        sources = _sources(run)
        inner = _group(run, depth + 1, users)
        if is_block:
            result.append(_as_one_step(inner, sources[0], call, depth))
        else:
            result += inner
    return result


def _moved_out(step: LuaNode, call: str, depth: int) -> LuaNode:
    """Move a step from a module to the one that contains it."""
    step.stack = step.stack[:depth]
    if step.layer is not None:
        step.layer.path = _path_of(call).rpartition(".")[0]
    return step


def _as_one_step(steps: list[LuaNode], source: LuaNode, call: str, depth: int) -> LuaNode:
    """Combine steps that take one value into the last, to which others refer."""
    step = steps[-1]
    gate = LuaNode(None, [], source.shape)
    last = LuaNode(step.layer, step.inputs, step.shape, step.stack)
    step.layer = _assemble([gate], [*steps[:-1], last], [last], {id(source): gate})
    step.layer.path = _path_of(call)
    step.inputs = [source]
    step.stack = step.stack[:depth]
    return step


def _path_of(call: str) -> str:
    """Return the path of the module that is called: `key|path`."""
    return call.partition("|")[2]


def _sources(run: list[LuaNode]) -> list[LuaNode]:
    """Return the steps outside of a run that its steps take."""
    inside = {id(step) for step in run}
    sources: dict[int, LuaNode] = {}
    for step in run:
        for source in step.inputs:
            if id(source) not in inside:
                sources[id(source)] = source
    return list(sources.values())


def _is_block(run: list[LuaNode], users: dict[int, list[int]]) -> bool:
    """Return whether a run takes one value and returns one, its last."""
    inside = {id(step) for step in run}
    used_outside = [step for step in run if not inside.issuperset(users.get(id(step), ()))]
    return len(_sources(run)) == 1 and used_outside == run[-1:]


def _assemble(
    inputs: list[LuaNode], steps: list[LuaNode], outputs: list[LuaNode], gates: dict[int, LuaNode] | None = None
) -> LuaLayer:
    """Combine steps into an nn.Sequential if they form a chain, else into an nn.gModule.

    Args:
        inputs: the input steps.
        steps: all other steps, in order.
        outputs: the steps whose values are returned.
        gates: inputs that replace steps outside, by the ids of these.
    """
    if gates:
        for step in steps:
            step.inputs = [gates.get(id(source), source) for source in step.inputs]
    chain = [*inputs, *steps]
    if len(inputs) == 1 and outputs == chain[-1:]:
        if not steps:
            return make("nn.Identity")
        if all(step.inputs == [before] for step, before in zip(steps, chain)):
            return sequential(*(step.layer for step in steps if step.layer is not None))
    nodes = list(inputs)
    for step in steps:
        step.inputs = _distinct(step.inputs, nodes)
        nodes.append(step)
    return LuaLayer("nn.gModule", outputs=_distinct(outputs, nodes), steps=nodes)


def _distinct(sources: list[LuaNode], nodes: list[LuaNode]) -> list[LuaNode]:
    """Return the sources of a node, with an nn.Identity before each further use of one, which nngraph refuses.

    Args:
        sources: may have one several times.
        nodes: of the graph; receives the new ones.
    """
    distinct: list[LuaNode] = []
    for source in sources:
        if source in distinct:
            source = LuaNode(make("nn.Identity"), [source], source.shape)
            nodes.append(source)
        distinct.append(source)
    return distinct
