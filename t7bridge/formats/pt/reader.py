"""PtReader: the value of a file that PyTorch wrote, of any release. Nothing in the file is ever executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import LimitError, T7BridgeError, UnknownFormatError, UnsupportedError
from ...garbage import collector_paused
from ...graph.storage import Storage
from ...io.source import ByteSource, Readable
from ...limits import DEFAULT_LIMITS, Limits
from ...report import Note
from ..signatures import HEAD_BYTES, ends_as_zip, identify, refuse_two
from .checkpoint import CONSTANTS_MEMBER, MODEL_MEMBER, PACKAGE_MEMBER, PT2_MEMBERS, PtArchive
from .identity import content_id
from .layout import DATA_MEMBER
from .pickle.globals import PtMeaning
from .rest import note_rest
from .storages import StorageTable
from .unread import check_storages
from .zip.archive_reader import Member, ZipArchive

_UNSET = object()
_OLD_PICKLES = b"(]}c"
"""First bytes of pickles of protocols 0 and 1: a mark, a list, a dict or a global."""


class PtReader:
    """Reads the value of a `.pt` file; the release that wrote it is detected from its content.

    Opening reads the directory only, `read` only the pickle: storages know where their bytes are in the file. Keep
    the reader, or the value, as long as they are needed.

    Args:
        source: a path, bytes, or a binary file object.
        limits: resource limits.
        forbid: whether to refuse a file that names what runs code or reaches the system. If not, such names are treated
            as all others that have no meaning here, and listed in `foreign`.

    Attributes:
        kind: `zip` (1.6 and newer), `legacy` (0.2 to 1.5), `tar` (0.1), `torchscript`, `cpp` (archives of the C++
            API), `json-archive` (TorchScript of 1.0 to 1.2), `pt2` (torch.export), `package` (torch.package) or
            `pickle` (a plain one).

    Raises:
        T7BridgeError: the file cannot be opened.
        UnknownFormatError: it is in another format; the message says which.

    Example:
        >>> reader = PtReader("model.pt")
        >>> reader.read()["conv1.weight"].shape
    """

    def __init__(
        self,
        source: Readable | ByteSource,
        *,
        limits: Limits = DEFAULT_LIMITS,
        forbid: bool = True,
        _depth: int = 0,
    ) -> None:
        self.source, self._start = ByteSource.open(source)
        self._limits = limits
        self._forbid = forbid
        self._nested = _Nested(self.source.name, limits, forbid, _depth)
        self._value: Any = _UNSET
        self._archive: PtArchive | None = None
        self._meaning: PtMeaning | None = None
        self.kind = self._detect()
        self.attributes: dict[str, Any] = {}
        """Of TorchScript: content of the modules other than parameters and buffers, by dotted name; of torch.export:
        the constants by name; filled by `read`."""
        self.constants: Any = None
        """Of TorchScript: the constants that its code refers to; filled by `read`."""
        self.notes: list[Note] = []
        """Content of the file that is not part of the value; filled by `read`."""

    def __enter__(self) -> PtReader:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.source.close()

    def _detect(self) -> str:
        head = self.source.read(self._start, HEAD_BYTES)
        signature = identify(head)
        kind = signature.kind if signature else ""
        if self._start and kind in ("zip", "tar"):
            raise UnsupportedError(
                "is in the middle of a file object", file=self.source.name, hint="Give the part as bytes."
            )
        if kind == "zip":
            self._archive = PtArchive(self.source, self._limits, self._nested, self._forbid)
            return self._kind_of_zip(self._archive)
        if kind == "tar":
            if ends_as_zip(self.source):
                refuse_two(self.source, title=signature.title if signature else "")
            return "tar"
        if kind == "pickle" or (not kind and head[:1] and head[:1] in _OLD_PICKLES):
            from .legacy import is_legacy

            refuse_two(self.source, self._start, "a pickle")
            return "legacy" if is_legacy(self.source, self._start, self._limits) else "pickle"
        raise UnknownFormatError(
            f"is {signature.title}" if signature else "is not a file of PyTorch",
            file=self.source.name,
            expected="a zip archive, a pickle or a tar archive of PyTorch",
            found="" if signature else f"{head[:16]!r}" if head else "no bytes",
            hint=signature.hint if signature else "",
        )

    @staticmethod
    def _kind_of_zip(archive: PtArchive) -> str:
        if archive.has(MODEL_MEMBER) and not archive.has(DATA_MEMBER):
            return "json-archive"
        if archive.has(PACKAGE_MEMBER) and not archive.has(DATA_MEMBER):
            return "package"
        if any(map(archive.has, PT2_MEMBERS)) and not archive.has(DATA_MEMBER):
            return "pt2"
        if not archive.has(CONSTANTS_MEMBER):
            return "zip"
        from .torchscript import is_cpp

        return "cpp" if is_cpp(archive) else "torchscript"

    # The value

    def read(self) -> Any:
        """Return the value of the file: builtins and the values of `graph.python`, with tensors in them.

        Of TorchScript and C++ modules it is the state dict, as an `OrderedDict`, in PyTorch's order. Tensors in other
        attributes follow as `attributes.NAME`, and constants of the code as `constants.0`; of C++ archives the
        attributes follow each module's tensors. Of torch.export it is the state dict, followed by the constants.
        The value is read once; later calls return the same object.

        Raises:
            FormatError: the file is damaged.
            UnsupportedError: it holds unsupported values.
        """
        if self._value is _UNSET:
            try:
                with collector_paused():
                    self._value = self._read()
            except T7BridgeError as error:
                error.file = error.file or self.source.name
                raise
        return self._value

    def _read(self) -> Any:
        if self._archive is not None:
            value = self._read_archive(self._archive)
            for member, rest in self._archive.rests.items():
                self.notes += note_rest(rest, member)
            if self.kind not in ("pt2", "package"):
                self.notes += check_storages(self._archive)
            return value
        if self.kind == "tar":
            from .tar import read_tar

            value, rest = read_tar(self.source, self._limits, self._new_meaning)
            self.notes += note_rest(rest, "pickle")
            return value
        from .legacy import read_stream

        stream = read_stream(self.source, self._start, self._limits, self._new_meaning)
        self.kind = "legacy" if stream.is_legacy else "pickle"
        self.notes += note_rest(stream.rest)
        return stream.value

    def _read_archive(self, archive: PtArchive) -> Any:
        if self.kind == "zip":
            return archive.unpickle(DATA_MEMBER)
        if self.kind == "package":
            from .package import read_package

            return read_package(archive, self.notes)
        if self.kind == "pt2":
            from .pt2 import read_pt2

            found = read_pt2(archive, self._limits, self._nested)
            self.attributes = found.attributes
            self.notes += found.notes
            return found.state_dict
        if self.kind == "json-archive":
            from .json_archive import read_json_archive as read
        else:
            from .torchscript import read_modules as read
        found = read(archive, self._limits)
        self.attributes, self.constants = found.attributes, found.constants
        if self.kind != "cpp":
            found.carry_attributes()
        self.notes += found.notes
        return found.with_attributes() if self.kind == "cpp" else found.state_dict

    @property
    def archive(self) -> ZipArchive | None:
        """The members of a zip archive; `None` for other files."""
        return self._archive.zip if self._archive is not None else None

    def read_others(self) -> list[str]:
        """Read the pickles of an archive that `read` ignores, for `foreign`; other files have none.

        Returns:
            The members that are pickles by their names, but cannot be read.
        """
        return self._archive.read_others() if self._archive is not None else []

    def _new_meaning(self, table: StorageTable, persistent: Callable[[Any], Any] | None) -> PtMeaning:
        self._meaning = PtMeaning(table, persistent, self._nested, self._limits, self.source.size, self._forbid)
        return self._meaning

    @property
    def foreign(self) -> list[str]:
        """The globals that are neither PyTorch's data nor harmless classes, in the order of the file."""
        return list(self.judged)

    @property
    def judged(self) -> dict[str, str]:
        """These globals with their kind: `forbidden`, which run code or reach the system, or `foreign`."""
        known = self._archive or self._meaning
        return {**(known.foreign if known else {}), **self._nested.foreign}

    # The parts of a zip archive

    @property
    def members(self) -> dict[str, Member]:
        """The members of a zip archive by name, with their sizes and CRCs; else empty."""
        return self._archive.zip.members if self._archive else {}

    def member_span(self, name: str) -> tuple[int, int]:
        """Return offset and length of a stored member in the file.

        Args:
            name: in full.

        Raises:
            UnsupportedError: the member is deflated, so that its bytes are not in the file.
            CorruptError: there is no such member.
        """
        if self._archive is None or name not in self._archive.zip:
            raise UnsupportedError(f"has no member {name}", file=self.source.name)
        source, start = self._archive.zip.span(name)
        if source is not self.source:
            raise UnsupportedError(f"has the member {name} deflated only", file=self.source.name)
        return start, self._archive.zip.members[name].size

    def extra(self, name: str) -> bytes | None:
        """Return the bytes of a member below the root folder, checked; None if there is none.

        Raises:
            CorruptError: their CRC-32 does not match.
        """
        return self._archive.small(name) if self._archive else None

    @property
    def content_id(self) -> str:
        """Return a hash over the members that make up a zip archive's value, by their names, sizes and CRCs."""
        assert self._archive is not None
        root = len(self._archive.root)
        return content_id([(name[root:], member.size, member.crc) for name, member in self.members.items()])

    def storage(self, key: str) -> Storage:
        """Return the storage of a key, with its element type in the file's value.

        A key that no tensor refers to has bytes as elements.

        Raises:
            CorruptError: it does not exist.
        """
        self.read()
        if self._archive is not None:
            return self._archive.storage(key)
        assert self._meaning is not None
        found = self._meaning.storages.roots.get(key)
        if found is None:
            raise UnsupportedError(f"has no storage {key}", file=self.source.name)
        return found

    def verify(self) -> None:
        """Check the CRC-32 of every member of a zip archive; other files have none.

        Raises:
            CorruptError: one does not match.
        """
        if self._archive is not None:
            self._archive.zip.verify()


class _Nested:
    """Reader of files embedded in a pickle as bytes. Refers to no reader: avoids reference cycles.

    Attributes:
        foreign: globals that are neither PyTorch's data nor harmless classes, of all files.
    """

    def __init__(self, name: str, limits: Limits, forbid: bool, depth: int) -> None:
        self._name = name
        self._limits = limits
        self._forbid = forbid
        self._depth = depth
        self.foreign: dict[str, str] = {}

    def __call__(self, data: bytes) -> Any:
        """Return the value of one."""
        if self._depth >= self._limits.nested_files:
            raise LimitError(
                "files are nested in one another's pickles", limit="nested_files", value=self._limits.nested_files
            )
        source = ByteSource.from_bytes(data, self._name)
        inner = PtReader(source, limits=self._limits, forbid=self._forbid, _depth=self._depth + 1)
        try:
            return inner.read()
        finally:
            if not self._forbid:
                inner.read_others()
            self.foreign.update(inner.judged)
