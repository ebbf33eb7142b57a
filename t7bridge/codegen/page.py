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
from .copied import statement_text
from .flow import CodeBlock, SourceBuilder
from .model_file import BASE_IMPORTS, FROM_PRETRAINED

_TORCH_FUNCTIONS = {known.function.partition(".")[2] for known in TORCH.values() if known.function} | {
    *("cat", "where", "load", "max_pool1d"),
}
_WORDS_OF_VALUES = """
abs exp log square pow gt lt unsqueeze transpose select narrow sum mean max min values flip to mT long clone unbind
flatten unflatten reshape_as contiguous refer double half bfloat16 float load_state_dict eval with_name
"""
_METHODS = frozenset(_WORDS_OF_VALUES.split())
"""Attributes of values that a page uses, besides the modules in its own classes."""
_WORDS = {"self", "input", "inputs", "target", "super", "float", "list", "torch", "nn", "F"}
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
    page = _Page(builder, blocks, keys)
    copied = {"\n".join(FROM_PRETRAINED), *(piece.text for piece in builder.copied.values())}
    lines = text.splitlines()
    for number, statement in enumerate(tree.body):
        if statement_text(statement, lines) not in copied and not (number == 0 and _is_text(statement)):
            page.check(statement)


class _Page:
    def __init__(self, builder: SourceBuilder, blocks: list[CodeBlock], keys: Iterable[str]) -> None:
        self._classes = {block.name: set(block.parameters) for block in blocks}
        self._words = _WORDS | {*self._classes, *builder.copied, *builder.foreign}
        self._attributes = _METHODS | {attribute.name for block in blocks for attribute in block.attributes}
        self._attributes |= {name for key in keys for name in key.split(".")}
        used = {call.name.removeprefix("nn.") for block in blocks for call in block.constructions()}
        self._homes = {"nn": used | {*TORCH}, **dict.fromkeys(("torch", "F"), _TORCH_FUNCTIONS | {*ELEMENT_TYPES})}
        self._imports = {each[:2] for each in BASE_IMPORTS.values()} | {("__future__", "annotations")}
        self._imports |= {each[:2] for piece in builder.copied.values() for each in piece.imports}
        self._imports |= {(home, name) for name, home in builder.foreign.items()}

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
        arguments = parameters if is_made else {"input", "inputs", "target"}
        self._function(method, {"self", *arguments}, self._words | parameters)

    def _function(self, function: ast.stmt, arguments: set[str], words: set[str]) -> None:
        """Check the arguments and statements of a function that may use some names without assigning them."""
        assert isinstance(function, ast.FunctionDef)
        given = function.args
        _require({each.arg for each in given.args} <= arguments and not function.decorator_list, function)
        _require(not (given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs), function)
        body: list[ast.AST] = [each for each in function.body if not _is_text(each)]
        local: set[str] = set()
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
            known = isinstance(node.operand, ast.Constant)
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
            expected="the constructs listed in t7bridge.codegen.page",
            found=f"{type(node).__name__} in line {getattr(node, 'lineno', 0)}",
        )
