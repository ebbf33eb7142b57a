"""Explanations of a difference: one weight, an option, the order of gates, a factor, the last step of an optimizer.

Each yields variants of the layers that compute a recorded value; a variant with which they return that value, to the
last digit, is the explanation. May import graph and nn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from math import inf
from typing import Any

import torch
from attrs import field

from ...data import define
from ...errors import T7BridgeError
from ...graph.lua import Table, Value
from ...graph.tensor import Tensor
from ...lazy import np
from ...limits import Limits
from .layer import LiveLayer, with_fields
from .proof import CONVERSION, FILE
from .residual import DETERMINED, GROWTH, Case, Change, Node, suspects

LONGEST = 12
"""Layers between two recorded values among which a change is searched for; the search takes the square of this."""
CLEAR = 2.0
"""Limits that a difference must exceed for one weight to explain it, or for a layer to be off a step: with less, what
is left is another's as well, or the rounding of the gradient, which is as large as that of the output."""


@define(eq=False)
class Variant:
    """Layers with something changed, by a number that is to be found or not.

    Attributes:
        node: the run of the layer that is changed.
        change: the change, or the change for a number.
        text: the explanation; with a number, before and after that.
        blame: what was wrong: `FILE` or `CONVERSION`.
        start: the number that the file has.
        step: a small change of it.
        visible: how many weights would show if an update moved them.
    """

    node: Node
    change: Change | Callable[[float], Change]
    text: tuple[str, ...]
    blame: str = FILE
    start: float = 0.0
    step: float = 1e-3
    visible: int = DETERMINED

    def explains(self, case: Case) -> str:
        """Return the explanation of a difference; empty if it is none."""
        if not callable(self.change):
            return self.text[0] if case.explained(self.change) else ""
        number = case.fit(self.change, self.start, self.step)
        found = number is not None and case.explained(self.change(number))
        return f"{number:.4g}".join(self.text) if found else ""


@define(eq=False)
class Explanation:
    """A variant that explains a difference, with its text, and what was wrong.

    Attributes:
        node: the run of the layer that was changed.
        text: the change.
        blame: what was wrong: `FILE` or `CONVERSION`.
        certain: whether no update of weights looks like it, since that moves more than one number.
    """

    node: Node
    text: str
    blame: str
    certain: bool


def explanation(case: Case, limits: Limits, base: Change | None = None, *, options: bool = True) -> Explanation | None:
    """Return the first variant that explains a difference; `None` if none does.

    Args:
        case: recorded values, and what computes them.
        limits: resource limits.
        base: other changes, beside which it is searched for.
        options: try options and orders of gates too, which takes hundreds of runs.
    """
    base = base or {}
    if len(case.node.nodes()) > LONGEST or sum(item.numel() for item in case.want) > limits.work:
        return None
    size = case.with_change(base).excess if base else max(case.off.excess, case.excess_of_weight)
    size = size if case.node.found else GROWTH
    if case.weighted and size < CLEAR:
        return None
    kinds = [_one_weight, _option, _gates, _factor] if options else [_one_weight, _factor]
    # What changes all values a little may be their rounding, which in Lua's libraries may be larger.
    for kind in kinds[:1] if case.weighted and size < GROWTH else kinds:
        for variant in kind(case, limits, base):
            text = variant.explains(case)
            if text:
                certain = not case.weighted or (variant.visible > 1 and case.off.active >= DETERMINED)
                return Explanation(variant.node, text, variant.blame, certain)
    return None


def _one_weight(case: Case, limits: Limits, base: Change) -> Iterator[Variant]:
    """One weight was another: nothing but its column of the Jacobian is in the difference."""
    for one in suspects(case, base):
        if one.excess > 1:
            place = "".join(f"[{part}]" for part in one.index)
            text = f"{one.name}{place} was about ", " larger in Lua (0-based, in PyTorch's layout)"
            yield Variant(one.node, partial(one.apply, base), text, FILE, 0.0, one.change, one.visible)


def _option(case: Case, limits: Limits, base: Change) -> Iterator[Variant]:
    """One option was another, or one of all dimensions: flags and usual numbers first, then any that fits."""
    for node, layer in reversed(case.layers):
        named = _numbers(layer)
        # A whole model may have run in the other mode.
        groups: list[tuple[str, ...]] = [(name,) for name in sorted(named, key=lambda name: name != "train")]
        # The sizes of all dimensions are often equal.
        sizes = [name[:-1] for name in named if name.endswith("W") and name[:-1] + "H" in named]
        groups += [tuple(kind + letter for letter in "TWH" if kind + letter in named) for kind in sizes]
        for group in groups:
            now = [named[name] for name in group]
            for value in (not now[0],) if isinstance(now[0], bool) else _USUAL:
                found = _rebuilt(layer, dict.fromkeys(group, value), limits, base)
                if found is not None and any(one != value for one in now):
                    shown = [str(item).lower() if isinstance(item, bool) else f"{item:g}" for item in (value, now[0])]
                    whole = f"{' and '.join(group)} = {shown[0]} agrees (the file has {shown[1]})"
                    yield Variant(node, found, (whole,))
        for name, now in named.items():
            if not isinstance(now, bool):
                change = partial(_with_number, layer, name, limits, base)
                text = f"{name} = ", f" agrees (the file has {now:.6g})"
                yield Variant(node, change, text, FILE, now, now * 0.01 or 1e-3)


def _numbers(layer: LiveLayer) -> dict[str, Any]:
    """Return the fields with numbers and flags."""
    keys = [] if layer.obj.fields is None else layer.obj.fields.raw_keys
    named = {key.decode("utf-8", "replace"): layer.obj.get(key) for key in keys if isinstance(key, bytes)}
    return {name: now for name, now in named.items() if isinstance(now, (bool, float))}


_USUAL = (1.0, 0.0, 2.0, 3.0, 4.0, 5.0, 7.0, -1.0, 1e-5, 1e-3)
"""Usual sizes, strides, paddings, dimensions, indices and small numbers."""


def _gates(case: Case, limits: Limits, base: Change) -> Iterator[Variant]:
    """The gates of a recurrent layer, or the blocks of a linear one, were in another order."""
    for node, layer in [] if base else case.weighted:
        weight, bias = layer.obj.get("weight"), layer.obj.get("bias")
        axis = {"Linear": 0, "LinearNoBias": 0, "SeqLSTM": 1, "SeqGRU": 1, "LSTM": 1, "GRU": 1}.get(layer.name)
        if axis is None or not isinstance(weight, Tensor) or len(weight.size) != 2:
            continue
        extent = weight.size[axis]
        for blocks in (4, 3, 2) if axis == 0 else (4,) if "LSTM" in layer.name else (3,):
            for order in list(permutations(range(blocks)))[1:] if extent % blocks == 0 and extent > blocks else []:
                changes: dict[str, Any] = {"weight": _ordered(weight, axis, order)}
                if isinstance(bias, Tensor) and bias.size == (extent,):
                    changes["bias"] = _ordered(bias, 0, order)
                found = _rebuilt(layer, changes, limits, base)
                if found is not None:
                    shown = [" ".join(str(item + 1) for item in items) for items in (order, range(blocks))]
                    text = f"the gates in the order {shown[0]} agree (the file has {shown[1]})"
                    yield Variant(node, found, (text,), CONVERSION)


def _factor(case: Case, limits: Limits, base: Change) -> Iterator[Variant]:
    """All weights of a layer were multiplied by a number, as no update does but a decay where there is no gradient."""
    for node, layer in case.weighted:
        now = base.get(id(layer), layer)
        for kind in ("weight is", "weight and bias are"):
            weights = {name: item for name, item in now.weights.items() if "and" in kind or not name.endswith("bias")}
            count = sum(item.numel() for item in weights.values())
            text = f"in Lua its {kind} ", " times as large as in the file"
            yield Variant(node, partial(_scaled, layer, weights, base), text, FILE, 1.0, 1e-3, count)


def _rebuilt(layer: LiveLayer, changes: dict[str, Any], limits: Limits, base: Change) -> Change | None:
    """Return a change of a layer's fields; `None` if it cannot be built."""
    try:
        return {**base, id(layer): layer.variant(changes, limits).moved(base.get(id(layer), layer).other)}
    except T7BridgeError:
        return None


def _with_number(layer: LiveLayer, name: str, limits: Limits, base: Change, number: float) -> Change:
    return _rebuilt(layer, {name: number}, limits, base) or base


def _scaled(layer: LiveLayer, weights: dict[str, torch.Tensor], base: Change, number: float) -> Change:
    scaled = {name: item * number for name, item in weights.items()}
    return {**base, id(layer): base.get(id(layer), layer).moved(scaled)}


def _ordered(tensor: Tensor, axis: int, order: tuple[int, ...]) -> Tensor:
    parts = np.split(tensor.numpy(), len(order), axis)
    return Tensor.from_numpy(np.ascontiguousarray(np.concatenate([parts[item] for item in order], axis)))


# The last step of an optimizer

Array = np.ndarray[Any, Any]
_GRADIENTS = {"weight": "gradWeight", "bias": "gradBias", "v": "gradV", "g": "gradG", "diagCov": "gradDiagCov"}
"""Fields with weights, and those with their gradients. Source: nn 8726825 `Linear.lua`, `WeightNorm.lua`,
`WeightedEuclidean.lua`.
"""
_STATES: dict[str, tuple[str, Callable[[dict[str, Array], Array], Array]]] = {
    "Adadelta": ("delta", lambda state, slope: state["delta"]),
    "momentum": ("dfdx", lambda state, slope: state["dfdx"]),
    "Adam": ("m denom", lambda state, slope: state["m"] / state["denom"]),
    "Adamax": ("m u", lambda state, slope: state["m"] / state["u"]),
    "RMSprop": ("m tmp", lambda state, slope: slope / state["tmp"]),
    "Adagrad": ("paramStd", lambda state, slope: slope / state["paramStd"]),
}
"""By the name of the optimizer: the required tensors of its state, and the step, up to a factor, from these and the
recorded gradient. A state of Adadelta has the fields of Adagrad as well.

Source: optim a5ceed7 `sgd.lua`, `adam.lua`, `adamax.lua`, `rmsprop.lua`, `adagrad.lua`, `adadelta.lua`.
"""
_MOST_STATES = 8
"""States that are tried; a checkpoint has one for each network."""
_MOST_TABLES = 1000
"""Tables that are searched for them."""


@define(eq=False)
class Direction:
    """A direction in which an optimizer moved all weights.

    `getParameters` puts all weights into one storage, and the package optim keeps tensors of the same length: a weight
    has the same offset in both.

    Attributes:
        name: its origin, for messages.
        state: the tensors of the optimizer's state; none for the recorded gradient: the direction of gradient descent,
            Nesterov's too, and with weight decay, which optim adds to the recorded gradient.
        step: the direction from these and the gradient.
    """

    name: str = "the recorded gradient"
    state: dict[str, Tensor] = field(factory=dict)
    step: Callable[[dict[str, Array], Array], Array] = lambda state, slope: slope

    def of(self, tensor: Tensor, slope: Value) -> Array:
        """Return the direction of a tensor of weights with a recorded gradient; zeros where it is not known."""
        known = isinstance(slope, Tensor) and slope.shape == tensor.shape
        gradient = slope.numpy().astype("f8") if known else np.zeros(tensor.shape)
        parts = {}
        for key, flat in self.state.items():
            if tensor.storage is None or flat.numel != tensor.storage.count:
                return np.zeros(tensor.shape)
            view = Tensor(flat.element, flat.storage, tensor.size, tensor.stride, flat.offset + tensor.offset)
            parts[key] = view.numpy().astype("f8")
        with np.errstate(all="ignore"):
            return np.nan_to_num(self.step(parts, gradient), nan=0.0, posinf=0.0, neginf=0.0)


def directions(value: Value) -> list[Direction]:
    """Return the directions that a file has: of optimizers' states in tables beside the models, and the gradient."""
    found: list[Direction] = []
    stack, seen = [value], set[int]()
    while stack and len(found) < _MOST_STATES and len(seen) < _MOST_TABLES:
        table = stack.pop()
        if not isinstance(table, Table) or id(table) in seen:
            continue
        seen.add(id(table))
        stack += [inside for inside in table.raw_values if isinstance(inside, Table)]
        for name, (fields, step) in _STATES.items():
            state = {field: table.get(field) for field in fields.split()}
            if all(isinstance(item, Tensor) and _is_flat(item) for item in state.values()):
                found.append(Direction(f"the last step of {name}", state, step))
                break
    return [*found, Direction()]


def _is_flat(tensor: Tensor) -> bool:
    """Return whether elements are contiguous; Adamax stores them as a matrix of one row."""
    return tensor.numel > 0 and max(tensor.size) == tensor.numel and tensor.stride[tensor.size.index(tensor.numel)] == 1


class Line:
    """The weights of a case, moved along a direction.

    Args:
        case: recorded values, and what computes them.
        direction: the direction.
        limits: resource limits.
    """

    def __init__(self, case: Case, direction: Direction, limits: Limits) -> None:
        self.case = case
        found = [(layer, _slopes(layer, direction, limits)) for _, layer in case.weighted]
        self.slopes = [(layer, slopes) for layer, slopes in found if slopes]

    def change(self, rate: float) -> Change:
        """Return the layers with their weights moved by a rate."""
        return {
            id(layer): layer.moved({name: item + rate * slopes[name] for name, item in layer.weights.items()})
            for layer, slopes in self.slopes
        }

    def excess(self, rate: float) -> float:
        """Return what a rate leaves, in units of the rounding limit."""
        return self.case.with_change(self.change(rate)).excess if self.slopes else inf

    def agrees(self, rate: float) -> bool:
        """Return whether rounding explains what a rate leaves."""
        return self.excess(rate) <= 1

    def fit(self) -> float | None:
        """Return the rate that fits best; `None` if there is none."""
        if not self.slopes:
            return None
        pairs = [(item, slopes[name]) for layer, slopes in self.slopes for name, item in layer.weights.items()]
        size, length = (sum(float(pair[side].square().sum()) for pair in pairs) for side in (0, 1))
        # A step by which weights change by about a ten-thousandth.
        return self.case.fit(self.change, 0.0, 1e-4 * (size / length) ** 0.5 if size and length else 1e-6)


def _slopes(layer: LiveLayer, direction: Direction, limits: Limits) -> dict[str, torch.Tensor]:
    """Return the direction of a layer's weights, by their names in PyTorch; empty if there is none."""
    weights = {name: layer.obj.get(name) for name in _GRADIENTS}
    moved = {
        name: Tensor.from_numpy(direction.of(item, layer.obj.get(_GRADIENTS[name])))
        for name, item in weights.items()
        if isinstance(item, Tensor) and item.numel and item.element.name.startswith("float")
    }
    try:
        found = LiveLayer.build(with_fields(layer.obj, moved), "root", layer.unit, limits).weights if moved else {}
    except T7BridgeError:
        return {}
    return found if any(bool(item.any()) for item in found.values()) else {}
