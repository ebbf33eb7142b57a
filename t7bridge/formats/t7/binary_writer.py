"""Lua Torch's binary encoding: writing primitives; `binary` is the counterpart."""

from __future__ import annotations

import struct

from ...errors import ModelError, WriteError
from ...graph.dtypes import INT64
from ...graph.storage import Storage
from ...io.output import Output
from . import layout as tags
from .layout import T7Layout


class BinaryWriter:
    """Writes primitives in the encoding of `layout`."""

    plain_nans = 0
    """Every NaN keeps its bits."""

    def __init__(self, output: Output, layout: T7Layout) -> None:
        self.output = output
        self.layout = layout
        sign = "<" if layout.byte_order == "little" else ">"
        self._sign = sign
        self._long = "q" if layout.long_size == 8 else "i"
        self._pack_int = struct.Struct(sign + "i").pack
        self._pack_number = struct.Struct(sign + "id").pack
        self._pack_two = struct.Struct(sign + "ii").pack

    def write_int(self, value: int) -> None:
        """Write a 4-byte integer."""
        try:
            self.output.write(self._pack_int(value))
        except struct.error:
            raise WriteError(f"{value} does not fit a 4-byte integer", file=self.output.name) from None

    def write_ints(self, *values: int) -> None:
        """Write 4-byte integers."""
        try:
            self.output.write(struct.pack(f"{self._sign}{len(values)}i", *values))
        except struct.error:
            raise WriteError(f"{max(values, key=abs)} does not fit a 4-byte integer", file=self.output.name) from None

    def write_long(self, value: int) -> None:
        """Write a C long."""
        self.write_longs((value,))

    def write_longs(self, values: tuple[int, ...]) -> None:
        """Write C longs."""
        try:
            self.output.write(struct.pack(f"{self._sign}{len(values)}{self._long}", *values))
        except struct.error:
            raise WriteError(
                f"{max(values, key=abs)} does not fit a {self.layout.long_size}-byte long",
                file=self.output.name,
                hint="Write 8-byte longs (--long-size 8)." if self.layout.long_size == 4 else "",
            ) from None

    def write_short(self, value: int) -> None:
        """Write a 2-byte integer."""
        self._write_one("h", value, "a 2-byte integer")

    def write_float(self, value: float) -> None:
        """Write a 4-byte float."""
        self._write_one("f", value, "a 4-byte float")

    def _write_one(self, code: str, value: float, what: str) -> None:
        try:
            self.output.write(struct.pack(self._sign + code, value))
        except (struct.error, OverflowError):
            raise WriteError(f"{value} does not fit {what}", file=self.output.name) from None

    def write_double(self, value: float) -> None:
        """Write an 8-byte float."""
        self.output.write(struct.pack(self._sign + "d", value))

    def write_raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.output.write(data)

    def write_number(self, value: float) -> None:
        """Write a tagged number."""
        self.output.write(self._pack_number(tags.NUMBER, value))

    def write_string(self, data: bytes) -> None:
        """Write a tagged string."""
        if len(data) > 0x7FFFFFFF:
            raise WriteError("a Lua string of 2 GiB or more cannot be written", file=self.output.name)
        self.output.write(self._pack_two(tags.STRING, len(data)))
        self.output.write(data)

    def write_boolean(self, value: bool) -> None:
        """Write a tagged boolean."""
        self.output.write(self._pack_two(tags.BOOLEAN, value))

    def write_elements(self, storage: Storage) -> None:
        """Write a storage's elements, copied from their file if they have the same form there."""
        width = self.layout.long_size if storage.element is INT64 else storage.element.itemsize
        extent = storage.extent(self.layout.byte_order, width)
        if extent is not None:
            self.output.copy(extent)
            return
        try:
            for chunk in storage.chunks(self.layout.byte_order, width):
                self.output.write(chunk)
        except ModelError as error:
            raise WriteError(
                error.message, file=self.output.name, expected=error.expected, found=error.found, hint=error.hint
            ) from error
