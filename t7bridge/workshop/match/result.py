"""Result of `match`, the state dict that follows from it, and its file: a state dict, or the target's Lua model with
other weights. A pair is a key of the target and the key of the source whose tensor it gets. Keys that nothing tells
apart are ambiguous, those without a counterpart unmatched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from attrs import asdict, field

from ...conversion.edited import edited
from ...conversion.edits import Edits
from ...conversion.options import FORCE, STRICT, SYNC, option, takes, verb
from ...conversion.request import DTYPE
from ...conversion.template import fill_template
from ...data import define, np
from ...errors import ModelError, OptionError
from ...formats import LUA, PYTHON, format_for
from ...formats.pt.writer import PtWriter
from ...formats.t7.writer import T7Writer
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...io.output import FileOutput
from ...io.source import ByteSource, PathLike, inputs_protected
from ...nn.layouts import compacted, reblocked, reshape, trimmed
from ...report import Note, Printed, Report, check_strict, escaped, joined
from ...text import counted, extents, one_line, printable
from ...torchmodules.factories import Factory
from .libraries import other_classes, signature, with_classes
from .parts import BATCHES, Shape, name_of, shapes_agree
from .sides import Gates, Side, in_target_order, is_sorted


@define(frozen=True)
class Pair:
    """A key of the target and its value.

    Attributes:
        source: the key of the source; `None` if the target keeps its own value, or a count of zero.
        target: the key of the target.
        source_shape: the shape there; `None` without a source.
        target_shape: the shape here.
        why: the reason: `shape` (no other module looks like this), `graph` (its place in the graphs of both models),
            `names`, `numbers` (its place in a numbered list), `order` (asked for), `map`, or, without a source, `kept`
            (the target's own value) or `zero` (counts of batches, and biases that the source lacks).
        gates: the reordering of a recurrent layer's gates; `None` if unchanged.
    """

    source: str | None
    target: str
    source_shape: Shape | None
    target_shape: Shape
    why: str
    gates: Gates | None = None

    def __repr__(self) -> str:
        return one_line(self, f"{self.source or '-'} to {self.target}, {extents(self.target_shape)}, by {self.why}")


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

    def __repr__(self) -> str:
        return one_line(self, f"{', '.join(self.source)} = {', '.join(self.target)}? {self.reason}")


@define(frozen=True)
class KnownModel:
    """A model of a library that has the same layers.

    Attributes:
        name: what makes it: `torchvision.models:resnet50`, `timm:create_model('resnet50', num_classes=10)`.
        classes: its number of classes; `None` if it has none to choose.
        open_keys: number of keys of both sides that have no certain counterpart.
        verdict: `proven` or `not proven`, if both models were run.
    """

    name: str
    classes: int | None
    open_keys: int
    verdict: str = ""

    def __str__(self) -> str:
        classes = None if self.classes is None else counted(self.classes, "class", "classes")
        state = f"{counted(self.open_keys, 'key')} without certain counterpart" if self.open_keys else "complete"
        return ", ".join(filter(None, (self.name, classes, state, self.verdict)))

    def __repr__(self) -> str:
        return one_line(self, str(self))


@define(eq=False)
class Match(Printed):
    """The pairing of source and target.

    Attributes:
        pairs: the pairs, in the target's order.
        ambiguous: ambiguous keys, which are not guessed.
        unmatched_source: keys of the source without counterpart in the target.
        unmatched_target: keys of the target without counterpart in the source.
        report: notes for the user, including every reshape.
        source_side: the side that has the tensors.
        target_side: the side that receives them.
        models: without a target, the models of libraries that have the same layers, the best one first, which is the
            target.
        candidates: the matches with each of these.
        asked: the libraries that were asked for them, with their versions.
        nearest: the model with most of the layers, where none has all.
        recurrent: what a recurrent model is, in words, of which libraries are not asked.
    """

    pairs: list[Pair] = field(factory=list)
    ambiguous: list[Ambiguity] = field(factory=list)
    unmatched_source: list[str] = field(factory=list)
    unmatched_target: list[str] = field(factory=list)
    report: Report = field(factory=Report)
    source_side: Side = field(factory=Side, repr=False)
    target_side: Side = field(factory=Side, repr=False)
    models: list[KnownModel] = field(factory=list)
    candidates: list[Match] = field(factory=list, repr=False)
    asked: list[str] = field(factory=list)
    nearest: str = ""
    recurrent: str = ""

    @property
    def open_keys(self) -> int:
        """Return the number of keys of both sides without a certain counterpart."""
        doubtful = sum(len(group.source) + len(group.target) for group in self.ambiguous)
        return doubtful + len(self.unmatched_source) + len(self.unmatched_target)

    def sentence(self) -> str:
        """Return the answer in a sentence: of a match without a target, the best model that has the same layers."""
        if self.recurrent:
            return self.recurrent
        if self.models:
            return str(self.models[0])
        if self.asked:
            near = f"; the nearest is {self.nearest}" if self.nearest else ""
            return f"no model of {' or '.join(self.asked)} has these layers{near}"
        return "complete" if self.complete else f"{counted(self.open_keys, 'key')} without certain counterpart"

    @property
    def notes(self) -> list[Note]:  # type: ignore[override]
        """The notes of its report."""
        return self.report.notes

    def listed_pairs(self) -> list[str]:
        """Return a line for each pair of keys."""
        width = max((len(pair.source or "-") for pair in self.pairs), default=0)
        return [
            f"{pair.source or '-':{width}}  {pair.target}  {list(pair.target_shape)} {pair.why}" for pair in self.pairs
        ]

    def lines(self) -> list[str]:
        """Return a line for each pair, each open key, and the result."""
        problems = [line.strip() for line in self.problems().splitlines()]
        return [*self.listed_pairs(), *problems, self._result()]

    def _result(self) -> str:
        """Return the number of pairs, and of keys without one."""
        pairs = f"{counted(len(self.pairs), 'pair')}, " if self.pairs else ""
        return pairs + self.sentence()

    def _rows(self) -> list[tuple[str, str, str, str]]:
        """Return the pairs and the open keys as rows of a table: source, target, shape, and reason."""
        rows = [(pair.source or "-", pair.target, extents(pair.target_shape), pair.why) for pair in self.pairs]
        for group in self.ambiguous:
            rows.append((", ".join(group.source), ", ".join(group.target), "", f"ambiguous: {group.reason}"))
        for key in self.unmatched_source:
            rows.append((key, "", extents(self.source_side.tensors[key].shape), "unmatched"))
        for key in self.unmatched_target:
            rows.append(("", key, extents(self.target_side.tensors[key].shape), "unmatched"))
        return rows

    def _repr_html_(self) -> str:
        """Return a table of the pairs and of the open keys, for notebooks."""
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("source", "target", "shape", "by"))
        body = ""
        for row in self._rows():
            cells = "".join(f"<td>{_cell(text)}</td>" for text in row)
            body += f"<tr>{cells}</tr>"
        notes = "".join(f"<div>{escaped(str(note))}</div>" for note in joined(self.notes))
        return f"<div>{_cell(self._result())}</div><table><tr>{head}</tr>{body}</table>{notes}"

    @property
    def complete(self) -> bool:
        """Return whether every key of both sides is accounted for."""
        return not (self.ambiguous or self.unmatched_source or self.unmatched_target)

    def state_dict(self, partial: bool = False) -> OrderedDict[str, Any]:
        """Return the source's tensors under the target's keys, in its order, with its shapes. Tied tensors stay tied.

        Storages have only the elements that these tensors use; tensors of one storage share one again.

        Args:
            partial: whether keys of the source may be left out, and keys of the target without a source keep their
                own values. Those that `match` settled as `zero`, see `Pair.why`, are zeros in any case.

        Raises:
            ModelError: keys are ambiguous, or, without `partial`, without a counterpart.
        """
        if self.ambiguous or not (self.complete or partial):
            raise ModelError(f"the keys do not match:\n  {self.problems()}\n")
        # By what the tensors of the result are made from: tied ones are converted once, and stay tied.
        converted: dict[tuple[int, Shape, Gates | None], Tensor] = {}
        result: dict[str, Any] = {**self.target_side.tensors, **self.target_side.others}
        for pair in self.pairs:
            if pair.source is not None:
                tensor = self.source_side.tensors[pair.source]
                conversion = (id(tensor), pair.target_shape, pair.gates)
                if conversion not in converted:
                    converted[conversion] = _converted(tensor, pair)
                result[pair.target] = converted[conversion]
            elif pair.why == "zero":
                result[pair.target] = _zero(self.target_side.tensors[pair.target])
        return trimmed(in_target_order(self.target_side, result))

    def lua_model_and_other(self, partial: bool = False) -> tuple[TorchObject, Any]:
        """Return the Lua model of a match, and a Lua model or a state dict with the same weights, to compare both.

        One side at least has to be a Lua model. The target, if it is one, is the first: it gets the weights of the
        source, and is modified.

        Args:
            partial: see `state_dict`.
        """
        source = self.source_side
        target = self.target_side
        if target.module is None:
            assert source.module is not None
            return source.module, self.state_dict(partial)
        fill_template([target.module], self._filling(partial))
        return target.module, source.module or {**source.tensors, **source.others}

    def _filling(self, partial: bool) -> OrderedDict[str, Any]:
        """Return the state dict that fills a Lua model, which has no batch counters; `partial` as in `state_dict`."""
        filling = OrderedDict[str, Any]()
        for key, tensor in self.state_dict(partial).items():
            if name_of(key) != BATCHES:
                filling[key] = tensor
        return filling

    def problems(self, partial: bool = False) -> str:
        """Describe what is missing from a complete match, and how to resolve it; a line for each, or an empty text.

        All lines but the first are indented, for a message.

        Args:
            partial: whether keys without a counterpart are no problem.
        """
        lines = []
        for group in self.ambiguous:
            lines.append(f"ambiguous {', '.join(group.source)} = {', '.join(group.target)}? {group.reason}")
        if not partial:
            for key in self.unmatched_source:
                lines.append(f"unmatched in the source: {key}{self._why(key, is_source=True)}")
            for key in self.unmatched_target:
                lines.append(f"unmatched in the target: {key}{self._why(key, is_source=False)}")
        return "\n  ".join([*lines, *(f"hint: {hint}" for hint in self._hints(partial))])

    def _why(self, key: str, is_source: bool) -> str:
        """Return the end of a line that says why a key has no counterpart, as far as shapes tell.

        Args:
            key: the key.
            is_source: whether it is one of the source, and not of the target.
        """
        own, others = (self.source_side, self.target_side) if is_source else (self.target_side, self.source_side)
        other = "target" if is_source else "source"
        shape = own.tensors[key].shape
        alike = [name for name, tensor in others.tensors.items() if shapes_agree(tensor.shape, shape)]
        if not alike:
            return f" {list(shape)}: no tensor of the {other} has this shape"
        paired = {pair.target if is_source else pair.source for pair in self.pairs}
        if paired.issuperset(alike):
            return f" {list(shape)}: those of the {other} that have this shape belong to others"
        # Whole modules are paired: the other tensors of theirs, or what is around them, did not agree.
        return f" {list(shape)}: the {other} has this shape, in a module with other tensors or at another place"

    def _hints(self, partial: bool) -> Iterator[str]:
        """Yield what the user may do about open keys.

        Args:
            partial: whether keys without a counterpart are no problem.
        """
        other_factory = self._with_other_classes()
        if other_factory is not None:
            yield f"only the number of classes differs: {other_factory}"
        if self.ambiguous:
            first = self.ambiguous[0]
            line = f"{first.source[0]} {first.target[0]}"
            yield f"a line `{line}` in the mapping (--map FILE), or another pair, resolves it"
            sides = self.source_side, self.target_side
            if not all(side.has_graph for side in sides):
                yield "the class of a state dict as the model, `net.py:Net`, has a graph, which tells layers apart"
            if not any(is_sorted(side) for side in sides):  # keys in alphabetical order are in no order of layers
                yield "--order pairs them in the order of the keys"
        if self.unmatched_source and not partial:
            yield f"`{self.unmatched_source[0]} -` leaves a key of the source out"
        if self.unmatched_target and not partial:
            yield f"`- {self.unmatched_target[0]}` keeps the target's own value"

    def _with_other_classes(self) -> Factory | None:
        """Return the target's factory with the source's number of classes, if nothing else differs; else `None`."""
        factory = self.target_side.factory
        if factory is None:
            return None
        source_layers = signature(self.source_side.tensors, self.source_side.derived)
        target_layers = signature(self.target_side.tensors, self.target_side.derived)
        classes = other_classes(source_layers, target_layers)
        return None if classes is None else with_classes(factory, classes)

    def as_dict(self) -> dict[str, Any]:
        """Return the match as data for JSON."""
        data: dict[str, Any] = {"complete": self.complete}
        if self.asked:
            data["models"] = [asdict(model) for model in self.models]
            data["asked"] = self.asked
        if self.recurrent:
            data["recurrent"] = self.recurrent
        data["pairs"] = [
            {"source": pair.source, "target": pair.target, "shape": list(pair.target_shape), "why": pair.why}
            for pair in self.pairs
        ]
        data["ambiguous"] = [
            {"source": list(group.source), "target": list(group.target), "reason": group.reason}
            for group in self.ambiguous
        ]
        data["unmatched_source"] = self.unmatched_source
        data["unmatched_target"] = self.unmatched_target
        data["report"] = self.report.as_dict()
        return data


def _cell(text: str) -> str:
    """Return text of a file for a cell of a table in a notebook."""
    return escaped(printable(text))


def _converted(tensor: Tensor, pair: Pair) -> Tensor:
    """Return a tensor of the source in the shape of the target, with its order of gates."""
    if tensor.shape != pair.target_shape:
        tensor = reshape(tensor, pair.target_shape)
    return reblocked(tensor, pair.gates.order) if pair.gates else tensor


def _zero(tensor: Tensor) -> Tensor:
    """Return zeros of the shape and element type of a tensor."""
    return Tensor.from_numpy(np.zeros(tensor.shape, np.dtype(tensor.element.code)))


@verb
class WriteMatch:
    """Write the result of a match."""

    found: Match = field(kw_only=False)
    path: PathLike = field(kw_only=False)
    force: bool = FORCE
    dtype: str | None = option(DTYPE, default=None, unless=None, except_for="", targets=(PYTHON,), group=".pt output")
    compact: bool = option(
        "write only the used part of each storage", default=False, targets=(PYTHON,), group=".pt output"
    )
    strict: bool = STRICT
    sync: bool = SYNC
    partial: bool = option("drop keys that TARGET lacks, and keep those only TARGET has", default=False)


@takes(WriteMatch)
@inputs_protected()
def write_match(request: WriteMatch) -> None:
    """Write a `.pt` with exactly the target's keys, in its order and with its shapes; complete the report.

    If the target is a model in a `.t7`, a `.t7` can be written: the target's file with the weights of the source.

    Args:
        found: the match.
        path: of the file to write.
        partial: see `Match.state_dict`.

    Raises:
        ModelError: the match is incomplete; or the path is not a `.pt`, nor a `.t7` for a target that is one; or
            `dtype` or `compact` is given for a `.t7`, whose types and storages are those of the target.
        TargetExistsError: the file exists and `force` is not set, or it is one of the inputs.
        StrictError: with `strict`: the file would lose something; the error has the notes.
    """
    target = request.found.target_side
    _note_inputs(request.found)
    goal = format_for(request.path)
    if goal.values == LUA and target.module is not None and target.document is not None:
        _write_model(request)
    elif goal.name == "pt":
        _write_state_dict(request)
    else:
        raise ModelError(
            "a match is written as a .pt, or as a .t7 if the target is a model in a .t7",
            file=str(request.path),
            found=f"a target that is {target.format or 'in memory'}",
        )


def _note_inputs(match: Match) -> None:
    """Note the files of both sides as inputs, which `inputs_protected` lets no output replace."""
    for side in (match.source_side, match.target_side):
        if side.document is not None:
            ByteSource.open(side.document.source)  # it is open already: this does nothing else


def _write_state_dict(request: WriteMatch) -> None:
    """Write a `.pt` with the source's tensors under the target's keys."""
    match = request.found
    path = request.path
    report = match.report
    state = match.state_dict(request.partial)
    if request.compact:
        state = compacted(state)
    edits = Edits(dtype=request.dtype)
    state = edited(state, edits, report)
    check_strict(report, request.strict)  # before anything is written
    with FileOutput(path, force=request.force, sync=request.sync) as output:
        writer = PtWriter(output)
        writer.write(state)
        writer.finish()
        # What the conversion of types has lost is known when all elements are written.
        output.wait()
        edits.note_written(report)
        check_strict(report, request.strict)
    report.target = str(path)
    report.target_bytes = output.position
    report.tensors = writer.tensors
    report.storages = writer.storages


def _write_model(request: WriteMatch) -> None:
    """Write the target's `.t7` with the weights of the source in its model, which is modified.

    Raises:
        OptionError: an option is given that is for a `.pt` only.
    """
    match = request.found
    report = match.report
    target = match.target_side
    assert target.document is not None  # `write_match` has seen to that
    _check_no_option_of_pt(request)
    report.notes += fill_template([target.module], match._filling(request.partial))
    report.target_format = "t7"
    report.mode = "template"
    check_strict(report, request.strict)
    content = target.document.content
    with FileOutput(request.path, force=request.force, sync=request.sync) as output:
        writer = T7Writer(output, content.layout)
        for root in content.roots:
            writer.write_object(root)
    report.target = str(request.path)
    report.target_bytes = output.position
    report.tensors = content.tensors
    report.storages = content.storages


def _check_no_option_of_pt(request: WriteMatch) -> None:
    """Refuse options that a `.t7` has no use for.

    Raises:
        OptionError: one of them is given.
    """
    problem = "does not apply to a .t7, which keeps the types and storages of its model; it is for a .pt"
    problems = []
    if request.dtype is not None:
        problems.append(("dtype", problem))
    if request.compact:
        problems.append(("compact", problem))
    if problems:
        raise OptionError(problems=tuple(problems), file=str(request.path))
