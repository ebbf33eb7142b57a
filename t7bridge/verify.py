"""Whether two files hold the same, told by readers that do not share their code where there are such."""

from __future__ import annotations

from typing import Any

from attrs import asdict, define, field

from .binio.source import ByteSource, PathLike
from .files import read_t7, source_format
from .graph.compare import Difference, differences
from .graph.objects import TorchObject, Value
from .limits import DEFAULT_LIMITS, Limits


@define
class VerifyReport:
    """The answer of `verify`.

    Attributes:
        first: path of the first file.
        second: path of the second file.
        differences: what differs; empty where both hold the same.
        readers: for each file, who read it beside t7bridge itself: `torchfile`, or nobody.
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


def verify(a: PathLike, b: PathLike, *, limits: Limits = DEFAULT_LIMITS) -> VerifyReport:
    """Check that two files hold the same values, sharing and views.

    Two `.t7` files are compared as Lua has them, whatever their encodings. A `.t7` is compared with a `.pt` as
    `convert` would make it: in `tree` mode or, where that fits better, with state dicts for modules. Each `.t7` that
    torchfile reads is read by it as well, and its answer is compared with ours.

    Args:
        a: a `.t7` or `.pt` file.
        b: another.
        limits: what each file may cost.

    Raises:
        FormatError: a file is damaged, or is something else.
    """
    report = VerifyReport(str(a), str(b))
    with ByteSource.from_path(a) as first, ByteSource.from_path(b) as second:
        sides = [_side(source, limits, report) for source in (first, second)]
        if sides[0][0] == sides[1][0]:
            found = differences(sides[0][1], sides[1][1])
        else:
            lua, python = (side[1] for side in sorted(sides, key=lambda side: side[0] == "pt"))
            swapped = sides[0][0] == "pt"
            found = min((_across(lua, python, auto, swapped) for auto in (False, True)), key=len)
        report.differences += found
    return report


def _side(source: ByteSource, limits: Limits, report: VerifyReport) -> tuple[str, Value]:
    """Read one file, and let another reader read it too."""
    kind = source_format(source)
    readers = report.readers.setdefault(source.name, [])
    if kind == "pt":
        from .pt.reader import PtReader

        return kind, PtReader(source, limits=limits).read()
    content = read_t7(source, limits)
    value = content.roots[0] if len(content.roots) == 1 else content.roots
    if len(content.roots) == 1 and not content.trailing:
        from .interop import torchfile

        other = torchfile.differences(source.name, value, content.layout)
        if other is not None:
            readers.append("torchfile")
            report.differences += [Difference(source.name, message) for message in other]
    return kind, value


def _across(lua: Value, python: Any, auto: bool, swapped: bool) -> list[Difference]:
    from .tree import to_python

    mine = to_python(lua, _state_dict if auto else None)
    return differences(python, mine) if swapped else differences(mine, python)


def _state_dict(obj: TorchObject) -> Any:
    from .convert import state_dict_of

    return state_dict_of(obj)
