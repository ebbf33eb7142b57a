"""What the globals and calls in PyTorch's pickles become: values if they are known, inert objects otherwise.

A known global is a constant, or a function from arguments, already inert, to a value: `reductions` and `tensors`
register them here with `register_call`. A function can only build data; an unknown global is never more than its name.

Source: PyTorch 2.13 `torch/_weights_only_unpickler.py` (known data), `torch/_utils.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ....errors import CorruptError, ForbiddenGlobalError, LimitError, T7BridgeError
from ....graph.python import UNSET, PythonGlobal, PythonObject, TorchConstant
from ....graph.tensor import Tensor
from ....io.source import ByteSource
from ....limits import DEFAULT_LIMITS, Budget, Limits
from ....report import Note
from ..storages import NO_IDS, StorageTable
from .names import SAFE, SCRIPT_MODULES, WEIGHTS_ONLY, is_forbidden, is_ordinary, renamed

Call = tuple[Callable[..., Any], int, int, tuple[Any, ...] | None]
"""How calls of a global are read: a function from the context and the arguments to the value, or to `NotImplemented`
where a call is not understood and stays an inert object; minimum and maximum number of arguments; their types, if they
matter."""
GLOBALS: dict[str, Call | TorchConstant] = {}
"""By the path of each known global: a constant, or how its calls are read."""
STATES: dict[type, Callable[[PickleContext, Any, Any], Any]] = {}
"""The value after a state was set, by type of value."""

_RENAMED_MODULES = {
    "torch.tensor": "torch._tensor",
    "numpy._core.multiarray": "numpy.core.multiarray",
    "numpy._core.numeric": "numpy.core.numeric",
}
"""Modules that have two names, of older and newer releases: the other one → the one by which `GLOBALS` has them."""
_FILLED_LATER = frozenset(
    {
        "collections.OrderedDict", "collections.defaultdict", "collections.Counter", "builtins.list", "builtins.set",
        "builtins.dict", "builtins.bytearray",
    }
)  # fmt: skip
"""Classes whose `__new__` ignores its arguments: NEWOBJ creates them empty."""


def register_call(
    names: str, *kinds: Any, min_args: int | None = None, max_args: int | None = None
) -> Callable[[Any], Any]:
    """Register the decorated function for calls of some globals; calls of others stay inert objects.

    Args:
        names: paths of the globals, separated by spaces.
        *kinds: the type of each argument, or several; `object` for any. Calls with other types stay inert objects.
        min_args: minimum number of arguments, if not all are required.
        max_args: maximum number of arguments, if there may be more than kinds.
    """
    # Without types to check, calls of many arguments are not slowed down.
    checked_kinds = None if all(kind is object for kind in kinds) else kinds
    least = len(kinds) if min_args is None else min_args
    most = len(kinds) if max_args is None else max_args

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        GLOBALS.update(dict.fromkeys(names.split(), (function, least, most, checked_kinds)))
        return function

    return register


_MAX_KEY_PARTS = 10_000
"""Maximum number of parts, nested ones included, of a tuple used as a key; fixed, far above what programs write."""
_MAX_KEY_DEPTH = 100
"""Maximum depth of tuples in a key: CPython hashes them recursively."""
_WORK_PER_BYTE = 16
"""Steps of work that each byte of the file allows before `Limits.work` is charged."""
_WASTE = "a pickle that copies the same values over and over, or of which keys have the same hash,"
"""What takes too long, for an error."""
_WORK_PER_COLLISION = 8
"""Steps for the comparison of a key with one other of the same hash."""
_MODULUS = (1 << 61) - 1
"""Integers that differ by a multiple of it have the same hash where Python has 64 bits."""
_SMALLEST_MODULUS = min(_MODULUS, sys.hash_info.modulus)
"""Integers between minus this and this are their own hashes, except -1, which has that of -2; so at most two have one.
In a browser, Python has 32 bits."""
_HASHED_AT_RANDOM = frozenset({str, bytes, bool, type(None), float})
"""Types of which a file cannot create many values of one hash: at most some fifty floats have the same."""
_UNHASHABLE = (list, dict, set, bytearray)


def _key_parts(key: Any) -> int:
    """Return the number of items of tuples, at any depth, that hashing a key visits; 0 for a key that is not a tuple.

    A frozenset has kept the hashes of its elements since it was created, so that they are not visited again.

    Raises:
        CorruptError: Python could not hash it.
        LimitError: it is a tuple that is nested too deep, or has too many parts.
    """
    parts = [(key, 0)]
    count = 0
    while parts:
        part, depth = parts.pop()
        if isinstance(part, _UNHASHABLE):
            raise CorruptError(f"a {type(part).__name__} is a key or an element of a set")
        if isinstance(part, tuple):
            count += len(part)
            if depth > _MAX_KEY_DEPTH or count > _MAX_KEY_PARTS:
                raise LimitError(
                    "a tuple used as a key is nested too deep or has too many parts",
                    expected=f"at most {_MAX_KEY_DEPTH} levels and {_MAX_KEY_PARTS} parts, which is fixed",
                )
            parts.extend((inner, depth + 1) for inner in part)
    return count


def _hash_of_64_bits(key: Any) -> int:
    """Return the hash of an integer where Python has 64 bits, so that a file is refused in a browser, too."""
    if type(key) is not int:
        return hash(key)
    rest = abs(key) % _MODULUS
    value = rest if key >= 0 else -rest
    return -2 if value == -1 else value  # -1 is the sign of an error in C


class Work(Budget):
    """Budget for the elements that calls copy and keys that are hashed, in proportion to the bytes of the file.

    Args:
        limits: resource limits.
        nbytes: size of the file, each byte of which allows some work that is free.

    Attributes:
        hashes: by the identity of each container (dict or set) and then by hash: how many keys of this hash it has
            received. The `Unpickler` clears it before each pickle, as identities of containers that are gone are
            used again. Keys that need no check are not counted.
    """

    def __init__(self, limits: Limits, nbytes: int) -> None:
        super().__init__(limits, _WASTE, free=_WORK_PER_BYTE * nbytes)
        self.hashes: dict[int, dict[int, int]] = {}

    def check_key(self, container: object, key: Any) -> None:
        """Check a key before it enters a dict or set, which compares it with all keys of the same hash.

        Args:
            container: the dict or set.
            key: the key or element.

        Raises:
            CorruptError: Python could not hash it.
            LimitError: it is a tuple that is nested too deep or has too many parts, or one container has so many keys
                of one hash as only a file made to waste time has.
        """
        kind = type(key)
        is_small_integer = kind is int and -_SMALLEST_MODULUS < key < _SMALLEST_MODULUS
        if kind in _HASHED_AT_RANDOM or is_small_integer:
            return
        self.spend(_key_parts(key))  # before `hash`, which visits as many, and would raise Python's own errors
        key_counts = self.hashes.setdefault(id(container), {})
        # The hash here, which takes time, and that on most machines, so that all of them refuse the same files.
        for value in {hash(key), _hash_of_64_bits(key)}:
            earlier_keys = key_counts.get(value, 0)
            key_counts[value] = earlier_keys + 1
            if earlier_keys:
                self.spend(earlier_keys * _WORK_PER_COLLISION)

    def check_elements(self, items: Collection[Any]) -> None:
        """Check the elements of a set before it is created; raises as `check_key`."""
        for item in items:
            self.check_key(items, item)
        # The set does not exist yet: its elements stand for it, and their identity may be another container's later.
        self.hashes.pop(id(items), None)


class Origin:
    """The file that pickles belong to, with what all of them share: limits, and the findings about unsafe names.

    Args:
        source: the file.
        limits: resource limits.
        forbid: whether names that run code or reach the system are refused; otherwise they are only collected.
        read_nested: returns the value of a whole file inside this one, from this and its source; without it such a file
            stays unread (`NotImplemented`).
        is_judged: whether each pickle is also read as PyTorch's safe loader reads it, for `refused_uses`, which stays
            empty otherwise.

    Attributes:
        source, limits, forbid, read_nested, is_judged: the arguments.
        unsafe_names: those that PyTorch's safe loader does not know, in the order of the file: by the path, whether it
            runs code or reaches the system.
        refused_uses: what the safe loader refuses besides names: operations of pickles, and uses of what it knows.
        notes: what is left out of its value, and other information for users; whoever reads a part of the file adds its
            own.
    """

    def __init__(
        self,
        source: ByteSource,
        limits: Limits = DEFAULT_LIMITS,
        forbid: bool = False,
        read_nested: Callable[[Origin, ByteSource], Any] = lambda origin, source: NotImplemented,
        is_judged: bool = False,
    ) -> None:
        self.source = source
        self.limits = limits
        self.forbid = forbid  # names that run code; otherwise they are collected, too
        self.read_nested = read_nested  # a file inside this one
        self.is_judged = is_judged  # by the rules of PyTorch's safe loader
        self.unsafe_names: dict[str, bool] = {}  # by path: whether it runs code
        self.refused_uses: dict[str, None] = {}  # a set that keeps the order
        self.notes: list[Note] = []

    def note_unsafe_name(self, module: str, name: str) -> bool:
        """Note a name that PyTorch's safe loader does not know; return whether it runs code or reaches the system."""
        path = f"{module}.{name}"
        if path not in self.unsafe_names:
            self.unsafe_names[path] = is_forbidden(module, name)
        return self.unsafe_names[path]

    @contextmanager
    def forgetting_if_unreadable(self) -> Iterator[None]:
        """Read bytes that may not be a pickle at all: if reading fails, the refused uses found in them are forgotten.

        They stay if an unsafe name was found before the failure: then the bytes are a pickle, and damaged.
        """
        unsafe_before = len(self.unsafe_names)
        uses_before = dict(self.refused_uses)
        try:
            yield
        except T7BridgeError:
            if len(self.unsafe_names) == unsafe_before:
                self.refused_uses = uses_before
            raise

    @property
    def foreign(self) -> list[str]:
        """The unsafe names that few checkpoints hold: of other packages than PyTorch, numpy and Python's own data."""
        return [path for path, runs_code in self.unsafe_names.items() if runs_code or not is_ordinary(path)]


class PickleContext:
    """Resolves globals, calls and persistent ids in some pickles of a file to values, and judges what they call.

    Args:
        origin: the file.
        storages: the storages that the pickles name; by default an empty table.
        resolve_id: returns the value of a persistent id, which stands for data outside the pickle; without it a pickle
            with such an id is refused.
        is_script: whether the file is a TorchScript archive, which C++ reads: its own classes are below `__torch__`,
            and the rules of Python's safe loader do not apply.

    Attributes:
        origin, storages, is_script: the arguments.
        limits: those of the origin.
        resolve_id: the argument; the reader of the legacy format sets it after the pickles that have no ids.
        id_parts: the number of parts that PyTorch's safe loader requires of a persistent id in the next pickle:
            `NO_IDS` where it allows none, until the reader of a format sets its own number.
        work: budget of the elements that calls copy and of the keys that are hashed, in all pickles of this context.
        tensors: only for TorchScript of 1.0 to 1.2: the tensors of `model.json`, added by its reader. Its pickles refer
            to them by position (`torch.jit._pickle.build_tensor_from_id`).
    """

    def __init__(
        self,
        origin: Origin,
        storages: StorageTable | None = None,
        resolve_id: Callable[[Any], Any] | None = None,
        is_script: bool = False,
    ) -> None:
        self.origin = origin
        self.limits = origin.limits
        self.storages = StorageTable() if storages is None else storages
        self.work = Work(origin.limits, origin.source.size)
        self.tensors: list[Tensor] = []
        self.id_parts = NO_IDS
        self.is_script = is_script
        self.resolve_id = resolve_id
        self._globals: dict[tuple[str, str], Any] = {}
        """By module and name as the file has them: the constant, or the `PythonGlobal`."""
        self._calls: dict[int, Call] = {}
        """How calls of a global are read, by the identity of its `PythonGlobal`, which `_globals` keeps alive. (What a
        damaged pickle calls may be a list, which has no hash.)"""

    def find_global(self, module: str, name: str) -> Any:
        """Return the value of a global: one of PyTorch's constants, or a `PythonGlobal`, one object for each name.

        Args:
            module: as the pickle has it, also by a name of Python 2.
            name: in the module.

        Raises:
            ForbiddenGlobalError: it runs code or reaches the system, and such names are forbidden.
        """
        value = self._globals.get((module, name))
        if value is not None:
            return value
        # Protocol 2 has Python 2's names of modules. They become Python 3's if the safe loader renames them, too. So
        # does `copy_reg`: the loader refuses it under either name.
        if module in SAFE.modules:
            value = PythonGlobal(*renamed(module, name))
        else:
            value = PythonGlobal("copyreg" if module == "copy_reg" else module, name)
        self._judge(value)  # by this name, not the canonical one, which PyTorch does not look up
        entry = GLOBALS.get(canonical(value))
        if isinstance(entry, TorchConstant):
            value = entry
        elif entry is not None:
            self._calls[id(value)] = entry
        self._globals[module, name] = value
        return value

    def value_of_call(self, constructor: Any, args: Any, how: str, kwargs: Any = None) -> Any:
        """Return what a call in a pickle returns: data, if the call is known; otherwise an inert `PythonObject`.

        Args:
            constructor: the callable: a `PythonGlobal`, or any other value of a damaged or hostile file.
            args: its arguments: a tuple in every pickle that Python wrote.
            how: `reduce`, `newobj`, `newobj_ex` or `inst`, after the opcode.
            kwargs: keyword arguments, which only `newobj_ex` has.

        Raises:
            CorruptError: a known function has no tuple of arguments.
        """
        call = self._calls.get(id(constructor))
        if call is not None and not kwargs:  # known functions are registered for arguments by position
            function, min_args, max_args, kinds = call
            if type(args) is not tuple:
                raise CorruptError(f"{constructor.path} is called without a tuple of arguments")
            # Both opcodes call `__new__`, but not `__init__`, which would fill the container.
            if how in ("newobj", "newobj_ex") and constructor.path in _FILLED_LATER:
                args = ()
            if min_args <= len(args) <= max_args and (kinds is None or all(map(isinstance, args, kinds))):
                value = function(self, *args)
                if value is not NotImplemented:
                    return value
        # The call is unknown here, or unknown with such arguments. PyTorch's safe loader makes it if it knows the name;
        # whether it then fails for these arguments is not known here.
        if isinstance(constructor, PythonGlobal) and constructor.path in WEIGHTS_ONLY:
            self.note_refused_use(f"a call of {constructor.path} whose arguments are not known to be right")
        return PythonObject(constructor, how, args, kwargs)

    def value_of_id(self, saved_id: Any) -> Any:
        """Return the value of a persistent id."""
        if self.resolve_id is None:
            raise CorruptError("the pickle refers to external data, which do not exist")
        return self.resolve_id(saved_id)

    def set_state(self, value: Any, state: Any) -> Any:
        """Return a value after BUILD has set its state: most are changed in place, some replaced.

        Args:
            value: of the pickle, where it may be anything.
            state: the argument of BUILD: `STATES` has for some types what it means; an inert object keeps it.

        Raises:
            CorruptError: it has a state already, or cannot have one.
        """
        # A state is the attributes, or a pair: the attributes, and those in slots. (Tuples of other lengths are states
        # of tensors and arrays, which begin with neither.)
        attribute_dicts = state[:2] if type(state) is tuple else (state,)
        for attributes in attribute_dicts:
            if isinstance(attributes, dict) and "__setstate__" in attributes:  # a second BUILD would call it
                raise CorruptError("a state replaces the method that sets it")
        if isinstance(value, PythonObject):
            if value.state is not UNSET:
                raise CorruptError("an object receives its state twice")
            value.state = state
        elif type(value) in STATES:
            return STATES[type(value)](self, value, state)
        elif state is not None:  # CPython's BUILD ignores None for values without `__setstate__`
            what = value.path if isinstance(value, PythonGlobal) else f"a {type(value).__name__}"
            raise CorruptError(f"{what} receives a state, but has none")
        return value

    def note_refused_use(self, use: str) -> None:
        """Note a use of what PyTorch's safe loader knows that it refuses, or may refuse, if the file is judged."""
        if self.origin.is_judged and not self.is_script:
            self.origin.refused_uses[use] = None

    def _judge(self, value: PythonGlobal) -> None:
        """Note a name that PyTorch's safe loader does not know.

        Raises:
            ForbiddenGlobalError: it runs code or reaches the system, and such names are forbidden.
        """
        if value.path in WEIGHTS_ONLY or (self.is_script and value.path.startswith(SCRIPT_MODULES)):
            return
        runs_code = self.origin.note_unsafe_name(value.module, value.name)
        if runs_code and self.origin.forbid:
            raise ForbiddenGlobalError(
                f"the pickle names {value.path:.200}, which runs code or reaches the system",
                hint="Do not load this file in PyTorch; `t7bridge scan` lists all that it names.",
            )


def canonical(value: PythonGlobal) -> str:
    """Return the path of a global, with the one name by which its module is known here: see `_RENAMED_MODULES`."""
    return f"{_RENAMED_MODULES.get(value.module, value.module)}.{value.name}"
