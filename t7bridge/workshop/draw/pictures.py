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

from ...errors import LimitError, UnsupportedError
from ...nn.blocks import Block
from ...text import printable
from ...tools.view import Fold, view_of
from .layout import LINE, SIGN, Box, Line, Point, has_sign, lay_out, texts_of

_STYLE = """text{font-family:system-ui,Helvetica,Arial,sans-serif;text-anchor:middle}
svg .l,svg .first{text-anchor:start}svg text.l{fill:none}
svg .page{fill:var(--bg)}
"""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_LARGEST = 16_000
"""Maximum pixels of a side in browsers."""
_PATIENCE = 120
_ROUND = 8.0
"""Radius of corners of arrows, in pixels."""


ROOMY, MAX_CHARS = 1_700_000, 2_500_000
"""Characters of the graph as JSON: beyond the first number long texts are cut, beyond the second it is refused."""
_VARIABLE, _USED = re.compile(r"(--[\w-]+):([^;}]+)"), re.compile(r"var\((--[\w-]+)\)")
_GENERATOR = '<meta name="generator" content="t7bridge draw">'


def as_svg(root: Box, title: str) -> str:
    """Return the picture.

    Args:
        root: the model's box, with all the others in it.
        title: of the picture.
    """
    width, height = root.x + root.width + root.x, root.y + root.height + root.y
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
    boxes = [root]
    for box in boxes:  # grows
        boxes += box.inside
    for box in boxes:
        parts += _box(box, colours)
    arrows = [part for box in boxes for line in box.lines for part in _arrow(line)]
    return "\n".join([*parts, *arrows, "</svg>"]) + "\n"


def _theme() -> tuple[str, dict[str, str]]:
    """Return the style of the pages, for light and dark screens, and its colours; converters know no variables."""
    light, dark, _, *rules = _web("theme.css").splitlines()
    colours = dict(_VARIABLE.findall(light))
    styles = [
        _USED.sub(lambda found, known=known: known[found[1]], "\n".join([_STYLE, *rules]))  # type: ignore[misc]
        for known in (colours, {**colours, **dict(_VARIABLE.findall(dark))})
    ]
    return f"{styles[0]}\n@media (prefers-color-scheme: dark) {{\n{styles[1]}\n}}", colours


def _box(box: Box, colours: dict[str, str]) -> list[str]:
    block = box.block
    ghost = _ghost(box)
    marks = ["e" * (block.kind == "end"), "n", "c" * (block.category == "container"), block.mark, "ghost" * bool(ghost)]
    marks += ["shared"] * any(each.shared for each in block.weights) + ["repeat"] * (block.repeat > 1)
    place = f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{10 if block.kind == "end" else 6}"'
    frame = f'<rect class="b" x="{box.x:.1f}" y="{box.y:.1f}" {place}/>'
    lines = [
        f'<g class="{" ".join(filter(None, marks))}">',
        f"<title>{_escaped(block.hint)}</title>" if block.hint else "",
        f'<rect class="b" x="{box.x + 4:.1f}" y="{box.y + 4:.1f}" {place}/>' if block.repeat > 1 else "",
        frame,
    ]
    if block.kind != "end" and not block.inside and not ghost:
        fill = colours[f"--k-{block.category}"]
        lines += [
            frame.replace('class="b"', f'class="tint" fill="{fill}"'),
            f'<rect x="{box.x:.1f}" y="{box.y + 3:.1f}" width="4" height="{box.height - 6:.1f}" rx="2" fill="{fill}"/>',
        ]
    middle = box.middle - (SIGN / 2 if has_sign(block) else 0)
    for number, text in enumerate(texts_of(block), 1):
        size = "t" if number == 1 and block.kind != "end" else "s"
        place = f'x="{middle:.1f}" y="{box.y + number * LINE + 1:.1f}"'
        lines.append(f'<text {place} class="{size}">{_escaped(text)}</text>')
    return [line for line in [*lines, "</g>"] if line]


def _ghost(box: Box) -> str:
    """Return the classes of a block that is named once more; empty for any other."""
    if box.block.source is not None or box.inside:
        return ""
    return "e ghost" if box.block.kind == "end" else "again ghost"


def _arrow(line: Line) -> list[str]:
    lines = [f'<path class="f" d="{_path(line.points)}" marker-end="url(#arrow)"/>']
    if line.label:  # after an outline of its own: converters paint that over the text
        place = f'<text x="{line.at[0]:.1f}" y="{line.at[1]:.1f}"'
        lines += [f'{place} class="{name}">{_escaped(line.label)}</text>' for name in ("l", "s first")]
    return lines


def _path(points: list[Point]) -> str:
    """Return a line with rounded corners."""
    parts = ["M{:.1f},{:.1f}".format(*points[0])]
    for before, point, after in zip(points, points[1:], points[2:]):
        numbers = *_towards(point, before), *point, *_towards(point, after)
        parts.append("L{:.1f},{:.1f} Q{:.1f},{:.1f} {:.1f},{:.1f}".format(*numbers))
    return " ".join([*parts, "L{:.1f},{:.1f}".format(*points[-1])])


def _towards(point: Point, other: Point) -> Point:
    """Return where a corner begins: at most half the way to the next point."""
    distance = dist(point, other)
    share = min(_ROUND, distance / 2) / distance if distance else 0.0
    return point[0] + (other[0] - point[0]) * share, point[1] + (other[1] - point[1]) * share


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
    edges: list[str] = []
    while stack:
        block, indent = stack.pop()
        if block is None:
            lines.append(f"{indent}}}")
            continue
        number = numbers[id(block)]
        label = "\\n".join(map(_quoted, texts_of(block)))
        if not block.inside:
            own = re.search(rf"\.{block.mark}>rect\.b{{[^}}]*fill:(#\w+)", style) if block.mark else None
            color = own[1] if own else colours[f"--k-{block.category}"] + "22"
            lines.append(f'{indent}n{number} [label="{label}", fillcolor="{color}"];')
            continue
        lines.append(f'{indent}subgraph cluster_{number} {{ label="{label}"; fontname=Helvetica;')
        stack.append((None, indent))
        stack += [(each, indent + "  ") for each in reversed(block.inside)]
        edges += [_edge(block.inside[each.start], block.inside[each.end], each.label, numbers) for each in block.arrows]
    return "\n".join([*lines, *edges, "}"]) + "\n"


def _edge(start: Block, end: Block, label: str, numbers: dict[int, int]) -> str:
    """Return an arrow. Graphviz has none between clusters: it links two nodes, and is clipped at the clusters."""
    options = [f'label="{_quoted(label)}"'] if label else []
    options += [f"ltail=cluster_{numbers[id(start)]}"] if start.inside else []
    options += [f"lhead=cluster_{numbers[id(end)]}"] if end.inside else []
    while start.inside:
        start = start.inside[-1]
    while end.inside:
        end = end.inside[0]
    return f"  n{numbers[id(start)]} -> n{numbers[id(end)]}" + (f" [{', '.join(options)}]" if options else "") + ";"


def _quoted(text: str) -> str:
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
    width, height = ceil(root.width + 2 * root.x), ceil(root.height + 2 * root.y)
    try:
        import cairosvg
    except ImportError:
        pass
    else:
        return bytes(cairosvg.svg2png(bytestring=data))
    program = shutil.which("rsvg-convert")
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is not None:
        found = subprocess.run([program], input=data, capture_output=True, check=False).stdout
    elif browser is not None and max(width, height) <= _LARGEST:
        found = _by_browser(browser, data, width, height)
    else:
        raise UnsupportedError(
            "no converter to .png is installed",
            hint="pip install cairosvg, install rsvg-convert (librsvg), or write .svg or .html.",
        )
    if not found.startswith(b"\x89PNG"):
        raise UnsupportedError("this picture cannot be converted to .png", hint="Write .svg or .html.")
    return found


def _by_browser(program: str, svg: bytes, width: int, height: int) -> bytes:
    """Return a screenshot of the picture, which holds no scripts; empty if the browser fails."""
    with tempfile.TemporaryDirectory(prefix="t7bridge-", ignore_cleanup_errors=True) as folder:
        source, target = os.path.join(folder, "picture.svg"), os.path.join(folder, "picture.png")
        with open(source, "wb") as file:
            file.write(svg)
        flags = ["--headless=new", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        flags += ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        command = [program, *flags, f"--window-size={width},{height}", f"--screenshot={target}", f"file://{source}"]
        try:
            subprocess.run(command, capture_output=True, check=False, timeout=_PATIENCE)
            with open(target, "rb") as file:
                return file.read()
        except (OSError, subprocess.TimeoutExpired):
            return b""


def as_page(graphs: Iterable[tuple[dict[str, Any], int]], places: dict[str, Any], title: str, hint: str) -> str:
    """Return HTML of the first graph that is small enough.

    Args:
        graphs: the data in full, then brief, each with its maximum of characters.
        places: the result of `places_of`.
        title: of the page.
        hint: what to do if none is.

    Raises:
        LimitError: the content exceeds a page.
    """
    for graph, most in graphs:
        text = _json(graph)
        if len(text) <= most:
            return _html(text, _json(places), title)
    raise LimitError("the graph is too large for a page", found=f"{len(text):,} characters", hint=hint)


def _json(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def places_of(blocks: list[Block], folds: dict[int, list[Fold]], opened: set[int], root: Box) -> dict[str, Any]:
    """Return the positions that a page needs, as JSON: of the content of each container, equal ones once.

    `of` has up to three for each container: with those inside closed, with repeated blocks one by one, and, of those
    open at first, this. Content is `[width, height, columns, boxes, arrows]`; a box `[number in the container or -1, x,
    y, width, height, text, lines of it about hidden content, repetitions, content of a sequence that repeats, or class
    of a block that is named once more]`; an arrow `[start, end, points, label, its place]`.

    Args:
        blocks: all of them, each before those inside it.
        folds: the runs in each container that are shown once, by id.
        opened: the containers that are open at first, by id.
        root: what is seen first.
    """
    contents: list[Any] = []
    known: dict[str, int] = {}
    of: dict[int, list[int]] = {}
    numbers = {id(block): number for number, block in enumerate(blocks)}

    def add(box: Box, block: Block) -> int:
        content = _content(box, {id(each): number for number, each in enumerate(block.inside)})
        place = known.setdefault(json.dumps(content), len(contents))
        contents.extend([content] * (place == len(contents)))
        return place

    for block in blocks:
        if block.inside:
            views = [view_of(block, kept, {id(block)}) for kept in ([folds, {}] if id(block) in folds else [folds])]
            if block is blocks[0]:
                for view in views:
                    view[0].lines = root.block.lines
            of[numbers[id(block)]] = [add(lay_out(view), block) for view in views]
    boxes = [root]
    for box in boxes:  # grows
        boxes += box.inside
        source = box.block.source
        if box.inside and source is not None:
            views_of = of[numbers[id(source)]]
            views_of += [views_of[0]] * (2 - len(views_of)) + [add(box, source)]
    shut = view_of(blocks[0], folds, set())
    shut[0].lines = root.block.lines
    closed = lay_out(shut)
    return {
        "root": _entry(closed, closed, 0, ""),
        "open": sorted(numbers[each] for each in opened),
        "of": of,
        "contents": contents,
    }


def _content(box: Box, numbers: dict[int, int]) -> list[Any]:
    boxes = []
    for each in box.inside:
        block = each.block
        number = -1 if block.source is None else numbers.get(id(block.source), -1)
        own: Any = _content(each, numbers) if each.inside and number < 0 else _ghost(each)
        boxes.append(_entry(each, box, number, own))
    arrows = []
    for line in box.lines:
        flat = [number for x, y in line.points for number in (x - box.x, y - box.y)]
        label = [printable(line.label), *_rounded((line.at[0] - box.x, line.at[1] - box.y))] if line.label else []
        arrows.append([line.start, line.end, _rounded(flat), *label])
    return [*_rounded((box.width, box.height)), _rounded(x - box.x for x in box.columns), boxes, arrows]


def _entry(box: Box, outer: Box, number: int, own: Any) -> list[Any]:
    block = box.block
    sizes = _rounded((box.x - outer.x, box.y - outer.y, box.width, box.height))
    rest = [len(block.summary) if block.kind == "closed" else 0, block.repeat, own]
    text = "\n".join(map(printable, texts_of(block)))
    return [number, *sizes, text, *(rest if rest != [0, 1, ""] else [])]


def _rounded(numbers: Iterable[float]) -> list[float]:
    return [int(found) if (found := round(each, 1)) == int(found) else found for each in numbers]


def is_page(path: str) -> bool:
    """Return whether a file is one of our pages."""
    with open(path, "rb") as file:
        return _GENERATOR.encode() in file.read(1000)


def _html(graph: str, places: str, title: str) -> str:
    """Return the page around the data."""
    theme, style, *scripts = map(_web, ("theme.css", "page.css", "layout.js", "page.js"))
    hashes = " ".join(f"'sha256-{_script_hash(each)}'" for each in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'{_GENERATOR}\n<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
        f"<style>{theme}{style}</style>\n</head>\n"
        f'<body>\n<script type="application/json" id="graph">{graph}</script>\n'
        f'<script type="application/json" id="places">{places}</script>\n'
        + "".join(f"<script>{each}</script>\n" for each in scripts)
        + "</body>\n</html>\n"
    )


def _web(name: str) -> str:
    return files(__package__).joinpath("web").joinpath(name).read_text("utf-8")


def _script_hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
