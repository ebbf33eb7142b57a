"""`match`: map the keys of one state dict to another's. The user's mapping comes first, then the evidence (`pairing`),
by which parts, each the tensors of one module, are paired.

A file has one pair a line, source first, with white space between; `#` begins a comment:

    # a key                     and its name in the target
    classifier.1.weight         fc.weight
    # a module or a container   with all that is in it
    features.                   backbone.
    # a key or module of the source to leave out
    9.bias                      -
    # a key or module of the target that keeps its own values
    -                           head.
    # the order of the gates of a cell that is not PyTorch's, a letter a gate
    i2h.                        lstm.                           ifog
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from ...conversion.naming import Naming, Renames
from ...conversion.options import AT, INPUT, JSON, LIMITS, flag, option, options_of, takes, verb
from ...conversion.request import RENAME, STRIP
from ...data import define
from ...errors import FormatError, ModelError, UnsupportedError, about_file
from ...graph.tensor import place_of
from ...io.source import add_input
from ...limits import Limits
from ...report import Report
from ...text import counted, listed
from .libraries import LIBRARIES, NEAR, Candidate, Library, library, signature
from .pairing import pair_parts
from .parts import BATCHES, Part, keys_under, name_of, names_between, parts_of, prefix_of, shapes_agree, sibling
from .places import graph_of
from .result import Ambiguity, KnownModel, Match, Pair, WriteMatch
from .sides import (
    LUA_ORDERS,
    ORDERS,
    Gates,
    Side,
    gate_count,
    is_sorted,
    recurrent_in_words,
    reorder,
    side_of,
    with_cells,
)

NOTHING = "-"

KeyPairs = Mapping[str, str] | Iterable[Sequence[str]] | str | os.PathLike[str]
"""A mapping as users pass it: pairs, or the path of a file."""

_MAX_BYTES = 1 << 26
"""Maximum size of a file with a mapping: 64 MiB."""
_GATES = set("ifgorzn")
"""The letters of gates, of all `ORDERS`."""


@verb
class MatchKeys:
    """Map the keys of one state dict to another model's, by names, shapes, graphs and numbered lists.

    Without TARGET, name the models of torchvision and timm that have the same layers; the first time takes minutes.
    Ambiguous keys are listed, never guessed: --map resolves them.
    """

    COMMON = ("out", "mapping", "order", "force")
    EXAMPLES = (
        "t7bridge match model.t7",
        "t7bridge match model.t7 torchvision.models:resnet50 -o resnet50.pt",
        "t7bridge match model.t7 target.pt -o weights.pt",
        "t7bridge match model.t7 target.pt --map pairs.txt",
        "t7bridge match weights.pt model.t7 -o filled.t7",
    )
    source: Any = option("the weights: a .t7, or a .pt with a state dict", kw_only=False, metavar="SRC", stdin=True)
    target: Any = option(
        "the model to fill: a .pt with its state dict, a .t7, or a class or function that makes it: "
        "torchvision.models:resnet50, net.py:Net(10)",
        default=None, kw_only=False, metavar="TARGET", nargs="?",
    )  # fmt: skip
    out = option(
        ".pt: the weights under TARGET's keys; .t7: TARGET, a .t7, with these weights",
        default=None, flags=("-o",), metavar="OUT",
    )  # fmt: skip
    rename: Renames = option(RENAME, default=(), unless=None, except_for="", group="")
    strip: tuple[str, ...] = option(STRIP, default=(), unless=None, except_for="", group="")
    force, dtype, compact, strict, sync, partial = options_of(WriteMatch).values()
    mapping: KeyPairs | None = option(
        "known pairs of keys, or of modules whose names end in a dot: `source.key target.key`; `-` for none",
        default=None,
        kw_only=False,
        metavar="FILE",
        flags=("--map",),
    )
    order: bool = option(
        "pair layers that look alike in the order of the keys, where nothing else decides", default=False
    )
    at: str | None = AT
    target_at: str | None = option("path of the state dict in TARGET, if it has several", default=None, metavar="PATH")
    among: tuple[str, ...] = option(
        "without TARGET: package or file whose models are compared, instead of torchvision and timm; may be repeated",
        default=(), metavar="PACKAGE",
    )  # fmt: skip
    factory = option(
        "class or function that returns the model of a .pt, to compare two models; by default TARGET", default=None,
        metavar="PACKAGE:FACTORY", flags=("--module",),
    )  # fmt: skip
    no_run = flag("do not run SRC, a .t7, and the model of TARGET, a factory, on the same inputs")
    input = INPUT
    prove = flag("run both models and compare; without --module, prove only the .t7")
    json = JSON
    limits: Limits = LIMITS


@takes(MatchKeys)
def match(request: MatchKeys) -> Match:
    """Map the keys of one state dict to another's, by names, shapes, graphs and numbered lists.

    Layers that look alike are paired if they have the same place in the graphs of both models, the same names, or the
    same place in numbered lists of equal length, `layers.2` before `layers.10`. The order of keys pairs nothing, unless
    `order` asks for it, and values are not read. What nothing decides is listed as ambiguous.

    Args:
        source: a `.t7` or `.pt` file, a Lua module, a `StateDict`, or a dict of tensors.
        target: likewise, of the model to fill; live PyTorch state dicts and modules too; or a text that names a class
            or function that makes it, `"torchvision.models:resnet50"`, `"net.py:Net(10)"`, which is called without
            memory for weights. Without it, the match is with the model of a library that has the same layers, and
            `models` has all of these; of a recurrent model, `recurrent` says what it is.
        mapping: known pairs: pairs of keys, or of prefixes that end in a dot, optionally with an order of gates, or the
            path of a file with a pair a line; see `t7bridge.workshop.match.matching`.
        order: whether layers that look alike, and that nothing else tells apart, are paired in the order of the keys of
            both sides, where they are equally many; a note lists them.
        at: the path inside the source if it holds several models: `root.protos.rnn`.
        target_at: the path inside the target.
        rename: rules for the keys of the source, before they are matched; see `convert`.
        strip: prefixes to leave out of them before.

    Raises:
        FormatError: a file is damaged, or in no supported format.
        ModelError: there is no state dict, or several; the mapping names keys that do not exist or cannot be paired; a
            factory fails.
        UnsupportedError: PyTorch or the libraries are not installed.

    Example:
        >>> result = match("model.t7", "mine.pt")  # doctest: +SKIP
        >>> save(result.state_dict(), "out.pt")  # doctest: +SKIP
        >>> match("model.t7").sentence()  # doctest: +SKIP
        'torchvision.models:resnet50, 1000 classes, complete'
    """
    naming = Naming(request.rename, request.strip)
    source = side_of(request.source, "the source", request.at, request.limits, naming)
    if request.target is None:
        # Libraries have no recurrent models; those that the user names may.
        recurrent = None if request.among else _recurrent_match(source)
        return recurrent or _best_of_libraries(source, request)
    target = side_of(request.target, "the target", request.target_at, request.limits)
    lines = _read_mapping(request.mapping)
    # A cell of many Lua layers is matched as the one module that it is in PyTorch, where the other side has that.
    source_with_cells = with_cells(source, target, [line.source for line in lines])
    target_with_cells = with_cells(target, source, [line.target for line in lines])
    return _Matching(source_with_cells, target_with_cells, request.order).run(lines)


_MOST_CANDIDATES = 24
"""Maximum number of models with the same layers that are matched, of one library."""
_MOST_NEAR = 3
"""Maximum number of models with other layers that are matched, of one library."""


def _recurrent_match(source: Side) -> Match | None:
    """Return a match without pairs that says what a recurrent model is; `None` for other models."""
    words = recurrent_in_words(source.module) if source.module is not None else ""
    if not words:
        return None
    report = Report(source.name, notes=source.notes)
    return Match(unmatched_source=[*source.tensors], report=report, source_side=source, recurrent=words)


def _best_of_libraries(source: Side, request: MatchKeys) -> Match:
    """Match with the models of libraries that have the same layers; return the best match, see `_best_of`.

    Of equally good ones that is the one of the library asked first, with the shortest name.

    Args:
        source: the side that has the values.
        request: that of the match; its `among` has the packages that the user names in place of `LIBRARIES`.

    Raises:
        UnsupportedError: no library is installed.
        ModelError: a package that the user names cannot be imported.
    """
    layers = signature(source.tensors, source.derived)
    lines = _read_mapping(request.mapping)
    asked: list[str] = []  # libraries, with their releases
    matches: list[tuple[Match, Candidate]] = []
    nearest: list[Candidate] = []  # models with other layers, for the message if nothing matches
    for models in _libraries(request.among):
        asked.append(f"{models.home} {models.release}".strip())
        same, others = models.candidates(layers)
        matches += _matches_of(same, others, source, lines, request)
        nearest += others[:_MOST_NEAR]
        # Libraries are asked until one has a complete match; packages that the user names are all asked.
        if not request.among and any(result.complete for result, _ in matches):
            break
    best = _best_of(matches) if matches else _match_with_none(source, nearest)
    best.asked = asked
    return best


def _matches_of(
    same: list[Candidate], others: list[Candidate], source: Side, lines: list[Line], request: MatchKeys
) -> Iterator[tuple[Match, Candidate]]:
    """Yield the matches with models of a library: some have the same shapes, and matching keys tells which is meant.

    Args:
        same: those with the layers of the source and no others, the shortest name first.
        others: those with other layers, the nearest first; they count only if all keys match nevertheless.
        source: the source.
        lines: the user's mapping.
        request: that of the match.
    """
    for candidate in same[:_MOST_CANDIDATES]:
        yield _match_with(candidate, source, lines, request), candidate
    for candidate in others[:_MOST_NEAR]:
        if candidate.share >= NEAR:
            result = _match_with(candidate, source, lines, request)
            if result.complete:
                yield result, candidate


def _match_with_none(source: Side, nearest: list[Candidate]) -> Match:
    """Return a match without pairs, for a source whose layers no model has; it names the nearest of some models."""
    result = Match(unmatched_source=list(source.tensors), report=Report(source.name), source_side=source)
    if nearest:
        result.nearest = str(max(nearest, key=lambda candidate: candidate.share))
    return result


def _libraries(named: Sequence[str]) -> Iterator[Library]:
    """Yield the models of each package or file that the user has named, or else of each of `LIBRARIES` if installed.

    Those of one are computed, which may take minutes, only when it is asked for.

    Args:
        named: the packages, and the paths of files; empty if the user has named none.

    Raises:
        ModelError: one that the user has named cannot be imported.
        UnsupportedError: no library is installed.
    """
    is_any_installed = False
    for home in named or LIBRARIES:
        try:
            models = library(home)
        except (ImportError, OSError, SyntaxError) as error:
            if named:
                raise ModelError(f"{home} cannot be imported: {error}") from error
            continue
        is_any_installed = True
        yield models
    if not is_any_installed:
        raise UnsupportedError(
            "no library of models is installed",
            expected=" or ".join(home.partition(".")[0] for home in LIBRARIES),
            hint="pip install torchvision timm, or name a package or file: --among nets.py",
        )


def _best_of(matches: list[tuple[Match, Candidate]]) -> Match:
    """Return the match that leaves the fewest keys open, of equal ones the first. It lists all, the best first.

    Args:
        matches: at least one, each with the model of the library.
    """

    def open_keys(match_and_candidate: tuple[Match, Candidate]) -> int:
        result, _ = match_and_candidate
        return result.open_keys

    best_first = sorted(matches, key=open_keys)
    best, _ = best_first[0]
    best.candidates = [result for result, _ in best_first]
    for result, candidate in best_first:
        best.models.append(KnownModel(result.target_side.name, candidate.classes, result.open_keys))
    return best


def _match_with(candidate: Candidate, source: Side, lines: list[Line], request: MatchKeys) -> Match:
    """Return the match of a source with a model of a library, which is made without memory for weights."""
    return _Matching(source, side_of(candidate.factory, name=""), request.order).run(lines)


@define(frozen=True)
class _Parts:
    """Parts of a side that are to be paired; of tied ones perhaps only the first.

    Attributes:
        parts: the parts.
        firsts_of_tied: for each key of parts that are left out, the key of the part to which it is tied; empty if none
            is left out.
    """

    parts: list[Part]
    firsts_of_tied: dict[str, str]


@define(frozen=True)
class _Attempt:
    """What follows from the evidence, if tied parts count once, or if they count as often as they occur.

    Attributes:
        source: the parts of the source that were compared.
        target: those of the target.
        pairs: paired parts, of source and target, with the reason; see `Pair`.
        doubts: ambiguous parts of source and target, with the reason; parts that only one side has are in neither.
    """

    source: _Parts
    target: _Parts
    pairs: list[tuple[Part, Part, str]]
    doubts: list[tuple[list[Part], list[Part], str]]

    @property
    def undecided(self) -> int:
        """The number of parts that are not paired."""
        return len(self.source.parts) + len(self.target.parts) - 2 * len(self.pairs)


class _Matching:
    """Pairs the keys of two sides: first those that the user maps, then the parts of the rest by the evidence. A part
    is the tensors of one module. A pair is known by its key of the target; a key of the source may be in several.

    Args:
        source: the side that has the values.
        target: the side that receives them.
        by_order: whether parts that nothing tells apart are paired in the order of the keys.
    """

    def __init__(self, source: Side, target: Side, by_order: bool = False) -> None:
        self._source = source
        self._target = target
        self._by_order = by_order
        self._pairs: dict[str, Pair] = {}
        """By the key of the target; also the targets that are kept or filled with zeros, whose pair has no source."""
        self._used_sources: set[str] = set()
        """Keys of the source that are accounted for: paired (perhaps ambiguous after all), or left out by the user."""
        self._sources_below_mapped: set[str] = set()
        """Keys of the source below mapped prefixes: they match nothing else."""
        self._targets_below_mapped: set[str] = set()
        """Those of the target."""
        self._ambiguous: list[Ambiguity] = []
        """Groups of keys of both sides that nothing tells apart."""
        self._report = Report(source.name, target.name, source.format or "pt", "pt", "match", notes=list(source.notes))

    def run(self, lines: list[Line]) -> Match:
        """Pair by the user's mapping, then by the evidence, and return the match."""
        # A line about a module is about the keys in it that no other line names.
        lines_of_keys_first = sorted(lines, key=lambda line: line.target.endswith(".") or line.source.endswith("."))
        for line in lines_of_keys_first:
            self._apply_line(line)
        for line in lines:
            self._pair_siblings(line)
        self._pair_lists()
        # Keys that the user or lists have settled take no further part, on either side.
        ambiguous_sources, ambiguous_targets = self._ambiguous_keys()
        settled_sources = self._used_sources | self._sources_below_mapped | ambiguous_sources
        settled_targets = self._pairs.keys() | self._targets_below_mapped | ambiguous_targets
        self._pair_by_evidence(
            [key for key in self._source.tensors if key not in settled_sources],
            [key for key in self._target.tensors if key not in settled_targets],
        )
        # Nothing is computed from the counts of batches: zeros are right whatever is missing.
        self._fill_with_zeros(BATCHES, lambda key: True, "batch counts start at zero")
        self._fill_with_zeros("bias", self._lacks_bias, "biases are zero, as the source has none")
        # Last, as these may take pairs back.
        self._order_gates(lines)
        self._check_ties()
        return self._result()

    def _pair_lists(self) -> None:
        """Settle lists of tensors of the source whose shapes fit those of the target's parameters or statistics."""
        open_targets = [
            key for key in self._unpaired() if key not in self._targets_below_mapped and name_of(key) != BATCHES
        ]
        statistics = [key for key in open_targets if name_of(key).startswith("running_")]
        parameters = [key for key in open_targets if key not in statistics]
        for sources in self._source.lists:
            if self._used_sources.intersection(sources) or self._sources_below_mapped.intersection(sources):
                continue  # the user has mapped some of it
            # A list may be of the parameters, as Lua's `parameters()` returns them, of the statistics, or of both.
            for targets in (parameters, statistics, open_targets):
                if self._fit_one_by_one(sources, targets):
                    self._settle_list(sources, targets)
                    break

    def _settle_list(self, sources: list[str], targets: list[str]) -> None:
        """Pair a list of tensors in its order if `by_order` asks for that; else it is ambiguous, as it has no names.

        Args:
            sources: its keys in the source.
            targets: as many keys of the target.
        """
        if self._by_order:
            for source, target in zip(sources, targets):
                self._pair(source, target, "order")
            return
        reason = "a list of tensors has no names; all shapes fit in this order, which --order accepts"
        self._ambiguous.append(Ambiguity(tuple(sources), tuple(targets), reason))

    def _fit_one_by_one(self, sources: list[str], targets: list[str]) -> bool:
        """Return whether as many tensors of the source have the shapes of those of the target, in this order.

        It is false if a key of the target is paired already, as by another list.

        Args:
            sources: keys of the source.
            targets: keys of the target.
        """
        if len(sources) != len(targets) or any(key in self._pairs for key in targets):
            return False
        for source, target in zip(sources, targets):
            if not shapes_agree(self._source.tensors[source].shape, self._target.tensors[target].shape):
                return False
        return True

    def _result(self) -> Match:
        """Return the match, with notes of all that is not a plain pair."""
        ambiguous_sources, ambiguous_targets = self._ambiguous_keys()
        derived: list[str] = []
        unmatched: list[str] = []
        for key in self._source.tensors:
            if key in self._used_sources or key in ambiguous_sources:
                continue
            # Nothing is computed from the counts of batches, so that they need no counterpart, either.
            if name_of(key) == BATCHES or key in self._source.derived:
                derived.append(key)
            else:
                unmatched.append(key)
        pairs = [self._pairs[key] for key in self._target.tensors if key in self._pairs]
        self._note_result(pairs, derived)
        self._report.tensors = len(pairs)
        return Match(
            pairs=pairs,
            ambiguous=self._ambiguous,
            unmatched_source=unmatched,
            unmatched_target=[key for key in self._unpaired() if key not in ambiguous_targets],
            report=self._report,
            source_side=self._source,
            target_side=self._target,
        )

    def _ambiguous_keys(self) -> tuple[set[str], set[str]]:
        """Return the keys of source and target that are listed as ambiguous so far."""
        sources = {key for group in self._ambiguous for key in group.source}
        targets = {key for group in self._ambiguous for key in group.target}
        return sources, targets

    def _note_result(self, pairs: list[Pair], derived: list[str]) -> None:
        """Note what is no plain pair: pairs by order alone or of other shapes, and what is left out.

        Args:
            pairs: all pairs.
            derived: keys of the source that follow from others, and are in no pair.
        """
        by_order = self._order_in_words(pairs)
        if by_order:
            self._note(by_order)
        if derived:
            self._note(f"{len(derived)} derived tensors are left out: {listed(derived)}")
        if self._target.others:
            self._note(f"not tensors; the target keeps its own values: {listed(self._target.others)}")
        for pair in pairs:
            if pair.source_shape is not None and pair.source_shape != pair.target_shape:
                shapes = f"{list(pair.source_shape)} becomes {list(pair.target_shape)}"
                self._note(f"{pair.source} as {pair.target}: {shapes}")

    def _order_in_words(self, pairs: list[Pair]) -> str:
        """Say which pairs nothing but the order of the keys made; empty if there are none."""
        by_order = [pair.target for pair in pairs if pair.why == "order"]
        if not by_order:
            return ""
        sorted_sides = [side.name for side in (self._source, self._target) if is_sorted(side)]
        warning = f"; those of {' and '.join(sorted_sides)} are sorted by name" if sorted_sides else ""
        keys = counted(len(by_order), "key is", "keys are")
        return f"{keys} paired by their order alone, as asked{warning}: {listed(by_order)}"

    def _unpaired(self) -> list[str]:
        """Return the keys of the target without a value."""
        return [key for key in self._target.tensors if key not in self._pairs]

    def _note(self, message: str) -> None:
        """Add a note to the report of the match."""
        self._report.note("info", message, code="match")

    def _pair(self, source: str, target: str, why: str) -> None:
        """Pair a key of the source and one of the target; `why` is one of the reasons of `Pair`."""
        source_shape = self._source.tensors[source].shape
        target_shape = self._target.tensors[target].shape
        self._pairs[target] = Pair(source, target, source_shape, target_shape, why)
        self._used_sources.add(source)

    def _settle_without_source(self, target: str, why: str) -> None:
        """Note of a key of the target that it gets no value of the source: it is `kept`, or filled with `zero`s."""
        shape = self._target.tensors[target].shape
        self._pairs[target] = Pair(source=None, target=target, source_shape=None, target_shape=shape, why=why)

    def _leave_open(self, pairs: Sequence[tuple[str, str]], reason: str) -> None:
        """Undo pairs of keys, each of the source and of the target, and list them as ambiguous for a reason."""
        for _, target in pairs:
            del self._pairs[target]
        # A tensor of the source may be in several of the pairs.
        sources = dict.fromkeys(source for source, _ in pairs)
        targets = tuple(target for _, target in pairs)
        self._ambiguous.append(Ambiguity(tuple(sources), targets, reason))

    def _order_gates(self, lines: list[Line]) -> None:
        """Reorder gates to the target's order if it is known; else refuse mapped pairs and leave others open.

        Args:
            lines: the user's mapping, which may state orders.

        Raises:
            ModelError: a mapped pair has gates whose order is not known.
        """
        stated = self._stated_orders(lines)
        reordered: dict[Gates, list[str]] = {}  # for the notes: the same change → the keys that have it
        for key, pair in list(self._pairs.items()):
            gates = self._change_of_gates(pair, stated)
            if gates is not None:
                self._pairs[key] = evolve(pair, gates=gates)
                reordered.setdefault(gates, []).append(key)
        for gates, keys in reordered.items():
            self._note(f"gates {gates.words} in {listed(keys)}")

    def _change_of_gates(self, pair: Pair, stated: Mapping[str, str]) -> Gates | None:
        """Return how the gates of a pair are to be reordered; `None` if they are not.

        A pair with gates of an unknown order is left open.

        Args:
            pair: the pair.
            stated: the orders that the user has stated, by keys of the target.
        """
        if pair.source is None:
            return None
        source_count = gate_count(pair.source, self._source.tensors)
        target_count = gate_count(pair.target, self._target.tensors)
        if source_count == target_count:  # both are in PyTorch's order, or neither has gates
            return None
        # Only one of the keys is that of a cell of PyTorch: the order of the gates in the other one has to be known.
        count = max(source_count, target_count)
        if count == 1:  # the other count is 0: neither has gates
            return None
        into_pytorch = target_count == count
        side = self._source if into_pytorch else self._target
        other_key = pair.source if into_pytorch else pair.target
        letters = stated.get(pair.target) or side.gates.get(prefix_of(other_key))
        if letters is None:
            self._leave_gates_open(pair, pair.source, other_key, count)
            return None
        gates = reorder(letters, count, into_pytorch)
        return None if gates.order == tuple(range(count)) else gates

    def _stated_orders(self, lines: list[Line]) -> dict[str, str]:
        """Return the orders of gates that the user's mapping states, by the keys of the target."""
        stated: dict[str, str] = {}
        for line in lines:
            if line.gates:
                stated.update(dict.fromkeys(keys_under(line.target, self._target.tensors), line.gates))
        return stated

    def _leave_gates_open(self, pair: Pair, source: str, other_key: str, count: int) -> None:
        """List a pair as ambiguous, as the order of gates is not known.

        Args:
            pair: the pair.
            source: its key in the source, which it has.
            other_key: its key on the side whose order is not PyTorch's.
            count: the number of gates.

        Raises:
            ModelError: the user's mapping has the pair.
        """
        reason = f"the order of the {count} gates in {other_key} is not known"
        of_mapped_pair = f"the mapping pairs {source} with {pair.target}, and {reason}"
        if count not in ORDERS:  # no cell of PyTorch has so many gates, and no order can be stated
            if pair.why == "map":
                raise ModelError(of_mapped_pair, expected="3 or 4 gates, as cells of PyTorch have")
            self._leave_open([(source, pair.target)], reason)
            return
        example = LUA_ORDERS[count]
        if pair.why == "map":
            raise ModelError(
                of_mapped_pair,
                expected=f"PyTorch's order {' '.join(ORDERS[count])}, or the order of {other_key}",
                hint=f"Add it after the pair: `{source} {pair.target} {example}`.",
            )
        self._leave_open([(source, pair.target)], f"{reason}; state it as a third word in the mapping: {example}")

    # The user's mapping

    def _apply_line(self, line: Line) -> None:
        """Pair what a line of the mapping states, or leave it out.

        Raises:
            ModelError: a side has no such key, its key is paired already, or the two do not fit.
        """
        keys = self._keys_of(line, line.source, self._source, "source")
        targets = self._keys_of(line, line.target, self._target, "target")
        earlier = self._pairs.get(line.target)  # `None`, too, if the line is about a module
        # Several lines may state that a key keeps its values.
        both_keep = earlier is not None and earlier.source is None and line.source == NOTHING
        if earlier is not None and not both_keep:
            raise ModelError(f"{line.place} of the mapping: {line.target} of the target is already paired")
        if line.source == NOTHING:
            for key in targets:
                if key not in self._pairs:  # lines of keys, which come first, go before those of modules
                    self._settle_without_source(key, "kept")
        elif line.target == NOTHING:
            self._used_sources.update(keys)
        elif line.target.endswith("."):
            self._apply_module(line, keys, targets)
        else:
            self._apply_pair(line.source, line.target, line.place)

    @staticmethod
    def _keys_of(line: Line, name: str, side: Side, which: str) -> list[str]:
        """Return the keys of a side that a line of the mapping refers to; none for `-`.

        Args:
            line: the line.
            name: what it says of this side: a key, a prefix that ends in a dot, or `-`.
            side: the side.
            which: its name in messages.

        Raises:
            ModelError: the side has no such key.
        """
        keys = keys_under(name, side.tensors)
        if name != NOTHING and not keys:
            raise ModelError(f"{line.place} of the mapping: the {which} has no {name}")
        return keys

    def _apply_module(self, line: Line, sources: list[str], targets: list[str]) -> None:
        """Pair the keys of two modules by their names below them if these agree, else by the evidence.

        Args:
            line: the line of the mapping.
            sources: the keys of the module of the source.
            targets: those of the module of the target.
        """
        # Other lines may have settled some. All of the source's are used already where its module is mapped to several
        # of the target: then they are used again.
        sources = [key for key in sources if key not in self._used_sources] or sources
        targets = [key for key in targets if key not in self._pairs]
        self._sources_below_mapped.update(sources)
        self._targets_below_mapped.update(targets)
        source_names = {key[len(line.source) :]: key for key in sources}
        target_names = {key[len(line.target) :]: key for key in targets}
        has_modules_inside = any("." in name for name in (*target_names, *source_names))
        if source_names.keys() != target_names.keys() and has_modules_inside:
            self._pair_by_evidence(sources, targets)
            return
        # Of single layers one may lack a bias.
        for name, target in target_names.items():
            if name in source_names:
                self._apply_pair(source_names[name], target, line.place)

    def _pair_siblings(self, line: Line) -> None:
        """Pair the other keys of the modules of a mapped pair of keys: those of one name, bias with bias, that fit.

        Only if the two keys of the line have one name: else the names of the modules mean other things.
        """
        name = name_of(line.source)
        # Of a module, which ends in a dot, the name is empty.
        if not name or name_of(line.target) != name:
            return
        for key in self._unpaired():
            if prefix_of(key) != prefix_of(line.target):
                continue  # of another module
            twin = sibling(line.source, name_of(key))
            if twin not in self._source.tensors or twin in self._used_sources:
                continue  # the source has no such tensor, or it is paired already
            if shapes_agree(self._source.tensors[twin].shape, self._target.tensors[key].shape):
                self._pair(twin, key, "map")

    def _apply_pair(self, source: str, target: str, place: str) -> None:
        """Pair two mapped keys. Other shapes of as many elements are the user's decision, and noted in the report.

        Args:
            source: a key of the source.
            target: a key of the target.
            place: where the mapping says so, for the message.

        Raises:
            ModelError: they have different numbers of elements.
        """
        source_tensor = self._source.tensors[source]
        target_tensor = self._target.tensors[target]
        if source_tensor.numel != target_tensor.numel:
            raise ModelError(
                f"{place} of the mapping: {source} does not match {target}",
                expected=f"{list(target_tensor.shape)}",
                found=f"{list(source_tensor.shape)}",
            )
        self._pair(source, target, "map")

    # Evidence

    def _pair_by_evidence(self, sources: list[str], targets: list[str]) -> None:
        """Pair some keys by the evidence, and list those that it cannot decide on as ambiguous.

        Tied modules count once or as often as they occur, on each side: that which leaves fewer undecided is right; as
        often as they occur if both leave as many.

        Args:
            sources: the keys of the source that may be paired.
            targets: those of the target.
        """
        attempts = []
        for source_parts in _with_and_without_tied(self._source, sources):
            for target_parts in _with_and_without_tied(self._target, targets):
                attempts.append(self._attempt(source_parts, target_parts))
        best = min(attempts, key=lambda attempt: attempt.undecided)
        for source, target, why in best.pairs:
            for target_name, source_name in names_between(source, target).items():
                if shapes_agree(source.shapes[source_name], target.shapes[target_name]):
                    self._pair(source.keys[source_name], target.keys[target_name], why)
        self._settle_tied(best)
        for source_parts_in_doubt, target_parts_in_doubt, reason in best.doubts:
            self._list_as_ambiguous(source_parts_in_doubt, target_parts_in_doubt, reason)

    def _settle_tied(self, attempt: _Attempt) -> None:
        """Pair the parts that an attempt left out, being tied to others, as these others are paired."""
        for key, first in attempt.source.firsts_of_tied.items():
            if first in self._used_sources:
                self._used_sources.add(key)
        for key, first in attempt.target.firsts_of_tied.items():
            pair = self._pairs.get(first)
            if pair is not None and pair.source is not None:
                self._pair(pair.source, key, pair.why)

    def _attempt(self, source: _Parts, target: _Parts) -> _Attempt:
        """Match parts by the evidence, without pairing their keys yet.

        Args:
            source: the parts of the source, all or with tied ones once.
            target: those of the target, likewise.
        """
        conclusions = pair_parts(
            source.parts,
            target.parts,
            repeated={*source.firsts_of_tied.values(), *target.firsts_of_tied.values()},
            graphs=lambda: (graph_of(self._source, source.parts), graph_of(self._target, target.parts)),
            in_definition_order=(not is_sorted(self._source), not is_sorted(self._target)),
            by_order=self._by_order,
        )
        pairs = []
        for target_number, (source_number, why) in conclusions.pairs.items():
            pairs.append((source.parts[source_number], target.parts[target_number], why))
        doubts = []
        for source_parts, target_parts, reason in conclusions.doubts:
            if len(source_parts) == len(target_parts) and _are_all_tied(self._source, source_parts):
                # The parts of the source are one and the same: all answers are equal.
                pairs += [(source_part, part, "shape") for source_part, part in zip(source_parts, target_parts)]
            else:
                doubts.append((source_parts, target_parts, reason))
        return _Attempt(source, target, pairs, doubts)

    def _list_as_ambiguous(self, source_parts: list[Part], target_parts: list[Part], reason: str) -> None:
        """List ambiguous parts, tensor by tensor, without the batch counters, whose values do not matter.

        Args:
            source_parts: parts of the source, all of one class.
            target_parts: those of the target, of the same class.
            reason: why nothing tells them apart.
        """
        # A tensor that no part of the target has is not ambiguous, but unmatched.
        names = dict.fromkeys(name for part in target_parts for name in part.keys)
        for name in names:
            # Some parts may lack a tensor of this name, such as a bias.
            source_keys = tuple(part.keys[name] for part in source_parts if name in part.keys)
            target_keys = tuple(part.keys[name] for part in target_parts if name in part.keys)
            if name == BATCHES:
                self._used_sources.update(source_keys)
            elif source_keys:
                self._ambiguous.append(Ambiguity(source_keys, target_keys, reason))

    def _lacks_bias(self, key: str) -> bool:
        """Return whether the layer of a bias has a counterpart without one: with a bias of zero both compute the same.

        That is so of layers with a matrix or kernel, not of normalizations.

        Args:
            key: of the bias in the target.
        """
        pair = self._pairs.get(sibling(key, "weight"))
        if pair is None or pair.source is None or name_of(pair.source) != "weight":
            return False
        return len(pair.target_shape) > 1 and sibling(pair.source, "bias") not in self._source.tensors

    def _fill_with_zeros(self, name: str, is_missing: Callable[[str], bool], note: str) -> None:
        """Set tensors of the target that have one name, and no counterpart, to zero where that is right.

        Args:
            name: that of the tensors in their modules.
            is_missing: whether zero is right for a key of the target, as the source lacks the tensor.
            note: what is noted of them, after their number.
        """
        filled = [key for key in self._unpaired() if name_of(key) == name and is_missing(key)]
        for key in filled:
            self._settle_without_source(key, "zero")
        if filled:
            self._note(f"{len(filled)} {note}: {listed(filled)}")

    def _check_ties(self) -> None:
        """Leave tensors open that the target ties and the source does not, unless the user maps all of them."""
        # The keys of source and target, by the memory of the target.
        tied: dict[Any, list[tuple[str, str]]] = {}
        for pair in self._pairs.values():
            tensor = self._target.tensors[pair.target]
            if pair.source is not None and tensor.numel:
                tied.setdefault(place_of(tensor), []).append((pair.source, pair.target))
        for pairs in tied.values():
            places = {place_of(self._source.tensors[source]) for source, _ in pairs}
            are_mapped = all(self._pairs[target].why == "map" for _, target in pairs)
            if len(places) > 1 and not are_mapped:
                self._leave_open(pairs, "the target ties these, and the source has different tensors")


def _with_and_without_tied(side: Side, keys: list[str]) -> list[_Parts]:
    """Return the parts that some keys of a side form: all, and, if some are tied, with tied ones once."""
    parts = parts_of({key: side.tensors[key] for key in keys}, side.derived)
    distinct = _without_tied(side, parts)
    everything = _Parts(parts, firsts_of_tied={})
    return [everything, distinct] if distinct.firsts_of_tied else [everything]


def _without_tied(side: Side, parts: list[Part]) -> _Parts:
    """Return the parts of a side without those completely tied to an earlier one; see `_Parts` for their keys."""
    firsts_by_memory: dict[Any, Part] = {}
    distinct: list[Part] = []
    firsts_of_keys: dict[str, str] = {}
    for part in parts:
        first = firsts_by_memory.setdefault(_memory_of_part(side, part), part)
        if first is part:
            distinct.append(part)
            continue
        for name, key in part.keys.items():
            if name in first.keys:  # only one of the two may have a batch counter
                firsts_of_keys[key] = first.keys[name]
    return _Parts(distinct, firsts_of_keys)


def _are_all_tied(side: Side, parts: list[Part]) -> bool:
    """Return whether some parts of a side are one and the same, at several places."""
    return len({_memory_of_part(side, part) for part in parts}) == 1


def _memory_of_part(side: Side, part: Part) -> frozenset[Any]:
    """Return what is equal for parts whose tensors are all tied: the memory of each, by its name in the part."""
    return frozenset((name, place_of(side.tensors[key])) for name, key in part.keys.items() if name != BATCHES)


# The user's mapping


@define(frozen=True)
class Line:
    """One pair of keys or modules that the user's mapping states.

    Attributes:
        source: a key; a prefix, which ends in a dot; or `-`.
        target: likewise.
        place: its location, for messages.
        gates: the order of the gates on the side that is not PyTorch's; empty if the pair does not state it.
    """

    source: str
    target: str
    place: str
    gates: str = ""


def _read_mapping(mapping: KeyPairs | None) -> list[Line]:
    """Return the pairs of a mapping.

    Args:
        mapping: pairs, or the path of a file.

    Raises:
        ModelError: a pair is of a key and a module, or the file does not exist.
        FormatError: the file is not text, or a line or pair is not two or three words.
    """
    if mapping is None:
        return []
    if isinstance(mapping, (str, os.PathLike)):
        return _lines_of_file(os.fspath(mapping))
    lines = []
    pairs = mapping.items() if isinstance(mapping, Mapping) else mapping
    for number, pair in enumerate(pairs, 1):
        words: list[Any] = [*pair] if isinstance(pair, (list, tuple)) else [pair]  # the latter is refused there
        lines.append(_line_of(words, f"pair {number}"))
    return lines


def _lines_of_file(name: str) -> list[Line]:
    """Return the pairs in a file, one a line; `#` begins a comment. Of the errors see `_read_mapping`."""
    rows = []
    for row in _text_of(name).splitlines():
        text, _, _ = row.partition("#")
        rows.append(text.split())
    with about_file(name):
        return [_line_of(words, f"line {number}") for number, words in enumerate(rows, 1) if words]


def _text_of(name: str) -> str:
    """Return the text of a file with a mapping, and note it as an input of the call.

    Raises:
        ModelError: it cannot be read.
        FormatError: it is not text, or too long.
    """
    try:
        with open(name, "rb") as file:
            add_input(name, file.fileno())
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ModelError(f"the mapping cannot be read: {error.strerror}", file=name) from error
    if len(data) > _MAX_BYTES:
        raise FormatError("is too long for a mapping", file=name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError("a mapping is text in UTF-8", file=name, offset=error.start) from error


def _line_of(words: Sequence[str], place: str) -> Line:
    """Return the pair that some words of the mapping state.

    Args:
        words: what is meant of the source, what of the target, and optionally an order of gates.
        place: where they are in the mapping, for messages.

    Raises:
        FormatError: they are not two or three words.
        ModelError: they are a key and a module, or nothing on both sides.
    """
    are_texts = all(isinstance(word, str) for word in words)
    has_letters_of_gates = are_texts and _GATES.issuperset("".join(words[2:]))
    if not has_letters_of_gates or len(words) not in (2, 3):
        raise FormatError(
            f"{place} of the mapping is not a pair",
            expected="a key of the source and one of the target, and optionally an order of gates",
            found=" ".join(str(word)[:40] for word in words[:4]),
        )
    # Names of modules end in a dot; `-` goes with keys and modules, but not with itself.
    are_modules = {name.endswith(".") for name in words[:2] if name != NOTHING}
    if len(are_modules) != 1:
        raise ModelError(
            f"{place} of the mapping pairs a key with a module, or nothing with nothing",
            expected="two keys, or two modules, whose names end in a dot",
            found=" ".join(words[:2]),
        )
    source, target, *gates = words
    return Line(source, target, place, *gates)
