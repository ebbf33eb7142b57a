"""Random access to the bytes of a file or a buffer, without keeping them in memory; and the files that a call reads."""

from __future__ import annotations

import io
import os
import stat
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, Any

from ..data import pattern
from ..errors import MissingFileError, T7BridgeError, TargetExistsError, TruncatedError
from .platform import READING, name_fault, pread, pread_into

if TYPE_CHECKING:
    import mmap

    from .remote import Remote

PathLike = str | os.PathLike[str]
Readable = PathLike | bytes | bytearray | memoryview | IO[bytes]
"""What can be read: a path or an address, bytes, or a binary file object."""

_ADDRESS = pattern(r"[A-Za-z][\w+.-]+:(//|:.*://)")


def is_address(name: object) -> bool:
    """Return whether a name is a URL as fsspec writes it: `s3://bucket/key`, `zip://member::https://host/file`."""
    return isinstance(name, str) and _ADDRESS.match(name) is not None


FOLDER_HINT = "Give the path of a file; t7bridge zoo FOLDER -o OUT converts all files of a folder."


def _hint_for_missing(name: str) -> str:
    """Return a hint for a path that does not exist: the file of the same folder whose name is nearest.

    It is empty if none is near; for `FILE.py:CLASS`, which the verb `lua` takes, it is the command.
    """
    from difflib import get_close_matches

    source_file, _, _ = name.rpartition(":")
    if os.path.isfile(source_file):
        return f"A class is no file: t7bridge lua {name} --input SHAPE -o lua/ makes lua/model.t7 of it."
    folder, base = os.path.split(name)
    try:
        matches = get_close_matches(base, os.listdir(folder or "."), 1)
    except OSError:
        return ""
    return f"Did you mean {os.path.join(folder, matches[0])}?" if matches else ""


def require_file(path: PathLike) -> None:
    """Refuse the path of a missing file or folder, before work that takes long; addresses are not looked up.

    Raises:
        MissingFileError: there is no such file or folder.
    """
    if not is_address(path) and not os.path.exists(path):
        ByteSource.from_path(path)  # raises the error, with its hint


sizes: dict[str, int] = {}
"""The sizes of files at addresses, for the progress bar."""


class ByteSource:
    """A readable run of bytes at known offsets: an open file, or a buffer in memory.

    Files are read with `pread`, never through the file's own position, and are mapped into memory only if `maps` is
    set: of a file that shrinks, reading raises an error, while using a map ends the process.

    Attributes:
        name: the path, or a description for messages.
        size: length in bytes when the source was opened.
        maps: whether `view` returns parts of a memory map of the file.
    """

    maps = False

    def __init__(self, name: str, size: int, *, fd: int | None = None, buffer: memoryview | None = None) -> None:
        self.name = name
        self.size = size
        self._fd = fd
        self._buffer = buffer
        self._map: mmap.mmap | None = None
        """The whole file as memory, once a part of it was asked for."""
        if fd is not None:
            # Also if nobody closes this object.
            self._close = weakref.finalize(self, os.close, fd)

    def __reduce__(self) -> str:
        """Refuse to be copied or pickled."""
        raise TypeError(f"{self.name} is an open file, which cannot be copied or pickled")

    @classmethod
    def from_path(cls, path: PathLike) -> ByteSource:
        """Open a file for reading: a path, or an address (`is_address`).

        Raises:
            MissingFileError: the file does not exist.
            UnsupportedError: a library for this kind of address is not installed.
            T7BridgeError: the file cannot be opened.
        """
        name = os.fspath(path).removeprefix("file://")
        if is_address(name):
            return _RemoteSource(name)
        try:
            fd = os.open(name, READING)
        except FileNotFoundError as error:
            raise MissingFileError(
                f"cannot be read: {error.strerror}", file=name, hint=_hint_for_missing(name)
            ) from error
        except OSError as error:
            raise T7BridgeError(f"cannot be read: {error.strerror}", file=name) from error
        except ValueError as error:  # of Python's own check
            raise T7BridgeError(f"cannot be read: {name_fault(name)}", file=name) from error
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            if stat.S_ISDIR(status.st_mode):
                raise T7BridgeError("is a folder", file=name, hint=FOLDER_HINT)
            raise T7BridgeError("is not a regular file", file=name, hint="Give the path of a file.")
        add_input(name, fd=fd)  # so that no output replaces it
        return cls(name, status.st_size, fd=fd)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, name: str = "<bytes>") -> ByteSource:
        """Wrap bytes in memory; they are not copied."""
        view = memoryview(data).cast("B")
        return cls(name, len(view), buffer=view)

    @classmethod
    def open(cls, source: Readable | ByteSource) -> tuple[ByteSource, int]:
        """Open a path, bytes or a binary file object.

        Returns:
            The source, and the offset in bytes at which reading starts: 0, or the file object's position.
        """
        if isinstance(source, ByteSource):
            file, _ = source.resolve(0)
            if file.fd is not None:
                add_input(path=None, fd=file.fd)  # so that no output replaces it
            return source, 0
        if isinstance(source, (str, os.PathLike)):
            return cls.from_path(source), 0
        if isinstance(source, (bytes, bytearray, memoryview)):
            return cls.from_bytes(source), 0
        if not hasattr(source, "read"):
            raise TypeError(f"a path, bytes or a binary file object is required, not {type(source).__name__}")
        return cls._from_file(source)

    @classmethod
    def _from_file(cls, file: IO[bytes]) -> tuple[ByteSource, int]:
        """Read a file object by a descriptor of our own where it has one, else read all of it into memory.

        Returns:
            As `open`.
        """
        name = getattr(file, "name", None)
        if not isinstance(name, str):  # of a file opened by its descriptor, `name` is the number
            name = f"<{type(file).__name__}>"
        inner = getattr(file, "file", file)  # a temporary file of `tempfile` is a wrapper
        if isinstance(getattr(inner, "raw", inner), io.FileIO):
            # Only for these does the descriptor yield the bytes that `read` returns: a GzipFile's yields compressed
            # ones.
            try:
                start = file.tell()
                fd = os.dup(file.fileno())
            except (OSError, ValueError):  # a pipe has no position, a closed file nothing at all
                pass
            else:
                add_input(path=None, fd=fd)  # so that no output replaces it
                return cls(name, os.fstat(fd).st_size, fd=fd), start
        return cls._from_stream(file, name)

    @classmethod
    def _from_stream(cls, file: IO[bytes], name: str) -> tuple[ByteSource, int]:
        """Read everything from a file object without a descriptor of its own; restore its position if possible.

        Args:
            file: the file object.
            name: for messages.

        Returns:
            The source, and the offset of that position; of a stream that cannot seek, what is left of it, and 0.

        Raises:
            T7BridgeError: it is a text file object, or cannot be read.
        """
        try:
            start = file.tell() if file.seekable() else 0
            if start:
                file.seek(0)
            data = file.read()
            if file.seekable():
                file.seek(start)
        except UnicodeDecodeError:  # a text file object: its error is that below
            data = None
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise T7BridgeError(f"cannot be read: {error}", file=name) from error
        if not isinstance(data, (bytes, bytearray)):
            raise T7BridgeError("is a text file object", file=name, hint="Open it in binary mode ('rb').")
        return cls.from_bytes(data, name), start

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, fewer only at the end of the source.

        Args:
            offset: in bytes, 0-based.
            length: in bytes.
        """
        if self._buffer is not None:
            return bytes(self._buffer[offset : offset + length])
        data = self._pread(length, offset)
        if len(data) == length or offset + len(data) >= self.size:
            return data
        parts = [data]  # a short read in the middle of a file: a signal, or a limit of the system call
        done = len(data)
        while done < length:
            part = self._pread(length - done, offset + done)
            if not part:
                break
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def _open_fd(self, offset: int) -> int:
        """Return the descriptor.

        Raises:
            T7BridgeError: the file has been closed, with the offset of what was to be read.
        """
        if self._fd is None:
            raise T7BridgeError(
                "has been closed",
                file=self.name,
                offset=offset,
                hint="Keep the reader open while its storages are read.",
            )
        return self._fd

    def _pread(self, length: int, offset: int) -> bytes:
        """Return what one call of the system reads, which may be less than `length`.

        Raises:
            T7BridgeError: the file has been closed, or the system reports an error.
        """
        try:
            return pread(self._open_fd(offset), length, offset)
        except OSError as error:
            raise T7BridgeError(f"cannot be read: {error.strerror}", file=self.name, offset=offset) from error

    def read_exact(self, offset: int, length: int, what: str) -> bytes:
        """Like `read`, but raise an error if bytes are missing.

        Args:
            offset: of the first byte, 0-based.
            length: in bytes.
            what: what the bytes are, for the message.

        Raises:
            TruncatedError: the source ends before `offset + length`.
        """
        data = self.read(offset, length)
        if len(data) != length:
            raise TruncatedError(
                f"the file ends inside {what}",
                file=self.name,
                offset=offset,
                expected=f"{length} bytes",
                found=f"{len(data)}",
            )
        return data

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset`; return the number of bytes, fewer than its length only at the end."""
        if self._buffer is not None:
            part = self._buffer[offset : offset + len(buffer)]
            buffer[: len(part)] = part
            return len(part)
        fd = self._open_fd(offset)
        done = 0
        while done < len(buffer):
            try:
                count = pread_into(fd, buffer[done:], offset + done)
            except OSError as error:
                raise T7BridgeError(f"cannot be read: {error.strerror}", file=self.name, offset=offset) from error
            if not count:
                break
            done += count
        return done

    def view(self, offset: int, length: int) -> memoryview:
        """Return bytes: a read-only part of the caller's buffer or of a memory map, else read into new memory.

        Raises:
            TruncatedError: the source does not hold `offset + length` bytes.
        """
        if self._buffer is not None:
            if offset + length > self.size:
                self.read_exact(offset, length, "its data")  # raises the error
            return self._buffer[offset : offset + length].toreadonly()
        if self.maps and self._fd is not None:
            return self._mapped(self._fd, offset, length)
        data = memoryview(bytearray(length))
        if self.read_into(offset, data) < length:
            self.read_exact(offset, length, "its data")  # raises the error, which says how much is there
        return data

    def _mapped(self, fd: int, offset: int, length: int) -> memoryview:
        """Return bytes of the file as a part of its memory map.

        Args:
            fd: the descriptor of the file.
            offset: of the first byte, 0-based.
            length: in bytes.

        Raises:
            TruncatedError: the file has become shorter.
        """
        if offset + length > os.fstat(fd).st_size:
            # To touch a page beyond the end of the file would end the process (SIGBUS): here is an error instead.
            self.read_exact(offset, length, "its data")
        # The file may have grown since it was mapped.
        if self._map is None or len(self._map) < offset + length:
            import mmap

            self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        return memoryview(self._map)[offset : offset + length]

    @property
    def fd(self) -> int | None:
        """The descriptor for system calls that copy bytes; `None` for a buffer in memory."""
        return self._fd

    def resolve(self, offset: int) -> tuple[ByteSource, int]:
        """Return the source that has a byte, and the byte's offset in it: for a window, its file; else this source."""
        return self, offset

    def window(self, offset: int, size: int) -> ByteSource:
        """Return a part of the source as a source of its own, with offsets from the part's first byte.

        The part shares the file: it is readable as long as this source is open, and closing it does nothing.

        Args:
            offset: first byte of the part, 0-based.
            size: of the part, in bytes.

        Raises:
            TruncatedError: the source has fewer bytes.
        """
        if offset < 0 or size < 0 or offset + size > self.size:
            raise TruncatedError(
                "a part lies outside the file",
                file=self.name,
                offset=offset,
                expected=f"{size} bytes",
                found=f"{max(0, self.size - offset)}",
            )
        source, start = self.resolve(offset)
        return PiecesSource(self.name, [(source, start, size)])

    def read_all(self) -> None:
        """Expect that all bytes will be read, so that those of a file at an address are asked for in large ranges."""

    def close(self) -> None:
        """Close the file. Storages whose bytes are still in it can no longer be read."""
        if self._fd is not None:
            self._fd = None  # the number may soon be another file's
            self._close()

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


class DerivedSource(ByteSource):
    """A source whose bytes are neither those of one open file nor in memory: a subclass has `read_into`."""

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, fewer only at the end of the source."""
        data = memoryview(bytearray(max(0, min(length, self.size - offset))))
        count = self.read_into(offset, data)
        return bytes(data[:count])


class _RemoteSource(DerivedSource):
    """A file at an address."""

    def __init__(self, name: str) -> None:
        from .remote import Remote

        inputs = _inputs.get()
        # In a call, `check_inputs` checks at its end that the file has stayed the same.
        self._remote = Remote(name, is_checked_later=inputs is not None)
        if inputs is not None:
            inputs.remotes.append(self._remote)
        super().__init__(name, self._remote.size)
        sizes[name] = self.size  # for the progress bar

    def read_all(self) -> None:
        """Expect that all of the file will be read: it is fetched in large ranges from now on."""
        self._remote.read_all()

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset`; return the number of bytes, fewer than its length only at the end."""
        return self._remote.read_into(offset, buffer)

    def close(self) -> None:
        """Close the connection, and forget what was fetched."""
        self._remote.close()


Piece = tuple[ByteSource, int, int]
"""A part of a source: the source, the offset of the first byte in it, and the length, both in bytes."""


class PiecesSource(DerivedSource):
    """A source made of consecutive pieces of others. Closing it does nothing.

    Args:
        name: for messages.
        pieces: in order; those that are adjacent in one source become one.
    """

    def __init__(self, name: str, pieces: Iterable[Piece]) -> None:
        self._pieces: list[Piece] = []
        self._starts: list[int] = []
        """The offset of each piece in this source."""
        size = 0
        for source, start, length in pieces:
            last_source, last_start, last_length = self._pieces[-1] if self._pieces else (None, 0, 0)
            if last_source is source and last_start + last_length == start:
                self._pieces[-1] = (source, last_start, last_length + length)
            elif length:
                self._pieces.append((source, start, length))
                self._starts.append(size)
            size += length
        super().__init__(name, size)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from the pieces that hold the range; return the number of bytes, fewer only at the end."""
        done = 0
        for source, start, length in self._parts(offset, len(buffer)):
            count = source.read_into(start, buffer[done : done + length])
            done += count
            if count < length:  # the source has become shorter
                break
        return done

    def view(self, offset: int, length: int) -> memoryview:
        """Return bytes as memory: a view of the only source that has them, or what was read into new memory."""
        parts = self._parts(offset, length)
        if len(parts) == 1:
            source, start, count = parts[0]
            if count == length:  # else some are behind the end of this source
                return source.view(start, count)
        return super().view(offset, length)

    def resolve(self, offset: int) -> tuple[ByteSource, int]:
        """Return the source that has a byte, and its offset there: that of a single piece, of several this one."""
        if len(self._pieces) != 1:
            return self, offset
        ((source, start, _),) = self._pieces
        return source, start + offset

    def _parts(self, offset: int, length: int) -> list[Piece]:
        """Return the parts of the pieces that hold a range, in order; of one beyond the end what there is.

        Args:
            offset: of the first byte in this source, 0-based.
            length: in bytes.
        """
        parts = []
        number = bisect_right(self._starts, offset) - 1  # of the last piece that begins before it, or at it
        while length > 0 and 0 <= number < len(self._pieces):
            source, start, size = self._pieces[number]
            inside = offset - self._starts[number]
            count = min(length, size - inside)
            if count > 0:  # else the range begins beyond the last piece
                parts.append((source, start + inside, count))
            offset += count
            length -= count
            number += 1
        return parts


class _Inputs:
    """The files that the current call reads.

    Attributes:
        files: the pair of device and inode of each local file.
        paths: the absolute path of each, as far as it is known.
        remotes: files at addresses.
    """

    def __init__(self) -> None:
        self.files: set[tuple[int, int]] = set()
        self.paths: set[str] = set()
        self.remotes: list[Remote] = []


_inputs: ContextVar[_Inputs | None] = ContextVar("inputs", default=None)
"""The files that the current call reads; `None` outside of calls."""


@contextmanager
def inputs_protected() -> Iterator[None]:
    """Refuse every file that the block reads as the target of an output in it, under whatever name.

    At its end, and before an output takes its name, the files at addresses are checked: an error if one has changed.

    Blocks inside of others share the files of the outermost: that of a verb of the command line, or of a function.

    Raises:
        T7BridgeError: a file at an address has changed.
    """
    if _inputs.get() is not None:
        yield
        check_inputs()
        return
    inputs = _Inputs()
    before = _inputs.set(inputs)
    try:
        yield
        check_inputs()
    finally:
        _inputs.reset(before)
        for remote in inputs.remotes:
            remote.is_checked_later = False  # what is read of it from now on is checked at once


def check_inputs() -> None:
    """Check that the files at addresses that the call has read are still the same.

    Raises:
        T7BridgeError: one has changed.
    """
    inputs = _inputs.get()
    if inputs is not None:
        for remote in inputs.remotes:
            remote.check()


def add_input(path: str | os.PathLike[str] | None, fd: int | None = None) -> None:
    """Add a file that is read to the inputs of the call, which `check_target` protects from being replaced.

    Args:
        path: of the file; `None` if only the descriptor is known.
        fd: its descriptor, if it is open; without it, the file is looked up by the path.
    """
    inputs = _inputs.get()
    if inputs is None:
        return
    if path is not None:
        inputs.paths.add(os.path.abspath(path))
    try:
        status = os.fstat(fd) if fd is not None else os.stat(path or "")
    except OSError:
        return
    inputs.files.add((status.st_dev, status.st_ino))


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a target that the current call reads, whatever its name or link.

    Raises:
        TargetExistsError: it is an input.
    """
    inputs = _inputs.get()
    if inputs is None:
        return
    try:
        status = os.stat(path)
    except OSError:  # nothing has this name
        return
    # A file that was read may have been replaced since, by another one of its name.
    if (status.st_dev, status.st_ino) in inputs.files or os.path.realpath(path) in map(os.path.realpath, inputs.paths):
        raise TargetExistsError(
            "is the input file itself", file=os.fspath(path), hint="Write to another name; a file is never rewritten."
        )
