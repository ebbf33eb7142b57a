"""PyTorch modules as Lua Torch modules: nn and nngraph objects, and the source that builds them."""
