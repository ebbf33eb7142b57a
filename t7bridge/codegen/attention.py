"""Names for the values of attention in a graph: scores, their softmax, and the context. Attention is a softmax whose
output weighs a sum of values. The numbers of nodes are from 1; 0 is the input of the graph.
"""

from __future__ import annotations

from ..nn.mapping import GraphSpec, ModuleSpec
from ..nn.registry import Traits, traits_of

# How the layers of attention are written, in the words of their entries (`Traits.written`).
_SOFTMAX = ("softmax", "Softmax")
_MATRIX_PRODUCT = ("product",)
_PRODUCT = ("fold", "*")
_SUM = ("reduce", "sum")


def attention_names(spec: ModuleSpec, graph: GraphSpec) -> dict[int, str]:
    """Return names for outputs of nodes: what a softmax is applied to, its output, and the sum weighted with that.

    Args:
        spec: the module that is the graph.
        graph: its data flow.
    """
    nodes = _Nodes(spec, graph)
    names: dict[int, str] = {}
    for number, node in enumerate(graph.nodes, 1):
        if nodes.layers[number].written != _SOFTMAX or not node.takes:  # a damaged file may have one that takes nothing
            continue
        first_link, *_ = node.takes
        source, _path = first_link
        last_view = nodes.end_of_chain(number)  # the softmax itself if no view follows it
        for user in nodes.users.get(last_view, ()):
            if nodes.is_weighted_sum(user):
                names[source] = "scores"
                names[number] = "attention"
                # The user may only make the products, which are added up behind it.
                names[nodes.end_of_chain(user, also=_SUM)] = "context"
    return names


class _Nodes:
    """The nodes of a graph by their numbers.

    Attributes:
        layers: the traits of the layer of each node.
        users: the nodes that take the output of each node, or an element of it; a node without users has no entry.

    Args:
        spec: the module that is the graph.
        graph: its data flow.
    """

    def __init__(self, spec: ModuleSpec, graph: GraphSpec) -> None:
        self.layers: dict[int, Traits] = {}
        self.users: dict[int, list[int]] = {}
        for number, node in enumerate(graph.nodes, 1):
            self.layers[number] = traits_of(spec.children[node.module].target if node.module else "")
            for source, _ in node.takes:
                self.users.setdefault(source, []).append(number)

    def end_of_chain(self, number: int, also: tuple[str, ...] | None = None) -> int:
        """Return the last node of the chain of views behind a node, each the only user of the one before.

        Args:
            number: of the node, which is returned if there is no view.
            also: how another layer is written (`Traits.written`) that the chain goes through like a view.
        """
        while len(self.users.get(number, ())) == 1:
            (user,) = self.users[number]
            layer = self.layers[user]
            is_passed = layer.shares_memory or (also is not None and layer.written == also)
            if not is_passed:
                break
            number = user
        return number

    def is_weighted_sum(self, number: int) -> bool:
        """Return whether a node adds up values with weights: in one step, or by products that a user adds up."""
        if self.layers[number].written == _MATRIX_PRODUCT:
            return True
        is_product = self.layers[number].written == _PRODUCT
        return is_product and any(self.layers[user].written == _SUM for user in self.users.get(number, ()))
