"""How far two graphs are apart in what they hold: elements of tensors by value, whatever storages and strides are."""

from __future__ import annotations

from attrs import field

from ..data import define
from ..graph.lua import Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from .compare import Comparer, Difference


@define(frozen=True)
class TensorDifference(Difference):
    """How the elements of two tensors of one shape differ.

    Attributes:
        elements: how many there are.
        differing: how many of them differ by more than is tolerated.
        largest: the largest difference; infinite where one of the two is no number, or infinite.
        index: where that is, 0-based.
    """

    elements: int = 0
    differing: int = 0
    largest: float = 0.0
    index: tuple[int, ...] = ()


@define(eq=False)
class ValueComparer(Comparer):
    """Compares values, not how they are stored: sharing, offsets, strides, devices and gradients are left alone.

    Attributes:
        rtol: how far an element may be from the second's, as a share of the second's.
        atol: how far it may be besides.
        elements: whether elements are compared, and not only shapes.
        tensors: how many pairs of tensors were met.
    """

    rtol: float = 0.0
    atol: float = 0.0
    elements: bool = True
    tensors: int = 0
    _pairs: set[tuple[int, int]] = field(factory=set)

    def _met(self, trail: str, a: Value, b: Value) -> bool:
        """Tensors are compared wherever they stand, so that each place of a shared one is named."""
        if isinstance(a, Tensor):
            return False
        pair = (id(a), id(b))
        if pair in self._pairs:
            return True
        self._pairs.add(pair)
        return False

    def _same_scalar(self, a: Value, b: Value) -> bool:
        if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, (int, float)):
            return super()._same_scalar(a, b)
        if not isinstance(b, (int, float)):
            return False
        return a == b or (a != a and b != b) or abs(a - b) <= self.atol + self.rtol * abs(b) < float("inf")

    def _tensors(self, trail: str, a: Tensor, b: Tensor) -> None:
        self.tensors += 1
        self._same(trail, "type", a.element.name, b.element.name)
        if a.shape != b.shape:
            self._same(trail, "shape", a.shape, b.shape)
        elif self.elements and a.numel:
            from .deviation import deviation

            found = deviation(trail, a, b, self.rtol, self.atol)
            if found is not None:
                self.found.append(found)

    def _storages(self, trail: str, a: Storage, b: Storage) -> None:
        """A storage that stands alone is a tensor of one dimension."""
        whole = (Tensor(each.element, each, (each.count,), (1,), 0) for each in (a, b))
        self._tensors(trail, *whole)
