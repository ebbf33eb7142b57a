"""The memory that the runs of a model wrote, in order, and which recorded values are in the file as they were computed.
A run is one call of a module in Lua's last pass; modules may write into the same memory, one after the other.

May import graph. Knows nothing of PyTorch.
"""

from __future__ import annotations

from ...data import define, np
from ...graph.tensor import Tensor
from .recorded import Recorded, first_of, tensors_in
from .run import Run


@define(frozen=True)
class Region:
    """A range of the elements of a storage, from the first to the last that a tensor reaches.

    Attributes:
        storage: the id of the storage.
        first: the first element, from 0.
        last: the last one.
    """

    storage: int
    first: int
    last: int

    @classmethod
    def of(cls, tensor: Tensor) -> Region:
        """Return the elements of its storage that a tensor reaches."""
        first, end = tensor.reach()
        return cls(id(tensor.storage), first, end - 1)

    def overlaps(self, other: Region) -> bool:
        """Return whether two regions have elements in common."""
        return self.storage == other.storage and self.first <= other.last and other.first <= self.last


@define(frozen=True)
class View:
    """What tells the tensors on one storage apart; two tensors of the same view have the same elements.

    Attributes:
        region: the elements that the tensor reaches.
        sizes: of its dimensions.
        strides: of its dimensions.
    """

    region: Region
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> View:
        """Return which view of its memory a tensor is."""
        return cls(Region.of(tensor), tuple(tensor.size), tuple(tensor.stride))


def written_regions(runs: list[Run]) -> list[list[Region]]:
    """Return for each run the memory that it wrote: that of its output, unless it returns what another run wrote.

    Args:
        runs: in the order in which they end, which is that of the writes.
    """
    written_storages: set[int] = set()
    regions_of_runs = []
    for run in runs:
        regions = _written_by(run, written_storages)
        written_storages.update(region.storage for region in regions)
        regions_of_runs.append(regions)
    return regions_of_runs


def _written_by(run: Run, written_storages: set[int]) -> list[Region]:
    """Return the memory that a run wrote.

    Args:
        run: the run.
        written_storages: the ids of the storages that runs before it wrote.
    """
    input_regions = [Region.of(tensor) for tensor in tensors_in(run.input)]
    regions = []
    for region in map(Region.of, tensors_in(run.output)):
        # nn.View, for one, returns the memory of its input as it is; a layer that works in place writes it.
        is_view_of_input = not run.in_place and any(region.overlaps(one) for one in input_regions)
        # Often a container's output is that of its last module, whose run has ended before. Then it wrote nothing.
        is_of_module_inside = run.is_container and region.storage in written_storages
        if not is_view_of_input and not is_of_module_inside:
            regions.append(region)
    if run.in_place and _wrote_input_too(first_of(run.input), run.output):
        regions.append(Region.of(first_of(run.input)))
    return regions


def _wrote_input_too(source: Recorded, target: Recorded) -> bool:
    """Return whether a layer that works in place wrote the memory of its input, though its output is in other memory.

    In older releases the output had memory of its own once a model had changed its type, and the layer wrote both: then
    both have the same values.

    Args:
        source: its input.
        target: its output.
    """
    if not isinstance(source, Tensor) or not isinstance(target, Tensor):
        return False
    has_own_memory = source.storage is not target.storage and source.shape == target.shape
    return has_own_memory and np.array_equal(source.numpy(), target.numpy(), equal_nan=True)


class Memory:
    """Which recorded values are in the file as they were computed, and which ones a later run has overwritten.

    In-place layers and buffers that several layers share overwrite outputs that earlier layers recorded. Storages and
    the order of the runs show which ones.

    Args:
        runs: in the order in which they end. The number of a run is its place in this list.

    Attributes:
        written_by: for each run, by its number, the memory that it wrote.
    """

    def __init__(self, runs: list[Run]) -> None:
        self.written_by = written_regions(runs)
        self._writes: dict[int, list[tuple[int, Region]]] = {}
        """By the id of a storage: each write into it, as the number of the run and the part that it wrote."""
        self._gradient_writers: dict[int, set[int]] = {}
        """By the id of a storage: the numbers of the runs whose backward wrote a gradient into it."""
        after_all_runs = len(runs)
        for number, run in enumerate(runs):
            # A backward, which comes after all runs, may restore the input that an in-place layer overwrote. Nobody
            # knows which of the two values is in the file, so neither an earlier nor a later run may read it. A single
            # write after all runs makes it overwritten for each of them.
            writer = after_all_runs if run.may_be_undone else number
            for region in self.written_by[number]:
                self._writes.setdefault(region.storage, []).append((writer, region))
            # The gradInput of a container is often that of a module inside: noted again, it would have two writers.
            if not run.is_container:
                self._note_gradients(number, run)

    def _note_gradients(self, number: int, run: Run) -> None:
        """Note in `_gradient_writers` where the backward of a run wrote the gradient with respect to its input."""
        # A layer that passes a gradient on, as nn.View does, does not write it. One that works in place does, into the
        # memory of gradOutput.
        passed_on = set()
        if not run.in_place:
            passed_on = {id(tensor.storage) for tensor in tensors_in(run.grad_output)}
        for tensor in tensors_in(run.grad_input):
            if id(tensor.storage) not in passed_on:
                self._gradient_writers.setdefault(id(tensor.storage), set()).add(number)

    def is_overwritten_after(self, number: int, value: Recorded) -> bool:
        """Return whether any run after one wrote into the memory of a value's tensors.

        Args:
            number: of the one, from 0; -1 if all runs count.
            value: the value.
        """
        for tensor in tensors_in(value):
            region = Region.of(tensor)
            for writer, written in self._writes.get(region.storage, ()):
                if writer > number and written.overlaps(region):
                    return True
        return False

    def holds_gradients(self, run: Run) -> bool:
        """Return whether both gradients of a run, with respect to output and input, are in the file as it had them.

        They are if one layer at most wrote into the storage of each: the one that computed it.

        Args:
            run: a run of which both are recorded.
        """
        received = {id(tensor.storage) for tensor in tensors_in(run.grad_output)}
        returned = {id(tensor.storage) for tensor in tensors_in(run.grad_input)}
        # A layer that works in place returns its gradient in the memory of the one that it received, which is lost.
        if received & returned:
            return False
        return all(len(self._gradient_writers.get(storage, ())) <= 1 for storage in received | returned)
