"""Linear layers, scales, offsets and distances to learned points. Source: nn 8726825, one Lua file a class."""

from __future__ import annotations

from ..graph.tensor import Tensor
from .fields import Fields
from .layouts import REST, Reshape, copied, elements
from .registry import Param, Source, buffer, param, register_layer

WEIGHT, BIAS = param("weight"), param("bias")

# weight (out, in), bias (out): torch.nn.Linear.
register_layer("nn.Linear", "nn.LinearNoBias", params=(WEIGHT, BIAS), scratch="addBuffer")
register_layer("nn.SparseLinear", params=(WEIGHT, BIAS), scratch="lastInput formatted_input shardBuffer")
# One row of (in, out) for each key: torch.nn.EmbeddingBag's layout. With normalize, 4 columns of statistics lead.
register_layer(
    "nn.IndexLinear",
    params=(WEIGHT, BIAS),
    scratch="gradWeightBuffer valuesBuffer normalizedValues cumSumSizes cumSumSizesCache sizes sizesCache "
    "keys values lkeys lvalues running",
)
# The weight (out, in) is that of a LookupTable inside; bias (1, out): torch.nn.Linear.
register_layer(
    "nn.PartialLinear",
    params=(
        param("weight", field="network.modules.1.modules.2.weight"),
        param("bias", Reshape((REST,))),
    ),
    scratch="network allcolumns partition addBuffer buffer",
)


def _effective_weight(fields: Fields) -> Tensor | None:
    """g * v / |v|, where the file has no weight. Source: nn 8726825 `LinearWeightNorm.lua` `updateWeightMatrix`."""
    import numpy as np

    v, g = fields.find_tensor("v"), fields.find_tensor("g")
    if v is None or g is None:
        return None
    wide = elements(v).astype("f8")
    norm = np.maximum(np.sqrt((wide**2).sum(1, keepdims=True)), fields.number("eps", 1e-16))
    return copied(v, (wide * (elements(g).astype("f8").reshape(-1, 1) / norm)).astype(elements(v).dtype))


# v (out, in) and g (out, 1) are what is learned: the names and shapes of torch.nn.utils.weight_norm(Linear).
register_layer(
    "nn.LinearWeightNorm",
    params=(
        Param("weight", (Source("weight"),), "derived", _effective_weight),
        BIAS,
        param("weight_g", field="g"),
        param("weight_v", field="v"),
    ),
    scratch="norm scale addBuffer",
)
# weight (out, in1, in2), bias (out): torch.nn.Bilinear.
register_layer("nn.Bilinear", params=(WEIGHT, BIAS), scratch="buff1 buff2")
register_layer("nn.NCEModule", params=(WEIGHT, BIAS, buffer("unigrams"), buffer("Z")), scratch="addBuffer sampleidx")

# bias (n), or (1) where one number is added to everything.
register_layer("nn.Add", params=(BIAS,))
# Of the sizes that the layer was made with, which broadcast as PyTorch's do.
register_layer("nn.CAdd", params=(BIAS,))
register_layer("nn.CMul", params=(WEIGHT,))
register_layer("nn.Mul", params=(WEIGHT,))
register_layer("nn.Constant", params=(buffer("value"),))
# Channel-wise scale and offset that are not learned.
register_layer(
    "inn.ConstAffine",
    "nn.ConstAffine",
    "nn.SpatialConstDiagonal",
    params=(buffer("a"), buffer("b")),
    scratch="repeated",
)
register_layer("inn.MeanSubtraction", params=(buffer("mean"), buffer("std")))

# weight (out, in).
register_layer("nn.Cosine", params=(WEIGHT,))
# weight (in, out): one column for each point.
register_layer("nn.Euclidean", params=(WEIGHT,))
register_layer("nn.WeightedEuclidean", params=(WEIGHT, param("diagCov")), scratch="gradDiagCov")
# weight (k, dim): the centres.
register_layer("nn.Kmeans", params=(WEIGHT,), scratch="clusterSampleCount")
