"""Graphs that compute almost an LSTM, built node by node: inputs x, h and c, outputs h and c."""

from __future__ import annotations

import numpy as np
import pytest

from t7bridge.graph.lua import TorchObject
from t7bridge.graph.tensor import Tensor
from t7bridge.nn.mapping import LAYERS, GraphNode, GraphSpec, ModuleSpec, Plan
from t7bridge.nn.registry import Param
from t7bridge.nn.state_dict import Origin, StateDict
from t7bridge.workshop.cells import recognized

SIZE = 3
X, H, C = ((0, (place,)) for place in range(3))


class GraphOfLSTM:
    """A graph to which nodes are added one by one; `add` and `linear` return the link to the new node's output."""

    def __init__(self):
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
        """Add a tensor of zeros to the state dict."""
        self.state[key] = Tensor.from_numpy(np.zeros(shape, np.float32))
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
        """Return the plan of the graph."""
        graph = GraphSpec(tuple(self.nodes), outputs, returns_list=True)
        return Plan(ModuleSpec(LAYERS + "containers.Graph", children=self.children, graph=graph))

    def finished(self, sums):
        """Add what follows the sums of the gates i, f, g, and of o, a function of the new cell state."""
        i, f, g, sum_of_o = sums
        kept = self.times(self.function("Sigmoid", f), C)
        added = self.times(self.function("Sigmoid", i), self.function("Tanh", g))
        new_c = self.total(kept, added)
        new_h = self.times(self.function("Sigmoid", sum_of_o(new_c)), self.function("Tanh", new_c))
        return self.plan(new_h, new_c)


def names_and_notes(plan, state):
    """Return the names of the modules of a graph with its cells as modules, and the notes."""
    lifted = recognized(plan, state)
    return [*lifted.plan.root.children], [note.message for note in lifted.notes]


@pytest.mark.parametrize("count", [1, 2])
def test_no_peephole_is_dropped(count):
    """PyTorch's classes have one vector by which a gate sees the cell state; of two, both would count."""
    graph = GraphOfLSTM()

    def gate(letter, state, count_of_peepholes):
        """Return the sum of a gate."""
        peepholes = [graph.peephole(f"c{letter}{number}", state) for number in range(count_of_peepholes)]
        return graph.total(graph.linear(f"x{letter}", X), graph.linear(f"h{letter}", H), *peepholes)

    sums = (gate("i", C, count), gate("f", C, 1), gate("g", C, 0), lambda new_c: gate("o", new_c, 1))
    names, notes = names_and_notes(graph.finished(sums), graph.state)
    if count == 1:
        assert names == ["lstm"]
    else:
        assert "ci0" in names
        assert notes == ["LSTM stays as it is: the input gate is more than a sum of products with matrices"]


@pytest.mark.parametrize("is_late", [False, True])
def test_input_computed_after_the_new_state(is_late):
    """A cell has the place of its first output: what it takes has to be computed before."""
    graph = GraphOfLSTM()
    tanh = ModuleSpec("torch.nn.Tanh")
    early = None if is_late else graph.add(tanh, X)

    def gate(letter, is_inside=False):
        """Return the sum of a gate, which sees tanh(x), computed by a node or inside a container."""
        if is_inside:
            from_x = graph.linear(f"x{letter}", X, first=tanh)
        else:
            from_x = graph.linear(f"x{letter}", early or graph.add(tanh, X))
        return graph.total(from_x, graph.linear(f"h{letter}", H))

    sums = (gate("i", True), gate("f", True), gate("g", True), lambda new_c: gate("o"))
    names, notes = names_and_notes(graph.finished(sums), graph.state)
    if is_late:
        assert "lstm" not in names
        assert notes == ["LSTM stays as it is: one of its inputs is computed inside a container"]
    else:
        assert "lstm" in names


def test_unused_node_behind_a_gate():
    """A node that no output depends on stays, and with it the gate whose output it takes."""
    graph = GraphOfLSTM()

    def gate(letter):
        """Return the sum of a gate."""
        return graph.total(graph.linear(f"x{letter}", X), graph.linear(f"h{letter}", H))

    sums = (gate("i"), gate("f"), gate("g"), lambda new_c: gate("o"))
    graph.function("ReLU", sums[0])
    names, notes = names_and_notes(graph.finished(sums), graph.state)
    assert "xi" in names
    assert notes == ["LSTM stays as it is: its layer xi is also used outside of it"]
