"""`generate`: from a Lua module to the source of a PyTorch model and its state dict."""

from __future__ import annotations

from collections import Counter

from ..data import define
from ..errors import ModelError, UnsupportedError
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.mapping import ModuleSpec, Plan
from ..nn.plan import build_plan
from ..nn.registry import layer_of
from ..nn.state_dict import StateDict, state_dict
from ..report import Note
from .code import Assign, method
from .construction import check_construction
from .flow import SourceBuilder
from .keys import (
    Owned,
    all_specs,
    check_tensors,
    expression,
    module_paths,
    owned_tensors,
    shared_specs,
    unify_tied,
    view_of,
)
from .model_file import Extra, model_source, prepared
from .page import check_page
from .settle import check_depth, check_size, explained, settle

_METHODS = {"float64": "double", "float16": "half", "bfloat16": "bfloat16", "float32": "float"}
"""Methods of torch.nn.Module that change the element type of all floating point parameters and buffers."""


_FREE = 20
"""Steps that one module, argument or link of a plan accounts for."""


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
    try:
        return _generate(value, path, index_base, limits, source, weights)
    except RecursionError as error:
        raise UnsupportedError(
            "the modules of this model are nested too deep to be written down",
            path=path,
            hint="`t7bridge convert` converts the weights.",
        ) from error


def _generate(value: TorchObject, path: str, index_base: int, limits: Limits, source: str, weights: str) -> Generated:
    if not isinstance(value, TorchObject):
        raise ModelError("source is made from an nn module", path=path, found=type(value).__name__)
    check_depth(value, path, limits)
    state = state_dict(value, path, limits, own_keys=True)
    plan = build_plan(value, path, index_base, limits, state)
    check_size(state.tensors, limits)
    owned = owned_tensors(plan, state.tensors)
    computed = {id(state.tensors[key]) for key, origin in state.origins.items() if origin.tensor is None}
    unify_tied(plan, owned, computed)
    check_construction(plan, owned)
    shared = shared_specs(plan)
    settle(plan, shared)
    inplace = any(spec.kwargs.get("inplace") for spec in all_specs(plan))
    builder = SourceBuilder(shared, limits, _FREE * explained(plan), inplace)
    layer = layer_of(value.class_name)
    root = builder.root(plan.root, criterion=layer is not None and layer.kind == "criterion")
    blocks = prepared(builder)
    paths = module_paths(root)
    tensors = {
        ".".join((*path, name)): tensor for path, spec in paths for name, tensor in owned.get(id(spec), {}).items()
    }
    check_tensors(plan, state.tensors, paths, tensors)
    found: dict[object, list[str]] = {}
    for key, tensor in tensors.items():
        found.setdefault(view_of(tensor), []).append(key)
    keys = {key: found.get(view_of(tensor), []) for key, tensor in state.tensors.items()}
    connections = [*_shared(paths, owned), *_referring(paths), *_ties(paths, owned, plan, state)]
    dtype, dtypes = _dtypes(paths, owned)
    text = model_source(builder, blocks, Extra(tuple(connections), dtype, tuple(dtypes)), source, weights)
    check_page(text, builder, blocks, tensors)
    return Generated(text, tensors, keys, state.notes)


Paths = list[tuple[tuple[str, ...], ModuleSpec]]


def _shared(paths: Paths, owned: Owned) -> list[Assign]:
    """Yield a statement for each shared module, which is constructed at each place and then made one."""
    first: dict[int, tuple[str, ...]] = {}
    lines = []
    done: list[tuple[str, ...]] = []
    for path, spec in paths:
        known = first.setdefault(id(spec), path)
        if known == path or any(path[: len(above)] == above for above in done):
            continue
        if any(each[: len(path)] == path and owned.get(id(inner)) for each, inner in paths):
            lines.append(Assign(expression(path), expression(known)))
            done.append(path)
    return lines


def _referring(paths: Paths) -> list[Assign]:
    """Yield the modules that others refer to without containing them."""
    first: dict[int, tuple[str, ...]] = {}
    for path, spec in paths:
        first.setdefault(id(spec), path)
    return [
        Assign(None, method(expression(path), "refer", **{name: expression(first[id(other)])}))
        for path, spec in paths
        for name, other in spec.refers.items()
        if id(other) in first
    ]


def _ties(paths: Paths, owned: Owned, plan: Plan, state: StateDict) -> list[Assign]:
    """Yield the parameters of different modules that are one in Lua."""
    learned = {id(state.tensors[key]) for key in plan.parameters}
    first: dict[object, tuple[tuple[str, ...], int]] = {}
    lines = []
    for path, spec in paths:
        for name, tensor in owned.get(id(spec), {}).items():
            if id(tensor) not in learned or tensor.storage is None or not tensor.numel:
                continue
            known, owner = first.setdefault(view_of(tensor), ((*path, name), id(spec)))
            if owner != id(spec) and known != (*path, name):
                lines.append(Assign(expression((*path, name)), expression(known)))
    return lines


def _dtypes(paths: Paths, owned: Owned) -> tuple[str, list[Assign]]:
    """Return the method that sets the element type of most modules, and statements for the others."""
    counts: Counter[str] = Counter()
    kinds: list[tuple[tuple[str, ...], set[str]]] = []
    for path, spec in paths:
        found = {tensor.element.name for tensor in owned.get(id(spec), {}).values()} & set(_METHODS)
        kinds.append((path, found))
        counts.update(found)
    usual = counts.most_common(1)[0][0] if counts else "float32"
    lines = [
        Assign(None, method(expression(path, "model"), _METHODS[found.pop()]))
        for path, found in kinds
        if len(found) == 1 and usual not in found
    ]
    return ("" if usual == "float32" else _METHODS[usual]), lines
