"""Single layers of Lua models, live in double precision, and the inputs that follow from their own fields.

A layer's result in double precision is the reference. `disturbed` adds errors of Lua's precision, so that the spread of
its results is the error that rounding explains. May import graph, nn and torchmodules.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import product
from math import prod, sqrt
from typing import Any

import torch
import torch.nn.functional as F
from attrs import evolve, field
from torch import nn

from ...data import define, np
from ...errors import ModelError, T7BridgeError
from ...graph.lua import Table, TorchObject
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.fields import Fields
from ...nn.output_shapes import Example
from ...nn.registry import traits_of
from ...torchmodules.build import inputs_text, live_module
from ...torchmodules.export import example
from .runs import Recorded, base_name, items, leaves, own_weights, replaced

Values = Any
"""A torch tensor, a float, or a list of these."""

TINY = 1e-300
"""Avoids division by zero expected errors."""
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}
"""Unit roundoff by element type."""
_SAMPLE = 2_000
"""Numbers of a tensor that are looked at: if more than 1 in 500 has more digits, one is among these (e^-4: 98 %)."""
_ENOUGH = 16
"""Different numbers that determine a precision: by chance one double in 2^29 is a float."""
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a module raises for an input that it does not accept."""


class NotRunError(Exception):
    """A layer cannot be run on a recorded value; the message says why."""


# Values


def to_torch(value: Any) -> Values:
    """Return recorded values as tensors of torch."""
    return replaced(value, Tensor, lambda item: torch.from_numpy(item.numpy().copy()))


def to_doubles(value: Any) -> Values:
    """Return recorded values as tensors of torch in double precision."""
    return mapped(to_torch(value), torch.Tensor.double)


def flat(value: Values) -> Iterator[torch.Tensor]:
    """Return the tensors of a value, in order; numbers as tensors of one element."""
    for item in items(value):
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, (int, float)):
            yield torch.tensor(float(item), dtype=torch.float64)


def doubles(value: Values) -> list[torch.Tensor]:
    """Return the tensors of a value in double precision."""
    return [item.double() for item in flat(value)]


def mapped(value: Values, change: Callable[..., Any]) -> Values:
    """Return a value with a function applied to each of its tensors."""
    return replaced(value, torch.Tensor, change)


def unit_of(value: Recorded) -> float | None:
    """Return the unit roundoff of a value's numbers; `None` if it has no floating-point tensors.

    Doubles that were converted from floats have that of floats, and numbers with six digits in an ascii file that of
    six digits.
    """
    return max((_unit(tensor) for tensor in leaves(value) if tensor.element.name in UNIT), default=None)


def _unit(tensor: Tensor) -> float:
    unit = UNIT[tensor.element.name]
    flat = tensor.numpy().reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):  # signaling NaNs, and the smallest numbers
        sample = flat[:: max(1, flat.size // _SAMPLE)].astype("f8")
        sample = np.unique(sample[np.isfinite(sample) & (sample != 0)])
        single = bool((sample.astype("f4") == sample).all())
        if sample.size < _ENOUGH:
            # Few numbers with 16 binary digits or less may have been written by hand.
            mantissa = np.frexp(sample)[0] * 2.0**16
            return max(unit, UNIT["float32"]) if single and bool((mantissa != np.round(mantissa)).any()) else unit
        power = np.floor(np.log10(np.abs(sample)))
        for digits in range(4, 10 if unit == UNIT["float64"] else 7):
            places = 10.0 ** (digits - 1 - power)
            if np.allclose(np.round(sample * places) / places, sample, rtol=max(unit, 1e-14), atol=0):
                return max(unit, 0.5 * 10.0 ** (1 - digits))
    return max(unit, UNIT["float32"]) if single else unit


def drawn(module: nn.Module, spec: Any) -> Values:
    """Return example inputs of a model in double precision; see `example`.

    Raises:
        ModelError: they do not fit into memory, or PyTorch draws no numbers of their type.
    """
    try:
        return mapped(example(module, spec), torch.Tensor.double)
    except (RuntimeError, TypeError) as error:
        text = (str(error).splitlines() or [""])[0][:200]
        raise ModelError(f"PyTorch cannot make an input: {text}", found=inputs_text(spec)) from error


# Layers


def in_double(model: nn.Module) -> nn.Module:
    """Make a live module compute in double precision, also where a layer states the type of its output."""
    for layer in map(vars, model.modules()):
        dtype = layer.get("dtype")
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            layer["dtype"] = torch.float64
    return model.double()


@define(eq=False)
class LiveLayer:
    """One Lua module, live, in double precision, in the mode stored in the file.

    Attributes:
        obj: the module in Lua.
        module: the live module in double precision.
        unit: unit roundoff of the element type that Lua computed in.
        limits: resource limits.
        other: tensors in place of the module's own, by name.
    """

    obj: TorchObject
    module: nn.Module
    unit: float
    limits: Limits = DEFAULT_LIMITS
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
        return cls(obj, in_double(module), unit, limits)

    def variant(self, changes: dict[str, Any]) -> LiveLayer:
        """Return the layer with some fields changed.

        Raises:
            T7BridgeError: the fields are inconsistent.
        """
        assert self.obj.fields is not None
        fields = Table(list(self.obj.fields.raw_keys), list(self.obj.fields.raw_values))
        for name, value in changes.items():
            fields[name] = value
        obj = TorchObject(self.obj.class_name, self.obj.version, fields, self.obj.payload)
        return LiveLayer.build(obj, "root", self.unit, self.limits)

    def moved(self, other: dict[str, torch.Tensor]) -> LiveLayer:
        """Return the layer with other tensors in place of some of its own."""
        return evolve(self, other={**self.other, **other})

    @property
    def name(self) -> str:
        """The class in Lua, without its package."""
        return base_name(self.obj.class_name)

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

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the recorded gradients of the weights, by their names; empty if they are not recorded."""
        named = {name: self.obj.get(f"grad{name[0].upper()}{name[1:]}") for name in own_weights(self.obj)}
        try:
            kept = {name: item for name, item in named.items() if isinstance(item, Tensor) and item.numel}
            return self.variant(kept).weights if kept else {}
        except T7BridgeError:
            return {}

    def run(self, *values: Values) -> Values:
        """Run the layer, or a criterion on an input and a target; these are not modified.

        Raises:
            NotRunError: the layer does not accept the values.
        """
        for inside in self.module.modules():
            if "state" in vars(inside):
                vars(inside)["state"] = None
        # In-place layers must not change the caller's tensors, nor leaf tensors that require gradients.
        inputs = tuple(mapped(value, lambda item: item * 1 if item.requires_grad else item.clone()) for value in values)
        replayed = self._replayed(inputs[0])
        if replayed is not None:
            return replayed
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.func.functional_call(self.module, self.other, inputs)
        except _REFUSALS as error:
            text = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise NotRunError(f"does not accept the recorded input: {text}") from error

    def _replayed(self, value: Values) -> Values:
        """Return the result with the recorded noise; `None` for layers without random numbers."""
        always = self.obj.get("stochasticInference") is True or self.obj.get("stochastic_inference") is True
        if not (self.module.training or always) or not isinstance(value, torch.Tensor):
            return None
        kind = type(self.module)
        home = "torch.nn" if kind.__module__.startswith("torch.nn.") else kind.__module__
        replay, noise = traits_of(f"{home}.{kind.__qualname__}").replay, self.obj.get("noise")
        if replay is None or self.obj.get("p") == 0.0:
            return None
        if not isinstance(noise, Tensor) or not noise.numel:
            raise NotRunError("is random, and its random numbers are not recorded")
        try:
            return replay(Fields(self.obj), value, to_torch(noise).to(value.dtype))
        except (RuntimeError, ModelError) as error:
            raise NotRunError("its recorded noise does not match its input") from error

    def disturbed(self, value: Values, seed: int) -> tuple[LiveLayer, Values]:
        """Return the layer and an input, both with random errors of Lua's precision.

        A sum of n products has n roundings, of partial sums as large as the root of the sum of all squares in the mean:
        as much as an error of sqrt(n) units in each of its products.
        """
        draw = torch.Generator().manual_seed(seed)
        tensors = [item for item in [*self.module.parameters(), *self.module.buffers()] if item.dim() > 1]
        terms = max((item.numel() // max(item.shape[0], 1) for item in tensors), default=1)
        size = self.unit * sqrt(max(terms, 1))

        def moved(item: torch.Tensor) -> torch.Tensor:
            # Whole numbers are exact: classes, rows, positions.
            if not item.is_floating_point() or bool((item == item.round()).all()):
                return item
            return item * (1 + size * torch.randn(item.shape, generator=draw, dtype=item.dtype))

        return self.moved({name: moved(item) for name, item in self.numbers.items()}), mapped(value, moved)

    def shapes(self, value: Any) -> list[tuple[int, ...]] | None:
        """Return the shapes of the outputs for values or `Examples` without computing; `None` if impossible."""

        def empty(item: torch.Tensor | Example) -> torch.Tensor:
            dtype = item.dtype if isinstance(item, torch.Tensor) else torch.float64
            return torch.empty(item.shape, dtype=dtype, device="meta")

        try:
            meta = {name: item.to("meta") for name, item in self.module.state_dict().items()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = torch.func.functional_call(self.module, meta, replaced(value, (torch.Tensor, Example), empty))
        except Exception:  # only a preview: `run` reports the error
            return None
        return [tuple(tensor.shape) for tensor in flat(found)]


# What is computed of a layer

Compute = Callable[[Any, Values], "list[torch.Tensor]"]
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
        inputs = mapped(value[0], lambda item: item.clone().requires_grad_() if item.is_floating_point() else item)
        wanted = [item for item in flat(inputs) if item.requires_grad]
        pairs = list(zip(flat(layer.run(inputs)), flat(value[1])))
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


# Inputs that no layer's output is, but that follow from other fields

FROM_FIELD = "its input was computed from its own fields"
FROM_OUTPUT = "its input was computed from its output, which has more numbers"
_TABLES = {"LookupTable": 1.0, "LookupTableMaskZero": 0.0}
"""Classes whose output consists of rows of a table, and the number of its first row."""
_MOST = 1 << 26
"""Elements of a matrix: 512 MiB in double precision."""
_WORST = 1e4
"""Largest condition number of equations that are solved: with it half of the seven digits of a float are left."""
_LARGER = 64
"""Times that an image may be larger than its unfolding: as with kernels of 1 x 1 and steps of 8."""
_CANDIDATES = range(5)
"""Paddings and steps that are tried in place of those in the file."""


def contradiction(layer: LiveLayer) -> str:
    """Return the size of a convolution's kernel that does not match its weights; empty if all match."""
    kernel = layer.module.kernel_size if isinstance(layer.module, _CONVOLUTIONS) else ()
    for name, extent in zip(("kW", "kH", "kT"), reversed(kernel)):
        size = layer.obj.get(name)
        if isinstance(size, float) and size != extent:
            return f"{name} = {size:g} does not fit its weight, which has {extent}"
    return ""


_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def derived_input(layer: LiveLayer, output: Recorded, intact: bool) -> tuple[Values, str, Compute]:
    """Return the input of a layer from its other fields, the source, and how its output follows from it.

    The input is `None` if the fields do not determine it; the source says why if they contradict one another.

    Args:
        layer: the layer.
        output: its recorded output.
        intact: whether that is in the file as it was.
    """
    found, reason, matrix = None, "", layer.obj.get("finput")
    if isinstance(output, Tensor) and output.numel <= _MOST:
        wanted, weight = to_doubles(output), layer.weights.get("weight", torch.zeros(()))
        rows = wanted.reshape(-1, wanted.shape[-1])
        if layer.name in _TABLES and intact and wanted.shape[-1] == weight.shape[-1]:
            found = _rows(layer, rows)
            found, reason = (None, "") if found is None else (found.reshape(wanted.shape[:-1] or (1,)), FROM_FIELD)
        elif layer.name in ("Linear", "LinearNoBias") and intact and len(weight) == wanted.shape[-1] > weight.shape[1]:
            values = torch.linalg.svdvals(weight) if weight.isfinite().all() else torch.zeros(1)
            if values[-1] * _WORST > values[0] and rows.isfinite().all():
                return [wanted], FROM_OUTPUT, nearest_outputs
        elif (
            layer.obj.class_name in _UNFOLDING
            and isinstance(matrix, Tensor)
            and isinstance(layer.module, _CONVOLUTIONS)
        ):
            found, reason = _folded(layer.module, to_doubles(matrix), wanted)
    return found, reason, outputs


def _rows(layer: LiveLayer, wanted: torch.Tensor) -> torch.Tensor | None:
    """Return the numbers of the rows of a table that are closest to the outputs."""
    table = layer.weights["weight"]
    if layer.obj.get("maxNorm") is not None or len(wanted) * len(table) > _MOST or not bool(wanted.isfinite().all()):
        return None
    nearest = torch.cdist(wanted, table).argmin(1)
    # A row further from the output than from zero was chosen by chance.
    chance = (table[nearest] - wanted).square().sum(1) > wanted.square().sum(1)
    return None if bool(chance.any()) else (nearest + _TABLES[layer.name]).double()


_UNFOLDING = ("nn.SpatialConvolution", "nn.SpatialConvolutionMM", "nn.VolumetricConvolution")
"""The CPU convolutions keep their input in `finput` as the matrix that is multiplied by the weights: a column for each
position of the kernel. Source: nn 8726825 `lib/THNN/generic/unfold.c`, `VolumetricConvolutionMM.c`.
"""


def _folded(conv: Any, matrix: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """Return the image whose unfolding is recorded, or the sizes that fit in place of those of the file."""
    kernel, steps, padding = conv.kernel_size, conv.stride, conv.padding
    rank, taps, places = len(kernel), prod(kernel), output.shape[-len(kernel) :]
    batch = output.shape[: output.dim() - rank - 1]
    count = prod(batch) * conv.in_channels * taps * prod(places)
    if len(batch) > 1 or matrix.numel() != count or count > _MOST or matrix.shape[-1] != prod(places):
        return None, ""
    columns = matrix.reshape(-1, taps, *places)
    image = _fold(columns, kernel, steps, padding)
    if image is not None:
        return image.reshape(*batch, conv.in_channels, *image.shape[2:]), FROM_FIELD
    for kind, now in (("pad", padding), ("d", steps)):
        for other in product(_CANDIDATES[kind == "d" :], repeat=rank):
            if _fold(columns, kernel, *((other, padding) if kind == "d" else (steps, other))) is not None:
                known = " and ".join(f"{kind}{letter} = {size}" for letter, size in zip("THW"[3 - rank :], other))
                return None, f"{known} fits its unfolded input (the file has {', '.join(map(str, now))})"
    return None, ""


def _fold(columns: Any, kernel: Any, steps: Any, padding: Any) -> Any:
    """Return the images with this unfolding; `None` if there are none, because positions that are one pixel differ."""
    extents = [(place - 1) * step + size for place, step, size in zip(columns.shape[2:], steps, kernel)]
    # Where windows do not overlap, an image has more elements than its unfolding.
    if min(steps) < 1 or min(padding) < 0 or len(columns) * prod(extents) > _LARGER * columns.numel():
        return None
    scatter, gather = (F.conv_transpose2d, F.conv2d) if len(kernel) == 2 else (F.conv_transpose3d, F.conv3d)
    each = torch.eye(columns.shape[1], dtype=columns.dtype).reshape(-1, 1, *kernel)
    hits = scatter(torch.ones_like(columns[:1]), each, stride=steps)
    image = scatter(columns, each, stride=steps) / hits.clamp(min=1)
    # The last pixels of a row, fewer than a step, may be unread.
    margins = [margin for pad, step in zip(padding, steps) for margin in (step - 1 - pad, -pad)][::-1]
    if any(size + sum(margins[2 * at : 2 * at + 2]) < 1 for at, size in enumerate(reversed(image.shape[2:]))):
        return None
    image = F.pad(image, margins)
    again = gather(image, each, stride=steps, padding=padding)
    return image if again.shape == columns.shape and torch.allclose(again, columns, rtol=1e-12, atol=0) else None
