"""Decisions about a plan before generation: size limits, and where plain PyTorch does not suffice."""

from __future__ import annotations

from ..errors import UnsupportedError
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from ..limits import Budget, Limits
from ..nn.copies import copy_as_lua
from ..nn.mapping import SEQUENTIAL, ModuleSpec, Plan
from ..nn.places import Places
from ..nn.torch_nn import SAME, TORCH
from .idioms import traits
from .keys import all_specs

MOST_DEEP = 250
"""Maximum nesting of modules."""


def check_depth(value: TorchObject, path: str, limits: Limits) -> None:
    """Refuse a model whose modules are nested too deep for Python to read the generated source.

    Raises:
        UnsupportedError: they are.
    """
    for place in Places(value, path, limits):
        if place.depth >= MOST_DEEP:
            raise UnsupportedError(
                "the modules of this model are nested too deep to be written down",
                path=path,
                expected=f"at most {MOST_DEEP} modules inside one another",
                hint="`t7bridge convert` converts the weights.",
            )


def check_size(tensors: dict[str, Tensor], limits: Limits) -> None:
    """Refuse tensors that are much larger than the storages they view: a stride of 0 repeats endlessly.

    Raises:
        LimitError: together they exceed the storages by more bytes than the limit `work` allows.
    """
    budget = Budget(limits, "constructing the model")
    for key, tensor in tensors.items():
        storage = tensor.storage
        budget.allocate(tensor.numel * tensor.element.itemsize, storage.nbytes if storage else 0, key)


def explained(plan: Plan) -> int:
    """Count the modules, arguments and links of a plan."""
    total = 0
    for spec in all_specs(plan):
        total += 1 + len(spec.args) + len(spec.kwargs) + len(spec.children)
        if spec.graph is not None:
            total += sum(1 + len(node.takes) for node in spec.graph.nodes) + len(spec.graph.outputs)
    return total


def settle(plan: Plan, shared: set[int]) -> None:
    """Keep layers' own classes where those of torch.nn refuse an input that Lua's accept, or do not copy as Lua's do.

    The plain class of a layer requires a batch dimension. A `View` without the dimensions of one
    example removes that of a batch of one, as in Lua; what follows it must accept single examples. A shared module
    may receive a tensor at one place and a list at another.
    """
    copy_as_lua(plan.root)
    lost = False
    for spec in all_specs(plan):
        if spec.target == SEQUENTIAL:
            _settle_views([*spec.children.values()])
        if spec.plain and (lost or (id(spec) in shared and traits(spec).may_take_list)):
            spec.plain = "" if _refuses_examples(spec) else spec.plain
        lost = lost or _loses_batches(spec)


def _loses_batches(spec: ModuleSpec) -> bool:
    """Return whether a layer may return one example without the batch dimension of its input."""
    facts = traits(spec)
    return facts.loses_batch and not (facts.keeps_batch_if and spec.kwargs.get(facts.keeps_batch_if))


def _refuses_examples(spec: ModuleSpec) -> bool:
    """Return whether the plain class refuses single examples that the layer accepts."""
    return spec.args != traits(spec).plain_examples


def _settle_views(modules: list[ModuleSpec]) -> None:
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
