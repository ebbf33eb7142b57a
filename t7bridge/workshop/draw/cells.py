"""Recognized cells as one block each in pictures: what `module` writes as `nn.LSTMCell` is a box that opens."""

from __future__ import annotations

from attrs import evolve

from ...data import define
from ...errors import T7BridgeError
from ...nn.blocks import Block, DrawnModel, Flow
from ...nn.mapping import ModuleSpec
from ..cells import cells_in

CELL = "cell"
"""The mark of such a block."""


def with_cells(model: DrawnModel) -> list[Block]:
    """Return the blocks of a model, each before those inside it, with one for each cell that is recognized.

    The layers of a cell are inside its block. The blocks of the model stay as they are; they are returned if it has no
    cell, or has layers without a plan, among which none can be looked for.
    """
    blocks = model.blocks
    root = blocks[0].spec
    has_graph = any(block.spec is not None and block.spec.graph for block in blocks)
    if root is None or not has_graph:
        return blocks
    try:
        cells_and_nodes = cells_in(root, model.state)
    except T7BridgeError:  # a layer without a plan
        return blocks
    cells_by_graph: dict[int, list[_Cell]] = {}
    for cell, nodes in cells_and_nodes:
        if len(nodes) > 1:  # a block of one layer would only repeat it
            cells_by_graph.setdefault(id(cell.graph), []).append(_Cell(cell.kind.name, cell.module, nodes))
    return _copied_with_cells(blocks, cells_by_graph) if cells_by_graph else blocks


@define(frozen=True)
class _Cell:
    """A cell that is recognized in a graph.

    Attributes:
        kind: `LSTM`, say.
        module: the PyTorch module that computes what its nodes do.
        nodes: numbers of its nodes in their graph, from 1.
    """

    kind: str
    module: ModuleSpec
    nodes: set[int]


def _copied_with_cells(blocks: list[Block], cells_by_graph: dict[int, list[_Cell]]) -> list[Block]:
    """Return a copy of all blocks of a model, in which each cell is one block.

    Args:
        blocks: each before those inside it.
        cells_by_graph: those of each graph, by the identity of its `ModuleSpec`.
    """
    copies: dict[int, Block] = {}
    for block in reversed(blocks):  # inner blocks first
        inside = [copies[id(inner)] for inner in block.inside]
        copy = evolve(
            block, inside=inside, flows=list(block.flows), lines=list(block.lines), summary=list(block.summary)
        )
        if block.spec is not None and block.inside:
            for cell in cells_by_graph.get(id(block.spec), ()):
                # The blocks of a graph's nodes are in it first, in order. By identity, as a cell before this one has
                # changed their numbers.
                members = {id(inside[node - 1]) for node in cell.nodes}
                _enclose(copy, cell, members)
        copies[id(block)] = copy
    return list(copies[id(blocks[0])].walk())


def _enclose(graph: Block, cell: _Cell, members: set[int]) -> None:
    """Put the blocks of a cell into one block, in the place of the last of them.

    Args:
        graph: the block of the graph, which is modified.
        cell: the cell.
        members: the ids of its blocks.
    """
    numbers_of_members = [number for number, block in enumerate(graph.inside) if id(block) in members]
    block_of_cell = _block_of_cell(cell, graph, numbers_of_members)
    # The graph keeps the order in which its blocks run: the cell stands where its last block was.
    last = numbers_of_members[-1]
    others = set(numbers_of_members) - {last}
    blocks: list[Block] = []
    new_numbers: dict[int, int] = {}
    """The number of each block in the changed graph, by that before; of a member, the number of the cell."""
    for number, block in enumerate(graph.inside):
        if number not in others:
            new_numbers[number] = len(blocks)
            blocks.append(block_of_cell if number == last else block)
    number_of_cell = new_numbers[last]
    new_numbers |= dict.fromkeys(others, number_of_cell)
    numbers_in_cell = {number: place for place, number in enumerate(numbers_of_members)}
    block_of_cell.flows = _flows_in_cell(graph.flows, numbers_in_cell)
    graph.flows = _flows_around_cell(graph.flows, new_numbers, number_of_cell)
    graph.inside = blocks


def _block_of_cell(cell: _Cell, graph: Block, numbers_of_members: list[int]) -> Block:
    """Return the block of a cell, without flows: its members, then an end for all inputs and one for all outputs.

    Args:
        cell: the cell.
        graph: the graph that contains it.
        numbers_of_members: the numbers of the cell's blocks in the graph, in order.
    """
    title = cell.kind
    # The numbers of features of its input and its output; a highway layer has only one.
    sizes = [str(argument) for argument in cell.module.args[:2] if isinstance(argument, int)]
    if len(sizes) == 2:
        title += f" {' → '.join(sizes)}"
    block = Block(name="", title=title, kind="graph", mark=CELL, target=cell.module.target, path=graph.path)
    block.inside = [graph.inside[number] for number in numbers_of_members]
    block.parameters = sum(member.parameters for member in block.inside)
    block.shape = block.inside[-1].shape  # what the last member returns is the output
    block.inside += [Block(name="", title="", kind="end", lines=[name]) for name in ("input", "output")]
    return block


def _flows_in_cell(flows: list[Flow], numbers_in_cell: dict[int, int]) -> list[Flow]:
    """Return the flows between the blocks of a cell, and from and to its ends, which are behind the blocks.

    A label says which part of a value is taken; it is shown at the block that takes the part. So the flows to the
    output end have none: theirs are around the cell.

    Args:
        flows: of the graph.
        numbers_in_cell: the number in the cell of each of its blocks, by its number in the graph.
    """
    input_end = len(numbers_in_cell)
    output_end = input_end + 1
    labels: dict[tuple[int, int], list[str]] = {}
    """The labels of all flows between two blocks, which become one flow."""
    for flow in flows:
        start = numbers_in_cell.get(flow.start, input_end)
        end = numbers_in_cell.get(flow.end, output_end)
        is_around_cell = start == input_end and end == output_end
        if not is_around_cell:
            labels.setdefault((start, end), []).append("" if end == output_end else flow.label)
    return _joined(labels)


def _flows_around_cell(flows: list[Flow], new_numbers: dict[int, int], number_of_cell: int) -> list[Flow]:
    """Return the flows of a graph without those inside a cell in it.

    Those to the cell have no label: theirs are inside, at the blocks that take the parts.

    Args:
        flows: of the graph, between the numbers that its blocks had before.
        new_numbers: the number of each block now, by that before; that of a member of the cell is the cell's.
        number_of_cell: the number of the cell now.
    """
    labels: dict[tuple[int, int], list[str]] = {}
    """The labels of all flows between two blocks, which become one flow."""
    for flow in flows:
        start = new_numbers[flow.start]
        end = new_numbers[flow.end]
        is_in_cell = start == end == number_of_cell
        if not is_in_cell:
            labels.setdefault((start, end), []).append("" if end == number_of_cell else flow.label)
    return _joined(labels)


def _joined(labels: dict[tuple[int, int], list[str]]) -> list[Flow]:
    """Return a flow for each start and end, with its labels, each once."""
    flows = []
    for (start, end), labels_of_flow in labels.items():
        distinct = dict.fromkeys(filter(None, labels_of_flow))
        flows.append(Flow(start, end, ", ".join(distinct)))
    return flows
