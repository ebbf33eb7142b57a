"""What is drawn of a model: blocks inside blocks, and what flows between them."""

from __future__ import annotations

from math import prod

from attrs import field

from ...data import define
from ...errors import LimitError
from ...graph.lua import TorchObject
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.mapping import Literal
from ...nn.plan.build_spec import sketch
from ...nn.plan.spec import SEQUENTIAL, GraphSpec, Link, ModuleSpec
from ...nn.weights.state_dict import StateDict, state_dict

MAX_BLOCKS = 20_000
_DETAIL_CHARS = 48


@define(frozen=True)
class Flow:
    """An arrow between two blocks of one block.

    Attributes:
        start: number of the block it leaves.
        end: number of the block it enters.
        label: which elements of the output it carries, where not the whole.
    """

    start: int
    end: int
    label: str = ""


@define(eq=False)
class Block:
    """A module, or an end of a graph.

    Attributes:
        name: in the block around it, as in the state dict.
        title: class in PyTorch; in Lua where there is none.
        kind: `layer`; `chain` for containers whose blocks take each other's outputs, `side` for others; `graph`, whose
            flows tell; `end` for input and output of a graph.
        mark: `weights` for a layer with some, `unmapped` for what stands for no PyTorch module, `again` for what is
            drawn elsewhere already.
        lines: what else stands in it.
        hint: class and path in Lua.
        inside: the blocks in it, in order.
        flows: of a graph.
    """

    name: str
    title: str
    kind: str = "layer"
    mark: str = ""
    lines: list[str] = field(factory=list)
    hint: str = ""
    inside: list[Block] = field(factory=list)
    flows: list[Flow] = field(factory=list)


def blocks_of(module: TorchObject, trail: str, limits: Limits = DEFAULT_LIMITS) -> list[Block]:
    """All blocks of a module, each before those inside it; the first is the module itself.

    Args:
        module: an nn module or criterion of Lua.
        trail: its path in the file.
        limits: what the model may cost.

    Raises:
        LimitError: the model is nested or shared too much, or there are more than `MAX_BLOCKS` blocks.
    """
    state = state_dict(module, trail, limits, own_keys=True)
    spec, unmapped = sketch(module, state, trail, limits)
    return _Sketcher(state, {place for place, _, _ in unmapped}).run(spec)


class _Sketcher:
    def __init__(self, state: StateDict, unmapped: set[str]) -> None:
        self._unmapped = unmapped
        self._drawn: dict[int, str] = {}
        """Where each module is drawn."""
        self._weights: dict[str, int] = {}
        for key, tensor in state.tensors.items():
            module = key.rpartition(".")[0]
            self._weights[module] = self._weights.get(module, 0) + prod(tensor.shape)

    def run(self, root: ModuleSpec) -> list[Block]:
        """Draw each module where it is met first."""
        first = self._block("", root, "")
        blocks, stack = [first], [(first, root, "")]
        while stack:
            block, spec, place = stack.pop()
            if block.kind == "layer":
                continue
            graph = spec.graph
            names = [node.module for node in graph.nodes] if graph else list(spec.children)
            below: list[tuple[Block, ModuleSpec, str]] = []
            for number, name in enumerate(names, 1):
                if name is None:
                    block.inside.append(Block("", "", "end", lines=["list"]))
                    continue
                child = spec.children[name]
                inner = f"{place}.{name}" if place else name
                label = (graph.nodes[number - 1].name if graph else "") or name
                block.inside.append(self._block(label, child, inner))
                below.append((block.inside[-1], child, inner))
            if graph:
                _add_ends(block, graph)
            blocks += block.inside
            stack += reversed(below)
            if len(blocks) > MAX_BLOCKS:
                raise LimitError("the model has too many modules for a picture", expected=f"at most {MAX_BLOCKS}")
        return blocks

    def _block(self, name: str, spec: ModuleSpec, place: str) -> Block:
        title = spec.target.rpartition(".")[2] or spec.class_name
        block = Block(name, title, hint=f"{spec.class_name}, {spec.trail}")
        if id(spec) in self._drawn:
            block.mark, block.lines = "again", [f"the same as {self._drawn[id(spec)] or 'the whole'}"]
            return block
        self._drawn[id(spec)] = place
        if spec.graph:
            block.kind, block.title = "graph", "Graph"
        elif spec.children:
            block.kind = "chain" if spec.target == SEQUENTIAL else "side"
        if spec.trail in self._unmapped:
            block.mark, block.title, block.lines = "unmapped", spec.class_name, ["no PyTorch module"]
        elif spec.graph is None:
            block.lines += _arguments(spec)
        weights = self._weights.get(place, 0)
        if weights:
            block.mark = block.mark or "weights"
            block.lines.append(f"{weights:,} elements")
        return block


def _arguments(spec: ModuleSpec) -> list[str]:
    """What the module is constructed with, on one line that is not too long."""
    shown = [_shown(value) for value in spec.args]
    shown += [f"{name}={_shown(value)}" for name, value in spec.kwargs.items() if value is not None]
    text = ", ".join(shown)
    if len(text) > _DETAIL_CHARS:
        text = text[: _DETAIL_CHARS - 1] + "…"
    return [text] if text else []


def _shown(value: Literal) -> str:
    """A literal; one number for a tuple of the same."""
    if isinstance(value, tuple) and len(value) > 1 and len(set(map(repr, value))) == 1:
        return repr(value[0])
    return repr(value)


def _add_ends(block: Block, graph: GraphSpec) -> None:
    """Add the input, the output and the flows of a graph. Its blocks are those of its nodes, which count from 1."""
    count = len(graph.nodes)
    block.inside += [Block("", "", "end", lines=["input"]), Block("", "", "end", lines=["output"])]
    takes = [(number, node.takes) for number, node in enumerate(graph.nodes)] + [(count + 1, graph.gives)]
    labels: dict[tuple[int, int], list[str]] = {}
    for end, links in takes:
        for number, link in enumerate(links, 1):
            start = count if link[0] == 0 else link[0] - 1
            labels.setdefault((start, end), []).append(_carried(link, number if len(links) > 1 else 0))
    block.flows = [Flow(start, end, ", ".join(filter(None, found))) for (start, end), found in labels.items()]


def _carried(link: Link, number: int) -> str:
    """`[0]` for an element of an output, `2` for the second of several inputs, `2: [0]` for both."""
    picked = "".join(f"[{step}]" for step in link[1])
    return ": ".join(filter(None, (str(number) if number else "", picked)))
