"""Pages: one file of HTML with a graph and its positions as data, and the programs that draw it. A content is what is
inside a container when it is open: boxes and arrows with their positions.

No text of a file becomes markup. Data are JSON with escaped `<`, `>` and `&`, the programs set `textContent` only, and
the page forbids every script but its own two.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from html import escape
from typing import Any

from ...nn.blocks import Block
from ...text import printable
from ...tools.view import Fold, view_of
from .boxes import Box, Line, boxes_in
from .layout import lay_out
from .pictures import ghost_classes, web_file

ROOMY = 1_700_000
"""Characters of the graph as JSON beyond which long texts are cut."""
MAX_CHARS = 2_500_000
"""Characters of the graph as JSON beyond which it is refused."""
_GENERATOR = '<meta name="generator" content="t7bridge draw">'
HEAD_OF_PAGE = 1000
"""First bytes of a page, in which it says that it is one."""
_NOT_IN_CONTAINER = -1
"""Number of a box that is no block of the container: a copy, or the block around one repetition of a sequence."""


def as_page(graph: str, places: str, title: str) -> str:
    """Return a page as HTML, with the programs that show it; no other script may run in it.

    Args:
        graph: the graph as JSON in which nothing is markup, as `as_data` returns it.
        places: the result of `places_of`, likewise.
        title: of the page.
    """
    theme, style, *scripts = map(web_file, ("theme.css", "page.css", "layout.js", "page.js"))
    # Only the scripts with these hashes may run.
    hashes = " ".join(f"'sha256-{_script_hash(script)}'" for script in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'{_GENERATOR}\n<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
        f"<style>{theme}{style}</style>\n</head>\n"
        f'<body>\n<script type="application/json" id="graph">{graph}</script>\n'
        f'<script type="application/json" id="places">{places}</script>\n'
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body>\n</html>\n"
    )


def as_data(value: Any) -> str:
    """Return a value as JSON in which nothing is markup."""
    return _without_markup(_compact(value))


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _without_markup(text: str) -> str:
    """Return JSON with the characters of HTML's markup as escapes of JSON, so that it cannot end a script element."""
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def places_of(blocks: list[Block], folds: dict[int, list[Fold]], opened: set[int], first_view: Box) -> str:
    """Return the positions that a page needs, as a JSON object without markup.

    `contents` is a list of contents, equal ones once. `of` has for each container, by its number, up to three indexes
    in that list: of its content with the containers inside closed; of the same with repeated blocks one by one; of what
    is seen first. Without repeated blocks the first two are one, and without a third only one of them is there. `root`
    is the box of the model while it is closed, and `open` are the numbers of the containers that are open at first.

    Args:
        blocks: all of them, each before those inside it.
        folds: the runs in each container that are shown once, by id.
        opened: the containers that are open at first, by id.
        first_view: the box of the model as it is seen first.
    """
    numbers = {id(block): number for number, block in enumerate(blocks)}
    contents = _Contents(numbers)
    model = blocks[0]
    for container in blocks:
        if container.inside:
            for view in _views_when_open(container, folds):
                contents.add(container, _laid_out(view, model, first_view))
    for box in boxes_in(first_view):
        # A block of a view is a copy of its `source`; one around a repetition has none.
        open_container = box.block.source if box.inside else None
        if open_container is not None:
            contents.add_first_seen(open_container, box)
    closed = _laid_out(view_of(model, folds, opened=()), model, first_view)
    data = {
        "root": _entry(closed, outer=closed, number=0, content=""),
        "open": sorted(numbers[ident] for ident in opened),
        "of": contents.of,
    }
    # The contents are JSON already: they become the last entry of the object, which is left open for them.
    opened_object = _compact(data).removesuffix("}")
    contents_of_list = ",".join(contents.indexes)
    return _without_markup(f'{opened_object},"contents":[{contents_of_list}]}}')


def _views_when_open(container: Block, folds: dict[int, list[Fold]]) -> list[list[Block]]:
    """Return the views of an open container with those in it closed: as it is, and with repeated blocks one by one.

    Args:
        container: the container.
        folds: the runs in each container that are shown once, by id; a container without any has one view.
    """
    only_this = {id(container)}
    views = [view_of(container, folds, only_this)]
    if id(container) in folds:
        no_folds: dict[int, list[Fold]] = {}
        views.append(view_of(container, no_folds, only_this))
    return views


def _laid_out(view: list[Block], model: Block, first_view: Box) -> Box:
    """Return the box of a view.

    Args:
        view: of a container or of the model: copies of blocks.
        model: the block of the model.
        first_view: its box as it is seen first, whose lines of text also tell its input and output.
    """
    shown, *_ = view
    if shown.source is model:
        shown.lines = first_view.block.lines
    return lay_out(view)


class _Contents:
    """The contents of containers as JSON, equal ones once.

    Args:
        numbers: of all blocks, by id.

    Attributes:
        indexes: the index of each content in the list, in which they are in this order, by its JSON.
        of: the indexes of the contents of each container, by its number.
    """

    def __init__(self, numbers: dict[int, int]) -> None:
        self._numbers = numbers
        self.indexes: dict[str, int] = {}
        self.of: dict[int, list[int]] = {}

    def add(self, container: Block, box: Box) -> None:
        """Add the content of a container as it is laid out in a box."""
        numbers_inside = {id(inner): number for number, inner in enumerate(container.inside)}
        content = _compact(_content(box, numbers_inside))
        index = self.indexes.setdefault(content, len(self.indexes))
        self.of.setdefault(self._numbers[id(container)], []).append(index)

    def add_first_seen(self, container: Block, box: Box) -> None:
        """Add the content of a container that is seen first, as the third, after the others were added."""
        indexes = self.of[self._numbers[id(container)]]
        if len(indexes) == 1:  # without repeated blocks, the first two are one
            indexes.append(indexes[0])
        self.add(container, box)


def _content(box: Box, numbers: dict[int, int]) -> list[Any]:
    """Return what is inside a box: `[width, height, columns, boxes, arrows]`, with the left edge of each later column.

    Args:
        box: of a container, or of one repetition of a sequence in it.
        numbers: of the blocks in the container, by id.
    """
    boxes = []
    for inner in box.inside:
        number = _NOT_IN_CONTAINER
        if inner.block.source is not None:
            number = numbers.get(id(inner.block.source), _NOT_IN_CONTAINER)
        # The block around one repetition is only in the picture, and those inside it are the container's: they are
        # listed here. What is inside a container the page finds under its number.
        is_repetition = bool(inner.inside) and number == _NOT_IN_CONTAINER
        content = _content(inner, numbers) if is_repetition else ghost_classes(inner)
        boxes.append(_entry(inner, box, number, content))
    arrows = [_arrow_entry(line, box) for line in box.lines]
    columns = _rounded(left - box.x for left in box.columns)
    return [*_rounded((box.width, box.height)), columns, boxes, arrows]


def _entry(box: Box, outer: Box, number: int, content: list[Any] | str) -> list[Any]:
    """Return a box: `[number, x, y, width, height, text, lines about hidden content, repetitions, content]`.

    The last three are left out if they are the usual ones, which the page adds itself: 0, 1 and no text.

    Args:
        box: the box.
        outer: the one around it, from which positions are.
        number: in the container, or `_NOT_IN_CONTAINER`.
        content: what is inside one repetition of a sequence; `ghost_classes` of any other box.
    """
    block = box.block
    sizes = _rounded((box.x - outer.x, box.y - outer.y, box.width, box.height))
    text = "\n".join(map(printable, box.texts))
    hidden_lines = len(block.summary) if block.kind == "closed" else 0
    last_values = [hidden_lines, block.repeat, content]
    if last_values == [0, 1, ""]:
        last_values = []
    return [number, *sizes, text, *last_values]


def _arrow_entry(line: Line, outer: Box) -> list[Any]:
    """Return an arrow: `[start, end, points]`, and of its label `text, x, y`; positions are from the box around it."""
    coordinates: list[float] = []
    for x, y in line.points:
        coordinates += (x - outer.x, y - outer.y)
    arrow: list[Any] = [line.start, line.end, _rounded(coordinates)]
    if line.label:
        x, y = line.at
        arrow += [printable(line.label), *_rounded((x - outer.x, y - outer.y))]
    return arrow


def _rounded(numbers: Iterable[float]) -> list[float]:
    """Return numbers with one decimal, whole ones as integers."""
    rounded = [round(number, 1) for number in numbers]
    return [int(number) if number == int(number) else number for number in rounded]


def is_page(head: bytes) -> bool:
    """Return whether a file is one of our pages, by its first `HEAD_OF_PAGE` bytes."""
    return _GENERATOR.encode() in head


def _script_hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
