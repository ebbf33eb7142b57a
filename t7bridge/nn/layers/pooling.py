"""Pooling, padding and resampling: no state. Sources: nn 8726825, nnx 1c28e23, cudnn.torch 008c49d."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...graph.lua import TorchObject
from .. import output_shapes as out
from ..fields import Fields
from ..layouts import elements, nested
from ..mapping import (
    AXES,
    LAYERS,
    Call,
    Choice,
    Literal,
    Lua,
    NotMappedError,
    Read,
    Row,
    axes,
    becomes,
    dim,
    either,
    flag,
    integer,
    made,
    number,
    of_runtime,
    of_torch,
    optional,
    pair,
)
from ..registry import InLua, Traits, register_layer
from ..texts import window

_SCRATCH = "pooling ones random_samples randomSamples"


_LOSING_CEIL_MODE = ("nn.VolumetricMaxPooling", "nn.VolumetricDilatedMaxPooling")


def _loses_ceil_mode(fields: Fields) -> bool:
    """Return whether Lua sets the ceil mode of an object to false when it reads it.

    nn.VolumetricMaxPooling does so with a class version below 2, and Lua takes an object without one for version 0.
    nn.VolumetricDilatedMaxPooling inherits that, and has itself written version 1 in all releases.

    Source: nn 8726825 `VolumetricMaxPooling:read`.
    """
    version = fields.obj.version or 0
    return fields.obj.class_name in _LOSING_CEIL_MODE and version < 2


def _lost_ceil_note(fields: Fields) -> str:
    """Return a note if an object had a ceil mode when it was saved, which Lua does not read."""
    if fields.flag("ceil_mode") and _loses_ceil_mode(fields):
        return "was saved in ceil mode, which is lost with a class version below 2: it rounds down, as Lua does then"
    return ""


_CEIL_MODE = made(lambda lua: lua.flag("ceil_mode") and not _loses_ceil_mode(lua)).unless(False)


def windows(dims: int) -> dict[str, Any]:
    """Return the arguments that determine the windows of a pooling, by keyword, for a number of dimensions."""
    kernel = axes("k", dims)

    def stride(lua: Lua) -> tuple[int, ...]:
        """Return the steps along all axes, by default as large as the kernel."""
        return tuple(lua.integer(f"d{axis}", size) for axis, size in zip(AXES[dims], kernel.get(lua)))

    return {
        "kernel_size": kernel,
        "stride": made(stride),
        "padding": axes("pad", dims, 0),
        "ceil_mode": _CEIL_MODE,
    }


_CEILED = (
    "with ceil mode, strides larger than the kernel and no padding, windows may begin after the input, as in Lua:  "
    "averages of nothing are NaN"
)


def _may_begin_after_input(dims: int, dilation: Read | None = None) -> Callable[[Any], bool]:
    """Return a function of the fields that says whether windows may begin after the end of the input.

    Args:
        dims: dimensions of a window.
        dilation: the distances of its elements, if a layer has them.
    """
    arguments = windows(dims)

    def may_begin_after(fields: Any) -> bool:
        """Return whether a window with these fields may begin after the end of an input of some size."""
        kernel = arguments["kernel_size"].get(fields)
        strides = arguments["stride"].get(fields)
        padding = arguments["padding"].get(fields)
        ceil_mode = arguments["ceil_mode"].get(fields)
        # With padding, Lua leaves out a last window that would begin after the input, as PyTorch does.
        if not ceil_mode or any(padding):
            return False
        steps = dilation.get(fields) if dilation else (1,) * dims
        spans = [step * (size - 1) + 1 for size, step in zip(kernel, steps)]
        # If a stride is larger than a window, elements between two windows are in neither. Where the input ends among
        # these, the next window begins after it. A kernel of 0 is left to PyTorch's class, which refuses it.
        return any(stride > span > 0 for stride, span in zip(strides, spans))

    return may_begin_after


def _ceiled(dims: int, usual: Row | Choice, dilation: Read | None = None, **kwargs: Any) -> Choice:
    """Map poolings; where windows may begin after the end of the input, to a class that has such windows.

    PyTorch omits these windows.

    Args:
        dims: dimensions of a window.
        usual: the mapping of all others.
        dilation: the distances of a window's elements, if the layers have them.
        **kwargs: further arguments of that class by keyword.
    """
    arguments = windows(dims)
    if dilation is not None:
        kwargs["dilation"] = dilation
    pool = of_runtime("pooling.CeiledPool", arguments["kernel_size"], arguments["stride"], **kwargs)
    return either(_may_begin_after_input(dims, dilation), pool, usual)


_LEFT_OUT = (
    "with ceil mode, strides larger than the kernel and no padding, cuDNN may add a window outside the input; PyTorch "
    "leaves it out"
)


def _ceil_note(fields: Fields) -> str:
    """Return a note if a window of cuDNN may begin after the end of the input, so that the sizes differ."""
    dims = 3 if ".Volumetric" in fields.obj.class_name else 2
    may_begin_after = _may_begin_after_input(dims)
    return _LEFT_OUT if may_begin_after(fields) else ""


def _max_pool(dims: int) -> Choice:
    """Map largest elements of windows, which with dilation may hold padding alone.

    For these PyTorch returns minus infinity, and passes their gradient to some element of the input.
    """
    dilation = axes("dilation", dims, 1).unless((1,) * dims)
    options = {**windows(dims), "dilation": dilation}

    def may_be_padding(lua: Lua) -> bool:
        """Return whether a window may hold padding alone: where it is dilated, and its input padded."""
        steps = zip(dilation.get(lua), options["padding"].get(lua))
        return any(step > 1 and padding > 0 for step, padding in steps)

    padded = of_runtime(f"pooling.DilatedMaxPool{dims}d", **options)
    usual = of_torch(f"MaxPool{dims}d", **options)
    return _ceiled(dims, either(may_be_padding, padded, usual), dilation)


register_layer(
    remark=_CEILED,
    note=_lost_ceil_note,
    module={
        "nn.SpatialMaxPooling": _max_pool(2),
        "nn.SpatialDilatedMaxPooling": _max_pool(2),
        "nn.VolumetricMaxPooling": _max_pool(3),
        "nn.VolumetricDilatedMaxPooling": _max_pool(3),
    },
    # An unpooling refers to its pooling, which then has to remember the indices.
    traits={
        **{f"torch.nn.MaxPool{dims}d": Traits(remembering=f"pooling.IndexedMaxPool{dims}d") for dims in (2, 3)},
        **{
            f"pooling.DilatedMaxPool{dims}d": Traits(
                like=f"MaxPool{dims}d", remembering=f"pooling.IndexedMaxPool{dims}d"
            )
            for dims in (2, 3)
        },
        **{f"pooling.IndexedMaxPool{dims}d": Traits(like=f"MaxPool{dims}d") for dims in (2, 3)},
    },
    text={
        **dict.fromkeys(("nn.SpatialMaxPooling", "nn.VolumetricMaxPooling"), window()),
        **dict.fromkeys(
            ("nn.SpatialDilatedMaxPooling", "nn.VolumetricDilatedMaxPooling"), window(extra="dilation", always=True)
        ),
    },
)


_DIVIDE = flag("divide", True)
# Whether means count the padding: nn has a field for it, cuDNN's class says it in `mode`.
_COUNT = made(lambda lua: lua.flag("count_include_pad", True) and "EXCLUDE" not in lua.text("mode")).unless(True)


def _average_pool(dims: int, cudnn: bool = False) -> Choice:
    """Map average pooling, or a sum where Lua does not divide.

    Args:
        dims: dimensions of a window.
        cudnn: whether it is cuDNN's, which omits windows after the input, as PyTorch does.
    """
    options = {**windows(dims), "count_include_pad": _COUNT}
    means = of_torch(f"AvgPool{dims}d", **options)
    sums = of_runtime(f"pooling.SumPool{dims}d", **options)
    pool = either(_DIVIDE.get, means, sums)
    return pool if cudnn else _ceiled(dims, pool, average=True, divide=_DIVIDE.unless(True))


_WINDOW = ("kW", "kH", "dW", "dH", "padW", "padH", "ceil_mode")
# Before 2015-03 there was no `divide`, and this pooling was a sum. The other two classes never had the field: they
# average.
register_layer(
    "nn.SpatialAveragePooling",
    defaults={"divide": False},
    remark=_CEILED,
    module=_average_pool(2),
    text=window(),
    in_lua=InLua(options=_WINDOW),
)
register_layer(
    "nn.VolumetricAveragePooling",
    remark=_CEILED,
    module=_average_pool(3),
    text=window(),
)
register_layer(
    note=_ceil_note,
    remark=_LEFT_OUT,
    module={
        "cudnn.SpatialAveragePooling": _average_pool(2, cudnn=True),
        "cudnn.VolumetricAveragePooling": _average_pool(3, cudnn=True),
    },
    traits={f"pooling.SumPool{dims}d": Traits(like=f"AvgPool{dims}d") for dims in (2, 3)},
    # In the patterns of compounds, which have no padding, the class computes as nn's: they differ at the border only.
    in_lua={"cudnn.SpatialAveragePooling": InLua(like="nn.SpatialAveragePooling", options=_WINDOW)},
)


def _max_unpool(dims: int) -> Choice:
    """Map max unpooling, which refers to the pooling that it undoes, for a number of dimensions of a window."""

    @becomes("pooling.MaxUnpool")
    def module(lua: Lua) -> Call:
        """Return the construction, with the pooling as a module elsewhere in the model."""
        pooling = lua.get("pooling")
        if not isinstance(pooling, TorchObject):
            raise lua.wrong("pooling", "the pooling module", pooling)
        return Call(f"{LAYERS}pooling.MaxUnpool", kwargs={"dims": dims}, refers={"pooling": pooling})

    return module


def _kept_samples(lua: Lua, dims: int) -> Literal:
    """Return the random numbers of fractional max pooling if the module uses them again; otherwise `None`.

    It does if it keeps them, ran with them, and was not cleared since.

    Args:
        lua: the layer.
        dims: dimensions of a window.
    """
    numbers = lua.find_tensor("randomSamples")
    # `newRandomPool` is true after `fixPoolingRegions`, which makes Lua use the same numbers again.
    if numbers is None or not lua.flag("newRandomPool"):
        return None
    # For images both have the numbers in the order w, h. For volumes Lua has t, w, h, and PyTorch the order of the
    # dimensions, which are h, w, t in Lua.
    order = [2, 1, 0] if dims == 3 else [0, 1]
    return nested(elements(numbers)[..., order].tolist())


def _fractional_max_pool(axes: str) -> Row:
    """Map fractional max pooling, which has either a ratio of sizes or the size of the output.

    Args:
        axes: the ends of the names of its fields, in the order of the input's dimensions.
    """
    first_ratio = f"ratio{axes[0]}"  # a layer has a ratio for each axis, or for none

    def of_axes(prefix: str, read: Callable[[Lua, str], Any]) -> Callable[[Lua], Literal]:
        """Return a function of the fields that reads one of each axis."""
        return lambda lua: tuple(read(lua, f"{prefix}{axis}") for axis in axes)

    ratio = of_axes("ratio", Lua.number)
    size = of_axes("out", Lua.integer)
    return of_runtime(
        "pooling.FractionalMaxPool",
        of_axes("poolSize", Lua.integer),
        output_ratio=lambda lua: ratio(lua) if lua.has(first_ratio) else None,
        output_size=lambda lua: None if lua.has(first_ratio) else size(lua),
        samples=lambda lua: _kept_samples(lua, len(axes)),
        keep=flag("newRandomPool").unless(False),
    )


_EXACT_COUNTS = (1, 2, 3, 4, 6, 8, 11, 16, 31, 32, 33, 64)
"""Numbers of windows, up to 64, for which Lua and PyTorch have the same ones in every input of up to 2^16 elements."""


def _adaptive_max_pool() -> Choice:
    """Map adaptive max pooling. Lua computes in single precision where windows begin and end, and some have an element
    more than PyTorch's: of 21 elements to 7, or 19 to 19.

    Source: nn 8726825 `THNN/generic/SpatialAdaptiveMaxPooling.c`, `(float)i / owidth * iwidth`. The average pooling
    divides last, `(float)(a * c) / b`, which is exact as long as the product has at most 24 bits.
    """
    counts = pair("H", "W")

    def is_exact(lua: Lua) -> bool:
        """Return whether the windows are PyTorch's, whatever the size of the input."""
        return all(count in _EXACT_COUNTS for count in counts.get(lua))

    usual = of_torch("AdaptiveMaxPool2d", counts)
    rounded = of_runtime("pooling.AdaptiveMaxPool2d", counts)
    return either(is_exact, usual, rounded)


register_layer(
    "nn.SpatialAdaptiveMaxPooling",
    remark="windows of Lua, which computes them in single precision: of 21 elements to 7, some have one more than "
    "PyTorch's",
    scratch=_SCRATCH,
    module=_adaptive_max_pool(),
    traits={"pooling.AdaptiveMaxPool2d": Traits(like="AdaptiveMaxPool2d")},
)
register_layer(
    "cudnn.Pooling",
    scratch=_SCRATCH,
    module={
        "nn.FeatureLPPooling": of_runtime(
            "pooling.FeatureLPPool",
            integer("width"),
            integer("stride"),
            number("power"),
            batched=flag("batch_mode"),
        ),
        "nn.SpatialAdaptiveAveragePooling": of_torch("AdaptiveAvgPool2d", pair("H", "W")),
        "nn.SpatialFractionalMaxPooling": _fractional_max_pool("HW"),
        # Unlike the other poolings of volumes, it has time as the last dimension.
        "nn.VolumetricFractionalMaxPooling": _fractional_max_pool("HWT"),
        "nn.SpatialMaxUnpooling": _max_unpool(2),
        "nn.VolumetricMaxUnpooling": _max_unpool(3),
        "nn.TemporalMaxPooling": of_runtime("conv.TemporalMaxPool", integer("kW"), integer("dW")),
        "nn.TemporalDynamicKMaxPooling": of_runtime(
            "conv.TemporalDynamicKMaxPool", integer("minK"), number("factor", 0.0)
        ),
    },
    traits={"conv.TemporalMaxPool": Traits(written=("pool_in_time",), output=out.temporal_pool)},
    text={
        "nn.SpatialFractionalMaxPooling": (
            "({outW}x{outH}, {poolSizeW},{poolSizeH})",
            "({ratioW}x{ratioH}, {poolSizeW},{poolSizeH})",
        ),
        "nn.VolumetricFractionalMaxPooling": (
            "({outT}x{outW}x{outH}, {poolSizeT},{poolSizeW},{poolSizeH})",
            "({ratioT}x{ratioW}x{ratioH}, {poolSizeT},{poolSizeW},{poolSizeH})",
        ),
    },
)


def _scaled(name: str, size: Read, plain: str = "", **kwargs: Any) -> Choice:
    """Map upsampling, by a factor or to a size.

    Args:
        name: of the class.
        size: reads the size.
        plain: an equivalent class of `torch.nn` for tensors with a batch dimension, if there is one.
        **kwargs: further arguments by keyword.
    """
    by_factor = of_runtime(f"resample.{name}", plain=plain, scale_factor=integer("scale_factor"), **kwargs)
    to_size = of_runtime(f"resample.{name}", plain=plain, size=size, **kwargs)
    return either(lambda lua: lua.has("scale_factor"), by_factor, to_size)


_SIZES = made(lambda lua: tuple(lua.integer(name) for name in ("odepth", "oheight", "owidth") if lua.has(name)))
_LINEAR = made(lambda lua: lua.text("mode", "nearest") != "nearest").unless(False)


def _border(name: str) -> Row:
    return of_torch(name, pair("pad_l", "pad_r", "pad_t", "pad_b"))


def _shaved(lua: Lua) -> int:
    """Return the width of the border that a ShaveImage removes.

    Raises:
        NotMappedError: it is negative.
    """
    size = lua.integer("size")
    if size < 0:
        raise NotMappedError("its border is negative", path=lua.path)
    return size


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
        "nn.Padding": of_runtime(
            "resample.Padding",
            dim("dim"),
            integer("pad"),
            n_input_dims=optional("nInputDim"),
            value=number("value", 0.0),
            index=dim("index", 1).unless(0),
        ),
        "nn.ShaveImage": of_runtime("resample.ShaveImage", _shaved),
        "nn.SpatialUpSamplingNearest": of_runtime(
            "resample.UpsamplingNearest2d", scale_factor=integer("scale_factor"), plain="UpsamplingNearest2d"
        ),
        "nn.SpatialUpSamplingBilinear": _scaled(
            "UpsamplingBilinear2d", pair("oheight", "owidth"), "UpsamplingBilinear2d"
        ),
        "nn.UpSampling": _scaled("UpSampling", _SIZES, linear=_LINEAR),
        "nn.PixelShuffle": of_torch("PixelShuffle", integer("upscaleFactor")),
    },
    traits={
        "resample.Padding": Traits(output=out.padding),
        "resample.UpsamplingNearest2d": Traits(output=out.upsample),
        "resample.UpsamplingBilinear2d": Traits(output=out.upsample),
        "resample.ShaveImage": Traits(shares_memory=True),
        "resample.SpatialPadding": Traits(shares_memory=True),
    },
    in_lua={"nn.SpatialUpSamplingBilinear": InLua(tolerance=0.0)},  # coefficients are in single precision
    text={
        **{
            f"nn.Spatial{kind}Padding": "(l={pad_l}, r={pad_r}, t={pad_t}, b={pad_b})"
            for kind in ("Zero", "Reflection", "Replication")
        },
        "nn.SpatialUpSamplingBilinear": ("({scale_factor})", "({oheight}, {owidth})"),
        "nn.UpSampling": (
            "({scale_factor}x, {mode:s})",
            "({odepth}x{oheight}x{owidth}, {mode:s})",
            "({oheight}x{owidth}, {mode:s})",
        ),
    },
)
