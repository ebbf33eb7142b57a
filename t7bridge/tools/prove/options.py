"""The option of a layer that, changed, would explain what Lua recorded. May import graph, nn and torchmodules."""

from __future__ import annotations

from typing import Any

from ...errors import T7BridgeError
from ...graph.lua import TorchObject
from ...limits import Limits
from .steps import Step

_SMALL = (0.0, 1.0, 2.0, 3.0, 4.0)
_EPS = (1e-5, 1e-3, 1e-4, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12, 0.0)
_CANDIDATES: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("padW",): _SMALL,
    ("padH",): _SMALL,
    ("padW", "padH"): _SMALL,
    ("padT", "padW", "padH"): _SMALL,
    ("dW",): _SMALL[1:],
    ("dH",): _SMALL[1:],
    ("dW", "dH"): _SMALL[1:],
    ("adjW", "adjH"): _SMALL,
    ("dilationW", "dilationH"): _SMALL[1:],
    ("kW", "kH"): (*_SMALL[1:], 5.0, 7.0),
    ("ceil_mode",): (True, False),
    ("count_include_pad",): (True, False),
    ("divide",): (True, False),
    ("train",): (True, False),
    ("inplace",): (True, False),
    ("eps",): _EPS,
    ("negval",): (0.01, 0.1, 0.2, 0.3, 1 / 3, 0.05, 0.0),
    ("threshold",): (0.0, 1e-6, 1.0),
    ("val",): (0.0,),
    ("alpha",): (1.0, 1e-4, 0.5),
    ("beta",): (0.75, 0.5, 1.0),
    ("size",): (5.0, 3.0),
    ("k",): (1.0, 2.0),
    ("scale_factor",): (2.0, 3.0, 4.0),
    ("dimension",): (1.0, 2.0, 3.0, 4.0),
    ("min_val",): (-1.0, 0.0),
    ("max_val",): (1.0, 6.0),
}
"""Fields that change what a layer computes without changing its weights, and their usual values."""
MAX_TRIES = 40
"""How many variants of a layer are tried."""


def agreeing_option(step: Step, value: Any, unit: float, limits: Limits) -> str:
    """The change of one option with which a layer returns what was recorded, as a sentence; empty for none.

    Args:
        step: the run of the layer.
        value: its input in double precision.
        unit: unit roundoff of the element type that Lua computed in.
        limits: resource limits.
    """
    from ...torchmodules.judging import measure, squeezed
    from ...torchmodules.running import Layer, NotRunError, flat, to_torch, with_fields

    want = squeezed(to_torch(step.output))
    tries = 0
    for fields, candidates in _CANDIDATES.items():
        now = [step.obj.get(name) for name in fields]
        if any(item is None for item in now):
            continue
        for candidate in candidates:
            if all(item == candidate for item in now) or isinstance(candidate, bool) != isinstance(now[0], bool):
                continue
            tries += 1
            if tries > MAX_TRIES:
                return ""
            changed: TorchObject = with_fields(step.obj, dict.fromkeys(fields, candidate))
            try:
                layer = Layer.build(changed, step.path, unit, limits)
                shapes = layer.shapes(value)
                if shapes is not None and [tuple(item.shape) for item in want] != shapes:
                    continue
                got = [item.double() for item in flat(layer.run(value))]
                scales = [item.abs() * 1e-5 + 1e-6 for item in want]
                found = measure(want, got, scales)
            except (NotRunError, T7BridgeError):
                continue
            if not found.reason and found.close:
                names = " and ".join(fields)
                return f"{names} = {_shown(candidate)} agrees (the file has {_shown(now[0])})"
    return ""


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else "another"
