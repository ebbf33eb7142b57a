"""TorchScript archives of PyTorch 1.0 to 1.2: modules in `model.json`, one member below `tensors/` for each storage.

Source: PyTorch 1.7 `torch/csrc/jit/serialization/import_legacy.cpp`; `caffe2/proto/torch.proto`.
"""

from __future__ import annotations

import json
from typing import Any

from ...errors import CorruptError, LimitError, UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES, ElementType
from ...graph.python import QuantizedTensor
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from ...limits import Limits
from .checkpoint import MODEL_MEMBER, PtArchive
from .pickle.rebuild_tensors import view
from .storages import shown
from .torchscript import ScriptEntry, ScriptModule

ATTRIBUTES_MEMBER = "attributes.pkl"

# Source: `caffe2/proto/caffe2.proto` `TensorProto.DataType`: name and number.
_DATA_TYPES: dict[Any, str] = {
    name: element
    for names, element in (
        (("FLOAT", 1), "float32"),
        (("INT32", 2), "int32"),
        (("BYTE", 3), "uint8"),
        (("BOOL", 5), "bool"),
        (("UINT8", 6), "uint8"),
        (("INT8", 7), "int8"),
        (("UINT16", 8), "uint16"),
        (("INT16", 9), "int16"),
        (("INT64", 10), "int64"),
        (("FLOAT16", 12), "float16"),
        (("DOUBLE", 13), "float64"),
    )
    for name in names
}
_QUANTIZED = {"uint8": "quint8", "int8": "qint8", "int32": "qint32"}


def read_json_archive(archive: PtArchive, limits: Limits) -> ScriptModule:
    """Read the modules of an archive.

    Raises:
        FormatError: it is damaged.
    """
    model = _parse(archive)
    meaning = archive.meaning("")
    for definition in _list(model, "tensors"):
        meaning.tensors.append(_tensor(archive, definition))  # type: ignore[arg-type]
    meaning.storages.finish()
    values: Any = archive.unpickle(ATTRIBUTES_MEMBER, "") if archive.has(ATTRIBUTES_MEMBER) else ()
    if not isinstance(values, (tuple, list)):
        raise CorruptError("the archive's attributes are not a list", found=type(values).__name__)
    found = ScriptModule([], list(meaning.tensors))
    stack: list[tuple[str, dict[str, Any], int]] = [("", _dict(model.get("mainModule", {})), 0)]
    while stack:
        prefix, module, depth = stack.pop()
        if depth > limits.module_depth:
            raise LimitError(
                "the archive's modules are nested too deep", limit="module_depth", value=limits.module_depth
            )
        found.entries += _entries(prefix, module, meaning.tensors, values)
        inner = [(f"{prefix}{_name(sub)}.", sub, depth + 1) for sub in map(_dict, _list(module, "submodules"))]
        stack.extend(reversed(inner))
    named = {id(entry.value) for entry in found.entries}
    for number, tensor in enumerate(meaning.tensors):
        if id(tensor) not in named:
            found.inlined[f"constants.{number}"] = tensor
    found.note_inlined()
    return found


def _parse(archive: PtArchive) -> dict[str, Any]:
    data = archive.small(MODEL_MEMBER) or b""
    try:
        return _dict(json.loads(data))
    except (ValueError, RecursionError) as error:
        if isinstance(error, CorruptError):
            raise
        raise CorruptError(f"{MODEL_MEMBER} is not in PyTorch's format: {error}") from error


def _entries(prefix: str, module: dict[str, Any], tensors: list[Any], values: Any) -> list[ScriptEntry]:
    """Yield parameters, buffers, then the other attributes. Those of type Tensor were buffers in 1.2."""
    parameters: list[ScriptEntry] = []
    buffers: list[ScriptEntry] = []
    others: list[ScriptEntry] = []
    for definition in map(_dict, _list(module, "parameters")):
        entry = ScriptEntry(prefix + _name(definition), _at(tensors, _int(definition, "tensorId")), True)
        (buffers if definition.get("isBuffer") else parameters).append(entry)
    known = {entry.name for entry in (*parameters, *buffers)}
    for definition in map(_dict, _list(module, "attributes")):
        name = prefix + _name(definition)
        if name not in known:
            number = _int(definition, "id")
            value = _at(values, number) if number >= 0 else None
            is_buffer = definition.get("type") == "Tensor" and isinstance(value, (Tensor, QuantizedTensor))
            (buffers if is_buffer else others).append(ScriptEntry(name, value, is_buffer))
    return [*parameters, *buffers, *others]


def _tensor(archive: PtArchive, definition: Any) -> Tensor | QuantizedTensor:
    entry = _dict(definition)
    kind = entry.get("dataType")
    name = _DATA_TYPES.get(kind) if isinstance(kind, (str, int)) else None
    if name is None:
        raise UnsupportedError(f"a tensor is of type {shown(kind)}, which PyTorch 1.2 did not have")
    quantized = bool(entry.get("isQuantized"))
    element = ELEMENT_TYPES[_QUANTIZED.get(name, name) if quantized else name]
    storage = _storage(archive, _dict(entry.get("data", {})).get("key"), element, str(entry.get("device", "cpu")))
    size, stride = ([_number(item) for item in _list(entry, word)] for word in ("dims", "strides"))
    tensor = view(archive.meaning(""), storage, _int(entry, "offset"), size, stride)
    tensor.requires_grad = bool(entry.get("requiresGrad"))
    if not quantized:
        return tensor
    return QuantizedTensor(tensor, "per_tensor_affine", _float(entry, "scale"), _int(entry, "zeroPoint"))


def _storage(archive: PtArchive, key: Any, element: ElementType, device: str) -> Storage:
    member = archive.zip.members.get(f"{archive.root}{key}")
    if not isinstance(key, str) or member is None:
        raise CorruptError("a tensor's member is not in the archive", found=shown(key))
    return archive.meaning("").storages.get(key, element, member.size // element.itemsize, device)


# JSON of protocol buffers: 64-bit numbers are text, and zero or empty values may be missing.


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CorruptError(f"{MODEL_MEMBER} is not in PyTorch's format", found=type(value).__name__)
    return value


def _list(value: dict[str, Any], name: str) -> list[Any]:
    found = value.get(name, [])
    if not isinstance(found, list):
        raise CorruptError(f"{MODEL_MEMBER} has {name} that are not a list", found=type(found).__name__)
    return found


def _name(value: dict[str, Any]) -> str:
    found = value.get("name", "")
    if not isinstance(found, str):
        raise CorruptError(f"{MODEL_MEMBER} has a name that is not text", found=type(found).__name__)
    return found


def _int(value: dict[str, Any], name: str) -> int:
    return _number(value.get(name, 0))


def _number(value: Any) -> int:
    try:
        if isinstance(value, (str, int)):
            return int(value)
    except ValueError:
        pass
    raise CorruptError(f"{MODEL_MEMBER} has an invalid number", found=shown(value))


def _float(value: dict[str, Any], name: str) -> float:
    found = value.get(name, 0.0)
    if isinstance(found, (int, float)):
        return float(found)
    raise CorruptError(f"{MODEL_MEMBER} has an invalid number", found=shown(found))


def _at(values: Any, number: int) -> Any:
    if not 0 <= number < len(values):
        raise CorruptError(f"{MODEL_MEMBER} refers to value {number} of {len(values)}")
    return values[number]
