"""Drawings as text for Graphviz, which does the layout itself."""

from __future__ import annotations

from ...text import printable
from .blocks import Block
from .layout import texts_of

_COLORS = {"weights": "#e5eefc", "unmapped": "#fdeaea", "again": "#fbf6e6", "end": "#eef7ee"}
_COLORS |= {"agrees": "#cdeccd", "near": "#eaf5d0", "stale": "#fff0b8", "differs": "#f9c7c2", "unchecked": "#ececec"}


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
            color = _COLORS.get(block.mark or block.kind, "#f4f5f7")
            lines.append(f'{indent}n{number} [label="{label}", fillcolor="{color}"];')
            continue
        lines.append(f'{indent}subgraph cluster_{number} {{ label="{label}"; fontname=Helvetica;')
        stack.append((None, indent))
        stack += [(each, indent + "  ") for each in reversed(block.inside)]
        pairs = [(flow.start, flow.end, flow.label) for flow in block.flows]
        if block.kind == "chain":
            pairs = [(place, place + 1, "") for place in range(len(block.inside) - 1)]
        for start, end, text in pairs:
            edges.append(_edge(block.inside[start], block.inside[end], text, numbers))
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
