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

    A node that only selects an element of another's output, as created by `split`, becomes part of the links to it.

    Args:
        obj: the graph; the names of its modules are those of `graph_modules`.
        path: its path, for messages.

    Raises:
        NotMappedError: the nodes are missing, or do not follow one another.
    """
    names: dict[int, str] = {}
    # By the id of a module, its name at its first place.
    for child in graph_modules(obj):
        names.setdefault(id(child.value), child.name)
    begin = lookup(obj, "innode.data")
    end = lookup(obj, "outnode.data")
    forward = items_of(obj.get("forwardnodes"))
    if not isinstance(end, Table) or not isinstance(begin, Table) or not forward:
        raise NotMappedError("its nodes are not in the file", path=path)
    nodes: list[GraphNode] = []
    # Where the value of each of Lua's nodes is, by the id of its data: number of a node, and elements of its output.
    # Number 0 is the input of the graph, and node `nodes[0]` has number 1.
    values: dict[int, Link] = {id(begin): (0, ())}
    for number, node in enumerate(forward, 1):
        data = lookup(node, "data")
        place = f"{path}.forwardnodes[{number}]"
        if data is begin or data is end:
            continue
        if not isinstance(data, Table):
            raise NotMappedError("a node has no data", path=place)
        takes = _links(data, values, place)
        select = data.get("selectindex")
        if select is not None:
            values[id(data)] = _selected(takes, select, place)
        elif data.get("module") is None and len(takes) == 1:
            # It only passes its input through.
            values[id(data)] = takes[0]
        else:
            nodes.append(_node(data, takes, names, place))
            values[id(data)] = (len(nodes), ())
    outputs = _links(end, values, f"{path}.outnode")
    if not outputs:
        raise NotMappedError("its output is not connected", path=path)
    return GraphSpec(tuple(nodes), outputs, returns_list=len(outputs) > 1)


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


def _node(data: Table, takes: tuple[Link, ...], names: dict[int, str], path: str) -> GraphNode:
    """Return a node that applies a module, or makes a list of its inputs.

    Args:
        data: Lua's table of the node.
        takes: the sources of its inputs.
        names: the names of the graph's modules, by their ids.
        path: of the node, for messages.

    Raises:
        NotMappedError: the module is not among these.
    """
    module = data.get("module")
    if module is not None and id(module) not in names:
        raise NotMappedError("a node has a module that the graph does not list", path=path)
    label = lookup(data, "annotations.name")
    label = label.decode("utf-8", "replace") if isinstance(label, bytes) else ""
    return GraphNode(None if module is None else names[id(module)], takes, label)


def _selected(takes: tuple[Link, ...], select: Value, path: str) -> Link:
    """Return the link to an element of a node's only input, for a node that does nothing but select it.

    Args:
        takes: the links to the node's inputs.
        select: Lua's `selectindex`, which counts from 1.
        path: of the node, for messages.

    Raises:
        NotMappedError: it has several inputs, or no whole number.
    """
    if not isinstance(select, float) or not select.is_integer() or len(takes) != 1:
        raise NotMappedError("a node selects something other than an element", path=path, found=f"{select!r:.40}")
    source, elements = takes[0]
    return source, (*elements, int(select) - 1)


def _links(data: Table, values: dict[int, Link], path: str) -> tuple[Link, ...]:
    """Return the sources of the inputs of a node, in order.

    Args:
        data: Lua's table of the node; `mapindex` lists those of the nodes that it receives.
        values: where the values of the nodes before it are, by the ids of their tables.
        path: of the node, for messages.

    Raises:
        NotMappedError: a source is not run before it.
    """
    links: list[Link] = []
    sources: list[Value] = items_of(data.get("mapindex")) or []
    for source in sources:
        link = values.get(id(source))
        if link is None:
            raise NotMappedError("a node uses a value that is not computed before it", path=path)
        links.append(link)
    return tuple(links)


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

    A module is named by the annotation of its first node, if that is a valid and unique name in PyTorch;
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
    """Return the names of modules, by their ids: the annotation of the first node of each, if it is valid and unique.

    Args:
        nodes: number, data and module of each.
    """
    labels: dict[int, str] = {}
    for _, data, module in nodes:
        label = lookup(data, "annotations.name")
        if isinstance(label, bytes):
            labels.setdefault(id(module), label.decode("utf-8", "replace"))
    uses = Counter(labels.values())
    return {key: label for key, label in labels.items() if uses[label] == 1 and is_free_name(label)}
