"""Weights, constants and graphs of `.pt2` archives, which `torch.export.save` writes. Nothing in them is executed.

Three layouts exist, told apart by their members:

- 2.8 and newer: `data/weights/MODEL_weights_config.json` maps each name to a member with the raw bytes of a storage
  (several names may share one) and to a dtype, sizes, strides and an offset; `data/constants/` is the same.
  Tensors that are not plain memory are members written by `torch.save`.
- 2.7: `data/weights/MODEL.pt` and `data/constants/MODEL.pt`, each a dictionary written by `torch.save`.
- 2.1 to 2.6: `serialized_state_dict.pt` and `serialized_constants.pt` (`.json` by name in 2.1) beside
  `serialized_exported_program.json`, without a root folder.

Source: PyTorch 2.13 `torch/export/pt2_archive/_package.py`, `torch/_export/serde/schema.py` (`PayloadMeta`,
`TensorMeta`, `ScalarType`), `torch/export/__init__.py` (`load`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from ...data import define
from ...errors import CorruptError, UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES, ElementType
from ...limits import Limits
from .checkpoint import PtArchive
from .pickle.rebuild_tensors import view
from .storages import shown
from .torchscript import ScriptEntry, ScriptModule, is_tensor

FORMAT_MEMBER = "archive_format"
OLD_PROGRAM_MEMBER = "serialized_exported_program.json"
_WEIGHTS, _CONSTANTS, _MODELS = "data/weights/", "data/constants/", "models/"
_OLD_PARTS = {"serialized_state_dict": True, "serialized_constants": False}

# Source: `torch/_export/serde/schema.py` `ScalarType`.
_ELEMENTS = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}
_STRIDED = 7

Nested = Callable[[bytes], Any]
"""Reads a whole file that stands in a member."""


@define(frozen=True)
class _Folder:
    """Where the payloads of one kind are.

    Attributes:
        name: the folder, below the root.
        config: what follows the model's name in the name of its list of payloads.
        in_state: whether its tensors belong to the state dict.
    """

    name: str
    config: str
    in_state: bool


_FOLDERS = (
    _Folder(_WEIGHTS, "_weights_config.json", True),
    _Folder(_CONSTANTS, "_constants_config.json", False),
)


def is_pt2(archive: PtArchive) -> bool:
    """Tell whether an archive was written by `torch.export.save`."""
    return archive.small(FORMAT_MEMBER) == b"pt2" if archive.has(FORMAT_MEMBER) else archive.has(OLD_PROGRAM_MEMBER)


def read_pt2(archive: PtArchive, limits: Limits, nested: Nested) -> ScriptModule:
    """Read the weights and constants of an exported program.

    Where an archive holds several programs, the names of each begin with the program's.

    Args:
        archive: the archive.
        limits: resource limits.
        nested: reads a member that is a whole file of `torch.save`.

    Returns:
        The weights under their names, in PyTorch's order, as the state dict; the constants as other entries.

    Raises:
        FormatError: it is damaged.
        UnsupportedError: it holds tensors of a kind that cannot be read, or no weights but compiled code only.
    """
    if archive.has(FORMAT_MEMBER):
        names = _programs(archive)
        if not names:
            raise UnsupportedError(
                "is an archive of torch.export without a program: it holds compiled code only",
                file=archive.zip.source.name,
                hint="Export the model again with torch.export.save, or save its state dict with torch.save.",
            )
        entries: list[ScriptEntry] = []
        for name in names:
            prefix = f"{name}." if len(names) > 1 else ""
            for folder in _FOLDERS:
                entries += _payloads(archive, name, folder, prefix, nested)
    else:
        entries = list(_old_parts(archive, nested))
    for folder in _FOLDERS:
        archive.meaning(folder.name).storages.finish()
    return ScriptModule(entries)


def graphs(archive: PtArchive, limits: Limits) -> dict[str, Any]:
    """Return the graph of each program, as the JSON that PyTorch writes, by the program's name.

    Raises:
        CorruptError: a graph is no JSON object.
    """
    if archive.has(FORMAT_MEMBER):
        return {name: _json(archive, f"{_MODELS}{name}.json") for name in _programs(archive)}
    return {"model": _json(archive, OLD_PROGRAM_MEMBER)}


def _programs(archive: PtArchive) -> list[str]:
    start = archive.root + _MODELS
    names = (name for name in archive.zip.members if name.startswith(start) and name.endswith(".json"))
    return [name[len(start) : -len(".json")] for name in names]


def _payloads(archive: PtArchive, model: str, folder: _Folder, prefix: str, nested: Nested) -> Iterator[ScriptEntry]:
    """The tensors of one program in one folder."""
    whole = f"{folder.name}{model}.pt"  # 2.7
    if archive.has(whole):
        yield from _named(nested(archive.zip.read(archive.root + whole)), whole, prefix, folder.in_state)
        return
    member = f"{folder.name}{model}{folder.config}"
    if not archive.has(member):
        raise CorruptError(f"the archive has no member {archive.root}{member}", file=archive.zip.source.name)
    for name, payload in _dict(_dict(_json(archive, member), member).get("config"), member).items():
        path = f"{member}: {name}"
        yield ScriptEntry(prefix + name, _payload(archive, folder, _dict(payload, path), path, nested), folder.in_state)


def _payload(archive: PtArchive, folder: _Folder, payload: dict[str, Any], path: str, nested: Nested) -> Any:
    """One tensor. Other constants (TorchBind objects, opaque values) are refused by their names."""
    key = payload.get("path_name")
    member = archive.zip.members.get(f"{archive.root}{folder.name}{key}") if isinstance(key, str) else None
    if member is None:
        raise CorruptError("a tensor's member is not in the archive", trail=path, found=shown(key))
    if payload.get("use_pickle"):
        if payload.get("tensor_meta") is None and not member.name.rpartition("/")[2].startswith(("tensor_", "weight_")):
            raise UnsupportedError("a constant is an object of a custom class", trail=path, found=member.name)
        return nested(archive.zip.read(member.name))
    meta = _dict(payload.get("tensor_meta"), path)
    element = _element(meta.get("dtype"), path)
    if meta.get("layout", _STRIDED) != _STRIDED:
        raise UnsupportedError("a tensor is not strided", trail=path, found=f"layout {shown(meta.get('layout'))}")
    meaning = archive.meaning(folder.name)
    known = meaning.storages.roots.get(key)
    if known is None:
        if member.size % element.itemsize:
            raise CorruptError(
                "a storage has no whole number of elements", trail=path, found=f"{member.size} bytes of {element.name}"
            )
        known = meaning.storages.get(key, element, member.size // element.itemsize, "cpu")
    size, stride = ([_integer(item, path) for item in _list(meta.get(word), path)] for word in ("sizes", "strides"))
    storage = meaning.storages.retype(known, element)
    tensor = view(meaning, storage, _integer(meta.get("storage_offset"), path), size, stride)
    tensor.is_parameter = bool(payload.get("is_param"))
    tensor.requires_grad = bool(meta.get("requires_grad"))
    return tensor


def _old_parts(archive: PtArchive, nested: Nested) -> Iterator[ScriptEntry]:
    """The tensors of an archive of 2.1 to 2.6."""
    for part, in_state in _OLD_PARTS.items():
        for member in (f"{part}.pt", f"{part}.json"):
            data = archive.small(member)
            if data:
                yield from _named(nested(data), member, "", in_state)
                break
        else:
            if in_state:
                raise CorruptError(f"the archive has no member {part}.pt", file=archive.zip.source.name)


def _named(values: Any, member: str, prefix: str, in_state: bool) -> Iterator[ScriptEntry]:
    """The tensors of a dictionary that `torch.save` wrote."""
    for name, value in _dict(values, member).items():
        if not isinstance(name, str):
            raise CorruptError("a tensor's name is no text", trail=member, found=shown(name))
        if not is_tensor(value):
            raise UnsupportedError("a constant is no tensor", trail=f"{member}: {name}", found=shown(value))
        yield ScriptEntry(prefix + name, value, in_state)


def _json(archive: PtArchive, member: str) -> Any:
    try:
        return json.loads(archive.small(member) or b"")
    except (ValueError, RecursionError) as error:
        raise CorruptError("is not the JSON that PyTorch writes", trail=member, found=str(error)[:80]) from error


def _element(number: Any, path: str) -> ElementType:
    name = _ELEMENTS.get(number) if type(number) is int else None
    if name is None or name not in ELEMENT_TYPES:
        raise UnsupportedError("a tensor is of an unknown type", trail=path, found=f"dtype {shown(number)}")
    return ELEMENT_TYPES[name]


def _dict(value: Any, path: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise CorruptError("is not what PyTorch writes", trail=path, expected="an object", found=shown(value))
    return value


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise CorruptError("is not what PyTorch writes", trail=path, expected="a list", found=shown(value))
    return value


def _integer(value: Any, path: str) -> int:
    """A symbolic integer that is known: `{"as_int": 3}`."""
    number = value.get("as_int") if isinstance(value, dict) else value
    if type(number) is not int:
        raise UnsupportedError("a tensor's size is not a number", trail=path, found=shown(value))
    return number
