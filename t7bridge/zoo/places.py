"""Places of inputs and outputs: local paths, and URLs of all file systems of fsspec.

Local paths are used directly. Everything else is copied to or from a file in a temporary folder, since readers need
random access and writers need a whole file.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from ..data import define
from ..errors import MissingFileError, ModelError, T7BridgeError, UnsupportedError, WriteError
from ..io.addresses import ARCHIVES, connect, copy_whole, errors_of, head_of, protocol_of, stamp_of
from ..io.output import FileOutput, flush_to_disk, is_temporary, temporary_name
from ..io.platform import READING, flush_file_system
from ..io.source import is_address
from .journal import NAME, Record

READ_ONLY = (*ARCHIVES, "http", "https")
WHOLE_OBJECTS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "memory")
"""File systems on which an object appears whole or not at all, so that no temporary name is needed."""
_AT_ONCE = 32
"""Requests to a store at the same time."""
_STORE_SECONDS = 10.0
"""Least time between two uploads of the journal."""
_STORE_FACTOR = 20
"""Time between two uploads, as a multiple of that which an upload takes."""


def local_path(place: str) -> str | None:
    """Return the path of a place on this machine; `None` for one that only fsspec can reach."""
    path = place.removeprefix("file://")
    return None if is_address(path) else path


def is_in_memory(places: Iterable[str]) -> bool:
    """Return whether one of the places is in the memory of this process, which other processes cannot access."""
    return any(protocol_of(place) == "memory" for place in places)


def join(folder: str, inside: str) -> str:
    """Return the place of `inside`, a path with `/`, in a folder."""
    path = local_path(folder)
    if path is None:
        return f"{folder.rstrip('/')}/{inside}"
    return os.path.join(path, *inside.split("/"))


def real(place: str) -> str:
    """Return the real path of a local place, also in fsspec's notation (`local://`); the URL of a remote one.

    A URL is without slashes at its ends, so that equal places are equal texts.
    """
    path = local_path(place.replace("local://", "file://", 1))
    if path is not None:
        return os.path.realpath(path)
    scheme, mark, rest = place.partition("://")
    return f"{scheme}{mark}{rest.strip('/')}"


def identity(place: str) -> Hashable:
    """Return a value that is equal for two names of one place only: device and inode, or the URL.

    `None` for a local file that does not exist.
    """
    path = real(place)
    if local_path(path) is None:
        return path
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def is_inside(place: str, folders: set[Hashable], outside_of: Hashable = None) -> bool:
    """Return whether a place is one of some folders, or inside one.

    Args:
        place: path or URL.
        folders: identities of the folders.
        outside_of: identity of a folder in them that does not count, nor what is in it; `None` for none.
    """
    path = real(place)
    while True:
        folder = identity(path)  # `None`, which is in no set of these, if it does not exist yet
        if folder is not None and folder == outside_of:
            return False
        if folder in folders:
            return True
        parent = os.path.dirname(path)
        # The root of a file system, a relative name, or what is left of a URL such as `s3://bucket`.
        if parent in (path, "") or parent.endswith(":/"):
            return False
        path = parent


# Stores


def put(path: str, place: str) -> None:
    """Copy a local file to a URL, where it appears whole or not at all.

    Args:
        path: of the local file.
        place: the URL.

    Raises:
        WriteError: the upload fails.
    """
    system, inside = connect(place)
    with errors_of(place, "written", WriteError):
        if protocol_of(place) in WHOLE_OBJECTS:
            system.put_file(path, inside)
            return
        # Uploaded under another name and renamed, so that a file of this name is always whole.
        folder, _, _ = inside.rpartition("/")
        system.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/{temporary_name()}"
        try:
            system.put_file(path, temporary)
            system.mv(temporary, inside)
        except BaseException:
            if system.exists(temporary):
                system.rm_file(temporary)
            raise


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a new temporary folder, which is removed when it is closed, or no longer used."""
    return tempfile.TemporaryDirectory(prefix="t7bridge-zoo-", ignore_cleanup_errors=True)


@contextmanager
def as_local_input(place: str, *, may_be_folder: bool = False) -> Iterator[str]:
    """Provide the path of a local file, or folder, with the bytes of `place` during the context.

    Args:
        place: path or URL.
        may_be_folder: whether a store is asked what it is, by a request; otherwise it is a file.

    Raises:
        T7BridgeError: it cannot be fetched.
    """
    path = local_path(place)
    if path is not None:
        yield path
        return
    system, inside = connect(place)
    with _scratch() as folder:
        copy = os.path.join(folder, "input")
        with errors_of(place, "fetched"):
            if may_be_folder and system.isdir(inside):
                system.get(inside.rstrip("/") + "/", copy + "/", recursive=True)
            else:
                copy_whole(system, inside, copy, place)
        yield copy


@contextmanager
def as_local_output(place: str) -> Iterator[str]:
    """Provide a path to write the file or folder `place` to; it is uploaded when the context ends without an error.

    Raises:
        WriteError: the upload fails.
    """
    path = local_path(place)
    if path is not None:
        _make_folder(os.path.dirname(path))
        yield path
        return
    with scratch_output(place) as copy:
        yield copy
        if os.path.isdir(copy):
            for name in sorted(os.listdir(copy), reverse=True):  # model.pt before the model.py that needs it
                put(os.path.join(copy, name), f"{place}/{name}")
        else:
            put(copy, place)


@contextmanager
def scratch_output(place: str) -> Iterator[str]:
    """Provide a path in a temporary folder with the name of `place`, where nothing is yet."""
    with _scratch() as folder:
        # A URL has slashes, a path of Windows backslashes.
        yield os.path.join(folder, re.split(r"[/\\]", place)[-1])


def _make_folder(folder: str) -> None:
    """Make a folder, and those around it, unless it exists; an empty path is the working folder.

    Raises:
        WriteError: it cannot be created.
    """
    if not folder or os.path.isdir(folder):
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise WriteError(f"the folder cannot be created: {error.strerror}", file=folder) from error


def heads(places: Sequence[str], count: int) -> Iterator[bytes | None]:
    """Return the first bytes of each of many files; `None` for one that cannot be read.

    Args:
        places: paths or URLs.
        count: number of bytes of each.
    """
    if all(local_path(place) is not None for place in places):
        yield from (_head(place, count) for place in places)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(lambda place: _head(place, count), places)


def _head(place: str, count: int) -> bytes | None:
    """Return the first `count` bytes of a file at a path or URL; `None` if it cannot be read."""
    path = local_path(place)
    try:
        if path is None:
            return head_of(place, count)
        fd = os.open(path, READING)
        try:
            return os.read(fd, count)
        finally:
            os.close(fd)
    except Exception:  # the error is reported when the whole file is read
        return None


def head_if_exists(place: str, count: int) -> bytes | None:
    """Return the first `count` bytes of a file at a path or URL; `None` if there is no file.

    Raises:
        OSError: what is at the path cannot be read.
        T7BridgeError: what is at the URL cannot be read.
    """
    path = local_path(place)
    try:
        if path is None:
            with errors_of(place, "read"):
                return head_of(place, count)
        with open(path, "rb") as file:
            return file.read(count)
    except (FileNotFoundError, MissingFileError):
        return None


# Lists of inputs


LEFT_OUT = {
    "hidden": ("hidden file or folder", "hidden files and folders"),
    "broken_links": ("broken link", "broken links"),
    "folder_links": ("link to a folder", "links to folders"),
    "special": ("special file", "special files"),
    "not_included": ("file without a pattern of --include", "files without a pattern of --include"),
}
"""What is not an input although it is in a source: the keys of reports, and what one and several are called."""


@define(frozen=True)
class Listing:
    """The files of a source.

    Attributes:
        name: of the source: the last part of its path.
        records: the files, named relative to it.
        is_single_file: whether the source is a file itself, and not a folder, a pattern or an archive.
    """

    name: str
    records: Iterable[Record]
    is_single_file: bool = False


def list_source(source: str, output: str, left_out: Counter[str]) -> Listing:
    """Return the files of a source.

    Args:
        source: path of a file or folder, a pattern, or a URL of one.
        output: the output folder, whose files are left out; empty for none.
        left_out: counts what else is left out, by the keys of `LEFT_OUT`, while the records are listed.

    Raises:
        T7BridgeError: it does not exist, or cannot be listed: at once, or while the records are listed.
    """
    output_path = real(output) if output else ""
    path = local_path(source)
    if path is None:
        return _listing_of_url(source, output_path)
    absolute_path = os.path.abspath(path)
    start = os.path.abspath(_fixed_part(path))  # the path, or of a pattern the folder before its first wildcard
    name = os.path.basename(start)
    if os.path.isdir(path):
        return Listing(name, _walk(absolute_path, absolute_path, output_path, left_out))
    if os.path.exists(path):
        record = _local_record(absolute_path, os.path.dirname(absolute_path))
        return Listing(name, [record], is_single_file=True)
    if os.path.islink(path):
        raise T7BridgeError("is a link to a file that does not exist", file=path)
    return Listing(name, _matching(path, start, output_path, left_out))  # a pattern, or no file


def _listing_of_url(source: str, output_path: str) -> Listing:
    """Return the files at a URL, but for those in the output folder.

    Args:
        source: the URL of a file or folder, or a pattern of such, also in an archive.
        output_path: URL or real path of the output folder; empty for none.
    """
    records, is_file = _list_remote(source)
    if output_path:
        records = [record for record in records if not real(record.place).startswith(f"{output_path}/")]
    # `zip://*.t7::s3://bucket/models.zip` is called `models.zip`, and `s3://bucket/models/` is `models`.
    container = source.split("::")[-1].rstrip("/")
    _, _, name = container.rpartition("/")
    return Listing(name, records, is_file)


def _matching(path: str, start: str, output_path: str, left_out: Counter[str]) -> Iterator[Record]:
    """Yield the files that match a pattern, and those below folders that do.

    Args:
        path: the pattern.
        start: the folder before its first wildcard, to which the names of the files are relative.
        output_path: real path of the output folder, which is left out; empty for none.
        left_out: counts what else is left out.

    Raises:
        T7BridgeError: no file does.
    """
    has_records = False
    pattern = os.path.abspath(path)
    listed: set[str] = set()
    """The folders whose files were yielded. A folder matches before what is in it."""
    for match in glob.iglob(pattern, recursive=True):
        if _is_below(match, output_path) or not listed.isdisjoint(_folders_around(match)):
            continue
        records: Iterable[Record]
        if not os.path.isdir(match):
            records = _only_file(match, start, left_out)
        elif _matches_all_below(pattern):  # its files match by themselves
            records = ()
        else:
            listed.add(match)
            records = _walk(match, start, output_path, left_out)
        for record in records:
            has_records = True
            yield record
    if not has_records:
        raise T7BridgeError("no such file or folder", file=path)


def _is_below(path: str, output_path: str) -> bool:
    """Return whether a path is the output folder, or in it.

    Args:
        path: the path.
        output_path: real path of the output folder; empty for none.
    """
    # A separator ends both, so that an output folder `out` has itself in it, but not `out2`.
    return bool(output_path) and f"{os.path.realpath(path)}{os.sep}".startswith(f"{output_path}{os.sep}")


def _only_file(path: str, start: str, left_out: Counter[str]) -> list[Record]:
    """Return the record of a file, named relative to the folder `start`; none for what is no file, which is counted."""
    if os.path.isfile(path):
        return [_local_record(path, start)]
    left_out["special" if os.path.exists(path) else "broken_links"] += 1
    return []


def _matches_all_below(pattern: str) -> bool:
    """Return whether a pattern matches all files in a folder that it matches, too."""
    *_, before_last, last = ("", *pattern.split(os.sep))
    return last == "**" or (before_last == "**" and last == "*")


def _folders_around(path: str) -> Iterator[str]:
    """Yield the folders that contain a path, the innermost first."""
    folder = os.path.dirname(path)
    while folder != path:
        yield folder
        path = folder
        folder = os.path.dirname(path)


def folder_of(source: str) -> str | None:
    """Return the folder or URL below which a source has its files; `None` for a single local file."""
    path = local_path(source)
    if path is None:
        wildcard = _wildcard_at(source)
        if wildcard is None:
            return source
        return source[:wildcard].rpartition("/")[0]
    if os.path.isfile(path):
        return None
    return _fixed_part(path)


def _wildcard_at(path: str) -> int | None:
    """Return the position of the first wildcard (`*`, `?`, `[`) of a pattern; `None` if there is none."""
    return min((path.index(char) for char in "*?[" if char in path), default=None)


def _fixed_part(path: str) -> str:
    """Return the folder of the first wildcard of a pattern; the path itself if there is none."""
    if os.path.lexists(path) or not glob.has_magic(path):
        return path
    return os.path.dirname(path[: _wildcard_at(path)]) or os.curdir


def _local_record(path: str, start: str) -> Record:
    """Return the record of a local file, named relative to the folder `start`.

    Raises:
        T7BridgeError: it is a device, a named pipe or a socket.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise T7BridgeError("is not a regular file", file=path, hint="Give the path of a file.")
    name = os.path.relpath(path, start).replace(os.sep, "/")
    return Record(name=name, place=path, bytes=status.st_size, stamp=str(status.st_mtime_ns))


def _walk(folder: str, start: str, output_path: str, left_out: Counter[str]) -> Iterator[Record]:
    """Yield regular files below a folder. Links to files are followed; those to folders may be cyclic, and are not.

    Args:
        folder: the folder.
        start: the folder to which the names of the files are relative.
        output_path: real path of the output folder, which is left out; empty for none.
        left_out: counts what else is left out.

    Raises:
        T7BridgeError: a folder cannot be listed.
    """
    stack = [folder]
    while stack:
        current = stack.pop()
        prefix = "" if current == start else os.path.relpath(current, start).replace(os.sep, "/") + "/"
        for item in _items_in(current):
            reason = _reason_left_out(item)
            if reason:
                left_out[reason] += 1
            elif not item.is_dir():
                status = item.stat()
                name = prefix + item.name
                yield Record(name=name, place=item.path, bytes=status.st_size, stamp=str(status.st_mtime_ns))
            elif os.path.realpath(item.path) != output_path:  # a folder that is no link, which has a reason
                stack.append(item.path)


def _items_in(folder: str) -> list[os.DirEntry[str]]:
    """Return what is in a folder.

    Raises:
        T7BridgeError: it cannot be listed.
    """
    try:
        return list(os.scandir(folder))
    except OSError as error:
        raise T7BridgeError(f"cannot be listed: {error.strerror}", file=folder) from error


def _reason_left_out(item: os.DirEntry[str]) -> str:
    """Return the key of `LEFT_OUT` for what is left out of a folder; empty for a folder, a file or a link to one."""
    if item.name.startswith("."):
        return "hidden"
    if item.is_file() or item.is_dir(follow_symlinks=False):
        return ""
    if item.is_dir():
        return "folder_links"
    if item.is_symlink() and not os.path.exists(item.path):
        return "broken_links"
    return "special"


def _list_remote(place: str) -> tuple[list[Record], bool]:
    """Return the files at a URL, by path, and whether it is that of a single file.

    Args:
        place: the URL of a file or folder, or a pattern of such; `zip://*.t7::s3://bucket/models.zip` is one.

    Raises:
        T7BridgeError: there is none, or they cannot be listed.
    """
    system, path = connect(place)
    # In the address of a web page `?` and `*` are no wildcards.
    wildcard = None if protocol_of(place) in ("http", "https") else _wildcard_at(path)
    with errors_of(place, "listed"):
        is_file = wildcard is None and _is_file(system, path)
        infos, start = _infos_and_start(system, path, wildcard, is_file=is_file)
        infos = _infos_of_files(system, infos)
    if not infos:
        raise T7BridgeError("holds no file", file=place, hint="Give the URL of a file or a folder.")
    return [_remote_record(system, place, start, name, info) for name, info in sorted(infos.items())], is_file


def _infos_and_start(
    system: Any, path: str, wildcard: int | None, *, is_file: bool
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return what a file system lists at a path, and the folder to which the names of the files are relative.

    Args:
        system: fsspec's.
        path: in the file system, of a file or folder, or a pattern of such.
        wildcard: the position of the first wildcard of a pattern; `None` if it is none.
        is_file: whether it is the path of a file.
    """
    if wildcard is not None:
        folder_of_wildcard, _, _ = path[:wildcard].rpartition("/")
        return system.glob(path, detail=True), folder_of_wildcard
    if is_file:
        folder_of_file, _, _ = path.rstrip("/").rpartition("/")
        return {path: system.info(path)}, folder_of_file
    return system.find(path, detail=True), path.rstrip("/")


def _infos_of_files(system: Any, infos: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what a file system knows of each file, by its path, without folders; web servers are asked for sizes.

    Args:
        system: fsspec's.
        infos: what it lists of files and folders. Web servers list names only.
    """
    infos_of_files = {name: info for name, info in infos.items() if info.get("type") != "directory"}
    without_size = [name for name, info in infos_of_files.items() if info.get("size") is None]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        infos_of_files |= zip(without_size, pool.map(system.info, without_size))
    return infos_of_files


def _is_file(system: Any, path: str) -> bool:
    """Return whether a path of a file system of fsspec is a file.

    A web address counts as that of a file unless it ends in `/`, as those of folders do by custom: a server does not
    tell what it is.
    """
    # fsspec's `protocol` is a text, or all the names of the file system.
    if system.protocol in ("http", "https") or "http" in tuple(system.protocol):
        return bool(path.rpartition("/")[2])
    return bool(system.isfile(path))


def _remote_record(system: Any, place: str, start: str, name: str, info: dict[str, Any]) -> Record:
    """Return the record of a remote file.

    Args:
        system: fsspec's.
        place: URL of the source.
        start: path of the folder to which the name of the file is relative.
        name: path of the file in the system.
        info: the system's, about the file.
    """
    inner, separator, container = place.partition("::")
    # Only the address of the source tells in which archive the member is.
    if separator:  # a member of an archive, `zip://member::https://host/archive.zip`
        protocol = inner.split("://")[0]
        url = f"{protocol}://{name}::{container}"
    else:
        url = system.unstrip_protocol(name)
    relative_name = name.removeprefix(start).lstrip("/")
    return Record(name=relative_name, place=url, bytes=info.get("size") or 0, stamp=stamp_of(info))


# The output folder


class Writable(Protocol):
    """A file that takes bytes."""

    def write(self, data: bytes, /) -> Any:
        """Append bytes."""


class Folder:
    """An output folder on this machine, or on a mounted file system: its journal, existing and leftover files.

    Args:
        place: its path.
        make: whether to create it if it is missing.

    Attributes:
        place: its absolute path, or its URL.
        journal_path: the local path of the journal.
        has_journal: whether there was one at the beginning of the run.
        was_empty: whether there was nothing else then, so that outputs need not be looked for.

    Raises:
        WriteError: it cannot be created.
    """

    def __init__(self, place: str, *, make: bool) -> None:
        self.place = os.path.abspath(place)
        self.journal_path = os.path.join(self.place, NAME)
        self.has_journal = os.path.exists(self.journal_path)
        names = os.listdir(self.place) if os.path.isdir(self.place) else []
        # Beside a journal, SQLite keeps files whose names begin with its own.
        self.was_empty = all(name.startswith(NAME) for name in names)
        if make:
            try:
                os.makedirs(self.place, exist_ok=True)
            except OSError as error:
                raise WriteError(f"the folder cannot be created: {error.strerror}", file=place) from error

    def files(self, output: str) -> dict[str, int]:
        """Return the size of each file of an output of an earlier run, by its path or URL; empty if there is none.

        It is a file, or a folder without folders in it.
        """
        if self.was_empty:
            return {}  # all that is there now is of this run
        path = join(self.place, output)
        try:
            if not os.path.isdir(path):
                return {path: os.lstat(path).st_size}
            sizes = {entry.path: entry.stat().st_size for entry in os.scandir(path) if entry.is_file()}
        except OSError:
            return {}
        return sizes or {path: 0}  # an empty folder is an existing output, too

    def size(self, output: str) -> int | None:
        """Return the bytes of an existing output, a file or all files of a folder; `None` if there is none."""
        sizes = self.files(output)
        return sum(sizes.values()) if sizes else None

    def sweep(self) -> None:
        """Remove the temporary files that killed workers have left behind."""
        for current, _, names in os.walk(self.place):
            for name in names:
                if is_temporary(name):
                    with contextlib.suppress(FileNotFoundError):  # its writer may not be dead yet
                        os.unlink(os.path.join(current, name))

    def remove(self, outputs: Iterable[str]) -> None:
        """Remove existing outputs of failed inputs, which earlier attempts have written.

        Of a folder only the files that `write_module` writes, and the folder itself if nothing else is in it.
        """
        for output in outputs:
            path = join(self.place, output)
            if not os.path.isdir(path):
                with contextlib.suppress(OSError):  # most have none
                    os.unlink(path)
                continue
            # Here, since it loads all that writes modules, which few runs need.
            from ..tools.write_module import MODULE_FILES

            for name in MODULE_FILES:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(path, name))
            with contextlib.suppress(OSError):
                os.rmdir(path)

    def flush_outputs(self, outputs: Iterable[str]) -> None:
        """Wait until outputs are on the disk, so that a power cut cannot undo what the journal says of them.

        Raises:
            WriteError: they cannot be written.
        """
        paths = [join(self.place, output) for output in outputs]
        folders = [folder for folder in set(map(os.path.dirname, paths)) if os.path.isdir(folder)]
        try:
            # One folder of each file system: links may lead to several.
            disks = {os.stat(folder).st_dev: folder for folder in folders}
            is_flushed = all(flush_file_system(folder) for folder in disks.values())
            if not is_flushed:  # the system cannot flush a file system
                for path in paths:
                    flush_to_disk(path)
        except OSError as error:
            raise WriteError(f"outputs cannot be flushed to the disk: {error.strerror}", file=self.place) from error

    def store_journal(self, *, now: bool = True) -> None:
        """Copy the journal to where the outputs are; here it is there already.

        Args:
            now: whether to copy it at once; otherwise only if the last copy is old.
        """

    @contextmanager
    def writer(self, name: str) -> Iterator[Writable]:
        """Provide a file next to the outputs, which replaces an older one when the context ends without an error."""
        path = join(self.place, name)
        _make_folder(os.path.dirname(path))
        with FileOutput(path, force=True, sync=True) as output:
            yield output

    def write_if_changed(self, name: str, data: bytes) -> None:
        """Write a small file next to the outputs, unless the same one is there: most pages of a report are."""
        with contextlib.suppress(OSError), open(join(self.place, name), "rb") as file:
            if file.read() == data:
                return
        with self.writer(name) as output:
            output.write(data)

    def remove_file(self, name: str) -> bool:
        """Remove a file next to the outputs; return whether there was one."""
        try:
            os.unlink(join(self.place, name))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Remove temporary files, of which a folder on this machine has none."""


class RemoteFolder(Folder):
    """An output folder in a store. The journal is a local copy, uploaded from time to time.

    Args:
        place: its URL; a store has no empty folders, so that there is nothing to create.

    Raises:
        UnsupportedError: the place is read-only, or a library is not installed.
        T7BridgeError: it cannot be listed.
    """

    def __init__(self, place: str) -> None:
        if protocol_of(place) in READ_ONLY or "::" in place:
            raise UnsupportedError(
                "is read-only", file=place, hint="Write to a folder, or to a bucket of a store such as s3://."
            )
        self.place = place.rstrip("/")
        self._system, self._path = connect(self.place)
        self._sizes: dict[str, int] = {}
        """The size of each file that there was at the beginning of the run, by its name in the folder."""
        self._inside: dict[str, list[str]] = {}
        """The names of those directly in each subfolder, by its path in the folder."""
        self._list()
        self.has_journal = NAME in self._sizes
        self.was_empty = not set(self._sizes) - {NAME}
        self._scratch = _scratch()
        self.journal_path = os.path.join(self._scratch.name, NAME)
        if self.has_journal:
            with errors_of(f"{self.place}/{NAME}", "fetched"):
                self._system.get_file(f"{self._path}/{NAME}", self.journal_path)
        self._due = 0.0
        """When the journal is to be uploaded again, on the clock of `time.monotonic`."""

    def _list(self) -> None:
        """Note the files in the folder in `_sizes` and `_inside`: no files for a folder that is missing."""
        with errors_of(self.place, "listed"), contextlib.suppress(FileNotFoundError):
            self._system.invalidate_cache()  # fsspec's, of an earlier run in this process
            length_of_folder = len(self._path.rstrip("/"))
            for path, info in self._system.find(self._path, detail=True).items():
                name = path[length_of_folder:].lstrip("/")
                folder, _, _ = name.rpartition("/")
                self._sizes[name] = info.get("size") or 0
                self._inside.setdefault(folder, []).append(name)

    def files(self, output: str) -> dict[str, int]:
        """Return the size of each file of an output that existed when the run began, by its URL; empty if none did."""
        names = [output] if output in self._sizes else self._inside.get(output, [])
        return {f"{self.place}/{name}": self._sizes[name] for name in names}

    def _delete(self, name: str) -> None:
        """Delete a file, by its name in the folder."""
        with contextlib.suppress(Exception):  # it may be gone already
            self._system.rm_file(f"{self._path}/{name}")

    def sweep(self) -> None:
        """Delete the temporary files that earlier runs have left behind."""
        for name in self._sizes:
            if is_temporary(name.rpartition("/")[2]):
                self._delete(name)

    def remove(self, outputs: Iterable[str]) -> None:
        """Remove existing outputs of failed inputs: those of earlier runs, as a failed input uploads none."""
        for output in outputs:
            for place in self.files(output):
                self._delete(place.removeprefix(f"{self.place}/"))

    def flush_outputs(self, outputs: Iterable[str]) -> None:
        """Do nothing: what a store has accepted is durable."""

    def store_journal(self, *, now: bool = True) -> None:
        """Upload the journal: at once if `now` is set, else so rarely that it takes a twentieth of the time at most."""
        began = time.monotonic()
        if now or began > self._due:
            put(self.journal_path, f"{self.place}/{NAME}")
            stored = time.monotonic()
            self._due = stored + max(_STORE_SECONDS, _STORE_FACTOR * (stored - began))

    @contextmanager
    def writer(self, name: str) -> Iterator[Writable]:
        """Provide a local file, which is uploaded under a name when the context ends without an error."""
        path = os.path.join(self._scratch.name, os.path.basename(name))
        with open(path, "wb") as file:
            yield file
        put(path, f"{self.place}/{name}")
        os.unlink(path)

    def write_if_changed(self, name: str, data: bytes) -> None:
        """Write a small file next to the outputs, also an unchanged one: to compare it would cost a request, too."""
        with self.writer(name) as output:
            output.write(data)

    def remove_file(self, name: str) -> bool:
        """Delete a file next to the outputs if it was there when the run began; return whether it was."""
        if name not in self._sizes:
            return False
        self._delete(name)
        return True

    def close(self) -> None:
        """Remove the temporary folder, with the local copy of the journal."""
        self._scratch.cleanup()


def open_folder(output: str, sources: Sequence[str], *, make: bool = True) -> Folder:
    """Return the output folder at a path or URL; nothing is written into a source.

    Args:
        output: path or URL.
        sources: paths, patterns and URLs of the inputs.
        make: whether to create a missing folder.

    Raises:
        ModelError: the folder is a source, or a folder of one with files of its own.
        UnsupportedError: the place is read-only, or a library is not installed.
        WriteError: the folder cannot be created.
    """
    roots = roots_of(sources)
    if identity(output) in roots:
        raise ModelError("the output folder is a source too", hint="Give a folder of its own with -o.")
    path = local_path(output)
    folder = RemoteFolder(output) if path is None else Folder(path, make=make)
    has_foreign_files = not folder.has_journal and not folder.was_empty
    if has_foreign_files and is_inside(output, roots):
        folder.close()
        raise ModelError(
            "the output folder is a part of a source, with files of its own", file=output,
            hint="Give a new folder, or an empty one, with -o.",
        )  # fmt: skip
    return folder


def roots_of(sources: Sequence[str]) -> set[Hashable]:
    """Return the identities of the folders below which sources have their files."""
    folders = [folder for folder in map(folder_of, sources) if folder is not None]
    return {identity(folder) for folder in folders} - {None}
