"""numpy's `.npz` archives, read and written without loading an array and without numpy. Pickles in them are not read.

A `.npz` is a zip archive with a `.npy` file for each array. Such a file is `\\x93NUMPY`, two bytes of version, the
length of the header (2 bytes, from version 2 on 4), the header, which is a Python literal of a dict of `descr`,
`fortran_order` and `shape`, then the elements. Source: numpy's `numpy/lib/format.py`, module docstring.

Sharing of memory and strings are in the archive's comment, which numpy ignores: `t7bridge`, and deflated JSON.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from ..data import np
from ..errors import CorruptError, UnsupportedError
from ..graph.dtypes import NUMPY_ELEMENTS, ElementType
from ..graph.tensor import Tensor
from ..io.output import Output
from ..io.source import ByteSource, Readable
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Note
from .named import (
    NamedTensors,
    compared,
    content,
    dotted,
    format_views,
    numpy_kind,
    of_numpy,
    parse_views,
    tensor_of_bytes,
    tie,
    write_order,
)
from .pt.arrays import MAGIC, read_header
from .pt.zip import ZipArchive, ZipWriter
from .table import Document, Written

_ALIGNMENT = 64
"""Bytes to a multiple of which numpy pads headers."""
_LONGEST_NAME = 0xFFFF - len(".npy")
"""Maximum length of an array's name, in bytes: a zip archive has its length in 16 bits."""
_COMMENT_START = b"t7bridge"
_LONGEST_COMMENT = 0xFFFF
"""Maximum length of a zip archive's comment, in bytes."""


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a `.npz` archive; its arrays are read when the document's values are asked for.

    Arrays of objects, text, dates and records are then left out, each with a note.

    Args:
        source: a path, bytes, or a binary file object.
        limits: resource limits.

    Raises:
        FormatError: it is damaged.
    """
    opened, _ = ByteSource.open(source)
    archive = ZipArchive(opened, limits, exact_case=True)
    metadata, views = _read_comment(archive, limits)
    notes: list[Note] = []

    def load() -> list[dict[str, Tensor]]:
        """Return the only value of the file: its arrays, those that shared memory on one storage again."""
        tensors = _arrays(archive, limits, notes)
        return [tie(tensors, views, notes)]

    return Document("npz", opened, load, content=lambda: archive, metadata=metadata, notes=notes)


def _arrays(archive: ZipArchive, limits: Limits, notes: list[Note]) -> dict[str, Tensor]:
    """Return the arrays by name: their headers are read now, their elements on demand.

    Args:
        archive: the archive.
        limits: resource limits.
        notes: receives what is left out.

    Raises:
        CorruptError: two have one name.
    """
    tensors: dict[str, Tensor] = {}
    for member in archive.members:
        name = member.removesuffix(".npy")
        if name == member:
            text = "a member that is not an array is left out"
            notes.append(Note("warning", path=name, message=text, code="left-out"))
        elif name in tensors:
            raise CorruptError("two arrays have one name", path=name)
        else:
            tensor = _array(archive, member, name, limits, notes)
            if tensor is not None:
                tensors[name] = tensor
    return tensors


def _array(archive: ZipArchive, member: str, name: str, limits: Limits, notes: list[Note]) -> Tensor | None:
    """Return the array of a member as a tensor; `None`, with a note, if tensors cannot have such elements.

    Args:
        archive: the archive.
        member: name of the member.
        name: of the array: the same without its suffix.
        limits: resource limits.
        notes: receives the note.
    """
    source, start = archive.span(member)
    end = start + archive.members[member].size
    descr, is_fortran, shape, elements_start = read_header(source, start, end, name)
    nbytes = end - elements_start
    element, order = _element_and_order(descr)
    if element is None:
        kind = "of Python objects, which are pickled" if "O" in str(descr) else f"with elements {descr!s:.40}"
        text = f"an array {kind}, is left out"
        notes.append(Note("warning", path=name, message=text, loss="type", code="left-out"))
        return None
    return tensor_of_bytes(
        source, elements_start, nbytes, element, shape, path=name, limits=limits, order=order, by_columns=is_fortran
    )


def _element_and_order(descr: Any) -> tuple[ElementType | None, str]:
    """Return element type and byte order of an array.

    Args:
        descr: of its header: `<f4`, or anything else for records.

    Returns:
        The type, `None` if tensors cannot have such elements; and `little` or `big`.
    """
    if not isinstance(descr, str):  # fields of a record
        return None, "little"
    sign, code = descr[:1], descr[1:]
    if sign not in _BYTE_ORDERS:
        return None, "little"
    return NUMPY_ELEMENTS.get(code), _BYTE_ORDERS[sign]


_BYTE_ORDERS = {"<": "little", ">": "big", "|": "little", "=": "little"}
"""By the sign before a code of numpy. `|` is for single bytes. numpy never writes `=`, the order of a machine."""


def _read_comment(archive: ZipArchive, limits: Limits) -> tuple[dict[str, str], dict[str, Any]]:
    """Return what our writer puts into the comment of an archive; nothing if another program wrote the comment.

    Returns:
        The strings by name; and by the names of tensors that share memory their views of a storage.

    Raises:
        CorruptError: it is ours, and damaged.
        LimitError: it is too long.
    """
    comment = archive.comment
    if not comment.startswith(_COMMENT_START):
        return {}, {}
    try:
        unpacker = zlib.decompressobj()
        most_bytes = max(limits.header_bytes, 1)  # 0 would mean no maximum to zlib
        text = unpacker.decompress(comment[len(_COMMENT_START) :], most_bytes)
        if unpacker.unconsumed_tail:  # it would become more
            raise limits.exceeded("header_bytes", "the metadata in the comment are too long")
        data = json.loads(text)
        metadata = data["metadata"]
        if not all(isinstance(item, str) for item in metadata.values()):
            raise ValueError("is not metadata")
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError("the metadata in the comment cannot be read", found=str(error)) from error
    return metadata, parse_views(text)


def write(output: Output, value: NamedTensors | Mapping[str, Tensor]) -> Written:
    """Write tensors as an uncompressed `.npz`, each array's elements aligned to 64 bytes.

    Args:
        output: an empty file.
        value: the tensors: by name, or with metadata as `NamedTensors`.

    Raises:
        ModelError: two names would be one.
        UnsupportedError: numpy has no such elements, or a name is too long.
        WriteError: the disk reports an error.
    """
    named = NamedTensors.of(value)
    dotted(named.tensors)  # refuses names that would be one
    writer = ZipWriter(output)
    # Each array is written whole, also where it shares memory with others, and is read in any order. But those of one
    # storage (`views`) come one after another, so that reading the storage that `tie` makes of them goes forward.
    order = write_order(named) if named.views else list(named.tensors)
    for steps in order:
        tensor = named.tensors[steps]
        name = ".".join(steps)
        _check_array(tensor, name)
        writer.add(f"{name}.npy", content(tensor), tensor.numel * tensor.element.itemsize, _npy_header(tensor))
    comment, without_room = _comment(named)
    writer.finish(comment)
    output.flush()
    return Written(len(order), named.storages, without_room)


def _check_array(tensor: Tensor, name: str) -> None:
    """Refuse a tensor that no array of an archive can be.

    Raises:
        UnsupportedError: numpy has no such elements, or the name is too long.
    """
    if not tensor.element.native:
        raise UnsupportedError(f"numpy has no elements of type {tensor.element.name}", path=name)
    if len(name.encode("utf-8", "backslashreplace")) > _LONGEST_NAME:
        raise UnsupportedError(f"a zip archive has names of at most {_LONGEST_NAME} bytes", path=name)


def _npy_header(tensor: Tensor) -> bytes:
    """Return the header of an array, as numpy writes it: padded by spaces to a multiple of 64 bytes."""
    byte_order = "|" if tensor.element.itemsize == 1 else "<"
    descr = f"{byte_order}{tensor.element.code}"
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {tuple(tensor.shape)!r}, }}".encode()
    # Before the text are the signature, two bytes of version and two of length; after it a line feed.
    length = len(MAGIC) + 2 + 2 + len(text) + 1
    text += b" " * (-length % _ALIGNMENT) + b"\n"
    version = b"\x01\x00"
    return MAGIC + version + len(text).to_bytes(2, "little") + text


def left_out(named: NamedTensors) -> tuple[str, ...]:
    """Return the names of the texts for which the metadata of a file have no room."""
    _bytes, names = _comment(named)
    return names


def _comment(named: NamedTensors) -> tuple[bytes, tuple[str, ...]]:
    """Return the archive's comment: shared memory and strings; and the names of strings for which there is no room.

    The largest strings are left out first, an eighth of them at a time; then the views of shared memory, without which
    the arrays are read as copies.
    """
    if not named.metadata and not named.views:
        return b"", ()
    views = json.loads(format_views({".".join(steps): view for steps, view in named.views.items()}))
    metadata = dict(named.metadata)
    left_out: list[str] = []
    names_by_size = sorted(metadata, key=lambda name: (len(metadata[name]), name))
    comment = _packed_comment(metadata, views)
    while len(comment) > _LONGEST_COMMENT and metadata:
        # An eighth at once: packing the text again for each of very many strings would take long.
        for _ in range(max(1, len(names_by_size) // 8)):
            name = names_by_size.pop()
            left_out.append(name)
            del metadata[name]
        comment = _packed_comment(metadata, views)
    if len(comment) > _LONGEST_COMMENT:
        no_views = json.loads(format_views({}))
        comment = _packed_comment({}, no_views)
    return comment, tuple(left_out)


def _packed_comment(metadata: Mapping[str, str], views: Mapping[str, Any]) -> bytes:
    """Return the archive's comment for some strings, and for views as `format_views` has them."""
    text = json.dumps({"metadata": metadata, **views}, separators=(",", ":"))
    return _COMMENT_START + zlib.compress(text.encode("utf-8", "backslashreplace"), 9)


def differences(path: str, named: NamedTensors) -> list[str]:
    """Read a file with numpy, and return how it differs from the expected tensors, a line for each difference."""
    with np.load(path, allow_pickle=False) as file:
        return compared(dotted(named.tensors), file, of_numpy, numpy_kind)
