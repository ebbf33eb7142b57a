"""Single layers of Lua models, run in double precision on recorded values, and estimates of Lua's rounding.

A layer's result in double precision is the reference. Lua computed in the element type of the file, so its result may
differ by rounding: for layers that are sums of products by about u * sqrt(n) * sqrt(sum (w x)²), for others by as
much as the result changes when inputs and weights change in their last place (u is the unit roundoff, n the number of
terms). May import graph, nn and torchmodules.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

import torch
from attrs import evolve, field
from torch import nn

from ...data import define
from ...errors import ModelError
from ...graph.lua import Table, TorchObject
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.fields import Fields
from ...nn.registry import Traits, traits_of
from ...torchmodules.build import live_module
from .recorded import UNIT
from .runs import base_name

Values = Any
"""A torch tensor, a float, or a list of these."""

DRAWS = 6
"""Last-place perturbations that estimate a standard deviation: to within 1/sqrt(2 * DRAWS), 30 %."""
TINY = 1e-300
"""Avoids division by zero expected errors."""
_SUMS = [
    "Linear",
    "LinearNoBias",
    "SpatialConvolution",
    "SpatialConvolutionMM",
    "SpatialConvolutionMap",
    "SpatialConvolutionLocal",
    "SpatialDilatedConvolution",
    "SpatialFullConvolution",
    "SpatialFullConvolutionMap",
    "SpatialSubSampling",
    "SpatialDepthWiseConvolution",
    "TemporalConvolution",
    "TemporalRowConvolution",
    "TemporalSubSampling",
    "VolumetricConvolution",
    "VolumetricDilatedConvolution",
    "VolumetricFullConvolution",
    "CMul",
    "CAdd",
    "Add",
    "Mul",
    "SpatialConvolutionSparse",
    "SpatialConvolutionTable",
]
"""Layers whose output is a sum of products of weights and inputs."""
_NORMALIZING = ("BatchNormalization", "SpatialBatchNormalization", "VolumetricBatchNormalization")
"""Layers that in newer releases use their running statistics for a batch of one, in training too.

Source: nn 8726825 `BatchNormalization.lua`, `self.train and (input:size(1) > 1)`.
"""
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a module raises for an input that it does not accept."""


class NotRunError(Exception):
    """A layer cannot be run on a recorded value; the message says why."""


# Values


def to_torch(value: Any) -> Values:
    """Return recorded values as tensors of torch."""
    if isinstance(value, list):
        return [to_torch(item) for item in value]
    return torch.from_numpy(value.numpy().copy()) if isinstance(value, Tensor) else value


def flat(value: Values) -> Iterator[torch.Tensor]:
    """Return the tensors of a value, in order; numbers as tensors of one element."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (int, float)):
        yield torch.tensor(float(value), dtype=torch.float64)


def doubles(value: Values) -> list[torch.Tensor]:
    """Return the tensors of a value in double precision."""
    return [item.double() for item in flat(value)]


def mapped(value: Values, change: Callable[..., Any], *others: Values) -> Values:
    """Return a value with a function applied to each of its tensors, and to those at the same places of others."""
    if isinstance(value, (list, tuple)):
        return [mapped(item, change, *rest) for item, *rest in zip(value, *others)]
    return change(value, *others) if isinstance(value, torch.Tensor) else value


def drawn(spec: Any, seed: int) -> Values:
    """Return example inputs: seeded normal numbers, integers in their bounds, or their values, in double precision."""
    if isinstance(spec, list):
        return [drawn(item, seed + 1 + place) for place, item in enumerate(spec)]
    generator = torch.Generator().manual_seed(seed)
    if spec.value is not None:
        return spec.value.torch().double().contiguous()
    if spec.bounds:
        return torch.randint(spec.bounds[0], spec.bounds[1] + 1, spec.shape, generator=generator).double()
    return torch.randn(spec.shape, generator=generator, dtype=torch.float64)


# Layers


@define(eq=False)
class LiveLayer:
    """One Lua module, live, in double precision, in the mode stored in the file.

    Attributes:
        obj: the module in Lua.
        module: the live module in double precision.
        unit: unit roundoff of the element type that Lua computed in.
        other: tensors in place of the module's own, by name.
    """

    obj: TorchObject
    module: nn.Module
    unit: float
    other: dict[str, torch.Tensor] = field(factory=dict, repr=False)

    @classmethod
    def build(cls, obj: TorchObject, path: str, unit: float, limits: Limits = DEFAULT_LIMITS) -> LiveLayer:
        """Build a module on its own.

        Raises:
            T7BridgeError: it has no PyTorch module, or its fields are inconsistent.
        """
        module = live_module(obj, path, limits=limits)
        module.train(obj.get("train") is True)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        return cls(obj, module.double(), unit)

    def variant(self, changes: dict[str, Any], limits: Limits = DEFAULT_LIMITS) -> LiveLayer:
        """Return the layer with some fields changed.

        Raises:
            T7BridgeError: the fields are inconsistent.
        """
        return LiveLayer.build(with_fields(self.obj, changes), "root", self.unit, limits)

    def moved(self, other: dict[str, torch.Tensor]) -> LiveLayer:
        """Return the layer with other tensors in place of some of its own."""
        return evolve(self, other={**self.other, **other})

    @property
    def name(self) -> str:
        """The class in Lua, without its package."""
        return base_name(self.obj.class_name)

    @property
    def traits(self) -> Traits:
        """The facts about its class in PyTorch."""
        kind = type(self.module)
        home = "torch.nn" if kind.__module__.startswith("torch.nn.") else kind.__module__
        return traits_of(f"{home}.{kind.__qualname__}")

    @property
    def is_sum(self) -> bool:
        """True if the output is a sum of products of weights and inputs."""
        return self.name in _SUMS

    @property
    def numbers(self) -> dict[str, torch.Tensor]:
        """The weights and buffers with fractions, without index tables."""
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        kept = {name: item for name, item in named.items() if item.is_floating_point() and "connTable" not in name}
        return {**kept, **self.other}

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The weights: what an optimizer moves."""
        return {name: self.other.get(name, item) for name, item in self.module.named_parameters()}

    def run(self, *values: Values) -> Values:
        """Run the layer, or a criterion on an input and a target; these are not modified.

        Raises:
            NotRunError: the layer does not accept the values.
        """
        for inside in self.module.modules():
            if "state" in vars(inside):
                vars(inside)["state"] = None
        # In-place layers must not change the caller's tensors, nor leaf tensors that require gradients.
        given = tuple(mapped(value, lambda item: item * 1 if item.requires_grad else item.clone()) for value in values)
        drawn = self._drawn(given[0])
        if drawn is not None:
            return drawn
        single = self.module.training and self._is_single(given[0])
        try:
            if single:
                self.module.eval()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.func.functional_call(self.module, self.other, given)
        except _REFUSALS as error:
            text = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise NotRunError(f"does not accept the recorded input: {text}") from error
        finally:
            if single:
                self.module.train()

    def _is_single(self, value: Values) -> bool:
        """Return whether this is a batch of one whose own statistics were not used."""
        mean = self.obj.get("save_mean")
        if self.name not in _NORMALIZING or not isinstance(value, torch.Tensor) or not isinstance(mean, Tensor):
            return False
        if value.dim() < 2 or value.shape[0] != 1 or mean.numel != value.shape[1]:
            return False
        own, kept = value.detach().double().transpose(0, 1).flatten(1).mean(1), to_torch(mean).double().reshape(-1)
        # The mean of a batch is recorded to more than three digits; one that was not used is of another pass.
        return bool(((own - kept).abs() > 1e-3 * value.detach().abs().max()).any())

    def _drawn(self, value: Values) -> Values:
        """Return the result with the recorded noise; `None` for layers without random numbers."""
        always = self.obj.get("stochasticInference") is True or self.obj.get("stochastic_inference") is True
        if not (self.module.training or always) or not isinstance(value, torch.Tensor):
            return None
        replay, noise = self.traits.replay, self.obj.get("noise")
        if replay is None or self.obj.get("p") == 0.0:
            return None
        if not isinstance(noise, Tensor) or not noise.numel:
            raise NotRunError("is random, and its random numbers are not recorded")
        try:
            return replay(Fields(self.obj), value, to_torch(noise).to(value.dtype))
        except (RuntimeError, ModelError) as error:
            raise NotRunError("its recorded noise does not match its input") from error

    def run_single(self, value: Values) -> Values:
        """Run the layer in single precision, or in double precision if that is Lua's; see `run`."""
        kind = torch.float64 if self.unit <= UNIT["float64"] else torch.float32
        narrow = self.moved({name: item.to(kind) for name, item in self.numbers.items()})
        return narrow.run(mapped(value, lambda item: item.to(kind) if item.is_floating_point() else item))

    def shapes(self, value: Values) -> list[tuple[int, ...]] | None:
        """Return the shapes of the outputs without computing; `None` if impossible."""
        try:
            meta = copy.deepcopy(self.module).to("meta")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = meta(mapped(value, lambda tensor: tensor.to("meta")))
        except Exception:  # only a preview: `run` reports the error
            return None
        return [tuple(tensor.shape) for tensor in flat(found)]

    def terms(self) -> int:
        """Return the largest number of products summed in an element of the output."""
        side = 1 if "Full" in self.name else 0
        tensors = [item for item in [*self.module.parameters(), *self.module.buffers()] if item.dim() > 1]
        return max((item.numel() // max(item.shape[side], 1) for item in tensors), default=1) or 1

    def squared(self) -> LiveLayer:
        """Return the layer with all weights squared: with squared inputs it returns the sums of squared terms."""
        return self.moved({name: item.square() for name, item in self.numbers.items()})


def with_fields(obj: TorchObject, changes: dict[str, Any]) -> TorchObject:
    """Return a module with some fields changed."""
    assert obj.fields is not None
    fields = Table(list(obj.fields.raw_keys), list(obj.fields.raw_values))
    for name, value in changes.items():
        fields[name] = value
    return TorchObject(obj.class_name, obj.version, fields, obj.payload)


# What is computed of a layer

Compute = Callable[[LiveLayer, Values], "list[torch.Tensor]"]
"""Tensors computed by a layer from values: its output, or the gradient with respect to its input."""


def outputs(layer: LiveLayer, value: Values) -> list[torch.Tensor]:
    """Return the tensors of a layer's output.

    Raises:
        NotRunError: the layer does not accept the value.
    """
    return doubles(layer.run(value))


def nearest_outputs(layer: LiveLayer, value: Values) -> list[torch.Tensor]:
    """Return the outputs of a linear layer that are closest to recorded ones: those of the input solved for from these.

    Args:
        layer: the layer, of more outputs than inputs.
        value: a list with the recorded output.
    """
    weight, bias = layer.weights["weight"], layer.weights.get("bias", torch.zeros(()))
    found = torch.linalg.lstsq(weight, (value[0] - bias).reshape(-1, weight.shape[0]).T).solution
    return [((weight @ found).T + bias).reshape(value[0].shape)]


def gradients(layer: LiveLayer, value: Values) -> list[torch.Tensor]:
    """Return the gradients with respect to the tensors of the input.

    Args:
        layer: the layer.
        value: a pair: its input, and the gradient with respect to its output.

    Raises:
        NotRunError: there is no gradient, or the layer does not accept the values.
    """
    with torch.enable_grad():
        given = mapped(value[0], lambda item: item.clone().requires_grad_() if item.is_floating_point() else item)
        wanted = [item for item in flat(given) if item.requires_grad]
        found, slopes = list(flat(layer.run(given))), list(flat(value[1]))
        pairs = [(out, slope) for out, slope in zip(found, slopes) if out.requires_grad]
        if not wanted or not pairs or len(found) != len(slopes) or any(a.numel() != b.numel() for a, b in pairs):
            raise NotRunError("its recorded gradOutput does not match its output")
        try:
            several = torch.autograd.grad(
                [out for out, _ in pairs],
                wanted,
                [slope.to(out.dtype).reshape(out.shape) for out, slope in pairs],
                allow_unused=True,
                create_graph=any(item.requires_grad for item in layer.other.values()),
            )
        except RuntimeError as error:
            raise NotRunError(f"has no gradient: {str(error).splitlines()[0][:150]}") from error
    return [torch.zeros_like(one) if item is None else item for one, item in zip(wanted, several)]


def rounding(layer: LiveLayer, value: Values, found: list[torch.Tensor], compute: Compute) -> list[torch.Tensor]:
    """Return the expected rounding error of each element that a layer computes, as a standard deviation.

    Args:
        layer: the layer.
        value: what it is computed from.
        found: the computed tensors.
        compute: how.
    """
    unit, root = layer.unit, sqrt(layer.terms())
    if layer.is_sum and compute is not nearest_outputs:
        try:
            squares = compute(layer.squared(), mapped(value, torch.square))
            return [
                0.5 * unit * root * (square.clamp(min=0).sqrt() + one.abs()) + TINY
                for square, one in zip(squares, found, strict=True)
            ]
        except (NotRunError, ValueError):
            pass
    total = [torch.zeros_like(one) for one in found]
    draws = DRAWS if sum(one.numel() for one in found) < 1 << 18 else 2
    for seed in range(draws):
        draw = torch.Generator().manual_seed(seed)

        def disturbed(item: torch.Tensor, draw: torch.Generator = draw) -> torch.Tensor:
            # Whole numbers are exact: classes, rows, positions.
            if not item.is_floating_point() or bool((item == item.round()).all()):
                return item
            return item * (1 + unit * torch.randn(item.shape, generator=draw, dtype=item.dtype))

        other = layer.moved({name: disturbed(item) for name, item in layer.numbers.items()})
        for into, one, two in zip(total, found, compute(other, mapped(value, disturbed))):
            if one.shape == two.shape:
                into += (two.double() - one).square()
    return [
        root * (sums / draws).sqrt() + unit * (0.5 * one.abs() + 0.05 * _mean_size(one)) + TINY
        for sums, one in zip(total, found)
    ]


def spread(layer: LiveLayer, value: Values, scales: Values, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Propagate errors of the inputs, given as standard deviations, to each element of the output."""
    total = [torch.zeros_like(one) for one in found]
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)

        def moved(item: torch.Tensor, scale: torch.Tensor, seed: int = seed, draw: Any = draw) -> torch.Tensor:
            # All up, all down, and twice each by chance.
            sign: Any = 1 - 2 * seed if seed < 2 else torch.randint(0, 2, item.shape, generator=draw) * 2 - 1
            return item + sign * scale if item.is_floating_point() else item

        for into, one, other in zip(total, found, outputs(layer, mapped(value, moved, scales))):
            if one.shape == other.shape:
                torch.maximum(into, (other - one).abs(), out=into)
    return total


def _mean_size(tensor: torch.Tensor) -> torch.Tensor:
    finite = tensor[torch.isfinite(tensor)]
    return finite.square().mean().sqrt() if finite.numel() else torch.zeros((), dtype=tensor.dtype)
