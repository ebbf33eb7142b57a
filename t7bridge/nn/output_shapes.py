"""Shapes of a model's inputs and outputs, without PyTorch: example inputs, and the rules that entries name.

The shape of an output follows from the arguments of the module's constructor. A value is the shape of a tensor, a list
of values, or `None` if unknown. An extent is a number, or in generated source the expression that it is computed from;
a rule raises `Mismatch` only where numbers contradict its arguments. Tests compare the rules with Lua's recorded
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def batch_of_one(rank: int) -> Rule:
    """Return the rule of a normalization of channels that makes one example a batch of one.

    Args:
        rank: dimensions of a batch.
    """

    def rule(call: Arguments, x: Value) -> Value:
        shape = _tensor(x)
        batch = shape if len(shape) >= rank else (1, *shape)
        if len(batch) < rank or _differs(batch[1], call.number("num_features", 0, 0)):
            raise Mismatch
        return batch

    return rule


def slid(extent: Extent, kernel: int, stride: int, padding: int, dilation: int = 1) -> Extent:
    """Return the extent that remains when a window slides over another, rounded down."""
    if stride < 1:
        raise Mismatch
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


def _windows(dims: int, options: str, extent: Callable[..., Extent], channels: bool = False) -> Rule:
    """Return the rule of a layer whose windows slide over the last dimensions of an example or a batch.

    Args:
        dims: dimensions of a window.
        options: arguments with one number for each dimension: name, position and default, separated by commas.
        extent: returns the extent of an output from that of the input and these arguments.
        channels: whether it maps `in_channels` to `out_channels`.
    """
    arguments = [option.split(",") for option in options.split()]

    def rule(call: Arguments, x: Value) -> Value:
        shape = _tensor(x)
        if len(shape) not in (dims + 1, dims + 2):
            raise Mismatch
        *front, planes = shape[:-dims]
        if channels:
            if _differs(planes, call.number("in_channels", 0, 0)):
                raise Mismatch
            planes = call.number("out_channels", 1, 0)
        found = [call.each(name, int(place), dims, int(default)) for name, place, default in arguments]
        return _extents((*front, planes), [extent(*each) for each in zip(shape[-dims:], *found)])

    return rule


def _extents(front: Shape, extents: Sequence[Extent]) -> Shape:
    if any(isinstance(each, int) and each < 1 for each in extents):
        raise Mismatch
    return (*front, *extents)


def convolution(dims: int) -> Rule:
    """torch.nn.Conv1d to Conv3d, by the dimensions of a kernel."""
    return _windows(dims, "kernel_size,2,1 stride,3,1 padding,4,0 dilation,5,1", slid, channels=True)


def transposed(dims: int) -> Rule:
    """torch.nn.ConvTranspose1d to 3d, by the dimensions of a kernel; unknown for a list with the requested size."""
    options = "kernel_size,2,1 stride,3,1 padding,4,0 output_padding,5,0 dilation,8,1"
    rule = _windows(dims, options, _enlarged, channels=True)
    return lambda call, x: None if isinstance(x, list) else rule(call, x)


def _enlarged(n: Extent, kernel: int, stride: int, padding: int, extra: int, dilation: int) -> Extent:
    return (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1 if isinstance(n, int) else object()


def pooling(dims: int) -> Rule:
    """Poolings, by the dimensions of a kernel."""
    return _windows(dims, "kernel_size,0,1 stride,1,0 padding,2,0 dilation,9,1 ceil_mode,9,0", _pooled)


def _pooled(n: Extent, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> Extent:
    stride = stride or kernel
    if not isinstance(n, int) and ceil:
        return object()
    if not isinstance(n, int) or not ceil:
        return slid(n, kernel, stride, padding, dilation)
    reach = n + 2 * padding - dilation * (kernel - 1) - 1
    if reach < 0 or stride < 1:
        raise Mismatch
    count = -(-reach // stride) + 1
    return count - ((count - 1) * stride >= n + padding)


def _in_time(rule: Rule) -> Rule:
    """Return the rule of a layer over (…, time, features) from that over (features, time)."""

    def turned(call: Arguments, x: Value) -> Value:
        shape = _tensor(x)
        if len(shape) not in (2, 3):
            raise Mismatch
        features, time = rule(call, (shape[-1], shape[-2]))
        return (*shape[:-2], time, features)

    return turned


temporal = _in_time(convolution(1))
"""nn.TemporalConvolution."""
temporal_pool = _in_time(pooling(1))
"""nn.TemporalMaxPooling."""


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
    shape, size, dims = _tensor(x), _sizes(call), call.get("n_input_dims", -1)
    front = 0 if dims is None else max(0, len(shape) - dims)
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


def _dimension(call: Arguments, shape: Shape) -> int:
    """Return a dimension counted in one example."""
    dim, example = call.number("dim", 0, 0), call.get("n_input_dims", -1)
    return _within(dim + (dim >= 0 and example is not None and len(shape) == example + 1), shape)


def _within(dim: int, shape: Shape) -> int:
    if not -len(shape) <= dim < len(shape):
        raise Mismatch
    return dim % len(shape)


def _replaced(shape: Shape, dim: int, *extents: Extent) -> Shape:
    """Return a shape with other extents in the place of one."""
    return (*shape[:dim], *extents, *shape[dim + 1 :])


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
    dim = _within(dim, shapes[0])
    if len({(len(each), _replaced(each, dim)) for each in shapes}) > 1:
        raise Mismatch
    return _replaced(shapes[0], dim, sum(each[dim] for each in shapes))


def split(call: Arguments, x: Value) -> Value:
    """nn.SplitTable: a list of equal elements."""
    shape = _tensor(x)
    dim = _dimension(call, shape)
    return None if shape[dim] > _LONGEST else [_replaced(shape, dim)] * shape[dim]


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
    squeezed = call.kwargs.get("squeeze", True) and len(shape) > 1
    return _replaced(shape, _dimension(call, shape), *() if squeezed else (1,))


def select(call: Arguments, x: Value) -> Value:
    """nn.Select."""
    return _replaced(_tensor(x), _dimension(call, x))


def narrow(call: Arguments, x: Value) -> Value:
    """nn.Narrow."""
    shape, start, length = _tensor(x), call.number("start", 1, 0), call.number("length", 2, 1)
    dim = _dimension(call, shape)
    if start < 0 or length < 0:
        return None
    if start + length > shape[dim]:
        raise Mismatch
    return _replaced(shape, dim, length)


def squeeze(call: Arguments, x: Value) -> Value:
    """nn.Squeeze."""
    shape = _tensor(x)
    if call.get("dim", 0) is None:
        example = call.get("n_input_dims", 1)
        batched = example is not None and len(shape) == example + 1 and shape[:1] == (1,)
        return ((1,) if batched else ()) + tuple(each for each in shape if each != 1) or (1,)
    dim = _dimension(call, shape)
    return (_replaced(shape, dim) if shape[dim] == 1 else shape) or (1,)


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
    for pair in call.args:
        a, b = (_within(dim + offset, x) for dim in pair)
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
    dim = _within(call.number("dim", 0, 0) + (example is not None and len(shape) != example), shape)
    return _replaced(shape, dim, shape[dim] + abs(call.number("pad", 1, 0)))


def borders(dims: int) -> Rule:
    """Paddings of images, by the dimensions of an image."""

    def rule(call: Arguments, x: Value) -> Value:
        shape, widths = _tensor(x), call.each("padding", 0, 2 * dims, 0)[::-1]
        if len(shape) <= dims:
            raise Mismatch
        grown = [added(n, sum(widths[2 * at : 2 * at + 2])) for at, n in enumerate(shape[-dims:])]
        return _extents(shape[:-dims], grown)

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


def _two(x: Value) -> bool:
    """Return whether a value is a list of two tensors, of as many dimensions."""
    if not isinstance(x, list) or len(x) != 2 or not all(isinstance(each, tuple) for each in x):
        return False
    if len(x[0]) != len(x[1]):
        raise Mismatch
    return True


def pairs(call: Arguments, x: Value) -> Value:
    """Return one number for each example of two lists of vectors."""
    if not _two(x):
        return None
    if len(x[0]) not in (1, 2):
        raise Mismatch
    return x[0][:1] if len(x[0]) == 2 else (1,)


def product(call: Arguments, x: Value) -> Value:
    """Return the product of matrices, or of batches of them."""
    if not _two(x):
        return None
    options = (call.get("transpose_first", 0), call.get("transpose_second", 1))
    a, b = (each[::-1][:2] if turned else each[-2:] for each, turned in zip(x, options))
    if len(x[0]) not in (2, 3) or a[1] != b[0]:
        raise Mismatch
    return (*x[0][:-2], a[0], b[1])


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


def inputs_text(inputs: Examples, times: str = "x") -> str:
    """Return shapes as `--input-shape` takes them: `1x4`, or `[1x4, 1x20:int64]` for a table."""
    if isinstance(inputs, Example):
        return times.join(map(str, inputs.shape)) + (f":{inputs.dtype}" if inputs.dtype else "")
    return f"[{', '.join(inputs_text(each, times) for each in inputs)}]"
