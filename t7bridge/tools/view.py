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
_DEEPEST = 40
"""Levels of containers that are opened."""
_BRANCHES = 10
"""Maximum number of blocks of a container of branches that is opened together with its container."""


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
    """By the id of a block: a number that is the same for equal blocks."""
    folds_by_id: dict[int, list[Fold]] = {}
    for block in reversed(blocks):  # inner blocks first
        inside = [looks[id(member)] for member in block.inside]
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
            # Two containers are worth folding, but not two single layers.
            minimum_counts = [2 if member.inside else 3 for member in block.inside]
            folds = _runs(inside, len(inside), _LONGEST, minimum_counts)
        elif block.kind == "graph":
            folds = _graph_runs(block, inside)
        elif block.kind == "side":
            folds = _runs(inside, len(inside), 1, [2] * len(inside))
        else:
            folds = []
        if folds:
            folds_by_id[id(block)] = folds
    return folds_by_id


def _graph_runs(block: Block, looks: list[int]) -> list[Fold]:
    """Return the runs in a graph: repetitions with the same flows inside, from the one before, and from elsewhere."""
    entering: list[list[Flow]] = [[] for _ in looks]
    leaving: list[list[Flow]] = [[] for _ in looks]
    for flow in block.flows:
        entering[flow.end].append(flow)
        leaving[flow.start].append(flow)
    minimum_counts = [2 if is_branching(block) else 3] * len(looks)
    nodes = len(looks) - 2  # the last two blocks are the input and the output of the graph
    return _runs(looks, nodes, _LONGEST_GRAPH, minimum_counts, lambda fold: _crossing(fold, entering, leaving))


def _runs(
    looks: list[int],
    stop: int,
    longest: int,
    minimum_counts: list[int],
    crossing: Callable[[Fold], int | None] = lambda fold: 0,
) -> list[Fold]:
    """Return the runs in a sequence, from the left, each with maximum coverage.

    Args:
        looks: the same number for equal blocks.
        stop: number of blocks.
        longest: maximum period.
        minimum_counts: minimum repetitions of a period of at most 3 that begins at each block; of longer ones it is 2.
        crossing: returns the number of flows from a repetition to the next, the fewer the better; `None` for no run.
    """
    runs: list[Fold] = []
    place = 0
    steps_left = _WORK * stop
    while place < stop and steps_left > 0:
        best: Fold | None = None
        for period, end in _repeating(looks, place, stop, longest):
            length = end - place
            steps_left -= length
            count = length // period
            if count < (2 if period > 3 else minimum_counts[place]):
                continue
            if best is None or count * period > best.count * best.period:
                steps_left -= period * length
                best = _best_start(place, period, end, crossing) or best
        if best is None:
            place += 1
        else:
            runs.append(best)
            place = best.start + best.period * best.count
    return runs


def _best_start(place: int, period: int, end: int, crossing: Callable[[Fold], int | None]) -> Fold | None:
    """Return the run in a repeating sequence that begins where repetitions are most, and flows between them fewest.

    The sequence `a b a b a` is `a b` twice, or, from its second block on, `b a` twice.

    Args:
        place: the first block of the sequence.
        period: blocks of one repetition.
        end: the block after the last.
        crossing: as of `_runs`.
    """
    costs: dict[Fold, int] = {}
    for start in range(place, place + period):
        fold = Fold(start, period, (end - start) // period)
        if fold.count < 2:
            continue
        cost = crossing(fold)
        if cost is not None:
            costs[fold] = cost
    return min(costs, key=lambda fold: (-fold.count, costs[fold]), default=None)


def _repeating(looks: list[int], place: int, stop: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield each period, and where the sequence that begins at a place ceases to repeat it."""
    for period in range(1, min(longest, (stop - place) // 2) + 1):
        end = place + period
        while end < stop and looks[end] == looks[end - period]:
            end += 1
        yield period, end


def _crossing(fold: Fold, entering: list[list[Flow]], leaving: list[list[Flow]]) -> int | None:
    """Return the number of flows from a repetition to the next; `None` if the repetitions have different flows.

    Nodes outside are the same for each, or each has the next of a run, so that their numbers have one distance.

    Args:
        fold: the run.
        entering: the flows that enter each node.
        leaving: those that leave it.
    """
    period = fold.period
    run = range(fold.start, fold.start + period * fold.count)
    crossing = 0
    for first_node in run[:period]:
        inner_flows: list[list[tuple[int, str]]] = []
        """Of each repetition of the node: the flows that begin in the same repetition, as offset from its first."""
        flows_before: list[list[tuple[int, str]]] = []
        """Those that begin in the repetition before, with negative offsets."""
        sources: list[list[int]] = []
        targets: list[list[int]] = []
        """The nodes outside of the run from which flows come, and to which they go."""
        for node in run[first_node - fold.start :: period]:
            repetition_start = node - first_node + fold.start
            starts = [(flow.start - repetition_start, flow.label) for flow in entering[node] if flow.start in run]
            if any(not -period <= offset < period for offset, _ in starts):
                return None
            inner_flows.append(sorted(start for start in starts if start[0] >= 0))
            flows_before.append(sorted(start for start in starts if start[0] < 0))
            if inner_flows[-1] != inner_flows[0]:
                return None
            # Nothing comes before the first repetition: the others are like the second.
            if len(flows_before) > 1 and flows_before[-1] != flows_before[1]:
                return None
            sources.append(sorted(flow.start for flow in entering[node] if flow.start not in run))
            targets.append(sorted(flow.end for flow in leaving[node] if flow.end not in run))
        crossing += len(flows_before[1])
        # The first repetition may take its values from elsewhere, the last may pass them elsewhere.
        if not _is_even(sources[1:]) or not _is_even(targets[:-1]):
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
            copy.kind = "closed"
            copy.flows = []
            continue
        runs = folds.get(id(block), [])
        members, copy.flows = _visible(block, runs)
        for member, run in members:
            if run is not None and run.period > 1:
                inner = _repetition(block, run)
                # Without the ends, which come after the members.
                queue += zip(inner.inside, block.inside[run.start : run.start + run.period])
            else:
                inner = _copy(member)
                queue.append((inner, member))
                if run is not None:
                    last_member = block.inside[run.start + run.count - 1]
                    inner.name = f"{member.name} … {last_member.name}"
                    inner.repeat = run.count
            copy.inside.append(inner)
    return list(copied.walk())


def _repetition(block: Block, run: Fold) -> Block:
    """Return one repetition of a run; in a graph, an end names each block from which it takes a value."""
    members = block.inside[run.start : run.start + run.period]
    parameters = run.count * sum(member.parameters for member in members)
    inner = Block("", "", block.kind, "repeat", parameters=parameters, repeat=run.count, shape=members[-1].shape)
    inner.inside = [_copy(member) for member in members]
    second = run.start + run.period
    places = {number: number - run.start for number in range(run.start, second)}
    """By the number of a block in the container: its number in the repetition."""
    ends: dict[int, int] = {}
    """By the number of a block outside of the repetition: the number of its end."""
    for flow in block.flows:
        if flow.start in places and flow.end in places:
            inner.flows.append(Flow(places[flow.start], places[flow.end], flow.label))
            continue
        # What enters a repetition is that of the second: the first may take its values from elsewhere.
        enters_second = flow.end - run.period in places and flow.start - run.period not in places
        if not enters_second:
            continue
        if flow.start not in ends:
            ends[flow.start] = len(inner.inside)
            name = _name_of_end(block.inside[flow.start])
            if flow.start in places:  # the block of that name in the repetition before
                name = f"last {name}"
            inner.inside.append(Block("", "", "end", lines=[name]))
        inner.flows.append(Flow(ends[flow.start], places[flow.end - run.period], flow.label))
    return inner


def _name_of_end(block: Block) -> str:
    """Return how an end names the block from which its value comes."""
    parts = [block.name, block.title]
    if block.kind == "end":
        parts += block.lines[:1]
    return ": ".join(filter(None, parts))


def opened_of(root: Block, folds: Mapping[int, list[Fold]], most: int) -> set[int]:
    """Return the open containers, by id: level by level, as long as there is room for a whole level.

    Branches open together with their container, so that skips are visible.

    Args:
        root: the block that contains all.
        folds: the runs in each container that are shown once, by id.
        most: maximum number of blocks shown.
    """
    opened: set[int] = set()
    count = 1
    level = [root]
    for depth in range(_DEEPEST):
        queue = [block for block in level if block.inside]
        next_level: list[Block] = []
        opened_now: set[int] = set()
        added = 0
        for block in queue:  # grows: branches
            opened_now.add(id(block))
            visible, _ = _visible(block, folds.get(id(block), []))
            for block_inside, run in visible:
                members = [block_inside]
                if run is not None:
                    members = block.inside[run.start : run.start + run.period]
                added += len(members)
                for member in members:
                    if is_branching(member) and len(member.inside) <= _BRANCHES:
                        queue.append(member)
                    else:
                        next_level.append(member)
        has_room = count + added <= most
        if depth == 0:
            # A closed root would show nothing: it is opened unless its content is far too much.
            has_room = added <= 10 * MOST
        if not opened_now or not has_room:
            break
        opened |= opened_now
        count += added
        level = next_level
    return opened


def _copy(block: Block) -> Block:
    return evolve(block, inside=[], lines=list(block.lines), source=block)


def _visible(block: Block, runs: list[Fold]) -> tuple[list[tuple[Block, Fold | None]], list[Flow]]:
    """Return the visible blocks of a container, with the run that each begins, and the flows between them."""
    starts = {run.start: run for run in runs}
    visible: list[tuple[Block, Fold | None]] = []
    numbers: list[int] = []
    """Of each block of the container: the number of the visible block that shows it."""
    while len(numbers) < len(block.inside):
        place = len(numbers)
        run = starts.get(place)
        numbers += [len(visible)] * (run.period * run.count if run else 1)
        visible.append((block.inside[place], run))
    labels: dict[tuple[int, int], set[str]] = {}
    for flow in block.flows:
        labels.setdefault((numbers[flow.start], numbers[flow.end]), set()).add(flow.label)
    flows: list[Flow] = []
    for (start, end), labels_between in labels.items():
        if start == end:  # inside of a run
            continue
        # One arrow for all flows between two blocks: it has a label if all have the same.
        label = "".join(labels_between) if len(labels_between) == 1 else ""
        flows.append(Flow(start, end, label))
    return visible, flows


def skips_of(blocks: list[Block]) -> list[str]:
    """Return the arrows of graphs that bypass other nodes, `3 → 9`; those from inputs and to outputs do not count."""
    skips: list[str] = []
    for block in blocks:
        if block.kind != "graph" or is_branching(block):
            continue
        leaving = Counter(flow.start for flow in block.flows)
        ranks = ranks_of(len(block.inside), block.flows)
        for flow in block.flows:
            start = block.inside[flow.start]
            end = block.inside[flow.end]
            if "end" in (start.kind, end.kind):
                continue
            has_other_way = leaving[flow.start] > 1
            if has_other_way and ranks[flow.end] - ranks[flow.start] > 1:
                skips.append(f"{start.key or start.name} → {end.key or end.name}")
    return skips


def branches_of(blocks: list[Block]) -> list[str]:
    """Return the containers that pass their input to several branches: the key of each, and the number of branches."""
    lines: list[str] = []
    for block in blocks:
        branches = len(block.inside) - 2  # without the input and the output
        if is_branching(block) and branches > 1:
            lines.append(f"{block.key or '(model)'} {block.title} ({branches})")
    return lines


def shared_of(blocks: list[Block]) -> list[str]:
    """Return the layers that have the weights of another, or are the same module: `0.1.0 = 0.0.0`."""
    lines: list[str] = []
    for block in blocks:
        if not block.owner:
            continue
        owner = block.owner
        if block.mark != "again":  # the owner of weights is named with the weight: `0.0.0.weight`
            owner = owner.rpartition(".")[0]
        lines.append(f"{block.key or block.name} = {owner}")
    return lines


def is_branching(block: Block) -> bool:
    """Return whether a block consists of branches between one input and one output."""
    branches = len(block.inside) - 2  # the last two blocks are the input and the output
    if block.kind != "graph" or branches < 1 or len(block.flows) != 2 * branches:
        return False
    return all(flow.start == branches or flow.end == branches + 1 for flow in block.flows)


def first_places(places: list[str]) -> str:
    """Return the number of places, and the first of them."""
    more = ", …" if len(places) > _NAMED else ""
    return f"{len(places)}: {', '.join(places[:_NAMED])}{more}"


def ranks_of(count: int, flows: list[Flow]) -> list[int]:
    """Return the layer of each node: below all its inputs, and, without inputs, just above its first user."""
    users: list[list[int]] = [[] for _ in range(count)]
    missing_inputs = [0] * count
    """Of each node: its inputs that have no rank yet."""
    for flow in flows:
        users[flow.start].append(flow.end)
        missing_inputs[flow.end] += 1
    ranks = [0] * count
    roots = [node for node in range(count) if not missing_inputs[node]]
    order = list(roots)
    for node in order:  # grows: nodes of which all inputs have a rank
        for user in users[node]:
            ranks[user] = max(ranks[user], ranks[node] + 1)
            missing_inputs[user] -= 1
            if not missing_inputs[user]:
                order.append(user)
    # The first root is at the top, others just above their first users.
    for node in roots[1:]:
        if users[node]:
            ranks[node] = max(ranks[node], min(ranks[user] for user in users[node]) - 1)
    return ranks
