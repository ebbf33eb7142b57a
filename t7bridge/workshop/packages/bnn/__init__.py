"""Binary networks. Source: bnn.torch e974791 and XNOR-Net 4006d59."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from t7bridge.layers import (
    Fields,
    ModelError,
    Tensor,
    Traits,
    axes,
    buffer,
    elements,
    of_class,
    register_layer,
    shape,
)


@dataclass(frozen=True)
class Signs:
    """32 signs in each integer, lowest bit first, 1 for +1: as numbers -1 and 1, (out, in, kH, kW)."""

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """Return the signs as numbers.

        Args:
            tensor: the integers, int32.
            fields: of the layer.

        Raises:
            ModelError: there are more or fewer signs than the layer has weights.
        """
        import numpy as np

        sizes = ("nOutputPlane", "nInputPlane", "kH", "kW")
        shape = tuple(fields.integer(name) for name in sizes)
        words = np.ascontiguousarray(elements(tensor)).astype("<u4")
        bits = np.unpackbits(words.view("u1"), bitorder="little")
        if bits.size != prod(shape):
            raise ModelError(
                "the signs do not match the layer",
                expected=f"{prod(shape)}",
                found=f"{bits.size}",
            )
        return Tensor.from_numpy(bits.reshape(shape).astype("f4") * 2 - 1)

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """Return the integers of signs, in the shape `before`; numbers that are not positive become -1."""
        import numpy as np

        is_positive = (elements(tensor) > 0).reshape(-1)
        packed = np.packbits(is_positive, bitorder="little")
        return Tensor.from_numpy(packed.view("<i4").reshape(before))


register_layer(
    "bnn.SpatialConvolution",
    params=(buffer("weight", Signs()), buffer("alphas")),
    scratch="finput columns_binary",
    module=of_class(
        ".modules.BinaryConv2d",
        shape("weight"),
        stride=axes("d", 2, 1),
        padding=axes("pad", 2, 0).unless((0, 0)),
    ),
    traits=Traits(
        shapes=lambda shape, *_, **__: {"weight": shape, "alphas": (shape[0],)},
        axes="bchw",
    ),
)
register_layer("bnn.Binary", "nn.BinActiveZ", module=of_class(".modules.Binary"))
