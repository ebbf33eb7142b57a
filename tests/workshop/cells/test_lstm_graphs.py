"""Graphs that compute almost an LSTM: inputs x, h and c, outputs h and c."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch
from cell_graphs import SIZE, C, CellGraph, H, X

from t7bridge.nn.mapping import ModuleSpec
from t7bridge.torchmodules import construct
from t7bridge.workshop.cells import recognized
from t7bridge.workshop.cells.search import Search


def names_and_notes(plan, state):
    """Return the names of the modules of a graph with its cells as modules, and the notes."""
    lifted = recognized(plan, state)
    return [*lifted.plan.root.children], [note.message for note in lifted.notes]


@pytest.mark.parametrize("count", [1, 2])
def test_no_peephole_is_dropped(count):
    """PyTorch's classes have one vector by which a gate sees the cell state; of two, both would count."""
    graph = CellGraph()

    def gate(letter, state, count_of_peepholes):
        """Return the sum of a gate."""
        peepholes = [graph.peephole(f"c{letter}{number}", state) for number in range(count_of_peepholes)]
        return graph.total(graph.linear(f"x{letter}", X), graph.linear(f"h{letter}", H), *peepholes)

    sums = (gate("i", C, count), gate("f", C, 1), gate("g", C, 0), lambda new_c: gate("o", new_c, 1))
    names, notes = names_and_notes(graph.finished_lstm(sums), graph.state)
    if count == 1:
        assert names == ["lstm"]
    else:
        assert "ci0" in names
        assert notes == ["LSTM stays as it is: the input gate is more than a sum of products with matrices"]


@pytest.mark.parametrize("carried_over", [(), ((1, 0), (2, 1)), ((1, 0),), ((2, 1),)])
def test_the_last_output_is_told_from_the_input(carried_over):
    """It is the state that another step passes on, also if the gates see it before the input."""
    graph = CellGraph()

    def gate(letter):
        """Return the sum of a gate, whose first product is with the last output."""
        return graph.total(graph.linear(f"h{letter}", H), graph.linear(f"x{letter}", X))

    plan = graph.finished_lstm((gate("i"), gate("f"), gate("g"), lambda new_c: gate("o")))
    search = Search(plan.root, "", graph.state, frozenset(carried_over))
    search.run()
    (cell,) = search.cells
    assert cell.inputs == (X, H, C)


@pytest.mark.parametrize("is_late", [False, True])
def test_input_computed_after_the_new_state(is_late):
    """A cell has the place of its first output: what it takes has to be computed before."""
    graph = CellGraph()
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
    names, notes = names_and_notes(graph.finished_lstm(sums), graph.state)
    if is_late:
        assert "lstm" not in names
        assert notes == ["LSTM stays as it is: one of its inputs is computed inside a container"]
    else:
        assert "lstm" in names


def test_unused_node_behind_a_gate():
    """A node that no output depends on stays, and with it the gate whose output it takes."""
    graph = CellGraph()

    def gate(letter):
        """Return the sum of a gate."""
        return graph.total(graph.linear(f"x{letter}", X), graph.linear(f"h{letter}", H))

    sums = (gate("i"), gate("f"), gate("g"), lambda new_c: gate("o"))
    graph.function("ReLU", sums[0])
    names, notes = names_and_notes(graph.finished_lstm(sums), graph.state)
    assert "xi" in names
    assert notes == ["LSTM stays as it is: its layer xi is also used outside of it"]


def random_lstm(seed):
    """Return the plan and state of a graph that is an LSTM, or almost: its gates in any order, and obstacles to it."""
    chance = random.Random(seed)
    graph = CellGraph(seed)
    sees_tanh_of_x = chance.random() < 0.4
    count_of_peepholes = chance.choice([0, 0, 1])

    def gate(letter, state):
        """Return the sum of a gate."""
        if not sees_tanh_of_x:
            from_x = graph.linear(f"x{letter}", X)
        elif chance.random() < 0.5:
            from_x = graph.linear(f"x{letter}", X, first=ModuleSpec("torch.nn.Tanh"))
        else:
            from_x = graph.linear(f"x{letter}", graph.function("Tanh", X))
        from_h = graph.linear(f"h{letter}", H if chance.random() < 0.97 else X)
        count = 0 if letter == "g" else count_of_peepholes
        if chance.random() < 0.05:
            count += 1
        terms = [from_x, from_h, *(graph.peephole(f"c{letter}{number}", state) for number in range(count))]
        chance.shuffle(terms)
        return graph.total(*terms)

    sums = {letter: gate(letter, C) for letter in chance.sample("ifg", 3)}
    if chance.random() < 0.1:
        graph.function("Tanh", chance.choice([*sums.values()]))  # a node that no output depends on
    plan = graph.finished_lstm((sums["i"], sums["f"], sums["g"], lambda new_c: gate("o", new_c)))
    return plan, graph.state


def outputs_of(plan, state, inputs):
    """Return what a model computes."""
    module = construct(plan.root).to_empty(device="cpu").eval()
    module.load_state_dict({key: torch.from_numpy(np.array(tensor.numpy())) for key, tensor in state.items()})
    return module(inputs)


@pytest.mark.slow
def test_random_graphs(subtests):
    """A model with recognized cells computes what it does without."""
    torch.manual_seed(0)
    inputs = [torch.randn(4, SIZE) for _ in range(3)]
    results: Counter[bool] = Counter()
    for seed in range(150):
        expected = outputs_of(*random_lstm(seed), inputs)
        lifted = recognized(*random_lstm(seed))
        results["lstm" in lifted.plan.root.children] += 1
        with subtests.test(seed):
            torch.testing.assert_close(outputs_of(lifted.plan, lifted.state, inputs), expected, rtol=1e-4, atol=1e-5)
    assert min(results.values()) > 30
