"""Pooling, padding and resampling: no state. Sources: nn 8726825, nnx 1c28e23, cudnn.torch 008c49d."""

from __future__ import annotations

from typing import Any

from ...graph.lua import TorchObject
from .. import output_shapes as out
from ..fields import Fields
from ..layouts import elements
from ..mapping import (
    LAYERS,
    Call,
    Choice,
    Lua,
    NotMappedError,
    Row,
    becomes,
    dim,
    flag,
    integer,
    number,
    of_runtime,
    of_torch,
    pair,
)
from ..registry import Traits, register_layer

_WHERE = "pooling ones random_samples randomSamples"
_AXES = {2: ("H", "W"), 3: ("T", "H", "W")}


def axes(lua: Lua, prefix: str, dims: int, default: int | None = None) -> tuple[int, ...]:
    """Return whole numbers of each axis, `kH`, `kW` for the prefix `k`; one field may serve all axes: `padding|pad`."""
    whole, _, each = prefix.rpartition("|")
    front = f"{whole}|" if whole else ""
    return tuple(lua.integer(f"{front}{each}{axis}", default) for axis in _AXES[dims])


def windows(lua: Lua, dims: int) -> dict[str, Any]:
    """Return the arguments that determine the windows of a pooling."""
    kernel = axes(lua, "k", dims)
    kwargs: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": tuple(lua.integer(f"d{axis}", size) for axis, size in zip(_AXES[dims], kernel)),
        "padding": axes(lua, "pad", dims, 0),
    }
    if lua.flag("ceil_mode"):
        kwargs["ceil_mode"] = True
    return kwargs


_CEILED = (
    "with ceil mode, strides larger than the kernel and no padding, windows may begin after the input, as in Lua:  "
    "averages of nothing are NaN"
)


def _is_ceiled(kwargs: dict[str, Any], dilation: tuple[int, ...]) -> bool:
    """Return whether a window may begin after the end of the input. PyTorch omits such windows."""
    spans = (step * (size - 1) + 1 for size, step in zip(kwargs["kernel_size"], dilation))
    beyond = any(stride > span > 0 for stride, span in zip(kwargs["stride"], spans))
    return bool(kwargs.get("ceil_mode")) and beyond and not any(kwargs["padding"])


_LEFT_OUT = (
    "with ceil mode, strides larger than the kernel and no padding, cuDNN may add a window outside the input; PyTorch "
    "leaves it out"
)


def _ceil_note(fields: Fields) -> str:
    """Return a note if a window of cuDNN may begin after the end of the input, so that the sizes differ."""
    axes = [axis for axis in "TWH" if fields.number(f"d{axis}", 0) > fields.number(f"k{axis}", 0) > 0]
    if not fields.flag("ceil_mode") or not axes or any(fields.number(f"pad{axis}", 0) for axis in "TWH"):
        return ""
    return _LEFT_OUT


def _max_pool(dims: int) -> Choice:
    @becomes(f"torch.nn.MaxPool{dims}d", "pooling.CeiledPool")
    def module(lua: Lua) -> Call:
        kwargs = windows(lua, dims)
        dilation = axes(lua, "dilation", dims, 1)
        if set(dilation) != {1}:
            kwargs["dilation"] = dilation
        if _is_ceiled(kwargs, dilation):
            given = {} if set(dilation) == {1} else {"dilation": dilation}
            return Call(f"{LAYERS}pooling.CeiledPool", (kwargs["kernel_size"], kwargs["stride"]), given)
        return Call(f"torch.nn.MaxPool{dims}d", (), kwargs)

    return module


register_layer(
    defaults={"padT": 0.0, "padW": 0.0, "padH": 0.0, "ceil_mode": False},
    remark=_CEILED,
    module={
        "nn.SpatialMaxPooling": _max_pool(2),
        "nn.SpatialDilatedMaxPooling": _max_pool(2),
        "nn.VolumetricMaxPooling": _max_pool(3),
        "nn.VolumetricDilatedMaxPooling": _max_pool(3),
    },
    # Unpooling refers to them.
    traits={
        **{f"torch.nn.MaxPool{dims}d": Traits(remembering=f"pooling.IndexedMaxPool{dims}d") for dims in (2, 3)},
        **{f"pooling.IndexedMaxPool{dims}d": Traits(like=f"MaxPool{dims}d") for dims in (2, 3)},
    },
)


def _average_pool(dims: int, cudnn: bool = False) -> Choice:
    """Map average pooling. cuDNN omits windows after the input."""

    @becomes(f"torch.nn.AvgPool{dims}d", f"pooling.SumPool{dims}d", "pooling.CeiledPool")
    def module(lua: Lua) -> Call:
        kwargs = windows(lua, dims)
        # cuDNN's class has it in `mode`.
        if not lua.flag("count_include_pad", True) or "EXCLUDE" in lua.text("mode"):
            kwargs["count_include_pad"] = False
        divided = lua.flag("divide", True)
        if not cudnn and _is_ceiled(kwargs, (1,) * dims):
            options = {"average": True, **({} if divided else {"divide": False})}
            return Call(f"{LAYERS}pooling.CeiledPool", (kwargs["kernel_size"], kwargs["stride"]), options)
        average = f"torch.nn.AvgPool{dims}d"
        return Call(average if divided else f"{LAYERS}pooling.SumPool{dims}d", (), kwargs)

    return module


_AVERAGE = {"padT": 0.0, "padW": 0.0, "padH": 0.0, "ceil_mode": False, "count_include_pad": True}
# Before 2015-03 there was no `divide`, and pooling was a sum; the other two never had the field, and average.
register_layer(
    "nn.SpatialAveragePooling",
    defaults={**_AVERAGE, "divide": False},
    remark=_CEILED,
    module=_average_pool(2),
)
register_layer(
    "nn.VolumetricAveragePooling",
    remark=_CEILED,
    defaults={**_AVERAGE, "divide": True},
    module=_average_pool(3),
)
register_layer(
    note=_ceil_note,
    remark=_LEFT_OUT,
    defaults={**_AVERAGE, "divide": True},
    module={
        "cudnn.SpatialAveragePooling": _average_pool(2, cudnn=True),
        "cudnn.VolumetricAveragePooling": _average_pool(3, cudnn=True),
    },
    traits={f"pooling.SumPool{dims}d": Traits(like=f"AvgPool{dims}d") for dims in (2, 3)},
)


def _max_unpool(dims: int) -> Choice:
    @becomes("pooling.MaxUnpool")
    def module(lua: Lua) -> Call:
        pooling = lua.get("pooling")
        if not isinstance(pooling, TorchObject):
            raise lua.wrong("pooling", "the pooling module", pooling)
        return Call(f"{LAYERS}pooling.MaxUnpool", (), {"dims": dims}, refers={"pooling": pooling})

    return module


def _fractional_max_pool(axes: str) -> Choice:
    """Map fractional max pooling: the file has its random numbers unless the module never ran or was cleared."""

    @becomes("pooling.FractionalMaxPool")
    def module(lua: Lua) -> Call:
        kwargs: dict[str, Any] = {}
        if lua.has(f"ratio{axes[0]}"):
            kwargs["output_ratio"] = tuple(lua.number(f"ratio{axis}") for axis in axes)
        else:
            kwargs["output_size"] = tuple(lua.integer(f"out{axis}") for axis in axes)
        samples = lua.find_tensor("randomSamples")
        if samples is not None and lua.flag("newRandomPool"):
            # For volumes, Lua has the numbers in the order t, w, h, and PyTorch t, h, w.
            order = [0, 2, 1] if len(axes) == 3 else [0, 1]
            kwargs["samples"] = _nested(elements(samples)[..., order].tolist())
        if lua.flag("newRandomPool"):
            kwargs["keep"] = True
        kernel = tuple(lua.integer(f"poolSize{axis}") for axis in axes)
        return Call(f"{LAYERS}pooling.FractionalMaxPool", (kernel,), kwargs)

    return module


def _nested(value: Any) -> Any:
    return tuple(_nested(item) for item in value) if isinstance(value, list) else value


register_layer(
    "cudnn.Pooling",
    scratch=_WHERE,
    module={
        "nn.FeatureLPPooling": of_runtime(
            "pooling.FeatureLPPool",
            integer("width"),
            integer("stride"),
            number("power"),
            batched=flag("batch_mode"),
        ),
        "nn.SpatialAdaptiveAveragePooling": of_torch("AdaptiveAvgPool2d", pair("H", "W")),
        "nn.SpatialAdaptiveMaxPooling": of_torch("AdaptiveMaxPool2d", pair("H", "W")),
        "nn.SpatialFractionalMaxPooling": _fractional_max_pool("HW"),
        "nn.VolumetricFractionalMaxPooling": _fractional_max_pool("THW"),
        "nn.SpatialMaxUnpooling": _max_unpool(2),
        "nn.VolumetricMaxUnpooling": _max_unpool(3),
        "nn.TemporalMaxPooling": of_runtime("conv.TemporalMaxPool", integer("kW"), integer("dW")),
        "nn.TemporalDynamicKMaxPooling": of_runtime(
            "conv.TemporalDynamicKMaxPool", integer("minK"), number("factor", 0.0)
        ),
    },
    traits={"conv.TemporalMaxPool": Traits(written=("pool_in_time",), output=out.temporal_pool)},
)


@becomes("resample.UpsamplingBilinear2d")
def _bilinear(lua: Lua) -> Call:
    target = f"{LAYERS}resample.UpsamplingBilinear2d"
    if lua.has("scale_factor"):
        return Call(target, (), {"scale_factor": lua.integer("scale_factor")}, "torch.nn.UpsamplingBilinear2d")
    size = (lua.integer("oheight"), lua.integer("owidth"))
    return Call(target, (), {"size": size}, "torch.nn.UpsamplingBilinear2d")


@becomes("resample.UpSampling")
def _up_sampling(lua: Lua) -> Call:
    kwargs: dict[str, Any] = {}
    if lua.has("scale_factor"):
        kwargs["scale_factor"] = lua.integer("scale_factor")
    else:
        names = ("odepth", "oheight", "owidth")
        kwargs["size"] = tuple(lua.integer(name) for name in names if lua.has(name))
    if lua.text("mode", "nearest") != "nearest":
        kwargs["linear"] = True
    return Call(f"{LAYERS}resample.UpSampling", (), kwargs)


@becomes("resample.Padding")
def _padding(lua: Lua) -> Call:
    index = lua.integer("index", 1) - 1
    kwargs: dict[str, Any] = {"n_input_dims": lua.optional("nInputDim"), "value": lua.number("value", 0.0)}
    if index:
        kwargs["index"] = index
    return Call(f"{LAYERS}resample.Padding", (lua.index0("dim"), lua.integer("pad")), kwargs)


def _border(name: str) -> Row:
    return of_torch(name, pair("pad_l", "pad_r", "pad_t", "pad_b"))


@becomes("resample.ShaveImage")
def _shave(lua: Lua) -> Call:
    size = lua.integer("size")
    if size < 0:
        raise NotMappedError("its border is negative", path=lua.path)
    return Call(f"{LAYERS}resample.ShaveImage", (size,))


register_layer(
    module={
        "nn.SpatialZeroPadding": _border("ZeroPad2d"),
        "nn.SpatialReflectionPadding": _border("ReflectionPad2d"),
        "nn.SpatialReplicationPadding": _border("ReplicationPad2d"),
        "nn.VolumetricReplicationPadding": of_torch(
            "ReplicationPad3d", pair("pleft", "pright", "ptop", "pbottom", "pfront", "pback")
        ),
        "nn.SpatialPadding": of_runtime(
            "resample.SpatialPadding",
            integer("pad_l"),
            integer("pad_r"),
            integer("pad_t"),
            integer("pad_b"),
            rows=dim("y_dim", 2),
            columns=dim("x_dim", 3),
            value=number("val", 0.0),
        ),
        "nn.Padding": _padding,
        "nn.ShaveImage": _shave,
        "nn.SpatialUpSamplingNearest": of_runtime(
            "resample.UpsamplingNearest2d", scale_factor=integer("scale_factor"), plain="UpsamplingNearest2d"
        ),
        "nn.SpatialUpSamplingBilinear": _bilinear,
        "nn.UpSampling": _up_sampling,
        "nn.PixelShuffle": of_torch("PixelShuffle", integer("upscaleFactor")),
    },
    traits={
        "resample.Padding": Traits(output=out.padding),
        "resample.UpsamplingNearest2d": Traits(output=out.upsample),
        "resample.UpsamplingBilinear2d": Traits(output=out.upsample),
        "resample.ShaveImage": Traits(shares_memory=True),
        "resample.SpatialPadding": Traits(shares_memory=True),
    },
)
