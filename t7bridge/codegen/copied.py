"""The layers that PyTorch lacks: their source, copied from the runtime's files, as whole classes with dependencies."""

from __future__ import annotations

import ast
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from ..data import define
from ..errors import ModelError
from ..nn.mapping import LAYERS

_FOLDER = Path(__file__).parent.parent / "torchmodules" / "layers"


@define(frozen=True)
class Copied:
    """A piece of a file: a class, a function or a constant.

    Attributes:
        name: its name there.
        text: its source.
        needs: other names of the same file that it uses.
        imports: its imports: `(module, name, alias)`; the name is empty for `import module`.
        inputs: for a layer, the number of its inputs.
        remembers: for a layer, whether it keeps state between calls, or is notified between them.
        base: for a class, its base: `nn.Module`, or a name of the same file.
        signature: for a class with a constructor, its arguments, with annotations as text; a default that is no literal
            is `...`.
    """

    name: str
    text: str
    needs: tuple[str, ...]
    imports: frozenset[tuple[str, str, str]]
    inputs: int = 1
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
    module, _, name = target.removeprefix(LAYERS).partition(".")
    found = _file(module)
    if not target.startswith(LAYERS) or name not in found:
        raise ModelError(f"there is no source of {target}")
    ordered: dict[str, Copied] = {}

    def add(name: str) -> None:
        if name not in ordered:
            for other in found[name].needs:
                if other != name:
                    add(other)
            ordered[name] = found[name]

    add(name)
    return list(ordered.values())


@cache
def _file(module: str) -> dict[str, Copied]:
    """Return all pieces of one file, by name."""
    path = _FOLDER / f"{module}.py"
    if not module.isidentifier() or not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    imports: dict[str, tuple[str, str, str]] = {}
    defined: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            imports.update(
                (alias.asname or alias.name, (alias.name, "", alias.asname or "")) for alias in statement.names
            )
        elif isinstance(statement, ast.ImportFrom) and statement.module != "__future__":
            for alias in statement.names:
                imports[alias.asname or alias.name] = (statement.module or "", alias.name, alias.asname or "")
        elif isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
            defined[statement.name] = statement
        elif isinstance(statement, ast.Assign):
            defined.update((each.id, statement) for each in statement.targets if isinstance(each, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            defined[statement.target.id] = statement
    found = {}
    for name, statement in defined.items():
        used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        start = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
        found[name] = Copied(
            name,
            "\n".join(lines[start - 1 : statement.end_lineno]),
            tuple(sorted(other for other in used if other in defined and other != name)),
            frozenset(imports[other] for other in used if other in imports),
            _inputs(statement),
            _remembers(statement),
            ast.unparse(statement.bases[0]) if isinstance(statement, ast.ClassDef) and statement.bases else "",
            _signature(statement),
        )
    return found


def _inputs(statement: ast.stmt) -> int:
    """Return the number of inputs of a class's `forward`."""
    for inner in getattr(statement, "body", ()):
        if isinstance(inner, ast.FunctionDef) and inner.name == "forward":
            return len(inner.args.args) - 1
    return 1


def _remembers(statement: ast.stmt) -> bool:
    """Return whether a method other than the constructor sets an attribute of the object."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for method in getattr(statement, "body", ())
        if isinstance(method, ast.FunctionDef) and method.name != "__init__"
        for node in ast.walk(method)
    )


def _signature(statement: ast.stmt) -> Signature | None:
    """Return the arguments of a class's constructor."""
    for inner in getattr(statement, "body", ()):
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            declared = inner.args
            found = [_parameter(each, Parameter.POSITIONAL_OR_KEYWORD) for each in declared.args[1:]]
            first = len(found) - len(declared.defaults)
            found[first:] = [each.replace(default=_value(node)) for each, node in zip(found[first:], declared.defaults)]
            if declared.vararg:
                found.append(_parameter(declared.vararg, Parameter.VAR_POSITIONAL))
            for each, node in zip(declared.kwonlyargs, declared.kw_defaults):
                found.append(_parameter(each, Parameter.KEYWORD_ONLY, _value(node) if node else Parameter.empty))
            if declared.kwarg:
                found.append(_parameter(declared.kwarg, Parameter.VAR_KEYWORD))
            return Signature(found)
    return None


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
    found = {piece.name: piece for piece in pieces(target)}
    name, signature = target.rpartition(".")[2], None
    while name in found:
        signature = signature or found[name].signature
        name = found[name].base
    base = name.removeprefix("nn.")
    return signature or _PLAIN.get(base), base


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
