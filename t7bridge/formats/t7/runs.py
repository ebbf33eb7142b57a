"""Runs of objects that are alike, in the binary encoding: lists of records, lists of small tensors.

The layout of one object predicts the positions in the next, so that each costs a few unpackings. Anything that is not
alike to the byte is left to the object reader, including errors.
"""

from __future__ import annotations

import struct
from typing import Any

from ...data import define
from ...graph.lua import Table
from ...graph.storage import Span, Storage
from ...graph.tensor import Tensor, view_fault
from . import layout as tags
from .binary import BinaryInput

_LEAST = 4
"""Number of entries read at once that counts as a success."""
_MOST_FIELDS = 64
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
        self._sign = "<" if stream.layout.byte_order == "little" else ">"
        self._pause = self._failures = 0

    def read(self, item: Any, keys: list[Any], values: list[Any], count: int) -> None:
        """Read what follows an entry of a table with `count` entries, and add to its keys and values."""
        if self._pause:
            self._pause -= 1
            return
        run: Records | Tensors | None = None
        if type(item) is Table:
            run = Records.like(item, self._sign)
        elif type(item) is Tensor and not self._external:
            run = Tensors.like(item, self._stream.layout, self._sign)
        before = len(values)
        if run is not None:
            # A tensor is two objects: so the limit is hit outside of here, with the appropriate error.
            most = min(count - before, (self._most - len(self._objects)) // 2)
            run.read(self._stream, self._objects, keys, values, most)
        if len(values) - before >= _LEAST:
            self._failures = 0
        else:
            self._failures = min(self._failures + 1, 10)
            self._pause = (1 << self._failures) - 2


@define(frozen=True)
class _Group:
    """Fields of a record up to a string, whose length is not known in advance.

    Attributes:
        unpack: unpacks the bytes before each value and the values, in turn, from a buffer at an offset.
        length: size in bytes.
        fixed: the bytes before the values: the keys, encoded, and the values' tags.
        booleans: which of the values are booleans.
        text: whether the last value is the length of a string that follows.
    """

    unpack: Any
    length: int
    fixed: tuple[bytes, ...]
    booleans: tuple[int, ...]
    text: bool


class Records:
    """Tables with the same keys as a previous one, and values of the same types."""

    def __init__(self, keys: list[Any], groups: list[_Group], sign: str) -> None:
        self._keys = keys
        self._groups = groups
        self._head = struct.Struct(f"{sign}{_ENTRY}i")

    @classmethod
    def like(cls, table: Table, sign: str) -> Records | None:
        """Return the expected form after a table; `None` if it holds more than numbers, booleans and strings."""
        if not 0 < len(table.raw_values) <= _MOST_FIELDS or len(table.raw_keys) != len(table.raw_values):
            return None
        kinds = [_KINDS.get(type(value)) for value in table.raw_values]
        if None in kinds:
            return None
        groups: list[_Group] = []
        code, fixed, booleans = sign, [], []
        for key, kind in zip(table.raw_keys, kinds):
            assert kind is not None
            before = _encoded_key(key, sign)
            if before is None:
                return None
            before += struct.pack(sign + "i", kind[0])
            fixed.append(before)
            code += f"{len(before)}s{kind[1]}"
            if kind[0] == tags.BOOLEAN:
                booleans.append(len(fixed) - 1)
            if kind[0] == tags.STRING:
                groups.append(_group(code, fixed, booleans, True))
                code, fixed, booleans = sign, [], []
        if fixed:
            groups.append(_group(code, fixed, booleans, False))
        return cls(table.raw_keys, groups, sign)

    def read(self, stream: BinaryInput, objects: list[Any], keys: list[Any], values: list[Any], most: int) -> None:
        """Read entries as long as they are numbers with such tables, up to a maximum."""
        head, names, groups = self._head.unpack_from, self._keys, self._groups
        size, number = len(names), len(objects)
        window, at = stream.window_at(_ROOM)
        end = len(window)
        for _ in range(most):
            if end - at < _ROOM:
                window, at = stream.window_at(_ROOM, at)
                end = len(window)
                if end - at < 24:
                    break
            key_tag, key, tag, index, count = head(window, at)
            if key_tag != tags.NUMBER or tag != tags.TABLE or index != number + 1 or count != size or key != key:
                break
            found = self._fields(window, at + 24, groups)
            if found is None:
                break
            fields, at = found
            number = index
            table = Table(names.copy(), fields)
            objects.append(table)
            keys.append(key)
            values.append(table)
        stream.move_to(at)

    @staticmethod
    def _fields(window: bytes, at: int, groups: list[_Group]) -> tuple[list[Any], int] | None:
        """Return the values of one record and its end, if it is alike and completely in the window."""
        end = len(window)
        fields: list[Any] = []
        for group in groups:
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
        return fields, at


_ROOM = 1 << 12
"""Bytes that should be in the window for the next object."""


def _group(code: str, fixed: list[bytes], booleans: list[int], text: bool) -> _Group:
    packed = struct.Struct(code)
    return _Group(packed.unpack_from, packed.size, tuple(fixed), tuple(booleans), text)


def _encoded_key(key: Any, sign: str) -> bytes | None:
    if isinstance(key, bytes):
        return struct.pack(sign + "ii", tags.STRING, len(key)) + key
    if isinstance(key, float):
        return struct.pack(sign + "id", tags.NUMBER, key)
    return None


class Tensors:
    """Tensors with the class and rank of a previous one, each followed by a storage of its own."""

    def __init__(self, tensor: Tensor, layout: tags.T7Layout, sign: str) -> None:
        storage = tensor.storage
        assert storage is not None
        self._element, self._device = tensor.element, tensor.device
        self._versions = tensor.version, storage.version
        self._aliases = tensor.alias, storage.alias
        self._rank = len(tensor.size)
        self._order = layout.byte_order
        self._width = layout.long_size if self._element.name == "int64" else self._element.itemsize
        long = "q" if layout.long_size == 8 else "i"
        first = _encoded_class(tensor.version, tensor.lua_class, sign) + struct.pack(sign + "i", self._rank)
        second = _encoded_class(storage.version, storage.lua_class, sign)
        self._fixed = first, struct.pack(sign + "i", tags.TORCH), second
        self._row = struct.Struct(f"{sign}{_ENTRY}{len(first)}s{2 * self._rank + 1}{long}4si{len(second)}s{long}")

    @classmethod
    def like(cls, tensor: Tensor, layout: tags.T7Layout, sign: str) -> Tensors | None:
        """Return the expected form after a tensor; `None` if its class has no version or it has no storage."""
        storage = tensor.storage
        if storage is None or tensor.version is None or storage.version is None or layout.vintage:
            return None
        return cls(tensor, layout, sign)

    def read(self, stream: BinaryInput, objects: list[Any], keys: list[Any], values: list[Any], most: int) -> None:
        """Read entries as long as they are numbers with such tensors, up to a maximum."""
        unpack, length, rank = self._row.unpack_from, self._row.size, self._rank
        first, torch_tag, second = self._fixed
        number = len(objects)
        window, at = stream.window_at(_ROOM)
        end, base = len(window), stream.position - at
        for _ in range(most):
            if end - at < _ROOM:
                window, at = stream.window_at(_ROOM, at)
                end, base = len(window), stream.position - at
            if end - at < length:
                break
            key_tag, key, tag, index, found, *longs, other_tag, other, also, count = unpack(window, at)
            if key_tag != tags.NUMBER or tag != tags.TORCH or index != number + 1 or other != number + 2:
                break
            if found != first or also != second or other_tag != torch_tag or key != key or count < 0:
                break
            stop = at + length + count * self._width
            size, stride, offset = tuple(longs[:rank]), tuple(longs[rank:-1]), longs[-1] - 1
            if stop > end or view_fault(size, stride, offset, count):
                break
            span = Span(stream.source, base + at + length, self._width, self._order)
            storage = Storage(self._element, count, span, self._device, self._versions[1], self._aliases[1])
            tensor = Tensor(
                self._element,
                storage,
                size,
                stride,
                offset,
                device=self._device,
                version=self._versions[0],
                alias=self._aliases[0],
            )
            number += 2
            objects += tensor, storage
            keys.append(key)
            values.append(tensor)
            at = stop
        stream.move_to(at)


def _encoded_class(version: int | None, name: str | None, sign: str) -> bytes:
    stamp, label = f"V {version}".encode(), (name or "").encode()
    return struct.pack(sign + "i", len(stamp)) + stamp + struct.pack(sign + "i", len(label)) + label
