"""Drawings as SVG, for any browser."""

from __future__ import annotations

from xml.sax.saxutils import escape

from ...text import printable
from .layout import LINE, SMALL, TITLE, Box, texts_of

_STYLE = """
text { font-family: Helvetica, Arial, sans-serif; text-anchor: middle; fill: #1f2430 }
rect#page { fill: #ffffff; stroke: none }
rect { fill: #f4f5f7; stroke: #9aa1ad }
.chain rect, .side rect, .graph rect { fill: #ffffff; stroke: #c4c9d2 }
.weights rect { fill: #e5eefc; stroke: #5b7fbf }
.again rect { fill: #fbf6e6; stroke: #b99a3b; stroke-dasharray: 4 3 }
.unmapped rect { fill: #fdeaea; stroke: #c0392b }
.end rect { fill: #eef7ee; stroke: #6a9a6a }
.agrees rect { fill: #cdeccd; stroke: #3f8f4f }
.near rect { fill: #eaf5d0; stroke: #8aa33a }
.stale rect { fill: #fff0b8; stroke: #c09a10 }
.differs rect { fill: #f9c7c2; stroke: #c0392b; stroke-width: 2 }
.unchecked rect { fill: #ececec; stroke: #a8a8a8 }
.repeat rect { fill: #f7f4fb; stroke: #8a6fb0; stroke-dasharray: 6 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e3e6ec }
  rect#page { fill: #16181d }
  rect { fill: #262a32; stroke: #596273 }
  .chain rect, .side rect, .graph rect { fill: #1c1f26; stroke: #454d5b }
  .weights rect { fill: #1f2c44; stroke: #5b7fbf }
  .again rect { fill: #33301f }
  .unmapped rect { fill: #3d2222 }
  .end rect { fill: #1f2f22 }
  .agrees rect { fill: #1d4026 }
  .near rect { fill: #35421a }
  .stale rect { fill: #4d4210 }
  .differs rect { fill: #5c211b }
  .unchecked rect { fill: #333333 }
  .repeat rect { fill: #272233 }
}
path { fill: none; stroke: #7b8596; stroke-width: 1.2; marker-end: url(#arrow) }
"""


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
        f"<title>{escape(_plain(title))}</title>",
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
        f"<title>{escape(_plain(block.hint))}</title>" if block.hint else "",
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'rx="{9 if block.kind == "end" else 4}"/>',
    ]
    for number, (text, size) in enumerate(texts_of(block), 1):
        weight = ' font-weight="bold"' if size == TITLE else ""
        x, y = box.x + box.width / 2, box.y + number * LINE + 1
        lines.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight}>{escape(_plain(text))}</text>')
    return [line for line in [*lines, "</g>"] if line]


def _arrow(points: list[tuple[float, float]], label: str) -> list[str]:
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    lines = [f'<path d="{path}"/>']
    if label:
        (x, y), (u, _) = points[0], points[1]
        if len(points) == 2 and abs(x - u) > 1:  # slanted: next to its start, as others may share its end
            place = f'x="{x + 4:.1f}" y="{y + 11:.1f}"'
        else:
            (x, y), (_, above) = (points[1], points[0]) if len(points) == 2 else (points[-1], points[-2])
            place = f'x="{x + 4:.1f}" y="{max(y - 8, (y + above) / 2):.1f}"'
        lines.append(f'<text {place} font-size="{SMALL}" style="text-anchor: start">{escape(_plain(label))}</text>')
    return lines


def _plain(text: str) -> str:
    """Return text without characters that XML cannot hold."""
    return printable(text)
