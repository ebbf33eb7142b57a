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
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from attrs import evolve

from ..formats import FORMATS, LUA, PYTHON
from ..formats.pt.modules import VisitedModules, module_state_dict, unsaved_buffers
from ..formats.pt.pickle.names import WEIGHTS_ONLY, is_ordinary, is_torch
from ..graph import python
from ..graph.lua import Value
from ..graph.python import MODULE_PARTS, NAMED, attributes_of, is_pickled_module, key_text, name_text
from ..graph.storage import Storage
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor, UntypedStorage
from ..graph.walk import Fill, Path, fill_dict, fill_list
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.registry import own_names
from ..report import Report
from .state_dicts import Coverage
from .tree import DROPPED, Plain, Replacement
from .values import SIMPLE, SIMPLE_SCALARS, array_of, is_simple, note_more_plain, note_plain, numpy_content, paths_of

_MOST_LETTERS = 200
"""Characters of the name of a class that a note shows."""
_MOST_NOTES = 20
"""Maximum number of classes that have a note of their own."""
_ARRAYS = (Tensor, QuantizedTensor, SparseTensor, Storage, UntypedStorage, python.NumpyArray)
_NAMESPACE_CLASSES = ("argparse.Namespace", "types.SimpleNamespace")
_LOSSLESS_CLASSES = ("numpy", "collections.", "frozenset", *_NAMESPACE_CLASSES)
"""The beginnings of the names of classes whose plain form has all that they had."""
_ABSENT_PARTS: tuple[Any, ...] = (None, python.UNSET)
"""What an object has in place of a part that its pickle does not state."""


class Simplified(Plain):
    """Builds the simple form of a value: builtins and tensors, with state dicts for modules.

    Args:
        limits: bound how often shared modules are repeated.
        keep_classes: whether values of other classes stay as they are: only modules are replaced.
        unnamed_data: place of the data of a module that no key names: `DROPPED`, `MERGED` or `WRAPPED` of `tree`.
    """

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, keep_classes: bool = False, unnamed_data: str = DROPPED
    ) -> None:
        super().__init__(torch=False, unnamed_data=unnamed_data)
        self._keep_classes = keep_classes
        self._limits = limits
        self._visited = VisitedModules(limits)  # one for all modules, so that repetitions are counted together
        self.changed: dict[str, list[Any]] = {}
        """The values that became other kinds of values, by class."""
        self.data_fields: set[tuple[int, str]] = set()
        """Attributes that are data: the identity of each module, and the name."""
        self.modules: dict[int, tuple[python.PythonObject, Replacement]] = {}
        """Each module and what replaces it, by identity."""

    def scalar(self, value: Any, path: Path | None, key: Any) -> Any:
        """Return the scalar as it is: Python's stay, also inside Lua values."""
        return value

    def make(self, value: Value, path: Path | None) -> Any:
        """Return the simple form of a value that is not a scalar, or a `Fill` where it has parts to be made.

        Args:
            value: of the value that is simplified.
            path: of the value; none where there are no paths.
        """
        if isinstance(value, SIMPLE):
            return value
        if is_pickled_module(value):
            state = module_state_dict(value, limits=self._limits, visited=self._visited)
            replacement = Replacement(value=self._ordered(state), data=module_data(value, self.data_fields))
            self.modules[id(value)] = (value, replacement)
            return self.replacement_value(value, replacement)
        if isinstance(value, OrderedDict):
            return self._ordered(value)
        if self._keep_classes:
            if isinstance(value, python.DefaultDict):
                return self.entries(python.DefaultDict(value.factory), value)
            if isinstance(value, python.PythonObject):
                return self._same_object(value)
            # Only the containers of Python have modules inside that are to be replaced.
            if type(value) not in (dict, list, tuple, set, frozenset):
                return value
        if isinstance(value, frozenset):
            self._record_change("frozenset", value)
            # A set, as PyTorch's safe loader has no frozenset: `_completed` returns what its first argument is.
            return fill_list(tuple(value), partial(self._completed, set(value)))
        if isinstance(value, python.DefaultDict):
            self._record_change("collections.defaultdict", value)
        return super().make(value, path or Path())

    def _ordered(self, value: OrderedDict[Any, Any]) -> Fill:
        """Return an ordered dict to be filled, with its attributes, such as the `_metadata` of a state dict."""
        result: OrderedDict[Any, Any] = OrderedDict()
        items = self.entries(result, value)
        attributes = self.entries(vars(result), vars(value))
        return Fill(result, chain(items.parts, attributes.parts))

    def _same_object(self, value: python.PythonObject) -> Fill:
        """Return a copy of an object, to be filled: modules inside its parts are replaced, too."""
        result = evolve(value)
        parts_of_object = ("args", "kwargs", "state", "items", "pairs")
        names = [name for name in parts_of_object if getattr(value, name) not in _ABSENT_PARTS]
        parts: dict[Any, Any] = {}
        # `Rebuilder` fills lists and dicts only: the parts come into a dict first, and from there into the object.
        fill = fill_dict(parts, names, [getattr(value, name) for name in names])

        def set_parts() -> None:
            for name, part in parts.items():
                setattr(result, name, part)

        return Fill(result, fill.parts, on_filled=set_parts)

    def _record_change(self, name: str, value: Any) -> None:
        """Record a value that becomes one of another kind, for the note on its class.

        Args:
            name: of the class, as the note has it.
            value: the value before.
        """
        self.changed.setdefault(name, []).append(value)

    def entries(self, result: dict[Any, Any], entries: dict[Any, Any]) -> Fill:
        """Return a dict, `result`, to be filled with entries; keys become simple ones, unless classes are kept."""
        if self._keep_classes or all(isinstance(key, SIMPLE_SCALARS) for key in entries):
            return super().entries(result, entries)
        simple: dict[Any, Any] = {}
        last_numbers: dict[Any, int] = {}
        for key, item in entries.items():
            simple_key = self._simple_key(key)
            unique_key = simple_key
            while unique_key in simple:  # several keys have one text: `text #2`, …
                last_numbers[simple_key] = last_numbers.get(simple_key, 1) + 1
                unique_key = f"{simple_key} #{last_numbers[simple_key]}"
            simple[unique_key] = item
        return super().entries(result, simple)

    def _simple_key(self, key: Any) -> Any:
        """Return a key that PyTorch's safe loader can read: the key itself, or its text."""
        if isinstance(key, python.NumpyScalar):
            content = self.numpy(key)
            if isinstance(content, (Fill, list)):  # which cannot be hashed
                return key_text(key)
            return content
        parts = [key]
        for part in parts:  # grows meanwhile: tuples may be nested deeper than Python recurses
            if isinstance(part, (tuple, frozenset)):
                parts += part
            elif not isinstance(part, (*SIMPLE_SCALARS, Tensor, python.Device)):
                self._record_change(f"a key with a {type(part).__name__}", key)
                return key_text(key)
        return key

    def python_object(self, value: python.PythonObject) -> Any:
        """Return a dict of the class and the attributes of an object; of a namespace without its class.

        A `deque` becomes a list, unless it has attributes besides its items.
        """
        self._record_change(value.path, value)
        if value.path in _NAMESPACE_CLASSES:
            return self.entries({}, value.attributes)
        if value.path == "collections.deque" and value.state is python.UNSET:
            return fill_list(value.items)
        return super().python_object(value)

    def numpy(self, value: python.NumpyArray | python.NumpyScalar) -> Any:
        """Return a tensor, number, text, or list; for elements that only numpy has a dict with their bytes.

        A list or dict is returned as a `Fill`, whose items are converted in turn.
        """
        content = numpy_content(value)
        self._record_change("numpy.ndarray" if isinstance(value, python.NumpyArray) else "numpy's scalar", value)
        if content is None:
            array = array_of(value)
            parts = {"dtype": array.dtype.order + array.dtype.code, "shape": array.shape, "data": array.data}
            return self.entries({"__class__": array.cls}, parts)
        if isinstance(content, list):
            return fill_list(content)
        return content

    def constant(self, value: Any) -> Any:
        """Return a constant, class or function as its name, unless PyTorch's safe loader knows it; others as given."""
        # The safe loader knows devices, and all kinds of constants but memory formats.
        if isinstance(value, python.TorchConstant) and value.kind != "memory_format":
            return value
        if isinstance(value, python.Device) or not isinstance(value, NAMED):
            return value
        if isinstance(value, python.PythonGlobal):
            if value.path in WEIGHTS_ONLY:
                return value
            self._record_change(name_text(value), value)
        else:
            self._record_change(type(value).__name__, value)
        return name_text(value)


def module_data(module: python.PythonObject, data_fields: set[tuple[int, str]] | None = None) -> dict[str, Any]:
    """Return the data of a module and those inside it that are in no state dict, by path of the attribute.

    These are tables, arrays, tensors and scalars in attributes, and buffers that are not saved. What PyTorch's own
    classes set themselves are options. What is in objects of other classes is not data.

    Args:
        module: the module.
        data_fields: receives where the data are, for `Coverage.noted_fields`: the identity of the module and the name
            of its attribute.

    Returns:
        Values by prefix of the module and name of the attribute, `encoder.vocabulary`; nothing is copied.
    """
    data: dict[str, Any] = {}
    options_by_class: dict[str, frozenset[str]] = {}
    visited: set[int] = set()
    stack = [("", module)]
    while stack:
        prefix, item = stack.pop()
        if id(item) in visited:
            continue
        visited.add(id(item))
        for name, inner in attributes_of(item)["_modules"].items():
            if is_pickled_module(inner):
                stack.append((f"{prefix}{name}.", inner))
        if item.path not in options_by_class:
            # Of other classes, only `training` is known to be an option: `nn.Module` sets it.
            options_by_class[item.path] = own_names(item.path) if is_torch(item.path) else frozenset(("training",))
        for name, value in _attributes_with_data(item, options_by_class[item.path]):
            data[prefix + _text_of_name(name)] = value
            if data_fields is not None:
                data_fields.add((id(item), name))
    return data


def _attributes_with_data(module: python.PythonObject, options: frozenset[str]) -> Iterator[tuple[Any, Any]]:
    """Yield name and value of the attributes of a module that are data; see `module_data`.

    Args:
        module: the module.
        options: the names of attributes that its class sets.
    """
    for name, value in [*unsaved_buffers(module).items(), *attributes_of(module).items()]:
        if name in options or name in MODULE_PARTS:
            continue
        # Names with an underscore are those of caches and hooks, but a tensor is more than an option.
        if _text_of_name(name).startswith("_") and not isinstance(value, _ARRAYS):
            continue
        if _holds_only_data(value):
            yield name, value


def _text_of_name(name: Any) -> str:
    """Return the name of an attribute, which in a pickle need not be text."""
    return name if isinstance(name, str) else repr(name)


def _holds_only_data(value: Any) -> bool:
    """Return whether a value holds scalars, arrays and tensors in containers, or is one, and nothing else.

    Of None alone, or without any of these, it does not.
    """
    visited: set[int] = set()
    stack = [value]
    has_data = False
    while stack:
        item = stack.pop()
        if isinstance(item, (dict, list, tuple, set, frozenset)):
            if id(item) in visited:
                continue
            visited.add(id(item))
            stack += [*item.keys(), *item.values()] if isinstance(item, dict) else item
        elif isinstance(item, (*SIMPLE_SCALARS, *_ARRAYS, python.NumpyScalar)):
            if item is not None:
                has_data = True
        else:
            return False
    return has_data


def simplified(
    value: Any,
    report: Report,
    limits: Limits = DEFAULT_LIMITS,
    *,
    keep_classes: bool = False,
    unnamed_data: str = DROPPED,
) -> Any:
    """Return the simple form of a value; see the module's docstring. It may be the value itself.

    Args:
        value: the value of a `.pt`, which is not changed.
        report: receives notes about modules and values of other kinds.
        limits: bound how often shared modules are repeated.
        keep_classes: whether values of other classes stay as they are: only modules are replaced.
        unnamed_data: place of the data of a module that no key names: `DROPPED`, `MERGED` or `WRAPPED` of `tree`.

    Raises:
        LimitError: modules contain one another endlessly, or are repeated too often.
    """
    if is_simple(value):
        return value
    builder = Simplified(limits, keep_classes, unnamed_data)
    simple = builder.run(value)
    if builder.modules or builder.changed:
        _note_changes(builder, value, simple, report)
    return simple


def _note_changes(builder: Simplified, value: Any, simple: Any, report: Report) -> None:
    """Note what became of modules and of values of other kinds.

    Args:
        builder: has made the simple form.
        value: the value before.
        simple: its simple form.
        report: receives the notes, each with the path of the first value that it is about.
    """
    first_values = {id(items[0]) for items in builder.changed.values()}
    noted_values = first_values | builder.modules.keys()  # by identity
    paths = paths_of(value, noted_values)
    coverage = Coverage(noted_fields=builder.data_fields)
    for module, replacement in builder.modules.values():
        name = module.path[:_MOST_LETTERS]
        path = paths.get(id(module), "")
        message = f"the {name} is written as its state dict"
        report.note("info", message, path, loss="type", code="state-dict", class_name=name)
        coverage.add_module(module, path, name, replacement, report)
    coverage.add_notes(report, simple)
    values_of_target = FORMATS[report.target_format].values if report.target_format else PYTHON
    hint = "; --allow-foreign (allow_foreign=True) keeps it" if values_of_target == PYTHON else ""
    for name, items in list(builder.changed.items())[:_MOST_NOTES]:
        if not _loses_nothing(name, items[0]):
            note_plain(name, items, paths, report, level="warning", hint=hint)
        elif values_of_target != LUA:  # Lua has no names of Python's classes: it is the same as any value there
            note_plain(name, items, paths, report, level="info", hint=hint)
    further = list(builder.changed.items())[_MOST_NOTES:]
    note_more_plain(sum(not _loses_nothing(name, items[0]) for name, items in further), report)


def _loses_nothing(class_name: str, value: Any) -> bool:
    """Return whether the simple form of a value has all that it had but its class.

    Args:
        class_name: the class, as `Simplified.changed` has it.
        value: the value before.
    """
    if isinstance(value, python.PythonGlobal) and is_ordinary(value.path):
        return True  # a class or function of these packages is its name, which is kept
    return class_name.startswith(_LOSSLESS_CLASSES)
