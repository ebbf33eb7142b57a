"""Check a finished page of source: it is parsed again, and may contain only what is listed here.

Text of a file can only become a literal or the name of a variable, module or value, as source is made from
a tree; this check holds even if that is wrong. The included layers must be those of the package, to the letter;
classes of the model and `load` may use no statement, name, attribute or kind of expression that is not listed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..errors import ModelError
from ..graph.dtypes import ELEMENT_TYPES
from ..nn.torch_nn import TORCH
from .flow import CodeBlock, SourceBuilder
from .model_file import FROM_PRETRAINED

_TORCH_FUNCTIONS = {known.function.partition(".")[2] for known in TORCH.values() if known.function} | {
    *("cat", "where", "load", "max_pool1d"),
}
_WORDS_OF_VALUES = """
abs exp log square pow gt lt unsqueeze transpose select narrow sum mean max min values flip to mT long clone unbind
flatten unflatten reshape_as contiguous refer double half bfloat16 float load_state_dict eval with_name __init__
"""
_METHODS = frozenset(_WORDS_OF_VALUES.split())
"""Attributes of values that a page uses, besides the modules in its own classes."""
_PACKAGES = {"torch", "nn", "F"}
_WORDS = {"self", "input", "inputs", "target", "super", "float", "list", *_PACKAGES}
"""Names that a method may use without assigning them."""
_LOAD_WORDS = {"Path", "__file__", "Model", "model", "path", "weights", "torch", "load_file"}
_NODES = (
    *(ast.Assign, ast.Return, ast.Expr, ast.Call, ast.keyword, ast.Attribute, ast.Name, ast.Constant, ast.Tuple),
    *(ast.List, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.Div),
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
    _Page(text, builder, blocks, keys).check(tree)


class _Page:
    def __init__(self, text: str, builder: SourceBuilder, blocks: list[CodeBlock], keys: Iterable[str]) -> None:
        self._lines = text.splitlines()
        self._builder = builder
        self._classes = {block.name for block in blocks}
        self._parameters = {block.name: set(block.parameters) for block in blocks}
        self._attributes = _METHODS | {attribute.name for block in blocks for attribute in block.attributes}
        self._attributes |= {name for key in keys for name in key.split(".")}
        self._imports = {("torch", "nn"), ("torch", "Tensor"), ("torch.nn", "functional"), ("pathlib", "Path")}
        self._imports |= {
            ("safetensors.torch", "load_file"),
            ("typing", "Any"),
            ("torch", ""),
            ("__future__", "annotations"),
        }
        self._imports |= {(home, name) for piece in builder.copied.values() for home, name, _ in piece.imports}
        self._imports |= {(home, name) for name, home in builder.foreign.items()}

    def check(self, tree: ast.Module) -> None:
        """Check every statement of the page."""
        for number, statement in enumerate(tree.body):
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self._import(statement)
            elif self._is_copied(statement):
                continue
            elif isinstance(statement, ast.ClassDef) and statement.name in self._classes:
                self._class(statement)
            elif isinstance(statement, ast.FunctionDef) and statement.name == "load":
                self._load(statement)
            elif self._is_text_of(statement, FROM_PRETRAINED):
                continue
            elif number or not _is_text(statement):
                raise _refused(statement)

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        for alias in statement.names:
            pair = (alias.name, "") if isinstance(statement, ast.Import) else (statement.module or "", alias.name)
            if pair not in self._imports:
                raise _refused(statement)

    def _is_copied(self, statement: ast.stmt) -> bool:
        """Return whether a statement is a piece of the package, to the letter."""
        names = {getattr(statement, "name", "")}
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
        start = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
        found = "\n".join(self._lines[start - 1 : statement.end_lineno])
        pieces = (self._builder.copied.get(name) for name in names)
        return any(piece is not None and piece.text == found for piece in pieces)

    def _is_text_of(self, statement: ast.stmt, lines: tuple[str, ...]) -> bool:
        """Return whether a statement is these lines, to the letter."""
        return tuple(self._lines[statement.lineno - 1 : statement.end_lineno]) == lines

    def _class(self, statement: ast.ClassDef) -> None:
        if [ast.unparse(base) for base in statement.bases] != ["nn.Module"] or statement.decorator_list:
            raise _refused(statement)
        for inner in statement.body:
            if isinstance(inner, ast.FunctionDef) and inner.name in ("__init__", "forward"):
                self._method(inner, statement.name)
            elif not _is_text(inner):
                raise _refused(inner)

    def _method(self, method: ast.FunctionDef, owner: str) -> None:
        words = _WORDS | self._parameters[owner] | self._classes | {*self._builder.copied, *self._builder.foreign}
        arguments = [argument.arg for argument in method.args.args]
        wanted = {"self", *self._parameters[owner]} if method.name == "__init__" else {"self", "input", "inputs"}
        plain = not (method.args.vararg or method.args.kwarg or method.args.kwonlyargs or method.args.posonlyargs)
        if not plain or not set(arguments) <= wanted | {"target"} or method.decorator_list:
            raise _refused(method)
        self._statements(method.body, words)

    def _load(self, statement: ast.FunctionDef) -> None:
        if [argument.arg for argument in statement.args.args] != ["weights"] or statement.decorator_list:
            raise _refused(statement)
        body = [*statement.body]
        for number, inner in enumerate(body):
            # `path = weights or Path(__file__).with_name("model.pt")`
            if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.BoolOp):
                body[number] = ast.Expr(inner.value.values[-1])
        self._statements(body, _LOAD_WORDS)

    def _statements(self, body: list[ast.stmt], words: set[str]) -> None:
        local: set[str] = set()
        for statement in body:
            if _is_text(statement):
                continue
            if not isinstance(statement, (ast.Assign, ast.Return, ast.Expr)):
                raise _refused(statement)
            if isinstance(statement, ast.Assign):
                local |= self._targets(statement, words)
        for statement in body:
            for node in () if _is_text(statement) else ast.walk(statement):
                self._node(node, words | local)

    def _targets(self, statement: ast.Assign, words: set[str]) -> set[str]:
        """Return the variables that a statement assigns; none may shadow another name of the page."""
        found = {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        found -= (
            {"self"} if not any(isinstance(target, (ast.Name, ast.Tuple)) for target in statement.targets) else set()
        )
        hidden = found & (words - {"model", "path"}) or {name for name in found if name.startswith("__")}
        if hidden:
            raise _refused(statement)
        return found

    def _node(self, node: ast.AST, words: set[str]) -> None:
        """Check one node of a statement."""
        if not isinstance(node, _NODES):
            raise _refused(node)
        if isinstance(node, ast.Name) and node.id not in words:
            raise _refused(node)
        if isinstance(node, ast.Constant) and not isinstance(node.value, (int, float, str, type(None))):
            raise _refused(node)
        if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
            raise _refused(node)
        if isinstance(node, ast.Subscript):
            inner = node.slice.operand if isinstance(node.slice, ast.UnaryOp) else node.slice
            if not isinstance(inner, ast.Constant) or not isinstance(inner.value, (int, str)):
                raise _refused(node)
        if isinstance(node, ast.Attribute):
            self._attribute(node)

    def _attribute(self, node: ast.Attribute) -> None:
        home = node.value.id if isinstance(node.value, ast.Name) else ""
        if home == "nn":
            known = node.attr in TORCH or node.attr in self._builder.torch
        elif home in ("torch", "F"):
            known = node.attr in _TORCH_FUNCTIONS or node.attr in ELEMENT_TYPES
        elif node.attr == "__init__":
            known = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
        else:
            known = node.attr in self._attributes
        if not known:
            raise _refused(node)


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _refused(node: ast.AST) -> ModelError:
    return ModelError(
        "the source of this model contains an unexpected construct",
        expected="the constructs listed in t7bridge.codegen.page",
        found=f"{type(node).__name__} in line {getattr(node, 'lineno', 0)}",
    )
