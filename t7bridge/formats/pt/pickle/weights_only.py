"""The globals allowed by `torch.load(weights_only=True)` of PyTorch 2.13.

Source: `torch/_weights_only_unpickler.py` `_get_allowed_globals`.
"""

from __future__ import annotations


def words(text: str, prefix: str = "") -> frozenset[str]:
    """Return the words of a text, each with a prefix."""
    return frozenset(prefix + word for word in text.split())


_KINDS = "BFloat16 Bool Byte Char Double Float Half Int Long Short"
_SPARSE = " ".join(f"{kind}Tensor" for kind in _KINDS.split() if kind != "Bool")
_BOTH = " ".join(f"{kind}{what}" for kind in f"{_KINDS}".split() for what in ("Tensor", "Storage"))
_COMPLEX = "ComplexDoubleStorage ComplexFloatStorage"
_TORCH = f"""
{_BOTH} {_COMPLEX} QInt32Storage QInt8Storage QUInt2x4Storage QUInt4x2Storage QUInt8Storage Size Tensor device
bfloat16 bool bits16 bits1x8 bits2x4 bits4x2 bits8 complex128 complex32 complex64 float16 float32 float64
float4_e2m1fn_x2 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu
int1 int2 int3 int4 int5 int6 int7 int8 int16 int32 int64
uint1 uint2 uint3 uint4 uint5 uint6 uint7 uint8 uint16 uint32 uint64
per_channel_affine per_channel_affine_float_qparams per_channel_symmetric per_tensor_affine per_tensor_symmetric
qint32 qint8 quint2x4 quint4x2 quint8 _tensor._rebuild_from_type_v2 nn.parameter.Parameter serialization._get_layout
storage.TypedStorage storage.UntypedStorage
"""
_REBUILD = """
device_tensor_from_cpu_tensor device_tensor_from_numpy meta_tensor_no_storage nested_tensor parameter
parameter_with_state qtensor sparse_tensor tensor tensor_v2 tensor_v3 wrapper_subclass
"""
WEIGHTS_ONLY = (
    words(_TORCH, "torch.")
    | words(_REBUILD, "torch._utils._rebuild_")
    | words(f"{_BOTH} {_COMPLEX}", "torch.cuda.")
    | words(_SPARSE, "torch.sparse.")
    | words(_SPARSE, "torch.cuda.sparse.")
    | words("_codecs.encode builtins.bytearray builtins.complex builtins.set collections.Counter")
    | {"collections.OrderedDict"}
)
"""The globals allowed by `torch.load(weights_only=True)` of PyTorch 2.13."""
