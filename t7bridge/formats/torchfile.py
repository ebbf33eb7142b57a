"""torchfile's own types from the graph, and torchfile as a second, independent reader. The only importer of torchfile.

torchfile reads binary files whose byte order and size of `long` are the machine's, and checks nothing; it receives only
such files, and only after `T7Reader` has read them completely.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from struct import calcsize
from typing import Any

import torchfile

from ..data import np
from ..graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import Path, pairwise, walk
from ..io.source import PathLike, Readable
from ..limits import DEFAULT_LIMITS, Limits
from ..torchfile import TorchfileBuilder
from .t7.file import refuse_unexplained
from .t7.layout import T7Layout
from .t7.reader import T7Reader


def load_as_torchfile(
    source: Readable,
    *,
    use_list_heuristic: bool = True,
    use_int_heuristic: bool = True,
    utf8_decode_strings: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    **layout: Any,
) -> Any:
    """Load a `.t7` file as `torchfile.load` would, so that code written against torchfile runs on every file.

    Args:
        source: a path, bytes, or a binary file object.
        use_list_heuristic: whether tables with the keys 1 to n, and tables without entries, become lists.
        use_int_heuristic: whether integral numbers become `int`.
        utf8_decode_strings: whether strings become `str`; otherwise they are `bytes`.
        limits: resource limits.
        layout: `encoding`, `byte_order` and `long_size`, if they are not to be detected.

    Returns:
        Lists, `torchfile.hashable_uniq_dict`, `torchfile.TorchObject`, `torchfile.LuaFunction`, and numpy arrays for
        tensors and storages. Tensors with one storage share memory.

    Raises:
        FormatError: the file is damaged, or is not a `.t7`.
    """
    reader = T7Reader(source, limits=limits, **layout)
    value = reader.read_object()
    refuse_unexplained(reader, value)
    return TorchfileBuilder(use_list_heuristic, use_int_heuristic, utf8_decode_strings, torchfile).run(value)


def can_read(layout: T7Layout) -> bool:
    """Return whether torchfile supports this encoding here: binary, with the machine's byte order and C long."""
    return layout.encoding == "binary" and layout.byte_order == sys.byteorder and layout.long_size == calcsize("l")


def differences(path: PathLike, value: Value, layout: T7Layout) -> list[str] | None:
    """Read a file with torchfile and compare with the value from `T7Reader`.

    Args:
        path: of the file.
        value: the value from `T7Reader`.
        layout: its layout.

    Returns:
        The differences, each with its path; `None` if torchfile cannot read the file.
    """
    if not can_read(layout) or not _is_known_to_torchfile(value):
        return None
    try:
        other = torchfile.load(str(path), use_list_heuristic=False, use_int_heuristic=False)
    except Exception:  # it checks nothing, so it may raise anything; then it is not a reference for this file
        return None
    return _compare(value, other)


def _is_known_to_torchfile(value: Value) -> bool:
    """Return whether torchfile 0.1.0 reads a value correctly: it misreads tds collections, for example."""
    for visit in walk(value):
        found = visit.value
        if isinstance(found, (TdsHash, TdsVec, LuaFunction)):
            return False
        if isinstance(found, TorchObject) and (found.payload is not None or found.fields is None):
            return False
        if isinstance(found, (Tensor, Storage)) and (found.lua_class or "").encode() not in torchfile.type_handlers:
            return False
    return True


def _compare(mine: Value, theirs: Any) -> list[str]:
    found: list[str] = []
    pairs: dict[int, int] = {}

    def compare(path: Path, a: Value, b: Any) -> list[tuple[Any, Value, Any]]:
        if id(a) in pairs:
            if pairs[id(a)] != id(b):
                found.append(f"{path}: an object shared here is not shared in torchfile")
            return []
        if isinstance(a, (Table, TorchObject, Tensor, Storage)):
            pairs[id(a)] = id(b)
        if isinstance(a, (Tensor, Storage)):
            found.extend(f"{path}: torchfile has {fault}" for fault in _array_faults(a.array, b))
        elif isinstance(a, TorchObject):
            if isinstance(b, torchfile.TorchObject) and b.torch_typename() == a.class_name.encode():
                return _entries(path, a.fields or Table(), b._obj, found)
            found.append(f"{path}: torchfile has another class")
        elif isinstance(a, Table):
            if isinstance(b, dict):
                return _entries(path, a, b, found)
            found.append(f"{path}: torchfile has {type(b).__name__} for a table")
        elif type(a) is not type(b) or (a != b and not (a != a and b != b)):
            found.append(f"{path}: torchfile has {b!r} for {a!r}")
        return []

    pairwise(mine, theirs, compare)
    return found


def _array_faults(array: np.ndarray, other: Any) -> Iterator[str]:
    """Yield what distinguishes another value from an array."""
    if not isinstance(other, np.ndarray) or array.dtype != other.dtype or array.shape != other.shape:
        yield f"{type(other).__name__} {getattr(other, 'shape', '')}"
    elif array.size and (array.strides != other.strides or not _same_elements(array, other)):
        yield "different elements or strides"


def _same_elements(one: np.ndarray, other: np.ndarray) -> bool:
    """Compare two views of one shape and strides by the elements of their storages, however often they repeat them."""
    last = sum((extent - 1) * stride for extent, stride in zip(one.shape, one.strides))
    shape, strides = (last // one.itemsize + 1,), (one.itemsize,)
    mine, theirs = (np.lib.stride_tricks.as_strided(each, shape, strides) for each in (one, other))
    return np.array_equal(mine, theirs, equal_nan=one.dtype.kind == "f")


def _entries(path: Path, table: Table, other: dict[Any, Any], found: list[str]) -> list[tuple[Any, Value, Any]]:
    """Return the entries to compare; keys that Python confuses, or that are not scalars, are left to `T7Reader`."""
    inside = []
    ones = {key for key in table.raw_keys if isinstance(key, (bool, float)) and key in (0, 1)}
    confused = any(isinstance(key, bool) for key in ones)
    for key, value in table.raw_items():
        if isinstance(key, (float, bytes)) and not (confused and key in (0, 1)):
            if key in other:
                inside.append((key, value, other[key]))
            else:
                found.append(f"{Path(path, key)}: torchfile has no such entry")
    return inside
