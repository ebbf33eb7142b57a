"""Public names for operations of PyTorch that a package adds to `lua`: how each is built of Lua layers.

`docs/extensions.md` is the guide, and the table of t7bridge's own operations has many examples.
"""

from __future__ import annotations

from .workshop.lua import Builder, CannotError, Learned, Wire, make, operation, same, sequential

__all__ = ["Builder", "CannotError", "Learned", "Wire", "make", "operation", "same", "sequential"]
