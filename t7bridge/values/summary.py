"""What is in a file, on one screen: header, layers, other content; an indented outline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import asdict, field

from ..data import define
from ..graph.lua import LuaFunction, Table, Value, class_of
from ..graph.python import PythonObject
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import entries, step_name
from ..text import Holder, counted, extents, printable

_WIDEST = 34
"""Most characters of a cell, except in the last column."""
_NARROWEST = 10
"""Characters to which the cells of a column are cut at most where a terminal is narrow."""
_MOST_COLUMNS = 400
"""Characters of a line of a table."""


@define(frozen=True)
class LayerRow:
    """One line of the table of layers: a layer, or consecutive layers that are equal.

    Attributes:
        depth: number of containers of the table around it.
        name: in its container; of repeated layers the first and the last.
        path: in the file.
        key: in the state dict.
        class_name: in the file.
        torch: its PyTorch class with the arguments that are not defaults; `none` if Lua's class has none, and empty for
            modules of a state dict, whose class is not known.
        output: sizes of each tensor of its last output.
        parameters: number of learned elements, including those of its children.
        shared: the key whose weights it shares, or of the module that it repeats.
        repeat: number of consecutive repetitions.
        weights: sizes of its own tensors, by name.
    """

    depth: int
    name: str
    path: str = ""
    key: str = ""
    class_name: str = ""
    torch: str = ""
    output: tuple[tuple[int, ...], ...] = ()
    parameters: int = 0
    shared: str = ""
    repeat: int = 1
    weights: dict[str, tuple[int, ...]] = field(factory=dict)

    @property
    def shape(self) -> str:
        """Shapes of the output, or, where no PyTorch class is known, of the first weight, as text; may be empty."""
        if self.output:
            return ", ".join(map(extents, self.output))
        if self.torch or not self.weights:
            return ""
        name, shape = next(iter(self.weights.items()))
        return f"{name} {extents(shape)}"


@define(frozen=True)
class TensorRow:
    """Statistics of one tensor.

    Attributes:
        key: in the state dict, or path in the file.
        shape: its sizes.
        type: of its elements.
        numbers: the result of `t7bridge.graph.tensor.statistics_of`.
    """

    key: str
    shape: tuple[int, ...]
    type: str
    numbers: dict[str, Any] = field(factory=dict)


@define(eq=False)
class Summary:
    """Content of a file. `str()` fits one screen; notebooks show tables.

    Attributes:
        file: its name.
        header: format, encoding, sizes and counts, by name.
        layers: the table of layers, repeated layers once.
        others: other content of the file: path and description.
        tensors: statistics, if requested.
        shapes: the origin of the output shapes.
        sizes: of the tensors of `input` and of `output`, where they are known: `[[1, 3, 224, 224]]`.
        hidden: number of lines of `others` left out.
    """

    file: str
    header: dict[str, Any] = field(factory=dict)
    layers: list[LayerRow] = field(factory=list)
    others: list[tuple[str, str]] = field(factory=list)
    tensors: list[TensorRow] = field(factory=list)
    shapes: str = ""
    sizes: dict[str, list[Any]] = field(factory=dict)
    hidden: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data, whose texts are escaped for terminals."""
        header: dict[str, Any] = {}
        for name, value in self.header.items():
            plain = value if isinstance(value, int) else printable(str(value))
            header[name.replace(" ", "_")] = self.sizes.get(name, plain)  # sizes as numbers, not as their text
        return {
            "file": printable(self.file),
            "header": header,
            "shapes": self.shapes,
            "layers": [{name: _printable(value) for name, value in asdict(row).items()} for row in self.layers],
            "others": [{"path": printable(path), "value": printable(text)} for path, text in self.others],
            "tensors": [
                {"key": printable(row.key), "shape": list(row.shape), "type": row.type, **_plain_numbers(row.numbers)}
                for row in self.tensors
            ],
        }

    def tables(self) -> Iterator[tuple[str, list[str], list[list[str]]]]:
        """Yield title, column heads and rows of each table that has rows."""
        if self.layers:
            heads = ["layer", "class", "PyTorch", "output", "parameters", "shares"]
            yield "layers", heads, [_layer_cells(row) for row in self.layers]
        if self.tensors:
            heads = ["tensor", "shape", "type", *_STATISTICS]
            yield "tensors", heads, [_tensor_cells(row) for row in self.tensors]
        if self.others:
            rows = [[path, text] for path, text in self.others]
            if self.hidden:
                rows.append([f"… {self.hidden} more, --all shows them", ""])
            yield "else in the file", ["path", "value"], rows

    def _header_texts(self) -> Iterator[tuple[str, str]]:
        """Yield the names of the header and their values as text."""
        for name, value in self.header.items():
            yield name, f"{value:,}" if isinstance(value, int) else str(value)

    def lines(self, room: int = 0) -> Iterator[str]:
        """Yield the lines of the summary.

        Args:
            room: characters of a line of the terminal, for which wide columns of tables are cut; 0 for no limit.
        """
        width = max(map(len, self.header), default=0)
        for name, text in self._header_texts():
            yield printable(f"{name:{width}}  {text}")
        for title, heads, rows in self.tables():
            yield ""
            right_aligned = heads.index("parameters") if "parameters" in heads else None
            # Where a terminal is too narrow for all columns, these are left out, the first one first.
            optional = [heads.index(head) for head in ("PyTorch", "output") if head in heads]
            yield from _table([heads, *rows], right_aligned, room, optional)
            if title == "layers" and self.shapes:
                yield f"shapes: {self.shapes}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<Summary of {printable(self.file)[:80]}>"

    def _repr_html_(self) -> str:
        """Return the summary for a notebook: the header and each table as tables of HTML, the latter to be folded."""
        from html import escape

        def row(cells: list[str], tag: str) -> str:
            """Return a row of a table, whose cells are `td`, or `th` for heads."""
            style = "style='text-align:left;white-space:pre'"
            return "<tr>" + "".join(f"<{tag} {style}>{escape(printable(cell))}</{tag}>" for cell in cells) + "</tr>"

        head = "".join(row([name, text], "td") for name, text in self._header_texts())
        parts = [f"<b>{escape(printable(self.file))}</b><table>{head}</table>"]
        for title, heads, rows in self.tables():
            body = row(heads, "th") + "".join(row(cells, "td") for cells in rows)
            parts.append(f"<details open><summary>{title}</summary><table>{body}</table></details>")
        return "".join(parts)


def _printable(value: Any) -> Any:
    """Return a value with escapes for what a terminal obeys, if it is a text."""
    return printable(value) if isinstance(value, str) else value


def _layer_cells(row: LayerRow) -> list[str]:
    """Return the cells of a row of the table of layers, in the order of its heads."""
    indent = "  " * min(row.depth, 8)  # deeper rows leave no room for names
    repeat = f"  ×{row.repeat}" if row.repeat > 1 else ""
    parameters = f"{row.parameters:,}" if row.parameters else ""
    return [f"{indent}{row.name}{repeat}", row.class_name, row.torch, row.shape, parameters, row.shared]


# The keys of `statistics_of` that the table has columns for.
_STATISTICS = ("min", "max", "mean", "std", "zeros", "nan", "inf")


def _tensor_cells(row: TensorRow) -> list[str]:
    """Return the cells of a row of the table of tensors, in the order of its heads."""
    numbers = [_number(row.numbers[name]) if name in row.numbers else "" for name in _STATISTICS]
    return [row.key, extents(row.shape), row.type, *numbers]


def _plain_numbers(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics that JSON can hold: numbers, and lists of them."""
    return {name: value for name, value in numbers.items() if isinstance(value, (int, float, list))}


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _table(rows: list[list[str]], right_aligned: int | None, room: int, optional: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table.

    Args:
        rows: the cells of each row, the heads first.
        right_aligned: the column that is aligned at the right, 0-based; `None` for none.
        room: the width of the terminal, for which columns but the first and the last are cut; 0 without one.
        optional: columns that are left out, one after the other, where there is no room for all.
    """
    _, *rows_below_heads = rows
    is_last_empty = not any(row[-1] for row in rows_below_heads)
    if room and is_last_empty:  # its head would take room from the others
        rows = [row[:-1] for row in rows]
    texts = [[printable(cell) for cell in row] for row in rows]
    omitted = _columns_without_room(texts, right_aligned, room, optional)
    widths = _widths_of_columns(texts, right_aligned, room, omitted)
    for row in texts:
        cells: list[str] = []
        for place, (cell, width) in enumerate(zip(row, widths)):
            if place in omitted:
                continue
            text = _cut(cell, width)
            cells.append(text.rjust(width) if place == right_aligned else text.ljust(width))
        yield "  ".join(cells)[:_MOST_COLUMNS].rstrip()


def _columns_without_room(
    texts: list[list[str]], right_aligned: int | None, room: int, optional: Sequence[int]
) -> list[int]:
    """Return which of the optional columns have no room, however narrow others are.

    Args:
        texts: the cells of each row, the heads first.
        right_aligned: the column that is aligned at the right, and never cut; `None` for none.
        room: the width of the terminal; 0 without one.
        optional: the columns that may be left out, in the order in which they are.
    """
    omitted: list[int] = []
    if not room:
        return omitted
    for column in optional:
        widths = _widths_of_columns(texts, right_aligned, room, omitted)
        spaces = 2 * (len(widths) - len(omitted) - 1)
        if sum(widths) + spaces <= room:
            break
        omitted.append(column)
    return omitted


def _widths_of_columns(
    texts: list[list[str]], right_aligned: int | None, room: int, omitted: Sequence[int]
) -> list[int]:
    """Return the width of each column of a table, 0 for those that are omitted.

    The widest of the columns that may be cut is made narrower, again and again, until all fit in the room. The last
    one is as wide as its text: the line is cut there.

    Args:
        texts: the cells of each row, the heads first.
        right_aligned: the column that is aligned at the right, and never cut; `None` for none.
        room: the width of the terminal; 0 without one.
        omitted: the columns that are left out.
    """
    widths = [max(map(len, column)) for column in zip(*texts)]
    last = len(widths) - 1
    widths[:last] = [min(width, _WIDEST) for width in widths[:last]]
    narrowable = [place for place in range(1, last) if place != right_aligned and place not in omitted]
    for place in omitted:
        widths[place] = 0
    if omitted:
        narrowable.append(0)  # there is so little room that names are cut, too
    spaces = 2 * (last - len(omitted))  # two between columns
    while room and narrowable and sum(widths) + spaces > room:
        widest = max(narrowable, key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return widths


def _cut(text: str, width: int) -> str:
    """Return a text with at most so many characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


_LEVELS = 100
"""Levels that are indented further."""
_LETTERS = 1000
"""Characters of a string shown."""
_EXACT_INTEGERS = 2**53
"""Up to this number a double has each integer."""
_SETS = (set, frozenset)
_WITHOUT_IDENTITY = (tuple, frozenset)
"""Values that cannot change, so that it makes no difference which are one object: they have no number."""
_WITH_IDENTITY = (Holder, dict, list, set)
"""Values that have a number, which later places refer to; storages, which are shown by their tensors, have none."""


class _Shown:
    """The values that an outline has shown; where they occur again, it refers to them."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        """The number of each value with identity, by its identity here."""
        self._without_identity: set[int] = set()
        """Those without identity, by their identity here."""

    def text_of(self, value: Value) -> tuple[str, bool]:
        """Return a value in a few words, or as a reference to where it was shown.

        Returns:
            The text, and whether the value is new, so that what is inside it is to be shown.
        """
        words = summary(value)
        if isinstance(value, _WITHOUT_IDENTITY):
            if id(value) in self._without_identity:
                # Of an empty one, nothing was shown above.
                reference = f"{words}, shown above" if len(value) else words
                return reference, False
            self._without_identity.add(id(value))
        if isinstance(value, _WITH_IDENTITY) and not isinstance(value, Storage):
            if id(value) in self._numbers:
                return f"the same as #{self._numbers[id(value)]}", False
            self._numbers[id(value)] = len(self._numbers) + 1
            words += f"  #{len(self._numbers)}"
        return words, True


def outline(root: Value, *, depth: int, items: int) -> Iterator[str]:
    """Yield the lines of an outline: each value in a few words, and below it, indented, what is inside.

    Args:
        root: any value.
        depth: levels to show.
        items: entries to show of each table.
    """
    shown = _Shown()
    marks: dict[int, bytes] = {}
    """Of the items of sets, see `in_order`."""
    # Values to show, with their level and name, and whole lines; the next one last.
    stack: list[str | tuple[int, str, Value]] = [(0, "root", root)]
    while stack:
        entry = stack.pop()
        if isinstance(entry, str):
            yield entry
            continue
        level, name, value = entry
        text, is_new = shown.text_of(value)
        yield printable(f"{_indent(level)}{name}: {text}")
        # A tensor is shown without its storage: the words of a view say what part of it that is.
        if not is_new or isinstance(value, Tensor):
            continue
        inside = list(entries(value, marks))
        expanded = inside[:items] if level + 1 < depth else []
        if len(inside) > len(expanded):
            stack.append(f"{_indent(level + 1)}… {len(inside) - len(expanded)} more")
        for key, child in reversed(expanded):
            stack.append((level + 1, step_name(key).lstrip("."), child))


def _indent(level: int) -> str:
    """Return two spaces a level, up to a maximum: lines must not grow with the depth."""
    return "  " * min(level, _LEVELS)


def summary(value: Value) -> str:
    """Return a value in a few words: of a number or text itself, of others the class or type, and the size."""
    if isinstance(value, Tensor):
        return _tensor_summary(value)
    if isinstance(value, Storage):
        return f"{value.element.name} storage of {value.count}"
    class_name = class_of(value)
    if class_name is not None:
        return class_name
    if isinstance(value, LuaFunction):
        return f"function, {counted(len(value.code), 'byte')} of bytecode"
    if isinstance(value, (Table, dict, list, tuple, *_SETS)):
        return f"{type(value).__name__.lower()} of {len(value)}"
    if isinstance(value, (bytes, str)):
        return _text_summary(value)
    if isinstance(value, PythonObject):
        return f"{'module' if value.is_module else 'object of'} {value.path}"
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_INTEGERS:
        return str(int(value))  # without `.0`, as Lua prints it
    return "nil" if value is None else str(value)


def _tensor_summary(value: Tensor) -> str:
    """Return type, sizes, place in the storage (if it is not all of it) and device (if not the CPU) of a tensor."""
    shape = " x ".join(map(str, value.size)) or ("scalar" if value.is_scalar else "empty")
    where = f", on {value.device}" if value.device != "cpu" else ""
    view = ""
    if value.storage is not None and value.numel and (value.offset or value.storage.count != value.numel):
        view = f", view from {value.offset} of {value.storage.count}"
    return f"{value.element.name} tensor {shape}{view}{where}"


def _text_summary(value: bytes | str) -> str:
    """Return a string, cut where it is long; one of Lua as Python's literal, of text where it is UTF-8."""
    ending = f"… ({len(value)} in all)" if len(value) > _LETTERS else ""
    start = value[:_LETTERS]
    if isinstance(start, str):
        return start + ending
    try:
        # A cut may be inside a character, whose bytes are left out then.
        text = start.decode("utf-8", "ignore" if ending else "strict")
    except UnicodeDecodeError:
        return repr(start)
    return repr(text) + ending
