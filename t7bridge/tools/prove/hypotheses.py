"""Explanations of a difference: one weight, an option, the order of gates, a factor, a step of an optimizer.

Each class yields variants of the layers that compute a recorded value; a variant with which they return that value, to
the last digit, is the explanation. May import graph, nn and torchmodules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import torch

from ...data import define
from ...errors import T7BridgeError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...lazy import np
from ...limits import Limits
from ...torchmodules.judging import CLEAR, DETERMINED, GROWTH, Case, Change, Node, Suspect, suspects
from ...torchmodules.running import GRADIENTS, LiveLayer, with_weights
from .optimizers import Direction
from .proof import CONVERSION, FILE

LONGEST = 12
"""Layers between two recorded values among which a change is searched for; the search takes the square of this."""


@define(eq=False)
class Variant:
    """Layers with something changed, by a number that is to be found or not.

    Attributes:
        node: the run of the layer that is changed.
        change: the change, for a number.
        text: the explanation, for a number.
        blame: what was wrong: `FILE` or `CONVERSION`.
        start: the number that the file has; `None` if nothing is to be found.
        step: a small change of it.
        visible: how many weights would show if an update moved them.
    """

    node: Node
    change: Callable[[float], Change]
    text: Callable[[float], str]
    blame: str = FILE
    start: float | None = None
    step: float = 1e-3
    visible: int = DETERMINED


@define(eq=False)
class Explanation:
    """A variant that explains a difference.

    Attributes:
        node: the run of the layer that was changed.
        text: the change.
        blame: what was wrong: `FILE` or `CONVERSION`.
        certain: whether no update of weights looks like it, since that moves more than one number.
        number: the number that was found.
        variant: the variant.
    """

    node: Node
    text: str
    blame: str
    certain: bool
    number: float
    variant: Variant


def explanation(case: Case, limits: Limits, base: Change | None = None, *, options: bool = True) -> Explanation | None:
    """Return the first variant that explains a difference; `None` if none does.

    Args:
        case: recorded values, and what computes them.
        limits: resource limits.
        base: other changes, beside which it is searched for.
        options: try options and orders of gates too, which takes hundreds of runs.
    """
    if len(case.node.nodes()) > LONGEST or sum(item.numel() for item in case.want) > limits.work:
        return None
    if base and case.explained(base):
        return None
    for hypothesis in _hypotheses(case, options):
        for variant in hypothesis.variants(case, limits, base or {}):
            number = 0.0 if variant.start is None else case.fit(variant.change, variant.start, variant.step)
            number = _plain(case, variant, number) if number is not None and variant.start is not None else number
            if number is None or not case.explained(variant.change(number)):
                continue
            certain = not case.weighted or (variant.visible > 1 and case.off.active >= DETERMINED)
            return Explanation(variant.node, variant.text(number), variant.blame, certain, number, variant)
    return None


def _hypotheses(case: Case, options: bool) -> list[Any]:
    """Return what may explain a difference: of one that is not clear, nothing."""
    size = max(case.off.excess, case.stands_out) if case.node.found else GROWTH
    if case.weighted and size < CLEAR:
        return []
    # What changes all values a little may be their rounding, which in Lua's libraries may be larger.
    if case.weighted and size < GROWTH:
        return [OneWeight()]
    return [OneWeight(), Option(), Gates(), Factor()] if options else [OneWeight(), Factor()]


def _plain(case: Case, variant: Variant, number: float) -> float:
    """Return the number of three digits near one that was fitted, if it explains the difference as well."""
    near = float(f"{number:.3g}")
    return near if near != variant.start and case.explained(variant.change(near)) else number


class OneWeight:
    """One weight was another: nothing but its column of the Jacobian is in the difference."""

    def variants(self, case: Case, limits: Limits, base: Change) -> Iterator[Variant]:
        """Yield the likeliest weights that alone stand out from rounding."""
        for one in suspects(case, base, case.with_change(base) if base else None)[:3]:
            if one.excess <= 1:
                return

            def change(number: float, one: Suspect = one) -> Change:
                return one.apply(base, number)

            def text(number: float, one: Suspect = one) -> str:
                place = "".join(f"[{part}]" for part in one.index)
                return f"{one.name}{place} was about {number:.3g} larger in Lua (0-based, in PyTorch's layout)"

            yield Variant(one.node, change, text, FILE, 0.0, one.change, one.visible)


_SMALL = (0.0, 1.0, 2.0, 3.0, 4.0)
_USUAL: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("padW",): _SMALL,
    ("padH",): _SMALL,
    ("padT",): _SMALL,
    ("padW", "padH"): _SMALL,
    ("padT", "padW", "padH"): _SMALL,
    ("dW",): _SMALL[1:],
    ("dH",): _SMALL[1:],
    ("dT",): _SMALL[1:],
    ("dW", "dH"): _SMALL[1:],
    ("adjW",): _SMALL,
    ("adjH",): _SMALL,
    ("adjW", "adjH"): _SMALL,
    ("dilationW", "dilationH"): _SMALL[1:],
    ("kW", "kH"): (*_SMALL[1:], 5.0, 7.0),
    ("kW",): (*_SMALL[1:], 5.0),
    ("kH",): (*_SMALL[1:], 5.0),
    ("ceil_mode",): (True, False),
    ("count_include_pad",): (True, False),
    ("divide",): (True, False),
    ("train",): (True, False),
    ("inplace",): (True, False),
    ("eps",): (1e-5, 1e-3, 1e-4, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12, 0.0),
    ("size",): (5.0, 3.0),
    ("scale_factor",): (2.0, 3.0, 4.0),
    ("dimension",): (1.0, 2.0, 3.0, 4.0),
    ("index",): (1.0, 2.0, 3.0, 4.0, -1.0),
    ("p",): (1.0, 2.0, 3.0, 0.5),
    ("v2",): (True, False),
    ("threshold",): (0.0, 1e-6),
    ("val",): (0.0,),
}
"""Fields that change what a layer computes without changing its weights, and their usual values."""
_ANY = (
    *("constant_scalar", "negval", "threshold", "alpha", "beta", "lambda", "val"),
    *("k", "min_val", "max_val", "eps", "pow", "lambd", "p"),
)
"""Fields with any number."""


class Option:
    """One option was another: usual values first, then any number that fits."""

    def variants(self, case: Case, limits: Limits, base: Change) -> Iterator[Variant]:
        """Yield variants of each layer, the last first."""
        for node, layer in reversed(case.layers):
            for fields, candidates in _USUAL.items():
                now = [layer.obj.get(name) for name in fields]
                for candidate in [] if None in now else candidates:
                    if isinstance(candidate, bool) is isinstance(now[0], bool) and any(one != candidate for one in now):
                        found = _rebuilt(node, layer, dict.fromkeys(fields, candidate), limits, base)
                        if found is not None:
                            text = _agrees(" and ".join(fields), _shown(candidate), _shown(now[0]))
                            yield Variant(node, _always(found), _always(text))
            for name in _ANY:
                if isinstance(layer.obj.get(name), float):
                    yield from self._number(node, layer, name, limits, base)

    def _number(self, node: Node, layer: LiveLayer, name: str, limits: Limits, base: Change) -> Iterator[Variant]:
        now = float(layer.obj.get(name))

        def change(number: float) -> Change:
            return _rebuilt(node, layer, {name: number}, limits, base) or base

        yield Variant(
            node,
            change,
            lambda number: _agrees(name, f"{number:.4g}", f"{now:.6g}"),
            start=now,
            step=now * 0.01 or 1e-3,
        )


class Gates:
    """The gates of a recurrent layer, or the blocks of a linear one, were in another order."""

    def variants(self, case: Case, limits: Limits, base: Change) -> Iterator[Variant]:
        """Yield each order of the blocks of a layer's weights."""
        for node, layer in [] if base else case.weighted:
            obj, name = layer.obj, layer.name
            weight, bias = obj.get("weight"), obj.get("bias")
            axis = {"Linear": 0, "LinearNoBias": 0, "SeqLSTM": 1, "SeqGRU": 1, "LSTM": 1, "GRU": 1}.get(name)
            if axis is None or not isinstance(weight, Tensor) or len(weight.size) != 2:
                continue
            extent = weight.size[axis]
            for blocks in (4, 3, 2) if axis == 0 else (4,) if "LSTM" in name else (3,):
                if extent % blocks or extent == blocks:
                    continue
                for order in list(permutations(range(blocks)))[1:]:
                    changes: dict[str, Any] = {"weight": _ordered(weight, axis, order)}
                    if isinstance(bias, Tensor) and bias.size == (extent,):
                        changes["bias"] = _ordered(bias, 0, order)
                    found = _rebuilt(node, layer, changes, limits, base)
                    if found is not None:
                        shown = [" ".join(str(item + 1) for item in items) for items in (order, range(blocks))]
                        text = f"the gates in the order {shown[0]} agree (the file has {shown[1]})"
                        yield Variant(node, _always(found), _always(text), CONVERSION)


class Factor:
    """All weights of a layer were multiplied by a number, as no update does but a decay where there is no gradient."""

    def variants(self, case: Case, limits: Limits, base: Change) -> Iterator[Variant]:
        """Yield the weights, with the biases and without them."""
        for node, layer in case.weighted:
            for kind in ("weight", "weight and bias"):
                now = base.get(id(layer), layer)
                names = [name for name in layer.weights if kind != "weight" or not name.endswith("bias")]
                several = sum(layer.weights[name].numel() for name in names)

                def change(number: float, layer: Any = layer, now: Any = now, names: Any = names) -> Change:
                    return {**base, id(layer): now.moved({name: now.weights[name] * number for name in names})}

                def text(number: float, kind: str = kind) -> str:
                    verb = "are" if "and" in kind else "is"
                    return f"its {kind} {verb} in the file {1 / number if number else 0:.6g} times as large as in Lua"

                if names:
                    yield Variant(node, change, text, FILE, 1.0, 1e-3, several)


def stepped(case: Case, direction: Direction, limits: Limits, memo: dict[Any, Any]) -> Callable[[float], Change] | None:
    """Return the weights moved along a direction of an optimizer, by a rate; `None` if the direction is not recorded.

    Args:
        case: recorded values, and what computes them.
        direction: the direction.
        limits: resource limits.
        memo: directions of layers, by layer and direction.
    """
    slopes = []
    for _, layer in case.weighted:
        key = id(layer), direction.name
        if key not in memo:
            memo[key] = layer, _slopes(layer, direction, limits)
        if memo[key][1]:
            slopes.append(memo[key])

    def change(rate: float) -> Change:
        return {
            id(layer): layer.moved(
                {name: item + rate * slope[name] for name, item in layer.weights.items() if name in slope}
            )
            for layer, slope in slopes
        }

    return change if slopes else None


def _slopes(layer: LiveLayer, direction: Direction, limits: Limits) -> dict[str, torch.Tensor]:
    """Return the direction of a layer's weights, by their names in PyTorch; empty if there is none."""

    def pick(obj: TorchObject, name: str, tensor: Tensor) -> Any:
        found = direction.pick(obj, name, tensor, obj.get(GRADIENTS[name]))
        return np.zeros(tensor.shape) if found is None else found

    other = with_weights(layer.obj, pick)
    try:
        found = LiveLayer.build(other, "root", layer.unit, limits).weights if other is not None else {}
    except T7BridgeError:
        return {}
    return found if any(bool(item.any()) for item in found.values()) else {}


def _rebuilt(node: Node, layer: LiveLayer, changes: dict[str, Any], limits: Limits, base: Change) -> Change | None:
    """Return a change of a layer's fields; `None` if it cannot be built."""
    now = base.get(id(layer))
    try:
        return {**base, id(layer): layer.variant(changes, limits).moved(now.other if now is not None else {})}
    except T7BridgeError:
        return None


def _always(value: Any) -> Callable[[float], Any]:
    return lambda number: value


def _agrees(name: str, value: str, now: str) -> str:
    return f"{name} = {value} agrees (the file has {now})"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else "another"


def _ordered(tensor: Tensor, axis: int, order: tuple[int, ...]) -> Tensor:
    parts = np.split(tensor.numpy(), len(order), axis)
    return Tensor.from_numpy(np.ascontiguousarray(np.concatenate([parts[item] for item in order], axis)))
