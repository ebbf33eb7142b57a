"""Bounds of whole numbers, which Lua's models have as floats: exact up to 2^24, or up to 2^53 in a model of doubles.

Each value of whole numbers has a least and a largest value, by those of the operation's arguments. A product that may
be beyond what floats hold exactly is refused, and so are sums in types of 8 and 16 bits, which PyTorch wraps around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

Bounds = tuple[float, float]
"""The least and the largest value."""

EXACT_FLOAT = 1 << 24
"""The whole number up to which all are exact as floats."""
_EXACT_DOUBLE = 1 << 53
"""The whole number up to which all are exact as doubles."""
_LARGEST_INPUT_OF_DOUBLES = 1 << 31
"""The largest whole number of an input that is taken into account in a model of doubles; in others, `EXACT_FLOAT`."""
_NARROW = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-32768, 32767), "uint16": (0, 65535)}
MATRIX_PRODUCTS = ("mm", "bmm", "matmul", "dot", "vdot", "mv", "linear", "addmm")
PRODUCTS = ("mul", "pow", "square", "prod", "cumprod", *MATRIX_PRODUCTS)
OPERANDS = ("self", "other", "mat2", "vec", "tensor", "min", "max", "exponent", "tensors", "value", "values", "src")
"""ATen's names of the arguments whose elements count; others are dimensions, indices and options."""
OPERANDS_OF = {"linear": ("input", "weight", "bias"), "addmm": ("mat1", "mat2", "self", "beta")}
"""The same of operations that add to a product of matrices: the matrices, what is added, and the factor of that."""
_WITH_ALPHA = ("add", "sub", "rsub")
"""Sums and differences, whose third argument is the factor `alpha` of the second term."""


def _corners(function: Callable[[float, float], float], first: Bounds, second: Bounds) -> Bounds:
    """Return the bounds of a function that has its extrema at those of its arguments."""
    values = [function(one, other) for one in first for other in second]
    return min(values), max(values)


def _sum(first: Bounds, second: Bounds) -> Bounds:
    """Return the bounds of a sum of two values."""
    return first[0] + second[0], first[1] + second[1]


def _product(first: Bounds, second: Bounds) -> Bounds:
    """Return the bounds of a product of two values."""
    return _corners(lambda one, other: one * other, first, second)


def _power(first: Bounds, second: Bounds) -> Bounds:
    """Return bounds of a power, which hold for either sign of the base; infinite ones for a large exponent."""
    exponent = max(second)
    if exponent > 64:  # beyond all types, and Python would compute it
        return -inf, inf
    largest = max(map(abs, first)) ** exponent
    return -largest, largest


_RULES_OF_ONE: dict[str, Callable[[Bounds], Bounds]] = {
    "square": lambda one: _power(one, (2, 2)),
    "neg": lambda one: (-one[1], -one[0]),
    "abs": lambda one: (0, max(map(abs, one))),
}
"""Operations of one whole number → the bounds of their value."""
# A quotient of `floor_divide` is at most its dividend; rounded down, a negative one may be 1 more.
_RULES_OF_TWO: dict[str, Callable[[Bounds, Bounds], Bounds]] = {
    "add": _sum,
    "sub": lambda one, other: (one[0] - other[1], one[1] - other[0]),
    "rsub": lambda one, other: (other[0] - one[1], other[1] - one[0]),
    "mul": _product,
    "pow": _power,
    "remainder": lambda one, other: (min(other[0] + 1, 0), max(other[1] - 1, 0)),
    "fmod": lambda one, other: (-max(map(abs, other)), max(map(abs, other))),
    "floor_divide": lambda one, other: (-max(map(abs, one)) - 1, max(map(abs, one))),
    "clamp_min": lambda one, least: (max(one[0], least[0]), max(one[1], least[1])),
    "clamp_max": lambda one, most: (min(one[0], most[0]), min(one[1], most[1])),
}
"""Operations of two whole numbers → the bounds of their value."""


def exact_up_to(is_double: bool) -> int:
    """Return the whole number up to which all are exact in a model of floats, or of doubles."""
    return _EXACT_DOUBLE if is_double else EXACT_FLOAT


def of_type(dtype: str, is_double: bool) -> Bounds:
    """Return the bounds that are assumed of an input of an element type, in a model of doubles or of floats."""
    if dtype == "bool":
        return 0, 1
    largest = _LARGEST_INPUT_OF_DOUBLES if is_double else EXACT_FLOAT
    return _NARROW.get(dtype, (-largest, largest))


def bounds_of(kind: str, arguments: Sequence[Bounds], count: float) -> Bounds:
    """Return the bounds of the value of an operation.

    Args:
        kind: of the operation: `add`.
        arguments: the bounds of its operands, in the order of `OPERANDS_OF` or `OPERANDS`; last, that of the factor
            `alpha` of a term of a sum, if it is not 1.
        count: the number of elements that are added or multiplied at most; infinite if any.
    """
    if not arguments:  # nothing is known of the value
        return -inf, inf
    if kind in MATRIX_PRODUCTS:
        return _bounds_of_matrix_product(count, *arguments)
    if kind in _WITH_ALPHA and len(arguments) == 3:
        arguments = _terms(kind, *arguments)
    if kind in _RULES_OF_ONE and len(arguments) == 1:
        return _RULES_OF_ONE[kind](*arguments)
    if kind in _RULES_OF_TWO and len(arguments) == 2:
        return _RULES_OF_TWO[kind](*arguments)
    # The others have rules for all their arguments alike.
    widest = min(low for low, _ in arguments), max(high for _, high in arguments)
    if kind in ("sum", "cumsum"):
        return _repeated(widest, count)
    if kind in PRODUCTS:  # of any number of factors
        return (-1, 1) if max(map(abs, widest)) <= 1 else (-inf, inf)
    return widest  # of an operation that chooses among elements, or moves them


def _terms(kind: str, first: Bounds, second: Bounds, alpha: Bounds) -> tuple[Bounds, Bounds]:
    """Return the bounds of the terms of a sum or difference, one of which is multiplied by `alpha`."""
    if kind == "rsub":  # second - alpha * first
        return _product(first, alpha), second
    return first, _product(second, alpha)


def _bounds_of_matrix_product(
    count: float,
    first: Bounds,
    second: Bounds,
    added: Bounds = (0, 0),
    beta: Bounds = (1, 1),
    alpha: Bounds = (1, 1),
) -> Bounds:
    """Return the bounds of `alpha * (first @ second) + beta * added`, by those of its operands.

    An element of `first @ second` is the sum of `count` products.
    """
    total = _repeated(_product(first, second), count)
    return _sum(_product(total, alpha), _product(added, beta))


def _repeated(term: Bounds, count: float) -> Bounds:
    """Return the bounds of a sum of one to `count` terms, by those of each term."""
    return _corners(_times, term, (1, count))


def _times(number: float, count: float) -> float:
    """Return a product; infinitely many zeros are 0, and not NaN."""
    return number * count if number else 0


def refusal(kind: str, dtype: str, bounds: Bounds, is_double: bool) -> str:
    """Return why a value of whole numbers cannot be one of floats; empty if it can.

    Args:
        kind: the operation that computes it: `add`.
        dtype: its element type in PyTorch.
        bounds: its least and largest element.
        is_double: whether the model has doubles.
    """
    low, high = bounds
    least, largest = _NARROW.get(dtype, (-inf, inf))
    if low < least or high > largest:
        return f"{dtype} wraps around beyond {least} and {largest}, which floats do not"
    exact = exact_up_to(is_double)
    # Sums are not refused: they are taken to be exact, as inputs are.
    if kind in PRODUCTS and max(abs(low), abs(high)) > exact:
        return f"a product of whole numbers may be beyond {exact}, up to which Lua's have no errors"
    return ""
