"""Two models on the same input: each layer with weights against that of the other model with the same weights.

While a model runs, hooks record what its layers with weights take and return. The second model runs with the inputs of
the first: a layer whose input differs gets that of the layer with the same weights, so that each difference is found
where it arises. What lies between layers is read from the graph of autograd, whose nodes name the operations.
May import graph and nn.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from math import isfinite
from typing import Any

import torch
from attrs import field
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from ...data import define
from ...errors import ModelError
from ...text import listed
from .layer import first_line

CLOSE = 1e-9
"""Largest difference of two values that are the same, relative to their norm: both are computed in double precision."""
_CHUNK = 1 << 16
"""Elements of a tensor that are digested at once."""
_MOST_STORED = 1 << 27
"""Maximum number of elements of the inputs that are stored to correct those of the second model: 1 GiB."""
_MOST_NAMED = 4
"""Operations that a text names."""
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_SHAPE_OPERATIONS = (
    *("accumulate_grad", "alias", "clone", "expand", "permute", "reshape_alias", "select", "slice", "split", "squeeze"),
    *("t", "to_copy", "transpose", "unbind", "unsafe_view", "unsqueeze", "view"),
)
"""Operations that pass numbers on, in another shape; `accumulate_grad` is that of a parameter as it is."""
INPUT = -1
"""The source of what comes from the input of the model, and from no layer with weights."""
_AT_THE_END = "at the end"
"""The place between the last layers with weights and the output of the model."""


# Values


@define(eq=False)
class Digest:
    """A fingerprint of a tensor, which tells values apart without storing them.

    Attributes:
        numel: the number of elements.
        norm: the Euclidean norm.
        projection: the sum of the elements, each times a random number, relative to the norm; 0 if all are zeros.
    """

    numel: int
    norm: float
    projection: float

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Digest:
        """Return the digest of a real tensor, which does not depend on its shape."""
        values = tensor.detach().reshape(-1).double()
        norm = float(values.norm())
        # An element's factor is one random number for its place in a chunk, times one for the chunk. There are enough
        # of the latter for 2^32 elements, 32 GiB.
        random = _random_numbers()
        whole_chunks = len(values) // _CHUNK
        chunks = values[: whole_chunks * _CHUNK].view(whole_chunks, _CHUNK)
        rest = values[whole_chunks * _CHUNK :]
        projection = float(rest @ random[: len(rest)] * random[whole_chunks])
        if whole_chunks:
            projection += float((chunks @ random) @ random[:whole_chunks])
        return cls(len(values), norm, projection / norm if norm else 0.0)

    @property
    def is_finite(self) -> bool:
        """Whether all elements are numbers, and none is infinite."""
        return isfinite(self.norm)

    def matches(self, other: Digest) -> bool:
        """Return whether two values are the same, apart from rounding in double precision.

        Values that are not finite match none: what is made of them might be not a number in either model.
        """
        if self.numel != other.numel:
            return False
        is_same_norm = abs(self.norm - other.norm) <= CLOSE * max(self.norm, other.norm)
        return is_same_norm and abs(self.projection - other.projection) <= CLOSE


@cache
def _random_numbers() -> torch.Tensor:
    """Return the factors of a projection, the same in each process."""
    return torch.randn(_CHUNK, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _match(values: list[Digest], others: list[Digest]) -> bool:
    """Return whether two lists of values are the same."""
    return len(values) == len(others) and all(map(Digest.matches, values, others))


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a value."""
    return [item for item in tree_leaves(value) if isinstance(item, torch.Tensor)]


def _floats(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a value that are of a floating-point type."""
    return [item for item in _tensors(value) if item.is_floating_point()]


def _are_whole_numbers(value: Any) -> bool:
    """Return whether a value has tensors, and all their elements are whole numbers, of whatever type."""
    tensors = _tensors(value)
    return bool(tensors) and all(not item.is_floating_point() or torch.equal(item, item.round()) for item in tensors)


def _own_tensors(layer: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's own weights and statistics, by name."""
    tensors = {**dict(layer.named_parameters(recurse=False)), **dict(layer.named_buffers(recurse=False))}
    return {name: item for name, item in tensors.items() if item.is_floating_point() and item.numel()}


def _fingerprint(tensor: torch.Tensor) -> tuple[int, int]:
    """Return what tells weights apart, in whatever layout: their number, and the sum of their bits.

    The sum of a tensor is kept for the next run of its layer.
    """
    no_version = -1
    version, bits = _sums_of_bits.get(tensor, (no_version, 0))
    if version != tensor._version:
        bits = int(tensor.detach().double().contiguous().view(torch.int64).sum())
        _sums_of_bits[tensor] = tensor._version, bits
    return tensor.numel(), bits


_sums_of_bits: Any = WeakIdKeyDictionary()
"""By tensors, not by what they hold: their version, which a change in place raises, and the sum of their bits then."""


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
    """One run of a layer with weights.

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
        partner: the run of the first model with the same weights; `None` without one.
        ran_on_same_input: whether it ran on the input of its partner: its own model gave it the same, or it was given
            the partner's instead.
    """

    place: str
    layer: nn.Module
    weights: list[tuple[int, int]]
    bias: tuple[int, int] | None
    inputs: list[Digest]
    has_whole_numbers: bool
    origin: Origin
    stored_input: torch.Tensor | None = field(default=None, repr=False)
    outputs: list[Digest] = field(factory=list)
    partner: Call | None = field(default=None, repr=False)
    ran_on_same_input: bool = False


def _same_inputs(call: Call, other: Call) -> bool:
    """Return whether two layers got the same input. Any tokens count as the same, if one got them as integers.

    Tokens may count from 0 in one model and from 1 in the other, and may be floats in one, or one-hot vectors. Whether
    they mean the same, the outputs of the layers tell.
    """
    # Whole numbers that both got as floats may be anything: they are compared. `inputs` has floats alone: it is empty
    # for a layer that got its tokens as integers.
    has_integers = not call.inputs or not other.inputs
    if has_integers and call.has_whole_numbers and other.has_whole_numbers:
        return True
    return _match(call.inputs, other.inputs)


class RecordedPass:
    """One pass of a model, and what its layers with weights took and returned in it.

    Args:
        model: the model.
        value: its input.
        training: whether normalization is in training mode. Nothing else is, so that nothing is random.
        first: the pass of the first model, whose inputs the layers of this one get; `None` for the first itself.

    Attributes:
        calls: the runs of layers with weights, in order.
        result: the outputs of the model; empty if it was stopped.
        outputs: the same as digests.
        origin: of the outputs.
        error: what stopped the model; empty if nothing did.

    The constructor runs the model.
    """

    def __init__(self, model: nn.Module, value: Any, training: bool, first: RecordedPass | None = None) -> None:
        self.calls: list[Call] = []
        self.result: list[torch.Tensor] = []
        self.outputs: list[Digest] = []
        self.origin = Origin()
        self.error = ""
        self._first = first
        self._elements_left_to_store = _MOST_STORED
        self._sources: dict[int, int] = {}
        """The number of the call that returned each leaf of autograd's graph, by its id; `INPUT` for the input."""
        self._leaves: list[torch.Tensor] = []
        """The leaves, which are kept alive as their ids are the keys of `_sources`."""
        self._depth = 0
        """Layers with weights that run now, one inside the other."""
        self._run(model, value, training)

    def _run(self, model: nn.Module, value: Any, training: bool) -> None:
        """Run the model, and set the attributes; what it does to its buffers is undone, but not its mode.

        Args:
            model: the model.
            value: its input.
            training: whether normalization is in training mode.
        """
        buffers = {name: item.clone() for name, item in model.named_buffers()}
        try:
            with self._hooks(model, training), torch.enable_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = model(self._leaf(value, INPUT))
            outputs = _tensors(result)
            self.result = [item.detach() for item in outputs]
            self.outputs = [Digest.of(item) for item in self.result]
            self.origin = self._origin(outputs)
        except Exception as error:  # the user's code may raise anything
            self.error = f"{type(error).__name__}: {first_line(error)}"
        finally:
            with torch.no_grad():  # autograd would record the copies
                for name, item in model.named_buffers():
                    item.copy_(buffers[name])

    @contextmanager
    def _hooks(self, model: nn.Module, training: bool) -> Iterator[None]:
        """Set the mode of all layers, and in the block call `_begin` and `_end` around each layer with weights.

        Args:
            model: the model.
            training: whether normalization is in training mode; all other layers are in evaluation mode.
        """
        model.eval()
        for layer in model.modules():
            if isinstance(layer, _NORMS):
                layer.train(training)
        handles = []
        # The modules of TorchScript's archives call no hooks.
        if not isinstance(model, torch.jit.ScriptModule):
            for place, layer in model.named_modules():
                if _own_tensors(layer):
                    begin = partial(self._begin, place)
                    handles.append(layer.register_forward_pre_hook(begin, with_kwargs=True))
                    # Also if the layer raises an error, so that each beginning has an end.
                    handles.append(layer.register_forward_hook(self._end, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _leaf(self, value: Any, source: int) -> Any:
        """Return a value whose tensors are leaves of autograd's graph: it ends at them, and they tell their source.

        Args:
            value: the input of the model, or what a layer with weights has returned.
            source: `INPUT`, or the number of the call that has returned it.
        """

        def begin_at(item: torch.Tensor) -> torch.Tensor:
            """Let the graph begin at a tensor, so that `_origin` finds `source` on its way back from later tensors.

            No gradient is ever computed. Whole numbers, which have no graph, are returned as they are.
            """
            if not item.is_floating_point():
                return item
            start = item.detach().requires_grad_()
            self._leaves.append(start)
            self._sources[id(start)] = source
            # The model gets a copy, which its operations in place may change: they may not change a leaf.
            return start.clone()

        return tree_map_only(torch.Tensor, begin_at, value)

    @property
    def is_finite(self) -> bool:
        """Whether the model and its layers with weights took and returned nothing but finite numbers."""
        digests = list(self.outputs)
        for call in self.calls:
            digests += call.inputs
            digests += call.outputs
        return all(digest.is_finite for digest in digests)

    def _origin(self, tensors: Iterable[torch.Tensor]) -> Origin:
        """Return where tensors come from: back to the results of other layers with weights, and to the input.

        Autograd's graph goes no further back: `_leaf` has made these its leaves.
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
        call = self._call_of(place, layer, [args, kwargs])
        call.partner = self._partner(call)  # before it is among the calls, whose partners are used
        self.calls.append(call)
        return self._right_arguments(call, args, kwargs)

    def _right_arguments(self, call: Call, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments that a layer gets: its own model's, with the input of the first model if it has one.

        Args:
            call: its run, whose `stored_input` and `ran_on_same_input` are set.
            args: the positional arguments that its own model gave it.
            kwargs: those by keyword.
        """
        tensors = _floats([args, kwargs])
        # Layers run without a graph: it would only take memory.
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        if len(tensors) != 1:
            # Which of several inputs is wrong is not known: none is corrected.
            call.ran_on_same_input = call.partner is not None and _same_inputs(call, call.partner)
            return args, kwargs
        (tensor,) = tensors
        right_input = self._right_input(call, tensor.detach())
        args, kwargs = _with_only_float(right_input, (args, kwargs))
        return args, kwargs

    def _call_of(self, place: str, layer: nn.Module, arguments: Any) -> Call:
        """Return the record of a layer that runs now on some arguments, without what it returns.

        Args:
            place: the name of the layer in its model.
            layer: the layer.
            arguments: a list of the positional arguments and those by keyword.
        """
        tensors = _floats(arguments)
        weights = {name: _fingerprint(item) for name, item in _own_tensors(layer).items()}
        # Apart: one of two layers with the same weights may lack it.
        bias = weights.pop("bias", None)
        return Call(
            place,
            layer,
            weights=sorted(weights.values()),
            bias=bias,
            inputs=[Digest.of(item) for item in tensors],
            has_whole_numbers=_are_whole_numbers(arguments),
            origin=self._origin(tensors),
        )

    def _right_input(self, call: Call, tensor: torch.Tensor) -> torch.Tensor:
        """Return what a layer gets as its only input: in the second model what its partner got, if it fits.

        Args:
            call: its run, whose `stored_input` and `ran_on_same_input` are set.
            tensor: what its own model gave it, of which `call.inputs` has the digest.
        """
        if self._first is None:
            self._store_input(call, tensor)
        if call.partner is None:
            return tensor
        call.ran_on_same_input = _same_inputs(call, call.partner)
        if call.ran_on_same_input or call.partner.stored_input is None:
            return tensor
        wanted = call.partner.stored_input.clone()
        if wanted.numel() == tensor.numel():
            # The models may give the same numbers in other shapes, as rows and as images of one pixel.
            wanted = wanted.reshape(tensor.shape)
        # Of other sizes, as behind another padding, it fits as well; with more dimensions it would not.
        call.ran_on_same_input = wanted.dim() == tensor.dim()
        return wanted if call.ran_on_same_input else tensor

    def _store_input(self, call: Call, tensor: torch.Tensor) -> None:
        """Store the input of a layer of the first model, unless it is too large; smaller ones may fit after it.

        Args:
            call: the run of the layer.
            tensor: its only input.
        """
        if self._elements_left_to_store >= tensor.numel():
            call.stored_input = tensor.clone()
            self._elements_left_to_store -= tensor.numel()

    def _end(self, layer: nn.Module, args: Any, output: Any) -> Any:
        """Record what a layer returned, in the last of `calls`, which `_begin` has added; a hook after `forward`.

        It is registered with `always_call`, and so runs after an error, too.

        Args:
            layer: the layer.
            args: its positional arguments, which are not used.
            output: what it returned; `None` if that is nothing, or it raised an error.

        Returns:
            What the model goes on with; `None` if the output stays. Autograd's graph begins there anew, so that
            `_origin` finds for later values from which calls they come.
        """
        self._depth -= 1
        if self._depth > 0:
            return None  # a part of a layer with weights
        if output is None:
            # The model may catch the error. There is nothing to compare: the call does not count.
            self.calls.pop()
            return None
        tensors = _floats(output)
        if isinstance(layer, _NORMS) and layer.training:
            # In training it updates its statistics.
            tensors += _own_tensors(layer).values()
        self.calls[-1].outputs = [Digest.of(item) for item in tensors]
        return self._leaf(output, source=len(self.calls) - 1)

    def _partner(self, call: Call) -> Call | None:
        """Return the run of the first model with the same weights; `None` without one, and in the first model itself.

        Of several such runs one with the same bias comes first, and of these one with the same input, and else the
        first that ran. A run of the first model is the partner of one run only.

        Args:
            call: a run that is not among `calls` yet.
        """
        if self._first is None:
            return None
        used = {id(earlier.partner) for earlier in self.calls}
        candidates = []
        for other in self._first.calls:
            # One of the two may lack the bias.
            if other.weights == call.weights and id(other) not in used:
                candidates.append(other)

        def best_first(other: Call) -> tuple[bool, bool]:
            return other.bias != call.bias, not _match(other.inputs, call.inputs)

        return min(candidates, key=best_first, default=None)


def _with_only_float(tensor: torch.Tensor, arguments: Any) -> Any:
    """Return the arguments of a layer with a tensor in place of the only one of a floating-point type."""

    def replaced(item: torch.Tensor) -> torch.Tensor:
        return tensor if item.is_floating_point() else item

    return tree_map_only(torch.Tensor, replaced, arguments)


# The comparison


@define(eq=False)
class Comparison:
    """The differences of two models on one input in one mode, each described where it arises.

    Attributes:
        mine: the pass of the first model, that of Lua. In all methods `mine` and `my_` are of the first model.
        theirs: the pass of the second model, run with the inputs of the first. `theirs` and `their_` are of the second.
        label: the name of the second model.
        places_by_text: what differs, in words → the places where it does, none for the models as a whole; empty if all
            agrees. See `differences`.
        misplaced: whether layers get what others get in the first: their weights may be those of other layers, and
            comparing on another input would show nothing new.
        differing: the runs of the first model to which those of the second differ, in input or output, by id.

    `run` sets the last three.
    """

    mine: RecordedPass
    theirs: RecordedPass
    label: str
    places_by_text: dict[str, list[str]] = field(factory=dict)
    misplaced: bool = False
    differing: set[int] = field(factory=set)

    @property
    def differences(self) -> list[str]:
        """What differs, in words, with the places where it does."""
        texts = []
        for text, places in self.places_by_text.items():
            if not places:
                texts.append(text)
            elif places == [_AT_THE_END]:
                texts.append(f"{_AT_THE_END}, {text}")
            else:
                texts.append(f"{text}: {listed(places)}")
        return texts

    def run(self) -> None:
        """Compare what the layers and the models took and returned; see the class for what is set."""
        # The calls of the second model, by number, that returned other values: these explain what differs behind them.
        wrong: set[int] = set()
        for number, call in enumerate(self.theirs.calls):
            if call.partner is None:  # nothing to compare with; if it matters, what is made of its result differs
                continue
            if not call.origin.sources & wrong:
                self._compare_inputs(call, call.partner)
            if _match(call.outputs, call.partner.outputs):
                continue
            wrong.add(number)
            # Outputs for another input say nothing of the layer.
            if call.ran_on_same_input:
                self.differing.add(id(call.partner))
                self._compare_layers(call.partner, call, _place_of(call, call.partner))
        if self.theirs.error:
            self._note(f"then {self.label} stops: {self.theirs.error}")
        elif not _match(self.mine.outputs, self.theirs.outputs) and not self.theirs.origin.sources & wrong:
            self._compare_origins(self.mine.origin, self.theirs.origin, _AT_THE_END)

    def _compare_inputs(self, call: Call, partner: Call) -> None:
        """Compare what both models give to a layer, before a wrong input of the second was replaced by the first's.

        Args:
            call: the run of the layer in the second model.
            partner: that in the first.
        """
        if _same_inputs(partner, call):
            return
        self.differing.add(id(partner))
        if self._gets_input_of_another(call, partner):
            self.misplaced = True
        self._compare_origins(partner.origin, call.origin, f"before {_place_of(call, partner)}")

    def _gets_input_of_another(self, call: Call, partner: Call) -> bool:
        """Return whether a layer gets what another one of its size gets in the first model.

        Args:
            call: the run of the layer in the second model.
            partner: that in the first.
        """
        sizes = [numel for numel, _ in call.weights]
        for other in self.mine.calls:
            is_of_same_size = [numel for numel, _ in other.weights] == sizes
            if other is not partner and is_of_same_size and _match(other.inputs, call.inputs):
                return True
        return False

    def _note(self, text: str, place: str = "") -> None:
        """Note a difference, and where it is; without a place it is one of the models as a whole."""
        places = self.places_by_text.setdefault(text, [])
        if place:
            places.append(place)

    def _note_options(self, name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any], place: str) -> bool:
        """Note the options of an operation or a layer that differ, and return whether there are any.

        Args:
            name: of the operation, or of the layer's class.
            mine: the options in the first model, by name; those that only one of the two has do not count.
            theirs: those in the second.
            place: where they are, in words.
        """
        differing = [option for option in mine if option in theirs and mine[option] != theirs[option]]
        for option in differing:
            values = f"{mine[option]} in the .t7 and {theirs[option]} in {self.label}"
            self._note(f"{option} of {name} is {values}", place)
        return bool(differing)

    def _compare_layers(self, mine: Call, theirs: Call, place: str) -> None:
        """Describe why two layers with the same weights return different values for the same input.

        Args:
            mine: the run of the layer in the first model.
            theirs: that in the second.
            place: where they are, in words.
        """
        has_options = self._note_options(
            type(theirs.layer).__name__, _options_of(mine.layer), _options_of(theirs.layer), place
        )
        if mine.bias is None and theirs.bias is not None:
            self._note(f"only {self.label} has a bias", place)
        elif mine.bias is not None and theirs.bias is None:
            self._note("only the .t7 has a bias", place)
        elif mine.bias != theirs.bias:
            self.misplaced = True
            self._note("the bias differs", place)
        elif not has_options:
            self._note(f"{self.label} computes another {type(mine.layer).__name__}", place)

    def _compare_origins(self, mine: Origin, theirs: Origin, where: str) -> None:
        """Describe what lies between two values that differ and the layers that they come from.

        Args:
            mine: the origin in the first model.
            theirs: that in the second.
            where: the values, in words.
        """
        if not self.theirs.calls:
            # No hook was called: the layers are those of TorchScript, or plain functions. What they take is not known,
            # and may be what others get in the first model.
            self.misplaced = True
            self._note(f"{self.label} returns another value than the .t7", where)
            return
        if mine.sources != self._partners_of_sources(theirs):
            self.misplaced = True
            sources = f"{self._places(self.mine, mine)} in the .t7 and {self._places(self.theirs, theirs)}"
            self._note(f"values come from {sources} in {self.label}", where)
        else:
            self._compare_operations(mine, theirs, where)

    def _partners_of_sources(self, theirs: Origin) -> set[int | None]:
        """Return the sources of a value of the second model, by the numbers of their partners in the first.

        `None` is among them for a layer without a partner.
        """
        numbers = {id(call): number for number, call in enumerate(self.mine.calls)}
        partners: set[int | None] = set()
        for source in theirs.sources:
            if source == INPUT:
                partners.add(INPUT)
            else:
                partners.add(numbers.get(id(self.theirs.calls[source].partner)))
        return partners

    def _compare_operations(self, mine: Origin, theirs: Origin, where: str) -> None:
        """Describe how the operations differ by which two values are made from the same layers' results.

        Args:
            mine: the origin in the first model.
            theirs: that in the second.
            where: the values, in words.
        """
        my_operations, their_operations = _without_common(mine.operations, theirs.operations)
        if self._note_options_of_chains(my_operations, their_operations, where):
            return
        my_names = [operation.name for operation in my_operations]
        their_names = [operation.name for operation in their_operations]
        if not my_names and not their_names:
            # The same operations on the same values, in another order, such as those of a concatenation.
            self.misplaced = True
            self._note(f"{self.label} takes another value than the .t7", where)
        elif not their_names:
            self._note(f"the .t7 computes {_chain(my_names)}, and {self.label} does not", where)
        elif not my_names:
            self._note(f"{self.label} computes {_chain(their_names)}, and the .t7 does not", where)
        else:
            text = f"the .t7 computes {_chain(my_names)} where {self.label} computes {_chain(their_names)}"
            self._note(text, where)

    def _note_options_of_chains(self, mine: list[Operation], theirs: list[Operation], where: str) -> bool:
        """Note the options that differ between operations of one name, and return whether there are any.

        The first operation of a name is compared with the first of that name, and so on; one too many has no partner.

        Args:
            mine: the operations of the first model, in order.
            theirs: those of the second.
            where: their place, in words.
        """
        differ = False
        for name in dict.fromkeys(operation.name for operation in mine):
            my_operations = [operation for operation in mine if operation.name == name]
            their_operations = [operation for operation in theirs if operation.name == name]
            for my_operation, their_operation in zip(my_operations, their_operations):
                my_options = dict(my_operation.options)
                their_options = dict(their_operation.options)
                differ |= self._note_options(name, my_options, their_options, where)
        return differ

    def _places(self, recorded_pass: RecordedPass, origin: Origin) -> str:
        """Name the layers that a value of a pass comes from; those of the second model with their places in the first.

        It is "nothing" for a value that depends on no layer with weights and not on the input.

        Args:
            recorded_pass: that of either model; the sources are numbers of its calls.
            origin: of the value.
        """
        names = []
        for source in sorted(origin.sources):
            if source == INPUT:
                names.append("the input")
                continue
            call = recorded_pass.calls[source]
            name = call.place or "the model"
            names.append(f"{name} ({call.partner.place})" if call.partner is not None else name)
        return listed(names) if names else "nothing"


def _place_of(call: Call, partner: Call) -> str:
    """Name a layer by its place in the second model, and in the first."""
    return f"{call.place or 'the model'} ({partner.place or 'root'})"


def _options_of(layer: nn.Module) -> dict[str, Any]:
    """Return what PyTorch lists as the constants of a module, by name, such as its stride and padding."""
    options = {}
    for name in getattr(layer, "__constants__", ()):
        value = getattr(layer, name, None)
        if not isinstance(value, torch.Tensor):
            options[name] = value
    return options


def _without_common(mine: list[Operation], theirs: list[Operation]) -> tuple[list[Operation], list[Operation]]:
    """Return two chains of operations without what both begin with, and without what both end with.

    Args:
        mine: the operations of the first model, in order.
        theirs: those of the second.
    """
    while mine and theirs and mine[0] == theirs[0]:
        mine = mine[1:]
        theirs = theirs[1:]
    while mine and theirs and mine[-1] == theirs[-1]:
        mine = mine[:-1]
        theirs = theirs[:-1]
    return mine, theirs


def _chain(names: list[str]) -> str:
    """Name operations that follow one another."""
    text = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{text} and {more} more operations" if more > 0 else text


def normalizes(model: nn.Module) -> bool:
    """Return whether training mode differs, apart from random numbers."""
    return any(isinstance(layer, _NORMS) for layer in model.modules())


def compare(mine: nn.Module, theirs: nn.Module, label: str, value: Any, training: bool) -> Comparison:
    """Compare two models.

    Args:
        mine: the first, which computes in double precision.
        theirs: the second, likewise.
        label: its name.
        value: the input.
        training: whether normalization is in training mode. Nothing else is, so that nothing is random.

    Raises:
        ModelError: the first does not accept the value, or computes something that is not finite.
    """
    first = RecordedPass(mine, value, training)
    if first.error:
        raise ModelError(f"a model does not accept the input: {first.error}")
    if not first.is_finite:
        # As the logarithm of a number below 0: nothing behind it can be compared.
        raise ModelError("a model computes no finite numbers for the input", hint="Choose one: --input in.t7.")
    second = RecordedPass(theirs, value, training, first)
    comparison = Comparison(first, second, label)
    comparison.run()
    return comparison
