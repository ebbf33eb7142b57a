"""Shapes of a drawn model if the file records none: by running it on PyTorch's meta device, which allocates no memory,
or inferred from an input that its layers accept.

Inference computes nothing and needs no PyTorch. An input is a guess, unless it agrees with recorded outputs; layers
without a rule have unknown outputs.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field

from ...conversion.inputs import Inputs, parse_inputs
from ...data import define
from ...errors import ModelError, UnsupportedError
from ...graph.lua import TorchObject
from ...graph.show import extents
from ...limits import Limits
from ...nn.example import Example, Examples
from ...nn.output_shapes import Arguments, Mismatch, Shape, Value, fold, joined, one_hot, same, temporal, unknown
from ...nn.registry import like_of, output_rule
from ...text import counted
from .blocks import Block, Flow, shape_text

_SIDES = (224, 256, 32, 28, 64, 227, 299, 231, 128, 96, 112, 48, 40, 36, 24, 20, 16, 12, 10, 8, 321, 512, 4, 2, 1)
"""Heights and widths tried for a convolution."""
_SMALL = (1, 4, 7, 8, 16)
"""Sizes tried if an image is made of a few numbers."""
_LENGTHS = (16, 32, 64, 128, 8, 4)
"""Sequence lengths tried."""
_PADDED = {"nn.DepthConcat", "nn.Inception"}
"""Containers whose smaller branches are padded."""
_DEEPEST = 150
"""Maximum nesting of blocks."""
_REACHED = 32
"""Maximum nodes of a graph that are searched for the layers that a value enters."""
_STEPS = 60_000
"""Maximum number of layers evaluated, over all attempts."""


@define(frozen=True)
class Shapes:
    """Shapes of a model.

    Attributes:
        input: of its input, as text; empty where unknown.
        output: of its output.
        source: their origin.
    """

    input: str = ""
    output: str = ""
    source: str = ""


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
    model, root = _Model(blocks), blocks[0]
    recorded = any(block.shape for block in blocks)
    best: tuple[int, Value, Evaluation] | None = None
    for x in model.inputs():
        trial = model.evaluate(x)
        completed = _completed(root, x, trial)
        if completed is not None:
            x, trial = completed, model.evaluate(completed)
        if model.left < 0:
            break
        if trial.failed or (recorded and not _agrees(blocks, trial)):
            continue
        doubt = sum(trial.found.get(id(block)) is None for block in blocks if block.kind != "end")
        doubt += 0 if _keeps_batch(x, trial.output) else len(blocks)
        if best is None or doubt < best[0]:
            best = (doubt, x, trial)
        if not best[0]:
            break
    if best is None:
        return Shapes("", shape_text(root.shape), "of the last forward before the file was saved" if recorded else "")
    _, x, trial = best
    for block in blocks:
        if not block.shape and block.kind != "end":
            block.shape = tuple(_tensors(trial.found.get(id(block))))
    source = "as recorded by the last forward" if recorded else f"for an input of {_text(x)}, a guess from the layers"
    return Shapes(_text(x), shape_text(root.shape) or _text(trial.output), source)


def _run(module: TorchObject, path: str, wanted: Inputs, blocks: list[Block], limits: Limits) -> Shapes:
    """Run a model for one input and set the resulting shapes in its blocks.

    Args:
        module: the model.
        path: its path in the file.
        wanted: the shape of its input; `"guess"`: one that its layers accept; or a text such as `[1x4,1x20:int64]`
            for a table of inputs.
        blocks: the model's.
        limits: resource limits.

    Raises:
        ModelError: the model does not accept such an input, or none can be guessed.
        UnsupportedError: PyTorch is not installed.
    """
    try:
        from ...torchmodules.shapes import inputs_text, output_shapes
    except ImportError as error:
        raise UnsupportedError("PyTorch is not installed", hint="pip install 't7bridge[torch]'") from error
    guess = wanted in ("guess", ("guess",))
    tried: list[Examples]
    if guess:
        tried = [Example("", shape) for shape in _guessed_inputs(blocks)]
    else:
        tried = [parse_inputs(wanted, limits=limits)]
    reason = ModelError("the input's shape cannot be guessed", hint="State it: --input-shape 1x3x224x224.")
    for inputs in tried:
        try:
            found = output_shapes(module, path, inputs, limits)
        except ModelError as error:
            reason = error
            continue
        for block in blocks:
            block.shape = found.get(block.key, ()) if block.kind != "end" else ()
        text = inputs_text(inputs, "×")
        source = f"for an input of {text}" + (", a guess from the layers" if guess else "")
        return Shapes(text, shape_text(blocks[0].shape), source)
    raise reason


def _guessed_inputs(blocks: list[Block]) -> list[Shape]:
    """Return shapes of one input that the first layers may accept, in the order of attempts; at most ten."""
    model = _Model(blocks)
    shapes = [shape for shape in model.inputs() if isinstance(shape, tuple)]
    likely = [shape for shape in shapes if not model.evaluate(shape, _STEPS).failed]
    return likely[:10] or shapes[:10]


def evaluate(blocks: list[Block], x: Value) -> Evaluation:
    """Return the shapes of all blocks of a model for one input."""
    return _Model(blocks).evaluate(x)


@define(eq=False)
class Evaluation:
    """The shapes of all blocks for one input.

    Attributes:
        root: the model's block.
        by_key: the blocks of modules, by key.
        left: number of layers that may still be evaluated.
        failed: whether a layer does not accept its input.
        found: the output of each block that was evaluated, by its id.
        path: ids of the blocks that are being evaluated.
    """

    root: Block
    by_key: dict[str, Block]
    left: int
    failed: bool = False
    found: dict[int, Value] = field(factory=dict)
    path: list[int] = field(factory=list)

    @property
    def output(self) -> Value:
        """Return the model's output; `None` if it is unknown."""
        return self.found.get(id(self.root))

    def run(self, block: Block, x: Value) -> Value:
        """Return the output of a block.

        Raises:
            Mismatch: a layer does not accept its input.
        """
        self.left -= 1
        if self.left < 0 or len(self.path) > _DEEPEST or x is None:
            return None
        original = self.by_key.get(block.same, block) if block.mark == "again" else block
        if id(original) in self.path:
            return None
        self.path.append(id(original))
        try:
            output = self._inside(original, x)
        finally:
            self.path.pop()
        self.found[id(block)] = output
        return output

    def _inside(self, block: Block, x: Value) -> Value:
        if block.mark == "unmapped":
            return None
        if block.kind == "chain" and block.inside and block.title in ("Sequential", "DontCast"):
            for each in block.inside:
                x = self.run(each, x)
            return x
        if block.kind == "graph":
            return self._graph(block, x)
        rule = output_rule(block.target) if block.kind == "layer" else None
        if rule is None:
            return None
        if isinstance(x, list) and not all(isinstance(each, tuple) for each in x) and rule is same:
            return None
        return rule(Arguments(block.call[0], block.call[1]), x)

    def _graph(self, block: Block, x: Value) -> Value:
        """Evaluate a graph, or branches: its last blocks are its input and its output."""
        count = len(block.inside)
        entering: list[list[Flow]] = [[] for _ in range(count)]
        for flow in block.flows:
            entering[flow.end].append(flow)
        after = _flows_by_start(block)
        waiting = [len(flows) for flows in entering]
        values: list[Value] = [None] * count
        ready = [number for number in range(count) if not waiting[number]]
        for number in ready:
            if number == count - 2:
                values[number] = x
            else:
                entered = _entering(entering[number], values)
                each = block.inside[number]
                values[number] = self._end(block, each, entered) if each.kind == "end" else self.run(each, entered)
            for flow in after.get(number, ()):
                waiting[flow.end] -= 1
                if not waiting[flow.end]:
                    ready.append(flow.end)
        return values[-1]

    @staticmethod
    def _end(graph: Block, block: Block, entered: Value) -> Value:
        role = block.lines[0] if block.lines else ""
        if role == "table" and not isinstance(entered, list):
            return [entered]
        if role.startswith("concat"):
            shapes = entered if isinstance(entered, list) else [entered]
            if "dim" not in role or not all(isinstance(each, tuple) for each in shapes):
                return None
            dim = int(role.rpartition(" ")[2])
            if graph.class_name in _PADDED and len({len(each) for each in shapes}) == 1:
                largest = tuple(map(max, zip(*shapes)))
                shapes = [largest[:dim] + each[dim : dim + 1] + largest[dim + 1 :] for each in shapes]
            return joined(shapes, dim)
        return entered


def _entering(flows: list[Flow], values: list[Value]) -> Value:
    """Return the value that enters a block: one, or a list if several do."""
    numbered: dict[int, Value] = {}
    plain: list[Value] = []
    for flow in flows:
        for label in flow.label.split(", ") if flow.label else [""]:
            number, colon, rest = label.partition(":")
            if not colon:
                number, rest = ("", label) if label.startswith("[") else (label, "")
            value = values[flow.start]
            for step in rest.strip().strip("[]").split("][") if rest.strip() else ():
                fits = isinstance(value, list) and step.isdecimal() and int(step) < len(value)
                value = value[int(step)] if fits else None
            if number.isdecimal():
                numbered[int(number)] = value
            else:
                plain.append(value)
    found = [numbered[number] for number in sorted(numbered)] + plain
    if len(found) == 1:
        return found[0]
    return found if any(each is not None for each in found) else None


class _Model:
    """A model whose shapes are inferred.

    Args:
        blocks: all of them, each before those inside it; the first is the model.
    """

    def __init__(self, blocks: list[Block]) -> None:
        self._blocks = blocks
        self._by_key = {block.key: block for block in reversed(blocks) if block.mark != "again" and block.kind != "end"}
        self.left = _STEPS
        """Number of layers that may still be evaluated."""

    def evaluate(self, x: Value, steps: int | None = None) -> Evaluation:
        """Return the shapes of all blocks for one input, with a budget of steps of its own or the model's."""
        trial = Evaluation(self._blocks[0], self._by_key, self.left if steps is None else steps)
        try:
            trial.run(self._blocks[0], x)
        except (Mismatch, ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError):
            trial.failed = True
        if steps is None:
            self.left = trial.left
        return trial

    def inputs(self) -> Iterator[Value]:
        """Yield inputs that the first layers may accept, the most likely first."""
        batches = {sizes[0] for block in self._blocks for sizes in block.shape[:1] if sizes} or {1}
        found: list[Value] = []
        for batch in sorted(batches)[:3]:
            for number in range(len(_SIDES)):
                value = self._input_of(self._blocks[0], batch, number, 0)
                if value is not None and value not in found:
                    found.append(value)
                    yield value

    def _input_of(self, block: Block, batch: int, number: int, depth: int) -> Value:
        """Return the input of a block, by its first layers: the `number`-th guess if there are several."""
        if depth > _DEEPEST:
            return None
        if block.mark == "again":
            block = self._by_key.get(block.same, block)
        if block.kind == "chain":
            for each in block.inside:
                value = self._input_of(each, batch, number, depth + 1)
                if value is not None or not _keeps_shape(each):
                    return value
            return None
        if block.kind == "graph":
            return self._input_of_graph(block, batch, number, depth)
        return _input_of_layer(block, batch, number)

    def _input_of_graph(self, block: Block, batch: int, number: int, depth: int) -> Value:
        after = _flows_by_start(block)
        parts: dict[int, Value] = {}
        whole: Value = None
        for flow in after.get(len(block.inside) - 2, ())[: 4 * _REACHED]:
            value = None
            for place in _same_shape(block, after, flow.end):
                if block.inside[place].kind != "end" and value is None:
                    value = self._input_of(block.inside[place], batch, number, depth + 1)
            label = flow.label.split(", ")[0].rpartition(": ")[2]
            element = label.strip("[]")
            if not (label.startswith("[") and element.isdecimal()):
                whole = value
                if whole is not None:
                    break
            elif int(element) < 64:
                parts[int(element)] = parts.get(int(element)) or value
        if any(each is not None for each in parts.values()):
            return [parts.get(place) for place in range(max(parts) + 1)]
        return whole


def _keeps_batch(x: Value, output: Value) -> bool:
    """Return whether the output is for as many examples as the input, as far as that is known."""
    first = x[0] if isinstance(x, list) else x
    last = output[-1] if isinstance(output, list) and output else output
    if not isinstance(first, tuple) or not isinstance(last, tuple) or len(last) < 2:
        return True
    return first[:1] == last[:1]


def _completed(root: Block, x: Value, trial: Evaluation) -> Value:
    """Return the input with the shapes of its unknown elements, inferred from sums and products with known ones."""
    while root.kind == "chain" and root.inside:
        root = root.inside[0]
    if root.kind != "graph" or not isinstance(x, list) or all(each is not None for each in x):
        return None
    after = _flows_by_start(root)
    made = list(x)
    for flow in after.get(len(root.inside) - 2, ())[: 4 * _REACHED]:
        label = flow.label.split(", ")[0].rpartition(": ")[2].strip("[]")
        if not label.isdecimal() or int(label) >= len(made) or made[int(label)] is not None:
            continue
        for place in _same_shape(root, after, flow.end):
            value = trial.found.get(id(root.inside[place]))
            if output_rule(root.inside[place].target) is fold and isinstance(value, tuple):
                made[int(label)] = value
                break
    return made if made != x else None


def _flows_by_start(block: Block) -> dict[int, list[Flow]]:
    after: dict[int, list[Flow]] = {}
    for flow in block.flows:
        after.setdefault(flow.start, []).append(flow)
    return after


def _same_shape(block: Block, after: dict[int, list[Flow]], start: int) -> list[int]:
    """Return the nodes of a graph that a value reaches before a layer may change its shape, including that layer."""
    found, seen = [start], {start}
    for place in found:
        if len(found) > _REACHED:
            break
        if _keeps_shape(block.inside[place]):
            for flow in after.get(place, ())[:_REACHED]:
                if flow.end not in seen:
                    seen.add(flow.end)
                    found.append(flow.end)
    return found


def _tensors(value: Value) -> list[Shape]:
    if isinstance(value, tuple):
        return [value]
    flat = value if isinstance(value, list) else []
    return [each for each in flat if isinstance(each, tuple)][:8] if all(isinstance(e, tuple) for e in flat) else []


def _text(value: Value) -> str:
    if isinstance(value, tuple):
        return extents(value)
    if isinstance(value, list):
        return ", ".join(f"({_text(each)})" if isinstance(each, list) else _text(each) for each in value[:12])
    return "?"


def _agrees(blocks: list[Block], trial: Evaluation) -> bool:
    """Return whether the inferred shapes agree with the recorded ones, for all blocks that have both."""
    pairs = [(block.shape, trial.found.get(id(block))) for block in blocks if block.shape and block.mark != "again"]
    known = [(recorded, tuple(_tensors(value))) for recorded, value in pairs if value is not None]
    return bool(known) and all(one == two for one, two in known if two)


def _keeps_shape(block: Block) -> bool:
    return block.kind == "layer" and output_rule(block.target) is same


def _input_of_layer(block: Block, batch: int, number: int) -> Value:
    name, args = like_of(block.target), block.call[0]
    if output_rule(block.target) is unknown:
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
    if name == "Conv1d" and output_rule(block.target) is temporal:
        return (batch, _LENGTHS[number], channels) if number < len(_LENGTHS) else None
    if name == "Embedding":
        return (batch, _LENGTHS[number]) if number < len(_LENGTHS) else (batch,) if number == len(_LENGTHS) else None
    if output_rule(block.target) is one_hot:
        return (batch,)
    return None
