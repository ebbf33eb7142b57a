"""The output folder: its journal, existing and leftover files, and flushing to the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from typing import Protocol

from ..errors import WriteError
from ..io.disk import flush_file_system, flush_to_disk, is_temporary
from ..io.output import FileOutput
from .filesystems import check_output, fetch, join, local_path, put, sizes_below
from .journal import NAME

_SHARE = 20


class Folder(Protocol):
    """An output folder.

    Attributes:
        place: its path or URL.
        journal_path: the path of the journal.
    """

    place: str
    journal_path: str

    def size(self, output: str) -> int | None:
        """Return the size of an existing output, `None` if it is missing."""

    def sweep(self) -> None:
        """Remove leftovers of killed workers."""

    def settle(self, outputs: Iterable[str]) -> None:
        """Wait until outputs are on the disk.

        Raises:
            WriteError: they cannot be written.
        """

    def keep_journal(self, *, last: bool) -> None:
        """Upload the journal if it is due, or `last` is set."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file next to the outputs, replacing an older one."""

    def close(self) -> None:
        """Remove temporary files."""


class LocalFolder:
    """An output folder on this machine, or on a mounted file system."""

    def __init__(self, path: str, *, make: bool) -> None:
        self.place = os.path.abspath(path)
        self.journal_path = os.path.join(self.place, NAME)
        self._was_empty = not os.path.isdir(self.place) or not os.listdir(self.place)
        if make:
            try:
                os.makedirs(self.place, exist_ok=True)
            except OSError as error:
                raise WriteError(f"the folder cannot be created: {error.strerror}", file=path) from error

    def size(self, output: str) -> int | None:
        """See `Folder`; a folder that was empty at the start has no outputs."""
        if self._was_empty:
            return None
        path = join(self.place, output)
        try:
            if not os.path.isdir(path):
                return os.lstat(path).st_size
            return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
        except OSError:
            return None

    def sweep(self) -> None:
        """See `Folder`."""
        for current, _, names in os.walk(self.place):
            for name in names:
                if is_temporary(name):
                    os.unlink(os.path.join(current, name))

    def settle(self, outputs: Iterable[str]) -> None:
        """See `Folder`. Links may lead to several file systems."""
        paths = [join(self.place, output) for output in outputs]
        folders = [folder for folder in set(map(os.path.dirname, paths)) if os.path.isdir(folder)]
        try:
            disks = {os.stat(folder).st_dev: folder for folder in folders}
            if all(flush_file_system(folder) for folder in disks.values()):
                return
            for path in paths:
                flush_to_disk(path)
        except OSError as error:
            raise WriteError(f"outputs cannot be flushed to the disk: {error.strerror}", file=self.place) from error

    def keep_journal(self, *, last: bool) -> None:
        """Do nothing: it is in place."""

    def write(self, name: str, data: bytes) -> None:
        """See `Folder`."""
        with FileOutput(os.path.join(self.place, name), force=True, sync=True) as output:
            output.write(data)

    def close(self) -> None:
        """Do nothing."""


class RemoteFolder:
    """An output folder in a store. The journal is a local copy, uploaded from time to time."""

    def __init__(self, place: str) -> None:
        check_output(place)
        self.place = place.rstrip("/")
        self._scratch = tempfile.mkdtemp(prefix="t7bridge-zoo-")
        self.journal_path = os.path.join(self._scratch, NAME)
        self._sizes = sizes_below(self.place)
        if NAME in self._sizes:
            fetch(f"{self.place}/{NAME}", self.journal_path)
        self._pause, self._kept = 0.0, time.monotonic()

    def size(self, output: str) -> int | None:
        """See `Folder`; as of the beginning of the run."""
        inside = [size for name, size in self._sizes.items() if name.startswith(output + "/")]
        return sum(inside) if inside else self._sizes.get(output)

    def sweep(self) -> None:
        """See `Folder`."""
        from .filesystems import connect

        for name in [name for name in self._sizes if is_temporary(name.rpartition("/")[2])]:
            system, inside = connect(f"{self.place}/{name}")
            system.rm_file(inside)

    def settle(self, outputs: Iterable[str]) -> None:
        """Do nothing: what a store has accepted is durable."""

    def keep_journal(self, *, last: bool) -> None:
        """See `Folder`. Copying takes at most a twentieth of the time."""
        began = time.monotonic()
        if last or began - self._kept > self._pause:
            put(self.journal_path, f"{self.place}/{NAME}")
            self._kept = time.monotonic()
            self._pause = max(10.0, _SHARE * (self._kept - began))

    def write(self, name: str, data: bytes) -> None:
        """See `Folder`."""
        path = os.path.join(self._scratch, name)
        with open(path, "wb") as file:
            file.write(data)
        put(path, f"{self.place}/{name}")

    def close(self) -> None:
        """See `Folder`."""
        shutil.rmtree(self._scratch, ignore_errors=True)


def open_folder(place: str, *, make: bool = True) -> Folder:
    """Return the output folder at a path or URL.

    Args:
        place: path or URL.
        make: whether to create a missing folder.

    Raises:
        UnsupportedError: the place is read-only, or a library is not installed.
        WriteError: the folder cannot be created.
    """
    path = local_path(place)
    return RemoteFolder(place) if path is None else LocalFolder(path, make=make)
