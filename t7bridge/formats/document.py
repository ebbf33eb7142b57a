"""Results of reading and writing a file of any format."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..data import define
from ..errors import about_file
from .table import FORMATS, FormatSpec

if TYPE_CHECKING:
    from ..io.source import ByteSource
    from ..report import Note


class Document:
    """An open file: its format, its values and its metadata.

    Values are read on demand, and their weights stay in the file: it is open until the document is closed, or else as
    long as one of its storages is in use. A context manager.

    Args:
        format: name of the format.
        source: the file.
        load: reads all values of the file.
        content: the result of the format's own reader: a `T7File`, a `PtReader`; `None` if it adds nothing.
        notes: what reading left out, filled by `load`.
        warn: issues a warning if the file is incomplete; receives the stack depth.
        forget: releases what `load` and `content` keep.

    Attributes:
        format: name of the format, as in `--to`.
        source: the file.
        layout: how the values are encoded: a `T7Layout`; of a `.pt` its kind (`zip`, `legacy`, …); else `None`.
        metadata: strings stored in the file besides its values.
    """

    def __init__(
        self,
        format: str,
        source: ByteSource,
        load: Callable[[], list[Any]],
        *,
        content: Callable[[], Any] = lambda: None,
        layout: Callable[[], Any] = lambda: None,
        metadata: dict[str, str] | None = None,
        notes: list[Note] | None = None,
        warn: Callable[[int], None] = lambda stacklevel: None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.format = format
        self.source = source
        self.metadata = metadata or {}
        self._notes = notes if notes is not None else []
        self._warn = warn
        self._load = load
        self._forget = forget
        self._content = content
        self._layout = layout
        self._roots: list[Any] | None = None

    @property
    def spec(self) -> FormatSpec:
        """The format's entry in the table of formats: what it can hold, its reader and writer."""
        return FORMATS[self.format]

    @property
    def path(self) -> str:
        """The path of the file, or a description of the source."""
        return self.source.name

    @property
    def roots(self) -> list[Any]:
        """All values of the file; most files hold one.

        Raises:
            FormatError: the file is damaged.
        """
        if self._roots is None:
            with about_file(self.path):
                self._roots = self._load()
        return self._roots

    @property
    def value(self) -> Any:
        """The value of the file, or the list of its values if it holds several."""
        return self.roots[0] if len(self.roots) == 1 else self.roots

    @property
    def first(self) -> Any:
        """The first value, which Lua's `torch.load` returns."""
        return self.roots[0]

    def narrow(self, part: Any) -> None:
        """Make a part of the document's value the only value of it."""
        whole = self.content
        self._roots = [part]
        self._load = lambda: [part]
        self._content = lambda: whole.part(part) if hasattr(whole, "part") else whole

    def warn(self, stacklevel: int = 2) -> None:
        """Issue an `IncompleteFileWarning` if unreadable bytes follow the values."""
        self._warn(stacklevel + 1)

    @property
    def content(self) -> Any:
        """The format's own reader: a `T7File`, a `PtReader`; `None` if it adds nothing."""
        return self._content()

    @property
    def layout(self) -> Any:
        """Encoding of the values."""
        return self._layout()

    @property
    def foreign(self) -> list[str]:
        """The names of classes and functions in the file that are not part of PyTorch; none was called."""
        return list(getattr(self.content, "foreign", ()))

    @property
    def notes(self) -> list[Note]:
        """Notes about what reading left out, and other information for users; complete once the values are read."""
        return [*self._notes, *getattr(self.content, "notes", ())]

    def verify(self) -> None:
        """Verify the checksums in the file, if any.

        Raises:
            CorruptError: one is wrong.
        """
        check = getattr(self.content, "verify", None)
        if check is not None:
            check()

    def forget(self) -> None:
        """Release the values, which are read again if they are asked for again."""
        self._roots = None
        self._forget()

    def close(self) -> None:
        """Close the file. Storages whose elements are still in it can no longer be read."""
        self.source.close()

    def __enter__(self) -> Document:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Document {self.format}: {self.path!r}>"


@define(frozen=True)
class Written:
    """Result of writing a file.

    Attributes:
        tensors: number of tensors.
        storages: number of storages.
        left_out: names of texts of the metadata for which there was no room.
    """

    tensors: int = 0
    storages: int = 0
    left_out: tuple[str, ...] = ()
