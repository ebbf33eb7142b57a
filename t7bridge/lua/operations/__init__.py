"""The operations of the table, a file a family. Importing this module fills `lua.table.OPERATIONS`."""

from . import (
    activation,
    arithmetic,
    attention,
    convolution,
    linear,
    normalization,
    pooling,
    recurrent,
    reduction,
    resample,
    shape,
)

__all__ = [
    "activation",
    "arithmetic",
    "attention",
    "convolution",
    "linear",
    "normalization",
    "pooling",
    "recurrent",
    "reduction",
    "resample",
    "shape",
]
