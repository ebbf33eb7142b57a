"""Live modules from plans: construct, fill, tie; the shapes of their outputs; recorded keys of state dicts; modules of
factories.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any, get_type_hints

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..errors import ModelError, T7BridgeError, UnsupportedError
from ..graph.lua import TorchObject
from ..graph.storage import Storage, own_array
from ..graph.tensor import Tensor, place_of
from ..limits import DEFAULT_LIMITS, Budget, Limits
from ..nn.layouts import check_size
from ..nn.mapping import ModuleSpec, Plan, is_torch_or_ours, specs_in
from ..nn.memory import use_copying_classes
from ..nn.output_shapes import Example, Examples, inputs_text
from ..nn.pieces import Lifted, constant_biases, recognized
from ..nn.plan import build_plan
from ..nn.registry import class_of
from ..nn.state_dict import ROOT_FIELD, Recorded, recorded, state_dict
from .factories import Factory, imported


def live_module(
    value: TorchObject,
    path: str = "root",
    index_base: int = 1,
    limits: Limits = DEFAULT_LIMITS,
    place: Callable[[str], str] | None = None,
    lift: bool = False,
    keys: Callable[[], Recorded] | None = None,
) -> nn.Module:
    """Return the live PyTorch module of a Lua module, in evaluation mode, with its weights.

    Args:
        value: the module or criterion.
        path: its path, for messages.
        index_base: number of the first element, class or row: 1 as in Lua, or 0.
        limits: resource limits.
        place: returns the device for tensors, from that where they were; by default all are on the CPU.
        lift: whether recognized cells become modules of torch.nn; not in a model that `save_module` wrote.
        keys: returns the record by which the state dict gets other keys than the module's own. It is called only if
            cells were recognized; by default the keys are the module's, or those that `save_module` recorded.

    Raises:
        UnsupportedError: the device does not exist.
        UnsupportedLayerError: there are layers without a PyTorch equivalent.
        ModelError: the weights do not match the layers' own fields.
    """
    # The keys of the module itself, and not those of another state dict that the file may record.
    original = state_dict(value, path, limits, own_keys=True)
    plan = build_plan(value, path, index_base, limits, original)
    check_size(original, limits, f"loading {path}")
    is_from_torch = ROOT_FIELD in value  # `save_module` wrote it, with the keys of its state dict
    cells = Lifted(plan, original)
    if lift and not is_from_torch:
        cells = recognized(plan, original)
    try:
        module = _with_weights(cells, path, place)
        record: Recorded | None = None
        if is_from_torch:
            record = recorded(value, cells.state)  # `None` if it does not fit the model: the keys are then the module's
        elif keys is not None and cells.pieces:  # cells were recognized
            record = keys()
        if record is not None:
            tensors_of_no_layer = materialize(record.other)
            keep_keys(module, record, tensors_of_no_layer)
        return module.eval()
    except RecursionError as error:
        raise UnsupportedError(
            "the modules of this model are nested too deep for PyTorch",
            path=path,
            hint="A higher sys.setrecursionlimit may help; `t7bridge convert` converts the weights in any case.",
        ) from error


def _with_weights(cells: Lifted, path: str, place: Callable[[str], str] | None) -> nn.Module:
    """Return the module of a plan, with its weights.

    Args:
        cells: the plan and the state dict, with recognized cells as single modules; classes in the plan are replaced.
        path: of the module, for messages.
        place: see `live_module`.

    Raises:
        UnsupportedError: the device does not exist.
        ModelError: the weights do not match the layers' own fields.
    """
    use_copying_classes(cells.plan.root)  # before they are constructed
    module = construct(cells.plan.root)
    fill(module, cells.state, cells.plan, path, place)
    for key in constant_biases(cells):  # zeros, as Lua has one bias where cells of torch.nn add two
        module.get_parameter(key).requires_grad_(False)
    return module


_ALLOCATING = frozenset((torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn))
"""What makes parameters; constants, such as `torch.arange`, are small, and may be needed by a constructor."""


class _WithoutMemory(TorchFunctionMode):
    """A context in which modules are constructed without memory and random values, as a file has those of parameters.

    On the meta device, `normal_` would import half of PyTorch.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch: one that allocates on the meta device, one that fills not at all.

        PyTorch calls this for each of its functions; it returns what the function would return.

        Args:
            func: the function.
            types: not used.
            args: of the call.
            kwargs: of the call; `None` for none.
        """
        kwargs = kwargs or {}
        # A device that the call names itself is kept.
        if func in _ALLOCATING and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        elif getattr(func, "__name__", "") in ("normal_", "uniform_"):
            # The methods, and the functions of `torch.nn.init`, whose parameter is `tensor`.
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def construct(root: ModuleSpec) -> nn.Module:
    """Construct the modules of a plan, without memory for their weights. One spec becomes one module, at all places.

    Args:
        root: the plan; no module leads back to itself by those that it contains and refers to.

    Raises:
        UnsupportedError: a class refuses its arguments.
        ModelError: a class does not exist, or is not one of modules.
    """
    modules: dict[int, nn.Module] = {}  # by the ids of their specs
    # A stack instead of recursion, as plans may be nested deep. A spec stays on it until all that it needs is there.
    stack = [root]
    while stack:
        spec = stack[-1]
        if id(spec) in modules:
            stack.pop()
            continue
        needed = (*spec.refers.values(), *spec.children.values())
        missing = [other for other in needed if id(other) not in modules]
        if missing:
            stack += reversed(missing)
            continue
        modules[id(spec)] = _call(spec, modules)
        stack.pop()
    return modules[id(root)]


def _call(spec: ModuleSpec, modules: dict[int, nn.Module]) -> nn.Module:
    """Construct one module.

    Args:
        spec: the module.
        modules: those that it contains or refers to, and others, by the ids of their specs.

    Raises:
        UnsupportedError: its class refuses the arguments.
        ModelError: its class does not exist, or is not one of modules.
    """
    # A class registered as such (`register_module`) cannot always be imported.
    target = class_of(spec.target) or _imported(spec)
    positional, named = _module_arguments(spec, modules)
    # Classes may be those of others, which refuse arguments by any of these errors.
    try:
        # On the meta device nothing has memory; `_WithoutMemory` leaves out the random values, too.
        with torch.device("meta"), _WithoutMemory():
            module = target(*positional, *spec.args, **named, **spec.kwargs)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedError(
            f"a {spec.class_name} cannot be made a {spec.target}: {error}", path=spec.path
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{spec.target} is not a class of modules", path=spec.path, found=type(module).__name__)
    return module


def _module_arguments(spec: ModuleSpec, modules: dict[int, nn.Module]) -> tuple[list[Any], dict[str, nn.Module]]:
    """Return the modules that a constructor receives: by position, before the other arguments, and by keyword.

    Args:
        spec: the module to construct.
        modules: those that it contains or refers to, and others, by the ids of their specs.
    """
    children = OrderedDict((key, modules[id(child)]) for key, child in spec.children.items())
    referred = {key: modules[id(other)] for key, other in spec.refers.items()}
    if spec.graph is not None:
        # The nodes among the other arguments name the modules: it takes all of them as one mapping.
        return [children], referred
    numbered = [child for key, child in children.items() if key.isdigit()]
    named = {key: child for key, child in children.items() if not key.isdigit()}
    return numbered, {**named, **referred}


def _imported(spec: ModuleSpec) -> Any:
    """Import the class that an entry names. Names come from entries, never from files.

    Raises:
        ModelError: it does not exist, or its module cannot be imported.
    """
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
    """Load the tensors of a state dict into a module, strictly, and tie the parameters that are shared in Lua.

    Args:
        module: receives the tensors.
        tensors: the state dict.
        plan: the plan of the module.
        path: of the module, for messages.
        place: see `live_module`.

    Raises:
        ModelError: the keys or shapes are not those of the module.
    """
    values = materialize(tensors, place)
    has_foreign_class = any(not is_torch_or_ours(spec.target) for spec in specs_in(plan.root))
    try:
        if has_foreign_class:
            # It may have hooks, or a way of its own to load the tensors of the modules inside it.
            module.load_state_dict(values, strict=True, assign=True)
        else:
            _assign(module, values)
    except RecursionError:  # a RuntimeError, too; `live_module` states it
        raise
    except RuntimeError as error:
        raise ModelError(f"the weights do not match the layers: {error}", path=path) from error
    _tie(module, tensors, plan)


def _assign(root: nn.Module, values: dict[str, torch.Tensor]) -> None:
    """Make tensors the parameters and buffers of a module, as a strict `load_state_dict(assign=True)` does.

    That passes the rest of the state dict from child to child, and so takes the square of the number of layers. Here
    each module gets its own tensors, by the method that PyTorch calls there too. No hook is called afterwards, as
    neither torch.nn's classes nor this package's have one.

    Args:
        root: the module, whose parameters and buffers are replaced.
        values: a tensor for each of them, by its key.

    Raises:
        RuntimeError: keys or shapes do not fit.
    """
    by_prefix = _by_prefix(values)
    # PyTorch's method adds to these.
    missing: list[str] = []
    unexpected: list[str] = []
    wrong_shapes: list[str] = []
    options = {"assign_to_params_buffers": True}
    strict = True
    # A module that has several places is filled at each of them; the last one counts.
    for prefix, module in _modules_by_prefix(root):
        own_values = by_prefix.pop(prefix, {})
        module._load_from_state_dict(own_values, prefix, options, strict, missing, unexpected, wrong_shapes)
    for keys_without_module in by_prefix.values():
        unexpected += keys_without_module
    errors: list[str] = []  # in PyTorch's order
    if missing:
        errors.append(f"Missing key(s) in state_dict: {', '.join(missing)}")
    if unexpected:
        errors.append(f"Unexpected key(s) in state_dict: {', '.join(unexpected)}")
    errors += wrong_shapes
    if errors:
        raise RuntimeError("; ".join(errors))


def _by_prefix(values: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Return tensors by key for each module, by the prefix of its keys: `1.0.` for `1.0.weight`, empty for `weight`."""
    by_prefix: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in values.items():
        prefix = key[: key.rfind(".") + 1]
        by_prefix.setdefault(prefix, {})[key] = value
    return by_prefix


def _modules_by_prefix(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules in one at all their places, in the order of the state dict, with the prefixes of their keys.

    Unlike `named_modules` this is not recursive, and so takes no longer for deep models.
    """
    stack = [("", root)]
    while stack:
        prefix, module = stack.pop()
        yield prefix, module
        children = [(f"{prefix}{name}.", child) for name, child in module._modules.items() if child is not None]
        stack += reversed(children)


def materialize(tensors: dict[str, Tensor], place: Callable[[str], str] | None = None) -> dict[str, torch.Tensor]:
    """Convert tensors of the graph to tensors of torch, in memory of their own, with their sharing preserved.

    Args:
        tensors: by name, of element types that Lua has.
        place: see `live_module`.

    Raises:
        UnsupportedError: the device does not exist.
    """
    distinct = {id(tensor): tensor for tensor in tensors.values()}
    users = Counter(id(tensor.storage) for tensor in distinct.values())
    storages: dict[int, torch.Tensor] = {}
    """The converted elements of each storage, by its id."""
    converted: dict[int, torch.Tensor] = {}
    """The result for each tensor, by its id."""
    for identity, tensor in distinct.items():
        storage = tensor.storage
        # The only view of a storage needs no more of it than its elements. PyTorch has no negative strides: a view with
        # one becomes a copy, which shares nothing.
        if storage is None or users[id(storage)] == 1 or any(step < 0 for step in tensor.stride):
            converted[identity] = _moved(torch.from_numpy(tensor.array.copy()), storage, place)
            continue
        if id(storage) not in storages:
            array = own_array(storage)  # a copy, if it would be the file's memory
            storages[id(storage)] = _moved(torch.from_numpy(array), storage, place)
        flat = storages[id(storage)]
        converted[identity] = flat.as_strided(tensor.size, tensor.stride, tensor.offset)
    return {name: converted[id(tensor)] for name, tensor in tensors.items()}


def _moved(tensor: torch.Tensor, storage: Storage | None, place: Callable[[str], str] | None) -> torch.Tensor:
    """Return a tensor on the device that `place` chooses for it; as it is if that is `None`.

    Args:
        tensor: the tensor, on the CPU.
        storage: its storage in the file, which says on which device it was; `None` for one without elements.
        place: see `live_module`.

    Raises:
        UnsupportedError: the device does not exist.
    """
    if place is None:
        return tensor
    device = place(storage.device if storage is not None else "cpu")
    try:
        return tensor.to(device)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        raise UnsupportedError(
            f"this PyTorch has no device {device}: {_brief(error)}",
            hint="Choose another device with map_location.",
        ) from error


def _tie(module: nn.Module, tensors: dict[str, Tensor], plan: Plan) -> None:
    """Merge parameters that are the same view of the same memory into one parameter, in any modules.

    Args:
        module: its parameters have the tensors.
        tensors: those of the file, by key: they say which share memory.
        plan: says which of them are parameters.
    """
    parameters: dict[Any, nn.Parameter] = {}  # the first of each view
    for key, tensor in tensors.items():
        if key not in plan.parameters or tensor.storage is None:
            continue
        home, _, name = key.rpartition(".")
        owner = module.get_submodule(home)
        parameter = owner._parameters.get(name)
        if parameter is None:  # a class of the user may hold it as a buffer
            continue
        owner._parameters[name] = parameters.setdefault(place_of(tensor), parameter)


def keep_keys(module: nn.Module, record: Recorded, other: dict[str, torch.Tensor]) -> None:
    """Make a module's `state_dict` and `load_state_dict` use the recorded keys and shapes.

    Args:
        module: its parameters keep their own names.
        record: the module's tensors from which each recorded one is composed.
        other: recorded tensors that no layer holds; the state dict has them, and loading one replaces them here.
    """
    hooked: Any = module  # PyTorch declares the hooks with other arguments than it passes
    hooks = _Hooks(record, other, {key: tuple(value.shape) for key, value in module.state_dict().items()})
    hooked.register_forward_pre_hook(_with_dimensions)
    if record.scalars:  # there are outputs that had no dimensions in PyTorch
        hooked.register_forward_hook(hooks.without_dimensions)
    # PyTorch sets an attribute of this hook, which a method does not allow.
    hooked.register_state_dict_post_hook(partial(hooks.rename))
    hooked.register_load_state_dict_pre_hook(hooks.restore)


def _with_dimensions(owner: nn.Module, inputs: Any) -> Any:
    """Return inputs as in Lua, which has a number as a tensor of one element; a hook, so that `owner` is not used."""
    if isinstance(inputs, torch.Tensor):
        return inputs if inputs.dim() else inputs.reshape(1)
    # Not tuples with names and the like, whose constructors take other arguments.
    if type(inputs) in (list, tuple):
        return type(inputs)(_with_dimensions(owner, item) for item in inputs)
    return inputs


class _Hooks:
    """Hooks by which the state dict of a module has recorded keys instead of the module's own.

    Args:
        record: the module's tensors from which each recorded one is composed.
        other: recorded tensors of which no layer holds all elements, by their keys; `restore` replaces them.
        shapes: of the module's own state dict, by its keys.
    """

    def __init__(self, record: Recorded, other: dict[str, torch.Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
        """Keep what the hooks need; `keep_keys` registers them."""
        self.record = record
        self.other = other
        self.shapes = shapes

    def rename(self, owner: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        """Replace the module's own keys in a state dict that it returns, by those recorded.

        Args:
            owner: the module.
            state: the state dict, which is changed.
            prefix: of its keys, if the module is inside another.
            metadata: not used.
        """
        record = self.record
        own: dict[str, torch.Tensor] = {}
        for key in list(state):
            if key.startswith(prefix):
                own[key.removeprefix(prefix)] = state.pop(key)
        joined = {key: _joined(record, key, own, self.other.get(key)) for key in record.pieces}
        state.update((prefix + key, value) for key, value in record.in_order(joined, self.other).items())

    def restore(
        self,
        owner: nn.Module,
        state: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        """Replace the recorded keys in a state dict to be loaded by the module's own.

        A state dict without recorded keys, or with all of the module's own keys but not all recorded ones, stays.

        Args:
            owner: the module.
            state: the state dict, which is changed.
            prefix: of its keys, if the module is inside another.
            metadata: not used.
            strict: not used.
            missing: receives the recorded keys that the state dict lacks.
            unexpected: not used.
            errors: receives what PyTorch says of tensors that do not fit; it raises an error if there are any.
        """
        keys = self.record.keys
        recorded = {key: state[prefix + key] for key in keys if prefix + key in state}
        has_all = len(recorded) == len(keys)
        has_own_keys = all(prefix + key in state for key in self.shapes)
        if not has_all and (has_own_keys or not recorded):
            return
        for key in recorded:  # PyTorch would name them as unexpected
            del state[prefix + key]
        missing += [prefix + key for key in keys if key not in recorded]
        for first_key, tensor in self._fitting(recorded, prefix, errors).items():
            if first_key in self.other:
                self.other[first_key] = tensor
            if first_key in self.record.pieces:
                state.update(self._parts(first_key, tensor, prefix))
        # PyTorch expects all tensors of the module's own state dict. Those without a recorded key, such as the counters
        # of batch normalization, those that are missing, and those that do not fit, stay as they are.
        for key, value in [*owner.named_parameters(remove_duplicate=False), *owner.named_buffers()]:
            if key in self.shapes:
                state.setdefault(prefix + key, value.detach())

    def _fitting(self, recorded: dict[str, Any], prefix: str, errors: list[str]) -> dict[str, torch.Tensor]:
        """Return the tensors of a state dict that have the recorded sizes, by their first keys; of tied ones the first.

        Args:
            recorded: the values under recorded keys, in the order of these.
            prefix: of the keys in messages.
            errors: receives what PyTorch says of the others.
        """
        sizes = {key: tuple(tensor.shape) for key, tensor in self.other.items()}
        sizes.update(self.record.sizes)
        tensors: dict[str, torch.Tensor] = {}
        for key, tensor in recorded.items():
            first_key = self.record.tied.get(key, key)
            error = _load_error(prefix + key, tensor, sizes[first_key])
            if error:
                errors.append(error)
            else:
                tensors.setdefault(first_key, tensor)
        return tensors

    def _parts(self, key: str, tensor: torch.Tensor, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the module that are parts of a recorded one, or all of it, by their keys with a prefix.

        Args:
            key: of the recorded tensor, its first one.
            tensor: the recorded tensor, of the recorded size.
            prefix: of the keys, if the module is inside another.
        """
        for run in self.record.all_runs(key):
            flat = (tensor.t() if run.transposed else tensor).reshape(-1)
            yield prefix + run.key, flat[run.start : run.start + run.count].view(self.shapes[run.key])

    def without_dimensions(self, owner: nn.Module, inputs: Any, output: Any) -> Any:
        """Return outputs as in PyTorch: of those recorded as numbers, Lua has tensors of one element.

        Args:
            owner: not used.
            inputs: not used.
            output: a tensor or a list of outputs; a tuple becomes a list, which Lua's table is in Python.
        """
        is_list = isinstance(output, (list, tuple))
        outputs = list(output) if is_list else [output]
        for number in self.record.scalars:  # from 1
            if not 0 < number <= len(outputs):  # a number of the file, which may be any
                continue
            value = outputs[number - 1]
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                outputs[number - 1] = value.reshape(())
        return outputs if is_list else outputs[0]


def _load_error(key: str, tensor: Any, size: tuple[int, ...]) -> str:
    """Return what PyTorch says of a value that cannot be loaded for a tensor; empty if it can.

    Args:
        key: of the tensor.
        tensor: the value.
        size: of the tensor; one without dimensions may have one of one element in older files, as PyTorch allows.
    """
    if not isinstance(tensor, torch.Tensor):
        return f'While copying the parameter named "{key}", expected torch.Tensor but received {type(tensor)}'
    if tuple(tensor.shape) in (size, size or (1,)):
        return ""
    return (
        f"size mismatch for {key}: copying a param with shape {tensor.shape} from checkpoint, "
        f"the shape in current model is {torch.Size(size)}."
    )


def _joined(record: Recorded, key: str, own: dict[str, torch.Tensor], rest: torch.Tensor | None = None) -> torch.Tensor:
    """Return a recorded tensor composed of its pieces.

    Args:
        record: the record, in which the pieces of a tensor are in order.
        key: of the tensor, its first one.
        own: the tensors of the module, all of them, by its own keys.
        rest: the recorded tensor itself, for the elements that no layer holds; `None` if layers hold all.
    """
    size = record.sizes[key]
    pieces = record.pieces[key]
    first, *others = pieces
    # Only a whole tensor may be transposed, of which a layer holds all.
    if not others and first.transposed:
        return own[first.key].t()
    if rest is not None:
        # `rest` may be a parameter, as it was loaded; with `keep_vars`, the tensors of modules are parameters, too.
        flat = rest.detach().reshape(-1).clone()
        for piece in pieces:
            flat[piece.start : piece.start + piece.count] = own[piece.key].detach().reshape(-1)
        return flat.view(size)
    if not others:
        # Without a copy, as the tensors of any state dict have the memory of the module's.
        return own[first.key].view(size)
    return torch.cat([own[piece.key].reshape(-1) for piece in pieces]).view(size)


# Modules of factories

_DOWNLOADS = {"weights": None, "weights_backbone": None, "pretrained": False, "pretrained_backbone": False}
"""Arguments by which torchvision, timm and others fetch weights, and their values for none."""


def make_module(factory: Factory, fetch: bool = True) -> nn.Module:
    """Return the module that a factory makes.

    Args:
        factory: names a class or function, or a module, which is returned as it is.
        fetch: whether it may download weights that the arguments do not ask for, as backbones of detectors do.

    Raises:
        ModelError: the factory does not exist, fails, or returns no module.
    """
    value = factory.load()
    kwargs = factory.kwargs
    if not fetch:
        # Arguments that ask for weights win.
        kwargs = {**_without_weights(value), **kwargs}
    return _module_made_by(value, factory, kwargs)


def skeleton(factory: Factory) -> nn.Module:
    """Call a factory without memory for parameters. Nothing is downloaded, also if the arguments ask for weights.

    A factory that needs the values of its parameters is called on the CPU.

    Raises:
        ModelError: see `make_module`.
    """
    value = factory.load()
    kwargs = {**factory.kwargs, **_without_weights(value)}  # even if the arguments ask for weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _WithoutMemory():
                return _module_made_by(value, factory, kwargs)
        except ModelError:  # also of a factory that needs values; one that fails in any case fails again
            return _module_made_by(value, factory, kwargs)


def factories_in(home: str) -> list[Factory]:
    """Return the factories that a package or a file offers, callable without further arguments.

    These are the names of a registry (`list_models` and `create_model`, as timm has them), or the classes and functions
    that seem to make a module, see `_is_offered`, of a package and of the packages in it that it has imported.

    Args:
        home: a package, `torchvision.models`, or a file, `path/to/net.py`.

    Raises:
        ImportError: there is no such package.
    """
    package = imported(home)
    if hasattr(package, "list_models") and hasattr(package, "create_model"):
        return [Factory(home, "create_model", (name,)) for name in package.list_models()]
    factories: list[Factory] = []
    seen: set[int] = set()  # factories, by id: a package may repeat the names of those in it
    prefix = f"{package.__name__}."
    for dotted_name, module in _packages_in(home, package):
        for name, value in sorted(vars(module).items()):
            if name.startswith("_") or id(value) in seen:
                continue
            # What a package imports from elsewhere, it does not offer.
            defined_in = getattr(value, "__module__", "") or ""
            if f"{defined_in}.".startswith(prefix) and _is_offered(value, module):
                factories.append(Factory(dotted_name, name))
                seen.add(id(value))
    return factories


def _packages_in(home: str, package: Any) -> Iterator[tuple[str, Any]]:
    """Yield a package, and the packages in it that it has imported, each once, with the names that `imported` takes.

    Args:
        home: the name of the package.
        package: itself.
    """
    prefix = f"{package.__name__}."
    seen = {id(package)}
    packages = [(home, package)]
    for dotted_name, module in packages:  # it grows while it is read
        yield dotted_name, module
        for name, value in sorted(vars(module).items()):
            if name.startswith("_") or not inspect.ismodule(value) or id(value) in seen:
                continue
            if value.__name__.startswith(prefix):
                seen.add(id(value))
                packages.append((f"{dotted_name}.{name}", value))


def _is_offered(value: Any, module: Any) -> bool:
    """Return whether a value seems to make a module, and needs no arguments.

    A wrong yes costs little: the caller calls it, and leaves out what fails or returns something else.

    Args:
        value: anything in the Python module.
        module: the Python module, whose `__all__` counts.
    """
    if _is_module_class(value) or (inspect.isfunction(value) and _makes_module(value, module)):
        return not any(map(_is_required, inspect.signature(value).parameters.values()))
    return False


def _makes_module(function: FunctionType, module: Any) -> bool:
    """Return whether a function is declared to return a module, is in `__all__`, or uses only classes of modules.

    Args:
        function: one written in Python.
        module: the Python module that has it. Packages of models list their factories in `__all__`.
    """
    try:
        declared = get_type_hints(function).get("return")
    except Exception:  # an annotation may be any expression
        declared = None
    if _is_module_class(declared) or function.__name__ in getattr(module, "__all__", ()):
        return True
    # The globals that its code uses: `Net` of `return Net(10)`. Attributes are among the names, but are no globals, so
    # that `nn.Sequential(…)` is no sign: such a function may do anything else, too.
    used = [function.__globals__.get(name) for name in function.__code__.co_names]
    return bool(used) and all(map(_is_module_class, used))


def _is_required(parameter: inspect.Parameter) -> bool:
    """Return whether a call has to give a parameter a value."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    return parameter.default is parameter.empty


def _is_module_class(value: Any) -> bool:
    """Return whether a value is `nn.Module` or a class derived from it."""
    return inspect.isclass(value) and issubclass(value, nn.Module)


def _without_weights(value: Any) -> dict[str, Any]:
    """Return the arguments with which a factory downloads no weights."""
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return {}
    return {name: nothing for name, nothing in _DOWNLOADS.items() if name in parameters}


def _module_made_by(value: Any, factory: Factory, kwargs: dict[str, Any]) -> nn.Module:
    """Return the module that a factory makes, or the module that it is.

    Args:
        value: what the factory names: a class, function or module.
        factory: for its positional arguments, and messages.
        kwargs: arguments by keyword.

    Raises:
        ModelError: it fails, or returns no module.
    """
    try:
        module = value if isinstance(value, nn.Module) else value(*factory.args, **kwargs)
    except Exception as error:
        raise ModelError(f"{factory} fails: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{factory} does not return a torch.nn.Module", found=type(module).__name__)
    return module


def load_weights(module: nn.Module, state: dict[str, Any], path: str) -> None:
    """Load a state dict into a module, strictly.

    Args:
        module: receives the weights.
        state: tensors by key.
        path: of their file, for the error.

    Raises:
        ModelError: it belongs to another module.
    """
    try:
        module.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:  # of other keys; of values that are no tensors
        raise ModelError(f"the weights do not match the module: {error}", file=path) from error


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy of a module of the user, which may be changed.

    Attributes may be computed tensors, as by an old `weight_norm`, which PyTorch does not copy itself.
    """
    copies_by_id: dict[int, Any] = {}  # as `deepcopy` has those that it has made
    for inside in module.modules():
        for value in vars(inside).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                copies_by_id[id(value)] = value.detach().clone()
    return copy.deepcopy(module, copies_by_id)


_MOST_TENSORS = 8
"""Maximum number of tensors of an output whose shapes are recorded."""
_STEPS_PER_CALL = 500
"""Steps of `Limits.work` that the call of a module on the meta device costs."""
Shapes = tuple[tuple[int, ...], ...]
"""The sizes of each tensor of an output."""


def output_shapes(
    module: TorchObject, path: str, inputs: Examples, limits: Limits = DEFAULT_LIMITS
) -> dict[str, Shapes]:
    """Run a model and record the outputs' shapes of each module in it.

    Args:
        module: the nn module.
        path: its path in the file.
        inputs: its input, of which shapes and types count; shapes with the batch dimension.
        limits: resource limits.

    Returns:
        The sizes of each tensor last returned, by the name of each module (`""` for the model).

    Raises:
        LimitError: modules are shared in such a way that running them takes much longer than reading the file.
        ModelError: the model does not accept such an input, or needs values that the meta device does not have.
        UnsupportedLayerError: layers of the model have no PyTorch module.
    """
    live = live_module(module, path, index_base=1, limits=limits).to("meta")
    shapes: dict[str, Shapes] = {}
    _record_shapes(live, shapes, limits)
    try:
        with torch.no_grad():
            live(each_input(partial(_on_meta, default=model_dtype(live)), inputs))
    except T7BridgeError:  # of the limit
        raise
    except Exception as error:  # any exception of a layer for an unsuitable input
        raise ModelError(
            "the model cannot be run to find its shapes",
            path=path,
            found=_brief(error).rstrip("."),
            hint=f"The input was {inputs_text(inputs)}; give another with --input-shape.",
        ) from error
    return shapes


def _brief(error: Exception) -> str:
    """Return the first line of an error, or its class if it has no text."""
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _record_shapes(live: nn.Module, shapes: dict[str, Shapes], limits: Limits) -> None:
    """Have each module of a model note the shapes of its outputs when it is called.

    Args:
        live: the model, whose modules get hooks.
        shapes: receives the sizes of each tensor last returned, by the names of the modules.
        limits: resource limits, for calls.
    """

    def recorder(name: str) -> Any:
        """Return a hook that records the output of the module of a name."""

        def record(_module: Any, _inputs: Any, output: Any) -> None:
            """Note the shapes of an output, or of the first tensors of a list, in place of those of the last call."""
            items = output if isinstance(output, (list, tuple)) else [output]
            tensors = [item for item in items[:_MOST_TENSORS] if isinstance(item, torch.Tensor)]
            shapes[name] = tuple(tuple(tensor.shape) for tensor in tensors)

        return record

    modules = list(live.named_modules())
    # One call of each is free.
    budget = Budget(limits, "running the model to find its shapes", free=_STEPS_PER_CALL * len(modules))
    for name, inner in modules:
        inner.register_forward_pre_hook(lambda *_: budget.spend(_STEPS_PER_CALL))
        inner.register_forward_hook(recorder(name))


def each_input(function: Callable[[Any], Any], inputs: Any) -> Any:
    """Return the results of a function for each input, in nested lists as the inputs are.

    Args:
        function: of one input.
        inputs: one input, or a list of inputs and lists.
    """
    if isinstance(inputs, list):
        return [each_input(function, item) for item in inputs]
    return function(inputs)


def dtype_of(example: Example, default: torch.dtype) -> torch.dtype:
    """Return the element type of an example input.

    Args:
        example: the input.
        default: the type of one that names none.

    Raises:
        ModelError: PyTorch has no type of this name.
    """
    dtype = getattr(torch, example.dtype, None) if example.dtype else default
    if not isinstance(dtype, torch.dtype):
        raise ModelError("an input has no type of PyTorch", found=example.dtype[:40], expected="float32, int64, …")
    return dtype


def model_dtype(module: nn.Module) -> torch.dtype:
    """Return the element type of a model: that of its first parameter, or buffer, of floats."""
    tensors = (*module.parameters(), *module.buffers())
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)


def _on_meta(example: Example, default: torch.dtype) -> torch.Tensor:
    """Return an input without elements of its own: of its shape, and its type or else the default."""
    return torch.empty(example.shape, device="meta", dtype=dtype_of(example, default))


def example(module: nn.Module, inputs: Examples, indices: bool = False, first: int = 1) -> Any:
    """Return seeded example inputs.

    An input with a value is this value, one with bounds is random between them. Other inputs of floats are normal
    numbers, and all others are indices: random rows that every embedding of the model has, the first row if it has no
    embedding.

    Args:
        module: the model, for the type of floats and the sizes of embeddings.
        inputs: their shapes and types, and perhaps values or bounds.
        indices: whether inputs of floats are indices, too: Lua's DoubleTensors often are.
        first: the number of an embedding's first row: 1 as in Lua, or 0.

    Returns:
        A tensor, or a list of such results.

    Raises:
        ModelError: a type has no such name.
    """
    row_counts = [table.weight.shape[0] for table in module.modules() if isinstance(table, nn.Embedding)]
    count = max(1, min(row_counts, default=1))
    draw = partial(
        _random_input,
        generator=torch.Generator().manual_seed(0),
        floats=model_dtype(module),
        rows=(first, first + count - 1),
        indices=indices,
    )
    return each_input(draw, inputs)


def _random_input(
    example: Example, generator: torch.Generator, floats: torch.dtype, rows: tuple[int, int], indices: bool
) -> torch.Tensor:
    """Return one input of `example`.

    Args:
        example: its shape and type, and perhaps its value or bounds.
        generator: of the random numbers.
        floats: the type of an input that states none.
        rows: the first and last number of rows that every embedding has.
        indices: whether an input of floats consists of such numbers, as one of integers does.

    Raises:
        ModelError: PyTorch has no type of its name.
    """
    dtype = dtype_of(example, floats)
    if example.value is not None:
        return example.value.torch().to(dtype).contiguous()
    if dtype.is_floating_point and not indices and example.bounds is None:
        # Drawn as doubles, so that the numbers of all types of floats are the same.
        return torch.randn(example.shape, generator=generator, dtype=torch.float64).to(dtype)
    lowest, highest = rows if example.bounds is None else example.bounds
    return torch.randint(lowest, highest + 1, example.shape, generator=generator).to(dtype)
