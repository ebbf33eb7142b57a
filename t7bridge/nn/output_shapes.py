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
        """Return an argument, by name or position; -1 for one that is given by name only."""
        value = self.args[place] if 0 <= place < len(self.args) else self.kwargs.get(name)
        return otherwise if value is None else value

    def each(self, name: str, place: int, dims: int, otherwise: int) -> Shape:
        """Return an argument that is one number or one for each dimension."""
        value = self.get(name, place, otherwise)
        numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,) * dims
        if len(numbers) != dims or not all(isinstance(number, int) for number in numbers):
            raise Mismatch
        return numbers

    def number(self, name: str, place: int, otherwise: int) -> int:
        """Return an argument that is an integer."""
        value: int = self.each(name, place, 1, otherwise)[0]
        return value


Rule = Callable[[Arguments, Value], Value]


def same(call: Arguments, x: Value) -> Value:
    """Return the shape of the input: of a tensor, or of a list of tensors."""
    if isinstance(x, list) and not all(isinstance(item, tuple) for item in x):
        return None
    return x


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
        # One sum for (n + 1) + 2 and n + 3, so that equal extents are equal expressions.
        _, _, summand, number = extent
        return added(summand, more + number)
    return _formula("added", extent, more)


def _formula(kind: str, extent: Extent, *numbers: int) -> Extent:
    """Return an expression: its kind, its depth, and what it is computed from."""
    is_formula = isinstance(extent, tuple) and isinstance(extent[0], str)
    depth = 1 + extent[1] if is_formula else 1
    if depth > _DEEPEST:
        return _unknown_extent()
    return (kind, depth, extent, *numbers)


def _unknown_extent() -> Extent:
    """Return an extent that is equal to no other."""
    return object()


def _differs(extent: Extent, wanted: int) -> bool:
    """Return whether an extent is certainly not this number; an expression may be."""
    return isinstance(extent, int) and extent != wanted


def _tensor(x: Value) -> Shape:
    """Return a value that must be the shape of a tensor."""
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
        values = [call.each(name, int(place), dims, int(default)) for name, place, default in arguments]
        # One extent of the input, and one number of each argument, for each dimension.
        extents = [extent(*numbers) for numbers in zip(shape[-dims:], *values)]
        return _with_extents((*front, planes), extents)

    return rule


def _with_extents(front: Shape, extents: Sequence[Extent]) -> Shape:
    """Return a shape that ends with these extents.

    Raises:
        Mismatch: one is not positive: the input is smaller than a window.
    """
    if any(isinstance(extent, int) and extent < 1 for extent in extents):
        raise Mismatch
    return (*front, *extents)


def convolution(dims: int) -> Rule:
    """torch.nn.Conv1d to Conv3d, by the dimensions of a kernel."""
    return _windows(dims, "kernel_size,2,1 stride,3,1 padding,4,0 dilation,5,1", slid, channels=True)


def transposed(dims: int) -> Rule:
    """torch.nn.ConvTranspose1d to 3d, by the dimensions of a kernel; unknown for a list with the requested size."""
    options = "kernel_size,2,1 stride,3,1 padding,4,0 output_padding,5,0 dilation,8,1"
    of_tensor = _windows(dims, options, _enlarged, channels=True)

    def rule(call: Arguments, x: Value) -> Value:
        return None if isinstance(x, list) else of_tensor(call, x)

    return rule


def _enlarged(extent: Extent, kernel: int, stride: int, padding: int, extra: int, dilation: int) -> Extent:
    if not isinstance(extent, int):
        return _unknown_extent()
    return (extent - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1


def pooling(dims: int) -> Rule:
    """Poolings, by the dimensions of a kernel."""
    # Poolings differ in the positions of the last two, which are always given by name: 9 is behind all arguments.
    return _windows(dims, "kernel_size,0,1 stride,1,0 padding,2,0 dilation,9,1 ceil_mode,9,0", _pooled)


def _pooled(extent: Extent, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> Extent:
    stride = stride or kernel
    if not ceil:
        return slid(extent, kernel, stride, padding, dilation)
    if not isinstance(extent, int):
        return _unknown_extent()
    reach = extent + 2 * padding - dilation * (kernel - 1) - 1
    if reach < 0 or stride < 1:
        raise Mismatch
    count = -(-reach // stride) + 1  # rounded up
    # The last window must begin in the input or in the padding before it.
    if (count - 1) * stride >= extent + padding:
        count -= 1
    return count


def _in_time(rule: Rule) -> Rule:
    """Return the rule of a layer over (…, time, features) from that over (features, time)."""

    def rule_in_time(call: Arguments, x: Value) -> Value:
        shape = _tensor(x)
        if len(shape) not in (2, 3):
            raise Mismatch
        *batch, time, features = shape
        features, time = rule(call, (features, time))
        return (*batch, time, features)

    return rule_in_time


temporal = _in_time(convolution(1))
"""nn.TemporalConvolution."""
temporal_pool = _in_time(pooling(1))
"""nn.TemporalMaxPooling."""


def adaptive(call: Arguments, x: Value) -> Value:
    """Adaptive poolings."""
    shape = _tensor(x)
    output_size = call.get("output_size", 0)
    sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    if len(shape) < 3:
        raise Mismatch
    extents = []
    for size, extent in zip(sizes, shape[-len(sizes) :], strict=True):
        if size is None:  # keeps the extent
            extents.append(extent)
        elif isinstance(size, int):
            extents.append(size)
        else:
            raise Mismatch
    return (*shape[: -len(sizes)], *extents)


def linear(call: Arguments, x: Value) -> Value:
    """torch.nn.Linear."""
    shape = _tensor(x)
    if not shape or _differs(shape[-1], call.number("in_features", 0, 0)):
        raise Mismatch
    return (*shape[:-1], call.number("out_features", 1, 0))


def channels(call: Arguments, x: Value) -> Value:
    """Batch normalizations, which keep the shape of their input."""
    shape = _tensor(x)
    features = call.number("num_features", 0, 0)
    # The channels are the second dimension of a batch, and the first of an example.
    if all(_differs(extent, features) for extent in shape[:2]):
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
    shape = _tensor(x)
    size = _sizes(call)
    dims = call.get("n_input_dims", -1)
    dims_of_batch = 0 if dims is None else max(0, len(shape) - dims)
    batch = prod(shape[:dims_of_batch])
    count = prod(extent for extent in size if extent >= 0)  # of one example
    total = prod(shape)
    if not count:
        raise Mismatch
    if -1 not in size:
        if total % count:
            raise Mismatch
        # What is more than one example is a batch.
        batch *= prod(shape[dims_of_batch:]) // count
    if batch == 1 and not dims_of_batch:
        return _filled(size, total)
    return _filled((batch, *size), total)


def reshape(call: Arguments, x: Value) -> Value:
    """nn.Reshape."""
    shape = _tensor(x)
    size = _sizes(call)
    is_batch = call.get("batch_mode", -1)
    if not shape:
        raise Mismatch
    if is_batch is None:
        # As Lua does, an input that begins with 1 counts as a batch of one.
        is_batch = prod(shape) != prod(size) or shape[0] == 1
    return _filled((shape[0], *size) if is_batch else size, prod(shape))


def _sizes(call: Arguments) -> Shape:
    if not all(isinstance(size, int) for size in call.args):
        raise Mismatch
    return tuple(call.args)


def _filled(size: Shape, total: int) -> Shape:
    """Return a shape of `total` elements with its -1 resolved."""
    count = prod(extent for extent in size if extent >= 0)
    unresolved = sum(extent < 0 for extent in size)
    if unresolved > 1 or not count or total % count:
        raise Mismatch
    if unresolved:
        return tuple(total // count if extent < 0 else extent for extent in size)
    if count != total:
        raise Mismatch
    return size


def flatten(call: Arguments, x: Value) -> Value:
    """torch.nn.Flatten."""
    shape = _tensor(x)
    start = call.number("start_dim", 0, 1) % len(shape)
    end = call.number("end_dim", 1, -1) % len(shape)
    return (*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :])


def _dimension(call: Arguments, shape: Shape) -> int:
    """Return a dimension counted in one example."""
    dim = call.number("dim", 0, 0)
    example = call.get("n_input_dims", -1)
    is_batch = example is not None and len(shape) == example + 1
    # From the end, the dimensions of a batch are those of an example.
    if is_batch and dim >= 0:
        dim += 1
    return _within(dim, shape)


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
    if not all(isinstance(shape, tuple) for shape in x):
        return None
    return joined(x, _dimension(call, x[0]))


def joined(shapes: list[Shape], dim: int) -> Shape:
    """Return the shape of tensors concatenated along a dimension.

    Raises:
        Mismatch: they differ in another.
    """
    dim = _within(dim, shapes[0])
    if len({(len(shape), _replaced(shape, dim)) for shape in shapes}) > 1:
        raise Mismatch
    return _replaced(shapes[0], dim, sum(shape[dim] for shape in shapes))


def split(call: Arguments, x: Value) -> Value:
    """nn.SplitTable: a list of equal elements."""
    shape = _tensor(x)
    dim = _dimension(call, shape)
    if shape[dim] > _LONGEST:
        return None
    return [_replaced(shape, dim)] * shape[dim]


def fold(call: Arguments, x: Value) -> Value:
    """Combine the elements of a list: those of unknown shapes have that of the others."""
    if not isinstance(x, list) or not x:
        raise Mismatch
    shapes = [item for item in x if isinstance(item, tuple)]
    if not shapes or any(prod(shape) != prod(shapes[0]) for shape in shapes):
        return None
    return shapes[0]


def reduced(call: Arguments, x: Value) -> Value:
    """Sums and extremes over one dimension."""
    shape = _tensor(x)
    dim = _dimension(call, shape)
    # Lua has no tensors without dimensions.
    is_squeezed = call.kwargs.get("squeeze", True) and len(shape) > 1
    return _replaced(shape, dim) if is_squeezed else _replaced(shape, dim, 1)


def select(call: Arguments, x: Value) -> Value:
    """nn.Select."""
    return _replaced(_tensor(x), _dimension(call, x))


def narrow(call: Arguments, x: Value) -> Value:
    """nn.Narrow."""
    shape = _tensor(x)
    start = call.number("start", 1, 0)
    length = call.number("length", 2, 1)
    dim = _dimension(call, shape)
    if start < 0 or length < 0:
        return None
    if start + length > shape[dim]:
        raise Mismatch
    return _replaced(shape, dim, length)


def squeeze(call: Arguments, x: Value) -> Value:
    """nn.Squeeze."""
    shape = _tensor(x)
    if call.get("dim", 0) is not None:
        dim = _dimension(call, shape)
        return (_replaced(shape, dim) if shape[dim] == 1 else shape) or (1,)
    example = call.get("n_input_dims", 1)
    extents = tuple(extent for extent in shape if extent != 1)
    # A batch of one keeps its dimension.
    if example is not None and len(shape) == example + 1 and shape[:1] == (1,):
        return (1, *extents)
    return extents or (1,)


def unsqueeze(call: Arguments, x: Value) -> Value:
    """nn.Unsqueeze."""
    shape = _tensor(x)
    dim = call.number("dim", 0, 0)
    example = call.get("n_input_dims", 1)
    if example is not None:
        dim += len(shape) - example
    if not 0 <= dim <= len(shape):
        raise Mismatch
    return (*shape[:dim], 1, *shape[dim:])


def transpose(call: Arguments, x: Value) -> Value:
    """nn.Transpose: pairs of dimensions are exchanged."""
    shape = list(_tensor(x))
    example = call.kwargs.get("n_input_dims")
    offset = 0 if example is None else len(shape) - example
    for first_dim, second_dim in call.args:
        first = _within(first_dim + offset, x)
        second = _within(second_dim + offset, x)
        shape[first], shape[second] = shape[second], shape[first]
    return tuple(shape)


def replicate(call: Arguments, x: Value) -> Value:
    """nn.Replicate."""
    shape = _tensor(x)
    dim = call.number("dim", 1, 0)
    example = call.get("n_input_dims", 2)
    if example is not None and len(shape) > example:
        dim += 1
    return (*shape[:dim], call.number("times", 0, 1), *shape[dim:])


def padding(call: Arguments, x: Value) -> Value:
    """nn.Padding: one dimension grows."""
    shape = _tensor(x)
    dim = call.number("dim", 0, 0)
    example = call.get("n_input_dims", 2)
    if example is not None and len(shape) != example:
        dim += 1
    dim = _within(dim, shape)
    return _replaced(shape, dim, shape[dim] + abs(call.number("pad", 1, 0)))


def borders(dims: int) -> Rule:
    """Paddings of images, by the dimensions of an image."""

    def rule(call: Arguments, x: Value) -> Value:
        shape = _tensor(x)
        # PyTorch lists the widths of both sides from the last dimension on.
        widths = call.each("padding", 0, 2 * dims, 0)[::-1]
        if len(shape) <= dims:
            raise Mismatch
        extents = []
        for axis, extent in enumerate(shape[-dims:]):
            extents.append(added(extent, sum(widths[2 * axis : 2 * axis + 2])))
        return _with_extents(shape[:-dims], extents)

    return rule


def upsample(call: Arguments, x: Value) -> Value:
    """Upsampling of batches of images by a factor."""
    shape = _tensor(x)
    scale = call.kwargs.get("scale_factor", call.args[0] if call.args else None)
    is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if len(shape) != 4 or call.kwargs.get("size") is not None or not is_number:
        return None
    return (*shape[:2], *(int(extent * scale) for extent in shape[2:]))


def shuffle(call: Arguments, x: Value) -> Value:
    """torch.nn.PixelShuffle."""
    shape = _tensor(x)
    factor = call.number("upscale_factor", 0, 1)
    if len(shape) < 3 or factor < 1 or shape[-3] % (factor * factor):
        raise Mismatch
    *batch, planes, height, width = shape
    return (*batch, planes // (factor * factor), height * factor, width * factor)


def _two(x: Value) -> bool:
    """Return whether a value is a list of two tensors, of as many dimensions."""
    if not isinstance(x, list) or len(x) != 2 or not all(isinstance(item, tuple) for item in x):
        return False
    if len(x[0]) != len(x[1]):
        raise Mismatch
    return True


def pairs(call: Arguments, x: Value) -> Value:
    """Return one number for each example of two lists of vectors."""
    if not _two(x):
        return None
    shape = x[0]
    if len(shape) not in (1, 2):
        raise Mismatch
    return shape[:1] if len(shape) == 2 else (1,)


def product(call: Arguments, x: Value) -> Value:
    """Return the product of matrices, or of batches of them."""
    if not _two(x):
        return None
    first, second = x
    if len(first) not in (2, 3):
        raise Mismatch
    rows, inner = first[::-1][:2] if call.get("transpose_first", 0) else first[-2:]
    other_inner, columns = second[::-1][:2] if call.get("transpose_second", 1) else second[-2:]
    if inner != other_inner:
        raise Mismatch
    return (*first[:-2], rows, columns)


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
    if not isinstance(inputs, Example):
        return f"[{', '.join(inputs_text(item, times) for item in inputs)}]"
    shape = times.join(map(str, inputs.shape))
    return f"{shape}:{inputs.dtype}" if inputs.dtype else shape
