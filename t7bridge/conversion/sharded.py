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

from ..errors import ModelError, RecordError, T7BridgeError
from ..formats import home
from ..formats.named import Name, NamedTensors, plan_views
from ..formats.shards import files_of
from ..formats.table import INDEX_SUFFIX, FormatSpec
from ..io.output import check_replaceable, local_target, outputs_in
from ..io.source import ByteSource, check_target
from ..limits import DEFAULT_LIMITS
from ..report import Report, check_strict
from ..text import counted
from .options import byte_count
from .request import note_ignored
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
    try:
        return _write_once(document, goal, request)
    except RecordError as error:
        report = _write_once(document, goal, request.without_records())
        report.note("warning", f"{error.message}: its record is not used", code="record")
        return report


def _write_once(document: Document, goal: FormatSpec, request: Attempt) -> Report:
    size = byte_count(request.shard_size or 0)
    if size < 1:
        raise ModelError("the size of a shard is a positive number of bytes", found=str(size))
    target = local_target(request.target)
    folder, name = os.path.split(target)
    check_replaceable(target, request.force)
    report = Report(document.path, target, document.format, goal.name, "tensors", source_bytes=document.source.size)
    note_ignored(request, report)
    named = named_value(document, goal, request, report)
    shards = _shards_of(named, size)
    names = [name]
    index_name = name + INDEX_SUFFIX
    if len(shards) > 1:
        start, suffix = os.path.splitext(name)
        names = [f"{start}-{number:05}-of-{len(shards):05}{suffix}" for number in range(1, len(shards) + 1)]
        names.append(index_name)
    # Files of the checkpoint that this one replaces, under other names: another number of shards.
    outdated = _files_replaced(folder, name) - set(names)
    if outdated and not request.force:
        check_replaceable(os.path.join(folder, index_name), force=False)
    for old_name in outdated:
        check_target(os.path.join(folder, old_name))  # the checkpoint that is read is not removed
    # The index first: outputs are renamed in the opposite order, and it never names files that are not there.
    with outputs_in(folder or ".", names[::-1], force=request.force, sync=request.sync) as outputs:
        places: dict[str, str] = {}
        total_bytes = 0
        for shard, shard_name in zip(shards, names):
            written = home(goal.name).write(outputs[shard_name], shard)
            note_texts(written, shard, goal, report)
            report.tensors += written.tensors
            report.storages += written.storages
            places.update(dict.fromkeys(map(".".join, shard.tensors), shard_name))
            total_bytes += sum(tensor.nbytes for tensor in shard.tensors.values())
        if len(shards) > 1:
            index = {"metadata": {"total_size": total_bytes}, "weight_map": places}
            text = json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            outputs[index_name].write(text.encode("utf-8", "backslashreplace"))
            report.target = os.path.join(folder, index_name)
            report.note("info", f"{counted(len(shards), 'shard')}: {names[0]} …", code="shards", count=len(shards))
        if request.edits is not None:
            for output in outputs.values():
                output.wait()  # until all elements are read: only then it is known how many became infinite
            request.edits.note_written(report)
        check_strict(report, request.strict)
    # Readers would take a file or an index of another run for this checkpoint.
    for old_name in outdated:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, old_name))
    report.target_bytes = sum(output.position for output in outputs.values())
    return report


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
    # Its bytes, as a file that is opened as a source becomes an input, which no output may replace.
    with suppress(T7BridgeError, OSError), open(index, "rb") as file:
        source, _ = ByteSource.open(file.read(DEFAULT_LIMITS.header_bytes + 1))
        names.update(name for name in files_of(source, DEFAULT_LIMITS) if pattern.fullmatch(name))
    return names | {os.path.basename(index)}


def _shards_of(named: NamedTensors, most_bytes: int) -> list[NamedTensors]:
    """Divide tensors into shards of at most so many bytes, in their order; those of one storage stay together."""
    names_by_storage: dict[object, list[Name]] = {}  # a tensor that shares no memory is alone, under its name
    for name in named.tensors:
        view = named.views.get(name)
        names_by_storage.setdefault(name if view is None else view.storage, []).append(name)
    names_by_shard: list[list[Name]] = []
    current: list[Name] = []
    current_bytes = 0
    for names in names_by_storage.values():
        size = sum(named.tensors[name].nbytes for name in names)
        if size > most_bytes:  # a shard of its own
            names_by_shard.append(names)
            continue
        if current_bytes + size > most_bytes:
            names_by_shard.append(current)
            current = []
            current_bytes = 0
        current += names
        current_bytes += size
    if current:
        names_by_shard.append(current)
    shards: list[NamedTensors] = []
    for names in names_by_shard:
        tensors = {name: named.tensors[name] for name in names}
        # Strings that belong to the whole are in the first file.
        metadata = named.metadata if not shards else {}
        views, _separate = plan_views(tensors)
        shards.append(NamedTensors(tensors, metadata, views))
    return shards
