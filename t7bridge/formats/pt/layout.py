"""Constants of PyTorch's zip layout, shared by reader and writer.

Source: PyTorch 2.13 `torch/serialization.py`, `caffe2/serialize/inline_container.cc`.
"""

from __future__ import annotations

DATA_MEMBER = "data.pkl"
VERSION_MEMBER = "version"
FORMAT_MEMBER = ".format_version"
ALIGNMENT_MEMBER = ".storage_alignment"
BYTEORDER_MEMBER = "byteorder"
ID_MEMBER = ".data/serialization_id"
STORAGE_FOLDER = "data/"
RECORD_MEMBER = ".t7bridge/record"
"""Our member: what a `.pt` cannot hold of a `.t7`. PyTorch reads members by name and never looks at it."""

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
"""The first two pickles of a file of PyTorch 0.2 to 1.5."""

ROOT_FOLDER = "archive"
ALIGNMENT_BYTES = 64
ARCHIVE_VERSION = b"3\n"

PADDING_FIELD = b"FB"
"""The extra field of a local header that pads a member's data for alignment."""
