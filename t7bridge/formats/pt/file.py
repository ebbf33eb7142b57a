"""Whole `.pt` files that PyTorch wrote, of any release. Nothing in a file is ever executed."""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...data import collector_paused
from ...errors import CorruptError, FormatError, UnknownFormatError, UnsupportedError, about_file
from ...graph.storage import Storage
from ...io.output import Output
from ...io.source import ByteSource, PathLike, Readable
from ...limits import DEFAULT_LIMITS, Limits
from ...text import counted, few, one_line
from ..table import HEAD_BYTES, Document, Written, ends_as_zip, identify, refuse_two_formats
from . import writer as writers
from .members import CONSTANTS_MEMBER, DATA_MEMBER, MODEL_MEMBER, PACKAGE_MEMBER, PT2_MEMBERS, content_id
from .pickle.context import Origin, PickleContext
from .storages import ZIP_PARTS, StorageTable, text
from .zip import Member, ZipArchive

if TYPE_CHECKING:
    from .archive import PtArchive
    from .writer import LegacyPtWriter, MapLocation, PtWriter

_UNSET = object()
_OLD_PICKLES = b"(]}c"
"""First bytes of pickles of protocols 0 and 1: a mark, a list, a dict or a global."""
_KINDS_WITHOUT_DATA = {"json-archive": (MODEL_MEMBER,), "package": (PACKAGE_MEMBER,), "pt2": PT2_MEMBERS}
"""By each kind of archive without `data.pkl`: the members of which one identifies it."""


class PtReader:
    """Reads the value of a `.pt` file; the release that wrote it is detected from its content.

    Opening reads the directory only, `read` only the pickle: storages know where their bytes are in the file. Keep
    the reader, or the value, as long as they are needed.

    Args:
        source: a path, bytes, or a binary file object. Also a folder into which such an archive was unpacked, or the
            `data.pkl` in it.
        limits: resource limits.
        forbid: whether to refuse a file that names what runs code or reaches the system. If not, such names are treated
            as all others that have no meaning here, and listed in `foreign`.
        judge: whether to look for `uses` too.
        _depth: how many files this one is inside, each in another's pickle.

    Attributes:
        source: the open file.
        kind: `zip` (1.6 and newer), `legacy` (0.2 to 1.5), `tar` (0.1), `torchscript`, `cpp` (archives of the C++
            API), `json-archive` (TorchScript of 1.0 to 1.2), `pt2` (torch.export), `package` (torch.package) or
            `pickle` (a plain one).
        attributes: of TorchScript the content of the modules other than parameters and buffers, by dotted name; of
            torch.export the constants by name; filled by `read`, and empty for other files.
        constants: of TorchScript the constants that its code refers to; filled by `read`; `None` for other files.
        notes: content of the file that is not part of the value; filled by `read`.
        title: what a file is that PyTorch did not write, a plain pickle; set by `read`; empty for other files.

    Raises:
        T7BridgeError: the file cannot be opened.
        UnknownFormatError: it is in another format; the message says which.

    Example:
        >>> with PtReader("model.pt") as reader:
        ...     print(reader.read()["conv1.weight"].shape)
    """

    def __init__(
        self,
        source: Readable | ByteSource,
        *,
        limits: Limits = DEFAULT_LIMITS,
        forbid: bool = True,
        judge: bool = False,
        _depth: int = 0,
    ) -> None:
        """Open the file or folder, and find out of what kind it is; its value is not read yet."""
        folder = _folder_of(source)
        self.source: ByteSource
        if folder:
            self.source = _submodule("unpacked").FolderSource(folder, limits)
            self._start = 0
        else:
            self.source, self._start = ByteSource.open(source)
        # `_start` is the offset of the file in its source: a file object may be open in the middle.
        read_nested = partial(_value_of_nested_file, _depth)
        self._origin = Origin(self.source, limits, forbid, read_nested, is_judged=judge)
        self._value: Any = _UNSET
        """The value; `_UNSET` until it is read, as it may be `None`."""
        self._has_been_read = False
        """Whether the value was read once; `forget` may have released it since."""
        self._archive: PtArchive | None = None
        """The members of a zip archive or an unpacked one, which detecting the kind opens; `None` for other files."""
        self._storages: StorageTable | None = None
        """The storages of a file that is not an archive; `None` until it is read. Those of an archive are its own."""
        # What `read` finds besides the value.
        self.attributes: dict[str, Any] = {}
        self.constants: Any = None
        self.notes = self._origin.notes
        self.title = ""
        with about_file(self.source.name):
            self.kind = self._detect_folder() if folder else self._detect()

    def close(self) -> None:
        """Close the file. Storages whose elements are still in it can no longer be read."""
        self.source.close()

    def __repr__(self) -> str:
        return one_line(self, f"{self.source.name}: {self.kind}, {counted(self.source.size, 'byte')}")

    def __enter__(self) -> PtReader:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _detect_folder(self) -> str:
        """Return the kind of an archive that was unpacked, and open it."""
        members = _submodule("unpacked").FolderArchive(self.source, self._origin.limits)
        self._archive = archive = _submodule("archive").PtArchive(self._origin, members)
        return self._kind_of_zip(archive)

    def _detect(self) -> str:
        """Return the kind of the file, and open it if it is a zip archive.

        Raises:
            UnknownFormatError: PyTorch does not read it.
            UnsupportedError: it is an archive in the middle of a file object.
            CorruptError: it is also a zip archive, for readers that begin at the end of a file.
        """
        head = self.source.read(self._start, HEAD_BYTES)
        signature = identify(head)
        kind = signature.kind if signature else ""
        # Readers of archives look for members from the beginning, or from the end, of the whole file.
        if self._start and kind in ("zip", "tar"):
            raise UnsupportedError("is in the middle of a file object", hint="Give the part as bytes.")
        if kind == "zip":
            self._archive = _submodule("archive").PtArchive(self._origin)
            return self._kind_of_zip(self._archive)
        if kind == "tar":
            # `refuse_two_formats` would refuse any tar archive: this may be one, but no zip archive.
            if ends_as_zip(self.source):
                refuse_two_formats(self.source, title=signature.title if signature else "")
            return "tar"
        # Pickles of old protocols have no signature, only first bytes that few other files have.
        if kind == "pickle" or (not kind and head and head[:1] in _OLD_PICKLES):
            refuse_two_formats(self.source, self._start, title="a pickle")
            is_legacy = _submodule("streams").is_legacy(self.source, self._start, self._origin.limits)
            return "legacy" if is_legacy else "pickle"
        raise _unknown_format(head)

    @staticmethod
    def _kind_of_zip(archive: PtArchive) -> str:
        """Return the kind of a zip archive, by the members that it has."""
        if not archive.has(DATA_MEMBER):
            for kind, members in _KINDS_WITHOUT_DATA.items():
                if any(map(archive.has, members)):
                    return kind
        # Only TorchScript and PyTorch's C++ API write constants; `unpickle` reports a `data.pkl` that is missing.
        if not archive.has(CONSTANTS_MEMBER):
            return "zip"
        return "cpp" if _submodule("modules").is_cpp(archive) else "torchscript"

    # The value

    def read(self) -> Any:
        """Return the value of the file: builtins and the values of `graph.python`, with tensors in them.

        Of TorchScript and C++ modules it is the state dict, as an `OrderedDict`, in PyTorch's order. Tensors in other
        attributes follow as `attributes.NAME`, and constants of the code as `constants.0`; of C++ archives the
        attributes follow each module's tensors. Of torch.export it is the state dict, followed by the constants.
        Later calls return the same object, or after `forget` an equal one, read again.

        Raises:
            FormatError: the file is damaged.
            UnsupportedError: it holds unsupported values.
        """
        if self._value is _UNSET:
            note_count = len(self.notes)
            with about_file(self.source.name), collector_paused():
                self._value = self._read()
            if self._has_been_read:  # reading again what `forget` released has added the same notes again
                del self.notes[note_count:]
            self._has_been_read = True
        return self._value

    def forget(self) -> None:
        """Release the value, which is read again if it is asked for again."""
        self._value = _UNSET

    def _read(self) -> Any:
        """Return the value, and set what is only known after it: kind, storages and notes."""
        archive = self._archive
        if archive is None:
            return self._read_without_archive()
        value = self._read_archive(archive)
        for notes in archive.trailing_notes.values():
            self.notes += notes
        # `read_pt2` and `read_package` have noted themselves which members are left out.
        if self.kind not in ("pt2", "package"):
            archive.check_storages()
        return value

    def _read_without_archive(self) -> Any:
        """Return the value of a tar archive or of pickles one after another, and set kind and storages."""
        streams = _submodule("streams")
        read = streams.read_tar if self.kind == "tar" else streams.read_stream
        try:
            value, self.kind, self._storages = read(self._origin, self._start)
        except FormatError as error:
            if self.foreign:
                _submodule("programs").refuse_joblib(self.foreign, self.source.name, error)
            raise
        if self.kind == "pickle":
            self._name_program(value)
        return value

    def _name_program(self, value: Any) -> None:
        """Say which program wrote a plain pickle, if it was not PyTorch."""
        programs = _submodule("programs")
        program = programs.program_of(self.foreign, value)
        self.title = f"a Python pickle{f' of {program}' if program else ''}"
        if program:
            self.notes.append(programs.note_on(program))

    def _read_archive(self, archive: PtArchive) -> Any:
        """Return the value of a zip archive; of modules their state dict, and set attributes and constants, too."""
        if self.kind == "zip":
            return archive.unpickle(DATA_MEMBER)
        if self.kind == "package":
            return _submodule("archive").read_package(archive)
        if self.kind == "pt2":
            module = _submodule("pt2").read_pt2(archive)
        elif self.kind == "json-archive":
            module = _submodule("modules").read_json_archive(archive)
        else:
            module = _submodule("modules").read_modules(archive, is_cpp_api=self.kind == "cpp")
        self.attributes = module.attributes
        self.constants = module.constants
        return module.state_dict

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

    @property
    def foreign(self) -> list[str]:
        """The names of other packages than PyTorch, numpy and Python's own data, in the order of the file."""
        return self._origin.foreign

    @property
    def judged(self) -> dict[str, bool]:
        """The names that PyTorch's safe loader does not know, and whether each runs code or reaches the system."""
        return self._origin.unsafe_names

    @property
    def uses(self) -> list[str]:
        """What the safe loader refuses besides names, of a file that is judged."""
        return list(self._origin.refused_uses)

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
            UnsupportedError: there is no such member, or it is deflated, so that its bytes are not in the file.
        """
        if self._archive is None or name not in self.members:
            raise UnsupportedError(f"has no member {name}", file=self.source.name)
        source, start = self._archive.zip.span(name)
        if source is not self.source:
            raise UnsupportedError(f"has the member {name} deflated only", file=self.source.name)
        return start, self.members[name].size

    def extra(self, name: str) -> bytes | None:
        """Return the bytes of a member below the root folder, checked; None if there is none.

        Raises:
            CorruptError: their CRC-32 does not match.
        """
        return self._archive.read_member(name) if self._archive else None

    @property
    def content_id(self) -> str:
        """Return a hash over the members that make up a zip archive's value, by their names, sizes and CRCs.

        Raises:
            UnsupportedError: it is no zip archive.
        """
        if self._archive is None:
            raise UnsupportedError("is not a zip archive", file=self.source.name)
        root = self._archive.root
        crc_of = self._archive.zip.crc_of
        return content_id([(name[len(root) :], member.size, crc_of(name)) for name, member in self.members.items()])

    def storage(self, key: str) -> Storage:
        """Return the storage of a key, with its element type in the file's value.

        A key that no tensor refers to has bytes as elements.

        Raises:
            CorruptError: it does not exist in an archive.
            UnsupportedError: it does not exist in another file.
        """
        self.read()  # which sets the element types
        if self._archive is not None:
            return self._archive.storage(key)
        storage = self._storages.roots.get(key) if self._storages else None
        if storage is None:
            raise UnsupportedError(f"has no storage {key}", file=self.source.name)
        return storage

    def verify(self) -> None:
        """Check the CRC-32 of every member of a zip archive; other files have none.

        Raises:
            CorruptError: one does not match.
        """
        if self._archive is not None:
            self._archive.zip.verify()


def _unknown_format(head: bytes) -> UnknownFormatError:
    """Return the error for a file that PyTorch does not read, which names the format if it is a known one.

    Args:
        head: the first bytes.
    """
    expected = "a zip archive, a pickle or a tar archive of PyTorch"
    signature = identify(head)
    if signature is not None:
        return UnknownFormatError(f"is {signature.title}", expected=expected, hint=signature.hint)
    first_bytes = f"{head[:16]!r}" if head else "no bytes"
    return UnknownFormatError("is not a file of PyTorch", expected=expected, found=first_bytes)


def _folder_of(source: Readable | ByteSource) -> str:
    """Return the folder of an unpacked archive that a path names, itself or by its `data.pkl`; empty otherwise."""
    if not isinstance(source, (str, os.PathLike)):
        return ""
    path = os.fspath(source)
    if os.path.basename(path) != DATA_MEMBER and not os.path.isdir(path):  # most files, which are spared the import
        return ""
    return str(_submodule("unpacked").folder_of(path))


def _submodule(name: str) -> Any:
    """Return a module of this folder, which is imported here as not every file needs it."""
    return import_module(f".{name}", __package__)


def _value_of_nested_file(depth: int, origin: Origin, source: ByteSource) -> Any:
    """Return the value of a whole file inside another, and add what is unsafe in it to the outer file's findings.

    Args:
        depth: how many files the outer one is inside.
        origin: the outer file.
        source: the bytes of the inner one.

    Raises:
        LimitError: too many files are inside one another.
    """
    if depth >= origin.limits.nested_files:
        raise origin.limits.exceeded("nested_files", "files are nested in one another's pickles")
    inner = PtReader(source, limits=origin.limits, forbid=origin.forbid, judge=origin.is_judged, _depth=depth + 1)
    try:
        return inner.read()
    finally:  # also of a file that cannot be read: it may be unsafe up to the damage
        try:
            # Only `scan` collects names from all members; it does not refuse any.
            if not origin.forbid:
                _read_others_of_nested(inner)
        finally:  # also if one of these cannot be read
            # The reader's `judged` and `uses` are only those that the safe loader refuses.
            origin.unsafe_names.update(inner.judged)
            origin.refused_uses.update(dict.fromkeys(inner.uses))


def _read_others_of_nested(inner: PtReader) -> None:
    """Read the pickles that the value of a nested archive has not, for the names in them.

    Raises:
        CorruptError: one cannot be read, so that the archive is one with unread content for `scan`.
    """
    unreadable_names = inner.read_others()
    if unreadable_names:
        raise CorruptError("members of a nested archive cannot be read", found=few(unreadable_names, longest=60))


def read_pickle_with(
    data: bytes, storages: dict[str, Storage], limits: Limits = DEFAULT_LIMITS, forbid: bool = True
) -> tuple[Any, list[str]]:
    """Read a pickle whose storages are given: the record of a conversion keeps the pickle of a `.pt`.

    Args:
        data: the pickle.
        storages: by key; on these objects the devices are set that the pickle names for them.
        limits: resource limits.
        forbid: whether names that run code are refused.

    Returns:
        The value, and the names of other packages in it.

    Raises:
        FormatError: it is damaged.
    """
    table = StorageTable()
    table.roots.update(storages)

    def storage_with_device(saved_id: Any) -> Any:
        """Return the storage of a persistent id, with the device that the id names."""
        # The device of a storage is in the pickle only. The ids of both formats begin with these five parts; the table
        # refuses an id of another form, a key that is not text, and a location that is none.
        if isinstance(saved_id, tuple) and len(saved_id) >= ZIP_PARTS:
            _storage, _class, key, location, *_ = saved_id
            storage = storages.get(text(key) or "")
            if storage is not None:
                storage.device = text(location) or ""
        return table.storage_of_id(saved_id)

    depth = 0  # the record is counted as a file that is in no other
    read_nested = partial(_value_of_nested_file, depth)
    origin = Origin(ByteSource.from_bytes(data, "<record>"), limits, forbid, read_nested)
    context = PickleContext(origin, table, resolve_id=storage_with_device)
    unpickler = _submodule("pickle.unpickler").Unpickler(origin.source, 0, len(data), context, member="record")
    value = unpickler.load()
    table.complete_untyped_and_views()
    return value, origin.foreign


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS, *, forbid: bool = True) -> Document:
    """Open a `.pt` file.

    Args:
        source: a path, bytes, a binary file object, or an open source.
        limits: resource limits.
        forbid: see `PtReader`.

    Raises:
        FormatError: it is damaged, or in no supported format.
    """
    reader = PtReader(source, limits=limits, forbid=forbid)
    return Document(
        "pt",
        reader.source,
        lambda: [reader.read()],
        content=lambda: reader,
        layout=lambda: reader.kind,
        forget=reader.forget,
    )


def read_folder(folder: PathLike, limits: Limits = DEFAULT_LIMITS, *, forbid: bool = True) -> Document:
    """Open a folder that is an unpacked archive.

    Args:
        folder: its path.
        limits: resource limits.
        forbid: see `PtReader`.

    Raises:
        FormatError: it is damaged.
    """
    return read(folder, limits, forbid=forbid)


def writer(
    output: Output,
    pt_format: str = "zip",
    *,
    keep_device: bool = False,
    map_location: MapLocation = None,
    allow_foreign: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> PtWriter | LegacyPtWriter:
    """Return a writer of a `.pt`.

    Args:
        output: the output file.
        pt_format: `zip`, `legacy` for PyTorch 0.2 to 1.5, or `torchscript`.
        keep_device: whether tensors keep the device that they name.
        map_location: the replacement of each device; see `writer.device_mapper`.
        allow_foreign: whether names of other packages are written; an archive of TorchScript has tensors only.
        limits: bound what an archive of TorchScript repeats; the other formats write each shared value once.

    Raises:
        ModelError: `map_location` names no device.
    """
    place = writers.device_mapper(map_location, keep_device)
    if pt_format == "torchscript":
        from .script_writer import ScriptWriter

        return ScriptWriter(output, place=place, limits=limits)
    writer_class = writers.LegacyPtWriter if pt_format == "legacy" else writers.PtWriter
    return writer_class(output, place=place, allow_foreign=allow_foreign)


def write(output: Output, value: Any, pt_format: str = "zip", *, keep_device: bool = False) -> Written:
    """Write one value as a `.pt`.

    Args:
        output: the output file.
        value: builtins with tensors in them.
        pt_format: see `writer`.
        keep_device: whether tensors keep the device that they name; otherwise all are on the CPU.

    Raises:
        UnsupportedError: something in it is neither a builtin nor a tensor.
        WriteError: the output does not accept the bytes.
    """
    pt_writer = writer(output, pt_format, keep_device=keep_device)
    pt_writer.write(value)
    pt_writer.finish()
    return Written(pt_writer.tensors, pt_writer.storages)
