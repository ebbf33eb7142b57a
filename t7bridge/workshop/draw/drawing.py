"""`draw`: a picture of a model as data (see docs/graph-json.md), as a page, or still."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from html import escape
from typing import Any, ClassVar

from attrs import evolve, field

from ... import formats
from ...codegen.copied import constructor
from ...conversion.adopt import adopt
from ...conversion.inputs import Inputs
from ...conversion.options import AT, FORCE, INPUT_SHAPE, LIMITS, flag, option, takes, verb
from ...data import __version__, collector_paused, define
from ...errors import LimitError, ModelError, about_file
from ...formats.table import Document
from ...graph.lua import Table
from ...graph.tensor import statistics_of
from ...graph.walk import Path, step_name
from ...io.output import FileOutput
from ...io.source import PathLike, inputs_protected
from ...limits import Limits
from ...nn.blocks import Block, DrawnModel, Weight, drawn_model, group_of, models_in, structure_blocks
from ...nn.mapping import is_torch_or_ours
from ...nn.places import choose_module
from ...nn.torch_nn import TORCH
from ...text import Step, clean, counted, printable
from ...tools.shapes import Shapes, shapes_of
from ...tools.view import MOST, Fold, folds_of, opened_of, view_of
from .boxes import Box
from .cells import with_cells
from .layout import lay_out, scale_of
from .page import MAX_CHARS, ROOMY, as_data, as_page, places_of
from .pictures import as_dot, as_png, as_svg

FORMATS = (".html", ".svg", ".png", ".dot", ".json")
FORMAT = "t7bridge-graph"
VERSION = 2
"""Of the graph as data."""
_FACT_CHARS = 100
"""Maximum characters of a shape of the model's input or output."""
_NUMBERS_OF_BLOCKS = (20, 40, 64, 100, 160, 240, MOST)
"""Maximum number of blocks of a still picture: the largest one at which it is readable is used."""
_READABLE = 0.55
"""Minimum scale at which a picture is readable on one screen."""
_NOTEBOOK_HEIGHT = 640
"""Height of a picture in a notebook, in pixels."""
_BRIEF_CHARS = 60
"""Characters of a key or path in a brief graph: the last ones."""
_BINS = 24
"""Bars of a histogram of weights."""


@define(eq=False)
class Drawing:
    """A drawn model. Notebooks show it as an interactive page.

    Attributes:
        blocks: all blocks, each before those inside it.
        pictured: those of pages and pictures, in which recognized cells are one block each; the same without cells.
        file: name of the file, or of the value.
        path: of the model in it.
        weights: whether page and data have histograms and statistics of weights.
        prefix: prefix of the model's keys in files made of the whole file, `model.`.
        shapes: of the model's input and output, and their origin.
    """

    blocks: list[Block]
    file: str = ""
    path: str = "root"
    weights: bool = False
    prefix: str = ""
    shapes: Shapes = Shapes()
    pictured: list[Block] = field(factory=list, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.pictured = self.pictured or self.blocks

    @cached_property
    def _folds(self) -> dict[int, list[Fold]]:
        """Identity of a container → the runs of equal blocks in it, each of which is shown once with its count."""
        return folds_of(self.blocks)

    @cached_property
    def _folds_of_picture(self) -> dict[int, list[Fold]]:
        """The same for the blocks of pictures."""
        return self._folds if self.pictured is self.blocks else folds_of(self.pictured)

    @property
    def modules(self) -> int:
        """Number of modules drawn; shared ones count at each place. Groups of tensors by their names are none."""
        return sum(block.kind != "end" and bool(block.class_name) for block in self.blocks)

    @property
    def contents(self) -> str:
        """What is drawn, in words: `31 modules`, or of a state dict, which has none, `12 tensors`."""
        if self.modules:
            return counted(self.modules, "module")
        return counted(sum(len(block.weights) for block in self.blocks), "tensor")

    def html(self) -> str:
        """Return one self-contained page.

        Raises:
            LimitError: the content exceeds a page.
        """
        # A brief graph has no statistics: where they were asked for, it is made only if the page would be refused.
        most_in_full = MAX_CHARS if self.weights else ROOMY
        data = {**self._graph(self.pictured, self._folds_of_picture), "contents": self.contents}
        graph = as_data(data)
        if len(graph) > most_in_full:
            _make_brief(data["nodes"], self.pictured)
            graph = as_data(data)
        if len(graph) > MAX_CHARS:
            hint = "Draw a part with --at (at=… in Python), or write .svg, .dot or .json."
            raise LimitError("the graph is too large for a page", found=f"{len(graph):,} characters", hint=hint)
        return as_page(graph, self._places(), self._title)

    def svg(self) -> str:
        """Return a still picture as the text of an SVG."""
        return as_svg(self.layout(), self._title)

    def layout(self) -> Box:
        """Return the still picture's boxes: as many levels as are readable on one screen."""
        root, _ = self._first_view()
        return root

    def _first_view(self) -> tuple[Box, set[int]]:
        """Return what is seen first, and the containers that are open in it, by id.

        The fewest blocks are shown however small they are; more of them as long as the picture stays readable.
        """
        fewest, *more_numbers = _NUMBERS_OF_BLOCKS
        opened = opened_of(self.pictured[0], self._folds_of_picture, fewest)
        root = lay_out(self._shown(opened))
        for number in more_numbers:
            more_opened = opened_of(self.pictured[0], self._folds_of_picture, number)
            if more_opened == opened:
                continue
            larger = lay_out(self._shown(more_opened))
            if scale_of(larger) < _READABLE:
                break
            opened = more_opened
            root = larger
        return root, opened

    def _places(self) -> str:
        """Return the positions of the blocks that a page shows first, as text for `as_page`, see `places_of`."""
        root, opened = self._first_view()
        return places_of(self.pictured, self._folds_of_picture, opened, root)

    def dot(self) -> str:
        """Return text for Graphviz: every module, none folded or closed."""
        all_opened = set(map(id, self.blocks))
        return as_dot(self._labelled(view_of(self.blocks[0], {}, all_opened)))

    def graph(self) -> dict[str, Any]:
        """Return the graph as data, see docs/graph-json.md. Every text is escaped for terminals and pages."""
        return self._graph(self.blocks, self._folds)

    def write(self, path: PathLike, *, force: bool = False) -> None:
        """Write the picture in the format of the path's suffix, one of `FORMATS`.

        Raises:
            TargetExistsError: the file exists and `force` is not set.
            UnsupportedError: no converter to `.png` is installed.
        """
        suffix = _suffix(path)
        if suffix == ".png":
            data = as_png(self.layout(), self._title)
        elif suffix == ".json":
            data = (json.dumps(self.graph(), indent=1) + "\n").encode()
        else:
            printers = {".html": self.html, ".svg": self.svg, ".dot": self.dot}
            text = printers[suffix]()
            data = text.encode("utf-8", "replace")
        with FileOutput(path, force=force) as output:
            output.write(data)

    @property
    def _title(self) -> str:
        return f"{self.file}, {self.path}"

    def _shown(self, opened: set[int]) -> list[Block]:
        """Return the blocks of a picture, in which repeated ones are shown once.

        Args:
            opened: identities of the containers whose blocks are shown.
        """
        return self._labelled(view_of(self.pictured[0], self._folds_of_picture, opened))

    def _labelled(self, blocks: list[Block]) -> list[Block]:
        """Add input and output of the model to the first block of a picture, and return all."""
        lines = blocks[0].lines
        for name, text in (("input", self.shapes.input), ("output", self.shapes.output)):
            if text:
                lines.append(f"{name} {clean(text, _FACT_CHARS)}")
        if self.shapes.is_guess:
            lines.append("shapes are a guess from the layers")
        return blocks

    def _graph(self, blocks: list[Block], folds_by_block: dict[int, list[Fold]]) -> dict[str, Any]:
        """Return the graph as data, see docs/graph-json.md.

        Args:
            blocks: all of them, each before those inside it.
            folds_by_block: the runs of equal blocks in each container, by its identity.
        """
        numbers = {id(block): number for number, block in enumerate(blocks)}
        # By the plan of each module, as keys may be the same in two models: `a.b` of one and `b` in the model `a`.
        drawn_numbers = {id(block.spec): numbers[id(block)] for block in blocks if block.mark != "again"}
        nodes = []
        for block in blocks:
            folds = folds_by_block.get(id(block), [])
            nodes.append(_node(block, numbers, drawn_numbers, folds, statistics=self.weights))
        model = blocks[0]
        return {
            "format": FORMAT,
            "version": VERSION,
            "producer": f"t7bridge {__version__}",
            "file": printable(self.file),
            "path": printable(self.path),
            **({"prefix": printable(self.prefix)} if self.prefix else {}),
            "input": [],
            "output": [list(sizes) for sizes in model.shape],
            **self.shapes.sizes,  # instead of these two, where they are known
            "shapes": self.shapes.source,
            "parameters": model.parameters,
            "root": 0,
            "nodes": nodes,
        }

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{_NOTEBOOK_HEIGHT}px;border:1px solid #8884"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html())}"></iframe>'

    def __repr__(self) -> str:
        return f"<Drawing of {printable(self.file)}: {self.contents}>"


def _node(
    block: Block,
    numbers: Mapping[int, int],
    drawn_numbers: Mapping[int, int],
    folds: list[Fold],
    *,
    statistics: bool,
) -> dict[str, Any]:
    """Return a block as data.

    Args:
        block: the block.
        numbers: identity of a block → its number among all blocks of the graph.
        drawn_numbers: identity of a module's plan → the number of its block, to which those drawn again refer.
        folds: the runs of equal blocks in it, each of which is shown once with its count.
        statistics: whether weights are read: minimum, maximum, mean, deviation and a histogram of each.
    """
    node: dict[str, Any] = {
        "id": numbers[id(block)],
        "kind": block.kind,
        "title": printable(block.title),
        "category": block.category,
        **_facts(block, statistics),
    }
    if block.mark == "again":
        node["same_as"] = drawn_numbers[id(block.spec)]
    if block.inside:
        inside = [numbers[id(inner)] for inner in block.inside]
        node["children"] = inside
        node["edges"] = [[inside[flow.start], inside[flow.end], printable(flow.label)] for flow in block.arrows]
    if folds:
        node["repeats"] = [[run.start, run.period, run.count] for run in folds]
    return node


def _facts(block: Block, statistics: bool) -> dict[str, Any]:
    """Return what there is to say about a block, as data: without facts that are empty.

    Args:
        block: the block.
        statistics: whether weights are read, for their statistics.
    """
    facts = {
        "name": printable(block.name),
        "key": printable(block.key),
        "path": printable(block.path),
        "mark": block.mark,
        "class": printable(block.class_name),
        "torch": printable(block.target),
        "lines": [printable(line) for line in block.lines],
        "output": [list(sizes) for sizes in block.shape],
        "arguments": _texts(block.arguments),
        "argument_names": _names(block),
        "fields": _texts(block.fields),
        "parameters": block.parameters,
        "weights": [_weight(weight, statistics) for weight in block.weights],
    }
    return {name: fact for name, fact in facts.items() if fact}


def _make_brief(nodes: list[dict[str, Any]], blocks: list[Block]) -> None:
    """Make a graph that is too large brief: leave out fields, names of arguments and statistics, cut keys and paths.

    Keys and paths are cut before they are escaped, so that no escape is cut.

    Args:
        nodes: of the graph, which are changed.
        blocks: the block of each.
    """
    for node, block in zip(nodes, blocks):
        for name in ("fields", "argument_names"):
            node.pop(name, None)
        for name, text in (("key", block.key), ("path", block.path)):
            if name in node:
                node[name] = printable(_end_of(text))
        for weight in node.get("weights", ()):
            weight.pop("statistics", None)


def _end_of(text: str) -> str:
    """Return a text, or its end if it is too long for a brief graph."""
    return f"…{text[-_BRIEF_CHARS:]}" if len(text) > _BRIEF_CHARS else text


def _names(block: Block) -> list[str]:
    """Return the names of the positional arguments of a class of torch.nn or of ours; empty for other classes."""
    # `block.arguments` has numbers for names of positional ones.
    count = sum(name.isdigit() for name in block.arguments)
    if not count or not is_torch_or_ours(block.target):
        return []
    signature, base = constructor(block.target)
    if signature is None:  # the constructor is that of the base, a class of torch.nn
        return list(TORCH[base].arguments)[:count] if base in TORCH else []
    names: list[str] = []
    for parameter in signature.parameters.values():
        # `*sizes` is the name of all that are left.
        repeats = count - len(names) if parameter.kind == parameter.VAR_POSITIONAL else 1
        names += [parameter.name] * repeats
    return names[:count]


def _texts(values: dict[str, str]) -> dict[str, str]:
    return {printable(name): printable(text) for name, text in values.items()}


def _weight(weight: Weight, statistics: bool) -> dict[str, Any]:
    """Return a weight as data.

    Args:
        weight: the weight.
        statistics: whether it is read, for its statistics.
    """
    tensor = weight.tensor
    data: dict[str, Any] = {
        "name": printable(weight.name),
        "key": printable(weight.key),
        "shape": list(tensor.shape),
        "type": tensor.element.name,
    }
    if weight.kind != "parameter":
        data["kind"] = weight.kind
    if weight.shared:
        data["shared"] = printable(weight.shared)
    if statistics and tensor.numel:
        data["statistics"] = statistics_of(tensor, bins=_BINS)
    return data


@verb
class Draw:
    """Draw a model: an interactive page with zoom, search and folding, a picture, or the graph as data."""

    COMMON = ("target", "at", "input_shape", "force")
    EXAMPLES = (
        "t7bridge draw model.t7 -o model.html",
        "t7bridge draw checkpoint.t7 --at root.protos.rnn -o rnn.svg",
        "t7bridge draw model.t7 --json > model.json",
    )
    OLD_NAMES: ClassVar = {"src": "source", "dst": "target"}
    source: PathLike | Any = option("a model, of any format", kw_only=False, metavar="FILE", stdin=True)
    target: PathLike | None = option(
        ".html (interactive page), .svg, .png, .dot (Graphviz) or .json", default=None, kw_only=False,
        flags=("-o", "--output"), metavar="PICTURE",
    )  # fmt: skip
    at: str | None = option(AT, default=None, kw_only=False)
    weights: bool = option("read the weights and show histograms in the page", default=False)
    input_shape: Inputs | None = INPUT_SHAPE
    force: bool = FORCE
    json = flag("print the graph as JSON (docs/graph-json.md)")
    limits: Limits = LIMITS


@takes(Draw)
@inputs_protected()
def draw(request: Draw) -> Drawing:
    """Draw a model: its structure, its data flow, and the PyTorch class of each layer.

    Layers without a PyTorch module are drawn too, in red. A shared module is drawn at its first place, and named at the
    others. State dicts, pickled modules and TorchScript are drawn by the nesting of names.

    Args:
        source: a file of any format, a value returned by `load`, or one that `save` accepts.
        target: the picture: `.html`, a page with zoom, search and folding; `.svg`; `.png`, if a converter is installed;
            `.dot` for Graphviz; `.json`, the graph as data. By default nothing is written.
        at: the path of a module if the file holds several: `root.protos.rnn`. By default all are drawn.
        weights: whether weights are read, for histograms in the page and statistics in the data.
        input_shape: the model's input, in any form of `t7bridge.conversion.inputs`; the model is run on PyTorch's meta
            device to determine the shapes. By default shapes are those in the file, or follow from an input that the
            layers accept, which is marked as a guess.

    Returns:
        The drawing, which notebooks show.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        ModelError: the file holds no module and no tensors, or none at `at`; or `target` is not a picture.
        LimitError: the model is too large for a picture.
        UnsupportedError: no converter to `.png` is installed, or PyTorch is not and `input_shape` is given.
        TargetExistsError: the picture exists and `force` is not set.
    """
    if request.target is not None:
        check_picture(request.target)
    with collector_paused():
        if isinstance(request.source, (str, os.PathLike)):
            # Not closed here: the drawing may read weights.
            document = formats.open(request.source, limits=request.limits)
            document.warn()
            drawing = _drawn_file(document, request)
        else:
            drawing = _drawn(adopt(request.source), type(request.source).__name__, request)
        if request.target is not None:
            drawing.write(request.target, force=request.force)
    return drawing


def check_picture(target: PathLike) -> None:
    """Refuse a name that is not that of a picture.

    Raises:
        ModelError: it ends in none of `FORMATS`.
    """
    if _suffix(target) not in FORMATS:
        names = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise ModelError("not a picture", file=os.fspath(target), expected=f"a name that ends in {names}")


def _suffix(path: PathLike) -> str:
    return os.path.splitext(os.fspath(path))[1].lower()


def _drawn_file(document: Document, request: Draw) -> Drawing:
    """Return the drawing of the value of a file; errors name the file."""
    with about_file(document.path):
        return _drawn(document.value, os.path.basename(os.path.normpath(document.path)), request)


def _drawn(value: Any, name: str, request: Draw) -> Drawing:
    """Return the drawing of a value: of the module at a path, of all modules, or of other content with tensors.

    Args:
        value: the root of a file, or a value from memory.
        name: of the file, or of the value's class.
        request: the options; `at` is the path, `None` for all modules.
    """
    limits = request.limits
    weights = request.weights
    if request.at is None:
        models = models_in(value, "root", limits)
    else:
        path, module = choose_module(value, request.at, file="")  # `about_file` names the file in errors
        models = [drawn_model(module, path, limits)]
    shapes = shapes_of(models, request.input_shape, limits)
    if not models:
        return Drawing(structure_blocks(value, printable(name), limits), name, weights=weights)
    if len(models) > 1:
        _prefix_keys(models, value)
        blocks = group_of(models, printable(name))
        pictured = _pictured_group(blocks[0], models)
        return Drawing(blocks, name, weights=weights, shapes=shapes, pictured=pictured)
    # An only model has the keys of a file made of it alone; the prefix precedes them in one made of the whole file.
    (model,) = models
    prefix = _prefix_in_whole_file(value, model.path)
    return Drawing(model.blocks, name, model.path, weights, prefix=prefix, shapes=shapes, pictured=with_cells(model))


def _pictured_group(group: Block, models: list[DrawnModel]) -> list[Block]:
    """Return the blocks of a picture of several models: a copy of their group, and theirs, with cells as one block.

    Args:
        group: the block around those of the models.
        models: the models.
    """
    pictures = [with_cells(model) for model in models]
    pictured = [evolve(group, inside=[picture[0] for picture in pictures])]
    for picture in pictures:
        pictured += picture
    return pictured


def _prefix_keys(models: list[DrawnModel], value: Any) -> None:
    """Give the blocks of several models the keys that they have in files made of the whole file.

    Args:
        models: those in the file; their blocks have the keys of files made of each model alone.
        value: the root of the file.
    """
    for model in models:
        prefix = _prefix_in_whole_file(value, model.path)
        for block in model.blocks:
            block.key = f"{prefix}{block.key}" if block.key else prefix.removesuffix(".")
            if block.mark == "again":
                block.same = f"{prefix}{block.same}"  # never the whole model: what contains itself is no module


def _prefix_in_whole_file(value: Any, path: str) -> str:
    """Return what the keys of a model begin with if the whole file is converted: `model.`, `nets.0.`.

    It is empty for the root. It has the steps to the model, each with a dot: elements of lists by their number from 0,
    others by their key.

    Args:
        value: the root of the file.
        path: of the model: `root.nets[1]`.
    """
    steps = Path.parse(path).follow(value)
    return "".join(f"{_name_in_keys(step)}." for step in steps)


def _name_in_keys(step: Path) -> str:
    """Return the part of a key in a state dict that one step on the path of a value is."""
    outer = step.parent.value if step.parent is not None else None
    is_in_list = isinstance(outer, Table) and outer.sequence() is not None
    if is_in_list:
        return str(int(step.key) - 1)  # Lua counts from 1
    if isinstance(step.key, bytes):
        return step.key.decode("utf-8", "backslashreplace")
    is_text = isinstance(step.key, str) and not isinstance(step.key, Step)
    if is_text:
        return str(step.key)
    return step_name(step.key).lstrip(".").strip("[]")  # of a number, `[3]`
