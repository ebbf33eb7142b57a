"""`draw`: a picture of the model in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from math import ceil
from typing import Any

from ... import formats
from ...data import define
from ...errors import ModelError, about_file
from ...formats.document import Document
from ...graph.lua import Table, TorchObject
from ...graph.show import clean
from ...graph.walk import children
from ...io.inputs import inputs_protected
from ...io.output import FileOutput
from ...io.source import PathLike
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.plan.inside import module_at
from ...nn.plan.places import find_models, is_module
from ...text import printable
from . import FORMATS
from .blocks import Block, blocks_of, count_parameters
from .dot import as_dot
from .graph_json import GraphSource, graph_of
from .infer import Shapes, infer
from .layout import Box, lay_out, readable
from .page import page, pair_page
from .pair import Pairing
from .run_shapes import run_for_shapes
from .structure import structure_blocks
from .svg import as_svg
from .view import MOST, shown

_FACT_CHARS = 100
_TRIED, _READABLE = (20, 40, 64, 100, 160, 240, MOST), 0.55
"""Maximum number of blocks of a still picture, and the minimum scale at which it is readable on one screen."""
_CELL_HEIGHT = 640
"""Height of a picture in a notebook, in pixels."""


@define(eq=False)
class Drawing:
    """A drawn model. Notebooks show it as an interactive page.

    Attributes:
        blocks: all blocks, each before those inside it.
        file: name of the file, or of the value.
        path: of the model in it.
        weights: whether the page has histograms of weights.
        prefix: prefix of the model's keys in files made of the whole file, `model.`.
        shapes: of the model's input and output, and their origin.
    """

    blocks: list[Block]
    file: str = ""
    path: str = "root"
    weights: bool = False
    prefix: str = ""
    shapes: Shapes = Shapes()

    @property
    def _source(self) -> GraphSource:
        return GraphSource(self.file, self.path, self.prefix, self.shapes)

    @property
    def modules(self) -> int:
        """Number of modules drawn; shared ones count at each place."""
        return sum(block.kind != "end" for block in self.blocks)

    def html(self) -> str:
        """Return one self-contained page."""
        return page(self.blocks, self._source, weights=self.weights)

    def svg(self) -> str:
        """Return a still picture."""
        return as_svg(self.layout(), f"{self.file}, {self.path}")

    def layout(self) -> Box:
        """Return the still picture's boxes: as many levels as are readable on one screen."""
        best: Box | None = None
        for most in _TRIED:
            box = lay_out(self._shown(most))
            if best is not None and readable(box) < _READABLE:
                break
            best = box
        assert best is not None
        return best

    def dot(self) -> str:
        """Return text for Graphviz."""
        return as_dot(self._shown())

    def _shown(self, most: int = MOST) -> list[Block]:
        """Return the blocks of a still picture; the first shows input and output of the model."""
        found = shown(self.blocks, most)
        facts = {"input": self.shapes.input, "output": self.shapes.output}
        found[0].lines += [f"{name} {clean(text, _FACT_CHARS)}" for name, text in facts.items() if text]
        if self.blocks[0].parameters:
            found[0].lines.append(f"{self.blocks[0].parameters:,} parameters")
        if self.shapes.source and "guess" in self.shapes.source:
            found[0].lines.append("shapes are a guess from the layers")
        return found

    def graph(self) -> dict[str, Any]:
        """Return the graph as data, see docs/graph-json.md."""
        return graph_of(self.blocks, self._source, statistics=self.weights)

    def _repr_html_(self) -> str:
        from html import escape

        style = f"width:100%;height:{_CELL_HEIGHT}px;border:1px solid #8884"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html())}"></iframe>'

    def _repr_svg_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"<Drawing of {printable(self.file)}: {self.modules} modules>"


@inputs_protected()
def draw(
    src: PathLike | Any,
    dst: PathLike | None = None,
    at: str | None = None,
    *,
    weights: bool = False,
    input_shape: Sequence[int] | str | None = None,
    force: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Drawing:
    """Draw a model: its structure, its data flow, and the PyTorch class of each layer.

    Layers without a PyTorch module are drawn too, in red. A shared module is drawn at its first place, and named at the
    others. State dicts, pickled modules and TorchScript are drawn by the nesting of names.

    Args:
        src: a file of any format, a value returned by `load`, or one that `save` accepts.
        dst: the picture: `.html`, a page with zoom, search and folding; `.svg`; `.png`, if a converter is installed;
            `.dot` for Graphviz; `.json`, the graph as data. By default nothing is written.
        at: the path of a module if the file holds several: `root.protos.rnn`. By default all are drawn.
        weights: whether weights are read, for histograms in the page and statistics in the data.
        input_shape: of the model's input with its batch dimension; the model is run on PyTorch's meta device to
            determine the shapes; a text such as `[1x4,1x20:int64]` for a table. By default shapes are those in the
            file, or follow from an input that the layers accept, which is marked as a guess.
        force: whether an existing file is replaced.
        limits: resource limits.

    Returns:
        The drawing, which notebooks show.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        ModelError: the file holds no module and no tensors, or none at `at`; or `dst` is not a picture.
        LimitError: the model is too large for a picture.
        UnsupportedError: no converter to `.png` is installed, or PyTorch is not and `input_shape` is given.
        TargetExistsError: the picture exists and `force` is not set.
    """
    suffix = os.path.splitext(os.fspath(dst))[1].lower() if dst is not None else ""
    if dst is not None and suffix not in FORMATS:
        expected = f"a name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise ModelError(
            f"pictures are {', '.join(FORMATS[:-1])} or {FORMATS[-1]}", file=os.fspath(dst), expected=expected
        )
    if not isinstance(src, (str, os.PathLike)):
        from ...conversion.adopt import adopt

        drawing = _drawn([adopt(src)], f"{type(src).__name__}", at, weights, input_shape, limits)
        if dst is not None:
            write_drawing(drawing, dst, suffix, force)
        return drawing
    document = formats.open(src, limits=limits)  # open as long as the drawing may read weights
    document.warn()
    name = os.path.basename(os.path.normpath(document.path))
    with about_file(document.path):
        drawing = _drawn(document.roots, name, at, weights, input_shape, limits, document.path)
    if dst is not None:
        write_drawing(drawing, dst, suffix, force)
    return drawing


@inputs_protected()
def draw_pair(
    first: Document, second: Document, dst: PathLike, *, rtol: float, atol: float, force: bool, limits: Limits
) -> dict[str, int]:
    """Draw two models side by side, with their differences in colour.

    Args:
        first: an open file.
        second: another.
        dst: the page, `.html`.
        rtol: relative tolerance, as a fraction of the second's element.
        atol: absolute tolerance, added to the relative one.
        force: whether an existing file is replaced.
        limits: resource limits.

    Returns:
        Numbers of differences by kind: `only first`, `only second`, `shape`, `options`, `weights`.

    Raises:
        ModelError: a file holds no module and no tensors, or `dst` is not a page.
        TargetExistsError: the page exists and `force` is not set.
    """
    if os.path.splitext(os.fspath(dst))[1].lower() != ".html":
        raise ModelError("two models are drawn as a page", file=os.fspath(dst), expected="a name that ends in .html")
    sides: list[Drawing] = []
    for document in (first, second):
        name = os.path.basename(os.path.normpath(document.path))
        sides.append(_drawn(document.roots, name, None, False, None, limits, document.path))
    pairing = Pairing(rtol, atol)
    pairing.run(sides[0].blocks, sides[1].blocks)
    one, two = ((side.blocks, side._source) for side in sides)
    with FileOutput(dst, force=force) as output:
        output.write(pair_page(one, two, pairing).encode("utf-8", "replace"))
    return pairing.counts


def _drawn(
    values: list[Any],
    name: str,
    at: str | None,
    weights: bool,
    wanted: Sequence[int] | str | None,
    limits: Limits,
    file: str = "",
) -> Drawing:
    """Return the drawing of values: of the module at a path, of all modules, or of other content with tensors."""
    value = values[0]
    if at is not None:
        module = module_at(value, at)
        if module is None:
            paths = ", ".join(path for path, _ in find_models(value)[:20]) or "none"
            raise ModelError(f"the file holds no module at {at}", file=file, hint=f"It has {paths}.")
        return _of_one(value, module, at, name, weights, wanted, limits)
    found = [("root", value)] if is_module(value) else find_models(value)
    try:
        if len(found) == 1 and isinstance(found[0][1], TorchObject):
            return _of_one(value, found[0][1], found[0][0], name, weights, wanted, limits)
        if wanted is not None:
            raise ModelError("shapes are computed by running one model", file=file, hint="Name it with --at.")
        if not found:
            return Drawing(structure_blocks(value, printable(name)), name, "root", weights)
    except ModelError as error:
        error.file = error.file or file
        raise
    root = Block("", printable(name), "side", lines=[f"{len(found)} models"])
    blocks = [root]
    for path, module in found:
        inner = blocks_of(module, path, limits)
        infer(inner)
        inner[0].name = path.removeprefix("root").lstrip(".")
        for block in inner:
            block.key = f"{inner[0].name}.{block.key}" if block.key else inner[0].name
            block.same = f"{inner[0].name}.{block.same}" if block.mark == "again" and block.same else block.same
        root.inside.append(inner[0])
        blocks += inner
    count_parameters(blocks)
    return Drawing(blocks, name, "root", weights)


def _of_one(
    value: Any,
    module: TorchObject,
    path: str,
    name: str,
    weights: bool,
    wanted: Sequence[int] | str | None,
    limits: Limits,
) -> Drawing:
    """Return the drawing of one model in a value."""
    blocks = blocks_of(module, path, limits)
    shapes = infer(blocks) if wanted is None else run_for_shapes(module, path, wanted, blocks, limits)
    return Drawing(blocks, name, path, weights, _prefix(value, path), shapes)


def _prefix(value: Any, path: str) -> str:
    """Return the steps to a model as in `convert`: entries of lists by number from 0, others by key."""
    prefix, rest = "", path.removeprefix("root")
    while rest:
        found = [(step, item) for step, item in children(value) if rest.startswith(step)]
        if not found:
            return ""
        step, inner = max(found, key=lambda pair: len(pair[0]))
        name = step.lstrip(".").strip("[]'\"")
        if isinstance(value, Table) and value.sequence() is not None:
            name = str(int(name) - 1)
        prefix, rest, value = f"{prefix}{name}.", rest[len(step) :], inner
    return prefix


def write_drawing(drawing: Drawing, dst: PathLike, suffix: str, force: bool) -> None:
    """Write a drawing in the format of the path's suffix."""
    if suffix == ".json":
        data = (json.dumps(drawing.graph(), indent=1) + "\n").encode()
    elif suffix == ".png":
        from .png import as_png

        box = drawing.layout()
        data = as_png(drawing.svg(), ceil(box.width + 2 * box.x), ceil(box.height + 2 * box.y))
    else:
        text = {".html": drawing.html, ".svg": drawing.svg, ".dot": drawing.dot}[suffix]()
        data = text.encode("utf-8", "replace")
    with FileOutput(dst, force=force) as output:
        output.write(data)
