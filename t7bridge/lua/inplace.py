"""Tensors changed in place: later uses see the change, and so do uses of tensors of which they are a part."""

from __future__ import annotations

from typing import Any

from .build import Builder, CannotError
from .operations.shape import concatenated, narrowed
from .program import CallRef, TracedCall, leaves


def changed(b: Builder, call: TracedCall, value: Any) -> None:
    """Make the change of a tensor by a call visible to its later uses.

    Args:
        b: the builder, which has built the call.
        call: the operation that changes its first argument.
        value: the new value of the argument.

    Raises:
        CannotError: the tensor is a part of another in an unsupported way.
    """
    calls = {other.name: other for other in b.program.calls}
    name = call.source
    chain = {name}
    b.env[name] = value
    while (part := calls.get(name)) is not None and part.is_view and part.source:
        number, view = 0, part
        if part.op == "operator.getitem":
            number, view = part.args["1"], calls[part.source]
            if not view.is_view or not view.source:
                break
        value = _written(b, view, number, b.env[view.source], value)
        name = view.source
        b.env[name] = value
        chain.add(name)
    _refresh(b, call, {name, *chain})


def _refresh(b: Builder, call: TracedCall, changed: set[str]) -> None:
    """Recompute the other views of changed tensors, if they are used later."""
    calls = b.program.calls
    position = next(place for place, other in enumerate(calls) if other is call)
    used = {item.name for later in calls[position:] for item in leaves(later.args) if isinstance(item, CallRef)}
    stale = set(changed)
    for other in calls[:position]:
        if other.is_view and other.name not in changed and other.source in stale:
            stale.add(other.name)
            if other.name in used or not other.op.startswith("operator."):
                b.call = other
                b.env[other.name] = b.value_of(other)
    b.call = call


def _written(b: Builder, view: TracedCall, number: int, base: Any, value: Any) -> Any:
    """Return a tensor in which a part has another value.

    Args:
        b: the builder.
        view: the operation that selects the part.
        number: of the part, if the operation returns several.
        base: the tensor.
        value: of the part.
    """
    kind, shape, args = view.op.split(".")[1], base.shape, view.args
    rank = len(shape)
    if kind in ("transpose", "permute", "t", "mT"):
        order = [dim % rank for dim in args.get("dims", range(rank))]
        if kind != "permute":
            one, other = args.get("dim0", -2), args.get("dim1", -1)
            order[one], order[other] = order[other], order[one]
        return b.permute(value, (order.index(dim) for dim in range(rank)))
    if kind == "expand" or (number and not isinstance(view.shape[0], tuple)):
        raise CannotError("a part of a tensor is changed in place")
    if kind not in ("select", "unbind", "slice", "narrow", "split", "split_with_sizes", "chunk"):
        return b.reshape(value, shape)
    dim = (args.get("dim") or 0) % rank
    if isinstance(shape[dim], str):
        if value.shape == shape:
            return value
        raise CannotError("a part of the batch is changed in place")
    start, count = _range(view, number, dim)
    start = max(start + shape[dim], 0) if start < 0 else min(start, shape[dim])
    parts = [narrowed(b, base, dim, 0, start)] if start else []
    parts.append(b.reshape(value, (*shape[:dim], count, *shape[dim + 1 :])))
    rest = shape[dim] - start - count
    return concatenated(b, parts + ([narrowed(b, base, dim, start + count, rest)] if rest else []), dim)


def _range(view: TracedCall, number: int, dim: int) -> tuple[int, int]:
    """Return the first index of a part, negative from the end, and its length."""
    if view.op in ("aten.select.int", "aten.unbind.int"):
        return view.args.get("index", number), 1
    if isinstance(view.shape[0], tuple):
        return sum(part[dim] for part in view.shape[:number]), view.shape[number][dim]
    if view.args.get("step", 1) != 1:
        raise CannotError("strided elements of a tensor are changed in place")
    return view.args.get("start") or 0, view.shape[dim]
