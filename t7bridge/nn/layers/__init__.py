"""The table of layers: one declarative entry a class, one file a family, and one for dpnn."""

# Each import fills the registry.

from . import (  # noqa: F401
    activation,
    containers,
    conv,
    criterion,
    dpnn,
    linear,
    norm,
    pooling,
    recurrent,
    shape,
)
