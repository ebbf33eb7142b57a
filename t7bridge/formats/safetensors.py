"""safetensors files, read and written without loading a tensor; the safetensors library is used only to verify.

The format: the length of a JSON header as an 8-byte little-endian integer, the header, then the tensors' elements,
little-endian and row by row, without gaps. `__metadata__` in the header maps names to strings; ours has an entry
`t7bridge` if tensors share memory. Source: safetensors' README, "Format".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import CorruptError, TruncatedError, UnsupportedError, WriteError
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.tensor import Tensor
from ..io.output import Output
from ..io.source import ByteSource, Readable
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Note
from .named import (
    METADATA_KEY,
    Name,
    NamedTensors,
    compared,
    content,
    dotted,
    format_views,
    parse_views,
    tensor_of_bytes,
    tie,
    write_order,
)
from .table import Document, Written

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
"""Element type → safetensors' name of it."""
_ELEMENTS = {name: ELEMENT_TYPES[element] for element, name in DTYPES.items()}
_LENGTH_BYTES = 8
"""Size of the length of the header, at the beginning of the file."""
_MOST_HEADER_BYTES = 100_000_000
"""Maximum size of a header that the format's own library reads."""
_METADATA = "__metadata__"


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a safetensors file.

    Args:
        source: a path, bytes, or a binary file object.
        limits: resource limits.

    Raises:
        FormatError: it is damaged.
        UnsupportedError: it has elements of a type unique to it, smaller than a byte.
    """
    opened, _ = ByteSource.open(source)
    header, start = _read_header(opened, limits)
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise CorruptError("the metadata are not strings", offset=_LENGTH_BYTES, path=_METADATA)
    tensors = _tensors(opened, start, header, limits)
    # Our entry says which tensors share memory: it is no metadata of the user.
    views = parse_views(metadata.pop(METADATA_KEY)) if METADATA_KEY in metadata else {}
    notes: list[Note] = []  # receives from `tie` which tensors no longer share memory
    return Document("safetensors", opened, lambda: [tie(tensors, views, notes)], metadata=metadata, notes=notes)


def _read_header(source: ByteSource, limits: Limits) -> tuple[dict[str, Any], int]:
    """Return the header and the offset of the first byte after it.

    The header has for each name of a tensor its entry, and under `_METADATA` the strings; none of them is checked.

    Raises:
        CorruptError: the header is not a JSON object, or has a name twice.
        LimitError: it is too long.
        TruncatedError: the file ends inside it.
    """
    length = int.from_bytes(source.read_exact(0, _LENGTH_BYTES, "the length of the header"), "little")
    if length > limits.header_bytes:
        raise limits.exceeded("header_bytes", "the header is too long", offset=0, found=f"{length} bytes")
    text = source.read_exact(_LENGTH_BYTES, length, "the header")
    try:
        header = json.loads(text, object_pairs_hook=_unique)
        if not isinstance(header, dict):
            raise ValueError("is not an object")
    except (ValueError, RecursionError) as error:
        raise CorruptError("the header is not a JSON object", offset=_LENGTH_BYTES, found=str(error)) from error
    return header, _LENGTH_BYTES + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, whose names must differ: readers disagree about which of two counts."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _tensors(source: ByteSource, start: int, entries: Mapping[str, Any], limits: Limits) -> dict[str, Tensor]:
    """Return the tensors of the header, whose bytes make up the rest of the file.

    Args:
        source: the file.
        start: offset of the first byte after the header.
        entries: what the header says about each, by name.
        limits: resource limits.

    Raises:
        FormatError: an entry is invalid, or the bytes are not just those of the tensors.
        UnsupportedError: there is no such element type here.
    """
    tensors: dict[str, Tensor] = {}
    ranges: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        tensor, begin, end = _tensor(source, start, name, entry, limits)
        tensors[name] = tensor
        ranges.append((begin, end, name))
    _check_ranges(source, start, ranges)
    return tensors


def _tensor(source: ByteSource, start: int, name: str, entry: Any, limits: Limits) -> tuple[Tensor, int, int]:
    """Return a tensor of the header, and the start and end of its bytes, counted from the end of the header.

    Args:
        source: the file.
        start: offset of the first byte after the header.
        name: of the tensor.
        entry: what the header says about it.
        limits: resource limits.

    Raises:
        CorruptError: the entry is invalid.
        UnsupportedError: there is no such element type here.
    """
    if not _is_entry(entry):
        raise CorruptError("the header's entry is not a tensor", offset=_LENGTH_BYTES, path=name)
    dtype = entry["dtype"]
    element = _ELEMENTS.get(dtype) if isinstance(dtype, str) else None
    if element is None:
        text = f"unknown element type {str(dtype)[:40]}"
        raise UnsupportedError(text, offset=_LENGTH_BYTES, path=name, expected=", ".join(_ELEMENTS))
    shape = entry["shape"]
    begin, end = entry["data_offsets"]
    # It refuses a range that is reversed, or not as long as the shape says; `_check_ranges` one outside of the file.
    tensor = tensor_of_bytes(source, start + begin, end - begin, element, shape, path=name, limits=limits)
    return tensor, begin, end


def _is_entry(entry: Any) -> bool:
    """Return whether a value of the header has a `dtype`, of any type, a `shape`, and two `data_offsets`."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        return False
    shape = entry["shape"]
    offsets = entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        return False
    # The sum of two such numbers, as of an offset and the start, fits into 64 bits.
    return all(type(number) is int and 0 <= number < 1 << 62 for number in (*shape, *offsets))


def _check_ranges(source: ByteSource, start: int, ranges: list[tuple[int, int, str]]) -> None:
    """Refuse a file with bytes that belong to no tensor, or to two.

    Args:
        source: the file.
        start: offset of the first byte after the header.
        ranges: of each tensor the start and end of its bytes, counted from there, and its name.

    Raises:
        CorruptError: some bytes belong to no tensor, or to two.
        TruncatedError: the file ends before the last tensor does.
    """
    position = 0
    for begin, end, name in sorted(ranges):
        if begin != position:
            what = "tensors overlap" if begin < position else "there are bytes between tensors"
            raise CorruptError(what, offset=start + begin, path=name)
        position = end
    if start + position > source.size:
        raise TruncatedError(
            "the file ends inside the tensors",
            offset=source.size,
            expected=f"{start + position} bytes",
            found=f"{source.size}",
        )
    if start + position < source.size:
        raise CorruptError("there are bytes after the last tensor", offset=start + position)


def write(output: Output, value: NamedTensors | Mapping[str, Tensor]) -> Written:
    """Write tensors as a safetensors file: wide elements first, as the library does, then by name.

    Args:
        output: an empty file.
        value: the tensors: by name, or with metadata as `NamedTensors`.

    Raises:
        ModelError: two names would be one.
        UnsupportedError: safetensors has no such elements, or reserves a name.
        WriteError: there are too many names, or the disk reports an error.
    """
    named = NamedTensors.of(value)
    for name, tensor in dotted(named.tensors).items():
        if tensor.element.name not in DTYPES:
            raise UnsupportedError(f"safetensors has no elements of type {tensor.element.name}", path=name)
        if name == _METADATA:
            raise UnsupportedError("safetensors reserves this name", path=name)
    order = write_order(named)
    text = _header(named, order)
    if len(text) > _MOST_HEADER_BYTES:
        expected = f"at most {_MOST_HEADER_BYTES} in a safetensors file"
        raise WriteError(f"the names take {len(text)} bytes", expected=expected)
    output.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    for steps in order:
        output.append(content(named.tensors[steps]))
    output.flush()
    return Written(len(order), named.storages)


def _header(named: NamedTensors, order: list[Name]) -> bytes:
    """Return the header of a file with tensors in an order: JSON, padded with spaces.

    Args:
        named: the tensors and their metadata.
        order: the steps of each tensor's path, in the order of their elements in the file.
    """
    # transformers reads only files that name the library of their tensors. The user's own entry of this name counts.
    metadata = {"format": "pt", **dict(sorted(named.metadata.items()))}
    if named.views:
        metadata[METADATA_KEY] = format_views({".".join(steps): view for steps, view in named.views.items()})
    header: dict[str, Any] = {_METADATA: metadata}
    position = 0
    for steps in order:
        tensor = named.tensors[steps]
        end = position + tensor.numel * tensor.element.itemsize
        header[".".join(steps)] = {
            "dtype": DTYPES[tensor.element.name],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    # A name with a lone surrogate, which UTF-8 cannot encode, is written with an escape of JSON.
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")
    return text + b" " * (-len(text) % 8)  # the library aligns the tensors to 8 bytes, too


def differences(path: str, named: NamedTensors) -> list[str]:
    """Read a file with the safetensors library, and return how it differs from the expected tensors.

    Args:
        path: of the file.
        named: the tensors that were written to it.

    Returns:
        A line for each difference.

    Raises:
        UnsupportedError: the library is not installed.
    """
    try:
        import safetensors
    except ImportError as error:
        raise UnsupportedError(
            "safetensors is not installed; --verify needs it", hint="pip install safetensors"
        ) from error
    library: Any = safetensors  # partly untyped
    with open(path, "rb") as file:
        entries = dict(library.deserialize(file.read()))  # by name: type, shape and bytes

    def described(entry: Any) -> tuple[Any, Any, bytes]:
        """Return type, shape and bytes of an entry, for `compared`."""
        return entry["dtype"], entry["shape"], bytes(entry["data"])

    return compared(dotted(named.tensors), entries, described, lambda tensor: DTYPES[tensor.element.name])
