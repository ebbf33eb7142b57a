"""Python-side values as Lua values: the content of a `.t7` made from a `.pt`, in a form natural to Lua.

| Python | Lua |
| --- | --- |
| None | nil |
| int, float, bool | number, boolean; an int beyond 2^53 is the nearest double |
| str, bytes | string; text as UTF-8 |
| list, tuple, set | table with the keys 1 to n |
| dict | table; keys that Lua cannot look up (tuples) become text, integers beyond 2^53 the nearest double |
| tensor | tensor of the same or the next wider type; one without dimensions has one of size 1 |
| complex | FloatTensor or DoubleTensor with a last dimension of 2; a single number is a table of `re` and `im` |
| quantized, sparse | table of the integers, scale and zero point; of indices, values and size |
| numpy array | tensor; of text or of objects a table |
| dtype, device, class | its name |
| object of a class | its state dict where it is a module, else a table of its attributes |

Indices inside tensors are 0-based as in PyTorch, also those of sparse tensors.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import evolve, field

from ..data import define
from ..errors import CorruptError, UnsupportedError
from ..graph.dtypes import ELEMENT_TYPES, PACKED
from ..graph.lua import COMPOSITE, Table, Value
from ..graph.order import in_order
from ..graph.paths import NAMED, ROOT, Location, inner, key_text, name_text, path_text
from ..graph.python import (
    UNSET,
    NumpyArray,
    NumpyScalar,
    PythonObject,
    QuantizedTensor,
    SparseTensor,
    UntypedStorage,
)
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Note, Report
from ..values.elements import parts_of
from .pt_values import has_modules

_NUMPY_ELEMENTS = {
    "b1" if element.code == "?" else element.code: element for element in ELEMENT_TYPES.values() if element.native
}
_SCALARS = (bool, int, float, str, bytes, type(None))
_CODES = {"": "name", "type": "type", "sharing": "unshared", "precision": "precision"}
"""The codes of notes, by kind of loss."""
_ALIKE_NOTES = 10
_MOST_NOTES = 1000
_MOST_DOTS = 100


@define(eq=False)
class LuaTree:
    """A Lua value made from a Python-side one.

    Attributes:
        value: the Lua value.
        notes: the differences between the Lua value and the original.
        nones: number of None in lists and dicts, which Lua's tables cannot hold.
        storages: for each original storage, by identity: it, the Lua storage, and whether Lua's can be turned back into
            it exactly.
    """

    value: Value = None
    notes: list[Note] = field(factory=list)
    nones: int = 0
    storages: dict[int, tuple[Storage, Storage, bool]] = field(factory=dict)


class _Builder:
    """Builds the Lua side with an explicit stack; tables are created before their content."""

    def __init__(self, nested: bool, keep_device: bool) -> None:
        self.tree = LuaTree()
        self._alike: Counter[str] = Counter()
        self._nested = nested
        self._keep_device = keep_device
        self._built: dict[int, Any] = {}
        self._kept: list[Any] = []
        self._marks: dict[int, bytes] = {}
        self._ratios: dict[int, int] = {}
        self._resolved: dict[tuple[int, bool, bool], Storage] = {}
        self._open: list[tuple[list[Any], int, Any, Location]] = []
        """Stack of work: a list of values, the position in it, the value, its path; the next one last."""

    def run(self, root: Any) -> LuaTree:
        result: list[Any] = [None]
        self._open.append((result, 0, root, ROOT))
        while self._open:
            target, place, value, path = self._open.pop()
            target[place] = self._convert(value, path)
        self.tree.value = result[0]
        self._count_notes()
        return self.tree

    def _note(
        self, level: str, path: Location, message: str, about: str = "", *, loss: str = "", code: str = ""
    ) -> None:
        """Add a note, unless there are enough `about` the same."""
        about = f"{level}: {loss}: {about or message}"
        self._alike[about] += 1
        if self._alike[about] <= _ALIKE_NOTES and len(self.tree.notes) < _MOST_NOTES:
            self.tree.notes.append(Note(level, path_text(path), message, loss, code=code or _CODES[loss]))

    def _count_notes(self) -> None:
        """Add the number of further notes of each kind."""
        for about, count in self._alike.items():
            if count > _ALIKE_NOTES and len(self.tree.notes) < 2 * _MOST_NOTES:
                level, loss, message = about.split(": ", 2)
                self.tree.notes.append(
                    Note(
                        level,
                        "",
                        f"{message}: {count - _ALIKE_NOTES} more",
                        loss,
                        code=_CODES[loss],
                        count=count - _ALIKE_NOTES,
                    )
                )

    def _convert(self, value: Any, path: Location) -> Value:
        if isinstance(value, _SCALARS):
            return self._scalar(value, path)
        built = self._built.get(id(value))
        if built is None:
            self._kept.append(value)  # so that no other value gets its identity
            built = self._built[id(value)] = self._object(value, path)
        return built

    def _scalar(self, value: Any, path: Location) -> Value:
        if isinstance(value, str):
            return _text_bytes(value)
        if isinstance(value, int) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                self._note("info", path, "an integer beyond Lua's numbers is written as text", loss="precision")
                return str(value).encode()
            if number != value:
                message = f"the integer {value} is the nearest Lua number, {number:.17g}"
                self._note("info", path, message, "an integer beyond 2^53 is the nearest Lua number", loss="precision")
            return number
        return value

    def _object(self, value: Any, path: Location) -> Value:
        if isinstance(value, dict):
            return self._dict(value, path)
        if isinstance(value, (set, frozenset)):
            return self._list(in_order(value, self._marks), path)
        if isinstance(value, (list, tuple)):
            return self._list(list(value), path)
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, Storage):
            return self._storage(value)[0]
        return self._other(value, path)

    def _other(self, value: Any, path: Location) -> Value:
        """Convert a value that neither Lua nor numpy has to a table or its name."""
        if isinstance(value, UntypedStorage):
            return self._storage(value.storage)[0]
        if isinstance(value, complex):
            return Table.of({"re": value.real, "im": value.imag})
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, QuantizedTensor):
            return self._quantized(value, path)
        if isinstance(value, SparseTensor):
            return self._dict(parts_of(value), path)
        if isinstance(value, (NumpyArray, NumpyScalar)):
            return self._numpy(value, path)
        if isinstance(value, NAMED):
            return _text_bytes(name_text(value))
        if isinstance(value, PythonObject):
            return self._python_object(value, path)
        if isinstance(value, COMPOSITE):
            return value
        kind = type(value).__name__
        raise UnsupportedError(f"a value of type {kind} cannot be written to a .t7", path=path_text(path))

    def _quantized(self, value: QuantizedTensor, path: Location) -> Table:
        if value.tensor.element.name in PACKED and value.tensor.storage is not None:
            name = value.tensor.element.name
            self._note("info", path, f"{name} is written as its bytes, each with several numbers", loss="type")
        parts = parts_of(value)
        return self._dict(parts if value.axis is None else {**parts, "axis": value.axis + 1}, path)

    # Containers

    def _list(self, items: list[Any], path: Location) -> Table:
        present = [number for number, item in enumerate(items) if item is not None]  # nil ends a Lua list
        self.tree.nones += len(items) - len(present)
        table = Table([float(number + 1) for number in present], [None] * len(present))
        self._later(table, [(items[number], inner(path, number)) for number in present])
        return table

    def _later(self, table: Table, items: list[tuple[Any, Location]]) -> None:
        places = list(enumerate(items))
        self._open.extend((table.raw_values, place, item, path) for place, (item, path) in reversed(places))

    def _dict(self, value: dict[Any, Any], path: Location) -> Table:
        if self._nested and (split := _split_keys(value)) is not None:
            return self._dict_entries(split, path)
        if self._nested and any(isinstance(key, str) and "." in key for key in value):
            self._note("info", path, "the keys are not nested, as one of them is a prefix of another, or ends in a dot")
        return self._dict_entries(value, path)

    def _dict_entries(self, value: dict[Any, Any], path: Location) -> Table:
        table = Table()
        inside: list[tuple[Any, Location]] = []
        for key, item in value.items():
            if item is None:
                self.tree.nones += 1
                continue
            step = inner(path, key)
            name = self._key(key, step)
            if name in table:
                self._note(
                    "warning",
                    step,
                    "a key that equals another one in Lua is left out; the record keeps it",
                    loss="type",
                )
                continue
            table[name] = None
            inside.append((item, step))
        self._later(table, inside)
        return table

    def _key(self, key: Any, path: Location) -> Value:
        if key is None or (isinstance(key, float) and key != key):
            self._note("info", path, f"the key {key} is text in Lua", loss="type")
            return str(key).encode()
        if isinstance(key, _SCALARS):
            return self._scalar(key, path)
        if isinstance(key, Tensor):
            return self._convert(key, path)
        if isinstance(key, NAMED):
            return self._convert(key, path)
        self._note("info", path, "a key that Lua cannot look up is written as its text", loss="type")
        return _text_bytes(key_text(key))

    def _python_object(self, value: PythonObject, path: Location) -> Value:
        from ..formats.pt.pickle.plain import plain_data

        self._note(
            "warning", path, f"an object of class {value.path} is written as a table of its content", loss="type"
        )
        return self._dict_entries(plain_data(value), path)

    # Tensors

    def _storage(self, storage: Storage) -> tuple[Storage, int]:
        """Return the Lua storage of a storage, and the number of its elements per original element."""
        known = self.tree.storages.get(id(storage))
        if known is None:
            lua, ratio, exact = storage, 1, True
            if not storage.element.lua:
                from ..values.widened import widen

                lua, ratio, exact = widen(storage)
            device = self._device(storage.device)
            if lua.device != device:
                lua = evolve(lua, device=device)
            known = self.tree.storages[id(storage)] = (storage, lua, exact)
            self._ratios[id(storage)] = ratio
        return known[1], self._ratios[id(storage)]

    def _device(self, name: str) -> str:
        """Return the Lua device of a tensor: Lua's classes know the CPU and CUDA."""
        return name if self._keep_device and name.startswith("cuda") else "cpu"

    def _tensor(self, tensor: Tensor, path: Location) -> Tensor:
        extras = tensor.extras
        source = tensor.storage
        if extras and source is not None and (extras.conj or extras.neg):
            self._note("info", path, "a conjugated or negated view has memory of its own in Lua", loss="sharing")
            source = self._resolve(source, extras.conj, extras.neg)
        if extras and (extras.state is not UNSET or extras.hooks is not None or extras.subclass is not None):
            self._note(
                "warning", path, "a tensor's Python attributes, hooks and class are not in the Lua value", loss="type"
            )
        if source is None:
            return Tensor(tensor.element, None, device=self._device(tensor.device))
        if source.base is not None:
            self._note(
                "info", path, "memory that is seen as two types, or in part, is two storages in Lua", loss="sharing"
            )
        storage, ratio = self._storage(source)
        if storage.element.name == "float64" and tensor.element.name == "uint64":
            self._note(
                "warning",
                path,
                "uint64 is written as float64, as a number is beyond int64: exact to 2^53",
                loss="precision",
            )
        elif storage.element.name != tensor.element.name:
            self._note("info", path, f"{tensor.element.name} is written as {storage.element.name}", loss="type")
        if 0 in tensor.size:
            if len(tensor.size) > 1:
                self._note("info", path, "a tensor without elements has no dimensions in Lua", loss="type")
            return Tensor(storage.element, storage, device=self._device(tensor.device))
        size, stride = tensor.size, tensor.stride
        if tensor.is_scalar and ratio == 1:
            size, stride = (1,), (1,)
        if ratio == 2:
            size, stride = (*size, 2), (*(2 * step for step in stride), 1)
        return Tensor(storage.element, storage, size, stride, tensor.offset * ratio, device=self._device(tensor.device))

    def _resolve(self, storage: Storage, conj: bool, neg: bool) -> Storage:
        """Return the storage with its elements as the views read them; one for all such views."""
        from ..values.widened import resolved

        name = (id(storage), conj, neg)
        if name not in self._resolved:
            self._resolved[name] = resolved(storage, conj, neg)
        return self._resolved[name]

    def _numpy(self, value: NumpyArray | NumpyScalar, path: Location) -> Value:
        from ..formats.pt.numpy_tensors import tensor_of_array, text_items

        is_array = isinstance(value, NumpyArray)
        array = value if isinstance(value, NumpyArray) else NumpyArray(value.dtype, (), False, value.data)
        if not is_array and isinstance(value.data, bytes) and len(value.data) != max(value.dtype.itemsize, 1):
            raise CorruptError("a numpy scalar's bytes do not fit its type", path=path_text(path))
        if isinstance(array.data, list):
            self._note("info", path, "a numpy array of objects is a table in Lua, without its shape", loss="type")
            return self._list(array.data, path)
        items = text_items(array)
        if items is not None:
            return self._list(items, path) if array.shape else self._scalar(items[0], path)
        element = _NUMPY_ELEMENTS.get(value.dtype.code)
        tensor = tensor_of_array(array, element, "cpu") if element else None
        if tensor is None:
            self._note("warning", path, f"numpy elements of type {value.dtype.code[:20]} are bytes in Lua", loss="type")
            return value.data if isinstance(value.data, bytes) else None
        return self._tensor(tensor, path) if is_array else self._convert(tensor.array.item(), path)


def _text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _split_keys(value: dict[Any, Any]) -> dict[Any, Any] | None:
    """Split keys: `{"a.b": 1}` becomes `{"a": {"b": 1}}`; `None` if nothing splits, or a key is a prefix of another."""
    if not any(isinstance(key, str) and "." in key for key in value):
        return None
    result: dict[Any, Any] = {}
    for key, item in value.items():
        words = key.split(".") if isinstance(key, str) else [key]
        if len(words) > _MOST_DOTS:
            return None
        inner = result
        for word in words[:-1]:
            inner = inner.setdefault(word, _Nested())
            if not isinstance(inner, _Nested):
                return None
        if words[-1] in inner:
            return None
        inner[words[-1]] = item
    return result


class _Nested(dict[Any, Any]):
    """A dict created by splitting keys."""


def note_nones(tree: LuaTree, report: Report) -> None:
    """Note that a table has no entry for None, where no record restores it."""
    if tree.nones:
        message = f"None is no entry of a Lua table: {tree.nones} are left out, which a record would restore"
        report.note("info", message, loss="type", code="left-out", count=tree.nones)


def to_lua(value: Any, *, nested: bool = False, keep_device: bool = False, limits: Limits = DEFAULT_LIMITS) -> LuaTree:
    """Convert a Python-side value; see the module's docstring.

    Args:
        value: the result of `PtReader.read`.
        nested: whether keys with dots become tables in tables: `t.conv1.weight` instead of `t["conv1.weight"]`.
        keep_device: whether tensors on a CUDA device are `torch.CudaTensor`s and the like.
        limits: bound how often shared modules are repeated.

    Raises:
        LimitError: modules are repeated too often.
    """
    notes: list[Note] = []
    if has_modules(value):
        from .simplified import simplified

        report = Report()
        value = simplified(value, report, limits, keep_classes=True)
        notes = report.notes
    tree = _Builder(nested, keep_device).run(value)
    tree.notes[:0] = notes
    return tree
