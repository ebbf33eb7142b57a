"""Plain PyTorch for the runtime's layers, where that is exact.

The rank of a value is the number of dimensions of one example of it: 3 for images, whether a batch or one. A layer of
Lua that counts from the front, batch or not, can be said with dimensions counted from the back if the rank is known.
Where it cannot, the layer's own class comes along.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..nn.mapping import LAYERS
from ..nn.plan.spec import SEQUENTIAL, ModuleSpec
from .code import Attr, Binary, Call, Lit, Node, apply, dotted, method
from .steps import Write
from .torch_classes import SAME, TORCH, torch_call

Rank = int | None
Module = tuple[Call, Rank]
Expression = tuple[Write, Rank]
"""Makes an expression of one operand, and the rank of the result."""


def short(spec: ModuleSpec) -> str:
    """The class of the runtime without its package: `shape.View`; of torch.nn `torch.nn.Linear`."""
    return spec.target.removeprefix(LAYERS)


def _arguments(spec: ModuleSpec, *names: str) -> list[Any]:
    """The arguments of a call in order, however they were given; `None` for those that were not."""
    return [spec.args[at] if at < len(spec.args) else spec.kwargs.get(name) for at, name in enumerate(names)]


def as_module(spec: ModuleSpec, rank: Rank) -> Module | None:
    """Return an equal module of torch.nn and the rank of its output; `None` where there is none."""
    name = short(spec)
    if spec.target.startswith("torch.nn."):
        call = torch_call(spec.target.removeprefix("torch.nn."), spec.args, dict(spec.kwargs), spec)
        return call, _rank_after(call, rank)
    if name in _SOFT and rank in (1, 3):
        return torch_call(_SOFT[name], (-rank,), {}, spec), rank
    if name == "activation.ExampleSoftmax" and rank == 1:
        return torch_call("LogSoftmax" if spec.kwargs.get("log") else "Softmax", (-1,), {}, spec), rank
    if name == "shape.View":
        return _view(spec, rank)
    if name == "shape.Reshape":
        return _reshape(spec, rank)
    if name == "shape.Contiguous":
        return torch_call("Identity", (), {}, spec), rank
    if name in _PLAIN and spec.plain:
        call = torch_call(spec.plain.removeprefix("torch.nn."), spec.args, dict(spec.kwargs), spec)
        return call, _rank_after(call, rank)
    return None


# Classes of the runtime that differ from those of torch.nn only where the latter refuse their input.
_PLAIN = {
    *("conv.FullConvolution2d", "conv.FullConvolution3d", "activation.PReLU"),
    *("norm.BatchNorm1d", "norm.BatchNorm2d", "norm.BatchNorm3d"),
}
# Their dimension is the first of 1 or 3, the second of 2 or 4: counted from the end it is the same with and without a
# batch where one example has 1 or 3. Lua takes a sequence (time, features) for a batch, a volume for one of images.
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


def rank_of_copy(spec: ModuleSpec, rank: Rank) -> Rank:
    """Return the output rank of a layer whose own class is copied, where a class of torch.nn tells."""
    if short(spec) not in _PLAIN:
        return None
    return _rank_after(Call(f"nn.{short(spec).partition('.')[2].replace('FullConvolution', 'ConvTranspose')}"), rank)


COPYING = {"pick.Select", "pick.Narrow"}
"""Layers that copy in Lua what their expression only views; where nothing is changed in place, nobody can tell."""


def copying(write: Write) -> Write:
    """An expression whose result has memory of its own."""
    return lambda x: method(write(x), "clone")


_RESHAPING = {
    *("View", "Reshape", "Squeeze", "Unsqueeze", "Collapse", "Replicate", "Transpose", "Convert", "ShaveImage"),
}


def reshapes(spec: ModuleSpec) -> bool | None:
    """Return whether a layer gives another shape than it takes; `None` where it passes on that of its input."""
    while spec.target == SEQUENTIAL and spec.children:
        spec = list(spec.children.values())[-1]
    home, _, name = short(spec).partition(".")
    if home == "shape" and name in _RESHAPING:
        return True
    known = TORCH.get(spec.target.removeprefix("torch.nn."))
    return None if known is not None and known.rank == SAME else False


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
    """Return an equal expression of one operand; `None` where there is none."""
    build = _EXPRESSIONS.get(short(spec))
    return build(spec, rank) if build else None


def _method(name: str, *args: Any) -> Any:
    return lambda spec, rank: (lambda x: method(x, name, *args), rank)


def _power(spec: ModuleSpec, rank: Rank) -> Expression:
    return lambda x: method(x, "pow", spec.args[0]), rank


def _with_constant(symbol: str) -> Any:
    def build(spec: ModuleSpec, rank: Rank) -> Expression | None:
        constant = spec.args[0]
        if not isinstance(constant, (int, float)):
            return None
        return lambda x: Binary(x, symbol, Lit(constant)), rank

    return build


def _from_end(dim: int, dims: int | None, added: int = 0) -> int:
    """A dimension of one example, from the end where its rank is told."""
    return dim - dims - added if dims is not None and dim >= 0 else dim


def _unsqueeze(spec: ModuleSpec, rank: Rank) -> Expression:
    dim, dims = _arguments(spec, "dim", "n_input_dims")
    return lambda x: method(x, "unsqueeze", _from_end(dim, dims, 1)), None if dims is None else dims + 1


def _transpose(spec: ModuleSpec, rank: Rank) -> Expression | None:
    dims = spec.kwargs.get("n_input_dims")
    if len(spec.args) > _CHAINED:
        return None

    def write(x: Node) -> Node:
        for first, second in spec.args:
            x = method(x, "transpose", _from_end(first, dims), _from_end(second, dims))
        return x

    return write, dims


_CHAINED = 8
"""How many methods may follow one another in one expression."""


def _select(spec: ModuleSpec, rank: Rank) -> Expression:
    dim, index = _arguments(spec, "dim", "index")
    return lambda x: method(x, "select", dim, index), None


def _narrow(spec: ModuleSpec, rank: Rank) -> Expression | None:
    dim, start, length = _arguments(spec, "dim", "start", "length")
    if start < 0 or length < 0:
        return None
    return lambda x: method(x, "narrow", dim, start, length), rank


def _reduced(name: Callable[[ModuleSpec], str], values: bool = False) -> Any:
    def build(spec: ModuleSpec, rank: Rank) -> Expression | None:
        dim, dims = _arguments(spec, "dim", "n_input_dims")
        # Of a vector Lua leaves one number in one dimension, PyTorch none.
        if not rank or rank < 2 or dims not in (None, rank) or spec.kwargs.get("squeeze") is False:
            return None

        def write(x: Node) -> Node:
            reduced = method(x, name(spec), _from_end(dim, dims))
            return Attr(reduced, "values") if values else reduced

        return write, rank - 1 if dims else None

    return build


def _pool_in_time(spec: ModuleSpec, rank: Rank) -> Expression:
    size, stride = spec.args
    strides = {} if size == stride else {"stride": stride}
    return lambda x: Attr(apply("F.max_pool1d", Attr(x, "mT"), size, **strides), "mT"), 2


def _cast(spec: ModuleSpec, rank: Rank) -> Expression:
    return lambda x: method(x, "to", dotted(f"torch.{spec.args[0]}")), rank


def _flip(spec: ModuleSpec, rank: Rank) -> Expression:
    return lambda x: method(x, "flip", spec.args[0]), rank


_EXPRESSIONS: dict[str, Callable[[ModuleSpec, Rank], Expression | None]] = {
    "activation.Abs": _method("abs"),
    "activation.Exp": _method("exp"),
    "activation.Log": _method("log"),
    "activation.Square": _method("square"),
    "activation.Power": _power,
    "linear.MulConstant": _with_constant("*"),
    "linear.AddConstant": _with_constant("+"),
    "shape.Cast": _cast,
    "shape.Unsqueeze": _unsqueeze,
    "shape.Transpose": _transpose,
    "pick.Select": _select,
    "pick.Narrow": _narrow,
    "pick.Reverse": _flip,
    "pick.Sum": _reduced(lambda spec: "mean" if spec.kwargs.get("average") else "sum"),
    "pick.Max": _reduced(lambda spec: "max", values=True),
    "pick.Min": _reduced(lambda spec: "min", values=True),
    "temporal.TemporalMaxPool": _pool_in_time,
}


def around_module(spec: ModuleSpec) -> tuple[Call, Write, Rank] | None:
    """A module of torch.nn with what is done before and after it: the call, the expression, the rank that results."""
    name = short(spec)
    if name == "embedding.LookupTable":
        kwargs = dict(spec.kwargs)
        base = kwargs.pop("index_base", 1)

        def look_up(module: Node, x: Node) -> Node:
            numbers = method(x, "long")
            return apply(module, Binary(numbers, "-", Lit(base)) if base else numbers)

        return torch_call("Embedding", spec.args, kwargs, spec), look_up, None
    if name == "temporal.TemporalConv":
        call = torch_call("Conv1d", spec.args, dict(spec.kwargs), spec)
        return call, lambda module, x: Attr(apply(module, Attr(x, "mT")), "mT"), 2
    return None


def function_of(call: Call) -> Write | None:
    """The expression of a function that does what a module of torch.nn does; `None` where there is none to prefer."""
    known = TORCH.get(call.name.removeprefix("nn."))
    if known is None or not known.function or not call.name.startswith("nn."):
        return None
    nodes = {**dict(zip(known.arguments, call.args)), **call.kwargs}
    inplace = nodes.get("inplace")
    if isinstance(inplace, Lit) and inplace.value:
        return None
    given = [nodes[name] for name in known.given]
    name = known.function
    if name.startswith("."):
        return lambda x: method(x, name[1:], *given)
    return lambda x: apply(name, x, *given)
