"""Live modules from plans: construct, fill, tie."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..errors import ModelError, UnsupportedError
from ..graph.lua import TorchObject
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, Budget, Limits
from ..nn.mapping import ModuleSpec, Plan
from ..nn.memory import copy_as_lua
from ..nn.plan import build_plan
from ..nn.recorded import ROOT_FIELD, recorded
from ..nn.registry import class_of
from ..nn.state_dict import state_dict
from .layers.containers import Graph
from .recorded import keep_keys


def live_module(
    value: TorchObject,
    path: str = "root",
    index_base: int = 1,
    limits: Limits = DEFAULT_LIMITS,
    place: Callable[[str], str] | None = None,
) -> nn.Module:
    """Return the live PyTorch module of a Lua module, in evaluation mode, with its weights.

    Args:
        value: the module or criterion.
        path: its path, for messages.
        index_base: number of the first element, class or row: 1 as in Lua, or 0.
        limits: resource limits.
        place: the device for tensors that were on a device; by default all are on the CPU.

    Raises:
        UnsupportedError: the device does not exist.
        UnsupportedLayerError: there are layers without a PyTorch equivalent.
        ModelError: the weights do not match the layers' own fields.
    """
    state = state_dict(value, path, limits, own_keys=True)
    plan = build_plan(value, path, index_base, limits, state)
    check_size(state.tensors, limits, f"loading {path}")
    try:
        copy_as_lua(plan.root)
        module = construct(plan.root)
        fill(module, state.tensors, plan, path, place)
        record = recorded(value, state) if ROOT_FIELD in value else None
        if record is not None:
            keep_keys(module, record, materialize(record.other))
        return module.eval()
    except RecursionError as error:
        raise UnsupportedError(
            "the modules of this model are nested too deep for PyTorch",
            path=path,
            hint="A higher sys.setrecursionlimit may help; `t7bridge convert` converts the weights in any case.",
        ) from error


class _Blank(TorchFunctionMode):
    """Skip random initialization, as a file fills the parameters; on meta, `normal_` imports half of PyTorch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass everything through but random filling."""
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def construct(root: ModuleSpec) -> nn.Module:
    """Construct the modules of a plan, without memory for their weights. One spec becomes one module."""
    made: dict[int, nn.Module] = {}
    stack = [root]
    while stack:
        spec = stack[-1]
        missing = [other for other in (*spec.refers.values(), *spec.children.values()) if id(other) not in made]
        if missing and id(spec) not in made:
            stack += reversed(missing)
            continue
        stack.pop()
        if id(spec) not in made:
            made[id(spec)] = _call(spec, made)
    return made[id(root)]


def _call(spec: ModuleSpec, made: dict[int, nn.Module]) -> nn.Module:
    if spec.graph is not None:
        modules = OrderedDict((key, made[id(child)]) for key, child in spec.children.items())
        return Graph(modules, **spec.kwargs)
    numbered = [made[id(child)] for key, child in spec.children.items() if key.isdigit()]
    named = {key: made[id(child)] for key, child in spec.children.items() if not key.isdigit()}
    named.update((key, made[id(other)]) for key, other in spec.refers.items())
    target = class_of(spec.target) or _imported(spec)
    try:
        with torch.device("meta"), _Blank():
            module = target(*numbered, *spec.args, **named, **spec.kwargs)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedError(
            f"a {spec.class_name} cannot be made a {spec.target}: {error}", path=spec.path
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{spec.target} is not a class of modules", path=spec.path, found=type(module).__name__)
    return module


def _imported(spec: ModuleSpec) -> Any:
    """Import the class that an entry names. Names come from entries, never from files."""
    home, _, name = spec.target.rpartition(".")
    try:
        return getattr(importlib.import_module(home), name)
    except (AttributeError, ImportError, ValueError) as error:
        raise ModelError(f"{spec.target} cannot be imported: {error}", path=spec.path) from error


def fill(
    module: nn.Module,
    tensors: dict[str, Tensor],
    plan: Plan,
    path: str = "root",
    place: Callable[[str], str] | None = None,
) -> None:
    """Load the tensors of a state dict into a module, strictly, and tie the parameters that are shared in Lua."""
    values = materialize(tensors, place)
    try:
        module.load_state_dict(values, strict=True, assign=True)
    except RecursionError:
        raise
    except RuntimeError as error:
        raise ModelError(f"the weights do not match the layers: {error}", path=path) from error
    _tie(module, tensors, plan)


def check_size(tensors: dict[str, Tensor], limits: Limits, task: str) -> None:
    """Refuse tensors that are much larger than the storages they view: a stride of 0 repeats endlessly.

    Raises:
        LimitError: together they exceed the storages by more bytes than the limit `work` allows.
    """
    budget = Budget(limits, task)
    for key, tensor in tensors.items():
        storage = tensor.storage
        budget.allocate(tensor.numel * tensor.element.itemsize, storage.nbytes if storage else 0, key)


def materialize(tensors: dict[str, Tensor], place: Callable[[str], str] | None = None) -> dict[str, torch.Tensor]:
    """Convert tensors of the graph to tensors of torch, in memory of their own, with their sharing preserved.

    Args:
        tensors: by name.
        place: the device for tensors that were on a device; by default all are on the CPU.

    Raises:
        UnsupportedError: the device does not exist.
    """
    users: dict[int, int] = {}
    for tensor in {id(tensor): tensor for tensor in tensors.values()}.values():
        users[id(tensor.storage)] = users.get(id(tensor.storage), 0) + 1
    storages: dict[int, torch.Tensor] = {}
    made: dict[int, torch.Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) in made:
            continue
        storage = tensor.storage
        if storage is None or users[id(storage)] == 1:
            made[id(tensor)] = _moved(torch.from_numpy(tensor.array.copy()), storage, place)
            continue
        if id(storage) not in storages:
            storages[id(storage)] = _moved(torch.from_numpy(storage.array.copy()), storage, place)
        flat = storages[id(storage)]
        made[id(tensor)] = flat.as_strided(tensor.size, tensor.stride, tensor.offset)
    return {name: made[id(tensor)] for name, tensor in tensors.items()}


def _moved(made: torch.Tensor, storage: Storage | None, place: Callable[[str], str] | None) -> torch.Tensor:
    """Return a tensor on its target device."""
    if place is None:
        return made
    device = place(storage.device if storage is not None else "cpu")
    try:
        return made.to(device)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        raise UnsupportedError(
            f"this PyTorch has no device {device}: {str(error).splitlines()[0][:200]}",
            hint="Choose another device with map_location.",
        ) from error


def _tie(module: nn.Module, tensors: dict[str, Tensor], plan: Plan) -> None:
    """Merge parameters that are the same view of the same memory into one parameter, in any modules."""
    first: dict[Any, nn.Parameter] = {}
    for key, tensor in tensors.items():
        if key not in plan.parameters or tensor.storage is None:
            continue
        home, _, name = key.rpartition(".")
        owner = module.get_submodule(home)
        parameter = owner._parameters.get(name)
        if parameter is None:
            continue
        view = (id(tensor.storage), tensor.offset, tensor.size, tensor.stride)
        owner._parameters[name] = first.setdefault(view, parameter)
