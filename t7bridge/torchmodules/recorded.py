"""Live modules whose state dict has the keys recorded in a Lua model."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch import nn

from ..nn.recorded import Recorded


def keep_keys(module: nn.Module, record: Recorded, other: dict[str, torch.Tensor]) -> None:
    """Make a module's `state_dict` and `load_state_dict` use the recorded keys and shapes.

    Args:
        module: its parameters keep their own names.
        record: the module's tensors from which each recorded one is composed.
        other: recorded tensors that no layer holds, which are kept separately.
    """
    hooked: Any = module
    hooks = _Hooks(record, other, {key: tuple(value.shape) for key, value in module.state_dict().items()})
    if record.scalars:
        hooked.register_forward_hook(hooks.without_dimensions)
    # PyTorch sets an attribute of this one, which methods do not allow.
    hooked.register_state_dict_post_hook(partial(hooks.rename))
    hooked.register_load_state_dict_pre_hook(hooks.restore)


class _Hooks:
    """What PyTorch calls for a module with recorded keys.

    Args:
        record: the module's tensors from which each recorded one is composed.
        other: recorded tensors that no layer holds.
        shapes: of the module's own state dict.
    """

    def __init__(self, record: Recorded, other: dict[str, torch.Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
        self.record, self.other, self.shapes = record, other, shapes
        self.held = {piece.key for key in record.pieces for piece in record.places(key)}

    def rename(self, owner: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        """Replace the module's own keys."""
        record = self.record
        own = {key[len(prefix) :]: state.pop(key) for key in list(state) if key.startswith(prefix)}
        made = {key: _joined(record, key, own, self.other.get(key)) for key in record.pieces}
        for key in record.keys:
            first = record.tied.get(key, key)
            state[prefix + key] = made[first] if first in made else self.other[first]

    def restore(self, owner: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Replace the recorded keys, if all are there."""
        record = self.record
        if not all(prefix + key in state for key in record.keys):
            return
        given = {key: state.pop(prefix + key) for key in record.keys}
        self.other.update((key, given[key]) for key in self.other if key in given)
        for key in record.pieces:
            for piece in record.places(key):
                tensor = given[key].t() if piece.transposed else given[key]
                part = tensor.reshape(-1)[piece.start : piece.start + piece.count]
                wanted = self.shapes[piece.key]
                state[prefix + piece.key] = part.view(wanted) if part.numel() == prod(wanted) else tensor
        # Tensors of the layers without a recorded key, such as the counters of batch normalization.
        for key, value in [*owner.named_parameters(remove_duplicate=False), *owner.named_buffers()]:
            if key in self.shapes and key not in self.held:
                state.setdefault(prefix + key, value.detach())

    def without_dimensions(self, owner: nn.Module, given: Any, output: Any) -> Any:
        """Return outputs as in PyTorch: Lua has a number as a tensor of one element."""
        several = isinstance(output, (list, tuple))
        flat = list(output) if several else [output]
        for place in self.record.scalars:
            if 0 < place <= len(flat) and isinstance(flat[place - 1], torch.Tensor) and flat[place - 1].numel() == 1:
                flat[place - 1] = flat[place - 1].reshape(())
        return flat if several else flat[0]


def _joined(record: Recorded, key: str, own: dict[str, torch.Tensor], rest: torch.Tensor | None = None) -> torch.Tensor:
    """Return a recorded tensor composed of its pieces; `rest` has the elements that no layer holds."""
    size, pieces = record.sizes[key], record.pieces[key]
    if rest is not None:
        whole = rest.detach().reshape(-1).clone()
        for piece in pieces:
            whole[piece.start : piece.start + piece.count] = own[piece.key].detach().reshape(-1)
        return whole.view(size)
    if len(pieces) == 1:
        tensor = own[pieces[0].key]
        return tensor.t() if pieces[0].transposed else tensor.view(size)
    return torch.cat([own[piece.key].reshape(-1) for piece in pieces]).view(size)
