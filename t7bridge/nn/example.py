"""Example inputs of a model: shapes and types, lists of them for Lua's tables, and their form as text.

As text: `1x3x224x224`, `image=1x20:int64`, and tables of them in brackets.
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias, Union

from attrs import field

from ..data import define
from ..errors import ModelError
from ..graph.tensor import Tensor


@define(frozen=True, eq=False)
class Example:
    """One example input.

    Attributes:
        name: its name in the exported file.
        shape: its sizes, the batch first.
        dtype: `float32` and the like; empty for that of the model's parameters.
        value: the tensor, if a file holds it; otherwise random numbers are used.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = ""
    value: Tensor | None = field(default=None, repr=False)


Examples: TypeAlias = Union[Example, "list[Examples]"]
"""The input of a model: one, or a list for a Lua table, with nested lists for tables in it."""


_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?\Z", re.ASCII)
_TOKEN = re.compile(r"\s*([\[\],]|[^\[\],]+)")
_DEEPEST = 32
"""Levels of tables in tables: far more than any model takes."""

EXPECTED = "1x3x224x224, image=1x3x224x224, 1x20:int64, [1x4,1x4] for a table, or a file such as in.t7"


def parse_shapes(text: str) -> Examples:
    """Read the shape of an input, or of each input in the table that a model takes.

    Raises:
        ModelError: the text is neither.
    """
    return _brackets(text) if text.lstrip().startswith("[") else _leaf(text)


def is_shape(text: str) -> bool:
    """Return whether a text is one shape, with a name and a type or without."""
    return _INPUT.match(text) is not None


def _leaf(text: str) -> Example:
    match = _INPUT.match(text.strip())
    shape = tuple(int(size) for size in match["shape"].split("x")) if match and len(match["shape"]) < 400 else ()
    if match is None or not shape or not all(shape) or math.prod(shape) > 1 << 40:
        raise ModelError("an input is not a shape", found=repr(text[:60]), expected=EXPECTED)
    return Example(match["name"] or "", shape, match["dtype"] or "")


def _brackets(text: str) -> Examples:
    levels: list[list[Examples]] = [[]]
    wants = True  # an element or a closing bracket, and not a comma
    end = 0
    for token in _TOKEN.finditer(text):
        end, part = token.end(), token[1].strip()
        if part == "[" and wants and len(levels) <= _DEEPEST and not (len(levels) == 1 and levels[0]):
            levels.append([])
        elif part == "]" and len(levels) > 1 and (not wants or not levels[-1]):
            made = levels.pop()
            levels[-1].append(made)
            wants = False
        elif part == "," and not wants and len(levels) > 1:
            wants = True
        elif part and part not in "[]," and wants and len(levels) > 1:
            levels[-1].append(_leaf(part))
            wants = False
        elif part:
            break
    else:
        if len(levels) == 1 and end == len(text.rstrip()):
            return levels[0][0]
    raise ModelError("the brackets of an input do not fit", found=repr(text[:60]), expected=EXPECTED)
