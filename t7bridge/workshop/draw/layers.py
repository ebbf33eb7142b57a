"""Layout of graphs in layers: each node is below all its inputs, and has a slot in its layer, side by side with those
of other nodes, and with those of arrows that pass the layer on their way further down.

Layers by longest path, order by the barycenters of neighbours, and positions by isotonic regression: in each layer the
order is kept and the squared distance from the neighbours is minimal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import fsum, inf

from attrs import field

from ...data import define
from ...nn.blocks import Flow
from ...tools.view import ranks_of
from .boxes import BESIDE_ARROW, GAP, SMALL, Box, Line, Point, label_with_shape, width_of

_PORT = 24
"""Least distance of the ends of arrows at one box."""
_ROW = 13
"""Height of a row of labels."""
_MOST_ROWS = 6
"""Maximum number of rows of labels between two layers."""
_MOST_LABELLED = 600
"""Maximum number of labelled arrows of a graph; more would only hide each other."""
_SWEEPS = 6
"""Iterations to improve order and positions within the layers."""
_LAST_SORTING_SWEEP = 3
"""From 0. Later sweeps move slots in a fixed order."""
_MOST_PASSED = 30_000
"""Maximum number of slots of arrows that pass layers; beyond, these arrows are straight, and have none."""
_PASSING_WIDTH = 8.0
"""Width of the slot of an arrow that passes a layer."""
_PASSING_WEIGHT = 4.0
"""How much more such slots resist a displacement than those of nodes: long arrows are to be straight."""
_SPACE_BELOW_LAYER = 0.9 * GAP
"""Least space below a layer."""
_SPACE_BESIDE_ROWS = 14.0
"""Space above and below the rows of labels between two layers, together."""
_BETWEEN_LABELS = 8
"""Pixels between two labels of a row."""


@define(eq=False)
class _Slot:
    """The part of a layer, from left to right, that a node takes, or an arrow that passes the layer.

    Attributes:
        layer: the number of the layer, from 0 at the top.
        box: that of the node; `None` for an arrow.
        width: of the node; for an arrow, of the space that it gets.
        middle: the centre, across.
        above: the slots that arrows come from.
        below: the slots that arrows lead to.
    """

    layer: int
    box: Box | None
    width: float
    middle: float = 0.0
    above: list[_Slot] = field(factory=list)
    below: list[_Slot] = field(factory=list)

    @property
    def weight(self) -> float:
        """How much it resists a displacement."""
        return _PASSING_WEIGHT if self.box is None else 1.0


@define(eq=False)
class _Arrow:
    """An arrow of a graph.

    Attributes:
        flow: the edge that it shows.
        start: the node that it leaves.
        end: the node that it enters.
        slots: that of the first node, its own in the layers that it passes, and that of the last node.
        label: its text; empty for none.
        leaving: where it leaves the first node, across.
        entering: where it enters the last one, across.
        row_of_label: where its label is in the space below the first node's layer; `None` if it is not there.
    """

    flow: Flow
    start: Box
    end: Box
    slots: list[_Slot]
    label: str
    leaving: float = 0.0
    entering: float = 0.0
    row_of_label: _RowOfLabel | None = None

    @property
    def first_layer(self) -> int:
        """Return the number of the layer that it leaves."""
        return self.slots[0].layer

    @property
    def passed(self) -> list[_Slot]:
        """Return its slots in the layers that it passes."""
        return self.slots[1:-1]

    @property
    def slot_of_label(self) -> _Slot | None:
        """Return the slot beside whose middle its label is, halfway; `None` if it passes no layer, or has no label."""
        passed = self.passed
        return passed[len(passed) // 2] if passed and self.label else None


@define(frozen=True)
class _RowOfLabel:
    """Where a label is in the space below a layer.

    Attributes:
        number: of its row, from 0.
        left: its left end.
    """

    number: int
    left: float


@define(eq=False)
class _Layer:
    """A layer of a graph.

    Attributes:
        slots: from left to right.
        top: the upper edge of its nodes.
        bottom: the lower edge of the highest of them.
    """

    slots: list[_Slot] = field(factory=list)
    top: float = 0.0
    bottom: float = 0.0


def lay_out_in_layers(box: Box, members: list[int], flows: list[Flow], *, keep_order: bool = False) -> list[Line]:
    """Place some nodes of a graph, from (0, 0) on; return the arrows between them.

    Args:
        box: of the graph; its boxes get positions, and may become wider.
        members: numbers of the nodes.
        flows: the edges between them.
        keep_order: whether the nodes of a layer stay in their order.
    """
    _widen(box, flows)
    slots_of_nodes = _slots_of_nodes(box, members, flows)
    arrows = _arrows_between(box, slots_of_nodes, flows)
    layers = _layers_of([*slots_of_nodes.values(), *(slot for arrow in arrows for slot in arrow.passed)])
    _place_across(layers, keep_order=keep_order)
    _set_ends(arrows)
    _set_rows_of_labels(arrows)
    _place_down(layers, arrows)
    return [_line_of(arrow, layers) for arrow in arrows]


def _widen(box: Box, flows: list[Flow]) -> None:
    """Make the boxes of a graph wide enough for the arrows that leave them, and for those that enter them."""
    for ends in (Counter(flow.start for flow in flows), Counter(flow.end for flow in flows)):
        for number, count in ends.items():
            if count > 1:
                node = box.inside[number]
                node.width = max(node.width, (count + 1) * _PORT)


def _slots_of_nodes(box: Box, members: list[int], flows: list[Flow]) -> dict[int, _Slot]:
    """Return the slots of the nodes of a graph, by the numbers of these."""
    places = {number: place for place, number in enumerate(members)}  # `ranks_of` numbers nodes from 0
    flows_between_places = [Flow(places[flow.start], places[flow.end]) for flow in flows]
    slots: dict[int, _Slot] = {}
    for number, layer in zip(members, ranks_of(len(members), flows_between_places)):
        node = box.inside[number]
        slots[number] = _Slot(layer, node, node.width)
    return slots


def _arrows_between(box: Box, slots: dict[int, _Slot], flows: list[Flow]) -> list[_Arrow]:
    """Return the arrows of a graph, with their slots, which are linked with their neighbours.

    Args:
        box: of the graph.
        slots: of its nodes, by number.
        flows: one for each arrow.
    """
    has_labels = len(flows) <= _MOST_LABELLED
    arrows: list[_Arrow] = []
    for flow, layers in zip(flows, _layers_passed(slots, flows)):
        start = box.inside[flow.start]
        label = label_with_shape(flow.label, start) if has_labels else ""
        passed = [_Slot(layer, box=None, width=_PASSING_WIDTH) for layer in layers]
        arrow_slots = [slots[flow.start], *passed, slots[flow.end]]
        for upper, lower in pairwise(arrow_slots):
            upper.below.append(lower)
            lower.above.append(upper)
        arrow = _Arrow(flow, start, box.inside[flow.end], arrow_slots, label)
        if arrow.slot_of_label is not None:
            # The label is on one side of the arrow. A slot is symmetric: there is as much room on the other.
            arrow.slot_of_label.width = 2 * (BESIDE_ARROW + width_of(label)) + _PASSING_WIDTH
        arrows.append(arrow)
    return arrows


def _layers_passed(slots: dict[int, _Slot], flows: list[Flow]) -> list[range]:
    """Return the layers between start and end of each flow, in which its arrow gets slots; none if these are too many.

    Args:
        slots: of the nodes, by number.
        flows: between the nodes. A flow back passes no layer.
    """
    layers_passed = [range(slots[flow.start].layer + 1, slots[flow.end].layer) for flow in flows]
    if sum(map(len, layers_passed)) > _MOST_PASSED:
        return [range(0)] * len(flows)
    return layers_passed


def _layers_of(slots: list[_Slot]) -> list[_Layer]:
    """Return the layers of slots, which are side by side in their order."""
    layers = [_Layer() for _ in range(max(slot.layer for slot in slots) + 1)]
    for slot in slots:
        layers[slot.layer].slots.append(slot)
    return layers


def _place_across(layers: list[_Layer], *, keep_order: bool) -> None:
    """Place slots, and the boxes of nodes, from left to right; the leftmost begins at 0.

    Args:
        layers: the layers, whose slots are put in order.
        keep_order: whether the order in the layers stays.
    """
    # To begin with, the slots of each layer are side by side in the middle.
    for layer in layers:
        count = len(layer.slots)
        _spread(layer.slots, wanted=[0.0] * count, weights=[1.0] * count)
    for sweep in range(_SWEEPS):
        is_sorting = sweep <= _LAST_SORTING_SWEEP and not keep_order
        # Down by the neighbours above, and then up by those below, as positions depend on both.
        if sweep % 2 == 0:
            for layer in layers:
                _move_to_neighbours(layer, lambda slot: slot.above, is_sorting=is_sorting)
        else:
            for layer in reversed(layers):
                _move_to_neighbours(layer, lambda slot: slot.below, is_sorting=is_sorting)
    _begin_at_left_edge([slot for layer in layers for slot in layer.slots])


def _begin_at_left_edge(slots: list[_Slot]) -> None:
    """Move all slots of a graph so that the leftmost begins at 0, and place the boxes of nodes in theirs."""
    left = min(slot.middle - slot.width / 2 for slot in slots)
    for slot in slots:
        if slot.box is None:
            slot.middle -= left
        else:
            slot.box.x = slot.middle - slot.box.width / 2 - left
            slot.middle = slot.box.middle  # the same, rounded as the box has it


def _move_to_neighbours(layer: _Layer, neighbours_of: Callable[[_Slot], list[_Slot]], *, is_sorting: bool) -> None:
    """Move the slots of a layer near to the middle of their neighbours.

    Args:
        layer: the layer.
        neighbours_of: returns the neighbours of a slot above it, or those below it.
        is_sorting: whether the slots are put in the order of these middles first.
    """
    wanted = {slot: _mean_middle(neighbours_of(slot), default=slot.middle) for slot in layer.slots}
    if is_sorting:
        layer.slots.sort(key=wanted.__getitem__)
    _spread(layer.slots, [wanted[slot] for slot in layer.slots], [slot.weight for slot in layer.slots])


def _mean_middle(slots: list[_Slot], default: float) -> float:
    """Return the mean position of some slots; a default for none.

    Ties decide the order of slots, so sums are exact: those of `sum` depend on the release of Python.
    """
    return fsum(slot.middle for slot in slots) / len(slots) if slots else default


def _spread(slots: list[_Slot], wanted: list[float], weights: list[float]) -> None:
    """Move the slots of a layer as near to their desired positions as order and widths allow.

    Args:
        slots: from left to right.
        wanted: the desired centre of each.
        weights: how much each resists a displacement from there.
    """
    # Where the centre of each slot would be if all were side by side. With these subtracted, slots that touch have
    # equal positions, and slots in the right order have increasing ones.
    offsets = [0.0]
    for before, slot in pairwise(slots):
        offsets.append(offsets[-1] + ((before.width + slot.width) / 2 + GAP))
    positions = _nondecreasing([target - offset for target, offset in zip(wanted, offsets)], weights)
    for slot, position, offset in zip(slots, positions, offsets):
        slot.middle = position + offset


def _nondecreasing(wanted: list[float], weights: list[float]) -> list[float]:
    """Return the numbers in nondecreasing order that are nearest to others, by weighted squares: isotonic regression.

    Args:
        wanted: the other numbers.
        weights: of each, positive.
    """
    pools: list[_Pool] = []
    for number, weight in zip(wanted, weights):
        pool = _Pool(number * weight, weight, size=1)
        # A number that is not behind the pool before it joins that pool.
        while pools and pools[-1].mean >= pool.mean:
            before = pools.pop()
            pool = _Pool(pool.total + before.total, pool.weight + before.weight, pool.size + before.size)
        pools.append(pool)
    result: list[float] = []
    for pool in pools:
        result += [pool.mean] * pool.size
    return result


@define(eq=False)
class _Pool:
    """Neighbouring numbers that all get their mean, as they were in the wrong order.

    Attributes:
        total: their weighted sum.
        weight: their weights together.
        size: how many they are.
    """

    total: float
    weight: float
    size: int

    @property
    def mean(self) -> float:
        """Return their weighted mean."""
        return self.total / self.weight


def _set_ends(arrows: list[_Arrow]) -> None:
    """Set where arrows leave a node, and where they enter one: so that they do not cross on their way to the next slot.

    Args:
        arrows: of a graph, whose slots are placed.
    """
    leaving: dict[int, list[_Arrow]] = {}
    entering: dict[int, list[_Arrow]] = {}
    for arrow in arrows:
        leaving.setdefault(arrow.flow.start, []).append(arrow)
        entering.setdefault(arrow.flow.end, []).append(arrow)
    for arrows_of_node in leaving.values():
        arrows_of_node.sort(key=lambda arrow: arrow.slots[1].middle)
        for arrow, port in zip(arrows_of_node, _ports(arrows_of_node[0].start, len(arrows_of_node))):
            arrow.leaving = port
    for arrows_of_node in entering.values():
        arrows_of_node.sort(key=lambda arrow: arrow.slots[-2].middle)
        for arrow, port in zip(arrows_of_node, _ports(arrows_of_node[0].end, len(arrows_of_node))):
            arrow.entering = port


def _ports(node: Box, count: int) -> list[float]:
    """Return where a number of arrows meet a node: spread over its width."""
    return [node.x + node.width * rank / (count + 1) for rank in range(1, count + 1)]


def _set_rows_of_labels(arrows: list[_Arrow]) -> None:
    """Set the rows of labels that are in the space below the layer that their arrows leave.

    Args:
        arrows: of a graph, with their ends.
    """
    by_layer: dict[int, list[_Arrow]] = {}
    for arrow in arrows:
        if arrow.label and arrow.slot_of_label is None:
            by_layer.setdefault(arrow.first_layer, []).append(arrow)
    for arrows_of_layer in by_layer.values():
        for arrow, row in zip(arrows_of_layer, _rows_of_labels(arrows_of_layer)):
            arrow.row_of_label = row


def _rows_of_labels(arrows: list[_Arrow]) -> list[_RowOfLabel | None]:
    """Return the row of the label of each arrow that leaves a layer; `None` for one that has no room.

    Where a slanting arrow is beside a row depends on the height of the space, and this on the number of rows. So a
    first try, as if all arrows went straight down, says how many rows there are.
    """
    if_straight = _first_free_rows(arrows, [arrow.leaving for arrow in arrows], _SPACE_BELOW_LAYER)
    row_count = max(row.number for row in if_straight if row is not None) + 1  # the first label has a row at least
    rows = _first_free_rows(arrows, [arrow.entering for arrow in arrows], _space_for_rows(row_count))
    # Where arrows run together, there may be less room than where they leave. The rows of slanting arrows count if they
    # are as few as was expected, or two instead of one.
    most = max(row_count, 2)
    if all(row is not None and row.number < most for row in rows):
        return rows
    return if_straight


def _first_free_rows(arrows: list[_Arrow], entering: list[float], height: float) -> list[_RowOfLabel | None]:
    """Return for the label of each arrow the first row in which it does not touch the one before; `None` for none.

    Args:
        arrows: those with a label that leave a layer.
        entering: where each enters the next layer, across.
        height: of the space between the two.
    """
    rows: list[_RowOfLabel | None] = [None] * len(arrows)
    free_from = [-inf] * _MOST_ROWS
    """Where the free part of each row begins: labels are placed from left to right."""
    from_left = sorted(range(len(arrows)), key=lambda number: arrows[number].leaving + entering[number])
    for number in from_left:
        arrow = arrows[number]
        for row in range(_MOST_ROWS):
            # How far down the middle of the row is, from 0 to 1: for the last rows there may be no height yet.
            share = min((row + 0.5) * _ROW / height, 1.0)
            left = arrow.leaving + (entering[number] - arrow.leaving) * share + BESIDE_ARROW
            if free_from[row] <= left:
                rows[number] = _RowOfLabel(row, left)
                free_from[row] = left + width_of(arrow.label) + _BETWEEN_LABELS
                break
    return rows


def _space_for_rows(count: int) -> float:
    """Return the height of the space below a layer with some rows of labels."""
    return max(_SPACE_BELOW_LAYER, count * _ROW + _SPACE_BESIDE_ROWS)


def _place_down(layers: list[_Layer], arrows: list[_Arrow]) -> None:
    """Place layers, and the boxes of their nodes, below each other, with space for rows of labels between them.

    Args:
        layers: from the top.
        arrows: with their labels.
    """
    row_counts = [0] * len(layers)
    for arrow in arrows:
        if arrow.row_of_label is not None:
            layer_above = arrow.first_layer
            row_counts[layer_above] = max(row_counts[layer_above], arrow.row_of_label.number + 1)
    y = 0.0
    for layer, row_count in zip(layers, row_counts):
        boxes = [slot.box for slot in layer.slots if slot.box is not None]
        for box in boxes:
            box.y = y
        layer.top = y
        layer.bottom = y + max((box.height for box in boxes), default=0.0)
        y = layer.bottom + _space_for_rows(row_count)


def _line_of(arrow: _Arrow, layers: list[_Layer]) -> Line:
    """Return an arrow as a line, with its label; without it, if there is no room for it.

    Args:
        arrow: the arrow, between nodes in their places.
        layers: of the graph, in their places.
    """
    # Straight down to the lower edge of its layer, and straight through each that it passes.
    points = [(arrow.leaving, arrow.start.bottom), (arrow.leaving, layers[arrow.first_layer].bottom)]
    for slot in arrow.passed:
        layer = layers[slot.layer]
        points += [(slot.middle, layer.top), (slot.middle, layer.bottom)]
    points.append((arrow.entering, arrow.end.y))
    line = Line(arrow.flow.start, arrow.flow.end, _without_straight(points))
    place = _place_of_label(arrow, layers)
    if place is not None:
        line.label = arrow.label
        line.at = place
    return line


def _place_of_label(arrow: _Arrow, layers: list[_Layer]) -> Point | None:
    """Return the left end of the base line of an arrow's label; `None` if it has none, or there is no room for it.

    Args:
        arrow: the arrow.
        layers: of the graph, in their places.
    """
    slot = arrow.slot_of_label
    if slot is not None:
        layer = layers[slot.layer]
        # Beside the middle of the layer: half of the letters' height, SMALL - 2, is above.
        return slot.middle + BESIDE_ARROW, (layer.top + layer.bottom + SMALL) / 2 - 1
    row = arrow.row_of_label
    if row is not None:
        next_row = layers[arrow.first_layer].bottom + (row.number + 1) * _ROW
        return row.left, next_row - 1
    return None


def _without_straight(points: list[Point]) -> list[Point]:
    """Return a line without points that are on a vertical part of it anyway."""
    bends = points[:1]
    for point, after in pairwise(points[1:]):
        x_before, _ = bends[-1]
        x, _ = point
        x_after, _ = after
        if not x_before == x == x_after:
            bends.append(point)
    return [*bends, points[-1]]
