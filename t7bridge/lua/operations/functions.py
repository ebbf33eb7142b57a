"""Functions that nn lacks, as layers of `layers.lua`, where `--allow layers` permits it; see `lua/classes.lua`.

Indices are numbers of the model's own type, and count from 0.
"""

from __future__ import annotations

from typing import Any

from ..build import Builder, CannotError, Place, Wire, operation, with_extents
from ..layers import make
from .elementwise import flattened

EACH = "sin cos tan asin acos atan sinh cosh asinh atanh floor ceil trunc round isnan isinf"
"""Functions of each element."""


@operation(EACH, "pt.Function", package="layers")
def each(b: Builder, self: Wire, /) -> Any:
    """Apply a function to each element; the slope of those that round is 0."""
    return self >> make("pt.Function", b.kind)


@operation("atan2 pow.Tensor_Tensor fmod.Tensor remainder.Tensor floor_divide", "pt.Binary", package="layers")
@operation("fmod.Scalar remainder.Scalar", "pt.Binary", package="layers")
def binary(b: Builder, self: Any, other: Any, /) -> Any:
    """Apply a function to each pair of elements."""
    first, second = (b.constant(float(each), ()) if isinstance(each, (int, float)) else each for each in (self, other))
    return b.joined("pt.Binary", first, second, b.kind)


@operation("cumprod", "pt.CumProd", package="layers")
def cumprod(b: Builder, self: Wire, dim: Place) -> Any:
    """Return cumulative products."""
    return self >> make("pt.CumProd", dim + 1)


def _sorted(b: Builder, value: Wire, dim: int, descending: bool) -> list[Wire]:
    """Return the sorted elements of a dimension, and their indices."""
    made = value >> make("pt.Sort", dim + 1, descending)
    return [made >> make("nn.SelectTable", place) for place in (1, 2)]


@operation("sort sort.stable", "pt.Sort", package="layers")
def sort(b: Builder, self: Wire, dim: Place, descending: bool) -> Any:
    """Sort a dimension; return elements and indices."""
    return _sorted(b, self, dim, descending)


@operation("argsort argsort.stable", "pt.Sort", package="layers")
def argsort(b: Builder, self: Wire, dim: Place, descending: bool) -> Any:
    """Return the indices that sort a dimension."""
    return _sorted(b, self, dim, descending)[1]


@operation("topk", "pt.Sort, nn.Narrow", package="layers")
def topk(b: Builder, self: Wire, k: int, dim: Place, largest: bool) -> Any:
    """Return the largest or smallest elements, in order, and their indices."""
    return [b.narrow(each, dim, 0, k) for each in _sorted(b, self, dim, largest)]


@operation("median.dim", "pt.Sort, nn.Select", package="layers")
def median(b: Builder, self: Wire, dim: Place, keepdim: bool) -> Any:
    """Return the middle elements, the lower of two, and their indices."""
    count = self.shape[dim]
    if isinstance(count, str):
        raise CannotError("the number of elements depends on the inputs")
    shape = with_extents(self.shape, dim, *((1,) if keepdim else ()))
    return [b.reshape(b.narrow(each, dim, (count - 1) // 2, 1), shape) for each in _sorted(b, self, dim, False)]


@operation("argmax argmin", "pt.ArgMax", package="layers")
def argmax(b: Builder, self: Wire, dim: int | None, keepdim: bool) -> Any:
    """Return the indices of the largest or smallest elements of a dimension, or of all."""
    if dim is None:
        if any(isinstance(extent, str) for extent in self.shape):
            raise CannotError("searches the whole batch")
        self, dim = b.reshape(self, (1, -1)), 1
    dim %= len(self.shape)
    layer = make("pt.ArgMax", dim + 1, b.kind == "argmin")
    return b.reshape(b.emit(layer, self, shape=with_extents(self.shape, dim) or (1,)), b.shape)


@operation("gather", "pt.Gather", package="layers")
def gather(b: Builder, self: Any, dim: Place, index: Any) -> Any:
    """Return the elements at indices of a dimension."""
    index = b.wire(index, self if isinstance(self, Wire) else None)
    self = b.wire(self, index)
    for place, extent in enumerate(index.shape):
        if place != dim and extent != self.shape[place]:
            self = b.narrow(self, place, 0, extent)
    return b.emit(make("pt.Gather", dim + 1), self, index, shape=index.shape)


@operation("scatter.src scatter.value scatter_add", "pt.Scatter", package="layers")
def scatter(b: Builder, self: Any, dim: Place, index: Any, src: Any = None, value: Any = None) -> Any:
    """Replace the elements at indices of a dimension, or add to them."""
    index = b.wire(index, self if isinstance(self, Wire) else None)
    self = b.wire(self, index)
    src = b.wire(b.constant(float(value), index.shape) if src is None else src, index)
    for place, extent in enumerate(index.shape):
        if place != dim and extent != self.shape[place]:
            raise CannotError("the indices do not cover the other dimensions")
        src = b.narrow(src, place, 0, extent)
    return b.emit(make("pt.Scatter", dim + 1, b.kind == "scatter_add"), self, index, src)


@operation("index_add", "pt.Scatter", package="layers")
def index_add(b: Builder, self: Any, dim: Place, index: Any, source: Any, alpha: float) -> Any:
    """Add to slices at indices of a dimension."""
    shape = source.shape
    source = b.wire(source, self if isinstance(self, Wire) else None) * alpha
    spread = b.reshape(index, (*(1,) * dim, *index.shape, *(1,) * (len(shape) - dim - 1)))
    return b.emit(
        make("pt.Scatter", dim + 1, True), b.wire(self, source), b.expand(b.wire(spread, source), shape, source), source
    )


def at_indices(b: Builder, value: Any, place: int, index: Wire) -> Any:
    """Return slices of a value at indices of a dimension that are computed."""
    count = flattened(index.shape)
    shape = with_extents(value.shape, place, count)
    spread = b.reshape(index, (*(1,) * place, count, *(1,) * (len(value.shape) - place - 1)))
    like = value if isinstance(value, Wire) else None
    made = b.emit(make("pt.Gather", place + 1), b.wire(value, index), b.expand(spread, shape, like), shape=shape)
    return b.reshape(made, with_extents(value.shape, place, *index.shape))


@operation("col2im", "pt.Fold", package="layers")
def col2im(b: Builder, self: Wire, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Add overlapping blocks to an image."""
    if len(self.shape) != 3:
        raise CannotError("the input is not a batch")
    return b.emit(make("pt.Fold", *output_size, *kernel_size, *stride, *padding, *dilation), self, shape=b.shape)


@operation("grid_sampler grid_sampler_2d", "pt.GridSample", package="layers")
def grid_sampler(
    b: Builder, input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """Return an image at the places of a grid."""
    if len(input.shape) != 4 or interpolation_mode > 1 or padding_mode > 1:
        raise CannotError("samples volumes, or by cubic interpolation or reflection")
    mode, padding = ("bilinear", "nearest")[interpolation_mode], ("zeros", "border")[padding_mode]
    image = b.wire(input, grid if isinstance(grid, Wire) else None)
    return b.emit(make("pt.GridSample", mode, padding, align_corners), image, b.wire(grid, image), shape=b.shape)
