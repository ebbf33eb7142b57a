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
"""Levels of containers that may be open."""
_BRANCHES = 10
"""Maximum number of blocks of branches that open together with their container."""


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
    """The number of the look of each block, by its id: the same for blocks that look the same."""
    folds: dict[int, list[Fold]] = {}
    for block in reversed(blocks):  # inner blocks first
        inside = [looks[id(inner)] for inner in block.inside]
        flows = tuple((flow.start, flow.end, flow.label) for flow in block.flows)
        look = (block.title, block.class_name, block.kind, block.mark, *block.lines, tuple(inside), flows)
        looks[id(block)] = numbers.setdefault(look, len(numbers))
        runs: list[Fold] = []
        if block.kind == "chain":
            # A container is worth a fold if there are two of it, a layer if there are three.
            fewest = [2 if inner.inside else 3 for inner in block.inside]
            runs = _runs(inside, len(inside), _LONGEST, fewest)
        elif block.kind == "graph":
            runs = _graph_runs(block, inside)
        elif block.kind == "side":
            runs = _runs(inside, len(inside), 1, [2] * len(inside))
        if runs:
            folds[id(block)] = runs
    return folds


def _graph_runs(block: Block, looks: list[int]) -> list[Fold]:
    """Return the runs in a graph: repetitions with the same flows inside, from the one before, and from elsewhere."""
    fewest = [2 if is_branching(block) else 3] * len(looks)
    # The last two blocks of a graph are its input and its output.
    stop = len(looks) - 2
    return _runs(looks, stop, _LONGEST_GRAPH, fewest, _Surroundings(block).crossing)


def _runs(
    looks: list[int],
    stop: int,
    longest: int,
    fewest: list[int],
    crossing: Callable[[Fold], int | None] = lambda fold: 0,
) -> list[Fold]:
    """Return the runs in a sequence, from the left, each with maximum coverage.

    Args:
        looks: the same number for equal blocks.
        stop: number of blocks.
        longest: maximum period.
        fewest: minimum repetitions of a period of at most 3 that begins at each block.
        crossing: returns the number of flows from a repetition to the next, the fewer the better; `None` for no run.
    """
    runs: list[Fold] = []
    place = 0
    budget = _WORK * stop
    while place < stop and budget > 0:
        best: Fold | None = None
        for period, end in _repeating(looks, place, stop, longest):
            length = end - place
            count = length // period
            budget -= length
            # Two repetitions of a long period are enough.
            if count < (2 if period > 3 else fewest[place]):
                continue
            if best is None or count * period > best.count * best.period:
                budget -= period * length
                best = _best_of_shifted(place, period, length, crossing) or best
        if best is None:
            place += 1
        else:
            runs.append(best)
            place = best.start + best.period * best.count
    return runs


def _best_of_shifted(place: int, period: int, length: int, crossing: Callable[[Fold], int | None]) -> Fold | None:
    """Return the run of a period that repeats most often, and of these that which the fewest flows connect.

    Args:
        place: where the blocks begin that repeat.
        period: of these.
        length: the number of blocks.
        crossing: see `_runs`.
    """
    best: Fold | None = None
    fewest = 0
    for shift in range(period):
        fold = Fold(place + shift, period, (length - shift) // period)
        # A later shift has no greater count, and no run has fewer flows than none.
        if fold.count < 2 or (best is not None and (fold.count < best.count or fewest == 0)):
            break
        cost = crossing(fold)
        if cost is not None and (best is None or cost < fewest):
            best = fold
            fewest = cost
    return best


def _repeating(looks: list[int], place: int, stop: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield each period, and where the sequence that begins at a place ceases to repeat it."""
    for period in range(1, min(longest, (stop - place) // 2) + 1):
        end = place + period
        while end < stop and looks[end] == looks[end - period]:
            end += 1
        yield period, end


class _Surroundings:
    """The flows that enter and leave each node of a graph.

    Args:
        block: the graph.
    """

    def __init__(self, block: Block) -> None:
        self._entering: list[list[Flow]] = [[] for _ in block.inside]
        self._leaving: list[list[Flow]] = [[] for _ in block.inside]
        for flow in block.flows:
            self._entering[flow.end].append(flow)
            self._leaving[flow.start].append(flow)
        self._distances: list[object] = []
        """How far from each node its flows come, with their labels, and how far they go."""
        self._lowest: list[int] = []
        self._highest: list[int] = []
        """The lowest and the highest number of each node and those that flows connect with it."""
        for node, (entering, leaving) in enumerate(zip(self._entering, self._leaving)):
            starts = sorted([(flow.start - node, flow.label) for flow in entering])
            ends = sorted([flow.end - node for flow in leaving])
            self._distances.append((starts, ends))
            connected = [node, *[flow.start for flow in entering], *[flow.end for flow in leaving]]
            self._lowest.append(min(connected))
            self._highest.append(max(connected))

    def crossing(self, fold: Fold) -> int | None:
        """Return the number of flows from a repetition to the next; `None` if the repetitions have different flows.

        Nodes outside are the same for each, or each has the next of a run, so that their numbers have one distance.
        """
        second = fold.start + fold.period
        stop = fold.start + fold.period * fold.count
        for node in range(second, stop):
            before = node - fold.period
            # What connects most nodes needs no closer look.
            is_alike = self._distances[node] == self._distances[before]
            is_inside = fold.start <= self._lowest[before] and self._highest[node] < stop
            if not (is_alike and is_inside) and not self._continues(fold, node):
                return None
        crossing = 0
        for entering in self._entering[second : second + fold.period]:
            crossing += sum(fold.start <= flow.start < second for flow in entering)
        return crossing

    def _continues(self, fold: Fold, node: int) -> bool:
        """Return whether a node has the flows that the same node has in the repetition before."""
        period = fold.period
        second = fold.start + period
        last = fold.start + period * (fold.count - 1)
        within, from_before = self._inner(fold, node)
        wanted_within, wanted_from_before = self._inner(fold, node - period)
        if within != wanted_within:
            return False
        # The first repetition has none before it.
        if node >= second + period and from_before != wanted_from_before:
            return False
        # The same node in this repetition and the two before. The first takes the input of the run, and the last
        # returns its output.
        same_nodes = range(node - 2 * period, node + 1, period)
        sources = [self._sources(fold, same) for same in same_nodes if same >= second]
        targets = [self._targets(fold, same) for same in same_nodes if fold.start <= same < last]
        return _is_even(sources) and _is_even(targets)

    def _inner(self, fold: Fold, node: int) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Return the flows to a node from its own repetition of a run, and from those before it."""
        stop = fold.start + fold.period * fold.count
        begin = node - (node - fold.start) % fold.period
        flows = [(flow.start - begin, flow.label) for flow in self._entering[node] if fold.start <= flow.start < stop]
        within = sorted([pair for pair in flows if pair[0] >= 0])
        from_before = sorted([pair for pair in flows if pair[0] < 0])
        return within, from_before

    def _sources(self, fold: Fold, node: int) -> list[int]:
        """Return the nodes outside a run from which flows enter a node of it."""
        stop = fold.start + fold.period * fold.count
        return sorted([flow.start for flow in self._entering[node] if not fold.start <= flow.start < stop])

    def _targets(self, fold: Fold, node: int) -> list[int]:
        """Return the nodes outside a run to which flows leave a node of it."""
        stop = fold.start + fold.period * fold.count
        return sorted([flow.end for flow in self._leaving[node] if not fold.start <= flow.end < stop])


def _is_even(numbers: list[list[int]]) -> bool:
    """Return whether each list has the same distance from the list before it."""
    if len({len(row) for row in numbers}) > 1:
        return False
    distances = []
    for row, following in pairwise(numbers):
        distances.append([after - before for before, after in zip(row, following)])
    return all(row == distances[0] for row in distances)


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
        sources, copy.flows = _visible(block, folds.get(id(block), []))
        for source, run in sources:
            if run is not None and run.period > 1:
                inner = _repetition(block, run)
                queue += zip(inner.inside, block.inside[run.start : run.start + run.period])
            else:
                inner = _copy(source)
                queue.append((inner, source))
                if run is not None:
                    last = block.inside[run.start + run.count - 1]
                    inner.name = f"{source.name} … {last.name}"
                    inner.repeat = run.count
            copy.inside.append(inner)
    return list(copied.walk())


def _repetition(block: Block, run: Fold) -> Block:
    """Return one repetition of a run; in a graph, an end names each block from which it takes a value."""
    members = block.inside[run.start : run.start + run.period]
    parameters = run.count * sum(member.parameters for member in members)
    inner = Block("", "", block.kind, "repeat", parameters=parameters, repeat=run.count, shape=members[-1].shape)
    inner.inside = [_copy(member) for member in members]
    places = {number: number - run.start for number in range(run.start, run.start + run.period)}
    """The place in the repetition of each of its nodes."""
    ends: dict[int, int] = {}
    """The place in the repetition of the end for each node before."""
    for flow in block.flows:
        if flow.start in places and flow.end in places:
            inner.flows.append(Flow(places[flow.start], places[flow.end], flow.label))
            continue
        # What the second repetition takes from others, each takes from those before it.
        end = places.get(flow.end - run.period)
        if end is None or flow.start - run.period in places:
            continue
        if flow.start not in ends:
            name = _name_of(block.inside[flow.start])
            ends[flow.start] = len(inner.inside)
            text = f"last {name}" if flow.start in places else name
            inner.inside.append(Block("", "", "end", lines=[text]))
        inner.flows.append(Flow(ends[flow.start], end, flow.label))
    return inner


def _name_of(block: Block) -> str:
    """Return the name and title of a block; those of an end are in its first line."""
    texts = [block.name, block.title]
    if block.kind == "end":
        texts += block.lines[:1]
    return ": ".join(text for text in texts if text)


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
        containers = [block for block in level if block.inside and (block.mark != "cell" or not depth)]
        below: list[Block] = []
        group: set[int] = set()
        added = 0
        for block in containers:  # grows: branches
            group.add(id(block))
            for source, run in _visible(block, folds.get(id(block), []))[0]:
                members = [source] if run is None else block.inside[run.start : run.start + run.period]
                added += len(members)
                for member in members:
                    opens_too = member.mark != "cell" and is_branching(member) and len(member.inside) <= _BRANCHES
                    (containers if opens_too else below).append(member)
        # The root opens even if there is no room, unless it has far too many.
        limit = most - count if depth else 10 * MOST
        if not group or added > limit:
            break
        opened |= group
        count += added
        level = below
    return opened


def _copy(block: Block) -> Block:
    """Return a block without content, which knows of what it is a copy."""
    return evolve(block, inside=[], lines=list(block.lines), source=block)


def _visible(block: Block, runs: list[Fold]) -> tuple[list[tuple[Block, Fold | None]], list[Flow]]:
    """Return the visible blocks of a container, with the run that each begins, and the flows between them."""
    starts = {run.start: run for run in runs}
    visible: list[tuple[Block, Fold | None]] = []
    numbers: list[int] = []
    """The number of the visible block for each block of the container."""
    while len(numbers) < len(block.inside):
        place = len(numbers)
        run = starts.get(place)
        length = run.period * run.count if run else 1
        numbers += [len(visible)] * length
        visible.append((block.inside[place], run))
    labels: dict[tuple[int, int], set[str]] = {}
    for flow in block.flows:
        start = numbers[flow.start]
        end = numbers[flow.end]
        if start != end:
            labels.setdefault((start, end), set()).add(flow.label)
    flows = []
    for (start, end), texts in labels.items():
        # Several flows that become one arrow have no label, unless all have the same.
        flows.append(Flow(start, end, texts.pop() if len(texts) == 1 else ""))
    return visible, flows


def skips_of(blocks: list[Block]) -> list[str]:
    """Return the arrows of graphs that bypass other nodes, `3 → 9`; those from inputs and to outputs do not count."""
    texts: list[str] = []
    for block in blocks:
        if block.kind != "graph" or is_branching(block):
            continue
        leaving = Counter(flow.start for flow in block.flows)
        ranks = ranks_of(len(block.inside), block.flows)
        for flow in block.flows:
            start = block.inside[flow.start]
            end = block.inside[flow.end]
            is_to_end = "end" in (start.kind, end.kind)
            skips = ranks[flow.end] - ranks[flow.start] > 1
            if leaving[flow.start] > 1 and skips and not is_to_end:
                texts.append(f"{start.key or start.name} → {end.key or end.name}")
    return texts


def branches_of(blocks: list[Block]) -> list[str]:
    """Return the containers that pass their input to several branches: the key of each, and the number of branches."""
    texts: list[str] = []
    for block in blocks:
        count = len(block.inside) - 2  # without input and output
        if is_branching(block) and count > 1:
            texts.append(f"{block.key or '(model)'} {block.title} ({count})")
    return texts


def shared_of(blocks: list[Block]) -> list[str]:
    """Return the layers that have the weights of another, or are the same module: `0.1.0 = 0.0.0`."""
    texts: list[str] = []
    for block in blocks:
        if block.owner:
            # A module that is named again has the key of its first place, weights that of a tensor in it.
            owner = block.owner if block.mark == "again" else block.owner.rpartition(".")[0]
            texts.append(f"{block.key or block.name} = {owner}")
    return texts


def is_branching(block: Block) -> bool:
    """Return whether a block consists of branches between one input and one output."""
    count = len(block.inside) - 2  # without input and output, which are last
    if block.kind != "graph" or count < 1 or len(block.flows) != 2 * count:
        return False
    return all(flow.start == count or flow.end == count + 1 for flow in block.flows)


def first_places(texts: list[str]) -> str:
    """Return the number of places, and the first of them."""
    more = ", …" if len(texts) > _NAMED else ""
    return f"{len(texts)}: {', '.join(texts[:_NAMED])}{more}"


def ranks_of(count: int, flows: list[Flow]) -> list[int]:
    """Return the layer of each node: below all its inputs, and, without inputs, just above its first user."""
    users: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    """The number of inputs of each node whose layer is not known yet."""
    for flow in flows:
        users[flow.start].append(flow.end)
        waiting[flow.end] += 1
    ranks = [0] * count
    roots = [node for node in range(count) if not waiting[node]]
    order = list(roots)
    for node in order:  # grows
        for user in users[node]:
            ranks[user] = max(ranks[user], ranks[node] + 1)
            waiting[user] -= 1
            if not waiting[user]:
                order.append(user)
    # The first root is the input of the model, which stays on top.
    for node in roots[1:]:
        if users[node]:
            ranks[node] = max(ranks[node], min(ranks[user] for user in users[node]) - 1)
    return ranks
