"""`generate`: from a Lua module to the source of a PyTorch model and its state dict."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from ..data import define
from ..errors import ModelError, UnsupportedError
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.mapping import ModuleSpec, Plan, specs_in
from ..nn.named import StateDict
from ..nn.plan import build_plan
from ..nn.registry import layer_of
from ..nn.state_dict import state_dict
from ..report import Note
from .code import Construction, attribute, expression, method
from .flow import TOO_DEEP, USE_CONVERT, Attribute, SourceBuilder
from .model_file import Extra, check_page, model_source, prepared
from .prepare import (
    Owned,
    check_construction,
    check_depth,
    check_size,
    choose_classes,
    owned_tensors,
    owner_of,
    shared_specs,
    size_of,
    unify_tied,
    view_of,
)

_METHODS = {"float64": "double", "float16": "half", "bfloat16": "bfloat16", "float32": "float"}
"""Methods of torch.nn.Module that change the element type of all floating point parameters and buffers."""
_FREE = 20
"""Steps that one module, argument or link of a plan accounts for."""
Place = tuple[str, ...]
"""The path of a module or tensor from an instance of the model's class."""
Places = list[tuple[Place, ModuleSpec]]
"""The path of each module, in the order of the state dict."""


@define(eq=False)
class Generated:
    """A model as source and weights.

    Attributes:
        text: the source of `model.py`.
        tensors: the state dict of its class, in order.
        keys: maps the key of each tensor in the state dict written by `convert` to its keys here.
        notes: notes for the user.
    """

    text: str
    tensors: dict[str, Tensor]
    keys: dict[str, list[str]]
    notes: list[Note]


def generate(
    value: TorchObject,
    path: str = "root",
    *,
    index_base: int = 1,
    limits: Limits = DEFAULT_LIMITS,
    source: str = "model.t7",
    weights: str = "model.pt",
) -> Generated:
    """Generate the source of a PyTorch model that computes the same as a Lua module.

    Args:
        value: the module or criterion.
        path: its path, for messages.
        index_base: number of the first element, class or row: 1 as in Lua, or 0.
        limits: resource limits.
        source: the name of the original file, for the source's first line.
        weights: the name of the file next to the source that `load` reads.

    Raises:
        UnsupportedLayerError: layers of the model have no PyTorch equivalent; it lists all of them.
        UnsupportedError: its modules are nested too deep.
        LimitError: the model is nested or shared too much.
    """
    if not isinstance(value, TorchObject):
        raise ModelError("source is made from an nn module", path=path, found=type(value).__name__)
    try:
        return _generate(value, path, index_base, limits, source, weights)
    except RecursionError as error:
        raise UnsupportedError(TOO_DEEP, path=path, hint=USE_CONVERT) from error


def _generate(value: TorchObject, path: str, index_base: int, limits: Limits, source: str, weights: str) -> Generated:
    check_depth(value, path, limits)
    state = state_dict(value, path, limits, own_keys=True)
    plan = build_plan(value, path, index_base, limits, state)
    check_size(state.tensors, limits)
    owned = owned_tensors(plan, state.tensors)
    computed = {id(state.tensors[key]) for key, origin in state.origins.items() if origin.tensor is None}
    unify_tied(plan, owned, computed)
    check_construction(plan, owned)
    shared = shared_specs(plan)
    choose_classes(plan, shared)
    inplace = any(spec.kwargs.get("inplace") for spec in specs_in(plan.root))
    builder = SourceBuilder(shared, limits, _FREE * size_of(plan.root), inplace)
    layer = layer_of(value.class_name)
    root = builder.root(plan.root, criterion=layer is not None and layer.kind == "criterion")
    blocks = prepared(builder)
    places = list(_places(root.attributes))
    tensors = {
        ".".join((*place, name)): tensor for place, spec in places for name, tensor in owned.get(id(spec), {}).items()
    }
    _check_tensors(plan, state.tensors, places, tensors)
    found: dict[object, list[str]] = {}
    for key, tensor in tensors.items():
        found.setdefault(view_of(tensor), []).append(key)
    keys = {key: found.get(view_of(tensor), []) for key, tensor in state.tensors.items()}
    connections = [*_shared(places, owned), *_referring(places), *_ties(places, owned, plan, state)]
    text = model_source(builder, blocks, Extra(connections, *_dtypes(places, owned)), source, weights)
    check_page(text, builder, blocks, tensors)
    return Generated(text, tensors, keys, state.notes)


def _places(attributes: list[Attribute], path: Place = ()) -> Iterator[tuple[Place, ModuleSpec]]:
    """Yield the path of each module that is held by these attributes."""

    def inside(call: Construction, path: Place) -> Iterator[tuple[Place, ModuleSpec]]:
        if call.spec is not None:
            yield path, call.spec
        if call.origin is not None:
            yield from _places(call.origin.attributes, path)
        for name, inner in call.inside():
            yield from inside(inner, (*path, name))

    for each in attributes:
        yield from inside(each.call, (*path, each.name))


def _at(path: Place, start: str = "self") -> ast.expr:
    """Return a path as an expression: `self.layers[3].weight`."""
    node: ast.expr = ast.Name(start)
    for name in path:
        node = ast.Subscript(node, expression(int(name))) if name.isdigit() else attribute(node, name)
    return node


def _first_places(places: Places) -> dict[int, Place]:
    """Return the first path of each module, by id."""
    return {id(spec): place for place, spec in reversed(places)}


def _shared(places: Places, owned: Owned) -> Iterator[ast.stmt]:
    """Yield a statement for each shared module, which is constructed at each place and then made one."""
    first = _first_places(places)
    done: list[Place] = []
    for place, spec in places:
        known = first[id(spec)]
        if known == place or any(place[: len(above)] == above for above in done):
            continue
        if any(each[: len(place)] == place and owned.get(id(inner)) for each, inner in places):
            yield ast.Assign([_at(place)], _at(known))
            done.append(place)


def _referring(places: Places) -> Iterator[ast.stmt]:
    """Yield the modules that others refer to without containing them."""
    first = _first_places(places)
    for place, spec in places:
        for name, other in spec.refers.items():
            if id(other) in first:
                yield ast.Expr(method(_at(place), "refer", **{name: _at(first[id(other)])}))


def _ties(places: Places, owned: Owned, plan: Plan, state: StateDict) -> Iterator[ast.stmt]:
    """Yield the parameters of different modules that are one in Lua."""
    learned = {id(state.tensors[key]) for key in plan.parameters}
    first: dict[object, tuple[Place, int]] = {}
    for place, spec in places:
        for name, tensor in owned.get(id(spec), {}).items():
            if id(tensor) not in learned or tensor.storage is None or not tensor.numel:
                continue
            known, owner = first.setdefault(view_of(tensor), ((*place, name), id(spec)))
            if owner != id(spec) and known != (*place, name):
                yield ast.Assign([_at((*place, name))], _at(known))


def _dtypes(places: Places, owned: Owned) -> tuple[str, list[ast.stmt]]:
    """Return the method that sets the element type of most modules, and statements for the others."""
    kinds = [
        (place, {tensor.element.name for tensor in owned.get(id(spec), {}).values()} & {*_METHODS})
        for place, spec in places
    ]
    counts = Counter(name for _, found in kinds for name in found)
    usual = counts.most_common(1)[0][0] if counts else "float32"
    statements: list[ast.stmt] = [
        ast.Expr(method(_at(place, "model"), _METHODS[found.pop()]))
        for place, found in kinds
        if len(found) == 1 and usual not in found
    ]
    return ("" if usual == "float32" else _METHODS[usual]), statements


def _check_tensors(plan: Plan, source: dict[str, Tensor], places: Places, made: dict[str, Tensor]) -> None:
    """Compare every tensor of a model's file with the corresponding Lua tensor.

    Raises:
        ModelError: a tensor is missing, or replaced by another one.
    """
    paths: dict[int, list[Place]] = {}
    for place, spec in places:
        paths.setdefault(id(spec), []).append(place)
    for key, tensor in source.items():
        spec, name = owner_of(plan, key)
        found = [made.get(".".join((*place, name))) for place in paths.get(id(spec), ())]
        if not found or not all(other is not None and _same(tensor, other) for other in found):
            raise ModelError(
                "a tensor would be lost or replaced by another one in model.pt",
                path=f"{spec.path}.{name}",
                expected=f"the values of {key}",
                found="another tensor" if found else "no attribute for it in the source",
            )


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same view of the same memory, or hold the same bytes."""
    if tensor is other or view_of(tensor) == view_of(other):
        return True
    same_form = tensor.element == other.element and tensor.shape == other.shape
    return same_form and bool(tensor.numpy().tobytes() == other.numpy().tobytes())
