"""Layout of still pictures: chains in columns, and graphs in layers from their inputs down to their outputs, in time
proportional to their size.

Layers by longest path, order by the barycenters of neighbours, and positions by isotonic regression: in each layer the
order is kept and the squared distance from the neighbours is minimal.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise
from math import ceil, inf, sqrt

from attrs import field

from ...data import define
from .blocks import Block, Flow, carried_text
from .view import is_branching, ranks_of

Point = tuple[float, float]
Lines = list[tuple[list[Point], str]]
"""Arrows: points, and a label."""

TITLE, SMALL = 13, 11
"""Text sizes, in pixels."""
CHAR = 0.6
"""Width of a character, as a fraction of the text size. Few fonts have wider ones."""
LINE = 16
"""Line height."""
_PAD, _GAP, _PORT = 10, 30, 24
_COLUMN = 900.0
"""Maximum height of a chain in one column, in pixels."""
SCREEN = (1880.0, 960.0)
"""Intended width and height of pictures, in pixels."""
_LONGEST, _MOST_COLUMNS = 6, 40
"""Maximum layers that an arrow to an end of a graph passes; maximum number of columns."""
_LABELLED = 600
"""Maximum number of labelled arrows of a graph; more would only hide each other."""
_SWEEPS = 6
"""Iterations to improve order and positions within the layers."""
_MAX_BENDS = 30_000
"""Maximum bends of edges that pass through layers; beyond, edges are straight."""
_BEND_WIDTH = 8.0


@define(eq=False)
class Box:
    """A block with its position.

    Attributes:
        block: the block.
        x: left edge, in pixels from the picture's.
        y: upper edge.
        width: in pixels.
        height: in pixels.
        header: height of the text.
        inside: the boxes of the blocks inside.
        lines: arrows between these.
    """

    block: Block
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    header: float = 0.0
    inside: list[Box] = field(factory=list)
    lines: Lines = field(factory=list)

    @property
    def middle(self) -> float:
        """Centre across."""
        return self.x + self.width / 2

    @property
    def foot(self) -> Point:
        """Where arrows leave."""
        return self.middle, self.y + self.height

    def move(self, dx: float, dy: float) -> None:
        """Move the box, without its content."""
        self.x, self.y = self.x + dx, self.y + dy


def texts_of(block: Block) -> list[tuple[str, int]]:
    """Return the lines of text in a block, with their sizes in pixels."""
    head = ": ".join(filter(None, (block.name, block.title)))
    head += f"  ×{block.repeat}" if block.repeat > 1 else ""
    lines = [line for line in block.lines if not line.endswith(" elements")]
    lines += [f"{block.parameters:,} parameters"] if block.parameters else []
    return [(text, size) for text, size in [(head.strip(), TITLE), *((line, SMALL) for line in lines)] if text]


def lay_out(blocks: list[Block]) -> Box:
    """Compute the position of every block.

    Args:
        blocks: all of them, each before those inside it.
    """
    boxes: dict[int, Box] = {}
    for block in reversed(blocks):  # inner blocks first
        box = boxes[id(block)] = _box(block, [boxes[id(each)] for each in block.inside])
        if box.inside:
            {"chain": _chain, "side": _side, "graph": _graph}[block.kind](box)
    root = boxes[id(blocks[0])]
    root.x = root.y = _PAD
    stack = [root]
    while stack:  # relative positions become absolute
        box = stack.pop()
        _move_content(box, box.x, box.y)
        stack += box.inside
    return root


def _box(block: Block, inside: list[Box]) -> Box:
    """Return a box of the size of its text."""
    texts = texts_of(block)
    height = len(texts) * LINE + _PAD
    width = max((len(text) * size * CHAR for text, size in texts), default=0) + 2 * _PAD
    return Box(block, width=width, height=height, header=height, inside=inside)


def _moved(lines: Lines, dx: float, dy: float) -> Lines:
    return [([(x + dx, y + dy) for x, y in points], label) for points, label in lines]


def _move_content(box: Box, dx: float, dy: float) -> None:
    for each in box.inside:
        each.move(dx, dy)
    box.lines = _moved(box.lines, dx, dy)


def readable(root: Box) -> float:
    """Return the scale at which a picture fits on one screen."""
    return _scale(root.width + 2 * root.x, root.height + 2 * root.y)


def _scale(width: float, height: float) -> float:
    return min(SCREEN[0] / width, SCREEN[1] / height, 1.0)


def _around(box: Box, width: float, height: float) -> None:
    """Let a box enclose its content, which is centred in it."""
    spare = max(box.width - width - 2 * _PAD, 0) / 2
    _move_content(box, _PAD + spare, box.header)
    box.width = max(box.width, width + 2 * _PAD)
    box.height = box.header + height + _PAD


@define(eq=False)
class _Group:
    """Boxes that stay together in a column, with the arrows between them.

    Attributes:
        members: numbers of the boxes, the uppermost first.
        lines: the arrows.
        above: the box of another group from which an arrow leads to the first.
        label: of that arrow.
        width: of its content.
        height: of its content.
        port: where the arrow enters it from above, from its left edge.
    """

    members: list[int]
    lines: Lines = field(factory=list)
    above: int = -1
    label: str = ""
    width: float = 0.0
    height: float = 0.0
    port: float = 0.0

    def measure(self, box: Box) -> Point:
        """Determine the extent of the content; return its upper left corner."""
        boxes = [box.inside[number] for number in self.members]
        points = [point for line, _ in self.lines for point in line]
        xs = [x for each in boxes for x in (each.x, each.x + each.width)] + [x for x, _ in points]
        ys = [y for each in boxes for y in (each.y, each.y + each.height)] + [y for _, y in points]
        self.width, self.height, self.port = max(xs) - min(xs), max(ys) - min(ys), boxes[0].middle - min(xs)
        return min(xs), min(ys)


@define(frozen=True)
class _Columns:
    """Left edge and top of each group, left edge of the column by the number of its first group, the total extent."""

    places: list[Point]
    starts: dict[int, float]
    width: float
    height: float


def _columns(groups: list[_Group]) -> _Columns:
    """Arrange groups in the number of columns that shows them largest."""
    total = sum(group.height + _GAP for group in groups) - _GAP
    tallest = max(group.height for group in groups)
    best, found = 0.0, _packed(groups, inf)
    count = 1
    while count <= _MOST_COLUMNS and total >= _COLUMN:
        packed = _packed(groups, inf if count == 1 else max(total / count * 1.04, tallest))
        scale = _scale(packed.width + 60, packed.height + 60)
        if scale > best * 1.12:
            best, found = scale, packed
        if len(packed.starts) < count - 1:
            break
        count = count + 1 if count < 8 else ceil(count * 1.3)
    return found


def _packed(groups: list[_Group], limit: float) -> _Columns:
    """Stack groups in columns of a limited height."""
    columns: list[list[int]] = [[]]
    y = 0.0
    tops: list[float] = []
    for number, group in enumerate(groups):
        if number and y + _GAP + group.height > limit:
            columns.append([])
            y = 0.0
        elif number:
            y += _GAP
        columns[-1].append(number)
        tops.append(y)
        y += group.height
    x, lift = 0.0, _GAP / 2 if len(columns) > 1 else 0.0
    places: list[Point] = []
    starts: dict[int, float] = {}
    for column in columns:
        left = max(groups[number].port for number in column)
        places += [(x + left - groups[number].port, tops[number] + lift) for number in column]
        starts[column[0]] = x
        x += left + max(groups[number].width - groups[number].port for number in column) + 2 * _GAP
    lowest = max(top + group.height for top, group in zip(tops, groups))
    return _Columns(places, starts, x - 2 * _GAP, lowest + 2 * lift)


def _place_groups(box: Box, groups: list[_Group]) -> None:
    """Put the groups of a box into columns, with the arrows between them."""
    corners = [group.measure(box) for group in groups]
    found = _columns(groups)
    for group, (left, top), (x, y) in zip(groups, corners, found.places):
        for number in group.members:
            each = box.inside[number]
            each.x, each.y = each.x + x - left, each.y + y - top
        box.lines += _moved(group.lines, x - left, y - top)
    for number, group in enumerate(groups):
        if group.above < 0:
            continue
        last, each = box.inside[group.above], box.inside[group.members[0]]
        start, end = last.foot, (each.middle, each.y)
        if number in found.starts:  # from the bottom of a column to the top of the next
            foot, side, head = start[1] + _GAP / 3, found.starts[number] - _GAP, end[1] - _GAP / 3
            points = [start, (start[0], foot), (side, foot), (side, head), (end[0], head), end]
        elif abs(start[0] - end[0]) > 1:
            middle = (start[1] + end[1]) / 2
            points = [start, (start[0], middle), (end[0], middle), end]
        else:
            points = [start, end]
        box.lines.append((points, carried_text(group.label, last.block.shape)))
    _around(box, found.width, found.height)


def _chain(box: Box) -> None:
    """Stack blocks, each with an arrow to the next; in columns if they would be too tall."""
    _place_groups(box, [_Group([number], above=number - 1) for number in range(len(box.inside))])


def _side(box: Box) -> None:
    """Arrange blocks side by side."""
    x: float = -_GAP
    for each in box.inside:
        each.x = x + _GAP
        x = each.x + each.width
    _around(box, x, max(each.height for each in box.inside))


def _graph(box: Box) -> None:
    """Lay a graph out from input to output: branches side by side; others cut at nodes that all flow passes through.

    Branches between two such nodes are attached to the upper one; a new column may begin after a single arrow.
    """
    flows = _shortened(box, box.block.flows)
    branching = is_branching(box.block)
    levels, leaving, cuts = _levels(len(box.inside), flows)
    if not branching and len(cuts) >= 3:
        _place_groups(box, _groups(box, levels, leaving, cuts))
        return
    box.lines = _layered(box, list(range(len(box.inside))), flows, keep_order=branching)
    width = max(each.x + each.width for each in box.inside)
    reach = [x for points, _ in box.lines for x, _ in points]
    _around(box, max([width, *reach]), max(each.y + each.height for each in box.inside))


def _levels(count: int, flows: list[Flow]) -> tuple[list[list[int]], list[list[Flow]], list[int]]:
    """Return the nodes of each layer, the flows that leave it, and the layers of one node that all flow passes."""
    ranks = ranks_of(count, flows)
    levels = _by_level(ranks)
    leaving: list[list[Flow]] = [[] for _ in levels]
    passing = [0] * (len(levels) + 2)
    for flow in flows:
        low, high = ranks[flow.start], max(ranks[flow.end], ranks[flow.start] + 1)
        passing[low + 1] += 1
        passing[high] -= 1
        leaving[low].append(flow)
    beside = accumulate(passing)
    return levels, leaving, [rank for rank, level in enumerate(levels) if not next(beside) and len(level) == 1]


def _by_level(ranks: list[int]) -> list[list[int]]:
    levels: list[list[int]] = [[] for _ in range(max(ranks, default=0) + 1)]
    for node, rank in enumerate(ranks):
        levels[rank].append(node)
    return levels


def _groups(box: Box, levels: list[list[int]], leaving: list[list[Flow]], cuts: list[int]) -> list[_Group]:
    """Return the groups of a graph: each begins after a single arrow, or in a new column."""
    tall = sum(max((box.inside[number].height for number in level), default=0) + _GAP for level in levels)
    wide = 1.6 * sum(each.width for each in box.inside) / len(box.inside) + 60
    enough = max(_COLUMN, sqrt(tall * wide * SCREEN[1] / SCREEN[0]))
    groups: list[_Group] = []
    for before, rank in zip([-1, *cuts], [*cuts, len(levels)]):
        nodes = [number for level in levels[before + 1 : rank + 1] for number in level]
        flows = [flow for level in leaving[max(before, 0) : rank] for flow in level]
        if before < 0:  # what is above the first cut hangs below its node too
            groups.append(_Group([nodes.pop()]))
            if nodes:
                _attach(box, groups, groups[0].members[0], nodes, flows, inf)
        elif len(nodes) == len(flows) == 1 and rank < len(levels):
            groups.append(_Group(nodes, above=levels[before][0], label=flows[0].label))
            box.inside[nodes[0]].x = -box.inside[nodes[0]].width / 2
        elif nodes:
            _attach(box, groups, levels[before][0], nodes, flows, enough)
    return groups


def _shortened(box: Box, flows: list[Flow]) -> list[Flow]:
    """Return the flows; a distant end is named next to the node, instead of an arrow across the whole picture."""
    ranks = ranks_of(len(box.inside), flows)
    degree = Counter(number for flow in flows for number in (flow.start, flow.end))
    found: list[Flow] = []
    for flow in flows:
        ends = [box.inside[number].block.kind == "end" for number in (flow.start, flow.end)]
        end = flow.start if ends[0] else flow.end
        if ranks[flow.end] - ranks[flow.start] <= _LONGEST or ends[0] == ends[1] or degree[end] < 2:
            found.append(flow)
            continue
        degree[end] -= 1
        lines = [f"{line} {carried_text(flow.label, ())}".strip() for line in box.inside[end].block.lines[:1]]
        number = len(box.inside)
        box.inside.append(_box(Block("", "", "end", lines=lines), []))
        found.append(Flow(number, flow.end) if end == flow.start else Flow(flow.start, number))
    return found


def _attach(box: Box, groups: list[_Group], top: int, added: list[int], flows: list[Flow], enough: float) -> None:
    """Lay nodes out below one of the last group; in a new column, with the node repeated, if that is tall."""
    above = box.inside[top]
    if above.y > enough:
        number = len(box.inside)
        box.inside.append(_box(Block(above.block.name, above.block.title, mark="again"), []))
        groups.append(_Group([number], above=top))
        flows = [Flow(number, flow.end, flow.label) if flow.start == top else flow for flow in flows]
        top, above = number, box.inside[number]
        above.x = -above.width / 2
    x, y = above.x, above.y
    lines = _layered(box, [top, *added], flows)
    dx, dy = x - above.x, y - above.y
    for number in (top, *added):
        box.inside[number].move(dx, dy)
    groups[-1].members += added
    groups[-1].lines += _moved(lines, dx, dy)


def _layered(box: Box, members: list[int], flows: list[Flow], *, keep_order: bool = False) -> Lines:
    """Lay out a subset of the nodes of a graph in layers; return the arrows between them.

    Args:
        box: of the graph; its boxes get positions.
        members: numbers of the nodes.
        flows: the edges between them.
        keep_order: whether the nodes of a layer stay in their order.
    """
    for ends in (Counter(flow.start for flow in flows), Counter(flow.end for flow in flows)):
        for number, times in ends.items():
            box.inside[number].width = max(box.inside[number].width, (times + 1) * _PORT if times > 1 else 0)
    numbers = {number: place for place, number in enumerate(members)}
    nodes = [box.inside[number] for number in members]
    edges = [Flow(numbers[flow.start], numbers[flow.end]) for flow in flows]
    bends = _place(nodes, edges, keep_order=keep_order)
    leave = _ports(nodes, [(edge.start, edge.end) for edge in edges], [points[:1] for points in bends])
    enter = _ports(nodes, [(edge.end, edge.start) for edge in edges], [points[-1:] for points in bends])
    lines: Lines = []
    for number, (flow, edge) in enumerate(zip(flows, edges)):
        start, end = nodes[edge.start], nodes[edge.end]
        points = [(leave[number], start.y + start.height), *bends[number], (enter[number], end.y)]
        lines.append((points, carried_text(flow.label, start.block.shape) if len(flows) <= _LABELLED else ""))
    return lines


def _place(nodes: list[Box], edges: list[Flow], *, keep_order: bool) -> list[list[Point]]:
    """Compute a position for each node; return the bends of each edge around nodes."""
    levels = ranks_of(len(nodes), edges)
    links, passed = _with_bends(levels, edges)
    widths = [node.width for node in nodes] + [_BEND_WIDTH] * (len(levels) - len(nodes))
    layers = _by_level(levels)
    middle = _places(layers, links, widths, len(nodes), keep_order=keep_order)
    heights = [max((nodes[node].height for node in layer if node < len(nodes)), default=0.0) for layer in layers]
    tops = list(accumulate((height + 0.9 * _GAP for height in heights), initial=0.0))
    left = min((x - width / 2 for x, width in zip(middle, widths)), default=0.0)
    for number, node in enumerate(nodes):
        node.x, node.y = middle[number] - node.width / 2 - left, tops[levels[number]]
    return [
        [(middle[node] - left, tops[levels[node]] + below) for node in each for below in (0, heights[levels[node]])]
        for each in passed
    ]


def _ports(nodes: list[Box], flows: list[tuple[int, int]], bends: list[list[Point]]) -> list[float]:
    """Return the point where each arrow meets its node: spread over the width, in the order of the other ends.

    Args:
        nodes: the nodes, in their positions.
        flows: for each arrow the node that it meets, and the one at its other end.
        bends: its bend next to the node, if there is one.
    """
    at_node: dict[int, list[tuple[float, int]]] = {}
    for number, (own, other) in enumerate(flows):
        towards = bends[number][0][0] if bends[number] else nodes[other].middle
        at_node.setdefault(own, []).append((towards, number))
    ports = [0.0] * len(flows)
    for own, found in at_node.items():
        for rank, (_, number) in enumerate(sorted(found), 1):
            ports[number] = nodes[own].x + nodes[own].width * rank / (len(found) + 1)
    return ports


def _with_bends(levels: list[int], flows: list[Flow]) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Add a node for each bend of an edge in a layer that it passes.

    Args:
        levels: the layer of each node, extended by those of the bends.
        flows: the edges.

    Returns:
        The edges between all nodes, each from one layer to the next, and the bends of each flow.
    """
    links: list[tuple[int, int]] = []
    bends: list[list[int]] = []
    straight = sum(max(levels[flow.end] - levels[flow.start] - 1, 0) for flow in flows) > _MAX_BENDS
    for flow in flows:
        between = range(0) if straight else range(levels[flow.start] + 1, levels[flow.end])
        bends.append(list(range(len(levels), len(levels) + len(between))))
        levels += between
        links += pairwise([flow.start, *bends[-1], flow.end])
    return links, bends


def _places(
    layers: list[list[int]], links: list[tuple[int, int]], widths: list[float], count: int, *, keep_order: bool
) -> list[float]:
    """Return the centre of each node across its layer; those from number `count` on are bends."""
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for start, end in links:
        below[start].append(end)
        above[end].append(start)
    middle = [0.0] * len(widths)
    for layer in layers:
        _spread(layer, [0.0] * len(layer), [1.0] * len(layer), widths, middle)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            sides = [above[node] if down else below[node] for node in layer]
            wanted = [
                sum(middle[other] for other in side) / len(side) if side else middle[node]
                for node, side in zip(layer, sides)
            ]
            if sweep < _SWEEPS - 2 and not keep_order:  # then positions only, in a fixed order
                order = sorted(range(len(layer)), key=wanted.__getitem__)
                layer[:] = [layer[place] for place in order]
                wanted = [wanted[place] for place in order]
            weights = [4.0 if node >= count else 1.0 for node in layer]
            _spread(layer, wanted, weights, widths, middle)
    return middle


def _spread(
    layer: list[int], wanted: list[float], weights: list[float], widths: list[float], middle: list[float]
) -> None:
    """Move the nodes of a layer as near to their desired positions as order and widths allow."""
    offsets: list[float] = []
    at = 0.0
    for number, node in enumerate(layer):
        if number:
            at += (widths[layer[number - 1]] + widths[node]) / 2 + _GAP
        offsets.append(at)
    pools: list[tuple[float, float, int]] = []  # weighted sum, weight, nodes
    for target, weight, offset in zip(wanted, weights, offsets):
        total, mass, size = (target - offset) * weight, weight, 1
        while pools and pools[-1][0] / pools[-1][1] >= total / mass:
            before = pools.pop()
            total, mass, size = total + before[0], mass + before[1], size + before[2]
        pools.append((total, mass, size))
    number = 0
    for total, mass, size in pools:
        for _ in range(size):
            middle[layer[number]] = total / mass + offsets[number]
            number += 1
