"""Checkpoints in several files with an index: `model.safetensors.index.json`, `pytorch_model.bin.index.json`.

The index is a JSON object whose `weight_map` maps each tensor to its file in the same folder. Source:
huggingface_hub's `serialization/_base.py` and transformers' `save_pretrained`, which write it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from posixpath import join
from typing import Any

from ..errors import CorruptError, UnsupportedError, about_file
from ..graph.tensor import Tensor
from ..io.source import ByteSource, PathLike, Readable
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Note
from ..text import counted
from . import open as open_file
from .fields import Fields
from .table import INDEX_SUFFIX, Document


def read_folder(folder: PathLike, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open a folder that has an index; see `read`.

    Raises:
        UnsupportedError: it has several.
    """
    path = os.fspath(folder)
    indices = sorted(name for name in os.listdir(path) if name.endswith(INDEX_SUFFIX))
    if len(indices) != 1:  # several: a folder without one is not of this format
        raise UnsupportedError(
            "the folder has several indices",
            file=path,
            found=", ".join(indices[:4]),
            hint="Give the path of one of them.",
        )
    return read(os.path.join(path, indices[0]), limits)


def read(source: Readable | ByteSource, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Open an index. It is read, and its files are opened, when the document's values are asked for.

    Args:
        source: a path of the index; the files are in its folder.
        limits: resource limits.
    """
    index, _ = ByteSource.open(source)
    # Filled when the values are read, like the document's.
    metadata: dict[str, str] = {}
    notes: list[Note] = []
    return Document("shards", index, lambda: [_tensors(index, limits, metadata, notes)], metadata=metadata, notes=notes)


def _tensors(index: ByteSource, limits: Limits, metadata: dict[str, str], notes: list[Note]) -> dict[str, Tensor]:
    """Return the tensors of all files that the index names, in the order of the index.

    Args:
        index: the index.
        limits: resource limits.
        metadata: receives the strings of the files; of several with one name, that of the first file.
        notes: receives what the files have besides.

    Raises:
        CorruptError: a file lacks a tensor, or is not a state dict.
    """
    weight_map = _weight_map(index, limits)
    folder = os.path.dirname(index.name)
    state_dicts = _state_dicts(index, limits, metadata)
    tensors: dict[str, Tensor] = {}
    for name, file in weight_map.items():
        tensor = state_dicts[file].get(name)
        if not isinstance(tensor, Tensor):
            raise CorruptError("the file lacks a tensor that the index names", file=join(folder, file), path=name)
        tensors[name] = tensor
    notes += _notes_of_left_out(state_dicts, weight_map)
    return tensors


def _notes_of_left_out(state_dicts: Mapping[str, Mapping[Any, Any]], weight_map: Mapping[str, str]) -> list[Note]:
    """Return a note for each file with values whose names are not in the index.

    A tensor that the index maps to another file is a copy there, and not noted.
    """
    notes: list[Note] = []
    for file, state_dict in state_dicts.items():
        names = [str(name) for name in state_dict if name not in weight_map]
        if names:
            text = f"{file} has {counted(len(names), 'value')} that the index does not name, left out"
            notes.append(Note("warning", path=names[0], message=text, code="left-out", count=len(names)))
    return notes


def _state_dicts(index: ByteSource, limits: Limits, metadata: dict[str, str]) -> dict[str, dict[Any, Any]]:
    """Return the content of each file that an index names, by the name of the file.

    Args:
        index: the index.
        limits: resource limits.
        metadata: receives the strings of the files, see `_tensors`.

    Raises:
        CorruptError: a file is not a state dict.
    """
    folder = os.path.dirname(index.name)
    state_dicts: dict[str, dict[Any, Any]] = {}
    for file in files_of(index, limits):
        shard = open_file(join(folder, file), limits=limits)
        value = shard.value  # before the metadata are asked for: reading the value may add some
        if not isinstance(value, dict):
            raise CorruptError("a file of a checkpoint is not a state dict", file=join(folder, file))
        state_dicts[file] = value
        # `convert` writes strings about the whole into the first file.
        for name, text in shard.metadata.items():
            metadata.setdefault(name, text)
    return state_dicts


def files_of(index: ByteSource, limits: Limits) -> list[str]:
    """Return the names of the files that an index refers to, in its folder.

    Raises:
        FormatError: the index is damaged.
        LimitError: it is too large.
    """
    return list(dict.fromkeys(_weight_map(index, limits).values()))


def _weight_map(index: ByteSource, limits: Limits) -> dict[str, str]:
    """Return for each tensor the name of its file, checked: a file in the folder of the index.

    Raises:
        CorruptError: the index is damaged, or names something else than files of its folder.
        LimitError: it is too large.
    """
    if index.size > limits.header_bytes:
        raise limits.exceeded("header_bytes", "the index is too large", found=f"{index.size} bytes")
    with about_file(index.name):
        weight_map = Fields.parse(index.read(0, index.size), "the index of a checkpoint").get("weight_map", dict)
        for file in weight_map.values():
            if not _is_file_name(file):
                raise CorruptError(
                    "the index names a file outside its folder", expected="names of files", found=ascii(file)[:80]
                )
    return dict(weight_map)


def _is_file_name(file: Any) -> bool:
    """Return whether a value is the name of a file in a folder, on any system: a path could lead elsewhere."""
    if not isinstance(file, str) or file in ("", ".", ".."):
        return False
    return file == os.path.basename(file) and "\0" not in file and "\\" not in file
