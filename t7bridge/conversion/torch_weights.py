"""Weights of a file as PyTorch tensors, for modules created by the user's code."""

from __future__ import annotations

from typing import Any

from .. import formats
from ..errors import ModelError
from ..limits import DEFAULT_LIMITS, Limits
from .plain import to_torch
from .template import state_dict_in


def torch_weights(path: str, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """Read the state dict of a file of any format but `.t7`. Nothing in the file is executed.

    Args:
        path: a state dict, a checkpoint that wraps one, or a pickled module.
        limits: resource limits.

    Returns:
        PyTorch tensors by key.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        ModelError: it holds no state dict, or several.
    """
    with formats.open(path, limits=limits) as document:
        state = None if document.spec.values == formats.LUA else state_dict_in(document.value)
        if state is None:
            kind = type(document.value).__name__
            raise ModelError("the file holds no state dict", file=document.path, found=f"a value of type {kind}")
        made: dict[str, Any] = to_torch(state)
        return made
