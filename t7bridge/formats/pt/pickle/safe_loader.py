"""PyTorch's safe loader, as far as it refuses: which names and which use of them stand in its way.

The same loop as in `torch/_weights_only_unpickler.py`, over stand-ins for values: nothing is built, and what a call
returns is known by its type only. Whether the arguments of a call make sense is seen by reading the file. A name that
the loader refuses is noted, and the loop continues with a stand-in that takes everything; the loop ends at an operation
or a use that is refused.

Source: PyTorch 2.13 `torch/_weights_only_unpickler.py` `Unpickler.load`, `torch/serialization.py` `persistent_load` in
`_load` and in `_legacy_load`, `torch/_tensor.py` `__setstate__`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ....data import define
from ....io.source import ByteSource
from ..storages import LEGACY_PARTS, NO_IDS
from . import opcodes
from .names import SAFE

_CHUNK_BYTES = 1 << 16
_MAX_STRING_BYTES = 1 << 30
"""Maximum number of bytes of one string."""


@define(frozen=True, eq=False)
class _Name:
    """A global that the loader knows, on the stack.

    Attributes:
        path: module and name.
    """

    path: str


@define(frozen=True, eq=False)
class _Kind:
    """A value on the stack of which only the type is known.

    Attributes:
        name: of the type, for messages.
    """

    name: str


_LIST, _DICT, _SET = _Kind("list"), _Kind("dict"), _Kind("set")
_ORDERED, _COUNTER = _Kind("OrderedDict"), _Kind("Counter")
_TENSOR, _PARAMETER, _STORAGE = _Kind("Tensor"), _Kind("Parameter"), _Kind("storage")
_NUMBER = _Kind("number")
_OTHER_TYPE = _Kind("value")
"""What a call returns of which no later operation asks for the type."""
_REFUSED = _Kind("refused")
"""A refused name, and all that is made of it: it was noted once, and anything may be done with it."""
_DICTS = (_DICT, _ORDERED, _COUNTER)

_REBUILD_TYPED = "torch._tensor._rebuild_from_type_v2"
_RESULTS = {
    "builtins.set": _SET,
    "collections.OrderedDict": _ORDERED,
    "collections.Counter": _COUNTER,
    "torch.nn.parameter.Parameter": _PARAMETER,
    "torch._utils._rebuild_parameter": _PARAMETER,
    "torch._utils._rebuild_parameter_with_state": _PARAMETER,
    "torch.Tensor": _TENSOR,
    "torch._utils._rebuild_tensor": _TENSOR,
    "torch._utils._rebuild_tensor_v2": _TENSOR,
    "torch._utils._rebuild_tensor_v3": _TENSOR,
    "torch._utils._rebuild_qtensor": _TENSOR,
    "torch._utils._rebuild_sparse_tensor": _TENSOR,
}
"""What a call returns, where a later operation asks for it."""


class _Refusal(Exception):
    """The loader refuses an operation or a use; the argument says which."""


class _Bytes:
    """The bytes of a pickle, read in pieces.

    Args:
        source: the file.
        position: offset of the first byte in the source.
        end: offset after the last byte that may be read.
    """

    def __init__(self, source: ByteSource, position: int, end: int) -> None:
        self._source = source
        self._next = position
        """Offset in the source of the first byte after the buffer."""
        self._end = end
        self._buffer = b""
        self._at = 0
        """Offset in the buffer of the next byte to return."""

    def read(self, count: int) -> bytes:
        """Return the next bytes.

        Raises:
            EOFError: there are fewer, or more are asked for than any string has.
        """
        if count > _MAX_STRING_BYTES:
            raise EOFError
        if self._at + count > len(self._buffer):
            self._fill(count)
        data = self._buffer[self._at : self._at + count]
        if len(data) < count:
            raise EOFError
        self._at += count
        return data

    def line(self) -> str:
        """Return the text up to the next line feed, and resume after it.

        Raises:
            EOFError: there is none.
            UnicodeDecodeError: it is not UTF-8.
        """
        stop = self._buffer.find(b"\n", self._at)
        while stop < 0:
            searched = len(self._buffer) - self._at
            # Twice as many each time: a long line is searched in linear time. One more, as 0 may be searched so far.
            if searched > _MAX_STRING_BYTES or not self._fill(2 * searched + 1):
                raise EOFError
            stop = self._buffer.find(b"\n", self._at + searched)
        data = self._buffer[self._at : stop]
        self._at = stop + 1
        return data.decode("utf-8")

    def number(self, form: str) -> Any:
        """Return the next number, in a form of `struct`."""
        (number,) = struct.unpack(form, self.read(struct.calcsize(form)))
        return number

    def _fill(self, count: int) -> bool:
        """Make `count` bytes available from the position on, or all there are; return whether any were added."""
        rest = self._buffer[self._at :]
        length = min(max(count - len(rest), _CHUNK_BYTES), self._end - self._next)
        data = self._source.read(self._next, length) if length > 0 else b""
        self._next += len(data)
        self._buffer = rest + data
        self._at = 0
        return bool(data)


@define(eq=False)
class Refused:
    """What the safe loader refuses in one pickle.

    Attributes:
        names: each refused module and name, once, in the order of the pickle, up to the first refused use.
        use: the first operation, or use of a value, that it refuses; empty if there is none. What follows it is not
            looked at.
    """

    names: dict[tuple[str, str], None]
    use: str = ""


def refused(source: ByteSource, position: int, end: int, id_parts: int, operations: int) -> Refused:
    """Return what PyTorch's safe loader refuses in a pickle.

    Args:
        source: the file.
        position: offset of the pickle, in bytes.
        end: of what may be read, in bytes.
        id_parts: number of parts of a persistent id; `NO_IDS` if there must be none.
        operations: maximum number to look at: a pickle of more is refused.
    """
    loader = _SafeLoader(_Bytes(source, position, end), id_parts)
    try:
        loader.run(operations)
    except _Refusal as refusal:
        loader.refused.use = str(refusal)
    except EOFError:
        loader.refused.use = "the pickle ends in the middle"
    except UnicodeDecodeError:
        loader.refused.use = "a text that is not UTF-8"
    except (IndexError, KeyError):  # from an empty stack, or a number of the memo that is not set
        loader.refused.use = "a value is taken from where the pickle put none"
    return loader.refused


class _SafeLoader:
    """Interprets one pickle as the safe loader does, over stand-ins for values, up to what it refuses.

    Args:
        data: its bytes.
        id_parts: number of parts of a persistent id; `NO_IDS` if there must be none.

    Attributes:
        refused: what is refused; `run` adds the names, and its caller the use.
    """

    def __init__(self, data: _Bytes, id_parts: int) -> None:
        self.refused = Refused({})
        self._data = data
        self._id_parts = id_parts
        """Number of parts that a persistent id must have."""
        self._stack: list[Any] = []
        """Stand-ins of values since the last mark: a `_Name`, a `_Kind`, or the value itself of a text, a truth value,
        None, and a tuple (of stand-ins)."""
        self._stacks: list[list[Any]] = []
        """Of each mark that is open: the stack before it."""
        self._memo: dict[int, Any] = {}
        """The stand-in of each value that was numbered."""

    def run(self, operations: int) -> None:
        """Look at every operation, up to STOP.

        Raises:
            _Refusal: the loader refuses one.
            EOFError: the pickle ends before STOP.
            IndexError: an operation takes more values than there are since the last mark.
            KeyError: a value is taken that was not numbered.
        """
        handlers = _HANDLERS
        for _ in range(operations):
            code = self._data.read(1)[0]
            if code == _STOP:
                self._stack.pop()  # the value, which must be there
                return
            handler = handlers.get(code)
            if handler is None:
                name = _NAMES_OF_CODES.get(code)
                raise _Refusal(f"the operation {name}" if name else f"the unknown operation 0x{code:02x}")
            handler(self)
        raise _Refusal(f"more than {operations:,} operations")

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop_mark(self) -> list[Any]:
        items = self._stack
        self._stack = self._stacks.pop()
        return items

    # Names, calls and objects

    def _global(self) -> None:
        """GLOBAL: module and name. A name that the loader does not know is noted, and its stand-in is `_REFUSED`."""
        module = self._data.line()
        name = self._data.line()
        module = SAFE.modules.get(module, module)
        path = f"{module}.{name}"
        if path in SAFE.names:
            self._push(_Name(path))
        else:
            self.refused.names[module, name] = None
            self._push(_REFUSED)

    def _reduce(self) -> None:
        args = self._stack.pop()
        self._stack[-1] = self._result_of(self._stack[-1], args)

    def _result_of(self, function: Any, args: Any) -> Any:
        """Return the stand-in for what a call returns.

        Args:
            function: the stand-in of the callable.
            args: that of the arguments, a tuple of stand-ins in every pickle that Python wrote.

        Raises:
            _Refusal: the loader does not call the function.
        """
        if function is _REFUSED:  # its name was noted, so that whatever is made of it is refused with it
            return _REFUSED
        if not isinstance(function, _Name) or function.path not in SAFE.called:
            raise _Refusal(f"a call of {_shown(function)}")
        if type(args) is not tuple:
            raise _Refusal(f"a call of {function.path} without a tuple of arguments")
        if function.path == _REBUILD_TYPED:
            return self._result_of_rebuild_typed(args)
        return _RESULTS.get(function.path, _OTHER_TYPE)

    def _result_of_rebuild_typed(self, args: tuple[Any, ...]) -> Any:
        """Return the stand-in for the result of `_rebuild_from_type_v2`: what a function returns, in another class.

        Only the class counts for what may be done with the result later.
        """
        if len(args) != 4:
            raise _Refusal(f"a call of {_REBUILD_TYPED} with {len(args)} arguments")
        function, cls, arguments, _state = args
        # A refused name was noted; otherwise the inner call is judged as any.
        if function is not _REFUSED and cls is not _REFUSED:
            self._result_of(function, arguments)
        if isinstance(cls, _Name):
            return _RESULTS.get(cls.path, _OTHER_TYPE)
        return _REFUSED if cls is _REFUSED else _OTHER_TYPE

    def _newobj(self) -> None:
        """NEWOBJ: a class and its arguments become an object; that of a refused name is `_REFUSED`, too."""
        args = self._stack.pop()
        cls = self._stack.pop()
        if cls is _REFUSED:
            self._push(_REFUSED)
            return
        if not isinstance(cls, _Name) or cls.path not in SAFE.constructed:
            raise _Refusal(f"an object of {_shown(cls)}")
        if type(args) is not tuple:
            raise _Refusal(f"an object of {cls.path} without a tuple of arguments")
        self._push(_RESULTS.get(cls.path, _OTHER_TYPE))

    def _build(self) -> None:
        """BUILD: set the state on top of the stack on the value below it, which stays there.

        Raises:
            _Refusal: the loader sets no such state on such a value.
        """
        state = self._stack.pop()
        value = self._stack[-1]
        if value is _REFUSED or state is _REFUSED:  # noted before
            return
        if value is _ORDERED:  # its attributes
            is_allowed = state in _DICTS
        elif value is _TENSOR:  # set_(storage, offset, size, stride)
            is_allowed = type(state) is tuple and len(state) == 4
        elif value is _PARAMETER:  # the same four, or the three or five items of PyTorch 0.1
            is_allowed = type(state) is tuple and len(state) in (3, 4, 5)
        else:
            is_allowed = False
        if not is_allowed:
            raise _Refusal(f"a state for {_shown(value)}")

    # Containers: what is put into them is dropped, as only their type is known

    def _append(self) -> None:
        self._stack.pop()
        self._check_list(self._stack[-1])

    def _appends(self) -> None:
        self._pop_mark()
        self._check_list(self._stack[-1])

    def _check_list(self, value: Any) -> None:
        if value is not _LIST and value is not _REFUSED:
            raise _Refusal(f"items appended to {_shown(value)}")

    def _set_item(self) -> None:
        self._stack.pop()  # the value
        self._stack.pop()  # its key
        self._check_dict(self._stack[-1])

    def _set_items(self) -> None:
        self._pop_mark()
        self._check_dict(self._stack[-1])

    def _check_dict(self, value: Any) -> None:
        if value not in _DICTS and value is not _REFUSED:
            raise _Refusal(f"items set in {_shown(value)}")

    def _mark(self) -> None:
        self._stacks.append(self._stack)
        self._stack = []

    def _tuple(self) -> None:
        items = tuple(self._pop_mark())
        self._push(items)

    def _tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError
        self._stack[-count:] = [tuple(self._stack[-count:])]

    # Scalars

    def _skip(self, count: int) -> None:
        """Pass over a number of so many bytes."""
        self._data.read(count)
        self._push(_NUMBER)

    def _text(self) -> None:
        self._push(str(self._data.read(self._data.number("<I")), "utf-8", "surrogatepass"))

    def _short_text(self) -> None:
        """Read a string of Python 2, which `torch.load` decodes."""
        self._push(self._data.read(self._data.number("<B")).decode("utf-8"))

    def _long(self) -> None:
        self._skip(self._data.number("<B"))

    # The memo, and persistent ids

    def _put(self, form: str) -> None:
        self._memo[self._data.number(form)] = self._stack[-1]

    def _get(self, form: str) -> None:
        self._push(self._memo[self._data.number(form)])

    def _persistent(self) -> None:
        """BINPERSID: the id of a storage on top of the stack becomes the stand-in for the storage.

        Raises:
            _Refusal: the loader does not take such an id.
        """
        saved_id = self._stack.pop()
        if type(saved_id) is not tuple or not saved_id or saved_id[0] != "storage":
            raise _Refusal("a persistent id that does not name a storage")
        if self._id_parts == NO_IDS:
            raise _Refusal("a persistent id where there are no storages")
        if len(saved_id) != self._id_parts:
            raise _Refusal(f"a persistent id of {len(saved_id)} parts")
        _storage, storage_class, *_ = saved_id
        # The legacy format asks the class for its element type, which this one has not.
        is_untyped = isinstance(storage_class, _Name) and storage_class.path.endswith(".UntypedStorage")
        if self._id_parts == LEGACY_PARTS and is_untyped:
            raise _Refusal("a storage without an element type")
        self._push(_STORAGE)


def _shown(value: Any) -> str:
    """Return what a value is, for a message."""
    if isinstance(value, _Name):
        return value.path
    return f"a {value.name}" if isinstance(value, _Kind) else f"a {type(value).__name__}"


def _pushes(value: Any) -> Callable[[_SafeLoader], Any]:
    return lambda loader: loader._push(value)


_BY_NAME: dict[str, Callable[[_SafeLoader], Any]] = {
    "GLOBAL": _SafeLoader._global,
    "REDUCE": _SafeLoader._reduce,
    "NEWOBJ": _SafeLoader._newobj,
    "BUILD": _SafeLoader._build,
    "APPEND": _SafeLoader._append,
    "APPENDS": _SafeLoader._appends,
    "SETITEM": _SafeLoader._set_item,
    "SETITEMS": _SafeLoader._set_items,
    "MARK": _SafeLoader._mark,
    "TUPLE": _SafeLoader._tuple,
    "TUPLE1": lambda loader: loader._tuple_of(1),
    "TUPLE2": lambda loader: loader._tuple_of(2),
    "TUPLE3": lambda loader: loader._tuple_of(3),
    "NONE": _pushes(None),
    "NEWFALSE": _pushes(False),
    "NEWTRUE": _pushes(True),
    "EMPTY_TUPLE": _pushes(()),
    "EMPTY_LIST": _pushes(_LIST),
    "EMPTY_DICT": _pushes(_DICT),
    "EMPTY_SET": _pushes(_SET),
    "BININT": lambda loader: loader._skip(4),
    "BININT1": lambda loader: loader._skip(1),
    "BININT2": lambda loader: loader._skip(2),
    "BINFLOAT": lambda loader: loader._skip(8),
    "BINUNICODE": _SafeLoader._text,
    "SHORT_BINSTRING": _SafeLoader._short_text,
    "LONG1": _SafeLoader._long,
    "BINPERSID": _SafeLoader._persistent,
    "BINGET": lambda loader: loader._get("<B"),
    "LONG_BINGET": lambda loader: loader._get("<I"),
    "BINPUT": lambda loader: loader._put("<B"),
    "LONG_BINPUT": lambda loader: loader._put("<I"),
    "PROTO": lambda loader: loader._data.read(1),
}
_NAMES_OF_CODES = {
    value[0]: name
    for name, value in vars(opcodes).items()
    if name.isupper() and isinstance(value, bytes) and len(value) == 1
}
_STOP = opcodes.STOP[0]
_HANDLERS = {
    code: _BY_NAME[name] for code, name in _NAMES_OF_CODES.items() if name in SAFE.operations and code != _STOP
}
