"""Check without PyTorch whether the modules of a plan can be constructed, and whether their tensors fit.

Arguments are bound to the signature in a layer's source; tensors, and what a constructor refuses, are the facts that
`Traits` and `torch_nn` declare. Nothing is allocated, and nothing of a file is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Signature
from typing import Any

from ..data import define
from ..errors import ModelError
from ..graph.dtypes import ELEMENT_TYPES
from ..nn.mapping import LAYERS, ModuleSpec, Plan, specs_in
from ..nn.registry import traits_of
from ..nn.torch_nn import TORCH, Refused, Shape, constructed, shape
from .copied import constructor
from .prepare import Owned


@define(eq=False)
class Inside:
    """A module among the arguments of a constructor.

    Attributes:
        spec: the module.
        tensors: the shapes of its own tensors.
    """

    spec: ModuleSpec
    tensors: Mapping[str, Shape]


def check_construction(plan: Plan, owned: Owned) -> None:
    """Refuse a plan whose modules could not be constructed, or whose tensors would not fit into them.

    Args:
        plan: the plan.
        owned: the tensors of its modules.

    Raises:
        ModelError: a constructor would raise, or a tensor is missing, unexpected or of another shape.
    """
    found = {key: {name: tensor.shape for name, tensor in own.items()} for key, own in owned.items()}
    known = [spec for spec in specs_in(plan.root) if spec.graph is None and _is_known(spec.target)]
    wanted = {}
    for spec in reversed(known):  # children first
        inside = {
            name: Inside(child, found.get(id(child), {})) for name, child in {**spec.children, **spec.refers}.items()
        }
        numbered = [module for name, module in inside.items() if name.isdigit()]
        named = {name: module for name, module in inside.items() if not name.isdigit()}
        try:
            wanted[id(spec)] = expected(spec.target, (*numbered, *spec.args), {**spec.kwargs, **named})
        except (ArithmeticError, LookupError, Refused, TypeError, ValueError) as error:
            raise ModelError(
                f"a {spec.class_name} cannot be made a {spec.target.removeprefix(LAYERS)}: {error}", path=spec.path
            ) from error
    for spec in known:
        tensors, modules = wanted[id(spec)]
        _check_modules(spec, {name: each.spec for name, each in modules.items()})
        _check_tensors(spec, tensors, found.get(id(spec), {}))


def _is_known(target: str) -> bool:
    """Return whether a class is one of this package or of torch.nn; the tensors of others are unknown."""
    return target.startswith(LAYERS) or target.removeprefix("torch.nn.") in TORCH


def expected(
    target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Shape], dict[str, Inside]]:
    """Return the tensors and the children of a module constructed with these arguments, by name.

    Args:
        target: a class of this package's layers, or of torch.nn whose arguments are known.
        args: positional arguments; each module is an `Inside`.
        kwargs: arguments by keyword, likewise.

    Raises:
        Refused, ArithmeticError, LookupError, TypeError, ValueError: the constructor would raise.
    """
    signature, base = constructor(target)
    if signature is None:
        return constructed(base, args, kwargs), {}
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    modules = _held(signature, given.arguments, base == "Sequential")
    default = signature.parameters["dtype"].default if "dtype" in signature.parameters else None
    dtype = given.arguments.get("dtype")
    if (dtype or default is not None) and dtype not in ELEMENT_TYPES:
        raise Refused(f"torch has no element type {dtype!r:.40}")
    facts = traits_of(target)
    if facts.shapes is not None:
        tensors = facts.shapes(*given.args, **given.kwargs)
    elif facts.like:
        known = TORCH[facts.like].arguments
        tensors = constructed(facts.like, (), {key: each for key, each in given.arguments.items() if key in known})
    else:
        tensors = {}
    return {name: shape(size) for name, size in tensors.items()}, modules


def _held(signature: Signature, arguments: Mapping[str, Any], is_sequential: bool) -> dict[str, Inside]:
    """Return the modules that a constructor stores: a `Sequential` numbers them, others use the parameter's name."""
    modules: dict[str, Inside] = {}
    for name, argument in arguments.items():
        parameter = signature.parameters[name]
        declared = "nn." in parameter.annotation
        values: Mapping[Any, Any] = {name: argument}
        if parameter.kind is parameter.VAR_POSITIONAL:
            values = dict(enumerate(argument))
        elif parameter.kind is parameter.VAR_KEYWORD:
            values = argument
        for key, value in values.items():
            if isinstance(value, Inside) and (declared or parameter.annotation == "Any"):
                modules[str(len(modules)) if is_sequential and declared else key] = value
            elif isinstance(value, Inside) or (declared and value is not parameter.default):
                raise Refused(f"the argument {key} is {'no' if declared else 'a'} module")
    return modules


def _check_modules(spec: ModuleSpec, found: Mapping[str, ModuleSpec]) -> None:
    """Refuse a class that accepts other modules than those inside, or stores them under other names."""
    wanted = spec.children
    for name in {**wanted, **found}:
        if found.get(name) is not wanted.get(name) and name not in spec.refers:
            raise ModelError(
                f"a {spec.class_name} does not hold the modules that a {spec.target.removeprefix(LAYERS)} takes",
                path=spec.path,
                expected=f"the modules {', '.join(found) or 'none'}",
                found=", ".join(wanted) or "none",
            )


def _check_tensors(spec: ModuleSpec, wanted: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    for name in {**wanted, **found}:
        if wanted.get(name) != found.get(name):
            raise ModelError(
                f"the weights do not fit the layer: {spec.class_name} as {spec.target.removeprefix(LAYERS)}",
                path=f"{spec.path}.{name}",
                expected=f"the shape {wanted[name]}" if name in wanted else "no such tensor",
                found=f"{found[name]}" if name in found else "no such tensor",
            )
