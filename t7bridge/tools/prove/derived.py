"""Inputs that are no layer's output but follow from other fields: unfolded images of convolutions, rows of a table, and
solutions of the equations of linear layers.

The CPU convolutions of nn store their input in `finput` as the matrix that is multiplied by the weights: a column for
each position of the kernel. Source: nn 8726825 `lib/THNN/generic/unfold.c`, `SpatialConvolutionMM.c`,
`VolumetricConvolutionMM.c`, `Linear.lua`. May import graph.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from ...data import define
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from .layer import TINY, Compute, nearest_outputs, outputs, to_torch
from .recorded import UNIT, unit_of
from .runs import Run, base_name

FROM_FIELD = "its input was computed from its own fields"
FROM_OUTPUT = "its input was computed from its output, which has more numbers"
_UNFOLDING = ("SpatialConvolution", "SpatialConvolutionMM", "VolumetricConvolution")
"""Classes with `finput`."""
_TABLES = {"LookupTable": 1.0, "LookupTableMaskZero": 0.0}
"""Classes whose output consists of rows of a table, and the number of its first row."""
_MOST = 1 << 26
"""Elements of a matrix: 512 MiB in double precision."""
_WORST = 1e4
"""Largest condition number of equations that are solved: with it half of the seven digits of a float are left."""
_CANDIDATES = range(5)
"""Paddings and steps that are tried in place of those in the file."""


@define(eq=False)
class Derived:
    """An input computed from other fields.

    Attributes:
        given: from what the output is computed, in double precision; `None` if the fields contradict one another.
        reason: how it was computed, or why there is none.
        error: standard deviations of its errors; `None` if it is exact.
        by: how the output follows.
    """

    given: Any
    reason: str = FROM_FIELD
    error: torch.Tensor | None = None
    by: Compute = outputs


def contradiction(obj: TorchObject) -> str:
    """Return the size of a convolution's kernel that does not match its weights; empty if all match."""
    weight, name = obj.get("weight"), base_name(obj.class_name)
    if not obj.class_name.startswith(("nn.", "cudnn.")) or not isinstance(weight, Tensor) or "Local" in name:
        return ""
    rank = 3 if name.startswith("Volumetric") else 2
    if name.startswith(("Spatial", "Volumetric")) and "Convolution" in name and len(weight.size) == rank + 2:
        for field, extent in zip(("kW", "kH", "kT"), reversed(weight.size[-rank:])):
            size = obj.get(field)
            if isinstance(size, float) and size != extent:
                return f"{field} = {size:g} does not fit its weight, which has {extent}"
    return ""


def derived_input(run: Run, intact: bool, later: list[Run]) -> Derived | None:
    """Return the input of a layer from its other fields; `None` if they do not determine it.

    Args:
        run: the run of the layer.
        intact: whether its output is in the file as it was.
        later: the runs after it.
    """
    output, matrix = run.output, run.obj.get("finput")
    if not isinstance(output, Tensor):
        return None
    if run.name in _TABLES:
        return _rows(run, output) if intact else None
    if run.name in ("Linear", "LinearNoBias"):
        return _solved(run, output, intact)
    if run.name in _UNFOLDING and not run.obj.class_name.startswith("cudnn.") and isinstance(matrix, Tensor):
        others = (other.obj.get("finput") for other in later)
        if not any(isinstance(other, Tensor) and other.storage is matrix.storage for other in others):
            return _folded(run, matrix, output)
    return None


def _folded(run: Run, matrix: Tensor, output: Tensor) -> Derived | None:
    """Return the image whose unfolding is recorded."""
    letters = "THW" if run.name.startswith("Volumetric") else "HW"
    rank = len(letters)
    sizes = [_sizes(run.obj, [kind + letter for letter in letters]) for kind in ("k", "d", "pad")]
    planes, places, batched = _sizes(run.obj, ["nInputPlane"])[0], output.size[-rank:], len(output.size) == rank + 2
    kernel, steps, padding = sizes
    if min(planes, *kernel, *steps, len(output.size) - rank) < 1 or min(padding) < 0:
        return None
    shape = planes * prod(kernel), prod(places)
    count = (output.size[0] if batched else 1) * prod(shape)
    if (*matrix.size[-2:], matrix.numel) != (*shape, count) or count > _MOST:
        return None
    columns = to_torch(matrix).double().reshape(-1, prod(kernel), *places)
    slope = run.grad_input
    extent = slope.size[-rank:] if isinstance(slope, Tensor) and len(slope.size) > rank else None
    found = _fold(columns, kernel, steps, padding, extent)
    if found is not None:
        image = found.reshape(-1, planes, *found.shape[2:])
        return Derived(image if batched else image[0])
    for kind, now in (("pad", padding), ("d", steps)):
        for other in product(_CANDIDATES[kind == "d" :], repeat=rank):
            both = (list(other), padding) if kind == "d" else (steps, list(other))
            if _fold(columns, kernel, *both, extent) is not None:
                known = " and ".join(f"{kind}{letter} = {size}" for letter, size in zip(letters, other))
                return Derived(None, f"{known} fits its unfolded input (the file has {', '.join(map(str, now))})")
    return None


def _sizes(obj: TorchObject, names: list[str]) -> list[int]:
    """Return fields with sizes: 0 where older releases have none, -1 where a field is no size."""
    found = [0.0 if obj.get(name) is None else obj.get(name) for name in names]
    return [int(item) if isinstance(item, float) and 0 <= item < 1 << 16 else -1 for item in found]


def _fold(columns: Any, kernel: list[int], steps: list[int], padding: list[int], extent: Any) -> Any:
    """Return the images with this unfolding; `None` if there are none, because positions that are one pixel differ."""
    if not bool(columns.isfinite().all()):
        return None
    rank, taps = len(kernel), columns.shape[1]
    scatter, gather = (F.conv_transpose2d, F.conv2d) if rank == 2 else (F.conv_transpose3d, F.conv3d)
    each = torch.eye(taps, dtype=columns.dtype).reshape(taps, 1, *kernel)
    hits = scatter(torch.ones_like(columns[:1]), each, stride=steps)
    image = scatter(columns, each, stride=steps) / hits.clamp(min=1)
    margins: list[int] = []
    for size, step, pad, at in zip(image.shape[2:], steps, padding, range(rank)):
        # The last pixels of a row, fewer than a step, may be unread.
        least = size - 2 * pad
        wanted = extent[at] if extent is not None and least <= extent[at] < least + step else least + step - 1
        if wanted < 1:
            return None
        margins = [-pad, wanted + pad - size, *margins]
    image = F.pad(image, margins)
    again = gather(image, each, stride=steps, padding=padding)
    return image if again.shape == columns.shape and torch.allclose(again, columns, rtol=1e-12, atol=0) else None


def _rows(run: Run, output: Tensor) -> Derived | None:
    """Return the numbers of the rows of a table that are closest to the outputs."""
    weight = run.obj.get("weight")
    if not isinstance(weight, Tensor) or len(weight.size) != 2 or run.obj.get("maxNorm") is not None:
        return None
    if output.size[-1:] != weight.size[1:] or output.numel * weight.size[0] > _MOST:
        return None
    table, wanted = to_torch(weight).double(), to_torch(output).double().reshape(-1, weight.size[1])
    if not bool(table.isfinite().all() and wanted.isfinite().all()):
        return None
    nearest = torch.cdist(wanted, table).argmin(1)
    # A row further from the output than from zero was chosen by chance.
    if bool(((table[nearest] - wanted).square().sum(1) > wanted.square().sum(1)).any()):
        return None
    return Derived((nearest + _TABLES[run.name]).double().reshape(output.size[:-1] or (1,)))


def _solved(run: Run, output: Tensor, intact: bool) -> Derived | None:
    """Return the input of a linear layer as a solution: of gradWeight = gradOutput' X, or of its output."""
    weight, bias = run.obj.get("weight"), run.obj.get("bias")
    if not isinstance(weight, Tensor) or len(weight.size) != 2 or len(output.size) not in (1, 2):
        return None
    if output.size[-1] != weight.size[0] or weight.numel * min(weight.size) > _MOST * 4 or output.numel > _MOST:
        return None
    rows, matrix = to_torch(output).double().reshape(-1, weight.size[0]), to_torch(weight).double()
    found = _by_gradient(run, rows) if run.obj.get("train") is not False else None
    if found is not None:
        shift = to_torch(bias).double() if isinstance(bias, Tensor) and bias.numel == weight.size[0] else 0.0
        # Zeros of an in-place activation say nothing about the pass; of another pass, outputs are another's entirely.
        known = rows.isfinite() & ((rows != 0) | intact)
        off = (found[0] @ matrix.T + shift - rows).abs()[known]
        if off.numel() and float(off.median()) <= float(rows[known].abs().median()) / 2:
            value, error = (item.reshape(*output.size[:-1], weight.size[1]) for item in found)
            return Derived(value, FROM_FIELD, error)
    if intact and matrix.shape[0] > matrix.shape[1] and _is_regular(matrix) and bool(rows.isfinite().all()):
        return Derived([to_torch(output).double()], FROM_OUTPUT, by=nearest_outputs)
    return None


def _by_gradient(run: Run, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the solution and its errors. Where gradBias is the sum of gradOutput, all three are of one pass."""
    names = run.obj.get("gradWeight"), run.obj.get("gradBias"), run.grad_output
    if not all(isinstance(item, Tensor) for item in names):
        return None
    mixed, total, slope = (to_torch(item).double() for item in names)
    if slope.numel() != rows.numel() or mixed.dim() != 2 or {mixed.shape[0], total.numel()} != {rows.shape[1]}:
        return None
    unit, slope = unit_of(names[0]) or UNIT["float32"], slope.reshape(rows.shape)
    # A sum of n numbers is right to n roundings of its largest part, which are at most eight units each.
    limit = 8 * unit * len(slope) * slope.abs().sum(0) + TINY
    if len(slope) > slope.shape[1] or bool(((total.reshape(-1) - slope.sum(0)).abs() > limit).any()):
        return None
    if not bool(mixed.isfinite().all()) or not _is_regular(slope):
        return None
    inverse = torch.linalg.pinv(slope.T)
    value = inverse @ mixed
    variance = unit**2 * (slope.T.square() @ value.square())
    return value, (inverse.square() @ variance).sqrt()


def _is_regular(matrix: torch.Tensor) -> bool:
    if not bool(matrix.isfinite().all()):
        return False
    values = torch.linalg.svdvals(matrix)
    return bool(values[-1] * _WORST > values[0])
