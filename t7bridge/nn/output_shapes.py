"""Shapes of a model's inputs and outputs, without PyTorch: example inputs, and the rules that entries name.

The shape of an output follows from the arguments of the module's constructor. A value is the shape of a tensor, a list
of values, or `None` if unknown. An extent is a number, or in generated source the expression that it is computed from;
a rule raises `Mismatch` only where numbers contradict its arguments. Tests compare the rules with Lua's recorded
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias, Union

from attrs import field

from ..data import define
from ..graph.tensor import Tensor

Extent = Any
"""A number, or the expression it is computed from: equal expressions are equal numbers."""
Shape = tuple[Extent, ...]
Value = Any
"""A `Shape`, a list of values, or `None`."""
_LONGEST = 64
"""Maximum elements of a list."""
_DEEPEST = 12
"""Maximum nesting of expressions; the extents of deeper ones are unknown."""


class Mismatch(Exception):
    """An input that a layer does not accept."""


@define(frozen=True)
class Arguments:
    """Arguments of a module's constructor.

    Attributes:
        args: positional ones.
        kwargs: others.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def get(self, name: str, place: int, otherwise: Any = None) -> Any:
        """Return an argument, by name or position."""
        found = self.args[place] if 0 <= place < len(self.args) else self.kwargs.get(name)
        return otherwise if found is None else found

    def each(self, name: str, place: int, dims: int, otherwise: int) -> Shape:
        """Return an argument that is one number or one for each dimension."""
        found = self.get(name, place, otherwise)
        numbers = tuple(found) if isinstance(found, (tuple, list)) else (found,) * dims
        if len(numbers) != dims or not all(isinstance(each, int) for each in numbers):
            raise Mismatch
        return numbers

    def number(self, name: str, place: int, otherwise: int) -> int:
        """Return an argument that is an integer."""
        found: int = self.each(name, place, 1, otherwise)[0]
        return found


Rule = Callable[[Arguments, Value], Value]


def same(call: Arguments, x: Value) -> Value:
    """Return the shape of the input: of a tensor, or of a list of tensors."""
    return x if not isinstance(x, list) or all(isinstance(each, tuple) for each in x) else None


def unknown(call: Arguments, x: Value) -> Value:
    """Return nothing: the output does not follow from the shape of the input."""
    return None


def slid(extent: Extent, kernel: int, stride: int, padding: int, dilation: int = 1) -> Extent:
    """Return the extent that remains when a window slides over another, rounded down."""
    shift = 2 * padding - dilation * (kernel - 1)
    if isinstance(extent, int):
        return (extent + shift - 1) // stride + 1
    if stride == 1:
        return added(extent, shift)
    return _formula("slid", extent, shift, stride)


def added(extent: Extent, more: int) -> Extent:
    """Return the sum of an extent and a number."""
    if not more:
        return extent
    if isinstance(extent, int):
        return extent + more
    if isinstance(extent, tuple) and extent[0] == "added":
        return added(extent[2], more + extent[3])
    return _formula("added", extent, more)


def _formula(kind: str, extent: Extent, *numbers: int) -> Extent:
    depth = 1 + extent[1] if isinstance(extent, tuple) and isinstance(extent[0], str) else 1
    return (kind, depth, extent, *numbers) if depth <= _DEEPEST else object()


def _differs(extent: Extent, wanted: int) -> bool:
    return isinstance(extent, int) and extent != wanted


def _tensor(x: Value) -> Shape:
    if not isinstance(x, tuple):
        raise Mismatch
    return x


def convolution(dims: int) -> Rule:
    """torch.nn.Conv1d to Conv3d, by the dimensions of a kernel."""

    def rule(call: Arguments, x: Value) -> Value:
        shape = _tensor(x)
        kernel, stride = call.each("kernel_size", 2, dims, 1), call.each("stride", 3, dims, 1)
        padding, dilation = call.each("padding", 4, dims, 0), call.each("dilation", 5, dims, 1)
        if len(shape) not in (dims + 1, dims + 2) or _differs(shape[-dims - 1], call.number("in_channels", 0, 0)):
            raise Mismatch
        steps = zip(shape[-dims:], kernel, stride, padding, dilation)
        extents = tuple(slid(*each) for each in steps if each[2] > 0)
        return _extents((*shape[: -dims - 1], call.number("out_channels", 1, 0)), extents, dims)

    return rule


def transposed(dims: int) -> Rule:
    """torch.nn.ConvTranspose1d to 3d, by the dimensions of a kernel."""

    def rule(call: Arguments, x: Value) -> Value:
        if isinstance(x, list):  # with the requested size
            return None
        shape = _tensor(x)
        kernel, stride = call.each("kernel_size", 2, dims, 1), call.each("stride", 3, dims, 1)
        padding, extra = call.each("padding", 4, dims, 0), call.each("output_padding", 5, dims, 0)
        dilation = call.each("dilation", 8, dims, 1)
        if len(shape) not in (dims + 1, dims + 2) or _differs(shape[-dims - 1], call.number("in_channels", 0, 0)):
            raise Mismatch
        steps = zip(shape[-dims:], kernel, stride, padding, extra, dilation)
        extents = tuple(
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1 if isinstance(n, int) else object() for n, k, s, p, e, d in steps
        )
        return _extents((*shape[: -dims - 1], call.number("out_channels", 1, 0)), extents, dims)

    return rule


def _extents(front: Shape, extents: Shape, dims: int) -> Shape:
    if len(extents) != dims or any(isinstance(each, int) and each < 1 for each in extents):
        raise Mismatch
    return front + extents


def pooling(dims: int) -> Rule:
    """Poolings, by the dimensions of a kernel."""

    def rule(call: Arguments, x: Value) -> Value:
        shape = _tensor(x)
        kernel = call.each("kernel_size", 0, dims, 1)
        stride = tuple(call.each("stride", 1, dims, 0))
        stride = tuple(s or k for s, k in zip(stride, kernel))
        padding, dilation = call.each("padding", 2, dims, 0), call.each("dilation", 9, dims, 1)
        if len(shape) not in (dims + 1, dims + 2):
            raise Mismatch
        steps = zip(shape[-dims:], kernel, stride, padding, dilation)
        ceil = bool(call.get("ceil_mode", 9, False))
        return _extents(shape[:-dims], tuple(_pooled(*each, ceil) for each in steps), dims)

    return rule


def _pooled(n: Extent, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> Extent:
    if stride < 1:
        raise Mismatch
    if not isinstance(n, int):
        return object() if ceil else slid(n, kernel, stride, padding, dilation)
    reach = n + 2 * padding - dilation * (kernel - 1) - 1
    if reach < 0:
        raise Mismatch
    if not ceil:
        return reach // stride + 1
    count = -(-reach // stride) + 1
    return count - ((count - 1) * stride >= n + padding)


def adaptive(call: Arguments, x: Value) -> Value:
    """Adaptive poolings."""
    shape, wanted = _tensor(x), call.get("output_size", 0)
    sizes = tuple(wanted) if isinstance(wanted, (tuple, list)) else (wanted, wanted)
    if len(shape) < 3 or not all(size is None or isinstance(size, int) for size in sizes):
        raise Mismatch
    return shape[: -len(sizes)] + tuple(
        old if new is None else new for new, old in zip(sizes, shape[-len(sizes) :], strict=True)
    )


def linear(call: Arguments, x: Value) -> Value:
    """torch.nn.Linear."""
    shape = _tensor(x)
    if not shape or _differs(shape[-1], call.number("in_features", 0, 0)):
        raise Mismatch
    return (*shape[:-1], call.number("out_features", 1, 0))


def channels(call: Arguments, x: Value) -> Value:
    """Batch normalizations, which keep the shape of their input."""
    shape, count = _tensor(x), call.number("num_features", 0, 0)
    if all(_differs(each, count) for each in shape[:2]):
        raise Mismatch
    return shape


def embedding(call: Arguments, x: Value) -> Value:
    """Embeddings: one more dimension, the last."""
    return (*_tensor(x), call.number("embedding_dim", 1, 0))


def one_hot(call: Arguments, x: Value) -> Value:
    """nn.OneHot: one more dimension, the last."""
    return (*_tensor(x), call.number("size", 0, 0))


def view(call: Arguments, x: Value) -> Value:
    """nn.View."""
    shape, size, given = _tensor(x), _sizes(call), call.get("n_input_dims", -1)
    front = 0 if given is None else max(0, len(shape) - given)
    batch = prod(shape[:front])
    known = prod(each for each in size if each >= 0)
    total = prod(shape)
    if not known:
        raise Mismatch
    if -1 not in size:
        if total % known:
            raise Mismatch
        batch *= prod(shape[front:]) // known
    if batch == 1 and not front:
        return _filled(size, total)
    return _filled((batch, *size), total)


def reshape(call: Arguments, x: Value) -> Value:
    """nn.Reshape."""
    shape, size, batched = _tensor(x), _sizes(call), call.get("batch_mode", -1)
    if not shape:
        raise Mismatch
    if batched is None:
        batched = prod(shape) != prod(size) or shape[0] == 1
    return _filled((shape[0], *size) if batched else size, prod(shape))


def _sizes(call: Arguments) -> Shape:
    if not all(isinstance(each, int) for each in call.args):
        raise Mismatch
    return tuple(call.args)


def _filled(size: Shape, total: int) -> Shape:
    """Return a shape with its -1 resolved."""
    known = prod(each for each in size if each >= 0)
    if sum(each < 0 for each in size) > 1 or not known or total % known:
        raise Mismatch
    if min(size, default=0) < 0:
        return tuple(total // known if each < 0 else each for each in size)
    if known != total:
        raise Mismatch
    return size


def flatten(call: Arguments, x: Value) -> Value:
    """torch.nn.Flatten."""
    shape, start, end = _tensor(x), call.number("start_dim", 0, 1), call.number("end_dim", 1, -1)
    start, end = start % len(shape), end % len(shape)
    return (*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :])


def _dimension(call: Arguments, shape: Shape, place: int = 0) -> int:
    """Return a dimension counted in one example."""
    dim, example = call.number("dim", place, 0), call.get("n_input_dims", -1)
    if dim >= 0 and example is not None and len(shape) == example + 1:
        dim += 1
    if not -len(shape) <= dim < len(shape):
        raise Mismatch
    return dim % len(shape)


def join(call: Arguments, x: Value) -> Value:
    """nn.JoinTable."""
    if not isinstance(x, list) or not x:
        raise Mismatch
    if not all(isinstance(each, tuple) for each in x):
        return None
    return joined(x, _dimension(call, x[0]))


def joined(shapes: list[Shape], dim: int) -> Shape:
    """Return the shape of tensors concatenated along a dimension.

    Raises:
        Mismatch: they differ in another.
    """
    first = shapes[0]
    if not -len(first) <= dim < len(first):
        raise Mismatch
    dim %= len(first)
    if any(
        len(each) != len(first) or each[:dim] + each[dim + 1 :] != first[:dim] + first[dim + 1 :] for each in shapes
    ):
        raise Mismatch
    return (*first[:dim], sum(each[dim] for each in shapes), *first[dim + 1 :])


def split(call: Arguments, x: Value) -> Value:
    """nn.SplitTable: a list of equal elements."""
    shape = _tensor(x)
    dim = _dimension(call, shape)
    if shape[dim] > _LONGEST:
        return None
    return [shape[:dim] + shape[dim + 1 :]] * shape[dim]


def fold(call: Arguments, x: Value) -> Value:
    """Combine the elements of a list: unknown ones have the shape of the known."""
    if not isinstance(x, list) or not x:
        raise Mismatch
    known = [each for each in x if isinstance(each, tuple)]
    if any(prod(each) != prod(known[0]) for each in known):
        return None
    return known[0] if known else None


def reduced(call: Arguments, x: Value) -> Value:
    """Sums and extremes over one dimension."""
    shape = _tensor(x)
    dim = _dimension(call, shape)
    if call.kwargs.get("squeeze", True) and len(shape) > 1:
        return shape[:dim] + shape[dim + 1 :]
    return (*shape[:dim], 1, *shape[dim + 1 :])


def select(call: Arguments, x: Value) -> Value:
    """nn.Select."""
    shape, dim = _tensor(x), call.number("dim", 0, 0)
    if not -len(shape) <= dim < len(shape):
        raise Mismatch
    dim %= len(shape)
    return shape[:dim] + shape[dim + 1 :]


def narrow(call: Arguments, x: Value) -> Value:
    """nn.Narrow."""
    shape, dim = _tensor(x), call.number("dim", 0, 0)
    start, length = call.number("start", 1, 0), call.number("length", 2, 1)
    if start < 0 or length < 0 or not -len(shape) <= dim < len(shape):
        return None
    dim %= len(shape)
    if start + length > shape[dim]:
        raise Mismatch
    return (*shape[:dim], length, *shape[dim + 1 :])


def squeeze(call: Arguments, x: Value) -> Value:
    """nn.Squeeze."""
    shape = _tensor(x)
    if call.get("dim", 0) is None:
        example = call.get("n_input_dims", 1)
        batched = example is not None and len(shape) == example + 1 and shape[:1] == (1,)
        return ((1,) if batched else ()) + tuple(each for each in shape if each != 1) or (1,)
    dim = _dimension(call, shape)
    return (shape[:dim] + shape[dim + 1 :] if shape[dim] == 1 else shape) or (1,)


def unsqueeze(call: Arguments, x: Value) -> Value:
    """nn.Unsqueeze."""
    shape, example = _tensor(x), call.get("n_input_dims", 1)
    dim = call.number("dim", 0, 0) + (0 if example is None else len(shape) - example)
    if not 0 <= dim <= len(shape):
        raise Mismatch
    return (*shape[:dim], 1, *shape[dim:])


def transpose(call: Arguments, x: Value) -> Value:
    """nn.Transpose: pairs of dimensions are exchanged."""
    shape, example = list(_tensor(x)), call.kwargs.get("n_input_dims")
    offset = 0 if example is None else len(shape) - example
    for first, second in call.args:
        a, b = first + offset, second + offset
        if not (-len(shape) <= a < len(shape) and -len(shape) <= b < len(shape)):
            raise Mismatch
        shape[a], shape[b] = shape[b], shape[a]
    return tuple(shape)


def replicate(call: Arguments, x: Value) -> Value:
    """nn.Replicate."""
    shape, example = _tensor(x), call.get("n_input_dims", 2)
    dim = call.number("dim", 1, 0) + (example is not None and len(shape) > example)
    return (*shape[:dim], call.number("times", 0, 1), *shape[dim:])


def padding(call: Arguments, x: Value) -> Value:
    """nn.Padding: one dimension grows."""
    shape, example = _tensor(x), call.get("n_input_dims", 2)
    dim = call.number("dim", 0, 0) + (example is not None and len(shape) != example)
    if not -len(shape) <= dim < len(shape):
        raise Mismatch
    dim %= len(shape)
    return (*shape[:dim], shape[dim] + abs(call.number("pad", 1, 0)), *shape[dim + 1 :])


def borders(dims: int) -> Rule:
    """Paddings of images, by the dimensions of an image."""

    def rule(call: Arguments, x: Value) -> Value:
        shape, widths = _tensor(x), call.each("padding", 0, 2 * dims, 0)
        if len(shape) < dims + 1:
            raise Mismatch
        grown = [added(n, widths[2 * i] + widths[2 * i + 1]) for i, n in enumerate(reversed(shape[-dims:]))]
        return _extents(shape[:-dims], tuple(reversed(grown)), dims)

    return rule


def upsample(call: Arguments, x: Value) -> Value:
    """Upsampling by a factor."""
    shape, scale = _tensor(x), call.kwargs.get("scale_factor", call.args[0] if call.args else None)
    size = call.kwargs.get("size")
    if len(shape) < 3 or size is not None or not isinstance(scale, (int, float)) or isinstance(scale, bool):
        return None
    return (*shape[:2], *(int(each * scale) for each in shape[2:])) if len(shape) == 4 else None


def shuffle(call: Arguments, x: Value) -> Value:
    """torch.nn.PixelShuffle."""
    shape, r = _tensor(x), call.number("upscale_factor", 0, 1)
    if len(shape) < 3 or r < 1 or shape[-3] % (r * r):
        raise Mismatch
    return (*shape[:-3], shape[-3] // (r * r), shape[-2] * r, shape[-1] * r)


def temporal(call: Arguments, x: Value) -> Value:
    """nn.TemporalConvolution: (…, time, features)."""
    shape = _tensor(x)
    if len(shape) not in (2, 3):
        raise Mismatch
    found = convolution(1)(call, (shape[-1], shape[-2]))
    return (*shape[:-2], found[1], found[0])


def temporal_pool(call: Arguments, x: Value) -> Value:
    """nn.TemporalMaxPooling: (…, time, features)."""
    shape = _tensor(x)
    if len(shape) not in (2, 3):
        raise Mismatch
    found = pooling(1)(call, (shape[-1], shape[-2]))
    return (*shape[:-2], found[1], found[0])


def pairs(call: Arguments, x: Value) -> Value:
    """Return one number for each example of two lists of vectors."""
    if not isinstance(x, list) or len(x) != 2 or not all(isinstance(each, tuple) for each in x):
        return None
    if len(x[0]) != len(x[1]) or not x[0] or len(x[0]) > 2:
        raise Mismatch
    return x[0][:1] if len(x[0]) == 2 else (1,)


def product(call: Arguments, x: Value) -> Value:
    """Return the product of matrices, or of batches of them."""
    if not isinstance(x, list) or len(x) != 2 or not all(isinstance(each, tuple) for each in x):
        return None
    first, second = x
    if len(first) not in (2, 3) or len(second) != len(first):
        raise Mismatch
    a = first[::-1][:2] if call.get("transpose_first", 0, False) else first[-2:]
    b = second[::-1][:2] if call.get("transpose_second", 1, False) else second[-2:]
    if a[1] != b[0]:
        raise Mismatch
    return (*first[:-2], a[0], b[1])


@define(frozen=True, eq=False)
class Example:
    """One example input.

    Attributes:
        name: its name in the exported file.
        shape: its sizes, the batch first.
        dtype: `float32` and the like; empty for that of the model's parameters.
        bounds: smallest and largest of its whole numbers; by default normal numbers, or indices that the model has.
        value: the tensor, if a file holds it; otherwise random numbers are used.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = ""
    bounds: tuple[int, int] | None = None
    value: Tensor | None = field(default=None, repr=False)


Examples: TypeAlias = Union[Example, "list[Examples]"]
"""The input of a model: one, or a list for a Lua table, with nested lists for tables in it."""
