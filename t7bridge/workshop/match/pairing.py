"""Pairing of the parts of two models, each the tensors of one module, by what tells them apart. The order of keys in a
file, or of a class's definitions, pairs nothing. Parts that look alike have one class (`cls`); the number of a part is
its place among those of its side.

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
from .parts import Class, Part, classify
from .places import Graph, colors

PartList = list[Part]
Label = Any
"""What is equal for parts that may be counterparts: their class, or, of paired ones, a number that only both have."""
_SOURCE = 0
_TARGET = 1
"""The sides, as places in pairs of something of both."""

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
    """Which parts of the source are which of the target, and which nobody can tell.

    Attributes:
        pairs: for the number of each paired target part, the number of its source part and the reason: `shape`,
            `graph`, `names`, `numbers` or `order`.
        doubts: the ambiguous parts of source and target, all of one class, and the reason.
    """

    pairs: dict[int, tuple[int, str]] = field(factory=dict)
    doubts: list[tuple[PartList, PartList, str]] = field(factory=list)


def pair_parts(
    source: PartList,
    target: PartList,
    repeated: Container[str],
    graphs: Graphs,
    in_definition_order: tuple[bool, bool] = (True, True),
    by_order: bool = False,
) -> Conclusions:
    """Pair the parts. Parts whose class the other side lacks are in no pair and no doubt.

    Args:
        source: the parts of one side; `number` and `cls` of each are set here.
        target: those of the other, likewise.
        repeated: keys of parts of which others, tied to them, are left out. Their lists and graphs have holes.
        graphs: the data flow of both models, as far as it is known.
        in_definition_order: for source and target, whether the parts are in the order of definition, and not sorted by
            name.
        by_order: whether what nothing decides is paired in the order of both sides.
    """
    classify(source, target)
    incomplete = {part.cls for part in (*source, *target) if any(key in repeated for key in part.keys.values())}
    solver = _Solver(source, target, graphs, in_definition_order, incomplete)
    solver.solve()
    conclusions = Conclusions(solver.pairs)
    # What the rules have left of classes that both sides have.
    for sources, targets in solver.unpaired(source, target).shared():
        if by_order and len(sources) == len(targets):
            for source_part, target_part in zip(sources, targets):
                conclusions.pairs[target_part.number] = source_part.number, "order"
        else:
            conclusions.doubts.append((sources, targets, solver.reason(sources[0].cls)))
    return conclusions


class _Classes:
    """The parts of both sides by their classes."""

    def __init__(self, source: Iterable[Part], target: Iterable[Part]) -> None:
        self._groups: dict[Class, tuple[PartList, PartList]] = {}
        for side, parts in enumerate((source, target)):
            for part in parts:
                self._groups.setdefault(part.cls, ([], []))[side].append(part)

    def shared(self) -> list[tuple[PartList, PartList]]:
        """Return the parts of each class that both sides have, those of the source first."""
        return [(source, target) for source, target in self._groups.values() if source and target]

    def equally_many(self) -> list[tuple[PartList, PartList]]:
        """Return the parts of each class that both sides have equally often."""
        return [(source, target) for source, target in self.shared() if len(source) == len(target)]


@define(eq=False)
class _Scope:
    """Parts of both sides that belong together: those of the models, or of two paired containers.

    Attributes:
        source: the parts of one side.
        target: those of the other.
        depths: the number of steps that all paths of each side begin with, which are no part of the names.
    """

    source: PartList
    target: PartList
    depths: tuple[int, int]

    @classmethod
    def of(cls, source: PartList, target: PartList) -> _Scope:
        """Return a scope with all of its parts."""
        return cls(source, target, (_common_steps(source), _common_steps(target)))

    def without(self, source: _GroupList, target: _GroupList) -> _Scope:
        """Return the scope without the parts of two lists of groups; the names of the others stay the same.

        Args:
            source: a list of groups of the source.
            target: one of the target.
        """
        source_numbers = {part.number for group in source.groups for part in group}
        target_numbers = {part.number for group in target.groups for part in group}
        return _Scope(
            [part for part in self.source if part.number not in source_numbers],
            [part for part in self.target if part.number not in target_numbers],
            self.depths,
        )


def _common_steps(parts: PartList) -> int:
    """Return the number of steps that all paths begin with, the same ones; the last step of a path does not count.

    It is the part's own name, which is left to a part even if all begin with it.
    """
    paths = [part.path for part in parts]
    # What the first and the last path in sorted order have in common, all have.
    first = min(paths)
    last = max(paths)
    longest = min(len(path) for path in paths) - 1
    count = 0
    while count < longest and first[count] == last[count]:
        count += 1
    return count


@define(eq=False)
class _GroupList:
    """A numbered list of groups of parts, such as the blocks of a network: its order tells equal groups apart.

    Attributes:
        groups: the parts of each container in the list, or of each number that several layers have in their names.
        has_bare_numbers: whether steps of paths that are numbers are its order, as in `layers.0`. Names with numbers,
            `layer1`, are one only where the layers are defined in it, too.
    """

    groups: list[PartList] = field(kw_only=False)
    has_bare_numbers: bool = True

    @classmethod
    def of_layers(cls, parts: PartList) -> _GroupList:
        """Return a list of layers as groups of one."""
        return cls([[part] for part in parts])

    @property
    def lengths(self) -> list[int]:
        """The number of parts of each group, in the order of the groups."""
        return [len(group) for group in self.groups]

    @property
    def is_defined_in_order(self) -> bool:
        """Whether the file has the groups one after the other, too, in the order of their numbers."""
        numbers = [part.number for group in self.groups for part in group]
        return numbers == sorted(numbers)


class _Solver:
    """Pairs the parts of two models by the rules of this file, each part at most once. A rule looks at one scope after
    another: parts of both sides that belong together. The label of a part is its class until it is paired, and then a
    number that only the pair has.

    Args:
        source: the parts of one side.
        target: those of the other.
        graphs: see `Graphs`.
        in_definition_order: for source and target, whether the parts are in the order of their definition, and not
            sorted by name.
        incomplete: classes of which parts are left out, being tied to others. Their lists and graphs have holes, so
            that only names and uniqueness tell the others apart.

    Attributes:
        pairs: the number of the source part, and the reason, by the number of the target part; `solve` fills it.
    """

    def __init__(
        self,
        source: PartList,
        target: PartList,
        graphs: Graphs,
        in_definition_order: tuple[bool, bool],
        incomplete: set[Class],
    ) -> None:
        self._source = source
        self._target = target
        self._load_graphs = graphs
        self._graphs: tuple[Graph | None, Graph | None] = (None, None)
        """Those of source and target, which `solve` loads; `None` before, and for a model without."""
        self._in_definition_order = in_definition_order
        self._incomplete = incomplete
        self._refused: dict[Class, str] = {}
        """Why no later rule pairs the parts of a class, by that class; no entry for classes that may be paired."""
        self.pairs: dict[int, tuple[int, str]] = {}
        self._paired_sources: set[int] = set()
        """The numbers of the source parts in `pairs`."""
        self._labels: tuple[dict[int, Label], dict[int, Label]] = (
            _classes_by_number(source),
            _classes_by_number(target),
        )
        """The labels of source and target parts, by the numbers of these; `_pair` changes those of parts that it pairs.
        """

    def solve(self) -> None:
        """Apply the rules: to the whole models first, then to the groups of lists that are paired.

        Graphs, which take time to read, are asked for only if rule 1 leaves parts.
        """
        if not self._source or not self._target:
            return
        whole = _Scope.of(self._source, self._target)
        self._pair_unique(whole)
        undecided = self.unpaired(self._source, self._target).shared()
        if not undecided:
            return
        for sources, targets in undecided:
            if len(sources) != len(targets):  # nothing can tell which of them have no counterpart
                self._refused[sources[0].cls] = f"there are {len(sources)} of them for {len(targets)}"
        self._graphs = self._load_graphs()
        self._pair_places(whole)
        scopes = [whole]
        rules = (self._pair_unique, self._pair_names, self._pair_numbers, self._pair_lists)
        while scopes:
            scope = scopes.pop()
            # What one rule pairs may be all that an earlier one needs: each begins again with the first.
            while any(rule(scope) for rule in rules):
                pass
            scopes += self._pair_groups(scope)

    def reason(self, cls: Class) -> str:
        """Return why parts of a class are ambiguous."""
        return self._refused.get(cls, _ALIKE)

    def _pair(self, source: PartList, target: PartList, why: str) -> bool:
        """Pair parts one by one, except those that are paired already; return whether there are others.

        Args:
            source: parts of the source.
            target: their counterparts, in the same order.
            why: the reason, see `Conclusions`.
        """
        is_new = False
        for source_part, target_part in zip(source, target):
            if target_part.number in self.pairs:
                continue
            self.pairs[target_part.number] = (source_part.number, why)
            self._paired_sources.add(source_part.number)
            label = target_part.number  # which only both have: it is that of no other pair, and no class
            self._labels[_SOURCE][source_part.number] = label
            self._labels[_TARGET][target_part.number] = label
            is_new = True
        return is_new

    def unpaired(self, source: PartList, target: PartList) -> _Classes:
        """Return those of some parts of source and target that are not paired."""
        return _Classes(
            [part for part in source if part.number not in self._paired_sources],
            [part for part in target if part.number not in self.pairs],
        )

    def _pairable(self, scope: _Scope) -> list[tuple[PartList, PartList]]:
        """Return the unpaired parts of each class that may be paired: as many on both sides, and not refused."""
        unpaired = self.unpaired(scope.source, scope.target).equally_many()
        return [(sources, targets) for sources, targets in unpaired if sources[0].cls not in self._refused]

    def _pair_unique(self, scope: _Scope) -> bool:
        """Pair the only unpaired parts of their classes; return whether there are any."""
        sources: PartList = []
        targets: PartList = []
        for source, target in self._pairable(scope):
            if len(source) == 1:
                sources += source
                targets += target
        return self._pair(sources, targets, "shape")

    # Graphs

    def _pair_places(self, scope: _Scope) -> None:
        """Pair the parts that have a place in both graphs which no other part has.

        A class whose places differ, or contradict its names, is refused: no later rule pairs it.
        """
        source_graph, target_graph = self._graphs
        if source_graph is None or target_graph is None:
            return
        source_colors, target_colors = colors([(source_graph, self._source), (target_graph, self._target)])
        for sources, targets in self.unpaired(scope.source, scope.target).equally_many():
            cls = sources[0].cls
            source_places = _colors_of(sources, source_colors)
            target_places = _colors_of(targets, target_colors)
            # Not in both graphs, or tied to parts that are left out: the places say nothing, and later rules may.
            if cls in self._incomplete or source_places is None or target_places is None:
                continue
            if sorted(source_places) != sorted(target_places):
                self._refused[cls] = _OTHER_GRAPH
                continue
            # Several parts of one color look alike to the graphs, and are left to later rules.
            sources_alone = _alone_at_their_place(sources, source_places)
            targets_alone = _alone_at_their_place(targets, target_places)
            in_order = [sources_alone[place] for place in targets_alone]
            if _names_differ(in_order, [*targets_alone.values()], scope.depths):
                self._refused[cls] = _OTHER_NAMES
            else:
                self._pair(in_order, [*targets_alone.values()], "graph")

    def _runs_in_order(self, source: list[PartList], target: list[PartList]) -> bool:
        """Return whether groups run in the order of their list on both sides; a side without a graph is not asked.

        A group runs before the next if any part of the next depends on one of it.

        Args:
            source: groups of the source, a list of one side only.
            target: groups of the target, likewise.
        """
        for graph, groups in zip(self._graphs, (source, target)):
            if graph is None:
                continue
            for group, following in pairwise(groups):
                if not any(graph.is_before(one, other) for one in group for other in following):
                    return False
        return True

    # Names

    def _pair_names(self, scope: _Scope) -> bool:
        """Pair the parts of each class that have the same names on both sides; return whether any is paired.

        The prefix that all names of a side have in common does not count, see `_Scope.depths`.
        """
        all_names_agree = _names_agree(scope)
        has_pairs = False
        for sources, targets in self._pairable(scope):
            source_names = _by_name(sources, scope.depths[_SOURCE])
            target_names = _by_name(targets, scope.depths[_TARGET])
            # Two parts have one name if their keys are `weight` and `.weight`: names do not tell these apart.
            if source_names.keys() != target_names.keys() or len(source_names) < len(sources):
                continue
            if not self._may_pair_by_names(source_names, target_names, all_names_agree):
                continue
            names = sorted(source_names)
            sorted_sources = [source_names[name] for name in names]
            sorted_targets = [target_names[name] for name in names]
            has_pairs |= self._pair(sorted_sources, sorted_targets, "names")
        return has_pairs

    def _may_pair_by_names(self, source: Mapping[str, Part], target: Mapping[str, Part], all_names_agree: bool) -> bool:
        """Return whether parts of the same names are counterparts. Names that are no numbers, and have none, say so.

        Numbers may count differently on both sides: `norm1` may be the last one where the others are `up4` to `up1`. So
        names with numbers count only if the whole scope agrees.

        Args:
            source: the source parts of a class by their names.
            target: the target parts, with the same names.
            all_names_agree: whether all names in the scope are the same on both sides.
        """
        if not any(re.search("[0-9]", name) for name in source):
            return True
        if not all_names_agree:
            return False
        # The nodes of a graph may have any numbers: those alone count only if the nodes run in their order.
        return _have_letters(source) or self._runs_as_numbered(source, target)

    def _runs_as_numbered(self, source: Mapping[str, Part], target: Mapping[str, Part]) -> bool:
        """Return whether parts whose names are numbers run in the order of these on both sides.

        Args:
            source: the parts of the source by their names, `0.1`.
            target: those of the target, with the same names.
        """

        def numbers(name: str) -> list[int]:
            # A step with letters comes before all numbers.
            return [int(step) if step.isdecimal() else -1 for step in name.split(".")]

        names = sorted(source, key=numbers)
        return self._runs_in_order([[source[name]] for name in names], [[target[name]] for name in names])

    # Numbers

    def _pair_numbers(self, scope: _Scope) -> bool:
        """Pair the parts of a class that on each side are one numbered list, or run one after the other in its graph.

        Of several such classes the first: what it pairs may decide about the others. Returns whether there is any.
        """
        for sources, targets in self._pairable(scope):
            if sources[0].cls in self._incomplete:
                continue  # its list has holes
            both_in_order = self._in_order(scope, sources, targets)
            if both_in_order is not None:
                self._pair(*both_in_order, "numbers")  # none of them is paired yet
                return True
        return False

    def _in_order(self, scope: _Scope, sources: PartList, targets: PartList) -> tuple[PartList, PartList] | None:
        """Return the parts of a class in the order of each side; `None` if a side has none, or both differ.

        On each side the parts have the order in which they run, or else that of a numbered list, which other parts may
        be in, too.

        Args:
            scope: parts of both sides, which include those of the class.
            sources: the parts of the class on one side.
            targets: as many on the other.
        """
        # Empty for a side without a graph, or where the parts are on several branches.
        ordered_sources = self._in_running_order(sources, _SOURCE)
        ordered_targets = self._in_running_order(targets, _TARGET)
        if ordered_sources and ordered_targets:
            return ordered_sources, ordered_targets
        # Empty for a side that has no list of all of these parts.
        source_list = _list_with(sources, scope.source)
        target_list = _list_with(targets, scope.target)
        if source_list and target_list and not self._have_common_order(source_list, target_list):
            return None
        if not ordered_sources:
            ordered_sources = [part for part in source_list if part in sources]
        if not ordered_targets:
            ordered_targets = [part for part in target_list if part in targets]
        if not ordered_sources or not ordered_targets:
            return None
        # A list has no order if a graph says another one, or none: its parts are on several branches.
        if not self._runs_in_order([[part] for part in ordered_sources], [[part] for part in ordered_targets]):
            return None
        return ordered_sources, ordered_targets

    def _have_common_order(self, source: PartList, target: PartList) -> bool:
        """Return whether what two lists have in common comes in the same order: otherwise they are different lists.

        Args:
            source: a numbered list of the source, with layers of other classes.
            target: one of the target.
        """
        source_labels = self._labels_of(source, _SOURCE)
        target_labels = self._labels_of(target, _TARGET)
        common = set(source_labels) & set(target_labels)
        order = [label for label in source_labels if label in common]
        return order == [label for label in target_labels if label in common]

    def _in_running_order(self, parts: PartList, side: int) -> PartList:
        """Return parts in the order in which they run, if each depends on the one before; an empty list otherwise.

        Args:
            parts: the parts.
            side: `_SOURCE` or `_TARGET`.
        """
        graph = self._graphs[side]
        if graph is None:
            return []
        nodes = {graph.nodes.get(part.number) for part in parts}
        if len(nodes) < len(parts):
            return []  # some are inside one node, which says nothing of their order
        in_order = sorted(parts, key=graph.depth)
        # False, too, for a part without a node.
        is_one_row = all(graph.is_before(part, following) for part, following in pairwise(in_order))
        return in_order if is_one_row else []

    def _labels_of(self, parts: PartList, side: int) -> list[Label]:
        """Return the labels of parts of a side, `_SOURCE` or `_TARGET`."""
        return [self._labels[side][part.number] for part in parts]

    def _pair_lists(self, scope: _Scope) -> bool:
        """Pair two numbered lists of equal length that belong together; return whether that pairs anything new."""
        target_lists = _lists_of_layers(scope.target)
        for source in _lists_of_layers(scope.source):
            for target in target_lists:
                if not self._belong_together(scope, _GroupList.of_layers(source), _GroupList.of_layers(target)):
                    continue
                is_new = self._pair(source, target, "numbers")
                if is_new:
                    return True
        return False

    def _pair_groups(self, scope: _Scope) -> list[_Scope]:
        """Find two lists of groups that belong together; return each pair of groups, and the rest, as a scope.

        Returns nothing if there are no such lists. What is inside each scope is paired by the rules afterwards.
        """
        for source, target in self._list_pairs(scope):
            if self._belong_together(scope, source, target):
                scopes = [_Scope.of(left, right) for left, right in zip(source.groups, target.groups)]
                rest = scope.without(source, target)
                if rest.source and rest.target:
                    scopes.append(rest)
                return scopes
        return []

    def _list_pairs(self, scope: _Scope) -> Iterator[tuple[_GroupList, _GroupList]]:
        """Yield a list of groups of each side, wherever two have the same lengths; also one cut from a list of layers.

        Whether they are the same list of both models, `_belong_together` says.
        """
        source_lists = _group_lists_of(scope.source)
        target_lists = _group_lists_of(scope.target)
        for source in source_lists:
            for target in target_lists:
                if source.lengths == target.lengths:
                    yield source, target
        for source in source_lists:
            for cut in self._cut_alike(scope.target, _TARGET, source):
                yield source, cut
        for target in target_lists:
            for cut in self._cut_alike(scope.source, _SOURCE, target):
                yield cut, target

    def _cut_alike(self, parts: PartList, side: int, other_list: _GroupList) -> Iterator[_GroupList]:
        """Yield lists of layers of a side, cut into groups as long as those of a list of the other side.

        As where one model has containers, `layer1.0`, and the other one long Sequential. Whether the groups have the
        same layers, `_belong_together` says.

        Args:
            parts: those of the side.
            side: `_SOURCE` or `_TARGET`.
            other_list: the list of groups of the other side.
        """
        other_side = _TARGET if side == _SOURCE else _SOURCE
        labels = {label for group in other_list.groups for label in self._labels_of(group, other_side)}
        for layers in _lists_of_layers(parts):
            places = [place for place, label in enumerate(self._labels_of(layers, side)) if label in labels]
            if len(places) != sum(other_list.lengths):
                continue
            begin = places[0]
            # The layers with these labels have to follow one another without a gap.
            if places != list(range(begin, begin + len(places))):
                continue
            groups = []
            for length in other_list.lengths:
                groups.append(layers[begin : begin + length])
                begin += length
            yield _GroupList(groups)

    def _belong_together(self, scope: _Scope, source: _GroupList, target: _GroupList) -> bool:
        """Return whether two lists of groups are the same list of both models.

        Three things have to be so: their groups have the same layers, one by one; no other list can have these layers;
        and no group can begin one layer later on one side. Groups that are equal must have an order besides.

        Args:
            scope: parts of both sides, which include those of the lists.
            source: a list of groups of the source.
            target: one of the target.
        """
        # How often each label is in each group.
        source_groups = [Counter(self._labels_of(group, _SOURCE)) for group in source.groups]
        target_groups = [Counter(self._labels_of(group, _TARGET)) for group in target.groups]
        if source_groups != target_groups:
            return False
        in_list: Counter[Label] = sum(source_groups, Counter())
        if not self._refused.keys().isdisjoint(in_list) or not self._incomplete.isdisjoint(in_list):
            return False  # a class that is not paired, or whose lists have holes
        also_outside = self._labels_outside(scope, in_list)
        if len(also_outside) == len(in_list):
            return False  # other lists may have all of these layers too
        in_every_group = set(source_groups[0]).intersection(*source_groups)
        if not in_every_group.isdisjoint(also_outside):
            return False  # the layer outside may be the first of a group, if each begins one layer earlier
        if not self._begin_at_same_layers(source, target, also_outside):
            return False
        # If all are different, what is in a group tells which one it is, whatever their order.
        are_all_different = len({frozenset(group.items()) for group in source_groups}) == len(source_groups)
        return are_all_different or self._have_order(source, target)

    def _labels_outside(self, scope: _Scope, inside: Counter[Label]) -> set[Label]:
        """Return the labels that parts of a scope outside of two lists have, too, on one side at least.

        Args:
            scope: the scope.
            inside: how often each label is in a list; both lists have the same.
        """
        source_counts = Counter(self._labels_of(scope.source, _SOURCE))
        target_counts = Counter(self._labels_of(scope.target, _TARGET))
        outside = set()
        for label, count in inside.items():
            if source_counts[label] != count or target_counts[label] != count:
                outside.add(label)
        return outside

    def _have_order(self, source: _GroupList, target: _GroupList) -> bool:
        """Return whether the numbers of both lists are an order, and graphs do not say another one.

        Args:
            source: a list of groups of the source, some of which are equal.
            target: one of the target, whose groups have the same layers.
        """
        labels = {label for group in source.groups for label in self._labels_of(group, _SOURCE)}
        # Groups of layers that are all alike may be cut across: one side has the first layers of all branches in a
        # group, then the second ones, where the other has a group for each branch.
        if len(labels) == 1 and len(source.groups[0]) > 1:
            return False
        for groups, is_in_definition_order in zip((source, target), self._in_definition_order):
            # `up4` may run before `up1`: names with numbers count only if layer by layer is defined in that order.
            if not groups.has_bare_numbers and not (is_in_definition_order and groups.is_defined_in_order):
                return False
        return self._runs_in_order(source.groups, target.groups)

    def _begin_at_same_layers(self, source: _GroupList, target: _GroupList, outside: set[Label]) -> bool:
        """Return whether every group of one side is certain to begin with the layer with which that of the other does.

        The sides may cut their layers into groups differently: each group (norm, conv) on one side, (conv, norm) on the
        other, with one more norm before or after the list. A group with layers that are also outside of the list is
        certain only if both sides define its layers in one order.

        Args:
            source: a list of groups of the source.
            target: one of the target, whose groups have the same layers in any order.
            outside: labels that parts outside of the lists have, too.
        """
        are_defined_in_order = all(self._in_definition_order)
        for source_group, target_group in zip(source.groups, target.groups):
            labels = self._labels_of(source_group, _SOURCE)
            if len(labels) == 1 or outside.isdisjoint(labels):
                continue  # it cannot be cut in another way
            if not are_defined_in_order or labels != self._labels_of(target_group, _TARGET):
                return False
        return True


def _colors_of(parts: PartList, colors_of_parts: Mapping[int, int]) -> list[int] | None:
    """Return the colors of parts, which are their places in a graph; `None` if it does not show one of them."""
    if any(part.number not in colors_of_parts for part in parts):
        return None
    return [colors_of_parts[part.number] for part in parts]


def _alone_at_their_place(parts: PartList, places: list[int]) -> dict[int, Part]:
    """Return the parts at whose place no other one is, by that place.

    Args:
        parts: the parts.
        places: that of each part, see `_colors_of`.
    """
    counts = Counter(places)
    return {place: part for place, part in zip(places, parts) if counts[place] == 1}


def _classes_by_number(parts: PartList) -> dict[int, Label]:
    """Return the classes of parts, by their numbers."""
    return {part.number: part.cls for part in parts}


def _by_name(parts: PartList, depth: int) -> dict[str, Part]:
    """Return parts by their names, without the first steps of their paths, which all have in common.

    Args:
        parts: the parts.
        depth: the number of these steps.
    """
    return {".".join(part.path[depth:]): part for part in parts}


def _names_agree(scope: _Scope) -> bool:
    """Return whether all parts of classes that both sides have are called the same, each name of one class."""
    shared = {part.cls for part in scope.source} & {part.cls for part in scope.target}
    source = _by_name([part for part in scope.source if part.cls in shared], scope.depths[_SOURCE])
    target = _by_name([part for part in scope.target if part.cls in shared], scope.depths[_TARGET])
    return source.keys() == target.keys() and all(part.cls == target[name].cls for name, part in source.items())


def _names_differ(sources: PartList, targets: PartList, depths: tuple[int, int]) -> bool:
    """Return whether pairs contradict names: both sides have the same ones, with letters in each, but in other pairs.

    Args:
        sources: the source part of each pair.
        targets: the target parts, in the same order.
        depths: see `_Scope`.
    """
    source_depth, target_depth = depths
    source_names = [".".join(part.path[source_depth:]) for part in sources]
    target_names = [".".join(part.path[target_depth:]) for part in targets]
    if source_names == target_names or sorted(source_names) != sorted(target_names):
        return False
    return _have_letters(source_names)


def _have_letters(names: Iterable[str]) -> bool:
    """Return whether there are letters in each name: numbers alone, `0.1`, are a place in a list and no name."""
    return all(re.search("[^0-9.]", name) for name in names)


# Numbered lists


@define(frozen=True)
class _NumberedList:
    """Parts whose paths differ in one step, which is a number: `layers.0.conv` and `layers.1.conv`.

    Attributes:
        parts: the parts in the order of their numbers, perhaps only one.
        is_of_layers: whether the number is the last step of the paths, as in `layers.0`.
    """

    parts: PartList
    is_of_layers: bool


def _numbered(parts: PartList) -> list[_NumberedList]:
    """Return the numbered lists that parts are in; parts in a list and in a list around it are in both."""
    lists = []
    for (depth, path), members in _by_list_and_number(parts).items():
        # Two parts of one number, as `1` and `01` are, have no order: it is no list.
        if all(len(of_one_number) == 1 for of_one_number in members.values()):
            in_order = [part for number in sorted(members) for part in members[number]]
            lists.append(_NumberedList(in_order, is_of_layers=depth == len(path) - 1))
    return lists


def _by_list_and_number(parts: PartList) -> dict[tuple[int, tuple[str, ...]], dict[int, PartList]]:
    """Return parts by the lists that they are in, and in each by their number.

    `layers.0.conv`, `layers.1.conv` and `layers.2.conv` are one list: paths that differ in one step, which is a number.
    A list is known by the place of that step, and by the path with `*` for the number.
    """
    lists: dict[tuple[int, tuple[str, ...]], dict[int, PartList]] = {}
    for part in parts:
        for depth, step in enumerate(part.path):
            match = _STEP.fullmatch(step)
            if match:
                before, number, behind = match.groups()  # `_l`, the number, `_reverse`
                kind = f"{before or ''}*{behind or ''}"
                path = (*part.path[:depth], kind, *part.path[depth + 1 :])
                lists.setdefault((depth, path), {}).setdefault(int(number), []).append(part)
    return lists


def _list_with(wanted: PartList, parts: PartList) -> PartList:
    """Return the numbered list that holds some parts, with all others in it; empty if there is no such list.

    Args:
        wanted: the parts.
        parts: all, among which these are.
    """
    numbers = {part.number for part in wanted}
    for numbered in _numbered(parts):
        if numbers.issubset(part.number for part in numbered.parts):
            return numbered.parts
    return []


def _lists_of_layers(parts: PartList) -> list[PartList]:
    """Return the numbered lists of several layers: those whose number is the last step, `layers.0` and `layers.1`."""
    return [numbered.parts for numbered in _numbered(parts) if numbered.is_of_layers and len(numbered.parts) > 1]


def _group_lists_of(parts: PartList) -> list[_GroupList]:
    """Return the lists of groups that parts form, the one of most parts first.

    Groups are containers with a number, `layer1`, or layers with the same number in their names, `conv1` and `bn1`.
    """
    lists = [*_lists_of_containers(parts), *_lists_of_numbered_names(parts)]
    return sorted(lists, key=lambda group_list: -sum(group_list.lengths))


def _lists_of_containers(parts: PartList) -> Iterator[_GroupList]:
    """Yield the lists of containers with a number, `layer1` and `layer2`, each of several parts."""
    # The parts by the path and name before the number, and the number.
    containers: dict[tuple[str, ...], dict[int, PartList]] = {}
    for part in parts:
        for depth, step in enumerate(part.path[:-1]):  # the last one is the part's own
            match = _NAME_AND_NUMBER.fullmatch(step)
            if match:
                name, number = match.groups()
                containers.setdefault((*part.path[:depth], name), {}).setdefault(int(number), []).append(part)
    for (*_, name), members in containers.items():
        # Containers of one part are no groups.
        groups = [members[number] for number in sorted(members) if len(members[number]) > 1]
        if len(groups) > 1:
            yield _GroupList(groups, has_bare_numbers=not name)


def _lists_of_numbered_names(parts: PartList) -> Iterator[_GroupList]:
    """Yield the lists of layers with the same number in their names, `conv1` and `bn1`, in each container."""
    # The layers by the path of the container, the name before the number, and the number.
    containers: dict[tuple[str, ...], dict[str, dict[int, PartList]]] = {}
    for part in parts:
        own_step = part.path[-1] if part.path else ""
        match = _NAME_AND_NUMBER.fullmatch(own_step)
        if match and match[1]:  # a name, and not a number alone
            name, number = match.groups()
            names = containers.setdefault(part.path[:-1], {})
            names.setdefault(name, {}).setdefault(int(number), []).append(part)
    for names in containers.values():
        yield from _with_equal_numbers(names)


def _kind(part: Part) -> frozenset[tuple[str, int]]:
    """Return the kind of layer of a part: names and ranks of its tensors, so that convolutions of all sizes are one."""
    return frozenset((name, len(shape)) for name, shape in part.shapes.items() if name not in ("bias", *part.optional))


def _with_equal_numbers(names: Mapping[str, Mapping[int, PartList]]) -> Iterator[_GroupList]:
    """Yield the groups of layers of one number, `conv1` and `bn1`, where several names have the same numbers.

    A name that no other one shares its numbers with, as `up4` to `up1`, makes no groups.

    Args:
        names: the layers in one container: by the name before the number, `conv`, and by the number.
    """
    # The layers of each name by number, for all names that have the same numbers.
    by_numbers: dict[tuple[int, ...], list[Mapping[int, PartList]]] = {}
    for layers_of_name in names.values():
        kinds = {_kind(part) for parts in layers_of_name.values() for part in parts}
        if len(kinds) == 1:  # and not `down0` and `down1` that are a convolution and its norm
            by_numbers.setdefault(tuple(sorted(layers_of_name)), []).append(layers_of_name)
    for numbers, layers_of_names in by_numbers.items():
        if len(layers_of_names) < 2 or len(numbers) < 2 or not _are_counted(numbers):
            continue
        groups = []
        for number in numbers:
            group = [part for layers in layers_of_names for part in layers[number]]
            # In the order of the side's parts, as the groups of containers are; see `_begin_at_same_layers`.
            groups.append(sorted(group, key=lambda part: part.number))
        yield _GroupList(groups, has_bare_numbers=False)  # names come before the numbers


def _are_counted(numbers: tuple[int, ...]) -> bool:
    """Return whether sorted numbers count from 0 or from 1 without a gap."""
    first = numbers[0]
    return first in (0, 1) and numbers == tuple(range(first, first + len(numbers)))
