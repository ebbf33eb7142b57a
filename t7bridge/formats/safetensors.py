"""safetensors files from the graph, and the safetensors library as an independent reader. Its only importer.

The format: the length of a JSON header as an 8-byte little-endian integer, the header, then the tensors' elements,
little-endian and row by row, without gaps. Writing it needs no library, and no memory for the weights.
Source: safetensors' README, "Format".
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..errors import UnsupportedError, WriteError
from ..graph.tensor import Tensor
from ..io.output import CHUNK_BYTES, FileOutput
from ..io.source import PathLike
from ..report import Report

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "complex64": "C64",
}  # fmt: skip
"""Element type → safetensors' name of it."""
_HEADER_BYTES = 100_000_000


def write_safetensors(path: PathLike, tensors: dict[str, Tensor], metadata: dict[str, str], report: Report) -> None:
    """Write tensors as a safetensors file, sorted as the library sorts them: wide elements first, then by name.

    Args:
        path: of the file; one that is there is replaced.
        tensors: by name.
        metadata: strings by name.
        report: gets a note where tensors that shared memory no longer do.

    Raises:
        UnsupportedError: safetensors has no such elements.
        WriteError: there are too many names, or the disk refuses.
    """
    for name, tensor in tensors.items():
        if tensor.element.name not in DTYPES:
            raise UnsupportedError(f"safetensors has no elements of type {tensor.element.name}", trail=name)
    order = sorted(tensors, key=lambda name: (-tensors[name].element.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **dict(sorted(metadata.items()))}}
    position = 0
    for name in order:
        end = position + tensors[name].numel * tensors[name].element.itemsize
        shape = list(tensors[name].shape)
        header[name] = {"dtype": DTYPES[tensors[name].element.name], "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_BYTES:
        raise WriteError(f"the names take {len(text)} bytes", expected=f"at most {_HEADER_BYTES} in a safetensors file")
    note_sharing(tensors, report)
    with FileOutput(path, force=True) as output:
        output.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            view = elements(tensors[name])
            for start in range(0, len(view), CHUNK_BYTES):
                output.write(view[start : start + CHUNK_BYTES])


def elements(tensor: Tensor) -> memoryview:
    """A tensor's elements row by row, little-endian, as bytes; those of the file itself where they stand so."""
    array = tensor.array
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data if little.size else memoryview(b"")


def note_sharing(tensors: dict[Any, Tensor], report: Report) -> None:
    """Note that tensors that share memory are written each for itself."""
    storages = [id(tensor.storage) for tensor in tensors.values() if tensor.storage is not None and tensor.numel]
    if len(set(storages)) < len(storages):
        report.note("info", f"{len(storages)} tensors of {len(set(storages))} storages are written each for itself")


def safetensors_differences(path: PathLike, tensors: dict[str, Tensor]) -> list[str]:
    """Read a file with the safetensors library, and compare with what should be in it.

    Raises:
        UnsupportedError: the library is not installed.
    """
    try:
        import safetensors
    except ImportError as error:
        raise UnsupportedError(
            "safetensors is not installed, and --verify reads with it", hint="pip install 't7bridge[safetensors]'"
        ) from error
    library: Any = safetensors  # parts of it have no types
    with open(path, "rb") as file:
        read = dict(library.deserialize(file.read()))
    found = [f"{name} is missing" for name in tensors if name not in read]
    found += [f"{name} is too much" for name in read if name not in tensors]
    for name, tensor in tensors.items():
        other = read.get(name)
        if other is None:
            continue
        if (other["dtype"], list(other["shape"])) != (DTYPES[tensor.element.name], list(tensor.shape)):
            found.append(f"{name} is {other['dtype']} of shape {other['shape']}")
        elif bytes(other["data"]) != elements(tensor).tobytes():
            found.append(f"{name} has other elements")
    return found
