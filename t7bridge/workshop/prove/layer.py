"""Runs single layers of Lua models as PyTorch modules in double precision. May import graph, nn and torchmodules.

A layer's result in double precision is the reference. The same layer with random errors of Lua's precision, or run in
single precision, shows how far rounding takes a result from it; see `rounding`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

import torch
from attrs import evolve, field
from torch import nn

from ...data import define
from ...errors import ModelError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.fields import Fields
from ...nn.output_shapes import Example, inputs_text
from ...nn.registry import traits_of
from ...torchmodules.build import example, live_module
from .recorded import flattened, map_instances

Values = Any
"""A torch tensor, a float, or a list of these."""
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a module raises for an input that it does not accept."""


class NotRunError(Exception):
    """A layer cannot be run; the message says why."""


class RefusedError(NotRunError):
    """A layer does not accept a value that Lua's layer accepted."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, cut; empty if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else ""


# Values


def to_torch(value: Any) -> Values:
    """Return recorded values as tensors of torch."""
    return map_instances(value, Tensor, lambda item: torch.from_numpy(item.numpy().copy()))


def to_doubles(value: Any) -> Values:
    """Return recorded values as tensors of torch in double precision."""
    return map_tensors(to_torch(value), torch.Tensor.double)


def flat(value: Values) -> Iterator[torch.Tensor]:
    """Return the tensors of a value, in order; numbers as tensors of one element."""
    for item in flattened(value):
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, (int, float)):
            yield torch.tensor(float(item), dtype=torch.float64)


def doubles(value: Values) -> list[torch.Tensor]:
    """Return the tensors of a value in double precision."""
    return [item.double() for item in flat(value)]


def map_tensors(value: Values, change: Callable[..., Any]) -> Values:
    """Return a value with a function applied to each of its tensors."""
    return map_instances(value, torch.Tensor, change)


def drawn(module: nn.Module, spec: Any) -> Values:
    """Return example inputs of a model, drawn by `example` from a seed of its own, all in double precision.

    So are indices: Lua's layers take them as any number.

    Args:
        module: the live model.
        spec: the shapes: an `Example`, or a list of these.

    Raises:
        ModelError: they do not fit into memory, or PyTorch draws no numbers of their type.
    """
    try:
        return map_tensors(example(module, spec), torch.Tensor.double)
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"PyTorch cannot make an input: {first_line(error)}", found=inputs_text(spec)) from error


# Layers


def in_double(model: nn.Module) -> nn.Module:
    """Make a live module compute in double precision, also where a layer states the type of its output.

    The module is modified, and returned.
    """
    for layer in map(vars, model.modules()):
        dtype = layer.get("dtype")
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            layer["dtype"] = torch.float64
    return model.double()


def _target_of(module: nn.Module) -> str:
    """Return the name of a module's class as plans have it: those of PyTorch are in `torch.nn`."""
    class_ = type(module)
    home = "torch.nn" if class_.__module__.startswith("torch.nn.") else class_.__module__
    return f"{home}.{class_.__qualname__}"


_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@define(eq=False)
class LiveLayer:
    """One Lua module as a PyTorch module in double precision, which may run with other `tensors` than its own.

    Attributes:
        obj: the module in Lua.
        module: the live module in double precision.
        unit: unit roundoff of the element type that Lua computed in.
        tensors: weights and buffers with which it runs in place of the module's own, by name; empty for its own.
    """

    obj: TorchObject
    module: nn.Module
    unit: float
    tensors: dict[str, torch.Tensor] = field(factory=dict, repr=False)

    @classmethod
    def build(
        cls,
        obj: TorchObject,
        path: str,
        unit: float,
        limits: Limits = DEFAULT_LIMITS,
        in_other_mode: bool = False,
    ) -> LiveLayer:
        """Build a module on its own, in the mode stored in the file or, on request, in the other one.

        Args:
            obj: the module in Lua.
            path: its path, for messages.
            unit: unit roundoff of its numbers.
            limits: resource limits.
            in_other_mode: whether it ran in training and was saved in evaluation, or the other way round.

        Raises:
            T7BridgeError: it has no PyTorch module, or its fields are inconsistent.
        """
        module = live_module(obj, path, limits=limits)
        saved_mode = obj.get("train")
        # A module that states no mode is in evaluation, and has no other mode.
        module.train(isinstance(saved_mode, bool) and saved_mode != in_other_mode)
        # Only gradients with respect to inputs are asked for.
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        return cls(obj, in_double(module), unit)

    @property
    def has_weights(self) -> bool:
        """True if an optimizer may change its results."""
        return next(self.module.parameters(), None) is not None

    def run(self, value: Values) -> Values:
        """Run the layer on a value, which is not modified; where it drew at random, with the numbers that Lua recorded.

        Raises:
            RefusedError: the layer does not accept the value.
            NotRunError: it draws at random, and what it drew is not recorded.
        """
        # Each run begins without a state, as if it were the first; layers of ours keep it in `state`.
        for inside in self.module.modules():
            if "state" in vars(inside):
                vars(inside)["state"] = None
        # In-place layers must not change the caller's tensors, nor leaf tensors that require gradients: a clone is
        # neither, and passes its gradient back.
        own = map_tensors(value, torch.clone)
        replayed = self._replayed(own)
        if replayed is not None:
            return replayed
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.func.functional_call(self.module, self.tensors, (own,))
        except _REFUSALS as error:
            text = first_line(error) or type(error).__name__
            raise RefusedError(f"does not accept the recorded input: {text}") from error

    def _replayed(self, value: Values) -> Values:
        """Return the result of a layer that draws at random with the recorded noise; `None` for any other layer.

        Args:
            value: the input of the layer; for one that is no tensor, no layer has a rule.

        Raises:
            NotRunError: the noise is not recorded, or is of another shape.
        """
        # Fields of dropouts that draw in evaluation, too.
        draws_in_evaluation = any(
            self.obj.get(name) is True for name in ("stochasticInference", "stochastic_inference")
        )
        if not self.module.training and not draws_in_evaluation:
            return None
        replay = traits_of(_target_of(self.module)).replay
        # A dropout of nothing draws nothing.
        if replay is None or self.obj.get("p") == 0.0 or not isinstance(value, torch.Tensor):
            return None
        noise = self.obj.get("noise")
        if not isinstance(noise, Tensor) or not noise.numel:
            raise NotRunError("is random, and its random numbers are not recorded")
        try:
            return replay(Fields(self.obj), value, to_torch(noise).to(value.dtype))
        except (RuntimeError, ModelError) as error:
            raise NotRunError("its recorded noise does not match its input") from error

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> LiveLayer:
        """Return the layer, to be run with a function applied to its weights and buffers, but not to index tables."""
        tensors = {}
        for name, item in (*self.module.named_parameters(), *self.module.named_buffers()):
            # connTable has the numbers of planes, as floats.
            if item.is_floating_point() and "connTable" not in name:
                tensors[name] = change(item)
        return evolve(self, tensors=tensors)

    def _most_products(self) -> int:
        """Return how many products the longest sum of the layer has, or more; 1 without weights.

        Of this follows how large the errors of `disturbed` are.
        """
        most = 1
        for module in self.module.modules():
            for item in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if item.dim() < 2 or not item.numel():
                    continue
                # A weight (outputs, ...) is multiplied with as many inputs as it has elements for each output. Tables
                # that are not multiplied, as of an embedding, count as if they were.
                outputs = item.shape[0]
                if isinstance(module, _TRANSPOSED):  # a weight (inputs, outputs / groups, ...)
                    outputs = item.shape[1] * module.groups
                most = max(most, item.numel() // outputs)
        return most

    def disturbed(self, value: Values, seed: int) -> tuple[LiveLayer, Values]:
        """Return the layer and an input, both with random errors of Lua's precision.

        A sum of n products has n roundings, of partial sums as large as the root of the sum of all squares in the mean:
        as much as an error of sqrt(n) units in each of its products.

        Args:
            value: the input.
            seed: of the random numbers.
        """
        generator = torch.Generator().manual_seed(seed)
        relative_error = self.unit * sqrt(self._most_products())

        def with_errors(item: torch.Tensor) -> torch.Tensor:
            # Whole numbers are exact: classes, rows, positions.
            if not item.is_floating_point() or bool((item == item.round()).all()):
                return item
            return item * (1 + relative_error * torch.randn(item.shape, generator=generator, dtype=item.dtype))

        return self._changed(with_errors), map_tensors(value, with_errors)

    def in_single(self, value: Values) -> tuple[LiveLayer, Values]:
        """Return the layer and an input in single precision, which shows what its intermediate results lose."""

        def single(item: torch.Tensor) -> torch.Tensor:
            return item.float() if item.is_floating_point() else item

        return self._changed(single), map_tensors(value, single)

    def shapes(self, value: Any) -> list[tuple[int, ...]] | None:
        """Return the shapes of the outputs without computing; `None` if the layer does not accept such an input.

        Args:
            value: the input: tensors, or `Example`s of their shapes, in any lists.
        """

        def empty(item: torch.Tensor | Example) -> torch.Tensor:
            """Return a tensor of that shape without elements, on PyTorch's device `meta`."""
            dtype = item.dtype if isinstance(item, torch.Tensor) else torch.float64
            return torch.empty(item.shape, dtype=dtype, device="meta")

        try:
            meta = {name: item.to("meta") for name, item in self.module.state_dict().items()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = torch.func.functional_call(
                    self.module, meta, map_instances(value, (torch.Tensor, Example), empty)
                )
        except Exception:  # only a preview: `run` reports the error
            return None
        return [tuple(tensor.shape) for tensor in flat(result)]


# What is computed of a layer

Compute = Callable[[Any, Values], "list[torch.Tensor]"]
"""Tensors computed by a layer from values: its output, or the gradient with respect to its input."""


def outputs(layer: LiveLayer, value: Values) -> list[torch.Tensor]:
    """Return the tensors of a layer's output.

    Raises:
        NotRunError: the layer cannot be run on the value.
    """
    return doubles(layer.run(value))


def gradients(layer: LiveLayer, value: Values) -> list[torch.Tensor]:
    """Return the gradients with respect to the tensors of the input, but not to those of whole numbers.

    Args:
        layer: the layer.
        value: a pair: its input, and the gradient with respect to its output.

    Raises:
        NotRunError: there is no gradient, or the layer cannot be run on the values.
    """
    recorded_input, grad_output = value
    with torch.enable_grad():
        inputs = map_tensors(recorded_input, _requiring_gradient)
        leaves = [item for item in flat(inputs) if item.requires_grad]
        results = _gradients_of(list(flat(layer.run(inputs))), leaves, list(flat(grad_output)))
    computed = []
    for leaf, result in zip(leaves, results):
        # An input that the outputs do not depend on has none.
        computed.append(torch.zeros_like(leaf).double() if result is None else result.double())
    return computed


def _gradients_of(
    computed: list[torch.Tensor], leaves: list[torch.Tensor], grad_outputs: list[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients with respect to the leaves of what was computed from them; `None` for one that it lacks.

    Args:
        computed: the outputs; those beyond the gradients do not count.
        leaves: the inputs.
        grad_outputs: the gradients with respect to the first outputs, as many elements each.

    Raises:
        NotRunError: there is no gradient.
    """
    outputs_with_gradient = computed[: len(grad_outputs)]
    try:
        reshaped = []
        for output, gradient in zip(outputs_with_gradient, grad_outputs):
            reshaped.append(gradient.to(output.dtype).reshape(output.shape))
        return torch.autograd.grad(outputs_with_gradient, leaves, reshaped, allow_unused=True)
    except RuntimeError as error:
        raise NotRunError(f"has no gradient: {first_line(error)[:150]}") from error


def _requiring_gradient(item: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor that requires a gradient; whole numbers as they are."""
    return item.clone().requires_grad_() if item.is_floating_point() else item
