"""Statistics of the elements of a tensor: extremes, mean, deviation, zeros, a histogram."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from attrs import evolve

from ..graph.dtypes import numpy_dtype
from ..graph.tensor import Tensor, flat_pieces
from ..lazy import np

MOST = 1 << 24
"""Elements read of one tensor; of a larger one the first."""
_PIECE = 1 << 20
"""Elements read at once."""


def statistics_of(tensor: Tensor, *, bins: int = 0) -> dict[str, Any]:
    """Read a tensor and summarize its elements.

    Args:
        tensor: with at least one element.
        bins: number of bins of the histogram; 0 for none.

    Returns:
        `min`, `max`, `mean`, `std` of the finite elements, counts `nan`, `inf` and `zeros`, `read` if not all elements
        were read, and `bins`, a list of counts between `min` and `max`. Empty for types without order.
    """
    # Elements that a stride of 0 repeats are read once and counted as often as they occur.
    size = tuple(1 if step == 0 else extent for extent, step in zip(tensor.size, tensor.stride))
    times = prod(tensor.size) // prod(size)
    tensor = evolve(tensor, size=size)
    count = prod(size)
    if tensor.storage is None or (count > MOST and count > tensor.storage.count):
        return {}
    if numpy_dtype(tensor.element).kind not in "fiub":
        return {}
    most = min(count, MOST)
    with np.errstate(all="ignore"):  # signaling NaNs, and sums beyond the type
        number, mean, squares, least, greatest, zeros, missing = _moments(_pieces(tensor, most))
        found: dict[str, Any] = {}
        if number:
            std = float(np.sqrt(squares / number))
            found |= {"min": least, "max": greatest, "mean": mean, "std": std}
        found["zeros"] = zeros * times
        if missing:
            found["nan"] = missing * times
        if most - number - missing:
            found["inf"] = (most - number - missing) * times
        if count > most:
            found["read"] = most * times
        if bins and number and 0 < greatest - least < np.inf:
            limits = (least, greatest)
            counts = [np.histogram(each[np.isfinite(each)], bins, limits)[0] for each in _pieces(tensor, most)]
            found["bins"] = (np.sum(counts, axis=0) * times).tolist()
    return found


def _pieces(tensor: Tensor, most: int) -> Iterator[Any]:
    """Yield the first `most` elements as doubles, some at once."""
    read = flat_pieces(tensor, _PIECE)
    if read is None:
        values = np.asarray(tensor.numpy()).reshape(-1)[:most]
        yield from (values[start : start + _PIECE].astype(np.float64) for start in range(0, most, _PIECE))
    else:
        yield from (read(start)[: most - start].astype(np.float64) for start in range(0, most, _PIECE))


def _moments(pieces: Iterator[Any]) -> tuple[int, float, float, float, float, int, int]:
    """Return number, mean, sum of squared distances from it, least and greatest of finite elements; zeros; NaNs."""
    number, mean, squares = 0, 0.0, 0.0
    least, greatest = np.inf, -np.inf
    zeros = missing = 0
    for values in pieces:
        finite = values[np.isfinite(values)]
        missing += int(np.isnan(values).sum())
        zeros += int((values == 0).sum())
        if not finite.size:
            continue
        least, greatest = min(least, float(finite.min())), max(greatest, float(finite.max()))
        here, spread, total = float(finite.mean()), float(finite.var()) * finite.size, number + finite.size
        if number:
            squares += spread + (here - mean) ** 2 * number * finite.size / total
            mean += (here - mean) * finite.size / total
        else:
            squares, mean = spread, here
        number = total
    return number, mean, squares, least, greatest, zeros, missing
