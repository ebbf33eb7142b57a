"""The cost of keys and copies in a pickle, kept in proportion to its size."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from ....errors import CorruptError, LimitError

_MAX_KEY_PARTS = 10_000
_MAX_KEY_DEPTH = 100
_FREE_WORK = 1_000_000
_WORK_PER_BYTE = 16
_WORK_PER_COLLISION = 8
_COLLIDING = (
    "the keys of a dict or set have the same hash, and filling it takes longer than the size of the file explains"
)
_MODULUS = sys.hash_info.modulus
_HASHED_AT_RANDOM = frozenset({str, bytes, bool, type(None), float})
"""Types of which a file cannot create many values of one hash: at most some fifty floats have the same."""

SIMPLE_KEYS = frozenset({str, int, bytes, float, bool, type(None), complex})
_UNHASHABLE = (list, dict, set, bytearray)


def check_key(key: Any) -> int:
    """Check that a value can be a dict key without exhausting time or the interpreter's stack.

    Returns:
        The number of its parts, which hashing visits.

    Raises:
        CorruptError: Python could not hash it.
        LimitError: it is a tuple of tuples of tuples.
    """
    parts = [(key, 0)]
    count = 0
    while parts:
        part, depth = parts.pop()
        if isinstance(part, _UNHASHABLE):
            raise CorruptError(f"a {type(part).__name__} is a key or an element of a set")
        if isinstance(part, tuple):
            count += len(part)
            if depth > _MAX_KEY_DEPTH or count > _MAX_KEY_PARTS:
                raise LimitError(
                    "a tuple used as a key is nested too deep or has too many parts",
                    expected=f"at most {_MAX_KEY_DEPTH} levels and {_MAX_KEY_PARTS} parts, which is fixed",
                )
            parts.extend((inner, depth + 1) for inner in part)
    return count


class Work:
    """A budget of elements that calls may copy and keys may hash, in proportion to the bytes of the file.

    Args:
        nbytes: of the file.
    """

    def __init__(self, nbytes: int) -> None:
        self._left = _FREE_WORK + _WORK_PER_BYTE * nbytes
        self._hashes: dict[int, dict[int, int]] = {}

    def spend(self, count: int, cause: str = "the pickle copies the same values over and over") -> None:
        """Charge the budget.

        Raises:
            LimitError: it is exhausted.
        """
        self._left -= count
        if self._left < 0:
            raise LimitError(
                cause, expected=f"at most {_FREE_WORK} elements, and {_WORK_PER_BYTE} for each byte of the file"
            )

    def check_key(self, container: object, key: Any) -> None:
        """Check a key before it enters a dict or set, which compares it with all keys of the same hash.

        Args:
            container: the dict or set.
            key: the key or element.

        Raises:
            CorruptError: Python could not hash it.
            LimitError: it is a tuple of tuples of tuples, or one container has so many keys of one hash as only a file
                made to waste time has.
        """
        kind = type(key)
        if kind in _HASHED_AT_RANDOM or (kind is int and -_MODULUS < key < _MODULUS):
            return
        if kind not in SIMPLE_KEYS:
            self.spend(check_key(key))
        hashes = self._hashes.setdefault(id(container), {})
        before = hashes.get(hash(key), 0)
        hashes[hash(key)] = before + 1
        if before:
            self.spend(before * _WORK_PER_COLLISION, _COLLIDING)

    def check_elements(self, items: Collection[Any]) -> None:
        """Check the elements of a set before it is created; raises as `check_key`."""
        for item in items:
            self.check_key(items, item)
        self._hashes.pop(id(items), None)
