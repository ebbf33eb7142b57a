"""The data flow of a plan: which values are tensors, of which shape, which are lists, and of what, as far as known.

Every class of modules returns a tensor, unless the `flow` of its traits says otherwise: a function of the module, the
kind of its input and `Apply`, which returns the kind of the output of a module inside. The `output` of its traits is
the shape of what it returns for an input of known shape. What is not known before the model runs is `ANY`. Knows
neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile
from math import prod
from typing import Any

from attrs import field

from ..data import define
from .mapping import LAYERS, GraphNode, ModuleSpec
from .output_shapes import Arguments, Mismatch, Shape, Value, joined

_LARGEST = 400
"""Maximum number of kinds in one; of larger lists only the kind of all elements is known."""
_MOST = 1_000_000
"""Maximum number of modules and elements that one analysis visits; the outputs of others are not known."""


@define(frozen=True)
class Kind:
    """What is known of the structure of a value.

    Attributes:
        name: `tensor`, `list` or `any`; or `nothing`, Lua's nil, or `never` where Lua fails.
        items: the kinds of the elements of a list; `None` if their number is not known.
        each: the kind of every element then.
        size: number of kinds in it.
        shape: of a tensor, if known.
        origin: of a value that is the input of the model, or in it: the indices that lead to it.
    """

    name: str
    items: tuple[Kind, ...] | None = None
    each: Kind | None = None
    size: int = field(default=1, eq=False)
    shape: Shape | None = None
    origin: tuple[int, ...] | None = None

    @property
    def is_list(self) -> bool:
        """Whether the value is certainly a list."""
        return self.name == "list"

    @property
    def value(self) -> Value:
        """The shape of a tensor, a list of values, or `None` if no shape in it is known."""
        if self.items is None:
            return self.shape
        values = [each.value for each in self.items]
        return values if any(value is not None for value in values) else None

    def at(self, index: int | str) -> Kind:
        """Return the kind of an element; of a tensor, which Lua indexes too, a tensor."""
        if self.name == "tensor":
            return TENSOR
        if self.items is not None and isinstance(index, int) and -len(self.items) <= index < len(self.items):
            return self.items[index]
        if self.origin is not None and isinstance(index, int):
            return Kind("any", origin=(*self.origin, index))
        return self.each or ANY


TENSOR = Kind("tensor")
ANY = Kind("any")
NOTHING = Kind("nothing")
"""An element that a list does not have."""
NEVER = Kind("never")
"""The output of a layer that fails, as most do for `NOTHING`."""
Apply = Callable[..., Kind]
"""Applies a module inside: its name, the kind of its input, and in a graph the number of the node."""
Flow = Callable[[ModuleSpec, Kind, Apply], Kind]


def listed(items: Iterable[Kind]) -> Kind:
    """Return the kind of a list of known length; it ends before the first element that is nothing."""
    kinds = tuple(items)
    if NEVER in kinds:
        return NEVER
    kinds = tuple(takewhile(NOTHING.__ne__, kinds))
    size = 1 + sum(kind.size for kind in kinds)
    return Kind("list", kinds, None, size) if size <= _LARGEST else many(_joined(kinds))


def many(each: Kind) -> Kind:
    """Return the kind of a list whose elements are all of one kind."""
    return Kind("list", None, each, 1 + each.size) if each.size < _LARGEST else Kind("list", None, ANY, 2)


def kind_of(value: Value) -> Kind:
    """Return the kind of a value: a shape, a list of values, or `None`."""
    if isinstance(value, list):
        return listed(map(kind_of, value))
    return ANY if value is None else Kind("tensor", shape=value)


def _joined(kinds: Iterable[Kind]) -> Kind:
    """Return what is known of a value of one of several kinds."""
    found = set(kinds)
    return found.pop() if len(found) == 1 else ANY


class DataFlow:
    """The kinds of the outputs of modules, by those of their inputs; each is computed once.

    Args:
        traits: returns the facts about a class.
        steps: maximum number of modules and elements to visit.
    """

    def __init__(self, traits: Callable[[str], Any], steps: int = _MOST) -> None:
        self._traits = traits
        self._known: dict[tuple[int, Kind], Kind] = {}
        self.left = steps

    def __call__(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of the output of a module.

        Raises:
            Mismatch: the shape of the input is known, and a layer does not accept it.
        """
        known = self._known.get((id(spec), kind))
        if known is None:
            self.left -= kind.size + len(spec.children)
            known = self._known[id(spec), kind] = self.found(spec, kind) if self.left > 0 else ANY
        return known

    def found(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of the output of a module that was not visited with such an input before."""
        facts, value = self._traits(spec.target), kind.value
        if kind is NEVER or (kind is NOTHING and facts.flow not in WITHOUT_INPUT):
            return NEVER
        if facts.output is not None and value is not None:
            output = facts.output(Arguments(spec.args, spec.kwargs), value)
            if output is not None:
                return kind_of(output)
        if facts.flow is not None:
            flow: Flow = facts.flow
            return flow(spec, kind, lambda name, inner, at=None: self.inside(spec, name, inner, at))
        if facts.returns_list:
            return many(ANY)
        return TENSOR if spec.target.startswith(("torch.nn.", LAYERS)) else ANY

    def inside(self, spec: ModuleSpec, name: str, kind: Kind, at: int | None) -> Kind:
        """Return the kind of the output of a module inside another, by its name; `at` is the number of its node."""
        return self(spec.children[name], kind)


# Containers.


def sequence(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Pass the input through the children, one after another."""
    for name in spec.children:
        kind = apply(name, kind)
    return kind


def branches(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return a list of the outputs of all children."""
    return listed(apply(name, kind) for name in spec.children)


def concatenated(spec: ModuleSpec, kind: Kind, apply: Apply, padded: bool = False) -> Kind:
    """Return the outputs of all children, concatenated along `dim`; smaller ones can be padded to the largest."""
    outputs = branches(spec, kind, apply)
    shapes, dim = [each.shape for each in outputs.items or ()], spec.kwargs["dim"]
    known = [each for each in shapes if each is not None]
    if not known or len(known) < len(shapes):
        return TENSOR
    if padded and len({len(each) for each in known}) == 1:
        largest = tuple(map(max, zip(*known)))
        known = [(*largest[:dim], each[dim], *largest[dim + 1 :]) for each in known]
    return Kind("tensor", shape=joined(known, dim))


def sliced(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Apply each child to one slice along `input_dim`; return their outputs, concatenated along `output_dim`.

    Raises:
        Mismatch: there are more slices than children.
    """
    names = list(spec.children)
    dim, shape = spec.kwargs["input_dim"], kind.shape
    if shape is None:
        for at, name in enumerate(names):
            apply(name, kind.at(at))
        return TENSOR
    if not -len(shape) <= dim < len(shape) or (isinstance(shape[dim], int) and shape[dim] > len(names)):
        raise Mismatch
    rest = tuple(extent for at, extent in enumerate(shape) if at != dim % len(shape))
    outputs = [apply(name, Kind("tensor", shape=rest)).shape for name in names[: shape[dim]]]
    known = [each for each in outputs if each is not None]
    if not known or len(known) < len(outputs):
        return TENSOR
    return Kind("tensor", shape=joined(known, spec.kwargs["output_dim"]))


def parallel(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Apply each child to an element, and to nothing after the last; other elements are ignored.

    The number of outputs of a list of unknown length is known if the last child fails without an element.
    """
    names = list(spec.children)
    if kind is NOTHING and names:
        return NEVER
    if kind.items is not None:
        there = [apply(name, item) for name, item in zip(names, kind.items)]
        return listed([*there, *(apply(name, NOTHING) for name in names[len(there) :])])
    certain = kind.origin is not None or not names or apply(names[-1], NOTHING) is NEVER
    outputs = [apply(name, kind.at(at)) for at, name in enumerate(names)]
    return listed(outputs) if certain else many(_joined(outputs))


def bottled(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Pass the input through the children with its first dimensions merged, `n_input_dims` in all."""
    dims, shape = spec.kwargs["n_input_dims"], kind.shape
    if shape is None or len(shape) <= dims:
        return sequence(spec, kind, apply)
    front = shape[: len(shape) - dims + 1]
    inner = sequence(spec, Kind("tensor", shape=(prod(front), *shape[len(front) :])), apply).shape
    return TENSOR if inner is None else Kind("tensor", shape=(*front, *inner[1:]))


def mapped(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Apply one child to each element, or one of its clones."""
    names = list(spec.children)
    if not names:
        return kind
    if kind.items is None:
        return many(_joined([apply(name, kind.at(0)) for name in names]))
    return listed([apply(names[at if at < len(names) else 0], item) for at, item in enumerate(kind.items)])


def stepped(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Apply a child to each step of a list, or of a tensor."""
    if not spec.children:  # somebody took it away
        return ANY
    name = next(iter(spec.children))
    if not kind.is_list:
        if not kind.shape:
            return Kind(kind.name)
        step = apply(name, Kind("tensor", shape=kind.shape[1:])).shape
        return TENSOR if step is None else Kind("tensor", shape=(kind.shape[0], *step))
    if kind.items is None:
        return many(apply(name, kind.at(0)))
    return listed([apply(name, item) for item in kind.items])


def stacked(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Pass the steps of a list through the children as one tensor."""
    if kind.name == "tensor":
        return sequence(spec, kind, apply)
    each = sequence(spec, TENSOR, apply)
    if not kind.is_list:
        return ANY
    return many(each) if kind.items is None else listed([each] * len(kind.items))


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

    def step(number: int, node: GraphNode, taken: Kind) -> Kind:
        return taken if node.module is None else apply(node.module, taken, number - 1)

    found: Kind = spec.graph.run(kind, Kind.at, step, listed)
    return found


# Layers.


def unchanged(spec: ModuleSpec, kind: Kind, apply: Apply) -> Kind:
    """Return the input, or something like it."""
    return kind


def always(kind: Kind) -> Flow:
    """Return the flow of a module whose outputs are of one kind, whatever its input."""
    return lambda spec, taken, apply: kind


constant = always(TENSOR)
unknown = always(ANY)
"""Of a module whose output is not known before it runs."""
tensors = always(many(TENSOR))
pair = always(listed([TENSOR, TENSOR]))
with_state = always(listed([TENSOR, ANY]))
"""Of a module that returns a list of a tensor and a state."""


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
    found, stack = [], [kind]
    while stack:
        inside = stack.pop()
        if inside.name == "any" or (inside.is_list and inside.items is None):
            return many(TENSOR)
        stack += reversed(inside.items or ())
        found += [] if inside.is_list else [inside]
    return listed(found)


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


WITHOUT_INPUT = (sequence, branches, parallel, unchanged, constant)
"""Flows of modules that Lua may apply to nothing; all other layers fail."""
