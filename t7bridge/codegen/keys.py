"""Where the modules of a plan are in the classes of the source, and so what the tensors are called there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..graph.tensor import Tensor
from ..nn.mapping import LAYERS
from ..nn.plan.spec import ModuleSpec, Plan
from .code import Call
from .copied import pieces
from .flow import Block

Owned = dict[int, dict[str, Tensor]]
"""The tensors of each module by its own names for them, by the module's id."""


def owned_tensors(plan: Plan, tensors: dict[str, Tensor]) -> Owned:
    """Which module each tensor of a state dict belongs to."""
    owned: Owned = {}
    for key, tensor in tensors.items():
        spec, rest = plan.root, key.split(".")
        while len(rest) > 1 and rest[0] in spec.children:
            spec = spec.children[rest.pop(0)]
        owned.setdefault(id(spec), {})[".".join(rest)] = tensor
    return owned


def unify_tied(plan: Plan, owned: Owned) -> None:
    """Make modules that are the same, down to the memory of all their tensors, one module at several places."""
    known: dict[Any, ModuleSpec] = {}
    done: dict[int, Any] = {}

    def signature(spec: ModuleSpec) -> Any:
        if id(spec) not in done:
            inner = tuple((name, signature(child)) for name, child in spec.children.items())
            views = tuple(
                (name, view_of(tensor)) for name, tensor in owned.get(id(spec), {}).items() if tensor.numel > 1
            )
            done[id(spec)] = (spec.target, spec.args, repr(sorted(spec.kwargs.items())), inner, views)
        return done[id(spec)]

    def visit(spec: ModuleSpec) -> None:
        for name, child in spec.children.items():
            if any(True for _ in _own(child, owned)) and not _remembers(child):
                spec.children[name] = known.setdefault(signature(child), child)
            if spec.children[name] is child:
                visit(child)

    visit(plan.root)


def _own(spec: ModuleSpec, owned: Owned) -> Iterator[str]:
    yield from owned.get(id(spec), ())
    for child in spec.children.values():
        yield from _own(child, owned)


def _remembers(spec: ModuleSpec) -> bool:
    """Whether a module keeps more than its tensors; of a class that is not ours nobody knows."""
    if spec.target.startswith(LAYERS):
        own = spec.graph is None and any(piece.remembers for piece in pieces(spec.target))
    else:
        own = not spec.target.startswith("torch.nn.")
    return own or any(map(_remembers, spec.children.values()))


def view_of(tensor: Tensor) -> Any:
    """What tells whether two tensors are the same view of the same memory."""
    if tensor.storage is None:
        return id(tensor)
    return id(tensor.storage), tensor.offset, tensor.size, tensor.stride


def shared_specs(plan: Plan) -> set[int]:
    """The modules that are at several places, by id."""
    seen: dict[int, int] = {}

    def visit(spec: ModuleSpec) -> None:
        seen[id(spec)] = seen.get(id(spec), 0) + 1
        if seen[id(spec)] == 1:
            for child in spec.children.values():
                visit(child)

    visit(plan.root)
    counted = {key for key, times in seen.items() if times > 1}
    return counted | _applied_twice(plan.root, set())


def _applied_twice(spec: ModuleSpec, seen: set[int]) -> set[int]:
    """Modules that several nodes of a graph apply."""
    if id(spec) in seen:
        return set()
    seen.add(id(spec))
    found: set[int] = set()
    if spec.graph is not None:
        names = [node.module for node in spec.graph.nodes if node.module is not None]
        found |= {id(spec.children[name]) for name in names if names.count(name) > 1}
    for child in spec.children.values():
        found |= _applied_twice(child, seen)
    return found


def module_paths(root: Block) -> list[tuple[tuple[str, ...], ModuleSpec]]:
    """The path of each module from an instance of the model's class, in the order of its state dict."""

    def inside(call: Call, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ModuleSpec]]:
        if call.spec is not None:
            yield path, call.spec
        if call.origin is not None:
            yield from held(call.origin, path)
        for name, inner in call.inside:
            yield from inside(inner, (*path, name))

    def held(block: Block, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ModuleSpec]]:
        for attribute in block.attributes:
            yield from inside(attribute.call, (*path, attribute.name))

    return list(held(root, ()))


def expression(path: tuple[str, ...], start: str = "self") -> str:
    """A path as Python source: `self.layers[3].weight`."""
    return start + "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in path)
