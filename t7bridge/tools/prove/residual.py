"""Recorded values and what computes them: the difference in units of rounding, and the weights that may explain it.

May import torch only, and what is live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, isfinite, prod
from typing import Any

import torch
from attrs import field

from ...data import define
from .layer import TINY, Compute, LiveLayer, NotRunError, Values, mapped, nearest_outputs, outputs

HEADROOM = 15.0
"""Largest rounding error in standard deviations: of a million normal errors the largest has 5, and the order in which
Lua's libraries add up, which the estimate does not know, may triple it."""
FLOOR = 0.3
"""Smallest standard deviation in units: a number rounded to the nearest is off by 1/sqrt(12) = 0.29 on average."""
GROWTH = 4.0
"""How far errors of Lua's libraries may exceed PyTorch's: sums of up to 16 blocks, against one of sqrt(16)."""
OVERLAP = 20.0
"""Largest deviation of one weight where those of most are larger than rounding, in their standard deviations:
`HEADROOM`, and a third more, as a median of few is right to a third."""
RTOL, ATOL = 1e-4, 1e-5
"""The differences allowed for a layer with approximate functions."""
DETERMINED = 3
"""Values that a change with one number, at one place, must explain: one fits any number, two any place and number."""
ROUNDS = 8
"""Steps of Gauss and Newton: each doubles the number of right digits, from one to all 53 binary ones."""
SIGNS = 32
"""Random rows that estimate the lengths of columns: squares are right to sqrt(2 / 32), a quarter."""
MOST = 512
"""Numbers without a gradient that are tried one by one, and weights of a system of equations that is solved."""
LIKELY = 5
"""Weights that are fitted, the likeliest first: the lengths of their columns are right to an eighth."""


@define(eq=False)
class Deviation:
    """Numbers of one comparison.

    Attributes:
        max_abs: largest absolute difference.
        max_rel: the same, relative to the largest recorded absolute value.
        cosine: cosine of the angle between the two; 1 if they are parallel.
        excess: the largest difference in units of the rounding limit; 1 is the limit.
        close: whether all are within `RTOL` and `ATOL`.
        count: how many values were compared.
        active: how many of them are not zero on both sides.
        bulk: standard deviation of most differences, in units of the one expected.
        limit: the largest difference, in standard deviations, that rounding explains.
        reason: why the two cannot be compared element by element; empty where they can.
        errors: recorded minus computed values.
    """

    max_abs: float = 0.0
    max_rel: float = 0.0
    cosine: float = 1.0
    excess: float = 0.0
    close: bool = True
    count: int = 0
    active: int = 0
    bulk: float = 0.0
    limit: float = HEADROOM
    reason: str = ""
    errors: list[torch.Tensor] = field(factory=list, repr=False)

    @property
    def agrees(self) -> bool:
        """True if rounding explains all differences."""
        return not self.reason and self.excess <= 1


def measure(
    want: list[torch.Tensor],
    got: list[torch.Tensor],
    scales: list[torch.Tensor],
    single: list[torch.Tensor] | None = None,
    headroom: float = 1.0,
) -> Deviation:
    """Compare recorded with computed values.

    Args:
        want: recorded tensors.
        got: computed in double precision.
        scales: expected rounding errors of each element, as standard deviations.
        single: computed in the precision of the recorded ones, which shows the size of such errors.
        headroom: factor of the limit.
    """
    if len(want) != len(got):
        return _incomparable(f"{len(got)} outputs, {len(want)} recorded")
    found = Deviation()
    pairs, zs, rough = [], [torch.zeros(0, dtype=torch.float64)], [torch.zeros(1, dtype=torch.float64)]
    for at, (one, other) in enumerate(zip(want, got)):
        if one.shape != other.shape and (one.numel() != other.numel() or one.squeeze().shape != other.squeeze().shape):
            return _incomparable(f"shape {list(other.shape)}, recorded {list(one.shape)}")
        one, other = one.double(), other.double().reshape(one.shape)
        both = torch.isfinite(one) & torch.isfinite(other)
        # A sum beyond the largest float is infinite in Lua but not here.
        same = both | (one == other) | (one.isnan() & other.isnan()) | (one.isinf() & (other.abs() > 3e38))
        if not bool(same.all()):
            return _incomparable("infinite or not a number on one side")
        error, scale = torch.where(both, one - other, 0.0), scales[at].reshape(one.shape)
        found.errors.append(error)
        found.count += one.numel()
        found.active += int(((one != 0) | (other != 0)).sum())
        found.close = found.close and bool((error.abs() <= ATOL + RTOL * one.abs())[both].all())
        pairs.append((one[both], other[both]))
        zs.append((error.abs() / scale).reshape(-1))
        if single is not None and at < len(single) and single[at].numel() == one.numel():
            half = (single[at].double().reshape(one.shape) - other).abs() / scale
            rough.append(torch.where(both & half.isfinite(), half, 0.0).reshape(-1))
    mine, theirs = (torch.cat([pair[side] for pair in pairs] or zs) for side in (0, 1))
    found.max_abs = max((float(item.abs().max()) for item in found.errors if item.numel()), default=0.0)
    largest = float(mine.abs().max()) if mine.numel() else 0.0
    found.max_rel = found.max_abs / largest if largest else (inf if found.max_abs else 0.0)
    norms = float(mine.square().sum() * theirs.square().sum()) ** 0.5
    found.cosine = float((mine * theirs).sum()) / norms if norms else float(not largest)
    z, halves = torch.cat(zs), torch.cat(rough)
    own = max(FLOOR, _bulk(halves))
    found.bulk = _bulk(z) / own
    found.limit = max(HEADROOM * own * min(max(found.bulk, 1.0), GROWTH), GROWTH * float(halves.max())) * headroom
    found.excess = float(z.max()) / found.limit if z.numel() else 0.0
    return found


def _incomparable(reason: str) -> Deviation:
    return Deviation(inf, inf, 0.0, inf, False, reason=reason)


def _bulk(z: torch.Tensor) -> float:
    """Return the standard deviation of most elements, from the median, ignoring outliers and zeros."""
    nonzero = z[z > 0]
    found = float(nonzero.median()) / 0.6745 if nonzero.numel() * 4 > z.numel() else 0.0
    return found if isfinite(found) else 0.0


# What computes a recorded value

Change = dict[int, LiveLayer]
"""Layers in place of others, by the id of these."""


@define(eq=False)
class Ref:
    """A tensor that a node computes."""

    node: Node
    index: int
    shape: tuple[int, ...]

    def of(self, found: list[torch.Tensor]) -> torch.Tensor:
        """Return the tensor among those of its node.

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
        step: the number of the run; -1 for an input that was computed otherwise.
        layer: the layer; `None` where tensors are only concatenated.
        given: its input: recorded tensors, and a `Ref` in place of each that is not.
        made: its input with a `Ref` for each tensor that another node computes.
        dim: the dimension along which tensors are concatenated.
        in_place: whether it works elementwise in the memory of its input.
        by: what of the layer is computed.
        found: the computed tensors.
        scales: their expected rounding errors, as standard deviations.
    """

    step: int
    layer: LiveLayer | None
    given: Values
    made: Values = None
    dim: int = 0
    in_place: bool = False
    by: Compute = outputs
    found: list[torch.Tensor] = field(factory=list, repr=False)
    scales: list[torch.Tensor] = field(factory=list, repr=False)

    @property
    def input(self) -> Values:
        """The input as it was computed."""
        return read(self.given, lambda ref: ref.of(ref.node.found))

    def apply(self, layer: LiveLayer | None, value: Values) -> list[torch.Tensor]:
        """Compute the tensors of an input with a layer.

        Raises:
            NotRunError: the layer does not accept its input.
        """
        if layer is not None:
            return self.by(layer, value)
        try:
            return [torch.cat(list(value), self.dim)]
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise NotRunError("the outputs of its modules do not fit along its dimension") from error

    def compute(self, change: Change, memo: dict[int, list[torch.Tensor]] | None = None) -> list[torch.Tensor]:
        """Compute the tensors with some layers changed.

        Raises:
            NotRunError: a layer does not accept its input.
        """
        memo = {} if memo is None else memo
        for node in self.nodes():
            if id(node) in memo:
                continue
            if node.found and not any(id(one.layer) in change for one in node.nodes()):
                memo[id(node)] = node.found
                continue
            layer = change.get(id(node.layer), node.layer)
            memo[id(node)] = node.apply(layer, read(node.given, lambda ref: ref.of(memo[id(ref.node)])))
        return memo[id(self)]

    def nodes(self) -> list[Node]:
        """Return this and all nodes that it is computed from, in order."""
        found: dict[int, Node] = {}
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            found[id(node)] = node
            stack += [ref.node for ref in refs(node.given) if id(ref.node) not in found]
        return sorted(found.values(), key=lambda node: node.step)


def read(value: Values, get: Callable[[Ref], Any]) -> Values:
    """Return an input, with each `Ref` replaced."""
    if isinstance(value, list):
        return [read(item, get) for item in value]
    return get(value) if isinstance(value, Ref) else value


def refs(value: Values) -> Iterator[Ref]:
    """Yield what an input has of other nodes."""
    if isinstance(value, list):
        for item in value:
            yield from refs(item)
    elif isinstance(value, Ref):
        yield value


@define(eq=False)
class Case:
    """A recorded value and what computes it.

    Attributes:
        node: the last node.
        want: the recorded tensors.
        headroom: factor of the limit.
        off: the difference with the weights and options of the file.
        excess_of_weight: how far one weight deviates by all values together, in units of the rounding limit.
    """

    node: Node
    want: list[torch.Tensor]
    headroom: float
    off: Deviation = field(factory=Deviation)
    excess_of_weight: float = 0.0

    def judge(self, single: list[torch.Tensor] | None) -> Deviation:
        """Compare with the numbers of the file; see `measure`."""
        self.off = measure(self.want, self.node.found, self.node.scales, single, self.headroom)
        return self.off

    @property
    def layers(self) -> list[tuple[Node, LiveLayer]]:
        """The layers, in order."""
        return [(node, node.layer) for node in self.node.nodes() if node.layer is not None]

    @property
    def weighted(self) -> list[tuple[Node, LiveLayer]]:
        """The layers that have weights."""
        return [(node, layer) for node, layer in self.layers if layer.weights]

    @property
    def has_other_shape(self) -> bool:
        """True if the output has another shape than the recorded one, which no weights change."""
        sizes = [[item.numel() for item in side] for side in (self.want, self.node.found)]
        return bool(self.node.found) and sizes[0] != sizes[1]

    @property
    def scales(self) -> list[torch.Tensor]:
        """Expected rounding errors for changed weights: at least the mean of all, as an activation that set elements to
        zero may then let them pass.
        """
        return [
            item.clamp(min=float(item.square().mean().sqrt())) if item.numel() else item for item in self.node.scales
        ]

    def with_change(self, change: Change, room: float = 2.0) -> Deviation:
        """Compare with some layers changed.

        Args:
            change: the layers.
            room: factor of the limit: numbers that were fitted, and weights that were rounded once more, add as much
                again.
        """
        try:
            got = self.node.compute(change)
        except NotRunError as error:
            return _incomparable(str(error))
        scales = self.scales
        if [item.numel() for item in scales] != [item.numel() for item in got]:
            # Half a unit of single precision, of each element and of the mean.
            scales = [2.0**-25 * (item.abs() + item.square().mean().sqrt()) + TINY for item in got]
        return measure(self.want, got, scales, None, room * self.headroom)

    def explained(self, change: Change) -> bool:
        """Return whether a change leaves nothing but rounding."""
        left = self.with_change(change)
        return left.agrees and left.bulk <= 2 * GROWTH * self.headroom

    def fit(self, run: Callable[[float], Change], start: float, step: float) -> float | None:
        """Return the number with which a change fits best, by Gauss and Newton; `None` if there is none.

        Args:
            run: the change for a number.
            start: the number that the file has.
            step: a small change of it.
        """
        target = torch.cat([item.reshape(-1) for item in self.want])
        scale = torch.cat([item.reshape(-1) for item in self.scales] or [torch.ones_like(target)])
        scale = scale if scale.numel() == target.numel() else torch.ones_like(target)

        def left(number: float) -> torch.Tensor:
            got = torch.cat([item.reshape(-1) for item in self.node.compute(run(number))])
            if got.numel() != target.numel():
                raise NotRunError("another shape")
            return torch.nan_to_num((target - got) / scale, 0.0, 0.0, 0.0)

        try:
            at, rest = start, left(start)
            for _ in range(ROUNDS):
                along = (rest - left(at + step)) / step
                norm = float(along.square().sum())
                change = float((rest * along).sum()) / norm if norm else inf
                trial = left(at + change) if isfinite(change) else rest
                if float(trial.square().sum()) >= float(rest.square().sum()):
                    break
                at, rest, step = at + change, trial, max(1e-2 * abs(change), 1e-7 * abs(at)) or step
        except NotRunError:
            return None
        return at if at != start else None


# One weight among many


@define(eq=False)
class Suspect:
    """A weight whose change explains a part of a difference.

    Attributes:
        node: the run of its layer.
        name: of the parameter.
        index: its index there, 0-based.
        change: the change suggested by the recorded values.
        excess: its size in units of the rounding limit; 1 is the limit.
        visible: how many weights show in the compared values.
    """

    node: Node
    name: str
    index: tuple[int, ...]
    change: float
    excess: float
    visible: int

    def apply(self, base: Change, change: float) -> Change:
        """Return a change with this weight changed by `change` besides."""
        assert self.node.layer is not None
        layer = base.get(id(self.node.layer), self.node.layer)
        moved = layer.numbers[self.name].clone()
        moved[self.index] += change
        return {**base, id(self.node.layer): layer.moved({self.name: moved})}


Columns = dict[tuple[Node, str], torch.Tensor]
"""A number for each weight, by the run of its layer and the name of the parameter."""


def suspects(case: Case, base: Change | None = None, *, quick: bool = False) -> list[Suspect]:
    """Return the weights that deviate from the recorded values beyond rounding, the likeliest first.

    A change of weight k by d changes the values by d times column k of the Jacobian. The fit of d to all values finds
    changes that no single one reveals.

    Args:
        case: recorded values, and what computes them.
        base: other changes.
        quick: look at sums of products only, whose columns follow from one run.
    """
    left = case.with_change(base) if base else case.off
    if left.reason or not left.errors:
        return []
    scales = torch.cat([item.reshape(-1) for item in (case.scales if base else case.node.scales)])
    error = torch.cat([item.reshape(-1) for item in left.errors]) / scales
    try:
        pulls, squares = _columns(case, base or {}, error, scales, quick)
    except (NotRunError, RuntimeError):
        return []
    found = []
    heights = {key: pull.abs() / squares[key].clamp(min=TINY).sqrt() for key, pull in pulls.items()}
    everything = torch.cat([item.reshape(-1) for item in heights.values()] or [torch.zeros(0)])
    visible = int(sum((item > 0).sum() for item in squares.values()))
    # Rounding errors of one sum are in the columns of all its weights: the median of these is larger.
    size = left.limit / HEADROOM
    limit = max(HEADROOM * size, OVERLAP * min(_bulk(everything), GROWTH * size))
    for (node, name), t in heights.items():
        for place in t.reshape(-1).topk(min(LIKELY, t.numel())).indices.tolist():
            index = tuple(int(part) for part in torch.unravel_index(torch.tensor(place), t.shape))
            change = float(pulls[node, name][index] / squares[node, name][index].clamp(min=TINY))
            if 0 < float(t[index]) < inf and isfinite(change):
                found.append(Suspect(node, name, index, change, float(t[index]) / limit, visible))
    return sorted(found, key=lambda one: -one.excess)[:LIKELY]


def _columns(
    case: Case, base: Change, error: torch.Tensor, scales: torch.Tensor, quick: bool
) -> tuple[Columns, Columns]:
    """Return the products of an error, in units of rounding, with the columns of the Jacobian, and their squares."""
    above = _head(case.node)
    if quick and above is None:
        return {}, {}
    layers = [(node, base.get(id(layer), layer)) for node, layer in case.layers]
    change, items = dict(base), {}
    for node, now in layers:
        free = {name: item.detach().clone().requires_grad_() for name, item in now.weights.items()}
        items.update({(node, name): item for name, item in free.items()})
        change[id(node.layer)] = now.moved(free)
    with torch.enable_grad():
        out = torch.cat([item.reshape(-1) for item in case.node.compute(change)])

        def back(row: torch.Tensor) -> Columns:
            found = torch.autograd.grad(out, [*items.values()], row / scales, retain_graph=True, allow_unused=True)
            return {key: item for key, item in zip(items, found) if item is not None}

        pulls = back(error) if out.requires_grad else {}
        if above is not None:
            squares = _squares_of_sum(case, base, scales, above)
            return {key: pulls[key] for key in squares if key in pulls}, squares
        squares = _mean_squares(back, len(error)) if pulls else {}
    # What has no gradient, as running statistics, is moved a little.
    for node, now in layers:
        for name, whole in now.numbers.items():
            if (node, name) not in pulls and whole.numel() <= MOST:
                pulls[node, name], squares[node, name] = torch.zeros_like(whole), torch.zeros_like(whole)
                for place, column in _columns_of(case, base, node, name, out.detach()):
                    pulls[node, name].view(-1)[place] = (column / scales) @ error
                    squares[node, name].view(-1)[place] = (column / scales).square().sum()
    return pulls, squares


def _mean_squares(back: Callable[[torch.Tensor], Columns], count: int) -> Columns:
    """Return estimates of the squared lengths of columns: the means of their squared products with random signs."""
    draw, total = torch.Generator().manual_seed(1), Columns()
    for _ in range(SIGNS):
        for key, item in back((torch.randint(0, 2, (count,), generator=draw) * 2 - 1).double()).items():
            total[key] = total.get(key, 0.0) + item.square() / SIGNS
    return total


def _columns_of(
    case: Case, base: Change, node: Node, name: str, start: torch.Tensor
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the column of the Jacobian of each number of a tensor, from the values without a change."""
    assert node.layer is not None
    now = base.get(id(node.layer), node.layer)
    whole = now.numbers[name]
    for place in range(whole.numel()):
        moved = whole.clone()
        # Half of the digits: the quotient is right to the other half.
        step = 1e-7 * max(float(whole.square().mean().sqrt()), abs(float(whole.view(-1)[place])), 1e-3)
        moved.view(-1)[place] += step
        got = case.node.compute({**base, id(node.layer): now.moved({name: moved})})
        yield place, torch.nan_to_num((torch.cat([one.reshape(-1) for one in got]) - start) / step, 0.0, 0.0, 0.0)


def _head(node: Node) -> list[Node] | None:
    """Return a sum of products of weights and of what is recorded, and the elementwise layers above; `None` for
    others.
    """
    above = []
    while node.in_place and node.layer is not None and not node.layer.weights and isinstance(node.given, Ref):
        above.append(node)
        node = node.given.node
    is_sum = node.layer is not None and node.layer.is_sum and bool(node.layer.weights)
    recorded = all(one.layer is None for one in node.nodes() if one is not node)
    return [node, *above] if is_sum and recorded and node.by is not nearest_outputs else None


def _squares_of_sum(case: Case, base: Change, scales: torch.Tensor, above: list[Node]) -> Columns:
    """Return the squared lengths of the columns of a sum: those of the sum of squares."""
    head, layer = above[0], base.get(id(above[0].layer), above[0].layer)
    assert layer is not None
    middle = head.compute(base)[0].detach().requires_grad_()
    again = {id(node.layer): base.get(id(node.layer), node.layer) for node in above[1:]}
    (out,) = case.node.compute(again, {id(head): [middle]})  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(out.sum(), middle)
    items = {name: item.detach().square().requires_grad_() for name, item in layer.weights.items()}
    (total,) = head.by(layer.squared().moved(items), mapped(head.input, torch.square))
    weights = (slope.reshape(-1) / scales).square().reshape(total.shape)
    found = torch.autograd.grad(total, [*items.values()], weights, allow_unused=True)
    return {(head, name): item for name, item in zip(items, found) if item is not None}
