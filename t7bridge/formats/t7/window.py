"""The part of reading shared by both encodings: a moving position in a source, seen through a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import CorruptError, LimitError
from ...io.source import ByteSource
from .layout import T7Layout

WINDOW_BYTES = 1 << 20
"""Maximum size of the window, in bytes."""


class Window:
    """A position in a source, and the bytes around it that have been read.

    Attributes:
        source: the bytes.
        layout: how they are encoded.
        longest: maximum length of a string, in bytes.
        rounded: whether numbers are printed with 6 digits; `None` as long as no number has decided it.
    """

    rounded: bool | None = None

    def __init__(self, source: ByteSource, position: int, layout: T7Layout, longest: int = 1 << 62) -> None:
        self.source = source
        self.layout = layout
        self.longest = longest
        self._base = position
        self._window = b""
        self._at = 0

    @property
    def position(self) -> int:
        """Offset in bytes of the next byte to read."""
        return self._base + self._at

    @position.setter
    def position(self, offset: int) -> None:
        inside = offset - self._base
        if 0 <= inside <= len(self._window):
            self._at = inside
        else:
            self._jump(offset)

    def _jump(self, offset: int) -> None:
        """Move to an offset outside the window."""
        self._base, self._at, self._window = offset, 0, b""

    @property
    def remaining(self) -> int:
        """Number of bytes from here to the end."""
        return self.source.size - self.position

    def check_length(self, length: int, what: str) -> None:
        """Check the length of a string.

        Raises:
            LimitError: it exceeds the limit.
        """
        if length > self.longest:
            raise LimitError(
                f"{what} is too long",
                file=self.source.name,
                offset=self.position,
                found=f"{length} bytes",
                limit="string_bytes",
                value=self.longest,
            )

    def no_boolean(self, number: int) -> CorruptError:
        """Return the error for a boolean that is neither 0 nor 1."""
        return CorruptError(
            "a boolean is neither 0 nor 1",
            file=self.source.name,
            offset=self.position,
            expected="0 or 1",
            found=f"{number}",
        )

    def no_key(self, item: Any, offset: int) -> CorruptError:
        """Return the error for a key of a table that is nil or NaN."""
        kind = "nil" if item is None else "nan"
        return CorruptError(f"a table key is {kind}, which Lua does not allow", file=self.source.name, offset=offset)


def checked_scalars(
    window: Window,
    read: Callable[[list[Any], list[Any], int], None],
    keys: list[Any],
    values: list[Any],
    count: int,
) -> None:
    """Read entries of scalars with `read`, checking the length of each string."""
    before = len(keys), len(values)
    read(keys, values, count)
    for found in (*keys[before[0] :], *values[before[1] :]):
        if isinstance(found, bytes):
            window.check_length(len(found), "a string")
