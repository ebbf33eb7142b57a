"""What is in a file, on one screen: header, layers, other content; an indented outline."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from attrs import asdict, field

from ..data import define
from ..graph.lua import LuaFunction, Table, Value, class_of
from ..graph.python import PythonObject, in_order
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import entries, step_name
from ..text import Holder, extents, printable

_WIDEST, _NARROWEST = 34, 10
"""Characters of a cell on a terminal."""


@define(frozen=True)
class LayerRow:
    """One line of the table of layers.

    Attributes:
        depth: number of containers of the table around it.
        name: in its container; of repeated layers the first and the last.
        path: in the file.
        key: in the state dict.
        class_name: in the file.
        torch: its PyTorch class with the arguments that are not defaults.
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
        """Shapes of the output, or of the first weight of a row without a class, as text."""
        named = [] if self.output or self.torch else list(self.weights.items())
        return ", ".join([*map(extents, self.output), *(f"{name} {extents(shape)}" for name, shape in named[:1])])


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
        return {
            "file": printable(self.file),
            "header": {
                name.replace(" ", "_"): self.sizes.get(name, value if isinstance(value, int) else printable(str(value)))
                for name, value in self.header.items()
            },
            "shapes": self.shapes,
            "layers": [{name: _plain(value) for name, value in asdict(row).items()} for row in self.layers],
            "others": [{"path": printable(path), "value": printable(text)} for path, text in self.others],
            "tensors": [
                {"key": printable(row.key), "shape": list(row.shape), "type": row.type, **_finite(row.numbers)}
                for row in self.tensors
            ],
        }

    def tables(self) -> Iterator[tuple[str, list[str], list[list[str]]]]:
        """Yield title, column heads and rows of each table that has rows."""
        if self.layers:
            yield (
                "layers",
                ["layer", "class", "PyTorch", "output", "parameters", "shares"],
                [
                    [
                        "  " * min(row.depth, 8) + row.name + (f"  ×{row.repeat}" if row.repeat > 1 else ""),
                        row.class_name,
                        row.torch,
                        row.shape,
                        f"{row.parameters:,}" if row.parameters else "",
                        row.shared,
                    ]
                    for row in self.layers
                ],
            )
        if self.tensors:
            names = ("min", "max", "mean", "std", "zeros", "nan", "inf")
            yield (
                "tensors",
                ["tensor", "shape", "type", *names],
                [
                    [row.key, extents(row.shape), row.type]
                    + [_number(row.numbers[name]) if name in row.numbers else "" for name in names]
                    for row in self.tensors
                ],
            )
        if self.others:
            rest = [[f"… {self.hidden} more, --all shows them", ""]] if self.hidden else []
            yield "else in the file", ["path", "value"], [[path, text] for path, text in self.others] + rest

    def _facts(self) -> Iterator[tuple[str, str]]:
        for name, value in self.header.items():
            yield name, f"{value:,}" if isinstance(value, int) else str(value)

    def lines(self, room: int = 0) -> Iterator[str]:
        """Yield the lines of the summary; wide columns are cut where `room` has no place for all."""
        width = max(map(len, self.header), default=0)
        for name, text in self._facts():
            yield printable(f"{name:{width}}  {text}")
        for title, heads, rows in self.tables():
            yield ""
            number = heads.index("parameters") if "parameters" in heads else 0
            yield from _table([heads, *rows], number, room)
            if title == "layers" and self.shapes:
                yield f"shapes: {self.shapes}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return f"<Summary of {printable(self.file)[:80]}>"

    def _repr_html_(self) -> str:
        def row(cells: list[str], tag: str) -> str:
            style = "style='text-align:left;white-space:pre'"
            return "<tr>" + "".join(f"<{tag} {style}>{escape(printable(cell))}</{tag}>" for cell in cells) + "</tr>"

        head = "".join(row([name, text], "td") for name, text in self._facts())
        parts = [f"<b>{escape(printable(self.file))}</b><table>{head}</table>"]
        for title, heads, rows in self.tables():
            body = row(heads, "th") + "".join(row(cells, "td") for cells in rows)
            parts.append(f"<details open><summary>{title}</summary><table>{body}</table></details>")
        return "".join(parts)


def _plain(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value


def _finite(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in numbers.items() if isinstance(value, (int, float, list))}


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _table(rows: list[list[str]], number: int = 0, room: int = 0) -> Iterator[str]:
    """Yield rows in columns, cells cut to a width, and to what fits in `room`; the last column is not."""
    if room and not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    texts = [[printable(cell) for cell in row] for row in rows]
    last = len(rows[0]) - 1
    widths = [max(len(row[place]) for row in texts) for place in range(last)]
    widths = [min(width, _WIDEST) for width in widths] + [max(len(row[last]) for row in texts)]
    inner = [place for place in range(1, last) if place != number]
    while room and sum(widths) + 2 * last > room and max((widths[place] for place in inner), default=0) > _NARROWEST:
        widths[max(inner, key=widths.__getitem__)] -= 1
    for row in texts:
        cells = [
            _cut(cell, width).rjust(width) if place == number != 0 else _cut(cell, width).ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths))
            if width
        ]
        yield "  ".join(cells)[:400].rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


_LEVELS = 100
"""Levels that are indented further."""
_LETTERS = 1000
"""Characters of a string shown."""
_SETS = (set, frozenset)
_UNNUMBERED = (tuple, frozenset)
"""Values without identity: each is expanded once, however many places share it."""
_NUMBERED = (Holder, dict, list, set)
"""Values with identity: each has a number, which later places refer to."""


def outline(root: Value, *, depth: int, items: int) -> Iterator[str]:
    """Yield the lines of an outline.

    Args:
        root: any value.
        depth: levels to show.
        items: entries to show of each table.
    """
    numbers: dict[int, int] = {}
    shown: set[int] = set()
    marks: dict[int, bytes] = {}
    stack: list[str | tuple[int, str, Value]] = [(0, "root", root)]
    while stack:
        entry = stack.pop()
        if isinstance(entry, str):
            yield entry
            continue
        level, name, value = entry
        if isinstance(value, _UNNUMBERED):
            if id(value) in shown:
                yield printable(f"{_indent(level)}{name}: {summary(value)}{', shown above' if len(value) else ''}")
                continue
            shown.add(id(value))
        again = numbers.get(id(value)) if isinstance(value, _NUMBERED) and not isinstance(value, Storage) else None
        if again is not None:
            yield printable(f"{_indent(level)}{name}: the same as #{again}")
            continue
        mark = ""
        if isinstance(value, _NUMBERED) and not isinstance(value, Storage):
            numbers[id(value)] = len(numbers) + 1
            mark = f"  #{len(numbers)}"
        yield printable(f"{_indent(level)}{name}: {summary(value)}{mark}")
        if isinstance(value, (Tensor, Storage)):
            continue
        inside = list(_inside(value, marks))
        expanded = inside[:items] if level + 1 < depth else []
        if len(inside) > len(expanded):
            stack.append(f"{_indent(level + 1)}… {len(inside) - len(expanded)} more")
        stack.extend((level + 1, step.lstrip("."), child) for step, child in reversed(expanded))


def _indent(level: int) -> str:
    """Return two spaces a level, up to a maximum: lines must not grow with the depth."""
    return "  " * min(level, _LEVELS)


def _inside(value: Value, marks: dict[int, bytes]) -> Iterator[tuple[str, Value]]:
    """Yield the values directly inside a value; of a set, its items, ordered by `in_order` with the marks."""
    if isinstance(value, _SETS):
        return (("{}", item) for item in in_order(value, marks))
    return ((step_name(key), item) for key, item in entries(value))


def summary(value: Value) -> str:
    """Return a value in a few words."""
    if isinstance(value, Tensor):
        return _tensor_summary(value)
    if isinstance(value, Storage):
        return f"{value.element.name} storage of {value.count}"
    if (name := class_of(value)) is not None:
        return name
    if isinstance(value, LuaFunction):
        return f"function, {len(value.code)} bytes of bytecode"
    if isinstance(value, (Table, dict, list, tuple, *_SETS)):
        return f"{type(value).__name__.lower()} of {len(value)}"
    if isinstance(value, (bytes, str)):
        return _text_summary(value)
    if isinstance(value, PythonObject):
        return f"{'module' if value.is_module else 'object of'} {value.path}"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return "nil" if value is None else str(value)


def _tensor_summary(value: Tensor) -> str:
    shape = " x ".join(map(str, value.size)) or ("scalar" if value.is_scalar else "empty")
    where = f", on {value.device}" if value.device != "cpu" else ""
    view = ""
    if value.storage is not None and value.numel and (value.offset or value.storage.count != value.numel):
        view = f", view from {value.offset} of {value.storage.count}"
    return f"{value.element.name} tensor {shape}{view}{where}"


def _text_summary(value: bytes | str) -> str:
    """Return a string, cut where it is long; Lua's as Python writes it, as text where it is UTF-8."""
    cut = f"… ({len(value)} in all)" if len(value) > _LETTERS else ""
    shown = value[:_LETTERS]
    if isinstance(shown, bytes):
        text = shown.decode("utf-8", "ignore" if cut else "surrogateescape")
        whole = cut or not any("\ud800" <= char <= "\udfff" for char in text)
        return (repr(text) if whole else repr(shown)) + cut
    return shown + cut
