"""Layout of drawings: chains in columns, and graphs in layers from their inputs down to their outputs, in time
proportional to their size. Pages have these positions too, and make room around a container that opens (web/page.js).

A long graph is laid out in parts, from cut to cut, which are put into columns: a cut is a layer of one node that all
flow passes through. There are as many columns as show the picture largest. A group is a box, or several that stay
together in a column, and an arrow leads to its first box from a box of an earlier group.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, chain, pairwise
from math import fsum, inf, sqrt

from attrs import field

from ...data import define
from ...nn.blocks import Block, Flow, carried_text
from ...tools.view import is_branching, ranks_of
from .boxes import (
    BELOW_BASE_LINE,
    BESIDE_ARROW,
    GAP,
    PAD,
    SCREEN,
    Box,
    Line,
    Point,
    box_of,
    corners_of,
    label_with_shape,
    scale_on_screen,
    width_of,
)
from .layers import lay_out_in_layers

_BROAD = 1200.0
"""Width from which on blocks without flows stand in several rows, in pixels."""
_FOLLOWING = ("norm", "activation")
"""Categories of layers that stand in the column of the layer before them."""
_MOST_TOGETHER = 4
"""Maximum number of blocks that stay in one column for this reason."""


def lay_out(blocks: list[Block]) -> Box:
    """Compute the position of every block.

    Args:
        blocks: all of them, each before those inside it; the first has all the others in it.

    Returns:
        The box of the first block, with the boxes of the others in it.
    """
    boxes: dict[int, Box] = {}
    arrange = {"chain": _lay_out_chain, "side": _lay_out_side_by_side, "graph": lay_out_graph}
    for block in reversed(blocks):  # inner blocks first: a box gets its size from its content
        box = box_of(block, [boxes[id(inner)] for inner in block.inside])
        boxes[id(block)] = box
        if box.inside:
            arrange[block.kind](box)
    root = boxes[id(blocks[0])]
    root.move(PAD, PAD)
    # Until here, positions are relative to the box around. A box has its own before what is inside it is moved.
    stack = [root]
    while stack:
        box = stack.pop()
        box.move_content(box.x, box.y)
        stack += box.inside
    return root


def scale_of(root: Box) -> float:
    """Return the scale at which a picture fits on one screen, with as much space behind its box as before it."""
    return scale_on_screen(root.width + 2 * root.x, root.height + 2 * root.y)


def _lay_out_chain(box: Box) -> None:
    """Stack blocks, each with an arrow to the next; in columns if they would be too tall."""
    groups = [Group([0])]
    together = 1  # the number of blocks up to here that stay in one column
    for number, inner in enumerate(box.inside[1:], 1):
        is_following = inner.block.category in _FOLLOWING and not inner.inside
        stays = is_following and together < _MOST_TOGETHER
        together = together + 1 if stays else 1
        groups.append(Group.below(box, number - 1, [number], stays=stays))
    place_groups(box, groups)


def _lay_out_side_by_side(box: Box) -> None:
    """Arrange blocks side by side, in rows if they would be too wide."""
    area = fsum((block.width + GAP) * (block.height + GAP) for block in box.inside)
    # Of this width, their area has the shape of the screen.
    screen_width, screen_height = SCREEN
    widest = max(_BROAD, sqrt(area * screen_width / screen_height))
    x = 0.0
    y = 0.0
    row_height = 0.0
    width = 0.0
    for block in box.inside:
        if x and x + block.width > widest:
            x = 0.0
            y = y + row_height + GAP
            row_height = 0.0
        block.x = x
        block.y = y
        x = x + block.width + GAP
        row_height = max(row_height, block.height)
        width = max(width, x - GAP)
    box.enclose_content(width, y + row_height)


# Graphs

_LONGEST = 6
"""Maximum layers that an arrow to an end of a graph passes."""
_FEWEST_CUTS = 3
"""Least number of cuts of a graph that is laid out in parts: an only input and an only output are two."""
_WITH_BRANCHES = 1.6
"""Width of a column relative to the mean node: branches make it somewhat wider."""


def lay_out_graph(box: Box) -> None:
    """Place the boxes in the box of a graph, from its inputs down to its outputs; it gets arrows, and its size."""
    flows = _without_long_arrows(box)
    if is_branching(box.block):  # branches stay in their order, side by side
        _lay_out_whole(box, flows, keep_order=True)
        return
    layers = _Layers.of(len(box.inside), flows)
    if len(layers.cuts) < _FEWEST_CUTS:
        _lay_out_whole(box, flows, keep_order=False)
    else:
        place_groups(box, _groups_of_parts(box, layers))


def _lay_out_whole(box: Box, flows: list[Flow], *, keep_order: bool) -> None:
    """Lay a graph out in one piece.

    Args:
        box: of the graph.
        flows: between the boxes in it.
        keep_order: whether the nodes of a layer stay in their order.
    """
    box.lines = lay_out_in_layers(box, list(range(len(box.inside))), flows, keep_order=keep_order)
    corners = corners_of(box.inside, box.lines)
    box.enclose_content(max(x for x, _ in corners), max(y for _, y in corners))


def _without_long_arrows(box: Box) -> list[Flow]:
    """Return the flows of a graph, of which none from an input or to an output is very long, if that has others.

    Inputs and outputs of a graph, its ends, are boxes in it. A very long arrow becomes a short one, from or to a copy
    of the end next to the other box.

    Args:
        box: of the graph, which gets the boxes of the copies.
    """
    flows = box.block.flows
    layers = ranks_of(len(box.inside), flows)
    arrow_counts = Counter(number for flow in flows for number in (flow.start, flow.end))
    shortened: list[Flow] = []
    for flow in flows:
        end = _end_of(box, flow)
        is_long = layers[flow.end] - layers[flow.start] > _LONGEST
        if not is_long or end is None or arrow_counts[end] == 1:  # the last arrow of an end stays
            shortened.append(flow)
            continue
        arrow_counts[end] -= 1
        copy = _add_copy_of_end(box, end, flow.label)  # which has the label in its text
        shortened.append(Flow(copy, flow.end) if end == flow.start else Flow(flow.start, copy))
    return shortened


def _end_of(box: Box, flow: Flow) -> int | None:
    """Return the number of the input or output of a graph that a flow leads from or to; `None` for both or neither."""
    is_from_input = box.inside[flow.start].block.kind == "end"
    is_to_output = box.inside[flow.end].block.kind == "end"
    if is_from_input == is_to_output:
        return None
    return flow.start if is_from_input else flow.end


def _add_copy_of_end(box: Box, end: int, label: str) -> int:
    """Add a copy of an input or output to a graph, for one arrow; return its number.

    Args:
        box: of the graph.
        end: the number of the original.
        label: of the flow, which the copy has instead of its arrow.
    """
    without_shape = ()
    carried = carried_text(label, without_shape)
    lines = [f"{line} {carried}".strip() for line in box.inside[end].block.lines[:1]]
    box.inside.append(box_of(Block(name="", title="", kind="end", lines=lines), inside=[]))
    return len(box.inside) - 1


@define(frozen=True)
class _Layers:
    """The layers of a graph, from 0 at the top.

    Attributes:
        nodes: the numbers of the nodes in each.
        leaving: the flows that leave each.
        cuts: the layers of one node that all flow passes through.
    """

    nodes: list[list[int]]
    leaving: list[list[Flow]]
    cuts: list[int]

    @classmethod
    def of(cls, node_count: int, flows: list[Flow]) -> _Layers:
        """Return the layers of a graph."""
        layer_of_node = ranks_of(node_count, flows)
        layer_count = max(layer_of_node) + 1
        nodes: list[list[int]] = [[] for _ in range(layer_count)]
        for node, layer in enumerate(layer_of_node):
            nodes[layer].append(node)
        leaving: list[list[Flow]] = [[] for _ in range(layer_count)]
        # How many more flows pass beside the nodes of a layer than beside those of the layer before: a flow passes the
        # layers from the one after its start to the one before its end.
        changes = [0] * (layer_count + 1)
        for flow in flows:
            start = layer_of_node[flow.start]
            end = max(layer_of_node[flow.end], start + 1)  # a flow back passes none
            leaving[start].append(flow)
            changes[start + 1] += 1
            changes[end] -= 1
        cuts = []
        for layer, flows_beside in enumerate(accumulate(changes[:-1])):
            if flows_beside == 0 and len(nodes[layer]) == 1:
                cuts.append(layer)
        return cls(nodes, leaving, cuts)

    def node_of_cut(self, cut: int) -> int:
        """Return the number of the only node of a layer."""
        (node,) = self.nodes[cut]
        return node

    def nodes_from(self, first: int, end: int) -> list[int]:
        """Return the nodes of the layers from the first to the one before the end."""
        return list(chain.from_iterable(self.nodes[first:end]))

    def flows_from(self, first: int, end: int) -> list[Flow]:
        """Return the flows that leave the layers from the first to the one before the end."""
        return list(chain.from_iterable(self.leaving[first:end]))


def _groups_of_parts(box: Box, layers: _Layers) -> list[Group]:
    """Return the groups of a graph: each begins at a cut, after a single arrow, or where a column would be full.

    Args:
        box: of the graph; its boxes are placed relative to those of their group.
        layers: of the graph, one cut at least.
    """
    height_of_column = _height_that_fills_screen(box, layers)  # before layers are laid out, which widens boxes
    groups = [_group_of_first_cut(box, layers)]
    # The last part ends behind all layers, and not at a cut.
    for cut, next_cut in pairwise([*layers.cuts, len(layers.nodes)]):
        node = layers.node_of_cut(cut)  # which is in the last group so far
        nodes_below = layers.nodes_from(cut + 1, next_cut + 1)  # up to that of the next cut, with it
        flows = layers.flows_from(cut, next_cut)
        if not nodes_below:  # the graph ends with this cut
            continue
        is_single_arrow = len(nodes_below) == 1 and len(flows) == 1
        if is_single_arrow:
            groups.append(Group.below(box, node, nodes_below, flows[0].label))
            continue
        is_column_full = box.inside[node].y > height_of_column
        if is_column_full:
            # The arrow to a group is a single one: it leads to a copy of the node, and the branches leave this.
            copy = _add_copy_of_node(box, node)
            groups.append(Group.below(box, node, [copy]))
            flows = [Flow(copy, flow.end, flow.label) if flow.start == node else flow for flow in flows]
            node = copy
        _add_to_group(groups[-1], box, node, nodes_below, flows)
    return groups


def _group_of_first_cut(box: Box, layers: _Layers) -> Group:
    """Return the group of the node of the first cut: all that is above it is laid out together with it, however high.

    Args:
        box: of the graph.
        layers: of the graph, one cut at least.
    """
    first_cut = layers.cuts[0]
    node = layers.node_of_cut(first_cut)
    group = Group([node])
    nodes_above = layers.nodes_from(0, first_cut)
    if nodes_above:
        _add_to_group(group, box, node, nodes_above, layers.flows_from(0, first_cut))
    return group


def _height_that_fills_screen(box: Box, layers: _Layers) -> float:
    """Return the height of columns with which those of a graph have the shape of the screen."""
    height_of_all = 0.0
    for nodes in layers.nodes:
        height_of_all += max((box.inside[number].height for number in nodes), default=0) + GAP
    width = _WITH_BRANCHES * fsum(node.width for node in box.inside) / len(box.inside) + MARGINS
    # `height_of_all / height` columns have the width `width * height_of_all / height`, and this is to be
    # `height * screen_width / screen_height`.
    screen_width, screen_height = SCREEN
    return max(TALL, sqrt(height_of_all * width * screen_height / screen_width))


def _add_copy_of_node(box: Box, node: int) -> int:
    """Add a box to a graph that names a node of it once more; return its number."""
    original = box.inside[node].block
    box.inside.append(box_of(Block(original.name, original.title, mark="again"), inside=[]))
    return len(box.inside) - 1


def _add_to_group(group: Group, box: Box, node: int, added: list[int], flows: list[Flow]) -> None:
    """Lay nodes out together with one of a group, and add them to the group; the one stays where it is.

    Args:
        group: the group.
        box: of the graph.
        node: number of the node in the group that flows lead from, or to.
        added: numbers of the other nodes.
        flows: between all of these.
    """
    in_group = box.inside[node]
    x_before = in_group.x
    y_before = in_group.y
    part = Group([node, *added], lay_out_in_layers(box, [node, *added], flows))
    part.move(box, x_before - in_group.x, y_before - in_group.y)
    group.members += added
    group.lines += part.lines


# Columns

TALL = 900.0
"""Height in pixels from which on groups may be in several columns."""
_NUMBERS_OF_COLUMNS = (2, 3, 4, 5, 6, 7, 8, 11, 15, 20, 26, 34)
"""The numbers that are tried; in larger steps in the end, as each trial stacks all groups."""
_WORTH_A_COLUMN = 1.12
"""How much larger a picture with more columns has to be: one more column has to be worth its arrow."""
_FILLING = 1.04
"""Height of a column relative to what fills it: columns are never full to the last pixel."""
MARGINS = 60
"""Pixels of a picture besides its columns."""
_BEHIND_LABEL = 2
"""Pixels behind the label of an arrow to a group."""


@define(eq=False)
class Group:
    """Boxes that stay together in a column, with the arrows between them.

    Attributes:
        members: numbers of the boxes in the box around them; the arrow from an earlier group leads to the first.
        lines: the arrows between members. Boxes and arrows are placed relative to each other.
        arrow_from: number of the box that the arrow to the group comes from; `None` for the first group.
        label: of that arrow.
        stays: whether it stays in the column of the group before, as a normalization does below its convolution.
    """

    members: list[int]
    lines: list[Line] = field(factory=list)
    arrow_from: int | None = None
    label: str = ""
    stays: bool = False

    @classmethod
    def below(cls, box: Box, above: int, members: list[int], label: str = "", *, stays: bool = False) -> Group:
        """Return a group to which an arrow leads.

        Args:
            box: that contains both.
            above: number of the box that the arrow comes from.
            members: of the group.
            label: of the flow that the arrow shows.
            stays: whether the group stays in the column of the group before.
        """
        return cls(members, arrow_from=above, label=label_with_shape(label, box.inside[above]), stays=stays)

    def move(self, box: Box, dx: float, dy: float) -> None:
        """Move the members, which are inside `box`, and the arrows between them."""
        for number in self.members:
            box.inside[number].move(dx, dy)
        for line in self.lines:
            line.move(dx, dy)


@define(frozen=True)
class _Extent:
    """The space that a group needs, with the label of the arrow to it.

    Attributes:
        left: its left edge, where its boxes are now.
        top: its upper edge, likewise.
        width: from the left edge.
        height: from the upper edge.
        port: where the arrow to the group enters it, from the left edge.
        stays: see `Group`.
    """

    left: float
    top: float
    width: float
    height: float
    port: float
    stays: bool


@define(frozen=True)
class _Columns:
    """Where the groups of a box are, in columns.

    Attributes:
        places: left edge and top of each group.
        left_edges: of each column, by the number of its first group.
        width: of all.
        height: of all.
    """

    places: list[Point]
    left_edges: dict[int, float]
    width: float
    height: float


def place_groups(box: Box, groups: list[Group]) -> None:
    """Put the groups of a box into columns, with the arrows to them, and let the box enclose them.

    Args:
        box: whose boxes are all members of groups; gets its arrows, its columns and its size.
        groups: in order.
    """
    extents = [_extent_of(group, box) for group in groups]
    columns = _best_columns(extents)
    for group, extent, (x, y) in zip(groups, extents, columns.places):
        group.move(box, x - extent.left, y - extent.top)
        box.lines += group.lines
    # Arrows between groups need all boxes in their places.
    for number, group in enumerate(groups):
        if group.arrow_from is not None:
            left_of_new_column = columns.left_edges.get(number)
            box.lines.append(_arrow_to(group, box, group.arrow_from, left_of_new_column))
    _, *left_edges = columns.left_edges.values()
    box.columns = [left - GAP / 2 for left in left_edges]
    box.enclose_content(columns.width, columns.height)


def _extent_of(group: Group, box: Box) -> _Extent:
    """Return the space that a group of a box needs, by where its boxes and arrows are now."""
    members = [box.inside[number] for number in group.members]
    corners = corners_of(members, group.lines)
    left = min(x for x, _ in corners)
    top = min(y for _, y in corners)
    port = members[0].middle - left
    # The label of the arrow from above begins beside the arrow.
    right_of_label = port + (BESIDE_ARROW + _BEHIND_LABEL) + width_of(group.label)
    width = max(max(x for x, _ in corners) - left, right_of_label)
    height = max(y for _, y in corners) - top
    return _Extent(left, top, width, height, port, group.stays)


def _best_columns(groups: list[_Extent]) -> _Columns:
    """Arrange groups in the number of columns that shows them largest; in one if they are not tall."""
    best = _packed(groups, inf)
    height_of_all = fsum(group.height + GAP for group in groups) - GAP
    if height_of_all < TALL:
        return best
    best_scale = _scale(best)
    tallest = max(group.height for group in groups)
    for count in _NUMBERS_OF_COLUMNS:
        columns = _packed(groups, max(height_of_all / count * _FILLING, tallest))
        scale = _scale(columns)
        if scale > best_scale * _WORTH_A_COLUMN:
            best_scale = scale
            best = columns
        if len(columns.left_edges) < count - 1:
            break  # groups that stay together do not fill as many: more would be no others
    return best


def _scale(columns: _Columns) -> float:
    """Return the scale at which a picture of columns fits on one screen."""
    return scale_on_screen(columns.width + MARGINS, columns.height + MARGINS)


def _packed(groups: list[_Extent], limit: float) -> _Columns:
    """Return where groups are that are stacked in columns, side by side.

    Args:
        groups: in order.
        limit: height beyond which a column gets no more groups, except those that stay with the one before.
    """
    columns = _stacked(groups, limit)
    # Arrows between columns run above and below them, and need some space there.
    space_for_arrows = GAP / 2 if len(columns) > 1 else 0.0
    between_columns = 2 * GAP
    places: list[Point] = []
    left_edges: dict[int, float] = {}
    left = 0.0
    for column in columns:
        number_of_first_group = len(places)
        left_edges[number_of_first_group] = left
        # The ports of a column, where arrows enter its groups, are below each other: so these arrows are in one line.
        left_of_ports = max(group.port for group, _ in column)
        right_of_ports = max(group.width - group.port for group, _ in column)
        for group, top in column:
            places.append((left + left_of_ports - group.port, top + space_for_arrows))
        left += left_of_ports + right_of_ports + between_columns
    lowest = max(top + group.height for column in columns for group, top in column)
    return _Columns(places, left_edges, width=left - between_columns, height=lowest + 2 * space_for_arrows)


def _stacked(groups: list[_Extent], limit: float) -> list[list[tuple[_Extent, float]]]:
    """Return the columns of groups that are stacked, of each its groups with their tops.

    Args:
        groups: in order.
        limit: height beyond which a column gets no more groups, except those that stay in the column of the one before.
    """
    first, *others = groups
    columns = [[(first, 0.0)]]
    bottom = first.height
    _, *heights_together = _heights_together(groups)
    for group, height_together in zip(others, heights_together):
        if group.stays or bottom + GAP + height_together <= limit:
            top = bottom + GAP
        else:
            top = 0.0
            columns.append([])
        columns[-1].append((group, top))
        bottom = top + group.height
    return columns


def _heights_together(groups: list[_Extent]) -> list[float]:
    """Return for each group its height with the groups after it that stay in its column."""
    heights = [group.height for group in groups]
    # From the last on: the height of a group that stays has those after it in it already.
    for number in range(len(groups) - 1, 0, -1):
        if groups[number].stays:
            heights[number - 1] += GAP + heights[number]
    return heights


def _arrow_to(group: Group, box: Box, above: int, left_of_new_column: float | None) -> Line:
    """Return the arrow to the first box of a group from a box above, or at the end of the column before.

    Args:
        group: the group.
        box: that contains both.
        above: number of the box that the arrow comes from.
        left_of_new_column: the left edge of the column that the group begins; `None` if it is below another group.
    """
    first = group.members[0]
    start = box.inside[above].foot
    end = box.inside[first].head
    if left_of_new_column is None:
        points = _way_down(start, end)
    else:
        points = _way_to_next_column(start, end, left_of_new_column)
    _, start_y = start
    end_x, end_y = end
    beside_middle = (start_y + end_y) / 2 + 4  # the base line of letters that reach from 11 pixels above it to 3 below
    just_above_box = end_y - (BELOW_BASE_LINE + 1)
    is_straight = len(points) == 2
    base_line = beside_middle if is_straight else just_above_box
    return Line(above, first, points, group.label, at=(end_x + BESIDE_ARROW, base_line))


def _way_down(start: Point, end: Point) -> list[Point]:
    """Return an arrow from a box down to the one below, with bends in the middle if it is not right below."""
    start_x, start_y = start
    end_x, end_y = end
    if abs(start_x - end_x) <= 1:  # a bend of a pixel would not be seen as one
        return [start, end]
    middle = (start_y + end_y) / 2
    return [start, (start_x, middle), (end_x, middle), end]


def _way_to_next_column(start: Point, end: Point, left_of_column: float) -> list[Point]:
    """Return an arrow from the bottom of a column up to the top of the next one, in the middle of the space between."""
    start_x, start_y = start
    end_x, end_y = end
    below = start_y + GAP / 3
    side = left_of_column - GAP  # columns are two gaps apart
    above = end_y - GAP / 3
    return [start, (start_x, below), (side, below), (side, above), (end_x, above), end]
