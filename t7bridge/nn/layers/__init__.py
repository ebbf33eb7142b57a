"""The table of layers: one declarative entry a class, one file a family or Lua package."""

# Each import fills the registry.

from . import (  # noqa: F401
    activation,
    containers,
    conv,
    criterion,
    linear,
    norm,
    packages,
    pooling,
    recurrent,
    shape,
)
