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

from ...graph.tensor import Tensor
from ...nn.registry import in_lua_of
from .layer import Compute, LiveLayer, Values, outputs, to_doubles
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


def contradiction(layer: LiveLayer) -> str:
    """Return the size of a convolution's kernel that does not match its weights; empty if all match."""
    kernel = layer.module.kernel_size if isinstance(layer.module, _CONVOLUTIONS) else ()
    for name, extent in zip(("kW", "kH", "kT"), reversed(kernel)):
        size = layer.obj.get(name)
        if isinstance(size, float) and size != extent:
            return f"{name} = {size:g} does not fit its weight, which has {extent}"
    return ""


def derived_input(layer: LiveLayer, output: Recorded, intact: bool) -> tuple[Values, str, Compute]:
    """Return the input of a layer from its other fields, the source, and how its output follows from it.

    The input is `None` if the fields do not determine it; the source says why if they contradict one another.

    Args:
        layer: the layer.
        output: its recorded output.
        intact: whether that is in the file as it was.
    """
    if not isinstance(output, Tensor) or output.numel > _MOST:
        return None, "", outputs
    facts = in_lua_of(layer.obj)
    if facts.first_row is not None and intact:
        rows = _rows(layer, to_doubles(output), facts.first_row)
        return rows, FROM_FIELD if rows is not None else "", outputs
    if type(layer.module) is nn.Linear and intact and _is_solvable(layer, to_doubles(output)):
        return [to_doubles(output)], FROM_OUTPUT, nearest_outputs
    matrix = layer.obj.get("finput")
    if facts.unfolds and isinstance(matrix, Tensor) and isinstance(layer.module, _CONVOLUTIONS):
        image, reason = _folded(layer.module, to_doubles(matrix), to_doubles(output))
        return image, reason, outputs
    return None, "", outputs


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
    tensors = {**dict(layer.module.named_parameters()), **layer.tensors}
    weight = tensors["weight"].double()
    bias = tensors.get("bias", torch.zeros(())).double()
    output = value[0].double()
    solution = torch.linalg.lstsq(weight, (output - bias).reshape(-1, weight.shape[0]).T).solution
    return [((weight @ solution).T + bias).reshape(output.shape)]


def _folded(conv: Any, matrix: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """Return the image whose unfolding is recorded, and the source; without one, the sizes that differ from the file's.

    Args:
        conv: the live convolution.
        matrix: the unfolding.
        output: the recorded output.
    """
    kernel = conv.kernel_size
    steps = conv.stride
    padding = conv.padding
    rank = len(kernel)
    places = output.shape[-rank:]
    batch = output.shape[: output.dim() - rank - 1]
    count = prod(batch) * conv.in_channels * prod(kernel) * prod(places)
    if len(batch) > 1 or matrix.numel() != count or count > _MOST or matrix.shape[-1] != prod(places):
        return None, ""
    columns = matrix.reshape(-1, prod(kernel), *places)
    image = _fold(columns, kernel, steps, padding)
    if image is not None:
        return image.reshape(*batch, conv.in_channels, *image.shape[2:]), FROM_FIELD
    for other in product(_OTHER_PADDINGS, repeat=rank):
        if _fold(columns, kernel, steps, other) is not None:
            return None, "its unfolded input has another padding"
    for other in product(_OTHER_STEPS, repeat=rank):
        if _fold(columns, kernel, other, padding) is not None:
            return None, "its unfolded input has other steps"
    return None, ""


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
