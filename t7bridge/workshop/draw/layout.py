"""Layout of drawings: chains in columns, and graphs in layers from their inputs down to their outputs, in time
proportional to their size.

Layers by longest path, order by the barycenters of neighbours, and positions by isotonic regression: in each layer the
order is kept and the squared distance from the neighbours is minimal. Pages have these positions too, and make room
around a container that opens (web/page.js).
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from math import ceil, fsum, inf, sqrt

from attrs import field

from ...data import define
from ...nn.blocks import Block, Flow, carried_text, counts_elements
from ...text import counted
from ...tools.view import is_branching, ranks_of

Point = tuple[float, float]

TITLE = 13
"""Size of the text of titles, in pixels."""
SMALL = 11
"""Size of other text, in pixels."""
_WIDTH_OF_CHARACTER = 0.62
"""As a fraction of the text size. Few fonts have wider ones."""
_WIDTH_OF_BOLD = 1.08
"""Width of bold characters relative to others."""
_WIDE = frozenset("×→#%@MWmw…")
"""Characters that are a third wider."""
LINE = 16
"""Line height."""
SIGN = 16
"""Width of the sign in pages that opens and closes a block."""
_PAD = 12
"""Space between a box and its content."""
_GAP = 30
"""Space between boxes."""
_PORT = 24
"""Least distance of the ends of arrows at one box."""
_ROW = 13
"""Height of a label of an arrow."""
_MOST_ROWS = 6
"""Maximum number of rows of labels between two layers."""
_HEIGHT_OF_COLUMN = 900.0
"""Maximum height of a chain in one column, in pixels."""
_WORTH_A_COLUMN = 1.12
"""How much larger a picture with more columns has to be: one more column has to be worth its arrow."""
_FILLING = 1.04
"""Height of a column relative to what fills it: columns are never full to the last pixel."""
_MARGINS = 60
"""Pixels of a picture besides its columns."""
_EVERY_COUNT = 8
"""Up to this number of columns each number is tried, then larger steps are taken, as each trial lays out all groups."""
_STEP_OF_COUNTS = 1.3
"""How many times as large as the last number of columns the next one is then."""
SCREEN = (1880.0, 960.0)
"""Intended width and height of pictures, in pixels."""
_BROAD = 1200.0
"""Width from which on blocks without flows stand in several rows."""
_LONGEST = 6
"""Maximum layers that an arrow to an end of a graph passes."""
_MOST_COLUMNS = 40
_MOST_LABELLED = 600
"""Maximum number of labelled arrows of a graph; more would only hide each other."""
_SWEEPS = 6
"""Iterations to improve order and positions within the layers."""
_MAX_BENDS = 30_000
"""Maximum bends of edges that pass through layers; beyond, edges are straight."""
_BEND_WIDTH = 8.0
"""Space for an edge that passes through a layer."""
_BEND_WEIGHT = 4.0
"""How much more bends resist a displacement than nodes: long edges are to be straight."""
_TITLE_CHARS = 60
_LABEL_CHARS = 44
_LINE_CHARS = 56
"""Maximum characters of a title, of a label, and of any other line of text."""
_SPACE_BELOW_LAYER = 0.9 * _GAP
"""Space below a layer of a graph without labels."""
_SPACE_BESIDE_ROWS = 14.0
"""Space above and below the rows of labels between two layers, together."""
_BESIDE_ARROW = 4
"""Pixels between an arrow and its label."""
_BETWEEN_LABELS = 8
"""Pixels between two labels of a row."""


@define(eq=False)
class Line:
    """An arrow between two boxes that are inside the same box.

    Attributes:
        start: number of the box it leaves.
        end: number of the box it enters.
        points: its ends and bends, in pixels as the `x` and `y` of boxes.
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
        self.at = self.at[0] + dx, self.at[1] + dy

    def extent(self) -> list[Point]:
        """Return its points, and the corners of its label."""
        if not self.label:
            return self.points
        x, y = self.at
        # Letters reach 3 pixels below the base line.
        return [*self.points, (x, y - SMALL), (x + width_of(self.label), y + 3)]


@define(eq=False)
class Box:
    """A block of a drawing with its position, and the boxes and arrows inside it.

    Attributes:
        block: the block.
        texts: its lines of text, see `texts_of`.
        x: left edge, in pixels from the picture's; from that of the box around it until all are laid out.
        y: upper edge, likewise.
        width: in pixels.
        height: in pixels.
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
        """Where arrows leave."""
        return self.middle, self.bottom

    @property
    def header(self) -> float:
        """Height of the text."""
        return len(self.texts) * LINE + 10.0

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


@lru_cache(4096)
def width_of(text: str, size: int = SMALL) -> float:
    """Return the width of a text in pixels, estimated."""
    characters = len(text) + sum(character in _WIDE for character in text) / 3
    boldness = _WIDTH_OF_BOLD if size == TITLE else 1  # titles are bold
    return characters * size * _WIDTH_OF_CHARACTER * boldness


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
    arrange = {"chain": _lay_out_chain, "side": _lay_out_side_by_side, "graph": _lay_out_graph}
    for block in reversed(blocks):  # inner blocks first
        box = _box(block, [boxes[id(inner)] for inner in block.inside])
        boxes[id(block)] = box
        if box.inside:
            arrange[block.kind](box)
    root = boxes[id(blocks[0])]
    root.x = _PAD
    root.y = _PAD
    # Until here, positions are relative to the box around; a box is moved before what is inside it.
    stack = [root]
    while stack:
        box = stack.pop()
        box.move_content(box.x, box.y)
        stack += box.inside
    return root


def _box(block: Block, inside: list[Box]) -> Box:
    """Return a box of the size of its text, which is enough if nothing is inside; `inside` is placed later."""
    texts = texts_of(block)
    title, *lines = texts or [""]
    title_size = SMALL if block.kind == "end" else TITLE
    width = max(width_of(title, title_size), *map(width_of, lines), 0.0) + 2 * _PAD
    if has_sign(block):
        width += SIGN
    box = Box(block, texts, width=width, inside=inside)
    box.height = box.header
    return box


def readable(root: Box) -> float:
    """Return the scale at which a picture fits on one screen."""
    return _scale(root.width + 2 * root.x, root.height + 2 * root.y)


def _scale(width: float, height: float) -> float:
    """Return the scale at which a size fits on one screen."""
    return min(SCREEN[0] / width, SCREEN[1] / height, 1.0)


def _enclose_content(box: Box, width: float, height: float) -> None:
    """Let a box enclose its content, which is centred in it.

    Args:
        box: the box, which gets its size; its content begins at (0, 0), and is moved.
        width: of the content.
        height: of the content.
    """
    spare = max(box.width - width - 2 * _PAD, 0)
    box.move_content(_PAD + spare / 2, box.header)
    box.width = max(box.width, width + 2 * _PAD)
    box.height = box.header + height + _PAD


_NONE = -1
"""Instead of the number of a box, a bend or a row, if there is none."""


@define(eq=False)
class _Group:
    """Boxes that stay together in a column, with the arrows between them.

    Attributes:
        members: numbers of the boxes, the uppermost first.
        lines: the arrows.
        arrow_from: the number of the box of another group from which an arrow leads to the first; `_NONE` without one.
        label: of that arrow.
        stays: whether it stays in the column of the group above, as a normalization does below its convolution.
        width: of its content.
        height: of its content.
        port: where the arrow enters it from above, from its left edge.
    """

    members: list[int]
    lines: list[Line] = field(factory=list)
    arrow_from: int = _NONE
    label: str = ""
    stays: bool = False
    width: float = 0.0
    height: float = 0.0
    port: float = 0.0

    def measure(self, box: Box) -> Point:
        """Set `width`, `height` and `port` by where the boxes and arrows are; return the upper left corner of all."""
        boxes = [box.inside[number] for number in self.members]
        corners = [point for line in self.lines for point in line.extent()]
        for member in boxes:
            corners += [(member.x, member.y), (member.right, member.bottom)]
        left = min(x for x, _ in corners)
        top = min(y for _, y in corners)
        self.port = boxes[0].middle - left
        # The label of the arrow from above begins beside the arrow, and has 2 pixels behind it.
        self.width = max(max(x for x, _ in corners) - left, self.port + (_BESIDE_ARROW + 2) + width_of(self.label))
        self.height = max(y for _, y in corners) - top
        return left, top


@define(frozen=True)
class _Columns:
    """Where the groups of a box are, in columns.

    Attributes:
        places: left edge and top of each group.
        starts: left edge of each column, by the number of its first group.
        width: of all.
        height: of all.
    """

    places: list[Point]
    starts: dict[int, float]
    width: float
    height: float


def _columns(groups: list[_Group]) -> _Columns:
    """Arrange groups in the number of columns that shows them largest; in one if they are not tall."""
    total = fsum(group.height + _GAP for group in groups) - _GAP
    tallest = max(group.height for group in groups)
    best = one_column = _packed(groups, inf)
    best_scale = 0.0
    count = 1
    while count <= _MOST_COLUMNS and total >= _HEIGHT_OF_COLUMN:
        columns = one_column if count == 1 else _packed(groups, max(total / count * _FILLING, tallest))
        scale = _scale(columns.width + _MARGINS, columns.height + _MARGINS)
        if scale > best_scale * _WORTH_A_COLUMN:
            best_scale = scale
            best = columns
        if len(columns.starts) < count - 1:
            break  # groups that stay together do not fill as many
        count = count + 1 if count < _EVERY_COUNT else ceil(count * _STEP_OF_COUNTS)
    return best


def _packed(groups: list[_Group], limit: float) -> _Columns:
    """Return where groups are that are stacked in columns of a limited height, side by side.

    Args:
        groups: in order.
        limit: height at which a new column begins, unless its group stays below the one before.
    """
    firsts, tops = _stacked(groups, limit)
    # Arrows between columns run above and below them, and need some space there.
    lift = _GAP / 2 if len(firsts) > 1 else 0.0
    places: list[Point] = []
    starts: dict[int, float] = {}
    x = 0.0  # the left edge of the column
    for first, end in pairwise([*firsts, len(groups)]):
        # Groups are placed by their ports, so that the arrows from group to group are in one line.
        column = groups[first:end]
        width_before_ports = max(group.port for group in column)
        width_behind_ports = max(group.width - group.port for group in column)
        for group, top in zip(column, tops[first:end]):
            places.append((x + width_before_ports - group.port, top + lift))
        starts[first] = x
        x += width_before_ports + width_behind_ports + 2 * _GAP
    lowest = max(top + group.height for top, group in zip(tops, groups))
    return _Columns(places, starts, x - 2 * _GAP, lowest + 2 * lift)


def _stacked(groups: list[_Group], limit: float) -> tuple[list[int], list[float]]:
    """Return the number of the first group of each column, and the top of each group in its column.

    Args:
        groups: in order.
        limit: height at which a new column begins, unless its group stays below the one before.
    """
    firsts = [0]
    tops: list[float] = []
    y = 0.0
    heights_together = _heights_together(groups)
    for number, group in enumerate(groups):
        is_first = number == 0
        if not is_first and not group.stays and y + _GAP + heights_together[number] > limit:
            firsts.append(number)
            y = 0.0
        elif not is_first:
            y += _GAP
        tops.append(y)
        y += group.height
    return firsts, tops


def _heights_together(groups: list[_Group]) -> list[float]:
    """Return the height of each group with those after it that stay in its column."""
    heights = [group.height for group in groups]
    for number in range(len(groups) - 1, 0, -1):
        if groups[number].stays:
            heights[number - 1] += _GAP + heights[number]
    return heights


def _place_groups(box: Box, groups: list[_Group]) -> None:
    """Put the groups of a box into columns, with the arrows between them.

    Args:
        box: whose boxes, each placed in its group, are moved to their places, and which gets its arrows and its size.
        groups: in order; the label of an arrow to one gets the shape of what the arrow carries.
    """
    for group in groups:  # first: `measure` reserves room for labels
        if group.arrow_from != _NONE:
            group.label = _label_with_shape(group.label, box.inside[group.arrow_from])
    upper_left_corners = [group.measure(box) for group in groups]
    columns = _columns(groups)
    for group, (left, top), (x, y) in zip(groups, upper_left_corners, columns.places):
        for number in group.members:
            box.inside[number].move(x - left, y - top)
        for line in group.lines:
            line.move(x - left, y - top)
        box.lines += group.lines
    for number, group in enumerate(groups):
        if group.arrow_from != _NONE:
            column = columns.starts.get(number)  # `None` for a group that is not the first of a column
            box.lines.append(_arrow_between(box, group, column))
    box.columns = [x - _GAP / 2 for x in columns.starts.values() if x]  # all but the first, which begins at 0
    _enclose_content(box, columns.width, columns.height)


def _arrow_between(box: Box, group: _Group, column: float | None) -> Line:
    """Return the arrow to the first box of a group from a box above.

    Args:
        box: that contains both.
        group: the group.
        column: the left edge of its column, if it is the first in it; `None` if the arrow stays in a column.
    """
    first_member = group.members[0]
    first = box.inside[first_member]
    start_x, start_y = box.inside[group.arrow_from].foot
    start = start_x, start_y
    end_x = first.middle
    end_y = first.y
    end = end_x, end_y
    middle = (start_y + end_y) / 2
    above_end = end_x + _BESIDE_ARROW, end_y - 4  # a label's letters reach 3 pixels below this
    if column is not None:  # from the bottom of a column to the top of the next
        low = start_y + _GAP / 3
        side = column - _GAP
        high = end_y - _GAP / 3
        points = [start, (start_x, low), (side, low), (side, high), (end_x, high), end]
        return Line(group.arrow_from, first_member, points, group.label, above_end)
    if abs(start_x - end_x) > 1:  # a bend of a pixel would not be seen as one
        points = [start, (start_x, middle), (end_x, middle), end]
        return Line(group.arrow_from, first_member, points, group.label, above_end)
    # A straight arrow has its label beside its middle: 4 pixels below it is the base line of the letters.
    return Line(group.arrow_from, first_member, [start, end], group.label, (end_x + _BESIDE_ARROW, middle + 4))


def _label_with_shape(label: str, source: Box) -> str:
    """Return the text of an arrow: its label, and the shape of what it carries, cut if it is long."""
    return _cut(carried_text(label, source.block.shape), _LABEL_CHARS)


def _lay_out_chain(box: Box) -> None:
    """Stack blocks, each with an arrow to the next; in columns if they would be too tall."""
    groups: list[_Group] = []
    together = 0  # the number of blocks up to here that stay in one column
    for number, inner in enumerate(box.inside):
        is_first = number == 0
        is_following = not is_first and inner.block.category in _FOLLOWING and not inner.inside
        stays = is_following and together < _MOST_TOGETHER
        together = together + 1 if stays else 1
        groups.append(_Group([number], arrow_from=_NONE if is_first else number - 1, stays=stays))
    _place_groups(box, groups)


_FOLLOWING = ("norm", "activation")
"""Categories of layers that stand in the column of the layer before them."""
_MOST_TOGETHER = 4
"""Maximum number of blocks that stay in one column for this reason."""


def _lay_out_side_by_side(box: Box) -> None:
    """Arrange blocks side by side, in rows if they would be too wide."""
    area = fsum((block.width + _GAP) * (block.height + _GAP) for block in box.inside)
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
            y = y + row_height + _GAP
            row_height = 0.0
        block.x = x
        block.y = y
        x = x + block.width + _GAP
        row_height = max(row_height, block.height)
        width = max(width, x - _GAP)
    _enclose_content(box, width, y + row_height)


_FEWEST_CUTS = 3
"""Least number of nodes that all flow passes through of a graph that is cut at them."""


def _lay_out_graph(box: Box) -> None:
    """Lay a graph out from input to output: branches side by side; others cut at nodes that all flow passes through.

    Branches between two such nodes are attached to the upper one; a new column may begin after a single arrow.
    """
    flows = _shortened(box, box.block.flows)
    is_only_branches = is_branching(box.block)
    levels, leaving, cuts = _levels(len(box.inside), flows)
    if not is_only_branches and len(cuts) >= _FEWEST_CUTS:
        _place_groups(box, _groups(box, levels, leaving, cuts))
        return
    box.lines = _layered(box, list(range(len(box.inside))), flows, keep_order=is_only_branches)
    corners = [(node.right, node.bottom) for node in box.inside]
    corners += [point for line in box.lines for point in line.extent()]
    _enclose_content(box, max(x for x, _ in corners), max(y for _, y in corners))


def _levels(count: int, flows: list[Flow]) -> tuple[list[list[int]], list[list[Flow]], list[int]]:
    """Return the nodes of each layer, the flows that leave it, and the cuts: layers of one node that all flow passes.

    Args:
        count: number of nodes.
        flows: between them.
    """
    ranks = ranks_of(count, flows)
    levels = _by_level(ranks)
    leaving: list[list[Flow]] = [[] for _ in levels]
    # How many more flows pass beside the nodes of a layer than beside those of the layer before: a flow passes the
    # layers between its ends, from the one after its start to the one before its end. A flow back from the last layer
    # begins and ends behind all.
    changes = [0] * (len(levels) + 1)
    for flow in flows:
        first = ranks[flow.start]
        last = max(ranks[flow.end], first + 1)  # a flow back passes no layer
        changes[first + 1] += 1
        changes[last] -= 1
        leaving[first].append(flow)
    cuts = []
    for rank, (level, flows_beside) in enumerate(zip(levels, accumulate(changes))):
        if flows_beside == 0 and len(level) == 1:
            cuts.append(rank)
    return levels, leaving, cuts


def _by_level(ranks: list[int]) -> list[list[int]]:
    """Return the nodes of each layer, by the layer of each node."""
    levels: list[list[int]] = [[] for _ in range(max(ranks, default=0) + 1)]
    for node, rank in enumerate(ranks):
        levels[rank].append(node)
    return levels


def _groups(box: Box, levels: list[list[int]], leaving: list[list[Flow]], cuts: list[int]) -> list[_Group]:
    """Return the groups of a graph: each begins after a single arrow, or in a new column.

    The boxes of a group are placed relative to each other; `_place_groups` moves them to where the group is.

    Args:
        box: of the graph.
        levels: the nodes of each layer.
        leaving: the flows that leave each layer.
        cuts: the layers of one node that all flow passes through, one at least.
    """
    height_of_column = _height_that_fills_screen(box, levels)  # before layers are laid out, which widens boxes
    # What is above the first cut is laid out together with its node, however high: no column begins inside of it.
    first_cut = cuts[0]
    (first_node,) = levels[first_cut]
    groups = [_Group([first_node])]
    nodes_above = list(chain.from_iterable(levels[:first_cut]))
    if nodes_above:
        _attach(box, groups, first_node, nodes_above, list(chain.from_iterable(leaving[:first_cut])), inf)
    # Then from cut to cut. The last part ends behind all layers; it has no single node, which would be a cut itself.
    for cut, next_cut in pairwise([*cuts, len(levels)]):
        (node_of_cut,) = levels[cut]
        nodes = list(chain.from_iterable(levels[cut + 1 : next_cut + 1]))
        flows = list(chain.from_iterable(leaving[cut:next_cut]))
        is_single_arrow = len(nodes) == 1 and len(flows) == 1
        if is_single_arrow:
            groups.append(_Group(nodes, arrow_from=node_of_cut, label=flows[0].label))
        elif nodes:
            _attach(box, groups, node_of_cut, nodes, flows, height_of_column)
    return groups


def _height_that_fills_screen(box: Box, levels: list[list[int]]) -> float:
    """Return the height of columns of a graph with which these fill the screen."""
    height = 0.0
    for level in levels:
        height += max((box.inside[number].height for number in level), default=0) + _GAP
    # Branches make a column somewhat wider than a node.
    width = 1.6 * fsum(node.width for node in box.inside) / len(box.inside) + _MARGINS
    screen_width, screen_height = SCREEN
    return max(_HEIGHT_OF_COLUMN, sqrt(height * width * screen_height / screen_width))


def _shortened(box: Box, flows: list[Flow]) -> list[Flow]:
    """Return the flows of a graph, with a copy of a distant input or output in place of a very long arrow.

    Args:
        box: of the graph, which gets the boxes of the copies.
        flows: between its nodes.
    """
    ranks = ranks_of(len(box.inside), flows)
    arrow_counts = Counter(number for flow in flows for number in (flow.start, flow.end))
    shortened: list[Flow] = []
    for flow in flows:
        is_from_input = box.inside[flow.start].block.kind == "end"
        is_to_output = box.inside[flow.end].block.kind == "end"
        original = flow.start if is_from_input else flow.end
        is_long = ranks[flow.end] - ranks[flow.start] > _LONGEST
        # The last arrow of an input or output stays.
        if not is_long or is_from_input == is_to_output or arrow_counts[original] < 2:
            shortened.append(flow)
            continue
        arrow_counts[original] -= 1
        # The copy has the first line of the original, and what the arrow carried.
        without_shape = ()
        carried = carried_text(flow.label, without_shape)
        lines = [f"{line} {carried}".strip() for line in box.inside[original].block.lines[:1]]
        copy = len(box.inside)
        box.inside.append(_box(Block(name="", title="", kind="end", lines=lines), inside=[]))
        shortened.append(Flow(copy, flow.end) if is_from_input else Flow(flow.start, copy))
    return shortened


def _attach(
    box: Box, groups: list[_Group], top: int, added: list[int], flows: list[Flow], height_of_column: float
) -> None:
    """Lay nodes out around a node of the last group, whose place they continue from, and add them to the group.

    Args:
        box: of the graph.
        groups: those so far. If the node is further down than a column reaches, a new one begins, with a copy of it.
        top: number of the node, which stays where it is. Flows lead from it to the others; of nodes above the first
            cut, which begin no column, they lead to it.
        added: numbers of the nodes to lay out.
        flows: between all of them.
        height_of_column: at which a column ends.
    """
    above = box.inside[top]
    if above.y > height_of_column:
        number = len(box.inside)
        box.inside.append(_box(Block(above.block.name, above.block.title, mark="again"), inside=[]))
        groups.append(_Group([number], arrow_from=top))
        flows = [Flow(number, flow.end, flow.label) if flow.start == top else flow for flow in flows]
        top = number
        above = box.inside[number]
    x_before = above.x
    y_before = above.y
    lines = _layered(box, [top, *added], flows)
    # The node stays where it was, and the others follow it.
    dx = x_before - above.x
    dy = y_before - above.y
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
    _widen(box, flows)
    # Below, a node is its place among the members.
    places = {number: place for place, number in enumerate(members)}
    nodes = [box.inside[number] for number in members]
    edges = [(places[flow.start], places[flow.end]) for flow in flows]
    levels = ranks_of(len(nodes), [Flow(*edge) for edge in edges])
    links, bends = _with_bends(levels, edges)  # the levels are those of the bends, too, from here on
    layers = _by_level(levels)
    arrows: list[_Arrow] = []
    for flow, (start, end), bends_of_edge, label in zip(flows, edges, bends, _labels_of(box, flows)):
        arrows.append(_Arrow(flow, start, end, bends_of_edge, label))
    widths = [node.width for node in nodes] + _widths_of_bends(arrows, first=len(nodes), end=len(levels))
    middles = _across(layers, links, nodes, widths, keep_order=keep_order)
    _set_ends(arrows, nodes, middles)
    _set_rows(arrows, levels)
    extents = _down(nodes, layers, [(levels[arrow.start], arrow.row) for arrow in arrows])
    return [_line_of(arrow, nodes, levels, middles, extents) for arrow in arrows]


@define(eq=False)
class _Arrow:
    """An arrow of a graph that is laid out in layers.

    Attributes:
        flow: the edge that it shows.
        start: the place of its first node.
        end: the place of its last one.
        bends: its bends, one in each layer that it passes. They have the numbers behind the places of all nodes.
        label: its text; empty for none.
        leaving: where it leaves its first node, across.
        entering: where it enters its last one.
        row: the row of its label in the space below the layer that it leaves, from 0; `_NONE` if it has no row.
        left: the left end of its label, if that has a row.
    """

    flow: Flow
    start: int
    end: int
    bends: list[int]
    label: str
    leaving: float = 0.0
    entering: float = 0.0
    row: int = _NONE
    left: float = 0.0

    @property
    def bend_of_label(self) -> int:
        """The bend beside which the label is, in the middle of its line; `_NONE` if it begins beside the arrow."""
        return self.bends[len(self.bends) // 2] if self.bends and self.label else _NONE


def _widths_of_bends(arrows: list[_Arrow], first: int, end: int) -> list[float]:
    """Return the widths of the bends with the numbers from `first` to before `end`: a label at one has room.

    A label is beside its line. A place is symmetric: there is as much room on the other side.
    """
    widths = [_BEND_WIDTH] * (end - first)
    for arrow in arrows:
        if arrow.bend_of_label != _NONE:
            widths[arrow.bend_of_label - first] = 2 * (_BESIDE_ARROW + width_of(arrow.label)) + _BEND_WIDTH
    return widths


def _set_rows(arrows: list[_Arrow], levels: list[int]) -> None:
    """Set `row` and `left` of arrows with labels beside them.

    Args:
        arrows: the arrows of a graph.
        levels: the layer of each node.
    """
    labels = [arrow.label if arrow.bend_of_label == _NONE else "" for arrow in arrows]
    leaving = [arrow.leaving for arrow in arrows]
    # Where each arrow is at the next layer: what passes that goes down first.
    below = [arrow.leaving if arrow.bends else arrow.entering for arrow in arrows]
    rows, lefts = _rows(labels, leaving, below, [levels[arrow.start] for arrow in arrows])
    for arrow, row, left in zip(arrows, rows, lefts):
        arrow.row = row
        arrow.left = left


def _line_of(arrow: _Arrow, nodes: list[Box], levels: list[int], middles: list[float], extents: list[Point]) -> Line:
    """Return an arrow as a line, with its label.

    Args:
        arrow: the arrow.
        nodes: the nodes, in their positions.
        levels: the layer of each node and bend.
        middles: their centres.
        extents: upper and lower edge of each layer.
    """
    # Straight down to the lower edge of its layer, and straight through each that it passes.
    _, bottom = extents[levels[arrow.start]]
    points = [(arrow.leaving, nodes[arrow.start].bottom), (arrow.leaving, bottom)]
    for bend in arrow.bends:
        upper, lower = extents[levels[bend]]
        points += [(middles[bend], upper), (middles[bend], lower)]
    points.append((arrow.entering, nodes[arrow.end].y))
    line = Line(arrow.flow.start, arrow.flow.end, _without_straight(points))
    # A place of a label is the left end of the base line of its letters.
    bend = arrow.bend_of_label
    if bend != _NONE:
        line.label = arrow.label
        upper, lower = extents[levels[bend]]
        # Beside the middle of the bend's line: half of the letters' height, SMALL - 2, is above.
        line.at = (middles[bend] + _BESIDE_ARROW, (upper + lower + SMALL) / 2 - 1)
    elif arrow.row != _NONE:
        line.label = arrow.label
        # In its row below the layer, a pixel above the next row.
        line.at = (arrow.left, bottom + (arrow.row + 1) * _ROW - 1)
    return line


def _labels_of(box: Box, flows: list[Flow]) -> list[str]:
    """Return the text of each arrow of a graph; no text if there are so many that they would only hide each other."""
    if len(flows) > _MOST_LABELLED:
        return [""] * len(flows)
    return [_label_with_shape(flow.label, box.inside[flow.start]) for flow in flows]


def _set_ends(arrows: list[_Arrow], nodes: list[Box], middles: list[float]) -> None:
    """Set where arrows leave a node and where they enter one, across.

    Args:
        arrows: the arrows of a graph.
        nodes: the nodes, in their positions across.
        middles: the centres of nodes and bends.
    """
    first_bends = [middles[arrow.bends[0]] if arrow.bends else None for arrow in arrows]
    last_bends = [middles[arrow.bends[-1]] if arrow.bends else None for arrow in arrows]
    leaving = _ports(nodes, [(arrow.start, arrow.end) for arrow in arrows], first_bends)
    entering = _ports(nodes, [(arrow.end, arrow.start) for arrow in arrows], last_bends)
    for arrow, arrow_leaving, arrow_entering in zip(arrows, leaving, entering):
        arrow.leaving = arrow_leaving
        arrow.entering = arrow_entering


def _widen(box: Box, flows: list[Flow]) -> None:
    """Make the boxes of a graph wide enough for the arrows that leave them, and for those that enter them."""
    for ends in (Counter(flow.start for flow in flows), Counter(flow.end for flow in flows)):
        for number, count in ends.items():
            if count > 1:
                node = box.inside[number]
                node.width = max(node.width, (count + 1) * _PORT)


def _down(nodes: list[Box], layers: list[list[int]], rows: list[tuple[int, int]]) -> list[Point]:
    """Place nodes below each other; return upper and lower edge of each layer.

    Args:
        nodes: of the graph; those of `layers` beyond are bends.
        layers: the nodes of each.
        rows: the layer above each label, and its row, from 0; `_NONE` needs no space.
    """
    space = [_SPACE_BELOW_LAYER] * len(layers)
    """The space below each layer, in which its labels have rows."""
    for level, row in rows:
        space[level] = max(space[level], (row + 1) * _ROW + _SPACE_BESIDE_ROWS)
    extents: list[Point] = []
    y = 0.0
    for layer, space_below in zip(layers, space):
        boxes = [nodes[node] for node in layer if node < len(nodes)]
        bottom = y + max((box.height for box in boxes), default=0.0)
        for box in boxes:
            box.y = y
        extents.append((y, bottom))
        y = bottom + space_below
    return extents


def _without_straight(points: list[Point]) -> list[Point]:
    """Return a line without points that are on a vertical one anyway."""
    bends = points[:1]
    for point, after in pairwise(points[1:]):
        x_before, _ = bends[-1]
        x, _ = point
        x_after, _ = after
        if not x_before == x == x_after:
            bends.append(point)
    return [*bends, points[-1]]


def _rows(
    labels: list[str], leave: list[float], enter: list[float], layers: list[int]
) -> tuple[list[int], list[float]]:
    """Return the row of each label in the space below its layer, from 0, and its left end, beside its arrow.

    The row is `_NONE` if there is no room, or no label.

    Args:
        labels: the texts.
        leave: where each arrow leaves its node, across.
        enter: where it is at the next layer.
        layers: the layer that each arrow leaves.
    """
    # A first try, as if all arrows went straight down, says how many rows there are. From that follows how far down the
    # middle of each row is, and where a slanting arrow is there. Straight arrows need no heights.
    rows, lefts = _rows_beside(labels, leave, enter=leave, layers=layers, counts={})
    counts: dict[int, int] = {}
    for layer, row in zip(layers, rows):
        counts[layer] = max(counts.get(layer, 0), row + 1)
    better_rows, better_lefts = _rows_beside(labels, leave, enter, layers, counts)
    for layer, count in counts.items():
        labelled = [number for number, other in enumerate(layers) if other == layer and labels[number]]
        # The second try counts where it needs no more rows, or two instead of one: where arrows run together there may
        # be less room than where they leave.
        if all(0 <= better_rows[number] < max(count, 2) for number in labelled):
            for number in labelled:
                rows[number] = better_rows[number]
                lefts[number] = better_lefts[number]
    return rows, lefts


def _rows_beside(
    labels: list[str], leave: list[float], enter: list[float], layers: list[int], counts: dict[int, int]
) -> tuple[list[int], list[float]]:
    """Return the row of each label and its left end: the first row in which it does not touch the one before.

    The row of an arrow without a label is `_NONE`.

    Args:
        labels: of each arrow; empty for none.
        leave: where each arrow leaves its layer, from the left.
        enter: where it enters the next one.
        layers: the layer that each arrow leaves.
        counts: layer → the number of rows below it, by which the space is as high; 1 where none is given.
    """
    rows = [_NONE] * len(labels)
    lefts = list(leave)
    free: dict[tuple[int, int], float] = {}
    """Where the free part of each row of a layer begins: labels are placed from left to right."""
    for number in sorted(range(len(labels)), key=lambda number: (leave[number] + enter[number], number)):
        if not labels[number]:
            continue
        space = max(_SPACE_BELOW_LAYER, counts.get(layers[number], 1) * _ROW + _SPACE_BESIDE_ROWS)
        for row in range(_MOST_ROWS):
            # How far down the middle of the row is, from 0 to 1.
            share = min((row + 0.5) * _ROW / space, 1.0)
            left = leave[number] + (enter[number] - leave[number]) * share + _BESIDE_ARROW
            place = layers[number], row
            if free.get(place, -inf) <= left:
                rows[number] = row
                lefts[number] = left
                free[place] = left + width_of(labels[number]) + _BETWEEN_LABELS
                break
    return rows, lefts


def _across(
    layers: list[list[int]], links: list[tuple[int, int]], nodes: list[Box], widths: list[float], *, keep_order: bool
) -> list[float]:
    """Place nodes across their layers, and the bends between them.

    Args:
        layers: the numbers of the nodes and bends of each layer, which are put in order.
        links: the edges from one layer to the next.
        nodes: the boxes, which get positions.
        widths: of nodes and bends; bends have the numbers behind those of nodes.
        keep_order: whether the order in the layers stays.

    Returns:
        The centre of each, from the left edge of all.
    """
    bend_count = len(widths) - len(nodes)
    weights = [1.0] * len(nodes) + [_BEND_WEIGHT] * bend_count
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for start, end in links:
        below[start].append(end)
        above[end].append(start)
    middles = [0.0] * len(widths)
    # To begin with, the nodes of each layer are side by side in the middle.
    for layer in layers:
        _spread(layer, [0.0] * len(layer), [1.0] * len(layer), widths, middles)
    for sweep in range(_SWEEPS):
        # Down by the neighbours above, and then up by those below, as positions depend on both.
        is_down = sweep % 2 == 0
        # The last two sweeps move nodes in a fixed order.
        is_sorting = sweep < _SWEEPS - 2 and not keep_order
        for layer in layers if is_down else reversed(layers):
            _move_to_neighbours(layer, above if is_down else below, weights, widths, middles, is_sorting)
    left = min((middle - width / 2 for middle, width in zip(middles, widths)), default=0.0)
    for node, middle in zip(nodes, middles):
        node.x = middle - node.width / 2 - left
    return [middle - left for middle in middles]


def _ports(nodes: list[Box], edges: list[tuple[int, int]], bends: list[float | None]) -> list[float]:
    """Return where each arrow meets its node: spread over the width, in the order of the other ends.

    Args:
        nodes: the nodes, in their positions across.
        edges: for each arrow the node that it meets, and the one at its other end.
        bends: its bend next to the node, if there is one.
    """
    at_node: dict[int, list[tuple[float, int]]] = {}
    """For each node the other ends of its arrows, across, and the numbers of these."""
    for number, (own, other) in enumerate(edges):
        bend = bends[number]
        other_end = nodes[other].middle if bend is None else bend
        at_node.setdefault(own, []).append((other_end, number))
    ports = [0.0] * len(edges)
    for own, arrows in at_node.items():
        for rank, (_, number) in enumerate(sorted(arrows), 1):
            ports[number] = nodes[own].x + nodes[own].width * rank / (len(arrows) + 1)
    return ports


def _with_bends(levels: list[int], edges: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Add a node for each bend of an edge in a layer that it passes; none if these would be too many.

    Args:
        levels: the layer of each node; those of the bends are appended to it.
        edges: the edges.

    Returns:
        The edges between all nodes, each from one layer to the next if there are bends, and the bends of each edge.
    """
    links: list[tuple[int, int]] = []
    bends: list[list[int]] = []
    count = sum(max(levels[end] - levels[start] - 1, 0) for start, end in edges)
    for start, end in edges:
        passed = range(levels[start] + 1, levels[end]) if count <= _MAX_BENDS else range(0)
        bends_of_edge = list(range(len(levels), len(levels) + len(passed)))
        bends.append(bends_of_edge)
        levels += passed
        links += pairwise([start, *bends_of_edge, end])
    return links, bends


def _move_to_neighbours(
    layer: list[int],
    neighbours: list[list[int]],
    weights: list[float],
    widths: list[float],
    middles: list[float],
    is_sorting: bool,
) -> None:
    """Move the nodes of a layer near to the middle of their neighbours in the next.

    Args:
        layer: the numbers of its nodes, which are put in order of these middles if `is_sorting`.
        neighbours: those of each node of the graph.
        weights: how much each node resists a displacement.
        widths: of all nodes.
        middles: the centres of all nodes, which are changed.
        is_sorting: see `layer`.
    """
    wanted = {node: _mean(neighbours[node], middles, middles[node]) for node in layer}
    if is_sorting:
        layer.sort(key=wanted.__getitem__)
    weights_of_layer = [weights[node] for node in layer]
    _spread(layer, [wanted[node] for node in layer], weights_of_layer, widths, middles)


def _mean(others: list[int], middle: list[float], default: float) -> float:
    """Return the mean position of some nodes; a default for none.

    Ties decide the order of nodes, so sums are exact: those of `sum` depend on the release of Python.
    """
    return fsum(middle[other] for other in others) / len(others) if others else default


def _spread(
    layer: list[int], wanted: list[float], weights: list[float], widths: list[float], middles: list[float]
) -> None:
    """Move the nodes of a layer as near to their desired positions as order and widths allow.

    Args:
        layer: numbers of the nodes, in order.
        wanted: the desired centre of each.
        weights: how much each resists a displacement.
        widths: of all nodes.
        middles: the centres of all nodes, which are changed.
    """
    # Where each node would be if all were side by side. With these subtracted, nodes that touch have equal positions,
    # and nodes in the right order have increasing ones.
    offsets: list[float] = []
    offset = 0.0
    for number, node in enumerate(layer):
        if number:
            offset += (widths[layer[number - 1]] + widths[node]) / 2 + _GAP
        offsets.append(offset)
    positions = _nondecreasing([target - offset for target, offset in zip(wanted, offsets)], weights)
    for node, position, offset in zip(layer, positions, offsets):
        middles[node] = position + offset


def _nondecreasing(wanted: list[float], weights: list[float]) -> list[float]:
    """Return the numbers in nondecreasing order that are nearest to others, by weighted squares: isotonic regression.

    Args:
        wanted: the other numbers.
        weights: of each, positive.
    """
    # Neighbours in the wrong order become a pool, each with their mean.
    pools: list[tuple[float, float, int]] = []
    """The weighted sum of the numbers in each, its weight, and how many they are."""
    for target, weight in zip(wanted, weights):
        total = target * weight
        mass = weight
        size = 1
        while pools and pools[-1][0] / pools[-1][1] >= total / mass:
            pool_total, pool_mass, pool_size = pools.pop()
            total += pool_total
            mass += pool_mass
            size += pool_size
        pools.append((total, mass, size))
    result: list[float] = []
    for total, mass, size in pools:
        result += [total / mass] * size
    return result
