"""Inputs of layers that follow from their own fields, where no layer's output is their input. May import graph.

The CPU's convolutions keep their unfolded input; the rows of a lookup table are found in its output; the input of a
linear layer with more outputs than inputs is solved for.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...data import define
from ...graph.tensor import Tensor
from ...nn.registry import in_lua_of
from .layer import Compute, LiveLayer, RefusedError, Values, outputs, to_doubles
from .runs import Recorded

FROM_FIELD = "its input was computed from its own fields"
FROM_OUTPUT = "its input was computed from its output, which has more numbers"
_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_MOST = 1 << 26
"""Elements of a matrix: 512 MiB in double precision."""
_WORST = 1e4
"""Largest condition number of equations that are solved: with it half of the seven digits of a float are left."""
_LARGER = 64
"""Times that an image may be larger than its unfolding: as with kernels of 1 x 1 and steps of 8."""
_OTHER_PADDINGS = range(5)
_OTHER_STEPS = range(1, 5)
"""Paddings and steps that are tried to show that the unfolded input is of other sizes than those of the file."""


@define(frozen=True)
class Derived:
    """An input that follows from other fields of its layer.

    Attributes:
        inputs: the input, or what stands for it.
        reason: where it comes from.
        function: what computes the output of it.
    """

    inputs: Values
    reason: str
    function: Compute = outputs


def check_kernel(layer: LiveLayer) -> None:
    """Compare the extents of a convolution's kernel with those of its weights.

    Raises:
        RefusedError: they differ.
    """
    if not isinstance(layer.module, _CONVOLUTIONS):
        return
    # Lua names width, height and time; PyTorch has the width last.
    for name, extent in zip(("kW", "kH", "kT"), reversed(layer.module.kernel_size)):
        size = layer.obj.get(name)
        if isinstance(size, float) and size != extent:
            raise RefusedError(f"{name} = {size:g} does not fit its weight, which has {extent}")


def derived_input(layer: LiveLayer, output: Recorded, is_intact: bool) -> Derived | None:
    """Return the input of a layer as its other fields determine it; `None` if they do not.

    Args:
        layer: the layer.
        output: its recorded output.
        is_intact: whether that is in the file as it was computed.

    Raises:
        RefusedError: the fields contradict one another.
    """
    if not isinstance(output, Tensor) or output.numel > _MOST:
        return None
    facts = in_lua_of(layer.obj)
    if facts.first_row is not None and is_intact:
        rows = _rows(layer, to_doubles(output), facts.first_row)
        return Derived(rows, FROM_FIELD) if rows is not None else None
    if type(layer.module) is nn.Linear and is_intact and _is_solvable(layer, to_doubles(output)):
        return Derived([to_doubles(output)], FROM_OUTPUT, nearest_outputs)
    matrix = layer.obj.get("finput")
    if facts.unfolds and isinstance(matrix, Tensor) and isinstance(layer.module, _CONVOLUTIONS):
        image = _folded(layer.module, to_doubles(matrix), to_doubles(output))
        return Derived(image, FROM_FIELD) if image is not None else None
    return None


def _rows(layer: LiveLayer, output: torch.Tensor, first: int) -> torch.Tensor | None:
    """Return the numbers of the rows of a table that are closest to the outputs."""
    table: Any = layer.module.weight
    if output.shape[-1] != table.shape[-1] or layer.obj.get("maxNorm") is not None:
        return None
    rows = output.reshape(-1, output.shape[-1])
    if len(rows) * len(table) > _MOST or not bool(rows.isfinite().all()):
        return None
    nearest = torch.cdist(rows, table).argmin(1)
    # A row further from the output than from zero was chosen by chance.
    by_chance = (table[nearest] - rows).square().sum(1) > rows.square().sum(1)
    if bool(by_chance.any()):
        return None
    return (nearest + first).double().reshape(output.shape[:-1] or (1,))


def _is_solvable(layer: LiveLayer, output: torch.Tensor) -> bool:
    """Return whether a linear layer has more outputs than inputs, and these determine the inputs."""
    weight: Any = layer.module.weight
    if weight.shape[0] != output.shape[-1] or weight.shape[0] <= weight.shape[1]:
        return False
    if not weight.isfinite().all() or not output.isfinite().all():
        return False
    values = torch.linalg.svdvals(weight)
    return bool(values[-1] * _WORST > values[0])


def nearest_outputs(layer: LiveLayer, value: Values) -> list[torch.Tensor]:
    """Return the outputs of a linear layer that are closest to recorded ones: those of the input solved for from these.

    Args:
        layer: the layer, of more outputs than inputs.
        value: a list with the recorded output.
    """
    # Weights with errors of rounding take the place of the layer's own.
    tensors = {**dict(layer.module.named_parameters()), **layer.tensors}
    weight = tensors["weight"].double()
    bias = tensors.get("bias", torch.zeros(())).double()
    output = value[0].double()
    columns = (output - bias).reshape(-1, weight.shape[0]).T
    inputs = torch.linalg.lstsq(weight, columns).solution
    return [((weight @ inputs).T + bias).reshape(output.shape)]


def _folded(conv: Any, matrix: torch.Tensor, output: torch.Tensor) -> torch.Tensor | None:
    """Return the image whose unfolding is recorded; `None` if that is of another image than the output.

    Args:
        conv: the live convolution.
        matrix: the unfolding.
        output: the recorded output.

    Raises:
        RefusedError: it is the unfolding by another padding or other steps than those of the file.
    """
    kernel = conv.kernel_size
    rank = len(kernel)
    places = output.shape[-rank:]
    batch = output.shape[: output.dim() - rank - 1]
    count = prod(batch) * conv.in_channels * prod(kernel) * prod(places)
    if len(batch) > 1 or count > _MOST:
        return None
    if matrix.numel() != count or matrix.shape[-1] != prod(places):
        return None
    columns = matrix.reshape(-1, prod(kernel), *places)
    image: torch.Tensor | None = _fold(columns, kernel, conv.stride, conv.padding)
    if image is not None:
        return image.reshape(*batch, conv.in_channels, *image.shape[2:])
    for padding in product(_OTHER_PADDINGS, repeat=rank):
        if _fold(columns, kernel, conv.stride, padding) is not None:
            raise RefusedError("its unfolded input has another padding")
    for steps in product(_OTHER_STEPS, repeat=rank):
        if _fold(columns, kernel, steps, conv.padding) is not None:
            raise RefusedError("its unfolded input has other steps")
    return None


def _fold(columns: Any, kernel: Any, steps: Any, padding: Any) -> Any:
    """Return the images with this unfolding; `None` if there are none, because positions that are one pixel differ.

    Args:
        columns: the unfolding: (images and channels, positions in the kernel, places of the kernel).
        kernel: extents of the kernel.
        steps: strides.
        padding: pixels of zeros at each side.
    """
    if min(steps) < 1 or min(padding) < 0:
        return None
    extents = [(place - 1) * step + size for place, step, size in zip(columns.shape[2:], steps, kernel)]
    # Where windows do not overlap, an image has more elements than its unfolding.
    if len(columns) * prod(extents) > _LARGER * columns.numel():
        return None
    if len(kernel) == 2:
        scatter: Any = F.conv_transpose2d
        gather: Any = F.conv2d
    else:
        scatter = F.conv_transpose3d
        gather = F.conv3d
    # One kernel for each position: it moves this one pixel to its place in the image, or back.
    pixels = torch.eye(columns.shape[1], dtype=columns.dtype).reshape(-1, 1, *kernel)
    hits = scatter(torch.ones_like(columns[:1]), pixels, stride=steps)
    image = scatter(columns, pixels, stride=steps) / hits.clamp(min=1)
    margins: list[int] = []
    for size, step, pad in zip(image.shape[2:], steps, padding):
        # The last pixels of a row, fewer than a step, may be unread.
        before = -pad
        behind = step - 1 - pad
        if size + before + behind < 1:
            return None
        # PyTorch counts dimensions from the last.
        margins = [before, behind, *margins]
    image = F.pad(image, margins)
    again = gather(image, pixels, stride=steps, padding=padding)
    is_unfolding = again.shape == columns.shape and torch.allclose(again, columns, rtol=1e-12, atol=0)
    return image if is_unfolding else None
