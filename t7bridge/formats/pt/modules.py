"""The state dict of a pickled module: from its attributes, without its class.

Source: PyTorch 2.13 `torch/nn/modules/module.py` `state_dict`, `_save_to_state_dict`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from attrs import field

from ...data import define
from ...errors import CorruptError, LimitError, UnsupportedError
from ...graph.python import MODULE_PARTS, PythonObject
from ...limits import DEFAULT_LIMITS, STEPS_PER_NODE, Limits
from .storages import shown
from .torchscript import detached


def is_module(value: Any) -> bool:
    """Return whether a value is a pickled `nn.Module`: an object of any class with parameters, buffers and modules."""
    return isinstance(value, PythonObject) and value.is_module


@define(eq=False)
class MetModules:
    """The modules of a file that were turned into state dicts: repeated ones are charged to `Limits.work`.

    Attributes:
        limits: resource limits.
        seen: the identities of the modules.
        repeated: number of entries made from repeated modules.
    """

    limits: Limits = DEFAULT_LIMITS
    seen: set[int] = field(factory=set)
    repeated: int = 0

    def meet(self, module: PythonObject) -> None:
        """Count a module.

        Raises:
            LimitError: modules are repeated too often.
        """
        if id(module) in self.seen:
            attributes = module.attributes
            self.repeated += 1 + sum(len(attributes[name]) for name in MODULE_PARTS)
            if self.repeated > self.limits.work // STEPS_PER_NODE:
                raise LimitError("the modules contain one another too often", limit="work", value=self.limits.work)
        self.seen.add(id(module))


@define
class _Entry:
    module: PythonObject
    prefix: str
    depth: int


def module_state_dict(
    module: Any,
    *,
    keep_parameters: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    met: MetModules | None = None,
) -> OrderedDict[str, Any]:
    """Return the state dict of a pickled `nn.Module`, in PyTorch's order and under PyTorch's names.

    Args:
        module: the inert object in the file.
        keep_parameters: whether the tensors stay parameters; `state_dict()` detaches them.
        limits: bound how often a shared module is repeated.
        met: the modules of the same file seen before, for one limit over all its state dicts.

    Raises:
        UnsupportedError: it is not a module.
        LimitError: its modules contain one another endlessly.
    """
    if not is_module(module):
        raise UnsupportedError("the value is not a module", found=shown(module))
    found: OrderedDict[str, Any] = OrderedDict()
    stack = [_Entry(module, "", 0)]
    met = met or MetModules(limits)
    while stack:
        entry = stack.pop()
        attributes = entry.module.attributes
        met.meet(entry.module)
        if entry.depth > limits.module_depth:
            raise LimitError("the modules are nested too deep", limit="module_depth", value=limits.module_depth)
        transient = attributes.get("_non_persistent_buffers_set") or ()
        listed = isinstance(transient, (set, frozenset, list, tuple))
        transient = {name for name in transient if isinstance(name, str)} if listed else ()
        for kind in ("_parameters", "_buffers"):
            for name, value in attributes[kind].items():
                if value is None or (kind == "_buffers" and name in transient):
                    continue
                found[entry.prefix + _word(name)] = value if keep_parameters else detached(value)
        inner = [
            _Entry(value, f"{entry.prefix}{_word(name)}.", entry.depth + 1)
            for name, value in attributes["_modules"].items()
            if is_module(value)
        ]
        stack.extend(reversed(inner))
    return found


def _word(name: Any) -> str:
    if type(name) is not str:
        raise CorruptError("a module has an attribute whose name is not text", found=shown(name))
    return name
