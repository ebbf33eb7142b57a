"""Nodes: runs of layers that are computed here, whose inputs are recorded, or are computed by other nodes.
Each is computed in double precision, and in several runs with errors of the precision in which Lua computed: how far
these are from the first is what rounding explains.

May import graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import prod

import torch
from attrs import field

from ...data import define
from ...graph.tensor import Tensor
from .layer import Compute, LiveLayer, NotRunError, RefusedError, Values, outputs
from .memory import Region, View
from .recorded import flattened, map_instances
from .rounding import FACTOR_OF_DOUBLES, UNIT, Deviation, expected_errors, measure

PERTURBED_RUNS = 4
"""Runs with random errors that estimate the error of rounding; each counts with the mean of all values."""
_SINGLE_PRECISION = PERTURBED_RUNS
"""The number of the run with errors in single precision: it follows those with random errors."""


@define(eq=False)
class NodeOutput:
    """A tensor that one node computes and another one reads, because its value in the file was overwritten.

    Attributes:
        node: the node that computes it.
        index: of the tensor among the outputs of that node, from 0.
        shape: as the layer that reads it sees it.
    """

    node: Node
    index: int
    shape: tuple[int, ...]

    def get(self, error_run: int | None) -> torch.Tensor:
        """Return the computed value.

        Args:
            error_run: the number of the run with errors whose value is asked for; `None` for the exact one.

        Raises:
            RefusedError: its node computed something of another size.
        """
        values = self.node.values if error_run is None else self.node.perturbed[error_run]
        if self.index >= len(values) or values[self.index].numel() != prod(self.shape):
            raise RefusedError("another shape than recorded")
        return values[self.index].reshape(self.shape)


@define(eq=False)
class Node:
    """One run of one layer, computed in double precision (`values`) and several times with errors (`perturbed`).

    Attributes:
        run_number: the place of the run among all, from 0.
        unit: unit roundoff of the precision in which Lua computed it.
        layer: the layer; `None` where tensors are only concatenated.
        inputs: its input: recorded tensors, and a `NodeOutput` for each that was overwritten.
        function: what of the layer is computed: its output, or the gradient with respect to its input.
        values: the computed tensors; empty until `run`.
        perturbed: the same tensors with errors of Lua's precision, a list for each run with errors: first those with
            random errors, then the one in single precision. Empty until `run`.
    """

    run_number: int
    unit: float
    layer: LiveLayer | None
    inputs: Values
    function: Compute = outputs
    values: list[torch.Tensor] = field(factory=list, repr=False)
    perturbed: list[list[torch.Tensor]] = field(factory=list, repr=False)

    def run(self) -> None:
        """Compute the tensors, and the same with errors.

        Raises:
            NotRunError: the layer cannot be run on its input.
        """
        self.values = self.compute()
        # A run with errors reads from the nodes that compute its input what these computed in the run of its number.
        self.perturbed = [self.compute(error_run) for error_run in range(PERTURBED_RUNS)]
        self.perturbed.append(self._in_single_precision())  # its number is `_SINGLE_PRECISION`

    def _in_single_precision(self) -> list[torch.Tensor]:
        """Return `values` with the errors of single precision, scaled to those of Lua's precision.

        Without errors, if the layer does not run in single precision, or returns something else in it.
        """
        try:
            single = self.compute(_SINGLE_PRECISION)
        except NotRunError:
            return self.values
        if element_counts(single) != element_counts(self.values):
            return self.values
        scale = self.unit / UNIT["float32"]
        scaled = []
        for exact, inexact in zip(self.values, single):
            scaled.append(exact + (inexact.reshape(exact.shape) - exact) * scale)
        return scaled

    def compute(self, error_run: int | None = None) -> list[torch.Tensor]:
        """Compute the tensors.

        Args:
            error_run: the number of a run with errors: from 0 to `PERTURBED_RUNS - 1` it is the seed of random errors,
                `_SINGLE_PRECISION` runs the layer in that. `None` for the exact run.

        Raises:
            NotRunError: the layer cannot be run on its input, or a node before computed something of another size.
        """
        layer = self.layer
        value = map_instances(self.inputs, NodeOutput, lambda node_output: node_output.get(error_run))
        # A concatenation has no errors of its own: those of its inputs are in `value`.
        if layer is not None and error_run == _SINGLE_PRECISION:
            layer, value = layer.in_single(value)
        elif layer is not None and error_run is not None:
            layer, value = layer.disturbed(value, seed=error_run)  # both with random errors
        try:
            return self.function(layer, value)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            # Of a concatenation: layers raise `NotRunError` themselves, which is none of these.
            raise RefusedError("the outputs of its modules do not fit along its dimension") from error

    def outputs_of_nodes(self) -> Iterator[NodeOutput]:
        """Yield the tensors of its input that other nodes compute."""
        return (item for item in flattened(self.inputs) if isinstance(item, NodeOutput))

    def nodes_since_recorded(self) -> list[Node]:
        """Return this and the nodes that compute its input, back to recorded values, in the order of the runs."""
        nodes: dict[int, Node] = {}
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            nodes[id(node)] = node
            for node_output in node.outputs_of_nodes():
                if id(node_output.node) not in nodes:
                    stack.append(node_output.node)
        return sorted(nodes.values(), key=lambda node: node.run_number)

    @cached_property
    def is_random(self) -> bool:
        """Whether its layer returns something else when it runs again; of gradients, where nobody asks, False."""
        return self.function is outputs and not all(map(torch.equal, self.values, self.compute()))

    def compare(self, recorded: list[torch.Tensor], factor: float) -> Deviation:
        """Compare the computed tensors with recorded ones.

        Args:
            recorded: the tensors.
            factor: of the limit on errors of rounding; above 1 where the machine, or a whole model, makes larger ones.
        """
        if self.unit <= UNIT["float64"]:
            # Lua computed in doubles, as we do. `values` are no more exact than what is recorded: the limit is wider.
            factor *= FACTOR_OF_DOUBLES
        return measure(recorded, self.values, expected_errors(self.values, self.perturbed, self.unit), factor)

    def input_values(self) -> Values:
        """Return the input, with the exact values of what other nodes compute."""
        return map_instances(self.inputs, NodeOutput, lambda node_output: node_output.get(error_run=None))


def element_counts(tensors: list[torch.Tensor]) -> list[int]:
    """Return the number of elements of each tensor."""
    return [item.numel() for item in tensors]


class ComputedMemory:
    """Which node has computed each tensor that is in memory, as later runs of layers read it."""

    def __init__(self) -> None:
        self._outputs: dict[int, dict[View, NodeOutput]] = {}
        """By the id of a storage: what has computed each of its views."""

    def output_at(self, tensor: Tensor) -> NodeOutput | None:
        """Return what has computed a tensor; `None` if no node has."""
        return self._outputs.get(id(tensor.storage), {}).get(View.of(tensor))

    def note(self, tensor: Tensor, node: Node, index: int) -> None:
        """Note that a node computes the memory that a tensor is a view of.

        Args:
            tensor: the tensor, as later runs read it.
            node: what computes it.
            index: of the tensor among the outputs of the node, from 0.
        """
        node_output = NodeOutput(node, index, tuple(tensor.shape))
        self._outputs.setdefault(id(tensor.storage), {})[View.of(tensor)] = node_output

    def forget(self, written: list[Region], outputs: list[Tensor]) -> None:
        """Forget what computed the memory that a run has written, and the run's outputs.

        Args:
            written: the memory.
            outputs: the outputs of the run. One that is a view of its input is not in `written`; the run has computed
                it all the same, and not the run before.
        """
        for region in written:
            views = self._outputs.get(region.storage, {})
            for view in list(views):
                if view.region.overlaps(region):
                    del views[view]
        for output in outputs:
            self._outputs.get(id(output.storage), {}).pop(View.of(output), None)
