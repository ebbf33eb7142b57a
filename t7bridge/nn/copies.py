"""Copies where Lua's layers copy and PyTorch's return their input, if an in-place layer could write to it.

In evaluation `torch.nn.Dropout` returns its input; Lua's returns a copy. The difference shows only if a layer writes in
place to one of the two, so only models with such a layer are changed, and in them only values that are used again.
"""

from __future__ import annotations

from collections.abc import Iterator

from .mapping import SEQUENTIAL, GraphSpec, ModuleSpec
from .registry import traits_of

_USES, _PASSES, _KEEPS = "uses", "passes", "keeps"
"""A module uses its input up, returns its memory, or may write to it or use it again later."""


def copy_as_lua(root: ModuleSpec) -> None:
    """Replace classes that return their input by copying ones (`Traits.copying`) where it may matter.

    Args:
        root: the module of a plan; it is modified.
    """
    specs = {id(spec): spec for spec in _inside(root)}.values()
    if not any(spec.kwargs.get("inplace") for spec in specs):
        return
    effects = _Effects()
    for spec, is_safe in _places(root, effects):
        facts = traits_of(spec.target)
        if facts.copying and not is_safe and not spec.kwargs.get("inplace"):
            spec.target = facts.copying


def _inside(root: ModuleSpec) -> Iterator[ModuleSpec]:
    seen: set[int] = set()
    stack = [root]
    while stack:
        spec = stack.pop()
        if id(spec) not in seen:
            seen.add(id(spec))
            yield spec
            stack += spec.children.values()


def _places(root: ModuleSpec, effects: _Effects) -> Iterator[tuple[ModuleSpec, bool]]:
    """Yield each module, with whether it may return its input: both if it is at places of both kinds.

    It may if its output is used up before anything else runs, or if its input has no other use.
    """
    seen: set[tuple[int, bool]] = set()
    stack = [(root, True)]
    while stack:
        spec, is_safe = stack.pop()
        if (id(spec), is_safe) in seen:
            continue
        seen.add((id(spec), is_safe))
        yield spec, is_safe
        if spec.target == SEQUENTIAL:
            children = list(spec.children.values())
            for child, before in zip(reversed(children), [*reversed(children[:-1]), None]):
                is_new = before is not None and not child.children and _makes_new(before)
                stack.append((child, is_safe or is_new))
                effect = effects.of(child)
                is_safe = effect == _USES or (effect == _PASSES and is_safe)
        else:
            safe = set() if spec.graph is None else _safe_nodes(spec.graph, spec.children, effects)
            stack += [(child, name in safe) for name, child in spec.children.items()]


def _makes_new(spec: ModuleSpec) -> bool:
    """Return whether a module returns memory of its own, not needed for gradients: those with weights do."""
    while spec.target == SEQUENTIAL and spec.children:
        spec = next(reversed(spec.children.values()))
    is_layer = _is_of_torch(spec) and not spec.children
    return is_layer and spec.obj is not None and "weight" in spec.obj and not traits_of(spec.target).shares_memory


def _is_of_torch(spec: ModuleSpec) -> bool:
    """Return whether a module is of torch.nn, or like one: it keeps no value for its next call."""
    return (spec.plain or spec.target).startswith("torch.nn.")


def _safe_nodes(graph: GraphSpec, children: dict[str, ModuleSpec], effects: _Effects) -> set[str]:
    """Return the children of a graph that may return their input: it has no other use, and is new or used up."""
    users: dict[int, list[str | None]] = {}
    for node in graph.nodes:
        for number, _ in node.takes:
            users.setdefault(number, []).append(node.module)
    for number, _ in graph.outputs:
        users.setdefault(number, []).append(None)

    def uses_up(module: str | None) -> bool:
        return module is not None and effects.of(children[module]) == _USES

    safe: dict[str, bool] = {}
    for number, node in enumerate(graph.nodes, 1):
        if node.module is None:
            continue
        source = node.takes[0][0] if len(node.takes) == 1 else 0
        maker = graph.nodes[source - 1].module if source else None
        is_safe = maker is not None and len(users[source]) == 1 and not children[node.module].children
        if is_safe and not _makes_new(children[maker or ""]):
            is_safe = uses_up(maker) and all(map(uses_up, users.get(number, [])))
        safe[node.module] = safe.get(node.module, True) and is_safe
    return {name for name, each in safe.items() if each}


class _Effects:
    """Effects of modules on the memory of their inputs; each is computed once."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, spec: ModuleSpec) -> str:
        """Return the effect of a module on the memory of its input: one of the three words above."""
        if id(spec) not in self._known:
            self._known[id(spec)] = self._found(spec)
        return self._known[id(spec)]

    def _found(self, spec: ModuleSpec) -> str:
        if spec.target == SEQUENTIAL:
            return next((each for each in map(self.of, spec.children.values()) if each != _PASSES), _PASSES)
        if spec.children or spec.kwargs.get("inplace"):
            return _KEEPS
        if traits_of(spec.target).shares_memory:
            return _PASSES
        return _USES if _is_of_torch(spec) else _KEEPS
