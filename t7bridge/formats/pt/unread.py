"""The parts of a file outside its value: unread members, bytes after the value."""

from __future__ import annotations

from ...errors import CorruptError
from ...report import Note
from .checkpoint import PtArchive
from .layout import RECORD_MEMBER

_WEIGHT_FOLDERS = ("data", "constants", "weights", "tensors", "xl_model_weights")
_SHOWN = 5


def unread_storages(archive: PtArchive) -> list[str]:
    """Return the members, below the root folder, that look like storages but that no pickle refers to."""
    located = archive.located
    root = len(archive.root)
    return [
        name[root:]
        for name, member in archive.zip.members.items()
        if member.size
        and name not in located
        and name.startswith(archive.root)
        and name[root:].partition("/")[0] in _WEIGHT_FOLDERS
        and "/" in name[root:]
    ]


def check_storages(archive: PtArchive) -> list[Note]:
    """Note the storages that the value does not use.

    A `.pt` made from a `.t7` may have storages that only its record uses.

    Returns:
        A note if there are some.

    Raises:
        CorruptError: the archive has storages, but the value uses none of them.
    """
    unread = [] if archive.has(RECORD_MEMBER) else unread_storages(archive)
    if not unread:
        return []
    size = sum(archive.zip.members[archive.root + name].size for name in unread)
    shown = ", ".join(name[:60] for name in unread[:_SHOWN]) + (", …" if len(unread) > _SHOWN else "")
    if not any(archive.zip.members[name].size for name in archive.located if name in archive.zip):
        raise CorruptError(
            "holds weights, but its value refers to none of them",
            file=archive.zip.source.name,
            expected="a pickle that refers to them",
            found=f"{len(unread)} members of {size} bytes that nothing reads: {shown}",
            hint="Load the file in the program that wrote it, and save its state dict with torch.save.",
        )
    what = "member of the archive is" if len(unread) == 1 else "members of the archive are"
    return [
        Note(
            "warning",
            "",
            f"{len(unread)} {what} not part of its value and left out: {shown} ({size} bytes)",
            code="left-out",
            count=len(unread),
        )
    ]
