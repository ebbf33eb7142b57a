"""The data flow of a plan: which values are tensors, which are lists, and of what.

Every class of modules returns a tensor, unless the `flow` of its traits says otherwise: a function of the module, the
kind of its input and `Apply`, which returns the kind of the output of a module inside. What is not known before the
model runs is `ANY`. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import field

from ..data import define
from .mapping import LAYERS, ModuleSpec

_LARGEST = 400
"""Maximum number of kinds in one; of larger lists only the kind of all elements is known."""
_MOST = 1_000_000
"""Maximum number of modules and elements that one analysis visits; the outputs of others are not known."""


@define(frozen=True)
class Kind:
    """What is known of the structure of a value.

    Attributes:
        name: `tensor`, `list` or `any`.
        items: the kinds of the elements of a list; `None` if their number is not known.
        each: the kind of every element then.
        size: number of kinds in it.
    """

    name: str
    items: tuple[Kind, ...] | None = None
    each: Kind | None = None
    size: int = field(default=1, eq=False)

    @property
    def is_list(self) -> bool:
        """Whether the value is certainly a list."""
        return self.name == "list"

    def at(self, index: int | str) -> Kind:
        """Return the kind of an element; of a tensor, which Lua indexes too, a tensor."""
        if self.name == "tensor":
            return self
        if self.items is not None and isinstance(index, int) and -len(self.items) <= index < len(self.items):
            return self.items[index]
        return self.each or ANY


TENSOR = Kind("tensor")
ANY = Kind("any")
Apply = Callable[[ModuleSpec, Kind], Kind]
Flow = Callable[[ModuleSpec, Kind, Apply], Kind]


def listed(items: Iterable[Kind]) -> Kind:
    """Return the kind of a list of known length."""
    kinds = tuple(items)
    size = 1 + sum(kind.size for kind in kinds)
    return Kind("list", kinds, None, size) if size <= _LARGEST else many(_joined(kinds))


def many(each: Kind) -> Kind:
    """Return the kind of a list whose elements are all of one kind."""
    return Kind("list", None, each, 1 + each.size) if each.size < _LARGEST else Kind("list", None, ANY, 2)


def _joined(kinds: Iterable[Kind]) -> Kind:
    """Return what is known of a value of one of several kinds."""
    found = set(kinds)
    return found.pop() if len(found) == 1 else ANY


class DataFlow:
    """The kinds of the outputs of modules, by those of their inputs; each is computed once."""

    def __init__(self, traits: Callable[[str], Any]) -> None:
        self._traits = traits
        self._known: dict[tuple[int, Kind], Kind] = {}
        self._left = _MOST

    def __call__(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of the output of a module."""
        known = self._known.get((id(spec), kind))
        if known is None:
            self._left -= kind.size + len(spec.children)
            known = self._known[id(spec), kind] = self._found(spec, kind) if self._left > 0 else ANY
        return known

    def _found(self, spec: ModuleSpec, kind: Kind) -> Kind:
        facts = self._traits(spec.target)
        if facts.flow is not None:
            found: Kind = facts.flow(spec, kind, self)
            return found
        if facts.returns_list:
            return many(ANY)
        return TENSOR if spec.target.startswith(("torch.nn.", LAYERS)) else ANY


# Containers.


def sequence(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Pass the input through the children, one after another."""
    for child in spec.children.values():
        kind = apply(child, kind)
    return kind


def branches(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return a list of the outputs of all children."""
    return listed(apply(child, kind) for child in spec.children.values())


def parallel(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Apply a child to each element, as far as there are both."""
    if not kind.is_list or kind.items is None:
        return many(_joined(apply(child, kind.at(0)) for child in spec.children.values()))
    return listed(apply(child, item) for child, item in zip(spec.children.values(), kind.items))


def mapped(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Apply one child to each element, or one of its clones."""
    children = list(spec.children.values())
    if not children:
        return kind
    if kind.items is None:
        return many(_joined(apply(child, kind.at(0)) for child in children))
    return listed(apply(children[at if at < len(children) else 0], item) for at, item in enumerate(kind.items))


def stepped(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Apply a child to each step of a list, or of a tensor."""
    if not kind.is_list:
        return kind
    child = next(iter(spec.children.values()))
    if kind.items is None:
        return many(apply(child, kind.at(0)))
    return listed(apply(child, item) for item in kind.items)


def repeated(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return a list of the outputs of several calls; their number is the first argument, or that of a sequence."""
    each = sequence(spec, kind, apply)
    times = spec.args[0]
    known = 0 <= times <= _LARGEST and not spec.kwargs.get("as_sequence")
    return listed([each] * times) if known else many(each)


def recurrence(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return the kind of an output of the sizes that are the first argument."""

    def of(size: Any) -> Kind:
        return TENSOR if not isinstance(size, tuple) or not size or isinstance(size[0], int) else listed(map(of, size))

    return of(spec.args[0])


def graph(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Follow the links of a graph."""
    assert spec.graph is not None
    kinds = [kind]

    def fetch(link: tuple[int, tuple[int, ...]]) -> Kind:
        found = kinds[link[0]]
        for index in link[1]:
            found = found.at(index)
        return found

    for node in spec.graph.nodes:
        taken = fetch(node.takes[0]) if len(node.takes) == 1 else listed(map(fetch, node.takes))
        kinds.append(taken if node.module is None else apply(spec.children[node.module], taken))
    given = [fetch(link) for link in spec.graph.outputs]
    return listed(given) if spec.graph.returns_list else given[0]


# Layers.


def unchanged(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return the input, or something like it."""
    return kind


def unknown(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return something that is not known before the model runs."""
    return ANY


def tensors(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return a list of tensors."""
    return many(TENSOR)


def element(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return the element whose index is the first argument."""
    return kind.at(spec.args[0])


def wrapped(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return a list of the input alone."""
    return listed([kind])


def narrowed(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return the elements from the first argument on, as many as the second says."""
    start, length = spec.args
    if kind.items is None or start < 0 or length < 0:
        return many(kind.at(0) if kind.items is None else ANY)
    return listed(kind.items[start : start + length])


def turned(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return the elements in the opposite order."""
    return kind if kind.items is None else listed(reversed(kind.items))


def flattened(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return a list of all tensors in nested lists: their number is known if that of each list is."""
    count, stack = 0, [kind]
    while stack:
        inside = stack.pop()
        if inside.name == "any" or (inside.is_list and inside.items is None):
            return many(TENSOR)
        stack += inside.items or ()
        count += not inside.is_list
    return listed([TENSOR] * count)


def zipped(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return lists of first elements, of second elements, and so on."""
    parts = kind.items
    if parts is None or any(part.items is None for part in parts):
        return many(many(ANY))
    longest = max((len(part.items or ()) for part in parts), default=0)
    return listed(
        listed(part.items[at] for part in parts if part.items is not None and at < len(part.items))
        for at in range(longest)
    )


def paired(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return pairs of the first element and each element of the second, a list."""
    first, others = kind.at(0), kind.at(1)
    if others.items is None:
        return many(listed([first, others.at(0)]))
    return listed(listed([first, other]) for other in others.items)
