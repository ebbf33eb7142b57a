"""Interpolation: nn's upsampling where it is equivalent, otherwise exact products with constant matrices."""

from __future__ import annotations

from typing import Any

from ..build import Builder, CannotError, Const, Wire
from ..layers import make
from ..table import operation


@operation(
    "upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_bilinear2d.vec "
    "upsample_linear1d.vec upsample_bicubic2d.vec _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec "
    "_upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec upsample_trilinear3d.vec",
    "nn.SpatialUpSamplingNearest, nn.SpatialUpSamplingBilinear, or nn.MM with nn.Constant for each dimension",
)
def upsample(b: Builder, input: Any, output_size: Any = None, *rest: Any) -> Any:
    """Interpolate along the last dimensions."""
    value, shape = b.wire(input), b.shape
    kind = b.call.op.split(".")[1]
    rank = len(shape) - 2
    old, new = value.shape[2:], shape[2:]
    if any(isinstance(extent, str) for extent in (*old, *new)):
        raise CannotError("an extent of the image depends on the inputs")
    if kind == "upsample_nearest2d" and old[0] and new[0] % old[0] == 0 and new[1] % old[1] == 0:
        factor = new[0] // old[0]
        if factor == new[1] // old[1]:
            return b.emit(make("nn.SpatialUpSamplingNearest", factor), value, shape=shape)
    if kind == "upsample_bilinear2d" and rest and rest[0] is True:
        sizes = (("oheight", new[0]), ("owidth", new[1]))
        return b.emit(make("nn.SpatialUpSamplingBilinear", sizes), value, shape=shape)
    for place in reversed(range(rank)):
        if old[place] != new[place] or output_size is None:
            value = _along(b, value, place, output_size, rest, new)
    return value


def _along(b: Builder, value: Wire, place: int, output_size: Any, rest: Any, new: Any) -> Any:
    """Interpolate along one dimension by a matrix, computed by the operation itself from unit vectors."""
    import numpy as np

    rank = len(new)
    extent = value.shape[2 + place]
    # Two of each in the other dimensions: PyTorch 2.13's kernels with antialias are wrong for images one element wide.
    unit = np.zeros((1, extent, *(extent if axis == place else 2 for axis in range(rank))), "f4")
    spots = np.arange(extent)
    where = (0, spots, *(spots if axis == place else slice(None) for axis in range(rank)))
    unit[where] = 1
    size = [new[axis] if axis == place else 2 for axis in range(rank)]
    arguments: list[Any] = list(rest)
    if output_size is None:
        factors = arguments[-1]
        arguments[-1] = [factor if axis == place else 1.0 for axis, factor in enumerate(factors)]
        made = b.compute(b.tensor(unit), None, *arguments)
    else:
        arguments = [item if not isinstance(item, (list, tuple)) else None for item in arguments]
        made = b.compute(b.tensor(unit), size, *arguments)
    if not isinstance(made, Const):
        raise CannotError("the interpolation cannot be computed")
    column = (0, slice(None), *(slice(None) if axis == place else 0 for axis in range(rank)))
    matrix = made.array()[column]
    if extent == new[place] and np.array_equal(matrix, np.eye(extent, dtype="f4")):
        return value
    total = len(value.shape)
    order = list(range(total))
    order[2 + place], order[-1] = order[-1], order[2 + place]
    moved = b.permute(value, tuple(order))
    lead = moved.shape[:-1]
    from .linear import flattened

    flat = b.reshape(moved, (flattened(lead), extent))
    constant = b.wire(Const(b.tensor(matrix), matrix.shape))
    product = b.emit(make("nn.MM"), flat, constant, shape=(flat.shape[0], new[place]))
    return b.permute(b.reshape(product, (*lead, new[place])), tuple(order))
