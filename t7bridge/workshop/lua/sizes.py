"""Open sizes, which depend on those of the inputs: expressions of PyTorch's symbols, and the conditions on these.

`torch.export` gives each extent of an input that is not fixed a symbol, and each extent of other values an expression
of the symbols. Where the source or a builder must decide by a size, or needs it as a number, the example decides, and
what was decided is a condition. A symbol without one is free; Lua refuses inputs that do not meet the others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import reduce
from math import lcm, prod
from typing import Any

import sympy
from attrs import field
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    OpaqueUnaryFn_sqrt,
    PythonMod,
    RoundToInt,
    ToFloat,
    TruncToInt,
)
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ...data import define

Shape = tuple[Any, ...]
"""Extents: integers, and `Extent`s."""

_MOST_SIZES = 1 << 14
"""Sizes for which a condition is computed; one that needs more fixes its size."""
_ROUNDED = (TruncToInt, FloorToInt, CeilToInt, RoundToInt)


class ChangedError(Exception):
    """More has become known of the sizes while a program was built: it has to be built again."""


class CannotError(Exception):
    """An operation has no exact composition; the text says why."""


class Extent:
    """A size, or another integer, that depends on the sizes of the inputs: an expression of PyTorch's symbols.

    Arithmetic returns further ones, or integers where the sizes cancel out. Equal ones have the same expression.
    Comparisons of other kinds, and the conversion to a number, decide by the example and add a condition.

    Args:
        expr: the expression, of sympy, simplified by `Sizes.of`, which makes extents.
        sizes: what is known of its symbols; receives the conditions.
    """

    __slots__ = ("expr", "sizes")

    def __init__(self, expr: Any, sizes: Sizes) -> None:
        self.expr = expr
        self.sizes = sizes

    def now(self) -> Any:
        """Return the same extent simplified by what is known of the sizes now: maybe an integer."""
        return self.sizes.of(self.expr)

    @property
    def in_example(self) -> int:
        """Its value in the example, which the model does not need."""
        return int(self.sizes.in_example(self.expr))

    def _with(self, other: Any, function: Any, swapped: bool = False) -> Any:
        """Return what a function of two expressions makes of this extent and another value.

        Args:
            other: an extent or a number; of anything else, `NotImplemented` is returned, as an operator has to.
            function: takes two expressions of sympy.
            swapped: whether the other value is the first of them.
        """
        if isinstance(other, Extent):
            other = other.expr
        elif not isinstance(other, (int, float)):
            return NotImplemented
        other = sympy.sympify(other)  # a number of Python becomes one of sympy
        expr = function(other, self.expr) if swapped else function(self.expr, other)
        return self.sizes.of(expr)

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a * b)

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, FloorDiv)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with(other, FloorDiv, swapped=True)

    def __mod__(self, other: Any) -> Any:
        return self - (self // other) * other

    def __rmod__(self, other: Any) -> Any:
        return other - (other // self) * self

    def __neg__(self) -> Any:
        return self * -1

    def __truediv__(self, other: Any) -> float:
        return float(self) / float(other)

    def __rtruediv__(self, other: Any) -> float:
        return float(other) / float(self)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, sympy.StrictLessThan)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, sympy.LessThan)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, sympy.StrictGreaterThan)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, sympy.GreaterThan)

    def _compare(self, other: Any, relation: Any) -> Any:
        """Return whether a relation of sympy, such as `sympy.LessThan`, of this extent and another value holds.

        If it neither always holds nor never, its result in the example becomes a condition, see `Sizes.decide`.
        """
        if isinstance(other, Extent):
            other = other.expr
        return self.sizes.decide(relation(self.expr, sympy.sympify(other)))

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Extent) and self.expr == other.expr

    def __hash__(self) -> int:
        return hash(self.expr)

    def __bool__(self) -> bool:
        return self.sizes.decide(sympy.Ne(self.expr, 0))

    def __index__(self) -> int:
        return int(self.sizes.number(self.expr))

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.sizes.number(self.expr))

    def __str__(self) -> str:
        return str(self.expr)

    __repr__ = __str__


@define(frozen=True)
class Relation:
    """A comparison of sizes that depends on those of the inputs: `n > 2`. As a boolean, it is as in the example, and
    that it always is becomes a condition.

    Attributes:
        expr: the relation, of sympy.
        sizes: what is known of its symbols; receives the condition.
    """

    expr: Any
    sizes: Sizes

    def __bool__(self) -> bool:
        return self.sizes.decide(self.expr)


def make_static(*extents: Any) -> tuple[int, ...]:
    """Return extents as numbers: those that depend on the inputs are fixed as in the example, by a condition."""
    return tuple(int(extent) for extent in extents)


def is_static(shape: Iterable[Any]) -> bool:
    """Return whether no extent depends on the inputs."""
    return not any(isinstance(extent, Extent) for extent in shape)


def in_example(extent: Any) -> int:
    """Return an extent in the example, without a condition."""
    return extent.in_example if isinstance(extent, Extent) else extent


def decide_equal(*extents: Any) -> bool:
    """Return whether extents are equal in the example. If they are, that they always are becomes a condition.

    If they are not, there is no condition: the caller refuses the operation, or builds what is right for any extents.

    Args:
        extents: two or more, numbers and `Extent`s.
    """
    if len({in_example(extent) for extent in extents}) > 1:
        return False
    open_extents = [extent for extent in extents if isinstance(extent, Extent)]
    if not open_extents:
        return True
    first = open_extents[0]
    expressions = [extent.expr if isinstance(extent, Extent) else extent for extent in extents]
    return all(first.sizes.decide(sympy.Eq(first.expr, expression)) for expression in expressions)


def evaluate(expr: Any, value_of: Callable[[Any], Any]) -> Any:
    """Evaluate a sum, product, quotient or root of symbols: as a number, or as layers that compute it.

    Args:
        expr: a sympy expression.
        value_of: returns the value of a symbol: anything with the operators of a number; `None` if it has none.

    Returns:
        The value; `None` if a symbol has none, or the expression has other parts.
    """
    if expr.is_number:
        return float(expr)
    if expr.is_Symbol:
        return value_of(expr)
    values = [evaluate(part, value_of) for part in expr.args]
    if None in values:
        return None
    if expr.is_Add:
        return reduce(operator.add, values)
    if expr.is_Mul:
        return reduce(operator.mul, values)
    if isinstance(expr, (FloatTrueDiv, IntTrueDiv)):
        dividend, divisor = values
        return dividend / divisor
    if isinstance(expr, ToFloat):
        (number,) = values
        return number
    if isinstance(expr, OpaqueUnaryFn_sqrt):
        (radicand,) = values
        return radicand**0.5
    return None


@define(eq=False)
class Sizes:
    """What is known of the symbols of a program: their values in the example, ranges, and conditions on them.

    Attributes:
        example: symbol → its value in the example, also of replaced ones. A symbol that is not here depends on the
            values of inputs.
        replaced: symbol → what it is known to be: a number, another symbol, or a multiple of another one plus a rest.
            What it is replaced by may be replaced, too.
        low: symbol → its least value, if that is not 1, see `low_of`; without meaning once the symbol is replaced.
        high: symbol → its largest value, if there is one; likewise.
        conditions: relations that the example meets and that the model needs, not yet taken into account in the others;
            `settle` does that, and empties it.
    """

    example: dict[Any, int] = field(factory=dict)
    replaced: dict[Any, Any] = field(factory=dict)
    low: dict[Any, int] = field(factory=dict)
    high: dict[Any, int] = field(factory=dict)
    conditions: list[Any] = field(factory=list)

    def low_of(self, symbol: Any) -> int:
        """Return the least value of a symbol: 1 if nothing is known of it, as Lua has no tensor without elements."""
        return self.low.get(symbol, 1)

    def of(self, expr: Any) -> Any:
        """Return an expression of symbols as an extent, or as a number if it is one."""
        expr = self.simplified(expr)
        if expr.is_Integer:
            return int(expr)
        if expr.is_Float or expr.is_Rational:
            return float(expr)
        return Extent(expr, self)

    def simplified(self, expr: Any) -> Any:
        """Return an expression simplified by what is known of the symbols; a number if their ranges leave only one."""
        expr = self._substitute(expr)
        # Roundings first: the ranges of a difference tell which of two is larger, but not if one is a rounding.
        if expr.has(*_ROUNDED):
            expr = expr.replace(lambda part: isinstance(part, _ROUNDED), _without_rounding)
        if expr.has(Max, Min):
            expr = expr.replace(lambda part: isinstance(part, (Max, Min)), self._extremum)
        expr = sympy.expand(expr)
        # Only if a symbol has a largest value, the range of the expression may be a single number.
        if not expr.free_symbols.isdisjoint(self.high):
            bounds = self._bounds(expr)
            if bounds.lower == bounds.upper:
                return sympy.Integer(bounds.lower)
        return expr

    def _extremum(self, expr: Any) -> Any:
        """Return the larger argument of a Max or the smaller one of a Min, or the expression if ranges do not tell.

        One of three or more arguments stays.
        """
        if len(expr.args) != 2:
            return expr
        first, second = expr.args
        difference = self._bounds(first - second)
        if difference.lower >= 0:
            return first if isinstance(expr, Max) else second
        if difference.upper <= 0:
            return second if isinstance(expr, Max) else first
        return expr

    def _bounds(self, expr: Any) -> Any:
        """Return the range of an expression by those of its symbols, with `lower` and `upper`."""
        ranges = {
            symbol: ValueRanges(self.low_of(symbol), self.high.get(symbol, int_oo)) for symbol in expr.free_symbols
        }
        return bound_sympy(sympy.expand(expr), ranges)

    def number(self, expr: Any) -> Any:
        """Return the value of an expression in the example; that it always has this value becomes a condition.

        Raises:
            CannotError: it depends on the values of the inputs, and not on their sizes.
            ChangedError: this was not known before.
        """
        value = self.in_example(expr)
        self._require(sympy.Eq(expr, value))
        return value

    def decide(self, relation: Any) -> bool:
        """Return whether a relation holds: always or never, as the ranges tell, or else in the example.

        In the last case, that it does, or does not, becomes a condition.

        Args:
            relation: of whole numbers.

        Raises:
            CannotError: it depends on the values of the inputs, and not on their sizes.
            ChangedError: the condition tells more than was known before.
        """
        relation = self._substitute(relation)
        is_strict = isinstance(relation, (sympy.StrictLessThan, sympy.StrictGreaterThan))
        if is_strict or isinstance(relation, (sympy.LessThan, sympy.GreaterThan)):
            difference = self._bounds(relation.gts - relation.lts)  # the greater side minus the lesser one
            least = 1 if is_strict else 0
            if difference.lower >= least:
                return True
            if difference.upper < least:
                return False
        holds = bool(self.in_example(relation))
        if relation not in (True, False):  # which sympy makes of a relation without symbols
            self._require(relation if holds else sympy.Not(relation))
        return holds

    def _require(self, condition: Any) -> None:
        """Add a condition that the example meets, and take it into account.

        Raises:
            ChangedError: it tells more than was known before.
        """
        self.conditions.append(condition)
        has_changed = self.settle()
        if has_changed:
            raise ChangedError

    def in_example(self, expr: Any) -> Any:
        """Return the value of an expression in the example, or whether a relation holds there, as sympy has them.

        Raises:
            CannotError: it depends on the values of the inputs, and not on their sizes.
        """
        if not expr.free_symbols <= self.example.keys():
            raise CannotError("an extent depends on the values of the inputs")
        return expr.xreplace({symbol: sympy.Integer(self.example[symbol]) for symbol in expr.free_symbols})

    def holds(self) -> bool:
        """Return whether the example meets all conditions, but for those on values of the inputs."""
        of_sizes = [condition for condition in self.conditions if condition.free_symbols <= self.example.keys()]
        try:
            return all(bool(self.in_example(condition)) for condition in of_sizes)
        except ZeroDivisionError:  # a condition on a rest, after one that there is anything to divide by
            return False

    def settle(self) -> bool:
        """Move the conditions into what is known of the symbols; return whether more is known than before.

        A condition of one symbol limits it, and replaces it by a multiple of another plus a rest where it asks for
        that; an equation of two makes them one. Symbols of other conditions are fixed as in the example, which meets
        all conditions.
        """
        before = dict(self.replaced), dict(self.low), dict(self.high)
        for condition in self.conditions:
            condition = self._substitute(condition)  # by what the conditions before it tell
            symbols = sorted(condition.free_symbols, key=str)
            depends_on_values = not self.example.keys() >= set(symbols)
            if depends_on_values:  # of inputs; what uses such a size is refused
                continue
            if len(symbols) == 2 and self._unify(condition, *symbols):
                continue
            if len(symbols) == 1 and self._limit(condition, *symbols):
                continue
            for symbol in symbols:
                self.replaced[symbol] = sympy.Integer(self.example[symbol])
        self.conditions.clear()
        return before != (self.replaced, self.low, self.high)

    def _substitute(self, expr: Any) -> Any:
        """Return an expression with symbols replaced by what they are known to be, until none of these is left."""
        while not expr.free_symbols.isdisjoint(self.replaced):
            expr = expr.xreplace(self.replaced)
        return expr

    def _limit(self, condition: Any, symbol: Any) -> bool:
        """Limit a symbol to the values that meet a condition; return whether they are a progression of more than one.

        If not, nothing is changed: the caller fixes the symbol as in the example.

        Args:
            condition: has no other symbol than this one.
            symbol: not replaced yet.
        """
        if self.example[symbol] < self.low_of(symbol):  # an example without elements, which Lua does not have
            return False
        sizes = _sizes_that_meet(condition, example=self.example[symbol], least=self.low_of(symbol))
        if sizes is None:
            return False
        low = max(sizes.low, self.low_of(symbol))
        limits = [high for high in (sizes.high, self.high.get(symbol)) if high is not None]
        high = min(limits, default=None)
        if low == high:  # one size is left, that of the example
            return False
        if low > self.low_of(symbol):
            self.low[symbol] = low
        if high is not None:
            self.high[symbol] = high
        if sizes.step > 1:
            self._divide(symbol, sizes.step)
        return True

    def _unify(self, condition: Any, first: Any, second: Any) -> bool:
        """Replace the second symbol by the first if a condition says that both are equal; return whether it does.

        Neither symbol is replaced yet.
        """
        if not isinstance(condition, sympy.Eq):
            return False
        # The equation may be written as n + 1 = m + 1.
        difference = sympy.expand(condition.lhs - condition.rhs)
        if difference not in (first - second, second - first):
            return False
        self.replaced[second] = first
        # The first one has the limits of both, the higher low and the lower high.
        if second in self.low:
            self.low[first] = max(self.low_of(first), self.low.pop(second))
        if second in self.high:
            high = self.high.pop(second)
            self.high[first] = min(self.high.get(first, high), high)
        return True

    def _divide(self, symbol: Any, step: int) -> None:
        """Replace a symbol, which can only have values in equal steps, by `step * quotient + rest`, with a new symbol.

        The quotient, the new symbol, has the limits that follow from those of the replaced one. The value in the
        example has the rest of all.
        """
        rest = self.example[symbol] % step
        quotient = sympy.Symbol(f"{symbol}_{step}", integer=True, nonnegative=True)
        self.replaced[symbol] = step * quotient + rest
        self.example[quotient] = self.example[symbol] // step
        low = self.low.pop(symbol, self.low_of(symbol))
        self.low[quotient] = -((rest - low) // step)  # (low - rest) / step, rounded up
        if symbol in self.high:
            high = self.high.pop(symbol)
            self.high[quotient] = (high - rest) // step


def _without_rounding(expr: Any) -> Any:
    """Return the argument of a rounding, of floats that are all whole, as whole numbers; the rounding if some are not.

    `floor(2.0 * float(n))` is `2 * n`: PyTorch's interpolation computes extents so.
    """
    (argument,) = expr.args
    whole = argument.replace(lambda part: isinstance(part, ToFloat), lambda part: part.args[0])
    whole = whole.replace(lambda part: part.is_Float and part == int(part), lambda part: sympy.Integer(int(part)))
    if whole.atoms(sympy.Float) or not whole.is_integer:
        return expr
    return whole


@define(frozen=True)
class _Progression:
    """Sizes in equal steps: low, low + step, low + 2 step, …

    Attributes:
        step: the difference of two neighbors.
        low: a lower limit: the least of the sizes, or below it, and then none of them.
        high: the largest size; `None` if there is none.
    """

    step: int
    low: int
    high: int | None


def _sizes_that_meet(condition: Any, example: int, least: int) -> _Progression | None:
    """Return the sizes that meet a condition; `None` if they are not a progression that the example is in.

    Args:
        condition: a relation of one symbol.
        example: the size in the example, which meets it.
        least: the least size that is possible, at most the example's.
    """
    repetition = _repetition_of(condition)
    if repetition is None:
        return None
    # To see what is repeated, and the sizes next to the example, a few periods are enough.
    end = max(repetition.start, example) + 4 * repetition.period
    if end > _MOST_SIZES:
        return None
    sizes = [size for size in range(least, end) if _value(condition, size)]
    return _progression_in(sizes, example, least, end, repetition.period)


@define(frozen=True)
class _Repetition:
    """How an expression of one symbol goes on: with each further period of sizes, it grows by the same whole number.

    It is close to a straight line, whose slope is a whole number by the period, and 0 for whether a relation holds.

    Attributes:
        period: a number of sizes.
        offset: the expression is at most so far from the line.
        start: the size from which on all this is so.
    """

    period: int
    offset: int
    start: int


def _repetition_of(expr: Any) -> _Repetition | None:
    """Return how an expression goes on; `None` if it is not known, as of products of two sizes and divisions by one.

    Args:
        expr: of sympy, with one symbol: a number, or a relation of numbers.
    """
    if expr.is_Integer:  # its line is 0
        return _Repetition(period=1, offset=abs(int(expr)), start=0)
    if expr.is_Symbol:
        return _Repetition(period=1, offset=0, start=0)
    parts = _repetitions_of_parts(expr)
    if parts is None:
        return None
    if isinstance(expr, sympy.Mul):
        return _repetition_of_product(expr.args, parts)
    if isinstance(expr, _DIVISIONS):
        dividend, _ = parts
        _, divisor = expr.args
        return _repetition_of_division(dividend, divisor, is_rest=not isinstance(expr, FloorDiv))
    period = lcm(*(part.period for part in parts))
    offset = sum(part.offset for part in parts)
    start = max(part.start for part in parts)
    if isinstance(expr, sympy.Add):
        return _Repetition(period, offset, start)
    # A comparison, Max, Min, or conditions that are combined: from where on one part is always above the other. The
    # distance of two lines that are not parallel grows by 1 a period at least: after so many periods it is larger than
    # both offsets.
    return _Repetition(period, offset, max(start, (offset + 1) * period))


def _repetitions_of_parts(expr: Any) -> list[_Repetition] | None:
    """Return how each argument of a function in `_FUNCTIONS` goes on; `None` for another, or if one is not known."""
    functions: Any = tuple(_FUNCTIONS)
    if not isinstance(expr, functions):
        return None
    parts: list[_Repetition] = []
    for argument in expr.args:
        part = _repetition_of(argument)
        if part is None:
            return None
        parts.append(part)
    return parts


def _repetition_of_product(factors: Any, parts: list[_Repetition]) -> _Repetition | None:
    """Return how a product of numbers and one other factor goes on; `None` if there are several of these."""
    number = prod(abs(int(factor)) for factor in factors if factor.is_Integer)
    others = [part for factor, part in zip(factors, parts) if not factor.is_Integer]
    if len(others) != 1:
        return None
    (other,) = others
    return _Repetition(other.period, number * other.offset, other.start)


def _repetition_of_division(dividend: _Repetition, divisor: Any, is_rest: bool) -> _Repetition | None:
    """Return how a whole quotient or its rest goes on; `None` if the divisor is not a number above 0."""
    if not divisor.is_Integer or divisor <= 0:
        return None
    number = int(divisor)
    # So many periods of the dividend make it grow by a multiple of the divisor.
    period = dividend.period * number
    # A quotient is rounded by less than 1, and so is its offset here. A rest is less than the divisor.
    offset = number if is_rest else dividend.offset // number + 2
    return _Repetition(period, offset, dividend.start)


_DIVISIONS = (FloorDiv, Mod, PythonMod)


def _value(expr: Any, size: int) -> Any:
    """Return the value of an expression, or whether a relation holds, where its only symbol has a value.

    Its functions are those that `_repetition_of` knows.
    """
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return size
    function = next(function for kind, function in _FUNCTIONS.items() if isinstance(expr, kind))
    return function(*[_value(part, size) for part in expr.args])


def _progression_in(sizes: list[int], example: int, least: int, end: int, period: int) -> _Progression | None:
    """Return the progression of those sizes from the example on in both directions, as far as the steps are equal.

    `None` if there are other sizes between these, or may be beyond the last that was tried.

    Args:
        sizes: those that meet a condition, in order, of all from `least` to before `end`.
        example: one of them.
        least: the least size that was tried.
        end: the first size that was not tried.
        period: with which the sizes repeat from `end` on.
    """
    step = _distance_to_nearest(sizes, example)
    low = _last_in_steps(sizes, example, -step)
    high = _last_in_steps(sizes, example, step)
    has_others_between = any(low < size < high and (size - low) % step for size in sizes)
    if has_others_between:
        return None
    is_endless = high + step >= end  # the next one was not tried
    # The sizes go on in periods, and steps that do not divide these lead to sizes that were not seen.
    if is_endless and period % step:
        return None
    # Where the next size below would be less than the least one anyway, the progression adds no limit.
    if low - step < least:
        low = least
    return _Progression(step, low, None if is_endless else high)


def _last_in_steps(sizes: list[int], first: int, step: int) -> int:
    """Return the last size that equal steps, up or down, reach from a first one without leaving the given sizes."""
    members = set(sizes)
    last = first
    while last + step in members:
        last += step
    return last


def _distance_to_nearest(sizes: list[int], example: int) -> int:
    """Return how far the nearest other size is from the example, one of sizes in order; 1 if it is the only one."""
    position = sizes.index(example)
    neighbors = sizes[max(position - 1, 0) : position + 2]  # with the example itself
    return min((abs(size - example) for size in neighbors if size != example), default=1)


_FUNCTIONS: dict[Any, Any] = {
    sympy.Add: lambda *parts: sum(parts),
    sympy.Mul: lambda *parts: prod(parts),
    FloorDiv: operator.floordiv,
    Mod: operator.mod,
    PythonMod: operator.mod,
    Max: max,
    Min: min,
    sympy.Eq: operator.eq,
    sympy.Ne: operator.ne,
    sympy.StrictLessThan: operator.lt,
    sympy.LessThan: operator.le,
    sympy.StrictGreaterThan: operator.gt,
    sympy.GreaterThan: operator.ge,
    sympy.And: lambda *parts: all(parts),
    sympy.Or: lambda *parts: any(parts),
    sympy.Not: operator.not_,
}
"""Parts of conditions whose sizes can be listed → what they compute."""
