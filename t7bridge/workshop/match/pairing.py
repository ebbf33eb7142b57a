"""Pairing of parts by what tells them apart. The order of keys in a file, or of a class's definitions, pairs nothing.

1. A class has one part on each side.
2. Parts are at the same place in the graphs of both models.
3. The parts of a class have the same names on both sides.
4. The parts of a class are one numbered list on each side, `layers.0` to `layers.11`, or run one after the other.
5. Two numbered lists of equal length have the same classes one by one, and one of these classes is nowhere else.
6. So have two lists of containers, `layer1` to `layer4`, or of layers with the same number, `conv1` and `bn1`. What is
   in each of them is paired on its own.

Rules 4 to 6 go by natural order. Where a side has a graph, its list has to run in that order: branches side by side
have none. Everything else is ambiguous.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from attrs import field

from ...data import define
from .places import Graph, colors
from .sides import Class, Part, classify

Items = list[Part]
Label = Any

Graphs = Callable[[], tuple[Graph | None, Graph | None]]
"""Returns the graphs of both sides. Called after `classify`, and only if something depends on it."""

_ALIKE = "neither names, numbers nor graphs tell them apart"
_OTHER_GRAPH = "the graphs of the models differ around them"
_OTHER_NAMES = "their names and their places in the graphs say different things"

_STEP = re.compile(r"(_l)?([0-9]{1,9})(_reverse)?")
"""A step of a path that is a number, or a layer of a recurrent module."""
_NAME_AND_NUMBER = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)


@define(eq=False)
class Conclusions:
    """Conclusions from the evidence.

    Attributes:
        pairs: for the number of each paired target part, the number of its source part and the reason: `shape`,
            `graph`, `names`, `numbers` or `order`.
        doubts: the ambiguous parts of source and target, and the reason.
    """

    pairs: dict[int, tuple[int, str]] = field(factory=dict)
    doubts: list[tuple[Items, Items, str]] = field(factory=list)


def find(
    source: Items,
    target: Items,
    repeated: Container[str],
    graphs: Graphs,
    defined: tuple[bool, bool] = (True, True),
    by_order: bool = False,
) -> Conclusions:
    """Pair the parts. Parts whose class the other side lacks are in no pair and no doubt.

    Args:
        source: the parts of one side.
        target: those of the other.
        repeated: keys of parts of which others, tied to them, are left out. Their lists and graphs have holes.
        graphs: the data flow of both models, as far as it is known.
        defined: whether the parts of each side are in the order of their definition, and not sorted by name.
        by_order: whether what nothing decides is paired in the order of both sides.
    """
    classify(source, target)
    solver = _Solver(source, target, graphs, defined)
    solver.unlisted = {part.cls for part in (*source, *target) if any(key in repeated for key in part.keys.values())}
    solver.solve()
    found = Conclusions(solver.pairs)
    used = {number for number, _ in solver.pairs.values()}
    rest = _Classes(
        [part for part in source if part.number not in used],
        [part for part in target if part.number not in solver.pairs],
    )
    for one, other in rest.shared():
        if by_order and len(one) == len(other):
            found.pairs.update({right.number: (left.number, "order") for left, right in zip(one, other)})
        else:
            found.doubts.append((one, other, solver.reason(one[0].cls)))
    return found


class _Classes:
    """The parts of both sides by their classes."""

    def __init__(self, source: Iterable[Part], target: Iterable[Part]) -> None:
        self._groups: dict[Class, tuple[Items, Items]] = {}
        for side, parts in enumerate((source, target)):
            for part in parts:
                self._groups.setdefault(part.cls, ([], []))[side].append(part)

    def shared(self) -> list[tuple[Items, Items]]:
        """Return the parts of each class that both sides have."""
        return [sides for sides in self._groups.values() if all(sides)]

    def even(self) -> list[tuple[Items, Items]]:
        """Return the parts of each class that both sides have equally often."""
        return [(one, other) for one, other in self.shared() if len(one) == len(other)]


@define(eq=False)
class _Scope:
    """Parts of both sides that belong together: those of the models, or of two paired containers.

    Attributes:
        source: the parts of one side.
        target: those of the other.
        depths: the number of steps that all paths of each side begin with.
    """

    source: Items
    target: Items
    depths: tuple[int, int]

    @classmethod
    def of(cls, source: Items, target: Items) -> _Scope:
        """Return a scope with all of its parts."""
        return cls(source, target, (_common_steps(source), _common_steps(target)))


def _common_steps(parts: Items) -> int:
    """Return the number of steps that all paths begin with, without their last ones."""
    paths = [part.path for part in parts]
    first, last = min(paths), max(paths)
    longest = min(len(path) for path in paths) - 1
    count = 0
    while count < longest and first[count] == last[count]:
        count += 1
    return count


@define(eq=False)
class _Rows:
    """A numbered list of groups of parts.

    Attributes:
        groups: the parts of each container in the list, or of each number that several layers have in their names.
        is_list: whether numbers alone are its order, as in `layers.0`, and not names with numbers, `layer1`.
    """

    groups: list[Items] = field(kw_only=False)
    is_list: bool = True

    @classmethod
    def of_layers(cls, parts: Items) -> _Rows:
        """Return a list of layers as groups of one."""
        return cls([[part] for part in parts])

    @property
    def is_defined_in_order(self) -> bool:
        """Return whether the file has the groups one after the other, too, in the order of their numbers."""
        numbers = [part.number for group in self.groups for part in group]
        return numbers == sorted(numbers)


class _Solver:
    """Pairs the parts of two models."""

    def __init__(self, source: Items, target: Items, graphs: Graphs, defined: tuple[bool, bool]) -> None:
        self._source, self._target = source, target
        self._graphs = graphs
        self._defined = defined
        self._known: tuple[Graph | None, Graph | None] = (None, None)
        self._refused: dict[Class, str] = {}
        """Classes that are not paired by what follows, and the reason."""
        self.unlisted: set[Class] = set()
        """Classes of which parts are left out: only names and uniqueness tell what is left apart."""
        self.pairs: dict[int, tuple[int, str]] = {}
        self._labels: tuple[dict[int, Label], dict[int, Label]] = (_labels(source), _labels(target))
        """For each part by its number: its class, or, once it is paired, a value that only its counterpart has."""

    def solve(self) -> None:
        """Apply the rules, outside in."""
        if not self._source or not self._target:
            return
        whole = _Scope.of(self._source, self._target)
        self._pair_unique(whole)
        if not self._open(whole).shared():
            return
        for one, other in self._open(whole).shared():
            if len(one) != len(other):
                self._refused[one[0].cls] = f"there are {len(one)} of them for {len(other)}"
        self._known = self._graphs()
        self._pair_places(whole)
        scopes = [whole]
        while scopes:
            scope = scopes.pop()
            rules = (self._pair_unique, self._pair_names, self._pair_numbers, self._pair_lists)
            while any(rule(scope) for rule in rules):
                pass
            scopes += self._pair_groups(scope)

    def reason(self, cls: Class) -> str:
        """Return why parts of a class are ambiguous."""
        return self._refused.get(cls, _ALIKE)

    def _pair(self, source: Items, target: Items, why: str) -> bool:
        """Pair parts one by one, except those that are paired already; return whether there are others."""
        is_new = False
        for left, right in zip(source, target):
            if right.number not in self.pairs:
                self.pairs[right.number] = (left.number, why)
                self._labels[0][left.number] = self._labels[1][right.number] = right.number
                is_new = True
        return is_new

    def _open(self, scope: _Scope) -> _Classes:
        """Return the parts of a scope that are not paired."""
        return _Classes(
            [part for part in scope.source if self._labels[0][part.number] is part.cls],
            [part for part in scope.target if part.number not in self.pairs],
        )

    def _even(self, scope: _Scope) -> list[tuple[Items, Items]]:
        """Return the parts of each class that may be paired."""
        return [(one, other) for one, other in self._open(scope).even() if one[0].cls not in self._refused]

    def _pair_unique(self, scope: _Scope) -> bool:
        """Pair the only parts of their classes."""
        single = [(one[0], other[0]) for one, other in self._even(scope) if len(one) == 1]
        return self._pair([one for one, _ in single], [other for _, other in single], "shape")

    # Graphs

    def _pair_places(self, scope: _Scope) -> None:
        """Pair the parts that have a place in both graphs which no other part has."""
        one, other = self._known
        if one is None or other is None:
            return
        seen = colors([(one, self._source), (other, self._target)])
        for source, target in self._open(scope).even():
            if source[0].cls in self.unlisted:
                continue
            places, wanted = (
                [color.get(part.number, -1) for part in parts] for color, parts in zip(seen, (source, target))
            )
            if -1 in places or -1 in wanted:  # a layer that the graph does not show
                continue
            if sorted(places) != sorted(wanted):
                self._refused[source[0].cls] = _OTHER_GRAPH
                continue
            counts = Counter(places)
            single = {place: part for place, part in zip(places, source) if counts[place] == 1}
            pairs = [(single[place], part) for place, part in zip(wanted, target) if place in single]
            if _names_differ(pairs, scope.depths):
                self._refused[source[0].cls] = _OTHER_NAMES
                continue
            self._pair([left for left, _ in pairs], [right for _, right in pairs], "graph")

    def _runs_in_order(self, source: list[Items], target: list[Items]) -> bool:
        """Return whether lists of groups run in that order, as far as graphs are known."""
        for graph, groups in zip(self._known, (source, target)):
            if graph is None:
                continue
            for group, following in pairwise(groups):
                if not any(graph.is_before(one, other) for one in group for other in following):
                    return False
        return True

    # Names

    def _pair_names(self, scope: _Scope) -> bool:
        """Pair the parts that have the same names, below the prefixes that all have in common.

        Names with numbers count only if all of them are the same: `norm1` may be the last one where the others are
        `up4` to `up1`. Numbers alone are places in a list.
        """
        all_agree = _names_agree(scope)
        has_pairs = False
        for source, target in self._even(scope):
            names, wanted = _by_name(source, scope.depths[0]), _by_name(target, scope.depths[1])
            if names.keys() != wanted.keys() or len(names) < len(source):
                continue
            has_numbers = any(re.search("[0-9]", name) for name in names)
            has_letters = all(re.search("[^0-9.]", name) for name in names)
            pairs = [names[name] for name in sorted(names)], [wanted[name] for name in sorted(names)]
            if has_numbers and not (all_agree and (has_letters or self._runs_as_numbered(names, wanted))):
                continue
            has_pairs |= self._pair(*pairs, "names")
        return has_pairs

    def _runs_as_numbered(self, names: Mapping[str, Part], wanted: Mapping[str, Part]) -> bool:
        """Return whether parts whose names are numbers run in that order: those of graphs are any."""
        order = sorted(names, key=lambda name: [int(step) if step.isdecimal() else -1 for step in name.split(".")])
        return self._runs_in_order([[names[name]] for name in order], [[wanted[name]] for name in order])

    # Numbers

    def _pair_numbers(self, scope: _Scope) -> bool:
        """Pair a class that is one numbered list on each side, or runs layer by layer in a side's graph."""
        for source, target in self._even(scope):
            if source[0].cls in self.unlisted:
                continue
            one, other = self._chain(source, 0), self._chain(target, 1)
            if one is None or other is None:
                row, other_row = _list_with(source, scope.source), _list_with(target, scope.target)
                if (row is None and one is None) or (other_row is None and other is None):
                    continue
                if row is not None and other_row is not None and not self._are_alike(row, other_row):
                    continue
                one = one or [part for part in row or () if part in source]
                other = other or [part for part in other_row or () if part in target]
                if not self._runs_in_order([[part] for part in one], [[part] for part in other]):
                    continue
            return self._pair(one, other, "numbers")
        return False

    def _are_alike(self, source: Items, target: Items) -> bool:
        """Return whether what is in both of two lists comes in the same order: otherwise they are not the same."""
        labels, other_labels = self._labels_of(source, 0), self._labels_of(target, 1)
        common = set(labels) & set(other_labels)
        return [label for label in labels if label in common] == [label for label in other_labels if label in common]

    def _chain(self, parts: Items, side: int) -> Items | None:
        """Return parts in the order in which they run, if each depends on the one before; `None` otherwise."""
        graph = self._known[side]
        if graph is None or len({graph.nodes.get(part.number) for part in parts}) < len(parts):
            return None
        row = sorted(parts, key=graph.depth)
        return row if all(graph.is_before(one, other) for one, other in pairwise(row)) else None

    def _labels_of(self, parts: Items, side: int) -> list[Label]:
        return [self._labels[side][part.number] for part in parts]

    def _pair_lists(self, scope: _Scope) -> bool:
        """Pair two numbered lists of equal length that belong together."""
        others = _lists_of_layers(scope.target)
        for one in _lists_of_layers(scope.source):
            for other in others:
                rows = _Rows.of_layers(one), _Rows.of_layers(other)
                if self._belong_together(scope, *rows) and self._pair(one, other, "numbers"):
                    return True
        return False

    def _pair_groups(self, scope: _Scope) -> list[_Scope]:
        """Pair two lists of groups that belong together; return these, and the rest, as scopes."""
        for one, other in self._row_pairs(scope):
            if self._belong_together(scope, one, other):
                inner = [_Scope.of(left, right) for left, right in zip(one.groups, other.groups)]
                _take_out(scope, one, other)
                return [*inner, scope] if scope.source and scope.target else inner
        return []

    def _row_pairs(self, scope: _Scope) -> Iterator[tuple[_Rows, _Rows]]:
        """Yield the lists of groups of both sides with the same lengths; lists of layers are cut accordingly."""
        source, target = _rows_of(scope.source), _rows_of(scope.target)
        for one in source:
            for other in target:
                if [len(group) for group in one.groups] == [len(group) for group in other.groups]:
                    yield one, other
        for one in source:
            for cut in self._cut_alike(scope.target, 1, one):
                yield one, cut
        for other in target:
            for cut in self._cut_alike(scope.source, 0, other):
                yield cut, other

    def _cut_alike(self, parts: Items, side: int, rows: _Rows) -> Iterator[_Rows]:
        """Yield the lists of layers of a side that can be cut into groups as long as those of the other side."""
        labels = {label for group in rows.groups for label in self._labels_of(group, 1 - side)}
        lengths = [len(group) for group in rows.groups]
        for layers in _lists_of_layers(parts):
            places = [place for place, label in enumerate(self._labels_of(layers, side)) if label in labels]
            # Nothing else is between them.
            if len(places) == sum(lengths) == places[-1] - places[0] + 1:
                rest = iter(layers[places[0] :])
                yield _Rows([[next(rest) for _ in range(length)] for length in lengths])

    def _belong_together(self, scope: _Scope, source: _Rows, target: _Rows) -> bool:
        """Return whether two lists of groups are the same list of both models.

        The groups have the same classes one by one. Some class is nowhere else, or these might be other lists. No class
        that is elsewhere too is in every group: the groups might begin one layer later on one side.
        """
        groups = [Counter(self._labels_of(group, 0)) for group in source.groups]
        if groups != [Counter(self._labels_of(group, 1)) for group in target.groups]:
            return False
        inside: Counter[Label] = sum(groups, Counter())
        if not self._refused.keys().isdisjoint(inside) or not self.unlisted.isdisjoint(inside):
            return False
        totals = [Counter(self._labels_of(parts, side)) for side, parts in enumerate((scope.source, scope.target))]
        elsewhere = {label for label in inside if any(total[label] != inside[label] for total in totals)}
        if len(elsewhere) == len(inside) or any(all(label in group for group in groups) for label in elsewhere):
            return False
        for left, right in zip(source.groups, target.groups):
            labels = self._labels_of(left, 0)
            if len(labels) < 2 or elsewhere.isdisjoint(labels):
                continue
            # So might this group alone: a norm may be its first layer on one side, and be its last on the other.
            if not all(self._defined) or labels != self._labels_of(right, 1):
                return False
        if len({frozenset(group.items()) for group in groups}) == len(groups):
            return True  # no two groups look alike, and no order is needed
        # Rows of one class might be columns: the first layers of all branches, then the second ones.
        if len(inside) == 1 and len(source.groups[0]) > 1:
            return False
        for rows, is_known in zip((source, target), self._defined):
            # `up4` may run before `up1`: names with numbers count only if layer by layer is defined in that order.
            if not rows.is_list and not (is_known and rows.is_defined_in_order):
                return False
        return self._runs_in_order(source.groups, target.groups)


def _labels(parts: Items) -> dict[int, Label]:
    return {part.number: part.cls for part in parts}


def _take_out(scope: _Scope, source: _Rows, target: _Rows) -> None:
    """Remove groups from a scope."""
    left = {part.number for group in source.groups for part in group}
    right = {part.number for group in target.groups for part in group}
    scope.source = [part for part in scope.source if part.number not in left]
    scope.target = [part for part in scope.target if part.number not in right]


def _by_name(parts: Items, depth: int) -> dict[str, Part]:
    """Return parts by their names below the steps that all have in common."""
    return {".".join(part.path[depth:]): part for part in parts}


def _names_agree(scope: _Scope) -> bool:
    """Return whether all parts of classes that both sides have are called the same."""
    shared = {part.cls for part in scope.source} & {part.cls for part in scope.target}
    names = _by_name([part for part in scope.source if part.cls in shared], scope.depths[0])
    wanted = _by_name([part for part in scope.target if part.cls in shared], scope.depths[1])
    return names.keys() == wanted.keys() and all(part.cls == wanted[name].cls for name, part in names.items())


def _names_differ(pairs: list[tuple[Part, Part]], depths: tuple[int, int]) -> bool:
    """Return whether both sides have the same names, and pairs do not agree with them."""
    names = [".".join(one.path[depths[0] :]) for one, _ in pairs]
    wanted = [".".join(other.path[depths[1] :]) for _, other in pairs]
    has_letters = all(re.search("[^0-9.]", name) for name in names)
    return has_letters and names != wanted and sorted(names) == sorted(wanted)


# Numbered lists


def _numbered(parts: Items) -> list[tuple[Items, bool]]:
    """Return the lists that parts are in, in natural order, and whether the number is the last step of their paths."""
    lists: dict[tuple[str, ...], dict[int, Items]] = {}
    for part in parts:
        for depth, step in enumerate(part.path):
            found = _STEP.fullmatch(step)
            if found:
                kind = f"{found[1] or ''}*{found[3] or ''}"
                key = (str(depth), *part.path[:depth], kind, *part.path[depth + 1 :])
                lists.setdefault(key, {}).setdefault(int(found[2]), []).append(part)
    rows = []
    for key, members in lists.items():
        if all(len(each) == 1 for each in members.values()):  # `1` and `01` are the same number
            rows.append(([members[number][0] for number in sorted(members)], int(key[0]) == len(key) - 2))
    return rows


def _list_with(wanted: Items, parts: Items) -> Items | None:
    """Return the numbered list that holds some parts, with all others in it; `None` if there is none."""
    numbers = {part.number for part in wanted}
    rows = [row for row, _ in _numbered(parts) if numbers.issubset(part.number for part in row)]
    return rows[0] if rows else None


def _lists_of_layers(parts: Items) -> list[Items]:
    """Return the numbered lists of several layers."""
    return [row for row, is_last in _numbered(parts) if is_last and len(row) > 1]


def _rows_of(parts: Items) -> list[_Rows]:
    """Return the lists of groups that parts form, the largest first."""
    containers: dict[tuple[str, ...], dict[int, Items]] = {}
    layers: dict[tuple[str, ...], dict[str, dict[int, Items]]] = {}
    for part in parts:
        for depth, step in enumerate(part.path):
            found = _NAME_AND_NUMBER.fullmatch(step)
            if found is None:
                continue
            above, name, number = part.path[:depth], found[1], int(found[2])
            if depth < len(part.path) - 1:
                containers.setdefault((*above, name), {}).setdefault(number, []).append(part)
            elif name:
                layers.setdefault(above, {}).setdefault(name, {}).setdefault(number, []).append(part)
    rows = []
    for key, members in containers.items():
        groups = [members[number] for number in sorted(members) if len(members[number]) > 1]
        if len(groups) > 1:
            rows.append(_Rows(groups, is_list=not key[-1]))
    for names in layers.values():
        rows += _with_equal_numbers(names)
    return sorted(rows, key=lambda each: -sum(len(group) for group in each.groups))


def _kind(part: Part) -> frozenset[tuple[str, int]]:
    """Return the kind of layer of a part: convolutions of all sizes are of one kind."""
    return frozenset((name, len(shape)) for name, shape in part.shapes.items() if name not in ("bias", *part.optional))


def _with_equal_numbers(names: Mapping[str, Mapping[int, Items]]) -> Iterator[_Rows]:
    """Yield the groups of layers of one number, `conv1` and `bn1`, where several names have the same numbers."""
    alike: dict[tuple[int, ...], list[Mapping[int, Items]]] = {}
    for members in names.values():
        kinds = {_kind(part) for parts in members.values() for part in parts}
        if len(kinds) == 1:  # `down0` and `down1` may be a convolution and its norm
            alike.setdefault(tuple(sorted(members)), []).append(members)
    for numbers, rows in alike.items():
        is_counted = numbers in (tuple(range(len(numbers))), tuple(range(1, len(numbers) + 1)))
        if len(rows) > 1 and len(numbers) > 1 and is_counted:
            groups = [[part for row in rows for part in row[number]] for number in numbers]
            yield _Rows([sorted(group, key=lambda part: part.number) for group in groups], is_list=False)
