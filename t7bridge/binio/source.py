"""Random access to the bytes of a file or a buffer, without keeping them in memory."""

from __future__ import annotations

import os
import weakref
from typing import IO, TYPE_CHECKING, Any, Union

from ..errors import T7BridgeError, TruncatedError

if TYPE_CHECKING:
    import mmap

PathLike = Union[str, "os.PathLike[str]"]
Readable = Union[PathLike, bytes, bytearray, memoryview, IO[bytes]]


class ByteSource:
    """A readable run of bytes at known offsets: an open file, or a buffer in memory.

    Files are read with `pread`, never through the file's own position, and are mapped into memory only when
    somebody asks for a mapped view: a file that shrinks while it is read then gives an error, not a signal.

    Attributes:
        name: the path, or a description for messages.
        size: length in bytes when the source was opened.
    """

    def __init__(self, name: str, size: int, *, fd: int | None = None, buffer: memoryview | None = None) -> None:
        self.name = name
        self.size = size
        self._fd = fd
        self._buffer = buffer
        self._map: mmap.mmap | None = None
        if fd is not None:
            self._close = weakref.finalize(self, os.close, fd)

    @classmethod
    def from_path(cls, path: PathLike) -> ByteSource:
        """Open a file for reading.

        Raises:
            T7BridgeError: the file cannot be opened.
        """
        name = os.fspath(path)
        try:
            fd = os.open(name, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise T7BridgeError(f"cannot be read: {error.strerror}", file=name) from error
        status = os.fstat(fd)
        if not os.path.isfile(name):
            os.close(fd)
            raise T7BridgeError("is not a regular file", file=name, hint="Give the path of a file.")
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
            The source, and the offset in bytes at which reading starts: 0, or a file object's position.
        """
        if isinstance(source, ByteSource):
            return source, 0
        if isinstance(source, (str, os.PathLike)):
            return cls.from_path(source), 0
        if isinstance(source, (bytes, bytearray, memoryview)):
            return cls.from_bytes(source), 0
        return cls._from_file(source)

    @classmethod
    def _from_file(cls, file: IO[bytes]) -> tuple[ByteSource, int]:
        name = getattr(file, "name", None)
        name = name if isinstance(name, str) else f"<{type(file).__name__}>"
        try:
            start, fd = file.tell(), os.dup(file.fileno())
        except (OSError, AttributeError):  # BytesIO, sockets, archives: no descriptor, or no position
            data = file.read()
            if not isinstance(data, bytes):
                raise T7BridgeError("is a text file object", file=name, hint="Open it in binary mode ('rb').") from None
            return cls.from_bytes(data, name), 0
        return cls(name, os.fstat(fd).st_size, fd=fd), start

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, fewer only at the end of the source.

        Args:
            offset: in bytes, 0-based.
            length: in bytes.
        """
        if self._buffer is not None:
            return bytes(self._buffer[offset : offset + length])
        assert self._fd is not None
        data = self._pread(length, offset)
        if len(data) == length or offset + len(data) >= self.size:
            return data
        parts = [data]  # a short read in the middle of a file: a signal, or a limit of the system call
        got = len(data)
        while got < length:
            part = self._pread(length - got, offset + got)
            if not part:
                break
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def _pread(self, length: int, offset: int) -> bytes:
        assert self._fd is not None
        try:
            return os.pread(self._fd, length, offset)
        except OSError as error:
            raise T7BridgeError(f"cannot be read: {error.strerror}", file=self.name, offset=offset) from error

    def read_exact(self, offset: int, length: int, what: str) -> bytes:
        """Like `read`, but a missing byte is an error.

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
        """Fill `buffer` from `offset`; returns the number of bytes, fewer than its length only at the end."""
        if self._buffer is not None:
            part = self._buffer[offset : offset + len(buffer)]
            buffer[: len(part)] = part
            return len(part)
        assert self._fd is not None
        got = 0
        while got < len(buffer):
            try:
                count = os.preadv(self._fd, [buffer[got:]], offset + got)
            except OSError as error:
                raise T7BridgeError(f"cannot be read: {error.strerror}", file=self.name, offset=offset) from error
            if not count:
                break
            got += count
        return got

    def mapped(self, offset: int, length: int) -> memoryview:
        """Return a read-only view of the bytes, of the memory they are in or of a memory map of the file.

        Raises:
            TruncatedError: the source does not hold `offset + length` bytes.
        """
        if offset + length > self.size:
            self.read_exact(offset, length, "its data")
        if self._buffer is not None:
            return self._buffer[offset : offset + length].toreadonly()
        if self._map is None:
            import mmap

            assert self._fd is not None
            self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
        return memoryview(self._map)[offset : offset + length]

    @property
    def fd(self) -> int | None:
        """The descriptor for calls that move bytes inside the kernel; `None` for a buffer in memory."""
        return self._fd

    def same_file(self, path: PathLike) -> bool:
        """Whether `path` names the very file that is read here."""
        if self._fd is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(path))
        except OSError:
            return False

    def close(self) -> None:
        """Close the file. Storages whose bytes are still in it can no longer be read."""
        if self._fd is not None:
            self._close()

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()
