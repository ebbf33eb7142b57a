"""Tensors as text and in notebooks: the first elements, and in notebooks statistics of a small tensor.

No more of a file is read than is shown.
"""

from __future__ import annotations

from html import escape
from typing import Any

from ..errors import T7BridgeError
from ..lazy import np
from ..text import counted
from .arrays import elements
from .show import clean, sizes
from .storage import Derived, Span, TextSpan
from .tensor import Tensor

_EDGE = 3
_ROWS = 1000
_SHOWN = 10
_FIGURES_BYTES = 1 << 24
_TEXT_BYTES = 1 << 20


def _is_readable(tensor: Tensor) -> bool:
    """Return whether single elements can be read without converting a large part of the storage."""
    storage = tensor.storage
    return storage is None or isinstance(storage.data, Span) or _small(tensor)


def _small(tensor: Tensor) -> bool:
    storage = tensor.storage
    return storage is None or not isinstance(storage.data, (Derived, TextSpan)) or storage.nbytes <= _TEXT_BYTES


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def tensor_text(tensor: Tensor) -> str:
    """Return the elements, `…` where some are left out, and a last line with type and shape.

    Rows show at most six elements of the last dimension; other dimensions the first three and the last three.
    """
    about = f"[{tensor.lua_class or tensor.dtype} of size {'x'.join(map(str, tensor.shape[:20])) or 'no dimensions'}]"
    try:
        if not tensor.numel or not _is_readable(tensor) or len(tensor.shape) > 8:
            return about
        return "\n".join([*_rows(tensor)[:_ROWS], about])
    except T7BridgeError as error:
        return f"<{clean(str(error), 200)}>\n{about}"


def _edges(extent: int) -> list[int | None]:
    """Return the indices shown along a dimension; `None` is the gap."""
    if extent <= 2 * _EDGE:
        return list(range(extent))
    return [*range(_EDGE), None, *range(extent - _EDGE, extent)]


def _rows(tensor: Tensor) -> list[str]:
    if not tensor.shape:
        return [_number(tensor.item())]
    rows: list[str] = []
    stack: list[tuple[Tensor, str] | str] = [(tensor, "")]
    while stack and len(rows) < _ROWS:
        entry = stack.pop()
        if isinstance(entry, str):
            rows.append(entry)
            continue
        view, place = entry
        if len(view.shape) == 1:
            shown = ["…" if at is None else _number(elements(view[at : at + 1], 1)[0]) for at in _edges(view.shape[0])]
            rows.append(f"{place} {'  '.join(shown)}" if place else "  ".join(shown))
            continue
        inside: list[tuple[Tensor, str] | str] = []
        for at in _edges(view.shape[0]):
            name = "" if at is None or (len(view.shape) == 2 and not place) else f"{place}[{at}]"
            inside.append("…" if at is None else (view[at], name))
        stack += reversed(inside)
    return rows


def _figures(tensor: Tensor) -> dict[str, str]:
    """Return minimum, maximum, mean and number of NaNs; empty for large tensors and other types."""
    storage = tensor.storage
    if storage is None or not tensor.numel or not tensor.element.native or tensor.element.code[0] not in "uif?":
        return {}
    if max(tensor.nbytes, storage.nbytes if not isinstance(storage.data, Span) else 0) > _FIGURES_BYTES:
        return {}
    wide = np.asarray(tensor.array, "f8")
    sound = wide[np.isfinite(wide)]
    found = {"not finite": str(wide.size - sound.size)} if sound.size != wide.size else {}
    if sound.size:
        found = {
            "min": _number(float(sound.min())),
            "max": _number(float(sound.max())),
            "mean": _number(float(sound.mean())),
            **found,
        }
    return found


def tensor_html(tensor: Tensor) -> str:
    """Return a small table for notebooks."""
    rows = {
        "type": tensor.dtype,
        "shape": sizes(tensor.shape),
        "size": f"{tensor.nbytes:,} bytes".replace(",", " "),
        "device": tensor.device,
    }
    try:
        rows.update(_figures(tensor))
        if _is_readable(tensor):
            shown = [_number(value) for value in elements(tensor, _SHOWN)]
            rows[f"first {counted(len(shown), 'value')}"] = ", ".join(shown)
    except T7BridgeError as error:
        rows["error"] = str(error)
    lines = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>"
        f"{escape(clean(str(text), 400))}</td></tr>"
        for name, text in rows.items()
    )
    return f"<table>{lines}</table>"
