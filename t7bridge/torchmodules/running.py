"""Single layers of Lua models, run in double precision on recorded values, and estimates of float rounding.

A layer's result in double precision is the reference. Lua computed in the element type of the file, so its result may
differ by rounding: for layers that are sums of products by about u * sqrt(n) * sqrt(sum (w x)²), for others by as
much as the result changes when inputs and weights change in their last place (u is the unit roundoff, n the number of
terms). May import nn and below.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from math import prod, sqrt
from typing import Any

import torch
from attrs import evolve, field
from torch import nn

from ..data import define
from ..errors import ModelError
from ..graph.lua import Table, TorchObject
from ..graph.tensor import Tensor
from ..lazy import np
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.fields import Fields
from ..nn.registry import Traits, traits_of
from .build import live_module

Values = Any
"""A torch tensor, a float, or a list of these."""

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11}
"""Unit roundoff of the element types that Lua computes in."""
GRADIENTS = {"weight": "gradWeight", "bias": "gradBias", "v": "gradV", "g": "gradG", "diagCov": "gradDiagCov"}
"""Fields with weights, and those with their gradients. Source: nn 8726825 `Linear.lua`,
`WeightNorm.lua`, `WeightedEuclidean.lua`.
"""
DRAWS = 6
"""Last-place perturbations that estimate a standard deviation: to within 1/sqrt(2 * DRAWS), 30 %."""
TINY = 1e-300
"""Avoids division by zero expected errors."""

_SUMS_NAMES = """
Linear LinearNoBias SpatialConvolution SpatialConvolutionMM SpatialConvolutionMap SpatialConvolutionLocal
SpatialDilatedConvolution SpatialFullConvolution SpatialFullConvolutionMap SpatialSubSampling
SpatialDepthWiseConvolution TemporalConvolution TemporalRowConvolution TemporalSubSampling VolumetricConvolution
VolumetricDilatedConvolution VolumetricFullConvolution CMul CAdd Add Mul SpatialConvolutionSparse
SpatialConvolutionTable
"""
SUMS = frozenset(_SUMS_NAMES.split())
"""Layers whose output is a sum of products of weights and inputs."""
_NORMALIZING = frozenset(("BatchNormalization", "SpatialBatchNormalization", "VolumetricBatchNormalization"))
"""Layers that in newer releases use their running statistics for a batch of one, in training too.

Source: nn 8726825 `BatchNormalization.lua`, `self.train and (input:size(1) > 1)`.
"""
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a module raises for an input that it does not accept."""


class NotRunError(Exception):
    """A layer cannot be run on a recorded value; the message says why."""


def to_torch(value: Any, dtype: torch.dtype | None = None) -> Values:
    """Return recorded values as tensors of torch; floating point ones in `dtype` if given."""
    if isinstance(value, list):
        return [to_torch(item, dtype) for item in value]
    if isinstance(value, Tensor):
        found = torch.from_numpy(value.numpy().copy())
        return found.to(dtype) if dtype is not None and found.is_floating_point() else found
    return value


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


def mapped(value: Values, change: Callable[[Any], Any]) -> Values:
    """Return a value with a function applied to each of its tensors."""
    if isinstance(value, (list, tuple)):
        return [mapped(item, change) for item in value]
    return change(value) if isinstance(value, torch.Tensor) else value


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
        return self.obj.class_name.rpartition(".")[2]

    @property
    def facts(self) -> Traits:
        """The facts about its class in PyTorch."""
        kind = type(self.module)
        home = "torch.nn" if kind.__module__.startswith("torch.nn.") else kind.__module__
        return traits_of(f"{home}.{kind.__qualname__}")

    @property
    def is_sum(self) -> bool:
        """True if the output is a sum of products of weights and inputs."""
        return self.name in SUMS

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

    def run(self, value: Values) -> Values:
        """Run the layer; the input is not modified.

        Raises:
            NotRunError: the layer does not accept the value.
        """
        for inside in self.module.modules():
            if "state" in vars(inside):
                vars(inside)["state"] = None
        # In-place layers must not change the caller's tensors, nor leaf tensors that require gradients.
        given = mapped(value, lambda item: item * 1 if item.requires_grad else item.clone())
        drawn = self._drawn(given)
        if drawn is not None:
            return drawn
        alone = self.module.training and self._is_alone(given)
        try:
            if alone:
                self.module.eval()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.func.functional_call(self.module, self.other, (given,))
        except _REFUSALS as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise NotRunError(f"does not accept the recorded input: {said}") from error
        finally:
            if alone:
                self.module.train()

    def loss(self, value: Values, target: Values) -> Values:
        """Run a criterion.

        Raises:
            NotRunError: it does not accept the values.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.module(value, target)
        except _REFUSALS as error:
            raise NotRunError(f"does not accept the target: {str(error)[:200]}") from error

    def _is_alone(self, value: Values) -> bool:
        """Return whether this is a batch of one whose own statistics were not used."""
        mean = self.obj.get("save_mean")
        if self.name not in _NORMALIZING or not isinstance(value, torch.Tensor) or not isinstance(mean, Tensor):
            return False
        if value.dim() < 2 or value.shape[0] != 1 or mean.numel != value.shape[1]:
            return False
        own = value.detach().double().transpose(0, 1).flatten(1).mean(1)
        # The mean of a batch is recorded to the precision of its elements; one that was not used is of another pass.
        size = 1e-3 * float(value.detach().abs().max())
        return bool(((own - to_torch(mean).double().reshape(-1)).abs() > size).any())

    def _drawn(self, value: Values) -> Values:
        """Return the result with the recorded noise; `None` for layers without random numbers."""
        replay, noise = self.facts.replay, self.obj.get("noise")
        always = self.obj.get("stochasticInference") is True or self.obj.get("stochastic_inference") is True
        if replay is None or not (self.module.training or always):
            return None
        if not isinstance(value, torch.Tensor) or self.obj.get("p") == 0.0:
            return None
        if not isinstance(noise, Tensor) or not noise.numel:
            raise NotRunError("is random, and its random numbers are not recorded")
        try:
            return replay(Fields(self.obj), value, to_torch(noise, value.dtype))
        except (RuntimeError, ModelError) as error:
            raise NotRunError("its recorded noise does not match its input") from error

    def run_single(self, value: Values) -> Values:
        """Run the layer in single precision, or in double precision if that is Lua's; see `run`."""
        kind = torch.float64 if self.unit <= UNIT[torch.float64] else torch.float32
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
        most = 1
        for item in [*self.module.parameters(), *self.module.buffers()]:
            if item.dim() > 1:
                most = max(most, item.numel() // max(item.shape[1 if "Full" in self.name else 0], 1))
        return most

    def squared(self) -> LiveLayer:
        """Return the layer with all weights squared: with squared inputs it returns the sums of squared terms."""
        return self.moved({name: item.square() for name, item in self.numbers.items()})

    def disturbed(self, seed: int) -> LiveLayer:
        """Return the layer with all weights changed in their last place."""
        numbers = self.numbers.items()
        return self.moved(
            {name: item * _noise(item, self.unit, seed + 31 * at) for at, (name, item) in enumerate(numbers)}
        )


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
    draws = DRAWS if elements(found) < 1 << 18 else 2
    for seed in range(draws):
        for into, one, other in zip(total, found, compute(layer.disturbed(seed), _disturbed(value, unit, seed))):
            if one.shape == other.shape and one.is_floating_point():
                into += (other.double() - one).square()
    return [
        root * (sums / draws).sqrt() + unit * (0.5 * one.abs() + 0.05 * _typical(one)) + TINY
        for sums, one in zip(total, found)
    ]


def spread(layer: LiveLayer, value: Values, scales: Values, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Propagate errors of the inputs, given as standard deviations, to each element of the output."""
    total = [torch.zeros_like(one) for one in found]
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)

        def signed(item: torch.Tensor, seed: int = seed, draw: torch.Generator = draw) -> torch.Tensor:
            if seed < 2:
                return item * (1 - 2 * seed)
            return item * (torch.randint(0, 2, item.shape, generator=draw) * 2 - 1)

        for into, one, other in zip(total, found, outputs(layer, _sum(value, mapped(scales, signed)))):
            if one.shape == other.shape:
                torch.maximum(into, (other - one).abs(), out=into)
    return total


def _sum(one: Values, other: Values) -> Values:
    if isinstance(one, (list, tuple)):
        return [_sum(left, right) for left, right in zip(one, other)]
    return one + other if isinstance(one, torch.Tensor) and one.is_floating_point() else one


def _typical(tensor: torch.Tensor) -> torch.Tensor:
    finite = tensor[torch.isfinite(tensor)]
    return finite.square().mean().sqrt() if finite.numel() else torch.zeros((), dtype=tensor.dtype)


def _noise(tensor: torch.Tensor, unit: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 7919 + tensor.numel())
    return 1 + unit * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)


def _disturbed(value: Values, unit: float, seed: int) -> Values:
    def moved(item: torch.Tensor) -> torch.Tensor:
        # Whole numbers are exact: classes, rows, positions.
        if not item.is_floating_point() or bool((item == item.round()).all()):
            return item
        return item * _noise(item, unit, seed)

    return mapped(value, moved)


def with_weights(
    obj: TorchObject, change: Callable[[TorchObject, str, Tensor], np.ndarray[Any, Any] | None]
) -> TorchObject | None:
    """Return a module with other numbers in place of its weights, inside it too.

    Args:
        obj: the module.
        change: the numbers, for a module, the name of a field, and the weights there; `None` keeps these.

    Returns:
        `None` where nothing is changed.
    """
    copies: dict[int, Any] = {}
    found = False
    stack: list[Any] = [obj]
    while stack:
        value = stack.pop()
        if id(value) in copies:
            continue
        if isinstance(value, Table):
            copies[id(value)] = Table(list(value.raw_keys), list(value.raw_values))
            stack += [item for item in value.raw_values if isinstance(item, (Table, TorchObject))]
        elif isinstance(value, TorchObject) and value.fields is not None:
            fields = Table(list(value.fields.raw_keys), list(value.fields.raw_values))
            copies[id(value)] = TorchObject(value.class_name, value.version, fields, value.payload)
            stack += [item for item in value.fields.raw_values if isinstance(item, (Table, TorchObject))]
            for name in GRADIENTS:
                here = value.get(name)
                if isinstance(here, Tensor) and here.numel and here.element.name.startswith("float"):
                    other = change(value, name, here)
                    if other is not None and other.shape == here.shape:
                        fields[name] = Tensor.from_numpy(other)
                        found = True
    for value in copies.values():
        table: Table = value.fields if isinstance(value, TorchObject) else value  # type: ignore[assignment]
        table.raw_values = [copies.get(id(item), item) for item in table.raw_values]
    copied: TorchObject = copies[id(obj)]
    return copied if found else None


def with_fields(obj: TorchObject, changes: dict[str, Any]) -> TorchObject:
    """Return a module with some fields changed."""
    assert obj.fields is not None
    fields = Table(list(obj.fields.raw_keys), list(obj.fields.raw_values))
    for name, value in changes.items():
        fields[name] = value
    return TorchObject(obj.class_name, obj.version, fields, obj.payload)


def elements(value: Values) -> int:
    """Return the number of elements of a value."""
    return sum(prod(tensor.shape) for tensor in flat(value))


def joined(values: list[Any], dim: int) -> torch.Tensor | None:
    """Return tensors concatenated along a dimension; `None` if they do not fit."""
    if not values or not all(isinstance(item, torch.Tensor) for item in values):
        return None
    try:
        return torch.cat(list(values), dim)
    except (IndexError, RuntimeError):
        return None


def seeded(size: tuple[int, ...], highest: int, seed: int) -> torch.Tensor:
    """Return normal random numbers, or integers from 1 to `highest` if given, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    if highest:
        return torch.randint(1, highest + 1, size, generator=generator).double()
    return torch.randn(size, generator=generator, dtype=torch.float64)
