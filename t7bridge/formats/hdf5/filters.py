"""Filters of chunks in HDF5 files: compression, shuffled bytes and checksums.

Source: HDF5 File Format Specification, version 3.0, IV.A.2.l; HDF5's `H5Zscaleoffset.c`; LibLZF's format.
"""

from __future__ import annotations

import zlib

from ...errors import UnsupportedError
from ...lazy import np
from .blocks import Blocks, Cursor

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
    version, count = cursor.number(), cursor.number()
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
            raise UnsupportedError(f"a data set is compressed by {_TITLES.get(number, f'filter {number}')}",
                                   file=file.source.name, hint="Repack it with gzip: h5repack -f GZIP=4.")  # fmt: skip
    if len({number for number, _ in found}) < len(found):
        raise UnsupportedError("a data set has a filter twice", file=file.source.name)
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
    DEFLATE: _inflate, SHUFFLE: _unshuffle, FLETCHER32: _check_fletcher32, LZF: _decompress_lzf, SCALE_OFFSET: _unscale
}  # fmt: skip
