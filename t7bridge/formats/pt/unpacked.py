"""PyTorch's archives that somebody has unpacked: a folder with `data.pkl`, its storages in `data/`, and `version`.

PyTorch itself reads no such folder. Here it is an archive whose members are files, in the order of their names: its
source is their bytes in a row, and everything else reads it as it reads the archive that it was.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import accumulate

from ...data import define
from ...errors import CorruptError, T7BridgeError
from ...io.source import ByteSource, DerivedSource, PathLike
from ...limits import DEFAULT_LIMITS, Limits
from ..table import is_unpacked
from .members import (
    ALIGNMENT_MEMBER,
    BYTEORDER_MEMBER,
    CONSTANTS_MEMBER,
    DATA_MEMBER,
    FORMAT_MEMBER,
    MODEL_MEMBER,
    ROOT_FOLDER,
    STORAGE_FOLDER,
    VERSION_MEMBER,
)
from .zip import STORED, Member, ZipArchive

_TOP_FILES = {
    *(DATA_MEMBER, CONSTANTS_MEMBER, "attributes.pkl", "bytecode.pkl", "traced_inputs.pkl"),
    *(VERSION_MEMBER, BYTEORDER_MEMBER, FORMAT_MEMBER, ALIGNMENT_MEMBER, MODEL_MEMBER),
}
"""Files of an archive; others of the folder are not its."""
_TOP_FOLDERS = ("data", ".data", "constants", "code", "extra", "tensors", "traced_inputs", ".t7bridge")
_MOST_OPEN_FILES = 32
"""Files that are kept open: the storages of a checkpoint may be more than a process can open."""


def folder_of(path: str) -> str:
    """Return the folder of an unpacked archive that a path names, itself or by its `data.pkl`; empty otherwise."""
    folder = path
    if os.path.basename(path) == DATA_MEMBER:
        folder = os.path.dirname(path) or os.curdir
    elif not os.path.isdir(path):
        return ""
    try:
        return folder if is_unpacked(os.listdir(folder)) else ""
    except (OSError, ValueError):  # it is not a folder
        return ""


def unpacked_files(path: str) -> list[str]:
    """Return the paths of the files of an unpacked archive, by that of its folder or its `data.pkl`."""
    return list(_member_paths(folder_of(path)))


@define(frozen=True)
class _File:
    """A file of the folder.

    Attributes:
        name: below the folder, with slashes.
        path: where it is.
        size: in bytes, when the folder was opened.
    """

    name: str
    path: str
    size: int


class FolderSource(DerivedSource):
    """The files of an unpacked archive, their bytes in a row. Of the files, which may be thousands, few are open.

    Args:
        folder: its path.
        limits: bound the number of files.

    Attributes:
        files: in the order of their bytes.
        starts: the offset of each file's first byte in the row; an empty file has that of the next.

    Raises:
        T7BridgeError: a file cannot be read.
        LimitError: the folder has too many files.
    """

    def __init__(self, folder: PathLike, limits: Limits = DEFAULT_LIMITS) -> None:
        self.files: list[_File] = []
        name = os.fspath(folder)
        for path in _member_paths(name):
            if len(self.files) == limits.archive_members:
                raise limits.exceeded("archive_members", "the folder has too many files", file=name)
            # Opening registers it as an input, which no output replaces.
            with ByteSource.from_path(path) as file:
                name_in_folder = os.path.relpath(path, name).replace(os.sep, "/")
                self.files.append(_File(name_in_folder, path, file.size))
        *self.starts, size = accumulate((file.size for file in self.files), initial=0)
        self._open: OrderedDict[int, ByteSource] = OrderedDict()
        """The files that are open, by their places in `files`; the one used last is at the end."""
        self._is_closed = False
        self._lock = threading.Lock()
        """Held while a file is read: otherwise another thread could close it to open its own."""
        super().__init__(name, size)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill memory from an offset on, from several files if needed; return the number of bytes, fewer at the end."""
        done = 0
        # Of files without bytes that begin at one offset, the last is the one that may have some.
        number = bisect_right(self.starts, offset) - 1
        while done < len(buffer) and number < len(self.files):
            offset_in_file = offset + done - self.starts[number]
            count = min(len(buffer) - done, self.files[number].size - offset_in_file)
            if count > 0:  # not of an empty file, or after the end of the last one
                with self._lock:
                    read = self._file(number).read_into(offset_in_file, buffer[done : done + count])
                done += read
                if read < count:  # the file has become shorter
                    break
            number += 1
        return done

    def _file(self, number: int) -> ByteSource:
        """Return a file by its place in `files`, opened again if it was closed for others.

        Raises:
            CorruptError: its size has changed.
            T7BridgeError: the source is closed.
        """
        if self._is_closed:
            raise T7BridgeError(
                "has been closed", file=self.name, hint="Keep the reader open while its storages are read."
            )
        file = self._open.pop(number, None)
        if file is None:
            expected = self.files[number]
            file = ByteSource.from_path(expected.path)
            if file.size != expected.size:
                raise CorruptError("a file of the folder has changed", file=expected.path)
            if len(self._open) == _MOST_OPEN_FILES:
                _number, least_recent = self._open.popitem(last=False)
                least_recent.close()
        # At the end, as the one that was used last.
        self._open[number] = file
        return file

    def close(self) -> None:
        """Close the files. Storages whose bytes are in them can no longer be read."""
        self._is_closed = True
        while self._open:
            _number, file = self._open.popitem()
            file.close()


def _member_paths(folder: str) -> Iterator[str]:
    """Yield the paths of the files that PyTorch wrote, those of `data.pkl` and its storages among them."""
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and name in _TOP_FILES:
            yield path
        elif name in _TOP_FOLDERS and os.path.isdir(path):
            yield from _below(path, name)


def _below(folder: str, top: str) -> Iterator[str]:
    """Yield the paths of the members below a folder of the top level, in the order of their names.

    Args:
        folder: its path.
        top: its name.
    """
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            # Beside a `data.pkl` of other programs is a `data` with anything; the keys of storages are numbers.
            if f"{top}/" != STORAGE_FOLDER or name.isdecimal():
                path = os.path.join(place, name)
                if os.path.isfile(path):
                    yield path


class FolderArchive(ZipArchive):
    """The files of an unpacked archive as its members. They have no checksums.

    Args:
        source: the folder.
        limits: resource limits.
    """

    source: FolderSource

    def _directory(self) -> dict[str, Member]:
        """Return by name the files of the folder, as stored members of an archive, in a root folder as PyTorch's."""
        members: dict[str, Member] = {}
        for file, start in zip(self.source.files, self.source.starts):
            name = f"{ROOT_FOLDER}/{file.name}"
            members[name] = Member(
                name,
                method=STORED,
                flags=0,
                crc=0,  # none is known
                packed=file.size,
                size=file.size,
                header=start,
                limit=start + file.size,
            )
        return members

    def _start(self, member: Member) -> int:
        """Return the offset of a file's first byte in the source. Files have no local header before it."""
        return member.header

    def crc_of(self, name: str) -> int:
        """Return the CRC-32 of a file's bytes, computed now, where an archive has it in its directory."""
        source, offset = self.span(name)
        return self._computed_crc(self.member(name), source, offset)
