"""What the tensors of a model require of its page besides the classes: modules and parameters that are one, element
types, what is not trained. A page is the text of a `model.py`; its modules have paths from the instance of the model's
class, as their tensors have keys in the state dict: `layers`, `3`, `weight`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import field

from ..data import define
from ..errors import ModelError
from ..graph.tensor import Tensor, place_of
from ..nn.mapping import ModuleSpec, Plan
from ..nn.pieces import Lifted, constant_biases
from ..nn.state_dict import StateDict
from .code import Construction, attribute, expression, method
from .copied import remembers
from .owned import TensorsByModule, owner_of
from .steps import Attribute

_CAST_METHODS = {"float64": "double", "float16": "half", "bfloat16": "bfloat16", "float32": "float"}
"""Methods of torch.nn.Module that change the element type of all floating point parameters and buffers."""
AttributePath = tuple[str, ...]
"""The path of a module or tensor from an instance of the model's class."""
ModulePaths = list[tuple[AttributePath, ModuleSpec]]
"""The path of each module, in the order of the state dict."""


@define(eq=False)
class Additions:
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


def additions_of(lifted: Lifted, owned: TensorsByModule, module_paths: ModulePaths) -> Additions:
    """Return what the tensors of a plan require of its page.

    Args:
        lifted: the plan, in which recognized cells are single modules, and its state dict.
        owned: the tensors of the plan's modules, by the module's id and by their names in it.
        module_paths: the path of each module of the page.
    """
    constants = {id(lifted.state[key]) for key in constant_biases(lifted)}
    cast_of_model, casts_of_modules = _element_types(module_paths, owned)
    return Additions(
        connections=[
            *_shared_modules(module_paths, owned),
            *_references(module_paths),
            *_tied_parameters(module_paths, owned, lifted.plan, lifted.state),
        ],
        untrained=[*_constant_parameters(module_paths, owned, constants)],
        cast_of_model=cast_of_model,
        casts_of_modules=casts_of_modules,
    )


def paths_of_modules(
    attributes: list[Attribute], path: AttributePath = ()
) -> Iterator[tuple[AttributePath, ModuleSpec]]:
    """Yield each module that is held by the attributes of a class, and those inside, with their paths.

    A path is that of attributes in the page, `("layers", "3")`, not that of the module in Lua.

    Args:
        attributes: those of the class.
        path: of its instance; empty for the whole model.
    """

    def of_construction(construction: Construction, path: AttributePath) -> Iterator[tuple[AttributePath, ModuleSpec]]:
        """Yield a constructed module with its path, which is given, and those inside with theirs."""
        if construction.spec is not None:  # a Sequential that groups adjacent modules has none
            yield path, construction.spec
        # Not `block`, which may be that of an equal module: this one has tensors of its own.
        if construction.original_block is not None:
            yield from paths_of_modules(construction.original_block.attributes, path)
        for name, inner in construction.inner_modules():
            yield from of_construction(inner, (*path, name))

    for item in attributes:
        yield from of_construction(item.construction, (*path, item.name))


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
    for path, spec in module_paths:  # a module before those inside it
        first_path = first_paths[id(spec)]
        # A module that was replaced brought those inside it along.
        is_inside_replaced = any(path[: len(above)] == above for above in replaced_paths)
        if first_path == path or is_inside_replaced:
            continue
        module_and_inner = (inner for inner_path, inner in module_paths if inner_path[: len(path)] == path)
        # Without tensors and state, two modules are as good as one.
        if any(owned.get(id(inner)) or remembers(inner) for inner in module_and_inner):
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
    first_places: dict[object, tuple[AttributePath, int]] = {}
    """The first path of a tensor, and the id of its module, by the tensor's view of memory."""
    for module_path, spec in module_paths:
        for name, tensor in owned.get(id(spec), {}).items():
            # Buffers are not trained, and so need not be one; without elements or memory, nothing is shared.
            if id(tensor) not in parameters or tensor.storage is None or not tensor.numel:
                continue
            path = (*module_path, name)
            first_path, owner = first_places.setdefault(place_of(tensor), (path, id(spec)))
            # Another place of the same module is no tie: `_shared_modules` connects these.
            if owner != id(spec):
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
    types_of_modules = [(path, _float_types(owned.get(id(spec), {}))) for path, spec in module_paths]
    usual = _most_common(name for _, types in types_of_modules for name in types)
    statements: list[ast.stmt] = []
    types_set: dict[AttributePath, str] = {(): usual}
    """The type that `load` sets for a module and all inside it; the empty path is the model."""
    for path, types in types_of_modules:  # a module before those inside it
        if not types:
            continue
        # None of these methods suits a module of several types, as each changes it as a whole: it has the usual one,
        # and `load_state_dict` converts its values.
        wanted = types[0] if len(types) == 1 else usual
        if wanted != _type_set_around(path, types_set):
            statements.append(ast.Expr(method(_expression_of(path, "model"), _CAST_METHODS[wanted])))
            types_set[path] = wanted
    return "" if usual == "float32" else _CAST_METHODS[usual], statements


def _float_types(tensors: dict[str, Tensor]) -> list[str]:
    """Return the different floating point types of the tensors of a module, in the order of the tensors."""
    all_types = dict.fromkeys(tensor.element.name for tensor in tensors.values())  # in order, as a set is not
    return [name for name in all_types if name in _CAST_METHODS]


def _type_set_around(path: AttributePath, types_set: dict[AttributePath, str]) -> str:
    """Return the element type that was set for the nearest module around a module; the model always has one."""
    while path not in types_set:
        path = path[:-1]
    return types_set[path]


def _most_common(float_types: Iterable[str]) -> str:
    """Return the most common of some element types, the first of several; float32 if there are none."""
    counts = Counter(float_types)
    return max(counts, key=counts.__getitem__, default="float32")


def check_tensors_are_in_page(
    plan: Plan, source: dict[str, Tensor], module_paths: ModulePaths, page: dict[str, Tensor]
) -> None:
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
