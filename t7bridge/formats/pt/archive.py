"""PyTorch's zip archives: their root folder, byte order, pickles and storages, and the members that nothing reads.

Source: PyTorch 2.13 `torch/serialization.py` `_load`; `caffe2/serialize/inline_container.cc`;
`torch/package/package_exporter.py` (`save_pickle`, `_persistent_id`, `_finalize_zip`), `package_importer.py`
(`load_pickle`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from ...data import np, pattern
from ...errors import (
    CorruptError,
    T7BridgeError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedError,
    about_file,
)
from ...graph.dtypes import UINT8, ElementType
from ...graph.storage import Span, Storage
from ...io.source import ByteSource
from ...report import Note
from ...text import counted, few
from ..table import HEAD_BYTES, ends_as_zip, identify
from .arrays import read_header
from .members import (
    ALIGNMENT_MEMBER,
    BYTEORDER_MEMBER,
    CONSTANTS_MEMBER,
    DATA_MEMBER,
    FORMAT_MEMBER,
    ID_MEMBER,
    MODEL_MEMBER,
    OLD_VERSION_MEMBER,
    PACKAGE_FOLDER,
    PACKAGE_MEMBER,
    PT2_MEMBERS,
    RECORD_MEMBER,
    STORAGE_FOLDER,
    TRACED_FOLDER,
    VERSION_MEMBER,
)
from .pickle.context import Origin, PickleContext
from .pickle.unpickler import Unpickler
from .storages import ZIP_PARTS, Locate, StorageTable, span_of_bytes
from .zip import STORED, Member, ZipArchive

_PICKLE = pattern(rb"\x80[\x02-\x05]")
"""How a pickle of protocol 2 to 5 begins."""
_ZIP_START = b"PK"
"""How a zip archive begins."""
_LOADED_SUFFIXES = (".pkl", ".pickle", ".pt", ".pth", ".ckpt")
"""Suffixes of members that programs load."""
_FREE_OPERATIONS = 500_000
"""Opcodes that a deflated pickle may have besides those for its archive's size: small archives may deflate well."""
_ROOT_MEMBERS = (DATA_MEMBER, MODEL_MEMBER, *PT2_MEMBERS, PACKAGE_MEMBER)
_WEIGHT_FOLDERS = ("data/", "constants/", "weights/", "tensors/", "xl_model_weights/")
"""Folders in which PyTorch, TorchScript and programs with archives like PyTorch's have weights."""


def _is_version(data: bytes) -> bool:
    """Return whether PyTorch accepts the content of a member with the version of the archive's format."""
    number = re.match(rb"\s*\+?(\d{1,9})", data)
    return number is not None and 1 <= int(number[1]) <= _NEWEST_VERSION


def _is_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


_NEWEST_VERSION = 10
"""The newest version that PyTorch 2.13 reads."""
_DESCRIPTIONS: dict[str, Callable[[bytes], bool]] = {
    VERSION_MEMBER: _is_version,
    OLD_VERSION_MEMBER: _is_version,
    ALIGNMENT_MEMBER: lambda data: re.fullmatch(rb"\s*[-+]?\d{1,18}\s*", data) is not None,
    FORMAT_MEMBER: lambda data: True,
    ID_MEMBER: _is_utf8,
}
"""Members that PyTorch reads beside the value, each with a function that tells whether it accepts their bytes.

Source: PyTorch 2.13 `caffe2/serialize/inline_container.cc` `PyTorchStreamReader::init`, `getAllRecords`,
`torch/serialization.py` `_load`.
"""


class PtArchive:
    """A zip archive that PyTorch wrote: pickles and storages below a root folder.

    Args:
        origin: the file.
        archive: its members, if they are known: those of a folder. By default those of the file, a zip archive.

    Attributes:
        origin: the argument.
        zip: its members.
        root: the folder that contains all of them, with a slash; empty if there is none.
        order: byte order of its storages, `little` or `big`.
        trailing_notes: by the whole name of each pickle that was read: notes on the bytes after its value; an empty
            list if there are none.

    Raises:
        FormatError: it is not a valid zip archive.
        UnknownFormatError: it is one, but not of PyTorch.
    """

    def __init__(self, origin: Origin, archive: ZipArchive | None = None) -> None:
        self.origin = origin
        self.zip = ZipArchive(origin.source, origin.limits) if archive is None else archive
        self._contexts: dict[str, PickleContext] = {}
        """By folder of storages, below the root: what resolves the names in its pickles. See `context`."""
        self._read: set[str] = set()
        """The members that were read, below the root; storages are not among them."""
        self.trailing_notes: dict[str, list[Note]] = {}
        with about_file(origin.source.name):
            # The root first: all other methods look for members below it.
            self.root = self._find_root()
            self._refuse_names_in_other_case()
            self.order = self._byte_order()

    def _find_root(self) -> str:
        """Return the root folder, with a slash: that of the first entry, as in PyTorch, or the outermost with a value.

        It is empty if the members are in no folder.

        Raises:
            UnknownFormatError: no folder has a member by which an archive of PyTorch is known.
        """
        names = list(self.zip.members)
        folder, slash, _ = self.zip.first_entry.partition("/")
        first_root = folder + "/" if slash else ""
        lower_names = {name.lower() for name in names}
        for member in _ROOT_MEMBERS:
            # PyTorch's reader ignores case; `_refuse_names_in_other_case` refuses other letters.
            if (first_root + member).lower() in lower_names:
                return first_root
        # Other writers may add members before PyTorch's. In the order of `_ROOT_MEMBERS`: `data.pkl` before all others.
        for member in _ROOT_MEMBERS:
            roots = [name[: -len(member)] for name in names if name == member or name.endswith("/" + member)]
            if roots:
                return min(roots, key=lambda root: root.count("/"))
        raise UnknownFormatError(
            "is a zip archive, but not one of PyTorch",
            expected=f"a member {DATA_MEMBER}",
            found=few(names, most=4) or "no members",
            hint="Unpack it, or give the address of a member: zip://MEMBER::FILE." if names else "",
        )

    def _refuse_names_in_other_case(self) -> None:
        """Refuse names that differ in case alone from members that PyTorch looks up: its lookup ignores case.

        Otherwise PyTorch would read another value than this package. Members that change no value, such as the version
        of the archive, may have any names.

        Raises:
            CorruptError: there is such a name.
        """
        looked_up = {BYTEORDER_MEMBER, CONSTANTS_MEMBER, FORMAT_MEMBER, ALIGNMENT_MEMBER, *_ROOT_MEMBERS}
        for path, member in self.zip.members.items():
            root = path[: len(self.root)]
            name = path[len(self.root) :]
            lower_name = name.lower()
            if root.lower() != self.root.lower():  # another folder
                continue
            if lower_name.startswith(STORAGE_FOLDER):
                # Keys of storages are in the pickle, in any case; `ZipArchive` refuses two that differ in case alone.
                is_exact = name.startswith(STORAGE_FOLDER)
            elif lower_name in looked_up:
                is_exact = name == lower_name
            else:  # PyTorch looks for no such member
                continue
            if not is_exact or root != self.root:
                raise CorruptError(
                    "has a member name that differs in case from PyTorch's, which PyTorch finds nevertheless",
                    offset=member.header,
                    path=path,
                )

    def _byte_order(self) -> str:
        """Return the byte order of the storages; older releases did not state it."""
        order = self.read_member(BYTEORDER_MEMBER)
        if order is None:
            return "little"
        if order not in (b"little", b"big"):
            raise CorruptError("has no known byte order", found=f"{order[:40]!r}")
        return order.decode()

    def has(self, name: str) -> bool:
        """Return whether a member of this name exists below the root folder."""
        return self.root + name in self.zip.members

    def read_member(self, name: str) -> bytes | None:
        """Return the bytes of a small member below the root folder, its CRC-32 checked; `None` if there is none."""
        if not self.has(name):
            return None
        self._read.add(name)
        return self.zip.read(self.root + name)

    def value_of_nested_file(self, name: str) -> Any:
        """Return the value of a member that is a whole file, by its name below the root folder."""
        self._read.add(name)
        return self._value_of_nested_file(self.root + name)

    def _value_of_nested_file(self, name: str) -> Any:
        """Return the value of a member that is a whole file, by its whole name."""
        self.zip.check(name)
        source, start = self.zip.span(name)
        return self.origin.read_nested(self.origin, source.window(start, self.zip.members[name].size))

    def context(self, folder: str = STORAGE_FOLDER) -> PickleContext:
        """Return what resolves the names in the pickles whose storages are in a folder below the root folder.

        It is one object for each folder: pickles share their storages, and each storage is one object.
        """
        if folder not in self._contexts:
            is_script = self.has(CONSTANTS_MEMBER) or self.has(MODEL_MEMBER)  # written by TorchScript or the C++ API
            if folder == TRACED_FOLDER:  # its pickle is read for names only: PyTorch writes no members for its storages
                locate: Locate = _without_bytes
            else:
                locate = partial(_locate, self.zip, self.root + folder, self.order, self._storage_suffix(folder))
            # C++ looks up each key with the class that the pickle names there; Python uses the first for all.
            table = StorageTable(locate, one_class_per_key=not is_script)
            context = PickleContext(self.origin, table, resolve_id=table.storage_of_id, is_script=is_script)
            context.id_parts = ZIP_PARTS  # all pickles of an archive may have ids
            self._contexts[folder] = context
        return self._contexts[folder]

    def unpickle(self, name: str, folder: str = STORAGE_FOLDER) -> Any:
        """Return the value of a member that is a pickle.

        Args:
            name: of the member, below the root folder.
            folder: of its storages, below the root folder.

        Raises:
            FormatError: it is missing or damaged.
        """
        value = self._unpickle(self.zip.member(self.root + name), folder)
        self._read.add(name)
        # Only now it is known which untyped storages no tensor has claimed.
        self.context(folder).storages.complete_untyped_and_views()
        return value

    def names(self) -> list[str]:
        """Return the names of all members below the root folder."""
        return [name[len(self.root) :] for name in self.zip.members if name.startswith(self.root)]

    def unread(self) -> list[str]:
        """Return the names of the members below the root folder that were not read, and are no storages in use."""
        storage_members = self._storage_members()
        return [name for name in self.names() if name not in self._read and self.root + name not in storage_members]

    def note_left_out(self, text: str, names: list[str], level: str = "info") -> None:
        """Note that members are left out, if there are any.

        Args:
            text: of the note: `{}` becomes some of the names.
            names: of the members, below the root folder.
            level: `info` for what belongs to no value, such as source: one thing, however many members it has.
                `warning` for what may be weights: then the note has their size, and counts each of them.
        """
        if not names:
            return
        text = text.format(few(names, longest=60))
        count = 1
        if level == "warning":
            text += f" ({counted(self._total_size(names), 'byte')})"
            count = len(names)
        self.origin.notes.append(Note(level, path="", message=text, code="left-out", count=count))

    def _no_weights_used(self, unread_weights: list[str]) -> CorruptError:
        """Return the error for a value that uses none of the storages, by the names of these below the root folder."""
        size = self._total_size(unread_weights)
        members_and_bytes = f"{counted(len(unread_weights), 'member')}, {size:,} bytes, that nothing reads"
        return CorruptError(
            "holds weights, but its value refers to none of them",
            expected="a pickle that refers to them",
            found=f"{members_and_bytes}: {few(unread_weights, longest=60)}",
            hint="Load the file in the program that wrote it, and save its state dict with torch.save.",
        )

    def check_storages(self) -> None:
        """Note the members that look like storages and that the value does not use.

        To be called after the value was read. A `.pt` made from a `.t7` may have storages that only its record uses, so
        that none of its members are noted.

        Raises:
            CorruptError: the archive has storages, but the value uses none of them.
        """
        self._judge_storage_sizes()
        if self.has(RECORD_MEMBER):
            return
        unread_weights = []
        for name in self.unread():
            if name.startswith(_WEIGHT_FOLDERS) and self._total_size([name]):  # nothing is lost with an empty one
                unread_weights.append(name)
        members = self.zip.members
        uses_storages = any(members[name].size for name in self._storage_members() if name in members)
        if unread_weights and not uses_storages:
            raise self._no_weights_used(unread_weights)
        what = "member of the archive is" if len(unread_weights) == 1 else "members of the archive are"
        text = f"{len(unread_weights)} {what} not part of its value and left out: {{}}"
        self.note_left_out(text, unread_weights, level="warning")

    def _judge_storage_sizes(self) -> None:
        """Note for the safe loader the storages whose members are missing or of another size: PyTorch refuses them."""
        for folder, context in self._contexts.items():
            for key, storage in context.storages.roots.items():
                member = self.zip.members.get(self._storage_member(folder, key))
                if member is None or member.size != storage.nbytes:
                    context.note_refused_use("a storage of another size than its member")

    def _judge_descriptions(self) -> None:
        """Note what PyTorch's loader refuses in the members that it reads beside the value, and in names.

        Raises:
            FormatError: one of the members is damaged.
        """
        for name, is_accepted in _DESCRIPTIONS.items():
            data = self.read_member(name)
            if data is not None and not is_accepted(data):
                self.context().note_refused_use(f"the member {name} of the archive")
        if not self.has(VERSION_MEMBER) and not self.has(OLD_VERSION_MEMBER):
            self.context().note_refused_use("an archive without a version")
        for name in self.zip.members:
            if not name.startswith(self.root):
                self.context().note_refused_use(f"the member {name!r:.60} outside of the folder {self.root!r:.60}")
            elif not name.isascii() and not _is_utf8(name.encode("utf-8", "surrogateescape")):  # as it is in the file
                self.context().note_refused_use(f"the name {name!r:.60} of a member, which is not UTF-8")

    def read_others(self) -> list[str]:
        """Read the pickles and files outside the value, for the names in them: a program may load any member.

        A member that is only partly a pickle is read up to the end of the pickle. One that only begins as a pickle, as
        elements of a tensor may, is none if no unsafe name is found in it before reading fails.

        Returns:
            The members that cannot be read: pickles and model files by their suffixes, archives, and damaged ones.
        """
        origin = self.origin
        # Only `torch.load` has rules for other members. It takes neither TorchScript, which has constants, nor archives
        # without a value.
        is_for_torch_load = self.has(DATA_MEMBER) and not self.has(CONSTANTS_MEMBER)
        if origin.is_judged and is_for_torch_load:
            self._judge_descriptions()
        failed: list[str] = []
        for name, member in self.zip.members.items():
            was_unpickled = name in self.trailing_notes  # which has every pickle that was read, also one without notes
            if not was_unpickled and member.size and not self._is_read_for_names(member):
                failed.append(name)
        return failed

    def _is_read_for_names(self, member: Member) -> bool:
        """Read a member for the names in it; return `False` if it cannot be read, but may be a pickle or an archive."""
        is_pickle_by_name = member.name.lower().endswith(_LOADED_SUFFIXES)
        # What is found in a pickle by its own name is kept, however far it can be read.
        forgetting = nullcontext() if is_pickle_by_name else self.origin.forgetting_if_unreadable()
        try:
            with forgetting:
                self._read_other(member, is_pickle_by_name)
        except UnknownFormatError:  # such as an archive that is not of PyTorch
            return not is_pickle_by_name
        except T7BridgeError:
            return not is_pickle_by_name and not self._may_be_archive(member)
        return True

    def _may_be_archive(self, member: Member) -> bool:
        """Return whether a member begins and ends as a zip archive does; elements of a tensor may begin so, too."""
        try:
            source, start = self.zip.span(member.name)
        except T7BridgeError:  # its own bytes cannot be read, and so may be anything
            return True
        content = source.window(start, member.size)
        return content.read(0, len(_ZIP_START)) == _ZIP_START and ends_as_zip(content)

    def _read_other(self, member: Member, is_pickle_by_name: bool) -> None:
        """Read a member that is an array, an archive or a pickle, judging by its first bytes, or by its name.

        Only the names in it matter, which `origin` collects: the value is dropped.

        Args:
            member: the member; one of another kind is passed over.
            is_pickle_by_name: whether its suffix is one of `_LOADED_SUFFIXES`: then it is read as a pickle, however it
                begins.
        """
        source, start = self.zip.span(member.name)
        head = source.read(start, min(HEAD_BYTES, member.size))
        signature = identify(head)
        kind = signature.kind if signature is not None else ""
        if kind == "npy":
            judge_array(self.origin, source, start, member.size)
        elif head.startswith(_ZIP_START):  # any zip archive; what is none after all fails, which the caller expects
            self._value_of_nested_file(member.name)
        elif is_pickle_by_name or _PICKLE.match(head) or kind == "pickle":
            # The storages of `traced_inputs.pkl` are named below a folder of their own, which has no members.
            traced_inputs = f"{self.root}{TRACED_FOLDER.removesuffix('/')}.pkl"
            self._unpickle(member, TRACED_FOLDER if member.name == traced_inputs else STORAGE_FOLDER)

    def _unpickle(self, member: Member, folder: str) -> Any:
        """Return the value of a pickle, and keep the notes on the bytes after it in its member.

        Args:
            member: the pickle.
            folder: of its storages, below the root folder.
        """
        self.zip.check(member.name)  # the CRC-32
        source, start = self.zip.span(member.name)
        pickle = Unpickler(source, start, start + member.size, self.context(folder), member.name)
        if member.method != STORED:
            # A few deflated bytes may become very many opcodes: they are bounded by the size of the file.
            pickle.limit_operations(_FREE_OPERATIONS + self.origin.limits.inflated_operations * self.origin.source.size)
        value = pickle.load()
        # Set even if the list is empty: `read_others` passes over the members that are here.
        self.trailing_notes[member.name] = pickle.load_following(member.name.removeprefix(self.root))
        return value

    def storage(self, key: str, folder: str = STORAGE_FOLDER) -> Storage:
        """Return the storage of a key; one that no pickle names has bytes as elements.

        Args:
            key: of the storage.
            folder: of the storages, below the root folder.

        Raises:
            CorruptError: it does not exist.
        """
        table = self.context(folder).storages
        if key in table.roots:
            return table.roots[key]
        member = self.zip.members.get(f"{self.root}{folder}{key}")
        if member is None:
            raise CorruptError(f"the archive has no storage {key}", file=self.origin.source.name)
        return table.get(key, UINT8, member.size, "cpu")  # no pickle says a type or a device

    @staticmethod
    def _storage_suffix(folder: str) -> str:
        """Return the suffix of the members with storages in a folder."""
        return ".storage" if folder == PACKAGE_FOLDER else ""

    def _storage_member(self, folder: str, key: Any) -> str:
        """Return the whole name of the member with the storage of a key."""
        return f"{self.root}{folder}{key}{self._storage_suffix(folder)}"

    def _storage_members(self) -> set[str]:
        """Return the whole names of the members whose bytes are the storages named by pickles."""
        members: set[str] = set()
        for folder, context in self._contexts.items():
            members.update(self._storage_member(folder, key) for key in context.storages.roots)
        return members

    def _total_size(self, names: list[str]) -> int:
        """Return the size in bytes of members together, by their names below the root folder."""
        return sum(self.zip.members[self.root + name].size for name in names)


def _locate(
    archive: ZipArchive, folder: str, order: str, suffix: str, key: Any, element: ElementType, nbytes: int
) -> Span:
    """Return where the bytes of a storage are.

    A function, not a method of `PtArchive`: a storage that kept its reader alive would keep the file open.

    Args:
        archive: the archive.
        folder: of the storages, with the root folder before it.
        order: their byte order.
        suffix: of their names.
        key: of the storage.
        element: its type.
        nbytes: its size as the pickle has it; the member may have more bytes.

    Raises:
        TruncatedError: the member has fewer.
        CorruptError: there is no member.
    """
    name = f"{folder}{key}{suffix}"
    if name not in archive.members and not nbytes:  # an empty storage needs no member
        return span_of_bytes(b"", element.itemsize)
    member = archive.member(name)
    if member.size < nbytes:
        raise TruncatedError(
            "a storage has fewer bytes than the pickle says",
            offset=member.header,
            path=name,
            expected=f"{nbytes} bytes",
            found=f"{member.size}",
        )
    source, start = archive.span(name)
    # Each element is two floats of two bytes. A span swaps whole elements, and so would exchange the two.
    if order == "big" and element.name == "complex32":
        return _swapped_halves(source, start, nbytes)
    # The CRC-32 is that of the whole member, so that a part of it cannot be checked; PyTorch writes 0 if its
    # computation is disabled.
    can_be_checked = member.size == nbytes and member.crc != 0
    return Span(source, start, element.itemsize, order, member.crc if can_be_checked else None)


def _without_bytes(_key: Any, element: ElementType, _nbytes: int) -> Span:
    """Return the location of a storage that has no bytes in the archive, whatever the pickle says of its size."""
    return span_of_bytes(b"", element.itemsize)


def _swapped_halves(source: ByteSource, start: int, nbytes: int) -> Span:
    """Return big-endian elements of complex32, pairs of 2-byte floats, as little-endian bytes in memory.

    Args:
        source: has the elements.
        start: offset of their first byte.
        nbytes: number of their bytes.
    """
    if nbytes % 4:
        raise UnsupportedError("a storage of complex32 has an odd number of bytes", offset=start)
    data = bytearray(source.read_exact(start, nbytes, "a storage"))
    # The two bytes of each float change places; real and imaginary part stay in theirs.
    even_bytes = data[::2]
    data[::2] = data[1::2]
    data[1::2] = even_bytes
    return span_of_bytes(bytes(data), 4)


def read_package(archive: PtArchive) -> Any:
    """Read the pickles of an archive of `torch.package`, whose Python source is ignored.

    `FOLDER/NAME.pkl` are pickles, `.data/KEY.storage` the storages that they name, `.data/extern_modules` and
    `.data/python_version` describe how to import the archive. All else is source, text and bytes added by the user.

    Returns:
        The value, if there is one pickle; otherwise a dictionary of values by the names of their members.

    Raises:
        UnsupportedError: it has no pickles.
        FormatError: a pickle is damaged.
    """
    own_members = (VERSION_MEMBER, BYTEORDER_MEMBER)  # of the archive, at the same place as the user's
    names = []
    for name in archive.names():
        if not name.startswith(PACKAGE_FOLDER) and name not in own_members:
            names.append(name)
    pickles = [name for name in names if name.endswith(".pkl")]
    if not pickles:
        raise UnsupportedError(
            "is an archive of torch.package without pickled values",
            expected="a member .pkl",
            found=few(names, longest=60) or "no members",
        )
    values = {name: archive.unpickle(name, PACKAGE_FOLDER) for name in pickles}
    _note_rest_of_package(archive, other_names=[name for name in names if name not in values])
    if len(values) == 1:
        (value,) = values.values()
        return value
    return values


def _note_rest_of_package(archive: PtArchive, other_names: list[str]) -> None:
    """Note what is left out of a package whose pickles were read: other members of the user, and unnamed storages.

    Args:
        archive: the archive.
        other_names: the members of the user that are no pickles.
    """
    count = f"{len(other_names)} member{'s' * (len(other_names) > 1)}"
    archive.note_left_out(f"{count} of the package (source and other files) left out ({{}})", other_names)
    unread = [name for name in archive.unread() if name.endswith(".storage")]
    storages = counted(len(unread), "storage")
    archive.note_left_out(f"{storages} that no pickle names left out: {{}}", unread, level="warning")


# Arrays of objects: numpy pickles their elements after the header, and `numpy.load(allow_pickle=True)` loads them


def judge_array(origin: Origin, source: ByteSource, start: int, size: int) -> None:
    """Note what PyTorch's safe loader refuses in the pickled elements of a `.npy`, if they are pickled.

    Args:
        origin: receives it.
        source: the file.
        start: first byte of the array's file.
        size: of that file, in bytes.

    Raises:
        FormatError: it is damaged.
    """
    end = start + size
    descr, _, _, elements_start = read_header(source, start, end, source.name)
    if _may_hold_objects(descr):  # a pickle instead of elements
        # Both are read for the names in them, which `origin` collects.
        pickle = Unpickler(source, elements_start, end, PickleContext(origin))
        pickle.load()
        pickle.load_following()


def _may_hold_objects(descr: Any) -> bool:
    """Return whether numpy, or another release of it, may find Python objects in elements of a described type."""
    # All names of objects have this letter: `O`, `|O`, `object`. Of others that have it, as `float32`, numpy decides.
    if isinstance(descr, str) and "o" not in descr.lower():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that numpy will drop
        try:
            return bool(np.lib.format.descr_to_dtype(descr).hasobject)
        except Exception:  # numpy raises anything for what it does not know, and another release may know it
            return True
