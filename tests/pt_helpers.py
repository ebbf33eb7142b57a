"""Shared helpers for `.pt` files: PyTorch's own view of a value, and files assembled by hand."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers import TESTFILES, module_of

from t7bridge import Limits, PtReader
from t7bridge.formats import Origin, PickleContext, Unpickler
from t7bridge.io import ByteSource
from t7bridge.limits import DEFAULT_LIMITS
from t7bridge.values import describe_python

PT = TESTFILES / "pt"


def torch_describe(value: Any) -> Any:
    """Describe a value as PyTorch sees it, by the very function that made the JSON of the corpus."""
    return module_of(TESTFILES / "gen/pt_describe.py").describe(value)


def torch_type(name: str) -> Any:
    """The element type of PyTorch of this name; the test is skipped if the installed release lacks it."""
    import torch

    return getattr(torch, name, None) or pytest.skip(f"PyTorch {torch.__version__} has no {name}")


def saved(value: Any, **how: Any) -> bytes:
    """A value as `torch.save` writes it."""
    import torch

    file = io.BytesIO()
    torch.save(value, file, **how)
    return file.getvalue()


def written_by(kind: type, value: Any, **options: Any) -> bytes:
    """The bytes of a file that a writer of the package makes of a value."""
    file = io.BytesIO()
    writer = kind(file, **options)
    writer.write(value)
    writer.finish()
    return file.getvalue()


def described(data: Any, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Return the description of a file by `PtReader` and `describe_python`."""
    return describe_python(PtReader(data, limits=limits).read())


def golden(path: Path) -> Any:
    """Return PyTorch's description of a file of the corpus."""
    return json.loads((path.parent / (path.name[:-3] + ".json")).read_text())["tree"]


def unpickled(data: bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[Any, list[str]]:
    """The value of a pickle, and the globals in it that have no meaning."""
    origin = Origin(ByteSource.from_bytes(data), limits)
    value = Unpickler(origin.source, 0, len(data), PickleContext(origin)).load()
    return value, list(origin.foreign)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive as Python writes it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def members_of(data: bytes) -> dict[str, bytes]:
    """The members of a zip archive, as Python reads them."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def text(value: str) -> bytes:
    """BINUNICODE."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def storage_id(kind: str, key: str, count: int, location: str = "cpu", tail: bytes = b"") -> bytes:
    """A persistent id that names a storage, and the opcode that asks for it."""
    parts = text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text(location)
    return b"(" + parts + b"J" + struct.pack("<i", count) + tail + b"tQ"


def tensor(storage: bytes, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """A tensor as `_rebuild_tensor_v2` makes it."""
    numbers = [b"(" + b"".join(b"J" + struct.pack("<i", n) for n in values) + b"t" for values in (size, stride)]
    offset_code = b"J" + struct.pack("<i", offset)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset_code + b"".join(numbers) + b"\x89NtR"
