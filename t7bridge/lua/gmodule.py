"""The objects of an `nn.gModule`, as left by its constructor.

Source: nngraph 3ed3b9b `gmodule.lua`, `node.lua`, `JustElement.lua`; graph 37dac07 `init.lua`, `Node.lua`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field

from ..data import define
from ..graph.lua import Table, TorchObject, Value
from .layers import LuaLayer


@define(eq=False)
class Node:
    """An `nngraph.Node`. Nodes of the forward and the backward graph share their `data`.

    Attributes:
        data: Lua's table of the node.
        children: the targets of its edges, each once.
        id: its number in its graph, 1-based.
    """

    data: Table
    children: list[Node] = field(factory=list)
    id: int = 0

    def add(self, child: Node) -> None:
        """Add an edge."""
        if all(child is not known for known in self.children):
            self.children.append(child)


@define(eq=False)
class DirectedGraph:
    """A `graph.Graph`: nodes in the order of their first edge, and the edges."""

    nodes: list[Node] = field(factory=list)
    edges: list[tuple[Node, Node]] = field(factory=list)
    _known: set[int] = field(factory=set)

    def add(self, start: Node, end: Node) -> None:
        """Add an edge and the nodes it joins."""
        self.edges.append((start, end))
        for node in (start, end):
            if id(node) not in self._known:
                self._known.add(id(node))
                self.nodes.append(node)
                node.id = len(self.nodes)
        start.add(end)

    def reverse(self) -> tuple[DirectedGraph, dict[int, Node]]:
        """Return the graph with all edges reversed, of new nodes, and the new node of each old one by id."""
        made = DirectedGraph()
        twins: dict[int, Node] = {}
        for start, end in self.edges:
            for node in (start, end):
                if id(node) not in twins:
                    twins[id(node)] = Node(node.data)
            made.add(twins[id(end)], twins[id(start)])
        return made, twins

    def roots(self) -> list[Node]:
        """Return the nodes that no edge leads to, in the order of the graph."""
        ends = {id(end) for _, end in self.edges}
        return [node for node in self.nodes if id(node) not in ends]

    def sorted_nodes(self) -> list[Node]:
        """Return the nodes in topological order, as `topsort` does: depth first, on the reversed graph."""
        turned, twins = self.reverse()
        originals = {id(twins[id(node)]): node for node in self.nodes}
        order: list[Node] = []
        visited: set[int] = set()
        for root in turned.roots():
            stack = [(root, iter(root.children))]
            visited.add(id(root))
            while stack:
                node, rest = stack[-1]
                child = next((item for item in rest if id(item) not in visited), None)
                if child is None:
                    stack.pop()
                    order.append(originals[id(node)])
                else:
                    visited.add(id(child))
                    stack.append((child, iter(child.children)))
        return order


def _data(name: str, **fields: Value) -> Table:
    annotations = Table.of({"_debugLabel": name or "?"})
    return Table.of({"annotations": annotations, "mapindex": Table(), "reverseMap": Table(), **fields})


def _link(node: Node, source: Node) -> None:
    """Connect a node to the value of another: `Node:add(child, true)`."""
    node.add(source)
    index: Any = node.data["mapindex"]
    number = float(len(index) // 2 + 1)
    index[number] = source.data
    index[source.data] = number


def make_gmodule(layer: LuaLayer, obj: TorchObject, module_of: Callable[[LuaLayer], TorchObject]) -> None:
    """Set the fields of an `nn.gModule` on an object.

    Args:
        layer: with `inputs`, `steps` and `outputs`. Each input is used, and every step leads to an output.
        obj: already has the fields of every module.
        module_of: returns the object of a layer.
    """
    nodes: dict[int, Node] = {}
    inputs: dict[int, Node] = {}
    for step in layer.steps:
        if step.layer is None:
            node = Node(_data(f"input {step.index + 1}", module=module_of(LuaLayer("nn.Identity"))))
            inputs[step.index] = node
        else:
            node = Node(_data(step.layer.path or step.layer.name, module=module_of(step.layer)))
            for source in step.inputs:
                _link(node, nodes[id(source)])
        nodes[id(step)] = node
    outnode = Node(_data("output", input=Table()))
    for step in layer.outputs:
        _link(outnode, nodes[id(step)])
    innode = Node(_data("inputs", input=Table()))
    if layer.inputs == 1:
        _link(inputs[0], innode)
    else:
        split = Node(_data("split", nSplitOutputs=float(layer.inputs)))
        _link(split, innode)
        for index in range(layer.inputs):
            part = Node(_data(f"split {index + 1}", selectindex=float(index + 1), input=Table()))
            _link(part, split)
            _link(inputs[index], part)
    backward = _graph_from(outnode)
    forward, twins = backward.reverse()
    order, back_order = forward.sorted_nodes(), backward.sorted_nodes()
    for node in order:
        node.data["forwardNodeId"] = float(node.id)
    writer = _Objects()
    obj["modules"] = Table.from_list([node.data["module"] for node in order if "module" in node.data])
    obj["bg"] = writer.graph(backward)
    obj["fg"] = writer.graph(forward)
    obj["innode"] = writer.node(twins[id(innode)])
    obj["outnode"] = writer.node(outnode)
    obj["verbose"] = False
    obj["nInputs"] = float(layer.inputs)
    obj["forwardnodes"] = Table.from_list([writer.node(node) for node in order])
    obj["backwardnodes"] = Table.from_list([writer.node(node) for node in back_order])
    # The constructor leaves no output, but with several outputs it is the list passed to the last node.
    if len(layer.outputs) > 1:
        obj["output"] = outnode.data["input"]


def _graph_from(root: Node) -> DirectedGraph:
    """Return the graph of the nodes reachable from a node, breadth first: `Node:graph()`."""
    made = DirectedGraph()
    queue, marked = [root], {id(root)}
    for node in queue:
        for child in list(node.children):
            made.add(node, child)
        for child in node.children:
            if id(child) not in marked:
                marked.add(id(child))
                queue.append(child)
    return made


class _Objects:
    """Converts nodes and graphs to Torch objects, one a node."""

    def __init__(self) -> None:
        self._made: dict[int, TorchObject] = {}

    def node(self, node: Node) -> TorchObject:
        """Return the object of a node, and create those of all nodes reachable from it."""
        waiting = [node]
        while waiting:
            item = waiting.pop()
            if id(item) in self._made:
                continue
            fields = {"data": item.data, "id": float(item.id), "children": Table(), "visited": False, "marked": False}
            self._made[id(item)] = TorchObject("nngraph.Node", fields=Table.of(fields))
            waiting.extend(item.children)
        for item in self._reached(node):
            children: Any = self._made[id(item)]["children"]
            if item.children and not len(children):
                self._fill(children, [self._made[id(child)] for child in item.children])
        return self._made[id(node)]

    @staticmethod
    def _reached(node: Node) -> list[Node]:
        found, seen = [node], {id(node)}
        for item in found:
            for child in item.children:
                if id(child) not in seen:
                    seen.add(id(child))
                    found.append(child)
        return found

    @staticmethod
    def _fill(table: Table, items: list[TorchObject]) -> None:
        """Fill a table that counts its items and maps each to its number."""
        for number, item in enumerate(items, 1):
            table[float(number)] = item
        for number, item in enumerate(items, 1):
            table[item] = float(number)

    def graph(self, made: DirectedGraph) -> TorchObject:
        """Return a `graph.Graph`."""
        nodes, edges = Table(), Table()
        if made.nodes:
            self.node(made.roots()[0])
        self._fill(nodes, [self.node_of(node) for node in made.nodes])
        pairs = [{"from": self.node_of(start), "to": self.node_of(end)} for start, end in made.edges]
        self._fill(edges, [TorchObject("graph.Edge", fields=Table.of(pair)) for pair in pairs])
        return TorchObject("graph.Graph", fields=Table.of({"nodes": nodes, "edges": edges}))

    def node_of(self, node: Node) -> TorchObject:
        """Return the object of a node, creating it if necessary."""
        return self._made.get(id(node)) or self.node(node)
