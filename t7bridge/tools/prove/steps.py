"""The layers of a Lua model in the order in which Lua ran them, each with its recorded inputs and outputs.

May import graph, errors, limits and nn.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits
from .flows import flow_of
from .values import Recorded, leaves, region, same_values
from .visits import VIEWS, Step, Visit, Walk, base_name


def steps_of(
    root: TorchObject,
    path: str = "root",
    given: Recorded = None,
    grad_output: Recorded = None,
    limits: Limits = DEFAULT_LIMITS,
    undone: bool = False,
) -> tuple[list[Step], set[int]]:
    """List the runs of a model's layers in order.

    Args:
        root: the model.
        path: its own path.
        given: its input, if known.
        grad_output: the gradient with respect to its output, if known.
        limits: `work` bounds the number of steps.
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
) -> list[Step]:
    found: list[Step] = []
    stack: list[Iterator[Visit | Step]] = [iter([Visit(path, root, given, grad_output, walk)])]
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
        if isinstance(item, Step):
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


def _note_writes(step: Step, written: set[int], lost: set[int]) -> None:
    """Determine the memory that a run changed; modules that return their input change none."""
    taken = {id(tensor.storage): tensor for tensor in leaves(step.input)}
    in_place = step.obj.get("inplace") is True
    is_view = base_name(step.obj.class_name) in VIEWS
    for tensor in leaves(step.output):
        shared = id(tensor.storage) in taken
        if shared and not in_place and (is_view or step.glue is not None or step.whole):
            continue
        if step.whole and id(tensor.storage) in written:
            continue  # the output of a module inside
        step.writes.append(region(tensor))
    if in_place:
        # In older releases in-place layers had memory of their own once a model had changed its type.
        source = step.input[0] if isinstance(step.input, list) and step.input else step.input
        target = step.output
        both = isinstance(source, Tensor) and isinstance(target, Tensor) and source.storage is not target.storage
        own = both and source.numel == target.numel and id(target.storage) not in lost
        if own and same_values(source, target):
            step.writes.append(region(source))
    written.update(storage for storage, _, _ in step.writes)
