"""Effects of modules on memory: which change their input in place, and whose outputs share memory with their inputs.

Lua's in-place layers change a value for all later readers, and PyTorch's do so too if the order is kept. But in
evaluation `torch.nn.Dropout` returns its input, and Lua's a copy. The difference shows only if a layer writes in
place to one of the two, so only models with such a layer are changed, and in them only values that are used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from ..data import define
from .mapping import SEQUENTIAL, GraphNode, GraphSpec, ModuleSpec, end_of, specs_in
from .registry import traits_of


@define(frozen=True)
class Effect:
    """Possible effects of a module on memory.

    Attributes:
        changes: it changes its input in place.
        shares: its output may be the memory of its input.
        keeps: it may write to its input, or use it again after it returned.
    """

    changes: bool
    shares: bool
    keeps: bool

    @property
    def uses_up(self) -> bool:
        """Whether nothing uses the memory of the input afterwards."""
        return not (self.changes or self.shares or self.keeps)

    @property
    def passes(self) -> bool:
        """Whether it only returns the memory of its input."""
        return self.shares and not (self.changes or self.keeps)


class MemoryEffects:
    """Effects of the modules of one model; `of(spec)` computes each once."""

    def __init__(self) -> None:
        self.of = cache(self._found)

    def of_node(self, node: GraphNode, children: Mapping[str, ModuleSpec]) -> Effect:
        """Return the effect of a node of a graph; one without a module returns its input."""
        return Effect(False, True, False) if node.module is None else self.of(children[node.module])

    def _found(self, spec: ModuleSpec) -> Effect:
        children = list(spec.children.values())
        facts = traits_of(spec.target)
        if spec.graph is not None:
            return self._of_graph(spec.graph, spec.children)
        if spec.target == SEQUENTIAL:
            return self._of_sequence(children)
        if children:
            return Effect(any(self.of(child).changes for child in children), facts.written != ("concat",), keeps=True)
        inplace = bool(spec.kwargs.get("inplace"))
        return Effect(inplace, inplace or facts.shares_memory, not facts.shares_memory and not _is_of_torch(spec))

    def _of_sequence(self, modules: list[ModuleSpec]) -> Effect:
        changes, shares, keeps = False, True, False
        for before, module in zip([None, *modules], modules):
            effect, is_shared = self.of(module), shares
            if before is not None and traits_of(before.target).written == ("branches",) and before.children:
                # A layer writes into the first element of a list.
                is_shared &= self.of(next(iter(before.children.values()))).shares
            changes |= is_shared and effect.changes
            keeps |= shares and effect.keeps
            shares &= effect.shares
        return Effect(changes, shares, keeps)

    def _of_graph(self, graph: GraphSpec, children: dict[str, ModuleSpec]) -> Effect:
        changes, shares = False, [True]
        for node in graph.nodes:
            is_shared, effect = any(shares[number] for number, _ in node.takes), self.of_node(node, children)
            changes |= is_shared and effect.changes
            shares.append(is_shared and effect.shares)
        return Effect(changes, any(shares[number] for number, _ in graph.outputs), keeps=True)


def copy_as_lua(root: ModuleSpec) -> None:
    """Replace classes that return their input by copying ones (`Traits.copying`) where it may matter.

    Args:
        root: the module of a plan; it is modified.
    """
    if not any(spec.kwargs.get("inplace") for spec in specs_in(root)):
        return
    effects = MemoryEffects()
    for spec, is_safe in _places(root, effects):
        facts = traits_of(spec.target)
        if facts.copying and not is_safe and not spec.kwargs.get("inplace"):
            spec.target = facts.copying


def _places(root: ModuleSpec, effects: MemoryEffects) -> Iterator[tuple[ModuleSpec, bool]]:
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
                is_safe = effect.uses_up or (effect.passes and is_safe)
        else:
            safe = set() if spec.graph is None else _safe_nodes(spec.graph, spec.children, effects)
            stack += [(child, name in safe) for name, child in spec.children.items()]


def _makes_new(spec: ModuleSpec) -> bool:
    """Return whether a module returns memory of its own, not needed for gradients: those with weights do."""
    spec = end_of(spec, last=True)
    is_layer = _is_of_torch(spec) and not spec.children
    return is_layer and spec.obj is not None and "weight" in spec.obj and not traits_of(spec.target).shares_memory


def _is_of_torch(spec: ModuleSpec) -> bool:
    """Return whether a module is of torch.nn, or like one: it keeps no value for its next call."""
    return (spec.plain or spec.target).startswith("torch.nn.")


def _safe_nodes(graph: GraphSpec, children: dict[str, ModuleSpec], effects: MemoryEffects) -> set[str]:
    """Return the children of a graph that may return their input: it has no other use, and is new or used up."""
    users: dict[int, list[str | None]] = {}
    for node in graph.nodes:
        for number, _ in node.takes:
            users.setdefault(number, []).append(node.module)
    for number, _ in graph.outputs:
        users.setdefault(number, []).append(None)

    def uses_up(module: str | None) -> bool:
        return module is not None and effects.of(children[module]).uses_up

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
