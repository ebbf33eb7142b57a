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
"""A number; or in generated source what stands for one: equal ones are equal numbers.

That is an expression of `_formula`, a symbol of the caller's (a tuple that does not begin with text), or an object that
is equal to no other.
"""
Shape = tuple[Extent, ...]
Value = Any
"""A `Shape`, a list of values, or `None`."""
_MOST_ELEMENTS = 64
"""Maximum elements of a list; the outputs of longer ones are unknown."""
_DEEPEST = 12
"""Maximum nesting of expressions; the extents of deeper ones are unknown."""
_BY_NAME = -1
"""Position of an argument that is never given by position."""


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

    def get(self, name: str, place: int = _BY_NAME, otherwise: Any = None) -> Any:
        """Return an argument, by name or position.

        Args:
            name: of the argument.
            place: its position, from 0; by default it is given by name only.
            otherwise: the value of one that is missing or `None`.
        """
        value = self.args[place] if 0 <= place < len(self.args) else self.kwargs.get(name)
        return otherwise if value is None else value

    def each(self, name: str, place: int, dims: int, otherwise: int) -> Shape:
        """Return an argument that is one number or one for each dimension, as a tuple with one for each.

        Args:
            name: of the argument.
            place: its position, from 0.
            dims: the number of dimensions.
            otherwise: the number if the argument is missing.

        Raises:
            Mismatch: it is something else.
        """
        value = self.get(name, place, otherwise)
        numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,) * dims
        if len(numbers) != dims or not all(isinstance(number, int) for number in numbers):
            raise Mismatch
        return numbers

    def number(self, name: str, place: int, otherwise: int = 0) -> int:
        """Return an argument that is an integer; see `get`.

        Args:
            name: of the argument.
            place: its position, from 0.
            otherwise: the value of one that is missing; a required argument needs none.

        Raises:
            Mismatch: it is something else.
        """
        (value,) = self.each(name, place, dims=1, otherwise=otherwise)
        return value  # type: ignore[no-any-return]


Rule = Callable[[Arguments, Value], Value]
"""Returns the shape of a module's output, from the arguments of its constructor and the shape of its input.

Shapes are of one tensor, or lists of such for lists of tensors; `None` is an unknown one.

A rule raises `Mismatch` for an input that the module refuses.
"""


def same(call: Arguments, x: Value) -> Value:
    """Return the shape of the input: of a tensor, or of a list of tensors; nothing if one of these is unknown."""
    if isinstance(x, list) and not all(isinstance(item, tuple) for item in x):
        return None
    return x


def unknown(arguments: Arguments, input_shape: Value) -> Value:
    """Return `None`: the output does not follow from the shape of the input."""
    return None


def batch_of_one(rank: int) -> Rule:
    """Return the rule of a normalization of channels that makes one example a batch of one.

    Args:
        rank: dimensions of a batch, of which the second are the channels.
    """

    def rule(arguments: Arguments, input_shape: Value) -> Value:
        """Return the shape of the batch; a `Rule`."""
        shape = _of_tensor(input_shape)
        batch = shape if len(shape) >= rank else (1, *shape)
        if len(batch) < rank or _differs(batch[1], arguments.number("num_features", place=0)):
            raise Mismatch
        return batch

    return rule


def slid(extent: Extent, kernel: int, stride: int, padding: int, dilation: int = 1) -> Extent:
    """Return the number of positions of a window that slides over an extent, rounded down.

    It is (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1, as torch.nn.Conv2d documents.

    Raises:
        Mismatch: the stride is not positive.
    """
    if stride < 1:
        raise Mismatch
    shift = 2 * padding - dilation * (kernel - 1)
    if isinstance(extent, int):
        return (extent + shift - 1) // stride + 1
    if stride == 1:  # a sum, which is equal to others of the same number
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
    """Return an expression: its kind, its depth, and what it is computed from.

    Args:
        kind: of operation.
        extent: a symbol, or another expression.
        numbers: what the operation takes besides.

    Returns:
        An extent that is equal to no other if the expression would be nested deeper than `_DEEPEST`.
    """
    depth = 1
    is_expression = isinstance(extent, tuple) and isinstance(extent[0], str)  # a symbol does not begin with text
    if is_expression:
        _, inner_depth, *_ = extent
        depth += inner_depth
    if depth > _DEEPEST:
        return _unknown_extent()
    return (kind, depth, extent, *numbers)


def _unknown_extent() -> Extent:
    """Return an extent that is equal to no other."""
    return object()


def _differs(extent: Extent, wanted: int) -> bool:
    """Return whether an extent is certainly not this number; an expression may be."""
    return isinstance(extent, int) and extent != wanted


def _of_tensor(input_shape: Value) -> Shape:
    """Return a value that must be the shape of a tensor.

    Raises:
        Mismatch: it is a list, or unknown.
    """
    if not isinstance(input_shape, tuple):
        raise Mismatch
    return input_shape


_Option = tuple[str, int, int]
"""Name, position and default of an argument that is one number, or one for each dimension of a window."""


def _windows(
    dims: int, options: Sequence[_Option], output_extent: Callable[..., Extent], maps_channels: bool = False
) -> Rule:
    """Return the rule of a layer whose windows slide over the last dimensions of an example or a batch.

    Args:
        dims: dimensions of a window.
        options: the arguments that `output_extent` needs, in order.
        output_extent: returns one extent of the output from that of the input and one number of each of these.
        maps_channels: whether the layer maps `in_channels` to `out_channels`, its first two arguments.
    """

    def rule(arguments: Arguments, input_shape: Value) -> Value:
        """Return the shape of the layer's output, of an example or a batch, by `output_extent`; a `Rule`."""
        shape = _of_tensor(input_shape)
        # Channels come before the `dims` dimensions of the window, and a batch perhaps before these.
        if len(shape) not in (dims + 1, dims + 2):
            raise Mismatch
        *batch, channels = shape[:-dims]
        if maps_channels:
            if _differs(channels, arguments.number("in_channels", place=0)):
                raise Mismatch
            channels = arguments.number("out_channels", place=1)
        # Of each option its numbers for all dimensions: the kernel's, the stride's, …
        options_by_dim = [arguments.each(name, place, dims, otherwise=default) for name, place, default in options]
        extents = [output_extent(extent, *numbers) for extent, *numbers in zip(shape[-dims:], *options_by_dim)]
        return _ending_in((*batch, channels), extents)

    return rule


def _ending_in(front: Shape, extents: Sequence[Extent]) -> Shape:
    """Return a shape that consists of its first extents and these.

    Raises:
        Mismatch: one of the last is not positive: the input is smaller than a window.
    """
    if any(isinstance(extent, int) and extent < 1 for extent in extents):
        raise Mismatch
    return (*front, *extents)


def convolution(dims: int) -> Rule:
    """Return the rule of torch.nn.Conv1d, 2d or 3d, by the dimensions of a kernel."""
    # Name, position and default.
    options = (("kernel_size", 2, 1), ("stride", 3, 1), ("padding", 4, 0), ("dilation", 5, 1))
    return _windows(dims, options, slid, maps_channels=True)


def transposed(dims: int) -> Rule:
    """Return the rule of torch.nn.ConvTranspose1d, 2d or 3d, by the dimensions of a kernel."""
    # Name, position and default.
    options = (("kernel_size", 2, 1), ("stride", 3, 1), ("padding", 4, 0), ("output_padding", 5, 0), ("dilation", 8, 1))
    rule_of_tensor = _windows(dims, options, _enlarged, maps_channels=True)

    def rule(arguments: Arguments, input_shape: Value) -> Value:
        """Return the shape of the output for a tensor; `None` for a list. A `Rule`."""
        # Lua's full convolutions also accept a list whose second element has the size of the output.
        return None if isinstance(input_shape, list) else rule_of_tensor(arguments, input_shape)

    return rule


def _enlarged(extent: Extent, kernel: int, stride: int, padding: int, extra: int, dilation: int) -> Extent:
    """Return an extent of the output of a transposed convolution, as torch.nn.ConvTranspose2d documents it."""
    if not isinstance(extent, int):
        return _unknown_extent()
    return (extent - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1


def pooling(dims: int) -> Rule:
    """Return the rule of poolings, by the dimensions of a kernel.

    Max and average poolings have the same rule, as all options of one that the other lacks have their defaults.
    """
    # Name, position and default of the numbers that `_pooled` takes after the extent, in its order.
    options = (
        ("kernel_size", 0, 1),  # always given, so that its default is never used
        ("stride", 1, 0),  # 0 is as large as the kernel, see `_pooled`
        ("padding", 2, 0),
        # Max and average pooling have these at different positions; they are always given by name.
        ("dilation", _BY_NAME, 1),
        ("ceil_mode", _BY_NAME, 0),
    )
    return _windows(dims, options, _pooled)


def _pooled(extent: Extent, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Extent:
    """Return an extent of the output of a pooling, as torch.nn.MaxPool2d documents it; below 1 for too small an input.

    An unknown one is returned if it would be an expression that is rounded up.

    Args:
        extent: of the input.
        kernel: extent of the window.
        stride: distance of two windows; 0 for that of the kernel.
        padding: elements added at both sides.
        dilation: distance of two elements of a window.
        ceil_mode: whether the number of windows is rounded up, so that the last one, or the only one, may reach beyond
            the input.

    Raises:
        Mismatch: the stride is negative.
    """
    stride = stride or kernel
    if not ceil_mode:
        return slid(extent, kernel, stride, padding, dilation)
    if not isinstance(extent, int):
        return _unknown_extent()
    if stride < 1:
        raise Mismatch
    last_start = extent + 2 * padding - dilation * (kernel - 1) - 1  # of a window that ends with the input
    count = -(-last_start // stride) + 1  # rounded up
    # The last window must begin in the input or in the padding before it.
    if (count - 1) * stride >= extent + padding:
        count -= 1
    return count


def _in_time(rule: Rule) -> Rule:
    """Return the rule of a layer over (…, time, features) from that over (features, time)."""

    def rule_in_time(arguments: Arguments, input_shape: Value) -> Value:
        """Return the shape of the layer's output, (…, time, features); a `Rule`."""
        shape = _of_tensor(input_shape)
        if len(shape) not in (2, 3):
            raise Mismatch
        *batch, steps, features = shape
        output_features, output_steps = rule(arguments, (features, steps))
        return (*batch, output_steps, output_features)

    return rule_in_time


temporal = _in_time(convolution(1))
"""nn.TemporalConvolution."""
temporal_pool = _in_time(pooling(1))
"""nn.TemporalMaxPooling."""


def adaptive(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of an adaptive pooling of images: the input's, with other extents at the end.

    Args:
        arguments: of the constructor. Its `output_size` is one number for both sides of a square, or a tuple with the
            last extents of the output. `None` in place of a number keeps the extent of the input.
        input_shape: of one tensor.

    Raises:
        Mismatch: the input is no tensor of images, or `output_size` holds something else.
    """
    shape = _of_tensor(input_shape)
    output_size = arguments.get("output_size", place=0)
    sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    if len(shape) < 3:
        raise Mismatch
    extents = []
    for size, extent in zip(sizes, shape[-len(sizes) :], strict=True):
        if size is None:
            extents.append(extent)
        elif isinstance(size, int):
            extents.append(size)
        else:
            raise Mismatch
    return (*shape[: -len(sizes)], *extents)


def linear(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of torch.nn.Linear."""
    shape = _of_tensor(input_shape)
    if not shape or _differs(shape[-1], arguments.number("in_features", place=0)):
        raise Mismatch
    return (*shape[:-1], arguments.number("out_features", place=1))


def channels(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of a batch normalization, which is the input's: one that may have its channels."""
    shape = _of_tensor(input_shape)
    features = arguments.number("num_features", place=0)
    # The channels are the second dimension of a batch, and the first of an example.
    if all(_differs(extent, features) for extent in shape[:2]):
        raise Mismatch
    return shape


def embedding(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of an embedding: one more dimension, the last."""
    return (*_of_tensor(input_shape), arguments.number("embedding_dim", place=1))


def one_hot(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.OneHot: one more dimension, the last."""
    return (*_of_tensor(input_shape), arguments.number("size", place=0))


def view(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.View: its sizes, after a batch where the input has one.

    Args:
        arguments: of the constructor: the sizes of one example, of which one may be -1, and perhaps `n_input_dims`.
        input_shape: of one tensor.

    Raises:
        Mismatch: the elements of the input do not fill examples of these sizes.

    Source: nn 8726825 `View.lua` `batchsize`.
    """
    shape = _of_tensor(input_shape)
    size = _sizes(arguments)
    example_dims = arguments.get("n_input_dims")
    # With `n_input_dims`, the dimensions before those of an example are the batch, which becomes one dimension.
    batch_dims = 0 if example_dims is None else max(0, len(shape) - example_dims)
    batch = prod(shape[:batch_dims])
    if -1 not in size:
        # The dimensions of an example may hold several, which are part of the batch, too.
        batch *= _count_of_examples(prod(shape[batch_dims:]), size)
    # Lua adds no dimension for a single example, unless the input has one.
    is_single_example = batch == 1 and not batch_dims
    return _inferred(size if is_single_example else (batch, *size), prod(shape))


def _count_of_examples(total: int, size: Shape) -> int:
    """Return how many examples of a size have this number of elements.

    Raises:
        Mismatch: no whole number of them has.
    """
    elements_of_one = prod(size)
    if not elements_of_one or total % elements_of_one:
        raise Mismatch
    return total // elements_of_one


def reshape(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.Reshape: its sizes, after the first dimension of a batch.

    Args:
        arguments: of the constructor: the sizes of one example, and `batch_mode`, whether the input is a batch. Without
            that, an input with another number of elements than one example is one.
        input_shape: of one tensor.

    Raises:
        Mismatch: the elements of the input do not fill examples of these sizes.
    """
    shape = _of_tensor(input_shape)
    size = _sizes(arguments)
    is_batch = arguments.get("batch_mode")
    if not shape:
        raise Mismatch
    if is_batch is None:
        # As Lua does, an input that begins with 1 counts as a batch of one.
        is_batch = prod(shape) != prod(size) or shape[0] == 1
    return _inferred((shape[0], *size) if is_batch else size, prod(shape))


def _sizes(arguments: Arguments) -> Shape:
    """Return the positional arguments, which must be integers."""
    if not all(isinstance(size, int) for size in arguments.args):
        raise Mismatch
    return tuple(arguments.args)


def _inferred(size: Shape, total: int) -> Shape:
    """Return a shape of `total` elements, in which a -1 is the extent that follows from the others.

    Args:
        size: the shape; all its extents are numbers.
        total: number of elements.

    Raises:
        Mismatch: there is no such shape, it has several -1, or another extent is 0.
    """
    known_count = prod(extent for extent in size if extent >= 0)
    unknown_extents = sum(extent < 0 for extent in size)
    if unknown_extents > 1 or not known_count or total % known_count:
        raise Mismatch
    if unknown_extents:
        return tuple(total // known_count if extent < 0 else extent for extent in size)
    if known_count != total:
        raise Mismatch
    return size


def flatten(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of torch.nn.Flatten: one dimension for those from `start_dim` to `end_dim`.

    Args:
        arguments: of the constructor: these two, from 0, that of the batch, or from -1 backwards.
        input_shape: of one tensor.

    Raises:
        Mismatch: the input has no such dimensions, or the first comes after the last.
    """
    shape = _of_tensor(input_shape) or (1,)  # a tensor without dimensions gets one
    start = dim_from_front(arguments.number("start_dim", place=0, otherwise=1), shape)
    end = dim_from_front(arguments.number("end_dim", place=1, otherwise=-1), shape)
    if start > end:
        raise Mismatch
    return (*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :])


def _dimension(arguments: Arguments, shape: Shape) -> int:
    """Return the argument `dim` as a dimension of the input, from 0.

    With `n_input_dims` it counts the dimensions of one example, and an input with one more has a batch before these.

    Args:
        arguments: of the constructor.
        shape: of the input.

    Raises:
        Mismatch: the input has no such dimension.
    """
    dim = arguments.number("dim", place=0)
    example_dims = arguments.get("n_input_dims")
    is_batch = example_dims is not None and len(shape) == example_dims + 1
    # From the end, the dimensions of a batch are those of an example.
    if is_batch and dim >= 0:
        dim += 1
    return dim_from_front(dim, shape)


def dim_from_front(dim: int, shape: Shape) -> int:
    """Return a dimension, counted from the front; a negative one is counted from the end.

    Raises:
        Mismatch: the shape has no such dimension.
    """
    if not -len(shape) <= dim < len(shape):
        raise Mismatch
    return dim % len(shape)


def _replaced(shape: Shape, dim: int, *extents: Extent) -> Shape:
    """Return a shape with other extents in the place of one; with none given, without this dimension."""
    return (*shape[:dim], *extents, *shape[dim + 1 :])


def join(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.JoinTable; nothing if that of an element is unknown."""
    if not isinstance(input_shape, list) or not input_shape:
        raise Mismatch
    if not all(isinstance(shape, tuple) for shape in input_shape):
        return None
    return joined(input_shape, _dimension(arguments, input_shape[0]))


def joined(shapes: list[Shape], dim: int) -> Shape:
    """Return the shape of tensors that are concatenated.

    Args:
        shapes: of at least one tensor; along the dimension their extents are numbers.
        dim: the dimension, from 0; a negative one is counted from the end.

    Raises:
        Mismatch: they differ in another dimension, or in the number of dimensions.
    """
    dim = dim_from_front(dim, shapes[0])
    distinct = {(len(shape), _replaced(shape, dim)) for shape in shapes}
    if len(distinct) > 1:
        raise Mismatch
    return _replaced(shapes[0], dim, sum(shape[dim] for shape in shapes))


def split(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shapes of the slices that nn.SplitTable lists; nothing if there are too many."""
    shape = _of_tensor(input_shape)
    dim = _dimension(arguments, shape)
    if shape[dim] > _MOST_ELEMENTS:
        return None
    return [_replaced(shape, dim)] * shape[dim]


def fold(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.CAddTable and the like, which combine a list of tensors element by element.

    Args:
        arguments: not needed.
        input_shape: a list of shapes, of which some may be unknown.

    Returns:
        The shape of the first element whose shape is known, which is that of the output if all have the same sizes.
        `None` if no shape is known, or the known ones do not have as many elements each.

    Raises:
        Mismatch: the input is no list, or an empty one.
    """
    if not isinstance(input_shape, list) or not input_shape:
        raise Mismatch
    shapes = [item for item in input_shape if isinstance(item, tuple)]
    # Lua combines tensors of as many elements whatever their sizes, and the output has those of the first. That
    # they have different numbers of elements is not refused here, but left to the module.
    if not shapes or any(prod(shape) != prod(shapes[0]) for shape in shapes):
        return None
    return shapes[0]


def reduced(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of a sum or an extreme over one dimension, which nn.Sum keeps without `squeeze`."""
    shape = _of_tensor(input_shape)
    dim = _dimension(arguments, shape)
    # Lua has no tensors without dimensions.
    is_squeezed = arguments.kwargs.get("squeeze", True) and len(shape) > 1
    return _replaced(shape, dim) if is_squeezed else _replaced(shape, dim, 1)


def select(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.Select: without the dimension of which it takes one slice.

    Args:
        arguments: of the constructor: `dim`, and `index`, the slice, both from 0 or from -1 backwards.
        input_shape: of one tensor.

    Raises:
        Mismatch: the input has no such dimension or slice.
    """
    shape = _of_tensor(input_shape)
    dim = _dimension(arguments, shape)
    index = arguments.number("index", place=1)
    if not -shape[dim] <= index < shape[dim]:
        raise Mismatch
    return _replaced(shape, dim)


def narrow(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.Narrow, a part along one dimension.

    Args:
        arguments: of the constructor: `dim` and `start`, both from 0, and `length`.
        input_shape: of one tensor.

    Returns:
        `None` if start or length are negative, which Lua counts from the end.

    Raises:
        Mismatch: the input has no such part.
    """
    shape = _of_tensor(input_shape)
    start = arguments.number("start", place=1)
    length = arguments.number("length", place=2, otherwise=1)
    dim = _dimension(arguments, shape)
    if start < 0 or length < 0:
        return None
    if start + length > shape[dim]:
        raise Mismatch
    return _replaced(shape, dim, length)


def squeeze(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.Squeeze: without one dimension, if it has one element, or without all such.

    Args:
        arguments: of the constructor: perhaps `dim`, the one dimension, and `n_input_dims`, the dimensions of one
            example, before which an input may have a batch; `dim` does not count that.
        input_shape: of one tensor.

    Raises:
        Mismatch: the input has no dimension `dim`.
    """
    shape = _of_tensor(input_shape)
    if arguments.get("dim", place=0) is not None:
        dim = _dimension(arguments, shape)
        squeezed = _replaced(shape, dim) if shape[dim] == 1 else shape
    else:
        squeezed = tuple(extent for extent in shape if extent != 1)
        example_dims = arguments.get("n_input_dims", place=1)
        is_batch = example_dims is not None and len(shape) == example_dims + 1
        # A batch of one keeps its dimension. (Lua refuses one whose example is a single number.)
        if is_batch and shape[:1] == (1,):
            squeezed = (1, *squeezed)
    return squeezed or (1,)  # Lua has no tensors without dimensions


def unsqueeze(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.Unsqueeze: with one more dimension, of one element.

    Args:
        arguments: of the constructor: the place of the new dimension, and perhaps the dimensions of one example.
        input_shape: of one tensor.

    Raises:
        Mismatch: the input has too few dimensions.
    """
    shape = _of_tensor(input_shape)
    dim = arguments.number("dim", place=0)
    example_dims = arguments.get("n_input_dims", place=1)
    if example_dims is not None:
        # `dim` counts the dimensions of an example; all others are before these.
        dim += len(shape) - example_dims
    if not 0 <= dim <= len(shape):
        raise Mismatch
    return (*shape[:dim], 1, *shape[dim:])


def transpose(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.Transpose, whose arguments are pairs of dimensions to exchange, in order.

    Raises:
        Mismatch: the input is no tensor, or lacks one of the dimensions.
    """
    shape = list(_of_tensor(input_shape))
    example_dims = arguments.get("n_input_dims")
    # Pairs count the dimensions of an example, from 0; all others are before these, the last of them is -1.
    offset = 0 if example_dims is None else len(shape) - example_dims
    for pair in arguments.args:
        # What is still negative with the offset would count from the end.
        if example_dims is not None and min(pair) + offset < 0:
            raise Mismatch
        first, second = (dim_from_front(dim + offset, input_shape) for dim in pair)
        shape[first], shape[second] = shape[second], shape[first]
    return tuple(shape)


def replicate(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.Replicate: with one more dimension, of `times` elements.

    Args:
        arguments: of the constructor: `times`, the place of the new dimension, perhaps the dimensions of one example.
        input_shape: of one tensor.

    Raises:
        Mismatch: the input has too few dimensions.
    """
    shape = _of_tensor(input_shape)
    times = arguments.number("times", place=0, otherwise=1)
    dim = arguments.number("dim", place=1)
    example_dims = arguments.get("n_input_dims", place=2)
    # Lua takes any input with more dimensions than an example for a batch.
    if example_dims is not None and len(shape) > example_dims:
        dim += 1
    if not 0 <= dim <= len(shape):
        raise Mismatch
    return (*shape[:dim], times, *shape[dim:])


def padding(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.Padding: one dimension grows, at its end, or at its start if `pad` < 0.

    Args:
        arguments: of the constructor: the dimension, `pad`, and perhaps the dimensions of one example.
        input_shape: of one tensor.

    Raises:
        Mismatch: the input has no such dimension.
    """
    shape = _of_tensor(input_shape)
    dim = arguments.number("dim", place=0)
    example_dims = arguments.get("n_input_dims", place=2)
    # Here Lua takes any input with another number of dimensions, also a smaller one, for a batch.
    if example_dims is not None and len(shape) != example_dims:
        dim += 1
    dim = dim_from_front(dim, shape)
    return _replaced(shape, dim, shape[dim] + abs(arguments.number("pad", place=1)))


def borders(dims: int) -> Rule:
    """Return the rule of paddings of images.

    Args:
        dims: dimensions of an image, without channels.
    """

    def rule(arguments: Arguments, input_shape: Value) -> Value:
        """Return the shape of the padded input; a `Rule`."""
        shape = _of_tensor(input_shape)
        if len(shape) <= dims:
            raise Mismatch
        # PyTorch lists the widths of both sides from the last dimension on; here they are in the order of the shape.
        widths = arguments.each("padding", place=0, dims=2 * dims, otherwise=0)[::-1]
        extents = []
        for extent, one_side, other_side in zip(shape[-dims:], widths[::2], widths[1::2]):
            extents.append(added(extent, one_side + other_side))
        return _ending_in(shape[:-dims], extents)

    return rule


def upsample(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of a batch of images that are upsampled by one factor for both sides; `None` for anything else.

    Args:
        arguments: of the constructor, as torch.nn.Upsample has them: `scale_factor`, by name, or `size`, its first
            argument, which counts if both are given.
        input_shape: of one tensor.
    """
    shape = _of_tensor(input_shape)
    factor = arguments.get("scale_factor")
    has_size = arguments.get("size", place=0) is not None
    if len(shape) != 4 or has_size or not isinstance(factor, (int, float)):
        return None
    batch, channels, height, width = shape
    return (batch, channels, int(height * factor), int(width * factor))


def shuffle(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of torch.nn.PixelShuffle, which makes squares of pixels of its channels."""
    shape = _of_tensor(input_shape)
    factor = arguments.number("upscale_factor", place=0, otherwise=1)
    if len(shape) < 3 or factor < 1 or shape[-3] % (factor * factor):
        raise Mismatch
    *batch, planes, height, width = shape
    return (*batch, planes // (factor * factor), height * factor, width * factor)


def _are_two_tensors(input_shape: Value) -> bool:
    """Return whether a value is a list of two tensors, which must have equally many dimensions.

    Raises:
        Mismatch: two tensors have different numbers of dimensions.
    """
    if not isinstance(input_shape, list) or len(input_shape) != 2:
        return False
    first, second = input_shape
    if not isinstance(first, tuple) or not isinstance(second, tuple):
        return False
    if len(first) != len(second):
        raise Mismatch
    return True


def pairs(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.DotProduct and the like, one number for each pair of vectors.

    Args:
        arguments: not needed.
        input_shape: a list of two shapes; Lua takes two of as many elements, and the output has the batch of the first.

    Returns:
        `None` if the input is not known to be a list of two tensors.

    Raises:
        Mismatch: the two have different numbers of dimensions, or are neither vectors nor batches of vectors.
    """
    if not _are_two_tensors(input_shape):
        return None
    first, _ = input_shape
    if len(first) not in (1, 2):
        raise Mismatch
    is_batch = len(first) == 2
    return first[:1] if is_batch else (1,)  # Lua has no tensors without dimensions


def product(arguments: Arguments, input_shape: Value) -> Value:
    """Return the shape of the output of nn.MM: the product of two matrices, or of two batches of matrices.

    Args:
        arguments: of the constructor: whether the first and the second are transposed before.
        input_shape: a list of the shapes of both.

    Returns:
        `None` if the input is not known to be a list of two tensors.

    Raises:
        Mismatch: they are no matrices, or have no product, or their batches are of different sizes.
    """
    if not _are_two_tensors(input_shape):
        return None
    first, second = input_shape  # of as many dimensions each
    if len(first) not in (2, 3):
        raise Mismatch
    *batch, rows, inner = first
    if arguments.get("transpose_first", place=0):
        rows, inner = inner, rows
    *other_batch, other_inner, columns = second
    if arguments.get("transpose_second", place=1):
        other_inner, columns = columns, other_inner
    if batch != other_batch or inner != other_inner:
        raise Mismatch
    return (*batch, rows, columns)


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
