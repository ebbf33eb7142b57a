"""Differences between two files: which weights differ, and by how much."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from attrs import asdict, field

from .. import formats
from ..data import define
from ..io.source import PathLike
from ..limits import DEFAULT_LIMITS, Limits
from ..values.compare import Difference, closest
from ..values.diff import ValueComparer
from .verify import hint_for, pairs_of, read_side


@define
class DiffReport:
    """The answer of `diff`.

    Attributes:
        first: path of the first file.
        second: path of the second file.
        tensors: how many pairs of tensors were compared.
        differences: what differs; for tensors of one shape a `TensorDifference`, with numbers.
    """

    first: str
    second: str
    tensors: int = 0
    differences: list[Difference] = field(factory=list)
    hint: str = ""
    """A way to compare the files where their keys differ."""
    drawn: dict[str, int] = field(factory=dict)
    """Of a picture, numbers of differing blocks by kind: `only first`, `only second`, `shape`, `options`, `weights`."""

    @property
    def same(self) -> bool:
        """Return whether no difference was found."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """The report as data for JSON, where infinity becomes `None`."""
        return {**asdict(self, value_serializer=_finite), "same": self.same}


def _finite(_: Any, __: Any, value: Any) -> Any:
    return None if value == math.inf else value


def diff(
    a: PathLike,
    b: PathLike,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    draw: PathLike | None = None,
    force: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> DiffReport:
    """Say which values of two files differ, and by how much.

    Elements of tensors are compared as numbers; how they are stored is left alone, be it sharing, offsets, strides or
    devices: whether these are the same too is what `verify` says. The files may be of both formats: what one holds is
    put into the form that fits the other best, the state dicts of its modules included.

    Args:
        a: a `.t7` or `.pt` file.
        b: another.
        rtol: how far a number may be from the second file's, as a share of the second file's.
        atol: how far it may be besides.
        draw: a page to write, `.html`: both models side by side, differences in colour.
        force: whether an existing page is replaced.
        limits: resource limits.

    Raises:
        FormatError: a file is damaged, or is something else.
    """
    with formats.open(a, limits=limits) as first, formats.open(b, limits=limits) as second:
        pairs = pairs_of(read_side(first, limits), read_side(second, limits), limits)
        # Which form fits best is told by structure and shapes, and no element is read twice.
        _, (one, two) = closest(pairs, partial(ValueComparer, elements=False))
        comparer = ValueComparer(rtol=rtol, atol=atol)
        found = comparer.run(one, two)
        report = DiffReport(str(a), str(b), comparer.tensors, found, hint_for(found, str(a), str(b)))
        if draw is not None:
            from .draw.draw import draw_pair

            report.drawn = draw_pair(first, second, draw, rtol=rtol, atol=atol, force=force, limits=limits)
        return report
