"""Meaning of the names in PyTorch's pickles: known globals become values, all others inert objects.

A known global is a function here from arguments, already inert, to a value. It can only build data; an unknown global
is never more than its name.

Source: PyTorch 2.13 `torch/_weights_only_unpickler.py` (known data), `torch/_utils.py`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from encodings import normalize_encoding
from encodings.aliases import aliases
from typing import Any

from ....errors import CorruptError, ForbiddenGlobalError, UnsupportedError
from ....graph.dtypes import ELEMENT_TYPES
from ....graph.python import (
    UNSET,
    DefaultDict,
    Device,
    NumpyArray,
    NumpyDtype,
    PythonGlobal,
    PythonObject,
    TorchConstant,
    TorchSize,
)
from ....graph.storage import Storage
from ....graph.tensor import Tensor
from ....limits import DEFAULT_LIMITS, Limits
from ..storages import StorageTable, element_named, storage_element
from .context import Context, Handler
from .names import CALLED, FORBIDDEN, FOREIGN, STATE, VALUE, may_call, may_fill, renamed, standing

_CANONICAL = {"copy_reg": "copyreg"}
_SAME = {
    "torch.tensor": "torch._tensor",
    "numpy._core.multiarray": "numpy.core.multiarray",
    "numpy._core.numeric": "numpy.core.numeric",
}
"""Modules that were renamed."""

_LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn", "jagged")
_QSCHEMES = (
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
)
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
CONSTANTS: dict[str, TorchConstant] = {
    name: TorchConstant(kind, name)
    for kind, names in (
        ("dtype", tuple(ELEMENT_TYPES)),
        ("layout", _LAYOUTS),
        ("qscheme", _QSCHEMES),
        ("memory_format", _MEMORY_FORMATS),
    )
    for name in names
}

_CLASS_ARGUMENTS = {
    "copyreg.__newobj__": 0,
    "copyreg.__newobj_ex__": 0,
    "copyreg._reconstructor": 0,
    "torch._tensor._rebuild_from_type": 1,
    "torch._tensor._rebuild_from_type_v2": 1,
}
"""Functions that receive a class without constructing it, and the number of this argument, 0-based."""

_FILLED_LATER = frozenset(
    {
        "collections.OrderedDict", "collections.defaultdict", "collections.Counter", "builtins.list", "builtins.set",
        "builtins.dict", "builtins.bytearray",
    }
)  # fmt: skip
"""Classes whose `__new__` ignores its arguments: NEWOBJ creates them empty."""


class PtMeaning(Context):
    """Resolves the names in a file's pickles to values.

    Args:
        storages: the storages of the file.
        persistent: returns the value of a persistent id.
        nested: reads a whole PyTorch file that is embedded in a pickle as bytes.
        limits: resource limits.
        size: bytes of the file, which bound what it can hold.
        forbid: whether names that run code or reach the system are refused.
        script: whether the file is a TorchScript archive, whose own classes are below `__torch__`.

    Attributes:
        foreign: globals that are neither PyTorch's data nor harmless classes, in the order of the file: path →
            `FORBIDDEN`, `FOREIGN`, or `CALLED`: harmless by itself, but not as it is used.
    """

    def __init__(
        self,
        storages: StorageTable,
        persistent: Callable[[Any], Any] | None = None,
        nested: Callable[[bytes], Any] | None = None,
        limits: Limits = DEFAULT_LIMITS,
        size: int = 0,
        forbid: bool = False,
        script: bool = False,
    ) -> None:
        super().__init__(storages, nested, limits, size)
        self._forbid = forbid
        self.foreign: dict[str, str] = {}
        self._script = script
        self._persistent = persistent
        self._globals: dict[tuple[str, str], Any] = {}
        self._uncalled: dict[int, str] = {}  # kinds of the names that must not be called, by identity

    def find(self, module: str, name: str) -> Any:
        """Return the value of a global: a constant, or its name."""
        known = self._globals.get((module, name))
        if known is not None:
            return known
        value: Any = None
        if module == "torch":
            element = element_named(name)
            value = CONSTANTS.get(element.name if element else name)
        if value is None:
            python2 = module == "__builtin__"
            value = PythonGlobal(*(renamed(module, name) if python2 else (_CANONICAL.get(module, module), name)))
            handler = _handler(f"{_SAME.get(value.module, value.module)}.{value.name}") or self._typed_handler(value)
            if handler:
                self.handlers[id(value)] = handler
            else:
                self._judge(value)
        self._globals[module, name] = value
        return value

    def _judge(self, value: PythonGlobal) -> None:
        """Refuse or record a name that has no meaning here."""
        if self._script and value.module.partition(".")[0] == "__torch__":
            return
        found = standing(value.module, value.name)
        if found == FORBIDDEN and self._forbid:
            raise ForbiddenGlobalError(
                f"the pickle names {value.path:.200}, which runs code or reaches the system",
                hint="Do not load this file in PyTorch; `t7bridge scan` lists all that it names.",
            )
        if found in (FORBIDDEN, FOREIGN):
            self.foreign[value.path] = found
        elif found in (STATE, VALUE):
            self._uncalled[id(value)] = found

    def _note_call(self, value: Any) -> None:
        """Record a call beyond what the name may be used for."""
        self.foreign.setdefault(getattr(value, "path", "") or f"a {type(value).__name__}", CALLED)

    def _judge_call(self, constructor: PythonGlobal, args: Any, how: str) -> None:
        """Record a call of a class of plain state: by the pickle, or by a function that receives the class."""
        kind = self._uncalled.get(id(constructor))
        if kind and not may_call(kind, how, args):
            self._note_call(constructor)
        if how in ("reduce", "inst") and isinstance(args, tuple):
            module = _SAME.get(constructor.module, constructor.module)
            passed = _CLASS_ARGUMENTS.get(f"{module}.{constructor.name}")
            for number, value in enumerate(args):
                if number != passed and self._uncalled.get(id(value)) == STATE:
                    self._note_call(value)

    def fill(self, value: PythonObject) -> None:
        """Record items of an object: its own methods would receive them."""
        cls = value.constructor
        if isinstance(cls, PythonGlobal) and cls.module == "copyreg" and isinstance(value.args, tuple) and value.args:
            cls = value.args[0]
        if self._script or (isinstance(cls, PythonGlobal) and may_fill(cls.module, cls.name)):
            return
        self._note_call(cls)

    @staticmethod
    def _typed_handler(value: PythonGlobal) -> Handler | None:
        """Return the handler of a tensor or storage class by name: `torch.FloatTensor`, `torch.cuda.LongStorage`."""
        from .rebuild_tensors import storage_of_list, tensor_class, tensor_of_list

        if storage_element(value):
            return lambda meaning, args: storage_of_list(meaning, value, args)
        if tensor_class(value):
            return lambda meaning, args: tensor_of_list(meaning, value, args)
        return None

    def make(self, constructor: Any, args: Any, how: str, kwargs: Any = None) -> Any:
        """Return the value of a call."""
        if type(constructor) is not PythonGlobal:
            self._note_call(constructor)
        elif self._uncalled:
            self._judge_call(constructor, args, how)
        handler = self.handlers.get(id(constructor))
        if handler is not None and not kwargs:
            if type(args) is not tuple:
                raise CorruptError(f"{constructor.path} is called without a tuple of arguments")
            if how == "newobj" and constructor.path in _FILLED_LATER:
                args = ()
            value = handler(self, args)
            if value is not NotImplemented:
                return value
        return PythonObject(constructor, how, args, kwargs)

    def persistent(self, saved_id: Any) -> Any:
        """Return the value of a persistent id."""
        if self._persistent is None:
            raise CorruptError("the pickle refers to external data, which do not exist")
        return self._persistent(saved_id)

    def build(self, value: Any, state: Any) -> Any:
        """Return the value after its state was set."""
        if _replaces_method(state):
            raise CorruptError("a state replaces the method that sets it")
        if isinstance(value, PythonObject):
            if value.state is not UNSET:
                raise CorruptError("an object receives its state twice")
            value.state = state
        elif isinstance(value, OrderedDict):
            self.work.spend(len(state) if isinstance(state, dict) else 0)
            _set_attributes(value, state)
        elif isinstance(value, Tensor):
            from .rebuild_tensors import set_tensor_state

            return set_tensor_state(self, value, state)
        elif isinstance(value, (NumpyArray, NumpyDtype)):
            from .rebuild_numpy import set_numpy_state

            set_numpy_state(value, state)
        elif state is not None:
            named = value.path if isinstance(value, PythonGlobal) else f"a {type(value).__name__}"
            raise CorruptError(f"{named} receives a state, but has none")
        return value


def _replaces_method(state: Any) -> bool:
    """Return whether a state has the attribute that a second BUILD would call."""
    parts = state if type(state) is tuple else (state,)
    return any(isinstance(part, dict) and "__setstate__" in part for part in parts[:2])


def _set_attributes(value: OrderedDict[Any, Any], state: Any) -> None:
    """Set the attributes of an `OrderedDict`: `_metadata` of a state dict. None may shadow those of the class."""
    if state is None:
        return
    if not isinstance(state, dict):
        raise CorruptError("an OrderedDict receives a state that is not a dict")
    for key, item in state.items():
        if type(key) is not str or hasattr(OrderedDict, key):
            raise CorruptError(f"an OrderedDict receives an attribute {key!r:.60}")
        setattr(value, key, item)


# Python's own


def _ordered_dict(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    return _filled(meaning, OrderedDict(), args)


def _filled(meaning: PtMeaning, target: Any, args: tuple[Any, ...]) -> Any:
    """Return a dict filled from the constructor's argument: nothing, a dict, or a list of pairs."""
    if len(args) > 1:
        return NotImplemented
    source = args[0] if args else {}
    if isinstance(source, dict):
        source = list(source.items())
    if not isinstance(source, (list, tuple)) or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in source):
        return NotImplemented
    meaning.work.spend(len(source))
    for key, item in source:
        meaning.work.check_key(target, key)
        target[key] = item
    return target


def _default_dict(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    return _filled(meaning, DefaultDict(args[0] if args else None), args[1:])


def _counter(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    if args and not isinstance(args[0], dict):
        return NotImplemented
    return _filled(meaning, Counter(), args)


def _collection(kind: Callable[[Any], Any]) -> Handler:
    def handler(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
        if not args:
            return kind(())
        if len(args) > 1 or not isinstance(args[0], (list, tuple, set, frozenset)):
            return NotImplemented
        meaning.work.spend(len(args[0]))
        if kind in (set, frozenset):
            meaning.work.check_elements(args[0])
        return kind(args[0])

    return handler


def _dict(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    return _filled(meaning, {}, args)


def _bytearray(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    if not args:
        return bytearray()
    if isinstance(args[0], (bytes, bytearray)) and len(args) == 1:
        meaning.work.spend(len(args[0]))
        return bytearray(args[0])
    encoded = _encode(meaning, args)
    return encoded if encoded is NotImplemented else bytearray(encoded)


def _bytes(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    if not args:
        return b""
    if len(args) > 1 or not isinstance(args[0], (bytes, bytearray)):
        return NotImplemented
    meaning.work.spend(len(args[0]))
    return bytes(args[0])


def _complex(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    if len(args) not in (1, 2) or not all(isinstance(part, (int, float)) for part in args):
        return NotImplemented
    return complex(*args)


_CODECS = {"latin_1", "utf_8", "ascii"}


def _encode(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    """Return the bytes that protocol 2 writes as text: one character per byte."""
    if len(args) not in (1, 2) or type(args[-1]) is not str:
        return NotImplemented
    name = normalize_encoding(args[1] if len(args) == 2 else "utf-8").lower()
    codec = aliases.get(name, name)
    if codec not in _CODECS:  # CPython would import it by its name
        raise UnsupportedError("bytes are written as a text in an encoding that no pickler uses", expected="latin1")
    if type(args[0]) is not str:
        return NotImplemented
    meaning.work.spend(len(args[0]))
    return args[0].encode(codec)


def _new_object(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    if not args or _is_copyreg(args[0]):
        return NotImplemented
    return meaning.make(args[0], args[1:], "newobj")


def _new_object_ex(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    if len(args) != 3 or _is_copyreg(args[0]):
        return NotImplemented
    return meaning.make(args[0], args[1], "newobj_ex", args[2])


def _is_copyreg(value: Any) -> bool:
    """Return whether a call would only lead to the next such call, which a file could repeat endlessly."""
    return isinstance(value, PythonGlobal) and value.module == "copyreg"


# PyTorch's constants


def _size(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    if len(args) > 1 or (args and not isinstance(args[0], (list, tuple))):
        return NotImplemented
    meaning.work.spend(len(args[0]) if args else 0)
    return TorchSize(args[0] if args else ())


def _device(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    if len(args) not in (1, 2) or type(args[0]) is not str:
        return NotImplemented
    kind, _, number = args[0].partition(":")
    index = args[1] if len(args) == 2 else int(number) if number.isdecimal() else None
    return Device(kind, index) if index is None or type(index) is int else NotImplemented


def _layout(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    name = args[0].removeprefix("torch.") if len(args) == 1 and type(args[0]) is str else ""
    found = CONSTANTS.get(name)
    return found if found and found.kind == "layout" else NotImplemented


def _load_from_bytes(meaning: PtMeaning, args: tuple[Any, ...]) -> Any:
    """Return a storage that was pickled as an embedded file: by anything but `torch.save`."""
    if len(args) != 1 or not isinstance(args[0], (bytes, bytearray)) or meaning.nested is None:
        return NotImplemented
    meaning.work.spend(len(args[0]))
    value = meaning.nested(bytes(args[0]))
    if isinstance(value, Storage):
        return value
    return NotImplemented


_PYTHON: dict[str, Handler] = {
    "collections.OrderedDict": _ordered_dict,
    "collections.defaultdict": _default_dict,
    "collections.Counter": _counter,
    "builtins.list": _collection(list),
    "builtins.tuple": _collection(tuple),
    "builtins.set": _collection(set),
    "builtins.frozenset": _collection(frozenset),
    "builtins.dict": _dict,
    "builtins.bytearray": _bytearray,
    "builtins.bytes": _bytes,
    "builtins.complex": _complex,
    "_codecs.encode": _encode,
    "copyreg.__newobj__": _new_object,
    "copyreg.__newobj_ex__": _new_object_ex,
    "copyreg._reconstructor": lambda meaning, args: NotImplemented,
    "torch.Size": _size,
    "torch.device": _device,
    "torch.serialization._get_layout": _layout,
    "torch.storage._load_from_bytes": _load_from_bytes,
}


def _handler(name: str) -> Handler | None:
    """Return the handler of a global; `None` if it has none."""
    if name.startswith("numpy."):
        from .rebuild_numpy import HANDLERS
    else:
        from .rebuild_tensors import HANDLERS
    return _PYTHON.get(name) or HANDLERS.get(name)
