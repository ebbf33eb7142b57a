"""Runs of objects that are alike, in the binary encoding: lists of records (tables), lists of small tensors. The form
of an object is what is the same in all that are like it.

The layout of one object predicts the positions in the next, so that each costs a few unpackings. Anything that is not
alike to the byte is left to the object reader, including errors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ...graph.dtypes import INT64, ORDER_SIGNS
from ...graph.lua import Table
from ...graph.storage import Span, Storage
from ...graph.tensor import Tensor, view_fault
from . import layout as tags
from .binary import BinaryInput

_LEAST_SUCCESS = 4
"""Number of entries read at once that counts as a success."""
_MOST_FIELDS = 64
"""Maximum number of fields of a record whose form is prepared."""
_ROOM = 1 << 12
"""Bytes that should be in the window for the next object."""
_ENTRY = "idii"
"""An entry with a number as its key: tag, key, and of the object its tag and number."""
_TAGS_IN_RECORDS = {float: tags.NUMBER, bool: tags.BOOLEAN, bytes: tags.STRING}
"""By the types of values that records may have: their tags."""
_VALUE_CODES = {tags.NUMBER: "d", tags.BOOLEAN: "i", tags.STRING: "i"}
"""By a tag: the code of `struct` for what follows; of a string that is its length."""


class Alike:
    """Reads entries of tables at once if they are like the one before; after failures it tries less often.

    It serves all tables of a file, whose values may be alike in one and not in another.

    Args:
        stream: the input.
        objects: the objects read so far, numbered from 1 on; receives those that are read here.
        most_objects: maximum number of objects of the file.
        has_external_elements: whether the elements of the storages are not in the stream.
    """

    def __init__(self, stream: BinaryInput, objects: list[Any], most_objects: int, has_external_elements: bool) -> None:
        self._stream = stream
        self._objects = objects
        """Those of the whole file so far; what is read here is appended to them."""
        self._most_objects = most_objects
        """How many these may become."""
        self._has_external_elements = has_external_elements
        """Whether storages are without their elements in the stream: then tensors are not read here."""
        self._sign = ORDER_SIGNS[stream.layout.byte_order]
        self._entry = struct.Struct(self._sign + _ENTRY)
        """An entry up to the content of its object."""
        self._pause = 0
        """How many entries are read one by one before the next attempt."""
        self._failures = 0
        """Attempts in a row that read too few entries."""

    def read(self, item: Any, keys: list[Any], values: list[Any], count: int) -> None:
        """Read the entries that follow one of a table, as far as they are like it.

        Args:
            item: the value of that entry, which was read.
            keys: of the table so far; receives the keys.
            values: of the table so far; receives the values.
            count: number of entries that the table will have.
        """
        if self._pause:
            self._pause -= 1
            return
        form: Record | View | None = None
        if type(item) is Table:
            form = Record.like(item, self._sign)
        elif type(item) is Tensor and not self._has_external_elements:
            form = View.like(item, self._stream, self._sign)
        count_before = len(values)
        if form is not None:
            # An entry adds two objects at most, a tensor with its storage. So the limit is never exceeded here: the
            # object reader raises that error.
            allowed = (self._most_objects - len(self._objects)) // 2
            self._read(form, keys, values, min(count - count_before, allowed))
        if len(values) - count_before >= _LEAST_SUCCESS:
            self._failures = 0
        else:
            # The pause doubles: 0, 2, 6, … entries, at most a thousand.
            self._failures = min(self._failures + 1, 10)
            self._pause = (1 << self._failures) - 2

    def _read(self, form: Record | View, keys: list[Any], values: list[Any], most: int) -> None:
        """Read entries as long as their keys are numbers and their values new objects of a form, up to a maximum.

        The stream is then before the first entry that was not read.

        Args:
            form: of the objects.
            keys: receives the keys.
            values: receives the objects.
            most: maximum number of entries.
        """
        stream = self._stream
        objects = self._objects
        make = form.make
        form_tag = form.tag
        unpack = self._entry.unpack_from
        size = self._entry.size
        window, at = stream.window_at(_ROOM)  # `at` is where the next entry is in the window
        end = len(window)
        base = stream.position - at  # where the window begins in the file
        number = len(objects) + 1  # that of the next new object
        for _ in range(most):
            if end - at < _ROOM:  # read more of the file; at its end the room stays smaller
                window, at = stream.window_at(_ROOM, at)
                end = len(window)
                base = stream.position - at
                if end - at < size:
                    break
            key_tag, key, tag, object_number = unpack(window, at)
            is_nan = key != key  # an error, which the object reader raises
            if key_tag != tags.NUMBER or tag != form_tag or object_number != number or is_nan:
                break
            result = make(window, at + size, number, base)
            if result is None:  # the object is not alike, or longer than the window
                break
            new_objects, at = result
            objects += new_objects
            number += len(new_objects)
            keys.append(key)
            values.append(new_objects[0])  # the other is the storage inside it
        stream.move_to(at)


_Group = tuple[Callable[[bytes, int], tuple[Any, ...]], int, tuple[bytes, ...], list[int], bool]
"""Fields of a record up to a string, whose length is not known in advance: see `_group`. A tuple, as it is taken apart
for each record."""


def _group(fields: list[tuple[bytes, int]], sign: str) -> _Group:
    """Return the form of the fields of a record up to a string, or to its end.

    Args:
        fields: of each the bytes before its value, which are the key and the value's tag; and that tag. Only the last
            may be a string.
        sign: byte order, `<` or `>`.

    Returns:
        A tuple of five:

        * the function that unpacks, in turn, the bytes before each value and the value, of a string its length;
        * the length of all that in bytes;
        * the bytes before the values, which are the same in each record;
        * the places of booleans among the values, 0-based;
        * whether a string follows, whose length is the last value.
    """
    code = sign
    boolean_places = []
    ends_with_string = False
    for place, (before, tag) in enumerate(fields):
        code += f"{len(before)}s{_VALUE_CODES[tag]}"
        if tag == tags.BOOLEAN:
            boolean_places.append(place)
        ends_with_string = tag == tags.STRING
    row = struct.Struct(code)
    bytes_before_values = tuple(before for before, _ in fields)
    return row.unpack_from, row.size, bytes_before_values, boolean_places, ends_with_string


class Record:
    """The form of tables with the same keys, and values of the same types: numbers, booleans and strings.

    Args:
        keys: of each such table, in order.
        groups: how its entries are read: groups of fields, each up to a string.

    Attributes:
        tag: the tag of the values that have such a form.
    """

    tag = tags.TABLE

    def __init__(self, keys: list[Any], groups: list[_Group]) -> None:
        self._keys = keys
        self._groups = groups

    @classmethod
    def like(cls, table: Table, sign: str) -> Record | None:
        """Return the form of tables like one; `None` if it is empty, has many entries, or holds other values.

        What is the same in all such tables, keys and tags, becomes bytes that are compared at once.

        Args:
            table: the one, which was read.
            sign: byte order, `<` or `>`.
        """
        count = len(table.raw_values)
        if not 0 < count <= _MOST_FIELDS or len(table.raw_keys) != count:
            return None
        groups: list[_Group] = []
        fields: list[tuple[bytes, int]] = []
        """Of the present group: the bytes before each value, and its tag."""
        table_head = struct.pack(sign + "i", count)  # the number of entries, before the first key only
        for key, value in table.raw_items():
            tag = _TAGS_IN_RECORDS.get(type(value))
            encoded_key = _encoded_key(key, sign)
            if tag is None or encoded_key is None:
                return None
            fields.append((table_head + encoded_key + struct.pack(sign + "i", tag), tag))
            table_head = b""
            if tag == tags.STRING:  # what follows it is at another place in each table: a new group
                groups.append(_group(fields, sign))
                fields = []
        if fields:
            groups.append(_group(fields, sign))
        return cls(table.raw_keys, groups)

    def make(self, window: bytes, at: int, number: int, base: int) -> tuple[tuple[Any, ...], int] | None:
        """Return one record and its end; `None` if it is not alike, or not completely in the window.

        Args:
            window: bytes of the file.
            at: offset in the window of the first byte after the number of the object.
            number: of the object; not used here, as for `View.make`.
            base: offset of the window in the file; not used here.

        Returns:
            A tuple of the new objects, here one, and the offset in the window after it.
        """
        end = len(window)
        values: list[Any] = []
        for unpack, length, bytes_before_values, boolean_places, ends_with_string in self._groups:
            stop = at + length
            if stop > end:
                return None
            row = unpack(window, at)  # the bytes before a value and the value, in turn
            if row[::2] != bytes_before_values:
                return None
            start = len(values)  # of the values of this group
            values += row[1::2]
            for place in boolean_places:
                flag = values[start + place]
                if flag != 0 and flag != 1:  # an error, which the object reader raises
                    return None
                values[start + place] = flag == 1
            at = stop
            if ends_with_string:
                at += values[-1]  # its length
                if not stop <= at <= end:  # a negative length, or beyond the window
                    return None
                values[-1] = window[stop:at]
        return (Table(self._keys.copy(), values),), at


def _encoded_key(key: Any, sign: str) -> bytes | None:
    """Return a string or number as the key of an entry; `None` for another key."""
    if isinstance(key, bytes):
        return struct.pack(sign + "ii", tags.STRING, len(key)) + key
    if isinstance(key, float):
        return struct.pack(sign + "id", tags.NUMBER, key)
    return None


class View:
    """The form of tensors with the class and rank of a previous one, each followed by a storage of its own.

    Args:
        tensor: the previous one.
        storage: its storage, of whose class the others are.
        stream: the input, whose layout and source the others have.
        sign: byte order, `<` or `>`.

    Attributes:
        tag: the tag of the values that have such a form.
    """

    tag = tags.TORCH

    def __init__(self, tensor: Tensor, storage: Storage, stream: BinaryInput, sign: str) -> None:
        layout = stream.layout
        self._source = stream.source
        self._order = layout.byte_order
        self._tensor = tensor
        self._storage = storage
        self._rank = len(tensor.size)
        # Bytes of an element in the file: int64 is C's long.
        self._width = layout.long_size if tensor.element is INT64 else tensor.element.itemsize
        long = "q" if layout.long_size == 8 else "i"
        # The bytes that are the same in all: a tensor's class and rank; the storage's tag; its class.
        tensor_head = _encoded_class(tensor.version, tensor.lua_class, sign) + struct.pack(sign + "i", self._rank)
        storage_tag = struct.pack(sign + "i", tags.TORCH)
        storage_head = _encoded_class(storage.version, storage.lua_class, sign)
        self._same_bytes = tensor_head, storage_tag, storage_head
        # All that precedes the elements: after the tensor's head its sizes, strides and offset; after the storage's tag
        # the storage's number; after its head the number of its elements.
        view = f"{2 * self._rank + 1}{long}"
        self._row = struct.Struct(f"{sign}{len(tensor_head)}s{view}4si{len(storage_head)}s{long}")

    @classmethod
    def like(cls, tensor: Tensor, stream: BinaryInput, sign: str) -> View | None:
        """Return the form of tensors like one; `None` for one without a version or a storage, and in old layouts.

        Args:
            tensor: the one, which was read.
            stream: the input.
            sign: byte order, `<` or `>`.
        """
        storage = tensor.storage
        if storage is None or tensor.version is None or storage.version is None or stream.layout.vintage:
            return None
        return cls(tensor, storage, stream, sign)

    def make(self, window: bytes, at: int, number: int, base: int) -> tuple[tuple[Any, ...], int] | None:
        """Return one tensor with its storage, and the end of its elements.

        `None` if it is not alike, or not completely in the window.

        Args:
            window: bytes of the file.
            at: offset in the window of the first byte after the number of the tensor.
            number: of the tensor among the objects of the file.
            base: offset of the window in the file.

        Returns:
            A tuple of the new objects, here two, and the offset in the window after the elements.
        """
        start = at + self._row.size  # of the elements
        if start > len(window):
            return None
        # The longs are sizes, strides and offset of the tensor.
        tensor_head, *longs, storage_tag, storage_number, storage_head, count = self._row.unpack_from(window, at)
        # A storage that was written before has another number.
        if (tensor_head, storage_tag, storage_head) != self._same_bytes or storage_number != number + 1 or count < 0:
            return None
        size = tuple(longs[: self._rank])
        stride = tuple(longs[self._rank : -1])
        offset = longs[-1] - 1  # 1-based in the file
        stop = start + count * self._width
        if stop > len(window) or view_fault(size, stride, offset, count):
            return None
        like = self._tensor
        span = Span(self._source, base + start, self._width, self._order)
        storage = Storage(like.element, count, span, like.device, self._storage.version, self._storage.alias)
        tensor = Tensor(
            like.element, storage, size, stride, offset,
            device=like.device, version=like.version, alias=like.alias,
        )  # fmt: skip
        return (tensor, storage), stop


def _encoded_class(version: int | None, name: str | None, sign: str) -> bytes:
    """Return the version and the class name of an object, as they stand before its content."""
    version_text = f"V {version}".encode()
    name_text = (name or "").encode()
    version_length = struct.pack(sign + "i", len(version_text))
    name_length = struct.pack(sign + "i", len(name_text))
    return version_length + version_text + name_length + name_text
