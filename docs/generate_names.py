"""Write `t7bridge/formats/pt/pickle/names.txt`: the names that a pickle may hold, and how each may be used.

Names are collected from the installed PyTorch and numpy; what only old releases have, and what is Python's, is listed
here by hand. A class of PyTorch is one of plain state if loading an object of it runs no code but `REVIEWED`, which
people have read: it has no `__new__`, `__del__`, `__getattr__` or `__setstate__` of its own. What is left out appears
on the terminal.

Run: python docs/generate_names.py
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import textwrap
import warnings
from abc import ABCMeta
from collections import defaultdict
from enum import Enum
from pathlib import Path
from types import ModuleType

TABLE = Path(__file__).resolve().parent.parent / "t7bridge/formats/pt/pickle/names.txt"
HEAD = """\
# Names that a pickle may hold, and how each may be used. Every other name is foreign. Made by docs/generate_names.py.
#
# state  a class without code at construction: its objects are made by NEWOBJ and receive attributes by BUILD
# call   a function or class that only builds data: it may be called (REDUCE) with any arguments
# fill   a call whose result may receive items (APPENDS, SETITEMS, ADDITEMS)
# value  a class, function or constant that is only named
#
# A line is: kind, prefix, words. A star in a prefix is the word itself: each class is in a module of its own name.
"""


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


STATE_PACKAGES = words(
    """
    torch.nn.modules torch.nn.parallel torch.nn.utils.weight_norm torch.nn.utils.spectral_norm
    torch.nn.utils.parametrizations torch.nn.utils.prune torch.nn.parameter torch.ao.nn
    torch.ao.quantization.observer torch.ao.quantization.fake_quantize torch.ao.quantization.stubs
    torch.ao.quantization.qconfig torch.optim torch.distributions torch.utils.data.dataset torch.utils.data.sampler
    torch.amp.grad_scaler torch.cuda.amp.grad_scaler torch.nn.utils.rnn torch.utils.hooks
    torch.distributed.checkpoint.metadata torch.distributed.checkpoint.filesystem
    """
)
SHIMS = words(
    """
    torch.nn.quantized torch.nn.quantizable torch.nn.intrinsic torch.nn.qat torch.quantization.observer
    torch.quantization.fake_quantize torch.quantization.stubs torch.quantization.qconfig
    torch.ao.nn.quantized.modules torch.ao.nn.quantized.dynamic.modules torch.ao.nn.intrinsic.modules
    torch.ao.nn.intrinsic.quantized.modules torch.optim
    """
)
"""Packages whose members are also known by the name of the package: old homes of classes."""

REVIEWED = {
    "__setstate__": """
        torch.nn.modules.module.Module torch.nn.modules.activation.MultiheadAttention torch.nn.modules.activation.GELU
        torch.nn.modules.conv._ConvNd torch.nn.modules.pooling.MaxUnpool torch.nn.modules.pooling.FractionalMaxPool2d
        torch.nn.modules.pooling.AvgPool3d torch.nn.modules.rnn.RNNBase torch.nn.modules.upsampling.Upsample
        torch.nn.modules.transformer.TransformerEncoderLayer torch.nn.modules.transformer.TransformerDecoderLayer
        torch.nn.modules.activation.Softmax torch.nn.modules.activation.Softmin torch.nn.modules.activation.LogSoftmax
        torch.nn.modules.activation.Softmax2d torch.ao.nn.quantized.modules.conv._ConvNd
        torch.optim.optimizer.Optimizer torch.optim.adadelta.Adadelta torch.optim.adagrad.Adagrad torch.optim.adam.Adam
        torch.optim.adamax.Adamax torch.optim.adamw.AdamW torch.optim.asgd.ASGD torch.optim.nadam.NAdam
        torch.optim.radam.RAdam torch.optim.rmsprop.RMSprop torch.optim.rprop.Rprop torch.optim.sgd.SGD
        torch.optim.Adafactor torch.amp.grad_scaler.GradScaler torch.utils.hooks.RemovableHandle
        torch.nn.modules.module._WrappedHook torch.distributed.checkpoint.metadata.TensorProperties
        """,
    "__getattr__": "torch.nn.modules.module.Module",
    "__setattr__": "torch.nn.modules.module.Module torch.nn.modules.rnn.RNNBase",
    "__new__": """
        torch.nn.utils.rnn.PackedSequence torch.ao.quantization.qconfig.QConfig torch.nn.modules.container.Container
        torch.ao.quantization.qconfig.QConfigDynamic torch.nn.modules.loss.NLLLoss2d
        """,
}
"""Methods that loading an object runs, by the class that has them: they set attributes from the state."""
OWN_CODE = ("__new__", "__del__", "__getattr__", "__getattribute__", "__setattr__", "__setstate__")
NOT_STATE = re.compile(
    r"torch\.(nn\.parallel\.distributed|utils\.data\.dataset\.(Iterable|Chain|DFIter)|utils\.hooks\.(?!RemovableHandle$)"
    r"|distributed\.checkpoint\.filesystem\.(?!_StorageInfo$)|nn\.parameter\.)"
)
"""Excluded by hand though they pass: they hold files or process groups, or call what they hold."""

BY_HAND: list[tuple[str, str, str]] = [
    # Python's own
    ("call", "builtins.", "bool bytes complex float frozenset int long range slice str tuple unicode xrange"),
    ("fill", "builtins.", "bytearray dict list set"),
    ("value", "builtins.", "object Ellipsis NotImplemented"),
    ("fill", "collections.", "Counter OrderedDict defaultdict deque"),
    ("state", "collections.", "ChainMap UserDict UserList UserString"),
    ("call", "datetime.", "date datetime time timedelta timezone"),
    ("call", "pathlib.", "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath"),
    ("call", "pathlib._local.", "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath"),
    ("state", "argparse.", "Namespace"),
    ("call", "types.", "SimpleNamespace"),
    ("call", "decimal.", "Decimal"),
    ("call", "fractions.", "Fraction"),
    ("call", "uuid.", "SafeUUID"),
    ("state", "uuid.", "UUID"),
    ("call", "zoneinfo.", "ZoneInfo"),
    ("call", "copyreg.", "__newobj__ __newobj_ex__ _reconstructor"),
    ("call", "_codecs.", "encode"),
    # numpy, of all releases
    ("call", "numpy.", "dtype"),
    ("value", "numpy.", "ndarray matrix recarray record"),
    ("value", "numpy.matrixlib.defmatrix.", "matrix"),
    ("value", "numpy.core.records.", "recarray record"),
    ("value", "numpy._core.records.", "recarray record"),
    ("value", "numpy.rec.", "recarray record"),
    ("value", "numpy.ma.", "MaskedArray"),
    ("value", "numpy.ma.core.", "MaskedArray"),
    ("call", "numpy.ma.core.", "_mareconstruct"),
    ("call", "numpy.core.multiarray.", "_reconstruct scalar"),
    ("call", "numpy._core.multiarray.", "_reconstruct scalar"),
    ("call", "numpy.core.numeric.", "_frombuffer"),
    ("call", "numpy._core.numeric.", "_frombuffer"),
    ("call", "numpy.core._internal.", "_convert_to_stringdtype_kwargs"),
    ("call", "numpy._core._internal.", "_convert_to_stringdtype_kwargs"),
    ("call", "numpy.random._pickle.", "__bit_generator_ctor __generator_ctor __randomstate_ctor"),
    ("call", "numpy.random.", "__RandomState_ctor"),
    ("call", "numpy.random.bit_generator.", "__pyx_unpickle_SeedSequence __pyx_unpickle_SeedlessSequence"),
    ("value", "numpy.random.bit_generator.", "SeedSequence SeedlessSequence"),
    ("value", "numpy.random._bit_generator.", "MT19937 PCG64 PCG64DXSM Philox SFC64"),
    ("value", "numpy.random._mt19937.", "MT19937"),
    ("value", "numpy.random._pcg64.", "PCG64 PCG64DXSM"),
    ("value", "numpy.random._philox.", "Philox"),
    ("value", "numpy.random._sfc64.", "SFC64"),
    ("value", "numpy.random._generator.", "Generator"),
    ("value", "numpy.random.mtrand.", "RandomState"),
    (
        "call",
        "numpy.",
        "bool bool8 bool_ bytes_ cdouble clongdouble complex128 complex192 complex256 complex64 complex_ csingle "
        "datetime64 double float float128 float16 float32 float64 float96 float_ half int int16 int32 int64 int8 int_ "
        "intc intp long longdouble longlong object_ short single str_ timedelta64 ubyte uint uint16 uint32 uint64 "
        "uint8 uintc uintp ulong ulonglong unicode_ ushort void byte",
    ),
    # PyTorch's functions of data, of all releases
    ("call", "torch._C.", "Generator"),
    ("call", "torch.", "Generator Parameter"),
    ("call", "torch._tensor.", "_rebuild_from_type"),
    ("call", "torch.tensor.", "_rebuild_from_type _rebuild_from_type_v2"),
    ("value", "torch.", "strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc _mkldnn jagged"),
    ("value", "torch.", "contiguous_format preserve_format channels_last channels_last_3d Tensor"),
    ("value", "torch._tensor.", "Tensor"),
    ("value", "torch.tensor.", "Tensor"),
    ("call", "torch._utils.", "_rebuild_sparse_csr_tensor _rebuild_xla_tensor _rebuild_mlc_tensor _rebuild_tensor"),
    ("call", "torch.autograd.variable.", "Variable"),
    ("call", "torch.jit._pickle.", "build_boollist build_doublelist build_intlist build_tensor_from_id "),
    ("call", "torch.jit._pickle.", "build_tensorlist restore_type_tag"),
    ("call", "torch.storage.", "_load_from_bytes _TypedStorage _UntypedStorage"),
    ("call", "torch.serialization.", "_get_layout"),
    ("call", "torch.nn.backends.thnn.", "_get_thnn_function_backend"),
    ("call", "torch.distributed.checkpoint.metadata.", "_MEM_FORMAT_ENCODING"),
    # classes of old releases
    ("state", "torch.nn.backends.backend.", "FunctionBackend"),
    ("state", "torch.nn.backends.thnn.", "THNNFunctionBackend"),
    ("state", "torch.nn.modules.linear.", "_LinearWithBias"),
    ("state", "torch.nn.modules.conv.", "_ConvTransposeMixin"),
    ("state", "torch.nn.utils.rnn.", "PackedSequence_"),
]
LEGACY = words(
    """
    Abs AbsCriterion Add AddConstant BCECriterion BatchNormalization Bilinear CAddTable CDivTable CMul CMulTable
    CSubTable Clamp ClassNLLCriterion ClassSimplexCriterion Concat ConcatTable Container Contiguous Copy Cosine
    CosineDistance CosineEmbeddingCriterion Criterion CriterionTable CrossEntropyCriterion DepthConcat
    DistKLDivCriterion DotProduct Dropout ELU Euclidean Exp FlattenTable GradientReversal HardShrink HardTanh
    HingeEmbeddingCriterion Identity Index JoinTable L1Cost L1HingeEmbeddingCriterion L1Penalty LeakyReLU Linear Log
    LogSigmoid LogSoftMax LookupTable MM MSECriterion MV MarginCriterion MarginRankingCriterion MaskedSelect Max
    Mean Min MixtureTable Module Mul MulConstant MultiCriterion MultiLabelMarginCriterion
    MultiLabelSoftMarginCriterion MultiMarginCriterion Narrow NarrowTable Normalize PReLU Padding PairwiseDistance
    Parallel ParallelCriterion ParallelTable PartialLinear Power RReLU ReLU ReLU6 Replicate Reshape Select
    SelectTable Sequential Sigmoid SmoothL1Criterion SoftMarginCriterion SoftMax SoftMin SoftPlus SoftShrink
    SoftSign SpatialAdaptiveMaxPooling SpatialAveragePooling SpatialBatchNormalization SpatialClassNLLCriterion
    SpatialContrastiveNormalization SpatialConvolution SpatialConvolutionLocal SpatialConvolutionMap
    SpatialCrossMapLRN SpatialDilatedConvolution SpatialDivisiveNormalization SpatialDropout
    SpatialFractionalMaxPooling SpatialFullConvolution SpatialFullConvolutionMap SpatialLPPooling SpatialMaxPooling
    SpatialMaxUnpooling SpatialReflectionPadding SpatialReplicationPadding SpatialSoftMax SpatialSubSampling
    SpatialSubtractiveNormalization SpatialUpSamplingNearest SpatialZeroPadding SplitTable Sqrt Square Squeeze Sum
    Tanh TanhShrink TemporalConvolution TemporalMaxPooling TemporalSubSampling Threshold Transpose Unsqueeze View
    VolumetricAveragePooling VolumetricBatchNormalization VolumetricConvolution VolumetricDropout
    VolumetricFullConvolution VolumetricMaxPooling VolumetricMaxUnpooling VolumetricReplicationPadding
    WeightedEuclidean WeightedMSECriterion
    """
)
"""Classes of `torch.legacy.nn` up to PyTorch 0.4, each in a module of its own name."""
ACTIVATIONS = words(
    """
    relu relu_ relu6 rrelu rrelu_ gelu tanh sigmoid silu mish elu elu_ selu selu_ celu celu_ softmax softmin
    log_softmax logsigmoid softplus softsign tanhshrink hardtanh hardtanh_ hardsigmoid hardswish hardshrink
    softshrink leaky_relu leaky_relu_ prelu glu threshold threshold_ dropout normalize cross_entropy nll_loss
    mse_loss l1_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div huber_loss
    max_pool2d avg_pool2d interpolate pad adaptive_avg_pool2d adaptive_max_pool2d layer_norm batch_norm
    pairwise_distance cosine_similarity
    """
)
FUNCTION_HOMES = ("torch.nn.functional", "torch._C._nn", "torch._C._VariableFunctions", "torch")

Table = dict[str, str]


def modules_below(name: str) -> list[ModuleType]:
    """Return a module and all modules of its package."""
    found = [importlib.import_module(name)]
    for entry in pkgutil.walk_packages(getattr(found[0], "__path__", []), f"{name}."):
        try:
            found.append(importlib.import_module(entry.name))
        except Exception as error:
            print(f"not imported: {entry.name}: {error}", file=sys.stderr)
    return found


def is_data(cls: type) -> bool:
    """Return whether a class is a named tuple or an enumeration, which is only built from its values."""
    return issubclass(cls, Enum) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def objection(cls: type) -> str:
    """Return why a class is not one of plain state; empty if it is."""
    if type(cls) not in (type, ABCMeta):
        return f"metaclass {type(cls).__name__}"
    if issubclass(cls, BaseException):
        return "an exception"
    for base in cls.__mro__:
        if base.__module__ in ("builtins", "typing", "abc", "collections.abc"):
            continue
        where = f"{base.__module__}.{base.__qualname__}"
        frozen = getattr(vars(base).get("__dataclass_params__"), "frozen", False)
        for method in OWN_CODE:
            if method == "__setattr__" and frozen:  # which refuses
                continue
            if method in vars(base) and where not in REVIEWED.get(method, "").split():
                return f"{method} of {where}"
    builtin = [base for base in cls.__mro__ if base.__module__ == "builtins" and base is not object]
    return f"a {builtin[0].__name__}" if builtin else ""


def add(table: Table, kind: str, path: str) -> None:
    """Add a name, unless it already has an entry."""
    table.setdefault(path, kind)


def collect() -> Table:
    """Return the kind of each name."""
    import numpy as np
    import torch

    table: Table = {}
    for kind, prefix, words in BY_HAND:
        for word in words.split():
            add(table, kind, prefix + word)
    for name in np.dtypes.__all__:
        add(table, "call", f"numpy.dtypes.{name}")
    for name in LEGACY:
        add(table, "state", f"torch.legacy.nn.{name}.{name}")
    for home in FUNCTION_HOMES:
        for name in ACTIVATIONS:
            target = torch
            for step in home.split(".")[1:]:
                target = getattr(target, step)
            if hasattr(target, name):
                add(table, "value", f"{home}.{name}")
    for name in vars(torch._utils):
        if name.startswith("_rebuild_"):
            add(table, "call", f"torch._utils.{name}")
    refused: dict[str, str] = {}
    for package in dict.fromkeys(STATE_PACKAGES + SHIMS):
        for module in modules_below(package):
            for name, cls in vars(module).items():
                path = f"{module.__name__}.{name}"
                shim = any(module.__name__ == shim or module.__name__.startswith(f"{shim}.") for shim in SHIMS)
                own = isinstance(cls, type) and cls.__module__.startswith("torch.")
                if not own or not (shim or cls.__module__ == module.__name__) or NOT_STATE.match(path):
                    continue
                if NOT_STATE.match(f"{cls.__module__}.{cls.__qualname__}"):
                    continue
                reason = "" if is_data(cls) else objection(cls)
                if is_data(cls):
                    add(table, "call", path)
                elif reason:
                    refused[path] = reason
                else:
                    add(table, "state", path)
    for path, reason in sorted(refused.items()):
        print(f"not in the table: {path}: {reason}", file=sys.stderr)
    return table


def text(table: Table) -> str:
    """Return the table as text: kind, prefix, words."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, kind in table.items():
        prefix, _, word = path.rpartition(".")
        if prefix.endswith(f".{word}"):
            prefix = f"{prefix.removesuffix(word)}*"
        groups[prefix, kind].append(word)
    lines = [
        textwrap.fill(
            f"{kind} {prefix}. {' '.join(sorted(words))}", 120, subsequent_indent="  ", break_on_hyphens=False
        )
        for (prefix, kind), words in sorted(groups.items())
    ]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    TABLE.write_text(text(collect()))
