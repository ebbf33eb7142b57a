"""`diff`: report the values that differ between two files."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

from attrs import asdict, field

from .. import formats
from ..conversion.options import FORCE, JSON, LIMITS, option, takes, verb
from ..data import define
from ..io.source import PathLike
from ..limits import Limits
from ..values.compare import Difference, closest
from .verify import hint_for, pairs_of, read_side


@define
class DiffReport:
    """The result of `diff`.

    Attributes:
        first: path of the first file.
        second: path of the second file.
        tensors: number of pairs of tensors compared.
        differences: the differences; for tensors of one shape a `TensorDifference`, with numbers.
    """

    first: str
    second: str
    tensors: int = 0
    differences: list[Difference] = field(factory=list)
    hint: str = ""
    """A hint on how to compare files whose keys differ."""
    drawn: dict[str, int] = field(factory=dict)
    """Numbers of differing blocks by kind: `only first`, `only second`, `shape`, `options`, `weights`."""

    @property
    def same(self) -> bool:
        """True if no difference was found."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON, in which infinity becomes `None`."""
        return {**asdict(self, value_serializer=_finite), "same": self.same}


def _finite(_: Any, __: Any, value: Any) -> Any:
    return None if value == math.inf else value


@verb
class Diff:
    """Report the values that differ between two files, and by how much, whatever their formats."""

    EXAMPLES = (
        "t7bridge diff model.t7 model.pt",
        "t7bridge diff a.safetensors b.npz --rtol 1e-5",
        "t7bridge diff before.t7 after.t7 --draw changes.html",
    )
    OLD_NAMES: ClassVar = {"a": "source", "b": "other"}
    source: PathLike = option("a file of any format", kw_only=False, metavar="A", stdin=True)
    other: PathLike = option("another", kw_only=False, metavar="B", stdin=True)
    rtol: float = option("relative tolerance, as a fraction of B's value", default=0.0, metavar="X")
    atol: float = option("absolute tolerance", default=0.0, metavar="X")
    draw: PathLike | None = option(
        "write a page (.html) with both models side by side", default=None, metavar="PAGE", group="output"
    )
    force: bool = FORCE
    json = JSON
    limits: Limits = LIMITS


@takes(Diff)
def diff(request: Diff) -> DiffReport:
    """Report the values that differ between two files, and by how much.

    Elements of tensors are compared as numbers; their storage (sharing, offsets, strides, devices) is ignored, as
    `verify` compares it. The files may have different formats: one is converted to the form that matches the other
    best, including the state dicts of its modules.

    Args:
        atol: absolute tolerance, added to the relative one.
        draw: a page to write, `.html`: both models side by side, differences in colour.

    Raises:
        FormatError: a file is damaged, or in no supported format.
    """
    from ..values.deviation import ValueComparer

    with (
        formats.open(request.source, limits=request.limits) as first,
        formats.open(request.other, limits=request.limits) as second,
    ):
        pairs = pairs_of(read_side(first), read_side(second), request.limits)
        # The best form is chosen by structure and shapes, so that no element is read twice.
        _, (one, two) = closest(pairs, partial(ValueComparer, elements=False))
        comparer = ValueComparer(rtol=request.rtol, atol=request.atol)
        found = comparer.run(one, two)
        report = DiffReport(
            str(request.source),
            str(request.other),
            comparer.tensors,
            found,
            hint_for(found, str(request.source), str(request.other)),
        )
        if request.draw is not None:
            from .draw import draw_pair

            report.drawn = draw_pair(first, second, request)
        return report
