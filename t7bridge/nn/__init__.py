"""What Lua's layers mean in PyTorch: one declarative entry a class, one file a family.

May import graph, errors, limits and report. Knows neither formats nor PyTorch.
"""

# Each import fills the registry with one family.
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
    linear,
    nnx,
    norm,
    pooling,
    recurrent,
    shape,
    vintage,
    w2nn,
    zoo_language,
    zoo_masks,
    zoo_style,
)
