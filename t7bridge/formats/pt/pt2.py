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

from collections.abc import Iterator
from typing import Any

from ...data import pattern
from ...errors import CorruptError, UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES, ElementType
from ...graph.tensor import Tensor
from ...io.source import ByteSource
from ...limits import Limits
from ...report import Note
from ...text import few
from ..fields import Fields, parse_json, shown
from .archive import PtArchive
from .members import PT2_MEMBERS
from .modules import Entry, ScriptModule, detached, is_tensor
from .pickle.context import PickleContext
from .pickle.names import words
from .pickle.tensors import has_gradient, view
from .zip import Member, ZipArchive

_FORMAT_MEMBER, _ = PT2_MEMBERS
"""The member of archives of 2.7 and newer."""
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

# Source: `torch/_export/serde/schema.py` `ScalarType`, which has numbers 1 to 13 and 28 to 35; and `Layout`.
_FIRST = "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool bfloat16"
_LATER = "uint16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint32 uint64"
_ELEMENTS = {**dict(enumerate(_FIRST.split(), 1)), **dict(enumerate(_LATER.split(), 28))}
"""Element types by their numbers."""
_STRIDED = 7
"""The number of the layout of plain tensors."""

_TENSOR_MEMBERS = ("weight_", "tensor_")
"""Beginnings of the names of members with one tensor."""
_PAYLOADS = (*_TENSOR_MEMBERS, "custom_obj_", "opaque_obj_")
"""Beginnings of the names of members with one tensor or object."""


def read_pt2(archive: PtArchive) -> ScriptModule:
    """Read the weights and constants of an exported program.

    If an archive of 2.7 or newer holds several programs, the names of each begin with the program's.

    Returns:
        The weights under their names, in PyTorch's order, as the state dict; the constants as other entries, and under
        `constants.` and their names the tensors without names of their own. The notes name what is left out.

    Raises:
        FormatError: it is damaged.
        UnsupportedError: it holds unsupported tensors, or compiled code only.
    """
    is_of_today = archive.has(_FORMAT_MEMBER)  # of 2.7 or newer
    entries = list(_entries_of_programs(archive) if is_of_today else _old_parts(archive))
    # As after a pickle: now it is known which storages no tensor has claimed.
    for folder in (_WEIGHTS, _CONSTANTS):
        archive.context(folder).storages.complete_untyped_and_views()
    module = ScriptModule(entries, archive.origin.notes)
    _add_constants(module)
    _note_members(archive)  # last, when it is known which members were read
    return module


def _entries_of_programs(archive: PtArchive) -> Iterator[Entry]:
    """Yield the weights and constants of each program in an archive of 2.7 or newer.

    Raises:
        UnsupportedError: it has no program, only compiled code.
    """
    programs = [name for name in archive.names() if name.startswith(_MODELS) and name.endswith(".json")]
    if not programs:
        raise UnsupportedError(
            "is an archive of torch.export without a program, only compiled code",
            hint="Export the model again with torch.export.save, or save its state dict with torch.save.",
        )
    for program in programs:
        name = program[len(_MODELS) : -len(".json")]
        prefix = f"{name}." if len(programs) > 1 else ""
        for folder in (_WEIGHTS, _CONSTANTS):
            yield from _payloads(archive, name, folder, prefix)


def _add_constants(module: ScriptModule) -> None:
    """Add the constants, and buffers that PyTorch does not save, to those of the module, under unused names."""
    state_names = {name for name, _, in_state in module.entries if in_state}
    for name, value, in_state in module.entries:
        if in_state:
            continue
        # A weight could have the same name.
        unused_name = f"constants.{name}"
        while unused_name in state_names or unused_name in module.inlined:
            unused_name = f"constants.{unused_name}"
        module.inlined[unused_name] = detached(value)
    names = list(module.inlined)
    if names:
        count = f"{len(names)} constant{'s' * (len(names) > 1)}"
        module.note(f"the program has {count}, which its state dict does not have: {few(names, longest=60)}")


def _note_members(archive: PtArchive) -> None:
    """Note the members that are not part of the state dict: by kind, or payloads that nothing names."""
    prefixes_of: dict[str, list[str]] = {}
    """By the description of a kind of members: the beginnings of their names."""
    for prefix, description in _NOT_CARRIED:
        prefixes_of.setdefault(description, []).append(prefix)
    for description, prefixes in prefixes_of.items():
        names = [name for name in archive.names() if name.startswith(tuple(prefixes))]
        archive.note_left_out(f"{description} of the archive left out ({{}})", names)
    unread = [name for name in archive.unread() if _is_payload(name) and archive.zip.members[archive.root + name].size]
    archive.note_left_out(f"{len(unread)} members that no tensor refers to are left out: {{}}", unread, level="warning")


def _is_payload(name: str) -> bool:
    """Return whether a member holds one tensor or object, judging by its name."""
    _folder, _, file = name.rpartition("/")
    return name.startswith((_WEIGHTS, _CONSTANTS)) and file.startswith(_PAYLOADS)


def _payloads(archive: PtArchive, model: str, folder: str, prefix: str) -> Iterator[Entry]:
    """Yield the tensors of one program in one folder.

    Args:
        archive: the archive.
        model: name of the program.
        folder: `_WEIGHTS` or `_CONSTANTS`; only weights are in the state dict.
        prefix: put before each name.
    """
    in_state = folder == _WEIGHTS
    dictionary = f"{folder}{model}.pt"  # 2.7 has one member for all tensors, newer releases one for each
    if archive.has(dictionary):
        yield from _tensors_of_dictionary(archive, dictionary, prefix, in_state)
        return
    suffix = "_weights_config.json" if in_state else "_constants_config.json"
    member = f"{folder}{model}{suffix}"
    config = Fields.parse(archive.zip.read(archive.root + member), member).inner("config")
    for name, payload in config.items():
        _folder, _, file = str(payload.values.get("path_name")).rpartition("/")
        # Pickled are objects, which are left out, and tensors that are not plain memory.
        is_of_tensor = payload.values.get("tensor_meta") or file.startswith(_TENSOR_MEMBERS)
        if payload.values.get("use_pickle") and not is_of_tensor:
            _note_left_out_object(archive, prefix + name, file)
        else:
            yield Entry(prefix + name, _tensor_of_payload(archive, folder, payload), in_state)


def _tensor_of_payload(archive: PtArchive, folder: str, payload: Fields) -> Any:
    """Return one tensor: a view of a member with raw bytes, or the value of a member that `torch.save` wrote.

    Args:
        archive: the archive.
        folder: of its member.
        payload: its entry in the configuration, `PayloadMeta` of PyTorch's schema.

    Raises:
        CorruptError: the member is missing, holds another value, or the tensor does not lie in it.
        UnsupportedError: it is of an unknown type, or not strided.
    """
    key = payload.values.get("path_name")
    path = payload.path
    if not isinstance(key, str) or not archive.has(f"{folder}{key}"):
        raise CorruptError("a tensor's member is not in the archive", path=path, found=shown(key))
    if payload.values.get("use_pickle"):
        tensor = archive.value_of_nested_file(f"{folder}{key}")
        if not is_tensor(tensor):
            raise CorruptError("a tensor's member holds another value", path=path, found=shown(tensor))
        return tensor
    member = archive.zip.member(f"{archive.root}{folder}{key}")
    tensor = _view_of_member(archive.context(folder), member, key, payload.inner("tensor_meta"), path)
    tensor.is_parameter = bool(payload.values.get("is_param"))
    return tensor


def _view_of_member(context: PickleContext, member: Member, key: str, meta: Fields, path: str) -> Tensor:
    """Return a tensor on the bytes of a member.

    Args:
        context: has the storages of the member's folder; receives that of this member.
        member: the member.
        key: its name in the folder, which is the key of its storage.
        meta: the tensor's element type, layout, sizes, strides, offset and device: `TensorMeta` of PyTorch's schema.
        path: of the entry in the configuration, for errors.

    Raises:
        CorruptError: the tensor does not lie in the member.
        UnsupportedError: it is of an unknown type, or not strided.
    """
    element = _element(meta.values.get("dtype"), path)
    if meta.values.get("layout", _STRIDED) != _STRIDED:
        raise UnsupportedError("a tensor is not strided", path=path, found=f"layout {shown(meta.values['layout'])}")
    # Several tensors may share a member. Its storage has the element type of the first.
    root_storage = context.storages.roots.get(key)
    if root_storage is None:
        if member.size % element.itemsize:
            raise CorruptError(
                "a storage has no whole number of elements", path=path, found=f"{member.size} bytes of {element.name}"
            )
        root_storage = context.storages.get(key, element, member.size // element.itemsize, _device(meta))
    size = [_integer(item, path) for item in meta.get("sizes", list)]
    stride = [_integer(item, path) for item in meta.get("strides", list)]
    storage = context.storages.retype(root_storage, element)
    tensor = view(context, storage, _integer(meta.values.get("storage_offset"), path), size, stride)
    tensor.requires_grad = bool(meta.values.get("requires_grad")) and has_gradient(element)
    return tensor


def _device(meta: Fields) -> str:
    """Return the device of a tensor by PyTorch's name: `cpu`, `cuda:0`; `cpu` if the entry names none."""
    device = meta.values.get("device")
    if not isinstance(device, dict):
        return "cpu"
    kind = device.get("type")
    index = device.get("index")
    if not isinstance(kind, str) or not kind.isidentifier():
        return "cpu"
    return f"{kind}:{index}" if type(index) is int else kind


def _note_left_out_object(archive: PtArchive, name: str, description: str) -> None:
    """Note a constant that is not a tensor: an object of a class of C++ or of a custom one."""
    text = f"a constant is not a tensor and left out: {description[:60]}"
    note = Note("warning", path=f"constants.{name}", message=text, loss="type", code="left-out")
    archive.origin.notes.append(note)


def _old_parts(archive: PtArchive) -> Iterator[Entry]:
    """Yield the tensors of an archive of 2.1 to 2.6: the weights, then the constants.

    Raises:
        CorruptError: there is no member with weights.
    """
    for part, in_state in (("serialized_state_dict", True), ("serialized_constants", False)):
        # An empty member is as good as none.
        members = [member for member in (f"{part}.pt", f"{part}.json") if archive.read_member(member)]
        if members:
            yield from _tensors_of_dictionary(archive, members[0], prefix="", in_state=in_state)
        elif in_state:  # a program may have no constants
            raise CorruptError(f"the archive has no member {part}.pt")


def _tensors_of_dictionary(archive: PtArchive, member: str, prefix: str, in_state: bool) -> Iterator[Entry]:
    """Yield the tensors of a dictionary written by `torch.save`.

    Args:
        archive: the archive.
        member: the dictionary, below the root folder.
        prefix: put before each name.
        in_state: whether these are weights, which are in the state dict; otherwise constants, which may be anything.

    Raises:
        CorruptError: it is not a dictionary with names.
        UnsupportedError: a weight is not a tensor. A constant that is not one is noted, and left out.
    """
    for name, value in Fields(archive.value_of_nested_file(member), member).values.items():
        if not isinstance(name, str):
            raise CorruptError("a tensor's name is not text", path=member, found=shown(name))
        if is_tensor(value):
            yield Entry(prefix + name, value, in_state)
        elif in_state:
            raise UnsupportedError("a weight is not a tensor", path=f"{member}: {name}", found=shown(value))
        else:
            _note_left_out_object(archive, prefix + name, shown(value))


def _element(number: Any, path: str) -> ElementType:
    """Return the element type of a number of PyTorch's schema."""
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


_FILE_OPERATIONS = pattern(rb"\b(?:torch|ops\.aten)\.(save|from_file)\s*\(|\baten::(save|from_file)\b")
"""The operations of TorchScript that write or read files, in source and in bytecode."""
_COMPILED_SUFFIXES = (".so", ".dll", ".dylib", ".cubin", ".hsaco", ".ptx", ".spv", ".cpp", ".o")
# Allowed: operators of every library but those for files, without names of Python's machinery (`__`); comparisons and
# shifts of ATen, which have such names; PyTorch's functions of sizes and its checks; and Python's arithmetic, of whose
# module `operator` the excluded functions call whatever they are given.
_OPERATOR = pattern(
    r"torch\.ops\.\w+\.(?!from_file\b|save\b)(?!__)\w+(?:\.(?!__)\w+)?"
    r"|torch\.ops\.aten\.__i?(?:and|or|xor|lshift|rshift)__\.\w+"
    r"|torch\.(?:_?sym_\w+|_check\w*|_assert\w*|_C\._set_grad_enabled|_C\._functorch\.\w+)"
    r"|_operator\.(?!call|methodcaller|attrgetter|itemgetter)\w+|math\.\w+|#[\w.:]*"
)
_QUOTED = pattern(r"'[\w. -]*'|\"[\w. -]*\"")
"""A text in an expression, without characters of code."""
_NAME = pattern(r"[^\W\d]\w*")
"""A name in an expression."""
_SYMBOL = pattern(r"[a-z]{1,3}\d+\Z")
"""A size that torch.export has named: `s0`, `u12`."""
_ALLOWED_NAMES = words(
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
_ARITHMETIC = pattern(r"[\w\s+\-*/%(),.<>=!&|~\[\]^]*\Z")
"""The characters of arithmetic, comparisons, calls and indexing: no quotes, no colons, no braces."""


def effects(archive: ZipArchive, limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield what the programs of an archive do besides computing with tensors, each once.

    Yields:
        The kind (`compiled code`, `script operation`, `operator` or `expression`), and the name or text of it.

    Raises:
        FormatError: a member is damaged.
        LimitError: a graph is too large.
    """
    seen: set[tuple[str, str]] = set()
    for name in archive.members:
        for effect in _effects_of_member(archive, name, limits):
            if effect not in seen:
                seen.add(effect)
                yield effect


def _effects_of_member(archive: ZipArchive, name: str, limits: Limits) -> list[tuple[str, str]]:
    """Return what the program in one member does besides computing with tensors: pairs as `effects` yields them.

    What a member is, is judged by its name. Empty for members that only hold data.

    Args:
        archive: the archive.
        name: of the member, with its root folder.
        limits: resource limits.

    Raises:
        FormatError: the member is damaged.
        LimitError: it is a graph that is too large.
    """
    lower_name = name.lower()
    if lower_name.endswith(_COMPILED_SUFFIXES):
        return [("compiled code", name)]
    if lower_name.endswith((".py", "bytecode.pkl")):  # a program of TorchScript: its source, or that of mobile modules
        operators = set()
        for match in _FILE_OPERATIONS.finditer(archive.read(name)):
            in_source, in_bytecode = match.groups()
            operators.add(in_source or in_bytecode)
        return [("script operation", f"aten::{operator.decode()}") for operator in sorted(operators)]
    is_graph = "models/" in lower_name or lower_name.endswith("serialized_exported_program.json")
    if lower_name.endswith(".json") and is_graph:
        source, start = archive.span(name)
        return list(_effects_of_graph(source, start, archive.members[name].size, name, limits))
    return []


def _effects_of_graph(
    source: ByteSource, start: int, size: int, name: str, limits: Limits
) -> Iterator[tuple[str, str]]:
    """Yield the operators and expressions of a program that do more than compute with tensors and sizes.

    Args:
        source: the bytes.
        start: first byte of the program, as JSON.
        size: its bytes.
        name: of its member, for errors.
        limits: resource limits.
    """
    if size > limits.header_bytes:
        raise limits.exceeded("header_bytes", "the graph is too large", path=name, found=f"{size} bytes")
    stack: list[Any] = [parse_json(source.read_exact(start, size, name), name)]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack += value
            continue
        if not isinstance(value, dict):
            continue
        yield from _effects_of_object(value)
        stack += [field for field in value.values() if isinstance(field, (dict, list))]


def _effects_of_object(value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the operator and expressions of one object of a graph, if they do more; not those of objects inside it."""
    # A node of a graph has inputs or outputs; other objects have targets that are names of weights.
    is_node = "inputs" in value or "outputs" in value
    for key, field in value.items():
        if key == "target" and isinstance(field, str) and is_node:
            if not _OPERATOR.fullmatch(field):
                yield "operator", field
        elif key in ("expr_str", "as_expr", "guards_code"):  # texts that PyTorch evaluates: sizes, and conditions
            for expression in field if isinstance(field, list) else [field]:
                if isinstance(expression, str) and not _computes_sizes(expression):
                    yield "expression", expression


def _computes_sizes(expression: str) -> bool:
    """Return whether an expression only computes with sizes: no operators, names or texts that do anything else."""
    expression = _QUOTED.sub("0", expression)  # keys of inputs, `L['x']`
    if _ARITHMETIC.match(expression) is None:
        return False
    return all(name in _ALLOWED_NAMES or _SYMBOL.match(name) for name in _NAME.findall(expression))
