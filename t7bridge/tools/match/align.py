"""Pairing of parts: by classes, by order, and by the containers that explain differences of order.

Evidence, strongest first. Whatever it does not decide is ambiguous, and never guessed.

1. The classes follow one another in the same order on both sides: parts are paired in order.
2. A class has one part on each side.
3. Containers of one side, each as a whole, are in another order on the other side, and there is only one way to place
   them. This finds a shortcut that one model defines before the parallel branch and the other after it.
4. The layers of every kind are in the same order, and only the kinds are interleaved differently: all convolutions
   before all normalizations, where the other side alternates.
5. The remaining order when the parts that rule 2 has found elsewhere are removed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import field

from ...data import define
from .classes import Class
from .stretches import Items, blocks, has_gap, in_order, mark_gaps, spans, stretches

_MAX_STEPS = 100_000
_MAX_STEPS_IN_ALL = 2_000_000
"""Budget of the search for ways to place containers, in parts visited."""
_MAX_DEPTH = 40
"""Maximum nesting of containers that may be out of order."""


Solve = Callable[[Items, Items], "Conclusions"]
"""Decides sequences of both sides."""


@define(eq=False)
class Conclusions:
    """Conclusions from the evidence.

    Attributes:
        pairs: for the number of each paired target part, the number of its source part and the reason: `shape` or
            `order` or `containers`.
        doubts: the ambiguous parts: numbers of source and target parts, and the reason.
        disorder: number of parts in stretches in which the orders differ.
    """

    pairs: dict[int, tuple[int, str]] = field(factory=dict)
    doubts: list[tuple[list[int], list[int], str]] = field(factory=list)
    disorder: int = 0

    def add(self, other: Conclusions) -> None:
        """Add the conclusions of another finding."""
        self.pairs.update(other.pairs)
        self.doubts += other.doubts
        self.disorder += other.disorder

    @property
    def cost(self) -> tuple[int, int]:
        """Cost as an explanation: ambiguous target parts, then parts out of order."""
        return sum(len(target) for _, target, _ in self.doubts), self.disorder


class _TooMuchError(Exception):
    """There are too many ways to place containers."""


def find(source: Items, target: Items) -> Conclusions:
    """Pair the parts. Parts whose class the other side lacks are in no pair and no doubt."""
    counts = Counter(item.cls for item in source), Counter(item.cls for item in target)
    even = {cls for cls in counts[0] if counts[0][cls] == counts[1][cls]}
    mark_gaps(source, even)
    mark_gaps(target, even)
    finding = _Solver(counts[0]).solve(_of(source, even), _of(target, even))
    uneven = {cls for cls in counts[0] if cls not in even and counts[1][cls]}
    if uneven:
        _add_uneven(finding, source, target, uneven)
    return finding


def _of(items: Items, classes: set[Class]) -> Items:
    return [item for item in items if item.cls in classes]


def _add_uneven(finding: Conclusions, source: Items, target: Items, uneven: set[Class]) -> None:
    """Pair parts between the same decided parts on both sides, of classes that one side has more of."""
    places = {number: place for place, (number, _) in finding.pairs.items()}
    decided: set[int] = set()
    # If containers have moved, missing parts may be missing from any of them.
    if not finding.disorder:
        sides = _between(source, uneven, places), _between(target, uneven, {place: place for place in finding.pairs})
        rows = [(sides[0][end], sides[1].get(end, [])) for end in sides[0]]
        even = [len(one) == len(other) and in_order(one, other) for one, other in rows]
        for at, (one, other) in enumerate(rows):
            if all(even[max(0, at - 1) : at + 2]):  # an anchor may have moved to the next stretch
                finding.pairs.update({right.number: (left.number, "order") for left, right in zip(one, other)})
                decided.update(item.number for item in one)
    for cls in sorted(uneven, key=repr):
        left = [item.number for item in source if item.cls == cls and item.number not in decided]
        right = [item.number for item in target if item.cls == cls and item.number not in finding.pairs]
        if left and right:
            finding.doubts.append((left, right, f"there are {len(left)} of them for {len(right)}"))


def _between(items: Items, classes: set[Class], anchors: Mapping[int, int]) -> dict[int, Items]:
    """Return the parts of some classes before each anchor, by its number in the target; after the last, by -1."""
    found: dict[int, Items] = {}
    waiting: Items = []
    for item in items:
        if item.number in anchors:
            found[anchors[item.number]], waiting = waiting, []
        elif item.cls in classes:
            waiting.append(item)
    return {**found, -1: waiting}


def _same(one: Conclusions, other: Conclusions) -> bool:
    return {place: number for place, (number, _) in one.pairs.items()} == {
        place: number for place, (number, _) in other.pairs.items()
    }


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
        """Decide what can be decided: where the orders agree, and in the smallest stretches where they do not."""
        finding = Conclusions()
        counts = Counter(item.cls for item in source)
        stack = [(source, target, False)]
        while stack:
            one, other, is_piece = stack.pop()
            if is_piece and (has_gap(one) or has_gap(other)):
                finding.add(self._lone_ones(one, other))
                continue
            if in_order(one, other):
                for left, right in zip(one, other):
                    finding.pairs[right.number] = (left.number, "shape" if counts[left.cls] == 1 else "order")
                continue
            pieces = stretches(one, other)
            if len(pieces) > 1:
                stack += [(*piece, True) for piece in pieces]
            else:
                finding.add(self._explain(one, other))
        return finding

    def _lone_ones(self, source: Items, target: Items) -> Conclusions:
        """Of a stretch with missing neighbours, decide only the parts that no other part looks like.

        The missing parts may be those that would show that something has moved.
        """
        finding = Conclusions(disorder=len(source))
        lone = {item.cls: item.number for item in source if self._counts[item.cls] == 1}
        finding.pairs = {item.number: (lone[item.cls], "shape") for item in target if item.cls in lone}
        _doubt(finding, source, target, "neighbouring parts are missing, and the order differs around them")
        return finding

    def _explain(self, source: Items, target: Items) -> Conclusions:
        """Decide a stretch in which the orders differ."""
        if has_gap(source) or has_gap(target):
            return self._lone_ones(source, target)
        try:
            ways = self._ways(source, target)
        except _TooMuchError:
            finding = Conclusions()
            _doubt(finding, source, target, "there are too many ways to place the containers that hold them")
            return finding
        if not ways:
            return _by_kinds(source, target)
        agreed = set.intersection(*({(place, number) for place, (number, _) in way.pairs.items()} for way in ways))
        finding = Conclusions({place: (number, "containers") for place, number in agreed}, disorder=ways[0].disorder)
        _doubt(finding, source, target, "the containers that hold them can be placed in several ways")
        return finding

    def _ways(self, source: Items, target: Items) -> list[Conclusions]:
        """Return the best ways to place the containers of one side on the other; none if that explains nothing."""
        of_source, of_target = blocks(source), blocks(target)
        if not of_source:
            return []  # its order may be that of a graph's nodes, in which branches alternate
        ways = self._best(self._placed(source, of_source, target, self.solve))
        others = self._best(self._placed(target, of_target, source, lambda one, other: self.solve(other, one)))
        if ways is None or others is None:
            return self._either(ways, others)
        both = [way for way in ways if any(_same(way, other) for other in others)]
        least = min((way.cost[0] for way in ways + others), default=0)
        return both or [way for way in ways + others if way.cost[0] == least]

    @staticmethod
    def _either(ways: list[Conclusions] | None, others: list[Conclusions] | None) -> list[Conclusions]:
        """Return the findings of one side if the other has too many ways, provided they leave nothing open."""
        for side in (ways, others):
            if side is not None and len(side) == 1 and not side[0].cost[0]:
                return side
        raise _TooMuchError

    def _best(self, ways: Iterator[Conclusions]) -> list[Conclusions] | None:
        """Of several ways to place containers, return those with the least ambiguity and disorder.

        `None` if there are too many to tell.
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
        least = min((way.cost for way in found), default=None)
        return [way for way in found if way.cost == least]

    def _placed(
        self, items: Items, blocks: list[tuple[int, int]], others: Items, solve: Solve
    ) -> Iterator[Conclusions]:
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
            found = spans(row, others)
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
            taken = zip(starts, rows)
            if any(at < start + len(row) and start < at + len(rows[number]) for start, row in taken):
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

    def _read(
        self, items: Items, blocks: list[tuple[int, int]], others: Items, starts: list[int], solve: Solve
    ) -> Conclusions:
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
        finding.add(solve([items[place] for place in sorted(rest)], [others[place] for place in sorted(free)]))
        finding.disorder += len(blocks)
        self._depth -= 1
        return finding


def _by_kinds(source: Items, target: Items) -> Conclusions:
    """Decide a stretch in which no container helps."""
    finding = Conclusions(disorder=len(source))
    counts = Counter(item.cls for item in source)
    lone = {item.cls: item.number for item in source if counts[item.cls] == 1}
    places: dict[Class, list[int]] = {}
    for item in source:
        places.setdefault(item.cls, []).append(item.number)
    if _kinds(source) == _kinds(target):
        for item in target:
            finding.pairs[item.number] = (places[item.cls].pop(0), "shape" if item.cls in lone else "order")
        return finding
    at = {item.cls: place for place, item in enumerate(source)}
    anchors = [item.cls for item in target if item.cls in lone]
    kept = {anchors[place] for place in _longest_rising([at[cls] for cls in anchors])}
    moved = set(lone) - kept
    for item in target:
        if item.cls in lone:
            finding.pairs[item.number] = (lone[item.cls], "shape")
    left, right = ([item for item in side if item.cls not in moved] for side in (source, target))
    if in_order(left, right):
        for one, other in zip(left, right):
            finding.pairs.setdefault(other.number, (one.number, "order"))
    _doubt(finding, source, target, "their order differs, and nothing distinguishes them")
    return finding


def _longest_rising(numbers: Sequence[int]) -> set[int]:
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
    groups: dict[Class, tuple[list[int], list[int]]] = {}
    for item in source:
        if item.number not in decided:
            groups.setdefault(item.cls, ([], []))[0].append(item.number)
    for item in target:
        if item.number not in finding.pairs:
            groups.setdefault(item.cls, ([], []))[1].append(item.number)
    for cls in sorted(groups, key=repr):
        finding.doubts.append((*groups[cls], reason))
