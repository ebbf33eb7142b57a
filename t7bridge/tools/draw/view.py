"""The part of a model shown in a still picture: repeated blocks once, and containers closed where room is short."""

from __future__ import annotations

from attrs import evolve

from .blocks import Block, Flow
from .folds import Fold, folds_of
from .skips import is_branching

MOST = 400
"""Maximum number of blocks shown, if containers can be closed."""
_DEEPEST, _BRANCHES = 40, 10


def shown(blocks: list[Block], most: int = MOST) -> list[Block]:
    """Return the blocks of a picture, each before those inside it: copies, labelled with what is folded.

    Args:
        blocks: all of them, each before those inside it.
        most: maximum number shown before containers are closed; those nearer to the root are opened first.
    """
    folds = folds_of(blocks)
    opened = _opened(blocks[0], folds, most)
    root = _copy(blocks[0])
    found, queue = [root], [(root, blocks[0])]
    for copy, block in queue:  # grows: level by level
        runs = folds.get(id(block), [])
        sources, flows = _kept(block, runs)
        if block.inside and id(block) not in opened:
            copy.kind, copy.flows = "layer", []
            copy.lines.append(f"{_blocks_inside(block)} inside")
            if block.parameters:
                copy.lines.append(f"{block.parameters:,} parameters")
            continue
        copy.flows = flows
        for each, run in sources:
            inner = _copy(each)
            if run is not None and run.period > 1:
                part = Block("", f"× {run.count}", "chain", "repeat", parameters=run.count * each.parameters)
                members = block.inside[run.start : run.start + run.period]
                for member in members:
                    last = _copy(member)
                    part.inside.append(last)
                    queue.append((last, member))
                copy.inside.append(part)
                continue
            if run is not None:
                inner.name = f"{each.name} … {block.inside[run.start + run.count - 1].name}"
                inner.title = f"{each.title} × {run.count}"
            copy.inside.append(inner)
            queue.append((inner, each))
    stack = list(reversed(root.inside))
    while stack:
        block = stack.pop()
        found.append(block)
        stack += reversed(block.inside)
    return found


def _opened(root: Block, folds: dict[int, list[Fold]], most: int) -> set[int]:
    """Return the open containers, by id: level by level, as long as there is room for a whole level.

    Branches open together with their container, so that skips are visible.
    """
    opened: set[int] = set()
    count, level = 1, [root]
    for depth in range(_DEEPEST):
        queue, below = [block for block in level if block.inside], list[Block]()
        group = set[int]()
        added = 0
        for block in queue:  # grows: branches
            group.add(id(block))
            for each, run in _kept(block, folds.get(id(block), []))[0]:
                members = [each] if run is None else block.inside[run.start : run.start + run.period]
                added += len(members)
                for member in members:
                    few = is_branching(member) and len(member.inside) <= _BRANCHES
                    (queue if few else below).append(member)
        if not group or (count + added > most if depth else added > 10 * MOST):
            break
        opened |= group
        count, level = count + added, below
    return opened


def _copy(block: Block) -> Block:
    return evolve(block, inside=[], lines=list(block.lines))


def _blocks_inside(block: Block) -> str:
    count = sum(each.kind != "end" for each in block.inside)
    return f"{count:,} block{'s' if count != 1 else ''}"


def _kept(block: Block, runs: list[Fold]) -> tuple[list[tuple[Block, Fold | None]], list[Flow]]:
    """Return the visible blocks of a container, with the run that each begins, and the flows between them."""
    starts = {run.start: run for run in runs}
    kept: list[tuple[Block, Fold | None]] = []
    numbers: dict[int, int] = {}
    place = 0
    while place < len(block.inside):
        run = starts.get(place)
        numbers[place] = len(kept)
        kept.append((block.inside[place], run))
        place += run.period * run.count if run else 1
    flows = [
        Flow(numbers[flow.start], numbers[flow.end], flow.label)
        for flow in block.flows
        if flow.start in numbers and flow.end in numbers
    ]
    return kept, flows
