"""One bounded line for any value: the `repr` of everything in the graph; and numbers as text.

Takes constant time whatever the value, and contains no control characters, bidirectional marks or other unprintable
characters, whatever the file says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from ..text import counted, printable

LINE = 120
"""Maximum characters of a line."""
_TEXT = 60
_DIMENSIONS = 8
_BITS = 256

_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_next_number = count(1)


def storage_number(storage: Any) -> int:
    """Return the number that shows which tensors share memory: storages are numbered as they are first shown."""
    number = _numbers.get(storage)
    if number is None:
        number = _numbers[storage] = next(_next_number)
    return number


def clean(text: str, most: int = _TEXT) -> str:
    """Return text on one line, with unprintable characters escaped, cut with `…` after `most` characters."""
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def sizes(shape: tuple[int, ...]) -> str:
    """Return `[64, 784]`; of very many dimensions the first."""
    shown = [str(extent)[:20] for extent in shape[:_DIMENSIONS]]
    return f"[{', '.join(shown)}{', …' if len(shape) > _DIMENSIONS else ''}]"


def extents(shape: tuple[int, ...]) -> str:
    """Return `1×64×56×56`; `scalar` of no dimensions."""
    return "×".join(map(str, shape)) or "scalar"


def number_text(value: float, digits: int) -> str:
    """Return a number as C's `%.17g` prints it on Linux, with `digits` digits: a NaN keeps its sign."""
    if value != value:
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return f"{value:.{digits}g}"


def short(value: Any) -> str:
    """Return one line of at most `LINE` characters for any value."""
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
    """Base of the graph's values: the `repr` is one bounded line."""

    __slots__ = ()

    def _short(self) -> str:
        """Return the line, before it is escaped and cut."""
        raise NotImplementedError

    def __repr__(self) -> str:
        try:
            return f"<{clean(self._short(), LINE - 2)}>"
        except AttributeError:  # not yet initialized
            return f"<{type(self).__name__}>"


class Holder(Shown):
    """A value with an identity that may hold others."""

    __slots__ = ()

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        """Return the values directly inside, each with its key, or the `Step` to it."""
        return ()


class Step(str):
    """A step of a path that is not a key: `.storage`, `<upvalues>`."""

    __slots__ = ()
