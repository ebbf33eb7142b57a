"""Whole stretches: consecutive layers run from a recorded input to the last recorded output.

Single layers always start from Lua's numbers; a stretch shows how far differences grow until the output. May import
graph and torchmodules.
"""

from __future__ import annotations

from typing import Any

from ...data import define
from ...errors import T7BridgeError
from ...graph.tensor import Tensor
from ...torchmodules.judging import Node, Ref, measure
from ...torchmodules.running import NotRunError, doubles, joined, to_torch
from .judge import Judge
from .outcome import Outcome
from .proof import AGREES, DIFFERS, NOT_CHECKABLE, STALE, StretchProof
from .reasons import ROUNDING
from .runs import forget_written, view_of
from .values import is_whole, leaves

ROOM = 20.0
"""Factor by which Lua's rounding errors may exceed those of single precision in PyTorch at the end of a stretch: errors
of a layer may by a few, and the next layers amplify them."""
MOST = 20
"""Stretches that are listed."""


@define(eq=False)
class Far:
    """The value of a tensor if all layers since a recorded one were run in a chain.

    Attributes:
        exact: in double precision.
        single: in Lua's precision.
        start: number of the first run.
        count: number of runs.
    """

    exact: Any
    single: Any
    start: int
    count: int


def stretches(judge: Judge, outcomes: list[Outcome]) -> list[StretchProof]:
    """Return the verdicts on the stretches that nothing continues, the longest first."""
    known: dict[Any, Far] = {}
    ends: dict[int, Far] = {}
    for number, outcome in enumerate(outcomes):
        run, node = outcome.run, judge.nodes.get(number)
        found = _run(node, outcome, known) if node is not None else None
        targets = list(leaves(run.output))
        forget_written(known, run)
        for target in targets:
            known.pop(id(target), None)
        if found is None or not len(found[0]) == len(found[1]) == len(targets):
            continue
        exact, single, taken = found
        start = min((one.start for one in taken), default=number)
        count = 1 + max((one.count for one in taken), default=0)
        ends = {end: far for end, far in ends.items() if not any(far is used for used in taken)}
        for target, one, other in zip(targets, exact, single):
            if one.numel() == target.numel == other.numel():
                far = Far(one.reshape(target.shape), other.reshape(target.shape), start, count)
                known[id(target)] = known[view_of(target)] = far
                if len(targets) == 1 and is_whole(run.output) and not judge.memory.overwritten(run.output, number):
                    ends[number] = far
    proofs = [_proof(far, end, outcomes) for end, far in ends.items() if far.count > 1]
    return sorted(proofs, key=lambda one: -one.layers)[:MOST]


def _run(node: Node, outcome: Outcome, known: dict[Any, Far]) -> tuple[list[Any], list[Any], list[Far]] | None:
    """Return the output of a layer after all layers before it, in both precisions, and what it was computed from."""
    taken: list[Far] = []
    run = outcome.run
    both = [
        _input(run.input if run.glue is None else list(run.glue), node.given, known, side, taken) for side in (0, 1)
    ]
    try:
        if node.layer is None:
            whole = [joined(one, node.dim) for one in both]
            return None if whole[0] is None or whole[1] is None else (doubles(whole[0]), doubles(whole[1]), taken)
        return doubles(node.layer.run(both[0])), doubles(node.layer.run_single(both[1])), taken
    except (NotRunError, T7BridgeError):
        return None


def _input(value: Any, given: Any, known: dict[Any, Far], side: int, taken: list[Far]) -> Any:
    """Return the input of a run: computed tensors where layers before it were run, else recorded ones."""
    if isinstance(given, list):
        parts = value if isinstance(value, list) and len(value) == len(given) else [None] * len(given)
        return [_input(part, one, known, side, taken) for part, one in zip(parts, given)]
    far = (known.get(id(value)) or known.get(view_of(value))) if isinstance(value, Tensor) else None
    if far is not None:
        if not side:
            taken.append(far)
        return far.single.clone() if side else far.exact.clone()
    return given.node.found[given.index].reshape(given.shape) if isinstance(given, Ref) else given


def _proof(far: Far, end: int, outcomes: list[Outcome]) -> StretchProof:
    want = doubles(to_torch(outcomes[end].run.output))
    size = float(want[0].abs().max()) if want[0].numel() else 0.0
    apart = float((far.single - far.exact).abs().max()) if want[0].numel() else 0.0
    off = measure(
        want, [far.exact], [far.exact.new_full(far.exact.shape, max(apart, 1e-16 * size, 1e-300) * ROOM)], None, 0.2
    )
    inside = {outcome.verdict for outcome in outcomes[far.start : end + 1]}
    verdict = (
        AGREES
        if off.excess <= 1 or off.close
        else next((one for one in (DIFFERS, STALE) if one in inside), NOT_CHECKABLE)
    )
    return StretchProof(
        outcomes[far.start].run.path,
        outcomes[end].run.path,
        far.count,
        verdict,
        off.max_abs,
        off.max_rel,
        off.cosine,
        ROUNDING if verdict == NOT_CHECKABLE else "",
    )
