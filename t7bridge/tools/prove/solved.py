"""Inputs of linear layers, solved for from gradients of the weights, or from outputs with more elements.

With gradOutput G and the input X of one pass, gradWeight is Gᵀ X, which determines X where G has full rank; if gradBias
is the sum of G, both are of one pass. Source: nn 8726825 `Linear.lua`. May import graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...data import define
from ...graph.tensor import Tensor
from .values import UNIT, unit_of
from .visits import Step, base_name

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LINEAR = frozenset(("Linear", "LinearNoBias"))
"""Classes whose inputs are solved for."""
WORST = 1e4
"""Largest condition number of the equations."""
OTHER = 0.05
"""Difference from the recorded output, relative to the largest, beyond which the gradients are of another pass."""
MOST = 1 << 24
"""Maximum number of elements of a matrix."""


@define(eq=False)
class Solved:
    """An input computed from equations.

    Attributes:
        value: the input.
        error: standard deviations of its rounding errors, in its shape; `None` if they are those of the output.
    """

    value: Tensor
    error: Array | None


def solved(step: Step, intact: bool) -> Solved | None:
    """Return the input of a linear layer; `None` if no equations determine it.

    Args:
        step: the run of the layer.
        intact: whether its output is in the file as it was.
    """
    weight, output = step.obj.get("weight"), step.output
    if base_name(step.obj.class_name) not in LINEAR or not isinstance(weight, Tensor) or not isinstance(output, Tensor):
        return None
    if len(weight.size) != 2 or len(output.size) not in (1, 2) or output.size[-1] != weight.size[0]:
        return None
    if max(weight.numel, output.numel) > MOST or weight.numel * min(weight.size) > MOST * 16:
        return None
    rows = output.numpy().astype("f8").reshape(-1, weight.size[0])
    kept = weight.numpy().astype("f8")
    bias = step.obj.get("bias")
    shift = bias.numpy().astype("f8") if isinstance(bias, Tensor) and bias.numel == weight.size[0] else None
    found = _by_gradient(step, rows, kept, shift, intact) or (_by_output(rows, kept, shift) if intact else None)
    if found is None:
        return None
    value, error = found
    shape = (*output.size[:-1], weight.size[1])
    return Solved(Tensor.from_numpy(value.reshape(shape)), None if error is None else error.reshape(shape))


def _by_gradient(
    step: Step, rows: Array, weight: Array, shift: Array | None, intact: bool
) -> tuple[Array, Array | None] | None:
    import numpy as np

    obj, slope = step.obj, step.grad_output
    product, total = obj.get("gradWeight"), obj.get("gradBias")
    if obj.get("train") is False or not isinstance(slope, Tensor) or slope.numel != rows.size:
        return None
    if not isinstance(product, Tensor) or product.size != weight.shape or not isinstance(total, Tensor):
        return None
    given = slope.numpy().astype("f8").reshape(rows.shape)
    sums, mixed = total.numpy().astype("f8").reshape(-1), product.numpy().astype("f8")
    if sums.size != given.shape[1] or not all(np.isfinite(item).all() for item in (given, sums, mixed)):
        return None
    unit = unit_of(product) or UNIT["float32"]
    size = np.abs(given).sum(0)
    if len(given) > given.shape[1] or (np.abs(sums - given.sum(0)) > 8 * unit * len(given) * size + 1e-300).any():
        return None
    values = np.linalg.svd(given, compute_uv=False)
    if not values[-1] * WORST > values[0]:
        return None
    inverse = np.linalg.pinv(given.T)
    value = inverse @ mixed
    noise = unit * np.sqrt((given**2).T @ value**2)
    error = np.sqrt((inverse**2) @ noise**2)
    computed = value @ weight.T + (shift if shift is not None else 0.0)
    # Zeros of an in-place activation say nothing about the pass.
    known = np.isfinite(rows) & ((rows != 0) | intact)
    far = np.abs(computed - rows)[known]
    if not far.size or np.median(far) > OTHER * max(np.abs(rows[known]).max(), 1e-300):
        return None
    return value, error


def _by_output(rows: Array, weight: Array, shift: Array | None) -> tuple[Array, Array | None] | None:
    import numpy as np

    if weight.shape[0] <= weight.shape[1] or not np.isfinite(rows).all() or not np.isfinite(weight).all():
        return None
    values = np.linalg.svd(weight, compute_uv=False)
    if not values[-1] * WORST > values[0]:
        return None
    value = np.linalg.lstsq(weight, (rows - (shift if shift is not None else 0.0)).T, rcond=None)[0].T
    return np.ascontiguousarray(value), None
