"""StateDict: tensors by PyTorch's names, their origins, and memory that they no longer share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from ..data import define
from ..graph.lua import TorchObject, Value
from ..graph.tensor import Tensor
from ..report import Note, Report
from ..text import counted, listed
from .registry import Param, Source


@define(eq=False)
class Origin:
    """Origin of a tensor of a state dict.

    Attributes:
        obj: the Lua object.
        param: the entry that named it; `None` for a class without an entry.
        source: its field and layout; `None` if it was computed, or its layout could not be changed.
        tensor: the Lua tensor; `None` if it was computed.
    """

    obj: TorchObject
    param: Param | None
    source: Source | None
    tensor: Tensor | None


class StateDict(OrderedDict[str, Tensor]):
    """A PyTorch state dict, made from a Lua model: tensors by PyTorch's names, in PyTorch's order.

    Tensors that shared memory in Lua do so here.

    Attributes:
        notes: notes for the user.
        origins: the origin of each tensor.
        data: strings, numbers and tables of them in fields of the model that its classes do not set, such as a
            vocabulary: under the prefix of the module and the name of the field.
        data_fields: identity of the object and name of the field of each of these, and of the record of `save_module`.
    """

    __slots__ = ("data", "data_fields", "notes", "origins")

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Note] = []
        self.origins: dict[str, Origin] = {}
        self.data: dict[str, Value] = {}
        self.data_fields: set[tuple[int, str]] = set()

    @property
    def tensors(self) -> StateDict:
        """The state dict itself."""
        return self

    def __repr__(self) -> str:
        return f"<StateDict: {counted(len(self), 'tensor')}>"

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


_SHOWN = 8


def note_lost_sharing(models: Iterable[StateDict], report: Report) -> None:
    """Note the tensors that were copied into another layout, and share their original memory with others of the result.

    Args:
        models: the state dicts of the result.
        report: receives the note.
    """
    places: dict[int, list[tuple[int, int, str, Tensor, int]]] = {}
    for model in models:
        for key, origin in model.origins.items():
            before, now = origin.tensor, model.tensors[key]
            if before is not None and before.storage is not None and before.numel:
                first, end = before.reach()
                places.setdefault(id(before.storage), []).append((first, end, key, now, id(before)))
    lost: dict[str, None] = {}
    for found in places.values():
        found.sort(key=lambda place: place[:3])
        reach, last = -1, found[0]
        for place in found:
            is_part = place[4] == last[4]  # parts of one tensor share nothing
            if place[0] < reach and place[3].storage is not last[3].storage and not is_part:
                lost[last[2]] = lost[place[2]] = None
            if place[1] > reach:
                reach, last = place[1], place
    if lost:
        names = listed(lost, _SHOWN)
        message = f"memory that Lua shares between tensors of different layouts is no longer shared: {names}"
        report.notes.append(Note("info", "", message, "sharing", code="unshared"))
