"""The parts of PyTorch's zip archives: their root folder, byte order, pickles and storages.

Source: PyTorch 2.13 `torch/serialization.py` `_load`; `caffe2/serialize/inline_container.cc`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ...data import define
from ...errors import CorruptError, T7BridgeError, TruncatedError, UnknownFormatError, UnsupportedError
from ...graph.dtypes import UINT8, ElementType
from ...graph.storage import Span, Storage
from ...io.source import ByteSource
from ...limits import Limits
from ..signatures import HEAD_BYTES, identify
from .layout import ALIGNMENT_MEMBER, BYTEORDER_MEMBER, DATA_MEMBER, FORMAT_MEMBER, STORAGE_FOLDER
from .pickle.globals import PtMeaning
from .pickle.unpickler import Unpickler
from .rest import Rest, read_rest
from .storages import StorageId, StorageTable, span_of_bytes
from .zip.archive_reader import STORED, Member, ZipArchive

MODEL_MEMBER = "model.json"
CONSTANTS_MEMBER = "constants.pkl"
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_FILES = (".pkl", ".pickle", ".pt", ".pth", ".ckpt")
"""Suffixes of members that programs load."""
_FREE_OPERATIONS = 500_000
PT2_MEMBERS = ("archive_format", "serialized_exported_program.json")
"""Members of archives of torch.export: of 2.7 and newer, and of older releases."""
PACKAGE_FOLDER = ".data/"
"""Folder of torch.package for storages, `KEY.storage`, and information about the archive."""
PACKAGE_MEMBER = ".data/extern_modules"
"""The member that identifies archives of torch.package."""
_ROOT_MEMBERS = (DATA_MEMBER, MODEL_MEMBER, *PT2_MEMBERS, PACKAGE_MEMBER)


class PtArchive:
    """A zip archive that PyTorch wrote.

    Args:
        source: the archive.
        limits: resource limits.
        nested: reads a whole file that is embedded in a pickle as bytes.
        forbid: whether names that run code are refused.

    Attributes:
        zip: its members.
        root: the folder that contains all of them, with a slash; empty if there is none.
        order: byte order of its storages, `little` or `big`.

    Raises:
        FormatError: it is not a valid zip archive.
        UnknownFormatError: it is one, but not of PyTorch.
    """

    def __init__(
        self,
        source: ByteSource,
        limits: Limits,
        nested: Callable[[bytes], Any] | None = None,
        forbid: bool = True,
    ) -> None:
        self.zip = ZipArchive(source, limits)
        self._source = source
        self._limits = limits
        self._nested = nested
        self._forbid = forbid
        self._meanings: dict[str, PtMeaning] = {}
        self.foreign: dict[str, str] = {}
        self.rests: dict[str, Rest] = {}
        """The bytes after the value of each pickle, by member."""
        self.root = self._find_root()
        self._check_names()
        self.order = self._byte_order()

    def _find_root(self) -> str:
        names = list(self.zip.members)
        first = self.zip.first.partition("/")
        roots = [first[0] + "/" if first[1] else ""]
        lower = {name.lower() for name in names}
        if any((roots[0] + name).lower() in lower for name in _ROOT_MEMBERS):
            return roots[0]  # as PyTorch's reader finds it, which ignores case; `_check_names` refuses other letters
        for name in _ROOT_MEMBERS:  # other writers may add members before it
            roots += sorted(
                (found[: -len(name)] for found in names if found.endswith("/" + name) or found == name),
                key=lambda root: root.count("/"),
            )
        for root in roots:
            if any(root + name in self.zip for name in _ROOT_MEMBERS):
                return root
        shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        raise UnknownFormatError(
            "is a zip archive, but not one of PyTorch",
            file=self._source.name,
            expected=f"a member {DATA_MEMBER}",
            found=shown or "no members",
            hint="Unpack it first if the model is inside." if names else "",
        )

    def _check_names(self) -> None:
        """Refuse names that PyTorch, whose lookup ignores case, confuses with others.

        Raises:
            CorruptError: there is one.
        """
        known = {BYTEORDER_MEMBER, CONSTANTS_MEMBER, FORMAT_MEMBER, ALIGNMENT_MEMBER, *_ROOT_MEMBERS}
        root = len(self.root)
        for name, member in self.zip.members.items():
            below, lower = name[root:], name[root:].lower()
            folder = lower.startswith(STORAGE_FOLDER)
            differs = not below.startswith(STORAGE_FOLDER) if folder else below != lower
            if (
                (folder or lower in known)
                and name[:root].lower() == self.root.lower()
                and (differs or name[:root] != self.root)
            ):
                raise CorruptError(
                    "has a member name that differs in case from PyTorch's, which PyTorch finds nevertheless",
                    file=self._source.name,
                    offset=member.header,
                    path=name,
                )

    def _byte_order(self) -> str:
        found = self.small(BYTEORDER_MEMBER)
        if found is None:
            return "little"
        if found not in (b"little", b"big"):
            raise CorruptError("has no known byte order", file=self._source.name, found=f"{found[:40]!r}")
        return found.decode()

    def has(self, name: str) -> bool:
        """Return whether a member of this name exists below the root folder."""
        return self.root + name in self.zip

    def small(self, name: str) -> bytes | None:
        """Return the bytes of a member below the root folder, checked; None if there is none."""
        return self.zip.read(self.root + name) if self.has(name) else None

    def meaning(self, folder: str = STORAGE_FOLDER) -> PtMeaning:
        """Return the meaning of the names in a pickle whose storages are in a folder."""
        known = self._meanings.get(folder)
        if known is None:
            script = self.is_script
            storages = _Storages(self.zip, self.root + folder, self.order, self._suffix(folder))
            table = StorageTable(storages.locate, one_type=not script)
            known = PtMeaning(
                table,
                lambda saved_id: table.of_id(StorageId.parse(saved_id)),
                self._nested,
                self._limits,
                self._source.size,
                self._forbid,
                script,
            )
            known.foreign = self.foreign
            self._meanings[folder] = known
        return known

    def unpickle(self, name: str, folder: str = STORAGE_FOLDER) -> Any:
        """Return the value of a pickle.

        Args:
            name: of the member, below the root folder.
            folder: of its storages, below the root folder.

        Raises:
            FormatError: it is missing or damaged.
        """
        member = self.zip.members.get(self.root + name)
        if member is None:
            raise CorruptError(f"the archive has no member {self.root + name}", file=self._source.name)
        value = self._unpickle(member, folder)
        self.meaning(folder).storages.finish()
        return value

    def read_others(self) -> list[str]:
        """Read the pickles and files outside the value, for the names in them: a program may load any member.

        A member that is only partly a pickle is read up to the end of the pickle.

        Returns:
            The members that are files by their names, but cannot be read.
        """
        from .npy import judge_array  # which needs `ast`

        read = {self.root + name for name in self.rests}
        failed: list[str] = []
        for name, member in self.zip.members.items():
            if name in read or not member.size:
                continue
            is_file = name.lower().endswith(_FILES)
            try:
                source, start = self.zip.span(name)
                head = source.read(start, min(HEAD_BYTES, member.size))
                signature = identify(head)
                if signature is not None and signature.kind == "npy":
                    self.foreign.update(judge_array(source, start, member.size, self._limits))
                elif head.startswith(b"PK") and self._nested is not None:
                    self._nested(self.zip.read(name))
                elif is_file or _PICKLE.match(head) or (signature is not None and signature.kind == "pickle"):
                    self._unpickle(member, STORAGE_FOLDER)
            except T7BridgeError:
                if is_file:
                    failed.append(name)
        return failed

    def _unpickle(self, member: Member, folder: str) -> Any:
        """Read a pickle, and the bytes after it in its member."""
        self.zip.check(member.name)
        source, start = self.zip.span(member.name)
        meaning = self.meaning(folder)
        pickle = Unpickler(source, start, start + member.size, meaning, self._limits, member.name)
        if member.method != STORED:
            pickle.restrict(_FREE_OPERATIONS + self._limits.inflated_operations * self._source.size)
        value = pickle.load()
        self.rests[member.name.removeprefix(self.root)] = read_rest(pickle, start + member.size)
        return value

    @staticmethod
    def _suffix(folder: str) -> str:
        """Return the suffix of storage names in a folder."""
        return ".storage" if folder == PACKAGE_FOLDER else ""

    @property
    def is_script(self) -> bool:
        """Return whether it was written by TorchScript or the C++ API."""
        return self.has(CONSTANTS_MEMBER) or self.has(MODEL_MEMBER)

    @property
    def located(self) -> set[str]:
        """Return the members whose bytes are the storages named by pickles."""
        return {
            f"{self.root}{folder}{key}{self._suffix(folder)}"
            for folder, meaning in self._meanings.items()
            for key in meaning.storages.roots
        }

    def storage(self, key: str, folder: str = STORAGE_FOLDER) -> Storage:
        """Return the storage of a key; one that no pickle names has bytes as elements.

        Raises:
            CorruptError: it does not exist.
        """
        table = self.meaning(folder).storages
        if key not in table.roots:
            member = self.zip.members.get(f"{self.root}{folder}{key}")
            if member is None:
                raise CorruptError(f"the archive has no storage {key}", file=self._source.name)
            return table.get(key, UINT8, member.size, "cpu")
        return table.roots[key]


@define(frozen=True, eq=False)
class _Storages:
    """Locations of the bytes of storages. Refers to no reader: avoids reference cycles, so that files close promptly.

    Attributes:
        zip: the archive.
        folder: of the storages, with the root folder.
        order: their byte order.
        suffix: of their names.
    """

    zip: ZipArchive
    folder: str
    order: str
    suffix: str = ""

    def locate(self, key: Any, element: ElementType, nbytes: int) -> Span:
        """Return the bytes of a storage of at least this size."""
        name = f"{self.folder}{key}{self.suffix}"
        member = self.zip.members.get(name)
        if member is None:
            if not nbytes:
                return span_of_bytes(b"", element.itemsize)
            raise CorruptError(f"the archive has no member {name}", file=self.zip.source.name)
        if member.size < nbytes:
            raise TruncatedError(
                "a storage has fewer bytes than the pickle says",
                file=self.zip.source.name,
                offset=member.header,
                path=name,
                expected=f"{nbytes} bytes",
                found=f"{member.size}",
            )
        source, start = self.zip.span(name)
        if self.order == "big" and element.name == "complex32":
            return _swapped_halves(source, start, nbytes)
        whole = member.size == nbytes and bool(member.crc)  # PyTorch writes 0 if the computation is disabled
        return Span(source, start, element.itemsize, self.order, member.crc if whole else None)


def _swapped_halves(source: ByteSource, start: int, nbytes: int) -> Span:
    """Convert big-endian pairs of 2-byte floats to little-endian: as 4-byte words they would be swapped wrongly."""
    if nbytes % 4:
        raise UnsupportedError("a storage of complex32 has an odd number of bytes", file=source.name, offset=start)
    data = bytearray(source.read_exact(start, nbytes, "a storage"))
    data[::2], data[1::2] = data[1::2], data[::2]
    return span_of_bytes(bytes(data), 4)
