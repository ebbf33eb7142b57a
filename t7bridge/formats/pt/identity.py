"""The identity of an archive's value, by which changes of the file since its record was written are detected."""

from __future__ import annotations

from ...io.checksums import sha256
from .layout import DATA_MEMBER, STORAGE_FOLDER


def content_id(members: list[tuple[str, int, int]]) -> str:
    """Return a hash over the members that make up an archive's value.

    Args:
        members: name below the root folder, size in bytes and CRC-32 of every member.
    """
    digest = sha256()
    for name, size, crc in sorted(members):
        if name == DATA_MEMBER or name.startswith(STORAGE_FOLDER):
            digest.update(f"{name}\0{size}\0{crc}\n".encode())
    return digest.hexdigest()
