"""Two models on the same input, operation by operation: whether they compute the same, and if not, where they part.

Each operation of PyTorch is recorded with its options and with digests of its tensors; of activations, only the inputs
of layers with weights are kept. A digest does not depend on the shape: a view is the value that it shows. Values that
both models compute need no explanation, however they were computed. Of the others, the second model is run again with
the options of the first wherever the same operation gets the same input, and with the first one's input wherever a
layer with the same weights gets another: if the outputs then agree, the differences found are all.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from attrs import evolve, field
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ...data import define
from ...errors import ModelError
from ...text import listed
from .layer import flat, mapped

CLOSE = 1e-9
"""Largest difference of two values that are the same, relative to their norm: both are computed in double precision."""
_CHUNK = 1 << 16
"""Elements of a tensor that are digested at once."""
_MOST_INPUTS = 1 << 27
"""Maximum number of elements of the inputs of layers that are stored to explain a difference: 1 GiB."""
_MOST_NAMED = 4
"""Operations that a text names."""
_STATISTICS = ("running_mean", "running_var")
"""Arguments of batch normalization that it updates in training."""
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
ENDS = "at the end"


class _Values:
    """Numbers of values: tensors of equal content have the same, whatever their shape."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, bool], tuple[list[torch.Tensor], list[int]]] = {}
        """Digests and numbers of all values, by their number of elements and whether order counts."""
        self._count = 0
        self._numbers: dict[tuple[int, bool], tuple[Any, int, int]] = {}
        """A reference to each tensor, its version then, and its number, by its id and whether order counts."""
        self._weights = torch.randn(_CHUNK, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def number(self, tensor: torch.Tensor, ordered: bool = True) -> int:
        """Return the number of a tensor; of a weight, which may be transposed, without regard to order."""
        key = id(tensor), ordered
        reference, version, number = self._numbers.get(key, (None, 0, 0))
        if reference is not None and reference() is tensor and version == tensor._version:
            return number
        number = self._number_of_value(tensor.detach().reshape(-1).double(), ordered)
        self._numbers[key] = weakref.ref(tensor), tensor._version, number
        return number

    def forget(self) -> None:
        """Note that a tensor was written to, whose version is only raised later."""
        self._numbers.clear()

    def _number_of_value(self, values: torch.Tensor, ordered: bool) -> int:
        """Return the number of the value with the same digest and norm, or a new one."""
        norm = values.norm()
        if ordered:
            digest = self._projected(values)
            scale = norm
        else:
            digest = values.sum()
            scale = values.abs().sum()
        row = torch.stack([digest / scale.clamp(min=1e-300), norm])
        rows, numbers = self._digests.setdefault((len(values), ordered), ([], []))
        if rows:
            others = torch.stack(rows)
            distance = (others[:, 0] - row[0]).abs()
            if norm:
                distance = distance + (others[:, 1] / norm - 1).abs()
            is_same = distance <= CLOSE
            if bool(is_same.any()):
                return numbers[int(is_same.long().argmax())]
        self._count += 1
        rows.append(row)
        numbers.append(self._count)
        return self._count

    def _projected(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of values by random weights, those of its chunk and of its place there."""
        chunks = len(values) // _CHUNK
        whole = values[: chunks * _CHUNK].view(chunks, _CHUNK) @ self._weights
        rest = values[chunks * _CHUNK :]
        return whole @ self._weights[:chunks] + rest @ self._weights[_CHUNK - len(rest) :]


@define(eq=False)
class Step:
    """One operation.

    Attributes:
        place: the name of the module that computed it.
        function: its name in PyTorch.
        options: its arguments that are not tensors, by name.
        inputs: numbers of the computed tensors that it got.
        weights: numbers of the weights and statistics that it got.
        largest: the number of the largest of these; 0 without.
        outputs: numbers of what it returned, and of statistics that it updated.
        first_input: its first input, if it has weights and these are kept.
    """

    place: str
    function: str
    options: dict[str, Any]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    largest: int
    outputs: tuple[int, ...]
    first_input: torch.Tensor | None = field(default=None, repr=False)


@define(eq=False)
class Trace:
    """What a model computed.

    Attributes:
        steps: its operations, without those that only pass a value on.
        result: its outputs.
        outputs: their numbers.
        inputs: the numbers of its inputs.
        modules: the numbers of the outputs of each module, by its name, in the order in which they ended.
        error: what stopped it; empty if nothing did.
    """

    steps: list[Step] = field(factory=list)
    result: list[torch.Tensor] = field(factory=list)
    outputs: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    modules: dict[str, list[int]] = field(factory=dict)
    error: str = ""

    @property
    def makers(self) -> dict[int, Step]:
        """The first operation that returned each value, by its number."""
        return {output: step for step in reversed(self.steps) for output in step.outputs}

    @property
    def values(self) -> set[int]:
        """The numbers of all values."""
        return {*self.inputs, *self.makers}


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What runs while a model computes.

    Args:
        model: the model.
        values: the numbers of values.
        guide: the trace of the first model, to correct this one by.
        label: the name of the model.
    """

    def __init__(self, model: nn.Module, values: _Values, guide: Trace | None = None, label: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self.label = label
        self.options: dict[str, list[str]] = {}
        """Where options differ, by the difference in words."""
        self.texts: list[str] = []
        """Other differences."""
        self.misplaced = False
        """See `Comparison`."""
        self._places = [""]
        """The names of the modules that run, the innermost last."""
        self._values = values
        self._guide = guide
        self._room = _MOST_INPUTS
        """Elements that may still be stored."""
        storages = {item.untyped_storage().data_ptr() for item in chain(model.parameters(), model.buffers())}
        self._weights = storages - {0}  # that of tensors without elements
        self._values_of_guide = guide.values if guide is not None else set()
        self._partners: set[int] = set()
        """The ids of steps of the guide that were partners."""
        self._named: set[int] = set()
        """The ids of steps that a text names already."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record it."""
        arguments = _named_arguments(func, args, kwargs or {})
        computed: list[tuple[str, torch.Tensor]] = []
        weights: list[torch.Tensor] = []
        for name, value in arguments.items():
            if not _holds_tensors(value):
                continue
            for tensor in flat(value):
                if not tensor.is_floating_point():
                    continue
                if tensor.untyped_storage().data_ptr() in self._weights:
                    weights.append(tensor)
                else:
                    computed.append((name, tensor))
        if not computed:
            return func(*args, **(kwargs or {}))
        step = self._step(func, arguments, [tensor for _, tensor in computed], weights)
        name, first_input = computed[0]
        if self._guide is not None:
            result, step = self._guided(func, arguments, step, name, first_input)
        else:
            if weights and self._room >= first_input.numel():
                step.first_input = first_input.clone()
                self._room -= first_input.numel()
            result = self._ran(func, arguments, step)
        # What only passes a value on, such as a view, is no step.
        if not set(step.outputs) <= set(step.inputs):
            self.trace.steps.append(step)
        return result

    def _step(
        self, func: Any, arguments: dict[str, Any], computed: list[torch.Tensor], weights: list[torch.Tensor]
    ) -> Step:
        """Return the record of an operation before it runs."""
        numbers = [self._values.number(item, ordered=False) for item in weights]
        largest = 0
        if weights:
            sizes = [item.numel() for item in weights]
            largest = numbers[sizes.index(max(sizes))]
        name = func.overloadpacket.__name__
        return Step(
            place=self._places[-1],
            # The names of one operation in its forms: add_, _softmax, native_batch_norm, max_pool2d_with_indices.
            function=name.rstrip("_").lstrip("_").removeprefix("native_").removesuffix("_with_indices"),
            options={key: _plain(value) for key, value in arguments.items() if not _holds_tensors(value)},
            inputs=tuple(self._values.number(item) for item in computed),
            weights=tuple(numbers),
            largest=largest,
            outputs=(),
        )

    def _ran(self, func: Any, arguments: dict[str, Any], step: Step) -> Any:
        """Run an operation, and complete the step with what it returned."""
        result = func(**arguments)
        if arguments.get("training") or any(_is_written(func, name) for name in arguments):
            self._values.forget()
        outputs = [item for item in flat(result) if item.is_floating_point() and item.numel()]
        if step.function == "batch_norm":
            # The others are its mean and deviation, for gradients.
            outputs = outputs[:1]
            if arguments.get("training"):
                outputs += [arguments[name] for name in _STATISTICS if arguments[name] is not None]
        step.outputs = tuple(self._values.number(item) for item in outputs)
        return result

    def enter(self, name: str, *_: Any) -> None:
        """Note that a module begins; a hook."""
        self._places.append(name)

    def leave(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        """Note that a module ends, and what it returns; a hook."""
        with _disable_current_modes():
            numbers = [self._values.number(item) for item in flat(output) if item.is_floating_point()]
        self.trace.modules.setdefault(self._places.pop(), []).extend(numbers)

    # With a guide

    def _guided(
        self, func: Any, arguments: dict[str, Any], step: Step, name: str, tensor: torch.Tensor
    ) -> tuple[Any, Step]:
        """Return the result of an operation run as the guide does, and the step; note the difference.

        Args:
            func: the operation.
            arguments: its arguments.
            step: its record.
            name: of its first computed argument.
            tensor: that argument.
        """
        partner = self._partner(step)
        if partner is not None and partner.inputs != step.inputs:
            self._correct_input(arguments, step, partner, name, tensor)
        written = [key for key in arguments if _is_written(func, key)]
        if arguments.get("training"):
            written = list(_STATISTICS)
        before = {key: arguments[key].clone() for key in written if isinstance(arguments.get(key), torch.Tensor)}
        result = self._ran(func, arguments, step)
        if set(step.outputs) <= self._values_of_guide:
            return result, step
        corrected = self._with_options_of_guide(func, arguments, step, before)
        if corrected is not None:
            return corrected
        if partner is not None and partner.inputs == step.inputs and len(partner.weights) != len(step.weights):
            owner = "the .t7" if len(partner.weights) > len(step.weights) else self.label
            self.texts.append(f"only {owner} has a bias in {_both(step, partner)}")
            self._named |= {id(step), id(partner)}
        return result, step

    def _correct_input(
        self, arguments: dict[str, Any], step: Step, partner: Step, name: str, tensor: torch.Tensor
    ) -> None:
        """Give an operation the input of the guide's, and note what made the difference."""
        wanted = partner.first_input
        if wanted is None or (wanted.numel() != tensor.numel() and wanted.dim() != tensor.dim()):
            return
        self.texts.append(self._between(partner.inputs, step.inputs, _both(step, partner), wanted, tensor))
        if wanted.numel() != tensor.numel():
            arguments[name] = wanted
        elif step.inputs[0] in self._values_of_guide:
            arguments[name] = wanted.reshape(tensor.shape)
        else:
            # The guide lacks this value: all that take it get the right one.
            tensor.copy_(wanted.reshape(tensor.shape))
            self._values.forget()
        step.inputs = partner.inputs

    def _with_options_of_guide(
        self, func: Any, arguments: dict[str, Any], step: Step, before: dict[str, torch.Tensor]
    ) -> tuple[Any, Step] | None:
        """Return the result of an operation, and its step, with the options with which it returns what the guide's
        does; `None` if there are no such options.

        Args:
            func: the operation.
            arguments: its arguments.
            step: its record.
            before: the arguments that it has written, as they were before.
        """
        assert self._guide is not None
        for other in self._guide.steps:
            if (other.function, other.inputs, other.weights) != (step.function, step.inputs, step.weights):
                continue
            if other.options == step.options or other.options.keys() != step.options.keys():
                continue
            for key, item in before.items():
                arguments[key].copy_(item)
            corrected = evolve(step, options=other.options, outputs=())
            result = self._ran(func, {**arguments, **other.options}, corrected)
            if corrected.outputs != other.outputs:
                continue
            for key, value in other.options.items():
                if value != step.options[key]:
                    text = f"{key} of {step.function} is {value} in the .t7 and {step.options[key]} in {self.label}"
                    self.options.setdefault(text, []).append(_both(step, other))
            return result, corrected
        return None

    def _partner(self, step: Step) -> Step | None:
        """Return the operation of the guide with the same weights; with the same input if there is one."""
        assert self._guide is not None
        if not step.largest:
            return None
        candidates = [other for other in self._guide.steps if other.largest == step.largest]
        # The largest weight may be the only common one: a bias may be missing.
        candidates = [other for other in candidates if other.weights == step.weights] or candidates
        with_same_input = [other for other in candidates if other.inputs == step.inputs]
        unused = [other for other in candidates if id(other) not in self._partners]
        partner = next(iter(with_same_input or unused), None)
        self._partners.add(id(partner))
        return partner

    def _between(
        self,
        mine: tuple[int, ...],
        theirs: tuple[int, ...],
        where: str,
        want: torch.Tensor | None = None,
        got: torch.Tensor | None = None,
    ) -> str:
        """Describe what lies between the last common values and two that differ.

        Args:
            mine: the numbers of the guide's values.
            theirs: those of this model's.
            where: the place of the operation that takes them.
            want: the first of the guide's values, if it is stored.
            got: the first of this model's.
        """
        assert self._guide is not None
        if want is not None and got is not None and set(mine) <= set(self._guide.inputs):
            text = self._of_input(want, got)
            if text:
                return text
        my_region = _region(self._guide, mine, self.trace.values)
        their_region = _region(self.trace, theirs, self._values_of_guide)
        my_steps = [step for step in my_region if id(step) not in self._named]
        their_steps = [step for step in their_region if id(step) not in self._named]
        if (my_region or their_region) and not (my_steps or their_steps):
            return ""
        self._named.update(id(step) for step in (*my_steps, *their_steps))
        return self._described(my_steps, their_steps, where if where == ENDS else f"before {where}")

    def _of_input(self, want: torch.Tensor, got: torch.Tensor) -> str:
        """Describe how one input follows from another, if it is by order or scale of its channels."""
        if want.shape != got.shape or want.dim() < 3:
            return ""
        if torch.allclose(want.flip(-3), got, rtol=CLOSE, atol=CLOSE):
            return f"{self.label} reverses the order of the input's channels (BGR against RGB)"
        wanted = want.movedim(-3, 0).flatten(1)
        given = got.movedim(-3, 0).flatten(1)
        # A line through the first and the last element of each channel: do the others lie on it?
        slope = (given[:, -1] - given[:, 0]) / (wanted[:, -1] - wanted[:, 0])
        shift = given[:, 0] - slope * wanted[:, 0]
        if not torch.allclose(slope[:, None] * wanted + shift[:, None], given, rtol=1e-6, atol=1e-6):
            return ""
        factors = listed(f"{number:.4g}" for number in slope.tolist())
        terms = listed(f"{number:.4g}" for number in shift.tolist())
        return f"{self.label} scales the channels of its input, by {factors} and with {terms} added"

    def _described(self, mine: list[Step], theirs: list[Step], where: str) -> str:
        """Describe operations of the guide and of this model that lead to one place."""
        if not mine and not theirs:
            self.misplaced = True
            return f"{where}, {self.label} takes another value than the .t7"
        if any(step.largest for step in (*mine, *theirs)):
            self.misplaced = True
        if not theirs:
            return f"{where}, the .t7 computes {_chain(mine)}, and {self.label} does not"
        if not mine:
            return f"{where}, {self.label} computes {_chain(theirs)}, and the .t7 does not"
        if [step.function for step in mine] != [step.function for step in theirs]:
            return f"{where}, the .t7 computes {_chain(mine)} where {self.label} computes {_chain(theirs)}"
        if any(step.options != partner.options for step, partner in zip(mine, theirs)):
            options = f"the .t7 computes {_chain(mine, True)} where {self.label} computes {_chain(theirs, True)}"
            return f"{where}, {options}"
        if mine[0].inputs == theirs[0].inputs:
            return f"{where}, the weights differ in {_both(theirs[0], mine[0])}"
        self.misplaced = True
        assert self._guide is not None
        sources = f"{_makers(self._guide, mine)} in the .t7 and {_makers(self.trace, theirs)} in {self.label}"
        return f"{where}, {_chain(mine)} takes {sources}"

    def ends(self) -> str:
        """Describe why the outputs differ; empty if they do not."""
        assert self._guide is not None
        if self.trace.error:
            return f"then {self.label} stops: {self.trace.error}"
        if self._guide.outputs == self.trace.outputs:
            return ""
        return self._between(self._guide.outputs, self.trace.outputs, ENDS)


def _region(trace: Trace, goals: Sequence[int], shared: set[int]) -> list[Step]:
    """Return the steps that lead from shared values to others."""
    makers = trace.makers
    region: set[int] = set()
    visited = set(shared)
    stack = list(goals)
    while stack:
        number = stack.pop()
        if number in visited or number not in makers:
            continue
        visited.add(number)
        region.add(id(makers[number]))
        stack += makers[number].inputs
    return [step for step in trace.steps if id(step) in region]


def _makers(trace: Trace, steps: list[Step]) -> str:
    """Name the operations whose results the first of some steps takes."""
    makers = trace.makers
    names = []
    for number in steps[0].inputs:
        maker = makers.get(number)
        names.append(f"{maker.function} of {maker.place or 'the model'}" if maker is not None else "the input")
    return " and ".join(names)


def _chain(steps: list[Step], with_options: bool = False) -> str:
    """Name operations that follow one another."""
    names = []
    for step in steps[:_MOST_NAMED]:
        options = ", ".join(f"{name}={value}" for name, value in step.options.items())
        names.append(f"{step.function}({options})" if with_options and options else step.function)
    text = ", ".join(names)
    more = len(steps) - _MOST_NAMED
    return f"{text} and {more} more operations" if more > 0 else text


def _both(step: Step, partner: Step) -> str:
    """Name the places of an operation in this model and in the guide."""
    return f"{step.place or 'the model'} ({partner.place or 'root'})"


def _named_arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation by name, with defaults."""
    schema = func._schema.arguments
    arguments = {parameter.name: parameter.default_value for parameter in schema}
    arguments.update((parameter.name, value) for parameter, value in zip(schema, args))
    arguments.update(kwargs)
    return arguments


def _is_written(func: Any, name: str) -> bool:
    """Return whether an operation writes to an argument."""
    if name in _STATISTICS:
        return True
    for parameter in func._schema.arguments:
        if parameter.name == name and parameter.alias_info is not None and parameter.alias_info.is_write:
            return True
    return False


def _holds_tensors(value: Any) -> bool:
    """Return whether a value is a tensor, or a list that has one."""
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensors, value))
    return isinstance(value, torch.Tensor)


def _plain(value: Any) -> Any:
    """Return a value that is equal for lists and tuples."""
    return list(value) if isinstance(value, (list, tuple)) else value


@contextmanager
def _as_asked(model: nn.Module, training: bool, recorder: _Recorder) -> Iterator[None]:
    """Have only normalization in training mode, and tell the recorder which module runs."""
    model.eval()
    for layer in model.modules():
        if isinstance(layer, _NORMS):
            layer.train(training)
    handles = []
    if not isinstance(model, torch.jit.ScriptModule):
        for name, layer in model.named_modules():
            handles.append(layer.register_forward_pre_hook(partial(recorder.enter, name)))
            handles.append(layer.register_forward_hook(recorder.leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def normalizes(model: nn.Module) -> bool:
    """Return whether training mode differs, apart from random numbers."""
    return any(isinstance(layer, _NORMS) for layer in model.modules())


def _traced(model: nn.Module, value: Any, training: bool, recorder: _Recorder, values: _Values) -> Trace:
    """Run a model on a value, in evaluation mode but for normalization."""
    statistics = {name: item.clone() for name, item in model.named_buffers()}
    trace = recorder.trace
    inputs = mapped(value, torch.clone)
    trace.inputs = tuple(values.number(item) for item in flat(inputs))
    try:
        with _as_asked(model, training, recorder), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with recorder:
                result = model(inputs)
            if isinstance(result, dict):
                result = list(result.values())
            trace.result = list(flat(result))
            trace.outputs = tuple(values.number(item) for item in trace.result)
    except Exception as error:  # the user's code may raise anything
        first_line = (str(error).splitlines() or [""])[0]
        trace.error = f"{type(error).__name__}: {first_line[:200]}"
    finally:
        with torch.no_grad():
            for name, item in model.named_buffers():
                item.copy_(statistics[name])
    return trace


@define(eq=False)
class Comparison:
    """Two models on one input in one mode.

    Attributes:
        mine: the trace of the first.
        theirs: that of the second.
        differences: what differs, in words; empty if all agrees. Nothing else differs: with these corrected, the
            second computes what the first does.
        misplaced: whether weights get the values that others get in the first: they may be those of other layers.
    """

    mine: Trace
    theirs: Trace
    differences: list[str] = field(factory=list)
    misplaced: bool = False


def compare(mine: nn.Module, theirs: nn.Module, label: str, value: Any, training: bool) -> Comparison:
    """Compare two models.

    Args:
        mine: the first, which computes in double precision.
        theirs: the second, likewise.
        label: its name.
        value: the input.
        training: whether normalization is in training mode. Nothing else is, so that nothing is random.

    Raises:
        ModelError: the first does not accept the value.
    """
    values = _Values()
    my_trace = _traced(mine, value, training, _Recorder(mine, values), values)
    if my_trace.error:
        raise ModelError(f"a model does not accept the input: {my_trace.error}")
    their_trace = _traced(theirs, value, training, _Recorder(theirs, values), values)
    has_same_outputs = not their_trace.error and my_trace.outputs == their_trace.outputs
    if has_same_outputs and (not training or _normalized(my_trace) == _normalized(their_trace)):
        return Comparison(my_trace, their_trace)
    recorder = _Recorder(theirs, values, my_trace, label)
    _traced(theirs, value, training, recorder, values)
    texts = [f"{text}: {listed(places)}" for text, places in recorder.options.items()]
    texts += [*dict.fromkeys(recorder.texts), recorder.ends()]
    differences = [text for text in texts if text]
    return Comparison(my_trace, their_trace, differences, recorder.misplaced)


def _normalized(trace: Trace) -> set[tuple[int, ...]]:
    """Return the outputs of batch normalization, with the statistics that it updated."""
    return {step.outputs for step in trace.steps if step.function == "batch_norm"}
