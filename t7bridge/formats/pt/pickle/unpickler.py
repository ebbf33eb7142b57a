"""An interpreter of pickles that imports nothing, calls nothing and builds inert values.

All opcodes of protocols 0 to 5 are supported, except the two kinds that refer to data outside the file: extension codes
and out-of-band buffers. A `PickleContext` decides what a global, a call or a state becomes: plain data in, plain
data out.

A pickle is refused if CPython's own unpicklers disagree about it, or read another value than its bytes show:

- Nothing crosses the end of a FRAME: CPython drops the part of a text line, a number or an inner frame inside it.
- Numbers in text are decimal and have one form: CPython reads `010` as 8, and stops at a zero byte.

Pickles that CPython refuses for taking values from below the topmost mark are read: no other reader accepts them.
Source: CPython 3.11 `Lib/pickletools.py` (the effect of every opcode), `Lib/pickle.py` (how text is decoded),
`Modules/_pickle.c` (`_Unpickler_ReadImpl`, `_Unpickler_Readline`, `load_frame`).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ....errors import (
    CorruptError,
    ForbiddenGlobalError,
    LimitError,
    T7BridgeError,
    TruncatedError,
    UnsupportedError,
)
from ....graph.python import PythonObject
from ....io.source import ByteSource
from ....limits import OBJECT_BYTES
from ....report import Note
from ....text import counted
from . import opcodes
from .context import PickleContext
from .safe_loader import refused

_CHUNK_BYTES = 1 << 16
_MARGIN_BYTES = 16
"""Maximum length of an opcode's fixed argument: within it, arguments are read without checking the buffer."""
_MAX_INTEGER_BYTES = 1024
"""Maximum length of an integer, in bytes."""
_SET_COST = 4
"""Bytes of the pickle, and operations, that an empty set counts as: no opcode of one byte takes more memory."""
_FREE_SET_BYTES = 100_000
"""Bytes added to those of the pickle before empty sets are charged to them: small pickles may have some sets."""

_unpack_u2 = struct.Struct("<H").unpack_from
_unpack_u4 = struct.Struct("<I").unpack_from
_unpack_i4 = struct.Struct("<i").unpack_from
_unpack_u8 = struct.Struct("<Q").unpack_from
_unpack_f8 = struct.Struct(">d").unpack_from


def _note_on_rest(nbytes: int, pickles: int, member: str) -> Note:
    """Return the note that bytes after a value are left out.

    Args:
        nbytes: how many bytes.
        pickles: how many pickles are among them.
        member: the part of the file with the value; empty for all of it.
    """
    where = f" of {member}" if member else ""
    among = f", {pickles} more pickle{'s' * (pickles > 1)} among them," if pickles else ""
    text = f"{counted(nbytes, 'byte')} after the value{where}{among} left out"
    return Note("warning", path="", message=text, code="trailing")


class Unpickler:
    """Reader of consecutive pickles in a source.

    Args:
        source: the bytes; they are read in pieces.
        position: offset of the first pickle in the source, in bytes.
        end: offset after the readable part, in bytes.
        context: resolves names, and has the resource limits.
        member: name of the part of the file, for messages; empty if the pickles are not in a member.

    Attributes:
        source: the source.
        position: offset in the source of what is read next: after the last pickle, or what `skip` passed over.
        end: offset after the readable part.
    """

    def __init__(self, source: ByteSource, position: int, end: int, context: PickleContext, member: str = "") -> None:
        limits = context.limits
        self.source = source
        self.position = position
        self.end = end
        self._context = context
        self._member = member
        self._limits = limits
        self._work = context.work
        self._max_string_bytes = limits.string_bytes
        self._start = position
        """Offset of the first pickle in the source."""
        self._base = position
        """Offset of the buffer in the source."""
        self._buffer = b""
        """The part of the source that is read now; empty until the first opcode."""
        self._safe = 0
        """Offset in the buffer before which opcodes are read without checking the buffer's end: see `_set_safe`."""
        self._at = 0
        """Offset in the buffer of the opcode that is being read, for errors."""
        self._frame_end = 0
        """Offset in the source of the end of the frame that is being read; 0 outside of frames."""
        self._stack: list[Any] = []
        self._marks: list[int] = []
        """The size that the stack had at each mark."""
        self._memo: dict[int, Any] = {}
        """The values that the pickle numbered, to refer to them again."""
        self._set_count = 0
        """Number of empty sets created: one byte of a pickle creates some 200 bytes, for which `_empty_set` charges."""
        self._budget = limits.pickle_operations
        """Number of operations that may still be read, in all pickles together."""
        self._limit_of_operations = "pickle_operations"
        """The limit that allows the fewest operations, named if there are more."""
        # Every operation may create an object.
        self.limit_operations(limits.allocated_bytes // OBJECT_BYTES, "allocated_bytes")

    def limit_operations(self, operations: int, limit: str = "inflated_operations") -> None:
        """Allow at most this many operations, on account of the limit of this name; a lower bound stays."""
        if operations < self._budget:
            self._budget = operations
            self._limit_of_operations = limit

    def skip(self, count: int) -> None:
        """Resume reading `count` bytes further."""
        self.position += count
        if self.position > self._base + len(self._buffer):
            # Behind what was read: the buffer starts again, empty.
            self._base = self.position
            self._buffer = b""
            self._safe = 0

    def read_bytes(self, count: int, what: str) -> bytes:
        """Return the bytes after the last pickle, and resume behind them.

        Args:
            count: number of bytes.
            what: the part of the file that they are, for the error.

        Raises:
            TruncatedError: fewer bytes follow.
        """
        if self.position + count > self.end:
            raise TruncatedError(
                f"the file ends inside {what}",
                offset=self.position,
                expected=f"{count} bytes",
                found=f"{self.end - self.position} bytes",
            )
        data = self.source.read_exact(self.position, count, what)
        self.skip(count)
        return data

    def load(self) -> Any:
        """Read one pickle; also as PyTorch's safe loader does, if the file is judged.

        Raises:
            FormatError: it is not a pickle, or damaged.
            LimitError: it has too many operations.
            UnsupportedError: it refers to data outside the file.
        """
        context = self._context
        # The safe loader does not read the pickles of TorchScript, which C++ reads.
        if not context.origin.is_judged or context.is_script:
            return self._load()
        start = self.position
        most_operations = self._budget  # the same for both; `_load` spends it
        try:
            return self._load()
        finally:  # also of a damaged pickle: PyTorch would have loaded what is in front of the damage
            verdict = refused(self.source, start, self.end, context.id_parts, most_operations)
            for module, name in verdict.names:
                context.origin.note_unsafe_name(module, name)
            if verdict.use:
                context.origin.refused_uses[verdict.use] = None

    def _load(self) -> Any:
        """Read one pickle from `position` on, and name file, member and offset in any error."""
        self._stack.clear()
        self._marks.clear()
        self._memo = {}
        self._work.hashes.clear()  # of containers that are gone
        self._frame_end = 0
        self._at = self.position - self._base
        try:
            return self._run()
        except T7BridgeError as error:  # before the others, as it may be a ValueError too
            self._located(error)
            raise
        except (IndexError, struct.error, KeyError, ValueError, TypeError, OverflowError) as error:
            raise self._located(self._fault(error)) from error

    def _located(self, error: T7BridgeError) -> T7BridgeError:
        """Add file, member and offset to an error, where it does not have them; return it."""
        error.file = error.file or self.source.name
        error.path = error.path or self._member
        if error.offset is None:
            error.offset = self._base + self._at
        return error

    def _fault(self, error: Exception) -> T7BridgeError:
        """Return what is wrong with the pickle if Python raises an error at an operation."""
        if isinstance(error, (IndexError, struct.error)):
            # Either an argument beyond the end of the file, or a value that is not on the stack. It is the former if
            # the opcode is near an end that does not look like that of a pickle.
            ends_without_stop = self._base + len(self._buffer) >= self.end and self._buffer[-1:] != opcodes.STOP
            if ends_without_stop and self._at >= len(self._buffer) - _MARGIN_BYTES:
                return TruncatedError("the pickle ends in the middle")
            return CorruptError("the pickle pops from an empty stack")
        if isinstance(error, KeyError):  # of the memo
            return CorruptError(f"the pickle refers to object {error}, which it never numbered")
        return CorruptError(f"the pickle is damaged: {error!s:.200}")

    def load_following(self, member: str = "") -> list[Note]:
        """Read the pickles after the value, which programs may load one after another, for the names in them.

        Args:
            member: name of the part of the file, for the note.

        Returns:
            A note that the bytes after the value are left out; nothing if there are none.

        Raises:
            ForbiddenGlobalError: one names what runs code.
            LimitError: too many pickles follow.
        """
        origin = self._context.origin
        nbytes = self.end - self.position
        count = 0
        while self.position < self.end:
            if count == self._limits.following_pickles:
                message = "too many pickles follow one another"
                raise self._limits.exceeded("following_pickles", message, offset=self.position)
            try:
                with origin.forgetting_if_unreadable():
                    self.load()
            except ForbiddenGlobalError:
                raise
            except T7BridgeError:  # not a pickle: any bytes may follow a value
                break
            count += 1
        return [_note_on_rest(nbytes, count, member)] if nbytes else []

    def _run(self) -> Any:
        """Interpret opcodes up to STOP, and return the value on top of the stack.

        `pos` is the place in the buffer. Before it reaches `safe`, no fixed argument needs a check of the buffer's end.
        """
        # Names of opcodes are locals, as cheap as numbers. They are ordered by frequency.
        (
            BINPUT, BININT1, BINGET, BINUNICODE, MARK, TUPLE, LONG_BINPUT, REDUCE, MEMOIZE, SHORT_BINUNICODE,
            BINPERSID, LONG_BINGET, BINFLOAT, BININT2, BININT, TUPLE1, TUPLE2, EMPTY_LIST, APPENDS, EMPTY_DICT,
            SETITEMS, STOP,
        ) = _FREQUENT  # fmt: skip
        context, stack, marks, memo = self._context, self._stack, self._marks, self._memo
        push, pop, value_of_call = stack.append, stack.pop, context.value_of_call
        max_string_bytes = self._max_string_bytes
        constants = _CONSTANTS
        buffer, safe, pos = self._buffer, self._safe, self._at
        for number in range(self._budget):
            if pos >= safe:
                pos = self._advance(pos)
                buffer, safe = self._buffer, self._safe
            self._at = pos
            op = buffer[pos]
            pos += 1
            if op == BINPUT:
                memo[buffer[pos]] = stack[-1]
                pos += 1
            elif op == BININT1:
                push(buffer[pos])
                pos += 1
            elif op == BINGET:
                push(memo[buffer[pos]])
                pos += 1
            elif op == BINUNICODE:
                size = _unpack_u4(buffer, pos)[0]
                stop = pos + 4 + size
                if stop > len(buffer):  # then the buffer is read on, and begins at `pos`
                    stop -= pos
                    pos = self._need(pos, stop)
                    buffer, safe = self._buffer, self._safe
                # Only now: a length beyond the end of the file is one of a damaged file, not of a long text.
                if size > max_string_bytes:
                    raise self._too_long(size)
                push(buffer[pos + 4 : stop].decode("utf-8", "surrogatepass"))
                pos = stop
            elif op == MARK:
                marks.append(len(stack))
            elif op == TUPLE:
                start = marks.pop()
                items = tuple(stack[start:])
                del stack[start:]
                push(items)
            elif op == LONG_BINPUT:
                memo[_unpack_u4(buffer, pos)[0]] = stack[-1]
                pos += 4
            elif op == REDUCE:
                args = pop()
                stack[-1] = value_of_call(stack[-1], args, "reduce")
            elif op == MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif op == SHORT_BINUNICODE:
                stop = pos + 1 + buffer[pos]
                if stop - pos - 1 > max_string_bytes:
                    raise self._too_long(stop - pos - 1)
                if stop > len(buffer):  # as above
                    stop -= pos
                    pos = self._need(pos, stop)
                    buffer, safe = self._buffer, self._safe
                push(buffer[pos + 1 : stop].decode("utf-8", "surrogatepass"))
                pos = stop
            elif op == BINPERSID:
                stack[-1] = context.value_of_id(stack[-1])
            elif op == LONG_BINGET:
                push(memo[_unpack_u4(buffer, pos)[0]])
                pos += 4
            elif op == BINFLOAT:
                push(_unpack_f8(buffer, pos)[0])
                pos += 8
            elif op == BININT2:
                push(_unpack_u2(buffer, pos)[0])
                pos += 2
            elif op == BININT:
                push(_unpack_i4(buffer, pos)[0])
                pos += 4
            elif op in constants:
                push(constants[op])
            elif op == TUPLE1:
                stack[-1] = (stack[-1],)
            elif op == TUPLE2:
                last = pop()
                stack[-1] = (stack[-1], last)
            elif op == EMPTY_LIST:
                push([])
            elif op == APPENDS:
                start = marks.pop()
                self._add(stack[start - 1], stack[start:])
                del stack[start:]
            elif op == EMPTY_DICT:
                push({})
            elif op == SETITEMS:
                start = marks.pop()
                self._set_items(stack[start - 1], stack[start:])
                del stack[start:]
            elif op == STOP:
                if self._base + pos < self._frame_end:
                    raise self._crossed()
                self._budget -= number
                self.position = self._base + pos
                return pop()
            elif op in _ON_STACK:
                count, function = _ON_STACK[op]
                start = marks.pop() if count is None else len(stack) - count
                if start < 0:
                    raise IndexError  # `_load` says what it means
                operands = stack[start:]
                del stack[start:]
                push(function(self, operands) if count is None else function(self, *operands))
            elif op in _WITH_ARGUMENT:
                pos = _WITH_ARGUMENT[op](self, op, pos)
                # It may have read on in the file.
                buffer, safe = self._buffer, self._safe
            else:
                raise CorruptError(f"0x{op:02x} is not an operation of a pickle")
        raise self._too_many()

    # The window on the file

    def _advance(self, pos: int) -> int:
        """Make the next opcode available in the buffer, or leave the frame that ends here; return its new `pos`.

        Raises:
            CorruptError: the last operation went beyond the end of a frame.
        """
        if self._frame_end:
            if self._base + pos > self._frame_end:
                raise self._crossed()
            if self._base + pos == self._frame_end:
                self._frame_end = 0
        self._set_safe()  # it is before `pos` now, and a frame that has ended no longer limits it
        return self._need(pos, 1) if pos >= self._safe else pos

    def _crossed(self) -> CorruptError:
        return CorruptError(
            "an operation of the pickle crosses the end of a frame",
            expected=f"the end of an operation at byte {self._frame_end}",
            hint="Do not trust it: CPython reads another value from such a pickle than its bytes show.",
        )

    def _need(self, pos: int, count: int) -> int:
        """Make `count` bytes from `pos` on available in the buffer, which then begins there; return the new `pos`, 0.

        Offsets in the old buffer, and copies of `_buffer` and `_safe`, are no longer right.

        Raises:
            TruncatedError: the pickle has fewer.
        """
        if self._base + pos + count > self.end:
            self._at = pos
            raise TruncatedError(
                "the pickle ends in the middle", expected=f"{count} bytes", found=f"{self.end - self._base - pos}"
            )
        rest = self._buffer[pos:]
        start = self._base + pos + len(rest)
        wanted = min(max(count - len(rest), _CHUNK_BYTES), self.end - start)  # a chunk at least, if there is one
        self._buffer = rest + self.source.read_exact(start, wanted, "a pickle")
        self._base += pos
        self._set_safe()
        return 0

    def _set_safe(self) -> None:
        """Set `_safe`: opcodes that begin before it have their fixed arguments in the buffer, and are inside the frame.

        At the end of the file arguments may be missing: then reading them raises, which `_load` turns into an error.
        """
        buffer_end = self._base + len(self._buffer)
        safe = len(self._buffer)
        if buffer_end < self.end:
            safe -= _MARGIN_BYTES
        self._safe = min(safe, self._frame_end - self._base) if self._frame_end else safe

    def _line(self, pos: int) -> tuple[bytes, int]:
        """Return the text up to the next newline, and the position after it."""
        while True:
            stop = self._buffer.find(b"\n", pos)
            if stop >= 0:
                self._check_length(stop - pos)
                return self._buffer[pos:stop], stop + 1
            searched = len(self._buffer) - pos
            self._check_length(searched)
            available = self.end - self._base - pos
            # Twice as many each time: a long line is searched in linear time. One byte too many at the end of the file
            # raises the error of a truncated pickle.
            wanted = min(2 * searched + _CHUNK_BYTES, available) if available > searched else available + 1
            pos = self._need(pos, wanted)

    def _too_many(self) -> LimitError:
        return self._limits.exceeded(self._limit_of_operations, "the pickle has too many operations")

    def _too_long(self, length: int) -> LimitError:
        message = "the pickle holds a string that is too long"
        return self._limits.exceeded("string_bytes", message, found=f"{length} bytes")

    def _check_length(self, length: int) -> None:
        if length > self._max_string_bytes:
            raise self._too_long(length)

    # Containers

    def _add(self, target: Any, items: Sequence[Any], kind: type = list) -> Any:
        """Add items to a list, a set or an object, and return it.

        Args:
            target: of the pickle, where it may be anything.
            items: to add.
            kind: what the operation requires: `list` or `set`. An inert object, which may be a subclass of either,
                keeps the items for its class.
        """
        target_type = type(target)
        if isinstance(target, PythonObject):
            target.items.extend(items)
        elif target_type is not kind:
            raise CorruptError(f"the pickle {'appends' if kind is list else 'adds'} to a {target_type.__name__}")
        elif kind is list:
            target.extend(items)
        else:
            target.update(self._checked(target, items))
        return target

    def _set_items(self, target: Any, items: Sequence[Any]) -> Any:
        """Set keys of a dict or an object, and return it.

        Args:
            target: of the pickle, where it may be anything. An inert object keeps the pairs for its class.
            items: keys and values in turn.

        Raises:
            CorruptError: the target is neither, or the last key has no value.
        """
        if len(items) % 2:
            raise CorruptError("the pickle has a key without a value")
        if isinstance(target, PythonObject):
            target.pairs.extend(zip(items[::2], items[1::2]))
        elif isinstance(target, dict):
            keys = self._checked(target, items[::2])
            if type(target) is Counter:  # whose own `update` counts
                dict.update(target, zip(keys, items[1::2]))
            else:
                target.update(zip(keys, items[1::2]))
        else:
            raise CorruptError(f"the pickle sets an item of a {type(target).__name__}")
        return target

    def _checked(self, container: object, items: Sequence[Any]) -> Sequence[Any]:
        """Return keys or elements, after checking that adding them to a container takes a bounded time."""
        for item in items:
            if type(item) is not str:  # by far the most, which need no check
                self._work.check_key(container, item)
        return items

    def _pop_mark(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    # Less frequent opcodes that only work on the stack

    def _stack_global(self, module: Any, name: Any) -> Any:
        if type(name) is not str or type(module) is not str:
            raise CorruptError("the name of a global is not text")
        return self._context.find_global(module, name)

    def _empty_set(self) -> set[Any]:
        """Return a new set.

        Raises:
            LimitError: the bytes of the pickles, or the operations that are allowed, do not account for so many.
        """
        self._set_count += 1
        # In operations, and in bytes of the pickles.
        if _SET_COST * self._set_count > min(self._budget, _FREE_SET_BYTES + self.end - self._start):
            raise self._too_many()
        return set()

    def _frozenset(self, items: list[Any]) -> frozenset[Any]:
        self._work.check_elements(items)
        return frozenset(items)

    # Less frequent opcodes with arguments, or without a result: each handler receives the opcode and the position of
    # its argument, and returns the position of the next opcode

    def _pop(self, op: int, pos: int) -> int:
        """Drop the topmost value, or everything since the mark: POP right after a mark drops the mark.

        Args:
            op: POP or POP_MARK.
            pos: position of the next opcode, which is returned, as neither has an argument.
        """
        is_mark_on_top = self._marks[-1:] == [len(self._stack)]
        if op == opcodes.POP_MARK[0] or is_mark_on_top:
            self._pop_mark()
        else:
            self._stack.pop()
        return pos

    def _global(self, op: int, pos: int) -> int:
        """Read the module and name of a global, two lines, and push it, or what INST calls it for.

        Args:
            op: GLOBAL; or INST, which calls it with the values since the mark.
            pos: position of the first line.

        Returns:
            The position of the next opcode.
        """
        module, pos = self._line(pos)
        name, pos = self._line(pos)
        value = self._context.find_global(module.decode(), name.decode())
        if op == opcodes.INST[0]:
            value = self._context.value_of_call(value, tuple(self._pop_mark()), "inst")
        self._stack.append(value)
        return pos

    def _proto(self, op: int, pos: int) -> int:
        if self._buffer[pos] > opcodes.HIGHEST_PROTOCOL:
            raise UnsupportedError(f"the pickle is of protocol {self._buffer[pos]}, and only 0 to 5 are known")
        return pos + 1

    def _frame(self, op: int, pos: int) -> int:
        """Read the length of a frame, in bytes after it, whose end no operation may cross.

        Args:
            op: FRAME.
            pos: position of the length.

        Returns:
            The position of the next opcode, the first of the frame.

        Raises:
            CorruptError: the frame is not between others.
            TruncatedError: the pickle has fewer bytes.
        """
        length = _unpack_u8(self._buffer, pos)[0]
        pos += 8
        frame_end = self._base + pos + length
        if frame_end > self.end:
            raise TruncatedError("a frame of the pickle goes beyond its end")
        if self._frame_end > self._base + pos:
            raise CorruptError("a frame of the pickle begins inside another")
        if self._frame_end and self._base + pos > self._frame_end:
            raise self._crossed()
        self._frame_end = frame_end if length else 0  # an empty one is over already
        self._set_safe()
        return pos

    def _bytes(self, pos: int, width: int, count: int) -> tuple[bytes, int]:
        """Return `count` bytes that follow their length, of `width` bytes at `pos`, and the position after them."""
        if pos + width + count > len(self._buffer):
            pos = self._need(pos, width + count)
        self._check_length(count)
        return self._buffer[pos + width : pos + width + count], pos + width + count

    def _string(self, op: int, pos: int) -> int:
        """Push the value of an opcode with a length and that many bytes: an integer, bytes or a text, by `_STRINGS`.

        Args:
            op: the opcode.
            pos: position of the length.

        Returns:
            The position of the next opcode.

        Raises:
            LimitError: they are too many.
        """
        convert, width = _STRINGS[op]
        if width == 1:
            count = self._buffer[pos]
        else:
            unpack_length = _unpack_u4 if width == 4 else _unpack_u8
            (count,) = unpack_length(self._buffer, pos)
        if convert is _integer and count > _MAX_INTEGER_BYTES:
            raise LimitError(
                "the pickle holds an integer of too many bytes",
                expected=f"at most {_MAX_INTEGER_BYTES}, which is fixed",
                found=f"{count}",
            )
        data, pos = self._bytes(pos, width, count)
        self._stack.append(convert(data))
        return pos

    def _text(self, op: int, pos: int) -> int:
        """Carry out an opcode whose argument is a line of text: a value, a persistent id, or a number of the memo.

        Args:
            op: the opcode.
            pos: position of the line.

        Returns:
            The position of the next opcode.
        """
        line, pos = self._line(pos)
        code = bytes((op,))
        if code == opcodes.UNICODE:
            self._stack.append(line.decode("raw-unicode-escape"))
        elif code == opcodes.PERSID:
            self._stack.append(self._context.value_of_id(line.decode("ascii")))
        elif code == opcodes.PUT:
            self._memo[opcodes.parse_line(code, line)] = self._stack[-1]
        elif code == opcodes.GET:
            self._stack.append(self._memo[opcodes.parse_line(code, line)])
        else:
            self._stack.append(opcodes.parse_line(code, line))
        return pos

    def _refuse(self, op: int, pos: int) -> int:
        """Refuse an opcode that refers to data outside the file."""
        if bytes((op,)) in (opcodes.NEXT_BUFFER, opcodes.READONLY_BUFFER):
            raise UnsupportedError("the pickle has its data in buffers outside the file")
        raise UnsupportedError("the pickle names a class by an extension code, which only its writer can resolve")


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _codes(names: str) -> tuple[int, ...]:
    return tuple(getattr(opcodes, name)[0] for name in names.split())


_FREQUENT = _codes(
    """
    BINPUT BININT1 BINGET BINUNICODE MARK TUPLE LONG_BINPUT REDUCE MEMOIZE SHORT_BINUNICODE BINPERSID LONG_BINGET
    BINFLOAT BININT2 BININT TUPLE1 TUPLE2 EMPTY_LIST APPENDS EMPTY_DICT SETITEMS STOP
    """
)
_CONSTANTS = dict(zip(_codes("EMPTY_TUPLE NEWFALSE NEWTRUE NONE"), ((), False, True, None)))
_STRINGS: dict[int, tuple[Callable[[bytes], Any], int]] = {
    code: (convert, width)
    for names, convert in (
        ("LONG1 LONG4 -", _integer),
        ("SHORT_BINBYTES BINBYTES BINBYTES8", bytes),
        ("- - BINUNICODE8", lambda data: data.decode("utf-8", "surrogatepass")),
        ("SHORT_BINSTRING BINSTRING -", opcodes.python2_text),
        ("- - BYTEARRAY8", bytearray),
    )
    for name, width in zip(names.split(), (1, 4, 8))
    if name != "-"  # there is no opcode with a length of this width
    for code in _codes(name)
}
"""Opcode → conversion of the bytes, and the width of their length."""
_ON_STACK: dict[int, tuple[int | None, Callable[..., Any]]] = {
    _codes(name)[0]: (count, function)
    for name, count, function in (
        ("STACK_GLOBAL", 2, Unpickler._stack_global),
        ("TUPLE3", 3, lambda self, *items: items),
        ("SETITEM", 3, lambda self, target, *item: self._set_items(target, item)),
        ("APPEND", 2, lambda self, target, *item: self._add(target, item)),
        ("BUILD", 2, lambda self, value, state: self._context.set_state(value, state)),
        ("NEWOBJ", 2, lambda self, cls, args: self._context.value_of_call(cls, args, "newobj")),
        ("NEWOBJ_EX", 3, lambda self, cls, args, kwargs: self._context.value_of_call(cls, args, "newobj_ex", kwargs)),
        ("EMPTY_SET", 0, Unpickler._empty_set),
        ("DUP", 0, lambda self: self._stack[-1]),
        ("OBJ", None, lambda self, items: self._context.value_of_call(items[0], tuple(items[1:]), "inst")),
        ("ADDITEMS", None, lambda self, items: self._add(self._stack.pop(), items, set)),
        ("FROZENSET", None, Unpickler._frozenset),
        ("LIST", None, lambda self, items: items),
        ("DICT", None, lambda self, items: self._set_items({}, items)),
    )
}
"""Opcode → the number of values that it takes from the stack (`None`: all since the mark), and what it puts there."""
_WITH_ARGUMENT: dict[int, Callable[[Unpickler, int, int], int]] = {
    code: handler
    for names, handler in {
        "GLOBAL INST": Unpickler._global,
        "POP POP_MARK": Unpickler._pop,
        "PROTO": Unpickler._proto,
        "FRAME": Unpickler._frame,
        "LONG1 LONG4 BINUNICODE8 BYTEARRAY8": Unpickler._string,
        "SHORT_BINBYTES BINBYTES BINBYTES8 SHORT_BINSTRING BINSTRING": Unpickler._string,
        "INT LONG FLOAT STRING UNICODE PERSID PUT GET": Unpickler._text,
        "EXT1 EXT2 EXT4 NEXT_BUFFER READONLY_BUFFER": Unpickler._refuse,
    }.items()
    for code in _codes(names)
}
"""Opcode → the method for it, from opcode and position of the argument to the position of the next opcode."""
