"""The parts of the pickle interpreter: its window on the file, its containers, its rarer opcodes.

Source: CPython 3.11 `Lib/pickletools.py` (what every opcode does), `Lib/pickle.py` (how text is decoded).
"""

from __future__ import annotations

import codecs
import struct
from collections import Counter
from typing import Any, Protocol

from ....errors import CorruptError, LimitError, TruncatedError, UnsupportedError
from ....graph.python import PythonObject
from ....io.source import ByteSource
from ....limits import OBJECT_BYTES, Limits

CHUNK_BYTES = 1 << 16
MARGIN_BYTES = 16
"""No opcode has a fixed argument longer than this: inside of it, arguments are read without asking for more bytes."""
_MAX_INTEGER_BYTES = 1024
_MAX_KEY_PARTS = 10_000
_MAX_KEY_DEPTH = 100
_FREE_SETS = 100_000

SIMPLE_KEYS = frozenset({str, int, bytes, float, bool, type(None), complex})
_UNHASHABLE = (list, dict, set, bytearray)

unpack_u2 = struct.Struct("<H").unpack_from
unpack_u4 = struct.Struct("<I").unpack_from
unpack_i4 = struct.Struct("<i").unpack_from
unpack_u8 = struct.Struct("<Q").unpack_from


class Meaning(Protocol):
    """What the names in a pickle mean."""

    def find(self, module: str, name: str) -> Any:
        """The value of a global."""

    def make(self, constructor: Any, args: Any, how: str, kwargs: Any = None) -> Any:
        """The value of a call, `how` as in `PythonObject`."""

    def build(self, value: Any, state: Any) -> Any:
        """The value, once it was given a state."""

    def persistent(self, saved_id: Any) -> Any:
        """The value of a persistent id."""


def check_key(key: Any) -> None:
    """Check that a value can be the key of a dict without costing time or the interpreter's stack.

    Raises:
        CorruptError: Python could not hash it.
        LimitError: it is a tuple of tuples of tuples.
    """
    parts = [(key, 0)]
    count = 0
    while parts:
        part, depth = parts.pop()
        if isinstance(part, _UNHASHABLE):
            raise CorruptError(f"a {type(part).__name__} stands as a key or in a set")
        if isinstance(part, tuple):
            count += len(part)
            if depth > _MAX_KEY_DEPTH or count > _MAX_KEY_PARTS:
                raise LimitError(
                    "a tuple that stands as a key is nested too deep or has too many parts",
                    expected=f"at most {_MAX_KEY_DEPTH} levels and {_MAX_KEY_PARTS} parts, which is fixed",
                )
            parts.extend((inner, depth + 1) for inner in part)


class Machine:
    """The state of an unpickler, and the opcodes that are met less often.

    Args:
        source: where the bytes are; they are read in pieces.
        position: of the first pickle, in bytes.
        end: of what may be read, in bytes.
        meaning: what the names mean.
        limits: what the pickles may cost.
        member: name of the part of the file, for messages.
    """

    def __init__(
        self, source: ByteSource, position: int, end: int, meaning: Meaning, limits: Limits, member: str = ""
    ) -> None:
        self._source = source
        self._base = position
        self._end = end
        self._meaning = meaning
        self._member = member
        self._limits = limits
        self._ceiling = "pickle_operations"
        self._budget = limits.pickle_operations
        self.restrict(limits.allocated_bytes // OBJECT_BYTES, "allocated_bytes")
        self._sets = 0
        self._longest = limits.string_bytes
        self._buffer = b""
        self._safe = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self.position = position
        """Offset in the source just behind the last pickle that was read."""

    def restrict(self, operations: int, limit: str = "inflated_operations") -> None:
        """Allow no more operations than this, on account of a limit."""
        if operations < self._budget:
            self._budget, self._ceiling = operations, limit

    def _too_many(self) -> LimitError:
        value = getattr(self._limits, self._ceiling)
        return LimitError("the pickle has too many operations", limit=self._ceiling, value=value)

    def skip(self, count: int) -> None:
        """Go on reading `count` bytes further on."""
        self.position += count
        if self.position > self._base + len(self._buffer):
            self._base, self._buffer, self._safe = self.position, b"", 0

    def _push_checked(self, value: Any) -> None:
        """Push a value, where strings inside the buffer are looked at too."""
        if isinstance(value, (str, bytes, bytearray)):
            self._check_length(len(value))
        self._stack.append(value)

    def _check_length(self, length: int) -> None:
        if length > self._longest:
            raise LimitError(
                "the pickle holds a string that is too long",
                found=f"{length} bytes",
                limit="string_bytes",
                value=self._longest,
            )

    def _need(self, pos: int, count: int) -> int:
        """Have `count` bytes from `pos` on in the buffer; returns where `pos` is now."""
        if self._base + pos + count > self._end:
            self._at = pos
            raise TruncatedError(
                "the pickle ends in the middle", expected=f"{count} bytes", found=f"{self._end - self._base - pos}"
            )
        rest = self._buffer[pos:]
        start = self._base + pos + len(rest)
        wanted = min(max(count - len(rest), CHUNK_BYTES), self._end - start)
        self._buffer = rest + self._source.read_exact(start, wanted, "a pickle")
        self._base += pos
        last = start + wanted >= self._end
        self._safe = len(self._buffer) - (0 if last else MARGIN_BYTES)
        return 0

    def _line(self, pos: int) -> tuple[bytes, int]:
        """The text up to the next newline, and the position behind it."""
        while True:
            stop = self._buffer.find(b"\n", pos)
            if stop >= 0:
                return self._buffer[pos:stop], stop + 1
            have = len(self._buffer) - pos
            left = self._end - self._base - pos
            pos = self._need(pos, min(2 * have + CHUNK_BYTES, left) if left > have else left + 1)

    # Containers

    def _extend(self, target: Any, items: list[Any]) -> None:
        if type(target) is list:
            target.extend(items)
        elif isinstance(target, PythonObject):
            target.items.extend(items)
        else:
            raise CorruptError(f"the pickle appends to a {type(target).__name__}")

    def _set_items(self, target: Any, items: list[Any]) -> None:
        if len(items) % 2:
            raise CorruptError("the pickle has a key without a value")
        if isinstance(target, PythonObject):
            target.pairs.extend(zip(items[::2], items[1::2]))
        elif isinstance(target, dict):
            keys = items[::2]
            for key in keys:
                if type(key) not in SIMPLE_KEYS:
                    check_key(key)
            if type(target) is Counter:  # whose own `update` counts
                dict.update(target, zip(keys, items[1::2]))
            else:
                target.update(zip(keys, items[1::2]))
        else:
            raise CorruptError(f"the pickle sets an item of a {type(target).__name__}")

    def _add(self, target: Any, items: list[Any]) -> None:
        if type(target) is set:
            target.update(self._hashable(items))
        elif isinstance(target, PythonObject):
            target.items.extend(items)
        else:
            raise CorruptError(f"the pickle adds to a {type(target).__name__}")

    @staticmethod
    def _hashable(items: list[Any]) -> list[Any]:
        for item in items:
            if type(item) not in SIMPLE_KEYS:
                check_key(item)
        return items

    def _popped_mark(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    # The opcodes that are met less often

    def _rare(self, op: int, pos: int) -> int:
        """Carry out one opcode whose argument starts at `pos`; returns where the next opcode is."""
        stack = self._stack
        if op == 0x63:  # GLOBAL
            module, pos = self._line(pos)
            name, pos = self._line(pos)
            stack.append(self._meaning.find(module.decode(), name.decode()))
        elif op == 0x93:  # STACK_GLOBAL
            found, where = stack.pop(), stack.pop()
            if type(found) is not str or type(where) is not str:
                raise CorruptError("the name of a global is no text")
            stack.append(self._meaning.find(where, found))
        elif op == 0x88:  # NEWTRUE
            stack.append(True)
        elif op == 0x87:  # TUPLE3
            items = tuple(stack[-3:])
            if len(items) != 3:
                raise IndexError
            del stack[-3:]
            stack.append(items)
        elif op == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            self._set_items(stack[-1], [key, value])
        elif op == 0x61:  # APPEND
            value = stack.pop()
            self._extend(stack[-1], [value])
        elif op == 0x62:  # BUILD
            state = stack.pop()
            stack[-1] = self._meaning.build(stack[-1], state)
        elif op == 0x81:  # NEWOBJ
            args = stack.pop()
            stack[-1] = self._meaning.make(stack[-1], args, "newobj")
        elif op == 0x92:  # NEWOBJ_EX
            kwargs, args = stack.pop(), stack.pop()
            stack[-1] = self._meaning.make(stack[-1], args, "newobj_ex", kwargs)
        elif op == 0x80:  # PROTO
            if self._buffer[pos] > 5:
                raise UnsupportedError(f"the pickle is of protocol {self._buffer[pos]}, and only 0 to 5 are known")
            pos += 1
        elif op == 0x95:  # FRAME
            if self._base + pos + 8 + unpack_u8(self._buffer, pos)[0] > self._end:
                raise TruncatedError("a frame of the pickle goes beyond its end")
            pos += 8
        elif op in _STRINGS:
            pos = self._string(op, pos)
        elif op in (0x8A, 0x8B):  # LONG1, LONG4
            width = 1 if op == 0x8A else 4
            count = self._buffer[pos] if width == 1 else unpack_i4(self._buffer, pos)[0]
            if not 0 <= count <= _MAX_INTEGER_BYTES:
                raise LimitError(
                    "the pickle holds an integer of too many bytes",
                    expected=f"at most {_MAX_INTEGER_BYTES}, which is fixed",
                    found=f"{count}",
                )
            pos = self._need(pos, width + count) if pos + width + count > len(self._buffer) else pos
            stack.append(int.from_bytes(self._buffer[pos + width : pos + width + count], "little", signed=True))
            pos += width + count
        else:
            pos = self._old(op, pos)
        return pos

    def _string(self, op: int, pos: int) -> int:
        """An opcode with a length and that many bytes."""
        kind, width = _STRINGS[op]
        wide = unpack_u4 if width == 4 else unpack_u8
        count = self._buffer[pos] if width == 1 else wide(self._buffer, pos)[0]
        if pos + width + count > len(self._buffer):
            pos = self._need(pos, width + count)
        self._check_length(count)
        data = self._buffer[pos + width : pos + width + count]
        value: Any = data
        if kind == "text":
            value = data.decode("utf-8", "surrogatepass")
        elif kind == "python2":
            value = _python2_text(data)
        elif kind == "bytearray":
            value = bytearray(data)
        self._stack.append(value)
        return pos + width + count

    def _old(self, op: int, pos: int) -> int:
        """The opcodes of sets, and those that protocols 0 and 1 have for what newer ones say otherwise."""
        stack, marks = self._stack, self._marks
        if op == 0x8F:  # EMPTY_SET
            self._sets += 1  # an empty set takes more memory than anything else that is one byte here
            if 4 * self._sets > min(self._budget, _FREE_SETS + self._end - self._base):
                raise self._too_many()
            stack.append(set())
        elif op == 0x90:  # ADDITEMS
            items = self._popped_mark()
            self._add(stack[-1], items)
        elif op == 0x91:  # FROZENSET
            stack.append(frozenset(self._hashable(self._popped_mark())))
        elif op == 0x6C:  # LIST
            stack.append(self._popped_mark())
        elif op == 0x64:  # DICT
            items = self._popped_mark()
            stack.append({})
            self._set_items(stack[-1], items)
        elif op == 0x30:  # POP
            if marks and marks[-1] == len(stack):
                marks.pop()
            else:
                stack.pop()
        elif op == 0x31:  # POP_MARK
            self._popped_mark()
        elif op == 0x32:  # DUP
            stack.append(stack[-1])
        elif op == 0x6F:  # OBJ
            cls, *args = self._popped_mark()
            stack.append(self._meaning.make(cls, tuple(args), "inst"))
        elif op in (0x82, 0x83, 0x84):  # EXT1, EXT2, EXT4
            raise UnsupportedError("the pickle names a class by an extension code, which only its writer can resolve")
        elif op in (0x97, 0x98):  # NEXT_BUFFER, READONLY_BUFFER
            raise UnsupportedError("the pickle has its data in buffers outside the file")
        elif op in b"IFLSVPpgi":
            pos = self._text(op, pos)
        else:
            raise CorruptError(f"0x{op:02x} is no operation of a pickle")
        return pos

    def _text(self, op: int, pos: int) -> int:
        """An opcode whose argument is a line of text."""
        stack = self._stack
        line, pos = self._line(pos)
        self._check_length(len(line))
        if op == 0x49:  # INT
            stack.append({b"00": False, b"01": True}[line] if line in (b"00", b"01") else int(line))
        elif op == 0x4C:  # LONG
            stack.append(int(line.removesuffix(b"L")))
        elif op == 0x46:  # FLOAT
            stack.append(float(line))
        elif op == 0x53:  # STRING
            if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in b"'\"":
                raise CorruptError("a string of the pickle is not quoted")
            stack.append(_python2_text(codecs.escape_decode(line[1:-1])[0]))
        elif op == 0x56:  # UNICODE
            stack.append(line.decode("raw-unicode-escape"))
        elif op == 0x50:  # PERSID
            stack.append(self._meaning.persistent(line.decode("ascii")))
        elif op == 0x70:  # PUT
            self._memo[int(line)] = stack[-1]
        elif op == 0x67:  # GET
            stack.append(self._memo[int(line)])
        else:  # INST
            name, pos = self._line(pos)
            args = tuple(self._popped_mark())
            stack.append(self._meaning.make(self._meaning.find(line.decode(), name.decode()), args, "inst"))
        return pos


_STRINGS: dict[int, tuple[str, int]] = {
    0x42: ("bytes", 4),  # BINBYTES
    0x43: ("bytes", 1),  # SHORT_BINBYTES
    0x8E: ("bytes", 8),  # BINBYTES8
    0x8D: ("text", 8),  # BINUNICODE8
    0x54: ("python2", 4),  # BINSTRING
    0x55: ("python2", 1),  # SHORT_BINSTRING
    0x96: ("bytearray", 8),  # BYTEARRAY8
}


def _python2_text(data: bytes) -> str | bytes:
    """A `str` of Python 2: text where it is valid UTF-8, as `torch.load` has it, else the bytes that it is."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
