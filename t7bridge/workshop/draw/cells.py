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
    cells: dict[int, list[tuple[str, ModuleSpec, set[int]]]] = {}
    """Kind, module and nodes of each cell, by the id of its graph."""
    for cell, nodes in cells_and_nodes:
        if len(nodes) > 1:  # a block of one layer would only repeat it
            cells.setdefault(id(cell.graph), []).append((cell.kind.name, cell.module, nodes))
    if not cells:
        return blocks
    copies: dict[int, Block] = {}
    for block in reversed(blocks):  # inner blocks first
        inside = [copies[id(inner)] for inner in block.inside]
        copy = evolve(
            block, inside=inside, flows=list(block.flows), lines=list(block.lines), summary=list(block.summary)
        )
        if block.spec is not None and block.inside:
            for kind, spec, nodes in cells.get(id(block.spec), ()):
                # Nodes are counted from 1.
                _enclose(copy, kind, spec, {id(inside[number - 1]) for number in nodes})
        copies[id(block)] = copy
    return list(copies[id(blocks[0])].walk())


def _enclose(graph: Block, kind: str, spec: ModuleSpec, members: set[int]) -> None:
    """Put blocks of a graph into one block, in the place of the last of them.

    Inside it an end stands for all its inputs, and one for its outputs.

    Args:
        graph: the block of the graph, which is modified.
        kind: of the cell, `LSTM`.
        spec: the module that the members are.
        members: the ids of their blocks.
    """
    title = kind
    # The numbers of features of its input and its output; a highway layer has only one.
    sizes = [str(argument) for argument in spec.args[:2] if isinstance(argument, int)]
    if len(sizes) == 2:
        title += f" {' → '.join(sizes)}"
    cell = Block(name="", title=title, kind="graph", mark=CELL, target=spec.target, path=graph.path)
    places = [number for number, block in enumerate(graph.inside) if id(block) in members]
    cell.inside = [graph.inside[number] for number in places]
    cell.parameters = sum(block.parameters for block in cell.inside)
    cell.shape = cell.inside[-1].shape
    inner = {number: place for place, number in enumerate(places)}
    """The place in the cell of each member, by its number in the graph."""
    input_end = len(cell.inside)
    output_end = input_end + 1
    cell.inside += [Block("", "", "end", lines=["input"]), Block("", "", "end", lines=["output"])]
    # The graph keeps the order in which its blocks run: the cell stands where its last block was.
    outer: dict[int, int] = {}
    """The new number of each other block, by the old one."""
    new_inside: list[Block] = []
    for number, block in enumerate(graph.inside):
        if number == places[-1]:
            cell_place = len(new_inside)
            new_inside.append(cell)
        elif number not in inner:
            outer[number] = len(new_inside)
            new_inside.append(block)
    # The labels of the flows between two blocks, which become one flow.
    outside: dict[tuple[int, int], list[str]] = {}
    within: dict[tuple[int, int], list[str]] = {}
    for flow in graph.flows:
        start_inside = flow.start in inner
        end_inside = flow.end in inner
        if start_inside and end_inside:
            within.setdefault((inner[flow.start], inner[flow.end]), []).append(flow.label)
            continue
        start = cell_place if start_inside else outer[flow.start]
        end = cell_place if end_inside else outer[flow.end]
        # The label says which part of the value is taken: inside the cell it says by whom.
        outside.setdefault((start, end), []).append("" if end_inside else flow.label)
        if end_inside:
            within.setdefault((input_end, inner[flow.end]), []).append(flow.label)
        if start_inside:
            within.setdefault((inner[flow.start], output_end), []).append("")
    cell.flows = [Flow(start, end, _joined(labels)) for (start, end), labels in within.items()]
    graph.inside = new_inside
    graph.flows = [Flow(start, end, _joined(labels)) for (start, end), labels in outside.items()]


def _joined(labels: list[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, labels)))
