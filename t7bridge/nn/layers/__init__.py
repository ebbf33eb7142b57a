"""The table of layers: one declarative entry a class, one file a family or Lua package."""

# Each import fills the registry.

from . import (  # noqa: F401
    activation,
    bnn,
    ccn2,
    containers,
    conv,
    criterion,
    cudnn_rnn,
    dpnn,
    embedding,
    inn,
    language,
    linear,
    nnx,
    norm,
    pooling,
    proposals,
    recurrent,
    shape,
    style,
    torch_2010,
    w2nn,
)
