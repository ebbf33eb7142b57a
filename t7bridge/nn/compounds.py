"""What the modules inside a compound layer compute, as an expression: to recognize the layer by what it holds.

Lua builds some layers from many small ones, which people replace or change. Such a layer is computed at once only if
its modules together are the function that its constructor makes, however they are arranged. An expression is the name
of an input, a list of expressions (a table in Lua), or a `Node`. Patterns and what the small layers compute are in the
entries: see `InLua`. May import graph and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

from ..data import define
from ..errors import ModelError
from ..graph.lua import TorchObject, Value
from ..graph.storage import Storage
from .fields import Fields, items_of, lookup
from .graphs import graph_spec
from .mapping import Lua, ModuleSpec, NotMappedError, Row
from .registry import Children, in_lua, in_lua_of, layer_of, modules, stock_name, traits_of
from .walk import Domain, sequence

_PART = "part"
"""The layer of a `Node` that is one of the rows of its input."""
_MOST = 2_000
"""Maximum number of modules and elements visited; the largest compound has some hundred."""

Expression = Any


@define(frozen=True)
class Node:
    """The output of a layer.

    Attributes:
        layer: its class, with the package under which the table of layers has it: `nn.Tanh` for a `cudnn.Tanh`.
        options: those that matter, `None` for missing or false ones.
        path: its path in the compound, as for `lookup`; in a pattern a name for it, or empty.
        input: the expression of its input.
    """

    layer: str
    options: tuple[Any, ...]
    path: str
    input: Expression


def node(layer: str, input: Expression, *options: Any, path: str = "") -> Node:
    """Return a node of a pattern."""
    return Node(layer, options, path, input)


def part(input: Expression, at: int) -> Node:
    """Return one row of a value, 0-based, in a pattern."""
    return Node(_PART, (at,), "", input)


def recognized(obj: TorchObject, start: str, inputs: Expression, pattern: Expression) -> dict[str, str] | None:
    """Compare what the module at a path computes with a pattern.

    Args:
        obj: the compound.
        start: the path of the module in it; empty for the compound itself, as a Sequential.
        inputs: its input.
        pattern: the output.

    Returns:
        The paths of the modules that have a name in the pattern; `None` if something else is computed.
    """
    try:
        found = Expressions().output(lookup(obj, start) if start else obj, start, inputs)
    except (LookupError, ModelError, TypeError, ValueError, RecursionError):
        return None
    return _match(pattern, found, {})


def require(lua: Lua, start: str, pattern: Expression, inputs: Expression = "x") -> None:
    """Check that the module at a path computes what the constructor of its layer made it compute.

    Raises:
        NotMappedError: somebody changed it. A missing one is as it was made.
    """
    if lua.has(start) and recognized(lua.obj, start, inputs, pattern) is None:
        raise NotMappedError("its modules inside were changed", path=f"{lua.path}.{start}")


class Expressions(Domain[Expression]):
    """Passes an expression through the modules of a compound.

    What cannot be said, or a module that is not used as it should be, raises `LookupError`.
    """

    def __init__(self) -> None:
        self._left = _MOST

    def output(self, module: Value, path: str, value: Expression) -> Expression:
        """Return what a module computes.

        Args:
            module: the module.
            path: its path in the compound; empty for the compound itself, as a Sequential.
            value: its input.
        """
        self._spend(1)
        if not isinstance(module, TorchObject) or not stock_name(module):
            raise LookupError("not a module of nn")
        if not path:
            return sequence(_spec(module, path, modules), value, self)
        layer = layer_of(module.class_name)
        row = layer.module_of(module.class_name) if layer is not None else None
        if layer is not None and isinstance(row, Row):
            facts = traits_of(row.target)
            if facts.flow is not None and (facts.transparent or facts.written == ("flow",)):
                spec = _spec(module, path, layer.children)
                call = row(Lua(module, "", layer.defaults))
                spec.args, spec.kwargs = call.args, call.kwargs
                spec.graph = graph_spec(module, path) if facts.is_graph else None
                return facts.flow(spec, value, self)
        return self._layer(module, path, value)

    def _layer(self, module: TorchObject, path: str, value: Expression) -> Expression:
        """Return what a layer computes."""
        facts = in_lua_of(module)
        fields = Fields(module)
        options = tuple(self._plain(fields.get(name)) for name in facts.options)
        computed = Node(facts.like or stock_name(module), options, path, value)
        return computed if facts.expressed is None else facts.expressed(fields, computed)

    def _plain(self, value: Value) -> Any:
        """Return the value of an option that can be compared; false is the same as missing."""
        self._spend(1)
        if isinstance(value, Storage):
            return tuple(value.array.tolist())
        items = items_of(value)
        if items is not None:
            return tuple(map(self._plain, items))
        return None if value is False else value

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise LookupError("too many modules")

    # The domain

    def tensor(self) -> Expression:
        """Refuse a tensor of which nothing is known."""
        raise LookupError("not known")

    def items(self, values: Sequence[Expression]) -> Expression:
        """Return a list."""
        self._spend(len(values))
        return list(values)

    def many(self, values: Sequence[Expression]) -> Expression:
        """Refuse a list of unknown length."""
        raise LookupError("a list of unknown length")

    def item(self, value: Expression, index: int, dim: int | None = None) -> Expression:
        """Return an element of a list."""
        if dim is not None:
            raise LookupError("a slice")
        self._spend(1)
        return _listed(value)[index]

    def elements(self, value: Expression, count: int) -> list[Expression]:
        """Return the elements of a list, which must be as many."""
        if len(_listed(value)) != count:
            raise LookupError("another number of elements")
        return _listed(value)

    def length(self, value: Expression, dim: int | None = None) -> int | None:
        """Return the number of elements of a list."""
        if dim is not None:
            raise LookupError("slices")
        return len(_listed(value))

    def is_list(self, value: Expression) -> bool | None:
        """Return whether a value is a list."""
        return isinstance(value, list)

    def concat(self, values: Sequence[Expression], dim: int, *, pads: bool = False) -> Expression:
        """Refuse tensors that follow one another."""
        raise LookupError("joined")

    def merge(self, value: Expression, dims: int, apply: Callable[[Expression], Expression]) -> Expression:
        """Refuse other dimensions."""
        raise LookupError("other dimensions")

    def call(self, spec: ModuleSpec, child: str, value: Expression, node: int | None = None) -> Expression:
        """Return what a module inside computes."""
        inside = spec.children[child]
        return self.output(inside.obj, inside.path, value)


def _spec(module: TorchObject, path: str, children: Children | None) -> ModuleSpec:
    """Return a container as a flow reads it; of the modules inside only objects and paths are known."""
    inside: dict[str, ModuleSpec] = {}
    for child in children(module) if children is not None else ():
        # Two modules have one name only in damaged files.
        if child.name in inside or not isinstance(child.value, TorchObject):
            raise LookupError("not a module")
        inside[child.name] = ModuleSpec("", obj=child.value, path=_below(path, child.path))
    return ModuleSpec("", children=inside, obj=module)


def _listed(value: Expression) -> list[Expression]:
    if not isinstance(value, list):
        raise LookupError("not a list")
    return value


def _below(path: str, step: str) -> str:
    return f"{path}{step}".replace("[", ".").replace("]", "").lstrip(".")


def _match(pattern: Expression, found: Expression, names: dict[str, str]) -> dict[str, str] | None:
    """Return the named paths if an expression is that of a pattern; the order of sums and products is free."""
    if isinstance(pattern, list):
        if not isinstance(found, list) or len(pattern) != len(found):
            return None
        known: dict[str, str] | None = names
        for one, other in zip(pattern, found):
            known = None if known is None else _match(one, other, known)
        return known
    if not isinstance(pattern, Node):
        return names if isinstance(found, str) and pattern == found else None
    if not isinstance(found, Node) or (pattern.layer, pattern.options) != (found.layer, found.options):
        return None
    if pattern.path:
        if names.get(pattern.path, found.path) != found.path:
            return None
        names = {**names, pattern.path: found.path}
    if in_lua(pattern.layer).commutes and isinstance(found.input, list) and len(found.input) == len(pattern.input) <= 3:
        tried = (_match(pattern.input, list(order), names) for order in permutations(found.input))
        return next((each for each in tried if each is not None), None)
    return _match(pattern.input, found.input, names)
