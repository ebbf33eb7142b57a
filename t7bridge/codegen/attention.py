"""Names for the values of attention in a graph: scores, their softmax, and the context."""

from __future__ import annotations

from ..nn.mapping import LAYERS, GraphSpec, ModuleSpec
from ..nn.registry import traits_of

_SOFTMAX = f"{LAYERS}activation.Softmax"
_MATRIX_PRODUCT = f"{LAYERS}linear.MM"
_PRODUCT = f"{LAYERS}table.CMulTable"
_SUM = f"{LAYERS}shape.Sum"


def attention_names(spec: ModuleSpec, graph: GraphSpec) -> dict[int, str]:
    """Return names for values of a graph, by node: scores, their softmax, and the context, the sum weighted with it."""
    targets: dict[int, str] = {}
    users: dict[int, list[int]] = {}
    for number, node in enumerate(graph.nodes, 1):
        targets[number] = spec.children[node.module].target if node.module else ""
        for source, _ in node.takes:
            users.setdefault(source, []).append(number)

    def end(number: int, *kinds: str) -> int:
        """Return the last of the views of a value, each of which has no other use, or of layers of some kinds."""
        while len(users.get(number, [])) == 1:
            (user,) = users[number]
            if targets[user] not in kinds and not traits_of(targets[user]).shares_memory:
                break
            number = user
        return number

    def is_weighting(number: int) -> bool:
        """Return whether a node weights with its input: a product of matrices, or of elements that are then added."""
        if targets[number] == _MATRIX_PRODUCT:
            return True
        following = users.get(number)
        return targets[number] == _PRODUCT and following is not None and targets.get(following[0]) == _SUM

    names: dict[int, str] = {}
    for number, target in targets.items():
        if target != _SOFTMAX:
            continue
        for user in users.get(end(number), ()):
            if is_weighting(user):
                scores, _ = graph.nodes[number - 1].takes[0]
                names |= {scores: "scores", number: "attention", end(user, _SUM): "context"}
    return names
