"""Groups of boxes in columns, as many as show the picture largest: a group is a box, or several that stay together, and
an arrow leads to its first box from a box of an earlier group.
"""

from __future__ import annotations

from math import fsum, inf

from attrs import field

from ...data import define
from .boxes import (
    BELOW_BASE_LINE,
    BESIDE_ARROW,
    GAP,
    Box,
    Line,
    Point,
    corners_of,
    label_with_shape,
    scale_on_screen,
    width_of,
)

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
    places: list[Point] = []
    left_edges: dict[int, float] = {}
    left = 0.0
    for column in columns:
        left_edges[len(places)] = left
        # The ports of a column are below each other, so that the arrows from group to group are in one line.
        left_of_ports = max(group.port for group, _ in column)
        right_of_ports = max(group.width - group.port for group, _ in column)
        for group, top in column:
            places.append((left + left_of_ports - group.port, top + space_for_arrows))
        left += left_of_ports + right_of_ports + 2 * GAP
    lowest = max(top + group.height for column in columns for group, top in column)
    return _Columns(places, left_edges, left - 2 * GAP, lowest + 2 * space_for_arrows)


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
