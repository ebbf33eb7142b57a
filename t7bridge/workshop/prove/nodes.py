"""What computes a recorded value: a layer, and the nodes that compute its input. May import graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import prod

import torch
from attrs import field

from ...data import define
from .layer import Compute, LiveLayer, NotRunError, RefusedError, Values, outputs
from .rounding import EXACT, UNIT, Deviation, measure, spread
from .runs import items, replaced

DRAWS = 4
"""Runs with random errors that estimate the error of rounding; each counts with the mean of all values."""


@define(eq=False)
class Ref:
    """A tensor that a node computes.

    Attributes:
        node: the node.
        index: of the tensor in what that computes.
        shape: of the tensor.
        recorded: its value in the file; `None` if it was overwritten.
    """

    node: Node
    index: int
    shape: tuple[int, ...]
    recorded: torch.Tensor | None = field(default=None, repr=False)

    def get(self, draw: int | None) -> torch.Tensor:
        """Return the value in the file, or else the computed one, or one computed with errors.

        Raises:
            RefusedError: its node computed something else.
        """
        if self.recorded is not None:
            return self.recorded
        values = self.node.values if draw is None else self.node.draws[draw]
        if self.index >= len(values) or values[self.index].numel() != prod(self.shape):
            raise RefusedError("another shape than recorded")
        return values[self.index].reshape(self.shape)


@define(eq=False)
class Node:
    """One run of one layer.

    Attributes:
        step: the number of the run.
        unit: unit roundoff of its numbers.
        layer: the layer; `None` where tensors are only concatenated.
        inputs: its input: recorded tensors, and a `Ref` for each that another node computes.
        function: what of the layer is computed: its output, or the gradient with respect to its input.
        values: the computed tensors.
        draws: the same with errors of Lua's precision.
    """

    step: int
    unit: float
    layer: LiveLayer | None
    inputs: Values
    function: Compute = outputs
    values: list[torch.Tensor] = field(factory=list, repr=False)
    draws: list[list[torch.Tensor]] = field(factory=list, repr=False)

    def run(self) -> None:
        """Compute the tensors, and the same with errors.

        Raises:
            NotRunError: the layer cannot be run on its input.
        """
        self.values = self.compute()
        self.draws = [self.compute(draw) for draw in range(DRAWS)]
        self.draws.append(self._in_single_precision())

    def _in_single_precision(self) -> list[torch.Tensor]:
        """Return the tensors with the errors of single precision, scaled to those of Lua's."""
        try:
            single = self.compute(DRAWS)
        except NotRunError:
            return self.values  # the layer has no single precision
        if sizes(single) != sizes(self.values):
            return self.values
        scale = self.unit / UNIT["float32"]
        scaled = []
        for exact, inexact in zip(self.values, single):
            scaled.append(exact + (inexact.reshape(exact.shape) - exact) * scale)
        return scaled

    def compute(self, draw: int | None = None) -> list[torch.Tensor]:
        """Compute the tensors, or those of one draw: with random errors, and after these in single precision.

        Raises:
            NotRunError: the layer cannot be run on its input.
        """
        layer = self.layer
        value = replaced(self.inputs, Ref, lambda ref: ref.get(draw))
        if layer is not None and draw is not None:
            layer, value = layer.disturbed(value, draw) if draw < DRAWS else layer.in_single(value)
        try:
            return self.function(layer, value)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise RefusedError("the outputs of its modules do not fit along its dimension") from error

    def refs(self) -> Iterator[Ref]:
        """Yield the tensors of its input that other nodes compute."""
        return (item for item in items(self.inputs) if isinstance(item, Ref))

    def members(self) -> list[Node]:
        """Return this and all nodes that it is computed from, in order."""
        members: dict[int, Node] = {}
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            members[id(node)] = node
            for ref in node.refs():
                if ref.recorded is None and id(ref.node) not in members:
                    stack.append(ref.node)
        return sorted(members.values(), key=lambda node: node.step)

    @cached_property
    def is_random(self) -> bool:
        """Whether its layer returns something else when it runs again."""
        return self.function is outputs and not all(map(torch.equal, self.values, self.compute()))

    def compare(self, recorded: list[torch.Tensor], factor: float) -> Deviation:
        """Compare the computed tensors with recorded ones.

        Args:
            recorded: the tensors.
            factor: of the limit.
        """
        if self.unit <= UNIT["float64"]:
            factor *= EXACT
        return measure(recorded, self.values, spread(self.values, self.draws, self.unit), factor)

    def input_values(self) -> Values:
        """Return the input, with what other nodes compute."""
        return replaced(self.inputs, Ref, lambda ref: ref.get(None))


def sizes(tensors: list[torch.Tensor]) -> list[int]:
    """Return the numbers of elements."""
    return [item.numel() for item in tensors]
