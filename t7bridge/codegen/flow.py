"""From a plan to steps: every module of it becomes a step, or what a person would write in its place."""

from __future__ import annotations

from itertools import pairwise

from attrs import field

from ..data import define
from ..errors import ModelError, UnsupportedError
from ..limits import DEFAULT_LIMITS, Budget, Limits
from ..nn.mapping import LAYERS
from ..nn.plan.spec import SEQUENTIAL, ModuleSpec
from .code import Call, Lit, Name, Node, apply, dotted, sequential
from .copied import Copied, pieces
from .idioms import (
    around_module,
    as_expression,
    as_module,
    copying,
    function_of,
    rank_of_copy,
    reshapes,
    traits,
)
from .lists import SUM, flow, gives_list, takes_list
from .memory import Memory
from .steps import Attribute, Ref, Step, Value, Write, applied, refs
from .torch_classes import base_name, defaults_of


@define(eq=False)
class Block:
    """A class of the source: modules, and steps between them.

    Attributes:
        spec: the module it represents.
        name: the name of the class; instances of it have the same.
        steps: the steps; number 0 is the input, and those that became part of others are `None`.
        result: what `forward` returns.
        attributes: the modules, in the order of their first use.
        inputs: what the user calls the elements of the input, where it is a list.
        width: how many elements it has, where that is known.
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
"""How many constructions may stand inside one another; Python's parser takes 200 brackets."""


def _with_target(module: Node, value: Node) -> Node:
    return apply(module, value, Name("target"))


class Builder:
    """Makes the blocks of a model and remembers which layers have to come along.

    Attributes:
        blocks: all blocks, those first that others contain.
        copied: the layers that come along, by name.
        foreign: classes of others, by what they are called: their modules.
        torch: the classes of torch.nn, by their names there.
        budget: resource limits of generating.
        memory: what modules do to memory.
        inplace: whether there is a module that changes its input.
    """

    def __init__(self, shared: set[int], limits: Limits = DEFAULT_LIMITS, free: int = 0, inplace: bool = False) -> None:
        self.blocks: list[Block] = []
        self.torch: set[str] = {"Sequential"}
        self.inplace = inplace
        self.budget = Budget(limits, "writing the model as source", free)
        self.memory = Memory()
        self.copied: dict[str, Copied] = {}
        self.foreign: dict[str, str] = {}
        self._shared = shared
        self._built: dict[int, tuple[Block, int | None]] = {}

    def root(self, spec: ModuleSpec, criterion: bool = False) -> Block:
        """The class of the whole model; that of a criterion takes a target too."""
        if not criterion:
            block = self._block(spec, None, "Model")[0]
            block.whole = True
            return block
        block = Block(spec, "Model")
        call = self.copy(spec)
        compared = self.copied[call.name].inputs > 1 if call.name in self.copied else True
        block.result = Body(self, block, None).module(
            spec, call, Ref(0), "criterion", None, _with_target if compared else applied
        )
        self.blocks.append(block)
        return block

    def construct(self, spec: ModuleSpec, rank: int | None = None) -> tuple[Call, int | None]:
        """Return the construction of a module, and the rank of its output."""
        self.budget.spend()
        module = self._module(spec, rank)
        if module is not None:
            return self._checked(module[0]), module[1]
        if spec.target == SEQUENTIAL or traits(spec).block:
            block, rank_after = self._block(spec, rank, _block_base(spec))
            return Call(block.base, spec=spec, block=block, origin=block), rank_after
        return self._checked(self.copy(spec)), rank_of_copy(spec, rank)

    def _checked(self, call: Call) -> Call:
        """A construction that Python's parser can read.

        Raises:
            UnsupportedError: too many stand inside one another.
        """
        if call.depth > _MOST_NESTED:
            raise UnsupportedError(
                "the modules of this model are nested too deep to be written down",
                path=call.spec.path if call.spec else "",
                expected=f"at most {_MOST_NESTED} modules inside one another",
                hint="`t7bridge convert` converts the weights.",
            )
        return call

    def _module(self, spec: ModuleSpec, rank: int | None) -> tuple[Call, int | None] | None:
        if spec.target == SEQUENTIAL:
            return self._plain_sequential(spec, rank)
        return as_module(spec, rank)

    def _plain_sequential(self, spec: ModuleSpec, rank: int | None) -> tuple[Call, int | None] | None:
        """An nn.Sequential, unless there is something in it that no module of torch.nn says."""
        calls = []
        for child in spec.children.values():
            if self._flows(child, rank):
                return None
            call, rank = self.construct(child, rank)
            if call.name != "nn.Identity":
                calls.append(call)
        return sequential(calls or [Call("nn.Identity")], spec), rank

    def _flows(self, spec: ModuleSpec, rank: int | None) -> bool:
        """Return whether a module is better written as steps of the class that contains it."""
        if gives_list(spec) or takes_list(spec):
            return True
        if spec.target == SEQUENTIAL:
            return False
        if as_module(spec, rank) is not None:
            return False
        return around_module(spec) is not None or as_expression(spec, rank) is not None

    def _block(self, spec: ModuleSpec, rank: int | None, base: str) -> tuple[Block, int | None]:
        if id(spec) not in self._built:
            block = Block(spec, base)
            body = Body(self, block, rank)
            begin = body.sequence if spec.target == SEQUENTIAL else body.apply
            block.result = begin(spec, Ref(0))
            body.measure(block.result)
            self.blocks.append(block)
            self._built[id(spec)] = (block, body.rank(block.result))
        return self._built[id(spec)]

    def copy(self, spec: ModuleSpec) -> Call:
        """A layer whose source comes along, with the modules in it."""
        home, _, name = spec.target.rpartition(".")
        if spec.target.startswith(LAYERS):
            self.copied.update((piece.name, piece) for piece in pieces(spec.target))
        else:
            dotted(spec.target)
            if self.foreign.setdefault(name, home) != home or not home:
                raise ModelError(f"two classes are called {name}", path=spec.path, found=spec.target)
        known = self.copied.get(name)
        call = Call(name, defaults=defaults_of(known) if known else {}, spec=spec)
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

    def annotation(self, call: Call) -> str:
        """Return the annotation of a module's output: `Tensor` or another."""
        if call.name in self.copied:
            return self.copied[call.name].returns
        return "Tensor" if call.name.startswith("nn.") else "Any"

    def is_shared(self, spec: ModuleSpec) -> bool:
        """Return whether a module is at several places of the model."""
        return id(spec) in self._shared


class Body:
    """Writes the steps of one block."""

    def __init__(self, builder: Builder, block: Block, rank: int | None) -> None:
        self.builder = builder
        self.block = block
        self._held: dict[int, Attribute] = {}
        block.steps.append(Step(applied, [], rank=rank))

    def rank(self, value: Value) -> int | None:
        """Dimensions of one example of a value."""
        if isinstance(value, Ref) and not value.path:
            step = self.block.steps[value.step]
            return step.rank if step else None
        return None

    def is_reshaped(self, value: Value) -> bool:
        """Return whether a value comes from a layer that changed its shape."""
        if not isinstance(value, Ref) or value.path:
            return False
        step = self.block.steps[value.step]
        return step is not None and step.reshaped

    def _reshaped(self, spec: ModuleSpec, value: Value) -> bool:
        given = reshapes(spec)
        return self.is_reshaped(value) if given is None else given

    def add(self, step: Step) -> Ref:
        """Add a step."""
        self.builder.budget.spend(1)
        for taken in step.takes:
            self.measure(taken)
        self.block.steps.append(step)
        return Ref(len(self.block.steps) - 1)

    def measure(self, value: Value) -> None:
        """Charge what a list is when it is written out, with lists in it that it has several times."""
        if isinstance(value, list):
            for _ in refs(value):
                self.builder.budget.spend(1)

    def sequence(self, spec: ModuleSpec, value: Value) -> Value:
        """The modules of a Sequential, one after the other."""
        children = list(spec.children.values())
        for child, following in zip(children, [*children[1:], None]):
            value = self.apply(child, value, "", following)
        return value

    def apply(self, spec: ModuleSpec, value: Value, base: str = "", following: ModuleSpec | None = None) -> Value:
        """Return the output of a module for a value.

        Args:
            spec: the module.
            value: what it takes.
            base: what it is called, if not after its class.
            following: the module that takes its output, where that helps to name things.
        """
        self.builder.budget.spend(1)
        # What is at several places is written once, as a module; but for the layers on lists, which are not modules.
        again = traits(spec).block and (spec.graph is not None or self.builder.is_shared(spec))
        if not again or spec is self.block.spec:
            done = flow(self, spec, value, following)
            if done is not None:
                return done
        if traits(spec).is_identity:
            return value
        if spec.target == SEQUENTIAL and (gives_list(spec) or takes_list(spec)) and not self.builder.is_shared(spec):
            return self.sequence(spec, value)
        rank = self.rank(value)
        around = around_module(spec)
        if around is not None:
            call, write, rank_after = around
            return self.module(spec, call, value, base, rank_after, write)
        if spec.plain and (isinstance(value, list) or spec is self.block.spec):
            return self.module(spec, self.builder.copy(spec), value, base, None)
        if spec.target != SEQUENTIAL and as_module(spec, rank) is None:
            expression = as_expression(spec, rank)
            if expression is not None:
                write, rank_after = expression
                if self.builder.inplace and traits(spec).copies:
                    write = copying(write)
                if spec.kwargs.get("inplace"):
                    call = self.builder.copy(spec)
                    return self.module(spec, call, value, base, rank_after, applied, write)
                same, reshaped = self.builder.memory.effects(spec)[1], self._reshaped(spec, value)
                return self.add(Step(write, [value], rank=rank_after, same=same, reshaped=reshaped))
        call, rank_after = self.builder.construct(spec, rank)
        return self.module(spec, call, value, base, rank_after)

    def module(
        self,
        spec: ModuleSpec,
        call: Call,
        value: Value,
        base: str,
        rank: int | None,
        write: Write = applied,
        unseen: Write | None = None,
    ) -> Ref:
        """A step that applies a module; a module that is applied before is not held twice."""
        attribute = self._held.get(id(spec))
        if attribute is not None:
            attribute.own = True
        else:
            attribute = Attribute(base or base_name(call.name), [call], own=self.builder.is_shared(spec))
            self._held[id(spec)] = attribute
            self.block.attributes.append(attribute)
        function = None if attribute.own else function_of(call)
        inplace, handed_on = self.builder.memory.effects(spec)
        kind = self.builder.annotation(call) if call.block is None else "Any"
        return self.add(
            Step(
                write,
                [value],
                attribute=attribute,
                function=function,
                unseen=unseen,
                rank=rank,
                kind=kind,
                inplace=inplace,
                same=handed_on,
                reshaped=self._reshaped(spec, value),
            )
        )


def _block_base(spec: ModuleSpec) -> str:
    """Return the name of a class, by what it does."""
    written = [traits(child).written for child in spec.children.values()]
    if (("branches",), SUM) in pairwise(written):
        return "Residual"
    return "Branches" if ("branches",) in written else traits(spec).block or "Block"
