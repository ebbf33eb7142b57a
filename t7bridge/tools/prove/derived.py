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

import numpy as np

from ...data import define
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from .reasons import CONTRADICTS, FROM_FIELD, FROM_OUTPUT, UNFOLDED
from .runs import Run, base_name
from .values import UNIT, Recorded, unit_of

Array = np.ndarray[Any, Any]

_SPATIAL = (("kH", "kW"), ("dH", "dW"), ("padH", "padW"))
_VOLUMETRIC = (("kT", "kH", "kW"), ("dT", "dH", "dW"), ("padT", "padH", "padW"))
_UNFOLDING = {
    "SpatialConvolution": _SPATIAL,
    "SpatialConvolutionMM": _SPATIAL,
    "VolumetricConvolution": _VOLUMETRIC,
}
"""Classes with `finput`, and the names of their kernel's sizes, steps and paddings."""
_TABLES = {"LookupTable": 1.0, "LookupTableMaskZero": 0.0}
"""Classes whose output consists of rows of a table, and the number of its first row."""
_LINEAR = frozenset(("Linear", "LinearNoBias"))
"""Classes whose inputs are solved for."""
_MOST = 1 << 24
"""Elements of a matrix: 128 MiB in double precision."""
_WORST = 1e4
"""Largest condition number of the equations: with it half of the seven digits of a float are left."""
_CANDIDATES = (0, 1, 2, 3, 4)
"""Paddings and steps that are tried in place of those in the file."""


@define(eq=False)
class Derived:
    """An input computed from other fields.

    Attributes:
        value: the input; `None` if the fields contradict one another, or if the output alone determines it.
        reason: how it was computed.
        error: standard deviations of its errors, in its shape; `None` if it is exact.
        contradiction: why there is none.
    """

    value: Tensor | None = None
    reason: str = FROM_FIELD
    error: Tensor | None = None
    contradiction: str = ""


def contradiction(obj: TorchObject) -> str:
    """Return the size of a convolution's kernel that does not match its weights; empty if all match."""
    weight, name = obj.get("weight"), base_name(obj.class_name)
    if not obj.class_name.startswith(("nn.", "cudnn.")) or not isinstance(weight, Tensor) or "Local" in name:
        return ""
    rank = 3 if name.startswith("Volumetric") else 2
    if name.startswith(("Spatial", "Volumetric")) and "Convolution" in name and len(weight.size) == rank + 2:
        for field_name, extent in zip(("kW", "kH", "kT"), reversed(weight.size[-rank:])):
            said = obj.get(field_name)
            if isinstance(said, float) and said != extent:
                return CONTRADICTS.format(field_name, f"{said:g}", extent)
    return ""


def derived_input(run: Run, intact: bool, later: list[Run]) -> Derived | None:
    """Return the input of a layer from its other fields; `None` if they do not determine it.

    Args:
        run: the run of the layer.
        intact: whether its output is in the file as it was.
        later: the runs after it.
    """
    name, output = base_name(run.obj.class_name), run.output
    if not isinstance(output, Tensor):
        return None
    if name in _TABLES:
        return _rows(run, output) if intact else None
    if name in _LINEAR:
        return _solved(run, output, intact)
    matrix = run.obj.get("finput")
    if name in _UNFOLDING and not run.obj.class_name.startswith("cudnn.") and isinstance(matrix, Tensor):
        others = (other.obj.get("finput") for other in later)
        if not any(isinstance(other, Tensor) and other.storage is matrix.storage for other in others):
            return _folded(run, matrix, output)
    return None


# Unfolded images


def _folded(run: Run, matrix: Tensor, output: Tensor) -> Derived | None:
    obj, names = run.obj, _UNFOLDING[base_name(run.obj.class_name)]
    rank = len(names[0])
    sizes = _sizes(obj, [name for row in names for name in row])
    planes = (_sizes(obj, ["nInputPlane"]) or [0])[0]
    if sizes is None or not planes:
        return None
    kernel, steps, padding = sizes[:rank], sizes[rank : 2 * rank], sizes[2 * rank :]
    batched = len(output.size) == rank + 2
    taps, places = planes * prod(kernel), prod(output.size[-rank:])
    batch = output.size[0] if batched else 1
    wanted = min(*kernel, *steps, len(output.size) - rank) >= 1 and (taps, places, batch * taps * places)
    if (*matrix.size[-2:], matrix.numel) != wanted or not 0 < matrix.numel <= 4 * _MOST:
        return None
    array = matrix.numpy().reshape(-1, planes, *kernel, *output.size[-rank:])
    extent = _extent(run.grad_input, rank)
    found = _fold(array, kernel, steps, padding, extent)
    if found is not None:
        return Derived(Tensor.from_numpy(found if batched else found[0]))
    paddings = ((2, padding, steps, list(other)) for other in product(_CANDIDATES, repeat=rank))
    others = ((1, steps, list(other), padding) for other in product(_CANDIDATES[1:], repeat=rank))
    for at, now, step, pad in (*paddings, *others):
        other = pad if at == 2 else step
        if other != now and _fold(array, kernel, step, pad, extent) is not None:
            known = " and ".join(f"{name} = {size}" for name, size in zip(names[at], other))
            return Derived(contradiction=UNFOLDED.format(known, ", ".join(map(str, now))))
    return None


def _fold(
    array: Array, kernel: list[int], steps: list[int], padding: list[int], extent: tuple[int, ...] | None
) -> Array | None:
    """Return the image with this unfolding; `None` if there is none, because positions that are one pixel differ.

    A step longer than 1 may leave up to so many pixels less one at the end of each dimension unread, or read a part of
    the padding only: the smallest image is returned whose padding is zero.
    """
    rank = len(kernel)
    out = array.shape[-rank:]
    reach = [(count - 1) * step + size for count, step, size in zip(out, steps, kernel)]
    image, known = np.zeros((*array.shape[:2], *reach), array.dtype), np.zeros(reach, bool)
    for offsets in product(*map(range, kernel)):
        where: Any = tuple(
            slice(offset, offset + (count - 1) * step + 1, step) for offset, count, step in zip(offsets, out, steps)
        )
        tap: Any = (slice(None), slice(None), *offsets)
        pixels: Any = (slice(None), slice(None), *where)
        both = known[where]
        if both.any() and not np.array_equal(image[pixels][..., both], array[tap][..., both], equal_nan=True):
            return None
        image[pixels] = array[tap]
        known[where] = True
    used, sizes = (image != 0).any(axis=(0, 1)), []
    for dim, (size, step, pad) in enumerate(zip(reach, steps, padding)):
        found = np.flatnonzero(used.any(axis=tuple(other for other in range(rank) if other != dim)))
        low, last = size - 2 * pad, int(found[-1]) if found.size else pad - 1
        least = max(low, last + 1 - pad)
        wanted = extent[dim] if extent is not None and low <= extent[dim] < low + step else least
        if (found.size and found[0] < pad) or not max(least, 1) <= wanted < low + step:
            return None
        sizes.append(wanted)
    full = np.zeros((*array.shape[:2], *sizes), array.dtype)
    inside: Any = (slice(None), slice(None), *(slice(pad, pad + size) for pad, size in zip(padding, sizes)))
    kept = image[inside]
    full[tuple(map(slice, kept.shape))] = kept
    return full


def _sizes(obj: TorchObject, names: list[str]) -> list[int] | None:
    """Return fields with sizes, 0 for those that older releases lack; `None` if one is no size."""
    found = [0.0 if obj.get(name) is None else obj.get(name) for name in names]
    return (
        [int(item) for item in found]
        if all(isinstance(item, float) and 0 <= item < 1 << 16 for item in found)
        else None
    )


def _extent(value: Recorded, rank: int) -> tuple[int, ...] | None:
    return value.size[-rank:] if isinstance(value, Tensor) and len(value.size) > rank else None


# Rows of a table


def _rows(run: Run, output: Tensor) -> Derived | None:
    """Return the numbers of the rows closest to the outputs."""
    weight = run.obj.get("weight")
    if not isinstance(weight, Tensor) or len(weight.size) != 2 or run.obj.get("maxNorm") is not None:
        return None
    count, width = weight.size
    rows = output.numel // max(width, 1)
    if output.size[-1:] != (width,) or not rows or rows * count * width > 4 * _MOST:
        return None
    table, wanted = weight.numpy().astype("f8"), output.numpy().astype("f8").reshape(rows, width)
    if not np.isfinite(table).all() or not np.isfinite(wanted).all():
        return None
    squares = (table**2).sum(1)
    nearest = np.array([np.argmin(squares - 2 * (table @ row)) for row in wanted])
    # A row further from the output than from zero was chosen by chance.
    if (((table[nearest] - wanted) ** 2).sum(1) > (wanted**2).sum(1)).any():
        return None
    first = _TABLES[base_name(run.obj.class_name)]
    return Derived(Tensor.from_numpy((nearest + first).reshape(output.size[:-1] or (1,))))


# Solutions of equations


def _solved(run: Run, output: Tensor, intact: bool) -> Derived | None:
    """Return the input of a linear layer as a solution: of gradWeight = gradOutput' X, or of its output.

    Where gradBias is the sum of gradOutput, all three are of one pass.
    """
    weight, bias = run.obj.get("weight"), run.obj.get("bias")
    if not isinstance(weight, Tensor) or len(weight.size) != 2 or len(output.size) not in (1, 2):
        return None
    if output.size[-1] != weight.size[0] or max(weight.numel, output.numel) > _MOST:
        return None
    if weight.numel * min(weight.size) > _MOST * 16:
        return None
    rows, kept = output.numpy().astype("f8").reshape(-1, weight.size[0]), weight.numpy().astype("f8")
    shift = bias.numpy().astype("f8") if isinstance(bias, Tensor) and bias.numel == weight.size[0] else 0.0
    shape = (*output.size[:-1], weight.size[1])
    found = _by_gradient(run, rows, kept, shift, intact)
    if found is not None:
        value, error = (Tensor.from_numpy(np.ascontiguousarray(item.reshape(shape))) for item in found)
        return Derived(value, FROM_FIELD, error)
    if not intact or kept.shape[0] <= kept.shape[1] or not np.isfinite(rows).all() or not np.isfinite(kept).all():
        return None
    return Derived(None, FROM_OUTPUT) if _is_regular(kept) else None


def _by_gradient(run: Run, rows: Array, weight: Array, shift: Any, intact: bool) -> tuple[Array, Array] | None:
    obj, slope = run.obj, run.grad_output
    mixed, total = obj.get("gradWeight"), obj.get("gradBias")
    if obj.get("train") is False or not all(isinstance(item, Tensor) for item in (slope, mixed, total)):
        return None
    if slope.numel != rows.size or mixed.size != weight.shape or total.numel != rows.shape[1]:
        return None
    unit = unit_of(mixed) or UNIT["float32"]
    given = slope.numpy().astype("f8").reshape(rows.shape)
    sums, mixed = total.numpy().astype("f8").reshape(-1), mixed.numpy().astype("f8")
    if len(given) > given.shape[1] or not all(np.isfinite(item).all() for item in (given, sums, mixed)):
        return None
    # A sum of n numbers is right to n roundings of its largest part.
    apart = np.abs(sums - given.sum(0)) > 8 * unit * len(given) * np.abs(given).sum(0) + 1e-300
    if apart.any() or not _is_regular(given):
        return None
    inverse = np.linalg.pinv(given.T)
    value = inverse @ mixed
    error = np.sqrt((inverse**2) @ (unit * np.sqrt((given**2).T @ value**2)) ** 2)
    # Zeros of an in-place activation say nothing about the pass; of another pass, outputs are another's entirely.
    known = np.isfinite(rows) & ((rows != 0) | intact)
    far = np.abs(value @ weight.T + shift - rows)[known]
    return (value, error) if far.size and np.median(far) <= np.median(np.abs(rows[known])) / 2 else None


def _is_regular(matrix: Array) -> bool:
    values = np.linalg.svd(matrix, compute_uv=False)
    return bool(values[-1] * _WORST > values[0])
