"""The order of a recurrent layer's gates, which shapes do not show: i f g o in PyTorch, i f o g in char-rnn."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...data import define
from ...errors import ModelError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...nn.graphs import graph_modules, graphs_in
from ...nn.mapping import GraphSpec, Link
from .parts import sibling

_KEY = re.compile(r"(?:.*\.)?(?:weight|bias)_(?:ih|hh)(?:_l\d+)?(?:_reverse)?\Z")
ORDERS = {4: "ifgo", 3: "rzn"}
"""PyTorch's order, by the number of gates."""
_PASSED = {"nn.CAddTable", "nn.Reshape", "nn.View", "nn.Identity", "nn.Dropout"}
"""Layers between a cell's matrices and the split of their sum into gates."""


@define(frozen=True)
class Gates:
    """Reordering of the rows of a source into the order of the target.

    Attributes:
        order: the source block of each target block.
        words: the change in words.
    """

    order: tuple[int, ...]
    words: str


def gate_count(key: str, tensors: Mapping[str, Tensor]) -> int:
    """Return the number of gates in a key of a PyTorch state dict: 4 for an LSTM, 3 for a GRU, 1 for any other key."""
    if not _KEY.match(key):
        return 1
    name = key.rpartition(".")[2]
    suffix = name[len(name.split("_")[0]) + 3 :]
    hidden = tensors.get(sibling(key, f"weight_hr{suffix}")) or tensors.get(sibling(key, f"weight_hh{suffix}"))
    shape = tensors[key].shape
    if hidden is None or len(hidden.shape) != 2 or not hidden.shape[1] or not shape:
        return 1
    return shape[0] // hidden.shape[1]


def reorder(words: str, count: int, into_pytorch: bool) -> Gates:
    """Return the reordering between an order of gates and PyTorch's.

    Args:
        words: the order of the side that is not PyTorch's, a letter a gate: `ifog`.
        count: number of gates.
        into_pytorch: whether the target is the side with PyTorch's order.

    Raises:
        ModelError: the letters are not those of that many gates.
    """
    usual = ORDERS.get(count, "")
    if sorted(words) != sorted(usual) or not usual:
        raise ModelError(
            "is not an order of the gates", expected=f"the letters {usual or 'of 3 or 4 gates'}", found=words[:20]
        )
    source, target = (words, usual) if into_pytorch else (usual, words)
    return Gates(tuple(source.index(gate) for gate in target), f"{' '.join(source)} become {' '.join(target)}")


def gate_orders(root: TorchObject) -> dict[str, str]:
    """Return the orders of gates shown by the graphs of a model.

    Returns:
        For the prefix of each linear layer whose rows are gates of an LSTM, their order: `{"3.": "ifog"}`.
    """
    found: dict[str, str] = {}
    for place, graph in graphs_in(root):
        classes = {
            child.name: child.value.class_name
            for child in graph_modules(place.obj)
            if isinstance(child.value, TorchObject)
        }
        for name, order in _of_graph(graph, classes).items():
            found[f"{place.prefix}{name}."] = order
    return found


def _of_graph(graph: GraphSpec, classes: Mapping[str, str]) -> dict[str, str]:
    kinds = [""] + [classes.get(node.module or "", "") for node in graph.nodes]
    takers: list[list[Link]] = [[] for _ in kinds]
    for number, node in enumerate(graph.nodes, 1):
        for before, picked in node.takes:
            takers[before].append((number, picked))
    found: dict[str, str] = {}
    for number, kind in enumerate(kinds):
        order = _order(number, kinds, takers, graph) if kind == "nn.SplitTable" else None
        if order is None:
            continue
        stack = [before for before, _ in graph.nodes[number - 1].takes]
        while stack:
            before = stack.pop()
            if kinds[before] == "nn.Linear":
                found[graph.nodes[before - 1].module or ""] = order
            elif kinds[before] in _PASSED and len(found) < len(kinds):
                stack += [other for other, _ in graph.nodes[before - 1].takes]
    return found


def _order(
    split: int, kinds: list[str], takers: list[list[tuple[int, tuple[int, ...]]]], graph: GraphSpec
) -> str | None:
    """Return the gates of an LSTM in the order in which they are split, by their use."""
    by_place = {picked[0]: number for number, picked in takers[split] if len(picked) == 1}
    if sorted(by_place) != [0, 1, 2, 3] or len(takers[split]) != 4:
        return None
    gates = [by_place[place] for place in range(4)]
    letters: dict[int, str] = {number: "g" for number in gates if kinds[number] == "nn.Tanh"}
    if len(letters) != 1 or any(kinds[number] not in ("nn.Tanh", "nn.Sigmoid") for number in gates):
        return None
    for number in gates:
        if number in letters:
            continue
        products = [other for other, _ in takers[number] if kinds[other] == "nn.CMulTable"]
        if len(products) != 1 or len(takers[number]) != 1:
            return None
        others = [before for before, _ in graph.nodes[products[0] - 1].takes if before != number]
        if len(others) != 1:
            return None
        beside = others[0]
        letters[number] = "i" if letters.get(beside) == "g" else "o" if kinds[beside] == "nn.Tanh" else "f"
    order = "".join(letters[number] for number in gates)
    return order if sorted(order) == sorted(ORDERS[4]) else None
