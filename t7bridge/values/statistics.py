"""Statistics of the elements of a tensor: extremes, mean, deviation, zeros, a histogram."""

from __future__ import annotations

from math import prod
from typing import Any

from attrs import evolve

from ..graph.tensor import Tensor
from ..lazy import np

MOST = 1 << 24
"""Elements read of one tensor; of a larger one the first."""


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
    values = np.asarray(tensor.numpy()).reshape(-1)[:MOST]
    if values.dtype.kind not in "fiub":
        return {}
    found: dict[str, Any] = {}
    with np.errstate(all="ignore"):  # signaling NaNs, and sums beyond the type
        values = values.astype(np.float64)
        finite = values[np.isfinite(values)]
        if finite.size:
            found |= {
                "min": float(finite.min()),
                "max": float(finite.max()),
                "mean": float(finite.mean()),
                "std": float(finite.std()),
            }
    missing = int(np.isnan(values).sum())
    found["zeros"] = int((values == 0).sum()) * times
    if missing:
        found["nan"] = missing * times
    if values.size - finite.size - missing:
        found["inf"] = int(values.size - finite.size - missing) * times
    if count > values.size:
        found["read"] = int(values.size) * times
    if bins and finite.size and 0 < found["max"] - found["min"] < np.inf:
        found["bins"] = (np.histogram(finite, bins)[0] * times).tolist()
    return found
