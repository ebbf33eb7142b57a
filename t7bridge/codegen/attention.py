"""Names for the values of attention in a graph: scores, their softmax, and the context."""

from __future__ import annotations

from ..nn.mapping import LAYERS, GraphSpec, ModuleSpec
from ..nn.registry import traits_of


def attention_names(spec: ModuleSpec, graph: GraphSpec) -> dict[int, str]:
    """Return names for values of a graph, by node: scores, their softmax, and the context, the sum weighted with it."""
    users: dict[int, list[int]] = {}
    for number, node in enumerate(graph.nodes, 1):
        for source, _ in node.takes:
            users.setdefault(source, []).append(number)
    found = [spec.children[node.module].target if node.module else "" for node in graph.nodes]
    targets = dict(enumerate(found, 1))
    softmax, matrix_product, total = (f"{LAYERS}{name}" for name in ("activation.Softmax", "linear.MM", "shape.Sum"))
    product = f"{LAYERS}table.CMulTable"

    def end(number: int, *kinds: str) -> int:
        """Return the last of the views of a value, each of which has no other use, or of layers of some kinds."""
        while len(after := users.get(number, [])) == 1:
            if targets[after[0]] not in kinds and not traits_of(targets[after[0]]).shares_memory:
                break
            number = after[0]
        return number

    names: dict[int, str] = {}
    for number in (number for number in targets if targets[number] == softmax):
        for user in users.get(end(number), ()):
            after = targets.get(users.get(user, [0])[0])
            if targets[user] == matrix_product or (targets[user] == product and after == total):
                scores, context = graph.nodes[number - 1].takes[0][0], end(user, total)
                names |= {scores: "scores", number: "attention", context: "context"}
    return names
