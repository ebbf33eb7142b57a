"""Classes whose objects are not just a table of fields in a file.

Most Torch classes write one table. A class that writes something else, with a `write` method of its own in Lua, is
registered here by name, with two functions that read and write what follows the class name. `register_class` adds one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import CorruptError, ModelError
from ...graph.lua import Table, TorchObject
from .layout import Payload, PayloadClass

_PAYLOADS: dict[str, Payload] = {}


def payload_of(class_name: str, version: int | None, vintage: str = "") -> Payload | None:
    """Return the layout of a class's objects; `None` if they are a table of fields.

    Args:
        class_name: the full name.
        version: of the object.
        vintage: that of the file's layout; each has its own payloads.
    """
    if vintage:
        from .releases_2010 import vintage_payload

        if (old := vintage_payload(vintage, class_name)) is not None:
            return old
    payload = _PAYLOADS.get(class_name)
    return payload if payload and (version or 0) >= payload.since_version else None


def register_class(*names: str, since_version: int = 0) -> Callable[[Any], Any]:
    """Register classes that write a payload of their own. Decorates a class with static methods `read` and `write`.

    `read(reader, obj)` reads, in the file's order, what Lua's `read` method reads (`read_int`,
    `read_long`, `read_double`, `read_object`, …) and stores it in `obj` (`obj["name"] = …`, or `obj.payload`).
    `write(writer, obj)` does the reverse.

    Args:
        names: full Lua class names, `corpus.Custom`.
        since_version: objects with lower class versions are read as plain tables.

    Raises:
        ModelError: a class is already registered.

    Example:
        >>> @register_class("corpus.Custom")
        ... class Custom:
        ...     @staticmethod
        ...     def read(reader, obj):
        ...         obj["a"] = reader.read_int()
        ...
        ...     @staticmethod
        ...     def write(writer, obj):
        ...         writer.write_int(obj["a"])
    """

    def decorate(layout: PayloadClass) -> PayloadClass:
        for name in names:
            if name in _PAYLOADS:
                raise ModelError(f"the class {name} is already registered")
        for name in names:
            _PAYLOADS[name] = Payload(layout.read, layout.write, since_version)
        return layout

    return decorate


def unregister_class(name: str) -> None:
    """Remove a registered class; its objects are read as plain tables again."""
    _PAYLOADS.pop(name, None)


class _HeaderAndFields:
    """Two objects: a header, then the table of fields."""

    @staticmethod
    def read(reader: Any, obj: TorchObject) -> None:
        """Fill an object from the reader."""
        obj.payload = reader.read_object()
        fields = reader.read_object()
        if not isinstance(fields, Table):
            raise CorruptError(f"the fields of a {obj.class_name} are not a table", found=type(fields).__name__)
        obj.fields = fields

    @staticmethod
    def write(writer: Any, obj: TorchObject) -> None:
        """Write an object to the writer."""
        writer.write_object(obj.payload)
        writer.write_object(obj.fields)


# nn.GPU writes {type, device}, then its fields (nn 8726825 GPU.lua); DataParallelTable writes its gpuAssignments
# first since class version 2 (cunn DataParallelTable.lua).
register_class("nn.GPU")(_HeaderAndFields)
register_class("nn.DataParallelTable", since_version=2)(_HeaderAndFields)


@register_class("torch.Generator")
class _Generator:
    """The C struct THGenerator in its memory layout. Source: torch7 814ea4a `Generator.c`, `lib/TH/THRandom.h`."""

    @staticmethod
    def struct_bytes(long_size: int) -> int:
        """Return the size of two ints, 626 longs, three doubles and an int, padded to the alignment of a double."""
        head = long_size + 4 + 4 + 625 * long_size
        return head + 3 * 8 + 8 if head % 8 == 0 else head + 4 + 3 * 8 + 8

    @classmethod
    def read(cls, reader: Any, obj: TorchObject) -> None:
        """Fill an object from the reader."""
        obj.fields = None
        obj.payload = reader.read_raw(cls.struct_bytes(reader.layout.long_size))

    @staticmethod
    def write(writer: Any, obj: TorchObject) -> None:
        """Write an object to the writer."""
        writer.write_raw(obj.payload)


@register_class("torch.Timer")
class _Timer:
    """No payload."""

    @staticmethod
    def read(reader: Any, obj: TorchObject) -> None:
        """Fill an object from the reader."""
        obj.fields = None

    @staticmethod
    def write(writer: Any, obj: TorchObject) -> None:
        """Write an object to the writer."""


@register_class("tds.AtomicCounter")
class _AtomicCounter:
    """One long. Source: tds 4524bf8 `atomic.lua`."""

    @staticmethod
    def read(reader: Any, obj: TorchObject) -> None:
        """Fill an object from the reader."""
        obj.fields = None
        obj.payload = reader.read_long()

    @staticmethod
    def write(writer: Any, obj: TorchObject) -> None:
        """Write an object to the writer."""
        writer.write_long(obj.payload)
