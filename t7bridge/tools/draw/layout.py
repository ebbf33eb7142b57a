"""Layout of the picture."""

from __future__ import annotations

from collections import Counter
from math import sqrt

from attrs import field

from ...data import define
from .blocks import Block, shape_text
from .ranks import Point, place

TITLE, SMALL = 13, 11
"""Sizes of text, in pixels."""
_CHAR = 0.6
"""Width of a character, as a share of the size of text. Few fonts have wider ones."""
LINE = 16
"""From one line of text to the next."""
_PAD, _GAP, _PORT = 10, 30, 24
_COLUMN, _SHAPE = 1000.0, 0.7
"""Height that a chain may have in one column, in pixels, and height by width that several columns aim at."""


@define(eq=False)
class Box:
    """A block with its place.

    Attributes:
        block: what is drawn.
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
    """The lines of text in a block, with their sizes in pixels."""
    head = f"{block.name}: {block.title}" if block.name and block.title else block.name or block.title
    return [(text, size) for text, size in [(head, TITLE), *((line, SMALL) for line in block.lines)] if text]


def lay_out(blocks: list[Block]) -> Box:
    """Place every block.

    Args:
        blocks: all of them, each before those inside it.

    """
    boxes: dict[int, Box] = {}
    for block in reversed(blocks):  # what is inside first
        box = boxes[id(block)] = Box(block, inside=[boxes[id(each)] for each in block.inside])
        texts = texts_of(block)
        box.header = len(texts) * LINE + _PAD
        box.width = max((len(text) * size * _CHAR for text, size in texts), default=0) + 2 * _PAD
        box.height = box.header
        if box.inside:
            {"chain": _chain, "side": _side, "graph": _graph}[block.kind](box)
    root = boxes[id(blocks[0])]
    root.x = root.y = _PAD
    stack = [root]
    while stack:  # places inside become places in the picture
        box = stack.pop()
        for each in box.inside:
            each.x, each.y = each.x + box.x, each.y + box.y
        box.lines = [([(x + box.x, y + box.y) for x, y in points], label) for points, label in box.lines]
        stack += box.inside
    return root


_LABELLED = 600
"""Arrows of a graph that are labelled; more would only hide each other."""


def _around(box: Box, width: float, height: float) -> None:
    """Make a box as large as what is in it, which is then put in its middle."""
    spare = max(box.width - width - 2 * _PAD, 0) / 2
    for each in box.inside:
        each.x, each.y = each.x + _PAD + spare, each.y + box.header
    box.lines = [([(x + _PAD + spare, y + box.header) for x, y in points], label) for points, label in box.lines]
    box.width = max(box.width, width + 2 * _PAD)
    box.height = box.header + height + _PAD


def _chain(box: Box) -> None:
    """One below the other, each with an arrow to the next; in columns where they would be too tall."""
    width = max(each.width for each in box.inside)
    height = sum(each.height + _GAP for each in box.inside) - _GAP
    column = height if height < _COLUMN else max(_COLUMN, sqrt(height * width * _SHAPE))
    x = y = lowest = 0.0
    for number, each in enumerate(box.inside):
        if number:
            last, label = box.inside[number - 1], shape_text(box.inside[number - 1].block.shape)
            start = (x + width / 2, y)
            if y + _GAP + each.height > column:
                x, y = x + width + 2 * _GAP, 0.0
                side, foot = x - _GAP, last.y + last.height + _GAP / 3
                points = [start, (start[0], foot), (side, foot), (side, -_GAP / 3), (x + width / 2, -_GAP / 3)]
                box.lines.append(([*points, (x + width / 2, y)], label))
            else:
                y += _GAP
                box.lines.append(([start, (x + width / 2, y)], label))
        each.x, each.y = x + (width - each.width) / 2, y
        y += each.height
        lowest = max(lowest, y)
    if x:  # room for the arrows above and below the columns
        for each in box.inside:
            each.y += _GAP / 2
        box.lines = [([(px, py + _GAP / 2) for px, py in points], label) for points, label in box.lines]
        lowest += _GAP
    _around(box, x + width, lowest)


def _side(box: Box) -> None:
    """One beside the other."""
    x = 0.0
    for number, each in enumerate(box.inside):
        x += _GAP if number else 0
        each.x = x
        x += each.width
    _around(box, x, max(each.height for each in box.inside))


def _graph(box: Box) -> None:
    """In layers, from input to output."""
    flows = box.block.flows
    for ends in (Counter(flow.start for flow in flows), Counter(flow.end for flow in flows)):
        for number, times in ends.items():
            box.inside[number].width = max(box.inside[number].width, (times + 1) * _PORT if times > 1 else 0)
    sizes = [(each.width, each.height) for each in box.inside]
    corners, bends, width, height = place(sizes, [(flow.start, flow.end) for flow in flows], _GAP)
    for each, (x, y) in zip(box.inside, corners):
        each.x, each.y = x, y
    leave = _ports(box, [(flow.start, flow.end) for flow in flows], [points[:1] for points in bends])
    enter = _ports(box, [(flow.end, flow.start) for flow in flows], [points[-1:] for points in bends])
    for number, flow in enumerate(flows):
        start, end = box.inside[flow.start], box.inside[flow.end]
        points = [(leave[number], start.y + start.height), *bends[number], (enter[number], end.y)]
        labels = (flow.label, shape_text(start.block.shape)) if len(flows) <= _LABELLED else ()
        box.lines.append((points, " ".join(filter(None, labels))))
    _around(box, width, height)


def _ports(box: Box, flows: list[tuple[int, int]], bends: list[list[Point]]) -> list[float]:
    """Return where each arrow meets its node: spread over the width, in the order of the other ends.

    Args:
        box: of the graph, whose nodes have their places.
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
