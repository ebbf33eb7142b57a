"""File systems of inputs and outputs: local paths, and all those of fsspec. The only importer of fsspec.

A place is a path or a URL. Local paths are used directly. Everything else is copied to or from a file in a temporary
folder, since readers need random access and writers need a whole file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from ..data import define
from ..errors import T7BridgeError, UnsupportedError, WriteError
from ..io.disk import temporary_name

READ_ONLY = ("zip", "tar", "http", "https")
WHOLE_OBJECTS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "memory")
"""File systems on which an object appears whole or not at all, so that no temporary name is needed."""
_AT_ONCE = 32
_HEAD_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


@define(frozen=True)
class Entry:
    """A file of a file system.

    Attributes:
        place: its path or URL.
        inside: its path relative to the folder that was listed, with `/`.
        bytes: its size, 0 if unknown.
        stamp: a value that changes when the file does: a time, a tag of the store; empty if there is none.
    """

    place: str
    inside: str
    bytes: int
    stamp: str


def local_path(place: str) -> str | None:
    """Return the path of a local place, `None` for a remote one."""
    if place.startswith("file://"):
        return place.removeprefix("file://")
    return None if "://" in place or "::" in place else place


def protocol_of(place: str) -> str:
    """Return `s3` for `s3://bucket/key`, `zip` for `zip://member::s3://bucket/key`; `file` for a path."""
    return place.split("::")[0].split("://")[0] if local_path(place) is None else "file"


def join(folder: str, inside: str) -> str:
    """Return the place of `inside`, a path with `/`, in a folder."""
    path = local_path(folder)
    return f"{folder.rstrip('/')}/{inside}" if path is None else os.path.join(path, *inside.split("/"))


def connect(place: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises:
        UnsupportedError: fsspec, or the library for this kind of file system, is not installed.
        T7BridgeError: the URL is invalid.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise UnsupportedError("fsspec is not installed", file=place, hint="pip install 't7bridge[zoo]'") from error
    try:
        system, path = url_to_fs(place)
    except ImportError as error:
        hint = "pip install 't7bridge[s3]'" if protocol_of(place).startswith("s3") else ""
        raise UnsupportedError(str(error), file=place, hint=hint) from error
    except Exception as error:  # each file system has errors of its own
        raise T7BridgeError(f"cannot be reached: {_said(error)}", file=place) from error
    return system, path


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def list_remote(place: str) -> tuple[list[Entry], bool]:
    """Return the files at a URL, and whether it is a single file: a folder's, those matching a pattern, or one.

    Raises:
        T7BridgeError: nothing was found, or it cannot be listed.
    """
    system, path = connect(place)
    try:
        magic = any(char in path for char in "*?[") and protocol_of(place) not in ("http", "https")
        if magic:
            found = system.glob(path, detail=True)
            start = path[: min(path.index(char) for char in "*?[" if char in path)].rpartition("/")[0]
        else:
            start = path.rstrip("/")
            is_file = _is_file(system, path)
            found = {path: system.info(path)} if is_file else system.find(path, detail=True)
            if is_file:
                start = path.rpartition("/")[0]
        infos = {name: info for name, info in found.items() if info.get("type") != "directory"}
        _complete(system, infos)
    except Exception as error:  # each file system has errors of its own
        raise T7BridgeError(f"cannot be listed: {_said(error)}", file=place) from error
    if not infos:
        raise T7BridgeError("holds no file", file=place, hint="Give the URL of a file or a folder.")
    entries = [_entry(system, place, start, name, info) for name, info in sorted(infos.items())]
    return entries, not magic and is_file


def _is_file(system: Any, path: str) -> bool:
    """Return whether a path is a file. A web page may be both: a path that ends in `/` is then a folder."""
    if system.protocol in ("http", "https") or "http" in tuple(system.protocol):
        return bool(path.rpartition("/")[2])
    return bool(system.isfile(path))


def _complete(system: Any, infos: dict[str, Any]) -> None:
    """Query what a listing lacks: sizes and times on web servers."""
    poor = [name for name, info in infos.items() if info.get("size") is None]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for name, info in zip(poor, pool.map(system.info, poor)):
            infos[name] = info


def _entry(system: Any, place: str, start: str, name: str, info: dict[str, Any]) -> Entry:
    head, chained, rest = place.partition("::")
    url = f"{head.split('://')[0]}://{name}{chained}{rest}" if chained else system.unstrip_protocol(name)
    stamps = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "Last-Modified", "last_modified", "created", "CRC")
    stamp = next((str(info[key]) for key in stamps if info.get(key) is not None), "")
    inside = name[len(start) :] if name.startswith(start) else name
    return Entry(url, inside.lstrip("/"), info.get("size") or 0, stamp)


def heads(places: Sequence[str], count: int) -> Iterator[bytes | None]:
    """Return the first bytes of each of many files; `None` for one that cannot be read.

    Args:
        places: paths or URLs.
        count: number of bytes of each.
    """
    paths = [path for path in map(local_path, places) if path is not None]
    if len(paths) == len(places):
        yield from (_local_head(path, count) for path in paths)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(lambda place: _head(place, count), places)


def _local_head(path: str, count: int) -> bytes | None:
    try:
        fd = os.open(path, _HEAD_FLAGS)
        try:
            return os.read(fd, count)
        finally:
            os.close(fd)
    except Exception:  # the error is reported when the whole file is read
        return None


def _head(place: str, count: int) -> bytes | None:
    path = local_path(place)
    if path is not None:
        return _local_head(path, count)
    try:
        system, inside = connect(place)
        with system.open(inside, "rb", block_size=1 << 16) as file:
            return bytes(file.read(count))
    except Exception:  # as above
        return None


@contextmanager
def as_local_input(place: str) -> Iterator[str]:
    """Provide the path of a local file with the bytes of `place` during the context.

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
        try:
            system.get_file(inside, copy)
        except Exception as error:  # each file system has errors of its own
            raise T7BridgeError(f"cannot be fetched: {_said(error)}", file=place) from error
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
    with _scratch() as folder:
        copy = os.path.join(folder, place.rpartition("/")[2])
        yield copy
        if os.path.isdir(copy):
            for name in sorted(os.listdir(copy), reverse=True):  # model.pt before the model.py that needs it
                put(os.path.join(copy, name), f"{place}/{name}")
        else:
            put(copy, place)


_made: set[str] = set()


def _make_folder(folder: str) -> None:
    """Make a folder unless it existed when last checked."""
    if folder and folder not in _made:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise WriteError(f"the folder cannot be created: {error.strerror}", file=folder) from error
        _made.add(folder)


@contextmanager
def _scratch() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="t7bridge-zoo-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put(path: str, place: str) -> None:
    """Copy a local file to a URL, where it appears whole or not at all.

    Raises:
        WriteError: the upload fails.
    """
    system, inside = connect(place)
    try:
        if protocol_of(place) in WHOLE_OBJECTS:
            system.put_file(path, inside)
            return
        folder = inside.rpartition("/")[0]
        system.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/{temporary_name()}"
        try:
            system.put_file(path, temporary)
            system.mv(temporary, inside)
        except Exception:
            if system.exists(temporary):
                system.rm_file(temporary)
            raise
    except Exception as error:  # each file system has errors of its own
        raise WriteError(f"cannot be written: {_said(error)}", file=place) from error


def sizes_below(folder: str) -> dict[str, int]:
    """Return the size of every file in a remote folder, by its relative path; empty if the folder does not exist."""
    system, path = connect(folder)
    try:
        found = system.find(path, detail=True)
    except FileNotFoundError:
        return {}
    except Exception as error:  # each file system has errors of its own
        raise T7BridgeError(f"cannot be listed: {_said(error)}", file=folder) from error
    start = path.rstrip("/")
    return {name[len(start) :].lstrip("/"): info.get("size") or 0 for name, info in found.items()}


def fetch(place: str, path: str) -> bool:
    """Copy a remote file to a local one; return whether it existed."""
    system, inside = connect(place)
    try:
        if not system.exists(inside):
            return False
        system.get_file(inside, path)
    except Exception as error:  # each file system has errors of its own
        raise T7BridgeError(f"cannot be fetched: {_said(error)}", file=place) from error
    return True


def check_output(folder: str) -> None:
    """Refuse a place that cannot be written to.

    Raises:
        UnsupportedError: archives and web servers are read-only.
    """
    if protocol_of(folder) in READ_ONLY or "::" in folder:
        raise UnsupportedError(
            "is read-only", file=folder, hint="Write to a folder, or to a bucket of a store such as s3://."
        )


def is_in_memory(places: Iterable[str]) -> bool:
    """Return whether one of the places is in the memory of this process, which other processes cannot access."""
    return any(protocol_of(place) == "memory" for place in places)
