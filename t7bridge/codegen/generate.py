"""From a Lua module to its page, the text of a `model.py` (imports, included layers, classes, `load`), and the state
dict of its class. The keys of the plan's state dict are those that `convert` writes, but for recognized cells, each of
which is one module with tensors of its own. A plan is the modules of PyTorch for a Lua model, its specs.

The finished page is parsed again, and may contain only what is listed here. Text of a file can only become a literal
or the name of a variable, module or value, as source is made from trees; the check holds even if that is wrong. The
included layers must be those of the package, to the letter; classes of the model and `load` may use no statement, name,
attribute or kind of expression that is not listed.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from symtable import symtable
from typing import Any

from attrs import evolve, field

from ..data import __version__, define
from ..errors import ModelError, UnsupportedError
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor, place_of, rows
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.kinds import ANY, TENSOR, Kind
from ..nn.layouts import check_size
from ..nn.mapping import SEQUENTIAL, ModuleSpec, Plan, end_of, specs_in, way_to
from ..nn.memory import use_copying_classes
from ..nn.pieces import Lifted, Piece, constant_biases, recognized, undo
from ..nn.places import Places
from ..nn.plan import build_plan
from ..nn.registry import layer_of
from ..nn.state_dict import Recorded, Run, StateDict, lua_named
from ..nn.torch_nn import SAME, TORCH, argument_at
from ..report import Note
from .code import TAKEN, WIDTH, Construction, attribute, bracketed, checked_name, expression, lines, method
from .copied import (
    Import,
    SourcePiece,
    TensorsByModule,
    check_construction,
    import_lines,
    pieces,
    remembers,
    statement_text,
)
from .flow import TOO_DEEP, USE_CONVERT, SourceBuilder
from .idioms import traits
from .statements import Writer, merge_alike, tidy
from .steps import Attribute, CodeBlock

MADE_BY = "made from Lua Torch by t7bridge"
"""Words in the first line of each page."""
_CAST_METHODS = {"float64": "double", "float16": "half", "bfloat16": "bfloat16", "float32": "float"}
"""Methods of torch.nn.Module that change the element type of all floating point parameters and buffers."""
_STEPS_PER_PART = 20
"""Steps of the budget that each module, argument and link of a plan accounts for."""
AttributePath = tuple[str, ...]
"""The path of a module or tensor from an instance of the model's class."""
ModulePaths = list[tuple[AttributePath, ModuleSpec]]
"""The path of each module, in the order of the state dict."""


@define(eq=False)
class Generated:
    """A model as source and weights: the page (the text of a `model.py`), and the state dict of its class.

    Attributes:
        text: the source of `model.py`; empty if only its keys were requested.
        tensors: the state dict of its class, in order.
        keys: maps the key of each tensor of the plan's state dict, which is that written by `convert` but for
            recognized cells, to its keys in `tensors`: at least one, and several if its module has several places,
            under which `tensors` has it each time.
        notes: notes for the user.
        pieces: what the tensors of recognized cells are made of, by keys of `tensors`; empty without such cells.
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
        """Return a record of the class's state dict, by which a live module of the plan converts its own to that.

        Each tensor of the class is a whole tensor of the plan, under another key.
        """
        record = Recorded([*self.tensors])
        for plan_key, (class_key, *tied_keys) in self.keys.items():
            whole_tensor = Run(plan_key, start=0, count=self.tensors[class_key].numel)
            if class_key in record.pieces:  # another tensor of the plan is the same, and has the same keys
                record.copies.setdefault(class_key, []).append(whole_tensor)
                continue
            record.sizes[class_key] = self.tensors[class_key].shape
            record.pieces[class_key] = [whole_tensor]
            record.tied.update(dict.fromkeys(tied_keys, class_key))
        return record

    def converted(self, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return a state dict of the generated class under the keys that `convert` writes.

        A tensor of a recognized cell (an LSTM made of single layers in Lua) is none of these: it is cut into those of
        the single layers again. All others are the tensors of the class under other keys.

        Args:
            tensors: the state dict of the class, by its keys.
        """
        renamed: dict[str, Tensor] = {}
        for plan_key, (class_key, *_tied_keys) in self.keys.items():
            # `self.state` is what `convert` writes: it has no tensor of a cell, which only the plan has.
            if plan_key in self.state:
                renamed[plan_key] = tensors[class_key]
        # The tensors that cells were composed of, which no longer have keys in the plan.
        tensors_of_single_layers = undo(self.pieces, tensors, wanted=self.state)
        return {**renamed, **tensors_of_single_layers}


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
        ModelError: the value is no module, or one that cannot be constructed.
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
    """Generate the source of a model, as `generate` does, which turns a RecursionError of this into a message.

    The arguments are those of `generate`; the text is left out if `source` is `None`.
    """
    # `original` is the state dict that `convert` writes; `cells` has the plan and its own state dict, in which each
    # recognized cell is one module. Notes of `cells` are those about cells alone.
    original, cells = _planned(value, path, index_base, limits, lift)
    owned = owned_tensors(cells.plan, cells.state)  # by module
    builder, root, blocks = _classes_of(value, cells, owned, limits)

    # From the class as it was made for this model, not from `blocks`, in which one class may stand for several.
    module_paths = list(_module_paths(root.attributes))
    tensors = _tensors_of_page(module_paths, owned)
    _check_tensors(cells.plan, cells.state, module_paths, tensors)
    keys = _keys_of_page(cells.plan, cells.state, owned, tensors)
    text = ""
    if source is not None:
        text = _text_of_page(builder, blocks, cells, owned, module_paths, source)
        check_page(text, builder, blocks, tensors)
    return Generated(
        text,
        tensors,
        keys,
        notes=[*original.notes, *cells.notes],
        pieces=_pieces_of_page(cells.pieces, keys),
        state=original,
        is_stateful=blocks[-1].is_stateful,  # the last block is the model's own class
    )


def _planned(value: TorchObject, path: str, index_base: int, limits: Limits, lift: bool) -> tuple[StateDict, Lifted]:
    """Return the state dict of a model that `convert` writes, and its plan with the recognized cells in it.

    The plan has a state dict of its own, as cells change it. The arguments are those of `generate`.
    """
    module_places = Places(value, path, limits)
    check_depth(module_places)
    original = lua_named(module_places)
    plan = build_plan(value, path, index_base, limits, original)
    check_size(original, limits, "constructing the model")
    return original, recognized(plan, original) if lift else Lifted(plan, original)


def _text_of_page(
    builder: SourceBuilder,
    blocks: list[CodeBlock],
    cells: Lifted,
    owned: TensorsByModule,
    module_paths: ModulePaths,
    source: str,
) -> str:
    """Return the source of a model, with the statements that follow from its tensors.

    Args:
        builder: the builder of the classes.
        blocks: the classes of the page, the model's own last.
        cells: the plan, with its state dict.
        owned: the tensors of the plan's modules, by the module's id and by their names in it.
        module_paths: the path of each module of the page.
        source: the name of the original file.
    """
    connections = [*_shared_modules(module_paths, owned)]
    connections += _references(module_paths)
    connections += _tied_parameters(module_paths, owned, cells.plan, cells.state)
    constants = {id(cells.state[key]) for key in constant_biases(cells)}
    untrained = [*_constant_parameters(module_paths, owned, constants)]
    cast_of_model, casts_of_modules = _element_types(module_paths, owned)
    additions = _Additions(connections, untrained, cast_of_model, casts_of_modules)
    return model_source(builder, blocks, additions, source)


def _classes_of(
    value: TorchObject, cells: Lifted, owned: TensorsByModule, limits: Limits
) -> tuple[SourceBuilder, CodeBlock, list[CodeBlock]]:
    """Make the classes of a page from a plan, which is checked, and changed where modules and classes are chosen.

    Args:
        value: the module or criterion.
        cells: its plan, with its state dict.
        owned: the tensors of the plan's modules, by the module's id and by their names in it.
        limits: resource limits.

    Returns:
        The builder; the class that was made for the model, by whose attributes its modules have their paths; and the
        classes of the page, in which one may stand for several equal ones.
    """
    plan = cells.plan
    unify_tied(plan, owned, _ids_of_computed(cells))
    check_construction(plan, owned)
    shared = shared_specs(plan)
    choose_classes(plan, shared)
    has_inplace = any(spec.kwargs.get("inplace") for spec in specs_in(plan.root))
    builder = SourceBuilder(shared, limits, _STEPS_PER_PART * size_of(plan.root), has_inplace)
    layer = layer_of(value.class_name)
    root = builder.build_root(plan.root, criterion=layer is not None and layer.kind == "criterion")
    return builder, root, prepared(builder)


def _tensors_of_page(module_paths: ModulePaths, owned: TensorsByModule) -> dict[str, Tensor]:
    """Return the tensors of a page's modules by their keys in its state dict, in order."""
    tensors: dict[str, Tensor] = {}
    for module_path, spec in module_paths:
        for name, tensor in owned.get(id(spec), {}).items():
            tensors[".".join((*module_path, name))] = tensor
    return tensors


def _pieces_of_page(pieces_of_plan: list[Piece], keys: dict[str, list[str]]) -> list[Piece]:
    """Return what tensors of cells are made of, with the keys of the page instead of those of the plan.

    Args:
        pieces_of_plan: the pieces.
        keys: the keys of the page for each key of the plan; of several, which are one tensor, the first is used.
    """
    pieces_of_page: list[Piece] = []
    for piece in pieces_of_plan:
        target, *_ = keys[piece.target]
        second_bias = ""  # there is none
        if piece.second_bias:
            second_bias, *_ = keys[piece.second_bias]
        pieces_of_page.append(evolve(piece, target=target, second_bias=second_bias))
    return pieces_of_page


def _ids_of_computed(cells: Lifted) -> set[int]:
    """Return the ids of tensors that were computed from fields of layers, and are no views of the file's memory.

    The tensors of cells are computed too, but not among these: equal cells have one module already, and the weights of
    others are trained separately even if they have the same values.
    """
    keys_of_cells: set[str] = set()
    for piece in cells.pieces:
        keys_of_cells.add(piece.target)
        if piece.second_bias:
            keys_of_cells.add(piece.second_bias)
    ids: set[int] = set()
    for key, origin in cells.state.origins.items():
        is_computed = origin.tensor is None  # the file has no such tensor
        if is_computed and key not in keys_of_cells:
            ids.add(id(cells.state[key]))
    return ids


def _keys_of_page(
    plan: Plan, state: Iterable[str], owned: TensorsByModule, tensors: Mapping[str, Tensor]
) -> dict[str, list[str]]:
    """Return the keys of the page's tensors for each key of the plan: of all that are the same view of the same memory.

    Args:
        plan: the plan.
        state: the keys of its state dict, each of which has a tensor in the page (`_check_tensors`).
        owned: the tensors of its modules, by the module's id and by their names in it.
        tensors: the tensors of the page, by their keys there.
    """
    keys_of_view: dict[object, list[str]] = {}
    for page_key, tensor in tensors.items():
        keys_of_view.setdefault(place_of(tensor), []).append(page_key)
    keys: dict[str, list[str]] = {}
    for key in state:
        # Not the tensor of this key: of a module that is another one now (`unify_tied`), computed tensors such as the
        # counter of a batch normalization are in memory of their own, and only those of the other are in the page.
        spec, name = owner_of(plan, key)
        keys[key] = keys_of_view[place_of(owned[id(spec)][name])]
    return keys


# The plan before generation

_MOST_DEEP = 250
"""Maximum nesting of modules."""
_MOST_COMPARED = 64
"""Maximum elements of a computed tensor that is compared by value; a larger one equals only itself."""


def check_depth(places: Places) -> None:
    """Refuse a model whose modules are nested too deep for Python to read the generated source.

    Raises:
        UnsupportedError: they are.
    """
    if any(place.depth >= _MOST_DEEP for place in places):
        expected = f"at most {_MOST_DEEP} modules inside one another"
        raise UnsupportedError(TOO_DEEP, path=places.path, expected=expected, hint=USE_CONVERT)


def size_of(root: ModuleSpec) -> int:
    """Count the modules, arguments and links of a plan."""
    total = 0
    for spec in specs_in(root):
        total += 1 + len(spec.args) + len(spec.kwargs) + len(spec.children)
        if spec.graph is not None:
            total += sum(1 + len(node.takes) for node in spec.graph.nodes) + len(spec.graph.outputs)
    return total


def owned_tensors(plan: Plan, tensors: dict[str, Tensor]) -> TensorsByModule:
    """Return the tensors of a state dict by the id of the module that owns them, and by their names there.

    Args:
        plan: the plan of the model.
        tensors: its state dict.
    """
    owned: TensorsByModule = {}
    for key, tensor in tensors.items():
        spec, name = owner_of(plan, key)
        owned.setdefault(id(spec), {})[name] = tensor
    return owned


def owner_of(plan: Plan, key: str) -> tuple[ModuleSpec, str]:
    """Return the module that a key of the plan's state dict leads to, and the name of the tensor there: `weight`."""
    *_, (spec, _, name) = way_to(plan.root, key)
    return spec, name


def unify_tied(plan: Plan, owned: TensorsByModule, computed: set[int]) -> None:
    """Merge modules that are identical, down to the memory of all their tensors, into one module at several places.

    Lua's clones with shared parameters are such modules: `module:clone('weight', 'bias')`.

    Args:
        plan: the plan; it is modified.
        owned: the tensors of its modules, by the module's id and by their names in it.
        computed: the tensors, by id, that are not views of the file's memory; small ones are compared by content.
    """
    numbered = _Numbered(owned, computed)
    first_of_number: dict[int, ModuleSpec] = {}

    @cache
    def has_tensors(spec: ModuleSpec) -> bool:
        """Return whether a module, or one inside it, has tensors."""
        return bool(owned.get(id(spec))) or any(map(has_tensors, spec.children.values()))

    @cache
    def has_state(spec: ModuleSpec) -> bool:
        """Return whether a module, or one inside it, keeps more than its tensors between calls."""
        return remembers(spec) or any(map(has_state, spec.children.values()))

    for spec in specs_in(plan.root):
        for name, child in spec.children.items():
            # Without tensors there is nothing to tie; of two states kept between calls one would overwrite the other.
            if has_tensors(child) and not has_state(child):
                spec.children[name] = first_of_number.setdefault(numbered.number_of(child), child)


class _Numbered:
    """Numbers for modules: those of one number are identical, down to the memory of all their tensors.

    Args:
        owned: the tensors of modules, by the module's id and by their names in it.
        computed: the tensors, by id, that are not views of the file's memory.
    """

    def __init__(self, owned: TensorsByModule, computed: set[int]) -> None:
        self._owned = owned
        self._computed = computed
        self._number_of_description: dict[Any, int] = {}
        self._number_of_id: dict[int, int] = {}

    def number_of(self, spec: ModuleSpec) -> int:
        """Return the number of a module, by how it is constructed, what is in it, and its tensors."""
        if id(spec) not in self._number_of_id:
            construction = (spec.target, spec.plain, repr(spec.args), repr(sorted(spec.kwargs.items())))
            children = tuple((name, self.number_of(child)) for name, child in spec.children.items())
            # Modules that it only refers to are at other places of the plan, and must be the same ones.
            refers = tuple((name, id(other)) for name, other in spec.refers.items())
            tensors = tuple((name, self._identity_of(tensor)) for name, tensor in self._owned.get(id(spec), {}).items())
            description = (construction, children, refers, tensors)
            next_number = len(self._number_of_description)
            self._number_of_id[id(spec)] = self._number_of_description.setdefault(description, next_number)
        return self._number_of_id[id(spec)]

    def _identity_of(self, tensor: Tensor) -> Any:
        """Return what is equal for two tensors only if they are the same: the content, the tensor, or its view."""
        is_computed = id(tensor) in self._computed
        # Computed tensors have memory of their own each, even if in the file their layers are one: small ones, such as
        # the counters of batch normalizations, are compared by content. Views of no elements have no memory in common,
        # but cannot differ.
        if not tensor.numel or (is_computed and tensor.numel <= _MOST_COMPARED):
            return tensor.element.name, tensor.shape, b"".join(rows(tensor))
        return id(tensor) if is_computed else place_of(tensor)


def shared_specs(plan: Plan) -> set[int]:
    """Return the modules that occur at several places, or in several nodes of a graph, by id."""
    place_counts: Counter[int] = Counter()
    in_several_nodes: set[int] = set()
    for spec in specs_in(plan.root):
        place_counts.update(id(child) for child in spec.children.values())
        if spec.graph is not None:
            node_counts = Counter(node.module for node in spec.graph.nodes if node.module is not None)
            in_several_nodes.update(id(spec.children[name]) for name, count in node_counts.items() if count > 1)
    at_several_places = {identity for identity, count in place_counts.items() if count > 1}
    return at_several_places | in_several_nodes


def choose_classes(plan: Plan, shared: set[int]) -> None:
    """Keep layers' own classes where those of torch.nn refuse an input that Lua's accept, or do not copy as Lua's do.

    The plain class of a layer, that of torch.nn (`plain`), requires a batch dimension, and takes no list. A `View`
    without the dimensions of one example removes that of a batch of one, as in Lua; what follows it must accept single
    examples. A shared module may receive a tensor at one place and a list at another.

    Args:
        plan: the plan; the classes of its modules are changed in place. An empty `plain` means the layer's own class.
        shared: the modules that occur at several places, by id.
    """
    use_copying_classes(plan.root)
    # From some layer on, for all after it in the order of the plan: whether these take its output is not followed.
    batch_is_lost = False
    for spec in specs_in(plan.root):  # containers before what is in them
        facts = traits(spec)
        # Sets `plain` of views, before these are visited: where they may receive an example, it is cleared again.
        if spec.target == SEQUENTIAL:
            _flatten_views([*spec.children.values()])
        # With these arguments the plain class accepts a single example, too: PReLU with one weight.
        accepts_examples = facts.plain_examples is not None and spec.args == facts.plain_examples
        may_refuse_list = id(spec) in shared and facts.may_take_list
        if (batch_is_lost and not accepts_examples) or may_refuse_list:
            spec.plain = ""
        keeps_batch = spec.kwargs.get(facts.keeps_batch_if)  # the argument of that name, if the layer has any
        if facts.loses_batch and not keeps_batch:
            batch_is_lost = True


def _flatten_views(modules: list[ModuleSpec]) -> None:
    """Replace a `View(n)` by `Flatten` if the linear layer after it takes n features: it refuses any other number.

    Args:
        modules: those of a Sequential, in order; the class of torch.nn (`plain`) of such a view is set.
    """
    for at, spec in enumerate(modules):
        if traits(spec).written != ("view",) or len(spec.args) != 1:
            continue
        # The first layer after it that does not keep the shape decides.
        for following in modules[at + 1 :]:
            name = following.target.removeprefix("torch.nn.")
            # The first argument of a linear layer is the number of features that it takes.
            if name == "Linear" and spec.args == (argument_at(following, 0),):
                spec.plain = "torch.nn.Flatten"
            keeps_shape = name in TORCH and TORCH[name].rank == SAME
            if not keeps_shape:
                break


# Places


def _module_paths(attributes: list[Attribute], path: AttributePath = ()) -> Iterator[tuple[AttributePath, ModuleSpec]]:
    """Yield each module that is held by the attributes of a class, and those inside, with their paths.

    A path is that of attributes in the page, `("layers", "3")`, not that of the module in Lua.

    Args:
        attributes: those of the class.
        path: of its instance; empty for the whole model.
    """

    def of_construction(call: Construction, path: AttributePath) -> Iterator[tuple[AttributePath, ModuleSpec]]:
        """Yield a constructed module with its path, which is given, and those inside with theirs."""
        if call.spec is not None:  # a Sequential that groups adjacent modules has none
            yield path, call.spec
        # Not `block`, which may be that of an equal module: this one has tensors of its own.
        if call.original_block is not None:
            yield from _module_paths(call.original_block.attributes, path)
        for name, inner in call.inner_modules():
            yield from of_construction(inner, (*path, name))

    for item in attributes:
        yield from of_construction(item.call, (*path, item.name))


def _expression_of(path: AttributePath, start: str = "self") -> ast.expr:
    """Return a path as an expression: `self.layers[3].weight`."""
    node: ast.expr = ast.Name(start)
    for name in path:
        node = ast.Subscript(node, expression(int(name))) if name.isdigit() else attribute(node, name)
    return node


def _first_path_by_id(module_paths: ModulePaths) -> dict[int, AttributePath]:
    """Return the first path of each module, by id."""
    return {id(spec): path for path, spec in reversed(module_paths)}  # the first replaces all later ones


def _shared_modules(module_paths: ModulePaths, owned: TensorsByModule) -> Iterator[ast.stmt]:
    """Yield an assignment for each further place of a shared module with tensors, or a state kept between calls.

    The class constructs it at each place: `self.layers[3] = self.layers[0]` makes one of them.

    Args:
        module_paths: the path of each module of the page.
        owned: the tensors of each module, by the module's id and by their names in it.
    """
    first_paths = _first_path_by_id(module_paths)
    replaced_paths: list[AttributePath] = []
    for path, spec in module_paths:
        first_path = first_paths[id(spec)]
        # A module that was replaced brought those inside it along.
        is_inside_replaced = any(path[: len(above)] == above for above in replaced_paths)
        if first_path == path or is_inside_replaced:
            continue
        modules = (inner for inner_path, inner in module_paths if inner_path[: len(path)] == path)
        # Without tensors and state, two modules are as good as one.
        if any(owned.get(id(module)) or remembers(module) for module in modules):
            yield ast.Assign([_expression_of(path)], _expression_of(first_path))
            replaced_paths.append(path)


def _references(module_paths: ModulePaths) -> Iterator[ast.stmt]:
    """Yield a statement for each module that others refer to without containing it: `self.a.refer(module=self.b)`."""
    first_paths = _first_path_by_id(module_paths)
    for path, spec in module_paths:
        for name, other in spec.refers.items():
            # One without a path has no module in the page.
            if id(other) in first_paths:
                referred = _expression_of(first_paths[id(other)])
                yield ast.Expr(method(_expression_of(path), "refer", **{name: referred}))


def _tied_parameters(
    module_paths: ModulePaths, owned: TensorsByModule, plan: Plan, state: StateDict
) -> Iterator[ast.stmt]:
    """Yield an assignment for each parameter that in Lua is one with that of another module.

    Such as `self.decoder.weight = self.encoder.weight`; PyTorch then trains one parameter.

    Args:
        module_paths: the path of each module of the page.
        owned: the tensors of each module, by the module's id and by their names in it.
        plan: has the keys of the parameters; all other tensors are buffers.
        state: the plan's state dict.
    """
    parameters = {id(state[key]) for key in plan.parameters}
    first: dict[object, tuple[AttributePath, int]] = {}
    """The first path of a tensor, and the id of its module, by the tensor's view of memory."""
    for module_path, spec in module_paths:
        for name, tensor in owned.get(id(spec), {}).items():
            # Buffers are not trained, and so need not be one; without elements or memory, nothing is shared.
            if id(tensor) not in parameters or tensor.storage is None or not tensor.numel:
                continue
            path = (*module_path, name)
            first_path, owner = first.setdefault(place_of(tensor), (path, id(spec)))
            # Another place of the same module is no tie: `_shared_modules` connects these.
            if owner != id(spec) and first_path != path:
                yield ast.Assign([_expression_of(path)], _expression_of(first_path))


def _constant_parameters(module_paths: ModulePaths, owned: TensorsByModule, constants: set[int]) -> Iterator[ast.stmt]:
    """Yield a statement for each parameter that is not trained, `self.lstm.bias_hh_l0.requires_grad_(False)`.

    Args:
        module_paths: the path of each module.
        owned: the tensors of each module, by the module's id and by their names in it.
        constants: the tensors that are not trained, by id.
    """
    written: set[int] = set()  # a tensor of a shared module has several paths, and needs one statement
    for path, spec in module_paths:
        for name, tensor in owned.get(id(spec), {}).items():
            if id(tensor) in constants and id(tensor) not in written:
                written.add(id(tensor))
                yield ast.Expr(method(_expression_of((*path, name)), "requires_grad_", False))


def _element_types(module_paths: ModulePaths, owned: TensorsByModule) -> tuple[str, list[ast.stmt]]:
    """Return the method that sets the element type of most modules, and statements for the others.

    The method, such as `double`, is empty if most have float32, with which modules are constructed. A statement is one
    of `load`: `model.layers[3].half()`.

    Args:
        module_paths: the path of each module of the page.
        owned: the tensors of each module, by the module's id and by their names in it.
    """
    float_types: list[tuple[AttributePath, list[str]]] = []
    """The different types of the floating point tensors of each module, in their order, and not in that of a set."""
    for path, spec in module_paths:
        all_types = dict.fromkeys(tensor.element.name for tensor in owned.get(id(spec), {}).values())
        float_types.append((path, [name for name in all_types if name in _CAST_METHODS]))
    usual = _most_common(name for _, types in float_types for name in types)
    statements: list[ast.stmt] = []
    for path, types in float_types:
        if len(types) != 1:
            # The methods change a module as a whole, so that none suits one of several types: it keeps the usual one,
            # and `load_state_dict` converts its values.
            continue
        (only_type,) = types
        if only_type != usual:
            statements.append(ast.Expr(method(_expression_of(path, "model"), _CAST_METHODS[only_type])))
    return "" if usual == "float32" else _CAST_METHODS[usual], statements


def _most_common(float_types: Iterable[str]) -> str:
    """Return the most common of some element types, the first of several; float32 if there are none."""
    counts = Counter(float_types)
    return max(counts, key=counts.__getitem__, default="float32")


def _check_tensors(plan: Plan, source: dict[str, Tensor], module_paths: ModulePaths, page: dict[str, Tensor]) -> None:
    """Check that each tensor of Lua is in the page at every place of its module: constructors make it at each.

    Args:
        plan: the plan.
        source: the tensors of Lua, by their keys in the plan; with those composed for recognized cells.
        module_paths: the path of each module of the page.
        page: the tensors of the page, by their keys there.

    Raises:
        ModelError: a tensor is missing, or replaced by another one.
    """
    paths: dict[int, list[AttributePath]] = {}
    """All paths of a module, by its id."""
    for path, spec in module_paths:
        paths.setdefault(id(spec), []).append(path)
    for key, tensor in source.items():
        spec, name = owner_of(plan, key)
        counterparts = [page.get(".".join((*path, name))) for path in paths.get(id(spec), ())]
        if not counterparts or not all(other is not None and _are_same(tensor, other) for other in counterparts):
            raise ModelError(
                "a tensor would be lost or replaced by another one in model.pt",
                path=f"{spec.path}.{name}",
                expected=f"the values of {key}",
                found="another tensor" if counterparts else "no attribute for it in the source",
            )


def _are_same(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same view of the same memory, or have equal type, shape and bytes."""
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
    """Return the classes of a model, tidied and merged, those that others contain first.

    Classes that no other uses are left out. From the builder, copied pieces that none uses are removed.
    """
    for block in builder.blocks:
        tidy(block)  # which makes some layers expressions or functions
    blocks = _used_blocks(builder.blocks)
    needed = _names_of_needed_pieces(blocks, builder.copied_pieces)
    builder.copied_pieces = {name: piece for name, piece in builder.copied_pieces.items() if name in needed}
    return merge_alike(blocks, frozenset((*builder.copied_pieces, *builder.foreign_imports, *TAKEN)))


def _names_of_needed_pieces(blocks: list[CodeBlock], copied_pieces: Mapping[str, SourcePiece]) -> set[str]:
    """Return the names of the copied pieces that classes still construct, and of those that these need.

    Args:
        blocks: the classes.
        copied_pieces: all copied pieces, by name.
    """
    needed: set[str] = set()
    for block in blocks:
        for call in block.constructions():
            is_class_of_page = call.block is not None  # its name is not final yet
            if call.name in copied_pieces and call.spec is not None and not is_class_of_page:
                needed.update(piece.name for piece in pieces(call.spec.target))
    return needed


def _used_blocks(blocks: list[CodeBlock]) -> list[CodeBlock]:
    """Return the classes that the model's own, which is the last, consists of.

    The others were made for modules of a Sequential that became a class, in which these modules are steps.
    """
    used = {id(blocks[-1])}
    for block in reversed(blocks):  # a class before those that it contains
        if id(block) in used:
            used.update(id(call.block) for call in block.constructions())
    return [block for block in blocks if id(block) in used]


@define(eq=False)
class _Additions:
    """What a page has besides its classes and layers, as its tensors require.

    Attributes:
        connections: statements at the end of the model's constructor: `self.decoder.weight = self.encoder.weight`.
        untrained: statements after these, for biases that stay zero: `self.lstm.bias_hh_l0.requires_grad_(False)`.
        cast_of_model: the method that sets the element type of all parameters: `double`; empty for float32.
        casts_of_modules: statements of `load` that set that of single modules: `model.layers[3].half()`.
    """

    connections: list[ast.stmt] = field(factory=list)
    untrained: list[ast.stmt] = field(factory=list)
    cast_of_model: str = ""
    casts_of_modules: list[ast.stmt] = field(factory=list)


def model_source(builder: SourceBuilder, blocks: list[CodeBlock], additions: _Additions, source: str) -> str:
    """Return the whole file.

    Args:
        builder: the builder of the blocks.
        blocks: the classes, those that others contain first; the model's own is the last.
        additions: what the tensors of the model require.
        source: the name of the original file.
    """
    # No variable may have one of these names.
    class_names = frozenset((*builder.copied_pieces, *builder.foreign_imports, *(block.name for block in blocks)))
    *inner, model = blocks
    parts = [[piece.text] for piece in builder.copied_pieces.values()]
    parts += [_class(block, Writer(block, class_names)) for block in inner]
    parts.append(_class(model, Writer(model, class_names), additions))
    parts.append(_load(additions))
    # Imports come first in the page, but depend on what the parts use.
    all_lines = _head(source, _imports_of(builder, parts))
    for part in parts:
        all_lines += ["", "", *part]  # two empty lines before each part, as Black has them
    return "\n".join(all_lines) + "\n"


def _head(source: str, imports: set[Import]) -> list[str]:
    """Return the docstring and imports of a page as lines.

    Args:
        source: the name of the original file.
        imports: the imports.
    """
    # `dataclass` looks for annotations that are text in `sys.modules`, where a page that `exec` runs is not.
    postponed = [] if ("dataclasses", "dataclass", "") in imports else ["from __future__ import annotations", ""]
    return [
        f'"""The model of {_safe(source)} in PyTorch, {MADE_BY} {__version__}."""',
        "",
        *postponed,
        *import_lines(imports),
    ]


def _imports_of(builder: SourceBuilder, parts: list[list[str]]) -> set[Import]:
    """Return the imports of a page.

    Args:
        builder: has the included layers and foreign classes.
        parts: the classes and functions of the page, each as lines of source.
    """
    used_names = {name for part in parts for name in _names_in("\n".join(part))}
    imports = {statement for name, statement in _BASE_IMPORTS.items() if name in used_names}
    for piece in builder.copied_pieces.values():
        imports |= piece.imports
    for name_in_page, (home, name) in builder.foreign_imports.items():
        alias = "" if name_in_page == name else name_in_page
        imports.add((home, name, alias))
    return imports


@lru_cache(maxsize=256)
def _names_in(text: str) -> frozenset[str]:
    """Return the names in a class or function; remembered, as models share the layers that their pages copy."""
    names: set[str] = set()
    tables = [symtable(text, "", "exec")]
    for table in tables:  # grows: those of its functions
        names.update(table.get_identifiers())
        tables += table.get_children()
    return frozenset(names)


def _safe(name: str) -> str:
    """Return the name of a file as part of a docstring."""
    return re.sub(r"[^\w .@+-]", "_", name)[:40]


def _class(block: CodeBlock, writer: Writer, additions: _Additions | None = None) -> list[str]:
    """Return a class as lines of source: docstring, constructor, `forward`.

    Args:
        block: the class.
        writer: has the statements of its `forward`.
        additions: of the whole model's class, what its tensors require.
    """
    text = [f"class {checked_name(block.name)}(nn.Module):", f'    """{_summary_of_class(block)}"""', ""]
    if block.attributes:  # else the constructor of nn.Module will do
        text += [*_constructor(block, additions or _Additions()), ""]
    return text + _forward(block, writer)


def _constructor(block: CodeBlock, additions: _Additions) -> list[str]:
    """Return the method `__init__` of a class as lines of source: modules, connections, and what is not trained."""
    parameters = [f"{checked_name(name)}: {annotation}" for name, annotation in block.parameters.items()]
    text = bracketed("def __init__(", ["self", *parameters], ") -> None:", 4)
    text.append("        super().__init__()")
    for item in block.attributes:
        text += lines(ast.Assign([attribute(ast.Name("self"), item.name)], item.call.as_call()), 8)
    for statement in additions.connections:
        text += lines(statement, 8)
    if additions.untrained:
        text.append("        # Lua has one bias where PyTorch adds two: the second stays zero.")
    for statement in additions.untrained:
        text += lines(statement, 8)
    return text


def _summary_of_class(block: CodeBlock) -> str:
    """Return the docstring of a class: of the whole model, the class in Lua."""
    if not block.is_whole_model:
        return _SUMMARIES.get(block.base_name, "Some steps of the model.")
    class_name = block.spec.class_name
    return f"An {_safe(class_name)} of Lua Torch." if class_name else "The model."


_SUMMARIES = {
    "Residual": "Two branches of one input, added up.",
    "Branches": "Several branches of one input.",
    "Graph": "A graph of modules.",
}


def _forward(block: CodeBlock, writer: Writer) -> list[str]:
    """Return the method `forward` as lines of source.

    Args:
        block: the class.
        writer: has the names and statements of its `forward`.
    """
    names = writer.unpacked
    text = bracketed("def forward(", ["self", *_arguments(block, writer)], f") -> {_return_type(block)}:", 4)
    text.append(f'        """{_summary_of_forward(block, names)}"""')
    if names and not block.is_stateful:  # one with a state has its inputs as arguments
        targets = [*names, "*_"] if block.ignores_further_inputs else names
        comma = "," if len(targets) == 1 else ""  # `x, = inputs`
        unpacking = f"        {', '.join(targets)}{comma} = inputs"
        if len(unpacking) <= WIDTH:
            text.append(unpacking)
        else:
            text += bracketed("(", targets, ") = inputs", 8, are_arguments=False)
    for statement in writer.statements:
        text += lines(statement, 8)
    return text


def _arguments(block: CodeBlock, writer: Writer) -> list[str]:
    """Return the arguments of `forward`, with their annotations, but without `self`.

    Args:
        block: the class.
        writer: has the names and statements of its `forward`.
    """
    if block.is_stateful:  # an argument for each element of its input
        first, *states = writer.unpacked
        return [f"{first}: Tensor", *(f"{state}: Any = None" for state in states)]
    annotation = "Tensor"
    if writer.unpacked:
        reads_elements_of_elements = any(ref.is_in_input and len(ref.path) > 1 for _, ref in block.links())
        annotation = "list[Any]" if reads_elements_of_elements else "list[Tensor]"
    elif block.input_kind.is_list:
        annotation = _annotation(block.input_kind)
    elif writer.source == "inputs":  # its elements are used, as of a list or a tensor
        annotation = "Any"
    arguments = [f"{writer.source}: {annotation}"]
    if writer.reads("target"):
        arguments.append("target: Any = None")
    return arguments


def _return_type(block: CodeBlock) -> str:
    """Return the annotation of the output of `forward`."""
    result = block.result
    if block.is_stateful:
        return "tuple[Any, ...]"
    if isinstance(result, list):
        return "list[Any]" if any(isinstance(item, list) for item in result) else "list[Tensor]"
    step = block.steps[result.step]
    is_input_or_element = result.is_in_input or bool(result.path)
    if step is None or is_input_or_element:
        return "Any"
    return _annotation(step.kind)


def _annotation(kind: Kind) -> str:
    """Return the type of a value as an annotation: `list[Tensor]`."""
    if kind.is_list:
        elements = kind.items or (kind.each,)
        types = {_annotation(element or ANY) for element in elements}
        return f"list[{types.pop()}]" if len(types) == 1 else "list[Any]"
    return "Tensor" if kind == TENSOR else "Any"


def _summary_of_forward(block: CodeBlock, names: list[str]) -> str:
    """Return the docstring of `forward`: its inputs and outputs, as far as they are known.

    Args:
        block: the class.
        names: the names of the elements of its input, if these are unpacked.
    """
    if block.is_stateful:
        return "Take the state, None for that of a beginning; return the output and the new state."
    inputs = ""
    first_module = end_of(block.spec)
    layer = TORCH.get(first_module.target.removeprefix("torch.nn."))
    # The shape only of the model's input, which its users have to know.
    if layer is not None and layer.shape and block.is_whole_model:
        # `(batch, {0}, height, width)`: the first argument of such a layer is its number of channels or features.
        inputs = layer.shape.format(argument_at(first_module, 0))
    elif names:
        inputs = f"a list of {len(names)}"
    elif block.input_kind.is_list:
        inputs = "a list"
    outputs = {"Residual": "their sum", "Branches": "their outputs"}.get(block.base_name, "the output")
    if isinstance(block.result, list):
        outputs = f"a list of {len(block.result)}"
    return f"Take {inputs}; return {outputs}." if inputs else f"Return {outputs}."


def _load(additions: _Additions) -> list[str]:
    """Return the function `load` as lines of source; it sets element types other than float32."""
    conversion = f".{additions.cast_of_model}()" if additions.cast_of_model else ""
    return [
        "def load(weights: str | Path | None = None) -> Model:",
        '    """Return the model in evaluation mode, with these weights or those of model.pt."""',
        f"    model = Model(){conversion}",
        *(line for statement in additions.casts_of_modules for line in lines(statement, 4)),
        '    path = weights or Path(__file__).with_name("model.pt")',
        "    model.load_state_dict(torch.load(path, weights_only=True))",
        "    return model.eval()",
    ]


# Check of the finished page

_TORCH_FUNCTIONS = {layer.function.partition(".")[2] for layer in TORCH.values() if layer.function} | {
    *("cat", "stack", "where", "load", "max_pool1d"),
}
_NAMES_OF_METHODS = """
abs exp log square pow gt lt squeeze unsqueeze transpose select narrow sum mean max min values flip to mT long clone
unbind flatten unflatten reshape_as contiguous refer double half bfloat16 float load_state_dict eval with_name
requires_grad_
"""
_PAGE_METHODS = frozenset(_NAMES_OF_METHODS.split())
"""Attributes of values that a page uses, besides the modules in its own classes."""
_NAMES_IN_METHODS = {"self", "input", "inputs", "target", "super", "float", "list", "torch", "nn", "F"}
"""Names that a method may use without assigning them."""
_NAMES_IN_LOAD = {"Path", "__file__", "Model", "model", "path", "weights", "torch"}
_ALLOWED_NODES = (
    *(ast.Assign, ast.Return, ast.Expr, ast.Call, ast.keyword, ast.Attribute, ast.Name, ast.Constant, ast.Tuple),
    *(ast.List, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.MatMult, ast.Div),
    *(ast.Load, ast.Store),
)
"""Allowed nodes of statements and expressions."""
_NODES_OF_ANNOTATIONS = (ast.Subscript, ast.Tuple, ast.BinOp, ast.BitOr, ast.Load)
"""Allowed nodes of annotations, besides names and constants."""
_NAMES_IN_ANNOTATIONS = {"Tensor", "Any", "list", "tuple", "str", "int", "float", "Path", "Model"}


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
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two for deep nesting
        raise ModelError(f"the source of this model is not Python: {error}") from error
    page = _Page(builder, blocks, keys)
    included_texts = {piece.text for piece in builder.copied_pieces.values()}
    lines = text.splitlines()
    for number, statement in enumerate(tree.body):
        # The included layers are those of this package, to the letter.
        is_included = statement_text(statement, lines) in included_texts
        is_docstring_of_page = number == 0 and _is_docstring(statement)
        if not is_included and not is_docstring_of_page:
            page.check(statement)


class _Page:
    """Checks that the statements of a generated page use only constructs and names that this package writes.

    Args:
        builder: the builder of the page: the included layers and foreign classes.
        blocks: the classes of the model.
        keys: those of its state dict.
    """

    def __init__(self, builder: SourceBuilder, blocks: list[CodeBlock], keys: Iterable[str]) -> None:
        """Collect the names that this page may use, for each place where a name can stand."""
        self._classes = {block.name: set(block.parameters) for block in blocks}
        """The classes, with the parameters of their constructors."""
        self._names_in_methods = _NAMES_IN_METHODS | {*self._classes, *builder.copied_pieces, *builder.foreign_imports}
        """Names that a method may use without assigning them."""
        self._state_arguments: set[str] = set()
        """Arguments of `forward` where it takes a state."""
        self._attributes = set(_PAGE_METHODS)
        """Attributes of values: methods, and the modules and tensors of the classes."""
        torch_classes = {*TORCH}
        for block in blocks:
            if block.is_stateful:
                self._state_arguments.update(block.input_names.values())
            self._attributes.update(attribute.name for attribute in block.attributes)
            torch_classes.update(call.name.removeprefix("nn.") for call in block.constructions())
        for key in keys:
            self._attributes.update(key.split("."))  # `layers.3.weight` is written `self.layers[3].weight`
        functions = _TORCH_FUNCTIONS | {*ELEMENT_TYPES}
        self._attributes_of_modules = {"nn": torch_classes, "torch": functions, "F": functions}
        """Attributes of modules of PyTorch."""
        self._imports = _allowed_imports(builder)

    def check(self, statement: ast.stmt) -> None:
        """Check a statement of the page: an import, a class of the model, or `load`; nothing else may be there."""
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in statement.names]
            if isinstance(statement, ast.Import):
                imports = {(name, "") for name in names}
            else:
                imports = {(statement.module or "", name) for name in names}
            _require(imports <= self._imports, statement)
        elif isinstance(statement, ast.ClassDef) and statement.name in self._classes:
            _require([ast.unparse(base) for base in statement.bases] == ["nn.Module"], statement)
            _require(not (statement.keywords or statement.decorator_list), statement)
            _require(not getattr(statement, "type_params", ()), statement)  # since Python 3.12
            for inner in statement.body:
                if not _is_docstring(inner):
                    self._method(inner, self._classes[statement.name])
        else:
            _require(isinstance(statement, ast.FunctionDef) and statement.name == "load", statement)
            self._function(statement, {"weights"}, _NAMES_IN_LOAD)

    def _method(self, method: ast.stmt, parameters: set[str]) -> None:
        """Check a method of a class whose constructor has these parameters."""
        _require(isinstance(method, ast.FunctionDef) and method.name in ("__init__", "forward"), method)
        assert isinstance(method, ast.FunctionDef)
        arguments = parameters if method.name == "__init__" else {"input", "inputs", "target", *self._state_arguments}
        self._function(method, {"self", *arguments}, self._names_in_methods | parameters, self._state_arguments)

    def _function(self, function: ast.stmt, arguments: set[str], words: set[str], inputs: Iterable[str] = ()) -> None:
        """Refuse a function with an argument or statement that this package does not write.

        Args:
            function: the function.
            arguments: the arguments that it may have.
            words: names that it may use without assigning them.
            inputs: those of its arguments that it may use, and assign, like variables.
        """
        assert isinstance(function, ast.FunctionDef)
        _check_signature(function, arguments)
        to_check: list[ast.AST] = [statement for statement in function.body if not _is_docstring(statement)]
        variables = set(inputs)
        # First all variables are collected: a use before the assignment is no harm.
        for number, statement in enumerate(to_check):
            _require(isinstance(statement, (ast.Assign, ast.Return, ast.Expr)), statement)
            if isinstance(statement, ast.Assign):
                variables |= _assigned(statement, words)
                if isinstance(statement.value, ast.BoolOp) and function.name == "load":
                    to_check[number] = _default_path(statement, statement.value)  # an `or` is no allowed node
        for statement in to_check:
            for node in ast.walk(statement):
                self._node(node, words | variables)

    def _node(self, node: ast.AST, words: set[str]) -> None:
        """Check one node of the syntax tree of a statement; the nodes inside are checked on their own.

        Args:
            node: the node.
            words: names that the statement may use.
        """
        allowed = isinstance(node, _ALLOWED_NODES)
        if isinstance(node, ast.Name):
            allowed = node.id in words
        elif isinstance(node, ast.Constant):
            allowed = isinstance(node.value, (int, float, str, type(None)))
        elif isinstance(node, ast.UnaryOp):
            allowed = isinstance(node.op, ast.USub)
        elif isinstance(node, ast.Starred):
            allowed = isinstance(node.ctx, ast.Store)  # first, *_ = inputs
        elif isinstance(node, ast.Subscript):
            # `x[0]`, `x[-1]`, `x["name"]`
            index = node.slice.operand if isinstance(node.slice, ast.UnaryOp) else node.slice
            allowed = isinstance(index, ast.Constant) and isinstance(index.value, (int, str))
        elif isinstance(node, ast.Attribute) and node.attr == "__init__":
            allowed = ast.unparse(node.value) == "super()"
        elif isinstance(node, ast.Attribute):
            # `nn.Linear`, `torch.cat`, `F.relu`; of anything else, a method or a module of the page.
            home = node.value.id if isinstance(node.value, ast.Name) else ""
            allowed = node.attr in self._attributes_of_modules.get(home, self._attributes)
        _require(allowed, node)


def _allowed_imports(builder: SourceBuilder) -> set[tuple[str, str]]:
    """Return the imports that a page may have, as module and name; the name is empty for `import module`."""
    imports = [*_BASE_IMPORTS.values()]
    for piece in builder.copied_pieces.values():
        imports += piece.imports
    without_alias = {(module, name) for module, name, _ in imports}
    return {("__future__", "annotations"), *builder.foreign_imports.values(), *without_alias}


def _check_signature(function: ast.FunctionDef, arguments: set[str]) -> None:
    """Refuse a function of a page with other arguments, defaults other than constants, or annotations other than types.

    Defaults and annotations run when the function is defined: defaults always, annotations unless they are postponed.

    Args:
        function: the function.
        arguments: the arguments that it may have.
    """
    signature = function.args
    _require({argument.arg for argument in signature.args} <= arguments, function)
    _require(not (signature.vararg or signature.kwarg or signature.kwonlyargs or signature.posonlyargs), function)
    _require(not function.decorator_list, function)
    _require(not getattr(function, "type_params", ()), function)  # since Python 3.12
    for default in signature.defaults:
        _require(isinstance(default, ast.Constant), default)
    for annotation in (*(argument.annotation for argument in signature.args), function.returns):
        if annotation is not None:
            _check_annotation(annotation)


def _check_annotation(annotation: ast.expr) -> None:
    """Refuse an annotation with anything but the types of a page."""
    for node in ast.walk(annotation):
        allowed = isinstance(node, _NODES_OF_ANNOTATIONS)
        if isinstance(node, ast.Name):
            allowed = node.id in _NAMES_IN_ANNOTATIONS
        elif isinstance(node, ast.Constant):
            allowed = node.value in (None, ...)  # `str | None`, `tuple[int, ...]`
        _require(allowed, node)


def _default_path(statement: ast.Assign, value: ast.BoolOp) -> ast.expr:
    """Return the right side of the only `or` of a page, `path = weights or Path(…)`; refuse any other statement.

    Args:
        statement: the statement.
        value: its value.
    """
    _require(isinstance(value.op, ast.Or) and len(value.values) == 2, value)
    left, right = value.values
    targets = [*map(ast.unparse, statement.targets)]
    _require(targets == ["path"] and ast.unparse(left) == "weights", statement)
    return right


def _assigned(statement: ast.Assign, words: set[str]) -> set[str]:
    """Return the variables that a statement assigns.

    Args:
        statement: the statement.
        words: names that the function may use without assigning them; none may be assigned but the two of `load`.
    """
    names: set[str] = set()
    for target in statement.targets:
        names.update(node.id for node in ast.walk(target) if isinstance(node, ast.Name))
    # `self.weight = …` assigns an attribute: `self` is only read there.
    if not any(isinstance(target, (ast.Name, ast.Tuple)) for target in statement.targets):
        names -= {"self"}
    _require(not names & (words - {"model", "path"}), statement)
    _require(not any(name.startswith("__") for name in names), statement)
    return names


def _is_docstring(statement: ast.AST) -> bool:
    """Return whether a statement is a docstring."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _require(is_allowed: bool, node: ast.AST) -> None:
    """Refuse a page with a node that is not allowed."""
    if not is_allowed:
        raise ModelError(
            "the source of this model contains an unexpected construct",
            expected="the constructs listed in t7bridge.codegen.generate",
            found=f"{type(node).__name__} in line {getattr(node, 'lineno', 0)}",
        )
