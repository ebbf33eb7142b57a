"""Shapes of a drawn model: inferred from an input that its layers accept, or from a stated one. A block is a module of
the model in a drawing, a kind what is known of a value: its shape, or the kinds in a list.

Inference follows the rules that entries declare, computes nothing and needs no PyTorch. An input that nobody stated is
a guess, unless it agrees with recorded outputs. What the rules leave open is unknown for a guess; for a stated input
PyTorch runs the model on its meta device, which allocates no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..conversion.inputs import Inputs, parse_inputs
from ..data import define
from ..errors import ModelError
from ..graph.lua import TorchObject
from ..io.platform import require_torch
from ..limits import Limits
from ..nn.blocks import Block, DrawnModel, shape_text
from ..nn.kinds import ANY, NOTHING, Kind, Kinds, kind_of, listed
from ..nn.mapping import ModuleSpec
from ..nn.output_shapes import (
    Example,
    Examples,
    Mismatch,
    Shape,
    Value,
    fold,
    inputs_text,
    one_hot,
    same,
    temporal,
    unknown,
)
from ..nn.registry import like_of, traits_of
from ..nn.torch_nn import argument_at
from ..text import counted, extents

_IMAGE_SIDES = (224, 256, 32, 28, 64, 227, 299, 231, 128, 96, 112, 48, 40, 36, 24, 20, 16, 12, 10, 8, 321, 512, 4, 2, 1)
"""Heights and widths tried for a convolution, the usual ones first; for each the other guesses by the same number."""
_SMALL_SIDES = (1, 4, 7, 8, 16)
"""Heights and widths tried for a transposed convolution, as generators make an image of a few numbers."""
_FRAMES = 16
"""Length of the video tried for a convolution in three dimensions, as C3D and its like take it."""
_SEQUENCE_LENGTHS = (16, 32, 64, 128, 8, 4)
"""Sequence lengths tried."""
_GUESS = "a guess from the layers"
_DEEPEST = 80
"""Maximum nesting of blocks."""
_MOST_ELEMENTS = 64
"""Maximum elements of a guessed list."""
_MOST_EVALUATIONS = 60_000
"""Maximum number of layers evaluated, over all attempts."""
_MOST_BATCHES = 3
"""Numbers of examples tried, of those in recorded outputs."""
_MOST_GUESSES = 10
"""Inputs with which PyTorch runs a model at most."""
_SHOWN_OUTPUTS = 8
"""Tensors of an output whose shapes a block has."""
_SHOWN_SHAPES = 12
"""Shapes of a list that are text."""


@define(frozen=True)
class Shapes:
    """Shapes of a model.

    Attributes:
        input: of its input, as text; empty where unknown.
        output: of its output.
        source: their origin, in words.
        is_guess: whether they are for an input that only the layers suggest.
        input_value: of its input, where it was inferred or stated; `None` where unknown.
        output_value: of its output, where it was inferred, computed or recorded; `None` where unknown.
    """

    input: str = ""
    output: str = ""
    source: str = ""
    is_guess: bool = False
    input_value: Value = None
    output_value: Value = None

    @property
    def sizes(self) -> dict[str, list[Any]]:
        """Sizes of each tensor of `input` and `output`, if known: in lists as the tensors are, `None` if one is not."""
        sizes = {}
        for name, value in (("input", self.input_value), ("output", self.output_value)):
            if value:
                sizes[name] = _sizes(value)
        return sizes


def shapes_of(models: list[DrawnModel], wanted: Inputs | None, limits: Limits) -> Shapes:
    """Determine the shapes of models, and set them in their blocks.

    Args:
        models: with their blocks.
        wanted: the shape of the only model's input, see `_for_input`; by default the shapes are inferred.
        limits: resource limits.

    Raises:
        ModelError: there is `wanted`, and there is not one model, or it does not accept such an input.
        UnsupportedError: there is `wanted`, the rules leave a shape open, and PyTorch is not installed.
    """
    if wanted:
        if len(models) != 1:
            raise ModelError(
                "shapes are computed by running one model",
                found=counted(len(models), "model"),
                hint="Name it with --at.",
            )
        model = models[0]
        return _for_input(model.module, model.path, wanted, model.blocks, limits)
    inferred = [infer(model.blocks) for model in models]
    return inferred[0] if len(inferred) == 1 else _origins_of_several(inferred)


def _origins_of_several(inferred: list[Shapes]) -> Shapes:
    """Return the origins of the shapes of several models, or of none; the shapes themselves are in their blocks."""
    sources = set()
    for shapes in inferred:
        if shapes.is_guess:  # without the input, which differs from model to model
            sources.add(_GUESS)
        elif shapes.source:
            sources.add(shapes.source)
    is_guess = any(shapes.is_guess for shapes in inferred)
    return Shapes(source=", or ".join(sorted(sources)), is_guess=is_guess)


def infer(blocks: list[Block]) -> Shapes:
    """Infer shapes for the blocks of one model, and set them where the file records none.

    Args:
        blocks: all of them, each before those inside it; the first is the model.
    """
    root = blocks[0]
    is_recorded = any(block.shape for block in blocks)
    best = _best_guess(blocks, is_recorded)
    if best is None:
        source = "of the last forward before the file was saved" if is_recorded else ""
        return Shapes(output=shape_text(root.shape), source=source, output_value=[*root.shape])
    model_input, trial = best
    for block in blocks:
        if not block.shape and block.kind != "end":
            block.shape = trial.shapes(block)
    source = "as recorded by the last forward"
    if not is_recorded:
        source = f"for an input of {_text(model_input)}, {_GUESS}"
    output = _output_of_model(root, trial.output)
    return Shapes(
        _text(model_input),
        _text(output),
        source,
        is_guess=not is_recorded,
        input_value=model_input,
        output_value=output,
    )


def _output_of_model(root: Block, inferred: Value) -> Value:
    """Return the shapes of a model's output: those of its block, or inferred ones where the block has not all.

    It has the first of many, and none where the output is a list with an unknown element, or lists in it.

    Args:
        root: the block of the model.
        inferred: the output by the declared rules; `None` if they leave it open.
    """
    if not root.shape:
        return inferred
    is_list_of_shapes = isinstance(inferred, list) and all(isinstance(item, tuple) for item in inferred)
    if is_list_of_shapes and len(inferred) > len(root.shape):
        return inferred
    return [*root.shape]


def _best_guess(blocks: list[Block], is_recorded: bool) -> tuple[Value, Evaluation] | None:
    """Return the input that leaves the fewest shapes unknown, and its evaluation; `None` if the layers accept none.

    Args:
        blocks: of the model.
        is_recorded: whether the file has shapes of outputs, with which those of the input must agree.
    """
    best: tuple[Value, Evaluation] | None = None
    fewest_doubts = 0
    with_unknown_input = evaluate(blocks, None)  # finds the layers that the input enters
    steps_left = with_unknown_input.steps_left
    for likely_input in _likely_inputs(blocks, with_unknown_input.entered):
        # What one trial leaves of its steps bounds the next: the work of all together is limited.
        model_input, trial = _evaluated_with_fitting(blocks, likely_input, steps_left)
        steps_left = trial.steps_left
        if steps_left < 0:
            break
        if trial.failed or (is_recorded and not _agrees_with_recorded(blocks, trial)):
            continue
        doubts = _count_doubts(blocks, model_input, trial)
        if best is None or doubts < fewest_doubts:
            best = (model_input, trial)
            fewest_doubts = doubts
        if fewest_doubts == 0:
            break
    return best


def _evaluated_with_fitting(blocks: list[Block], model_input: Value, steps: int) -> tuple[Value, Evaluation]:
    """Return an input and its evaluation; unknown elements of a list have the shapes that others demand of them.

    Args:
        blocks: of the model.
        model_input: a shape, or a list in which some are unknown, `None`.
        steps: bounds the layers that are evaluated.
    """
    trial = evaluate(blocks, model_input, steps)
    if not trial.fitting_shapes:
        return model_input, trial
    fitting_input = [trial.fitting_shapes.get((place,), element) for place, element in enumerate(model_input)]
    return fitting_input, evaluate(blocks, fitting_input, trial.steps_left)


def _count_doubts(blocks: list[Block], model_input: Value, trial: Evaluation) -> int:
    """Return how many blocks have unknown shapes; an output for another batch than the input's counts more than all."""
    doubts = sum(not trial.shapes(block) for block in blocks if block.kind != "end")
    return doubts if _keeps_batch(model_input, trial.output) else doubts + len(blocks)


def _for_input(module: TorchObject, path: str, wanted: Inputs, blocks: list[Block], limits: Limits) -> Shapes:
    """Determine the shapes of a model for one input and set them in its blocks; of several guesses the first that fits.

    The declared rules are asked first. PyTorch runs the model where they leave a shape open, or refuse the input: its
    message says what a layer expects.

    Args:
        module: the model.
        path: its path in the file.
        wanted: the shape of its input; `"guess"`: one that its layers accept; or a text such as `[1x4,1x20:int64]`
            for a table of inputs.
        blocks: the model's.
        limits: resource limits.

    Raises:
        ModelError: the model does not accept such an input, or none can be guessed.
        UnsupportedError: the rules leave a shape open, and PyTorch is not installed.
    """
    is_guess = wanted in ("guess", ("guess",))  # the command line has a tuple of all texts
    candidates: list[Examples] = []
    if is_guess:
        candidates += [Example("", shape) for shape in _guessed_inputs(blocks)]
    else:
        candidates.append(parse_inputs(wanted, limits=limits))
    accepted = _first_accepted(candidates, module, path, blocks, limits)
    _set_shapes(blocks, accepted.outputs)
    text = inputs_text(accepted.inputs, "×")
    source = f"for an input of {text}"
    if is_guess:
        source += f", {_GUESS}"
    output = _output_of_model(blocks[0], accepted.model_output)
    return Shapes(text, _text(output), source, is_guess, input_value=accepted.inputs, output_value=output)


Outputs = list[tuple[Shape, ...]]
"""The sizes of each tensor that each block that is no end returns, in the order of the blocks; none if unknown."""


@define(eq=False)
class _Accepted:
    """An input that a model accepts, and what it returns for it.

    Attributes:
        inputs: the input: an example of a tensor, or a list of these.
        outputs: those of the modules; of a long list the first.
        model_output: that of the model by the declared rules; `None` if they leave it open.
    """

    inputs: Examples
    outputs: Outputs
    model_output: Value


def _first_accepted(
    candidates: list[Examples], module: TorchObject, path: str, blocks: list[Block], limits: Limits
) -> _Accepted:
    """Return the first of some inputs that a model accepts, with the outputs of its modules for it.

    Args:
        candidates: the inputs.
        module: the model.
        path: its path in the file.
        blocks: the model's.
        limits: resource limits.

    Raises:
        ModelError: it accepts none, as the error for the last one says; or there is none.
        UnsupportedError: the rules leave an output open, and PyTorch is not installed.
    """
    problem = ModelError("the input's shape cannot be guessed", hint="State it: --input-shape 1x3x224x224.")
    for inputs in candidates:
        try:
            return _accepted(inputs, module, path, blocks, limits)
        except ModelError as error:
            problem = error
    raise problem


def _set_shapes(blocks: list[Block], outputs: Outputs) -> None:
    """Set the shapes of a model's blocks to those of some outputs, instead of recorded ones, of another input."""
    for block in blocks:
        block.shape = ()
    for block, shapes in zip(_modules_in(blocks), outputs):
        block.shape = shapes


def _modules_in(blocks: list[Block]) -> list[Block]:
    """Return the blocks that are no ends of graphs."""
    return [block for block in blocks if block.kind != "end"]


def _accepted(inputs: Examples, module: TorchObject, path: str, blocks: list[Block], limits: Limits) -> _Accepted:
    """Return an input with the outputs of modules for it: by the declared rules, by a run where these leave one open.

    Args:
        inputs: the input.
        module: the model.
        path: its path in the file.
        blocks: the model's.
        limits: resource limits.

    Raises:
        ModelError: the model does not accept such an input.
        UnsupportedError: the rules leave an output open, and PyTorch is not installed.
    """
    modules = _modules_in(blocks)
    trial = evaluate(blocks, _shapes_of_inputs(inputs))
    by_rules = [() if trial.failed else trial.shapes(block) for block in modules]
    if all(by_rules):
        return _Accepted(inputs, by_rules, trial.output)
    require_torch()
    from ..torchmodules.build import output_shapes

    by_run = output_shapes(module, path, inputs, limits)  # by the keys of modules, on the meta device
    outputs = [shapes or by_run.get(block.key, ()) for block, shapes in zip(modules, by_rules)]
    return _Accepted(inputs, outputs, trial.output)


def _shapes_of_inputs(inputs: Examples) -> Value:
    """Return the shapes of inputs, in lists as these are."""
    return inputs.shape if isinstance(inputs, Example) else [_shapes_of_inputs(item) for item in inputs]


def _guessed_inputs(blocks: list[Block]) -> list[Shape]:
    """Return shapes of one input that the first layers may accept, in the order of attempts.

    If the rules accept none, those that they refuse: PyTorch may accept them, and its message says what does not fit.
    """
    shapes = [shape for shape in _likely_inputs(blocks, evaluate(blocks, None).entered) if isinstance(shape, tuple)]
    likely = [shape for shape in shapes if not evaluate(blocks, shape).failed]
    return likely[:_MOST_GUESSES] or shapes[:_MOST_GUESSES]


def evaluate(blocks: list[Block], model_input: Value, steps: int = _MOST_EVALUATIONS) -> Evaluation:
    """Return the shapes of all blocks of a model for one input, or that a layer refuses it.

    Args:
        blocks: all of the model, which is the first.
        model_input: its shape; a list of shapes for several tensors; `None`, also in a list, for an unknown one.
        steps: bounds the layers that are evaluated.
    """
    trial = Evaluation(steps)
    assert blocks[0].spec is not None  # only the ends of graphs have none
    trial.run(blocks[0].spec, _input_kind(model_input))
    return trial


class Evaluation(Kinds):
    """The shapes of all blocks for one input, or the layers that it enters.

    As a domain it is told of each module that the flow of a container calls (`call`), and says what this returns
    (`visit`).

    Args:
        steps: maximum number of modules and elements to visit; the outputs of further modules are unknown.

    Attributes:
        failed: whether a layer does not accept its input.
        output: the model's output: a shape, a list, or `None` if it is unknown.
        entered: by the indices of an element of the input, `()` for the whole: the first layer that it enters and whose
            arguments determine its shape; `None` if it enters others only.
        fitting_shapes: the shapes of unknown elements of the input, which follow from sums and products with known
            ones; by the indices of each.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(traits_of, steps)
        self.failed = False  # no layer has refused its input yet
        self.output: Value = None  # unknown before `run`
        # By the indices of an element of the input, `()` for the whole input, as its `origin` has them:
        self.entered: dict[tuple[int, ...], ModuleSpec | None] = {}
        self.fitting_shapes: dict[tuple[int, ...], Shape] = {}
        self._kinds: dict[tuple[int, int | str], Kind] = {}
        """The kind of the output of each module, by the place of its block."""
        self._depth = 0
        """How many modules, each inside another, are being visited."""

    def run(self, spec: ModuleSpec, kind: Kind) -> None:
        """Evaluate a model for an input; sets `output`, or `failed`.

        Args:
            spec: the model.
            kind: of its input, see `_input_kind`.
        """
        try:
            output = self(spec, kind)
            self._kinds[0, ""] = output  # the place of the block of the model itself
            self.output = output.value
        except (Mismatch, ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError):
            # Beside `Mismatch`, what the rules' arithmetic raises for shapes that their authors did not expect.
            self.failed = True

    def shapes(self, block: Block) -> tuple[Shape, ...]:
        """Return the shapes of the tensors in a block's output, of a long list the first; none if one is unknown."""
        kind = self._kinds.get(block.place_in_plan, ANY)
        shapes = [kind.shape] if kind.items is None else [item.shape for item in kind.items]
        if None in shapes:
            return ()
        return tuple(shape for shape in shapes[:_SHOWN_OUTPUTS] if shape is not None)

    def visit(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of a module's output; note what the module tells of the model's input, if it enters it.

        Args:
            spec: the module.
            kind: of its input. If that is an element of the model's input whose shape is unknown, its `origin` is the
                place of the element there; otherwise `None`.

        Returns:
            `ANY` if it is unknown.
        """
        if self._depth > _DEEPEST:  # each level of the model takes calls of Python
            return ANY
        rule = traits_of(spec.target).output
        if kind.origin is not None:
            self._note_entered(spec, kind.origin)
            # An output of the input's shape is as unknown, and counts as that element for the next layer.
            if rule is same:
                return kind
        self._depth += 1
        output = super().visit(spec, kind)  # an error, where a layer refuses its input, ends the evaluation
        self._depth -= 1
        is_sum_or_product = rule is fold
        if is_sum_or_product and output.shape is not None:
            self._note_fitting(kind.items or (), output.shape)
        return output

    def _note_fitting(self, terms: Iterable[Kind], shape: Shape) -> None:
        """Note in `fitting_shapes` that unknown elements of the input, terms of a sum or product, have its shape."""
        for term in terms:
            if term.origin is not None:
                self.fitting_shapes[term.origin] = shape

    def _note_entered(self, spec: ModuleSpec, origin: tuple[int, ...]) -> None:
        """Note in `entered` that the input, or an element of it, enters a module: the first one that determines it."""
        if self.entered.get(origin) is not None:
            return
        is_determined = _guess_for_layer(spec, batch=1, number=0) is not None  # by the arguments of this layer
        self.entered[origin] = spec if is_determined else None

    def call(self, spec: ModuleSpec, child: str, value: Kind, node: int | None = None) -> Kind:
        """Return the kind of the output of a module inside another, and note it for its block.

        Args:
            spec: the module around it.
            child: its name there.
            value: the kind of its input.
            node: its number in a graph, by which its block is known there; `None` in other containers.
        """
        output = super().call(spec, child, value, node)
        # A module that was only tried with nothing keeps the shape of its real input.
        if value != NOTHING:
            self._kinds[id(spec), child if node is None else node] = output
        return output


def _likely_inputs(blocks: list[Block], entered: dict[tuple[int, ...], ModuleSpec | None]) -> Iterator[Value]:
    """Yield inputs that the layers that a model's input enters may accept, the most likely first.

    Args:
        blocks: of the model.
        entered: see `Evaluation`.
    """
    inputs: list[Value] = []
    for batch in _recorded_batches(blocks)[:_MOST_BATCHES] or [1]:
        for number in range(len(_IMAGE_SIDES)):  # of the guess: each kind of layer has so many at most
            value = _guessed_value(entered, origin=(), batch=batch, number=number)
            if value is not None and value not in inputs:
                inputs.append(value)
                yield value


def _recorded_batches(blocks: list[Block]) -> list[int]:
    """Return the numbers of examples of recorded outputs, the smallest first: the first size of each first tensor."""
    batches: set[int] = set()
    for block in blocks:
        first_sizes = block.shape[0] if block.shape else ()
        batches.update(first_sizes[:1])
    return sorted(batches)


def _input_kind(model_input: Value, origin: tuple[int, ...] = ()) -> Kind:
    """Return the kind of an input, in which each unknown element has its place in the input as its `origin`.

    Args:
        model_input: a shape; a list of these; `None` for an unknown one.
        origin: the indices of this element; empty for the whole input.
    """
    if isinstance(model_input, list):
        return listed([_input_kind(element, (*origin, number)) for number, element in enumerate(model_input)])
    return Kind("any", origin=origin) if model_input is None else kind_of(model_input)


def _guessed_value(
    entered: dict[tuple[int, ...], ModuleSpec | None], origin: tuple[int, ...], batch: int, number: int
) -> Value:
    """Return the `number`-th guess of the input, or of an element of it, by the layers that it enters.

    Args:
        entered: see `Evaluation`.
        origin: indices of the element; empty for the whole input.
        batch: number of examples.
        number: of the guess, from 0.

    Returns:
        A shape; a list, if layers enter elements of it; `None` if nothing is known.
    """
    layer = entered.get(origin)
    if layer is not None:
        return _guess_for_layer(layer, batch, number)
    # No layer enters the element itself: it may be a list, of which layers enter elements at these indices.
    depth = len(origin)
    entered_indices = [other[depth] for other in entered if other[:depth] == origin and len(other) > depth]
    if not entered_indices or max(entered_indices) >= _MOST_ELEMENTS:
        return None
    count = max(entered_indices) + 1
    elements = [_guessed_value(entered, (*origin, index), batch, number) for index in range(count)]
    return elements if any(element is not None for element in elements) else None


def _keeps_batch(model_input: Value, output: Value) -> bool:
    """Return whether the output is for as many examples as the input, as far as that is known.

    Of lists, the first input and the last output are compared: a cell takes its states after the input, and returns
    them before the output.
    """
    first = model_input[0] if isinstance(model_input, list) else model_input
    last = output[-1] if isinstance(output, list) and output else output
    # An output of one dimension may have no batch.
    if not isinstance(first, tuple) or not isinstance(last, tuple) or len(last) < 2:
        return True
    return first[:1] == last[:1]


def _sizes(value: Value) -> list[Any]:
    """Return the sizes of tensors in lists, as JSON has them; see `Shapes.sizes`."""
    sizes: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        shape = getattr(item, "shape", item)  # that of an `Example`; other items are shapes, or lists of these
        if shape is None:  # unknown
            sizes.append(None)
        elif isinstance(shape, list):
            sizes.append(_sizes(shape))
        else:
            sizes.append(list(shape))
    return sizes


def _text(value: Value) -> str:
    """Return shapes as text, of a list inside another in parentheses, of a long one the first; `?` if unknown."""
    if isinstance(value, tuple):
        return extents(value)
    if not isinstance(value, list):
        return "?"
    texts = [f"({_text(item)})" if isinstance(item, list) else _text(item) for item in value[:_SHOWN_SHAPES]]
    if len(value) > _SHOWN_SHAPES:
        texts.append("…")
    return ", ".join(texts)


def _agrees_with_recorded(blocks: list[Block], trial: Evaluation) -> bool:
    """Return whether the inferred shapes agree with the recorded ones, for all blocks that have both, at least one.

    Args:
        blocks: of a model; their `shape` is what the last forward before the file was saved returned.
        trial: with the inferred shapes.
    """
    pairs = []
    for block in blocks:
        shapes = trial.shapes(block)
        # What is recorded of a module at several places is of the last call.
        if block.shape and shapes and block.mark != "again":
            pairs.append((block.shape, shapes))
    return bool(pairs) and all(recorded == inferred for recorded, inferred in pairs)


def _guess_for_layer(spec: ModuleSpec, batch: int, number: int) -> Value:
    """Return the `number`-th guess of the input of a layer; `None` if it has fewer, or none, by its arguments.

    Args:
        spec: the layer.
        batch: number of examples.
        number: of the guess, from 0; less than the number of `_IMAGE_SIDES`.
    """
    name = like_of(spec.target)
    rule = traits_of(spec.target).output
    if rule is unknown:
        return None
    # The first argument of these layers in PyTorch is the number of channels or features of their input. The other
    # sizes are guessed.
    argument = argument_at(spec, 0)
    channels = argument if isinstance(argument, int) else 0
    image_side = _IMAGE_SIDES[number]
    if name == "ConvTranspose2d":  # of the few sides there are, each comes several times
        side = _SMALL_SIDES[number % len(_SMALL_SIDES)]
        return (batch, channels, side, side)
    if name in ("Conv2d", "BatchNorm2d"):
        return (batch, channels, image_side, image_side)
    if name == "Conv3d":
        return (batch, channels, _FRAMES, image_side, image_side)
    if name in ("Linear", "BatchNorm1d"):
        return (batch, channels)
    if name == "Conv1d" and rule is temporal:
        sequence = _guessed_sequence(batch, number)
        return None if sequence is None else (*sequence, channels)
    if name == "Embedding":
        is_one_token = number == len(_SEQUENCE_LENGTHS)  # for each example, after all sequences
        return (batch,) if is_one_token else _guessed_sequence(batch, number)
    return (batch,) if rule is one_hot else None


def _guessed_sequence(batch: int, number: int) -> Shape | None:
    """Return the sizes of a batch of sequences for the `number`-th guess of their length; `None` if there are fewer."""
    return (batch, _SEQUENCE_LENGTHS[number]) if number < len(_SEQUENCE_LENGTHS) else None
