"""Two drawn models side by side: the pairs of corresponding blocks, and their differences."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from math import inf, log10
from typing import Any

from attrs import field

from ...data import define
from ...graph.show import extents
from ...values.compare import TensorDifference, deviation
from ...values.statistics import statistics_of
from .blocks import Block, Weight

_LEAST, _MOST_PRODUCT, _DEEPEST = -6.0, 4_000_000, 500
"""Power of ten of the palest relative difference; product of lengths above which children are paired by position;
maximum depth."""


@define(frozen=True)
class ModelChange:
    """A difference of a block from its counterpart.

    Attributes:
        kind: `only`, `shape`, `options` or `weights`.
        text: what differs, a line each, the first model's side first.
        size: of weights, the largest difference as a fraction of the largest element.
    """

    kind: str
    text: tuple[str, ...] = ()
    size: float = 0.0

    @property
    def share(self) -> float:
        """Strength of its colour, from 0.12 to 0.55: by the power of ten of its size."""
        power = log10(self.size) if 0 < self.size < inf else _LEAST if not self.size else 0.0
        return round(0.12 + 0.43 * (min(max(power, _LEAST), 0.0) - _LEAST) / -_LEAST, 2)


@define(eq=False)
class Pairing:
    """Counterparts and differences of the blocks of two models.

    Attributes:
        rtol: relative tolerance, as a fraction of the second's element.
        atol: absolute tolerance, added to the relative one.
        other: counterpart by the id of a block.
        changes: difference by the id of a block, of both models.
        counts: differences by kind; those only in one model count for it: `only first`, `only second`.
    """

    rtol: float = 0.0
    atol: float = 0.0
    other: dict[int, Block] = field(factory=dict)
    changes: dict[int, ModelChange] = field(factory=dict)
    counts: dict[str, int] = field(factory=dict)
    _named: bool = False
    _seen: dict[Any, tuple[str, float]] = field(factory=dict)

    def run(self, first: list[Block], second: list[Block]) -> None:
        """Pair the blocks of two models, each before those inside it, and compare them."""
        self._named = not (first[0].target or first[0].kind != "side") or not (
            second[0].target or second[0].kind != "side"
        )
        stack = [(first[0], second[0], 0)]
        while stack:
            one, two, depth = stack.pop()
            self.other[id(one)], self.other[id(two)] = two, one
            self._compare(one, two)
            pairs = _pair(one.inside, two.inside, by_name=self._named) if depth < _DEEPEST else []
            for a, b in pairs:
                if a is not None and b is not None:
                    stack.append((a, b, depth + 1))
                else:
                    self._only(a, "first")
                    self._only(b, "second")

    def inside(self, blocks: list[Block]) -> dict[int, int]:
        """Return the number of differing blocks inside each, by its id."""
        found: dict[int, int] = {}
        for block in reversed(blocks):
            found[id(block)] = sum(found[id(each)] + (id(each) in self.changes) for each in block.inside)
        return found

    def _only(self, block: Block | None, side: str) -> None:
        if block is None or block.kind == "end" or (self._named and not block.parameters and not block.weights):
            return
        self._add(ModelChange("only", (f"only in the {side} model",)), block, kind=f"only {side}")

    def _add(self, change: ModelChange, *blocks: Block, kind: str = "") -> None:
        for block in blocks:
            self.changes[id(block)] = change
        self.counts[kind or change.kind] = self.counts.get(kind or change.kind, 0) + 1

    def _compare(self, one: Block, two: Block) -> None:
        options = self._options(one, two)
        shapes, weights, size = [], [], 0.0
        others = {each.name: each for each in two.weights}
        for weight in one.weights:
            other = others.pop(weight.name, None)
            if other is None:
                shapes.append(f"{weight.name}: only in the first")
            elif weight.tensor.shape != other.tensor.shape:
                shapes.append(f"{weight.name}: {extents(weight.tensor.shape)} against {extents(other.tensor.shape)}")
            elif weight.tensor.numel:
                text, share = self._elements(weight, other)
                weights += [f"{weight.name}: {text}"] if text else []
                size = max(size, share)
        shapes += [f"{name}: only in the second" for name in others]
        shapes = [line for line in shapes if not line.startswith("num_batches_tracked")]
        if shapes or options or weights:
            kind = "shape" if shapes else "options" if options else "weights"
            self._add(ModelChange(kind, (*shapes, *options, *weights), size), one, two)

    def _options(self, one: Block, two: Block) -> list[str]:
        """Return the differences of class and arguments."""
        if self._named or not one.class_name or not two.class_name:
            return []
        if (one.target or one.class_name) != (two.target or two.class_name):
            return [f"class: {one.title} against {two.title}"]
        left, right = (each.arguments or each.fields for each in (one, two))
        return [
            f"{name}: {left.get(name, 'none')} against {right.get(name, 'none')}"
            for name in sorted({*left, *right})
            if left.get(name) != right.get(name)
        ]

    def _elements(self, weight: Weight, other: Weight) -> tuple[str, float]:
        """Return kind and size of the difference of two tensors of one shape; equal pairs of memory are read once."""
        a, b = weight.tensor, other.tensor
        key = (id(a.storage), a.offset, a.stride, id(b.storage), b.offset, b.stride, a.shape)
        if key not in self._seen:
            found = deviation("", a, b, self.rtol, self.atol)
            if found is None:
                self._seen[key] = "", 0.0
            elif isinstance(found, TensorDifference):
                numbers = statistics_of(a)
                largest = max(abs(numbers.get("min", 0.0)), abs(numbers.get("max", 0.0)))
                share = found.largest / largest if largest else inf
                text = f"{found.differing:,} of {found.elements:,} elements differ, by at most {found.largest:.3g}"
                self._seen[key] = text, share
            else:
                self._seen[key] = found.message, inf
        return self._seen[key]


def _pair(first: list[Block], second: list[Block], *, by_name: bool) -> list[tuple[Block | None, Block | None]]:
    """Pair the children of two containers: equal classes in their order, or equal names."""
    left, right = ([each for each in side if each.kind != "end"] for side in (first, second))
    if by_name:
        names = {each.name: each for each in right}
        return [(each, names.pop(each.name, None)) for each in left] + [(None, each) for each in names.values()]
    ends = ([each for each in side if each.kind == "end"] for side in (first, second))
    return [*zip(*ends), *_in_order(left, right)]


def _in_order(left: list[Block], right: list[Block]) -> Iterator[tuple[Block | None, Block | None]]:
    """Pair blocks by position if most classes agree or there are very many, else by runs of equal classes."""
    many = len(left) * len(right) > _MOST_PRODUCT
    alike = sum(one.class_name == two.class_name for one, two in zip(left, right))
    if many or (len(left) == len(right) and 2 * alike >= len(left)):
        yield from zip_longest(left, right)
        return
    looks = [[(each.class_name or each.title, len(each.inside)) for each in side] for side in (left, right)]
    for tag, a, b, c, d in SequenceMatcher(None, looks[0], looks[1], autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and b - a == d - c):
            yield from zip(left[a:b], right[c:d])
        else:
            yield from ((each, None) for each in left[a:b])
            yield from ((None, each) for each in right[c:d])
