"""Elements of HDF5 data sets in chunks: where the chunks are, and what filters made of them.

A data set is read in segments, runs of its elements in the order of memory that whole chunks make up; each chunk is
inflated once when the elements are read in order, one that is too large for memory into a temporary file.

Source: HDF5 File Format Specification, version 3.0, IV.A.2.i (layouts), VII (indexes) and IV.A.2.l (filters); HDF5's
`H5Zscaleoffset.c`; LibLZF's format.
"""

from __future__ import annotations

import math
import tempfile
import zlib
from bisect import bisect_left
from functools import cached_property
from typing import IO, Any

from ...data import define, np
from ...errors import CorruptError, T7BridgeError, UnsupportedError
from ...io.source import ByteSource, DerivedSource
from ...limits import Inflation
from .structure import Blocks, Cursor, Structure

_SEGMENT_BYTES = 1 << 19
_NO_CHUNKS, _TREE, _SINGLE, _IMPLICIT, _FIXED, _EXTENSIBLE, _TREE_2 = range(-1, 6)
_PARAMETERS = {_SINGLE: 0, _IMPLICIT: 0, _FIXED: 1, _EXTENSIBLE: 5, _TREE_2: 6}
"""Bytes about an index in the layout, beside its address."""


@define(eq=False)
class Layout:
    """How the elements of a data set are stored.

    Attributes:
        kind: 0 in the header, 1 in one piece, 2 in chunks, 3 in other files.
        data: the elements, if they are in the header.
        address: of the elements, or of the index of the chunks; `None` if there are none.
        nbytes: of elements in one piece; -1 if the file does not say.
        chunk: extents of a chunk.
        index: how the chunks are found.
        whole_only: whether chunks that reach beyond the data set have no filters.
        numbers: what the index needs beside its address.
    """

    kind: int
    data: bytes = b""
    address: int | None = None
    nbytes: int = -1
    chunk: tuple[int, ...] = ()
    index: int = _NO_CHUNKS
    whole_only: bool = False
    numbers: tuple[int, ...] = ()


def parse_layout(file: Structure, data: bytes) -> Layout:
    """Parse a layout message (IV.A.2.i).

    Raises:
        UnsupportedError: the version is unknown.
        CorruptError: it is damaged.
    """
    cursor = Cursor(file, data, "a data set's layout")
    version = cursor.number()
    if version in (1, 2):
        rank, kind = cursor.read("BB5x")
        (address,) = cursor.read("A") if kind else (None,)
        extents = tuple(cursor.number(4) for _ in range(rank))
        if kind == 0:
            return Layout(0, data=cursor.take(cursor.number(4)))
        return Layout(kind, address=address, chunk=extents[: rank - 1] if kind == 2 else (), index=_TREE)
    if version not in (3, 4, 5):
        raise UnsupportedError(f"a data set's layout of version {version}")
    kind = cursor.number()
    if kind == 0:
        return Layout(0, data=cursor.take(cursor.number(2)))
    if kind == 1:
        address, nbytes = cursor.read("AL")
        return Layout(1, address=address, nbytes=nbytes)
    if kind != 2:
        return Layout(3)
    if version == 3:
        rank, address = cursor.read("BA")
        return Layout(2, address=address, chunk=tuple(cursor.number(4) for _ in range(rank - 1)), index=_TREE)
    flags, rank, width = cursor.read("BBB")
    chunk = tuple(cursor.number(width) for _ in range(rank))[:-1]
    index = cursor.number()
    numbers: tuple[int, ...] = (version,)
    if index == _SINGLE and flags & 2:
        numbers += tuple(cursor.read("LI"))
    elif index not in _PARAMETERS:
        raise UnsupportedError(f"an unknown index of chunks, {index}")
    cursor.take(_PARAMETERS[index])
    (address,) = cursor.read("A")
    return Layout(2, address=address, chunk=chunk, index=index, whole_only=bool(flags & 1), numbers=numbers)


class ChunkedSource(DerivedSource):
    """The elements of a data set that is not in one piece, in the byte order of the file.

    Args:
        file: the file.
        shape: of the data set.
        most: the extents that it may get, which number the chunks.
        itemsize: of an element, in bytes.
        layout: of its elements.
        filters: of its chunks.
        fill: bytes of the element that is where no chunk is; empty for zeros.
        inflation: limit for the file.
        path: of the data set, for errors.

    Raises:
        CorruptError: a chunk has another rank or no elements.
        LimitError: the data set, or a part of it, would grow too large.
    """

    def __init__(
        self,
        file: Structure,
        shape: tuple[int, ...],
        most: tuple[int | None, ...],
        itemsize: int,
        layout: Layout,
        filters: Filters,
        fill: bytes,
        inflation: Inflation,
        path: str,
    ) -> None:
        nbytes = math.prod(shape) * itemsize
        super().__init__(file.source.name, nbytes)
        if layout.kind != 2:
            shape, most, layout = (math.prod(shape),), (math.prod(shape),), Layout(2, chunk=(1,))
        if not shape or len(layout.chunk) != len(shape) or not all(layout.chunk):
            raise file.damaged("a data set's chunks have another rank or no elements", path=path)
        self._file = file
        self._shape = shape
        self._most = most
        self._itemsize = itemsize
        self._layout = layout
        self._filters = filters
        self._fill = fill if fill.strip(b"\0") else b""
        self._inflation = inflation
        self._path = path
        self._chunk_bytes = math.prod(layout.chunk) * itemsize
        self._grid = tuple(-(-extent // part) for extent, part in zip(shape, layout.chunk))
        # The first axis along which a chunk has several elements: a band is a row of chunks from there on.
        self._axis = next((axis for axis, part in enumerate(layout.chunk) if part > 1), len(shape) - 1)
        self._inner = math.prod(shape[self._axis + 1 :])
        self._per_band = math.prod(self._grid[self._axis + 1 :])
        band = min(layout.chunk[self._axis], shape[self._axis]) * self._inner * itemsize
        self._bands = max(1, _SEGMENT_BYTES // band)
        self._window: tuple[int, memoryview] = (0, memoryview(b""))
        expanding = max(1, len([number for number, _ in filters if number in EXPANDING]))
        at_once = max(band, self._chunk_bytes if layout.index != _NO_CHUNKS else 0)
        # A large chunk whose rows are rows of the data set is inflated into a temporary file.
        rows = tuple(layout.chunk[self._axis + 1 :]) == tuple(shape[self._axis + 1 :])
        bound = max(file.limits.inflate_bytes >> 3, 3 * file.source.size)
        numbers = [number for number, _ in filters]
        self._is_large = rows and numbers in ([DEFLATE], [SHUFFLE, DEFLATE]) and at_once > bound
        self._large: tuple[int, ByteSource, bool] | None = None
        """The last large chunk read: its place in the index, its bytes, and whether these are shuffled."""
        inflation.spend(nbytes * expanding, "data sets", path=path)
        if at_once > bound and not self._is_large:
            raise file.limits.exceeded(
                "inflate_bytes", "a chunk would grow too large when read", path=path, found=f"{at_once} bytes"
            )

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`."""
        done, wanted = 0, min(len(buffer), self.size - offset)
        while done < wanted:
            start, window = self._window
            if not start <= offset + done < start + len(window):
                start, window = self._window = self._segment(offset + done)
            part = window[offset + done - start :][: wanted - done]
            buffer[done : done + len(part)] = part
            done += len(part)
        return max(done, 0)

    def _start(self, band: int) -> int:
        """Return the first element of a band."""
        outer, inside = divmod(band, self._grid[self._axis])
        rows = min(inside * self._layout.chunk[self._axis], self._shape[self._axis])
        return (outer * self._shape[self._axis] + rows) * self._inner

    def _segment(self, offset: int) -> tuple[int, memoryview]:
        """Read the segment that has a byte; return the offset of its first byte, and its bytes."""
        outer, row = divmod(offset // self._itemsize // self._inner, self._shape[self._axis])
        band = outer * self._grid[self._axis] + row // self._layout.chunk[self._axis]
        first = band - band % self._bands
        last = min(first + self._bands, math.prod(self._grid[: self._axis + 1]))
        start, end = self._start(first), self._start(last)
        size = self._itemsize
        if self._layout.index == _NO_CHUNKS or self._layout.address is None:
            return start * size, memoryview(bytes(self._fill * (end - start) or (end - start) * size))
        if self._is_large:
            return self._part(offset, band)
        numbers, _ = self._chunks
        begin, stop = (bisect_left(numbers, each * self._per_band) for each in (first, last))
        if stop - begin == 1 and self._chunk_bytes == (end - start) * size and self._per_band == last - first == 1:
            return start * size, memoryview(self._decoded(begin))
        filled = bytearray(self._fill * (end - start) if self._fill else (end - start) * size)
        segment = np.frombuffer(filled, f"V{size}")
        for place in range(begin, stop):
            number = int(numbers[place])
            band = number // self._per_band
            at = self._start(band) - start
            target = segment[at : at + self._start(band + 1) - self._start(band)].reshape(
                -1, *self._shape[self._axis + 1 :]
            )
            chunk = np.frombuffer(self._decoded(place), f"V{size}").reshape(self._layout.chunk[self._axis :])
            corner = np.unravel_index(number % self._per_band, self._grid[self._axis + 1 :])
            inside = [slice(None)]
            for at_chunk, part, extent in zip(corner, self._layout.chunk[self._axis + 1 :], target.shape[1:]):
                inside.append(slice(at_chunk * part, min((at_chunk + 1) * part, extent)))
            hole = target[tuple(inside)]
            hole[...] = chunk[tuple(map(slice, hole.shape))]
        return start * size, memoryview(filled)

    def _part(self, offset: int, band: int) -> tuple[int, memoryview]:
        """Read the elements of a large chunk from that of a byte on; see `_segment`."""
        numbers, _ = self._chunks
        size, start, end = self._itemsize, self._start(band), self._start(band + 1)
        first = offset // size
        count = min(max(1, _SEGMENT_BYTES // size), end - first)
        place = int(bisect_left(numbers, band))
        if place == len(numbers) or numbers[place] != band:
            return first * size, memoryview((self._fill or bytes(size)) * count)
        if self._large is None or self._large[0] != place:
            self._large = (place, *self._inflated(place))
        _, source, shuffled = self._large
        if not shuffled:
            data = source.read_exact((first - start) * size, count * size, "a chunk")
        else:
            planes = range(first - start, self._chunk_bytes, self._chunk_bytes // size)
            data = b"".join(source.read_exact(plane, count, "a chunk") for plane in planes)
            data = _unshuffle(data, (), size, len(data))
        return first * size, memoryview(data)

    def _inflated(self, place: int) -> tuple[ByteSource, bool]:
        """Return the bytes of a large chunk, in a temporary file if they are deflated; and whether they are shuffled.

        Raises:
            CorruptError: it is damaged.
            T7BridgeError: the system has no room for the file.
        """
        address, length, filters = self._entry(place)
        source, applied = self._file.source.window(address, length), {number for number, _ in filters}
        if DEFLATE in applied:
            if self._large is not None and place < self._large[0]:  # each chunk has been charged once
                self._inflation.spend(self._chunk_bytes, "data sets", path=self._path)
            try:
                with tempfile.TemporaryFile() as file:
                    _inflate_into(file, source, self._chunk_bytes)
                    source, _ = ByteSource.open(file)
            except FilterErrors as error:
                raise self._fault(f"a chunk cannot be read: {error}", address) from error
            except OSError as error:
                reason = f"a large chunk needs a temporary file: {error.strerror}"
                raise T7BridgeError(reason, file=self.name, path=self._path) from error
        self._check_size(source.size, address)
        return source, SHUFFLE in applied

    def _entry(self, place: int) -> tuple[int, int, Filters]:
        """Return address and size of a chunk, and the filters that were applied to it."""
        numbers, places = self._chunks
        address, size, left_out = (int(each) for each in places[place])
        if self._layout.whole_only:
            corner = np.unravel_index(numbers[place], self._grid)
            if any((at + 1) * part > extent for at, part, extent in zip(corner, self._layout.chunk, self._shape)):
                return address, size, ()
        return address, size, tuple(each for bit, each in enumerate(self._filters) if not left_out >> bit & 1)

    def _decoded(self, place: int) -> bytes | memoryview:
        """Read a chunk and undo its filters."""
        address, size, filters = self._entry(place)
        data: bytes = self._file.source.read_exact(address, size, "a chunk")
        for number, values in reversed(filters):
            try:
                data = DECODERS[number](data, values, self._itemsize, self._chunk_bytes)
            except FilterErrors as error:
                raise self._fault(f"a chunk cannot be read: {error}", address) from error
        self._check_size(len(data), address)
        return memoryview(data)[: self._chunk_bytes]

    def _check_size(self, size: int, address: int) -> None:
        if size < self._chunk_bytes:
            raise self._fault("a chunk is too short", address, expected=f"{self._chunk_bytes} bytes", found=f"{size}")

    def _fault(self, message: str, address: int, **facts: str) -> CorruptError:
        return CorruptError(message, file=self.name, offset=address, path=self._path, **facts)

    # Indexes

    @cached_property
    def _chunks(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the chunks in the order of memory, ascending; and address, size and filters left out of each.

        Raises:
            CorruptError: it is damaged, or names a chunk twice.
            LimitError: the chunks reach so far beyond the data set that they would grow too large.
        """
        layout = self._layout
        if layout.index in (_TREE, _TREE_2):
            corners, places = self._tree() if layout.index == _TREE else self._second_tree()
        else:
            numbered = {_SINGLE: self._single, _IMPLICIT: self._implicit, _FIXED: self._fixed}
            counted, places = numbered.get(layout.index, self._extensible)()
            corners = self._corners(counted)
        inside = (corners < np.array(self._grid, "u8")).all(axis=1) & (places[:, 0] != self._file.undefined)
        corners, places = corners[inside].astype("i8"), places[inside]
        numbers = np.ravel_multi_index(tuple(corners.T), self._grid)
        order = np.argsort(numbers, kind="stable")
        numbers, places = numbers[order], places[order]
        if (numbers[1:] == numbers[:-1]).any():
            raise self._file.damaged("a data set has a chunk twice", path=self._path)
        self._inflation.spend(max(0, len(numbers) * self._chunk_bytes - self.size), "data sets", path=self._path)
        return numbers, places

    def _corners(self, counted: np.ndarray) -> np.ndarray:
        """Return the positions of chunks from their numbers, which count those that the data set may get."""
        parts = [
            1 if extent is None else max(1, -(-extent // part)) for extent, part in zip(self._most, self._layout.chunk)
        ]
        axes = list(range(len(parts)))
        if self._layout.index == _EXTENSIBLE:  # the axis that grows is the first
            growing = next((axis for axis, extent in enumerate(self._most) if extent is None), 0)
            axes.insert(0, axes.pop(growing))
        left = counted.astype("u8")
        corners = np.zeros((len(left), len(parts)), "u8")
        for place, axis in enumerate(axes):
            stride = np.uint64(min(math.prod(parts[other] for other in axes[place + 1 :]), 1 << 63))
            corners[:, axis], left = left // stride, left % stride
        return corners

    def _tree(self) -> tuple[Any, Any]:
        """Read a B-tree of version 1 (III.A.1)."""
        rank = len(self._shape)
        key = 8 + 8 * (rank + 1)
        found = bytearray()
        for child, before in self._file.tree(self._layout.address, 1, key):
            found += before + (self._file.undefined if child is None else child).to_bytes(8, "little")
        entries = np.frombuffer(
            bytes(found), [("size", "<u4"), ("mask", "<u4"), ("at", "<u8", rank + 1), ("place", "<u8")]
        )
        corners = entries["at"][:, :rank] // np.array(self._layout.chunk, "u8")
        return corners, np.stack([entries["place"], entries["size"], entries["mask"]], axis=1)

    def _second_tree(self) -> tuple[Any, Any]:
        """Read a B-tree of version 2 (III.A.2), of types 10 and 11."""
        rank = len(self._shape)
        records = list(self._file.records(self._layout.address, 10, 11))
        size = (len(records[0]) if records else 0) - 8 * rank
        places = self._entries(b"".join(record[:size] for record in records), size)
        corners = np.frombuffer(b"".join(record[size:] for record in records), "<u8").reshape(-1, rank)
        return corners, places

    def _entries(self, data: bytes, size: int) -> np.ndarray:
        """Parse entries of an index: an address; with filters, size and mask of the chunk."""
        offsets = self._file.offset_size
        if size < offsets or (size != offsets and not 5 <= size - offsets <= 12):
            raise self._file.damaged("an index of chunks has entries of another size", path=self._path)
        raw = np.frombuffer(data[: len(data) // size * size], "u1").reshape(-1, size)

        def column(start: int, width: int) -> np.ndarray:
            wide = np.zeros((len(raw), 8), "u1")
            wide[:, :width] = raw[:, start : start + width]
            return wide.view("<u8")[:, 0]

        if size == offsets:
            rest = [np.full(len(raw), self._chunk_bytes, "u8"), np.zeros(len(raw), "u8")]
        else:
            rest = [column(offsets, size - offsets - 4), column(size - 4, 4)]
        return np.stack([column(0, offsets), *rest], axis=1)

    def _single(self) -> tuple[Any, Any]:
        size, mask = self._layout.numbers[1:] or (self._chunk_bytes, 0)
        return np.zeros(1, "u8"), np.array([[self._layout.address, size, mask]], "u8")

    def _implicit(self) -> tuple[Any, Any]:
        parts = [-(-(extent or 0) // part) for extent, part in zip(self._most, self._layout.chunk)]
        count = math.prod(parts)
        address = self._layout.address or 0
        if address + count * self._chunk_bytes > self._file.source.size:
            raise self._file.damaged("a data set's chunks are not in the file", address, path=self._path)
        counted = np.arange(count, dtype="u8")
        places = np.uint64(address) + counted * np.uint64(self._chunk_bytes)
        return counted, np.stack([places, np.full(count, self._chunk_bytes, "u8"), np.zeros(count, "u8")], axis=1)

    def _fixed(self) -> tuple[Any, Any]:
        """Read a fixed array (VII.C)."""
        file, what = self._file, "an index of chunks"
        _, (size, bits, count, address) = file.record(self._layout.address, what, b"FAHD", "xBBLA")
        if address is None:
            return np.zeros(0, "u8"), np.zeros((0, 3), "u8")
        places = self._entries(self._paged(b"FADB", address, 0, count, size, 1 << bits, None), size)
        return np.arange(len(places), dtype="u8"), places

    def _paged(
        self, signature: bytes, address: int, prefix: int, count: int, size: int, page: int, bitmap: bytes | None
    ) -> bytes:
        """Read the elements of a data block, which are in pages if they are many.

        Args:
            signature: of the block.
            address: of the block.
            prefix: size of what is between the block's head and the elements or the bits.
            count: of the elements.
            size: of an element, in bytes.
            page: elements of a page.
            bitmap: which pages were written; `None` if the block has the bits itself.
        """
        file, what = self._file, "an index of chunks"
        missing = b"\xff" * size
        if count * size > file.source.size or page > 1 << 32:
            raise file.damaged(f"{what} is not in the file", address, path=self._path)
        file.budget.spend(count * size)
        if count <= page:
            return file.record(address, what, signature, f"xA{prefix}x", count * size)[0].rest
        pages = -(-count // page)
        own = -(-pages // 8) if bitmap is None else 0
        block, _ = file.record(address, what, signature, f"xA{prefix}x", own)
        bits = block.take(own) if bitmap is None else bitmap
        found, place = [], address + block.position + 4
        for number in range(pages):
            here = min(page, count - number * page)
            written = bits[number >> 3] & 128 >> (number & 7)
            found.append(file.checked(place, here * size + 4, what).rest if written else missing * here)
            place += page * size + 4
        return b"".join(found)

    def _extensible(self) -> tuple[Any, Any]:
        """Read an extensible array (VII.D): an index block, and blocks of doubling sizes behind it."""
        file, what = self._file, "an index of chunks"
        _, fields = file.record(self._layout.address, what, b"EAHD", "x6B6LA")
        size, most_bits, direct, least, pointers, page_bits, *_, address = fields
        if not all(each and not each & (each - 1) for each in (least, pointers)) or not size or most_bits > 64:
            raise file.damaged(f"{what} has impossible sizes", self._layout.address, path=self._path)
        supers = 1 + most_bits - (least.bit_length() - 1)
        first = 2 * (pointers.bit_length() - 1)
        blocks, many = 2 * (pointers - 1), max(0, supers - first)
        behind, page = -(-most_bits // 8), 1 << page_bits
        length = direct * size + (blocks + many) * file.offset_size
        block, _ = file.record(file.node(address, what), what, b"EAIB", "xA", length)
        found = [(0, block.take(direct * size))]
        addresses = block.read(f"{blocks + many}A")
        start = direct
        for level in range(supers):
            number, count = 1 << level // 2, least << (level + 1) // 2
            bitmaps = [b""] * number
            if level < first:
                places, addresses = addresses[:number], addresses[number:]
            elif addresses and (place := addresses.pop(0)) is not None:
                bits = -(-(count // page) // 8) if count > page else 0
                length = number * (bits + file.offset_size)
                inner, _ = file.record(file.node(place, what), what, b"EASB", f"xA{behind}x", length)
                bitmaps = [inner.take(bits) for _ in range(number)]
                places = [inner.read("A")[0] for _ in range(number)]
            else:
                places = []
            for nth, (at, bitmap) in enumerate(zip(places, bitmaps)):
                if at is not None:
                    data = self._paged(b"EADB", file.node(at, what), behind, count, size, page, bitmap)
                    found.append((start + nth * count, data))
            start += number * count
        counted = [np.arange(at, at + len(data) // size, dtype="u8") for at, data in found]
        return np.concatenate(counted), self._entries(b"".join(data for _, data in found), size)


def fill_value(file: Structure, new: bytes | None, old: bytes | None, size: int) -> bytes:
    """Return the bytes of the element that is where nothing was written; empty for zeros (IV.A.2.e, f)."""
    cursor = Cursor(file, new if new is not None else old or bytes(4), "a fill value")
    if new is not None:
        version = cursor.number()
        if version == 3:
            if not cursor.number() & 32:
                return b""
        else:
            cursor.take(2)
            if not cursor.number():
                return b""
    found = cursor.take(cursor.number(4))
    if found and len(found) != size:
        raise T7BridgeError("a fill value has another size than an element")
    return found


Filters = tuple[tuple[int, tuple[int, ...]], ...]
"""The number of each filter of a data set, and its parameters."""
DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALE_OFFSET, LZF = 1, 2, 3, 4, 5, 6, 32000
_TITLES = {SZIP: "szip", NBIT: "n-bit", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32015: "zstd"}
EXPANDING = {DEFLATE, SCALE_OFFSET, LZF}
FilterErrors = (ValueError, IndexError, zlib.error)
"""What decoders raise for damaged chunks."""


def parse_filters(file: Blocks, data: bytes) -> Filters:
    """Parse a filter pipeline (IV.A.2.l): the number of each filter, and its parameters.

    Raises:
        UnsupportedError: a filter is unknown, or there is one twice.
    """
    cursor = Cursor(file, data, "a data set's filters")
    version, count = cursor.read("BB")
    cursor.take(6 if version == 1 else 0)
    found: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(count):
        number = cursor.number(2)
        length = cursor.number(2) if version == 1 or number >= 256 else 0
        cursor.take(2)
        values = cursor.number(2)
        cursor.take(length + (-length % 8 if version == 1 else 0))
        found.append((number, tuple(cursor.number(4) for _ in range(values))))
        cursor.take(4 if version == 1 and values % 2 else 0)
        if number not in DECODERS:
            raise UnsupportedError(
                f"a data set is compressed by {_TITLES.get(number, f'filter {number}')}",
                hint="Repack it with gzip: h5repack -f GZIP=4.",
            )
    if len({number for number, _ in found}) < len(found):
        raise UnsupportedError("a data set has a filter twice")
    return tuple(found)


# Filters: each undoes one, from bytes, its parameters, the size of an element and that of a chunk.


def _inflate(data: bytes, values: tuple[int, ...], itemsize: int, nbytes: int) -> bytes:
    unpacker = zlib.decompressobj()
    most = nbytes + (nbytes >> 8) + 1024  # filters before this one may add a little
    found: bytes = unpacker.decompress(data, most)
    if not unpacker.eof and len(found) == most:
        raise ValueError("it has more elements than its size")
    if not unpacker.eof:
        raise ValueError("it is truncated")
    return found


def _inflate_into(file: IO[bytes], source: ByteSource, most: int) -> None:
    """Inflate a large chunk piece by piece."""
    unpacker, rest, taken = zlib.decompressobj(), b"", 0
    while not unpacker.eof:
        if not rest:
            rest = source.read(taken, _SEGMENT_BYTES >> 3)
            taken += len(rest)
        found = unpacker.decompress(rest, _SEGMENT_BYTES)
        if not (found or rest or unpacker.eof):
            raise ValueError("it is truncated")
        rest = unpacker.unconsumed_tail
        file.write(found)
        if file.tell() > most:
            raise ValueError("it has more elements than its size")
    file.flush()


def _unshuffle(data: bytes, values: tuple[int, ...], itemsize: int, nbytes: int) -> bytes:
    size = values[0] if values else itemsize
    count = len(data) // size if size else 0
    if count <= 1 or size == 1:
        return data
    whole: bytes = np.frombuffer(data, "u1", count * size).reshape(size, count).T.tobytes()
    return whole + data[count * size :] if len(data) > len(whole) else whole


def _check_fletcher32(data: bytes, values: tuple[int, ...], itemsize: int, nbytes: int) -> bytes:
    if len(data) < 4:
        raise ValueError("it has no checksum")
    body = data[:-4]
    first = second = 0
    step = 1 << 17
    for place in range(0, len(body), step):
        words = np.frombuffer(
            (body[place : place + step] + b"\0")[: (min(step, len(body) - place) + 1) // 2 * 2], ">u2"
        )
        words = words.astype("u8")
        weights = np.arange(len(words), 0, -1, dtype="u8")
        second = (second + len(words) * first + int((words * weights).sum())) % 65535
        first = (first + int(words.sum())) % 65535
    if (int.from_bytes(data[-4:-2], "little") % 65535, int.from_bytes(data[-2:], "little") % 65535) != (first, second):
        raise ValueError("it does not have its checksum")
    return body


def _decompress_lzf(data: bytes, values: tuple[int, ...], itemsize: int, nbytes: int) -> bytes:
    """Undo LibLZF's compression: runs of literals, and copies of what came before."""
    found = bytearray()
    place = 0
    while place < len(data):
        control = data[place]
        place += 1
        if control < 32:
            found += data[place : place + control + 1]
            place += control + 1
        else:
            length = control >> 5
            if length == 7:
                length += data[place]
                place += 1
            start = len(found) - ((control & 31) << 8 | data[place]) - 1
            place += 1
            length += 2
            if start < 0:
                raise ValueError("it copies what is not there")
            piece = bytes(found[start : start + length])
            found += (piece * (length // len(piece) + 1))[:length]
        if len(found) > nbytes + 1024:
            raise ValueError("it has more elements than its size")
    return bytes(found)


def _unpack(packed: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Return numbers of so many bits each, of which the first is the most significant."""
    number = np.zeros(count, "u8")
    step = 1 << 16
    weights = 1 << np.arange(bits, dtype="u8")[::-1]
    for first in range(0, count if bits else 0, step):
        here = min(step, count - first)
        start, end = first * bits, (first + here) * bits
        found = np.unpackbits(packed[start // 8 : -(-end // 8)])[start % 8 : start % 8 + here * bits]
        number[first : first + here] = (found.reshape(here, bits) * weights).sum(axis=1, dtype="u8")
    return number


def _unscale(data: bytes, values: tuple[int, ...], itemsize: int, nbytes: int) -> bytes:
    """Undo the scale-offset filter: integers of few bits above a minimum, or of decimal digits."""
    if len(values) < 8 or values[3] > 1 or values[4] != itemsize:
        raise ValueError("its filter has unknown parameters")
    scale, factor, count, is_float, size, signed, big, has_fill = values[:8]
    factor -= factor >> 31 << 32
    bits = int.from_bytes(data[:4], "little")
    minimum = data[5 : 5 + min(data[4], 8)].ljust(8, b"\0")
    order = ">" if big else "<"
    kind = np.dtype(f"{order}{'f' if is_float else 'i' if signed else 'u'}{size}")
    if bits > 8 * size or count * size != nbytes or (is_float and scale != 0) or len(data) < 21:
        raise ValueError("its filter has unknown parameters")
    if bits == 8 * size:
        return data[21 : 21 + nbytes]
    packed = np.frombuffer(data, "u1", offset=21)
    if len(packed) * 8 < count * bits:
        raise ValueError("it is too short")
    plain = f"<u{size}"
    number = _unpack(packed, count, bits).astype(plain)
    filled = number == (1 << bits) - 1 if has_fill and bits else np.zeros(count, bool)
    if is_float:
        least = np.frombuffer(minimum[:size], f"<f{size}")[0]
        result = (number.view(f"<i{size}").astype(least.dtype) / least.dtype.type(10.0**factor) + least).astype(kind)
    else:
        least = np.frombuffer(minimum, "<u8")[0].astype(plain)
        result = (number + least).view(f"<{kind.kind}{size}").astype(kind)
    if has_fill:
        fill = b"".join(value.to_bytes(4, "little") for value in values[8:])[:size].ljust(size, b"\0")
        result[filled] = np.frombuffer(fill, kind.newbyteorder("<"))[0]
    return bytes(result.tobytes())


DECODERS = {
    DEFLATE: _inflate,
    SHUFFLE: _unshuffle,
    FLETCHER32: _check_fletcher32,
    LZF: _decompress_lzf,
    SCALE_OFFSET: _unscale,
}
