"""State dicts and attributes of modules: pickled ones, of TorchScript, and of archives of PyTorch's C++ API.

A pickled module is an object with its attributes. `data.pkl` of TorchScript holds the modules as objects of classes
below `__torch__`; only the source of the classes, in `code/`, says which of their attributes are parameters and which
are buffers. That source is parsed as text and never run. PyTorch 1.0 to 1.2 wrote the modules to `model.json`, and one
member below `tensors/` for each storage.

Source: PyTorch 2.13 `torch/nn/modules/module.py` `state_dict`, `_save_to_state_dict`;
`torch/csrc/jit/serialization/python_print.cpp` (form of the source), `export_module.cpp`,
`torch/csrc/api/src/serialize/output-archive.cpp`; PyTorch 1.7 `torch/csrc/jit/serialization/import_legacy.cpp`;
`caffe2/proto/torch.proto`; `caffe2/proto/caffe2.proto` `TensorProto.DataType`.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import evolve, field

from ...data import define
from ...errors import CorruptError, UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES
from ...graph.python import MODULE_PARTS, UNSET, PythonObject
from ...graph.storage import Storage
from ...graph.tensor import QuantizedTensor, SparseTensor, Tensor
from ...limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits
from ...report import Note
from ...text import few
from ..fields import Fields, shown
from .archive import CONSTANTS_MEMBER, DATA_MEMBER, MODEL_MEMBER, PtArchive
from .pickle.meaning import PtMeaning
from .pickle.tensors import has_gradient, view
from .storages import span_of_bytes

BYTECODE_MEMBER = "bytecode.pkl"
ATTRIBUTES_MEMBER = "attributes.pkl"

_CLASS = re.compile(r"^class (\w+)(?:\(([\w.]*)\))?:[^\n]*\n((?:[ \t][^\n]*\n|\n)*)", re.MULTILINE)
_LIST = re.compile(r"^  (__parameters__|__buffers__) = \[([^\n]*)\]", re.MULTILINE)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)",? *')
_TYPE = re.compile(r'^  (?:(\w+)|__annotations__\["((?:[^"\\\n]|\\.)*)"\]) *[:=] *([^\n=]+)', re.MULTILINE)
_GENERIC_MODULE = re.compile(r"__torch__\.(___torch_mangle_\d+\.)?Module\Z")


@define
class ScriptClass:
    """The attributes declared by the source of a class.

    Attributes:
        is_module: whether it is a module; else it is a plain class, such as a named tuple.
        parameters: names of its parameters.
        buffers: names of its buffers; None in files of releases that did not write them.
        types: the types of its attributes, as text.
        has_code: whether it has methods.
    """

    is_module: bool
    parameters: list[str] = field(factory=list)
    buffers: list[str] | None = None
    types: dict[str, str] = field(factory=dict)
    has_code: bool = False


def parse_classes(source: str) -> dict[str, ScriptClass]:
    """Return the classes in a source file, by name."""
    found = {}
    for name, base, body in _CLASS.findall(source):
        attributes, _, _ = body.partition("\n  def ")
        cls = ScriptClass(base == "Module" or "__parameters__" in attributes)
        cls.has_code = attributes != body or body.startswith("  def ")
        for kind, names in _LIST.findall(attributes):
            if kind == "__parameters__":
                cls.parameters = _words(names)
            else:
                cls.buffers = _words(names)
        for plain, quoted_name, kind in _TYPE.findall(attributes):
            cls.types[plain or _unquoted(quoted_name)] = kind.strip()
        found[name] = cls
    return found


def _words(names: str) -> list[str]:
    """Return the strings in a list."""
    words = []
    place = 0
    while match := _QUOTED.match(names, place):
        words.append(_unquoted(match[1]))
        place = match.end()
    return words


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


class _Code:
    """The classes of an archive, read on demand."""

    def __init__(self, archive: PtArchive) -> None:
        self._archive = archive
        self._files: dict[str, dict[str, ScriptClass]] = {}

    def classes(self, module: str) -> dict[str, ScriptClass]:
        """Return the classes of a Python module, by name."""
        if module not in self._files:
            data = self._archive.small(f"code/{module.replace('.', '/')}.py")
            self._files[module] = parse_classes(data.decode("utf-8", "replace")) if data else {}
        return self._files[module]

    def find(self, path: str) -> ScriptClass | None:
        module, _, name = path.rpartition(".")
        return self.classes(module).get(name)


def is_cpp(archive: PtArchive) -> bool:
    """Return whether an archive was written by the C++ API: all its classes are called `Module` and have no methods."""
    code = _Code(archive)
    files = [name for name in archive.names() if name.startswith("code/") and name.endswith(".py")]
    for module in (name[len("code/") : -len(".py")].replace("/", ".") for name in files):
        for cls, found in code.classes(module).items():
            if not _GENERIC_MODULE.match(f"{module}.{cls}") or found.has_code:
                return False
    return bool(files)


@define(eq=False)
class VisitedModules:
    """The modules of a file that were turned into state dicts: repeated ones are charged to `Limits.work`.

    Attributes:
        limits: resource limits.
    """

    limits: Limits = DEFAULT_LIMITS
    _seen: set[int] = field(factory=set, init=False)
    _budget: Budget = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._budget = Budget(self.limits, "writing modules that contain one another")

    def walk(self, root: Any, inside: Callable[[Any], tuple[Any, list[tuple[str, Any]], int]]) -> Iterator[Any]:
        """Yield for each module the prefix of its names, and its content; before its submodules, in order.

        Args:
            root: the outermost module.
            inside: returns the content of a module, its submodules by name, and the number of its entries.

        Raises:
            LimitError: modules are nested too deep, or repeated too often.
        """
        limits = self.limits
        stack: list[tuple[str, Any, int]] = [("", root, 0)]
        while stack:
            prefix, module, depth = stack.pop()
            if depth > limits.module_depth:
                raise limits.exceeded("module_depth", "the modules are nested too deep")
            content, inner, count = inside(module)
            if id(module) in self._seen:
                self._budget.spend(STEPS_PER_NODE * (1 + count), prefix[:-1])
            self._seen.add(id(module))
            yield prefix, content
            stack.extend((f"{prefix}{name}.", each, depth + 1) for name, each in reversed(inner))


@define
class ScriptModule:
    """Content of an archive of modules.

    Attributes:
        entries: everything but the modules themselves: of each module its parameters, its buffers and its other
            attributes, then the same of its submodules. Each is the dotted name, the value, and whether it is a
            parameter or buffer.
        notes: content that is not in the state dict.
        constants: the constants that its code refers to.
        inlined: the tensors among the constants, `constants.0` and on: frozen and mobile modules have their weights
            there, and no names for them.
        with_attributes: whether the state dict has all entries, as that of the C++ API.
        held: the tensors in attributes that are neither parameters nor buffers, under `attributes.` and the path.
    """

    entries: list[tuple[str, Any, bool]]
    notes: list[Note] = field(factory=list)
    constants: Any = None
    inlined: OrderedDict[str, Any] = field(factory=OrderedDict)
    held: OrderedDict[str, Any] = field(factory=OrderedDict)
    with_attributes: bool = False

    @classmethod
    def of(cls, archive: PtArchive, root: Any, inside: Callable[[Any], Any]) -> ScriptModule:
        """Return the content of the modules in an archive; `inside` as in `VisitedModules.walk`."""
        walked = VisitedModules(archive.origin.limits).walk(root, inside)
        entries = [(prefix + name, *rest) for prefix, content in walked for name, *rest in content]
        return cls(entries, archive.origin.notes)

    @property
    def state_dict(self) -> OrderedDict[str, Any]:
        """Return parameters and buffers, as `state_dict()` does: detached; then attributes and constants."""
        state = OrderedDict(
            (name, detached(value)) for name, value, in_state in self.entries if in_state or self.with_attributes
        )
        _add(state, (*self.held.items(), *self.inlined.items()))
        return state

    @property
    def attributes(self) -> dict[str, Any]:
        """Return all other entries."""
        return {name: value for name, value, in_state in self.entries if not in_state}

    def inline(self, value: Any, name: str) -> None:
        """Add the tensors of a constant under their paths, except those seen elsewhere before."""
        known = {_place(tensor) for tensor in self.inlined.values()}
        new = [(path, detached(each)) for path, each in iter_tensors(value, name) if _place(each) not in known]
        _add(self.inlined, new)

    def note(self, text: str, count: int = 1) -> None:
        """Note tensors that are carried, although state dicts have no names for them."""
        self.notes.append(Note("info", "", text, code="carried", count=count))

    def note_inlined(self) -> None:
        """Note the inlined constants."""
        if self.inlined:
            count = f"{len(self.inlined)} tensor{'s' * (len(self.inlined) > 1)}"
            self.note(f"the module has {count} as constants of its code, without names: constants.0 …")

    def carry_attributes(self) -> None:
        """Carry the tensors in attributes, which are not in PyTorch's state dict of the module, and note them."""
        known = {_place(value) for _, value, in_state in self.entries if in_state}
        known |= {_place(tensor) for tensor in self.inlined.values()}
        new: dict[Any, tuple[str, Any]] = {}
        for name, value, in_state in self.entries:
            for path, tensor in () if in_state else iter_tensors(value, name):
                if _place(tensor) not in known:
                    new.setdefault(_place(tensor), (f"attributes.{path}", detached(tensor)))
        _add(self.held, new.values())
        if new:
            what = "tensor is an attribute" if len(new) == 1 else "tensors are attributes"
            self.note(
                f"{len(new)} {what} and no parameter or buffer; carried as {few(self.held, longest=70)}, "
                "which load_state_dict(strict=False) skips",
                len(new),
            )


def detached(value: Any) -> Any:
    """Return a tensor as `detach()` does: the same memory, without `requires_grad`; other values are unchanged."""
    if isinstance(value, (Tensor, SparseTensor)):
        return evolve(value, requires_grad=False, is_parameter=False)
    if isinstance(value, QuantizedTensor):
        return evolve(value, tensor=detached(value.tensor))
    return value


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of any kind."""
    return isinstance(value, (Tensor, SparseTensor, QuantizedTensor))


def _add(target: OrderedDict[str, Any], tensors: Iterable[tuple[str, Any]]) -> None:
    """Add tensors; a name that is taken is numbered: `name~2`, `name~3`."""
    last: dict[str, int] = {}
    for name, tensor in tensors:
        free, number = name, last.get(name, 1)
        while free in target:
            number += 1
            free = f"{name}~{number}"
        last[name] = number
        target[free] = tensor


def _place(value: Any) -> Any:
    """Return the identity of a tensor in an archive: its view of a storage."""
    if isinstance(value, Tensor) and value.storage is not None:
        return (id(value.storage), value.offset, value.size, value.stride)
    return id(value)


def iter_tensors(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors inside a value of builtins and objects, each once, with its dotted path."""
    stack: list[tuple[str, Any]] = [(name, value)]
    seen: set[int] = set()
    while stack:
        path, item = stack.pop()
        if isinstance(item, (list, tuple, dict, PythonObject, Tensor, SparseTensor, QuantizedTensor)):
            if id(item) in seen:
                continue
            seen.add(id(item))
        if is_tensor(item):
            yield path, item
        elif isinstance(item, dict):
            stack += [(f"{path[-1000:]}.{key!s:.100}", inner) for key, inner in reversed(list(item.items()))]
        elif isinstance(item, (list, tuple)):
            stack += [(f"{path[-1000:]}.{number}", inner) for number, inner in reversed(list(enumerate(item)))]
        elif isinstance(item, PythonObject):
            parts = (item.args, item.kwargs, item.state, item.items, item.pairs)
            stack += [(path, inner) for inner in reversed(parts) if inner is not UNSET]


# `data.pkl`


def read_modules(archive: PtArchive, cpp: bool) -> ScriptModule:
    """Read the modules of an archive.

    Args:
        archive: the archive.
        cpp: whether the C++ API wrote it.

    Raises:
        FormatError: it is damaged.
        LimitError: its modules contain one another endlessly.
    """
    root = archive.unpickle(DATA_MEMBER)
    constants = archive.unpickle(CONSTANTS_MEMBER, "constants/") if archive.has(CONSTANTS_MEMBER) else None
    bytecode = archive.unpickle(BYTECODE_MEMBER, "constants/") if archive.has(BYTECODE_MEMBER) else None
    if not isinstance(root, PythonObject) or not isinstance(root.state, dict):
        raise CorruptError("the archive's value is not a module", found=type(root).__name__)
    code = _Code(archive)
    found = ScriptModule.of(archive, root, lambda module: _content(module, code))
    found.constants = constants
    found.inline(constants, "constants")
    found.inline(bytecode, "bytecode")
    found.note_inlined()
    found.with_attributes = cpp
    if not cpp:
        found.carry_attributes()
    return found


def _content(module: PythonObject, code: _Code) -> Any:
    """Return parameters, buffers and other attributes of a module, its submodules, and the number of all."""
    cls = code.find(module.path)
    parameters = frozenset(cls.parameters) if cls else frozenset()
    kinds: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    inner: list[tuple[str, Any]] = []
    for name, value in module.state.items():
        if type(name) is not str:
            raise CorruptError("a module has an attribute whose name is not text", found=shown(name))
        if _is_module(value, code):
            inner.append((name, value))
        else:
            in_state = is_tensor(value) and (name in parameters or _is_buffer(name, cls))
            kinds[0 if in_state and name in parameters else 1 if in_state else 2].append((name, value, in_state))
    return [entry for kind in kinds for entry in kind], inner, len(module.state)


def _is_module(value: Any, code: _Code) -> bool:
    if (
        not isinstance(value, PythonObject)
        or not value.path.startswith("__torch__.")
        or not isinstance(value.state, dict)
    ):
        return False
    cls = code.find(value.path)
    return cls is None or cls.is_module


def _is_buffer(name: str, cls: ScriptClass | None) -> bool:
    """Return whether a tensor that is no parameter is a buffer: until 1.3, every tensor attribute."""
    if cls is None:
        return True
    if cls.buffers is None:
        return cls.types.get(name, "Tensor") in ("Tensor", "Optional[Tensor]")
    return name in cls.buffers


# `model.json`, JSON of protocol buffers: 64-bit numbers are text, and zero or empty values may be missing

_NAMES = (
    "1 FLOAT float32  2 INT32 int32  3 BYTE uint8  5 BOOL bool  6 UINT8 uint8  7 INT8 int8  8 UINT16 uint16  "
    "9 INT16 int16  10 INT64 int64  12 FLOAT16 float16  13 DOUBLE float64"
)
_DATA_TYPES: dict[Any, str] = {}
"""Element types by number and by name."""
for _row in _NAMES.split("  "):
    _number, _name, _element = _row.split(" ")
    _DATA_TYPES |= {int(_number): _element, _name: _element}
_QUANTIZED = {"uint8": "quint8", "int8": "qint8", "int32": "qint32"}


def read_json_archive(archive: PtArchive) -> ScriptModule:
    """Read the modules of an archive of PyTorch 1.0 to 1.2.

    Raises:
        FormatError: it is damaged.
    """
    model = Fields.parse(archive.small(MODEL_MEMBER), MODEL_MEMBER)
    meaning = archive.meaning("")
    for definition in model.each("tensors"):
        meaning.tensors.append(_json_tensor(archive, meaning, definition))
    meaning.storages.finish()
    values: Any = archive.unpickle(ATTRIBUTES_MEMBER, "") if archive.has(ATTRIBUTES_MEMBER) else ()
    if not isinstance(values, (tuple, list)):
        raise CorruptError("the archive's attributes are not a list", found=type(values).__name__)
    root = model.inner("mainModule", {})
    found = ScriptModule.of(archive, root, lambda module: _json_content(module, meaning.tensors, values))
    found.constants = list(meaning.tensors)
    used = {id(value) for _, value, _ in found.entries}
    found.inlined.update(
        (f"constants.{number}", tensor) for number, tensor in enumerate(meaning.tensors) if id(tensor) not in used
    )
    found.note_inlined()
    found.carry_attributes()
    return found


def _json_content(module: Fields, tensors: list[Any], values: Any) -> Any:
    """Return parameters, buffers and other attributes of a module. Attributes of type Tensor were buffers in 1.2."""
    parameters: list[tuple[str, Any, bool]] = []
    buffers: list[tuple[str, Any, bool]] = []
    others: list[tuple[str, Any, bool]] = []
    for each in module.each("parameters"):
        entry = (each.get("name", str, ""), _at(tensors, _integer(each, "tensorId")), True)
        (buffers if each.values.get("isBuffer") else parameters).append(entry)
    known = {name for name, *_ in (*parameters, *buffers)}
    for each in module.each("attributes"):
        name = each.get("name", str, "")
        if name not in known:
            number = _integer(each, "id")
            value = _at(values, number) if number >= 0 else None
            is_buffer = each.values.get("type") == "Tensor" and isinstance(value, (Tensor, QuantizedTensor))
            (buffers if is_buffer else others).append((name, value, is_buffer))
    inner = [(each.get("name", str, ""), each) for each in module.each("submodules")]
    return [*parameters, *buffers, *others], inner, 0


def _json_tensor(archive: PtArchive, meaning: PtMeaning, entry: Fields) -> Any:
    kind = entry.values.get("dataType")
    name = _DATA_TYPES.get(kind) if isinstance(kind, (str, int)) else None
    if name is None:
        raise UnsupportedError(f"a tensor is of type {shown(kind)}, which PyTorch 1.2 did not have")
    quantized = bool(entry.values.get("isQuantized"))
    element = ELEMENT_TYPES[_QUANTIZED.get(name, name) if quantized else name]
    key = entry.inner("data", {}).get("key", str)
    count = archive.zip.member(archive.root + key).size // element.itemsize
    storage = meaning.storages.get(key, element, count, str(entry.values.get("device", "cpu")))
    size, stride = ([_whole(item, entry) for item in entry.get(word, list, [])] for word in ("dims", "strides"))
    tensor = view(meaning, storage, _integer(entry, "offset"), size, stride)
    tensor.requires_grad = bool(entry.values.get("requiresGrad")) and has_gradient(tensor.element)
    if not quantized:
        return tensor
    scale = float(entry.get("scale", (int, float), 0.0))
    return QuantizedTensor(tensor, "per_tensor_affine", scale, _integer(entry, "zeroPoint"))


def _integer(fields: Fields, name: str) -> int:
    return _whole(fields.values.get(name, 0), fields)


def _whole(value: Any, fields: Fields) -> int:
    try:
        if isinstance(value, (str, int)):
            return int(value)
    except ValueError:
        pass
    raise CorruptError("has an invalid number", path=fields.path, found=shown(value))


def _at(values: Any, number: int) -> Any:
    if not 0 <= number < len(values):
        raise CorruptError(f"{MODEL_MEMBER} refers to value {number} of {len(values)}")
    return values[number]


_QUANTIZED_CLASS = re.compile(r"torch\.(?:ao\.)?nn\.(?:intrinsic\.)?quantized\.")
_SCRIPT_OBJECT = "torch.ScriptObject"
_CONV_STATE = (
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "transposed", "output_padding"),
    *("groups", "padding_mode", "weight", "bias", "scale", "zero_point", "training"),
)
"""The items of the state of a quantized convolution."""


def is_module(value: Any) -> bool:
    """Return whether a value is a pickled `nn.Module`: an object of any class with parameters, buffers and modules."""
    return isinstance(value, PythonObject) and (value.is_module or _is_quantized_conv(value))


def _is_quantized_conv(value: PythonObject) -> bool:
    state = value.state
    return isinstance(state, tuple) and len(state) == len(_CONV_STATE) and bool(_QUANTIZED_CLASS.match(value.path))


def attributes_of(module: PythonObject) -> dict[str, Any]:
    """Return the attributes of a module, also of a quantized convolution, whose state is a tuple."""
    if not _is_quantized_conv(module):
        return module.attributes
    return {**{part: {} for part in MODULE_PARTS}, **dict(zip(_CONV_STATE, module.state))}


def _quantized_entries(module: PythonObject, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return what a quantized layer adds to its state dict: unpacked weights, scale and zero point.

    Source: PyTorch 2.13 `torch/ao/nn/quantized/modules/` and `dynamic/modules/rnn.py`, `_save_to_state_dict`;
    `ATen/native/quantized/cpu/fbgemm_utils.cpp`, the pickled forms of packed parameters.
    """
    made: dict[str, Any] = {}
    if not _QUANTIZED_CLASS.match(module.path):
        return made
    if _is_quantized_conv(module):
        made = {"weight": attributes["weight"], "bias": attributes["bias"]}
    for name, value in attributes.items():
        if name in ("scale", "zero_point") and type(value) in (int, float):
            made[name] = _scalar(value)
        elif isinstance(value, PythonObject) and value.path == _SCRIPT_OBJECT:
            if "dtype" in attributes:
                made["dtype"] = attributes["dtype"]
            made[name] = _unpacked(value)
    return made


def _unpacked(value: PythonObject) -> Any:
    """Return the weights in packed parameters as PyTorch's state dict has them: weight and bias, or an embedding's."""
    state, name = value.state if isinstance(value.state, tuple) and len(value.state) == 2 else (None, "")
    if isinstance(name, str) and isinstance(state, tuple):
        if name.endswith("LinearPackedParamsBase"):
            return state
        if name.endswith("EmbeddingPackedParamsBase") and len(state) > 1 and isinstance(state[1], list) and state[1]:
            return state[1][0]
    return value


def _scalar(value: float) -> Tensor:
    """Return a number as `torch.tensor` does."""
    element = ELEMENT_TYPES["float32" if isinstance(value, float) else "int64"]
    try:
        data = struct.pack("<f" if isinstance(value, float) else "<q", value)
    except (struct.error, OverflowError) as error:
        raise CorruptError("a quantized module has a scale or zero point out of range", found=shown(value)) from error
    return Tensor(element, Storage(element, 1, span_of_bytes(data, element.itemsize)), is_scalar=True)


def module_state_dict(
    module: Any,
    *,
    keep_parameters: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    visited: VisitedModules | None = None,
) -> OrderedDict[str, Any]:
    """Return the state dict of a pickled `nn.Module`, in PyTorch's order and under PyTorch's names.

    Args:
        module: the inert object in the file.
        keep_parameters: whether the tensors stay parameters; `state_dict()` detaches them.
        limits: bound how often a shared module is repeated.
        visited: the modules of the same file seen before, for one limit over all its state dicts.

    Raises:
        UnsupportedError: it is not a module.
        LimitError: its modules contain one another endlessly.
    """
    if not is_module(module):
        raise UnsupportedError("the value is not a module", found=shown(module))
    found: OrderedDict[str, Any] = OrderedDict()
    for prefix, content in (visited or VisitedModules(limits)).walk(module, _pickled_content):
        for name, value, is_plain in content:
            found[prefix + name] = detached(value) if is_plain and not keep_parameters else value
    return found


def unsaved_buffers(module: PythonObject) -> dict[str, Any]:
    """Return the buffers of a pickled module that are in no state dict, by name: those with `persistent=False`."""
    attributes = attributes_of(module)
    listed = attributes.get("_non_persistent_buffers_set")
    if not isinstance(listed, (set, frozenset, list, tuple)):
        return {}
    buffers = attributes["_buffers"]
    return {name: buffers[name] for name in buffers if name in listed and buffers[name] is not None}


def _pickled_content(module: PythonObject) -> Any:
    """Return the tensors of a module (name, value, whether `state_dict()` detaches it), its submodules, and a count."""
    attributes = attributes_of(module)
    transient = unsaved_buffers(module)
    content = [
        (_word(name), value, True)
        for kind in ("_parameters", "_buffers")
        for name, value in attributes[kind].items()
        if value is not None and not (kind == "_buffers" and name in transient)
    ]
    content += [(name, value, False) for name, value in _quantized_entries(module, attributes).items()]
    inner = [(_word(name), value) for name, value in attributes["_modules"].items() if is_module(value)]
    return content, inner, sum(len(attributes[name]) for name in MODULE_PARTS)


def _word(name: Any) -> str:
    if type(name) is not str:
        raise CorruptError("a module has an attribute whose name is not text", found=shown(name))
    return name
