"""StateDict: tensors by PyTorch's names, and their origins."""

from __future__ import annotations

from collections import OrderedDict

from ...data import define
from ...graph.lua import TorchObject, Value
from ...graph.show import counted
from ...graph.tensor import Tensor
from ...report import Note
from ..registry import Param, Source


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
        data: tables of strings and numbers in fields of the model that are not options of its layers, such as a
            vocabulary: under the prefix of the module and the name of the field.
    """

    __slots__ = ("data", "notes", "origins")

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Note] = []
        self.origins: dict[str, Origin] = {}
        self.data: dict[str, Value] = {}

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
