"""Shapes: views, permutations, parts, joins, repetition and padding."""

from __future__ import annotations

from math import prod
from typing import Any

from ..build import Builder, CannotError, Const, LearnedTensor, Wire
from ..layers import WeightRef, make, sequential
from ..table import operation
from ..trace import DynamicExtent
from .comparison import above_zero

MOST_PARTS = 256
MOST_CHOICES = 1 << 24


@operation(
    "view.default reshape.default _unsafe_view.default flatten.using_ints unflatten.int squeeze.default squeeze.dim "
    "squeeze.dims unsqueeze.default view_as.default reshape_as.default",
    "nn.View",
)
def view(b: Builder, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Reshape to another shape with the same number of elements."""
    return b.reshape(self, b.shape)


@operation(
    "contiguous.default clone.default alias.default lift_fresh_copy.default detach_.default dropout.none "
    "to.dtype to.device to.dtype_layout _to_copy.default type_as.default to.other view.dtype positive.default",
    "none; nn.Copy to whole numbers, a comparison to masks",
)
def same(b: Builder, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the same values. Element types are those of the whole model."""
    wanted = b.call.dtype
    given = b.dtype_of(b.call.args[0])
    if b.call.op == "aten.view.dtype" and wanted != given:
        raise CannotError(f"reads the bits of {given} as {wanted}")
    if not isinstance(self, Wire) or wanted == given or not given.startswith("float"):
        return self
    if wanted == "bool":
        return b.emit(sequential(make("nn.Abs"), above_zero(b, given)), self)
    if wanted.startswith("int"):
        types = ("torch.FloatTensor", "torch.LongTensor")
        cut = make("nn.Copy", *types, None, True)
        return b.emit(sequential(make("nn.ZeroGrad"), cut, make("nn.Copy", *types[::-1])), self)
    if not wanted.startswith(("float", "bfloat")):
        raise CannotError(f"converts to {wanted}")
    if wanted in ("float16", "bfloat16"):
        b.remark(f"{wanted} parts are computed in the element type of the whole model, without rounding to {wanted}")
    return self


@operation("detach.default", "nn.ZeroGrad")
def detach(b: Builder, self: Any) -> Any:
    """Return the same values without a gradient."""
    return b.emit(make("nn.ZeroGrad"), self) if isinstance(self, Wire) else self


@operation("permute.default", "nn.Transpose")
def permute(b: Builder, self: Any, dims: Any) -> Any:
    """Permute dimensions."""
    return b.permute(self, tuple(place % len(self.shape) for place in dims))


@operation("transpose.int swapaxes.default swapdims.default transpose_.default", "nn.Transpose")
def transpose(b: Builder, self: Any, dim0: int, dim1: int) -> Any:
    """Exchange two dimensions."""
    order = list(range(len(self.shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return b.permute(self, tuple(place % len(order) for place in order))


@operation("t.default numpy_T.default mT.default matrix_H.default", "nn.Transpose")
def turned(b: Builder, self: Any) -> Any:
    """Exchange the last two dimensions."""
    return transpose(b, self, -2, -1) if len(self.shape) > 1 else self


@operation("movedim.int movedim.intlist moveaxis.int moveaxis.intlist", "nn.Transpose")
def movedim(b: Builder, self: Any, source: Any, destination: Any) -> Any:
    """Move dimensions."""
    rank = len(self.shape)
    starts = [place % rank for place in ([source] if isinstance(source, int) else source)]
    ends = [place % rank for place in ([destination] if isinstance(destination, int) else destination)]
    order: list[int | None] = [None] * rank
    for start, end in zip(starts, ends):
        order[end] = start
    rest = iter(place for place in range(rank) if place not in starts)
    return b.permute(self, tuple(next(rest) if place is None else place for place in order))


@operation("expand.default expand_as.default broadcast_to.default", "nn.Replicate")
def expand(b: Builder, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Repeat along dimensions of extent 1."""
    like = args[0] if b.call.op == "aten.expand_as.default" and isinstance(args[0], Wire) else None
    return b.expand(self, b.shape, like)


@operation("broadcast_tensors.default", "nn.Replicate")
def broadcast_tensors(b: Builder, tensors: Any) -> Any:
    """Repeat values to a common shape."""
    made = []
    for value, shape in zip(tensors, b.shape):
        like = next((other for other in tensors if isinstance(other, Wire) and other.shape[:1] == shape[:1]), None)
        made.append(b.expand(value, shape, like))
    return made


@operation("copy_.default fill_.Scalar fill_.Tensor zero_.default", "none: the other value")
def overwritten(b: Builder, self: Any, value: Any = 0, non_blocking: bool = False) -> Any:
    """Replace all elements, also in a view of another tensor."""
    import numpy as np

    if isinstance(value, (int, float)):
        value = Const(b.tensor(np.full((1,) * len(b.shape), float(value))), b.shape)
    return b.expand(value, b.shape, self if isinstance(self, Wire) else None)


def narrowed(b: Builder, value: Any, place: int, start: int, count: int) -> Any:
    """Return elements `start` … of a dimension, 0-based."""
    shape = (*value.shape[:place], count, *value.shape[place + 1 :])
    if shape == value.shape:
        return value
    if isinstance(value, Const):
        if value.value.shape[place - len(value.shape)] == 1 and value.shape[place] != 1:
            return Const(value.value, shape)
        return Const(value.value.narrow(place - len(value.shape) + value.value.dim(), start, count), shape)
    own = value.ref.size if isinstance(value, LearnedTensor) and not value.ref.transposed else ()
    if place == 0 and len(own) == len(shape) and own[0] == value.shape[0]:
        step = prod(own[1:])
        return LearnedTensor(WeightRef(value.ref.key, value.ref.start + start * step, (count, *own[1:])), shape)
    return b.emit(make("nn.Narrow", place + 1, start + 1, count), value, shape=shape)


def selected(b: Builder, value: Any, place: int, index: int) -> Any:
    """Return one element of a dimension, 0-based, without the dimension."""
    shape = value.shape[:place] + value.shape[place + 1 :]
    if isinstance(value, (Const, LearnedTensor)):
        part = narrowed(b, value, place, index, 1)
        if (
            place == 0
            and isinstance(part, LearnedTensor)
            and part.ref.size[:1] == (1,)
            and len(part.ref.size) == len(part.shape)
        ):
            return LearnedTensor(b.resized(part.ref, part.ref.size[1:]), shape)
        if place == 0 and isinstance(part, Const) and part.value.dim() == len(part.shape):
            return Const(part.value[0], shape)
        return b.reshape(part, shape)
    made = b.emit(make("nn.Select", place + 1, index + 1), value, shape=shape or (1,))
    return made if shape else Wire(made.step, ())


def strided(b: Builder, value: Any, place: int, start: int, count: int, step: int) -> Any:
    """Return every `step`-th element of a dimension."""
    if step == 1:
        return narrowed(b, value, place, start, count)
    extent = value.shape[place]
    if start + count * step <= extent:
        part = narrowed(b, value, place, start, count * step)
        split = b.reshape(part, (*value.shape[:place], count, step, *value.shape[place + 1 :]))
        return selected(b, split, place + 1, 0)
    if count > MOST_PARTS:
        raise CannotError(f"takes {count} elements with a step")
    return concatenated(b, [narrowed(b, value, place, start + number * step, 1) for number in range(count)], place)


@operation("select.int", "nn.Select")
def select(b: Builder, self: Any, dim: int, index: int) -> Any:
    """Take one element of a dimension."""
    place = dim % len(self.shape)
    extent = self.shape[place]
    if isinstance(extent, str) or isinstance(index, DynamicExtent):
        if isinstance(index, int) and isinstance(self, Wire):
            shape = self.shape[:place] + self.shape[place + 1 :]
            return b.emit(make("nn.Select", place + 1, index + 1 if index >= 0 else index), self, shape=shape or (1,))
        raise CannotError("takes an element of the batch")
    return selected(b, self, place, index % extent)


@operation("slice.Tensor", "nn.Narrow; with a step nn.View and nn.Select")
def slice_(b: Builder, self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Take a range of a dimension."""
    if b.shape == self.shape:
        return self
    place = dim % len(self.shape)
    extent, count = self.shape[place], b.shape[place]
    if isinstance(extent, str) or isinstance(count, str) or isinstance(start, DynamicExtent):
        raise CannotError("takes a part of the batch")
    begin = start or 0
    begin = max(begin + extent, 0) if begin < 0 else min(begin, extent)
    return strided(b, self, place, begin, count, step)


@operation("narrow.default", "nn.Narrow")
def narrow(b: Builder, self: Any, dim: int, start: int, length: int) -> Any:
    """Take a range of a dimension."""
    place = dim % len(self.shape)
    return narrowed(b, self, place, start % self.shape[place], length)


@operation(
    "split.Tensor split_with_sizes.default split.sizes chunk.default tensor_split.sections unsafe_chunk.default "
    "unsafe_split.Tensor",
    "nn.Narrow",
)
def split(b: Builder, self: Any, sizes: Any = None, dim: int = 0, **kwargs: Any) -> Any:
    """Cut a dimension into ranges."""
    place = dim % len(self.shape)
    parts, start = [], 0
    for shape in b.shape:
        parts.append(narrowed(b, self, place, start, shape[place]))
        start += shape[place]
    return parts


@operation("unbind.int", "nn.Select")
def unbind(b: Builder, self: Any, dim: int = 0) -> Any:
    """Take each element of a dimension."""
    place = dim % len(self.shape)
    return [selected(b, self, place, index) for index in range(self.shape[place])]


def concatenated(b: Builder, values: list[Any], place: int) -> Any:
    """Join values along a dimension."""
    values = [value for value in values if value.shape != (0,) and value.shape[place] != 0]
    if len(values) == 1:
        return values[0]
    anchor = next((value for value in values if isinstance(value, Wire)), None)
    wires = [b.wire(value, anchor) for value in values]
    total = sum(wire.shape[place] for wire in wires)
    shape = (*wires[0].shape[:place], total, *wires[0].shape[place + 1 :])
    return b.emit(make("nn.JoinTable", place + 1), *wires, shape=shape)


@operation("cat.default concat.default concatenate.default", "nn.JoinTable")
def cat(b: Builder, tensors: Any, dim: int = 0) -> Any:
    """Join along a dimension."""
    place = dim % len(b.shape)
    if any(isinstance(value.shape[place], str) for value in tensors if len(value.shape) > 1):
        raise CannotError("joins batches")
    return concatenated(b, list(tensors), place)


@operation("stack.default", "nn.View, nn.JoinTable")
def stack(b: Builder, tensors: Any, dim: int = 0) -> Any:
    """Join along a new dimension."""
    place = dim % len(b.shape)
    wide = [b.reshape(value, (*value.shape[:place], 1, *value.shape[place:])) for value in tensors]
    return concatenated(b, wide, place)


@operation("hstack.default vstack.default dstack.default column_stack.default", "nn.View, nn.JoinTable")
def stack_along(b: Builder, tensors: Any) -> Any:
    """Join along the dimension implied by the operation's name."""
    kind = b.call.op.split(".")[1]
    rank = len(b.shape)
    place = {"hstack": min(rank - 1, 1), "vstack": 0, "dstack": 2, "column_stack": 1}[kind]
    if place == 0:
        raise CannotError("joins batches")
    wide = [b.reshape(value, (*value.shape, *(1,) * (rank - len(value.shape)))) for value in tensors]
    return concatenated(b, wide, place)


@operation("tril.default triu.default", "nn.CMulTable with nn.Constant")
def triangle(b: Builder, self: Any, diagonal: int = 0) -> Any:
    """Return the lower or upper triangle of matrices, and 0 elsewhere."""
    import numpy as np

    rows, columns = self.shape[-2:]
    if isinstance(rows, str) or isinstance(columns, str):
        raise CannotError("an extent of the matrix depends on the inputs")
    cut = np.tril if "tril" in b.call.op else np.triu
    keep = Const(b.tensor(cut(np.ones((rows, columns), "f4"), diagonal)), self.shape)
    value = b.wire(self)
    return b.emit(make("nn.CMulTable"), value, b.wire(keep, value))


@operation("one_hot.default", "nn.Replicate, nn.CSubTable with nn.Constant, nn.Abs, nn.HardTanh")
def one_hot(b: Builder, self: Any, num_classes: int = -1) -> Any:
    """Return 1 at the position of an index, and 0 elsewhere."""
    import numpy as np

    if num_classes < 1:
        raise CannotError("the number of classes depends on the inputs")
    value = b.wire(self)
    wide = b.expand(b.reshape(value, (*value.shape, 1)), (*value.shape, num_classes), value)
    places = b.wire(Const(b.tensor(np.arange(num_classes, dtype="f4")), wide.shape), value)
    apart = sequential(make("nn.Abs"), above_zero(b, "int64"), make("nn.MulConstant", -1), make("nn.AddConstant", 1))
    return b.emit(apart, b.emit(make("nn.CSubTable"), wide, places))


@operation("repeat.default tile.default", "nn.JoinTable, nn.Replicate")
def repeat(b: Builder, self: Any, repeats: Any) -> Any:
    """Repeat whole dimensions."""
    value = self
    lead = len(repeats) - len(value.shape)
    value = b.reshape(value, (*(1,) * lead, *value.shape)) if lead > 0 else value
    repeats = [1] * -lead + list(repeats) if lead < 0 else repeats
    if all(extent == 1 or times == 1 for extent, times in zip(value.shape, repeats)):
        return b.expand(value, b.shape)
    for place, times in enumerate(repeats):
        if times == 1:
            continue
        if not isinstance(times, int):
            raise CannotError("a value is repeated for each example of the batch")
        wide = b.reshape(value, (*value.shape[:place], 1, *value.shape[place:]))
        wide = b.expand(wide, (*value.shape[:place], times, *value.shape[place:]))
        value = b.reshape(wide, (*value.shape[:place], times * value.shape[place], *value.shape[place + 1 :]))
    return value


@operation("repeat_interleave.self_int", "nn.Replicate, nn.View")
def repeat_interleave(b: Builder, self: Any, repeats: int, dim: Any = None, **kwargs: Any) -> Any:
    """Repeat each element of a dimension."""
    if dim is None:
        raise CannotError("repeats the elements of a flattened value")
    place = dim % len(self.shape)
    wide = b.reshape(self, (*self.shape[: place + 1], 1, *self.shape[place + 1 :]))
    wide = b.expand(wide, (*self.shape[: place + 1], repeats, *self.shape[place + 1 :]))
    return b.reshape(wide, b.shape)


@operation("flip.default", "nn.Narrow, nn.JoinTable")
def flip(b: Builder, self: Any, dims: Any) -> Any:
    """Reverse dimensions."""
    value = self
    for dim in dims:
        place = dim % len(value.shape)
        extent = value.shape[place]
        if isinstance(extent, str) or extent > MOST_PARTS:
            raise CannotError(f"reverses {extent} elements")
        if extent > 1:
            value = concatenated(b, [narrowed(b, value, place, i, 1) for i in reversed(range(extent))], place)
    return value


@operation("roll.default", "nn.Narrow, nn.JoinTable")
def roll(b: Builder, self: Any, shifts: Any, dims: Any = ()) -> Any:
    """Rotate dimensions."""
    value = self
    shifts = [shifts] if isinstance(shifts, int) else shifts
    dims = [dims] if isinstance(dims, int) else dims
    if not dims:
        raise CannotError("rotates a flattened value")
    for shift, dim in zip(shifts, dims):
        place = dim % len(value.shape)
        extent = value.shape[place]
        cut = (-shift) % extent
        if cut:
            parts = [narrowed(b, value, place, cut, extent - cut), narrowed(b, value, place, 0, cut)]
            value = concatenated(b, parts, place)
    return value


@operation("pixel_shuffle.default", "nn.PixelShuffle")
def pixel_shuffle(b: Builder, self: Any, upscale_factor: int) -> Any:
    """Move channels to pixels."""
    return b.emit(make("nn.PixelShuffle", upscale_factor), self, shape=b.shape)


@operation("pixel_unshuffle.default", "nn.View, nn.Transpose")
def pixel_unshuffle(b: Builder, self: Any, downscale_factor: int) -> Any:
    """Move pixels to channels."""
    n, c, h, w = self.shape
    r = downscale_factor
    value = b.reshape(self, (n, c, h // r, r, w // r, r))
    return b.reshape(b.permute(value, (0, 1, 3, 5, 2, 4)), b.shape)


@operation("channel_shuffle.default", "nn.View, nn.Transpose")
def channel_shuffle(b: Builder, self: Any, groups: int) -> Any:
    """Exchange channels between groups."""
    n, c, *rest = self.shape
    value = b.reshape(self, (n, groups, c // groups, *rest))
    order = (0, 2, 1, *range(3, len(value.shape)))
    return b.reshape(b.permute(value, order), self.shape)


@operation(
    "constant_pad_nd.default pad.default",
    "nn.SpatialZeroPadding, nn.Padding, nn.SpatialReflectionPadding, nn.SpatialReplicationPadding, nn.Narrow",
)
def pad(b: Builder, self: Any, pad: Any, mode: Any = "constant", value: Any = 0) -> Any:
    """Pad the last dimensions."""
    if not isinstance(mode, str):
        mode, value = "constant", mode
    if mode == "constant":
        return constant_pad(b, b.wire(self), list(pad), float(value or 0))
    if mode == "circular":
        made = self
        for number in range(len(pad) // 2):
            place = len(self.shape) - 1 - number
            left, right = pad[2 * number], pad[2 * number + 1]
            extent = made.shape[place]
            parts = [narrowed(b, made, place, extent - left, left)] if left else []
            parts += [made] + ([narrowed(b, made, place, 0, right)] if right else [])
            made = concatenated(b, parts, place)
        return made
    name = {"reflect": "nn.SpatialReflectionPadding", "replicate": "nn.SpatialReplicationPadding"}[mode]
    return edge_pad(b, name, self, list(pad))


@operation("reflection_pad1d.default reflection_pad2d.default", "nn.SpatialReflectionPadding")
def reflection_pad(b: Builder, self: Any, padding: Any) -> Any:
    """Pad with the mirror image."""
    return edge_pad(b, "nn.SpatialReflectionPadding", self, list(padding))


@operation(
    "replication_pad1d.default replication_pad2d.default replication_pad3d.default",
    "nn.SpatialReplicationPadding, nn.VolumetricReplicationPadding",
)
def replication_pad(b: Builder, self: Any, padding: Any) -> Any:
    """Pad with the values at the border."""
    return edge_pad(b, "nn.SpatialReplicationPadding", self, list(padding))


def edge_pad(b: Builder, name: str, value: Any, padding: list[int]) -> Any:
    """Pad images of one to three dimensions by the values inside."""
    shape = b.shape
    wire = b.wire(value)
    if len(padding) == 2 and len(wire.shape) == 3:
        flat = b.reshape(wire, (*wire.shape[:-1], 1, wire.shape[-1]))
        made = b.emit(make(name, *padding, 0, 0), flat, shape=(*shape[:-1], 1, shape[-1]))
        return b.reshape(made, shape)
    if len(padding) == 4 and len(wire.shape) == 4:
        return b.emit(make(name, *padding), wire, shape=shape)
    if len(padding) == 6 and "Replication" in name:
        return b.emit(make("nn.VolumetricReplicationPadding", *padding), wire, shape=shape)
    raise CannotError("nn has no such padding for values of these dimensions")


def constant_pad(b: Builder, value: Wire, padding: list[int], number: float) -> Wire:
    """Pad with a number; negative padding cuts."""
    rank = len(value.shape)
    if number == 0 and len(padding) == 4 and rank == 4 and min(padding) >= 0:
        return b.emit(make("nn.SpatialZeroPadding", *padding), value, shape=b.shape)
    for position in range(len(padding) // 2):
        place = rank - 1 - position
        for amount, first in ((padding[2 * position], True), (padding[2 * position + 1], False)):
            if amount < 0:
                extent = value.shape[place] + amount
                value = narrowed(b, value, place, -amount if first else 0, extent)
            elif amount:
                shape = (*value.shape[:place], value.shape[place] + amount, *value.shape[place + 1 :])
                args = (place + 1, -amount if first else amount)
                layer = make("nn.Padding", *args, rank, number) if number else make("nn.Padding", *args)
                value = b.emit(layer, value, shape=shape)
    return value


@operation(
    "zeros.default ones.default full.default new_zeros.default new_ones.default new_full.default zeros_like.default "
    "ones_like.default full_like.default empty.memory_format scalar_tensor.default",
    "nn.Constant",
)
def filled(b: Builder, *args: Any, **kwargs: Any) -> Any:
    """Return a constant."""
    kind = b.call.op.split(".")[1]
    if "zeros" in kind or "empty" in kind:
        number: Any = 0
    elif "ones" in kind:
        number = 1
    else:
        number = kwargs.get("fill_value", args[-1])
    import numpy as np

    grows = any(isinstance(extent, str) for extent in b.shape)
    element = np.dtype(b.call.dtype if b.call.dtype.startswith(("float", "int")) else "f4")
    return Const(b.tensor(np.full((1,) * len(b.shape) if grows else b.shape, number, element)), b.shape)


def gathered(b: Builder, table: Any, index: Any, place: int) -> Any:
    """Return rows of a table by constant indices; the rows of a learned one stay learned."""
    import numpy as np

    index = index.reshape(-1)
    if len(index) > 1 and np.array_equal(index, np.arange(index[0], index[0] + len(index))):
        return narrowed(b, table, place, int(index[0]), len(index))
    rest = table.shape[:place] + table.shape[place + 1 :]
    if isinstance(table, LearnedTensor) and place == 0 and len(table.ref.size) <= 2 and table.ref.size == table.shape:
        rows, width = table.ref.size if len(table.ref.size) == 2 else (table.ref.size[0], 1)
        numbers = Const(b.tensor((index + 1).astype("f4")), (len(index),))
        wire = b.wire(numbers)
        made = b.emit(
            make("nn.LookupTable", rows, width, weight=b.resized(table.ref, (rows, width))),
            wire,
            shape=(len(index), width),
        )
        return b.reshape(made, (len(index), *rest))
    if len(index) > MOST_PARTS:
        return _picked(b, table, index, place)
    return concatenated(b, [narrowed(b, table, place, int(number), 1) for number in index], place)


def _picked(b: Builder, table: Any, index: Any, place: int) -> Any:
    """Return many elements at constant positions: the product with a matrix with a single 1 in each row."""
    import numpy as np

    extent = table.shape[place]
    if isinstance(extent, str) or len(index) * extent > MOST_CHOICES or len(table.shape) != 2:
        raise CannotError(f"gathers {len(index)} elements by constant positions")
    choice = np.zeros((len(index), extent), "f4")
    choice[np.arange(len(index)), index] = 1
    rows = b.permute(b.wire(table), (1, 0)) if place else b.wire(table)
    made = b.emit(make("nn.MM"), b.wire(Const(b.tensor(choice), choice.shape)), rows, shape=(len(index), rows.shape[1]))
    return b.permute(made, (1, 0)) if place else made


@operation("index.Tensor", "nn.LookupTable of nn.Constant for a parameter, nn.Narrow and nn.JoinTable")
def index(b: Builder, self: Any, indices: Any) -> Any:
    """Take elements at constant positions of one dimension."""
    used = [(place, item) for place, item in enumerate(indices) if item is not None]
    if len(used) != 1 or not isinstance(used[0][1], Const):
        raise CannotError("gathers by positions that depend on the inputs, or in several dimensions")
    place, item = used[0]
    numbers = item.array()
    if numbers.dtype.kind == "u" and b.dtype_of(b.call.args[1][place]) == "bool":
        raise CannotError("gathers by a mask")
    numbers = numbers % self.shape[place] if isinstance(self.shape[place], int) else numbers
    made = gathered(b, self, numbers, place)
    shape = (*self.shape[:place], *numbers.shape, *self.shape[place + 1 :])
    return b.reshape(made, shape)


@operation("index_select.default", "nn.Narrow and nn.JoinTable, nn.LookupTable")
def index_select(b: Builder, self: Any, dim: int, index: Any) -> Any:
    """Take elements at constant positions."""
    if not isinstance(index, Const):
        raise CannotError("gathers by positions that depend on the inputs")
    return gathered(b, self, index.array(), dim % len(self.shape))


@operation("embedding.default", "nn.LookupTable, after nn.AddConstant(1), as Lua counts from 1")
def embedding(
    b: Builder, weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    """Look up rows."""
    if isinstance(indices, Const):
        numbers = indices.array()
        if indices.shape != numbers.shape:
            made = gathered(b, weight, numbers, 0)
            made = b.reshape(made, (*numbers.shape, *weight.shape[1:]))
            return b.expand(made, b.shape)
        return b.reshape(gathered(b, weight, numbers, 0), b.shape)
    if not isinstance(weight, LearnedTensor):
        raise CannotError("the rows are computed, or are not a parameter")
    rows, width = weight.ref.size
    args = (rows, width, padding_idx + 1) if padding_idx >= 0 else (rows, width)
    calls = (("scaleGradByFreq", ()),) if scale_grad_by_freq else ()
    table = make("nn.LookupTable", *args, calls=calls, weight=weight.ref)
    layers = sequential(make("nn.AddConstant", 1), table)
    if len(indices.shape) in (1, 2):
        return b.emit(layers, indices, shape=b.shape)
    count = 1
    for extent in indices.shape[1:]:
        count *= extent
    lead = b.reshape(indices, (indices.shape[0], count))
    made = b.emit(layers, lead, shape=(*lead.shape, width))
    return b.reshape(made, b.shape)
