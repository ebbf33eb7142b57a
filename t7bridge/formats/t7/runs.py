"""Runs of objects that are alike, in the binary encoding: lists of records, lists of small tensors.

The layout of one object predicts the positions in the next, so that each costs a few unpackings. Anything that is not
alike to the byte is left to the object reader, including errors.
"""

from __future__ import annotations

import struct
from typing import Any

from ...graph.dtypes import INT64, ORDER_SIGNS
from ...graph.lua import Table
from ...graph.storage import Span, Storage
from ...graph.tensor import Tensor, view_fault
from . import layout as tags
from .binary import BinaryInput

_LEAST = 4
"""Number of entries read at once that counts as a success."""
_MOST_FIELDS = 64
_ROOM = 1 << 12
"""Bytes that should be in the window for the next object."""
_ENTRY = "idii"
"""An entry with a number as its key: tag, key, and of the object its tag and number."""
_KINDS = {float: (tags.NUMBER, "d"), bool: (tags.BOOLEAN, "i"), bytes: (tags.STRING, "i")}
"""Start of a value: its tag, and the length of a string."""


class Alike:
    """Reads entries of tables at once if they are like the one before; after failures it tries less often.

    Args:
        stream: the input.
        objects: the objects read so far, numbered from 1 on.
        most: maximum number of objects of the file.
        external: whether the elements of the storages are not in the stream.
    """

    def __init__(self, stream: BinaryInput, objects: list[Any], most: int, external: bool) -> None:
        self._stream = stream
        self._objects = objects
        self._most = most
        self._external = external
        self._sign = ORDER_SIGNS[stream.layout.byte_order]
        self._entry = struct.Struct(self._sign + _ENTRY)
        self._pause = self._failures = 0

    def read(self, item: Any, keys: list[Any], values: list[Any], count: int) -> None:
        """Read what follows an entry of a table with `count` entries, and add to its keys and values."""
        if self._pause:
            self._pause -= 1
            return
        form: Record | View | None = None
        if type(item) is Table:
            form = Record.like(item, self._sign)
        elif type(item) is Tensor and not self._external:
            form = View.like(item, self._stream, self._sign)
        before = len(values)
        if form is not None:
            # A tensor is two objects: so the limit is hit outside of here, with the appropriate error.
            self._read(form, keys, values, min(count - before, (self._most - len(self._objects)) // 2))
        if len(values) - before >= _LEAST:
            self._failures = 0
        else:
            self._failures = min(self._failures + 1, 10)
            self._pause = (1 << self._failures) - 2

    def _read(self, form: Record | View, keys: list[Any], values: list[Any], most: int) -> None:
        """Read entries as long as they are numbers with objects of a form, up to a maximum."""
        stream, objects, wanted, make = self._stream, self._objects, form.tag, form.make
        entry, size = self._entry.unpack_from, self._entry.size
        window, at = stream.window_at(_ROOM)
        end, base, number = len(window), stream.position - at, len(objects) + 1
        for _ in range(most):
            if end - at < _ROOM:
                window, at = stream.window_at(_ROOM, at)
                end, base = len(window), stream.position - at
                if end - at < size:
                    break
            key_tag, key, tag, index = entry(window, at)
            if key_tag != tags.NUMBER or tag != wanted or index != number or key != key:
                break
            result = make(window, at + size, index, base)
            if result is None:
                break
            new_objects, at = result
            objects += new_objects
            number += len(new_objects)
            keys.append(key)
            values.append(new_objects[0])
        stream.move_to(at)


class _Group:
    """Fields of a record up to a string, whose length is not known in advance.

    Args:
        code: unpacks the bytes before each value and the values, in turn.
        fixed: the bytes before the values: the keys, encoded, and the values' tags.
        booleans: which of the values are booleans.
        text: whether the last value is the length of a string that follows.
    """

    def __init__(self, code: str, fixed: list[bytes], booleans: list[int], text: bool) -> None:
        packed = struct.Struct(code)
        self.unpack, self.length = packed.unpack_from, packed.size
        self.fixed, self.booleans, self.text = tuple(fixed), booleans, text


class Record:
    """The form of tables with the same keys, and values of the same types: numbers, booleans and strings."""

    tag = tags.TABLE

    def __init__(self, keys: list[Any], groups: list[_Group]) -> None:
        self._keys = keys
        self._groups = groups

    @classmethod
    def like(cls, table: Table, sign: str) -> Record | None:
        """Return the expected form after a table; `None` if it holds other values."""
        count = len(table.raw_values)
        if not 0 < count <= _MOST_FIELDS or len(table.raw_keys) != count:
            return None
        groups: list[_Group] = []
        code, fixed, booleans = sign, [], []
        before = struct.pack(sign + "i", count)
        for key, value in table.raw_items():
            kind, name = _KINDS.get(type(value)), _encoded_key(key, sign)
            if kind is None or name is None:
                return None
            fixed.append(before + name + struct.pack(sign + "i", kind[0]))
            before = b""
            code += f"{len(fixed[-1])}s{kind[1]}"
            if kind[0] == tags.BOOLEAN:
                booleans.append(len(fixed) - 1)
            if kind[0] == tags.STRING:
                groups.append(_Group(code, fixed, booleans, True))
                code, fixed, booleans = sign, [], []
        if fixed:
            groups.append(_Group(code, fixed, booleans, False))
        return cls(table.raw_keys, groups)

    def make(self, window: bytes, at: int, number: int, base: int) -> tuple[tuple[Any, ...], int] | None:
        """Return one record and its end, if it is alike and completely in the window."""
        end = len(window)
        fields: list[Any] = []
        for group in self._groups:
            stop = at + group.length
            if stop > end:
                return None
            row = group.unpack(window, at)
            if row[::2] != group.fixed:
                return None
            start = len(fields)
            fields += row[1::2]
            for place in group.booleans:
                flag = fields[start + place]
                if flag != 0 and flag != 1:
                    return None
                fields[start + place] = flag == 1
            at = stop
            if group.text:
                at += fields[-1]
                if not stop <= at <= end:
                    return None
                fields[-1] = window[stop:at]
        return (Table(self._keys.copy(), fields),), at


def _encoded_key(key: Any, sign: str) -> bytes | None:
    if isinstance(key, bytes):
        return struct.pack(sign + "ii", tags.STRING, len(key)) + key
    return struct.pack(sign + "id", tags.NUMBER, key) if isinstance(key, float) else None


class View:
    """The form of tensors with the class and rank of a previous one, each followed by a storage of its own."""

    tag = tags.TORCH

    def __init__(self, tensor: Tensor, storage: Storage, stream: BinaryInput, sign: str) -> None:
        layout = stream.layout
        self._source, self._order = stream.source, layout.byte_order
        self._tensor, self._storage = tensor, storage
        self._rank = len(tensor.size)
        self._width = layout.long_size if tensor.element is INT64 else tensor.element.itemsize
        long = "q" if layout.long_size == 8 else "i"
        first = _encoded_class(tensor.version, tensor.lua_class, sign) + struct.pack(sign + "i", self._rank)
        second = _encoded_class(storage.version, storage.lua_class, sign)
        self._fixed = first, struct.pack(sign + "i", tags.TORCH), second
        self._row = struct.Struct(f"{sign}{len(first)}s{2 * self._rank + 1}{long}4si{len(second)}s{long}")

    @classmethod
    def like(cls, tensor: Tensor, stream: BinaryInput, sign: str) -> View | None:
        """Return the expected form after a tensor; `None` if its class has no version or it has no storage."""
        storage = tensor.storage
        if storage is None or tensor.version is None or storage.version is None or stream.layout.vintage:
            return None
        return cls(tensor, storage, stream, sign)

    def make(self, window: bytes, at: int, number: int, base: int) -> tuple[tuple[Any, ...], int] | None:
        """Return one tensor with its storage, and the end of its elements, if they are completely in the window."""
        begin = at + self._row.size
        if begin > len(window):
            return None
        first, *longs, tag, other, second, count = self._row.unpack_from(window, at)
        if (first, tag, second) != self._fixed or other != number + 1 or count < 0:
            return None
        size, stride, offset = tuple(longs[: self._rank]), tuple(longs[self._rank : -1]), longs[-1] - 1
        stop = begin + count * self._width
        if stop > len(window) or view_fault(size, stride, offset, count):
            return None
        before, known = self._tensor, self._storage
        span = Span(self._source, base + begin, self._width, self._order)
        storage = Storage(before.element, count, span, before.device, known.version, known.alias)
        tensor = Tensor(
            before.element, storage, size, stride, offset,
            device=before.device, version=before.version, alias=before.alias,
        )  # fmt: skip
        return (tensor, storage), stop


def _encoded_class(version: int | None, name: str | None, sign: str) -> bytes:
    stamp, label = f"V {version}".encode(), (name or "").encode()
    return struct.pack(sign + "i", len(stamp)) + stamp + struct.pack(sign + "i", len(label)) + label
