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
import re
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
from .layout import CHAR, LINE, SMALL, TITLE, Box, Point, texts_of

_STYLE = """text{font-family:Helvetica,Arial,sans-serif;text-anchor:middle}svg .l,svg .first{text-anchor:start}
svg .page{fill:var(--bg)}
"""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_LARGEST = 16_000
"""Maximum pixels of a side in browsers."""
_PATIENCE = 120


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
    labels = _Labels()
    for box in boxes:
        parts += _box(box, colours, labels)
    arrows = [part for box in boxes for points, label in box.lines for part in _arrow(points, label, labels)]
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


class _Labels:
    """The texts of a picture, by the row of pixels that they are in; no label is written over another text."""

    def __init__(self) -> None:
        self._rows: dict[int, list[tuple[float, float, float]]] = {}

    def place(self, x: float, y: float, text: str) -> float | None:
        """Return the lower edge nearest to `y` where a text has room; `None` if there is none."""
        end = x + len(text) * SMALL * CHAR
        for foot in (y, y + 13, y - 13, y + 26, y - 26):
            row = int(foot // 13)
            near = [each for number in (row - 1, row, row + 1) for each in self._rows.get(number, ())]
            if not any(abs(other - foot) < 12 and left < end and x < right for left, other, right in near):
                self._rows.setdefault(row, []).append((x, foot, end))
                return foot
        return None


def _box(box: Box, colours: dict[str, str], labels: _Labels) -> list[str]:
    block = box.block
    marks = ["n", "e" * (block.kind == "end"), "c" * (block.category == "container"), block.mark]
    marks += ["shared"] * any(each.shared for each in block.weights) + ["repeat"] * (block.repeat > 1)
    place = f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{10 if block.kind == "end" else 6}"'
    frame = f'<rect class="b" x="{box.x:.1f}" y="{box.y:.1f}" {place}/>'
    lines = [
        f'<g class="{" ".join(filter(None, marks))}">',
        f"<title>{_escaped(block.hint)}</title>" if block.hint else "",
        f'<rect class="b" x="{box.x + 4:.1f}" y="{box.y + 4:.1f}" {place}/>' if block.repeat > 1 else "",
        frame,
    ]
    if block.kind != "end" and not block.inside:
        fill = colours[f"--k-{block.category}"]
        lines += [
            frame.replace('class="b"', f'class="tint" fill="{fill}"'),
            f'<rect x="{box.x:.1f}" y="{box.y + 3:.1f}" width="4" height="{box.height - 6:.1f}" rx="2" fill="{fill}"/>',
        ]
    for number, (text, size) in enumerate(texts_of(block), 1):
        x, y = box.x + box.width / 2, box.y + number * LINE + 1
        labels.place(x - len(text) * SMALL * CHAR / 2, y, text)
        lines.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{"t" if size == TITLE else "s"}">{_escaped(text)}</text>')
    return [line for line in [*lines, "</g>"] if line]


def _arrow(points: list[Point], label: str, labels: _Labels) -> list[str]:
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    lines = [f'<path class="f" d="{path}" marker-end="url(#arrow)"/>']
    if label:
        (x, y), (u, _) = points[0], points[1]
        if len(points) == 2 and abs(x - u) > 1:  # slanted: next to its start, as others may share its end
            y += 11
        else:
            (x, y), (_, above) = (points[1], points[0]) if len(points) == 2 else (points[-1], points[-2])
            y = max(y - 8, (y + above) / 2)
        foot = labels.place(x + 4, y, label)
        if foot is not None:  # twice, as converters paint the outline over the text
            place = f'<text x="{x + 4:.1f}" y="{foot:.1f}"'
            lines += [f'{place} class="{name}">{_escaped(label)}</text>' for name in ("l", "s first")]
    return lines


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
        label = "\\n".join(_quoted(text) for text, _ in texts_of(block))
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
    names = ("theme.css", "page.css", "dagre.LICENSE.txt", "dagre.min.js", "layout.js", "page.js")
    theme, style, licence, *scripts = map(_web, names)
    hashes = " ".join(f"'sha256-{_script_hash(each)}'" for each in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'{_GENERATOR}\n<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
        f"<style>{theme}{style}</style>\n</head>\n"
        f'<body>\n<script type="application/json" id="graph">{text}</script>\n'
        f"<!-- dagre:\n{licence.strip()}\n-->\n"
        + "".join(f"<script>{each}</script>\n" for each in scripts)
        + "</body>\n</html>\n"
    )


def _web(name: str) -> str:
    return files(__package__).joinpath("web").joinpath(name).read_text("utf-8")


def _script_hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
