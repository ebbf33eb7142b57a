"""The structure of HDF5 files: superblock, trees, heaps, groups, data sets, their attributes and types of elements.

Elements are not read here. Every byte that is read is charged to one budget of the file, every node of a tree is
visited once, and nothing is recursive, so that the work is in proportion to the file whatever it says.

Source: HDF5 File Format Specification, version 3.0; sections are named below. Checksums are Jenkins' lookup3.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any

from attrs import field

from ...data import define
from ...errors import CorruptError, TruncatedError, UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES, NUMPY_ELEMENTS, ElementType
from ...io.source import ByteSource
from ...limits import Budget, Limits

MAGIC = b"\x89HDF\r\n\x1a\n"
_CODES = {2: "H", 4: "I", 8: "Q"}
_REPEATED, _SKIPPED = re.compile(r"(\d+)([A-Z])"), re.compile(r"\d*x")
STEPS_PER_ITEM = 16
"""Steps of the budget for a message or a link, beside its bytes."""


def lookup3(data: bytes) -> int:
    """Return the checksum of HDF5's metadata: Jenkins' `hashlittle` with the initial value 0."""
    size, mask = len(data), 0xFFFFFFFF
    a = b = c = (0xDEADBEEF + size) & mask
    words: tuple[int, ...] = struct.unpack(f"<{-(-size // 12) * 3}I", data + bytes(-size % 12))
    for place in range(0, len(words) - 3, 3):
        a, b, c = (a + words[place]) & mask, (b + words[place + 1]) & mask, (c + words[place + 2]) & mask
        for bits in (4, 6, 8, 16, 19, 4):
            a, b, c = b, (c + b) & mask, (a - c ^ (c << bits | c >> 32 - bits)) & mask
    if not words:
        return c
    a, b, c = (a + words[-3]) & mask, (b + words[-2]) & mask, (c + words[-1]) & mask
    for bits in (14, 11, 25, 16, 4, 14, 24):
        a, b, c = b, (c ^ b) - (b << bits | b >> 32 - bits) & mask, a
    return b


_HEAP = "a heap"


class Cursor:
    """Fields of a block of metadata, one after the other.

    Args:
        file: for sizes of addresses and lengths, and for errors.
        data: the bytes.
        what: named in errors.
    """

    def __init__(self, file: Blocks, data: bytes, what: str) -> None:
        self._file = file
        self._data = data
        self._what = what
        self.position = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            CorruptError: the block is shorter.
        """
        end = self.position + size
        if end > len(self._data):
            raise self._file.damaged(f"{self._what} is shorter than its fields")
        self.position, start = end, self.position
        return self._data[start:end]

    def number(self, size: int = 1) -> int:
        """Return the next unsigned little-endian integer of so many bytes."""
        return int.from_bytes(self.take(size), "little")

    def read(self, layout: str) -> list[Any]:
        """Return the next fields.

        Args:
            layout: the codes of `struct` for integers (B, H, I, Q) and skipped bytes (`3x`); L is a length, and A an
                address, `None` if it is undefined.
        """
        packed, addresses = self._file.layout(layout)
        found = list(packed.unpack(self.take(packed.size)))
        for place in addresses:
            found[place] = None if found[place] == self._file.undefined else found[place]
        return found

    def text(self, unit: int = 1) -> bytes:
        """Return the bytes up to the next zero byte; skip that, and what pads them to a multiple of the unit."""
        end = self._data.find(b"\0", self.position)
        found = self.take(max(end, self.position) - self.position)
        self.take(1 + -(len(found) + 1) % unit)
        return found

    def expect(self, signature: bytes, *versions: int) -> None:
        """Check a signature and the version after it.

        Raises:
            CorruptError: the block has another signature.
            UnsupportedError: the version is unknown.
        """
        if self.take(len(signature)) != signature:
            raise self._file.damaged(f"{self._what} has another signature", expected=signature.decode())
        if versions and self.number() not in versions:
            raise UnsupportedError(f"{self._what} has an unknown version")

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return len(self._data) - self.position

    @property
    def rest(self) -> bytes:
        """The bytes that follow."""
        return self._data[self.position :]


class Blocks:
    """The blocks of an HDF5 file.

    Args:
        source: the file.
        limits: resource limits.

    Raises:
        CorruptError: the superblock is damaged.

    Attributes:
        root: address of the root group.
        budget: for all work on the file's structure.
    """

    def __init__(self, source: ByteSource, limits: Limits) -> None:
        self.source = source
        self.limits = limits
        self.budget = Budget(limits, "reading the groups of an HDF5 file", free=4 * source.size)
        self.offset_size = self.length_size = 8
        self._layouts: dict[str, tuple[struct.Struct, list[int]]] = {}
        self._nodes: set[int] = set()
        self.root = self._superblock()

    def damaged(self, what: str, offset: int | None = None, **details: Any) -> CorruptError:
        """Return the error for a damaged file."""
        return CorruptError(f"cannot be read as HDF5: {what}", file=self.source.name, offset=offset, **details)

    def block(self, address: int | None, size: int, what: str) -> bytes:
        """Read a block of metadata.

        Raises:
            CorruptError: it is not in the file.
            LimitError: the file refers to its blocks so often that reading takes more work than its size explains.
        """
        if address is None or address + size > self.source.size:
            raise self.damaged(f"{what} is not in the file", address)
        self.budget.spend(size + STEPS_PER_ITEM)
        return self.source.read_exact(address, size, what)

    @property
    def undefined(self) -> int:
        """The address that means none."""
        return int((1 << 8 * self.offset_size) - 1)

    def layout(self, text: str) -> tuple[struct.Struct, list[int]]:
        """Return the codec of fields, as in `Cursor.read`, and which of them are addresses."""
        if text not in self._layouts:
            codes = _REPEATED.sub(lambda match: match[2] * int(match[1]), text)
            sizes = {"A": _CODES[self.offset_size], "L": _CODES[self.length_size]}
            packed = struct.Struct("<" + "".join(sizes.get(code, code) for code in codes))
            fields = _SKIPPED.sub("", codes)
            self._layouts[text] = packed, [place for place, code in enumerate(fields) if code == "A"]
        return self._layouts[text]

    def record(
        self,
        address: int | None,
        what: str,
        signature: bytes,
        layout: str,
        more: int = 0,
        *,
        version: int = 0,
        checksum: bool = True,
    ) -> tuple[Cursor, list[Any]]:
        """Read a block that begins with a signature, a version and fields.

        Args:
            address: of the block.
            what: named in errors.
            signature: its first bytes.
            layout: the fields, as in `Cursor.read`.
            more: number of bytes after them.
            version: the one that is known.
            checksum: whether a checksum follows.

        Returns:
            The block from there on, and the fields.

        Raises:
            CorruptError: it is not in the file, has another signature, or not its checksum.
            UnsupportedError: the version is unknown.
        """
        size = len(signature) + 1 + self.layout(layout)[0].size + more
        cursor = self.checked(address, size + 4, what) if checksum else self.cursor(address, size, what)
        cursor.expect(signature, version)
        return cursor, cursor.read(layout)

    def cursor(self, address: int | None, size: int, what: str) -> Cursor:
        """Read a block without a checksum; raises as `block`."""
        return Cursor(self, self.block(address, size, what), what)

    def checked(self, address: int | None, size: int, what: str) -> Cursor:
        """Read a block whose last four bytes are its checksum.

        Raises:
            CorruptError: the checksum does not match.
        """
        data = self.block(address, size, what)
        if size < 4 or lookup3(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise self.damaged(f"{what} does not have its checksum", address)
        return Cursor(self, data[:-4], what)

    def node(self, address: int | None, what: str) -> int:
        """Return the address of a node of a tree, which must not have been visited.

        Raises:
            CorruptError: it has: the tree contains itself, or two trees share a part.
        """
        if address is None or address in self._nodes:
            raise self.damaged(f"{what} is used twice" if address is not None else f"{what} is missing", address)
        self._nodes.add(address)
        return address

    def _superblock(self) -> int:
        """Read the superblock (II.A); return the address of the root group."""
        head = Cursor(self, self.source.read(0, 128), "the superblock")
        head.expect(MAGIC)
        version = head.number()
        if version > 3:
            raise UnsupportedError(f"an HDF5 file of version {version}")
        if version < 2:
            head.take(4)
        self.offset_size, self.length_size = head.read("BB")
        if not {self.offset_size, self.length_size} <= {2, 4, 8}:
            raise self.damaged("addresses have an unknown size")
        head.take(1 if version >= 2 else 13 if version else 9)
        *others, end = head.read("AAA")  # of the first byte, and of free space or an extension
        if version >= 2:
            (root,) = head.read("A")
            self.checked(0, head.position + 4, "the superblock")
        else:
            driver, _, root = head.read("AAA")  # the second is of the root group's name
            others.append(driver)
        if end is None or end > self.source.size:
            raise TruncatedError(
                "the file is shorter than its superblock says", expected=f"{end} bytes", found=f"{self.source.size}"
            )
        if any(address is not None and address >= self.source.size for address in others):
            raise self.damaged("an address in the superblock is not in the file")
        if root is None:
            raise self.damaged("there is no root group")
        return int(root)

    # Trees

    def tree(self, root: int | None, kind: int, key: int) -> Iterator[tuple[int | None, bytes]]:
        """Yield the children of the leaves of a B-tree of version 1 (III.A.1), each with the key before it.

        Args:
            root: address of the tree.
            kind: 0 for groups, 1 for chunks.
            key: size of a key, in bytes.
        """
        what = "a node of a B-tree"
        stack: list[tuple[int | None, int]] = [(root, -1)]
        while stack:
            address, wanted = stack.pop()
            place = self.node(address, what)
            _, (level, count, _, _) = self.record(place, what, b"TREE", "BHAA", version=kind, checksum=False)
            if wanted >= 0 and level != wanted:
                raise self.damaged(f"{what} is of another level", place)
            cursor = self.cursor(place + 8 + 2 * self.offset_size, count * (key + self.offset_size), what)
            children = []
            for _ in range(count):
                before = cursor.take(key)
                children.append((cursor.read("A")[0], before))
            if level:
                stack += [(child, level - 1) for child, _ in reversed(children)]
            else:
                yield from children

    def records(self, address: int | None, *kinds: int) -> Iterator[bytes]:
        """Yield the records of a B-tree of version 2 (III.A.2).

        Args:
            address: of the tree.
            *kinds: the types that it may have.
        """
        what = "a B-tree"
        _, (kind, size, record, depth, root, count, _) = self.record(address, what, b"BTHD", "BIHH2xAHL")
        if kind not in kinds:
            raise self.damaged(f"{what} is of another type", address)
        if not record or depth > 64:
            raise self.damaged(f"{what} has no records", address)
        if root is None or not count:
            return
        most = total = (size - 10) // record
        number = bytes_for(most)
        pointers = [0]
        totals = [0]
        for _ in range(depth):
            pointers.append(self.offset_size + number + totals[-1])
            here = (size - 10 - pointers[-1]) // (record + pointers[-1])
            total = (here + 1) * total + here
            totals.append(bytes_for(total))
        stack = [(root, count, depth)]
        while stack:
            place, count, level = stack.pop()
            pointer = pointers[level]
            length = count * record + ((count + 1) * pointer if level else 0)
            cursor, _ = self.record(self.node(place, what), what, b"BTIN" if level else b"BTLF", "x", length)
            found = [cursor.take(record) for _ in range(count)]
            for _ in range(count + 1 if level else 0):
                child, inner = cursor.read("A")[0], cursor.number(number)
                cursor.take(pointer - self.offset_size - number)
                if child is None:
                    raise self.damaged(f"{what} has no child", place)
                stack.append((child, inner, level - 1))
            yield from found

    # Heaps


class FractalHeap:
    """Reads objects of a fractal heap by their ids (III.G); blocks and tables are read once.

    Args:
        file: the file.
        address: of the heap, in bytes.
    """

    def __init__(self, file: Blocks, address: int | None) -> None:
        self._file, self._address = file, address
        _, (_, filters) = file.record(address, _HEAP, b"FRHP", "HH", checksum=False)
        if filters:
            raise UnsupportedError("a compressed heap")
        _, fields = file.record(address, _HEAP, b"FRHP", "HHBILALA8LHLLH2xAH")
        self._id_size, _, flags, most, _, self._huge, *_ = fields
        self._width, self._start, largest, bits, self._root, self._rows = fields[-6:]
        powers = all(each and not each & (each - 1) for each in (self._width, self._start, largest))
        if not powers or largest < self._start:
            raise file.damaged("a heap has an impossible table", address)
        self._has_checksums = bool(flags & 2)
        self._offset_bytes = (bits + 7) // 8
        self._size_bytes = min((largest.bit_length() + 6) // 8, bytes_for(most))
        self._direct_rows = largest.bit_length() - self._start.bit_length() + 2
        self._tables: dict[int, Cursor] = {}
        self._blocks: dict[int, bytes] = {}
        self._huge_objects: dict[int, bytes] = {}

    def __call__(self, found: bytes) -> bytes:
        """Return the object with an id."""
        cursor = Cursor(self._file, found[: self._id_size], "an object's id")
        first = cursor.number()
        kind = first >> 4
        if kind == 0:
            offset, size = cursor.number(self._offset_bytes), cursor.number(self._size_bytes)
            self._file.budget.spend(size)
            return self._managed(offset, size)
        if kind == 1:
            return self._huge_object(cursor)
        if kind == 2:
            size = first & 15
            if self._id_size > 17:
                size = size << 8 | cursor.number()
            return cursor.take(size + 1)
        raise self._file.damaged("an object's id is of another type", self._address)

    def _huge_object(self, cursor: Cursor) -> bytes:
        """Return an object with blocks of its own, found by its address or by a number in a tree."""
        file, entry = self._file, self._file.offset_size + self._file.length_size
        if self._id_size <= entry:
            if not self._huge_objects:
                found = file.records(self._huge, 1)
                self._huge_objects = {int.from_bytes(each[entry:], "little"): each for each in found}
            number = cursor.number(min(self._id_size - 1, file.length_size))
            if number not in self._huge_objects:
                raise self._missing()
            cursor = Cursor(file, self._huge_objects[number], _HEAP)
        address, size = cursor.read("AL")
        return file.block(address, size, _HEAP)

    def _managed(self, offset: int, size: int) -> bytes:
        """Return bytes at an offset of the heap: down the tables to the block that holds them."""
        file, first_row = self._file, self._start * self._width
        place, count = self._root, self._rows
        while count:
            row = (offset // first_row).bit_length()
            if place is None or row >= count:
                raise self._missing()
            block = self._start << max(row - 1, 0)
            column, offset = divmod(offset - (first_row << row - 1 if row else 0), block)
            if place not in self._tables:
                length = self._offset_bytes + count * self._width * file.offset_size
                self._tables[place], _ = file.record(place, _HEAP, b"FHIB", "A", length)
            table = self._tables[place]
            table.position = 5 + file.offset_size + self._offset_bytes + (row * self._width + column) * file.offset_size
            (place,) = table.read("A")
            file.budget.spend(STEPS_PER_ITEM)
            if row < self._direct_rows:
                return self._direct(place, block)[offset : offset + size]
            count = block.bit_length() - first_row.bit_length() + 1
            if count < 1:
                raise file.damaged("a heap has an impossible table", self._address)
        return self._direct(place, self._start)[offset : offset + size]

    def _direct(self, place: int | None, size: int) -> bytes:
        """Return a block of objects."""
        if place is None:
            raise self._missing()
        if place not in self._blocks:
            data = self._file.block(place, size, _HEAP)
            if data[:4] != b"FHDB":
                raise self._file.damaged(f"{_HEAP} has another signature", place)
            at = 5 + self._file.offset_size + self._offset_bytes
            checksum = int.from_bytes(data[at : at + 4], "little")
            if self._has_checksums and lookup3(data[:at] + bytes(4) + data[at + 4 :]) != checksum:
                raise self._file.damaged(f"{_HEAP} does not have its checksum", place)
            self._blocks[place] = data
        return self._blocks[place]

    def _missing(self) -> CorruptError:
        return self._file.damaged("an object is not in its heap", self._address)


def bytes_for(number: int) -> int:
    """Return how many bytes a number takes, at least one."""
    return max(1, (number.bit_length() + 7) // 8)


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
        _, (count, length) = self.record(address, what, b"", "xH4xI4x", version=1, checksum=False)
        blocks = [(address + 16, length)]
        for start, size in blocks:
            cursor = self.cursor(start, size, what)
            while count and cursor.left >= 8:
                kind, length, flags = cursor.read("HHB3x")
                count -= 1
                self._add(found, kind, flags, cursor.take(length), blocks)
        return found

    def _read_header(self, found: Header) -> None:
        """Read a header of version 2."""
        what = "an object's header"
        head = self.cursor(found.address, min(34, self.source.size - found.address), what)
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
            kind, length, own = cursor.read("BHB")
            cursor.take(ordered)
            self._add(found, kind, own, cursor.take(length), blocks)

    def _add(self, found: Header, kind: int, flags: int, data: bytes, blocks: list[tuple[int, int]]) -> None:
        self.budget.spend(STEPS_PER_ITEM)
        if kind == CONTINUATION:
            cursor = Cursor(self, data, "the continuation of an object's header")
            place, size = cursor.read("AL")
            if place is None or (place, size) in blocks:
                raise self.damaged("the continuation of an object's header is used twice", place)
            blocks.append((place, size))
        elif kind > _LAST_MESSAGE and flags & 0x80:
            raise UnsupportedError(f"an object has a message of the unknown type {kind}")
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
        version, where = cursor.read("BB")
        if version > 3 or (version == 3 and where != 2):
            raise UnsupportedError("messages shared in a heap")
        cursor.take(6 if version == 1 else 0)
        (address,) = cursor.read("A")
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
            heap, names = cursor.read("AA")
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
            return order, name, self._object(cursor.read("A")[0])
        return order, name, cursor.take(cursor.number(2)).decode("utf-8", "backslashreplace") if kind == 1 else None

    def _object(self, address: int | None) -> int:
        if address is None:
            raise self.damaged("a link has no target")
        return address

    def _symbols(self, data: bytes) -> Iterator[tuple[int, bytes, Link]]:
        """Yield the links of a group of the first version (III.A.1, III.B, III.D)."""
        tree, heap = Cursor(self, data, "a group").read("AA")
        _, (size, _, start) = self.record(heap, "a heap", b"HEAP", "3xLLA", checksum=False)
        names = self.block(start, size, "a heap")

        def name(offset: int) -> bytes:
            end = names.find(b"\0", offset)
            if end < 0:
                raise self.damaged("a name is not in its heap", start)
            self.budget.spend(end - offset)
            return names[offset:end]

        for leaf, _ in self.tree(tree, 0, self.length_size):
            address, what = self.node(leaf, "a group's node"), "a group's node"
            _, (count,) = self.record(address, what, b"SNOD", "xH", version=1, checksum=False)
            entry = 2 * self.offset_size + 24
            cursor = self.cursor(address + 8, count * entry, what)
            for _ in range(count):
                place, target, kind, path = cursor.read("AAI4xI12x")
                link = name(path).decode("utf-8", "backslashreplace") if kind == 2 else self._object(target)
                yield 0, name(self.undefined if place is None else place), link

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
            _, (length,) = self.record(address, what, b"GCOL", "3xL", version=1, checksum=False)
            end = min(address + length, self.source.size)
            step = 8 + self.length_size
            place, found = address + step, {}
            while place + step <= end:
                index, size = self.cursor(place, step, what).read("H6xL")
                if not index:
                    break
                found[index] = (place + step, size)
                place += step + -(-size // 8) * 8
            self._collections[address] = found
        return self._collections[address]

    def _variable(self, data: bytes) -> bytes:
        """Return a string in a global heap, from its length, the heap's address and its number there."""
        length, address, index = Cursor(self, data, "a string").read("IAI")
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
                raise UnsupportedError("attributes shared in a heap")
            yield self._attribute(data)
        for _, data in header.messages.get(ATTRIBUTE_INFO, []):
            cursor = Cursor(self, data, "an object's attributes")
            cursor.expect(b"", 0)
            cursor.take(2 if cursor.number() & 1 else 0)
            heap, names = cursor.read("AA")
            if heap is not None and names is not None:
                get = FractalHeap(self, heap)
                for record in self.records(names, 8):
                    if record[8] & 2:
                        raise UnsupportedError("attributes shared in a heap")
                    yield self._attribute(get(record[:8]))

    def _attribute(self, data: bytes) -> tuple[str, str | None]:
        """Parse an attribute message (IV.A.2.m)."""
        cursor = Cursor(self, data, "an attribute")
        version, flags, *sizes = cursor.read("BBHHH")
        if version not in (1, 2, 3):
            raise UnsupportedError("an attribute has an unknown version")
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
        version, rank, flags, kind = cursor.read("4B")
        if version not in (1, 2):
            raise UnsupportedError("a shape has an unknown version")
        if version == 2 and kind == 2:
            return None, ()
        cursor.take(4 if version == 1 else 0)
        extents = tuple(cursor.read(f"{rank}L"))
        unlimited = (1 << 8 * self.length_size) - 1
        most: tuple[int | None, ...] = extents
        if flags & 1:
            most = tuple(None if extent == unlimited else extent for extent in cursor.read(f"{rank}L"))
        return extents, most

    def kind(self, data: bytes) -> Kind:
        """Parse a type of elements (IV.A.2.d)."""
        cursor = Cursor(self, data, "a type")
        first, size = cursor.read("II")
        group, version, flags = first & 15, first >> 4 & 15, first >> 8
        order = "big" if flags & 1 else "little"
        if group in (0, 4):
            offset, precision = cursor.read("HH")
            signed = "i" if group == 0 and flags & 8 else "u"
            found = NUMPY_ELEMENTS.get(f"{signed}{size}") if not offset and precision == 8 * size else None
            return Kind(f"integers of {precision} bits", size, found, order)
        if group == 1:
            layout = (size, *cursor.read("HH4BI"), flags >> 8 & 255)
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
            names.append(cursor.text(8 if version < 3 else 1))
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
            name = cursor.text(8 if version < 3 else 1)
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


_FLOATS = {
    # Size, offset, precision, position and size of exponent and mantissa, bias, position of the sign: all in bits but
    # the first.
    (2, 0, 16, 10, 5, 0, 10, 15, 15): ELEMENT_TYPES["float16"],
    (2, 0, 16, 7, 8, 0, 7, 127, 15): ELEMENT_TYPES["bfloat16"],
    (4, 0, 32, 23, 8, 0, 23, 127, 31): ELEMENT_TYPES["float32"],
    (8, 0, 64, 52, 11, 0, 52, 1023, 63): ELEMENT_TYPES["float64"],
}
_TITLES = {2: "times", 5: "opaque data", 7: "references", 9: "sequences", 10: "arrays"}
