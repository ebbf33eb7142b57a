"""Storages whose elements Lua Torch does not have, as storages of elements that it has.

Each widening is exact and can be undone, but for unsigned 64-bit integers beyond 2^63, which become doubles.

| elements | become |
| --- | --- |
| bool, quint8, quint4x2, quint2x4 | uint8, the same bytes |
| qint8, qint32 | int8, int32, the same bytes |
| complex64, complex128 | two float32 or float64 each, the same bytes |
| complex32 | two float16 each, the same bytes |
| bfloat16, float8 | float32 |
| uint16, uint32 | int32, int64 |
| uint64 | int64, or float64 where a number does not fit |

A nan of a float8 keeps its bits in the payload of the float32's nan.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
from attrs import define, evolve

from .arrays import array_chunks
from .elements import ELEMENT_TYPES, ElementType
from .storage import Derived, Span, Storage

_SAME_BYTES = {
    "bool": "uint8", "quint8": "uint8", "quint4x2": "uint8", "quint2x4": "uint8", "qint8": "int8", "qint32": "int32",
    "complex32": "float16", "complex64": "float32", "complex128": "float64",
}  # fmt: skip
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "bfloat16": "float32"}
_QUIET_NAN = 0x7FC00000


@define(frozen=True)
class _Float8:
    """The parts of an 8-bit float. Source: PyTorch 2.13 `torch/headeronly/util/Float8_*.h`.

    Attributes:
        exponent: bits of the exponent.
        bias: of the exponent.
        nans: the bit patterns, without sign, that are no numbers; of the unsigned kinds, with it.
        infinity: the bit pattern of infinity, -1 where there is none.
        signed: whether the first bit is a sign.
    """

    exponent: int
    bias: int
    nans: frozenset[int]
    infinity: int = -1
    signed: bool = True


_FLOAT8 = {
    "float8_e4m3fn": _Float8(4, 7, frozenset({0x7F})),
    "float8_e5m2": _Float8(5, 15, frozenset({0x7D, 0x7E, 0x7F}), 0x7C),
    "float8_e4m3fnuz": _Float8(4, 8, frozenset()),
    "float8_e5m2fnuz": _Float8(5, 16, frozenset()),
    "float8_e8m0fnu": _Float8(8, 127, frozenset({0xFF}), signed=False),
}


@lru_cache
def _float8_table(name: str) -> np.ndarray:
    """The 256 values of an 8-bit float as float32 bits, shape (256,)."""
    kind = _FLOAT8[name]
    mantissa = 8 - kind.signed - kind.exponent
    bits = np.zeros(256, "u4")
    for pattern in range(256):
        sign, rest = (pattern >> 7, pattern & 0x7F) if kind.signed else (0, pattern)
        if rest in kind.nans or (name.endswith("fnuz") and pattern == 0x80):
            bits[pattern] = _QUIET_NAN | sign << 31 | pattern
            continue
        if rest == kind.infinity:
            value = float("inf")
        else:
            exponent, fraction = rest >> mantissa, rest & ((1 << mantissa) - 1)
            if exponent or not kind.signed:
                value = (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent - kind.bias)
            else:
                value = fraction / (1 << mantissa) * 2.0 ** (1 - kind.bias)
        bits[pattern] = np.float32(-value if sign else value).view("u4")
    return bits


def widen(storage: Storage) -> tuple[Storage, int, bool]:
    """A storage of Lua's elements with what a storage holds.

    Args:
        storage: any; one that Lua has is given back itself.

    Returns:
        The storage; how many of its elements each element has become, 1 or 2; whether it can be undone exactly.
    """
    element = storage.element
    if element.lua:
        return storage, 1, True
    if element.name in _SAME_BYTES:
        wider = ELEMENT_TYPES[_SAME_BYTES[element.name]]
        return _same_bytes(storage, wider), element.itemsize // wider.itemsize, True
    wider, exact = ELEMENT_TYPES[_WIDER.get(element.name, "float32")], True
    if element.name == "uint64" and any(chunk.size and chunk.max() >= 2**63 for chunk in array_chunks(storage)):
        wider, exact = ELEMENT_TYPES["float64"], False
    data = Derived(storage, partial(_wider_elements, element.name, wider.code))
    return Storage(wider, storage.count, data, storage.device), 1, exact


def _same_bytes(storage: Storage, element: ElementType) -> Storage:
    """The same bytes as elements of another type."""
    span = storage.data
    data = evolve(span, width=element.itemsize) if isinstance(span, Span) else storage.array.view(element.code)
    return Storage(element, storage.nbytes // element.itemsize, data, storage.device)


def narrow(storage: Storage, element: ElementType) -> Storage:
    """Undo `widen`.

    Args:
        storage: what `widen` gave, or one with the same elements.
        element: the element type before.
    """
    if storage.element is element:
        return storage
    if element.name in _SAME_BYTES:
        return _same_bytes(storage, element)
    data = Derived(storage, partial(_narrower_elements, element.name, element.code))
    return Storage(element, storage.count, data, storage.device)


def _wider_elements(name: str, code: str, array: np.ndarray) -> np.ndarray:
    """Elements of a type, shape (n,), as elements of a wider type."""
    if name == "bfloat16":
        return (array.astype("u4") << 16).view("f4")
    if name in _FLOAT8:
        table = _float8_table(name)
        return np.asarray(table[array]).view("f4")
    return array.astype(code)


def _narrower_elements(name: str, code: str, array: np.ndarray) -> np.ndarray:
    """Undo `_wider_elements`."""
    if name == "bfloat16":
        return (array.view("u4") >> 16).astype("u2")
    if name in _FLOAT8:
        table = _float8_table(name)
        order = np.argsort(table, kind="stable")
        return order[np.minimum(np.searchsorted(table[order], array.view("u4")), 255)].astype("u1")
    return array.astype(code)
