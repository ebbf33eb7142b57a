"""Recorded values and what computes them: the residual in units of rounding, and fits of what may have changed.

May import nn and below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, isfinite, prod
from typing import Any

import torch
from attrs import field

from ..data import define
from .running import TINY, Compute, LiveLayer, NotRunError, Values, joined, mapped, nearest_outputs, outputs

HEADROOM = 15.0
"""Largest rounding error in standard deviations: of a million normal errors the largest has 5, and the order in which
Lua's libraries add up, which the estimate does not know, may triple it."""
FLOOR = 0.3
"""Smallest standard deviation in units: a number rounded to the nearest is off by 1/sqrt(12) = 0.29 on average."""
GROWTH = 4.0
"""How far errors of Lua's libraries may exceed PyTorch's: sums of up to 16 blocks, against one of sqrt(16)."""
EXACT_HEADROOM = 20.0
"""Factor of the limit in double precision: the reference itself is no more exact than what it judges."""
COARSE_HEADROOM = 10.0
"""Factor of the limit on a GPU, whose libraries transform convolutions by matrices with entries up to 10."""
OVERLAP = 20.0
"""Largest deviation of one weight where those of most are larger than rounding, in their standard deviations:
`HEADROOM`, and a third more, as a median of few is right to a third."""
CLEAR = 2.0
"""Limits that a difference must exceed for one weight to explain it: with less, what is left is another's as well."""
RTOL, ATOL = 1e-4, 1e-5
"""The differences allowed for a layer with approximate functions."""
DETERMINED = 3
"""Values that a change with one number, at one place, must explain: one fits any number, two any place and number."""
ROUNDS = 8
"""Steps of Gauss and Newton: each doubles the number of right digits, from one to all 53 binary ones."""
MOST = 512
"""Weights that are tried one by one; of more, as many as a random estimate ranks first."""


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
        return _apart(f"{len(got)} outputs, {len(want)} recorded")
    found = Deviation()
    pairs, zs, rough = [], [torch.zeros(0, dtype=torch.float64)], [torch.zeros(1, dtype=torch.float64)]
    for at, (one, other) in enumerate(zip(want, got)):
        if one.shape != other.shape and (one.numel() != other.numel() or one.squeeze().shape != other.squeeze().shape):
            return _apart(f"shape {list(other.shape)}, recorded {list(one.shape)}")
        one, other = one.double(), other.double().reshape(one.shape)
        both = torch.isfinite(one) & torch.isfinite(other)
        # A sum beyond the largest float is infinite in Lua but not here.
        same = both | (one == other) | (one.isnan() & other.isnan()) | (one.isinf() & (other.abs() > 3e38))
        if not bool(same.all()):
            return _apart("infinite or not a number on one side")
        error = torch.where(both, one - other, torch.zeros_like(other))
        scale = scales[at].reshape(one.shape)
        found.errors.append(error)
        found.count += one.numel()
        found.active += int(((one != 0) | (other != 0)).sum())
        found.close = found.close and bool((error.abs() <= ATOL + RTOL * one.abs())[both].all())
        pairs.append((one[both], other[both]))
        zs.append((error.abs() / scale).reshape(-1))
        if single is not None and at < len(single) and single[at].numel() == one.numel():
            half = (single[at].double().reshape(one.shape) - other).abs() / scale
            rough.append(torch.where(both & half.isfinite(), half, torch.zeros_like(half)).reshape(-1))
    mine, theirs = (torch.cat([pair[side] for pair in pairs] or zs) for side in (0, 1))
    found.max_abs = max((float(item.abs().max()) for item in found.errors if item.numel()), default=0.0)
    largest = float(mine.abs().max()) if mine.numel() else 0.0
    found.max_rel = found.max_abs / largest if largest else (inf if found.max_abs else 0.0)
    norms = float(mine.square().sum() * theirs.square().sum()) ** 0.5
    found.cosine = float((mine * theirs).sum()) / norms if norms else float(not largest)
    z, halves = torch.cat(zs), torch.cat(rough)
    own = max(FLOOR, _bulk(halves))
    found.bulk = _bulk(z) / own
    base = own * min(max(found.bulk, 1.0), GROWTH)
    found.limit = max(HEADROOM * base, GROWTH * float(halves.max())) * headroom
    found.excess = float(z.max()) / found.limit if z.numel() else 0.0
    return found


def _apart(reason: str) -> Deviation:
    return Deviation(inf, inf, 0.0, inf, False, reason=reason)


def _bulk(z: torch.Tensor) -> float:
    """Return the standard deviation of most elements, from the median, ignoring outliers and zeros."""
    nonzero = z[z > 0]
    found = float(nonzero.median()) / 0.6745 if nonzero.numel() * 4 > z.numel() else 0.0
    return found if isfinite(found) else 0.0


def same_in_rows(errors: list[torch.Tensor], most: float) -> bool:
    """Return whether errors are the same in each row, as when a sum over it was approximated, and at most `most`."""
    for error in errors:
        # Classes are the last dimension of vectors and matrices, and the first of one image.
        rows = error if error.dim() < 3 else error.movedim(error.dim() - 3, -1)
        apart = (rows - rows.mean(-1, keepdim=True)).abs()
        if float(error.abs().max()) > most or bool((apart > 1e-6 + 0.02 * rows.abs()).any()):
            return False
    return True


# What computes a recorded value

Change = dict[int, LiveLayer]
"""Layers in place of others, by the id of these."""


@define(eq=False)
class Ref:
    """A tensor that a node computes, in place of one that the file no longer holds."""

    node: Node
    index: int
    shape: tuple[int, ...]


@define(eq=False)
class Node:
    """One run of one layer.

    Attributes:
        step: the number of the run; -1 for an input that was computed otherwise.
        layer: the layer; `None` where tensors are only concatenated.
        given: its input: recorded tensors, and a `Ref` in place of each that is not.
        dim: the dimension along which tensors are concatenated.
        in_place: whether it works elementwise in the memory of its input.
        by: what of the layer is computed.
        found: the computed tensors.
        scales: their expected rounding errors, as standard deviations.
    """

    step: int
    layer: LiveLayer | None
    given: Values
    dim: int = 0
    in_place: bool = False
    by: Compute = outputs
    found: list[torch.Tensor] = field(factory=list, repr=False)
    scales: list[torch.Tensor] = field(factory=list, repr=False)

    def input(self, read: Callable[[Ref], Any]) -> Values:
        """Return the input, with each `Ref` replaced."""
        return _read(self.given, read)

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
            value = node.input(lambda ref: _part(memo[id(ref.node)], ref))
            if node.layer is None:
                whole = joined(value, node.dim)
                if whole is None:
                    raise NotRunError("the outputs of its modules do not fit along its dimension")
                memo[id(node)] = [whole]
            else:
                memo[id(node)] = node.by(change.get(id(node.layer), node.layer), value)
        return memo[id(self)]

    def nodes(self) -> list[Node]:
        """Return this and all nodes that it is computed from, in order."""
        found: dict[int, Node] = {}
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            found[id(node)] = node
            stack += [ref.node for ref in _refs(node.given) if id(ref.node) not in found]
        return sorted(found.values(), key=lambda node: node.step)


def _part(found: list[torch.Tensor], ref: Ref) -> torch.Tensor:
    if ref.index >= len(found) or found[ref.index].numel() != prod(ref.shape):
        raise NotRunError("another shape than recorded")
    return found[ref.index].reshape(ref.shape)


def _read(value: Values, read: Callable[[Ref], Any]) -> Values:
    if isinstance(value, list):
        return [_read(item, read) for item in value]
    return read(value) if isinstance(value, Ref) else value


def _refs(value: Values) -> Iterator[Ref]:
    if isinstance(value, list):
        for item in value:
            yield from _refs(item)
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
        suspect: the weight that deviates most, where all values together tell more than each of them.
    """

    node: Node
    want: list[torch.Tensor]
    headroom: float
    off: Deviation = field(factory=Deviation)
    suspect: Suspect | None = None

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
    def stands_out(self) -> float:
        """How far one weight deviates by all values together, in units of the rounding limit; 1 is the limit."""
        return self.suspect.excess if self.suspect is not None else 0.0

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
            return _apart(str(error))
        scales = [_blunt(item) for item in self.node.scales]
        if [item.numel() for item in scales] != [item.numel() for item in got]:
            scales = [3e-8 * (item.abs() + item.square().mean().sqrt()) + TINY for item in got]
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
        weight = torch.cat([_blunt(item).reshape(-1) for item in self.node.scales] or [torch.zeros(0)])
        target = torch.cat([item.double().reshape(-1) for item in self.want] or [torch.zeros(0)])

        def left(number: float) -> torch.Tensor:
            got = self.node.compute(run(number))
            if [item.numel() for item in got] != [item.numel() for item in self.want]:
                raise NotRunError("another shape")
            rest = (target - torch.cat([item.reshape(-1) for item in got])) / weight
            return torch.where(rest.isfinite(), rest, torch.zeros_like(rest))

        if weight.numel() != target.numel():
            weight = torch.ones_like(target)
        try:
            at, rest = start, left(start)
            for _ in range(ROUNDS):
                along = (rest - left(at + step)) / step
                norm = float(along.square().sum())
                change = float((rest * along).sum()) / norm if norm else inf
                if not isfinite(change):
                    break
                trial = left(at + change)
                if float(trial.square().sum()) >= float(rest.square().sum()):
                    break
                at, rest, step = at + change, trial, max(1e-2 * abs(change), 1e-7 * abs(at)) or step
        except NotRunError:
            return None
        return at if at != start else None


def _blunt(scale: torch.Tensor) -> torch.Tensor:
    """Return expected rounding errors for changed weights: at least the mean of all, as an activation that set elements
    to zero may then let them pass.
    """
    return scale.clamp(min=float(scale.square().mean().sqrt())) if scale.numel() else scale


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


def suspects(
    case: Case, base: Change | None = None, left: Deviation | None = None, *, quick: bool = False
) -> list[Suspect]:
    """Return the weights that deviate from the recorded values beyond rounding, the likeliest first.

    A change of weight k by d changes the values by d times column k of the Jacobian. The fit of d to all values finds
    changes that no single one reveals.

    Args:
        case: recorded values, and what computes them.
        base: other changes.
        left: the difference with these.
        quick: look at sums of products only, whose columns follow from one run.
    """
    base, left = base or {}, left or case.off
    if left.reason or not left.errors:
        return []
    scales = [_blunt(item) if base else item for item in case.node.scales]
    try:
        rows = _of_sum(case, base, left, scales)
        if rows is None:
            rows = [] if quick else _one_by_one(case, base, left, scales)
    except (NotRunError, RuntimeError):
        return []
    found, visible, everything = [], 0, []
    for node, name, pull, norm in rows:
        t = torch.where(norm > 0, pull.abs() / norm.clamp(min=TINY).sqrt(), torch.zeros_like(pull))
        visible += int((norm > 0).sum())
        everything.append(t.reshape(-1))
        for place in t.reshape(-1).topk(min(3, t.numel())).indices.tolist():
            change = float(pull.reshape(-1)[place] / norm.reshape(-1)[place].clamp(min=TINY))
            index = tuple(int(part) for part in torch.unravel_index(torch.tensor(place), t.shape))
            height = float(t.reshape(-1)[place])
            if isfinite(height) and height > 0 and isfinite(change):
                found.append(Suspect(node, name, index, change, height, 0))
    base_size = case.off.limit / HEADROOM
    # Rounding errors of one sum are in the columns of all its weights: the median of these is larger.
    overlap = OVERLAP * min(_bulk(torch.cat(everything)), GROWTH * base_size) if everything else 0.0
    limit = max(HEADROOM * base_size, overlap)
    for one in found:
        one.excess, one.visible = one.excess / limit, visible
    return sorted(found, key=lambda one: -one.excess)


Rows = list[tuple[Node, str, torch.Tensor, torch.Tensor]]
"""For each tensor of weights the products of the weighted difference with its columns of the Jacobian, and the squared
lengths of these."""


def _of_sum(case: Case, base: Change, left: Deviation, scales: list[torch.Tensor]) -> Rows | None:
    """Return the rows of a sum of products that only elementwise layers follow; `None` for others."""
    head, above = case.node, []
    while head.in_place and head.layer is not None and not head.layer.weights and isinstance(head.given, Ref):
        above.append(head)
        head = head.given.node
    layer = base.get(id(head.layer), head.layer) if head.layer is not None else None
    if layer is None or not _is_head(head, layer) or len(left.errors) != 1:
        return None
    given = head.input(lambda ref: ref.node.found[ref.index].reshape(ref.shape))
    weights = {name: item.detach().clone().requires_grad_() for name, item in layer.weights.items()}
    with torch.enable_grad():
        (out,) = head.by(layer.moved(weights), given)
        slope = torch.ones_like(out)
        if above:
            middle = out.detach().requires_grad_()
            value: list[torch.Tensor] = [middle]
            for node in reversed(above):
                assert node.layer is not None
                value = node.by(base.get(id(node.layer), node.layer), value[0])
            (slope,) = torch.autograd.grad(value[0].sum(), middle)
        error, scale = (item.reshape(out.shape) for item in (left.errors[0], scales[0]))
        pulls = torch.autograd.grad(out, list(weights.values()), error * slope / scale.square(), allow_unused=True)
        squares = {name: item.detach().square().requires_grad_() for name, item in layer.weights.items()}
        (total,) = head.by(layer.squared().moved(squares), mapped(given, torch.square))
        norms = torch.autograd.grad(total, list(squares.values()), (slope / scale).square(), allow_unused=True)
    both = zip(weights, pulls, norms)
    return [(head, name, pull, norm) for name, pull, norm in both if pull is not None and norm is not None]


def _is_head(node: Node, layer: LiveLayer) -> bool:
    """Return whether a node is a sum of products of weights and of what is recorded."""
    recorded = all(one.layer is None for one in node.nodes() if one is not node)
    return recorded and layer.is_sum and bool(layer.weights) and node.by is not nearest_outputs


def _one_by_one(case: Case, base: Change, left: Deviation, scales: list[torch.Tensor]) -> Rows:
    """Return the rows of any layers: each weight is moved a little; of many, those ranked first by random numbers."""
    inverse = torch.cat([1 / item.reshape(-1) for item in scales])
    error = torch.cat([item.reshape(-1) for item in left.errors]) * inverse
    start = torch.cat([item.reshape(-1) for item in case.node.compute(base)])
    rows: Rows = []
    chosen = _ranked(case, base, error, inverse)
    for node, layer in case.layers:
        now = base.get(id(layer), layer)
        for name, item in now.numbers.items():
            pull, norm = torch.zeros_like(item), torch.zeros_like(item)
            typical = float(item.square().mean().sqrt()) if item.numel() else 0.0
            for place in chosen.get((id(node), name), range(item.numel())):
                moved = item.clone()
                # Half of the digits: the quotient is right to the other half.
                step = 1e-7 * max(typical, abs(float(item.reshape(-1)[place])), 1e-3)
                moved.view(-1)[place] += step
                got = case.node.compute({**base, id(layer): now.moved({name: moved})})
                column = (torch.cat([one.reshape(-1) for one in got]) - start) / step * inverse
                column = torch.where(column.isfinite(), column, torch.zeros_like(column))
                pull.view(-1)[place], norm.view(-1)[place] = float((column * error).sum()), float(column @ column)
            rows.append((node, name, pull, norm))
    return rows


def _ranked(case: Case, base: Change, error: torch.Tensor, inverse: torch.Tensor) -> dict[tuple[int, str], list[int]]:
    """Return the weights to try, by node and name; empty if all are."""
    if sum(item.numel() for _, layer in case.layers for item in layer.numbers.values()) <= MOST:
        return {}
    named = [(node, layer, name) for node, layer in case.layers for name in layer.weights]
    items = [base.get(id(layer), layer).weights[name].detach().clone() for _, layer, name in named]
    change = dict(base)
    with torch.enable_grad():
        for (_, layer, name), item in zip(named, items):
            now = change.get(id(layer), layer)
            change[id(layer)] = now.moved({name: item.requires_grad_()})
        out = torch.cat([item.reshape(-1) for item in case.node.compute(change)])

        def back(row: torch.Tensor) -> list[torch.Tensor]:
            found = torch.autograd.grad(out, items, row * inverse, retain_graph=True, allow_unused=True)
            return [torch.zeros_like(one) if two is None else two for one, two in zip(items, found)]

        pulls = back(error)
        draw = torch.Generator().manual_seed(1)
        norms = [torch.zeros_like(item) for item in items]
        for _ in range(32):
            row = (torch.randint(0, 2, error.shape, generator=draw) * 2 - 1).double()
            for into, one in zip(norms, back(row)):
                into += one.square() / 32
    heights = [(pull.abs() / norm.clamp(min=TINY).sqrt()).reshape(-1) for pull, norm in zip(pulls, norms)]
    bar = float(torch.cat(heights).topk(min(MOST, sum(item.numel() for item in heights))).values[-1])
    found: dict[tuple[int, str], list[int]] = {
        (id(node), name): [] for node, layer in case.layers for name in layer.numbers
    }
    for (node, _, name), height in zip(named, heights):
        found[id(node), name] = (height >= bar).nonzero().reshape(-1).tolist()
    return found
