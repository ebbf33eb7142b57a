"""Differences of two graphs by content: tensors are compared by element, whatever their storages and strides."""

from __future__ import annotations

from typing import Any

from attrs import evolve, field

from ..data import define
from ..graph.lua import Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..limits import BYTES_PER_STEP
from .compare import Comparer, Difference, Path, path_text

_COMPARED = 16
"""Number of free comparisons of each element of a storage, in views of it."""


@define(eq=False)
class ValueComparer(Comparer):
    """Compares values, not how they are stored: sharing, offsets, strides, devices and gradients are ignored.

    Attributes:
        rtol: relative tolerance, as a fraction of the second's element.
        atol: absolute tolerance, added to the relative one.
        elements: whether elements are compared, not only shapes.
        tensors: number of pairs of tensors compared.
    """

    rtol: float = 0.0
    atol: float = 0.0
    elements: bool = True
    tensors: int = 0
    _views: dict[Any, Difference | None] = field(factory=dict)
    _stored: set[int] = field(factory=set)

    def _met(self, path: Path, a: Value, b: Value) -> bool:
        """Compare tensors at every path, so that each path of a shared one is named."""
        return not isinstance(a, Tensor) and self._compared_before(a, b)

    def _same_scalar(self, a: Value, b: Value) -> bool:
        if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, (int, float)):
            return super()._same_scalar(a, b)
        if not isinstance(b, (int, float)):
            return False
        if a == b or (a != a and b != b):
            return True
        try:
            return abs(a - b) <= self.atol + self.rtol * abs(b) < float("inf")
        except OverflowError:  # an integer beyond all floats
            return False

    def _tensors(self, path: Path, a: Tensor, b: Tensor) -> None:
        self.tensors += 1
        self._same(path, "type", a.element.name, b.element.name)
        if a.shape != b.shape:
            self._same(path, "shape", a.shape, b.shape)
        elif self.elements and a.numel:
            views = tuple((id(each.storage), each.offset, each.stride, each.element.name) for each in (a, b))
            name = (a.shape, views, id(a.extras), id(b.extras))
            if name not in self._views:
                from .deviation import deviation

                self._charge(a, b)
                self._views[name] = deviation(path_text(path), a, b, self.rtol, self.atol)
            found = self._views[name]
            if found is not None:
                self.found.append(evolve(found, path=path_text(path)))

    def _charge(self, a: Tensor, b: Tensor) -> None:
        """Charge the elements of views that overlap more often than a model's do."""
        for each in (a, b):
            if each.storage is not None:
                if id(each.storage) not in self._stored:
                    self._stored.add(id(each.storage))
                    self._budget.left += _COMPARED * each.storage.nbytes // BYTES_PER_STEP
                shown = min(each.numel, 2 * each.storage.count)  # more of them are compared as storages
                self._budget.spend(shown * each.element.itemsize // BYTES_PER_STEP)

    def _storages(self, path: Path, a: Storage, b: Storage) -> None:
        """Compare storages outside of tensors as tensors of one dimension."""
        whole = (Tensor(each.element, each, (each.count,), (1,), 0) for each in (a, b))
        self._tensors(path, *whole)
