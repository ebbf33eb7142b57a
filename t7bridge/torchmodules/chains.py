"""Layers between two recorded values, one behind the other, that can be run again with other weights.

May import nn and below.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..data import define
from ..errors import T7BridgeError
from ..limits import Limits
from .running import Layer, Values, with_gradients

MOST = 12
"""How many layers a chain may have."""


@define(eq=False)
class Link:
    """A layer of a chain.

    Attributes:
        layer: the layer.
        wrap: puts the output of the layer before into the input, where that is one of several tensors.
        in_place: whether it works elementwise in the memory of its input.
    """

    layer: Layer
    wrap: Callable[[Any], Any] | None = None
    in_place: bool = False


@define(eq=False)
class Chain:
    """Layers one behind the other.

    Attributes:
        start: the input of the first.
        links: the layers.
    """

    start: Values
    links: tuple[Link, ...]

    @property
    def has_head(self) -> bool:
        """Return whether the first layer is a sum of products with weights and all others are elementwise."""
        first = self.links[0].layer
        weighted = next(first.module.parameters(), None) is not None
        return first.is_sum and weighted and all(link.in_place for link in self.links[1:])

    def tail(self) -> Callable[[Any], Any] | None:
        """All layers but the first as one function; `None` where there are none."""
        if len(self.links) == 1:
            return None

        def run(value: Any) -> Any:
            for link in self.links[1:]:
                value = link.layer.run(link.wrap(value) if link.wrap else value)
            return value

        return run

    def gradients(self, limits: Limits) -> list[dict[str, torch.Tensor]]:
        """For each layer the recorded gradients of its weights, by name; empty where there are none."""
        found: list[dict[str, torch.Tensor]] = []
        for link in self.links:
            slope = with_gradients(link.layer.obj)
            try:
                layer = Layer.build(slope, "", link.layer.unit, limits) if slope is not None else None
            except T7BridgeError:
                layer = None
            found.append(dict(layer.module.named_parameters()) if layer is not None else {})
        return found

    def unit_step(self, slopes: list[dict[str, torch.Tensor]]) -> float:
        """A rate that changes the weights by about a ten-thousandth."""
        size = sum(float(item.square().sum()) for link in self.links for item in link.layer.module.parameters())
        slope = sum(float(item.square().sum()) for named in slopes for item in named.values())
        return 1e-4 * (size / slope) ** 0.5 if size and slope else 1e-6

    def run(self, slopes: list[dict[str, torch.Tensor]], rate: float) -> Values:
        """Run all layers with their weights moved by `rate` along `slopes`.

        Raises:
            NotRunError: a layer does not take its input.
        """
        value = self.start
        for place, (link, named) in enumerate(zip(self.links, slopes)):
            given = link.wrap(value) if link.wrap and place else value
            value = link.layer.run(given, _moved(link.layer.module, named, rate))
        return value


def _moved(module: nn.Module, slopes: dict[str, torch.Tensor], rate: float) -> nn.Module:
    if not slopes or not rate:
        return module
    moved = copy.deepcopy(module)
    with torch.no_grad():
        for name, item in moved.named_parameters():
            if name in slopes and slopes[name].shape == item.shape:
                item.add_(slopes[name], alpha=rate)
    return moved


def extended(
    chain: Chain | None,
    layer: Layer | None,
    value: Values,
    wrap: Callable[[Any], Any] | None,
    computed: bool,
    in_place: bool,
) -> Chain | None:
    """The chain with one more layer, or a new one where the input is recorded.

    Args:
        chain: the layers that computed the input.
        layer: the layer; `None` ends a chain.
        value: the input.
        wrap: see `Link`.
        computed: whether the input is not recorded.
        in_place: see `Link`.
    """
    if layer is None:
        return None
    if not computed:
        return Chain(value, (Link(layer),))
    if chain is None or len(chain.links) >= MOST:
        return None
    return Chain(chain.start, (*chain.links, Link(layer, wrap, in_place)))
