"""Recorded values that are unchanged since a layer read or wrote them.

In-place layers and buffers that several layers share overwrite outputs that earlier layers recorded. Storages and the
order of the steps show which ones. May import graph and nn.
"""

from __future__ import annotations

from ...graph.tensor import Tensor
from .values import leaves, region
from .visits import VIEWS, Step, base_name


class Memory:
    """The writes of all steps, by storage.

    Args:
        steps: in order.
        lost: ids of storages of outputs that are missing from the file.
    """

    def __init__(self, steps: list[Step], lost: frozenset[int] | set[int] = frozenset()) -> None:
        self._lost = lost
        self._writes: dict[int, list[tuple[int, int, int]]] = {}
        self._gradients: dict[int, set[int]] = {}
        for number, step in enumerate(steps):
            for storage, low, high in step.writes:
                self._writes.setdefault(storage, []).append((number, low, high))
            name = base_name(step.obj.class_name)
            if (name in VIEWS and name != "Dropout") or step.whole:
                continue
            for tensor in leaves(step.grad_input):
                self._gradients.setdefault(id(tensor.storage), set()).add(number)

    def written_after(self, tensor: Tensor, step: int) -> bool:
        """Return whether any step after this one changed the memory of a tensor."""
        storage, low, high = region(tensor)
        return storage in self._lost or any(
            number > step and low <= last and first <= high for number, first, last in self._writes.get(storage, ())
        )

    def holds_output(self, value: object, step: int) -> bool:
        """Return whether the file contains the tensors that a step wrote as it wrote them."""
        return not any(self.written_after(tensor, step) for tensor in leaves(value))

    def holds_gradient(self, value: object, step: int) -> bool:
        """Return whether gradients are in memory that only one layer writes."""
        return all(len(self._gradients.get(id(tensor.storage), ())) <= 1 for tensor in leaves(value))
