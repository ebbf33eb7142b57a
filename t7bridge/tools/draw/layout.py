"""Layout of the picture."""

from __future__ import annotations

from collections import Counter
from math import ceil, inf, sqrt

from attrs import field

from ...data import define
from .blocks import Block, Flow, shape_text
from .ranks import Point, place, ranks_of
from .skips import is_branching

TITLE, SMALL = 13, 11
"""Text sizes, in pixels."""
_CHAR = 0.6
"""Width of a character, as a fraction of the text size. Few fonts have wider ones."""
LINE = 16
"""Line height."""
_PAD, _GAP, _PORT = 10, 30, 24
_COLUMN = 900.0
"""Maximum height of a chain in one column, in pixels."""
SCREEN = (1880.0, 960.0)
"""Intended width and height of pictures, in pixels."""


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
        lines: arrows between these: points, and a label.
    """

    block: Block
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    header: float = 0.0
    inside: list[Box] = field(factory=list)
    lines: list[tuple[list[Point], str]] = field(factory=list)


def texts_of(block: Block) -> list[tuple[str, int]]:
    """Return the lines of text in a block, with their sizes in pixels."""
    head = f"{block.name}: {block.title}" if block.name and block.title else block.name or block.title
    return [(text, size) for text, size in [(head, TITLE), *((line, SMALL) for line in block.lines)] if text]


def lay_out(blocks: list[Block]) -> Box:
    """Compute the position of every block.

    Args:
        blocks: all of them, each before those inside it.

    """
    boxes: dict[int, Box] = {}
    for block in reversed(blocks):  # inner blocks first
        box = boxes[id(block)] = Box(block, inside=[boxes[id(each)] for each in block.inside])
        _sized(box)
        if box.inside:
            {"chain": _chain, "side": _side, "graph": _graph}[block.kind](box)
    root = boxes[id(blocks[0])]
    root.x = root.y = _PAD
    stack = [root]
    while stack:  # relative positions become absolute
        box = stack.pop()
        for each in box.inside:
            each.x, each.y = each.x + box.x, each.y + box.y
        box.lines = [([(x + box.x, y + box.y) for x, y in points], label) for points, label in box.lines]
        stack += box.inside
    return root


def _sized(box: Box) -> Box:
    """Return a box of the size of its text."""
    texts = texts_of(box.block)
    box.header = len(texts) * LINE + _PAD
    box.width = max((len(text) * size * _CHAR for text, size in texts), default=0) + 2 * _PAD
    box.height = box.header
    return box


def readable(root: Box) -> float:
    """Return the scale at which a picture fits on one screen."""
    return min(SCREEN[0] / (root.width + 2 * root.x), SCREEN[1] / (root.height + 2 * root.y), 1.0)


_FAR, _MOST_COLUMNS = 6, 40
_LABELLED = 600
"""Maximum number of labelled arrows of a graph; more would only hide each other."""


def _around(box: Box, width: float, height: float) -> None:
    """Return a box that encloses its content, which is centred in it."""
    spare = max(box.width - width - 2 * _PAD, 0) / 2
    for each in box.inside:
        each.x, each.y = each.x + _PAD + spare, each.y + box.header
    box.lines = [([(x + _PAD + spare, y + box.header) for x, y in points], label) for points, label in box.lines]
    box.width = max(box.width, width + 2 * _PAD)
    box.height = box.header + height + _PAD


@define(frozen=True)
class _Part:
    """One part of a column: its extent, and where arrows enter it from above, from its left edge."""

    width: float
    height: float
    port: float


@define(frozen=True)
class _Columns:
    """Left edge and top of each part, left edge of the column by the number of its first part, and the total extent."""

    places: list[Point]
    starts: dict[int, float]
    width: float
    height: float


def _columns(parts: list[_Part]) -> _Columns:
    """Arrange parts in the number of columns that shows them largest."""
    total = sum(part.height + _GAP for part in parts) - _GAP
    tallest = max(part.height for part in parts)
    best, found = 0.0, _packed(parts, inf)
    count = 1
    while count <= _MOST_COLUMNS and total >= _COLUMN:
        packed = _packed(parts, inf if count == 1 else max(total / count * 1.04, tallest))
        scale = min(SCREEN[0] / (packed.width + 60), SCREEN[1] / (packed.height + 60), 1.0)
        if scale > best * 1.12:
            best, found = scale, packed
        if len(packed.starts) < count - 1:
            break
        count = count + 1 if count < 8 else ceil(count * 1.3)
    return found


def _packed(parts: list[_Part], limit: float) -> _Columns:
    columns: list[list[int]] = [[]]
    y = 0.0
    tops: list[float] = []
    for number, part in enumerate(parts):
        if number and y + _GAP + part.height > limit:
            columns.append([])
            y = 0.0
        elif number:
            y += _GAP
        columns[-1].append(number)
        tops.append(y)
        y += part.height
    x, lift = 0.0, _GAP / 2 if len(columns) > 1 else 0.0
    places: list[Point] = [(0.0, 0.0)] * len(parts)
    starts: dict[int, float] = {}
    for column in columns:
        left = max(parts[number].port for number in column)
        for number in column:
            places[number] = (x + left - parts[number].port, tops[number] + lift)
        starts[column[0]] = x
        x += left + max(parts[number].width - parts[number].port for number in column) + 2 * _GAP
    lowest = max(top + part.height for top, part in zip(tops, parts))
    return _Columns(places, starts, x - 2 * _GAP, lowest + 2 * lift)


def _turn(start: Point, end: Point, left: float) -> list[Point]:
    """Return an arrow from the bottom of a column to the top of the next, whose left edge is known."""
    foot, side, head = start[1] + _GAP / 3, left - _GAP, end[1] - _GAP / 3
    return [start, (start[0], foot), (side, foot), (side, head), (end[0], head), end]


def _chain(box: Box) -> None:
    """Stack blocks, each with an arrow to the next; in columns if they would be too tall."""
    found = _columns([_Part(each.width, each.height, each.width / 2) for each in box.inside])
    for number, each in enumerate(box.inside):
        each.x, each.y = found.places[number]
        if not number:
            continue
        last = box.inside[number - 1]
        start, end = (last.x + last.width / 2, last.y + last.height), (each.x + each.width / 2, each.y)
        points = _turn(start, end, found.starts[number]) if number in found.starts else [start, end]
        box.lines.append((points, shape_text(last.block.shape)))
    _around(box, found.width, found.height)


def _side(box: Box) -> None:
    """Arrange blocks side by side."""
    x = 0.0
    for number, each in enumerate(box.inside):
        x += _GAP if number else 0
        each.x = x
        x += each.width
    _around(box, x, max(each.height for each in box.inside))


def _graph(box: Box) -> None:
    """Lay a graph out from input to output: branches side by side; others cut at nodes that all flow passes through.

    Branches between two such nodes are attached to the upper one; a new column may begin after a single arrow.
    """
    flows = _near(box, box.block.flows)
    if is_branching(box.block):
        _stretch_alone(box, flows, keep_order=True)
        return
    ranks = ranks_of(len(box.inside), [(flow.start, flow.end) for flow in flows])
    levels: list[list[int]] = [[] for _ in range(max(ranks, default=0) + 1)]
    leaving: list[list[Flow]] = [[] for _ in levels]
    passing = [0] * (len(levels) + 2)
    for number, rank in enumerate(ranks):
        levels[rank].append(number)
    for flow in flows:
        low, high = ranks[flow.start], max(ranks[flow.end], ranks[flow.start] + 1)
        passing[low + 1] += 1
        passing[high] -= 1
        leaving[low].append(flow)
    cuts, over = [], 0
    for rank, level in enumerate(levels):
        over += passing[rank]
        if len(level) == 1 and not over:
            cuts.append(rank)
    if len(cuts) < 3:
        _stretch_alone(box, flows)
        return
    groups: list[_Group] = []
    tall = sum(max((box.inside[number].height for number in level), default=0) + _GAP for level in levels)
    wide = 1.6 * sum(each.width for each in box.inside) / len(box.inside) + 60
    enough = max(_COLUMN, sqrt(tall * wide * SCREEN[1] / SCREEN[0]))
    for number, rank in enumerate(cuts):
        node, before = levels[rank][0], cuts[number - 1] if number else -1
        members = [each for level in levels[before + 1 : rank] for each in level]
        own = [flow for level in leaving[max(before, 0) : rank] for flow in level]
        if not number:
            groups.append(_Group([node]))
            if members:
                _hang(box, groups, node, members, own, inf)
        elif not members and len(own) == 1:
            groups.append(_Group([node], above=levels[before][0], label=own[0].label))
            box.inside[node].x = -box.inside[node].width / 2
        else:
            _hang(box, groups, levels[before][0], [*members, node], own, enough)
    rest = [number for level in levels[cuts[-1] + 1 :] for number in level]
    if rest:
        _hang(box, groups, levels[cuts[-1]][0], rest, [flow for level in leaving[cuts[-1] :] for flow in level], enough)
    _place_groups(box, groups)


@define(eq=False)
class _Group:
    """Nodes of a graph that stay together in a column, with the arrows between them.

    Attributes:
        members: numbers of the nodes, the uppermost first.
        lines: arrows: points, and a label.
        above: the node of another group from which an arrow leads to the first.
        label: of that arrow.
    """

    members: list[int]
    lines: list[tuple[list[Point], str]] = field(factory=list)
    above: int = -1
    label: str = ""


def _near(box: Box, flows: list[Flow]) -> list[Flow]:
    """Return the flows; a distant end is named next to the node, instead of an arrow across the whole picture."""
    ranks = ranks_of(len(box.inside), [(flow.start, flow.end) for flow in flows])
    degree = Counter(number for flow in flows for number in (flow.start, flow.end))
    found: list[Flow] = []
    for flow in flows:
        ends = [box.inside[number].block.kind == "end" for number in (flow.start, flow.end)]
        end = flow.start if ends[0] else flow.end
        if ranks[flow.end] - ranks[flow.start] <= _FAR or ends[0] == ends[1] or degree[end] < 2:
            found.append(flow)
            continue
        degree[end] -= 1
        lines = [f"{box.inside[end].block.lines[0]} {flow.label}".strip()] if box.inside[end].block.lines else []
        box.inside.append(_sized(Box(Block("", "", "end", lines=lines))))
        number = len(box.inside) - 1
        found.append(Flow(number, flow.end) if end == flow.start else Flow(flow.start, number))
    return found


def _hang(box: Box, groups: list[_Group], top: int, added: list[int], flows: list[Flow], enough: float) -> None:
    """Lay nodes out below one of the last group; in a new column, with the node named again, if that is tall."""
    above = box.inside[top]
    if above.y > enough:
        again = Block(above.block.name, above.block.title, mark="again")
        box.inside.append(_sized(Box(again)))
        number = len(box.inside) - 1
        groups.append(_Group([number], above=top))
        flows = [Flow(number, flow.end, flow.label) if flow.start == top else flow for flow in flows]
        top, above = number, box.inside[number]
        above.x = -above.width / 2
    x, y = above.x, above.y
    lines = _stretch(box, [top, *added], flows)
    dx, dy = x - above.x, y - above.y
    for number in (top, *added):
        each = box.inside[number]
        each.x, each.y = each.x + dx, each.y + dy
    groups[-1].members += added
    groups[-1].lines += [([(px + dx, py + dy) for px, py in points], label) for points, label in lines]


def _place_groups(box: Box, groups: list[_Group]) -> None:
    """Put the groups of a graph into columns, with the arrows between them."""
    corners, parts = [], []
    for group in groups:
        boxes = [box.inside[number] for number in group.members]
        xs = [x for each in boxes for x in (each.x, each.x + each.width)]
        ys = [y for each in boxes for y in (each.y, each.y + each.height)]
        for points, _ in group.lines:
            xs += [x for x, _ in points]
            ys += [y for _, y in points]
        corners.append((min(xs), min(ys)))
        head = boxes[0].x + boxes[0].width / 2 - min(xs)
        parts.append(_Part(max(xs) - min(xs), max(ys) - min(ys), head))
    found = _columns(parts)
    for group, (left, top), (x, y) in zip(groups, corners, found.places):
        for number in group.members:
            each = box.inside[number]
            each.x, each.y = each.x + x - left, each.y + y - top
        box.lines += [([(px + x - left, py + y - top) for px, py in points], label) for points, label in group.lines]
    for number, group in enumerate(groups):
        if group.above < 0:
            continue
        last, each = box.inside[group.above], box.inside[group.members[0]]
        start, end = (last.x + last.width / 2, last.y + last.height), (each.x + each.width / 2, each.y)
        middle = (start[1] + end[1]) / 2
        bent = [start, (start[0], middle), (end[0], middle), end] if abs(start[0] - end[0]) > 1 else [start, end]
        points = _turn(start, end, found.starts[number]) if number in found.starts else bent
        box.lines.append((points, " ".join(filter(None, (group.label, shape_text(last.block.shape))))))
    _around(box, found.width, found.height)


def _stretch_alone(box: Box, flows: list[Flow], *, keep_order: bool = False) -> None:
    box.lines = _stretch(box, list(range(len(box.inside))), flows, keep_order=keep_order)
    width = max(each.x + each.width for each in box.inside)
    reach = [x for points, _ in box.lines for x, _ in points]
    _around(box, max([width, *reach]), max(each.y + each.height for each in box.inside))


def _stretch(
    box: Box, members: list[int], flows: list[Flow], *, keep_order: bool = False
) -> list[tuple[list[Point], str]]:
    """Lay out a subset of the nodes of a graph in layers; return the arrows between them."""
    for ends in (Counter(flow.start for flow in flows), Counter(flow.end for flow in flows)):
        for number, times in ends.items():
            box.inside[number].width = max(box.inside[number].width, (times + 1) * _PORT if times > 1 else 0)
    numbers = {number: place for place, number in enumerate(members)}
    sizes = [(box.inside[number].width, box.inside[number].height) for number in members]
    links = [(numbers[flow.start], numbers[flow.end]) for flow in flows]
    corners, bends, _, _ = place(sizes, links, _GAP, keep_order=keep_order)
    for number, (x, y) in zip(members, corners):
        box.inside[number].x, box.inside[number].y = x, y
    leave = _ports(box, [(flow.start, flow.end) for flow in flows], [points[:1] for points in bends])
    enter = _ports(box, [(flow.end, flow.start) for flow in flows], [points[-1:] for points in bends])
    lines: list[tuple[list[Point], str]] = []
    for number, flow in enumerate(flows):
        start, end = box.inside[flow.start], box.inside[flow.end]
        points = [(leave[number], start.y + start.height), *bends[number], (enter[number], end.y)]
        labels = (flow.label, shape_text(start.block.shape)) if len(flows) <= _LABELLED else ()
        lines.append((points, " ".join(filter(None, labels))))
    return lines


def _ports(box: Box, flows: list[tuple[int, int]], bends: list[list[Point]]) -> list[float]:
    """Return the point where each arrow meets its node: spread over the width, in the order of the other ends.

    Args:
        box: of the graph, whose nodes have positions.
        flows: for each arrow the node that it meets, and the one at its other end.
        bends: its bend next to the node, if there is one.
    """
    at_node: dict[int, list[tuple[float, int]]] = {}
    for number, (own, other) in enumerate(flows):
        far = box.inside[other]
        towards = bends[number][0][0] if bends[number] else far.x + far.width / 2
        at_node.setdefault(own, []).append((towards, number))
    ports = [0.0] * len(flows)
    for own, found in at_node.items():
        near = box.inside[own]
        for rank, (_, number) in enumerate(sorted(found), 1):
            ports[number] = near.x + near.width * rank / (len(found) + 1)
    return ports
