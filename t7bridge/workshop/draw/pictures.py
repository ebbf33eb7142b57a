"""Still pictures of drawings: SVG for any browser, PNG by any installed converter of SVG, and text for Graphviz, which
has a layout of its own. No text of a file becomes markup.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from importlib.resources import files
from math import ceil, dist
from typing import Any
from xml.sax import saxutils

from ...data import define
from ...errors import UnsupportedError
from ...nn.blocks import Block
from ...text import printable
from .boxes import LINE, SIGN, Box, Line, Point, boxes_in, has_sign, texts_of, width_of
from .cells import CELL

_STYLE = """text{font-family:system-ui,Helvetica,Arial,sans-serif;text-anchor:middle}
svg .l,svg .first{text-anchor:start}svg text.l{fill:none}
svg .page{fill:var(--bg)}
"""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_HINT_FOR_PNG = "pip install cairosvg, install rsvg-convert (librsvg), or write .svg or .html."
_MOST_PIXELS = 16_000
"""Maximum pixels of a side in browsers."""
_SECONDS_OF_BROWSER = 120
"""What a browser gets for a picture."""
_RADIUS = 8.0
"""Radius of corners of arrows, in pixels."""


_VARIABLE = re.compile(r"(--[\w-]+):([^;}]+)")
"""A variable that a style defines, and its value."""
_TIP_OF_ARROWS = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto" '
    'class="tip"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>'
)
_USE = re.compile(r"var\((--[\w-]+)\)")
"""A use of a variable."""


def as_svg(root: Box, title: str) -> str:
    """Return the picture.

    Args:
        root: the model's box, with all the others in it.
        title: of the picture.
    """
    width, height = _size(root)
    theme = _theme()
    boxes = boxes_in(root)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{_escaped(title)}</title>",
        f"<style>{theme.style}</style>",
        _TIP_OF_ARROWS,
        '<rect class="page" width="100%" height="100%"/>',
    ]
    for box in boxes:
        parts += _box(box, theme.colours)
    # Arrows are drawn over all boxes.
    for box in boxes:
        for line in box.lines:
            parts += _arrow(line)
    # The legend is below the model.
    for number, meaning in enumerate(_legend(root), 1):
        place = f'x="{root.x:.0f}" y="{root.bottom + number * LINE + 2:.0f}"'
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
    texts = [line.label for box in boxes_in(root) for line in box.lines]
    texts += [text for box in boxes_in(root) if box.block.kind == "end" for text in box.block.lines]
    return [meaning for sign, meaning in _SIGNS.items() if any(text.startswith(sign) for text in texts)]


@define(frozen=True)
class _Theme:
    """How blocks look, as in pages.

    Attributes:
        style: the rules of the pages, for light and dark screens.
        colours: the variables for light screens, `--k-conv` → `#2f7de1`.
    """

    style: str
    colours: dict[str, str]


def _theme() -> _Theme:
    """Return the style of the pages, with colours instead of variables, which converters do not know."""
    # The first three lines of the file have the variables, the third those of the second once more, for the screen that
    # is dark by itself; the others have the rules that use them.
    light_variables, dark_variables, _, *rules = web_file("theme.css").splitlines()
    style = "\n".join([_STYLE, *rules])
    light = dict(_VARIABLE.findall(light_variables))
    dark = {**light, **dict(_VARIABLE.findall(dark_variables))}
    light_style = _USE.sub(lambda use: light[use[1]], style)
    dark_style = _USE.sub(lambda use: dark[use[1]], style)
    return _Theme(f"{light_style}\n@media (prefers-color-scheme: dark) {{\n{dark_style}\n}}", light)


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
    is_layer = block.kind != "end" and not block.inside and not ghost_classes(box)
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
    if ghost_classes(box):
        classes.append("ghost")
    if any(weight.shared for weight in block.weights):
        classes.append("shared")
    if block.repeat > 1:
        classes.append("repeat")
    return classes


def ghost_classes(box: Box) -> str:
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
    theme = _theme()
    lines = ["digraph model {", "  compound=true; node [shape=box, style=filled, fontname=Helvetica];"]
    stack: list[tuple[Block | None, str]] = [(blocks[0], "  ")]
    """What is to be written, with its indentation; `None` closes a cluster."""
    while stack:
        block, indent = stack.pop()
        if block is None:
            lines.append(f"{indent}}}")
        elif block.inside:
            lines.append(f"{indent}subgraph cluster_{numbers[id(block)]} {{ {_label(block)}; fontname=Helvetica;")
            stack.append((None, indent))
            stack += [(inner, indent + "  ") for inner in reversed(block.inside)]
        else:
            options = f'{_label(block)}, fillcolor="{_fill(block, theme)}"'
            lines.append(f"{indent}n{numbers[id(block)]} [{options}];")
    for block in blocks:
        for arrow in block.arrows:
            lines.append(_edge(block.inside[arrow.start], block.inside[arrow.end], arrow.label, numbers))
    return "\n".join([*lines, "}"]) + "\n"


def _label(block: Block) -> str:
    """Return the texts of a block as the option `label`."""
    text = "\\n".join(map(_quoted, texts_of(block)))
    return f'label="{text}"'


def _fill(block: Block, theme: _Theme) -> str:
    """Return the colour of a block: that which the style gives to its mark, or else that of its category, but pale."""
    rule = re.search(rf"\.{block.mark}>rect\.b{{[^}}]*fill:(#\w+)", theme.style) if block.mark else None
    if rule is not None:
        return rule[1]
    pale = "22"  # the last two digits of a colour are its opacity
    return theme.colours[f"--k-{block.category}"] + pale


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
        UnsupportedError: none of them is installed, or the first that is cannot convert this one.
    """
    svg = as_svg(root, title).encode("utf-8", "replace")
    try:
        import cairosvg
    except (ImportError, OSError):  # `OSError`: the library cairo, which it loads, is not installed
        width, height = map(ceil, _size(root))
        png = _by_program(svg, width, height)
    else:
        png = _by_cairosvg(cairosvg, svg)
    if not png.startswith(b"\x89PNG"):
        raise UnsupportedError("this picture cannot be converted to .png", hint="Write .svg or .html.")
    return png


def _by_cairosvg(cairosvg: Any, svg: bytes) -> bytes:
    """Return a picture as the bytes of a PNG; empty if CairoSVG fails, as for one of more pixels than cairo takes.

    Args:
        cairosvg: the module.
        svg: the picture.
    """
    try:
        return bytes(cairosvg.svg2png(bytestring=svg))
    except Exception:  # errors of cairo have no class in common but this
        return b""


def _by_program(svg: bytes, width: int, height: int) -> bytes:
    """Return what rsvg-convert, or else a browser, makes of a picture: the bytes of a PNG, or none if it fails.

    Args:
        svg: the picture.
        width: of the picture, in pixels.
        height: likewise.

    Raises:
        UnsupportedError: neither is installed, or there is only a browser, and the picture is too large for it.
    """
    program = shutil.which("rsvg-convert")
    if program is not None:
        return subprocess.run([program], input=svg, capture_output=True, check=False).stdout
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise UnsupportedError("no converter to .png is installed", hint=_HINT_FOR_PNG)
    if max(width, height) > _MOST_PIXELS:
        raise UnsupportedError("this picture is too large for the browser that converts to .png", hint=_HINT_FOR_PNG)
    return _by_browser(browser, svg, width, height)


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


def web_file(name: str) -> str:
    """Return a file of the pages."""
    return files(__package__).joinpath("web").joinpath(name).read_text("utf-8")
