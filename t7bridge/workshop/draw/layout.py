"""Layout of drawings: chains in columns, and graphs in layers from their inputs down to their outputs, in time
proportional to their size.

Layers by longest path, order by the barycenters of neighbours, and positions by isotonic regression: in each layer the
order is kept and the squared distance from the neighbours is minimal. Pages have these positions too, and make room
around a container that opens (web/page.js).
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise
from math import ceil, inf, sqrt

from attrs import field

from ...data import define
from ...nn.blocks import Block, Flow, carried_text
from ...text import counted
from ...tools.view import is_branching, ranks_of

Point = tuple[float, float]

TITLE, SMALL = 13, 11
"""Text sizes, in pixels."""
_CHAR, _BOLD = 0.62, 1.08
"""Width of a character, as a fraction of the text size, and of bold ones to others. Few fonts have wider ones."""
_WIDE = frozenset("×→#%@MWmw…")
"""Characters that are a third wider."""
LINE = 16
"""Line height."""
SIGN = 16
"""Width of the sign in pages that opens and closes a block."""
_PAD, _GAP, _PORT = 12, 30, 24
_ROW = 13
"""Height of a label of an arrow."""
_MOST_ROWS = 6
"""Maximum number of rows of labels between two layers."""
_COLUMN = 900.0
"""Maximum height of a chain in one column, in pixels."""
SCREEN = (1880.0, 960.0)
"""Intended width and height of pictures, in pixels."""
_BROAD = 1200.0
"""Width from which on blocks without flows stand in several rows."""
_LONGEST, _MOST_COLUMNS = 6, 40
"""Maximum layers that an arrow to an end of a graph passes; maximum number of columns."""
_LABELLED = 600
"""Maximum number of labelled arrows of a graph; more would only hide each other."""
_SWEEPS = 6
"""Iterations to improve order and positions within the layers."""
_MAX_BENDS = 30_000
"""Maximum bends of edges that pass through layers; beyond, edges are straight."""
_BEND_WIDTH = 8.0
_TITLE_CHARS, _LABEL_CHARS, _CHARS = 60, 44, 56


@define(eq=False)
class Line:
    """An arrow between two boxes of a box.

    Attributes:
        start: number of the box it leaves.
        end: number of the box it enters.
        points: its ends and bends.
        label: its text.
        at: left end of the text's base line.
    """

    start: int
    end: int
    points: list[Point]
    label: str = ""
    at: Point = (0.0, 0.0)

    def move(self, dx: float, dy: float) -> None:
        """Move the arrow with its label."""
        self.points = [(x + dx, y + dy) for x, y in self.points]
        self.at = self.at[0] + dx, self.at[1] + dy

    def extent(self) -> list[Point]:
        """Return its points, and the corners of its label."""
        x, y = self.at
        return [*self.points, *([(x, y - SMALL), (x + width_of(self.label), y + 3)] if self.label else [])]


@define(eq=False)
class Box:
    """A block with its position.

    Attributes:
        block: the block.
        x: left edge, in pixels from the picture's.
        y: upper edge.
        width: in pixels.
        height: in pixels.
        inside: the boxes of the blocks inside.
        lines: arrows between these.
        columns: where each column of its content but the first begins.
    """

    block: Block
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    inside: list[Box] = field(factory=list)
    lines: list[Line] = field(factory=list)
    columns: list[float] = field(factory=list)

    @property
    def middle(self) -> float:
        """Centre across."""
        return self.x + self.width / 2

    @property
    def foot(self) -> Point:
        """Where arrows leave."""
        return self.middle, self.y + self.height

    @property
    def header(self) -> float:
        """Height of the text."""
        return len(texts_of(self.block)) * LINE + 10.0

    def move(self, dx: float, dy: float) -> None:
        """Move the box, without its content."""
        self.x, self.y = self.x + dx, self.y + dy

    def move_content(self, dx: float, dy: float) -> None:
        """Move what is inside."""
        for each in self.inside:
            each.move(dx, dy)
        for line in self.lines:
            line.move(dx, dy)
        self.columns = [x + dx for x in self.columns]


def width_of(text: str, size: int = SMALL) -> float:
    """Return the width of a text in pixels, estimated."""
    count = len(text) + sum(char in _WIDE for char in text) / 3
    return count * size * _CHAR * (_BOLD if size == TITLE else 1)


def texts_of(block: Block) -> list[str]:
    """Return the lines of text in a block, the title first; those about hidden content are last."""
    head = _cut(": ".join(filter(None, (block.name, block.title))), _TITLE_CHARS)
    head += f"  ×{block.repeat}" if block.repeat > 1 else ""
    lines = [line for line in block.lines if not line.endswith(" elements")]
    lines += [counted(block.parameters, "parameter")] if block.parameters else []
    lines += block.summary if block.kind == "closed" else []
    return [text for text in [head.strip(), *(_cut(line, _CHARS) for line in lines)] if text]


def has_sign(block: Block) -> bool:
    """Return whether a block opens and closes in pages."""
    return bool(block.inside) or block.kind == "closed" or block.repeat > 1


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


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
        box.move_content(box.x, box.y)
        stack += box.inside
    return root


def _box(block: Block, inside: list[Box]) -> Box:
    """Return a box of the size of its text."""
    head, *lines = texts_of(block) or [""]
    width = max(width_of(head, SMALL if block.kind == "end" else TITLE), *map(width_of, lines), 0.0) + 2 * _PAD
    box = Box(block, width=width + (SIGN if has_sign(block) else 0), inside=inside)
    box.height = box.header
    return box


def readable(root: Box) -> float:
    """Return the scale at which a picture fits on one screen."""
    return _scale(root.width + 2 * root.x, root.height + 2 * root.y)


def _scale(width: float, height: float) -> float:
    return min(SCREEN[0] / width, SCREEN[1] / height, 1.0)


def _around(box: Box, width: float, height: float) -> None:
    """Let a box enclose its content, which is centred in it."""
    box.move_content(_PAD + max(box.width - width - 2 * _PAD, 0) / 2, box.header)
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
    lines: list[Line] = field(factory=list)
    above: int = -1
    label: str = ""
    width: float = 0.0
    height: float = 0.0
    port: float = 0.0

    def measure(self, box: Box) -> Point:
        """Determine the extent of the content; return its upper left corner."""
        boxes = [box.inside[number] for number in self.members]
        corners = [point for line in self.lines for point in line.extent()]
        corners += [
            point for each in boxes for point in ((each.x, each.y), (each.x + each.width, each.y + each.height))
        ]
        (left, top), (right, low) = (tuple(map(pick, zip(*corners))) for pick in (min, max))
        self.port = boxes[0].middle - left
        self.width, self.height = max(right - left, self.port + 6 + width_of(self.label)), low - top
        return left, top


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
    for group in groups:
        if group.above >= 0:
            group.label = _label(group.label, box.inside[group.above])
    corners = [group.measure(box) for group in groups]
    found = _columns(groups)
    for group, (left, top), (x, y) in zip(groups, corners, found.places):
        for number in group.members:
            each = box.inside[number]
            each.x, each.y = each.x + x - left, each.y + y - top
        for line in group.lines:
            line.move(x - left, y - top)
        box.lines += group.lines
    for number, group in enumerate(groups):
        if group.above < 0:
            continue
        last, each = box.inside[group.above], box.inside[group.members[0]]
        start, end = last.foot, (each.middle, each.y)
        at = end[0] + 4, (start[1] + end[1]) / 2 + 4
        if number in found.starts:  # from the bottom of a column to the top of the next
            foot, side, head = start[1] + _GAP / 3, found.starts[number] - _GAP, end[1] - _GAP / 3
            points = [start, (start[0], foot), (side, foot), (side, head), (end[0], head), end]
            at = end[0] + 4, end[1] - 4
        elif abs(start[0] - end[0]) > 1:
            middle = (start[1] + end[1]) / 2
            points = [start, (start[0], middle), (end[0], middle), end]
            at = end[0] + 4, end[1] - 4
        else:
            points = [start, end]
        box.lines.append(Line(group.above, group.members[0], points, group.label, at))
    box.columns = [x - _GAP / 2 for x in found.starts.values() if x]
    _around(box, found.width, found.height)


def _label(label: str, source: Box) -> str:
    return _cut(carried_text(label, source.block.shape), _LABEL_CHARS)


def _chain(box: Box) -> None:
    """Stack blocks, each with an arrow to the next; in columns if they would be too tall."""
    _place_groups(box, [_Group([number], above=number - 1) for number in range(len(box.inside))])


def _side(box: Box) -> None:
    """Arrange blocks side by side, in rows if they would be too wide."""
    area = sum((each.width + _GAP) * (each.height + _GAP) for each in box.inside)
    most = max(_BROAD, sqrt(area * SCREEN[0] / SCREEN[1]))
    x = y = tall = width = 0.0
    for each in box.inside:
        if x and x + each.width > most:
            x, y, tall = 0.0, y + tall + _GAP, 0.0
        each.x, each.y = x, y
        x, tall = x + each.width + _GAP, max(tall, each.height)
        width = max(width, x - _GAP)
    _around(box, width, y + tall)


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
    corners = [(each.x + each.width, each.y + each.height) for each in box.inside]
    corners += [point for line in box.lines for point in line.extent()]
    _around(box, max(x for x, _ in corners), max(y for _, y in corners))


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
    for line in lines:
        line.move(dx, dy)
    groups[-1].members += added
    groups[-1].lines += lines


def _layered(box: Box, members: list[int], flows: list[Flow], *, keep_order: bool = False) -> list[Line]:
    """Lay out a subset of the nodes of a graph in layers; return the arrows between them.

    Args:
        box: of the graph; its boxes get positions.
        members: numbers of the nodes.
        flows: the edges between them.
        keep_order: whether the nodes of a layer stay in their order.
    """
    nodes, edges = _ends(box, members, flows)
    levels = ranks_of(len(nodes), [Flow(*edge) for edge in edges])
    links, bends = _with_bends(levels, edges)
    layers = _by_level(levels)
    across = _across(layers, links, nodes, len(levels), keep_order=keep_order)
    leave = _ports(nodes, edges, [across[each[0]] if each else None for each in bends])
    enter = _ports(nodes, [edge[::-1] for edge in edges], [across[each[-1]] if each else None for each in bends])
    labels = [_label(flow.label, box.inside[flow.start]) if len(flows) <= _LABELLED else "" for flow in flows]
    rows = _rows(labels, leave, [levels[start] for start, _ in edges])
    extents = _down(nodes, layers, [(levels[start], row) for (start, _), row in zip(edges, rows)])
    lines: list[Line] = []
    for number, ((start, end), flow) in enumerate(zip(edges, flows)):
        x, low = leave[number], extents[levels[start]][1]
        points = [(x, nodes[start].foot[1]), (x, low)]
        points += [(across[bend], y) for bend in bends[number] for y in extents[levels[bend]]]
        points = _without_straight([*points, (enter[number], nodes[end].y)])
        label = labels[number] if rows[number] >= 0 else ""
        lines.append(Line(flow.start, flow.end, points, label, (x + 4, low + (rows[number] + 1) * _ROW - 1)))
    return lines


def _ends(box: Box, members: list[int], flows: list[Flow]) -> tuple[list[Box], list[tuple[int, int]]]:
    """Return boxes, wide enough for their arrows, and the arrows between them."""
    for ends in (Counter(flow.start for flow in flows), Counter(flow.end for flow in flows)):
        for number, times in ends.items():
            box.inside[number].width = max(box.inside[number].width, (times + 1) * _PORT if times > 1 else 0)
    numbers = {number: place for place, number in enumerate(members)}
    return [box.inside[number] for number in members], [(numbers[flow.start], numbers[flow.end]) for flow in flows]


def _down(nodes: list[Box], layers: list[list[int]], rows: list[tuple[int, int]]) -> list[Point]:
    """Place nodes below each other; return upper and lower edge of each layer.

    Args:
        nodes: of the graph; those of `layers` beyond are bends.
        layers: the nodes of each.
        rows: the layer above each label, and its row.
    """
    space = [0.9 * _GAP] * len(layers)
    for level, row in rows:
        space[level] = max(space[level], (row + 1) * _ROW + 14.0)
    found: list[Point] = []
    y = 0.0
    for layer, below in zip(layers, space):
        boxes = [nodes[node] for node in layer if node < len(nodes)]
        found.append((y, y + max((box.height for box in boxes), default=0.0)))
        for box in boxes:
            box.y = y
        y = found[-1][1] + below
    return found


def _without_straight(points: list[Point]) -> list[Point]:
    """Return a line without points that are on a vertical one anyway."""
    kept = points[:1]
    for point, after in pairwise(points[1:]):
        if not kept[-1][0] == point[0] == after[0]:
            kept.append(point)
    return [*kept, points[-1]]


def _rows(labels: list[str], left: list[float], bands: list[int]) -> list[int]:
    """Return the row of each label in the space below its layer, from 0; -1 if there is no room.

    Args:
        labels: the texts.
        left: left end of each.
        bands: the layer of each.
    """
    rows = [-1] * len(labels)
    free: dict[tuple[int, int], float] = {}
    for number in sorted(range(len(labels)), key=left.__getitem__):
        for row in range(_MOST_ROWS if labels[number] else 0):
            if free.get((bands[number], row), -inf) <= left[number]:
                rows[number] = row
                free[bands[number], row] = left[number] + width_of(labels[number]) + 8
                break
    return rows


def _across(
    layers: list[list[int]], links: list[tuple[int, int]], nodes: list[Box], count: int, *, keep_order: bool
) -> list[float]:
    """Place nodes across their layers, and bends, which are numbered behind them, up to a count.

    Returns:
        The centre of each, from the left edge of all.
    """
    widths = [node.width for node in nodes] + [_BEND_WIDTH] * (count - len(nodes))
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for start, end in links:
        below[start].append(end)
        above[end].append(start)
    middle = [0.0] * count
    for layer in layers:
        _spread(layer, [0.0] * len(layer), [1.0] * len(layer), widths, middle)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            wanted = [_mean(above[node] if down else below[node], middle, middle[node]) for node in layer]
            if sweep < _SWEEPS - 2 and not keep_order:  # then positions only, in a fixed order
                order = sorted(range(len(layer)), key=wanted.__getitem__)
                layer[:] = [layer[place] for place in order]
                wanted = [wanted[place] for place in order]
            weights = [4.0 if node >= len(nodes) else 1.0 for node in layer]
            _spread(layer, wanted, weights, widths, middle)
    left = min((x - width / 2 for x, width in zip(middle, widths)), default=0.0)
    for node, x in zip(nodes, middle):
        node.x = x - node.width / 2 - left
    return [x - left for x in middle]


def _ports(nodes: list[Box], edges: list[tuple[int, int]], bends: list[float | None]) -> list[float]:
    """Return where each arrow meets its node: spread over the width, in the order of the other ends.

    Args:
        nodes: the nodes, in their positions across.
        edges: for each arrow the node that it meets, and the one at its other end.
        bends: its bend next to the node, if there is one.
    """
    at_node: dict[int, list[tuple[float, int]]] = {}
    for number, (own, other) in enumerate(edges):
        bend = bends[number]
        at_node.setdefault(own, []).append((nodes[other].middle if bend is None else bend, number))
    ports = [0.0] * len(edges)
    for own, found in at_node.items():
        for rank, (_, number) in enumerate(sorted(found), 1):
            ports[number] = nodes[own].x + nodes[own].width * rank / (len(found) + 1)
    return ports


def _with_bends(levels: list[int], edges: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Add a node for each bend of an edge in a layer that it passes.

    Args:
        levels: the layer of each node, extended by those of the bends.
        edges: the edges.

    Returns:
        The edges between all nodes, each from one layer to the next, and the bends of each edge.
    """
    links: list[tuple[int, int]] = []
    bends: list[list[int]] = []
    straight = sum(max(levels[end] - levels[start] - 1, 0) for start, end in edges) > _MAX_BENDS
    for start, end in edges:
        between = range(0) if straight else range(levels[start] + 1, levels[end])
        bends.append(list(range(len(levels), len(levels) + len(between))))
        levels += between
        links += pairwise([start, *bends[-1], end])
    return links, bends


def _mean(others: list[int], middle: list[float], default: float) -> float:
    return sum(middle[other] for other in others) / len(others) if others else default


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
