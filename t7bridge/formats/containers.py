"""Formats of archives and folders, identified by the names of their members."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..errors import T7BridgeError, UnknownFormatError
from .table import FORMATS, FormatSpec

if TYPE_CHECKING:
    from ..io.source import ByteSource, PathLike
    from ..limits import Limits


def archive_format(source: ByteSource, found: list[FormatSpec], limits: Limits | None) -> FormatSpec:
    """Return the format of a zip archive, by the names of its members; the last one if it is damaged."""
    from ..limits import DEFAULT_LIMITS
    from .pt.zip.archive_reader import ZipArchive

    try:
        names = list(ZipArchive(source, limits or DEFAULT_LIMITS, exact_case=True).members)
    except T7BridgeError:
        return found[-1]  # its reader reports the damage
    return next((spec for spec in found if spec.members is not None and spec.members(names)), found[-1])


def folder_format(path: PathLike) -> FormatSpec:
    """Return the format of a folder, by the names of its files.

    Raises:
        UnknownFormatError: no format matches.
    """
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise T7BridgeError(f"cannot be read: {error.strerror}", file=os.fspath(path)) from error
    for spec in FORMATS.values():
        if spec.folder is not None and spec.folder(names):
            return spec
    raise UnknownFormatError("is not a regular file", file=os.fspath(path), hint="Give the path of a file.")
