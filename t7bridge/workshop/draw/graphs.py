"""Layout of graphs in layers; of long ones in parts, from cut to cut, which are put into columns. A cut is a layer of
one node that all flow passes through.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, chain, pairwise
from math import fsum, sqrt

from ...data import define
from ...nn.blocks import Block, Flow, carried_text
from ...tools.view import is_branching, ranks_of
from .boxes import GAP, SCREEN, Box, box_of, corners_of
from .columns import MARGINS, TALL, Group, place_groups
from .layers import lay_out_in_layers

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
    """Return the flows of a graph: instead of a very long arrow, there is one from a copy of the input, or to one.

    Inputs and outputs of a graph are boxes in it, its ends.

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
        copy = _add_copy_of_end(box, end, flow.label)
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
        node = layers.node_of_cut(cut)
        nodes = layers.nodes_from(cut + 1, next_cut + 1)
        flows = layers.flows_from(cut, next_cut)
        is_single_arrow = len(nodes) == 1 and len(flows) == 1
        if is_single_arrow:
            groups.append(Group.below(box, node, nodes, flows[0].label))
        elif nodes:
            if box.inside[node].y > height_of_column:
                # The arrow to a group is a single one: it leads to a copy of the node, and the branches leave this.
                copy = _add_copy_of_node(box, node)
                groups.append(Group.below(box, node, [copy]))
                flows = [Flow(copy, flow.end, flow.label) if flow.start == node else flow for flow in flows]
                node = copy
            _add_to_group(groups[-1], box, node, nodes, flows)
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
