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
_ELEMENTS = 64
"""Maximum elements of a guessed list."""
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
    found = [infer(blocks) for _, _, blocks in models]
    if len(found) == 1:
        return found[0]
    sources = {"a guess from the layers" if "guess" in each.source else each.source for each in found if each.source}
    return Shapes(source=", or ".join(sorted(sources)))


def infer(blocks: list[Block]) -> Shapes:
    """Infer shapes for the blocks of one model, and set them where the file records none.

    Args:
        blocks: all of them, each before those inside it; the first is the model.
    """
    root = blocks[0]
    recorded = any(block.shape for block in blocks)
    best = _best_trial(blocks, recorded)
    if best is None:
        source = "of the last forward before the file was saved" if recorded else ""
        return Shapes("", shape_text(root.shape), source, (None, [*root.shape]))
    x, trial = best
    for block in blocks:
        if not block.shape and block.kind != "end":
            block.shape = trial.shapes(block)
    source = "as recorded by the last forward" if recorded else f"for an input of {_text(x)}, a guess from the layers"
    return Shapes(_text(x), shape_text(root.shape) or _text(trial.output), source, (x, [*root.shape] or trial.output))


def _best_trial(blocks: list[Block], recorded: bool) -> tuple[Value, Evaluation] | None:
    """Return the input that leaves the fewest shapes unknown, and its evaluation, if the layers accept any."""
    best: tuple[int, Value, Evaluation] | None = None
    trial = evaluate(blocks, None)
    for x in _inputs(blocks, trial.entered):
        trial = evaluate(blocks, x, trial.left)
        if trial.completed:
            x = [trial.completed.get((at,), each) for at, each in enumerate(x)]
            trial = evaluate(blocks, x, trial.left)
        if trial.left < 0:
            break
        if trial.failed or (recorded and not _agrees(blocks, trial)):
            continue
        doubt = sum(not trial.shapes(block) for block in blocks if block.kind != "end")
        doubt += 0 if _keeps_batch(x, trial.output) else len(blocks)
        if best is None or doubt < best[0]:
            best = (doubt, x, trial)
        if not best[0]:
            break
    return best[1:] if best else None


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
    tried: list[Examples]
    if guess:
        tried = [Example("", shape) for shape in _guessed_inputs(blocks)]
    else:
        tried = [parse_inputs(wanted, limits=limits)]
    reason = ModelError("the input's shape cannot be guessed", hint="State it: --input-shape 1x3x224x224.")
    for inputs in tried:
        outputs = _by_rules(blocks, inputs)
        if any(not shapes for shapes in outputs):
            try:
                outputs = _by_torch(module, path, inputs, blocks, outputs, limits)
            except ModelError as error:
                reason = error
                continue
        modules = (block for block in blocks if block.kind != "end")
        for block in blocks:
            block.shape = ()
        for block, shapes in zip(modules, outputs):
            block.shape = shapes
        text = inputs_text(inputs, "×")
        source = f"for an input of {text}" + (", a guess from the layers" if guess else "")
        return Shapes(text, shape_text(blocks[0].shape), source, (inputs, [*blocks[0].shape]))
    raise reason


Outputs = list[tuple[Shape, ...]]
"""The sizes of each tensor that each block that is no end returns, in the order of the blocks; none if unknown."""


def _by_rules(blocks: list[Block], inputs: Examples) -> Outputs:
    """Return what the declared rules say of the outputs of a model's modules for an input."""
    trial = evaluate(blocks, _value(inputs))
    return [() if trial.failed else trial.shapes(block) for block in blocks if block.kind != "end"]


def _value(inputs: Examples) -> Value:
    return inputs.shape if isinstance(inputs, Example) else [_value(each) for each in inputs]


def _by_torch(
    module: TorchObject, path: str, inputs: Examples, blocks: list[Block], known: Outputs, limits: Limits
) -> Outputs:
    """Return the outputs of a model's modules, of those that are not known by running it on PyTorch's meta device.

    Raises:
        ModelError: the model does not accept such an input.
        UnsupportedError: PyTorch is not installed.
    """
    require_torch()
    from ..torchmodules.build import output_shapes

    returned = output_shapes(module, path, inputs, limits)
    modules = (block for block in blocks if block.kind != "end")
    return [shapes or returned.get(block.key, ()) for block, shapes in zip(modules, known)]


def _guessed_inputs(blocks: list[Block]) -> list[Shape]:
    """Return shapes of one input that the first layers may accept, in the order of attempts; at most ten."""
    shapes = [shape for shape in _inputs(blocks, evaluate(blocks, None).entered) if isinstance(shape, tuple)]
    likely = [shape for shape in shapes if not evaluate(blocks, shape).failed]
    return likely[:10] or shapes[:10]


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
        self._depth = 0

    def run(self, spec: ModuleSpec, kind: Kind) -> None:
        """Evaluate a model for an input."""
        try:
            self._kinds[0, ""] = self(spec, kind)
            self.output = self._kinds[0, ""].value
        except (Mismatch, ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError):
            self.failed = True

    def shapes(self, block: Block) -> tuple[Shape, ...]:
        """Return the shapes of the tensors in a block's output, of a list the first eight; none if unknown."""
        kind = self._kinds.get(block.place, ANY)
        found = [each.shape for each in kind.items] if kind.items is not None else [kind.shape]
        known = [shape for shape in found if shape is not None]
        return tuple(known[:8]) if len(known) == len(found) else ()

    def visit(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of a module's output, and note the layers that the input of the model enters."""
        rule = traits_of(spec.target).output
        if self._depth > _DEEPEST:
            return ANY
        if kind.origin is not None:
            if self.entered.setdefault(kind.origin, None) is None and _input_of(spec, 1, 0) is not None:
                self.entered[kind.origin] = spec
            if rule is same:
                return kind
        self._depth += 1
        output = super().visit(spec, kind)
        self._depth -= 1
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
    batches = {sizes[0] for block in blocks for sizes in block.shape[:1] if sizes} or {1}
    found: list[Value] = []
    for batch in sorted(batches)[:3]:
        for number in range(len(_SIDES)):
            value = _guess(entered, (), batch, number)
            if value is not None and value not in found:
                found.append(value)
                yield value


def _input_kind(x: Value, origin: tuple[int, ...] = ()) -> Kind:
    """Return the kind of an input, whose unknown elements have their indices."""
    if isinstance(x, list):
        return listed([_input_kind(each, (*origin, at)) for at, each in enumerate(x)])
    return Kind("any", origin=origin) if x is None else kind_of(x)


def _guess(
    entered: dict[tuple[int, ...], ModuleSpec | None], origin: tuple[int, ...], batch: int, number: int
) -> Value:
    """Return the `number`-th guess of the input, or of an element of it, by the layers that it enters."""
    layer = entered.get(origin)
    if layer is not None:
        return _input_of(layer, batch, number)
    depth = len(origin)
    inside = [each[depth] for each in entered if each[:depth] == origin and len(each) > depth]
    if not inside or max(inside) >= _ELEMENTS:
        return None
    found = [_guess(entered, (*origin, at), batch, number) for at in range(max(inside) + 1)]
    return found if any(each is not None for each in found) else None


def _keeps_batch(x: Value, output: Value) -> bool:
    """Return whether the output is for as many examples as the input, as far as that is known."""
    first = x[0] if isinstance(x, list) else x
    last = output[-1] if isinstance(output, list) and output else output
    if not isinstance(first, tuple) or not isinstance(last, tuple) or len(last) < 2:
        return True
    return first[:1] == last[:1]


def _sizes(value: Value) -> list[Any]:
    items = value if isinstance(value, list) else [value]
    shapes = [getattr(each, "shape", each) for each in items]
    return [_sizes(each) if isinstance(each, list) else None if each is None else list(each) for each in shapes]


def _text(value: Value) -> str:
    if isinstance(value, tuple):
        return extents(value)
    if isinstance(value, list):
        return ", ".join(f"({_text(each)})" if isinstance(each, list) else _text(each) for each in value[:12])
    return "?"


def _agrees(blocks: list[Block], trial: Evaluation) -> bool:
    """Return whether the inferred shapes agree with the recorded ones, for all blocks that have both."""
    pairs = [(block.shape, trial.shapes(block)) for block in blocks if block.shape and block.mark != "again"]
    known = [pair for pair in pairs if pair[1]]
    return bool(known) and all(one == two for one, two in known)


def _input_of(spec: ModuleSpec, batch: int, number: int) -> Value:
    """Return the `number`-th guess of the input of a layer; `None` if its arguments do not determine one."""
    name, args, rule = like_of(spec.target), spec.args, traits_of(spec.target).output
    if rule is unknown:
        return None
    channels = args[0] if args and isinstance(args[0], int) else 0
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
        return (batch, _LENGTHS[number], channels) if number < len(_LENGTHS) else None
    if name == "Embedding":
        return (batch, _LENGTHS[number]) if number < len(_LENGTHS) else (batch,) if number == len(_LENGTHS) else None
    return (batch,) if rule is one_hot else None
