"""Pickled objects in numpy's arrays: names only, no values.

numpy pickles the elements of an array of objects after its header, and `numpy.load(allow_pickle=True)` loads them.
Source: numpy 2.4 `numpy/lib/_format_impl.py` (`read_array`, `descr_to_dtype`).
"""

from __future__ import annotations

from typing import Any

from ...io.source import ByteSource
from ...limits import Limits
from ..npz import read_header
from .pickle.globals import PtMeaning
from .pickle.unpickler import Unpickler
from .rest import read_rest
from .storages import StorageTable


def judge_array(source: ByteSource, start: int, size: int, limits: Limits) -> dict[str, str]:
    """Return the names in a `.npy` that have no meaning here, with their kinds: none if its elements are not pickled.

    Args:
        source: the file.
        start: first byte of the array's file.
        size: of that file, in bytes.
        limits: resource limits.

    Raises:
        FormatError: it is damaged.
    """
    descr, _, _, data = read_header(source, start, start + size, source.name)
    if not _has_objects(descr):
        return {}
    meaning = PtMeaning(StorageTable(), None, None, limits, source.size)
    pickle = Unpickler(source, data, start + size, meaning, limits)
    pickle.load()
    read_rest(pickle, start + size)
    return meaning.foreign


def _has_objects(descr: Any) -> bool:
    """Return whether a description of elements may name Python objects: `|O`, `object`, also inside records."""
    stack = [descr]
    while stack:
        part = stack.pop()
        if isinstance(part, (list, tuple)):
            stack += part
        elif isinstance(part, dict):
            stack += part.values()
        elif isinstance(part, str) and "o" in part.lower():
            return True
    return False
