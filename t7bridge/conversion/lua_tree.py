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
| module | its state dict; `{state_dict, …}` with its data, where no key names it |
| object of another class | table of its attributes |

Indices inside tensors are 0-based as in PyTorch, also those of sparse tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from attrs import evolve, field

from ..data import define
from ..errors import UnsupportedError
from ..formats.pt.pickle.reductions import plain_data
from ..graph.dtypes import PACKED
from ..graph.lua import COMPOSITE, Table, TdsHash, TdsVec, TorchObject, Value, numbers
from ..graph.python import NAMED, UNSET, NumpyArray, NumpyScalar, PythonObject, in_order, key_text, name_text
from ..graph.storage import Storage
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor, UntypedStorage
from ..graph.walk import SCALARS, Fill, Path, Rebuilder, fill_list
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Note, Report
from ..values.widened import pairs_of_numbers, parts_of, resolved, widen
from .tree import WRAPPED
from .values import has_modules, numpy_content

_CODES = {"": "name", "type": "type", "sharing": "unshared", "precision": "precision"}
"""The codes of notes, by kind of loss."""
_ALIKE_NOTES = 10
"""Notes about the same before they are only counted."""
_MOST_NOTES = 1000
"""Notes in all; as many more may say how many were not made."""
_MOST_LETTERS_OF_CODE = 20
"""Letters of a numpy type in a note: that of a damaged file may have any length."""
_MOST_STEPS = 100
"""Most steps of a key that is split: tables nested deeper are no names of parameters."""


@define(eq=False)
class LuaStorage:
    """A storage of the Python side, and what it is in Lua.

    Attributes:
        original: the storage, which is kept alive where it is known by its identity.
        storage: Lua's: the same one, or one with the next wider elements.
        elements_per_original: how many elements of it each element of the original is: 2 for complex ones, else 1.
        is_exact: whether it can be turned back into the original exactly.
    """

    original: Storage
    storage: Storage
    elements_per_original: int
    is_exact: bool


@define(eq=False)
class LuaTree:
    """A Lua value made from a Python-side one.

    Attributes:
        value: the Lua value.
        notes: the differences between the Lua value and the original.
        nones: number of None in lists and dicts: Lua's tables cannot hold them, so they are left out.
        storages: what each original storage became, by its identity.
    """

    value: Value = None
    notes: list[Note] = field(factory=list)
    nones: int = 0
    storages: dict[int, LuaStorage] = field(factory=dict)


class _Builder(Rebuilder):
    """Builds Lua values from Python's; tables are created before their content.

    Args:
        nested: whether keys with dots become tables in tables.
        keep_device: whether tensors on a CUDA device stay there.
        objects: whether dicts that `as_tree` made of objects become these again.

    Attributes:
        tree: receives the notes, the storages and the number of Nones; its `value` is set by `to_lua`.
    """

    def __init__(self, nested: bool, keep_device: bool, objects: bool = False) -> None:
        super().__init__()
        self.tree = LuaTree()
        self._counts_of_alike: Counter[tuple[str, str, str]] = Counter()
        """Number of notes about the same: level, loss and text."""
        self._splits_keys = nested
        self._keep_device = keep_device
        self._restores_objects = objects
        self._hashes_of_parts: dict[int, bytes] = {}
        """For `in_order`: of the parts of sets, by identity."""
        self._resolved: dict[tuple[int, bool, bool], Storage] = {}
        """Storages of conjugated and negated views: by identity of the original, and whether it is either."""

    def _note(self, level: str, path: Path, message: str, about: str = "", *, loss: str = "") -> None:
        """Add a note, unless there are enough like it.

        Args:
            level: of the note.
            path: of the value.
            message: the text.
            about: the text without what differs from value to value, if it has such parts: notes with the same one are
                alike.
            loss: what is lost: a key of `_CODES`.
        """
        kind = (level, loss, about or message)
        self._counts_of_alike[kind] += 1
        if self._counts_of_alike[kind] <= _ALIKE_NOTES and len(self.tree.notes) < _MOST_NOTES:
            self.tree.notes.append(Note(level, str(path), message, loss, code=_CODES[loss]))

    def count_further_notes(self) -> None:
        """Add notes on how many were alike and not added, when the value is complete."""
        for (level, loss, about), count in self._counts_of_alike.items():
            more = count - _ALIKE_NOTES
            if more > 0 and len(self.tree.notes) < 2 * _MOST_NOTES:
                self.tree.notes.append(Note(level, "", f"{about}: {more} more", loss, code=_CODES[loss], count=more))

    def scalar(self, value: Any, path: Path | None, key: Any) -> Value:
        """Return Lua's scalar: text as bytes, an integer as a number or text, anything else as it is.

        Args:
            value: the scalar.
            path: of what contains it, for notes.
            key: its key there.
        """
        if type(value) is str:
            # Python's text may have lone surrogates, which UTF-8 does not allow.
            return value.encode("utf-8", "surrogatepass")
        if type(value) is int:
            return self._integer(value, path, key)
        return value

    def _integer(self, value: int, path: Path | None, key: Any) -> float | bytes:
        """Return an integer as the nearest double or, beyond doubles, as text; with a note if it is not exact.

        Raises:
            UnsupportedError: it has thousands of digits, which Python refuses to write as text.
        """
        try:
            number = float(value)
        except OverflowError:
            message = "an integer beyond Lua's numbers is written as text"
            self._note("info", Path(path, key), message, loss="precision")
            try:
                return str(value).encode()
            except ValueError as error:
                raise UnsupportedError("an integer has too many digits", path=str(Path(path, key))) from error
        if number != value:
            message = f"the integer {value} is the nearest Lua number, {number:.17g}"
            about = "an integer beyond 2^53 is the nearest Lua number"
            self._note("info", Path(path, key), message, about, loss="precision")
        return number

    def make(self, value: Any, path: Path) -> Any:
        """Return what a value that is not a scalar is in Lua, or a `Fill` for a table, whose content is still Python's.

        Args:
            value: of the Python side.
            path: of it, for notes and errors.

        Raises:
            UnsupportedError: Lua has nothing for a value of this type.
        """
        if isinstance(value, dict):
            if self._restores_objects and "__class__" in value:
                lua_object = self._object(value, path)
                if lua_object is not None:
                    return lua_object
            return self._table_of_dict(value, path)
        if isinstance(value, (list, tuple)):
            return self._table_of_list(value)
        if isinstance(value, (set, frozenset)):
            return self._table_of_list(in_order(value, self._hashes_of_parts))
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, UntypedStorage):
            return self._lua_storage(value.storage).storage
        if isinstance(value, Storage):
            return self._lua_storage(value).storage
        if isinstance(value, complex):
            return Table.of({"re": value.real, "im": value.imag})
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, (QuantizedTensor, SparseTensor)):
            return self._table_of_parts(value, path)
        if isinstance(value, (NumpyArray, NumpyScalar)):
            return self._numpy_value(value, path)
        if isinstance(value, NAMED):
            return self.scalar(name_text(value), path=None, key=None)  # text has no notes, so no path is needed
        if isinstance(value, PythonObject):
            return self._python_object(value, path)
        if isinstance(value, COMPOSITE):  # it is Lua's already
            return value
        kind = type(value).__name__
        raise UnsupportedError(f"a value of type {kind} cannot be written to a .t7", path=str(path))

    def _table_of_parts(self, value: QuantizedTensor | SparseTensor, path: Path) -> Fill:
        """Return a table to be filled with the parts of a quantized or sparse tensor: values, scales, indices, ….

        Args:
            value: the tensor.
            path: of it, for notes.
        """
        parts = parts_of(value)
        if isinstance(value, QuantizedTensor):
            element = value.tensor.element.name
            has_elements = value.tensor.storage is not None
            if element in PACKED and has_elements:
                self._note("info", path, f"{element} is written as its bytes, each with several numbers", loss="type")
            if value.axis is not None:
                parts["axis"] = value.axis + 1  # dimensions count from 1 in Lua
        return self._table_of_dict(parts, path)

    # Containers

    def _table_of_list(self, items: list[Any] | tuple[Any, ...]) -> Fill:
        """Return a table to be filled with the items of a list but None, under the numbers from 1 that they have."""
        keys_from_1 = numbers(len(items))
        if None not in items:
            return _fill_table(Table(keys_from_1), range(len(items)), items)
        # A table has no entry for nil, so a list with None has holes.
        places = [place for place, item in enumerate(items) if item is not None]
        self.tree.nones += len(items) - len(places)
        lua_keys = [keys_from_1[place] for place in places]
        return _fill_table(Table(lua_keys), places, [items[place] for place in places])

    def _table_of_dict(self, value: dict[Any, Any], path: Path) -> Fill:
        """Return a table to be filled with the entries of a dict; with `nested`, in tables for keys with dots."""
        if not self._splits_keys or not any(isinstance(key, str) and "." in key for key in value):
            return self._table_of_entries(value, path)
        nested = _split_keys(value)
        if nested is not None:
            return self._table_of_entries(nested, path)
        self._note(
            "info",
            path,
            f"the keys are not nested, as one of them is a prefix of another, or has {_MOST_STEPS} dots or more",
        )
        return self._table_of_entries(value, path)

    def _object(self, value: dict[Any, Any], path: Path) -> Fill | None:
        """Return the object or table, to be filled, of which `as_tree` made a dict; `None` if it is another dict.

        `as_tree` makes these dicts, of which any file may have similar ones:

        - of a table whose keys a dict cannot have: `__class__` is "table", and `pairs` a list of [key, value];
        - of a `tds.Vec`: `__class__`, `__version__` and the list `items`;
        - of a `tds.Hash` or an object: `__class__`, `__version__` and the entries.

        Args:
            value: a dict with the key `__class__`.
            path: of it.
        """
        name = value["__class__"]
        if name == "table" and value.keys() == {"__class__", "pairs"}:
            pairs = value["pairs"]
            return _table_of_pairs(pairs) if _are_pairs(pairs) else None
        # A version of `None` is that of a file without versions; a dict without the key is no object.
        has_version = "__version__" in value and isinstance(value["__version__"], (int, type(None)))
        # What a class wrote beside its fields is not in a form that can be written again.
        if not isinstance(name, str) or not has_version or "__payload__" in value:
            return None
        version = value["__version__"]
        if name in _VECTOR_CLASSES:
            if value.keys() != {"__class__", "__version__", "items"} or not isinstance(value["items"], list):
                return None  # a vector could not hold all of it
            vector = TdsVec(lua_class=name, version=version)
            elements = fill_list(value["items"])
            vector.elements = elements.value
            return Fill(vector, elements.parts)
        fields = {key: item for key, item in value.items() if key not in ("__class__", "__version__")}
        table = self._table_of_entries(fields, path)
        if name in _HASH_CLASSES:
            return Fill(TdsHash(table.value, name, version), table.parts)
        return Fill(TorchObject(name, version, table.value), table.parts)

    def _table_of_entries(self, value: dict[Any, Any], path: Path) -> Fill:
        """Return a table to be filled with the entries of a dict that Lua can hold: no None, and each key once.

        Args:
            value: the dict; its keys become Lua's here, its items when the table is filled.
            path: of the dict, for notes.
        """
        table = Table()  # has the keys so far, by which Lua's equal ones are found; the values follow at the end
        keys: list[Any] = []
        values: list[Any] = []
        for key, item in value.items():
            if item is None:
                self.tree.nones += 1
                continue
            lua_key = self._lua_key(key, path)
            if lua_key in table:
                message = "a key that equals another one in Lua is left out; the record keeps it"
                self._note("warning", Path(path, key), message, loss="type")
                continue
            table[lua_key] = None
            keys.append(key)
            values.append(item)
        return _fill_table(table, keys, values)

    def _lua_key(self, key: Any, path: Path) -> Value:
        """Return the Lua key of an entry: the key itself where Lua can look it up, or its text.

        Args:
            key: of a dict.
            path: of the dict, for notes.
        """
        if _is_refused_as_key(key):
            self._note("info", Path(path, key), f"the key {key} is text in Lua", loss="type")
            return str(key).encode()
        if type(key) in SCALARS:
            return self.scalar(key, path, key)
        if isinstance(key, Tensor):
            # Lua looks tensors up by identity: one that is a value, too, is the same object. The results of `Rebuilder`
            # are kept by identity, for which the originals have to stay alive.
            self._alive.append(key)
            if id(key) not in self.results:
                self.results[id(key)] = self._tensor(key, Path(path, key))
            return self.results[id(key)]
        if isinstance(key, NAMED):
            return self.scalar(name_text(key), path=None, key=None)
        self._note("info", Path(path, key), "a key that Lua cannot look up is written as its text", loss="type")
        return self.scalar(key_text(key), path=None, key=None)

    def _python_object(self, value: PythonObject, path: Path) -> Fill:
        """Return a table to be filled with the class and content of an object; a note says that it is one."""
        message = f"an object of class {value.path} is written as a table of its content"
        self._note("warning", path, message, loss="type")
        return self._table_of_entries(plain_data(value), path)

    # Tensors

    def _lua_storage(self, original: Storage) -> LuaStorage:
        """Return what a storage is in Lua; the same each time."""
        if id(original) not in self.tree.storages:
            storage, elements_per_original, is_exact = widen(original)
            device = self._device(original.device)
            if storage.device != device:
                storage = evolve(storage, device=device)
            self.tree.storages[id(original)] = LuaStorage(original, storage, elements_per_original, is_exact)
        return self.tree.storages[id(original)]

    def _device(self, name: str) -> str:
        """Return the Lua device of a tensor: Lua's classes know the CPU and CUDA."""
        return name if self._keep_device and name.startswith("cuda") else "cpu"

    def _tensor(self, tensor: Tensor, path: Path) -> Tensor:
        """Return the Lua tensor of a tensor, a view of the Lua storage; notes say what Lua has differently.

        Args:
            tensor: of the Python side.
            path: of it, for notes.
        """
        device = self._device(tensor.device)
        original = self._storage_as_read(tensor, path)
        if original is None:  # without elements, as on the device `meta`
            return Tensor(tensor.element, None, device=device)
        if original.base is not None:
            message = "memory that is seen as two types, or in part, is two storages in Lua"
            self._note("info", path, message, loss="sharing")
        lua_storage = self._lua_storage(original)
        storage = lua_storage.storage
        self._note_other_type(tensor.element.name, storage.element.name, path)
        if 0 in tensor.size:
            if len(tensor.size) > 1:
                self._note("info", path, "a tensor without elements has no dimensions in Lua", loss="type")
            return Tensor(storage.element, storage, device=device)
        are_complex = lua_storage.elements_per_original == 2
        view = pairs_of_numbers(tensor) if are_complex else tensor
        # Lua has no tensors without dimensions.
        size = (1,) if view.is_scalar else view.size
        stride = (1,) if view.is_scalar else view.stride
        return Tensor(storage.element, storage, size, stride, view.offset, device=device)

    def _note_other_type(self, name: str, lua_name: str, path: Path) -> None:
        """Note that a tensor's elements have another type in Lua, if they have.

        Args:
            name: of the type of its elements.
            lua_name: of the type of those of its Lua storage, which is wide enough for all of them.
            path: of the tensor.
        """
        if name == "uint64" and lua_name == "float64":
            message = "uint64 is written as float64, as a number is beyond int64: exact to 2^53"
            self._note("warning", path, message, loss="precision")
        elif name != lua_name:
            self._note("info", path, f"{name} is written as {lua_name}", loss="type")

    def _storage_as_read(self, tensor: Tensor, path: Path) -> Storage | None:
        """Return the storage of a tensor, conjugated and negated if the tensor is; note what else it has of Python.

        Args:
            tensor: of the Python side.
            path: of it, for notes.

        Returns:
            `None` for a tensor without elements.
        """
        storage = tensor.storage
        extras = tensor.extras
        if extras is None:
            return storage
        if storage is not None and (extras.conj or extras.neg):
            self._note("info", path, "a conjugated or negated view has memory of its own in Lua", loss="sharing")
            storage = self._storage_of_view(storage, extras.conj, extras.neg)
        if extras.state is not UNSET or extras.hooks is not None or extras.subclass is not None:
            message = "a tensor's Python attributes, hooks and class are not in the Lua value"
            self._note("warning", path, message, loss="type")
        return storage

    def _storage_of_view(self, storage: Storage, conj: bool, neg: bool) -> Storage:
        """Return a storage with the elements that conjugated or negated views of it have; one for all such views.

        Args:
            storage: the storage.
            conj: whether the views are conjugated.
            neg: whether they are negated.
        """
        key = (id(storage), conj, neg)
        if key not in self._resolved:
            self._resolved[key] = resolved(storage, conj, neg)
        return self._resolved[key]

    def _numpy_value(self, value: NumpyArray | NumpyScalar, path: Path) -> Any:
        """Return the Lua value of a numpy array or scalar; of elements that only numpy has their bytes.

        `None` for a scalar of objects, which numpy does not load either: it has no bytes.

        Args:
            value: the array or scalar.
            path: of it, for notes.
        """
        content = numpy_content(value, str(path))
        if isinstance(value.data, list):
            self._note("info", path, "a numpy array of objects is a table in Lua, without its shape", loss="type")
        if content is None:
            code = value.dtype.code[:_MOST_LETTERS_OF_CODE]
            self._note("warning", path, f"numpy elements of type {code} are bytes in Lua", loss="type")
            return value.data if isinstance(value.data, bytes) else None
        if type(content) in SCALARS:
            return self.scalar(content, path.parent, path.key)  # which notes the path of a key in a container
        return self.make(content, path)


_VECTOR_CLASSES = ("tds.Vec",)
_HASH_CLASSES = ("tds.Hash", "tds_hash")
"""The names in a `.t7` of the collections of the package tds."""


def _is_refused_as_key(key: Any) -> bool:
    """Return whether no table of Lua has a key: nil, or a NaN."""
    return key is None or (isinstance(key, float) and key != key)


def _are_pairs(pairs: Any) -> bool:
    """Return whether a value is a list of lists of a key and a value that a table can have."""
    if not isinstance(pairs, list):
        return False
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            return False
        key, item = pair
        if item is None or _is_refused_as_key(key):
            return False
    return True


def _table_of_pairs(pairs: list[list[Any]]) -> Fill:
    """Return a table to be filled from a list of its keys and values, both of which are converted."""
    table = Table()
    table.raw_keys = [None] * len(pairs)
    table.raw_values = [None] * len(pairs)
    # As of `Fill`: the list and the place in it, the key for paths, and the value.
    parts: list[tuple[Any, Any, Any, Any]] = []
    for number, (key, item) in enumerate(pairs):
        parts.append((table.raw_keys, number, number, key))
        parts.append((table.raw_values, number, number, item))
    return Fill(table, parts)


def _fill_table(table: Table, keys: Iterable[Any], values: Sequence[Any]) -> Fill:
    """Return a table that has its keys already, to be filled with Lua's forms of values.

    Args:
        table: has a key for each value; what values it has are dropped.
        keys: those of the values in Python, for paths; in the same order.
        values: the values in Python, in the same order.
    """
    table.raw_values = [None] * len(values)
    return Fill(table, zip(repeat(table.raw_values), range(len(values)), keys, values))


def _split_keys(value: dict[Any, Any]) -> dict[Any, Any] | None:
    """Split keys: `{"a.b": 1}` becomes `{"a": {"b": 1}}`.

    Returns:
        `None` if a key is a prefix of another, or has more than `_MOST_STEPS` steps.
    """
    result: dict[Any, Any] = {}
    for key, item in value.items():
        steps = key.split(".") if isinstance(key, str) else [key]
        if len(steps) > _MOST_STEPS:
            return None
        *outer_steps, last_step = steps
        inner = result
        for step in outer_steps:
            inner = inner.setdefault(step, _SplitDict())
            if not isinstance(inner, _SplitDict):  # another key is this prefix
                return None
        if last_step in inner:
            return None
        inner[last_step] = item
    return result


class _SplitDict(dict[Any, Any]):
    """A dict created by splitting keys; a dict of the value itself may not be added to."""


def note_nones(tree: LuaTree, report: Report) -> None:
    """Note that a table has no entry for None, where no record restores it."""
    if tree.nones:
        message = f"None is no entry of a Lua table: {tree.nones} are left out, which a record would restore"
        report.note("info", message, loss="type", code="left-out", count=tree.nones)


def to_lua(
    value: Any,
    *,
    nested: bool = False,
    keep_device: bool = False,
    objects: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> LuaTree:
    """Convert a Python-side value; see the module's docstring.

    Args:
        value: the result of `PtReader.read`.
        nested: whether keys with dots become tables in tables: `t.conv1.weight` instead of `t["conv1.weight"]`.
        keep_device: whether tensors on a CUDA device are `torch.CudaTensor`s and the like.
        objects: whether dicts that `as_tree` made of objects become these again; functions, and objects with more than
            fields, do not.
        limits: bound how often shared modules are repeated.

    Raises:
        LimitError: modules are repeated too often.
    """
    notes_on_modules: list[Note] = []
    if has_modules(value):
        report = Report(source_format="pt", target_format="t7")
        from .simplified import simplified  # which imports the table of layers: other values do not need it

        value = simplified(value, report, limits, unnamed_data=WRAPPED)
        notes_on_modules = report.notes
    builder = _Builder(nested, keep_device, objects)
    tree = builder.tree
    tree.value = builder.run(value)
    builder.count_further_notes()
    tree.notes = [*notes_on_modules, *tree.notes]
    return tree
