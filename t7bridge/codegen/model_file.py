"""The text of a `model.py`: imports, the included layers, the classes of the model, `load`."""

from __future__ import annotations

import ast
import re

from ..data import define
from ..nn.flows import ANY, TENSOR, Kind
from ..nn.mapping import SEQUENTIAL, ModuleSpec
from ..nn.torch_nn import TORCH
from ..version import __version__
from .alike import calls_in, merge_alike
from .code import WIDTH, Assign, Attr, Listed, Name, apply, bracketed, checked_name, laid_out, method
from .copied import import_lines, pieces
from .flow import CodeBlock, SourceBuilder
from .names import TAKEN
from .statements import Writer, tidy

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

    connections: tuple[Assign, ...] = ()
    dtype: str = ""
    dtypes: tuple[Assign, ...] = ()


def model_source(builder: SourceBuilder, blocks: list[CodeBlock], extra: Extra, source: str, weights: str) -> str:
    """Return the whole file.

    Args:
        builder: the builder of the blocks.
        blocks: the classes, those that others contain first; the model's own is the last.
        extra: statements about the whole model.
        source: the name of the original file.
        weights: the name of the file with its weights: a `.pt`, or a `.safetensors` for model hubs.
    """
    body: list[str] = []
    for piece in builder.copied.values():
        body += ["", "", piece.text]
    taken = frozenset((*builder.copied, *builder.foreign, *(block.name for block in blocks)))
    for block in blocks:
        body += ["", "", *_class(block, Writer(block, taken), extra.connections if block is blocks[-1] else ())]
    body += ["", "", *_load(extra, weights)]
    if _is_hub(weights):
        body += ["", "", *FROM_PRETRAINED]
    text = "\n".join(body)
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    imports = {each for name, each in _BASE_IMPORTS.items() if name in names}
    for piece in builder.copied.values():
        imports |= piece.imports
    imports |= {(home, name, "") for name, home in builder.foreign.items()}
    head = [
        f'"""The model of {_safe(source)} in PyTorch, made from Lua Torch by t7bridge {__version__}."""',
        "",
        "from __future__ import annotations",
        "",
        *import_lines(imports),
    ]
    return "\n".join(head) + "\n" + text + "\n"


def _safe(name: str) -> str:
    """Return the name of a file as part of a docstring."""
    return re.sub(r"[^\w .@+-]", "_", name)[:40]


def _class(block: CodeBlock, writer: Writer, connections: tuple[Assign, ...]) -> list[str]:
    parameters = "".join(f", {checked_name(name)}: {kind}" for name, kind in block.parameters.items())
    lines = [f"class {checked_name(block.name)}(nn.Module):", f'    """{_summary(block)}"""', ""]
    if not block.attributes:
        return lines + _forward(block, writer)
    lines += _signature(f"def __init__(self{parameters}) -> None:")
    lines.append("        super().__init__()")
    for attribute in block.attributes:
        lines += Assign(Attr(Name("self"), attribute.name), attribute.call).lines(8)
    lines += [line for statement in connections for line in statement.lines(8)]
    lines += ["", *_forward(block, writer)]
    return lines


def _signature(text: str) -> list[str]:
    if len(text) + 4 <= WIDTH:
        return [f"    {text}"]
    before, _, rest = text.partition("(")
    inner, _, after = rest.rpartition(")")
    return bracketed(f"{before}(", inner.split(", "), f"){after}", 4)


def _summary(block: CodeBlock) -> str:
    return {
        "Model": f"An {_safe(block.spec.class_name)} of Lua Torch." if block.spec.class_name else "The model.",
        "Residual": "Two branches of one input, added up.",
        "Branches": "Several branches of one input.",
        "Graph": "A graph of modules.",
    }.get(block.base, "Some steps of the model.")


def _forward(block: CodeBlock, writer: Writer) -> list[str]:
    names = writer.unpacked
    taken = "list[Tensor]" if names else "Any" if writer.source == "inputs" else "Tensor"
    target = ", target: Any = None" if writer.reads("target") else ""
    lines = [f"    def forward(self, {writer.source}: {taken}{target}) -> {_returns(block, writer)}:"]
    lines.append(f'        """{_takes(block, names)}"""')
    if names:
        joined = f"        {', '.join(names)}{',' if len(names) == 1 else ''} = inputs"
        lines += [joined] if len(joined) <= WIDTH else bracketed("(", names, ") = inputs", 8)
    lines += [line for statement in writer.statements for line in statement.lines(8)]
    returned = Listed(tuple(writer.returned)) if isinstance(writer.returned, list) else writer.returned
    return [*lines, *laid_out("return ", returned, "", 8)]


def _returns(block: CodeBlock, writer: Writer) -> str:
    result = block.result
    if isinstance(result, list):
        return "list[Any]" if any(isinstance(item, list) for item in result) else "list[Tensor]"
    step = block.steps[result.step]
    if step is None or not result.step or result.path:
        return "Any"
    return _annotation(step.kind)


def _annotation(kind: Kind) -> str:
    if kind.is_list:
        inner = {_annotation(each or ANY) for each in kind.items or (kind.each,)}
        return f"list[{inner.pop() if len(inner) == 1 else 'Any'}]"
    return "Tensor" if kind == TENSOR else "Any"


def _takes(block: CodeBlock, names: list[str]) -> str:
    """Describe inputs and outputs, as far as they are known."""
    first = _first(block.spec)
    taken = f"a list of {len(names)}" if names else ""
    known = TORCH.get(first.target.removeprefix("torch.nn.")) if first is not None else None
    if first is not None and known is not None and known.shape and block.base == "Model":
        taken = known.shape.format(first.args[0])
    if isinstance(block.result, list):
        given = f"a list of {len(block.result)}"
    else:
        given = {"Residual": "their sum", "Branches": "their outputs"}.get(block.base, "the output")
    return f"Take {taken}; return {given}." if taken else f"Return {given}."


def _first(spec: ModuleSpec) -> ModuleSpec | None:
    """Return the module that receives the input, if it is one."""
    while spec.target == SEQUENTIAL and spec.children:
        spec = next(iter(spec.children.values()))
    return spec


def _is_hub(weights: str) -> bool:
    return weights.endswith(".safetensors")


def _load(extra: Extra, weights: str) -> list[str]:
    made = apply("Model")
    beside = method(apply("Path", Name("__file__")), "with_name", weights)
    statements = [
        Assign(Name("model"), method(made, extra.dtype) if extra.dtype else made),
        *extra.dtypes,
    ]
    path = Name("path")
    state = apply("load_file", path) if _is_hub(weights) else apply("torch.load", path, weights_only=True)
    return [
        "def load(weights: str | Path | None = None) -> Model:",
        f'    """Return the model in evaluation mode, with these weights or those of {_safe(weights)}."""',
        *(line for statement in statements for line in statement.lines(4)),
        f"    path = weights or {beside.text}",
        *Assign(None, method(Name("model"), "load_state_dict", state)).lines(4),
        "    return model.eval()",
    ]


def prepared(builder: SourceBuilder) -> list[CodeBlock]:
    """Return the classes of a model, tidied and merged, those that others contain first."""
    for block in builder.blocks:
        tidy(block)
    # Blocks that became expressions need no class.
    needed: set[str] = set()
    for block in builder.blocks:
        for call in calls_in(block):
            if call.name in builder.copied and call.spec is not None and call.block is None:
                needed.update(piece.name for piece in pieces(call.spec.target))
    builder.copied = {name: piece for name, piece in builder.copied.items() if name in needed}
    return merge_alike(builder.blocks, frozenset((*builder.copied, *builder.foreign, *TAKEN)))
