"""Rules by which the containers of nn and nngraph pass values to the modules inside.

The structure alone determines a layer's input: the previous layer's `output` in a Sequential, the same value for all
branches of a Concat, `data.input` of a node in nngraph. Sources: nn 8726825, nngraph 3ed3b9b `gmodule.lua`. May import
graph and nn.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from ...nn.fields import items_of, lookup
from ...nn.registry import graph_modules, layer_of
from . import recurrent
from .values import Recorded, element, merged, narrow, output_of, recorded, select
from .visits import Flow, Step, Visit, as_whole, base_name, children_of, leaf


def flow_of(obj: TorchObject) -> Flow:
    """Return the flow of a module's class."""
    name = base_name(obj.class_name)
    if name in recurrent.CELLS and isinstance(obj.get("weight"), Tensor):
        return leaf  # the LSTM of torch-rnn takes whole sequences
    flow = _FLOWS.get(name)
    if flow is not None:
        return flow
    layer = layer_of(obj.class_name)
    inside: Value = next(layer.children(obj), None) if layer is not None and layer.children else None
    return _opaque if inside is not None else leaf


def _same_for_all(visit: Visit) -> Iterator[Visit | Step]:
    kids = children_of(visit)
    for place, (path, child) in enumerate(kids):
        yield visit.inner(path, child, visit.input, element(visit.grad_output, place))


def _concat(visit: Visit) -> Iterator[Visit | Step]:
    kids = children_of(visit)
    sizes = [output_of(child) for _, child in kids]
    outputs: list[Recorded] = []
    dim, start = visit.obj.get("dimension"), 0
    exact = base_name(visit.obj.class_name) == "Concat"
    for (path, child), output in zip(kids, sizes):
        after = None
        if exact and isinstance(dim, float) and isinstance(output, Tensor) and 1 <= dim <= len(output.size):
            after = narrow(visit.grad_output, int(dim) - 1, start, output.size[int(dim) - 1])
            start += output.size[int(dim) - 1]
        yield visit.inner(path, child, visit.input, after)
        outputs.append(visit.output_of(child))
    yield as_whole(visit, outputs if exact else None)


def _by_element(visit: Visit) -> Iterator[Visit | Step]:
    for place, (path, child) in enumerate(children_of(visit)):
        yield visit.inner(path, child, element(visit.input, place), element(visit.grad_output, place))


def _parallel(visit: Visit) -> Iterator[Visit | Step]:
    dim = visit.obj.get("inputDimension")
    for place, (path, child) in enumerate(children_of(visit)):
        given = select(visit.input, int(dim) - 1, place) if isinstance(dim, float) else None
        yield visit.inner(path, child, given)
    yield as_whole(visit)


def _bottle(visit: Visit) -> Iterator[Visit | Step]:
    inside = visit.obj.get("nInputDim")
    for path, child in children_of(visit):
        given = visit.input
        if isinstance(given, Tensor):
            dims = len(given.size) - int(inside if isinstance(inside, float) else 2) + 1
            given = merged(given, dims) if dims > 1 else given
        yield visit.inner(path, child, given)
    yield as_whole(visit)


def _graph(visit: Visit) -> Iterator[Visit | Step]:
    paths: dict[int, str] = {}
    for child in graph_modules(visit.obj):
        paths.setdefault(id(child.value), visit.path + child.path)
    begin = lookup(visit.obj, "innode.data")
    known = recorded(begin.get("input")) if isinstance(begin, Table) else None
    given = element(known, 0) if isinstance(known, list) and len(known) == 1 else known
    for node in items_of(visit.obj.get("forwardnodes")) or []:
        data = lookup(node, "data")
        module = data.get("module") if isinstance(data, Table) else None
        if not isinstance(module, TorchObject):
            continue
        taken = visit.walk.kept(recorded(data.get("input")))
        after = recorded(data.get("gradOutput"))
        one = element(taken, 0) if isinstance(taken, list) and len(taken) == 1 else taken
        back = element(after, 0) if isinstance(after, list) and len(after) == 1 else None
        yield visit.inner(paths.get(id(module), visit.path), module, one, back)
    known = visit.input if visit.input is not None else given
    yield as_whole(visit.inner(visit.path, visit.obj, known, visit.grad_output))


def _chain_and_whole(visit: Visit) -> Iterator[Visit | Step]:
    """A Sequential with a class of its own: its modules, and the whole, which is one module in PyTorch."""
    yield from recurrent.chain(visit)
    yield as_whole(visit)


def _opaque(visit: Visit) -> Iterator[Visit | Step]:
    """A container whose flow is unknown: only the whole is a step, not the modules inside."""
    yield as_whole(visit)


_FLOWS: dict[str, Flow] = {
    **dict.fromkeys(
        (
            "Sequential",
            "Decorator",
            "NaN",
            "Profile",
            "GPU",
            "Serial",
            "DontCast",
            "FireModule",
            "SpatialLPPooling",
            "Inception",
        ),
        recurrent.chain,
    ),
    **dict.fromkeys(("LayerNormalization", "Maxout"), _chain_and_whole),
    "ConcatTable": _same_for_all,
    "Concat": _concat,
    "DepthConcat": _concat,
    "ParallelTable": _by_element,
    "MapTable": _by_element,
    "Parallel": _parallel,
    "Bottle": _bottle,
    "gModule": _graph,
    **recurrent.FLOWS,
}
