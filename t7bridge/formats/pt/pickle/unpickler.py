"""An interpreter of pickles that imports nothing, calls nothing and builds inert values.

All opcodes of protocols 0 to 5 are understood, but for the two kinds that point outside the file: extension codes
and out-of-band buffers. What a global, a call or a state means is decided by a `Meaning`: plain data in, plain data
out.

Source: CPython 3.11 `Lib/pickletools.py` (what every opcode does), `Lib/pickle.py` (how text is decoded).
"""

from __future__ import annotations

import struct
from typing import Any

from ....errors import CorruptError, FormatError, T7BridgeError, TruncatedError
from .opcodes import CHUNK_BYTES, MARGIN_BYTES, Machine, unpack_i4, unpack_u2, unpack_u4

STOP = b"."
_unpack_f8 = struct.Struct(">d").unpack_from


class Unpickler(Machine):
    """Reads pickles that follow one another in a source.

    Args:
        source: where the bytes are; they are read in pieces.
        position: of the first pickle, in bytes.
        end: of what may be read, in bytes.
        meaning: what the names mean.
        limits: what the pickles may cost.
        member: name of the part of the file, for messages.

    Attributes:
        position: offset in the source just behind the last pickle that was read.
    """

    def load(self) -> Any:
        """Read one pickle.

        Raises:
            FormatError: it is none, or it is damaged.
            LimitError: it has too many operations.
            UnsupportedError: it refers to what is outside the file.
        """
        self._stack.clear()
        self._marks.clear()
        self._memo = {}
        self._at = self.position - self._base
        try:
            return self._run()
        except T7BridgeError as error:
            error.file = error.file or self._source.name
            error.trail = error.trail or self._member
            if error.offset is None:
                error.offset = self._base + self._at
            raise
        except (IndexError, struct.error) as error:
            ends = self._base + len(self._buffer) >= self._end and self._buffer[-1:] != STOP
            if ends and self._at >= len(self._buffer) - MARGIN_BYTES:
                raise self._fault(TruncatedError, "the pickle ends in the middle") from error
            raise self._fault(CorruptError, "the pickle takes a value from an empty stack") from error
        except KeyError as error:
            raise self._fault(CorruptError, f"the pickle refers to object {error}, which it never numbered") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise self._fault(CorruptError, f"the pickle is damaged: {error}") from error

    def _fault(self, kind: type[FormatError], message: str) -> FormatError:
        return kind(message, file=self._source.name, offset=self._base + self._at, trail=self._member)

    def _run(self) -> Any:
        # The order of the branches is that of how often the opcodes are met in checkpoints.
        meaning, stack, marks, memo = self._meaning, self._stack, self._marks, self._memo
        push, pop, make = stack.append, stack.pop, meaning.make
        if self._longest < CHUNK_BYTES + MARGIN_BYTES:
            push = self._push_checked
        buffer, safe, pos = self._buffer, self._safe, self._at
        for number in range(self._budget):
            if pos >= safe:
                pos = self._need(pos, 1)
                buffer, safe = self._buffer, self._safe
            self._at = pos
            op = buffer[pos]
            pos += 1
            if op == 0x71:  # BINPUT
                memo[buffer[pos]] = stack[-1]
                pos += 1
            elif op == 0x4B:  # BININT1
                push(buffer[pos])
                pos += 1
            elif op == 0x68:  # BINGET
                push(memo[buffer[pos]])
                pos += 1
            elif op == 0x58:  # BINUNICODE
                stop = pos + 4 + unpack_u4(buffer, pos)[0]
                if stop > len(buffer):
                    stop -= pos
                    pos = self._need(pos, stop)
                    self._check_length(stop - 4)
                    buffer, safe = self._buffer, self._safe
                push(buffer[pos + 4 : stop].decode("utf-8", "surrogatepass"))
                pos = stop
            elif op == 0x28:  # MARK
                marks.append(len(stack))
            elif op == 0x74:  # TUPLE
                start = marks.pop()
                items = tuple(stack[start:])
                del stack[start:]
                push(items)
            elif op == 0x72:  # LONG_BINPUT
                memo[unpack_u4(buffer, pos)[0]] = stack[-1]
                pos += 4
            elif op == 0x52:  # REDUCE
                args = pop()
                stack[-1] = make(stack[-1], args, "reduce")
            elif op == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif op == 0x8C:  # SHORT_BINUNICODE
                stop = pos + 1 + buffer[pos]
                if stop > len(buffer):
                    stop -= pos
                    pos = self._need(pos, stop)
                    buffer, safe = self._buffer, self._safe
                push(buffer[pos + 1 : stop].decode("utf-8", "surrogatepass"))
                pos = stop
            elif op == 0x51:  # BINPERSID
                stack[-1] = meaning.persistent(stack[-1])
            elif op == 0x29:  # EMPTY_TUPLE
                push(())
            elif op == 0x6A:  # LONG_BINGET
                push(memo[unpack_u4(buffer, pos)[0]])
                pos += 4
            elif op == 0x47:  # BINFLOAT
                push(_unpack_f8(buffer, pos)[0])
                pos += 8
            elif op == 0x4D:  # BININT2
                push(unpack_u2(buffer, pos)[0])
                pos += 2
            elif op == 0x4A:  # BININT
                push(unpack_i4(buffer, pos)[0])
                pos += 4
            elif op == 0x89:  # NEWFALSE
                push(False)
            elif op == 0x85:  # TUPLE1
                stack[-1] = (stack[-1],)
            elif op == 0x86:  # TUPLE2
                last = pop()
                stack[-1] = (stack[-1], last)
            elif op == 0x4E:  # NONE
                push(None)
            elif op == 0x5D:  # EMPTY_LIST
                push([])
            elif op == 0x65:  # APPENDS
                start = marks.pop()
                self._extend(stack[start - 1], stack[start:])
                del stack[start:]
            elif op == 0x7D:  # EMPTY_DICT
                push({})
            elif op == 0x75:  # SETITEMS
                start = marks.pop()
                self._set_items(stack[start - 1], stack[start:])
                del stack[start:]
            elif op == 0x2E:  # STOP
                self._budget -= number
                self.position = self._base + pos
                return pop()
            else:
                pos = self._rare(op, pos)
                buffer, safe = self._buffer, self._safe
        raise self._too_many()
