"""Write a file of Python values, with state dicts in place of modules or as a tree; or one of named tensors.

What only some sources and targets need is imported where they are served.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..data import define
from ..errors import RecordError
from ..formats import FORMATS, LUA, home
from ..formats import open as open_document
from ..formats.pt.file import writer as pt_writer
from ..formats.t7.layout import T7Layout
from ..formats.table import NAMED, FormatSpec, one_or_list
from ..graph.lua import COMPOSITE, TorchObject
from ..graph.storage import Storage
from ..graph.tensor import Tensor, rows
from ..graph.walk import objects
from ..io.output import FileOutput
from ..limits import Limits
from ..report import Report
from ..values.casts import Casts
from ..values.compare import same_bytes
from .request import Attempt, Convert
from .tree import DROPPED, MERGED, WRAPPED, as_tree
from .values import note_foreign, note_states, note_target, value_of

if TYPE_CHECKING:
    from ..formats.named import NamedTensors
    from ..formats.pt.writer import LegacyPtWriter, PtWriter, ValueWriter
    from ..formats.t7.file import T7File
    from ..formats.table import Document
    from .records import T7Fingerprint
    from .state_dicts import StateDicts

    _PtWriter = PtWriter | LegacyPtWriter


def write_python_values(document: Document, output: FileOutput, request: Attempt, report: Report) -> None:
    """Write the values of a file as a `.pt`: with state dicts in place of modules, as a tree, or from its record.

    Args:
        document: the file.
        output: of the `.pt`.
        request: the present attempt.
        report: receives the mode, the notes, and the numbers of tensors and storages.

    Raises:
        RecordError: a record in the source was wrong; the output is not usable.
    """
    writer = pt_writer(
        output,
        request.pt_format,
        keep_device=request.keep_device,
        map_location=request.map_location,
        allow_foreign=request.allow_foreign,
        limits=request.limits,
    )
    if document.spec.values == LUA:
        _write_from_lua(document, output, writer, request, report)
    else:
        _write_from_python(document, writer, request, report)


def _write_from_python(document: Document, writer: _PtWriter, request: Attempt, report: Report) -> None:
    """Write Python values or named tensors as a `.pt`, with state dicts in place of modules unless in `tree` mode.

    Args:
        document: the source.
        writer: of the `.pt`.
        request: the present attempt.
        report: receives the mode, the notes, and the numbers of tensors and storages.
    """
    report.mode = "copy"
    value = value_of(document, request, report)
    if request.mode == "auto":
        from .simplified import simplified

        value = simplified(value, report, request.limits, keep_classes=request.allow_foreign)
    note_states(value, report)
    _write_without_record(writer, _edited(value, request, report), report)


def _write_from_lua(
    document: Document, output: FileOutput, writer: _PtWriter, request: Attempt, report: Report
) -> None:
    """Write Lua values as a `.pt`, with the record of the `.t7` where it can be restored from one.

    Args:
        document: the `.t7`, whose values are released where they are no longer needed.
        output: of the `.pt`; read back if the value was restored from a record, which is checked so.
        writer: on this output.
        request: the present attempt.
        report: receives the mode, the notes, and the numbers of tensors and storages.

    Raises:
        RecordError: the record in the source was wrong.
    """
    is_compact = request.compact and request.mode == "auto"
    # A record is a member of a zip archive; changed elements, or those of compact storages, are not the `.t7`'s.
    may_have_record = request.record and request.pt_format == "zip" and not is_compact and request.edits is None
    converted = python_value(document.content, request, report, with_record=may_have_record)
    if is_compact:
        _make_compact(converted, report)
    if converted.fingerprint is not None:
        document.forget()
        _write_restored(output, writer, converted, request.limits, report)
        return
    if converted.modules is not None:
        converted.modules.note_left_out(converted.value)
    converted.value = _edited(converted.value, request, report, converted.modules)
    if converted.record is not None:  # the record to be written
        document.forget()  # before the value is pickled: the writer holds every list and dict
        _write_with_record(writer, converted, report)
        return
    _write_without_record(writer, converted.value, report)


def _write_restored(
    output: FileOutput, writer: _PtWriter, converted: PythonValue, limits: Limits, report: Report
) -> None:
    """Write the value of a `.pt` from its record in a `.t7`, and check by the file written that the record was right.

    Args:
        output: of the `.pt`, which is read back.
        writer: on this output.
        converted: has the value, as it was in the `.pt`: with edits, the record is checked first, and there is no
            fingerprint. It no longer has the value afterwards.
        limits: resource limits.
        report: receives notes, and the numbers of tensors and storages.

    Raises:
        RecordError: the record was wrong.
    """
    from .records import check_pt

    assert converted.fingerprint is not None
    _write_without_record(writer, converted.value, report)
    converted.value = None  # release it first: the written file is read again as a whole
    check_pt(output, writer, converted.fingerprint, limits)


def _make_compact(converted: PythonValue, report: Report) -> None:
    """Make tensors use their storages whole, but for a value from its record; a note says that it stays as it is."""
    if report.mode == "record":
        report.note("warning", "compact does not apply to a value from its record, and is ignored", code="option")
        return
    from ..nn.layouts import compact_in

    converted.value = compact_in(converted.value)


def _edited(value: Any, request: Attempt, report: Report, modules: StateDicts | None = None) -> Any:
    """Return a value with the names and types that are asked for; see `edited`."""
    if request.edits is None:
        return value
    from .edited import edited

    return edited(value, request.edits, report, request.limits, modules)


def _write_with_record(writer: Any, converted: PythonValue, report: Report) -> None:
    """Write a value, and the record of the `.t7` that it was made from.

    Args:
        writer: of a zip archive.
        converted: has the value, which it no longer has afterwards, and makes the record.
        report: receives the numbers of tensors and storages.
    """
    assert converted.record is not None
    writer.write(converted.value)
    converted.value = None  # free it: the record needs its storages only
    report.tensors, report.storages = writer.tensors, writer.storages
    writer.finish(converted.record(writer))


def _write_without_record(writer: _PtWriter, value: Any, report: Report) -> None:
    """Write a value, and note what of it became plain data."""
    writer.write(value)
    report.tensors, report.storages = writer.tensors, writer.storages
    if writer.left_out_names or writer.refused_names:
        note_target(writer, value, report)
    writer.finish()


_Record = Callable[["ValueWriter"], Callable[[str], bytes]]
"""Returns, for the writer of a value, the function that makes the record from the hash of the value."""


def _record_of(content: T7File) -> _Record:
    """Return the function for `PythonValue.record`. It does not keep the values of the `.t7` alive."""
    from .records import encode_record, take_skeleton

    skeleton = take_skeleton(content.roots, content.layout, content.trailing)
    return lambda writer: partial(encode_record, skeleton(writer.storage_key))


@define(eq=False)
class PythonValue:
    """The Python-side value of a `.t7`.

    Attributes:
        value: the value.
        modules: the modules that were replaced by their state dicts; `None` if there are none.
        fingerprint: of the `.t7`, if the value is from a record that is to be checked in the file written.
        record: makes the record of the `.t7`; `None` if none was asked for, or there are modules: a state dict leaves
            out what only Lua needs, so the same bytes cannot be restored.
    """

    value: Any
    modules: StateDicts | None = None
    fingerprint: T7Fingerprint | None = None
    record: _Record | None = None


def python_value(
    content: T7File, request: Attempt, report: Report, *, with_record: bool = False, unnamed_data: str = DROPPED
) -> PythonValue:
    """Return the Python-side value of a `.t7`: from its record, with state dicts in place of modules, or as a tree.

    Args:
        content: the file.
        request: the present attempt: with its mode, and whether records are used and trusted.
        report: receives the mode of the result (`record`, `state dict` or `tree`) and notes.
        with_record: whether a record of the `.t7` is to be written, if there can be one.
        unnamed_data: place of the data of a module that no key names: `DROPPED`, `MERGED` or `WRAPPED` of `tree`.
    """
    if request.record and request.trusts_records and request.mode == "auto" and content.has_pt_record:
        restored = _restored(content, request, report)
        if restored is not None:
            return restored
    modules = _modules_to_replace(content, report) if request.mode == "auto" else None
    has_modules = modules is not None and bool(modules.paths)
    record: _Record | None = None
    if with_record and not has_modules:  # see `PythonValue.record`
        # While its skeleton is taken, every object is held. The tree needs as much memory, and is not there yet.
        record = _record_of(content)
    replace = modules.replace if modules is not None else None
    # `as_tree` calls `replace` for each module that it comes to: only now are there `state_dicts`.
    roots = [as_tree(root, replace, unnamed_data) for root in content.roots]
    _note_several_and_trailing(content, report)
    value = one_or_list(roots)
    if modules is not None and modules.state_dicts:
        report.mode = "state dict"
        return PythonValue(value, modules)
    report.mode = "tree"
    return PythonValue(value, record=record)


def _modules_to_replace(content: T7File, report: Report) -> StateDicts | None:
    """Return the modules of a `.t7`, which become state dicts; `None` for a file without objects.

    For such a file the table of layers is not even imported.
    """
    if not any(isinstance(item, TorchObject) for item in content.objects):
        return None
    from .state_dicts import StateDicts

    return StateDicts(content.roots, report)


def _note_several_and_trailing(content: T7File, report: Report) -> None:
    """Note that a `.t7` holds several values, and that there are bytes after them that no one can read, if so."""
    target = FORMATS[report.target_format].suffix if report.target_format else "target"
    count = len(content.roots)
    if count > 1:
        message = f"the file holds {count} values; the {target} holds them as a list"
        report.note("warning", message, code="several-values", count=count)
    # A record after the value is no part of what the file holds.
    if content.trailing and not content.has_pt_record:
        report.note("warning", f"{content.message}; the {target} does not show them", code="trailing")


def _restored(content: T7File, request: Attempt, report: Report) -> PythonValue | None:
    """Return the value of the `.pt` that a `.t7` was made from; `None` if the `.t7` was changed since.

    Args:
        content: the `.t7`, with the record of the `.pt` after its value.
        request: says what is written; a `.pt` alone is read back, and its value checked only then.
        report: receives the mode, and notes.

    Raises:
        CorruptError: the record cannot be read, or does not match the file.
    """
    from .records import original_pt

    # A `.pt` made by a record is read back and compared. For other targets the record is checked now.
    is_pickle = report.target_format == "pt" and request.pt_format != "torchscript"
    is_read_back = is_pickle and not request.checks_records_first
    original = original_pt(content, request.limits, check=not is_read_back)
    if original is None:
        message = "the .t7 was changed since it was made from a .pt: its record is not used"
        report.note("warning", message, code="record")
        return None
    note_foreign(original.foreign, report)
    report.mode = "record"
    if is_read_back:
        return PythonValue(original.value, fingerprint=original.fingerprint)
    return PythonValue(original.value)


def write_named_tensors(
    document: Document, output: FileOutput, goal: FormatSpec, request: Attempt, report: Report
) -> None:
    """Write the tensors of a file under names, with a note on each text for which the format has no room.

    Args:
        document: the file.
        output: of the target.
        goal: a format of named tensors.
        request: the present attempt.
        report: receives the mode, the notes, and the numbers of tensors and storages.
    """
    from .state_dicts import note_texts

    named = named_value(document, goal, request, report)
    report.mode = "tensors"
    written = home(goal.name).write(output, named)  # by the module of the format
    report.tensors, report.storages = written.tensors, written.storages
    note_texts(written, named, goal, report)


def named_value(document: Document, goal: FormatSpec, request: Attempt, report: Report) -> NamedTensors:
    """Return the tensors of a file as a format of named tensors receives them, with notes about the rest.

    Args:
        document: the file, with its metadata.
        goal: the format.
        request: the present attempt.
        report: receives the notes.

    Raises:
        NoTensorError: there is no tensor.
    """
    from .named_tensors import check_tensors, name_tensors

    value = plain_value(document, request, report)
    named = name_tensors(value, goal, report, document.metadata, request.limits)
    check_tensors(named, goal, report)
    return named


def plain_value(document: Document, request: Attempt, report: Report, unnamed_data: str = MERGED) -> Any:
    """Return the value of a file as builtins with tensors in them, with notes about the rest.

    Args:
        document: the file.
        request: of the conversion.
        report: receives the notes.
        unnamed_data: place of the data of a module that no key names: `DROPPED`, `MERGED` or `WRAPPED` of `tree`.
    """
    if document.spec.values != LUA:
        from .simplified import simplified

        simple = simplified(value_of(document, request, report), report, request.limits, unnamed_data=unnamed_data)
        note_states(simple, report)
        return _edited(simple, request, report)
    converted = python_value(document.content, request, report, unnamed_data=unnamed_data)
    if converted.modules is not None:
        converted.modules.note_left_out(converted.value)
    return _edited(converted.value, request, report, converted.modules)


def differences(source: str, target: str, limits: Limits, **options: Any) -> list[str]:
    """Return the differences between an input and its output, as read by the format's own library.

    Args:
        source: the input.
        target: a file made from it, in a format of named tensors.
        limits: resource limits for both.
        **options: of the conversion.

    Raises:
        UnsupportedError: the library is not installed.
    """
    with open_document(target, limits=limits) as written, open_document(source, limits=limits) as document:

        def differences_from(attempt: Attempt) -> list[str]:
            """Return what the output has otherwise than this attempt makes it of the input."""
            report = Report(document.path, target, document.format, written.format)
            named = named_value(document, written.spec, attempt, report)
            # By the module of the format, which reads the output with the library of those who define it.
            messages: list[str] = home(written.format).differences(target, named)
            return messages

        # Options that do not fit have their errors or notes where the output is made.
        attempt = Attempt.of(Convert(source, target, limits=limits, **options), must_fit=False)
        try:
            return differences_from(attempt)
        except RecordError:  # as `convert` does if the record of the source turns out to be wrong
            return differences_from(attempt.without_records())


def edited_differences(source: str, target: str, limits: Limits, **options: Any) -> list[str]:
    """Return the differences between the tensors of an input, with the names and types asked for, and of its output.

    Args:
        source: the input.
        target: a file made from it, in any format.
        limits: resource limits for both.
        **options: of the conversion; those that change names and types (`rename`, `strip`, `dtype`) are what counts.

    Returns:
        A sentence for each tensor of the input that is missing in the output, or that has another type, shape or
        elements. Tensors that only the output has are not asked for.
    """
    with open_document(target, limits=limits) as written, open_document(source, limits=limits) as document:
        # A `.t7` made of Python values has a module with data of its own as a table of both: its weights are named
        # `state_dict.0.weight` there, which is what `WRAPPED` makes of the input. Any other target has them as
        # `0.weight`, with the data elsewhere or nowhere, as `DROPPED` has them.
        are_tables = written.spec.values == LUA and document.spec.values != LUA
        expected = _named_as_asked(document, options, WRAPPED if are_tables else DROPPED, limits)
        found = _named_as_asked(written, {}, DROPPED, limits)
        messages = [f"{name} is missing" for name in expected if name not in found]
        for name, wanted in expected.items():
            if name in found:
                fault = _fault_of(found[name], wanted)
                if fault:
                    messages.append(f"{name} {fault}")
        return messages


def _named_as_asked(file: Document, options: dict[str, Any], unnamed_data: str, limits: Limits) -> dict[str, Tensor]:
    """Return the tensors of a file by name, with the changes that options of a conversion ask for.

    Args:
        file: the file.
        options: of `convert`, by name.
        unnamed_data: place of the data of a module that no key names, see `plain_value`.
        limits: resource limits.

    Raises:
        RecordError: a record of the file is wrong.
    """
    from .named_tensors import flatten

    request = Convert(file.path, "", limits=limits, **options)
    # Options that do not fit change nothing here, as in a zoo.
    attempt = Attempt.of(request, has_target=False, must_fit=False)
    value = plain_value(file, attempt, Report(file.path, target_format="pt"), unnamed_data)
    return {".".join(name): tensor for name, tensor in flatten(value, limits).tensors.items()}


def _fault_of(tensor: Tensor, wanted: Tensor) -> str:
    """Return how a tensor of an output differs from the one that was asked for, as the end of a sentence.

    Empty if it does not, but for what Lua lacks.

    Args:
        tensor: that of the output.
        wanted: that of the input, with the type that was asked for.
    """
    if wanted.element.name == "bfloat16" and tensor.element.name != "bfloat16":  # Lua has it as float32
        tensor = Casts("bfloat16").tensor(tensor)
    # Lua has no tensors without dimensions: there they have one of size 1.
    has_shape = (tensor.shape or (1,)) == (wanted.shape or (1,))
    if wanted.element is not tensor.element or not has_shape:
        return f"is {tensor.element.name} of shape {tensor.shape}"
    if not same_bytes(rows(wanted), rows(tensor)):
        return "has different elements"
    return ""


def has_lua_objects(root: Any) -> bool:
    """Return whether Lua objects are inside Python dicts, lists or tuples."""
    if not isinstance(root, (dict, list, tuple)):
        return False
    # Tensors and storages are of both sides.
    return any(isinstance(value, COMPOSITE) and not isinstance(value, (Tensor, Storage)) for value in objects(root))


_LUA_VALUES = (*COMPOSITE, type(None), bool, float, bytes)
"""The types of all values that a `.t7` can hold as they are."""


def write_value(output: FileOutput, value: Any, goal: FormatSpec, layout: T7Layout | None = None) -> Report:
    """Write a value of any kind in a format: Lua values as Python values where necessary, and vice versa.

    Args:
        output: the file.
        value: the result of `load`, or builtins with tensors in them.
        goal: the format.
        layout: of a `.t7`.

    Returns:
        The report, whose notes name what the format could not hold.
    """
    report = Report(target=output.path, target_format=goal.name)
    # Lua's objects inside Python's dicts and lists: all becomes Lua's first, as `as_tree` converts Lua's values only.
    if has_lua_objects(value) or (goal.values == LUA and not isinstance(value, _LUA_VALUES)):
        from .lua_tree import note_nones, to_lua

        tree = to_lua(value)
        value = tree.value
        report.notes += tree.notes
        note_nones(tree, report)
    if goal.values == LUA:
        home(goal.name).write(output, value, layout)
        return report
    if goal.values == NAMED:
        _write_as_named_tensors(output, value, goal, report)
        return report
    if isinstance(value, COMPOSITE):
        value = as_tree(value)
    home(goal.name).write(output, value)
    return report


def _write_as_named_tensors(output: FileOutput, value: Any, goal: FormatSpec, report: Report) -> None:
    """Write the tensors of a value under their paths, those of Lua's modules under the keys of their state dicts.

    Args:
        output: the file.
        value: of Lua, or builtins with tensors in them.
        goal: a format of named tensors.
        report: receives the notes.

    Raises:
        NoTensorError: there is no tensor.
    """
    from .named_tensors import check_tensors, name_tensors
    from .state_dicts import StateDicts, note_texts

    if isinstance(value, COMPOSITE):
        replace = StateDicts([value], report).replace
        value = as_tree(value, replace, MERGED)
    named = name_tensors(value, goal, report)
    check_tensors(named, goal, report)
    written = home(goal.name).write(output, named)
    note_texts(written, named, goal, report)
