"""Plain PyTorch for the runtime's layers, where that is exact.

The rank of a value is the number of dimensions of one example of it: 3 for images, whether a batch or one. A layer of
Lua that counts from the front, batch or not, can be said with dimensions counted from the back if the rank is known.
Where it cannot, the layer's own class comes along.

An entry of `nn/layers/` names the writer of its class and arguments for it (`Traits.written`); the tables here and in
`lists` have the writers by these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeVar

from ..nn.plan.spec import SEQUENTIAL, ModuleSpec
from ..nn.traits import Traits, traits_of
from .code import Attr, Binary, Call, Lit, Node, apply, dotted, method
from .steps import Write
from .torch_classes import SAME, TORCH, torch_call

Rank = int | None
Module = tuple[Call, Rank]
Expression = tuple[Write, Rank]
"""Makes an expression of one operand, and the rank of the result."""
Around = tuple[Call, Write, Rank]
"""A module, the expression that applies it, and the rank of the result."""


T = TypeVar("T")


def traits(spec: ModuleSpec) -> Traits:
    """The facts that an entry declares of the class of a module."""
    return traits_of(spec.target)


def by_writer(writers: Mapping[str, Callable[..., T]], spec: ModuleSpec, *given: Any) -> T | None:
    """Call the writer that the entry of a module names, with its arguments; `None` where it names none of these."""
    name, *arguments = traits(spec).written or ("",)
    writer = writers.get(name)
    return writer(*given, *arguments) if writer else None


def _arguments(spec: ModuleSpec, *names: str) -> list[Any]:
    """The arguments of a call in order, however they were given; `None` for those that were not."""
    return [spec.args[at] if at < len(spec.args) else spec.kwargs.get(name) for at, name in enumerate(names)]


def as_module(spec: ModuleSpec, rank: Rank) -> Module | None:
    """Return an equal module of torch.nn and the rank of its output; `None` where there is none."""
    if spec.target.startswith("torch.nn."):
        call = torch_call(spec.target.removeprefix("torch.nn."), spec.args, dict(spec.kwargs), spec)
        return call, _rank_after(call, rank)
    return by_writer(_MODULES, spec, spec, rank)


def _identity(spec: ModuleSpec, rank: Rank) -> Module:
    return torch_call("Identity", (), {}, spec), rank


def _softmax(spec: ModuleSpec, rank: Rank, name: str) -> Module | None:
    """Lua's dimension is the first of 1 or 3, the second of 2 or 4.

    Counted from the end it is the same with and without a batch where one example has 1 or 3. Lua takes a sequence
    (time, features) for a batch, a volume for one of images.
    """
    return (torch_call(name, (-rank,), {}, spec), rank) if rank in (1, 3) else None


def _example_softmax(spec: ModuleSpec, rank: Rank) -> Module | None:
    name = "LogSoftmax" if spec.kwargs.get("log") else "Softmax"
    return (torch_call(name, (-1,), {}, spec), rank) if rank == 1 else None


def _plain(spec: ModuleSpec, rank: Rank, name: str) -> Module | None:
    """Classes of the runtime that differ from those of torch.nn only where the latter refuse their input."""
    if not spec.plain:
        return None
    call = torch_call(spec.plain.removeprefix("torch.nn."), spec.args, dict(spec.kwargs), spec)
    return call, _rank_after(call, rank)


def _rank_after(call: Call, rank: Rank) -> Rank:
    known = TORCH.get(call.name.removeprefix("nn."))
    if known is None or known.base == "embedding":
        return None
    return rank if known.rank == SAME else known.rank


def rank_of_copy(spec: ModuleSpec, rank: Rank) -> Rank:
    """Return the output rank of a layer whose own class is copied, where a class of torch.nn tells."""
    name, *arguments = traits(spec).written or ("",)
    return _rank_after(Call(f"nn.{arguments[0]}"), rank) if name == "plain" else None


def copying(write: Write) -> Write:
    """An expression whose result has memory of its own."""
    return lambda x: method(write(x), "clone")


def reshapes(spec: ModuleSpec) -> bool | None:
    """Return whether a layer returns another shape than it takes; `None` where it passes on that of its input."""
    while spec.target == SEQUENTIAL and spec.children:
        spec = list(spec.children.values())[-1]
    if traits(spec).reshapes:
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


_MODULES: dict[str, Callable[..., Module | None]] = {
    "identity": _identity,
    "softmax": _softmax,
    "example_softmax": _example_softmax,
    "plain": _plain,
    "view": _view,
    "reshape": _reshape,
}


def as_expression(spec: ModuleSpec, rank: Rank) -> Expression | None:
    """Return an equal expression of one operand; `None` where there is none."""
    return by_writer(_EXPRESSIONS, spec, spec, rank)


def _method(spec: ModuleSpec, rank: Rank, name: str) -> Expression:
    return lambda x: method(x, name), rank


def _power(spec: ModuleSpec, rank: Rank) -> Expression:
    return lambda x: method(x, "pow", spec.args[0]), rank


def _operator(spec: ModuleSpec, rank: Rank, symbol: str) -> Expression | None:
    constant = spec.args[0]
    if not isinstance(constant, (int, float)):
        return None
    return lambda x: Binary(x, symbol, Lit(constant)), rank


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


def _reduced(spec: ModuleSpec, rank: Rank, name: str, attribute: str = "") -> Expression | None:
    dim, dims = _arguments(spec, "dim", "n_input_dims")
    # Of a vector Lua leaves one number in one dimension, PyTorch none.
    if not rank or rank < 2 or dims not in (None, rank) or spec.kwargs.get("squeeze") is False:
        return None

    def write(x: Node) -> Node:
        reduced = method(x, "mean" if spec.kwargs.get("average") else name, _from_end(dim, dims))
        return Attr(reduced, attribute) if attribute else reduced

    return write, rank - 1 if dims else None


def _pool_in_time(spec: ModuleSpec, rank: Rank) -> Expression:
    size, stride = spec.args
    strides = {} if size == stride else {"stride": stride}
    return lambda x: Attr(apply("F.max_pool1d", Attr(x, "mT"), size, **strides), "mT"), 2


def _cast(spec: ModuleSpec, rank: Rank) -> Expression:
    return lambda x: method(x, "to", dotted(f"torch.{spec.args[0]}")), rank


def _flip(spec: ModuleSpec, rank: Rank) -> Expression:
    return lambda x: method(x, "flip", spec.args[0]), rank


_EXPRESSIONS: dict[str, Callable[..., Expression | None]] = {
    "method": _method,
    "power": _power,
    "operator": _operator,
    "cast": _cast,
    "unsqueeze": _unsqueeze,
    "transpose": _transpose,
    "select": _select,
    "narrow": _narrow,
    "flip": _flip,
    "reduce": _reduced,
    "pool_in_time": _pool_in_time,
}


def around_module(spec: ModuleSpec) -> Around | None:
    """A module of torch.nn with what is done before and after it; `None` where there is none."""
    return by_writer(_AROUND, spec, spec)


def _look_up(spec: ModuleSpec) -> Around:
    kwargs = dict(spec.kwargs)
    base = kwargs.pop("index_base", 1)

    def look_up(module: Node, x: Node) -> Node:
        numbers = method(x, "long")
        return apply(module, Binary(numbers, "-", Lit(base)) if base else numbers)

    return torch_call("Embedding", spec.args, kwargs, spec), look_up, None


def _conv_in_time(spec: ModuleSpec) -> Around:
    call = torch_call("Conv1d", spec.args, dict(spec.kwargs), spec)
    return call, lambda module, x: Attr(apply(module, Attr(x, "mT")), "mT"), 2


_AROUND: dict[str, Callable[..., Around]] = {"look_up": _look_up, "conv_in_time": _conv_in_time}
WRITERS = frozenset({*_MODULES, *_EXPRESSIONS, *_AROUND})
"""The names by which entries ask for a module of torch.nn or an expression."""


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
