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
_CANDIDATES = range(5)
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
    facts, matrix = in_lua_of(layer.obj), layer.obj.get("finput")
    if facts.first_row is not None and intact:
        rows = _rows(layer, to_doubles(output), facts.first_row)
        return rows, FROM_FIELD if rows is not None else "", outputs
    if type(layer.module) is nn.Linear and intact and _is_solvable(layer, to_doubles(output)):
        return [to_doubles(output)], FROM_OUTPUT, nearest_outputs
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
    named = {**dict(layer.module.named_parameters()), **layer.tensors}
    weight, bias = named["weight"].double(), named.get("bias", torch.zeros(())).double()
    output = value[0].double()
    solution = torch.linalg.lstsq(weight, (output - bias).reshape(-1, weight.shape[0]).T).solution
    return [((weight @ solution).T + bias).reshape(output.shape)]


def _folded(conv: Any, matrix: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """Return the image whose unfolding is recorded, or the sizes that fit in place of those of the file."""
    kernel, steps, padding = conv.kernel_size, conv.stride, conv.padding
    rank, taps, places = len(kernel), prod(kernel), output.shape[-len(kernel) :]
    batch = output.shape[: output.dim() - rank - 1]
    count = prod(batch) * conv.in_channels * taps * prod(places)
    if len(batch) > 1 or matrix.numel() != count or count > _MOST or matrix.shape[-1] != prod(places):
        return None, ""
    columns = matrix.reshape(-1, taps, *places)
    image = _fold(columns, kernel, steps, padding)
    if image is not None:
        return image.reshape(*batch, conv.in_channels, *image.shape[2:]), FROM_FIELD
    if any(_fold(columns, kernel, steps, other) is not None for other in product(_CANDIDATES, repeat=rank)):
        return None, "its unfolded input has another padding"
    if any(_fold(columns, kernel, other, padding) is not None for other in product(_CANDIDATES[1:], repeat=rank)):
        return None, "its unfolded input has other steps"
    return None, ""


def _fold(columns: Any, kernel: Any, steps: Any, padding: Any) -> Any:
    """Return the images with this unfolding; `None` if there are none, because positions that are one pixel differ."""
    extents = [(place - 1) * step + size for place, step, size in zip(columns.shape[2:], steps, kernel)]
    # Where windows do not overlap, an image has more elements than its unfolding.
    if min(steps) < 1 or min(padding) < 0 or len(columns) * prod(extents) > _LARGER * columns.numel():
        return None
    scatter, gather = (F.conv_transpose2d, F.conv2d) if len(kernel) == 2 else (F.conv_transpose3d, F.conv3d)
    each = torch.eye(columns.shape[1], dtype=columns.dtype).reshape(-1, 1, *kernel)
    hits = scatter(torch.ones_like(columns[:1]), each, stride=steps)
    image = scatter(columns, each, stride=steps) / hits.clamp(min=1)
    # The last pixels of a row, fewer than a step, may be unread.
    margins = [margin for pad, step in zip(padding, steps) for margin in (step - 1 - pad, -pad)][::-1]
    if any(size + sum(margins[2 * at : 2 * at + 2]) < 1 for at, size in enumerate(reversed(image.shape[2:]))):
        return None
    image = F.pad(image, margins)
    again = gather(image, each, stride=steps, padding=padding)
    return image if again.shape == columns.shape and torch.allclose(again, columns, rtol=1e-12, atol=0) else None
