"""Values of a `.pt` as builtins and tensors, with state dicts for modules, as `torch.load(weights_only=True)` reads.

| in the file | becomes |
| --- | --- |
| module | its state dict, and beside it the data in its attributes, and tensors that are in no state dict |
| numpy array | tensor; of text or of objects a list |
| numpy scalar | number or text |
| `defaultdict`, `argparse.Namespace` | dict |
| `deque`, `frozenset` | list, set |
| object of another class | dict of its attributes, with the class under `__class__` |
| class, function, dtype of numpy, memory format | its name |

Identity is preserved: shared objects stay shared, and cycles stay cycles. Tensors are not changed.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from itertools import chain
from typing import Any

from attrs import evolve

from ..formats import FORMATS, LUA, PYTHON
from ..formats.pt.modules import VisitedModules, attributes_of, is_module, module_state_dict, unsaved_buffers
from ..formats.pt.pickle.names import WEIGHTS_ONLY, is_ordinary, is_torch
from ..graph import python
from ..graph.lua import Value
from ..graph.python import MODULE_PARTS, NAMED, key_text, name_text
from ..graph.storage import Storage
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor, UntypedStorage
from ..graph.walk import Fill, Path, fill_dict, fill_list
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.registry import own_names
from ..report import Report
from .request import SIMPLE, array_of, is_simple, note_plain, numpy_content, paths_of
from .state_dicts import Coverage
from .tree import Plain, Replaced

_SHOWN = 200
_MOST_NOTES = 20
_SCALARS = (bool, int, float, complex, str, bytes, bytearray, type(None))
_TENSORS = (Tensor, QuantizedTensor, SparseTensor, Storage, UntypedStorage, python.NumpyArray)
_NAMESPACES = ("argparse.Namespace", "types.SimpleNamespace")
_LIKE = ("numpy", "collections.", "frozenset", *_NAMESPACES)
"""The beginnings of the names of classes whose plain form has all that they had."""
_NOTHING: tuple[Any, ...] = (None, python.UNSET)


class Simplified(Plain):
    """Builds the simple form of a value.

    Args:
        limits: bound how often shared modules are repeated.
        keep_classes: whether values of other classes stay as they are: only modules are replaced.
        unnamed: where the data of a module are if no key names it, as for `as_tree`.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS, keep_classes: bool = False, unnamed: str = "") -> None:
        super().__init__(torch=False, unnamed=unnamed)
        self._keep_classes = keep_classes
        self._limits = limits
        self._visited = VisitedModules(limits)
        self.changed: dict[str, list[Any]] = {}
        """The values that became other kinds of values, by class."""
        self.data_fields: set[tuple[int, str]] = set()
        """Attributes that are data: the identity of each module, and the name."""
        self.modules: dict[int, tuple[python.PythonObject, Replaced]] = {}
        """Each module and its state dict, by identity."""

    def scalar(self, value: Any, path: Path | None, key: Any) -> Any:
        """Return the scalar as it is."""
        return value

    def make(self, value: Value, path: Path | None) -> Any:
        """Return the simple form, or one to be filled."""
        if isinstance(value, SIMPLE):
            return value
        if is_module(value):
            state = module_state_dict(value, limits=self._limits, visited=self._visited)
            replaced = Replaced(self._ordered(state), module_data(value, self.data_fields))
            self.modules[id(value)] = value, replaced
            return self.stand_in(value, replaced)
        if isinstance(value, OrderedDict):
            return self._ordered(value)
        if self._keep_classes and isinstance(value, python.DefaultDict):
            return self.entries(python.DefaultDict(value.factory), value)
        if self._keep_classes and isinstance(value, python.PythonObject):
            return self._same_object(value)
        if self._keep_classes and type(value) not in (dict, list, tuple, set, frozenset):
            return value
        if isinstance(value, frozenset):
            self._change("frozenset", value)
            return fill_list(tuple(value), partial(self._finished, set(value)))
        if isinstance(value, python.DefaultDict):
            self._change("collections.defaultdict", value)
        return super().make(value, path or Path())

    def _ordered(self, value: OrderedDict[Any, Any]) -> Fill:
        """Return an ordered dict to be filled, with its attributes."""
        made: OrderedDict[Any, Any] = OrderedDict()
        return Fill(made, chain(self.entries(made, value).parts, self.entries(vars(made), vars(value)).parts))

    def _same_object(self, value: python.PythonObject) -> Fill:
        """Return an object of the same class, to be filled: modules inside it are replaced too."""
        made = evolve(value)
        names = [name for name in ("args", "kwargs", "state", "items", "pairs") if getattr(value, name) not in _NOTHING]
        parts: dict[Any, Any] = {}
        fill = fill_dict(parts, names, [getattr(value, name) for name in names])

        def finish() -> None:
            for name, part in parts.items():
                setattr(made, name, part)

        return Fill(made, fill.parts, done=finish)

    def _change(self, name: str, value: Any) -> None:
        self.changed.setdefault(name, []).append(value)

    def entries(self, result: dict[Any, Any], entries: dict[Any, Any]) -> Fill:
        """Return a dict to be filled with entries, under keys of simple values only."""
        if self._keep_classes or all(isinstance(key, _SCALARS) for key in entries):
            return super().entries(result, entries)
        simple: dict[Any, Any] = {}
        numbers: dict[Any, int] = {}
        for key, item in entries.items():
            text = name = self._key(key)
            while name in simple:  # several keys with one text
                numbers[text] = numbers.get(text, 1) + 1
                name = f"{text} #{numbers[text]}"
            simple[name] = item
        return super().entries(result, simple)

    def _key(self, key: Any) -> Any:
        """Return a key of simple values only."""
        if isinstance(key, python.NumpyScalar):
            made = self.numpy(key)
            return key_text(key) if isinstance(made, (Fill, list)) else made
        parts = [key]
        for part in parts:
            if isinstance(part, (tuple, frozenset)):
                parts += part
            elif not isinstance(part, (*_SCALARS, Tensor, python.Device)):
                self._change(f"a key with a {type(part).__name__}", key)
                return key_text(key)
        return key

    def python_object(self, value: python.PythonObject) -> Any:
        """Return a dict of the attributes of an object, or the list that it is."""
        self._change(value.path, value)
        if value.path in _NAMESPACES:
            return self.entries({}, value.attributes)
        if value.path == "collections.deque" and value.state is python.UNSET:
            return fill_list(value.items)
        return super().python_object(value)

    def numpy(self, value: python.NumpyArray | python.NumpyScalar) -> Any:
        """Return a tensor, number, text, or list of text."""
        made = numpy_content(value)
        self._change("numpy.ndarray" if isinstance(value, python.NumpyArray) else "numpy's scalar", value)
        if made is None:
            array = array_of(value)
            parts = {"dtype": array.dtype.order + array.dtype.code, "shape": array.shape, "data": array.data}
            return self.entries({"__class__": array.cls}, parts)
        return fill_list(made) if isinstance(made, list) else made

    def name(self, value: Any) -> Any:
        """Return a name as text, unless PyTorch's safe loader knows it."""
        if isinstance(value, python.TorchConstant) and value.kind != "memory_format":
            return value
        if isinstance(value, python.Device) or not isinstance(value, NAMED):
            return value
        if isinstance(value, python.PythonGlobal) and value.path in WEIGHTS_ONLY:
            return value
        self._change(name_text(value) if isinstance(value, python.PythonGlobal) else type(value).__name__, value)
        return name_text(value)


def module_data(module: python.PythonObject, fields: set[tuple[int, str]]) -> dict[str, Any]:
    """Return the data of modules that are in no state dict, by prefix and name of the attribute.

    These are tables, arrays, tensors and scalars in attributes, and buffers that are not saved. What PyTorch's own
    classes set themselves are options. What is in objects of other classes is not data.

    Args:
        module: the module.
        fields: receives the identity of each module and the name of its attribute.
    """
    found: dict[str, Any] = {}
    own: dict[str, frozenset[str]] = {}
    seen: set[int] = set()
    stack = [("", module)]
    while stack:
        prefix, item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        attributes = attributes_of(item)
        stack += [(f"{prefix}{name}.", inner) for name, inner in attributes["_modules"].items() if is_module(inner)]
        if item.path not in own:
            own[item.path] = own_names(item.path) if is_torch(item.path) else frozenset(("training",))
        for name, value in [*unsaved_buffers(item).items(), *attributes.items()]:
            shown = name if isinstance(name, str) else repr(name)
            # Names with an underscore are those of caches and hooks, but a tensor is more than an option.
            is_option = name in own[item.path] or (shown.startswith("_") and not isinstance(value, _TENSORS))
            if not is_option and name not in MODULE_PARTS and _is_data(value):
                found[prefix + shown] = value
                fields.add((id(item), name))
    return found


def _is_data(value: Any) -> bool:
    """Return whether a value is a scalar, an array or a tensor, or holds nothing else."""
    seen: set[int] = set()
    stack = [value]
    found = False
    while stack:
        item = stack.pop()
        if isinstance(item, (dict, list, tuple, set, frozenset)):
            if id(item) not in seen:
                seen.add(id(item))
                stack += [*item.keys(), *item.values()] if isinstance(item, dict) else item
        elif isinstance(item, (*_SCALARS, *_TENSORS, python.NumpyScalar)):
            found = found or item is not None
        else:
            return False
    return found


def simplified(
    value: Any,
    report: Report,
    limits: Limits = DEFAULT_LIMITS,
    *,
    keep_classes: bool = False,
    unnamed: str = "",
) -> Any:
    """Return the simple form of a value; see the module's docstring. It may be the value itself.

    Args:
        value: the value of a `.pt`, which is not changed.
        report: receives notes about modules and values of other kinds.
        limits: bound how often shared modules are repeated.
        keep_classes: whether values of other classes stay as they are.
        unnamed: where the data of a module are if no key names it, as for `as_tree`.

    Raises:
        LimitError: modules contain one another endlessly, or are repeated too often.
    """
    if is_simple(value):
        return value
    builder = Simplified(limits, keep_classes, unnamed)
    made = builder.run(value)
    if builder.modules or builder.changed:
        _note(builder, value, made, report)
    return made


def _note(builder: Simplified, value: Any, made: Any, report: Report) -> None:
    """Note what became of modules and of values of other kinds."""
    wanted = {id(items[0]) for items in builder.changed.values()} | set(builder.modules)
    paths = paths_of(value, wanted)
    coverage = Coverage(apart=builder.data_fields)
    for module, replaced in builder.modules.values():
        name, path = module.path[:_SHOWN], paths.get(id(module), "")
        report.note(
            "info", f"the {name} is written as its state dict", path, "type", code="state-dict", class_name=name
        )
        coverage.add(module, path, name, replaced, report)
    coverage.add_notes(report, made)
    for name, items in list(builder.changed.items())[:_MOST_NOTES]:
        first = items[0]
        is_name = isinstance(first, python.PythonGlobal)
        is_common = is_name and is_ordinary(first.path)
        level = "info" if is_common or name.startswith(_LIKE) else "warning"
        target = FORMATS[report.target_format].values if report.target_format else PYTHON
        if level == "info" and target == LUA:
            continue  # Lua has no names of such classes at all
        hint = "; --allow-foreign (allow_foreign=True) keeps it" if target == PYTHON else ""
        note_plain(name, items, paths, report, level, hint)
