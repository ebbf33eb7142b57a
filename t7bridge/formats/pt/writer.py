"""PtWriter: Python-side values as the zip archive of today's PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

from ...graph.storage import Storage
from ...io.checksums import crc32, sha256
from ...io.output import Output
from . import layout
from .identity import content_id
from .pickle.pickler import PickleWriter, StorageRef
from .zip.archive_writer import Content, WrittenMember, ZipWriter

if TYPE_CHECKING:
    from .locations import Place


class StorageKeys:
    """Numbers the storages of a file in the order of first use.

    Args:
        keep_device: whether storages keep the device that they name; otherwise they are on the CPU.
        place: maps the device named by each to the one written.

    Attributes:
        storages: those named so far; the key of each is its index.
    """

    def __init__(self, keep_device: bool, place: Place | None = None) -> None:
        self.storages: list[Storage] = []
        self._place = place or (_kept if keep_device else _on_cpu)
        self._keys: dict[int, str] = {}

    def key(self, storage: Storage) -> str:
        """Return the key of a storage, the next one if it is new."""
        key = self._keys.get(id(storage))
        if key is None:
            key = self._keys[id(storage)] = str(len(self.storages))
            self.storages.append(storage)
        return key

    def ref(self, storage: Storage) -> StorageRef:
        """Return the pickle's reference to a storage."""
        return StorageRef(self.key(storage), self._place(storage.device))


def _kept(device: str) -> str:
    return device


def _on_cpu(device: str) -> str:
    return "cpu"


class ValueWriter:
    """Base of the writers of PyTorch's formats: one value, pickled immediately, and the storages that it names.

    Args:
        target: a binary file object.
        keep_device: whether tensors keep the device that they name (`cuda:0`); otherwise all are on the CPU.
        place: maps the device named by each to the one written.
        allow_foreign: whether objects of other packages' classes name them; otherwise they are written as plain data.

    Attributes:
        tensors: number of tensors in the value.
        plain: the foreign names that were left out, and the values that would have them.
        blocking: the names that `torch.load(weights_only=True)` refuses, and the first value that has each.
    """

    _old = False
    """True if pickles are those of PyTorch before 1.6."""

    def __init__(
        self,
        target: IO[bytes] | Output,
        *,
        keep_device: bool = False,
        place: Place | None = None,
        allow_foreign: bool = False,
    ) -> None:
        self._output = target if isinstance(target, Output) else Output(target)
        self._keys = StorageKeys(keep_device, place)
        self._pickle = self._dumps(None)
        self._allow_foreign = allow_foreign
        self.tensors = 0
        self.plain: dict[str, list[Any]] = {}
        self.blocking: dict[str, Any] = {}

    def storage_key(self, storage: Storage) -> str:
        """Return the key of a storage; a new one gets the next, and its elements will be written."""
        return self._keys.key(storage)

    def write(self, value: Any) -> None:
        """Pickle the value. `finish` writes it, with the storages used by it and by `storage_key`.

        Args:
            value: builtins, `OrderedDict`, `Tensor` and `Storage`, nested and shared in any way.

        Raises:
            UnsupportedError: it contains something that the format cannot hold.
        """
        writer = PickleWriter(self._keys.ref, old=self._old, allow_foreign=self._allow_foreign)
        self._pickle = writer.dumps(value)
        self.tensors, self.plain, self.blocking = writer.tensors, writer.plain, writer.blocking

    @property
    def storages(self) -> int:
        """Number of storages to write."""
        return len(self._keys.storages)

    @property
    def stored(self) -> list[Storage]:
        """The storages to write; the key of each is its index."""
        return self._keys.storages

    def _dumps(self, value: Any) -> bytes:
        return PickleWriter(self._keys.ref, old=self._old).dumps(value)


class PtWriter(ValueWriter):
    """Writes one value to a `.pt` file that `torch.load(weights_only=True)` reads, also with `mmap=True`.

    Arguments are those of `t7bridge.PtWriter`, which extends this class by values of numpy and torch.
    """

    def finish(self, record: Callable[[str], bytes] | None = None) -> None:
        """Write the archive.

        Args:
            record: returns the content of a further member, which PyTorch ignores, from the hash of the value.

        Raises:
            WriteError: the output does not accept the bytes.
        """
        self._zip = ZipWriter(self._output)
        self._add(layout.DATA_MEMBER, self._pickle)
        for name, data in self._members():
            self._add(name, data)
        self._add(layout.FORMAT_MEMBER, b"1")
        self._add(layout.ALIGNMENT_MEMBER, b"%d" % layout.ALIGNMENT_BYTES)
        self._add(layout.BYTEORDER_MEMBER, b"little")
        for number, storage in enumerate(self._keys.storages):
            self._add(f"{layout.STORAGE_FOLDER}{number}", storage.extent() or storage.chunks(), storage.nbytes)
        self._add(layout.VERSION_MEMBER, layout.ARCHIVE_VERSION)
        sha256()  # loads it while elements are still being copied
        self._zip.settle()
        self._add(layout.ID_MEMBER, _serialization_id(self._zip.members))
        if record is not None:
            members = [(member.name.partition("/")[2], member.size, member.crc) for member in self._zip.members]
            self._add(layout.RECORD_MEMBER, record(content_id(members)))
        self._zip.finish()
        self._output.flush()

    def _members(self) -> list[tuple[str, bytes]]:
        """Yield members that belong to the value besides its pickle, by name below the root folder."""
        return []

    def _add(self, name: str, content: Content, size: int | None = None) -> None:
        self._zip.add(f"{layout.ROOT_FOLDER}/{name}", content, size)


def write_elements(output: Output, storage: Storage) -> None:
    """Write a storage's elements in little-endian order."""
    extent = storage.extent()
    if extent is not None:
        output.copy(extent)
        return
    for piece in storage.chunks():
        output.write(piece)


def _serialization_id(members: list[WrittenMember]) -> bytes:
    """Return forty digits from the members' names and contents: the same for the same content, as in PyTorch."""
    names = crc32("\0".join(member.name for member in members).encode())
    content = int(sha256(repr([(m.name, m.crc) for m in members]).encode()).hexdigest()[:16], 16)
    return b"%020d%020d" % (names, content)
