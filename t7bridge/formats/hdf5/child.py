"""A program of its own: h5py reads an HDF5 file whose bytes the parent process serves.

A damaged or hostile file can make the HDF5 library crash, loop, or allocate without bound. Here that does no harm: this
process opens no file, cannot grow one, and has limits of memory and time. It follows no link to another file.

Messages are lines of JSON, some followed by as many bytes as they say. The parent asks a question about a file; the
child asks for bytes of the file as often as it needs them, and answers. Names and texts are bytes, one character each.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5p, h5s, h5t, h5z

from ...graph.dtypes import NUMPY_ELEMENTS
from ...io.platform import confine, limit_processor_time
from . import LARGEST_READ

OURS = b"t7bridge"
"""The attribute of a data set that the writer adds."""
_BLOCK_BYTES = 1 << 14
"""Bytes that are read together where HDF5 reads its own structures, of a few bytes each."""
_MOST_BLOCKS = 512
"""Blocks that are kept: 8 MiB."""
_MOST_SOFT_LINKS = 16
"""HDF5's own default (H5L_NUM_LINKS)."""
_TEXTS_AT_ONCE = 1024
"""Elements of a data set of texts that are read together: their sizes are not known before."""
_LEAST_CACHE = 1 << 23
"""Bytes of the cache of chunks, if they need fewer."""
_SLOTS_PER_CHUNK = 10
"""Slots of the cache for each chunk in it: HDF5 finds a chunk by its number modulo that of slots, and advises 10 to
100."""
_LEAST_SLOTS = 521
"""HDF5's own default."""
_MOST_SLOTS = 1 << 20
"""Slots take 8 bytes each."""
_PREEMPTION = 0.75
"""HDF5's own preference for chunks that were read to their end when the cache is full."""
_NAMED_ATTRIBUTES = 5
"""Attributes of one group or data set that a message names."""


class Refusal(Exception):
    """A file that is not read.

    Args:
        kind: `damaged`, `unsupported`, `filter`, `inflated` or `memory`.
        message: for the user.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Parent:
    """The parent process at the other end of two pipes, which are standard input and output.

    Attributes:
        about: the link that the parent is told about next, for errors: number of its group, and name. Empty where the
            question is not about links.
    """

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        standard_input, standard_output, standard_error = 0, 1, 2
        # `_questions` also has the bytes of files that are asked for; `_answers` also asks for them.
        self._questions: IO[bytes] = os.fdopen(os.dup(standard_input), "rb")
        self._answers: IO[bytes] = os.fdopen(os.dup(standard_output), "wb")
        os.dup2(standard_error, standard_output)  # a library that prints must not write between the answers

    def question(self) -> dict[str, Any] | None:
        """Return the next question; `None` if the parent is gone."""
        line = self._questions.readline()
        return json.loads(line) if line else None

    def answer(self, message: dict[str, Any], payload: bytes | memoryview = b"") -> None:
        """Send a message, and bytes after it."""
        self._answers.write(json.dumps(message).encode() + b"\n")
        self._answers.write(payload)

    def fail(self, kind: str, message: str) -> None:
        """Answer that the question has no answer, and about which link.

        Args:
            kind: see `Refusal`; also `truncated`.
            message: for the user.
        """
        self.answer({"error": kind, "message": message, **self.about})

    def flush(self) -> None:
        """Send what is waiting."""
        self._answers.flush()

    def bytes_into(self, offset: int, buffer: memoryview) -> int:
        """Fill memory with bytes of the file in question; return how many there are, fewer only where it ends.

        Args:
            offset: of the first byte in the file.
            buffer: the memory, of `LARGEST_READ` bytes at most.
        """
        self.answer({"bytes": [offset, len(buffer)]})
        self.flush()
        count = int(self._questions.readline())
        buffer[:count] = self._questions.read(count)
        return count


class ServedFile(io.RawIOBase):
    """A file whose bytes the parent process reads, as a file object for h5py.

    Small reads, of what describes the data, go through a cache of blocks.

    Args:
        parent: reads it.
        size: of the file, in bytes.
    """

    def __init__(self, parent: Parent, size: int) -> None:
        super().__init__()
        self._parent = parent
        self._size = size
        self._position = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        """Blocks by their numbers; the one that was used last is at the end."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, as a file object does."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill memory from the position on; return the number of bytes, fewer than its length only at the end."""
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._size - self._position)]
        copied = 0
        while copied < len(view):
            offset = self._position + copied
            if len(view) >= _BLOCK_BYTES:
                # Many elements: they are read once, past the blocks.
                part = view[copied : copied + LARGEST_READ]
                count = self._parent.bytes_into(offset, part)
            else:
                # HDF5's own structures, or few elements: small, and near one another.
                number, block_offset = divmod(offset, _BLOCK_BYTES)
                data = self._block(number)[block_offset : block_offset + len(view) - copied]
                count = len(data)
                view[copied : copied + count] = data
            if not count:  # the file has become shorter
                break
            copied += count
        self._position += copied
        return copied

    def _block(self, number: int) -> bytes:
        """Return a block of the file, from the cache if it was among the last that were used."""
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        block = bytearray(min(_BLOCK_BYTES, self._size - number * _BLOCK_BYTES))
        count = self._parent.bytes_into(number * _BLOCK_BYTES, memoryview(block))
        self._blocks[number] = bytes(block[:count])
        if len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)  # the one that was not used for longest
        return self._blocks[number]


class OpenFile:
    """An HDF5 file that the parent asks about, open from the first question to the last.

    Args:
        parent: reads it.
        size: of the file, in bytes.

    Attributes:
        root: the root group.

    Raises:
        Refusal: there is none.
    """

    def __init__(self, parent: Parent, size: int) -> None:
        self._file = h5py.File(ServedFile(parent, size), "r")
        self.root = h5o.open(self._file.id, b"/")
        if not isinstance(self.root, h5g.GroupID):
            raise Refusal("damaged", "there is no root group")
        self._data_set: tuple[list[str], h5d.DatasetID] | None = None
        """The path of the data set whose elements were asked for last, and the data set, with its chunks; `None` before
        any was."""

    def data_set(self, path: list[str], memory: int) -> h5d.DatasetID:
        """Open a data set to read its elements; the last one stays open, with its cache.

        Args:
            path: names of groups, and its own, a character for each byte.
            memory: bytes that this process may allocate.

        Raises:
            Refusal: there is no such data set, or its chunks need more memory.
        """
        if self._data_set is not None:
            last_path, data_set = self._data_set
            if last_path == path:
                return data_set
            self._data_set = None  # before another is opened, so that its cache is freed
        group = self.root
        *groups, name = [step.encode("latin-1") for step in path]
        for step in groups:
            # No group, if the file has changed since it was listed: then the name of the data set is refused below.
            group = _target(self.root, group, step)
        data_set = _opened_with_cache(self.root, group, name, memory)
        self._data_set = (path, data_set)
        return data_set


def main() -> None:
    """Answer questions until the parent is gone. The argument of the program is the memory that it may allocate.

    A question is a dict: `file` is the number of the file that it is about, `size` the bytes of that, `seconds` the
    time that the answers may take, and `closed` the numbers of files that are not asked about any more. What it asks
    for, see `_answer`. The last answer has `done`, or `error` with a `message`.
    """
    parent = Parent()
    memory = int(sys.argv[1])
    # In this order: nothing can be imported any more once no file can be opened.
    _import_everything()
    confine(memory)
    files: dict[int, OpenFile] = {}
    while (question := parent.question()) is not None:
        limit_processor_time(question["seconds"])  # from now on, for this question
        parent.about = {}
        for number in question["closed"]:
            files.pop(number, None)  # it may have failed to open
        try:
            _answer(parent, files, question, memory)
            parent.answer({"done": True})
        except Exception as error:  # h5py raises nearly any for errors of HDF5
            parent.fail(*_kind_and_message(error))
        parent.flush()


def _answer(parent: Parent, files: dict[int, OpenFile], question: dict[str, Any], memory: int) -> None:
    """Answer one question, but for the last answer, that this is done.

    Args:
        parent: asks it.
        files: the files asked about before, by their numbers; receives the one of the question.
        question: see `main`. With `elements` (names of the groups and the data set), `start` and `count` it asks for
            elements; with `text_bytes` for the groups and data sets, see `_Listing`.
        memory: bytes that this process may allocate.
    """
    number = question["file"]
    if number not in files:
        files[number] = OpenFile(parent, question["size"])
    file = files[number]
    if "elements" in question:
        data_set = file.data_set(question["elements"], memory)
        _send_elements(parent, data_set, question["start"], question["count"])
    else:
        _Listing(parent, file.root, question["text_bytes"]).send()


def _kind_and_message(error: Exception) -> tuple[str, str]:
    """Return the kind of an error, see `Parent.fail`, and its text for the user."""
    if isinstance(error, Refusal):
        return error.kind, str(error)
    if isinstance(error, MemoryError):
        return "memory", "there is too little"
    message = str(error.args[0] if error.args else error)  # the text of a KeyError has quotation marks
    return _kind_of(message), message


def _kind_of(message: str) -> str:
    """Return the kind of an error of the HDF5 library, which has only its text."""
    if "truncated file" in message:
        return "truncated"
    return "memory" if "alloc" in message else "damaged"


class _NoParent(Parent):
    """Stands in for the parent process: what is sent to it is dropped. It has no pipes, and is asked for no bytes."""

    def __init__(self) -> None:
        self.about = {}
        self._answers = io.BytesIO()


def _import_everything() -> None:
    """Read a file in memory in every way, so that all modules are imported while files can still be opened."""
    # The usual collection of compressions that HDF5 does not have registers them when it is imported.
    with contextlib.suppress(Exception):
        importlib.import_module("hdf5plugin")
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        file["texts"] = ["a"]
        file.create_dataset("numbers", data=np.ones(4, "f4"), chunks=(2,), compression="gzip", shuffle=True)
        file["link"] = h5py.SoftLink("/numbers")
        file.attrs["text"] = "a"
    with h5py.File(image, "r") as file:
        root = h5o.open(file.id, b"/")
        _Listing(_NoParent(), root, text_bytes=1 << 10).send()
        data_set = _opened_with_cache(root, root, b"numbers", memory=1 << 30)
        _send_elements(_NoParent(), data_set, start=0, count=4)


# Groups, data sets and attributes


class _Listing:
    """Sends a message for each group and data set, each link to one of them, and everything that is left out.

    Groups and data sets are numbered in the order of their messages, from 0 for the root. Each message but the first
    has the number of the group under `in`, and the name of the link under `name`; the rest is that of
    `_message_of_root` and `_message_of_target`.

    Args:
        parent: receives the messages.
        root: the root group.
        text_bytes: how long the strings in a data set may be together.
    """

    def __init__(self, parent: Parent, root: h5g.GroupID, text_bytes: int) -> None:
        self._parent = parent
        self._root = root
        self._text_bytes = text_bytes
        self._numbers = {_address(root): 0}
        """By the addresses of the groups and data sets so far: their numbers."""

    def send(self) -> None:
        """Send all messages; all links of a group come before those of the groups in it."""
        self._parent.answer(_message_of_root(self._root))
        groups = [(0, self._root)]
        """Groups whose links are still to be sent, with their numbers; the next one is the last."""
        while groups:
            number, group = groups.pop()
            inner_groups = self._send_links(number, group)
            groups += reversed(inner_groups)  # so that the first of them is next

    def _send_links(self, number: int, group: h5g.GroupID) -> list[tuple[int, h5g.GroupID]]:
        """Send a message for each link of a group.

        Args:
            number: of the group.
            group: the group.

        Returns:
            The groups in it that were not met before, with their numbers.
        """
        inner_groups = []
        for name in group:
            self._parent.about = {"in": number, "name": _shown(name)}  # for errors, too
            target = _target(self._root, group, name)
            message = self._message_of_target(target)
            # The parent numbers what it keeps, in the same order.
            if message["object"] not in ("link", "left out"):
                next_number = len(self._numbers)
                self._numbers[_address(target)] = next_number
                if isinstance(target, h5g.GroupID):
                    inner_groups.append((next_number, target))
            self._parent.answer({**self._parent.about, **message})
        return inner_groups

    def _message_of_target(self, target: Any) -> dict[str, Any]:
        """Return the message about what a link leads to, without the link itself.

        `object` is `group`, `data set`, `text`, `link` (with `to`, the number of a data set met before), or `left out`
        (with `what`, a text for the user).

        Args:
            target: the object, or a text that says why there is none; see `_target`.
        """
        if isinstance(target, str):
            return {"object": "left out", "what": target}
        number_before = self._numbers.get(_address(target))
        if isinstance(target, h5d.DatasetID):
            if number_before is not None:
                return {"object": "link", "to": number_before}
            return _message_of_data_set(target, self._text_bytes)
        if isinstance(target, h5g.GroupID):
            if number_before is not None:  # it may be inside itself
                return {"object": "left out", "what": "a group under another name"}
            return {"object": "group", **_left_out(_attributes(target))}
        return {"object": "left out", "what": "a named type"}


def _message_of_root(root: h5g.GroupID) -> dict[str, Any]:
    """Return the message about the root group: `object`, `texts`, and what `_left_out` says.

    `texts` are the attributes that are texts, by name: the parent keeps these as metadata of the file.
    """
    texts: dict[str, str] = {}
    other_attributes: list[bytes] = []
    for name in _attributes(root):
        text = _text_of_attribute(root, name)
        if text is None:
            other_attributes.append(name)
        else:
            texts[_shown(name)] = _shown(text)
    return {"object": "group", "texts": texts, **_left_out(other_attributes)}


def _shown(name: bytes) -> str:
    """Return bytes as JSON can have them."""
    return name.decode("latin-1")


def _address(h5_object: Any) -> int:
    """Return what identifies an object in its file: hard links to one object lead to one address."""
    return int(h5o.get_info(h5_object).addr)


def _target(root: h5g.GroupID, group: h5g.GroupID, name: bytes, access: h5p.PropDAID | None = None) -> Any:
    """Return the object that a link of a group leads to, or a text that says why there is none.

    Soft links are followed step by step, as HDF5 itself would follow them into other files.

    Args:
        root: of the file.
        group: the group.
        name: of the link.
        access: how a data set is opened, where the link is known to lead to one; by default as HDF5 does.
    """
    place: Any = group
    steps = [name]  # still to be followed from there; the next one is the last
    soft_links = 0
    while steps:
        step = steps.pop()
        if step in (b"", b"."):  # in the path of a soft link: they stay where they are
            continue
        kind = _kind_of_link(place, step)
        if kind == h5l.TYPE_HARD:
            is_end = not steps
            place = h5o.open(place, step) if access is None or not is_end else h5d.open(place, step, access)
        elif kind == h5l.TYPE_SOFT and soft_links < _MOST_SOFT_LINKS:
            soft_links += 1
            path = place.links.get_val(step)
            place = root if path.startswith(b"/") else place
            steps += reversed(path.split(b"/"))
        else:
            is_broken = kind is None or kind == h5l.TYPE_SOFT
            return "a broken link" if is_broken else "a link to another file"
    return place


def _kind_of_link(place: Any, name: bytes) -> int | None:
    """Return the kind of the link that an object has under a name, a constant of `h5l`; `None` if it has none."""
    if b"/" in name:  # only a damaged file has such a name, and HDF5 would take it for a path
        return None
    if not isinstance(place, h5g.GroupID) or not place.links.exists(name):
        return None
    return int(place.links.get_info(name).type)


def _attributes(h5_object: Any) -> list[bytes]:
    """Return the names of an object's attributes."""
    names: list[bytes] = []
    h5a.iterate(h5_object, names.append)
    return names


def _left_out(attributes: list[bytes]) -> dict[str, Any]:
    """Return the part of a message about attributes that are left out.

    Args:
        attributes: their names.

    Returns:
        Under `attributes` their number, under `named` the first names.
    """
    return {"attributes": len(attributes), "named": [_shown(name) for name in attributes[:_NAMED_ATTRIBUTES]]}


def _text_of_attribute(h5_object: Any, name: bytes) -> bytes | None:
    """Return the text of an attribute that is one text; `None` for any other attribute, also for several texts.

    Args:
        h5_object: the group or data set that has it.
        name: of the attribute.
    """
    attribute = h5a.open(h5_object, name)
    kind = attribute.get_type()
    space = attribute.get_space()
    if kind.get_class() != h5t.STRING or space.get_simple_extent_type() != h5s.SCALAR:
        return None
    values = _empty_texts(kind, ())
    attribute.read(values, mtype=_type_in_memory(kind))
    (text,) = _texts(kind, values)
    return text


# Texts


def _type_in_memory(kind: h5t.TypeStringID) -> Any:
    """Return the type as which texts are read: of a variable size as Python's, others as they are."""
    return h5t.py_create(kind.dtype) if kind.is_variable_str() else kind


def _empty_texts(kind: h5t.TypeStringID, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array into which texts of a type are read: as `bytes` objects, or bytes of their fixed size."""
    return np.empty(shape, kind.dtype if kind.is_variable_str() else f"V{kind.get_size()}")


def _texts(kind: h5t.TypeStringID, values: np.ndarray) -> list[bytes]:
    """Return strings without what pads them to a fixed size.

    Args:
        kind: their type.
        values: as `_empty_texts` makes room for them.
    """
    if kind.is_variable_str():
        return list(values.flat)
    padding = kind.get_strpad()
    texts = [value.tobytes() for value in values.flat]
    if padding == h5t.STR_SPACEPAD:
        return [text.rstrip(b" ") for text in texts]
    if padding == h5t.STR_NULLPAD:
        return [text.rstrip(b"\0") for text in texts]
    # `STR_NULLTERM`: the text ends before the first zero byte.
    return [text.split(b"\0")[0] for text in texts]


def _text_of_data_set(data_set: h5d.DatasetID, most_bytes: int) -> list[str]:
    """Return the strings of a data set, row by row, each as `_shown` returns it.

    Raises:
        Refusal: they are longer together than `most_bytes`.
    """
    kind = data_set.get_type()
    # Texts of a fixed size count with their padding, before any is read, and again without it; those of a variable
    # size, which are known only then, count 1.
    size = 1 if kind.is_variable_str() else kind.get_size()
    remaining_bytes = most_bytes - math.prod(data_set.shape) * size
    too_large = Refusal("inflated", "data sets of text would grow too large")
    if remaining_bytes < 0:
        raise too_large
    texts: list[str] = []
    for piece in _pieces_of_text(data_set, kind, most=max(1, _TEXTS_AT_ONCE // size)):
        texts += map(_shown, piece)
        remaining_bytes -= sum(map(len, piece))
        if remaining_bytes < 0:
            raise too_large
    return texts


def _pieces_of_text(data_set: h5d.DatasetID, kind: h5t.TypeStringID, most: int) -> Iterator[list[bytes]]:
    """Yield the strings of a data set, row by row, in lists.

    Args:
        data_set: the data set.
        kind: the type of its elements.
        most: how many are read together.
    """
    count = math.prod(data_set.shape)
    for start in range(0, count, most):
        for corner, extents in boxes(data_set.shape, start, min(count, start + most)):
            values = _empty_texts(kind, extents)
            _read_box(data_set, corner, extents, values, _type_in_memory(kind))
            yield _texts(kind, values)


# Data sets


def _message_of_data_set(data_set: h5d.DatasetID, text_bytes: int) -> dict[str, Any]:
    """Return the message about a data set, without the link to it.

    `object` is `text` with the strings under `texts`, row by row; or `data set` with what `_described_elements`
    returns. Both have `shape`, what `_left_out` says, and `ours` if there is the attribute that our writer adds. Data
    sets of other elements are `left out`.

    Args:
        data_set: the data set.
        text_bytes: how long the strings may be together.

    Raises:
        Refusal: its elements cannot be read, or are texts that are longer together than `text_bytes`.
    """
    kind = data_set.get_type()
    if data_set.get_space().get_simple_extent_type() == h5s.NULL:
        return {"object": "left out", "what": "a data set without a shape"}
    is_text = kind.get_class() == h5t.STRING
    element = None if is_text else _element(kind)
    if element is None and not is_text:
        return {"object": "left out", "what": f"a data set of {_title(kind)}"}
    _check_elements(data_set.get_create_plist())  # not of those left out above: nobody reads their elements
    message = _ours_and_left_out(data_set)
    if element is not None:
        return {"object": "data set", **_described_elements(data_set, element), **message}
    texts = _text_of_data_set(data_set, text_bytes)
    return {"object": "text", "shape": data_set.shape, "texts": texts, **message}


def _ours_and_left_out(data_set: h5d.DatasetID) -> dict[str, Any]:
    """Return the part of a message about the attributes of a data set: `ours`, if there is ours, and `_left_out`."""
    attributes = _attributes(data_set)
    if OURS not in attributes:
        return _left_out(attributes)
    attributes.remove(OURS)
    text = _text_of_attribute(data_set, OURS) or b""  # of another program, if it is not a text: the parent refuses it
    return {"ours": _shown(text), **_left_out(attributes)}


def _described_elements(data_set: h5d.DatasetID, element: _Element) -> dict[str, Any]:
    """Return the part of a message about the elements of a tensor.

    Args:
        data_set: the data set.
        element: what its elements are.

    Returns:
        `shape`, the name of the element type under `element`, the byte order under `order`, and `span` (offset and size
        in bytes) where the elements are in one piece in the file.
    """
    dtype = element.dtype
    message: dict[str, Any] = {
        "shape": (*data_set.shape, *dtype.shape),
        "element": element.name,
        "order": "big" if dtype.base.str.startswith(">") else "little",
    }
    stored_bytes = data_set.get_storage_size()
    is_contiguous = data_set.get_create_plist().get_layout() == h5d.CONTIGUOUS
    # Elements in one piece, and the same bytes as in memory, are read without this process. A data set that was never
    # written has no bytes in the file, and no offset.
    if element.is_plain and is_contiguous and stored_bytes:
        message["span"] = [data_set.get_offset(), stored_bytes]
    return message


class _Element(NamedTuple):
    """What the elements of a data set are, if tensors can have such.

    Attributes:
        dtype: their type in memory, in the byte order of the file. The shape of an array type is part of that of the
            tensor.
        is_plain: whether they are the same bytes in the file.
        name: the code of numpy for them, as `f4`, or `bfloat16`.
    """

    dtype: np.dtype[Any]
    is_plain: bool
    name: str


def _element(kind: h5t.TypeID) -> _Element | None:
    """Return what the elements of a type are; `None` if tensors cannot have such."""
    if _is_bfloat16(kind):  # of which numpy has only the bits
        bits = np.dtype(">u2" if kind.get_order() == h5t.ORDER_BE else "<u2")
        return _Element(bits, is_plain=True, name="bfloat16")
    try:
        dtype = kind.dtype
    except (TypeError, ValueError):  # numpy has no such type
        return None
    base = dtype.base
    # Booleans, integers, floats and complex numbers, which are records of two floats for h5py.
    if kind.get_class() not in _NUMBERS or base.kind not in "biufc":
        return None
    name = f"{base.kind}{base.itemsize}"
    if name not in NUMPY_ELEMENTS:
        return None
    return _Element(dtype, _is_plain(kind, base), name)


def _is_bfloat16(kind: h5t.TypeID) -> bool:
    """Return whether a type is bfloat16, by the layout of its bits."""
    if kind.get_class() != h5t.FLOAT or kind.get_size() != 2:
        return False
    # Bits: the sign is 15, the exponent 8 from 7 on, the mantissa 7 from 0 on.
    has_layout = kind.get_offset() == 0 and kind.get_precision() == 16 and kind.get_fields() == (15, 7, 8, 0, 7)
    return bool(has_layout and kind.get_ebias() == 127 and kind.get_norm() == h5t.NORM_IMPLIED)


def _is_plain(kind: h5t.TypeID, dtype: np.dtype[Any]) -> bool:
    """Return whether elements in the file are the same bytes as in memory.

    Args:
        kind: their type in the file.
        dtype: their type in memory, in the byte order of the file.
    """
    while kind.get_class() in (h5t.ARRAY, h5t.ENUM):
        kind = kind.get_super()  # of the elements of an array; of the numbers of an enumeration
    if kind.get_class() in (h5t.INTEGER, h5t.BITFIELD):
        # HDF5 has integers whose bits are only a part of their bytes.
        uses_all_bits = kind.get_offset() == 0 and kind.get_precision() == 8 * kind.get_size()
        return bool(uses_all_bits and kind.get_size() == dtype.itemsize)
    return bool(kind.equal(h5t.py_create(dtype)))


_COMPLEX = getattr(h5t, "COMPLEX", -2)
"""A class of types from HDF5 2.0 on; before, a number that no class has."""
_NUMBERS = (h5t.INTEGER, h5t.FLOAT, h5t.BITFIELD, h5t.ENUM, h5t.COMPOUND, h5t.ARRAY, _COMPLEX)
"""Classes of types that may be numbers for numpy: booleans are of ENUM, complex numbers of COMPOUND."""
_TITLES = {
    h5t.TIME: "times",
    h5t.OPAQUE: "opaque data",
    h5t.COMPOUND: "records",
    h5t.REFERENCE: "references",
    h5t.ENUM: "an enumeration",
    h5t.VLEN: "sequences",
    h5t.ARRAY: "arrays",
    _COMPLEX: "complex numbers",
}


def _title(kind: h5t.TypeID) -> str:
    """Return what elements of a type are called in a note."""
    group = kind.get_class()
    if group in (h5t.INTEGER, h5t.BITFIELD):
        return f"integers of {kind.get_precision()} bits"
    if group == h5t.FLOAT:
        return f"floating-point numbers of {kind.get_size()} bytes"
    return _TITLES.get(group, f"an unknown type {group}")


def _check_elements(plan: h5p.PropDCID) -> None:
    """Check that the elements of a data set are in this file, and that their compressions are installed.

    Args:
        plan: how the data set was created.

    Raises:
        Refusal: they are not.
    """
    if plan.get_layout() == h5d.VIRTUAL or plan.get_external_count():
        raise Refusal("unsupported", "a data set's elements are in another file")
    for number in range(plan.get_nfilters()):
        code, _, _, title = plan.get_filter(number)
        if not h5z.filter_avail(code):
            title = title.decode("utf-8", "replace") or f"filter {code}"
            raise Refusal("filter", f"a data set is compressed by {title}")


# Elements


def _send_elements(parent: Parent, data_set: h5d.DatasetID, start: int, count: int) -> None:
    """Send the bytes of a run of elements of a data set, in the order of memory and the byte order of the file.

    Args:
        parent: receives them.
        data_set: the data set.
        start: number of the first element, 0-based; those of an array type count one by one.
        count: number of elements.
    """
    element = _element(data_set.get_type())
    if element is None:
        raise Refusal("damaged", "a data set has become another one")
    dtype = element.dtype
    # HDF5 reads whole arrays only: the rest of the first and of the last one is cut off.
    array_size = math.prod(dtype.shape)  # 1 for elements of other types
    first_array = start // array_size
    end_array = -(-(start + count) // array_size)  # rounded up
    arrays = _bytes_of_run(data_set, element, first_array, end_array)
    size = dtype.base.itemsize
    skipped_bytes = (start - first_array * array_size) * size
    data = memoryview(arrays)[skipped_bytes : skipped_bytes + count * size]
    parent.answer({"elements": len(data)}, data)


def _bytes_of_run(data_set: h5d.DatasetID, element: _Element, start: int, stop: int) -> bytes:
    """Return the bytes of a run of HDF5's elements, in the order of memory and the byte order of the file.

    Args:
        data_set: the data set.
        element: what its elements are.
        start: the first of them, 0-based; one of an array type is a whole array.
        stop: the one after the last.
    """
    dtype = element.dtype
    # numpy has no type for bfloat16: HDF5 must not convert it.
    in_memory = data_set.get_type() if element.name == "bfloat16" else h5t.py_create(dtype)
    parts = []
    for corner, extents in boxes(data_set.shape, start, stop):
        values = np.zeros((*extents, *dtype.shape), dtype.base)
        _read_box(data_set, corner, extents, values, in_memory)
        parts.append(values.tobytes())
    return b"".join(parts)


def _opened_with_cache(root: h5g.GroupID, group: Any, name: bytes, memory: int) -> h5d.DatasetID:
    """Open a data set with a cache of chunks so large that each is inflated once when elements are read in order.

    Args:
        root: of the file.
        group: that the data set is in; what is not a group has none.
        name: of the link to it.
        memory: bytes that this process may allocate.

    Raises:
        Refusal: the chunks need more memory, or there is no such data set.
    """
    data_set = _target(root, group, name)
    if not isinstance(data_set, h5d.DatasetID):
        raise Refusal("damaged", "a data set has become another one")
    plan = data_set.get_create_plist()
    if plan.get_layout() != h5d.CHUNKED or not data_set.get_num_chunks():
        return data_set
    chunk = plan.get_chunk()
    chunk_bytes = math.prod(chunk) * data_set.get_type().get_size()
    most_chunks = memory // 2 // chunk_bytes  # HDF5 needs about as much memory again to inflate them
    count = _chunks_in_cache(data_set, chunk, most_chunks)
    access = h5p.create(h5p.DATASET_ACCESS)
    slots = min(_SLOTS_PER_CHUNK * count + _LEAST_SLOTS, _MOST_SLOTS)
    access.set_chunk_cache(slots, max(count * chunk_bytes, _LEAST_CACHE), _PREEMPTION)
    data_set.close()  # as long as it is open, HDF5 would keep the cache that it has
    return _target(root, group, name, access)


def _chunks_in_cache(data_set: h5d.DatasetID, chunk: tuple[int, ...], most: int) -> int:
    """Return how many chunks of a data set the cache has to hold.

    Args:
        data_set: the data set.
        chunk: the extents of a chunk.
        most: chunks that fit in the memory.

    Raises:
        Refusal: these are too few.
    """
    stored_chunks = int(data_set.get_num_chunks())
    chunks_in_row = _chunks_in_row(data_set.shape, chunk)
    # Two threads copy a file, each in a row of its own; if two rows do not fit, both share one.
    count = min(2 * chunks_in_row, stored_chunks)
    if count > most:
        count = min(chunks_in_row, stored_chunks)
    if count > most:
        raise Refusal("memory", "the chunks of a data set are too large")
    return count


def _chunks_in_row(shape: tuple[int, ...], chunk: tuple[int, ...]) -> int:
    """Return how many chunks are in use at once where elements are read in the order of memory.

    From one element of a chunk to the next along the first axis that has several in it, reading goes through all chunks
    along the axes after that one: these are a row.

    Args:
        shape: of the data set.
        chunk: the extents of a chunk, at least one.
    """
    last_axis = len(chunk) - 1
    axis = next((axis for axis, extent in enumerate(chunk) if extent > 1), last_axis)
    count = 1
    for extent, chunk_extent in zip(shape[axis + 1 :], chunk[axis + 1 :]):
        count *= -(-extent // chunk_extent)  # rounded up
    return count


def boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the boxes that together are a run of elements in the order of memory: the corner and extents of each.

    HDF5 reads boxes only. A run is a part of a row, whole rows, and a part of a row, in each dimension.

    Args:
        shape: of the whole.
        start: first element of the run, 0-based.
        stop: the element after its last; at least one more.
    """
    if not shape:
        yield (), ()  # the one element of a data set without dimensions
        return
    row_shape = shape[1:]
    row_size = math.prod(row_shape)
    while start < stop:
        row, position = divmod(start, row_size)
        whole_rows = (stop - start) // row_size
        if position == 0 and whole_rows:
            row_start = (0,) * len(row_shape)
            yield (row, *row_start), (whole_rows, *row_shape)
            start += whole_rows * row_size
        else:
            # A part of one row is a run in a shape of one dimension less.
            end = min(stop, (row + 1) * row_size)
            for corner, extents in boxes(row_shape, position, position + end - start):
                yield (row, *corner), (1, *extents)
            start = end


def _read_box(
    data_set: h5d.DatasetID, corner: tuple[int, ...], extents: tuple[int, ...], values: np.ndarray, in_memory: Any
) -> None:
    """Read a box of a data set into an array of its extents.

    Args:
        data_set: the data set.
        corner: the first element of the box, 0-based, along each dimension.
        extents: of the box.
        values: receives the elements.
        in_memory: their type in memory, to which HDF5 converts them.
    """
    if not corner:  # a data set without dimensions
        data_set.read(h5s.ALL, h5s.ALL, values, mtype=in_memory)
        return
    space = data_set.get_space()
    space.select_hyperslab(corner, extents)
    data_set.read(h5s.create_simple(extents), space, values, mtype=in_memory)
