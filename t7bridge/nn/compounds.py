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
from .walk import Domain, Flow, sequence

_ROW = "row"
"""The layer of a `Node` that is one of the rows of its input, not the output of a layer of Lua."""
_MOST_STEPS = 2_000
"""Maximum number of modules and elements visited; the largest compound has some hundred."""
_MOST_PERMUTED = 3
"""Maximum number of inputs of a sum or product that are compared in any order; there are six orders of three."""

Expression = Any
"""The name of an input, a list of expressions, or a `Node`."""


@define(frozen=True)
class Node:
    """The output of a layer.

    Attributes:
        layer: its class, with the package under which the table of layers has it: `nn.Tanh` for a `cudnn.Tanh`.
        options: those that matter, by the names of their fields, without missing or false ones.
        path: its path in the compound, as for `lookup`; in a pattern a name for it, or empty.
        input: the expression of its input.
    """

    layer: str
    options: dict[str, Any]
    path: str
    input: Expression


def node(layer: str, input: Expression, *, name: str = "", **options: Any) -> Node:
    """Return the output of a layer, in a pattern.

    Args:
        layer: its full class name in Lua.
        input: the expression of its input.
        name: a name for the layer, by which `recognized` returns its path; empty if nobody asks for it.
        **options: the values of those fields that its entry lists in `InLua.options`; the others are missing or false.
            Dimensions are 1-based, and numbers floats, as in Lua.
    """
    present = {field: value for field, value in options.items() if value is not None}
    return Node(layer, present, path=name, input=input)


def row_of(input: Expression, number: int) -> Node:
    """Return one row of a value, 0-based, in a pattern."""
    return Node(_ROW, {"number": number}, path="", input=input)


def recognized(obj: TorchObject, start: str, inputs: Expression, pattern: Expression) -> dict[str, str] | None:
    """Compare what the module at a path computes with a pattern.

    Args:
        obj: the compound.
        start: the path of the module in it; empty for the compound itself, as a Sequential.
        inputs: the input of this module.
        pattern: the expression that its output should be.

    Returns:
        The paths of the modules that have a name in the pattern, by these names; `None` if something else is computed.
    """
    module = lookup(obj, start) if start else obj
    try:
        output = Expressions().output(module, start, inputs)
    # A layer that no expression says, damaged fields, or modules nested too deep.
    except (LookupError, ModelError, TypeError, ValueError, RecursionError):
        return None
    return _match(pattern, output, {})


def require(lua: Lua, start: str, pattern: Expression, inputs: Expression = "x") -> None:
    """Check that the module at a path computes what the constructor of its layer made it compute.

    Args:
        lua: the layer.
        start: the path of the module in it; nothing is checked if the file does not have the module.
        pattern: the expression that its output should be.
        inputs: its input, as an expression.

    Raises:
        NotMappedError: a program changed it.
    """
    if lua.has(start) and recognized(lua.obj, start, inputs, pattern) is None:
        raise NotMappedError("its modules inside were changed", path=f"{lua.path}.{start}")


class Expressions(Domain[Expression]):
    """The domain whose values are expressions: it says what the modules of a compound compute together.

    What no expression can say raises `LookupError`, as does a compound with too many modules.
    """

    def __init__(self) -> None:
        self._steps_left = _MOST_STEPS

    def output(self, module: Value, path: str, value: Expression) -> Expression:
        """Return what a module computes.

        Args:
            module: the module.
            path: its path in the compound; empty for the compound itself, as a Sequential.
            value: its input.

        Raises:
            LookupError: no expression says it, or too many modules were visited.
        """
        self._spend(1)
        if not isinstance(module, TorchObject) or not stock_name(module):
            raise LookupError("not a module of nn")
        if not path:
            return sequence(_container(module, path, modules), value, self)
        container_and_flow = _container_with_flow(module, path)
        if container_and_flow is None:
            return self._layer(module, path, value)
        container, flow = container_and_flow
        return flow(container, value, self)

    def _layer(self, module: TorchObject, path: str, value: Expression) -> Expression:
        """Return what a layer without modules computes: a node, unless its entry says it otherwise.

        Args:
            module: the layer.
            path: its path in the compound.
            value: its input.
        """
        facts = in_lua_of(module)
        fields = Fields(module)
        options: dict[str, Any] = {}
        for name in facts.options:
            option = self._plain(fields.get(name))
            if option is not None:
                options[name] = option
        output = Node(facts.like or stock_name(module), options, path, input=value)
        return output if facts.expressed is None else facts.expressed(fields, output)

    def _plain(self, value: Value) -> Any:
        """Return the value of an option in a form that can be compared; false is the same as missing in Lua."""
        self._spend(1)
        if isinstance(value, Storage):
            return tuple(value.array.tolist())
        items = items_of(value)
        if items is not None:
            return tuple(map(self._plain, items))
        return None if value is False else value

    def _spend(self, steps: int) -> None:
        """Count steps.

        Raises:
            LookupError: there are too many.
        """
        self._steps_left -= steps
        if self._steps_left < 0:
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


def _container_with_flow(module: TorchObject, path: str) -> tuple[ModuleSpec, Flow] | None:
    """Return a container as its flow reads it, and the flow; `None` for a layer, or a class that does more than that.

    Args:
        module: a module of nn.
        path: its path in the compound.

    Raises:
        LookupError: something inside is no module.
        ModelError: its fields are damaged.
    """
    layer = layer_of(module.class_name)
    row = layer.module_of(module.class_name) if layer is not None else None
    if layer is None or not isinstance(row, Row):
        return None
    facts = traits_of(row.target)
    # A class that is written by its flow does nothing else either, if no module inside keeps a state.
    follows_flow = facts.transparent or facts.written == ("flow",)
    if facts.flow is None or not follows_flow:
        return None
    spec = _container(module, path, layer.children)
    call = row(Lua(module, path="", defaults=layer.defaults))
    spec.args = call.args
    spec.kwargs = call.kwargs
    spec.graph = graph_spec(module, path) if facts.is_graph else None
    return spec, facts.flow


def _container(module: TorchObject, path: str, children: Children | None) -> ModuleSpec:
    """Return a container as a flow reads it; of the modules inside only objects and paths are known.

    Args:
        module: the container.
        path: its path in the compound.
        children: finds the modules inside; `None` if there are none.

    Raises:
        LookupError: something inside is no module.
    """
    inside: dict[str, ModuleSpec] = {}
    for child in children(module) if children is not None else ():
        # Two modules have one name only in damaged files.
        if child.name in inside or not isinstance(child.value, TorchObject):
            raise LookupError("not a module")
        inside[child.name] = ModuleSpec(target="", obj=child.value, path=_joined_path(path, child.path))
    return ModuleSpec(target="", children=inside, obj=module)


def _listed(value: Expression) -> list[Expression]:
    if not isinstance(value, list):
        raise LookupError("not a list")
    return value


def _joined_path(path: str, step: str) -> str:
    """Return the path of a child as `lookup` reads it: `net.modules.1` for the path `net`, the step `.modules[1]`."""
    return f"{path}{step}".replace("[", ".").replace("]", "").lstrip(".")


def _match(pattern: Expression, expression: Expression, paths: dict[str, str]) -> dict[str, str] | None:
    """Compare an expression with a pattern; the order of sums and products is free.

    Args:
        pattern: an expression whose nodes have names in the place of paths, or none.
        expression: what modules compute.
        paths: those of the modules that have a name in the pattern, as far as they are known, by these names.

    Returns:
        All such paths, `None` if the expression is another one. A name is one module wherever it occurs.
    """
    if isinstance(pattern, list):
        return _match_lists(pattern, expression, paths)
    if isinstance(pattern, Node):
        return _match_nodes(pattern, expression, paths)
    is_same_input = isinstance(expression, str) and pattern == expression
    return paths if is_same_input else None


def _match_lists(pattern: list[Expression], expression: Expression, paths: dict[str, str]) -> dict[str, str] | None:
    """Compare an expression with a list of patterns, element by element.

    Args:
        pattern: the list.
        expression: what modules compute.
        paths: those of modules that have a name in the pattern, as far as they are known, by these names.

    Returns:
        `paths` with those found in the list; `None` if the expression is no list of such elements.
    """
    if not isinstance(expression, list) or len(pattern) != len(expression):
        return None
    for part_of_pattern, element in zip(pattern, expression):
        matched = _match(part_of_pattern, element, paths)
        if matched is None:
            return None
        paths = matched
    return paths


def _match_nodes(pattern: Node, expression: Expression, paths: dict[str, str]) -> dict[str, str] | None:
    """Compare an expression with the output of a layer, by the layer and by its input.

    Args:
        pattern: the layer and its input.
        expression: what modules compute.
        paths: those of modules that have a name in the pattern, as far as they are known, by these names.

    Returns:
        `paths` with those of this layer and of its input; `None` if the expression is another one.
    """
    if not isinstance(expression, Node):
        return None
    if (pattern.layer, pattern.options) != (expression.layer, expression.options):
        return None
    if pattern.path:
        # A name that the pattern has at several places is one module.
        if paths.get(pattern.path, expression.path) != expression.path:
            return None
        paths = {**paths, pattern.path: expression.path}
    if in_lua(pattern.layer).commutes and _can_permute(pattern.input, expression.input):
        return _match_in_any_order(pattern.input, expression.input, paths)
    return _match(pattern.input, expression.input, paths)


def _match_in_any_order(
    pattern: list[Expression], inputs: list[Expression], paths: dict[str, str]
) -> dict[str, str] | None:
    """Compare the inputs of a sum or product, at most `_MOST_PERMUTED`, with patterns, in every order.

    See `_match_lists` for arguments and result.
    """
    for permuted_inputs in permutations(inputs):
        matched = _match_lists(pattern, list(permuted_inputs), paths)
        if matched is not None:
            return matched
    return None


def _can_permute(pattern: Expression, inputs: Expression) -> bool:
    """Return whether the inputs of a sum or product are as many as in the pattern, and few enough to try all orders.

    Args:
        pattern: a list, as the input of any sum in a pattern is.
        inputs: the input of such a layer, which may be anything.
    """
    return isinstance(inputs, list) and len(inputs) == len(pattern) <= _MOST_PERMUTED
