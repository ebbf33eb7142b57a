"""The two round-trip records: what a `.t7` cannot hold of the `.pt` that it was made from, and the reverse.

In a `.pt` made from a `.t7` the record is that file without the elements of its storages: a stream that `T7Reader`
reads with the storages supplied. So the way back restores the same bytes, whatever the file contained.

In a `.t7` the record follows the value, where Lua's `torch.load` does not look, and is the pickle that `PtWriter` would
have written: types, order, names and views, with the keys of storages. The elements of the storages are in the `.t7`
itself; those that Lua has only inexactly, or not at all, follow the pickle.

A file that was written by a record, of either kind, is read back without any record, and compared: a record is a hint
of what a file was, and what counts is what the source shows, storages by place and type, the rest by content. The
structure of the written file is read, and elements only where they are not a copy, as in text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from attrs import asdict, evolve

from .. import formats
from ..data import define
from ..errors import CorruptError, RecordError, T7BridgeError
from ..formats.pt.file import PtReader, read_pickle_with
from ..formats.pt.members import RECORD_MEMBER
from ..formats.pt.pickle.pickler import PickleWriter
from ..formats.pt.writer import StorageKeys
from ..formats.t7.file import T7File
from ..formats.t7.layout import T7Layout
from ..formats.t7.reader import T7Reader
from ..formats.t7.writer import T7Writer
from ..formats.table import ends_as_zip
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.lua import Value
from ..graph.storage import Span, Storage
from ..graph.tensor import Tensor
from ..io.copy import Done, sha256
from ..io.output import Content, FileOutput, Output
from ..io.source import ByteSource
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Report
from ..values.compare import Comparer
from ..values.widened import narrow, wider_type
from .lua_tree import LuaTree, to_lua
from .tree import WRAPPED, as_tree
from .values import is_simple, note_target

if TYPE_CHECKING:
    from ..formats.pt.writer import ValueWriter


_PT_RECORD_MAGIC = "t7bridge pt record 1"
_CONTRADICTION = "what the record restores is not what the file shows"
_AFTER_PICKLE = -1
"""The place of a storage whose elements follow the pickle in a record, as the `.t7` does not have them."""


@define(frozen=True)
class PtRecord:
    """Content of a record.

    Attributes:
        structure: hash of the `.t7` that it belongs to, without the elements of storages.
        storages: for each key, in order: element type, number of elements, and the index of its storage among those of
            the `.t7`, or -1 for the next of those after the pickle.
        pickle: the value.
        raw: the elements of the storages that the `.t7` does not have.
    """

    structure: str
    storages: tuple[tuple[str, int, int], ...]
    pickle: bytes
    raw: bytes


class Hashed(Output):
    """An output that hashes what is written except the elements of storages, and passes everything to another.

    Args:
        target: receives everything; `None` if only the hash is wanted.

    Attributes:
        digest: the hash of what was written so far, complete after `flush`.
    """

    def __init__(self, target: Output | None = None) -> None:
        sink: Any = SimpleNamespace(write=self._pass)
        super().__init__(sink)
        self._target = target
        self.digest = sha256()

    def _pass(self, data: memoryview) -> None:
        """Hash what the buffer of this output holds, and pass it on."""
        self.digest.update(data)
        if self._target is not None:
            self._target.write(data)

    def append(self, content: Content, done: Done = None) -> None:
        """Pass the elements of a storage on to the target, if there is one; they are no part of the hash.

        Args:
            content: the elements.
            done: called when they are copied, as by any output.
        """
        if self._target is not None:
            self.flush()
            self._target.append(content, done)


def structure_hash(value: Value) -> str:
    """Return a hash of a Lua value without the elements of its storages, whatever the encoding of its file."""
    structure, _storages = structure_of(value, writer_class=T7Writer)
    return structure


class _DevicelessWriter(T7Writer):
    """Writes tensors and storages of every device under the class names of the CPU, so that hashes do not differ."""

    @staticmethod
    def _class_name(value: Value) -> str:
        return value.element.name if isinstance(value, (Tensor, Storage)) else T7Writer._class_name(value)


def structure_of(value: Value, writer_class: type[T7Writer] = _DevicelessWriter) -> tuple[str, list[Storage]]:
    """Return a hash of a Lua value without the elements of its storages, and the storages in the order of the file.

    Args:
        value: the Lua value.
        writer_class: writes it; by default the devices of tensors are not part of the hash.
    """
    output = Hashed()
    storages = _write_without_elements(output, [value], T7Layout(), writer_class)
    return output.digest.hexdigest(), storages


def _write_without_elements(
    output: Output, roots: list[Value], layout: T7Layout, writer_class: type[T7Writer] = T7Writer
) -> list[Storage]:
    """Write values without the elements of their storages; return the storages in the order of the file.

    Args:
        output: receives the bytes.
        roots: the Lua values.
        layout: how they are encoded.
        writer_class: of the writer.
    """
    storages: list[Storage] = []
    writer = writer_class(output, layout, payloads=storages)  # adds each storage to the list, in place of its elements
    for root in roots:
        writer.write_object(root)
    output.flush()
    return storages


def pickle_of(value: Any) -> tuple[bytes, list[Storage]]:
    """Return the pickle of a value of a `.pt`, for its record, and the storages that it names."""
    keys = StorageKeys(str)
    # Names of any package are written: the record is never loaded by Python.
    return PickleWriter(keys.key_and_device, allow_foreign=True).dumps(value), keys.storages


def value_read_back(value: Any, report: Report, limits: Limits, *, allow_foreign: bool = False) -> Any:
    """Return what a reader finds in a `.pt` to which a value is written: plain data for what is not written by name.

    Args:
        value: the value.
        report: receives the notes about plain data.
        limits: resource limits.
        allow_foreign: whether objects of all classes are written by name, as for `convert`.
    """
    keys = StorageKeys(str)  # the storages are "0", "1", … in the pickle, in the order in which it names them
    writer = PickleWriter(keys.key_and_device, allow_foreign=allow_foreign)
    pickle = writer.dumps(value)
    if writer.left_out_names or writer.refused_names:
        note_target(writer, value, report)
    storages = {str(number): storage for number, storage in enumerate(keys.storages)}
    # Forbidden names are not refused: the pickle was written here, and reading it calls nothing.
    read_back, _foreign = read_pickle_with(pickle, storages, limits, forbid=False)
    return read_back


def write_pt_record(
    output: Output, pickle: bytes, storages: list[Storage], structure: str, tree: LuaTree, places: dict[int, int]
) -> None:
    """Append the record of a value to the `.t7` that was made from it: a line of JSON, the pickle, then elements.

    Args:
        output: the `.t7`, with everything else in it.
        pickle: the value of the `.pt`.
        storages: those that the pickle names.
        structure: the hash of the Lua value.
        tree: the Lua value made from it.
        places: index of each Lua storage, by identity, among those of the `.t7`.
    """
    types_counts_places: list[tuple[str, int, int]] = []
    after_pickle: list[Storage] = []
    for storage in storages:
        place = _place_in_t7(storage, tree, places)
        types_counts_places.append((storage.element.name, storage.count, place))
        if place == _AFTER_PICKLE:
            after_pickle.append(storage)
    head = encode_head(_PT_RECORD_MAGIC, structure=structure, storages=types_counts_places, pickle_bytes=len(pickle))
    output.write(head + pickle)
    for storage in after_pickle:
        for chunk in storage.chunks():
            output.write(chunk)


def _place_in_t7(storage: Storage, tree: LuaTree, places: dict[int, int]) -> int:
    """Return the index of the storage of a `.t7` from which one of a `.pt` can be restored exactly.

    Args:
        storage: of the `.pt`.
        tree: the Lua value of the `.t7`, which knows what each storage became.
        places: index of each Lua storage, by identity, among those of the `.t7`.

    Returns:
        `_AFTER_PICKLE` if there is none.
    """
    lua_storage = tree.storages.get(id(storage))
    if lua_storage is None or not lua_storage.is_exact:
        return _AFTER_PICKLE
    return places.get(id(lua_storage.storage), _AFTER_PICKLE)


def decode_pt_record(data: bytes) -> PtRecord:
    """Parse a record.

    Raises:
        CorruptError: the bytes are not a record.
    """
    return decode_head(data, _PT_RECORD_MAGIC, ".pt", _pt_record_of)


def _pt_record_of(head: Any, rest: bytes) -> PtRecord:
    """Return the record of a `.pt` from its first line, decoded, and the bytes after it.

    Args:
        head: the line: the data of JSON, whatever they are.
        rest: the bytes: the pickle, and the elements that the `.t7` does not have.

    Raises:
        ValueError: a value is out of range, as other errors say that one is missing or of another type: `decode_head`
            makes one error of all.
    """
    rows = tuple((str(name), int(count), int(place)) for name, count, place in head["storages"])
    for name, count, _place in rows:  # whether the `.t7` has such a place is seen where it is looked up
        if name not in ELEMENT_TYPES or count < 0:
            raise ValueError("storages")
    pickle_bytes = int(head["pickle_bytes"])
    if not 0 <= pickle_bytes <= len(rest):
        raise ValueError("pickle_bytes")
    return PtRecord(
        structure=str(head["structure"]),
        storages=rows,
        pickle=rest[:pickle_bytes],
        raw=rest[pickle_bytes:],
    )


class RestoredValue(NamedTuple):
    """The value that a record restores.

    Attributes:
        value: the value.
        foreign: the globals in its pickle that are unknown here: names only.
        t7_storages: for each storage of the record whose elements are in the `.t7`, the storage there. The pickle need
            not refer to all of them: as keys they stay alive, so that no other storage gets the identity of one.
    """

    value: Any
    foreign: list[str]
    t7_storages: dict[Storage, Storage]


@define(eq=False)
class T7Fingerprint:
    """The hash and the storages of the Lua value in a `.t7`, with which the value that its record restores is compared.

    It does not keep the objects of the `.t7` alive.

    Attributes:
        structure: hash of the Lua value without the elements of its storages, whatever their devices.
        storages: its storages, in order.
        t7_storages: see `RestoredValue`; of the value that was restored, and perhaps written.
    """

    structure: str
    storages: list[Storage]
    t7_storages: dict[Storage, Storage]

    def matches(self, value: Any, t7_storages: dict[Storage, Storage], limits: Limits) -> bool:
        """Return whether the Lua value made from a value is the one in the `.t7`.

        Storages are compared in their order, by their elements unless these are known to be the same ones. Everything
        else is compared by its hash, so that the value of the `.t7` need not be kept.

        Args:
            value: of a `.pt`.
            t7_storages: for each storage of this value that is known to have the elements of one in the `.t7`, the one
                there.
            limits: resource limits.
        """
        # The `.t7` does not say whether it was written with tables for keys with dots.
        for nested in (False, True):
            tree = to_lua(value, nested=nested, limits=limits)
            structure, storages = structure_of(tree.value)
            if structure != self.structure:
                continue
            equal_storages: set[tuple[int, int]] = set()  # pairs of identities that need not be compared
            for lua_storage in tree.storages.values():
                # An original that cannot be made of Lua's storage again does not say which storage that is: it is
                # compared by its elements.
                if lua_storage.is_exact and lua_storage.original in t7_storages:
                    equal_storages.add((id(lua_storage.storage), id(t7_storages[lua_storage.original])))
            differences = Comparer(limits=limits, equal_storages=equal_storages).run(storages, self.storages)
            if not differences:
                return True
        return False


class OriginalPt(NamedTuple):
    """The value of the `.pt` from which a `.t7` was made.

    Attributes:
        value: the value.
        foreign: the globals in its pickle that are unknown here: names only.
        fingerprint: of the `.t7`, with which the value was or is to be compared.
    """

    value: Any
    foreign: list[str]
    fingerprint: T7Fingerprint


def restore_value(
    record: PtRecord, storages: list[Storage], limits: Limits = DEFAULT_LIMITS, forbid: bool = True
) -> RestoredValue:
    """Return the value of the original `.pt`, which has not been compared with the `.t7`.

    Args:
        record: the result of `decode_pt_record`.
        storages: those of the `.t7`, in order.
        limits: resource limits.
        forbid: whether names that run code are refused.

    Raises:
        CorruptError: the storages do not match.
    """
    storages_by_key: dict[str, Storage] = {}
    t7_storages: dict[Storage, Storage] = {}
    after_pickle = ByteSource.from_bytes(record.raw, "<record>")
    offset = 0
    for number, (element_name, count, place) in enumerate(record.storages):
        if place >= 0:
            storage = _narrowed(storages, place, element_name, count)
            t7_storages[storage] = storages[place]
        else:  # the next of those after the pickle
            element = ELEMENT_TYPES[element_name]
            nbytes = count * element.itemsize
            if nbytes > after_pickle.size - offset:
                raise _storage_mismatch(number, count, element_name)
            storage = Storage(element, count, Span(after_pickle, offset, element.itemsize))
            offset += nbytes
        storages_by_key[str(number)] = storage  # as `StorageKeys` names them in the pickle
    value, foreign = read_pickle_with(record.pickle, storages_by_key, limits, forbid)
    return RestoredValue(value, foreign, t7_storages)


def original_pt(
    content: T7File, limits: Limits = DEFAULT_LIMITS, forbid: bool = True, check: bool = True
) -> OriginalPt | None:
    """Return the value of the `.pt` from which a `.t7` with a record was made.

    Elements of types that Lua does not have are computed from Lua's when they are read, and an element that such a type
    lacks is a `RecordError` then.

    Args:
        content: the `.t7`, with the record after its value.
        limits: resource limits.
        forbid: whether names that run code are refused.
        check: whether the value is compared with the Lua value in the file; what is written from one that was not must
            be checked by `check_pt`.

    Returns:
        `None` if anything but weights of the `.t7` was changed since, or the value is not that of the file.

    Raises:
        CorruptError: the record cannot be read, or the storages do not match.
    """
    record = decode_pt_record(content.trailing)
    if len(content.roots) != 1 or record.structure != structure_hash(content.roots[0]):
        return None
    storages = [item for item in content.objects if isinstance(item, Storage)]
    try:
        value, foreign, t7_storages = restore_value(record, storages, limits, forbid)
    except RecordError:  # an element that the recorded type lacks: weights of the `.t7` were changed
        return None
    if not is_simple(value):
        # An earlier release recorded the value before it was simplified.
        from .simplified import simplified

        ignored = Report(source_format="pt", target_format="t7")
        value = simplified(value, ignored, limits, unnamed_data=WRAPPED)
    # Another hash than that of the record: the devices of tensors are no part of it.
    structure, storages_in_order = structure_of(content.roots[0])
    fingerprint = T7Fingerprint(structure, storages_in_order, t7_storages)
    if check and not fingerprint.matches(value, t7_storages, limits):
        return None
    return OriginalPt(value, foreign, fingerprint)


def _narrowed(storages: list[Storage], place: int, name: str, count: int) -> Storage:
    """Return the storage at a place of the `.t7`, with the element type that it had in the `.pt`.

    Args:
        storages: those of the `.t7`, in order.
        place: index of the storage in the list.
        name: of the element type in the `.pt`.
        count: number of elements.

    Raises:
        CorruptError: the storage is not there, or another one.
    """
    if place >= len(storages):
        raise _storage_mismatch(place, count, name)
    element = ELEMENT_TYPES[name]
    storage = storages[place]
    if storage.element is not element:
        # Lua has the type itself, or the next wider one.
        if storage.element is not wider_type(element):
            raise _storage_mismatch(place, count, name)
        storage = narrow(storage, element)
    if storage.count != count:
        raise _storage_mismatch(place, count, name)
    return storage


def _storage_mismatch(place: int, count: int, name: str) -> CorruptError:
    return CorruptError(f"storage {place} does not match the record of the original .pt", expected=f"{count} of {name}")


@contextmanager
def _reading_back(output: FileOutput) -> Iterator[ByteSource]:
    """Open what was written so far, before the file has its name.

    Raises:
        RecordError: any error in reading it, as the record was wrong then.
    """
    output.flush()
    output.wait()  # until copies of elements are complete
    with ByteSource.from_path(output.temporary) as source:
        try:
            yield source
        except T7BridgeError as error:
            raise RecordError(_CONTRADICTION) from error


def check_t7(
    output: FileOutput, places: dict[int, Storage], layout: T7Layout, source: PtReader, limits: Limits
) -> None:
    """Check that a `.t7`, written by a record, shows the value of the `.pt` that the record was found in.

    Args:
        output: the file.
        places: each storage written, by the position of its elements in the file, in bytes.
        layout: of the file.
        source: the `.pt`.
        limits: resource limits.

    Raises:
        RecordError: it does not.
    """
    with _reading_back(output) as file:
        document = formats.open(file, limits=limits)
        if document.format != "t7":
            raise RecordError(_CONTRADICTION)
        content = document.content
        for storage in content.objects:
            if not isinstance(storage, Storage) or not isinstance(storage.data, Span):
                continue
            span = storage.data
            # Copied elements are not compared. Those of another byte order are no copy; single bytes have no order.
            if span.order == layout.byte_order or span.width == 1:
                _refer_to_written_elements(storage, places.get(span.offset))
        # The `.pt` holds what this conversion made of the original: records are of trees only.
        trees = [as_tree(root) for root in content.roots]
        del document, content  # free Lua's objects: only the trees are compared
        value = trees[0] if len(trees) == 1 else trees
        if Comparer(limits=limits).run(value, source.read()):
            raise RecordError(_CONTRADICTION)


def check_pt(output: FileOutput, writer: ValueWriter, fingerprint: T7Fingerprint, limits: Limits) -> None:
    """Check that a `.pt`, written by a record, shows the value of the `.t7` that the record was found in.

    Args:
        output: the file.
        writer: its writer.
        fingerprint: what the `.t7` shows.
        limits: resource limits.

    Raises:
        RecordError: it does not.
    """
    with _reading_back(output) as file:
        reader = PtReader(file, limits=limits)
        value = reader.read()
        t7_storages: dict[Storage, Storage] = {}
        for number, written in enumerate(writer.stored):
            storage = reader.storage(str(number))
            has_written_elements = _refer_to_written_elements(storage, written)
            if has_written_elements and written in fingerprint.t7_storages:
                t7_storages[storage] = fingerprint.t7_storages[written]
        if not fingerprint.matches(value, t7_storages, limits):
            raise RecordError(_CONTRADICTION)


def _refer_to_written_elements(storage: Storage, written: Storage | None) -> bool:
    """Let a storage that was read back refer to the elements that were written there, so that they are not compared.

    This is sound because a writer copies elements whatever a record says.

    Args:
        storage: the storage read back.
        written: the storage written at its place; `None` if there was none.

    Returns:
        Whether the two have one element type and one number of elements; if not, nothing is changed.
    """
    if written is None or storage.element is not written.element or storage.count != written.count:
        return False
    storage.data = written.data
    return True


_T7_RECORD_MAGIC = "t7bridge record 1"
Result = TypeVar("Result")


@define(frozen=True)
class Skeleton:
    """A `.t7` file without the elements of its storages.

    Attributes:
        layout: how the file was encoded; the stream has its encoding, but today's form of objects.
        roots: number of values in it.
        storages: key of each storage, in the order of the stream.
        stream: the bytes.
        trailing: bytes after the last value.
    """

    layout: T7Layout
    roots: int
    storages: tuple[str, ...]
    stream: bytes
    trailing: bytes = b""


def take_skeleton(
    roots: list[Value], layout: T7Layout, trailing: bytes = b""
) -> Callable[[Callable[[Storage], str]], Skeleton]:
    """Write the values of a `.t7` into memory, without the elements of their storages.

    Args:
        roots: the values of the file.
        layout: the encoding.
        trailing: bytes after the last value.

    Returns:
        A function that returns the skeleton, without need of the values. Its argument returns the key of a storage.
    """
    stream = io.BytesIO()
    # Today's form of objects and numbers: that of the file is kept in `layout`.
    current_form = evolve(layout, vintage="", headless=False, numbers=())
    storages = _write_without_elements(Output(stream), roots, current_form)
    root_count = len(roots)  # the function below must not keep the values alive

    def skeleton(key_of: Callable[[Storage], str]) -> Skeleton:
        """Return the skeleton, with the keys that the storages have in the `.pt`."""
        keys = tuple(map(key_of, storages))
        return Skeleton(layout, root_count, keys, stream.getvalue(), trailing)

    return skeleton


def read_skeleton(skeleton: Skeleton, storage: Callable[[str], Storage], limits: Limits = DEFAULT_LIMITS) -> T7File:
    """Read the values of a skeleton, with storages that are supplied.

    Args:
        skeleton: made by `take_skeleton`.
        storage: returns the storage of a key.
        limits: resource limits.

    Raises:
        FormatError: the storages do not match the stream.
    """
    layout = skeleton.layout
    reader = T7Reader(
        skeleton.stream,
        encoding=layout.encoding,
        byte_order=layout.byte_order,
        long_size=layout.long_size,
        limits=limits,
        payloads=map(storage, skeleton.storages),
    )
    roots = [reader.read_object() for _ in range(skeleton.roots)]
    return T7File(roots, layout, ByteSource.from_bytes(skeleton.trailing), list(reader.objects))


def has_t7_record(reader: PtReader) -> bool:
    """Return whether a `.pt` has the record of a `.t7` that it was made from.

    Raises:
        CorruptError: its CRC-32 does not match.
    """
    return reader.extra(RECORD_MEMBER) is not None


def original_t7(reader: PtReader, limits: Limits = DEFAULT_LIMITS) -> T7File | None:
    """Return the `.t7` that a `.pt` was made from; `None` if there is no record, or the `.pt` was changed since.

    What is written from it must be checked by `check_t7`.

    Args:
        reader: of the `.pt`.
        limits: resource limits.

    Raises:
        FormatError: the record cannot be read, or the storages do not match.
    """
    data = reader.extra(RECORD_MEMBER)
    if data is None:
        return None
    skeleton, content_id = decode_record(data)
    if content_id != reader.content_id:
        return None
    restored = read_skeleton(skeleton, reader.storage, limits)
    if ends_as_zip(ByteSource.from_bytes(restored.trailing)):
        # Trailing bytes that make a zip archive of the file would show other readers another value.
        raise _unreadable(".t7")
    return restored


def encode_head(magic: str, **head: Any) -> bytes:
    """Return the first line of a record."""
    return json.dumps({"record": magic, **head}, separators=(",", ":")).encode() + b"\n"


def decode_head(data: bytes, magic: str, original: str, read: Callable[[Any, bytes], Result]) -> Result:
    """Parse a record: a line of JSON, the head, and bytes.

    Args:
        data: the record.
        magic: what its head must have as `record`.
        original: suffix of the file that it is about, for the error.
        read: returns the record from its head and the bytes after it.

    Raises:
        CorruptError: the bytes are not a record.
    """
    line, _, rest = data.partition(b"\n")
    try:
        head = json.loads(line)
        if head["record"] != magic:
            raise ValueError(head["record"])
        return read(head, rest)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _unreadable(original) from error


def encode_record(skeleton: Skeleton, content_id: str) -> bytes:
    """Return the record of a `.t7` as bytes: one line of JSON, then the stream, then the trailing bytes of the file.

    Args:
        skeleton: of the `.t7`.
        content_id: a hash of the value in the same file, by which a later change of it is noticed.
    """
    head = encode_head(
        _T7_RECORD_MAGIC,
        content=content_id,
        layout=asdict(skeleton.layout),
        roots=skeleton.roots,
        storages=skeleton.storages,
        stream_bytes=len(skeleton.stream),
    )
    return head + skeleton.stream + skeleton.trailing


def decode_record(data: bytes) -> tuple[Skeleton, str]:
    """Parse the record of a `.t7`.

    Returns:
        The skeleton, and the hash of the value with which it was written.

    Raises:
        CorruptError: the bytes are not a record.
    """
    return decode_head(data, _T7_RECORD_MAGIC, ".t7", _skeleton_of)


def _skeleton_of(head: Any, rest: bytes) -> tuple[Skeleton, str]:
    """Return the skeleton of a `.t7`, and the hash of the value beside it, from a record's decoded first line.

    Args:
        head: the line.
        rest: the bytes after it.

    Raises:
        ValueError: a value is out of range. What else Python raises, where one is missing or of another type, is not
            caught here: `decode_head` makes one error of all.
    """
    stream_bytes = int(head["stream_bytes"])
    if not 0 <= stream_bytes <= len(rest):
        raise ValueError("stream_bytes")
    fields: dict[str, Any] = {}
    for name, item in head["layout"].items():
        fields[name] = tuple(item) if isinstance(item, list) else item  # JSON has no tuples
    skeleton = Skeleton(
        layout=T7Layout(**fields),
        roots=int(head["roots"]),
        storages=tuple(map(str, head["storages"])),
        stream=rest[:stream_bytes],
        trailing=rest[stream_bytes:],
    )
    # Numbers of objects in a .t7 are ints of C.
    for number in (*skeleton.layout.numbers, *skeleton.layout.unowned):
        if type(number) is not int or abs(number) >= 1 << 31:
            raise ValueError("numbers")
    # Each value takes at least a byte of the stream.
    if not 1 <= skeleton.roots <= stream_bytes:
        raise ValueError("roots")
    return skeleton, str(head["content"])


def _unreadable(original: str) -> CorruptError:
    message = f"the record of the original {original} cannot be read"
    return CorruptError(message, hint="Convert without it (--no-record).")
