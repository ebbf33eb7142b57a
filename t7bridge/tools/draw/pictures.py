"""Printers of drawings: SVG for any browser, PNG by any installed converter of SVG, text for Graphviz, which has a
layout of its own, and a self-contained page: the graph as data, the program that draws it, and dagre.

No text of a file becomes markup. In a page the graph is JSON with escaped `<`, `>` and `&`, the program sets
`textContent` only, and the page forbids every script but its own two.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from math import ceil
from typing import Any
from xml.sax import saxutils

from ...errors import LimitError, UnsupportedError
from ...text import printable
from .blocks import Block
from .layout import LINE, SMALL, TITLE, Box, Point, texts_of

_OTHER = "#f4f5f7"
_FILLS = {
    "weights": ("#e5eefc", "#5b7fbf", "#1f2c44; stroke: #5b7fbf"),
    "again": ("#fbf6e6", "#b99a3b; stroke-dasharray: 4 3", "#33301f"),
    "unmapped": ("#fdeaea", "#c0392b", "#3d2222"),
    "end": ("#eef7ee", "#6a9a6a", "#1f2f22"),
    "agrees": ("#cdeccd", "#3f8f4f", "#1d4026"),
    "near": ("#eaf5d0", "#8aa33a", "#35421a"),
    "stale": ("#fff0b8", "#c09a10", "#4d4210"),
    "differs": ("#f9c7c2", "#c0392b; stroke-width: 2", "#5c211b"),
    "unchecked": ("#ececec", "#a8a8a8", "#333333"),
    "repeat": ("#f7f4fb", "#8a6fb0; stroke-dasharray: 6 3", "#272233"),
}
"""Fill, stroke, and fill on dark screens, by the mark or kind of a block."""

_STYLE = "\n".join(
    [
        "",
        "text { font-family: Helvetica, Arial, sans-serif; text-anchor: middle; fill: #1f2430 }",
        "rect#page { fill: #ffffff; stroke: none }",
        f"rect {{ fill: {_OTHER}; stroke: #9aa1ad }}",
        ".chain rect, .side rect, .graph rect { fill: #ffffff; stroke: #c4c9d2 }",
        *(f".{name} rect {{ fill: {fill}; stroke: {stroke} }}" for name, (fill, stroke, _) in _FILLS.items()),
        "@media (prefers-color-scheme: dark) {",
        "  text { fill: #e3e6ec }",
        "  rect#page { fill: #16181d }",
        "  rect { fill: #262a32; stroke: #596273 }",
        "  .chain rect, .side rect, .graph rect { fill: #1c1f26; stroke: #454d5b }",
        *(f"  .{name} rect {{ fill: {dark} }}" for name, (_, _, dark) in _FILLS.items()),
        "}",
        "path { fill: none; stroke: #7b8596; stroke-width: 1.2; marker-end: url(#arrow) }",
        "",
    ]
)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_LARGEST = 16_000
"""Maximum pixels of a side in browsers."""
_PATIENCE = 120


ROOMY, MAX_CHARS = 1_700_000, 2_500_000
"""Characters of the graph as JSON: beyond the first number long texts are cut, beyond the second it is refused."""
_GENERATOR = '<meta name="generator" content="t7bridge draw">'


def as_svg(root: Box, title: str) -> str:
    """Return the picture.

    Args:
        root: the model's box, with all the others in it.
        title: of the picture.
    """
    width, height = root.x + root.width + root.x, root.y + root.height + root.y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{_escaped(title)}</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<polygon points="0,0 8,4 0,8" fill="#5c6370"/></marker></defs>',
        '<rect id="page" width="100%" height="100%"/>',
    ]
    stack = [root]
    arrows: list[str] = []
    while stack:
        box = stack.pop()
        parts += _box(box)
        for points, label in box.lines:
            arrows += _arrow(points, label)
        stack += reversed(box.inside)
    return "\n".join([*parts, *arrows, "</svg>"]) + "\n"


def _box(box: Box) -> list[str]:
    block = box.block
    lines = [
        f'<g class="{block.kind} {block.mark}">',
        f"<title>{_escaped(block.hint)}</title>" if block.hint else "",
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'rx="{9 if block.kind == "end" else 4}"/>',
    ]
    for number, (text, size) in enumerate(texts_of(block), 1):
        weight = ' font-weight="bold"' if size == TITLE else ""
        x, y = box.x + box.width / 2, box.y + number * LINE + 1
        lines.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight}>{_escaped(text)}</text>')
    return [line for line in [*lines, "</g>"] if line]


def _arrow(points: list[Point], label: str) -> list[str]:
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    lines = [f'<path d="{path}"/>']
    if label:
        (x, y), (u, _) = points[0], points[1]
        if len(points) == 2 and abs(x - u) > 1:  # slanted: next to its start, as others may share its end
            place = f'x="{x + 4:.1f}" y="{y + 11:.1f}"'
        else:
            (x, y), (_, above) = (points[1], points[0]) if len(points) == 2 else (points[-1], points[-2])
            place = f'x="{x + 4:.1f}" y="{max(y - 8, (y + above) / 2):.1f}"'
        lines.append(f'<text {place} font-size="{SMALL}" style="text-anchor: start">{_escaped(label)}</text>')
    return lines


def _escaped(text: str) -> str:
    return saxutils.escape(printable(text))


def as_dot(blocks: list[Block]) -> str:
    """Return the graph, with a cluster for each container.

    Args:
        blocks: all of them, each before those inside it.
    """
    numbers = {id(block): number for number, block in enumerate(blocks)}
    lines = ["digraph model {", "  compound=true; node [shape=box, style=filled, fontname=Helvetica];"]
    stack: list[tuple[Block | None, str]] = [(blocks[0], "  ")]
    edges: list[str] = []
    while stack:
        block, indent = stack.pop()
        if block is None:
            lines.append(f"{indent}}}")
            continue
        number = numbers[id(block)]
        label = "\\n".join(_quoted(text) for text, _ in texts_of(block))
        if not block.inside:
            color, *_ = _FILLS.get(block.mark or block.kind, (_OTHER,))
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
            hint="pip install 't7bridge[png]', install rsvg-convert (librsvg), or write .svg or .html.",
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


def as_page(graphs: Iterable[tuple[dict[str, Any], int]], title: str, hint: str) -> str:
    """Return HTML of the first graph that is small enough.

    Args:
        graphs: the data in full, then brief, each with its maximum of characters.
        title: of the page.
        hint: what to do if none is.

    Raises:
        LimitError: the content exceeds a page.
    """
    for graph, most in graphs:
        text = json.dumps(graph, separators=(",", ":"))
        for char in "<>&":
            text = text.replace(char, f"\\u{ord(char):04x}")
        if len(text) <= most:
            return _html(text, title)
    raise LimitError("the graph is too large for a page", found=f"{len(text):,} characters", hint=hint)


def is_page(path: str) -> bool:
    """Return whether a file is one of our pages."""
    with open(path, "rb") as file:
        return _GENERATOR.encode() in file.read(1000)


def _html(text: str, title: str) -> str:
    """Return the page around the data."""
    web = files(__package__).joinpath("web")
    names = ("page.css", "dagre.LICENSE.txt", "dagre.min.js", "layout.js", "page.js")
    style, licence, *scripts = (web.joinpath(name).read_text("utf-8") for name in names)
    hashes = " ".join(f"'sha256-{_script_hash(each)}'" for each in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'{_GENERATOR}\n<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
        f"<style>{style}</style>\n</head>\n"
        f'<body>\n<script type="application/json" id="graph">{text}</script>\n'
        f"<!-- dagre:\n{licence.strip()}\n-->\n"
        + "".join(f"<script>{each}</script>\n" for each in scripts)
        + "</body>\n</html>\n"
    )


def _script_hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
