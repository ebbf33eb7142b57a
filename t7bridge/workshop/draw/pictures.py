"""Printers of drawings: SVG for any browser, PNG by any installed converter of SVG, text for Graphviz, which has a
layout of its own, and a self-contained page: the graph and its positions as data, and the program that draws it.

No text of a file becomes markup. In a page data are JSON with escaped `<`, `>` and `&`, the program sets `textContent`
only, and the page forbids every script but its own two.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from math import ceil, dist
from typing import Any
from xml.sax import saxutils

from ...errors import UnsupportedError
from ...nn.blocks import Block
from ...text import printable
from ...tools.view import Fold, view_of
from .boxes import LINE, SIGN, Box, Line, Point, has_sign, texts_of, width_of
from .cells import CELL
from .layout import lay_out

_STYLE = """text{font-family:system-ui,Helvetica,Arial,sans-serif;text-anchor:middle}
svg .l,svg .first{text-anchor:start}svg text.l{fill:none}
svg .page{fill:var(--bg)}
"""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_MOST_PIXELS = 16_000
"""Maximum pixels of a side in browsers."""
_SECONDS_OF_BROWSER = 120
"""What a browser gets for a picture."""
_RADIUS = 8.0
"""Radius of corners of arrows, in pixels."""


ROOMY = 1_700_000
"""Characters of the graph as JSON beyond which long texts are cut."""
MAX_CHARS = 2_500_000
"""Characters of the graph as JSON beyond which it is refused."""
_VARIABLE = re.compile(r"(--[\w-]+):([^;}]+)")
"""A variable that a style defines, and its value."""
_USE = re.compile(r"var\((--[\w-]+)\)")
"""A use of a variable."""
_GENERATOR = '<meta name="generator" content="t7bridge draw">'


def as_svg(root: Box, title: str) -> str:
    """Return the picture.

    Args:
        root: the model's box, with all the others in it.
        title: of the picture.
    """
    width, height = _size(root)
    legend = _legend(root)
    style, colours = _theme()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{_escaped(title)}</title>",
        f"<style>{style}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto" '
        'class="tip"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
        '<rect class="page" width="100%" height="100%"/>',
    ]
    boxes = _boxes_in(root)
    for box in boxes:
        parts += _box(box, colours)
    # Arrows are drawn over all boxes.
    for box in boxes:
        for line in box.lines:
            parts += _arrow(line)
    for number, meaning in enumerate(legend, 1):
        place = f'x="{root.x:.0f}" y="{root.y + root.height + number * LINE + 2:.0f}"'
        parts.append(f'<text {place} class="s first">{_escaped(meaning)}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _size(root: Box) -> tuple[float, float]:
    """Return width and height of a picture: of the model, and of the lines that explain the signs in it."""
    legend = _legend(root)
    width = max([root.width, *map(width_of, legend)])
    return width + 2 * root.x, root.height + 2 * root.y + len(legend) * LINE


_SIGNS = {
    "#": "#0, #1: first, second input of a block",
    "[": "[0], [1]: first, second element of a list",
    "last ": "last X: what X returned one repetition before",
}
"""What signs in texts mean, by their beginnings."""


def _legend(root: Box) -> list[str]:
    """Return what the signs mean that a picture has."""
    texts = [line.label for box in _boxes_in(root) for line in box.lines]
    texts += [text for box in _boxes_in(root) if box.block.kind == "end" for text in box.block.lines]
    return [meaning for sign, meaning in _SIGNS.items() if any(text.startswith(sign) for text in texts)]


def _boxes_in(root: Box) -> list[Box]:
    """Return a box and all boxes in it, level by level."""
    boxes = [root]
    for box in boxes:  # grows
        boxes += box.inside
    return boxes


def _theme() -> tuple[str, dict[str, str]]:
    """Return the style of the pages, for light and dark screens, and its colours; converters know no variables."""
    # The third line has the dark variables once more, for the screen that is dark by itself.
    light_variables, dark_variables, _, *rules = _web("theme.css").splitlines()
    style = "\n".join([_STYLE, *rules])
    light = dict(_VARIABLE.findall(light_variables))
    dark = {**light, **dict(_VARIABLE.findall(dark_variables))}
    light_style = _USE.sub(lambda use: light[use[1]], style)
    dark_style = _USE.sub(lambda use: dark[use[1]], style)
    return f"{light_style}\n@media (prefers-color-scheme: dark) {{\n{dark_style}\n}}", light


def _box(box: Box, colours: dict[str, str]) -> list[str]:
    """Return a box as markup, without what is inside."""
    block = box.block
    # The numbers of pixels are those of pages, see `page.js`.
    radius = 10 if block.kind == "end" else 6
    size = f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{radius}"'
    frame = f'<rect class="b" x="{box.x:.1f}" y="{box.y:.1f}" {size}/>'
    lines = [f'<g class="{" ".join(_classes_of(box))}">']
    if block.hint:
        lines.append(f"<title>{_escaped(block.hint)}</title>")
    if block.repeat > 1:  # a second frame behind the first, which is drawn over it
        lines.append(f'<rect class="b" x="{box.x + 4:.1f}" y="{box.y + 4:.1f}" {size}/>')
    lines.append(frame)
    is_layer = block.kind != "end" and not block.inside and not _ghost_classes(box)
    if is_layer:
        # The colour of its kind, pale over the frame and full in a stripe at the left.
        fill = colours[f"--k-{block.category}"]
        stripe = f'x="{box.x:.1f}" y="{box.y + 3:.1f}" width="4" height="{box.height - 6:.1f}" rx="2"'
        lines.append(frame.replace('class="b"', f'class="tint" fill="{fill}"'))
        lines.append(f'<rect {stripe} fill="{fill}"/>')
    return [*lines, *_texts_in(box), "</g>"]


def _texts_in(box: Box) -> list[str]:
    """Return the texts of a box as markup."""
    block = box.block
    # Where they are in pages: these have a sign at the right of some texts, which make room for it.
    middle = box.middle - SIGN / 2 if has_sign(block) else box.middle
    lines: list[str] = []
    for number, text in enumerate(texts_of(block), 1):
        is_title = number == 1 and block.kind != "end"
        name = "t" if is_title else "s"  # classes of the style: title, small
        place = f'x="{middle:.1f}" y="{box.y + number * LINE + 1:.1f}"'
        lines.append(f'<text {place} class="{name}">{_escaped(text)}</text>')
    return lines


def _classes_of(box: Box) -> list[str]:
    """Return the classes of a box in the style of the pages, which pictures share."""
    block = box.block
    # "n" is a node, "e" an end of a graph, "c" a container.
    classes = ["e", "n"] if block.kind == "end" else ["n"]
    if block.category == "container" or (block.mark == CELL and box.inside):
        classes.append("c")
    if block.mark:
        classes.append(block.mark)
    if _ghost_classes(box):
        classes.append("ghost")
    if any(weight.shared for weight in block.weights):
        classes.append("shared")
    if block.repeat > 1:
        classes.append("repeat")
    return classes


def _ghost_classes(box: Box) -> str:
    """Return the classes of a block that is named once more, next to where an arrow would lead; empty for any other."""
    if box.block.source is not None or box.inside:
        return ""
    return "e ghost" if box.block.kind == "end" else "again ghost"


def _arrow(line: Line) -> list[str]:
    """Return an arrow as markup, with its label."""
    lines = [f'<path class="f" d="{_path(line.points)}" marker-end="url(#arrow)"/>']
    if line.label:
        x, y = line.at
        # The outline that makes it readable is a text of its own: converters paint an outline over the letters.
        for name in ("l", "s first"):
            lines.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{name}">{_escaped(line.label)}</text>')
    return lines


def _path(points: list[Point]) -> str:
    """Return a line with rounded corners, as the attribute `d` of a path in SVG."""
    parts = ["M{:.1f},{:.1f}".format(*points[0])]
    for before, corner, after in zip(points, points[1:], points[2:]):
        begin = _towards(corner, before)
        end = _towards(corner, after)
        parts.append("L{:.1f},{:.1f} Q{:.1f},{:.1f} {:.1f},{:.1f}".format(*begin, *corner, *end))
    parts.append("L{:.1f},{:.1f}".format(*points[-1]))
    return " ".join(parts)


def _towards(point: Point, other: Point) -> Point:
    """Return where a corner begins on the way from one point to another: at most half the way."""
    distance = dist(point, other)
    share = min(_RADIUS, distance / 2) / distance if distance else 0.0
    x, y = point
    other_x, other_y = other
    return x + (other_x - x) * share, y + (other_y - y) * share


def _escaped(text: str) -> str:
    return saxutils.escape(printable(text))


def as_dot(blocks: list[Block]) -> str:
    """Return the graph, with a cluster for each container.

    Args:
        blocks: all of them, each before those inside it.
    """
    numbers = {id(block): number for number, block in enumerate(blocks)}
    style, colours = _theme()
    lines = ["digraph model {", "  compound=true; node [shape=box, style=filled, fontname=Helvetica];"]
    stack: list[tuple[Block | None, str]] = [(blocks[0], "  ")]
    """What is to be written, with its indentation; `None` closes a cluster."""
    edges: list[str] = []
    while stack:
        block, indent = stack.pop()
        if block is None:
            lines.append(f"{indent}}}")
            continue
        number = numbers[id(block)]
        label = "\\n".join(map(_quoted, texts_of(block)))
        if not block.inside:
            pale = "22"  # the last two digits of a colour are its opacity
            fill = _fill_of_mark(block.mark, style) or colours[f"--k-{block.category}"] + pale
            lines.append(f'{indent}n{number} [label="{label}", fillcolor="{fill}"];')
            continue
        lines.append(f'{indent}subgraph cluster_{number} {{ label="{label}"; fontname=Helvetica;')
        stack.append((None, indent))
        stack += [(inner, indent + "  ") for inner in reversed(block.inside)]
        for arrow in block.arrows:
            edges.append(_edge(block.inside[arrow.start], block.inside[arrow.end], arrow.label, numbers))
    return "\n".join([*lines, *edges, "}"]) + "\n"


def _fill_of_mark(mark: str, style: str) -> str:
    """Return the colour that the style of the pages gives to blocks with a mark; empty for none."""
    rule = re.search(rf"\.{mark}>rect\.b{{[^}}]*fill:(#\w+)", style) if mark else None
    return rule[1] if rule else ""


def _edge(start: Block, end: Block, label: str, numbers: dict[int, int]) -> str:
    """Return an arrow. Graphviz has none between clusters: it links the last node of one and the first of the other.

    It is clipped at the clusters.

    Args:
        start: the block that it leaves, which may be a cluster.
        end: the block that it enters, likewise.
        label: its text.
        numbers: of all blocks, by id.
    """
    options = []
    if label:
        options.append(f'label="{_quoted(label)}"')
    if start.inside:
        options.append(f"ltail=cluster_{numbers[id(start)]}")
    if end.inside:
        options.append(f"lhead=cluster_{numbers[id(end)]}")
    while start.inside:
        start = start.inside[-1]
    while end.inside:
        end = end.inside[0]
    text = f" [{', '.join(options)}]" if options else ""
    return f"  n{numbers[id(start)]} -> n{numbers[id(end)]}{text};"


def _quoted(text: str) -> str:
    """Return a text as it may stand between double quotes in Graphviz's language, in one line."""
    return printable(text.replace("\n", " ")).replace("\\", "\\\\").replace('"', '\\"')


def as_png(root: Box, title: str) -> bytes:
    """Return the picture as PNG: by CairoSVG, rsvg-convert, or a headless Chromium.

    Args:
        root: the model's box, with all the others in it.
        title: of the picture.

    Raises:
        UnsupportedError: none of them is installed, or can convert this one.
    """
    data = as_svg(root, title).encode("utf-8", "replace")
    width, height = map(ceil, _size(root))
    try:
        import cairosvg
    except ImportError:
        pass
    else:
        return bytes(cairosvg.svg2png(bytestring=data))
    program = shutil.which("rsvg-convert")
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is not None:
        png = subprocess.run([program], input=data, capture_output=True, check=False).stdout
    elif browser is not None and max(width, height) <= _MOST_PIXELS:
        png = _by_browser(browser, data, width, height)
    else:
        raise UnsupportedError(
            "no converter to .png is installed",
            hint="pip install cairosvg, install rsvg-convert (librsvg), or write .svg or .html.",
        )
    if not png.startswith(b"\x89PNG"):
        raise UnsupportedError("this picture cannot be converted to .png", hint="Write .svg or .html.")
    return png


def _by_browser(program: str, svg: bytes, width: int, height: int) -> bytes:
    """Return a screenshot of a picture as the bytes of a PNG; empty if the browser fails.

    Args:
        program: the path of Chromium, or a browser like it.
        svg: the picture, which holds no scripts.
        width: of the picture, in pixels.
        height: likewise.
    """
    with tempfile.TemporaryDirectory(prefix="t7bridge-", ignore_cleanup_errors=True) as folder:
        source = os.path.join(folder, "picture.svg")
        target = os.path.join(folder, "picture.png")
        with open(source, "wb") as file:
            file.write(svg)
        flags = ["--headless=new", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        is_root = hasattr(os, "geteuid") and os.geteuid() == 0
        if is_root:  # Chromium refuses to run its sandbox as root
            flags.append("--no-sandbox")
        command = [program, *flags, f"--window-size={width},{height}", f"--screenshot={target}", f"file://{source}"]
        try:
            subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS_OF_BROWSER)
            with open(target, "rb") as file:
                return file.read()
        except (OSError, subprocess.TimeoutExpired):
            return b""


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


def _views_when_open(block: Block, folds: dict[int, list[Fold]]) -> list[list[Block]]:
    """Return the views of an open container with those in it closed: as it is, and with repeated blocks one by one.

    Args:
        block: the container.
        folds: the runs in each container that are shown once, by id; a container without any has one view.
    """
    only_this = {id(block)}
    views = [view_of(block, folds, only_this)]
    if id(block) in folds:
        no_folds: dict[int, list[Fold]] = {}
        views.append(view_of(block, no_folds, only_this))
    return views


def places_of(blocks: list[Block], folds: dict[int, list[Fold]], opened: set[int], root: Box) -> str:
    """Return the positions that a page needs, see `as_data`: of the content of each container, equal ones once.

    `contents` is a list, and `of` has for each container the indexes in it of up to three contents: that with the
    containers inside closed; that with repeated blocks one by one; and, if the container is open at first, that which
    is seen then. `root` is the box of the model while it is closed.

    Content is `[width, height, columns, boxes, arrows]`; a box `[number in the container or -1, x, y, width, height,
    text, lines of it about hidden content, repetitions, content of a sequence that repeats, or class of a block that is
    named once more]`; an arrow `[start, end, points, label, its place]`.

    Args:
        blocks: all of them, each before those inside it.
        folds: the runs in each container that are shown once, by id.
        opened: the containers that are open at first, by id.
        root: what is seen first.
    """
    contents = _Contents()
    indexes_of: dict[int, list[int]] = {}
    """The indexes of the contents of each container, by its number."""
    numbers = {id(block): number for number, block in enumerate(blocks)}
    model = blocks[0]
    lines_of_model = root.block.lines  # those about its input and output, too, which the view of a block does not have
    for number, block in enumerate(blocks):
        if block.inside:
            views = _views_when_open(block, folds)
            if block is model:
                for view in views:
                    view[0].lines = lines_of_model
            indexes_of[number] = [contents.add(lay_out(view), block) for view in views]
    for box in _boxes_in(root):
        container = box.block.source
        if box.inside and container is not None:  # it is open at first
            indexes = indexes_of[numbers[id(container)]]
            # Without repeated blocks, the first two contents are one. That which is seen first is the third.
            if len(indexes) == 1:
                indexes.append(indexes[0])
            indexes.append(contents.add(box, container))
    closed_view = view_of(model, folds, set())
    closed_view[0].lines = lines_of_model
    closed = lay_out(closed_view)
    data = {
        "root": _entry(closed, outer=closed, number=0, content=""),
        "open": sorted(numbers[ident] for ident in opened),
        "of": indexes_of,
    }
    # The contents are JSON already: they become the last entry of the object.
    return _without_markup(f'{_compact(data)[:-1]},"contents":[{",".join(contents.indexes)}]}}')


class _Contents:
    """A list of contents of containers as JSON, equal ones once.

    Attributes:
        indexes: the index of each in the list, by the content; in the order of the list.
    """

    def __init__(self) -> None:
        self.indexes: dict[str, int] = {}

    def add(self, box: Box, container: Block) -> int:
        """Add the content of a container as it is laid out in a box, unless there is an equal one; return its index."""
        content = _content(box, {id(inner): number for number, inner in enumerate(container.inside)})
        return self.indexes.setdefault(_compact(content), len(self.indexes))


_NOT_IN_CONTAINER = -1
"""Number of a box that is no block of the container, in data for pages."""


def _content(box: Box, numbers: dict[int, int]) -> list[Any]:
    """Return what is inside a box, see `places_of`.

    Args:
        box: the box.
        numbers: of the blocks in its container, by id.
    """
    boxes = []
    for inner in box.inside:
        source = inner.block.source
        number = _NOT_IN_CONTAINER
        if source is not None:
            number = numbers.get(id(source), _NOT_IN_CONTAINER)
        # The block around one repetition of a sequence is only in the picture, and those inside it are the container's:
        # they are listed here. What is inside a container the page finds under its number.
        is_repetition = bool(inner.inside) and number == _NOT_IN_CONTAINER
        content = _content(inner, numbers) if is_repetition else _ghost_classes(inner)
        boxes.append(_entry(inner, box, number, content))
    arrows = []
    for line in box.lines:
        coordinates: list[float] = []
        for x, y in line.points:
            coordinates += (x - box.x, y - box.y)
        arrow: list[Any] = [line.start, line.end, _rounded(coordinates)]
        if line.label:
            x, y = line.at
            arrow += [printable(line.label), *_rounded((x - box.x, y - box.y))]
        arrows.append(arrow)
    columns = _rounded(left - box.x for left in box.columns)
    return [*_rounded((box.width, box.height)), columns, boxes, arrows]


def _entry(box: Box, outer: Box, number: int, content: Any) -> list[Any]:
    """Return a box, see `places_of`.

    Args:
        box: the box.
        outer: the one around it.
        number: in the container, or `_NOT_IN_CONTAINER`.
        content: of the block around one repetition of a sequence, what is inside it; else `_ghost_classes` of the box.
    """
    block = box.block
    sizes = _rounded((box.x - outer.x, box.y - outer.y, box.width, box.height))
    text = "\n".join(map(printable, box.texts))
    hidden_lines = len(block.summary) if block.kind == "closed" else 0
    rest = [hidden_lines, block.repeat, content]
    if rest == [0, 1, ""]:  # the usual values, which the page adds itself
        rest = []
    return [number, *sizes, text, *rest]


def _rounded(numbers: Iterable[float]) -> list[float]:
    """Return numbers with one decimal, whole ones as integers."""
    rounded = [round(number, 1) for number in numbers]
    return [int(number) if number == int(number) else number for number in rounded]


def is_page(path: str) -> bool:
    """Return whether a file is one of our pages."""
    with open(path, "rb") as file:
        return _GENERATOR.encode() in file.read(1000)


def as_page(graph: str, places: str, title: str) -> str:
    """Return a page as HTML, with the programs that show it; no other script may run in it.

    Args:
        graph: the graph; see `as_data`.
        places: the result of `places_of`, likewise.
        title: of the page.
    """
    theme, style, *scripts = map(_web, ("theme.css", "page.css", "layout.js", "page.js"))
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


def _web(name: str) -> str:
    """Return a file of the pages."""
    return files(__package__).joinpath("web").joinpath(name).read_text("utf-8")


def _script_hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
