"""Sequences of layers between two recorded values that can be rerun with other weights.

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
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from ..limits import Limits
from .running import LiveLayer, Values, flat, with_weights

MOST = 12
"""Maximum number of layers of a chain."""


@define(eq=False)
class Link:
    """A layer of a chain.

    Attributes:
        layer: the layer.
        wrap: inserts the output of the layer before into the input, if that is one of several tensors.
        in_place: whether it works elementwise in the memory of its input.
    """

    layer: LiveLayer
    wrap: Callable[[Any], Any] | None = None
    in_place: bool = False


@define(eq=False)
class Chain:
    """Layers in sequence.

    Attributes:
        start: the input of the first.
        links: the layers.
    """

    start: Values
    links: tuple[Link, ...]

    @property
    def has_head(self) -> bool:
        """True if the first layer is a sum of products with weights and all others are elementwise."""
        first = self.links[0].layer
        weighted = next(first.module.parameters(), None) is not None
        return first.is_sum and weighted and all(link.in_place for link in self.links[1:])

    def tail(self) -> Callable[[Any], Any] | None:
        """Return all layers but the first as one function; `None` if there are none."""
        if len(self.links) == 1:
            return None

        def run(value: Any) -> Any:
            for link in self.links[1:]:
                value = link.layer.run(link.wrap(value) if link.wrap else value)
            return value

        return run

    def with_layer(self, place: int, layer: LiveLayer) -> Values:
        """Run all layers with one replaced.

        Raises:
            NotRunError: a layer does not accept its input.
        """
        value = self.start
        for number, link in enumerate(self.links):
            given = link.wrap(value) if link.wrap and number else value
            value = (layer if number == place else link.layer).run(given)
        return value

    def with_weight(self, name: str, index: tuple[int, ...], change: float) -> Values:
        """Run all layers with one weight of the first changed by `change`.

        Raises:
            NotRunError: a layer does not accept its input.
        """
        first = self.links[0].layer
        moved = copy.deepcopy(first.module)
        with torch.no_grad():
            moved.get_parameter(name)[index] += change
        return self.with_layer(0, LiveLayer(first.obj, moved, first.unit))

    def shifted(self, name: str, index: tuple[int, ...], change: float) -> Chain:
        """Return the layers with one weight of the first changed by `change`."""
        first = self.links[0].layer
        moved = copy.deepcopy(first.module)
        with torch.no_grad():
            moved.get_parameter(name)[index] += change
        head = Link(LiveLayer(first.obj, moved, first.unit), self.links[0].wrap, self.links[0].in_place)
        return Chain(self.start, (head, *self.links[1:]))

    def tangent(self, names: list[tuple[int, str]], steps: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the first-order change of the outputs when weights change by `steps`.

        Args:
            names: of the weights: the index of the layer, and the name inside it.
            steps: one for each.

        Raises:
            NotRunError: a layer does not accept its input.
        """
        size = sum(float(self._parameter(place, name).square().sum()) for place, name in names) ** 0.5
        length = sum(float(step.square().sum()) for step in steps) ** 0.5
        rate = 1e-7 * (size or 1.0) / (length or 1.0)
        named: list[dict[str, torch.Tensor]] = [{} for _ in self.links]
        for (place, name), step in zip(names, steps):
            named[place][name] = step
        both = [[item.double() for item in flat(self.run(named, sign * rate))] for sign in (1, -1)]
        return [(one - other) / (2 * rate) for one, other in zip(*both)]

    def adjoint(self, names: list[tuple[int, str]], pulls: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the gradients of the weights for output gradients `pulls`.

        Raises:
            NotRunError: a layer does not accept its input.
        """
        parameters = [self._parameter(place, name) for place, name in names]
        try:
            with torch.enable_grad():
                for item in parameters:
                    item.requires_grad_()
                value = self.start
                for number, link in enumerate(self.links):
                    value = link.layer.run(link.wrap(value) if link.wrap and number else value)
                found = list(flat(value))
                pairs = [(one, pull.reshape(one.shape)) for one, pull in zip(found, pulls) if one.requires_grad]
                return list(torch.autograd.grad([one for one, _ in pairs], parameters, [pull for _, pull in pairs]))
        finally:
            for item in parameters:
                item.requires_grad_(False)

    def _parameter(self, place: int, name: str) -> torch.Tensor:
        return self.links[place].layer.module.get_parameter(name)

    def slopes(self, pick: Callable[[TorchObject, str, Tensor], Any], limits: Limits) -> list[dict[str, torch.Tensor]]:
        """Return the direction of each layer's weights, by name; empty if there is none.

        Args:
            pick: the direction of the weights in a field of a module; `None` for those that do not change.
            limits: resource limits.
        """
        found: list[dict[str, torch.Tensor]] = []
        for link in self.links:
            layer = _rebuilt(link.layer, pick, limits, zeros=True)
            found.append(dict(layer.module.named_parameters()) if layer is not None else {})
        return found

    def moved(self, pick: Callable[[TorchObject, str, Tensor], Any], rate: float, limits: Limits) -> Chain | None:
        """Return the layers with their weights moved by `rate` along a direction; `None` if there is none.

        Args:
            pick: see `slopes`.
            rate: step length.
            limits: resource limits.
        """

        def other(obj: TorchObject, name: str, tensor: Tensor) -> Any:
            slope = pick(obj, name, tensor)
            return None if slope is None else tensor.numpy().astype("f8") + rate * slope.astype("f8")

        links = []
        for link in self.links:
            layer = _rebuilt(link.layer, other, limits)
            links.append(Link(layer or link.layer, link.wrap, link.in_place))
        return Chain(self.start, tuple(links))

    def unit_step(self, slopes: list[dict[str, torch.Tensor]]) -> float:
        """Return a rate that changes the weights by about a ten-thousandth."""
        size = sum(float(item.square().sum()) for link in self.links for item in link.layer.module.parameters())
        slope = sum(float(item.square().sum()) for named in slopes for item in named.values())
        return 1e-4 * (size / slope) ** 0.5 if size and slope else 1e-6

    def run(self, slopes: list[dict[str, torch.Tensor]], rate: float) -> Values:
        """Run all layers with their weights changed by `rate` along `slopes`.

        Raises:
            NotRunError: a layer does not accept its input.
        """
        value = self.start
        for place, (link, named) in enumerate(zip(self.links, slopes)):
            given = link.wrap(value) if link.wrap and place else value
            value = link.layer.run(given, _moved(link.layer.module, named, rate))
        return value


def _rebuilt(
    layer: LiveLayer, change: Callable[[TorchObject, str, Tensor], Any], limits: Limits, zeros: bool = False
) -> LiveLayer | None:
    """Return a layer rebuilt with other weights, or with zeros for unchanged ones; `None` if none changes."""

    changed = False

    def numbers(obj: TorchObject, name: str, tensor: Tensor) -> Any:
        nonlocal changed
        found = change(obj, name, tensor)
        changed = changed or found is not None
        return tensor.numpy() * 0 if found is None and zeros else found

    other = with_weights(layer.obj, numbers)
    if other is None or not changed:
        return None
    try:
        return LiveLayer.build(other, "root", layer.unit, limits)
    except T7BridgeError:
        return None


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
    layer: LiveLayer | None,
    value: Values,
    wrap: Callable[[Any], Any] | None,
    computed: bool,
    in_place: bool,
) -> Chain | None:
    """Return the chain with one more layer, or a new one if the input is recorded.

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
