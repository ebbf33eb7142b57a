"""Repeated blocks: runs of equal ones, which a picture shows once with their number."""

from __future__ import annotations

from collections.abc import Mapping

from ...data import define
from .blocks import Block

_LONGEST = 12
"""Maximum number of blocks of a period."""


@define(frozen=True)
class Fold:
    """A run of equal blocks, or of equal sequences of blocks, in one container.

    Attributes:
        start: number of the first block, from 0.
        period: blocks of one repetition.
        count: repetitions.
    """

    start: int
    period: int
    count: int


def folds_of(blocks: list[Block], marks: Mapping[int, object] | None = None) -> dict[int, list[Fold]]:
    """Return the runs in each container, by the id of its block; blocks are equal if they look the same but for names.

    Args:
        blocks: all of them, each before those inside it.
        marks: further values that must be equal, by the id of a block.
    """
    marks = marks or {}
    numbers: dict[object, int] = {}
    looks: dict[int, int] = {}
    found: dict[int, list[Fold]] = {}
    for block in reversed(blocks):  # inner blocks first
        inside = [looks[id(each)] for each in block.inside]
        flows = tuple((flow.start, flow.end, flow.label) for flow in block.flows)
        look = (
            block.title,
            block.class_name,
            block.kind,
            block.mark,
            tuple(block.lines),
            tuple(inside),
            flows,
            marks.get(id(block)),
        )
        looks[id(block)] = numbers.setdefault(look, len(numbers))
        if block.kind == "chain":
            folds = _runs(inside, [bool(each.inside) for each in block.inside])
        elif block.kind == "graph" and len(inside) > 4 and len(flows) == 2 * (len(inside) - 2):
            folds = [each for each in _runs(inside[:-2], [True] * len(inside), 1) if _same_flows(block, each)]
        elif block.kind == "side":
            folds = _runs(inside, [True] * len(inside), 1)
        else:
            folds = []
        if folds:
            found[id(block)] = folds
    return found


def _same_flows(block: Block, fold: Fold) -> bool:
    """Return whether all branches of a run are between the same two ends."""
    ends: dict[int, set[int]] = {}
    for flow in block.flows:
        ends.setdefault(flow.start, set()).add(flow.end)
        ends.setdefault(flow.end, set()).add(flow.start)
    last = len(block.inside)
    return all(ends.get(number) == {last - 2, last - 1} for number in range(fold.start, fold.start + fold.count))


def _runs(looks: list[int], nested: list[bool], longest: int = _LONGEST) -> list[Fold]:
    """Return the runs in a sequence, from the left, each with maximum coverage; linear in the length."""
    found: list[Fold] = []
    place = 0
    while place < len(looks):
        best = Fold(place, 1, 1)
        for period in range(1, min(longest, (len(looks) - place) // 2) + 1):
            end = place + period
            while end < len(looks) and looks[end] == looks[end - period]:
                end += 1
            count = (end - place) // period
            enough = 2 if period > 3 or nested[place] else 3
            if count >= enough and count * period > best.count * best.period:
                best = Fold(place, period, count)
        if best.count > 1:
            found.append(best)
        place += best.period * best.count
    return found
