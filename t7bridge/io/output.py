"""Output that appears whole or not at all, and that accepts bytes from a source without holding them in memory."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import weakref
from collections.abc import Iterable, Iterator
from typing import IO, Any, Union

from ..errors import ModelError, TargetExistsError, WriteError
from .copy import (
    NO_CHANGE,
    WORTH_BYTES,
    Buffer,
    Change,
    Done,
    Extent,
    ExtentCopy,
    Transfers,
    crc32,
    unwritable,
    write_at,
)
from .platform import BINARY, CAN_RESERVE, copy_owner, flush, link, name_fault
from .source import PathLike, check_inputs, check_target, is_address

_FLUSH_BYTES = 1 << 18
"""Bytes that are collected before they are written."""
_SMALL_BYTES = 1 << 16
"""Bytes of an extent up to which a small buffer is made."""

Content = Union[bytes, Extent, "Iterable[bytes | memoryview]"]
"""What can be appended: bytes, the extent of an open file that has them, or pieces of them."""


def _first_buffer(extent: Extent) -> Buffer:
    """Return a buffer for an extent, a small one for a small extent: most files have no others."""
    if extent.change is NO_CHANGE and extent.length <= _SMALL_BYTES:
        return Buffer(_SMALL_BYTES)
    return extent.change.buffer()


class Output:
    """An output of bytes from first to last, written to a binary file object in large pieces.

    Args:
        file: the file object.
        name: for messages; by default the file object's.

    Attributes:
        name: for messages.
        position: bytes written so far.
    """

    def __init__(self, file: IO[bytes], name: str = "") -> None:
        self._file = file
        self._pending = bytearray()
        """Bytes that are not given to the file yet."""
        self._last_change_and_buffer: tuple[Change, Buffer] | None = None
        """The change of the last extent, and its memory, which the next extent with this change uses again."""
        self._bytes_flushed = 0
        """Bytes that were given to the file, or to `_transfers`."""
        self._blocks: Blocks | None = None
        """Reserves space on the disk, of a `FileOutput`."""
        self._transfers: Transfers | None = None
        """Copies bytes to any position of the file, of a `FileOutput`."""
        self.name = name or str(getattr(file, "name", ""))

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self._bytes_flushed + len(self._pending)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if size >= _FLUSH_BYTES:
            self.flush()
            self._write_all(data)
            self._bytes_flushed += size
            return
        self._pending += data
        if len(self._pending) >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write everything so far to the file.

        Raises:
            WriteError: the file does not accept it (disk full, no permission, file size limit).
        """
        if self._pending:
            self._write_all(self._pending)
            self._bytes_flushed += len(self._pending)
            self._pending.clear()

    def _reserve(self, size: int) -> None:
        """Preallocate blocks for the next bytes, unless the file is small."""
        if self._blocks is not None and self._bytes_flushed + size >= _FLUSH_BYTES:
            self._blocks.reserve(self._bytes_flushed, size)

    def _write_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes to the file object at once, which may take several calls.

        Raises:
            WriteError: the file does not accept them.
        """
        try:
            view = memoryview(data).cast("B")
            self._reserve(len(view))
            done = 0
            while done < len(view):
                count = self._file.write(view[done:])
                if count is None:  # of an object that always takes all
                    count = len(view) - done
                done += count
        except OSError as error:
            raise WriteError(
                f"cannot be written: {error.strerror}", file=self.name, offset=self._bytes_flushed
            ) from error

    def copy(self, extent: Extent, done: Done = None) -> None:
        """Append bytes of an open file, changed on the way where they are not what is wanted here.

        Copies may still be pending when this returns, if the file is seekable: until :meth:`wait`, the source must stay
        open and unchanged.

        Args:
            extent: where the bytes are, and their change.
            done: is given the CRC-32 of what was written, now or by :meth:`wait`; without it none is computed.

        Raises:
            TruncatedError: the source has become shorter than it was.
            WriteError: the file does not take the bytes, or an element cannot be converted to its type.
        """
        if self._transfers is not None and extent.source.fd is not None and extent.length >= WORTH_BYTES:
            self._reserve(len(self._pending) + extent.nbytes)
            self.flush()
            self._transfers.add(extent, self._bytes_flushed, done)
            self._bytes_flushed += extent.nbytes
            self._file.seek(self._bytes_flushed)  # the copy goes to its own position, and what follows behind it
            return
        for _, data in self._copied(ExtentCopy(extent, self.position, done)):
            self.write(data)

    def append(self, content: Content, done: Done = None) -> None:
        """Append bytes, bytes of an open file, or pieces.

        Args:
            content: the bytes; or where they are, and their change; or an iterable that makes them piece by piece.
            done: is given the CRC-32 of what was written, now or by :meth:`wait`; without it none is computed.

        Raises:
            WriteError: the file does not accept the bytes, or an element cannot be converted to its type.
        """
        if isinstance(content, Extent):
            self.copy(content, done)
            return
        crc = 0
        try:
            pieces = (content,) if isinstance(content, bytes) else content
            for piece in pieces:
                if done is not None:
                    crc = crc32(piece, crc)
                self.write(piece)
        except ModelError as error:  # of the iterator that makes the pieces
            raise unwritable(error, self.name) from error
        if done is not None:
            done(crc)

    def _copied(self, copy: ExtentCopy) -> Iterator[tuple[int, memoryview]]:
        """Yield what an extent becomes, in parts with their positions in the file; then finish the copy.

        A part is valid until the next one is asked for, which is put into the same buffer.
        """
        # The buffer of the last copy is used again, unless it is for another change, or too small.
        change = copy.extent.change
        last_change, buffer = self._last_change_and_buffer or (None, None)
        if buffer is None or last_change is not change:
            buffer = _first_buffer(copy.extent)
        elif len(buffer.view) <= _SMALL_BYTES < copy.extent.length:
            buffer = change.buffer()
        self._last_change_and_buffer = (change, buffer)
        for start, end in copy.pieces():
            yield from copy.copied(start, end, buffer, self.name)
        copy.finish()

    def wait(self) -> None:
        """Return when all copies are complete, and each `done` was called.

        Raises:
            TruncatedError: a source has become shorter.
            WriteError: the file does not accept the bytes.
        """
        if self._transfers is not None:
            self._transfers.wait()

    def put(self, position: int, data: bytes | memoryview) -> None:
        """Write bytes at a place of what was written before: a checksum, say, that the `done` of :meth:`copy` brings.

        Args:
            position: of the first, 0-based.
            data: the bytes.

        Raises:
            WriteError: the file does not accept the bytes.
        """
        self.flush()
        write_at(self._file.fileno(), data, position, self.name)


def check_replaceable(path: str, force: bool) -> os.stat_result | None:
    """Refuse a target that must not be replaced; return the status of one that will be, `None` if there is none.

    Args:
        path: of the target.
        force: whether an existing file may be replaced.

    Raises:
        TargetExistsError: it exists and `force` is not set, it is an input, or no regular file.
    """
    if not os.path.lexists(path):
        return None
    status = os.lstat(path)
    check_target(path)
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise TargetExistsError(f"is {kind}", file=path, hint="Give the name of a file.")
    if not force:
        raise _exists(path)
    return status


def _exists(path: str) -> TargetExistsError:
    """Return the error for a target that exists."""
    hint = "Choose another name, or overwrite it with --force (force=True)."
    return TargetExistsError("exists already", file=path, hint=hint)


def local_target(path: PathLike) -> str:
    """Return the path of an output.

    Raises:
        WriteError: it is an address.
    """
    name = os.fspath(path)
    if is_address(name):
        hint = "Write to a path, and copy the file; t7bridge zoo -o writes to stores such as s3://."
        raise WriteError("outputs cannot be addresses", file=name, hint=hint)
    return name


class FileOutput(Output):
    """An output file that appears under its name only when complete.

    The bytes go to a temporary file in the target's folder, which is renamed on success and removed otherwise. A
    symbolic link is followed; a replaced file passes on its owner, where the system allows it, and its mode, without
    setuid and setgid if the owner differs. Use it as a context manager.

    Args:
        path: the target.
        force: whether an existing file is replaced.
        sync: whether to wait until everything is on the disk, so that it survives a power cut. Otherwise the system
            writes it in its own time, as for `cp`; except where a file is replaced: then the new one is fsynced before
            the rename, so that a power cut leaves one of the two.

    Raises:
        TargetExistsError: the target exists and `force` is not set, or it is a file that the call reads.
        WriteError: the temporary file cannot be created.
    """

    def __init__(self, path: PathLike, *, force: bool = False, sync: bool = False) -> None:
        name = local_target(path)
        fault = name_fault(name)
        if fault:
            raise WriteError(f"cannot be written: {fault}", file=name)
        self.path = os.path.realpath(name) if os.path.islink(name) else name
        self._force = force
        replaced = check_replaceable(self.path, force)
        self._sync = sync or replaced is not None
        # In the same folder, and so on the same disk: otherwise it could not be renamed.
        folder = os.path.dirname(self.path)
        self._temporary = os.path.join(folder, temporary_name())
        # Removed whatever ends this object: an error or a signal here or before `with` has begun, or a program that
        # forgets it.
        self._remove = weakref.finalize(self, _remove, self._temporary)
        file = self._new_temporary(replaced)
        super().__init__(file, self.path)
        self._blocks = Blocks(file.fileno())
        self._transfers = Transfers(file.fileno(), self.path)

    def _new_temporary(self, replaced: os.stat_result | None) -> IO[bytes]:
        """Create and open the temporary file.

        Args:
            replaced: the status of the file that it will replace, from which it gets owner and mode; `None` for none.

        Raises:
            WriteError: it cannot be created.
        """
        try:
            # Mode 0o666 minus the umask, as any other program's new file.
            fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
            file = os.fdopen(fd, "r+b", buffering=0)
            if replaced is not None:
                os.chmod(self._temporary, copy_owner(fd, replaced))
            return file
        except FileNotFoundError as error:
            message = "cannot be written: its folder does not exist"
            raise WriteError(message, file=self.path, hint="Create it first.") from error
        except OSError as error:
            raise WriteError(f"cannot be written: {error.strerror}", file=self.path) from error

    @property
    def temporary(self) -> str:
        """The path of the incomplete file."""
        return self._temporary

    def place(self, position: int, content: Content) -> None:
        """Put bytes, bytes of an open file or pieces at any place of this one, by :meth:`wait` at the latest.

        Args:
            position: of the first here, 0-based.
            content: the bytes, or where they are, and their change.

        Raises:
            TruncatedError: the source has become shorter.
            WriteError: the file does not take the bytes, or an element cannot be converted to its type.
        """
        if not isinstance(content, Extent):
            pieces = (content,) if isinstance(content, bytes) else content
            for piece in pieces:
                self.put(position, piece)
                position += len(piece)
        elif self._transfers is not None and content.source.fd is not None and content.length >= WORTH_BYTES:
            self._transfers.add(content, position)  # several threads copy it, until `wait` returns
        else:
            for piece_position, data in self._copied(ExtentCopy(content, position, done=None)):
                self.put(piece_position, data)

    def commit(self) -> None:
        """Flush, fsync if requested, and rename the file to its name.

        Raises:
            TargetExistsError: the name was taken meanwhile, and `force` is not set.
            WriteError: the disk or the folder reports an error.
            T7BridgeError: a file that was read has changed.
        """
        self.flush()
        self.wait()
        check_inputs()
        try:
            if self._sync:
                os.fsync(self._file.fileno())
            self._file.close()
            self._take_name()
        except TargetExistsError:  # an OSError, too
            raise
        except OSError as error:
            raise WriteError(f"cannot be written: {error.strerror}", file=self.path) from error
        self._remove.detach()  # there is no temporary file any more
        if self._sync:
            with contextlib.suppress(OSError):  # not every file system can
                flush(os.path.dirname(self.path) or os.curdir)

    def _take_name(self) -> None:
        """Give the complete temporary file its name.

        Raises:
            TargetExistsError: the name was taken meanwhile, and `force` is not set; or it is that of an input.
            OSError: the system refuses it.
        """
        check_target(self.path)  # files may have been read since this one was begun
        if not self._force:
            try:
                link(self._temporary, self.path)  # unlike a rename, fails if the name is taken
            except FileExistsError:
                raise _exists(self.path) from None
            except OSError:  # a file system without links: look before the rename, which would replace a file
                if os.path.lexists(self.path):
                    raise _exists(self.path) from None
            else:
                os.unlink(self._temporary)
                return
        os.replace(self._temporary, self.path)

    def restart(self) -> None:
        """Remove everything written so far, so that the output can be written again from its first byte.

        Raises:
            WriteError: the file does not accept it.
        """
        if self._transfers is not None:
            self._transfers.stop()
            self._transfers = Transfers(self._file.fileno(), self.path)  # one that was stopped takes no more
        self._pending.clear()
        self._bytes_flushed = 0
        try:
            self._file.seek(0)
            self._file.truncate()
        except OSError as error:
            raise WriteError(f"cannot be written: {error.strerror}", file=self.path) from error
        self._blocks = Blocks(self._file.fileno())  # those that were allocated are gone

    def discard(self) -> None:
        """Remove the temporary file."""
        if self._transfers is not None:
            self._transfers.stop()
        with contextlib.suppress(OSError):
            self._file.close()
        self._remove()

    def __enter__(self) -> FileOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Commit; discard the file after an error in the block, or in the commit."""
        if kind is not None:
            self.discard()
            return
        try:
            self.commit()
        except BaseException:
            self.discard()
            raise


def _remove(path: str) -> None:
    """Remove a temporary file, if there is one."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def temporary_name() -> str:
    """Return a new name for an output that is not complete."""
    return f".t7bridge-{os.urandom(8).hex()}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether a file's name is a temporary one."""
    return re.fullmatch(r"\.t7bridge-[0-9a-f]{16}\.tmp", name) is not None


def flush_to_disk(path: str) -> None:
    """Wait until a file, or the files of a folder, and their names are on the disk.

    Raises:
        OSError: the disk reports an error.
    """
    files = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else []
    # A name is in the folder that contains it.
    for name in (*files, path, os.path.dirname(path) or os.curdir):
        flush(name)


_PROBE_BYTES = 1 << 16
"""Bytes that are reserved to see whether a file system can reserve at all."""


class Blocks:
    """The blocks of a growing file on the disk, which are allocated ahead: writing to them is faster then.

    Args:
        file: its descriptor.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._reserved_end = 0
        """Bytes up to which blocks are allocated."""
        self._can_reserve = CAN_RESERVE
        """Whether allocating does what it should, as far as known."""

    def reserve(self, position: int, size: int) -> None:
        """Allocate blocks beyond those allocated so far.

        Args:
            position: of the first, 0-based.
            size: number of bytes.
        """
        if not self._can_reserve or position + size <= self._reserved_end:
            return
        try:
            if not self._reserved_end:  # the first time
                self._can_reserve = self._probe(position, min(size, _PROBE_BYTES))
            if self._can_reserve:
                os.posix_fallocate(self._file, position, size)
        except OSError:  # no space, or not supported: writing will report it
            self._can_reserve = False
        self._reserved_end = position + size

    def _probe(self, position: int, size: int) -> bool:
        """Reserve the first blocks, and return whether they are only reserved, and not written.

        glibc writes a byte to each block where a file system cannot reserve them, which takes longer than all the rest.
        Those bytes are data for `SEEK_DATA`, and blocks that are only reserved are not.

        Args:
            position: of the first byte of these blocks, 0-based.
            size: number of bytes.
        """
        os.posix_fallocate(self._file, position, size)
        here = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            os.lseek(self._file, position + size - 1, os.SEEK_DATA)
        except OSError:  # ENXIO: no data from there on; the position has not moved
            return True
        os.lseek(self._file, here, os.SEEK_SET)
        return False


def _missing_folders(path: str) -> list[str]:
    """Return the paths of a folder, and of those around it, as far as they do not exist; the innermost first."""
    missing: list[str] = []
    folder = os.path.abspath(path)
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def _make_folder(path: str) -> None:
    """Create a folder, and those around it, if they are missing.

    Raises:
        WriteError: one cannot be created.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WriteError(f"the folder cannot be created: {reason}", file=path) from error


@contextlib.contextmanager
def outputs_in(path: str, names: Iterable[str], *, force: bool, sync: bool = False) -> Iterator[dict[str, FileOutput]]:
    """Create files in a folder, which appear under their names at the end of the block, in the opposite order.

    So the first never exists without the others: `model.py` without its weights, say. On failure, folders that were
    created are removed again.

    Args:
        path: of the folder, which is created if it is missing.
        names: of the files.
        force: whether existing files are replaced.
        sync: as of `FileOutput`.

    Raises:
        TargetExistsError: a file exists, and `force` is not set.
        WriteError: the folder or a file cannot be created.
    """
    new_folders = _missing_folders(path)
    try:
        _make_folder(path)
        with contextlib.ExitStack() as stack:
            outputs: dict[str, FileOutput] = {}
            for name in names:
                output = FileOutput(os.path.join(path, name), force=force, sync=sync)
                outputs[name] = stack.enter_context(output)  # a stack is closed from its end: the first name comes last
            yield outputs
    except BaseException:
        for folder in new_folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        raise
