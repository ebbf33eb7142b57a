"""The text of a `model.py`: imports, the included layers, the classes of the model, `load`; and its check.

The finished page is parsed again, and may contain only what is listed here. Text of a file can only become a literal
or the name of a variable, module or value, as source is made from trees; the check holds even if that is wrong. The
included layers must be those of the package, to the letter; classes of the model and `load` may use no statement, name,
attribute or kind of expression that is not listed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ..data import __version__, define
from ..errors import ModelError
from ..graph.dtypes import ELEMENT_TYPES
from ..nn.flows import ANY, TENSOR, Kind
from ..nn.mapping import SEQUENTIAL
from ..nn.torch_nn import TORCH
from .code import TAKEN, WIDTH, attribute, bracketed, checked_name, expression, lines
from .copied import import_lines, pieces, statement_text
from .flow import CodeBlock, SourceBuilder
from .statements import Writer, merge_alike, tidy

_BASE_IMPORTS = {
    "Path": ("pathlib", "Path", ""),
    "torch": ("torch", "", ""),
    "Tensor": ("torch", "Tensor", ""),
    "nn": ("torch", "nn", ""),
    "F": ("torch.nn", "functional", "F"),
    "Any": ("typing", "Any", ""),
    "load_file": ("safetensors.torch", "load_file", ""),
}
"""Names that a page may use, with their imports."""

_FROM_PRETRAINED = (
    "def from_pretrained(folder: str | Path) -> Model:",
    '    """Return the model in evaluation mode, with the weights in a folder, as model hubs distribute it."""',
    '    return load(Path(folder) / "model.safetensors")',
)
"""Additions to a page whose weights are a safetensors file."""


@define(frozen=True)
class Extra:
    """Statements about the whole model.

    Attributes:
        connections: statements at the end of its constructor: `self.decoder.weight = self.encoder.weight`.
        dtype: the method that sets the element type of all parameters: `double`; empty for float32.
        dtypes: statements of `load` for modules of another type.
    """

    connections: list[ast.stmt]
    dtype: str
    dtypes: list[ast.stmt]


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


def model_source(builder: SourceBuilder, blocks: list[CodeBlock], extra: Extra, source: str, weights: str) -> str:
    """Return the whole file.

    Args:
        builder: the builder of the blocks.
        blocks: the classes, those that others contain first; the model's own is the last.
        extra: statements about the whole model.
        source: the name of the original file.
        weights: the name of the file with its weights: a `.pt`, or a `.safetensors` for model hubs.
    """
    taken = frozenset((*builder.copied, *builder.foreign, *(block.name for block in blocks)))
    is_hub = weights.endswith(".safetensors")
    parts = [[piece.text] for piece in builder.copied.values()]
    parts += [_class(block, Writer(block, taken), extra.connections * (block is blocks[-1])) for block in blocks]
    parts += [_load(extra, weights, "load_file(path)" if is_hub else "torch.load(path, weights_only=True)")]
    parts += [[*_FROM_PRETRAINED]] * is_hub
    text = "\n".join(line for part in parts for line in ("", "", *part))
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    imports = {each for name, each in _BASE_IMPORTS.items() if name in names}
    imports = imports.union(*(piece.imports for piece in builder.copied.values()))
    imports |= {(home, name, "") for name, home in builder.foreign.items()}
    # Python evaluates the fields of data classes; as text, only where the module is registered.
    postponed = [] if ("dataclasses", "dataclass", "") in imports else ["from __future__ import annotations", ""]
    head = [
        f'"""The model of {_safe(source)} in PyTorch, made from Lua Torch by t7bridge {__version__}."""',
        "",
        *postponed,
        *import_lines(imports),
    ]
    return "\n".join(head) + "\n" + text + "\n"


def _safe(name: str) -> str:
    """Return the name of a file as part of a docstring."""
    return re.sub(r"[^\w .@+-]", "_", name)[:40]


def _class(block: CodeBlock, writer: Writer, connections: list[ast.stmt]) -> list[str]:
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
        text.append("")
    return text + _forward(block, writer)


_SUMMARIES = {
    "Residual": "Two branches of one input, added up.",
    "Branches": "Several branches of one input.",
    "Graph": "A graph of modules.",
}


def _forward(block: CodeBlock, writer: Writer) -> list[str]:
    names = writer.unpacked
    taken = "list[Tensor]" if names else "Any" if writer.source == "inputs" else "Tensor"
    target = ", target: Any = None" if writer.reads("target") else ""
    text = [f"    def forward(self, {writer.source}: {taken}{target}) -> {_returns(block)}:"]
    text.append(f'        """{_summary(block, names)}"""')
    if names:
        targets = [*names, "*_"] if block.more else names
        joined = f"        {', '.join(targets)}{',' if len(targets) == 1 else ''} = inputs"
        text += [joined] if len(joined) <= WIDTH else bracketed("(", targets, ") = inputs", 8)
    return text + [line for statement in writer.statements for line in lines(statement, 8)]


def _returns(block: CodeBlock) -> str:
    """Return the type of the output."""
    result = block.result
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
    first = block.spec
    while first.target == SEQUENTIAL and first.children:
        first = next(iter(first.children.values()))
    taken = f"a list of {len(names)}" if names else ""
    known = TORCH.get(first.target.removeprefix("torch.nn."))
    if known is not None and known.shape and block.base == "Model":
        taken = known.shape.format(first.args[0])
    given = {"Residual": "their sum", "Branches": "their outputs"}.get(block.base, "the output")
    if isinstance(block.result, list):
        given = f"a list of {len(block.result)}"
    return f"Take {taken}; return {given}." if taken else f"Return {given}."


def _load(extra: Extra, weights: str, state: str) -> list[str]:
    return [
        "def load(weights: str | Path | None = None) -> Model:",
        f'    """Return the model in evaluation mode, with these weights or those of {_safe(weights)}."""',
        f"    model = Model(){f'.{extra.dtype}()' * bool(extra.dtype)}",
        *(line for statement in extra.dtypes for line in lines(statement, 4)),
        f"    path = weights or Path(__file__).with_name({ast.unparse(expression(weights))})",
        f"    model.load_state_dict({state})",
        "    return model.eval()",
    ]


# Check of the finished page

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
    copied = {"\n".join(_FROM_PRETRAINED), *(piece.text for piece in builder.copied.values())}
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
        self._imports = {each[:2] for each in _BASE_IMPORTS.values()} | {("__future__", "annotations")}
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
            expected="the constructs listed in t7bridge.codegen.model_file",
            found=f"{type(node).__name__} in line {getattr(node, 'lineno', 0)}",
        )
