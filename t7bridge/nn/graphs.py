"""nngraph's graphs as plans: the data flow between modules. Source: nngraph 3ed3b9b `gmodule.lua`, `node.lua`.

May import graph and errors. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import evolve

from ..graph.lua import Table, TorchObject, Value
from .fields import items_of, lookup
from .mapping import GraphNode, GraphSpec, Link, NotMappedError
from .registry import Child, modules


def graph_spec(obj: TorchObject, path: str) -> GraphSpec:
    """Return the steps of an `nn.gModule`, in the order of its `forwardnodes`.

    Args:
        obj: the graph; the names of its modules are those of `graph_modules`.
        path: its path, for messages.

    Raises:
        NotMappedError: the nodes are missing, or do not follow one another.
    """
    begin = lookup(obj, "innode.data")
    end = lookup(obj, "outnode.data")
    forward = items_of(obj.get("forwardnodes"))
    if not isinstance(end, Table) or not isinstance(begin, Table) or not forward:
        raise NotMappedError("its nodes are not in the file", path=path)
    steps = _Steps(_module_names(obj), begin)
    for number, node in enumerate(forward, 1):
        data = lookup(node, "data")
        if data is begin or data is end:
            continue
        node_path = f"{path}.forwardnodes[{number}]"
        if not isinstance(data, Table):
            raise NotMappedError("a node has no data", path=node_path)
        steps.add(data, node_path)
    outputs = steps.inputs_of(end, f"{path}.outnode")
    if not outputs:
        raise NotMappedError("its output is not connected", path=path)
    return GraphSpec(tuple(steps.nodes), outputs, returns_list=len(outputs) > 1)


def _module_names(obj: TorchObject) -> dict[int, str]:
    """Return the names of the modules of a graph, by their ids: of each that of its first place."""
    names: dict[int, str] = {}
    for child in graph_modules(obj):
        names.setdefault(id(child.value), child.name)
    return names


class _Steps:
    """The nodes of a plan, made of those of Lua's graph, each after those whose outputs it receives.

    Args:
        names: the names of the graph's modules, by their ids.
        begin: Lua's table of the node that returns the input of the graph.

    Attributes:
        nodes: those of the plan; in links they count from 1, as number 0 is the input of the graph.
    """

    def __init__(self, names: dict[int, str], begin: Table) -> None:
        self.nodes: list[GraphNode] = []
        self._names = names
        self._outputs: dict[int, Link] = {id(begin): (0, ())}
        """What each of Lua's nodes returns, by the id of its table: the number of a node here, and which elements."""

    def add(self, data: Table, path: str) -> None:
        """Add the node of a table of Lua, if it applies a module or makes a list.

        One that only passes its input on, or selects an element of it, as created by `split`, becomes part of the links
        to it.

        Args:
            data: Lua's table of the node.
            path: of the node, for messages.

        Raises:
            NotMappedError: it receives what no node before it returns, or its module or selection is damaged.
        """
        inputs = self.inputs_of(data, path)
        select = data.get("selectindex")
        if select is not None:
            output = _selected(inputs, select, path)
        elif data.get("module") is None and len(inputs) == 1:
            (output,) = inputs
        else:
            self.nodes.append(self._node(data, inputs, path))
            output = (len(self.nodes), ())
        self._outputs[id(data)] = output

    def inputs_of(self, data: Table, path: str) -> tuple[Link, ...]:
        """Return the sources of the inputs of a node, in order.

        Args:
            data: Lua's table of the node; `mapindex` lists those of the nodes that it receives.
            path: of the node, for messages.

        Raises:
            NotMappedError: a source is not run before it.
        """
        links: list[Link] = []
        for source in items_of(data.get("mapindex")) or []:
            link = self._outputs.get(id(source))
            if link is None:
                raise NotMappedError("a node uses a value that is not computed before it", path=path)
            links.append(link)
        return tuple(links)

    def _node(self, data: Table, inputs: tuple[Link, ...], path: str) -> GraphNode:
        """Return a node that applies a module, or makes a list of its inputs.

        Args:
            data: Lua's table of the node.
            inputs: the sources of its inputs.
            path: of the node, for messages.

        Raises:
            NotMappedError: the module is not among those of the graph.
        """
        module = data.get("module")
        if module is not None and id(module) not in self._names:
            raise NotMappedError("a node has a module that the graph does not list", path=path)
        label = lookup(data, "annotations.name")
        label = label.decode("utf-8", "replace") if isinstance(label, bytes) else ""
        return GraphNode(None if module is None else self._names[id(module)], inputs, label)


def _selected(inputs: tuple[Link, ...], select: Value, path: str) -> Link:
    """Return the link to an element of a node's only input, for a node that does nothing but select it.

    Args:
        inputs: the links to the node's inputs.
        select: Lua's `selectindex`, which counts from 1.
        path: of the node, for messages.

    Raises:
        NotMappedError: it has several inputs, or no whole number from 1.
    """
    is_position = isinstance(select, float) and select.is_integer() and select >= 1
    if not is_position or len(inputs) != 1:
        raise NotMappedError("a node selects something other than an element", path=path, found=f"{select!r:.40}")
    ((source, elements),) = inputs
    return source, (*elements, int(select) - 1)


def recorded_nodes(obj: TorchObject) -> list[Table]:
    """Return the table of each node with a module, in the order of execution.

    The fields `input` and `gradOutput` are lists of the values that the node received in the last pass.
    """
    tables = []
    for node in items_of(obj.get("forwardnodes")) or []:
        data = lookup(node, "data")
        if isinstance(data, Table) and data.get("module") is not None:
            tables.append(data)
    return tables


_WORDS = """
T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double
dump_patches eval extra_repr float forward half ipu load_state_dict modules mtia parameters
register_buffer register_module register_parameter requires_grad_ share_memory state_dict to
to_empty train training type xpu zero_grad append extend insert pop nodes outputs returns_list
get_buffer get_parameter get_submodule set_submodule get_extra_state set_extra_state named_buffers
named_children named_modules named_parameters
"""
RESERVED = frozenset(_WORDS.split())
"""Attributes of every torch.nn.Module that a user might choose as the name of a layer."""


def is_free_name(name: str) -> bool:
    """Return whether a module can be an attribute of this name."""
    return name.isidentifier() and not (name.startswith("_") or keyword.iskeyword(name) or name in RESERVED)


def graph_modules(obj: TorchObject) -> Iterator[Child]:
    """Yield the modules of a graph in the order of execution: `modules`, or as nngraph fills it from the forward nodes.

    A module is named by the first annotation of a node of its, if that is a valid and unique name in PyTorch;
    the others by their position. Source: nngraph 3ed3b9b `gmodule.lua` `__init__`; files before 2015-10-16 have no
    `modules`.
    """
    nodes = list(_nodes_with_modules(obj))
    children = list(modules(obj))
    if not children:
        for position, (number, _, module) in enumerate(nodes):
            children.append(Child(str(position), f".forwardnodes[{number}].data.module", module))
    names = _names_by_labels(nodes)
    for child in children:
        # Only the first place of a module has its label: a name is taken out with its first use.
        name = names.pop(id(child.value), None)
        yield child if name is None else evolve(child, name=name)


def _nodes_with_modules(obj: TorchObject) -> Iterator[tuple[int, Value, Value]]:
    """Yield number, data and module of the forward nodes of a graph that have one; they count from 1."""
    for number, node in enumerate(items_of(obj.get("forwardnodes")) or (), 1):
        data = lookup(node, "data")
        module = lookup(data, "module")
        if module is not None:
            yield number, data, module


def _names_by_labels(nodes: Iterable[tuple[int, Value, Value]]) -> dict[int, str]:
    """Return the names of modules, by their ids: the first annotation of a node of each, if it is valid and unique.

    Args:
        nodes: number, data and module of each, in the order of execution.
    """
    labels: dict[int, str] = {}
    for _, data, module in nodes:
        label = lookup(data, "annotations.name")
        if isinstance(label, bytes):
            labels.setdefault(id(module), label.decode("utf-8", "replace"))
    uses = Counter(labels.values())
    return {module_id: label for module_id, label in labels.items() if uses[label] == 1 and is_free_name(label)}
