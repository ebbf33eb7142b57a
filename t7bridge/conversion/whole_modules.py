"""Whole modules pickled by `torch.save`, converted to state dicts; tensors that these cannot hold are named."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ..formats.pt.modules import MetModules, module_state_dict
from ..graph.tensor import Tensor
from ..graph.walk import Visit, walk
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Note

_NAMED = 5
_LETTERS = 100


class WholeModules:
    """Creates the state dicts of a file's modules, once for a shared module.

    Args:
        limits: bound how often shared values are repeated, over all modules.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._met = MetModules(limits)
        self._made: dict[int, OrderedDict[str, Any]] = {}
        self._kept: list[Any] = []
        self._seen: set[int] = set()
        self._others: list[Visit] = []

    def __contains__(self, module: Any) -> bool:
        return id(module) in self._made

    def state_dict(self, module: Any, path: str) -> OrderedDict[str, Any]:
        """Return the state dict of a module.

        Args:
            module: a pickled module.
            path: of its first occurrence.

        Raises:
            LimitError: modules contain one another endlessly, or are repeated too often.
        """
        made = self._made.get(id(module))
        if made is None:
            self._kept.append(module)  # so that no other value gets its identity
            made = self._made[id(module)] = module_state_dict(module, limits=self._limits, met=self._met)
            places = {_place(item) for item in made.values() if isinstance(item, Tensor)}
            for visit in walk(module, path, self._seen):
                if isinstance(visit.value, Tensor) and visit.value.numel and _place(visit.value) not in places:
                    self._others.append(visit)
        return made

    def left_out(self, value: Any) -> list[Note]:
        """Name the tensors of modules that are in no state dict and nowhere else: attributes, transient buffers.

        Args:
            value: of the file.
        """
        if not self._others:
            return []
        kept = {_place(item) for made in self._made.values() for item in made.values() if isinstance(item, Tensor)}
        outside = walk(value, "root", set(self._made))
        kept |= {_place(visit.value) for visit in outside if isinstance(visit.value, Tensor)}
        left = [visit for visit in self._others if _place(visit.value) not in kept]
        if not left:
            return []
        names = ", ".join(visit.path[-_LETTERS:] for visit in left[:_NAMED]) + (", …" if len(left) > _NAMED else "")
        what = "tensor of a module is" if len(left) == 1 else "tensors of modules are"
        return [
            Note(
                "warning",
                "",
                f"{len(left)} {what} in no state dict, and left out: {names}",
                "type",
                code="left-out",
                count=len(left),
            )
        ]


def _place(tensor: Tensor) -> tuple[object, ...]:
    return id(tensor.storage), tensor.offset, tensor.size, tensor.stride
