"""The boxes and arrows of a drawing, with the sizes of their texts; all lengths are in pixels.

The layout (`layout`, `layers`) places the boxes inside a box relative to it, and then makes it enclose them.
"""

from __future__ import annotations

from functools import lru_cache

from attrs import field

from ...data import define
from ...nn.blocks import Block, carried_text, counts_elements
from ...text import counted

Point = tuple[float, float]

TITLE = 13
"""Size of the text of titles."""
SMALL = 11
"""Size of other text."""
LINE = 16
"""Line height."""
SIGN = 16
"""Width of the sign in pages that opens and closes a block."""
PAD = 12
"""Space between a box and its content."""
GAP = 30
"""Space between boxes."""
BESIDE_ARROW = 4
"""Space between an arrow and its label."""
BELOW_BASE_LINE = 3
"""How far letters reach below their base line."""
SCREEN = (1880.0, 960.0)
"""Intended width and height of pictures."""
_WIDTH_OF_CHARACTER = 0.62
"""As a fraction of the text size. Few fonts have wider ones."""
_WIDTH_OF_BOLD = 1.08
"""Width of bold characters relative to others."""
_WIDE = frozenset("×→#%@MWmw…")
"""Characters that are a third wider."""
_TITLE_CHARS = 60
_LABEL_CHARS = 44
_LINE_CHARS = 56
"""Maximum characters of a title, of a label, and of any other line of text."""


@define(eq=False)
class Line:
    """An arrow between two boxes that are inside the same box.

    Attributes:
        start: number of the box it leaves.
        end: number of the box it enters.
        points: its ends and bends, as the `x` and `y` of boxes.
        label: its text; empty for none.
        at: left end of the text's base line; not used without a text.
    """

    start: int
    end: int
    points: list[Point]
    label: str = ""
    at: Point = (0.0, 0.0)

    def move(self, dx: float, dy: float) -> None:
        """Move the arrow with its label."""
        self.points = [(x + dx, y + dy) for x, y in self.points]
        x, y = self.at
        self.at = x + dx, y + dy

    def corners(self) -> list[Point]:
        """Return points that enclose the arrow and its label."""
        if not self.label:
            return self.points
        x, y = self.at
        return [*self.points, (x, y - SMALL), (x + width_of(self.label), y + BELOW_BASE_LINE)]


@define(eq=False)
class Box:
    """A block of a drawing with its position, and the boxes and arrows inside it.

    Attributes:
        block: the block.
        texts: its lines of text, see `texts_of`.
        x: left edge, from that of the picture; from that of the box around it until all are laid out.
        y: upper edge, likewise.
        width: its width.
        height: its height.
        inside: the boxes of the blocks inside.
        lines: arrows between these.
        columns: where each column of its content but the first begins.
    """

    block: Block
    texts: list[str]
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
    def right(self) -> float:
        """Right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Lower edge."""
        return self.y + self.height

    @property
    def foot(self) -> Point:
        """Where a single arrow leaves."""
        return self.middle, self.bottom

    @property
    def head(self) -> Point:
        """Where a single arrow enters."""
        return self.middle, self.y

    @property
    def header(self) -> float:
        """Height of the text."""
        return len(self.texts) * LINE + 10.0

    def corners(self) -> list[Point]:
        """Return the upper left and the lower right corner."""
        return [(self.x, self.y), (self.right, self.bottom)]

    def move(self, dx: float, dy: float) -> None:
        """Move the box, without its content."""
        self.x += dx
        self.y += dy

    def move_content(self, dx: float, dy: float) -> None:
        """Move what is inside, but not what is inside that: boxes, arrows and the beginnings of columns."""
        for box in self.inside:
            box.move(dx, dy)
        for line in self.lines:
            line.move(dx, dy)
        self.columns = [x + dx for x in self.columns]

    def enclose_content(self, width: float, height: float) -> None:
        """Grow around the content, which is centred below the text.

        Args:
            width: of the content, whose upper left corner is at (0, 0) until it is moved here.
            height: of the content.
        """
        spare = max(self.width - width - 2 * PAD, 0)
        self.move_content(PAD + spare / 2, self.header)
        self.width = max(self.width, width + 2 * PAD)
        self.height = self.header + height + PAD


def box_of(block: Block, inside: list[Box]) -> Box:
    """Return the box of a block, of the size of its text. The layout of `inside`, if there are any, makes it larger."""
    texts = texts_of(block)
    title, *lines = texts or [""]
    title_size = SMALL if block.kind == "end" else TITLE
    width = max(width_of(title, title_size), *map(width_of, lines), 0.0) + 2 * PAD
    if has_sign(block):
        width += SIGN
    box = Box(block, texts, width=width, inside=inside)
    box.height = box.header
    return box


def boxes_in(root: Box) -> list[Box]:
    """Return a box and all boxes in it, level by level."""
    boxes = [root]
    for box in boxes:  # grows
        boxes += box.inside
    return boxes


def corners_of(boxes: list[Box], lines: list[Line]) -> list[Point]:
    """Return points that enclose boxes and arrows."""
    corners: list[Point] = []
    for box in boxes:
        corners += box.corners()
    for line in lines:
        corners += line.corners()
    return corners


def has_sign(block: Block) -> bool:
    """Return whether a block opens and closes in pages."""
    return bool(block.inside) or block.kind == "closed" or block.repeat > 1


def texts_of(block: Block) -> list[str]:
    """Return the lines of text in a block, the title first; those about hidden content are last."""
    title = _cut(": ".join(filter(None, (block.name, block.title))), _TITLE_CHARS)
    if block.repeat > 1:
        title += f"  ×{block.repeat}"
    # The number of parameters says more than that of elements.
    lines = [line for line in block.lines if not counts_elements(line)]
    if block.parameters:
        lines.append(counted(block.parameters, "parameter"))
    if block.kind == "closed":
        lines += block.summary
    texts = [title.strip(), *(_cut(line, _LINE_CHARS) for line in lines)]
    return [text for text in texts if text]


def label_with_shape(label: str, source: Box) -> str:
    """Return the text of an arrow: the label of its flow, and the shape of what it carries, cut if it is long.

    Args:
        label: of the flow.
        source: the box that the arrow leaves.
    """
    return _cut(carried_text(label, source.block.shape), _LABEL_CHARS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


@lru_cache(4096)
def width_of(text: str, size: int = SMALL) -> float:
    """Return the estimated width of a text."""
    characters = len(text) + sum(character in _WIDE for character in text) / 3
    boldness = _WIDTH_OF_BOLD if size == TITLE else 1  # titles are bold
    return characters * size * _WIDTH_OF_CHARACTER * boldness


def scale_on_screen(width: float, height: float) -> float:
    """Return the scale at which a picture of a size fits on one screen, 1 if it fits as it is."""
    screen_width, screen_height = SCREEN
    return min(screen_width / width, screen_height / height, 1.0)
