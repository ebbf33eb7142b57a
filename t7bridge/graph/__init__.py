"""The ground floor: the content of a Lua Torch or PyTorch file as a graph of plain objects.

Knows no file format. Imports only `errors`, `limits`, `text` and `io` (a storage knows where its bytes are).
"""

from ..data import face

__getattr__ = face(
    __name__,
    {
        "decimals": "format_floats format_integers parse_floats parse_integers",
        "dtypes": "BY_LUA_WORD ELEMENT_TYPES ElementType FLOAT32 FLOAT64 INT64 LUA_CLASSES PACKED UINT8",
        "lua": "COMPOSITE index_key",
        "python": (
            "DefaultDict Device NumpyArray NumpyDtype NumpyScalar PythonGlobal PythonObject TorchConstant "
            "TorchSize UNSET in_order"
        ),
        "storage": "CHUNK_BYTES Derived Span TextSpan storage_for_class",
        "tensor": "QuantizedTensor SparseTensor TensorExtras UntypedStorage statistics_of view_fault",
        "walk": "entries step_name",
    },
)
