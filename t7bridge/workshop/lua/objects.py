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
from .layers import CLASSES, CONTAINERS, LuaLayer, WeightRef, fields_of

FIELD = "t7bridge"
ROOT_FIELD = "t7bridge_state_dict"
GRADIENTS = {"weight": "gradWeight", "bias": "gradBias"}


@define(eq=False)
class ObjectMaker:
    """Creates the objects of layers.

    Attributes:
        element: of all tensors of the model.
        weights: the tensors of the state dict.
        training: whether modules are in training mode.
        has_gradients: whether weights have gradients beside them, without which Lua can evaluate, but not train.
    """

    element: ElementType
    weights: dict[str, np.ndarray]
    training: bool = False
    has_gradients: bool = True
    _tensors: dict[tuple[WeightRef, bool], Tensor] = field(factory=dict)
    _storages: dict[tuple[str, bool], Storage] = field(factory=dict)

    def make(self, layer: LuaLayer) -> TorchObject:
        """Return the object of a layer, with everything inside it."""
        row = None if layer.name == "nn.gModule" else CLASSES[layer.name.partition(".")[2]]
        fields = Table.of({"_type": f"torch.{self.element.lua}Tensor"})
        if row is not None:
            fields["output"], fields["gradInput"] = Tensor(self.element, None), Tensor(self.element, None)
        obj = TorchObject(layer.name, row.version if row else 1, fields)
        if row is not None:
            for name, value in fields_of(layer, self.element).items():
                obj[name] = value
        if layer.name == "nn.SeqLSTM":
            self._fill_lstm(obj, layer.weights)
        own = {} if layer.name == "nn.SeqLSTM" else layer.weights
        for name, ref in own.items():
            obj[name] = self.tensor(ref)
            if name in GRADIENTS and self.has_gradients:
                obj[GRADIENTS[name]] = self.tensor(ref, gradient=True)
        if layer.name.endswith("BatchNormalization") and "weight" not in layer.weights:
            obj["affine"] = False
        if not self.training:
            obj["train"] = False
        if layer.weights:
            obj[FIELD] = Table.of(
                {name: weight_entry(ref, self.weights[ref.key].shape) for name, ref in layer.weights.items()}
            )
        if layer.name == "nn.gModule":
            _make_gmodule(layer, obj, self.make)
        elif layer.name in CONTAINERS:
            obj["modules"] = Table.from_list([self.make(child) for child in layer.children])
        return obj

    def _fill_lstm(self, obj: TorchObject, refs: dict[str, WeightRef]) -> None:
        """Set weight (in + hidden, gates) and bias of an nn.SeqLSTM: gates i f o g, one bias for PyTorch's two."""

        def gates(name: str) -> np.ndarray:
            i, f, g, o = np.split(self.weights[refs[name].key], 4)
            return np.concatenate([i, f, o, g]).astype(self.element.code)

        weight = np.concatenate([gates("weight_ih_l0").T, gates("weight_hh_l0").T])
        bias = np.zeros(weight.shape[1], self.element.code)
        for name in ("bias_ih_l0", "bias_hh_l0"):
            bias += gates(name) if name in refs else 0
        for name, array in (("weight", weight), ("bias", bias)):
            obj[name] = Tensor.from_numpy(np.ascontiguousarray(array))
            if self.has_gradients:
                obj[GRADIENTS[name]] = Tensor.from_numpy(np.zeros_like(array, order="C"))

    def tensor(self, ref: WeightRef, gradient: bool = False) -> Tensor:
        """Return the tensor of a field: one object for each part of the state dict, and one storage for each tensor."""
        known = self._tensors.get((ref, gradient))
        if known is not None:
            return known
        whole = self.weights[ref.key]
        if (ref.key, gradient) not in self._storages:
            flat = np.zeros(whole.size, self.element.code) if gradient else whole.reshape(-1).astype(self.element.code)
            self._storages[ref.key, gradient] = Storage.from_array(flat)
        stride = contiguous(ref.size)
        if ref.transposed:  # Lua's rows are the columns of the tensor
            stride = (*stride[:-2], 1, ref.size[-2])
        storage = self._storages[ref.key, gradient]
        made = Tensor(self.element, storage, ref.size, stride, ref.start)
        self._tensors[ref, gradient] = made
        return made


def weight_entry(ref: WeightRef, shape: tuple[int, ...]) -> Table:
    """Return the entry of a tensor field."""
    entry = Table.of({"key": ref.key, "size": Table.from_list([float(extent) for extent in shape])})
    if ref.start:
        entry["start"] = float(ref.start)
    if ref.transposed:
        entry["transposed"] = True
    return entry


# Graphs


Node = Table
"""The `data` of an `nngraph.Node`, which the nodes of the forward and the backward graph share."""


class _Graph:
    """A `graph.Graph` of edges: its nodes are in the order of their first edge, and numbered so.

    Attributes:
        nodes: the object of each node.
        object: that of the graph.
    """

    def __init__(self, edges: list[tuple[Node, Node]]) -> None:
        self._children: dict[Node, list[Node]] = {node: [] for edge in edges for node in edge}
        for start, end in edges:
            self._children[start].append(end)
        self.nodes = {
            node: _object("nngraph.Node", data=node, id=float(number), children=Table(), visited=False, marked=False)
            for number, node in enumerate(self._children, 1)
        }
        for node, children in self._children.items():
            self.nodes[node]["children"] = _numbered([self.nodes[child] for child in children])
        ends = [{"from": self.nodes[start], "to": self.nodes[end]} for start, end in edges]
        listed = _numbered([_object("graph.Edge", **pair) for pair in ends])
        self.object = _object("graph.Graph", nodes=_numbered([*self.nodes.values()]), edges=listed)

    def children_first(self) -> list[Node]:
        """Return the nodes depth first, as `topsort` does on the reversed graph."""
        inner = {child for children in self._children.values() for child in children}
        order: dict[Node, None] = {}
        visited: set[Node] = set()
        for root in self._children:
            stack = [] if root in inner else [(root, iter(self._children[root]))]
            while stack:
                node, rest = stack[-1]
                visited.add(node)
                child = next((item for item in rest if item not in visited), None)
                if child is None:
                    order[stack.pop()[0]] = None
                else:
                    stack.append((child, iter(self._children[child])))
        return list(order)


def _object(name: str, **fields: Value) -> TorchObject:
    return TorchObject(name, fields=Table.of(fields))


def _numbered(items: list[TorchObject]) -> Table:
    """Return a table that counts its items and maps each to its number."""
    numbers = [(float(number), item) for number, item in enumerate(items, 1)]
    return Table.of([*numbers, *((item, number) for number, item in numbers)])


def _node(name: str, **fields: Value) -> Node:
    annotations = Table.of({"_debugLabel": name or "?"})
    return Table.of({"annotations": annotations, "mapindex": Table(), "reverseMap": Table(), **fields})


def _make_gmodule(layer: LuaLayer, obj: TorchObject, module_of: Callable[[LuaLayer], TorchObject]) -> None:
    """Set the fields of an `nn.gModule` on an object.

    Args:
        layer: with `inputs`, `steps` and `outputs`. Each input is used, and every step leads to an output.
        obj: already has the fields of every module.
        module_of: returns the object of a layer.
    """
    sources: dict[Node, dict[Node, None]] = {}

    def link(node: Node, source: Node) -> None:
        """Connect a node to the value of another: `Node:add(child, true)`."""
        sources.setdefault(node, {})[source] = None
        index: Any = node["mapindex"]
        number = float(len(index) // 2 + 1)
        index[number] = source
        index[source] = number

    nodes: dict[int, Node] = {}
    inputs: dict[int, Node] = {}
    for step in layer.steps:
        if step.layer is None:
            node = inputs[step.index] = _node(f"input {step.index + 1}", module=module_of(LuaLayer("nn.Identity")))
        else:
            node = _node(step.layer.path or step.layer.name, module=module_of(step.layer))
            for source in step.inputs:
                link(node, nodes[id(source)])
        nodes[id(step)] = node
    outnode = _node("output", input=Table())
    for step in layer.outputs:
        link(outnode, nodes[id(step)])
    innode = _node("inputs", input=Table())
    if layer.inputs == 1:
        link(inputs[0], innode)
    else:
        split = _node("split", nSplitOutputs=float(layer.inputs))
        link(split, innode)
        for index in range(layer.inputs):
            part = _node(f"split {index + 1}", selectindex=float(index + 1), input=Table())
            link(part, split)
            link(inputs[index], part)
    reached, edges = {outnode: None}, list[tuple[Node, Node]]()
    pending = [outnode]
    for node in pending:  # grows, breadth first: `Node:graph()`
        edges += [(node, source) for source in sources.get(node, ())]
        pending += [source for source in sources.get(node, ()) if source not in reached]
        reached.update(sources.get(node, {}))
    backward, forward = _Graph(edges), _Graph([edge[::-1] for edge in edges])
    order = backward.children_first()
    for node in order:
        node["forwardNodeId"] = forward.nodes[node]["id"]
    obj["modules"] = Table.from_list([node["module"] for node in order if "module" in node])
    obj["bg"] = backward.object
    obj["fg"] = forward.object
    obj["innode"] = forward.nodes[innode]
    obj["outnode"] = backward.nodes[outnode]
    obj["verbose"] = False
    obj["nInputs"] = float(layer.inputs)
    obj["forwardnodes"] = Table.from_list([forward.nodes[node] for node in order])
    obj["backwardnodes"] = Table.from_list([backward.nodes[node] for node in forward.children_first()])
    # The constructor leaves no output, but with several outputs it is the list passed to the last node.
    if len(layer.outputs) > 1:
        obj["output"] = outnode["input"]
