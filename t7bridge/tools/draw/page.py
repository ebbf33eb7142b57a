"""The model as a self-contained page: the graph as data, the program that draws it, and dagre.

No text of a file becomes markup: the graph is JSON with escaped `<`, `>` and `&`, the program sets `textContent` only,
and the page forbids every script but its own two.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import Any

from ...errors import LimitError
from ...text import printable
from .blocks import Block
from .graph_json import GraphSource, graph_of
from .pair import Pairing

_ROOMY, MAX_CHARS = 1_700_000, 2_500_000
"""Characters of the graph as JSON: beyond the first number long texts are cut, beyond the second it is refused."""


def pair_page(first: tuple[list[Block], GraphSource], second: tuple[list[Block], GraphSource], pairing: Pairing) -> str:
    """Return HTML of two models side by side, differences in colour.

    Args:
        first: blocks and source of one model.
        second: those of the other.
        pairing: the pairing of their blocks.

    Raises:
        LimitError: the content exceeds a page.
    """
    for brief in (False, True):
        graphs = [
            _marked(blocks, source, other[0], pairing, brief=brief)
            for (blocks, source), other in ((first, second), (second, first))
        ]
        text = _json({"graphs": graphs, "differences": pairing.counts})
        if len(text) <= MAX_CHARS:
            return _html(text, f"{first[1].file}, {second[1].file}")
    raise LimitError("the models are too large for a page", hint="Draw parts of them with --at.")


def _marked(
    blocks: list[Block], source: GraphSource, others: list[Block], pairing: Pairing, *, brief: bool
) -> dict[str, Any]:
    """Return the graph of one side, with differences and counterparts."""
    marks = {place: (change.kind, change.share) for place, change in pairing.changes.items()}
    graph = graph_of(blocks, source, brief=brief, marks=marks)
    numbers = {id(block): number for number, block in enumerate(others)}
    inside = pairing.inside(blocks)
    for block, node in zip(blocks, graph["nodes"]):
        change, other = pairing.changes.get(id(block)), pairing.other.get(id(block))
        if change is not None:
            text = [printable(line)[:_LINE] for line in change.text[:_LINES]]
            node["change"] = {"kind": change.kind, "text": text, "share": change.share}
        if other is not None:
            node["other"] = numbers[id(other)]
        if inside[id(block)]:
            node["changes_inside"] = inside[id(block)]
    return graph


_LINES, _LINE = 30, 200
_GENERATOR = '<meta name="generator" content="t7bridge draw">'


def page(blocks: list[Block], source: GraphSource, *, weights: bool = False) -> str:
    """Return HTML of the picture.

    Args:
        blocks: all of them, each before those inside it.
        source: the file.
        weights: whether the page shows histograms of the weights.

    Raises:
        LimitError: the content exceeds a page.
    """
    text = _json(graph_of(blocks, source, statistics=weights))
    if len(text) > (MAX_CHARS if weights else _ROOMY):
        text = _json(graph_of(blocks, source, brief=True))
    if len(text) > MAX_CHARS:
        raise LimitError(
            "the model is too large for a page",
            found=f"{len(blocks)} blocks",
            hint="Draw a part with --at (at=… in Python), or write .svg, .dot or .json.",
        )
    return _html(text, f"{source.file}, {source.path}")


def _html(text: str, title: str) -> str:
    """Return the page around the data."""
    web = files(__package__).joinpath("web")
    names = ("page.css", "dagre.LICENSE.txt", "dagre.min.js", "layout.js", "page.js")
    style, licence, *scripts = (web.joinpath(name).read_text("utf-8") for name in names)
    hashes = " ".join(f"'sha256-{_hash(each)}'" for each in scripts)
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


def is_page(path: str) -> bool:
    """Return whether a file is one of our pages."""
    with open(path, "rb") as file:
        return _GENERATOR.encode() in file.read(1000)


def _json(graph: dict[str, Any]) -> str:
    """Return JSON for a page: ASCII, without markup characters."""
    text = json.dumps(graph, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
