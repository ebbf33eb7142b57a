"""Runs each layer of a model on its recorded input, and compares the outputs.

If the input of a layer was overwritten, for example by an in-place layer, the computed output of the layers before
replaces it: the layers between two recorded values are compared as one group. May import graph, nn, torchmodules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import field

from ...data import define
from ...errors import T7BridgeError
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, Limits
from .judge import Ran, explain_refusal, judge
from .memory import Memory
from .outcome import Outcome
from .proof import DIFFERS, NOT_CHECKABLE, StretchProof
from .reasons import FROM_FIELD, FROM_OUTPUT, JOINED, NO_INPUT, OVERWRITTEN, SHAPE, TOO_DEEP, TOO_LARGE
from .solved import solved
from .stretch import Stretches
from .told import contradiction, may_tell, told
from .values import UNIT, Recorded, is_whole, leaves, region, unit_of
from .visits import Step, base_name, own_parameters

if TYPE_CHECKING:
    from ...torchmodules.chains import Chain
    from ...torchmodules.running import LiveLayer
    from ...torchmodules.updates import Direction


@define(eq=False)
class Computed:
    """Computed output of the layers since the last recorded value, in place of an overwritten one.

    Attributes:
        value: a tensor, in double precision.
        scale: its expected rounding errors.
        group: the steps that computed it.
        chain: the same as layers, starting at a recorded value; `None` where they branch.
    """

    value: Any
    scale: Any
    group: tuple[int, ...]
    chain: Chain | None = None


@define(eq=False)
class Given:
    """The input of a step.

    Attributes:
        value: in double precision.
        scale: its expected errors; `None` if it is recorded.
        group: the steps that computed it since the last recorded values.
        chain: the same as layers.
        wrap: puts the one computed tensor into the input, if that has several.
    """

    value: Any
    scale: Any = None
    group: tuple[int, ...] = ()
    chain: Chain | None = None
    wrap: Callable[[Any], Any] | None = None


@define(eq=False)
class Runner:
    """Runs steps and keeps their outcomes.

    Attributes:
        steps: in order.
        limits: resource limits.
        lost: ids of storages of outputs that are missing from the file.
        outcomes: the outcomes so far.
        turned: whether recorded values have the dimension order of 2010.
        states: the last steps of optimizers, according to their states beside the model.
    """

    steps: list[Step]
    limits: Limits = DEFAULT_LIMITS
    lost: set[int] = field(factory=set)
    outcomes: list[Outcome] = field(factory=list)
    turned: bool = False
    states: tuple[Direction, ...] = ()
    _far: Stretches | None = field(default=None, repr=False)
    _live: dict[Any, Computed] = field(factory=dict, repr=False)

    def run(self) -> list[Outcome]:
        """Run all steps and return their outcomes in order."""
        memory = Memory(self.steps, self.lost)
        self.turned = any(map(_is_turned, self.steps))
        far = self._far = Stretches(self.steps, memory)
        for number, step in enumerate(self.steps):
            outcome = Outcome(step)
            self.outcomes.append(outcome)
            outcome.parameters = own_parameters(step.obj)
            try:
                self._forward(number, step, outcome, memory, far)
            except T7BridgeError as error:
                outcome.verdict, outcome.reason = NOT_CHECKABLE, error.message or str(error)
                self._forget(step)
            except RecursionError:
                outcome.verdict, outcome.reason = NOT_CHECKABLE, TOO_DEEP
                self._forget(step)
            if (outcome.verdict == NOT_CHECKABLE or not outcome.group) and not step.whole:
                far.forget(step)
        return self.outcomes

    def stretches(self) -> list[StretchProof]:
        """Return the verdicts on whole stretches, once those on the layers are final."""
        return [] if self.turned or self._far is None else self._far.proofs(self.outcomes)

    # One step

    def _forward(self, number: int, step: Step, outcome: Outcome, memory: Memory, far: Stretches) -> None:
        from ...torchmodules.chains import extended
        from ...torchmodules.judging import squeezed
        from ...torchmodules.running import TINY, LiveLayer, NotRunError, flat, spread, to_torch

        if step.whole and base_name(step.obj.class_name) == "gModule":
            self._forget(step)
            return
        try:
            found = self._input(step.input, number, memory) if step.glue is None else self._glue(step, number, memory)
        except MisfitError:
            self._forget(step)
            outcome.verdict = DIFFERS
            outcome.reason = JOINED
            return
        recorded_here = is_whole(step.output)
        wrong = contradiction(step.obj) if recorded_here and not self.turned else ""
        if wrong:
            outcome.verdict, outcome.reason = DIFFERS, wrong
            self._forget(step)
            return
        intact = recorded_here and memory.holds_output(step.output, number)
        if found is None and recorded_here and may_tell(step, intact) and not self._tells_another(step, number):
            answer = told(step)
            if answer is not None and answer.value is None:
                outcome.verdict, outcome.reason = DIFFERS, answer.reason
                self._forget(step)
                return
            if answer is not None:
                found = self._input(answer.value, number, memory)
                outcome.reason = FROM_FIELD
        if found is None and recorded_here:
            found = self._solved(step, intact, outcome)
        if found is None:
            self._forget(step)
            if recorded_here:
                outcome.reason = step.reason or NO_INPUT
            self._backward(number, step, outcome, memory, None)
            return
        if step.output is None:
            return
        value, scale, group = found.value, found.scale, found.group
        unit = self._unit(step)
        layer: LiveLayer | None = None
        try:
            if step.glue is not None:
                got = [value]
            else:
                layer = LiveLayer.build(step.obj, step.path, unit, self.limits)
                self._check_size(layer, value, step)
                got = layer.run(value)
            output = [item.double() for item in flat(got)]
            scales = (
                layer.scale(value, output) if layer is not None else [0.5 * unit * item.abs() + TINY for item in output]
            )
            if scale is not None and layer is not None:
                scales = [one + more for one, more in zip(scales, spread(layer, value, scale, output))]
            elif scale is not None:
                scales = [scale]
        except NotRunError as error:
            self._forget(step)
            text = str(error)
            if recorded_here and error.refused and not step.whole:
                outcome.verdict, outcome.reason = DIFFERS, text
                if layer is not None:
                    explain_refusal(outcome, layer, value, step, self.limits)
            else:
                outcome.verdict, outcome.reason = NOT_CHECKABLE, text
            return
        chain = extended(found.chain, layer, value, found.wrap, bool(group), step.obj.get("inplace") is True)
        outcome.group = (*group, number)
        if not self.turned:
            far.add(number, step, layer, value)
        self._remember(step, got, scales, outcome.group, chain, memory, number)
        if intact:
            wanted = [self._upright(item) for item in squeezed(to_torch(step.output))]
            ran = Ran(layer, value, output, scales, chain, unit, step is self.steps[-1])
            judge(outcome, ran, wanted, self.steps, self.states, self.limits)
        elif recorded_here:
            outcome.reason = OVERWRITTEN
            # In-place layers kept the shape.
            if [item.numel() for item in output] != [tensor.numel for tensor in leaves(step.output)]:
                shapes = [list(item.shape) for item in output], [list(item.size) for item in leaves(step.output)]
                outcome.verdict = DIFFERS
                outcome.reason = SHAPE.format(*shapes)
        self._backward(number, step, outcome, memory, value if layer is not None else None, layer)

    def _solved(self, step: Step, intact: bool, outcome: Outcome) -> Given | None:
        """Return the input of a linear layer as the solution of equations."""
        from ...torchmodules.running import to_torch

        answer = solved(step, intact) if not self.turned else None
        if answer is None:
            return None
        value = to_torch(answer.value)
        outcome.reason = FROM_FIELD if answer.error is not None else FROM_OUTPUT
        outcome.from_output = answer.error is None
        return Given(value, None if answer.error is None else to_torch(Tensor.from_numpy(answer.error)))

    def _tells_another(self, step: Step, number: int) -> bool:
        """Return whether a later step has the field that contains this one's input."""
        field_of = step.obj.get("finput")
        mine = field_of.storage if isinstance(field_of, Tensor) else None
        return mine is not None and any(
            isinstance(other.obj.get("finput"), Tensor) and other.obj.get("finput").storage is mine
            for other in self.steps[number + 1 :]
        )

    def _unit(self, step: Step) -> float:
        """Return the unit roundoff of a step's numbers."""
        weights = [item for item in (step.obj.get("weight"), step.obj.get("bias")) if isinstance(item, Tensor)]
        units = [unit_of(step.output), unit_of(step.input), unit_of([item for item in weights if item.numel])]
        known = [unit for unit in units if unit is not None]
        return max(known) if known else UNIT["float32"]

    def _check_size(self, layer: LiveLayer, value: Any, step: Step) -> None:
        from ...torchmodules.running import MAX_ELEMENTS, NotRunError

        if elements_of(step.output) > 1 << 16 or elements_of(step.input) > 1 << 16 or layer.terms() > 1 << 12:
            shapes = layer.shapes(value)
            total = sum(_product(shape) for shape in shapes or ())
            if total > MAX_ELEMENTS or total > 64 * max(elements_of(step.output), 1 << 16):
                raise NotRunError(TOO_LARGE.format(total))

    def _input(self, value: Recorded, number: int, memory: Memory) -> Given | None:
        """Return the input of a step; `None` if unknown."""
        from ...torchmodules.running import to_torch

        groups: list[int] = []
        computed: list[Computed] = []

        def resolve(item: Recorded) -> tuple[Any, Any]:
            if isinstance(item, list):
                pairs = [resolve(part) for part in item]
                return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            if isinstance(item, Tensor):
                if not memory.written_after(item, number - 1):
                    found = self._upright(to_torch(item))
                    found = found if item.element.name == "int64" else found.double()
                    if found.is_floating_point() and not bool(found.isfinite().any()):
                        raise _UnknownError
                    return found, found.new_zeros(()).expand(found.shape)
                live = self._live.get(id(item)) or self._live.get(_view(item))
                if live is None:
                    raise _UnknownError
                groups.extend(part for part in live.group if part not in groups)
                computed.append(live)
                return live.value.clone(), live.scale
            if item is None:
                raise _UnknownError
            return item, 0.0

        try:
            given, scale = resolve(value)
        except _UnknownError:
            return None
        found = Given(given, scale if computed else None, tuple(sorted(groups)))
        if len(computed) == 1:
            found.chain = computed[0].chain
            if isinstance(given, list):
                place = next((at for at, item in enumerate(value) if self._live_of(item) is computed[0]), None)
                if place is None or not memory.written_after(value[place], number - 1):
                    found.chain = None
                else:
                    found.wrap = _wrapper(given, place)
        return found

    def _live_of(self, item: Recorded) -> Computed | None:
        return (self._live.get(id(item)) or self._live.get(_view(item))) if isinstance(item, Tensor) else None

    def _glue(self, step: Step, number: int, memory: Memory) -> Given | None:
        """Return the combined outputs of a container's modules."""
        from ...torchmodules.running import joined

        found = self._input(list(step.glue or []), number, memory)
        dim = step.obj.get("dimension")
        if found is None or not isinstance(dim, float):
            return None
        value = joined(found.value, int(dim) - 1) if 1 <= dim < 1 << 31 else None
        if value is None:
            raise MisfitError
        return Given(value, joined(found.scale, int(dim) - 1) if found.scale is not None else None, found.group)

    def _remember(
        self,
        step: Step,
        got: Any,
        scales: list[Any],
        group: tuple[int, ...],
        chain: Chain | None,
        memory: Memory,
        number: int,
    ) -> None:
        """Keep a computed output for its readers if it is missing from the file."""
        from ...torchmodules.running import flat

        targets = list(leaves(step.output))
        values = list(flat(got))
        for storage, low, high in step.writes:
            for key in [key for key in self._live if isinstance(key, tuple) and key[0] == storage]:
                if key[1] <= high and low <= key[2]:
                    del self._live[key]
        if len(targets) != len(values):
            return
        source = step.input[0] if isinstance(step.input, list) and step.input else step.input
        for target, value, scale in zip(targets, values, scales):
            if not memory.written_after(target, number) or value.numel() != target.numel:
                self._live.pop(id(target), None)
                continue
            kept = Computed(value.double().reshape(target.shape), scale.reshape(target.shape), group, chain)
            self._live[id(target)] = self._live[_view(target)] = kept
            if step.obj.get("inplace") is True and isinstance(source, Tensor) and source.numel == target.numel:
                self._live[id(source)] = kept

    def _forget(self, step: Step) -> None:
        for tensor in leaves(step.output):
            self._live.pop(id(tensor), None)
            self._live.pop(_view(tensor), None)

    def _upright(self, tensor: Any) -> Any:
        return tensor.permute(*reversed(range(tensor.dim()))) if self.turned and tensor.dim() > 1 else tensor

    # Backward

    def _backward(
        self, number: int, step: Step, outcome: Outcome, memory: Memory, value: Any, layer: LiveLayer | None = None
    ) -> None:
        from .backward import check_backward

        if self.turned or step.whole or not is_whole(step.grad_output) or not is_whole(step.grad_input):
            return
        if not memory.holds_gradient(step.grad_output, number) or not memory.holds_gradient(step.grad_input, number):
            return
        check_backward(outcome, value, layer, self.limits)


class MisfitError(Exception):
    """The outputs of a container's modules cannot be combined."""


class _UnknownError(Exception):
    """A value is not recorded."""


def _view(tensor: Tensor) -> tuple[Any, ...]:
    storage, low, high = region(tensor)
    return storage, low, high, tensor.size, tensor.stride


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def _wrapper(values: list[Any], place: int) -> Callable[[Any], Any]:
    def wrap(value: Any) -> Any:
        return [*values[:place], value, *values[place + 1 :]]

    return wrap


def elements_of(value: Recorded) -> int:
    """Count the elements of the tensors of a value."""
    return sum(tensor.numel for tensor in leaves(value))


def _is_turned(step: Step) -> bool:
    """Return whether a layer is of 2010: the first dimension of its kernels is contiguous."""
    weight = step.obj.get("weight")
    return (
        isinstance(weight, Tensor)
        and len(weight.size) > 2
        and base_name(step.obj.class_name).startswith("Spatial")
        and weight.stride[0] < weight.stride[-1]
    )
