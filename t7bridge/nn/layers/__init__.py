"""The table of layers: one declarative entry a class, one file a family, and one for dpnn."""

# Each import fills the registry.

from ..late import register_later
from . import activation, containers, conv, linear, norm, pooling, shape  # noqa: F401

# Most models have no class of these, which are as many as all others.
register_later(f"{__name__}.criterion", f"{__name__}.dpnn", f"{__name__}.recurrent")
