"""A picture of the model in a file: `draw`."""

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
from ...io.output import FileOutput
from ...io.source import ByteSource, PathLike
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.plan.inside import module_at
from ...nn.plan.places import find_models, is_module
from ...text import printable
from . import FORMATS
from .blocks import Block, blocks_of, count_parameters
from .dot import as_dot
from .graph_json import Source, graph_of
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
"""Blocks that a still picture may have, and the scale on one screen down to which it is read."""
_CELL_HEIGHT = 640
"""Height of a picture in a notebook, in pixels."""


@define(eq=False)
class Drawing:
    """A drawn model. Notebooks show it as a page that can be walked in.

    Attributes:
        blocks: all blocks, each before those inside it.
        file: name of the file, or of the value.
        path: of the model in it.
        weights: whether the page has histograms of weights.
        prefix: in front of the model's keys in files made of the whole file, `model.`.
        shapes: of the model's input and output, and where they are from.
    """

    blocks: list[Block]
    file: str = ""
    path: str = "root"
    weights: bool = False
    prefix: str = ""
    shapes: Shapes = Shapes()

    @property
    def _source(self) -> Source:
        return Source(self.file, self.path, self.prefix, self.shapes)

    @property
    def modules(self) -> int:
        """Return the number of modules drawn; those at several places count as often."""
        return sum(block.kind != "end" for block in self.blocks)

    def html(self) -> str:
        """One self-contained page."""
        return page(self.blocks, self._source, weights=self.weights)

    def svg(self) -> str:
        """A still picture."""
        return as_svg(self.layout(), f"{self.file}, {self.path}")

    def layout(self) -> Box:
        """The still picture's boxes: as many levels as can be read on one screen."""
        best: Box | None = None
        for most in _TRIED:
            box = lay_out(self._shown(most))
            if best is not None and readable(box) < _READABLE:
                break
            best = box
        assert best is not None
        return best

    def dot(self) -> str:
        """Text for Graphviz."""
        return as_dot(self._shown())

    def _shown(self, most: int = MOST) -> list[Block]:
        """The blocks of a still picture; the first says what the model takes and returns."""
        found = shown(self.blocks, most)
        facts = {"input": self.shapes.input, "output": self.shapes.output}
        found[0].lines += [f"{name} {clean(text, _FACT_CHARS)}" for name, text in facts.items() if text]
        if self.blocks[0].parameters:
            found[0].lines.append(f"{self.blocks[0].parameters:,} parameters")
        if self.shapes.source and "guess" in self.shapes.source:
            found[0].lines.append("shapes are a guess from the layers")
        return found

    def graph(self) -> dict[str, Any]:
        """The graph as data, see docs/graph-json.md."""
        return graph_of(self.blocks, self._source, statistics=self.weights)

    def _repr_html_(self) -> str:
        from html import escape

        style = f"width:100%;height:{_CELL_HEIGHT}px;border:1px solid #8884"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html())}"></iframe>'

    def _repr_svg_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"<Drawing of {printable(self.file)}: {self.modules} modules>"


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
    """Draw a model: what is in what, what flows where, and what each layer is in PyTorch.

    Layers that have no PyTorch module are drawn too, in red. A module that Lua has at several places is drawn at the
    first, and named at the others. State dicts, pickled modules and TorchScript are drawn by the nesting of names.

    Args:
        src: a file of any format, a value that `load` returned, or what `save` takes.
        dst: the picture: `.html`, a page with zoom, search and folding; `.svg`; `.png`, where a converter is
            installed; `.dot` for Graphviz; `.json`, the graph as data. Nothing is written where not given.
        at: the path of a module where the file holds several: `root.protos.rnn`. All are drawn where not given.
        weights: whether weights are read, for histograms in the page and statistics in the data.
        input_shape: of the model's input with its batch dimension; the model is run on PyTorch's meta device, and the
            shapes are those found there. Without it shapes are those in the file, or follow from an input that the
            layers take, which is said to be a guess.
        force: whether an existing file is replaced.
        limits: resource limits.

    Returns:
        The drawing, which notebooks show.

    Raises:
        FormatError: the file is damaged, or is something else.
        ModelError: the file holds no module and no tensors, or none at `at`; or `dst` is not a picture.
        LimitError: the model is too large for a picture.
        UnsupportedError: nothing that makes a `.png` is installed, or PyTorch is not and `input_shape` is given.
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
            write_drawing(drawing, dst, suffix, force, ())
        return drawing
    document = formats.open(src, limits=limits)  # stays open as long as the drawing may read weights
    document.warn()
    name = os.path.basename(os.path.normpath(document.path))
    with about_file(document.path):
        drawing = _drawn(document.roots, name, at, weights, input_shape, limits, document.path)
    if dst is not None:
        write_drawing(drawing, dst, suffix, force, (document.source,))
    return drawing


def draw_pair(
    first: Document, second: Document, dst: PathLike, *, rtol: float, atol: float, force: bool, limits: Limits
) -> dict[str, int]:
    """Draw two models side by side, with their differences in colour.

    Args:
        first: an open file.
        second: another.
        dst: the page, `.html`.
        rtol: how far an element may be from the second's, as a share of the second's.
        atol: how far it may be besides.
        force: whether an existing file is replaced.
        limits: resource limits.

    Returns:
        Numbers of differences by kind: `only first`, `only second`, `shape`, `options`, `weights`.

    Raises:
        ModelError: a file holds no module and no tensors, or `dst` is no page.
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
    with FileOutput(dst, force=force, inputs=(first.source, second.source)) as output:
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
    """The drawing of values: of the module at a path, of all modules, or of what else holds tensors."""
    value = values[0]
    if at is not None:
        module = module_at(value, at)
        if module is None:
            paths = ", ".join(path for path, _ in find_models(value)[:20]) or "none"
            raise ModelError(f"the file holds no module at {at}", file=file, hint=f"There are: {paths}.")
        return _of_one(value, module, at, name, weights, wanted, limits)
    found = [("root", value)] if is_module(value) else find_models(value)
    try:
        if len(found) == 1 and isinstance(found[0][1], TorchObject):
            return _of_one(value, found[0][1], found[0][0], name, weights, wanted, limits)
        if wanted is not None:
            raise ModelError("shapes are found by running one model", file=file, hint="Name it with --at.")
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
    """The drawing of one model in a value."""
    blocks = blocks_of(module, path, limits)
    shapes = infer(blocks) if wanted is None else run_for_shapes(module, path, wanted, blocks, limits)
    return Drawing(blocks, name, path, weights, _prefix(value, path), shapes)


def _prefix(value: Any, path: str) -> str:
    """The steps to a model as `convert` names them: entries of lists by number from 0, others by their key."""
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


def write_drawing(drawing: Drawing, dst: PathLike, suffix: str, force: bool, inputs: tuple[ByteSource, ...]) -> None:
    """Write a drawing as the kind of picture that a suffix names, to a file that is none of the inputs."""
    if suffix == ".json":
        data = (json.dumps(drawing.graph(), indent=1) + "\n").encode()
    elif suffix == ".png":
        from .png import as_png

        box = drawing.layout()
        data = as_png(drawing.svg(), ceil(box.width + 2 * box.x), ceil(box.height + 2 * box.y))
    else:
        text = {".html": drawing.html, ".svg": drawing.svg, ".dot": drawing.dot}[suffix]()
        data = text.encode("utf-8", "replace")
    with FileOutput(dst, force=force, inputs=inputs) as output:
        output.write(data)
