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
_KEPT = 1 << 27
"""Maximum number of elements of the inputs of a model that are kept to explain a difference: 1 GiB."""
_SHOWN = 4
_STATISTICS = ("running_mean", "running_var")
"""Arguments of batch normalization that it updates in training."""
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
ENDS = "at the end"


class _Values:
    """Numbers of values: tensors of equal content have the same, whatever their shape."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bool], tuple[list[torch.Tensor], list[int]]] = {}
        self._count = 0
        self._seen: dict[tuple[int, bool], tuple[Any, int, int]] = {}
        self._drawn = torch.randn(_CHUNK, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def number(self, tensor: torch.Tensor, ordered: bool = True) -> int:
        """Return the number of a tensor; of a weight, which may be transposed, without regard to order."""
        reference, version, number = self._seen.get((id(tensor), ordered), (None, 0, 0))
        if reference is None or reference() is not tensor or version != tensor._version:
            number = self._find(tensor.detach().reshape(-1).double(), ordered)
            self._seen[id(tensor), ordered] = weakref.ref(tensor), tensor._version, number
        return number

    def forget(self) -> None:
        """Note that a tensor was written to, whose version is only raised later."""
        self._seen.clear()

    def _find(self, values: torch.Tensor, ordered: bool) -> int:
        norm = values.norm()
        digest, scale = (self._projected(values), norm) if ordered else (values.sum(), values.abs().sum())
        rows, numbers = self._known.setdefault((len(values), ordered), ([], []))
        found = torch.stack([digest / scale.clamp(min=1e-300), norm])
        if rows:
            known = torch.stack(rows)
            near = (known[:, 0] - found[0]).abs() + (known[:, 1] / norm.clamp(min=1e-300) - 1).abs() * bool(
                norm
            ) <= CLOSE
            if bool(near.any()):
                return numbers[int(near.long().argmax())]
        self._count += 1
        rows.append(found)
        numbers.append(self._count)
        return self._count

    def _projected(self, values: torch.Tensor) -> torch.Tensor:
        whole = len(values) // _CHUNK
        rows = values[: whole * _CHUNK].view(whole, _CHUNK) @ self._drawn
        rest = values[whole * _CHUNK :]
        return rows @ self._drawn[:whole] + rest @ self._drawn[_CHUNK - len(rest) :]


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
        self.places = [""]
        self.options: dict[str, list[str]] = {}
        self.texts: list[str] = []
        self.misplaced = False
        self._values, self._guide, self._room = values, guide, _KEPT
        self._weights = {item.untyped_storage().data_ptr() for item in chain(model.parameters(), model.buffers())} - {0}
        self._known = guide.values if guide is not None else set()
        self._used: set[int] = set()
        self._named: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record it."""
        named = _named(func, args, kwargs or {})
        tensors = [
            (name, tensor)
            for name, item in named.items()
            if _holds_tensors(item)
            for tensor in flat(item)
            if tensor.is_floating_point()
        ]
        weights = [tensor for _, tensor in tensors if tensor.untyped_storage().data_ptr() in self._weights]
        computed = [each for each in tensors if each[1].untyped_storage().data_ptr() not in self._weights]
        if not computed:
            return func(*args, **(kwargs or {}))
        step = self._step(func, named, [tensor for _, tensor in computed], weights)
        if self._guide is not None:
            result, step = self._guided(func, named, step, *computed[0])
        else:
            if weights and self._room >= computed[0][1].numel():
                step.first_input = computed[0][1].clone()
                self._room -= step.first_input.numel()
            result = self._ran(func, named, step)
        if not set(step.outputs) <= set(step.inputs):
            self.trace.steps.append(step)
        return result

    def _step(self, func: Any, named: dict[str, Any], computed: Sequence[Any], weights: Sequence[Any]) -> Step:
        numbers = [self._values.number(item, ordered=False) for item in weights]
        largest = max(zip(numbers, weights), key=lambda pair: pair[1].numel(), default=(0, None))[0]
        return Step(
            self.places[-1],
            func.overloadpacket.__name__.rstrip("_").lstrip("_").removeprefix("native_").removesuffix("_with_indices"),
            {name: _plain(item) for name, item in named.items() if not _holds_tensors(item)},
            tuple(map(self._values.number, computed)),
            tuple(numbers),
            largest,
            (),
        )

    def _ran(self, func: Any, named: dict[str, Any], step: Step) -> Any:
        """Run an operation, and complete the step with what it returned."""
        result = func(**named)
        if named.get("training") or any(_written(func, name) for name in named):
            self._values.forget()
        found = [item for item in flat(result) if item.is_floating_point() and item.numel()]
        if step.function == "batch_norm":
            found = found[:1]
            if named.get("training"):
                found += [named[name] for name in _STATISTICS if named[name] is not None]
        step.outputs = tuple(map(self._values.number, found))
        return result

    def enter(self, name: str, *_: Any) -> None:
        """Note that a module begins; a hook."""
        self.places.append(name)

    def leave(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        """Note that a module ends, and what it returns; a hook."""
        with _disable_current_modes():
            numbers = [self._values.number(item) for item in flat(output) if item.is_floating_point()]
        self.trace.modules.setdefault(self.places.pop(), []).extend(numbers)

    # With a guide

    def _guided(
        self, func: Any, named: dict[str, Any], step: Step, name: str, tensor: torch.Tensor
    ) -> tuple[Any, Step]:
        """Return the result of an operation run as the guide does, and the step; note the difference.

        Args:
            func: the operation.
            named: its arguments.
            step: its record.
            name: of its first computed argument.
            tensor: that argument.
        """
        partner = self._partner(step)
        if partner is not None and partner.inputs != step.inputs:
            self._correct_input(named, step, partner, name, tensor)
        names = _STATISTICS if named.get("training") else [key for key in named if _written(func, key)]
        before = {key: named[key].clone() for key in names if isinstance(named.get(key), torch.Tensor)}
        result = self._ran(func, named, step)
        if set(step.outputs) <= self._known:
            return result, step
        corrected = self._corrected(func, named, step, before)
        if corrected is not None:
            return corrected
        if partner is not None and partner.inputs == step.inputs and len(partner.weights) != len(step.weights):
            more = "the .t7" if len(partner.weights) > len(step.weights) else self.label
            self.texts.append(f"only {more} has a bias in {_both(step, partner)}")
            self._named |= {id(step), id(partner)}
        return result, step

    def _correct_input(self, named: dict[str, Any], step: Step, partner: Step, name: str, tensor: torch.Tensor) -> None:
        """Give an operation the input of the guide's, and note what made the difference."""
        first = partner.first_input
        if first is None or (first.numel() != tensor.numel() and first.dim() != tensor.dim()):
            return
        self.texts.append(self._between(partner.inputs, step.inputs, _both(step, partner), first, tensor))
        if first.numel() != tensor.numel():
            named[name] = first
        elif step.inputs[0] in self._known:
            named[name] = first.reshape(tensor.shape)
        else:
            tensor.copy_(first.reshape(tensor.shape))  # for all that take this value, which the guide lacks
            self._values.forget()
        step.inputs = partner.inputs

    def _corrected(
        self, func: Any, named: dict[str, Any], step: Step, before: dict[str, torch.Tensor]
    ) -> tuple[Any, Step] | None:
        """Return the result of an operation, and its step, with the options with which it returns what the guide's
        does; `None` if there are no such options.
        """
        assert self._guide is not None
        for other in self._guide.steps:
            same = (other.function, other.inputs, other.weights) == (step.function, step.inputs, step.weights)
            if not same or other.options == step.options or other.options.keys() != step.options.keys():
                continue
            for key, item in before.items():
                named[key].copy_(item)
            tried = evolve(step, options=other.options, outputs=())
            result = self._ran(func, {**named, **other.options}, tried)
            if tried.outputs == other.outputs:
                for key, value in other.options.items():
                    if value != step.options[key]:
                        text = f"{key} of {step.function} is {value} in the .t7 and {step.options[key]} in {self.label}"
                        self.options.setdefault(text, []).append(_both(step, other))
                return result, tried
        return None

    def _partner(self, step: Step) -> Step | None:
        """Return the operation of the guide with the same weights; with the same input if there is one."""
        assert self._guide is not None
        found = [other for other in self._guide.steps if other.largest == step.largest and step.largest]
        found = [other for other in found if other.weights == step.weights] or found
        same = [other for other in found if other.inputs == step.inputs]
        unused = [other for other in found if id(other) not in self._used]
        best = next(iter(same or unused), None)
        self._used.add(id(best))
        return best

    def _between(
        self,
        mine: tuple[int, ...],
        theirs: tuple[int, ...],
        where: str,
        want: torch.Tensor | None = None,
        got: torch.Tensor | None = None,
    ) -> str:
        """Describe what lies between the last common values and two that differ."""
        assert self._guide is not None
        if want is not None and got is not None and set(mine) <= set(self._guide.inputs):
            text = self._of_input(want, got)
            if text:
                return text
        regions = _region(self._guide, mine, self.trace.values), _region(self.trace, theirs, self._known)
        one, other = ([step for step in region if id(step) not in self._named] for region in regions)
        if any(regions) and not (one or other):
            return ""
        self._named.update(map(id, [*one, *other]))
        return self._described(one, other, where if where == ENDS else f"before {where}")

    def _of_input(self, want: torch.Tensor, got: torch.Tensor) -> str:
        """Describe how one input follows from another, if it is by order or scale of its channels."""
        if want.shape != got.shape or want.dim() < 3:
            return ""
        if torch.allclose(want.flip(-3), got, rtol=CLOSE, atol=CLOSE):
            return f"{self.label} reverses the order of the input's channels (BGR against RGB)"
        columns = want.movedim(-3, 0).flatten(1), got.movedim(-3, 0).flatten(1)
        slope = (columns[1][:, -1] - columns[1][:, 0]) / (columns[0][:, -1] - columns[0][:, 0])
        shift = columns[1][:, 0] - slope * columns[0][:, 0]
        if not torch.allclose(slope[:, None] * columns[0] + shift[:, None], columns[1], rtol=1e-6, atol=1e-6):
            return ""
        factors, terms = (listed([f"{item:.4g}" for item in each.tolist()]) for each in (slope, shift))
        return f"{self.label} scales the channels of its input, by {factors} and with {terms} added"

    def _described(self, one: list[Step], other: list[Step], where: str) -> str:
        """Describe operations of the guide and of this model that lead to one place."""
        self.misplaced |= not (one or other) or any(step.largest for step in (*one, *other))
        if not (one and other):
            who, lacks, steps = ("the .t7", self.label, one) if one else (self.label, "the .t7", other)
            if not steps:
                return f"{where}, {self.label} takes another value than the .t7"
            return f"{where}, {who} computes {_chain(steps)}, and {lacks} does not"
        assert self._guide is not None
        full = [step.function for step in one] == [step.function for step in other]
        if full and all(step.options == partner.options for step, partner in zip(one, other)):
            if one[0].inputs == other[0].inputs:
                return f"{where}, the weights differ in {_both(other[0], one[0])}"
            self.misplaced = True
            mine, theirs = _makers(self._guide, one), _makers(self.trace, other)
            return f"{where}, {_chain(one)} takes {mine} in the .t7 and {theirs} in {self.label}"
        return f"{where}, the .t7 computes {_chain(one, full)} where {self.label} computes {_chain(other, full)}"

    def ends(self) -> str:
        """Describe why the outputs differ; empty if they do not."""
        assert self._guide is not None
        mine, theirs = self._guide.outputs, self.trace.outputs
        if self.trace.error:
            return f"then {self.label} stops: {self.trace.error}"
        return "" if mine == theirs else self._between(mine, theirs, ENDS)


def _region(trace: Trace, goals: Sequence[int], shared: set[int]) -> list[Step]:
    """Return the steps that lead from shared values to others."""
    makers, stack, seen, found = trace.makers, list(goals), set(shared), set()
    while stack:
        number = stack.pop()
        if number not in seen and number in makers:
            seen.add(number)
            found.add(id(makers[number]))
            stack += makers[number].inputs
    return [step for step in trace.steps if id(step) in found]


def _makers(trace: Trace, steps: list[Step]) -> str:
    """Name the operations whose results the first of some steps takes."""
    found = map(trace.makers.get, steps[0].inputs)
    return " and ".join(f"{step.function} of {step.place or 'the model'}" if step else "the input" for step in found)


def _chain(steps: list[Step], full: bool = False) -> str:
    shown = []
    for step in steps[:_SHOWN]:
        options = ", ".join(f"{name}={value}" for name, value in step.options.items()) if full else ""
        shown.append(f"{step.function}({options})" if options else step.function)
    return ", ".join(shown) + (f" and {len(steps) - _SHOWN} more operations" if len(steps) > _SHOWN else "")


def _both(step: Step, partner: Step) -> str:
    return f"{step.place or 'the model'} ({partner.place or 'root'})"


def _named(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operation by name, with defaults."""
    schema = func._schema.arguments
    arguments = {**{each.name: item for each, item in zip(schema, args)}, **kwargs}
    return {each.name: arguments.get(each.name, each.default_value) for each in schema}


def _written(func: Any, name: str) -> bool:
    """Return whether an operation writes to an argument."""
    if name in _STATISTICS:
        return True
    return any(
        each.name == name and each.alias_info is not None and each.alias_info.is_write
        for each in func._schema.arguments
    )


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, (list, tuple)) and any(map(_holds_tensors, value)))


def _plain(value: Any) -> Any:
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
    found, inputs = recorder.trace, mapped(value, torch.clone)
    found.inputs = tuple(values.number(item) for item in flat(inputs))
    try:
        with _as_asked(model, training, recorder), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with recorder:
                result = model(inputs)
            found.result = list(flat(list(result.values()) if isinstance(result, dict) else result))
            found.outputs = tuple(map(values.number, found.result))
    except Exception as error:  # the user's code may raise anything
        found.error = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    finally:
        with torch.no_grad():
            for name, item in model.named_buffers():
                item.copy_(statistics[name])
    return found


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
    one = _traced(mine, value, training, _Recorder(mine, values), values)
    if one.error:
        raise ModelError(f"a model does not accept the input: {one.error}")
    other = _traced(theirs, value, training, _Recorder(theirs, values), values)
    statistics = [{step.outputs for step in each.steps if step.function == "batch_norm"} for each in (one, other)]
    if not other.error and one.outputs == other.outputs and (not training or statistics[0] == statistics[1]):
        return Comparison(one, other)
    recorder = _Recorder(theirs, values, one, label)
    _traced(theirs, value, training, recorder, values)
    texts = [f"{text}: {listed(places)}" for text, places in recorder.options.items()]
    texts += [*dict.fromkeys(recorder.texts), recorder.ends()]
    return Comparison(one, other, list(filter(None, texts)), recorder.misplaced)
