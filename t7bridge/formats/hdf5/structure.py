"""The objects of HDF5 files: groups, data sets, their attributes and the types of elements. Elements are not read here.

Source: HDF5 File Format Specification, version 3.0; sections are named below.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from attrs import field

from ...data import define
from ...errors import UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES, ElementType
from ...io.source import ByteSource
from ...limits import Limits
from .blocks import STEPS_PER_ITEM, Blocks, Cursor, FractalHeap, bytes_for

DATASPACE, LINK_INFO, DATATYPE, OLD_FILL, FILL, LINK, EXTERNAL, LAYOUT = 1, 2, 3, 4, 5, 6, 7, 8
FILTERS, ATTRIBUTE, CONTINUATION, SYMBOL_TABLE, ATTRIBUTE_INFO = 11, 12, 16, 17, 21
_LAST_MESSAGE = 24
"""Types of messages in object headers (IV.A.2)."""
_MOST_SOFT_LINKS = 16
"""Soft links followed on one path, as by the HDF5 library."""


@define(frozen=True)
class Kind:
    """The type of a data set's or an attribute's elements.

    Attributes:
        title: for notes: `strings`.
        size: of an element, in bytes.
        element: `None` if tensors cannot have such elements.
        order: byte order, `little` or `big`.
        text: of strings: `fixed` or `variable`.
        padding: of strings of fixed size: 0 and 1 end at or are filled with zero bytes, 2 with spaces.
    """

    title: str
    size: int
    element: ElementType | None = None
    order: str = "little"
    text: str = ""
    padding: int = 0


@define(eq=False)
class Header:
    """An object of a file: a group, a data set or a named type.

    Attributes:
        address: of its header, the same for all its names.
        messages: by type, each with its flags.
    """

    address: int
    messages: dict[int, list[tuple[int, bytes]]] = field(factory=dict)

    @property
    def is_group(self) -> bool:
        """Whether it is a group."""
        return SYMBOL_TABLE in self.messages or LINK_INFO in self.messages

    @property
    def is_dataset(self) -> bool:
        """Whether it is a data set."""
        return not self.is_group and DATATYPE in self.messages and DATASPACE in self.messages


Link = int | str | None
"""The target of a link: the address of an object, the path of a soft link, or `None` for a link to another file."""


class Structure(Blocks):
    """The objects of an HDF5 file: groups, data sets and named types, with their attributes."""

    def __init__(self, source: ByteSource, limits: Limits) -> None:
        super().__init__(source, limits)
        self._types: dict[int, bytes] = {}
        self._groups: dict[int, dict[str, Link]] = {}
        self._collections: dict[int, dict[int, tuple[int, int]]] = {}

    # Object headers (IV.A.1)

    def header(self, address: int) -> Header:
        """Read the header of an object."""
        found = Header(address)
        what = "an object's header"
        if self.block(address, 4, what) == b"OHDR":
            self._read_header(found)
            return found
        head = Cursor(self, self.block(address, 16, what), what)
        head.expect(b"", 1)
        head.take(1)
        count = head.number(2)
        head.take(4)
        blocks = [(address + 16, head.number(4))]
        for start, size in blocks:
            cursor = Cursor(self, self.block(start, size, what), what)
            while count and cursor.left >= 8:
                kind, length, flags = cursor.number(2), cursor.number(2), cursor.number()
                cursor.take(3)
                count -= 1
                self._add(found, kind, flags, cursor.take(length), blocks)
        return found

    def _read_header(self, found: Header) -> None:
        """Read a header of version 2."""
        what = "an object's header"
        head = Cursor(self, self.block(found.address, min(34, self.source.size - found.address), what), what)
        head.expect(b"OHDR", 2)
        flags = head.number()
        head.take((16 if flags & 32 else 0) + (4 if flags & 16 else 0))
        size = head.number(1 << (flags & 3))
        first = self.checked(found.address, head.position + size + 4, what)
        first.take(head.position)
        blocks: list[tuple[int, int]] = []
        self._read_messages(found, first, flags, blocks)
        for start, length in blocks:
            cursor = self.checked(start, length, "the continuation of an object's header")
            cursor.expect(b"OCHK")
            self._read_messages(found, cursor, flags, blocks)

    def _read_messages(self, found: Header, cursor: Cursor, flags: int, blocks: list[tuple[int, int]]) -> None:
        ordered = 2 if flags & 4 else 0
        while cursor.left >= 4 + ordered:
            kind, length, own = cursor.number(), cursor.number(2), cursor.number()
            cursor.take(ordered)
            self._add(found, kind, own, cursor.take(length), blocks)

    def _add(self, found: Header, kind: int, flags: int, data: bytes, blocks: list[tuple[int, int]]) -> None:
        self.budget.spend(STEPS_PER_ITEM)
        if kind == CONTINUATION:
            cursor = Cursor(self, data, "the continuation of an object's header")
            place, size = cursor.address(), cursor.length()
            if place is None or (place, size) in blocks:
                raise self.damaged("the continuation of an object's header is used twice", place)
            blocks.append((place, size))
        elif kind > _LAST_MESSAGE and flags & 0x80:
            raise UnsupportedError(f"an object has a message of the unknown type {kind}", file=self.source.name)
        else:
            found.messages.setdefault(kind, []).append((flags, data))

    def message(self, header: Header, kind: int) -> bytes | None:
        """Return the first message of a type; of one that is shared with others, that."""
        if kind not in header.messages:
            return None
        flags, data = header.messages[kind][0]
        return self._shared(kind, data) if flags & 2 else data

    def _shared(self, kind: int, data: bytes) -> bytes:
        """Return the message that a reference means (IV.A.2): that of a named type."""
        cursor = Cursor(self, data, "a shared message")
        version, where = cursor.number(), cursor.number()
        if version > 3 or (version == 3 and where != 2):
            raise UnsupportedError("messages shared in a heap", file=self.source.name)
        cursor.take(6 if version == 1 else 0)
        address = cursor.address()
        if address is None:
            raise self.damaged("a shared message is missing")
        if address not in self._types:
            inner = self.header(address).messages.get(kind, [])
            if not inner or inner[0][0] & 2:
                raise self.damaged("a shared message is missing", address)
            self._types[address] = inner[0][1]
        return self._types[address]

    # Groups

    def links(self, header: Header) -> dict[str, Link]:
        """Return the links of a group by name: in the order of creation where the file has it, else of the names."""
        if header.address in self._groups:
            return self._groups[header.address]
        found: list[tuple[int, bytes, Link]] = []
        tracked = False
        for _, data in header.messages.get(SYMBOL_TABLE, []):
            found += self._symbols(data)
        for _, data in header.messages.get(LINK_INFO, []):
            cursor = Cursor(self, data, "a group's links")
            cursor.expect(b"", 0)
            tracked = bool(cursor.number() & 1)
            cursor.take(8 if tracked else 0)
            heap, names = cursor.address(), cursor.address()
            if names is not None:
                get = FractalHeap(self, heap)
                found += [self._link(get(record[4:])) for record in self.records(names, 5)]
        found += [self._link(data) for _, data in header.messages.get(LINK, [])]
        found.sort(key=lambda each: each[:2] if tracked else (0, each[1]))
        links = {name.decode("utf-8", "backslashreplace"): target for _, name, target in found}
        if len(links) != len(found):
            raise self.damaged("a group has two links of one name", header.address)
        self._groups[header.address] = links
        return links

    def _link(self, data: bytes) -> tuple[int, bytes, Link]:
        """Parse a link message (IV.A.2.g): the order of creation, the name and the target."""
        cursor = Cursor(self, data, "a link")
        cursor.expect(b"", 1)
        flags = cursor.number()
        kind = cursor.number() if flags & 8 else 0
        order = cursor.number(8) if flags & 4 else 0
        cursor.take(1 if flags & 16 else 0)
        name = cursor.take(cursor.number(1 << (flags & 3)))
        if kind == 0:
            return order, name, self._object(cursor.address())
        return order, name, cursor.take(cursor.number(2)).decode("utf-8", "backslashreplace") if kind == 1 else None

    def _object(self, address: int | None) -> int:
        if address is None:
            raise self.damaged("a link has no target")
        return address

    def _symbols(self, data: bytes) -> Iterator[tuple[int, bytes, Link]]:
        """Yield the links of a group of the first version (III.A.1, III.B, III.D)."""
        cursor = Cursor(self, data, "a group")
        tree, heap = cursor.address(), cursor.address()
        head = Cursor(self, self.block(heap, 8 + 2 * self.length_size + self.offset_size, "a heap"), "a heap")
        head.expect(b"HEAP", 0)
        head.take(3)
        size, _, start = head.length(), head.length(), head.address()
        names = self.block(start, size, "a heap")

        def name(offset: int) -> bytes:
            end = names.find(b"\0", offset)
            if end < 0:
                raise self.damaged("a name is not in its heap", start)
            self.budget.spend(end - offset)
            return names[offset:end]

        for leaf, _ in self.tree(tree, 0, self.length_size):
            address = self.node(leaf, "a group's node")
            cursor = Cursor(self, self.block(address, 8, "a group's node"), "a group's node")
            cursor.expect(b"SNOD", 1)
            cursor.take(1)
            count, entry = cursor.number(2), 2 * self.offset_size + 24
            cursor = Cursor(self, self.block(address + 8, count * entry, "a group's node"), "a group's node")
            for _ in range(count):
                place, target, kind = cursor.number(self.offset_size), cursor.address(), cursor.number(4)
                cursor.take(4)
                scratch = cursor.take(16)
                path = (
                    name(int.from_bytes(scratch[:4], "little")).decode("utf-8", "backslashreplace") if kind == 2 else ""
                )
                yield 0, name(place), path if kind == 2 else self._object(target)

    def follow(self, group: Header, path: str) -> int | None:
        """Return the address of the object that a soft link means; `None` if there is none."""
        followed = 0
        address: int | None = group.address
        steps = path.split("/")[::-1]
        address = self.root if path.startswith("/") else address
        while steps:
            self.budget.spend()
            step = steps.pop()
            if step in ("", "."):
                continue
            links = self._groups.get(address) if address is not None else None
            if links is None:
                header = self.header(address) if address is not None else None
                if header is None or not header.is_group:
                    return None
                links = self.links(header)
            target = links.get(step)
            if isinstance(target, str):
                followed += 1
                if followed > _MOST_SOFT_LINKS:
                    return None
                self.budget.spend(len(target))
                steps += target.split("/")[::-1]
                address = self.root if target.startswith("/") else address
            elif target is None:
                return None
            else:
                address = target
        return address

    def _collection(self, address: int) -> dict[int, tuple[int, int]]:
        """Return position and size of each object of a global heap (III.E)."""
        if address not in self._collections:
            what = "a heap of strings"
            head = Cursor(self, self.block(address, 8 + self.length_size, what), what)
            head.expect(b"GCOL", 1)
            head.take(3)
            end = min(address + head.length(), self.source.size)
            place, found = address + 8 + self.length_size, {}
            step = 8 + self.length_size
            while place + step <= end:
                cursor = Cursor(self, self.block(place, step, what), what)
                index = cursor.number(2)
                cursor.take(6)
                size = cursor.length()
                if not index:
                    break
                found[index] = (place + step, size)
                place += step + -(-size // 8) * 8
            self._collections[address] = found
        return self._collections[address]

    def _variable(self, data: bytes) -> bytes:
        """Return a string in a global heap, from its length, the heap's address and its number there."""
        cursor = Cursor(self, data, "a string")
        length, address, index = cursor.number(4), cursor.address(), cursor.number(4)
        if not length or not address:
            return b""
        place, size = self._collection(address).get(index, (0, -1))
        if length > size:
            raise self.damaged("a string is not in its heap", address)
        return self.block(place, length, "a string")

    # Attributes, shapes, types

    def attributes(self, header: Header) -> Iterator[tuple[str, str | None]]:
        """Yield the attributes of an object: the name, and the text if it is one string."""
        for flags, data in header.messages.get(ATTRIBUTE, []):
            if flags & 2:
                raise UnsupportedError("attributes shared in a heap", file=self.source.name)
            yield self._attribute(data)
        for _, data in header.messages.get(ATTRIBUTE_INFO, []):
            cursor = Cursor(self, data, "an object's attributes")
            cursor.expect(b"", 0)
            cursor.take(2 if cursor.number() & 1 else 0)
            heap, names = cursor.address(), cursor.address()
            if heap is not None and names is not None:
                get = FractalHeap(self, heap)
                for record in self.records(names, 8):
                    if record[8] & 2:
                        raise UnsupportedError("attributes shared in a heap", file=self.source.name)
                    yield self._attribute(get(record[:8]))

    def _attribute(self, data: bytes) -> tuple[str, str | None]:
        """Parse an attribute message (IV.A.2.m)."""
        cursor = Cursor(self, data, "an attribute")
        version, flags = cursor.number(), cursor.number()
        if version not in (1, 2, 3):
            raise UnsupportedError("an attribute has an unknown version", file=self.source.name)
        sizes = [cursor.number(2) for _ in range(3)]
        cursor.take(1 if version == 3 else 0)
        parts = []
        for size in sizes:
            parts.append(cursor.take(size))
            cursor.take(-size % 8 if version == 1 else 0)
        name = parts[0].split(b"\0")[0].decode("utf-8", "backslashreplace")
        shared = flags if version > 1 else 0
        kind = self.kind(self._shared(DATATYPE, parts[1]) if shared & 1 else parts[1])
        shape, _ = self.shape(self._shared(DATASPACE, parts[2]) if shared & 2 else parts[2])
        if not kind.text or shape != ():
            return name, None
        text = cursor.take(kind.size)
        if kind.text == "variable":
            text = self._variable(text)
        text = text.split(b"\0")[0] if kind.padding != 1 else text.rstrip(b"\0")
        return name, (text.rstrip(b" ") if kind.padding == 2 else text).decode("utf-8", "backslashreplace")

    def shape(self, data: bytes) -> tuple[tuple[int, ...] | None, tuple[int | None, ...]]:
        """Parse a data space (IV.A.2.b): the extents, `None` if it has none, and the largest that they may become."""
        cursor = Cursor(self, data, "a shape")
        version, rank, flags, kind = (cursor.number() for _ in range(4))
        if version not in (1, 2):
            raise UnsupportedError("a shape has an unknown version", file=self.source.name)
        if version == 2 and kind == 2:
            return None, ()
        cursor.take(4 if version == 1 else 0)
        extents = tuple(cursor.length() for _ in range(rank))
        unlimited = (1 << 8 * self.length_size) - 1
        most: tuple[int | None, ...] = extents
        if flags & 1:
            most = tuple(None if extent == unlimited else extent for extent in (cursor.length() for _ in range(rank)))
        return extents, most

    def kind(self, data: bytes) -> Kind:
        """Parse a type of elements (IV.A.2.d)."""
        cursor = Cursor(self, data, "a type")
        first, flags, size = cursor.number(), cursor.number(3), cursor.number(4)
        group, version = first & 15, first >> 4
        order = "big" if flags & 1 else "little"
        if group in (0, 4):
            offset, precision = cursor.number(2), cursor.number(2)
            signed = "i" if group == 0 and flags & 8 else "u"
            found = _BY_CODE.get(f"{signed}{size}") if not offset and precision == 8 * size else None
            return Kind(f"integers of {precision} bits", size, found, order)
        if group == 1:
            layout = (size, *struct.unpack("<HH4BI", cursor.take(12)), flags >> 8 & 255)
            known = flags >> 4 & 3 == 2 and not flags & 64
            return Kind(f"floating-point numbers of {size} bytes", size, _FLOATS.get(layout) if known else None, order)
        if group == 3:
            return Kind("strings", size, text="fixed", padding=flags & 15)
        if group == 9 and flags & 15 == 1:
            return Kind("strings", size, text="variable")
        if group == 8:
            return self._enumeration(cursor, flags & 0xFFFF, version, size)
        if group == 6:
            return self._complex(cursor, flags & 0xFFFF, version, size)
        if group == 11 and cursor.left and cursor.rest[0] & 15 == 1:
            return _paired(self.kind(cursor.rest), size)
        return Kind(_TITLES.get(group, f"an unknown type {group}"), size)

    def _enumeration(self, cursor: Cursor, count: int, version: int, size: int) -> Kind:
        """Return booleans for the names FALSE and TRUE of 0 and 1, as h5py writes them; else the integers."""
        start = cursor.position
        base = self.kind(cursor.rest) if cursor.left and not cursor.rest[0] & 15 else None
        cursor.position = start + 12
        if base is None or base.element is None:
            return Kind("an enumeration", size)
        names = []
        for _ in range(count if count == 2 else 0):
            begin = cursor.position
            names.append(cursor.text())
            cursor.take((begin - cursor.position) % 8 if version < 3 else 0)
        values = [cursor.take(size) for _ in names]
        if size == 1 and dict(zip(names, values)) == {b"FALSE": b"\0", b"TRUE": b"\1"}:
            return Kind("booleans", 1, ELEMENT_TYPES["bool"])
        return base

    def _complex(self, cursor: Cursor, count: int, version: int, size: int) -> Kind:
        """Return complex numbers for records of two equal floating-point numbers `r` and `i`, as h5py writes them."""
        if count != 2:
            return Kind("records", size)
        members = []
        for _ in range(2):
            begin = cursor.position
            name = cursor.text()
            cursor.take((begin - cursor.position) % 8 if version < 3 else 0)
            place = cursor.number(4 if version < 3 else bytes_for(size))
            cursor.take(28 if version == 1 else 0)
            begin = cursor.position
            if not cursor.left or cursor.rest[0] & 15 != 1:
                return Kind("records", size)
            members.append((name, place, self.kind(cursor.rest)))
            cursor.position = begin + 20
        (r, first, one), (i, second, other) = members
        if (r, first, i, second) != (b"r", 0, b"i", one.size) or one != other:
            return Kind("records", size)
        return _paired(one, size)


def _paired(part: Kind, size: int) -> Kind:
    """Return complex numbers of a part's type."""
    name = {"float32": "complex64", "float64": "complex128"}.get(part.element.name if part.element else "")
    known = name is not None and size == 2 * part.size
    return Kind("complex numbers", size, ELEMENT_TYPES[name] if known and name else None, part.order)


_BY_CODE = {each.code: each for each in ELEMENT_TYPES.values() if each.native}
_FLOATS = {
    # Size, offset, precision, position and size of exponent and mantissa, bias, position of the sign: all in bits but
    # the first.
    (2, 0, 16, 10, 5, 0, 10, 15, 15): ELEMENT_TYPES["float16"],
    (2, 0, 16, 7, 8, 0, 7, 127, 15): ELEMENT_TYPES["bfloat16"],
    (4, 0, 32, 23, 8, 0, 23, 127, 31): ELEMENT_TYPES["float32"],
    (8, 0, 64, 52, 11, 0, 52, 1023, 63): ELEMENT_TYPES["float64"],
}
_TITLES = {2: "times", 5: "opaque data", 7: "references", 9: "sequences", 10: "arrays"}
