"""`diff`: report the values that differ between two files."""

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
    """Report the values that differ between two files, and by how much.

    Elements of tensors are compared as numbers; their storage (sharing, offsets, strides, devices) is ignored, as
    `verify` compares it. The files may have different formats: one is converted to the form that matches the other
    best, including the state dicts of its modules.

    Args:
        a: a file of any format.
        b: another.
        rtol: relative tolerance, as a fraction of the second file's element.
        atol: absolute tolerance, added to the relative one.
        draw: a page to write, `.html`: both models side by side, differences in colour.
        force: whether an existing page is replaced.
        limits: resource limits.

    Raises:
        FormatError: a file is damaged, or in no supported format.
    """
    with formats.open(a, limits=limits) as first, formats.open(b, limits=limits) as second:
        pairs = pairs_of(read_side(first), read_side(second), limits)
        # The best form is chosen by structure and shapes, so that no element is read twice.
        _, (one, two) = closest(pairs, partial(ValueComparer, elements=False))
        comparer = ValueComparer(rtol=rtol, atol=atol)
        found = comparer.run(one, two)
        report = DiffReport(str(a), str(b), comparer.tensors, found, hint_for(found, str(a), str(b)))
        if draw is not None:
            from .draw import draw_pair

            report.drawn = draw_pair(first, second, draw, rtol=rtol, atol=atol, force=force, limits=limits)
        return report
