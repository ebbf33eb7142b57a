"""The steps of a program as one Lua module: what is a chain is an nn.Sequential, the rest an nn.gModule.

The steps of one call of a PyTorch module become a single step, whose layer is a module of its own, where these take one
value and return one.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby, pairwise

from ...errors import UnsupportedError
from .layers import LuaLayer, LuaNode, ModuleCall, make, sequential

_CALLER = 0
"""The user of the values that the program returns, among the ids of steps, none of which is 0."""

Users = dict[int, list[int]]
"""The id of a step → the ids of the steps that take its value; `_CALLER` is one of them if the value is returned."""


def structured(inputs: list[LuaNode], steps: list[LuaNode], outputs: list[LuaNode]) -> LuaLayer:
    """Combine a whole program into one layer; steps that no output depends on are left out.

    Args:
        inputs: the input steps.
        steps: all other steps, in order.
        outputs: the steps whose values are returned, as they were built.

    Raises:
        UnsupportedError: the program returns no tensor.
    """
    if not outputs:
        raise UnsupportedError("the module returns no tensor")
    steps = _without_unused_steps(steps, outputs)
    steps, outputs = _with_unused_inputs(inputs, steps, outputs)
    users = _users_of(steps, outputs)
    return _assemble(inputs, _with_calls_as_steps(steps, depth=0, users=users), outputs)


def _users_of(steps: list[LuaNode], outputs: list[LuaNode]) -> Users:
    """Return which steps take the value of each; steps and inputs that nothing takes have no entry."""
    users: Users = {id(step): [_CALLER] for step in outputs}
    for step in steps:
        for source in step.inputs:
            users.setdefault(id(source), []).append(id(step))
    return users


def _without_unused_steps(steps: list[LuaNode], outputs: list[LuaNode]) -> list[LuaNode]:
    """Return those steps that an output depends on, in order."""
    needed = {id(step) for step in outputs}
    used = []
    for step in reversed(steps):  # each after all that take its value
        if id(step) in needed:
            used.append(step)
            needed.update(id(source) for source in step.inputs)
    used.reverse()
    return used


def _with_unused_inputs(
    inputs: list[LuaNode], steps: list[LuaNode], outputs: list[LuaNode]
) -> tuple[list[LuaNode], list[LuaNode]]:
    """Return the steps and the outputs of a program, changed so that each input is used: nngraph refuses others.

    For each input that is not, the first output becomes item 1 of a table of itself and the input: the same value.

    Args:
        inputs: the input steps.
        steps: all other steps, in order.
        outputs: the steps whose values are returned; one at least.
    """
    users = _users_of(steps, outputs)
    first, *others = outputs
    steps = list(steps)
    for step in inputs:
        if id(step) not in users:
            first = LuaNode(make("nn.SelectTable", 1), [first, step], first.shape)
            steps.append(first)
    return steps, [first, *others]


def _with_calls_as_steps(steps: list[LuaNode], depth: int, users: Users) -> list[LuaNode]:
    """Return steps with those of each call of a PyTorch module combined into a single one, as far as they can be.

    Args:
        steps: in order; some are changed.
        depth: of the calls in the stacks of the steps: 0 for those of the modules in the outermost one.
        users: of the steps, and of those inside the modules; a step that replaces others is the object of their last
            one, and so has its users.
    """
    result: list[LuaNode] = []
    for call, group in groupby(steps, partial(_call_at, depth=depth)):
        run = list(group)
        if call is None:  # steps of the outer module itself
            result += run
        elif _can_be_one_step(run, users):
            result.append(_as_one_step(run, call, depth, users))
        # The module takes several values, but only its first step does, which can be in the outer module instead.
        elif len(run[0].inputs) > 1 and _can_be_one_step(run[1:], users):
            result.append(_moved_out(run[0], call, depth))
            result.append(_as_one_step(run[1:], call, depth, users))
        else:
            result += _with_calls_as_steps(run, depth + 1, users)
    return result


def _call_at(step: LuaNode, depth: int) -> ModuleCall | None:
    """Return the module call that a step belongs to at a depth of its stack; `None` if it is in no call so deep."""
    return step.stack[depth] if depth < len(step.stack) else None


def _moved_out(step: LuaNode, call: ModuleCall, depth: int) -> LuaNode:
    """Move a step from the module of a call to the one that contains it; return the step, which is changed."""
    step.stack = step.stack[:depth]
    if step.layer is not None:
        step.layer.path = call.path.rpartition(".")[0]
    return step


def _as_one_step(run: list[LuaNode], call: ModuleCall, depth: int, users: Users) -> LuaNode:
    """Make the last step of a module's call one that computes all of its steps, and return it.

    That object is changed, as the steps behind it refer to it. What it was is a new object, inside its layer.

    Args:
        run: the steps in order, which take one value.
        call: of the module.
        depth: of the call in the stacks of the steps.
        users: see `_with_calls_as_steps`.
    """
    (source,) = _sources(run)
    *steps, last = _with_calls_as_steps(run, depth + 1, users)
    last_inside = LuaNode(last.layer, last.inputs, last.shape, last.stack)
    steps_inside = [*steps, last_inside]
    input_inside = LuaNode(None, [], source.shape)
    for step in steps_inside:
        step.inputs = [input_inside if item is source else item for item in step.inputs]
    last.layer = _assemble([input_inside], steps_inside, [last_inside])
    last.layer.path = call.path
    last.inputs = [source]
    last.stack = last.stack[:depth]
    return last


def _sources(run: list[LuaNode]) -> list[LuaNode]:
    """Return the steps outside of a run of steps whose values these take, each once, by their first use."""
    inside = {id(step) for step in run}
    sources: dict[int, LuaNode] = {}
    for step in run:
        for source in step.inputs:
            if id(source) not in inside:
                sources[id(source)] = source
    return list(sources.values())


def _can_be_one_step(run: list[LuaNode], users: Users) -> bool:
    """Return whether consecutive steps take one value, and only the value of the last one is used outside of them.

    Not a single step, or none: that needs no container.
    """
    inside = {id(step) for step in run}
    used_outside = [step for step in run if not inside.issuperset(users.get(id(step), ()))]
    return len(run) > 1 and len(_sources(run)) == 1 and used_outside == run[-1:]


def _assemble(inputs: list[LuaNode], steps: list[LuaNode], outputs: list[LuaNode]) -> LuaLayer:
    """Combine steps into an nn.Sequential if they form a chain, else into an nn.gModule.

    Args:
        inputs: the input steps.
        steps: all other steps, in order, which take values of these and of the inputs only; their inputs are changed.
        outputs: the steps whose values are returned.
    """
    if len(inputs) == 1 and _is_chain([*inputs, *steps], outputs):
        layers = [step.layer for step in steps if step.layer is not None]
        return sequential(*layers) if layers else make("nn.Identity")
    # A graph, in which no node may take a value twice.
    nodes = list(inputs)
    for step in steps:
        step.inputs = _without_repetition(step.inputs, nodes)
        nodes.append(step)
    distinct_outputs = _without_repetition(outputs, nodes)
    return LuaLayer("nn.gModule", outputs=distinct_outputs, steps=nodes)


def _is_chain(steps: list[LuaNode], outputs: list[LuaNode]) -> bool:
    """Return whether each step but the first takes only the value before it, and the last one's is the only output."""
    takes_only_before = all(step.inputs == [before] for before, step in pairwise(steps))
    return takes_only_before and outputs == steps[-1:]


def _without_repetition(sources: list[LuaNode], nodes: list[LuaNode]) -> list[LuaNode]:
    """Return the sources of a node, with an nn.Identity for each further use of one: nngraph refuses the same twice.

    Args:
        sources: may have one several times.
        nodes: of the graph; receives the nodes of the nn.Identity layers.
    """
    distinct: list[LuaNode] = []
    for source in sources:
        if source in distinct:
            source = LuaNode(make("nn.Identity"), [source], source.shape)
            nodes.append(source)
        distinct.append(source)
    return distinct
