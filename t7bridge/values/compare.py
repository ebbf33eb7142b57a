"""Comparison of two graphs: values, types, order, identity, sharing and views, with no recursion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import field, fields, has

from ..data import define
from ..graph.lua import COMPOSITE, LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value, index_key
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import step_name
from ..io.checksums import sha256

_IDENTITIES = (*COMPOSITE, dict, list, tuple)


@define(frozen=True)
class Difference:
    """One difference.

    Attributes:
        trail: path to it, `root.modules[3].weight`.
        message: what differs, the first graph's side first.
    """

    trail: str
    message: str

    def __str__(self) -> str:
        return f"{self.trail}: {self.message}"


@define(eq=False)
class Comparer:
    """Walks two graphs side by side. Objects that were paired once must be paired wherever they are met again.

    Attributes:
        devices: whether the devices that tensors name must be equal too.
        found: the differences.
        compared: how many pairs of values were met.
    """

    devices: bool = False
    found: list[Difference] = field(factory=list)
    compared: int = 0
    _there: dict[int, int] = field(factory=dict)
    _back: dict[int, int] = field(factory=dict)
    _stack: list[tuple[str, Value, Value]] = field(factory=list)

    def run(self, a: Value, b: Value) -> list[Difference]:
        """Compare two values; the differences, in the order of a walk."""
        self._stack.append(("root", a, b))
        while self._stack:
            trail, left, right = self._stack.pop()
            self._pair(trail, left, right)
        return self.found

    @property
    def agreed(self) -> int:
        """How many pairs were alike. Who stops at the root has few differences, and has compared next to nothing."""
        return self.compared - len(self.found)

    def _differs(self, trail: str, message: str) -> None:
        self.found.append(Difference(trail, message))

    def _alone(self, trail: str, message: str) -> None:
        """What is there on one side only was met too: many of them are no sign that the rest has nothing in common."""
        self.compared += 1
        self._differs(trail, message)

    def _pair(self, trail: str, a: Value, b: Value) -> None:
        self.compared += 1
        if not _is_object(a) and not _is_object(b):
            if not self._same_scalar(a, b):
                self._differs(trail, f"{_short(a)} against {_short(b)}")
            return
        if type(a) is not type(b):
            self._differs(trail, f"{_short(a)} against {_short(b)}")
            return
        # A tuple has no identity that a file would keep.
        if isinstance(a, tuple) or not self._met(trail, a, b):
            self._objects(trail, a, b)

    def _same_scalar(self, a: Value, b: Value) -> bool:
        """Equal in type, value and sign: a nan is a nan, 0.0 is not -0.0."""
        if type(a) is not type(b):
            return False
        if isinstance(a, float):
            return bool(a.hex() == b.hex())
        return bool(a == b)

    def _met(self, trail: str, a: Value, b: Value) -> bool:
        """Whether one of two objects was met before; if so, it must have been with the other."""
        there, back = self._there.get(id(a)), self._back.get(id(b))
        if there is None and back is None:
            self._there[id(a)], self._back[id(b)] = id(b), id(a)
            return False
        if there is None or back is None:
            self._differs(trail, "what is one object here is two there")
        elif there != id(b) or back != id(a):
            self._differs(trail, "refers to another object")
        return True

    def _objects(self, trail: str, a: Value, b: Value) -> None:
        if isinstance(a, (Table, dict)):
            self._entries(trail, list(a.items()), list(b.items()))
        elif isinstance(a, (list, tuple)):
            self._items(trail, a, b, 0)
        elif isinstance(a, Tensor):
            self._tensors(trail, a, b)
        elif isinstance(a, Storage):
            self._storages(trail, a, b)
        elif isinstance(a, TorchObject):
            self._same(trail, "class", (a.class_name, a.version), (b.class_name, b.version))
            self._stack.append((f"{trail}<payload>", a.payload, b.payload))
            self._stack.append((trail, a.fields, b.fields))
        elif isinstance(a, LuaFunction):
            self._same(trail, "bytecode", (a.tag, a.code), (b.tag, b.code))
            self._stack.append((f"{trail}<upvalues>", a.upvalues, b.upvalues))
        elif isinstance(a, TdsHash):
            self._same(trail, "class", (a.class_name, a.version), (b.class_name, b.version))
            self._entries(trail, list(a.content.items()), list(b.content.items()))
        elif isinstance(a, TdsVec):
            self._same(trail, "class", (a.class_name, a.version), (b.class_name, b.version))
            self._items(trail, a.items, b.items, 1)
        else:  # an inert Python-side value
            names = [found.name for found in fields(type(a))]
            self._stack += [(f"{trail}<{name}>", getattr(a, name), getattr(b, name)) for name in reversed(names)]

    def _same(self, trail: str, what: str, a: Any, b: Any) -> None:
        if a != b:
            self._differs(trail, f"{what} {_short(a)} against {_short(b)}")

    def _items(self, trail: str, a: Any, b: Any, base: int) -> None:
        self._same(trail, "length", len(a), len(b))
        pairs = [(f"{trail}[{place}]", x, y) for place, (x, y) in enumerate(zip(a, b), base)]
        self._stack.extend(reversed(pairs))

    def _entries(self, trail: str, a: list[tuple[Value, Value]], b: list[tuple[Value, Value]]) -> None:
        """Entries of tables and dicts: scalar keys are found wherever they stand, others are compared in order."""
        keyed = {index_key(key): value for key, value in b if not isinstance(key, _IDENTITIES)}
        pairs: list[tuple[str, Value, Value]] = []
        missing = [key for key, _ in a if not isinstance(key, _IDENTITIES) and index_key(key) not in keyed]
        own = {index_key(key) for key, _ in a if not isinstance(key, _IDENTITIES)}
        for key in missing:
            self._alone(trail + step_name(key), "is missing in the second")
        for key, _ in b:
            if not isinstance(key, _IDENTITIES) and index_key(key) not in own:
                self._alone(trail + step_name(key), "is missing in the first")
        for key, value in a:
            if not isinstance(key, _IDENTITIES) and index_key(key) in keyed:
                pairs.append((trail + step_name(key), value, keyed[index_key(key)]))
        odd_a, odd_b = ([pair for pair in side if isinstance(pair[0], _IDENTITIES)] for side in (a, b))
        self._same(trail, "number of keys that are objects", len(odd_a), len(odd_b))
        for (key, value), (other_key, other) in zip(odd_a, odd_b):
            pairs.append((f"{trail}<key {step_name(key)}>", key, other_key))
            pairs.append((trail + step_name(key), value, other))
        self._stack.extend(reversed(pairs))

    def _tensors(self, trail: str, a: Tensor, b: Tensor) -> None:
        self._same(trail, "type", a.element.name, b.element.name)
        self._same(trail, "shape", a.shape, b.shape)
        if a.numel or b.numel:
            self._same(trail, "stride", a.stride, b.stride)
            self._same(trail, "offset", a.offset, b.offset)
        if self.devices:
            self._same(trail, "device", a.device, b.device)
        self._same(trail, "requires_grad", a.requires_grad, b.requires_grad)
        self._same(trail, "being a parameter", a.is_parameter, b.is_parameter)
        self._stack.append((f"{trail}<extras>", a.extras, b.extras))
        # Lua has tensors without storage, PyTorch gives them one without elements.
        if (a.storage.count if a.storage else 0) or (b.storage.count if b.storage else 0):
            self._stack.append((f"{trail}.storage", a.storage, b.storage))

    def _storages(self, trail: str, a: Storage, b: Storage) -> None:
        self._same(trail, "type", a.element.name, b.element.name)
        self._same(trail, "number of elements", a.count, b.count)
        if a.element is b.element and a.count == b.count and _digest(a) != _digest(b):
            self._differs(trail, "other elements")


def _is_object(value: Value) -> bool:
    """Whether a value has an identity or parts, and is not just a scalar."""
    return isinstance(value, _IDENTITIES) or has(type(value))


def _digest(storage: Storage) -> bytes:
    """A hash of a storage's elements that does not collide, as a CRC may."""
    digest = sha256()
    for chunk in storage.chunks():
        digest.update(chunk)
    return digest.digest()


def _short(value: Value) -> str:
    if isinstance(value, (Tensor, Storage)):
        return value.lua_class or value.element.name
    if isinstance(value, (TorchObject, TdsHash, TdsVec)):
        return value.class_name
    if isinstance(value, (Table, LuaFunction, dict, list)):
        return f"a {type(value).__name__.lower()}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def differences(a: Value, b: Value, *, devices: bool = False) -> list[Difference]:
    """Every difference between two values, in the order of a walk.

    Args:
        a: a Lua value, or builtins with `Tensor` in them.
        b: another of the same side.
        devices: whether the devices that tensors name must be equal too.
    """
    return Comparer(devices).run(a, b)


def closest(
    pairs: Iterable[tuple[Value, Value]], make: Callable[[], Comparer] = Comparer
) -> tuple[Comparer, tuple[Value, Value]]:
    """Those two values that have most in common, and who has compared them.

    Args:
        pairs: forms in which two things can be compared, at least one; the first of equally good ones counts, and none
            is asked for behind one without a difference.
        make: makes who compares.
    """
    best: tuple[Comparer, tuple[Value, Value]] | None = None
    for pair in pairs:
        comparer = make()
        comparer.run(*pair)
        if best is None or comparer.agreed > best[0].agreed:
            best = comparer, pair
        if not comparer.found:
            return comparer, pair
    assert best is not None
    return best
