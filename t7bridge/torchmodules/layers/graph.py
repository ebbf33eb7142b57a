"""Graphs of modules."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

Link = tuple[int, tuple[int, ...]]


class Graph(nn.Sequential):
    """Modules connected as a directed acyclic graph.

    Args:
        modules: the modules by name.
        nodes: for each step the name of its module, or `None` for the identity, and its
            inputs: the numbers of other nodes and the selected elements of their
                outputs.
            Node 0 is the input, the first step node 1.
        outputs: the outputs, in the same form.
        returns_list: whether to return a list.
    """

    def __init__(
        self,
        modules: OrderedDict[str, nn.Module],
        *,
        nodes: tuple[tuple[str | None, tuple[Link, ...]], ...],
        outputs: tuple[Link, ...],
        returns_list: bool,
    ) -> None:
        super().__init__(modules)
        self.nodes = nodes
        self.outputs = outputs
        self.returns_list = returns_list

    def forward(self, input: Any) -> Any:
        """Map the inputs to the outputs of the graph in Lua: one value, or a list."""
        values = [input]
        for name, takes in self.nodes:
            taken = [self._fetch(values, link) for link in takes]
            value = taken[0] if len(taken) == 1 else taken
            values.append(value if name is None else self._modules[name](value))
        given = [self._fetch(values, link) for link in self.outputs]
        return given if self.returns_list else given[0]

    def _fetch(self, values: list[Any], link: Link) -> Any:
        node, path = link
        value = values[node]
        for index in path:
            value = value[index]
        return value
