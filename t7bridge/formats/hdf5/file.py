"""HDF5 files, read by h5py in a process of its own, and laid out by h5py.

Elements in one piece bypass h5py: they are copied from file to file.

Dicts and lists are groups and tensors are data sets, `/model/0.weight`, as in torch-hdf5, whose `hdf5.open` reads and
writes such files in Lua. Strings are attributes of the root group. Two names of one tensor are two links to one data
set; for other views of one storage, the attribute `t7bridge` of each data set describes the view, and names that
HDF5 cannot represent.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from ...data import np, pattern
from ...errors import CorruptError, T7BridgeError, UnsupportedError, WriteError
from ...graph.dtypes import ELEMENT_TYPES, NUMPY_ELEMENTS
from ...graph.tensor import Tensor, place_of
from ...io.output import FileOutput
from ...io.source import ByteSource, DerivedSource, Readable
from ...limits import DEFAULT_LIMITS, Budget, Inflation, Limits
from ...report import Note
from ...text import printable
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
from ..table import FORMATS, Document, Written
from .library import LibraryFile, require_h5py

_SURROGATE = pattern("[\ud800-\udfff]")
"""A character that is not valid Unicode by itself."""
_MOST_ATTRIBUTE = 60_000
"""Maximum size of an attribute in an object's header, in bytes."""
_MOST_NAMED_ATTRIBUTES = 5
"""Attributes that a note names."""
_LONGEST_SHOWN_NAME = 100
"""Characters of the name of an attribute in a note."""
_PART_BYTES = 1 << 20
"""Bytes of elements that are asked for at a time."""


def _h5py() -> Any:
    """Return the module h5py, which only writing and verifying import in this process."""
    require_h5py()
    import h5py

    return h5py


# Reading


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open an HDF5 file.

    A data set of text is a string, or a list of strings. Data sets of records and references are left out, each with a
    note, and so are links to other files.

    Args:
        source: a path, bytes, or a binary file object, whose position does not count.
        limits: resource limits.

    Raises:
        FormatError: the file is damaged.
        UnsupportedError: h5py is not installed, or the file has a filter that HDF5 does not have.
    """
    require_h5py()
    opened, _position = ByteSource.open(source)  # read from its beginning: `t7bridge.open` refuses another position
    notes: list[Note] = []
    reader = _Reader(opened, limits, notes)
    document = Document("hdf5", opened, reader.roots, metadata=reader.metadata, notes=notes)
    if "keras_version" in reader.metadata:  # an attribute of the root group, by Keras 1 to 3
        document.described = "a Keras model, an HDF5 file"
    return document


Value = Any
"""A tensor, or the text of a data set: a string, or lists of strings."""


class _Reader:
    """Reader of the groups and data sets of a file; constructing it reads all but elements of tensors.

    Args:
        source: the file.
        limits: resource limits.
        notes: receives what is left out.

    Attributes:
        metadata: the root group's text attributes.
    """

    def __init__(self, source: ByteSource, limits: Limits, notes: list[Note]) -> None:
        """Read the list of groups and data sets; notes about what is left out are added to `notes`."""
        self.metadata: dict[str, str] = {}
        self._source = source
        self._limits = limits
        self._notes = notes
        self._file = LibraryFile(source, limits)
        self._inflation = Inflation(source.size, limits)
        """Limits the size of texts, and of elements that are not in the file as they are."""
        # Spends the steps of all paths: groups in groups may make them long. Four for each byte of the file are free.
        self._path_budget = Budget(limits, "reading the groups of an HDF5 file", free=4 * source.size)
        self._paths: list[tuple[Name, list[str]]] = []
        """Of each group and data set, at the place of its number: the names, and these as the library has them."""
        self._values: dict[Name, Value] = {}
        """The data sets by their paths: one under several paths is one object."""
        self._views: dict[Name, TensorView] = {}
        """By the path of a data set: the view of a storage that its attribute records."""
        self._recorded: dict[Name, Name] = {}
        """By the path of a data set: the name that its attribute records for this path."""
        self._data_sets: dict[int, _DataSet] = {}
        """The data sets by their numbers, by which the library refers to those met before."""
        self._left_out_attributes = 0
        """Number of attributes that are left out."""
        self._attribute_names: list[str] = []
        """The first of the attributes that are left out, for a note."""
        try:
            self._list()
        except T7BridgeError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # No message can be relied on: a file may have taken over the process that sends them.
            raise CorruptError("the HDF5 library says of it what no file can have") from error

    def roots(self) -> list[Any]:
        """Return the tensors and texts, in a dict for each group, as the one item of a list; new dicts each time.

        Raises:
            CorruptError: two data sets have one name.
        """
        tensors = {path: value for path, value in self._values.items() if isinstance(value, Tensor)}
        tied = tie(tensors, self._views, self._notes)  # views of one storage, where attributes record that
        root: dict[Any, Any] = {}
        items: dict[int, Value] = {}
        """By the identity of a data set's value: what is returned for it, so that links to one are one tensor."""
        paths_with_wrong_record: list[Name] = []
        for path, value in self._values.items():
            item = items.setdefault(id(value), tied.get(path, value))
            recorded_name = self._recorded.get(path)
            if recorded_name is not None:
                if _is_stored_as(recorded_name, path) and _put(root, recorded_name, item) is None:
                    continue  # it was put there
                # A wrong record, or another item is in the way: the name in the file counts.
                paths_with_wrong_record.append(path)
            if _put(root, path, item) is not None:  # another is in the way
                raise CorruptError("two data sets have one name", path=".".join(path))
        if paths_with_wrong_record:
            self._note_wrong_record(paths_with_wrong_record[0])
        return [root]

    def _note_wrong_record(self, path: Name) -> None:
        """Add a note about data sets, of which the first has this path, whose recorded names are not used."""
        message = "the name that its attribute records is not one that HDF5 cannot have, and is not used"
        self._notes.append(Note("warning", path=".".join(path), message=message, code="record"))

    def _list(self) -> None:
        """Read the groups and data sets, but no elements of tensors: sets metadata, paths and values of this reader."""
        # Closed at an error, too: until then no other question can be asked.
        with closing(self._file.listing(max(0, self._inflation.bytes_left), self._path_of)) as messages:
            # The first message is about the root group, whose texts are metadata. Texts of others are left out.
            root = next(messages, {})
            self._paths.append(((), []))
            self.metadata = {_name(name): _name(text) for name, text in root["texts"].items()}
            self._count_attributes((), root)
            for number, message in enumerate(messages, start=1):
                if number > self._limits.archive_members:
                    raise self._limits.exceeded("archive_members", "has too many groups and data sets")
                group, group_names = self._paths[message["in"]]
                name = message["name"]
                path = (*group, _name(name))
                self._path_budget.spend(len(path))
                self._add_target(message, path, [*group_names, name])
        if self._left_out_attributes:
            self._note_left_out_attributes()

    def _note_left_out_attributes(self) -> None:
        """Add a note with the number of the attributes that are left out, and the names of the first."""
        names = ", ".join(self._attribute_names)
        count = self._left_out_attributes
        if count > len(self._attribute_names):
            names += ", …"
        text = f"{count} {'attribute is' if count == 1 else 'attributes are'} left out: {names}"
        self._notes.append(Note("warning", path="", message=text, code="left-out", count=count))

    def _path_of(self, message: dict[str, Any]) -> str:
        """Return the path of a link, with dots, from a message of the library about it; empty without a known group."""
        if "in" not in message or message["in"] >= len(self._paths):
            return ""
        group, _ = self._paths[message["in"]]
        return ".".join((*group, _name(message["name"])))

    def _add_target(self, message: dict[str, Any], path: Name, names: list[str]) -> None:
        """Add what a link of a group leads to: a new group or data set, a data set met before, or what is left out.

        Args:
            message: about it; see `child._Listing._message_of_target`.
            path: the names of the groups, and that of the link, decoded.
            names: the same as the library has them, a character for each byte, to ask it for elements.
        """
        kind = message["object"]
        if kind == "left out":
            text = f"{printable(message['what'])} is left out"
            self._notes.append(Note("warning", path=".".join(path), message=text, code="left-out"))
            return
        if kind == "link":
            self._put_data_set(path, self._data_sets[message["to"]])
            return
        # The library numbers new groups and data sets in this order, from which it says `in` and `to`. What is above
        # has no number.
        number = len(self._paths)
        self._paths.append((path, names))
        self._count_attributes(path, message)
        if kind == "group":
            return
        value = self._texts(message, path) if kind == "text" else self._tensor(message, path, names)
        recorded_names, view = _recorded_names_and_view(message, path)
        self._data_sets[number] = _DataSet(value, recorded_names, view)
        self._put_data_set(path, self._data_sets[number])

    def _put_data_set(self, path: Name, data_set: _DataSet) -> None:
        """Add a data set under one of its paths, of which links make several.

        Its attribute may record for this path the name of the tensor, where HDF5 cannot have that; and for all paths,
        of which part of a storage the tensor is a view.
        """
        recorded_name = data_set.names.get("/".join(path))  # no name that HDF5 has contains a slash
        if recorded_name is not None:
            self._recorded[path] = recorded_name
        self._values[path] = data_set.value
        if data_set.view is not None:
            self._views[path] = data_set.view

    def _count_attributes(self, path: Name, message: dict[str, Any]) -> None:
        """Count the attributes of a group or data set that are left out, and keep the names of the first of the file.

        Args:
            path: of the group or data set.
            message: about it; see `child._left_out`.
        """
        self._left_out_attributes += message["attributes"]
        room = _MOST_NAMED_ATTRIBUTES - len(self._attribute_names)
        for name in message["named"][:room]:
            self._attribute_names.append(f"{'.'.join(path)}@{_name(name)}"[:_LONGEST_SHOWN_NAME])

    def _texts(self, message: dict[str, Any], path: Name) -> Any:
        """Return the strings of a data set, in lists of its shape; without dimensions, the one string.

        Args:
            message: about the data set; see `child._message_of_data_set`.
            path: of the data set, for errors.

        Raises:
            LimitError: they would exceed a limit, as they are in memory from now on.
        """
        texts_row_by_row = message["texts"]  # a character for each byte
        self._inflation.spend(sum(map(len, texts_row_by_row)), "data sets", path=".".join(path))
        return _nested([_text(text) for text in texts_row_by_row], tuple(message["shape"]))

    def _tensor(self, message: dict[str, Any], path: Name, names: list[str]) -> Tensor:
        """Return a data set as a tensor, whose elements are in the file, or come from the library when they are read.

        Args:
            message: about the data set; see `child._message_of_data_set`.
            path: the names of its groups, and its own.
            names: the same as the library has them.

        Raises:
            CorruptError: they are not all in the file.
            LimitError: inflating them would exceed a limit.
        """
        where = ".".join(path)
        code = message["element"]  # that of numpy, which has none for bfloat16
        element = ELEMENT_TYPES["bfloat16"] if code == "bfloat16" else NUMPY_ELEMENTS[code]
        shape = tuple(map(int, message["shape"]))
        nbytes = math.prod(shape) * element.itemsize
        source: ByteSource = self._source
        offset = 0
        if nbytes and "span" in message:  # they are in one piece in the file
            offset = self._offset_in_file(message["span"], nbytes, where)
        elif nbytes:  # the library has to make them of what is in the file
            self._inflation.spend(nbytes, "data sets", path=where)
            source = _Elements(
                self._file, source.name, names_from_root=names, itemsize=element.itemsize, nbytes=nbytes, path=where
            )
        order = message["order"]
        return tensor_of_bytes(source, offset, nbytes, element, shape, path=where, limits=self._limits, order=order)

    def _offset_in_file(self, span: list[int], nbytes: int, path: str) -> int:
        """Return the offset of elements that are in one piece in the file.

        Args:
            span: offset and size in bytes of the piece, as the library says.
            nbytes: size of the elements.
            path: of the data set, for the error.

        Raises:
            CorruptError: they are not all in the file.
        """
        offset, stored = map(int, span)
        if stored < nbytes or not 0 <= offset <= self._source.size - nbytes:
            raise CorruptError("a data set's elements are not all in the file", offset=offset, path=path)
        return offset


def _name(text: str) -> str:
    """Return a name or text of the library's, whose characters are bytes."""
    return text.encode("latin-1").decode("utf-8", "backslashreplace")


def _text(text: str) -> str | bytes:
    """Return a string of a data set; bytes, if it is not UTF-8."""
    data = text.encode("latin-1")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _nested(texts: list[Any], shape: tuple[int, ...]) -> Any:
    """Return strings in lists of a shape; without dimensions, the one string.

    Args:
        texts: the strings, row by row, as many as the shape has elements.
        shape: of the lists.
    """
    if not shape:
        return texts[0]
    if len(shape) == 1:
        return texts
    row_count, *row_shape = shape
    row_size = math.prod(row_shape)
    rows = []
    for row in range(row_count):
        texts_of_row = texts[row * row_size : (row + 1) * row_size]
        rows.append(_nested(texts_of_row, tuple(row_shape)))
    return rows


class _DataSet(NamedTuple):
    """A data set, with what the attribute that we write records.

    Attributes:
        value: a tensor, or texts.
        names: by each of its paths, joined by slashes, the name that HDF5 cannot have; empty if there are none.
        view: of a storage that it shares with others; `None` if none is recorded.
    """

    value: Value
    names: dict[str, Name]
    view: TensorView | None


def _recorded_names_and_view(message: dict[str, Any], data_set: Name) -> tuple[dict[str, Name], TensorView | None]:
    """Return what the attribute that we write records, see `_DataSet`: the name for each path, and the view.

    Args:
        message: about the data set; see `child._message_of_data_set`.
        data_set: its path, for errors.

    Returns:
        No names and `None`, if the data set has no such attribute.

    Raises:
        CorruptError: the attribute is invalid.
    """
    if "ours" not in message:
        return {}, None
    try:
        record = json.loads(_name(message["ours"]))
        names = {str(path): tuple(map(str, steps)) for path, steps in record.get("names", {}).items()}
        if not all(names.values()):
            raise ValueError("a name is empty")
        view = TensorView.from_list(record["view"]) if "view" in record else None
        return names, view
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError("our attribute of a data set cannot be read", path=".".join(data_set)) from error


class _Elements(DerivedSource):
    """The elements of a data set that the library makes from what is in the file, in the byte order of the file.

    Args:
        file: is asked for them.
        file_name: the name of that file, for errors.
        names_from_root: those of the groups and of the data set, as the library has them: a character for each byte.
        itemsize: of an element, in bytes.
        nbytes: size of all elements.
        path: of the data set, decoded and with dots, for errors.
    """

    def __init__(
        self, file: LibraryFile, file_name: str, *, names_from_root: list[str], itemsize: int, nbytes: int, path: str
    ) -> None:
        super().__init__(file_name, nbytes)
        self._file = file
        self._names_from_root = names_from_root
        self._itemsize = itemsize
        self._path = path
        self._window = (0, memoryview(b""))
        """The part that was read last: the offset of its first byte, and its bytes; none at first."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill memory from an offset on; return the number of bytes, fewer than its length only at the end."""
        length = min(len(buffer), self.size - offset)
        copied = 0
        while copied < length:
            position = offset + copied
            start, window = self._window
            if not start <= position < start + len(window):
                self._window = self._part(position)
                start, window = self._window
            part = window[position - start :][: length - copied]
            buffer[copied : copied + len(part)] = part
            copied += len(part)
        return copied

    def _part(self, offset: int) -> tuple[int, memoryview]:
        """Read the part of the elements that has the byte at an offset; return its own offset, and its bytes.

        Parts begin at multiples of their size.
        """
        part_elements = _PART_BYTES // self._itemsize
        start = offset // self._itemsize // part_elements * part_elements
        count = min(part_elements, self.size // self._itemsize - start)
        data = self._file.elements(self._names_from_root, start, count, self._path)
        if len(data) != count * self._itemsize:
            raise CorruptError("a data set has other elements than its shape", file=self.name, path=self._path)
        return start * self._itemsize, memoryview(data)


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
    named = NamedTensors.of(value)
    texts = dict(_attributes_of_metadata(named.metadata))
    places = _write_but_elements(output, named, texts.values())
    # h5py has closed the file, so that nobody else writes it.
    for offset, tensor in places:
        output.place(offset, content(tensor))
    output.wait()
    return Written(len(named.tensors), named.storages, _left_out(named.metadata, texts))


def _write_but_elements(
    output: FileOutput, named: NamedTensors, attributes: Iterable[tuple[str, str]]
) -> list[tuple[int, Tensor]]:
    """Write a file with h5py, but no elements; return the position of the elements of each data set, and its tensor.

    Args:
        output: the file.
        named: the tensors.
        attributes: name and text of each attribute of the root group.

    Raises:
        UnsupportedError: h5py is not installed, or HDF5 has no such elements.
        WriteError: the disk reports an error.
    """
    h5py = _h5py()
    _check_elements(named)
    try:
        # The order of the tensors is kept. No lock is needed, as nobody else knows the file yet.
        with h5py.File(output.temporary, "w", track_order=True, locking=False) as file:
            places = list(_lay_out(h5py, file, named))
            for name, text in attributes:
                file.attrs[name] = text
            return places
    except (OSError, ValueError, RuntimeError, KeyError) as error:  # h5py raises these for errors of HDF5
        raise WriteError(f"cannot be written as HDF5: {error}", file=output.name) from error


def _check_elements(named: NamedTensors) -> None:
    """Refuse tensors with elements that HDF5 does not have."""
    for steps, tensor in named.tensors.items():
        if not tensor.element.native:
            raise UnsupportedError(f"HDF5 has no elements of type {tensor.element.name}", path=".".join(steps))


def left_out(named: NamedTensors) -> tuple[str, ...]:
    """Return the names of the texts of which no attributes are made."""
    return _left_out(named.metadata, dict(_attributes_of_metadata(named.metadata)))


def _left_out(metadata: Mapping[str, str], attributes: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    """Return the names in the metadata of which there is no attribute."""
    return tuple(name for name in metadata if name not in attributes)


def _attributes_of_metadata(metadata: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield for each text of the metadata its name, and name and text of the attribute that it becomes.

    A text that is too long, has zero bytes or is not valid Unicode is skipped, and one whose attribute would have the
    name of an earlier one.
    """
    attribute_name = FORMATS["hdf5"].fit
    attribute_names: set[str] = set()
    for name, text in metadata.items():
        attribute = attribute_name(name)
        nbytes = len(attribute.encode()) + len(text.encode("utf-8", "backslashreplace"))
        is_possible = "\0" not in text and not _SURROGATE.search(text)
        if is_possible and nbytes <= _MOST_ATTRIBUTE and attribute not in attribute_names:
            attribute_names.add(attribute)
            yield name, (attribute, text)


def _lay_out(h5py: Any, file: Any, named: NamedTensors) -> Iterator[tuple[int, Tensor]]:
    """Create groups, links and data sets; yield the position of the elements of each data set, and its tensor.

    Nothing is yielded for a link, or a tensor without elements.

    Args:
        h5py: the module.
        file: the h5py file, in which all is created.
        named: the tensors.
    """
    paths = dict(zip(named.tensors, _paths(named)))
    other_names = _names_of_data_sets(named, paths)
    views = _views_in_attributes(named)
    data_sets: dict[Any, Any] = {}
    """By the identity of a view: its data set, to which equal views become links."""
    for steps, tensor in named.tensors.items():
        identity = _view_identity(tensor, steps)
        *group_names, name = paths[steps]
        group = _group_below(file, group_names)
        if identity in data_sets:
            group[name] = data_sets[identity]  # a link to it
            continue
        data_set = data_sets[identity] = _create(h5py, group, name, tensor)
        if tensor.numel:
            yield int(data_set.id.get_offset()), tensor
        text = _attribute_text(other_names.get(identity, {}), views.get(steps))
        if text:
            data_set.attrs[METADATA_KEY] = text


def _names_of_data_sets(named: NamedTensors, paths: Mapping[Name, Name]) -> dict[Any, dict[str, Name]]:
    """Return the names that HDF5 cannot have: by the identity of a view, and by the path of a link, joined by slashes.

    Args:
        named: the tensors.
        paths: by the name of each its groups and the name of its link.
    """
    names: dict[Any, dict[str, Name]] = {}
    for steps, tensor in named.tensors.items():
        if paths[steps] != steps:
            names.setdefault(_view_identity(tensor, steps), {})["/".join(paths[steps])] = steps
    return names


def _view_identity(tensor: Tensor, steps: Name) -> tuple[Any, ...]:
    """Return what is equal for tensors that become one data set: those with the same elements in memory.

    A tensor without elements becomes one of its own.

    Args:
        tensor: the tensor.
        steps: the steps of its name, which no other tensor has.
    """
    if tensor.storage is None or not tensor.numel:
        return steps
    return (tensor.element.name, *place_of(tensor))


def _group_below(file: Any, names: list[str]) -> Any:
    """Return the group under some names, one inside another; those that do not exist are created."""
    group = file
    for name in names:
        group = group[name] if name in group else group.create_group(name, track_order=True)
    return group


def _create(h5py: Any, group: Any, name: str, tensor: Tensor) -> Any:
    """Create a contiguous data set whose elements have their place in the file, but are not written; return it.

    Args:
        h5py: the module.
        group: the h5py group that receives it.
        name: in the group.
        tensor: has its element type and shape.
    """
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_obj_track_times(False)  # the same input results in the same bytes
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # by default no place is chosen before elements are written
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    kind = h5py.h5t.py_create(np.dtype(tensor.element.code).newbyteorder("<"))
    space = h5py.h5s.create_simple(tensor.shape) if tensor.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    return h5py.Dataset(h5py.h5d.create(group.id, name.encode(), kind, space, plan))


def _views_in_attributes(named: NamedTensors) -> dict[Name, TensorView]:
    """Return the views that links cannot express: those of storages of which there are different views."""
    views_of_storage: dict[int, set[Any]] = {}
    """By the number of a storage: the different views of it."""
    for steps, view in named.views.items():
        place = (view.offset, view.stride, named.tensors[steps].size)
        views_of_storage.setdefault(view.storage, set()).add(place)
    return {steps: view for steps, view in named.views.items() if len(views_of_storage[view.storage]) > 1}


def _attribute_text(names: Mapping[str, Name], view: TensorView | None) -> str:
    """Return the text of the attribute for what HDF5 cannot express; empty if there is nothing, or nothing fits.

    HDF5 refuses larger attributes. Of too many names the first are recorded: the tensors of the others are read under
    the names of their links. A view that does not fit is not recorded: the tensor is read with memory of its own.

    Args:
        names: by the paths of the data set, joined by slashes, the names of the tensors that HDF5 cannot have.
        view: the part of its storage that the tensor is; `None` if links say enough.
    """
    items = list(names.items())

    def text_with(count: int) -> str:
        record: dict[str, Any] = {}
        if count:
            record["names"] = {path: list(steps) for path, steps in items[:count]}
        if view is not None:
            record["view"] = view.as_list()
        return json.dumps(record, separators=(",", ":")) if record else ""

    # The counts of names, from 0 on, of which the text fits: the more names, the longer it is.
    fitting = bisect_right(range(len(items) + 1), _MOST_ATTRIBUTE, key=lambda count: len(text_with(count)))
    return text_with(fitting - 1) if fitting else ""


def _valid_names(steps: Any) -> Name:
    """Return names that HDF5 can have for the steps of a path.

    A slash in a name would be a group, a zero byte its end; an empty name or a dot is invalid.
    """
    parts = (step.replace("/", "_").replace("\0", "_") for step in steps)
    return tuple(f"_{part}" if part in ("", ".", "..") else part for part in parts)


def _paths(named: NamedTensors) -> list[Name]:
    """Return the groups and the data set of each tensor, in the order of the tensors; no two have the same."""
    tree: dict[str, Any] = {}
    """The groups so far, as dicts, and in them the data sets."""
    paths: dict[Name, Name] = {}
    appended: dict[tuple[Any, ...], int] = {}
    """By a name in use, its groups, and whether it is for a data set: how many underscores were appended to it last.

    Names with fewer are in use, and are not tried again: there may be many tensors of one name.
    """
    # Names that HDF5 can have come first, so that others do not take them.
    for steps in sorted(named.tensors, key=lambda steps: _valid_names(steps) != steps):
        path = valid_names = _valid_names(steps)
        counts = [0] * len(path)
        while (place := _put(tree, path, steps)) is not None:
            # It was not put there. The name at this place of the path is another's: underscores make a new one of it.
            key = (*path[:place], valid_names[place], place == len(path) - 1)
            counts[place] = max(counts[place] + 1, appended.get(key, 0))
            appended[key] = counts[place]
            path = (*path[:place], valid_names[place] + "_" * counts[place], *path[place + 1 :])
        paths[steps] = path
    return [paths[steps] for steps in named.tensors]


def _put(tree: dict[str, Any], path: Name, item: Any) -> int | None:
    """Put an item into a tree of dicts under the names of a path, unless another is in the way.

    Args:
        tree: receives the item, and dicts for the names before the last that it does not have.
        path: the names.
        item: not a dict.

    Returns:
        `None` if the item was put there; otherwise the index in the path of the first name under which another is. Then
        the tree is as before.
    """
    *groups, name = path
    for place, group in enumerate(groups):
        tree = tree.setdefault(group, {})
        if not isinstance(tree, dict):
            return place
    if name in tree:
        return len(groups)
    tree[name] = item
    return None


def _is_stored_as(steps: Name, path: Name) -> bool:
    """Return whether a recorded name may be that of a data set: one that HDF5 cannot have, and that is written so.

    Other names are not restored, so that none is that of another data set.

    Args:
        steps: the recorded name.
        path: the names of the groups and the data set in the file.
    """
    valid_names = _valid_names(steps)
    if valid_names == steps or len(path) != len(steps):
        return False
    # A name that was in use has underscores appended, see `_paths`.
    for name_in_file, valid_name in zip(path, valid_names):
        if name_in_file.rstrip("_") != valid_name.rstrip("_") or len(name_in_file) < len(valid_name):
            return False
    return True


def differences(path: str, named: NamedTensors) -> list[str]:
    """Read a file with h5py, and return how it differs from the expected tensors, a line for each difference.

    Args:
        path: of the file.
        named: the tensors that were written to it.

    Raises:
        UnsupportedError: h5py is not installed.
    """
    tensors = {}
    for tensor, names in zip(named.tensors.values(), _paths(named)):
        tensors["/" + "/".join(names)] = tensor
    with _h5py().File(path, "r") as file:
        data_sets = {name: file[name] for name in tensors if name in file}
        return compared(tensors, data_sets, lambda data_set: of_numpy(data_set[()]), numpy_kind)
