"""A standalone pickle read with given storages: the part of a `.pt` kept in a record."""

from __future__ import annotations

from typing import Any

from ...graph.storage import Storage
from ...io.source import ByteSource
from ...limits import DEFAULT_LIMITS, Limits
from .pickle.globals import PtMeaning
from .pickle.unpickler import Unpickler
from .storages import StorageId, StorageTable


def read_pickle_with(
    data: bytes, storages: dict[str, Storage], limits: Limits = DEFAULT_LIMITS, forbid: bool = True
) -> tuple[Any, list[str]]:
    """Read a pickle.

    Args:
        data: the pickle.
        storages: by key.
        limits: resource limits.
        forbid: whether names that run code are refused.

    Returns:
        The value, and the globals that have no meaning here.

    Raises:
        FormatError: it is damaged.
    """
    table = StorageTable()
    table.roots.update(storages)

    def named(saved_id: Any) -> Any:
        found = StorageId.parse(saved_id)
        if isinstance(found.key, str) and found.key in storages:
            storages[found.key].device = found.device
        return table.of_id(found)

    def nested(part: bytes) -> Any:
        from .reader import PtReader

        inner = PtReader(part, limits=limits, forbid=forbid, _depth=1)
        value = inner.read()
        meaning.foreign.update(inner.judged)
        return value

    meaning = PtMeaning(table, named, nested, limits, len(data), forbid)
    value = Unpickler(ByteSource.from_bytes(data, "<record>"), 0, len(data), meaning, limits, "record").load()
    table.finish()
    return value, list(meaning.foreign)
