"""Whole files: which format a path holds or should hold, and everything that a `.t7` file holds."""

from __future__ import annotations

import os

from attrs import field

from ...data import define
from ...errors import CorruptError, FormatError, UnknownFormatError, UnsupportedError
from ...graph.lua import Value
from ...io.source import ByteSource, PathLike, Readable
from ...limits import DEFAULT_LIMITS, Limits
from ..signatures import HEAD_BYTES, PT_KINDS, SUFFIXES, ZIP_TAIL_BYTES, ends_as_zip, identify
from .layout import T7Layout
from .reader import T7Reader

PT_RECORD_START = b'{"record":"t7bridge pt record '


def source_format(source: ByteSource) -> str:
    """The format of a file by its content, whatever its name.

    Returns:
        `t7` or `pt`.

    Raises:
        UnknownFormatError: the file is something else; the message says what.
    """
    signature = identify(source.read(0, HEAD_BYTES))
    if signature is None:
        return "t7"  # its reader finds out
    if signature.kind in PT_KINDS:
        return "pt"
    hint = signature.hint or "t7bridge reads .t7 and .pt files."
    raise UnknownFormatError(f"is neither a .t7 nor a .pt file but {signature.title}", file=source.name, hint=hint)


def target_format(path: PathLike) -> str:
    """The format that a target's suffix asks for.

    Raises:
        UnsupportedError: the suffix says nothing.
    """
    name = os.fspath(path)
    found = SUFFIXES.get(os.path.splitext(name)[1].lower())
    if found is None:
        raise UnsupportedError(
            "cannot tell the format to write from this name",
            file=name,
            expected="a name that ends in " + ", ".join(SUFFIXES),
            hint="Name it --to t7 or --to pt (to=…).",
        )
    return found


@define(eq=False)
class T7File:
    """Everything that a `.t7` file holds.

    Attributes:
        roots: its values; most files hold one.
        layout: how it is encoded.
        objects: its objects in the order of their numbers.
        trailing: bytes behind the last value that are no value, as files of several kinds of data have.
        tensors: number of tensors.
        storages: number of storages.
    """

    roots: list[Value]
    layout: T7Layout
    trailing: bytes = field(default=b"", repr=False)
    objects: list[Value] = field(factory=list, repr=False)
    tensors: int = 0
    storages: int = 0

    @property
    def has_pt_record(self) -> bool:
        """Whether the bytes behind the value are the record of a `.pt` that the file was made from."""
        return self.trailing.startswith(PT_RECORD_START)


def read_t7(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> T7File:
    """Read all values of a `.t7` file.

    Raises:
        FormatError: the first value cannot be read.
    """
    reader = T7Reader(source, limits=limits)
    roots = [reader.read_object()]
    trailing, start = b"", 0
    while not reader.at_end:
        start = reader.position
        try:
            value = reader.read_object()
        except FormatError:
            value = None
        if value is None:  # zeros read as nil; nobody writes nil behind a value
            trailing = reader.source.read(start, reader.source.size - start)
            break
        roots.append(value)
    if trailing:
        refuse_zip_behind(reader.source, start)
    return T7File(roots, reader.layout, trailing, list(reader.objects), *reader.count_views())


def refuse_zip_behind(source: ByteSource, position: int) -> None:
    """Refuse a `.t7` that is a zip archive to readers that begin at the end.

    Args:
        source: the file.
        position: where its value ends, in bytes.

    Raises:
        CorruptError: it is one.
    """
    tail = max(position, source.size - ZIP_TAIL_BYTES)
    if ends_as_zip(source.read(tail, ZIP_TAIL_BYTES)):
        raise CorruptError(
            "is a .t7 by its first bytes, and a zip archive by its last",
            file=source.name,
            offset=position,
            expected="one file",
            found="two in one, of which each reader takes another",
            hint="Do not trust it: such files are made to deceive.",
        )
