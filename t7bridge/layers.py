"""Public names for layers of your own: entries that give a Lua class a meaning, and what they are made of.

`docs/own-layers.md` is the guide. An entry is registered once and known everywhere: by `convert`, `load_module`,
`module`, `inspect` and `draw`. Importing this module loads the table of Lua layers, but not PyTorch: `Layer`,
`with_batch` and others that classes of PyTorch are made of are loaded when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .data import face
from .errors import ModelError
from .graph.lua import Table, TorchObject
from .graph.tensor import Tensor
from .nn import walk as flows
from .nn.fields import Fields, items_of
from .nn.layouts import FIRST, LAST, REST, BlockOrder, Merge, Narrow, Permute, Reshape, elements
from .nn.mapping import (
    BASE,
    INPLACE,
    Call,
    Lua,
    NotMappedError,
    Row,
    axes,
    becomes,
    dim,
    either,
    extent,
    flag,
    has,
    integer,
    made,
    number,
    of_class,
    of_runtime,
    of_torch,
    optional,
    optional_dim,
    optional_number,
    pair,
    shape,
    sizes,
)
from .nn.output_shapes import Arguments, Mismatch, same
from .nn.registry import (
    Child,
    InLua,
    Param,
    RecurrentLayer,
    Source,
    Traits,
    buffer,
    children_at,
    criterions,
    first_module,
    keeps,
    layer_of,
    modules,
    named_modules,
    param,
    register_layer,
    register_module,
    registered_layers,
    unregister_layer,
)
from .nn.texts import Printed
from .nn.walk import Domain

if TYPE_CHECKING:
    from .torchmodules.layers.base import Layer, dim_of, with_batch, with_gradient
    from .torchmodules.layers.conv import local_convolution
    from .torchmodules.layers.resample import interpolate

_load = face(
    __package__,
    {
        "torchmodules.layers.base": "Layer dim_of with_batch with_gradient",
        "torchmodules.layers.conv": "local_convolution",
        "torchmodules.layers.resample": "interpolate",
    },
)

__all__ = [
    "BASE",
    "FIRST",
    "INPLACE",
    "LAST",
    "REST",
    "Arguments",
    "BlockOrder",
    "Call",
    "Child",
    "Domain",
    "Fields",
    "InLua",
    "Layer",
    "Lua",
    "Merge",
    "Mismatch",
    "ModelError",
    "Narrow",
    "NotMappedError",
    "Param",
    "Permute",
    "Printed",
    "RecurrentLayer",
    "Reshape",
    "Row",
    "Source",
    "Table",
    "Tensor",
    "TorchObject",
    "Traits",
    "axes",
    "becomes",
    "buffer",
    "children_at",
    "criterions",
    "dim",
    "dim_of",
    "either",
    "elements",
    "extent",
    "first_module",
    "flag",
    "flows",
    "has",
    "integer",
    "interpolate",
    "items_of",
    "keeps",
    "layer_of",
    "local_convolution",
    "made",
    "modules",
    "named_modules",
    "number",
    "of_class",
    "of_runtime",
    "of_torch",
    "optional",
    "optional_dim",
    "optional_number",
    "pair",
    "param",
    "register_layer",
    "register_module",
    "registered_layers",
    "same",
    "shape",
    "sizes",
    "unregister_layer",
    "with_batch",
    "with_gradient",
]


def __getattr__(name: str) -> Any:
    value = globals()[name] = _load(name)
    return value
