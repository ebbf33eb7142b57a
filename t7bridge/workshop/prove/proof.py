"""What is proved, and the verdicts, as data: one for each layer, and their summary."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attrs import asdict, field

from ...data import define
from ...report import Note, Printed
from ...text import counted, one_line, printable

if TYPE_CHECKING:
    from ...graph.lua import TorchObject
    from ...limits import Limits
    from .rounding import Deviation

AGREES = "agrees"
DIFFERS = "differs"
NOT_RECORDED = "not recorded"
VERDICTS = (DIFFERS, AGREES, NOT_RECORDED)
"""All verdicts, the most important first."""
NOTE = "proof: "
"""Prefix of a proof in a report."""
UPDATED = "the weights were updated after the last forward pass, as training does"
_NAMED = 3
"""Maximum number of layers that a sentence names."""
_MODEL = "(model)"
"""The name of the model itself among those of its layers; see `layer_names`."""


@define(frozen=True)
class Subject:
    """A model that is proved against a reference outside its file.

    Attributes:
        model: the model.
        path: its path in the file.
        file: the file's name.
        limits: resource limits.
    """

    model: TorchObject
    path: str
    file: str
    limits: Limits


@define(eq=False)
class LayerProof:
    """The verdict on one layer.

    Attributes:
        path: of the layer in the file, `root.modules[3]`.
        class_name: its class, `nn.Linear`.
        verdict: one of `VERDICTS`.
        max_abs: largest absolute difference of the output; `None` if nothing was compared.
        max_rel: the same relative to the largest absolute value of the recorded output.
        excess: the largest difference in units of the rounding error; 1 is the limit.
        compared: number of compared values.
        parameters: number of weights of the layer itself.
        runs: number of runs, in a sequence or at several places.
        updated: whether it differs as all layers with weights of its model do, and no other: an update explains that.
        reason: why it differs, or why it could not be compared.
        has_weights: whether it, or a layer that is compared as one with it, has weights.
        layer: its name as `inspect` lists it, `3.0`; empty for one that is not in it, such as a copy of a step.
    """

    path: str
    class_name: str
    verdict: str
    max_abs: float | None = None
    max_rel: float | None = None
    excess: float | None = None
    compared: int = 0
    parameters: int = 0
    runs: int = 1
    updated: bool = False
    reason: str = ""
    has_weights: bool = False
    layer: str = ""

    def __repr__(self) -> str:
        return one_line(self, f"{self.layer or self.path} {self.class_name}: {self.verdict}")

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data; infinities and NaN, which JSON does not have, become `None`."""
        data = {}
        for name, value in asdict(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                value = None
            data["class" if name == "class_name" else name] = value
        return data

    def set_numbers(self, difference: Deviation, compared: int) -> None:
        """Set the numbers of a comparison, and of how many values it was."""
        self.max_abs = difference.max_abs
        self.max_rel = difference.max_rel
        self.excess = difference.excess
        self.compared = compared

    def worst_first(self) -> tuple[int, float]:
        """Return the key that sorts layers, the most important first."""
        return VERDICTS.index(self.verdict), -(self.excess or 0.0)

    @property
    def names(self) -> list[str]:
        """Name, class and path, for a line of a table."""
        # Without a name of its own, a layer is named by its path.
        place = self.path if self.layer else ""
        return [printable(text) for text in (self.layer or self.path, self.class_name, place)]

    @property
    def place(self) -> str:
        """Path and class, for a sentence."""
        return f"{printable(self.path)}, {printable(self.class_name)}"

    def row(self, widths: list[int]) -> str:
        """Return one line of a table.

        Args:
            widths: of the columns of `names`, in characters.
        """
        numbers = "" if self.max_abs is None else f"abs {self.max_abs:.1e}  rel {self.max_rel or 0.0:.1e}"
        # A column in which all lines are empty is left out.
        names = [f"{name:{width}}" for name, width in zip(self.names, widths) if width]
        verdict = f"{self.verdict:12}"  # as long as "not recorded"
        columns = [verdict, *names, f"{numbers:25}", printable(self.reason)]
        return "  ".join(columns).rstrip()


@define(eq=False)
class Proof(Printed):
    """The verdicts on all layers of a model.

    Attributes:
        source: the name of the file.
        layers: in the order in which they ran.
        against: the reference of the comparison.
        reference: the origin of the reference values.
        modes: of two models, the inputs and modes in which they were run, in words; else empty.
        differences: of two models, what the second computes otherwise, in words; nothing else differs.
        misplaced: of two models, whether weights of the second get the values that others get in the first.
        problem: why nothing could be proved; empty otherwise.
    """

    source: str
    layers: list[LayerProof] = field(factory=list)
    against: str = "recorded activations of Lua Torch"
    reference: str = "Lua Torch"
    modes: str = ""
    differences: list[str] = field(factory=list)
    misplaced: bool = False
    problem: str = ""

    @property
    def _is_of_two_models(self) -> bool:
        """Whether the reference is a second model, run on the same inputs; only then there are `modes`."""
        return bool(self.modes)

    def of(self, verdict: str) -> list[LayerProof]:
        """Return the layers with a verdict, in order."""
        return [layer for layer in self.layers if layer.verdict == verdict]

    @property
    def unexplained(self) -> list[LayerProof]:
        """The layers that differ, without those of models whose weights were updated."""
        return [layer for layer in self.of(DIFFERS) if not layer.updated]

    @property
    def updated(self) -> list[LayerProof]:
        """The layers that differ because the weights of their model were updated."""
        return [layer for layer in self.of(DIFFERS) if layer.updated]

    @property
    def first_divergent(self) -> LayerProof | None:
        """The first layer, in the order of execution, that differs and that no update explains."""
        return next(iter(self.unexplained), None)

    def agreeing(self) -> list[LayerProof]:
        """The layers that agree."""
        return self.of(AGREES)

    @property
    def exit_code(self) -> int:
        """1 if a layer differs that no update explains; 0 otherwise, also if nothing could be compared."""
        return 1 if self.unexplained else 0

    @property
    def max_abs(self) -> float:
        """The largest difference among the layers that agree."""
        return max((layer.max_abs or 0.0 for layer in self.agreeing()), default=0.0)

    def _result(self) -> str:
        """Return the result as one sentence."""
        return self.sentence()

    def summary(self) -> dict[str, Any]:
        """Return counts of layers and parameters by verdict, and the first layer that differs."""
        first = self.first_divergent
        compared = [layer for layer in self.layers if layer.verdict != NOT_RECORDED]
        return {
            **{verdict: len(self.of(verdict)) for verdict in VERDICTS},
            "updated": len(self.updated),
            "layers": len(self.layers),
            "checked": len(compared),
            "values": sum(layer.compared for layer in compared),
            "parameters": sum(layer.parameters for layer in self.layers),
            "parameters_checked": sum(layer.parameters for layer in compared),
            "max_abs": self.max_abs,
            "first_divergent": first.path if first else None,
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """Return the result as one sentence."""
        if self.problem:
            return f"not possible: {self.problem}"
        if self.unexplained:
            return self._sentence_of_models() if self._is_of_two_models else self._sentence_of_file()
        updated = ""
        if self.updated:
            layers = counted(len(self.updated), "layer with weights does", "layers with weights do")
            updated = f"{layers} not compute what Lua recorded: {UPDATED}"
        if not self.agreeing():
            return updated or "nothing is proved, as nothing in the file could be checked"
        return "; ".join(filter(None, (self._sentence_of_agreement(), updated)))

    def _sentence_of_agreement(self) -> str:
        """Return the sentence on the layers that agree, of which there are some."""
        agreeing = self.agreeing()
        runs = sum(layer.runs for layer in agreeing)
        # "298 recorded activations of Lua Torch"; only the verdict on a model as a whole counts no runs.
        against = f"{runs} {self.against}" if runs else f"the outputs of {self.reference}"
        # Of the absolute and the relative difference the smaller: the relative one for outputs above 1.
        largest = max(min(layer.max_abs or 0.0, layer.max_rel or 0.0) for layer in agreeing)
        if self._is_of_two_models:
            return f"proven against {against}, on {self.modes}, largest difference {largest:.1g}"
        return f"checked against {against}, largest difference {largest:.1g}"

    def _sentence_of_file(self) -> str:
        """Return the sentence for layers that do not compute what is recorded."""
        differing = self.unexplained
        agreeing = self.agreeing()
        if len(differing) <= _NAMED:
            names = " and ".join(layer.place for layer in differing)
        else:
            names = f"{differing[0].place}, and {len(differing) - 1} other layers"
        others = f", while {counted(len(agreeing), 'other does', 'others do')}" if agreeing else ""
        has_weights = any(layer.has_weights for layer in differing)
        parts = "weights, options or output" if has_weights else "options or output"
        recorder = self.reference.removesuffix(" Torch")  # Lua Torch, in short
        if len(differing) == 1:
            cause = f"its {parts} were changed after the last forward pass, or it is converted wrongly"
            return f"{names}, does not compute what {recorder} recorded{others}: {cause}"
        cause = f"their {parts} were changed after the last forward pass, or they are converted wrongly"
        return f"{names}, do not compute what {recorder} recorded{others}: {cause}"

    def _sentence_of_models(self) -> str:
        """Return the sentence for two models of which a layer, or the output, differs."""
        differing = self.unexplained
        agreeing = self.agreeing()
        if {layer.layer for layer in differing} == {_MODEL}:  # only the verdict on the whole
            if not agreeing:
                return f"not proven: the output differs from {self.reference}"
            agrees = counted(len(agreeing), "layer agrees", "layers agree")
            return f"not proven: {agrees} with {self.reference}, but not the output of the model"
        name, class_name, place = differing[0].names
        first = f"{name} {class_name} ({place})" if place else name
        checked = len(differing) + len(agreeing)
        return f"not proven: {len(differing)} of {checked} checked layers differ from {self.reference}, first {first}"

    def lines(self, *, everything: bool = False) -> Iterator[str]:
        """Yield the table of layers, the worst first, and the result.

        Args:
            everything: with the layers that are not recorded.
        """
        shown = [layer for layer in self.layers if everything or layer.verdict != NOT_RECORDED]
        shown.sort(key=lambda layer: layer.worst_first())
        columns = zip(*(layer.names for layer in shown))
        widths = [max(map(len, column)) for column in columns]
        yield from (layer.row(widths) for layer in shown)
        summary = self.summary()
        if summary[NOT_RECORDED]:
            layers = counted(summary[NOT_RECORDED], "layer is", "layers are")
            hint = "" if everything else " (--all lists them)"
            yield f"{layers} not recorded{hint}"
        yield (
            f"{summary['checked']:,} of {counted(summary['layers'], 'layer')} and {summary['parameters_checked']:,} of "
            f"{counted(summary['parameters'], 'parameter')} checked"
        )
        yield self.sentence()

    def note(self) -> Note:
        """Return the proof as a note of a report: a warning if a layer differs."""
        texts = [self.sentence(), *self.differences]
        level = "warning" if self.exit_code == 1 else "info"
        return Note(level, path="", message=NOTE + "; ".join(texts), code="prove")

    def as_dict(self) -> dict[str, Any]:
        """Return the proof as plain data."""
        data: dict[str, Any] = {"file": self.source, "layers": [layer.as_dict() for layer in self.layers]}
        if self._is_of_two_models:
            data["differences"] = self.differences
        data["summary"] = self.summary()
        return data
