"""The tree of errors.

Every message says what is wrong, where (file, byte offset, path inside the value), what was expected, what was found
and what to do next. All fields are keywords with defaults, so that an error can be pickled between processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ENOENT
from typing import Any

from .text import printable_lines

_PACKAGE = os.path.dirname(__file__) + os.sep
_LONGEST_PATH = 400
"""Characters of a path that are shown; the attribute has all of them."""


class T7BridgeError(Exception):
    """Root of all errors that the package raises deliberately.

    Attributes:
        message: what is wrong, in one sentence.
        file: name of the file, if any.
        offset: byte offset in the file, 0-based, if known.
        path: path inside the value, `root.modules[3].weight`.
        expected: what the format requires here.
        found: what is there instead.
        hint: what to do next; without one, `HINT` of the class.
    """

    HINT = ""

    def __init__(
        self,
        message: str = "",
        *,
        file: str = "",
        offset: int | None = None,
        path: str = "",
        expected: str = "",
        found: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.offset = offset
        self.path = path
        self.expected = expected
        self.found = found
        self.hint = hint or self.HINT

    def __str__(self) -> str:
        """Return all that is known: where, what is wrong, what was expected and found, and what to do next."""
        place_in_file = [f"byte {self.offset:,}"] if self.offset is not None else []
        if len(self.path) > _LONGEST_PATH:
            half = _LONGEST_PATH // 2
            place_in_file.append(f"{self.path[:half]}…{self.path[-half:]}")
        elif self.path:
            place_in_file.append(self.path)
        where = [text for text in (self.file, ", ".join(place_in_file)) if text]
        text = ": ".join([*where, self.message])
        if self.expected:
            text += f"; expected {self.expected}"
        if self.found:
            text += f"; found {self.found}"
        return printable_lines(f"{text}. {self.hint}" if self.hint else text)

    def _render_traceback_(self) -> list[str]:
        """Return what notebooks show of the error: the caller's lines, without those of this package and IPython.

        Source: IPython 9 `InteractiveShell.showtraceback`.
        """
        from traceback import extract_tb, format_list

        frames = extract_tb(self.__traceback__)[1:]  # the first is IPython's, which runs the cell
        of_caller = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
        return [*format_list(of_caller), f"{type(self).__name__}: {self}"]


@contextmanager
def about_file(name: str) -> Iterator[None]:
    """Add the file's name to errors that lack one."""
    try:
        yield
    except T7BridgeError as error:
        error.file = error.file or name
        raise


class MissingFileError(T7BridgeError, FileNotFoundError):
    """The file does not exist; `errno` and `filename` are those of every `FileNotFoundError`."""

    def __init__(self, message: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.errno = ENOENT
        self.filename = self.file


class FormatError(T7BridgeError, ValueError):
    """The bytes violate the format."""


class UnknownFormatError(FormatError):
    """The file is in no supported format; the message says what it is instead."""


class TruncatedError(FormatError, EOFError):
    """The file ends early, or a count claims more bytes than there are."""

    HINT = "It was cut short or damaged: copy or download it again."


class CorruptError(FormatError):
    """The file contradicts itself: a view outside its storage, a tag that does not exist, a wrong reference."""


class RecordError(FormatError):
    """What a file records of its past, such as element types, contradicts what it shows. `convert` ignores it then."""


class LimitError(FormatError):
    """A limit was exceeded. The message names the limit, its value and how to raise it.

    Attributes:
        limit: name of the field of `Limits`; empty for a fixed limit.
        value: its value.
    """

    def __init__(self, message: str = "", *, limit: str = "", value: int = 0, **where: Any) -> None:
        super().__init__(message, **where)
        self.limit = limit
        self.value = value
        if limit:
            self.expected = self.expected or f"at most {value:,} (the limit {limit})".replace(",", " ")
            self.hint = self.hint or (
                f"If the file is to be trusted, raise it: --limit {limit}=N, or limits=Limits({limit}=N) in Python."
            )


class ForbiddenGlobalError(FormatError):
    """A pickle names code that would run, or reach the system, in a reader that calls what it names."""


class T7BridgeWarning(UserWarning):
    """Root of the package's warnings: the result is correct, but holds less than the file."""


class IncompleteFileWarning(T7BridgeWarning):
    """Bytes after the values of a file are truncated or not a value."""


class LeftOutWarning(T7BridgeWarning):
    """A state dict has entries that are not tensors, and were left out."""


class UnsupportedError(T7BridgeError, NotImplementedError):
    """The file is valid, but this version does not handle it."""


class UnsupportedLayerError(UnsupportedError):
    """A model has layers without a PyTorch equivalent.

    Attributes:
        layers: all of them: path in the model, class in Lua, and the reason.
    """

    def __init__(self, message: str = "", *, layers: tuple[tuple[str, str, str], ...] = (), **where: Any) -> None:
        super().__init__(message, **where)
        self.layers = layers


class ModelError(T7BridgeError, ValueError):
    """The caller built an impossible value: a view outside its storage, a count that does not match its data."""


class OptionError(ModelError):
    """Options do not apply to a conversion, or rules for names fit nothing.

    Attributes:
        problems: for each option its name in Python, and what is wrong with it, as the rest of a sentence.
    """

    def __init__(self, message: str = "", *, problems: tuple[tuple[str, str], ...] = (), **where: Any) -> None:
        super().__init__(message, **where)
        self.problems = problems
        self.message = message or self.spelled({})

    def spelled(self, spellings: Mapping[str, str]) -> str:
        """Return the problems as one sentence, with the names of options as a user has typed them.

        Args:
            spellings: by the names in Python; an option that is not in it keeps that.
        """
        return "; ".join(f"{spellings.get(name, name)} {problem}" for name, problem in self.problems)


class NoModuleError(ModelError):
    """The file holds no nn module."""


class NoTensorError(ModelError):
    """The file holds no tensor, and the target format holds tensors only."""


class WriteError(T7BridgeError):
    """The target format cannot hold the value, or the output cannot be written."""


class TargetExistsError(WriteError, FileExistsError):
    """The output file exists, and overwriting it was not requested."""


class StrictError(WriteError):
    """The target would hold less than the source, and `strict` was set.

    Attributes:
        notes: what would be lost, as in the report.
    """

    def __init__(self, message: str = "", *, notes: tuple[Any, ...] = (), **where: Any) -> None:
        super().__init__(message, **where)
        self.notes = notes
