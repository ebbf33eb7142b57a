"""Decisions about a plan before it is written: that it is not too large, and where plain PyTorch will not do."""

from __future__ import annotations

from ..errors import UnsupportedError
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from ..limits import Budget, Limits
from ..nn.plan.copies import copy_as_lua
from ..nn.plan.places import Places
from ..nn.plan.spec import SEQUENTIAL, ModuleSpec, Plan
from .idioms import traits
from .keys import all_specs
from .torch_classes import SAME, TORCH

MOST_DEEP = 250
"""Deepest nesting of modules."""


def check_depth(value: TorchObject, path: str, limits: Limits) -> None:
    """Refuse a model whose modules are nested so deep that Python could not read what is written of them.

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
    """Refuse tensors that are much larger than the storages they view: a stride of 0 repeats without end.

    Raises:
        LimitError: together they are more bytes than the storages by more than the limit `work` allows.
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
            total += sum(1 + len(node.takes) for node in spec.graph.nodes) + len(spec.graph.gives)
    return total


def settle(plan: Plan, shared: set[int]) -> None:
    """Let layers keep their own class where that of torch.nn refuses what Lua's takes, or does not copy as Lua's does.

    The plain class of a layer is for inputs with a batch dimension. A `View` that was not told the dimensions of one
    example takes that of a batch of one away, as in Lua; what follows it must take single examples. A module at several
    places may be given a tensor at one and a list at another.
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
    """Return whether the plain class does not take the single examples that the layer does."""
    return spec.args != traits(spec).plain_examples


def _settle_views(modules: list[ModuleSpec]) -> None:
    """A `View(n)` is `Flatten` where the linear layer behind it takes n features, and so refuses anything else."""
    for at, spec in enumerate(modules):
        if traits(spec).written != ("view",) or len(spec.args) != 1:
            continue
        for following in modules[at + 1 :]:
            name = following.target.removeprefix("torch.nn.")
            if name == "Linear" and following.args[:1] == spec.args:
                spec.plain = "torch.nn.Flatten"
            if name not in TORCH or TORCH[name].rank != SAME:
                break
