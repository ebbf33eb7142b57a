"""The table of element types, with their names in Lua Torch, PyTorch and numpy."""

from __future__ import annotations

from typing import Any

from attrs import field

from ..data import define, np
from ..errors import ModelError, UnsupportedError


@define(frozen=True)
class ElementType:
    """A type of the elements of tensors and storages.

    Attributes:
        name: PyTorch's name, `float32`.
        itemsize: bytes of one element.
        code: numpy's type character without byte order, `f4`; for types that numpy lacks, the unsigned integer of
            the same size that holds the bits.
        lua: the word in Lua Torch's class names, `Float` in `torch.FloatTensor`; empty where Lua has no such type.
        torch_storage: PyTorch's storage class, `FloatStorage`; empty where PyTorch has none.
        native: whether numpy knows the type, so that `code` means values and not bits.
    """

    name: str
    itemsize: int
    code: str
    lua: str = ""
    torch_storage: str = ""
    native: bool = field(default=True, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Stay the one object of its name in copies and pickles; element types are compared by identity."""
        return _element_type, (self.name,)


def _element_type(name: str) -> ElementType:
    """Return an element type by its name, for pickles and copies."""
    return ELEMENT_TYPES[name]


# Sources: torch7 814ea4a `torch/init.c`, `File.lua`; PyTorch `torch/storage.py` `_dtype_to_storage_type_map`.
ELEMENT_TYPES: dict[str, ElementType] = {
    element.name: element
    for element in (
        ElementType("uint8", 1, "u1", "Byte", "ByteStorage"),
        ElementType("int8", 1, "i1", "Char", "CharStorage"),
        ElementType("int16", 2, "i2", "Short", "ShortStorage"),
        ElementType("int32", 4, "i4", "Int", "IntStorage"),
        ElementType("int64", 8, "i8", "Long", "LongStorage"),
        ElementType("float16", 2, "f2", "Half", "HalfStorage"),
        ElementType("float32", 4, "f4", "Float", "FloatStorage"),
        ElementType("float64", 8, "f8", "Double", "DoubleStorage"),
        ElementType("bool", 1, "b1", "", "BoolStorage"),
        ElementType("bfloat16", 2, "u2", "", "BFloat16Storage", native=False),
        ElementType("complex64", 8, "c8", "", "ComplexFloatStorage"),
        ElementType("complex128", 16, "c16", "", "ComplexDoubleStorage"),
        ElementType("quint8", 1, "u1", "", "QUInt8Storage", native=False),
        ElementType("qint8", 1, "i1", "", "QInt8Storage", native=False),
        ElementType("qint32", 4, "i4", "", "QInt32Storage", native=False),
        ElementType("quint4x2", 1, "u1", "", "QUInt4x2Storage", native=False),
        ElementType("quint2x4", 1, "u1", "", "QUInt2x4Storage", native=False),
        # PyTorch has no storage class for these: their storages are `UntypedStorage`.
        ElementType("uint16", 2, "u2"),
        ElementType("uint32", 4, "u4"),
        ElementType("uint64", 8, "u8"),
        ElementType("complex32", 4, "u4", native=False),
        ElementType("float8_e4m3fn", 1, "u1", native=False),
        ElementType("float8_e5m2", 1, "u1", native=False),
        ElementType("float8_e4m3fnuz", 1, "u1", native=False),
        ElementType("float8_e5m2fnuz", 1, "u1", native=False),
        ElementType("float8_e8m0fnu", 1, "u1", native=False),
        # PyTorch computes nothing with these: they are carried as the bits that they are. Two elements of
        # `float4_e2m1fn_x2` are one byte, which PyTorch counts as one element.
        ElementType("float4_e2m1fn_x2", 1, "u1", native=False),
        ElementType("bits8", 1, "u1", native=False),
        ElementType("bits16", 2, "u2", native=False),
        ElementType("bits1x8", 1, "u1", native=False),
        ElementType("bits2x4", 1, "u1", native=False),
        ElementType("bits4x2", 1, "u1", native=False),
        *(ElementType(f"{kind}{width}", 1, "u1", native=False) for kind in ("uint", "int") for width in range(1, 8)),
    )
}

ORDER_SIGNS = {"little": "<", "big": ">"}
"""The codes of `struct` and numpy for byte orders."""
NUMPY_ELEMENTS = {element.code: element for element in ELEMENT_TYPES.values() if element.native}
"""The element types that numpy has too, by its codes."""
PACKED = {"quint4x2": 2, "quint2x4": 4}
"""How many elements of a tensor are in one element of its storage, a byte, where that is not one."""

UINT8 = ELEMENT_TYPES["uint8"]
INT64 = ELEMENT_TYPES["int64"]
FLOAT32 = ELEMENT_TYPES["float32"]
FLOAT64 = ELEMENT_TYPES["float64"]

BY_LUA_WORD: dict[str, ElementType] = {element.lua: element for element in ELEMENT_TYPES.values() if element.lua}
BY_TORCH_STORAGE: dict[str, ElementType] = {
    element.torch_storage: element for element in ELEMENT_TYPES.values() if element.torch_storage
}


def _lua_classes() -> dict[str, tuple[ElementType, str]]:
    """Return element type and device of each class of tensors and storages in Lua Torch.

    `torch.FloatTensor` is float32 on the CPU, `torch.CudaLongTensor` int64 on a GPU, where float32 has no word.
    """
    classes: dict[str, tuple[ElementType, str]] = {}
    for word, element in BY_LUA_WORD.items():
        for kind in ("Tensor", "Storage"):
            word_on_gpu = "" if word == "Float" else word
            classes[f"torch.{word}{kind}"] = (element, "cpu")
            classes[f"torch.Cuda{word_on_gpu}{kind}"] = (element, "cuda:0")
    return classes


LUA_CLASSES: dict[str, tuple[ElementType, str]] = _lua_classes()
"""Class name of a Lua tensor or storage → its element type and PyTorch's name of the device."""

# Torch of 2010 had one class for the default type, which nothing ever changed from double.
LUA_ALIASES: dict[str, str] = {"torch.Tensor": "torch.DoubleTensor", "torch.Storage": "torch.DoubleStorage"}

_LUA_NAMES: dict[tuple[str, str, str], str] = {
    (element.name, device, "Tensor" if name.endswith("Tensor") else "Storage"): name
    for name, (element, device) in LUA_CLASSES.items()
}


def lua_class_name(element: ElementType, device: str, kind: str) -> str | None:
    """Return the Lua class of a tensor or storage, `None` where Lua Torch has no such element type.

    Args:
        element: the element type.
        device: PyTorch's name of the device; every `cuda` device is the same class in Lua.
        kind: `Tensor` or `Storage`.
    """
    class_device = "cuda:0" if device.startswith("cuda") else "cpu"
    return _LUA_NAMES.get((element.name, class_device, kind))


def element_of(dtype: np.dtype[Any]) -> ElementType:
    """Return the element type of a numpy dtype, whatever its byte order.

    Raises:
        ModelError: no element type corresponds to it.
    """
    element = NUMPY_ELEMENTS.get(f"{dtype.kind}{dtype.itemsize}")
    if element is None:
        raise ModelError(f"no storage holds elements of numpy type {dtype}")
    return element


def dtype_of(element: ElementType, order: str = "little", width: int | None = None) -> np.dtype[Any]:
    """Return the numpy dtype of elements in a byte order; of types that numpy lacks, that of their bits.

    Args:
        element: the element type.
        order: `little` or `big`.
        width: bytes of one element: the type's own, or those of a C long in which it is written.
    """
    code = element.code if width in (None, element.itemsize) else f"i{width}"
    return np.dtype(ORDER_SIGNS[order] + code)


def numpy_dtype(element: ElementType) -> np.dtype[Any]:
    """Return the numpy dtype with the values of the elements, from `ml_dtypes` where numpy lacks it.

    Raises:
        UnsupportedError: neither has one, or ml_dtypes is not installed.
    """
    # Quantized elements are their integers, as long as each has a byte of its own.
    if element.native or element.name in ("quint8", "qint8", "qint32"):
        return np.dtype(element.code)
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError(
            f"numpy has no {element.name}",
            hint="Install ml_dtypes (pip install ml_dtypes), or take the bits as integers from `array`.",
        ) from None
    scalar_type = getattr(ml_dtypes, element.name, None)
    if scalar_type is None:
        raise UnsupportedError(f"numpy has no {element.name}", hint="Take the bits as integers from `array`.")
    dtype: np.dtype[Any] = np.dtype(scalar_type)
    return dtype
