"""Normalization layers. Sources: nn 8726825, cudnn.torch, fast-neural-style, texture_nets."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, sqrt
from typing import Any

from ...data import np
from ...graph.dtypes import INT64
from ...graph.lua import TorchObject
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from .. import walk
from ..compounds import node, recognized
from ..fields import Fields, lookup
from ..layouts import REST, DeviationToVariance, Permute, Reshape, elements
from ..mapping import (
    Literal,
    Lua,
    NotMappedError,
    Row,
    either,
    extent,
    has,
    integer,
    made,
    number,
    of_runtime,
    of_torch,
    optional_number,
)
from ..output_shapes import batch_of_one, same
from ..registry import (
    Child,
    InLua,
    Param,
    Recording,
    Source,
    Traits,
    buffer,
    declare_recordings,
    keeps,
    modules,
    param,
    register_layer,
    stock_name,
)
from ..texts import Printed
from ..torch_nn import Tensors


def _zero_batches_tracked(fields: Fields) -> Tensor | None:
    """Return PyTorch's count of batches seen, 0, as Lua keeps none; `None` if it is not wanted."""
    # A layer without running statistics has none in PyTorch either.
    if fields.find_tensor("running_mean") is None:
        return None
    return Tensor(INT64, Storage.zeros(INT64, 1), is_scalar=True)


_FLAT = Reshape((REST,))
_RUNNING_STATISTICS = (
    buffer("running_mean", _FLAT),
    Param(
        "running_var",
        kind="buffer",
        # nn before 2016-02 and cudnn.torch before its version 2 kept 1 / sqrt(variance + eps). Class versions do not
        # distinguish them: VolumetricBatchNormalization is at 1 and has running_var.
        sources=(Source("running_var", (_FLAT,)), Source("running_std", (_FLAT, DeviationToVariance()))),
    ),
    Param("num_batches_tracked", kind="derived", make=_zero_batches_tracked),
)
# torch.nn.BatchNorm1d, 2d, 3d: all tensors (features).


def _batch_norm(dims: int) -> Row:
    """Map to torch.nn.BatchNorm1d, 2d or 3d for batches, or a class that accepts single examples, too."""
    return of_runtime(
        f"norm.BatchNorm{dims}d",
        extent("running_mean"),
        plain=f"BatchNorm{dims}d",
        eps=number("eps", 1e-5),
        momentum=number("momentum", 0.1),
        affine=has("weight"),
    )


register_layer(
    params=(param("weight", _FLAT), param("bias", _FLAT), *_RUNNING_STATISTICS),
    scratch="save_mean save_std saved_mean saved_std iSize centered std normalized buffer buffer2 scaleT",
    remark="training with a batch of one uses its own mean and variance (and is refused if there is one value a "
    "feature), as nn did before August 2017; later releases use the running ones then",
    module={
        "nn.BatchNormalization": _batch_norm(1),
        "nn.SpatialBatchNormalization": _batch_norm(2),
        "nn.VolumetricBatchNormalization": _batch_norm(3),
    },
    text={
        "nn.BatchNormalization": " (2D) ({running_mean:n})",
        "nn.SpatialBatchNormalization": " (4D) ({running_mean:n})",
        "nn.VolumetricBatchNormalization": " (5D) ({running_mean:n})",
    },
    traits={
        # nn.BatchNorm1d treats (n, t) as a batch; the others certainly refuse a single example.
        f"norm.BatchNorm{dims}d": Traits(
            plain_rank=2 if dims == 1 else 0,
            written=("plain",),
            like=f"BatchNorm{dims}d",
            output=batch_of_one(dims + 1 if dims == 1 else dims + 2),
        )
        for dims in (1, 2, 3)
    },
)
_UNUSED = "the layer does not use it, so it is left out"


def _instance_norm_features(lua: Lua) -> int:
    """Return the number of features of an instance normalization; weights are optional, as not all programs set them.

    The batch normalization inside, made for the last batch, is used for the next of the same size.

    Raises:
        NotMappedError: a program changed that one.
    """
    inside = lua.get("bn")
    if inside is not None:
        is_as_made = (
            stock_name(inside) == "nn.SpatialBatchNormalization"
            and Fields(inside).number("eps", 1e-5) == lua.number("eps", 1e-5)
            and inside.get("train") is not False  # else it takes its running statistics
        )
        if not is_as_made:
            raise NotMappedError("its modules inside were changed", path=f"{lua.path}.bn")
    return lua.shapes["weight"][0] if "weight" in lua.shapes else lua.integer("nOutput")


_INSTANCE_NORM: Any = {"eps": number("eps", 1e-5), "affine": has("weight")}


# torch.nn.InstanceNorm2d. The batch normalization inside is rebuilt for every new batch size.
register_layer(
    "nn.InstanceNormalization",
    params=(
        param("weight", _FLAT),
        param("bias", _FLAT),
        param("running_mean", kind="unused", note=_UNUSED),
        param("running_var", kind="unused", note=_UNUSED),
    ),
    scratch="bn",
    note="normalizes, as it did with nn before August 2017; later releases of nn take "
    "the running statistics of the batch normalization inside instead",
    module=either(  # the class of AdaIN-style can be disabled
        lambda lua: lua.flag("disabled"),
        of_runtime("norm.NoInstanceNorm2d", made(_instance_norm_features), **_INSTANCE_NORM),
        of_torch("InstanceNorm2d", made(_instance_norm_features), **_INSTANCE_NORM),
    ),
    traits={"norm.NoInstanceNorm2d": Traits(output=same)},
)


_FEATURES_PATH = "modules.1.modules.2.modules.2.nfeatures"
"""The number of features of a LayerNormalization, which only an nn.Replicate deep inside it has."""


def _layer_norm_paths(obj: TorchObject) -> dict[str, str] | None:
    """Return the paths of the layers with factor and offset, by the names `weight` and `bias`.

    Returns:
        An empty dict for a normalization without these; `None` for modules that compute something else.
    """
    features = lookup(obj, _FEATURES_PATH)
    factor = lookup(obj, "modules.4.constant_scalar")
    if not isinstance(features, float) or not isinstance(factor, float) or features < 0:
        return None
    # Lua divides each row, less its mean, by its length, and multiplies it by the root of its number of elements:
    # together that divides it by its deviation. Lua rounds the root to the default element type.
    if not isclose(factor, sqrt(features), rel_tol=1e-6):
        return None
    mean = node("nn.Mean", "x", dimension=1.0, nInputDims=1.0)
    means = node("nn.Replicate", mean, nfeatures=features, dim=1.0, ndim=1.0)
    unit_rows = node("nn.Normalize", node("nn.CSubTable", ["x", means]), p=2.0)
    normalized = node("nn.MulConstant", unit_rows, constant_scalar=factor)
    with_weights = node("nn.Add", node("nn.CMul", normalized, name="weight"), name="bias")
    for pattern in (normalized, with_weights):
        paths = recognized(obj, start="", inputs="x", pattern=pattern)
        if paths is not None:
            return paths
    return None


@keeps("weight", "bias")
def _layer_norm_params(fields: Fields) -> tuple[Param, ...]:
    """Return the factor and offset of a normalization, if it has them."""
    paths = _layer_norm_paths(fields.obj) or {}
    return tuple(param(name, field=f"{paths[name]}.{name}") for name in ("weight", "bias") if name in paths)


def _layer_norm_children(obj: TorchObject) -> Iterator[Child]:
    """Yield the modules of a normalization that a program changed; PyTorch's class computes one that is unchanged."""
    if _layer_norm_paths(obj) is None:
        yield from modules(obj)


def _layer_norm_shapes(features: int, eps: float = 0.0, affine: bool = True) -> Tensors:
    return {"weight": (features,), "bias": (features,)} if affine else {}


# Coefficients are kept in the precision of the first run.
_FIRST_PRECISION = InLua(tolerance=1e-4)
declare_recordings({"nn.LayerNormalization": Recording(flow=walk.sequence)})
# A Sequential of ConcatTable, CSubTable, Normalize, MulConstant, CMul (n) and Add (n): torch.nn.LayerNorm.
register_layer(
    "nn.LayerNormalization",
    params=_layer_norm_params,
    children=_layer_norm_children,
    kind="layer",
    scratch="modules",
    note="subtracts the means of a batch in the wrong order; torch.nn.LayerNorm computes the intended function",
    module=either(
        lambda lua: _layer_norm_paths(lua.obj) is not None,
        of_runtime(
            "norm.LayerNormalization",
            integer(_FEATURES_PATH),
            eps=number("modules.3.eps", 1e-10),
            affine=has("weight"),
        ),
        of_torch("Sequential"),
    ),
    traits=Traits(output=same, shapes=_layer_norm_shapes),
    in_lua=_FIRST_PRECISION,
    text=Printed("sequential"),
)
_LOCAL_NORMALIZATIONS = (
    "nn.SpatialSubtractiveNormalization",
    "nn.SpatialDivisiveNormalization",
    "nn.SpatialContrastiveNormalization",
)
# What the constructors of these classes put into the modules that estimate mean and deviation of the surroundings.
_CONVOLUTIONS = {"nn.SpatialConvolution", "nn.SpatialConvolutionMap", "nn.SpatialConvolutionMM"}
_WITHOUT_KERNEL = {"nn.Sequential", "nn.SpatialZeroPadding", "nn.Square", "nn.Replicate", "nn.Sqrt", "nn.CDivTable"}


def _local_normalization(subtract: bool, divide: bool) -> Row:
    """Map a normalization by the surroundings: Lua computes with modules that its constructor made of the kernel.

    Args:
        subtract: whether the layer subtracts the mean of the surroundings.
        divide: whether it divides by their deviation.
    """
    options: dict[str, Any] = {}
    if not subtract:
        options["subtract"] = False
    if not divide:
        options["divide"] = False
    else:
        # Lua computes with the fields of the threshold inside, whatever those of the layer say. A layer that does both
        # consists of one that subtracts and one that divides.
        dividing = "normalizer.modules.2." if subtract else ""
        options["threshold"] = number(f"{dividing}thresholder.threshold|{dividing}threshold|threshold", 1e-4)
        options["value"] = number(f"{dividing}thresholder.val|{dividing}thresval|thresval", 1e-4)
    return of_runtime("norm.LocalNormalization", _local_kernel, **options)


def _local_kernel(lua: Lua) -> tuple[int, ...]:
    """Return the sizes of the kernel of a normalization by the surroundings.

    Raises:
        NotMappedError: a program changed the modules that the constructor made of the kernel.
    """
    kernel = elements(lua.tensor("kernel")).astype("f8").reshape(-1)
    # The modules that compute the mean and the deviation with the kernel, then those that use them: the class
    # that the layer becomes has only the kernel.
    for estimator in ("meanestimator", "stdestimator", "normalizer"):
        _check_estimator(lua, estimator, kernel)
    _check_parts(lua)
    return lua.shape("kernel")


_PARTS = {
    "normalizer": "nn.CDivTable",
    "subtractor": "nn.CSubTable",
    "divider": "nn.CDivTable",
    "thresholder": "nn.Threshold",
}
"""The classes of the modules that use the estimators, by the fields of a layer that subtracts or divides."""


def _check_parts(lua: Lua) -> None:
    """Check the classes of the modules that use the estimators, those that compute the mean and the deviation.

    Args:
        lua: the layer.

    Raises:
        NotMappedError: a program changed them. A missing module is as it was made.
    """
    for inside in ("", "normalizer.modules.1.", "normalizer.modules.2."):
        for name, class_name in _PARTS.items():
            path = inside + name
            allowed = [class_name]
            if path == "normalizer":
                # A layer that subtracts and divides has a Sequential of a layer for each here.
                allowed.append("nn.Sequential")
            module = lua.get(path)
            if isinstance(module, TorchObject) and stock_name(module) not in allowed:
                raise NotMappedError("its modules inside were changed", path=f"{lua.path}.{path}")


def _check_estimator(lua: Lua, start: str, kernel: np.ndarray) -> None:
    """Check that the convolutions in the module of a field have the kernel, or a multiple of it, and no bias.

    Args:
        lua: the layer.
        start: the field.
        kernel: its elements, in a row.

    Raises:
        NotMappedError: a program changed them. A missing module is as it was made.
    """
    stack = [lua.get(start)]
    seen = set()
    while stack:
        module = stack.pop()
        if not isinstance(module, TorchObject) or id(module) in seen:
            continue
        seen.add(id(module))
        if not _is_of_estimator(module, kernel):
            raise NotMappedError("its modules inside were changed", path=f"{lua.path}.{start}")
        # A normalization inside the module has estimators of its own.
        stack += _estimators_of(module)
        stack += [child.value for child in modules(module)]


def _is_of_estimator(module: TorchObject, kernel: np.ndarray) -> bool:
    """Return whether a module is one that Lua's constructors put into an estimator, with this kernel if it has one.

    An estimator computes the mean or the deviation of the surroundings, with the kernel of the normalization.

    Args:
        module: the module; those inside it do not matter.
        kernel: the elements of the kernel, in a row.
    """
    name = stock_name(module)
    if name in _CONVOLUTIONS:
        return _has_kernel(Fields(module), kernel)
    if name in _LOCAL_NORMALIZATIONS:
        # Its kernel is that of its estimators, which the caller checks too.
        return bool(_estimators_of(module))
    return name in _WITHOUT_KERNEL


def _estimators_of(module: TorchObject) -> list[TorchObject]:
    """Return the modules that a normalization by the surroundings has in fields of their own; none of other modules."""
    fields = Fields(module)
    values = [fields.get(name) for name in ("meanestimator", "stdestimator", "normalizer")]
    return [value for value in values if isinstance(value, TorchObject)]


def _has_kernel(convolution: Fields, kernel: np.ndarray) -> bool:
    """Return whether each plane of a convolution's weight is a multiple of the kernel, and it has no bias.

    Args:
        convolution: its fields.
        kernel: the elements of the kernel, in a row.
    """
    weight = convolution.find_tensor("weight")
    bias = convolution.find_tensor("bias")
    if weight is None or weight.numel % len(kernel):
        return False
    if bias is not None and elements(bias).any():
        return False
    rows = elements(weight).astype("f8").reshape(-1, len(kernel))
    return _are_multiples(rows, kernel)


def _are_multiples(rows: np.ndarray, kernel: np.ndarray) -> bool:
    """Return whether each row is a multiple of the kernel, compared by the kernel's largest element."""
    place = int(np.abs(kernel).argmax())
    largest = kernel[place]
    with np.errstate(all="ignore"):
        scales = rows[:, place : place + 1]  # of each row, times `largest`
        return bool(np.allclose(rows * largest, kernel * scales, rtol=1e-3, atol=1e-6 * abs(largest)))


# The kernel, of one or two dimensions, from which Lua built the convolutions inside.
register_layer(
    *_LOCAL_NORMALIZATIONS,
    params=(buffer("kernel"),),
    scratch="meanestimator stdestimator normalizer divider subtractor thresholder coef ones localsums localstds "
    "adjustedsums adjustedstds thresholdedstds",
    module={
        "nn.SpatialSubtractiveNormalization": _local_normalization(subtract=True, divide=False),
        "nn.SpatialDivisiveNormalization": _local_normalization(subtract=False, divide=True),
        "nn.SpatialContrastiveNormalization": _local_normalization(subtract=True, divide=True),
    },
    traits=Traits(output=same, shapes=lambda shape, *_, **__: {"kernel": shape}, axes="bchw"),
    in_lua=_FIRST_PRECISION,
)


register_layer(
    module={
        "nn.SpatialCrossMapLRN": of_runtime(
            "norm.LocalResponseNorm",
            integer("size"),
            plain="LocalResponseNorm",
            alpha=number("alpha", 1e-4),
            beta=number("beta", 0.75),
            k=number("k|K", 1.0),
        ),
        "nn.Normalize": of_runtime("norm.Normalize", number("p"), eps=number("eps", 1e-10)),
    },
    scratch="paddedRatio accumRatio scale cross norm normp buffer2",
    traits={"norm.LocalResponseNorm": Traits(like="LocalResponseNorm"), "norm.Normalize": Traits(output=same)},
    text={"nn.Normalize": "({p:p})"},
    in_lua={"nn.Normalize": InLua(options=("p",))},
)


@keeps("kernel", "kernel2")
def _kernels(fields: Fields) -> tuple[Param, ...]:
    """Return the kernel of a layer, or the row and the column of a separable one, of which Lua has a list."""
    # Files of 2010, which have this class, have images with height and width exchanged.
    turn = (Permute((1, 0)),) if fields.obj.class_name == "nn.LocalNorm" else ()
    if isinstance(fields.get("kernel"), Tensor):
        return (buffer("kernel", *turn),)
    return (buffer("kernel", *turn, field="kernel.1"), buffer("kernel2", *turn, field="kernel.2"))


def _kernel_shapes(lua: Lua) -> tuple[Literal, ...]:
    """Return the shapes of the kernels that the state dict has, one or two.

    Raises:
        NotMappedError: there is none.
    """
    names = [name for name in ("kernel", "kernel2") if name in lua.shapes]
    return tuple(map(lua.shape, names or ["kernel"]))  # a missing one is refused


_NORMALIZATION = of_runtime(
    "norm.SpatialNormalization", made(_kernel_shapes).each, threshold=optional_number("fixedThres")
)


# The modules that Lua built from the kernel are left out.
register_layer(
    params=_kernels,
    scratch="convo convostd squareMod sqrtMod subtractMod substractMod meanDiviseMod stdDiviseMod thresMod diviseMod "
    "coef inConvo inMean inputZeroMean inputZeroMeanSq inConvoVar inVar inStdDev inStdDevNotUnit stdDev thstd input",
    module=dict.fromkeys(("nn.SpatialNormalization", "nn.LocalNorm"), _NORMALIZATION),
    traits={"norm.SpatialNormalization": Traits(shapes=lambda *shapes, **_: dict(zip(("kernel", "kernel2"), shapes)))},
)
