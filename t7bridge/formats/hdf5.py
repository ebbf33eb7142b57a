"""HDF5 files by h5py, whose only importer this is; elements bypass it and are copied from file to file.

Dicts and lists are groups and tensors are data sets, `/model/0.weight`, as in torch-hdf5, whose `hdf5.open` reads and
writes such files in Lua. Strings are attributes of the root group. Two names of one tensor are two links to one data
set; for other views of one storage, the attribute `t7bridge` of each data set describes the view, and names that
HDF5 cannot represent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import CorruptError, LimitError, T7BridgeError, UnsupportedError, WriteError
from ..graph.dtypes import ELEMENT_TYPES, ElementType
from ..graph.storage import Span, Storage
from ..graph.tensor import Tensor
from ..io.output import FileOutput
from ..io.source import ByteSource, Readable
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Note
from .document import Document, Written
from .named import METADATA_KEY, Name, NamedTensors, TensorView, extent, rows, tie

_CODES = {("b1" if each.code == "?" else each.code): each for each in ELEMENT_TYPES.values() if each.native}
_MOST_ATTRIBUTE = 60_000
_NAMED = 5
"""Maximum size of an attribute in an object's header, in bytes."""


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise UnsupportedError("h5py is not installed", hint="pip install 't7bridge[hdf5]'") from error
    return h5py


# Reading


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open an HDF5 file.

    Data sets of text, records and references are left out, each with a note, and so are links to other files.

    Raises:
        UnsupportedError: h5py is not installed.
        FormatError: the file is damaged.
    """
    h5py = _h5py()
    opened, _ = ByteSource.open(source)
    notes: list[Note] = []
    reader = _Reader(h5py, opened, limits, notes)
    return Document("hdf5", opened, reader.roots, metadata=reader.metadata(), notes=notes)


class _Reader:
    """Reader of the groups and data sets of a file."""

    def __init__(self, h5py: Any, source: ByteSource, limits: Limits, notes: list[Note]) -> None:
        self._h5py = h5py
        self._source = source
        self._limits = limits
        self._notes = notes
        self._views: dict[Name, TensorView] = {}
        self._tensors: dict[Name, Tensor] = {}
        self._recorded: dict[Name, Name] = {}
        self._by_address: dict[int, Tensor] = {}
        self._attributes = 0
        self._attribute_names: list[str] = []
        try:
            self._file = h5py.File(_Bytes(source), "r")
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CorruptError:
        return CorruptError(f"cannot be read as HDF5: {str(error)[:200]}", file=self._source.name)

    def metadata(self) -> dict[str, str]:
        """Return the root group's text attributes."""
        try:
            found = {}
            for name in self._file.attrs:
                value = self._file.attrs[name]
                if isinstance(value, str):
                    found[name] = value
                elif isinstance(value, bytes):
                    found[name] = value.decode("utf-8", "backslashreplace")
            return found
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            raise self._damaged(error) from error

    def roots(self) -> list[Any]:
        """Return the tensors, in a dict for each group."""
        try:
            self._walk()
        except T7BridgeError:
            raise
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, OverflowError) as error:
            raise self._damaged(error) from error
        tied = dict(self._tensors)
        tie(tied, self._views, self._notes)
        made: dict[Any, Any] = {}
        same: dict[int, Tensor] = {}
        names = _restored_names(self._recorded)
        if len(names) < len(self._recorded):
            path = next(path for path in self._recorded if path not in names)
            message = "the name that its attribute records is not one that HDF5 cannot have, and is not used"
            self._notes.append(Note("warning", ".".join(path), message, code="record"))
        for path, tensor in self._tensors.items():
            steps = names.get(path, path)
            holder = made
            for step in steps[:-1]:
                inner = holder.setdefault(step, {})
                if not isinstance(inner, dict):
                    raise CorruptError("two data sets have one name", file=self._source.name, path=".".join(steps))
                holder = inner
            if steps[-1] in holder:
                raise CorruptError("two data sets have one name", file=self._source.name, path=".".join(steps))
            holder[steps[-1]] = same.setdefault(id(tensor), tied[path])
        return [made]

    def _walk(self) -> None:
        """Find the data sets. A group that occurs again, for example inside itself, is left out there."""
        h5py = self._h5py
        seen = {_address(h5py, self._file)}
        stack: list[tuple[Name, Any]] = [((), self._file)]
        while stack:
            steps, group = stack.pop()
            self._count_attributes(steps, group)
            if len(seen) + len(self._tensors) > self._limits.archive_members:
                raise LimitError("has too many groups and data sets", file=self._source.name, limit="archive_members",
                                 value=self._limits.archive_members)  # fmt: skip
            inner: list[tuple[Name, Any]] = []
            for name in group:
                path = (*steps, name)
                link = group.get(name, getlink=True)
                if isinstance(link, h5py.ExternalLink):
                    self._left_out(path, "a link to another file")
                    continue
                item = group.get(name)
                if isinstance(item, h5py.Dataset):
                    self._dataset(path, item)
                elif isinstance(item, h5py.Group) and (address := _address(h5py, item)) not in seen:
                    seen.add(address)
                    inner.append((path, item))
                else:
                    self._left_out(path, "a group under another name" if isinstance(item, h5py.Group) else "a broken "
                                   "link" if item is None else type(item).__name__)  # fmt: skip
            stack += reversed(inner)
        if self._attributes:
            names = ", ".join(self._attribute_names) + (", …" if self._attributes > len(self._attribute_names) else "")
            what = "attribute is" if self._attributes == 1 else "attributes are"
            self._notes.append(
                Note(
                    "warning",
                    "",
                    f"{self._attributes} {what} left out: {names}",
                    code="left-out",
                    count=self._attributes,
                )
            )

    def _count_attributes(self, path: Name, item: Any) -> None:
        """Count the attributes of a group or data set that are neither ours nor metadata of the file."""
        if not len(item.attrs):
            return
        known = set(self.metadata()) if not path else {METADATA_KEY}
        others = [name for name in item.attrs if name not in known]
        self._attributes += len(others)
        room = _NAMED - len(self._attribute_names)
        self._attribute_names += [f"{'.'.join(path)}@{name}"[:100] for name in others[:room]]

    def _left_out(self, path: Name, what: str) -> None:
        self._notes.append(Note("warning", ".".join(path), f"{what} is left out", code="left-out"))

    def _dataset(self, path: Name, data: Any) -> None:
        address = _address(self._h5py, data)
        tensor = self._by_address.get(address)
        if tensor is None:
            self._count_attributes(path, data)
            element, order = _element(self._h5py, data)
            if element is None:
                self._left_out(path, f"a data set of {str(data.dtype)[:40]}")
                return
            if data.shape is None:
                self._left_out(path, "a data set without a shape")
                return
            tensor = self._by_address[address] = self._tensor(path, data, element, order)
        names, view = _attribute(data, self._source.name)
        recorded = names.get("/".join(path))
        if recorded is not None:
            self._recorded[path] = recorded
        self._tensors[path] = tensor
        if view is not None:
            self._views[path] = view

    def _tensor(self, path: Name, data: Any, element: ElementType, order: str) -> Tensor:
        shape = tuple(int(extent) for extent in data.shape)
        numel = 1
        stride: list[int] = []
        for length in reversed(shape):
            stride.insert(0, numel)
            numel *= max(length, 1)
        numel = 0 if 0 in shape else numel
        nbytes = numel * element.itemsize
        if data.is_virtual or data.external:
            raise UnsupportedError("a data set's elements are in another file", file=self._source.name,
                                   path=".".join(path))  # fmt: skip
        offset = data.id.get_offset() if numel else None
        if not numel:
            storage = Storage.empty(element)
        elif offset is not None:
            if offset + nbytes > self._source.size or data.id.get_storage_size() < nbytes:
                raise CorruptError("a data set's elements are not all in the file", file=self._source.name,
                                   offset=offset, path=".".join(path))  # fmt: skip
            storage = Storage(element, numel, Span(self._source, offset, element.itemsize, order))
        else:
            allowed = max(self._limits.inflate_bytes, self._limits.inflate_ratio * self._source.size)
            if nbytes > allowed:
                raise LimitError("a data set would grow too large when read", file=self._source.name,
                                 path=".".join(path), found=f"{nbytes} bytes", limit="inflate_bytes",
                                 value=self._limits.inflate_bytes)  # fmt: skip
            # Chunked or compressed: read by h5py on demand, in the machine's byte order.
            chunks = _DatasetSource(self._source.name, data, nbytes)
            storage = Storage(element, numel, Span(chunks, 0, element.itemsize))
        return Tensor(element, storage, shape, tuple(stride), is_scalar=not shape)


def _address(h5py: Any, item: Any) -> int:
    """Return the address of an object's header in the file: the same for all names of the object."""
    return int(h5py.h5o.get_info(item.id).addr)


def _element(h5py: Any, data: Any) -> tuple[ElementType | None, str]:
    """Return element type and byte order of a data set; no type if tensors cannot have such elements."""
    dtype = data.dtype
    if h5py.check_string_dtype(dtype) or dtype.kind not in "biufc" or dtype.subdtype is not None:
        return None, "little"
    order = "big" if dtype.byteorder == ">" else "little"
    if dtype.kind == "b" and (data.id.get_type().get_size() != 1):
        return None, order
    return _CODES.get(dtype.newbyteorder("=").str[1:]), order


def _attribute(data: Any, file: str) -> tuple[dict[str, Name], TensorView | None]:
    """Parse our attribute of a data set: names by path, and the view."""
    if METADATA_KEY not in data.attrs:
        return {}, None
    try:
        found = json.loads(data.attrs[METADATA_KEY])
        names = {str(path): tuple(map(str, steps)) for path, steps in found.get("names", {}).items()}
        if not all(names.values()):
            raise ValueError("a name is empty")
        return names, TensorView.from_list(found["view"]) if "view" in found else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError("our attribute of a data set cannot be read", file=file, path=data.name) from error


class _Bytes:
    """A source as a file object for h5py: read by offset, never by file name."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._position = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._source.size - self._position)
        data = self._source.read(self._position, left if size < 0 else min(size, left)) if left else b""
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._source.size:  # the library seeks to any offset in the file
            return 0
        got = self._source.read_into(self._position, memoryview(buffer).cast("B"))
        self._position += got
        return got

    def truncate(self, size: int | None = None) -> int:
        raise OSError("is open for reading only")

    write = truncate

    def flush(self) -> None:
        """Do nothing."""


class _DatasetSource(ByteSource):
    """The elements of a data set that is not contiguous, as little-endian bytes."""

    def __init__(self, name: str, data: Any, nbytes: int) -> None:
        super().__init__(name, nbytes)
        self._data = data
        self._row = nbytes // data.shape[0] if data.ndim else nbytes
        self._kept: tuple[int, bytes] = (0, b"")

    def read(self, offset: int, length: int) -> bytes:
        """See `ByteSource.read`; whole rows are read, and the last ones cached."""
        length = max(0, min(length, self.size - offset))
        start, kept = self._kept
        if not start <= offset <= offset + length <= start + len(kept):
            first, end = offset // self._row, -(-(offset + length) // self._row)
            try:
                array = self._data[first:end] if self._data.ndim else self._data[()]
            except (OSError, ValueError, RuntimeError) as error:
                raise CorruptError(f"a data set cannot be read: {str(error)[:200]}", file=self.name) from error
            start, kept = first * self._row, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            self._kept = (start, kept)
        return kept[offset - start : offset - start + length]

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`."""
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def mapped(self, offset: int, length: int) -> memoryview:
        """Return the bytes, in memory."""
        return memoryview(self.read_exact(offset, length, "a data set"))


# Writing


def write(output: FileOutput, value: NamedTensors | Mapping[Any, Tensor]) -> Written:
    """Write tensors as an HDF5 file, without timestamps, so that the same input results in the same bytes.

    h5py writes everything but the elements, for which it leaves room.

    Args:
        output: an empty file.
        value: the tensors.

    Raises:
        UnsupportedError: h5py is not installed, or HDF5 has no such elements.
        WriteError: the disk reports an error.
    """
    h5py = _h5py()
    named = NamedTensors.of(value)
    for steps, tensor in named.tensors.items():
        if not tensor.element.native:
            raise UnsupportedError(f"HDF5 has no elements of type {tensor.element.name}", path=".".join(steps))
    try:
        with h5py.File(output.temporary, "w", track_order=True, locking=False) as file:
            places = list(_lay_out(h5py, file, named))
            for name, text in _texts(named.metadata):
                file.attrs[name] = text
    except (OSError, ValueError, RuntimeError, KeyError) as error:  # h5py raises these for errors of HDF5
        raise WriteError(f"cannot be written as HDF5: {error}", file=output.name) from error
    for offset, tensor in places:
        _put(output, offset, tensor)
    output.wait()
    return Written(len(named.tensors), named.storages)


def _texts(metadata: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Strings as attributes can have them: none but Unicode, under a name, and both of a size that HDF5 holds."""
    for name, text in metadata.items():
        attribute, value = (each.encode("utf-8", "backslashreplace") for each in (name.replace("\0", "_"), text))
        if len(attribute) + len(value) <= _MOST_ATTRIBUTE:
            yield attribute.decode() or "_", value.replace(b"\0", b"_").decode()


def _lay_out(h5py: Any, file: Any, named: NamedTensors) -> Iterator[tuple[int, Tensor]]:
    """Create groups, links and data sets; yield the position of each one's elements."""
    made: dict[Any, Any] = {}
    names: dict[Any, dict[str, Name]] = {}
    views = _linked(named)
    for (steps, tensor), place in zip(named.tensors.items(), _places(named)):
        same = None
        if tensor.storage is not None and tensor.numel:
            same = (id(tensor.storage), tensor.element.name, tensor.offset, tensor.size, tensor.stride, tensor.extras)
        group = file
        for step in place[:-1]:
            group = group[step] if step in group else group.create_group(step, track_order=True)
        if same is not None and same in made:
            group[place[-1]] = made[same]
            data = made[same]
        else:
            data = _create(h5py, group, place[-1], tensor)
            if same is not None:
                made[same] = data
            if tensor.numel:
                yield int(data.id.get_offset()), tensor
        known = names.setdefault(same or steps, {})
        if place != steps:
            known["/".join(place)] = steps
        _describe(data, known, views.get(steps))


def _create(h5py: Any, group: Any, name: str, tensor: Tensor) -> Any:
    """Create a contiguous data set with space allocated, but without data."""
    import numpy as np

    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_obj_track_times(False)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    dtype = np.dtype(tensor.element.code).newbyteorder("<")
    kind = h5py.h5t.py_create(dtype, logical=True)
    space = h5py.h5s.create_simple(tensor.shape) if tensor.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    return h5py.Dataset(h5py.h5d.create(group.id, name.encode("utf-8", "surrogateescape"), kind, space, plan))


def _linked(named: NamedTensors) -> dict[Name, TensorView]:
    """Return the views that links cannot express: those of storages viewed in several ways."""
    ways: dict[int, set[Any]] = {}
    for steps, view in named.views.items():
        ways.setdefault(view.storage, set()).add((view.offset, view.stride, named.tensors[steps].size))
    return {steps: view for steps, view in named.views.items() if len(ways[view.storage]) > 1}


def _describe(data: Any, names: dict[str, Name], view: TensorView | None) -> None:
    """Write the attribute for what HDF5 cannot express: invalid names, and the view of a storage."""
    said: dict[str, Any] = {}
    if names:
        said["names"] = {path: list(steps) for path, steps in names.items()}
    if view is not None:
        said["view"] = view.as_list()
    text = json.dumps(said, separators=(",", ":"))
    if said and len(text) <= _MOST_ATTRIBUTE:
        data.attrs[METADATA_KEY] = text


def _stored(steps: Any) -> Name:
    """Return names of groups and data set. A slash in a name would be a group, an empty name or a dot is invalid."""
    parts = (step.replace("/", "_").replace("\0", "_") for step in steps)
    return tuple(f"_{part}" if part in ("", ".", "..") else part for part in parts)


def _places(named: NamedTensors) -> list[Name]:
    """Return the groups and the data set of each tensor. Names that HDF5 can have are not taken by others."""
    taken: set[Name] = set()
    groups: set[Name] = set()
    found: dict[Name, Name] = {}
    for steps in sorted(named.tensors, key=lambda steps: _stored(steps) != steps):
        place = found[steps] = _free(_stored(steps), taken, groups)
        taken.add(place)
        groups.update(place[:length] for length in range(1, len(place)))
    return [found[steps] for steps in named.tensors]


def _restored_names(recorded: Mapping[Name, Name]) -> dict[Name, Name]:
    """Return the recorded names that may be used: by the path of each data set, a name that is written so.

    Only a name that HDF5 cannot have is restored, so that none is that of another data set.
    """
    found: dict[Name, Name] = {}
    taken: set[Name] = set()
    groups: set[Name] = set()
    for path, steps in recorded.items():
        stored = _stored(steps)
        within = {steps[:length] for length in range(1, len(steps))}
        if stored == steps or len(path) != len(steps) or steps in taken or steps in groups or taken & within:
            continue
        if all(part.rstrip("_") == step.rstrip("_") and len(part) >= len(step) for part, step in zip(path, stored)):
            found[path] = steps
            taken.add(steps)
            groups |= within
    return found


def _free(place: Name, taken: set[Name], groups: set[Name]) -> Name:
    """Return a name not used by a data set or a group."""
    while place in taken or place in groups or any(place[:length] in taken for length in range(1, len(place))):
        if place in taken or place in groups:
            place = (*place[:-1], place[-1] + "_")
        else:
            length = next(length for length in range(1, len(place)) if place[:length] in taken)
            place = (*place[: length - 1], place[length - 1] + "_", *place[length:])
    return place


def _put(output: FileOutput, offset: int, tensor: Tensor) -> None:
    found = extent(tensor)
    if found is not None:
        output.place(offset, found)
        return
    for piece in rows(tensor):
        output.put(offset, piece)
        offset += len(piece)


def differences(path: str, named: NamedTensors) -> list[str]:
    """Read a file with h5py, and compare it with the expected tensors.

    Raises:
        UnsupportedError: h5py is not installed.
    """
    import numpy as np

    found = []
    with _h5py().File(path, "r") as file:
        for tensor, place in zip(named.tensors.values(), _places(named)):
            name = "/" + "/".join(place)
            data = file.get(name)
            if data is None:
                found.append(f"{name} is missing")
            elif (data.shape, data.dtype) != (tensor.shape, np.dtype(tensor.element.code)):
                found.append(f"{name} is {data.dtype} of shape {data.shape}")
            elif data[()].tobytes() != b"".join(rows(tensor)):
                found.append(f"{name} has different elements")
    return found
