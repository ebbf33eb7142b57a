"""State dicts and attributes of TorchScript modules and of the archives that PyTorch's C++ API writes.

`data.pkl` holds the modules as objects of classes below `__torch__`; only the source of the classes, in `code/`, says
which of their attributes are parameters and which are buffers. That source is parsed as text and never run.

Source: PyTorch 2.13 `torch/csrc/jit/serialization/python_print.cpp` (form of the source), `export_module.cpp`,
`torch/csrc/api/src/serialize/output-archive.cpp`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve, field

from ...data import define
from ...errors import CorruptError, LimitError
from ...graph.python import UNSET, PythonObject, QuantizedTensor, SparseTensor
from ...graph.tensor import Tensor
from ...limits import STEPS_PER_NODE, Limits
from ...report import Note
from .checkpoint import CONSTANTS_MEMBER, PtArchive
from .layout import DATA_MEMBER
from .storages import shown

BYTECODE_MEMBER = "bytecode.pkl"

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

    def find(self, path: str) -> ScriptClass | None:
        module, _, name = path.rpartition(".")
        classes = self._files.get(module)
        if classes is None:
            data = self._archive.small(f"code/{module.replace('.', '/')}.py")
            classes = self._files[module] = parse_classes(data.decode("utf-8", "replace")) if data else {}
        return classes.get(name)


def is_cpp(archive: PtArchive) -> bool:
    """Return whether an archive was written by the C++ API: all its classes are called `Module` and have no methods."""
    code = _Code(archive)
    prefix = archive.root + "code/"
    for name in archive.zip.members:
        if name.startswith(prefix) and name.endswith(".py"):
            module = name[len(prefix) : -3].replace("/", ".")
            code.find(module + ".Module")
            for cls, found in code._files[module].items():
                if not _GENERIC_MODULE.match(f"{module}.{cls}") or found.has_code:
                    return False
    return bool(code._files)


@define
class ScriptEntry:
    """One attribute of a module.

    Attributes:
        name: dotted, from the root.
        value: its value.
        in_state: whether it is a parameter or buffer.
    """

    name: str
    value: Any
    in_state: bool


@define
class ScriptModule:
    """Content of an archive of modules.

    Attributes:
        entries: everything but the modules themselves: of each module its parameters, its buffers and its other
            attributes, then the same of its submodules.
        constants: the constants that its code refers to.
        inlined: the tensors among the constants, `constants.0` and on: frozen and mobile modules have their weights
            there, and no names for them.
        held: the tensors in attributes that are neither parameters nor buffers, under `attributes.` and the path.
        notes: content that is not in the state dict.
    """

    entries: list[ScriptEntry]
    constants: Any = None
    inlined: OrderedDict[str, Any] = field(factory=OrderedDict)
    held: OrderedDict[str, Any] = field(factory=OrderedDict)
    notes: list[Note] = field(factory=list)

    @property
    def state_dict(self) -> OrderedDict[str, Any]:
        """Return parameters and buffers, as `state_dict()` does: detached; then attributes and constants."""
        state = OrderedDict((entry.name, detached(entry.value)) for entry in self.entries if entry.in_state)
        names = _Names(state)
        for name, tensor in (*self.held.items(), *self.inlined.items()):
            state[names.free(name)] = tensor
        return state

    @property
    def attributes(self) -> dict[str, Any]:
        """Return all other entries."""
        return {entry.name: entry.value for entry in self.entries if not entry.in_state}

    def note_inlined(self) -> None:
        """Note the inlined constants."""
        if self.inlined:
            count = f"{len(self.inlined)} tensor{'s' * (len(self.inlined) > 1)}"
            self.notes.append(
                Note(
                    "info",
                    "",
                    f"the module has {count} as constants of its code, without names: constants.0 …",
                    code="carried",
                )
            )

    def carry_attributes(self) -> None:
        """Carry the tensors in attributes, which are not in PyTorch's state dict of the module, and note them."""
        known = {_place(entry.value) for entry in self.entries if entry.in_state}
        known |= {_place(tensor) for tensor in self.inlined.values()}
        names = _Names(self.held)
        for entry in self.entries:
            if entry.in_state:
                continue
            for path, tensor in iter_tensors(entry.value, entry.name):
                if _place(tensor) not in known:
                    known.add(_place(tensor))
                    self.held[names.free(f"attributes.{path}")] = detached(tensor)
        if self.held:
            first = ", ".join(name[:70] for name in list(self.held)[:5]) + (", …" if len(self.held) > 5 else "")
            what = "tensor is an attribute" if len(self.held) == 1 else "tensors are attributes"
            self.notes.append(
                Note(
                    "info",
                    "",
                    f"{len(self.held)} {what} and no parameter or buffer; carried as {first}, "
                    "which load_state_dict(strict=False) skips",
                    code="carried",
                    count=len(self.held),
                )
            )

    def with_attributes(self) -> OrderedDict[str, Any]:
        """Return everything, in the order of `entries`."""
        found = OrderedDict((entry.name, detached(entry.value)) for entry in self.entries)
        found.update(self.inlined)
        return found


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


def read_modules(archive: PtArchive, limits: Limits) -> ScriptModule:
    """Read the modules of an archive.

    Raises:
        FormatError: it is damaged.
        LimitError: its modules contain one another endlessly.
    """
    root = archive.unpickle(DATA_MEMBER)
    found = ScriptModule([])
    if archive.has(CONSTANTS_MEMBER):
        found.constants = archive.unpickle(CONSTANTS_MEMBER, "constants/")
        _add_inlined(found, found.constants, "constants")
    if archive.has(BYTECODE_MEMBER):
        _add_inlined(found, archive.unpickle(BYTECODE_MEMBER, "constants/"), "bytecode")
    if not isinstance(root, PythonObject) or not isinstance(root.state, dict):
        raise CorruptError("the archive's value is not a module", found=type(root).__name__)
    code = _Code(archive)
    stack: list[tuple[str, PythonObject, int]] = [("", root, 0)]
    seen: set[int] = set()
    repeated = 0
    while stack:
        prefix, module, depth = stack.pop()
        if id(module) in seen:
            repeated += 1 + len(module.state)
        seen.add(id(module))
        if depth > limits.module_depth:
            raise LimitError(
                "the archive's modules are nested too deep", limit="module_depth", value=limits.module_depth
            )
        if repeated > limits.work // STEPS_PER_NODE:
            raise LimitError("the archive's modules contain one another too often", limit="work", value=limits.work)
        inner: list[tuple[str, PythonObject, int]] = []
        others: list[ScriptEntry] = []
        cls = code.find(module.path)
        states: list[ScriptEntry] = []
        for name, value in module.state.items():
            if type(name) is not str:
                raise CorruptError("a module has an attribute whose name is not text", found=shown(name))
            entry = ScriptEntry(f"{prefix}{name}", value, False)
            if _is_module(value, code):
                inner.append((f"{prefix}{name}.", value, depth + 1))
            elif is_tensor(value) and _in_state(name, cls):
                entry.in_state = True
                states.append(entry)
            else:
                others.append(entry)
        parameters = frozenset(cls.parameters) if cls else frozenset()
        start = len(prefix)
        found.entries += [entry for entry in states if entry.name[start:] in parameters]
        found.entries += [entry for entry in states if entry.name[start:] not in parameters]
        found.entries += others
        stack.extend(reversed(inner))
    found.note_inlined()
    return found


def _add_inlined(found: ScriptModule, value: Any, name: str) -> None:
    """Add the tensors of a value under their paths, except those seen elsewhere before."""
    known = {id(tensor) for tensor in found.inlined.values()}
    known_places = {_place(tensor) for tensor in found.inlined.values()}
    names = _Names(found.inlined)
    for path, tensor in iter_tensors(value, name):
        if id(tensor) not in known and _place(tensor) not in known_places:
            found.inlined[names.free(path)] = detached(tensor)


class _Names:
    """Unique names for the entries of a dict: duplicates are numbered."""

    def __init__(self, taken: Mapping[str, Any]) -> None:
        self._taken = taken
        self._last: dict[str, int] = {}

    def free(self, name: str) -> str:
        """Return the name, or `name~2`, `name~3` if it is taken."""
        free, number = name, self._last.get(name, 1)
        while free in self._taken:
            number += 1
            free = f"{name}~{number}"
        self._last[name] = number
        return free


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


def _is_module(value: Any, code: _Code) -> bool:
    if (
        not isinstance(value, PythonObject)
        or not value.path.startswith("__torch__.")
        or not isinstance(value.state, dict)
    ):
        return False
    cls = code.find(value.path)
    return cls is None or cls.is_module


def _in_state(name: str, cls: ScriptClass | None) -> bool:
    """Return whether a tensor is a parameter or a buffer: until 1.3, every tensor attribute but the parameters."""
    if cls is None or name in cls.parameters:
        return True
    if cls.buffers is None:
        return cls.types.get(name, "Tensor") in ("Tensor", "Optional[Tensor]")
    return name in cls.buffers
