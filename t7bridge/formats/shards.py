"""Checkpoints in several files with an index: `model.safetensors.index.json`, `pytorch_model.bin.index.json`.

The index is a JSON object whose `weight_map` maps each tensor to its file in the same folder. Source:
huggingface_hub's `serialization/_base.py` and transformers' `save_pretrained`, which write it.
"""

from __future__ import annotations

import os
from posixpath import join
from typing import Any

from ..errors import CorruptError, UnsupportedError, about_file
from ..graph.tensor import Tensor
from ..io.source import ByteSource, PathLike, Readable
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Note
from . import open as open_file
from .fields import Fields
from .table import Document

INDEX_SUFFIX = ".index.json"


def read_folder(folder: PathLike, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a folder that has an index.

    Raises:
        UnsupportedError: it has several.
        FormatError: the index or a file is damaged, or a file is missing.
    """
    path = os.fspath(folder)
    found = sorted(name for name in os.listdir(path) if name.endswith(INDEX_SUFFIX))
    if len(found) != 1:
        raise UnsupportedError(
            "the folder has several indices",
            file=path,
            found=", ".join(found[:4]),
            hint="Give the path of one of them.",
        )
    return read(os.path.join(path, found[0]), limits)


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open an index; its files are opened when the values are read.

    Raises:
        FormatError: the index is damaged.
    """
    index, _ = ByteSource.open(source)
    notes: list[Note] = []
    return Document("shards", index, lambda: [_tensors(index, limits, notes)], notes=notes)


def _tensors(index: ByteSource, limits: Limits, notes: list[Note]) -> dict[str, Tensor]:
    """Return the tensors of all files, in the order of the index."""
    places = _weight_map(index, limits)
    folder = os.path.dirname(index.name)
    values: dict[str, Any] = {}
    for file in dict.fromkeys(places.values()):
        value = open_file(join(folder, file), limits=limits).value
        if not isinstance(value, dict):
            raise CorruptError("a file of a checkpoint is not a state dict", file=join(folder, file))
        values[file] = value
    found: dict[str, Tensor] = {}
    for name, file in places.items():
        tensor = values[file].get(name)
        if not isinstance(tensor, Tensor):
            raise CorruptError("the file lacks a tensor that the index names", file=join(folder, file), path=name)
        found[name] = tensor
    for file, value in values.items():
        rest = [str(name) for name in value if name not in places]
        if rest:
            notes.append(
                Note(
                    "warning",
                    rest[0],
                    f"{file} has {len(rest)} values that the index does not name; they are left out",
                    code="left-out",
                    count=len(rest),
                )
            )
    return found


def files_of(index: ByteSource, limits: Limits) -> list[str]:
    """Return the names of the files that an index refers to, in its folder.

    Raises:
        FormatError: the index is damaged.
        LimitError: it is too large.
    """
    return list(dict.fromkeys(_weight_map(index, limits).values()))


def _weight_map(index: ByteSource, limits: Limits) -> dict[str, str]:
    if index.size > limits.header_bytes:
        raise limits.exceeded("header_bytes", "the index is too large", found=f"{index.size} bytes")
    with about_file(index.name):
        places = Fields.parse(index.read(0, index.size), "the index of a checkpoint").get("weight_map", dict)
        for file in places.values():
            sound = isinstance(file, str) and file == os.path.basename(file) and not {"\0", "\\"} & set(file)
            if not sound or file in ("", ".", ".."):
                raise CorruptError(
                    "the index names a file outside its folder", expected="names of files", found=ascii(file)[:80]
                )
    return dict(places)
