"""Complex numbers as pairs of real values, and Fourier transforms as products with matrices of cosines and sines.
A function builds the Lua layers of one call of a traced program, by the builder `b`, where `b.shape` is the shape of
the call's result in PyTorch. A value is a `Wire`, which is computed when the model runs, a `Const`, or a tensor of the
state dict, `Stored`. A `Complex` has two of these.
"""

from __future__ import annotations

from math import pi, prod, sqrt
from typing import Any

from ....data import np
from ..build import Builder, Complex, Wire, operation
from ..sizes import CannotError
from .elementwise import multiply_along
from .shape import windows


@operation("view_as_complex", lua="nn.Select")
def view_as_complex(b: Builder, self: Wire) -> Any:
    """Return pairs in the last dimension as complex numbers."""
    return Complex(*(b.select(self, len(self.shape) - 1, part) for part in (0, 1)))


@operation("view_as_real", lua="nn.View, nn.JoinTable", complex=True)
def view_as_real(b: Builder, self: Complex) -> Any:
    """Return complex numbers as pairs in the last dimension."""
    parts = [b.reshape(b.wire(part), (*self.shape, 1)) for part in (self.real, self.imag)]
    return b.concatenate(parts, len(self.shape))


@operation("real imag", lua="none: a part", complex=True)
def part(b: Builder, self: Any) -> Any:
    """Return the real or the imaginary part; that of a real value is the value."""
    return getattr(self, "real", self) if b.kind == "real" else self.imag


@operation("_conj conj conj_physical _conj_physical", lua="nn.MulConstant", complex=True)
def conjugate(b: Builder, self: Complex) -> Any:
    """Return the conjugate."""
    return Complex(self.real, b.wire(self.imag) * -1)


@operation("abs", lua="nn.Square, nn.CAddTable, nn.Sqrt", complex=True)
def magnitude(b: Builder, self: Complex) -> Any:
    """Return absolute values."""
    return (b.wire(self.real) ** 2 + b.wire(self.imag) ** 2) ** 0.5


@operation("mul.Tensor mul.Scalar", lua="nn.CMulTable, nn.CSubTable, nn.CAddTable", complex=True)
def product(b: Builder, first: Any, second: Any, /) -> Complex:
    """Multiply two values, at least one of which is complex; the other may be real, or a number."""
    if not isinstance(first, Complex):
        first, second = second, first
    real = b.wire(first.real)
    imag = b.wire(first.imag)
    if not isinstance(second, (Complex, complex)):
        return Complex(real * second, imag * second)
    return Complex(real * second.real - imag * second.imag, real * second.imag + imag * second.real)


def _transform(b: Builder, value: Any, dim: int, sign: int) -> Complex:
    """Transform a dimension, without a factor: the sum of x exp(sign 2 pi i j k / n).

    Args:
        b: the builder.
        value: a `Complex`, or real.
        dim: the dimension.
        sign: -1 for a forward transform, 1 for its inverse.
    """
    cosines, sines = _cosines_and_sines(value.shape[dim])
    sines = sign * sines

    def products(part: Any) -> tuple[Any, Any]:
        """Return a part times the cosines, and times the sines."""
        return multiply_along(b, b.wire(part), dim, cosines), multiply_along(b, b.wire(part), dim, sines)

    if not isinstance(value, Complex):
        return Complex(*products(value))
    real_cosines, real_sines = products(value.real)
    imag_cosines, imag_sines = products(value.imag)
    return Complex(real_cosines - imag_sines, real_sines + imag_cosines)


def _cosines_and_sines(count: Any, frequencies: int | None = None) -> tuple[Any, Any]:
    """Return matrices of the cosines and sines of 2 pi j k / count: rows for all j, columns for the first k, or all."""
    count = int(count)
    products = np.outer(np.arange(count), np.arange(count if frequencies is None else frequencies))
    angles = products % count * (2 * pi / count)  # whole turns left out, which would cost digits
    return np.cos(angles), np.sin(angles)


def _factor(shape: Any, dims: list[int], normalization: int) -> float:
    """Return the factor of a transform of some dimensions, of n elements together.

    `normalization` is PyTorch's number of it: 0 for none, 1 for 1 / sqrt(n), 2 for 1 / n.
    """
    count = prod(shape[dim] for dim in dims)
    factors = (1.0, 1 / sqrt(count), 1 / count)
    return factors[normalization]


@operation("_fft_c2c", lua="nn.MM with nn.Constant for each dimension", complex=True)
def between_complex(b: Builder, self: Any, dim: Any, normalization: int, forward: bool) -> Any:
    """Transform complex numbers, or real ones that were made complex.

    `dim` has the dimensions, and `normalization` is PyTorch's number of one, see `_factor`.
    """
    for axis in dim:
        self = _transform(b, self, axis % len(self.shape), sign=-1 if forward else 1)
    return product(b, self, _factor(self.shape, dim, normalization))


@operation("_fft_r2c", lua="nn.MM with nn.Constant for each dimension")
def from_real(b: Builder, self: Wire, dim: Any, normalization: int, onesided: bool) -> Any:
    """Transform real numbers; return the first half of the last dimension, or all of it.

    Args:
        b: the builder.
        self: the numbers.
        dim: the dimensions that are transformed; the halved one is the last of them.
        normalization: PyTorch's number of a factor, see `_factor`.
        onesided: whether the half is returned, from which the other one follows.
    """
    *others, last = (axis % len(self.shape) for axis in dim)
    count = self.shape[last]
    # The other half of the frequencies has the conjugate numbers.
    cosines, sines = _cosines_and_sines(count, count // 2 + 1 if onesided else None)
    value = Complex(multiply_along(b, self, last, cosines), multiply_along(b, self, last, -sines))
    for axis in others:
        value = _transform(b, value, axis, sign=-1)
    return product(b, value, _factor(self.shape, dim, normalization))


@operation("_fft_c2r", lua="nn.MM with nn.Constant for each dimension", complex=True)
def to_real(b: Builder, self: Complex, dim: Any, normalization: int, last_dim_size: int) -> Any:
    """Transform the first half of the last dimension of complex numbers back to real ones.

    Args:
        b: the builder.
        self: the first `last_dim_size // 2 + 1` frequencies in the last of `dim`, and all in the others.
        dim: the dimensions that are transformed; the halved one is the last of them.
        normalization: PyTorch's number of a factor, see `_factor`.
        last_dim_size: the extent of the last of `dim` in the result, which half of the frequencies do not tell.
    """
    *others, last = (axis % len(self.shape) for axis in dim)
    for axis in others:
        self = _transform(b, self, axis, sign=1)
    # Rows for the frequencies, and columns for the elements of the result.
    cosines, sines = (matrix.T for matrix in _cosines_and_sines(last_dim_size, last_dim_size // 2 + 1))
    # Every frequency occurs twice, here and in the half that is left out, but for the first and the middle one.
    weights = np.full((len(cosines), 1), 2.0)
    weights[0] = 1
    if last_dim_size % 2 == 0:
        weights[-1] = 1
    real = multiply_along(b, b.wire(self.real), last, weights * cosines)
    imag = multiply_along(b, b.wire(self.imag), last, weights * sines)
    value = real - imag
    return value * _factor(value.shape, dim, normalization)


@operation("stft", lua="nn.Narrow, nn.JoinTable, nn.MM with nn.Constant")
def short_time(
    b: Builder,
    self: Wire,
    n_fft: int,
    hop_length: int | None,
    win_length: int | None,
    window: Any,
    normalized: bool,
    onesided: bool | None,
    return_complex: bool | None,
) -> Any:
    """Transform windows of signals.

    Signals are (batch, samples), and the result (batch, frequencies, windows). The parameters are those of
    `torch.stft`: windows of `n_fft` samples begin `hop_length` apart, and each is multiplied by `window`, of
    `win_length` numbers. `normalized` divides by the root of `n_fft`, and `onesided`, true if it is `None`, leaves out
    the half of the frequencies that follows from the other. Unless `return_complex`, complex numbers are pairs, in
    another dimension.
    """
    if len(self.shape) != 2:
        raise CannotError("the signals are not a batch")
    # PyTorch extends a shorter window by zeros, also one of ones, which it takes if none is given.
    if win_length is not None and win_length != n_fft:
        raise CannotError("the window is shorter than the transform")
    frames = windows(b, self, dimension=1, size=n_fft, step=hop_length or n_fft // 4)  # PyTorch's default
    if window is not None:
        frames = frames * window
    normalization = 1 if normalized else 0  # of PyTorch's numbers: 1 / sqrt(n_fft), or none
    value = from_real(b, frames, dim=[2], normalization=normalization, onesided=onesided is not False)
    # PyTorch has the frequencies before the frames.
    result = Complex(b.permute(value.real, (0, 2, 1)), b.permute(value.imag, (0, 2, 1)))
    return result if return_complex else view_as_real(b, result)
