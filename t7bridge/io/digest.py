"""SHA-256, loaded where the first one is taken: that costs more than converting most files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash


def sha256(data: bytes = b"") -> _Hash:
    """A SHA-256 of some bytes, to which more can be added."""
    import hashlib

    return hashlib.sha256(data)
