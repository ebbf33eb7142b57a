"""The output folder: the journal in it, what is there already, what is left over, and how bytes get to the disk."""

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
        """Bytes of an output as it is there, `None` where it is not."""

    def sweep(self) -> None:
        """Remove what killed workers left behind."""

    def settle(self, outputs: Iterable[str]) -> None:
        """Wait until outputs are on the disk.

        Raises:
            WriteError: they cannot be put there.
        """

    def keep_journal(self, *, last: bool) -> None:
        """See to it that the journal is in the folder; now if it is the last time, else when it is time to."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file beside the outputs, in place of an older one."""

    def close(self) -> None:
        """Remove what was only needed meanwhile."""


class LocalFolder:
    """An output folder on this machine, or on a file system that is mounted here."""

    def __init__(self, path: str, *, make: bool) -> None:
        self.place = os.path.abspath(path)
        self.journal_path = os.path.join(self.place, NAME)
        self._was_empty = not os.path.isdir(self.place) or not os.listdir(self.place)
        if make:
            try:
                os.makedirs(self.place, exist_ok=True)
            except OSError as error:
                raise WriteError(f"the folder cannot be made: {error.strerror}", file=path) from error

    def size(self, output: str) -> int | None:
        """See `Folder`; in a folder that was empty there is nothing as long as it is asked."""
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
            raise WriteError(f"outputs cannot be put on the disk: {error.strerror}", file=self.place) from error

    def keep_journal(self, *, last: bool) -> None:
        """It is there."""

    def write(self, name: str, data: bytes) -> None:
        """See `Folder`."""
        with FileOutput(os.path.join(self.place, name), force=True, sync=True) as output:
            output.write(data)

    def close(self) -> None:
        """Nothing to remove."""


class RemoteFolder:
    """An output folder in a store. The journal is worked on in a copy here, which goes there from time to time."""

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
        """See `Folder`; as it was when the run began."""
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
        """See `Folder`. Copying takes a twentieth of the time at most."""
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
    """The output folder at a path or URL.

    Args:
        place: path or URL.
        make: whether a folder is made where there is none.

    Raises:
        UnsupportedError: nothing can be written there, or a library is not installed.
        WriteError: the folder cannot be made.
    """
    path = local_path(place)
    return RemoteFolder(place) if path is None else LocalFolder(path, make=make)
