"""One bounded line for any value: `repr` of everything in the graph.

Takes the same time whatever the value holds, and contains no control characters, bidirectional marks or other
characters that do not print, whatever the file says.
"""

from __future__ import annotations

from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from ..text import printable

LINE = 120
"""Letters of a line, at most."""
_TEXT = 60
_DIMENSIONS = 8
_BITS = 256

_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_next_number = count(1)


def storage_number(storage: Any) -> int:
    """The number that shows which tensors share memory: storages are counted as they are shown first."""
    number = _numbers.get(storage)
    if number is None:
        number = _numbers[storage] = next(_next_number)
    return number


def clean(text: str, most: int = _TEXT) -> str:
    """Text on one line, with what does not print escaped, and `…` for what is beyond `most` letters."""
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def sizes(shape: tuple[int, ...]) -> str:
    """`[64, 784]`; of very many dimensions the first."""
    shown = [str(extent)[:20] for extent in shape[:_DIMENSIONS]]
    return f"[{', '.join(shown)}{', …' if len(shape) > _DIMENSIONS else ''}]"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 module`, `7 modules`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def short(value: Any) -> str:
    """One line of at most `LINE` letters for any value."""
    if isinstance(value, Shown):
        return repr(value)
    if isinstance(value, str):
        return clean(repr(value[:_TEXT]), LINE) + ("…" if len(value) > _TEXT else "")
    if isinstance(value, (bytes, bytearray)):
        try:
            text = "b" + clean(repr(bytes(value[:_TEXT]).decode()), LINE - 3)
        except UnicodeDecodeError:
            text = clean(repr(bytes(value[: _TEXT // 3])), LINE - 3)
        return text + ("…" if len(value) > _TEXT else "")
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"<int of {value.bit_length()} bits>"
    if value is None or isinstance(value, (bool, int, float, complex)):
        return clean(repr(value), LINE)
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        return f"<{clean(type(value).__name__)}: {counted(len(value), 'entry', 'entries')}>"
    return f"<{clean(type(value).__name__)}>"


class Shown:
    """A value whose `repr` is one bounded line: the base of what is in a graph."""

    __slots__ = ()

    def _short(self) -> str:
        """The line, before it is escaped and cut."""
        raise NotImplementedError

    def __repr__(self) -> str:
        try:
            return f"<{clean(self._short(), LINE - 2)}>"
        except AttributeError:  # while it is being made
            return f"<{type(self).__name__}>"
