"""Example inputs of a model: shapes and types, lists of them for Lua's tables; `conversion.inputs` reads their text."""

from __future__ import annotations

from typing import TypeAlias, Union

from attrs import field

from ..data import define
from ..graph.tensor import Tensor


@define(frozen=True, eq=False)
class Example:
    """One example input.

    Attributes:
        name: its name in the exported file.
        shape: its sizes, the batch first.
        dtype: `float32` and the like; empty for that of the model's parameters.
        bounds: smallest and largest of its whole numbers; by default normal numbers, or indices that the model has.
        value: the tensor, if a file holds it; otherwise random numbers are used.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = ""
    bounds: tuple[int, int] | None = None
    value: Tensor | None = field(default=None, repr=False)


Examples: TypeAlias = Union[Example, "list[Examples]"]
"""The input of a model: one, or a list for a Lua table, with nested lists for tables in it."""
