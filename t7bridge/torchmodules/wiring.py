"""Which layers of a module take the outputs of which others, by torch.fx.

What lies between two layers with tensors of their own (activations, sums, changes of shape) is not distinguished, as
two authors write it in different ways. Kept are the places in a concatenation and in a list of outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from attrs import field
from torch import fx, nn

from ..data import define
from .layers.containers import DepthConcat
from .layers.table import JoinTable

Segment = frozenset[str]
"""The paths of the layers from whose outputs a part of a value is computed; `INPUT` for inputs of the model."""

INPUT = "input of the model"

_SegmentsOfNodes = dict[fx.Node, tuple[Segment, ...]]
"""The segments of the value of each node: one for each part of a concatenation, usually one, and none of a value that
depends on no element of a tensor."""
_OWN = DepthConcat.__module__.rpartition(".")[0] + "."
"""The package of this package's layers."""
_CONCATENATIONS = frozenset((torch.cat, torch.concat, torch.concatenate))


@define(eq=False)
class Wiring:
    """The data flow between the layers of a module.

    Attributes:
        calls: for each call of a layer, in order: its path, and the segments of its input, of which a concatenation
            has several. A parameter outside of a layer takes nothing, and its path is its key.
        outputs: the segments of the output.
    """

    calls: list[tuple[str, tuple[Segment, ...]]] = field(factory=list)
    outputs: tuple[Segment, ...] = ()


def wiring_of(module: nn.Module) -> Wiring | None:
    """Trace a module symbolically; `None` where torch.fx cannot follow its `forward`.

    Nothing is computed, and the module stays as it is: its copy, which shares all tensors, is traced.
    """
    tensors = (*module.parameters(), *module.buffers())
    try:
        # What a deep copy finds in its memo it does not copy.
        module_copy = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors}).eval()
        graph = _Tracer().trace(module_copy)
        return _wiring(graph, module_copy)
    except Exception:  # of any code in the module, which does not expect symbols
        return None


class _Tracer(fx.Tracer):
    """Enters modules that have modules inside, also those of this package's containers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one node, and not entered.

        Args:
            m: the module.
            module_qualified_name: its path, not used; both names are those of `fx.Tracer`.
        """
        if isinstance(m, nn.Sequential):
            return False
        # Attention and transformer layers of torch.nn branch on the values of their arguments.
        return next(m.children(), None) is None or m.__module__.startswith("torch.nn.modules")

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Return the output of a module: a node, or what its `forward` returns for nodes.

        Layers of this package without tensors are entered, as some take or return lists, which no node can be.

        Args:
            m: the module.
            forward: its method.
            args: of the call.
            kwargs: likewise.
        """
        # These two need the sizes of their inputs, which no node has; without padding and views they concatenate. Along
        # which dimension makes no difference to the wiring.
        if isinstance(m, DepthConcat):
            return torch.cat([child(*args) for child in m], m.dim)
        if isinstance(m, JoinTable):
            return torch.cat(*args)
        if m.__module__.startswith(_OWN) and not _has_tensors(m):
            try:
                return forward(*args, **kwargs)
            except Exception:  # it needs sizes: a leaf will do
                pass
        return super().call_module(m, forward, args, kwargs)


def _wiring(graph: fx.Graph, module: nn.Module) -> Wiring:
    """Return the data flow in a traced graph of a module.

    Each value is followed by its segments: for each part of a concatenation, the layers that it is computed from. Along
    which dimension parts are concatenated makes no difference.

    Args:
        graph: what torch.fx traced.
        module: the module, for its layers and parameters; a parameter that is read twice counts as two calls.
    """
    wiring = Wiring()
    parameters = {key for key, _ in module.named_parameters()}
    segments: _SegmentsOfNodes = {}
    for node in graph.nodes:
        target = str(node.target)  # of a module or parameter, its path
        if node.op == "placeholder":  # an input of the model; several are not told apart
            segments[node] = _only_from(INPUT)
        elif node.op == "call_module" and _has_tensors(module.get_submodule(target)):
            wiring.calls.append((target, _merged(_nodes((node.args, node.kwargs)), segments)))
            segments[node] = _only_from(target)  # whatever is before the layer
        elif node.op == "get_attr" and target in parameters:
            wiring.calls.append((target, ()))  # a parameter takes nothing
            segments[node] = _only_from(target)
        elif node.op == "output":
            (output,) = node.args
            # Of a list of outputs each place counts, like the parts of a concatenation.
            wiring.outputs = tuple(_segments(output, segments))
        elif node.op == "call_function" and node.target in _CONCATENATIONS:
            tensors = node.args[0] if node.args else node.kwargs["tensors"]
            segments[node] = tuple(_segments(tensors, segments))
        elif _is_independent_of_elements(node):
            segments[node] = ()
        else:  # an operation, a layer without tensors, or a buffer, which takes nothing
            segments[node] = _merged(node.all_input_nodes, segments)
    return wiring


def _only_from(layer: str) -> tuple[Segment, ...]:
    """Return the segments of a value that one layer returns."""
    return (frozenset((layer,)),)


def _is_independent_of_elements(node: fx.Node) -> bool:
    """Return whether a node is the size, type or device of a tensor."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    if node.target is not getattr:
        return False
    _, name = node.args  # a default is not among them: any attribute of a symbol exists
    return name in ("shape", "ndim", "device", "dtype")


def _has_tensors(layer: nn.Module) -> bool:
    """Return whether a module, or one inside it, has parameters or buffers."""
    return next(layer.parameters(), None) is not None or next(layer.buffers(), None) is not None


def _merged(nodes: Iterable[fx.Node], segments: _SegmentsOfNodes) -> tuple[Segment, ...]:
    """Return the segments of what an operation computes from values.

    If all have the same segments, it keeps them; else there is one, of all layers together. Values without segments,
    such as sizes, do not count; of these alone there are none.

    Args:
        nodes: those of the values.
        segments: of each node.
    """
    distinct = {segments[node] for node in nodes if segments[node]}
    if len(distinct) == 1:
        return distinct.pop()
    layers: set[str] = set()
    for segments_of_value in distinct:
        layers.update(*segments_of_value)
    return (frozenset(layers),) if layers else ()


def _segments(value: Any, segments: _SegmentsOfNodes) -> Iterator[Segment]:
    """Yield the segments of a tensor, or of all tensors in a list; those of a dict, which has no order, are one.

    Args:
        value: a node, nested lists or dicts of nodes, or a constant, which has no segments.
        segments: of each node.
    """
    if isinstance(value, fx.Node):
        yield from segments[value]
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _segments(item, segments)
    else:
        yield from _merged(_nodes(value), segments)


def _nodes(value: Any) -> list[fx.Node]:
    """Return all nodes in nested arguments."""
    nodes: list[fx.Node] = []
    fx.node.map_arg(value, nodes.append)
    return nodes
