"""Output shapes of PyTorch's modules from their arguments, without PyTorch: rules by class name.

A value is the shape of a tensor, a list of values, or `None` if unknown. Tests compare the rules with Lua's recorded
outputs. Layers without a rule have unknown outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from ...data import define

Shape = tuple[int, ...]
Value = Any
"""A `Shape`, a list of values, or `None`."""
_LONGEST = 64
"""Maximum elements of a list."""


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
        return self.each(name, place, 1, otherwise)[0]


Rule = Callable[[Arguments, Value], Value]


def _same(call: Arguments, x: Value) -> Value:
    return x


def _tensor(x: Value) -> Shape:
    if not isinstance(x, tuple):
        raise Mismatch
    return x


def _convolution(dims: int) -> Rule:
    def rule(call: Arguments, x: Value) -> Value:
        shape = _tensor(x)
        kernel, stride = call.each("kernel_size", 2, dims, 1), call.each("stride", 3, dims, 1)
        padding, dilation = call.each("padding", 4, dims, 0), call.each("dilation", 5, dims, 1)
        if len(shape) not in (dims + 1, dims + 2) or shape[-dims - 1] != call.number("in_channels", 0, 0):
            raise Mismatch
        steps = zip(shape[-dims:], kernel, stride, padding, dilation)
        extents = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in steps if s > 0)
        return _extents((*shape[: -dims - 1], call.number("out_channels", 1, 0)), extents, dims)

    return rule


def _transposed(dims: int) -> Rule:
    def rule(call: Arguments, x: Value) -> Value:
        if isinstance(x, list):  # with the requested size
            return None
        shape = _tensor(x)
        kernel, stride = call.each("kernel_size", 2, dims, 1), call.each("stride", 3, dims, 1)
        padding, extra = call.each("padding", 4, dims, 0), call.each("output_padding", 5, dims, 0)
        dilation = call.each("dilation", 8, dims, 1)
        if len(shape) not in (dims + 1, dims + 2) or shape[-dims - 1] != call.number("in_channels", 0, 0):
            raise Mismatch
        steps = zip(shape[-dims:], kernel, stride, padding, extra, dilation)
        extents = tuple((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, e, d in steps)
        return _extents((*shape[: -dims - 1], call.number("out_channels", 1, 0)), extents, dims)

    return rule


def _extents(front: Shape, extents: Shape, dims: int) -> Shape:
    if len(extents) != dims or min(extents) < 1:
        raise Mismatch
    return front + extents


def _pooling(dims: int) -> Rule:
    def rule(call: Arguments, x: Value) -> Value:
        shape = _tensor(x)
        kernel = call.each("kernel_size", 0, dims, 1)
        stride = tuple(call.each("stride", 1, dims, 0))
        stride = tuple(s or k for s, k in zip(stride, kernel))
        padding, dilation = call.each("padding", 2, dims, 0), call.each("dilation", 9, dims, 1)
        if len(shape) not in (dims + 1, dims + 2):
            raise Mismatch
        extents = []
        for n, k, s, p, d in zip(shape[-dims:], kernel, stride, padding, dilation):
            reach = n + 2 * p - d * (k - 1) - 1
            if reach < 0 or s < 1:
                raise Mismatch
            count = reach // s + 1
            if call.get("ceil_mode", 9, False):
                count = -(-reach // s) + 1
                count -= (count - 1) * s >= n + p
            extents.append(count)
        return _extents(shape[:-dims], tuple(extents), dims)

    return rule


def _adaptive(call: Arguments, x: Value) -> Value:
    shape, wanted = _tensor(x), call.get("output_size", 0)
    sizes = tuple(wanted) if isinstance(wanted, (tuple, list)) else (wanted, wanted)
    if len(shape) < 3 or not all(size is None or isinstance(size, int) for size in sizes):
        raise Mismatch
    return shape[: -len(sizes)] + tuple(
        old if new is None else new for new, old in zip(sizes, shape[-len(sizes) :], strict=True)
    )


def _linear(call: Arguments, x: Value) -> Value:
    shape = _tensor(x)
    if not shape or shape[-1] != call.number("in_features", 0, 0):
        raise Mismatch
    return (*shape[:-1], call.number("out_features", 1, 0))


def _channels(call: Arguments, x: Value) -> Value:
    shape, count = _tensor(x), call.number("num_features", 0, 0)
    if count not in shape[:2]:
        raise Mismatch
    return shape


def _embedding(call: Arguments, x: Value) -> Value:
    return (*_tensor(x), call.number("embedding_dim", 1, 0))


def _one_hot(call: Arguments, x: Value) -> Value:
    return (*_tensor(x), call.number("size", 0, 0))


def _view(call: Arguments, x: Value) -> Value:
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


def _reshape(call: Arguments, x: Value) -> Value:
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


def _flatten(call: Arguments, x: Value) -> Value:
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


def _join(call: Arguments, x: Value) -> Value:
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


def _split(call: Arguments, x: Value) -> Value:
    shape = _tensor(x)
    dim = _dimension(call, shape)
    if shape[dim] > _LONGEST:
        return None
    return [shape[:dim] + shape[dim + 1 :]] * shape[dim]


def _fold(call: Arguments, x: Value) -> Value:
    """Combine the elements of a list: unknown ones have the shape of the known."""
    if not isinstance(x, list) or not x:
        raise Mismatch
    known = [each for each in x if isinstance(each, tuple)]
    if any(prod(each) != prod(known[0]) for each in known):
        return None
    return known[0] if known else None


def _select_table(call: Arguments, x: Value) -> Value:
    index = call.get("index", 0)
    if not isinstance(x, list) or not isinstance(index, int) or not -len(x) <= index < len(x):
        raise Mismatch
    return x[index]


def _narrow_table(call: Arguments, x: Value) -> Value:
    start, length = call.number("start", 0, 0), call.number("length", 1, 1)
    if not isinstance(x, list) or not 0 <= start <= len(x) or length < 0:
        return None
    return x[start : start + length]


def _flat_list(call: Arguments, x: Value) -> Value:
    if not isinstance(x, list) or any(isinstance(each, list) and any(isinstance(e, list) for e in each) for each in x):
        return None
    return [inner for each in x for inner in (each if isinstance(each, list) else [each])][:_LONGEST]


def _reduced(call: Arguments, x: Value) -> Value:
    shape = _tensor(x)
    dim = _dimension(call, shape)
    if call.kwargs.get("squeeze", True) and len(shape) > 1:
        return shape[:dim] + shape[dim + 1 :]
    return (*shape[:dim], 1, *shape[dim + 1 :])


def _select(call: Arguments, x: Value) -> Value:
    shape, dim = _tensor(x), call.number("dim", 0, 0)
    if not -len(shape) <= dim < len(shape):
        raise Mismatch
    dim %= len(shape)
    return shape[:dim] + shape[dim + 1 :]


def _narrow(call: Arguments, x: Value) -> Value:
    shape, dim = _tensor(x), call.number("dim", 0, 0)
    start, length = call.number("start", 1, 0), call.number("length", 2, 1)
    if start < 0 or length < 0 or not -len(shape) <= dim < len(shape):
        return None
    dim %= len(shape)
    if start + length > shape[dim]:
        raise Mismatch
    return (*shape[:dim], length, *shape[dim + 1 :])


def _squeeze(call: Arguments, x: Value) -> Value:
    shape = _tensor(x)
    if call.get("dim", 0) is None:
        example = call.get("n_input_dims", 1)
        batched = example is not None and len(shape) == example + 1 and shape[:1] == (1,)
        return ((1,) if batched else ()) + tuple(each for each in shape if each != 1) or (1,)
    dim = _dimension(call, shape)
    return (shape[:dim] + shape[dim + 1 :] if shape[dim] == 1 else shape) or (1,)


def _unsqueeze(call: Arguments, x: Value) -> Value:
    shape, example = _tensor(x), call.get("n_input_dims", 1)
    dim = call.number("dim", 0, 0) + (0 if example is None else len(shape) - example)
    if not 0 <= dim <= len(shape):
        raise Mismatch
    return (*shape[:dim], 1, *shape[dim:])


def _transpose(call: Arguments, x: Value) -> Value:
    shape, example = list(_tensor(x)), call.kwargs.get("n_input_dims")
    offset = 0 if example is None else len(shape) - example
    for first, second in call.args:
        a, b = first + offset, second + offset
        if not (-len(shape) <= a < len(shape) and -len(shape) <= b < len(shape)):
            raise Mismatch
        shape[a], shape[b] = shape[b], shape[a]
    return tuple(shape)


def _replicate(call: Arguments, x: Value) -> Value:
    shape, example = _tensor(x), call.get("n_input_dims", 2)
    dim = call.number("dim", 1, 0) + (example is not None and len(shape) > example)
    return (*shape[:dim], call.number("times", 0, 1), *shape[dim:])


def _padding(call: Arguments, x: Value) -> Value:
    shape, example = _tensor(x), call.get("n_input_dims", 2)
    dim = call.number("dim", 0, 0) + (example is not None and len(shape) != example)
    if not -len(shape) <= dim < len(shape):
        raise Mismatch
    dim %= len(shape)
    return (*shape[:dim], shape[dim] + abs(call.number("pad", 1, 0)), *shape[dim + 1 :])


def _borders(dims: int) -> Rule:
    def rule(call: Arguments, x: Value) -> Value:
        shape, widths = _tensor(x), call.each("padding", 0, 2 * dims, 0)
        if len(shape) < dims + 1:
            raise Mismatch
        grown = [n + widths[2 * i] + widths[2 * i + 1] for i, n in enumerate(reversed(shape[-dims:]))]
        return _extents(shape[:-dims], tuple(reversed(grown)), dims)

    return rule


def _upsample(call: Arguments, x: Value) -> Value:
    shape, scale = _tensor(x), call.kwargs.get("scale_factor", call.args[0] if call.args else None)
    size = call.kwargs.get("size")
    if len(shape) < 3 or size is not None or not isinstance(scale, (int, float)) or isinstance(scale, bool):
        return None
    return (*shape[:2], *(int(each * scale) for each in shape[2:])) if len(shape) == 4 else None


def _shuffle(call: Arguments, x: Value) -> Value:
    shape, r = _tensor(x), call.number("upscale_factor", 0, 1)
    if len(shape) < 3 or r < 1 or shape[-3] % (r * r):
        raise Mismatch
    return (*shape[:-3], shape[-3] // (r * r), shape[-2] * r, shape[-1] * r)


def _temporal(call: Arguments, x: Value) -> Value:
    shape = _tensor(x)
    if len(shape) not in (2, 3):
        raise Mismatch
    found = _convolution(1)(call, (shape[-1], shape[-2]))
    return (*shape[:-2], found[1], found[0])


def _temporal_pool(call: Arguments, x: Value) -> Value:
    shape = _tensor(x)
    if len(shape) not in (2, 3):
        raise Mismatch
    found = _pooling(1)(call, (shape[-1], shape[-2]))
    return (*shape[:-2], found[1], found[0])


def _pairs(call: Arguments, x: Value) -> Value:
    """Return one number for each example of two lists of vectors."""
    if not isinstance(x, list) or len(x) != 2 or not all(isinstance(each, tuple) for each in x):
        return None
    if len(x[0]) != len(x[1]) or not x[0] or len(x[0]) > 2:
        raise Mismatch
    return x[0][:1] if len(x[0]) == 2 else (1,)


def _product(call: Arguments, x: Value) -> Value:
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


_SAME = (
    "Identity Dropout FeatureDropout WhiteNoise Tanh Sigmoid ReLU ReLU6 LeakyReLU PReLU RReLU ELU CELU SELU GELU SiLU "
    "Softplus Softshrink Hardshrink Hardtanh Tanhshrink Softsign LogSigmoid Softmax Softmin LogSoftmax Softmax2d "
    "ExampleSoftmax Threshold Abs Exp Log Power Square Sqrt Clamp AddConstant MulConstant SAdd Add Mul CMul CAdd "
    "Normalize LocalResponseNorm LocalNormalization LayerNormalization InstanceNorm2d Contiguous Copy Cast Reverse "
    "GradientReversal L1Penalty NoInstanceNorm2d TotalVariation DeepDreamLoss"
)
RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME.split(), _same),
    **{f"Conv{dims}d": _convolution(dims) for dims in (1, 2, 3)},
    **{f"ConvTranspose{dims}d": _transposed(dims) for dims in (1, 2, 3)},
    **{f"FullConvolution{dims}d": _transposed(dims) for dims in (2, 3)},
    **{f"{kind}{dims}d": _pooling(dims) for kind in ("MaxPool", "AvgPool") for dims in (1, 2, 3)},
    **{f"{kind}{dims}d": _pooling(dims) for kind in ("IndexedMaxPool", "SumPool") for dims in (2, 3)},
    **dict.fromkeys(("AdaptiveAvgPool2d", "AdaptiveMaxPool2d"), _adaptive),
    **{f"BatchNorm{dims}d": _channels for dims in (1, 2, 3)},
    **{f"{kind}Pad{dims}d": _borders(dims) for kind in ("Zero", "Reflection", "Replication") for dims in (1, 2, 3)},
    **dict.fromkeys(("CAddTable", "CMulTable", "CSubTable", "CDivTable", "CMaxTable", "CMinTable"), _fold),
    **dict.fromkeys(("Sum", "Max", "Min"), _reduced),
    **dict.fromkeys(("DotProduct", "CosineDistance", "PairwiseDistance"), _pairs),
    **dict.fromkeys(("LookupTable", "Embedding"), _embedding),
    **dict.fromkeys(("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d"), _upsample),
    "Linear": _linear,
    "OneHot": _one_hot,
    "View": _view,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "JoinTable": _join,
    "SplitTable": _split,
    "SelectTable": _select_table,
    "NarrowTable": _narrow_table,
    "FlattenTable": _flat_list,
    "Select": _select,
    "Narrow": _narrow,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Replicate": _replicate,
    "Padding": _padding,
    "PixelShuffle": _shuffle,
    "TemporalConv": _temporal,
    "TemporalMaxPool": _temporal_pool,
    "MM": _product,
}
"""Rules by the last part of a class's dotted name."""
