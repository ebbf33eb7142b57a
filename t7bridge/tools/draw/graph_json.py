"""The drawn model as data: nodes, edges, attributes, shapes and names of weights. See docs/graph-json.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...data import define
from ...text import printable
from ...version import __version__
from .blocks import Block, Weight, shape_text
from .folds import folds_of
from .infer import Shapes

FORMAT, VERSION = "t7bridge-graph", 1

_CATEGORIES = (
    ("conv", ("conv",)),
    ("recurrent", ("lstm", "gru", "rnn", "recurren", "sequencer")),
    (
        "join",
        (
            "cadd",
            "cmul",
            "csub",
            "cdiv",
            "cmax",
            "cmin",
            "concat",
            "select",
            "split",
            "join",
            "mm",
            "narrow",
            "dotproduct",
            "pairwise",
            "mixture",
        ),
    ),
    ("linear", ("linear", "embedding", "lookup", "add", "mul")),
    ("norm", ("norm", "dropout", "lrn")),
    ("pool", ("pool", "upsample", "unpool", "sampling")),
    ("shape", ("view", "reshape", "flatten", "transpose", "squeeze", "pad", "replicate", "contiguous", "permute")),
    ("activation", ("relu", "tanh", "sigmoid", "softmax", "elu", "softplus", "softsign", "abs", "power", "square")),
    ("loss", ("loss", "criterion")),
)


@define(frozen=True)
class GraphSource:
    """The file and the part of it shown by a graph.

    Attributes:
        file: its name, without folders.
        path: of the model in it.
        prefix: prefix of the model's keys in files made of the whole file, `model.`.
        shapes: of input and output, and their origin.
    """

    file: str
    path: str
    prefix: str = ""
    shapes: Shapes = Shapes()


def category_of(block: Block) -> str:
    """Return the family of a block's class, which determines its colour: `conv`, `norm`, `pool`, …, or `other`."""
    if block.kind == "end" or block.inside:
        return "end" if block.kind == "end" else "container"
    if block.mark == "unmapped":
        return "unmapped"
    name = (block.target or block.class_name or block.title).rpartition(".")[2].lower()
    return next((each for each, words in _CATEGORIES if any(word in name for word in words)), "other")


def graph_of(
    blocks: list[Block],
    source: GraphSource,
    *,
    statistics: bool = False,
    brief: bool = False,
    marks: Mapping[int, object] | None = None,
) -> dict[str, Any]:
    """Return the model as data that becomes JSON. Every text is escaped for terminals and pages.

    Args:
        blocks: all of them, each before those inside it.
        source: the file.
        statistics: whether weights are read: minimum, maximum, mean, deviation and a histogram of each.
        brief: whether fields of objects are left out, and long keys and paths cut.
        marks: further values that must be equal in repeated blocks, by the id of a block.
    """
    folds = folds_of(blocks, marks)
    numbers = {id(block): number for number, block in enumerate(blocks)}
    keys = {block.key: number for number, block in reversed(list(enumerate(blocks))) if block.kind != "end"}
    nodes = []
    for number, block in enumerate(blocks):
        node: dict[str, Any] = {"id": number, "kind": block.kind, "title": block.title, "category": category_of(block)}
        most = _BRIEF if brief else None
        plain = (("name", block.name), ("key", _end(block.key, most)), ("path", _end(block.path, most)))
        node |= {name: printable(text) for name, text in (*plain, ("mark", block.mark)) if text}
        node |= {"class": printable(block.class_name)} if block.class_name else {}
        node |= {"torch": printable(block.target)} if block.target else {}
        node["title"] = printable(block.title)
        if block.lines:
            node["lines"] = [printable(line) for line in block.lines]
        if block.shape:
            node["output"] = [list(sizes) for sizes in block.shape]
        if block.arguments:
            node["arguments"] = _texts(block.arguments)
        if block.fields and not brief:
            node["fields"] = _texts(block.fields)
        if block.parameters:
            node["parameters"] = block.parameters
        if block.weights:
            node["weights"] = [_weight(each, statistics) for each in block.weights]
        if block.mark == "again":
            node["same_as"] = keys.get(block.same, 0)
        if block.inside:
            node["children"] = [numbers[id(each)] for each in block.inside]
            node["edges"] = [
                [numbers[id(block.inside[flow.start])], numbers[id(block.inside[flow.end])], printable(flow.label)]
                for flow in block.arrows
            ]
        if id(block) in folds:
            node["repeats"] = [[run.start, run.period, run.count] for run in folds[id(block)]]
        nodes.append(node)
    return {
        "format": FORMAT,
        "version": VERSION,
        "producer": f"t7bridge {__version__}",
        "file": printable(source.file),
        "path": printable(source.path),
        **({"prefix": printable(source.prefix)} if source.prefix else {}),
        "input": source.shapes.input,
        "output": source.shapes.output or shape_text(blocks[0].shape),
        "shapes": source.shapes.source,
        "parameters": blocks[0].parameters,
        "root": 0,
        "nodes": nodes,
    }


_BRIEF = 60
"""Characters of a key or path in a brief graph: the last ones."""


def _end(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else "…" + text[-most:]


def _texts(values: dict[str, str]) -> dict[str, str]:
    return {printable(name): printable(text) for name, text in values.items()}


def _weight(weight: Weight, statistics: bool) -> dict[str, Any]:
    tensor = weight.tensor
    found: dict[str, Any] = {
        "name": printable(weight.name),
        "key": printable(weight.key),
        "shape": list(tensor.shape),
        "type": tensor.element.name,
    }
    if weight.kind != "parameter":
        found["kind"] = weight.kind
    if weight.shared:
        found["shared"] = printable(weight.shared)
    if statistics and tensor.numel:
        from ...values.statistics import statistics_of

        found["statistics"] = statistics_of(tensor, bins=24)
    return found
