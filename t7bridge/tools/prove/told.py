"""Inputs that are no layer's output but follow from other fields: unfolded images of convolutions, rows of a table.

The CPU convolutions of nn store their input in `finput` as the matrix that is multiplied by the weights: a column for
each position of the kernel. Source: nn 8726825 `lib/THNN/generic/unfold.c`, `SpatialConvolutionMM.c`,
`VolumetricConvolutionMM.c`. May import graph.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from ...data import define
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from .reasons import CONTRADICTS, UNFOLDED
from .values import Recorded
from .visits import Step, base_name

if TYPE_CHECKING:
    import numpy as np

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
_MOST = 1 << 26
_PADDINGS = (0, 1, 2, 3, 4)
_STEPS = (1, 2, 3, 4)


@define(eq=False)
class Told:
    """An input computed from other fields.

    Attributes:
        value: the input; `None` if the fields contradict one another.
        reason: the contradiction.
    """

    value: Tensor | None = None
    reason: str = ""


def contradiction(obj: TorchObject) -> str:
    """Return the size of a convolution's kernel that does not match its weights; empty if all match."""
    weight, name = obj.get("weight"), base_name(obj.class_name)
    if not obj.class_name.startswith(("nn.", "cudnn.")) or not isinstance(weight, Tensor) or "Local" in name:
        return ""
    if not name.startswith(("Spatial", "Volumetric")) or "Convolution" not in name:
        return ""
    rank = 3 if name.startswith("Volumetric") else 2
    if len(weight.size) == rank + 2:
        for field_name, extent in zip(("kW", "kH", "kT"), reversed(weight.size[-rank:])):
            said = obj.get(field_name)
            if isinstance(said, float) and said != extent:
                return CONTRADICTS.format(field_name, f"{said:g}", extent)
    return ""


def may_tell(step: Step, intact: bool) -> bool:
    """Return whether other fields of a layer may determine its input; the output too, if it is `intact`."""
    name = base_name(step.obj.class_name)
    if name in _TABLES:
        return intact and isinstance(step.output, Tensor)
    return _unfolded(step.obj) is not None and isinstance(step.output, Tensor)


def told(step: Step) -> Told | None:
    """Return the input of a layer from its other fields; `None` if they do not determine it."""
    if base_name(step.obj.class_name) in _TABLES:
        return _rows(step)
    return _folded(step)


def _unfolded(obj: TorchObject) -> Tensor | None:
    found = obj.get("finput")
    known = base_name(obj.class_name) in _UNFOLDING and not obj.class_name.startswith("cudnn.")
    return found if known and isinstance(found, Tensor) and len(found.size) in (2, 3) else None


def _folded(step: Step) -> Told | None:
    obj, matrix, output = step.obj, _unfolded(step.obj), step.output
    if matrix is None or not isinstance(output, Tensor) or not 0 < matrix.numel <= _MOST:
        return None
    names = _UNFOLDING[base_name(obj.class_name)]
    numbers = [[obj.get(name) for name in row] for row in names]
    numbers[2] = [0.0 if item is None else item for item in numbers[2]]
    if any(not isinstance(item, float) or not 0 <= item < 1 << 16 for row in numbers for item in row):
        return None
    kernel, steps, padding = ([int(item) for item in row] for row in numbers)
    rank = len(kernel)
    planes = obj.get("nInputPlane")
    if (
        not isinstance(planes, float)
        or min(kernel) < 1
        or min(steps) < 1
        or len(output.size) not in (rank + 1, rank + 2)
    ):
        return None
    places, taps = _product(output.size[-rank:]), _product(kernel)
    batch = output.size[0] if len(output.size) > rank + 1 else 1
    if matrix.numel != batch * int(planes) * taps * places or matrix.size[-2:] != (int(planes) * taps, places):
        return None
    array = matrix.numpy().reshape(batch, int(planes), *kernel, *output.size[-rank:])
    extent = _sizes(step.grad_input, rank)
    found = _fold(array, kernel, steps, padding, extent)
    if found is None:
        for other in product(_PADDINGS, repeat=rank):
            if list(other) != padding and _fold(array, kernel, steps, list(other), extent) is not None:
                known = " and ".join(f"{name} = {size}" for name, size in zip(names[2], other))
                now = ", ".join(map(str, padding))
                return Told(None, UNFOLDED.format(known, now))
        for pair in product(_STEPS, repeat=rank):
            if list(pair) != steps and _fold(array, kernel, list(pair), padding, extent) is not None:
                known = " and ".join(f"{name} = {size}" for name, size in zip(names[1], pair))
                return Told(None, UNFOLDED.format(known, ", ".join(map(str, steps))))
        return None
    if len(output.size) == rank + 1:
        found = found[0]
    return Told(Tensor.from_numpy(found))


def _fold(
    array: np.ndarray[Any, Any],
    kernel: list[int],
    steps: list[int],
    padding: list[int],
    extent: tuple[int, ...] | None,
) -> np.ndarray[Any, Any] | None:
    """Return the image with this unfolding; `None` if there is none because positions that are one pixel differ."""
    import numpy as np

    rank = len(kernel)
    out = array.shape[-rank:]
    least = [(count - 1) * step + size - 2 * pad for count, step, size, pad in zip(out, steps, kernel, padding)]
    if extent is not None and all(low <= size < low + step for low, size, step in zip(least, extent, steps)):
        least = list(extent)
    if min(least) < 1:
        return None
    padded = [size + 2 * pad + step for size, pad, step in zip(least, padding, steps)]
    image = np.zeros((*array.shape[:2], *padded), array.dtype)
    known = np.zeros(padded, bool)
    for offsets in product(*map(range, kernel)):
        where: Any = tuple(
            slice(offset, offset + count * step, step) for offset, count, step in zip(offsets, out, steps)
        )
        tap: Any = (slice(None), slice(None), *offsets)
        pixels: Any = (slice(None), slice(None), *where)
        part = array[tap]
        both = known[where]
        if both.any() and not np.array_equal(image[pixels][..., both], part[..., both], equal_nan=True):
            return None
        image[pixels] = part
        known[where] = True
    inside: Any = tuple(slice(pad, pad + size) for pad, size in zip(padding, least))
    border = np.ones(padded, bool)
    border[inside] = False
    if image[..., border].any():
        return None
    kept: Any = (slice(None), slice(None), *inside)
    return np.ascontiguousarray(image[kept])


def _sizes(value: Recorded, rank: int) -> tuple[int, ...] | None:
    return value.size[-rank:] if isinstance(value, Tensor) and len(value.size) > rank else None


def _product(sizes: tuple[int, ...] | list[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _rows(step: Step) -> Told | None:
    """Return the rows of a table closest to the outputs."""
    import numpy as np

    weight, output = step.obj.get("weight"), step.output
    if not isinstance(weight, Tensor) or not isinstance(output, Tensor) or len(weight.size) != 2:
        return None
    count, width = weight.size
    rows = output.numel // max(width, 1)
    if output.size[-1:] != (width,) or not rows or rows * count * width > _MOST or step.obj.get("maxNorm") is not None:
        return None
    table, wanted = weight.numpy().astype("f8"), output.numpy().astype("f8").reshape(rows, width)
    if not np.isfinite(table).all() or not np.isfinite(wanted).all():
        return None
    squares = (table**2).sum(1)
    nearest = np.array([np.argmin(squares - 2 * (table @ row)) for row in wanted])
    if np.abs(table[nearest] - wanted).max() > 0.3 * max(np.abs(wanted).max(), 1e-30):
        return None
    first = _TABLES[base_name(step.obj.class_name)]
    return Told(Tensor.from_numpy((nearest + first).reshape(output.size[:-1] or (1,))))
