"""PyTorch modules as Lua Torch modules: nn and nngraph objects, and the source that builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data import face

if TYPE_CHECKING:
    from .save import save_module as save_module
    from .save import write_lua as write_lua

__getattr__ = face(
    __name__,
    {
        "save": "save_module write_lua",
    },
)
