"""Kinds of values while a program becomes a Lua model: constants, tensors of the state dict, and others; shapes.

The values that the model computes when it runs are the wires of `wires`.
"""

from __future__ import annotations

from typing import Any

from ...data import define, np
from .layers import WeightRef
from .sizes import CannotError, Extent, Shape, decide_equal
from .trace import to_array

Axis = int
"""A dimension, counted from the front."""


@define(eq=False)
class Const:
    """A value known at build time, that is, whatever the inputs are.

    Attributes:
        value: a tensor of PyTorch.
        shape: to which the tensor is broadcast.
    """

    value: Any
    shape: Shape

    def array(self) -> Any:
        """The elements as a numpy array, not broadcast."""
        return to_array(self.value)


@define(eq=False)
class Stored:
    """A tensor of the state dict, or a contiguous part of one, broadcast to `shape`.

    Attributes:
        ref: the tensor.
        shape: of the value.
        learned: whether it is a parameter with a gradient, and not a buffer or detached.
    """

    ref: WeightRef
    shape: Shape
    learned: bool = True

    @property
    def is_contiguous(self) -> bool:
        """Whether it has the elements of the reference in order: neither transposed nor broadcast."""
        return self.ref.size == self.shape and not self.ref.transposed


Learned = Stored
"""A parameter, which layers can learn."""


@define(eq=False)
class Scaled:
    """A learned tensor times a scale, which layers with weights apply to their inputs or outputs.

    Attributes:
        param: the learned tensor.
        scale: a number, or a wire of one number or of one for each index of a dimension.
        axis: that dimension; `None` if the scale is one number.
    """

    param: Stored
    scale: Any
    axis: int | None

    @property
    def shape(self) -> Shape:
        """The shape of the product."""
        return self.param.shape


@define(eq=False)
class Complex:
    """A value of complex numbers, which Lua lacks, as two values of real ones.

    Attributes:
        real: the real part, a value of any other kind.
        imag: the imaginary part.
    """

    real: Any
    imag: Any

    @property
    def shape(self) -> Shape:
        """The shape of both."""
        shape: Shape = self.real.shape
        return shape


@define(eq=False)
class OpenRange:
    """The numbers 0, step, 2 step, … as many as an extent of the inputs: an `arange` whose length is open.

    Where it is the bags of an embedding, or indexes one element of each example, a layer needs no numbers. For all else
    they are counted when the model runs.

    Attributes:
        step: the difference of two neighbors.
        shape: the number of elements, an `Extent`, as the only dimension.
    """

    step: int
    shape: Any = ()

    def array(self) -> Any:
        """Return the numbers, for the extent in the example."""
        return np.arange(int(self.shape[0])) * self.step


@define(eq=False)
class Missing:
    """A value that Lua does not have.

    Attributes:
        reason: why, a problem as soon as a call takes the value; empty if it is among the problems already.
        shape: of the value, if it is known; else empty.
    """

    reason: str = ""
    shape: Any = ()


def number_of(value: Any) -> float | None:
    """Return the number that a value has everywhere; `None` if it is not known, or the value has several elements.

    An `Extent` is fixed as in the example, by a condition, and so raises `ChangedError`.
    """
    if isinstance(value, (int, float, Extent)):
        return float(value)
    if isinstance(value, Const) and value.value.numel() == 1:
        return float(value.array().reshape(-1)[0])
    return None


def as_number(value: Any) -> Any:
    """Return an extent as a number, fixed as in the example by a condition; other values unchanged."""
    return int(value) if isinstance(value, Extent) else value


def is_parameter(*values: Any) -> bool:
    """Return whether all values are parameters, which layers can learn."""
    return all(isinstance(value, Stored) and value.learned for value in values)


def check_learned(value: Any, name: str) -> None:
    """Refuse an argument that is not a parameter; `None`, an optional argument that is not given, passes.

    Args:
        value: the argument.
        name: of it, for the error.

    Raises:
        CannotError: it is computed, or a buffer.
    """
    if value is not None and not is_parameter(value):
        raise CannotError(f"the {name} is computed, or is not a parameter")


def replace_axis(shape: Shape, axis: int, *extents: Any) -> Shape:
    """Return a shape with one dimension replaced: by one of another extent, or by any number of dimensions."""
    return (*shape[:axis], *extents, *shape[axis + 1 :])


def without_axis(shape: Shape, axis: int) -> Shape:
    """Return a shape without one of its dimensions."""
    return replace_axis(shape, axis)


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape to which shapes broadcast.

    Raises:
        CannotError: they do not match in the example.
        ChangedError: open extents match in it, and it was not known that they always do; the model needs that now.
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for extents in zip(*padded):
        longer = {extent for extent in extents if extent != 1}
        if len(longer) > 1 and not decide_equal(*longer):
            raise CannotError(f"the extents {' and '.join(map(str, sorted(longer, key=str)))} do not match")
        result.append(longer.pop() if longer else 1)  # any of them, as they are equal
    return tuple(result)
