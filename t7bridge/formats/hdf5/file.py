"""HDF5 files: read by `structure` and `elements`, laid out by h5py, whose only importer this is.

Elements bypass h5py: those in one piece are copied from file to file.

Dicts and lists are groups and tensors are data sets, `/model/0.weight`, as in torch-hdf5, whose `hdf5.open` reads and
writes such files in Lua. Strings are attributes of the root group. Two names of one tensor are two links to one data
set; for other views of one storage, the attribute `t7bridge` of each data set describes the view, and names that
HDF5 cannot represent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...data import np
from ...errors import CorruptError, UnsupportedError, WriteError
from ...graph.tensor import Tensor
from ...io.output import FileOutput
from ...io.source import ByteSource, Readable
from ...limits import DEFAULT_LIMITS, Inflation, Limits
from ...report import Note
from ..named import (
    METADATA_KEY,
    Name,
    NamedTensors,
    TensorView,
    compared,
    content,
    numpy_kind,
    of_numpy,
    tensor_of_bytes,
    tie,
)
from ..table import Document, Written
from .elements import ChunkedSource, fill_value, parse_filters, parse_layout
from .structure import DATASPACE, DATATYPE, EXTERNAL, FILL, FILTERS, LAYOUT, OLD_FILL, Header, Structure

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
        FormatError: the file is damaged.
        UnsupportedError: the file has a version of HDF5, or a filter, that is not read.
    """
    opened, _ = ByteSource.open(source)
    notes: list[Note] = []
    reader = _Reader(opened, limits, notes)
    return Document("hdf5", opened, reader.roots, metadata=reader.metadata, notes=notes)


class _Reader:
    """Reader of the groups and data sets of a file.

    Attributes:
        metadata: the root group's text attributes.
    """

    def __init__(self, source: ByteSource, limits: Limits, notes: list[Note]) -> None:
        self._source = source
        self._limits = limits
        self._notes = notes
        self._views: dict[Name, TensorView] = {}
        self._tensors: dict[Name, Tensor] = {}
        self._recorded: dict[Name, Name] = {}
        self._by_address: dict[int, tuple[Tensor, dict[str, Name], TensorView | None]] = {}
        self._attributes = 0
        self._attribute_names: list[str] = []
        self._file = Structure(source, limits)
        self._inflation = Inflation(source.size, limits)
        self._root = self._file.header(self._file.root)
        if not self._root.is_group:
            raise self._file.damaged("there is no root group", self._file.root)
        attributes = list(self._file.attributes(self._root))
        self.metadata = {name: text for name, text in attributes if text is not None}
        self._count_attributes((), [name for name, text in attributes if text is None])

    def roots(self) -> list[Any]:
        """Return the tensors, in a dict for each group."""
        self._walk()
        tied = tie(dict(self._tensors), self._views, self._notes)
        made: dict[Any, Any] = {}
        same: dict[int, Tensor] = {}
        unused: list[Name] = []
        for path, tensor in self._tensors.items():
            item = same.setdefault(id(tensor), tied[path])
            recorded = self._recorded.get(path)
            if recorded is not None:
                if _is_stored_as(recorded, path) and not _put(made, recorded, item):
                    continue
                unused.append(path)
            if _put(made, path, item):
                raise CorruptError("two data sets have one name", path=".".join(path))
        if unused:
            message = "the name that its attribute records is not one that HDF5 cannot have, and is not used"
            self._notes.append(Note("warning", ".".join(unused[0]), message, code="record"))
        return [made]

    def _walk(self) -> None:
        """Find the data sets. A group that occurs again, for example inside itself, is left out there."""
        seen = {self._file.root}
        stack: list[tuple[Name, Header]] = [((), self._root)]
        while stack:
            steps, group = stack.pop()
            if steps:
                self._count_attributes(steps, [name for name, _ in self._file.attributes(group)])
            inner: list[tuple[Name, Header]] = []
            for name, link in self._file.links(group).items():
                path = (*steps, name)
                self._file.budget.spend(len(path))
                if len(seen) + len(self._tensors) > self._limits.archive_members:
                    raise self._limits.exceeded("archive_members", "has too many groups and data sets")
                address = self._file.follow(group, link) if isinstance(link, str) else link
                if address is None:
                    self._left_out(path, "a link to another file" if link is None else "a broken link")
                elif address in self._by_address:
                    self._dataset(path, *self._by_address[address])
                elif address in seen:
                    self._left_out(path, "a group under another name")
                else:
                    self._object(path, self._file.header(address), seen, inner)
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

    def _object(self, path: Name, header: Header, seen: set[int], groups: list[tuple[Name, Header]]) -> None:
        """Read an object that was not read before."""
        if header.is_group:
            seen.add(header.address)
            groups.append((path, header))
        elif not header.is_dataset:
            self._left_out(path, "a named type")
        else:
            tensor = self._tensor(path, header)
            if tensor is not None:
                names, view = self._described(path, header)
                self._by_address[header.address] = (tensor, names, view)
                self._dataset(path, tensor, names, view)

    def _count_attributes(self, path: Name, others: list[str]) -> None:
        """Count attributes of a group or data set that are neither ours nor metadata of the file."""
        self._attributes += len(others)
        room = _NAMED - len(self._attribute_names)
        self._attribute_names += [f"{'.'.join(path)}@{name}"[:100] for name in others[:room]]

    def _left_out(self, path: Name, what: str) -> None:
        self._notes.append(Note("warning", ".".join(path), f"{what} is left out", code="left-out"))

    def _described(self, path: Name, header: Header) -> tuple[dict[str, Name], TensorView | None]:
        """Read the attributes of a data set: from ours, names by path, and the view."""
        attributes = dict(self._file.attributes(header))
        self._count_attributes(path, [name for name in attributes if name != METADATA_KEY])
        if METADATA_KEY not in attributes:
            return {}, None
        try:
            found = json.loads(attributes[METADATA_KEY] or "")
            names = {str(place): tuple(map(str, steps)) for place, steps in found.get("names", {}).items()}
            if not all(names.values()):
                raise ValueError("a name is empty")
            return names, TensorView.from_list(found["view"]) if "view" in found else None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError("our attribute of a data set cannot be read", path=".".join(path)) from error

    def _dataset(self, path: Name, tensor: Tensor, names: dict[str, Name], view: TensorView | None) -> None:
        recorded = names.get("/".join(path))
        if recorded is not None:
            self._recorded[path] = recorded
        self._tensors[path] = tensor
        if view is not None:
            self._views[path] = view

    def _tensor(self, path: Name, header: Header) -> Tensor | None:
        """Return a data set as a tensor; `None` if it is left out."""
        file, where = self._file, ".".join(path)
        kind = file.kind(file.message(header, DATATYPE) or b"")
        if kind.element is None:
            self._left_out(path, f"a data set of {kind.title}")
            return None
        shape, most = file.shape(file.message(header, DATASPACE) or b"")
        if shape is None:
            self._left_out(path, "a data set without a shape")
            return None
        size = kind.element.itemsize
        nbytes = math.prod(shape) * size
        source, offset = self._elements(header, shape, most, size, where) if nbytes else (self._source, 0)
        if offset + nbytes > source.size:
            raise CorruptError("a data set's elements are not all in the file", offset=offset, path=where)
        return tensor_of_bytes(
            source, offset, nbytes, kind.element, shape, path=where, limits=self._limits, order=kind.order
        )

    def _elements(
        self, header: Header, shape: tuple[int, ...], most: tuple[int | None, ...], itemsize: int, path: str
    ) -> tuple[ByteSource, int]:
        """Return where the elements of a data set are, and the offset of the first byte there."""
        file = self._file
        message = file.message(header, LAYOUT)
        if message is None:
            raise file.damaged("a data set has no layout", header.address, path=path)
        layout = parse_layout(file, message)
        if layout.kind == 3 or EXTERNAL in header.messages:
            raise UnsupportedError("a data set's elements are in another file", path=path)
        if layout.kind == 0:
            return ByteSource.from_bytes(layout.data, self._source.name), 0
        if layout.kind == 1 and layout.address is not None:
            if 0 <= layout.nbytes < math.prod(shape) * itemsize:
                raise CorruptError("a data set's elements are not all in the file", offset=layout.address, path=path)
            return self._source, layout.address
        fill = fill_value(file, file.message(header, FILL), file.message(header, OLD_FILL), itemsize)
        filters = parse_filters(file, file.message(header, FILTERS) or b"\2\0")
        return ChunkedSource(file, shape, most, itemsize, layout, filters, fill, self._inflation, path), 0


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
            texts = dict(_texts(named.metadata))
            for attribute, text in texts.values():
                file.attrs[attribute] = text
    except (OSError, ValueError, RuntimeError, KeyError) as error:  # h5py raises these for errors of HDF5
        raise WriteError(f"cannot be written as HDF5: {error}", file=output.name) from error
    for offset, tensor in places:
        output.place(offset, content(tensor))
    output.wait()
    return Written(len(named.tensors), named.storages, tuple(name for name in named.metadata if name not in texts))


def _texts(metadata: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield names with strings as attributes can have them: Unicode, under a name, and both of a size of HDF5's."""
    for name, text in metadata.items():
        attribute, value = (each.encode("utf-8", "backslashreplace") for each in (name.replace("\0", "_"), text))
        if len(attribute) + len(value) <= _MOST_ATTRIBUTE:
            yield name, (attribute.decode() or "_", value.replace(b"\0", b"_").decode())


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
    tree: dict[str, Any] = {}
    found: dict[Name, Name] = {}
    for steps in sorted(named.tensors, key=lambda steps: _stored(steps) != steps):
        place = _stored(steps)
        while length := _put(tree, place, steps):
            place = (*place[: length - 1], place[length - 1] + "_", *place[length:])
        found[steps] = place
    return [found[steps] for steps in named.tensors]


def _put(tree: dict[str, Any], path: Name, item: Any) -> int:
    """Put an item into a tree of dicts, unless another is there; return the number of steps to that, else 0."""
    for length, step in enumerate(path[:-1], 1):
        tree = tree.setdefault(step, {})
        if not isinstance(tree, dict):
            return length
    if path[-1] in tree:
        return len(path)
    tree[path[-1]] = item
    return 0


def _is_stored_as(steps: Name, path: Name) -> bool:
    """Return whether a recorded name may be that of a data set: one that HDF5 cannot have, and that is written so.

    Other names are not restored, so that none is that of another data set.
    """
    stored = _stored(steps)
    return (
        stored != steps
        and len(path) == len(steps)
        and all(part.rstrip("_") == step.rstrip("_") and len(part) >= len(step) for part, step in zip(path, stored))
    )


def differences(path: str, named: NamedTensors) -> list[str]:
    """Read a file with h5py, and compare it with the expected tensors.

    Raises:
        UnsupportedError: h5py is not installed.
    """
    tensors = {"/" + "/".join(place): tensor for tensor, place in zip(named.tensors.values(), _places(named))}
    with _h5py().File(path, "r") as file:
        found = {name: file[name] for name in tensors if name in file}
        return compared(tensors, found, lambda data: of_numpy(data[()]), numpy_kind)
