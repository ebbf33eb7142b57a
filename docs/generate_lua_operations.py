"""Generate lua-operations.md from the table of operations: `python docs/generate_lua_operations.py`. Needs PyTorch."""

from __future__ import annotations

from pathlib import Path

from t7bridge.workshop.lua import operations
from t7bridge.workshop.lua.build import OPERATIONS

DOCUMENT = Path(__file__).with_name("lua-operations.md")
HEAD = """# PyTorch operations in Lua Torch

The Lua layers that `save_module` and `t7bridge lua` use for each ATen operation; see [lua.md](lua.md). This page is
generated from the table in `t7bridge/workshop/lua/operations/` by `python docs/generate_lua_operations.py`; do not edit
it by hand. The reverse, from Lua's layers to PyTorch, is in [layers.md](layers.md).

Operations on constants are computed when the module is saved. Of an operation that is not listed PyTorch's own
decomposition is taken, if it has one of listed operations; otherwise it is refused with its line. Classes whose names
begin with `pt.` are written to `layers.lua`, where `--allow layers` permits it.
"""


def document() -> str:
    """Return the page."""
    families: dict[str, list[str]] = {name: [] for name in operations.__all__}
    for entry in dict.fromkeys(OPERATIONS.values()):
        family = entry.build.__module__.rpartition(".")[2]
        names = ", ".join(f"`{name.removeprefix('aten.')}`" for name in entry.names)
        first = (entry.build.__doc__ or "").strip().partition("\n")[0]
        note = f" {entry.note}" if entry.note else ""
        families[family].append(f"| {names} | {first}{note} | {entry.lua} |")
    text = HEAD
    for family, rows in families.items():
        text += f"\n## {family.capitalize()}\n\n| ATen | function | in Lua |\n| --- | --- | --- |\n"
        text += "\n".join(rows) + "\n"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(document())
