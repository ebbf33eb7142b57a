"""From a plan to steps, the data flow before anything has a name: a module becomes a step, or plain PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

from ..errors import ModelError, UnsupportedError
from ..limits import Budget, Limits
from ..nn import walk
from ..nn.fields import items_of
from ..nn.kinds import ANY, NEVER, NOTHING, TENSOR, Kind, Kinds, listed, many
from ..nn.mapping import OURS, SEQUENTIAL, Link, ModuleSpec, end_of, specs_in
from ..nn.memory import MemoryEffects
from ..nn.pieces import IN_TORCH, WITH_STATE
from ..nn.registry import tensor_shapes, traits_of
from ..nn.torch_nn import TORCH
from .attention import attention_names
from .code import TAKEN, Construction, Write, applied, dotted, formula, sequential, usable_name
from .copied import Copied, defaults_of, pieces, remembers, reserved_names
from .idioms import (
    BatchOrigin,
    Form,
    Idiom,
    alike,
    base_name,
    copying,
    form_of_copy,
    function_of,
    idiom_of,
    torch_call,
    traits,
)
from .steps import Attribute, CodeBlock, Ref, Step, Value, pick, refs

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

    def construct(
        self, spec: ModuleSpec, form: Form | None = None, kind: Kind = ANY, idiom: Idiom | None = None
    ) -> tuple[Construction, Form]:
        """Return the construction of a module, and the form of its output.

        Args:
            spec: the module.
            form: that of its input. A shared module is constructed for any input.
            kind: that of its input, likewise.
            idiom: plain PyTorch for the module and this form, if known.

        Raises:
            UnsupportedError: the nesting is too deep for Python's parser.
        """
        self.budget.spend()
        shared = self.is_shared(spec)
        if form is None or shared:
            form = Form()
            idiom = None
        kind = ANY if shared else kind
        call, after = self._plain(spec, form, kind, idiom)
        if call is None and (spec.target == SEQUENTIAL or (traits(spec).block and self.has_steps(spec, kind))):
            block, after = self._block(spec, form, kind, _block_base(spec))
            call = Construction(block.base, spec=spec, block=block, origin=block)
        elif call is None:
            call = self.copy(spec)
            after = form_of_copy(spec, form)
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

    def _plain(self, spec: ModuleSpec, form: Form, kind: Kind, idiom: Idiom | None) -> tuple[Construction | None, Form]:
        """Return a module of torch.nn and the form of its output, if it expresses the whole module."""
        if spec.target != SEQUENTIAL:
            # The class of torch.nn takes no list.
            if spec.plain and kind.is_list:
                return None, form
            idiom = idiom or idiom_of(spec, form)
            if idiom is None or idiom.write is not applied:
                return None, form
            return idiom.call, idiom.form
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
        imported_name = name
        number = 1
        while imported_name in reserved or self.foreign.get(imported_name, (home, name)) != (home, name):
            imported_name = f"Own{name}" if number == 1 else f"Own{name}{number}"
            number += 1
        self.foreign[imported_name] = home, name
        return imported_name

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
        # Children with numbers are positional arguments, before the others.
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for key, child in spec.children.items():
            call, _ = self.construct(child)
            if key.isdigit():
                positional.append(call)
            else:
                keywords[key] = call
        self.budget.spend(len(spec.args))
        defaults = defaults_of(self.copied[name]) if name in self.copied else {}
        return Construction(name, [*positional, *spec.args], {**keywords, **spec.kwargs}, defaults, spec=spec)

    def has_steps(self, spec: ModuleSpec, kind: Kind) -> bool:
        """Return whether a module can be written as steps for an input of a kind.

        Lua leaves an output that is nothing out of the list that a container returns; steps would have an element for
        it. A ParallelTable has steps if its input certainly has an element for each module whose output is not nothing;
        a ConcatTable if its input is certainly something, or no output is nothing even for an input that is nothing.
        """
        flow = traits(spec).flow
        width = len(spec.children)
        if flow is walk.parallel:
            after = self.flow(spec, kind)
            elements = width if kind.items is None else len(kind.items)
            return after.items is not None and len(after.items) <= elements
        if flow is not walk.branches or kind != ANY:
            return True
        after = self.flow(spec, NOTHING)
        return after is NEVER or len(after.items or ()) == width

    def is_shared(self, spec: ModuleSpec) -> bool:
        """Return whether a module occurs at several places of the model."""
        return id(spec) in self._shared


def _block_base(spec: ModuleSpec) -> str:
    """Return the name of a class, by its function."""
    inside = [traits(child) for child in spec.children.values()]
    for facts, following in pairwise(inside):
        if facts.flow is walk.branches and following.written == SUM:
            return "Residual"
    if any(facts.flow is walk.branches for facts in inside):
        return "Branches"
    return traits(spec).block or "Block"


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
            # With the list itself, which keeps its id from being used again.
            if id(value) not in self._kinds:
                self._kinds[id(value)] = (value, listed(map(self.kind, value)))
            return self._kinds[id(value)][1]
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
        return Steps(self, spec, value).written()

    def apply(self, spec: ModuleSpec, value: Value, base: str = "", following: ModuleSpec | None = None) -> Value:
        """Return the output of a module for a value.

        Args:
            spec: the module.
            value: its input.
            base: its name, if not derived from its class.
            following: the module that uses its output, to help naming.
        """
        self.builder.budget.spend(1)
        facts = traits(spec)
        shared = self.builder.is_shared(spec)
        # A graph is a class of its own, and a module that is used again. Layers on lists never are.
        may_be_class = bool(facts.block) or (bool(spec.children) and not facts.written)
        is_own_class = may_be_class and (spec.graph is not None or shared)
        if not is_own_class or spec is self.block.spec:
            output = self._without_class(spec, value, following)
            if output is not None:
                return output
        if facts.is_identity:
            return value
        if spec.target == SEQUENTIAL and (_returns_list(spec) or _takes_list(spec)) and not shared:
            return self.sequence(spec, value)
        return self._tensor(spec, value, base)

    def _without_class(self, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
        """Return the output of a module on lists that is written as steps; `None` where its class is needed."""
        facts = traits(spec)
        # How the entry of the class has it written: the name of a method of `Lists`, or `BY_FLOW`.
        name, *arguments = facts.written or ("",)
        if name in LISTS:
            output: Value | None = getattr(Lists(self, spec, value), name)(*arguments)
            return output
        is_by_flow = facts.transparent or name == BY_FLOW
        if not is_by_flow or facts.is_identity or spec.target == SEQUENTIAL:
            return None
        try:
            steps = Steps(self, spec, value, following)
        except (NotWritten, *walk.FLOW_ERRORS):
            return None
        return steps.written()

    def joined(self, parts: Value, dim: int) -> Ref:
        """Add a step that concatenates the elements of a list."""
        return self.add(Step(formula("lambda x: torch.cat(x, dim)", dim=dim), [parts], form=self.common(parts)))

    def common(self, parts: Value) -> Form:
        """Return the form of concatenated values: their rank, if they share one."""
        if not isinstance(parts, list):
            return Form()
        ranks = {self.form(part).rank for part in parts}
        return Form(ranks.pop() if len(ranks) == 1 else None)

    def _tensor(self, spec: ModuleSpec, value: Value, base: str) -> Value:
        """Return the output of a module that is not written as steps on lists."""
        form = self.form(value)
        kind = self.kind(value)
        idiom = idiom_of(spec, form)
        # A module of torch.nn, with operations around it.
        if idiom is not None and idiom.call is not None and idiom.write is not applied:
            return self.module(spec, idiom.call, value, base, idiom.form, idiom.write)
        # The class of torch.nn takes no list; a block that is the module itself would contain itself.
        if spec.plain and (kind.is_list or spec is self.block.spec):
            return self.module(spec, self.builder.copy(spec), value, base, Form())
        # A module alone.
        if idiom is None or idiom.call is not None:
            call, after = self.builder.construct(spec, form, kind, idiom)
            return self.module(spec, call, value, base, after)
        # An expression. Lua's layer copies, which matters if another layer writes into its result.
        write = idiom.write
        if self.builder.inplace and traits(spec).copies:
            write = copying(spec, write)
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


class NotWritten(Exception):
    """A module cannot be written as steps: its class is needed."""


class OnLists(walk.Domain[Value]):
    """The domain of steps: a value is the result of a step, or a list of values.

    Args:
        body: the class that receives the steps.
        spec: the module that is written.
        value: its input.
    """

    def __init__(self, body: Body, spec: ModuleSpec, value: Value) -> None:
        self._body = body
        self._spec = spec
        self._value = value

    def tensor(self) -> Value:
        """Refuse what the module computes itself."""
        raise NotWritten

    def items(self, values: Sequence[Value]) -> Value:
        """Return a list."""
        return list(values)

    def many(self, values: Sequence[Value]) -> Value:
        """Refuse a list of unknown length."""
        raise NotWritten

    def item(self, value: Value, index: int, dim: int | None = None) -> Value:
        """Return an element of a list."""
        _require(dim is None)  # an element of a tensor
        if not isinstance(value, Ref):
            _require(isinstance(index, int) and -len(value) <= index < len(value))
        return pick(value, index)

    def length(self, value: Value, dim: int | None = None) -> int | None:
        """Return the number of elements of a list, if it is known."""
        _require(dim is None)
        items = self._body.kind(value).items
        return None if items is None else len(items)

    def is_list(self, value: Value) -> bool | None:
        """Return whether a value is a list, if it is known."""
        kind = self._body.kind(value)
        if kind.is_list:
            return True
        return False if kind == TENSOR else None

    def elements(self, value: Value, count: int) -> list[Value]:
        """Return the first elements of a list, at most those that it is known to have."""
        items = self._body.kind(value).items
        if items is not None:
            count = min(count, len(items))
        return [pick(value, number) for number in range(count)]

    def merge(self, value: Value, dims: int, apply: Callable[[Value], Value]) -> Value:
        """Refuse other dimensions."""
        raise NotWritten

    def steps(self, value: Value, apply: Callable[[Value], Value]) -> Value:
        """Refuse a loop."""
        raise NotWritten

    def repeat(self, times: int | None, apply: Callable[[], Value]) -> Value:
        """Refuse a loop."""
        raise NotWritten

    def reversed(self, value: Value) -> Value:
        """Return the elements of a list in the opposite order."""
        _require(isinstance(value, list))
        return super().reversed(value)


class Trial(OnLists):
    """The calls of the modules in a container, before any step is added.

    Their outputs are references with negative numbers: -1 for that of the first call.

    Attributes:
        children: the names of the modules that are called, in order.
        following: of each call, the module that receives its output.
        branches: the numbers of the calls whose outputs are elements, or parts, of the container's.
        repeated: the names of modules that are called for each element of a list, or several times.
        splits_input: whether the container returns a list of what two modules return for its whole input.

    Raises:
        NotWritten: its class is needed.
    """

    def __init__(self, body: Body, spec: ModuleSpec, value: Value) -> None:
        super().__init__(body, spec, value)
        self.children: list[str] = []
        self._called: set[str] = set()
        self.following: dict[int, str] = {}
        self.branches: set[int] = set()
        self.repeated: set[str] = set()
        self._is_for_each = False
        self._of_input: set[int] = set()
        facts = traits(spec)
        assert facts.flow is not None
        result: Value = facts.flow(spec, value, self)
        parts = result if isinstance(result, list) else []
        self._note_branches(parts)
        self.splits_input = len(parts) == 2 and self.branches == self._of_input == {0, 1}
        is_partial = value == Ref(0) and not body.block.whole
        if facts.flow is walk.parallel or (facts.flow is walk.branches and is_partial):
            _require(body.builder.has_steps(spec, body.kind(value)))

    def was_list(self, value: Value) -> bool:
        """Return whether the input of a class, of which nothing is known, was a list in the last call in Lua."""
        is_unknown = value == Ref(0) and self._body.kind(value) == ANY
        # What it returned was one then, too.
        return is_unknown and self._spec.obj is not None and bool(items_of(self._spec.obj.get("output")))

    def length(self, value: Value, dim: int | None = None) -> int | None:
        """Return the number of elements of a list; that of an output is not known yet."""
        _require(not _is_output(value))
        return super().length(value, dim)

    def is_list(self, value: Value) -> bool | None:
        """Return whether a value is a list; of an output that is not known yet."""
        _require(not _is_output(value))
        return super().is_list(value)

    def elements(self, value: Value, count: int) -> list[Value]:
        """Return the first elements of a list; those of an output are not known yet."""
        _require(not _is_output(value))
        return super().elements(value, count)

    def concat(self, values: Sequence[Value], dim: int, *, pads: bool = False) -> Value:
        """Return a tensor."""
        _require(not pads)
        self._note_branches(values)
        return Ref(_COMPUTED)

    def stack(self, value: Value, apply: Callable[[Value], Value]) -> Value:
        """Return a list, if no layer may write into it: it has the memory of one tensor."""
        _require(not self._body.builder.inplace)
        _require(self._body.kind(value).is_list or self.was_list(value))
        apply(Ref(_COMPUTED))
        return Ref(_COMPUTED)

    def each(self, value: Value, apply: Callable[[int, Value], Value], different: int) -> Value:
        """Apply one module, or copies of it, to all elements of a list."""
        _require(isinstance(value, list))
        self._is_for_each = True
        output = super().each(value, apply, different)
        self._is_for_each = False
        return output

    def call(self, spec: ModuleSpec, child: str, value: Value, node: int | None = None) -> Value:
        """Note a call, and return its output."""
        number = len(self.children)
        _require(number < _MOST_CALLS)
        if node is None:
            self._note_call(number, spec.children[child], child, value)
        self.children.append(child)
        self._called.add(child)
        return Ref(-1 - number)

    def _note_call(self, number: int, inside: ModuleSpec, child: str, value: Value) -> None:
        """Note what a call says of its module, and of the one whose output it takes.

        Args:
            number: of the call.
            inside: the module that is called.
            child: its name in the container.
            value: its input.
        """
        is_called_before = child in self._called
        if self._is_for_each:
            _require(not (_returns_list(inside) or _takes_list(inside)))
            # Lua has a copy of the module for each element, with a state and with statistics of its own.
            _require(not any(map(remembers, specs_in(inside))))
            _require(not (is_called_before and any(map(_keeps_statistics, specs_in(inside)))))
        if self._is_for_each or is_called_before:
            self.repeated.add(child)
        if _is_output(value) and isinstance(value, Ref) and not value.path:
            caller = -1 - value.step  # the number of the call whose output the value is
            self.following[caller] = child
        if value is self._value:
            self._of_input.add(number)

    def _note_branches(self, parts: Sequence[Value]) -> None:
        self.branches |= {-1 - part.step for part in parts if isinstance(part, Ref) and _is_output(part)}


_COMPUTED = -(10**9)
"""In a trial, the number of what a container computes of several values."""
_MOST_CALLS = 100_000
"""Maximum number of calls in one container."""


def _is_output(value: Value) -> bool:
    """Return whether a value is an output in a trial, which may become a list or a reference."""
    return isinstance(value, Ref) and value.step < 0


def _require(condition: bool) -> None:
    """Refuse to write a module as steps unless a condition holds."""
    if not condition:
        raise NotWritten


class Steps(OnLists):
    """Adds the steps of a container, or of a layer that rearranges lists, to a class.

    Args:
        body: the class that receives the steps.
        spec: the module.
        value: its input.
        following: the module that uses its output, to help naming.

    Raises:
        NotWritten: its class is needed; nothing was added.
    """

    def __init__(self, body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None = None) -> None:
        super().__init__(body, spec, value)
        self._trial = Trial(body, spec, value)
        self._following = following
        self._calls = 0
        self._values: list[Value] = [value]
        """Of a graph, the input and the outputs of all nodes."""
        self._hints: dict[int, str] = {}

    def written(self) -> Value:
        """Add the steps; return the output."""
        graph = self._spec.graph
        flow = traits(self._spec).flow
        assert flow is not None
        if graph is None:
            output: Value = flow(self._spec, self._value, self)
            return output
        links = [link for node in graph.nodes for link in node.takes] + list(graph.outputs)
        paths_in_input = [path for source, path in links if source == 0]  # source 0 is the input of the graph
        if all(paths_in_input):  # an empty path is the input as a whole
            self._unpack(1 + max((path[0] for path in paths_in_input), default=-1))
        self._body.builder.budget.spend(sum(len(path) for _, path in links))
        self._hints = attention_names(self._spec, graph)
        output = flow(self._spec, self._value, self)
        self._lists_in(links)
        return output

    def item(self, value: Value, index: int, dim: int | None = None) -> Value:
        """Return an element of a list.

        Raises:
            ModelError: what a module inside returns has no such element.
        """
        try:
            return super().item(value, index, dim)
        except NotWritten as error:
            number = index + 1 if isinstance(index, int) else repr(index)  # Lua counts from 1
            raise ModelError(
                "takes an element of a list that has no such element",
                path=self._spec.path,
                expected=f"one of {len(value)}" if isinstance(value, list) else "an element",
                found=f"element {number}",
            ) from error

    def elements(self, value: Value, count: int) -> list[Value]:
        """Return the first elements of a list; those of the input of a class get names."""
        if value == Ref(0):
            kind = self._body.kind(value)
            self._unpack(count if kind.items is None else len(kind.items), kind.items is None)
        return super().elements(value, count)

    def concat(self, values: Sequence[Value], dim: int, *, pads: bool = False) -> Value:
        """Concatenate tensors."""
        return self._body.joined(list(values), dim)

    def stack(self, value: Value, apply: Callable[[Value], Value]) -> Value:
        """Apply a function to the steps of a list as one tensor."""
        body = self._body
        first = body.block.steps[0]
        if first is not None and self._trial.was_list(value):
            first.kind = many(TENSOR)
        stacked = body.add(Step(formula("lambda x: torch.stack(x)"), [value], kind=TENSOR))
        unbound = formula("lambda x: x.unbind(0)")
        output = apply(stacked)
        return body.add(Step(unbound, [output], kind=many(TENSOR), hint="outputs", same=True, element=Form()))

    def call(self, spec: ModuleSpec, child: str, value: Value, node: int | None = None) -> Value:
        """Apply a module inside."""
        number = self._calls
        self._calls += 1
        inside = spec.children[child]
        if node is not None:
            assert spec.graph is not None
            return self._body.apply(inside, value, usable_name(spec.graph.nodes[node].name))
        if child in self._trial.repeated:
            call, _ = self._body.builder.construct(inside)
            return value if call.name == "nn.Identity" else self._body.module(inside, call, value, "", Form())
        after = self._trial.following.get(number)
        return self._body.apply(inside, value, self._base(number), None if after is None else spec.children[after])

    def _base(self, number: int) -> str:
        """Return the name of the module of a call, if it is not derived from its class."""
        if number not in self._trial.branches:
            return ""
        is_residual = self._following is not None and traits(self._following).written == SUM
        if not is_residual or not self._trial.splits_input:
            return "branch"
        # Of two branches that are added up, the one of more modules is the body; of two equal ones the first.
        first, second = (_size_of(self._spec.children[child]) for child in self._trial.children)
        number_of_body = 0 if first >= second else 1
        return "body" if number == number_of_body else "shortcut"

    def node(self, spec: ModuleSpec, number: int, value: Value) -> Value:
        """Name the output of a node of a graph as the user did."""
        assert spec.graph is not None
        node = spec.graph.nodes[number]
        name = usable_name(node.name)
        if node.module is None or traits(spec.children[node.module]).is_identity:
            if name and isinstance(value, Ref) and not value.step:
                self._body.block.inputs[value.path] = name
        else:
            self._name(value, name or self._hints.get(number + 1, ""))
        self._values.append(value)
        return value

    def _name(self, value: Value, name: str) -> None:
        """Give a value the user's name; its module is not joined with others if it has that name."""
        if not name or not isinstance(value, Ref) or value.path:
            return
        step = self._body.block.steps[value.step]
        if step is None:
            return
        step.hint = name
        step.named = True
        if step.attribute is not None and step.attribute.base == name:
            step.attribute.own = True

    def _unpack(self, width: int, more: bool = False) -> None:
        """Give elements of the input names of their own, unless there are too many; `more` if others are ignored."""
        block = self._body.block
        block.more = more and (block.more or not block.width)
        block.width = max(width, block.width) if width <= _MOST_UNPACKED else 0

    def _lists_in(self, links: list[Link]) -> None:
        """Note the elements of the input that are split, with the number of parts: Lua requires that all are used."""
        for source, path in links:
            part = self._values[source]
            if path and isinstance(part, Ref) and not part.step and len(part.path) == 1:
                lists = self._body.block.lists
                lists[part.path[0]] = max(lists.get(part.path[0], 0), path[0] + 1)


# Layers on lists


class Lists:
    """Writers of layers on lists as steps, by the name in their entries; `None` where the class itself is needed.

    Args:
        body: the class that receives the steps.
        spec: the module.
        value: its input.
    """

    def __init__(self, body: Body, spec: ModuleSpec, value: Value) -> None:
        self._body = body
        self._spec = spec
        self._value = value
        self._items = value if isinstance(value, list) else None

    def cell(self, letters: str) -> Value | None:
        """Apply a recurrent cell of torch.nn, or one that takes a list.

        Args:
            letters: those of its state.
        """
        spec = self._spec
        if self._items is None:
            return None
        call = self._body.builder.copy(spec)
        write = applied
        if spec.target in IN_TORCH:
            call = torch_call(IN_TORCH[spec.target], spec.args, dict(spec.kwargs), spec)
            # PyTorch's LSTM takes its two states as a tuple.
            if letters == "hc":
                write = formula("lambda module, x, h, c: module(x, (h, c))")
            else:
                write = formula("lambda module, x, h: module(x, h)")
        base = TORCH.get(traits(spec).like, TORCH["LSTMCell"]).base
        return self._with_state(self._items, call, base, Form(1), write, tuple(letters))

    def _with_state(
        self, items: list[Value], call: Construction, base: str, form: Form, write: Write, parts: tuple[str, ...]
    ) -> Value:
        """Apply a module with a state to a list of its input and the state.

        Args:
            items: the list.
            call: the construction of the module.
            base: the name of its attribute.
            form: of its results.
            write: makes the expression: of the module and the list, or of the module and each element for torch.nn.
            parts: names for its results.
        """
        ref = self._body.module(self._spec, call, items, base, form, write)
        step = self._body.block.steps[ref.step]
        assert step is not None
        step.parts = parts
        if write is not applied:
            step.takes = [*items]
        if len(parts) == 1:
            return ref
        return [Ref(ref.step, (at,)) for at in range(len(parts))]

    def recurrent(self) -> Value | None:
        """Apply a layer of torch.nn to sequences and a state."""
        if self._items is None:
            return None
        name = WITH_STATE[self._spec.target]
        write = formula("lambda module, x, state: module(x, state)")
        call = torch_call(name, self._spec.args, dict(self._spec.kwargs), self._spec)
        return self._with_state(self._items, call, TORCH[name].base, Form(2), write, ("", "state"))

    # Lists to tensors

    def product(self) -> Value | None:
        """Write a product of matrices."""
        if self._items is None or len(self._items) != 2:
            return None
        first, second, *_ = self._spec.args
        text = f"lambda x, y: x{'.mT' * bool(first)} @ y{'.mT' * bool(second)}"
        return self._body.add(Step(formula(text), [*self._items], form=Form(2)))

    def fold(self, symbol: str, most: int = _MOST_FOLDED) -> Value | None:
        """Write an operator between all elements.

        Args:
            symbol: the operator.
            most: the greatest number of elements; if it is 2, there must be two.
        """
        items = self._items
        body = self._body
        inplace = self._spec.kwargs.get("inplace")
        if not items or len(items) > most:
            return None
        # Lua's difference and quotient take exactly two.
        if most == 2 and len(items) != 2:
            return None
        form, *others = map(body.form, items)
        if len(items) == 1 and not inplace:
            return body.add(Step(formula("lambda x: x.clone()"), list(items), form=form))
        # Lua adds in the order of memory whatever the shapes, PyTorch by shapes: other shapes become the first's.
        same_shapes = [True, *(alike(form, other) for other in others)]
        operator = formula(f"lambda x, y: x {symbol} y")
        reshaped = formula("lambda x, first: x.reshape_as(first)")

        def write(*operands: ast.expr) -> ast.expr:
            return reduce(operator, operands)

        def write_of_list(operands: ast.expr) -> ast.expr:
            return write(*operands.elts) if isinstance(operands, ast.List) else operands

        def write_with_reshapes(first: ast.expr, *operands: ast.expr) -> ast.expr:
            # The first operand is used twice and so has a name.
            return write(*(x if is_same else reshaped(x, first) for x, is_same in zip(operands, same_shapes)))

        if inplace:
            call = body.builder.copy(self._spec)
            unseen = write_of_list if all(same_shapes) else None
            return body.module(self._spec, call, items, "", form, applied, unseen)
        if all(same_shapes):
            return body.add(Step(write, list(items), form=form))
        return body.add(Step(write_with_reshapes, [items[0], *items], form=form))

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
        dims = self._spec.kwargs.get("n_input_dims")
        dim = self._spec.args[0]
        if dims is None or dim < 0:
            return int(dim)
        is_of_example = dim < dims and dims == rank
        return int(dim - dims) if is_of_example else None

    def join(self) -> Value | None:
        """Write a concatenation."""
        dim = self._dimension(self._body.common(self._value).rank)
        return None if dim is None else self._body.joined(self._value, dim)

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


LISTS = frozenset(name for name in vars(Lists) if not name.startswith("_"))
"""The names by which entries request steps for layers on lists."""
BY_FLOW = "flow"
"""The name by which entries of containers request steps by their flow."""


def _keeps_statistics(spec: ModuleSpec) -> bool:
    """Return whether a module is a batch normalization that keeps running statistics."""
    return "running_mean" in tensor_shapes(spec.target, spec.args, spec.kwargs)


def _size_of(spec: ModuleSpec) -> int:
    """Return the number of modules in a module, with itself."""
    return 1 + sum(map(_size_of, spec.children.values()))
