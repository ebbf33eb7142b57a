"""What a picture or a table shows of a model: repeated blocks once, containers closed where room is short, and the
places where the data flow branches or skips layers, in a few words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import pairwise

from attrs import evolve

from ..data import define
from ..nn.blocks import Block, Flow

_LONGEST = 12
"""Maximum number of blocks of a period."""
_LONGEST_GRAPH = 100
"""The same in a graph."""
_WORK = 400
"""Steps of the search for runs in a graph, for each of its blocks."""
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


def folds_of(blocks: list[Block]) -> dict[int, list[Fold]]:
    """Return the runs in each container, by the id of its block; blocks are equal if they look the same but for names.

    Args:
        blocks: all of them, each before those inside it.
    """
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
        )
        looks[id(block)] = numbers.setdefault(look, len(numbers))
        if block.kind == "chain":
            folds = _runs(inside, len(inside), _LONGEST, [3 - bool(each.inside) for each in block.inside])
        elif block.kind == "graph":
            folds = _graph_runs(block, inside)
        elif block.kind == "side":
            folds = _runs(inside, len(inside), 1, [2] * len(inside))
        else:
            folds = []
        if folds:
            found[id(block)] = folds
    return found


def _graph_runs(block: Block, looks: list[int]) -> list[Fold]:
    """Return the runs in a graph: repetitions with the same flows inside, from the one before, and from elsewhere."""
    takes: list[list[Flow]] = [[] for _ in looks]
    goes: list[list[Flow]] = [[] for _ in looks]
    for flow in block.flows:
        takes[flow.end].append(flow)
        goes[flow.start].append(flow)
    few = [2 if is_branching(block) else 3] * len(looks)
    return _runs(looks, len(looks) - 2, _LONGEST_GRAPH, few, lambda fold: _crossing(fold, takes, goes))


def _runs(
    looks: list[int], stop: int, longest: int, few: list[int], crossing: Callable[[Fold], int | None] = lambda fold: 0
) -> list[Fold]:
    """Return the runs in a sequence, from the left, each with maximum coverage.

    Args:
        looks: the same number for equal blocks.
        stop: number of blocks.
        longest: maximum period.
        few: minimum repetitions of a period of at most 3 that begins at each block.
        crossing: returns the number of flows from a repetition to the next, the fewer the better; `None` for no run.
    """
    found: list[Fold] = []
    place, left = 0, _WORK * stop
    while place < stop and left > 0:
        best: Fold | None = None
        for period, end in _repeating(looks, place, stop, longest):
            left -= end - place
            if (end - place) // period < (2 if period > 3 else few[place]):
                continue
            if best is None or (end - place) // period * period > best.count * best.period:
                folds = [Fold(place + at, period, (end - place - at) // period) for at in range(period)]
                folds = [fold for fold in folds if fold.count > 1]
                left -= period * (end - place)
                costs = {fold: number for fold in folds if (number := crossing(fold)) is not None}
                best = min(costs, key=lambda fold: (-fold.count, costs[fold]), default=best)
        if best is not None:
            found.append(best)
        place = place + 1 if best is None else best.start + best.period * best.count
    return found


def _repeating(looks: list[int], place: int, stop: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield each period, and where the sequence that begins at a place ceases to repeat it."""
    for period in range(1, min(longest, (stop - place) // 2) + 1):
        end = place + period
        while end < stop and looks[end] == looks[end - period]:
            end += 1
        yield period, end


def _crossing(fold: Fold, takes: list[list[Flow]], goes: list[list[Flow]]) -> int | None:
    """Return the number of flows from a repetition to the next; `None` if the repetitions have different flows.

    Nodes outside are the same for each, or each has the next of a run, so that their numbers have one distance.
    """
    start, period = fold.start, fold.period
    last = start + period * fold.count
    crossing = 0
    for at in range(start, start + period):
        kinds: list[list[list[tuple[int, str]]]] = []
        sources: list[list[int]] = []
        targets: list[list[int]] = []
        for number in range(at, last, period):
            first = number - at + start
            ends = [(flow.start - first, flow.label) for flow in takes[number] if start <= flow.start < last]
            if any(not -period <= end < period for end, _ in ends):
                return None
            kinds.append([sorted(each for each in ends if (each[0] < 0) == before) for before in (False, True)])
            if kinds[-1][0] != kinds[0][0] or kinds[-1][1] != kinds[min(len(kinds) - 1, 1)][1]:
                return None
            sources.append(sorted(flow.start for flow in takes[number] if not start <= flow.start < last))
            targets.append(sorted(flow.end for flow in goes[number] if not start <= flow.end < last))
        crossing += len(kinds[1][1])
        if not (_is_even(sources[1:]) and _is_even(targets[:-1])):
            return None
    return crossing


def _is_even(numbers: list[list[int]]) -> bool:
    """Return whether each list has the same distance from the list before it."""
    if len({*map(len, numbers)}) > 1:
        return False
    steps = [[b - a for a, b in zip(one, two)] for one, two in pairwise(numbers)]
    return all(step == steps[0] for step in steps)


def shown(blocks: list[Block], most: int = MOST) -> list[Block]:
    """Return the blocks of a picture, each before those inside it: copies, labelled with what is folded.

    Args:
        blocks: all of them, each before those inside it.
        most: maximum number shown before containers are closed; those nearer to the root are opened first.
    """
    folds = folds_of(blocks)
    return view_of(blocks[0], folds, opened_of(blocks[0], folds, most))


def view_of(root: Block, folds: Mapping[int, list[Fold]], opened: Container[int]) -> list[Block]:
    """Return what is shown of a block, each before those inside it: copies, labelled with what is folded.

    Args:
        root: the block.
        folds: the runs in each container that are shown once, by id.
        opened: the containers whose content is shown, by id.
    """
    copied = _copy(root)
    queue = [(copied, root)]
    for copy, block in queue:  # grows: level by level
        if block.inside and id(block) not in opened:
            copy.kind, copy.flows = "closed", []
            continue
        runs = folds.get(id(block), [])
        sources, copy.flows = _visible(block, runs)
        for each, run in sources:
            if run is not None and run.period > 1:
                inner = _repetition(block, run)
                queue += zip(inner.inside, block.inside[run.start : run.start + run.period])
            else:
                inner = _copy(each)
                queue.append((inner, each))
                if run is not None:
                    inner.name = f"{each.name} … {block.inside[run.start + run.count - 1].name}"
                    inner.repeat = run.count
            copy.inside.append(inner)
    return list(copied.walk())


def _repetition(block: Block, run: Fold) -> Block:
    """Return one repetition of a run; in a graph, an end names each block from which it takes a value."""
    members = block.inside[run.start : run.start + run.period]
    count = run.count * sum(each.parameters for each in members)
    inner = Block("", "", block.kind, "repeat", parameters=count, repeat=run.count, shape=members[-1].shape)
    inner.inside = [_copy(member) for member in members]
    second = run.start + run.period
    places = {number: number - run.start for number in range(run.start, second)}
    ends: dict[int, int] = {}
    for flow in block.flows:
        if flow.start in places and flow.end in places:
            inner.flows.append(Flow(places[flow.start], places[flow.end], flow.label))
        elif flow.end - run.period in places and flow.start - run.period not in places:
            if flow.start not in ends:
                source = block.inside[flow.start]
                name = ": ".join(filter(None, (source.name, source.title, *source.lines[: source.kind == "end"])))
                ends[flow.start] = len(inner.inside)
                inner.inside.append(Block("", "", "end", lines=["last " * (flow.start in places) + name]))
            inner.flows.append(Flow(ends[flow.start], places[flow.end - run.period], flow.label))
    return inner


def opened_of(root: Block, folds: Mapping[int, list[Fold]], most: int) -> set[int]:
    """Return the open containers, by id: level by level, as long as there is room for a whole level.

    Branches open together with their container, so that skips are visible.

    Args:
        root: the block that contains all.
        folds: the runs in each container that are shown once, by id.
        most: maximum number of blocks shown.
    """
    opened: set[int] = set()
    count, level = 1, [root]
    for depth in range(_DEEPEST):
        queue = [block for block in level if block.inside]
        below = list[Block]()
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
    return evolve(block, inside=[], lines=list(block.lines), source=block)


def _visible(block: Block, runs: list[Fold]) -> tuple[list[tuple[Block, Fold | None]], list[Flow]]:
    """Return the visible blocks of a container, with the run that each begins, and the flows between them."""
    starts = {run.start: run for run in runs}
    visible: list[tuple[Block, Fold | None]] = []
    numbers: list[int] = []
    while len(numbers) < len(block.inside):
        place = len(numbers)
        run = starts.get(place)
        numbers += [len(visible)] * (run.period * run.count if run else 1)
        visible.append((block.inside[place], run))
    labels: dict[tuple[int, int], set[str]] = {}
    for flow in block.flows:
        labels.setdefault((numbers[flow.start], numbers[flow.end]), set()).add(flow.label)
    flows = [
        Flow(start, end, "".join(found) if len(found) == 1 else "")
        for (start, end), found in labels.items()
        if start != end
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
