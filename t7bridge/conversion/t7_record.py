"""The record of what one format cannot hold of a value that came from the other.

In a `.pt` made from a `.t7` the record is that file without the elements of its storages: a stream that `T7Reader`
reads with the storages supplied. So the way back restores the same bytes, whatever the file contained.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import asdict, evolve

from ..data import define
from ..errors import CorruptError
from ..formats.pt.layout import RECORD_MEMBER
from ..formats.signatures import ends_as_zip
from ..formats.t7.file import T7File
from ..formats.t7.layout import T7Layout
from ..formats.t7.reader import T7Reader
from ..formats.t7.writer import T7Writer
from ..graph.lua import Value
from ..graph.storage import Storage
from ..io.output import Output
from ..io.source import ByteSource
from ..limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from ..formats.pt.reader import PtReader

_MAGIC = "t7bridge record 1"
Result = TypeVar("Result")


@define(frozen=True)
class Skeleton:
    """A `.t7` file without the elements of its storages.

    Attributes:
        layout: how the file was encoded; the stream has its encoding, but today's form of objects.
        roots: number of values in it.
        storages: key of each storage, in the order of the stream.
        stream: the bytes.
        trailing: bytes after the last value.
    """

    layout: T7Layout
    roots: int
    storages: tuple[str, ...]
    stream: bytes
    trailing: bytes = b""


def take_skeleton(
    roots: list[Value], layout: T7Layout, key: Callable[[Storage], str], trailing: bytes = b""
) -> Skeleton:
    """Write values without the elements of their storages.

    Args:
        roots: the values of the file.
        layout: the encoding.
        key: returns the key under which the elements of a storage are kept.
        trailing: bytes after the last value.
    """
    stream = io.BytesIO()
    payloads: list[Storage] = []
    output = Output(stream)
    # Today's form of objects and numbers: that of the file is kept in `layout`.
    writer = T7Writer(output, evolve(layout, vintage="", headless=False, numbers=()), payloads=payloads)
    for root in roots:
        writer.write_object(root)
    output.flush()
    return Skeleton(layout, len(roots), tuple(key(storage) for storage in payloads), stream.getvalue(), trailing)


def read_skeleton(skeleton: Skeleton, storage: Callable[[str], Storage], limits: Limits = DEFAULT_LIMITS) -> T7File:
    """Read the values of a skeleton.

    Args:
        skeleton: the result of `take_skeleton`.
        storage: returns the storage of a key.
        limits: resource limits.

    Raises:
        FormatError: the storages do not match the stream.
    """
    layout = skeleton.layout
    reader = T7Reader(
        skeleton.stream,
        encoding=layout.encoding,
        byte_order=layout.byte_order,
        long_size=layout.long_size,
        limits=limits,
        payloads=map(storage, skeleton.storages),
    )
    roots = [reader.read_object() for _ in range(skeleton.roots)]
    return T7File(roots, layout, skeleton.trailing, list(reader.objects), *reader.count_views())


def original_t7(reader: PtReader, limits: Limits = DEFAULT_LIMITS) -> tuple[T7File | None, bool]:
    """Return the `.t7` that a `.pt` was made from.

    Args:
        reader: of the `.pt`.
        limits: resource limits.

    Returns:
        The file, `None` if there is no record or the `.pt` was changed since; and whether there is a record at all.
        What is written from it must be checked by `read_back.check_t7`.

    Raises:
        FormatError: the record cannot be read, or the storages do not match.
    """
    data = reader.extra(RECORD_MEMBER)
    if data is None:
        return None, False
    skeleton, content = decode_record(data)
    if content != reader.content_id:
        return None, True
    restored = read_skeleton(skeleton, reader.storage, limits)
    if ends_as_zip(ByteSource.from_bytes(restored.trailing)):
        raise _unreadable(".t7")
    return restored, True


def encode_head(magic: str, **head: Any) -> bytes:
    """Return the first line of a record."""
    import json  # by now the elements are on their way, and this costs nothing

    return json.dumps({"record": magic, **head}, separators=(",", ":")).encode() + b"\n"


def decode_head(data: bytes, magic: str, original: str, read: Callable[[Any, bytes], Result]) -> Result:
    """Parse a record with a function of its head and the bytes after it.

    Raises:
        CorruptError: the bytes are not a record.
    """
    import json

    line, _, rest = data.partition(b"\n")
    try:
        head = json.loads(line)
        if head["record"] != magic:
            raise ValueError(head["record"])
        return read(head, rest)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _unreadable(original) from error


def encode_record(skeleton: Skeleton, content_id: str) -> bytes:
    """Return a record as bytes: one line of JSON, then the stream, then the trailing bytes of the file.

    Args:
        skeleton: of the `.t7`.
        content_id: a hash of the value in the same file, by which a later change of it is noticed.
    """
    head = encode_head(
        _MAGIC,
        content=content_id,
        layout=asdict(skeleton.layout),
        roots=skeleton.roots,
        storages=skeleton.storages,
        stream_bytes=len(skeleton.stream),
    )
    return head + skeleton.stream + skeleton.trailing


def decode_record(data: bytes) -> tuple[Skeleton, str]:
    """Parse a record.

    Returns:
        The skeleton, and the hash of the value with which it was written.

    Raises:
        CorruptError: the bytes are not a record.
    """
    return decode_head(data, _MAGIC, ".t7", _skeleton)


def _skeleton(head: Any, rest: bytes) -> tuple[Skeleton, str]:
    length = int(head["stream_bytes"])
    layout: dict[str, Any] = {
        name: tuple(item) if isinstance(item, list) else item for name, item in head["layout"].items()
    }
    skeleton = Skeleton(
        T7Layout(**layout), int(head["roots"]), tuple(map(str, head["storages"])), rest[:length], rest[length:]
    )
    numbers = (*skeleton.layout.numbers, *skeleton.layout.unowned)
    if not all(type(number) is int and abs(number) < 1 << 31 for number in numbers):
        raise ValueError("numbers")
    if not 1 <= skeleton.roots <= max(1, len(rest)) or not 0 <= length <= len(rest):
        raise ValueError("roots")
    return skeleton, str(head["content"])


def _unreadable(original: str) -> CorruptError:
    message = f"the record of the original {original} cannot be read"
    return CorruptError(message, hint="Convert without it (--no-record).")
