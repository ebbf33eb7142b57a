"""Fields of the nn modules of 2010 and 2011, class by class: the table for reading and writing.

A row is `parent > kind name name …; kind name … if name`: the parent's values come first, then the class's own. The
default parent is nn.Module, also for a class without a row. A part with `if name` is present only if that
field is a table or true.

Kinds: `int`, `long`, `double` and `bool` are written bare; `object` is any value with its tag, `table` a
table, `state` a tensor, a table or nil. In a `size` 0, in a `class` -1 means that
there is no such field. `fields` is a table of all fields of the object.

Sources, read for these facts: xLearn 616b7bd (2010-11-18) and bfbe47b (2011-06-14); torch7-distro 35fd150 (2011-06-15)
to 3743983; lua---nnx 7eca9bc (2011-07-05) to 98fb40a.
"""

from __future__ import annotations

_PARAMETERS = "object weight bias gradWeight gradBias"
_WEIGHT = "object weight gradWeight"
_PLANES = "int kW kH dW dH nInputPlane nOutputPlane"
_MAPPED = f"{_PLANES}; {_PARAMETERS} connTable"
_SPATIAL_LINEAR = f"int fanin fanout; double weightDecay; {_PARAMETERS}"
_FRAMES = f"int kW dW inputFrameSize outputFrameSize; {_PARAMETERS}"
_HESSIAN = (
    "object hessianWeight hessianBias hessianInput squaredWeight squaredInput weightLearningRate biasLearningRate"
)
_FOVEA = "object ratios downsamplers padders upsamplers processors preProcessors pyramid preProcessed padded narrowed"
_NORM_MODULES = "object convo convostd squareMod sqrtMod {} meanDiviseMod stdDiviseMod thresMod diviseMod coef"
_NORMALIZATION = "object kernel; int nfeatures padW padH kerWisPair kerHisPair; " + _NORM_MODULES
_PAIRS = "int pad2W pad2H ker2WisPair ker2HisPair if kernel"
_CONTRAST = "object meanmod varmod squaremod sqrtmod difmod divmod thresmod inmean inzmean inzmeansq invar instd thstd"

_NN = {  # torch7-distro until 22c7852, 2011-09-01
    "nn.Module": "> state gradInput output",
    "nn.Add": "object bias gradBias",
    "nn.CMul": _WEIGHT,
    "nn.Concat": "table modules; object size; int dimension",
    "nn.ConcatTable": "table modules",
    "nn.CriterionTable": "object criterion",
    "nn.Euclidean": _WEIGHT,
    "nn.JoinTable": "object size; int dimension",
    "nn.Linear": f"double weightDecay; {_PARAMETERS}",
    "nn.LogSigmoid": "object buffer",
    "nn.LookupTable": "object size weight currentInputs currentGradWeights",
    "nn.MarginCriterion": "double margin",
    "nn.Max": "int dimension; object indices",
    "nn.Mean": "int dimension",
    "nn.Min": "int dimension; object indices",
    "nn.Mul": _WEIGHT,
    "nn.PairwiseDistance": "double norm",
    "nn.Parallel": "table modules; object size; int inputDimension outputDimension",
    "nn.ParallelTable": "table modules",
    "nn.Reshape": "object size",
    "nn.Select": "int dimension; long index",
    "nn.Sequential": "table modules",
    "nn.SparseLinear": f"double weightDecay; {_PARAMETERS} lastInput",
    "nn.SpatialConvolution": f"{_PLANES}; {_PARAMETERS}",
    "nn.SpatialSubSampling": f"int kW kH dW dH nInputPlane; {_PARAMETERS}",
    "nn.SplitTable": "object modules; int dimension",
    "nn.Sum": "int dimension",
    "nn.TemporalConvolution": _FRAMES,
    "nn.TemporalSubSampling": f"int kW dW inputFrameSize; {_PARAMETERS}",
    "nn.VolumetricConvolution": f"int kT kW kH dT dW dH nInputPlane nOutputPlane; {_PARAMETERS}",
}
_NN_LATE = {  # torch7-distro until 3743983, 2011-09-18
    "nn.Criterion": "> object gradInput; double output",
    "nn.AbsCriterion": "nn.Criterion > bool sizeAverage",
    "nn.ClassNLLCriterion": "nn.Criterion >",
    "nn.CosineEmbeddingCriterion": "double margin",
    "nn.HingeEmbeddingCriterion": "double margin",
    "nn.L1HingeEmbeddingCriterion": "double margin",
    "nn.MarginRankingCriterion": "double margin",
    "nn.MSECriterion": "nn.Criterion > bool sizeAverage",
    "nn.MultiCriterion": "nn.Criterion > object criterions weights",
    "nn.Narrow": "int dimension; long index length",
    "nn.Power": "double pow",
    "nn.Replicate": "int nfeatures",
    "nn.SpatialConvolutionMap": _MAPPED,
    "nn.SpatialMaxPooling": "int kW kH dW dH; object indices",
    "nn.StochasticGradient": "> double learningRate learningRateDecay; int maxIteration; bool shuffleIndices; "
    "object module criterion",
    "nn.Threshold": "double threshold val",
}
_NNX = {  # lua---nnx until 98fb40a, 2011-11-11
    "nn.DistNLLCriterion": "nn.Criterion > bool inputIsProbability inputIsLogProbability targetIsProbability; "
    "object targetSoftMax inputLogSoftMax gradLogInput",
    "nn.Probe": "object name; bool content display size backw",
    "nn.SparseCriterion": "nn.Criterion > bool sizeAverage",
    "nn.SpatialClassNLLCriterion": "nn.ClassNLLCriterion > double resampleTarget; int nbGradients; bool sizeAverage",
    "nn.SpatialColorTransform": "object transform; bool islinear; object linear if islinear",
    "nn.SpatialConvolutionSparse": _MAPPED,
    "nn.SpatialFovea": f"int nInputPlane padding fov sub; bool bilinear; {_FOVEA} processed upsampled",
    "nn.SpatialGraph": "int connex dist normalize",
    "nn.SpatialLinear": _SPATIAL_LINEAR,
    "nn.SpatialMSECriterion": "nn.MSECriterion > double resampleTarget; int nbGradients; class ignoreClass",
    "nn.SpatialNormalization": f"{_NORMALIZATION.format('subtractMod')}; {_PAIRS}; size fixedThres",
    "nn.SpatialPadding": "int pad_l pad_r pad_t pad_b",
    "nn.SpatialReSampling": "int owidth oheight",
    "nn.SpatialRecursiveFovea": "int nInputPlane nRecursivePlane fov sub; object ratios downsamplers padders "
    "upsamplers upsampledPadders processors preProcessors postProcessors criterions pyramid preProcessed padded "
    "narrowed concatenated processed upsampled upsampledPadded upsampledNarrowed postProcessed predicted",
    "nn.SpatialSparseCriterion": "nn.SparseCriterion > double resampleTarget; int nbGradients",
    "nn.SpatialUpSampling": "int dW dH",
}
_XLEARN = {  # Torch5 and xLearn, where they differ from the above or have more
    "nn.AbsModuleHessian": "object hessianInput",
    "nn.ContrastNormalization": f"object kernel; int nfeatures; {_CONTRAST}",
    "nn.Fovea": "int patchsize channels nbscales",
    "nn.GaborLayer": "object bank",
    "nn.ImageTransform": "object linear",
    "nn.LocalGraph": "int connex dist normalize",
    "nn.LocalNorm": f"{_NORMALIZATION.format('substractMod')}; {_PAIRS}",
    "nn.Mult": "double val",
    "nn.SoftMax": "double shift; bool computeShift",
    "nn.SparseLinear": f"double weightDecay; {_PARAMETERS}",
    "nn.SpatialConvolutionTable": _MAPPED,
    "nn.SpatialConvolutionTableHessian": f"nn.SpatialConvolutionTable > {_HESSIAN}",
    "nn.SpatialFovea": f"int nInputPlane padding fov sub; {_FOVEA} processed upsampled",
    "nn.SpatialLinearHessian": f"nn.SpatialLinear > {_HESSIAN}",
    "nn.SpatialMSECriterion": "nn.Criterion > double resampleTarget; int nbUpdates; bool distribution; "
    "int ignoreClass; bool meanError",
    "nn.SpatialNLLCriterion": "nn.Criterion > double resampleTarget; int nbUpdates",
    "nn.SpatialSubSamplingHessian": f"nn.SpatialSubSampling > {_HESSIAN}",
    "nn.SpatialUpSampling": "int dW dH nInputPlane",
    "nn.TanhHessian": "object hessianInput",
}
_FIELDS = "> fields"
RELEASES: dict[str, dict[str, str]] = {
    "2010-11": {**_NN, **_NN_LATE, **_NNX, **_XLEARN},
    "2011-06": {**_NN, **_NN_LATE, **_NNX, "nn.SpatialConvolutionTable": _MAPPED},
    "2011-09": {**_NN_LATE, **_NNX, "nn.Module": _FIELDS},
    "2011-10": {**_NNX, "nn.Module": _FIELDS, "nn.Criterion": _FIELDS},
}
