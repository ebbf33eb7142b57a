"""The part of a model in a still picture: repeated blocks once, and containers closed where there is no room."""

from __future__ import annotations

from attrs import evolve

from .blocks import Block, Flow
from .folds import Fold, folds_of

MOST = 400
"""Blocks that a picture shows, at most, where containers can be closed."""
_DEEPEST = 40


def shown(blocks: list[Block], most: int = MOST) -> list[Block]:
    """The blocks of a picture, each before those inside it: copies, with what is folded said in their text.

    Args:
        blocks: all of them, each before those inside it.
        most: how many are shown before containers are closed; those nearer to the root are opened first.
    """
    folds = folds_of(blocks)
    root = _copy(blocks[0])
    found, queue = [root], [(root, blocks[0], 0)]
    count = 1
    for copy, block, depth in queue:  # grows: level by level
        runs = folds.get(id(block), [])
        sources, flows = _kept(block, runs)
        room = count + len(sources) <= most or (depth == 0 and len(sources) <= 10 * most)
        if not room or depth > _DEEPEST:
            copy.kind, copy.flows = "layer", []
            copy.lines.append(f"{_blocks_inside(block)} inside")
            if block.parameters:
                copy.lines.append(f"{block.parameters:,} parameters")
            continue
        count += len(sources)
        copy.flows = flows
        for each, run in sources:
            inner = _copy(each)
            if run is not None and run.period > 1:
                part = Block("", f"× {run.count}", "chain", "repeat", parameters=run.count * each.parameters)
                members = block.inside[run.start : run.start + run.period]
                for member in members:
                    last = _copy(member)
                    part.inside.append(last)
                    queue.append((last, member, depth + 2))
                copy.inside.append(part)
                count += run.period
                continue
            if run is not None:
                inner.name = f"{each.name} … {block.inside[run.start + run.count - 1].name}"
                inner.title = f"{each.title} × {run.count}"
            copy.inside.append(inner)
            queue.append((inner, each, depth + 1))
    stack = list(reversed(root.inside))
    while stack:
        block = stack.pop()
        found.append(block)
        stack += reversed(block.inside)
    return found


def _copy(block: Block) -> Block:
    return evolve(block, inside=[], lines=list(block.lines))


def _blocks_inside(block: Block) -> str:
    count = sum(each.kind != "end" for each in block.inside)
    return f"{count:,} block{'s' if count != 1 else ''}"


def _kept(block: Block, runs: list[Fold]) -> tuple[list[tuple[Block, Fold | None]], list[Flow]]:
    """The blocks of a container that are shown, with the run that each begins, and the flows between these."""
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
