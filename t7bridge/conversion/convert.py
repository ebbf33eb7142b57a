"""`convert`: read a file of any format and write it in another, or a `.t7` in another encoding.

It asks what a format can hold, never which one it is: Lua values, Python values, or named tensors. Lua values are
written here, as a copy, a filled template, the original of a record, or tables; the others in `targets`. Only the
records, each stored in files of one kind to restore another, know `.t7` and `.pt`.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from attrs import evolve

from .. import formats
from ..data import collector_paused
from ..errors import FormatError, ModelError, WriteError, about_file
from ..formats import LUA, NAMED, PYTHON, FormatSpec
from ..formats.t7.layout import T7Layout
from ..graph.lua import TorchObject, Value
from ..graph.python import is_pickled_module
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import Path, walk
from ..io.output import FileOutput, Output
from ..io.source import inputs_protected
from ..report import Report, check_strict
from ..text import counted
from .options import takes
from .request import Attempt, Convert, check_options, note_ignored, serve_without_wrong_records
from .values import is_simple, metadata_left_out, note_plain_nans, note_states, value_of

if TYPE_CHECKING:
    from ..formats.t7.file import T7File
    from ..formats.t7.writer import T7Writer
    from ..formats.table import Document
    from .beside import Beside


@takes(Convert)
def convert(request: Convert) -> Report:
    """Convert a file of any format to any other, or a `.t7` to another encoding.

    Weights go from file to file without being loaded, whatever the formats.

    Args:
        source: the file to read; its format is detected by content.
        target: the file to write; its suffix selects the format.
        mode: how nn modules of a `.t7` are converted: `auto` replaces each module by its state dict with PyTorch's
            names, `tree` by a dict that keeps class, version and every field.
        to: the name of the format to write, one of those of `--to`, regardless of the suffix.
        encoding: of the `.t7` written: `binary` or `ascii`; that of the source by default.
        byte_order: of the `.t7` written: `little` or `big`.
        long_size: of the `.t7` written: bytes of a C long, 4 or 8.
        shard_size: bytes of a shard, or a text such as `"2GB"`: a `.safetensors` that would be larger becomes several
            files, `name-00001-of-00003.safetensors` and so on, and `name.safetensors.index.json`, which the report has
            as its target. Tensors that share memory are in one file.
        keep_device: keep CUDA tensors on `cuda:0` in a `.pt`, and of Cuda classes in a `.t7` made from a
            `.pt`; otherwise they are on the CPU.
        map_location: the device of tensors in a `.pt`: one for all (`"cuda:1"`), `"cuda:0=cuda:1,ipu=cpu"` or the same
            as a mapping, or a function of the name in the source. Devices not covered are treated as without it.
        record: write the round-trip record, from which the source can be restored, into the target, and use that of the
            source.
        nested: write `t.conv1.weight` instead of `t["conv1.weight"]` in a `.t7` made from another format.
        pt_format: of the `.pt` written: `zip`, `legacy` for PyTorch 0.2 to 1.5, or `torchscript` for `torch.jit.load`
            and C++, which holds named tensors only.
        template: for a `.t7` made from another format: the `.t7` whose models receive the state dicts of the source,
            under the keys that `auto` mode assigns. Everything else, including its encoding, is copied from it.
        partial: allow missing and extra keys in the state dict.
        at: the path of the part to convert, as `inspect` and the notes show it, `root.model`; the target holds nothing
            else, and no records are used. What describes a model, such as means, class names and options, is beside
            it: in `model.config.json` for a `model.pt`, in the metadata of named tensors.
        config: write what describes a model, and what a file that is one has of its own, beside a `.pt`.
        compact: write to a `.pt` made in `auto` mode only the part of each storage that tensors use: views become
            tensors of their own; overlapping and tied tensors stay so. The record is omitted.
        rename: rules for the keys of the state dict, `OLD=NEW` each, or a mapping: steps at the beginning of keys, or
            patterns with `{}`, which is any text; see `t7bridge.conversion.naming`. They apply one after the other.
            With several state dicts in the source `at` names one. PyTorch's `_metadata` follows.
        strip: prefixes to leave out of the keys before.
        dtype: `float16`, `bfloat16` or `float32`, to which all floating-point elements are rounded as by PyTorch; the
            notes count the tensors, and the elements that become infinite. A `.t7` has bfloat16 as FloatTensor.
        strict: fail if the target would hold less than the source: an element type that it does not have, lost
            precision, lost sharing, or anything else that would be a warning in the report.
        sync: return only when the target is on the disk, so that it survives a power cut; a target that replaces a file
            always is.
        allow_foreign: name classes and functions that `torch.load(weights_only=True)` refuses, as the source does;
            otherwise objects of such classes become plain data that names the class.

    Returns:
        The report, with notes for the user. A format that holds named tensors only receives those; the notes name the
        rest.

    Raises:
        FormatError: the source is damaged, or in no supported format.
        ModelError: the state dict does not fit the template; the message lists every key that does not. Or rules for
            names are not valid, or give two keys one name; or there is no state dict, or several.
        TargetExistsError: the target exists and `force` is not set, or it is the source or the template.
        WriteError: the target cannot hold the value, or the disk refuses; no file is left behind.
        OptionError: an option does not apply to these formats, or rules for names fit nothing.
        StrictError: with `strict`: the target would hold less; the error lists all notes.
    """
    return convert_as(request)


@inputs_protected()
def convert_as(request: Convert, *, must_fit: bool = True) -> Report:
    """Serve a request; see `convert`.

    Args:
        request: the options.
        must_fit: whether options that do not apply, and rules for names that fit nothing, are errors; else notes.
    """
    if request.classes is not None:
        from ..nn.registry import load_classes

        load_classes(request.classes)
    goal = formats.format_for(request.target, request.to)
    if request.partial and request.template is None:
        raise ModelError("partial requires a template", expected="template=…")
    template = request.template
    with (
        formats.open(request.source, limits=request.limits) as document,
        nullcontext() if template is None else formats.open(template, limits=request.limits) as model,
        about_file(document.path),
    ):
        beside_part: Beside | None = None
        if request.at is None:
            document.source.read_all()  # sets how a file at an address is read: in large ranges
        else:
            beside_part = _narrow_to_part(document, goal, request)
        # A record describes the whole file, not a part of it.
        attempt = Attempt.of(request, model=model, record=request.record and request.at is None, must_fit=must_fit)
        check_options(attempt, document.format, goal.name)
        if goal.values == NAMED:
            _add_metadata(document, beside_part)
        if request.shard_size is not None and goal.shards:
            return _convert_to_shards(document, goal, attempt, beside_part)
        return _convert_to_one_file(document, goal, attempt, beside_part)


def _narrow_to_part(document: Document, goal: FormatSpec, request: Convert) -> Beside | None:
    """Make the part of a file that is to be converted its only value; return what stands beside it there.

    Args:
        document: the file, which has nothing else afterwards.
        goal: the format of the target.
        request: with the path of the part, `at`, and whether a `config.json` is wanted.

    Returns:
        `None` where the target has no place for it, or where the part is neither a model nor a state dict, and has
        none in it.
    """
    assert request.at is not None
    whole = document.value
    part = Path.parse(request.at).get(whole)
    if part is not document.roots:  # the whole of a file with several values
        document.narrow(part)
    has_place = goal.values == NAMED or (goal.values == PYTHON and request.config)
    if not has_place:
        return None
    from .checkpoints import has_states

    if not has_states(part):
        return None
    from .beside import beside

    return beside(whole, part)


def _convert_to_shards(document: Document, goal: FormatSpec, attempt: Attempt, beside_part: Beside | None) -> Report:
    """Write several files and their index, and return the report.

    Args:
        document: the source.
        goal: the format of the files.
        attempt: the first, of which a second one may be made.
        beside_part: what stands beside the part that is converted, if anything. It is only noted: `_add_metadata` has
            put it among the strings that go into the first file.
    """
    from .sharded import write_shards

    with collector_paused():
        report = write_shards(document, goal, attempt)
    if beside_part is not None:
        beside_part.note(report, "the metadata")
    return report


def _convert_to_one_file(document: Document, goal: FormatSpec, attempt: Attempt, beside_part: Beside | None) -> Report:
    """Write the target, and beside a `.pt` the `config.json` of what describes the model; return the report.

    Args:
        document: the source.
        goal: the format of the target.
        attempt: the first, of which a second one may be made.
        beside_part: what stands beside the part that is converted; `None` for a whole file, and for a target that has
            no place for it.
    """
    may_have_config = goal.values == PYTHON and attempt.config  # named tensors have it in their metadata
    with FileOutput(attempt.target, force=attempt.force, sync=attempt.sync) as output, collector_paused():
        report = _write_checked(document, output, goal, attempt)
        beside_model = beside_part
        if beside_model is None and may_have_config:
            beside_model = _beside_whole(document, report)
        if beside_model is not None:
            _complete_and_note(beside_model, document, output, goal, report)
        check_strict(report, attempt.strict)
        # Within the output's block: if the config cannot be written, the output is not either.
        if may_have_config and beside_model:  # one without content is false: it has no config
            _write_config(beside_model, document, output, goal, attempt, report)
    if attempt.force and may_have_config and not beside_model and _has_our_config(output):
        os.unlink(_config_path(output))  # of the model that this one replaces
    report.target_bytes = os.path.getsize(output.path)
    return report


def _write_checked(document: Document, output: FileOutput, goal: FormatSpec, attempt: Attempt) -> Report:
    """Write the values of a file, without its records if one of them turns out to be wrong; return the report.

    Args:
        document: the source.
        output: of the target; a second attempt begins it anew.
        goal: the format of the target.
        attempt: the first, which trusts the records unless the request does without them.
    """

    def write(attempt: Attempt) -> Report:
        """Write the target in one attempt; see `serve_without_wrong_records`."""
        if not attempt.trusts_records:  # the second attempt: the output has what the first one wrote
            output.restart()
        name = str(attempt.target)
        report = Report(document.path, name, document.format, goal.name, source_bytes=document.source.size)
        note_ignored(attempt, report)
        _write(document, output, goal, attempt, report)
        if attempt.edits is not None:
            output.wait()  # until all elements are read: only then it is known how many became infinite
            attempt.edits.note_written(report)
        return report

    return serve_without_wrong_records(attempt, write)


def _beside_whole(document: Document, report: Report) -> Beside | None:
    """Return what is to stand in the `config.json` of a whole file that is written to a `.pt`.

    Args:
        document: the file.
        report: of writing the `.pt`, with its notes; receives one on a `config` in the metadata that is not ours.

    Returns:
        What an earlier conversion stored as `config` in the metadata. Without that, an empty `Beside`, to be completed,
        if the report says that data of the model itself are left out. Otherwise `None`.
    """
    config = document.metadata.get("config")
    if config is None and not _lacks_own(report):
        return None
    from .beside import Beside

    if config is None:
        return Beside()
    beside_model = Beside.from_text(config)
    if beside_model is None:
        report.note("info", metadata_left_out(["config"]), code="metadata", count=1)
    return beside_model


def _lacks_own(report: Report) -> bool:
    """Return whether the report names data of the model itself as left out."""
    return any(note.code == "left-out" and note.path.startswith("root.") for note in report.notes)


def _add_metadata(document: Document, beside_part: Beside | None) -> None:
    """Add to the metadata of a source the string that goes with its named tensors, if there is anything to say.

    For a part of the file it is `config`: what stands beside the part. For a whole file of Lua it is `about`: what the
    data in it mean, which are written with the tensors.

    Args:
        document: the source, whose `metadata` change.
        beside_part: what stands beside the part; `None` for a whole file, or for a part that is no model.
    """
    is_lua = document.spec.values == LUA
    if beside_part is not None:
        if beside_part.data:
            from .beside import config_text

            document.metadata["config"] = config_text(beside_part.config(is_lua))
        return
    if is_lua and any(isinstance(item, TorchObject) for item in document.content.objects):
        from .beside import about_in_metadata

        document.metadata.update(about_in_metadata(document.value))


def _complete_and_note(
    beside_model: Beside, document: Document, output: FileOutput, goal: FormatSpec, report: Report
) -> None:
    """Note where what stands beside the model is; for a `config.json`, add what the model itself has to it, too.

    Args:
        beside_model: what stands beside the model; receives the data of the model itself.
        document: the source.
        output: of the target, beside which the `config.json` will be.
        goal: the format of the target.
        report: receives the notes.
    """
    if goal.values == NAMED:
        # What the model itself has is among the strings of the file already, as all that is not a tensor.
        beside_model.note(report, "the metadata")
        return
    beside_model.note(report, os.path.basename(_config_path(output)))
    _add_own(beside_model, document, output, report)


def _write_config(
    beside_model: Beside, document: Document, output: FileOutput, goal: FormatSpec, attempt: Attempt, report: Report
) -> None:
    """Write the `config.json` beside an output.

    Args:
        beside_model: its content.
        document: the source, which says whether numbers count from 1, as Lua's do.
        output: of the target, which has no name yet.
        goal: the format of the target.
        attempt: says whether a file of this name is replaced.
        report: receives a note if one is replaced without that.
    """
    from .beside import config_text

    path = _config_path(output)
    text = config_text(beside_model.config(from_lua=document.spec.values == LUA))
    is_left_over = not attempt.force and _has_our_config(output) and not _has_model(output, goal)
    with FileOutput(path, force=attempt.force or is_left_over, sync=attempt.sync) as config:
        config.write(text.encode())
    if is_left_over:
        name = os.path.basename(path)
        report.note("info", f"{name}, whose model was not there any more, is replaced", code="beside")


def _config_path(output: FileOutput) -> str:
    """Return the path of the file with what stands beside the model in an output: `model.config.json`."""
    return os.path.splitext(output.path)[0] + ".config.json"


def _has_our_config(output: FileOutput) -> bool:
    """Return whether a `config.json` that a conversion wrote, and not another program, is beside an output."""
    try:
        with open(_config_path(output), "rb") as file:
            text = file.read().decode()
    except (OSError, UnicodeDecodeError):
        return False
    from .beside import Beside

    return bool(Beside.from_text(text))  # an empty one is not ours: no conversion writes it


def _has_model(output: FileOutput, goal: FormatSpec) -> bool:
    """Return whether the `config.json` beside an output has its model there: `model.pt`, or another name of the format.

    It has none if the model was moved alone, or the system ended a conversion between the two.
    """
    base = os.path.splitext(output.path)[0]
    return any(os.path.lexists(base + suffix) for suffix in goal.suffixes)


def _add_own(beside_model: Beside, document: Document, output: FileOutput, report: Report) -> None:
    """Add what the model itself has besides its weights to what stands beside it, and note where that is.

    Nothing is added unless the report names something of it as left out.

    Args:
        beside_model: receives the data of the model itself.
        document: the source; only a file that is one model has such data.
        output: of the target, for the name of the `config.json`.
        report: receives the note, in place of those that the data are left out.
    """
    if not _lacks_own(report):
        return
    value = document.value
    fields: dict[str, Any] = {}
    if isinstance(value, TorchObject):
        from ..nn.state_dict import state_dict

        fields = dict(state_dict(value).data)
    elif is_pickled_module(value):
        from .simplified import module_data

        fields = module_data(value)
    beside_model.add_own(fields, report, os.path.basename(_config_path(output)))


def _write(document: Document, output: FileOutput, goal: FormatSpec, request: Attempt, report: Report) -> None:
    """Write the values of a file in a format.

    Args:
        document: the file.
        output: of the target.
        goal: the format.
        request: the present attempt.
        report: receives the notes, the mode, and the numbers of tensors and storages.

    Raises:
        RecordError: a record in the source contradicts what the source shows; the output is not usable.
    """
    if document.spec.values == LUA:  # for other files `value_of` adds them
        report.notes += document.notes
    if goal.values == LUA:
        _write_lua_values(document, output, request, report)
        return
    from .targets import write_named_tensors, write_python_values

    if goal.values == NAMED:
        write_named_tensors(document, output, goal, request, report)
    else:
        write_python_values(document, output, request, report)


def _write_lua_values(document: Document, output: FileOutput, request: Attempt, report: Report) -> None:
    """Write the values of a file as Lua values: a `.t7` as it is, others into a template, by a record, or as tables.

    Args:
        document: the source.
        output: of the `.t7`.
        request: the present attempt, with the template, if there is one.
        report: receives the mode, the notes, and the numbers of tensors and storages.
    """
    if document.spec.values == LUA:
        report.tensors, report.storages = document.content.tensors, document.content.storages
        _copy_t7(document.content, output, request, report)
    elif request.model is not None:
        _fill_template(document, request.model, output, request, report)
    elif not (_may_restore(request) and _restore_t7(document, output, request, report)):
        _write_tables(document, output, request, report)


def _may_restore(request: Attempt) -> bool:
    """Return whether the request allows to write the `.t7` that a `.pt` was made from, rather than its value."""
    return request.record and request.trusts_records and not request.nested and request.edits is None


def _copy_t7(content: T7File, output: Output, request: Convert, report: Report) -> T7Writer:
    """Write the values of a `.t7` to another, whose layout differs where the request says so.

    Args:
        content: the `.t7`; in another layout, the tensors of an early release get the class names of today.
        output: of the other.
        request: with the layout that is asked for, and whether a record after the values is kept.
        report: receives the mode and notes.

    Returns:
        The writer, which knows where the elements of each storage are.

    Raises:
        WriteError: the layout differs, and bytes after the values, which are not a value, cannot be re-encoded.
    """
    from ..formats.t7.writer import T7Writer

    report.mode = "copy"
    layout = evolve(content.layout, **request.layout)
    if request.layout and layout.vintage:
        message = f"the objects of {layout.vintage} are written as today's Lua Torch reads them"
        report.note("info", message, code="vintage")
        layout = evolve(layout, vintage="", headless=False, unowned=())  # as today's files
        _name_classes_as_today(content.roots)
    writer = T7Writer(output, layout)
    for root in content.roots:
        writer.write_object(root)
    note_plain_nans(writer.plain_nans, report)
    if content.has_pt_record:  # the bytes after the values
        if request.record:
            output.write(content.trailing)
    elif content.trailing:
        _copy_trailing(content, output, layout, report)
    return writer


def _copy_trailing(content: T7File, output: Output, layout: T7Layout, report: Report) -> None:
    """Copy the bytes after the values of a `.t7`, which are not a value, and note it.

    Args:
        content: the `.t7`.
        output: of the other, after its values.
        layout: of the other.
        report: receives the note.

    Raises:
        WriteError: the layout differs, in which nobody can write these bytes.
    """
    if layout != content.layout:
        raise WriteError(
            f"{counted(len(content.trailing), 'byte')} after the last value cannot be re-encoded: not a value",
            file=report.source,
            hint="Convert without changing encoding, byte order or size of long.",
        )
    output.write(content.trailing)
    report.note("warning", f"{content.message}; these bytes are copied as they are", code="trailing")


def _name_classes_as_today(roots: list[Value]) -> None:
    """Remove from tensors and storages the names that an early release had for their classes; changes the values."""
    for path in walk(roots):
        if isinstance(path.value, (Tensor, Storage)):
            path.value.alias = None


def _write_tables(document: Document, output: Output, request: Attempt, report: Report) -> None:
    """Write Python values as Lua tables, with the record that restores them.

    Args:
        document: the source, whose values are released as soon as their tables are there.
        output: of the `.t7`.
        request: says whether there is a record, and how tables and the file are.
        report: receives the mode, the notes, and the numbers of tensors and storages.
    """
    from .lua_tree import note_nones, to_lua
    from .records import Hashed, pickle_of, structure_hash, write_pt_record

    value = _value_for_tables(document, request, report)
    # Before the tree is there, which needs as much memory: the pickle's writer holds every list.
    pickled = pickle_of(value) if request.record else None
    tree = to_lua(value, nested=request.nested, keep_device=request.keep_device, limits=request.limits)
    del value
    document.forget()
    report.notes += tree.notes
    report.mode = "tree"
    hashed = Hashed(output)
    layout = T7Layout(**request.layout)
    storages = _write_value(tree.value, hashed, layout, report)
    if pickled is None:
        note_nones(tree, report)  # a record keeps them
        return
    pickle, pickled_storages = pickled
    # The hash is that of the default layout, so that the `.t7` may be re-encoded: another layout needs one of its own.
    structure = hashed.digest.hexdigest() if layout == T7Layout() else structure_hash(tree.value)
    places = {id(storage): place for place, storage in enumerate(storages)}
    write_pt_record(output, pickle, pickled_storages, structure, tree, places)


def _value_for_tables(document: Document, request: Attempt, report: Report) -> Any:
    """Return the value of a file as tables and its record are to have it, with notes about the rest.

    That is what PyTorch's safe loader reads, with state dicts for modules, and with the names and types asked for. The
    data of a module that no key names are in a dict around its state dict.

    Args:
        document: the file.
        request: the present attempt, with the names and types that are asked for.
        report: receives the notes.
    """
    from .tree import WRAPPED

    value = value_of(document, request, report)
    if not is_simple(value):
        from .simplified import simplified  # which imports the table of layers: other values do not need it

        value = simplified(value, report, request.limits, unnamed_data=WRAPPED)
    note_states(value, report)
    return _edited(value, request, report)


def _edited(value: Any, request: Attempt, report: Report) -> Any:
    """Return a Python-side value with the names and types that are asked for; see `edited`."""
    if request.edits is None:
        return value
    from .edited import edited

    return edited(value, request.edits, report, request.limits)


def _write_value(value: Value, output: Output, layout: T7Layout, report: Report) -> list[Storage]:
    """Write one value to a `.t7`, and count and note in the report what was written.

    Args:
        value: of Lua.
        output: of the `.t7`.
        layout: of the `.t7`.
        report: receives the numbers of tensors and storages, and a note on NaNs that text cannot have.

    Returns:
        The storages in the order of the file. The writer, which holds every table, is gone.
    """
    from ..formats.t7.writer import T7Writer

    writer = T7Writer(output, layout)
    writer.write_object(value)
    output.flush()
    note_plain_nans(writer.plain_nans, report)
    storages = [item for item in writer.objects if isinstance(item, Storage)]
    report.storages = len(storages)
    report.tensors = sum(isinstance(item, Tensor) for item in writer.objects)
    return storages


def _fill_template(document: Document, template: Document, output: Output, request: Attempt, report: Report) -> None:
    """Write a template with the weights of a state dict; other content of the source, such as a record, is ignored.

    Args:
        document: the source, which is or holds the state dict.
        template: a `.t7`; its tensors receive the weights in memory, its file stays as it is.
        output: of the target.
        request: says whether keys may be missing, and which names and types are asked for.
        report: receives the mode, the notes, and the numbers of tensors and storages.

    Raises:
        FormatError: the template is no `.t7`.
        ModelError: the state dict does not fit it.
    """
    from .template import fill_template

    if template.spec.values != LUA:
        raise FormatError("is not a .t7, which a template must be", file=template.path)
    content = template.content
    if content.message:
        report.note("warning", f"of the template, {content.message}", code="trailing")  # on bytes after its values
    value = _edited(value_of(document, request, report), request, report)
    try:
        report.notes += fill_template(content.roots, value, request.partial)  # changes the template's values
    except ModelError as error:
        error.file = error.file or report.source
        raise
    report.tensors, report.storages = content.tensors, content.storages
    _copy_t7(content, output, request, report)
    report.mode = "template"


def _restore_t7(document: Document, output: FileOutput, request: Convert, report: Report) -> bool:
    """Write the `.t7` that a `.pt` was made from, by its record; return whether it was written.

    It is not if there is no record, or the `.pt` was changed since.

    Args:
        document: the source; only a `.pt` may have such a record.
        output: of the `.t7`, which is read back to be checked.
        request: with the layout that is asked for.
        report: receives the mode, the notes, and the numbers of tensors and storages.

    Raises:
        RecordError: the record was wrong; the output is not usable.
    """
    if document.format != "pt":
        return False
    from .records import check_t7, has_t7_record, original_t7

    original = original_t7(document.content, request.limits)
    if original is None:
        if has_t7_record(document.content):
            message = "the .pt was changed since it was made from a .t7: its record is not used"
            report.note("warning", message, code="record")
        return False
    report.tensors, report.storages = original.tensors, original.storages
    writer = _copy_t7(original, output, request, report)
    report.mode = "record"
    places, layout = writer.places, writer.layout
    del writer, original  # free their values: the file written is read as a whole again
    check_t7(output, places, layout, document.content, request.limits)
    return True
