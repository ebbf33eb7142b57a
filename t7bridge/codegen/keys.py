"""Attribute paths of a plan's modules in the generated classes, and so the names of the tensors there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from ..errors import ModelError
from ..graph.tensor import Tensor
from ..nn.mapping import ModuleSpec, Plan
from .code import Attr, Construction, Lit, Name, Node, Subscript
from .copied import remembers
from .flow import CodeBlock

T = TypeVar("T")
_MOST_COMPARED = 64
"""Maximum elements of a computed tensor that is compared by value; larger ones are compared by identity."""

Owned = dict[int, dict[str, Tensor]]
"""The tensors of each module by its own names for them, by the module's id."""


def cached_by_spec(function: Callable[[Any, ModuleSpec], T]) -> Callable[[Any, ModuleSpec], T]:
    """Cache the result of a method for each module; modules live as long as the plan."""
    name = f"_known{function.__name__}"

    @wraps(function)
    def ask(self: Any, spec: ModuleSpec) -> T:
        known: dict[int, T] = self.__dict__.setdefault(name, {})
        if id(spec) not in known:
            known[id(spec)] = function(self, spec)
        return known[id(spec)]

    return ask


def owned_tensors(plan: Plan, tensors: dict[str, Tensor]) -> Owned:
    """Return the tensors of a state dict by the module that owns them."""
    owned: Owned = {}
    for key, tensor in tensors.items():
        spec, name = owner_of(plan, key)
        owned.setdefault(id(spec), {})[name] = tensor
    return owned


def owner_of(plan: Plan, key: str) -> tuple[ModuleSpec, str]:
    """Return the module that a key of a state dict leads to, and the name of the tensor there."""
    spec, rest = plan.root, key.split(".")
    at = 0
    while at < len(rest) - 1 and rest[at] in spec.children:
        spec = spec.children[rest[at]]
        at += 1
    return spec, ".".join(rest[at:])


def unify_tied(plan: Plan, owned: Owned, computed: set[int]) -> None:
    """Merge modules that are identical, down to the memory of all their tensors, into one module at several places.

    Args:
        plan: the plan; it is modified.
        owned: the tensors of its modules.
        computed: the tensors, by id, that are not views of the file's memory; they are compared by content.
    """
    _Unifier(owned, computed).visit(plan.root)


class _Unifier:
    def __init__(self, owned: Owned, computed: set[int]) -> None:
        self._owned = owned
        self._computed = computed
        self._numbers: dict[Any, int] = {}
        """Signature → its number, so that comparing a container does not compare its content again."""
        self._first: dict[int, ModuleSpec] = {}

    def visit(self, spec: ModuleSpec) -> None:
        """Merge the content of a module, outermost first."""
        seen: set[int] = set()
        stack = [spec]
        while stack:
            spec = stack.pop()
            if id(spec) in seen:
                continue
            seen.add(id(spec))
            for name, child in spec.children.items():
                if self._is_mergeable(child):
                    spec.children[name] = self._first.setdefault(self._signature(child), child)
            stack += reversed(spec.children.values())

    def _is_mergeable(self, spec: ModuleSpec) -> bool:
        """Return whether a module has tensors, and no other state."""
        return self._has_tensors(spec) and not self._remembers(spec)

    @cached_by_spec
    def _has_tensors(self, spec: ModuleSpec) -> bool:
        return bool(self._owned.get(id(spec))) or any(map(self._has_tensors, spec.children.values()))

    @cached_by_spec
    def _remembers(self, spec: ModuleSpec) -> bool:
        return remembers(spec) or any(map(self._remembers, spec.children.values()))

    @cached_by_spec
    def _signature(self, spec: ModuleSpec) -> int:
        """Return a number that two modules share if and only if they are identical."""
        children = tuple((name, self._signature(child)) for name, child in spec.children.items())
        refers = tuple((name, id(other)) for name, other in spec.refers.items())
        views = tuple((name, self._content(tensor)) for name, tensor in self._owned.get(id(spec), {}).items())
        said = (spec.target, spec.plain, repr(spec.args), repr(sorted(spec.kwargs.items())))
        return self._numbers.setdefault((said, children, refers, views), len(self._numbers))

    def _content(self, tensor: Tensor) -> Any:
        """Return the memory that a tensor views; of one that was computed, or is empty, its content."""
        if not tensor.numel or (id(tensor) in self._computed and tensor.numel <= _MOST_COMPARED):
            return tensor.element.name, tensor.shape, tensor.numpy().tobytes()
        return id(tensor) if id(tensor) in self._computed else view_of(tensor)


def view_of(tensor: Tensor) -> Any:
    """Return a key that is equal for tensors that are the same view of the same memory."""
    if tensor.storage is None:
        return id(tensor)
    return id(tensor.storage), tensor.offset, tensor.size, tensor.stride


def shared_specs(plan: Plan) -> set[int]:
    """Return the modules that occur at several places, or in several nodes of a graph, by id."""
    times: Counter[int] = Counter()
    applied: set[int] = set()
    for spec in all_specs(plan):
        times.update(id(child) for child in spec.children.values())
        if spec.graph is not None:
            nodes = Counter(node.module for node in spec.graph.nodes if node.module is not None)
            applied.update(id(spec.children[name]) for name, number in nodes.items() if number > 1)
    return {key for key, number in times.items() if number > 1} | applied


def all_specs(plan: Plan) -> Iterator[ModuleSpec]:
    """Return every module of a plan once, in the order of its first place."""
    seen: set[int] = set()
    stack = [plan.root]
    while stack:
        spec = stack.pop()
        if id(spec) not in seen:
            seen.add(id(spec))
            yield spec
            stack += reversed(spec.children.values())


def module_paths(root: CodeBlock) -> list[tuple[tuple[str, ...], ModuleSpec]]:
    """Return the path of each module from an instance of the model's class, in the order of its state dict."""

    def inside(call: Construction, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ModuleSpec]]:
        if call.spec is not None:
            yield path, call.spec
        if call.origin is not None:
            yield from held(call.origin, path)
        for name, inner in call.inside:
            yield from inside(inner, (*path, name))

    def held(block: CodeBlock, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ModuleSpec]]:
        for attribute in block.attributes:
            yield from inside(attribute.call, (*path, attribute.name))

    return list(held(root, ()))


def expression(path: tuple[str, ...], start: str = "self") -> Node:
    """Return a path as an expression: `self.layers[3].weight`."""
    node: Node = Name(start)
    for name in path:
        node = Subscript(node, Lit(int(name))) if name.isdigit() else Attr(node, name)
    return node


def check_tensors(
    plan: Plan, source: dict[str, Tensor], paths: list[tuple[tuple[str, ...], ModuleSpec]], made: dict[str, Tensor]
) -> None:
    """Compare every tensor of a model's file with the corresponding Lua tensor.

    Args:
        plan: the plan, after merging.
        source: the state dict of the Lua model.
        paths: the paths of the modules in the classes of the page.
        made: the tensors to write.

    Raises:
        ModelError: a tensor is missing, or replaced by another one.
    """
    places: dict[int, list[tuple[str, ...]]] = {}
    for path, spec in paths:
        places.setdefault(id(spec), []).append(path)
    for key, tensor in source.items():
        spec, name = owner_of(plan, key)
        found = [made.get(".".join((*path, name))) for path in places.get(id(spec), ())]
        if not found or not all(other is not None and _same(tensor, other) for other in found):
            raise ModelError(
                "a tensor would be lost or replaced by another one in model.pt",
                path=f"{spec.path}.{name}",
                expected=f"the values of {key}",
                found="another tensor" if found else "no attribute for it in the source",
            )


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same view of the same memory, or hold the same bytes."""
    if tensor is other or view_of(tensor) == view_of(other):
        return True
    if tensor.element != other.element or tensor.shape != other.shape:
        return False
    return bool(tensor.numpy().tobytes() == other.numpy().tobytes())
