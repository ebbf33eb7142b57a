"""Calls of classes of torch.nn in generated source."""

from __future__ import annotations

import re
from typing import Any

from ..nn.mapping import ModuleSpec
from ..nn.torch_nn import REQUIRED, TORCH
from .code import Construction, Lit
from .copied import Copied

_UNIFORM = {"kernel_size", "stride", "padding", "dilation", "output_padding", "output_size"}
"""Arguments for which one number means the same for all directions."""


def defaults_of(piece: Copied) -> dict[str, Any]:
    """Return the arguments of a copied class that may be omitted; a class without a constructor has its base's."""
    if piece.signature is not None:
        known = piece.signature.parameters.values()
        return {each.name: each.default for each in known if each.default is not each.empty}
    base = TORCH.get(piece.base)
    return {name: value for name, value in base.arguments.items() if value is not REQUIRED} if base else {}


def torch_call(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], spec: ModuleSpec | None = None
) -> Construction:
    """Return the construction of a module of torch.nn, without arguments that have their defaults."""
    known = TORCH.get(name)
    if known is None or len(args) > len(known.arguments):
        return Construction(
            f"nn.{name}", [Lit(value) for value in args], {k: Lit(v, k) for k, v in kwargs.items()}, {}, spec
        )
    given = {**dict(zip(known.arguments, args)), **kwargs}
    if given.get("stride") is not None and known.arguments.get("stride", 1) is None:
        given["stride"] = None if given["stride"] == given["kernel_size"] else given["stride"]
    values = {argument: _simple(argument, value) for argument, value in given.items()}
    call = Construction(f"nn.{name}", spec=spec)
    for argument, default in known.arguments.items():
        if default is REQUIRED and argument in values:
            call.args.append(Lit(values.pop(argument), argument))
    for argument, default in known.arguments.items():
        if default is not REQUIRED:
            call.kwargs[argument] = Lit(values.pop(argument, default), argument)
            call.defaults[argument] = default
    call.kwargs.update((argument, Lit(value, argument)) for argument, value in values.items())
    return call


def _simple(name: str, value: Any) -> Any:
    if name in _UNIFORM and isinstance(value, tuple) and len(set(value)) == 1:
        return value[0]
    return value


def base_name(class_name: str) -> str:
    """Return the base name of an attribute with a module of a class: `max_unpool` for `MaxUnpool`."""
    short = class_name.removeprefix("nn.")
    if class_name.startswith("nn.") and short in TORCH:
        return TORCH[short].base
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", short).lower().rstrip("_0123456789")
