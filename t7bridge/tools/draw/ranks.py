"""Layered layout of a directed graph, from its inputs down to its outputs, in time proportional to its size.

Layers by longest path, order by the barycenters of neighbours, and positions by isotonic regression: in each layer the
order is kept and the squared distance from the neighbours is minimal.
"""

from __future__ import annotations

Point = tuple[float, float]

_SWEEPS = 6
"""Iterations to improve order and positions within the layers."""
_MAX_BENDS = 30_000
"""Maximum bends of edges that pass through layers; beyond, edges are straight."""
_BEND_WIDTH = 8.0


def place(
    sizes: list[tuple[float, float]], flows: list[tuple[int, int]], gap: float, *, keep_order: bool = False
) -> tuple[list[Point], list[list[Point]], float, float]:
    """Compute a position for each node.

    Args:
        sizes: width and height of each node, in pixels.
        flows: numbers of the nodes at start and end of each edge, from 0.
        gap: between neighbours, in pixels.
        keep_order: whether the nodes of a layer stay in their order.

    Returns:
        The upper left corner of each node, the bends of each edge around nodes, and width and height of the whole.
    """
    count = len(sizes)
    ranks = ranks_of(count, flows)
    widths = [width for width, _ in sizes]
    levels = list(ranks)
    links: list[tuple[int, int]] = []
    bends: list[list[int]] = [[] for _ in flows]
    straight = sum(max(ranks[end] - ranks[start] - 1, 0) for start, end in flows) > _MAX_BENDS
    for number, (start, end) in enumerate(flows):
        last = start
        for level in range(ranks[start] + 1, ranks[start] + 1 if straight else ranks[end]):
            bends[number].append(len(levels))
            links.append((last, len(levels)))
            last = len(levels)
            levels.append(level)
            widths.append(_BEND_WIDTH)
        links.append((last, end))
    layers: list[list[int]] = [[] for _ in range(max(levels, default=0) + 1)]
    for node, level in enumerate(levels):
        layers[level].append(node)
    above: list[list[int]] = [[] for _ in levels]
    below: list[list[int]] = [[] for _ in levels]
    for start, end in links:
        below[start].append(end)
        above[end].append(start)
    middle = _places(layers, above, below, widths, gap, count, keep_order=keep_order)
    tops, y = [], 0.0
    for layer in layers:
        tops.append(y)
        y += max((sizes[node][1] for node in layer if node < count), default=0) + 0.9 * gap
    left = min((middle[node] - widths[node] / 2 for node in range(len(levels))), default=0.0)
    right = max((middle[node] + widths[node] / 2 for node in range(len(levels))), default=0.0)
    corners = [(middle[node] - sizes[node][0] / 2 - left, tops[levels[node]]) for node in range(count)]
    heights = [max((sizes[node][1] for node in layer if node < count), default=0.0) for layer in layers]
    points: list[list[Point]] = []
    for nodes in bends:
        points.append([])
        for node in nodes:
            x, top = middle[node] - left, tops[levels[node]]
            points[-1] += [(x, top), (x, top + heights[levels[node]])]
    return corners, points, right - left, max(y - 0.9 * gap, 0.0)


def ranks_of(count: int, flows: list[tuple[int, int]]) -> list[int]:
    """Return the layer of each node: below all its inputs, and, without inputs, just above its first user."""
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for start, end in flows:
        after[start].append(end)
        waiting[end] += 1
    ranks = [0] * count
    roots = [node for node in range(count) if not waiting[node]]
    order = list(roots)
    for node in order:
        for end in after[node]:
            ranks[end] = max(ranks[end], ranks[node] + 1)
            waiting[end] -= 1
            if not waiting[end]:
                order.append(end)
    for node in roots[1:] if len(roots) > 1 else ():
        if after[node]:
            ranks[node] = max(ranks[node], min(ranks[end] for end in after[node]) - 1)
    return ranks


def _places(
    layers: list[list[int]],
    above: list[list[int]],
    below: list[list[int]],
    widths: list[float],
    gap: float,
    count: int,
    *,
    keep_order: bool = False,
) -> list[float]:
    """Return the centre of each node across its layer."""
    middle = [0.0] * len(widths)
    for layer in layers:
        _spread(layer, [0.0] * len(layer), [1.0] * len(layer), widths, gap, middle)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            sides = [above[node] if down else below[node] for node in layer]
            wanted = [
                sum(middle[other] for other in side) / len(side) if side else middle[node]
                for node, side in zip(layer, sides)
            ]
            if sweep < _SWEEPS - 2 and not keep_order:  # then positions only, in a fixed order
                order = sorted(range(len(layer)), key=wanted.__getitem__)
                layer[:] = [layer[place] for place in order]
                wanted = [wanted[place] for place in order]
            weights = [4.0 if node >= count else 1.0 for node in layer]
            _spread(layer, wanted, weights, widths, gap, middle)
    return middle


def _spread(
    layer: list[int], wanted: list[float], weights: list[float], widths: list[float], gap: float, middle: list[float]
) -> None:
    """Move the nodes of a layer as near to their desired positions as order and widths allow."""
    offsets: list[float] = []
    at = 0.0
    for number, node in enumerate(layer):
        if number:
            at += (widths[layer[number - 1]] + widths[node]) / 2 + gap
        offsets.append(at)
    pools: list[tuple[float, float, int]] = []  # weighted sum, weight, nodes
    for target, weight, offset in zip(wanted, weights, offsets):
        total, mass, size = (target - offset) * weight, weight, 1
        while pools and pools[-1][0] / pools[-1][1] >= total / mass:
            before = pools.pop()
            total, mass, size = total + before[0], mass + before[1], size + before[2]
        pools.append((total, mass, size))
    number = 0
    for total, mass, size in pools:
        for _ in range(size):
            middle[layer[number]] = total / mass + offsets[number]
            number += 1
