"""Pairing of parts: by classes, by order, and by the containers that explain differences of order.

Evidence, strongest first. Whatever it does not decide is ambiguous, and never guessed.

1. The classes follow one another in the same order on both sides: parts are paired in order.
2. A class has one part on each side.
3. Containers of one side, each as a whole, are in another order on the other side, and there is only one way to place
   them. This finds a shortcut that one model defines before the parallel branch and the other after it. A container
   that the other side cuts differently is opened. One way rules out another if it leaves nothing
   open, no order unexplained, and moves no more parts.
4. The layers of every kind are in the same order, and only the kinds are interleaved differently: all convolutions
   before all normalizations, where the other side alternates.
5. The remaining order when the parts that rule 2 has found elsewhere are removed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from attrs import field

from ...data import define
from .sides import Class, Part, classify, shared

_MAX_STEPS = 100_000
_MAX_STEPS_IN_ALL = 2_000_000
"""Budget of the search for ways to place containers, in parts visited."""
_MAX_DEPTH = 40
"""Maximum nesting of containers that may be out of order."""


Items = list[Part]
Ranges = list[tuple[int, int]]

Solve = Callable[[Items, Items], "Conclusions"]
"""Decides sequences of both sides."""


@define(eq=False)
class Conclusions:
    """Conclusions from the evidence.

    Attributes:
        pairs: for the number of each paired target part, the number of its source part and the reason: `shape` or
            `order` or `containers`.
        doubts: the ambiguous parts of source and target, and the reason.
        disorder: number of parts in segments in which the orders differ.
        unexplained: whether an order differs that no container explains.
    """

    pairs: dict[int, tuple[int, str]] = field(factory=dict)
    doubts: list[tuple[Items, Items, str]] = field(factory=list)
    disorder: int = 0
    unexplained: bool = False

    def add(self, other: Conclusions) -> None:
        """Add the conclusions of another finding."""
        self.pairs.update(other.pairs)
        self.doubts += other.doubts
        self.disorder += other.disorder
        self.unexplained |= other.unexplained

    @property
    def ambiguous(self) -> int:
        """Number of ambiguous target parts."""
        return sum(len(target) for _, target, _ in self.doubts)

    @property
    def cost(self) -> tuple[bool, int]:
        """Cost as an explanation: whether it leaves an order unexplained, and the number of parts that move."""
        return self.unexplained, self.moved

    @property
    def moved(self) -> int:
        """Least number of parts that would have to move for both sides to be in the same order."""
        choices = {place: [number] for place, (number, _) in self.pairs.items()}
        for source, target, _ in self.doubts:
            numbers = sorted((item.number for item in source), reverse=True)  # falling: at most one of them rises
            choices.update((item.number, numbers) for item in target)
        return len(choices) - len(longest_rising([number for place in sorted(choices) for number in choices[place]]))


class _TooMuchError(Exception):
    """There are too many ways to place containers."""


def find(source: Items, target: Items) -> Conclusions:
    """Pair the parts. Parts whose class the other side lacks are in no pair and no doubt."""
    classify(source, target)
    counts = Counter(item.cls for item in source), Counter(item.cls for item in target)
    even = {cls for cls in counts[0] if counts[0][cls] == counts[1][cls]}
    _mark_gaps(source, even)
    _mark_gaps(target, even)
    finding = _Solver(counts[0]).solve(_of(source, even), _of(target, even))
    uneven = {cls for cls in counts[0] if cls not in even and counts[1][cls]}
    if uneven:
        _add_uneven(finding, source, target, uneven)
    return finding


def _of(items: Items, classes: set[Class]) -> Items:
    return [item for item in items if item.cls in classes]


def _add_uneven(finding: Conclusions, source: Items, target: Items, uneven: set[Class]) -> None:
    """Pair parts between the same decided parts on both sides, of classes that one side has more of."""
    decided: set[int] = set()
    # If containers have moved, missing parts may be missing from any of them.
    if not finding.disorder:
        for one, other in _even(*_rows(finding, source, target, uneven)):
            finding.pairs.update({right.number: (left.number, "order") for left, right in zip(one, other)})
            decided.update(item.number for item in one)
    for cls in sorted(uneven, key=repr):
        left = [item for item in source if item.cls == cls and item.number not in decided]
        right = [item for item in target if item.cls == cls and item.number not in finding.pairs]
        if left and right:
            finding.doubts.append((left, right, f"there are {len(left)} of them for {len(right)}"))


def _rows(
    finding: Conclusions, source: Items, target: Items, uneven: set[Class]
) -> tuple[list[tuple[Items, Items]], list[bool]]:
    """Return the parts of some classes between the pairs, and whether both pairs around are sure bounds.

    A pair is if its parts are the only ones of their class and in no container, which could have moved.
    """
    places = {number: place for place, (number, _) in finding.pairs.items()}
    sides = _between(source, uneven, places), _between(target, uneven, {place: place for place in finding.pairs})
    bare = [{item.number for item in side if len(item.path) == _depth(side) + 1} for side in (source, target)]
    firm = {place for place, (number, why) in finding.pairs.items() if why == "shape" and number in bare[0]} & bare[1]
    sure = [end in firm or end < 0 for end in sides[0]]
    rows = [(sides[0][end], sides[1].get(end, [])) for end in sides[0]]
    return rows, [before and after for before, after in zip([True, *sure], sure)]


def _even(rows: list[tuple[Items, Items]], firm: list[bool]) -> list[tuple[Items, Items]]:
    """Return the segments between anchors with the same parts in the same order on both sides.

    Where a segment differs, its anchors may have moved, and those of the next segment with the same classes with them,
    unless the anchors between are the only ones of their classes and in no container. A class of which each side has
    more somewhere has moved.

    Args:
        rows: the parts of both sides in each segment.
        firm: whether each segment is between two such anchors, or at an end.
    """
    classes = [{item.cls for item in (*one, *other)} for one, other in rows]
    counts = [(Counter(item.cls for item in one), Counter(item.cls for item in other)) for one, other in rows]
    more, fewer = ({cls for pair in counts for cls in pair[side] - pair[1 - side]} for side in (0, 1))
    even = [
        len(one) == len(other) and _in_order(one, other) and inside.isdisjoint(more & fewer)
        for (one, other), inside in zip(rows, classes)
    ]
    for places in (range(len(rows)), range(len(rows) - 1, -1, -1)):
        doubtful: set[Class] = set()
        for at in places:
            even[at] &= doubtful.isdisjoint(classes[at])
            if not even[at]:
                doubtful |= classes[at]
            elif classes[at] or firm[at]:
                doubtful = set()
    return [row for row, is_even in zip(rows, even) if is_even]


def _between(items: Items, classes: set[Class], anchors: Mapping[int, int]) -> dict[int, Items]:
    """Return the parts of some classes before each anchor, by its number in the target; after the last, by -1."""
    found: dict[int, Items] = {}
    pending: Items = []
    for item in items:
        if item.number in anchors:
            found[anchors[item.number]], pending = pending, []
        elif item.cls in classes:
            pending.append(item)
    return {**found, -1: pending}


def _agree(one: Conclusions, other: Conclusions) -> bool:
    """Return whether two findings contradict each other nowhere."""
    return all(other.pairs.get(place, pair)[0] == pair[0] for place, pair in one.pairs.items())


def _is_less(cost: tuple[bool, int], other: tuple[bool, int]) -> bool:
    """Return whether a finding that leaves no order unexplained is a better explanation than another one."""
    return cost != other and not cost[0] and cost[1] <= other[1]


class _Solver:
    """Pairs sequences that have the same classes, each equally often on both sides.

    Args:
        counts: number of parts of each class in total.
    """

    def __init__(self, counts: Mapping[Class, int]) -> None:
        self._counts = counts
        self._left = [_MAX_STEPS_IN_ALL]
        """Steps left: in total, and in each nested search."""
        self._depth = 0

    def solve(self, source: Items, target: Items) -> Conclusions:
        """Decide what can be decided: where the orders agree, and in the smallest segments where they do not."""
        finding = Conclusions()
        counts = Counter(item.cls for item in source)
        stack = [(source, target, False)]
        while stack:
            one, other, is_piece = stack.pop()
            if is_piece and (_has_gap(one) or _has_gap(other)):
                finding.add(self._pair_singles(one, other))
                continue
            if _in_order(one, other):
                for left, right in zip(one, other):
                    finding.pairs[right.number] = (left.number, "shape" if counts[left.cls] == 1 else "order")
                continue
            pieces = _segments(one, other)
            if len(pieces) > 1:
                stack += [(*piece, True) for piece in pieces]
            else:
                finding.add(self._explain(one, other))
        return finding

    def _pair_singles(self, source: Items, target: Items) -> Conclusions:
        """Of a segment with missing neighbours, decide only the parts that no other part looks like.

        The missing parts may be those that would show that something has moved.
        """
        finding = _singles(source, target, self._counts)
        _doubt(finding, source, target, "neighbouring parts are missing, and the order differs around them")
        return finding

    def _explain(self, source: Items, target: Items) -> Conclusions:
        """Decide a segment in which the orders differ."""
        if _has_gap(source) or _has_gap(target):
            return self._pair_singles(source, target)
        try:
            ways = self._ways(source, target)
        except _TooMuchError:
            finding = Conclusions()
            _doubt(finding, source, target, "there are too many ways to place the containers that hold them")
            return finding
        if not ways:
            return _by_kinds(source, target)
        agreed = set.intersection(*({(place, number) for place, (number, _) in way.pairs.items()} for way in ways))
        finding = Conclusions({place: (number, "containers") for place, number in agreed})
        finding.disorder = min(way.disorder for way in ways)
        finding.unexplained = any(way.unexplained for way in ways)
        _doubt(finding, source, target, "the containers that hold them can be placed in several ways")
        return finding

    def _ways(self, source: Items, target: Items) -> list[Conclusions]:
        """Return the best ways to place the containers of one side on the other; none if that explains nothing."""
        of_source, of_target = _placeable(source, target), _placeable(target, source)
        if not _containers(source):
            return []  # its order may be that of a graph's nodes, in which branches alternate
        ways = self._best(self._placed(source, of_source, target, self.solve))
        others = self._best(self._placed(target, of_target, source, lambda one, other: self.solve(other, one)))
        if ways is None or others is None:
            return self._either(ways, others)
        both = [way for way in ways if any(_agree(way, other) for other in others)]
        return both or ways + others

    @staticmethod
    def _either(ways: list[Conclusions] | None, others: list[Conclusions] | None) -> list[Conclusions]:
        """Return the findings of one side if the other has too many ways, provided they leave nothing open."""
        for side in (ways, others):
            if side is not None and len(side) == 1 and not side[0].ambiguous:
                return side
        raise _TooMuchError

    def _best(self, ways: Iterator[Conclusions]) -> list[Conclusions] | None:
        """Of several ways to place containers, return those than which no complete one is better.

        An ambiguous way may be the true one. `None` if there are too many ways to tell.
        """
        self._left.append(_MAX_STEPS)
        depth = self._depth
        try:
            found = list(ways)
        except _TooMuchError:
            return None
        finally:
            self._left.pop()
            self._depth = depth
        costs = {way.cost for way in found if not way.ambiguous}
        return [way for way in found if not any(_is_less(cost, way.cost) for cost in costs)]

    def _placed(self, items: Items, blocks: Ranges, others: Items, solve: Solve) -> Iterator[Conclusions]:
        """Yield every way to find the containers of one side in the sequence of the other, each as a whole.

        Args:
            items: the one side.
            blocks: its containers, as ranges.
            others: the other side.
            solve: decides sequences of the one and the other side.
        """
        if not blocks or blocks == [(0, len(items))]:
            return
        rows = [[item.cls for item in items[start:end]] for start, end in blocks]
        places = []
        for number, row in enumerate(rows):
            # Containers that look the same keep their order: count those before and after this one.
            found = _spans(row, others)
            places.append(found[rows[:number].count(row) : len(found) - rows[number + 1 :].count(row)])
        starts: list[int] = []
        stack = [iter(places[0])]
        while stack:
            self._spend(1)
            at = next(stack[-1], None)
            number = len(stack) - 1
            del starts[number:]
            if at is None:
                stack.pop()
                continue
            placed = zip(starts, rows)
            if any(at < start + len(row) and start < at + len(rows[number]) for start, row in placed):
                continue
            if any(rows[k] == rows[number] and starts[k] > at for k in range(number)):
                continue
            starts.append(at)
            if number + 1 < len(blocks):
                stack.append(iter(places[number + 1]))
            else:
                self._spend(len(items))
                yield self._read(items, blocks, others, starts, solve)

    def _spend(self, steps: int) -> None:
        self._left = [left - steps for left in self._left]
        if min(self._left) < 0:
            raise _TooMuchError

    def _read(self, items: Items, blocks: Ranges, others: Items, starts: list[int], solve: Solve) -> Conclusions:
        """Return the finding for each part under one way to place the containers."""
        finding = Conclusions()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _TooMuchError
        rest, free = set(range(len(items))), set(range(len(others)))
        for (start, end), at in zip(blocks, starts):
            finding.add(solve(items[start:end], others[at : at + end - start]))
            rest -= set(range(start, end))
            free -= set(range(at, at + end - start))
        around = [items[place] for place in sorted(rest)]
        outside = solve(around, [others[place] for place in sorted(free)])
        # The order around containers may be any, provided that it decides nothing.
        outside.unexplained &= len({item.cls for item in around}) < len(around)
        finding.add(outside)
        finding.disorder += len(blocks)
        self._depth -= 1
        return finding


def _singles(source: Items, target: Items, counts: Mapping[Class, int]) -> Conclusions:
    """Pair the parts of a segment that are the only ones of their classes."""
    single = {item.cls: (item.number, "shape") for item in source if counts[item.cls] == 1}
    pairs = {item.number: single[item.cls] for item in target if item.cls in single}
    return Conclusions(pairs, disorder=len(source), unexplained=True)


def _by_kinds(source: Items, target: Items) -> Conclusions:
    """Decide a segment in which no container helps."""
    finding = _singles(source, target, Counter(item.cls for item in source))
    if _kinds(source) == _kinds(target):
        rows = (sorted(side, key=lambda item: repr(item.cls)) for side in (source, target))
        for one, other in zip(*rows):
            finding.pairs.setdefault(other.number, (one.number, "order"))
        return finding
    anchors = [item for item in target if item.number in finding.pairs]
    in_place = longest_rising([finding.pairs[item.number][0] for item in anchors])
    moved = {item.cls for place, item in enumerate(anchors) if place not in in_place}
    left, right = ([item for item in side if item.cls not in moved] for side in (source, target))
    if _in_order(left, right):
        for one, other in zip(left, right):
            finding.pairs.setdefault(other.number, (one.number, "order"))
    _doubt(finding, source, target, "their order differs, and nothing distinguishes them")
    return finding


def longest_rising(numbers: Sequence[int]) -> set[int]:
    """Return the positions of one longest rising subsequence."""
    tails: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for place, number in enumerate(numbers):
        length = bisect_left(tails, number)
        before.append(at[length - 1] if length else -1)
        if length == len(tails):
            tails.append(number)
            at.append(place)
        else:
            tails[length], at[length] = number, place
    found: set[int] = set()
    place = at[-1] if at else -1
    while place >= 0:
        found.add(place)
        place = before[place]
    return found


def _kinds(items: Items) -> dict[Class, list[Class]]:
    found: dict[Class, list[Class]] = {}
    for item in items:
        found.setdefault(item.kind, []).append(item.cls)
    return found


def _doubt(finding: Conclusions, source: Items, target: Items, reason: str) -> None:
    """Mark everything undecided as ambiguous, class by class."""
    decided = {number for number, _ in finding.pairs.values()}
    groups: dict[Class, tuple[Items, Items]] = {}
    for item in source:
        if item.number not in decided:
            groups.setdefault(item.cls, ([], []))[0].append(item)
    for item in target:
        if item.number not in finding.pairs:
            groups.setdefault(item.cls, ([], []))[1].append(item)
    for cls in sorted(groups, key=repr):
        finding.doubts.append((*groups[cls], reason))


def _mark_gaps(items: Items, classes: set[Class]) -> None:
    """Mark the parts of some classes that are next to parts of others."""
    for step in (1, -1):
        last: Part | None = None
        for item in items[::step]:
            if item.cls not in classes:
                last = item
            elif last is not None:
                item.gap = max(item.gap, shared(last.path[:-1], item.path[:-1]))
                last = None


def _has_gap(items: Items) -> bool:
    """Return whether a part of the container that holds all of these is missing on the other side."""
    inside = _depth(items)
    return any(item.gap >= inside for item in items)


def _in_order(source: Items, target: Items) -> bool:
    """Return whether the classes of two sequences of one length are the same one by one."""
    return all(one.cls == other.cls for one, other in zip(source, target))


def _depth(items: Items) -> int:
    """Return the number of containers common to all items."""
    return min(shared(items[0].path[:-1], item.path[:-1]) for item in items)


def _segments(source: Items, target: Items) -> list[tuple[Items, Items]]:
    """Cut both sequences into segments that hold the same classes.

    No container is cut. Where the order differs in a segment, the moved part may belong to a neighbouring segment too,
    if that has the same classes and no boundary is between: the end of a container on both sides, or a part that is the
    only one of its class and in its place.
    """
    cuts = _cuts(source, target)
    counts = Counter(item.cls for item in source)
    depths = _depth(source), _depth(target)

    def is_boundary(cut: int) -> bool:
        single = any(counts[source[at].cls] == 1 and source[at].cls == target[at].cls for at in (cut - 1, cut))
        return single or all(
            max(len(side[cut - 1].path), len(side[cut].path)) > depth + 1
            for side, depth in zip((source, target), depths)
        )

    result: list[tuple[Items, Items]] = []
    group: Ranges = []
    for start, end in zip([0, *cuts], [*cuts, len(source)]):
        group.append((start, end))
        if end == len(source) or is_boundary(end):
            result += [(source[first:last], target[first:last]) for first, last in _joined(group, source, target)]
            group = []
    return result


class _Balance:
    """Numbers of parts of each class, positive and negative, and the number of classes whose number is not zero."""

    def __init__(self, classes: Iterable[Class] = ()) -> None:
        self._counts = Counter(classes)
        self.uneven = len(self._counts)

    def add(self, cls: Class, step: int) -> None:
        """Count a part."""
        count = self._counts[cls]
        self.uneven += (count + step != 0) - (count != 0)
        self._counts[cls] = count + step


def _cuts(source: Items, target: Items) -> list[int]:
    """Return the positions where both sequences can be cut: same classes before it, and no container is split."""
    depths = _depth(source), _depth(target)
    balance = _Balance()
    found = []
    for end in range(1, len(source)):
        balance.add(source[end - 1].cls, 1)
        balance.add(target[end - 1].cls, -1)
        sides = zip((source, target), depths)
        if not balance.uneven and all(shared(side[end - 1].path, side[end].path) <= depth for side, depth in sides):
            found.append(end)
    return found


def _joined(group: Ranges, source: Items, target: Items) -> Ranges:
    """Merge segments between two boundaries that may be part of the same disorder."""
    first, last = len(group), -1
    classes: set[Class] = set()
    grown = True
    while grown:
        grown = False
        for place, (start, end) in enumerate(group):
            if first <= place <= last:
                continue
            inside = {item.cls for item in source[start:end]}
            if not _in_order(source[start:end], target[start:end]) or inside & classes:
                first, last = min(first, place), max(last, place)
                for begin, stop in group[first : last + 1]:
                    classes |= {item.cls for item in source[begin:stop]}
                grown = True
    if last < 0:
        return group
    return [*group[:first], (group[first][0], group[last][1]), *group[last + 1 :]]


def _containers(items: Items) -> Ranges:
    """Return the containers just below the common ones of all items, as ranges; single parts are not containers."""
    level = _depth(items)
    found = []
    start = 0
    for _, group in groupby(items, key=lambda item: item.path[: level + 1]):
        end = start + len(list(group))
        if end - start > 1:
            found.append((start, end))
        start = end
    return found


def _placeable(items: Items, others: Items) -> Ranges:
    """Return the outermost containers whose parts the other side has contiguously; others are opened."""
    found = []
    stack = _containers(items)[::-1]
    while stack:
        start, end = stack.pop()
        inside = items[start:end]
        if _spans([item.cls for item in inside], others):
            found.append((start, end))
        else:
            stack += [(start + first, start + last) for first, last in reversed(_containers(inside))]
    return found


def _spans(classes: list[Class], others: Items) -> list[int]:
    """Return the positions where the other side has the same classes contiguously, in any order."""
    length = len(classes)
    missing = _Balance(classes)
    found = []
    for end, item in enumerate(others, 1):
        missing.add(item.cls, -1)
        if end > length:
            missing.add(others[end - length - 1].cls, 1)
        if not missing.uneven and end >= length and _is_whole(others, end - length, end):
            found.append(end - length)
    return found


def _is_whole(items: Items, start: int, end: int) -> bool:
    """Return whether every container with parts both inside and outside a range has all of the range."""
    inside = shared(items[start].path, items[end - 1].path)
    edges = [at for at in (start, end) if 0 < at < len(items)]
    return all(shared(items[at - 1].path, items[at].path) <= inside for at in edges)
