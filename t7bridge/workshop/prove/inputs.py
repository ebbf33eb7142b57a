"""Inputs that two models may accept, guessed from the layers of one of them. May import graph and nn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from attrs import evolve

from ...errors import ModelError, T7BridgeError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.fields import items_of, lookup
from ...nn.graphs import graph_modules, graph_spec
from ...nn.kinds import Kind, Kinds
from ...nn.mapping import GraphNode
from ...nn.output_shapes import Example
from ...nn.plan import sketch
from ...nn.registry import in_lua_of, stock_name, traits_of
from ...nn.state_dict import state_dict
from .layer import LiveLayer
from .runs import recorded

Spec = Any
"""Example inputs as `nn.example` has them, or `None` where they are not known."""
SIDES = (32, 28, 16, 8, 64, 96, 128, 224, 227, 231, 256, 299, 12, 24, 48, 40)
"""Heights and widths tried for images."""
MOST_DEPTH = 64
"""Deepest nesting of containers that is followed."""


def guess_inputs(model: TorchObject, side: int = 32, known: dict[int, Spec] | None = None, depth: int = 0) -> Spec:
    """Return an input that a model may accept, according to its first layers; `None` if these do not determine one.

    Args:
        model: the model.
        side: height and width of images.
        known: the inputs of modules by their ids: a module may stand at several places, and in itself.
        depth: of nesting.
    """
    known = {} if known is None else known
    if id(model) not in known:
        known[id(model)] = None  # while it is visited
        inner = partial(guess_inputs, side=side, known=known, depth=depth + 1)
        known[id(model)] = _guess(model, side, inner) if depth <= MOST_DEPTH else None
    return known[id(model)]


def _guess(obj: TorchObject, side: int, inner: Callable[[TorchObject], Spec]) -> Spec:
    name, first = stock_name(obj), obj.get("inputModule")
    inside = [item for item in items_of(obj.get("modules")) or [] if isinstance(item, TorchObject)]
    if name == "nn.gModule":
        return _graph(obj, inner)
    if name == "nn.ParallelTable":
        found = list(map(inner, inside))
        return None if None in found else found
    if name in ("nn.Sequencer", "nn.BiSequencer", "nn.MapTable"):
        one = inner(inside[0]) if inside else None
        return [one, one, one] if one is not None else None
    if name == "nn.Recurrent":
        return inner(first) if isinstance(first, TorchObject) else None
    shape = _leaf_shape(obj, name, side)
    if shape is None:
        others = _first_layers(inside) if name == "nn.Sequential" else inside
        shape = next((spec for spec in map(inner, others) if spec is not None), None)
    if shape is None and (not inside or name == "nn.Sequential"):
        shape = _from_record(recorded(obj.get("gradInput")))
    return shape


def _first_layers(modules: list[TorchObject]) -> list[TorchObject]:
    """Return the modules of a Sequential that receive its input: the first, behind those that only return it."""
    for number, module in enumerate(modules):
        if not _returns_input(module):
            return modules[: number + 1]
    return modules


def _returns_input(module: TorchObject) -> bool:
    """Return whether a module returns its input as it is, as one that only checks its size does."""
    if not items_of(module.get("modules")):
        return stock_name(module) == "nn.Identity"
    try:
        plan, _ = sketch(module, state_dict(module, own_keys=True))
        output = Kinds(traits_of)(plan, Kind("any", origin=()))
    except T7BridgeError:
        return False
    return output.origin == ()


def _graph(obj: TorchObject, inner: Callable[[TorchObject], Spec]) -> Spec:
    """Return the inputs of a graph: of each element that of the first module behind it which reads nothing else."""
    children = {child.name: child.value for child in graph_modules(obj)}
    nodes: tuple[GraphNode, ...] = ()
    with suppress(ModelError):
        nodes = graph_spec(obj, "root").nodes

    found: dict[tuple[int, ...], Spec] = {}
    reached: list[set[tuple[int, ...]]] = [set()]
    for node in nodes:
        taken = [reached[at] if at else {indices[:1]} for at, indices in node.takes]
        reached.append(set().union(*taken))
        module = children.get(node.module or "")
        is_layer = isinstance(module, TorchObject) and stock_name(module) != "nn.Identity"
        spec: Spec = inner(module) if len(taken) == 1 and is_layer else None  # type: ignore[arg-type]
        found.update({origin: found.get(origin) or spec for origin in reached[-1]})
    specs = [found[origin] for origin in sorted(found)]
    if None in specs or not specs:
        return _from_record(recorded(lookup(obj, "innode.data.input")))
    return specs if min(found) else specs[0]


def _from_record(value: Any) -> Spec:
    if isinstance(value, Tensor):
        return Example("", value.size)
    if isinstance(value, list) and value:
        found = [_from_record(item) for item in value]
        return None if None in found else found
    return None


def _leaf_shape(obj: TorchObject, name: str, side: int) -> Spec:
    weight, mean = (obj.get(field) for field in ("weight", "running_mean"))
    rows, width = weight.size if isinstance(weight, Tensor) and weight.ndim == 2 else (0, 0)
    first_row = in_lua_of(obj).first_row
    if first_row is not None or name in _ONE_HOT:
        # A first row that is not numbered from 1 is for padding, and not chosen.
        tokens = _size(obj.get("outputSize") if first_row is None else rows - 1 + first_row)
        return Example("", (2, 5), bounds=(1, tokens)) if tokens else None
    if name == "nn.IndexLinear":  # takes keys and values
        return None
    counts = [_size(obj.get(field)) for field in ("nInputPlane", "inputSize", "inputsize", "inputFrameSize")]
    counts += [width if name in ("nn.Linear", "nn.LinearNoBias") else 0, mean.numel if isinstance(mean, Tensor) else 0]
    kind = name.rpartition(".")[2]  # of an entry of ours, whatever its package
    front, rest = next((sizes for prefix, sizes in _SIZES.items() if kind.startswith(prefix)), ((2,), ()))
    return Example("", (*front, max(counts), *(min(side, most) for most in rest))) if any(counts) else None


_ONE_HOT = ("nn.OneHot", "OneHot")
"""Layers that take numbers of tokens; others are those whose entry has a `first_row`."""
_SIZES = {
    "Spatial": ((2,), (299, 299)),
    "Inception": ((2,), (299, 299)),
    "Volumetric": ((2,), (16, 16, 16)),
    "Temporal": ((2, 24), ()),
    "Seq": ((3, 2), ()),
}
"""Sizes of an input before its features, and the largest sizes after them, by the beginning of a class."""


def _size(value: Any) -> int:
    """Return a positive number of features, rows or tokens; 0 if it is none."""
    return int(value) if isinstance(value, (int, float)) and 0 < value < 1 << 31 else 0


def fitting_inputs(model: TorchObject, path: str, limits: Limits = DEFAULT_LIMITS) -> Spec:
    """Return an input that a model accepts; sizes of images are tried until the live module accepts one.

    Raises:
        ModelError: the model's layers do not determine its input.
    """
    first = guess_inputs(model)
    if first is None:
        raise ModelError(
            "the layers do not determine the model's input", path=path, hint="Specify it: --input 2x3x224x224."
        )
    try:
        layer = LiveLayer.build(model, path, 2.0**-24, limits)
    except Exception:  # the model has no live module: the comparison reports it
        return first
    for side in SIDES:
        spec = guess_inputs(model, side)
        if spec == first and side != SIDES[0]:
            break
        for variant in (spec, _one_word_each(spec)):
            if layer.shapes(variant) is not None:
                return variant
    return first


def _one_word_each(spec: Spec) -> Spec:
    """Return integers as a vector, one per example, not as sequences."""
    if isinstance(spec, list):
        return [_one_word_each(item) for item in spec]
    return evolve(spec, shape=spec.shape[:1]) if spec.bounds else spec
