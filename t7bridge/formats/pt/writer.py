"""Writers of `.pt` files: the zip archive of today's PyTorch, and the format of 0.2 to 1.5, which all releases read.

That has five pickles one after another (a magic number, the version, the machine, the value, the keys of the storages),
then each storage: the number of its elements as a 64-bit integer, and the elements.

Source: PyTorch 2.13 `torch/serialization.py` `_save`, `_legacy_save`, `_get_restore_location`, `torch/_C` `Device`
(names and indices).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import IO, Any

from ...data import pattern
from ...errors import ModelError
from ...graph.storage import Storage
from ...io.copy import crc32
from ...io.output import Content, Output
from . import members as layout
from .pickle.pickler import PickleWriter
from .storages import DEVICE_TYPES
from .zip import ALIGNMENT_BYTES, WrittenMember, ZipWriter

Location = str | Mapping[str, str] | Callable[[str], Any]
"""A device for all, `"cuda:0=cuda:1,ipu=cpu"` or the same as a mapping, or a function of the name in the file."""
MapLocation = Location | None
"""A location, or none: devices are kept or become the CPU."""
Place = Callable[[str], str]
"""Maps the device of a storage to the name to write."""

_DEVICE = pattern(rf"({'|'.join(DEVICE_TYPES)}|npu)(:\d{{1,4}})?\Z")
"""The name of a device. `npu` is what Ascend's extension calls `privateuseone`."""
_MACHINE = {
    "protocol_version": layout.LEGACY_PROTOCOL,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}
"""What PyTorch 0.2 to 1.5 wrote about the machine; its readers drop it."""


def device_mapper(map_location: MapLocation, keep_device: bool) -> Place:
    """Return the function from the device in a file to the one written.

    Args:
        map_location: the device for all; a mapping from devices in the file, also as text, `"cuda:0=cpu,cuda:1=cpu"`;
            a function of them; or `None`. Devices that a mapping lacks, and those for which a function returns `None`,
            are treated as if it were `None`.
        keep_device: whether other devices are kept; otherwise they are `cpu`.

    Raises:
        ModelError: it names no valid device; of a function, the returned one raises it.
    """
    replacement_of: Callable[[str], Any]
    if isinstance(map_location, str) and "=" in map_location:
        pairs = [part.partition("=") for part in map_location.split(",")]
        map_location = {old.strip(): new.strip() for old, _, new in pairs}
    if map_location is None:  # no device has a replacement
        map_location = {}
    if isinstance(map_location, Mapping):
        replacements = {str(old): _device_name(new) for old, new in map_location.items()}
        replacement_of = replacements.get
    elif callable(map_location):
        replacement_of = map_location
    else:
        device_for_all = _device_name(map_location)  # now, so that a wrong one raises before anything is written
        return lambda _: device_for_all

    def place(device: str) -> str:
        """Return the device that is written where the file names one."""
        replacement = replacement_of(device)
        if replacement is not None:
            return _device_name(replacement)
        # Any text may be in a file, and PyTorch refuses what it does not know.
        return device if keep_device and _DEVICE.match(device) else "cpu"

    return place


def _device_name(device: Any) -> str:
    """Return the name of a device, from text or a `torch.device`.

    Raises:
        ModelError: it is not a device.
    """
    name = str(device)
    if not _DEVICE.match(name):
        expected = "a name that torch.load knows, such as cpu, cuda:0 or mps"
        raise ModelError("map_location is not the name of a device", expected=expected, found=repr(name[:40]))
    return name


class StorageKeys:
    """Numbers the storages of a file in the order of first use.

    Args:
        place: maps the device named by each to the one written.

    Attributes:
        storages: those named so far; the key of each is its index.
    """

    def __init__(self, place: Place) -> None:
        self.storages: list[Storage] = []
        self._place = place
        self._keys: dict[int, str] = {}
        """The key of each storage, by its identity; `storages` keeps them alive."""

    def key(self, storage: Storage) -> str:
        """Return the key of a storage, the next one if it is new."""
        key = self._keys.get(id(storage))
        if key is None:
            key = self._keys[id(storage)] = str(len(self.storages))
            self.storages.append(storage)
        return key

    def key_and_device(self, storage: Storage) -> tuple[str, str]:
        """Return the key of a storage, and the name of the device that is written for it."""
        return self.key(storage), self._place(storage.device)


class ValueWriter:
    """Base of the writers of PyTorch's formats: one value, pickled immediately, and the storages that it names.

    Args:
        target: a binary file object.
        keep_device: whether tensors keep the device that they name (`cuda:0`); otherwise all are on the CPU. Ignored if
            there is a `place`.
        place: maps the device named by each to the one written; by default as `keep_device` says.
        allow_foreign: whether objects of other packages' classes name them; otherwise they are written as plain data.

    Attributes, set by `write` and empty before:
        tensors: number of tensors in the value.
        left_out_names: the foreign names that were left out, and the values that would have them.
        refused_names: the names that `torch.load(weights_only=True)` refuses, and the first value that has each.
    """

    _is_legacy = False
    """Whether pickles are those of PyTorch before 1.6."""

    def __init__(
        self,
        target: IO[bytes] | Output,
        *,
        keep_device: bool = False,
        place: Place | None = None,
        allow_foreign: bool = False,
    ) -> None:
        self._output = target if isinstance(target, Output) else Output(target)
        self._keys = StorageKeys(device_mapper(map_location=None, keep_device=keep_device) if place is None else place)
        self._pickle = self._dumps(None)  # of a file whose value is never given; `write` replaces it
        self._allow_foreign = allow_foreign
        self.tensors = 0
        self.left_out_names: dict[str, list[Any]] = {}
        self.refused_names: dict[str, Any] = {}

    def storage_key(self, storage: Storage) -> str:
        """Return the key of a storage; a new one gets the next, and its elements will be written."""
        return self._keys.key(storage)

    def write(self, value: Any) -> None:
        """Pickle the value, and set the attributes.

        `finish` writes the pickle, the storages of the value, and those whose key `storage_key` was asked for.

        Args:
            value: builtins, `OrderedDict`, `Tensor` and `Storage`, nested and shared in any way.

        Raises:
            UnsupportedError: it contains something that the format cannot hold.
        """
        pickle_writer = PickleWriter(
            self._keys.key_and_device, is_legacy=self._is_legacy, allow_foreign=self._allow_foreign
        )
        self._pickle = pickle_writer.dumps(value)
        self.tensors = pickle_writer.tensors
        self.left_out_names = pickle_writer.left_out_names
        self.refused_names = pickle_writer.refused_names

    @property
    def storages(self) -> int:
        """Number of storages to write."""
        return len(self._keys.storages)

    @property
    def stored(self) -> list[Storage]:
        """The storages to write; the key of each is its index."""
        return self._keys.storages

    def _dumps(self, value: Any) -> bytes:
        """Return the pickle of a value of PyTorch's own, such as a head, without its names being noted."""
        return PickleWriter(self._keys.key_and_device, is_legacy=self._is_legacy).dumps(value)


class PtWriter(ValueWriter):
    """Writes one value to a `.pt` file that `torch.load(weights_only=True)` reads, also with `mmap=True`.

    Arguments are those of `t7bridge.PtWriter`, which extends this class by values of numpy and torch.
    """

    def finish(self, record: Callable[[str], bytes] | None = None) -> None:
        """Write the archive: the members in PyTorch's order, then the record, if any.

        Args:
            record: returns the content of a further member, which PyTorch ignores, from `members.content_id`, the hash
                over the members of the value.

        Raises:
            WriteError: the output does not accept the bytes.
        """
        self._zip = ZipWriter(self._output)  # only now: it begins at the output's position
        self._add(layout.DATA_MEMBER, self._pickle)
        for name, data in self._members():
            self._add(name, data)
        self._add(layout.FORMAT_MEMBER, b"1")
        self._add(layout.ALIGNMENT_MEMBER, b"%d" % ALIGNMENT_BYTES)
        self._add(layout.BYTEORDER_MEMBER, b"little")
        for number, storage in enumerate(self._keys.storages):
            # Where its bytes are in a file, to be copied; or pieces of them.
            self._add(f"{layout.STORAGE_FOLDER}{number}", storage.extent() or storage.chunks(), storage.nbytes)
        self._add(layout.VERSION_MEMBER, layout.ARCHIVE_VERSION)
        # The id and the record are hashes over the CRCs of the members, which copying in the background computes.
        self._zip.settle()
        self._add(layout.ID_MEMBER, _serialization_id(self._zip.members))
        if record is not None:
            self._add(layout.RECORD_MEMBER, record(_content_id(self._zip.members)))
        self._zip.finish()
        self._output.flush()

    def _members(self) -> list[tuple[str, bytes]]:
        """Return members that belong to the value besides its pickle, by name below the root folder."""
        return []

    def _add(self, name: str, content: Content, size: int | None = None) -> None:
        """Write a member below the root folder; see `ZipWriter.add`."""
        self._zip.add(f"{layout.ROOT_FOLDER}/{name}", content, size)


class LegacyPtWriter(ValueWriter):
    """Writer of one value to a file for PyTorch 0.2 to 1.5; otherwise like `ValueWriter`."""

    _is_legacy = True

    def finish(self) -> None:
        """Write the file.

        Raises:
            WriteError: the output does not accept the bytes.
        """
        for head in (layout.LEGACY_MAGIC, layout.LEGACY_PROTOCOL, _MACHINE):
            self._output.write(self._dumps(head))
        self._output.write(self._pickle)
        # The keys of the storages, in the order of their elements below.
        self._output.write(self._dumps([str(number) for number in range(self.storages)]))
        for storage in self.stored:
            self._output.write(struct.pack("<q", storage.count))
            self._output.append(storage.extent() or storage.chunks())
        self._output.flush()


def _content_id(members: list[WrittenMember]) -> str:
    """Return the hash over the members of the value, `members.content_id`, of members whose CRCs are known."""
    without_root = []
    for member in members:
        _root, _, name = member.name.partition("/")
        without_root.append((name, member.size, member.crc))
    return layout.content_id(without_root)


def _serialization_id(members: list[WrittenMember]) -> bytes:
    """Return forty digits from the members' names and contents: the same for the same content, as in PyTorch."""
    names_hash = crc32("\0".join(member.name for member in members).encode())
    # 64 bits from two checksums: a hash of hashlib would take longer to load than a small file to convert.
    contents = repr([(member.name, member.crc) for member in members]).encode()
    contents_hash = (crc32(contents) << 32) | zlib.adler32(contents)
    return b"%020d%020d" % (names_hash, contents_hash)
