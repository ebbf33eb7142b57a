"""Effects of modules on memory: which change their input in place, and whose outputs share memory with their inputs.

Lua's in-place layers change a value for all later readers, and PyTorch's do so too if the order is kept. But in
evaluation `torch.nn.Dropout` returns its input, and Lua's a copy. The difference shows only if a layer writes in
place to one of the two, so only models with such a layer are changed, and in them only values that are used again.

Two domains of `walk` answer this for containers: which values may be in the memory of the input (`Aliases`), and which
calls use a value (`Calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from attrs import field

from ..data import define
from .mapping import GraphNode, ModuleSpec, last_module_in, specs_in
from .registry import traits_of
from .walk import FLOW_ERRORS, Domain, Flow, sequence


@define(frozen=True)
class Effect:
    """Possible effects of a module on the memory of its input.

    Attributes:
        changes: it changes its input in place.
        shares: its output may be the memory of its input.
        keeps: it may write to its input, or use it again, after it returned.
        elements: of a list that it returns, whether each element may be the memory of its input; `None` if that is not
            known, or for a tensor.
    """

    changes: bool
    shares: bool
    keeps: bool
    elements: tuple[bool, ...] | None = None

    @property
    def is_done_with_input(self) -> bool:
        """Whether nothing uses the memory of the input afterwards."""
        return not (self.changes or self.shares or self.keeps)

    @property
    def only_returns_input(self) -> bool:
        """Whether its output is the memory of its input, and it does nothing else to that."""
        return self.shares and not (self.changes or self.keeps)


class MemoryEffects:
    """Effects of the modules of one model; `of(spec)` computes each once."""

    def __init__(self) -> None:
        self.of = cache(self._effect)

    def of_node(self, node: GraphNode, children: Mapping[str, ModuleSpec]) -> Effect:
        """Return the effect of a node of a graph; one without a module returns its input."""
        if node.module is None:
            return Effect(changes=False, shares=True, keeps=False)
        return self.of(children[node.module])

    def _effect(self, spec: ModuleSpec) -> Effect:
        """Return the effect of a module, from its traits, and of a container from those of the modules inside."""
        facts = traits_of(spec.target)
        # Layers may have a flow, too. What has no modules is a container only if it is a Sequential, which then returns
        # its input, or a graph; other containers without modules are judged by their traits, as layers are.
        is_layer = not spec.children and facts.flow is not sequence and not facts.is_graph
        if is_layer:
            return _effect_of_layer(spec)
        # A transparent container does nothing with its input besides what its flow says.
        if facts.flow is not None and facts.transparent:
            effect = self._effect_by_flow(spec, facts.flow)
            if effect is not None:  # `None`: the flow failed
                return effect
        # Of any other, and where the flow failed, the worst is assumed: it returns its input, and keeps it for later.
        # Our containers change nothing in place themselves: only modules inside do.
        changes = any(self.of(child).changes for child in spec.children.values())
        return Effect(changes=changes, shares=True, keeps=True)

    def _effect_by_flow(self, spec: ModuleSpec, flow: Flow) -> Effect | None:
        """Return the effect of a container that does what its flow says; `None` if that fails, as of damaged fields."""
        aliases = Aliases(self)
        try:
            output: Alias = flow(spec, Alias(is_input=True), aliases)
        except FLOW_ERRORS:
            return None
        elements = None if output.items is None else tuple(item.is_input for item in output.items)
        return Effect(changes=aliases.changes, shares=output.is_input, keeps=aliases.keeps, elements=elements)


def _effect_of_layer(spec: ModuleSpec) -> Effect:
    """Return the effect of a module without modules inside."""
    shares_memory = traits_of(spec.target).shares_memory
    is_inplace = bool(spec.kwargs.get("inplace"))
    # A class of ours may keep its input for its next call; those that share memory, such as views, do not.
    may_keep_input = not shares_memory and not _is_of_torch(spec)
    return Effect(changes=is_inplace, shares=is_inplace or shares_memory, keeps=may_keep_input)


@define(eq=False)
class Alias:
    """A value in a container, of which only its memory matters.

    Attributes:
        is_input: whether it may be in the memory of the container's input, or have such elements.
        items: the elements of a list, if they are known.
        users: number of modules inside that received it.
    """

    is_input: bool
    items: tuple[Alias, ...] | None = None
    users: int = 0


class Aliases(Domain[Alias]):
    """The domain that says which values in a container may be in the memory of its input.

    Attributes:
        changes: whether a module inside changes that memory.
        keeps: whether one may write to it later, or several use it.
    """

    def __init__(self, effects: MemoryEffects) -> None:
        self._effects = effects
        self.changes = False
        self.keeps = False

    def tensor(self) -> Alias:
        """Return a new tensor."""
        return Alias(is_input=False)

    def unknown(self) -> Alias:
        """Return a value that may be anything."""
        return Alias(is_input=True)

    def items(self, values: Sequence[Alias]) -> Alias:
        """Return a list."""
        return Alias(any(value.is_input for value in values), tuple(values))

    def many(self, values: Sequence[Alias]) -> Alias:
        """Return a list of unknown length."""
        return Alias(any(value.is_input for value in values))

    def item(self, value: Alias, index: int, dim: int | None = None) -> Alias:
        """Return an element, or a view of a slice."""
        if value.items is not None and dim is None:
            return value.items[index]
        return Alias(value.is_input)

    def length(self, value: Alias, dim: int | None = None) -> int | None:
        """Return the number of elements of a list."""
        return None if value.items is None or dim is not None else len(value.items)

    def is_list(self, value: Alias) -> bool | None:
        """Return whether a value is a list, if that is known."""
        return None if value.items is None else True

    def concat(self, values: Sequence[Alias], dim: int, *, pads: bool = False) -> Alias:
        """Return a new tensor."""
        return Alias(is_input=False)

    def merge(self, value: Alias, dims: int, apply: Callable[[Alias], Alias]) -> Alias:
        """Apply a function to a view."""
        return apply(value)

    def call(self, spec: ModuleSpec, child: str, value: Alias, node: int | None = None) -> Alias:
        """Note what a module inside does with its input, and return its output.

        Args:
            spec: the container.
            child: the name of the module in it.
            value: the input.
            node: not needed.

        Raises:
            LookupError: the value has too many users.
        """
        effect = self._effects.of(spec.children[child])
        # A layer that works in place writes into the first element of a list.
        changed_value = value.items[0] if value.items else value
        self.changes |= changed_value.is_input and effect.changes
        for part in (value, *(value.items or ())):
            part.users += 1
            if part.users > _MOST_USES:
                raise LookupError("a value is used too often")
            # Of several modules that receive a value, a later one uses it after an earlier one returned. That counts as
            # being kept, too.
            is_used_again = part.users > 1
            self.keeps |= part.is_input and (effect.keeps or is_used_again)
        if effect.elements is not None:
            return self.items([Alias(value.is_input and is_shared) for is_shared in effect.elements])
        return Alias(value.is_input and effect.shares)


_MOST_USES = 100_000
"""Maximum number of uses of a value, and of calls in a container, that are followed."""


def use_copying_classes(root: ModuleSpec) -> None:
    """Replace classes that return their input by copying ones (`Traits.copying`) where it may matter.

    In evaluation torch.nn.Dropout, for example, returns its input, and Lua's layer a copy of it.

    Args:
        root: the module of a plan; it is modified.
    """
    # Nobody sees that two values share memory if nothing is written to it.
    if not any(spec.kwargs.get("inplace") for spec in specs_in(root)):
        return
    effects = MemoryEffects()
    # Classes change while others are still judged. A copying class shares less, so that earlier judgements stay true.
    for spec, may_return_input in _places(root, effects):
        facts = traits_of(spec.target)
        # One that works in place returns its input in Lua, too.
        if facts.copying and not may_return_input and not spec.kwargs.get("inplace"):
            spec.target = facts.copying


def _places(root: ModuleSpec, effects: MemoryEffects) -> Iterator[tuple[ModuleSpec, bool]]:
    """Yield each module, with whether it may return its input instead of a copy.

    One that is at places of both kinds comes twice. A module may if nothing uses its output after the next module
    received it, or if its input is new and has no other use; see `_places_inside`.

    Args:
        root: the module of a plan.
        effects: those of its modules on memory.
    """
    seen: set[tuple[int, bool]] = set()
    stack = [(root, True)]  # what the caller does with its input and output is not the model's business
    while stack:
        spec, may_return_input = stack.pop()
        if (id(spec), may_return_input) not in seen:
            seen.add((id(spec), may_return_input))
            yield spec, may_return_input
            stack += _places_inside(spec, may_return_input, effects)


_OTHER_USE = -1
"""The user of a value that is no call of a module inside."""


def _places_inside(
    spec: ModuleSpec, container_may_return_input: bool, effects: MemoryEffects
) -> list[tuple[ModuleSpec, bool]]:
    """Return the modules in a container, with whether they may return their inputs instead of copies.

    Args:
        spec: the container.
        container_may_return_input: whether it may itself.
        effects: those of the modules.
    """
    calls = Calls()
    output = _output_of(spec, calls)
    if output is None:
        return [(child, False) for child in spec.children.values()]
    places: list[tuple[ModuleSpec, bool]] = []
    # An output is used up if only the next call receives it, and nothing uses its memory afterwards. That depends on
    # what this call does with it, so that the last call comes first.
    is_next_used_up = False
    for number, call in reversed(list(enumerate(calls.made))):
        next_number = number + 1
        if call.output.users == [next_number]:
            effect = effects.of(calls.made[next_number].module)
            is_used_up = effect.is_done_with_input or (effect.only_returns_input and is_next_used_up)
        else:
            is_output_alone = call.output is output and call.output.users == [_OTHER_USE]
            is_used_up = is_output_alone and container_may_return_input
        places.append((call.module, is_used_up or _is_input_new(call, number)))
        is_next_used_up = is_used_up
    return places


def _output_of(spec: ModuleSpec, calls: Calls) -> Value | None:
    """Return the output of a container, which has a use outside; `None` if what the container does is not known.

    Args:
        spec: the container.
        calls: receives what it calls.
    """
    facts = traits_of(spec.target)
    # One that is not transparent may do more than its flow says.
    if facts.flow is None or not facts.transparent:
        return None
    try:
        output: Value = facts.flow(spec, Value(), calls)
    except FLOW_ERRORS:
        return None
    for leaf in output.leaves():
        leaf.users.append(_OTHER_USE)
    return output


def _is_input_new(call: Call, number: int) -> bool:
    """Return whether the input of a layer is certainly memory of its own, which nothing else uses.

    Args:
        call: the call of a module; of a container it is not known, as modules inside may use its input several times.
        number: of the call.
    """
    is_container = bool(call.module.children)
    is_only_user = call.input.users == [number]
    maker = call.input.maker
    return is_only_user and not is_container and maker is not None and _makes_new(maker)


@define(eq=False)
class Value:
    """A value in a container, of which only its uses matter.

    Attributes:
        maker: the module inside that returned it; `None` for the input, or for what the container makes.
        items: the elements of a list that the container makes.
        users: the numbers of the calls that receive it, from 0, and `_OTHER_USE` for each other use.
    """

    maker: ModuleSpec | None = None
    items: list[Value] | None = None
    users: list[int] = field(factory=list)

    def leaves(self) -> Iterator[Value]:
        """Yield the value, or the elements of nested lists."""
        stack = [self]
        while stack:
            value = stack.pop()
            if value.items is None:
                yield value
            else:
                stack += reversed(value.items)


@define(frozen=True)
class Call:
    """A call of a module inside a container."""

    module: ModuleSpec
    input: Value
    output: Value


class Calls(Domain[Value]):
    """The domain that lists the calls of the modules in a container, and the uses of their inputs and outputs.

    Attributes:
        made: the calls.
    """

    def __init__(self) -> None:
        self.made: list[Call] = []

    def tensor(self) -> Value:
        """Return a new tensor."""
        return Value()

    def items(self, values: Sequence[Value]) -> Value:
        """Return a list."""
        return Value(items=list(values))

    def item(self, value: Value, index: int, dim: int | None = None) -> Value:
        """Return an element; of another value, something of which nothing is known."""
        if value.items is not None and dim is None:
            return value.items[index]
        value.users.append(_OTHER_USE)
        return Value()

    def length(self, value: Value, dim: int | None = None) -> int | None:
        """Return the number of elements of a list."""
        return None if value.items is None or dim is not None else len(value.items)

    def is_list(self, value: Value) -> bool | None:
        """Return whether a value is a list, if that is known."""
        return None if value.items is None else True

    def concat(self, values: Sequence[Value], dim: int, *, pads: bool = False) -> Value:
        """Return a new tensor, for which others are used."""
        for value in values:
            value.users.append(_OTHER_USE)
        return Value()

    def merge(self, value: Value, dims: int, apply: Callable[[Value], Value]) -> Value:
        """Apply a function to a view."""
        return apply(value)

    def call(self, spec: ModuleSpec, child: str, value: Value, node: int | None = None) -> Value:
        """Note a call of a module inside, and return its output.

        Args:
            spec: the container.
            child: the name of the module in it.
            value: the input; in a list, each element is used by the call.
            node: not needed.

        Raises:
            LookupError: there are too many calls.
        """
        if len(self.made) > _MOST_USES:
            raise LookupError("there are too many calls")
        for leaf in value.leaves():
            leaf.users.append(len(self.made))
        module = spec.children[child]
        output = Value(module)
        self.made.append(Call(module, value, output))
        return output


def _makes_new(spec: ModuleSpec) -> bool:
    """Return whether a module certainly returns memory of its own, not needed for gradients: layers with weights do."""
    spec = last_module_in(spec)
    is_layer = _is_of_torch(spec) and not spec.children
    has_weight = spec.obj is not None and "weight" in spec.obj
    return is_layer and has_weight and not traits_of(spec.target).shares_memory


def _is_of_torch(spec: ModuleSpec) -> bool:
    """Return whether a module is of torch.nn, or like one: it keeps no value for its next call."""
    return (spec.plain or spec.target).startswith("torch.nn.")
