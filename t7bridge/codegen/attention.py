"""Names for the values of attention in a graph: scores, their softmax, and the context."""

from __future__ import annotations

from ..nn.mapping import GraphSpec, ModuleSpec
from ..nn.registry import Traits, traits_of

# How the layers of attention are written, in the words of their entries (`Traits.written`).
_SOFTMAX = ("softmax", "Softmax")
_MATRIX_PRODUCT = ("product",)
_PRODUCT = ("fold", "*")
_SUM = ("reduce", "sum")


def attention_names(spec: ModuleSpec, graph: GraphSpec) -> dict[int, str]:
    """Return names for values of a graph, by node: scores, their softmax, and the context, the sum weighted with it.

    Attention is a softmax whose output weighs a sum of values; any other softmax gets no name. The numbers of nodes
    are from 1, and 0, which `scores` may be given, is the input of the graph.

    Args:
        spec: the module that is the graph.
        graph: its data flow.
    """
    users: dict[int, list[int]] = {}
    """The nodes that take the output of a node."""
    layers: dict[int, Traits] = {}
    """The traits of the layer of each node."""
    for number, node in enumerate(graph.nodes, 1):  # 0 is the input
        layers[number] = traits_of(spec.children[node.module].target if node.module else "")
        for source, _ in node.takes:
            users.setdefault(source, []).append(number)

    def end_of_chain(number: int, also: tuple[str, ...] | None = None) -> int:
        """Return the last node of a chain that begins with one, each the only user of the one before.

        Args:
            number: of the first node.
            also: the chain goes through views, and through layers that are written in this way; `None` for views only.
        """
        while len(users.get(number, ())) == 1:
            (user,) = users[number]
            layer = layers[user]
            is_passed = layer.shares_memory or (also is not None and layer.written == also)
            if not is_passed:
                break
            number = user
        return number

    def is_weighted_sum(number: int) -> bool:
        """Return whether a node adds up values with weights: in one step, or by products that a user adds up."""
        if layers[number].written == _MATRIX_PRODUCT:
            return True
        is_product = layers[number].written == _PRODUCT
        return is_product and any(layers[user].written == _SUM for user in users.get(number, ()))

    names: dict[int, str] = {}
    for number, layer in layers.items():
        inputs = graph.nodes[number - 1].takes
        if layer.written != _SOFTMAX or not inputs:  # a damaged file may have a node that takes nothing
            continue
        for user in users.get(end_of_chain(number), ()):
            if is_weighted_sum(user):
                (scores, _), *_ = inputs  # the node of the first input
                names[scores] = "scores"
                names[number] = "attention"
                # Behind the sum, if the node has products only, and behind views.
                names[end_of_chain(user, also=_SUM)] = "context"
    return names
