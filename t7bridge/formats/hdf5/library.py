"""The process in which h5py reads files, seen from the program: it is asked questions, and served the files' bytes.

The process runs `child`. One serves all files, one question after the other, until a file makes it fail. Then it is
ended, and the next question starts another. What it says is data only, as a hostile file may have taken it over.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from importlib.util import find_spec
from itertools import count
from typing import IO, Any

from ...errors import CorruptError, T7BridgeError, TruncatedError, UnsupportedError
from ...io.platform import ALONE, IS_WINDOWS, kill
from ...io.source import ByteSource
from ...limits import Limits
from ...text import printable
from . import LARGEST_READ

_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from t7bridge.formats.hdf5.child import main; main()"
_BYTES_A_SECOND = 1 << 18
"""Bytes of a file that account for a second: many small data sets take HDF5 a second a megabyte."""
_WAITING_SECONDS = 10
"""Seconds of the clock beyond those of the processor, which other programs use, too."""
_LONGEST_LINE = 1 << 30
"""Maximum size of a message, in bytes."""
_LONGEST_TEXT = 200
"""Characters of a message of the library in an error."""
_OUT_OF_TIME = -getattr(signal, "SIGXCPU", 0)
"""The exit code of a process that has used up its processor time."""
_Answer = tuple[dict[str, Any], bytes]
"""A message of the process, and the bytes after it, none for most."""
_ENDED = (OSError, EOFError, ValueError, TypeError, KeyError, RecursionError)
"""What using the pipes raises when the process has ended, or sends what is not a message."""


def require_h5py() -> None:
    """Check that h5py is installed, without importing it.

    Raises:
        UnsupportedError: it is not, or this is a browser, where no process of its own could read.
    """
    if sys.platform == "emscripten":
        raise UnsupportedError(
            "HDF5 cannot be read in a browser",
            hint="On a computer with h5py (pip install h5py): t7bridge convert FILE.h5 FILE.pt",
        )
    try:
        is_installed = find_spec("h5py") is not None
    except ValueError:  # `sys.modules` has something else under its name
        is_installed = "h5py" in sys.modules
    if not is_installed:
        raise UnsupportedError("h5py is not installed", hint="pip install h5py")


class LibraryFile:
    """An HDF5 file, about which the process with h5py is asked.

    Args:
        source: the file.
        limits: resource limits.
    """

    def __init__(self, source: ByteSource, limits: Limits) -> None:
        self._source = source
        self._limits = limits
        self._opened = _Opened.of(source)
        """The file as the child has it open: kept, as the child closes it when nobody has it."""

    def listing(self, text_bytes: int, path_of: Callable[[dict[str, Any]], str]) -> Generator[dict[str, Any]]:
        """Ask for everything in the file but elements, and yield what `child` says about each group and data set.

        Each message is a dict: `object` is `group`, `data set`, `text`, `link` (to a data set met before) or `left
        out`. All but the first, which is about the root group, have the number of the group they are in under `in`, and
        a name under `name`. What else they have depends on `object`: see `child._Listing`.

        Args:
            text_bytes: how long the strings in a data set may be together; the file is refused if they are longer.
            path_of: returns the path of a link from a message about it, for errors.

        Raises:
            FormatError: the file is damaged, or takes too long.
            LimitError: the strings in a data set are too long.
            UnsupportedError: it has elements in other files, or in a compression that HDF5 does not have.
        """
        # A question without `elements` is one for this list. Only elements are bytes after a message: here are none.
        for message, _no_payload in self._ask({"text_bytes": text_bytes}, path_of):
            yield message

    def elements(self, names: list[str], start: int, count: int, path: str) -> bytes:
        """Return the bytes of a run of elements of a data set.

        Args:
            names: of the groups and the data set, as `listing` has them.
            start: number of the first element, 0-based.
            count: number of elements.
            path: of the data set, for errors.

        Raises:
            FormatError: the data set is damaged, or takes too long.
        """
        question = {"elements": names, "start": start, "count": count}
        answers = [payload for _, payload in self._ask(question, lambda _: path)]
        return b"".join(answers)

    def _ask(self, question: dict[str, Any], path_of: Callable[[dict[str, Any]], str]) -> Iterator[_Answer]:
        """Yield the answers to a question, each with its bytes.

        Args:
            question: with `elements`, `start` and `count` one for elements, as `elements` asks; with `text_bytes` one
                for the list of groups and data sets, as `listing` asks.
            path_of: returns the path of a link from a message about it, for errors.

        Raises:
            FormatError: as the process reports, or because it ended.
            UnsupportedError: as the process reports.
        """
        seconds = self._limits.library_seconds + self._source.size // _BYTES_A_SECOND
        message: dict[str, Any] = {}  # the last one, which says where reading was at an error
        with _in_use:  # until the last answer was taken: one process serves all files
            library = _started(self._limits.library_bytes)
            try:
                with closing(library.ask(self._source, self._with_file(question), seconds)) as answers:
                    for message, payload in answers:
                        if "error" not in message:
                            yield message, payload
            except _ENDED as error:
                raise self._located(self._ended(library), path_of(message)) from error
        if "error" in message:
            raise self._located(self._failure(message), path_of(message))

    def _with_file(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return a question with the file that it is about, and the files to close, which are told only once."""
        closed = [_closed_files.popleft() for _ in range(len(_closed_files))]
        return {"file": self._opened.number, "size": self._source.size, "closed": closed, **question}

    def _located(self, error: T7BridgeError, path: str) -> T7BridgeError:
        """Return an error after setting its file and path."""
        error.file = self._source.name
        error.path = path
        return error

    def _ended(self, library: _Library) -> T7BridgeError:
        """Return the error for a library that has ended."""
        if library.ran_out_of_time or library.exit_code == _OUT_OF_TIME:
            return self._limits.exceeded("library_seconds", "the HDF5 library takes too long to read it")
        return CorruptError(f"the HDF5 library ended with exit code {library.exit_code} when it read this")

    def _failure(self, report: dict[str, Any]) -> T7BridgeError:
        """Return the error that the child reports.

        Args:
            report: with its kind under `error`, see `child.Refusal`, and the text of the library under `message`.
        """
        kind = report["error"]
        message = printable(str(report.get("message")))[:_LONGEST_TEXT]
        if kind == "unsupported":
            return UnsupportedError(message)
        if kind == "filter":
            hint = (
                "pip install hdf5plugin, which adds blosc, zstd and others; or repack it with gzip: h5repack -f GZIP=4."
            )
            return UnsupportedError(message, hint=hint)
        if kind == "inflated":
            return self._limits.exceeded("inflate_bytes", message)
        if kind == "memory":
            return self._limits.exceeded(
                "library_bytes", f"the HDF5 library needs more memory than it may have: {message}"
            )
        if kind == "truncated":
            return TruncatedError(f"cannot be read as HDF5: {message}")
        return CorruptError(f"cannot be read as HDF5: {message}")


class _Opened:
    """A file as the child has it open, once for all readers of it: large chunks are inflated and kept once.

    Attributes:
        number: by which the child knows it.
    """

    _numbers = count()

    def __init__(self) -> None:
        self.number = next(self._numbers)
        # When nobody has the file any more, the child is told with the next question. At the end of the program it is
        # ended instead.
        weakref.finalize(self, _closed_files.append, self.number).atexit = False

    @classmethod
    def of(cls, source: ByteSource) -> _Opened:
        """Return the file of a source: the same for all sources of one file that has not changed since.

        Sources in memory, and parts that begin inside other files, each have one of their own.
        """
        file, start = source.resolve(0)  # what the source is a part of, and where it begins there
        if file.fd is None or start:
            return cls()
        status = os.fstat(file.fd)
        # A part that begins where its file does differs from that by its size.
        state = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, source.size)
        opened = _opened_files.get(state)
        if opened is None:
            opened = _opened_files[state] = cls()
        return opened


_opened_files: weakref.WeakValueDictionary[tuple[int, ...], _Opened] = weakref.WeakValueDictionary()
"""By what tells files, and their states, apart: device, inode, time of change and sizes."""


class _Library:
    """The child process in which h5py runs, and the pipes to it.

    Args:
        memory: bytes that it may allocate.

    Attributes:
        memory: the argument.
        ran_out_of_time: whether it was ended because it took too long; set only where it cannot limit its own time.
        end: ends the process, now or when this object is gone; a second call does nothing.
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        """Bytes that the process may allocate."""
        self.ran_out_of_time = False
        """Whether `_watch` has ended it because it took too long."""
        self._deadline = 0.0
        """When the answer to the current question is due, by the monotonic clock; set by `ask`."""
        self._is_serving = False
        """Whether this process reads bytes for the child now, whose time does not count; for `_watch`."""
        # `::` keeps HDF5 from loading the library of a filter that the file names.
        environment = {**os.environ, "HDF5_PLUGIN_PRELOAD": "::"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(memory), *sys.path],  # it imports from where this one does
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                **ALONE,  # Ctrl-C reaches the program only, which ends the child
            )
        except OSError as error:
            raise T7BridgeError(f"a process to read HDF5 cannot be started: {error.strerror}") from error
        assert self._process.stdin is not None  # as it was asked for
        assert self._process.stdout is not None
        self._questions: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        # With the number of this process: one forked from it has a copy of this object, and must not end the child.
        self.end = weakref.finalize(self, _end, self._process, os.getpid())

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process that has ended; minus the number of the signal, if one ended it."""
        return self._process.returncode

    def ask(self, source: ByteSource, question: dict[str, Any], seconds: int) -> Generator[_Answer]:
        """Yield the answers to a question, each with its bytes, and serve the file meanwhile.

        If not all answers are taken, the process is ended: the others would be those to the next question. It is also
        ended after an error, which the last answer reports: HDF5 may be in any state then.

        Args:
            source: the file.
            question: about it, for `child.main`; that of `LibraryFile._ask`.
            seconds: time of the processor that the answers may take.

        Raises:
            OSError, EOFError, ValueError, TypeError, KeyError, RecursionError: the process has ended, or sends what is
                not a message (`_ENDED`).
        """
        self._deadline = time.monotonic() + seconds + _WAITING_SECONDS  # for `_watch`
        answered = threading.Event()
        if IS_WINDOWS:
            # Elsewhere the process limits its own time, and no thread is started: it might collect the program's
            # garbage, and wait for ever for h5py's lock, which the program holds while h5py calls it.
            threading.Thread(target=self._watch, args=(answered,), daemon=True).start()
        is_done = False
        try:
            self._send(json.dumps({**question, "seconds": seconds}).encode() + b"\n")
            is_done = yield from self._answers_about(source)
        finally:
            answered.set()
            if not is_done:
                self.end()

    def _answers_about(self, source: ByteSource) -> Generator[_Answer, None, bool]:
        """Yield the answers to the question that was sent, and serve the file; return whether there was no error."""
        while True:
            message = _message_from(self._answers)
            if "done" in message:
                return True
            if "bytes" in message:  # not an answer: the library needs bytes of the file
                self._serve(source, message["bytes"])
                continue
            yield message, _payload_from(self._answers, message)
            if "error" in message:
                return False

    def _send(self, data: bytes) -> None:
        """Write a question, or bytes that were asked for."""
        self._questions.write(data)
        self._questions.flush()

    def _serve(self, source: ByteSource, span: list[int]) -> None:
        """Send bytes of the file to the process, fewer than it asks for only where the file ends.

        The time that reading them takes, as from an address, is not the library's.

        Args:
            source: the file.
            span: offset of the first byte and number of bytes, as the process asks for them: at most `LARGEST_READ`.

        Raises:
            ValueError: the process asks for bytes from behind the end, or for too many.
        """
        offset, length = span
        if not 0 <= offset <= source.size or not 0 <= length <= LARGEST_READ:
            raise ValueError("asks for bytes that are not in the file")
        began = time.monotonic()
        self._is_serving = True
        try:
            data = source.read(offset, length)
        finally:
            # In this order: `_watch`, in its thread, looks at the deadline as soon as nothing is served.
            self._deadline += time.monotonic() - began
            self._is_serving = False
        self._send(b"%d\n" % len(data) + data)

    def _watch(self, answered: threading.Event) -> None:
        """End the process when its time is over, where it cannot limit that itself. Runs in a thread of its own.

        Args:
            answered: set when the question is answered; then this returns.
        """
        # While bytes are served, after the deadline, it looks again every tenth of a second.
        while not answered.wait(max(0.1, self._deadline - time.monotonic())):
            if not self._is_serving and time.monotonic() > self._deadline:
                self.ran_out_of_time = True
                kill(self._process)
                return


def _message_from(answers: IO[bytes]) -> dict[str, Any]:
    """Return the next message of the process; raises `EOFError` if it has ended."""
    line = answers.readline(_LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise EOFError
    message: dict[str, Any] = json.loads(line)
    return message


def _payload_from(answers: IO[bytes], message: dict[str, Any]) -> bytes:
    """Return the bytes after a message, none for most; raises `EOFError` if the process has ended."""
    size = int(message.get("elements", 0))
    payload = answers.read(size)
    if len(payload) < size:
        raise EOFError
    return payload


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a child, unless this process is a copy of its parent (a fork), which still uses it.

    Args:
        process: the child.
        owner: the process that started it.
    """
    if os.getpid() != owner:
        return
    kill(process)
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:  # the child has not read all
            pass
    process.wait()


_in_use = threading.Lock()
"""Held while a question is asked and answered."""
_library: _Library | None = None
"""The child that was started last; `None` before the first question, and in a copy of this process."""
_closed_files: deque[int] = deque()
"""Numbers of files that nobody has any more."""


def _started(memory: int) -> _Library:
    """Return the child. It is started if there is none; one with another limit of memory is ended before.

    Args:
        memory: bytes that it may allocate.
    """
    global _library
    # `end.alive` is false once `end` was called, as after a file that made it fail.
    if _library is None or not _library.end.alive or _library.memory != memory:
        if _library is not None:
            _library.end()
        _library = _Library(memory)
    return _library


def _forget_library() -> None:
    """Forget the child, which belongs to the process that this one is a copy of."""
    global _library, _in_use
    _library = None
    _in_use = threading.Lock()  # another thread of the original may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_library)
