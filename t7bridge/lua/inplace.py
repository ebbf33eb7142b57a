"""Tensors changed in place: later uses see the change, and so do uses of tensors of which they are a part."""

from __future__ import annotations

from typing import Any

from .build import Builder, CannotError, mentions
from .operations.shape import concatenated, narrowed
from .trace import CallRef, TracedCall

PARTS = frozenset(f"aten.{name}" for name in ("select.int", "slice.Tensor", "narrow.default"))
RESHAPES = frozenset(
    f"aten.{name}"
    for name in (
        *("view.default", "squeeze.dim", "squeeze.dims", "squeeze.default", "unsqueeze.default", "flatten.using_ints"),
        *("unflatten.int", "view_as.default", "reshape.default"),
    )
)
PERMUTATIONS = frozenset(f"aten.{name}" for name in ("transpose.int", "permute.default", "t.default", "mT.default"))
SAME = frozenset(
    f"aten.{name}" for name in ("alias.default", "detach.default", "dropout.default", "feature_dropout.default")
)
SPLITS = frozenset(
    f"aten.{name}"
    for name in ("split.Tensor", "split_with_sizes.default", "split.sizes", "chunk.default", "unbind.int")
)
VIEWS = PARTS | RESHAPES | PERMUTATIONS | SAME | {"operator.getitem", "aten.expand.default"}
"""Operations whose result shares the memory of their first argument."""


def changed(b: Builder, call: TracedCall, value: Any) -> None:
    """Make the change of a tensor by a call visible to its later uses.

    Args:
        b: the builder, which has built the call.
        call: the operation that changes its first argument.
        value: the new value of the argument.

    Raises:
        CannotError: the tensor is a part of another in an unsupported way.
    """
    if not isinstance(call.args[0], CallRef):
        return
    calls = {other.name: other for other in b.program.calls}
    name = call.args[0].name
    chain = {name}
    b.env[name] = value
    while (made_by := calls.get(name)) is not None and made_by.op in VIEWS:
        above = made_by.args[0]
        if not isinstance(above, CallRef):
            break
        source = calls.get(above.name)
        place = made_by
        if made_by.op == "operator.getitem":
            if source is None or source.op not in SPLITS or not isinstance(source.args[0], CallRef):
                break
            place, above = source, source.args[0]
        value = _written(b, place, made_by, b.env[above.name], value)
        name = above.name
        b.env[name] = value
        chain.add(name)
    _refresh(b, call, name, chain)


def _refresh(b: Builder, call: TracedCall, root: str, chain: set[str]) -> None:
    """Recompute the other views of a changed tensor, if they are used later."""
    calls = b.program.calls
    position = next(place for place, other in enumerate(calls) if other is call)
    later = calls[position + 1 :]
    stale = {root, *chain}
    for other in calls[:position]:
        if other.name in chain or other.op not in VIEWS | SPLITS or not other.args:
            continue
        if not isinstance(other.args[0], CallRef) or other.args[0].name not in stale:
            continue
        stale.add(other.name)
        if any(mentions(user, other.name) for user in later) or other.op in SPLITS | RESHAPES | PERMUTATIONS:
            b.call = other
            b.env[other.name] = b.value_of(other)
    b.call = call


def _written(b: Builder, place: TracedCall, made_by: TracedCall, base: Any, value: Any) -> Any:
    """Return a tensor in which a part has another value.

    Args:
        b: the builder.
        place: the operation that selects the part; for a list of parts that of the list.
        made_by: the operation that returned the part.
        base: the tensor.
        value: of the part.
    """
    op, shape = place.op, base.shape
    if op in SAME:
        return value
    if op in RESHAPES:
        return b.reshape(value, shape)
    if op in PERMUTATIONS:
        order = _order(place, len(shape))
        return b.permute(value, tuple(order.index(dim) for dim in range(len(order))))
    if op not in PARTS | SPLITS:
        raise CannotError("a part of a tensor is changed in place")
    dim, start, count = _range(place, made_by, shape)
    if isinstance(shape[dim], str):
        if value.shape == shape:
            return value
        raise CannotError("a part of the batch is changed in place")
    if len(value.shape) < len(shape):
        value = b.reshape(value, (*shape[:dim], 1, *shape[dim + 1 :]))
    parts = [narrowed(b, base, dim, 0, start)] if start else []
    parts.append(value)
    rest = shape[dim] - start - count
    parts += [narrowed(b, base, dim, start + count, rest)] if rest else []
    return concatenated(b, parts, dim)


def _order(call: TracedCall, rank: int) -> list[int]:
    if call.op == "aten.permute.default":
        return [dim % rank for dim in call.args[1]]
    order = list(range(rank))
    one, other = call.args[1:3] if call.op == "aten.transpose.int" else (-2, -1)
    order[one], order[other] = order[other], order[one]
    return order


def _range(place: TracedCall, made_by: TracedCall, shape: Any) -> tuple[int, int, int]:
    """Return the dimension of a part, 0-based, its first index there and its length."""
    args: tuple[Any, ...] = (*place.args, *(None,) * 5)
    if place.op in SPLITS:
        number = made_by.args[1]
        dim = (place.kwargs.get("dim") or args[1 if place.op == "aten.unbind.int" else 2] or 0) % len(shape)
        if place.op == "aten.unbind.int":
            return dim, number, 1
        before = [part[dim] for part in place.shape[: number + 1]]
        return dim, sum(before[:-1]), before[-1]
    dim = (args[1] or 0) % len(shape)
    extent = shape[dim]
    if isinstance(extent, str):
        return dim, 0, 0
    if place.op == "aten.select.int":
        return dim, args[2] % extent, 1
    if place.op == "aten.narrow.default":
        return dim, args[2] % extent, args[3]
    if (args[4] or 1) != 1:
        raise CannotError("strided elements of a tensor are changed in place")
    start = args[2] or 0
    start = max(start + extent, 0) if start < 0 else min(start, extent)
    return dim, start, place.shape[dim]
