"""From a plan to steps, the data flow before anything has a name: a module becomes a step, or plain PyTorch."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import TypeAlias

from attrs import field

from ..data import define
from ..errors import ModelError, UnsupportedError
from ..limits import Budget, Limits
from ..nn.fields import items_of
from ..nn.kinds import ANY, NEVER, NOTHING, TENSOR, Kind, Kinds, listed, many
from ..nn.mapping import OURS, SEQUENTIAL, Link, ModuleSpec, end_of, specs_in
from ..nn.memory import MemoryEffects
from ..nn.pieces import IN_TORCH, STATEFUL, WITH_STATE
from ..nn.registry import tensor_shapes, traits_of
from ..nn.torch_nn import TORCH
from .attention import attention_names
from .code import TAKEN, Construction, Write, applied, dotted, formula, sequential, usable_name
from .copied import Copied, defaults_of, pieces, remembers, reserved_names
from .idioms import (
    BatchOrigin,
    Form,
    alike,
    base_name,
    copying,
    form_of_copy,
    function_of,
    idiom_of,
    torch_call,
    traits,
)

TOO_DEEP = "the modules of this model are nested too deep to be written down"
USE_CONVERT = "`t7bridge convert` converts the weights."
_MOST_NESTED = 60
"""Maximum nesting of constructions; Python's parser allows 200 brackets."""
_MOST_UNPACKED = 100
"""Maximum number of elements of an input with names of their own."""
_MOST_FOLDED = 50
"""Maximum operands of one expression; Python's parser fails at some thousand."""
SUM = ("fold", "+")
"""Writer of a layer that adds up the elements of a list."""


# Steps


@define(frozen=True)
class Ref:
    """Reference to the result of a step, or to an element of it.

    Attributes:
        step: its number; 0 is the input.
        path: selected elements, one inside the other: from 0, or names.
    """

    step: int
    path: tuple[int | str, ...] = ()


Value: TypeAlias = "Ref | list[Value]"
"""One value, or a list of values that is not created until it is needed as a whole."""


@define(eq=False)
class Attribute:
    """A module that a class of the source holds.

    Attributes:
        base: its name, up to a number.
        calls: the modules, in sequence.
        own: whether it stays separate: used by several steps, or named by the user.
        name: its final name.
    """

    base: str
    calls: list[Construction]
    own: bool = False
    name: str = ""

    @property
    def call(self) -> Construction:
        """Return the construction of the whole."""
        return self.calls[0] if len(self.calls) == 1 else sequential(self.calls)


@define(eq=False)
class Step:
    """One step.

    Attributes:
        write: makes its expression.
        takes: its operands.
        attribute: its module.
        function: makes the expression of an equivalent function, if there is one.
        unseen: the same for a module that changes its first input, if no other step sees that.
        form: shape of the result, as far as it is known.
        element: form of each element, if the result is a list of tensors of one shape.
        kind: whether the result is a tensor or a list, as far as it is known.
        inplace: whether it changes its input.
        same: whether the result may be the memory of the input.
        parts: the names of variables for the elements of the result, or for the result, of a recurrent layer; empty for
            one without a name of its own.
        hint: suggested name of a variable for the result.
        named: whether `hint` is the user's name.
    """

    write: Write
    takes: list[Value]
    attribute: Attribute | None = None
    function: Write | None = None
    unseen: Write | None = None
    form: Form = field(factory=Form)
    element: Form | None = None
    kind: Kind = TENSOR
    inplace: bool = False
    same: bool = False
    parts: tuple[str, ...] = ()
    hint: str = ""
    named: bool = False


def refs(value: Value) -> Iterator[Ref]:
    """Yield all references in a value."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, Ref):
            yield value
        else:
            stack += reversed(value)


def _pick(value: Value, index: int | str) -> Value:
    """Return one element of a value."""
    if isinstance(value, Ref):
        return Ref(value.step, (*value.path, index))
    assert isinstance(index, int)
    return value[index]


@define(eq=False)
class CodeBlock:
    """A class of the source: modules, and steps between them.

    Attributes:
        spec: the module it represents.
        base: the name of the class, up to a number.
        name: the name of the class.
        steps: the steps; number 0 is the input, and those merged into others are `None`.
        result: the return value of `forward`.
        attributes: the modules, in the order of their first use.
        inputs: the user's names of the elements of the input, if it is a list, by their paths.
        width: number of elements of the input, if known.
        lists: number of elements of those elements of the input that are lists, if known.
        states: the names of the elements of the input that are states of cells, by their paths.
        returns: the names of the results that are, empty for others.
        more: whether it may have more, which are ignored.
        parameters: those of the constructor, with their annotations.
        whole: whether it is the class of the whole model.
    """

    spec: ModuleSpec
    base: str
    name: str = ""
    steps: list[Step | None] = field(factory=list)
    result: Value = field(factory=list)
    attributes: list[Attribute] = field(factory=list)
    inputs: dict[tuple[int | str, ...], str] = field(factory=dict)
    width: int = 0
    lists: dict[int | str, int] = field(factory=dict)
    states: dict[tuple[int | str, ...], str] = field(factory=dict)
    returns: tuple[str, ...] = ()
    more: bool = False
    parameters: dict[str, str] = field(factory=dict)
    whole: bool = False

    @property
    def input_kind(self) -> Kind:
        """Whether the input is a tensor or a list, as far as it is known."""
        return self.steps[0].kind if self.steps[0] is not None else ANY

    @property
    def is_stateful(self) -> bool:
        """Whether its inputs are arguments, those after the first states, and its outputs a tuple."""
        return self.spec.target == STATEFUL

    def links(self) -> Iterator[tuple[int, Ref]]:
        """Yield each reference with the number of the step that uses it; the result is beyond the last."""
        for number, step in enumerate(self.steps):
            for ref in refs(step.takes) if step else ():
                yield number, ref
        for ref in refs(self.result):
            yield len(self.steps), ref

    def uses(self) -> Counter[int]:
        """Count the uses of each step's result."""
        return Counter(ref.step for _, ref in self.links())

    def constructions(self) -> Iterator[Construction]:
        """Yield all constructions in it, outer ones first."""
        for attribute in self.attributes:
            yield from attribute.call.nested()


# Modules


class SourceBuilder:
    """Makes the blocks of a model and collects the layers to include.

    Attributes:
        blocks: all blocks, those that others contain first.
        copied: the included layers, by name.
        foreign: foreign classes: the module and the name there, by the name in the source.
        budget: resource limits of generating.
        memory: effects of modules on memory.
        flow: kinds of the outputs of modules.
        inplace: whether there is a module that changes its input.
    """

    def __init__(self, shared: set[int], limits: Limits, free: int, inplace: bool) -> None:
        self.blocks: list[CodeBlock] = []
        self.inplace = inplace
        self.budget = Budget(limits, "writing the model as source", free)
        self.memory = MemoryEffects()
        self.flow = Kinds(traits_of)
        self.copied: dict[str, Copied] = {}
        self.foreign: dict[str, tuple[str, str]] = {}
        self._shared = shared
        self._built: dict[int, tuple[CodeBlock, Form]] = {}

    def root(self, spec: ModuleSpec, criterion: bool) -> CodeBlock:
        """Return the class of the whole model; that of a criterion also has a target."""
        if not criterion:
            return self._block(spec, Form(), ANY, "Model", whole=True)[0]
        block = CodeBlock(spec, "Model")
        call = self.copy(spec)
        compared = call.name not in self.copied or self.copied[call.name].inputs > 1
        write = formula("lambda module, x: module(x, target)") if compared else applied
        block.result = Body(self, block, Form(), ANY).module(spec, call, Ref(0), "criterion", Form(), write)
        self.blocks.append(block)
        return block

    def construct(self, spec: ModuleSpec, form: Form | None = None, kind: Kind = ANY) -> tuple[Construction, Form]:
        """Return the construction of a module, and the form of its output.

        Args:
            spec: the module.
            form: that of its input. A shared module is constructed for any input.
            kind: that of its input, likewise.

        Raises:
            UnsupportedError: the nesting is too deep for Python's parser.
        """
        self.budget.spend()
        shared = self.is_shared(spec)
        form = Form() if form is None or shared else form
        kind = ANY if shared else kind
        call, after = self._plain(spec, form, kind)
        if call is None and (spec.target == SEQUENTIAL or (traits(spec).block and self.has_steps(spec, kind))):
            block, after = self._block(spec, form, kind, _block_base(spec))
            call = Construction(block.base, spec=spec, block=block, origin=block)
        elif call is None:
            call, after = self.copy(spec), form_of_copy(spec, form)
        call.depth = 1 + max((inner.depth for _, inner in call.inside()), default=0)
        if call.depth > _MOST_NESTED:
            raise UnsupportedError(
                TOO_DEEP,
                path=spec.path,
                expected=f"at most {_MOST_NESTED} modules inside one another",
                hint=USE_CONVERT,
            )
        # Each use of a shared module returns a form of its own.
        return call, Form(after.rank) if shared else after

    def _plain(self, spec: ModuleSpec, form: Form, kind: Kind) -> tuple[Construction | None, Form]:
        """Return a module of torch.nn and the form of its output, if it expresses the whole module."""
        if spec.target != SEQUENTIAL:
            idiom = None if spec.plain and kind.is_list else idiom_of(spec, form)
            return (idiom.call, idiom.form) if idiom is not None and idiom.write is applied else (None, form)
        calls = []
        for child in spec.children.values():
            if self._flows(child, form):
                return None, form
            call, form = self.construct(child, form, kind)
            kind = self.flow(child, kind)
            if call.name != "nn.Identity":
                calls.append(call)
        return sequential(calls or [Construction("nn.Identity")], spec), form

    def _flows(self, spec: ModuleSpec, form: Form) -> bool:
        """Return whether a module is better written as steps of the class that contains it."""
        if _returns_list(spec) or _takes_list(spec):
            return True
        idiom = None if spec.target.startswith("torch.nn.") else idiom_of(spec, form)
        return idiom is not None and idiom.write is not applied

    def _block(
        self, spec: ModuleSpec, form: Form, kind: Kind, base: str, whole: bool = False
    ) -> tuple[CodeBlock, Form]:
        if id(spec) not in self._built:
            block = CodeBlock(spec, base, whole=whole)
            body = Body(self, block, form, kind)
            begin = body.sequence if spec.target == SEQUENTIAL else body.apply
            block.result = begin(spec, Ref(0))
            body.measure(block.result)
            self.blocks.append(block)
            self._built[id(spec)] = (block, body.form(block.result))
        return self._built[id(spec)]

    def _imported_as(self, home: str, name: str) -> str:
        """Return the name under which the source imports a user's class.

        A class that is called as something that a page may have itself (`Softmax`, `Model`, `nn`), or as a class of
        another module, is imported under another name: otherwise one would take the place of the other.
        """
        reserved = TAKEN | reserved_names()
        known = name
        number = 1
        while known in reserved or self.foreign.get(known, (home, name)) != (home, name):
            known = f"Own{name}" if number == 1 else f"Own{name}{number}"
            number += 1
        self.foreign[known] = home, name
        return known

    def copy(self, spec: ModuleSpec) -> Construction:
        """Return a layer whose source is included, with the modules in it."""
        home, _, name = spec.target.rpartition(".")
        if spec.target.startswith(OURS):
            self.copied.update((piece.name, piece) for piece in pieces(spec.target))
        else:
            dotted(spec.target)
            if not home:
                raise ModelError("the class is in no module", path=spec.path, found=spec.target)
            name = self._imported_as(home, name)
        inner = {key: self.construct(child)[0] for key, child in spec.children.items()}
        self.budget.spend(len(spec.args))
        return Construction(
            name,
            [*(call for key, call in inner.items() if key.isdigit()), *spec.args],
            {**{key: call for key, call in inner.items() if not key.isdigit()}, **spec.kwargs},
            defaults_of(self.copied[name]) if name in self.copied else {},
            spec=spec,
        )

    def has_steps(self, spec: ModuleSpec, kind: Kind) -> bool:
        """Return whether a module can be written as steps for an input of a kind.

        A ParallelTable can if it certainly has an element for each module whose output is not nothing; a ConcatTable if
        its input is certainly something, or no output of it nothing otherwise.
        """
        name, width = traits(spec).written[:1], len(spec.children)
        if name == ("parallel",):
            after = self.flow(spec, kind)
            return after.items is not None and len(after.items) <= (width if kind.items is None else len(kind.items))
        after = self.flow(spec, NOTHING) if name == ("branches",) and kind == ANY else NEVER
        return after is NEVER or len(after.items or ()) == width

    def is_shared(self, spec: ModuleSpec) -> bool:
        """Return whether a module occurs at several places of the model."""
        return id(spec) in self._shared


def _block_base(spec: ModuleSpec) -> str:
    """Return the name of a class, by its function."""
    written = [traits(child).written for child in spec.children.values()]
    if (("branches",), SUM) in pairwise(written):
        return "Residual"
    return "Branches" if ("branches",) in written else traits(spec).block or "Block"


def _returns_list(spec: ModuleSpec) -> bool:
    """Return whether a module is known to return a list."""
    return traits(end_of(spec, last=True)).returns_list


def _takes_list(spec: ModuleSpec) -> bool:
    """Return whether a module is known to accept a list."""
    return traits(end_of(spec)).takes_list


# Steps of one class


class Body:
    """Writes the steps of one block."""

    def __init__(self, builder: SourceBuilder, block: CodeBlock, form: Form, kind: Kind) -> None:
        self.builder = builder
        self.block = block
        self._held: dict[int, Attribute] = {}
        self._inner: dict[Ref, Form] = {}
        self._kinds: dict[int, tuple[Value, Kind]] = {}
        form = Form(origin=BatchOrigin(is_input=True)) if block.whole else form
        block.steps.append(Step(applied, [], form=form, kind=kind))

    def form(self, value: Value) -> Form:
        """Return the form of a value, as far as it is known."""
        if not isinstance(value, Ref):
            return Form()
        step = self.block.steps[value.step]
        if step is None or not value.path:
            return step.form if step else Form()
        if len(value.path) == 1 and step.element is not None:
            return step.element
        is_input = self.block.whole and not value.step
        return self._inner.setdefault(value, Form(origin=BatchOrigin(is_input=is_input)))

    def kind(self, value: Value) -> Kind:
        """Return whether a value is a tensor or a list, as far as it is known."""
        if not isinstance(value, Ref):
            known = self._kinds.get(id(value))
            if known is None:
                known = self._kinds[id(value)] = (value, listed(map(self.kind, value)))
            return known[1]
        step = self.block.steps[value.step]
        kind = ANY if step is None else step.kind
        for index in value.path:
            kind = kind.at(index)
        return kind

    def add(self, step: Step) -> Ref:
        """Add a step."""
        self.builder.budget.spend(1)
        for taken in step.takes:
            self.measure(taken)
        self.block.steps.append(step)
        return Ref(len(self.block.steps) - 1)

    def measure(self, value: Value) -> None:
        """Charge the size of a list when it is written out, including repeated lists in it."""
        if isinstance(value, list):
            for _ in refs(value):
                self.builder.budget.spend(1)

    def sequence(self, spec: ModuleSpec, value: Value) -> Value:
        """Apply the modules of a Sequential, one after another."""
        children = list(spec.children.values())
        for child, following in zip(children, [*children[1:], None]):
            value = self.apply(child, value, "", following)
        return value

    def apply(self, spec: ModuleSpec, value: Value, base: str = "", following: ModuleSpec | None = None) -> Value:
        """Return the output of a module for a value.

        Args:
            spec: the module.
            value: its input.
            base: its name, if not derived from its class.
            following: the module that uses its output, to help naming.
        """
        self.builder.budget.spend(1)
        facts, shared = traits(spec), self.builder.is_shared(spec)
        # A shared module is written once; except for layers on lists, which are not modules.
        again = facts.block and (spec.graph is not None or shared)
        name, *arguments = facts.written or ("",)
        if name in LISTS and (not again or spec is self.block.spec):
            done: Value | None = getattr(Lists(self, spec, value, following), name)(*arguments)
            if done is not None:
                return done
        if facts.is_identity:
            return value
        if spec.target == SEQUENTIAL and (_returns_list(spec) or _takes_list(spec)) and not shared:
            return self.sequence(spec, value)
        return self._tensor(spec, value, base)

    def _tensor(self, spec: ModuleSpec, value: Value, base: str) -> Value:
        """Return the output of a module that is not written as steps on lists."""
        form, kind = self.form(value), self.kind(value)
        idiom = idiom_of(spec, form)
        if idiom is not None and idiom.call is not None and idiom.write is not applied:
            return self.module(spec, idiom.call, value, base, idiom.form, idiom.write)
        if spec.plain and (kind.is_list or spec is self.block.spec):
            return self.module(spec, self.builder.copy(spec), value, base, Form())
        if idiom is None or idiom.call is not None:
            call, after = self.builder.construct(spec, form, kind)
            return self.module(spec, call, value, base, after)
        write = copying(spec, idiom.write) if self.builder.inplace and traits(spec).copies else idiom.write
        if spec.kwargs.get("inplace"):
            return self.module(spec, self.builder.copy(spec), value, base, idiom.form, applied, write)
        return self.add(Step(write, [value], form=idiom.form, same=self.builder.memory.of(spec).shares))

    def module(
        self,
        spec: ModuleSpec,
        call: Construction,
        value: Value,
        base: str,
        form: Form,
        write: Write = applied,
        unseen: Write | None = None,
    ) -> Ref:
        """Add a step that applies a module; a module applied before is not stored twice."""
        attribute = self._held.get(id(spec))
        if attribute is not None:
            attribute.own = True
        else:
            attribute = Attribute(base or base_name(call.name), [call], own=self.builder.is_shared(spec))
            self._held[id(spec)] = attribute
            self.block.attributes.append(attribute)
        effect = self.builder.memory.of(spec)
        return self.add(
            Step(
                write,
                [value],
                attribute=attribute,
                function=None if attribute.own else function_of(call),
                unseen=unseen,
                form=form,
                kind=self.builder.flow(spec, self.kind(value)),
                inplace=effect.changes,
                same=effect.shares,
            )
        )


class Lists:
    """Writers of modules on lists as steps, by the name in their entries; `None` where the class itself is needed.

    Args:
        body: the class that receives the steps.
        spec: the module.
        value: its input.
        following: the module that uses its output, to help naming.
    """

    def __init__(self, body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> None:
        self._body, self._spec, self._value, self._following = body, spec, value, following
        self._children = list(spec.children.values())
        self._items = value if isinstance(value, list) else None

    def _unpack(self, width: int, more: bool = False) -> None:
        """Give elements of the input names of their own, unless there are too many; `more` if others are ignored."""
        block = self._body.block
        block.more = more and (block.more or not block.width)
        block.width = max(width, block.width) if width <= _MOST_UNPACKED else 0

    # Containers

    def branches(self) -> list[Value] | None:
        """Apply every module to the input."""
        body = self._body
        if self._value == Ref(0) and not body.block.whole and not body.builder.has_steps(self._spec, body.kind(Ref(0))):
            return None
        bases = ["branch"] * len(self._children)
        following = self._following
        if following is not None and traits(following).written == SUM and len(self._children) == 2:
            first = _weight(self._children[0]) >= _weight(self._children[1])
            bases = ["body", "shortcut"] if first else ["shortcut", "body"]
        return [self._body.apply(child, self._value, base) for child, base in zip(self._children, bases)]

    def concat(self) -> Value:
        """Concatenate the outputs of all modules."""
        self._following = None
        return self._joined(self.branches() or [], self._spec.kwargs["dim"])

    def _joined(self, parts: Value, dim: int) -> Ref:
        return self._body.add(Step(formula("lambda x: torch.cat(x, dim)", dim=dim), [parts], form=self._common(parts)))

    def _common(self, parts: Value) -> Form:
        """Return the form of concatenated values: their rank, if they share one."""
        ranks = {self._body.form(part).rank for part in parts} if isinstance(parts, list) else set()
        return Form(ranks.pop() if len(ranks) == 1 else None)

    def parallel(self) -> Value | None:
        """Apply each module to an element."""
        value, kind = self._value, self._body.kind(self._value)
        if not self._body.builder.has_steps(self._spec, kind):
            return None
        count = len(self._children) if kind.items is None else len(kind.items)
        if value == Ref(0):
            self._unpack(count, kind.items is None)
        pairs = enumerate(self._children[:count])
        return [self._body.apply(child, _pick(value, at), "branch") for at, child in pairs]

    def map(self) -> Value | None:
        """Apply one module, or clones of it, to all elements."""
        children = self._children
        if not children or self._items is None or any(_returns_list(each) or _takes_list(each) for each in children):
            return None
        if any(remembers(each) for child in children for each in specs_in(child)):
            return None
        if len(self._items) > len(children) and any(map(_keeps_statistics, specs_in(children[0]))):
            return None  # each element has statistics of its own
        mapped: list[Value] = []
        for at, item in enumerate(self._items):
            child = children[at if at < len(children) else 0]
            call, _ = self._body.builder.construct(child)
            mapped.append(item if call.name == "nn.Identity" else self._body.module(child, call, item, "", Form()))
        return mapped

    def graph(self) -> Value:
        """Apply the modules of a graph."""
        body, graph = self._body, self._spec.graph
        assert graph is not None
        values: list[Value] = [self._value]
        links = [link for node in graph.nodes for link in node.takes] + list(graph.outputs)
        if all(path for source, path in links if not source):
            self._unpack(1 + max((path[0] for source, path in links if not source), default=-1))
        body.builder.budget.spend(sum(len(path) for _, path in links))
        hints = attention_names(self._spec, graph)

        def fetch(link: Link) -> Value:
            return reduce(_pick, link[1], values[link[0]])

        for number, node in enumerate(graph.nodes, 1):
            taken: Value = fetch(node.takes[0]) if len(node.takes) == 1 else [fetch(link) for link in node.takes]
            name = usable_name(node.name)
            if node.module is None or traits(self._spec.children[node.module]).is_identity:
                if name and isinstance(taken, Ref) and not taken.step:
                    body.block.inputs[taken.path] = name
            else:
                taken = body.apply(self._spec.children[node.module], taken, name)
                self._name(taken, name or hints.get(number, ""))
            values.append(taken)
        self._lists_in(values, links)
        results = [fetch(link) for link in graph.outputs]
        return results if graph.returns_list else results[0]

    def _lists_in(self, values: list[Value], links: list[Link]) -> None:
        """Note the elements of the input that are split, with the number of parts: Lua requires that all are used."""
        for source, path in links:
            part = values[source]
            if path and isinstance(part, Ref) and not part.step and len(part.path) == 1:
                lists = self._body.block.lists
                lists[part.path[0]] = max(lists.get(part.path[0], 0), path[0] + 1)

    def _name(self, value: Value, name: str) -> None:
        """Name a value, and the module that returns it, as the user did."""
        step = self._body.block.steps[value.step] if isinstance(value, Ref) and not value.path else None
        if name and step is not None:
            step.hint, step.named = name, True
            if step.attribute is not None and step.attribute.base == name:
                step.attribute.own = True

    def cell(self, letters: str) -> Value | None:
        """Apply a recurrent cell of torch.nn, or one that takes a list.

        Args:
            letters: those of its state.
        """
        spec = self._spec
        if self._items is None:
            return None
        call, write = self._body.builder.copy(spec), applied
        if name := IN_TORCH.get(spec.target):
            call = torch_call(name, spec.args, dict(spec.kwargs), spec)
            write = formula(
                "lambda module, x, h, c: module(x, (h, c))" if letters == "hc" else "lambda module, x, h: module(x, h)"
            )
        base = TORCH.get(traits(spec).like, TORCH["LSTMCell"]).base
        return self._with_state(self._items, call, base, Form(1), write, tuple(letters))

    def _with_state(
        self, items: list[Value], call: Construction, base: str, form: Form, write: Write, parts: tuple[str, ...]
    ) -> Value:
        """Apply a module with a state to a list; its results have names. One of torch.nn takes the elements."""
        ref = self._body.module(self._spec, call, items, base, form, write)
        step = self._body.block.steps[ref.step]
        assert step is not None
        step.parts = parts
        if write is not applied:
            step.takes = [*items]
        return [Ref(ref.step, (at,)) for at in range(len(parts))] if len(parts) > 1 else ref

    def recurrent(self) -> Value | None:
        """Apply a layer of torch.nn to sequences and a state."""
        if self._items is None:
            return None
        name = WITH_STATE[self._spec.target]
        write = formula("lambda module, x, state: module(x, state)")
        call = torch_call(name, self._spec.args, dict(self._spec.kwargs), self._spec)
        return self._with_state(self._items, call, TORCH[name].base, Form(2), write, ("", "state"))

    def stacked(self) -> Value | None:
        """Apply every module to the steps of a list as one tensor."""
        body, value = self._body, self._value
        if body.builder.inplace:  # no layer may write into the results of `unbind`
            return None
        first = body.block.steps[0]
        if value == Ref(0) and first is not None and first.kind == ANY and self._returned_list():
            first.kind = many(TENSOR)
        if not body.kind(value).is_list:
            return None
        value = body.add(Step(formula("lambda x: torch.stack(x)"), [value], kind=TENSOR))
        for child in self._children:
            value = body.apply(child, value)
        unbound = formula("lambda x: x.unbind(0)")
        return body.add(Step(unbound, [value], kind=many(TENSOR), hint="outputs", same=True, element=Form()))

    def _returned_list(self) -> bool:
        """Return whether the layer returned a list in its last call in Lua."""
        return self._spec.obj is not None and bool(items_of(self._spec.obj.get("output")))

    # Lists to tensors

    def product(self) -> Value | None:
        """Write a product of matrices."""
        if self._items is None or len(self._items) != 2:
            return None
        first, second, *_ = self._spec.args
        text = f"lambda x, y: x{'.mT' * bool(first)} @ y{'.mT' * bool(second)}"
        return self._body.add(Step(formula(text), [*self._items], form=Form(2)))

    def fold(self, symbol: str, most: int = _MOST_FOLDED) -> Value | None:
        """Write an operator between all elements; between exactly two if there may be two at most."""
        items, body, inplace = self._items, self._body, self._spec.kwargs.get("inplace")
        if not items or len(items) > most or (most == 2 and len(items) != 2):
            return None
        form, *others = map(body.form, items)
        if len(items) == 1 and not inplace:
            return body.add(Step(formula("lambda x: x.clone()"), list(items), form=form))
        # Lua follows the order in memory whatever the shapes, PyTorch the shapes.
        equal = [True, *(alike(form, other) for other in others)]
        operator = formula(f"lambda x, y: x {symbol} y")
        reshaped = formula("lambda x, first: x.reshape_as(first)")

        def write(*operands: ast.expr) -> ast.expr:
            return reduce(operator, operands)

        def unseen(listed: ast.expr) -> ast.expr:
            return write(*(listed.elts if isinstance(listed, ast.List) else (listed,)))

        def shaped(first: ast.expr, *operands: ast.expr) -> ast.expr:
            # The first operand is used twice and so has a name.
            return write(*(x if same else reshaped(x, first) for x, same in zip(operands, equal)))

        if inplace:
            call = body.builder.copy(self._spec)
            return body.module(self._spec, call, items, "", form, applied, unseen if all(equal) else None)
        if all(equal):
            return body.add(Step(write, list(items), form=form))
        return body.add(Step(shaped, [items[0], *items], form=form))

    def extreme(self, comparison: str) -> Value | None:
        """Write the larger or smaller of two tensors; of equal elements the first receives the gradient."""
        if self._items is None or len(self._items) != 2:
            return None
        form, other = map(self._body.form, self._items)
        if not alike(form, other):
            return None
        # Both are used twice, and so have names.
        write = formula(f"lambda x, y, again, once_more: torch.where(y.{comparison}(x), y, x)")
        return self._body.add(Step(write, [*self._items, *self._items], form=form))

    def _dimension(self, rank: int | None) -> int | None:
        """Return the dimension that a layer counts in one example, from the end; `None` if unknown."""
        dims, dim = self._spec.kwargs.get("n_input_dims"), self._spec.args[0]
        if dims is None or dim < 0:
            return int(dim)
        return int(dim - dims) if dim < dims == rank else None

    def join(self) -> Value | None:
        """Write a concatenation."""
        dim = self._dimension(self._common(self._value).rank)
        return None if dim is None else self._joined(self._value, dim)

    # Lists

    def split(self) -> Value | None:
        """Write the slices of a tensor along a dimension."""
        dim = self._dimension(self._body.form(self._value).rank)
        # No layer may write into the results of `unbind`.
        if dim is None or self._body.builder.inplace:
            return None
        write = formula("lambda x: x.unbind(dim)", dim=dim)
        return self._body.add(
            Step(write, [self._value], kind=many(TENSOR), hint="parts", same=True, element=Form()),
        )

    def element(self) -> Value | None:
        """Write an element."""
        index, items = self._spec.args[0], self._items
        known = items is None or (isinstance(index, int) and -len(items) <= index < len(items))
        return _pick(self._value, index) if known else None

    def slice(self) -> Value | None:
        """Write a range of elements."""
        start, length = self._spec.args
        return None if self._items is None or start < 0 or length < 0 else self._items[start : start + length]

    def list_of_one(self) -> Value:
        """Write a list of the input."""
        return [self._value]

    def reversed(self) -> Value | None:
        """Write the elements in the opposite order."""
        return None if self._items is None else self._items[::-1]

    def flat(self) -> Value | None:
        """Flatten a list, if every part of it is known to be a tensor or a list of known length."""
        found: list[Value] = []
        stack = [self._value]
        while stack:
            part = stack.pop()
            kind = self._body.kind(part)
            if kind.is_list and kind.items is not None:
                stack += [_pick(part, at) for at in range(len(kind.items) - 1, -1, -1)]
            elif kind == TENSOR:
                found.append(part)
            else:
                return None
        return found if self._items is not None or self._body.kind(self._value).is_list else None


LISTS = frozenset(name for name in vars(Lists) if not name.startswith("_"))
"""The names by which entries request steps on lists."""


def _keeps_statistics(spec: ModuleSpec) -> bool:
    """Return whether a module is a batch normalization that keeps running statistics."""
    return "running_mean" in tensor_shapes(spec.target, spec.args, spec.kwargs)


def _weight(spec: ModuleSpec) -> int:
    return 1 + sum(map(_weight, spec.children.values()))
