"""`scan`: whether PyTorch's safe loader takes a file, and which names stand in its way. Nothing is executed.

Clean is what `torch.load(weights_only=True)` takes. A pickle in any other file is judged as that loader would judge it;
TorchScript archives are read by C++, and are judged by what their code reaches.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from posixpath import join
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import asdict, evolve, field

from .. import formats
from ..conversion.options import JSON, LIMITS, option, takes, verb
from ..data import define
from ..errors import T7BridgeError, UnknownFormatError
from ..formats.pt.archive import judge_array
from ..formats.pt.pickle.context import Origin
from ..formats.pt.pickle.names import is_forbidden
from ..formats.pt.unpacked import folder_of, unpacked_files
from ..formats.pt.zip import ZipArchive
from ..formats.shards import files_of
from ..formats.t7.file import read_t7
from ..formats.t7.reader import T7Reader
from ..formats.table import HEAD_BYTES, SUFFIXES, FormatSpec, identify, is_tar, one_or_list, refuse_two_formats
from ..graph.lua import LuaFunction, TorchObject
from ..graph.walk import walk
from ..io.source import ByteSource, PathLike, inputs_protected
from ..limits import Limits
from ..report import Printed
from ..text import clean, counted, one_line, printable

if TYPE_CHECKING:
    from ..formats.pt.file import PtReader

_MOST_NILS = 1_000
"""Values nil in a row behind which no more values are read: zeros are as many of them."""
_MOST_LETTERS = 200
"""Maximum characters of a name."""
_SUFFIXES_OF_LOADED = (*SUFFIXES, ".pt2", ".pkl", ".pickle", ".npy", ".distcp")
"""Suffixes of files that programs load, so that what cannot be read is an error in a folder too."""
_KNOWN_PLAIN_CLASSES = {
    *("graph.Graph", "graph.Edge", "graph.Node", "nngraph.Node"),
    *("torch.AliasMultinomial", "torch.Timer", "torch.CmdLine", "torch.Logger", "torch.Tester"),
}
"""Classes of graph, nngraph and torch7 that are not layers; a reader makes plain objects of them."""


FORBIDDEN = "forbidden global"
UNSUPPORTED = "unsupported global"
REFUSED = "refused"
"""Kinds of findings in pickles."""
_REFUSED_LAYOUTS = {
    "tar": "the tar layout of PyTorch 0.1",
    "pickle": "a plain pickle, which pickle.load reads",
    "package": "an archive of torch.package",
}
"""The kinds of files that `torch.load(weights_only=True)` refuses whatever is in them, in words."""


@define(frozen=True)
class Finding:
    """Something that PyTorch's safe loader refuses, or that another reader would execute.

    Attributes:
        kind: `forbidden global`, which runs code or reaches the system; `unsupported global`, any other name that the
            safe loader does not allow, in the words of its message: `torch.load(weights_only=False)` imports it;
            `refused`, an operation of a pickle, a use of a value or a layout that the safe loader does not take;
            `script operation`, of TorchScript on files;
            `operator` and `expression` of torch.export, which reach beyond tensors; `compiled code`; `function`, Lua
            bytecode, which `torch.load` makes callable; `foreign class`, a Lua class that no known package has, whose
            own code would read it; `unread`, bytes after the value and members that nothing refers to.
        name: of the global or class; of a function its number of bytes and upvalues.
        path: path inside the value, if known.
        upvalues: names of a function's upvalues.
        code_bytes: length of a function's bytecode.
    """

    kind: str
    name: str
    path: str = ""
    upvalues: tuple[str, ...] = ()
    code_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}" + (f" at {self.path}" if self.path else "")

    def __repr__(self) -> str:
        return one_line(self, str(self))


@define
class ScanReport(Printed):
    """The result of `scan` for one file.

    Attributes:
        file: its name.
        format: its name; empty if it is unknown, `folder` for a folder.
        findings: the findings, each global and class once, each function.
        error: why the file could not be read to its end; empty if it could.
    """

    file: str
    format: str = ""
    findings: list[Finding] = field(factory=list)
    error: str = ""

    def add_unread(self, text: str) -> None:
        """Add bytes or a member that nothing refers to."""
        self.findings.append(Finding("unread", text))

    @property
    def clean(self) -> bool:
        """Whether the file was read to its end and nothing was found."""
        return not self.findings and not self.error

    @property
    def remedy(self) -> str:
        """How to make a file of this one that the safe loader takes; empty if it is not possible, or not needed."""
        kinds = {finding.kind for finding in self.findings}
        # `convert` refuses files with names that run code, and damaged ones.
        is_convertible = not self.error and self.format == "pt" and kinds <= {UNSUPPORTED, REFUSED}
        if not kinds or not is_convertible:
            return ""
        return "t7bridge convert writes the data in it to a .pt that torch.load(weights_only=True) takes"

    def lines(self) -> list[str]:
        """Return a line for each finding."""
        texts = [str(finding) for finding in self.findings]
        if not texts and not self.error:
            texts = ["nothing found"]
        return [f"{self.file}: {text}" for text in texts]

    def _result(self) -> str:
        """Return whether the file is clean, or the number of findings."""
        if self.clean:
            return f"{clean(self.file)}: clean"
        findings = counted(len(self.findings), "finding")
        return f"{clean(self.file)}: {findings}{', with an error' if self.error else ''}"

    def __str__(self) -> str:
        lines = [super().__str__()]
        if self.error:
            lines.append(printable(f"error: {self.error}"))
        return "\n".join(lines).lstrip()

    def as_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON."""
        return {**asdict(self), "clean": self.clean}


@verb
class Scan:
    """Report what PyTorch's safe loader refuses in a file, Lua functions and foreign classes. Nothing is executed."""

    EXAMPLES = ("t7bridge scan *.pt *.t7", "t7bridge scan --json download.pth", "t7bridge scan checkpoint/")
    OLD_NAMES: ClassVar = {"path": "source"}
    source: PathLike = option("a file of any format, or a folder", kw_only=False, metavar="FILE", nargs="+", stdin=True)
    json = JSON
    limits: Limits = LIMITS


@takes(Scan)
def scan(request: Scan) -> ScanReport:
    """Report whether PyTorch's safe loader takes a file, and which names stand in its way. Nothing is executed.

    Of a `.pt`: what `torch.load(weights_only=True)` refuses, in nested files too, and programs that reach beyond
    tensors. Other pickles are judged as that loader would: `.npz` and `.npy` with pickled arrays, plain pickles, the
    members of archives. Of a `.t7`: functions, and classes that no known package has. Of both: the same in the record
    of the original that t7bridge stores next to a value. Of the index of a checkpoint in several files: the files too.

    Args:
        source: a file; or a folder, whose files are all read: the findings have its path before their own.

    Returns:
        The findings. A damaged file raises no error: the report has an `error`, and the findings before it.

    Raises:
        T7BridgeError: the file cannot be opened.
    """
    if os.path.isdir(request.source):
        return _scan_folder(os.fspath(request.source), request.limits)
    if folder_of(os.fspath(request.source)):  # the `data.pkl` of an unpacked archive
        report = ScanReport(os.fspath(request.source))
        _scan_unpacked(report.file, request.limits, report)
        return report
    with inputs_protected(), ByteSource.from_path(request.source) as source:
        report = ScanReport(source.name)
        try:
            _scan_source(source, request.limits, report)
        except T7BridgeError as error:
            report.error = str(error)
    return report


def _scan_folder(folder: str, limits: Limits) -> ScanReport:
    """Scan every file of a folder, and of those inside it; an unpacked archive as a whole, not file by file."""
    report = ScanReport(folder, "folder")
    paths = list(_files_in(folder))
    if not paths:
        report.error = f"{folder}: the folder holds no file to scan"
    members: set[str] = set()  # of unpacked archives, which are scanned with their `data.pkl`
    for path in paths:
        if folder_of(path):  # which only the `data.pkl` of an unpacked archive has
            members.update(unpacked_files(path))
    for path in paths:
        file_report = ScanReport(path)
        if folder_of(path):
            _scan_unpacked(path, limits, file_report)
        elif path not in members:
            try:
                with ByteSource.from_path(path) as source:
                    _scan_if_model(source, limits, file_report)
            except T7BridgeError as error:
                file_report.error = str(error)
        _add_findings_of_inner(report, file_report, os.path.relpath(path, folder))
    return report


def _scan_unpacked(path: str, limits: Limits, report: ScanReport) -> None:
    """Scan an archive of PyTorch that was unpacked, by the path of its `data.pkl`."""
    report.format = "pt"
    try:
        _scan_pt(path, limits, report)
    except T7BridgeError as error:
        report.error = str(error)


def _files_in(folder: str) -> Iterator[str]:
    """Yield the paths of all files in a folder, in the order of their names; not of pipes and devices."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(place, name)
            if os.path.isfile(path):
                yield path


def _scan_if_model(source: ByteSource, limits: Limits, report: ScanReport) -> None:
    """Scan a file of a folder or archive, which may be no model: text and pictures are passed over.

    Args:
        source: the file.
        limits: resource limits.
        report: with the name of the file; receives format and findings. Of a file that is passed over it gets none.

    Raises:
        T7BridgeError: the file cannot be read, though its name or its first bytes are those of a model.
    """
    has_suffix = report.file.lower().endswith(_SUFFIXES_OF_LOADED)
    try:
        _scan_source(source, limits, report)
    except UnknownFormatError:
        if has_suffix:
            raise
    except T7BridgeError:
        # Any file may begin as a `.t7` does, which has no signature: text that was tried as one is damaged.
        head = source.read(0, HEAD_BYTES)
        if identify(head) is not None or has_suffix or is_tar(head):
            raise
        report.format = ""  # it is none


def _scan_source(source: ByteSource, limits: Limits, report: ScanReport) -> None:
    """Scan a file of any format.

    Args:
        source: the file.
        limits: resource limits.
        report: receives format and findings, also if an error is raised.

    Raises:
        T7BridgeError: the file is damaged, or in no known format.
    """
    signature = identify(source.read(0, HEAD_BYTES))
    if signature is None or signature.kind not in ("zip", "tar"):
        # Other readers would take it for an archive if it ends as one, and load what was not scanned.
        refuse_two_formats(source, title=signature.title if signature else "")
    if signature is not None and signature.kind == "npy":  # is no format of ours, but may hold a pickle
        report.format = "npy"
        _judge_array(source, 0, source.size, limits, report)
        return
    # Only with our own readers: what one of another package does with a file, nobody here can say.
    spec = formats.format_of(source, limits, installed=False)
    if isinstance(spec, formats.OtherArchive):
        _scan_archive(spec, limits, report)
        return
    report.format = spec.name
    _scan_in_format(source, spec, limits, report)


def _scan_in_format(source: ByteSource, spec: FormatSpec, limits: Limits, report: ScanReport) -> None:
    """Scan a file of one of our formats.

    Args:
        source: the file.
        spec: its format.
        limits: resource limits.
        report: receives findings, also if an error is raised; it has the name of the format already.

    Raises:
        T7BridgeError: the file is damaged.
    """
    if spec.values == formats.LUA:
        _scan_t7(source, limits, report)
    elif spec.values == formats.PYTHON:
        _scan_pt(source, limits, report)
    elif spec.name == "shards":
        for file in files_of(source, limits):
            path = join(os.path.dirname(source.name), file)
            with ByteSource.from_path(path) as shard:
                _scan_source(shard, limits, report)
        report.format = spec.name  # each shard has set its own
    else:  # named tensors
        document = formats.open(source, limits=limits)  # with our reader of `spec`: our formats come first
        document.roots  # noqa: B018  an error where the file is damaged; nothing in it is run
        if isinstance(document.content, ZipArchive):
            _scan_members(document.content, limits, report)


def _scan_archive(other: formats.OtherArchive, limits: Limits, report: ScanReport) -> None:
    """Scan the members of a zip archive of another program, such as a checkpoint of stable-baselines.

    Args:
        other: the archive.
        limits: resource limits.
        report: receives the findings, each with the name of the member before its path, and the first member's error.

    Raises:
        UnknownFormatError: none of them is a model; a member with an error is one, but damaged.
    """
    has_model = False
    for name in other.archive.members:
        member_report = ScanReport(name)
        try:
            member, inner_limits = other.member(name, limits)
            _scan_if_model(member, inner_limits, member_report)
        except T7BridgeError as error:
            member_report.error = str(error)
        is_passed_over = not (member_report.format or member_report.findings or member_report.error)
        has_model = has_model or not is_passed_over
        _add_findings_of_inner(report, member_report, name)
    report.format = "zip"
    if not has_model:
        raise other.refusal()


def _add_findings_of_inner(report: ScanReport, inner: ScanReport, name: str) -> None:
    """Add the findings on a file inside a folder or an archive to those on the whole, and the first error.

    Args:
        report: on the folder or archive.
        inner: on the file.
        name: of the file in it.
    """
    for finding in inner.findings:
        path = f"{name}: {finding.path}" if finding.path else name
        report.findings.append(evolve(finding, path=path))
    if inner.error and not report.error:
        # Most errors name the file already, with its path.
        report.error = inner.error if name in inner.error else f"{name}: {inner.error}"


def _scan_members(archive: ZipArchive, limits: Limits, report: ScanReport) -> None:
    """Scan the members of a numpy archive: numpy recognizes arrays by their first bytes, whatever their names.

    Args:
        archive: the archive.
        limits: resource limits.
        report: receives the findings.
    """
    for name, member in archive.members.items():
        source, start = archive.span(name)
        head = source.read(start, min(HEAD_BYTES, member.size))
        if head.startswith(b"\x93NUMPY"):
            _judge_array(source, start, member.size, limits, report)
            continue
        # For numpy these are bytes, whatever they are; other programs may load a pickle or an archive among them. What
        # none of our formats begins with, such as text, a picture or a compressed file, is passed over.
        signature = identify(head)
        if signature is not None and formats.formats_with(signature.kind):
            content = ByteSource.from_bytes(archive.read(name), f"{source.name}: {name}")
            _scan_pt(content, limits, report)  # an error for other formats: nothing is called clean without a scan


def _judge_array(source: ByteSource, start: int, size: int, limits: Limits, report: ScanReport) -> None:
    """Add what the safe loader refuses in the pickle of an array of objects, if it is one.

    Args:
        source: a file with the array in numpy's format.
        start: position of its first byte.
        size: number of its bytes.
        limits: resource limits.
        report: receives the findings.
    """
    origin = Origin(source, limits, is_judged=True)
    try:
        judge_array(origin, source, start, size)
    finally:  # also if it is damaged: a loader would have called the names before the damage
        _add_refused_by_loader(names=origin.unsafe_names, uses=origin.refused_uses, report=report)


def _scan_pt(source: ByteSource | str, limits: Limits, report: ScanReport) -> None:
    """Scan a `.pt`, and the record of a `.t7` in it.

    Args:
        source: the file, or the path of an unpacked archive's `data.pkl`.
        limits: resource limits.
        report: receives the findings, also if an error is raised.

    Raises:
        FormatError: the file is damaged.
    """
    from ..formats.pt.file import PtReader
    from ..formats.pt.members import RECORD_MEMBER

    reader = PtReader(source, limits=limits, forbid=False, judge=True)  # names are judged here, not refused
    try:
        _judge_content(reader, limits, report)
    finally:  # also if it is damaged: a loader would have called the names before the damage
        _add_refused_by_loader(names=reader.judged, uses=reader.uses, report=report)
        if reader.kind in _REFUSED_LAYOUTS:
            report.findings.append(Finding(REFUSED, _REFUSED_LAYOUTS[reader.kind]))
        for note in reader.notes:
            if note.level == "warning":
                report.add_unread(note.message)
    if any(name.endswith(RECORD_MEMBER) for name in reader.members):
        from ..conversion.records import original_t7

        restored = original_t7(reader, limits)
        if restored is not None:
            _add_functions_and_foreign(restored.roots, report)


def _judge_content(reader: PtReader, limits: Limits, report: ScanReport) -> None:
    """Read all pickles of a `.pt`, so that the reader has judged their names; add findings on what is no pickle.

    Args:
        reader: of the file; its `judged` and `uses` have what the safe loader refuses afterwards.
        limits: resource limits.
        report: receives the findings on programs, and on members that cannot be read.

    Raises:
        FormatError: the value or a program is damaged. The other pickles are read nevertheless.
    """
    from ..formats.pt.pt2 import effects

    try:
        if reader.archive is not None:
            # What programs, as `torch.export` saves them, do besides computing tensors.
            for kind, name in effects(reader.archive, limits):
                report.findings.append(Finding(kind, name[:_MOST_LETTERS]))
        reader.read()
    finally:  # other programs would load the other pickles, even if the value failed
        unreadable_names = reader.read_others()
        for name in unreadable_names:
            report.add_unread(f"{name[:_MOST_LETTERS]} cannot be read")


def _scan_t7(source: ByteSource, limits: Limits, report: ScanReport) -> None:
    """Scan a `.t7`, and the record of a `.pt` in it.

    Args:
        source: the file.
        limits: resource limits.
        report: receives the findings.
    """
    content = read_t7(source, limits)
    has_unknown_bytes = content.trailing and not content.has_pt_record
    # Bytes after the values may be values that Lua reads one after another.
    roots = _all_lua_values(source, limits, report) if has_unknown_bytes else content.roots
    _add_functions_and_foreign(roots, report)
    if content.has_pt_record:
        from ..conversion.records import original_pt

        original = original_pt(content, limits, forbid=False)  # names are judged here, not refused
        if original is not None:
            runs_code_by_name = {}
            for name in original.foreign:
                module, _, attribute = name.rpartition(".")
                runs_code_by_name[name] = is_forbidden(module, attribute)
            _add_refused_by_loader(runs_code_by_name, (), report)


def _all_lua_values(source: ByteSource, limits: Limits, report: ScanReport) -> list[Any]:
    """Read every value that Lua could read one after another.

    Zero bytes are a nil each. No program writes a nil after a value: after very many, the rest is padding.

    Args:
        source: the file.
        limits: resource limits.
        report: receives a finding on bytes that are not read.
    """
    reader = T7Reader(source, limits=limits)
    roots = [reader.read_object()]
    nils = 0
    while not reader.at_end and nils < _MOST_NILS:
        start = reader.position
        try:
            roots.append(reader.read_object())
        except T7BridgeError:
            report.add_unread(f"{counted(source.size - start, 'byte')} after the values, not a value")
            return roots
        nils = nils + 1 if roots[-1] is None else 0
    if not reader.at_end:
        report.add_unread(f"{counted(source.size - reader.position, 'byte')} after {_MOST_NILS} nils, not read")
    return roots


def _add_refused_by_loader(names: Mapping[str, bool], uses: Iterable[str], report: ScanReport) -> None:
    """Add what the safe loader refuses in pickles.

    Args:
        names: names that it does not know, and whether each runs code or reaches the system.
        uses: operations, and uses of names that it knows, which it does not take.
        report: receives the findings.
    """
    for name, runs_code in names.items():
        report.findings.append(Finding(FORBIDDEN if runs_code else UNSUPPORTED, name[:_MOST_LETTERS]))
    for use in uses:
        report.findings.append(Finding(REFUSED, use[:_MOST_LETTERS]))


def _add_functions_and_foreign(roots: list[Any], report: ScanReport) -> None:
    """Add findings on the functions in values of Lua, and on the classes that no known package has, each once.

    Args:
        roots: the values of a `.t7`; if there are several, paths begin with `root[0]`, `root[1]` and so on.
        report: receives the findings.
    """
    from ..formats.t7.reader import payload_of
    from ..nn.registry import layer_of

    classes: set[str] = set()
    for visit in walk(one_or_list(roots)):  # one walk, as values may have parts in common
        value = visit.value
        if isinstance(value, LuaFunction):
            report.findings.append(_finding_on_function(value, visit.text()))
            continue
        if not isinstance(value, TorchObject) or value.class_name in classes:
            continue
        name = value.class_name
        classes.add(name)
        is_layer = layer_of(name) is not None
        has_known_payload = payload_of(name, value.version) is not None  # a layout of its own that is known
        if not (is_layer or has_known_payload or name in _KNOWN_PLAIN_CLASSES):
            report.findings.append(Finding("foreign class", name, visit.text()))


def _finding_on_function(value: LuaFunction, path: str) -> Finding:
    """Return the finding on a function."""
    upvalues = tuple(entry.name.decode("utf-8", "backslashreplace") or "?" for entry in value.upvalue_list())
    text = f"{counted(len(value.code), 'byte')} of bytecode, upvalues: {', '.join(upvalues) or 'none'}"
    return Finding("function", text, path, upvalues=upvalues, code_bytes=len(value.code))
