"""Weights, constants and programs of `.pt2` archives, written by `torch.export.save`. Nothing in them is executed.

Three layouts exist, identified by their members:

- 2.8 and newer: `data/weights/MODEL_weights_config.json` maps each name to a member with the raw bytes of a storage
  (several names may share one) and to a dtype, sizes, strides and an offset; `data/constants/` is the same.
  Tensors that are not plain memory are members written by `torch.save`.
- 2.7: `data/weights/MODEL.pt` and `data/constants/MODEL.pt`, each a dictionary written by `torch.save`.
- 2.1 to 2.6: `serialized_state_dict.pt` and `serialized_constants.pt` (named `.json` in 2.1) next to
  `serialized_exported_program.json`, without a root folder.

Programs, these and TorchScript's, can reach beyond tensors when they are loaded or run (`effects`):

- TorchScript is an own language, whose interpreter can read and write files (`aten::save`, `aten::from_file`).
- The graphs of torch.export name their operators by paths into Python, and `torch.export.load` evaluates expressions of
  sizes with sympy, and guards with Python.
- Compiled libraries run as they are.

Source: PyTorch 2.13 `torch/export/pt2_archive/_package.py`, `torch/_export/serde/schema.py` (`PayloadMeta`,
`TensorMeta`, `ScalarType`), `torch/export/__init__.py` (`load`), `torch/_export/serde/serialize.py`
(`deserialize_operator`, `_parse_sym_expr`), `torch/export/_unlift.py` (`_convert_guards_code_to_fn`),
`aten/src/ATen/native/native_functions.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...errors import CorruptError, UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES, ElementType
from ...io.source import ByteSource
from ...report import Note
from ...text import few
from ..fields import Fields, parse_json, shown
from .archive import PT2_MEMBERS, PtArchive
from .modules import ScriptModule, detached, is_tensor
from .pickle.names import words
from .pickle.tensors import has_gradient, view
from .zip import ZipArchive

_FORMAT_MEMBER = PT2_MEMBERS[0]
_WEIGHTS, _CONSTANTS, _MODELS = "data/weights/", "data/constants/", "models/"
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
_FIRST = "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool bfloat16"
_LATER = "uint16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint32 uint64"
_ELEMENTS = {**dict(enumerate(_FIRST.split(), 1)), **dict(enumerate(_LATER.split(), 28))}
_STRIDED = 7

_PAYLOADS = ("weight_", "tensor_", "custom_obj_", "opaque_obj_")
"""Beginnings of the names of members with one tensor or object."""


def read_pt2(archive: PtArchive) -> ScriptModule:
    """Read the weights and constants of an exported program.

    If an archive holds several programs, the names of each begin with the program's.

    Returns:
        The weights under their names, in PyTorch's order, as the state dict; the constants as other entries, and under
        `constants.` and their names the tensors without names of their own. The notes name what is left out.

    Raises:
        FormatError: it is damaged.
        UnsupportedError: it holds unsupported tensors, or compiled code only.
    """
    entries: list[tuple[str, Any, bool]] = []
    if archive.has(_FORMAT_MEMBER):
        names = [name for name in archive.names() if name.startswith(_MODELS) and name.endswith(".json")]
        if not names:
            raise UnsupportedError(
                "is an archive of torch.export without a program, only compiled code",
                hint="Export the model again with torch.export.save, or save its state dict with torch.save.",
            )
        for name in (name[len(_MODELS) : -len(".json")] for name in names):
            prefix = f"{name}." if len(names) > 1 else ""
            for folder in (_WEIGHTS, _CONSTANTS):
                entries += _payloads(archive, name, folder, prefix)
    else:
        entries += _old_parts(archive)
    for folder in (_WEIGHTS, _CONSTANTS):
        archive.meaning(folder).storages.finish()
    found = ScriptModule(entries, archive.origin.notes)
    _add_constants(found)
    _note_members(archive)
    return found


def _add_constants(found: ScriptModule) -> None:
    """Add the constants, and buffers that PyTorch does not save, under unused names."""
    names = {name for name, _, in_state in found.entries if in_state}
    for own, value, in_state in found.entries:
        if not in_state:
            name = f"constants.{own}"
            while name in names or name in found.inlined:
                name = f"constants.{name}"
            found.inlined[name] = detached(value)
    if carried := list(found.inlined):
        count = f"{len(carried)} constant{'s' * (len(carried) > 1)}"
        found.note(f"the program has {count}, which its state dict does not have: {few(carried, longest=60)}")


def _note_members(archive: PtArchive) -> None:
    """Note the members that are not part of the state dict: by kind, or payloads that nothing names."""
    for what in dict.fromkeys(what for _, what in _NOT_CARRIED):
        starts = tuple(start for start, of in _NOT_CARRIED if of == what)
        found = [name for name in archive.names() if name.startswith(starts)]
        archive.leave_out(f"{what} of the archive left out ({{}})", found)
    unread = [
        name
        for name in archive.unread()
        if name.startswith((_WEIGHTS, _CONSTANTS))
        and name.startswith(_PAYLOADS, name.rfind("/") + 1)
        and archive.zip.members[archive.root + name].size
    ]
    archive.leave_out(f"{len(unread)} members that no tensor refers to are left out: {{}}", unread, "warning")


def _payloads(archive: PtArchive, model: str, folder: str, prefix: str) -> Iterator[tuple[str, Any, bool]]:
    """Return the tensors of one program in one folder."""
    in_state = folder == _WEIGHTS
    whole = f"{folder}{model}.pt"  # 2.7
    if archive.has(whole):
        yield from _named(archive, whole, prefix, in_state)
        return
    member = f"{folder}{model}{'_weights' if in_state else '_constants'}_config.json"
    config = Fields.parse(archive.zip.read(archive.root + member), member).inner("config")
    for name, payload in config.items():
        file = str(payload.values.get("path_name")).rpartition("/")[2]
        is_object = payload.values.get("use_pickle") and not payload.values.get("tensor_meta")
        if is_object and not file.startswith(("tensor_", "weight_")):
            _note_object(archive, prefix + name, file)
        else:
            yield prefix + name, _payload(archive, folder, payload), in_state


def _payload(archive: PtArchive, folder: str, payload: Fields) -> Any:
    """Return one tensor."""
    key, path = payload.values.get("path_name"), payload.path
    member = archive.zip.members.get(f"{archive.root}{folder}{key}") if isinstance(key, str) else None
    if member is None:
        raise CorruptError("a tensor's member is not in the archive", path=path, found=shown(key))
    if payload.values.get("use_pickle"):
        tensor = archive.nested(f"{folder}{key}")
        if not is_tensor(tensor):
            raise CorruptError("a tensor's member holds another value", path=path, found=shown(tensor))
        return tensor
    meta = payload.inner("tensor_meta")
    element = _element(meta.values.get("dtype"), path)
    if meta.values.get("layout", _STRIDED) != _STRIDED:
        raise UnsupportedError("a tensor is not strided", path=path, found=f"layout {shown(meta.values['layout'])}")
    meaning = archive.meaning(folder)
    known = meaning.storages.roots.get(key)
    if known is None:
        if member.size % element.itemsize:
            raise CorruptError(
                "a storage has no whole number of elements", path=path, found=f"{member.size} bytes of {element.name}"
            )
        known = meaning.storages.get(key, element, member.size // element.itemsize, _device(meta))
    size, stride = ([_integer(item, path) for item in meta.get(word, list)] for word in ("sizes", "strides"))
    storage = meaning.storages.retype(known, element)
    tensor = view(meaning, storage, _integer(meta.values.get("storage_offset"), path), size, stride)
    tensor.is_parameter = bool(payload.values.get("is_param"))
    tensor.requires_grad = bool(meta.values.get("requires_grad")) and has_gradient(element)
    return tensor


def _device(meta: Fields) -> str:
    """Return the device of a tensor by PyTorch's name: `cpu`, `cuda:0`."""
    device = meta.values.get("device")
    kind, index = (device.get("type"), device.get("index")) if isinstance(device, dict) else (None, None)
    if not isinstance(kind, str) or not kind.isidentifier():
        return "cpu"
    return f"{kind}:{index}" if type(index) is int else kind


def _note_object(archive: PtArchive, name: str, found: str) -> None:
    """Note a constant that is not a tensor: an object of a class of C++ or of a custom one."""
    text = f"a constant is not a tensor and left out: {found[:60]}"
    archive.origin.notes.append(Note("warning", f"constants.{name}", text, "type", code="left-out"))


def _old_parts(archive: PtArchive) -> Iterator[tuple[str, Any, bool]]:
    """Return the tensors of an archive of 2.1 to 2.6."""
    for part, in_state in (("serialized_state_dict", True), ("serialized_constants", False)):
        found = [member for member in (f"{part}.pt", f"{part}.json") if archive.small(member)]
        if found:
            yield from _named(archive, found[0], "", in_state)
        elif in_state:
            raise CorruptError(f"the archive has no member {part}.pt")


def _named(archive: PtArchive, member: str, prefix: str, in_state: bool) -> Iterator[tuple[str, Any, bool]]:
    """Return the tensors of a dictionary written by `torch.save`."""
    for name, value in Fields(archive.nested(member), member).values.items():
        if not isinstance(name, str):
            raise CorruptError("a tensor's name is not text", path=member, found=shown(name))
        if is_tensor(value):
            yield prefix + name, value, in_state
        elif in_state:
            raise UnsupportedError("a weight is not a tensor", path=f"{member}: {name}", found=shown(value))
        else:
            _note_object(archive, prefix + name, shown(value))


def _element(number: Any, path: str) -> ElementType:
    name = _ELEMENTS.get(number) if type(number) is int else None
    if name is None:
        raise UnsupportedError("a tensor has an unknown type", path=path, found=f"dtype {shown(number)}")
    return ELEMENT_TYPES[name]


def _integer(value: Any, path: str) -> int:
    """Return a symbolic integer that is known: `{"as_int": 3}`."""
    number = value.get("as_int") if isinstance(value, dict) else value
    if type(number) is not int:
        raise UnsupportedError("a tensor's size is not a number", path=path, found=shown(value))
    return number


_SCRIPT_FILES = re.compile(rb"\b(?:torch|ops\.aten)\.(save|from_file)\s*\(|\baten::(save|from_file)\b")
_COMPILED = (".so", ".dll", ".dylib", ".cubin", ".hsaco", ".ptx", ".spv", ".cpp", ".o")
_OPERATOR = re.compile(
    r"torch\.ops\.\w+\.(?!from_file\b|save\b)(?!__)\w+(?:\.(?!__)\w+)?"
    r"|torch\.ops\.aten\.__i?(?:and|or|xor|lshift|rshift)__\.\w+"
    r"|torch\.(?:_?sym_\w+|_check\w*|_assert\w*|_C\._set_grad_enabled|_C\._functorch\.\w+)"
    r"|_operator\.(?!call|methodcaller|attrgetter|itemgetter)\w+|math\.\w+|#[\w.:]*"
)
_QUOTED = re.compile(r"'[\w. -]*'|\"[\w. -]*\"")
_NAME = re.compile(r"[^\W\d]\w*")
_SYMBOL = re.compile(r"[a-z]{1,3}\d+\Z")
_ALLOWED = words(
    """
    Add Mul Symbol Dummy True False positive negative integer nonnegative nonpositive nonzero zero real finite even
    odd commutative extended_real extended_positive extended_nonnegative evaluate FloorDiv ModularIndexing Where
    PythonMod Mod CleanDiv CeilToInt FloorToInt CeilDiv IntTrueDiv FloatTrueDiv LShift RShift
    IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat FloatPow PowByNatural
    Identity Max Min Abs Eq Ne Gt Ge Lt Le And Or Not Pow Rational Integer Float ceiling floor sqrt log log2 exp sin
    cos tan oo int_oo OpaqueUnaryFn_sqrt OpaqueUnaryFn_exp OpaqueUnaryFn_log OpaqueUnaryFn_log2 OpaqueUnaryFn_sin
    OpaqueUnaryFn_cos OpaqueUnaryFn_tanh Piecewise True False zoo nan E I pi L args kwargs size stride
    storage_offset item dim math isnan inf and or not is None dtype device requires_grad max min abs sym_not sym_max
    sym_min torch e
    """
)
"""Functions of sizes, and what guards ask of inputs."""
_PLAIN = re.compile(r"[\w\s+\-*/%(),.<>=!&|~\[\]^]*\Z")
_GRAPH_BYTES = 1 << 28


def effects(archive: ZipArchive) -> Iterator[tuple[str, str]]:
    """Yield what the programs of an archive reach: a description of the kind, and its name.

    Raises:
        FormatError: a member is damaged.
    """
    seen: set[tuple[str, str]] = set()
    for name, member in archive.members.items():
        lower = name.lower()
        found: list[tuple[str, str]] = []
        if lower.endswith(_COMPILED):
            found = [("compiled code", name)]
        elif lower.endswith((".py", "bytecode.pkl")):
            operators = {match[1] or match[2] for match in _SCRIPT_FILES.finditer(archive.read(name))}
            found = [("script operation", f"aten::{each.decode()}") for each in sorted(operators)]
        elif lower.endswith(".json") and ("models/" in lower or lower.endswith("serialized_exported_program.json")):
            source, start = archive.span(name)
            found = list(_of_graph(source, start, member.size, name))
        for each in found:
            if each not in seen:
                seen.add(each)
                yield each


def _of_graph(source: ByteSource, start: int, size: int, name: str) -> Iterator[tuple[str, str]]:
    if size > _GRAPH_BYTES:
        raise CorruptError("the graph is too large", path=name, found=f"{size} bytes")
    stack: list[Any] = [parse_json(source.read_exact(start, size, name), name)]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            for key, part in value.items():
                if key == "target" and isinstance(part, str) and ("inputs" in value or "outputs" in value):
                    if not _OPERATOR.fullmatch(part):
                        yield "operator", part
                elif key in ("expr_str", "as_expr", "guards_code"):
                    texts = part if isinstance(part, list) else [part]
                    yield from (("expression", each) for each in texts if isinstance(each, str) and not _is_plain(each))
                if isinstance(part, (dict, list)):
                    stack.append(part)


def _is_plain(text: str) -> bool:
    """Return whether an expression only computes with sizes."""
    text = _QUOTED.sub("0", text)
    return _PLAIN.match(text) is not None and all(
        name in _ALLOWED or _SYMBOL.match(name) for name in _NAME.findall(text)
    )
