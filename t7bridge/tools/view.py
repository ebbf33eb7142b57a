"""The blocks that a picture or a table shows of a model: repeated ones once, containers closed where room is short; and
the places where the data flow branches or skips layers, in a few words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import pairwise

from attrs import evolve

from ..data import define
from ..nn.blocks import Block, Flow

_LONGEST_PERIOD = 12
"""Maximum number of blocks that are repeated together in a chain."""
_LONGEST_PERIOD_IN_GRAPH = 100
"""The same in a graph, where a layer with its activation and sums takes many nodes."""
_SHORT_PERIOD = 3
"""Blocks of a period that is worth a fold only with more than two repetitions; two of a longer one are enough."""
_STEPS_PER_BLOCK = 400
"""Steps of the search for runs, for each block of a container."""
_MOST_NAMED = 4
"""Number of places named; for more there is the count."""

MOST = 400
"""Maximum number of blocks shown, if containers can be closed."""
_MOST_OF_ROOT = 10 * MOST
"""Maximum number of blocks of the root itself, which is opened even if they are more than `MOST`."""
_MOST_LEVELS = 40
"""Levels of containers that may be open."""
_MOST_BLOCKS_OF_BRANCHES = 10
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
    appearances: dict[int, int] = {}
    """The number of the appearance of each block, by its id: the same for blocks that look the same."""
    folds: dict[int, list[Fold]] = {}
    for block in reversed(blocks):  # inner blocks first
        inside = [appearances[id(inner)] for inner in block.inside]
        flows = tuple((flow.start, flow.end, flow.label) for flow in block.flows)
        appearance = (block.title, block.class_name, block.kind, block.mark, *block.lines, tuple(inside), flows)
        appearances[id(block)] = numbers.setdefault(appearance, len(numbers))
        runs: list[Fold] = []
        if block.kind == "chain":
            # A container is worth a fold if there are two of it, a layer if there are three.
            fewest = [2 if inner.inside else 3 for inner in block.inside]
            runs = _runs_in(inside, len(inside), _LONGEST_PERIOD, fewest)
        elif block.kind == "graph":
            runs = _graph_runs(block, inside)
        elif block.kind == "side":  # blocks beside each other: two equal ones are a run
            runs = _runs_in(inside, len(inside), longest=1, fewest=[2] * len(inside))
        if runs:
            folds[id(block)] = runs
    return folds


def _graph_runs(block: Block, appearances: list[int]) -> list[Fold]:
    """Return the runs in a graph: repetitions with the same flows inside, from the one before, and from elsewhere.

    Args:
        block: the graph.
        appearances: of its blocks, see `_runs_in`.
    """
    # Branches are beside each other: two equal ones are a run. Of layers one after another there have to be three.
    fewest = [2 if is_branching(block) else 3] * len(appearances)
    # The last two blocks of a graph are its input and its output.
    stop = len(appearances) - 2
    return _runs_in(appearances, stop, _LONGEST_PERIOD_IN_GRAPH, fewest, _Surroundings(block).flows_between_repetitions)


def _runs_in(
    appearances: list[int],
    stop: int,
    longest: int,
    fewest: list[int],
    crossing: Callable[[Fold], int | None] = lambda fold: 0,
) -> list[Fold]:
    """Return the runs in a sequence, from the left: of those that begin at a block, the one of the most blocks.

    Args:
        appearances: a number for each block, the same for equal ones.
        stop: number of blocks among which runs are searched.
        longest: maximum period.
        fewest: minimum repetitions of a short period that begins at each block.
        crossing: returns the number of flows from a repetition to the next, the fewer the better; `None` for no run.
    """
    runs: list[Fold] = []
    place = 0
    budget = _STEPS_PER_BLOCK * stop  # where it ends, the rest has no runs
    while place < stop and budget > 0:
        best: Fold | None = None
        for period, end in _periods(appearances, place, stop, longest):
            length = end - place
            count = length // period
            budget -= length
            fewest_of_period = fewest[place] if period <= _SHORT_PERIOD else 2  # two of a long one are enough
            if count < fewest_of_period:
                continue
            if best is None or count * period > best.count * best.period:
                budget -= period * length  # the search for the shift, at most
                best = _best_shift(place, period, length, crossing) or best
        if best is None:
            place += 1
        else:
            runs.append(best)
            place = best.start + best.period * best.count
    return runs


def _best_shift(place: int, period: int, length: int, crossing: Callable[[Fold], int | None]) -> Fold | None:
    """Return the run that begins at the best of the blocks of the first repetition; `None` if there is none.

    From each of these blocks on, the sequence repeats the period: the best has the most repetitions, and of these the
    fewest flows from one to the next.

    Args:
        place: number of the first block that repeats.
        period: blocks of one repetition.
        length: number of blocks that repeat.
        crossing: see `_runs_in`.
    """
    best: Fold | None = None
    fewest_flows = 0
    for shift in range(period):
        fold = Fold(place + shift, period, (length - shift) // period)
        # A later shift has no greater count, and no run has fewer flows than none.
        if fold.count < 2 or (best is not None and (fold.count < best.count or fewest_flows == 0)):
            break
        flows = crossing(fold)
        if flows is not None and (best is None or flows < fewest_flows):
            best = fold
            fewest_flows = flows
    return best


def _periods(appearances: list[int], place: int, stop: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield each possible period, and the place where the sequence that begins at a place ceases to repeat it.

    A period of which two do not fit is left out.

    Args:
        appearances: for each block a number, the same for blocks that look alike.
        place: where the sequence begins.
        stop: where it ends at the latest.
        longest: maximum period.
    """
    for period in range(1, min(longest, (stop - place) // 2) + 1):
        end = place + period
        while end < stop and appearances[end] == appearances[end - period]:
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

    def flows_between_repetitions(self, fold: Fold) -> int | None:
        """Return the number of flows from a repetition to the next; `None` if the repetitions have different flows.

        A flow to or from a node outside is the same for all repetitions if that node is the same one, or if it is the
        next one of another run for each repetition: then the numbers of these nodes have one distance.

        Args:
            fold: the run, of two repetitions at least.
        """
        second = fold.start + fold.period
        stop = fold.start + fold.period * fold.count
        for node in range(second, stop):
            before = node - fold.period
            # Most nodes have the flows of the node before, and all inside the run: these need no closer look.
            is_alike = self._distances[node] == self._distances[before]
            is_inside = fold.start <= self._lowest[before] and self._highest[node] < stop
            if not (is_alike and is_inside) and not self._continues(fold, node):
                return None
        crossing = 0
        for entering in self._entering[second : second + fold.period]:
            crossing += sum(fold.start <= flow.start < second for flow in entering)
        return crossing

    def _continues(self, fold: Fold, node: int) -> bool:
        """Return whether a node has the flows that the same node has in the repetition before.

        Args:
            fold: the run.
            node: of the second repetition or a later one.
        """
        period = fold.period
        start_of_second = fold.start + period
        start_of_third = start_of_second + period
        start_of_last = fold.start + period * (fold.count - 1)
        within, from_before = self._flows_inside(fold, node)
        wanted_within, wanted_from_before = self._flows_inside(fold, node - period)
        if within != wanted_within:
            return False
        # The second repetition is compared with the first, which has none before it.
        if node >= start_of_third and from_before != wanted_from_before:
            return False
        # From and to other nodes: the same node in this repetition and the two before. The first repetition takes the
        # input of the run, and the last returns its output, so that these are not asked.
        same_nodes = range(node - 2 * period, node + 1, period)
        sources = [self._sources(fold, same) for same in same_nodes if same >= start_of_second]
        targets = [self._targets(fold, same) for same in same_nodes if fold.start <= same < start_of_last]
        return _are_equally_far(sources) and _are_equally_far(targets)

    def _flows_inside(self, fold: Fold, node: int) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Return the flows to a node of a run from its own repetition, and from those before it.

        Each is the distance of its start from the beginning of the repetition, and its label. Flows from outside the
        run are in neither list.
        """
        stop = fold.start + fold.period * fold.count
        begin = node - (node - fold.start) % fold.period
        flows = [(flow.start - begin, flow.label) for flow in self._entering[node] if fold.start <= flow.start < stop]
        within = sorted([(distance, label) for distance, label in flows if distance >= 0])
        from_before = sorted([(distance, label) for distance, label in flows if distance < 0])
        return within, from_before

    def _sources(self, fold: Fold, node: int) -> list[int]:
        """Return the nodes outside a run from which flows enter a node of it."""
        stop = fold.start + fold.period * fold.count
        return sorted([flow.start for flow in self._entering[node] if not fold.start <= flow.start < stop])

    def _targets(self, fold: Fold, node: int) -> list[int]:
        """Return the nodes outside a run to which flows leave a node of it."""
        stop = fold.start + fold.period * fold.count
        return sorted([flow.end for flow in self._leaving[node] if not fold.start <= flow.end < stop])


def _are_equally_far(numbers: list[list[int]]) -> bool:
    """Return whether lists have one length, and each number the same distance from that in the list before."""
    if len({len(row) for row in numbers}) > 1:
        return False
    distances = []
    for row, next_row in pairwise(numbers):
        distances.append([after - before for before, after in zip(row, next_row)])
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
        sources, copy.flows = _visible_blocks(block, folds.get(id(block), []))
        for source, run in sources:
            if run is not None and run.period > 1:  # one block around a repetition
                inner = _repetition(block, run)
                # The ends behind its members have nothing inside.
                queue += zip(inner.inside, block.inside[run.start : run.start + run.period])
            else:
                inner = _copy(source)
                queue.append((inner, source))
                if run is not None:  # of one block: its first copy stands for all
                    last = block.inside[run.start + run.count - 1]
                    inner.name = f"{source.name} … {last.name}"
                    inner.repeat = run.count
            copy.inside.append(inner)
    return list(copied.walk())


def _repetition(block: Block, run: Fold) -> Block:
    """Return a block with the first repetition of a run; in a graph, an end names each block that it takes a value of.

    Args:
        block: the container.
        run: in it, of several blocks.
    """
    members = block.inside[run.start : run.start + run.period]
    parameters = run.count * sum(member.parameters for member in members)
    last = members[-1]
    inner = Block("", "", block.kind, "repeat", parameters=parameters, repeat=run.count, shape=last.shape)
    inner.inside = [_copy(member) for member in members]
    first = range(run.start, run.start + run.period)
    second = range(first.stop, first.stop + run.period)
    ends: dict[int, int] = {}
    """The place in the new block of the end that names a node of the container, by the number of the node."""
    for flow in block.flows:
        if flow.start in first and flow.end in first:
            inner.flows.append(Flow(flow.start - first.start, flow.end - first.start, flow.label))
            continue
        # What the second repetition takes from other nodes, each one takes from those before it: the first may take
        # something else, the input of the run.
        if flow.end not in second or flow.start in second:
            continue
        if flow.start not in ends:
            name = _name_of(block.inside[flow.start])
            text = f"last {name}" if flow.start in first else name
            ends[flow.start] = len(inner.inside)
            inner.inside.append(Block("", "", "end", lines=[text]))
        inner.flows.append(Flow(ends[flow.start], flow.end - second.start, flow.label))
    return inner


def _name_of(block: Block) -> str:
    """Return the name and title of a block; those of an end are in its first line."""
    texts = [block.name, block.title]
    if block.kind == "end":
        texts += block.lines[:1]
    return ": ".join(text for text in texts if text)


def opened_of(root: Block, folds: Mapping[int, list[Fold]], most: int) -> set[int]:
    """Return the containers whose content is shown, by id: level by level, as long as there is room for a whole level.

    Small branches open together with their container, so that skips are visible. Recognized cells stay closed, but for
    the root, which may have up to `_MOST_OF_ROOT` blocks whatever `most` is.

    Args:
        root: the block that contains all.
        folds: the runs in each container that are shown once, by id.
        most: maximum number of blocks shown.
    """
    opened: set[int] = set()
    shown_count = 1
    level = [root]
    for depth in range(_MOST_LEVELS):
        is_root = depth == 0
        containers = [block for block in level if block.inside and (is_root or block.mark != "cell")]
        next_level: list[Block] = []
        opened_here: set[int] = set()
        added = 0
        for block in containers:  # grows: branches open with their container
            opened_here.add(id(block))
            for member in _shown_members(block, folds.get(id(block), [])):
                added += 1
                is_small = len(member.inside) <= _MOST_BLOCKS_OF_BRANCHES
                if is_small and member.mark != "cell" and is_branching(member):
                    containers.append(member)
                else:
                    next_level.append(member)
        room = _MOST_OF_ROOT if is_root else most - shown_count
        if not opened_here or added > room:
            break
        opened |= opened_here
        shown_count += added
        level = next_level
    return opened


def _shown_members(block: Block, runs: list[Fold]) -> Iterator[Block]:
    """Yield the blocks of an open container that are shown: of a run the first repetition.

    Args:
        block: the container.
        runs: those in it that are shown once.
    """
    blocks_and_runs, _flows = _visible_blocks(block, runs)
    for first, run in blocks_and_runs:
        if run is None:
            yield first
        else:
            yield from block.inside[run.start : run.start + run.period]


def _copy(block: Block) -> Block:
    """Return a copy of a block with nothing inside, whose `source` is the block."""
    return evolve(block, inside=[], lines=list(block.lines), source=block)


def _visible_blocks(block: Block, runs: list[Fold]) -> tuple[list[tuple[Block, Fold | None]], list[Flow]]:
    """Return the visible blocks of a container, with the run that each begins, and the flows between them.

    Args:
        block: the container.
        runs: those in it that are shown once.
    """
    starts = {run.start: run for run in runs}
    visible: list[tuple[Block, Fold | None]] = []
    visible_numbers: list[int] = []
    """For each block of the container, the number of the visible one that stands for it."""
    while len(visible_numbers) < len(block.inside):
        place = len(visible_numbers)
        run = starts.get(place)
        length = run.period * run.count if run else 1
        visible_numbers += [len(visible)] * length
        visible.append((block.inside[place], run))
    labels: dict[tuple[int, int], set[str]] = {}
    for flow in block.flows:
        start = visible_numbers[flow.start]
        end = visible_numbers[flow.end]
        if start != end:  # else it is inside a run
            labels.setdefault((start, end), set()).add(flow.label)
    flows = []
    for (start, end), texts in labels.items():
        # Several flows that become one arrow have no label, unless all have the same.
        label = texts.pop() if len(texts) == 1 else ""
        flows.append(Flow(start, end, label))
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
            # Only where the value also takes the way through the nodes between.
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
        if not block.owner:
            continue
        key = block.key or block.name  # a model, one of several in a file, has no key in its own state dict
        if block.mark == "again":
            owner = block.owner  # the same module
        else:
            # Another layer, by the key of the tensor that they share; a tensor of the whole has no layer.
            layer, _, _weight = block.owner.rpartition(".")
            owner = layer or block.owner
        texts.append(f"{key} = {owner}")
    return texts


def is_branching(block: Block) -> bool:
    """Return whether a block consists of branches between one input and one output."""
    count = len(block.inside) - 2  # without input and output, which are last, in this order
    # Each branch has one flow from the input and one to the output.
    if block.kind != "graph" or count < 1 or len(block.flows) != 2 * count:
        return False
    input_number = count
    output_number = count + 1
    return all(flow.start == input_number or flow.end == output_number for flow in block.flows)


def first_places(texts: list[str]) -> str:
    """Return the number of places, and the first of them, as one text."""
    more = ", …" if len(texts) > _MOST_NAMED else ""
    return f"{len(texts)}: {', '.join(texts[:_MOST_NAMED])}{more}"


def ranks_of(count: int, flows: list[Flow]) -> list[int]:
    """Return the row of each node in a drawing, from 0: below all its inputs; without inputs, just above its user.

    Args:
        count: number of nodes; the first without inputs is the input of the model.
        flows: between them.
    """
    users: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    """The number of inputs of each node whose row is not known yet."""
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
