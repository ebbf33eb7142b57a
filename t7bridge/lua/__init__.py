"""PyTorch modules as Lua Torch modules: nn and nngraph objects, and the source that builds them."""

from ..data import face

__getattr__ = face(
    __name__,
    {
        "build": "OF_COMPLEX OPERATIONS",
        "source": "lua_string",
    },
)
