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
from typing import TYPE_CHECKING, Any

import torch
from attrs import field
from torch import nn

from ..data import define
from ..graph.lua import Table, TorchObject
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, Limits
from .build import live_module

if TYPE_CHECKING:
    import numpy as np

Values = Any
"""A torch tensor, a float, or a list of these."""

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11}
"""Unit roundoff of the element types that Lua computes in."""
UNITS_BACK = {UNIT[torch.float64]: torch.float64, UNIT[torch.float32]: torch.float32}
"""The other way, for those that layers are run in."""
GRADIENTS = {"weight": "gradWeight", "bias": "gradBias", "v": "gradV", "g": "gradG", "diagCov": "gradDiagCov"}
"""Fields with weights, and those with their gradients. Source: nn 8726825 `Linear.lua`,
`WeightNorm.lua`, `WeightedEuclidean.lua`.
"""
FLOATING = frozenset(("float16", "float32", "float64"))
"""Names of element types that have fractions."""
DRAWS = 6
"""Number of last-place perturbations that estimate the effect of rounding."""
TINY = 1e-300
"""Avoids division by zero expected errors."""
MAX_ELEMENTS = 1 << 28
"""Maximum number of elements of an output."""

_SUMS_NAMES = """
Linear LinearNoBias SpatialConvolution SpatialConvolutionMM SpatialConvolutionMap SpatialConvolutionLocal
SpatialDilatedConvolution SpatialFullConvolution SpatialFullConvolutionMap SpatialSubSampling
SpatialDepthWiseConvolution TemporalConvolution TemporalRowConvolution TemporalSubSampling VolumetricConvolution
VolumetricDilatedConvolution VolumetricFullConvolution CMul CAdd Add Mul SpatialConvolutionSparse
SpatialConvolutionTable
"""
SUMS = frozenset(_SUMS_NAMES.split())
"""Layers whose output is a sum of products of weights and inputs."""
_DRAWN = {"Dropout": "times", "SpatialDropout": "times", "VolumetricDropout": "times", "WhiteNoise": "plus"}
"""Layers that store their last random numbers in `noise`, and their use of them in training."""
_NORMALIZING = frozenset(("BatchNormalization", "SpatialBatchNormalization", "VolumetricBatchNormalization"))
"""Layers that in newer releases use their running statistics for a batch of one, in training too.

Source: nn 8726825 `BatchNormalization.lua`, `self.train and (input:size(1) > 1)`.
"""


class NotRunError(Exception):
    """A layer cannot be run on a recorded value; the message says why.

    Attributes:
        refused: whether the layer does not accept the value, by shape or range.
    """

    refused = False


class RefusedError(NotRunError):
    """A layer does not accept a recorded value."""

    refused = True


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


def mapped(value: Values, change: Callable[[torch.Tensor], torch.Tensor]) -> Values:
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
    """

    obj: TorchObject
    module: nn.Module
    unit: float
    _narrow: nn.Module | None = field(default=None, repr=False)

    @classmethod
    def build(cls, obj: TorchObject, path: str, unit: float, limits: Limits = DEFAULT_LIMITS) -> LiveLayer:
        """Build a module on its own.

        Raises:
            T7BridgeError: it has no PyTorch module, or its fields are inconsistent.
        """
        module = live_module(obj, path, limits=limits)
        module.train(obj.get("train") is True)
        for inside in module.modules():
            if "state" in vars(inside):
                vars(inside)["state"] = None
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        return cls(obj, module.double(), unit)

    @classmethod
    def variant(cls, layer: LiveLayer, changes: dict[str, Any], limits: Limits = DEFAULT_LIMITS) -> LiveLayer:
        """Return a layer with some fields changed.

        Raises:
            T7BridgeError: the fields are inconsistent.
        """
        return cls.build(with_fields(layer.obj, changes), "root", layer.unit, limits)

    @property
    def name(self) -> str:
        """The class in Lua, without its package."""
        return self.obj.class_name.rpartition(".")[2]

    @property
    def is_sum(self) -> bool:
        """True if the output is a sum of products of weights and inputs."""
        return self.name in SUMS

    def run(self, value: Values, module: nn.Module | None = None) -> Values:
        """Run the layer; the input is not modified.

        Raises:
            NotRunError: the layer does not accept the value.
        """
        module = module or self.module
        for inside in module.modules():
            if "state" in vars(inside):
                vars(inside)["state"] = None
        given = mapped(value, torch.clone)
        drawn = self._drawn(given, module)
        if drawn is not None:
            return drawn
        alone = module.training and self._is_alone(given)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return module.train(not alone and module.training)(given)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
            raise RefusedError(f"does not accept the recorded input: {str(e).strip().splitlines()[0][:200]}") from e
        finally:
            if alone:
                module.train()

    def loss(self, value: Values, target: Values) -> Values:
        """Run a criterion.

        Raises:
            NotRunError: it does not accept the values.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.module(value, target)
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise RefusedError(f"does not accept the target: {str(error).strip().splitlines()[0][:200]}") from error

    def _is_alone(self, value: Values) -> bool:
        """Return whether this is a batch of one whose own statistics were not used."""
        mean = self.obj.get("save_mean")
        if self.name not in _NORMALIZING or not isinstance(value, torch.Tensor) or not isinstance(mean, Tensor):
            return False
        if value.dim() < 2 or value.shape[0] != 1 or mean.numel != value.shape[1]:
            return False
        own = value.double().transpose(0, 1).flatten(1).mean(1)
        size = 1e-3 * float(value.abs().max())
        return bool(((own - to_torch(mean).double().reshape(-1)).abs() > size).any())

    def _drawn(self, value: Values, module: nn.Module) -> Values:
        """Return the result with the recorded noise; `None` for layers without random numbers."""
        kind = _DRAWN.get(self.name)
        always = self.obj.get("stochasticInference") is True or self.obj.get("stochastic_inference") is True
        if not (module.training or always):
            return None
        noise = self.obj.get("noise")
        if self.name == "RReLU" and isinstance(noise, Tensor) and isinstance(value, torch.Tensor):
            slope = to_torch(noise, value.dtype)
            return torch.where(value > 0, value, value * slope) if slope.shape == value.shape else None
        if kind is None or not isinstance(value, torch.Tensor) or self.obj.get("p") == 0.0:
            return None
        if not isinstance(noise, Tensor) or not noise.numel:
            raise NotRunError("is random, and its random numbers are not recorded")
        mask = to_torch(noise, value.dtype)
        if kind == "times":
            # The noise tells what was kept; by what that was multiplied, the options tell.
            p = self.obj.get("p")
            scaled = self.name == "Dropout" and self.obj.get("v2") is True and isinstance(p, float) and p != 1
            mask = (mask != 0) * (1 / (1 - p) if scaled else 1.0)
        try:
            return value * mask if kind == "times" else value + mask
        except RuntimeError as error:
            raise NotRunError("its recorded noise does not match its input") from error

    def run_narrow(self, value: Values) -> Values:
        """Run the layer in Lua's precision, or in double precision if that is Lua's; see `run`."""
        module = self.narrow()
        dtype = next((item.dtype for item in module.parameters()), None) or UNITS_BACK.get(self.unit, torch.float32)
        return self.run(mapped(value, lambda item: item.to(dtype) if item.is_floating_point() else item), module)

    def narrow(self) -> nn.Module:
        """The layer in Lua's precision."""
        if self._narrow is None:
            dtype = next((kind for kind, unit in UNIT.items() if unit == self.unit), torch.float32)
            dtype = torch.float32 if dtype == torch.float16 else dtype
            self._narrow = copy.deepcopy(self.module).to(dtype)
        return self._narrow

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
        for parameter in [*self.module.parameters(), *self.module.buffers()]:
            if parameter.dim() > 1:
                rows = parameter.shape[1] if "Full" in self.name else parameter.shape[0]
                most = max(most, parameter.numel() // max(rows, 1))
        return most

    def squared(self) -> nn.Module:
        """Return the layer with all weights squared: with squared inputs it returns the sums of squared terms."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            for parameter in _numbers(module):
                parameter.copy_(parameter.square())
        return module

    def scale(self, value: Values, output: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the expected rounding error of each element of the output, as a standard deviation.

        Args:
            value: the input.
            output: the tensors of the output.
        """
        root = sqrt(self.terms())
        if self.is_sum:
            try:
                squares = list(flat(self.run(mapped(value, torch.square), self.squared())))
                return [
                    0.5 * self.unit * root * (square.clamp(min=0).sqrt() + out.abs()) + TINY
                    for square, out in zip(squares, output, strict=True)
                ]
            except (NotRunError, ValueError):
                pass
        total = [torch.zeros_like(out) for out in output]
        draws = DRAWS if elements(output) < 1 << 18 else 2
        for number in range(draws):
            changed = list(flat(self.run(_disturbed(value, self.unit, number), _disturbed_module(self, number))))
            for into, out, other in zip(total, output, changed):
                if out.shape == other.shape and out.is_floating_point():
                    into += (other.double() - out).square()
        return [
            root * (sums / draws).sqrt() + 0.5 * self.unit * out.abs() + 0.05 * self.unit * _typical(out) + TINY
            for sums, out in zip(total, output)
        ]


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


def _disturbed_module(layer: LiveLayer, seed: int) -> nn.Module:
    module = copy.deepcopy(layer.module)
    with torch.no_grad():
        for number, tensor in enumerate(_numbers(module)):
            tensor.mul_(_noise(tensor, layer.unit, seed + 31 * number))
    return module


def _numbers(module: nn.Module) -> list[torch.Tensor]:
    """Return the weights and buffers of a module, without index tables."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return [item for name, item in named if item.is_floating_point() and not name.endswith("connTable")]


def spread(layer: LiveLayer, value: Values, scales: Values, output: list[torch.Tensor]) -> list[torch.Tensor]:
    """Propagate errors of the inputs, given as standard deviations, to each element of the output."""
    total = [torch.zeros_like(out) for out in output]
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        signs = [1.0, -1.0, None, None][seed]

        def moved(item: torch.Tensor, sign: float | None = signs, draw: torch.Generator = generator) -> torch.Tensor:
            if sign is not None:
                return item * sign
            return item * (torch.randint(0, 2, item.shape, generator=draw) * 2 - 1)

        found = list(flat(layer.run(_sum(value, mapped(scales, moved)))))
        for into, out, other in zip(total, output, found):
            if out.shape == other.shape:
                torch.maximum(into, (other - out).abs(), out=into)
    return total


def _sum(one: Values, other: Values) -> Values:
    if isinstance(one, (list, tuple)):
        return [_sum(left, right) for left, right in zip(one, other)]
    return one + other if isinstance(one, torch.Tensor) and one.is_floating_point() else one


def with_weights(
    obj: TorchObject, change: Callable[[TorchObject, str, Tensor], np.ndarray[Any, Any] | None]
) -> TorchObject | None:
    """A module with other numbers in place of its weights, inside it too.

    Args:
        obj: the module.
        change: the numbers, for a module, the name of a field, and the weights there; `None` keeps these.

    Returns:
        `None` where nothing is changed, or where numbers are not as many as weights.
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
                if not isinstance(here, Tensor) or not here.numel or here.element.name not in FLOATING:
                    continue
                other = change(value, name, here)
                if other is not None and other.shape == here.shape:
                    fields[name] = Tensor.from_numpy(other)
                    found = True
    for value in copies.values():
        table: Table = value.fields if isinstance(value, TorchObject) else value  # type: ignore[assignment]
        table.raw_values = [copies.get(id(item), item) for item in table.raw_values]
    copied: TorchObject = copies[id(obj)]
    return copied if found else None


def with_gradients(obj: TorchObject) -> TorchObject | None:
    """A module with the recorded gradients of its weights in place of the weights, inside it too; `None` where there
    are none.
    """
    complete = True

    def gradient(inside: TorchObject, name: str, tensor: Tensor) -> np.ndarray[Any, Any] | None:
        nonlocal complete
        slope = inside.get(GRADIENTS[name])
        if isinstance(slope, Tensor) and slope.shape == tensor.shape:
            return slope.numpy()
        complete = False
        return None

    found = with_weights(obj, gradient)
    return found if complete else None


def with_fields(obj: TorchObject, changes: dict[str, Any]) -> TorchObject:
    """Return a module with some fields changed."""
    assert obj.fields is not None
    fields = Table(list(obj.fields.raw_keys), list(obj.fields.raw_values))
    for name, value in changes.items():
        fields[name] = value
    return TorchObject(obj.class_name, obj.version, fields, obj.payload)


def backward(layer: LiveLayer, value: Values, grad_output: Values) -> list[torch.Tensor | None]:
    """Return the gradients with respect to the tensors of the input.

    Raises:
        NotRunError: there is no gradient, or the layer does not accept the values.
    """
    given = mapped(value, lambda item: item.clone().requires_grad_() if item.is_floating_point() else item)
    wanted = [item for item in flat(given) if item.requires_grad]
    if not wanted:
        raise NotRunError("its input has no gradient")
    # In-place layers must not change leaf tensors that require gradients.
    through = mapped(given, lambda item: item * 1)
    outputs = list(flat(_run_kept(layer, through)))
    slopes = list(flat(grad_output))
    if len(outputs) != len(slopes):
        raise NotRunError("its recorded gradOutput does not match its output")
    pairs = [(out, slope) for out, slope in zip(outputs, slopes) if out.requires_grad]
    if not pairs or any(out.numel() != slope.numel() for out, slope in pairs):
        raise NotRunError("its recorded gradOutput does not match its output")
    try:
        return list(
            torch.autograd.grad(
                [out for out, _ in pairs],
                wanted,
                [slope.to(out.dtype).reshape(out.shape) for out, slope in pairs],
                allow_unused=True,
            )
        )
    except RuntimeError as error:
        raise NotRunError(f"has no gradient: {str(error).splitlines()[0][:150]}") from error


def _run_kept(layer: LiveLayer, value: Values) -> Values:
    drawn = layer._drawn(value, layer.module)
    if drawn is not None:
        return drawn
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return layer.module(value)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise RefusedError(f"does not accept the recorded input: {str(error).strip().splitlines()[0][:200]}") from error


def elements(value: Values) -> int:
    """Return the number of elements of a value."""
    return sum(prod(tensor.shape) for tensor in flat(value))


SINGLE = torch.float32
"""Single precision."""


def joined(values: list[Any], dim: int) -> torch.Tensor | None:
    """Return tensors concatenated along a dimension; `None` if they do not fit."""
    if not values or not all(isinstance(item, torch.Tensor) for item in values):
        return None
    try:
        return torch.cat(list(values), dim)
    except (IndexError, RuntimeError):
        return None


def backward_scale(
    layer: LiveLayer, value: Values, grad_output: Values, found: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the expected rounding error of each element of a gradient with respect to the input."""
    root = sqrt(layer.terms())
    if layer.is_sum and len(found) == 1:
        squares = LiveLayer(layer.obj, layer.squared(), layer.unit)
        try:
            several = backward(squares, mapped(value, torch.square), mapped(grad_output, torch.square))
            square = several[0] if len(several) == 1 else None
            if square is not None:
                return [0.5 * layer.unit * root * (square.clamp(min=0).sqrt() + found[0].abs()) + TINY]
        except NotRunError:
            pass
    total = [torch.zeros_like(item) for item in found]
    for seed in range(4):
        other = LiveLayer(layer.obj, _disturbed_module(layer, seed), layer.unit)
        try:
            moved = backward(
                other, _disturbed(value, layer.unit, seed), _disturbed(grad_output, layer.unit, seed + 100)
            )
        except NotRunError:
            continue
        for into, one, two in zip(total, found, [item for item in moved if item is not None]):
            into += (one - two).square()
    return [
        root * (sums / 4).sqrt() + layer.unit * (item.abs() + 0.05 * _typical(item)) + TINY
        for sums, item in zip(total, found)
    ]


def weight_gradients_agree(layer: LiveLayer, recorded: LiveLayer, value: Values, grad_output: Values) -> bool:
    """Return whether the recorded gradients of the weights are those of one pass from zero.

    Args:
        layer: the layer.
        recorded: the layer with gradients in place of its weights.
        value: its input.
        grad_output: the gradient of its output.
    """
    parameters = dict(layer.module.named_parameters())
    wanted = dict(recorded.module.named_parameters())
    try:
        with torch.enable_grad():
            for item in parameters.values():
                item.requires_grad_()
            output = layer.run(value)
            slopes = torch.autograd.grad(output, list(parameters.values()), grad_output.reshape(output.shape))
    except (NotRunError, RuntimeError, AttributeError):
        return False
    finally:
        for item in parameters.values():
            item.requires_grad_(False)
    for name, slope in zip(parameters, slopes):
        want = wanted[name]
        bound = 1e-4 * float(want.abs().max()) if layer.unit > 2.0**-50 else 1e-10 * float(want.abs().max())
        if float((want - slope).abs().max()) > bound:
            return False
    return True


def seeded(size: tuple[int, ...], highest: int, seed: int) -> torch.Tensor:
    """Return normal random numbers, or integers from 1 to `highest` if given, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    if highest:
        return torch.randint(1, highest + 1, size, generator=generator).double()
    return torch.randn(size, generator=generator, dtype=torch.float64)
