"""From a plan to steps: every module becomes a step, or idiomatic code in its place."""

from __future__ import annotations

from itertools import pairwise

from attrs import field

from ..data import define
from ..errors import ModelError, UnsupportedError
from ..limits import DEFAULT_LIMITS, Budget, Limits
from ..nn.flows import ANY, DataFlow, Kind, listed
from ..nn.mapping import LAYERS, SEQUENTIAL, ModuleSpec
from ..nn.registry import traits_of
from .code import Construction, Lit, Name, Node, apply, dotted, sequential
from .copied import Copied, pieces
from .forms import BatchOrigin, Form
from .idioms import (
    around_module,
    as_expression,
    as_module,
    copying,
    form_of_copy,
    function_of,
    traits,
)
from .lists import SUM, flow, has_steps, returns_list, takes_list
from .memory import MemoryEffects
from .steps import Attribute, Ref, Step, Value, Write, applied, refs
from .torch_classes import base_name, defaults_of


@define(eq=False)
class CodeBlock:
    """A class of the source: modules, and steps between them.

    Attributes:
        spec: the module it represents.
        name: the name of the class; instances of it have the same.
        steps: the steps; number 0 is the input, and those merged into others are `None`.
        result: the return value of `forward`.
        attributes: the modules, in the order of their first use.
        inputs: the user's names of the elements of the input, if it is a list.
        width: number of elements of the input, if known.
        parameters: those of the constructor, with their annotations.
        whole: whether it is the class of the whole model.
    """

    spec: ModuleSpec
    base: str
    name: str = ""
    steps: list[Step | None] = field(factory=list)
    result: Value = field(factory=list)
    attributes: list[Attribute] = field(factory=list)
    inputs: dict[int, str] = field(factory=dict)
    width: int = 0
    parameters: dict[str, str] = field(factory=dict)
    whole: bool = False


_MOST_NESTED = 60
"""Maximum nesting of constructions; Python's parser allows 200 brackets."""


def _with_target(module: Node, value: Node) -> Node:
    return apply(module, value, Name("target"))


class SourceBuilder:
    """Makes the blocks of a model and collects the layers to include.

    Attributes:
        blocks: all blocks, those that others contain first.
        copied: the included layers, by name.
        foreign: modules of foreign classes, by class name.
        torch: the classes of torch.nn, by their names there.
        budget: resource limits of generating.
        memory: effects of modules on memory.
        flow: kinds of the outputs of modules.
        inplace: whether there is a module that changes its input.
    """

    def __init__(self, shared: set[int], limits: Limits = DEFAULT_LIMITS, free: int = 0, inplace: bool = False) -> None:
        self.blocks: list[CodeBlock] = []
        self.torch: set[str] = {"Sequential"}
        self.inplace = inplace
        self.budget = Budget(limits, "writing the model as source", free)
        self.memory = MemoryEffects()
        self.flow = DataFlow(traits_of)
        self.copied: dict[str, Copied] = {}
        self.foreign: dict[str, str] = {}
        self._shared = shared
        self._built: dict[int, tuple[CodeBlock, Form]] = {}

    def root(self, spec: ModuleSpec, criterion: bool = False) -> CodeBlock:
        """Return the class of the whole model; that of a criterion also has a target."""
        if not criterion:
            return self._block(spec, Form(), ANY, "Model", whole=True)[0]
        block = CodeBlock(spec, "Model")
        call = self.copy(spec)
        compared = self.copied[call.name].inputs > 1 if call.name in self.copied else True
        block.result = Body(self, block, Form(), ANY).module(
            spec, call, Ref(0), "criterion", Form(), _with_target if compared else applied
        )
        self.blocks.append(block)
        return block

    def construct(self, spec: ModuleSpec, form: Form | None = None, kind: Kind = ANY) -> tuple[Construction, Form]:
        """Return the construction of a module, and the form of its output.

        Args:
            spec: the module.
            form: that of its input. A shared module is constructed for any input.
            kind: that of its input, likewise.
        """
        self.budget.spend()
        shared = self.is_shared(spec)
        form = Form() if form is None or shared else form
        kind = ANY if shared else kind
        module = self._module(spec, form, kind)
        if module is None and (spec.target == SEQUENTIAL or (traits(spec).block and has_steps(spec, kind))):
            block, after = self._block(spec, form, kind, _block_base(spec))
            module = Construction(block.base, spec=spec, block=block, origin=block), after
        if module is None:
            module = self.copy(spec), form_of_copy(spec, form)
        # Each use of a shared module returns a form of its own.
        return self._checked(module[0]), Form(module[1].rank) if shared else module[1]

    def _checked(self, call: Construction) -> Construction:
        """Return a construction that Python's parser can read.

        Raises:
            UnsupportedError: the nesting is too deep.
        """
        if call.depth > _MOST_NESTED:
            raise UnsupportedError(
                "the modules of this model are nested too deep to be written down",
                path=call.spec.path if call.spec else "",
                expected=f"at most {_MOST_NESTED} modules inside one another",
                hint="`t7bridge convert` converts the weights.",
            )
        return call

    def _module(self, spec: ModuleSpec, form: Form, kind: Kind) -> tuple[Construction, Form] | None:
        if spec.target == SEQUENTIAL:
            return self._plain_sequential(spec, form, kind)
        return None if spec.plain and kind.is_list else as_module(spec, form)

    def _plain_sequential(self, spec: ModuleSpec, form: Form, kind: Kind) -> tuple[Construction, Form] | None:
        """Return an nn.Sequential, unless it contains something that no module of torch.nn expresses."""
        calls = []
        for child in spec.children.values():
            if self._flows(child, form):
                return None
            call, form = self.construct(child, form, kind)
            kind = self.flow(child, kind)
            if call.name != "nn.Identity":
                calls.append(call)
        return sequential(calls or [Construction("nn.Identity")], spec), form

    def _flows(self, spec: ModuleSpec, form: Form) -> bool:
        """Return whether a module is better written as steps of the class that contains it."""
        if returns_list(spec) or takes_list(spec):
            return True
        if spec.target == SEQUENTIAL:
            return False
        if as_module(spec, form) is not None:
            return False
        return around_module(spec, form) is not None or as_expression(spec, form) is not None

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

    def copy(self, spec: ModuleSpec) -> Construction:
        """Return a layer whose source is included, with the modules in it."""
        home, _, name = spec.target.rpartition(".")
        if spec.target.startswith(LAYERS):
            self.copied.update((piece.name, piece) for piece in pieces(spec.target))
        else:
            dotted(spec.target)
            if self.foreign.setdefault(name, home) != home or not home:
                raise ModelError(f"two classes are named {name}", path=spec.path, found=spec.target)
        known = self.copied.get(name)
        call = Construction(name, defaults=defaults_of(known) if known else {}, spec=spec)
        for key, child in spec.children.items():
            inner = self.construct(child)[0]
            call.hold(key, inner)
            if key.isdigit():
                call.args.append(inner)
            else:
                call.kwargs[key] = inner
        self.budget.spend(len(spec.args))
        call.args += [Lit(value) for value in spec.args]
        given: dict[str, Node] = {key: Lit(value, key) for key, value in spec.kwargs.items()}
        call.kwargs.update(given)
        return call

    def is_shared(self, spec: ModuleSpec) -> bool:
        """Return whether a module occurs at several places of the model."""
        return id(spec) in self._shared


class Body:
    """Writes the steps of one block."""

    def __init__(self, builder: SourceBuilder, block: CodeBlock, form: Form, kind: Kind) -> None:
        self.builder = builder
        self.block = block
        self._held: dict[int, Attribute] = {}
        self._inner: dict[Ref, Form] = {}
        self._kinds: dict[int, tuple[Value, Kind]] = {}
        form = Form(origin=BatchOrigin(given=True)) if block.whole else form
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
        given = self.block.whole and not value.step
        return self._inner.setdefault(value, Form(origin=BatchOrigin(given=given)))

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
        # A shared module is written once; except for layers on lists, which are not modules.
        again = traits(spec).block and (spec.graph is not None or self.builder.is_shared(spec))
        if not again or spec is self.block.spec:
            done = flow(self, spec, value, following)
            if done is not None:
                return done
        if traits(spec).is_identity:
            return value
        if spec.target == SEQUENTIAL and (returns_list(spec) or takes_list(spec)) and not self.builder.is_shared(spec):
            return self.sequence(spec, value)
        form = self.form(value)
        around = around_module(spec, form)
        if around is not None:
            call, write, after = around
            return self.module(spec, call, value, base, after, write)
        kind = self.kind(value)
        if spec.plain and (kind.is_list or spec is self.block.spec):
            return self.module(spec, self.builder.copy(spec), value, base, Form())
        if spec.target != SEQUENTIAL and as_module(spec, form) is None:
            expression = as_expression(spec, form)
            if expression is not None:
                write, after = expression
                if self.builder.inplace and traits(spec).copies:
                    write = copying(spec, write)
                if spec.kwargs.get("inplace"):
                    call = self.builder.copy(spec)
                    return self.module(spec, call, value, base, after, applied, write)
                return self.add(Step(write, [value], form=after, same=self.builder.memory.effects(spec)[1]))
        call, after = self.builder.construct(spec, form, kind)
        return self.module(spec, call, value, base, after)

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
        function = None if attribute.own else function_of(call)
        inplace, handed_on = self.builder.memory.effects(spec)
        return self.add(
            Step(
                write,
                [value],
                attribute=attribute,
                function=function,
                unseen=unseen,
                form=form,
                kind=self.builder.flow(spec, self.kind(value)),
                inplace=inplace,
                same=handed_on,
            )
        )


def _block_base(spec: ModuleSpec) -> str:
    """Return the name of a class, by its function."""
    written = [traits(child).written for child in spec.children.values()]
    if (("branches",), SUM) in pairwise(written):
        return "Residual"
    return "Branches" if ("branches",) in written else traits(spec).block or "Block"
