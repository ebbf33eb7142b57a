"""The table of layers: one declarative entry a class, one file a family or Lua package."""

# Each import fills the registry with one family.
from . import (
    activation as activation,
)
from . import (
    bnn as bnn,
)
from . import (
    ccn2 as ccn2,
)
from . import (
    containers as containers,
)
from . import (
    conv as conv,
)
from . import (
    criterion as criterion,
)
from . import (
    cudnn_rnn as cudnn_rnn,
)
from . import (
    dpnn as dpnn,
)
from . import (
    embedding as embedding,
)
from . import (
    inn as inn,
)
from . import (
    language as language,
)
from . import (
    linear as linear,
)
from . import (
    nnx as nnx,
)
from . import (
    norm as norm,
)
from . import (
    pooling as pooling,
)
from . import (
    proposals as proposals,
)
from . import (
    recurrent as recurrent,
)
from . import (
    shape as shape,
)
from . import (
    style as style,
)
from . import (
    torch_2010 as torch_2010,
)
from . import (
    w2nn as w2nn,
)
