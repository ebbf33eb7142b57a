"""Inputs that two models may accept, guessed from the layers that their inputs enter.
A value is named by its origin: its way from the input of the model, such as (1, 0) for element 0 of element 1.

May import graph and nn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from attrs import evolve

from ...errors import ModelError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.fields import lookup
from ...nn.kinds import ANY, TENSOR, Kind, Kinds, listed, many
from ...nn.mapping import ModuleSpec
from ...nn.output_shapes import Example, fold, same, unknown
from ...nn.plan import sketch
from ...nn.registry import in_lua_of, like_of, traits_of
from ...nn.state_dict import state_dict
from ...nn.walk import FLOW_ERRORS, narrowed
from .layer import LiveLayer
from .recorded import recorded
from .rounding import UNIT

Spec = Any
"""Example inputs as `nn.example` has them, or `None` where they are not known."""
SIDES = (32, 28, 16, 8, 64, 96, 128, 224, 227, 231, 256, 299, 12, 24, 48, 40)
"""Heights and widths tried for images."""
_DEEPEST = 64
"""Deepest nesting of containers that is followed."""
_MOST_ELEMENTS = 64
"""Maximum number of elements of a list of inputs."""
_STEPS = 3
"""Elements of a list of steps, and steps of a sequence, whose number a model leaves open."""
_MOST_NUMBERS = 1 << 27
"""Maximum number of elements of a tensor that is guessed: 1 GiB in double precision."""
_MOST_VALUES = 1_000
"""Maximum number of elements, and of values computed from them, that are told apart."""
_MOST_MODULES = 10_000
"""Maximum number of modules visited."""
_MOST_GUESSED_FROM = 4
"""Maximum number of layers in a row that do not say what they take."""
Origin = tuple[int, ...]
"""A value by its way from the input of the model: the index of an element, from 0, or one of the two steps below."""
_THE_INPUT: Origin = ()
_EACH_ELEMENT = -1_000_001
"""A step of an origin: every element of a list of any length."""
_OUTPUT_OF_TAKER = -1_000_002
"""A step of an origin: the output of a layer that takes the value, and whose own fields do not tell what it takes. What
the next layer takes is a guess of that."""
_BATCH = 2
"""Examples of a guessed input."""
_TOKENS = 5
"""Tokens of an example."""
_FRAMES = 24
"""Frames of a signal: more than kernels usually have."""


def guess_inputs(model: TorchObject, side: int = 32) -> Spec:
    """Return an input that a model may accept, according to its first layers; `None` if these do not determine one.

    Args:
        model: the model.
        side: height and width of images.
    """
    return _guess(_planned(model), side)


def _planned(model: TorchObject) -> ModuleSpec:
    """Return as much of the plan of a model as possible."""
    plan, _ = sketch(state_dict(model, own_keys=True))
    return plan


def _guess(plan: ModuleSpec, side: int) -> Spec:
    """Return an input that a model may accept, by its plan; `None` if this does not determine one.

    Args:
        plan: the model's, as far as it could be made.
        side: height and width of images.
    """
    entered = _EnteredLayers(side)
    try:
        entered(plan, _kind_at(_THE_INPUT))
    except (*FLOW_ERRORS, RecursionError):
        return None  # a flow needs to know more of the input, or modules are nested too deep
    return entered.hints.example(_THE_INPUT)


def _kind_at(origin: Origin) -> Kind:
    """Return the kind of the input of a model, or of a value in it, of which only the origin is known."""
    return Kind("any", origin=origin)


class _Hints:
    """What a model tells of its input, and of the values that its layers take from it, by their origins. An example of
    a value has its shape, or is a list of examples for a list.
    """

    def __init__(self) -> None:
        self.stated: dict[Origin, Spec] = {}
        """What the layer that takes a value says of it by its own fields."""
        self.recorded: dict[Origin, Spec] = {}
        """Inputs of the sizes that the file records."""
        self.next_steps: dict[Origin, set[int]] = {}
        """For each value the steps by which the origins of other values go on from it."""
        self.same_shape_as: dict[Origin, Origin] = {}
        """For a value another one of the same shape, to which it is added, or with which it is multiplied."""

    def add(self, origin: Origin) -> None:
        """Note that a layer takes a value: for each value on the way to it, by which step the way goes on.

        Of (1, 0), element 0 of element 1, that is 1 for `_THE_INPUT`, and 0 for (1,).
        """
        for length, step in enumerate(origin):
            self.next_steps.setdefault(origin[:length], set()).add(step)

    def add_same_shape(self, origins: list[Origin], shortest: Origin) -> None:
        """Note that values have the shape of the one with the shortest origin, which is among them."""
        # A value that refers to another one itself is not referred to: they might ask one another in a circle.
        if shortest in self.same_shape_as:
            return
        for origin in origins:
            # That a value has the shape of what follows from it, or of itself, says nothing new.
            follows_from_shortest = origin[: len(shortest)] == shortest
            if not follows_from_shortest:
                self.same_shape_as.setdefault(origin, shortest)

    def example(self, origin: Origin, *, may_guess: bool = True, may_ask_same_shape: bool = True) -> Spec:
        """Return an example of a value; `None` if it is not known.

        The first that says it counts: the layer that takes the value; the layers that take its elements; a value of the
        same shape; and as guesses the sizes in the file, and the layer behind the one that takes it.

        Args:
            origin: which value.
            may_guess: whether guesses count.
            may_ask_same_shape: whether a value of the same shape is asked; False if such a one asks itself, as these
                might ask one another in a circle.
        """
        if origin in self.stated:
            return self.stated[origin]
        spec = self._example_by_elements(origin, may_guess, may_ask_same_shape)
        if spec is None and may_ask_same_shape and origin in self.same_shape_as:
            spec = self.example(self.same_shape_as[origin], may_guess=may_guess, may_ask_same_shape=False)
        if spec is None and may_guess:
            return self._guessed_example(origin, may_ask_same_shape)
        return spec

    def _guessed_example(self, origin: Origin, may_ask_same_shape: bool) -> Spec:
        """Return an example of a value that no layer states: of the recorded sizes, or as the next layer states it.

        The next layer is the one behind a layer that takes the value, and does not say what it takes.

        Args:
            origin: which value.
            may_ask_same_shape: see `example`.
        """
        if origin in self.recorded:
            return self.recorded[origin]
        if _OUTPUT_OF_TAKER in self.next_steps.get(origin, ()):
            return self.example((*origin, _OUTPUT_OF_TAKER), may_ask_same_shape=may_ask_same_shape)
        return None

    def _example_by_elements(self, origin: Origin, may_guess: bool, may_ask_same_shape: bool) -> list[Spec] | None:
        """Return a list of examples, if layers take elements of a value, and what each takes is known; else `None`.

        Args:
            origin: which value.
            may_guess: see `example`.
            may_ask_same_shape: see `example`.
        """

        def example_of_element(step: int) -> Spec:
            return self.example((*origin, step), may_guess=may_guess, may_ask_same_shape=may_ask_same_shape)

        indices = self.next_steps.get(origin, set()) - {_OUTPUT_OF_TAKER}
        if indices == {_EACH_ELEMENT}:
            element = example_of_element(_EACH_ELEMENT)
            return None if element is None else [element] * _STEPS
        # An index from the end, or `_EACH_ELEMENT` besides others, both below 0, do not tell the length.
        if not indices or min(indices) < 0 or max(indices) >= _MOST_ELEMENTS:
            return None
        specs = [example_of_element(index) for index in range(max(indices) + 1)]
        return None if None in specs else specs


class _EnteredLayers(Kinds):
    """Follows a model to the layers that take its input, or a value in it, and notes in `hints` what these take. The
    flows of containers pass kinds of values: one whose `origin` is set is the input of the model, or in it.

    Args:
        side: height and width of images.

    Attributes:
        hints: what the layers visited so far say.
    """

    def __init__(self, side: int) -> None:
        super().__init__(traits_of, _MOST_MODULES)
        self.hints = _Hints()
        self._side = side
        self._depth = 0
        """How many modules, each inside another, are being visited."""
        self._calls = 0
        """How many modules inside others were called."""

    def visit(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of a module's output, and note what it takes if that is the input of the model, or in it.

        It is `ANY` as soon as all is known of the input, or where modules are nested too deep, or values too many.

        Args:
            spec: the module in the plan.
            kind: of its input; its `origin` tells whether that is the input of the model, or in it.
        """
        is_done = _THE_INPUT in self.hints.stated  # the layer that takes it has said all
        if is_done or self._depth > _DEEPEST or len(self.hints.next_steps) > _MOST_VALUES:
            return ANY
        self._depth += 1
        if kind.origin is not None:
            self.hints.add(kind.origin)
            output = self._of_input(spec, kind, kind.origin)
        elif traits_of(spec.target).output is fold and kind.items is not None:
            # A sum or product of a list whose elements may be of the input.
            output = self._folded(kind.items)
        else:
            output = super().visit(spec, kind)
        self._depth -= 1
        return output

    def _of_input(self, spec: ModuleSpec, kind: Kind, origin: Origin) -> Kind:
        """Return the kind of the output of a module that takes the input, or a value in it, and note what it takes.

        The modules inside that its flow calls say that first, then its own fields, then all other modules inside.

        Args:
            spec: the module.
            kind: of its input.
            origin: that of the kind.
        """
        calls_before = self._calls
        output = self._output_for_input(spec, kind, origin)
        has_called_modules_inside = self._calls > calls_before
        example = _example(spec, self._side)
        if example is not None and not self._is_stated(origin):
            self.hints.stated[origin] = example
        if not has_called_modules_inside and not self._is_stated(origin):
            self._ask_modules_inside(spec, kind)
        # That of the innermost module counts, which has noted it before the containers around it.
        sizes = _recorded_input(spec)
        if sizes is not None:
            self.hints.recorded.setdefault(origin, sizes)
        return output

    def _is_stated(self, origin: Origin) -> bool:
        """Return whether layers that were visited say what a value is, without a guess."""
        return self.hints.example(origin, may_guess=False) is not None

    def _ask_modules_inside(self, spec: ModuleSpec, kind: Kind) -> None:
        """Visit each module inside one of which nobody knows how it calls them, as if it took the input.

        The first that says what it takes decides: what is stated already stays.

        Args:
            spec: the module.
            kind: of its input.
        """
        facts = traits_of(spec.target)
        # A module in a cell takes a list of its input and the states, of which there are two at most.
        is_cell = facts.by_step and facts.flow is not None
        for child in spec.children.values():
            self(child, listed([kind, ANY, ANY]) if is_cell else kind)

    def _output_for_input(self, spec: ModuleSpec, kind: Kind, origin: Origin) -> Kind:
        """Return the kind of the output of a module that takes the input, or a value in it.

        Args:
            spec: the module; if it is a container, those inside are visited.
            kind: of its input.
            origin: that of the kind.
        """
        facts = traits_of(spec.target)
        if facts.flow is narrowed:
            # A range of the elements of a list, from 0: each keeps its index. The flow would ask for the length of the
            # list, which is not known of the input.
            start, length = spec.args
            return listed([kind.at(index) for index in range(start, start + min(length, _MOST_ELEMENTS))])
        if facts.flow is not None:
            return super().visit(spec, kind)
        if facts.output is same:
            return kind  # it has the shape of the input: what the next layer takes, this one takes, too
        if facts.takes_list or origin.count(_OUTPUT_OF_TAKER) >= _MOST_GUESSED_FROM:
            return ANY
        # What the next layer takes is a guess of what this one takes (`_Hints._guessed_example`): its input has an
        # origin that says so.
        return _kind_at((*origin, _OUTPUT_OF_TAKER))

    def _folded(self, items: tuple[Kind, ...]) -> Kind:
        """Return the kind of a sum or product of parts of the input, which have one shape.

        The result passes as one of the parts: what the next layer says of its shape is true of this part, and so of
        all. It is that of the shortest origin, as `add_same_shape` has the others refer to it: a part does not refer to
        what is inside it, which might refer to it in a circle.
        """
        origins = [item.origin for item in items if item.origin is not None]
        if not origins:
            return TENSOR
        shortest = min(origins, key=len)
        self.hints.add_same_shape(origins, shortest)
        return _kind_at(shortest)

    # The domain, where a value is a part of the input

    def call(self, spec: ModuleSpec, child: str, value: Kind, node: int | None = None) -> Kind:
        """Return the kind of the output of a module inside another, and count the call in `_calls`.

        The count tells whether the flow of a container has called a module of it.

        Args:
            spec: the container.
            child: the name of the module.
            value: the kind of its input.
            node: of a graph, the number of the node.
        """
        self._calls += 1
        return super().call(spec, child, value, node)

    def item(self, value: Kind, index: int, dim: int | None = None) -> Kind:
        """Return the kind of an element of a list, or of a slice of a tensor along `dim`.

        Of slices of the input nothing is known.
        """
        return ANY if dim is not None and value.origin is not None else super().item(value, index, dim)

    def steps(self, value: Kind, apply: Callable[[Kind], Kind]) -> Kind:
        """Apply a function to every element of a list; in the input once, to an element that is like all of them."""
        if value.origin is None:
            return super().steps(value, apply)
        return many(apply(_kind_at((*value.origin, _EACH_ELEMENT))))

    def each(self, value: Kind, apply: Callable[[int, Kind], Kind], different: int) -> Kind:
        """Apply a module, or a copy of it, to every element of a list.

        The length of a list in the input is not known: it is applied once there, to an element that is like all.

        Args:
            value: the list.
            apply: the function, of the number of the element and the element.
            different: how many numbers, from 0, the function tells apart; in the input all elements have number 0.
        """
        if value.origin is None:
            return super().each(value, apply, different)
        return many(apply(0, _kind_at((*value.origin, _EACH_ELEMENT))))


def _recorded_input(spec: ModuleSpec) -> Spec:
    """Return an input of the sizes of a module's last one; `None` if these are not in the file.

    After a backward the gradient with respect to the input has them.
    """
    obj = spec.obj
    if obj is None:
        return None  # a module of the plan that is none of Lua's
    sizes = _from_record(recorded(obj.get("gradInput")))
    if sizes is not None:
        return sizes
    # Without a backward, the first node of a graph has them, which keeps its input in a list of one element.
    return _from_record(recorded(lookup(obj, "innode.data.input.1")))


def _from_record(value: Any) -> Spec:
    """Return an input of the sizes of a recorded value; `None` if it is not complete."""
    if isinstance(value, Tensor):
        return Example(name="", shape=value.size)
    if isinstance(value, list) and value:
        specs = [_from_record(item) for item in value]
        return None if None in specs else specs
    return None


def _example(spec: ModuleSpec, side: int) -> Spec:
    """Return an input of a layer, by its own fields; `None` if these do not determine one.

    Args:
        spec: the layer in the plan.
        side: height and width of images.
    """
    facts = traits_of(spec.target)
    # An `unknown` output is that of nn.SparseLinear, which takes indices and values, and no rows of features.
    if spec.obj is None or facts.takes_list or facts.output is unknown:
        return None
    first_row = in_lua_of(spec.obj).first_row  # that of a lookup table, which takes numbers of rows
    if facts.takes_tokens or first_row is not None:
        return _example_of_tokens(spec, first_row)
    features = _features(spec.obj, like_of(spec.target))
    if not features:
        return None
    axes = _axes(spec)
    side = min(side, _LARGEST_VOLUME if "d" in axes else _LARGEST_IMAGE)
    # The letters are those of `_axes`.
    extents = {"b": _BATCH, "c": features, "d": side, "h": side, "w": side, "s": _STEPS, "t": _FRAMES}
    shape = tuple(extents[axis] for axis in axes)
    # A damaged field may have any number of features.
    return Example(name="", shape=shape) if prod(shape) <= _MOST_NUMBERS else None


def _example_of_tokens(spec: ModuleSpec, first_row: int | None) -> Example | None:
    """Return numbers of tokens, counted from 1; `None` if a layer has no rows, or does not say how many.

    Args:
        spec: the layer in the plan, whose first argument is the number of its rows.
        first_row: Lua's number of the first row; `None` for a layer that counts from 1.
    """
    # A table whose first row has a lower number has the rows below 1 for padding: none of these is drawn.
    rows_for_padding = 0 if first_row is None else 1 - first_row
    tokens = _size(spec.args[0]) - rows_for_padding if spec.args else 0
    return Example(name="", shape=(_BATCH, _TOKENS), bounds=(1, tokens)) if tokens > 0 else None


_LARGEST_IMAGE = 299
"""Largest height and width of an image of ImageNet's models."""
_LARGEST_VOLUME = 16
"""Largest side of a volume: of larger ones a convolution takes long."""


def _axes(spec: ModuleSpec) -> str:
    """Return the axes of the input of a layer in order, a letter each.

    Batch, channels or features, depth, height, width; `s` for the steps of a sequence, `t` for the time of a signal.
    """
    facts = traits_of(spec.target)
    if facts.axes:
        return facts.axes
    if facts.recurrent is not None and not facts.by_step:
        return "sbc"
    suffix_of_class = like_of(spec.target)[-2:]  # of Conv2d, MaxPool3d
    # Layers over time have `axes`: all others take rows of features.
    return {"2d": "bchw", "3d": "bcdhw"}.get(suffix_of_class, "bc")


def _features(obj: TorchObject, like: str) -> int:
    """Return the number of features that a layer takes; 0 if it is not known.

    Args:
        obj: the layer.
        like: the class of torch.nn that it is like.
    """
    # A class has it in one of these places; the others count as 0.
    counts = [_size(obj.get(field)) for field in ("nInputPlane", "inputSize", "inputsize", "inputFrameSize")]
    weight = obj.get("weight")
    if like == "Linear" and isinstance(weight, Tensor) and weight.ndim == 2:
        counts.append(weight.size[1])
    mean = obj.get("running_mean")
    if isinstance(mean, Tensor):
        counts.append(mean.numel)
    return max(counts)


def _size(value: Any) -> int:
    """Return a positive number of features, rows or tokens; 0 if it is none."""
    return int(value) if isinstance(value, (int, float)) and 0 < value < 1 << 31 else 0


def fitting_inputs(model: TorchObject, path: str, limits: Limits = DEFAULT_LIMITS) -> Spec:
    """Return an input that a model accepts; sizes of images are tried until the live module accepts one.

    If it accepts none, that is the guess for the first size: the comparison reports why it fails.

    Args:
        model: the model in Lua.
        path: its path in the file.
        limits: resource limits.

    Raises:
        ModelError: the model's layers do not determine its input.
    """
    plan = _planned(model)
    first = _guess(plan, SIDES[0])
    if first is None:
        raise ModelError(
            "the layers do not determine the model's input", path=path, hint="Specify it: --input 2x3x224x224."
        )
    try:
        layer = LiveLayer.build(model, path, UNIT["float32"], limits)  # any unit, as nothing is compared
    except Exception:  # the model has no live module: the comparison reports it
        return first
    for spec in _guesses(plan, first):
        # Of words, a model takes sequences, or one for each example.
        for variant in (spec, _one_word_each(spec)):
            if layer.shapes(variant) is not None:
                return variant
    return first


def _guesses(plan: ModuleSpec, first: Spec) -> Iterator[Spec]:
    """Yield the guesses of an input for each of `SIDES`; one alone if it has no images, which other sides would change.

    Sides of which the input would be too large are left out.

    Args:
        plan: the model's.
        first: the guess for the first side.
    """
    yield first
    for side in SIDES[1:]:
        spec = _guess(plan, side)
        if spec == first:
            return
        if spec is not None:
            yield spec


def _one_word_each(spec: Spec) -> Spec:
    """Return an input with one token for each example, not with sequences of tokens; others as they are.

    Guessed inputs have bounds only if they are tokens.
    """
    if isinstance(spec, list):
        return [_one_word_each(item) for item in spec]
    return evolve(spec, shape=spec.shape[:1]) if spec.bounds else spec
