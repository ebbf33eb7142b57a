"""Files of any format: `open` reads one, `write` writes one, `FORMATS` says what each can hold.

This module and `table` know which formats there are; no other part of the package asks which one a file has. A format
is a module beside this one, loaded when a file of its is met, and knows no other.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from .table import FORMATS, LUA, NAMED, PYTHON, SUFFIXES, FormatSpec

if TYPE_CHECKING:
    from ..io.source import ByteSource, PathLike, Readable
    from ..limits import Limits
    from .document import Document, Written

__all__ = ["FORMATS", "LUA", "NAMED", "PYTHON", "SUFFIXES", "FormatSpec", "format_for", "format_of", "open", "write"]


def open(source: Readable | ByteSource, *, limits: Limits | None = None, **options: Any) -> Document:
    """Open a file of any format, told by its content.

    Args:
        source: a path, bytes, or a binary file object, whose position must be 0 but for a `.t7`.
        limits: resource limits.
        **options: of the format's reader.

    Returns:
        The document: its format, values and layout. Nothing but what tells the format was read yet.

    Raises:
        T7BridgeError: the file cannot be opened.
        UnknownFormatError: it has no known format; the message says what it is instead.

    Example:
        >>> with t7bridge.open("model.t7") as document:
        ...     document.format, len(document.roots)
    """
    from ..io.source import ByteSource
    from ..limits import DEFAULT_LIMITS

    limits = limits or DEFAULT_LIMITS
    if isinstance(source, (str, os.PathLike)) and os.path.isdir(source):
        from .containers import folder_format

        spec = folder_format(source)
        return _home(spec).read_folder(os.fspath(source), limits, **options)  # type: ignore[no-any-return]
    opened, start = ByteSource.open(source)
    if start:  # a value in the middle of a file object: only a `.t7` can be one
        return _home(FORMATS["t7"]).read(source, limits, **options)  # type: ignore[no-any-return]
    return _home(format_of(opened, limits)).read(opened, limits, **options)  # type: ignore[no-any-return]


def format_of(source: ByteSource, limits: Limits | None = None) -> FormatSpec:
    """The format of a file by its content, whatever its name.

    Raises:
        UnknownFormatError: its format cannot be read; the message says what it is.
    """
    from .signatures import HEAD_BYTES, identify

    signature = identify(source.read(0, HEAD_BYTES))
    if signature is None:
        return FORMATS["t7"]  # its reader finds out
    found = formats_with(signature.kind)
    if not found:
        from ..errors import UnknownFormatError

        hint = signature.hint or f"t7bridge reads {known_suffixes()} files."
        raise UnknownFormatError(f"is not a model but {signature.title}", file=source.name, hint=hint)
    if len(found) == 1:
        return found[0]
    from .containers import archive_format

    return archive_format(source, found, limits)


def formats_with(kind: str) -> list[FormatSpec]:
    """The formats whose files may begin as a kind of signature does."""
    return [spec for spec in FORMATS.values() if any(each.kind == kind for each in spec.signatures)]


def known_suffixes() -> str:
    """The suffix of each format, for messages."""
    return ", ".join(spec.suffix for spec in FORMATS.values() if spec.suffixes)


def format_for(path: PathLike, to: str | None = None) -> FormatSpec:
    """The format that is to be written.

    Args:
        path: of the file, whose suffix says it where nothing else does.
        to: its name.

    Raises:
        ModelError: there is no format of that name.
        UnsupportedError: the suffix says nothing.
    """
    if to is not None:
        if to not in FORMATS or not FORMATS[to].suffixes:
            from ..errors import ModelError

            written = " or ".join(name for name, spec in FORMATS.items() if spec.suffixes)
            raise ModelError(f"there is no format {to!r} to write", expected=written)
        return FORMATS[to]
    name = os.fspath(path)
    found = SUFFIXES.get(os.path.splitext(name)[1].lower())
    if found is None:
        from ..errors import UnsupportedError

        raise UnsupportedError(
            "cannot tell the format to write from this name",
            file=name,
            expected="a name that ends in " + ", ".join(SUFFIXES),
            hint="Say it by --to (to=…): " + ", ".join(name for name, spec in FORMATS.items() if spec.suffixes) + ".",
        )
    return found


def write(value: Any, path: PathLike, format: str | None = None, *, force: bool = False, **options: Any) -> Written:
    """Write a value that a format can hold as it is; `t7bridge.save` takes any.

    Args:
        value: Lua values for a `.t7`, builtins with tensors in them for a `.pt`, a dict of tensors for the others.
        path: of the file.
        format: its name; by the suffix of the path where not given.
        force: whether an existing file is replaced.
        **options: of the format's writer.

    Raises:
        TargetExistsError: the file exists and `force` is not set.
        UnsupportedError: the format does not have something in the value.
        WriteError: the disk refuses.
    """
    from ..io.output import FileOutput

    spec = format_for(path, format)
    with FileOutput(path, force=force) as output:
        return _home(spec).write(output, value, **options)  # type: ignore[no-any-return]


def home(name: str) -> Any:
    """The module of a format, by the format's name."""
    return _home(FORMATS[name])


def _home(spec: FormatSpec) -> Any:
    return importlib.import_module(f".{spec.home}", __name__)
