"""`draw`: a picture of a model as data (see docs/graph-json.md), as a page, or still; of two models, side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from functools import cached_property
from html import escape
from itertools import zip_longest
from math import inf, log10
from typing import Any, ClassVar

from attrs import field

from ... import formats
from ...codegen.copied import constructor
from ...conversion.adopt import adopt
from ...conversion.inputs import Inputs
from ...conversion.options import AT, FORCE, INPUT_SHAPE, LIMITS, flag, option, takes, verb
from ...data import __version__, define
from ...errors import ModelError, about_file
from ...formats.table import Document
from ...graph.lua import Table
from ...graph.tensor import statistics_of
from ...graph.walk import Path, step_name
from ...io.output import FileOutput
from ...io.source import PathLike, inputs_protected
from ...limits import Limits
from ...nn.mapping import LAYERS
from ...nn.places import choose_module
from ...nn.torch_nn import TORCH
from ...text import clean, extents, printable
from ...values.compare import TensorDifference, deviation
from .blocks import Block, Weight, blocks_of, group_of, models_in, structure_blocks
from .layout import Box, lay_out, readable
from .pictures import MAX_CHARS, ROOMY, as_dot, as_page, as_png, as_svg, places_of
from .shapes import Shapes, shapes_of
from .view import MOST, Fold, folds_of, opened_of, view_of

FORMATS = (".html", ".svg", ".png", ".dot", ".json")
FORMAT, VERSION = "t7bridge-graph", 2
_FACT_CHARS = 100
_TRIED, _READABLE = (20, 40, 64, 100, 160, 240, MOST), 0.55
"""Maximum number of blocks of a still picture, and the minimum scale at which it is readable on one screen."""
_CELL_HEIGHT = 640
"""Height of a picture in a notebook, in pixels."""
_BRIEF = 60
"""Characters of a key or path in a brief graph: the last ones."""
_LINES, _LINE = 30, 200
"""Maximum number of differences of a block on a page, and their characters."""


@define(eq=False)
class Drawing:
    """A drawn model. Notebooks show it as an interactive page.

    Attributes:
        blocks: all blocks, each before those inside it.
        file: name of the file, or of the value.
        path: of the model in it.
        weights: whether page and data have histograms and statistics of weights.
        prefix: prefix of the model's keys in files made of the whole file, `model.`.
        shapes: of the model's input and output, and their origin.
        differences: from another model, on a page of both.
    """

    blocks: list[Block]
    file: str = ""
    path: str = "root"
    weights: bool = False
    prefix: str = ""
    shapes: Shapes = Shapes()
    differences: Pairing | None = field(default=None, repr=False)

    @cached_property
    def _folds(self) -> dict[int, list[Fold]]:
        """The runs in each container that are shown once, by id; differences in them are equal."""
        changes = self.differences.changes if self.differences is not None else {}
        return folds_of(self.blocks, {place: (change.kind, change.share) for place, change in changes.items()})

    @property
    def modules(self) -> int:
        """Number of modules drawn; shared ones count at each place."""
        return sum(block.kind != "end" for block in self.blocks)

    def html(self) -> str:
        """Return one self-contained page.

        Raises:
            LimitError: the content exceeds a page.
        """
        most = MAX_CHARS if self.weights else ROOMY
        graphs = ((self._graph(brief=brief), MAX_CHARS if brief else most) for brief in (False, True))
        hint = "Draw a part with --at (at=… in Python), or write .svg, .dot or .json."
        return as_page(graphs, [self._places()], self._title, hint)

    def svg(self) -> str:
        """Return a still picture."""
        return as_svg(self.layout(), self._title)

    def layout(self) -> Box:
        """Return the still picture's boxes: as many levels as are readable on one screen."""
        return self._first()[0]

    def _first(self) -> tuple[Box, set[int]]:
        """Return what is seen first, and the containers that are open in it, by id."""
        wanted = None
        if self.differences is not None:
            wanted = {place for place, count in self.differences.inside(self.blocks).items() if count}
        found: list[tuple[Box, set[int]]] = []
        for most in _TRIED:
            opened = opened_of(self.blocks[0], self._folds, most, wanted)
            if not found or opened != found[-1][1]:
                root = lay_out(self._shown(opened))
                if found and readable(root) < _READABLE:
                    break
                found.append((root, opened))
        return found[-1]

    def _places(self) -> dict[str, Any]:
        """Return the positions that a page needs."""
        root, opened = self._first()
        return places_of(self.blocks, self._folds, opened, root)

    def dot(self) -> str:
        """Return text for Graphviz: every module, none folded or closed."""
        return as_dot(self._labelled(view_of(self.blocks[0], {}, set(map(id, self.blocks)))))

    def graph(self) -> dict[str, Any]:
        """Return the graph as data, see docs/graph-json.md. Every text is escaped for terminals and pages."""
        return self._graph()

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
            data = {".html": self.html, ".svg": self.svg, ".dot": self.dot}[suffix]().encode("utf-8", "replace")
        with FileOutput(path, force=force) as output:
            output.write(data)

    @property
    def _title(self) -> str:
        return f"{self.file}, {self.path}"

    def _shown(self, opened: set[int]) -> list[Block]:
        """Return the blocks of a picture, in which repeated ones are shown once."""
        return self._labelled(view_of(self.blocks[0], self._folds, opened))

    def _labelled(self, found: list[Block]) -> list[Block]:
        """Add input and output of the model to the first block of a picture."""
        facts = {"input": self.shapes.input, "output": self.shapes.output}
        found[0].lines += [f"{name} {clean(text, _FACT_CHARS)}" for name, text in facts.items() if text]
        if "guess" in self.shapes.source:
            found[0].lines.append("shapes are a guess from the layers")
        return found

    def _graph(self, *, brief: bool = False) -> dict[str, Any]:
        """Return the graph as data.

        Args:
            brief: whether fields of objects and statistics are left out, and long keys and paths cut.
        """
        numbers = {id(block): number for number, block in enumerate(self.blocks)}
        keys = {block.key: numbers[id(block)] for block in reversed(self.blocks) if block.kind != "end"}
        statistics = self.weights and not brief
        nodes = [
            _node(block, numbers, keys, self._folds.get(id(block), []), statistics=statistics, brief=brief)
            for block in self.blocks
        ]
        if self.differences is not None:
            self.differences.mark(self.blocks, nodes)
        return {
            "format": FORMAT,
            "version": VERSION,
            "producer": f"t7bridge {__version__}",
            "file": printable(self.file),
            "path": printable(self.path),
            **({"prefix": printable(self.prefix)} if self.prefix else {}),
            "input": [],
            "output": [*map(list, self.blocks[0].shape)],
            **self.shapes.sizes,
            "shapes": self.shapes.source,
            "parameters": self.blocks[0].parameters,
            "root": 0,
            "nodes": nodes,
        }

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{_CELL_HEIGHT}px;border:1px solid #8884"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.html())}"></iframe>'

    def _repr_svg_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"<Drawing of {printable(self.file)}: {self.modules} modules>"


def _node(
    block: Block,
    numbers: Mapping[int, int],
    keys: Mapping[str, int],
    folds: list[Fold],
    *,
    statistics: bool,
    brief: bool,
) -> dict[str, Any]:
    """Return a block as data: facts that it has.

    Args:
        block: the block.
        numbers: of all blocks, by id.
        keys: numbers of modules, by key.
        folds: the runs of equal blocks in it.
        statistics: whether weights are read: minimum, maximum, mean, deviation and a histogram of each.
        brief: whether fields are left out, and key and path cut.
    """
    key, path = (f"…{text[-_BRIEF:]}" if brief and len(text) > _BRIEF else text for text in (block.key, block.path))
    facts = {
        "name": printable(block.name),
        "key": printable(key),
        "path": printable(path),
        "mark": block.mark,
        "class": printable(block.class_name),
        "torch": printable(block.target),
        "lines": [printable(line) for line in block.lines],
        "output": [list(sizes) for sizes in block.shape],
        "arguments": _texts(block.arguments),
        "argument_names": [] if brief else _names(block),
        "fields": {} if brief else _texts(block.fields),
        "parameters": block.parameters,
        "weights": [_weight(each, statistics) for each in block.weights],
    }
    node: dict[str, Any] = {
        "id": numbers[id(block)],
        "kind": block.kind,
        "title": printable(block.title),
        "category": block.category,
        **{name: fact for name, fact in facts.items() if fact},
    }
    if block.mark == "again":
        node["same_as"] = keys.get(block.same, 0)
    if block.inside:
        inside = node["children"] = [numbers[id(each)] for each in block.inside]
        node["edges"] = [[inside[flow.start], inside[flow.end], printable(flow.label)] for flow in block.arrows]
    if folds:
        node["repeats"] = [[run.start, run.period, run.count] for run in folds]
    return node


def _names(block: Block) -> list[str]:
    """Return the names of the positional arguments of a class of torch.nn or of ours."""
    count = sum(name.isdigit() for name in block.arguments)
    if not count or not block.target.startswith(("torch.nn.", LAYERS)):
        return []
    signature, base = constructor(block.target)
    if signature is None:
        return list(TORCH[base].arguments)[:count] if base in TORCH else []
    found: list[str] = []
    for known in signature.parameters.values():
        found += [known.name] * (count - len(found) if known.kind == known.VAR_POSITIONAL else 1)
    return found[:count]


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
        found["statistics"] = statistics_of(tensor, bins=24)
    return found


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
    if isinstance(request.source, (str, os.PathLike)):
        document = formats.open(request.source, limits=request.limits)  # open as long as the drawing may read weights
        document.warn()
        drawing = _drawn_file(document, request)
    else:
        drawing = _drawn(adopt(request.source), type(request.source).__name__, request)
    if request.target is not None:
        drawing.write(request.target, force=request.force)
    return drawing


@inputs_protected()
def draw_pair(first: Document, second: Document, request: Any) -> dict[str, int]:
    """Draw two models side by side, with their differences in colour.

    Args:
        first: an open file.
        second: another.
        request: that of `diff`; `request.draw` is the page, `.html`.

    Returns:
        Numbers of differences by kind: `only first`, `only second`, `shape`, `options`, `weights`.

    Raises:
        LimitError: the content exceeds a page.
        ModelError: a file holds no module and no tensors, or `target` is not a page.
        TargetExistsError: the page exists and `force` is not set.
    """
    dst = os.fspath(request.draw)
    if _suffix(dst) != ".html":
        raise ModelError("two models are drawn as a page", file=dst, expected="a name that ends in .html")
    one, two = (_drawn_file(document, Draw(document, limits=request.limits)) for document in (first, second))
    pairing = Pairing(request.rtol, request.atol)
    pairing.run(one.blocks, two.blocks)
    for drawing in (one, two):
        drawing.differences = pairing
    graphs = (
        {"graphs": [drawing._graph(brief=brief) for drawing in (one, two)], "differences": pairing.counts}
        for brief in (False, True)
    )
    for drawing in (one, two):
        inside = pairing.inside(drawing.blocks)
        for block in drawing.blocks:
            if count := inside[id(block)]:
                block.summary.append(f"{count} difference{'s' if count > 1 else ''} inside")
    places = [drawing._places() for drawing in (one, two)]
    title = f"{one.file}, {two.file}"
    text = as_page(((graph, MAX_CHARS) for graph in graphs), places, title, "Draw each model by itself.")
    with FileOutput(dst, force=request.force) as output:
        output.write(text.encode("utf-8", "replace"))
    return pairing.counts


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
    with about_file(document.path):
        return _drawn(document.roots[0], os.path.basename(os.path.normpath(document.path)), request)


def _drawn(value: Any, name: str, request: Draw) -> Drawing:
    """Return the drawing of a value: of the module at a path, of all modules, or of other content with tensors."""
    at, limits, weights = request.at, request.limits, request.weights
    if at is None:
        models = models_in(value, "root", limits)
    else:
        path, module = choose_module(value, at, "")
        models = [(path, module, blocks_of(module, path, limits))]
    shapes = shapes_of(models, request.input_shape, limits)
    if not models:
        return Drawing(structure_blocks(value, printable(name)), name, "root", weights)
    if len(models) == 1:
        path, _, blocks = models[0]
        return Drawing(blocks, name, path, weights, _prefix(value, path), shapes)
    whole = group_of(models, printable(name))
    for _, _, blocks in models:
        prefix = blocks[0].name
        for block in blocks:
            block.key = f"{prefix}.{block.key}" if block.key else prefix
            block.same = f"{prefix}.{block.same}" if block.mark == "again" and block.same else block.same
    return Drawing(whole, name, "root", weights)


def _prefix(value: Any, path: str) -> str:
    """Return the steps to a model as in `convert`: entries of lists by number from 0, others by key."""
    names = []
    for at in Path.parse(path).follow(value):
        name = step_name(at.key).lstrip(".").strip("[]'\"")
        outer = at.parent.value if at.parent is not None else None
        names.append(f"{int(name) - 1}." if isinstance(outer, Table) and outer.sequence() is not None else f"{name}.")
    return "".join(names)


_LEAST, _MOST_PRODUCT, _DEEPEST = -6.0, 4_000_000, 500
"""Power of ten of the palest relative difference; product of lengths above which children are paired by position;
maximum depth."""


@define(frozen=True)
class ModelChange:
    """A difference of a block from its counterpart.

    Attributes:
        kind: `only`, `shape`, `options` or `weights`.
        text: what differs, a line each, the first model's side first.
        size: of weights, the largest difference as a fraction of the largest element.
    """

    kind: str
    text: tuple[str, ...] = ()
    size: float = 0.0

    @property
    def share(self) -> float:
        """Strength of its colour, from 0.12 to 0.55: by the power of ten of its size."""
        power = log10(self.size) if 0 < self.size < inf else _LEAST if not self.size else 0.0
        return round(0.12 + 0.43 * (min(max(power, _LEAST), 0.0) - _LEAST) / -_LEAST, 2)


@define(eq=False)
class Pairing:
    """Counterparts and differences of the blocks of two models.

    Attributes:
        rtol: relative tolerance, as a fraction of the second's element.
        atol: absolute tolerance, added to the relative one.
        other: counterpart by the id of a block.
        changes: difference by the id of a block, of both models.
        counts: differences by kind; those only in one model count for it: `only first`, `only second`.
    """

    rtol: float = 0.0
    atol: float = 0.0
    other: dict[int, Block] = field(factory=dict)
    changes: dict[int, ModelChange] = field(factory=dict)
    counts: dict[str, int] = field(factory=dict)
    _named: bool = False
    _numbers: dict[int, int] = field(factory=dict)
    _seen: dict[Any, tuple[str, float]] = field(factory=dict)

    def run(self, first: list[Block], second: list[Block]) -> None:
        """Pair the blocks of two models, each before those inside it, and compare them."""
        self._numbers = {id(block): number for blocks in (first, second) for number, block in enumerate(blocks)}
        self._named = not (first[0].target or first[0].kind != "side") or not (
            second[0].target or second[0].kind != "side"
        )
        stack = [(first[0], second[0], 0)]
        while stack:
            one, two, depth = stack.pop()
            self.other[id(one)], self.other[id(two)] = two, one
            self._compare(one, two)
            pairs = _pair(one.inside, two.inside, by_name=self._named) if depth < _DEEPEST else []
            for a, b in pairs:
                if a is not None and b is not None:
                    stack.append((a, b, depth + 1))
                else:
                    self._only(a, "first")
                    self._only(b, "second")

    def mark(self, blocks: list[Block], nodes: list[dict[str, Any]]) -> None:
        """Add the differences and the counterparts of the blocks of a model to its nodes, as data."""
        inside = self.inside(blocks)
        for block, node in zip(blocks, nodes):
            change, counterpart = self.changes.get(id(block)), self.other.get(id(block))
            if change is not None:
                text = [printable(line)[:_LINE] for line in change.text[:_LINES]]
                node["change"] = {"kind": change.kind, "text": text, "share": change.share}
            if counterpart is not None:
                node["other"] = self._numbers[id(counterpart)]
            if inside[id(block)]:
                node["changes_inside"] = inside[id(block)]

    def inside(self, blocks: list[Block]) -> dict[int, int]:
        """Return the number of differing blocks inside each, by its id."""
        found: dict[int, int] = {}
        for block in reversed(blocks):
            found[id(block)] = sum(found[id(each)] + (id(each) in self.changes) for each in block.inside)
        return found

    def _only(self, block: Block | None, side: str) -> None:
        if block is None or block.kind == "end" or (self._named and not block.parameters and not block.weights):
            return
        self._add(ModelChange("only", (f"only in the {side} model",)), block, kind=f"only {side}")

    def _add(self, change: ModelChange, *blocks: Block, kind: str = "") -> None:
        for block in blocks:
            self.changes[id(block)] = change
        self.counts[kind or change.kind] = self.counts.get(kind or change.kind, 0) + 1

    def _compare(self, one: Block, two: Block) -> None:
        options = self._options(one, two)
        shapes, weights, size = [], [], 0.0
        others = {each.name: each for each in two.weights}
        for weight in one.weights:
            other = others.pop(weight.name, None)
            if other is None:
                shapes.append(f"{weight.name}: only in the first")
            elif weight.tensor.shape != other.tensor.shape:
                shapes.append(f"{weight.name}: {extents(weight.tensor.shape)} against {extents(other.tensor.shape)}")
            elif weight.tensor.numel:
                text, share = self._elements(weight, other)
                weights += [f"{weight.name}: {text}"] if text else []
                size = max(size, share)
        shapes += [f"{name}: only in the second" for name in others]
        shapes = [line for line in shapes if not line.startswith("num_batches_tracked")]
        if shapes or options or weights:
            kind = "shape" if shapes else "options" if options else "weights"
            self._add(ModelChange(kind, (*shapes, *options, *weights), size), one, two)

    def _options(self, one: Block, two: Block) -> list[str]:
        """Return the differences of class and arguments."""
        if self._named or not one.class_name or not two.class_name:
            return []
        if (one.target or one.class_name) != (two.target or two.class_name):
            return [f"class: {one.title} against {two.title}"]
        left, right = (each.arguments or each.fields for each in (one, two))
        return [
            f"{name}: {left.get(name, 'none')} against {right.get(name, 'none')}"
            for name in sorted({*left, *right})
            if left.get(name) != right.get(name)
        ]

    def _elements(self, weight: Weight, other: Weight) -> tuple[str, float]:
        """Return kind and size of the difference of two tensors of one shape; equal pairs of memory are read once."""
        a, b = weight.tensor, other.tensor
        key = (id(a.storage), a.offset, a.stride, id(b.storage), b.offset, b.stride, a.shape)
        if key not in self._seen:
            found = deviation("", a, b, self.rtol, self.atol)
            if found is None:
                self._seen[key] = "", 0.0
            elif isinstance(found, TensorDifference):
                numbers = statistics_of(a)
                largest = max(abs(numbers.get("min", 0.0)), abs(numbers.get("max", 0.0)))
                share = found.largest / largest if largest else inf
                text = f"{found.differing:,} of {found.elements:,} elements differ, by at most {found.largest:.3g}"
                self._seen[key] = text, share
            else:
                self._seen[key] = found.message, inf
        return self._seen[key]


def _pair(first: list[Block], second: list[Block], *, by_name: bool) -> list[tuple[Block | None, Block | None]]:
    """Pair the children of two containers: equal classes in their order, or equal names."""
    left, right = ([each for each in side if each.kind != "end"] for side in (first, second))
    if by_name:
        names = {each.name: each for each in right}
        return [(each, names.pop(each.name, None)) for each in left] + [(None, each) for each in names.values()]
    ends = ([each for each in side if each.kind == "end"] for side in (first, second))
    return [*zip(*ends), *_in_order(left, right)]


def _in_order(left: list[Block], right: list[Block]) -> Iterator[tuple[Block | None, Block | None]]:
    """Pair blocks by position if most classes agree or there are very many, else by runs of equal classes."""
    many = len(left) * len(right) > _MOST_PRODUCT
    alike = sum(one.class_name == two.class_name for one, two in zip(left, right))
    if many or (len(left) == len(right) and 2 * alike >= len(left)):
        yield from zip_longest(left, right)
        return
    looks = [[(each.class_name or each.title, len(each.inside)) for each in side] for side in (left, right)]
    for tag, a, b, c, d in SequenceMatcher(None, looks[0], looks[1], autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and b - a == d - c):
            yield from zip(left[a:b], right[c:d])
        else:
            yield from ((each, None) for each in left[a:b])
            yield from ((None, each) for each in right[c:d])
