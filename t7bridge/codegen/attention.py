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
    """Return names for values of a graph, by node: scores, their softmax, and the context, the sum weighted with it."""
    users: dict[int, list[int]] = {}
    layers: dict[int, Traits] = {}
    for number, node in enumerate(graph.nodes, 1):  # 0 is the input
        layers[number] = traits_of(spec.children[node.module].target if node.module else "")
        for source, _ in node.takes:
            users.setdefault(source, []).append(number)

    def end(number: int, passed: tuple[str, ...] | None = None) -> int:
        """Return the last of a chain of views of a value; also of layers written as `passed` says."""
        while True:
            following = users.get(number, [])
            if len(following) != 1:
                return number
            layer = layers[following[0]]
            if not layer.shares_memory and (passed is None or layer.written != passed):
                return number
            number = following[0]

    def weighs(user: int) -> bool:
        """Return whether a layer adds up values with weights: in one step, or by products and their sum."""
        if layers[user].written == _MATRIX_PRODUCT:
            return True
        following = users.get(user)
        is_product = layers[user].written == _PRODUCT
        return is_product and following is not None and layers[following[0]].written == _SUM

    names: dict[int, str] = {}
    for number, layer in layers.items():
        if layer.written != _SOFTMAX:
            continue
        for user in users.get(end(number), ()):
            if weighs(user):
                scores, _ = graph.nodes[number - 1].takes[0]
                names[scores] = "scores"
                names[number] = "attention"
                names[end(user, _SUM)] = "context"
    return names
