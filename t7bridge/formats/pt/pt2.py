"""Weights, constants and graphs of `.pt2` archives, written by `torch.export.save`. Nothing in them is executed.

Three layouts exist, identified by their members:

- 2.8 and newer: `data/weights/MODEL_weights_config.json` maps each name to a member with the raw bytes of a storage
  (several names may share one) and to a dtype, sizes, strides and an offset; `data/constants/` is the same.
  Tensors that are not plain memory are members written by `torch.save`.
- 2.7: `data/weights/MODEL.pt` and `data/constants/MODEL.pt`, each a dictionary written by `torch.save`.
- 2.1 to 2.6: `serialized_state_dict.pt` and `serialized_constants.pt` (named `.json` in 2.1) next to
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
from ...report import Note
from .checkpoint import PtArchive
from .pickle.rebuild_tensors import view
from .storages import shown
from .torchscript import ScriptEntry, ScriptModule, detached, is_tensor

FORMAT_MEMBER = "archive_format"
OLD_PROGRAM_MEMBER = "serialized_exported_program.json"
_WEIGHTS, _CONSTANTS, _MODELS = "data/weights/", "data/constants/", "models/"
_OLD_PARTS = {"serialized_state_dict": True, "serialized_constants": False}
_NOT_CARRIED = (
    ("data/sample_inputs/", "the example inputs"),
    ("serialized_example_inputs.", "the example inputs"),
    ("data/aotinductor/", "compiled code"),
    ("extra/", "extra files"),
    ("extra_files/", "extra files"),
    ("models/", "the graph"),
    ("serialized_exported_program.json", "the graph"),
)
"""Prefixes of members that are not part of state dicts, below the root, with their descriptions."""

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
"""Reads a whole file that is a member."""
ReadMember = Callable[[str], Any]
"""Reads the whole file that a member is, by its name below the root."""


@define(frozen=True)
class _Folder:
    """Location of the payloads of one kind.

    Attributes:
        name: the folder, below the root.
        config: suffix after the model's name in the name of its list of payloads.
        in_state: whether its tensors belong to the state dict.
    """

    name: str
    config: str
    in_state: bool


_FOLDERS = (
    _Folder(_WEIGHTS, "_weights_config.json", True),
    _Folder(_CONSTANTS, "_constants_config.json", False),
)


def read_pt2(archive: PtArchive, limits: Limits, nested: Nested) -> ScriptModule:
    """Read the weights and constants of an exported program.

    If an archive holds several programs, the names of each begin with the program's.

    Args:
        archive: the archive.
        limits: resource limits.
        nested: reads a member that is a whole file of `torch.save`.

    Returns:
        The weights under their names, in PyTorch's order, as the state dict; the constants as other entries, and under
        `constants.` and their names the tensors without names of their own. The notes name what is left out.

    Raises:
        FormatError: it is damaged.
        UnsupportedError: it holds unsupported tensors, or compiled code only.
    """
    notes: list[Note] = []
    read: set[str] = set()

    def read_member(name: str) -> Any:
        read.add(name)
        return nested(archive.zip.read(archive.root + name))

    if archive.has(FORMAT_MEMBER):
        names = _programs(archive)
        if not names:
            raise UnsupportedError(
                "is an archive of torch.export without a program, only compiled code",
                file=archive.zip.source.name,
                hint="Export the model again with torch.export.save, or save its state dict with torch.save.",
            )
        entries: list[ScriptEntry] = []
        for name in names:
            prefix = f"{name}." if len(names) > 1 else ""
            for folder in _FOLDERS:
                entries += _payloads(archive, name, folder, prefix, read_member, notes)
    else:
        entries = list(_old_parts(archive, read_member, notes))
    for folder in _FOLDERS:
        archive.meaning(folder.name).storages.finish()
    found = ScriptModule(entries, notes=notes)
    _add_constants(found)
    _note_members(archive, read, notes)
    return found


def _add_constants(found: ScriptModule) -> None:
    """Add the constants, and buffers that PyTorch does not save, under unused names."""
    names = {entry.name for entry in found.entries if entry.in_state}
    carried = []
    for entry in found.entries:
        if not entry.in_state:
            name = f"constants.{entry.name}"
            while name in names or name in found.inlined:
                name = f"constants.{name}"
            found.inlined[name] = detached(entry.value)
            carried.append(name)
    if carried:
        count = f"{len(carried)} constant{'s' * (len(carried) > 1)}"
        found.notes.append(
            Note(
                "info",
                "",
                f"the program has {count}, which its state dict does not have: {_few(carried)}",
                code="carried",
            )
        )


def _note_members(archive: PtArchive, read: set[str], notes: list[Note]) -> None:
    """Note the members that are not part of the state dict: by kind, or payloads that nothing names."""
    located = archive.located
    names = [name[len(archive.root) :] for name in archive.zip.members if name.startswith(archive.root)]
    for what in dict.fromkeys(what for _, what in _NOT_CARRIED):
        starts = tuple(start for start, of in _NOT_CARRIED if of == what)
        found = [name for name in names if name.startswith(starts)]
        if found:
            notes.append(Note("info", "", f"{what} of the archive left out ({_few(found)})", code="left-out"))
    unread = [
        name
        for name in names
        if name.startswith((_WEIGHTS, _CONSTANTS))
        and name.startswith(("weight_", "tensor_", "custom_obj_", "opaque_obj_"), name.rfind("/") + 1)
        and archive.root + name not in located
        and name not in read
        and archive.zip.members[archive.root + name].size
    ]
    if unread:
        size = sum(archive.zip.members[archive.root + name].size for name in unread)
        notes.append(
            Note(
                "warning",
                "",
                f"{len(unread)} members that no tensor refers to are left out: {_few(unread)} ({size} bytes)",
                code="left-out",
                count=len(unread),
            )
        )


def _few(names: list[str]) -> str:
    return ", ".join(name[:60] for name in names[:5]) + (", …" if len(names) > 5 else "")


def graphs(archive: PtArchive, limits: Limits) -> dict[str, Any]:
    """Return the graph of each program, as PyTorch's JSON, by the program's name.

    Raises:
        CorruptError: a graph is not a JSON object.
    """
    if archive.has(FORMAT_MEMBER):
        return {name: _json(archive, f"{_MODELS}{name}.json") for name in _programs(archive)}
    return {"model": _json(archive, OLD_PROGRAM_MEMBER)}


def _programs(archive: PtArchive) -> list[str]:
    start = archive.root + _MODELS
    names = (name for name in archive.zip.members if name.startswith(start) and name.endswith(".json"))
    return [name[len(start) : -len(".json")] for name in names]


def _payloads(
    archive: PtArchive, model: str, folder: _Folder, prefix: str, read: ReadMember, notes: list[Note]
) -> Iterator[ScriptEntry]:
    """Return the tensors of one program in one folder."""
    whole = f"{folder.name}{model}.pt"  # 2.7
    if archive.has(whole):
        yield from _named(read(whole), whole, prefix, folder.in_state, notes)
        return
    member = f"{folder.name}{model}{folder.config}"
    if not archive.has(member):
        raise CorruptError(f"the archive has no member {archive.root}{member}", file=archive.zip.source.name)
    for name, payload in _dict(_dict(_json(archive, member), member).get("config"), member).items():
        path = f"{member}: {name}"
        kept = _dict(payload, path)
        file = str(kept.get("path_name")).rpartition("/")[2]
        if kept.get("use_pickle") and not kept.get("tensor_meta") and not file.startswith(("tensor_", "weight_")):
            _note_object(prefix + name, file, notes)
        else:
            yield ScriptEntry(prefix + name, _payload(archive, folder, kept, path, read), folder.in_state)


def _payload(archive: PtArchive, folder: _Folder, payload: dict[str, Any], path: str, read: ReadMember) -> Any:
    """Return one tensor."""
    key = payload.get("path_name")
    member = archive.zip.members.get(f"{archive.root}{folder.name}{key}") if isinstance(key, str) else None
    if member is None:
        raise CorruptError("a tensor's member is not in the archive", path=path, found=shown(key))
    if payload.get("use_pickle"):
        tensor = read(f"{folder.name}{key}")
        if not is_tensor(tensor):
            raise CorruptError("a tensor's member holds another value", path=path, found=shown(tensor))
        return tensor
    meta = _dict(payload.get("tensor_meta"), path)
    element = _element(meta.get("dtype"), path)
    if meta.get("layout", _STRIDED) != _STRIDED:
        raise UnsupportedError("a tensor is not strided", path=path, found=f"layout {shown(meta.get('layout'))}")
    meaning = archive.meaning(folder.name)
    known = meaning.storages.roots.get(key)
    if known is None:
        if member.size % element.itemsize:
            raise CorruptError(
                "a storage has no whole number of elements", path=path, found=f"{member.size} bytes of {element.name}"
            )
        known = meaning.storages.get(key, element, member.size // element.itemsize, _device(meta))
    size, stride = ([_integer(item, path) for item in _list(meta.get(word), path)] for word in ("sizes", "strides"))
    storage = meaning.storages.retype(known, element)
    tensor = view(meaning, storage, _integer(meta.get("storage_offset"), path), size, stride)
    tensor.is_parameter = bool(payload.get("is_param"))
    tensor.requires_grad = bool(meta.get("requires_grad"))
    return tensor


def _device(meta: dict[str, Any]) -> str:
    """Return the device of a tensor by PyTorch's name: `cpu`, `cuda:0`."""
    device = meta.get("device")
    kind, index = (device.get("type"), device.get("index")) if isinstance(device, dict) else (None, None)
    if not isinstance(kind, str) or not kind.isidentifier():
        return "cpu"
    return f"{kind}:{index}" if type(index) is int else kind


def _note_object(name: str, found: str, notes: list[Note]) -> None:
    """Note a constant that is not a tensor: an object of a class of C++ or of a custom one."""
    notes.append(
        Note(
            "warning",
            f"constants.{name}",
            f"a constant is not a tensor and left out: {found[:60]}",
            "type",
            code="left-out",
        )
    )


def _old_parts(archive: PtArchive, read: ReadMember, notes: list[Note]) -> Iterator[ScriptEntry]:
    """Return the tensors of an archive of 2.1 to 2.6."""
    for part, in_state in _OLD_PARTS.items():
        for member in (f"{part}.pt", f"{part}.json"):
            if archive.small(member):
                yield from _named(read(member), member, "", in_state, notes)
                break
        else:
            if in_state:
                raise CorruptError(f"the archive has no member {part}.pt", file=archive.zip.source.name)


def _named(values: Any, member: str, prefix: str, in_state: bool, notes: list[Note]) -> Iterator[ScriptEntry]:
    """Return the tensors of a dictionary written by `torch.save`."""
    for name, value in _dict(values, member).items():
        if not isinstance(name, str):
            raise CorruptError("a tensor's name is not text", path=member, found=shown(name))
        if is_tensor(value):
            yield ScriptEntry(prefix + name, value, in_state)
        elif in_state:
            raise UnsupportedError("a weight is not a tensor", path=f"{member}: {name}", found=shown(value))
        else:
            _note_object(prefix + name, shown(value), notes)


def _json(archive: PtArchive, member: str) -> Any:
    try:
        return json.loads(archive.small(member) or b"")
    except (ValueError, RecursionError) as error:
        raise CorruptError("is not PyTorch's JSON", path=member, found=str(error)[:80]) from error


def _element(number: Any, path: str) -> ElementType:
    name = _ELEMENTS.get(number) if type(number) is int else None
    if name is None or name not in ELEMENT_TYPES:
        raise UnsupportedError("a tensor has an unknown type", path=path, found=f"dtype {shown(number)}")
    return ELEMENT_TYPES[name]


def _dict(value: Any, path: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise CorruptError("is not what PyTorch writes", path=path, expected="an object", found=shown(value))
    return value


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise CorruptError("is not what PyTorch writes", path=path, expected="a list", found=shown(value))
    return value


def _integer(value: Any, path: str) -> int:
    """Return a symbolic integer that is known: `{"as_int": 3}`."""
    number = value.get("as_int") if isinstance(value, dict) else value
    if type(number) is not int:
        raise UnsupportedError("a tensor's size is not a number", path=path, found=shown(value))
    return number
