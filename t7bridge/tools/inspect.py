"""`inspect`: a one-screen summary of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

from attrs import field

from .. import formats
from ..conversion.inputs import Inputs
from ..conversion.options import INPUT_SHAPE, JSON, LIMITS, PART, flag, option, takes, verb
from ..data import collector_paused, define, hooks
from ..errors import LimitError, ModelError, about_file
from ..formats.table import Document, one_or_list
from ..graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.python import PythonObject
from ..graph.storage import Storage
from ..graph.tensor import Tensor, covered, statistics_of
from ..graph.walk import Path, entries, step_name, walk
from ..io.source import Readable, inputs_protected
from ..limits import Limits
from ..nn.blocks import Block, DrawnModel, counts_elements, group_of, models_in, structure_blocks
from ..nn.places import is_module
from ..text import Step, listed
from ..values.summary import LayerRow, Summary, TensorRow, outline
from ..values.summary import summary as short_summary
from .files import load_all
from .shapes import Shapes, shapes_of
from .view import branches_of, first_places, shared_of, shown, skips_of

MOST_ROWS = 60
"""Maximum lines of layers in a summary."""
MOST_OTHERS = 24
"""Maximum lines of other content in a summary."""
_MOST_STATISTICS = 2000
"""Maximum tensors whose elements are summarized."""
_UNTYPED = "nn before March 2016"
_TYPED = "nn since March 2016"
"""The releases of nn, by whether modules have the field `_type`."""
OUTLINE_DEPTH = 6
"""Levels of an outline by default."""
OUTLINE_ITEMS = 40
"""Entries of each table in an outline by default."""
_MOST_ENTRIES = 400
"""Entries of a value outside of models that are looked at."""
_MOST_OPENED = 200
"""Entries of such a value that get lines of their own."""


@verb
class Inspect:
    """Summarize a file: its header, its layers and its other content."""

    COMMON = ("at", "all", "statistics", "input_shape", "json")
    EXAMPLES = (
        "t7bridge inspect model.t7",
        "t7bridge inspect --input-shape 1x3x224x224 --stats model.t7",
        "t7bridge inspect --all --depth 2 --at root.opt checkpoint.t7",
    )
    source: Readable = option("a file of any format", kw_only=False, metavar="FILE", stdin=True)
    at: str | None = option(PART, default=None, kw_only=False)
    all = flag("print every value, as an indented outline")
    depth = option(f"levels of the outline (default: {OUTLINE_DEPTH})", default=None, kind="count", metavar="N")
    items = option(
        f"entries of each table in the outline (default: {OUTLINE_ITEMS})", default=None, kind="count", metavar="N"
    )
    statistics: bool = option(
        "read the weights; print minimum, maximum, mean, deviation, zeros, NaN", default=False, flags=("--stats",)
    )
    input_shape: Inputs | None = INPUT_SHAPE
    json = JSON
    limits: Limits = LIMITS


@takes(Inspect)
def inspect(request: Inspect) -> Summary:
    """Summarize a file: its header, its layers, and its other content. Weights are not read.

    Args:
        source: a path, bytes, or a binary file object, of any format.
        statistics: whether to read weights, for minimum, maximum, mean, deviation, zeros, NaN and infinities of each.
        input_shape: the model's input, `(1, 3, 224, 224)` or any form of `t7bridge.conversion.inputs`, of the model's
            element type. Output shapes follow from the rules of the layers; where these leave one open, or refuse the
            input, the model is run on PyTorch's meta device. `"guess"`: one that the layers accept. By default they
            are those in the file, or follow from an input that the layers accept, which is marked as a guess.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        ModelError: there is nothing at `at`, or the model does not accept `input_shape`.
        UnsupportedError: the rules leave a shape open, and PyTorch is not installed.

    Source: the age of nn is known by the field `_type`, which modules have since nn 71fbe31 (2016-03-04).
    """
    with (
        inputs_protected(),
        collector_paused(),
        formats.open(request.source, limits=request.limits) as document,
        about_file(document.path),
    ):
        document.warn()
        return _summary_of(document, request)


def _summary_of(document: Document, request: Inspect) -> Summary:
    """Return the summary of an open file, or of what is at a path in it."""
    value = document.value  # the list of all, if there are several
    summary = Summary(os.path.basename(os.path.normpath(document.path)))
    # What wrote a pickle is known only when its values are read.
    summary.header = {"file": summary.file, **_format_facts(document)}
    if request.at is not None:
        value = Path.parse(request.at).get(value)
    summary.header.update(_number_facts(document.roots))
    models, blocks = _models_and_blocks(value, request.at or "root", request.limits)
    if request.input_shape and not blocks:
        raise ModelError("shapes are computed by running one model", found="no layers")
    if blocks:
        _add_layers(summary, models, blocks, request)
    if request.statistics:
        _add_statistics(summary, blocks, value)
    summary.others, summary.hidden = _content_outside_models(value, request.at or "root", skip_tensors=bool(blocks))
    return summary


def _add_layers(result: Summary, models: list[DrawnModel], blocks: list[Block], request: Inspect) -> None:
    """Add to a summary what it says of layers: shapes, facts for the header, and the table.

    Args:
        result: the summary.
        models: those that are summarized, none for a state dict; their shapes are set in the blocks.
        blocks: of the whole.
        request: has the shape of the input.
    """
    shapes = shapes_of(models, request.input_shape, request.limits)
    result.shapes = shapes.source
    result.sizes = shapes.sizes
    result.header.update(_model_facts(blocks, shapes))
    weights = {weight.key: weight.tensor for block in blocks for weight in block.weights}
    # The hook is that of `match`: the libraries whose models have such keys and shapes.
    libraries = hooks["cached_names"](weights)
    if libraries:
        result.header["layers of"] = listed(libraries)
    result.layers = _layer_rows(blocks)


def _format_facts(document: Document) -> dict[str, Any]:
    """Return format, encoding and size of a file as the header states them."""
    facts: dict[str, Any] = {"format": document.title}
    layout = document.layout
    if hasattr(layout, "encoding"):  # of a `.t7`; that of other formats is text, or nothing
        facts["encoding"] = layout.encoding
        if layout.encoding == "binary":
            facts["encoding"] += f", {layout.byte_order}-endian, long of {layout.long_size} bytes"
        if layout.vintage:
            facts["written by"] = f"Torch of {layout.vintage}"
    elif layout:
        facts["encoding"] = str(layout)
    facts["bytes"] = document.source.size
    return facts


def _number_facts(roots: list[Value]) -> dict[str, Any]:
    """Return facts for the header: the age of nn, the numbers of values, modules, tensors, bytes, and unused bytes.

    Args:
        roots: all values of the file.

    Returns:
        Facts by the words of the header; those on nn, on modules and on unused bytes only where there are such.
    """
    totals = _Totals()
    for visit in walk(roots):
        if visit.value is not roots:  # the list of the values is not one of them
            totals.add(visit.value)
    facts: dict[str, Any] = {}
    if totals.has_types is not None:
        facts["written by"] = _TYPED if totals.has_types else _UNTYPED
    facts["values"] = totals.values
    if totals.modules:
        facts["modules"] = totals.modules
    facts["tensors"] = totals.tensors
    facts["bytes of tensors"] = sum(storage.nbytes for storage in totals.storages.values())
    unused_bytes = totals.unused_bytes()
    if unused_bytes > 0:
        facts["bytes that no tensor uses"] = unused_bytes
    return facts


@define(eq=False)
class _Totals:
    """Totals over all values of a file.

    Attributes:
        values: number of values.
        modules: number of modules.
        tensors: number of tensors.
        has_types: whether a module of nn has the field `_type`; `None` without modules.
        storages: by identity.
        ranges: first and end of the elements that each tensor uses of a storage, by the identity of that.
    """

    values: int = 0
    modules: int = 0
    tensors: int = 0
    has_types: bool | None = None
    storages: dict[int, Storage] = field(factory=dict)
    ranges: dict[int, list[tuple[int, int]]] = field(factory=dict)

    def add(self, value: Any) -> None:
        """Add a value, without what is inside it."""
        self.values += 1
        if isinstance(value, Tensor):
            self.tensors += 1
            if value.storage is not None and value.numel:
                self.ranges.setdefault(id(value.storage), []).append(value.reach())
        elif isinstance(value, Storage):
            self.storages[id(value)] = value
        elif is_module(value):
            self.modules += 1
            self.has_types = "_type" in value or self.has_types is True  # in one module at least
        elif isinstance(value, PythonObject):
            self.modules += value.is_module

    def unused_bytes(self) -> int:
        """Return the bytes of storages that no tensor uses."""
        nbytes = 0
        for identity, storage in self.storages.items():
            unused_elements = storage.count - covered(self.ranges.get(identity, ()))
            nbytes += unused_elements * storage.element.itemsize
        return nbytes


def _models_and_blocks(value: Value, path: str, limits: Limits) -> tuple[list[DrawnModel], list[Block]]:
    """Return the models in a value, and the blocks of the whole: of one model, or a group with several.

    Without models, the blocks are those of the keys of a state dict. Both lists are empty if the value has no tensors
    that could be such, or if there are more blocks than the limits allow.

    Args:
        value: of a file, or a part of it.
        path: its path in the file.
        limits: resource limits.
    """
    try:
        models = models_in(value, path, limits)
        if not models:
            return models, structure_blocks(value, "", limits)
        if len(models) > 1:
            return models, group_of(models, "", path)
        return models, models[0].blocks
    except (LimitError, ModelError):
        return [], []


def _layer_rows(blocks: list[Block]) -> list[LayerRow]:
    """Return the table of layers: each after the one that contains it, repeated ones once."""
    rows: list[LayerRow] = []
    root, *_ = shown(blocks, MOST_ROWS)  # which has the others inside
    stack = [(root, 0)]
    while stack:
        block, depth = stack.pop()
        if block.kind == "end":
            continue
        if block is not root or block.class_name:  # a group of several models has no row
            rows.append(_layer_row(block, depth))
            depth += 1
        stack += [(inner, depth) for inner in reversed(block.inside)]
    return rows


def _layer_row(block: Block, depth: int) -> LayerRow:
    """Return the row of a block in the table of layers; `depth` is the number of rows that contain it."""
    placeholder = "(sequence)" if block.mark == "repeat" else "(model)"
    return LayerRow(
        depth=depth,
        name=block.name or placeholder,
        path=block.path,
        key=block.key,
        class_name=block.class_name,
        torch=_torch_class(block),
        output=block.shape,
        parameters=block.parameters,
        shared=block.owner,
        repeat=block.repeat,
        weights={weight.name: weight.tensor.shape for weight in block.weights},
    )


def _torch_class(block: Block) -> str:
    """Return the PyTorch class of a block with its arguments; `none` if Lua's class has none.

    Empty if the title of the block is Lua's class, as of most containers: that has a column of its own.
    """
    if block.mark == "unmapped":
        return "none"
    if block.class_name and block.title == block.class_name and not block.target:
        return ""
    if block.mark == "again" or not block.target:  # its lines have no arguments
        return block.title
    # The first line that is not about the weights has the arguments: `Linear(10, 20)`. The lines of a pickled module
    # have no arguments but its tensors: `Linear(weight 20 × 10)`.
    for line in block.lines:
        is_about_weights = line.startswith("shares ") or counts_elements(line)
        if not is_about_weights:
            return f"{block.title}({line})"
    return block.title


def _add_statistics(result: Summary, blocks: list[Block], value: Value) -> None:
    """Add the table of statistics: of a model's weights by their keys, or of all tensors by their paths.

    The header counts those that it leaves out: views of one storage may be very many, and each is read.

    Args:
        result: the summary.
        blocks: with the weights; without any in them, all tensors of the value count.
        value: what the summary is about.
    """
    tensors = [(weight.key, weight.tensor) for block in blocks for weight in block.weights]
    if not tensors:
        tensors = [(visit.text(), visit.value) for visit in walk(value) if isinstance(visit.value, Tensor)]
    for key, tensor in tensors[:_MOST_STATISTICS]:
        statistics = statistics_of(tensor) if tensor.numel else {}
        result.tensors.append(TensorRow(key, tensor.shape, tensor.element.name, statistics))
    count_without = len(tensors) - _MOST_STATISTICS
    if count_without > 0:
        result.header["tensors without statistics"] = count_without


def _content_outside_models(value: Value, path: str, skip_tensors: bool) -> tuple[list[tuple[str, str]], int]:
    """Return the content outside of models, path and text of each line, and the number of entries without a line.

    A value whose entries have lines of their own has one before them, but for the root.

    Args:
        value: what the summary is about.
        path: its path.
        skip_tensors: whether tensors are in the table of layers.
    """
    content = _ContentOutside(skip_tensors)
    stack = [(Path(None, Step(path), value), 0)]  # each value with its path, and the levels around it
    while stack:
        visit, depth = stack.pop()
        entries_with_lines = content.add(visit, depth)
        for step, entry in reversed(entries_with_lines):  # as the stack returns the last first
            stack.append((Path(visit, Step(step), entry), depth + 1))
    return content.lines, content.hidden


class _ContentOutside:
    """The content outside of models, as it is met.

    Args:
        skip_tensors: whether tensors are in the table of layers.
    """

    def __init__(self, skip_tensors: bool) -> None:
        self.lines: list[tuple[str, str]] = []
        """Path and text of each."""
        self.hidden = 0
        """The number of entries without a line."""
        self._skip_tensors = skip_tensors
        self._opened: set[int] = set()
        """The ids of values whose entries were returned: another place of one has a line only."""

    def add(self, visit: Path, depth: int) -> list[tuple[str, Value]]:
        """Add the line of a value, or count it as hidden; return its entries that get lines of their own, by steps.

        Args:
            visit: the path of the value, with it.
            depth: levels around it.
        """
        value = visit.value
        is_root = depth == 0
        if _is_model(value) or (self._skip_tensors and isinstance(value, (Tensor, Storage))):
            return []
        inside = self._new_entries(value)
        if not inside or not _has_lines_of_entries(value, inside, depth):
            self._add_line(visit, inside)
            return []
        if self._skip_tensors and not is_root and _is_in_layers(inside):
            return []  # nothing of it is outside of the models
        if not is_root:  # of the root the entries alone
            self._add_line(visit, inside)
        self.hidden += max(_entry_count(value) - _MOST_OPENED, 0)
        return inside[:_MOST_OPENED]

    def _add_line(self, visit: Path, inside: list[tuple[str, Value]]) -> None:
        """Add the line of a value, with its first entries `inside`; after `MOST_OTHERS` lines it counts as hidden."""
        if len(self.lines) < MOST_OTHERS:
            self.lines.append((visit.text(), _described(visit.value, inside)))
        else:
            self.hidden += 1

    def _new_entries(self, value: Value) -> list[tuple[str, Value]]:
        """Return the first entries of a value, by steps; none of a tensor, and of any value at its first place only."""
        if isinstance(value, (Tensor, Storage)) or id(value) in self._opened:
            return []
        if isinstance(value, _WITH_ENTRIES):
            self._opened.add(id(value))
        return list(islice(_entries(value), _MOST_ENTRIES))


def _is_in_layers(inside: list[tuple[str, Value]]) -> bool:
    """Return whether the table of layers contains all entries of a value."""
    return all(_is_model(item) or isinstance(item, Tensor) for _, item in inside)


def _has_lines_of_entries(value: Value, inside: list[tuple[str, Value]], depth: int) -> bool:
    """Return whether the entries of a value have lines of their own: always those of the root, else a few.

    Args:
        value: the value.
        inside: its first entries, by their steps; more than `_FEW_ENTRIES` if it has more.
        depth: levels around it.
    """
    if depth == 0:
        return True
    return depth < _DEEPEST and len(inside) <= _FEW_ENTRIES and not _is_list_or_vocabulary(value, inside)


def _is_model(value: Value) -> bool:
    """Return whether the table of layers contains a value: a Lua module, or a pickled one."""
    return is_module(value) or (isinstance(value, PythonObject) and value.is_module)


_WITH_ENTRIES = (Table, TorchObject, TdsHash, TdsVec, dict, list, tuple, LuaFunction, PythonObject)
"""The types of values whose entries get lines of their own, at the first place of each."""


def _entries(value: Value) -> Iterator[tuple[str, Value]]:
    """Yield the entries of a value by their steps, without keys that are objects themselves."""
    for key, item in entries(value):
        step = step_name(key)
        if not step.startswith("<"):
            yield step, item


def _entry_count(value: Value) -> int:
    """Return the number of entries of a table, dict, list or tuple, of the fields of an object; 0 for other values."""
    if isinstance(value, TorchObject):
        value = value.fields
    elif isinstance(value, TdsHash):
        value = value.content
    if isinstance(value, Table):
        return len(value.raw_keys)
    return len(value) if isinstance(value, (dict, list, tuple)) else 0


def _is_list_or_vocabulary(value: Value, inside: list[tuple[str, Value]]) -> bool:
    """Return whether a table is one line: it holds plain values under numbers, or many of them under names.

    A few values under names are options, which are shown one by one.

    Args:
        value: the value.
        inside: its entries, by their steps.
    """
    if not isinstance(value, (Table, dict, list, TdsHash)):
        return False
    types = {type(item) for _, item in inside[:_JUDGED_ENTRIES]}
    if not types or not types <= _PLAIN_TYPES:
        return False
    are_numbered = all(step.startswith("[") for step, _ in inside)
    return are_numbered or len(inside) > _FEW_ENTRIES


_PLAIN_TYPES = {bytes, str, float, int, bool}
"""The types of values that a line lists."""
_DEEPEST = 3
"""Depth from which on entries have no lines of their own."""
_FEW_ENTRIES = 8
"""Maximum number of entries of a value that have lines of their own."""
_JUDGED_ENTRIES = 50
"""Entries by which a value is taken for a list of plain values."""
_FIRST_ENTRIES = 4
"""Entries of a list that its line shows."""
_LONGEST_LINE = 160
"""Characters of a line about a value."""


def _described(value: Value, inside: list[tuple[str, Value]]) -> str:
    """Return a value in a few words; a list of plain values or a vocabulary with its first entries.

    Args:
        value: the value.
        inside: its first entries, by their steps; none where they are not shown.
    """
    text = short_summary(value)
    if _is_list_or_vocabulary(value, inside):
        first_entries = [f"{step.lstrip('.')}={short_summary(item)[:20]}" for step, item in inside[:_FIRST_ENTRIES]]
        if len(inside) > _FIRST_ENTRIES:
            first_entries.append("…")
        text += f": {', '.join(first_entries)}"
    if len(text) > _LONGEST_LINE:
        text = text[: _LONGEST_LINE - 1] + "…"
    return text


def _model_facts(blocks: list[Block], shapes: Shapes) -> dict[str, Any]:
    """Return input, output, parameters, branches, skips and sharing for the header; what there is not is left out.

    Args:
        blocks: of the whole, which is the first.
        shapes: of the model, as text.
    """
    shape_of_input = shapes.input
    if shape_of_input and shapes.is_guess:
        shape_of_input += " (a guess from the layers)"
    facts: dict[str, Any] = {"input": shape_of_input, "output": shapes.output, "parameters": blocks[0].parameters}
    for name, places in (("branches", branches_of(blocks)), ("skips", skips_of(blocks)), ("shared", shared_of(blocks))):
        facts[name] = first_places(places) if places else ""
    return {name: fact for name, fact in facts.items() if fact != ""}


def outline_lines(
    source: Readable, at: str | None, depth: int | None, items: int | None, limits: Limits
) -> Iterator[str]:
    """Yield the outline of the values of a file, or of what is at a path.

    Args:
        source: a path, bytes, or a binary file object.
        at: the path, `root[1]` for the second of several values; `None` for all values.
        depth: levels that are shown; `None` or 0 for `OUTLINE_DEPTH`.
        items: entries of each container that are shown; `None` or 0 for `OUTLINE_ITEMS`.
        limits: resource limits.

    Raises:
        ModelError: nothing is at the path.
    """
    values = load_all(source, limits=limits)
    if at:
        with about_file(str(source)):
            values = [Path.parse(at).get(one_or_list(values))]
    for number, value in enumerate(values, 1):
        if len(values) > 1:
            yield f"value {number} of {len(values)}"
        yield from outline(value, depth=depth or OUTLINE_DEPTH, items=items or OUTLINE_ITEMS)
