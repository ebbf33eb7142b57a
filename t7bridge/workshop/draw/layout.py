"""Layout of drawings: chains in columns, and graphs in layers from their inputs down to their outputs, in time
proportional to their size.

Pages have these positions too, and make room around a container that opens (web/page.js).
"""

from __future__ import annotations

from math import fsum, sqrt

from ...nn.blocks import Block
from .boxes import GAP, PAD, SCREEN, Box, box_of, scale_on_screen
from .columns import Group, place_groups
from .graphs import lay_out_graph

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
