"""Decisions about a plan before generation: limits, which modules are one, and where plain PyTorch does not suffice."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from ..errors import UnsupportedError
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from ..limits import Budget, Limits
from ..nn.mapping import SEQUENTIAL, ModuleSpec, Plan, specs_in
from ..nn.memory import copy_as_lua
from ..nn.places import Places
from ..nn.torch_nn import SAME, TORCH
from .copied import remembers
from .flow import TOO_DEEP, USE_CONVERT
from .idioms import traits

_MOST_DEEP = 250
"""Maximum nesting of modules."""
_MOST_COMPARED = 64
"""Maximum elements of a computed tensor that is compared by value; larger ones are compared by identity."""

Owned = dict[int, dict[str, Tensor]]
"""The tensors of each module by its own names for them, by the module's id."""


def check_depth(value: TorchObject, path: str, limits: Limits) -> None:
    """Refuse a model whose modules are nested too deep for Python to read the generated source.

    Raises:
        UnsupportedError: they are.
    """
    if any(place.depth >= _MOST_DEEP for place in Places(value, path, limits)):
        expected = f"at most {_MOST_DEEP} modules inside one another"
        raise UnsupportedError(TOO_DEEP, path=path, expected=expected, hint=USE_CONVERT)


def check_size(tensors: dict[str, Tensor], limits: Limits) -> None:
    """Refuse tensors that are much larger than the storages they view: a stride of 0 repeats endlessly.

    Raises:
        LimitError: together they exceed the storages by more bytes than the limit `work` allows.
    """
    budget = Budget(limits, "constructing the model")
    for key, tensor in tensors.items():
        storage = tensor.storage
        budget.allocate(tensor.numel * tensor.element.itemsize, storage.nbytes if storage else 0, key)


def size_of(root: ModuleSpec) -> int:
    """Count the modules, arguments and links of a plan."""
    total = 0
    for spec in specs_in(root):
        total += 1 + len(spec.args) + len(spec.kwargs) + len(spec.children)
        if spec.graph is not None:
            total += sum(1 + len(node.takes) for node in spec.graph.nodes) + len(spec.graph.outputs)
    return total


# Tensors


def owned_tensors(plan: Plan, tensors: dict[str, Tensor]) -> Owned:
    """Return the tensors of a state dict by the module that owns them."""
    owned: Owned = {}
    for key, tensor in tensors.items():
        spec, name = owner_of(plan, key)
        owned.setdefault(id(spec), {})[name] = tensor
    return owned


def owner_of(plan: Plan, key: str) -> tuple[ModuleSpec, str]:
    """Return the module that a key of a state dict leads to, and the name of the tensor there."""
    spec = plan.root
    while True:
        name, dot, rest = key.partition(".")
        if not dot or name not in spec.children:
            return spec, key
        spec, key = spec.children[name], rest


def view_of(tensor: Tensor) -> Any:
    """Return a key that is equal for tensors that are the same view of the same memory."""
    if tensor.storage is None:
        return id(tensor)
    return id(tensor.storage), tensor.offset, tensor.size, tensor.stride


# Modules that are one


def unify_tied(plan: Plan, owned: Owned, computed: set[int]) -> None:
    """Merge modules that are identical, down to the memory of all their tensors, into one module at several places.

    Args:
        plan: the plan; it is modified.
        owned: the tensors of its modules.
        computed: the tensors, by id, that are not views of the file's memory; they are compared by content.
    """
    numbers: dict[Any, int] = {}
    first: dict[int, ModuleSpec] = {}

    def content(tensor: Tensor) -> Any:
        if not tensor.numel or (id(tensor) in computed and tensor.numel <= _MOST_COMPARED):
            return tensor.element.name, tensor.shape, tensor.numpy().tobytes()
        return id(tensor) if id(tensor) in computed else view_of(tensor)

    @cache
    def facts(spec: ModuleSpec) -> tuple[int, bool, bool]:
        """Return a number that only identical modules share, whether there are tensors, and any other state."""
        inside = {name: facts(child) for name, child in spec.children.items()}
        own = owned.get(id(spec), {})
        said = (spec.target, spec.plain, repr(spec.args), repr(sorted(spec.kwargs.items())))
        refers = tuple((name, id(other)) for name, other in spec.refers.items())
        views = tuple((name, content(tensor)) for name, tensor in own.items())
        children = tuple((name, number) for name, (number, _, _) in inside.items())
        number = numbers.setdefault((said, children, refers, views), len(numbers))
        has_tensors = bool(own) or any(has for _, has, _ in inside.values())
        return number, has_tensors, remembers(spec) or any(resumes for _, _, resumes in inside.values())

    for spec in specs_in(plan.root):
        for name, child in spec.children.items():
            number, has_tensors, resumes = facts(child)
            if has_tensors and not resumes:
                spec.children[name] = first.setdefault(number, child)


def shared_specs(plan: Plan) -> set[int]:
    """Return the modules that occur at several places, or in several nodes of a graph, by id."""
    times: Counter[int] = Counter()
    applied: set[int] = set()
    for spec in specs_in(plan.root):
        times.update(id(child) for child in spec.children.values())
        if spec.graph is not None:
            nodes = Counter(node.module for node in spec.graph.nodes if node.module is not None)
            applied.update(id(spec.children[name]) for name, number in nodes.items() if number > 1)
    return {key for key, number in times.items() if number > 1} | applied


# Classes


def choose_classes(plan: Plan, shared: set[int]) -> None:
    """Keep layers' own classes where those of torch.nn refuse an input that Lua's accept, or do not copy as Lua's do.

    The plain class of a layer requires a batch dimension. A `View` without the dimensions of one
    example removes that of a batch of one, as in Lua; what follows it must accept single examples. A shared module
    may receive a tensor at one place and a list at another.
    """
    copy_as_lua(plan.root)
    lost = False
    for spec in specs_in(plan.root):
        facts = traits(spec)
        if spec.target == SEQUENTIAL:
            _flatten_views([*spec.children.values()])
        refuses_examples = spec.args != facts.plain_examples
        if refuses_examples and (lost or (id(spec) in shared and facts.may_take_list)):
            spec.plain = ""
        lost = lost or (facts.loses_batch and not spec.kwargs.get(facts.keeps_batch_if))


def _flatten_views(modules: list[ModuleSpec]) -> None:
    """Replace a `View(n)` by `Flatten` if the linear layer after it has n features, and so refuses anything else."""
    for at, spec in enumerate(modules):
        if traits(spec).written != ("view",) or len(spec.args) != 1:
            continue
        for following in modules[at + 1 :]:
            name = following.target.removeprefix("torch.nn.")
            if name == "Linear" and following.args[:1] == spec.args:
                spec.plain = "torch.nn.Flatten"
            if name not in TORCH or TORCH[name].rank != SAME:
                break
