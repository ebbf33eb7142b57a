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

from ...data import define
from ...errors import ModelError
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from ...lazy import np
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.fields import Fields
from ...nn.registry import traits_of
from ...torchmodules.build import live_module
from .runs import Recorded, Run, base_name, leaves

Values = Any
"""A torch tensor, a float, or a list of these."""

TINY = 1e-300
"""Avoids division by zero expected errors."""
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}
"""Unit roundoff by element type."""
MOST_ELEMENTS = 1 << 28
"""Elements of an output: 2 GiB in double precision."""
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


def mapped(value: Values, change: Callable[..., Any]) -> Values:
    """Return a value with a function applied to each of its tensors."""
    if isinstance(value, (list, tuple)):
        return [mapped(item, change) for item in value]
    return change(value) if isinstance(value, torch.Tensor) else value


def unit_of(value: Recorded) -> float | None:
    """Return the unit roundoff of a value's numbers; `None` if it has no floating-point tensors.

    Doubles that were converted from floats have that of floats, and numbers with six digits in an ascii file that of
    six digits.
    """
    return max((_unit(tensor) for tensor in leaves(value) if tensor.element.name in UNIT), default=None)


def _unit(tensor: Tensor) -> float:
    unit = UNIT[tensor.element.name]
    flat = tensor.numpy().reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):  # signaling NaNs
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
        assert self.obj.fields is not None
        fields = Table(list(self.obj.fields.raw_keys), list(self.obj.fields.raw_values))
        for name, value in changes.items():
            fields[name] = value
        obj = TorchObject(self.obj.class_name, self.obj.version, fields, self.obj.payload)
        return LiveLayer.build(obj, "root", self.unit, limits)

    def moved(self, other: dict[str, torch.Tensor]) -> LiveLayer:
        """Return the layer with other tensors in place of some of its own."""
        return evolve(self, other={**self.other, **other})

    @property
    def name(self) -> str:
        """The class in Lua, without its package."""
        return base_name(self.obj.class_name)

    @property
    def fields(self) -> dict[str, Value]:
        """The fields in Lua, by name."""
        keys = [] if self.obj.fields is None else self.obj.fields.raw_keys
        return {key.decode("utf-8", "replace"): self.obj.get(key) for key in keys if isinstance(key, bytes)}

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
        replayed = self._replayed(given[0])
        if replayed is not None:
            return replayed
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.func.functional_call(self.module, self.other, given)
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

    def run_single(self, value: Values) -> Values:
        """Run the layer in single precision, or in double precision if that is Lua's; see `run`."""
        kind = torch.float64 if self.unit <= UNIT["float64"] else torch.float32
        narrow = self.moved({name: item.to(kind) for name, item in self.numbers.items()})
        return narrow.run(mapped(value, lambda item: item.to(kind) if item.is_floating_point() else item))

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

    def shapes(self, value: Values) -> list[tuple[int, ...]] | None:
        """Return the shapes of the outputs without computing; `None` if impossible."""
        try:
            meta = {name: item.to("meta") for name, item in self.module.state_dict().items()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = torch.func.functional_call(self.module, meta, mapped(value, lambda item: item.to("meta")))
        except Exception:  # only a preview: `run` reports the error
            return None
        return [tuple(tensor.shape) for tensor in flat(found)]


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
        pairs = list(zip(flat(layer.run(given)), flat(value[1])))
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
_CANDIDATES = range(5)
"""Paddings and steps that are tried in place of those in the file."""


@define(eq=False)
class Derived:
    """An input computed from other fields.

    Attributes:
        given: from what the output is computed, in double precision; `None` if the fields contradict one another.
        reason: how it was computed, or why there is none.
        error: standard deviations of its errors; `None` if it is exact.
        by: how the output follows.
    """

    given: Any
    reason: str = FROM_FIELD
    error: torch.Tensor | None = None
    by: Compute = outputs


def contradiction(obj: TorchObject) -> str:
    """Return the size of a convolution's kernel that does not match its weights; empty if all match."""
    weight, name = obj.get("weight"), base_name(obj.class_name)
    rank = 3 if name.startswith("Volumetric") else 2
    known = obj.class_name.startswith(("nn.", "cudnn.")) and name.startswith(("Spatial", "Volumetric"))
    if not known or "Local" in name or "Convolution" not in name:
        return ""
    for field_name, extent in zip(("kW", "kH", "kT"), reversed(weight.size) if isinstance(weight, Tensor) else ()):
        size = obj.get(field_name)
        if isinstance(weight, Tensor) and len(weight.size) == rank + 2 and isinstance(size, float) and size != extent:
            return f"{field_name} = {size:g} does not fit its weight, which has {extent}"
    return ""


def derived_input(run: Run, intact: bool, later: list[Run]) -> Derived | None:
    """Return the input of a layer from its other fields; `None` if they do not determine it.

    Args:
        run: the run of the layer.
        intact: whether its output is in the file as it was.
        later: the runs after it.
    """
    output, weight = run.output, run.obj.get("weight")
    if not isinstance(output, Tensor) or not isinstance(weight, Tensor) or output.numel > _MOST:
        return None
    if run.name in _TABLES and intact and output.size[-1:] == weight.size[1:]:
        return _rows(run, to_torch(weight).double(), to_torch(output).double())
    if run.name in ("Linear", "LinearNoBias") and len(weight.size) == 2 and output.size[-1:] == weight.size[:1]:
        return _solved(run, to_torch(weight).double(), to_torch(output).double(), intact)
    matrix = run.obj.get("finput")
    if run.obj.class_name in _UNFOLDING and isinstance(matrix, Tensor):
        others = (other.obj.get("finput") for other in later)
        if not any(isinstance(other, Tensor) and other.storage is matrix.storage for other in others):
            return _folded(run, matrix, output)
    return None


_UNFOLDING = ("nn.SpatialConvolution", "nn.SpatialConvolutionMM", "nn.VolumetricConvolution")
"""The CPU convolutions keep their input in `finput` as the matrix that is multiplied by the weights: a column for each
position of the kernel. Source: nn 8726825 `lib/THNN/generic/unfold.c`, `VolumetricConvolutionMM.c`.
"""


def _folded(run: Run, matrix: Tensor, output: Tensor) -> Derived | None:
    """Return the image whose unfolding is recorded."""
    letters = "THW" if run.name.startswith("Volumetric") else "HW"
    rank = len(letters)

    def sizes(*names: str) -> list[int]:
        found = [run.obj.get(name) or 0.0 for name in names]
        return [int(item) if isinstance(item, float) and 0 <= item < 1 << 16 else -1 for item in found]

    kernel, steps, padding = (sizes(*(kind + letter for letter in letters)) for kind in ("k", "d", "pad"))
    planes, places, batched = sizes("nInputPlane")[0], output.size[-rank:], len(output.size) == rank + 2
    if min(planes, *kernel, *steps, len(output.size) - rank) < 1 or min(padding) < 0:
        return None
    shape = planes * prod(kernel), prod(places)
    count = (output.size[0] if batched else 1) * prod(shape)
    if (*matrix.size[-2:], matrix.numel) != (*shape, count) or count > _MOST:
        return None
    columns = to_torch(matrix).double().reshape(-1, prod(kernel), *places)
    slope = run.grad_input
    extent = slope.size[-rank:] if isinstance(slope, Tensor) and len(slope.size) > rank else None
    found = _fold(columns, kernel, steps, padding, extent)
    if found is not None:
        image = found.reshape(-1, planes, *found.shape[2:])
        return Derived(image if batched else image[0])
    for kind, now in (("pad", padding), ("d", steps)):
        for other in product(_CANDIDATES[kind == "d" :], repeat=rank):
            both = (list(other), padding) if kind == "d" else (steps, list(other))
            if _fold(columns, kernel, *both, extent) is not None:
                known = " and ".join(f"{kind}{letter} = {size}" for letter, size in zip(letters, other))
                return Derived(None, f"{known} fits its unfolded input (the file has {', '.join(map(str, now))})")
    return None


def _fold(columns: Any, kernel: list[int], steps: list[int], padding: list[int], extent: Any) -> Any:
    """Return the images with this unfolding; `None` if there are none, because positions that are one pixel differ."""
    rank, taps = len(kernel), columns.shape[1]
    scatter, gather = (F.conv_transpose2d, F.conv2d) if rank == 2 else (F.conv_transpose3d, F.conv3d)
    each = torch.eye(taps, dtype=columns.dtype).reshape(taps, 1, *kernel)
    hits = scatter(torch.ones_like(columns[:1]), each, stride=steps)
    image = scatter(columns, each, stride=steps) / hits.clamp(min=1)
    margins: list[int] = []
    for size, step, pad, at in zip(image.shape[2:], steps, padding, range(rank)):
        # The last pixels of a row, fewer than a step, may be unread.
        least = size - 2 * pad
        wanted = extent[at] if extent is not None and least <= extent[at] < least + step else least + step - 1
        if wanted < 1:
            return None
        margins = [-pad, wanted + pad - size, *margins]
    image = F.pad(image, margins)
    again = gather(image, each, stride=steps, padding=padding)
    return image if again.shape == columns.shape and torch.allclose(again, columns, rtol=1e-12, atol=0) else None


def _rows(run: Run, table: torch.Tensor, output: torch.Tensor) -> Derived | None:
    """Return the numbers of the rows of a table that are closest to the outputs."""
    wanted = output.reshape(-1, table.shape[1])
    if run.obj.get("maxNorm") is not None or len(wanted) * len(table) > _MOST or not bool(wanted.isfinite().all()):
        return None
    nearest = torch.cdist(wanted, table).argmin(1)
    # A row further from the output than from zero was chosen by chance.
    if bool(((table[nearest] - wanted).square().sum(1) > wanted.square().sum(1)).any()):
        return None
    return Derived((nearest + _TABLES[run.name]).double().reshape(output.shape[:-1] or (1,)))


def _solved(run: Run, matrix: torch.Tensor, output: torch.Tensor, intact: bool) -> Derived | None:
    """Return the input of a linear layer as a solution: of gradWeight = gradOutput' X, or of its output."""
    rows = output.reshape(-1, matrix.shape[0])
    if output.dim() > 2 or matrix.numel() * min(matrix.shape) > _MOST * 4:
        return None
    found = _by_gradient(run, rows) if run.obj.get("train") is not False else None
    if found is not None:
        bias = run.obj.get("bias")
        shift = to_torch(bias).double() if isinstance(bias, Tensor) and bias.numel == matrix.shape[0] else 0.0
        # Zeros of an in-place activation say nothing about the pass; of another pass, outputs are another's entirely.
        known = rows.isfinite() & ((rows != 0) | intact)
        off = (found[0] @ matrix.T + shift - rows).abs()[known]
        if off.numel() and float(off.median()) <= float(rows[known].abs().median()) / 2:
            value, error = (item.reshape(*output.shape[:-1], matrix.shape[1]) for item in found)
            return Derived(value, FROM_FIELD, error)
    if intact and matrix.shape[0] > matrix.shape[1] and _is_regular(matrix) and bool(rows.isfinite().all()):
        return Derived([output], FROM_OUTPUT, by=nearest_outputs)
    return None


def _by_gradient(run: Run, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the solution and its errors. Where gradBias is the sum of gradOutput, all three are of one pass."""
    names = run.obj.get("gradWeight"), run.obj.get("gradBias"), run.grad_output
    if not all(isinstance(item, Tensor) for item in names):
        return None
    mixed, total, slope = (to_torch(item).double() for item in names)
    if slope.numel() != rows.numel() or mixed.dim() != 2 or {mixed.shape[0], total.numel()} != {rows.shape[1]}:
        return None
    unit, slope = unit_of(names[0]) or UNIT["float32"], slope.reshape(rows.shape)
    # A sum of n numbers is right to n roundings of its largest part, which are at most eight units each.
    limit = 8 * unit * len(slope) * slope.abs().sum(0) + TINY
    if len(slope) > slope.shape[1] or bool(((total.reshape(-1) - slope.sum(0)).abs() > limit).any()):
        return None
    if not bool(mixed.isfinite().all()) or not _is_regular(slope):
        return None
    inverse = torch.linalg.pinv(slope.T)
    value = inverse @ mixed
    variance = unit**2 * (slope.T.square() @ value.square())
    return value, (inverse.square() @ variance).sqrt()


def _is_regular(matrix: torch.Tensor) -> bool:
    """Return whether a matrix can be inverted to half of the digits of its numbers."""
    values = torch.linalg.svdvals(matrix) if bool(matrix.isfinite().all()) else torch.zeros(1)
    return bool(values[-1] * _WORST > values[0])
