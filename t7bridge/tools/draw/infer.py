"""Shapes of a drawn model if the file records none: an input that its layers accept, and the shapes that follow from
it.

Nothing is computed and PyTorch is not needed. An input is a guess, unless it agrees with recorded outputs; layers
without a rule have unknown outputs.
"""

from __future__ import annotations

from typing import Any

from attrs import field

from ...data import define
from ...nn.output_shapes import Arguments, Mismatch, Shape, Value, fold, joined, one_hot, same, temporal, unknown
from ...nn.traits import like_of, output_rule
from .blocks import Block, shape_text

_SIDES = (224, 256, 32, 28, 64, 227, 299, 231, 128, 96, 112, 48, 40, 36, 24, 20, 16, 12, 10, 8, 321, 512, 4, 2, 1)
"""Heights and widths tried for a convolution."""
_SMALL = (1, 4, 7, 8, 16)
"""Sizes tried if an image is made of a few numbers."""
_LENGTHS = (16, 32, 64, 128, 8, 4)
"""Sequence lengths tried."""
_PADDED = {"nn.DepthConcat", "nn.Inception"}
"""Containers whose smaller branches are padded."""
_DEEPEST, _REACHED = 150, 32
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


@define(eq=False)
class _Run:
    """One attempt: the shapes of all blocks for one input."""

    blocks: dict[str, Block]
    left: int = _STEPS
    failed: bool = False
    found: dict[int, Value] = field(factory=dict)
    path: list[int] = field(factory=list)

    def run(self, block: Block, x: Value) -> Value:
        """Return the output of a block.

        Raises:
            Mismatch: a layer does not accept its input.
        """
        self.left -= 1
        if self.left < 0 or len(self.path) > _DEEPEST or x is None:
            return None
        original = self.blocks.get(block.same, block) if block.mark == "again" else block
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
        entering: list[list[Any]] = [[] for _ in range(count)]
        after: list[list[int]] = [[] for _ in range(count)]
        for flow in block.flows:
            entering[flow.end].append(flow)
            after[flow.start].append(flow.end)
        waiting = [len(flows) for flows in entering]
        values: list[Value] = [None] * count
        ready = [number for number in range(count) if not waiting[number]]
        for number in ready:
            if number == count - 2:
                values[number] = x
            else:
                taken = _taken(entering[number], values)
                each = block.inside[number]
                values[number] = self._end(block, each, taken) if each.kind == "end" else self.run(each, taken)
            for end in after[number]:
                waiting[end] -= 1
                if not waiting[end]:
                    ready.append(end)
        return values[-1]

    def _end(self, graph: Block, block: Block, taken: Value) -> Value:
        role = block.lines[0] if block.lines else ""
        if role == "table" and not isinstance(taken, list):
            return [taken]
        if role.startswith("concat"):
            shapes = taken if isinstance(taken, list) else [taken]
            if "dim" not in role or not all(isinstance(each, tuple) for each in shapes):
                return None
            dim = int(role.rpartition(" ")[2])
            if graph.class_name in _PADDED and len({len(each) for each in shapes}) == 1:
                largest = tuple(map(max, zip(*shapes)))
                shapes = [largest[:dim] + each[dim : dim + 1] + largest[dim + 1 :] for each in shapes]
            return joined(shapes, dim)
        return taken


def _taken(flows: list[Any], values: list[Value]) -> Value:
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


def infer(blocks: list[Block]) -> Shapes:
    """Infer shapes for the blocks of one model, and set them where the file records none.

    Args:
        blocks: all of them, each before those inside it; the first is the model.
    """
    by_key = {block.key: block for block in reversed(blocks) if block.mark != "again" and block.kind != "end"}
    recorded = any(block.shape for block in blocks)
    best: tuple[int, Value, _Run] | None = None
    left = _STEPS
    for given in _inputs(blocks):
        trial = _try(blocks[0], given, by_key, left)
        left = trial.left
        completed = _completed(blocks[0], given, trial)
        if completed is not None:
            given, trial = completed, _try(blocks[0], completed, by_key, left)
            left = trial.left
        if left < 0:
            break
        if trial.failed or (recorded and not _agrees(blocks, trial)):
            continue
        unknown = sum(trial.found.get(id(block)) is None for block in blocks if block.kind != "end")
        unlikely = len(blocks) * (not _keeps_batch(given, trial.found.get(id(blocks[0]))))
        if best is None or unknown + unlikely < best[0]:
            best = (unknown + unlikely, given, trial)
        if not best[0]:
            break
    if best is None:
        source = "of the last forward before the file was saved" if recorded else ""
        return Shapes("", shape_text(blocks[0].shape), source)
    _, given, trial = best
    for block in blocks:
        if not block.shape and block.kind != "end":
            block.shape = tuple(_tensors(trial.found.get(id(block))))
    text = _text(given)
    source = "as recorded by the last forward" if recorded else f"for an input of {text}, a guess from the layers"
    return Shapes(text, shape_text(blocks[0].shape) or _text(trial.found.get(id(blocks[0]))), source)


def guessed_inputs(blocks: list[Block]) -> list[Shape]:
    """Return shapes of one input that the first layers may accept, in the order of attempts; at most ten."""
    by_key = {block.key: block for block in reversed(blocks) if block.mark != "again" and block.kind != "end"}
    shapes = [shape for shape in _inputs(blocks) if isinstance(shape, tuple)]
    likely = [shape for shape in shapes if not _try(blocks[0], shape, by_key, _STEPS).failed]
    return likely[:10] or shapes[:10]


def _try(root: Block, given: Value, by_key: dict[str, Block], left: int) -> _Run:
    trial = _Run(by_key, left)
    try:
        trial.run(root, given)
    except (Mismatch, ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError):
        trial.failed = True
    return trial


def _keeps_batch(given: Value, output: Value) -> bool:
    """Return whether the output is for as many examples as the input, as far as that is known."""
    first = given[0] if isinstance(given, list) else given
    last = output[-1] if isinstance(output, list) and output else output
    if not isinstance(first, tuple) or not isinstance(last, tuple) or len(last) < 2:
        return True
    return first[:1] == last[:1]


def _completed(root: Block, given: Value, trial: _Run) -> Value:
    """Return the input with the shapes of its unknown elements, inferred from sums and products with known ones."""
    while root.kind == "chain" and root.inside:
        root = root.inside[0]
    if root.kind != "graph" or not isinstance(given, list) or all(each is not None for each in given):
        return None
    after = _flows_by_start(root)
    made = list(given)
    for flow in after.get(len(root.inside) - 2, ())[: 4 * _REACHED]:
        label = flow.label.split(", ")[0].rpartition(": ")[2].strip("[]")
        if not label.isdecimal() or int(label) >= len(made) or made[int(label)] is not None:
            continue
        for place in _same_shape(root, after, flow.end):
            value = trial.found.get(id(root.inside[place]))
            if output_rule(root.inside[place].target) is fold and isinstance(value, tuple):
                made[int(label)] = value
                break
    return made if made != given else None


def _flows_by_start(block: Block) -> dict[int, list[Any]]:
    after: dict[int, list[Any]] = {}
    for flow in block.flows:
        after.setdefault(flow.start, []).append(flow)
    return after


def _same_shape(block: Block, after: dict[int, list[Any]], start: int) -> list[int]:
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
        return "×".join(map(str, value)) or "scalar"
    if isinstance(value, list):
        return ", ".join(f"({_text(each)})" if isinstance(each, list) else _text(each) for each in value[:12])
    return "?"


def _agrees(blocks: list[Block], trial: _Run) -> bool:
    """Return whether the inferred shapes agree with the recorded ones, for all blocks that have both."""
    pairs = [(block.shape, trial.found.get(id(block))) for block in blocks if block.shape and block.mark != "again"]
    known = [(recorded, tuple(_tensors(value))) for recorded, value in pairs if value is not None]
    return bool(known) and all(one == two for one, two in known if two)


def _inputs(blocks: list[Block]) -> list[Value]:
    """Return inputs that the first layers may accept, the most likely first."""
    batches = {sizes[0] for block in blocks for sizes in block.shape[:1] if sizes} or {1}
    by_key = {block.key: block for block in reversed(blocks) if block.mark != "again" and block.kind != "end"}
    found: list[Value] = []
    for batch in sorted(batches)[:3]:
        for number in range(len(_SIDES)):
            value = _input_of(blocks[0], by_key, batch, number, 0)
            if value is not None and value not in found:
                found.append(value)
    return found


def _input_of(block: Block, by_key: dict[str, Block], batch: int, number: int, depth: int) -> Value:
    """Return the input of a block, by its first layers: the `number`-th guess if there are several."""
    if depth > _DEEPEST:
        return None
    if block.mark == "again":
        block = by_key.get(block.same, block)
    if block.kind == "chain":
        for each in block.inside:
            value = _input_of(each, by_key, batch, number, depth + 1)
            if value is not None or not _keeps_shape(each):
                return value
        return None
    if block.kind == "graph":
        return _input_of_graph(block, by_key, batch, number, depth)
    return _input_of_layer(block, batch, number)


def _keeps_shape(block: Block) -> bool:
    return block.kind == "layer" and output_rule(block.target) is same


def _input_of_graph(block: Block, by_key: dict[str, Block], batch: int, number: int, depth: int) -> Value:
    first = len(block.inside) - 2
    after = _flows_by_start(block)
    parts: dict[int, Value] = {}
    whole: Value = None
    for flow in after.get(first, ())[: 4 * _REACHED]:
        if whole is not None:
            break
        label = flow.label.split(", ")[0].rpartition(": ")[2]
        value = None
        for place in _same_shape(block, after, flow.end):
            if block.inside[place].kind != "end" and value is None:
                value = _input_of(block.inside[place], by_key, batch, number, depth + 1)
        if label.startswith("[") and label[1:-1].isdecimal():
            if int(label[1:-1]) < 64:
                parts[int(label[1:-1])] = parts.get(int(label[1:-1])) or value
        else:
            whole = whole or value
    if parts and any(each is not None for each in parts.values()):
        return [parts.get(place) for place in range(max(parts) + 1)]
    return whole


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
