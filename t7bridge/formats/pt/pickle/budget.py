"""The cost of keys and copies in a pickle, kept in proportion to its size."""

from __future__ import annotations

from typing import Any

from ....errors import CorruptError, LimitError

_MAX_KEY_PARTS = 10_000
_MAX_KEY_DEPTH = 100
_FREE_WORK = 1_000_000
_WORK_PER_BYTE = 16

SIMPLE_KEYS = frozenset({str, int, bytes, float, bool, type(None), complex})
_UNHASHABLE = (list, dict, set, bytearray)


def check_key(key: Any) -> int:
    """Check that a value can be the key of a dict without costing time or the interpreter's stack.

    Returns:
        The number of its parts, which hashing it visits.

    Raises:
        CorruptError: Python could not hash it.
        LimitError: it is a tuple of tuples of tuples.
    """
    parts = [(key, 0)]
    count = 0
    while parts:
        part, depth = parts.pop()
        if isinstance(part, _UNHASHABLE):
            raise CorruptError(f"a {type(part).__name__} stands as a key or in a set")
        if isinstance(part, tuple):
            count += len(part)
            if depth > _MAX_KEY_DEPTH or count > _MAX_KEY_PARTS:
                raise LimitError(
                    "a tuple that stands as a key is nested too deep or has too many parts",
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

    def spend(self, count: int) -> None:
        """Take from the budget.

        Raises:
            LimitError: it is used up.
        """
        self._left -= count
        if self._left < 0:
            raise LimitError(
                "the pickle copies the same values over and over",
                expected=f"at most {_FREE_WORK} elements, and {_WORK_PER_BYTE} for each byte of the file",
            )
