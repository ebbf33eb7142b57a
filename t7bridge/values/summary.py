"""A one-screen summary of a file, as data: header, layers, and other content. `tools.inspect` fills it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from attrs import asdict, field

from ..data import define
from ..graph.show import extents
from ..text import printable

_WIDEST = 34
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
        output: shapes of its last output.
        parameters: number of learned elements, including those of its children.
        shared: the key whose weights it shares, or of the module that it repeats.
        repeat: number of consecutive repetitions.
    """

    depth: int
    name: str
    path: str = ""
    key: str = ""
    class_name: str = ""
    torch: str = ""
    output: str = ""
    parameters: int = 0
    shared: str = ""
    repeat: int = 1


@define(frozen=True)
class TensorRow:
    """Statistics of one tensor.

    Attributes:
        key: in the state dict, or path in the file.
        shape: its sizes.
        type: of its elements.
        numbers: the result of `t7bridge.values.statistics.statistics_of`.
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
        hidden: number of lines of `others` left out.
    """

    file: str
    header: dict[str, Any] = field(factory=dict)
    layers: list[LayerRow] = field(factory=list)
    others: list[tuple[str, str]] = field(factory=list)
    tensors: list[TensorRow] = field(factory=list)
    shapes: str = ""
    hidden: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data, whose texts are escaped for terminals."""
        return {
            "file": printable(self.file),
            "header": {
                name: value if isinstance(value, int) else printable(str(value)) for name, value in self.header.items()
            },
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
                        row.output,
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

    def lines(self) -> Iterator[str]:
        """Yield the lines of the summary."""
        width = max(map(len, self.header), default=0)
        for name, value in self.header.items():
            yield printable(f"{name:{width}}  {value:,}" if isinstance(value, int) else f"{name:{width}}  {value}")
        for title, heads, rows in self.tables():
            yield ""
            yield from _table([heads, *rows], number_columns={"parameters"} & set(heads) and heads.index("parameters"))
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

        head = "".join(row([name, str(value)], "td") for name, value in self.header.items())
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


def _table(rows: list[list[str]], number_columns: Any = None) -> Iterator[str]:
    """Yield rows in columns, cells cut to a width; the last column is not."""
    last = len(rows[0]) - 1
    texts = [
        [printable(cell) if place == last else _cut(printable(cell)) for place, cell in enumerate(row)] for row in rows
    ]
    widths = [max(len(row[place]) for row in texts) for place in range(len(rows[0]))]
    for row in texts:
        cells = [
            cell.rjust(width) if place == number_columns and number_columns else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths))
            if width
        ]
        yield "  ".join(cells)[:400].rstrip()


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
