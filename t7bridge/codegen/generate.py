"""From a Lua module to the text of a `model.py` (imports, included layers, classes, `load`), and its state dict.

The finished page is parsed again, and may contain only what is listed here. Text of a file can only become a literal
or the name of a variable, module or value, as source is made from trees; the check holds even if that is wrong. The
included layers must be those of the package, to the letter; classes of the model and `load` may use no statement, name,
attribute or kind of expression that is not listed.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from attrs import evolve, field

from ..data import __version__, define
from ..errors import ModelError, UnsupportedError
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor, place_of
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.kinds import ANY, TENSOR, Kind
from ..nn.layouts import check_size
from ..nn.lift import Lifted, Piece, undo
from ..nn.mapping import SEQUENTIAL, ModuleSpec, Plan, end_of, specs_in, way_to
from ..nn.memory import copy_as_lua
from ..nn.places import Places
from ..nn.plan import build_plan
from ..nn.registry import layer_of
from ..nn.stacks import constant_biases, recognized
from ..nn.state_dict import Recorded, Run, StateDict, state_dict
from ..nn.torch_nn import SAME, TORCH
from ..report import Note
from .code import TAKEN, WIDTH, Construction, attribute, bracketed, checked_name, expression, lines, method
from .copied import Owned, check_construction, import_lines, pieces, remembers, statement_text
from .flow import TOO_DEEP, USE_CONVERT, Attribute, CodeBlock, SourceBuilder
from .idioms import traits
from .statements import Writer, merge_alike, tidy

MADE_BY = "made from Lua Torch by t7bridge"
"""Words in the first line of each page."""
_METHODS = {"float64": "double", "float16": "half", "bfloat16": "bfloat16", "float32": "float"}
"""Methods of torch.nn.Module that change the element type of all floating point parameters and buffers."""
_FREE = 20
"""Steps that one module, argument or link of a plan accounts for."""
AttributePath = tuple[str, ...]
"""The path of a module or tensor from an instance of the model's class."""
AttributePaths = list[tuple[AttributePath, ModuleSpec]]
"""The path of each module, in the order of the state dict."""


@define(eq=False)
class Generated:
    """A model as source and weights.

    Attributes:
        text: the source of `model.py`; empty if only its keys were requested.
        tensors: the state dict of its class, in order.
        keys: maps the key of each tensor of the plan's state dict, which is that written by `convert` but for
            recognized cells, to its keys here.
        notes: notes for the user.
        pieces: what the tensors of recognized cells are made of.
        state: the state dict written by `convert`.
        is_stateful: whether the model takes the state of its last sequence and returns it.
    """

    text: str
    tensors: dict[str, Tensor]
    keys: dict[str, list[str]]
    notes: list[Note]
    pieces: list[Piece] = field(factory=list)
    state: StateDict = field(factory=StateDict)
    is_stateful: bool = False

    def record(self) -> Recorded:
        """Return these keys for a live module of the plan."""
        record = Recorded([*self.tensors])
        for key, (first, *others) in self.keys.items():
            if first in record.pieces:
                record.copies.setdefault(first, []).append(Run(key, 0, self.tensors[first].numel))
                continue
            record.sizes[first] = self.tensors[first].shape
            record.pieces[first] = [Run(key, 0, self.tensors[first].numel)]
            record.tied.update(dict.fromkeys(others, first))
        return record

    def converted(self, found: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return a state dict of the class under the keys that `convert` writes."""
        made = {key: found[names[0]] for key, names in self.keys.items() if names and key in self.state}
        return {**made, **undo(self.pieces, found, self.state)}


def generate(
    value: TorchObject,
    path: str = "root",
    *,
    index_base: int = 1,
    limits: Limits = DEFAULT_LIMITS,
    source: str = "model.t7",
    lift: bool = True,
    only_keys: bool = False,
) -> Generated:
    """Generate the source of a PyTorch model that computes the same as a Lua module.

    Args:
        value: the module or criterion.
        path: its path, for messages.
        index_base: number of the first element, class or row: 1 as in Lua, or 0.
        limits: resource limits.
        source: the name of the original file, for the source's first line.
        lift: whether recognized cells become modules of torch.nn.
        only_keys: whether the text is left out.

    Raises:
        UnsupportedLayerError: layers of the model have no PyTorch equivalent; it lists all of them.
        UnsupportedError: its modules are nested too deep.
        LimitError: the model is nested or shared too much.
    """
    if not isinstance(value, TorchObject):
        raise ModelError("source is made from an nn module", path=path, found=type(value).__name__)
    try:
        return _generate(value, path, index_base, limits, None if only_keys else source, lift)
    except RecursionError as error:
        raise UnsupportedError(TOO_DEEP, path=path, hint=USE_CONVERT) from error


def _generate(
    value: TorchObject, path: str, index_base: int, limits: Limits, source: str | None, lift: bool
) -> Generated:
    check_depth(value, path, limits)
    state = state_dict(value, path, limits, own_keys=True)
    plan = build_plan(value, path, index_base, limits, state)
    check_size(state, limits, "constructing the model")
    cells = recognized(plan, state) if lift else Lifted(plan, state)
    original, state = state, cells.state
    owned = owned_tensors(plan, state)
    composed = {key for piece in cells.pieces for key in (piece.target, piece.adds)}
    computed = {
        id(state[key]) for key, origin in state.origins.items() if origin.tensor is None and key not in composed
    }
    unify_tied(plan, owned, computed)
    check_construction(plan, owned)
    shared = shared_specs(plan)
    choose_classes(plan, shared)
    inplace = any(spec.kwargs.get("inplace") for spec in specs_in(plan.root))
    builder = SourceBuilder(shared, limits, _FREE * size_of(plan.root), inplace)
    layer = layer_of(value.class_name)
    root = builder.root(plan.root, criterion=layer is not None and layer.kind == "criterion")
    blocks = prepared(builder)
    places = list(_places(root.attributes))
    tensors = {
        ".".join((*place, name)): tensor for place, spec in places for name, tensor in owned.get(id(spec), {}).items()
    }
    _check_tensors(plan, state, places, tensors)
    found: dict[object, list[str]] = {}
    for key, tensor in tensors.items():
        found.setdefault(place_of(tensor), []).append(key)
    keys = {key: found.get(place_of(tensor), []) for key, tensor in state.items()}
    moved = [evolve(each, target=keys[each.target][0], adds=each.adds and keys[each.adds][0]) for each in cells.pieces]
    text = ""
    if source is not None:
        constants = {id(state[key]) for key in constant_biases(cells)}
        connections = [*_shared(places, owned), *_referring(places), *_ties(places, owned, plan, state)]
        untrained = [*_untrained(places, owned, constants)]
        text = model_source(builder, blocks, connections, untrained, _dtypes(places, owned), source)
        check_page(text, builder, blocks, tensors)
    notes, is_stateful = [*original.notes, *cells.notes], blocks[-1].is_stateful
    return Generated(text, tensors, keys, notes, moved, original, is_stateful)


# The plan before generation

_MOST_DEEP = 250
"""Maximum nesting of modules."""
_MOST_COMPARED = 64
"""Maximum elements of a computed tensor that is compared by value; larger ones are compared by identity."""


def check_depth(value: TorchObject, path: str, limits: Limits) -> None:
    """Refuse a model whose modules are nested too deep for Python to read the generated source.

    Raises:
        UnsupportedError: they are.
    """
    if any(place.depth >= _MOST_DEEP for place in Places(value, path, limits)):
        expected = f"at most {_MOST_DEEP} modules inside one another"
        raise UnsupportedError(TOO_DEEP, path=path, expected=expected, hint=USE_CONVERT)


def size_of(root: ModuleSpec) -> int:
    """Count the modules, arguments and links of a plan."""
    total = 0
    for spec in specs_in(root):
        total += 1 + len(spec.args) + len(spec.kwargs) + len(spec.children)
        if spec.graph is not None:
            total += sum(1 + len(node.takes) for node in spec.graph.nodes) + len(spec.graph.outputs)
    return total


def owned_tensors(plan: Plan, tensors: dict[str, Tensor]) -> Owned:
    """Return the tensors of a state dict by the module that owns them."""
    owned: Owned = {}
    for key, tensor in tensors.items():
        spec, name = owner_of(plan, key)
        owned.setdefault(id(spec), {})[name] = tensor
    return owned


def owner_of(plan: Plan, key: str) -> tuple[ModuleSpec, str]:
    """Return the module that a key of a state dict leads to, and the name of the tensor there."""
    *_, (spec, _, name) = way_to(plan.root, key)
    return spec, name


def unify_tied(plan: Plan, owned: Owned, computed: set[int]) -> None:
    """Merge modules that are identical, down to the memory of all their tensors, into one module at several places.

    Args:
        plan: the plan; it is modified.
        owned: the tensors of its modules.
        computed: the tensors, by id, that are not views of the file's memory; they are compared by content.
    """
    numbers: dict[Any, int] = {}
    first: dict[int, ModuleSpec] = {}

    def content(tensor: Tensor) -> Any:
        if not tensor.numel or (id(tensor) in computed and tensor.numel <= _MOST_COMPARED):
            return tensor.element.name, tensor.shape, tensor.numpy().tobytes()
        return id(tensor) if id(tensor) in computed else place_of(tensor)

    @cache
    def facts(spec: ModuleSpec) -> tuple[int, bool, bool]:
        """Return a number that only identical modules share, whether there are tensors, and any other state."""
        inside = {name: facts(child) for name, child in spec.children.items()}
        own = owned.get(id(spec), {})
        said = (spec.target, spec.plain, repr(spec.args), repr(sorted(spec.kwargs.items())))
        refers = tuple((name, id(other)) for name, other in spec.refers.items())
        views = tuple((name, content(tensor)) for name, tensor in own.items())
        children = tuple((name, number) for name, (number, _, _) in inside.items())
        number = numbers.setdefault((said, children, refers, views), len(numbers))
        has_tensors = bool(own) or any(has for _, has, _ in inside.values())
        return number, has_tensors, remembers(spec) or any(resumes for _, _, resumes in inside.values())

    for spec in specs_in(plan.root):
        for name, child in spec.children.items():
            number, has_tensors, resumes = facts(child)
            if has_tensors and not resumes:
                spec.children[name] = first.setdefault(number, child)


def shared_specs(plan: Plan) -> set[int]:
    """Return the modules that occur at several places, or in several nodes of a graph, by id."""
    times: Counter[int] = Counter()
    applied: set[int] = set()
    for spec in specs_in(plan.root):
        times.update(id(child) for child in spec.children.values())
        if spec.graph is not None:
            nodes = Counter(node.module for node in spec.graph.nodes if node.module is not None)
            applied.update(id(spec.children[name]) for name, number in nodes.items() if number > 1)
    return {key for key, number in times.items() if number > 1} | applied


def choose_classes(plan: Plan, shared: set[int]) -> None:
    """Keep layers' own classes where those of torch.nn refuse an input that Lua's accept, or do not copy as Lua's do.

    The plain class of a layer requires a batch dimension. A `View` without the dimensions of one
    example removes that of a batch of one, as in Lua; what follows it must accept single examples. A shared module
    may receive a tensor at one place and a list at another.
    """
    copy_as_lua(plan.root)
    lost = False
    for spec in specs_in(plan.root):
        facts = traits(spec)
        if spec.target == SEQUENTIAL:
            _flatten_views([*spec.children.values()])
        refuses_examples = spec.args != facts.plain_examples
        if refuses_examples and (lost or (id(spec) in shared and facts.may_take_list)):
            spec.plain = ""
        lost = lost or (facts.loses_batch and not spec.kwargs.get(facts.keeps_batch_if))


def _flatten_views(modules: list[ModuleSpec]) -> None:
    """Replace a `View(n)` by `Flatten` if the linear layer after it has n features, and so refuses anything else."""
    for at, spec in enumerate(modules):
        if traits(spec).written != ("view",) or len(spec.args) != 1:
            continue
        for following in modules[at + 1 :]:
            name = following.target.removeprefix("torch.nn.")
            if name == "Linear" and following.args[:1] == spec.args:
                spec.plain = "torch.nn.Flatten"
            if name not in TORCH or TORCH[name].rank != SAME:
                break


# Places


def _places(attributes: list[Attribute], path: AttributePath = ()) -> Iterator[tuple[AttributePath, ModuleSpec]]:
    """Yield the path of each module that is held by these attributes."""

    def inside(call: Construction, path: AttributePath) -> Iterator[tuple[AttributePath, ModuleSpec]]:
        if call.spec is not None:
            yield path, call.spec
        if call.origin is not None:
            yield from _places(call.origin.attributes, path)
        for name, inner in call.inside():
            yield from inside(inner, (*path, name))

    for each in attributes:
        yield from inside(each.call, (*path, each.name))


def _at(path: AttributePath, start: str = "self") -> ast.expr:
    """Return a path as an expression: `self.layers[3].weight`."""
    node: ast.expr = ast.Name(start)
    for name in path:
        node = ast.Subscript(node, expression(int(name))) if name.isdigit() else attribute(node, name)
    return node


def _first_places(places: AttributePaths) -> dict[int, AttributePath]:
    """Return the first path of each module, by id."""
    return {id(spec): place for place, spec in reversed(places)}


def _shared(places: AttributePaths, owned: Owned) -> Iterator[ast.stmt]:
    """Yield a statement for each shared module with tensors or a memory, made at each place and then one."""
    first = _first_places(places)
    done: list[AttributePath] = []
    for place, spec in places:
        known = first[id(spec)]
        if known == place or any(place[: len(above)] == above for above in done):
            continue
        inside = (inner for each, inner in places if each[: len(place)] == place)
        if any(owned.get(id(inner)) or remembers(inner) for inner in inside):
            yield ast.Assign([_at(place)], _at(known))
            done.append(place)


def _referring(places: AttributePaths) -> Iterator[ast.stmt]:
    """Yield the modules that others refer to without containing them."""
    first = _first_places(places)
    for place, spec in places:
        for name, other in spec.refers.items():
            if id(other) in first:
                yield ast.Expr(method(_at(place), "refer", **{name: _at(first[id(other)])}))


def _ties(places: AttributePaths, owned: Owned, plan: Plan, state: StateDict) -> Iterator[ast.stmt]:
    """Yield the parameters of different modules that are one in Lua."""
    learned = {id(state[key]) for key in plan.parameters}
    first: dict[object, tuple[AttributePath, int]] = {}
    for place, spec in places:
        for name, tensor in owned.get(id(spec), {}).items():
            if id(tensor) not in learned or tensor.storage is None or not tensor.numel:
                continue
            known, owner = first.setdefault(place_of(tensor), ((*place, name), id(spec)))
            if owner != id(spec) and known != (*place, name):
                yield ast.Assign([_at((*place, name))], _at(known))


def _untrained(places: AttributePaths, owned: Owned, constants: set[int]) -> Iterator[ast.stmt]:
    """Yield a statement for each parameter that is not trained, by the ids of their tensors."""
    done: set[int] = set()
    for place, spec in places:
        for name, tensor in owned.get(id(spec), {}).items():
            if id(tensor) in constants and id(tensor) not in done:
                done.add(id(tensor))
                yield ast.Expr(method(_at((*place, name)), "requires_grad_", False))


def _dtypes(places: AttributePaths, owned: Owned) -> tuple[str, list[ast.stmt]]:
    """Return the method that sets the element type of most modules, and statements for the others."""
    kinds = [
        (place, {tensor.element.name for tensor in owned.get(id(spec), {}).values()} & {*_METHODS})
        for place, spec in places
    ]
    counts = Counter(name for _, found in kinds for name in found)
    usual = counts.most_common(1)[0][0] if counts else "float32"
    statements: list[ast.stmt] = [
        ast.Expr(method(_at(place, "model"), _METHODS[found.pop()]))
        for place, found in kinds
        if len(found) == 1 and usual not in found
    ]
    return ("" if usual == "float32" else _METHODS[usual]), statements


def _check_tensors(plan: Plan, source: dict[str, Tensor], places: AttributePaths, made: dict[str, Tensor]) -> None:
    """Compare every tensor of a model's file with the corresponding Lua tensor.

    Raises:
        ModelError: a tensor is missing, or replaced by another one.
    """
    paths: dict[int, list[AttributePath]] = {}
    for place, spec in places:
        paths.setdefault(id(spec), []).append(place)
    for key, tensor in source.items():
        spec, name = owner_of(plan, key)
        found = [made.get(".".join((*place, name))) for place in paths.get(id(spec), ())]
        if not found or not all(other is not None and _same(tensor, other) for other in found):
            raise ModelError(
                "a tensor would be lost or replaced by another one in model.pt",
                path=f"{spec.path}.{name}",
                expected=f"the values of {key}",
                found="another tensor" if found else "no attribute for it in the source",
            )


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same view of the same memory, or hold the same bytes."""
    if tensor is other or place_of(tensor) == place_of(other):
        return True
    same_form = tensor.element == other.element and tensor.shape == other.shape
    return same_form and bool(tensor.numpy().tobytes() == other.numpy().tobytes())


_BASE_IMPORTS = {
    "Path": ("pathlib", "Path", ""),
    "torch": ("torch", "", ""),
    "Tensor": ("torch", "Tensor", ""),
    "nn": ("torch", "nn", ""),
    "F": ("torch.nn", "functional", "F"),
    "Any": ("typing", "Any", ""),
}
"""Names that a page may use, with their imports."""


def prepared(builder: SourceBuilder) -> list[CodeBlock]:
    """Return the classes of a model, tidied and merged, those that others contain first."""
    for block in builder.blocks:
        tidy(block)
    # Blocks that became expressions need no class.
    needed: set[str] = set()
    for call in (call for block in builder.blocks for call in block.constructions()):
        if call.name in builder.copied and call.spec is not None and call.block is None:
            needed.update(piece.name for piece in pieces(call.spec.target))
    builder.copied = {name: piece for name, piece in builder.copied.items() if name in needed}
    return merge_alike(builder.blocks, frozenset((*builder.copied, *builder.foreign, *TAKEN)))


def model_source(
    builder: SourceBuilder,
    blocks: list[CodeBlock],
    connections: list[ast.stmt],
    untrained: list[ast.stmt],
    dtypes: tuple[str, list[ast.stmt]],
    source: str,
) -> str:
    """Return the whole file.

    Args:
        builder: the builder of the blocks.
        blocks: the classes, those that others contain first; the model's own is the last.
        connections: statements at the end of the model's constructor: `self.decoder.weight = self.encoder.weight`.
        untrained: statements after these, for biases that stay zero: `self.lstm.bias_hh_l0.requires_grad_(False)`.
        dtypes: the method that sets the element type of all parameters: `double`, empty for float32; statements of
            `load` for modules of another type.
        source: the name of the original file.
    """
    taken = frozenset((*builder.copied, *builder.foreign, *(block.name for block in blocks)))
    parts = [[piece.text] for piece in builder.copied.values()]
    for block in blocks[:-1]:
        parts.append(_class(block, Writer(block, taken)))
    parts.append(_class(blocks[-1], Writer(blocks[-1], taken), connections, untrained))
    parts.append(_load(*dtypes))
    text = "\n".join(line for part in parts for line in ("", "", *part))
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    imports = {each for name, each in _BASE_IMPORTS.items() if name in names}
    imports = imports.union(*(piece.imports for piece in builder.copied.values()))
    imports |= {(home, name, "" if known == name else known) for known, (home, name) in builder.foreign.items()}
    # Python evaluates the fields of layers; as text, only where the module is registered.
    postponed = [] if ("dataclasses", "dataclass", "") in imports else ["from __future__ import annotations", ""]
    head = [
        f'"""The model of {_safe(source)} in PyTorch, {MADE_BY} {__version__}."""',
        "",
        *postponed,
        *import_lines(imports),
    ]
    return "\n".join(head) + "\n" + text + "\n"


def _safe(name: str) -> str:
    """Return the name of a file as part of a docstring."""
    return re.sub(r"[^\w .@+-]", "_", name)[:40]


def _class(
    block: CodeBlock, writer: Writer, connections: Sequence[ast.stmt] = (), untrained: Sequence[ast.stmt] = ()
) -> list[str]:
    lua = f"An {_safe(block.spec.class_name)} of Lua Torch." if block.spec.class_name else "The model."
    summaries = {"Model": lua, **_SUMMARIES}
    text = [f"class {checked_name(block.name)}(nn.Module):"]
    text += [f'    """{summaries.get(block.base, "Some steps of the model.")}"""', ""]
    if block.attributes:
        parameters = [f"{checked_name(name)}: {kind}" for name, kind in block.parameters.items()]
        text += bracketed("def __init__(", ["self", *parameters], ") -> None:", 4)
        text.append("        super().__init__()")
        made = [ast.Assign([attribute(ast.Name("self"), each.name)], each.call.node()) for each in block.attributes]
        text += [line for statement in (*made, *connections) for line in lines(statement, 8)]
        if untrained:
            text.append("        # Lua has one bias where PyTorch adds two: the second stays zero.")
        text += [line for statement in untrained for line in lines(statement, 8)]
        text.append("")
    return text + _forward(block, writer)


_SUMMARIES = {
    "Residual": "Two branches of one input, added up.",
    "Branches": "Several branches of one input.",
    "Graph": "A graph of modules.",
}


def _forward(block: CodeBlock, writer: Writer) -> list[str]:
    names = writer.unpacked
    text = bracketed("def forward(", ["self", *_arguments(block, writer)], f") -> {_returns(block)}:", 4)
    text.append(f'        """{_summary(block, names)}"""')
    if names and not block.is_stateful:
        targets = [*names, "*_"] if block.more else names
        joined = f"        {', '.join(targets)}{',' if len(targets) == 1 else ''} = inputs"
        text += [joined] if len(joined) <= WIDTH else bracketed("(", targets, ") = inputs", 8)
    return text + [line for statement in writer.statements for line in lines(statement, 8)]


def _arguments(block: CodeBlock, writer: Writer) -> list[str]:
    """Return the arguments of `forward`, with their annotations."""
    if block.is_stateful:
        first, *states = writer.unpacked
        return [f"{first}: Tensor", *(f"{state}: Any = None" for state in states)]
    nested = any(not ref.step and len(ref.path) > 1 for _, ref in block.links())
    listed = f"list[{'Any' if nested else 'Tensor'}]"
    known = _annotation(block.input_kind) if block.input_kind.is_list else "Any"
    taken = listed if writer.unpacked else known if writer.source == "inputs" else "Tensor"
    return [f"{writer.source}: {taken}", *["target: Any = None"] * writer.reads("target")]


def _returns(block: CodeBlock) -> str:
    """Return the type of the output."""
    result = block.result
    if block.is_stateful:
        return "tuple[Any, ...]"
    if isinstance(result, list):
        return "list[Any]" if any(isinstance(item, list) for item in result) else "list[Tensor]"
    step = block.steps[result.step]
    return "Any" if step is None or not result.step or result.path else _annotation(step.kind)


def _annotation(kind: Kind) -> str:
    if kind.is_list:
        inner = {_annotation(each or ANY) for each in kind.items or (kind.each,)}
        return f"list[{inner.pop() if len(inner) == 1 else 'Any'}]"
    return "Tensor" if kind == TENSOR else "Any"


def _summary(block: CodeBlock, names: list[str]) -> str:
    """Describe inputs and outputs, as far as they are known."""
    first = end_of(block.spec)
    taken = f"a list of {len(names)}" if names else "a list" * block.input_kind.is_list
    known = TORCH.get(first.target.removeprefix("torch.nn."))
    if known is not None and known.shape and block.base == "Model":
        taken = known.shape.format(first.args[0])
    returned = {"Residual": "their sum", "Branches": "their outputs"}.get(block.base, "the output")
    if block.is_stateful:
        return "Take the state, None for that of a beginning; return the output and the new state."
    if isinstance(block.result, list):
        returned = f"a list of {len(block.result)}"
    return f"Take {taken}; return {returned}." if taken else f"Return {returned}."


def _load(dtype: str, dtypes: list[ast.stmt]) -> list[str]:
    return [
        "def load(weights: str | Path | None = None) -> Model:",
        '    """Return the model in evaluation mode, with these weights or those of model.pt."""',
        f"    model = Model(){f'.{dtype}()' * bool(dtype)}",
        *(line for statement in dtypes for line in lines(statement, 4)),
        "    path = weights or Path(__file__).with_name('model.pt')",
        "    model.load_state_dict(torch.load(path, weights_only=True))",
        "    return model.eval()",
    ]


# Check of the finished page

_TORCH_FUNCTIONS = {known.function.partition(".")[2] for known in TORCH.values() if known.function} | {
    *("cat", "stack", "where", "load", "max_pool1d"),
}
_WORDS_OF_VALUES = """
abs exp log square pow gt lt squeeze unsqueeze transpose select narrow sum mean max min values flip to mT long clone
unbind flatten unflatten reshape_as contiguous refer double half bfloat16 float load_state_dict eval with_name
requires_grad_
"""
_PAGE_METHODS = frozenset(_WORDS_OF_VALUES.split())
"""Attributes of values that a page uses, besides the modules in its own classes."""
_WORDS = {"self", "input", "inputs", "target", "super", "float", "list", "torch", "nn", "F"}
"""Names that a method may use without assigning them."""
_LOAD_WORDS = {"Path", "__file__", "Model", "model", "path", "weights", "torch"}
_NODES = (
    *(ast.Assign, ast.Return, ast.Expr, ast.Call, ast.keyword, ast.Attribute, ast.Name, ast.Constant, ast.Tuple),
    *(ast.List, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.MatMult, ast.Div),
    *(ast.Load, ast.Store),
)
"""Allowed nodes of statements and expressions."""


def check_page(text: str, builder: SourceBuilder, blocks: list[CodeBlock], keys: Iterable[str]) -> None:
    """Refuse a page with anything in it that this package does not write.

    Args:
        text: the source.
        builder: its builder: the included layers and foreign classes.
        blocks: the classes of the model.
        keys: those of its state dict.

    Raises:
        ModelError: there is something else, or it is not Python. This is an error in the package, or in an entry.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ModelError(f"the source of this model is not Python: {error}") from error
    page = _Page(builder, blocks, keys)
    copied = {piece.text for piece in builder.copied.values()}
    lines = text.splitlines()
    for number, statement in enumerate(tree.body):
        if statement_text(statement, lines) not in copied and not (number == 0 and _is_text(statement)):
            page.check(statement)


class _Page:
    def __init__(self, builder: SourceBuilder, blocks: list[CodeBlock], keys: Iterable[str]) -> None:
        self._classes = {block.name: set(block.parameters) for block in blocks}
        self._inputs = {name for block in blocks if block.is_stateful for name in block.inputs.values()}
        self._words = _WORDS | {*self._classes, *builder.copied, *builder.foreign}
        self._attributes = _PAGE_METHODS | {attribute.name for block in blocks for attribute in block.attributes}
        self._attributes |= {name for key in keys for name in key.split(".")}
        used = {call.name.removeprefix("nn.") for block in blocks for call in block.constructions()}
        self._homes = {"nn": used | {*TORCH}, **dict.fromkeys(("torch", "F"), _TORCH_FUNCTIONS | {*ELEMENT_TYPES})}
        self._imports = {each[:2] for each in _BASE_IMPORTS.values()} | {("__future__", "annotations")}
        self._imports |= {each[:2] for piece in builder.copied.values() for each in piece.imports}
        self._imports |= {*builder.foreign.values()}

    def check(self, statement: ast.stmt) -> None:
        """Check a statement of the page."""
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            home = None if isinstance(statement, ast.Import) else statement.module or ""
            names = [alias.name for alias in statement.names]
            _require(self._imports >= {(name, "") if home is None else (home, name) for name in names}, statement)
        elif isinstance(statement, ast.ClassDef) and statement.name in self._classes:
            _require([ast.unparse(base) for base in statement.bases] == ["nn.Module"], statement)
            _require(not statement.decorator_list, statement)
            for inner in statement.body:
                if not _is_text(inner):
                    self._method(inner, self._classes[statement.name])
        else:
            _require(isinstance(statement, ast.FunctionDef) and statement.name == "load", statement)
            self._function(statement, {"weights"}, _LOAD_WORDS)

    def _method(self, method: ast.stmt, parameters: set[str]) -> None:
        is_made = isinstance(method, ast.FunctionDef) and method.name == "__init__"
        _require(is_made or (isinstance(method, ast.FunctionDef) and method.name == "forward"), method)
        arguments = parameters if is_made else {"input", "inputs", "target", *self._inputs}
        self._function(method, {"self", *arguments}, self._words | parameters, self._inputs)

    def _function(self, function: ast.stmt, arguments: set[str], words: set[str], inputs: Iterable[str] = ()) -> None:
        """Check the arguments and statements of a function that may use some names without assigning them."""
        assert isinstance(function, ast.FunctionDef)
        signature = function.args
        _require({each.arg for each in signature.args} <= arguments and not function.decorator_list, function)
        _require(not (signature.vararg or signature.kwarg or signature.kwonlyargs or signature.posonlyargs), function)
        body: list[ast.AST] = [each for each in function.body if not _is_text(each)]
        local = set(inputs)
        for number, statement in enumerate(body):
            _require(isinstance(statement, (ast.Assign, ast.Return, ast.Expr)), statement)
            if isinstance(statement, ast.Assign):
                local |= _assigned(statement, words)
                if isinstance(statement.value, ast.BoolOp) and function.name == "load":
                    body[number] = statement.value.values[-1]  # path = weights or …
        for node in (node for statement in body for node in ast.walk(statement)):
            self._node(node, words | local)

    def _node(self, node: ast.AST, words: set[str]) -> None:
        """Check one node of a statement."""
        known = isinstance(node, _NODES)
        if isinstance(node, ast.Name):
            known = node.id in words
        elif isinstance(node, ast.Constant):
            known = isinstance(node.value, (int, float, str, type(None)))
        elif isinstance(node, ast.UnaryOp):
            known = isinstance(node.op, ast.USub)
        elif isinstance(node, ast.Starred):
            known = isinstance(node.ctx, ast.Store)  # first, *_ = inputs
        elif isinstance(node, ast.Subscript):
            inner = node.slice.operand if isinstance(node.slice, ast.UnaryOp) else node.slice
            known = isinstance(inner, ast.Constant) and isinstance(inner.value, (int, str))
        elif isinstance(node, ast.Attribute) and node.attr == "__init__":
            known = ast.unparse(node.value) == "super()"
        elif isinstance(node, ast.Attribute):
            home = node.value.id if isinstance(node.value, ast.Name) else ""
            known = node.attr in self._homes.get(home, self._attributes)
        _require(known, node)


def _assigned(statement: ast.Assign, words: set[str]) -> set[str]:
    """Return the variables that a statement assigns; none may shadow another name of the page."""
    found = {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    if not any(isinstance(target, (ast.Name, ast.Tuple)) for target in statement.targets):
        found -= {"self"}
    _require(not found & (words - {"model", "path"}), statement)
    _require(not any(name.startswith("__") for name in found), statement)
    return found


def _is_text(statement: ast.AST) -> bool:
    """Return whether a statement is a docstring."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _require(holds: bool, node: ast.AST) -> None:
    if not holds:
        raise ModelError(
            "the source of this model contains an unexpected construct",
            expected="the constructs listed in t7bridge.codegen.generate",
            found=f"{type(node).__name__} in line {getattr(node, 'lineno', 0)}",
        )
