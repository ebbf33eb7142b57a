"""Recognized cells as one block each in pictures: what `module` writes as `nn.LSTMCell` is a box that opens."""

from __future__ import annotations

from attrs import evolve

from ...errors import T7BridgeError
from ...nn.blocks import Block, DrawnModel, Flow
from ...nn.mapping import ModuleSpec
from ..cells import cells_in

CELL = "cell"
"""The mark of such a block."""


def with_cells(model: DrawnModel) -> list[Block]:
    """Return the blocks of a model, each before those inside it, with one for each cell that is recognized.

    The layers of a cell are inside its block. The blocks of the model stay as they are; they are returned if it has no
    cell, or none can be looked for.
    """
    blocks = model.blocks
    root = blocks[0].spec
    if root is None or not any(block.spec is not None and block.spec.graph for block in blocks):
        return blocks
    try:
        cells_and_nodes = cells_in(root, model.state)
    except T7BridgeError:  # the model has layers without a plan
        return blocks
    cells: dict[int, list[_Cell]] = {}  # by the identity of their graph
    for cell, nodes in cells_and_nodes:
        if len(nodes) > 1:  # a block of one layer would only repeat it
            cells.setdefault(id(cell.graph), []).append((cell.kind.name, cell.module, nodes))
    return _copied_with_cells(blocks, cells) if cells else blocks


_Cell = tuple[str, ModuleSpec, set[int]]
"""The kind of a cell, its PyTorch module, and the numbers of its nodes in their graph, from 1."""


def _copied_with_cells(blocks: list[Block], cells: dict[int, list[_Cell]]) -> list[Block]:
    """Return a copy of all blocks of a model, in which each cell is one block.

    Args:
        blocks: each before those inside it.
        cells: those of each graph, by the identity of its `ModuleSpec`.
    """
    copies: dict[int, Block] = {}
    for block in reversed(blocks):  # inner blocks first
        inside = [copies[id(inner)] for inner in block.inside]
        copy = evolve(
            block, inside=inside, flows=list(block.flows), lines=list(block.lines), summary=list(block.summary)
        )
        if block.spec is not None and block.inside:
            for kind, spec, nodes in cells.get(id(block.spec), ()):
                _enclose(copy, kind, spec, {id(inside[number - 1]) for number in nodes})
        copies[id(block)] = copy
    return list(copies[id(blocks[0])].walk())


def _enclose(graph: Block, kind: str, spec: ModuleSpec, members: set[int]) -> None:
    """Put blocks of a graph into one block, in the place of the last of them.

    Args:
        graph: the block of the graph, which is modified.
        kind: of the cell, `LSTM`.
        spec: the PyTorch module that computes what the members do.
        members: the ids of their blocks.
    """
    # Below, a number is that of a block among those in the graph as it is.
    numbers_of_members = [number for number, block in enumerate(graph.inside) if id(block) in members]
    cell = _cell_of(graph, numbers_of_members, kind, spec)
    # The graph keeps the order in which its blocks run: the cell stands where its last block was.
    blocks: list[Block] = []
    places: dict[int, int] = {}
    """The place in the changed graph of each other block, by its number."""
    place_of_cell = 0
    for number, block in enumerate(graph.inside):
        if number == numbers_of_members[-1]:
            place_of_cell = len(blocks)
            blocks.append(cell)
        elif id(block) not in members:
            places[number] = len(blocks)
            blocks.append(block)
    places.update((number, place_of_cell) for number in numbers_of_members)
    places_in_cell = {number: place for place, number in enumerate(numbers_of_members)}
    cell.flows = _flows_in_cell(graph.flows, places_in_cell)
    graph.flows = _flows_around_cell(graph.flows, places, place_of_cell)
    graph.inside = blocks


def _cell_of(graph: Block, numbers_of_members: list[int], kind: str, spec: ModuleSpec) -> Block:
    """Return the block of a cell, without flows: its members, then an end for all inputs and one for all outputs.

    Args:
        graph: the graph that contains the cell.
        numbers_of_members: the places of the cell's blocks among those of the graph, in order.
        kind: of the cell, `LSTM`, which is its title.
        spec: the PyTorch module that computes what the blocks do.
    """
    title = kind
    # The numbers of features of its input and its output; a highway layer has only one.
    sizes = [str(argument) for argument in spec.args[:2] if isinstance(argument, int)]
    if len(sizes) == 2:
        title += f" {' → '.join(sizes)}"
    cell = Block(name="", title=title, kind="graph", mark=CELL, target=spec.target, path=graph.path)
    cell.inside = [graph.inside[number] for number in numbers_of_members]
    cell.parameters = sum(block.parameters for block in cell.inside)
    cell.shape = cell.inside[-1].shape
    cell.inside += [Block(name="", title="", kind="end", lines=[name]) for name in ("input", "output")]
    return cell


def _flows_in_cell(flows: list[Flow], places: dict[int, int]) -> list[Flow]:
    """Return the flows between the blocks of a cell, and from and to its ends, which are behind the blocks.

    Args:
        flows: of the graph.
        places: the place in the cell of each of its blocks, by its number in the graph.
    """
    input_end = len(places)
    output_end = input_end + 1
    # The labels of the flows between two blocks, which become one flow.
    labels: dict[tuple[int, int], list[str]] = {}
    for flow in flows:
        start = places.get(flow.start, input_end)
        end = places.get(flow.end, output_end)
        if end != output_end:
            labels.setdefault((start, end), []).append(flow.label)
        elif start != input_end:
            labels.setdefault((start, end), []).append("")  # its label is around the cell, at the block that takes it
    return _joined(labels)


def _flows_around_cell(flows: list[Flow], places: dict[int, int], place_of_cell: int) -> list[Flow]:
    """Return the flows of a graph without those inside a cell in it.

    Args:
        flows: of the graph, between the numbers that its blocks had before.
        places: the place of each block, by its number; that of a member of the cell is the cell's.
        place_of_cell: the place of the cell.
    """
    labels: dict[tuple[int, int], list[str]] = {}
    for flow in flows:
        start = places[flow.start]
        end = places[flow.end]
        if start == end == place_of_cell:
            continue
        # A label says which part of a value is taken. That of an input of the cell is inside it, at the block that
        # takes the part.
        labels.setdefault((start, end), []).append("" if end == place_of_cell else flow.label)
    return _joined(labels)


def _joined(labels: dict[tuple[int, int], list[str]]) -> list[Flow]:
    """Return a flow for each start and end, with its labels, each once."""
    flows = []
    for (start, end), labels_of_flow in labels.items():
        distinct = dict.fromkeys(filter(None, labels_of_flow))
        flows.append(Flow(start, end, ", ".join(distinct)))
    return flows
