"""PyTorch modules as Lua Torch modules: nn and nngraph objects, and the source that builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data import face

if TYPE_CHECKING:
    from .build import Builder as Builder
    from .build import Learned as Learned
    from .build import Wire as Wire
    from .build import operation as operation
    from .layers import make as make
    from .layers import same as same
    from .layers import sequential as sequential
    from .save import save_module as save_module
    from .save import write_lua as write_lua
    from .sizes import CannotError as CannotError

__getattr__ = face(
    __name__,
    {
        "build": "Builder Learned Wire operation",
        "layers": "make same sequential",
        "save": "save_module write_lua",
        "sizes": "CannotError",
    },
)
