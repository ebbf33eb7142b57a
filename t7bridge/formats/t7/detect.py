"""Detection of the encoding of a `.t7` file from its first bytes."""

from __future__ import annotations

from ...errors import ModelError, TruncatedError, UnknownFormatError
from ...io.source import ByteSource
from ..signatures import HEAD_BYTES, identify
from .layout import BINARY_LAYOUTS, T7Layout


def possible_layouts(
    source: ByteSource, start: int, encoding: str | None, byte_order: str | None, long_size: int | None
) -> list[T7Layout]:
    """Return the layouts that a file may have, the most likely first.

    Args:
        source: the bytes.
        start: where reading starts.
        encoding: `binary` or `ascii`, if known.
        byte_order: `little` or `big`, if known.
        long_size: 4 or 8, if known.

    Raises:
        ModelError: a given value is invalid.
        UnknownFormatError: nothing is given, and the file is in another format.
    """
    if encoding == "ascii":
        return [T7Layout(encoding="ascii")]
    head = source.read(start, HEAD_BYTES)
    if encoding is None and byte_order is None and long_size is None:
        _refuse_other_formats(source, head)
        if _looks_like_text(head):
            return [T7Layout(encoding="ascii")]
    elif encoding not in (None, "binary"):
        raise ModelError(f"unknown encoding {encoding!r}", expected="binary or ascii")
    # Any first value has a small first integer: a type tag, a count, a flag.
    orders = ["little", "big"]
    little, big = (abs(int.from_bytes(head[:4], order, signed=True)) for order in ("little", "big"))
    if big < little:
        orders.reverse()
    wanted = [
        layout
        for order in orders
        for layout in BINARY_LAYOUTS
        if layout.byte_order == order and byte_order in (None, order) and long_size in (None, layout.long_size)
    ]
    if not wanted:
        raise ModelError("unknown layout", expected="byte order little or big, long size 4 or 8")
    return wanted


def _refuse_other_formats(source: ByteSource, head: bytes) -> None:
    if not head:
        raise TruncatedError("is empty", file=source.name)
    signature = identify(head)
    if signature:
        hint = signature.hint or "A .t7 reader cannot read it, whatever its name."
        raise UnknownFormatError(f"is not a .t7 file but {signature.title}", file=source.name, hint=hint)


def _looks_like_text(head: bytes) -> bool:
    """Return whether the first word is a number and text follows: a file in ascii."""
    word = head.lstrip()[:40].split(maxsplit=1)
    if not word or head[:1] == b"\0":
        return False
    try:
        float(word[0])
    except ValueError:
        return False
    return len(head) > len(word[0]) or word[0].isdigit()
