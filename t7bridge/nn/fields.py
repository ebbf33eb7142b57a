"""Typed access to the fields of a Torch object; every error names the path of the field.

May import graph and errors. Knows fields, not the meaning of classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Any

from attrs import field

from ..data import define
from ..errors import ModelError
from ..graph.lua import Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.storage import Storage, integers
from ..graph.tensor import Tensor
from ..graph.walk import step_name

_NO_DEFAULTS: Mapping[str, Any] = {}


def lookup(value: Value, path: str) -> Value:
    """Return the value at a path of fields, `network.modules.1.weight`; `None` if a step does not exist.

    Args:
        value: an object or a table.
        path: dotted names; a name of digits is a number, 1-based as in Lua.
    """
    for key in _keys_of(path):
        if isinstance(value, TorchObject):
            value = value.fields
        if not isinstance(value, Table):
            return None
        value = value.get(key)
    return value


@lru_cache(1024)
def _keys_of(path: str) -> tuple[float | bytes, ...]:
    """Return the keys of the steps of a path."""
    return tuple(float(name) if name.isdigit() else name.encode("utf-8", "surrogatepass") for name in path.split("."))


@lru_cache
def path_steps(path: str) -> str:
    """Return a path of `lookup` as error messages write it: `.network.modules[1]` for `network.modules.1`."""
    steps = ""
    for name in path.split("."):
        steps += step_name(float(name) if name.isdigit() else name)
    return steps


def items_of(value: Value) -> list[Value] | None:
    """Return the elements of a Lua list, in order, whatever other keys it has; `None` for any other value.

    As Lua's `ipairs`, it ends before the first element that is missing.
    """
    if isinstance(value, TdsVec):
        return list(value.elements)
    if isinstance(value, TdsHash):
        value = value.content
    if not isinstance(value, Table):
        return None
    # The usual case: the table's keys are 1, 2, … and no others, and none of its values is nil.
    all_values = value.sequence()
    if all_values is not None and not any(item is None for item in all_values):
        return all_values
    items: list[Value] = []
    while True:
        item = value.get(float(len(items) + 1))  # Lua counts from 1
        if item is None:
            return items
        items.append(item)


@define(eq=False)
class Fields:
    """The fields of one object, read by type.

    Attributes:
        obj: the object.
        path: its path, `root.modules[3]`, for messages.
        defaults: values of fields that older releases did not write.

    Example:
        >>> fields = Fields(TorchObject("nn.Add", 1, Table.of({"kW": 3.0})), "root")
        >>> fields.integer("kW"), fields.integer("dW", 1)
        (3, 1)
    """

    obj: TorchObject
    path: str = "root"
    defaults: Mapping[str, Any] = field(default=_NO_DEFAULTS, repr=False)

    def get(self, path: str) -> Value:
        """Return the value at a path of fields, its default, or `None`.

        Args:
            path: names separated by `|` are tried in turn, as classes and releases differ in them.
        """
        for name in path.split("|"):
            value = lookup(self.obj, name)
            if value is None:
                value = self.defaults.get(name)
            if value is not None:
                return value
        return None

    def has(self, path: str) -> bool:
        """Return whether the field, or a default for it, exists."""
        return self.get(path) is not None

    def wrong(self, path: str, expected: str, found: Value) -> ModelError:
        """Return the error for a field that is not what its class needs; the caller raises it.

        Args:
            path: of the field; of several names the message has the first.
            expected: what the class needs.
            found: its value; the message has that of a number, and the type of any other.
        """
        if found is None:
            text = "nothing"
        elif isinstance(found, float):
            text = f"{found}"
        else:
            text = type(found).__name__
        first_name, *_ = path.split("|")
        return ModelError(
            f"a field of {self.obj.class_name} is not what the class needs",
            path=self.path + path_steps(first_name),
            expected=expected,
            found=text,
        )

    def number(self, path: str, default: float | None = None) -> float:
        """Return a number.

        Args:
            path: see `get`.
            default: the value of a missing field.

        Raises:
            ModelError: it is missing without a default, or not a number.
        """
        value = self.get(path)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(path, "a number", value)
        return value

    def integer(self, path: str, default: int | None = None) -> int:
        """Return a whole number, which Lua stores as a float. See `number`.

        Raises:
            ModelError: it is missing without a default, or not a whole number.
        """
        value = self.number(path, default)
        if (isinstance(value, float) and not isfinite(value)) or value != int(value):
            raise self.wrong(path, "a whole number", value)
        return int(value)

    def index0(self, path: str, default: int | None = None) -> int:
        """Return a 1-based position of Lua as a 0-based one; one from the end stays negative.

        Raises:
            ModelError: it is 0, which each layer of Lua reads in a way of its own; or see `integer`.
        """
        value = self.integer(path, default)
        if value == 0:
            raise self.wrong(path, "a position from 1, or from -1 backwards", 0.0)
        # From the end both count from -1.
        return value - 1 if value > 0 else value

    def flag(self, path: str, default: bool = False) -> bool:
        """Return a truth value by Lua's rule: everything is true but `nil` and `false`."""
        value = self.get(path)
        return default if value is None else value is not False

    def text(self, path: str, default: str = "") -> str:
        """Return a string.

        Args:
            path: of fields, see `get`.
            default: the value of a missing field.

        Raises:
            ModelError: it is something else.
        """
        value = self.get(path)
        if value is None:
            return default
        if isinstance(value, bytes):
            return value.decode("utf-8", "backslashreplace")
        if isinstance(value, str):
            return value
        raise self.wrong(path, "a string", value)

    def numbers(self, path: str) -> tuple[Any, ...]:
        """Return the elements of a storage, tensor or list of numbers.

        Raises:
            ModelError: it is none of these.
        """
        value = self.get(path)
        if isinstance(value, Storage):
            is_integer = value.element.code[0] == "i"  # numpy's code of signed integers, which are read without numpy
            return tuple(integers(value)) if is_integer else tuple(value.array.tolist())
        if isinstance(value, Tensor):
            # One that repeats a small storage, by strides of 0, may have any number of elements: it is refused below.
            stored = value.storage.count if value.storage else 0
            if value.numel <= stored:
                return tuple(value.numpy().reshape(-1).tolist())
        items = items_of(value)
        if items is None or not all(isinstance(item, (int, float)) for item in items):
            raise self.wrong(path, "a list of numbers", value)
        return tuple(items)

    def sizes(self, path: str) -> tuple[int, ...]:
        """Return the integers of a `LongStorage`, tensor or list, in order. See `numbers`.

        Raises:
            ModelError: it is none of these, or has a number that is infinite or NaN.
        """
        try:
            return tuple(map(int, self.numbers(path)))
        except (OverflowError, TypeError, ValueError) as error:
            raise self.wrong(path, "a list of sizes", self.get(path)) from error

    def find_tensor(self, path: str) -> Tensor | None:
        """Return a tensor with at least one element, or `None`: a field may be absent, emptied or something else."""
        value = self.get(path)
        return value if isinstance(value, Tensor) and value.numel else None

    def tensor(self, path: str) -> Tensor:
        """Return a tensor with at least one element.

        Raises:
            ModelError: it does not exist.
        """
        value = self.find_tensor(path)
        if value is None:
            raise self.wrong(path, "a tensor with elements", self.get(path))
        return value
