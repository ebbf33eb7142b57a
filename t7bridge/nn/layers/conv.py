"""Convolutions. Kernels stored as matrices get PyTorch's dimensions. Sources: nn 8726825, cudnn.torch.

Those of 2010 to 2012: xLearn bfbe47b, nnx 1c28e23, torch7-distro 0f97e8a.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve

from ...data import define
from ...graph.tensor import Tensor
from ..fields import Fields
from ..layouts import FIRST, REST, Merge, Narrow, Permute, Reshape, permute
from ..mapping import (
    LAYERS,
    Choice,
    Lua,
    Read,
    Row,
    axes,
    either,
    extent,
    flag,
    has,
    integer,
    made,
    of_runtime,
    of_torch,
    pair,
    shape,
)
from ..output_shapes import temporal
from ..registry import InLua, Traits, buffer, param, register_layer
from ..texts import window
from ..torch_nn import Tensors, constructed

# The files of 2010 have images of (w, h, planes) with the first dimension contiguous; Torch 7 reversed both, so that
# the memory is the same. Modules made from them accept (planes, h, w), as those of all later files.


@define(frozen=True)
class Turn:
    """A layout step: the dimensions in reverse order, for a tensor that has them in the order of 2010.

    Attributes:
        extents: the fields with the tensor's sizes, in the order of Torch 7; `REST` for the connections of a table.
    """

    extents: tuple[str, ...]

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """See `LayoutStep.apply`."""
        return permute(tensor, self._backwards) if self._applies(tensor, fields) else tensor

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """See `LayoutStep.undo`."""
        is_turned = tensor.size[::-1] == before and tensor.size != before
        return permute(tensor, self._backwards) if is_turned else tensor

    @property
    def _backwards(self) -> tuple[int, ...]:
        return tuple(reversed(range(len(self.extents))))

    def _applies(self, tensor: Tensor, fields: Fields) -> bool:
        """Return whether a tensor has the sizes of Torch 7 backwards.

        Where these are the same in both directions, the first dimension was contiguous in 2010, and the last is since.
        """
        size: list[int] = []
        for name in self.extents:
            if name == REST:
                table = fields.find_tensor("connTable")
                connections = table.size[0] if table is not None else 0
                size.append(connections)
            else:
                size.append(fields.integer(name, 0))
        if tensor.size != tuple(reversed(size)):
            return False
        is_palindrome = tensor.size == tuple(size)
        return not is_palindrome or tensor.stride[0] < tensor.stride[-1]


# A linear layer at each position of an image: torch.nn.Conv2d with kernels of one element.
register_layer(
    "nn.SpatialLinear",
    params=(param("weight", Turn(("fanout", "fanin")), Reshape(("fanout", "fanin", 1, 1))), param("bias")),
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


BIAS = param("bias")
# (out, in / groups, kH, kW); SpatialConvolutionMM, and nn.SpatialConvolution of February 2015, keep it as a matrix.
_KERNEL = Reshape((FIRST, REST, "kH", "kW"))
KERNEL_2D = param("weight", Turn(("nOutputPlane", "nInputPlane", "kH", "kW")), _KERNEL)
# (out, in / groups, kT, kH, kW); the MM kernels of 2015 are matrices.
KERNEL_3D = param("weight", Reshape((FIRST, REST, "kT", "kH", "kW")))

_UNFOLDED = "finput fgradInput ones columns"
# On the CPU. Source: nn 8726825 `lib/THNN/generic/unfold.c`, `VolumetricConvolutionMM.c`.
_UNFOLDS = InLua(unfolds=True)
_CUDNN = "iSize input_offset output_offset weight_offset workspace buffer autotunerHash"


_GROUPS = integer("groups", 1)
_IF_BIAS = has("bias").unless(True)
KERNEL = made(lambda lua: lua.shape("weight")[2:])
INPUTS = made(lambda lua: lua.shape("weight")[1] * lua.integer("groups", 1))


def _keyword_arguments(dims: int, groups: Read = _GROUPS) -> dict[str, Any]:
    """Return the arguments of a convolution by keyword; with PyTorch's default, all but the stride are left out.

    Args:
        dims: dimensions of a kernel.
        groups: the source of the number of groups.
    """
    return {
        "stride": axes("d", dims, 1),  # fields dW, dH, …; 1 without them
        # Fields padW, padH, …; up to 2015-06 one field `padding` was for all axes.
        "padding": axes("padding|pad", dims, 0).unless((0,) * dims),
        "groups": groups.unless(1),
        "bias": _IF_BIAS,
    }


def convolution(dims: int, target: str) -> Row:
    """Return the mapping of objects to a class with the arguments of torch.nn.Conv2d or Conv3d.

    Args:
        dims: dimensions of a kernel.
        target: the dotted name of the class.
    """
    dilation = axes("dilation", dims, 1).unless((1,) * dims)
    return Row(target, (INPUTS, extent("weight"), KERNEL), {**_keyword_arguments(dims), "dilation": dilation})


def _convolution_of_any_extent(dims: int) -> Choice:
    """Return the mapping of objects to torch.nn.Conv2d or Conv3d, or a class that accepts as small inputs as Lua.

    Lua rounds the extent of the output towards zero: an input that is smaller than the kernel by less than a stride has
    one output. PyTorch refuses such an input, so that a class of the runtime computes it: where a kernel is dilated, or
    where an input can be that small although it is padded. Without padding and dilation Lua reads past such an input;
    then PyTorch's class is right to refuse it.
    Source: THNN `SpatialDilatedConvolution.c`, `SpatialConvolutionMM.c`, `unfold.c`.

    Args:
        dims: dimensions of a kernel.
    """
    of_runtime_class = convolution(dims, f"{LAYERS}conv.DilatedConv{dims}d")
    of_torch_class = convolution(dims, f"torch.nn.Conv{dims}d")
    # Such small inputs are rare: generated source has PyTorch's class (`ModuleSpec.plain`), which refuses them.
    plain_in_pages = evolve(of_runtime_class, plain=of_torch_class.target)
    undilated = either(_may_exceed_padded_input(dims), plain_in_pages, of_torch_class)
    return either(_strides_dilated(dims), of_runtime_class, undilated)


def _strides_dilated(dims: int) -> Callable[[Lua], bool]:
    """Return a function that says whether a kernel is dilated and strided along one dimension.

    With a stride of 1 the extent of the output is not rounded, and PyTorch's class refuses what Lua refuses.
    """
    dilations = axes("dilation", dims, 1)
    strides = axes("d", dims, 1)

    def strides_dilated(lua: Lua) -> bool:
        of_axes = zip(dilations.get(lua), strides.get(lua))
        return any(dilation > 1 and stride > 1 for dilation, stride in of_axes)

    return strides_dilated


def _may_exceed_padded_input(dims: int) -> Callable[[Lua], bool]:
    """Return a function that says whether inputs are padded, and the smallest one is still smaller than the kernel.

    The smallest has one element. As for dilated kernels, it matters only with a stride above 1.
    """
    strides = axes("d", dims, 1)
    paddings = axes("padding|pad", dims, 0)

    def may_exceed(lua: Lua) -> bool:
        if not any(paddings.get(lua)):
            return False
        of_axes = zip(KERNEL.get(lua), strides.get(lua), paddings.get(lua))
        return any(stride > 1 and kernel > 1 + 2 * padding for kernel, stride, padding in of_axes)

    return may_exceed


def _full_convolution(dims: int) -> Row:
    """Map to torch.nn.ConvTranspose2d or 3d, of a weight (in, out / groups, …), as a class that also accepts lists."""
    extra = axes("adj", dims, 0).unless((0,) * dims)
    args = (extent("weight"), INPUTS, KERNEL)
    kwargs = {**_keyword_arguments(dims), "output_padding": extra}
    return Row(f"{LAYERS}conv.FullConvolution{dims}d", args, kwargs, plain=f"torch.nn.ConvTranspose{dims}d")


def _temporal(step: str, **kwargs: Any) -> Row:
    args = (extent("weight", 1), extent("weight"), extent("weight", 2))
    return of_runtime("conv.TemporalConv", *args, stride=integer(step, 1), **kwargs, bias=_IF_BIAS)


def _row_shapes(features: int, kernel_size: int, stride: int = 1, bias: bool = True, *_: Any, **__: Any) -> Tensors:
    return constructed("Conv1d", (features, features, kernel_size, stride), {"groups": features, "bias": bias})


# torch.nn.Conv2d, and Conv2d(dilation=…).
_PLAIN = (
    "nn.SpatialConvolution",
    "nn.SpatialConvolutionMM",
    "nn.SpatialConvolutionFFT",
    "nn.SpatialConvolutionCuFFT",
    "nn.SpatialDilatedConvolution",
)
_BEYOND = (
    "an input smaller than the kernel is refused; with a stride and padding or dilation, it is treated as if zeros "
    "followed, if less than a stride is missing, as in Lua (`model.py`: only with dilation)"
)
_DILATED = window(planes=True, extra="dilation", always=True)
CONVOLUTION_2D = register_layer(
    *_PLAIN,
    params=(KERNEL_2D, BIAS),
    remark=_BEYOND,
    scratch=f"{_UNFOLDED} {_CUDNN}",
    module=dict.fromkeys(_PLAIN, _convolution_of_any_extent(2)),
    traits=Traits(like="Conv2d", written=("plain",)),
    in_lua=dict.fromkeys(("nn.SpatialConvolution", "nn.SpatialConvolutionMM"), _UNFOLDS),
    text={
        **dict.fromkeys(("nn.SpatialConvolution", "nn.SpatialConvolutionMM"), window(planes=True)),
        "nn.SpatialDilatedConvolution": _DILATED,
    },
)
# cunn of 2013: kernels (in, kH, kW, out).
register_layer(
    "nn.SpatialConvolutionCUDA",
    params=(param("weight", Permute((3, 0, 1, 2))), BIAS),
)
# Kernels (mult, in, kH, kW) and bias (mult, in), with outputs ordered by input plane: Conv2d(groups=in), of images with
# height and width exchanged.
register_layer(
    "nn.SpatialDepthWiseConvolution",
    params=(
        param("weight", _KERNEL, Merge((1, 0, 2, 3), (REST, 1, "kH", "kW"))),
        param("bias", Merge((1, 0), (REST,))),
    ),
    scratch=_UNFOLDED,
    module=of_runtime(
        "conv.DepthWiseConv2d",
        integer("nInputPlane"),
        extent("weight"),
        KERNEL,
        **_keyword_arguments(2, integer("nInputPlane")),
    ),
    traits=Traits(axes="bchw"),
    text=window(planes=True),
)
# A kernel for each output position, (oH, oW, out, in, kH, kW), which Lua flattens while it computes.
register_layer(
    "nn.SpatialConvolutionLocal",
    params=(
        param("weight", Reshape(("oH", "oW", "nOutputPlane", "nInputPlane", "kH", "kW"))),
        param("bias", Reshape(("nOutputPlane", "oH", "oW"))),
    ),
    scratch=_UNFOLDED,
    module=of_runtime("conv.LocalConv2d", shape("weight"), pair("dH", "dW"), pair("padH", "padW", default=0)),
    traits=Traits(shapes=lambda shape, *_: {"weight": shape, "bias": (shape[2], *shape[:2])}, axes="bchw"),
)
_CONNECTIONS_BACK = evolve(CONNECTIONS, kwargs={**CONNECTIONS.kwargs, "transposed": True})
# A kernel for each connection, (connections, kH, kW); the table of connections counts planes from 1.
register_layer(
    params=(param("weight"), BIAS, buffer("connTable")),
    scratch=_UNFOLDED,
    module={
        "nn.SpatialConvolutionMap": CONNECTIONS,
        "nn.SpatialFullConvolutionMap": _CONNECTIONS_BACK,
    },
    traits=Traits(
        shapes=lambda inputs, outputs, shape, *_, **__: {
            "weight": shape,
            "bias": (outputs,),
            "connTable": (shape[0], 2),
        },
        axes="bchw",
    ),
)
# (in, out / groups, kH, kW): torch.nn.ConvTranspose2d.
register_layer(
    "nn.SpatialFullConvolution",
    params=(param("weight", _KERNEL), BIAS),
    scratch=f"{_UNFOLDED} {_CUDNN} zeroScalar",
    module=_full_convolution(2),
    traits=Traits(may_take_list=True, written=("plain",), like="ConvTranspose2d"),
    text=window(planes=True, extra="adj"),
)


def _one_each(channels: int, *_: Any) -> Tensors:
    return {"weight": (channels,), "bias": (channels,)}


# One factor and one offset for each plane. A tracker of 2011 keeps its factors as kernels, (planes, kH, kW), of which
# the layer reads as many elements as there are planes.
register_layer(
    params=(param("weight", Reshape((REST,)), Narrow(dim=0, start=0, length="nInputPlane")), BIAS),
    module={"nn.SpatialSubSampling": of_runtime("conv.SubSampling2d", extent("weight"), axes("k", 2), axes("d", 2, 1))},
    traits=Traits(shapes=_one_each, axes="bchw"),
)
register_layer(
    "nn.TemporalSubSampling",
    params=(param("weight"), BIAS),
    module=of_runtime("conv.TemporalSubSampling", extent("weight"), integer("kW"), integer("dW", 1)),
    traits=Traits(shapes=_one_each, axes="btc"),
)

# (out, kW * in), the kernel's columns before the features; cuDNN's fields kH and kW have other meanings.
# torch.nn.Conv1d has (out, in, kW).
_KERNEL_1D = param("weight", Reshape((FIRST, REST, "inputFrameSize")), Permute((0, 2, 1)))
register_layer(
    params=(_KERNEL_1D, BIAS),
    scratch=f"{_UNFOLDED} {_CUDNN} buffer oSize",
    module={
        "nn.TemporalConvolution": _temporal("dW"),
        "nn.TemporalConvolutionFB": _temporal("dW"),  # fbcunn: (out, kW, in)
        # A SpatialConvolution inside, with fields kH, dH and padH for the time axis.
        "cudnn.TemporalConvolution": _temporal("dH", padding=integer("padH", 0).unless(0)),
    },
    traits=Traits(written=("conv_in_time",), like="Conv1d", output=temporal, axes="btc"),
)
# (in, 1, kW): Conv1d(groups=in).
register_layer(
    "nn.TemporalRowConvolution",
    params=(param("weight", Reshape((FIRST, 1, REST))), BIAS),
    scratch=_UNFOLDED,
    module=of_runtime(
        "conv.TemporalRowConv",
        extent("weight"),
        extent("weight", 2),
        stride=integer("dW", 1),
        bias=_IF_BIAS,
        features_first=flag("featFirst").unless(False),
    ),
    traits=Traits(shapes=_row_shapes, axes="btc"),
)

# torch.nn.Conv3d, and Conv3d(dilation=…).
register_layer(
    "nn.VolumetricConvolution",
    "nn.VolumetricConvolutionMM",
    "nn.VolumetricDilatedConvolution",
    params=(KERNEL_3D, BIAS),
    remark=_BEYOND,
    scratch=f"{_UNFOLDED} {_CUDNN}",
    module=_convolution_of_any_extent(3),
    traits=Traits(like="Conv3d", written=("plain",)),
    in_lua={"nn.VolumetricConvolution": _UNFOLDS},
    text={
        **dict.fromkeys(("nn.VolumetricConvolution", "nn.VolumetricConvolutionMM"), window(planes=True)),
        "nn.VolumetricDilatedConvolution": _DILATED,
    },
)
# (in, out / groups, kT, kH, kW): torch.nn.ConvTranspose3d.
register_layer(
    "nn.VolumetricFullConvolution",
    params=(KERNEL_3D, BIAS),
    scratch=f"{_UNFOLDED} {_CUDNN}",
    module=_full_convolution(3),
    traits=Traits(may_take_list=True, written=("plain",), like="ConvTranspose3d"),
    text=window(planes=True, extra="adj"),
)
