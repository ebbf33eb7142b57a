"""Operations on shapes and positions: views, permutations, slices, joins, repetition, padding, indexing, embeddings.
A function builds the Lua layers of one call of a traced program, by the builder `b`: `b.shape` and `b.dtype` are those
of the call's result, as PyTorch has it. A value is a `Wire`, which is computed when the model runs, a `Const`, or a
tensor of the state dict, `Stored`. An `Extent` is an open size, which depends on those of the inputs: as a number, or
where a comparison has to decide, it is as in the example, and the model refuses inputs for which it is not.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import isfinite, prod
from typing import Any

from ....data import np
from ..build import (
    MOST_COUNTED,
    Axis,
    Builder,
    Const,
    OpenRange,
    Stored,
    Wire,
    broadcast,
    is_parameter,
    lower_triangle,
    number_of,
    operation,
    replace_axis,
)
from ..layers import LuaLayer, make
from ..sizes import CannotError, Extent, in_example, is_static, make_static
from ..trace import CallRef, tree_leaves
from .elementwise import fill_where, is_nonzero, is_positive, reduce_over

_END = 2**63 - 1
"""The end of a slice that has none."""


@operation(
    "view reshape _unsafe_view flatten.using_ints unflatten.int unsqueeze view_as reshape_as",
    lua="nn.View",
)
def view(b: Builder, self: Any) -> Any:
    """Reshape to another shape with the same number of elements."""
    return b.reshape(self, b.shape)


@operation("squeeze squeeze.dim squeeze.dims", lua="nn.View")
def squeeze(b: Builder, self: Any, dim: Any = None) -> Any:
    """Drop dimensions of extent 1; one that depends on the inputs must have another extent, and stays.

    Args:
        b: the builder.
        self: the value.
        dim: a dimension or several; `None` for all.
    """
    rank = len(self.shape)
    axes = list(range(rank))
    if dim is not None and rank:
        dims = [dim] if isinstance(dim, int) else dim
        axes = [axis % rank for axis in dims]
    # What has no dimensions in PyTorch has one element in Lua, which functions of each element treat alike.
    may_have_one_element = len(b.shape) == 1 and _is_only_used_elementwise(b, b.call.name)
    if not may_have_one_element:
        _require_other_extents_than_1([self.shape[axis] for axis in axes])
    if 0 in axes and self.shape[0] == 1:
        text = "squeeze drops the batch of one example: convert with two examples to keep a batch"
        b.remark(text, warning=True)
    return b.reshape(self, b.shape)


def _require_other_extents_than_1(extents: list[Any]) -> None:
    """Add the condition that the extents which depend on the inputs are not 1, as PyTorch would drop them.

    Raises:
        CannotError: one is 1 in the example, and was not in the trace, which is of two examples.
        ChangedError: this was not known before.
    """
    for extent in extents:
        if not isinstance(extent, Extent):
            continue
        # The comparison adds the condition; of an extent that is 1, it would be the opposite one.
        is_dropped = extent.in_example == 1 or not extent > 1
        if is_dropped:
            raise CannotError("drops a dimension whose extent depends on the inputs")


def _is_only_used_elementwise(b: Builder, name: str) -> bool:
    """Return whether all that a program makes of a value is returned, and computed by functions of each element."""
    names = {name}
    for call in b.program.calls:  # each takes values of earlier ones
        if names.isdisjoint(item.name for item in tree_leaves(call.args) if isinstance(item, CallRef)):
            continue
        if not call.is_elementwise:
            return False
        names.add(call.name)
    return True


@operation(
    "contiguous clone alias lift_fresh_copy dropout.none to.dtype to.device to.dtype_layout _to_copy type_as to.other "
    "view.dtype positive",
    lua="none; nn.Copy to whole numbers, a comparison to masks",
)
def same(b: Builder, self: Any) -> Any:
    """Return the same values. Element types are those of the whole model; real values may be complex numbers."""
    wanted = b.dtype
    dtype = b.dtype_of("self")
    if isinstance(self, Stored):  # of which the program has no types
        dtype = str(b.program.state[self.ref.key].dtype).removeprefix("torch.")
    if b.call.op == "aten.view.dtype" and wanted != dtype:
        raise CannotError(f"reads the bits of {dtype} as {wanted}")
    if wanted == dtype or not isinstance(self, (Wire, Const, Stored)):
        return self
    if isinstance(self, Const):  # one that is broadcast to an open shape: others are computed by PyTorch
        if wanted.startswith(("bool", "int", "uint")):
            return b.constant(self.array().astype(wanted), self.shape)
        return self  # Lua's constants are of the model's own type
    return _converted(b, self, dtype, wanted)


def _converted(b: Builder, value: Wire | Stored, dtype: str, wanted: str) -> Any:
    """Return a value of one element type as one of another: with values that this type has.

    Args:
        b: the builder.
        value: the value.
        dtype: its element type in PyTorch; empty if unknown.
        wanted: the other type.

    Raises:
        CannotError: floats become whole numbers without a sign.
    """
    if wanted == "bool":
        return b.wire(value) >> is_nonzero(b, dtype)
    if not dtype.startswith(("float", "bfloat")):  # whole numbers and masks, which are floats in Lua already
        return value
    if wanted.startswith("int"):
        return _rounded_to_0(b.wire(value))
    if not wanted.startswith(("float", "bfloat", "complex")):
        raise CannotError(f"converts to {wanted}")
    _remark_precision(b, wanted)
    return value


def _remark_precision(b: Builder, wanted: str) -> None:
    """Tell the user where floats are not converted to a type, as Lua computes all in that of the whole model."""
    if wanted == "float64" and not b.program.is_double:
        b.remark("float64 parts are computed as float32, as the weights and inputs are float32", warning=True)
    if wanted in ("float16", "bfloat16"):
        b.remark(f"{wanted} parts are computed in the element type of the whole model, without rounding to {wanted}")


def _rounded_to_0(value: Wire) -> Wire:
    """Return floats as whole numbers, rounded to 0 as PyTorch does, by a copy to Lua's integers and one back."""
    force_copy = None
    dont_cast = True  # a model that is cast to another type would cast the integers, too
    to_whole = make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", force_copy, dont_cast)
    to_float = make("nn.Copy", "torch.LongTensor", "torch.FloatTensor")
    return value >> make("nn.ZeroGrad") >> to_whole >> to_float


@operation("detach", lua="nn.ZeroGrad")
def detach(b: Builder, self: Any) -> Any:
    """Return the same values without a gradient."""
    if isinstance(self, Stored):
        return Stored(self.ref, self.shape, learned=False)
    return self >> make("nn.ZeroGrad") if isinstance(self, Wire) else self


@operation("permute transpose.int t mT", lua="nn.Transpose")
def permute(b: Builder, self: Any, dims: Any = None, dim0: int = -2, dim1: int = -1) -> Any:
    """Permute dimensions, or exchange two: the last ones by default, as `t` and `mT` do."""
    if dims is not None:
        return b.permute(self, dims)
    order = list(range(len(self.shape)))
    if len(order) > 1:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    # `t` of a vector is the vector.
    return b.permute(self, order)


@operation("expand expand_as broadcast_to", lua="nn.Replicate")
def expand(b: Builder, self: Any, other: Any = None) -> Any:
    """Repeat along dimensions of extent 1."""
    return b.expand(self, b.shape, like=other if isinstance(other, Wire) else None)


@operation("copy", lua="none: the other value")
def overwritten(b: Builder, self: Any, src: Any) -> Any:
    """Replace all elements.

    The new ones are those of `src`, which broadcasts.
    """
    return b.expand(src, b.shape, like=self if isinstance(self, Wire) else None)


@operation("slice_scatter select_scatter", lua="nn.Narrow, nn.JoinTable")
def with_part(
    b: Builder, self: Any, src: Any, dim: Axis, index: Any = None, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Replace a range of a dimension, or one element of it.

    Args:
        b: the builder.
        self: the value.
        src: the new elements.
        dim: the dimension.
        index: the one element, negative from the end; `None` for a range.
        start: of the range, as in Python; `None` for 0.
        end: likewise; `None` for the end of the dimension.
        step: the distance of two elements of the range.
    """
    extent = self.shape[dim]
    if index is not None:  # one element is a range of one
        start = index if index >= 0 else index + extent
        end = start + 1
        src = b.reshape(src, (*src.shape[:dim], 1, *src.shape[dim:]))
    begin, end = _range(extent, start, end)
    count = (end - begin + step - 1) // step  # rounded up
    if count == 0:
        return self
    # In PyTorch, `src` has this shape. Its extent may be an `Extent` from before the conditions of `_range`, by which
    # `count` is a number: `expand` fixes that, too.
    src = b.expand(src, replace_axis(self.shape, dim, count))
    if step != 1:  # elements that are apart, whose positions have to be numbers
        return b.replace_at(self, np.arange(int(begin), int(end), step), src, dim)
    return _with_range(b, self, src, dim, begin, end)


def _with_range(b: Builder, value: Any, src: Any, dim: int, begin: Any, end: Any) -> Any:
    """Return a value with other elements in a range of a dimension: what is before it, these, and what is behind it.

    Args:
        b: the builder.
        value: the value.
        src: the new elements, of the shape of the range.
        dim: the dimension.
        begin: the first element of the range, 0-based.
        end: the one behind its last.
    """
    extent = value.shape[dim]
    parts = [src]
    if begin != 0:
        before = b.narrow(value, dim, start=0, count=begin)
        parts = [before, *parts]
    if end != extent:
        behind = b.narrow(value, dim, start=end, count=extent - end)
        parts = [*parts, behind]
    return b.concatenate(parts, dim)


def _range(extent: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """Return the first element of a slice, and the one behind its last, both counted from the front.

    A slice that ends before it begins, in the example, is empty: inputs of sizes for which it is not are then refused.
    One that does not needs no condition: nn.Narrow raises an error for sizes for which it would.

    Args:
        extent: of the dimension.
        start: as in Python, negative from the end; `None` for 0.
        end: likewise; `None` or `_END` for the end of the dimension.
    """
    begin = 0 if start is None else _within(extent, start)
    end = extent if end is None or end == _END else _within(extent, end)
    # `in_example` compares without a condition; the comparison of extents makes one of its result.
    if in_example(end) < in_example(begin) and end <= begin:
        end = begin
    return begin, end


def _within(extent: Any, position: Any) -> Any:
    """Return a position of a slice, negative from the end, counted from the front: at most at the ends, as in Python.

    A position that is beyond an end in the example is at that: inputs of sizes for which it is not are then refused.
    Any other needs no condition, as nn.Narrow raises an error beyond the ends.
    """
    size = in_example(extent)
    # The second comparison, of extents, makes its result a condition.
    if in_example(position) < -size and extent <= -position:
        return 0
    if in_example(position) > size and extent <= position:
        return extent
    return position if in_example(position) >= 0 else position + extent


def strided(b: Builder, value: Any, axis: int, start: Any, count: Any, step: int) -> Any:
    """Return every `step`-th element of a dimension.

    Args:
        b: the builder.
        value: the value.
        axis: the dimension.
        start: the first element, 0-based: a number or an `Extent`.
        count: the number of elements that are returned: likewise.
        step: the distance of two of them.
    """
    if step == 1:
        return b.narrow(value, axis, start, count)
    start, count = make_static(start, count)
    # Of an open extent, the comparison makes its result a condition.
    if start + count * step <= value.shape[axis]:
        # The first column of a matrix with rows of `step` elements.
        part = b.narrow(value, axis, start, count * step)
        rows = b.reshape(part, replace_axis(value.shape, axis, count, step))
        return b.select(rows, axis + 1, 0)
    # The last row of the matrix would reach beyond the end.
    return b.gather_constant(value, start + step * np.arange(count), axis)


@operation("select.int", lua="nn.Select")
def select(b: Builder, self: Any, dim: Axis, index: int) -> Any:
    """Take one element of a dimension."""
    extent = self.shape[dim]
    if isinstance(index, int) and isinstance(extent, int):
        return b.select(self, dim, index % extent)
    if isinstance(index, int) and isinstance(self, Wire):
        # Of an open extent, a negative index stays one: nn.Select counts these from the end, and others from 1.
        position = index + 1 if index >= 0 else index
        shape = b.shape or (1,)  # Lua has no tensor without dimensions
        return b.emit(make("nn.Select", dim + 1, position), self, shape=shape)
    # By an index that depends on the inputs, or of a constant or weight that is repeated along an open dimension.
    raise CannotError("takes an element of the batch")


@operation("slice.Tensor", lua="nn.Narrow; with a step nn.View and nn.Select")
def slice_(b: Builder, self: Any, dim: Axis, start: Any, end: Any, step: int) -> Any:
    """Take a range of a dimension.

    Args:
        b: the builder.
        self: the value.
        dim: the dimension.
        start: of a slice in Python: a number or an `Extent`, negative from the end; `None` for 0.
        end: likewise; `None` or `_END` for the end of the dimension.
        step: at least 1.
    """
    if b.shape == self.shape:
        return self
    count = b.shape[dim]
    # An open range that is empty in the example is so for all inputs: `make_static` fixes it, and `emit` refuses it.
    if in_example(count) == 0:
        make_static(count)
    # First by the layer for any extent: all other ways add conditions on open extents. A constant or weight needs no
    # layer.
    if isinstance(self, Wire) and step == 1:
        narrow = _narrow_to_end(dim, start, end)
        if narrow is not None:
            return b.emit(narrow, self, shape=b.shape)
    begin, end = _range(self.shape[dim], start, end)
    if isinstance(count, Extent):
        # PyTorch's expression of the number has cases, for a slice that reaches beyond the end and one that does not.
        # `_range` has decided which it is, so that there is a simpler one.
        count = (end - begin + step - 1) // step  # rounded up
    return strided(b, self, dim, begin, count, step)


def _narrow_to_end(axis: int, start: Any, end: Any) -> LuaLayer | None:
    """Return nn.Narrow for a range up to a distance from the end, x[2:] or x[2:-1], of a dimension of any extent.

    Args:
        axis: the dimension.
        start: as in Python; `None` for 0.
        end: likewise; `None` or `_END` for the end of the dimension.

    Returns:
        `None` for another range.
    """
    begin = 0 if start is None else start
    if not isinstance(begin, int) or begin < 0 or not isinstance(end, (int, type(None))):
        return None
    if end is None or end >= _END:
        return make("nn.Narrow", axis + 1, begin + 1, -1)  # a length of -1 is all that follows
    if end < 0:
        return make("nn.Narrow", axis + 1, begin + 1, end - 1)  # -2 is all but the last
    return None


@operation(
    "split.Tensor split.sizes split_with_sizes chunk tensor_split.sections unsafe_chunk unsafe_split.Tensor",
    lua="nn.Narrow",
)
def split(b: Builder, self: Any, dim: Axis) -> Any:
    """Cut a dimension into ranges."""
    ends = accumulate((shape[dim] for shape in b.shape), initial=0)  # of the shapes of all results
    return [b.narrow(self, dim, start, end - start) for start, end in pairwise(ends)]


@operation("unbind.int", lua="nn.Select")
def unbind(b: Builder, self: Any, dim: Axis) -> Any:
    """Take each element of a dimension."""
    return [b.select(self, dim, index) for index in range(int(self.shape[dim]))]


@operation("stack", lua="nn.View, nn.JoinTable")
def stack(b: Builder, tensors: Any, dim: Axis) -> Any:
    """Join along a new dimension."""
    return b.concatenate([b.reshape(value, (*value.shape[:dim], 1, *value.shape[dim:])) for value in tensors], dim)


@operation("cat concat concatenate", lua="nn.JoinTable")
def cat(b: Builder, tensors: Any, dim: Axis) -> Any:
    """Join along a dimension."""
    return b.concatenate(tensors, dim)


@operation(
    "tril triu",
    lua="nn.CMaxTable and nn.CMinTable with bounds by the mask; counted positions, where the extents depend "
    "on the inputs",
)
def triangle_of(b: Builder, self: Any, diagonal: int) -> Any:
    """Return the lower or upper triangle of matrices, and 0 elsewhere.

    It ends or begins with a diagonal, which is counted as `torch.tril` does: 0 is the main one.
    """
    is_lower = b.kind == "tril"
    size = self.shape[-2:]
    if is_static(size):
        triangle = np.tril if is_lower else np.triu
        is_outside = b.constant(triangle(np.ones(size, bool), diagonal) == 0)
        return fill_where(b, b.wire(self), is_outside, 0.0)
    # The upper triangle is what is outside of the lower one that ends a diagonal below.
    lower = lower_triangle(b, size, diagonal if is_lower else diagonal - 1)
    mask = lower if is_lower else 1 - lower
    number = number_of(self)
    if number is None:
        return fill_where(b, self, 1 - mask, 0.0)
    # What is one number everywhere is a single element here: the mask has the open shape.
    if isfinite(number):
        return b.expand(mask * number, b.shape)
    # Infinity times the zeros would be NaN.
    return b.expand(fill_where(b, mask * 0.0, mask, number), b.shape)


@operation("repeat", lua="nn.JoinTable, nn.Replicate")
def repeat(b: Builder, self: Any, repeats: Any) -> Any:
    """Repeat whole dimensions.

    Each is repeated as often as its entry of `repeats` says, which may have further dimensions in front.
    """
    missing = (1,) * (len(repeats) - len(self.shape))
    value = b.reshape(self, (*missing, *self.shape))
    if all(extent == 1 or times == 1 for extent, times in zip(value.shape, repeats)):
        return b.expand(value, b.shape)
    # A dimension that is repeated gets one of extent 1 before it, which is expanded; then both become one again.
    split_shape: list[Any] = []
    expanded_shape: list[Any] = []
    for extent, times in zip(value.shape, make_static(*repeats)):
        if times != 1:
            split_shape.append(1)
            expanded_shape.append(times)
        split_shape.append(extent)
        expanded_shape.append(extent)
    expanded = b.expand(b.reshape(value, split_shape), tuple(expanded_shape))
    return b.reshape(expanded, b.shape)


@operation("flip", lua="nn.Narrow, nn.JoinTable")
def flip(b: Builder, self: Any, dims: Any) -> Any:
    """Reverse dimensions."""
    for dim in dims:
        axis = dim % len(self.shape)
        self = b.gather_constant(self, np.arange(int(self.shape[axis]))[::-1], axis)
    return self


@operation("pixel_shuffle", lua="nn.PixelShuffle")
def pixel_shuffle(b: Builder, self: Any, upscale_factor: int) -> Any:
    """Move channels to pixels."""
    return b.emit(make("nn.PixelShuffle", upscale_factor), self, shape=b.shape)


@operation(
    "constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d",
    lua="nn.SpatialZeroPadding, nn.Padding, nn.SpatialReflectionPadding, nn.SpatialReplicationPadding, "
    "nn.VolumetricReplicationPadding, nn.Narrow",
)
def pad(b: Builder, self: Any, pad: Any, /, mode: str = "", value: Any = 0) -> Any:
    """Pad the last dimensions by a number, or by values inside.

    Args:
        b: the builder.
        self: the value.
        pad: the numbers of elements before and behind each dimension, the last dimension first; negative ones crop.
        mode: of `pad`, which PyTorch refuses with any other: `constant`, `reflect`, `replicate` or `circular`; a call
            without one has that of ATen's schema. The other operations have it in their names, and no such argument.
        value: the number, of the mode `constant`; `None` for 0.
    """
    wire = b.wire(self)
    pad = make_static(*pad)
    if not mode:  # constant_pad_nd, reflection_pad1d, replication_pad1d
        mode = b.kind.partition("_")[0]
    if mode == "constant":
        return constant_pad(b, wire, pad, float(b.as_element(value or 0)))
    if mode == "circular":
        return _circular_pad(b, wire, pad)
    kind = "Reflection" if mode.startswith("reflect") else "Replication"
    return _pad_by_layer(b, wire, pad, kind)


def _circular_pad(b: Builder, value: Wire, pad: tuple[int, ...]) -> Any:
    """Pad the last dimensions by their other ends; `pad` is that of the operation.

    Negative numbers crop first: what is left is repeated.

    Raises:
        CannotError: more is asked for than is left, which PyTorch reads from memory without a value.
    """
    # Before and behind each dimension, the last dimension first.
    for number, (left, right) in enumerate(zip(pad[0::2], pad[1::2]), 1):
        axis = len(value.shape) - number
        extent = int(value.shape[axis])
        kept = np.arange(max(-left, 0), extent - max(-right, 0))
        if max(left, right) > len(kept):
            raise CannotError("circular padding of more elements than are left")
        indices = kept[np.arange(-max(left, 0), len(kept) + max(right, 0)) % len(kept)]
        value = b.gather_constant(value, indices, axis)
    return value


def _pad_by_layer(b: Builder, wire: Wire, pad: tuple[int, ...], kind: str) -> Any:
    """Pad the last dimensions by values inside.

    Args:
        b: the builder.
        wire: the value.
        pad: how many elements before and behind each dimension, the last dimension first, as the layers take them.
        kind: `Reflection` or `Replication`.

    Raises:
        CannotError: nn has no layer for these dimensions.
    """
    rank = len(wire.shape)
    # Both with a batch: `apply_to_images` takes any three dimensions for those of signals.
    is_signal = len(pad) == 2 and rank == 3
    is_image = len(pad) == 4 and rank == 4
    if is_signal or is_image:
        sides = [*pad, 0, 0] if is_signal else pad  # a signal has no height
        return apply_to_images(b, make(f"nn.Spatial{kind}Padding", *sides), wire, b.shape)
    if len(pad) == 6 and kind == "Replication":
        return b.emit(make("nn.VolumetricReplicationPadding", *pad), wire, shape=b.shape)
    raise CannotError("nn has no such padding for values of these dimensions")


def as_image(b: Builder, value: Any) -> Any:
    """Return a signal as an image of height 1."""
    return b.reshape(value, (*value.shape[:-1], 1, value.shape[-1])) if len(value.shape) == 3 else value


def apply_to_images(b: Builder, layer: LuaLayer, value: Any, shape: Any, *others: Any) -> Any:
    """Apply a layer of images or volumes to a value, which may be a signal: it becomes an image of height 1.

    Args:
        b: the builder.
        layer: the layer.
        value: a batch of signals, images or volumes.
        shape: of the result.
        others: further inputs of the layer, as it takes them.
    """
    image_shape = (*shape[:-1], 1, shape[-1]) if len(shape) == 3 else shape
    return b.reshape(b.emit(layer, as_image(b, value), *others, shape=image_shape), shape)


def constant_pad(b: Builder, value: Wire, padding: list[int], number: float) -> Wire:
    """Pad with a number; negative padding cuts.

    Args:
        b: the builder.
        value: the value.
        padding: as in PyTorch: before and behind the last dimension, before and behind the one before it, …
        number: the number.
    """
    rank = len(value.shape)
    padding = list(make_static(*padding))
    if not any(padding):
        return value
    if number == 0 and len(padding) == 4 and rank == 4 and min(padding) >= 0:
        left, right, top, bottom = padding
        batch, channels, height, width = value.shape
        shape = (batch, channels, height + top + bottom, width + left + right)
        return b.emit(make("nn.SpatialZeroPadding", *padding), value, shape=shape)
    for position, amount in enumerate(padding):
        axis = rank - 1 - position // 2
        is_before = position % 2 == 0
        if amount < 0:
            count = value.shape[axis] + amount
            value = b.narrow(value, axis, start=-amount if is_before else 0, count=count)
        elif amount:
            value = _padded_on_one_side(b, value, axis, amount, is_before, number)
    return value


def _padded_on_one_side(b: Builder, value: Wire, axis: int, amount: int, is_before: bool, number: float) -> Wire:
    """Pad a dimension before its elements, or behind them.

    Args:
        b: the builder.
        value: the value.
        axis: the dimension, 0-based.
        amount: how many elements are added, at least 1.
        is_before: whether they are before the others.
        number: the new elements.
    """
    # nn.Padding pads before a dimension if the amount is negative.
    args: tuple[Any, ...] = (axis + 1, -amount if is_before else amount)
    if number:
        # Before the number, it takes how many dimensions there are with this one: all, as the batch is counted.
        args = (*args, len(value.shape), number)
    shape = replace_axis(value.shape, axis, value.shape[axis] + amount)
    return b.emit(make("nn.Padding", *args), value, shape=shape)


@operation(
    "zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like empty.memory_format new_empty "
    "empty_like fill.Scalar scalar_tensor",
    lua="nn.Constant",
)
def filled(b: Builder, fill_value: Any = None, value: Any = None, s: Any = None) -> Any:
    """Return a constant."""
    number = 1 if "ones" in b.kind else 0
    for stated in (fill_value, value, s):  # its names in several operations, of which one is stated
        if stated is not None:
            number = stated
    # Lua computes with other types, such as bool and bfloat16, as with floats.
    element = np.dtype(b.dtype if b.dtype.startswith(("float", "int")) else "f4")
    # Of an open shape one element, which is broadcast.
    size = b.shape if is_static(b.shape) else (1,) * len(b.shape)
    return b.constant(np.full(size, b.as_element(number), element), b.shape)


@operation("index.Tensor", lua="nn.LookupTable of nn.Constant for a parameter, nn.Narrow and nn.JoinTable, nn.Index")
def index(b: Builder, self: Any, indices: Any) -> Any:
    """Take elements at constant positions of one dimension.

    Dimensions that follow one another and are indexed together count as one. Computed positions need a layer that nn
    lacks, where it is allowed.

    Args:
        b: the builder.
        self: the value.
        indices: for each dimension a tensor of positions, or `None` for all of it; one at least is a tensor.
    """
    indexed = [(axis, item) for axis, item in enumerate(indices) if item is not None]
    axis, item = indexed[0]
    # A mask gathers as many elements as are true. PyTorch does not trace one among several indices.
    if len(indexed) == 1 and b.dtype_of("indices", axis) == "bool":
        raise CannotError("gathers by a mask")
    if len(indexed) == 2 and axis == 0 and isinstance(item, OpenRange) and item.shape == self.shape[:1]:
        # x[arange(batch), index]: one element of each example.
        _, (other_axis, other_item) = indexed
        return _element_of_each_example(b, self, other_axis, other_item)
    if len(indexed) > 1:  # `axis` becomes the merged dimension
        self, item = _as_one_dimension(b, self, indexed)
    return _at_positions(b, self, axis, item)


@operation("index_select", lua="nn.Narrow and nn.JoinTable, nn.Index, nn.LookupTable")
def index_select(b: Builder, self: Any, dim: Axis, index: Any) -> Any:
    """Take elements at constant positions of one dimension."""
    return _at_positions(b, self, dim, index)


def _at_positions(b: Builder, value: Any, axis: int, positions: Any) -> Any:
    """Return the elements of a dimension at positions, negative ones from the end, whose dimensions replace the one.

    Raises:
        CannotError: they are computed, and a layer for that is not allowed.
    """
    if isinstance(positions, Const):
        return _at_constants(b, value, axis, positions)
    if isinstance(positions, Wire) and "layers" in b.allow:
        return at_indices(b, value, axis, positions)
    raise CannotError("gathers by positions that depend on the inputs")


def _at_constants(b: Builder, value: Any, axis: int, positions: Const) -> Any:
    """Return the elements of a dimension at constant positions of any shape, negative ones from the end."""
    numbers = positions.array()
    if numbers.size and numbers.min() < 0:
        numbers = numbers % int(value.shape[axis])
    elements = b.gather_constant(value, numbers, axis)
    # The positions may be a few that are broadcast, to an open shape, too: their elements are broadcast instead.
    missing = (1,) * (len(positions.shape) - numbers.ndim)
    elements = b.reshape(elements, replace_axis(value.shape, axis, *missing, *numbers.shape))
    return b.expand(elements, replace_axis(value.shape, axis, *positions.shape))


@operation("diagonal_scatter", lua="nn.View, nn.Narrow, nn.JoinTable")
def with_diagonal(b: Builder, self: Any, src: Any, offset: int, dim1: Axis, dim2: Axis) -> Any:
    """Replace a diagonal of two dimensions.

    `src` has the new elements, along its last dimension. `offset` is as `torch.diagonal` counts it: 0 for the main
    diagonal, positive above it.
    """
    flat, order = _with_flat_matrices(b, self, dim1, dim2)
    *lead, rows, columns = (self.shape[axis] for axis in order)
    positions = _positions_of_diagonal(rows, columns, offset)
    diagonals = b.expand(src, (*lead, len(positions)))
    flat = b.replace_at(flat, positions, diagonals, axis=len(lead))
    matrices = b.reshape(flat, (*lead, rows, columns))
    order_back = [order.index(axis) for axis in range(len(order))]
    return b.permute(matrices, order_back)


@operation("diagonal", lua="nn.View, nn.Narrow, nn.JoinTable")
def diagonal(b: Builder, self: Any, offset: int, dim1: Axis, dim2: Axis) -> Any:
    """Return a diagonal of two dimensions as the last.

    `offset` is as `torch.diagonal` counts it: 0 for the main diagonal, positive above it.
    """
    flat, order = _with_flat_matrices(b, self, dim1, dim2)
    *lead, rows, columns = (self.shape[axis] for axis in order)
    return b.gather_constant(flat, _positions_of_diagonal(rows, columns, offset), axis=len(lead))


def _with_flat_matrices(b: Builder, value: Any, dim1: int, dim2: int) -> tuple[Any, list[int]]:
    """Return a value with two dimensions, of rows and columns, moved behind the others and merged to one.

    Args:
        b: the builder.
        value: the value.
        dim1: the dimension of the rows.
        dim2: that of the columns.

    Returns:
        The value; and the order in which its dimensions were before the two were merged, by their old numbers.
    """
    order = [axis for axis in range(len(value.shape)) if axis not in (dim1, dim2)] + [dim1, dim2]
    rows, columns = make_static(value.shape[dim1], value.shape[dim2])
    matrices = b.permute(value, order)
    return b.reshape(matrices, (*matrices.shape[:-2], rows * columns)), order


def _positions_of_diagonal(rows: int, columns: int, offset: int) -> Any:
    """Return the positions of a diagonal among the elements of a matrix, row by row."""
    return np.diagonal(np.arange(rows * columns).reshape(rows, columns), offset)


def _element_of_each_example(b: Builder, value: Any, axis: int, item: Any) -> Any:
    """Return one element of a dimension of each example, by an index for each.

    Args:
        b: the builder.
        value: the value.
        axis: the dimension, which has to be the one behind the batch.
        item: the indices, one for each example.

    Raises:
        CannotError: it is another dimension, the indices are not computed or not one for each example, or the layer
            for that is not allowed.
    """
    if axis != 1 or not isinstance(item, Wire) or len(item.shape) != 1 or "layers" not in b.allow:
        raise CannotError("gathers by positions that depend on the inputs; --allow layers writes one for each example")
    # The index of an example is that of all elements behind the dimension.
    shape = replace_axis(value.shape, 1, 1)
    column = b.reshape(item, (item.shape[0], *(1,) * (len(shape) - 1)))
    elements = gather(b, value, dim=1, index=b.expand(column, shape))
    return b.reshape(elements, b.shape)


def _as_one_dimension(b: Builder, value: Any, indexed: list[tuple[int, Any]]) -> tuple[Any, Any]:
    """Return a value with indexed dimensions merged to one, and the indices into that.

    Args:
        b: the builder.
        value: the value.
        indexed: the dimensions, which have to follow one another, each with its indices.

    Raises:
        CannotError: the dimensions are apart.
    """
    axes = [axis for axis, _ in indexed]
    first = axes[0]
    behind = first + len(indexed)
    if axes != list(range(first, behind)):
        raise CannotError("gathers in dimensions that are apart")
    extents = make_static(*value.shape[first:behind])
    indices = [b.constant(item.array()) if isinstance(item, OpenRange) else item for _, item in indexed]
    merged = b.reshape(value, (*value.shape[:first], prod(extents), *value.shape[behind:]))
    return merged, _merged_indices(b, indices, extents)


def _merged_indices(b: Builder, indices: list[Any], extents: tuple[int, ...]) -> Any:
    """Return indices of several dimensions, which broadcast, as indices of the dimension that these are merged to.

    Args:
        b: the builder.
        indices: of each dimension, negative ones from its end.
        extents: of each dimension.
    """
    if all(isinstance(index, Const) for index in indices):
        numbers = [index.array() % extent for index, extent in zip(indices, extents)]  # from the front
        shape = broadcast(*(index.shape for index in indices))
        return b.constant(np.ravel_multi_index(numbers, extents), shape)
    # i, j, k of dimensions of extents I, J, K: (i * J + j) * K + k.
    total, *others = (_from_front(b, index, extent) for index, extent in zip(indices, extents))
    for number, extent in zip(others, extents[1:]):
        total = b.combine("nn.CAddTable", b.wire(total) * extent, number)
    return total


def _from_front(b: Builder, index: Any, extent: int) -> Any:
    """Return indices of a dimension with its extent added to negative ones, which count from the end."""
    if isinstance(index, Const):
        return b.constant(index.array() % extent, index.shape)
    is_negative = -b.wire(index) >> is_positive(b, "int64")
    return b.wire(index) + is_negative * extent


@operation(
    "index_put",
    lua="nn.CMaxTable and nn.CMinTable by a mask; nn.Narrow and nn.JoinTable",
    note="Computed positions, and sums: pt.Scatter, where `--allow layers` permits it.",
)
def index_put(b: Builder, self: Any, indices: Any, values: Any, accumulate: bool) -> Any:
    """Replace elements where a mask is true by one number, or replace or add to slices at indices of a dimension.

    Args:
        b: the builder.
        self: the value.
        indices: for each dimension a mask or a tensor of positions, or `None`.
        values: the new elements, which broadcast.
        accumulate: whether they are added to the old ones.
    """
    indexed = [(axis, item) for axis, item in enumerate(indices) if item is not None]
    if len(indexed) > 1:
        raise CannotError("replaces elements at positions of several dimensions")
    ((axis, item),) = indexed
    if b.dtype_of("indices", axis) == "bool":
        number = number_of(values)
        if number is None or accumulate:
            raise CannotError("replaces elements by as many as a mask has, or adds to them")
        return _filled_by_mask(b, self, axis, item, number)
    values = b.expand(values, replace_axis(self.shape, axis, *item.shape))
    if isinstance(item, Const):
        item = b.constant(item.array() % int(self.shape[axis]), item.shape)  # negative ones from the end
        if not accumulate:
            return _replaced_at_constants(b, self, axis, item, values)
    is_one_row = len(item.shape) <= 1  # `_scattered` takes no other
    if "layers" not in b.allow or not is_one_row:
        raise CannotError("adds to elements, or chooses them by the inputs; --allow layers writes a layer")
    return _scattered(b, self, axis, item, values, accumulate)


def _replaced_at_constants(b: Builder, value: Any, axis: int, positions: Const, values: Any) -> Any:
    """Return a value with other slices at constant positions of a dimension, not negative and of any shape.

    `values` are the slices: the dimensions of the positions are in place of the one.
    """
    numbers = np.broadcast_to(positions.array(), make_static(*positions.shape)).reshape(-1)
    slices = b.reshape(values, replace_axis(value.shape, axis, len(numbers)))
    return b.replace_at(value, numbers, slices, axis)


def _filled_by_mask(b: Builder, value: Any, axis: int, mask: Any, number: float) -> Any:
    """Return a value with a number where a mask is true.

    Args:
        b: the builder.
        value: the value.
        axis: the dimension of the value that is the first one of the mask.
        mask: of this dimension and those that follow it.
        number: the new element.
    """
    behind = len(value.shape) - axis - len(mask.shape)
    mask = b.reshape(mask, (*(1,) * axis, *mask.shape, *(1,) * behind))
    return b.expand(fill_where(b, value, mask, number), b.shape)


def _scattered(b: Builder, value: Any, axis: int, item: Any, values: Any, accumulate: bool) -> Any:
    """Return a value with other slices at indices of a dimension, or with these added, by pt.Scatter.

    Args:
        b: the builder.
        value: the value: a wire, a constant or a tensor of the state dict.
        axis: the dimension, 0-based.
        item: the indices, a value of one dimension at most: 0-based, or negative from the end, as pt.Scatter takes
            them.
        values: the slices, likewise a value, with as many in the dimension as there are indices.
        accumulate: whether they are added.
    """
    # Constants and weights become nodes, which take the batch from a wire: from the value, or else from the slices.
    values = b.wire(values, like=value if isinstance(value, Wire) else None)
    # The layer takes an index for each element.
    positions = b.reshape(item, (*(1,) * axis, *item.shape, *(1,) * (len(values.shape) - axis - 1)))
    positions = b.expand(b.wire(positions, like=values), values.shape, like=values)
    return b.emit(make("pt.Scatter", axis + 1, accumulate), b.wire(value, like=values), positions, values)


@operation("masked_select", lua="nn.Narrow, nn.JoinTable")
def masked_select(b: Builder, self: Any, mask: Any) -> Any:
    """Return the elements where a constant mask is true."""
    if not isinstance(mask, Const):
        raise CannotError("the number of elements depends on the inputs")
    positions = np.flatnonzero(np.broadcast_to(mask.array(), make_static(*self.shape)))
    row = b.reshape(self, (1, prod(self.shape)))
    return b.reshape(b.gather_constant(row, positions, axis=1), b.shape)


@operation("unfold", lua="nn.Narrow and nn.JoinTable, nn.Index; nn.View, nn.Transpose")
def windows(b: Builder, self: Wire, dimension: Axis, size: int, step: int) -> Any:
    """Return the windows of a dimension, their elements last."""
    extent = int(self.shape[dimension])
    rank = len(self.shape)
    # A row of positions for each window.
    positions = np.arange(0, extent - size + 1, step)[:, None] + np.arange(size)
    elements = b.gather_constant(self, positions, dimension)
    frames = b.reshape(elements, replace_axis(self.shape, dimension, *positions.shape))
    axis_of_elements = dimension + 1
    others = [axis for axis in range(rank + 1) if axis != axis_of_elements]
    return b.permute(frames, (*others, axis_of_elements))


@operation("gather", lua="pt.Gather", package="layers")
def gather(b: Builder, self: Any, dim: Axis, index: Any) -> Any:
    """Return the elements at indices of a dimension."""
    self, index = b.wires(self, index)  # the indices are from 0, which pt.Gather takes too
    # The indices may cover only the first elements of other dimensions; the layer needs them for all.
    for axis, extent in enumerate(index.shape):
        if axis != dim and extent != self.shape[axis]:
            self = b.narrow(self, axis, start=0, count=extent)
    return b.emit(make("pt.Gather", dim + 1), self, index, shape=index.shape)


@operation("scatter.src scatter.value scatter_add", lua="pt.Scatter", package="layers")
def scatter(b: Builder, self: Any, dim: Axis, index: Any, src: Any = None, value: Any = None) -> Any:
    """Replace the elements at indices of a dimension, or add to them.

    Args:
        b: the builder.
        self: the tensor.
        dim: the dimension.
        index: from 0, which pt.Scatter takes too; of as many dimensions.
        src: the new elements, or what is added; `None` if `value` is given.
        value: the number that replaces all.
    """
    if src is None:
        src = b.constant(float(b.as_element(value)), index.shape)
    self, index, src = b.wires(self, index, src)
    for axis, extent in enumerate(index.shape):
        # PyTorch takes fewer in other dimensions and leaves the rest of the tensor; pt.Scatter takes one for each.
        if axis != dim and extent != self.shape[axis]:
            raise CannotError("the indices do not cover the other dimensions")
        src = b.narrow(src, axis, start=0, count=extent)  # of which PyTorch uses as many as there are indices
    adds = b.kind == "scatter_add"
    return b.emit(make("pt.Scatter", dim + 1, adds), self, index, src)


def at_indices(b: Builder, value: Any, axis: int, index: Wire) -> Any:
    """Return slices of a value at indices of a dimension that are computed, by pt.Gather.

    Args:
        b: the builder.
        value: the value.
        axis: the dimension.
        index: the indices, of any shape, whose dimensions take the place of the one.
    """
    # As one row, which is repeated along the other dimensions: the layer takes an index for each element.
    count = prod(index.shape)
    behind = len(value.shape) - axis - 1
    row = b.reshape(index, (*(1,) * axis, count, *(1,) * behind))
    shape = replace_axis(value.shape, axis, count)
    positions = b.expand(row, shape, like=value if isinstance(value, Wire) else None)
    slices = gather(b, b.wire(value, like=index), dim=axis, index=positions)
    return b.reshape(slices, replace_axis(value.shape, axis, *index.shape))


def _rows_layer(weight: Stored, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    """Return a layer that looks up rows by indices from 0.

    Args:
        weight: a parameter, the table.
        padding_idx: the row that does not learn; negative for none.
        scale_grad_by_freq: whether gradients are divided by the number of times that a row occurs.
    """
    args = weight.ref.size
    if padding_idx >= 0:
        args = (*args, padding_idx + 1)
    calls = (("scaleGradByFreq", ()),) if scale_grad_by_freq else ()
    return make("nn.AddConstant", 1) >> make("nn.LookupTable", *args, calls=calls, weight=weight.ref)


@operation("embedding", lua="nn.LookupTable, after nn.AddConstant(1), as Lua counts from 1")
def embedding(b: Builder, weight: Any, indices: Any, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    """Look up rows.

    Constant indices become ranges of rows, where no option has to do with gradients. Others are taken by
    nn.LookupTable if the table is a parameter, and gathered if not.

    Args:
        b: the builder.
        weight: the table of rows.
        indices: from 0, of any shape.
        padding_idx: the row that does not learn; negative for none.
        scale_grad_by_freq: whether gradients are divided by the number of times that a row occurs.
    """
    if isinstance(indices, Const):
        # Only nn.LookupTable, which holds a parameter, scales gradients, or leaves out those of the padding.
        has_option = scale_grad_by_freq or (indices.array() == padding_idx).any()
        if not has_option or not is_parameter(weight):
            return _rows_at_constants(b, weight, indices)
    indices = b.wire(indices)
    if is_parameter(weight):
        return _looked_up(b, weight, indices, padding_idx, scale_grad_by_freq)
    if "layers" not in b.allow:
        raise CannotError("the rows are computed, or are not a parameter; --allow layers gathers them")
    return at_indices(b, b.wire(weight, like=indices), axis=0, index=indices)


def _rows_at_constants(b: Builder, weight: Any, indices: Const) -> Any:
    """Return rows of a table by constant indices, in the shape of the result."""
    numbers = indices.array()
    flat_rows = b.gather_constant(weight, numbers, axis=0)
    rows = b.reshape(flat_rows, (*numbers.shape, *weight.shape[1:]))
    return b.expand(rows, b.shape)  # the indices may be a few that are broadcast


def _looked_up(b: Builder, weight: Stored, indices: Wire, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    """Look up rows of a parameter by nn.LookupTable.

    Args:
        b: the builder, whose call has the result's shape.
        weight: the table, of two dimensions.
        indices: from 0, of any shape.
        padding_idx: the row that does not learn; negative for none.
        scale_grad_by_freq: whether gradients are divided by the number of times that a row occurs.
    """
    matrix = indices
    if len(indices.shape) not in (1, 2):  # nn.LookupTable takes a vector or a matrix
        matrix = b.reshape(indices, (*indices.shape[:1], prod(indices.shape[1:])))
    layer = _rows_layer(weight, padding_idx, scale_grad_by_freq)
    _, width = weight.ref.size
    return b.reshape(b.emit(layer, matrix, shape=(*matrix.shape, width)), b.shape)


@operation("arange.start_step arange.start arange", lua="none: offsets of bags of embeddings")
def steps(b: Builder, start: Any = 0, step: Any = 1) -> Any:
    """Return numbers in steps up to one that depends on the inputs."""
    if start != 0 or step != int(step):
        raise CannotError("counts from another number than 0, or in other steps than whole ones")
    # If they are counted when the model runs, they are at most `MOST_COUNTED`.
    last = MOST_COUNTED * int(step)
    b.bounds[b.call.name] = (min(0, last), max(0, last))
    return OpenRange(int(step), b.shape)


@operation(
    "embedding_bag.padding_idx embedding_bag",
    lua="nn.LookupTable, nn.Sum, nn.Mean or nn.Max",
    missing="bags keep no offsets, sizes or positions of maxima in nn",
)
def embedding_bag(
    b: Builder,
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Any,
    include_last_offset: bool,
    padding_idx: Any = None,
) -> Any:
    """Look up rows and reduce each bag.

    Args:
        b: the builder.
        weight: the table of rows, a parameter.
        indices: of the rows of all bags, one bag after the other.
        offsets: where each bag begins among the indices.
        scale_grad_by_freq: see `_rows_layer`.
        mode: PyTorch's number of the reduction: 0 for a sum, 1 for a mean, 2 for a maximum.
        per_sample_weights: by which the rows are multiplied, one for each index; `None` for none.
        include_last_offset: whether the offsets end with the number of indices.
        padding_idx: a row that does not count in its bag, which is refused; negative or `None` for none.
    """
    if not is_parameter(weight) or not isinstance(indices, Wire):
        raise CannotError("the rows or the indices are not a parameter and an input")
    if padding_idx is not None and padding_idx >= 0:
        raise CannotError("a row does not count in its bag")
    # Bags of equal size are the rows of a matrix.
    shape_of_value, *_ = b.shape  # of four results, of which the others are `missing`
    bags, _ = shape_of_value
    size_of_bags = _size_of_bags(offsets, indices, include_last_offset)
    matrix = b.reshape(indices, (bags, size_of_bags))
    layer = _rows_layer(weight, padding_idx=-1, scale_grad_by_freq=scale_grad_by_freq)
    _, width = weight.ref.size
    value = b.emit(layer, matrix, shape=(bags, size_of_bags, width))
    if per_sample_weights is not None:
        value = value * b.reshape(per_sample_weights, (bags, size_of_bags, 1))
    reductions = ("nn.Sum", "nn.Mean", "nn.Max")  # by PyTorch's number of the mode
    return reduce_over(b, reductions[mode], value, [1])


def _size_of_bags(offsets: Any, indices: Wire, include_last_offset: bool) -> Any:
    """Return the number of indices in each bag.

    Args:
        offsets: where each bag begins.
        indices: those of all bags.
        include_last_offset: whether the offsets end with the number of indices.

    Raises:
        CannotError: the bags have not all the same size, one at least, or it depends on the inputs.
    """
    if isinstance(offsets, OpenRange):  # 0, step, 2 step, …
        return offsets.step
    if not isinstance(offsets, Const):
        raise CannotError("the sizes of the bags depend on the inputs")
    count = int(indices.shape[0])
    bounds = [int(offset) for offset in offsets.array().reshape(-1)]
    if not include_last_offset:
        bounds.append(count)
    sizes = {end - start for start, end in pairwise(bounds)}
    if len(sizes) != 1 or sizes == {0} or bounds[0] != 0:
        raise CannotError("the bags have different sizes")
    return sizes.pop()
