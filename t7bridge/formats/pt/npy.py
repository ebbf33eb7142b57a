"""Headers of numpy's `.npy` files, and pickled objects in them: names only, no values.

numpy pickles the elements of an array of objects after its header, and `numpy.load(allow_pickle=True)` loads them.
Source: numpy 2.4 `numpy/lib/_format_impl.py` (`read_array`, `descr_to_dtype`).
"""

from __future__ import annotations

from typing import Any

from ...errors import CorruptError
from ...io.source import ByteSource
from ...limits import Limits
from .pickle.meaning import Origin, PtMeaning
from .pickle.unpickler import Unpickler

MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
"""numpy's own limit for headers of untrusted files."""


def read_header(source: ByteSource, start: int, end: int, name: str) -> tuple[Any, bool, tuple[int, ...], int]:
    """Return element type, order, shape, and the offset of the elements."""

    def wrong(found: str) -> CorruptError:
        return CorruptError("is not a numpy array", file=source.name, offset=start, path=name, found=found)

    head = source.read(start, min(12, end - start))
    if head[:6] != MAGIC or len(head) < 10:
        raise wrong(repr(head[:6])[1:])
    wide = head[6] >= 2
    place = start + (12 if wide else 10)
    length = int.from_bytes(head[8 : 12 if wide else 10], "little")
    if length > min(_LONGEST_HEADER, end - place) or head[6] not in (1, 2, 3):
        raise wrong(f"version {head[6]}, a header of {length} bytes")
    text = source.read_exact(place, length, "the header of an array")
    import ast  # describing and converting most files needs none

    try:
        header = ast.literal_eval(text.decode("utf-8" if head[6] == 3 else "latin-1").strip())
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        if set(header) != {"descr", "fortran_order", "shape"} or type(fortran) is not bool or type(shape) is not tuple:
            raise ValueError("is not a header")
        if any(type(extent) is not int or not 0 <= extent < 1 << 62 for extent in shape):
            raise ValueError("is not a shape")
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise wrong(f"the header {text[:60]!r}") from error
    return descr, fortran, shape, place + length


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
    origin = Origin(source, limits)
    pickle = Unpickler(source, data, start + size, PtMeaning(origin), limits)
    pickle.load()
    pickle.load_rest()
    return origin.foreign


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
