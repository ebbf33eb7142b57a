"""Named tensors in several files with an index, as transformers and safetensors' users read them.

`model.safetensors` becomes `model-00001-of-00003.safetensors`, … and `model.safetensors.index.json`. Source:
huggingface_hub 2.4 `serialization/_base.py` `split_state_dict_into_shards_factory`: tensors go into shards in their
order, one that is larger than a shard into one of its own, tensors that share memory into the same one; what fits one
shard is a file without index.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import ModelError, T7BridgeError
from ..formats import home
from ..formats.named import Name, NamedTensors, plan_views
from ..formats.shards import files_of
from ..formats.table import INDEX_SUFFIX, FormatSpec
from ..io.output import FileOutput, check_replaceable, local_target, outputs_in
from ..io.source import ByteSource, check_target
from ..limits import DEFAULT_LIMITS
from ..report import Report, check_strict
from ..text import counted
from .options import byte_count
from .request import note_ignored, serve_without_wrong_records
from .state_dicts import note_texts
from .targets import named_value

if TYPE_CHECKING:
    from ..formats.table import Document
    from .request import Attempt


def write_shards(document: Document, goal: FormatSpec, request: Attempt) -> Report:
    """Write the tensors of a file as shards of at most `request.shard_size` bytes, with an index; return the report.

    If a record of the source turns out to be wrong, they are written again without it.

    Raises:
        ModelError: the size is not positive.
        TargetExistsError: a file exists and `force` is not set.
        WriteError: a file cannot be written; none is left behind.
    """
    return serve_without_wrong_records(request, lambda attempt: _write_once(document, goal, attempt))


def _write_once(document: Document, goal: FormatSpec, request: Attempt) -> Report:
    """Write the shards and their index, or one file without index, in one attempt; return the report.

    Files of a checkpoint of this name that are not among those written are removed.

    Args:
        document: the source.
        goal: the format of the shards.
        request: the present attempt.

    Raises:
        ModelError: the size of a shard is not positive.
        TargetExistsError: a file exists and `force` is not set.
        RecordError: a record of the source was wrong; nothing was written.
    """
    shard_bytes = byte_count(request.shard_size or 0)
    if shard_bytes < 1:
        raise ModelError("the size of a shard is a positive number of bytes", found=str(shard_bytes))
    target = local_target(request.target)
    check_replaceable(target, request.force)
    report = Report(document.path, target, document.format, goal.name, "tensors", source_bytes=document.source.size)
    note_ignored(request, report)
    shards = _shards_of(named_value(document, goal, request, report), shard_bytes)
    _write_files(shards, target, goal, request, report)
    return report


def _write_files(shards: list[NamedTensors], target: str, goal: FormatSpec, request: Attempt, report: Report) -> None:
    """Write the shards and their index, or one file without index, and remove files that these replace.

    Args:
        shards: the content of each file, at least one.
        target: path of the only file, from which the names of several are made.
        goal: the format of the shards.
        request: the present attempt.
        report: gets the numbers of tensors and bytes, notes, and of several files the index as its target.
    """
    folder, name = os.path.split(target)
    has_index = len(shards) > 1
    index_name = name + INDEX_SUFFIX
    shard_names = _shard_names(name, len(shards)) if has_index else [name]
    names = [*shard_names, index_name] if has_index else shard_names
    outdated_paths = _outdated_files(folder, name, names, request)
    # The index first: outputs are renamed in the opposite order, and it never names files that are not there.
    with outputs_in(folder or ".", names[::-1], force=request.force, sync=request.sync) as outputs:
        _write_shards(shards, [outputs[shard_name] for shard_name in shard_names], goal, report)
        if has_index:
            outputs[index_name].write(_index_text(shards, shard_names))
            report.target = os.path.join(folder, index_name)
            message = f"{counted(len(shards), 'shard')}: {shard_names[0]} …"
            report.note("info", message, code="shards", count=len(shards))
        if request.edits is not None:
            for output in outputs.values():
                output.wait()  # until all elements are read: only then it is known how many became infinite
            request.edits.note_written(report)
        check_strict(report, request.strict)
    for path in outdated_paths:
        with suppress(FileNotFoundError):
            os.unlink(path)
    report.target_bytes = sum(output.position for output in outputs.values())


def _write_shards(shards: list[NamedTensors], outputs: list[FileOutput], goal: FormatSpec, report: Report) -> None:
    """Write each shard to its output, by the module of the format; add the numbers of tensors to the report."""
    for shard, output in zip(shards, outputs):
        written = home(goal.name).write(output, shard)
        note_texts(written, shard, goal, report)
        report.tensors += written.tensors
        report.storages += written.storages


def _shard_names(name: str, count: int) -> list[str]:
    """Return the names of the shards of a checkpoint: `model-00001-of-00003.safetensors` and so on."""
    start, suffix = os.path.splitext(name)
    return [f"{start}-{number:05}-of-{count:05}{suffix}" for number in range(1, count + 1)]


def _index_text(shards: list[NamedTensors], shard_names: list[str]) -> bytes:
    """Return the index of a checkpoint: JSON with the shard of each tensor, and the bytes of all tensors.

    Args:
        shards: what is in each file.
        shard_names: the names of these files.
    """
    shard_of_tensor: dict[str, str] = {}
    total_bytes = 0
    for shard, shard_name in zip(shards, shard_names):
        for steps, tensor in shard.tensors.items():
            shard_of_tensor[".".join(steps)] = shard_name
            total_bytes += tensor.nbytes
    index = {"metadata": {"total_size": total_bytes}, "weight_map": shard_of_tensor}
    text = json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    # Lone surrogates, which UTF-8 does not allow, become the escapes that JSON has for them.
    return text.encode("utf-8", "backslashreplace")


def _outdated_files(folder: str, name: str, names: list[str], request: Attempt) -> list[str]:
    """Return the files of the checkpoint that this one replaces, under other names: of another number of shards.

    Readers would take them for this checkpoint.

    Args:
        folder: the folder.
        name: of the checkpoint, `model.safetensors`.
        names: of the files that are to be written.
        request: of the conversion.

    Raises:
        TargetExistsError: there are such files, and `force` is not set; or one is a file that this call reads.
    """
    outdated_names = _files_replaced(folder, name) - set(names)
    if outdated_names and not request.force:
        # Raises the error: a checkpoint of one file was refused by the caller, so that there is an index.
        check_replaceable(os.path.join(folder, name + INDEX_SUFFIX), force=False)
    paths = [os.path.join(folder, outdated_name) for outdated_name in sorted(outdated_names)]
    for path in paths:
        check_target(path)  # the checkpoint that is read is not removed
    return paths


def _files_replaced(folder: str, name: str) -> set[str]:
    """Return the names of the files of a checkpoint in a folder: of one file, and of an index with its shards.

    Args:
        folder: the folder.
        name: of the checkpoint, `model.safetensors`. Files that an index names otherwise than t7bridge are not listed.
    """
    names = {name} if os.path.isfile(os.path.join(folder, name)) else set()
    index = os.path.join(folder, name + INDEX_SUFFIX)
    if not os.path.isfile(index):
        return names
    start, suffix = os.path.splitext(name)
    pattern = re.compile(rf"{re.escape(start)}-\d{{5}}-of-\d{{5}}{re.escape(suffix)}")
    # Not opened as a source by its path: that would be an input of this call, which no output may replace. One byte
    # more than an index may have is read, so that a longer one is refused, not cut.
    with suppress(T7BridgeError, OSError), open(index, "rb") as file:
        source, _ = ByteSource.open(file.read(DEFAULT_LIMITS.header_bytes + 1))
        names.update(name for name in files_of(source, DEFAULT_LIMITS) if pattern.fullmatch(name))
    return names | {os.path.basename(index)}


def _shards_of(named: NamedTensors, most_bytes: int) -> list[NamedTensors]:
    """Divide tensors into shards, see `_names_of_shards`; the first has the metadata of the whole."""
    shards: list[NamedTensors] = []
    for names in _names_of_shards(named, most_bytes):
        tensors = {name: named.tensors[name] for name in names}
        metadata = named.metadata if not shards else {}
        views, _separate = plan_views(tensors)
        shards.append(NamedTensors(tensors, metadata, views))
    return shards


def _names_of_shards(named: NamedTensors, most_bytes: int) -> list[list[Name]]:
    """Divide the names of tensors into shards of at most so many bytes, in order; those of one storage stay together.

    Args:
        named: all tensors, with their views.
        most_bytes: of one shard; tensors of one storage that have more are a shard of their own.
    """
    names_by_storage: dict[object, list[Name]] = {}
    for name in named.tensors:
        view = named.views.get(name)
        storage_or_name = name if view is None else view.storage  # a tensor that shares no memory is alone
        names_by_storage.setdefault(storage_or_name, []).append(name)
    names_by_shard: list[list[Name]] = []
    current: list[Name] = []
    current_bytes = 0
    for names in names_by_storage.values():
        size = sum(named.tensors[name].nbytes for name in names)
        if size > most_bytes:  # a shard of its own
            names_by_shard.append(names)
            continue
        if current_bytes + size > most_bytes:  # the current shard is full
            names_by_shard.append(current)
            current = []
            current_bytes = 0
        current += names
        current_bytes += size
    if current:
        names_by_shard.append(current)
    return names_by_shard
