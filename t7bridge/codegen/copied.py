"""The layers that PyTorch lacks: their source, copied from this package's files, as whole classes with dependencies. A
piece is one class, function or constant there; a page is the source of a model, which includes some.

Their constructors are read from it, to check without PyTorch whether the modules of a plan can be constructed, and
whether their tensors fit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from inspect import BoundArguments, Parameter, Signature
from pathlib import Path
from symtable import SymbolTable, symtable
from typing import Any

from attrs import field

from ..data import define
from ..errors import ModelError
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.tensor import Tensor
from ..nn.mapping import LAYERS, OURS, Choice, ModuleSpec, Plan, Row, short_name, specs_in
from ..nn.registry import registered_layers, traits_of
from ..nn.torch_nn import REQUIRED, TORCH, Refused, Shape, constructed, shape

Import = tuple[str, str, str]
"""An import: module, name and alias; the name is empty for `import module`."""

_ROOT = Path(__file__).parent.parent
_BASE_OF_FIELDS = "Layer"
"""The class of `torchmodules/layers/base` whose subclasses have their fields as the arguments of their constructor."""
_PUBLIC = f"{OURS}layers"
"""The module from which classes of Lua packages import what they share with the runtime's."""


@define(eq=False)
class SourcePiece:
    """The source of a class, function or constant of this package, and what a page needs besides to include it.

    Attributes:
        name: its name there.
        text: its source.
        needs: the other pieces that it uses, none of which uses it: dotted name of the module, and name there.
        imports: its imports.
        input_count: for a layer, the number of arguments of its `forward`; 0 if its base in torch.nn defines it.
        keeps_state: whether a method sets an attribute, to keep state between calls or because it is notified.
        torch_base: for a layer, the class of torch.nn that it derives from: `Module`.
        args_are_fields: for a layer, whether the arguments of its constructor are its fields, as `Layer` makes them
            unless the class has an `__init__`.
        signature: for a layer, the arguments of its constructor, with annotations as text; a default that is no literal
            is `...`. `None` if the constructor is that of the base in torch.nn.
    """

    name: str
    text: str = ""
    needs: tuple[tuple[str, str], ...] = ()
    imports: frozenset[Import] = frozenset()
    input_count: int = 0
    keeps_state: bool = False
    torch_base: str = ""
    args_are_fields: bool = False
    signature: Signature | None = None


@cache
def pieces(target: str) -> list[SourcePiece]:
    """Return the pieces of source that a class of this package needs, each after those that it uses; the class is last.

    Args:
        target: the class: `t7bridge.torchmodules.layers.shape.View`.

    Raises:
        ModelError: the class does not exist.
    """
    home, _, name = target.rpartition(".")
    if name not in pieces_in(home):
        raise ModelError(f"there is no source of {target}")
    ordered: dict[tuple[str, str], SourcePiece] = {}

    def add_after_needs(home: str, name: str) -> None:
        """Add to `ordered` what a piece uses, and then the piece, given by its module and its name there."""
        piece = pieces_in(home)[name]
        for other in piece.needs:  # never a piece that uses this one
            if other not in ordered:
                add_after_needs(*other)
        ordered[home, name] = piece

    add_after_needs(home, name)
    return list(ordered.values())


@cache
def reserved_names() -> frozenset[str]:
    """Return all names that included source can define or import, whether a given page has them or not."""
    homes = {f"{LAYERS}{path.stem}" for path in (_ROOT / "torchmodules" / "layers").glob("*.py")}
    for layer in registered_layers().values():
        for mapped in layer.modules.values():
            if isinstance(mapped, (Row, Choice)):  # a function of an entry says only for a module what it becomes
                homes.update(target.rpartition(".")[0] for target in mapped.targets)
    names: set[str] = set()
    for home in homes:
        for piece in pieces_in(home).values():  # none of a foreign module
            names.add(piece.name)
            for module, name, alias in piece.imports:
                names.add(alias or name or module)
    return frozenset(names)


@cache
def pieces_in(module: str) -> dict[str, SourcePiece]:
    """Return all pieces of source of one module by name; none of a module that is not this package's.

    Args:
        module: its dotted name.
    """
    path = _path_of(module)
    if path is None:
        return {}
    text = path.read_text(encoding="utf-8")
    body = ast.parse(text).body
    imports, homes = _imported(body, module)
    statements = {name: statement for statement in body for name in _defined_names(statement)}
    homes.update(dict.fromkeys(statements, module))  # of all names of this package that the file uses, or defines
    pieces_of_file: dict[str, SourcePiece] = {}
    for name, statement in statements.items():
        torch_bases, own_bases = _bases_of(statement, pieces_of_file, homes)
        piece = _piece(name, statement, torch_bases, own_bases)
        piece.text = statement_text(statement, text.splitlines())
        # A class may name itself. Names in neither `homes` nor `imports` are those of Python.
        used_names = _global_names(symtable(ast.unparse(statement), path.name, "exec")) - {name}
        piece.needs = _sorted_by_short_name((homes[used], used) for used in used_names if used in homes)
        piece.imports = frozenset(imports[used] for used in used_names if used in imports)
        pieces_of_file[name] = piece
    return pieces_of_file


def _sorted_by_short_name(needs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return pieces, given by module and name, in an order that is the same in each run, unlike that of a set."""
    return tuple(sorted(needs, key=lambda need: short_name(".".join(need))))


def _bases_of(
    statement: ast.stmt, pieces_of_file: Mapping[str, SourcePiece], homes: Mapping[str, str]
) -> tuple[list[str], list[SourcePiece]]:
    """Return the direct bases of a class: names of those in torch.nn, `Module`, and pieces of those in this package.

    Others, such as `torch.autograd.Function`, say nothing of a layer. A function or constant has no bases.

    Args:
        statement: the class, function or constant.
        pieces_of_file: those before it in its file, by name.
        homes: for each name from this package that the file defines or imports, the module that defines it.
    """
    torch_bases: list[str] = []
    own_bases: list[SourcePiece] = []
    for base in map(ast.unparse, getattr(statement, "bases", ())):
        if base.startswith("nn."):
            torch_bases.append(base.removeprefix("nn."))
        elif base in pieces_of_file:  # a base stands before its subclasses
            own_bases.append(pieces_of_file[base])
        elif base in homes:
            own_bases.append(pieces_in(homes[base])[base])
    return torch_bases, own_bases


def _global_names(scope: SymbolTable) -> set[str]:
    """Return the names that a statement reads from its module; one that a function assigns is its own."""
    is_module = scope.get_type() == "module"
    names: set[str] = set()
    for symbol in scope.get_symbols():
        if symbol.is_global() or (is_module and symbol.is_referenced()):
            names.add(symbol.get_name())
    return names.union(*map(_global_names, scope.get_children()))


def _path_of(module: str) -> Path | None:
    """Return the file of one of this package's modules, by its dotted name; `None` for any other module."""
    if not module.startswith(OURS):
        return None
    names = module.removeprefix(OURS).split(".")
    path = _ROOT.joinpath(*names).with_suffix(".py")
    return path if all(map(str.isidentifier, names)) and path.is_file() else None


@cache
def _public_homes() -> dict[str, str]:
    """Return the modules that the names of `t7bridge.layers` come from, by name, as its imports say."""
    path = _path_of(_PUBLIC)
    assert path is not None
    homes: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:  # a relative import
            homes.update((alias.name, f"{OURS}{node.module}") for alias in node.names)
    return homes


def _imported(body: list[ast.stmt], module: str) -> tuple[dict[str, Import], dict[str, str]]:
    """Return what a module of this package imports.

    Args:
        body: its statements.
        module: its dotted name, from which relative imports start.

    Returns:
        The imports from elsewhere, by the names that the module uses; and for each name from this package, the module
        that defines it. Imports from this package have no alias (`as`), as included source has one name everywhere.
    """
    imports: dict[str, Import] = {}
    homes: dict[str, str] = {}
    for statement in body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                imports[alias.asname or alias.name] = (alias.name, "", alias.asname or "")
        elif isinstance(statement, ast.ImportFrom):
            home = statement.module or ""
            for alias in statement.names:
                if statement.level:  # a relative import: another file of the same folder
                    homes[alias.name] = f"{module.rpartition('.')[0]}.{home}"
                elif home == _PUBLIC:
                    homes[alias.name] = _public_homes()[alias.name]
                else:
                    imports[alias.asname or alias.name] = (home, alias.name, alias.asname or "")
    return imports, homes


def _piece(name: str, statement: ast.stmt, torch_bases: list[str], own_bases: list[SourcePiece]) -> SourcePiece:
    """Return the facts about a definition, without its text and what it needs.

    Args:
        name: what it defines.
        statement: the class, function or assignment.
        torch_bases: names of the bases of a class in torch.nn: `Module`.
        own_bases: the bases of a class in this package.
    """
    methods = {inner.name: inner for inner in getattr(statement, "body", ()) if isinstance(inner, ast.FunctionDef)}
    args_are_fields = name == _BASE_OF_FIELDS or any(base.args_are_fields for base in own_bases)
    inherited = [base.signature for base in own_bases if base.signature is not None]
    # Constructors set attributes, too: only what other methods set is kept between calls.
    other_methods = [method for name, method in methods.items() if name not in ("__init__", "__post_init__")]
    return SourcePiece(
        name,
        input_count=_input_count(methods, own_bases),
        keeps_state=any(map(_sets_attributes, other_methods)),
        torch_base=_torch_base(torch_bases, own_bases),
        args_are_fields=args_are_fields,
        signature=_signature(statement, methods, inherited, args_are_fields),
    )


def _input_count(methods: dict[str, ast.FunctionDef], own_bases: list[SourcePiece]) -> int:
    """Return the number of arguments of the `forward` of a class or, if it has none, of its first base that has one.

    It is 0 if only a base in torch.nn has one. `*args` and arguments by keyword only do not count.
    """
    if "forward" in methods:
        _, *inputs = methods["forward"].args.args  # without `self`
        return len(inputs)
    return next((base.input_count for base in own_bases if base.input_count), 0)


def _torch_base(torch_bases: list[str], own_bases: list[SourcePiece]) -> str:
    """Return the class of torch.nn whose constructor a class has; empty for what derives from none."""
    inherited = [base.torch_base for base in own_bases if base.torch_base]
    all_bases = [*torch_bases, *inherited]
    # Beside `Module`, which has no arguments, a base that has some counts: `class SeqLSTM(Sequence, nn.LSTM)`.
    all_bases.sort(key=lambda base: base == "Module")
    return all_bases[0] if all_bases else ""


def _defined_names(statement: ast.stmt) -> list[str]:
    """Return the names that a class, function or assignment defines."""
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def statement_text(statement: ast.stmt, lines: list[str]) -> str:
    """Return a statement with its decorators, as written."""
    start = min(node.lineno for node in (statement, *getattr(statement, "decorator_list", ())))
    return "\n".join(lines[start - 1 : statement.end_lineno])


def remembers(spec: ModuleSpec) -> bool:
    """Return whether a module itself keeps more than its tensors; of a foreign class that is assumed."""
    if spec.target.startswith(OURS):
        # A graph is this package's class, too, but only passes values on.
        return spec.graph is None and any(piece.keeps_state for piece in pieces(spec.target))
    return not spec.target.startswith("torch.nn.")


def _sets_attributes(method: ast.FunctionDef) -> bool:
    """Return whether a method sets an attribute of its object."""
    stored = (node for node in ast.walk(method) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return any(isinstance(node.value, ast.Name) and node.value.id == "self" for node in stored)


def _signature(
    statement: ast.stmt, methods: dict[str, ast.FunctionDef], inherited: list[Signature], args_are_fields: bool
) -> Signature | None:
    """Return the arguments of a class's constructor; `None` if it is that of the base in torch.nn.

    Args:
        statement: the class; anything else has no constructor.
        methods: its methods, by name.
        inherited: the signatures of its bases in this package, in order.
        args_are_fields: whether the arguments are the fields, if it has no `__init__`.
    """
    if "__init__" in methods:
        return _signature_of_method(methods["__init__"].args)
    if not args_are_fields:
        return inherited[0] if inherited else None  # the first base's, which Python would find
    assert isinstance(statement, ast.ClassDef)
    return _signature_of_fields(statement, inherited)


def _signature_of_fields(statement: ast.ClassDef, inherited: list[Signature]) -> Signature:
    """Return the signature of a constructor whose arguments are fields: those of the bases, then the class's own.

    Args:
        statement: the class.
        inherited: the signatures of its bases in this package, in order.
    """
    parameters: dict[str, Parameter] = {}
    for base in inherited:
        parameters.update(base.parameters)
    # The only keyword of these class statements is `kw_only=True`: `class Cell(Layer, kw_only=True)`.
    kind: Any = Parameter.KEYWORD_ONLY if statement.keywords else Parameter.POSITIONAL_OR_KEYWORD
    for line in statement.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            name = line.target.id
            parameters[name] = _parameter(ast.arg(name, line.annotation), kind, line.value)
    # Arguments by keyword come last; those of one kind stay in order.
    return Signature(sorted(parameters.values(), key=lambda parameter: parameter.kind))


def _signature_of_method(arguments: ast.arguments) -> Signature:
    """Return the signature of a method without `self`."""
    defaults: dict[str, ast.expr | None] = {}
    # `defaults` are those of the last arguments by position; `kw_defaults` has one, or `None`, for each keyword.
    for argument, default in zip(reversed(arguments.args), reversed(arguments.defaults)):
        defaults[argument.arg] = default
    for argument, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults):
        defaults[argument.arg] = keyword_default
    _, *positional = arguments.args  # without `self`
    # In the order in which Python requires them; `*args` and `**kwargs` are `None` where the method has none.
    kinds: list[tuple[ast.arg | None, Any]] = []
    kinds += [(argument, Parameter.POSITIONAL_OR_KEYWORD) for argument in positional]
    kinds += [(arguments.vararg, Parameter.VAR_POSITIONAL)]
    kinds += [(argument, Parameter.KEYWORD_ONLY) for argument in arguments.kwonlyargs]
    kinds += [(arguments.kwarg, Parameter.VAR_KEYWORD)]
    return Signature(
        [_parameter(argument, kind, defaults.get(argument.arg)) for argument, kind in kinds if argument is not None]
    )


def _parameter(declared: ast.arg, kind: Any, default: ast.expr | None) -> Parameter:
    """Return a parameter; `...` is the default of one whose default is no literal.

    Args:
        declared: its name and annotation.
        kind: one of the kinds of `inspect.Parameter`.
        default: its default; `None` if it is required.
    """
    value: Any = Parameter.empty
    if isinstance(default, ast.Call):  # `field(default=None, repr=False)`
        default = next((keyword.value for keyword in default.keywords if keyword.arg == "default"), default)
    if default is not None:
        try:
            value = ast.literal_eval(default)
        except ValueError:
            value = ...
    annotation = ast.unparse(declared.annotation) if declared.annotation else ""
    return Parameter(declared.arg, kind, default=value, annotation=annotation)


@cache
def constructor(target: str) -> tuple[Signature | None, str]:
    """Return the signature of the constructor that a class defines or inherits, and its base in torch.nn.

    Args:
        target: a class of this package, or of torch.nn.

    Returns:
        The signature, `None` if the constructor is that of a layer of torch.nn, which is in `TORCH`; and the name of
        the base: `Linear`, `Module`; of a class of torch.nn, its own.

    Raises:
        ModelError: the class does not exist.
    """
    if not target.startswith(OURS):
        return None, target.removeprefix("torch.nn.")
    piece = pieces(target)[-1]
    return piece.signature or _SIGNATURES_OF_BASES.get(piece.torch_base), piece.torch_base


_SIGNATURES_OF_BASES = {
    "Module": Signature(),
    "Sequential": Signature([Parameter("modules", Parameter.VAR_POSITIONAL, annotation="nn.Module")]),
}
"""The constructors of torch.nn that take nothing, or modules; those of its layers are in `TORCH`."""


def defaults_of(piece: SourcePiece) -> dict[str, Any]:
    """Return the arguments of a copied class that may be omitted; a class without a constructor has its base's."""
    if piece.signature is not None:
        parameters = piece.signature.parameters
        return {name: item.default for name, item in parameters.items() if item.default is not Parameter.empty}
    base = TORCH.get(piece.torch_base)
    if base is None:
        return {}
    return {name: value for name, value in base.arguments.items() if value is not REQUIRED}


def import_lines(imports: Iterable[Import]) -> list[str]:
    """Return import statements, the standard library's first, each group sorted like isort.

    In a group, `import m` comes before `from m import n`.
    """
    statements: dict[tuple[str, str], _ImportStatement] = {}
    """By the module, and what is imported alone; empty where names share a statement."""
    for module, name, alias in imports:
        imported = name or module
        if alias:
            imported += f" as {alias}"
        # Names without an alias share a statement; `import torch` and `from torch import nn as n` have one each.
        alone = imported if alias or not name else ""
        statement = statements.setdefault((module, alone), _ImportStatement(module, is_from=bool(name)))
        statement.names.append(imported)
    in_order = sorted(statements.values(), key=_ImportStatement.order)
    standard = [statement.text() for statement in in_order if not statement.is_third_party]
    third_party = [statement.text() for statement in in_order if statement.is_third_party]
    separator = [""] if standard and third_party else []
    return [*standard, *separator, *third_party]


@define(eq=False)
class _ImportStatement:
    """One import statement.

    Attributes:
        module: the module.
        is_from: whether it is `from module import …`.
        names: what it imports, each with its alias: `nn`, `functional as F`.
    """

    module: str
    is_from: bool
    names: list[str] = field(factory=list)

    @property
    def is_third_party(self) -> bool:
        """Whether the module is not of the standard library; pages and copied layers import no other such packages."""
        return self.module.startswith(("torch", "safetensors", "typing_extensions"))

    def order(self) -> tuple[bool, str, tuple[int, str]]:
        """Return a key for isort's order in a group."""
        return self.is_from, self.module, min(map(_isort_key, self.names))

    def text(self) -> str:
        """Return the statement as source."""
        before = f"from {self.module} " if self.is_from else ""
        return f"{before}import {', '.join(sorted(self.names, key=_isort_key))}"


def _isort_key(name: str) -> tuple[int, str]:
    """Return the key of a name in isort's order: constants, then classes, then the rest."""
    if name.isupper() and len(name) > 1:
        return 0, name
    if name[0].isupper():
        return 1, name
    return 2, name


# Constructors: arguments are bound to the signature in a layer's source; tensors, and what a constructor refuses, are
# the facts that `Traits` and `torch_nn` declare. Nothing is allocated, and nothing of a file is run.

TensorsByModule = dict[int, dict[str, Tensor]]
"""The tensors of each module by its own names for them, by the module's id."""


@define(eq=False)
class ModuleArgument:
    """A module among the arguments of a constructor that is checked, not called.

    Attributes:
        spec: the module.
        tensors: the shapes of its own tensors.
    """

    spec: ModuleSpec
    tensors: Mapping[str, Shape]


def check_construction(plan: Plan, owned: TensorsByModule) -> None:
    """Refuse a plan whose modules could not be constructed, or whose tensors would not fit into them.

    Args:
        plan: the plan.
        owned: the tensors of its modules, by the module's id and by their names in it.

    Raises:
        ModelError: a constructor would raise, or a tensor is missing, unexpected or of another shape.
    """
    shapes: dict[int, dict[str, Shape]] = {}
    """The shapes of the tensors that each module has in the file, by the module's id."""
    for identity, tensors in owned.items():
        shapes[identity] = {name: tensor.shape for name, tensor in tensors.items()}
    # The constructor of a graph has other arguments: its nodes.
    specs = [spec for spec in specs_in(plan.root) if spec.graph is None and _is_known(spec.target)]
    parts: dict[int, _Parts] = {}
    """What the constructor of each module makes, by the module's id."""
    for spec in reversed(specs):  # children first, so that the innermost error is the one reported
        parts[id(spec)] = _parts_of(spec, shapes)
    # When all can be constructed: outer modules first, in the order of the state dict.
    for spec in specs:
        expected_shapes, children = parts[id(spec)]
        _check_modules(spec, {name: child.spec for name, child in children.items()})
        _check_tensors(spec, expected_shapes, shapes.get(id(spec), {}))


_Parts = tuple[dict[str, Shape], dict[str, ModuleArgument]]
"""What a constructor makes: the shapes of tensors, and the children, by name."""


def _parts_of(spec: ModuleSpec, shapes: dict[int, dict[str, Shape]]) -> _Parts:
    """Return what the constructor of a module makes, or refuse the module if it would raise.

    Args:
        spec: the module.
        shapes: the shapes of the tensors that each module has in the file, by the module's id.
    """
    modules = {**spec.children, **spec.refers}
    arguments = {name: ModuleArgument(module, shapes.get(id(module), {})) for name, module in modules.items()}
    # A `Sequential` has numbered children, which are positional arguments.
    numbered = [module for name, module in arguments.items() if name.isdigit()]
    named = {name: module for name, module in arguments.items() if not name.isdigit()}
    try:
        return constructed_parts(spec.target, (*numbered, *spec.args), {**spec.kwargs, **named})
    except (ArithmeticError, LookupError, Refused, TypeError, ValueError) as error:
        raise ModelError(
            f"a {spec.class_name} cannot be made a {short_name(spec.target)}: {error}", path=spec.path
        ) from error


def _is_known(target: str) -> bool:
    """Return whether a class is one of this package or of torch.nn; the tensors of others are unknown."""
    return target.startswith(OURS) or target.removeprefix("torch.nn.") in TORCH


def constructed_parts(target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Parts:
    """Return the shapes of the tensors, and the children, of a module constructed with these arguments, by name.

    Args:
        target: a class of this package's layers, or of torch.nn whose arguments are known.
        args: positional arguments; each module is a `ModuleArgument`.
        kwargs: arguments by keyword, likewise.

    Raises:
        Refused, ArithmeticError, LookupError, TypeError, ValueError: the constructor would raise.
    """
    signature, base = constructor(target)
    if signature is None:  # that of a class of torch.nn, which has no children
        return constructed(base, args, kwargs), {}
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    modules = _stored_modules(signature, bound.arguments, base == "Sequential")
    if "dtype" in signature.parameters:
        _check_element_type(signature.parameters["dtype"], bound.arguments["dtype"])
    return _tensors_of(target, bound), modules


def _tensors_of(target: str, bound: BoundArguments) -> dict[str, Shape]:
    """Return the shapes of the tensors that the constructor of a class of this package makes, by name.

    Args:
        target: the class.
        bound: the arguments.
    """
    facts = traits_of(target)
    if facts.shapes is not None:  # as its entry says, else as those of the class that it is like
        sizes = facts.shapes(*bound.args, **bound.kwargs)
    elif facts.like:
        sizes = constructed(facts.like, *_arguments_of(facts.like, bound))
    else:
        return {}
    return {name: shape(size) for name, size in sizes.items()}


def _check_element_type(parameter: Parameter, dtype: Any) -> None:
    """Refuse an argument that names no element type; none is needed where the layer has a default, `None`."""
    may_be_none = parameter.default is None  # which keeps the type of the input
    if may_be_none and not dtype:
        return
    if dtype not in ELEMENT_TYPES:
        raise Refused(f"torch has no element type {dtype!r:.40}")


def _arguments_of(like: str, bound: BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return those arguments of a constructor that a class of torch.nn has too, by position and by keyword.

    Args:
        like: the class of torch.nn: `LSTM`.
        bound: the arguments.
    """
    kinds = {parameter.kind for parameter in bound.signature.parameters.values()}
    if Parameter.VAR_POSITIONAL in kinds:  # a constructor with `*args` passes them to that of torch.nn
        return bound.args, bound.kwargs
    parameters = TORCH[like].arguments
    return (), {name: value for name, value in bound.arguments.items() if name in parameters}


def _stored_modules(
    signature: Signature, arguments: Mapping[str, Any], is_sequential: bool
) -> dict[str, ModuleArgument]:
    """Return the modules that a constructor stores: a `Sequential` numbers them, others use the parameter's name.

    Args:
        signature: of the constructor; its annotations say which parameters are modules.
        arguments: the argument of each parameter; a tuple for `*args`, a dict for `**kwargs`.
        is_sequential: whether the class is a `Sequential`.

    Raises:
        Refused: an argument that should be a module is none, or the other way round.
    """
    modules: dict[str, ModuleArgument] = {}
    for name, argument in arguments.items():
        parameter = signature.parameters[name]
        is_for_modules = "nn." in parameter.annotation  # `nn.Module`, `nn.Module | None`
        for key, value in _values_of(parameter, argument).items():
            if isinstance(value, ModuleArgument):
                if not is_for_modules and parameter.annotation != "Any":
                    raise Refused(f"the argument {key} is a module")
                # A number may not be that of the argument: before it there may be others, which are stored by name.
                is_numbered = is_for_modules and is_sequential
                modules[str(len(modules)) if is_numbered else key] = value
            elif is_for_modules and value is not parameter.default:  # `None` where the module is optional
                raise Refused(f"the argument {key} is no module")
    return modules


def _values_of(parameter: Parameter, argument: Any) -> Mapping[Any, Any]:
    """Return the values that a parameter receives, by its name; those of `*args` by number, of `**kwargs` by keyword.

    Args:
        parameter: the parameter.
        argument: its argument; a tuple for `*args`, a dict for `**kwargs`.
    """
    if parameter.kind is parameter.VAR_POSITIONAL:
        return dict(enumerate(argument))
    if parameter.kind is parameter.VAR_KEYWORD:
        keywords: dict[str, Any] = argument
        return keywords
    return {parameter.name: argument}


def _check_modules(spec: ModuleSpec, stored: Mapping[str, ModuleSpec]) -> None:
    """Refuse a class that accepts other modules than those inside, or stores them under other names.

    Args:
        spec: the module.
        stored: the modules that its constructor stores, by the names under which it does.
    """
    inside = spec.children
    for name in {**inside, **stored}:
        # A module that it only refers to is inside another.
        if stored.get(name) is not inside.get(name) and name not in spec.refers:
            raise ModelError(
                f"a {spec.class_name} does not hold the modules that a {short_name(spec.target)} takes",
                path=spec.path,
                expected=f"the modules {', '.join(stored) or 'none'}",
                found=", ".join(inside) or "none",
            )


def _check_tensors(spec: ModuleSpec, required: Mapping[str, Shape], shapes: Mapping[str, Shape]) -> None:
    """Refuse tensors that are missing, unexpected, or of another shape than the constructor's.

    Args:
        spec: the module.
        required: the shapes of the tensors that its constructor makes, by name.
        shapes: those of the tensors that it has in the file, by name.
    """
    facts = traits_of(spec.target)
    hint = ""
    if spec.target.startswith(LAYERS) and facts.shapes is None and not facts.like:
        hint = "The traits of its class in t7bridge/nn/layers declare no `shapes`."
    for name in {**required, **shapes}:
        if required.get(name) != shapes.get(name):
            raise ModelError(
                f"the weights do not fit the layer: {spec.class_name} as {short_name(spec.target)}",
                path=f"{spec.path}.{name}",
                expected=f"the shape {required[name]}" if name in required else "no such tensor",
                found=f"{shapes[name]}" if name in shapes else "no such tensor",
                hint=hint,
            )
