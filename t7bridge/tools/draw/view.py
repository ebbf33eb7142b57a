"""What a picture or a table shows of a model: repeated blocks once, containers closed where room is short, and the
places where the data flow branches or skips layers, in a few words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import evolve

from ...data import define
from .blocks import Block, Flow

_LONGEST = 12
"""Maximum number of blocks of a period."""
_NAMED = 4
"""Number of places named; for more there is the count."""

MOST = 400
"""Maximum number of blocks shown, if containers can be closed."""
_DEEPEST, _BRANCHES = 40, 10


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
            *block.lines,
            (*inside,),
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


def shown(blocks: list[Block], most: int = MOST) -> list[Block]:
    """Return the blocks of a picture, each before those inside it: copies, labelled with what is folded.

    Args:
        blocks: all of them, each before those inside it.
        most: maximum number shown before containers are closed; those nearer to the root are opened first.
    """
    folds = folds_of(blocks)
    opened = _opened(blocks[0], folds, most)
    root = _copy(blocks[0])
    queue = [(root, blocks[0])]
    for copy, block in queue:  # grows: level by level
        runs = folds.get(id(block), [])
        sources, flows = _visible(block, runs)
        if block.inside and id(block) not in opened:
            copy.kind, copy.flows = "layer", []
            inner_blocks = sum(each.kind != "end" for each in block.inside)
            copy.lines.append(f"{inner_blocks:,} block{'s' if inner_blocks != 1 else ''} inside")
            if block.parameters:
                copy.lines.append(f"{block.parameters:,} parameters")
            continue
        copy.flows = flows
        for each, run in sources:
            if run is not None and run.period > 1:
                inner = Block("", "", "chain", "repeat", parameters=run.count * each.parameters, repeat=run.count)
                members = block.inside[run.start : run.start + run.period]
                inner.inside = [_copy(member) for member in members]
                queue += zip(inner.inside, members)
            else:
                inner = _copy(each)
                queue.append((inner, each))
                if run is not None:
                    inner.name = f"{each.name} … {block.inside[run.start + run.count - 1].name}"
                    inner.repeat = run.count
            copy.inside.append(inner)
    return list(root.walk())


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
            for each, run in _visible(block, folds.get(id(block), []))[0]:
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


def _visible(block: Block, runs: list[Fold]) -> tuple[list[tuple[Block, Fold | None]], list[Flow]]:
    """Return the visible blocks of a container, with the run that each begins, and the flows between them."""
    starts = {run.start: run for run in runs}
    visible: list[tuple[Block, Fold | None]] = []
    numbers: dict[int, int] = {}
    place = 0
    while place < len(block.inside):
        run = starts.get(place)
        numbers[place] = len(visible)
        visible.append((block.inside[place], run))
        place += run.period * run.count if run else 1
    flows = [
        Flow(numbers[flow.start], numbers[flow.end], flow.label)
        for flow in block.flows
        if flow.start in numbers and flow.end in numbers
    ]
    return visible, flows


def skips_of(blocks: list[Block]) -> list[str]:
    """Return the arrows of graphs that bypass other nodes, `3 → 9`; those from inputs and to outputs do not count."""
    found: list[str] = []
    for block in blocks:
        if block.kind != "graph" or is_branching(block):
            continue
        leaving = Counter(flow.start for flow in block.flows)
        ranks = ranks_of(len(block.inside), block.flows)
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
        if block.owner:
            owner = block.owner if block.mark == "again" else block.owner.rpartition(".")[0]
            found.append(f"{block.key or block.name} = {owner}")
    return found


def is_branching(block: Block) -> bool:
    """Return whether a block consists of branches between one input and one output."""
    count = len(block.inside) - 2
    if block.kind != "graph" or count < 1 or len(block.flows) != 2 * count:
        return False
    return all(flow.start == count or flow.end == count + 1 for flow in block.flows)


def first_places(found: list[str]) -> str:
    """Return the number of places, and the first of them."""
    more = ", …" if len(found) > _NAMED else ""
    return f"{len(found)}: {', '.join(found[:_NAMED])}{more}"


def ranks_of(count: int, flows: list[Flow]) -> list[int]:
    """Return the layer of each node: below all its inputs, and, without inputs, just above its first user."""
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for flow in flows:
        after[flow.start].append(flow.end)
        waiting[flow.end] += 1
    ranks = [0] * count
    roots = [node for node in range(count) if not waiting[node]]
    order = list(roots)
    for node in order:
        for end in after[node]:
            ranks[end] = max(ranks[end], ranks[node] + 1)
            waiting[end] -= 1
            if not waiting[end]:
                order.append(end)
    for node in roots[1:]:
        if after[node]:
            ranks[node] = max(ranks[node], min(ranks[end] for end in after[node]) - 1)
    return ranks
