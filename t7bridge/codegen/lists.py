"""Layers on lists: known lists of steps, and the layers that accept or return them, without modules of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from ..nn.flows import TENSOR, Kind, many
from ..nn.mapping import SEQUENTIAL, ModuleSpec
from .code import BinaryOperation, Listed, Node, apply, method
from .copied import remembers
from .forms import Form, alike
from .idioms import by_writer, traits
from .names import usable_name
from .steps import Ref, Step, Value, applied, pick

if TYPE_CHECKING:
    from .flow import Body

SUM = ("fold", "+")
"""Writer of a layer that adds up the elements of a list."""


def returns_list(spec: ModuleSpec) -> bool:
    """Return whether a module is known to return a list."""
    if spec.target == SEQUENTIAL and spec.children:
        return returns_list(list(spec.children.values())[-1])
    return traits(spec).returns_list


def takes_list(spec: ModuleSpec) -> bool:
    """Return whether a module is known to accept a list."""
    if spec.target == SEQUENTIAL and spec.children:
        return takes_list(next(iter(spec.children.values())))
    return traits(spec).takes_list


def has_steps(spec: ModuleSpec, kind: Kind) -> bool:
    """Return whether a module can be written as steps for an input of a kind.

    A ParallelTable of a list of unknown length can if its last module fails in Lua without an element: `nn.Identity`
    returns nothing, and the output is a shorter list.
    """
    children = list(spec.children.values())
    return traits(spec).written != ("parallel",) or kind.items is not None or _needs_input(children[-1:])


def _needs_input(modules: list[ModuleSpec]) -> bool:
    """Return whether the first of some modules fails without an input."""
    while modules and modules[0].children:
        modules = list(modules[0].children.values())
    facts = traits(modules[0]) if modules else None
    return facts is not None and not (facts.is_identity or facts.takes_list or facts.may_take_list)


def _branches(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value:
    children = list(spec.children.values())
    bases = ["branch"] * len(children)
    if following is not None and traits(following).written == SUM and len(children) == 2:
        first = _weight(children[0]) >= _weight(children[1])
        bases = ["body", "shortcut"] if first else ["shortcut", "body"]
    return [body.apply(child, value, base) for child, base in zip(children, bases)]


def _weight(spec: ModuleSpec) -> int:
    return 1 + sum(map(_weight, spec.children.values()))


def _concat(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value:
    parts = _branches(body, spec, value, None)
    assert isinstance(parts, list)
    dim = spec.kwargs["dim"]
    return body.add(Step(lambda x: apply("torch.cat", x, dim), [parts], form=_joined(body, parts)))


def _joined(body: Body, parts: list[Value]) -> Form:
    """Return the form of concatenated values: their rank, if they share one."""
    ranks = {body.form(part).rank for part in parts}
    return Form(ranks.pop() if len(ranks) == 1 else None)


def _parallel(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    kind, children = body.kind(value), list(spec.children.values())
    # The input of the model is taken to have an element for each module.
    given = body.block.whole and isinstance(value, Ref) and not value.step
    if not given and not has_steps(spec, kind):
        return None
    count = len(children) if kind.items is None else len(kind.items)
    if value == Ref(0) and (given or kind.items is not None):
        body.block.width = _unpacked(count)
    return [body.apply(child, pick(value, at), "branch") for at, child in enumerate(children[:count])]


def _mapped(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    children = list(spec.children.values())
    if not children or not isinstance(value, list) or any(map(_flowing, children)) or any(map(_resumes, children)):
        return None
    mapped: list[Value] = []
    for at, item in enumerate(value):
        child = children[at if at < len(children) else 0]
        call, _ = body.builder.construct(child)
        mapped.append(item if call.name == "nn.Identity" else body.module(child, call, item, "", Form()))
    return mapped


_MOST_UNPACKED = 100
"""Maximum number of elements of an input with names of their own."""


def _unpacked(width: int) -> int:
    """Return the number of elements that an input is unpacked into; 0 if they stay in the list."""
    return width if width <= _MOST_UNPACKED else 0


def _resumes(spec: ModuleSpec) -> bool:
    """Return whether a module, or one inside, keeps a state from call to call."""
    seen: dict[int, ModuleSpec] = {}
    stack = [spec]
    while stack:
        each = stack.pop()
        seen[id(each)] = each
        stack += [child for child in each.children.values() if id(child) not in seen]
    return any(map(remembers, seen.values()))


def _flowing(spec: ModuleSpec) -> bool:
    return returns_list(spec) or takes_list(spec)


def _graph(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value:
    graph = spec.graph
    assert graph is not None
    values: list[Value] = [value]
    links = [link for node in graph.nodes for link in node.takes] + list(graph.outputs)
    if all(path for source, path in links if not source):
        body.block.width = _unpacked(1 + max((path[0] for source, path in links if not source), default=-1))

    body.builder.budget.spend(sum(len(path) for _, path in links))

    def fetch(link: tuple[int, tuple[int, ...]]) -> Value:
        found = values[link[0]]
        for index in link[1]:
            found = pick(found, index)
        return found

    for node in graph.nodes:
        taken: Value = fetch(node.takes[0]) if len(node.takes) == 1 else [fetch(link) for link in node.takes]
        name = usable_name(node.name)
        if node.module is None or traits(spec.children[node.module]).is_identity:
            values.append(taken)
            if name and isinstance(taken, Ref) and taken.step == 0 and len(taken.path) == 1:
                body.block.inputs[int(taken.path[0])] = name
            continue
        values.append(body.apply(spec.children[node.module], taken, name))
        _name_last(body, values[-1], name)
    given = [fetch(link) for link in graph.outputs]
    return given if graph.returns_list else given[0]


def _name_last(body: Body, value: Value, name: str) -> None:
    """Name a value, and the module that returns it, as the user did."""
    step = body.block.steps[value.step] if isinstance(value, Ref) and not value.path else None
    if name and step is not None:
        step.hint, step.named = name, True
        if step.attribute is not None and step.attribute.base == name:
            step.attribute.own = True


_MOST_FOLDED = 50
"""Maximum operands of one expression; Python's parser fails at some thousand."""


def _folded(
    body: Body,
    spec: ModuleSpec,
    value: Value,
    following: ModuleSpec | None,
    symbol: str,
    most: int = _MOST_FOLDED,
) -> Value | None:
    if not isinstance(value, list) or not 0 < len(value) <= most:
        return None
    if most == 2 and len(value) != 2:
        return None
    form, *others = map(body.form, value)
    # Lua follows the order in memory whatever the shapes, PyTorch the shapes.
    equal = [True, *(alike(form, other) for other in others)]
    if len(value) == 1 and not spec.kwargs.get("inplace"):
        return body.add(Step(lambda x: method(x, "clone"), list(value), form=form))

    def write(*operands: Node) -> Node:
        return reduce(lambda left, right: BinaryOperation(left, symbol, right), operands)

    def unseen(listed: Node) -> Node:
        return write(*(listed.items if isinstance(listed, Listed) else (listed,)))

    if spec.kwargs.get("inplace"):
        return body.module(spec, body.builder.copy(spec), value, "", form, applied, unseen if all(equal) else None)
    if all(equal):
        return body.add(Step(write, list(value), form=form))
    return body.add(Step(_shaped(write, equal), [value[0], *value], form=form))


def _shaped(write: Callable[..., Node], equal: list[bool]) -> Callable[..., Node]:
    """Return an expression of operands with the shape of the first, which is used twice and so has a name."""

    def shaped(first: Node, *operands: Node) -> Node:
        return write(*(x if same else method(x, "reshape_as", first) for x, same in zip(operands, equal)))

    return shaped


def _extreme(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None, comparison: str) -> Value | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    form, other = map(body.form, value)
    if not alike(form, other):
        return None

    def write(first: Node, second: Node, *again: Node) -> Node:
        return apply("torch.where", method(second, comparison, first), second, first)

    # Of equal elements the first receives the gradient. Both are used twice, and so have names.
    return body.add(Step(write, [*value, *value], form=form))


def _dimension(spec: ModuleSpec, rank: int | None) -> int | None:
    """Return the dimension that a layer counts in one example, from the end; `None` if unknown."""
    dims, dim = spec.kwargs.get("n_input_dims"), spec.args[0]
    if dims is None or dim < 0:
        return int(dim)
    return int(dim - dims) if dim < dims == rank else None


def _join(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    form = _joined(body, value) if isinstance(value, list) and value else Form()
    dim = _dimension(spec, form.rank)
    if dim is None:
        return None
    return body.add(Step(lambda x: apply("torch.cat", x, dim), [value], form=form))


def _split(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    dim = _dimension(spec, body.form(value).rank)
    # No layer may write into the results of `unbind`.
    if dim is None or body.builder.inplace:
        return None
    write = Step(lambda x: method(x, "unbind", dim), [value], kind=many(TENSOR), hint="parts", same=True)
    write.element = Form()
    return body.add(write)


def _picked(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    index = spec.args[0]
    if isinstance(value, list) and not (isinstance(index, int) and -len(value) <= index < len(value)):
        return None
    return pick(value, index)


def _narrowed(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    start, length = spec.args
    if not isinstance(value, list) or start < 0 or length < 0:
        return None
    return value[start : start + length]


def _just(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value:
    return [value]


def _reversed(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    return value[::-1] if isinstance(value, list) else None


def _flat(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    """Flatten a list, if every part of it is known to be a tensor or a list of known length."""
    found: list[Value] = []
    stack = [value]
    while stack:
        part = stack.pop()
        kind = body.kind(part)
        if kind.is_list and kind.items is not None:
            stack += [pick(part, at) for at in reversed(range(len(kind.items)))]
        elif kind == TENSOR:
            found.append(part)
        else:
            return None
    return found if isinstance(value, list) or body.kind(value).is_list else None


FLOWS: dict[str, Callable[..., Value | None]] = {
    "graph": _graph,
    "branches": _branches,
    "parallel": _parallel,
    "concat": _concat,
    "map": _mapped,
    "fold": _folded,
    "extreme": _extreme,
    "join": _join,
    "split": _split,
    "element": _picked,
    "slice": _narrowed,
    "list_of_one": _just,
    "reversed": _reversed,
    "flat": _flat,
}
"""Writers of modules that become steps; `None` if one cannot, and the layer's own class is copied."""


def flow(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    """Write a module as steps.

    Args:
        body: the class that receives the steps.
        spec: the module.
        value: its input.
        following: the module that uses its output, to help naming.
    """
    return by_writer(FLOWS, spec, body, spec, value, following)
