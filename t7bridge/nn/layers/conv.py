"""Convolutions. Kernels stored as matrices get PyTorch's dimensions. Sources: nn 8726825, cudnn.torch."""

from __future__ import annotations

from typing import Any

from ..fields import Fields
from ..layouts import FIRST, REST, Merge, Narrow, Permute, Reshape
from ..mapping import LAYERS, Call, Choice, Lua, becomes, extent, integer, of_runtime, pair, shape
from ..output_shapes import temporal
from ..registry import Param, Traits, buffer, keeps, param, register_layer
from ..torch_nn import Tensors, constructed
from .pooling import axes
from .torch_2010 import TURNED_KERNEL, has_turned_kernel

BIAS = param("bias")
# (out, in / groups, kH, kW); SpatialConvolutionMM, and nn.SpatialConvolution of February 2015, keep it as a matrix.
KERNEL_2D = param("weight", Reshape((FIRST, REST, "kH", "kW")))
# (out, in / groups, kT, kH, kW); the MM kernels of 2015 are matrices.
KERNEL_3D = param("weight", Reshape((FIRST, REST, "kT", "kH", "kW")))

_NO_PADDING = {"padW": 0.0, "padH": 0.0}
_UNFOLDED = "finput fgradInput ones columns"
_CUDNN = "iSize input_offset output_offset weight_offset workspace buffer autotunerHash"


def convolution(dims: int) -> Choice:
    """Return the mapping of objects to torch.nn.Conv2d or Conv3d. Up to 2015-06 one `padding` applied to all axes."""

    @becomes(f"torch.nn.Conv{dims}d", f"conv.DilatedConv{dims}d")
    def module(lua: Lua) -> Call:
        outputs, inputs, *kernel = lua.shape("weight")
        groups = lua.integer("groups", 1)
        kwargs = _places(lua, dims, groups)
        dilation = axes(lua, "dilation", dims, 1)
        if set(dilation) != {1}:
            kwargs["dilation"] = dilation
        # Source: THNN `SpatialDilatedConvolution.c`: the extent of the output is rounded towards zero.
        partial = any(step > 1 and stride > 1 for step, stride in zip(dilation, kwargs["stride"]))
        target = f"{LAYERS}conv.DilatedConv{dims}d" if partial else f"torch.nn.Conv{dims}d"
        return Call(target, (inputs * groups, outputs, tuple(kernel)), kwargs)

    return module


def _places(lua: Lua, dims: int, groups: int) -> dict[str, Any]:
    kwargs: dict[str, Any] = {"stride": axes(lua, "d", dims, 1)}
    padding = axes(lua, "padding|pad", dims, 0)
    if any(padding):
        kwargs["padding"] = padding
    if groups != 1:
        kwargs["groups"] = groups
    if "bias" not in lua.shapes:
        kwargs["bias"] = False
    return kwargs


def _full_convolution(dims: int) -> Choice:
    """Map to torch.nn.ConvTranspose2d or 3d, whose weight is (in, out / groups, …)."""

    @becomes(f"conv.FullConvolution{dims}d")
    def module(lua: Lua) -> Call:
        inputs, outputs, *kernel = lua.shape("weight")
        groups = lua.integer("groups", 1)
        kwargs = _places(lua, dims, groups)
        extra = axes(lua, "adj", dims, 0)
        if any(extra):
            kwargs["output_padding"] = extra
        arguments = (inputs, outputs * groups, tuple(kernel))
        return Call(f"{LAYERS}conv.FullConvolution{dims}d", arguments, kwargs, f"torch.nn.ConvTranspose{dims}d")

    return module


@becomes("conv.DepthWiseConv2d")
def _depth_wise(lua: Lua) -> Call:
    inputs = lua.integer("nInputPlane")
    outputs, _, *kernel = lua.shape("weight")
    return Call(f"{LAYERS}conv.DepthWiseConv2d", (inputs, outputs, tuple(kernel)), _places(lua, 2, inputs))


def _map(transposed: bool) -> Choice:
    @becomes("conv.ConvMap2d")
    def module(lua: Lua) -> Call:
        planes = (lua.integer("nInputPlane"), lua.integer("nOutputPlane"))
        kwargs: dict[str, Any] = {"stride": axes(lua, "d", 2, 1)}
        if transposed:
            kwargs["transposed"] = True
        return Call(f"{LAYERS}conv.ConvMap2d", (*planes, lua.shape("weight")), kwargs)

    return module


@becomes("conv.SubSampling2d")
def _sub_sampling(lua: Lua) -> Call:
    (planes,) = lua.shape("weight")
    return Call(f"{LAYERS}conv.SubSampling2d", (planes, axes(lua, "k", 2), axes(lua, "d", 2, 1)))


@becomes("conv.TemporalConv")
def _temporal(lua: Lua) -> Call:
    """Map cuDNN's class: a SpatialConvolution inside, with fields kH, dH and padH for the time axis."""
    outputs, inputs, kernel = lua.shape("weight")
    cudnn = lua.obj.class_name.startswith("cudnn.")
    kwargs: dict[str, Any] = {"stride": lua.integer("dH" if cudnn else "dW", 1)}
    if cudnn and lua.integer("padH", 0):
        kwargs["padding"] = lua.integer("padH")
    if "bias" not in lua.shapes:
        kwargs["bias"] = False
    return Call(f"{LAYERS}conv.TemporalConv", (inputs, outputs, kernel), kwargs)


@becomes("conv.TemporalRowConv")
def _temporal_row(lua: Lua) -> Call:
    features, _, kernel = lua.shape("weight")
    kwargs: dict[str, Any] = {"stride": lua.integer("dW", 1)}
    if "bias" not in lua.shapes:
        kwargs["bias"] = False
    if lua.flag("featFirst"):
        kwargs["features_first"] = True
    return Call(f"{LAYERS}conv.TemporalRowConv", (features, kernel), kwargs)


def _row_shapes(features: int, kernel_size: int, stride: int = 1, bias: bool = True, *_: Any, **__: Any) -> Tensors:
    return constructed("Conv1d", (features, features, kernel_size, stride), {"groups": features, "bias": bias})


@keeps("weight", "bias")
def kernel_2d(fields: Fields) -> tuple[Param, ...]:
    """Return the tensors of a 2-D convolution, whatever the order of its kernels."""
    return (TURNED_KERNEL if has_turned_kernel(fields) else KERNEL_2D, BIAS)


# torch.nn.Conv2d, and Conv2d(dilation=…).
_PLAIN = (
    "nn.SpatialConvolution",
    "nn.SpatialConvolutionMM",
    "nn.SpatialConvolutionFFT",
    "nn.SpatialConvolutionCuFFT",
    "nn.SpatialDilatedConvolution",
)
_BEYOND = (
    "an input smaller than the kernel is refused; with dilation and a stride, it is treated as "
    "if zeros followed, if less than a stride is missing, as in Lua"
)
CONVOLUTION_2D = register_layer(
    *_PLAIN,
    params=kernel_2d,
    defaults={**_NO_PADDING, "groups": 1.0, "dilationW": 1.0, "dilationH": 1.0},
    remark=_BEYOND,
    scratch=f"{_UNFOLDED} {_CUDNN}",
    module=dict.fromkeys(_PLAIN, convolution(2)),
    traits={"conv.DilatedConv2d": Traits(like="Conv2d")},
)
# cunn of 2013: kernels (in, kH, kW, out).
register_layer(
    "nn.SpatialConvolutionCUDA",
    params=(param("weight", Permute((3, 0, 1, 2))), BIAS),
    defaults={**_NO_PADDING, "padding": 0.0},
)
# Kernels (mult, in, kH, kW) and bias (mult, in), with outputs ordered by input plane: Conv2d(groups=in), of images with
# height and width exchanged.
register_layer(
    "nn.SpatialDepthWiseConvolution",
    params=(
        param("weight", Reshape((FIRST, REST, "kH", "kW")), Merge((1, 0, 2, 3), (REST, 1, "kH", "kW"))),
        param("bias", Merge((1, 0), (REST,))),
    ),
    defaults=_NO_PADDING,
    scratch=_UNFOLDED,
    module=_depth_wise,
)
# A kernel for each output position, (oH, oW, out, in, kH, kW), which Lua flattens while it computes.
register_layer(
    "nn.SpatialConvolutionLocal",
    params=(
        param("weight", Reshape(("oH", "oW", "nOutputPlane", "nInputPlane", "kH", "kW"))),
        param("bias", Reshape(("nOutputPlane", "oH", "oW"))),
    ),
    defaults=_NO_PADDING,
    scratch=_UNFOLDED,
    module=of_runtime("conv.LocalConv2d", shape("weight"), pair("dH", "dW"), pair("padH", "padW", default=0)),
    traits={
        "conv.LocalConv2d": Traits(shapes=lambda shape, *_: {"weight": shape, "bias": (shape[2], *shape[:2])}),
    },
)
# A kernel for each connection, (connections, kH, kW); the table of connections counts planes from 1.
register_layer(
    params=(param("weight"), BIAS, buffer("connTable")),
    scratch=_UNFOLDED,
    module={"nn.SpatialConvolutionMap": _map(False), "nn.SpatialFullConvolutionMap": _map(True)},
    traits={
        "conv.ConvMap2d": Traits(
            shapes=lambda inputs, outputs, shape, *_, **__: {
                "weight": shape,
                "bias": (outputs,),
                "connTable": (shape[0], 2),
            }
        )
    },
)
# (in, out / groups, kH, kW): torch.nn.ConvTranspose2d.
register_layer(
    "nn.SpatialFullConvolution",
    params=(KERNEL_2D, BIAS),
    defaults={**_NO_PADDING, "adjW": 0.0, "adjH": 0.0, "groups": 1.0},
    scratch=f"{_UNFOLDED} {_CUDNN} zeroScalar",
    module=_full_convolution(2),
    traits={
        "conv.FullConvolution2d": Traits(
            may_take_list=True,
            written=("plain", "ConvTranspose2d"),
            like="ConvTranspose2d",
        )
    },
)


def _each(channels: int, *_: Any) -> Tensors:
    return {"weight": (channels,), "bias": (channels,)}


# One factor and one offset for each plane. A tracker of 2011 keeps its factors as kernels, (planes, kH, kW), of which
# the layer reads as many elements as there are planes.
register_layer(
    params=(param("weight", Reshape((REST,)), Narrow(0, 0, "nInputPlane")), BIAS),
    module={"nn.SpatialSubSampling": _sub_sampling},
    traits={"conv.SubSampling2d": Traits(shapes=_each)},
)
register_layer(
    "nn.TemporalSubSampling",
    params=(param("weight"), BIAS),
    module=of_runtime("conv.TemporalSubSampling", extent("weight"), integer("kW"), integer("dW", 1)),
    traits={"conv.TemporalSubSampling": Traits(shapes=_each)},
)

# (out, kW * in), the kernel's columns before the features; cuDNN's fields kH and kW have other meanings.
# torch.nn.Conv1d has (out, in, kW).
_KERNEL_1D = param("weight", Reshape((FIRST, REST, "inputFrameSize")), Permute((0, 2, 1)))
register_layer(
    "nn.TemporalConvolution",
    "nn.TemporalConvolutionFB",  # fbcunn: (out, kW, in)
    params=(_KERNEL_1D, BIAS),
    defaults={"padH": 0.0},
    scratch=f"{_UNFOLDED} {_CUDNN} buffer oSize",
    module=_temporal,
    traits={"conv.TemporalConv": Traits(written=("conv_in_time",), like="Conv1d", output=temporal)},
)
# (in, 1, kW): Conv1d(groups=in).
register_layer(
    "nn.TemporalRowConvolution",
    params=(param("weight", Reshape((FIRST, 1, REST))), BIAS),
    defaults={"featFirst": False},
    scratch=_UNFOLDED,
    module=_temporal_row,
    traits={"conv.TemporalRowConv": Traits(shapes=_row_shapes)},
)

_VOLUME = {**_NO_PADDING, "padT": 0.0, "groups": 1.0}
# torch.nn.Conv3d, and Conv3d(dilation=…).
register_layer(
    "nn.VolumetricConvolution",
    "nn.VolumetricConvolutionMM",
    "nn.VolumetricDilatedConvolution",
    params=(KERNEL_3D, BIAS),
    defaults={**_VOLUME, "dilationT": 1.0, "dilationW": 1.0, "dilationH": 1.0},
    remark=_BEYOND,
    scratch=f"{_UNFOLDED} {_CUDNN}",
    module=convolution(3),
    traits={"conv.DilatedConv3d": Traits(like="Conv3d")},
)
# (in, out / groups, kT, kH, kW): torch.nn.ConvTranspose3d.
register_layer(
    "nn.VolumetricFullConvolution",
    params=(KERNEL_3D, BIAS),
    defaults={**_VOLUME, "adjT": 0.0, "adjW": 0.0, "adjH": 0.0},
    scratch=f"{_UNFOLDED} {_CUDNN}",
    module=_full_convolution(3),
    traits={
        "conv.FullConvolution3d": Traits(
            may_take_list=True,
            written=("plain", "ConvTranspose3d"),
            like="ConvTranspose3d",
        )
    },
)
