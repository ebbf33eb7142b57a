"""Whether two files hold the same, told by readers that do not share their code where there are such."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import asdict, field

from .binio.source import ByteSource, PathLike
from .data import define
from .files import T7File, read_t7, source_format
from .graph.compare import Difference, closest
from .graph.objects import Value
from .limits import DEFAULT_LIMITS, Limits


@define
class VerifyReport:
    """The answer of `verify`.

    Attributes:
        first: path of the first file.
        second: path of the second file.
        differences: what differs; empty where both hold the same.
        readers: for each file, who read it beside t7bridge itself: `torchfile`, `torch`, or nobody.
    """

    first: str
    second: str
    differences: list[Difference] = field(factory=list)
    readers: dict[str, list[str]] = field(factory=dict)

    @property
    def same(self) -> bool:
        """Whether no difference was found."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """The report as data for JSON."""
        return {**asdict(self), "same": self.same}


@define(eq=False)
class _Side:
    """What one file holds.

    Attributes:
        lua: its Lua value, where it is a `.t7`, or a `.pt` with the record of one.
        python: its Python-side value, where it is a `.pt`, or a `.t7` with the record of one.
        is_lua: whether it is a `.t7`.
        trailing: bytes behind the values of a `.t7` that are neither values nor a record.
    """

    is_lua: bool
    lua: Value = None
    python: Any = None
    trailing: bytes = b""
    has_lua: bool = False
    has_python: bool = False


def verify(a: PathLike, b: PathLike, *, independent: bool = True, limits: Limits = DEFAULT_LIMITS) -> VerifyReport:
    """Check that two files hold the same values, sharing and views.

    Two `.t7` files are compared as Lua has them, whatever their encodings. A `.t7` is compared with a `.pt` as
    `convert` would make one of the other: by the record that says what the other was, in `tree` mode, with state
    dicts for modules, or as tables; what fits best counts. A file is read by other readers as well, where they can,
    and their answers are compared with ours: torchfile reads `.t7` files, and PyTorch `.pt` files if it is installed.

    Args:
        a: a `.t7` or `.pt` file.
        b: another.
        independent: whether other readers are asked.
        limits: what each file may cost.

    Raises:
        FormatError: a file is damaged, a wrong CRC in an archive included, or is something else.
    """
    report = VerifyReport(str(a), str(b))
    with ByteSource.from_path(a) as first, ByteSource.from_path(b) as second:
        one, two = (_read(source, limits, independent, report) for source in (first, second))
        report.differences += closest(_pairs(one, two))
        if one.trailing != two.trailing:
            report.differences.append(Difference("", "other bytes stand behind the last value"))
    return report


def _pairs(a: _Side, b: _Side) -> Iterator[tuple[Any, Any]]:
    """The forms in which two files can be compared."""
    if a.is_lua == b.is_lua:
        yield (a.lua, b.lua) if a.is_lua else (a.python, b.python)
        return
    if a.has_lua and b.has_lua:
        yield a.lua, b.lua
    if a.has_python and b.has_python:
        yield a.python, b.python
    from .bridge.lua_tree import to_lua
    from .bridge.tree import to_python
    from .conversion import state_dict_of

    lua, python = (a, b) if a.is_lua else (b, a)
    for replace in (None, state_dict_of):
        made = to_python(lua.lua, replace)
        yield (made, python.python) if a.is_lua else (python.python, made)
    made = to_lua(python.python).value
    yield (lua.lua, made) if a.is_lua else (made, lua.lua)


def _read(source: ByteSource, limits: Limits, independent: bool, report: VerifyReport) -> _Side:
    """Read one file, and let another reader read it too."""
    readers = report.readers[source.name] = []
    found: list[str] | None = None
    if source_format(source) == "pt":
        side = _read_pt(source, limits)
        if independent:
            from .interop import torch

            found = torch.differences(source.name, side.python)
            if found is not None:
                readers.append("torch")
    else:
        content = read_t7(source, limits)
        side = _read_lua(content, limits)
        if independent and len(content.roots) == 1 and not content.trailing:
            from .interop import torchfile

            found = torchfile.differences(source.name, side.lua, content.layout)
            if found is not None:
                readers.append("torchfile")
    report.differences += [Difference(source.name, message) for message in found or ()]
    return side


def _read_lua(content: T7File, limits: Limits) -> _Side:
    side = _Side(True, _value_of(content), has_lua=True)
    if not content.has_pt_record:
        side.trailing = content.trailing
    else:
        from .bridge.pt_record import original_pt

        original = original_pt(content, limits)
        if original is not None:
            side.python, side.has_python = original[0], True
    return side


def _read_pt(source: ByteSource, limits: Limits) -> _Side:
    from .bridge.record import original_t7
    from .pt.reader import PtReader

    reader = PtReader(source, limits=limits)
    reader.verify()
    side = _Side(False, python=reader.read(), has_python=True)
    restored, _ = original_t7(reader, limits)
    if restored is not None:
        side.lua, side.has_lua, side.trailing = _value_of(restored), True, restored.trailing
    return side


def _value_of(content: T7File) -> Value:
    """The value of a `.t7`, or the list of its values."""
    return content.roots[0] if len(content.roots) == 1 else content.roots
