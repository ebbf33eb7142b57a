"""Traced modules as data: lists of ATen calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import field

from ..data import define

Shape = tuple[Any, ...]
"""Extents: integers, and text for those that depend on the batch size."""

VIEWS = frozenset(
    (
        *("alias", "chunk", "detach", "dropout", "expand", "feature_dropout", "flatten", "getitem", "mT", "narrow"),
        *("permute", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind"),
        *("unflatten", "unsqueeze", "value", "view", "view_as"),
    )
)
"""Names of operations whose result shares the memory of their first argument."""


@define(frozen=True)
class CallRef:
    """The value of another call, by its name."""

    name: str


@define(frozen=True)
class DynamicExtent:
    """An integer that depends on the inputs: the batch size, or a number computed from it."""

    text: str


@define(eq=False)
class TracedCall:
    """One operation.

    Attributes:
        name: of its value.
        op: `aten.relu.default`, `operator.getitem`.
        target: the operation itself, to fold constants.
        args: all arguments of its schema by name, defaults included, with `CallRef` and `DynamicExtent` inside.
        shape: of its value; a tuple of shapes where it returns several.
        stack: the module calls it belongs to, outermost first: key of the call and path of the module.
        line: where the user's source calls it.
        origin: the operation that the source calls, if this is a part of its decomposition.
        dtype: of its value: `float32`, empty where it is not a tensor.
    """

    name: str
    op: str
    target: Any = field(repr=False)
    args: dict[str, Any] = field(factory=dict)
    shape: Any = ()
    stack: tuple[str, ...] = ()
    line: str = ""
    origin: str = ""
    dtype: str = ""

    @property
    def inplace(self) -> bool:
        """Whether it changes its first argument: its name ends in one underscore."""
        base = self.op.split(".")[1]
        return self.op.startswith("aten.") and base.endswith("_") and not base.endswith("__")

    @property
    def table_name(self) -> str:
        """The name of the operation that computes the same, and changes nothing in place."""
        return self.op.replace("_.", ".", 1) if self.inplace else self.op

    @property
    def source(self) -> str:
        """The name of the first argument, if it is the value of another call."""
        first = next(iter(self.args.values()), None)
        return first.name if isinstance(first, CallRef) else ""

    @property
    def is_view(self) -> bool:
        """Whether its result shares the memory of its first argument; so does that of a dropout in evaluation."""
        return self.op.split(".")[1] in VIEWS


@define(eq=False)
class Program:
    """A traced module.

    Attributes:
        inputs: name, shape and element type of each input.
        stored: name of a value → key in the state dict, and whether it is a parameter and not a buffer.
        buffers: name of a value → name of the buffer, of all buffers.
        constants: name of a value → tensor, of other constants, and of buffers that are not floating or not saved.
        calls: in order.
        dtypes: name of a value → its element type.
        outputs: names of the values returned; anything but a tensor is stored itself.
        returns: how the outputs were packed: `one`, `list` or `dict`.
        output_names: keys of a returned dict.
        state: the state dict: key → array, in order; tied tensors under their first key.
        order: all keys of the state dict, in order.
        aliases: other keys of tied tensors → first key.
        static: whether the size of the batch is fixed.
        single: whether the example is a batch of one.
        classes: path of a module → its class.
        dropouts: path of a module that drops out inside one operation → its class and probability.
        cumulative: paths of batch normalizations that average cumulatively.
        notes: path, class and text of what Lua does otherwise.
    """

    inputs: list[tuple[str, Shape, str]] = field(factory=list)
    stored: dict[str, tuple[str, bool]] = field(factory=dict)
    buffers: dict[str, str] = field(factory=dict)
    constants: dict[str, Any] = field(factory=dict)
    calls: list[TracedCall] = field(factory=list)
    dtypes: dict[str, str] = field(factory=dict)
    outputs: list[Any] = field(factory=list)
    returns: str = "one"
    output_names: list[str] = field(factory=list)
    state: dict[str, Any] = field(factory=dict)
    order: list[str] = field(factory=list)
    aliases: dict[str, str] = field(factory=dict)
    static: bool = False
    single: bool = False
    classes: dict[str, str] = field(factory=dict)
    dropouts: dict[str, tuple[str, float]] = field(factory=dict)
    cumulative: set[str] = field(factory=set)
    notes: list[tuple[str, str, str]] = field(factory=list)


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return nested lists, tuples, slices and dicts with a function applied to everything else."""
    if isinstance(value, (list, tuple)):
        return [mapped(item, function) for item in value]
    if isinstance(value, dict):
        return {name: mapped(item, function) for name, item in value.items()}
    if isinstance(value, slice):
        return slice(*(mapped(item, function) for item in (value.start, value.stop, value.step)))
    return function(value)


def leaves(value: Any) -> Iterator[Any]:
    """Yield everything inside nested lists and dicts."""
    if isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value
