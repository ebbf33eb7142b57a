"""Effects of modules on memory: which change their input in place, and which return views of their input.

Lua's in-place layers change a value for all later readers, and PyTorch's do so too if the order is kept.
"""

from __future__ import annotations

from ..nn.mapping import SEQUENTIAL, ModuleSpec
from .idioms import traits

Effects = tuple[bool, bool]
"""Two booleans: a module changes its input; its output may be the same memory."""


class MemoryEffects:
    """Effects on memory of the modules of one model; each is computed once."""

    def __init__(self) -> None:
        self._known: dict[int, Effects] = {}

    def effects(self, spec: ModuleSpec) -> Effects:
        """Return the possible effects of a module on memory."""
        if id(spec) not in self._known:
            self._known[id(spec)] = self._found(spec)
        return self._known[id(spec)]

    def _found(self, spec: ModuleSpec) -> Effects:
        children = list(spec.children.values())
        if spec.graph is not None:
            return self._of_graph(spec)
        if spec.target == SEQUENTIAL:
            changes, same = False, True
            for before, child in zip([None, *children], children):
                changed, handed_on = self.effects(child)
                given = same
                if before is not None and traits(before).written == ("branches",) and before.children:
                    # A layer writes into the first element of a list.
                    given &= self.effects(next(iter(before.children.values())))[1]
                changes |= given and changed
                same &= handed_on
            return changes, same
        if children:
            found = [self.effects(child) for child in children]
            return any(changed for changed, _ in found), traits(spec).written != ("concat",)
        inplace = bool(spec.kwargs.get("inplace"))
        return inplace, inplace or traits(spec).shares_memory

    def _of_graph(self, spec: ModuleSpec) -> Effects:
        assert spec.graph is not None
        changes, same = False, [True]
        for node in spec.graph.nodes:
            given = any(same[number] for number, _ in node.takes)
            changed, handed_on = (False, True) if node.module is None else self.effects(spec.children[node.module])
            changes |= given and changed
            same.append(given and handed_on)
        return changes, any(same[number] for number, _ in spec.graph.outputs)
