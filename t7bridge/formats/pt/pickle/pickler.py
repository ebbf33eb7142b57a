"""Python-side values as a pickle of protocol 2, the one that PyTorch's safe loader accepts."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ....data import define, pattern
from ....errors import UnsupportedError
from ....graph.python import UNSET, PythonGlobal, PythonObject
from ....graph.storage import Storage
from ....graph.tensor import Tensor
from . import opcodes
from .names import WEIGHTS_ONLY
from .reductions import NamedStorage, Naming, Reduction, form_of, global_named

_PYTHON_2_MODULES = {"builtins": "__builtin__", "copyreg": "copy_reg"}
"""Protocol 2 names of modules that Python 3 renamed."""
_UNWRITABLE = pattern("[\n\r \ud800-\udfff]")
"""Characters that a name in the text of GLOBAL cannot have: readers would end the line there, or cannot decode it."""
_BATCH = 1000
"""Entries added to a list or dict at once, as by Python's own pickler: it bounds the reader's stack."""


@define(frozen=True)
class _Raw:
    """Opcodes to emit between values."""

    opcodes: bytes


_MARK, _APPENDS, _SETITEMS, _BUILD = map(_Raw, (opcodes.MARK, opcodes.APPENDS, opcodes.SETITEMS, opcodes.BUILD))


@define(frozen=True, eq=False)
class _End:
    """An entry on the stack of what is to be written: a tuple or a call of which all parts have been written.

    Attributes:
        value: the value that ends here: a tuple of the items since the mark, or the result of the call. If the parts
            refer to it, they have built it already.
        call: the call of constructor and arguments; `None` for a tuple.
    """

    value: Any
    call: Reduction | None = None


class PickleWriter:
    """Writes one value as a pickle, at any nesting depth; shared objects stay shared.

    Args:
        storage_ref: returns the names of a storage in the pickle: its key, which is the member with its bytes below
            `data/`, and PyTorch's name of its device. It is called for each tensor, in the order of the pickle.
        is_legacy: whether PyTorch 0.2 to 1.5 must be able to read it: there storages have a part more in their ids.
        allow_foreign: whether classes and functions of other packages are named. Otherwise their objects are written as
            plain data; see `left_out_names`.

    Attributes, all filled by `dumps`:
        left_out_names: the foreign names that were left out, and the values that would have them.
        refused_names: the names that `torch.load(weights_only=True)` refuses, and the first value that has each.
        tensors: number of tensors written; a parameter and the tensor that it wraps are one.
    """

    def __init__(
        self, storage_ref: Callable[[Storage], tuple[str, str]], *, is_legacy: bool = False, allow_foreign: bool = False
    ) -> None:
        self._storage_ref = storage_ref
        """Returns the key of a storage in the file, and PyTorch's name of its device."""
        self._is_legacy = is_legacy
        """Whether PyTorch 0.2 to 1.5 must be able to read the pickle."""
        self._naming = Naming(allow_foreign)  # whether it may name classes and functions of other packages
        # The same dictionaries, which `_naming` fills.
        self.left_out_names = self._naming.left_out_names
        self.refused_names = self._naming.refused_names
        self.tensors = 0
        """Number of tensors written."""
        self._out = bytearray()
        """The pickle so far."""
        self._added_parts: tuple[Any, ...] = ()
        """The objects that the last call written has besides values of the file: its function, and arguments that
        `form_of` created. They are written next, and names in them are noted for the value that the call builds."""
        self._memo: dict[Any, int] = {}
        """The number of each value in the reader's memo: by ("str", text) or ("global", path) where equal ones are one
        object, by the bytes themselves, or by identity (an integer) for all others."""
        self._classes: dict[str, str] = {}
        """By key: the class with which each storage is named first. PyTorch uses it for all tensors of the storage."""
        self._alive: list[Any] = []
        """The values that the memo knows by identity, so that no later value gets the identity of one."""
        self._stack: list[Any] = []
        """What is still to be written: values, opcodes and ends of values; the next one is the last."""

    def dumps(self, value: Any) -> bytes:
        """Return the pickle of a value, the only one of this writer.

        Args:
            value: builtins, tensors, and the values of `graph.python`, nested and shared in any way.

        Raises:
            UnsupportedError: it contains anything else.
        """
        self._out += opcodes.PROTO + b"\x02"
        self._stack.append(value)
        while self._stack:
            item = self._stack.pop()
            if type(item) is _Raw:
                self._out += item.opcodes
            elif type(item) is _End:
                self._write_end(item.value, item.call)
            else:
                self._write(item)
        self._out += opcodes.STOP
        return bytes(self._out)

    def _write(self, value: Any) -> None:
        """Write a value, or its start, with what is inside it put on the stack; one written before by its number.

        Numbers are not in the memo: they are as short as a reference. `_write_text` looks up texts by itself.
        """
        out = self._out
        if value is None:
            out += opcodes.NONE
        elif value is True:
            out += opcodes.NEWTRUE
        elif value is False:
            out += opcodes.NEWFALSE
        elif isinstance(value, int):
            self._write_integer(value)
        elif isinstance(value, float):
            out += struct.pack(">cd", opcodes.BINFLOAT, value)
        elif isinstance(value, str):
            self._write_text(value)
        else:
            # Equal bytes are one object, as they cannot be changed; other values are one only by identity.
            memo_key = value if isinstance(value, bytes) else id(value)
            if not self._write_reference(memo_key):
                self._write_object(value)

    def _write_object(self, value: Any) -> None:
        """Write a value that may be shared, for the first time.

        A list or dict is numbered before its items, which may refer to it; a tuple at its end, in `_write_end`, as the
        reader creates it only there. Subclasses of dict, list and tuple have forms of their own: see `_write_reduced`.
        """
        if isinstance(value, bytes):
            self._write_bytes(value)
        elif type(value) is dict:
            self._write_dict(value, entries=value)
        elif type(value) is list:
            self._write_list(value, items=value)
        elif type(value) is tuple:
            if value:
                self._out += opcodes.MARK
                # The stack is taken from its end: the items in order, then the end of the tuple.
                self._stack.append(_End(value))
                self._stack.extend(reversed(value))
            else:
                self._out += opcodes.EMPTY_TUPLE
        elif type(value) is NamedStorage:
            self._write_storage_id(value)
        else:
            self._write_reduced(value)

    def _write_reduced(self, value: Any) -> None:
        """Write a value by its form, see `form_of`: a call that builds it, a name, or plain data.

        Of a call the parts are put on the stack, to be written next; its end follows them.
        """
        # What a form added is no value of the file: names in it are noted for the value that has the form.
        is_added_part = any(value is part for part in self._added_parts)
        if not is_added_part:
            self._naming.current = value
        form = form_of(value, self._naming)
        if type(value) is Tensor and not value.is_parameter:  # a parameter's form has a tensor, which is counted
            self.tensors += 1
        if isinstance(form, Reduction):
            self._added_parts = (form.constructor,)
            # The arguments of an object are values of the file, which may have names of their own.
            if not isinstance(value, PythonObject):
                self._added_parts += form.args
            # The constructor is written first: the stack is taken from its end. Items, entries and state follow in
            # `_write_end`, after the value has its number.
            self._stack += (_End(value, form), form.args, form.constructor)
        elif isinstance(form, PythonGlobal):
            self._write_global(form)
        elif isinstance(form, dict):
            self._write_dict(value, entries=form)
        elif isinstance(form, list):
            self._write_list(value, items=form)
        elif isinstance(form, NamedStorage):
            self._write_storage_id(form)
        else:  # a text, number or None
            self._write(form)

    def _write_dict(self, value: Any, entries: dict[Any, Any]) -> None:
        """Write a dict, and keep it in the memo as a value.

        Args:
            value: the dict; or the object that is written as a dict, its plain form.
            entries: of the dict.
        """
        self._out += opcodes.EMPTY_DICT
        self._memoize_by_identity(value)
        self._stack_entries(list(entries.items()))

    def _write_list(self, value: Any, items: list[Any]) -> None:
        """Write a list, and keep it in the memo as a value.

        Args:
            value: the list; or the object that is written as a list, its plain form.
            items: of the list.
        """
        self._out += opcodes.EMPTY_LIST
        self._memoize_by_identity(value)
        self._stack_items(items)

    def _write_end(self, value: Any, call: Reduction | None) -> None:
        """Write the end of a tuple or a call.

        A value that is in the memo already is inside itself: a part of it was the value again, which was then written
        from the start, parts and end, so that this outer end only refers to it.

        Raises:
            UnsupportedError: it holds itself, for which operations are needed that the safe loader refuses (POP), and
                foreign names are not allowed.
        """
        if id(value) in self._memo:
            if not self._naming.allow_foreign:
                raise UnsupportedError(
                    "a tuple or an object is inside itself, which torch.load(weights_only=True) does not read"
                )
            # What is on the reader's stack for it is dropped: a tuple's items up to the mark, or a constructor and its
            # arguments.
            self._out += opcodes.POP_MARK if call is None else opcodes.POP + opcodes.POP
            self._write_reference(id(value))
            return
        if call is None:
            self._out += opcodes.TUPLE
            self._memoize_by_identity(value)
            return
        self._out += opcodes.NEWOBJ if call.is_new else opcodes.REDUCE
        self._memoize_by_identity(value)
        # The stack is taken from its end: the reader appends items first, then sets entries, then the state, in the
        # order of Python's pickler.
        if call.state is not UNSET:
            self._stack += (_BUILD, call.state)
        self._stack_entries(call.pairs)
        self._stack_items(call.items)

    def _write_integer(self, value: int) -> None:
        """Write a whole number.

        Raises:
            UnsupportedError: it is one that the safe loader does not read, and foreign names are not allowed.
        """
        if 0 <= value < 1 << 8:
            self._out += struct.pack("<cB", opcodes.BININT1, value)
        elif 0 <= value < 1 << 16:
            self._out += struct.pack("<cH", opcodes.BININT2, value)
        elif -(1 << 31) <= value < 1 << 31:
            self._out += struct.pack("<ci", opcodes.BININT, value)
        else:
            # The fewest bytes of two's complement: one bit more than the number has, for the sign.
            bits = (~value if value < 0 else value).bit_length()
            data = value.to_bytes(bits // 8 + 1, "little", signed=True)
            if len(data) < 1 << 8:
                self._out += opcodes.LONG1 + bytes([len(data)])
            elif self._naming.allow_foreign:  # then the file is not for the safe loader, which does not know LONG4
                self._out += opcodes.LONG4 + struct.pack("<i", len(data))
            else:
                raise UnsupportedError(
                    "an integer has more bytes than torch.load(weights_only=True) reads",
                    expected="at most 255",
                    found=f"{len(data)}",
                )
            self._out += data

    def _write_text(self, value: str) -> None:
        """Write a text. Equal ones are one object, as with Python's pickler interned ones; lone surrogates stay."""
        if not self._write_reference(("str", value)):
            data = value.encode("utf-8", "surrogatepass")
            self._out += opcodes.BINUNICODE + struct.pack("<I", len(data)) + data
            self._memoize(("str", value))

    def _write_bytes(self, value: bytes) -> None:
        """Write bytes: protocol 2 has none, so they are text decoded by `_codecs.encode`, as with Python's pickler."""
        self._write_global(global_named("_codecs.encode"))
        self._write_text(value.decode("latin1"))
        self._write_text("latin1")
        self._out += opcodes.TUPLE2 + opcodes.REDUCE
        self._memoize(value)

    def _write_global(self, value: PythonGlobal) -> None:
        """Write a name as protocol 2 does: two lines of text. One that the safe loader refuses enters `refused_names`.

        Raises:
            UnsupportedError: the name has characters that a line cannot have.
        """
        path = value.path
        if not self._write_reference(("global", path)):
            if _UNWRITABLE.search(path):
                raise UnsupportedError("a class or function has a name that a pickle cannot write", found=path[:80])
            if path not in WEIGHTS_ONLY:
                self.refused_names.setdefault(path, self._naming.current)
            module = _PYTHON_2_MODULES.get(value.module, value.module)
            self._out += opcodes.GLOBAL + f"{module}\n{value.name}\n".encode()
            self._memoize(("global", path))

    def _stack_entries(self, entries: list[tuple[Any, Any]]) -> None:
        """Put the entries of a dict on the stack, in batches."""
        keys = self._naming.hashable([key for key, _ in entries])
        items = [item for _, item in entries]
        batches: list[Any] = []
        for start in range(0, len(entries), _BATCH):
            batches.append(_MARK)
            for key, item in zip(keys[start : start + _BATCH], items[start : start + _BATCH]):
                batches += (key, item)
            batches.append(_SETITEMS)
        self._stack.extend(reversed(batches))

    def _stack_items(self, items: list[Any]) -> None:
        """Put the items of a list on the stack, in batches."""
        batches: list[Any] = []
        for start in range(0, len(items), _BATCH):
            batches += [_MARK, *items[start : start + _BATCH], _APPENDS]
        self._stack.extend(reversed(batches))

    def _check_class(self, key: str, storage_class: str, is_untyped: bool) -> None:
        """Keep the class with which a storage is named first, and refuse another later on.

        Args:
            key: of the storage.
            storage_class: the class that it is named with now.
            is_untyped: whether this one has no element type.

        Raises:
            UnsupportedError: PyTorch would read a tensor with the elements of the first class.
        """
        first_class = self._classes.setdefault(key, storage_class)
        # An untyped name may follow any class, as its tensor states the element type. A class must not follow an
        # untyped name, nor another class.
        if storage_class != first_class and not is_untyped:
            raise UnsupportedError(
                "a quantized tensor, or a bare storage, shares memory with a tensor of another element type, "
                "which no .pt can hold"
            )

    def _write_storage_id(self, storage: NamedStorage) -> None:
        """Write a persistent id; never memoized, as PyTorch resolves equal ids to the same storage.

        Raises:
            UnsupportedError: the format has no such storage, or the storage was named with another class.
        """
        is_untyped = storage.storage_class == "UntypedStorage"
        if is_untyped and self._is_legacy:
            raise UnsupportedError(
                "PyTorch 0.2 to 1.5 have no storages of this element type", hint="Use the current format."
            )
        key, location = self._storage_ref(storage.storage)
        self._check_class(key, storage.storage_class, is_untyped)
        module = "torch.storage" if is_untyped else "torch"
        self._out += opcodes.MARK
        self._write_text("storage")
        self._write_global(PythonGlobal(module, storage.storage_class))
        self._write_text(key)
        self._write_text(location)
        self._write_integer(storage.count)
        if self._is_legacy:  # a sixth part: which part of another storage it is, none here
            self._out += opcodes.NONE
        self._out += opcodes.TUPLE + opcodes.BINPERSID

    # The memo

    def _write_reference(self, key: Any) -> bool:
        """Write the number of a value that the memo has; return whether it has it."""
        number = self._memo.get(key)
        if number is None:
            return False
        self._write_memo_opcode(opcodes.BINGET, opcodes.LONG_BINGET, number)
        return True

    def _memoize_by_identity(self, value: Any) -> None:
        """Number the value on top of the reader's stack, by its identity."""
        self._alive.append(value)
        self._memoize(id(value))

    def _memoize(self, key: Any) -> None:
        """Number the value on top of the reader's stack, by the key under which the memo has it."""
        number = self._memo[key] = len(self._memo)
        self._write_memo_opcode(opcodes.BINPUT, opcodes.LONG_BINPUT, number)

    def _write_memo_opcode(self, short: bytes, long: bytes, number: int) -> None:
        """Write an opcode of the memo: the short one, or the long one for a number of more than a byte."""
        self._out += struct.pack("<cB", short, number) if number < 256 else struct.pack("<cI", long, number)
