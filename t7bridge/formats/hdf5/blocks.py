"""Blocks of metadata in HDF5 files: the superblock, B-trees and fractal heaps, and the fields in them.

Every byte that is read is charged to one budget of the file, every node of a tree is visited once, and nothing is
recursive, so that the work is in proportion to the file whatever it says.

Source: HDF5 File Format Specification, version 3.0; sections are named below. Checksums are Jenkins' lookup3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from ...errors import CorruptError, TruncatedError, UnsupportedError
from ...io.source import ByteSource
from ...limits import Budget, Limits

MAGIC = b"\x89HDF\r\n\x1a\n"
STEPS_PER_ITEM = 16
"""Steps of the budget for a message or a link, beside its bytes."""


def lookup3(data: bytes) -> int:
    """Return the checksum of HDF5's metadata: Jenkins' `hashlittle` with the initial value 0."""
    size, mask = len(data), 0xFFFFFFFF
    a = b = c = (0xDEADBEEF + size) & mask
    words: tuple[int, ...] = struct.unpack(f"<{-(-size // 12) * 3}I", data + bytes(-size % 12))
    for place in range(0, len(words) - 3, 3):
        a, b, c = (a + words[place]) & mask, (b + words[place + 1]) & mask, (c + words[place + 2]) & mask
        a = (a - c ^ (c << 4 | c >> 28)) & mask
        c = (c + b) & mask
        b = (b - a ^ (a << 6 | a >> 26)) & mask
        a = (a + c) & mask
        c = (c - b ^ (b << 8 | b >> 24)) & mask
        b = (b + a) & mask
        a = (a - c ^ (c << 16 | c >> 16)) & mask
        c = (c + b) & mask
        b = (b - a ^ (a << 19 | a >> 13)) & mask
        a = (a + c) & mask
        c = (c - b ^ (b << 4 | b >> 28)) & mask
        b = (b + a) & mask
    if not words:
        return c
    a, b, c = (a + words[-3]) & mask, (b + words[-2]) & mask, (c + words[-1]) & mask
    c = (c ^ b) - (b << 14 | b >> 18) & mask
    a = (a ^ c) - (c << 11 | c >> 21) & mask
    b = (b ^ a) - (a << 25 | a >> 7) & mask
    c = (c ^ b) - (b << 16 | b >> 16) & mask
    a = (a ^ c) - (c << 4 | c >> 28) & mask
    b = (b ^ a) - (a << 14 | a >> 18) & mask
    return (c ^ b) - (b << 24 | b >> 8) & mask


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

    def address(self) -> int | None:
        """Return the next address; `None` if it is undefined."""
        found = self.take(self._file.offset_size)
        return None if found.count(0xFF) == len(found) else int.from_bytes(found, "little")

    def length(self) -> int:
        """Return the next length."""
        return self.number(self._file.length_size)

    def text(self) -> bytes:
        """Return the bytes up to the next zero byte, and skip that."""
        end = self._data.find(b"\0", self.position)
        found = self.take(max(end, self.position) - self.position)
        self.take(1)
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
            raise UnsupportedError(f"{self._what} has an unknown version", file=self._file.source.name)

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
        self.budget = Budget(limits, "reading the groups of an HDF5 file", free=4 * source.size)
        self.offset_size = self.length_size = 8
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
            raise UnsupportedError(f"an HDF5 file of version {version}", file=self.source.name)
        if version < 2:
            head.take(4)
        self.offset_size, self.length_size = head.number(), head.number()
        if not {self.offset_size, self.length_size} <= {2, 4, 8}:
            raise self.damaged("addresses have an unknown size")
        head.take(1 if version >= 2 else 13 if version else 9)
        others = [head.address(), head.address()]  # of the first byte, and of free space or an extension
        end = head.address()
        if version >= 2:
            root = head.address()
            self.checked(0, head.position + 4, "the superblock")
        else:
            others.append(head.address())  # of a driver's data
            head.address()  # of the root group's name
            root = head.address()
        if end is None or end > self.source.size:
            raise TruncatedError("the file is shorter than its superblock says", file=self.source.name,
                                 expected=f"{end} bytes", found=f"{self.source.size}")  # fmt: skip
        if any(address is not None and address >= self.source.size for address in others):
            raise self.damaged("an address in the superblock is not in the file")
        if root is None:
            raise self.damaged("there is no root group")
        return root

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
            cursor = Cursor(self, self.block(place, 8 + 2 * self.offset_size, what), what)
            cursor.expect(b"TREE", kind)
            level, count = cursor.number(), cursor.number(2)
            if wanted >= 0 and level != wanted:
                raise self.damaged(f"{what} is of another level", place)
            data = self.block(place + 8 + 2 * self.offset_size, count * (key + self.offset_size), what)
            cursor = Cursor(self, data, what)
            children = []
            for _ in range(count):
                before = cursor.take(key)
                children.append((cursor.address(), before))
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
        head = self.checked(address, 22 + self.offset_size + self.length_size, what)
        head.expect(b"BTHD", 0)
        if head.number() not in kinds:
            raise self.damaged(f"{what} is of another type", address)
        size, record, depth = head.number(4), head.number(2), head.number(2)
        head.take(2)
        root, count = head.address(), head.number(2)
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
            length = 10 + count * record + ((count + 1) * pointer if level else 0)
            cursor = self.checked(self.node(place, what), length, what)
            cursor.expect(b"BTIN" if level else b"BTLF", 0)
            cursor.take(1)
            found = [cursor.take(record) for _ in range(count)]
            for _ in range(count + 1 if level else 0):
                child, inner = cursor.address(), cursor.number(number)
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
        lengths, offsets = file.length_size, file.offset_size
        head = Cursor(file, file.block(address, 22 + 12 * lengths + 3 * offsets, _HEAP), _HEAP)
        head.expect(b"FRHP", 0)
        self._id_size, filters, flags, most = head.number(2), head.number(2), head.number(), head.number(4)
        if filters:
            raise UnsupportedError("a compressed heap", file=file.source.name)
        file.checked(address, 26 + 12 * lengths + 3 * offsets, _HEAP)
        head.length()
        self._huge = head.address()
        head.take(offsets + 8 * lengths + lengths)
        self._width, self._start, largest = head.number(2), head.length(), head.length()
        bits = head.number(2)
        head.take(2)
        self._root, self._rows = head.address(), head.number(2)
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
        if self._id_size > entry:
            return file.block(cursor.address(), cursor.length(), _HEAP)
        if not self._huge_objects:
            found = file.records(self._huge, 1)
            self._huge_objects = {int.from_bytes(each[entry:], "little"): each for each in found}
        number = cursor.number(min(self._id_size - 1, file.length_size))
        if number not in self._huge_objects:
            raise self._missing()
        record = Cursor(file, self._huge_objects[number], _HEAP)
        return file.block(record.address(), record.length(), _HEAP)

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
                length = 9 + file.offset_size + self._offset_bytes + count * self._width * file.offset_size
                self._tables[place] = file.checked(place, length, _HEAP)
                self._tables[place].expect(b"FHIB", 0)
            table = self._tables[place]
            table.position = 5 + file.offset_size + self._offset_bytes + (row * self._width + column) * file.offset_size
            place = table.address()
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
