"""Meaning of the names in PyTorch's pickles: known globals become values, all others inert objects.

A known global is a constant, or a function from arguments, already inert, to a value: `reductions` and `tensors`
register them here with `reads`. A function can only build data; an unknown global is never more than its name.

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
"""A function from the meaning and the arguments to the value, or to `NotImplemented` where the call has no meaning and
stays an opaque object; minimum and maximum number of arguments; their types, if they matter."""
GLOBALS: dict[str, Call | TorchConstant] = {}
"""Meaning of each known global: a constant, or what its call returns."""
STATES: dict[type, Callable[[PtMeaning, Any, Any], Any]] = {}
"""The value after a state was set, by type of value."""

_RENAMED_MODULES = {
    "torch.tensor": "torch._tensor",
    "numpy._core.multiarray": "numpy.core.multiarray",
    "numpy._core.numeric": "numpy.core.numeric",
}
_FILLED_LATER = frozenset(
    {
        "collections.OrderedDict", "collections.defaultdict", "collections.Counter", "builtins.list", "builtins.set",
        "builtins.dict", "builtins.bytearray",
    }
)  # fmt: skip
"""Classes whose `__new__` ignores its arguments: NEWOBJ creates them empty."""


def reads(names: str, *kinds: Any, least: int | None = None, most: int | None = None) -> Callable[[Any], Any]:
    """Register a function as the meaning of calls of some globals; all other calls have none.

    Args:
        names: paths of the globals.
        *kinds: the type of each argument, or several; `object` for any.
        least: minimum number of arguments, if not all are required.
        most: maximum number of arguments, if there may be more.
    """
    checked = None if all(kind is object for kind in kinds) else kinds

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        call = (function, len(kinds) if least is None else least, len(kinds) if most is None else most, checked)
        GLOBALS.update(dict.fromkeys(names.split(), call))
        return function

    return register


_MAX_KEY_PARTS = 10_000
_MAX_KEY_DEPTH = 100
_WORK_PER_BYTE = 16
_WASTE = "a pickle that copies the same values over and over, or of which keys have the same hash,"
_WORK_PER_COLLISION = 8
_MODULUS = (1 << 61) - 1
"""Integers have the same hash where Python has 64 bits if they differ by a multiple of it."""
_SMALLEST_MODULUS = min(_MODULUS, sys.hash_info.modulus)
"""The same for this Python, which has 32 bits in a browser."""
_HASHED_AT_RANDOM = frozenset({str, bytes, bool, type(None), float})
"""Types of which a file cannot create many values of one hash: at most some fifty floats have the same."""
_UNHASHABLE = (list, dict, set, bytearray)


def _key_parts(key: Any) -> int:
    """Return the number of parts of a key that hashing visits.

    Raises:
        CorruptError: Python could not hash it.
        LimitError: it is a tuple of tuples of tuples.
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
    return rest if key >= 0 else -rest


class Work(Budget):
    """The elements that calls may copy and keys may hash, in proportion to the bytes of the file.

    Args:
        limits: resource limits.
        nbytes: of the file.

    Attributes:
        hashes: number of keys of each hash in each container of the current pickle, by its identity.
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
            LimitError: it is a tuple of tuples of tuples, or one container has so many keys of one hash as only a file
                made to waste time has.
        """
        kind = type(key)
        if kind in _HASHED_AT_RANDOM or (kind is int and -_SMALLEST_MODULUS < key < _SMALLEST_MODULUS):
            return
        self.spend(_key_parts(key))
        hashes = self.hashes.setdefault(id(container), {})
        for value in {hash(key), _hash_of_64_bits(key)}:
            before = hashes.get(value, 0)
            hashes[value] = before + 1
            if before:
                self.spend(before * _WORK_PER_COLLISION)

    def check_elements(self, items: Collection[Any]) -> None:
        """Check the elements of a set before it is created; raises as `check_key`."""
        for item in items:
            self.check_key(items, item)
        self.hashes.pop(id(items), None)


class Origin:
    """The file that pickles belong to, with what all of them share.

    Args:
        source: the file.
        limits: resource limits.
        forbid: whether names that run code or reach the system are refused.
        reader: returns the value of a whole file inside this one, from this and its source; none is read without it.
        is_judged: whether each pickle is also read as PyTorch's safe loader reads it, for `uses`.

    Attributes:
        unsafe: names that PyTorch's safe loader does not know, in the order of the file: path → whether it runs code or
            reaches the system.
        uses: what the safe loader refuses besides names: operations of pickles, and uses of what it knows.
        notes: what is left out of its value, and other information for users.
    """

    def __init__(
        self,
        source: ByteSource,
        limits: Limits = DEFAULT_LIMITS,
        forbid: bool = False,
        reader: Callable[[Origin, ByteSource], Any] = lambda origin, source: NotImplemented,
        is_judged: bool = False,
    ) -> None:
        self.source = source
        self.limits = limits
        self.forbid = forbid
        self.reader = reader
        self.is_judged = is_judged
        self.unsafe: dict[str, bool] = {}
        self.uses: dict[str, None] = {}
        self.notes: list[Note] = []

    def name(self, module: str, name: str) -> None:
        """Note a name that PyTorch's safe loader does not know."""
        path = f"{module}.{name}"
        if path not in self.unsafe:
            self.unsafe[path] = is_forbidden(module, name)

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """Read what may be no pickle: if reading fails, and no name was unsafe until then, nothing in it counts."""
        unsafe_before = len(self.unsafe)
        uses_before = dict(self.uses)
        try:
            yield
        except T7BridgeError:
            if len(self.unsafe) == unsafe_before:
                self.uses = uses_before
            raise

    @property
    def foreign(self) -> list[str]:
        """Those of them that few checkpoints hold: of other packages than PyTorch, numpy and Python's own data."""
        return [path for path, runs_code in self.unsafe.items() if runs_code or not is_ordinary(path)]


class PtMeaning:
    """Resolves the names in some pickles of a file to values, and judges what they call.

    Args:
        origin: the file.
        storages: the storages that the pickles name.
        resolve: returns the value of a persistent id; none is valid without it.
        script: whether the file is a TorchScript archive, which C++ reads: its own classes are below `__torch__`.

    Attributes:
        id_parts: number of parts of a persistent id, for PyTorch's safe loader.
        work: budget of what calls may copy.
        tensors: the tensors that `torch.jit._pickle.build_tensor_from_id` numbers.
    """

    def __init__(
        self,
        origin: Origin,
        storages: StorageTable | None = None,
        resolve: Callable[[Any], Any] | None = None,
        script: bool = False,
    ) -> None:
        self.origin = origin
        self.limits = origin.limits
        self.storages = storages or StorageTable()
        self.work = Work(origin.limits, origin.source.size)
        self.tensors: list[Tensor] = []
        self.id_parts = NO_IDS
        self.script = script
        self.resolve = resolve
        self._globals: dict[tuple[str, str], Any] = {}
        self._calls: dict[int, Call] = {}  # of the globals that the file names, by identity

    def find(self, module: str, name: str) -> Any:
        """Return the value of a global: a constant, or its name."""
        value = self._globals.get((module, name))
        if value is None:
            # Python 2 has other names for some modules.
            if module in SAFE.modules:
                value = PythonGlobal(*renamed(module, name))
            else:
                value = PythonGlobal("copyreg" if module == "copy_reg" else module, name)
            self._judge(value)
            entry = GLOBALS.get(canonical(value))
            if isinstance(entry, TorchConstant):
                value = entry
            elif entry is not None:
                self._calls[id(value)] = entry
            self._globals[module, name] = value
        return value

    def make(self, constructor: Any, args: Any, how: str, kwargs: Any = None) -> Any:
        """Return the value of a call."""
        call = self._calls.get(id(constructor))
        if call is not None and not kwargs:
            function, least, most, kinds = call
            if type(args) is not tuple:
                raise CorruptError(f"{constructor.path} is called without a tuple of arguments")
            if how == "newobj" and constructor.path in _FILLED_LATER:
                args = ()
            if least <= len(args) <= most and (kinds is None or all(map(isinstance, args, kinds))):
                value = function(self, *args)
                if value is not NotImplemented:
                    return value
        if isinstance(constructor, PythonGlobal) and constructor.path in WEIGHTS_ONLY:
            self.doubt(f"a call of {constructor.path} whose arguments are not known to be right")
        return PythonObject(constructor, how, args, kwargs)

    def persistent(self, saved_id: Any) -> Any:
        """Return the value of a persistent id."""
        if self.resolve is None:
            raise CorruptError("the pickle refers to external data, which do not exist")
        return self.resolve(saved_id)

    def build(self, value: Any, state: Any) -> Any:
        """Return the value after its state was set."""
        parts = state if type(state) is tuple else (state,)
        if any(isinstance(part, dict) and "__setstate__" in part for part in parts[:2]):  # a second BUILD would call it
            raise CorruptError("a state replaces the method that sets it")
        if isinstance(value, PythonObject):
            if value.state is not UNSET:
                raise CorruptError("an object receives its state twice")
            value.state = state
        elif type(value) in STATES:
            return STATES[type(value)](self, value, state)
        elif state is not None:
            named = value.path if isinstance(value, PythonGlobal) else f"a {type(value).__name__}"
            raise CorruptError(f"{named} receives a state, but has none")
        return value

    def doubt(self, use: str) -> None:
        """Note a use of what PyTorch's safe loader knows that it refuses, or may refuse."""
        if self.origin.is_judged and not self.script:
            self.origin.uses[use] = None

    def _judge(self, value: PythonGlobal) -> None:
        """Refuse or record a name that PyTorch's safe loader does not know."""
        if value.path in WEIGHTS_ONLY or (self.script and value.path.startswith(SCRIPT_MODULES)):
            return
        self.origin.name(value.module, value.name)
        if self.origin.forbid and self.origin.unsafe[value.path]:
            raise ForbiddenGlobalError(
                f"the pickle names {value.path:.200}, which runs code or reaches the system",
                hint="Do not load this file in PyTorch; `t7bridge scan` lists all that it names.",
            )


def canonical(value: PythonGlobal) -> str:
    """Return the path of a global, with today's name of its module."""
    return f"{_RENAMED_MODULES.get(value.module, value.module)}.{value.name}"
