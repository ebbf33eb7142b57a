"""Places of parts, each the tensors of one module, in the graphs of two models: those with the same surroundings,
however far one looks, have one color. The nodes of a graph are modules, by name. What a call takes is a concatenation
of segments, mostly of one: for each the nodes from whose outputs it is computed.

Colors are refined until they no longer change (Weisfeiler and Leman, 1968): the color of a part is its class, then its
class with the colors of what it takes and of what takes it, and so on. Parts of one color are not told apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from attrs import field

from ...data import define
from .parts import Part
from .sides import Side, wiring_of

if TYPE_CHECKING:
    from ...torchmodules.wiring import Segment

_RECURRENT_LAYER = re.compile(r"_l\d+(_reverse)?")
_MAX_ROUNDS = 5000
"""Refinements; a chain of n parts needs n / 2."""
_NO_COLOR = -1
"""Instead of the color of the model's input or output, which has none."""
_OUTPUT = ""
"""Instead of a node, what takes the outputs of the model."""


Segments = tuple[frozenset[str], ...]
"""A value as a concatenation of segments, mostly of one: for each the nodes whose outputs it is computed from."""


@define(eq=False)
class Graph:
    """The data flow between the parts of one side.

    Attributes:
        nodes: the node of each part, by its number; parts of one node are inside one module.
        outputs: the segments of the model's output.
        inputs: what each node takes in each of its calls. Names there that are no nodes are inputs of the model.
        bit_of: a number with one bit set for each node, another one for each; sets of nodes are sums of these.
        bits_before: for each node the set of those that it depends on, however far back.
    """

    nodes: dict[int, str]
    outputs: Segments
    inputs: dict[str, list[Segments]] = field(factory=dict)
    bit_of: dict[str, int] = field(factory=dict)
    bits_before: dict[str, int] = field(factory=dict)

    def add_call(self, node: str, segments: Segments) -> None:
        """Add a call of a node, after those of all nodes that it depends on.

        Args:
            node: the node.
            segments: what it takes.
        """
        self.inputs.setdefault(node, []).append(segments)
        self.bit_of.setdefault(node, 1 << len(self.bit_of))
        bits = self.bits_before.setdefault(node, 0)  # a set of nodes, one bit each
        for other in _names_in(segments):
            if other in self.bit_of:  # and not an input of the model
                bits |= self.bit_of[other] | self.bits_before[other]
        self.bits_before[node] = bits

    def add_row(self, nodes: list[str], segments: Segments) -> None:
        """Add a call of each of several nodes, such as the layers of a recurrent module: each takes the output before.

        Args:
            nodes: the nodes, in the order in which they run.
            segments: what the first one takes.
        """
        for node in nodes:
            self.add_call(node, segments)
            segments = (frozenset((node,)),)

    def depth(self, part: Part) -> int:
        """Return the number of nodes that a part depends on, 0 if it has no node: one that runs later has more."""
        return self.bits_before.get(self.nodes.get(part.number, ""), 0).bit_count()

    def is_before(self, part: Part, other: Part) -> bool:
        """Return whether a part runs before another one, which depends on it."""
        node = self.nodes.get(part.number)
        other_node = self.nodes.get(other.number)
        if node is None or other_node is None:
            return False
        if node == other_node:
            return True  # inside of a module whose own graph is not known: nothing says otherwise
        depends = self.bits_before[other_node] & self.bit_of[node]
        # A node that is called several times may also depend on the other: then neither is first.
        is_circular = self.bits_before[node] & self.bit_of[other_node]
        return bool(depends) and not is_circular


def graph_of(side: Side, parts: Sequence[Part]) -> Graph | None:
    """Return the graph of a side's parts; `None` if there is no model, or its data flow cannot be read.

    A part whose tensors no single module holds has no node. Each layer of a recurrent module is a node.
    """
    wired = wiring_of(side)
    if wired is None:
        return None
    wiring, keys_in_model = wired
    modules = {name for name, _ in wiring.calls}
    node_of_part: dict[int, str] = {}
    nodes_of_modules: dict[str, list[str]] = {}
    for part in parts:
        module = _module_of(part, modules, keys_in_model)
        if module:
            node = _node_of(part, module)
            node_of_part[part.number] = node
            nodes_of_modules.setdefault(module, []).append(node)
    rows_of_nodes = {module: _in_running_order(module, nodes) for module, nodes in nodes_of_modules.items()}
    # What takes the output of a module takes that of the last of its nodes.
    last_nodes = {module: nodes[-1] for module, nodes in rows_of_nodes.items()}
    graph = Graph(node_of_part, outputs=_renamed(wiring.outputs, last_nodes))
    for module, inputs in wiring.calls:
        nodes = rows_of_nodes.get(module, [module])  # a module without parts is a node, too
        graph.add_row(nodes, _renamed(inputs, last_nodes))
    return graph


def _in_running_order(module: str, nodes: list[str]) -> list[str]:
    """Return the nodes of a module, each once: the layers of a recurrent one, and last itself, if it has other tensors.

    Args:
        module: its name, which is also that of the node for itself.
        nodes: one for each of its parts, in the order of their keys; both directions of a layer have one.
    """
    return sorted(dict.fromkeys(nodes), key=lambda node: node == module)


def _node_of(part: Part, module: str) -> str:
    """Return the node of a part: its module, or, of a recurrent module of PyTorch, the layer, `rnn _l0`.

    Both directions of a layer are one node.
    """
    own_step = part.path[-1] if part.path else ""
    if not _RECURRENT_LAYER.fullmatch(own_step):
        return module
    return f"{module} {own_step.removesuffix('_reverse')}"


def _module_of(part: Part, modules: set[str], keys_in_model: Mapping[str, str]) -> str:
    """Return the module that holds all tensors of a part which both sides have; empty if no single one does.

    Args:
        part: the part.
        modules: those of the data flow, by name.
        keys_in_model: the keys of the model itself, where those of the side are others.
    """
    keys = [key for name, key in part.keys.items() if name not in part.optional]
    owners = {_owner(keys_in_model.get(key, key), modules) for key in keys}
    return owners.pop() if len(owners) == 1 else ""


def _renamed(segments: Iterable[Segment], names: Mapping[str, str]) -> Segments:
    """Return segments with other names for some nodes."""
    return tuple(frozenset(names.get(name, name) for name in segment) for segment in segments)


def _owner(key: str, modules: set[str]) -> str:
    """Return what holds a key: the parameter itself, or the innermost module that was called; empty without one.

    Args:
        key: in the state dict of the model.
        modules: the modules and parameters of the data flow, by name.
    """
    path = key
    while path not in modules and path:
        path = path.rpartition(".")[0]
    return path if path in modules else ""


def _names_in(segments: Iterable[Segment]) -> set[str]:
    """Return the nodes of all segments."""
    return set().union(*segments)


def colors(sides: Sequence[tuple[Graph, Sequence[Part]]]) -> list[dict[int, int]]:
    """Return the color of each part of both sides, by its number: equal for parts at places that look alike.

    Parts of classes that the sides have in unequal numbers, or that a graph does not show, are passed through, as if
    they were not there. Nodes, the modules of a graph, are what has a color: the parts of one node have that of it.

    Args:
        sides: the graph and the parts of the source, and those of the target.
    """
    in_source, in_target = (Counter(part.cls for part in parts) for _, parts in sides)
    equally_many = {cls for cls, count in in_source.items() if count == in_target[cls]}
    without_node = {part.cls for graph, parts in sides for part in parts if part.number not in graph.nodes}
    flows = [_Flow(graph, parts, classes=equally_many - without_node) for graph, parts in sides]
    result = []
    for (graph, _), colors_of_nodes in zip(sides, _stable_colors(flows)):
        nodes_with_color = {number: node for number, node in graph.nodes.items() if node in colors_of_nodes}
        result.append({number: colors_of_nodes[node] for number, node in nodes_with_color.items()})
    return result


def _stable_colors(flows: list[_Flow]) -> list[dict[str, int]]:
    """Return the colors of the nodes with parts on each side, refined until no round tells more of them apart."""
    colors_of_nodes = _numbered([flow.classes for flow in flows])
    for _ in range(_MAX_ROUNDS):
        refined = _numbered([flow.refine(own_colors) for flow, own_colors in zip(flows, colors_of_nodes)])
        # A round only ever splits colors: with as many as before it has split none.
        if _count(refined) == _count(colors_of_nodes):
            return refined
        colors_of_nodes = refined
    return colors_of_nodes


def _count(colors_of_nodes: list[dict[str, int]]) -> int:
    """Return the number of different colors."""
    return len({color for side in colors_of_nodes for color in side.values()})


def _numbered(values: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
    """Return numbers in place of values, by the same nodes: equal ones for equal values, also on both sides."""
    numbers: dict[Any, int] = {}
    result = []
    for side in values:
        result.append({node: numbers.setdefault(value, len(numbers)) for node, value in side.items()})
    return result


def _classes_of_nodes(graph: Graph, parts: Sequence[Part], classes: set[Any]) -> dict[str, tuple[Any, ...]]:
    """Return the classes of the parts of each node that has any, in an order that is the same on both sides.

    Args:
        graph: the data flow between the parts.
        parts: those of one side.
        classes: the classes that count.
    """
    classes_of: dict[str, list[Any]] = {}
    for part in parts:
        node = graph.nodes.get(part.number)
        if node is not None and part.cls in classes:
            classes_of.setdefault(node, []).append(part.cls)
    return {node: tuple(sorted(classes_there, key=repr)) for node, classes_there in classes_of.items()}


@define(frozen=True)
class _Taker:
    """What takes the output of a node.

    Attributes:
        node: the node that takes it; `_OUTPUT` if that is an output of the model.
        place: of the segment with that output among those that it takes, from 0.
        count: the number of these segments.
    """

    node: str
    place: int
    count: int


class _Flow:
    """The data flow between the parts of classes that both sides have equally often; other nodes are passed through.
    Nodes with such parts take segments in each of their calls, from the nearest nodes with parts before.

    Args:
        graph: the data flow between all parts.
        parts: those of one side.
        classes: the classes.

    Attributes:
        classes: those of the parts of each node with parts.
    """

    def __init__(self, graph: Graph, parts: Sequence[Part], classes: set[Any]) -> None:
        self.classes = _classes_of_nodes(graph, parts, classes)
        self._graph = graph
        self._sources_of_passed: dict[str, frozenset[str]] = {}
        """What `_sources_of` returns for each node without parts, which is passed through."""
        self._calls = {node: [self._through(segments) for segments in graph.inputs[node]] for node in self.classes}
        """What each node with parts takes in each of its calls, as if the nodes without parts were not there."""
        self._takers: dict[str, list[_Taker]] = {node: [] for node in self.classes}
        """For each node with parts, what takes its output."""
        for taker, calls in self._calls.items():
            self._note_takers(taker, calls)
        self._note_takers(_OUTPUT, [self._through(graph.outputs)])

    def _note_takers(self, taker: str, calls: list[Segments]) -> None:
        """Note in `_takers` what a node, or `_OUTPUT`, takes in its calls."""
        for segments in calls:
            for place, segment in enumerate(segments):
                for node in segment & self.classes.keys():
                    self._takers[node].append(_Taker(taker, place, count=len(segments)))

    def _through(self, segments: Iterable[frozenset[str]]) -> Segments:
        """Replace nodes without parts of these classes by what they take; equal neighbors become one."""
        with_parts = []
        for segment in segments:
            nearest = [self._nearest_with_parts(name) for name in segment]
            with_parts.append(frozenset().union(*nearest))
        return tuple(segment for segment, _ in groupby(with_parts))

    def _nearest_with_parts(self, name: str) -> frozenset[str]:
        """Return the nodes with parts from which a node's output comes: itself, or the nearest ones before it.

        An input of the model, which no graph has as a node, stays as it is.
        """
        is_node = name in self._graph.inputs
        if name in self.classes or not is_node:
            return frozenset((name,))
        if name not in self._sources_of_passed:
            self._sources_of_passed[name] = self._sources_of(name)
        return self._sources_of_passed[name]

    def _sources_of(self, name: str) -> frozenset[str]:
        """Return the nodes with parts, or inputs of the model, from which the value of a node without parts comes.

        From each of them a way leads to the node through nodes without parts alone.
        """
        sources: set[str] = set()
        passed = {name}
        stack = [name]
        while stack:
            calls = self._graph.inputs[stack.pop()]
            # The names in all segments that it takes in any of its calls.
            taken = _names_in(segment for segments in calls for segment in segments)
            for other in taken:
                is_node = other in self._graph.inputs  # and not an input of the model
                if other in self.classes or not is_node:
                    sources.add(other)
                elif other not in passed:
                    passed.add(other)
                    stack.append(other)
        return frozenset(sources)

    def refine(self, colors_of_nodes: Mapping[str, int]) -> dict[str, Any]:
        """Return a value for each node with parts: nodes of equal values have one color after this round.

        It consists of the color of the node, the colors of what it takes in each call, and of what takes its output.

        Args:
            colors_of_nodes: the colors before this round.
        """
        refined = {}
        for node, calls in self._calls.items():
            # What a call takes are segments, of which a concatenation has several.
            inputs = [tuple(_colors_of(segment, colors_of_nodes) for segment in call) for call in calls]
            takers = []
            for taker in self._takers[node]:
                takers.append((colors_of_nodes.get(taker.node, _NO_COLOR), taker.place, taker.count))
            # The order of calls and takers does not tell nodes apart.
            refined[node] = (colors_of_nodes[node], tuple(sorted(inputs)), tuple(sorted(takers)))
        return refined


def _colors_of(segment: frozenset[str], colors_of_nodes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the colors of the nodes of a segment, and `_NO_COLOR` for the input of the model."""
    return tuple(sorted(colors_of_nodes.get(name, _NO_COLOR) for name in segment))
