"""Typed access to the fields of a Torch object; every error names the path of the field.

May import graph and errors. Knows fields, not what a class means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field

from ..data import define
from ..errors import ModelError
from ..graph.lua import Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.storage import Span, Storage
from ..graph.tensor import Tensor
from ..graph.walk import step_name

_NO_FIELDS: Mapping[str, Any] = {}
_FEW = 64
"""Integers that are decoded one by one: numpy takes longer to load than these to read."""


def lookup(value: Value, path: str) -> Value:
    """Return the value at a path of fields, `network.modules.1.weight`; `None` where a step leads nowhere.

    Args:
        value: an object or a table.
        path: names with dots between them; a name of digits is a number, Lua counts from 1.
    """
    for name in path.split("."):
        if isinstance(value, TorchObject):
            value = value.fields
        if not isinstance(value, Table):
            return None
        value = value.get(float(name) if name.isdigit() else name)
    return value


def path_steps(path: str) -> str:
    """A path of `lookup` as an error message writes it: `network.modules.1` is `.network.modules[1]`."""
    return "".join(step_name(float(name)) if name.isdigit() else step_name(name) for name in path.split("."))


def items_of(value: Value) -> list[Value] | None:
    """The elements of a Lua list, in order, whatever follows them under other keys; `None` for what is not a list.

    As Lua's `ipairs`, it ends before the first element that is missing.
    """
    if isinstance(value, TdsVec):
        return list(value.elements)
    if isinstance(value, TdsHash):
        value = value.content
    if not isinstance(value, Table):
        return None
    found: list[Value] = []
    while (item := value.get(float(len(found) + 1))) is not None:
        found.append(item)
    return found


@define(eq=False)
class Fields:
    """The fields of one object, read by type.

    Attributes:
        obj: the object.
        path: its path, `root.modules[3]`, for messages.
        defaults: what fields mean that an older release did not write.

    Example:
        >>> fields = Fields(TorchObject("nn.Add", 1, Table.of({"kW": 3.0})), "root")
        >>> fields.integer("kW"), fields.integer("dW", 1)
        (3, 1)
    """

    obj: TorchObject
    path: str = "root"
    defaults: Mapping[str, Any] = field(default=_NO_FIELDS, repr=False)

    def get(self, path: str) -> Value:
        """The value at a path of fields, its default, or `None`."""
        found = lookup(self.obj, path)
        return self.defaults.get(path) if found is None else found

    def has(self, path: str) -> bool:
        """Return whether the field, or a default for it, is there."""
        return self.get(path) is not None

    def wrong(self, path: str, expected: str, found: Value) -> ModelError:
        """The error for a field that is not what its class needs."""
        return ModelError(
            f"a field of {self.obj.class_name} is not what the class needs",
            path=self.path + path_steps(path),
            expected=expected,
            found="nothing" if found is None else type(found).__name__ if not isinstance(found, float) else f"{found}",
        )

    def number(self, path: str, default: float | None = None) -> float:
        """A number.

        Args:
            path: names joined by `|` are tried in turn, as classes and releases differ in them.
            default: what counts where the field is missing.

        Raises:
            ModelError: it is missing without a default, or no number.
        """
        value: Value = None
        for name in path.split("|"):
            value = self.get(name)
            if value is not None:
                break
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(path.split("|")[0], "a number", value)
        return value

    def integer(self, path: str, default: int | None = None) -> int:
        """A whole number. See `number`."""
        value = self.number(path, default)
        if value != value or value in (float("inf"), float("-inf")) or value != int(value):
            raise self.wrong(path.split("|")[0], "a whole number", value)
        return int(value)

    def index0(self, path: str, default: int | None = None) -> int:
        """A position that counts from 1 in Lua, counted from 0; one from the end stays negative."""
        value = self.integer(path, default)
        return value - 1 if value > 0 else value

    def flag(self, path: str, default: bool = False) -> bool:
        """A truth value as Lua takes it: everything is true but `nil` and `false`."""
        value = self.get(path)
        return default if value is None else value is not False

    def text(self, path: str, default: str = "") -> str:
        """A string."""
        value = self.get(path)
        if value is None:
            return default
        if isinstance(value, bytes):
            return value.decode("utf-8", "backslashreplace")
        if isinstance(value, str):
            return value
        raise self.wrong(path, "a string", value)

    def sizes(self, path: str) -> tuple[int, ...]:
        """A `LongStorage`, tensor or list of sizes.

        Raises:
            ModelError: it is none of them.
        """
        value = self.get(path)
        if isinstance(value, Storage):
            return _few_integers(value) or tuple(int(extent) for extent in value.array)
        if isinstance(value, Tensor) and value.numel <= (value.storage.count if value.storage else 0):
            return tuple(int(extent) for extent in value.numpy().reshape(-1))
        items = items_of(value)
        if items is None or not all(isinstance(item, (int, float)) for item in items):
            raise self.wrong(path, "a list of sizes", value)
        return tuple(int(item) for item in items)

    def find_tensor(self, path: str) -> Tensor | None:
        """A tensor with at least one element, or `None`: a field may be absent, emptied or something else."""
        value = self.get(path)
        return value if isinstance(value, Tensor) and value.numel else None

    def tensor(self, path: str) -> Tensor:
        """A tensor with at least one element.

        Raises:
            ModelError: there is none.
        """
        value = self.find_tensor(path)
        if value is None:
            raise self.wrong(path, "a tensor with elements", self.get(path))
        return value


def _few_integers(storage: Storage) -> tuple[int, ...]:
    """The elements of a small storage of integers in a file, without numpy; empty where it is something else."""
    data = storage.data
    if not isinstance(data, Span) or storage.element.code[0] != "i" or storage.count > _FEW:
        return ()
    order: Literal["little", "big"] = "little" if data.order == "little" else "big"
    raw = b"".join(data.pieces(storage.count))
    pieces = (raw[at : at + data.width] for at in range(0, len(raw), data.width))
    return tuple(int.from_bytes(piece, order, signed=True) for piece in pieces)
