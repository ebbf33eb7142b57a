"""The order of parts: where two sequences can be cut, and the ranges of containers in them."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from ...data import define
from .classes import Class
from .parts import Path, shared


@define(eq=False)
class AlignedPart:
    """A part as the alignment sees it.

    Attributes:
        number: of the part on its side.
        cls: its class.
        kind: its kind of layer.
        path: the containers around it, and itself.
        gap: number of containers that it shares with a neighbour that the other side lacks; -1 if there is none.
    """

    number: int
    cls: Class
    kind: Class
    path: Path
    gap: int = -1


Items = list[AlignedPart]


def mark_gaps(items: Items, classes: set[Class]) -> None:
    """Mark the parts of some classes that are next to parts of others."""
    for step in (1, -1):
        last: AlignedPart | None = None
        for item in items[::step]:
            if item.cls not in classes:
                last = item
            elif last is not None:
                item.gap = max(item.gap, shared(last.path[:-1], item.path[:-1]))
                last = None


def has_gap(items: Items) -> bool:
    """Return whether a part of the container that holds all of these is missing on the other side."""
    inside = depth(items)
    return any(item.gap >= inside for item in items)


def in_order(source: Items, target: Items) -> bool:
    """Return whether the classes of two sequences of one length are the same one by one."""
    return all(one.cls == other.cls for one, other in zip(source, target))


def depth(items: Items) -> int:
    """Return the number of containers common to all items."""
    return min(shared(items[0].path[:-1], item.path[:-1]) for item in items)


def stretches(source: Items, target: Items) -> list[tuple[Items, Items]]:
    """Cut both sequences into stretches that hold the same classes.

    No container is cut. Where the order differs in a stretch, the moved part may belong to a neighbouring stretch too,
    if that has the same classes and no wall is between: the end of a container on both sides, or a part that is the
    only one of its class and in its place.
    """
    cuts = _cuts(source, target)
    counts = Counter(item.cls for item in source)
    depths = depth(source), depth(target)

    def is_wall(cut: int) -> bool:
        lone = any(counts[source[at].cls] == 1 and source[at].cls == target[at].cls for at in (cut - 1, cut))
        return lone or all(
            max(len(side[cut - 1].path), len(side[cut].path)) > depth + 1
            for side, depth in zip((source, target), depths)
        )

    result: list[tuple[Items, Items]] = []
    group: list[tuple[int, int]] = []
    for start, end in zip([0, *cuts], [*cuts, len(source)]):
        group.append((start, end))
        if end == len(source) or is_wall(end):
            result += [(source[first:last], target[first:last]) for first, last in _joined(group, source, target)]
            group = []
    return result


def _cuts(source: Items, target: Items) -> list[int]:
    """Return the positions where both sequences can be cut: same classes before it, and no container is split."""
    depths = depth(source), depth(target)
    balance: Counter[Class] = Counter()
    uneven = 0
    found = []
    for end in range(1, len(source)):
        for cls, step in ((source[end - 1].cls, 1), (target[end - 1].cls, -1)):
            uneven += (balance[cls] + step != 0) - (balance[cls] != 0)
            balance[cls] += step
        sides = zip((source, target), depths)
        if not uneven and all(shared(side[end - 1].path, side[end].path) <= depth for side, depth in sides):
            found.append(end)
    return found


def _joined(group: list[tuple[int, int]], source: Items, target: Items) -> list[tuple[int, int]]:
    """Merge stretches between two walls that may be part of the same disorder."""
    first, last = len(group), -1
    classes: set[Class] = set()
    grown = True
    while grown:
        grown = False
        for place, (start, end) in enumerate(group):
            if first <= place <= last:
                continue
            inside = {item.cls for item in source[start:end]}
            if not in_order(source[start:end], target[start:end]) or inside & classes:
                first, last = min(first, place), max(last, place)
                for begin, stop in group[first : last + 1]:
                    classes |= {item.cls for item in source[begin:stop]}
                grown = True
    if last < 0:
        return group
    return [*group[:first], (group[first][0], group[last][1]), *group[last + 1 :]]


def blocks(items: Items) -> list[tuple[int, int]]:
    """Return the containers just below the common ones of all items, as ranges; single parts are not containers."""
    level = depth(items)
    found = []
    start = 0
    for _, group in groupby(items, key=lambda item: item.path[: level + 1]):
        end = start + len(list(group))
        if end - start > 1:
            found.append((start, end))
        start = end
    return found


def spans(classes: list[Class], others: Items) -> list[int]:
    """Return the positions where the other side has the same classes contiguously, in any order."""
    length = len(classes)
    missing = Counter(classes)
    uneven = len(missing)
    found = []
    for end, item in enumerate(others, 1):
        for cls, step in ((item.cls, -1), (others[end - length - 1].cls, 1) if end > length else (None, 0)):
            if cls is not None:
                uneven += (missing[cls] + step != 0) - (missing[cls] != 0)
                missing[cls] += step
        if not uneven and end >= length and _is_whole(others, end - length, end):
            found.append(end - length)
    return found


def _is_whole(items: Items, start: int, end: int) -> bool:
    """Return whether every container with parts both inside and outside a range has all of the range."""
    inside = shared(items[start].path, items[end - 1].path)
    edges = [at for at in (start, end) if 0 < at < len(items)]
    return all(shared(items[at - 1].path, items[at].path) <= inside for at in edges)
