"""Write a file of named tensors, with notes about the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import RecordError
from ..formats import LUA, FormatSpec, home
from ..formats import open as open_document
from ..io.output import FileOutput
from ..limits import Limits
from ..report import Report
from .into_python import python_value
from .named_tensors import name_tensors
from .request import Convert
from .source_value import value_of
from .state_dicts import note_texts

if TYPE_CHECKING:
    from ..formats.document import Document
    from ..formats.named import NamedTensors


def write_named_tensors(
    document: Document, output: FileOutput, goal: FormatSpec, request: Convert, report: Report
) -> None:
    """Write the tensors of a file under names."""
    named = named_value(document, goal, request, report)
    report.mode = "tensors"
    written = home(goal.name).write(output, named)
    report.tensors, report.storages = written.tensors, written.storages
    note_texts(written, named, goal, report)


def named_value(document: Document, goal: FormatSpec, request: Convert, report: Report) -> NamedTensors:
    """Return the tensors of a file as a format of named tensors receives them, with notes about the rest."""
    return name_tensors(plain_value(document, request, report), goal, report, document.metadata, request.limits)


def plain_value(document: Document, request: Convert, report: Report, *, with_data: bool = True) -> Any:
    """Return the value of a file as builtins with tensors in them, with notes about the rest.

    Args:
        document: the file.
        request: of the conversion.
        report: receives the notes.
        with_data: whether the tables of data of a module that is the whole value are in its state dict.
    """
    if document.spec.values == LUA:
        made = python_value(document.content, request, report)
        if made.modules is not None:
            value = made.modules.with_data(made.value) if with_data else made.value
            made.modules.note_rest(value)
            return value
        return made.value
    from .simplified import simplified

    return simplified(value_of(document, request, report), report, request.limits, with_data=with_data)


def differences(source: str, target: str, limits: Limits) -> list[str]:
    """Return the differences between an input and its output, as read by the format's own library.

    Args:
        source: the input.
        target: a file made from it, in a format of named tensors.
        limits: resource limits for both.

    Raises:
        UnsupportedError: the library is not installed.
    """
    with open_document(target, limits=limits) as written, open_document(source, limits=limits) as document:
        for believed in (True, False):
            report = Report(document.path, target, document.format, written.format)
            request = Convert(source, target, limits=limits)
            request.believed = believed
            named = named_value(document, written.spec, request, report)
            try:
                found: list[str] = home(written.format).differences(target, named)
                break
            except RecordError:
                if not believed:
                    raise
        return found
