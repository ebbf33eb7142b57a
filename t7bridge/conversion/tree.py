"""Lua values as Python-side values: the content of a `.pt` made from a `.t7` in `tree` mode.

| Lua | Python |
| --- | --- |
| number | int where integral and exact, else float |
| string | str where valid UTF-8, else bytes |
| table with the keys 1 to n | list |
| other table | dict |
| table whose keys cannot be those of a dict | `{"__class__": "table", "pairs": [[key, value], …]}` |
| Torch object | dict of `__class__`, `__version__` and its fields, or their `pairs` |
| function | `{"__class__": "function", "code": bytes, "upvalues": […]}` |
| tensor, storage | the same; a PyTorch storage for a storage outside of tensors |

`to_python` and `to_torch` convert the other values of a `.pt`, too, to numpy's arrays and PyTorch's tensors:

| value | plain |
| --- | --- |
| tensor, storage, untyped storage | array (`to_python`), tensor (`to_torch`); a storage has one dimension |
| numpy array, numpy scalar | array; Python's number or text. An array of objects is lists of its shape |
| sparse, quantized tensor | dict of `__class__` and its parts, in which tensors are converted |
| `torch.Size` | tuple, or `torch.Size` |
| dtype, device, layout | its name, or torch's own |
| class or function | its name |
| object of a class | dict of `__class__` and its attributes, or `__args__`, `__state__`, `__items__`, `__pairs__` |
| defaultdict, `OrderedDict` | dict, `OrderedDict` |

Identity is preserved: shared objects stay shared, and cycles stay cycles. Keys of dicts are unchanged.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from attrs import evolve, field

from ..data import define
from ..errors import UnsupportedError
from ..formats.pt.arrays import numpy_value, object_items
from ..formats.pt.pickle.reductions import plain_data
from ..graph import python
from ..graph.lua import COMPOSITE, LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.python import NAMED, name_text
from ..graph.storage import Storage, storage_array
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor, UntypedStorage, tensor_of_storage, torch_tensor
from ..graph.walk import SCALARS, Fill, Path, Rebuilder, entries, fill_dict, fill_list
from ..values.widened import parts_of

_EXACT_INTEGERS = 2.0**53
"""A larger double need not be the only one for its integer."""


@define(eq=False)
class Replacement:
    """The state dict that replaces an nn module, and the module's other data, which are placed next to it.

    Attributes:
        value: the state dict; a `Fill` where its content is still to be converted.
        data: by name, values that go into the dict that holds the module, under `<its key>.<name>`.
        is_data_placed: whether they are in the result, but for those of `unfit_names`; set by `Tree.put`.
        unfit_names: the names of those that cannot be text in metadata, where that is their place; see `fits_metadata`.
            Set by `Tree.put`, too.
    """

    value: Any
    data: dict[str, Any] = field(factory=dict)
    is_data_placed: bool = False
    unfit_names: set[str] = field(factory=set)


Replace = Callable[[TorchObject], Any]
"""Returns the replacement of an object: a `Replacement` where it has other data; `None` to use its fields."""


def python_scalar(value: Value) -> Any:
    """Return a Lua scalar as the equal Python value: a whole number as an integer, bytes as text if they are UTF-8."""
    if type(value) is float:
        # Python's int has no -0.
        is_negative_zero = value == 0 and str(value) == "-0.0"
        if value.is_integer() and abs(value) <= _EXACT_INTEGERS and not is_negative_zero:
            return int(value)
        return value
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


DROPPED, MERGED, WRAPPED = "", "merged", "wrapped"
"""Places of the data of a module that no key names, as at the root or in a list: nowhere; in its state dict, as
`OwnData`; or in a dict around it, `{state_dict, …}`."""
_MOST_NUMBERS = 1_000
"""Maximum elements of a tensor that is text in metadata."""


@define(eq=False, frozen=True)
class OwnData:
    """Data of a module itself in its state dict, for formats of named tensors: not a weight, but text in the metadata.

    `load_state_dict` of PyTorch, which is called with all tensors of such a file, would not know them.

    Attributes:
        value: of the Python side.
    """

    value: Any


def fits_metadata(value: Any) -> bool:
    """Return whether data of a module can be text in metadata: its tensors and arrays are small, and of real numbers.

    Args:
        value: Lua's or Python's, with everything in it.
    """
    visited: set[int] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if type(item) in SCALARS or id(item) in visited:
            continue
        visited.add(id(item))
        if isinstance(item, _ARRAYS):
            if not _is_small_and_real(item):
                return False
            if isinstance(item, python.NumpyArray) and isinstance(item.data, list):  # an array of objects
                stack += item.data
        elif isinstance(item, (set, frozenset)):
            stack += item
        else:  # containers and objects; other values have no entries
            stack += [inner for _, inner in entries(item)]
    return True


_ARRAYS = (Tensor, Storage, python.NumpyArray, QuantizedTensor, SparseTensor, UntypedStorage)


def _is_small_and_real(array: Any) -> bool:
    """Return whether a tensor, storage or array of numpy has few elements, and these are real numbers or objects.

    Quantized and sparse tensors and untyped storages have not.
    """
    if isinstance(array, Tensor):
        has_elements = array.storage is not None or not array.numel
        return has_elements and array.numel <= _MOST_NUMBERS and not array.element.name.startswith("complex")
    if isinstance(array, Storage):
        return array.count <= _MOST_NUMBERS and not array.element.name.startswith("complex")
    if isinstance(array, python.NumpyArray):
        return math.prod(array.shape) <= _MOST_NUMBERS and not array.dtype.code.startswith("c")
    return False


class Tree(Rebuilder):
    """Builds the Python side; lists and dicts are created before their content.

    Args:
        replace: as for `as_tree`.
        unnamed_data: place of the data of a module that no key names: `DROPPED`, `MERGED` or `WRAPPED`.
    """

    has_paths = False

    def __init__(self, replace: Replace | None = None, unnamed_data: str = DROPPED) -> None:
        super().__init__()
        self._replace = replace
        self._unnamed_data = unnamed_data
        self._replacements: dict[int, Replacement] = {}
        """The replacements that have data to place, by the identity of the object replaced."""
        self._merged: set[int] = set()
        """The objects whose data are in the state dict itself, by identity."""
        self._wrappers: dict[int, dict[str, Any]] = {}
        """The dict around the state dict and the data of an object, `{state_dict, …}`, by identity."""

    def scalar(self, value: Any, path: Path | None, key: Any) -> Any:
        """Return Lua's scalar as Python's, wherever it is: whole numbers as integers, text as `str` if it is UTF-8."""
        return python_scalar(value)

    def put(self, target: Any, place: Any, result: Any, value: Any) -> None:
        """Put what a value became at its place, and the data of a module next to its state dict.

        Under the key `net` of a dict, data `names` are beside it, as `net.names`. At the root, in lists and under keys
        that are no text, `unnamed_data` says whether they are merged into the state dict, in a dict around it, or
        dropped.

        Args:
            target: the list or dict that receives the result.
            place: the index or key there.
            result: what the value became.
            value: the value; a module occurs at several places if it is shared.
        """
        target[place] = result
        replacement = self._replacements.get(id(value)) if self._replacements else None
        if replacement is None:
            return
        # What an earlier place of the module has put into the result is not repeated in the state dict or around it;
        # beside the state dict it is, under the name of each place.
        if isinstance(target, dict) and isinstance(place, str):
            if id(value) not in self._merged:
                self._add_data(target, f"{place}.", replacement)
        elif self._unnamed_data == MERGED:
            if not replacement.is_data_placed:
                self._merged.add(id(value))
                self._add_data(result, "", replacement)
        elif self._unnamed_data == WRAPPED:
            if id(value) not in self._wrappers:
                wrapper = {"state_dict": result}
                self._wrappers[id(value)] = wrapper
                self._add_data(wrapper, "", replacement)
            target[place] = self._wrappers[id(value)]

    def _add_data(self, target: dict[Any, Any], prefix: str, replacement: Replacement) -> None:
        """Convert the data of a module and add them to a dict, as `name~2` where the key `name` is taken.

        Args:
            target: the dict.
            prefix: of the keys: that of the module with a dot, or nothing.
            replacement: of the module; its `is_data_placed` and `unfit_names` are set.
        """
        replacement.is_data_placed = True
        is_for_metadata = self._unnamed_data == MERGED  # asked for by formats of named tensors only
        for name, item in replacement.data.items():
            if is_for_metadata and not fits_metadata(item):
                replacement.unfit_names.add(name)  # `Coverage` notes it
                continue
            wanted = prefix + name
            key = wanted
            number = 2
            while key in target:
                key = f"{wanted}~{number}"
                number += 1
            converted = self.run(item)
            target[key] = OwnData(converted) if is_for_metadata else converted

    def replacement_value(self, value: Any, replacement: Any) -> Any:
        """Return what takes the place of an object in the result, a `Fill` if its content is still to be converted.

        Args:
            value: the object.
            replacement: what takes its place; or a `Replacement` with it, whose data are remembered for `put`.
        """
        if not isinstance(replacement, Replacement):
            return replacement
        if replacement.data:
            self._replacements[id(value)] = replacement
        state_dict = replacement.value
        if isinstance(state_dict, Fill):
            # The caller fills the dict, `Rebuilder`; `StateDicts.states` needs the dict itself, which is in the result.
            replacement.value = state_dict.value
        return state_dict

    def make(self, value: Value, path: Path) -> Any:
        """Return the list or dict that a value of Lua becomes, to be filled; a tensor or storage as it is.

        A Torch object becomes its replacement, if `replace` returns one.
        """
        if isinstance(value, Table):
            items = value.sequence()  # `None` if the keys are not 1 to n
            return self._dict({}, value) if items is None else fill_list(items)
        if isinstance(value, TorchObject):
            replacement = self._replace(value) if self._replace is not None else None
            if replacement is not None:
                return self.replacement_value(value, replacement)
            return self._object(value)
        if isinstance(value, LuaFunction):
            upvalues = [entry.value for entry in value.upvalue_list()]
            return _list_in({"__class__": "function", "code": value.code}, "upvalues", upvalues)
        if isinstance(value, (TdsHash, TdsVec)):
            class_and_version = {"__class__": value.lua_class, "__version__": value.version}
            if isinstance(value, TdsVec):
                return _list_in(class_and_version, "items", value.elements)
            return self._dict(class_and_version, value.content)
        if isinstance(value, (Tensor, Storage)):
            return value
        raise TypeError(f"{type(value).__name__} is not a Lua value")

    def _object(self, value: TorchObject) -> Fill:
        """Return a dict with the class of an object, to be filled with its fields, and its payload if it has one."""
        result: dict[str, Any] = {"__class__": value.class_name, "__version__": value.version}
        table = value.fields or Table()
        if value.payload is None:
            return self._dict(result, table)
        payload = fill_dict(result, ["__payload__"], [value.payload])
        # The dict has the key of the payload now: fields of which one has this name become a list of pairs.
        fields = self._dict(result, table)
        return Fill(result, chain(payload.parts, fields.parts))

    def _dict(self, result: dict[Any, Any], table: Table) -> Fill:
        """Return a dict to be filled with a table's entries: under its keys, or as a list of pairs under `pairs`.

        Args:
            result: the dict, which has the class of an object already; empty for a table.
            table: the entries.
        """
        keys = [python_scalar(key) for key in table.raw_keys]
        is_object = bool(result)
        if _can_be_dict_keys(keys, set(result)) and not (is_object and _are_keys_of_another_form(keys)):
            return fill_dict(result, keys, table.raw_values)
        # Without a class, the dict with the pairs would be taken for a table with this key.
        result.setdefault("__class__", "table")
        pairs: list[Value] = [Table.from_list([key, value]) for key, value in table.raw_items()]
        return _list_in(result, "pairs", pairs)


def _can_be_dict_keys(keys: list[Any], other_keys: set[Any]) -> bool:
    """Return whether the keys of a Lua table can be keys of one Python dict, together with its other keys.

    Keys that differ in Lua may be one in Python: 1 and True are.

    Args:
        keys: of the table, its scalars as Python's.
        other_keys: those that the dict has already, `__class__` of an object for example.
    """
    for key in keys:
        # Tensors and storages are hashed by identity, as in Lua.
        if isinstance(key, COMPOSITE) and not isinstance(key, (Tensor, Storage)):
            return False
    try:
        return len(other_keys.union(keys)) == len(other_keys) + len(keys)
    except TypeError:  # a key cannot be hashed
        return False


def _are_keys_of_another_form(keys: list[Any]) -> bool:
    """Return whether an object with fields of these names would be taken for one with a list of pairs, or a payload.

    A table with the keys of a dict with pairs is one that went through a `.t7`, and keeps its form.
    """
    distinct_keys = set(keys)
    return distinct_keys == {"pairs"} or "__payload__" in distinct_keys


def _list_in(result: dict[Any, Any], key: str, items: list[Value]) -> Fill:
    """Add an empty list to a dict under a key; return the dict, whose list is to be filled from items."""
    inner = fill_list(items)
    result[key] = inner.value
    return Fill(result, inner.parts)


def as_tree(value: Value, replace: Replace | None = None, unnamed_data: str = DROPPED) -> Any:
    """Convert a Lua value; see the module's docstring.

    Args:
        value: the result of `T7Reader.read_object`. Tensors and storages are reused, not copied.
        replace: returns the replacement of a Torch object, or `None` to use its fields.
        unnamed_data: place of the data of a module that no key names: `DROPPED`, `MERGED` or `WRAPPED`.

    Returns:
        Builtins with `Tensor` and `Storage` in them; shared objects are shared, cycles are cycles.
    """
    return Tree(replace, unnamed_data).run(value)


class Plain(Tree):
    """Builds values of builtins and of arrays, or of PyTorch's tensors and constants, from those of a `.t7` or `.pt`.

    Tuples and sets are made after their content, as they cannot be filled. Scalars inside Lua values become Python's;
    those inside Python's containers and objects stay as they are.

    Args:
        torch: whether tensors, sizes and constants become PyTorch's; else arrays of numpy, tuples and text.
        unnamed_data: as for `Tree`.
    """

    def __init__(self, torch: bool, unnamed_data: str = DROPPED) -> None:
        super().__init__(unnamed_data=unnamed_data)
        self._torch = torch
        self._storages: dict[int, Any] = {}
        """The loaded form of each storage, by identity, so that tensors of one storage share memory."""
        self._is_lua = False
        """Whether the value being converted is Lua's."""

    def run(self, root: Value) -> Any:
        """Convert a value and everything in it."""
        self._is_lua = isinstance(root, COMPOSITE) or type(root) in SCALARS
        return super().run(root)

    def scalar(self, value: Any, path: Path | None, key: Any) -> Any:
        """Return Lua's scalar as Python's, wherever it is; a scalar of Python as it is."""
        return python_scalar(value) if self._is_lua else value

    def make(self, value: Value, path: Path) -> Any:
        """Return what a value that is not a scalar becomes, or a `Fill` for a container.

        A value of no class below goes to `constant`, which returns it as it is unless it is one.
        """
        # Subclasses come before their base classes: Counter and OrderedDict are dicts.
        if isinstance(value, (Tensor, Storage)):
            return self._tensor(value)
        if isinstance(value, COMPOSITE):
            return super().make(value, path)
        if isinstance(value, (tuple, set, frozenset)):
            return fill_list(tuple(value), partial(self._completed, value))
        if isinstance(value, list):
            return fill_list(value)
        if isinstance(value, Counter):
            return self.entries(Counter(), value)
        if isinstance(value, dict):
            return self.entries(OrderedDict() if isinstance(value, OrderedDict) else {}, value)
        if isinstance(value, UntypedStorage):
            return self._tensor(value.storage)
        if isinstance(value, (python.NumpyArray, python.NumpyScalar)):
            return self.numpy(value)
        if isinstance(value, SparseTensor):
            sparse_parts = {**parts_of(value), "is_coalesced": value.is_coalesced}
            present = {name: part for name, part in sparse_parts.items() if part is not None}
            return self.entries({"__class__": "torch.sparse"}, present)
        if isinstance(value, QuantizedTensor):
            parts = parts_of(value)
            tensor = parts.pop("values")
            return self.entries({"__class__": "torch.quantized"}, {"tensor": tensor, **parts})
        if isinstance(value, python.PythonObject):
            return self.python_object(value)
        if isinstance(value, bytearray):
            return bytearray(value)
        return self.constant(value)

    def _completed(self, original: Any, parts: list[Any]) -> Any:
        """Return a tuple or set of the original's kind, of its parts, which are converted and filled.

        Args:
            original: the tuple or set before.
            parts: its converted items, in the same order.
        """
        if isinstance(original, (set, frozenset)):
            kind = frozenset if isinstance(original, frozenset) else set
            try:
                return kind(parts)
            except TypeError:
                # An item has become a list or dict, which cannot be hashed: the items stay as they were.
                return kind(original)
        if isinstance(original, python.TorchSize) and self._torch:
            import torch

            return torch.Size(parts)
        return tuple(parts)

    def _tensor(self, value: Tensor | Storage) -> Any:
        """Return a tensor, or a storage as one of one dimension, as an array or a PyTorch tensor.

        Tensors of one storage share memory, as they do in the file.
        """
        tensor = value if isinstance(value, Tensor) else tensor_of_storage(value)
        if self._torch:
            return torch_tensor(tensor, self._storages)
        storage = tensor.storage
        if storage is None:
            return tensor.numpy()
        if id(storage) not in self._storages:
            loaded = storage_array(storage)
            self._storages[id(storage)] = evolve(storage, data=loaded)
        return evolve(tensor, storage=self._storages[id(storage)]).numpy()

    def entries(self, result: dict[Any, Any], entries: dict[Any, Any]) -> Fill:
        """Return a dict, `result`, to be filled with converted entries."""
        return fill_dict(result, entries, entries.values())

    def python_object(self, value: python.PythonObject) -> Any:
        """Return an object of any class as a dict of its class and content."""
        return self.entries({}, plain_data(value))

    def numpy(self, value: python.NumpyArray | python.NumpyScalar) -> Any:
        """Return a numpy array, a list for an array of objects, or Python's number or text for a scalar."""
        array = value.array if isinstance(value, python.NumpyScalar) else value
        if isinstance(array.data, list):  # of objects, which may have tensors in them
            return fill_list(object_items(array))
        numpy_array = numpy_value(array)
        return numpy_array.item() if isinstance(value, python.NumpyScalar) else numpy_array

    def constant(self, value: Any) -> Any:
        """Return a device, dtype or other constant, a class or a function: torch's own value, or its name as text.

        Returns:
            The value itself if it is none of these.

        Raises:
            UnsupportedError: the installed PyTorch has no such device.
        """
        if not isinstance(value, NAMED):
            return value
        if self._torch and isinstance(value, python.Device):
            import torch

            try:
                return torch.device(str(value))
            except RuntimeError as error:
                raise UnsupportedError(f"this release of PyTorch has no device {value!s:.40}") from error
        if self._torch and isinstance(value, python.TorchConstant):
            import torch

            # One that the installed PyTorch does not have is its name, as for `to_python`.
            return getattr(torch, value.name, name_text(value))
        return name_text(value)


def to_python(value: Value) -> Any:
    """Convert a value to builtins and numpy arrays; the module's docstring has the table.

    Args:
        value: the result of `load` or a reader, or a part of it.

    Returns:
        Shared objects are shared, cycles are cycles, and arrays of one storage share memory. They can be written to
        without changing the file, unless it is mapped.

    Raises:
        UnsupportedError: numpy has no arrays of a tensor's type (bfloat16 and float8 need `ml_dtypes`).
    """
    return Plain(torch=False).run(value)


def to_torch(value: Value) -> Any:
    """Convert a value to builtins and PyTorch tensors; the module's docstring has the table.

    Args:
        value: the result of `load` or a reader, or a part of it.

    Returns:
        As `to_python`; tensors of one storage share memory, with the strides of the file, and can be written to without
        changing the file.

    Raises:
        ImportError: PyTorch is not installed.
    """
    return Plain(torch=True).run(value)
