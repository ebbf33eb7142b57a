"""Comparison of two graphs: values, types, order, identity, sharing and views; or by content, with no recursion.

Linear in the size of the graphs, whatever is shared, cyclic or chosen to collide in a dict: a pair of values is
compared once, scalar keys are looked up by their text, and the extra cost of pairs of shared values is charged to
`Limits.work`. By content, tensors are compared by element, whatever their storages and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from math import inf, prod
from typing import Any

from attrs import evolve, field, fields, has

from ..data import define, np
from ..graph.dtypes import PACKED
from ..graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value, class_of
from ..graph.python import in_order
from ..graph.storage import CHUNK_BYTES, Span, Storage, array_chunks
from ..graph.tensor import Tensor, blocks, rows, tensor_of_storage
from ..graph.walk import SCALARS, KeyStep, Path, pairwise
from ..limits import BYTES_PER_STEP, DEFAULT_LIMITS, Budget, Limits
from ..text import Holder, Step, one_line, printable
from .widened import widen

_SETS = (set, frozenset)
_IDENTITIES = (Holder, dict, list, tuple, *_SETS)
_SCALAR_KEYS = (bytes, str, float, int, bool, type(None), complex)
_SCALARS = SCALARS | {complex}
_LONG = 1000
"""Length from which on a pair of strings is compared only once."""
_SHOWN_LETTERS = 200
"""Characters of a value that a message shows."""
Pairs = Iterable[tuple[Any, Value, Value]]
"""Keys or steps of a path, and the values of both sides there."""


Homes = Mapping[int, tuple[Any, str]]
"""Objects by identity, each with its home: the path that it is known by."""
_BYTES_READ_PER_ALLOCATED = 16
"""Bytes that are only read cost as much of the budget as one that is allocated."""
_STEPS_TO_HOME = 20
"""Most steps from a difference to the layer that it is in: a layer's own tables are not deeper."""
_LONGEST_PATH = 160
"""Characters of a path in a line; of a longer one the end is shown."""


@define(frozen=True)
class Difference:
    """A difference between two files at one path.

    Attributes:
        path: `root.modules[3].weight`.
        message: what differs, the first graph's side first.
        layer: the layer that it is in, as `inspect` lists it, `3.0`; empty outside of layers.
        class_name: of this layer.
        name: of the value by that layer, `3.0.weight`; empty outside of layers.
        only: `first` or `second` where the other file has nothing at the path; else empty.
    """

    path: str
    message: str
    layer: str = field(default="", kw_only=True)
    class_name: str = field(default="", kw_only=True)
    name: str = field(default="", kw_only=True)
    only: str = field(default="", kw_only=True)

    def __str__(self) -> str:
        if self.name:
            return printable(f"{self.name} ({self.class_name}): {self.message}")
        path = self.path if len(self.path) <= _LONGEST_PATH else f"…{self.path[1 - _LONGEST_PATH :]}"
        return printable(f"{path}: {self.message}")

    def __repr__(self) -> str:
        return one_line(self, str(self))


@define(frozen=True)
class TensorDifference(Difference):
    """Difference of the elements of two tensors of one shape.

    Attributes:
        elements: number of elements.
        differing: number of them that differ by more than the tolerance.
        largest: the largest difference; infinite where one of the two is NaN or infinite.
        index: position of the largest difference, 0-based.
    """

    elements: int = 0
    differing: int = 0
    largest: float = 0.0
    index: tuple[int, ...] = ()


@define(eq=False)
class Comparer:
    """Compares two graphs, walking both side by side. Objects paired once must be paired wherever they occur again.

    Attributes:
        devices: whether the devices named by tensors must be equal too.
        limits: resource limits.
        elements: whether elements are compared, not only types and shapes.
        text: whether one of the two was text, which has one NaN only.
        equal_storages: pairs of storages, by identity, with the same elements by construction.
        homes: returns the objects of the first graph that have a home, by identity, each with its home: the path that
            differences inside it begin with. A layer of a graph is reached by way of nodes first, but is known by its
            place in the model.
        differences: the differences, in walk order.
        compared: number of pairs of values visited.
    """

    devices: bool = False
    limits: Limits = DEFAULT_LIMITS
    elements: bool = True
    text: bool = False
    equal_storages: set[tuple[int, int]] = field(factory=set)
    homes: Callable[[], Homes] = dict
    differences: list[Difference] = field(factory=list)
    compared: int = 0
    # Objects that have an identity in a file, by their identity here.
    _second_of_first: dict[int, int] = field(factory=dict)
    """The second file's object with which each of the first was paired."""
    _first_of_second: dict[int, int] = field(factory=dict)
    """The other way round."""
    # Values that have none in a file, such as tuples and long strings, by their identity here.
    _compared_first: dict[int, int] = field(factory=dict)
    """The value of the second file with which each of the first was compared first."""
    _compared_second: set[int] = field(factory=set)
    """The values of the second file that were compared."""
    _further_pairs: set[tuple[int, int]] = field(factory=set)
    """The pairs that were compared besides those of `_compared_first`."""
    _marks: dict[int, bytes] = field(factory=dict)
    """Of the items of sets, see `in_order`."""
    _budget: Budget = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._budget = Budget(self.limits, "comparing the values")

    def run(self, a: Value, b: Value) -> list[Difference]:
        """Compare two values and return the differences in walk order, after those of earlier runs.

        Raises:
            LimitError: values are shared in so many ways that comparing exceeds the limit `work`.
        """
        pairwise(a, b, self._pair)
        # These are identities of values, which may end now.
        self._second_of_first = {}
        self._first_of_second = {}
        self._compared_first = {}
        self._compared_second = set()
        self._further_pairs = set()
        return self.differences

    @property
    def agreed(self) -> int:
        """Number of equal pairs. A comparison that stops at the root has few differences, but covers almost nothing."""
        return self.compared - len(self.differences)

    def _path_text(self, path: Path) -> str:
        """Return the text of a path, which begins with the home of the closest object around it that has one."""
        homes = self.homes()
        if not homes:
            return str(path)
        keys_inside: list[Any] = []  # the steps from the object to the end of the path, the last one first
        for step in reversed(path.steps(_STEPS_TO_HOME)):
            owner, home = homes.get(id(step.value), (None, ""))
            # An identity may be that of another value by now.
            if owner is not None and owner is step.value:
                path_from_home = Path(None, Step(home))
                for key in reversed(keys_inside):
                    path_from_home = Path(path_from_home, key)
                return str(path_from_home)
            keys_inside.append(step.key)
        return str(path)

    def _note_difference(self, path: Path, message: str) -> None:
        """Add a difference at a path."""
        self.differences.append(Difference(self._path_text(path), message))

    def _require_equal(self, path: Path, what: str, a: Any, b: Any) -> None:
        """Add a difference if two properties of the values at a path, called `what`, are not equal."""
        if a != b:
            self._note_difference(path, f"{what} {_repr(a)} against {_repr(b)}")

    def _pair(self, path: Path, a: Value, b: Value) -> Pairs | None:
        """Compare two values; return the pairs inside them that are to be compared next, `None` for none."""
        self.compared += 1
        # The first test decides for most pairs, and is the faster one.
        are_scalars = type(a) in _SCALARS and type(b) in _SCALARS
        if are_scalars or (not _is_object(a) and not _is_object(b)):
            if not self._same_scalar(a, b):
                self._note_difference(path, f"{_short(a)} against {_short(b)}")
            return None
        if type(a) is not type(b):
            self._note_difference(path, f"{_short(a)} against {_short(b)}")
            return None
        # Tuples and frozen sets cannot change: whether two equal ones are one object is chance.
        has_identity = not isinstance(a, (tuple, frozenset))
        is_done = self._visited_before(path, a, b) if has_identity else self._compared_before(a, b)
        if is_done:
            return None
        return self._inside(path, a, b)

    def _compared_before(self, a: Any, b: Any) -> bool:
        """Return whether two values without identity were compared with each other before, and note that they are now.

        The first pair of each value of the first file is in `_compared_first`, the few others in `_further_pairs`. Of
        these, one whose second value was compared, too, is charged to the budget: there may be as many of them as the
        product of the numbers of values.
        """
        first_id = id(a)
        second_id = id(b)
        if first_id not in self._compared_first:
            self._compared_first[first_id] = second_id
        elif self._compared_first[first_id] == second_id or (first_id, second_id) in self._further_pairs:
            return True
        else:
            self._further_pairs.add((first_id, second_id))
            if second_id in self._compared_second:
                self._budget.spend(2 * (1 + _length(a)))  # twice: `b` is as long, or differs at once
        self._compared_second.add(second_id)
        return False

    def _same_scalar(self, a: Value, b: Value) -> bool:
        """Return whether two scalars are equal in type, value and sign: a NaN equals a NaN, 0.0 is not -0.0.

        Long texts that were compared before count as equal, so that a difference is named once.
        """
        if type(a) is not type(b):
            return False
        if isinstance(a, float):
            return bool(a.hex() == b.hex())
        if isinstance(a, complex):
            return (a.real.hex(), a.imag.hex()) == (b.real.hex(), b.imag.hex())
        if isinstance(a, (str, bytes, bytearray)) and len(a) > _LONG and self._compared_before(a, b):
            return True  # the difference was reported at its first path
        return bool(a == b)

    def _visited_before(self, path: Path, a: Value, b: Value) -> bool:
        """Return whether one of two objects was visited before; add a difference if it was not with the other."""
        first_id = id(a)
        second_id = id(b)
        partner_of_first = self._second_of_first.get(first_id)
        partner_of_second = self._first_of_second.get(second_id)
        if partner_of_first is None and partner_of_second is None:
            # Both dicts have the same two number objects: `id` would make others each time, which take memory.
            self._second_of_first[first_id] = second_id
            self._first_of_second[second_id] = first_id
            return False
        if partner_of_first is None or partner_of_second is None:
            self._note_difference(path, "one object in one file is two in the other")
        elif partner_of_first != second_id or partner_of_second != first_id:
            self._note_difference(path, "refers to another object")
        return True

    def _inside(self, path: Path, a: Value, b: Value) -> Pairs:
        """Compare two values of one type by themselves; return the pairs inside them that are to be compared next."""
        if isinstance(a, (Table, dict)):
            return self._entries(path, _items(a), _items(b))
        if isinstance(a, (list, tuple)):
            return self._elements(path, a, b)
        if isinstance(a, _SETS):
            return self._elements(path, in_order(a, self._marks), in_order(b, self._marks))
        if isinstance(a, Tensor):
            return self._tensors(path, a, b)
        if isinstance(a, Storage):
            return self._storages(path, a, b)
        if isinstance(a, TorchObject):
            path.value = a  # for the differences inside it
            self._require_equal(path, "class", (a.class_name, a.version), (b.class_name, b.version))
            # The path of a field does not name the table that holds it.
            return (Step(""), a.fields, b.fields), (Step("<payload>"), a.payload, b.payload)
        if isinstance(a, LuaFunction):
            self._require_equal(path, "bytecode", (a.tag, a.code), (b.tag, b.code))
            return ((Step("<upvalues>"), a.upvalues, b.upvalues),)
        if isinstance(a, (TdsHash, TdsVec)):
            self._require_equal(path, "class", (a.lua_class, a.version), (b.lua_class, b.version))
            if isinstance(a, TdsVec):
                return self._elements(path, a.elements, b.elements, base=1)
            return self._entries(path, _items(a.content), _items(b.content))
        names = [attribute.name for attribute in fields(type(a))]  # an inert Python-side value
        return ((Step(f"<{name}>"), getattr(a, name), getattr(b, name)) for name in names)

    def _elements(self, path: Path, a: Any, b: Any, base: int = 0) -> Pairs:
        """Compare the lengths of two sequences, the first number of whose items is `base`; return pairs of items."""
        self._require_equal(path, "length", len(a), len(b))
        return ((number, x, y) for number, (x, y) in enumerate(zip(a, b), base))

    def _entries(self, path: Path, a: list[tuple[Value, Value]], b: list[tuple[Value, Value]]) -> Pairs:
        """Return pairs of entries of tables and dicts: those with scalar keys by lookup, others in order.

        Entries that one side lacks are differences.
        """
        # The same scalar keys in the same order, as most have.
        if len(a) == len(b) and all(_same_key(key, other_key) for (key, _), (other_key, _) in zip(a, b)):
            return ((key, value, other) for (key, value), (_, other) in zip(a, b))
        first_scalars, first_objects = _by_text(a)
        second_scalars, second_objects = _by_text(b)
        self._note_missing(path, first_scalars, second_scalars, only="first", side="second")
        self._note_missing(path, second_scalars, first_scalars, only="second", side="first")
        self._require_equal(path, "number of keys that are objects", len(first_objects), len(second_objects))
        pairs: list[tuple[Any, Value, Value]] = []
        for text, (key, value) in first_scalars.items():
            if text in second_scalars:
                _, other = second_scalars[text]
                pairs.append((key, value, other))
        for (key, value), (other_key, other) in zip(first_objects, second_objects):
            pairs.append((KeyStep(key), key, other_key))
            pairs.append((key, value, other))
        return pairs

    def _note_missing(self, path: Path, here: dict[Any, Any], there: dict[Any, Any], *, only: str, side: str) -> None:
        """Add a difference for each entry that the other side lacks.

        Args:
            path: of the tables.
            here: entries of one side, by the text of their key.
            there: those of the other side.
            only: `first` or `second`: the side that has the entries.
            side: the other one.
        """
        for text, (key, _) in here.items():
            if text not in there:
                self.compared += 1  # as a pair that differs, so that `agreed` is the number of equal ones
                path_of_entry = self._path_text(Path(path, key))
                self.differences.append(Difference(path_of_entry, f"is missing in the {side}", only=only))

    def _tensors(self, path: Path, a: Tensor, b: Tensor) -> Pairs:
        """Compare two tensors as views; return the pair of their storages, and of further state."""
        self._require_equal(path, "type", a.element.name, b.element.name)
        self._require_equal(path, "shape", a.shape, b.shape)
        if a.numel or b.numel:
            self._require_equal(path, "stride", _steps(a), _steps(b))
            self._require_equal(path, "offset", a.offset, b.offset)
        if self.devices:
            self._require_equal(path, "device", a.device, b.device)
        self._require_equal(path, "requires_grad", a.requires_grad, b.requires_grad)
        self._require_equal(path, "being a parameter", a.is_parameter, b.is_parameter)
        # Lua's tensors without storage have one without elements in PyTorch: these are equal.
        if _count(a) or _count(b):
            yield Step(".storage"), a.storage, b.storage
        yield Step("<extras>"), a.extras, b.extras

    def _storages(self, path: Path, a: Storage, b: Storage) -> Pairs:
        """Compare the elements of two storages, unless these are known to be equal; nothing is inside them."""
        self._require_equal(path, "type", a.element.name, b.element.name)
        self._require_equal(path, "number of elements", a.count, b.count)
        if not self.elements or a.element is not b.element or a.count != b.count:
            return ()
        if (id(a), id(b)) in self.equal_storages or _same_place(a, b):
            return ()
        for storage in (a, b):
            if storage.base is not None:
                # Parts of one storage may overlap arbitrarily often.
                self._budget.allocate(storage.nbytes // _BYTES_READ_PER_ALLOCATED)
        # Text has one NaN only: other bits of NaNs are no difference then.
        if self.text and same_bytes(_with_one_nan(a), _with_one_nan(b)):
            return ()
        if not same_bytes(a.chunks(), b.chunks()):
            tensors = (tensor_of_storage(a), tensor_of_storage(b))
            self.differences.append(difference_of(self._path_text(path), *tensors))
        return ()


def _by_text(entries: list[tuple[Value, Value]]) -> tuple[dict[Any, tuple[Value, Value]], list[tuple[Value, Value]]]:
    """Return the entries with scalar keys, by the text of the key (`_key_text`), and the others in order."""
    scalars: dict[Any, tuple[Value, Value]] = {}
    objects: list[tuple[Value, Value]] = []
    for entry in entries:
        key, _ = entry
        text = _key_text(key)
        if text is not None:
            scalars[text] = entry
        else:
            objects.append(entry)
    return scalars, objects


def _steps(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor; 0 along an extent of 1, where a stride has no meaning."""
    return tuple(step if extent > 1 else 0 for extent, step in zip(tensor.size, tensor.stride))


def _items(table: Table | dict[Any, Any]) -> list[tuple[Value, Value]]:
    """Return keys and values in the order of the file, in which Lua's tables may have a key twice."""
    return list(table.items() if isinstance(table, dict) else table.raw_items())


def _same_place(a: Storage, b: Storage) -> bool:
    """Return whether two storages have their elements at the same position of one file."""
    if a.data is b.data:
        return True
    if not isinstance(a.data, Span) or not isinstance(b.data, Span):
        return False
    first, second = a.data, b.data
    if first.source is not second.source:
        return False
    return (first.offset, first.width, first.order) == (second.offset, second.width, second.order)


def _is_object(value: Value) -> bool:
    """Return whether a value has an identity or parts, and is not merely a scalar."""
    return isinstance(value, _IDENTITIES) or (type(value) not in _SCALARS and has(type(value)))


def _same_key(a: Value, b: Value) -> bool:
    """Return whether two keys are equal scalars of one type, without hashing them."""
    return type(a) is type(b) and isinstance(a, _SCALAR_KEYS) and bool(a == b)


def _key_text(key: Value) -> Any:
    """Return the text by which a scalar key is looked up: a file can choose numbers whose hashes collide.

    Returns:
        Bytes for text, as Lua has it; a pair of texts for other scalars; `None` for a key that is not a scalar.
    """
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode("utf-8", "surrogatepass")
    if isinstance(key, float) and key.is_integer():
        return "number", hex(int(key))
    if isinstance(key, int) and not isinstance(key, bool):
        return "number", hex(key)
    if isinstance(key, _SCALAR_KEYS):
        return type(key).__name__, repr(key)
    return None


def _length(value: Any) -> int:
    """Return the number of parts of a value, to which the cost of comparing it is proportional."""
    if isinstance(value, (str, bytes, bytearray, list, tuple, dict, *_SETS, Table)):
        return len(value)
    return 1


def _with_one_nan(storage: Storage) -> Iterator[bytes]:
    """Yield the elements of a storage, all its NaNs with the same bits."""
    for array in array_chunks(storage):
        if array.dtype.kind == "f":
            array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
        yield array.tobytes()


def same_bytes(one: Iterable[bytes | memoryview], other: Iterable[bytes | memoryview]) -> bool:
    """Return whether two series of pieces are the same bytes, however they are cut; none is read after a difference."""
    first, second = _joined(one), _joined(other)
    return all(a == b for a, b in zip_longest(first, second))


def _joined(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the same bytes in pieces of equal length, except the last."""
    pending = bytearray()
    for piece in pieces:
        if not pending and len(piece) == CHUNK_BYTES:
            yield piece
            continue
        pending += piece
        while len(pending) >= CHUNK_BYTES:
            yield bytes(pending[:CHUNK_BYTES])
            del pending[:CHUNK_BYTES]
    if pending:
        yield bytes(pending)


_TITLES = {Table: "table", LuaFunction: "function"}
"""What values of Lua are called; those of Python have the names of their classes."""


def _short(value: Value) -> str:
    """Return a value in a few words: a scalar as it is, the class of another."""
    class_name = class_of(value)
    if class_name is not None:
        return class_name[:_SHOWN_LETTERS]
    if isinstance(value, (Table, LuaFunction, dict, list, tuple, *_SETS)):
        title = _TITLES.get(type(value), type(value).__name__)
        article = "an" if title[0] in "AEIOUaeiou" else "a"
        return f"{article} {title}"
    if has(type(value)):  # a class of ours; a global of Python by its path
        return str(getattr(value, "path", type(value).__name__))[:_SHOWN_LETTERS]
    if isinstance(value, (str, bytes, bytearray)):
        return _repr(value[:_SHOWN_LETTERS])
    return _repr(value)


def _repr(value: Any) -> str:
    """Return a scalar, or a tuple of sizes, as Python writes it, cut where it is long; large integers in base 16."""
    is_large = isinstance(value, int) and value.bit_length() > _SHOWN_LETTERS
    text = hex(value) if is_large else repr(value)  # Python refuses to write large integers in decimal
    return text if len(text) <= 60 else text[:57] + "…"


def differences(a: Value, b: Value, *, devices: bool = False, limits: Limits = DEFAULT_LIMITS) -> list[Difference]:
    """Return every difference between two values, in walk order.

    Args:
        a: a Lua value, or builtins with `Tensor` in them.
        b: another value of the same kind.
        devices: whether the devices named by tensors must be equal too.
        limits: resource limits.

    Raises:
        LimitError: values are shared in so many ways that comparing exceeds the limit `work`.
    """
    return Comparer(devices=devices, limits=limits).run(a, b)


def closest(
    pairs: Iterable[tuple[Any, Any]], make: Callable[[], Comparer], value: Callable[[Any], Value]
) -> tuple[Comparer, tuple[Any, Any]]:
    """Compare two files in several forms; return the pair of forms that have most in common, and its comparer.

    Args:
        pairs: pairs of forms, at least one; the first of equally good ones counts, and the search stops at one without
            differences.
        make: creates a comparer.
        value: returns the value of a form.

    Returns:
        The comparer, and the pair of forms.
    """
    best: Comparer | None = None
    for pair in pairs:
        first, second = pair
        comparer = make()
        comparer.run(value(first), value(second))
        if not comparer.differences:
            return comparer, pair
        if best is None or comparer.agreed > best.agreed:
            best = comparer
            best_pair = pair
    assert best is not None
    return best, best_pair


@define(eq=False)
class RowComparer(Comparer):
    """Compares the elements of tensors, not their storages: formats of named tensors have neither strides nor views."""

    def _tensors(self, path: Path, a: Tensor, b: Tensor) -> Pairs:
        """Compare type, shape and elements bit by bit; nothing is inside."""
        self._require_equal(path, "type", a.element.name, b.element.name)
        self._require_equal(path, "shape", a.shape, b.shape)
        if not self.elements or a.element is not b.element or a.shape != b.shape:
            return ()
        if not same_bytes(rows(a), rows(b)):
            difference = difference_of(self._path_text(path), a, b)
            are_equal_numbers = not isinstance(difference, TensorDifference)
            # Text has one NaN only: that the bits are others is no difference then.
            if not (are_equal_numbers and self.text):
                self.differences.append(difference)
        return ()


_BLOCK_ELEMENTS = 1 << 16
"""Elements that are compared at once."""
_WIDENED = ("bfloat16", "float8")
"""Beginnings of the names of types that numpy lacks, and that are compared as float32."""
_MOST_REPETITIONS = 2
"""How often a view may have each element of its storage, on average, to be compared like others."""
_FREE_COMPARISONS = 16
"""How often each element of a storage may be compared in views of it before that is charged."""


@define(eq=False)
class ValueComparer(Comparer):
    """Compares values, not how they are stored: sharing, offsets, strides, devices and gradients are ignored.

    Attributes:
        rtol: relative tolerance, as a fraction of the second's element.
        atol: absolute tolerance, added to the relative one.
        tensors: number of pairs of tensors compared.
    """

    rtol: float = 0.0
    atol: float = 0.0
    tensors: int = 0
    _views: dict[Any, Difference | None] = field(factory=dict)
    """The difference of each pair of views compared so far, `None` for equal ones."""
    _storages_with_allowance: set[int] = field(factory=set)
    """Identities of the storages whose free comparisons are in the budget."""

    def _visited_before(self, path: Path, a: Value, b: Value) -> bool:
        """See `Comparer`: sharing does not matter, but tensors are compared at every path, so that each is named."""
        return not isinstance(a, Tensor) and self._compared_before(a, b)

    def _same_scalar(self, a: Value, b: Value) -> bool:
        """Return whether two scalars are equal, numbers within the tolerance, whatever their types."""
        if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, (int, float)):
            return Comparer._same_scalar(self, a, b)
        if not isinstance(b, (int, float)):
            return False
        if a == b or (a != a and b != b):
            return True
        try:
            distance = abs(a - b)
            allowed = self.atol + self.rtol * abs(b)
        except OverflowError:  # an integer beyond all floats
            return False
        # An infinite distance exceeds an infinite tolerance too, as in `_deviations`.
        return distance <= allowed and distance < inf

    def _tensors(self, path: Path, a: Tensor, b: Tensor) -> Pairs:
        """Compare two tensors by their elements, those of the same two views once; nothing is inside."""
        self.tensors += 1
        self._require_equal(path, "type", a.element.name, b.element.name)
        # Elements smaller than a byte are compared with those of their own type only, by the bytes that hold them.
        are_comparable = a.element is b.element or PACKED.keys().isdisjoint((a.element.name, b.element.name))
        if a.shape != b.shape:
            self._require_equal(path, "shape", a.shape, b.shape)
        elif self.elements and a.numel and are_comparable:
            key = (a.shape, _view(a), _view(b))
            if key not in self._views:
                self._charge(a, b)
                self._views[key] = deviation("", a, b, self.rtol, self.atol)  # the path is that of each occurrence
            difference = self._views[key]
            if difference is not None:
                self.differences.append(evolve(difference, path=self._path_text(path)))
        return ()

    def _charge(self, a: Tensor, b: Tensor) -> None:
        """Charge the elements of a pair of views, if their storages were compared more often than a model's are."""
        for tensor in (a, b):
            storage = tensor.storage
            if storage is None:
                continue
            if id(storage) not in self._storages_with_allowance:
                # Each storage adds its free comparisons to the budget.
                self._storages_with_allowance.add(id(storage))
                self._budget.steps_left += _FREE_COMPARISONS * storage.nbytes // BYTES_PER_STEP
            # `deviation` compares no more: of a view that repeats elements more often, it compares each once.
            elements = min(tensor.numel, _MOST_REPETITIONS * storage.count)
            self._budget.spend(elements * tensor.element.itemsize // BYTES_PER_STEP)

    def _storages(self, path: Path, a: Storage, b: Storage) -> Pairs:
        """Compare storages outside of tensors as tensors of one dimension."""
        return self._tensors(path, tensor_of_storage(a), tensor_of_storage(b))


def _view(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for tensors with the same elements, of one shape, as long as the values exist."""
    return id(tensor.storage), tensor.offset, tensor.stride, tensor.element.name, id(tensor.extras)


def difference_of(path: str, a: Tensor, b: Tensor) -> Difference:
    """Return the difference of two tensors of one type and shape that are not the same bit for bit."""
    other_bits = "the same numbers, but not bit for bit: zeros of another sign, or other NaNs"
    return deviation(path, a, b, 0.0, 0.0) or Difference(path, other_bits)


def deviation(path: str, a: Tensor, b: Tensor, rtol: float, atol: float) -> Difference | None:
    """Return the difference of two tensors of one shape, `None` if it is within the tolerance.

    Elements are compared as numbers, whatever their types: a NaN is equal to a NaN, and 0.0 to -0.0.

    Args:
        path: their path.
        a: a tensor.
        b: one of the same shape; if either has elements smaller than a byte, of the same type, too.
        rtol: relative tolerance, as a fraction of the second's element.
        atol: absolute tolerance, added to the relative one.
    """
    shape = a.shape or (1,)
    stored = max(_count(a), _count(b)) * PACKED.get(a.element.name, 1)
    if prod(shape) > _MOST_REPETITIONS * stored:
        # Strides of 0 may repeat a few elements without end: these are compared once, without the places in the views.
        if a.stride != b.stride:
            return Difference(path, f"views that repeat elements in other ways: {a.stride} against {b.stride}")
        a = _each_element_once(a)
        b = _each_element_once(b)
        shape = a.shape
    if a.element.name in PACKED:  # bytes are compared, and counted: each holds several elements
        shape = _as_numbers(a).shape
    deviations = _deviations(a, b, rtol, atol)
    if not deviations.count:
        return None
    index = () if a.is_scalar else tuple(map(int, np.unravel_index(deviations.flat_index, shape)))
    total = prod(shape)
    message = _deviation_text(deviations, total, index)
    return TensorDifference(path, message, total, deviations.count, deviations.largest, index)


def _deviation_text(deviations: _Deviations, total: int, index: tuple[int, ...]) -> str:
    """Return a sentence about the elements of two tensors that differ.

    Args:
        deviations: these elements.
        total: the number of all elements of one of the tensors.
        index: the place of the largest deviation, 0-based; empty in a scalar.
    """
    # An infinite distance is that to a NaN or an infinity, and says nothing.
    by = f", by at most {deviations.largest:.6g}" if deviations.largest < inf else ""
    where = f" at {list(index)}" if index else ""
    if total == 1:
        what = f"its element differs{by}{where}"
    else:
        what = f"{deviations.count} of {total} elements differ{by or ', most'}{where}"
    first, second = deviations.elements
    return f"{what}: {_shown(first)} against {_shown(second)}"


@define
class _Deviations:
    """The elements of two tensors that differ by more than a tolerance.

    Attributes:
        count: the number of them.
        largest: the largest difference.
        flat_index: of the elements that differ most, among all elements in order, from 0.
        elements: these two.
    """

    count: int = 0
    largest: float = -1.0
    flat_index: int = 0
    elements: tuple[Any, Any] = (None, None)


def _deviations(a: Tensor, b: Tensor, rtol: float, atol: float) -> _Deviations:
    """Compare the elements of two tensors of one shape block by block.

    Args:
        a: one tensor.
        b: the other.
        rtol: elements differ if their distance is more than `atol + rtol * |b|`.
        atol: see `rtol`.
    """
    deviations = _Deviations()
    start = 0  # of the block, among all elements
    for x, y in zip(blocks(_as_numbers(a), _BLOCK_ELEMENTS), blocks(_as_numbers(b), _BLOCK_ELEMENTS)):
        x = _numbers(x, a)
        y = _numbers(y, b)
        distances = _distances(x, y)
        with np.errstate(invalid="ignore", over="ignore"):
            allowed = atol + rtol * np.abs(y) if rtol else atol
        # An infinite distance exceeds an infinite tolerance too.
        is_wrong = (distances > allowed) | (distances == inf)
        count = int(np.count_nonzero(is_wrong))
        if count:
            deviations.count += count
            place = int(np.argmax(np.where(is_wrong, distances, -1.0)))  # -1: less than any distance
            if distances[place] > deviations.largest:
                deviations.largest = float(distances[place])
                deviations.flat_index = start + place
                deviations.elements = (x[place], y[place])
        start += len(distances)
    return deviations


def _count(tensor: Tensor) -> int:
    """Return the number of elements of a tensor's storage; 0 without one."""
    return tensor.storage.count if tensor.storage else 0


def _each_element_once(tensor: Tensor) -> Tensor:
    """Return the elements of the storage from the first to the last of a view, as a tensor of one dimension."""
    first, end = tensor.reach()
    return evolve(tensor, size=(end - first,), stride=(1,), offset=first, is_scalar=False)


def _as_numbers(tensor: Tensor) -> Tensor:
    """Return a tensor whose elements numpy has as numbers.

    Of a type smaller than a byte, they are the bytes with its elements, in one dimension: those of a contiguous tensor,
    from its offset on.
    """
    storage = tensor.storage
    if storage is None:
        return tensor
    if tensor.element.name.startswith(_WIDENED):
        storage, _, _ = widen(storage)
    tensor = evolve(tensor, storage=storage, element=storage.element)
    if tensor.element.name not in PACKED:
        return tensor
    numbers_per_byte = PACKED[tensor.element.name]
    count = -(-tensor.numel // numbers_per_byte)  # rounded up
    return evolve(tensor, size=(count,), stride=(1,), offset=tensor.offset // numbers_per_byte)


def _numbers(block: np.ndarray, tensor: Tensor) -> Any:
    """Return elements of a tensor, shape (n,), as numbers: complex32, which numpy lacks, as complex64."""
    if tensor.element.name != "complex32":
        return block
    with np.errstate(invalid="ignore"):  # signaling NaNs
        return block.view("f2").astype("f4").view("c8")


def _distances(x: np.ndarray, y: np.ndarray) -> Any:
    """Return the distance of each pair of elements; 0 for equal ones, NaNs included, infinite where it is undefined.

    Args:
        x: elements of one tensor as numbers, shape (n,).
        y: as many of another.
    """
    if x.dtype.kind in "biu" and y.dtype.kind in "biu":
        common = np.result_type(x, y, "u1")  # "u1" makes numbers of truth values
        if common.kind != "f":  # int64 and uint64 have no common integer type
            high = np.maximum(x, y).astype(common)
            low = np.minimum(x, y).astype(common)
            # A negative number wraps around to 2^64 too much; the subtraction wraps back.
            return (high.astype("u8") - low.astype("u8")).astype("f8")
    is_equal = (x == y) | ((x != x) & (y != y))
    with np.errstate(invalid="ignore", over="ignore"):
        wide = "c16" if "c" in (x.dtype.kind, y.dtype.kind) else "f8"
        distances = np.abs(x.astype(wide) - y.astype(wide))
    distances[np.isnan(distances)] = inf
    distances[~is_equal & (distances == 0)] = np.finfo("f8").tiny  # different integers that are equal as doubles
    distances[is_equal] = 0
    return distances


def _shown(value: Any) -> str:
    """Return a numpy scalar as text, floats with the nine digits that tell two float32 apart."""
    return f"{value.item()!r}" if value.dtype.kind in "biu" else f"{value:.9g}"
