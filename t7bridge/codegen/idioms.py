"""Plain PyTorch for the runtime's layers, where it is exact.

The rank of a value is the number of dimensions of one example of it: 3 for images, in a batch or not. A layer of
Lua that counts from the front, batch or not, can be written with dimensions counted from the end if the rank is known.
Otherwise the layer's own class is included. The form of a value is its rank, and more if that is known.

An entry of `nn/layers/` names the writer of its class and its arguments (`Traits.written`); the tables here and in
`lists` have the writers by these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeVar

from ..nn.mapping import ModuleSpec
from ..nn.output_shapes import slid
from ..nn.registry import Traits, traits_of
from ..nn.torch_nn import SAME, TORCH
from .code import Attr, BinaryOperation, Construction, Lit, Node, apply, dotted, method
from .forms import BatchOrigin, Form, form_after
from .steps import Write
from .torch_classes import torch_call

Module = tuple[Construction, Form]
Expression = tuple[Write, Form]
"""Makes an expression from one operand, and the form of the result."""
Around = tuple[Construction, Write, Form]
"""A module, the expression that applies it, and the form of the result."""


T = TypeVar("T")


def traits(spec: ModuleSpec) -> Traits:
    """Return the traits that an entry declares of the class of a module."""
    return traits_of(spec.target)


def by_writer(writers: Mapping[str, Callable[..., T]], spec: ModuleSpec, *given: Any) -> T | None:
    """Call the writer that the entry of a module names, with its arguments; `None` if it names none of these."""
    name, *arguments = traits(spec).written or ("",)
    writer = writers.get(name)
    return writer(*given, *arguments) if writer else None


def _arguments(spec: ModuleSpec, *names: str) -> list[Any]:
    """Return the arguments of a call in order; `None` for missing ones."""
    return [spec.args[at] if at < len(spec.args) else spec.kwargs.get(name) for at, name in enumerate(names)]


def as_module(spec: ModuleSpec, form: Form) -> Module | None:
    """Return an equal module of torch.nn and the form of its output; `None` if there is none."""
    if spec.target.startswith("torch.nn."):
        return _torch(spec.target, spec, form)
    return by_writer(_MODULES, spec, spec, form)


def _torch(target: str, spec: ModuleSpec, form: Form) -> Module:
    call = torch_call(target.removeprefix("torch.nn."), spec.args, dict(spec.kwargs), spec)
    return call, form_after(call, form)


def _softmax(spec: ModuleSpec, form: Form, name: str) -> Module | None:
    """Write a softmax: Lua's dimension is the first of 1 or 3, the second of 2 or 4.

    Counted from the end it is the same with and without a batch if one example has 1 or 3. Lua treats a sequence
    (time, features) as a batch, a volume as one of images.
    """
    return (torch_call(name, (-form.rank,), {}, spec), form) if form.rank in (1, 3) else None


def _example_softmax(spec: ModuleSpec, form: Form) -> Module | None:
    name = "LogSoftmax" if spec.kwargs.get("log") else "Softmax"
    return (torch_call(name, (-1,), {}, spec), form) if form.rank == 1 else None


def _plain(spec: ModuleSpec, form: Form, name: str) -> Module | None:
    """Write classes of the runtime that differ from those of torch.nn only in accepting more inputs."""
    facts = traits(spec)
    examples = facts.plain_examples is not None and spec.args == facts.plain_examples
    if not spec.plain or (not examples and (form.rank or 0) < facts.plain_rank):
        return None
    return _torch(spec.plain, spec, form)


def form_of_copy(spec: ModuleSpec, form: Form) -> Form:
    """Return the output form of a layer whose own class is copied, if a class of torch.nn determines it."""
    name, *arguments = traits(spec).written or ("",)
    known = TORCH.get(arguments[0]) if name == "plain" else None
    if known is None or known.rank == SAME:
        return Form() if known is None else form
    return Form(known.rank)  # one example may gain a batch dimension


def copying(spec: ModuleSpec, write: Write) -> Write:
    """Return an expression whose result is contiguous and has memory of its own."""
    if traits(spec).written == ("transpose",):
        return lambda x: method(method(write(x), "clone"), "contiguous")
    return lambda x: method(write(x), "clone")


def _flattened(dims: int, spec: ModuleSpec, form: Form) -> Module:
    """Return a form of rank `dims`."""
    if dims == 1:
        return torch_call("Identity", (), {}, spec), form
    extents = form.whole()
    # Of another origin if the extent is unknown: it is not one of the input's.
    after = Form(1) if extents is None else Form(1, form.origin, (prod(extents),))
    return torch_call("Flatten", (-dims,), {}, spec), after


def _unflattened(spec: ModuleSpec, form: Form) -> Module:
    return torch_call("Unflatten", (-1, spec.args), {}, spec), Form(len(spec.args), form.origin, spec.args)


def _view(spec: ModuleSpec, form: Form) -> Module | None:
    """Write a view: exact if Lua knows the dimensions of one example; else a batch of one loses its batch there."""
    dims = spec.kwargs.get("n_input_dims")
    if not dims or form.rank != dims:
        return None
    extents = form.whole()
    fits = extents is not None and prod(extents) == prod(spec.args)
    if len(spec.args) == 1 and (spec.args == (-1,) or spec.plain or fits):
        return _flattened(dims, spec, form)
    if dims == 1 and len(spec.args) > 1 and fits:
        return _unflattened(spec, form)
    return None


def _reshape(spec: ModuleSpec, form: Form) -> Module | None:
    """Write a reshape: Lua treats the input as a batch if its size, its first extent, or an option says so."""
    batched, extents, size = spec.kwargs.get("batch_mode"), form.whole(), spec.args
    if batched and len(size) == 1 and (form.rank or 0) > 1:
        return torch_call("Flatten", (1,), {}, spec), Form(1)
    if batched is False or extents is None or prod(extents) != prod(size) or prod(size) < 2:
        return None
    if len(size) == 1 and (extents[0] != 1 or form.rank == 1) and not batched:
        return _flattened(len(extents), spec, form)
    return _unflattened(spec, form) if form.rank == 1 and len(size) > 1 else None


_MODULES: dict[str, Callable[..., Module | None]] = {
    "softmax": _softmax,
    "example_softmax": _example_softmax,
    "plain": _plain,
    "view": _view,
    "reshape": _reshape,
}


def as_expression(spec: ModuleSpec, form: Form) -> Expression | None:
    """Return an equal expression of one operand; `None` if there is none."""
    return by_writer(_EXPRESSIONS, spec, spec, form)


def _method(spec: ModuleSpec, form: Form, name: str) -> Expression:
    return lambda x: method(x, name), form


def _power(spec: ModuleSpec, form: Form) -> Expression:
    return lambda x: method(x, "pow", spec.args[0]), form


def _operator(spec: ModuleSpec, form: Form, symbol: str) -> Expression | None:
    constant = spec.args[0]
    if not isinstance(constant, (int, float)):
        return None
    return lambda x: BinaryOperation(x, symbol, Lit(constant)), form


def _from_end(dim: int, dims: int | None, added: int = 0) -> int:
    """Return a dimension of one example, from the end if its rank is known."""
    return dim - dims - added if dims is not None and dim >= 0 else dim


def _is_beyond(dim: int, dims: int | None) -> bool:
    """Return whether a dimension is not one of an example's."""
    return dims is not None and dim >= dims


def _unsqueeze(spec: ModuleSpec, form: Form) -> Expression | None:
    dim, dims = _arguments(spec, "dim", "n_input_dims")
    if _is_beyond(dim - 1, dims):
        return None
    after = Form(dims + 1) if dims is not None and dims == form.rank else Form()
    return lambda x: method(x, "unsqueeze", _from_end(dim, dims, 1)), after


def _transpose(spec: ModuleSpec, form: Form) -> Expression | None:
    dims = spec.kwargs.get("n_input_dims")
    if len(spec.args) > _CHAINED or any(_is_beyond(dim, dims) for pair in spec.args for dim in pair):
        return None

    def write(x: Node) -> Node:
        for first, second in spec.args:
            x = method(x, "transpose", _from_end(first, dims), _from_end(second, dims))
        return x

    return write, Form(dims) if dims is not None and dims == form.rank else Form()


_CHAINED = 8
"""Maximum number of chained methods in one expression."""


def _select(spec: ModuleSpec, form: Form) -> Expression:
    dim, index = _arguments(spec, "dim", "index")
    return lambda x: method(x, "select", dim, index), Form()


def _narrow(spec: ModuleSpec, form: Form) -> Expression | None:
    dim, start, length = _arguments(spec, "dim", "start", "length")
    if start < 0 or length < 0:
        return None
    # A value that has a dimension of this number is a batch.
    after = Form(1, form.origin, (length,)) if form.rank == 1 and dim in (1, -1) else Form(form.rank)
    return lambda x: method(x, "narrow", dim, start, length), after


def _reduced(spec: ModuleSpec, form: Form, name: str, attribute: str = "") -> Expression | None:
    dim, dims = _arguments(spec, "dim", "n_input_dims")
    # For a vector Lua returns one number in one dimension, PyTorch in none.
    if not form.rank or form.rank < 2 or dims not in (None, form.rank) or spec.kwargs.get("squeeze") is False:
        return None
    if _is_beyond(dim, dims):
        return None

    def write(x: Node) -> Node:
        reduced = method(x, "mean" if spec.kwargs.get("average") else name, _from_end(dim, dims))
        return Attr(reduced, attribute) if attribute else reduced

    return write, Form(form.rank - 1 if dims else None)


def _pool_in_time(spec: ModuleSpec, form: Form) -> Expression:
    size, stride = spec.args
    strides = {} if size == stride else {"stride": stride}
    return lambda x: Attr(apply("F.max_pool1d", Attr(x, "mT"), size, **strides), "mT"), Form(2)


def _cast(spec: ModuleSpec, form: Form) -> Expression:
    return lambda x: method(x, "to", dotted(f"torch.{spec.args[0]}")), form


def _flip(spec: ModuleSpec, form: Form) -> Expression:
    return lambda x: method(x, "flip", spec.args[0]), form


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


def around_module(spec: ModuleSpec, form: Form) -> Around | None:
    """Return a module of torch.nn with the operations before and after it; `None` if there is none."""
    return by_writer(_AROUND, spec, spec, form)


def _look_up(spec: ModuleSpec, form: Form) -> Around:
    kwargs = dict(spec.kwargs)
    base = kwargs.pop("index_base", 1)

    def look_up(module: Node, x: Node) -> Node:
        numbers = method(x, "long")
        return apply(module, BinaryOperation(numbers, "-", Lit(base)) if base else numbers)

    after = Form(origin=BatchOrigin(given=form.origin.given))
    return torch_call("Embedding", spec.args, kwargs, spec), look_up, after


def _conv_in_time(spec: ModuleSpec, form: Form) -> Around:
    call = torch_call("Conv1d", spec.args, dict(spec.kwargs), spec)
    taken, after = form.of_rank(2, 1, spec.args[0]), Form(2)
    if len(spec.args) > 2 and taken.extents:
        stride = spec.args[3] if len(spec.args) > 3 else spec.kwargs.get("stride", 1)
        sizes = [each[0] if isinstance(each, tuple) else each for each in (spec.args[2], stride)]
        after = Form(2, taken.origin, (slid(taken.extents[0], sizes[0], sizes[1], 0), spec.args[1]))
    return call, lambda module, x: Attr(apply(module, Attr(x, "mT")), "mT"), after


_AROUND: dict[str, Callable[..., Around]] = {"look_up": _look_up, "conv_in_time": _conv_in_time}
WRITERS = frozenset({*_MODULES, *_EXPRESSIONS, *_AROUND})
"""The names by which entries request a module of torch.nn or an expression."""


def function_of(call: Construction) -> Write | None:
    """Return a function call equal to a module of torch.nn; `None` if none is preferable."""
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
