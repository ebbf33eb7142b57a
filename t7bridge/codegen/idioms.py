"""How the runtime's layers are said in plain PyTorch, where that is exact.

The rank of a value is the number of dimensions of one example of it: 3 for images, whether a batch or one. A layer of
Lua that counts from the front, batch or not, can be said with dimensions counted from the back if the rank is known.
Where it cannot, the layer's own class comes along.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..nn.mapping import LAYERS
from ..nn.plan.spec import ModuleSpec
from .code import Call, literal
from .steps import ATOM, PRODUCT, SUM
from .torch_classes import SAME, TORCH, torch_call

Rank = int | None
Module = tuple[Call, Rank]
Expression = tuple[str, int, int, Rank]
"""A template, how tightly its operand must hold, how tightly it holds, and the rank of the result."""


def short(spec: ModuleSpec) -> str:
    """The class of the runtime without its package: `shape.View`; of torch.nn `torch.nn.Linear`."""
    return spec.target.removeprefix(LAYERS)


def _arguments(spec: ModuleSpec, *names: str) -> list[Any]:
    """The arguments of a call in order, however they were given; `None` for those that were not."""
    return [spec.args[at] if at < len(spec.args) else spec.kwargs.get(name) for at, name in enumerate(names)]


def as_module(spec: ModuleSpec, rank: Rank) -> Module | None:
    """A module of torch.nn that does the same, and the rank of what it gives; `None` where there is none."""
    name = short(spec)
    if spec.target.startswith("torch.nn."):
        call = torch_call(spec.target.removeprefix("torch.nn."), spec.args, dict(spec.kwargs), spec)
        return call, _rank_after(call, rank)
    if name in _SOFT and rank:
        return torch_call(_SOFT[name], (-rank,), {}, spec), rank
    if name == "activation.ExampleSoftmax" and rank == 1:
        return torch_call("LogSoftmax" if spec.kwargs.get("log") else "Softmax", (-1,), {}, spec), rank
    if name == "shape.View":
        return _view(spec, rank)
    if name == "shape.Reshape":
        return _reshape(spec, rank)
    if name == "shape.Contiguous":
        return torch_call("Identity", (), {}, spec), rank
    if name in _PLAIN:
        call = torch_call(spec.plain.removeprefix("torch.nn."), spec.args, dict(spec.kwargs), spec)
        return call, _rank_after(call, rank)
    return None


# Classes of the runtime that differ from those of torch.nn only where the latter refuse their input.
_PLAIN = {
    *("conv.FullConvolution2d", "conv.FullConvolution3d", "activation.PReLU"),
    *("norm.BatchNorm1d", "norm.BatchNorm2d", "norm.BatchNorm3d"),
}
_SOFT = {
    "activation.Softmax": "Softmax",
    "activation.LogSoftmax": "LogSoftmax",
    "activation.Softmin": "Softmin",
}


def _rank_after(call: Call, rank: Rank) -> Rank:
    known = TORCH.get(call.name.removeprefix("nn."))
    if known is None or known.base == "embedding":
        return None
    return rank if known.rank == SAME else known.rank


def _flattened(dims: int, spec: ModuleSpec) -> Module:
    if dims == 1:
        return torch_call("Identity", (), {}, spec), 1
    return torch_call("Flatten", (-dims,), {}, spec), 1


def _view(spec: ModuleSpec, rank: Rank) -> Module | None:
    """Exact where Lua is told the dimensions of one example; else a batch of one loses its batch there."""
    dims = spec.kwargs.get("n_input_dims")
    if dims and spec.args == (-1,):
        return _flattened(dims, spec)
    if dims and rank == dims and len(spec.args) == 1:
        return _flattened(dims, spec)
    if dims == 1 and len(spec.args) > 1 and -1 not in spec.args:
        return torch_call("Unflatten", (-1, spec.args), {}, spec), len(spec.args)
    return None


def _reshape(spec: ModuleSpec, rank: Rank) -> Module | None:
    batched = spec.kwargs.get("batch_mode")
    if batched is False or not rank or -1 in spec.args:
        return None
    if len(spec.args) == 1:
        return _flattened(rank, spec)
    if rank == 1 and prod(spec.args) > 1:
        return torch_call("Unflatten", (-1, spec.args), {}, spec), len(spec.args)
    return None


def as_expression(spec: ModuleSpec, rank: Rank) -> Expression | None:
    """An expression of one operand that does the same; `None` where there is none."""
    build = _EXPRESSIONS.get(short(spec))
    return build(spec, rank) if build else None


def _method(text: str, rank_after: Callable[[Rank], Rank] = lambda rank: rank) -> Any:
    return lambda spec, rank: (f"{{0}}.{text}", ATOM, ATOM, rank_after(rank))


def _power(spec: ModuleSpec, rank: Rank) -> Expression:
    return f"{{0}}.pow({literal(spec.args[0])})", ATOM, ATOM, rank


def _with_constant(symbol: str, level: int) -> Any:
    def build(spec: ModuleSpec, rank: Rank) -> Expression | None:
        constant = spec.args[0]
        if not isinstance(constant, (int, float)):
            return None
        return f"{{0}} {symbol} {literal(constant)}", level, level, rank

    return build


def _from_end(dim: int, dims: int | None, added: int = 0) -> int:
    """A dimension of one example, from the end where its rank is told."""
    return dim - dims - added if dims is not None and dim >= 0 else dim


def _unsqueeze(spec: ModuleSpec, rank: Rank) -> Expression:
    dim, dims = _arguments(spec, "dim", "n_input_dims")
    return f"{{0}}.unsqueeze({_from_end(dim, dims, 1)})", ATOM, ATOM, None if dims is None else dims + 1


def _transpose(spec: ModuleSpec, rank: Rank) -> Expression:
    dims = spec.kwargs.get("n_input_dims")
    pairs = [(_from_end(first, dims), _from_end(second, dims)) for first, second in spec.args]
    return "{0}" + "".join(f".transpose({first}, {second})" for first, second in pairs), ATOM, ATOM, dims


def _select(spec: ModuleSpec, rank: Rank) -> Expression:
    dim, index = _arguments(spec, "dim", "index")
    return f"{{0}}.select({dim}, {index})", ATOM, ATOM, None


def _narrow(spec: ModuleSpec, rank: Rank) -> Expression | None:
    dim, start, length = _arguments(spec, "dim", "start", "length")
    if start < 0 or length < 0:
        return None
    return f"{{0}}.narrow({dim}, {start}, {length})", ATOM, ATOM, rank


def _reduced(name: Callable[[ModuleSpec], str]) -> Any:
    def build(spec: ModuleSpec, rank: Rank) -> Expression | None:
        dim, dims = _arguments(spec, "dim", "n_input_dims")
        # Of a vector Lua leaves one number in one dimension, PyTorch none.
        if not rank or rank < 2 or dims not in (None, rank) or spec.kwargs.get("squeeze") is False:
            return None
        return "{0}." + name(spec).format(_from_end(dim, dims)), ATOM, ATOM, rank - 1 if dims else None

    return build


def _pool_in_time(spec: ModuleSpec, rank: Rank) -> Expression:
    size, stride = spec.args
    after = "" if size == stride else f", stride={stride}"
    return f"F.max_pool1d({{0}}.mT, {size}{after}).mT", ATOM, ATOM, 2


def _cast(spec: ModuleSpec, rank: Rank) -> Expression:
    return f"{{0}}.to(torch.{spec.args[0]})", ATOM, ATOM, rank


_EXPRESSIONS: dict[str, Callable[[ModuleSpec, Rank], Expression | None]] = {
    "activation.Abs": _method("abs()"),
    "activation.Exp": _method("exp()"),
    "activation.Log": _method("log()"),
    "activation.Square": _method("square()"),
    "activation.Power": _power,
    "linear.MulConstant": _with_constant("*", PRODUCT),
    "linear.AddConstant": _with_constant("+", SUM),
    "shape.Cast": _cast,
    "shape.Unsqueeze": _unsqueeze,
    "shape.Transpose": _transpose,
    "pick.Select": _select,
    "pick.Narrow": _narrow,
    "pick.Reverse": lambda spec, rank: (f"{{0}}.flip({spec.args[0]})", ATOM, ATOM, rank),
    "pick.Sum": _reduced(lambda spec: "mean({0})" if spec.kwargs.get("average") else "sum({0})"),
    "pick.Max": _reduced(lambda spec: "max({0}).values"),
    "pick.Min": _reduced(lambda spec: "min({0}).values"),
    "temporal.TemporalMaxPool": _pool_in_time,
}


def around_module(spec: ModuleSpec) -> tuple[Call, str, Rank] | None:
    """A module of torch.nn with what is to be done before and after it: the call, a template, the rank that results."""
    name = short(spec)
    if name == "embedding.LookupTable":
        kwargs = dict(spec.kwargs)
        base = kwargs.pop("index_base", 1)
        numbers = "{0}.long()" + (f" - {base}" if base else "")
        return torch_call("Embedding", spec.args, kwargs, spec), f"{{m}}({numbers})", None
    if name == "temporal.TemporalConv":
        return torch_call("Conv1d", spec.args, dict(spec.kwargs), spec), "{m}({0}.mT).mT", 2
    return None


def function_of(call: Call) -> str:
    """The template of a function that does what a module of torch.nn does; empty where there is none to prefer."""
    known = TORCH.get(call.name.removeprefix("nn."))
    if known is None or not call.name.startswith("nn.") or "inplace=True" in call.text:
        return ""
    template = known.function
    for argument, node in [*zip(known.arguments, call.args), *call.kwargs.items()]:
        template = template.replace(f"{{{argument}}}", node.text)
    return template
