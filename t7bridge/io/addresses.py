"""Addresses of files: the URLs of all file systems that fsspec knows. The only importer of fsspec."""

from __future__ import annotations

import re
import tempfile
from _thread import allocate_lock
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import MissingFileError, T7BridgeError, TruncatedError, UnsupportedError

ARCHIVES = ("zip", "tar", "libarchive")
"""File systems whose files are members of an archive, which cannot be read by ranges where they are compressed."""
BLOCK_BYTES = 1 << 14
_MOST_BLOCKS, _KEPT_BLOCKS = 512, 1024
"""Blocks that one request asks for at most, 8 MiB, and that are kept."""
_MOST_RUNS = 8
_STAMPS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "Last-Modified", "last_modified", "created", "CRC")
_CHECK = "Check the address and the connection; or download the file, and give its path."


def protocol_of(address: str) -> str:
    """Return `s3` for `s3://bucket/key`, `zip` for `zip://member::s3://bucket/key`; nothing for a path."""
    found = re.match(r"([\w+.-]{2,}):[:/]", address)
    return found[1] if found else ""


@contextmanager
def errors_of(address: str, what: str, kind: type[T7BridgeError] = T7BridgeError, hint: str = "") -> Iterator[None]:
    """Make an error of ours from any other: each file system has its own.

    Args:
        address: named by the error.
        what: participle of what is done with it: `read`.
        kind: class of the error.
        hint: what to do next.
    """
    try:
        yield
    except T7BridgeError:
        raise
    except Exception as error:
        cause: Any = error.__cause__ or error  # over HTTP, a server that does not answer is a missing file for fsspec
        status = getattr(cause, "status", None)
        if kind is T7BridgeError and isinstance(error, FileNotFoundError) and (cause is error or status in (404, 410)):
            raise MissingFileError(f"cannot be {what}: no such file", file=address, hint=hint) from error
        reason = f"{status} {cause.message}" if status else " ".join(str(cause).split()) or type(cause).__name__
        raise kind(f"cannot be {what}: {reason.rstrip('.')}", file=address, hint=hint) from error


def connect(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises:
        UnsupportedError: fsspec, or the library for this kind of file system, is not installed.
        T7BridgeError: the URL is invalid.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise UnsupportedError("fsspec is not installed", file=address, hint="pip install 't7bridge[url]'") from error
    with errors_of(address, "reached"):
        try:
            system, path = url_to_fs(address)
        except ImportError as error:
            extra = {"s3": "s3", "s3a": "s3", "hf": "hf"}.get(address.split("::")[-1].split("://")[0], "url")
            raise UnsupportedError(str(error), file=address, hint=f"pip install 't7bridge[{extra}]'") from error
    return system, path


def stamp_of(info: dict[str, Any]) -> str:
    """Return what a file system says of the version of a file; empty if nothing."""
    return next((str(info[key]) for key in _STAMPS if info.get(key) is not None), "")


class Remote:
    """A file at an address, read by ranges through a bounded cache of blocks.

    A read elsewhere asks for the blocks that it needs; reads in order ask for ever more at once, as each request
    takes a round trip. Members of archives, and files of servers without ranges, are copied to a temporary file first.

    Attributes:
        name: the address.
        size: in bytes.

    Raises:
        MissingFileError: there is no such file.
        UnsupportedError: a library is not installed, or the address is that of a folder.
        T7BridgeError: it cannot be read.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._system, self._path = connect(name)
        self._lock = allocate_lock()
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._runs: OrderedDict[int, int] = OrderedDict()
        """For each run of requests in order, the block that comes next, the count of blocks of the last."""
        self._file: Any = None
        with errors_of(name, "read", hint=_CHECK):
            info = self._system.info(self._path)
            if info.get("type") == "directory":
                hint = "Give the address of a file; t7bridge zoo takes folders."
                raise UnsupportedError("is a folder", file=name, hint=hint)
            self._state = info.get("size"), stamp_of(info)
            self.size: int = info.get("size") or 0
            if protocol_of(name) in ARCHIVES or info.get("size") is None or not info.get("partial", True):
                self._copy()
            else:
                self._file = self._system.open(self._path, "rb", cache_type="none")

    def _copy(self) -> None:
        """Copy the whole to a temporary file, and read that from now on."""
        copy = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._system.get_file(self._path, copy)
        self._check()
        found, wanted = copy.tell(), self._state[0]
        if wanted is not None and found != wanted:
            raise self._shorter(found, wanted)
        self._file, self.size, self._system = copy, found, None
        self._blocks.clear()

    def _check(self) -> None:
        """Check that the file is still the one that was opened: its size, and its tag or time.

        Raises:
            T7BridgeError: it is not.
        """
        self._system.invalidate_cache()
        info = self._system.info(self._path)
        if (info.get("size"), stamp_of(info)) != self._state:
            raise T7BridgeError("has changed while it was read", file=self.name, hint="Run it again.")

    def _shorter(self, found: int, wanted: int, offset: int | None = None) -> TruncatedError:
        return TruncatedError(
            "not all bytes arrived", file=self.name, offset=offset, expected=f"{wanted} bytes", found=f"{found}",
            hint=_CHECK,
        )  # fmt: skip

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset`; return the number of bytes, fewer than its length only at the end.

        Raises:
            T7BridgeError: the file cannot be read.
        """
        done, wanted = 0, min(len(buffer), self.size - offset)
        with self._lock:
            while done < wanted:
                number, start = divmod(offset + done, BLOCK_BYTES)
                block = self._block(number, -(-(start + wanted - done) // BLOCK_BYTES))
                part = block[start : start + wanted - done]
                buffer[done : done + len(part)] = part
                done += len(part)
        return done

    def _block(self, number: int, wanted: int) -> bytes:
        """Return a block, after asking for it and those that follow if it is not there.

        Args:
            number: of the block.
            wanted: number of blocks that will be asked for.
        """
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        # In order, but for the block of a header that is there already.
        ahead = 2 * max(self._runs.pop(number, 0), self._runs.pop(number - 1, 0))
        count = min(max(wanted, ahead), _MOST_BLOCKS)
        self._runs[number + count] = count
        if len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)
        data = self._fetch(number * BLOCK_BYTES, min((number + count) * BLOCK_BYTES, self.size))
        for each in range(count):
            self._blocks[number + each] = data[each * BLOCK_BYTES : (each + 1) * BLOCK_BYTES]
            self._blocks.move_to_end(number + each)
        while len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return self._blocks[number]

    def _fetch(self, start: int, end: int) -> bytes:
        if self._file is None:
            raise T7BridgeError("has been closed", file=self.name, offset=start)
        with errors_of(self.name, "read", hint=_CHECK):
            try:
                data = self._read(start, end)
            except ValueError:  # a server that sends the whole file, whatever is asked for
                if self._system is None:
                    raise
                self._copy()
                data = self._read(start, end)
            if self._system is not None:
                self._check()
        if len(data) != end - start:
            raise self._shorter(len(data), end - start, start)
        return data

    def _read(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        return bytes(self._file.read(end - start))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._blocks.clear()
