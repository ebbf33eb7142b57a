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
from typing import Any, NamedTuple

from attrs import evolve, field

from ...data import define, pattern
from ...errors import CorruptError, UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES
from ...graph.python import MODULE_PARTS, QUANTIZED_CLASS, UNSET, PythonObject, attributes_of, is_quantized_conv
from ...graph.python import is_pickled_module as is_module
from ...graph.storage import Storage
from ...graph.tensor import QuantizedTensor, SparseTensor, Tensor, bits_of
from ...limits import DEFAULT_LIMITS, STEPS_PER_NODE, Budget, Limits
from ...report import Note
from ...text import few
from ..fields import Fields, shown
from .archive import PtArchive
from .members import CONSTANTS_MEMBER, DATA_MEMBER, MODEL_MEMBER
from .pickle.context import PickleContext
from .pickle.tensors import has_gradient, view
from .storages import span_of_bytes

BYTECODE_MEMBER = "bytecode.pkl"
_LONGEST_PREFIX = 1000
"""How many characters of its path, the last ones, the paths of what is in a value begin with."""
_CONSTANTS_FOLDER = "constants/"
"""Folder of the storages of the constants."""
ATTRIBUTES_MEMBER = "attributes.pkl"
_NO_FOLDER = ""
"""In place of the folder of storages where their keys are whole names of members, below the root."""

_CLASS = pattern(r"^class (\w+)(?:\(([\w.]*)\))?:[^\n]*\n((?:[ \t][^\n]*\n|\n)*)", re.MULTILINE)
"""A class: its name, its base, and its body, the indented lines."""
_LIST = pattern(r"^  (__parameters__|__buffers__) = \[([^\n]*)\]", re.MULTILINE)
"""A list of names of parameters or buffers: which, and the names."""
_QUOTED = pattern(r'"((?:[^"\\]|\\.)*)",? *')
"""A name in such a list."""
_TYPE = pattern(r'^  (?:(\w+)|__annotations__\["((?:[^"\\\n]|\\.)*)"\]) *[:=] *([^\n=]+)', re.MULTILINE)
"""The declaration of an attribute: its name, as an identifier or quoted, and its type."""
_GENERIC_MODULE = pattern(r"__torch__\.(___torch_mangle_\d+\.)?Module\Z")
"""The name of a class that the C++ API writes."""


@define
class ScriptClass:
    """What the source of a class of TorchScript declares about its attributes.

    Attributes:
        is_module: whether it is a module; else it is a plain class, such as a named tuple.
        parameters: names of its parameters.
        buffers: names of its buffers; None in files of releases that did not write them (see `_is_buffer`).
        types: by the name of each attribute: its type, as text.
        has_code: whether it has methods. Classes of the C++ API have none.
    """

    is_module: bool
    parameters: list[str] = field(factory=list)
    buffers: list[str] | None = None
    types: dict[str, str] = field(factory=dict)
    has_code: bool = False


def parse_classes(source: str) -> dict[str, ScriptClass]:
    """Return the classes in a source file of TorchScript, by name; lines of another form are passed over."""
    classes = {}
    for name, base, body in _CLASS.findall(source):
        # PyTorch prints attributes first, then methods. The body of a class without attributes starts with a method.
        attributes, _, _ = body.partition("\n  def ")
        # A class is a module by its base, or by the list that only modules have.
        cls = ScriptClass(is_module=base == "Module" or "__parameters__" in attributes)
        cls.has_code = attributes != body or body.startswith("  def ")
        for kind, names in _LIST.findall(attributes):
            if kind == "__parameters__":
                cls.parameters = _quoted_names(names)
            else:
                cls.buffers = _quoted_names(names)
        for plain_name, quoted_name, attribute_type in _TYPE.findall(attributes):
            cls.types[plain_name or _unquoted(quoted_name)] = attribute_type.strip()
        classes[name] = cls
    return classes


def _quoted_names(text: str) -> list[str]:
    """Return the names in the text of a list, `"a", "b", `, up to anything else."""
    names = []
    place = 0
    while match := _QUOTED.match(text, place):
        names.append(_unquoted(match[1]))
        place = match.end()
    return names


def _unquoted(text: str) -> str:
    """Return the content of a string literal: a backslash stands before quotes and backslashes."""
    return re.sub(r"\\(.)", r"\1", text)


class _Code:
    """The classes in the source files of an archive, parsed on demand."""

    def __init__(self, archive: PtArchive) -> None:
        self._archive = archive
        self._files: dict[str, dict[str, ScriptClass]] = {}
        """By the Python module of each source file that was parsed: its classes by name; empty if there is no file."""

    def classes(self, module: str) -> dict[str, ScriptClass]:
        """Return the classes of a Python module, by name."""
        if module not in self._files:
            source = self._archive.read_member(f"code/{module.replace('.', '/')}.py")
            self._files[module] = parse_classes(source.decode("utf-8", "replace")) if source else {}
        return self._files[module]

    def find(self, path: str) -> ScriptClass | None:
        """Return the class of a dotted path; `None` if its source is not in the archive."""
        module, _, name = path.rpartition(".")
        return self.classes(module).get(name)


def is_cpp(archive: PtArchive) -> bool:
    """Return whether an archive was written by the C++ API: all its classes are called `Module` and have no methods.

    One without source files was not.
    """
    code = _Code(archive)
    files = [name for name in archive.names() if name.startswith("code/") and name.endswith(".py")]
    for file in files:
        module = file[len("code/") : -len(".py")].replace("/", ".")
        for name, cls in code.classes(module).items():
            if not _GENERIC_MODULE.match(f"{module}.{name}") or cls.has_code:
                return False
    return bool(files)


class Entry(NamedTuple):
    """A value in a module of an archive.

    Attributes:
        name: in its module; or the dotted name in the whole archive.
        value: a tensor, or anything else that a module may hold.
        in_state: whether PyTorch's state dict has it: parameters and buffers are there, other attributes are not.
    """

    name: str
    value: Any
    in_state: bool


class Inside(NamedTuple):
    """What is inside a module, for `VisitedModules.walk`.

    Attributes:
        content: what the module holds itself, in the form that the user of `walk` wants.
        submodules: the modules in it, by name.
        charged_entries: how many entries looking inside takes, of whatever kind: they are charged to `Limits.work`
            each time that the module is met again.
    """

    content: Any
    submodules: list[tuple[str, Any]]
    charged_entries: int


@define(eq=False)
class VisitedModules:
    """Walks through the modules of a file, and charges modules that are met repeatedly to `Limits.work`.

    A shared module has all its names in a state dict, so that modules in modules could multiply without end. One object
    serves all state dicts of a file, for one limit together.

    Attributes:
        limits: resource limits.
        _seen: the identities of the modules met so far; the value of the file keeps them alive.
        _budget: what is charged for those that are met again.
    """

    limits: Limits = DEFAULT_LIMITS
    _seen: set[int] = field(factory=set, init=False)
    _budget: Budget = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._budget = Budget(self.limits, "writing modules that contain one another")

    def walk(self, root: Any, look_inside: Callable[[Any], Inside]) -> Iterator[tuple[str, Any]]:
        """Yield for each module the prefix of its names, `layers.0.`, and its content; before its submodules, in order.

        Args:
            root: the outermost module.
            look_inside: returns what is inside a module.

        Raises:
            LimitError: modules are nested too deep, or repeated too often.
        """
        limits = self.limits
        stack: list[tuple[str, Any, int]] = [("", root, 0)]
        while stack:
            prefix, module, depth = stack.pop()
            if depth > limits.module_depth:
                raise limits.exceeded("module_depth", "the modules are nested too deep")
            content, submodules, charged_entries = look_inside(module)
            if id(module) in self._seen:
                path = prefix[:-1]  # without the dot
                self._budget.spend(STEPS_PER_NODE * (1 + charged_entries), path)
            self._seen.add(id(module))
            yield prefix, content
            # The last one is taken from the stack first.
            for name, submodule in reversed(submodules):
                stack.append((f"{prefix}{name}.", submodule, depth + 1))


@define
class ScriptModule:
    """The parameters, buffers, attributes and constants in an archive of TorchScript, the C++ API or torch.export.

    Attributes:
        entries: everything but the modules themselves, under dotted names: of each module its parameters, its buffers
            and its other attributes, then the same of its submodules.
        notes: the notes of the file, to which those on content that is not in the state dict are added.
        constants: the constants that its code refers to, as they are in the file; None if there are none.
        inlined: the tensors among the constants, `constants.0` and on: frozen and mobile modules have their weights
            there, and no names for them. Filled by `inline`, or by the readers of other archives.
        carried: the tensors in attributes that are neither parameters nor buffers, under `attributes.` and the path.
            Filled by `carry_attributes`; empty if `state_has_attributes`.
        state_has_attributes: whether the state dict has all entries under their own names, as that of the C++ API.
    """

    entries: list[Entry]
    notes: list[Note] = field(factory=list)
    constants: Any = None
    inlined: OrderedDict[str, Any] = field(factory=OrderedDict)
    carried: OrderedDict[str, Any] = field(factory=OrderedDict)
    state_has_attributes: bool = False

    @classmethod
    def of(cls, archive: PtArchive, root: Any, look_inside: Callable[[Any], Inside]) -> ScriptModule:
        """Return the content of the modules in an archive.

        Args:
            archive: the archive.
            root: the outermost module.
            look_inside: returns what is inside a module, with its `Entry`s as content.
        """
        entries = []
        for prefix, content in VisitedModules(archive.origin.limits).walk(root, look_inside):
            for name, value, in_state in content:
                entries.append(Entry(prefix + name, value, in_state))
        return cls(entries, archive.origin.notes)

    @property
    def state_dict(self) -> OrderedDict[str, Any]:
        """Parameters and buffers, as `state_dict()` has them: detached; then the tensors of attributes and constants.

        Those of attributes are in `carried`, those of constants in `inlined`. The C++ API has the attributes of each
        module among its parameters and buffers.
        """
        state: OrderedDict[str, Any] = OrderedDict()
        for name, value, in_state in self.entries:
            if in_state or self.state_has_attributes:
                state[name] = detached(value)
        _add_under_free_names(state, (*self.carried.items(), *self.inlined.items()))
        return state

    @property
    def attributes(self) -> dict[str, Any]:
        """By name the entries that are neither parameters nor buffers."""
        return {name: value for name, value, in_state in self.entries if not in_state}

    def inline(self, value: Any, name: str) -> None:
        """Add the tensors of a constant under their paths, except views that an earlier constant has.

        Args:
            value: the constant, of builtins and objects.
            name: the beginning of the paths.
        """
        inlined_views = {_view_identity(tensor) for tensor in self.inlined.values()}
        tensors = []
        for path, tensor in iter_tensors(value, name):
            if _view_identity(tensor) not in inlined_views:
                tensors.append((path, detached(tensor)))
        _add_under_free_names(self.inlined, tensors)

    def note(self, text: str, count: int = 1) -> None:
        """Note tensors that are carried, although state dicts have no names for them."""
        self.notes.append(Note("info", path="", message=text, code="carried", count=count))

    def note_inlined(self) -> None:
        """Note the inlined constants."""
        if self.inlined:
            names = list(self.inlined)
            if len(names) == 1:
                text = f"a tensor of the module is one of the constants of its code, without a name: {names[0]} here"
            else:
                places = f"{names[0]} to {names[-1]} here"
                text = f"{len(names)} tensors of the module are constants of its code, without names: {places}"
            self.note(text)

    def carry_attributes(self) -> None:
        """Carry the tensors in attributes, which are not in PyTorch's state dict of the module, and note them.

        To be called after the constants were added: a tensor that is one of them, or in the state dict, is carried
        once.
        """
        views_elsewhere = {_view_identity(value) for _, value, in_state in self.entries if in_state}
        views_elsewhere |= {_view_identity(tensor) for tensor in self.inlined.values()}
        # By the identity of a view: one tensor may be the attribute of several modules, and has the name of the first.
        tensors: dict[Any, tuple[str, Any]] = {}
        for name, value, in_state in self.entries:
            if in_state:
                continue
            for path, tensor in iter_tensors(value, name):
                view_identity = _view_identity(tensor)
                if view_identity not in views_elsewhere:
                    tensors.setdefault(view_identity, (f"attributes.{path}", detached(tensor)))
        _add_under_free_names(self.carried, tensors.values())
        if tensors:
            what = "tensor is an attribute" if len(tensors) == 1 else "tensors are attributes"
            self.note(
                f"{len(tensors)} {what} and no parameter or buffer; carried as {few(self.carried, longest=70)}, "
                "which load_state_dict(strict=False) skips",
                count=len(tensors),
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


def _add_under_free_names(target: OrderedDict[str, Any], tensors: Iterable[tuple[str, Any]]) -> None:
    """Add tensors to a dict by name; a name that is taken is numbered: `name~2`, `name~3`."""
    last_numbers: dict[str, int] = {}
    """The last number of each name, so that many equal names take linear time."""
    for name, tensor in tensors:
        unique_name = name
        number = last_numbers.get(name, 1)
        while unique_name in target:
            number += 1
            unique_name = f"{name}~{number}"
        last_numbers[name] = number
        target[unique_name] = tensor


def _view_identity(value: Any) -> Any:
    """Return what identifies a tensor in an archive: its view of a storage; of other values, the object."""
    if isinstance(value, Tensor) and value.storage is not None:
        # A view that is conjugated or negated when it is read has other elements.
        return (id(value.storage), value.offset, value.size, value.stride, *bits_of(value))
    return id(value)


def iter_tensors(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors inside a value of builtins and objects, each once, with its dotted path, in their order.

    Args:
        value: any value of a file.
        name: with which all paths begin.
    """
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
        else:
            # The last one is taken from the stack first.
            stack += reversed(_with_paths(item, path))


def _with_paths(item: Any, path: str) -> list[tuple[str, Any]]:
    """Return what is directly inside an item, each with its path: of dicts, lists, tuples and objects, in order.

    Args:
        item: any value; nothing is inside of others.
        path: of the item.
    """
    # Paths are cut, as the memory for those of nested values would grow with the square of their depth.
    prefix = path[-_LONGEST_PREFIX:]
    if isinstance(item, dict):
        return [(f"{prefix}.{key!s:.100}", inner) for key, inner in item.items()]
    if isinstance(item, (list, tuple)):
        return [(f"{prefix}.{number}", inner) for number, inner in enumerate(item)]
    if isinstance(item, PythonObject):
        # Its parts have no names of their own: what is inside them is named as if it were in the object.
        parts = (item.args, item.kwargs, item.state, item.items, item.pairs)
        return [(path, part) for part in parts if part is not UNSET]
    return []


# `data.pkl`


def read_modules(archive: PtArchive, is_cpp_api: bool) -> ScriptModule:
    """Read the modules of an archive.

    Args:
        archive: the archive.
        is_cpp_api: whether the C++ API wrote it: its state dict has all attributes, so that none is carried beside it.

    Raises:
        FormatError: it is damaged.
        LimitError: its modules contain one another endlessly.
    """
    root = archive.unpickle(DATA_MEMBER)
    # The bytecode of mobile modules shares the storages of the constants.
    constants = archive.unpickle(CONSTANTS_MEMBER, _CONSTANTS_FOLDER) if archive.has(CONSTANTS_MEMBER) else None
    bytecode = archive.unpickle(BYTECODE_MEMBER, _CONSTANTS_FOLDER) if archive.has(BYTECODE_MEMBER) else None
    if not isinstance(root, PythonObject) or not isinstance(root.state, dict):
        raise CorruptError("the archive's value is not a module", found=type(root).__name__)
    code = _Code(archive)
    script = ScriptModule.of(archive, root, lambda module: _content(module, code))
    script.constants = constants
    # In this order: a tensor of both is named as a constant.
    script.inline(constants, "constants")
    script.inline(bytecode, "bytecode")
    script.note_inlined()
    script.state_has_attributes = is_cpp_api
    if not is_cpp_api:
        script.carry_attributes()
    return script


def _content(module: PythonObject, code: _Code) -> Inside:
    """Return what is inside a module of TorchScript: parameters, buffers, then other attributes; and its submodules.

    Args:
        module: the module.
        code: the source of its class says which tensors are parameters and buffers. Without it all are buffers.
    """
    cls = code.find(module.path)
    parameter_names = frozenset(cls.parameters) if cls else frozenset()
    parameters: list[Entry] = []
    buffers: list[Entry] = []
    others: list[Entry] = []
    submodules: list[tuple[str, Any]] = []
    for name, value in module.state.items():
        if type(name) is not str:
            raise CorruptError("a module has an attribute whose name is not text", found=shown(name))
        if _is_module(value, code):
            submodules.append((name, value))
        elif is_tensor(value) and name in parameter_names:
            parameters.append(Entry(name, value, in_state=True))
        elif is_tensor(value) and _is_buffer(name, cls):
            buffers.append(Entry(name, value, in_state=True))
        else:
            others.append(Entry(name, value, in_state=False))
    return Inside([*parameters, *buffers, *others], submodules, charged_entries=len(module.state))


def _is_module(value: Any, code: _Code) -> bool:
    """Return whether a value is a module of TorchScript; a class without source is taken for one."""
    if not isinstance(value, PythonObject) or not value.path.startswith("__torch__."):
        return False
    if not isinstance(value.state, dict):
        return False
    cls = code.find(value.path)
    return cls is None or cls.is_module


def _is_buffer(name: str, cls: ScriptClass | None) -> bool:
    """Return whether a tensor that is no parameter is a buffer: until 1.3, every tensor attribute.

    Args:
        name: of the tensor in its module.
        cls: the class of the module; `None` if its source is not in the archive.
    """
    if cls is None:
        return True
    if cls.buffers is None:  # 1.3 and older
        return cls.types.get(name, "Tensor") in ("Tensor", "Optional[Tensor]")
    return name in cls.buffers


# `model.json`, JSON of protocol buffers: 64-bit numbers are text, and zero or empty values may be missing

_DATA_TYPE_ROWS = (
    "1 FLOAT float32  2 INT32 int32  3 BYTE uint8  5 BOOL bool  6 UINT8 uint8  7 INT8 int8  8 UINT16 uint16  "
    "9 INT16 int16  10 INT64 int64  12 FLOAT16 float16  13 DOUBLE float64"
)
"""Numbers and names of `TensorProto.DataType`, and the element type of each."""
_DATA_TYPES: dict[Any, str] = {}
"""Element types by number and by name."""
for _row in _DATA_TYPE_ROWS.split("  "):
    _number, _name, _element = _row.split(" ")
    _DATA_TYPES[int(_number)] = _element
    _DATA_TYPES[_name] = _element
_QUANTIZED_TYPES = {"uint8": "quint8", "int8": "qint8", "int32": "qint32"}
"""The element type of a quantized tensor, by that of its integers."""


def read_json_archive(archive: PtArchive) -> ScriptModule:
    """Read the modules of an archive of PyTorch 1.0 to 1.2: of its `model.json`, and the members that this names.

    Raises:
        FormatError: it is damaged.
    """
    model = Fields.parse(archive.read_member(MODEL_MEMBER), MODEL_MEMBER)
    context = archive.context(_NO_FOLDER)
    for definition in model.each("tensors"):
        context.tensors.append(_json_tensor(archive, context, definition))
    context.storages.complete_untyped_and_views()
    # The tensors come first: attributes refer to them (`build_tensor_from_id`).
    values: Any = archive.unpickle(ATTRIBUTES_MEMBER, _NO_FOLDER) if archive.has(ATTRIBUTES_MEMBER) else ()
    if not isinstance(values, (tuple, list)):
        raise CorruptError("the archive's attributes are not a list", found=type(values).__name__)
    root = model.inner("mainModule", {})
    script = ScriptModule.of(archive, root, lambda module: _json_content(module, context.tensors, values))
    script.constants = list(context.tensors)
    # Tensors to which no module refers are constants of its code.
    used_tensors = {id(value) for _, value, _ in script.entries}
    for number, tensor in enumerate(context.tensors):
        if id(tensor) not in used_tensors:
            script.inlined[f"constants.{number}"] = tensor
    script.note_inlined()
    script.carry_attributes()
    return script


def _json_content(module: Fields, tensors: list[Any], values: Any) -> Inside:
    """Return what is inside a module of `model.json`, as `_content`. Attributes of type Tensor were buffers in 1.2.

    Args:
        module: its description.
        tensors: all tensors of the file, to which parameters refer by number.
        values: all attributes of the file, to which attributes refer by number.
    """
    parameters: list[Entry] = []
    buffers: list[Entry] = []
    others: list[Entry] = []
    for definition in module.each("parameters"):  # these are buffers, too
        name = definition.get("name", str, "")
        entry = Entry(name, _at(tensors, _integer(definition, "tensorId")), in_state=True)
        entries_of_kind = buffers if definition.values.get("isBuffer") else parameters
        entries_of_kind.append(entry)
    listed_names = {entry.name for entry in (*parameters, *buffers)}
    for definition in module.each("attributes"):
        name = definition.get("name", str, "")
        if name in listed_names:  # one name, one value: the parameter, which PyTorch adds first
            continue
        number = _integer(definition, "id")
        value = _at(values, number) if number >= 0 else None  # -1: the attribute is not set
        if definition.values.get("type") == "Tensor" and isinstance(value, (Tensor, QuantizedTensor)):
            buffers.append(Entry(name, value, in_state=True))
        else:
            others.append(Entry(name, value, in_state=False))
    submodules = [(submodule.get("name", str, ""), submodule) for submodule in module.each("submodules")]
    # None is charged: only a pickled module may be met, and read, again and again. JSON shares none.
    return Inside([*parameters, *buffers, *others], submodules, charged_entries=0)


def _json_tensor(archive: PtArchive, context: PickleContext, entry: Fields) -> Any:
    """Return a tensor that `model.json` describes; its elements are in a member of the archive.

    Args:
        archive: the archive.
        context: has the storages of the members; receives that of this tensor.
        entry: the description: a `TensorDef` of `caffe2/proto/torch.proto`, as JSON.

    Raises:
        UnsupportedError: it is of an unknown type.
        CorruptError: the description is damaged, or the tensor does not lie in its storage.
    """
    data_type = entry.values.get("dataType")
    name = _DATA_TYPES.get(data_type) if isinstance(data_type, (str, int)) else None
    if name is None:
        raise UnsupportedError(f"a tensor is of type {shown(data_type)}, which PyTorch 1.2 did not have")
    quantized = bool(entry.values.get("isQuantized"))
    if quantized:
        name = _QUANTIZED_TYPES.get(name, name)  # the description has the type of the integers
    element = ELEMENT_TYPES[name]
    key = entry.inner("data", {}).get("key", str)  # the member with its elements
    # As many elements as the member has: the description says no number.
    count = archive.zip.member(archive.root + key).size // element.itemsize
    storage = context.storages.get(key, element, count, str(entry.values.get("device", "cpu")))
    size = [_whole(item, entry) for item in entry.get("dims", list, [])]
    stride = [_whole(item, entry) for item in entry.get("strides", list, [])]
    tensor = view(context, storage, _integer(entry, "offset"), size, stride)
    tensor.requires_grad = bool(entry.values.get("requiresGrad")) and has_gradient(tensor.element)
    if not quantized:
        return tensor
    scale = float(entry.get("scale", (int, float), 0.0))
    return QuantizedTensor(tensor, "per_tensor_affine", scale, _integer(entry, "zeroPoint"))


def _integer(fields: Fields, name: str) -> int:
    """Return an integer field; 0 if it is missing."""
    return _whole(fields.values.get(name, 0), fields)


def _whole(value: Any, fields: Fields) -> int:
    """Return an integer, which JSON of protocol buffers has as a number or as text.

    Args:
        value: the number or text.
        fields: of which it is one, for the error.

    Raises:
        CorruptError: it is no integer.
    """
    try:
        if isinstance(value, (str, int)):
            return int(value)
    except ValueError:
        pass
    raise CorruptError("has an invalid number", path=fields.path, found=shown(value))


def _at(values: Any, number: int) -> Any:
    """Return the value to which `model.json` refers by its number."""
    if not 0 <= number < len(values):
        raise CorruptError(f"{MODEL_MEMBER} refers to value {number} of {len(values)}")
    return values[number]


_SCRIPT_OBJECT = "torch.ScriptObject"
"""The class in a pickle of objects of C++, such as packed parameters."""


def _quantized_entries(module: PythonObject, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return what a quantized layer adds to its state dict: unpacked weights, scale and zero point; of others nothing.

    Source: PyTorch 2.13 `torch/ao/nn/quantized/modules/` and `dynamic/modules/rnn.py`, `_save_to_state_dict`;
    `ATen/native/quantized/cpu/fbgemm_utils.cpp`, the pickled forms of packed parameters.

    Args:
        module: of any class.
        attributes: of the module: all that it has.
    """
    entries: dict[str, Any] = {}
    if not QUANTIZED_CLASS.match(module.path):
        return entries
    if is_quantized_conv(module):  # whose weights are not packed
        entries = {"weight": attributes["weight"], "bias": attributes["bias"]}
    for name, value in attributes.items():
        # Numbers of the module become tensors; if they are buffers, they are in the state dict already.
        if name in ("scale", "zero_point") and type(value) in (int, float):
            entries[name] = _scalar(value)
        elif isinstance(value, PythonObject) and value.path == _SCRIPT_OBJECT:
            # PyTorch's modules with packed parameters save their dtype before the parameters.
            if "dtype" in attributes:
                entries["dtype"] = attributes["dtype"]
            entries[name] = _unpacked(value)
    return entries


def _unpacked(value: PythonObject) -> Any:
    """Return the weights in packed parameters as PyTorch's state dict has them: weight and bias, or an embedding's.

    The state of packed parameters is a pair: their own state, and the name of their class in C++. Others are returned
    as they are.
    """
    if not isinstance(value.state, tuple) or len(value.state) != 2:
        return value
    state, cpp_name = value.state
    if not isinstance(cpp_name, str) or not isinstance(state, tuple):
        return value
    if cpp_name.endswith("LinearPackedParamsBase"):
        return state
    if cpp_name.endswith("EmbeddingPackedParamsBase") and len(state) > 1:
        _version, tensors, *_others = state
        if isinstance(tensors, list) and tensors:
            return tensors[0]  # the weight
    return value


def _scalar(value: float) -> Tensor:
    """Return a number of a quantized module as `torch.tensor` makes a tensor of it: of float32, or of int64.

    Raises:
        CorruptError: it is out of range.
    """
    if isinstance(value, float):
        element = ELEMENT_TYPES["float32"]
        form = "<f"
    else:
        element = ELEMENT_TYPES["int64"]
        form = "<q"
    try:
        data = struct.pack(form, value)
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
        visited: the modules of the same file seen before, for one limit over all its state dicts; by default none, and
            `limits` apply.

    Raises:
        UnsupportedError: it is not a module.
        LimitError: its modules contain one another endlessly.
    """
    if not is_module(module):
        raise UnsupportedError("the value is not a module", found=shown(module))
    if visited is None:
        visited = VisitedModules(limits)
    state: OrderedDict[str, Any] = OrderedDict()
    for prefix, content in visited.walk(module, _pickled_content):
        for name, value, is_detached in content:
            if is_detached and not keep_parameters:
                value = detached(value)
            state[prefix + name] = value
    return state


def unsaved_buffers(module: PythonObject) -> dict[str, Any]:
    """Return the buffers of a pickled module that are in no state dict, by name: those with `persistent=False`.

    Args:
        module: one that `is_module` accepts, and so has `_buffers`.
    """
    attributes = attributes_of(module)
    listed = attributes.get("_non_persistent_buffers_set")
    if not isinstance(listed, (set, frozenset, list, tuple)):
        return {}
    buffers = attributes["_buffers"].items()
    return {name: buffer for name, buffer in buffers if name in listed and buffer is not None}


def _pickled_content(module: PythonObject) -> Inside:
    """Return what the state dict has of a pickled module: for each entry name, value, and whether it is detached."""
    attributes = attributes_of(module)
    unsaved_names = unsaved_buffers(module)
    is_detached = True  # by `state_dict()`
    content: list[tuple[str, Any, bool]] = []
    for name, parameter in attributes["_parameters"].items():
        if parameter is not None:
            content.append((_text_name(name), parameter, is_detached))
    for name, buffer in attributes["_buffers"].items():
        if buffer is not None and name not in unsaved_names:
            content.append((_text_name(name), buffer, is_detached))
    # A quantized module adds its weights to the state dict as they are.
    for name, value in _quantized_entries(module, attributes).items():
        content.append((name, value, not is_detached))
    # PyTorch has `None` for a parameter, buffer or submodule that is off.
    submodules = [(_text_name(name), value) for name, value in attributes["_modules"].items() if is_module(value)]
    # Those that are `None` take time, too.
    charged_entries = sum(len(attributes[part]) for part in MODULE_PARTS)
    return Inside(content, submodules, charged_entries)


def _text_name(name: Any) -> str:
    """Return a name of a pickled module; its dictionaries could have any key."""
    if type(name) is not str:
        raise CorruptError("a module has an attribute whose name is not text", found=shown(name))
    return name
