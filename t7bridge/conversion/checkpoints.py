"""The state dicts in the value of a file, with their paths, and the only one or the one at a path.

A state dict is a dict, or a table of Lua, with text for keys and tensors for half of its values; or a list of tensors,
whose keys are then `0`, `1`, …. What PyTorch's optimizers keep for each parameter is not one. Of a value with nn
modules, or with pickled modules of PyTorch, those have the state dicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.lua import COMPOSITE, Table, TdsHash, TdsVec
from ..graph.python import is_pickled_module
from ..graph.tensor import Tensor
from ..graph.walk import Path, entries, walk
from ..nn.places import choose, find_models
from ..nn.state_dict import state_dict

_OPTIMIZER_KEYS = {"state", "param_groups"}
"""The keys of the state dict of an optimizer. Source: PyTorch 2.13 `torch/optim/optimizer.py` `state_dict`."""


_DEEPEST = 50
"""Most steps of the path of a state dict."""


def is_optimizer(value: Any) -> bool:
    """Return whether a value is the state dict of an optimizer."""
    return isinstance(value, dict) and value.keys() >= _OPTIMIZER_KEYS


def is_state(value: Any) -> bool:
    """Return whether a dict or table has text for keys and tensors for half of its values, or a list tensors only."""
    if isinstance(value, (list, tuple)):
        return _are_tensors(value)
    if isinstance(value, TdsVec):
        return _are_tensors(value.elements)
    if isinstance(value, (Table, TdsHash)):
        table = value.content if isinstance(value, TdsHash) else value
        sequence = table.sequence()
        if sequence is not None:  # a list in Lua
            return _are_tensors(sequence)
        pairs = list(table.raw_items())
        has_names = all(isinstance(key, bytes) for key, _ in pairs)
    elif isinstance(value, dict):
        pairs = list(value.items())
        has_names = all(isinstance(key, str) for key in value)
    else:
        return False
    tensors = sum(isinstance(item, Tensor) for _, item in pairs)
    return has_names and tensors > 0 and 2 * tensors >= len(pairs)


def _are_tensors(items: Sequence[Any]) -> bool:
    """Return whether there are items, and all are tensors."""
    return bool(items) and all(isinstance(item, Tensor) for item in items)


def plain_states(root: Any) -> list[tuple[str, Any]]:
    """Return the state dicts in a value without modules, with their paths, those outside before those inside.

    A dict that has fewer tensors than a state dict inside it is a checkpoint: its tensors are means, or states of
    random numbers.
    """
    optimizers: set[Path] = set()  # of optimizers, and of all that is inside them
    states: dict[Path, Any] = {}
    for path in walk(root, kinds=object):
        value = path.value
        if path.parent in optimizers or is_optimizer(value):
            optimizers.add(path)
        elif is_state(value) and len(path.steps(_DEEPEST + 1)) <= _DEEPEST:
            states[path] = value
    counts = {path: _count_tensors(value) for path, value in states.items()}
    for path in counts:
        *paths_around, _path = path.steps()
        for path_around in paths_around:
            if path_around in states and counts[path_around] < counts[path]:
                del states[path_around]
    return [(path.text(), value) for path, value in states.items()]


def _count_tensors(state: Any) -> int:
    """Return the number of tensors directly in a state dict."""
    return sum(isinstance(item, Tensor) for _, item in entries(state))


def states_in(root: Any) -> list[tuple[str, Any]]:
    """Return the state dicts in the value of a file, with their paths.

    Args:
        root: the value.

    Returns:
        For each its path, and a dict, table or list; a `TorchObject` or a `PythonObject` where a module has it.
    """
    are_lua_values = isinstance(root, list) and any(isinstance(item, COMPOSITE) for item in root)  # several in one file
    if isinstance(root, COMPOSITE) or are_lua_values:
        modules = find_models(root)
        # Modules without tensors, as criterions, count only where nothing else is.
        with_tensors = [(path, module) for path, module in modules if state_dict(module, path).tensors]
        return with_tensors or modules or plain_states(root)
    outermost_modules: list[tuple[str, Any]] = []
    inside_modules: set[Path] = set()  # and the modules themselves
    for path in walk(root):
        if path.parent in inside_modules:
            inside_modules.add(path)
        elif is_pickled_module(path.value):
            inside_modules.add(path)
            outermost_modules.append((path.text(), path.value))
    return outermost_modules or plain_states(root)


def has_states(root: Any) -> bool:
    """Return whether there is a state dict, or a module, in a value; without making the state dicts of modules."""
    if isinstance(root, COMPOSITE) and find_models(root):
        return True
    return any(is_pickled_module(path.value) for path in walk(root)) or bool(plain_states(root))


def chosen_state(root: Any, at: str | None, file: str) -> tuple[str, Any]:
    """Return the path of the only state dict in the value of a file, and the state dict; or what is at a path.

    Args:
        root: the value.
        at: the path: of a state dict, of a module, also one inside another, or of dicts of state dicts.
        file: name of the file, for messages.

    Returns:
        The path, and what is there.

    Raises:
        NoModuleError: there is no state dict.
        ModelError: there are several and `at` is `None`, or nothing is at `at`; the message lists them.
    """
    if at is None:
        return choose(states_in(root), None, file, "state dict")
    return at, Path.parse(at).get(root)
