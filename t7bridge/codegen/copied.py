"""The layers that PyTorch lacks: their source, copied from this package's files, as whole classes with dependencies. A
piece is one class, function or constant there; a page is the source of a model, which includes some. The signatures of
constructors are read from that source, too, as `ast` parses it: nothing of it is imported here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path
from symtable import SymbolTable, symtable
from typing import Any

from attrs import field

from ..data import define
from ..errors import ModelError
from ..nn.mapping import LAYERS, OURS, Choice, ModuleSpec, Row, short_name
from ..nn.registry import registered_layers
from ..nn.torch_nn import REQUIRED, TORCH

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
            # A user's entry may be a function, which does not say what classes it returns. These are the user's, and
            # imported, not included.
            if isinstance(mapped, (Row, Choice)):
                homes.update(target.rpartition(".")[0] for target in mapped.targets)
    names: set[str] = set()
    for home in homes:
        for piece in pieces_in(home).values():  # none of a module that is not this package's
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
    homes.update(dict.fromkeys(statements, module))
    # Now `homes` has the module of each name of this package that the file imports or defines. Names that the file uses
    # and that are in neither `homes` nor `imports` are those of Python.
    pieces_of_file: dict[str, SourcePiece] = {}
    for name, statement in statements.items():  # a base before its subclasses, as Python requires
        torch_bases, own_bases = _bases_of(statement, pieces_of_file, homes)
        piece = _piece(name, statement, torch_bases, own_bases)
        piece.text = statement_text(statement, text.splitlines())
        used_names = _global_names(symtable(piece.text, path.name, "exec"))
        used_names.discard(name)  # a class may name itself
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
                elif home == _PUBLIC:  # which defines nothing itself
                    homes[alias.name] = _public_homes()[alias.name]
                else:
                    imports[alias.asname or alias.name] = (home, alias.name, alias.asname or "")
    return imports, homes


def _piece(name: str, statement: ast.stmt, torch_bases: list[str], own_bases: list[SourcePiece]) -> SourcePiece:
    """Return the piece of a definition with the facts about a layer; its text and what it needs are still empty.

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
    constructors = ("__init__", "__post_init__")
    other_methods = [method for method_name, method in methods.items() if method_name not in constructors]
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
    """Return the signature of a method without `self`; no layer has arguments by position only."""
    _, *positional = arguments.args  # without `self`
    # In `ast`, the defaults are those of the last arguments by position.
    required_count = len(positional) - len(arguments.defaults)
    defaults: list[ast.expr | None] = [None] * required_count
    defaults += arguments.defaults
    parameters = [
        _parameter(argument, Parameter.POSITIONAL_OR_KEYWORD, default)
        for argument, default in zip(positional, defaults)
    ]
    # In the order in which Python requires them.
    if arguments.vararg is not None:
        parameters.append(_parameter(arguments.vararg, Parameter.VAR_POSITIONAL, None))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):  # `None` for a required one
        parameters.append(_parameter(argument, Parameter.KEYWORD_ONLY, default))
    if arguments.kwarg is not None:
        parameters.append(_parameter(arguments.kwarg, Parameter.VAR_KEYWORD, None))
    return Signature(parameters)


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
        """Whether the module is not of the standard library: PyTorch, or a user's with classes of the model."""
        package, _, _ = self.module.partition(".")
        return package not in sys.stdlib_module_names

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
