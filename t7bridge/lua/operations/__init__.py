"""The operations of the table, one file per family. Importing this module fills `lua.table.OPERATIONS`."""

from . import (
    activation,
    arithmetic,
    attention,
    bags,
    comparison,
    composed,
    convolution,
    einsum,
    linear,
    normalization,
    pooling,
    recurrent,
    reduction,
    reparametrized,
    resample,
    shape,
)

__all__ = [
    "activation",
    "arithmetic",
    "attention",
    "bags",
    "comparison",
    "composed",
    "convolution",
    "einsum",
    "linear",
    "normalization",
    "pooling",
    "recurrent",
    "reduction",
    "reparametrized",
    "resample",
    "shape",
]
