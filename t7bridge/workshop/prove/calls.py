"""Calls: what each layer with weights of a model takes and returns while the model runs, recorded by hooks.
A layer of a second model gets the input of its partner, the layer of the first model with the same weights.

What lies between layers is read from the graph of autograd, whose nodes name the operations.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from attrs import field
from torch import nn
from torch.utils._pytree import tree_map_only

from ...data import define
from .digests import Digest, Fingerprint, are_whole_numbers, dense_reals, floats_of, match, own_tensors, tensors_of
from .layer import first_line

_MOST_STORED = 1 << 27
"""Maximum number of elements of the inputs that are stored to correct those of the second model: 1 GiB."""
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_SHAPE_OPERATIONS = (
    *("accumulate_grad", "alias", "clone", "expand", "permute", "reshape_alias", "select", "slice", "split", "squeeze"),
    *("t", "to_copy", "transpose", "unbind", "unsafe_view", "unsqueeze", "view"),
)
"""Operations that pass numbers on, in another shape; `accumulate_grad` is that of a parameter as it is."""
INPUT = -1
"""The source of what comes from the input of the model, and from no layer with weights."""


# What lies between layers


@define(frozen=True)
class Operation:
    """An operation between layers with weights.

    Attributes:
        name: in PyTorch.
        options: names and values of its arguments that are no tensors, as far as its gradient depends on them.
    """

    name: str
    options: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, node: Any) -> Operation:
        """Return the operation of a node of autograd's graph: `MaxPool2DWithIndicesBackward0` is `max_pool2d`."""
        name = type(node).__name__.partition("Backward")[0]
        name = re.sub("(?<!^)(?=[A-Z][a-z])", "_", name).lower()  # from CamelCase
        options = []
        for attribute in dir(node):
            # What the gradient needs is saved: `_saved_padding`. Sizes of the tensors are no options.
            if not attribute.startswith("_saved_") or "sym_" in attribute or attribute.endswith("sizes"):
                continue
            try:
                value = getattr(node, attribute)
            except RuntimeError:
                continue  # a tensor that was changed in place since
            numbers = value if isinstance(value, tuple) else (value,)
            # Saved tensors are left out.
            if all(isinstance(number, (bool, int, float, str)) for number in numbers):
                options.append((attribute.removeprefix("_saved_"), value))
        return cls(name.removeprefix("native_").removesuffix("_with_indices"), tuple(options))


@define(eq=False)
class Origin:
    """Where a value comes from: which layers' results, by which operations.

    Attributes:
        sources: the numbers of the calls whose results it is made of, or `INPUT`; empty if it depends on neither.
        operations: what makes it of them, in order, without operations that only change shapes.
    """

    sources: set[int] = field(factory=set)
    operations: list[Operation] = field(factory=list)


# A model that runs


@define(eq=False)
class Call:
    """One call of a layer with weights while a model runs: what it took and returned.

    Attributes:
        place: the name of the layer in its model; empty for the model itself.
        layer: the layer.
        weights: fingerprints of its weights and statistics without the bias, sorted.
        bias: that of the bias; `None` if it has none.
        inputs: the values of a floating-point type that it got.
        has_whole_numbers: whether it got whole numbers alone, as tokens are, of whatever type.
        origin: of its inputs.
        stored_input: in the first model a copy of the input, if it is one tensor, for the same layer of the second;
            `None` in the second model, for other inputs, and beyond `_MOST_STORED`.
        outputs: the values that it returned, and the statistics that it updated; empty until it returns.
        partner: the call of the first model with the same weights; `None` without one, and in the first model itself.
        ran_on_same_input: whether it ran on the input of its partner: its own model gave it the same, or it was given
            the partner's instead.
    """

    place: str
    layer: nn.Module
    weights: list[Fingerprint]
    bias: Fingerprint | None
    inputs: list[Digest]
    has_whole_numbers: bool
    origin: Origin
    stored_input: torch.Tensor | None = field(default=None, repr=False)
    outputs: list[Digest] = field(factory=list)
    partner: Call | None = field(default=None, repr=False)
    ran_on_same_input: bool = False


def same_inputs(call: Call, other: Call) -> bool:
    """Return whether two layers got the same input. Any tokens count as the same, if one got them as integers.

    Tokens may count from 0 in one model and from 1 in the other, and may be floats in one, or one-hot vectors. Whether
    they mean the same, the outputs of the layers tell.
    """
    # Whole numbers that both got as floats may be anything: they are compared. `inputs` has floats alone: it is empty
    # for a layer that got its tokens as integers.
    has_integers = not call.inputs or not other.inputs
    if has_integers and call.has_whole_numbers and other.has_whole_numbers:
        return True
    return match(call.inputs, other.inputs)


@define(eq=False)
class ModelRun:
    """One run of a model: what it returned, and the calls of its layers with weights.

    Attributes:
        calls: those of layers with weights, in order.
        outputs: the tensors that the model returned, see `dense_reals`; empty if it was stopped.
        digests: of the outputs.
        origin: of the outputs.
        error: what stopped the model; empty if nothing did.
    """

    calls: list[Call]
    outputs: list[torch.Tensor] = field(factory=list)
    digests: list[Digest] = field(factory=list)
    origin: Origin = field(factory=Origin)
    error: str = ""

    @property
    def is_finite(self) -> bool:
        """Whether the model and its layers with weights took and returned nothing but finite numbers."""
        digests = list(self.digests)
        for call in self.calls:
            digests += call.inputs
            digests += call.outputs
        return all(digest.is_finite for digest in digests)


def normalizes(model: nn.Module) -> bool:
    """Return whether training mode differs, apart from random numbers."""
    return any(isinstance(layer, _NORMS) for layer in model.modules())


def run_model(model: nn.Module, value: Any, training: bool, first: ModelRun | None = None) -> ModelRun:
    """Run a model, and return what its layers took and returned.

    What it changes in its buffers is undone; its mode, and buffers that it registers, stay.

    Args:
        model: the model.
        value: its input.
        training: whether normalization is in training mode. Nothing else is, so that nothing is random.
        first: the run of the first model, whose inputs the layers of this one get; `None` for the first itself.
    """
    recorder = _Recorder(first)
    run = ModelRun(recorder.calls)
    buffers_and_copies = [(item, item.clone()) for item in model.buffers()]
    try:
        _set_mode(model, training)
        with recorder.hooks(model), torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = model(recorder.beginning_at(value, INPUT))
        outputs = tensors_of(result)
        run.outputs = [dense_reals(item.detach()) for item in outputs]
        run.digests = [Digest.of(item) for item in run.outputs]
        run.origin = recorder.origin_of(outputs)
    except Exception as error:  # the user's code may raise anything
        run.error = f"{type(error).__name__}: {first_line(error)}"
    finally:
        with torch.no_grad():  # autograd would record the copies
            for buffer, copy in buffers_and_copies:
                buffer.copy_(copy)
    return run


def _set_mode(model: nn.Module, training: bool) -> None:
    """Set all layers to evaluation mode, but normalization to training mode if that is asked for."""
    model.eval()
    for layer in model.modules():
        if isinstance(layer, _NORMS):
            layer.train(training)


class _Recorder:
    """Records the calls of a model's layers with weights, and gives those of a second model the inputs of the first.

    Args:
        first: the run of the first model; `None` while that itself runs.

    Attributes:
        calls: those that have begun, in order.
    """

    def __init__(self, first: ModelRun | None) -> None:
        self.calls: list[Call] = []
        self._first = first
        self._elements_left_to_store = _MOST_STORED
        self._sources: dict[int, int] = {}
        """Where each leaf of autograd's graph comes from, by its id: the number of a call, or `INPUT`."""
        self._leaves: list[torch.Tensor] = []
        """The leaves, which are kept alive as their ids are the keys of `_sources`."""
        self._depth = 0
        """Layers with weights that run now, one inside the other."""

    @contextmanager
    def hooks(self, model: nn.Module) -> Iterator[None]:
        """In the block, record each layer with weights of a model that runs."""
        handles = []
        # The modules of TorchScript's archives call no hooks.
        if not isinstance(model, torch.jit.ScriptModule):
            for place, layer in model.named_modules():
                if own_tensors(layer):
                    begin = partial(self._begin, place)
                    handles.append(layer.register_forward_pre_hook(begin, with_kwargs=True))
                    # Also if the layer raises an error, so that each beginning has an end.
                    handles.append(layer.register_forward_hook(self._end, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    # Where values come from

    def beginning_at(self, value: Any, source: int) -> Any:
        """Return a value at whose tensors autograd's graph begins anew, so that `origin_of` finds their source.

        Whole numbers, which have no graph, are returned as they are. No gradient is ever computed.

        Args:
            value: the input of the model, or what a layer with weights has returned.
            source: `INPUT`, or the number of the call that has returned it.
        """
        return tree_map_only(torch.Tensor, partial(self._copy_of_leaf, source=source), value)

    def _copy_of_leaf(self, item: torch.Tensor, source: int) -> torch.Tensor:
        """Make a leaf of autograd's graph of a tensor, note its source, and return a copy, which the model gets.

        Operations in place may not change a leaf, but the copy.
        """
        if not item.is_floating_point():
            return item
        leaf = item.detach().requires_grad_()
        self._leaves.append(leaf)
        self._sources[id(leaf)] = source
        return leaf.clone()

    def origin_of(self, tensors: Iterable[torch.Tensor]) -> Origin:
        """Return where tensors come from: back to the results of other layers with weights, and to the input.

        Autograd's graph goes no further back: `beginning_at` has made these its leaves.
        """
        nodes: set[Any] = set()
        stack = [item.grad_fn for item in tensors]
        while stack:
            node = stack.pop()
            if node is not None and node not in nodes:
                nodes.add(node)
                stack += [before for before, _ in node.next_functions]
        origin = Origin()
        # In the order in which they ran.
        for node in sorted(nodes, key=lambda node: node._sequence_nr()):
            leaf = getattr(node, "variable", None)  # only the node of a leaf has it
            if id(leaf) in self._sources:
                origin.sources.add(self._sources[id(leaf)])
                continue
            operation = Operation.of(node)
            if operation.name not in _SHAPE_OPERATIONS:
                origin.operations.append(operation)
        return origin

    # A layer that begins

    def _begin(self, place: str, layer: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Record that a layer begins, and in the second model give it the input of the first; a hook before `forward`.

        A layer inside of another layer with weights has no call of its own.

        Args:
            place: the name of the layer in its model.
            layer: the layer.
            args: its positional arguments.
            kwargs: those by keyword.

        Returns:
            The arguments that it gets instead; `None` if they stay.
        """
        self._depth += 1
        if self._depth > 1:
            return None  # a part of a layer with weights
        call = self._call_of(place, layer, (args, kwargs))
        call.partner = self._partner_of(call)  # before it is among the calls, whose partners are taken
        self.calls.append(call)
        # Layers run without a graph: it would only take memory.
        detached = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        if self._first is None:
            self._store_input(call, detached)
        return self._with_input_of_partner(call, detached)

    def _call_of(self, place: str, layer: nn.Module, arguments: tuple[Any, Any]) -> Call:
        """Return the record of a layer that runs now on some arguments, without what it returns.

        Args:
            place: the name of the layer in its model.
            layer: the layer.
            arguments: the positional ones and those by keyword.
        """
        tensors = floats_of(arguments)
        weights = {name: Fingerprint.of(item) for name, item in own_tensors(layer).items()}
        # Apart: one of two layers with the same weights may lack it.
        bias = weights.pop("bias", None)
        return Call(
            place,
            layer,
            weights=sorted(weights.values()),  # their names may differ between the models
            bias=bias,
            inputs=[Digest.of(item) for item in tensors],
            has_whole_numbers=are_whole_numbers(arguments),
            origin=self.origin_of(tensors),
        )

    def _partner_of(self, call: Call) -> Call | None:
        """Return the call of the first model with the same weights; `None` without one, and in the first model itself.

        Of several such calls one with the same bias comes first, and of these one with the same input, and else the
        first that ran. A call of the first model is the partner of one call only.

        Args:
            call: a call that is not among `calls` yet.
        """
        if self._first is None:
            return None
        taken = {id(earlier.partner) for earlier in self.calls}
        candidates = []
        for other in self._first.calls:
            # One of the two may lack the bias.
            if other.weights == call.weights and id(other) not in taken:
                candidates.append(other)

        def best_first(other: Call) -> tuple[bool, bool]:
            return other.bias != call.bias, not match(other.inputs, call.inputs)

        return min(candidates, key=best_first, default=None)

    def _store_input(self, call: Call, arguments: tuple[Any, Any]) -> None:
        """Store the input of a layer of the first model, unless it is too large; smaller ones may fit after it.

        Args:
            call: of the layer.
            arguments: see `_with_input_of_partner`.
        """
        tensor = _only_float_of(arguments)
        if tensor is not None and self._elements_left_to_store >= tensor.numel():
            call.stored_input = tensor.clone()
            self._elements_left_to_store -= tensor.numel()

    def _with_input_of_partner(self, call: Call, arguments: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the arguments that a layer gets: its own model's, with the input of its partner if that differs.

        They stay if it has no partner, or if the partner's input is not stored or does not fit.

        Args:
            call: of the layer, whose `inputs` are digests of the arguments; `ran_on_same_input` is set.
            arguments: the positional ones and those by keyword that its own model gave it.
        """
        if call.partner is None:
            return arguments
        if same_inputs(call, call.partner):
            call.ran_on_same_input = True
            return arguments
        own_input = _only_float_of(arguments)
        input_of_partner = None if own_input is None else _fitting_input(call.partner, own_input)
        if input_of_partner is None:
            return arguments
        call.ran_on_same_input = True
        return _with_only_float(input_of_partner, arguments)

    # A layer that ends

    def _end(self, layer: nn.Module, args: Any, output: Any) -> Any:
        """Record what a layer returned, in the last of `calls`, which `_begin` has added; a hook after `forward`.

        It is registered with `always_call`, and so runs after an error, too.

        Args:
            layer: the layer.
            args: its positional arguments, which are not used.
            output: what it returned; `None` if that is nothing, or it raised an error.

        Returns:
            What the model goes on with: the output, where autograd's graph begins anew, so that `origin_of` finds for
            later values from which calls they come. `None` if it stays.
        """
        self._depth -= 1
        if self._depth > 0:
            return None  # a part of a layer with weights
        if output is None:
            # The model may catch the error. There is nothing to compare: the call does not count.
            self.calls.pop()
            return None
        tensors = floats_of(output)
        if isinstance(layer, _NORMS) and layer.training:
            # In training it updates its statistics, which are among its own tensors.
            tensors += own_tensors(layer).values()
        self.calls[-1].outputs = [Digest.of(item) for item in tensors]
        return self.beginning_at(output, source=len(self.calls) - 1)


def _only_float_of(arguments: tuple[Any, Any]) -> torch.Tensor | None:
    """Return the only tensor of a floating-point type among the arguments; `None` if there is none, or several.

    Of several nobody knows which one is wrong: none is replaced.
    """
    tensors = floats_of(arguments)
    return tensors[0] if len(tensors) == 1 else None


def _fitting_input(partner: Call, tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the input of a call of the first model for the same layer of the second; `None` if it would not fit.

    Args:
        partner: the call of the first model.
        tensor: the input of the layer in its own model, the second.
    """
    if partner.stored_input is None:
        return None
    stored_input = partner.stored_input.clone()
    if stored_input.numel() == tensor.numel():
        # The models may give the same numbers in other shapes, as rows and as images of one pixel.
        return stored_input.reshape(tensor.shape)
    # Of other sizes, as behind another padding, it fits as well; with more dimensions it would not.
    return stored_input if stored_input.dim() == tensor.dim() else None


def _with_only_float(tensor: torch.Tensor, arguments: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the arguments of a layer with a tensor in place of the only one of a floating-point type."""

    def replaced(item: torch.Tensor) -> torch.Tensor:
        return tensor if item.is_floating_point() else item

    args, kwargs = tree_map_only(torch.Tensor, replaced, arguments)
    return args, kwargs
