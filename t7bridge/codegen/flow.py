"""From a plan to steps: every module of it becomes a step, or what a person would write in its place."""

from __future__ import annotations

from itertools import pairwise

from attrs import field

from ..data import define
from ..nn.plan.spec import SEQUENTIAL, ModuleSpec
from .code import Call, Lit, Node, sequential
from .copied import Copied, pieces
from .idioms import around_module, as_expression, as_module, function_of, short
from .lists import CONTAINERS, FLOWS, OPENED, gives_list, takes_list
from .memory import effects
from .steps import APPLY, SUM, Attribute, Ref, Step, Value
from .torch_classes import base_name


@define(eq=False)
class Block:
    """A class of the source: modules, and steps between them.

    Attributes:
        spec: the module it stands for.
        name: the name of the class; instances of it have the same.
        steps: the steps; number 0 is the input, and those that became part of others are `None`.
        result: what `forward` returns.
        attributes: the modules, in the order of their first use.
        inputs: what the user calls the elements of the input, where it is a list.
        width: how many elements it has, where that is known.
        parameters: those of the constructor, with their annotations.
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


class Builder:
    """Makes the blocks of a model and remembers which layers have to come along.

    Attributes:
        blocks: all blocks, those first that others contain.
        copied: the layers that come along, by name.
        foreign: classes of others, by what they are called: their modules.
    """

    def __init__(self, shared: set[int]) -> None:
        self.blocks: list[Block] = []
        self.copied: dict[str, Copied] = {}
        self.foreign: dict[str, str] = {}
        self._shared = shared
        self._built: dict[int, tuple[Block, int | None]] = {}

    def root(self, spec: ModuleSpec, criterion: bool = False) -> Block:
        """The class of the whole model; that of a criterion takes a target too."""
        if not criterion:
            return self._block(spec, None, "Model")[0]
        block = Block(spec, "Model")
        call = self.copy(spec)
        template = "{m}({0}, target)" if self.copied[call.name].inputs > 1 else APPLY
        block.result = Body(self, block, None).module(spec, call, Ref(0), "criterion", None, template)
        self.blocks.append(block)
        return block

    def construct(self, spec: ModuleSpec, rank: int | None = None) -> tuple[Call, int | None]:
        """The construction of a module, and the rank of what it gives."""
        module = self._module(spec, rank)
        if module is not None:
            return module
        if spec.target == SEQUENTIAL or short(spec) in CONTAINERS:
            block, rank_after = self._block(spec, rank, _block_base(spec))
            return Call(block.base, spec=spec, block=block, origin=block), rank_after
        return self.copy(spec), None

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
        """Whether a module is better written as steps of the class that contains it."""
        if spec.target == SEQUENTIAL:
            return gives_list(spec) or takes_list(spec)
        if short(spec) in OPENED:
            return True
        if as_module(spec, rank) is not None:
            return False
        return around_module(spec) is not None or as_expression(spec, rank) is not None

    def _block(self, spec: ModuleSpec, rank: int | None, base: str) -> tuple[Block, int | None]:
        if id(spec) not in self._built:
            block = Block(spec, base)
            body = Body(self, block, rank)
            begin = body.sequence if spec.target == SEQUENTIAL else body.apply
            block.result = begin(spec, Ref(0))
            self.blocks.append(block)
            self._built[id(spec)] = (block, body.rank(block.result))
        return self._built[id(spec)]

    def copy(self, spec: ModuleSpec) -> Call:
        """A layer whose source comes along, with the modules in it."""
        home, _, name = spec.target.rpartition(".")
        if home.startswith("t7bridge."):
            self.copied.update((piece.name, piece) for piece in pieces(spec.target))
        else:
            self.foreign[name] = home
        known = self.copied.get(name)
        call = Call(name, defaults=dict(known.defaults) if known else {}, spec=spec)
        for key, child in spec.children.items():
            inner = self.construct(child)[0]
            call.inside.append((key, inner))
            if key.isdigit():
                call.args.append(inner)
            else:
                call.kwargs[key] = inner
        call.args += [Lit(value) for value in spec.args]
        given: dict[str, Node] = {key: Lit(value, key) for key, value in spec.kwargs.items()}
        call.kwargs.update(given)
        return call

    def annotation(self, call: Call) -> str:
        """What a module returns: `Tensor` or another annotation."""
        if call.name in self.copied:
            return self.copied[call.name].returns
        return "Tensor" if call.name.startswith("nn.") else "Any"

    def is_shared(self, spec: ModuleSpec) -> bool:
        """Whether a module is at several places of the model."""
        return id(spec) in self._shared


class Body:
    """Writes the steps of one block."""

    def __init__(self, builder: Builder, block: Block, rank: int | None) -> None:
        self.builder = builder
        self.block = block
        self._held: dict[int, Attribute] = {}
        block.steps.append(Step("", [], rank=rank))

    def rank(self, value: Value) -> int | None:
        """Dimensions of one example of a value."""
        if isinstance(value, Ref) and not value.path:
            step = self.block.steps[value.step]
            return step.rank if step else None
        return None

    def add(self, step: Step) -> Ref:
        """Add a step."""
        step.needs += [SUM] * (len(step.takes) - len(step.needs))
        self.block.steps.append(step)
        return Ref(len(self.block.steps) - 1)

    def sequence(self, spec: ModuleSpec, value: Value) -> Value:
        """The modules of a Sequential, one after the other."""
        children = list(spec.children.values())
        for child, following in zip(children, [*children[1:], None]):
            value = self.apply(child, value, "", following)
        return value

    def apply(self, spec: ModuleSpec, value: Value, base: str = "", following: ModuleSpec | None = None) -> Value:
        """What a module gives for a value.

        Args:
            spec: the module.
            value: what it takes.
            base: what it is called, if not after its class.
            following: the module that what it gives goes to, where that helps to name things.
        """
        name = short(spec)
        if name in FLOWS and (name != "graph.Graph" or spec is self.block.spec):
            done = FLOWS[name](self, spec, value, following)
            if done is not None:
                return done
        if spec.target == "torch.nn.Identity":
            return value
        if spec.target == SEQUENTIAL and (gives_list(spec) or takes_list(spec)) and not self.builder.is_shared(spec):
            return self.sequence(spec, value)
        rank = self.rank(value)
        around = around_module(spec)
        if around is not None:
            call, template, rank_after = around
            return self.module(spec, call, value, base, rank_after, template)
        if spec.plain and (isinstance(value, list) or spec is self.block.spec):
            return self.module(spec, self.builder.copy(spec), value, base, None)
        if spec.target != SEQUENTIAL and as_module(spec, rank) is None:
            expression = as_expression(spec, rank)
            if expression is not None:
                template, need, level, rank_after = expression
                return self.add(Step(template, [value], [need], level, rank=rank_after, same=effects(spec)[1]))
        call, rank_after = self.builder.construct(spec, rank)
        return self.module(spec, call, value, base, rank_after)

    def module(
        self,
        spec: ModuleSpec,
        call: Call,
        value: Value,
        base: str,
        rank: int | None,
        template: str = APPLY,
    ) -> Ref:
        """A step that applies a module; a module that is applied before is not held twice."""
        attribute = self._held.get(id(spec))
        if attribute is not None:
            attribute.own = True
        else:
            attribute = Attribute(base or base_name(call.name), [call], own=self.builder.is_shared(spec))
            self._held[id(spec)] = attribute
            self.block.attributes.append(attribute)
        function = "" if attribute.own else function_of(call)
        inplace, handed_on = effects(spec)
        kind = self.builder.annotation(call) if call.block is None else "Any"
        return self.add(
            Step(
                template,
                [value],
                attribute=attribute,
                function=function,
                rank=rank,
                kind=kind,
                inplace=inplace,
                same=handed_on,
            )
        )


def _block_base(spec: ModuleSpec) -> str:
    """What a class is called, by what it does."""
    children = list(spec.children.values())
    names = [short(child) for child in children]
    for first, second in pairwise(names):
        if (first, second) == ("containers.ConcatTable", "table.CAddTable"):
            return "Residual"
    if "containers.ConcatTable" in names or short(spec) in ("containers.Concat", "containers.ConcatTable"):
        return "Branches"
    return "Graph" if short(spec) == "graph.Graph" else "Block"
