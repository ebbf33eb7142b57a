"""Verdicts of a proof, as data: one for each layer, and their summary."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from attrs import asdict, field

from ...data import define
from ...report import Note, Printed
from ...text import counted, printable

AGREES = "agrees"
DIFFERS = "differs"
STALE = "stale"
NOT_RECORDED = "not recorded"
NOT_CHECKABLE = "not checkable"
FILE = "the file"
CONVERSION = "the conversion"
"""What is to blame for a difference: numbers of the file that were changed after Lua's last forward, or how they are
converted."""
VERDICTS = (DIFFERS, STALE, AGREES, NOT_CHECKABLE, NOT_RECORDED)
"""All verdicts, the most conclusive first."""
NOTE = "proof: "
"""Prefix of a proof in a report."""


def _plain(value: Any) -> dict[str, Any]:
    """Return a verdict as plain data; infinities and NaN become `None`."""
    return {
        name: None if isinstance(item, float) and not math.isfinite(item) else item
        for name, item in asdict(value).items()
    }


@define(eq=False)
class LayerProof:
    """The verdict on one layer.

    Attributes:
        path: of the layer in the file, `root.modules[3]`.
        class_name: its class, `nn.Linear`.
        verdict: one of `VERDICTS`.
        max_abs: largest absolute difference of the output; `None` if nothing was compared.
        max_rel: the same relative to the largest absolute value of the recorded output.
        cosine: of the angle between the recorded and the computed output.
        excess: the largest difference in units of the rounding error; 1 is the limit.
        compared: number of compared values.
        parameters: number of weights of the layer itself.
        runs: number of runs, in a sequence or at several places.
        backward: the verdict on its gradient with respect to its input.
        reason: why it differs, or why it could not be checked.
        blame: where it differs, `FILE` or `CONVERSION`; empty where that is not known.
        container: whether it only contains other layers.
        layer: its name as `inspect` lists it, `3.0`; empty for one that is not in it, such as a copy of a step.
    """

    path: str
    class_name: str
    verdict: str
    max_abs: float | None = None
    max_rel: float | None = None
    cosine: float | None = None
    excess: float | None = None
    compared: int = 0
    parameters: int = 0
    runs: int = 1
    backward: str = NOT_RECORDED
    reason: str = ""
    blame: str = ""
    container: bool = False
    layer: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data; infinities and NaN become `None`."""
        found = {("class" if name == "class_name" else name): item for name, item in _plain(self).items()}
        del found["container"]
        return found

    def worst_first(self) -> tuple[int, float]:
        """Return the key that sorts layers, the most important first."""
        return VERDICTS.index(self.verdict), -(self.excess or 0.0)

    @property
    def names(self) -> list[str]:
        """Name, class and path, for a line of a table."""
        place = self.path if self.layer else ""
        return [printable(text) for text in (self.layer or self.path, self.class_name, place)]

    def row(self, widths: list[int]) -> str:
        """Return one line of a table.

        Args:
            widths: of the columns of `names`, in characters.
        """
        numbers = "" if self.max_abs is None else f"abs {self.max_abs:.1e}  rel {self.max_rel or 0.0:.1e}"
        names = [f"{name:{width}}" for name, width in zip(self.names, widths) if width]
        return "  ".join([f"{self.verdict:13}", *names, f"{numbers:25}", printable(self.reason)]).rstrip()


@define(eq=False)
class SegmentProof:
    """The verdict on several consecutive layers, run from a recorded input to a recorded output.

    Attributes:
        first: path of the first layer.
        last: path of the last.
        layers: number of layers.
        verdict: one of `VERDICTS`.
        max_abs: largest absolute difference of the last output.
        max_rel: the same relative to the largest absolute value of the recorded output.
        cosine: of the angle between the recorded and the computed output.
        reason: why it could not be checked.
    """

    first: str
    last: str
    layers: int
    verdict: str
    max_abs: float
    max_rel: float
    cosine: float
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data; infinities and NaN become `None`."""
        return _plain(self)


@define(eq=False)
class Proof(Printed):
    """The verdicts on all layers of a model.

    Attributes:
        source: the name of the file.
        layers: in the order in which they ran.
        against: the reference of the comparison.
        segments: the verdicts on whole segments of layers.
        reference: the origin of the reference values.
        modes: of two models, the inputs and modes in which they were run.
        differences: of two models, what the second computes otherwise, in words; nothing else differs.
        misplaced: of two models, whether weights of the second get the values that others get in the first.
        problem: why nothing could be proved; empty otherwise.
    """

    source: str
    layers: list[LayerProof] = field(factory=list)
    against: str = "recorded activations of Lua Torch"
    segments: list[SegmentProof] = field(factory=list)
    reference: str = "Lua Torch"
    modes: str = ""
    differences: list[str] = field(factory=list)
    misplaced: bool = False
    problem: str = ""

    def of(self, verdict: str) -> list[LayerProof]:
        """Return the layers with a verdict, in order."""
        return [layer for layer in self.layers if layer.verdict == verdict]

    @property
    def first_divergent(self) -> LayerProof | None:
        """The first layer, in the order of execution, that differs."""
        return next(iter(self.of(DIFFERS)), None)

    @property
    def exit_code(self) -> int:
        """0 if everything that could be checked agrees, also if that is nothing; 1 if something differs."""
        return 1 if self.of(DIFFERS) else 0

    def agreeing(self) -> list[LayerProof]:
        """The layers whose output, or gradient, was checked and agrees."""
        return self.of(AGREES)

    @property
    def max_abs(self) -> float:
        """The largest difference among the layers that agree."""
        return max((layer.max_abs or 0.0 for layer in self.agreeing()), default=0.0)

    def summary(self) -> dict[str, Any]:
        """Return counts of layers and parameters by verdict, and the first layer that differs."""
        first = self.first_divergent
        checked = [layer for layer in self.layers if layer.verdict in (AGREES, DIFFERS, STALE)]
        return {
            **{verdict: len(self.of(verdict)) for verdict in VERDICTS},
            "layers": len(self.layers),
            "checked": len(checked),
            "values": sum(layer.compared for layer in checked),
            "parameters": sum(layer.parameters for layer in self.layers),
            "parameters_checked": sum(layer.parameters for layer in checked),
            "max_abs": self.max_abs,
            "first_divergent": first.path if first else None,
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """Return one sentence for a model card."""
        good, bad, stale = self.agreeing(), self.of(DIFFERS), self.of(STALE)
        if self.problem:
            return f"not possible: {self.problem}"
        if bad:
            if self.modes and {layer.layer for layer in bad} == {"(model)"}:
                if not good:
                    return f"not proven: the output differs from {self.reference}"
                agrees = counted(len(good), "layer agrees", "layers agree")
                return f"not proven: {agrees} with {self.reference}, but not the output of the model"
            begin, checked = "not proven: " if self.modes else "", len(bad) + len(good) + len(stale)
            name, kind, place = bad[0].names
            first = f"{name} {kind} ({place})" if place else name
            return f"{begin}{len(bad)} of {checked} checked layers differ from {self.reference}, first {first}"
        count = counted(len(stale), "layer is", "layers are")
        moved = f"{count} not known: the weights moved after the last forward"
        if not good:
            return moved if stale else "nothing in the file could be checked"
        runs = sum(layer.runs for layer in good)
        verb, modes = ("proven", f", on {self.modes}") if self.modes else ("checked", "")
        against = f"{runs} {self.against}" if runs else f"the outputs of {self.reference}"
        largest = max(min(layer.max_abs or 0.0, layer.max_rel or 0.0) for layer in good)  # relative for outputs above 1
        text = f"{verb} against {against}{modes}, largest difference {largest:.1g}"
        return f"{text}; {moved}" if stale else text

    def lines(self, *, everything: bool = False) -> Iterator[str]:
        """Yield the table of layers, the worst first, and the verdict.

        Args:
            everything: with the layers that are not recorded, and all segments.
        """
        shown = [layer for layer in self.layers if everything or layer.verdict != NOT_RECORDED]
        shown.sort(key=lambda layer: layer.worst_first())
        widths = [max(map(len, column)) for column in zip(*(layer.names for layer in shown))]
        yield from (layer.row(widths) for layer in shown)
        for segment in self.segments[: len(self.segments) if everything else 3]:
            where = f"{printable(segment.first)} to {printable(segment.last)}, {segment.layers} layers"
            numbers = f"abs {segment.max_abs:.1e}  rel {segment.max_rel:.1e}"
            yield f"{segment.verdict:13}  {where} in sequence  {numbers}  {segment.reason}".rstrip()
        found = self.summary()
        if found[NOT_RECORDED]:
            text = counted(found[NOT_RECORDED], "layer is", "layers are")
            yield f"{text} not recorded" + ("" if everything else " (--all lists them)")
        yield (
            f"{found['checked']:,} of {found['layers']:,} layers and {found['parameters_checked']:,} of "
            f"{found['parameters']:,} parameters checked"
        )
        yield self.sentence()

    def note(self) -> Note:
        """Return the proof as a note of a report: a warning if a layer differs."""
        texts = [self.sentence(), *self.differences]
        return Note("warning" if self.exit_code == 1 else "info", "", NOTE + "; ".join(texts), code="prove")

    def as_dict(self) -> dict[str, Any]:
        """Return the proof as plain data."""
        return {
            "file": self.source,
            "layers": [layer.as_dict() for layer in self.layers],
            "segments": [segment.as_dict() for segment in self.segments],
            **({"differences": self.differences} if self.modes else {}),
            "summary": self.summary(),
        }
