"""The option of a layer, or the order of its gates, that would explain the recorded values: the likely reason.

May import graph, nn and torchmodules.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import TYPE_CHECKING, Any

from ...data import define
from ...errors import T7BridgeError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import Limits
from .reasons import GATES, OPTION
from .visits import base_name

if TYPE_CHECKING:
    from ...torchmodules.chains import Chain

_SMALL = (0.0, 1.0, 2.0, 3.0, 4.0)
_EPS = (1e-5, 1e-3, 1e-4, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12, 0.0)
_CANDIDATES: dict[tuple[str, ...], tuple[Any, ...]] = {
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
    ("eps",): _EPS,
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
_SOLVED = (
    "constant_scalar",
    "negval",
    "threshold",
    "alpha",
    "beta",
    "lambda",
    "val",
    "k",
    "min_val",
    "max_val",
    "eps",
    "pow",
    "lambd",
    "p",
)
"""Fields with arbitrary values; the best fit is searched for."""
MAX_TRIES = 60
"""Maximum number of variants of a layer that are tried."""
MAX_WORK = 1 << 28
"""Maximum number of elements in all their outputs."""
_ROUNDS = 6
_PLAIN: dict[str, tuple[Any, ...]] = {"threshold": (0.0, 1e-6), "val": (0.0,), "eps": (), "inplace": (True, False)}
"""Values of fields that are never set in practice."""
_BLOCKS = (4, 3, 2)
_SEQUENCES = ("SeqLSTM", "SeqGRU", "LSTM", "GRU")


@define(eq=False)
class Likely:
    """A likely reason.

    Attributes:
        place: of the layer in its chain.
        text: the reason as a sentence.
    """

    place: int
    text: str


def has_options(obj: TorchObject) -> bool:
    """Return whether a layer has numeric options of its own that could be changed."""
    for name in _SOLVED:
        now = obj.get(name)
        if isinstance(now, float) and now not in _PLAIN.get(name, ()):
            return True
    return any(all(obj.get(name) is not None for name in names) for names in _CANDIDATES if names[0].startswith("k"))


def likely_reason(chain: Chain, want: list[Any], scales: list[Any], headroom: float, limits: Limits) -> Likely | None:
    """Find the change of one option, or of the order of gates, with which layers return the recorded values.

    Args:
        chain: the layers from a recorded input to the recorded output.
        want: recorded outputs.
        scales: expected rounding errors of the computed outputs, as standard deviations.
        headroom: factor of the limit.
        limits: resource limits.
    """
    from ...torchmodules.judging import close_enough
    from ...torchmodules.running import LiveLayer, NotRunError, flat

    shapes = [tuple(item.shape) for item in want]

    def tried(place: int, changes: dict[str, Any]) -> list[Any] | None:
        link = chain.links[place]
        try:
            layer = LiveLayer.variant(link.layer, changes, limits)
            if place + 1 == len(chain.links) == 1:
                found = layer.shapes(chain.start)
                if found is not None and found != shapes:
                    return None
            return [item.double() for item in flat(chain.with_layer(place, layer))]
        except (NotRunError, T7BridgeError):
            return None

    def fits(got: list[Any] | None) -> bool:
        return got is not None and close_enough(want, got, scales, headroom)

    tries = 0
    most = min(MAX_TRIES * len(chain.links), MAX_WORK // max(1, sum(item.numel() for item in want)))
    for place in reversed(range(len(chain.links))):
        obj = chain.links[place].layer.obj
        for changes, text in _variants(obj):
            tries += 1
            if tries > most:
                return None
            if fits(tried(place, changes)):
                return Likely(place, text)
        for name in _SOLVED:
            now = obj.get(name)
            if isinstance(now, float):
                found = _solved(name, now, lambda changes, at=place: tried(at, changes), want)
                if found is not None and fits(tried(place, {name: found})):
                    return Likely(place, OPTION.format(name, f"{found:.4g}", f"{now:.6g}"))
    return None


def _variants(obj: TorchObject) -> Iterator[tuple[dict[str, Any], str]]:
    for fields, candidates in _CANDIDATES.items():
        now = [obj.get(name) for name in fields]
        if any(item is None for item in now):
            continue
        for candidate in candidates:
            if all(item == candidate for item in now) or isinstance(candidate, bool) != isinstance(now[0], bool):
                continue
            text = OPTION.format(" and ".join(fields), _shown(candidate), _shown(now[0]))
            yield dict.fromkeys(fields, candidate), text
    yield from _orders(obj)


def _orders(obj: TorchObject) -> Iterator[tuple[dict[str, Any], str]]:
    """Return the weights of a recurrent layer with its gates in other orders."""
    weight, bias = obj.get("weight"), obj.get("bias")
    if not isinstance(weight, Tensor) or len(weight.size) != 2:
        return
    name = base_name(obj.class_name)
    axis = 1 if name in _SEQUENCES else 0
    if axis == 0 and name not in ("Linear", "LinearNoBias"):
        return
    extent = weight.size[axis]
    for blocks in _BLOCKS if axis == 0 else (_BLOCKS[0],) if "LSTM" in name else (_BLOCKS[1],):
        if extent % blocks or extent == blocks or extent * weight.numel > 1 << 28:
            continue
        for order in list(permutations(range(blocks)))[1:]:
            changes: dict[str, Any] = {"weight": _ordered(weight, axis, order)}
            if isinstance(bias, Tensor) and bias.size == (extent,):
                changes["bias"] = _ordered(bias, 0, order)
            shown = [" ".join(str(item + 1) for item in items) for items in (order, range(blocks))]
            yield changes, GATES.format(*shown)


def _ordered(tensor: Tensor, axis: int, order: tuple[int, ...]) -> Tensor:
    import numpy as np

    parts = np.split(tensor.numpy(), len(order), axis)
    return Tensor.from_numpy(np.ascontiguousarray(np.concatenate([parts[item] for item in order], axis)))


def _solved(name: str, now: float, run: Any, want: list[Any]) -> float | None:
    """Return the value of a field with which outputs are closest to the recorded ones, by the secant method."""
    first = run({name: now})
    if first is None or any(one.shape != other.shape for one, other in zip(first, want)):
        return None
    at, value = now, first
    step = now * 0.01 if now else 1e-3
    for _ in range(_ROUNDS):
        moved = run({name: at + step})
        if moved is None:
            return None
        slopes = [(one - two) / step for one, two in zip(moved, value)]
        norm = sum(float(slope.square().sum()) for slope in slopes)
        if not norm > 0 or norm == float("inf"):
            return None
        left = sum(float(((one - two) * slope).sum()) for one, two, slope in zip(want, value, slopes))
        change = left / norm
        if not abs(change) < 1e6:
            return None
        at += change
        value = run({name: at})
        if value is None:
            return None
        if abs(change) < 1e-9 * max(abs(at), 1e-12):
            break
        step = change * 0.1 or step
    return _round_off(at)


def _round_off(value: float) -> float:
    near = float(f"{value:.3g}")
    return near if abs(value - near) <= 1e-3 * abs(near) else value


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else "another"
