"""Whether the modules of a plan can be constructed, and whether their tensors fit, found out without PyTorch. Arguments
are bound to the signature in a layer's source; which tensors a constructor makes, and what it refuses, are facts that
`Traits` and `torch_nn` declare. A plan is the modules of PyTorch for a Lua model, its specs.

Nothing is allocated, and nothing of a file is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import BoundArguments, Parameter, Signature
from typing import Any

from ..data import define
from ..errors import ModelError
from ..graph.dtypes import ELEMENT_TYPES
from ..nn.mapping import LAYERS, OURS, ModuleSpec, Plan, short_name, specs_in
from ..nn.registry import traits_of
from ..nn.torch_nn import TORCH, Refused, Shape, constructed, shape
from .copied import constructor
from .owned import TensorsByModule


@define(eq=False)
class ModuleArgument:
    """A module among the arguments of a constructor that is checked, not called.

    Attributes:
        spec: the module.
        tensors: the shapes of its own tensors.
    """

    spec: ModuleSpec
    tensors: Mapping[str, Shape]


def check_construction(plan: Plan, owned: TensorsByModule) -> None:
    """Refuse a plan whose modules could not be constructed, or whose tensors would not fit into them.

    Args:
        plan: the plan.
        owned: the tensors of its modules, by the module's id and by their names in it.

    Raises:
        ModelError: a constructor would raise, or a tensor is missing, unexpected or of another shape.
    """
    shapes: dict[int, dict[str, Shape]] = {}
    """The shapes of the tensors that each module has in the file, by the module's id."""
    for identity, tensors in owned.items():
        shapes[identity] = {name: tensor.shape for name, tensor in tensors.items()}
    # Not graphs, whose constructors take their nodes, nor classes of which nothing is known.
    specs = [spec for spec in specs_in(plan.root) if spec.graph is None and _is_known(spec.target)]
    parts: dict[int, _Parts] = {}
    """What the constructor of each module makes, by the module's id."""
    for spec in reversed(specs):  # children first, so that the innermost error is the one reported
        parts[id(spec)] = _parts_of(spec, shapes)
    # When all can be constructed: outer modules first, in the order of the state dict.
    for spec in specs:
        shapes_made, modules_stored = parts[id(spec)]
        _check_modules(spec, {name: module.spec for name, module in modules_stored.items()})
        _check_tensors(spec, shapes_made, shapes.get(id(spec), {}))


_Parts = tuple[dict[str, Shape], dict[str, ModuleArgument]]
"""What a constructor makes: the shapes of tensors, and the modules that it stores, by name."""


def _parts_of(spec: ModuleSpec, shapes: dict[int, dict[str, Shape]]) -> _Parts:
    """Return what the constructor of a module makes, or refuse the module if it would raise.

    Args:
        spec: the module.
        shapes: the shapes of the tensors that each module has in the file, by the module's id.
    """
    modules = {**spec.children, **spec.refers}
    arguments = {name: ModuleArgument(module, shapes.get(id(module), {})) for name, module in modules.items()}
    # A `Sequential` has numbered children, which are positional arguments.
    numbered = [module for name, module in arguments.items() if name.isdigit()]
    named = {name: module for name, module in arguments.items() if not name.isdigit()}
    try:
        return constructed_parts(spec.target, (*numbered, *spec.args), {**spec.kwargs, **named})
    except (ArithmeticError, LookupError, Refused, TypeError, ValueError) as error:
        raise ModelError(
            f"a {spec.class_name} cannot be made a {short_name(spec.target)}: {error}", path=spec.path
        ) from error


def _is_known(target: str) -> bool:
    """Return whether a class is one of this package or of torch.nn; the tensors of others are unknown."""
    return target.startswith(OURS) or target.removeprefix("torch.nn.") in TORCH


def constructed_parts(target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Parts:
    """Return the shapes of the tensors, and the modules inside, of a module constructed with these arguments, by name.

    Args:
        target: a class of this package's layers, or of torch.nn whose arguments are known.
        args: positional arguments; each module is a `ModuleArgument`.
        kwargs: arguments by keyword, likewise.

    Raises:
        Refused, ArithmeticError, LookupError, TypeError, ValueError: the constructor would raise.
    """
    signature, base = constructor(target)
    if signature is None:  # that of a class of torch.nn, which stores no modules
        return constructed(base, args, kwargs), {}
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    modules = _stored_modules(signature, bound.arguments, base == "Sequential")
    if "dtype" in signature.parameters:
        _check_element_type(signature.parameters["dtype"], bound.arguments["dtype"])
    return _tensors_of(target, bound), modules


def _tensors_of(target: str, bound: BoundArguments) -> dict[str, Shape]:
    """Return the shapes of the tensors that the constructor of a class of this package makes, by name.

    Args:
        target: the class.
        bound: the arguments.
    """
    facts = traits_of(target)
    if facts.shapes is not None:  # as its entry says, else as those of the class that it is like
        sizes = facts.shapes(*bound.args, **bound.kwargs)
    elif facts.like:
        sizes = constructed(facts.like, *_arguments_of(facts.like, bound))
    else:
        return {}
    return {name: shape(size) for name, size in sizes.items()}


def _check_element_type(parameter: Parameter, dtype: Any) -> None:
    """Refuse an argument that names no element type; none is needed where the layer has a default, `None`."""
    may_be_none = parameter.default is None  # which keeps the type of the input
    if may_be_none and not dtype:
        return
    if dtype not in ELEMENT_TYPES:
        raise Refused(f"torch has no element type {dtype!r:.40}")


def _arguments_of(like: str, bound: BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return those arguments of a constructor that a class of torch.nn has too, by position and by keyword.

    Args:
        like: the class of torch.nn: `LSTM`.
        bound: the arguments.
    """
    kinds = {parameter.kind for parameter in bound.signature.parameters.values()}
    if Parameter.VAR_POSITIONAL in kinds:  # a constructor with `*args` passes them to that of torch.nn
        return bound.args, bound.kwargs
    parameters = TORCH[like].arguments
    return (), {name: value for name, value in bound.arguments.items() if name in parameters}


def _stored_modules(
    signature: Signature, arguments: Mapping[str, Any], is_sequential: bool
) -> dict[str, ModuleArgument]:
    """Return the modules that a constructor stores: a `Sequential` numbers them, others use the parameter's name.

    Args:
        signature: of the constructor; its annotations say which parameters are modules.
        arguments: the argument of each parameter; a tuple for `*args`, a dict for `**kwargs`.
        is_sequential: whether the class is a `Sequential`.

    Raises:
        Refused: an argument that should be a module is none, or the other way round.
    """
    modules: dict[str, ModuleArgument] = {}
    for name, argument in arguments.items():
        parameter = signature.parameters[name]
        for key, value in _values_of(parameter, argument).items():
            _check_is_module_or_not(parameter, key, value)
            if not isinstance(value, ModuleArgument):
                continue
            if is_sequential and _is_for_modules(parameter):
                # `key` is the place in `*args`, which differs if modules before these are stored by name.
                modules[str(len(modules))] = value
            else:
                modules[key] = value
    return modules


def _is_for_modules(parameter: Parameter) -> bool:
    """Return whether a parameter is annotated as a module: `nn.Module`, `nn.Module | None`."""
    return "nn." in parameter.annotation


def _check_is_module_or_not(parameter: Parameter, key: int | str, value: Any) -> None:
    """Refuse a module for a parameter of another type, and anything else for one of modules but its default.

    Args:
        parameter: the parameter.
        key: its name, or the place or keyword of the value among those that it receives.
        value: a value that it receives.
    """
    if isinstance(value, ModuleArgument):
        if not _is_for_modules(parameter) and parameter.annotation != "Any":
            raise Refused(f"the argument {key} is a module")
    elif _is_for_modules(parameter) and value is not parameter.default:  # `None` where the module is optional
        raise Refused(f"the argument {key} is no module")


def _values_of(parameter: Parameter, argument: Any) -> Mapping[Any, Any]:
    """Return the values that a parameter receives, by its name; those of `*args` by number, of `**kwargs` by keyword.

    Args:
        parameter: the parameter.
        argument: its argument; a tuple for `*args`, a dict for `**kwargs`.
    """
    if parameter.kind is parameter.VAR_POSITIONAL:
        return dict(enumerate(argument))
    if parameter.kind is parameter.VAR_KEYWORD:
        keywords: dict[str, Any] = argument
        return keywords
    return {parameter.name: argument}


def _check_modules(spec: ModuleSpec, stored: Mapping[str, ModuleSpec]) -> None:
    """Refuse a class that accepts other modules than those inside, or stores them under other names.

    Args:
        spec: the module.
        stored: the modules that its constructor stores, by the names under which it does.
    """
    inside = spec.children
    for name in {**inside, **stored}:
        # A module that it only refers to is inside another.
        if stored.get(name) is not inside.get(name) and name not in spec.refers:
            raise ModelError(
                f"a {spec.class_name} does not hold the modules that a {short_name(spec.target)} takes",
                path=spec.path,
                expected=f"the modules {', '.join(stored) or 'none'}",
                found=", ".join(inside) or "none",
            )


def _check_tensors(spec: ModuleSpec, required: Mapping[str, Shape], shapes: Mapping[str, Shape]) -> None:
    """Refuse tensors that are missing, unexpected, or of another shape than the constructor's.

    Args:
        spec: the module.
        required: the shapes of the tensors that its constructor makes, by name.
        shapes: those of the tensors that it has in the file, by name.
    """
    facts = traits_of(spec.target)
    hint = ""
    if spec.target.startswith(LAYERS) and facts.shapes is None and not facts.like:
        hint = "The traits of its class in t7bridge/nn/layers declare no `shapes`."
    for name in {**required, **shapes}:
        if required.get(name) != shapes.get(name):
            raise ModelError(
                f"the weights do not fit the layer: {spec.class_name} as {short_name(spec.target)}",
                path=f"{spec.path}.{name}",
                expected=f"the shape {required[name]}" if name in required else "no such tensor",
                found=f"{shapes[name]}" if name in shapes else "no such tensor",
                hint=hint,
            )
