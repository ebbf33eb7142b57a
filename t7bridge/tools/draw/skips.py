"""Places where a model's data flow branches or skips layers, and where weights are shared, in a few words."""

from __future__ import annotations

from collections import Counter

from .blocks import Block
from .ranks import ranks_of

_NAMED = 4
"""Number of places named; for more there is the count."""


def skips_of(blocks: list[Block]) -> list[str]:
    """Return the arrows of graphs that bypass other nodes, `3 → 9`; those from inputs and to outputs do not count."""
    found: list[str] = []
    for block in blocks:
        if block.kind != "graph" or is_branching(block):
            continue
        leaving = Counter(flow.start for flow in block.flows)
        ranks = ranks_of(len(block.inside), [(flow.start, flow.end) for flow in block.flows])
        for flow in block.flows:
            start, end = block.inside[flow.start], block.inside[flow.end]
            if (
                leaving[flow.start] > 1
                and "end" not in (start.kind, end.kind)
                and ranks[flow.end] - ranks[flow.start] > 1
            ):
                found.append(f"{start.key or start.name} → {end.key or end.name}")
    return found


def branches_of(blocks: list[Block]) -> list[str]:
    """Return the containers that pass their input to several branches: the key of each, and the number of branches."""
    found = [block for block in blocks if is_branching(block) and len(block.inside) > 3]
    return [f"{block.key or '(model)'} {block.title} ({len(block.inside) - 2})" for block in found]


def shared_of(blocks: list[Block]) -> list[str]:
    """Return the layers that have the weights of another, or are the same module: `0.1.0 = 0.0.0`."""
    found: list[str] = []
    for block in blocks:
        owner = (
            block.same if block.mark == "again" else next((each.shared for each in block.weights if each.shared), "")
        )
        if owner:
            found.append(f"{block.key or block.name} = {owner if block.mark == 'again' else owner.rpartition('.')[0]}")
    return found


def is_branching(block: Block) -> bool:
    """Return whether a block consists of branches between one input and one output."""
    count = len(block.inside) - 2
    if block.kind != "graph" or count < 1 or len(block.flows) != 2 * count:
        return False
    return all(flow.start == count or flow.end == count + 1 for flow in block.flows)


def listed(found: list[str]) -> str:
    """Return the number of places, and the first of them."""
    more = ", …" if len(found) > _NAMED else ""
    return f"{len(found)}: {', '.join(found[:_NAMED])}{more}"
