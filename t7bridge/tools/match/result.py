"""Result of `match`, and the state dict that follows from it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from attrs import field

from ...data import define
from ...errors import ModelError
from ...graph.tensor import Tensor
from ...nn.weights.layouts import reblocked, reshape
from ...report import Report
from .classes import fits
from .gates import Gates
from .parts import Shape
from .sides import Side, in_target_order


@define(frozen=True)
class Pair:
    """A key of the target and its value.

    Attributes:
        source: the key of the source; `None` if the target keeps its own value, or a count of zero.
        target: the key of the target.
        source_shape: the shape there; `None` without a source.
        target_shape: the shape here.
        why: the reason: `shape` (no other module looks like this), `order`, `containers`, `map`, or, without a source,
            `kept` (the target's own value) or `zero` (counts of batches, and biases that the source lacks).
        gates: the reordering of a recurrent layer's gates; `None` if unchanged.
    """

    source: str | None
    target: str
    source_shape: Shape | None
    target_shape: Shape
    why: str
    gates: Gates | None = None


@define(frozen=True)
class Ambiguity:
    """Keys that look alike, without evidence to distinguish them.

    Attributes:
        source: keys of the source.
        target: keys of the target.
        reason: why they are ambiguous.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    reason: str


@define(eq=False)
class Match:
    """The pairing of source and target.

    Attributes:
        pairs: the pairs, in the target's order.
        ambiguous: ambiguous keys, which are not guessed.
        unmatched_source: keys of the source without counterpart in the target.
        unmatched_target: keys of the target without counterpart in the source.
        report: notes for the user, including every reshape.
    """

    pairs: list[Pair] = field(factory=list)
    ambiguous: list[Ambiguity] = field(factory=list)
    unmatched_source: list[str] = field(factory=list)
    unmatched_target: list[str] = field(factory=list)
    report: Report = field(factory=Report)
    _source: Side = field(factory=Side, repr=False)
    _target: Side = field(factory=Side, repr=False)

    @property
    def source_side(self) -> Side:
        """The side that has the tensors."""
        return self._source

    @property
    def target_side(self) -> Side:
        """The side that receives the tensors."""
        return self._target

    @property
    def complete(self) -> bool:
        """Return whether every key of both sides is accounted for."""
        return not (self.ambiguous or self.unmatched_source or self.unmatched_target)

    def state_dict(self, partial: bool = False) -> OrderedDict[str, Any]:
        """Return the source's tensors under the target's keys, in its order, with its shapes. Tied tensors stay tied.

        Args:
            partial: whether keys of the source may be left out, and keys of the target without a source keep their
                own values.

        Raises:
            ModelError: keys are ambiguous, or, without `partial`, without a counterpart.
        """
        if self.ambiguous or not (self.complete or partial):
            raise ModelError(f"the keys do not match:\n  {self.problems()}\n")
        made: dict[tuple[int, Shape, Gates | None], Tensor] = {}
        result: dict[str, Any] = {**self._target.tensors, **self._target.others}
        for pair in self.pairs:
            if pair.source is not None:
                tensor = self._source.tensors[pair.source]
                place = (id(tensor), pair.target_shape, pair.gates)
                if place not in made:
                    whole = tensor if tensor.shape == pair.target_shape else reshape(tensor, pair.target_shape)
                    made[place] = reblocked(whole, pair.gates.order) if pair.gates else whole
                result[pair.target] = made[place]
            elif pair.why == "zero":
                result[pair.target] = _zero(self._target.tensors[pair.target])
        return in_target_order(self._target, result)

    def problems(self, partial: bool = False) -> str:
        """Describe what is missing from a complete match, and how to resolve it; a line for each."""
        lines = []
        for group in self.ambiguous:
            lines.append(f"ambiguous {', '.join(group.source)} = {', '.join(group.target)}? {group.reason}")
        if not partial:
            lines += [f"unmatched in the source: {key}{self._why(key, True)}" for key in self.unmatched_source]
            lines += [f"unmatched in the target: {key}{self._why(key, False)}" for key in self.unmatched_target]
        return "\n  ".join([*lines, *(f"hint: {hint}" for hint in self._hints(partial))])

    def _why(self, key: str, is_source: bool) -> str:
        """Explain why a key has no counterpart, as far as shapes tell."""
        own, others = (self._source, self._target) if is_source else (self._target, self._source)
        other = "target" if is_source else "source"
        shape = own.tensors[key].shape
        if not any(fits(tensor.shape, shape) for tensor in others.tensors.values()):
            return f" {list(shape)}: no tensor of the {other} has this shape"
        taken = {pair.target if is_source else pair.source for pair in self.pairs}
        if all(name in taken for name, tensor in others.tensors.items() if fits(tensor.shape, shape)):
            return f" {list(shape)}: those of the {other} that have this shape belong to others"
        return f" {list(shape)}: the {other} has this shape, in a module with other tensors or at another place"

    def _hints(self, partial: bool) -> Iterator[str]:
        if self.ambiguous:
            one = self.ambiguous[0]
            yield f"a line `{one.source[0]} {one.target[0]}` in the mapping (--map FILE), or another pair, resolves it"
        if self.unmatched_source and not partial:
            yield f"`{self.unmatched_source[0]} -` leaves a key of the source out"
        if self.unmatched_target and not partial:
            yield f"`- {self.unmatched_target[0]}` keeps the target's own value"

    def as_dict(self) -> dict[str, Any]:
        """Return the match as data for JSON."""
        return {
            "complete": self.complete,
            "pairs": [
                {"source": pair.source, "target": pair.target, "shape": list(pair.target_shape), "why": pair.why}
                for pair in self.pairs
            ],
            "ambiguous": [
                {"source": list(group.source), "target": list(group.target), "reason": group.reason}
                for group in self.ambiguous
            ],
            "unmatched_source": self.unmatched_source,
            "unmatched_target": self.unmatched_target,
            "report": self.report.as_dict(),
        }


def _zero(tensor: Tensor) -> Tensor:
    import numpy as np

    return Tensor.from_numpy(np.zeros(tensor.shape, np.dtype(tensor.element.code)))
