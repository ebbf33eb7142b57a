"""Sizes that depend on those of the inputs: PyTorch's symbols, the conditions on them, and layers that check these.

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

from ...data import define, np
from .layers import LuaLayer, LuaNode, make, row, sequential

Shape = tuple[Any, ...]
"""Extents: integers, and `Extent`s."""
Place = tuple[int, int]
"""An input and one of its dimensions, both 0-based."""

_MOST_SIZES = 1 << 14
"""Sizes for which a condition is computed; one that needs more fixes its size."""
_ROUNDED = (TruncToInt, FloorToInt, CeilToInt, RoundToInt)


class ChangedError(Exception):
    """More is known of the sizes than before: what was built by what was known is built again."""


class CannotError(Exception):
    """An operation has no exact composition; the text says why."""


class Extent:
    """An integer that depends on the sizes of the inputs.

    Arithmetic returns further ones, or integers where the sizes cancel out. Equal ones have the same expression.
    Comparisons of other kinds, and the conversion to a number, decide by the example and add a condition.
    """

    __slots__ = ("expr", "sizes")

    def __init__(self, expr: Any, sizes: Sizes) -> None:
        self.expr = expr
        self.sizes = sizes

    def now(self) -> Any:
        """Return it by what is known of the sizes now."""
        return self.sizes.of(self.expr)

    @property
    def in_example(self) -> int:
        """Its value in the example, which the model does not need."""
        return int(self.sizes.in_example(self.expr))

    def _with(self, other: Any, function: Any, swapped: bool = False) -> Any:
        if isinstance(other, Extent):
            other = other.expr
        elif not isinstance(other, (int, float)):
            return NotImplemented
        pair = (other, self.expr) if swapped else (self.expr, other)
        return self.sizes.of(function(*map(sympy.sympify, pair)))

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b, True)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a * b)

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, FloorDiv)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with(other, FloorDiv, True)

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


def known(*extents: Any) -> tuple[int, ...]:
    """Return extents as numbers: those that depend on the inputs are fixed as in the example."""
    return tuple(int(extent) for extent in extents)


def is_known(shape: Iterable[Any]) -> bool:
    """Return whether no extent depends on the inputs."""
    return not any(isinstance(extent, Extent) for extent in shape)


def are_equal(*extents: Any) -> bool:
    """Return whether extents are equal in the example, which the model then needs; if not, it needs nothing."""
    first = next((extent for extent in extents if isinstance(extent, Extent)), None)
    sizes = {extent.in_example if isinstance(extent, Extent) else extent for extent in extents}
    if first is None or len(sizes) > 1:
        return len(sizes) == 1
    return all(first.sizes.decide(sympy.Eq(first.expr, getattr(extent, "expr", extent))) for extent in extents)


def computed(expr: Any, value_of: Callable[[Any], Any]) -> Any:
    """Return the value of a sum, product, quotient or root of symbols.

    Args:
        expr: the expression.
        value_of: returns the value of a symbol, which has the operators of a number; `None` if it has none.

    Returns:
        The value; `None` if a symbol has none, or the expression has other parts.
    """
    if expr.is_number:
        return float(expr)
    if expr.is_Symbol:
        return value_of(expr)
    parts = [computed(part, value_of) for part in expr.args]
    if None in parts:
        return None
    if expr.is_Add:
        return reduce(operator.add, parts)
    if expr.is_Mul:
        return reduce(operator.mul, parts)
    if isinstance(expr, (FloatTrueDiv, IntTrueDiv)):
        return parts[0] / parts[1]
    if isinstance(expr, ToFloat):
        return parts[0]
    if isinstance(expr, OpaqueUnaryFn_sqrt):
        return parts[0] ** 0.5
    return None


@define(eq=False)
class Sizes:
    """What is known of the symbols of a program.

    Attributes:
        example: the value of each symbol in the example.
        replaced: symbols → what is known that they are: numbers, or a multiple of another symbol plus a rest.
        low: the least value of a symbol, 1 if it is not here.
        high: the largest one, if there is one.
        conditions: relations that the example meets and that the model needs, not yet settled.
    """

    example: dict[Any, int] = field(factory=dict)
    replaced: dict[Any, Any] = field(factory=dict)
    low: dict[Any, int] = field(factory=dict)
    high: dict[Any, int] = field(factory=dict)
    conditions: list[Any] = field(factory=list)

    def of(self, expr: Any) -> Any:
        """Return an expression of symbols as an extent, or as a number if it is one."""
        expr = self.simplified(expr)
        if expr.is_Integer:
            return int(expr)
        if expr.is_Float or expr.is_Rational:
            return float(expr)
        return Extent(expr, self)

    def simplified(self, expr: Any) -> Any:
        """Return an expression by what is known of the symbols."""
        while not expr.free_symbols.isdisjoint(self.replaced):
            expr = expr.xreplace(self.replaced)
        if expr.has(*_ROUNDED):
            expr = expr.replace(lambda part: isinstance(part, _ROUNDED), _without_rounding)
        if expr.has(Max, Min):
            expr = expr.replace(lambda part: isinstance(part, (Max, Min)), self._extremum)
        expr = sympy.expand(expr)
        if not expr.free_symbols.isdisjoint(self.high):
            bounds = self._bounds(expr)
            if bounds.lower == bounds.upper:
                return sympy.Integer(bounds.lower)
        return expr

    def _extremum(self, expr: Any) -> Any:
        """Return the larger or smaller of two, if the ranges of the symbols tell which it is."""
        if len(expr.args) != 2:
            return expr
        first, second = expr.args
        apart = self._bounds(first - second)
        if apart.lower >= 0:
            return first if isinstance(expr, Max) else second
        if apart.upper <= 0:
            return second if isinstance(expr, Max) else first
        return expr

    def _bounds(self, expr: Any) -> Any:
        """Return the range of an expression."""
        ranges = {
            symbol: ValueRanges(self.low.get(symbol, 1), self.high.get(symbol, int_oo)) for symbol in expr.free_symbols
        }
        return bound_sympy(sympy.expand(expr), ranges)

    def number(self, expr: Any) -> Any:
        """Return the value of an expression in the example, which the model then needs.

        Raises:
            CannotError: it depends on the values of the inputs, and not on their sizes.
            ChangedError: this was not known before.
        """
        value = self.in_example(expr)
        self._need(sympy.Eq(expr, value))
        return value

    def decide(self, relation: Any) -> bool:
        """Return whether a relation holds, by what is known or in the example, which the model then needs.

        Raises:
            CannotError: it depends on the values of the inputs, and not on their sizes.
            ChangedError: this was not known before.
        """
        if isinstance(relation, (sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)):
            apart = self._bounds(relation.gts - relation.lts)  # greater minus less
            least = 1 if isinstance(relation, (sympy.StrictLessThan, sympy.StrictGreaterThan)) else 0
            if apart.lower >= least:
                return True
            if apart.upper < least:
                return False
        value = bool(self.in_example(relation))
        if relation not in (True, False):
            self._need(relation if value else sympy.Not(relation))
        return value

    def _need(self, condition: Any) -> None:
        self.conditions.append(condition)
        if self.settle():
            raise ChangedError

    def in_example(self, expr: Any) -> Any:
        """Return the value of an expression in the example."""
        if not expr.free_symbols <= self.example.keys():
            raise CannotError("an extent depends on the values of the inputs")
        return expr.xreplace({symbol: sympy.Integer(self.example[symbol]) for symbol in expr.free_symbols})

    def holds(self) -> bool:
        """Return whether the example meets all conditions."""
        return all(bool(self.in_example(condition)) for condition in self.conditions)

    def settle(self) -> bool:
        """Take account of the conditions; return whether more is known of a symbol than before.

        A condition of one symbol limits it, and makes it a multiple of another where it asks for one. Symbols of
        other conditions are fixed as in the example.
        """
        before = dict(self.replaced), dict(self.low), dict(self.high)
        while self.conditions:
            condition = self.conditions.pop(0)
            while not condition.free_symbols.isdisjoint(self.replaced):
                condition = condition.xreplace(self.replaced)
            symbols = condition.free_symbols
            if not symbols:
                continue
            if not symbols <= self.example.keys():
                continue  # it depends on values; the operation is refused where it is used
            if len(symbols) == 2 and self._join(condition, *sorted(symbols, key=str)):
                continue
            if len(symbols) > 1 or not self._limit(condition, *symbols):
                self.replaced.update({symbol: sympy.Integer(self.example[symbol]) for symbol in symbols})
        return before != (self.replaced, self.low, self.high)

    def _limit(self, condition: Any, symbol: Any) -> bool:
        """Limit a symbol to the values that meet a condition; return whether these are a progression."""
        limit = _progression(condition, self.example[symbol], self.low.get(symbol, 1))
        if limit is None:
            return False
        step, low, high = limit
        if low > self.low.get(symbol, 1):
            self.low[symbol] = low
        if high is not None and high < self.high.get(symbol, high + 1):
            self.high[symbol] = high
        if self.low.get(symbol, 1) == self.high.get(symbol):
            return False
        if step > 1:
            self._divide(symbol, step)
        return True

    def _join(self, condition: Any, first: Any, second: Any) -> bool:
        """Replace the second symbol by the first, if the condition is that both are equal."""
        if not isinstance(condition, sympy.Eq) or sympy.expand(condition.lhs - condition.rhs) not in (
            first - second,
            second - first,
        ):
            return False
        self.replaced[second] = first
        if second in self.low:
            self.low[first] = max(self.low.get(first, 1), self.low.pop(second))
        if second in self.high:
            self.high[first] = min(self.high.get(first, self.high[second]), self.high.pop(second))
        return True

    def _divide(self, symbol: Any, step: int) -> None:
        """Replace a symbol by a multiple of another and a rest, which is less than the step."""
        rest = self.example[symbol] % step
        part = sympy.Symbol(f"{symbol}_{step}", integer=True, nonnegative=True)
        self.replaced[symbol] = step * part + rest
        self.example[part] = (self.example[symbol] - rest) // step
        self.low[part] = -((rest - self.low.pop(symbol, 1)) // step)
        if symbol in self.high:
            self.high[part] = (self.high.pop(symbol) - rest) // step


def _without_rounding(expr: Any) -> Any:
    """Return a whole number that was made a float, multiplied by a whole number and made whole again, without that."""
    inner = expr.args[0].replace(lambda part: isinstance(part, ToFloat), lambda part: part.args[0])
    inner = inner.replace(lambda part: part.is_Float and part == int(part), lambda part: sympy.Integer(int(part)))
    return expr if inner.atoms(sympy.Float) or not inner.is_integer else inner


def _progression(condition: Any, example: int, least: int) -> tuple[int, int, int | None] | None:
    """Return the step, the least and the largest of the sizes around the example that meet a condition.

    A condition of sums, products with numbers, whole quotients and remainders repeats with the period of its divisors
    beyond its constants, so that a few periods beyond these are enough. `None` if the sizes are no progression.
    """
    parts = list(sympy.preorder_traversal(condition))
    if not all(part.is_Integer or part.is_Symbol or isinstance(part, tuple(_VALUES)) for part in parts):
        return None
    products = [part for part in parts if isinstance(part, sympy.Mul)]
    if any(sum(not item.is_Integer for item in part.args) > 1 for part in products):
        return None
    divisors = [part.args[1] for part in parts if isinstance(part, (FloorDiv, Mod, PythonMod))]
    if not all(divisor.is_Integer and divisor > 0 for divisor in divisors):
        return None
    period = lcm(1, *map(int, divisors))
    constants = sum(abs(int(part)) for part in parts if part.is_Integer)
    count = (constants + 4) * period + example
    if count > _MOST_SIZES:
        return None
    sizes = [size for size in range(least, count) if _value(condition, size)]
    return _step_of(sizes, example, least, count, period)


def _value(expr: Any, size: int) -> Any:
    """Return the value of an expression of one symbol."""
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return size
    function = next(function for kind, function in _VALUES.items() if isinstance(expr, kind))
    return function(*[_value(part, size) for part in expr.args])


def _step_of(sizes: list[int], example: int, least: int, count: int, period: int) -> tuple[int, int, int | None] | None:
    """Return step, least and largest of a progression of sizes below a count that contains the example, the longest."""
    place = sizes.index(example)
    step = min((abs(other - example) for other in sizes[max(place - 1, 0) : place + 2] if other != example), default=1)
    members = set(sizes)
    low = high = example
    while low - step in members:
        low -= step
    while high + step in members:
        high += step
    is_open = high + step >= count
    between = [size for size in sizes if low < size < high and (size - low) % step]
    if between or (is_open and period % step):
        return None
    return step, low if low - step >= least else least, None if is_open else high


_VALUES: dict[Any, Any] = {
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

# What is left to check when the model runs

_CHECKED = {
    **dict.fromkeys(["nn.Linear", "nn.TemporalConvolution", "nn.SeqLSTM"], -1),
    **{
        f"nn.{space}{kind}": 1
        for space in ("Spatial", "Volumetric", "")
        for kind in ("Convolution", "DilatedConvolution", "FullConvolution", "BatchNormalization")
    },
}
"""The dimension whose extent a layer checks itself."""
_KEEPING = {
    *("nn.Copy", "nn.MulConstant", "nn.AddConstant", "nn.ReLU", "nn.Identity", "nn.Contiguous"),
    *("nn.SpatialZeroPadding", "nn.SpatialMaxPooling", "nn.SpatialAveragePooling"),
    *("nn.SpatialReflectionPadding", "nn.SpatialReplicationPadding", "nn.Unsqueeze"),
}
"""Layers that keep the dimensions that others check."""


def checked_by_layers(input: LuaNode, steps: list[LuaNode]) -> set[int]:
    """Return the dimensions of an input whose extent the layers that take it check themselves."""
    found, same = set(), [input]
    for step in steps:
        if step.layer is None or not any(source in same for source in step.inputs):
            continue
        layer = step.layer.children[0] if step.layer.name in ("nn.Bottle", "nn.Sequential") else step.layer
        place, rank = _CHECKED.get(layer.name), len(step.inputs[0].shape)
        if place is not None and (place > 0 or rank == len(input.shape)):
            found.add(place % rank)
        elif step.layer.name in _KEEPING and (step.layer.name != "nn.Unsqueeze" or step.layer.args[0] > 2):
            same.append(step)
    return found


@define(eq=False)
class Check:
    """The sizes that one dimension of an input may have: `step * n + rest`, from `low` to `high`.

    Attributes:
        place: the dimension, 0-based.
        step: 0 if the size is fixed.
        rest: the size, if it is fixed.
        low: the least size, 1 if any will do.
        high: the largest size; `None` if there is none.
        equal: the first dimension of any input with the same size, if this is another.
    """

    place: int
    step: int
    rest: int
    low: int = 1
    high: int | None = None
    equal: Place | None = None

    @property
    def is_free(self) -> bool:
        """Whether any size will do."""
        return self.step == 1 and self.low <= 1 and self.high is None and self.equal is None

    def layers(self, rank: int) -> list[LuaLayer]:
        """Return layers of an input of some dimensions that raise an error for other sizes."""
        first = row(rank, self.place)
        if not self.step:
            return [first >> make("nn.Reshape", self.rest, False)]
        made = []
        if self.step > 1:
            whole = make("nn.View", -1, self.step)
            made.append(first >> (make("nn.Padding", 1, self.step - self.rest) >> whole if self.rest else whole))
        if self.low > max(self.step, 1):
            made.append(row(rank, self.place) >> make("nn.Narrow", 1, self.low, 1))
        if self.high is not None:
            made.append(_at_most(row(rank, self.place), self.high))
        return made

    def text(self, name: str) -> str:
        """Return the sizes, with a name for the number that is free: `2n+1`, `n<=512`."""
        if not self.step:
            return str(self.rest)
        if not name:
            return "any"
        body = f"{self.step if self.step > 1 else ''}{name}" + (f"+{self.rest}" if self.rest else "")
        if self.low > max(self.step, 1):
            body = f"{self.low}<={body}" if self.high is not None else f"{body}>={self.low}"
        return body if self.high is None else f"{body}<={self.high}"


def _at_most(first: LuaLayer, most: int) -> LuaLayer:
    """Return layers that count the elements of a row and take as many of a tensor, which is an error beyond it."""
    ones = [make("nn.Constant", np.ones(1, "f4"), 0), make("nn.Select", 2, 1)]
    count = sequential(*ones, make("nn.Sum", 1), make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", False, True))
    pair = LuaLayer("nn.ConcatTable", children=[make("nn.Constant", np.zeros(most, "f4")), count])
    return first >> pair >> make("nn.Index", 1)


def checks_of(shapes: list[Shape], sizes: Sizes) -> list[list[Check]] | None:
    """Return the sizes of each dimension of each input.

    `None` if the sizes of a dimension are no progression, or depend on those of another in another way than that both
    are equal: its symbols are then fixed.
    """
    found: list[list[Check]] = []
    first: dict[Any, Place] = {}  # symbol → where it is
    for number, shape in enumerate(shapes):
        found.append([])
        for place, extent in enumerate(shape):
            if isinstance(extent, int):
                found[-1].append(Check(place, 0, extent))
                continue
            symbols = extent.expr.free_symbols
            symbol = next(iter(symbols))
            rest = extent.expr.xreplace({symbol: sympy.Integer(0)})
            step = sympy.expand(extent.expr - rest).coeff(symbol)
            earlier = first.setdefault(symbol, (number, place))
            is_linear = step.is_Integer and step > 0 and sympy.expand(step * symbol + rest - extent.expr) == 0
            if len(symbols) > 1 or not is_linear or shapes[earlier[0]][earlier[1]] != extent:
                sizes.conditions += [sympy.Eq(one, sizes.example[one]) for one in symbols]
                return None
            low, high = sizes.low.get(symbol, 1), sizes.high.get(symbol)
            check = Check(place, int(step), int(rest), int(step * low + rest))
            check.high = None if high is None else int(step * high + rest)
            # Batches of several inputs need no check: no layer takes examples of one kind and of unequal numbers.
            check.equal = earlier if earlier != (number, place) and (place or earlier[1]) else None
            found[-1].append(check)
    return found


def texts_of(checks: list[list[Check]]) -> list[str]:
    """Return the sizes of each input: `any x 3 x 224 x 224`, `any x 3 x n x n`."""
    names = iter("nmkpqrstuvwxyzabcdefghijl" * 9)
    equal = {check.equal for dimensions in checks for check in dimensions}
    named: dict[Place, str] = {}
    found = []
    for number, dimensions in enumerate(checks):
        parts = []
        for check in dimensions:
            place = number, check.place
            if check.equal is not None:
                name = named[check.equal]
            else:
                is_named = check.step and (place in equal or not check.is_free)
                name = next(names) if is_named else ""
                named[place] = name
            parts.append(check.text(name))
        found.append(" x ".join(parts))
    return found


def guard(dimensions: list[Check], number: int, checked: set[int]) -> LuaLayer | None:
    """Return a layer that returns its input, and raises an error in Lua for other sizes; `None` if all are right.

    Args:
        dimensions: of the input.
        number: of the input.
        checked: dimensions that layers check.
    """
    rank = len(dimensions)
    checks = []
    for check in dimensions:
        if check.place not in checked and not check.is_free:
            checks += check.layers(rank)
        if check.equal is not None and check.equal[0] == number:
            both = LuaLayer("nn.ConcatTable", children=[row(rank, check.equal[1]), row(rank, check.place)])
            checks.append(both >> make("nn.CSubTable"))
    if not checks:
        return None
    children = [LuaLayer("nn.ConcatTable", children=[make("nn.Identity"), *checks]), make("nn.SelectTable", 1)]
    return LuaLayer("nn.Sequential", children=children, label="checkSizes")


def guard_of_pair(rank: int, place: int, other_rank: int, other_place: int) -> LuaLayer:
    """Return a layer of {input, other} that returns the input, and raises an error unless two extents are equal."""
    rows = make("nn.SelectTable", 1) >> row(rank, place), make("nn.SelectTable", 2) >> row(other_rank, other_place)
    both = LuaLayer("nn.ConcatTable", children=[*rows])
    children = [make("nn.SelectTable", 1), both >> make("nn.CSubTable")]
    first = LuaLayer("nn.ConcatTable", children=children)
    return LuaLayer("nn.Sequential", children=[first, make("nn.SelectTable", 1)], label="checkPair")
