"""The nodes of a graph that are inside its cells, and those outside. Nodes have numbers from 1, each after those whose
outputs it takes. A link is a number and a path: it leads to the output of a node, or to the input of the graph, whose
number is 0, and by the path to an element of it. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...nn.mapping import Link, ModuleSpec
from .search import GraphCell
from .values import graph_of, upstream


def cells_by_graph(cells: Iterable[GraphCell]) -> dict[ModuleSpec, list[GraphCell]]:
    """Return the cells of each graph, in their order."""
    cells_of: dict[ModuleSpec, list[GraphCell]] = {}
    for cell in cells:
        cells_of.setdefault(cell.graph, []).append(cell)
    return cells_of


def nodes_outside(spec: ModuleSpec, cells: list[GraphCell]) -> set[int]:
    """Return the numbers of the nodes of a graph that are outside of cells: they stay if each cell becomes one node.

    Inside are the outputs of cells, and the nodes from which nothing but cells is computed.

    Args:
        spec: the graph, not modified.
        cells: those in it.
    """
    graph = graph_of(spec)
    inputs_of_cells = {output: cell.inputs for cell in cells for output in cell.outputs}

    def taken(number: int) -> tuple[Link, ...]:
        """Return what a node takes."""
        return graph.nodes[number - 1].takes

    def taken_with_cells(number: int) -> tuple[Link, ...]:
        """Return what a node takes if each cell is one: its outputs take what the cell takes."""
        return inputs_of_cells.get(number, taken(number))

    # What the graph needs when each cell is one node: the nodes inside of cells are not reached then.
    used_by_outputs = _numbers(upstream(graph.outputs, taken))
    # Nodes that no output of the graph depends on stay, and with them what they take.
    unused: list[Link] = [(number, ()) for number in range(1, len(graph.nodes) + 1) if number not in used_by_outputs]
    needed = _numbers(upstream([*graph.outputs, *unused], taken_with_cells))
    return needed - set(inputs_of_cells)


def nodes_inside(cell: GraphCell) -> set[int]:
    """Return the numbers of the nodes of a graph that are inside one of its cells, as if it were the only one."""
    every_node = set(range(1, len(graph_of(cell.graph).nodes) + 1))
    return every_node - nodes_outside(cell.graph, [cell])


def nodes_that_compute(cell: GraphCell) -> set[int]:
    """Return the numbers of the nodes that compute a cell from its inputs: its outputs, and all nodes on the way.

    Some may be outside of the cell, as others use them too.
    """
    nodes = graph_of(cell.graph).nodes

    def taken_in_cell(number: int) -> list[Link]:
        """Return what a node takes, but for the cell's inputs."""
        return [link for link in nodes[number - 1].takes if link not in cell.inputs]

    outputs: list[Link] = [(number, ()) for number in cell.outputs]
    return _numbers(upstream(outputs, taken_in_cell))


def names_of_modules(spec: ModuleSpec, nodes: Iterable[int]) -> set[str]:
    """Return the names of the modules that nodes of a graph call, which are given by their numbers."""
    modules = (graph_of(spec).nodes[number - 1].module for number in nodes)
    return {name for name in modules if name is not None}


def _numbers(links: Iterable[Link]) -> set[int]:
    """Return the numbers of the nodes to which links lead, without that of the input of the graph."""
    return {number for number, _ in links if number != 0}
