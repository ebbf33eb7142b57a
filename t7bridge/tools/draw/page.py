"""The model as a self-contained page: the graph as data, the program that draws it, and dagre.

No text of a file becomes markup: the graph is JSON with escaped `<`, `>` and `&`, the program sets `textContent` only,
and the page forbids every script but its own two.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Any

from ...errors import LimitError

ROOMY, MAX_CHARS = 1_700_000, 2_500_000
"""Characters of the graph as JSON: beyond the first number long texts are cut, beyond the second it is refused."""
_GENERATOR = '<meta name="generator" content="t7bridge draw">'


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


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
