"""Runs each layer of a model on its recorded input, measures what is recorded in units of rounding, and decides.

If the input of a layer was overwritten, for example by an in-place layer, what computes it takes its place: the layers
between two recorded values are compared as one. Weights of a file may be those of an update after the last forward. So
a layer without weights that does not return what is recorded differs, and a layer with weights does where one change of
the file explains it to the last digit and no update looks like it, as that moves more than one number. All else is not
known. May import graph and nn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from math import inf, isfinite, prod
from typing import Any

import torch
from attrs import evolve, field

from ...data import define, np
from ...errors import T7BridgeError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import Limits
from .layer import (
    TINY,
    UNIT,
    Compute,
    LiveLayer,
    NotRunError,
    Values,
    contradiction,
    derived_input,
    doubles,
    gradients,
    mapped,
    outputs,
    to_doubles,
    to_torch,
    unit_of,
)
from .proof import AGREES, CONVERSION, DIFFERS, FILE, NOT_CHECKABLE, NOT_RECORDED, STALE, LayerProof, SegmentProof
from .runs import (
    Memory,
    Recorded,
    Run,
    first_of,
    is_whole,
    items,
    leaves,
    options_of,
    overlap,
    own_parameters,
    own_weights,
    recorded,
    replaced,
    view_of,
    zeros_like,
)

DRAWS = 4
"""Runs with random errors that estimate the error of rounding; each counts with the mean of all values."""
HEADROOM = 15.0
"""Largest rounding error in standard deviations: of a million normal errors the largest has 5, and the order in which
Lua's libraries add up, which the estimate does not know, may triple it."""
EXACT = 20.0
"""Factor of the limit in double precision: the reference itself is no more exact than what it judges, and sums of 400
terms in another order are apart by the root of their number."""
ON_GPU = 10.0
"""Factor of the limit on a GPU, whose libraries transform convolutions by matrices with entries up to 10."""
BACK = 3.0
"""Factor of the limit for gradients: three values of the sum were rounded, gradOutput, input and result."""
RTOL, ATOL = 1e-4, 1e-5
"""The differences allowed for a layer with approximate functions, and for a segment of layers."""
MOST_ROUNDING = 1e-2
"""Share of the largest output from which on agreement within rounding says nothing."""
ROUNDS = 8
"""Steps of Gauss and Newton: each doubles the number of right digits, from one to all 53 binary ones."""
LONGEST = 12
"""Layers between two recorded values among which a change is searched for; the search takes the square of this."""
CLEAR = 0.02
"""Largest part that a change of the file may leave of what a step of gradient descent leaves. Where a step explains
nearly as much, as on one example or with one large feature, the weights may have moved."""
CHANCE = 1e-6
"""Largest probability that a change explains by chance: of m changes, one leaves a share r of n random numbers with
that of m r^(n - 1), as directions within an angle of sine r are that part of all."""
OPTIONS = 1000
"""Changes of options and orders of gates that are tried, at most."""
DETERMINED = 3
"""Values that must agree where others are masked: one or two agree by chance."""
ROWS = 16
"""Random rows that a column is multiplied by: two vectors of 16 numbers are parallel to a tenth once in 10^13."""
LIKELY = 5
"""Weights that are fitted, the likeliest first: only those of equal columns, as of equal inputs, are equally likely."""

OTHERS = 2
"""Layers with weights among which changes are searched for; where more do not agree, all have moved."""

NO_INPUT = "its input is not recorded"
STATE = "continues from a state that is not recorded"
RANDOM = "draws at random, and the drawn values are not recorded"
ROUNDING = "rounding alone may change its output by more than 1 %"
GROWN = "errors of rounding grow beyond the tolerance along its layers"
MASKED = "parts of the last output were set to zero after the pass, as by a mask; the others agree"
MOVED = "the weights moved after the last forward, or the file was changed"

_APPROXIMATE = {
    # Exponentials are computed by a fast approximation.
    **dict.fromkeys(("LogSoftMax", "SpatialLogSoftMax", "TreeNLLCriterion"), 3e-4),
    # Coefficients are kept in the precision of the first run.
    **dict.fromkeys(("LayerNormalization", "SpatialSubtractiveNormalization"), 1e-4),
    **dict.fromkeys(("SpatialDivisiveNormalization", "SpatialContrastiveNormalization"), 1e-4),
    # A value at the threshold on either side; 1 + exp(x) before the logarithm; coefficients in single precision.
    **dict.fromkeys(("HardShrink", "LogSigmoid", "SpatialUpSamplingBilinear"), 0.0),
}
"""Classes whose outputs need only agree within `RTOL` and `ATOL`, or absolutely within this.

Source: TH 814ea4a `THLogAdd.c`, `THExpMinusApprox` of the LogSoftMax before 2017, nn 8726825.
"""
_USUAL = (1.0, 0.0, 2.0, 3.0, 4.0, 5.0, 7.0, -1.0, 1e-5, 1e-3)
"""Usual sizes, strides, paddings, dimensions, indices and small numbers."""


# Residuals


@define(eq=False)
class Deviation:
    """Numbers of one comparison.

    Attributes:
        reason: why the two cannot be compared element by element; empty where they can.
        max_abs: largest absolute difference.
        max_rel: the same, relative to the largest recorded absolute value.
        cosine: cosine of the angle between the two; 1 if they are parallel.
        excess: the largest difference in units of the rounding limit; 1 is the limit.
        close: whether all are within `RTOL` and `ATOL`.
        errors: recorded minus computed values, in standard deviations.
    """

    reason: str = ""
    max_abs: float = inf
    max_rel: float = inf
    cosine: float = 0.0
    excess: float = inf
    close: bool = False
    errors: torch.Tensor = field(factory=lambda: torch.zeros(0), repr=False)

    @property
    def is_small(self) -> bool:
        """Whether rounding explains the difference, or the tolerance covers it."""
        return self.excess <= 1 or self.close

    def write(self, proof: LayerProof, compared: list[torch.Tensor]) -> None:
        """Write the numbers of a comparison."""
        proof.max_abs, proof.max_rel, proof.cosine = self.max_abs, self.max_rel, self.cosine
        proof.excess, proof.compared = self.excess, sum(_sizes(compared))


def measure(
    want: list[torch.Tensor], got: list[torch.Tensor], scales: list[torch.Tensor], headroom: float = 1.0
) -> Deviation:
    """Compare recorded with computed values.

    Args:
        want: recorded tensors.
        got: computed in double precision.
        scales: expected rounding errors of each element, as standard deviations.
        headroom: factor of the limit.
    """
    if len(want) != len(got):
        return Deviation(f"{len(got)} outputs, {len(want)} recorded")
    for one, other in zip(want, got):
        if one.squeeze().shape != other.squeeze().shape:
            return Deviation(f"shape {list(other.shape)}, recorded {list(one.shape)}")
    mine, theirs, scale = map(_joined, (want, got, scales))
    both = mine.isfinite() & theirs.isfinite()
    # A sum beyond the largest float is infinite in Lua but not here.
    same = (mine == theirs) | (mine.isnan() & theirs.isnan()) | (mine.isinf() & (theirs.abs() > 3e38))
    if not bool((both | same).all()):
        return Deviation("infinite or not a number on one side")
    mine, theirs = torch.where(both, mine, 0.0), torch.where(both, theirs, 0.0)
    error = mine - theirs
    z = error / scale
    largest, apart, high = (float(item.abs().max()) if len(item) else 0.0 for item in (mine, error, z))
    norms = float(mine.square().sum() * theirs.square().sum()) ** 0.5
    close = bool((error.abs() <= ATOL + RTOL * mine.abs()).all())
    cosine = float(mine @ theirs) / norms if norms else float(not largest)
    relative = apart / largest if largest else (inf if apart else 0.0)
    return Deviation("", apart, relative, cosine, high / (HEADROOM * headroom), close, z)


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([item.reshape(-1).double() for item in tensors] or [torch.zeros(0, dtype=torch.float64)])


def _sizes(tensors: list[torch.Tensor]) -> list[int]:
    return [item.numel() for item in tensors]


# What computes a recorded value

Change = dict[int, LiveLayer]
"""Layers in place of others, by the id of these."""


@define(eq=False)
class Ref:
    """A tensor that a node computes."""

    node: Node
    index: int
    shape: tuple[int, ...]
    lost: bool = False
    """Whether it is not in memory any more, although nothing overwrote it."""
    recorded: torch.Tensor | None = field(default=None, repr=False)
    """Its value in the file; `None` if it was overwritten."""

    def get(self) -> torch.Tensor:
        """Return the value in the file, or else the computed one."""
        return self.of(self.node.found) if self.recorded is None else self.recorded

    def of(self, found: list[torch.Tensor]) -> torch.Tensor:
        """Return the tensor among those that its node computes.

        Raises:
            NotRunError: the node computed something else.
        """
        if self.index >= len(found) or found[self.index].numel() != prod(self.shape):
            raise NotRunError("another shape than recorded")
        return found[self.index].reshape(self.shape)


@define(eq=False)
class Node:
    """One run of one layer.

    Attributes:
        step: the number of the run.
        unit: unit roundoff of its numbers.
        layer: the layer; `None` where tensors are only concatenated.
        inputs: its input: recorded tensors, and a `Ref` for each that another node computes.
        by: what of the layer is computed.
        found: the computed tensors.
        drawn: the same with random errors, for each seed.
        scales: the expected errors, as standard deviations.
        want: the recorded tensors.
        headroom: factor of the limit.
        off: the difference of these with the weights and options of the file.
        chained: the tensors that it computes after the layers before it, without recorded values in between.
        segment: the run where these begin, and the number of layers from there.
    """

    step: int
    unit: float
    layer: LiveLayer | None
    inputs: Values
    by: Compute = outputs
    found: list[torch.Tensor] = field(factory=list, repr=False)
    drawn: list[list[torch.Tensor]] = field(factory=list, repr=False)
    scales: list[torch.Tensor] = field(factory=list, repr=False)
    want: list[torch.Tensor] = field(factory=list, repr=False)
    headroom: float = 1.0
    off: Deviation = field(factory=Deviation)
    chained: list[torch.Tensor] = field(factory=list, repr=False)
    segment: tuple[int, int] | None = None

    def run(self) -> None:
        """Compute the tensors, and their expected errors.

        Raises:
            NotRunError: the layer does not accept its input.
        """
        self.found = self.compute()
        self.drawn, self.scales, self.off = self._measured(self.found)

    def _measured(
        self, found: list[torch.Tensor], change: Change | None = None
    ) -> tuple[list[list[torch.Tensor]], list[torch.Tensor], Deviation]:
        """Return tensors with random errors, the expected errors, and the difference of what is recorded."""
        drawn = [self.compute(change, seed) for seed in range(DRAWS)]
        scales = self._spread(found, drawn)
        return drawn, scales, measure(self.want, found, scales, self.headroom)

    def apply(self, layer: LiveLayer | None, value: Values) -> list[torch.Tensor]:
        """Compute the tensors of an input with a layer.

        Raises:
            NotRunError: the layer does not accept it.
        """
        try:
            return self.by(layer, value)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise NotRunError("the outputs of its modules do not fit along its dimension") from error

    def compute(self, change: Change | None = None, seed: int | None = None) -> list[torch.Tensor]:
        """Compute the tensors, with some layers changed, or with the random errors of a seed.

        Raises:
            NotRunError: a layer does not accept its input.
        """
        memo: dict[int, list[torch.Tensor]] = {}

        def get(ref: Ref) -> torch.Tensor:
            if ref.recorded is not None:
                return ref.recorded
            return ref.of(memo.get(id(ref.node)) or (ref.node.found if seed is None else ref.node.drawn[seed]))

        for node in self.nodes() if change else [self]:
            layer, value = (change or {}).get(id(node.layer), node.layer), _read(node.inputs, get)
            if layer is not None and seed is not None:
                layer, value = layer.disturbed(value, seed)
            memo[id(node)] = node.apply(layer, value)
        return memo[id(self)]

    def _spread(self, found: list[torch.Tensor], drawn: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        """Return the expected errors, of each element and of all in the mean: those of few draws may all be small."""
        scales = []
        for one, *others in zip(found, *drawn):
            squares = torch.zeros_like(one)
            for other in others:
                squares += (other - one).square() if other.shape == one.shape else 0.0
            squares, sizes = (item.nan_to_num(0.0, 0.0, 0.0) for item in (squares / DRAWS, one.abs()))
            if one.numel():
                squares, sizes = (squares + squares.mean()) / 2, sizes + 0.1 * sizes.square().mean().sqrt()
            # A number that is rounded to the nearest is off by half a unit.
            scales.append(squares.sqrt() + 0.5 * self.unit * sizes + TINY)
        return scales

    def nodes(self) -> list[Node]:
        """Return this and all nodes that it is computed from, in order."""
        found: dict[int, Node] = {}
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            found[id(node)] = node
            stack += [ref.node for ref in _refs(node.inputs) if ref.recorded is None and id(ref.node) not in found]
        return sorted(found.values(), key=lambda node: node.step)

    @property
    def layers(self) -> list[tuple[Node, LiveLayer]]:
        """The layers, in order."""
        return [(node, node.layer) for node in self.nodes() if node.layer is not None]

    @property
    def weighted(self) -> list[tuple[Node, LiveLayer]]:
        """The layers that have weights."""
        return [(node, layer) for node, layer in self.layers if layer.weights]

    @property
    def may_have_moved(self) -> bool:
        """True if it was compared and has weights, which an update may have moved."""
        return len(self.weighted) > 0 and len(self.off.errors) > 0

    def share(self, change: Change) -> float:
        """Return the share of the difference that is left by a change; 1 if that is more than rounding."""
        try:
            got = self.compute(change)
            if not measure(self.want, got, got).close:
                return 1.0
            left = self._measured(got, change)[-1]
        except (NotRunError, T7BridgeError):
            return 1.0
        before = float(self.off.errors.norm()) or inf
        return min(float(left.errors.norm()) / before, 1.0) if left.excess <= 1 else 1.0

    def pulled(self, rows: list[torch.Tensor]) -> Iterator[tuple[Node, LiveLayer, str, list[torch.Tensor]]]:
        """Yield the gradient of each row times the tensors, in units of rounding, with respect to each weight."""
        free = [
            (node, layer, name, item.detach().clone().requires_grad_())
            for node, layer in self.weighted
            for name, item in layer.weights.items()
        ]
        change = {
            id(one): one.moved({name: item for _, layer, name, item in free if layer is one}) for _, one, *_ in free
        }
        with torch.enable_grad():
            out, scale, tensors = _joined(self.compute(change)), _joined(self.scales), [one[-1] for one in free]
            found = [
                torch.autograd.grad(out, tensors, row / scale, retain_graph=True, allow_unused=True) for row in rows
            ]
        for (node, layer, name, _), *slopes in zip(free, *found):
            if slopes[0] is not None:
                yield node, layer, name, slopes

    def after_step(self) -> float:
        """Return the least share of the difference that a step of gradient descent with one tensor leaves: along the
        recorded gradient, or along that of the difference.
        """
        least, recorded = 1.0, {id(layer): layer.gradients() for _, layer in self.weighted}
        for _, layer, name, (slope,) in self.pulled([self.off.errors]):
            known = recorded[id(layer)].get(name)
            # Where none is recorded, the difference asks of biases only those that are off: that is no step of them.
            along = known if known is not None and bool(known.any()) else slope * (slope.dim() > 1)
            moved, size = partial(_moved, layer, name, along), float(along.abs().max())
            number = self.fit(moved, 0.0, 1e-4 / size) if 0 < size < inf else None
            if number is not None:
                left = measure(self.want, self.compute(moved(number)), self.scales)
                least = min(least, float(left.errors.norm() / self.off.errors.norm()))
        return least

    def fit(self, run: Callable[[float], Change], start: float, step: float) -> float | None:
        """Return the number with which a change fits best, by Gauss and Newton; `None` if there is none.

        Args:
            run: the change for a number.
            start: the number that the file has.
            step: a small change of it.
        """
        target = _joined(self.want)
        scale: Any = _joined(self.scales) if len(self.off.errors) else 1.0

        def left(number: float) -> torch.Tensor:
            got = _joined(self.compute(run(number)))
            if len(got) != len(target):
                raise NotRunError("another shape")
            return torch.nan_to_num((target - got) / scale, 0.0, 0.0, 0.0)

        try:
            at, rest = start, left(start)
            for _ in range(ROUNDS):
                along = (rest - left(at + step)) / step
                norm = float(along.square().sum())
                change = float(rest @ along) / norm if norm else inf
                trial = left(at + change) if isfinite(change) else rest
                if float(trial.square().sum()) >= float(rest.square().sum()):
                    break
                at, rest, step = at + change, trial, max(1e-2 * abs(change), 1e-7 * abs(at)) or step
        except (NotRunError, T7BridgeError):
            return None
        return at if at != start else None


def _moved(layer: LiveLayer, name: str, along: torch.Tensor, size: float) -> Change:
    """Return the change of a weight by a multiple of a tensor."""
    return {id(layer): layer.moved({name: layer.weights[name] + size * along})}


def _read(value: Values, get: Callable[[Ref], Any]) -> Values:
    """Return an input, with each `Ref` replaced."""
    return replaced(value, Ref, get)


def _refs(value: Values) -> list[Ref]:
    return [item for item in items(value) if isinstance(item, Ref)]


# Hypotheses: changes of the file with which its layers would return what is recorded


@define(eq=False)
class Hypothesis:
    """One change.

    Attributes:
        node: the run of the layer that is changed.
        change: the change.
        text: the explanation.
        blame: what was wrong: `FILE` or `CONVERSION`.
        moved: by how much the one weight is moved; 0 for changes of more.
    """

    node: Node
    change: Change
    text: str
    blame: str = FILE
    moved: float = 0.0


def _one_weight(case: Node) -> Iterator[Hypothesis]:
    """One weight was another: a change of weight k by d changes the values by d times column k of the Jacobian.

    Products of the difference and of that column with the same random rows are parallel then. An update moves more.
    """
    if not len(case.off.errors) or not case.weighted:
        return
    draw, likely = torch.Generator().manual_seed(1), []
    # Where the difference is large, there is more of the weight in it than of rounding.
    errors = case.off.errors
    rows = [errors * (torch.randint(0, 2, errors.shape, generator=draw) * 2.0 - 1) for _ in range(ROWS)]
    totals = torch.stack([row @ errors for row in rows])
    for node, layer, name, slopes in case.pulled(rows):
        columns = torch.stack(slopes).reshape(ROWS, -1)
        squares, along = columns.square().sum(0) + TINY, totals @ columns
        for place in (along.square() / squares).topk(min(LIKELY, len(along))).indices.tolist():
            gain, size = float(along[place] ** 2 / squares[place]), float(along[place] / squares[place])
            likely.append((gain, size, node, layer, name, place))
    for _, size, node, layer, name, place in sorted(likely, key=lambda one: -one[0])[:LIKELY]:
        index = tuple(int(part) for part in np.unravel_index(place, layer.weights[name].shape))
        only = torch.zeros_like(layer.weights[name])
        only[index] = 1
        change = partial(_moved, layer, name, only)
        more = case.fit(change, 0.0, size) if size and isfinite(size) else None
        if more is not None:
            where = name + "".join(f"[{part}]" for part in index)
            text = f"{where} was about {more:.4g} larger in Lua (0-based, in PyTorch's layout)"
            yield Hypothesis(node, change(more), text, moved=more)


def _option(case: Node) -> Iterator[Hypothesis]:
    """One option was another, or one of all dimensions: flags and usual numbers first, then any that fits."""
    for node, layer in reversed(case.layers):
        named = options_of(layer.obj)

        def rebuilt(value: Any, names: tuple[str, ...], layer: LiveLayer = layer) -> Change:
            return {id(layer): layer.variant(dict.fromkeys(names, value))}

        # A whole model may have run in the other mode; the sizes of all dimensions are often equal.
        groups: list[tuple[str, ...]] = [(name,) for name in sorted(named, key=lambda name: name != "train")]
        groups += [(f"{name[:-1]}H", name) for name in named if name.endswith("W") and f"{name[:-1]}H" in named]
        for group in groups:
            now = [named[name] for name in group]
            for value in (not now[0],) if isinstance(now[0], bool) else _USUAL:
                new, old = (str(item).lower() if isinstance(item, bool) else f"{item:g}" for item in (value, now[0]))
                try:
                    if any(one != value for one in now):
                        text = f"{' and '.join(group)} = {new} agrees (the file has {old})"
                        yield Hypothesis(node, rebuilt(value, group), text)
                except T7BridgeError:
                    continue
        for name, number in named.items():
            change = partial(rebuilt, names=(name,))
            best = None if isinstance(number, bool) else case.fit(change, number, number * 0.01 or 1e-3)
            if best is not None:
                yield Hypothesis(node, change(best), f"{name} = {best:.4g} agrees (the file has {number:.6g})")


def _gate_order(case: Node) -> Iterator[Hypothesis]:
    """The gates of a recurrent layer, or the blocks of a linear one, were in another order."""
    for node, layer in case.weighted:
        extent = min(layer.weights.values(), key=torch.Tensor.dim).shape[0]  # of a bias, if there is one
        axes = {name: item.shape.index(extent) for name, item in layer.weights.items() if extent in item.shape}
        for blocks in (4, 3, 2):
            for order in list(permutations(range(blocks)))[1:] if extent % blocks == 0 and extent > blocks else []:
                parts = {name: layer.weights[name].chunk(blocks, axis) for name, axis in axes.items()}
                change = {name: torch.cat([parts[name][at] for at in order], axis) for name, axis in axes.items()}
                text = f"the gates in the order {' '.join(str(at + 1) for at in order)} agree"
                yield Hypothesis(node, {id(layer): layer.moved(change)}, text, CONVERSION)


HYPOTHESES = (_one_weight, _option, _gate_order)


# Layers


@define(eq=False)
class Outcome:
    """What is known of one run.

    Attributes:
        run: the run.
        verdict: on its output; `DIFFERS` until it is known why.
        reason: why.
        blame: what was wrong, where it differs: `FILE` or `CONVERSION`.
        case: the recorded output, or else a gradient, and what computes it; `None` if nothing is compared.
        backward: the verdict on the gradient with respect to its input.
        culprit: the run whose layer was changed.
    """

    run: Run
    verdict: str = NOT_RECORDED
    reason: str = ""
    blame: str = ""
    case: Node | None = None
    backward: str = NOT_RECORDED
    culprit: int | None = None

    def decide(self, verdict: str, reason: str = "", blame: str = "") -> None:
        """Write a verdict."""
        self.verdict, self.reason, self.blame = verdict, reason, blame

    def proof(self) -> LayerProof:
        """Return what is said of the layer."""
        proof = LayerProof(self.run.path, self.run.obj.class_name, self.verdict, reason=self.reason)
        proof.parameters, proof.container = own_parameters(self.run.obj), self.run.whole
        proof.blame, proof.backward = self.blame, self.backward
        if self.case is not None and self.case.found and self.verdict in (AGREES, DIFFERS, STALE):
            self.case.off.write(proof, self.case.want)
        return proof


class Judge:
    """The verdicts on the runs of one model.

    Args:
        runs: the runs of the layers, in order.
        limits: resource limits.
        undone: whether a backward came last, in which some in-place layers restored their inputs.
    """

    def __init__(self, runs: list[Run], limits: Limits, undone: bool = False) -> None:
        self.runs, self.limits, self.undone = runs, limits, undone
        self.memory = Memory(runs, undone)
        # Layers of 2010: the first dimension of recorded values is contiguous.
        self.turned = any(map(_is_turned, runs))
        modes = [mode for run in runs if isinstance(mode := run.obj.get("train"), bool)]
        self.in_one_mode = len(set(modes)) == 1 < len(modes)
        finputs = ((number, one) for number, run in enumerate(runs) for one in leaves(run.obj.get("finput")))
        self._unfolded = {id(one.storage): number for number, one in finputs}
        """The last run that used each buffer of an unfolded input."""
        self.outcomes: list[Outcome] = []
        self._nodes: list[Node] = []
        self._made: dict[int, dict[Any, Ref]] = {}
        """What computes the tensors that are in memory, by their storages and views."""

    def judge(self) -> list[LayerProof]:
        """Return one verdict for each layer, in order."""
        for number, run in enumerate(self.runs):
            outcome, node = Outcome(run), None
            self.outcomes.append(outcome)
            try:
                if run.output is not None or run.joined is not None:
                    node = self._node(number, run, outcome)
                    if node is not None:
                        self._check(number, run, outcome, node)
                    self._gradient(number, run, outcome, node)
            except (T7BridgeError, NotRunError) as error:
                outcome.decide(NOT_CHECKABLE, getattr(error, "message", "") or str(error))
            except RecursionError:
                outcome.decide(NOT_CHECKABLE, "its modules are nested too deep for PyTorch")
            self._note(run, node if node is not None and node.found else None)
        self._vote()
        return self._layers()

    # What computes an output

    def _node(self, number: int, run: Run, outcome: Outcome) -> Node | None:
        """Return what computes the output of a run; `None` if its input is unknown, or contradicts its fields."""
        unit, complete = self._unit(run), is_whole(run.output)
        value = run.input if run.joined is None else run.joined
        inputs = self._read_input(value, number)
        if inputs is None:
            outcome.reason = (run.reason or NO_INPUT) if complete else ""
        if run.joined is not None:
            place = _dimension(run.obj.get("dimension"))
            return Node(number, unit, None, inputs, partial(_joined_along, place)) if inputs is not None else None
        if inputs is None and not complete:
            return None
        try:
            layer = LiveLayer.build(run.obj, run.path, unit, self.limits)
        except T7BridgeError:
            if inputs is None:
                return None
            raise
        wrong = contradiction(layer) if complete and not self.turned else ""
        by: Compute = outputs
        if inputs is None and not wrong and not self.turned:
            inputs, reason, by = self._derived(layer, number, run)
            outcome.reason = reason or outcome.reason
            wrong = reason if inputs is None else ""
        if wrong:
            outcome.decide(DIFFERS, wrong, FILE)
            return None
        return Node(number, unit, layer, inputs, by) if inputs is not None else None

    def _derived(self, layer: LiveLayer, number: int, run: Run) -> tuple[Values, str, Compute]:
        """Return the input of a layer from its other fields, unless a later layer used the same buffer."""
        if any(self._unfolded[id(one.storage)] != number for one in leaves(run.obj.get("finput"))):
            return None, "", outputs
        return derived_input(layer, run.output, self._is_intact(run, number))

    def _read_input(self, value: Recorded, number: int) -> Values:
        """Return the input of a run, with a `Ref` for each tensor that a layer computed; `None` if unknown."""
        if isinstance(value, list):
            parts = [self._read_input(item, number) for item in value]
            return None if any(part is None for part in parts) else parts
        if not isinstance(value, Tensor):
            return value
        made = self._made.get(id(value.storage), {}).get(view_of(value))
        if (made is not None and made.lost) or self.memory.overwritten(value, number - 1):
            return made
        found = self._torch(value)
        found = found if value.element.name == "int64" else found.double()
        if found.is_floating_point() and not bool(found.isfinite().any()):
            return None
        return found if made is None else evolve(made, recorded=found)

    def _note(self, run: Run, node: Node | None) -> None:
        """Note what computes the memory that a run wrote."""
        if node is None and run.whole:
            return  # the modules inside computed it
        targets = list(leaves(run.output))
        for here in run.writes:
            made = self._made.get(here[0], {})
            self._made[here[0]] = {key: ref for key, ref in made.items() if not overlap(key[0], here)}
        for target in targets:
            self._made.get(id(target.storage), {}).pop(view_of(target), None)
        if node is None or _sizes(node.found) != [target.numel for target in targets]:
            return
        self._nodes.append(node)
        source, lost = first_of(run.input), self._is_lost(run)
        for index, target in enumerate(targets):
            same = run.in_place and isinstance(source, Tensor) and source.numel == target.numel
            for one in (target, source) if same else (target,):
                made = self._made.setdefault(id(one.storage), {})
                made[view_of(one)] = Ref(node, index, tuple(target.shape), lost)

    def _is_lost(self, run: Run) -> bool:
        return self.undone and run.may_be_undone

    def _is_intact(self, run: Run, number: int) -> bool:
        return not self._is_lost(run) and not self.memory.overwritten(run.output, number)

    def _torch(self, value: Recorded) -> Values:
        def upright(item: torch.Tensor) -> torch.Tensor:
            return item.permute(*reversed(range(item.dim()))) if self.turned and item.dim() > 1 else item

        return mapped(to_torch(value), upright)

    def _unit(self, run: Run) -> float:
        """Return the unit roundoff of a run's numbers."""
        units = map(unit_of, (run.output, run.input, [*own_weights(run.obj).values()]))
        return max((unit for unit in units if unit is not None), default=UNIT["float32"])

    def _expect(self, node: Node, run: Run, want: Recorded, factor: float = 1.0) -> None:
        """Note what a node is compared with, and the factor of the limit."""
        on_gpu = run.obj.class_name.startswith("cudnn.") or any(item.device != "cpu" for item in leaves(run.output))
        node.headroom = factor * (EXACT if node.unit <= UNIT["float64"] else 1.0) * (ON_GPU if on_gpu else 1.0)
        node.want = doubles(self._torch(want))

    # Comparing it

    def _check(self, number: int, run: Run, outcome: Outcome, node: Node) -> None:
        """Run a layer whose input is known, and compare what is recorded."""
        complete, count = is_whole(run.output), [item.numel for item in leaves(run.output)]
        if complete and self._is_intact(run, number):
            outcome.case = node
            self._expect(node, run, run.output)
        if node.layer is not None:
            value = _read(node.inputs, Ref.get)
            if "BatchNormalization" in run.name and _is_by_running_statistics(node.layer, value):
                node.layer.module.eval()
            total = sum(map(prod, node.layer.shapes(value) or ()))
            if total > 64 * max(sum(count), 1 << 16):
                raise NotRunError(f"would return {total} elements")
        try:
            node.run()
        except NotRunError as error:
            if node.layer is not None:
                raise  # which another option may explain
            outcome.decide(DIFFERS, str(error), FILE)
            outcome.case = None
            return
        if outcome.case is not None:
            self._compare(outcome, node)
        elif complete and _sizes(node.found) != count:
            # In-place layers kept the shape, which no update changes.
            shapes = [[list(item.shape) for item in node.found], [list(item.size) for item in leaves(run.output)]]
            outcome.decide(DIFFERS, f"shape {shapes[0]}, recorded {shapes[1]}", FILE)
        elif complete:
            outcome.reason = "its output was overwritten"

    def _compare(self, outcome: Outcome, node: Node) -> None:
        """Write the verdict on an output; `DIFFERS` where rounding does not explain the difference."""
        off, flat, members = node.off, _joined(node.want), [self.runs[one.step] for one in node.nodes()]
        most = max((_APPROXIMATE.get(one.name, -1.0) for one in members), default=-1.0)
        near = off.close or off.max_abs <= most
        good = off.excess <= 1 or (most >= 0 and near)
        others = ", ".join(dict.fromkeys(one.path for one in members if one is not outcome.run))
        if not bool((flat.abs() > 1e-30).any() & flat.isfinite().any()) and not good:
            outcome.reason, outcome.case = "its recorded output was never computed: it is zero, or not a number", None
        elif not (good and off.close) and node.by is outputs and not all(map(torch.equal, node.found, node.compute())):
            outcome.decide(NOT_CHECKABLE, RANDOM)
        elif good and not near and off.max_rel > MOST_ROUNDING:
            outcome.decide(NOT_CHECKABLE, ROUNDING)
        elif good:
            outcome.decide(
                AGREES, "; ".join(filter(None, (outcome.reason, others and f"checked together with {others}")))
            )
        elif _remembers(outcome.run.obj):
            outcome.decide(NOT_CHECKABLE, STATE)
        elif not self._ran_in_other_mode(outcome, node):
            outcome.decide(DIFFERS, off.reason)

    def _ran_in_other_mode(self, outcome: Outcome, node: Node) -> bool:
        """Decide for a layer that agrees in the other mode than that of the file, where all layers are in one."""
        for each, layer in node.layers if self.in_one_mode else ():
            mode = layer.obj.get("train")
            other = layer.variant({"train": not mode}) if isinstance(mode, bool) else layer
            if other is not layer and node.share({id(layer): other}) < 1:
                each.layer = other
                for one in node.nodes():
                    one.run()
                ran, saved = ("evaluation", "training") if mode else ("training", "evaluation")
                outcome.decide(AGREES, f"Lua ran it in {ran}; the model was saved in {saved}")
                return True
        return False

    def _gradient(self, number: int, run: Run, outcome: Outcome, node: Node | None) -> None:
        """Compare the recorded gradient with respect to the input with that of the recorded gradOutput.

        Where it does not depend on the input, as for a sum of products, that need not be known.
        """
        known = is_whole(run.grad_output) and is_whole(run.grad_input) and outcome.verdict != DIFFERS
        known &= not run.whole and not self.turned and (node is None or node.by is outputs)
        if not known or not self.memory.holds_gradients(run):
            return
        outcome.backward = NOT_CHECKABLE
        try:
            unit = self._unit(run)
            layer = LiveLayer.build(run.obj, run.path, unit, self.limits) if node is None else node.layer
            zeros, slope = map(to_doubles, (zeros_like(run.grad_input), run.grad_output))
            value = mapped(zeros, lambda item: item + 0.5) if node is None else node.inputs
            back = Node(number, unit, layer, [value, slope], by=gradients)
            self._expect(back, run, run.grad_input, BACK)
            back.run()
            good = back.off.excess <= 1 or (back.off.close and node is not None)
            outcome.backward = AGREES if good else NOT_CHECKABLE
            if (
                node is None
                and layer is not None
                and all(map(torch.equal, back.found, gradients(layer, [zeros, slope])))
            ):
                outcome.case = back
                if good:
                    outcome.decide(AGREES, f"its gradient was checked; {NO_INPUT}")
        except (NotRunError, T7BridgeError):
            pass

    # The vote

    def _vote(self) -> None:
        """Decide what all that does not agree says of the file."""
        off = [(item, item.case) for item in self.outcomes if item.case is not None and _is_off(item, item.case)]
        for (item, case), found in zip(off, self._explanations(off)):
            self._write(item, case, found)
        for item in self.outcomes:
            if item.case is not None:
                self._members(item, item.case)
        known = {id(item.run.obj): item for item in self.outcomes if item.verdict in (AGREES, DIFFERS, STALE)}
        for item in self.outcomes:
            other = known.get(id(item.run.obj), item)
            if item.verdict == NOT_RECORDED and other.run.path != item.run.path:
                item.decide(other.verdict, f"the same module as {other.run.path}, which ran later", other.blame)
                item.case = other.case

    def _explanations(self, off: list[tuple[Outcome, Node]]) -> list[Hypothesis | None]:
        """Return what explains each difference; of those with weights nothing where one of them is not explained."""
        found: list[Hypothesis | None] = []
        without: set[str] = set()
        # A gradient may be of another pass.
        outputs = [(item, case) for item, case in off if case.by is not gradients and not item.run.whole]
        weighted = {item.run.path for item, case in outputs if case.may_have_moved}
        moved = len(weighted) > OTHERS
        for item, case in off:
            # All steps of a sequence have the change of their weights.
            is_open = item.run.path not in without and not (moved and case.may_have_moved)
            found.append(self._explanation(item, case) if is_open else None)
            if found[-1] is None:
                without.add(item.run.path)
                moved |= item.run.path in weighted
        return [None if moved and case.may_have_moved else one for (_, case), one in zip(off, found)]

    def _explanation(self, item: Outcome, case: Node) -> Hypothesis | None:
        """Return the first hypothesis that explains a difference, and no update looks like; `None` if none does."""
        if len(case.nodes()) > LONGEST or sum(_sizes(case.want)) > self.limits.work:
            return None
        weights = sum(_sizes([part for _, layer in case.weighted for part in layer.weights.values()]))
        values = int((_joined(case.want) != 0).sum())
        after_step = None if len(case.off.errors) else 1.0
        for kind in HYPOTHESES:
            try:
                for one in kind(case):
                    share = case.share(one.change)
                    if not case.weighted and share < 1:
                        return one
                    if share > CLEAR or (weights + OPTIONS) * share ** max(values - 1, 0) > CHANCE:
                        continue
                    if one.moved and weights == 1:
                        return one if self._is_fresh(item, one) else None
                    after_step = after_step or case.after_step()
                    if share <= CLEAR * after_step:
                        return one
            except (NotRunError, RuntimeError):
                continue
        return None

    def _is_fresh(self, item: Outcome, one: Hypothesis) -> bool:
        """Return whether the update that moved the only weight of a layer would have moved another, and all agree."""
        others = [each for each in self.outcomes if each.run.obj is not item.run.obj and not each.run.whole]
        others = [each for each in others if _largest(each.run.obj, "weight")]
        agreeing = [each.run.obj for each in others if each.verdict == AGREES and each.case is not None]
        slope = _largest(item.run.obj, "gradWeight")
        # What moves a weight by a ten-thousandth shows in an output that agrees to rounding.
        return all(each.verdict != DIFFERS for each in others) and any(
            not slope or abs(one.moved) / slope * _largest(obj, "gradWeight") > RTOL * _largest(obj, "weight")
            for obj in agreeing
        )

    def _write(self, item: Outcome, case: Node, found: Hypothesis | None) -> None:
        """Write the verdict on what does not agree."""
        sizes = _sizes(case.want), _sizes(case.found)
        if found is not None:
            item.culprit = found.node.step
            item.decide(DIFFERS, "; ".join(filter(None, (item.reason, found.text))), found.blame)
        elif item.verdict != DIFFERS:
            pass  # a gradient of another pass, or a layer that refuses its input
        elif case.weighted and sizes[0] == sizes[1]:
            item.decide(STALE, MOVED)
        elif item is self.outcomes[-1] and _is_masked(case):
            item.decide(NOT_CHECKABLE, MASKED)
        elif sizes[0] != sizes[1] and [one.shape[1:] for one in case.want] == [one.shape[1:] for one in case.found]:
            counts = len(case.found[0]), len(case.want[0])
            item.decide(
                NOT_CHECKABLE, f"its input and its output are of passes of {counts[0]} and {counts[1]} examples"
            )
        else:
            item.decide(DIFFERS, item.reason, CONVERSION)

    def _members(self, item: Outcome, case: Node) -> None:
        """Layers whose output was overwritten share the verdict of the one that it is compared after."""
        verdict, reason, blame = item.verdict, item.reason, item.blame
        # Without an explanation, of layers with weights these are to blame, else all.
        members = [node.step for node in case.nodes()]
        weighted = {node.step for node, _ in case.weighted} or set(members)
        guilty = weighted if item.culprit is None else {item.culprit}
        for number in members:
            one = self.outcomes[number]
            if one is not item and one.verdict != NOT_RECORDED:
                continue
            behind = f"compared after {item.run.path}, which works in place" if one is not item else ""
            one.case = case
            if verdict in (AGREES, NOT_CHECKABLE) or number in guilty:
                own = "" if behind and verdict == AGREES else reason
                one.decide(verdict, ": ".join(filter(None, (behind, own))), blame)
            else:
                others = ", ".join(self.runs[at].path for at in sorted(guilty))
                known = item.culprit is not None
                one.case = None
                one.decide(AGREES if known else NOT_CHECKABLE, f"compared together with {others}, which does not agree")

    def _layers(self) -> list[LayerProof]:
        found: dict[str, LayerProof] = {}
        for one in (item.proof() for item in self.outcomes):
            other = found.get(one.path)
            if other is not None:
                one, other = sorted((one, other), key=LayerProof.worst_first)
                if one.verdict == other.verdict:
                    one.runs, one.compared = one.runs + other.runs, one.compared + other.compared
            found[one.path] = one
        differing = [path for path, one in found.items() if one.verdict == DIFFERS]
        for one in found.values():
            if one.container and one.verdict in (DIFFERS, STALE):
                inside = [path for path in differing if path.startswith(f"{one.path}.")]
                if inside:
                    one.verdict, one.reason, one.blame = DIFFERS, f"contains {', '.join(inside[:3])}", ""
        return list(found.values())

    # Segments

    def segments(self) -> list[SegmentProof]:
        """Return the verdicts on consecutive layers, run from a recorded input to the last recorded output.

        Single layers always start from Lua's numbers; a segment shows how far differences grow until the output.
        """
        taken = {id(ref.node) for node in self._nodes for ref in _refs(node.inputs)}
        found = []
        for node in self._nodes:
            before = [ref.node.segment for ref in _refs(node.inputs) if ref.node.segment]
            start = min(before, default=(node.step, 0))[0]
            value = _read(node.inputs, lambda ref: ref.of(ref.node.chained or ref.node.found))
            try:
                node.chained = node.apply(node.layer, value)
            except (NotRunError, T7BridgeError):
                continue
            node.segment = start, max((count for _, count in before), default=0) + 1
            if before and node.want and id(node) not in taken:
                off = measure(node.want, node.chained, node.scales, node.headroom)
                verdicts = [one.verdict for one in self.outcomes[start : node.step + 1]]
                worst = next((one for one in (DIFFERS, STALE) if one in verdicts), NOT_CHECKABLE)
                verdict = AGREES if off.is_small else worst
                reason = GROWN if verdict == NOT_CHECKABLE else ""
                paths = self.runs[start].path, self.runs[node.step].path
                numbers = off.max_abs, off.max_rel, off.cosine
                found.append(SegmentProof(*paths, node.segment[1], verdict, *numbers, reason))
        return sorted(found, key=lambda one: -one.layers)


def _joined_along(dim: int, layer: LiveLayer | None, value: Values) -> list[torch.Tensor]:
    return [torch.cat(value, dim)]


def _dimension(value: Any) -> int:
    """Return the dimension of a Concat from 0; one that no tensor has where the field is none."""
    return int(value) - 1 if isinstance(value, float) and 1 <= value < 1 << 30 else 1 << 30


def _is_off(item: Outcome, case: Node) -> bool:
    """Return whether something may explain an outcome: a difference, or that the layer refused its input."""
    other_pass = item.verdict == NOT_RECORDED and item.backward == NOT_CHECKABLE
    return item.verdict == DIFFERS or other_pass or (item.verdict == NOT_CHECKABLE and not case.found)


def _is_masked(case: Node) -> bool:
    """Return whether recorded values agree with the computed ones except where they are zero."""
    left = _joined(case.want) != 0
    is_masked = len(case.off.errors) > 0 and DETERMINED <= int(left.sum()) < len(left)
    return is_masked and float(case.off.errors[left].abs().max()) <= HEADROOM * case.headroom


def _is_by_running_statistics(layer: LiveLayer, value: Values) -> bool:
    """Return whether newer releases normalized a batch of one with running statistics, in training too: the mean that
    they kept is of another pass. Source: nn 8726825 `BatchNormalization.lua`.
    """
    mean = layer.obj.get("save_mean")
    if not isinstance(mean, Tensor) or not isinstance(value, torch.Tensor) or len(value) != 1 or value.dim() < 2:
        return False
    own = value.transpose(0, 1).flatten(1).mean(1)
    return len(own) == mean.numel and not torch.allclose(own, to_doubles(mean).reshape(-1), rtol=1e-3)


def _largest(obj: TorchObject, name: str) -> float:
    """Return the largest absolute value of a field; 0 if it is not a tensor."""
    return max((float(abs(item.numpy()).max()) for item in leaves(recorded(obj.get(name)))), default=0.0)


def _remembers(obj: TorchObject) -> bool:
    """Return whether a recurrent layer may have continued from an earlier sequence."""
    kept = obj.get("_remember")
    return (isinstance(kept, bytes) and kept != b"neither") or obj.get("remember_states") is True


def _is_turned(run: Run) -> bool:
    """Return whether a layer is of 2010: the first dimension of its kernels is contiguous."""
    weight = run.obj.get("weight")
    is_kernel = isinstance(weight, Tensor) and len(weight.size) > 2 and run.name.startswith("Spatial")
    return bool(is_kernel and weight.stride[0] < weight.stride[-1])
