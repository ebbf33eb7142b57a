"""Layers as Torch objects, with their weights as views of one storage for each tensor of the state dict.

Names of a PyTorch state dict are in a field of each module with weights, and in one of the root. A module's field is a
table: name of a tensor field → `key` of the state dict, `size` of that tensor, `start` of the part that the field holds
(0-based, in elements), `transposed`. The root's field has the order of the keys, other keys for tied tensors, and the
tensors that no module holds. The fields move with the modules that they describe, so they hold after training,
`getParameters`, cloning and surgery in Lua.

The objects of an `nn.gModule` are those that its constructor leaves. Source: nngraph 3ed3b9b `gmodule.lua`, `node.lua`,
`JustElement.lua`; graph 37dac07 `init.lua`, `Node.lua`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field

from ...data import define, np
from ...graph.dtypes import ElementType
from ...graph.lua import Table, TorchObject, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor, contiguous
from ...nn.state_dict import FIELD as RECORD_FIELD
from .fields import CLASSES, CONTAINERS, fields_of
from .layers import LuaLayer, WeightRef

GRADIENTS = {"weight": "gradWeight", "bias": "gradBias"}
"""Fields of weights → those of their gradients."""


@define(eq=False)
class ObjectMaker:
    """Makes the Torch objects of Lua layers (`LuaLayer`), with the weights of a state dict.

    Attributes:
        element: of all tensors of the model.
        weights: the tensors of the state dict, by their keys.
        training: whether modules are in training mode.
        has_gradients: whether weights have gradients beside them, without which Lua can evaluate, but not train.

    Tensors and storages are made once, and kept by the part of the state dict that they hold and by whether they are
    gradients, so that what is tied in PyTorch is shared in Lua.
    """

    element: ElementType
    weights: dict[str, np.ndarray]
    training: bool = False
    has_gradients: bool = True
    _tensors: dict[tuple[WeightRef, bool], Tensor] = field(factory=dict)
    _storages: dict[tuple[str, bool], Storage] = field(factory=dict)

    def make(self, layer: LuaLayer) -> TorchObject:
        """Return the object of a layer, with everything inside it.

        The order of the fields is ours: Lua's tables have none.
        """
        obj = self._constructed(layer)
        if layer.name == "nn.SeqLSTM":  # whose tensors are put together of several
            self._fill_lstm(obj, layer.weights)
        else:
            self._set_weights(obj, layer.weights)
        # A batch normalization without a weight is not affine, whatever its constructor was told.
        if layer.name.endswith("BatchNormalization") and "weight" not in layer.weights:
            obj["affine"] = False
        if not self.training:
            obj["train"] = False  # which `evaluate()` sets in every module
        if layer.weights:
            entries = {name: weight_entry(ref, self.weights[ref.key].shape) for name, ref in layer.weights.items()}
            obj[RECORD_FIELD] = Table.of(entries)
        if layer.name == "nn.gModule":
            _make_gmodule(layer, obj, self.make)
        elif layer.name in CONTAINERS:
            obj["modules"] = Table.from_list([self.make(child) for child in layer.children])
        return obj

    def _constructed(self, layer: LuaLayer) -> TorchObject:
        """Return an object with the fields that its constructor sets, without those of weights, children and graphs."""
        type_name = f"torch.{self.element.lua}Tensor"
        if layer.name == "nn.gModule":
            # Its constructor removes the output and the gradient that other layers have, and takes no arguments that
            # become fields: `_make_gmodule` makes these of the nodes.
            return TorchObject(layer.name, version=1, fields=Table.of({"_type": type_name}))
        output = Tensor(self.element, None)
        gradient = Tensor(self.element, None)
        fields = Table.of({"_type": type_name, "output": output, "gradInput": gradient})
        obj = TorchObject(layer.name, CLASSES[layer.kind].version, fields)
        for name, value in fields_of(layer, self.element).items():
            obj[name] = value
        return obj

    def _set_weights(self, obj: TorchObject, refs: dict[str, WeightRef]) -> None:
        """Set the fields of an object that hold tensors of the state dict, and those of their gradients.

        Args:
            obj: receives the fields.
            refs: name of a field → the part of the state dict that it holds.
        """
        for name, ref in refs.items():
            obj[name] = self.tensor(ref)
            if name in GRADIENTS and self.has_gradients:
                obj[GRADIENTS[name]] = self.tensor(ref, gradient=True)

    def _fill_lstm(self, obj: TorchObject, refs: dict[str, WeightRef]) -> None:
        """Set the weight and bias of an nn.SeqLSTM, and their gradients.

        The weight has the shape (inputs + hidden, 4 hidden). Gates are i f o g in Lua, i f g o in PyTorch; the one bias
        is the sum of PyTorch's two.

        Args:
            obj: the nn.SeqLSTM, which receives the fields.
            refs: the tensors of the torch.nn.LSTM by their names there, `weight_ih_l0`.
        """

        def in_order_of_lua(name: str) -> np.ndarray:
            """Return a tensor of the state dict with the rows of its gates in Lua's order."""
            i, f, g, o = np.split(self.weights[refs[name].key], 4)
            return np.concatenate([i, f, o, g]).astype(self.element.code)

        weight = np.concatenate([in_order_of_lua("weight_ih_l0").T, in_order_of_lua("weight_hh_l0").T])
        bias = np.zeros(weight.shape[1], self.element.code)
        for name in ("bias_ih_l0", "bias_hh_l0"):
            if name in refs:
                bias += in_order_of_lua(name)
        for name, array in (("weight", weight), ("bias", bias)):
            obj[name] = Tensor.from_numpy(np.ascontiguousarray(array))
            if self.has_gradients:
                obj[GRADIENTS[name]] = Tensor.from_numpy(np.zeros_like(array, order="C"))

    def tensor(self, ref: WeightRef, gradient: bool = False) -> Tensor:
        """Return the tensor of a field, or that of its gradient.

        Fields with the same part of the state dict have the same object, and parts of one tensor views of one storage.
        """
        tensor = self._tensors.get((ref, gradient))
        if tensor is not None:
            return tensor
        stride = contiguous(ref.size)
        if ref.transposed:
            # The size is that in Lua. In the storage, whose rows are the columns here, the last two are exchanged.
            extent_of_rows = ref.size[-2]
            stride = (*stride[:-2], 1, extent_of_rows)
        tensor = Tensor(self.element, self._storage(ref.key, gradient), ref.size, stride, ref.start)
        self._tensors[ref, gradient] = tensor
        return tensor

    def _storage(self, key: str, gradient: bool) -> Storage:
        """Return the storage of a tensor of the state dict, or of its gradient, which is 0."""
        storage = self._storages.get((key, gradient))
        if storage is None:
            if gradient:
                elements = np.zeros(self.weights[key].size, self.element.code)
            else:
                elements = self.weights[key].reshape(-1).astype(self.element.code)
            storage = Storage.from_array(elements)
            self._storages[key, gradient] = storage
        return storage


def weight_entry(ref: WeightRef, shape: tuple[int, ...]) -> Table:
    """Return the entry of a tensor field in the record of its object: its key in the state dict, and what part it is.

    Args:
        ref: the part of the tensor that the field holds.
        shape: of the whole tensor in the state dict.
    """
    entry = Table.of({"key": ref.key, "size": Table.from_list([float(extent) for extent in shape])})
    if ref.start:
        entry["start"] = float(ref.start)
    if ref.transposed:
        entry["transposed"] = True
    return entry


# Graphs


Node = Table
"""The `data` of an `nngraph.Node`, which the nodes of the forward and the backward graph share."""
Sources = dict[Node, dict[Node, None]]
"""The nodes whose values a node takes, in order, each once."""


class _Graph:
    """A Torch object `graph.Graph` made of edges: its nodes are in the order of their first edge, and numbered so.

    Attributes:
        nodes: node → its object, an `nngraph.Node`, whose `data` is the node.
        object: the object of the graph, with these nodes and the edges.
    """

    def __init__(self, edges: list[tuple[Node, Node]]) -> None:
        """Make the objects of a graph.

        Args:
            edges: each from a node to one of its children, in the order that nngraph has; every node is in one.
        """
        # All nodes first, in the order of their first edge, with which they are numbered.
        self._children: dict[Node, list[Node]] = {node: [] for edge in edges for node in edge}
        for start, end in edges:
            self._children[start].append(end)
        self.nodes: dict[Node, TorchObject] = {}
        for number, node in enumerate(self._children, 1):
            self.nodes[node] = _object(
                "nngraph.Node", data=node, id=float(number), children=Table(), visited=False, marked=False
            )
        for node, children in self._children.items():
            self.nodes[node]["children"] = _numbered([self.nodes[child] for child in children])
        edge_objects = []
        for start, end in edges:
            ends = {"from": self.nodes[start], "to": self.nodes[end]}
            edge_objects.append(_object("graph.Edge", **ends))
        self.object = _object("graph.Graph", nodes=_numbered(list(self.nodes.values())), edges=_numbered(edge_objects))

    def children_first(self) -> list[Node]:
        """Return all nodes so that each follows its children: depth first, in the order of nngraph's `topsort`."""
        with_parents = {child for children in self._children.values() for child in children}
        order: list[Node] = []
        visited: set[Node] = set()
        for root in self._children:
            if root in with_parents:
                continue
            visited.add(root)
            stack = [(root, iter(self._children[root]))]
            while stack:
                node, children = stack[-1]
                child = next((item for item in children if item not in visited), None)
                if child is None:
                    order.append(node)
                    stack.pop()
                else:
                    visited.add(child)
                    stack.append((child, iter(self._children[child])))
        return order


def _object(name: str, **fields: Value) -> TorchObject:
    """Return an object of a Lua class with some fields, in their order."""
    return TorchObject(name, fields=Table.of(fields))


def _numbered(items: list[TorchObject]) -> Table:
    """Return a table that counts its items and maps each to its number."""
    numbers = [(float(number), item) for number, item in enumerate(items, 1)]
    return Table.of([*numbers, *((item, number) for number, item in numbers)])


def _node(name: str, **fields: Value) -> Node:
    """Return the data of a new node: with a name for Lua's messages, no sources yet, and some fields of its own."""
    annotations = Table.of({"_debugLabel": name or "?"})
    return Table.of({"annotations": annotations, "mapindex": Table(), "reverseMap": Table(), **fields})


def _make_gmodule(layer: LuaLayer, obj: TorchObject, module_of: Callable[[LuaLayer], TorchObject]) -> None:
    """Set the fields of an `nn.gModule` on an object.

    Args:
        layer: the graph. Each input is used, and every step leads to an output.
        obj: the object, without `output` and `gradInput`; receives the fields.
        module_of: makes the Torch object of a layer, with everything inside it.
    """
    outnode, innode, sources = _linked_nodes(layer, module_of)
    edges = _edges_from(outnode, sources)
    # nngraph has the graph in both directions. The edges lead to the sources of a node in the backward graph, and to
    # its users in the forward graph.
    backward = _Graph(edges)
    forward = _Graph([(end, start) for start, end in edges])
    # A node is run after its sources, and backward after its users: after its children in the other graph.
    order_of_forward = backward.children_first()
    order_of_backward = forward.children_first()
    # A node is in both graphs, under two numbers: the data, which they share, has that in the forward graph.
    for node in order_of_forward:
        node["forwardNodeId"] = forward.nodes[node]["id"]
    obj["modules"] = Table.from_list([node["module"] for node in order_of_forward if "module" in node])
    obj["bg"] = backward.object
    obj["fg"] = forward.object
    obj["innode"] = forward.nodes[innode]
    obj["outnode"] = backward.nodes[outnode]
    obj["verbose"] = False
    obj["nInputs"] = float(layer.inputs)
    obj["forwardnodes"] = Table.from_list([forward.nodes[node] for node in order_of_forward])
    obj["backwardnodes"] = Table.from_list([backward.nodes[node] for node in order_of_backward])
    # nngraph sets `output` for several outputs only, to the list that is passed to the last node.
    if len(layer.outputs) > 1:
        obj["output"] = outnode["input"]


def _linked_nodes(layer: LuaLayer, module_of: Callable[[LuaLayer], TorchObject]) -> tuple[Node, Node, Sources]:
    """Return the last and the first node of an `nn.gModule`, and the sources of all its nodes.

    nngraph's constructor adds both: the last takes all outputs, and the first is the source of all inputs.

    Args:
        layer: the graph, whose steps are in order.
        module_of: makes the Torch object of a layer.
    """
    sources: Sources = {}
    nodes: dict[int, Node] = {}  # by the id of a step
    inputs: dict[int, Node] = {}  # by the index of an input
    for step in layer.steps:
        if step.layer is None:
            node = _node(f"input {step.index + 1}", module=module_of(LuaLayer("nn.Identity")))
            inputs[step.index] = node
        else:
            node = _node(step.layer.path or step.layer.name, module=module_of(step.layer))
            for source in step.inputs:
                _link(node, nodes[id(source)], sources)
        nodes[id(step)] = node
    outnode = _node("output", input=Table())
    for step in layer.outputs:
        _link(outnode, nodes[id(step)], sources)
    innode = _node("inputs", input=Table())
    _link_inputs([inputs[index] for index in range(layer.inputs)], innode, sources)
    return outnode, innode, sources


def _link_inputs(inputs: list[Node], innode: Node, sources: Sources) -> None:
    """Connect the inputs of a graph to its first node: several, as nngraph does, by nodes that split the table of them.

    Args:
        inputs: the nodes of the inputs, in order.
        innode: the first node.
        sources: of all nodes; receives those of the inputs and of the nodes that split.
    """
    if len(inputs) == 1:
        _link(inputs[0], innode, sources)
        return
    split = _node("split", nSplitOutputs=float(len(inputs)))
    _link(split, innode, sources)
    for number, node in enumerate(inputs, 1):
        part = _node(f"split {number}", selectindex=float(number), input=Table())
        _link(part, split, sources)
        _link(node, part, sources)


def _link(node: Node, source: Node, sources: Sources) -> None:
    """Connect a node to the value of another, as `Node:add(child, true)` of nngraph.

    Args:
        node: takes the value; its `mapindex` receives the source.
        source: has the value; not one that the node has already: a graph has an nn.Identity for each further use.
        sources: of all nodes; receives the source.
    """
    sources.setdefault(node, {})[source] = None
    numbers: Any = node["mapindex"]
    number = float(len(numbers) // 2 + 1)  # the table has each source twice: by its number, and its number by it
    numbers[number] = source
    numbers[source] = number


def _edges_from(outnode: Node, sources: Sources) -> list[tuple[Node, Node]]:
    """Return the edges from nodes to their sources, breadth first from the last node, as `Node:graph()` of nngraph."""
    edges: list[tuple[Node, Node]] = []
    reached = {outnode}
    pending = [outnode]
    for node in pending:  # which grows meanwhile
        for source in sources.get(node, ()):
            edges.append((node, source))
            if source not in reached:
                reached.add(source)
                pending.append(source)
    return edges
