"""The blocks that a picture or a table shows of a model: of a run, equal blocks or sequences of blocks in succession,
the first, and containers closed where room is short; and the places where the data flow branches or skips layers, in a
few words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import pairwise

from attrs import evolve, field

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

    @property
    def blocks(self) -> range:
        """The numbers of its blocks."""
        return range(self.start, self.start + self.period * self.count)

    def repetition(self, number: int) -> range:
        """Return the numbers of the blocks of one of its repetitions, which are counted from 0."""
        start = self.start + number * self.period
        return range(start, start + self.period)


def folds_of(blocks: list[Block]) -> dict[int, list[Fold]]:
    """Return the runs in each container, by the id of its block; blocks are equal if they look the same but for names.

    Args:
        blocks: all of them, each before those inside it.
    """
    number_by_appearance: dict[object, int] = {}
    appearances: dict[int, int] = {}
    """The number of the appearance of each block, by its id: the same for blocks that look the same."""
    folds: dict[int, list[Fold]] = {}
    for block in reversed(blocks):  # inner blocks first
        inside = [appearances[id(inner)] for inner in block.inside]
        flows = tuple((flow.start, flow.end, flow.label) for flow in block.flows)
        appearance = (block.title, block.class_name, block.kind, block.mark, *block.lines, tuple(inside), flows)
        appearances[id(block)] = number_by_appearance.setdefault(appearance, len(number_by_appearance))
        runs = _runs_in_container(block, inside)
        if runs:
            folds[id(block)] = runs
    return folds


def _runs_in_container(block: Block, appearances: list[int]) -> list[Fold]:
    """Return the runs in a block that are worth a fold; none in a layer.

    Args:
        block: the container.
        appearances: a number for each block inside it, the same for blocks that look alike.
    """
    count = len(appearances)
    if block.kind == "chain":
        # A container is worth a fold if there are two of it, a layer if there are three.
        fewest = [2 if inner.inside else 3 for inner in block.inside]
        return _RunSearch(appearances, count, _LONGEST_PERIOD, fewest).runs()
    if block.kind == "side":  # blocks beside each other: two equal ones are a run
        return _RunSearch(appearances, count, longest_period=1, fewest=[2] * count).runs()
    if block.kind == "graph":
        # Branches are beside each other: two equal ones are a run. Of layers one after another there have to be three.
        fewest = [2 if is_branching(block) else 3] * count
        # The last two blocks of a graph are its input and its output.
        flows_to_next = _Surroundings(block).flows_to_next_repetition
        return _RunSearch(appearances, count - 2, _LONGEST_PERIOD_IN_GRAPH, fewest, flows_to_next).runs()
    return []


@define(eq=False)
class _RunSearch:
    """The search for runs in a container: for each a sequence of blocks, its period, is repeated one after another.

    Attributes:
        appearances: a number for each block, the same for blocks that look alike.
        stop: number of the first blocks, among which runs are searched.
        longest_period: maximum number of blocks of a period.
        fewest: for each block the minimum repetitions of a short period that begins there.
        flows_to_next: returns how many flows lead from each repetition of a run to the next, `None` if the repetitions
            have different flows, so that they are no run; in a container that is no graph always 0.
    """

    appearances: list[int]
    stop: int
    longest_period: int
    fewest: list[int]
    flows_to_next: Callable[[Fold], int | None] = lambda fold: 0
    _steps_left: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._steps_left = _STEPS_PER_BLOCK * self.stop

    def runs(self) -> list[Fold]:
        """Return the runs, from the left; where the allowed steps of the search end, the rest has none."""
        runs: list[Fold] = []
        place = 0
        while place < self.stop and self._steps_left > 0:
            run = self._run_near(place)
            if run is None:
                place += 1
            else:
                runs.append(run)
                place = run.blocks.stop
        return runs

    def _run_near(self, place: int) -> Fold | None:
        """Return the run of the most blocks whose period begins to repeat at a block; `None` if there is none.

        The run may begin a few blocks behind this one, see `_best_shift`.
        """
        best: Fold | None = None
        for period, end in self._periods(place):
            length = end - place
            self._steps_left -= length
            # Of a long period two repetitions are enough.
            fewest = self.fewest[place] if period <= _SHORT_PERIOD else 2
            count = length // period
            if count < fewest:
                continue
            if best is None or count * period > len(best.blocks):
                self._steps_left -= period * length  # what the search for the shift takes at most
                best = self._best_shift(place, period, length) or best
        return best

    def _periods(self, place: int) -> Iterator[tuple[int, int]]:
        """Yield each possible period, and the block at which the sequence from a place on ceases to repeat it.

        A period of which two do not fit is left out.
        """
        appearances = self.appearances
        for period in range(1, min(self.longest_period, (self.stop - place) // 2) + 1):
            end = place + period
            while end < self.stop and appearances[end] == appearances[end - period]:
                end += 1
            yield period, end

    def _best_shift(self, place: int, period: int, length: int) -> Fold | None:
        """Return the run that begins at the best of the blocks of the first repetition; `None` if there is none.

        `A B A B A` may be cut into `A B`, `A B`, or, one block further, into `B A`, `B A`. The best cut has the most
        repetitions, and of these the fewest flows from one to the next.

        Args:
            place: number of the first block that repeats.
            period: blocks of one repetition.
            length: number of blocks that repeat.
        """
        best: Fold | None = None
        fewest_flows = 0
        for shift in range(period):
            fold = Fold(place + shift, period, (length - shift) // period)
            # A later shift has no greater count, and no run has fewer flows than none.
            if fold.count < 2 or (best is not None and (fold.count < best.count or fewest_flows == 0)):
                break
            flows = self.flows_to_next(fold)
            if flows is not None and (best is None or flows < fewest_flows):
                best = fold
                fewest_flows = flows
        return best


class _Surroundings:
    """The flows that enter and leave each node of a graph, by which repetitions in it are compared.

    Args:
        block: the graph.
    """

    def __init__(self, block: Block) -> None:
        self._entering: list[list[Flow]] = [[] for _ in block.inside]
        self._leaving: list[list[Flow]] = [[] for _ in block.inside]
        for flow in block.flows:
            self._entering[flow.end].append(flow)
            self._leaving[flow.start].append(flow)
        # Of each node, what tells in most cases that it has the flows of another: see `flows_to_next_repetition`.
        self._distances: list[object] = []
        """How far from each node its flows come, with their labels, and how far those go that leave it.

        A label is compared where its flow ends.
        """
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

    def flows_to_next_repetition(self, run: Fold) -> int | None:
        """Return how many flows lead from each repetition of a run to the next; `None` if they have different flows.

        A flow to or from a node outside is the same for all repetitions if that node is the same one, or if it is the
        next one of another run for each repetition: then the numbers of these nodes have one distance.

        Args:
            run: the run, of two repetitions at least.
        """
        first = run.repetition(0)
        second = run.repetition(1)
        stop = run.blocks.stop
        for node in range(second.start, stop):
            before = node - run.period  # the same node in the repetition before
            # Most nodes have the flows of that node, and all inside the run: these need no closer look.
            is_alike = self._distances[node] == self._distances[before]
            is_inside = run.start <= self._lowest[before] and self._highest[node] < stop
            if not (is_alike and is_inside) and not self._has_flows_of_repetition_before(run, node):
                return None
        # All repetitions are alike: those from the first to the second are counted.
        return sum(flow.start in first for node in second for flow in self._entering[node])

    def _has_flows_of_repetition_before(self, run: Fold, node: int) -> bool:
        """Return whether a node has the flows that the same node has in the repetition before.

        Args:
            run: the run.
            node: of the second repetition or a later one.
        """
        # Flows inside the run: from the node's own repetition, and from earlier ones.
        within, from_earlier = self._flows_inside(run, node)
        within_before, from_earlier_before = self._flows_inside(run, node - run.period)
        if within != within_before:
            return False
        # The first repetition has no earlier one, so that the second is not compared with it.
        is_in_second = node < run.repetition(2).start
        if not is_in_second and from_earlier != from_earlier_before:
            return False
        # Flows from and to nodes outside the run: those of the same node in this repetition and the two before have to
        # be equally far from one another. The first repetition takes the input of the run, and the last returns its
        # output: these flows may be different ones.
        same_nodes = range(node - 2 * run.period, node + 1, run.period)
        start_of_second = run.repetition(1).start
        start_of_last = run.repetition(run.count - 1).start
        sources = [self._sources(run, same) for same in same_nodes if same >= start_of_second]
        targets = [self._targets(run, same) for same in same_nodes if run.start <= same < start_of_last]
        return _are_equally_far(sources) and _are_equally_far(targets)

    def _flows_inside(self, run: Fold, node: int) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Return the flows to a node of a run from its own repetition, and from earlier ones.

        Each is the distance of its start from the beginning of the repetition, and its label. Flows from outside the
        run are in neither list.
        """
        begin = node - (node - run.start) % run.period  # of the repetition
        blocks = run.blocks
        flows = [(flow.start - begin, flow.label) for flow in self._entering[node] if flow.start in blocks]
        within = sorted([(distance, label) for distance, label in flows if distance >= 0])
        from_earlier = sorted([(distance, label) for distance, label in flows if distance < 0])
        return within, from_earlier

    def _sources(self, run: Fold, node: int) -> list[int]:
        """Return the nodes outside a run from which flows enter a node of it."""
        blocks = run.blocks
        return sorted([flow.start for flow in self._entering[node] if flow.start not in blocks])

    def _targets(self, run: Fold, node: int) -> list[int]:
        """Return the nodes outside a run to which flows leave a node of it."""
        blocks = run.blocks
        return sorted([flow.end for flow in self._leaving[node] if flow.end not in blocks])


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
        visible_blocks, copy.flows = _visible_blocks(block, folds.get(id(block), []))
        for first, run in visible_blocks:
            inner, members = _shown_in_place_of(block, first, run)
            copy.inside.append(inner)
            queue += members
    return list(copied.walk())


def _shown_in_place_of(block: Block, first: Block, run: Fold | None) -> tuple[Block, list[tuple[Block, Block]]]:
    """Return what is shown of a block in an open container, or of the run that begins with it.

    Args:
        block: the container.
        first: the block in it.
        run: that begins with the block; `None` if none does.

    Returns:
        The block that is shown, and the copies of which the content is still to be shown, each with its original.
    """
    if run is None:
        inner = _copy(first)
        return inner, [(inner, first)]
    if run.period == 1:  # its first block stands for all
        inner = _copy(first)
        last = block.inside[run.blocks[-1]]
        inner.name = f"{first.name} … {last.name}"
        inner.repeat = run.count
        return inner, [(inner, first)]
    inner = _repetition(block, run)  # one block around the first repetition
    members = [block.inside[number] for number in run.repetition(0)]
    return inner, list(zip(inner.inside, members))  # without the ends behind the members, which have nothing inside


def _repetition(block: Block, run: Fold) -> Block:
    """Return a block around copies of the first repetition of a run, with the flows that each repetition has.

    In a graph, a block of kind `end` behind the copies names each other node of which a repetition takes a value.

    Args:
        block: the container.
        run: in it, of several blocks.
    """
    members = [block.inside[number] for number in run.repetition(0)]
    parameters = run.count * sum(member.parameters for member in members)
    inner = Block(
        name="",
        title="",
        kind=block.kind,
        mark="repeat",
        parameters=parameters,
        repeat=run.count,
        shape=members[-1].shape,
        inside=[_copy(member) for member in members],
    )
    _add_flows_of_repetition(inner, block, run)
    return inner


def _add_flows_of_repetition(inner: Block, block: Block, run: Fold) -> None:
    """Add to a block with a repetition of a run the flows that each repetition has, and the ends that they come from.

    Args:
        inner: has the members of the first repetition inside; receives the flows and, behind the members, the ends.
        block: the container of the run.
        run: in it.
    """
    first = run.repetition(0)
    second = run.repetition(1)
    ends: dict[int, int] = {}
    """The place in `inner` of the end that names a node of the container, by the number of the node."""
    for flow in block.flows:
        if flow.start in first and flow.end in first:
            inner.flows.append(Flow(flow.start - first.start, flow.end - first.start, flow.label))
        # What the second repetition takes from other nodes, each one takes from those before it: the first may take
        # something else, the input of the run.
        elif flow.end in second and flow.start not in second:
            if flow.start not in ends:
                name = _name_of(block.inside[flow.start])
                text = f"last {name}" if flow.start in first else name
                ends[flow.start] = len(inner.inside)
                inner.inside.append(Block(name="", title="", kind="end", lines=[text]))
            inner.flows.append(Flow(ends[flow.start], flow.end - second.start, flow.label))


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
        content = _content_of(containers, folds)
        room = _MOST_OF_ROOT if is_root else most - shown_count
        if not containers or content.count > room:
            break
        opened |= content.opened
        shown_count += content.count
        level = content.blocks
    return opened


@define(eq=False)
class _LevelContent:
    """What is shown inside the containers of one level when all of them are open.

    Attributes:
        opened: the ids of these containers, and of the small branches inside them, which open with them.
        blocks: the other blocks inside, which the next level may open.
        count: number of all blocks inside.
    """

    opened: set[int] = field(factory=set)
    blocks: list[Block] = field(factory=list)
    count: int = 0


def _content_of(containers: list[Block], folds: Mapping[int, list[Fold]]) -> _LevelContent:
    """Return what is shown inside containers when all of them are open.

    Args:
        containers: those of one level.
        folds: the runs in each container that are shown once, by id.
    """
    content = _LevelContent()
    to_open = list(containers)
    for block in to_open:  # grows: branches open with their container
        content.opened.add(id(block))
        for member in _shown_members(block, folds.get(id(block), [])):
            content.count += 1
            is_small = len(member.inside) <= _MOST_BLOCKS_OF_BRANCHES
            if is_small and member.mark != "cell" and is_branching(member):
                to_open.append(member)
            else:
                content.blocks.append(member)
    return content


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
            yield from [block.inside[number] for number in run.repetition(0)]


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
        length = len(run.blocks) if run else 1
        visible_numbers += [len(visible)] * length
        visible.append((block.inside[place], run))
    return visible, _flows_between_visible(block.flows, visible_numbers)


def _flows_between_visible(flows: list[Flow], visible_numbers: list[int]) -> list[Flow]:
    """Return the flows between the visible blocks of a container, one from each to each other.

    Args:
        flows: those between all of its blocks.
        visible_numbers: for each of its blocks, the number of the visible one that stands for it.
    """
    labels: dict[tuple[int, int], set[str]] = {}
    for flow in flows:
        start = visible_numbers[flow.start]
        end = visible_numbers[flow.end]
        if start != end:  # else it is inside a run
            labels.setdefault((start, end), set()).add(flow.label)
    visible_flows = []
    for (start, end), texts in labels.items():
        # Several flows that become one arrow have no label, unless all have the same.
        label = texts.pop() if len(texts) == 1 else ""
        visible_flows.append(Flow(start, end, label))
    return visible_flows


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
