"""T7Reader: the values of a `.t7` file as a graph: tables, Torch objects, tensors, storages, functions, collections.

Most Torch classes write one table. A class that writes something else, with a `write` method of its own in Lua, is
registered here by name, with two functions that read and write what follows the class name. `register_class` adds one.
Layout: `docs/format-t7.md`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import evolve

from ...data import collector_paused
from ...errors import CorruptError, FormatError, LimitError, ModelError
from ...graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ...graph.storage import Storage, storage_for_class
from ...graph.tensor import Tensor, view_fault
from ...graph.walk import unfinished_step
from ...io.source import ByteSource, Readable
from ...limits import DEFAULT_LIMITS, OBJECT_BYTES, Limits
from ...text import one_line
from . import layout as tags
from .binary import BinaryInput
from .layout import (
    TAG_NAMES,
    VERSION_PREFIX,
    WINDOW_BYTES,
    Payload,
    PayloadClass,
    T7Layout,
    possible_layouts,
)

if TYPE_CHECKING:
    from .runs import Alike
    from .text import TextInput


class T7Reader:
    """Reads values from a `.t7` file, one after another.

    Encoding, byte order and the size of `long` are detected from the content, unless they are given. As with Lua's
    `torch.DiskFile`, the objects of one file are numbered together, so that a later value may refer to an object of
    an earlier one. Tensors are not read: their storages know where their bytes are.

    Args:
        source: a path, bytes, or a binary file object; reading starts at a file object's position, which is not
            changed.
        encoding: `binary` or `ascii`.
        byte_order: `little` or `big`.
        long_size: bytes of a C long, 4 or 8.
        limits: resource limits.
        payloads: for a stream written without the elements of its storages: the storages, in order.
        _start: where reading starts in the source, in place of a file object's position.

    Raises:
        T7BridgeError: the file cannot be opened.
        UnknownFormatError: the file is in another format; the message says which.

    Example:
        >>> with T7Reader("stream.t7") as reader:
        ...     while not reader.at_end:
        ...         print(reader.read())
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
        _start: int | None = None,
    ) -> None:
        self._source, position = ByteSource.open(source)
        self._start = position if _start is None else _start
        self._limits = limits
        self._has_external_elements = payloads is not None
        """Whether the stream was written without the elements of its storages: these are `payloads`."""
        self.vintage_objects = 0
        """Number of objects in the last attempt that wrote their fields one after another; see `releases_2010`."""
        self._layouts = possible_layouts(self._source, self._start, encoding, byte_order, long_size)
        """The layouts still possible, the most likely first; only one once a value has decided it."""
        self._object_reader = ObjectReader(self, self._source, self._start, self._layouts[0], limits, payloads)
        """Reads under one layout, and has all objects so far; replaced when another layout is tried."""

    @property
    def layout(self) -> T7Layout:
        """The layout of the file as far as it is known."""
        return self._object_reader.layout

    # Position

    @property
    def source(self) -> ByteSource:
        """The source of the bytes."""
        return self._source

    @property
    def position(self) -> int:
        """Offset in bytes of the next byte to read, 0-based."""
        return self._object_reader.stream.position

    @property
    def at_end(self) -> bool:
        """True once everything has been read."""
        return self._object_reader.stream.remaining <= 0

    @property
    def objects(self) -> list[Value]:
        """The tables, tensors, storages, functions and Torch objects read so far, in the order of the file."""
        return self._object_reader.objects

    def forget(self) -> None:
        """Release the numbers of the objects: no later value can refer to one."""
        self._object_reader.objects = []

    def count_views(self) -> tuple[int, int]:
        """Count the tensors and the storages read so far."""
        objects = self._object_reader.objects
        return (
            sum(isinstance(value, Tensor) for value in objects),
            sum(isinstance(value, Storage) for value in objects),
        )

    def close(self) -> None:
        """Close the file. Storages whose elements are still in it can no longer be read."""
        self._source.close()

    def __repr__(self) -> str:
        place = f"at byte {self.position:,} of {self._source.size:,}"
        return one_line(self, f"{self._source.name}: {self.layout.encoding}, {place}")

    def __enter__(self) -> T7Reader:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    # Single values, as `torch.DiskFile` reads them

    def read_int(self) -> int:
        """Read a 4-byte integer."""
        return self._object_reader.stream.read_int()

    def read_short(self) -> int:
        """Read a 2-byte integer."""
        return self._object_reader.stream.read_short()

    def read_long(self) -> int:
        """Read a C long, of the file's size."""
        return self._object_reader.stream.read_long()

    def read_float(self) -> float:
        """Read a 4-byte float."""
        return self._object_reader.stream.read_float()

    def read_double(self) -> float:
        """Read an 8-byte float."""
        return self._object_reader.stream.read_double()

    def read_bool(self) -> bool:
        """Read an integer that is 0 or 1.

        Raises:
            CorruptError: it is another integer.
        """
        number = self._object_reader.stream.read_int("a boolean")
        if number not in (0, 1):
            raise self._object_reader.stream.no_boolean(number)
        return number == 1

    def read_string(self) -> bytes:
        """Read a length (an integer, in bytes) and that many bytes."""
        return self.read_raw(self._object_reader.stream.read_int("a string's length"))

    def read_raw(self, length: int) -> bytes:
        """Read `length` raw bytes, as Lua's `readByte(n):string()` and `readChar(n):string()` do."""
        return self._object_reader.stream.read_raw(length, "raw bytes")

    # Objects

    def read(self) -> Value:
        """Read the next value, as `read_object` does: the name that all readers have."""
        return self.read_object()

    def read_object(self) -> Value:
        """Read one value and everything inside it.

        Returns:
            `None`, `bool`, `float`, `bytes`, or an object of `t7bridge.graph`.

        Raises:
            TruncatedError: the file ends inside the value, or a count claims more than remains.
            CorruptError: the value contradicts itself or the format.
            LimitError: the value is larger than the limits allow.
        """
        is_first_of_file = self.position == self._start
        # Only the first value may be in the form of 2010 or 2011, unless it is read in this form already. A stream
        # without the elements of its storages is one that we have written.
        may_be_vintage = is_first_of_file and not self.layout.vintage and not self._has_external_elements
        with collector_paused():
            if may_be_vintage:
                return self._read_first_value()
            return self._read_with_possible_layouts()

    def _read_first_value(self) -> Value:
        """Read the first value in today's form; if this fails or bytes follow, also in the forms of 2010 and 2011.

        Then `read_again` returns the value that explains more of the file, or raises if none can be read.
        """
        start = self.position
        layouts = list(self._layouts)  # reading may narrow them
        value = None
        failure = None
        try:
            try:
                value = self._read_with_possible_layouts()
            except LimitError:  # reading the file again would cost as much again
                raise
            except FormatError as error:
                failure = error
            if failure is None and self.at_end:
                return value
            from .releases_2010 import read_again

            return read_again(self, start, layouts, value, failure)
        finally:
            failure = None  # errors refer to this frame: break the reference cycle

    def _read_with_possible_layouts(self) -> Value:
        """Read a value under the first of the possible layouts that explains it.

        Raises:
            FormatError: none does; the error is that of the layout that explains most.
        """
        # Inside a payload the layout is that of the value around it.
        if len(self._layouts) == 1 or self._object_reader.payload_depth:
            return self._object_reader.read_value()
        reader_before = self._object_reader
        count_before = len(reader_before.objects)
        start = self.position
        failures: list[_Failure] = []
        try:
            for layout in self._layouts:
                self._object_reader = reader_before.restarted_at(self, start, layout)
                try:
                    value = self._object_reader.read_value()
                except FormatError as error:
                    if _has_used_up_a_limit(error):
                        raise
                    failures.append(_Failure(error.offset or 0, self._object_reader, error))
                else:
                    new_objects = self.objects[count_before:]
                    if self._accept(layout, new_objects, failures):
                        return value
                # The next attempt begins with the objects before this value again.
                self._object_reader.withdraw(count_before)
            raise self._settled_on_furthest(failures, start, reader_before)
        finally:
            failures.clear()  # errors refer to this frame: break the reference cycle

    def _accept(self, layout: T7Layout, new_objects: list[Value], failures: list[_Failure]) -> bool:
        """Return whether the value just read is believed; if it has longs, its layout is the only one from then on.

        The first layout is believed; a later one only if it explains more than those before, which failed.

        Args:
            layout: the layout under which the value was read.
            new_objects: the objects in the value.
            failures: those of the layouts before.
        """
        if failures and not self._explains_more(layout, new_objects, failures):
            return False
        if _have_longs(new_objects):
            self._layouts = [layout]  # as what followed the long was valid, the layout is right
        return True

    def _settled_on_furthest(self, failures: list[_Failure], start: int, reader_before: ObjectReader) -> FormatError:
        """Settle on the layout that came furthest, as the others failed because they are wrong; return its error.

        At the first value of the file, this reader stays with that layout; at a later one it is as before the value.

        Args:
            failures: those of all possible layouts that failed, the most likely first.
            start: position of the value.
            reader_before: read the values before it.
        """
        furthest = max(failures, key=lambda failure: failure.reached)  # of equal ones the first
        self._object_reader = furthest.object_reader if start == self._start else reader_before
        return furthest.error

    def _explains_more(self, layout: T7Layout, new_objects: list[Value], failures: list[_Failure]) -> bool:
        """Return whether the value just read explains more of the file than the layouts before, which failed.

        If not, the file is damaged, and the value read by accident.

        Args:
            layout: the layout under which the value was read.
            new_objects: the objects in the value.
            failures: those of the layouts before.
        """
        # Lua Torch writes no sizes for a tensor without a storage. One that has them is of a file with longs of 8 bytes
        # that was read with longs of 4: the zero half of one was taken for the tag nil.
        if any(isinstance(obj, Tensor) and obj.size and obj.storage is None for obj in new_objects):
            return False
        if self.at_end or self.position >= max(failure.reached for failure in failures):
            return True
        # Another layout read on beyond the end of this value: then all that follows must be values under this layout.
        count = len(self.objects)
        rest = self._object_reader.restarted_at(self, self.position, layout)
        try:
            while rest.stream.remaining:
                if rest.read_value() is None:  # nil is never written after a value, and zeros read as nil
                    return False
        except FormatError:
            return False
        finally:
            rest.withdraw(count)
        return True

    def try_layout(self, layout: T7Layout, read: Callable[[], Value]) -> Value:
        """Return the result of `read` when the file is read again under a layout.

        The reader then stays with that layout. On failure it is as before, and the error is raised; only
        `vintage_objects` keeps the number of those that were complete, by which failures are compared.

        Args:
            layout: the layout.
            read: reads with this reader, which is at the start of the file again and knows no objects.
        """
        reader_before = self._object_reader
        layouts_before = self._layouts
        self._object_reader = ObjectReader(self, self._source, self._start, layout, self._limits)
        self._layouts = [layout]
        self.vintage_objects = 0
        try:
            return read()
        except FormatError as error:
            error.file = error.file or self._source.name
            error.offset = self.position if error.offset is None else error.offset
            self._object_reader = reader_before
            self._layouts = layouts_before
            raise


class _Failure(NamedTuple):
    """A failed attempt to read a value under one layout.

    Attributes:
        reached: how far reading came, as an offset in the file; 0 if the error does not say it.
        object_reader: the reader under this layout.
        error: why it stopped.
    """

    reached: int
    object_reader: ObjectReader
    error: FormatError


def encoding_of(reader: T7Reader) -> dict[str, Any]:
    """Return byte order and size of longs with which a reader reads, as arguments of `T7Reader`."""
    layout = reader._object_reader.stream.layout  # that of `reader.layout` has all numbers of objects, which takes time
    return {"byte_order": layout.byte_order, "long_size": layout.long_size}


def _have_longs(objects: list[Value]) -> bool:
    """Return whether objects were read that have longs: only these differ by the size of a long."""
    types = set(map(type, objects))  # few, of very many objects
    return any(issubclass(kind, (Tensor, Storage, TdsHash, TdsVec)) for kind in types)


def _has_used_up_a_limit(error: FormatError) -> bool:
    """Return whether reading has cost as much as a limit allows, so that no other layout is tried."""
    # A string may only seem too long because the layout is wrong: it has cost nothing.
    return isinstance(error, LimitError) and error.limit != "string_bytes"


_MISSING = object()
_WORTH_CHECKING = 4
"""Number of entries from which on it pays to check whether they are alike."""
_FEW_OBJECTS = 64
"""Files with fewer objects are read faster than the module for runs is loaded."""
_LEAST_VALUE_BYTES = 4
"""Bytes of the shortest value, a nil: its tag."""
_LEAST_ENTRY_BYTES = 8
"""Bytes of the shortest entry: the tags of key and value."""
_TDS = {"tds.Hash": TdsHash, "tds_hash": TdsHash, "tds.Vec": TdsVec}


def _stream_for(source: ByteSource, position: int, layout: T7Layout, limits: Limits) -> BinaryInput | TextInput:
    """Return the reader of primitives in the encoding of a layout, at a position of a source."""
    if layout.encoding == "ascii":
        from .text import TextInput  # few files are in ascii

        return TextInput(source, position, layout, limits.string_bytes)
    return BinaryInput(source, position, layout, limits.string_bytes)


class ObjectReader:
    """Reads objects under one layout, and keeps them by their numbers, by which later values refer to them. To open an
    object is to read its start; to fill it, to go on up to the next object inside it, which is put in when complete.

    Args:
        owner: the reader passed to the payloads of registered classes.
        source: the bytes.
        position: of the first byte to read.
        layout: how the stream is encoded.
        limits: resource limits.
        external_storages: those of the stream, in order, if it was written without their elements.

    Attributes:
        stream: reads integers, floats, strings and elements in the encoding of the layout.
        objects: the objects read so far, in the order of the file.
        numbers: the place of each among them by its number; `None` as long as they are numbered from 1 on.
        payload_depth: nesting depth of the payloads of registered classes being read.
    """

    def __init__(
        self,
        owner: Any,
        source: ByteSource,
        position: int,
        layout: T7Layout,
        limits: Limits,
        external_storages: Iterator[Storage] | None = None,
    ) -> None:
        self._owner = weakref.ref(owner)  # no reference cycle, so that values and file are released promptly
        self._limits = limits
        self._external_storages = external_storages
        """The storages whose elements are not in the stream, each taken when its size is read; `None` if all are."""
        self.stream = _stream_for(source, position, layout, limits)
        self.objects: list[Any] = []
        """Those read so far, in the order of the file."""
        self.numbers: dict[int, int] | None = None
        """By the number of each object, its place in `objects`; `None` as long as they are numbered from 1 on."""
        self.payload_depth = 0
        """How many payloads of registered classes, each inside another, are being read."""
        self._most_objects = min(limits.objects, limits.allocated_bytes // OBJECT_BYTES)
        """Maximum number of objects: by their number, and by the memory that they take."""
        self._read_scalars = self.stream.read_scalars  # looked up once, as it is called for each object
        self._unnumbered_functions = 0
        """Functions so far that have no number."""
        self._unowned: list[int] = []
        """The numbers of tensors of Torch5 that do not own their storages: `T7Layout.unowned`."""
        # Runs are of the binary encoding, and do not check the length of each string, as a low limit needs it.
        self._may_have_runs = isinstance(self.stream, BinaryInput) and limits.string_bytes >= WINDOW_BYTES
        """Whether entries of a table that are alike may be read at once."""
        self._alike: Alike | None = None
        """Reads such entries; `None` before it pays: see `_put_entry`."""
        self._path: list[Any] = []
        """The objects being read, the outermost first. It stays as it is at an error, whose path it is."""

    def restarted_at(self, owner: Any, position: int, layout: T7Layout) -> ObjectReader:
        """Return a reader that resumes at a position under another layout; it adds its objects to those of this one.

        They are not copied, as there may be many: `withdraw` removes those of a failed attempt. External storages are
        not given back: with these there is only one layout.

        Args:
            owner: as of the class.
            position: of the first byte to read.
            layout: the other layout.
        """
        other = ObjectReader(owner, self.stream.source, position, layout, self._limits, self._external_storages)
        other.objects = self.objects
        other._unnumbered_functions = self._unnumbered_functions
        other.numbers = self.numbers
        return other

    def withdraw(self, count: int) -> None:
        """Remove what this reader has read from the objects of the one that it was restarted from.

        This reader keeps only its own, as it is used on if no layout reads the value, and this one came furthest.

        Args:
            count: the number of objects that the other one had before.
        """
        own_objects = self.objects[count:]
        del self.objects[count:]
        self.objects = own_objects
        if self.numbers is not None:
            own_numbers: list[int] = []
            while len(self.numbers) > count:  # one for each object, in their order
                number, _place = self.numbers.popitem()
                own_numbers.append(number)
            self.numbers = {number: place for place, number in enumerate(reversed(own_numbers))}

    @property
    def layout(self) -> T7Layout:
        """The layout, including what reading has determined."""
        layout = self.stream.layout
        if self.stream.rounded:
            layout = evolve(layout, digits=tags.OLD_DIGITS)
        if self._unowned:
            layout = evolve(layout, unowned=tuple(self._unowned))
        if self.numbers:
            layout = evolve(layout, numbers=tuple(self.numbers))
        return layout

    def read_value(self) -> Value:
        """Read one value and everything inside it."""
        try:
            return self._read_tree()
        except FormatError as error:
            if not error.file:
                error.file = self.stream.source.name
            if error.offset is None:
                error.offset = self.stream.position
            # Inside a payload, the reader of the object around it adds the path.
            if not error.path and not self.payload_depth:
                error.path = "root" + "".join(map(unfinished_step, self._path))
            raise

    def _read_tree(self) -> Value:
        """Read a value with everything inside it, with an explicit stack: any nesting depth is possible.

        The stack is `_path` with `counts`. At an error the path stays as it is, for the message.
        """
        path = self._path
        if not self.payload_depth:  # a value in a payload is inside those being read
            path.clear()
        scalars = self._scalar()
        if scalars:
            return scalars[0]
        # Else an object follows, whose tag is not read yet.
        counts: list[int] = []  # of each object on the stack the number of values inside it, read or not
        next_tag = self.stream.read_int("a type tag")
        while True:
            value, count = self._open(next_tag)
            if count and len(counts) >= self._limits.depth:
                raise self._limits.exceeded("depth", "values are nested too deep")
            path.append(value)
            counts.append(count)
            inner_tag = self._fill(value, count) if count else None
            # Objects that are complete are put into those around them, up to one with an object still to be read.
            while inner_tag is None:
                value = path.pop()
                counts.pop()
                if not counts:
                    return value
                is_complete = self._put(path[-1], counts[-1], value)
                if not is_complete:
                    inner_tag = self._fill(path[-1], counts[-1])
            next_tag = inner_tag

    def _scalar(self) -> list[Value]:
        """Read a scalar, returned as the one item of a list; an empty list if an object follows, which is not read."""
        values: list[Value] = []
        key_read_before = [0.0]
        self._read_scalars(key_read_before, values, 1)  # as the value of an entry
        return values

    def _open(self, tag: int) -> tuple[Value, int]:
        """Read the start of an object whose tag was read; return it, and how many values inside it are to be read.

        Keys are not counted: of a table and a tds.Hash it is the number of entries. It is 0 for a reference to an
        object that was read before.

        Args:
            tag: the type tag, which was read.
        """
        stream = self.stream
        if tag not in tags.OBJECTS:
            raise self._unknown_tag(tag)
        if tag == tags.FUNCTION_WITHOUT_INDEX:
            self._unnumbered_functions += 1
            return self._open_function(tag), 1  # its upvalues are one value: nil, or a table
        number = stream.read_int("an object's number")
        earlier_object = self._object_of_number(number)
        if earlier_object is not _MISSING:
            return self._checked_reference(earlier_object, number, tag), 0
        if tag == tags.TORCH:
            return self._open_torch(number)
        if tag == tags.TABLE:
            count = stream.read_int("the number of a table's entries")
            stream.require(count, _LEAST_ENTRY_BYTES, "the entries of a table")
            table = Table()
            self._remember(number, table)
            return table, count
        function = self._open_function(tag)  # of one of the tags of numbered functions
        self._remember(number, function)
        return function, 1

    def _open_function(self, tag: int) -> LuaFunction:
        """Read the bytecode of a function, up to its upvalues; the tag, which was read, says how these are written."""
        length = self.stream.read_int("the length of a function's bytecode")
        return LuaFunction(self.stream.read_raw(length, "a function's bytecode"), tag=tag)

    def _unknown_tag(self, tag: int) -> CorruptError:
        """Return the error for a tag, which was read, that is neither a scalar's nor an object's."""
        offset = self.stream.position
        if isinstance(self.stream, BinaryInput):
            offset = max(0, offset - 4)  # the place of the tag; in ascii it has no fixed length
        return CorruptError(
            f"unknown type tag {tag}",
            offset=offset,
            expected="a tag from 0 to 8",
            found=f"{tag}",
            hint=self._tag_hint(),
        )

    def _tag_hint(self) -> str:
        """Return what to do about an invalid tag: inside a Torch object, its class may have a layout of its own."""
        for value in reversed(self._path):
            if isinstance(value, TorchObject):
                return (
                    f"If the class {value.class_name} has a write method of its own, register its layout with "
                    "t7bridge.register_class."
                )
        return "The file is damaged, or is not a .t7 file."

    def _checked_reference(self, obj: Any, number: int, tag: int) -> Any:
        """Return an object read before, to which a tag and its number refer.

        Args:
            obj: the object of this number.
            number: for the error.
            tag: the type tag before the number.

        Raises:
            CorruptError: the tag is not that of the object.
        """
        tag_of_object = tags.TORCH
        if isinstance(obj, Table):
            tag_of_object = tags.TABLE
        elif isinstance(obj, LuaFunction):
            tag_of_object = obj.tag
        if tag_of_object != tag:
            raise CorruptError(
                f"a reference to object {number} has the wrong type",
                expected=TAG_NAMES[tag_of_object],
                found=TAG_NAMES[tag],
                hint="The file is damaged.",
            )
        return obj

    def _object_of_number(self, number: int) -> Any:
        """Return the object of a number, `_MISSING` if there is none."""
        place = number - 1 if self.numbers is None else self.numbers.get(number, -1)
        return self.objects[place] if 0 <= place < len(self.objects) else _MISSING

    def _remember(self, number: int, value: Any) -> None:
        """Keep an object under its number.

        Args:
            number: of the object, as the file has it.
            value: the object.

        Raises:
            CorruptError: the number is none that the next object may have.
            LimitError: there are too many objects.
        """
        objects = self.objects
        expected = len(objects) + 1
        if number != expected:
            self._accept_number(number, expected)
        if len(objects) >= self._most_objects:
            limit = "objects" if self._most_objects == self._limits.objects else "allocated_bytes"
            raise self._limits.exceeded(limit, "too many objects")
        if self.numbers is not None:  # otherwise the number is the place, plus 1
            self.numbers[number] = len(objects)
        objects.append(value)

    def _accept_number(self, number: int, expected: int) -> None:
        """Accept a number of an object that Lua Torch, which counts from 1 on, would not give: sets `numbers`.

        Some writers count from 0, so that the number is one less than expected; some count the functions that have no
        number, so that it is larger by as many at most.

        Args:
            number: of the object, as the file has it.
            expected: one more than there are objects before it.

        Raises:
            CorruptError: the number is another: a reference to an object that was never written.
        """
        if not expected - 1 <= number <= expected + self._unnumbered_functions:
            raise CorruptError(
                "a reference to an object that is not in the file"
                if number > expected
                else "an object has a wrong number",
                expected=f"number {expected} for a new object",
                found=f"{number}",
                hint="The file is damaged.",
            )
        if self.numbers is None:  # those so far were numbered from 1 on
            self.numbers = dict(zip(range(1, expected), range(expected)))

    def _open_torch(self, number: int) -> tuple[Value, int]:
        """Read the start of a Torch object with a new number; return it, and how many values inside it are to be read.

        The start of a tensor and of an object with a table of fields is the class: `_fill` reads what follows. Of a tds
        collection it has the number of entries, too. A storage, and an object whose class has a layout of its own, is
        read as a whole: then it is 0.

        Args:
            number: of the object in the file, under which it is kept for later references.
        """
        version, name = self._read_class()
        # Each object is remembered before its content is read, which may refer to it.
        storage_class = storage_for_class(name)  # element type, device and alias; None if the class is another
        if storage_class and name.endswith("Storage"):
            return self._read_storage(number, version, *storage_class), 0
        if storage_class:
            element, device, alias = storage_class
            tensor = Tensor(element, storage=None, device=device, version=version, alias=alias)
            self._remember(number, tensor)
            return tensor, 1  # its storage
        if name in _TDS:
            return self._open_tds(number, version, name)
        return self._open_object(number, version, name)

    def _read_class(self) -> tuple[int | None, str]:
        """Read the class of a Torch object; return its version, `None` without one, as in old files, and the name.

        Raises:
            CorruptError: it is not a class.
        """
        stream = self.stream
        version = None
        text = stream.read_raw(stream.read_int("the length of a version"), "a version")
        if text.startswith(VERSION_PREFIX):
            version = _version(text[len(VERSION_PREFIX) :])
            text = stream.read_raw(stream.read_int("the length of a class name"), "a class name")
        try:
            name = text.decode()
        except UnicodeDecodeError:
            name = ""  # refused below
        if not name.isprintable() or not name:
            found = repr(text[:40])[1:]  # without the `b`
            raise CorruptError("is not a class name", found=found, hint="The file is damaged.")
        return version, name

    def _open_tds(self, number: int, version: int | None, name: str) -> tuple[Value, int]:
        """Read the number of entries of a tds collection; return the collection, and this number.

        Args:
            number: of the object.
            version: of its class.
            name: of its class.
        """
        collection = _TDS[name](lua_class=name, version=version)
        self._remember(number, collection)
        count = self.stream.read_long("the number of entries")
        least_bytes = _LEAST_ENTRY_BYTES if isinstance(collection, TdsHash) else _LEAST_VALUE_BYTES
        self.stream.require(count, least_bytes, f"the entries of a {name}")
        return collection, count

    def _open_object(self, number: int, version: int | None, name: str) -> tuple[TorchObject, int]:
        """Return an object of any other class, and how many values inside it are to be read: its table of fields, 1.

        If the class has a layout of its own, the object is read here as a whole: then it is 0.

        Args:
            number: of the object.
            version: of its class.
            name: of its class.
        """
        name = intern(name)  # one text for all objects of a class
        payload = payload_of(name, version, self.stream.layout.vintage)
        if payload is None:
            obj = TorchObject(name, version, fields=None)
            self._remember(number, obj)
            return obj, 1
        obj = TorchObject(name, version)  # with an empty table, which the payload may fill
        self._remember(number, obj)
        self._read_payload(obj, payload)
        return obj, 0

    def _read_storage(self, number: int, version: int | None, element: Any, device: str, alias: str | None) -> Storage:
        """Read the size of a storage and pass over its elements; return the storage.

        Args:
            number: of the object.
            version: of its class.
            element: the element type of the class.
            device: of the class.
            alias: the name of the class, if it is not Lua Torch's own for the element type.
        """
        count = self.stream.read_long("a storage's size")
        if self._external_storages is None:
            data = self.stream.read_elements(element, count)
        else:
            data = self._external_data(self._external_storages, element, count)
        storage = Storage(element, count, data, device, version, alias)
        self._remember(number, storage)
        return storage

    @staticmethod
    def _external_data(external_storages: Iterator[Storage], element: Any, count: int) -> Any:
        """Return the elements of the next storage of a stream that was written without them.

        Args:
            external_storages: those of the stream that are still to be read, in order.
            element: the element type that the stream says.
            count: number of elements that the stream says.

        Returns:
            What is the `data` of a `Storage`.

        Raises:
            CorruptError: there is none, or it has another type or size.
        """
        external = next(external_storages, None)
        if external is None or external.element is not element or external.count != count:
            raise CorruptError(
                "the storages do not match the stream",
                expected=f"{count} elements of {element.name}",
                found="none" if external is None else f"{external.count} of {external.element.name}",
            )
        return external.data

    # The content of an object

    def _fill(self, value: Value, count: int) -> int | None:
        """Read the content of an object up to the next object inside it.

        It is called again when `_put` has put that object into this one, unless this completes it.

        Args:
            value: the object, with what was read of it so far.
            count: the number of values inside it, read or not; at least one.

        Returns:
            The tag of the next object inside it, which was read already; `None` if the content is complete.
        """
        if isinstance(value, (Table, TdsHash)):
            table = value if isinstance(value, Table) else value.content
            self._read_scalars(table.raw_keys, table.raw_values, count)
            is_complete = len(table.raw_values) == count
        elif isinstance(value, Tensor):
            return self._fill_tensor(value)
        elif isinstance(value, TorchObject):
            return self._fields_tag(value)
        elif isinstance(value, LuaFunction):
            is_complete = self._fill_function(value)
        else:  # a tds.Vec
            is_complete = self._fill_vector(value.elements, count)
        return None if is_complete else self.stream.read_int("a type tag")

    def _fill_function(self, function: LuaFunction) -> bool:
        """Read the upvalues of a function if they are a scalar: nil, for none. Return whether they were read."""
        scalars = self._scalar()
        if scalars:
            function.upvalues = scalars[0]
        return bool(scalars)

    def _fill_vector(self, elements: list[Value], count: int) -> bool:
        """Read scalars of a tds.Vec up to the next object; return whether it is complete.

        Args:
            elements: those read so far; receives more.
            count: the number of elements that it will have.
        """
        while len(elements) < count:
            scalars = self._scalar()
            if not scalars:
                return False
            elements += scalars
        return True

    def _put(self, value: Value, count: int, item: Value) -> bool:
        """Put a complete object into the one around it; return whether that is known to be complete by it.

        Args:
            value: the object around it, whose content `_fill` has read up to this item.
            count: the number of values inside that, read or not.
            item: the inner object.

        Returns:
            `True` for an object with one value inside it; `False` for a table or a tds collection, in which `_fill`
            reads on, if there is more.
        """
        if isinstance(value, (Table, TdsHash)):
            self._put_entry(value if isinstance(value, Table) else value.content, count, item)
            return False
        if isinstance(value, TdsVec):
            value.elements.append(item)
            return False
        if isinstance(value, Tensor):
            self._set_storage(value, item)
        elif isinstance(value, TorchObject):
            value.fields = item
        else:  # a LuaFunction
            value.upvalues = item
        return True

    def _put_entry(self, table: Table, count: int, item: Value) -> None:
        """Add an object to a table: as the value of the last key if that has none, else as a key.

        After a value, the entries that follow are read too, as far as they are alike; see `Alike`.

        Args:
            table: receives the object.
            count: number of entries that the table will have.
            item: the object, which is complete.
        """
        keys = table.raw_keys
        values = table.raw_values
        if len(keys) == len(values):
            keys.append(item)
            return
        values.append(item)
        # `Alike` expects objects that are numbered from 1 on.
        if count - len(values) < _WORTH_CHECKING or not self._may_have_runs or self.numbers is not None:
            return
        if self._alike is None:
            if len(self.objects) < _FEW_OBJECTS:
                return
            self._alike = self._new_alike()
        self._alike.read(item, keys, values, count)

    def _new_alike(self) -> Alike:
        """Return what reads entries that are alike; its module is loaded only now."""
        from .runs import Alike

        assert isinstance(self.stream, BinaryInput)  # see `_may_have_runs`
        return Alike(self.stream, self.objects, self._most_objects, self._external_storages is not None)

    def _fill_tensor(self, tensor: Tensor) -> int | None:
        """Read a tensor up to its storage; return the storage's tag, `None` if it has none."""
        self._read_view(tensor)
        if self.stream.layout.vintage == tags.TORCH5:
            self._read_ownership()
        tag = self.stream.read_int("a type tag")
        if tag != tags.NIL:
            return tag
        # As for any storage it is checked that the tensor lies inside: it must be empty.
        self._set_storage(tensor, storage=None)
        return None

    def _read_view(self, tensor: Tensor) -> None:
        """Read the sizes, the strides and the offset of a tensor."""
        stream = self.stream
        dimensions = stream.read_int("a tensor's number of dimensions")
        if not 0 <= dimensions <= self._limits.dimensions:
            raise CorruptError(
                "is not a valid number of dimensions",
                expected=f"0 to {self._limits.dimensions} (the limit dimensions)",
                found=f"{dimensions}",
            )
        # Sizes, strides and offset are longs, of 4 bytes at least.
        stream.require(2 * dimensions + 1, 4, "a tensor's sizes and strides")
        numbers = stream.read_longs(2 * dimensions, "a tensor's sizes and strides")
        tensor.size = numbers[:dimensions]
        tensor.stride = numbers[dimensions:]
        tensor.offset = stream.read_long("a tensor's offset") - 1  # 1-based in the file

    def _read_ownership(self) -> None:
        """Read whether the tensor that was opened last owns its storage, a field of Torch5; note it if not."""
        from .releases_2010 import read_ownership

        if not read_ownership(self.stream):
            # The tensor is the last object that was numbered: the last key, or the count if they count from 1.
            number = len(self.objects) if self.numbers is None else next(reversed(self.numbers))
            self._unowned.append(number)

    @staticmethod
    def _set_storage(tensor: Tensor, storage: Value) -> None:
        """Set the storage of a tensor whose sizes, strides and offset were read.

        Args:
            tensor: the tensor.
            storage: what was read in its place; `None` if it has none.

        Raises:
            CorruptError: it is another object, or the tensor is not a view of it.
        """
        if storage is not None and (not isinstance(storage, Storage) or storage.element is not tensor.element):
            kind = getattr(storage, "class_name", type(storage).__name__)
            if isinstance(storage, Storage):
                kind = f"a storage of {storage.element.name}"
            raise CorruptError(
                "a tensor's storage is another object", expected=f"a storage of {tensor.element.name}", found=kind
            )
        tensor.storage = storage
        fault = view_fault(tensor.size, tensor.stride, tensor.offset, storage.count if storage else 0)
        if fault:
            raise CorruptError(f"a tensor is not a view of its storage: {fault}")

    def _fields_tag(self, obj: TorchObject) -> int:
        """Read the tag of an object's fields, which are a table."""
        start = self.stream.position
        tag = self.stream.read_int("a type tag")
        if tag == tags.TABLE:
            return tag
        raise CorruptError(
            f"an object of class {obj.class_name} is not followed by a table of fields",
            offset=start,
            expected="a table (tag 3)",
            found=TAG_NAMES.get(tag, f"tag {tag}"),
            hint=self._tag_hint(),
        )

    def _read_payload(self, obj: TorchObject, payload: Payload) -> None:
        """Read the content of an object by the layout of its class, which may read values with the same reader.

        Args:
            obj: receives the content, in its fields or as its payload.
            payload: how its class is read.

        Raises:
            LimitError: such objects are nested too deep.
        """
        if self.payload_depth >= self._limits.payload_depth:
            raise self._limits.exceeded("payload_depth", "objects with payloads of their own are nested too deep")
        owner = self._owner()
        assert owner is not None  # the `T7Reader`: it is alive, as it reads this
        self.payload_depth += 1
        depth_before = len(self._path)
        try:
            payload.read(owner, obj)
            # If the class has caught the error of a value in its payload, the path of that value is still there.
            del self._path[depth_before:]
        except RecursionError:
            raise LimitError("objects with payloads of their own are nested deeper than Python allows") from None
        finally:
            self.payload_depth -= 1


def _version(text: bytes) -> int:
    """Return the version of a class from the text after `V `."""
    if not text.isdigit() or len(text) > 9:
        raise CorruptError("is not a class version", expected="V and a number", found=repr(text[:20])[1:])
    return int(text)


_PAYLOADS: dict[str, Payload] = {}
"""The layouts of classes that write something else than a table of fields, by class name."""


def payload_of(class_name: str, version: int | None, vintage: str = "") -> Payload | None:
    """Return the layout of a class's objects; `None` if they are a table of fields.

    Args:
        class_name: the full name.
        version: of the object.
        vintage: that of the file's layout; each has its own payloads.
    """
    if vintage:
        from .releases_2010 import vintage_payload

        payload = vintage_payload(vintage, class_name)
        if payload is not None:
            return payload
    payload = _PAYLOADS.get(class_name)
    if payload is None or (version or 0) < payload.since_version:  # no version is less than any
        return None
    return payload


def register_class(*names: str, since_version: int = 0) -> Callable[[Any], Any]:
    """Register classes that write a payload of their own. Decorates a class with static methods `read` and `write`.

    `read(reader, obj)` reads, in the file's order, what Lua's `read` method reads (`read_int`,
    `read_long`, `read_double`, `read_object`, …) and stores it in `obj` (`obj["name"] = …`, or `obj.payload`).
    `write(writer, obj)` does the reverse.

    Args:
        names: full Lua class names, `corpus.Custom`.
        since_version: objects with lower class versions are read as plain tables.

    Raises:
        ModelError: a class is already registered.

    Example:
        >>> @register_class("corpus.Custom")
        ... class Custom:
        ...     @staticmethod
        ...     def read(reader, obj):
        ...         obj["a"] = reader.read_int()
        ...
        ...     @staticmethod
        ...     def write(writer, obj):
        ...         writer.write_int(obj["a"])
    """

    def decorate(layout: PayloadClass) -> PayloadClass:
        for name in names:  # all, before any is registered
            if name in _PAYLOADS:
                raise ModelError(f"the class {name} is already registered")
        for name in names:
            _PAYLOADS[name] = Payload(layout.read, layout.write, since_version)
        return layout

    return decorate


def unregister_class(name: str) -> None:
    """Remove a registered class; its objects are read as plain tables again."""
    _PAYLOADS.pop(name, None)


def _read_header_and_fields(reader: Any, obj: TorchObject) -> None:
    """Read a value that becomes the payload, then the table of fields: a `read` of `Payload`."""
    obj.payload = reader.read_object()
    fields = reader.read_object()
    if not isinstance(fields, Table):
        raise CorruptError(f"the fields of a {obj.class_name} are not a table", found=type(fields).__name__)
    obj.fields = fields


def _write_header_and_fields(writer: Any, obj: TorchObject) -> None:
    """Write what `_read_header_and_fields` reads."""
    writer.write_object(obj.payload)
    writer.write_object(obj.fields)


def _without_fields(read: Callable[[Any], Any], write: Callable[[Any, Any], None]) -> Payload:
    """Return the layout of objects without fields.

    Args:
        read: returns their payload from a `T7Reader`.
        write: writes a payload to a `T7Writer`.
    """

    def read_payload(reader: Any, obj: TorchObject) -> None:
        obj.fields = None
        obj.payload = read(reader)

    def write_payload(writer: Any, obj: TorchObject) -> None:
        write(writer, obj.payload)

    return Payload(read_payload, write_payload)


def _generator_bytes(long_size: int) -> int:
    """Return the size of the C struct THGenerator: two ints, 626 longs, three doubles and an int, padded for a double.

    Source: torch7 814ea4a `Generator.c`, `lib/TH/THRandom.h`.
    """
    head = long_size + 4 + 4 + 625 * long_size  # the seed, two ints, and the state with the place in it
    head += -head % 8  # doubles begin at multiples of 8
    return head + 3 * 8 + 8  # three doubles, an int and its padding


# nn.GPU writes {type, device}, then its fields (nn 8726825 GPU.lua); DataParallelTable writes its gpuAssignments
# first since class version 2 (cunn DataParallelTable.lua); AtomicCounter writes a long (tds 4524bf8 `atomic.lua`).
_PAYLOADS |= {
    "nn.GPU": Payload(_read_header_and_fields, _write_header_and_fields),
    "nn.DataParallelTable": Payload(_read_header_and_fields, _write_header_and_fields, since_version=2),
    "torch.Generator": _without_fields(
        lambda reader: reader.read_raw(_generator_bytes(reader.layout.long_size)),
        lambda writer, data: writer.write_raw(data),
    ),
    "torch.Timer": _without_fields(lambda reader: None, lambda writer, data: None),
    "tds.AtomicCounter": _without_fields(
        lambda reader: reader.read_long(), lambda writer, number: writer.write_long(number)
    ),
}
