"""A directed graph in layers, from its inputs down to its outputs. The only importer of grandalf."""

from __future__ import annotations

from typing import Any

from grandalf.graphs import Edge, Graph, Vertex
from grandalf.layouts import SugiyamaLayout
from grandalf.routing import EdgeViewer

from ...errors import LimitError
from .layout import Point

_SWEEPS = 8
"""How often the order within the layers is improved."""


class _Size:
    """The size of a node, as grandalf asks for it; grandalf adds the place of the node's middle as `xy`."""

    def __init__(self, width: float, height: float) -> None:
        self.w, self.h = width, height
        self.xy = (0.0, 0.0)


# grandalf has sets of these. With hashes of their own, the same graph gives the same picture every time.
class _Node(Vertex):  # type: ignore[misc]
    def __hash__(self) -> int:
        return int(self.data)


class _Edge(Edge):  # type: ignore[misc]
    def __hash__(self) -> int:
        return int(self.data)


def place(
    sizes: list[tuple[float, float]], flows: list[tuple[int, int]], gap: float
) -> tuple[list[Point], list[list[Point]], float, float]:
    """Find a place for each node.

    Args:
        sizes: width and height of each node.
        flows: numbers of the nodes at start and end of each edge.
        gap: between neighbours.

    Returns:
        The upper left corner of each node, the bends of each edge on its way round nodes, and width and height of all.

    Raises:
        LimitError: there are too many nodes.
    """
    nodes = [_Node(number) for number in range(len(sizes))]
    for node, size in zip(nodes, sizes):
        node.view = _Size(*size)
    edges = [_Edge(nodes[start], nodes[end], data=number) for number, (start, end) in enumerate(flows)]
    for edge in edges:
        edge.view = EdgeViewer()
    corners: list[Point] = [(0.0, 0.0)] * len(sizes)
    bends: list[list[Point]] = [[] for _ in flows]
    right = bottom = 0.0
    try:
        for part in Graph(nodes, edges).C:
            layout = SugiyamaLayout(part)
            layout.xspace, layout.yspace = gap, 1.5 * gap
            roots = [node for node in part.sV if not node.e_in()]
            layout.init_all(roots=roots or None, optimize=True)
            layout.draw(_SWEEPS)
            width, height = _take(list(part.sV), list(part.sE), right, corners, bends)
            right, bottom = right + width + gap, max(bottom, height)
    except RecursionError as error:
        raise LimitError(
            "a graph has too many nodes to be laid out", found=f"{len(nodes)}", hint="Write a .dot, for Graphviz."
        ) from error
    return corners, bends, right - gap, bottom


def _take(
    nodes: list[Any], edges: list[Any], x: float, corners: list[Point], bends: list[list[Point]]
) -> tuple[float, float]:
    """Take over one connected part, from `x` on to the right; its width and height."""
    found = {edge.data: list(getattr(edge.view, "_pts", ()))[1:-1] for edge in edges}
    across = [px for points in found.values() for px, _ in points]
    left = min([node.view.xy[0] - node.view.w / 2 for node in nodes] + across)
    top = min(node.view.xy[1] - node.view.h / 2 for node in nodes)
    for node in nodes:
        middle, size = node.view.xy, node.view
        corners[node.data] = (middle[0] - size.w / 2 - left + x, middle[1] - size.h / 2 - top)
    for number, points in found.items():
        bends[number] = [(px - left + x, py - top) for px, py in points]
    right = max([node.view.xy[0] + node.view.w / 2 for node in nodes] + across)
    return right - left, max(node.view.xy[1] + node.view.h / 2 for node in nodes) - top
