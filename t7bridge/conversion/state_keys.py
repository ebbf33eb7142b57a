"""Normalization of a returning state dict's keys: wrappers' prefixes, and the keys of a generated `model.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..codegen.generate import generate
from ..errors import T7BridgeError
from ..graph.lua import TorchObject
from ..nn.recorded import ROOT_FIELD, recorded
from ..nn.state_dict import StateDict

_PREFIXES = ("module.", "_orig_mod.")
"""Prefixes that `DataParallel` and `torch.compile` add to every key."""

Note = Callable[[str, str], None]


def plain_keys(obj: TorchObject, wanted: StateDict, state: dict[Any, Any], note: Note) -> dict[Any, Any]:
    """Return a state dict under the keys that `auto` mode assigns to a module, as far as they are known.

    Args:
        obj: the module.
        wanted: its own state dict.
        state: the returning state dict.
        note: receives level and message of notes.
    """
    for prefix in _PREFIXES:
        if not state or not all(isinstance(key, str) and key.startswith(prefix) for key in state):
            continue
        if not any(key.startswith(prefix) for key in wanted.origins):
            state = {key[len(prefix) :]: value for key, value in state.items()}
            note("info", f"all keys begin with {prefix}, which is left out")
    return _of_model_py(obj, wanted, _of_record(obj, wanted, state, note), note)


def _of_record(obj: TorchObject, wanted: StateDict, state: dict[Any, Any], note: Note) -> dict[Any, Any]:
    """Rename the keys that `save_module` recorded in a model, if a state dict has exactly those."""
    if not state or ROOT_FIELD not in obj or set(state) <= set(wanted.origins):
        return state
    record = recorded(obj, wanted)
    if record is None or not set(state) <= set(record.keys):
        return state
    note("info", "the keys are those that the module had in PyTorch")
    return record.inner(state, wanted)


def _of_model_py(obj: TorchObject, wanted: StateDict, state: dict[Any, Any], note: Note) -> dict[Any, Any]:
    """Rename the keys of the `model.py` generated for a module, if a state dict has exactly those."""
    if not state or set(state) <= set(wanted.origins):
        return state
    try:
        keys = generate(obj).keys
    except T7BridgeError:  # it has no model.py
        return state
    if set(state) != {name for names in keys.values() for name in names}:
        return state
    note("info", "the keys are those of the model.py for this module")
    return {key: state[names[0]] for key, names in keys.items() if names}
