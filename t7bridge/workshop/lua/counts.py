"""Numbers that depend on the sizes of the inputs, counted when the model runs."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...data import np
from .layers import make, row, sequential
from .sizes import Extent, Shape, computed
from .values import Steps
from .wires import Emitter, Wire

MOST_COUNTED = 1 << 12
"""Positions that are counted when the model runs; more are refused. A power of two, for `positions`."""


def measured(b: Emitter, extent: Extent) -> Wire | None:
    """Return a number that depends on the sizes of the inputs as a tensor of one element; `None` if none counts them.

    It is a sum, product, quotient or root of extents of the inputs.
    """
    number: Wire | None = computed(extent.expr, partial(_count, b))
    return number


def _count(b: Emitter, symbol: Any) -> Wire | None:
    """Return the value of a symbol, counted along a dimension of an input; `None` if none has it alone."""
    for name, shape in b.program.inputs.items():
        for place, extent in enumerate(shape):
            current = extent.now() if isinstance(extent, Extent) else extent
            if not isinstance(current, Extent):
                continue
            # The extent is step * symbol + rest.
            step = current.expr.coeff(symbol)
            rest = current.expr - step * symbol
            if step.is_Integer and step != 0 and rest.is_Integer:
                count = _ones_along(b, b.env[name], place) >> make("nn.Sum", 1)
                count = Wire(b, count.step, (1,))
                return (count - float(rest)) / float(step)
    return None


def _ones_along(b: Emitter, wire: Wire, place: int) -> Wire:
    """Return a vector of as many ones as a value has elements along a dimension."""
    rank = len(wire.shape)
    first = row(rank, place) if rank > 1 else make("nn.Identity")
    # One for each element of the row, as a batch.
    ones = first >> (make("nn.Constant", np.ones(1, "f4"), 0) >> make("nn.Select", 2, 1))
    return b.emit(ones, wire, shape=(wire.shape[place],))


def positions(b: Emitter, extent: Extent) -> Wire | None:
    """Return 1, 2, … n, where n is the extent of a dimension of an input; `None` if it is not, or too large.

    The number of ones in the windows that end at each of n ones is an average of zeros and ones, times the size of
    the window: exact, as this is a power of two.
    """
    if extent.in_example > MOST_COUNTED:
        return None
    names = [name for name, shape in b.program.inputs.items() if extent in shape]
    if not names or not extent <= MOST_COUNTED:
        return None
    name = names[0]
    ones = _ones_along(b, b.env[name], b.program.inputs[name].index(extent))
    before = MOST_COUNTED - 1
    count = sequential(
        make("nn.Unsqueeze", 1),
        make("nn.Unsqueeze", 1),  # an image of height 1
        make("nn.Padding", 3, -before),
        make("nn.SpatialAveragePooling", MOST_COUNTED, 1, 1, 1),
        make("nn.MulConstant", MOST_COUNTED),
        make("nn.Select", 1, 1),
        make("nn.Select", 1, 1),
    )
    count.label = "CountFrom1"
    return b.emit(count, ones, shape=(extent,))


def counted(b: Emitter, numbers: Steps) -> Any:
    """Return numbers in steps from 0, counted when the model runs if layers can, or those of the example."""
    from_1 = positions(b, numbers.shape[0])
    if from_1 is None:
        return b.constant(numbers.array())
    return (from_1 - 1) * numbers.step


def triangle(b: Emitter, shape: Shape, diagonal: int) -> Wire:
    """Return a matrix that is 1 up to a diagonal and 0 above it, whose extents depend on the inputs.

    Args:
        b: the builder.
        shape: of the matrix.
        diagonal: as `torch.tril` counts it: 0 for the main one.
    """
    rows, columns = (_numbers_up_to(b, extent) for extent in shape)
    # The number of the row, and that of the column, at each place.
    column = b.reshape(rows, (shape[0], 1))
    row_of_ones = b.reshape(_ones_like(columns), (1, shape[1]))
    down = b.emit(make("nn.MM"), column, row_of_ones, shape=shape)
    column_of_ones = b.reshape(_ones_like(rows), (shape[0], 1))
    across = b.emit(make("nn.MM"), column_of_ones, b.reshape(columns, (1, shape[1])), shape=shape)
    return down - across + float(diagonal + 1) >> make("nn.HardTanh", 0, 1)


def _numbers_up_to(b: Emitter, extent: Any) -> Any:
    """Return 1, 2, … up to an extent."""
    numbers = positions(b, extent) if isinstance(extent, Extent) else None
    if numbers is None:
        return b.wire(b.constant(np.arange(1, int(extent) + 1, dtype="f4")))
    return numbers


def _ones_like(numbers: Wire) -> Wire:
    """Return a vector of as many ones as another has elements, which are at least 1."""
    return numbers >> make("nn.HardTanh", 0, 1)
