"""Read a file that was written by a record back as a stranger would, without any record, and compare.

A record is a hint of what a file was. What counts is what the source shows: storages by place and type, the rest by
content. The structure of the written file is read, and elements only where they are not a copy, as in text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .. import formats
from ..errors import RecordError, T7BridgeError
from ..formats.t7.file import T7File
from ..graph.storage import Span, Storage
from ..io.output import FileOutput
from ..io.source import ByteSource
from ..limits import Limits
from ..values.compare import PlaceComparer
from .tree import to_python

if TYPE_CHECKING:
    from ..formats.pt.reader import PtReader
    from ..formats.pt.writer import ValueWriter
    from ..formats.t7.writer import T7Writer

_MESSAGE = "what the record restores is not what the file shows"


@contextmanager
def _written(output: FileOutput) -> Iterator[ByteSource]:
    output.flush()
    output.wait()
    with ByteSource.from_path(output.temporary) as source:
        try:
            yield source
        except T7BridgeError as error:
            raise RecordError(_MESSAGE) from error


def check_t7(output: FileOutput, writer: T7Writer, source: PtReader, limits: Limits) -> None:
    """Check that a `.t7`, written by a record, shows the value of the `.pt` that the record was found in.

    Raises:
        RecordError: it does not.
    """
    with _written(output) as file:
        document = formats.open(file, limits=limits)
        if document.format != "t7":
            raise RecordError(_MESSAGE)
        content: T7File = document.content
        for storage in content.objects:
            if isinstance(storage, Storage) and isinstance(storage.data, Span):
                placed, span = writer.places.get(storage.data.offset), storage.data
                if span.order == writer.layout.byte_order or span.width == 1:
                    _identify(storage, placed)
        made = [to_python(root) for root in content.roots]
        if PlaceComparer(limits=limits).run(made[0] if len(made) == 1 else made, source.read()):
            raise RecordError(_MESSAGE)


def check_pt(output: FileOutput, writer: ValueWriter, lent: dict[int, Storage], source: T7File, limits: Limits) -> None:
    """Check that a `.pt`, written by a record, shows the value of the `.t7` that the record was found in.

    Args:
        output: the file.
        writer: its writer.
        lent: for each storage written, by identity, that of the `.t7` with its elements.
        source: the `.t7`.
        limits: resource limits.

    Raises:
        RecordError: it does not.
    """
    from ..formats.pt.reader import PtReader
    from .pt_record import shows

    with _written(output) as file:
        reader = PtReader(file, limits=limits)
        value = reader.read()
        found: dict[int, Storage] = {}
        for key, storage in enumerate(writer.stored):
            back = reader.storage(str(key))
            if _identify(back, storage) and id(storage) in lent:
                found[id(back)] = lent[id(storage)]
        if not shows(value, found, source, limits):
            raise RecordError(_MESSAGE)


def _identify(storage: Storage, written: Storage | None) -> bool:
    """Have a storage that was read where another was written refer to the elements of that one; return whether it was.

    A writer copies elements whatever a record says.
    """
    if written is None or storage.element is not written.element or storage.count != written.count:
        return False
    storage.data = written.data
    return True
