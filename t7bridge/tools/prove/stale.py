"""Layers whose weights were updated after the last forward, distinguished from layers that compute something else.

An update moves all weights that have a gradient, each a little; a mistake changes one layer. May import graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph.tensor import Tensor
from .outcome import Outcome
from .proof import AGREES, DIFFERS, NOT_RECORDED, STALE
from .reasons import AGAINST, BESIDE, MOVED, MOVED_OTHERWISE, MOVED_UNTOLD, OFF, SCALED, STEPPED
from .visits import base_name

if TYPE_CHECKING:
    from ...torchmodules.updates import Direction

EXPLAINED = 0.9
"""The share of a difference that a step along the gradient must explain to be the reason for it alone."""
MANY = 32
"""Share of the values that a step along the gradient must explain exactly, if other layers did not change."""
FEW = 3
"""Minimum number of changed weights for that: the change of a single weight always lies along the gradient."""
FAR = 0.3
"""Largest change of outputs by an update, as with momentum or Adam, relative to the largest output, if all layers with
weights differ.
"""
DENSE = 0.4
"""The share of outputs that must differ for all weights to have changed; slopes of PReLU show in half of them."""
ALONG, CLEARLY = 0.2, 0.4
"""Cosine of the angle between the change of the weights and the gradient: of a layer that alone could be checked, and
for differences beyond `FAR`. Of minibatches whose gradients have nothing in common momentum of 0.9 leaves 0.44.
"""
SAME = 0.05
"""Maximum difference of the rates of two layers that the same step explains."""
SURE = 2.0
"""The same in standard deviations for changes in any direction."""

_DEPENDENT_NAMES = """
Tanh Sigmoid ReLU ReLU6 ELU LeakyReLU PReLU Threshold HardTanh SoftMax LogSoftMax SoftPlus LogSigmoid Dropout
SpatialMaxPooling TemporalMaxPooling VolumetricMaxPooling CMulTable BatchNormalization SpatialBatchNormalization
"""
DEPENDENT = frozenset(_DEPENDENT_NAMES.split())
"""Layers whose gradients depend on their inputs or on their random numbers."""
ODD = frozenset(("SpatialDepthWiseConvolution",))
"""Layers whose recorded gradients do not explain the step of an optimizer along them, as measured in Lua Torch."""

Key = frozenset[tuple[int, int]]
"""The weights of layers compared as one: storage and offset of each layer's."""


def find_stale(outcomes: list[Outcome]) -> None:
    """Write the verdict `STALE` on layers that differ because their weights were updated after the last forward."""
    common = _use_common_rate(outcomes)
    moved, kept = _evidence(outcomes)
    kept -= moved
    for item in outcomes:
        if item.verdict == DIFFERS and item.difference is not None:
            _decide(item, len(moved - {_key(item, outcomes)}), bool(kept), common)


def _use_common_rate(outcomes: list[Outcome]) -> dict[str, float]:
    """Search for other errors in a layer once the step of all others is undone.

    Returns:
        The rate of the step that explains most layers, by the name of its direction.
    """
    rates: dict[str, list[tuple[float, Key, Direction]]] = {}
    for item in outcomes:
        fit = item.fit
        if fit is not None and fit.excess <= 1 and fit.rate > 0 and fit.degrees >= FEW and not fit.direction.scales:
            rates.setdefault(fit.direction.name, []).append((fit.rate, _key(item, outcomes), fit.direction))
    common = {name: sorted(rate for rate, _, _ in found)[len(found) // 2] for name, found in rates.items()}
    if rates:
        name = max(rates, key=lambda one: len(rates[one]))
        others = {key for rate, key, _ in rates[name] if abs(rate / common[name] - 1) < SAME}
        for item in outcomes:
            known = item.difference is not None and not item.from_output
            if item.again is not None and known and _key(item, outcomes):
                alone = item.again(rates[name][0][2], common[name])
                odd = base_name(item.step.obj.class_name) in ODD
                if not alone and not item.explained and len(others) > 1 and not odd:
                    item.off = (common[name], name)
    for item in outcomes:
        item.again = None
    return common


def _decide(item: Outcome, others: int, kept: bool, common: dict[str, float]) -> None:
    """Decide the verdict on one layer that differs, and its reason.

    Args:
        item: of the layer.
        others: number of other layers that changed.
        kept: whether there are layers that did not change.
        common: the rate of the step that explains most layers, by the name of its direction.
    """
    fit, difference = item.fit, item.difference
    assert difference is not None
    if fit is None and not item.parameters and not item.step.whole:
        return
    if item.beside is not None:
        item.reason = "; ".join(filter(None, (item.reason, BESIDE.format(f"{item.beside[0]:.3g}", item.beside[1]))))
        return
    if item.off is not None:
        item.reason = "; ".join(filter(None, (item.reason, OFF.format(f"{item.off[0]:.3g}", item.off[1]))))
        return
    few = fit is not None and fit.degrees < FEW
    if item.explained and not ((few or item.from_output) and others and not kept):
        return
    if fit is not None and fit.direction.scales:
        if fit.excess <= 1 and fit.rate > -0.99 and not (few and others and not kept):
            verb = "are" if "and" in fit.direction.name else "is"
            item.reason = SCALED.format(f"{fit.direction.name} {verb}", f"{1 / (1 + fit.rate):.6g}")
            return
    elif fit is not None and fit.rate > 0:
        enough = difference.count >= MANY and fit.degrees >= FEW and difference.dense > DENSE
        enough = enough or abs(fit.rate / common.get(fit.direction.name, 1e-300) - 1) < SAME
        sure = fit.direction.is_recorded or fit.score >= SURE
        if (fit.excess <= 1 and (enough or not kept)) or (not kept and sure and fit.explained >= EXPLAINED):
            item.verdict, item.reason = (
                STALE,
                STEPPED.format(f"{fit.rate:.3g}", fit.direction.name, f"{fit.explained:.1%}"),
            )
            return
    cosine = fit.cosine if fit is not None else None
    small = difference.max_rel < FAR or (cosine is not None and cosine >= CLEARLY)
    told = cosine is not None and fit is not None and cosine >= ALONG and fit.score >= SURE
    if not kept and small and not difference.reason and (others or (told and (cosine or 0.0) >= CLEARLY)):
        item.verdict = STALE
        if cosine is None:
            item.reason = MOVED_UNTOLD
        else:
            item.reason = (MOVED if cosine >= ALONG else MOVED_OTHERWISE).format(f"{cosine:.2f}")
    elif cosine is not None and cosine < CLEARLY and difference.dense > DENSE:
        item.reason = "; ".join(filter(None, (item.reason, AGAINST.format(f"{cosine:.2f}"))))


def _evidence(outcomes: list[Outcome]) -> tuple[set[Key], set[Key]]:
    """Return the weights that changed and those that did not."""
    moved: set[Key] = set()
    still: dict[Key, bool] = {}
    slopes = False
    one_pass = is_one_pass(outcomes)
    for item in outcomes:
        key = _key(item, outcomes)
        if not key:
            continue
        slope = any(_has_gradient(outcomes[number]) for number in item.group or ())
        slopes = slopes or slope
        if item.verdict == DIFFERS and item.difference is not None and not item.difference.reason:
            if item.difference.dense > DENSE and not (item.explained and not item.beside):
                moved.add(key)
        elif item.verdict == AGREES and item.difference is not None and item.difference.max_abs:
            # Weights of a zero input do not show.
            still[key] = still.get(key, False) or slope
        elif one_pass and item.verdict == NOT_RECORDED and item.independent and item.backward == DIFFERS:
            moved.add(key)
        elif one_pass and item.verdict == NOT_RECORDED and item.independent and item.backward == AGREES:
            still[key] = True
    # Weights without gradient do not change; if no layer has one, they were set to zero.
    return moved, {key for key, slope in still.items() if slope or not slopes}


def is_one_pass(outcomes: list[Outcome], but: str = "", *, surely: bool = True) -> bool:
    """Return whether the last backward belongs to the last forward, by the gradients of layers that are not linear.

    Args:
        outcomes: of all steps.
        but: path of a layer that is not asked.
        surely: whether one must say so; else it is enough that none says otherwise.
    """
    seen = {
        item.backward
        for item in outcomes
        if base_name(item.step.obj.class_name) in DEPENDENT and item.group and item.step.path != but
    }
    return DIFFERS not in seen and (AGREES in seen or not surely)


def _key(item: Outcome, outcomes: list[Outcome]) -> Key:
    if item.step.whole:
        return frozenset()
    steps = [outcomes[number].step for number in item.group] or [item.step]
    found = []
    for step in steps:
        tensors = [step.obj.get(name) for name in ("weight", "bias")]
        weights = [tensor for tensor in tensors if isinstance(tensor, Tensor) and tensor.numel]
        found += [(id(tensor.storage), tensor.offset) for tensor in weights[:1]]
    return frozenset(found)


def _has_gradient(outcome: Outcome) -> bool:
    slope = outcome.step.obj.get("gradWeight")
    return isinstance(slope, Tensor) and bool(slope.numel) and bool((abs(slope.numpy()) > 0).mean() > 0.5)
