"""T7Reader: the values of a `.t7` file as a graph. Layout: `docs/format-t7.md`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from attrs import evolve

from ..binio.source import ByteSource, Readable
from ..errors import CorruptError, FormatError, LimitError, ModelError, TruncatedError, UnknownFormatError
from ..graph.objects import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.storage import Storage, storage_for_class
from ..graph.tensor import Tensor, view_fault
from ..graph.walk import step_name
from ..limits import DEFAULT_LIMITS, Limits
from ..signatures import HEAD_BYTES, identify
from . import layout as tags
from .binary import BinaryInput
from .layout import BINARY_LAYOUTS, TAG_NAMES, VERSION_PATTERN, T7Layout
from .registry import Payload, payload_of
from .text import TextInput

_MISSING = object()
_TDS = {"tds.Hash": TdsHash, "tds_hash": TdsHash, "tds.Vec": TdsVec}

Filler = Generator[int, Value, None]
"""Reads what is inside an object. Yields the tag of each object met there and is sent that object, complete."""


class T7Reader:
    """Reads values from a `.t7` file, one after another.

    Encoding, byte order and the size of `long` are found out from the content, unless they are stated. As in Lua's
    `torch.DiskFile`, the objects of one file are numbered together, so that a later value may refer to an object of
    an earlier one. Tensors are not read: their storages know where their bytes are.

    Args:
        source: a path, bytes, or a binary file object; reading starts at a file object's position, which stays.
        encoding: `binary` or `ascii`.
        byte_order: `little` or `big`.
        long_size: bytes of a C long, 4 or 8.
        limits: what the file may cost.
        payloads: for a stream that was written without the elements of its storages: the storages, in order.

    Raises:
        T7BridgeError: the file cannot be opened.
        UnknownFormatError: the file is something else; the message says what.

    Example:
        >>> with T7Reader("stream.t7") as reader:
        ...     flag, table = reader.read_bool(), reader.read_object()
    """

    def __init__(
        self,
        source: Readable | ByteSource,
        *,
        encoding: str | None = None,
        byte_order: str | None = None,
        long_size: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
        payloads: Iterator[Storage] | None = None,
    ) -> None:
        self._source, start = ByteSource.open(source)
        self._limits = limits
        self._payloads = payloads
        self._objects: dict[int, Any] = {}
        self._irregular = False
        self._unnumbered = 0
        self._payload_depth = 0
        self._trail: list[Any] = []
        """The objects that are being read, the outermost first."""
        self._layouts = self._candidates(start, encoding, byte_order, long_size)
        """The layouts still possible; the first one is in use."""
        self._use(self._layouts[0], start)

    # How the file is encoded

    def _candidates(
        self, start: int, encoding: str | None, byte_order: str | None, long_size: int | None
    ) -> list[T7Layout]:
        if encoding == "ascii":
            return [T7Layout(encoding="ascii")]
        head = self._source.read(start, HEAD_BYTES)
        if encoding is None and byte_order is None and long_size is None:
            self._refuse_other_formats(head)
            if _looks_like_text(head):
                return [T7Layout(encoding="ascii")]
        elif encoding not in (None, "binary"):
            raise ModelError(f"there is no encoding {encoding!r}", expected="binary or ascii")
        # Any first value has a small first integer: a type tag, a count, a flag.
        orders = ["little", "big"]
        little, big = (abs(int.from_bytes(head[:4], order, signed=True)) for order in ("little", "big"))
        if big < little:
            orders.reverse()
        wanted = [
            layout
            for order in orders
            for layout in BINARY_LAYOUTS
            if layout.byte_order == order and byte_order in (None, order) and long_size in (None, layout.long_size)
        ]
        if not wanted:
            raise ModelError("there is no such layout", expected="byte order little or big, long size 4 or 8")
        return wanted

    def _refuse_other_formats(self, head: bytes) -> None:
        if not head:
            raise TruncatedError("is empty", file=self._source.name)
        signature = identify(head)
        if signature:
            hint = signature.hint or "A .t7 reader cannot read it, whatever its name says."
            raise UnknownFormatError(f"is no .t7 file but {signature.title}", file=self._source.name, hint=hint)

    def _use(self, layout: T7Layout, position: int) -> None:
        kind = TextInput if layout.encoding == "ascii" else BinaryInput
        self._stream: BinaryInput | TextInput = kind(self._source, position, layout)

    @property
    def layout(self) -> T7Layout:
        """The layout of the file as far as it has been found out."""
        layout = self._stream.layout
        if isinstance(self._stream, TextInput) and self._stream.rounded:
            layout = evolve(layout, digits=6)
        return evolve(layout, numbers=tuple(self._objects)) if self._irregular else layout

    # Position

    @property
    def source(self) -> ByteSource:
        """What is read from."""
        return self._source

    @property
    def position(self) -> int:
        """Offset in bytes of what is read next, 0-based."""
        return self._stream.position

    @property
    def at_end(self) -> bool:
        """Whether everything has been read."""
        return self._stream.remaining <= 0

    def close(self) -> None:
        """Close the file. Storages whose elements are still in it can no longer be read."""
        self._source.close()

    def __enter__(self) -> T7Reader:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Leave the file open: the storages that were read need it. It is closed with the last of them."""

    # Single values, as `torch.DiskFile` reads them

    def read_int(self) -> int:
        """Read a 4-byte integer."""
        return self._stream.read_int()

    def read_short(self) -> int:
        """Read a 2-byte integer."""
        return self._stream.read_short()

    def read_long(self) -> int:
        """Read a C long, of the file's size."""
        return self._stream.read_long()

    def read_float(self) -> float:
        """Read a 4-byte float."""
        return self._stream.read_float()

    def read_double(self) -> float:
        """Read an 8-byte float."""
        return self._stream.read_double()

    def read_bool(self) -> bool:
        """Read an integer that is 0 or 1.

        Raises:
            CorruptError: it is something else.
        """
        number = self._stream.read_int("a boolean")
        if number not in (0, 1):
            raise self._stream.no_boolean(number)
        return number == 1

    def read_string(self) -> bytes:
        """Read a length (an integer, in bytes) and that many bytes."""
        return self.read_raw(self._stream.read_int("a string's length"))

    def read_raw(self, length: int) -> bytes:
        """Read `length` bytes as they are, as Lua's `readByte(n):string()` and `readChar(n):string()` do."""
        return self._stream.read_raw(length, "raw bytes")

    # Objects

    def read_object(self) -> Value:
        """Read one value with everything inside it.

        Returns:
            `None`, `bool`, `float`, `bytes`, or an object of `t7bridge.graph`.

        Raises:
            TruncatedError: the file ends inside the value, or a count claims more than is there.
            CorruptError: the value contradicts itself or the format.
            LimitError: the value is larger than the limits allow.
        """
        if len(self._layouts) == 1 or self._payload_depth:
            return self._read_value()
        start, known = self._stream.position, dict(self._objects)
        failures: list[FormatError] = []
        for layout in self._layouts:
            self._use(layout, start)
            self._objects = dict(known)
            try:
                value = self._read_value()
            except LimitError:
                raise
            except FormatError as error:
                failures.append(error)
                continue
            if any(isinstance(found, (Tensor, Storage, TdsHash, TdsVec)) for found in self._objects.values()):
                self._layouts = [layout]  # a long has been read, and what followed made sense
            return value
        # The layout that came furthest is the file's: the others failed for being wrong.
        best = max(range(len(failures)), key=lambda place: failures[place].offset or 0)
        self._use(self._layouts[best], start)
        raise failures[best]

    def _read_value(self) -> Value:
        try:
            return self._read_tree()
        except FormatError as error:
            if not error.file:
                error.file = self._source.name
            if error.offset is None:
                error.offset = self._stream.position
            if not error.trail and not self._payload_depth:
                error.trail = "root" + "".join(map(_step_in, self._trail))
            raise

    def _read_tree(self) -> Value:
        """Read a value with an explicit stack: nesting is as deep as the file likes."""
        if not self._payload_depth:
            self._trail.clear()
        base = len(self._trail)
        pair: tuple[list[Any], list[Any]] = ([0.0], [])  # one scalar is the value of an entry whose key is known
        self._stream.read_scalars(*pair, 1)
        if pair[1]:
            return pair[1][0]
        value, filler = self._open(self._stream.read_int("a type tag"))
        if filler is None:
            return value
        stack: list[tuple[Any, Filler]] = [(value, filler)]
        self._trail.append(value)
        done: Value = None
        while stack:
            value, filler = stack[-1]
            try:
                tag = filler.send(done)
            except StopIteration:
                stack.pop()
                self._trail.pop()
                done = value
                continue
            done, inner = self._open(tag)
            if inner is not None:
                if len(stack) >= self._limits.depth:
                    raise LimitError(
                        "values are nested too deep",
                        found=f"more than {self._limits.depth} levels",
                        hint="Raise it with Limits(depth=…).",
                    )
                stack.append((done, inner))
                self._trail.append(done)
                done = None
        del self._trail[base:]
        return done

    def _open(self, tag: int) -> tuple[Value, Filler | None]:
        """Read the start of an object whose tag was read; what is inside is left to the filler."""
        stream = self._stream
        if tag == tags.TABLE:
            index = stream.read_int("an object's number")
            known = self._objects.get(index, _MISSING)
            if known is not _MISSING:
                return self._known(known, index, tag), None
            count = stream.read_int("the number of a table's entries")
            stream.require(count, 8, "the entries of a table")
            table = Table()
            self._remember(index, table)
            return table, (self._fill_table(table, count) if count else None)
        if tag == tags.TORCH:
            index = stream.read_int("an object's number")
            known = self._objects.get(index, _MISSING)
            if known is not _MISSING:
                return self._known(known, index, tag), None
            return self._open_torch(index)
        if tag in (tags.FUNCTION, tags.LEGACY_FUNCTION, tags.FUNCTION_WITHOUT_INDEX):
            index = -1
            if tag == tags.FUNCTION_WITHOUT_INDEX:
                self._unnumbered += 1
            else:
                index = stream.read_int("an object's number")
                known = self._objects.get(index, _MISSING)
                if known is not _MISSING:
                    return self._known(known, index, tag), None
            code = stream.read_raw(stream.read_int("the length of a function's bytecode"), "a function's bytecode")
            function = LuaFunction(code, tag=tag)
            if tag != tags.FUNCTION_WITHOUT_INDEX:
                self._remember(index, function)
            return function, self._fill_function(function)
        raise CorruptError(
            f"there is no type tag {tag}",
            offset=max(0, stream.position - 4) if isinstance(stream, BinaryInput) else stream.position,
            expected="a tag from 0 to 8",
            found=f"{tag}",
            hint=self._tag_hint(),
        )

    def _tag_hint(self) -> str:
        for found in reversed(self._trail):
            if isinstance(found, TorchObject):
                return (
                    f"If the class {found.class_name} has a write method of its own, register its layout with "
                    "t7bridge.register_class."
                )
        return "The file is damaged, or is no .t7 file."

    def _known(self, known: Any, index: int, tag: int) -> Any:
        kind = (
            tags.TABLE
            if isinstance(known, Table)
            else known.tag
            if isinstance(known, LuaFunction)
            else tags.TORCH
        )
        if kind != tag:
            raise CorruptError(
                f"a reference to object {index} has the wrong type",
                expected=TAG_NAMES[kind],
                found=TAG_NAMES[tag],
                hint="The file is damaged.",
            )
        return known

    def _remember(self, index: int, value: Any) -> None:
        """Number an object. Lua Torch counts from 1 on; a gap is a reference to what was never written.

        Some writers count from 0, and some count the functions that have no number.
        """
        objects = self._objects
        expected = len(objects) + 1
        if index != expected:
            if not expected - 1 <= index <= expected + self._unnumbered:
                raise CorruptError(
                    "a reference to an object that is not in the file" if index > expected else "an object has a wrong number",
                    expected=f"number {expected} for a new object",
                    found=f"{index}",
                    hint="The file is damaged.",
                )
            self._irregular = True
        if len(objects) >= self._limits.objects:
            raise LimitError(
                "too many objects", found=f"more than {self._limits.objects}", hint="Raise it with Limits(objects=…)."
            )
        objects[index] = value

    def _open_torch(self, index: int) -> tuple[Value, Filler | None]:
        stream = self._stream
        text = stream.read_raw(stream.read_int("the length of a version"), "a version")
        match = VERSION_PATTERN.match(text)
        version = None
        if match:
            version = self._version(match.group(1))
            text = stream.read_raw(stream.read_int("the length of a class name"), "a class name")
        try:
            name = text.decode("ascii")
        except UnicodeDecodeError:
            name = ""
        if not name.isprintable() or not name:
            raise CorruptError("is no class name", found=repr(text[:40])[1:], hint="The file is damaged.")
        meaning = storage_for_class(name)
        if meaning and name.endswith("Storage"):
            return self._read_storage(index, version, *meaning), None
        if meaning:
            element, device, alias = meaning
            tensor = Tensor(element, None, device=device, version=version, alias=alias)
            self._remember(index, tensor)
            return tensor, self._fill_tensor(tensor)
        if name in _TDS:
            collection = _TDS[name](class_name=name, version=version)
            self._remember(index, collection)
            count = stream.read_long("the number of entries")
            stream.require(count, 8 if isinstance(collection, TdsHash) else 4, f"the entries of a {name}")
            if isinstance(collection, TdsHash):
                return collection, self._fill_table(collection.content, count)
            return collection, self._fill_vec(collection, count)
        obj = TorchObject(name, version)
        self._remember(index, obj)
        payload = payload_of(name, version)
        if payload is None:
            return obj, self._fill_object(obj)
        self._read_payload(obj, payload)
        return obj, None

    @staticmethod
    def _version(text: bytes) -> int:
        if not text.isdigit() or len(text) > 9:
            raise CorruptError("is no class version", expected="V and a number", found=repr(text[:20])[1:])
        return int(text)

    def _read_storage(self, index: int, version: int | None, element: Any, device: str, alias: str | None) -> Storage:
        count = self._stream.read_long("a storage's size")
        if self._payloads is not None:
            data = self._borrow(element, count)
        else:
            data = self._stream.read_elements(element, count)
        storage = Storage(element, count, data, device, version, alias)
        self._remember(index, storage)
        return storage

    def _borrow(self, element: Any, count: int) -> Any:
        assert self._payloads is not None
        lent = next(self._payloads, None)
        if lent is None or lent.element is not element or lent.count != count:
            raise CorruptError(
                "the storages do not fit the stream",
                expected=f"{count} elements of {element.name}",
                found="none" if lent is None else f"{lent.count} of {lent.element.name}",
            )
        return lent.data

    # What is inside an object: one generator for each kind

    def _fill_table(self, table: Table, count: int) -> Filler:
        keys, values = table.keys, table.values
        stream = self._stream
        while True:
            stream.read_scalars(keys, values, count)
            if len(values) == count:
                return
            item = yield stream.read_int("a type tag")
            (values if len(keys) > len(values) else keys).append(item)

    def _fill_vec(self, vec: TdsVec, count: int) -> Filler:
        numbers = [float(number) for number in range(1, count + 1)]
        for number in numbers:
            one = ([number], vec.items[:0])
            self._stream.read_scalars(*one, 1)
            vec.items.append(one[1][0] if one[1] else (yield self._stream.read_int("a type tag")))

    def _fill_tensor(self, tensor: Tensor) -> Filler:
        stream = self._stream
        dimensions = stream.read_int("a tensor's number of dimensions")
        if not 0 <= dimensions <= self._limits.dimensions:
            raise CorruptError(
                "is no number of dimensions", expected=f"0 to {self._limits.dimensions}", found=f"{dimensions}"
            )
        stream.require(2 * dimensions + 1, 4, "a tensor's sizes and strides")
        numbers = stream.read_longs(2 * dimensions, "a tensor's sizes and strides")
        tensor.size, tensor.stride = numbers[:dimensions], numbers[dimensions:]
        tensor.offset = stream.read_long("a tensor's offset") - 1  # 1-based in the file
        tag = stream.read_int("a type tag")
        if tag != tags.NIL:
            storage = yield tag
            if not isinstance(storage, Storage) or storage.element is not tensor.element:
                raise CorruptError(
                    "a tensor's storage is not one",
                    expected=f"a storage of {tensor.element.name}",
                    found=f"a storage of {storage.element.name}"
                    if isinstance(storage, Storage)
                    else getattr(storage, "class_name", type(storage).__name__),
                )
            tensor.storage = storage
        fault = view_fault(tensor.size, tensor.stride, tensor.offset, tensor.storage.count if tensor.storage else 0)
        if fault:
            raise CorruptError(f"a tensor is not a view of its storage: {fault}")

    def _fill_object(self, obj: TorchObject) -> Filler:
        start = self._stream.position
        tag = self._stream.read_int("a type tag")
        if tag == tags.TABLE:
            obj.fields = yield tag
            return
        raise CorruptError(
            f"an object of class {obj.class_name} is not followed by a table of fields",
            offset=start,
            expected="a table (tag 3)",
            found=TAG_NAMES.get(tag, f"tag {tag}"),
            hint=self._tag_hint(),
        )

    def _read_payload(self, obj: TorchObject, payload: Payload) -> None:
        if self._payload_depth >= self._limits.payload_depth:
            raise LimitError(
                "objects with payloads of their own are nested too deep",
                found=f"more than {self._limits.payload_depth} levels",
                hint="Raise it with Limits(payload_depth=…).",
            )
        self._payload_depth += 1
        try:
            payload.read(self, obj)
        finally:
            self._payload_depth -= 1

    def _fill_function(self, function: LuaFunction) -> Filler:
        pair: tuple[list[Any], list[Any]] = ([0.0], [])
        self._stream.read_scalars(*pair, 1)
        function.upvalues = pair[1][0] if pair[1] else (yield self._stream.read_int("a type tag"))


def _looks_like_text(head: bytes) -> bool:
    """Whether the first word is a number and text follows: a file in ascii."""
    word = head.lstrip()[:40].split(maxsplit=1)
    if not word or head[:1] == b"\0":
        return False
    try:
        float(word[0])
    except ValueError:
        return False
    return len(head) > len(word[0]) or word[0].isdigit()


def _step_in(value: Any) -> str:
    """The step of a path from an object that is being read to what is being read inside it."""
    if isinstance(value, TdsHash):
        value = value.content
    if isinstance(value, Table):
        if len(value.keys) > len(value.values):
            return step_name(value.keys[-1])
        return f"<key {len(value.keys) + 1}>"
    if isinstance(value, TdsVec):
        return f"[{len(value.items) + 1}]"
    if isinstance(value, Tensor):
        return ".storage"
    if isinstance(value, LuaFunction):
        return "<upvalues>"
    return ""
