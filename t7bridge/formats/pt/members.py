"""Members of PyTorch's archives: what each is called, and what a writer puts into some of them.

Source: PyTorch 2.13 `torch/serialization.py` `_save`; `caffe2/serialize/inline_container.cc`;
`torch/package/package_exporter.py`.
"""

from __future__ import annotations

from ...io.copy import sha256

DATA_MEMBER = "data.pkl"
VERSION_MEMBER = "version"
OLD_VERSION_MEMBER = ".data/version"
FORMAT_MEMBER = ".format_version"
ALIGNMENT_MEMBER = ".storage_alignment"
BYTEORDER_MEMBER = "byteorder"
ID_MEMBER = ".data/serialization_id"
STORAGE_FOLDER = "data/"
TRACED_FOLDER = "traced_inputs/"
"""Folder of the storages of `traced_inputs.pkl`, a traced module's inputs: PyTorch does not write their elements."""
RECORD_MEMBER = ".t7bridge/record"
"""Our member: what a `.pt` cannot hold of a `.t7`. PyTorch reads members by name and never looks at it."""

CONSTANTS_MEMBER = "constants.pkl"
"""The member that archives of TorchScript and of the C++ API have beside their value."""
MODEL_MEMBER = "model.json"
"""The modules of TorchScript of 1.0 to 1.2."""
PT2_MEMBERS = ("archive_format", "serialized_exported_program.json")
"""Members of archives of torch.export: of 2.7 and newer, and of older releases."""
PACKAGE_FOLDER = ".data/"
"""Folder of torch.package for storages, `KEY.storage`, and information about the archive."""
PACKAGE_MEMBER = ".data/extern_modules"
"""The member that identifies archives of torch.package."""

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
"""The first two pickles of a file of PyTorch 0.2 to 1.5."""

ROOT_FOLDER = "archive"
ARCHIVE_VERSION = b"3\n"


def content_id(members: list[tuple[str, int, int]]) -> str:
    """Return a hash over the members of an archive's value, by which changes since its record was written are detected.

    Args:
        members: name below the root folder, size in bytes and CRC-32 of every member.
    """
    digest = sha256()
    for name, size, crc in sorted(members):
        # The value is the pickle and its storages: the other members may change.
        if name == DATA_MEMBER or name.startswith(STORAGE_FOLDER):
            digest.update(f"{name}\0{size}\0{crc}\n".encode())
    return digest.hexdigest()
