"""The runs inside containers: which recorded values a container passed to the modules inside, by its flow.
A flow says what a container does with any domain of values, see `nn/walk`; here a value is what Lua recorded of it.

It determines the inputs of the modules inside: the previous layer's `output` in a sequence, the same value for all
branches. What a class keeps besides, as a cell keeps the copies that ran its steps, its entry declares (`Recording`).
Sources: nn 8726825, nngraph 3ed3b9b `gmodule.lua`, rnn ba937a0 `Sequencer.lua`, `BiSequencer.lua`, `BiSequencerLM.lua`,
`Repeater.lua`, `MaskZero.lua`. May import graph and nn. Knows nothing of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from attrs import evolve

from ...data import define
from ...errors import LimitError, ModelError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor, contiguous
from ...nn.graphs import graph_spec, recorded_nodes
from ...nn.mapping import Call, Lua, ModuleSpec, NotMappedError
from ...nn.registry import Child, Layer, first_module, layer_of, listed_modules, recording_of, traits_of
from ...nn.walk import FLOW_ERRORS, Domain, Flow
from .recorded import Recorded, element, recorded, slice_along, steps_in, without_table
from .run import Joined, Run, SequenceStep
from .steps import add_run_of_step


def add_runs_inside(run: Run) -> None:
    """Add the runs of the modules inside a container, with their inputs and the gradients of their outputs.

    Sets also whether the run is that of a container, whether it is compared itself, and what it joins. Of a layer
    without modules, or a container of which nobody knows what it does with them, no runs are added.
    """
    recording = recording_of(run.obj)
    # A cell of one step has modules inside, which are compared instead. The LSTM of torch-rnn has the same name,
    # but a weight of its own: it takes whole sequences, and is compared itself.
    if recording.states is not None and not isinstance(run.obj.get("weight"), Tensor):
        run.is_compared = False
        add_run_of_step(run, recording)
        return
    container = None
    try:
        container = _container_of(run.obj)
    except ModelError as error:
        run.contradiction = f"{error.message}: expected {error.expected}, found {error.found}"
    if container is None:
        # A layer, or a container of which nobody knows what it does with its modules: these have no runs.
        run.is_container = _has_modules(run.obj)
        return
    run.is_container = True
    _add_runs_of_flow(run, container)


def _has_modules(obj: TorchObject) -> bool:
    """Return whether an object's entry finds modules inside it."""
    layer = layer_of(obj.class_name)
    if layer is None or layer.children is None:
        return False
    return next(iter(layer.children(obj)), None) is not None


@define(frozen=True)
class _Container:
    """What a container does with the modules inside.

    Attributes:
        spec: the container, with these modules.
        flow: how it passes values through them.
        is_transparent: whether it does nothing besides; see `Traits.transparent`.
    """

    spec: ModuleSpec
    flow: Flow
    is_transparent: bool


def _add_runs_of_flow(run: Run, container: _Container) -> None:
    """Add the runs of the modules that a container calls; none if the recorded values do not fit what it does.

    Args:
        run: that of the container.
        container: what it does.

    Raises:
        LimitError: there are too many runs.
    """
    values = RecordedValues(run)
    try:
        result: PassedValue = container.flow(container.spec, PassedValue(run.input), values)
    except LimitError:
        raise  # a ValueError, too, but not the flow's
    except FLOW_ERRORS:
        # The recorded values do not fit the flow: what runs inside is not known.
        run.inside.clear()
        return
    values.pass_back(result)
    if container.is_transparent:
        # Its modules are compared. Itself it is only if it computes something of what they return, such as a
        # concatenation.
        run.is_compared = result.is_computed
        run.joined = result.joined()


# What a container does


def _container_of(obj: TorchObject) -> _Container | None:
    """Return what a container does; `None` if it is not known, and for a layer without modules inside.

    How it passes values through the modules inside, its flow, is that which Lua's class declares, if it runs them in
    another way than PyTorch's; else that of the PyTorch class which its entry maps it to.

    Args:
        obj: a module of any class.

    Raises:
        ModelError: its fields contradict one another.
    """
    recording = recording_of(obj)
    if recording.flow is not None:
        # Lua runs other modules than PyTorch: the class of PyTorch does not matter.
        children = {str(number): child for number, child in enumerate(_listed_objects(obj))}
        return _Container(_spec(obj, Call(target=""), children), recording.flow, recording.transparent)
    layer = layer_of(obj.class_name)
    if layer is None or layer.children is None:
        return None
    if layer.children is first_module:
        return None  # copies of one module for several devices have seen parts of the batch
    return _container_as_in_pytorch(obj, layer)


def _container_as_in_pytorch(obj: TorchObject, layer: Layer) -> _Container | None:
    """Return what a container does if it does what its PyTorch class does; `None` if that is not known.

    Args:
        obj: the container.
        layer: its entry in the registry of Lua's classes, which finds the modules inside.

    Raises:
        ModelError: its fields contradict one another.
    """
    assert layer.children is not None
    inside = [child for child in layer.children(obj) if isinstance(child.value, TorchObject)]
    spec = _spec_in_pytorch(obj, layer, inside)
    if spec is None:
        return None
    facts = traits_of(spec.target)
    if facts.flow is None:
        return None  # PyTorch's class is a layer, or runs its modules in a way that only its code says
    # A user put other modules into `modules` than those that run. A graph runs its nodes, whatever `modules` lists.
    listed = [id(child.value) for child in _listed_objects(obj)]
    if spec.graph is None and listed and listed != [id(child.value) for child in inside]:
        return None
    return _Container(spec, facts.flow, facts.transparent)


def _spec_in_pytorch(obj: TorchObject, layer: Layer, inside: list[Child]) -> ModuleSpec | None:
    """Return a container as a flow of PyTorch's class reads it, a graph with its nodes.

    `None` if PyTorch has no such module, or the container's fields are damaged.

    Args:
        obj: the container.
        layer: its entry in the registry of Lua's classes.
        inside: the modules that run, by this entry.

    Raises:
        ModelError: its fields contradict one another.
    """
    module = layer.module_of(obj.class_name)
    if module is None:
        return None
    try:
        # No shapes are known of tensors of its own: only rules of layers ask for these.
        call = module(Lua(obj, path="", defaults=layer.defaults, shapes={}))
        spec = _spec(obj, call, {child.name: child for child in inside})
        if traits_of(call.target).is_graph:
            spec.graph = graph_spec(obj, path="")
    except NotMappedError:
        # With these fields PyTorch has no such module, or the nodes of its graph are not in the file.
        return None
    except ModelError:
        raise  # the registry's rule for this class read the fields, and refuses them
    except FLOW_ERRORS:
        return None  # the rule fails at damaged fields, before it could refuse them
    return spec


def _listed_objects(obj: TorchObject) -> list[Child]:
    """Return the modules that a container's field `modules` lists."""
    return [child for child in listed_modules(obj) if isinstance(child.value, TorchObject)]


def _spec(obj: TorchObject, call: Call, children: Mapping[str, Child]) -> ModuleSpec:
    """Return a container as a flow reads it; of the modules inside only objects and the steps to them are known."""
    inside = {name: ModuleSpec("", obj=child.value, path=child.path) for name, child in children.items()}
    return ModuleSpec(call.target, call.args, call.kwargs, inside, obj=obj)


# The values that it passes


@define(eq=False)
class PassedValue:
    """A value that a container passes from module to module; `pass_back` finds its uses by its identity.

    Attributes:
        value: as it is recorded; `None` if missing from the file.
        items: the elements of a list that the container makes; else `None`.
        parts: the tensors that the container concatenates to this one; else `None`.
        dim: along which dimension it concatenates them, from 0.
        is_computed: whether the container itself computes something of it.
    """

    value: Recorded = None
    items: list[PassedValue] | None = None
    parts: list[PassedValue] | None = None
    dim: int = 0
    is_computed: bool = False

    def joined(self) -> Joined | None:
        """Return the recorded parts of a concatenated tensor; `None` for any other value."""
        if self.parts is None:
            return None
        return Joined([part.value for part in self.parts], self.dim)


@define(frozen=True)
class _InsideCall:
    """A call of a module inside a container.

    Attributes:
        input: what it took.
        output: what it returned. `pass_back` finds the uses of both by their identity.
        run: the run of the module.
    """

    input: PassedValue
    output: PassedValue
    run: Run


class RecordedValues(Domain[PassedValue]):
    """What Lua recorded of the values that a container passes. Its flow, which says what it does with any values, calls
    these methods, and `call` for each module inside, whose run is added: what is recorded of its call.

    Args:
        run: that of the container, which receives the runs of the modules inside.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._fields_of_inputs = recording_of(run.obj).inputs
        """The fields in which the container keeps what modules inside took, by their names."""
        self._nodes = recorded_nodes(run.obj)
        """What each node of a graph took and got back, in the order of the calls."""
        self._calls: list[_InsideCall] = []
        """The calls of modules whose runs were added, in their order."""
        self._step: SequenceStep | None = None
        """While `steps` or `repeat` calls a function: the step of the sequence for which it does; else `None`."""
        self._output_before_step: Recorded = None
        """What the container returned for the step before that; `None` in the first step, and elsewhere."""

    def tensor(self) -> PassedValue:
        """Return a value that is not recorded."""
        return PassedValue(is_computed=True)

    def items(self, values: Sequence[PassedValue]) -> PassedValue:
        """Return a list of values; recorded if any of them is, as elements that are not stay `None`."""
        elements = [value.value for value in values]
        is_known = any(item is not None for item in elements)
        is_computed = any(value.is_computed for value in values)
        return PassedValue(elements if is_known else None, list(values), is_computed=is_computed)

    def item(self, value: PassedValue, index: int, dim: int | None = None) -> PassedValue:
        """Return an element of a list, or a slice of a tensor.

        Args:
            value: the list or tensor.
            index: of the element, from 0, or from -1 backwards; or of the slice, from 0.
            dim: the dimension that is sliced, from 0; `None` for a list.
        """
        if dim is not None:
            # Unlike an element of a list, Lua has to make it.
            return PassedValue(slice_along(value.value, dim, index), is_computed=True)
        if value.items is None:
            return PassedValue(element(value.value, index))
        # An element that a list does not have is nil in Lua.
        has_element = -len(value.items) <= index < len(value.items)
        return value.items[index] if has_element else PassedValue()

    def length(self, value: PassedValue, dim: int | None = None) -> int | None:
        """Return the number of elements of a list, or of slices along a dimension; `None` if it is not recorded."""
        if dim is None:
            return len(value.value) if isinstance(value.value, list) else None
        is_tensor = isinstance(value.value, Tensor) and 0 <= dim < len(value.value.size)
        return int(value.value.size[dim]) if is_tensor else None

    def is_list(self, value: PassedValue) -> bool | None:
        """Return whether a value is a list; `None` if it is not recorded."""
        return None if value.value is None else isinstance(value.value, list)

    def concat(self, values: Sequence[PassedValue], dim: int, *, pads: bool = False) -> PassedValue:
        """Return a tensor that is joined of others.

        Args:
            values: the parts.
            dim: along which dimension, from 0.
            pads: whether smaller parts are filled up: where each of them is in the result is not known then.
        """
        if pads:
            return self.tensor()
        return PassedValue(parts=list(values), dim=dim, is_computed=True)

    def merge(self, value: PassedValue, dims: int, apply: Callable[[PassedValue], PassedValue]) -> PassedValue:
        """Apply a function to a tensor whose first dimensions are merged into one, so that `dims` remain.

        The result, which is the output of the container, is not split again, as by `Domain.merge`: it is recorded.
        """
        if isinstance(value.value, Tensor):
            value = PassedValue(_with_merged_dims(value.value, dims))
        # A value of its own: the gradient with respect to it is not that of the function's result, whose shape differs.
        return evolve(apply(value), is_computed=True)

    def steps(self, value: PassedValue, apply: Callable[[PassedValue], PassedValue]) -> PassedValue:
        """Apply a function to each step of a sequence, of which there are as many as recorded outputs."""
        inputs = steps_in(value.value)
        return self._in_steps(lambda index: apply(PassedValue(element(inputs, index))))

    def repeat(self, times: int | None, apply: Callable[[], PassedValue]) -> PassedValue:
        """Call a function in each step of a sequence, of which there are as many as recorded outputs."""
        return self._in_steps(lambda index: apply())

    def _in_steps(self, apply: Callable[[int], PassedValue]) -> PassedValue:
        """Call a function with the index of each step, from 0; meanwhile `call` notes in its runs which step it is.

        There are as many steps as the container has recorded outputs; without these it is not called.

        Returns:
            The sequence that the container makes of what the steps return, which is not recorded.
        """
        outputs = steps_in(self._run.recorded_output())
        for index in range(len(outputs)):
            self._step = SequenceStep(index, len(outputs))
            self._output_before_step = outputs[index - 1] if index else None
            apply(index)
        self._step = None
        self._output_before_step = None
        return PassedValue(is_computed=True)

    def call(self, spec: ModuleSpec, child: str, value: PassedValue, node: int | None = None) -> PassedValue:
        """Add the run of a module inside, and return its recorded output.

        Of a module that ran all steps of a sequence in evaluation, only the run of the last step is added, as its
        fields are of that: in other steps its output is not recorded.

        Args:
            spec: the container.
            child: the name of the module.
            value: its input as the flow has it; what the file records counts more.
            node: of a graph, the number of the node; `None` for other containers.
        """
        inside = spec.children[child]
        assert inside.obj is not None  # see `_spec`
        ran_in_evaluation = self._run.reading.ran_in_evaluation(inside.obj)
        if ran_in_evaluation and self._step is not None and not self._step.is_last:
            return PassedValue()
        gradient = None
        if child in self._fields_of_inputs:
            value = self._input_in_field(child)
        elif node is not None:
            value, gradient = self._recorded_at_next_node(value)
        run = self._run.add_run_inside(inside.path, inside.obj, value.value)
        run.grad_output = gradient
        if self._step is not None:
            run.step = self._step
            if ran_in_evaluation:
                run.previous_output = self._output_before_step  # in training it is among the module's own `outputs`
        output = PassedValue(run.recorded_output())
        self._calls.append(_InsideCall(value, output, run))
        return output

    def _input_in_field(self, child: str) -> PassedValue:
        """Return the input of a module for which the container has a field; not recorded if that is empty.

        The third module of nn.BiSequencerLM is one. It takes what the flow passes, with a step of zeros added to each
        sequence: without the field its input is not known.
        """
        return PassedValue(recorded(self._run.obj.get(self._fields_of_inputs[child])))

    def _recorded_at_next_node(self, value: PassedValue) -> tuple[PassedValue, Recorded]:
        """Return the input of the node of a graph that runs next, and the gradient with respect to its output.

        Either is recorded in the node; without a recorded input it is `value`, which the flow passes, and without a
        gradient `None`.
        """
        # Each call of a graph is that of a node with a module, as are `_nodes`; a damaged file may have fewer of these.
        number_of_node = len(self._calls)
        if number_of_node >= len(self._nodes):
            return value, None
        data = self._nodes[number_of_node]
        # A node keeps both in lists, of one element if it has one input, or one use.
        input_of_node = without_table(recorded(data.get("input")))
        if input_of_node is not None:
            value = PassedValue(input_of_node)
        gradient = without_table(recorded(data.get("gradOutput")))
        if isinstance(gradient, list):
            # It has several uses, whose gradients Lua adds up; the sum is not kept.
            gradient = None
        return value, gradient

    def pass_back(self, result: PassedValue) -> None:
        """Set the gradients with respect to the outputs of modules that are used once.

        They are the gradients with respect to the inputs of the modules that take these outputs. Of an output with
        several uses Lua adds them up, and the sum is not kept.

        Args:
            result: the output of the container.
        """
        gradients = self._gradients_of_uses(result)
        for call in self._calls:
            gradients_of_output = gradients.get(id(call.output), [])
            if call.run.grad_output is None and len(gradients_of_output) == 1:
                call.run.grad_output = gradients_of_output[0]

    def _gradients_of_uses(self, result: PassedValue) -> dict[int, list[Recorded]]:
        """Return the gradients that come back from all uses of each value, by the id of its `PassedValue`.

        One of them is `None` for a use whose gradient is not in the file.

        Args:
            result: the output of the container, which is a use of it.
        """
        # Values that were used, and the gradient with respect to each use.
        uses = [(result, self._run.grad_output)]
        for call in self._calls:
            uses.append((call.input, call.run.recorded_grad_input()))
        gradients: dict[int, list[Recorded]] = {}
        while uses:
            value, gradient = uses.pop()
            gradients.setdefault(id(value), []).append(gradient)
            # Who uses a list, or a joined tensor, uses what it is made of.
            for index, item in enumerate(value.items or ()):
                uses.append((item, element(gradient, index)))
            if value.parts is not None:
                uses += zip(value.parts, _split(gradient, value.parts, value.dim))
        return gradients


def _with_merged_dims(tensor: Tensor, dims: int) -> Tensor | None:
    """Return a view of a tensor whose first dimensions are one; `None` if there is no such view.

    Args:
        tensor: the tensor; one that is not contiguous has none.
        dims: dimensions of the view; a tensor that has no more keeps its own.
    """
    merged_dims = max(len(tensor.size) - dims + 1, 1)
    if merged_dims > len(tensor.size) or tensor.stride != contiguous(tensor.size):
        return None
    size = (prod(tensor.size[:merged_dims]), *tensor.size[merged_dims:])
    return evolve(tensor, size=size, stride=contiguous(size))


def _split(gradient: Recorded, parts: list[PassedValue], dim: int) -> list[Recorded]:
    """Return the gradients with respect to tensors that were concatenated, as views of that of the whole.

    Args:
        gradient: with respect to the whole; `None` if it is not in the file.
        parts: the tensors.
        dim: along which dimension they were concatenated, from 0.

    Returns:
        One for each tensor; `None` for all if the size of any is not known, and for one beyond the gradient's end.
    """
    gradients: list[Recorded] = []
    start = 0
    for part in parts:
        if not isinstance(part.value, Tensor) or not 0 <= dim < len(part.value.size):
            return [None] * len(parts)
        length = part.value.size[dim]
        gradients.append(slice_along(gradient, dim, slice(start, start + length)))
        start += length
    return gradients
