"""Graphs that compute recurrent cells, built node by node."""

from __future__ import annotations

import numpy as np

from t7bridge.graph.lua import TorchObject
from t7bridge.graph.tensor import Tensor
from t7bridge.nn.mapping import LAYERS, GraphNode, GraphSpec, ModuleSpec, Plan
from t7bridge.nn.plan import graph_arguments
from t7bridge.nn.registry import Param
from t7bridge.nn.state_dict import Origin, StateDict

SIZE = 3
X, H, C = ((0, (place,)) for place in range(3))


class CellGraph:
    """A graph to which nodes are added one by one; what adds one returns the link to its output.

    Args:
        seed: of the values of its tensors.
    """

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes = []
        self.children = {}
        self.state = StateDict()

    def add(self, spec, *takes, name=""):
        """Add a node of a module, whose tensors are added by `tensor`."""
        name = name or f"node{len(self.nodes) + 1}"
        self.children[name] = spec
        self.nodes.append(GraphNode(name, takes))
        return len(self.nodes), ()

    def tensor(self, key, *shape):
        """Add a random tensor to the state dict."""
        self.state[key] = Tensor.from_numpy(self.random.standard_normal(shape, np.float32))
        self.state.origins[key] = Origin(TorchObject("nn.Module"), Param(key.rpartition(".")[2]))

    def linear(self, name, value, first=None):
        """Add a node of a linear layer, or of a Sequential of another module and it."""
        layer = ModuleSpec("torch.nn.Linear", (SIZE, SIZE))
        prefix = name
        if first is not None:
            layer = ModuleSpec("torch.nn.Sequential", children={"0": first, "1": layer})
            prefix = f"{name}.1"
        self.tensor(f"{prefix}.weight", SIZE, SIZE)
        self.tensor(f"{prefix}.bias", SIZE)
        return self.add(layer, value, name=name)

    def peephole(self, name, value):
        """Add a node that multiplies a value with a vector."""
        self.tensor(f"{name}.weight", SIZE)
        return self.add(ModuleSpec(LAYERS + "linear.CMul", (SIZE,)), value, name=name)

    def total(self, *values):
        return self.add(ModuleSpec(LAYERS + "table.CAddTable"), *values)

    def times(self, *values):
        return self.add(ModuleSpec(LAYERS + "table.CMulTable"), *values)

    def function(self, name, value):
        return self.add(ModuleSpec(f"torch.nn.{name}"), value)

    def plan(self, *outputs):
        """Return the plan of the graph, which returns a list."""
        graph = GraphSpec(tuple(self.nodes), outputs, returns_list=True)
        kwargs = graph_arguments(graph)
        return Plan(ModuleSpec(LAYERS + "containers.Graph", kwargs=kwargs, children=self.children, graph=graph))

    def finished_lstm(self, sums):
        """Return the plan of an LSTM of inputs x, h and c and outputs h and c.

        Args:
            sums: those of the gates i, f, g, and of o, a function of the new cell state.
        """
        i, f, g, sum_of_o = sums
        kept = self.times(self.function("Sigmoid", f), C)
        added = self.times(self.function("Sigmoid", i), self.function("Tanh", g))
        new_c = self.total(kept, added)
        new_h = self.times(self.function("Sigmoid", sum_of_o(new_c)), self.function("Tanh", new_c))
        return self.plan(new_h, new_c)
