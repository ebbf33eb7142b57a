"""The tensors of a plan by the modules that own them. A plan is the modules of PyTorch for a Lua model, its specs; the
keys of its state dict lead through them: `0.2.weight`.
"""

from __future__ import annotations

from ..graph.tensor import Tensor
from ..nn.mapping import ModuleSpec, Plan, way_to

TensorsByModule = dict[int, dict[str, Tensor]]
"""The tensors of each module by its own names for them, by the module's id."""


def owned_tensors(plan: Plan, tensors: dict[str, Tensor]) -> TensorsByModule:
    """Return the tensors of a state dict by the id of the module that owns them, and by their names there.

    Args:
        plan: the plan of the model.
        tensors: its state dict.
    """
    owned: TensorsByModule = {}
    for key, tensor in tensors.items():
        spec, name = owner_of(plan, key)
        owned.setdefault(id(spec), {})[name] = tensor
    return owned


def owner_of(plan: Plan, key: str) -> tuple[ModuleSpec, str]:
    """Return the module that a key of the plan's state dict leads to, and the name of the tensor there: `weight`."""
    *_, (spec, _, name) = way_to(plan.root, key)
    return spec, name
