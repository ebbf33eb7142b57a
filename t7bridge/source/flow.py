"""From a plan to steps: every module of it becomes a step, or what a person would write in its place."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from ..nn.spec import ModuleSpec
from .code import Call, Lit, Node, sequential
from .copied import Copied, pieces
from .idioms import around_module, as_expression, as_module, function_of, short
from .steps import APPLY, ATOM, PRODUCT, SUM, Attribute, Ref, Step, Value, pick
from .torch_classes import base_name

_SEQUENTIAL = "torch.nn.Sequential"


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
        if spec.target == _SEQUENTIAL or short(spec) in CONTAINERS:
            block, rank_after = self._block(spec, rank, _block_base(spec))
            return Call(block.base, spec=spec, block=block, origin=block), rank_after
        return self.copy(spec), None

    def _module(self, spec: ModuleSpec, rank: int | None) -> tuple[Call, int | None] | None:
        if spec.target == _SEQUENTIAL:
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
        if spec.target == _SEQUENTIAL:
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
            begin = body.sequence if spec.target == _SEQUENTIAL else body.apply
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
        call = Call(name, spec=spec)
        for key, child in spec.children.items():
            inner = self.construct(child)[0]
            call.inside.append((key, inner))
            if key.isdigit():
                call.args.append(inner)
            else:
                call.kwargs[key] = inner
        call.args += [Lit(value) for value in spec.args]
        given: dict[str, Node] = {key: Lit(value, key) for key, value in spec.kwargs.items()}
        call.kwargs = {**call.kwargs, **{key: node for key, node in given.items() if node.text != "None"}}
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
        if spec.target == _SEQUENTIAL and (gives_list(spec) or takes_list(spec)) and not self.builder.is_shared(spec):
            return self.sequence(spec, value)
        rank = self.rank(value)
        around = around_module(spec)
        if around is not None:
            call, template, rank_after = around
            return self.module(spec, call, value, base, rank_after, template)
        if spec.plain and (isinstance(value, list) or spec is self.block.spec):
            return self.module(spec, self.builder.copy(spec), value, base, None)
        if spec.target != _SEQUENTIAL and as_module(spec, rank) is None:
            expression = as_expression(spec, rank)
            if expression is not None:
                template, need, level, rank_after = expression
                return self.add(Step(template, [value], [need], level, rank=rank_after))
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
        if attribute is None:
            attribute = Attribute(base or base_name(call.name), [call], own=self.builder.is_shared(spec))
            self._held[id(spec)] = attribute
            self.block.attributes.append(attribute)
        function = "" if attribute.own else function_of(call)
        inplace = bool(spec.kwargs.get("inplace"))
        kind = self.builder.annotation(call) if call.block is None else "Any"
        return self.add(
            Step(template, [value], attribute=attribute, function=function, rank=rank, kind=kind, inplace=inplace)
        )


def gives_list(spec: ModuleSpec) -> bool:
    """Whether a module is known to give a list."""
    if spec.target == _SEQUENTIAL and spec.children:
        return gives_list(list(spec.children.values())[-1])
    return short(spec) in GIVE_LISTS


def takes_list(spec: ModuleSpec) -> bool:
    """Whether a module is known to take a list."""
    if spec.target == _SEQUENTIAL and spec.children:
        return takes_list(next(iter(spec.children.values())))
    return short(spec) in TAKE_LISTS


def _block_base(spec: ModuleSpec) -> str:
    """What a class is called, by what it does."""
    children = list(spec.children.values())
    names = [short(child) for child in children]
    for first, second in zip(names, names[1:]):
        if (first, second) == ("containers.ConcatTable", "table.CAddTable"):
            return "Residual"
    if "containers.ConcatTable" in names or short(spec) in ("containers.Concat", "containers.ConcatTable"):
        return "Branches"
    return "Graph" if short(spec) == "graph.Graph" else "Block"


# Layers on lists


def _branches(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value:
    children = list(spec.children.values())
    bases = ["branch"] * len(children)
    if following is not None and short(following) == "table.CAddTable" and len(children) == 2:
        first = _weight(children[0]) >= _weight(children[1])
        bases = ["body", "shortcut"] if first else ["shortcut", "body"]
    return [body.apply(child, value, base) for child, base in zip(children, bases)]


def _weight(spec: ModuleSpec) -> int:
    return 1 + sum(map(_weight, spec.children.values()))


def _concat(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value:
    parts = _branches(body, spec, value, None)
    assert isinstance(parts, list)
    ranks = {body.rank(part) for part in parts}
    return body.add(
        Step(f"torch.cat({{0}}, {spec.kwargs['dim']})", [parts], rank=ranks.pop() if len(ranks) == 1 else None)
    )


def _parallel(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value:
    if value == Ref(0):
        body.block.width = len(spec.children)
    return [body.apply(child, pick(value, at), "branch") for at, child in enumerate(spec.children.values())]


def _mapped(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    child = next(iter(spec.children.values()), None)
    if child is None or not isinstance(value, list) or _flowing(child):
        return None
    call, rank = body.builder.construct(child)
    return [body.module(child, call, item, "", rank) for item in value]


def _flowing(spec: ModuleSpec) -> bool:
    return gives_list(spec) or takes_list(spec)


def _graph(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value:
    graph = spec.graph
    assert graph is not None
    values: list[Value] = [value]
    links = [link for node in graph.nodes for link in node.takes] + list(graph.gives)
    if all(path for source, path in links if not source):
        body.block.width = 1 + max((path[0] for source, path in links if not source), default=-1)

    def fetch(link: tuple[int, tuple[int, ...]]) -> Value:
        found = values[link[0]]
        for index in link[1]:
            found = pick(found, index)
        return found

    for node in graph.nodes:
        taken: Value = fetch(node.takes[0]) if len(node.takes) == 1 else [fetch(link) for link in node.takes]
        name = node.name if node.name.isidentifier() else ""
        if node.module is None or spec.children[node.module].target == "torch.nn.Identity":
            values.append(taken)
            if name and isinstance(taken, Ref) and taken.step == 0 and len(taken.path) == 1:
                body.block.inputs[int(taken.path[0])] = name
            continue
        values.append(body.apply(spec.children[node.module], taken, name))
        _name_last(body, values[-1], name)
    given = [fetch(link) for link in graph.gives]
    return given if graph.gives_list else given[0]


def _name_last(body: Body, value: Value, name: str) -> None:
    """Call a value, and the module that gives it, what the user does."""
    step = body.block.steps[value.step] if isinstance(value, Ref) and not value.path else None
    if name and step is not None:
        step.hint, step.named = name, True
        if step.attribute is not None and step.attribute.base == name:
            step.attribute.own = True


def _folded(symbol: str, level: int, right: int) -> Callable[..., Value | None]:
    def build(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
        if not isinstance(value, list) or not value:
            return None
        ranks = {body.rank(item) for item in value} - {None}
        if len(ranks) > 1:  # Lua goes by the order in memory whatever the shapes, PyTorch by the shapes
            return None
        template = f" {symbol} ".join(f"{{{at}}}" for at in range(len(value)))
        needs = [level] + [right] * (len(value) - 1)
        return body.add(
            Step(template, list(value), needs, level if len(value) > 1 else SUM, rank=ranks.pop() if ranks else None)
        )

    return build


def _extreme(function: str) -> Callable[..., Value | None]:
    def build(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
        if not isinstance(value, list) or len(value) != 2:
            return None
        return body.add(Step(f"torch.{function}({{0}}, {{1}})", list(value), rank=body.rank(value[0])))

    return build


def _dimension(spec: ModuleSpec, rank: int | None) -> int | None:
    """The dimension that a layer counts in one example, from the end; `None` where it cannot be told."""
    dims, dim = spec.kwargs.get("n_input_dims"), spec.args[0]
    if dims is None or dim < 0:
        return int(dim)
    return int(dim - dims) if dims == rank else None


def _join(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    rank = body.rank(value[0]) if isinstance(value, list) and value else None
    dim = _dimension(spec, rank)
    if dim is None:
        return None
    return body.add(Step(f"torch.cat({{0}}, {dim})", [value], rank=rank))


def _split(body: Body, spec: ModuleSpec, value: Value, following: ModuleSpec | None) -> Value | None:
    dim = _dimension(spec, body.rank(value))
    if dim is None:
        return None
    return body.add(Step(f"{{0}}.unbind({dim})", [value], [ATOM], kind="tuple[Tensor, ...]", hint="parts"))


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
    """Only what is known to be no list itself is taken out of a list."""

    def parts(value: Value) -> list[Value] | None:
        if isinstance(value, Ref):
            step = body.block.steps[value.step]
            return [value] if step and value.step and not value.path and step.kind == "Tensor" else None
        found: list[Value] = []
        for item in value:
            inner = parts(item)
            if inner is None:
                return None
            found += inner
        return found

    return parts(value) if isinstance(value, list) else None


FLOWS: dict[str, Callable[[Body, ModuleSpec, Value, ModuleSpec | None], Value | None]] = {
    "graph.Graph": _graph,
    "containers.ConcatTable": _branches,
    "containers.ParallelTable": _parallel,
    "containers.Concat": _concat,
    "containers.MapTable": _mapped,
    "containers.SharedParallelTable": _mapped,
    "table.CAddTable": _folded("+", SUM, SUM),
    "table.CSubTable": _folded("-", SUM, PRODUCT),
    "table.CMulTable": _folded("*", PRODUCT, PRODUCT),
    "table.CDivTable": _folded("/", PRODUCT, ATOM),
    "table.CMaxTable": _extreme("maximum"),
    "table.CMinTable": _extreme("minimum"),
    "table.JoinTable": _join,
    "table.SplitTable": _split,
    "table.SelectTable": _picked,
    "table.NarrowTable": _narrowed,
    "table.JustTable": _just,
    "table.ReverseTable": _reversed,
    "table.FlattenTable": _flat,
}
"""Modules that become steps; a function gives `None` where it cannot, and the layer's own class comes along."""

CONTAINERS = {"graph.Graph", "containers.ConcatTable", "containers.ParallelTable", "containers.Concat"}
"""Those of them that can be classes of their own."""

GIVE_LISTS = {
    *("containers.ConcatTable", "containers.ParallelTable", "containers.MapTable", "table.SplitTable"),
    *("table.NarrowTable", "table.JustTable", "table.ReverseTable", "table.FlattenTable", "table.ZipTable"),
    *("containers.SharedParallelTable", "table.ZipTableOneToMany", "table.CAddTensorTable"),
}
TAKE_LISTS = {
    *("containers.ParallelTable", "containers.MapTable", "containers.SharedParallelTable", "pick.Index"),
    *(f"table.{name}Table" for name in ("CAdd", "CSub", "CMul", "CDiv", "CMax", "CMin", "Join", "Select", "Narrow")),
    *(f"table.{name}Table" for name in ("Reverse", "Flatten", "Zip", "Mixture", "CAddTensor")),
    *("pick.MaskedSelect", "shape.ExpandAs", "linear.Bilinear", "table.ZipTableOneToMany"),
    *(f"distance.{name}" for name in ("DotProduct", "CosineDistance", "PairwiseDistance", "MM", "MV")),
}
OPENED = GIVE_LISTS | TAKE_LISTS
"""Modules that make the Sequential around them a class with steps."""
