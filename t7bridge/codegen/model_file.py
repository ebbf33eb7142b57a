"""The text of a `model.py`: imports, the included layers, the classes of the model, `load`."""

from __future__ import annotations

import ast
import re

from ..data import define
from ..nn.flows import ANY, TENSOR, Kind
from ..nn.mapping import SEQUENTIAL
from ..nn.torch_nn import TORCH
from ..version import __version__
from .code import TAKEN, WIDTH, attribute, bracketed, checked_name, expression, lines
from .copied import import_lines, pieces
from .flow import CodeBlock, SourceBuilder
from .statements import Writer, merge_alike, tidy

BASE_IMPORTS = {
    "Path": ("pathlib", "Path", ""),
    "torch": ("torch", "", ""),
    "Tensor": ("torch", "Tensor", ""),
    "nn": ("torch", "nn", ""),
    "F": ("torch.nn", "functional", "F"),
    "Any": ("typing", "Any", ""),
    "load_file": ("safetensors.torch", "load_file", ""),
}
"""Names that a page may use, with their imports."""

FROM_PRETRAINED = (
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
    parts += [[*FROM_PRETRAINED]] * is_hub
    text = "\n".join(line for part in parts for line in ("", "", *part))
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    imports = {each for name, each in BASE_IMPORTS.items() if name in names}
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
        joined = f"        {', '.join(names)}{',' if len(names) == 1 else ''} = inputs"
        text += [joined] if len(joined) <= WIDTH else bracketed("(", names, ") = inputs", 8)
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
