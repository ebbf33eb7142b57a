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
    comparison = _Comparison()
    pairwise(value, other, comparison.compare)
    return comparison.faults


def _is_known_to_torchfile(value: Value) -> bool:
    """Return whether torchfile 0.1.0 reads a value correctly: it misreads tds collections, for example."""
    for visit in walk(value):
        item = visit.value
        if isinstance(item, (TdsHash, TdsVec, LuaFunction)):
            return False
        # It expects a table of fields after every class name that it does not know.
        if isinstance(item, TorchObject) and (item.payload is not None or item.fields is None):
            return False
        if isinstance(item, (Tensor, Storage)) and (item.lua_class or "").encode() not in torchfile.type_handlers:
            return False
    return True


class _Comparison:
    """Compares a value, as we read it, with the same as torchfile reads it.

    Attributes:
        faults: the differences, each with its path.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._counterparts: dict[int, int] = {}
        """By the identity of our object: that of torchfile's."""

    def compare(self, path: Path, our: Value, their: Any) -> list[tuple[Any, Value, Any]]:
        """Note how two values differ, apart from what is inside them; for `pairwise`.

        Args:
            path: of the values.
            our: ours, of the classes of `t7bridge.graph`.
            their: torchfile's, of its own classes, numpy and Python.

        Returns:
            The pairs inside them that are to be compared, each with its key; none of an object that was met before.
        """
        if id(our) in self._counterparts:
            if self._counterparts[id(our)] != id(their):
                self.faults.append(f"{path}: an object shared here is not shared in torchfile")
            return []
        if isinstance(our, (Table, TorchObject, Tensor, Storage)):
            self._counterparts[id(our)] = id(their)
        if isinstance(our, TorchObject):
            return self._compare_objects(path, our, their)
        if isinstance(our, Table):
            if isinstance(their, dict):
                return _common_entries(path, our, their, self.faults)
            self.faults.append(f"{path}: torchfile has {type(their).__name__} for a table")
        elif isinstance(our, (Tensor, Storage)):
            self.faults.extend(f"{path}: torchfile has {fault}" for fault in _array_faults(our.array, their))
        elif not _are_same_scalars(our, their):
            self.faults.append(f"{path}: torchfile has {their!r} for {our!r}")
        return []

    def _compare_objects(self, path: Path, our: TorchObject, their: Any) -> list[tuple[Any, Value, Any]]:
        """Note whether two objects are of different classes; return the pairs of their fields."""
        if isinstance(their, torchfile.TorchObject) and their.torch_typename() == our.class_name.encode():
            return _common_entries(path, our.fields or Table(), their._obj, self.faults)
        self.faults.append(f"{path}: torchfile has another class")
        return []


def _are_same_scalars(one: Value, other: Any) -> bool:
    """Return whether two values are of one type and equal; a NaN equals any other here."""
    are_both_nan = one != one and other != other
    return type(one) is type(other) and (one == other or are_both_nan)


def _array_faults(array: np.ndarray, other: Any) -> Iterator[str]:
    """Yield what distinguishes torchfile's value from our array: a description of its type, or of its elements."""
    if not isinstance(other, np.ndarray) or array.dtype != other.dtype or array.shape != other.shape:
        yield f"{type(other).__name__} {getattr(other, 'shape', '')}"
    elif array.size and (array.strides != other.strides or not _same_elements(array, other)):
        yield "different elements or strides"


def _same_elements(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two views of one shape and strides have the same elements in memory, from the first to the last.

    A stride of 0 could repeat an element without bound: so each is compared once. Those between are compared, too: both
    have read them from one file.

    Args:
        one: of one element at least.
        other: of the same type, shape and strides.
    """
    # So that both begin with their first element in memory.
    forwards = tuple(slice(None, None, -1 if stride < 0 else 1) for stride in one.strides)
    one = one[forwards]
    other = other[forwards]
    last_offset = sum((extent - 1) * stride for extent, stride in zip(one.shape, one.strides))  # in bytes
    shape = (last_offset // one.itemsize + 1,)
    strides = (one.itemsize,)
    elements = np.lib.stride_tricks.as_strided(one, shape, strides)
    other_elements = np.lib.stride_tricks.as_strided(other, shape, strides)
    return np.array_equal(elements, other_elements, equal_nan=one.dtype.kind == "f")


def _common_entries(path: Path, table: Table, other: dict[Any, Any], faults: list[str]) -> list[tuple[Any, Value, Any]]:
    """Return the key and both values of each entry to compare, and note the keys that torchfile lacks.

    Keys that Python confuses, or that are not scalars, are left out: torchfile cannot tell them apart.

    Args:
        path: of the table.
        table: ours.
        other: torchfile's.
        faults: receives what is noted.
    """
    entries = []
    has_boolean = any(isinstance(key, bool) for key in table.raw_keys)
    for key, value in table.raw_items():
        # Booleans are left out as keys, and beside one also 0 and 1: in Python's dict one may have replaced the other.
        if not isinstance(key, (float, bytes)) or (has_boolean and key in (0, 1)):
            continue
        if key in other:
            entries.append((key, value, other[key]))
        else:
            faults.append(f"{Path(path, key)}: torchfile has no such entry")
    return entries
