"""A pickle that stands alone, with its storages given: what a record keeps of a `.pt`."""

from __future__ import annotations

from typing import Any

from ..binio.source import ByteSource
from ..graph.storage import Storage
from ..limits import DEFAULT_LIMITS, Limits
from .meaning import PtMeaning
from .storages import StorageId, StorageTable
from .unpickle import Unpickler


def read_pickle_with(
    data: bytes, storages: dict[str, Storage], limits: Limits = DEFAULT_LIMITS
) -> tuple[Any, list[str]]:
    """Read a pickle.

    Args:
        data: the pickle.
        storages: by key.
        limits: what it may cost.

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

    meaning = PtMeaning(table, named, None, limits, len(data))
    value = Unpickler(ByteSource.from_bytes(data, "<record>"), 0, len(data), meaning, limits, "record").load()
    table.finish()
    return value, list(meaning.foreign)
