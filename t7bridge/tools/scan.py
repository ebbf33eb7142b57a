"""`scan`: report what a file would import or execute in a reader that trusts it. Nothing is executed."""

from __future__ import annotations

from typing import Any

from attrs import asdict, field

from .. import formats
from ..data import define
from ..errors import T7BridgeError
from ..formats.pt.pickle.names import FORBIDDEN, is_torch, standing
from ..formats.t7.file import read_t7
from ..formats.t7.reader import T7Reader
from ..graph.lua import LuaFunction, TorchObject
from ..graph.walk import walk
from ..io.source import ByteSource, PathLike
from ..limits import DEFAULT_LIMITS, Limits

_MOST_NILS = 1_000
_SHOWN_LETTERS = 200
_OBJECTS = {
    *("graph.Graph", "graph.Edge", "graph.Node", "nngraph.Node"),
    *("torch.AliasMultinomial", "torch.Timer", "torch.CmdLine", "torch.Logger", "torch.Tester"),
}
"""Classes of graph, nngraph and torch7 that are not layers; a reader makes plain objects of them."""


@define(frozen=True)
class Finding:
    """Something that a trusting reader would execute, or look up and execute.

    Attributes:
        kind: `forbidden global`, which runs code or reaches the system; `torch global`, a class or function of PyTorch
            that is not data; `foreign global`, one of another package, which would be imported and called; `function`,
            Lua bytecode, which `torch.load` makes callable; `foreign class`, a Lua class that no known package has,
            whose own code would read it; `unread`, bytes after the value and members that nothing refers to.
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


@define
class ScanReport:
    """The result of `scan` for one file.

    Attributes:
        file: its name.
        format: `t7` or `pt`; empty if it is neither.
        findings: the findings, each global and class once, each function.
        error: why the file could not be read to its end; empty if it could.
    """

    file: str
    format: str = ""
    findings: list[Finding] = field(factory=list)
    error: str = ""

    @property
    def clean(self) -> bool:
        """Return whether the file was read to its end and nothing was found."""
        return not self.findings and not self.error

    def as_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON."""
        return {**asdict(self), "clean": self.clean}


def scan(path: PathLike, *, limits: Limits = DEFAULT_LIMITS) -> ScanReport:
    """Report what a file would import or execute in a reader that trusts it, without doing so.

    Of a `.pt`: the globals that are not part of PyTorch's data. Of a `.t7`: functions, and classes that no known
    package has. Of both: the same in the record of the original that t7bridge stores next to a value.

    Args:
        path: a `.t7` or `.pt` file.
        limits: resource limits.

    Returns:
        The findings. A damaged file raises no error: the report has an `error`, and the findings before it.

    Raises:
        T7BridgeError: the file cannot be opened.
    """
    with ByteSource.from_path(path) as source:
        report = ScanReport(source.name)
        try:
            spec = formats.format_of(source, limits)
            report.format = spec.name
            if spec.values == formats.NAMED:
                formats.open(source, limits=limits).roots  # noqa: B018  runs nothing; what is damaged has an error
            else:
                (_scan_t7 if spec.values == formats.LUA else _scan_pt)(source, limits, report)
        except T7BridgeError as error:
            report.error = str(error)
    return report


def _scan_pt(source: ByteSource, limits: Limits, report: ScanReport) -> None:
    from ..conversion.t7_record import original_t7
    from ..formats.pt.reader import PtReader

    reader = PtReader(source, limits=limits, forbid=False)
    try:
        try:
            reader.read()
        finally:  # pickles that other readers would load, even if the value failed
            reader.read_others()
    finally:  # names in a damaged pickle before the damage would have been called
        _add_globals(reader.judged, report)
        report.findings += [Finding("unread", note.message) for note in reader.notes if note.level == "warning"]
    restored, _ = original_t7(reader, limits)
    if restored is not None:
        _add_lua(restored.roots, report)


def _scan_t7(source: ByteSource, limits: Limits, report: ScanReport) -> None:
    content = read_t7(source, limits)
    if not content.trailing or content.has_pt_record:
        _add_lua(content.roots, report)
    else:
        _add_lua(_all_values(source, limits, report), report)
    if content.has_pt_record:
        from ..conversion.pt_record import original_pt

        original = original_pt(content, limits, forbid=False)
        _add_globals({} if original is None else judge(original.foreign), report)


def _all_values(source: ByteSource, limits: Limits, report: ScanReport) -> list[Any]:
    """Read every value that Lua could read one after another; also nil, which is never written after a value."""
    reader = T7Reader(source, limits=limits)
    roots = [reader.read_object()]
    nils = 0
    while not reader.at_end and nils < _MOST_NILS:
        start = reader.position
        try:
            roots.append(reader.read_object())
        except T7BridgeError:
            report.findings.append(Finding("unread", f"{source.size - start} bytes after the values are not a value"))
            return roots
        nils = nils + 1 if roots[-1] is None else 0
    if not reader.at_end:
        report.findings.append(
            Finding("unread", f"{source.size - reader.position} bytes after {_MOST_NILS} nils are not read")
        )
    return roots


def judge(names: list[str]) -> dict[str, str]:
    """Return which of some globals are forbidden, by their dotted names."""
    parts = {name: name.rpartition(".") for name in names}
    return {name: standing(module, own) for name, (module, _, own) in parts.items()}


def _add_globals(judged: dict[str, str], report: ScanReport) -> None:
    for name, found in judged.items():
        kind = "foreign" if not is_torch(name) else "torch"
        report.findings.append(Finding(f"{FORBIDDEN if found == FORBIDDEN else kind} global", name[:_SHOWN_LETTERS]))


def _add_lua(roots: list[Any], report: ScanReport) -> None:
    from ..formats.t7.payloads import payload_of
    from ..nn.registry import layer_of

    seen: set[str] = set()
    for number, root in enumerate(roots, 1):
        for visit in walk(root, "root" if len(roots) == 1 else f"root[{number}]"):
            value = visit.value
            if isinstance(value, LuaFunction):
                report.findings.append(_function(value, visit.path))
            elif isinstance(value, TorchObject) and value.class_name not in seen:
                seen.add(value.class_name)
                known = value.class_name in _OBJECTS or layer_of(value.class_name) is not None
                if not known and payload_of(value.class_name, value.version) is None:
                    report.findings.append(Finding("foreign class", value.class_name, visit.path))


def _function(value: LuaFunction, path: str) -> Finding:
    names = tuple(entry.name.decode("utf-8", "backslashreplace") or "?" for entry in value.upvalue_list())
    text = f"{len(value.code)} bytes of bytecode, upvalues: {', '.join(names) or 'none'}"
    return Finding("function", text, path, names, len(value.code))
