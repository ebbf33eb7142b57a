"""Criterions: what they keep are the weights of classes. Source: nn 8726825, rnn, dpnn."""

from __future__ import annotations

from .registry import Param, criterions, named_modules, param, register_layer

_SCRATCH = "output_tensor total_weight_tensor target buffer"


def _class_weights(path: str) -> Param:
    return param("weight", field=path, kind="buffer", note="its weights are kept as `weight`")


register_layer(
    "nn.Criterion",
    "nn.AbsCriterion",
    "nn.ClassSimplexCriterion",
    "nn.CosineEmbeddingCriterion",
    "nn.DistKLDivCriterion",
    "nn.DistanceRatioCriterion",
    "nn.HingeEmbeddingCriterion",
    "nn.L1Cost",
    "nn.L1HingeEmbeddingCriterion",
    "nn.MSECriterion",
    "nn.MarginCriterion",
    "nn.MarginRankingCriterion",
    "nn.MultiLabelMarginCriterion",
    "nn.SmoothL1Criterion",
    "nn.SoftMarginCriterion",
    "nn.SpatialAutoCropMSECriterion",
    "nn.BinaryClassReward",
    "nn.VRClassReward",
    "nn.BinaryLogisticRegression",
    "nn.SpatialBinaryLogisticRegression",
    "nn.NCECriterion",
    kind="criterion",
    scratch=f"{_SCRATCH} w w1 w22 w32 simplex criterion isTarget dist",
)
# torch.nn.NLLLoss, BCELoss, MultiMarginLoss and others call these weights `weight`.
register_layer(
    "nn.ClassNLLCriterion",
    "nn.SpatialClassNLLCriterion",
    "nn.BCECriterion",
    "nn.MultiMarginCriterion",
    "nn.MultiLabelSoftMarginCriterion",
    params=(_class_weights("weights"),),
    kind="criterion",
    scratch=f"{_SCRATCH} sigmoid",
)
register_layer("nn.WeightedMSECriterion", params=(_class_weights("weight"),), kind="criterion", scratch=_SCRATCH)
# torch.nn.CrossEntropyLoss.
register_layer(
    "nn.CrossEntropyCriterion",
    "cudnn.SpatialCrossEntropyCriterion",
    params=(_class_weights("nll.weights"),),
    kind="criterion",
    scratch=f"{_SCRATCH} lsm slsm nll",
)
register_layer("nn.MultiCriterion", "nn.ParallelCriterion", children=criterions, kind="criterion", scratch="weights")
register_layer(
    "nn.CriterionTable",
    "nn.SequencerCriterion",
    "nn.RepeaterCriterion",
    "nn.MaskZeroCriterion",
    children=named_modules("criterion"),
    kind="criterion",
    scratch="clones zeroMask",
)
register_layer(
    "nn.ModuleCriterion",
    children=named_modules("inputModule", "targetModule", "criterion"),
    kind="criterion",
    scratch=_SCRATCH,
)
