"""Objects and tables for notebooks: an expandable table of fields. Bounded and escaped."""

from __future__ import annotations

from html import escape
from itertools import islice

from .lua import Table, TdsHash, TorchObject, Value
from .show import clean, short
from .show_lua import layer_text
from .tensor import Tensor

_ENTRIES = 2000
_DEPTH = 40
_WIDE = 200


def _name(key: Value) -> str:
    if isinstance(key, bytes):
        return clean(key.decode("utf-8", "backslashreplace"))
    return f"{key:.14g}" if isinstance(key, float) else short(key)


def _title(value: Value) -> str:
    return layer_text(value) if isinstance(value, TorchObject) else short(value)


def html(root: Value) -> str:
    """Return HTML of a table, an object or a `tds.Hash`; an object that occurs again is only named."""
    pieces: list[str] = []
    seen: set[int] = set()
    left = _ENTRIES
    stack: list[tuple[str, Value, int] | str] = [("", root, 0)]
    while stack:
        entry = stack.pop()
        if isinstance(entry, str):
            pieces.append(entry)
            continue
        key, value, depth = entry
        start = f"<b>{escape(key)}</b>: " if key else ""
        table = (
            value.fields if isinstance(value, TorchObject) else value.content if isinstance(value, TdsHash) else value
        )
        if not isinstance(table, Table) or not table.raw_keys or id(value) in seen or depth >= _DEPTH or left <= 0:
            again = " (shown above)" if id(value) in seen and isinstance(table, Table) else ""
            shown = f"<code>{escape(_title(value))}</code>" if isinstance(value, Tensor) else escape(_title(value))
            pieces.append(f"<div>{start}{shown}{again}</div>")
            continue
        seen.add(id(value))
        pieces.append(f"<details{' open' * (depth == 0)}><summary>{start}{escape(_title(value))}</summary>")
        pieces.append("<div style='margin-left:1.5em'>")
        count = min(len(table.raw_keys), _WIDE, left)
        left -= count
        more = [f"<div>… {len(table.raw_keys) - count} more</div>"] * (len(table.raw_keys) > count)
        stack += ["</div></details>", *more]
        stack += reversed([(_name(name), item, depth + 1) for name, item in islice(table.raw_items(), count)])
    return "".join(pieces)
