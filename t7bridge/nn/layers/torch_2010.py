"""Layers of 2010 to 2012. Sources: xLearn bfbe47b, nnx 1c28e23, torch7-distro 0f97e8a.

The files of 2010 have images of (w, h, planes) with the first dimension contiguous; Torch 7 reversed both, so that the
memory is the same. Modules made from them accept (planes, h, w), as those of all later files.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...data import define
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ..fields import Fields, items_of
from ..layouts import REST, Permute, Reshape, permute
from ..mapping import Literal, Lua, axes, flag, integer, made, of_runtime, of_torch, optional_number, shape
from ..registry import Child, Param, Traits, buffer, keeps, modules, param, register_layer


def is_turned(tensor: Tensor, sizes: tuple[int, ...]) -> bool:
    """Return whether a tensor has its dimensions in the order of 2010.

    Args:
        tensor: the tensor.
        sizes: its sizes in Torch 7, by the fields of its object.
    """
    if tensor.size != sizes[::-1]:
        return False
    return tensor.size != sizes or tensor.stride[0] < tensor.stride[-1]


@define(frozen=True)
class Turn:
    """The dimensions in reverse order, for a tensor that has them in the order of 2010.

    Attributes:
        extents: the fields with its sizes in Torch 7; `REST` for the connections of a table.
    """

    extents: tuple[str, ...]

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """See `Step.apply`."""
        return permute(tensor, self._backwards) if self._applies(tensor, fields) else tensor

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """See `Step.undo`."""
        return permute(tensor, self._backwards) if tensor.size[::-1] == before != tensor.size else tensor

    @property
    def _backwards(self) -> tuple[int, ...]:
        return tuple(reversed(range(len(self.extents))))

    def _applies(self, tensor: Tensor, fields: Fields) -> bool:
        connections = fields.find_tensor("connTable")
        many = connections.size[0] if connections is not None else 0
        return is_turned(tensor, tuple(many if name == REST else fields.integer(name) for name in self.extents))


# torch.nn.Conv2d with kernels (kW, kH, in, out); other files are handled as in `conv`.
TURNED_KERNEL = param("weight", Permute((3, 2, 1, 0)))


def has_turned_kernel(fields: Fields) -> bool:
    """Return whether a convolution has its kernels in the order of 2010."""
    weight = fields.find_tensor("weight")
    names = ("nOutputPlane", "nInputPlane", "kH", "kW")
    if weight is None or len(weight.size) != 4 or not all(fields.has(name) for name in names):
        return False
    return is_turned(weight, tuple(fields.integer(name) for name in names))


# A linear layer at each position of an image: torch.nn.Conv2d with kernels of one element.
register_layer(
    "nn.SpatialLinear",
    params=(param("weight", Turn(("fanout", "fanin")), Reshape((*("fanout", "fanin"), 1, 1))), param("bias")),
    module=of_torch("Conv2d", integer("fanin"), integer("fanout"), 1),
)


CONNECTIONS = of_runtime(
    "conv.ConvMap2d", integer("nInputPlane"), integer("nOutputPlane"), shape("weight"), stride=axes("d", 2, 1)
)


# A kernel for each connection, (connections, kH, kW).
register_layer(
    params=(param("weight", Turn((REST, "kH", "kW"))), param("bias"), buffer("connTable")),
    scratch="connTableRev",
    module=dict.fromkeys(("nn.SpatialConvolutionTable", "nn.SpatialConvolutionSparse"), CONNECTIONS),
)


@keeps("kernel", "kernel2")
def _kernels(fields: Fields) -> tuple[Param, ...]:
    """Return one kernel, or a row and a column. `nn.LocalNorm` is of 2010."""
    turn = (Permute((1, 0)),) if fields.obj.class_name == "nn.LocalNorm" else ()
    if isinstance(fields.get("kernel"), Tensor):
        return (buffer("kernel", *turn),)
    return (buffer("kernel", *turn, field="kernel.1"), buffer("kernel2", *turn, field="kernel.2"))


def _shapes(lua: Lua) -> tuple[Literal, ...]:
    return tuple(lua.shape(name) for name in ("kernel", "kernel2") if name in lua.shapes) or (lua.shape("kernel"),)


_NORMALIZATION = of_runtime(
    "norm.SpatialNormalization", made(_shapes).each, threshold=optional_number("fixedThres").unless(None)
)
# The modules that Lua built from the kernel are left out.
register_layer(
    params=_kernels,
    scratch="convo convostd squareMod sqrtMod subtractMod substractMod meanDiviseMod stdDiviseMod thresMod diviseMod "
    "coef inConvo inMean inputZeroMean inputZeroMeanSq inConvoVar inVar inStdDev inStdDevNotUnit stdDev thstd input",
    module=dict.fromkeys(("nn.SpatialNormalization", "nn.LocalNorm"), _NORMALIZATION),
    traits={"norm.SpatialNormalization": Traits(shapes=lambda *shapes, **_: dict(zip(("kernel", "kernel2"), shapes)))},
)


def _classifier(obj: TorchObject) -> Iterator[Child]:
    """Return the modules of a classifier: `modules` was added later than `classifier`."""
    if items_of(obj.get("modules")):
        yield from modules(obj)
    elif obj.get("classifier") is not None:
        yield Child("0", ".classifier", obj.get("classifier"))


register_layer(
    "nn.SpatialClassifier",
    children=_classifier,
    scratch="classifier inputF inputT outputF outputT gradOutputF gradOutputT gradInputF gradInputT",
    module=of_runtime("containers.SpatialClassifier", spatial=flag("spatialOutput", True)),
)
register_layer(module={"nn.AbsModule": of_runtime("activation.Abs")})
