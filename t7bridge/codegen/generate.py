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
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve, field

from ..data import define
from ..errors import ModelError, UnsupportedError
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor, place_of
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.layouts import check_size
from ..nn.mapping import Plan, specs_in
from ..nn.pieces import Lifted, Piece, recognized, undo
from ..nn.places import Places
from ..nn.plan import build_plan
from ..nn.registry import layer_of
from ..nn.state_dict import Recorded, Run, StateDict, lua_named
from ..nn.torch_nn import TORCH
from ..report import Note
from .classes import prepared
from .copied import statement_text
from .flow import TOO_DEEP, USE_CONVERT, SourceBuilder
from .page import BASE_IMPORTS, ModulePaths, additions_of, check_tensors_are_in_page, model_source, paths_of_modules
from .plans import (
    TensorsByModule,
    check_construction,
    check_depth,
    choose_classes,
    owned_tensors,
    owner_of,
    shared_specs,
    size_of,
    unify_tied,
)
from .steps import CodeBlock

_STEPS_PER_PART = 20
"""Steps of the budget that each module, argument and link of a plan accounts for."""


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
            if class_key not in record.pieces:
                record.sizes[class_key] = self.tensors[class_key].shape
                record.pieces[class_key] = [whole_tensor]
                record.tied.update(dict.fromkeys(tied_keys, class_key))
            else:  # an earlier tensor of the plan is the same view of the same memory, and has the same keys here
                record.copies.setdefault(class_key, []).append(whole_tensor)
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
    original, lifted = _state_dict_and_plan(value, path, index_base, limits, lift)
    owned = owned_tensors(lifted.plan, lifted.state)
    builder, blocks = _classes_of(value, lifted, owned, limits)
    model_class = blocks[-1]
    module_paths = list(paths_of_modules(model_class.attributes))
    tensors = _tensors_of_page(module_paths, owned)
    check_tensors_are_in_page(lifted.plan, lifted.state, module_paths, tensors)
    keys = _keys_of_page(lifted.plan, lifted.state, owned, tensors)
    text = ""
    if source is not None:
        text = model_source(builder, blocks, additions_of(lifted, owned, module_paths), source)
        check_page(text, builder, blocks, tensors)
    return Generated(
        text,
        tensors,
        keys,
        notes=[*original.notes, *lifted.notes],
        pieces=_pieces_of_page(lifted.pieces, keys),
        state=original,
        is_stateful=model_class.is_stateful,
    )


def _state_dict_and_plan(
    value: TorchObject, path: str, index_base: int, limits: Limits, lift: bool
) -> tuple[StateDict, Lifted]:
    """Return the state dict of a model that `convert` writes, and the plan, in which a recognized cell is one module.

    The state dict beside the plan has the tensors of the cells instead of those that these are made of; the notes there
    are about cells only. The arguments are those of `generate`.
    """
    module_places = Places(value, path, limits)
    check_depth(module_places)
    original = lua_named(module_places)
    plan = build_plan(value, path, index_base, limits, original)
    check_size(original, limits, "constructing the model")
    lifted = recognized(plan, original) if lift else Lifted(plan, original)
    return original, lifted


def _classes_of(
    value: TorchObject, lifted: Lifted, owned: TensorsByModule, limits: Limits
) -> tuple[SourceBuilder, list[CodeBlock]]:
    """Return the builder of a page, and its classes, the model's own last, made from a plan after a check of it.

    The plan is changed before: identical modules become one, and classes are chosen.

    Args:
        value: the module or criterion.
        lifted: its plan, in which recognized cells are single modules, and its state dict.
        owned: the tensors of the plan's modules, by the module's id and by their names in it.
        limits: resource limits.
    """
    plan = lifted.plan
    unify_tied(plan, owned, _ids_of_computed(lifted))
    check_construction(plan, owned)
    shared = shared_specs(plan)
    choose_classes(plan, shared)
    has_inplace = any(spec.kwargs.get("inplace") for spec in specs_in(plan.root))
    free_steps = _STEPS_PER_PART * size_of(plan.root)  # a page in proportion to its plan costs nothing
    builder = SourceBuilder(shared, limits, free_steps, has_inplace)
    layer = layer_of(value.class_name)
    if layer is not None and layer.kind == "criterion":
        builder.build_criterion(plan.root)
    else:
        builder.build_model(plan.root)
    return builder, prepared(builder)


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


def _ids_of_computed(lifted: Lifted) -> set[int]:
    """Return the ids of tensors that were computed from fields of layers, and are no views of the file's memory.

    The tensors of cells are computed too, but not among these: equal cells have one module already, and the weights of
    others are trained separately even if they have the same values.
    """
    keys_of_cells: set[str] = set()
    for piece in lifted.pieces:
        keys_of_cells.add(piece.target)
        if piece.second_bias:
            keys_of_cells.add(piece.second_bias)
    ids: set[int] = set()
    for key, origin in lifted.state.origins.items():
        is_computed = origin.tensor is None  # the file has no such tensor
        if is_computed and key not in keys_of_cells:
            ids.add(id(lifted.state[key]))
    return ids


def _keys_of_page(
    plan: Plan, state: Iterable[str], owned: TensorsByModule, tensors: Mapping[str, Tensor]
) -> dict[str, list[str]]:
    """Return the keys of the page's tensors for each key of the plan: of all that are the same view of the same memory.

    Args:
        plan: the plan.
        state: the keys of its state dict, each of which has a tensor in the page (`check_tensors_are_in_page`).
        owned: the tensors of its modules, by the module's id and by their names in it.
        tensors: the tensors of the page, by their keys there.
    """
    keys_of_view: dict[object, list[str]] = {}
    for page_key, tensor in tensors.items():
        keys_of_view.setdefault(place_of(tensor), []).append(page_key)
    keys: dict[str, list[str]] = {}
    for key in state:
        # The module at this key may not be the one that its tensor was read for: `unify_tied` puts one of several equal
        # modules in all places. Only its tensors are in the page; computed ones, such as counters, are no views of the
        # same memory as those of the others.
        spec, name = owner_of(plan, key)
        keys[key] = keys_of_view[place_of(owned[id(spec)][name])]
    return keys


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
_NAMES_IN_LOAD = {"Path", "__file__", "Model", "weights", "torch"}
"""Names that `load` may use without assigning them."""
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
            torch_classes.update(construction.name.removeprefix("nn.") for construction in block.constructions())
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
                    self._check_method(inner, self._classes[statement.name])
        else:
            _require(isinstance(statement, ast.FunctionDef) and statement.name == "load", statement)
            self._check_function(statement, {"weights"}, _NAMES_IN_LOAD)

    def _check_method(self, method: ast.stmt, parameters: set[str]) -> None:
        """Check a method of a class whose constructor has these parameters."""
        _require(isinstance(method, ast.FunctionDef) and method.name in ("__init__", "forward"), method)
        assert isinstance(method, ast.FunctionDef)
        arguments = parameters if method.name == "__init__" else {"input", "inputs", "target", *self._state_arguments}
        names = self._names_in_methods | parameters
        self._check_function(method, {"self", *arguments}, names, variables=self._state_arguments)

    def _check_function(
        self, function: ast.stmt, arguments: set[str], names: set[str], variables: Iterable[str] = ()
    ) -> None:
        """Refuse a function with an argument or statement that this package does not write.

        Args:
            function: the function.
            arguments: the arguments that it may have.
            names: those that it may use, but not assign.
            variables: those that it may use and assign; it may also use others that it assigns.
        """
        assert isinstance(function, ast.FunctionDef)
        _check_signature(function, arguments)
        to_check: list[ast.AST] = [statement for statement in function.body if not _is_docstring(statement)]
        all_variables = set(variables)
        # First all variables are collected: a use before the assignment is no harm.
        for number, statement in enumerate(to_check):
            _require(isinstance(statement, (ast.Assign, ast.Return, ast.Expr)), statement)
            if isinstance(statement, ast.Assign):
                all_variables |= _assigned(statement, names)
                if isinstance(statement.value, ast.BoolOp) and function.name == "load":
                    # An `or` is no allowed node: it is checked here, and its right side below.
                    to_check[number] = _default_path(statement, statement.value)
        for statement in to_check:
            for node in ast.walk(statement):
                self._check_node(node, names | all_variables)

    def _check_node(self, node: ast.AST, names: set[str]) -> None:
        """Check one node of the syntax tree of a statement; the nodes inside are checked on their own.

        Args:
            node: the node.
            names: those that the statement may use.
        """
        allowed = isinstance(node, _ALLOWED_NODES)
        if isinstance(node, ast.Name):
            allowed = node.id in names
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
    imports = [*BASE_IMPORTS.values()]
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


def _assigned(statement: ast.Assign, reserved: set[str]) -> set[str]:
    """Return the variables that a statement assigns.

    Args:
        statement: the statement.
        reserved: names that none of them may have.
    """
    names: set[str] = set()
    for target in statement.targets:
        for node in ast.walk(target):
            # In `self.weight = …` an attribute is assigned, and `self` only read.
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    _require(not names & reserved, statement)
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
