"""Bags of embeddings, all of the same size."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from ...data import define
from ..build import Absent, Builder, CannotError, Const, LearnedTensor, Wire
from ..layers import make, sequential
from ..table import operation
from .reduction import reduced

_MODES = {0: "nn.Sum", 1: "nn.Mean", 2: "nn.Max"}


@define(eq=False)
class _Steps:
    """The numbers 0, step, 2 step, … up to a number that depends on the batch."""

    step: int
    shape: Any = ()


@operation("arange.start_step", "none: offsets of bags of embeddings")
def steps(b: Builder, start: Any, end: Any, step: Any = 1, **kwargs: Any) -> Any:
    """Return offsets in steps up to the size of the batch, for `embedding_bag` only."""
    if start != 0 or not isinstance(step, int):
        raise CannotError("counts up to a number that depends on the inputs")
    return _Steps(step, b.shape)


@operation("embedding_bag.padding_idx embedding_bag.default", "nn.LookupTable, nn.Sum, nn.Mean or nn.Max")
def embedding_bag(
    b: Builder,
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: Any = None,
) -> Any:
    """Look up rows and reduce each bag."""
    if not isinstance(weight, LearnedTensor) or not isinstance(indices, Wire):
        raise CannotError("the rows or the indices are not a parameter and an input")
    if padding_idx is not None and padding_idx >= 0:
        raise CannotError("a row does not count in its bag")
    step = _size_of_bags(offsets, indices, include_last_offset)
    bags = b.shape[0][0]
    rows, width = weight.ref.size
    calls = (("scaleGradByFreq", ()),) if scale_grad_by_freq else ()
    table = make("nn.LookupTable", rows, width, calls=calls, weight=weight.ref)
    value = b.emit(
        sequential(make("nn.AddConstant", 1), table), b.reshape(indices, (bags, step)), shape=(bags, step, width)
    )
    if per_sample_weights is not None:
        weights = b.reshape(per_sample_weights, (bags, step, 1))
        value = b.emit(make("nn.CMulTable"), value, b.expand(b.wire(weights, value), value.shape, value))
    made = reduced(b, _MODES[mode], value, [1], False)
    return [made, *(Absent("bags keep no offsets, sizes or positions of maxima in nn") for _ in range(3))]


def _size_of_bags(offsets: Any, indices: Wire, last: bool) -> int:
    """Return the number of indices in each bag."""
    if isinstance(offsets, _Steps):
        return offsets.step
    found = offsets.array().reshape(-1) if isinstance(offsets, Const) else None
    count = indices.shape[0]
    if found is None or isinstance(count, str):
        raise CannotError("the sizes of the bags depend on the inputs")
    ends = [*map(int, found), *(() if last else (count,))]
    sizes = {end - start for start, end in pairwise(ends)}
    if len(sizes) != 1 or sizes == {0} or ends[0] != 0:
        raise CannotError("the bags have different sizes")
    return int(sizes.pop())
