"""Binary networks: XNOR-Net and its relatives. Sources: bnn.torch e974791, XNOR-Net 4006d59."""

from __future__ import annotations

from ...data import define
from ...errors import ModelError
from ...graph.tensor import Tensor
from ...lazy import np
from ..fields import Fields
from ..layouts import elements
from ..mapping import axes, of_runtime, shape
from ..registry import Traits, buffer, register_layer


@define(frozen=True)
class Signs:
    """32 signs in each integer, lowest bit first, 1 for +1: as numbers -1 and 1, (out, in, kH, kW)."""

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """See `Step.apply`."""
        shape = tuple(fields.integer(name) for name in ("nOutputPlane", "nInputPlane", "kH", "kW"))
        words = np.ascontiguousarray(elements(tensor)).astype("<u4")
        bits = np.unpackbits(words.view("u1"), bitorder="little")
        if bits.size != np.prod(shape):
            raise ModelError("the signs do not match the layer", expected=f"{np.prod(shape)}", found=f"{bits.size}")
        return Tensor.from_numpy(bits.reshape(shape).astype("f4") * 2 - 1)

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """See `Step.undo`."""
        packed = np.packbits((elements(tensor) > 0).reshape(-1), bitorder="little")
        return Tensor.from_numpy(packed.view("<i4").reshape(before))


_CONVOLUTION = of_runtime(
    "conv.BinaryConv2d", shape("weight"), stride=axes("d", 2, 1), padding=axes("pad", 2, 0).unless((0, 0))
)
register_layer(
    "bnn.SpatialConvolution",
    params=(buffer("weight", Signs()), buffer("alphas")),
    scratch="finput columns_binary",
    module=_CONVOLUTION,
    traits={
        "conv.BinaryConv2d": Traits(shapes=lambda shape, *_, **__: {"weight": shape, "alphas": (shape[0],)}),
    },
)
_BINARY = of_runtime("gradient.Binary")
register_layer(module={"bnn.Binary": _BINARY, "nn.BinActiveZ": _BINARY})
