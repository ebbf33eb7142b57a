"""Shapes of a drawn model: inferred from an input that its layers accept, or from a stated one.

Inference follows the rules that entries declare, computes nothing and needs no PyTorch. An input that nobody stated is
a guess, unless it agrees with recorded outputs. What the rules leave open is unknown for a guess; for a stated input
PyTorch runs the model on its meta device, which allocates no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..conversion.inputs import Inputs, parse_inputs
from ..data import define
from ..errors import ModelError
from ..graph.lua import TorchObject
from ..io.platform import require_torch
from ..limits import Limits
from ..nn.blocks import Block, shape_text
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
from ..text import counted, extents

_SIDES = (224, 256, 32, 28, 64, 227, 299, 231, 128, 96, 112, 48, 40, 36, 24, 20, 16, 12, 10, 8, 321, 512, 4, 2, 1)
"""Heights and widths tried for a convolution."""
_SMALL = (1, 4, 7, 8, 16)
"""Sizes tried if an image is made of a few numbers."""
_LENGTHS = (16, 32, 64, 128, 8, 4)
"""Sequence lengths tried."""
_DEEPEST = 80
"""Maximum nesting of blocks."""
_MOST_GUESSES = 10
"""Guessed inputs with which PyTorch runs a model."""
_ELEMENTS = 64
"""Maximum elements of a guessed list."""
_MOST_BATCHES = 3
"""Recorded sizes of batches that are tried, the smallest first."""
_SHOWN_TENSORS = 8
"""Tensors of a list whose shapes a block has."""
_SHOWN_ELEMENTS = 12
"""Elements of a list whose shapes are in its text."""
_STEPS = 60_000
"""Maximum number of layers evaluated, over all attempts."""


@define(frozen=True)
class Shapes:
    """Shapes of a model.

    Attributes:
        input: of its input, as text; empty where unknown.
        output: of its output.
        source: their origin.
        values: of input and output, where they were inferred or computed.
    """

    input: str = ""
    output: str = ""
    source: str = ""
    values: tuple[Value, Value] = (None, None)

    @property
    def sizes(self) -> dict[str, list[Any]]:
        """Sizes of each tensor of `input` and `output`, if known: in lists as the tensors are, `None` if one is not."""
        return {name: _sizes(value) for name, value in zip(("input", "output"), self.values) if value}


def shapes_of(models: list[tuple[str, TorchObject, list[Block]]], wanted: Inputs | None, limits: Limits) -> Shapes:
    """Determine the shapes of models, and set them in their blocks.

    Args:
        models: path, module and blocks of each.
        wanted: the shape of the only model's input, see `_run`; by default the shapes are inferred.
        limits: resource limits.

    Raises:
        ModelError: there is `wanted`, and there is not one model, or it does not accept such an input.
        UnsupportedError: there is `wanted`, and PyTorch is not installed.
    """
    if wanted:
        if len(models) != 1:
            raise ModelError(
                "shapes are computed by running one model",
                found=counted(len(models), "model"),
                hint="Name it with --at.",
            )
        path, module, blocks = models[0]
        return _run(module, path, wanted, blocks, limits)
    shapes_of_models = [infer(blocks) for _, _, blocks in models]
    if len(shapes_of_models) == 1:
        return shapes_of_models[0]
    sources: set[str] = set()
    for shapes in shapes_of_models:
        if "guess" in shapes.source:
            sources.add("a guess from the layers")  # without the input, which is that of one model
        elif shapes.source:
            sources.add(shapes.source)
    return Shapes(source=", or ".join(sorted(sources)))


def infer(blocks: list[Block]) -> Shapes:
    """Infer shapes for the blocks of one model, and set them where the file records none.

    Args:
        blocks: all of them, each before those inside it; the first is the model.
    """
    root = blocks[0]
    has_recorded_shapes = any(block.shape for block in blocks)
    best = _best_trial(blocks, has_recorded_shapes)
    if best is None:
        source = "of the last forward before the file was saved" if has_recorded_shapes else ""
        return Shapes("", shape_text(root.shape), source, (None, [*root.shape]))
    x, trial = best
    for block in blocks:
        if not block.shape and block.kind != "end":
            block.shape = trial.shapes(block)
    input_text = _text(x)
    if has_recorded_shapes:
        source = "as recorded by the last forward"
    else:
        source = f"for an input of {input_text}, a guess from the layers"
    # A block has no shape if one of its tensors has none: then the output shows the others.
    output_text = shape_text(root.shape) or _text(trial.output)
    output = [*root.shape] or trial.output
    return Shapes(input_text, output_text, source, (x, output))


def _best_trial(blocks: list[Block], has_recorded_shapes: bool) -> tuple[Value, Evaluation] | None:
    """Return the input that leaves the fewest shapes unknown, and its evaluation, if the layers accept any.

    All evaluations together have the steps of one.
    """
    best: tuple[Value, Evaluation] | None = None
    least_doubt = 0
    trial = evaluate(blocks, None)
    for x in _inputs(blocks, trial.entered):
        trial = evaluate(blocks, x, trial.left)
        if trial.completed:
            # Elements of the input that no layer determines follow from those with which they are added or multiplied.
            x = [trial.completed.get((index,), element) for index, element in enumerate(x)]
            trial = evaluate(blocks, x, trial.left)
        if trial.left < 0:
            break
        if trial.failed or (has_recorded_shapes and not _agrees(blocks, trial)):
            continue
        doubt = sum(not trial.shapes(block) for block in blocks if block.kind != "end")
        if not _keeps_batch(x, trial.output):
            doubt += len(blocks)  # worse than any that keeps it
        if best is None or doubt < least_doubt:
            best = (x, trial)
            least_doubt = doubt
        if not least_doubt:
            break
    return best


def _run(module: TorchObject, path: str, wanted: Inputs, blocks: list[Block], limits: Limits) -> Shapes:
    """Determine the shapes of a model for one input and set them in its blocks.

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
    guess = wanted in ("guess", ("guess",))
    candidates: list[Examples]
    if guess:
        candidates = [Example("", shape) for shape in _guessed_inputs(blocks)]
    else:
        candidates = [parse_inputs(wanted, limits=limits)]
    reason = ModelError("the input's shape cannot be guessed", hint="State it: --input-shape 1x3x224x224.")
    for inputs in candidates:
        outputs = _by_rules(blocks, inputs)
        if any(not shapes for shapes in outputs):
            try:
                outputs = _by_torch(module, path, inputs, blocks, outputs, limits)
            except ModelError as error:
                reason = error
                continue
        for block in blocks:
            block.shape = ()  # recorded shapes are those of another input
        modules = (block for block in blocks if block.kind != "end")
        for block, shapes in zip(modules, outputs):
            block.shape = shapes
        text = inputs_text(inputs, "×")
        source = f"for an input of {text}"
        if guess:
            source += ", a guess from the layers"
        return Shapes(text, shape_text(blocks[0].shape), source, (inputs, [*blocks[0].shape]))
    raise reason


Outputs = list[tuple[Shape, ...]]
"""The sizes of each tensor that each block that is no end returns, in the order of the blocks; none if unknown."""


def _by_rules(blocks: list[Block], inputs: Examples) -> Outputs:
    """Return what the declared rules say of the outputs of a model's modules for an input."""
    trial = evaluate(blocks, _value(inputs))
    modules = [block for block in blocks if block.kind != "end"]
    if trial.failed:
        return [()] * len(modules)
    return [trial.shapes(block) for block in modules]


def _value(inputs: Examples) -> Value:
    """Return the shapes of inputs, in lists as the inputs are."""
    if isinstance(inputs, Example):
        return inputs.shape
    return [_value(element) for element in inputs]


def _by_torch(
    module: TorchObject, path: str, inputs: Examples, blocks: list[Block], by_rules: Outputs, limits: Limits
) -> Outputs:
    """Return the outputs of a model's modules: where the rules leave them open, by running it on PyTorch's meta device.
    Raises:
        ModelError: the model does not accept such an input.
        UnsupportedError: PyTorch is not installed.
    """
    require_torch()
    from ..torchmodules.build import output_shapes

    returned = output_shapes(module, path, inputs, limits)
    modules = (block for block in blocks if block.kind != "end")
    return [shapes or returned.get(block.key, ()) for block, shapes in zip(modules, by_rules)]


def _guessed_inputs(blocks: list[Block]) -> list[Shape]:
    """Return shapes of one input that the first layers may accept, in the order of attempts; at most ten.

    If the rules refuse all of them, PyTorch may still accept one.
    """
    entered = evaluate(blocks, None).entered
    shapes = [shape for shape in _inputs(blocks, entered) if isinstance(shape, tuple)]
    likely = [shape for shape in shapes if not evaluate(blocks, shape).failed]
    return likely[:_MOST_GUESSES] or shapes[:_MOST_GUESSES]


def evaluate(blocks: list[Block], x: Value, steps: int = _STEPS) -> Evaluation:
    """Return the shapes of all blocks of a model for one input; `steps` bounds the layers that are evaluated."""
    trial = Evaluation(steps)
    assert blocks[0].spec is not None
    trial.run(blocks[0].spec, _input_kind(x))
    return trial


class Evaluation(Kinds):
    """The shapes of all blocks for one input, or the layers that it enters.

    Attributes:
        failed: whether a layer does not accept its input.
        output: the model's output: a shape, a list, or `None` if it is unknown.
        entered: the first layer that determines the shape of the input, or of an element of it, by its indices; `None`
            for one that only others enter.
        completed: the shapes of unknown elements of the input, by sums and products with known ones.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(traits_of, steps)
        self.failed = False
        self.output: Value = None
        self.entered: dict[tuple[int, ...], ModuleSpec | None] = {}
        self.completed: dict[tuple[int, ...], Shape] = {}
        self._kinds: dict[tuple[int, int | str], Kind] = {}
        """The kind of the output of each module, by the place of its block."""
        self._depth = 0
        """How many modules, each inside another, are being visited."""

    def run(self, spec: ModuleSpec, kind: Kind) -> None:
        """Evaluate a model for an input."""
        try:
            output = self(spec, kind)
            self._kinds[0, ""] = output  # the place of the block of the model itself
            self.output = output.value
        except (Mismatch, ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError):
            self.failed = True

    def shapes(self, block: Block) -> tuple[Shape, ...]:
        """Return the shapes of the tensors in a block's output, of a list the first; none if one is unknown."""
        kind = self._kinds.get(block.place, ANY)
        tensors = [kind] if kind.items is None else kind.items
        shapes: list[Shape] = []
        for tensor in tensors:
            if tensor.shape is None:
                return ()
            shapes.append(tensor.shape)
        return tuple(shapes[:_SHOWN_TENSORS])

    def visit(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of a module's output, and note the layers that the input of the model enters."""
        rule = traits_of(spec.target).output
        if self._depth > _DEEPEST:
            return ANY
        if kind.origin is not None:
            has_no_layer = self.entered.setdefault(kind.origin, None) is None
            if has_no_layer and _input_of(spec, 1, 0) is not None:
                self.entered[kind.origin] = spec
            if rule is same:
                return kind  # still the model's input: the next layer may determine its shape
        self._depth += 1
        output = super().visit(spec, kind)
        self._depth -= 1
        # A sum or product of a list: elements of the input in it that no layer determines have the shape of the others.
        if rule is fold and output.shape is not None:
            for item in kind.items or ():
                if item.origin is not None:
                    self.completed[item.origin] = output.shape
        return output

    def call(self, spec: ModuleSpec, child: str, value: Kind, node: int | None = None) -> Kind:
        """Return the kind of the output of a module inside another, and note it for its block."""
        output = super().call(spec, child, value, node)
        # A module that was only tried with nothing keeps the shape of its real input.
        if value != NOTHING:
            self._kinds[id(spec), child if node is None else node] = output
        return output


def _inputs(blocks: list[Block], entered: dict[tuple[int, ...], ModuleSpec | None]) -> Iterator[Value]:
    """Yield inputs that the layers that a model's input enters may accept, the most likely first."""
    batches: set[int] = set()
    for block in blocks:
        first_shape = block.shape[0] if block.shape else ()
        if first_shape:
            batches.add(first_shape[0])
    values: list[Value] = []
    for batch in sorted(batches or {1})[:_MOST_BATCHES]:
        for number in range(len(_SIDES)):
            value = _guess(entered, (), batch, number)
            if value is not None and value not in values:
                values.append(value)
                yield value


def _input_kind(x: Value, origin: tuple[int, ...] = ()) -> Kind:
    """Return the kind of an input, whose unknown elements have their indices."""
    if isinstance(x, list):
        return listed([_input_kind(element, (*origin, index)) for index, element in enumerate(x)])
    if x is None:
        return Kind("any", origin=origin)
    return kind_of(x)


def _guess(
    entered: dict[tuple[int, ...], ModuleSpec | None], origin: tuple[int, ...], batch: int, number: int
) -> Value:
    """Return the `number`-th guess of the input, or of an element of it, by the layers that it enters."""
    layer = entered.get(origin)
    if layer is not None:
        return _input_of(layer, batch, number)
    # Without a layer it may be a list, of which layers enter elements.
    depth = len(origin)
    indices = [path[depth] for path in entered if path[:depth] == origin and len(path) > depth]
    if not indices or max(indices) >= _ELEMENTS:
        return None
    elements = [_guess(entered, (*origin, index), batch, number) for index in range(max(indices) + 1)]
    if all(element is None for element in elements):
        return None
    return elements


def _keeps_batch(x: Value, output: Value) -> bool:
    """Return whether the output is for as many examples as the input, as far as that is known."""
    first = x[0] if isinstance(x, list) else x
    last = output[-1] if isinstance(output, list) and output else output
    if not isinstance(first, tuple) or not isinstance(last, tuple) or len(last) < 2:
        return True
    return first[:1] == last[:1]


def _sizes(value: Value) -> list[Any]:
    """Return the sizes of each tensor of a value, in lists as the tensors are; `None` for an unknown one."""
    sizes: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        shape = getattr(item, "shape", item)  # a stated input is an `Example`
        if shape is None:
            sizes.append(None)
        elif isinstance(shape, list):
            sizes.append(_sizes(shape))
        else:
            sizes.append(list(shape))
    return sizes


def _text(value: Value) -> str:
    """Return a shape, or those of a list, as text: `1×3×224×224, (1×20, ?)`."""
    if isinstance(value, tuple):
        return extents(value)
    if isinstance(value, list):
        texts = []
        for element in value[:_SHOWN_ELEMENTS]:
            text = _text(element)
            texts.append(f"({text})" if isinstance(element, list) else text)
        return ", ".join(texts)
    return "?"


def _agrees(blocks: list[Block], trial: Evaluation) -> bool:
    """Return whether the inferred shapes agree with the recorded ones, for all blocks that have both."""
    has_both = False
    for block in blocks:
        # A module that is called several times recorded its last call, whichever block that is.
        if not block.shape or block.mark == "again":
            continue
        inferred = trial.shapes(block)
        if not inferred:
            continue
        if inferred != block.shape:
            return False
        has_both = True
    return has_both


def _input_of(spec: ModuleSpec, batch: int, number: int) -> Value:
    """Return the `number`-th guess of the input of a layer; `None` if its arguments do not determine one."""
    name = like_of(spec.target)
    rule = traits_of(spec.target).output
    if rule is unknown:
        return None
    channels = spec.args[0] if spec.args and isinstance(spec.args[0], int) else 0
    if name == "ConvTranspose2d":
        side = _SMALL[number % len(_SMALL)]
        return (batch, channels, side, side)
    if name in ("Conv2d", "BatchNorm2d"):
        return (batch, channels, _SIDES[number], _SIDES[number])
    if name == "Conv3d":
        return (batch, channels, 16, _SIDES[number], _SIDES[number])
    if name in ("Linear", "BatchNorm1d"):
        return (batch, channels)
    if name == "Conv1d" and rule is temporal:
        if number < len(_LENGTHS):
            return (batch, _LENGTHS[number], channels)
        return None
    if name == "Embedding":
        if number < len(_LENGTHS):
            return (batch, _LENGTHS[number])
        if number == len(_LENGTHS):
            return (batch,)  # one index for each example, last
        return None
    if rule is one_hot:
        return (batch,)
    return None
