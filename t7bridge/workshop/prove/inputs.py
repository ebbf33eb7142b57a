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


def guess_inputs(model: TorchObject, side: int = 32, specs: dict[int, Spec] | None = None, depth: int = 0) -> Spec:
    """Return an input that a model may accept, according to its first layers; `None` if these do not determine one.

    Args:
        model: the model.
        side: height and width of images.
        specs: the inputs of modules by their ids: a module may stand at several places, and in itself.
        depth: of nesting.
    """
    specs = {} if specs is None else specs
    if id(model) not in specs:
        specs[id(model)] = None  # while it is visited
        inner = partial(guess_inputs, side=side, specs=specs, depth=depth + 1)
        specs[id(model)] = _guess(model, side, inner) if depth <= MOST_DEPTH else None
    return specs[id(model)]


def _guess(obj: TorchObject, side: int, inner: Callable[[TorchObject], Spec]) -> Spec:
    """Return an input of a module.

    Args:
        obj: the module.
        side: height and width of images.
        inner: returns that of a module inside.
    """
    name = stock_name(obj)
    modules = [item for item in items_of(obj.get("modules")) or [] if isinstance(item, TorchObject)]
    if name == "nn.gModule":
        return _graph(obj, inner)
    if name == "nn.ParallelTable":
        specs = [inner(module) for module in modules]
        return None if None in specs else specs
    if name in ("nn.Sequencer", "nn.BiSequencer", "nn.MapTable"):
        step = inner(modules[0]) if modules else None
        return None if step is None else [step, step, step]
    if name == "nn.Recurrent":
        first = obj.get("inputModule")
        return inner(first) if isinstance(first, TorchObject) else None
    spec = _leaf_spec(obj, name, side)
    if spec is None:
        takers = _first_layers(modules) if name == "nn.Sequential" else modules
        spec = next((spec for spec in map(inner, takers) if spec is not None), None)
    if spec is None and (not modules or name == "nn.Sequential"):
        spec = _from_record(recorded(obj.get("gradInput")))
    return spec


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

    specs: dict[tuple[int, ...], Spec] = {}
    """By the elements of the input; the empty path is the whole."""
    origins: list[set[tuple[int, ...]]] = [set()]
    """For each node the elements of the input that its value depends on."""
    for node in nodes:
        inputs = [origins[source] if source else {path[:1]} for source, path in node.takes]
        origins.append(set().union(*inputs))
        module = children.get(node.module or "")
        spec: Spec = None
        if len(inputs) == 1 and isinstance(module, TorchObject) and stock_name(module) != "nn.Identity":
            spec = inner(module)
        for origin in origins[-1]:
            specs[origin] = specs.get(origin) or spec
    elements = [specs[origin] for origin in sorted(specs)]
    if None in elements or not elements:
        return _from_record(recorded(lookup(obj, "innode.data.input")))
    takes_list = min(specs) != ()
    return elements if takes_list else elements[0]


def _from_record(value: Any) -> Spec:
    """Return an input of the sizes of a recorded value; `None` if it is not complete."""
    if isinstance(value, Tensor):
        return Example("", value.size)
    if isinstance(value, list) and value:
        specs = [_from_record(item) for item in value]
        return None if None in specs else specs
    return None


def _leaf_spec(obj: TorchObject, name: str, side: int) -> Spec:
    """Return an input of a layer, by its own fields; `None` if these do not determine one."""
    if name == "nn.IndexLinear":  # takes keys and values
        return None
    first_row = in_lua_of(obj).first_row
    if name in _ONE_HOT or first_row is not None:
        tokens = _count_of_tokens(obj, first_row)
        return Example("", (2, 5), bounds=(1, tokens)) if tokens else None
    features = _features(obj, name)
    if not features:
        return None
    kind = name.rpartition(".")[2]  # of an entry of ours, whatever its package
    for prefix, (front, largest_sizes) in _SIZES.items():
        if kind.startswith(prefix):
            return Example("", (*front, features, *(min(side, largest) for largest in largest_sizes)))
    return Example("", (2, features))


def _count_of_tokens(obj: TorchObject, first_row: int | None) -> int:
    """Return the number of different tokens that a layer takes; 0 if it is not known.

    Args:
        obj: the layer.
        first_row: the number of the first row of its table; `None` for a layer without one.
    """
    if first_row is None:
        return _size(obj.get("outputSize"))
    weight = obj.get("weight")
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return 0
    # A first row that is not numbered from 1 is for padding, and not chosen.
    return _size(weight.size[0] - 1 + first_row)


def _features(obj: TorchObject, name: str) -> int:
    """Return the number of features that a layer takes; 0 if it is not known."""
    counts = [_size(obj.get(field)) for field in ("nInputPlane", "inputSize", "inputsize", "inputFrameSize")]
    weight = obj.get("weight")
    if name in ("nn.Linear", "nn.LinearNoBias") and isinstance(weight, Tensor) and weight.ndim == 2:
        counts.append(weight.size[1])
    mean = obj.get("running_mean")
    if isinstance(mean, Tensor):
        counts.append(mean.numel)
    return max(counts)


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
            break  # it has no images
        for variant in (spec, _one_word_each(spec)):
            if layer.shapes(variant) is not None:
                return variant
    return first


def _one_word_each(spec: Spec) -> Spec:
    """Return integers as a vector, one per example, not as sequences."""
    if isinstance(spec, list):
        return [_one_word_each(item) for item in spec]
    return evolve(spec, shape=spec.shape[:1]) if spec.bounds else spec
