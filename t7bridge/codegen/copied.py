"""The layers that PyTorch lacks: their source, copied from the runtime's files, as whole classes with dependencies."""

from __future__ import annotations

import ast
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from ..data import define
from ..errors import ModelError
from ..nn.mapping import LAYERS, ModuleSpec

_FOLDER = Path(__file__).parent.parent / "torchmodules" / "layers"


@define(frozen=True)
class Copied:
    """A piece of a file: a class, a function or a constant.

    Attributes:
        name: its name there.
        text: its source.
        needs: the other pieces that it uses: file and name.
        imports: its imports: `(module, name, alias)`; the name is empty for `import module`.
        inputs: for a layer, the number of its inputs; 0 if the base of torch.nn defines them.
        remembers: whether a method sets an attribute, to keep state between calls or because it is notified.
        base: for a layer, its base in torch.nn: `Module`.
        signature: for a layer, the arguments of its constructor, with annotations as text; a default that is no literal
            is `...`. `None` if the constructor is that of the base in torch.nn.
    """

    name: str
    text: str
    needs: tuple[tuple[str, str], ...]
    imports: frozenset[tuple[str, str, str]]
    inputs: int = 0
    remembers: bool = False
    base: str = ""
    signature: Signature | None = None


def pieces(target: str) -> list[Copied]:
    """Return a class of the runtime after the pieces that it needs.

    Args:
        target: the class: `t7bridge.torchmodules.layers.shape.View`.

    Raises:
        ModelError: the class does not exist.
    """
    home, _, name = target.removeprefix(LAYERS).partition(".")
    if not target.startswith(LAYERS) or name not in _file(home):
        raise ModelError(f"there is no source of {target}")
    ordered: dict[tuple[str, str], Copied] = {}

    def add(home: str, name: str) -> None:
        piece = _file(home)[name]
        for other in piece.needs:
            if other not in ordered and other != (home, name):
                add(*other)
        ordered[home, name] = piece

    add(home, name)
    return list(ordered.values())


@cache
def _file(module: str) -> dict[str, Copied]:
    """Return all pieces of one file, by name."""
    path = _FOLDER / f"{module}.py"
    if not module.isidentifier() or not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    imports: dict[str, tuple[str, str, str]] = {}
    homes: dict[str, str] = {}
    defined: dict[str, ast.stmt] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Import):
            imports.update(
                (alias.asname or alias.name, (alias.name, "", alias.asname or "")) for alias in statement.names
            )
        elif isinstance(statement, ast.ImportFrom) and statement.level:
            homes.update((alias.name, statement.module or "") for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module != "__future__":
            for alias in statement.names:
                imports[alias.asname or alias.name] = (statement.module or "", alias.name, alias.asname or "")
        elif isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
            defined[statement.name] = statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            defined.update((each.id, statement) for each in targets if isinstance(each, ast.Name))
    homes.update(dict.fromkeys(defined, module))
    found: dict[str, Copied] = {}
    for name, statement in defined.items():
        used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} - {name}
        names = [ast.unparse(base) for base in getattr(statement, "bases", ())]
        bases = [found[base] if base in found else _file(homes[base])[base] for base in names if base in homes]
        in_torch = [base.removeprefix("nn.") for base in names if base.startswith("nn.")]
        start = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
        found[name] = Copied(
            name,
            "\n".join(lines[start - 1 : statement.end_lineno]),
            tuple(sorted((homes[other], other) for other in used if other in homes)),
            frozenset(imports[other] for other in used if other in imports),
            next(filter(None, (_inputs(statement), *(base.inputs for base in bases))), 0),
            _remembers(statement),
            next(filter(None, (*in_torch, *(base.base for base in bases))), ""),
            _signature(statement, [base.signature for base in bases if base.signature is not None]),
        )
    return found


def _methods(statement: ast.stmt) -> dict[str, ast.FunctionDef]:
    return {inner.name: inner for inner in getattr(statement, "body", ()) if isinstance(inner, ast.FunctionDef)}


def remembers(spec: ModuleSpec) -> bool:
    """Return whether a module itself keeps more than its tensors; for foreign classes that is unknown."""
    if spec.target.startswith(LAYERS):
        return spec.graph is None and any(piece.remembers for piece in pieces(spec.target))
    return not spec.target.startswith("torch.nn.")


def _inputs(statement: ast.stmt) -> int:
    """Return the number of inputs of a class's own `forward`, or 0."""
    forward = _methods(statement).get("forward")
    return len(forward.args.args) - 1 if forward else 0


def _remembers(statement: ast.stmt) -> bool:
    """Return whether a method other than the constructor sets an attribute of the object."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for name, method in _methods(statement).items()
        if name not in ("__init__", "__post_init__")
        for node in ast.walk(method)
    )


def _signature(statement: ast.stmt, inherited: list[Signature]) -> Signature | None:
    """Return the arguments of a class's constructor, of which those of a data class are its fields."""
    constructor = _methods(statement).get("__init__")
    if constructor is None:
        decorators = [ast.unparse(each) for each in getattr(statement, "decorator_list", ())]
        if not any(each.startswith("dataclass") for each in decorators):
            return inherited[0] if inherited else None
        found = {name: each for base in inherited for name, each in base.parameters.items()}
        kind: Any = Parameter.KEYWORD_ONLY if "kw_only" in decorators[0] else Parameter.POSITIONAL_OR_KEYWORD
        for field in getattr(statement, "body", ()):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                annotated = ast.arg(field.target.id, field.annotation)
                found[annotated.arg] = _parameter(
                    annotated, kind, _value(field.value) if field.value else Parameter.empty
                )
        return Signature(sorted(found.values(), key=lambda each: each.kind))
    declared = constructor.args
    listed = [_parameter(each, Parameter.POSITIONAL_OR_KEYWORD) for each in declared.args[1:]]
    first = len(listed) - len(declared.defaults)
    listed[first:] = [each.replace(default=_value(node)) for each, node in zip(listed[first:], declared.defaults)]
    if declared.vararg:
        listed.append(_parameter(declared.vararg, Parameter.VAR_POSITIONAL))
    for each, node in zip(declared.kwonlyargs, declared.kw_defaults):
        listed.append(_parameter(each, Parameter.KEYWORD_ONLY, _value(node) if node else Parameter.empty))
    if declared.kwarg:
        listed.append(_parameter(declared.kwarg, Parameter.VAR_KEYWORD))
    return Signature(listed)


def _parameter(declared: ast.arg, kind: Any, default: Any = Parameter.empty) -> Parameter:
    annotation = ast.unparse(declared.annotation) if declared.annotation else ""
    return Parameter(declared.arg, kind, default=default, annotation=annotation)


def _value(default: ast.expr) -> Any:
    try:
        return ast.literal_eval(default)
    except ValueError:
        return ...


@cache
def constructor(target: str) -> tuple[Signature | None, str]:
    """Return the signature of the constructor that a class defines or inherits, and its base in torch.nn.

    Args:
        target: a class of the runtime, or of torch.nn.

    Returns:
        The signature, `None` if the constructor is that of the base; `Linear`, `Module`.

    Raises:
        ModelError: the class does not exist.
    """
    if not target.startswith(LAYERS):
        return None, target.removeprefix("torch.nn.")
    piece = pieces(target)[-1]
    return piece.signature or _PLAIN.get(piece.base), piece.base


_PLAIN = {
    "Module": Signature(),
    "Sequential": Signature([Parameter("modules", Parameter.VAR_POSITIONAL, annotation="nn.Module")]),
}


def import_lines(imports: set[tuple[str, str, str]]) -> list[str]:
    """Return import statements, the standard library's first, each group sorted like isort."""
    groups: list[list[str]] = [[], []]
    whole = sorted(
        f"import {module}" + (f" as {alias}" if alias else "") for module, name, alias in imports if not name
    )
    named: dict[str, set[str]] = {}
    renamed = []
    for module, name, alias in imports:
        if name and alias:
            renamed.append((module, f"from {module} import {name} as {alias}"))
        elif name:
            named.setdefault(module, set()).add(name)
    for line in whole:
        groups["torch" in line].append(line)
    lines = [
        (module, f"from {module} import {', '.join(sorted(names, key=_isort))}") for module, names in named.items()
    ]
    for module, line in sorted(lines + renamed):
        groups[module.startswith(("torch", "safetensors"))].append(line)
    return groups[0] + [""] * bool(groups[0] and groups[1]) + groups[1]


def _isort(name: str) -> tuple[int, str]:
    """Sort constants first, then classes, then the rest."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name)
