"""Distributed checkpoints: folders that `torch.distributed.checkpoint` writes. Nothing in them is executed.

`.metadata` is the pickle of a `Metadata` object: `state_dict_metadata` has sizes and chunks of each tensor by its flat
name, `storage_data` maps each chunk to a file, an offset and a length in bytes, and `planner_data` maps flat names
to the keys of the nested dictionaries that were saved. Each location holds a whole file of `torch.save`: the chunk of a
tensor, or another value. A tensor sharded over processes has several chunks, in any files.

Source: PyTorch 2.13 `torch/distributed/checkpoint/metadata.py`, `filesystem.py` (`_StorageInfo`), `planner_helpers.py`,
`default_planner.py` (flat names), `_nested_dict.py`.
"""

from __future__ import annotations

import itertools
import math
import os
from typing import Any

from ...data import define
from ...errors import CorruptError, UnsupportedError
from ...graph.storage import Storage
from ...graph.tensor import Assembled, Tensor, contiguous
from ...io.source import ByteSource, PathLike
from ...limits import DEFAULT_LIMITS, Budget, Limits
from ..fields import Fields, shown
from ..table import Document
from .file import PtReader
from .storages import is_count

METADATA_MEMBER = ".metadata"


@define(frozen=True)
class _Place:
    """Location of a value.

    Attributes:
        file: its file, below the folder.
        offset: first byte, 0-based.
        length: in bytes.
    """

    file: str
    offset: int
    length: int


def read_folder(folder: PathLike, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a folder of `torch.distributed.checkpoint`.

    Raises:
        T7BridgeError: its metadata cannot be read.
    """
    reader = DistributedReader(folder, limits=limits)
    return Document("distributed", reader.source, lambda: [reader.read()], content=lambda: reader)


class DistributedReader:
    """Reads a folder of `torch.distributed.checkpoint`.

    At first only `.metadata` is read, then the pickle of each chunk; weights stay where they are.

    Args:
        folder: the folder.
        limits: resource limits.

    Raises:
        T7BridgeError: `.metadata` cannot be read.
    """

    def __init__(self, folder: PathLike, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self.folder = os.fspath(folder)
        self._limits = limits
        self._files: dict[str, ByteSource] = {}
        self._values: dict[_Place, Any] = {}
        """What was read, by its place: each place is read once."""
        self._foreign: dict[str, None] = {}
        self._metadata = PtReader(os.path.join(self.folder, METADATA_MEMBER), limits=limits)
        self._budget = Budget(limits, "comparing the chunks of a checkpoint", free=self._metadata.source.size)

    @property
    def source(self) -> ByteSource:
        """The source of the metadata."""
        return self._metadata.source

    @property
    def foreign(self) -> list[str]:
        """The globals of the values that have no meaning here; those of the metadata are excluded."""
        return list(self._foreign)

    def __enter__(self) -> DistributedReader:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._metadata.source.close()
        for source in self._files.values():
            source.close()

    def read(self) -> dict[str, Any]:
        """Read the value that was saved, with its nesting.

        Raises:
            FormatError: the folder contradicts itself, or a file is damaged or missing.
        """
        metadata = Fields.of_object(self._metadata.read(), METADATA_MEMBER)
        entries = metadata.get("state_dict_metadata", dict)
        places = self.places()
        keys = metadata.get("planner_data", object)
        root: dict[str, Any] = {}
        for name, entry in entries.items():
            path = f"{METADATA_MEMBER}: {shown(name)}"
            value = self._value(name, Fields.of_object(entry, path), places)
            _put(root, _keys_of(keys, name), value, path, len(entries))
        return root

    def places(self) -> dict[tuple[str, tuple[int, ...] | None], _Place]:
        """Return the location of each chunk and value, by name and first index: a whole file of `torch.save`.

        Raises:
            FormatError: the metadata are damaged.
        """
        metadata = Fields.of_object(self._metadata.read(), METADATA_MEMBER)
        places = {}
        for chunk, entry in metadata.get("storage_data", dict).items():
            index, info = (Fields.of_object(each, metadata.path) for each in (chunk, entry))
            name, offset = index.get("fqn", str), index.get("offset", object, None)
            path = f"{METADATA_MEMBER}: storage_data of {shown(name)}"
            file, start, length = info.get("relative_path", str), info.get("offset", int), info.get("length", int)
            if not is_count(start) or not is_count(length):
                raise CorruptError("is not a location in a file", path=path)
            steps = file.replace("\\", "/").split("/")
            if not all(steps) or ".." in steps or {"\0", ":"} & set(file):  # C: is a disk of Windows
                raise CorruptError("names a file outside the folder", path=path, found=ascii(file)[:80])
            if info.get("transform_descriptors", object, None):
                raise UnsupportedError("is compressed or encrypted by an extension", path=path)
            places[(name, None if offset is None else _indices(offset, path))] = _Place(file, start, length)
        by_offset = sorted(places.values(), key=lambda place: (place.file, place.offset))
        for one, other in itertools.pairwise(by_offset):
            if one.file == other.file and other.offset < one.offset + one.length:
                raise CorruptError("two values are at one place", file=one.file, offset=other.offset,
                                   path=f"{METADATA_MEMBER}: storage_data")  # fmt: skip
        return places

    def _value(self, name: Any, entry: Fields, places: dict[Any, _Place]) -> Any:
        path = entry.path
        if entry.get("chunks", object, None) is None:
            return self._at(places, (name, None), path)
        size = _indices(entry.get("size", tuple), path)
        parts: list[tuple[tuple[int, ...], Tensor]] = []
        for each in entry.get("chunks", list):
            chunk = Fields.of_object(each, path)
            first, extent = (_indices(chunk.get(word, tuple), path) for word in ("offsets", "sizes"))
            tensor = self._at(places, (name, first) if (name, first) in places else (name, None), path)
            if not isinstance(tensor, Tensor) or tensor.shape != extent or len(first) != len(size):
                found = list(tensor.shape) if isinstance(tensor, Tensor) else shown(tensor)
                raise CorruptError("a chunk is not the tensor described by the metadata", path=path, found=str(found))
            parts.append((first, tensor))
        return whole_of_chunks(size, parts, path, self._budget)

    def _at(self, places: dict[Any, _Place], index: tuple[Any, Any], path: str) -> Any:
        place = places.get(index)
        if place is None:
            raise CorruptError("is in no file", path=path)
        if place not in self._values:
            if place.file not in self._files:
                self._files[place.file] = ByteSource.from_path(os.path.join(self.folder, place.file))
            reader = PtReader(self._files[place.file].window(place.offset, place.length), limits=self._limits)
            self._values[place] = reader.read()
            self._foreign.update(dict.fromkeys(reader.foreign))
        return self._values[place]


def whole_of_chunks(
    size: tuple[int, ...], parts: list[tuple[tuple[int, ...], Tensor]], path: str, budget: Budget
) -> Tensor:
    """Assemble the chunks of a tensor.

    Raises:
        CorruptError: they overlap, leave a gap, or differ in type.
    """
    if len(parts) == 1 and parts[0][1].shape == size:
        return parts[0][1]
    parts = [part for part in parts if math.prod(part[1].shape)]
    kinds = {part.element.name for _, part in parts}
    inside = all(at + n <= extent for first, part in parts for at, n, extent in zip(first, part.shape, size))
    if len(kinds) != 1 or not inside or sum(math.prod(part.shape) for _, part in parts) != math.prod(size):
        raise CorruptError("its chunks do not make up the tensor", path=path, expected=str(list(size)))
    # Along the axis with the most cuts, a chunk has few neighbours to be compared with.
    axis = max(range(len(size)), key=lambda axis: len({first[axis] for first, _ in parts}), default=0)
    boxes = sorted(((first, part.shape) for first, part in parts), key=lambda box: box[0][axis : axis + 1])
    for number, (first, extent) in enumerate(boxes):
        for place in range(number + 1, len(boxes)):
            other, other_extent = boxes[place]
            budget.spend(1, path)
            if size and other[axis] >= first[axis] + extent[axis]:
                break
            if all(a < b + m and b < a + n for a, n, b, m in zip(first, extent, other, other_extent)):
                raise CorruptError("two of its chunks overlap", path=path)
    element = parts[0][1].element
    storage = Storage(element, math.prod(size), Assembled(size, tuple(parts)))
    return Tensor(element, storage, size, contiguous(size))


def _keys_of(keys: Any, name: Any) -> tuple[Any, ...]:
    found = keys.get(name) if isinstance(keys, dict) else None
    return found if isinstance(found, tuple) and found else (name,)


def _put(root: dict[str, Any], keys: tuple[Any, ...], value: Any, path: str, most: int) -> None:
    """Set a value in nested dictionaries and lists, which are created as needed."""
    home: Any = root
    for key, following in zip(keys, [*keys[1:], None]):
        if isinstance(home, list):
            if not is_count(key) or key > most:
                raise CorruptError("is not the index of an item in a list", path=path, found=shown(key))
            home += [None] * (key + 1 - len(home))
            known = home[key]
        elif isinstance(home, dict) and isinstance(key, (str, int)):
            known = home.get(key)
        else:
            raise CorruptError("is inside of another value", path=path, found=shown(key))
        if following is None:
            if known is not None:
                raise CorruptError("is inside of another value, or another inside of it", path=path, found=shown(key))
            home[key] = value
        elif known is None:
            home[key] = [] if isinstance(following, int) else {}
        home = home[key]


def _indices(value: Any, path: str) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(map(is_count, value)):
        raise CorruptError("has no sizes", path=path, found=shown(value))
    return tuple(value)
