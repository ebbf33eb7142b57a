"""Names for the values of attention in a graph: scores, their softmax, and the context."""

from __future__ import annotations

from ..nn.mapping import GraphSpec, ModuleSpec
from ..nn.registry import Traits, traits_of

# What the layers of attention are, as their entries have it for `Idioms`.
_SOFTMAX = ("softmax", "Softmax")
_MATRIX_PRODUCT = ("product",)
_PRODUCT = ("fold", "*")
_SUM = ("reduce", "sum")


def attention_names(spec: ModuleSpec, graph: GraphSpec) -> dict[int, str]:
    """Return names for values of a graph, by node: scores, their softmax, and the context, the sum weighted with it."""
    users: dict[int, list[int]] = {}
    layers: dict[int, Traits] = {}
    for number, node in enumerate(graph.nodes, 1):
        layers[number] = traits_of(spec.children[node.module].target if node.module else "")
        for source, _ in node.takes:
            users.setdefault(source, []).append(number)

    def end(number: int, kind: tuple[str, ...] = ()) -> int:
        """Return the last of the views of a value, each of which has no other use, or of layers of one kind."""
        while len(after := users.get(number, [])) == 1:
            layer = layers[after[0]]
            if not layer.shares_memory and (not kind or layer.written != kind):
                break
            number = after[0]
        return number

    def weighs(user: int) -> bool:
        """Return whether a layer adds up values with weights: in one step, or by products and their sum."""
        if layers[user].written == _MATRIX_PRODUCT:
            return True
        after = users.get(user)
        return layers[user].written == _PRODUCT and after is not None and layers[after[0]].written == _SUM

    names: dict[int, str] = {}
    for number, layer in layers.items():
        if layer.written != _SOFTMAX:
            continue
        for user in users.get(end(number), ()):
            if weighs(user):
                scores, context = graph.nodes[number - 1].takes[0][0], end(user, _SUM)
                names |= {scores: "scores", number: "attention", context: "context"}
    return names
