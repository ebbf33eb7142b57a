"""The text of a page, the `model.py` of a model: imports, included layers, classes, `load`. A block is one class of the
page with its modules and the steps of its `forward`; a piece is a class, function or constant that is copied from this
package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import lru_cache
from symtable import symtable

from ..data import __version__
from ..nn.kinds import ANY, TENSOR, Kind
from ..nn.mapping import end_of
from ..nn.torch_nn import TORCH, argument_at
from .additions import Additions
from .code import TAKEN, WIDTH, attribute, bracketed, checked_name, lines
from .copied import Import, SourcePiece, import_lines, pieces
from .flow import SourceBuilder
from .merging import merge_alike
from .statements import Writer
from .steps import CodeBlock
from .tidy import tidy

MADE_BY = "made from Lua Torch by t7bridge"
"""Words in the first line of each page."""
BASE_IMPORTS = {
    "Path": ("pathlib", "Path", ""),
    "torch": ("torch", "", ""),
    "Tensor": ("torch", "Tensor", ""),
    "nn": ("torch", "nn", ""),
    "F": ("torch.nn", "functional", "F"),
    "Any": ("typing", "Any", ""),
}
"""Names that a page may use, with their imports."""


def prepared(builder: SourceBuilder) -> list[CodeBlock]:
    """Return the classes of a model, tidied and merged, those that others contain first.

    Classes that no other uses are left out. From the builder, copied pieces that none uses are removed.
    """
    for block in builder.blocks:
        tidy(block)  # which makes some layers expressions or functions
    blocks = _used_blocks(builder.blocks)
    needed = _names_of_needed_pieces(blocks, builder.copied_pieces)
    builder.copied_pieces = {name: piece for name, piece in builder.copied_pieces.items() if name in needed}
    return merge_alike(blocks, frozenset((*builder.copied_pieces, *builder.foreign_imports, *TAKEN)))


def _names_of_needed_pieces(blocks: list[CodeBlock], copied_pieces: Mapping[str, SourcePiece]) -> set[str]:
    """Return the names of the copied pieces that classes still construct, and of those that these need.

    Args:
        blocks: the classes.
        copied_pieces: all copied pieces, by name.
    """
    needed: set[str] = set()
    for block in blocks:
        for construction in block.constructions():
            is_class_of_page = construction.block is not None  # its name is not final yet
            if construction.name in copied_pieces and construction.spec is not None and not is_class_of_page:
                needed.update(piece.name for piece in pieces(construction.spec.target))
    return needed


def _used_blocks(blocks: list[CodeBlock]) -> list[CodeBlock]:
    """Return the classes that the model's own, which is the last, consists of.

    The others were made for modules of a Sequential that became a class, in which these modules are steps.
    """
    used = {id(blocks[-1])}
    for block in reversed(blocks):  # a class before those that it contains
        if id(block) in used:
            used.update(id(construction.block) for construction in block.constructions())
    return [block for block in blocks if id(block) in used]


def model_source(builder: SourceBuilder, blocks: list[CodeBlock], additions: Additions, source: str) -> str:
    """Return the whole file.

    Args:
        builder: the builder of the blocks.
        blocks: the classes, those that others contain first; the model's own is the last.
        additions: what the tensors of the model require.
        source: the name of the original file.
    """
    # No variable may have one of these names.
    class_names = frozenset((*builder.copied_pieces, *builder.foreign_imports, *(block.name for block in blocks)))
    *inner, model = blocks
    parts = [[piece.text] for piece in builder.copied_pieces.values()]
    parts += [_class(block, Writer(block, class_names)) for block in inner]
    parts.append(_class(model, Writer(model, class_names), additions))
    parts.append(_load(additions))
    # Imports come first in the page, but depend on what the parts use.
    all_lines = _head(source, _imports_of(builder, parts))
    for part in parts:
        all_lines += ["", "", *part]  # two empty lines before each part, as Black has them
    return "\n".join(all_lines) + "\n"


def _head(source: str, imports: set[Import]) -> list[str]:
    """Return the docstring and imports of a page as lines.

    Args:
        source: the name of the original file.
        imports: the imports.
    """
    # `dataclass` looks for annotations that are text in `sys.modules`, where a page that `exec` runs is not.
    postponed = [] if ("dataclasses", "dataclass", "") in imports else ["from __future__ import annotations", ""]
    return [
        f'"""The model of {_safe(source)} in PyTorch, {MADE_BY} {__version__}."""',
        "",
        *postponed,
        *import_lines(imports),
    ]


def _imports_of(builder: SourceBuilder, parts: list[list[str]]) -> set[Import]:
    """Return the imports of a page.

    Args:
        builder: has the included layers and foreign classes.
        parts: the classes and functions of the page, each as lines of source.
    """
    used_names = {name for part in parts for name in _names_in("\n".join(part))}
    imports = {statement for name, statement in BASE_IMPORTS.items() if name in used_names}
    for piece in builder.copied_pieces.values():
        imports |= piece.imports
    for name_in_page, (home, name) in builder.foreign_imports.items():
        alias = "" if name_in_page == name else name_in_page
        imports.add((home, name, alias))
    return imports


@lru_cache(maxsize=256)
def _names_in(text: str) -> frozenset[str]:
    """Return the names in a class or function; remembered, as models share the layers that their pages copy."""
    names: set[str] = set()
    tables = [symtable(text, "", "exec")]
    for table in tables:  # grows: those of its functions
        names.update(table.get_identifiers())
        tables += table.get_children()
    return frozenset(names)


def _safe(name: str) -> str:
    """Return the name of a file as part of a docstring."""
    return re.sub(r"[^\w .@+-]", "_", name)[:40]


def _class(block: CodeBlock, writer: Writer, additions: Additions | None = None) -> list[str]:
    """Return a class as lines of source: docstring, constructor, `forward`.

    Args:
        block: the class.
        writer: has the statements of its `forward`.
        additions: of the whole model's class, what its tensors require.
    """
    text = [f"class {checked_name(block.name)}(nn.Module):", f'    """{_summary_of_class(block)}"""', ""]
    if block.attributes:  # else the constructor of nn.Module will do
        text += [*_constructor(block, additions or Additions()), ""]
    return text + _forward(block, writer)


def _constructor(block: CodeBlock, additions: Additions) -> list[str]:
    """Return the method `__init__` of a class as lines of source: modules, connections, and what is not trained."""
    parameters = [f"{checked_name(name)}: {annotation}" for name, annotation in block.parameters.items()]
    text = bracketed("def __init__(", ["self", *parameters], ") -> None:", 4)
    text.append("        super().__init__()")
    for item in block.attributes:
        text += lines(ast.Assign([attribute(ast.Name("self"), item.name)], item.construction.as_call()), 8)
    for statement in additions.connections:
        text += lines(statement, 8)
    if additions.untrained:
        text.append("        # Lua has one bias where PyTorch adds two: the second stays zero.")
    for statement in additions.untrained:
        text += lines(statement, 8)
    return text


def _summary_of_class(block: CodeBlock) -> str:
    """Return the docstring of a class: of the whole model, the class in Lua."""
    if not block.is_whole_model:
        return _SUMMARIES.get(block.base_name, "Some steps of the model.")
    class_name = block.spec.class_name
    return f"An {_safe(class_name)} of Lua Torch." if class_name else "The model."


_SUMMARIES = {
    "Residual": "Two branches of one input, added up.",
    "Branches": "Several branches of one input.",
    "Graph": "A graph of modules.",
}


def _forward(block: CodeBlock, writer: Writer) -> list[str]:
    """Return the method `forward` as lines of source.

    Args:
        block: the class.
        writer: has the names and statements of its `forward`.
    """
    names = writer.input.unpacked
    text = bracketed("def forward(", ["self", *_arguments(block, writer)], f") -> {_return_type(block)}:", 4)
    text.append(f'        """{_summary_of_forward(block, names)}"""')
    if names and not block.is_stateful:  # one with a state has its inputs as arguments
        targets = [*names, "*_"] if block.ignores_further_inputs else names
        comma = "," if len(targets) == 1 else ""  # `x, = inputs`
        unpacking = f"        {', '.join(targets)}{comma} = inputs"
        if len(unpacking) <= WIDTH:
            text.append(unpacking)
        else:
            text += bracketed("(", targets, ") = inputs", 8, are_arguments=False)
    for statement in writer.statements:
        text += lines(statement, 8)
    return text


def _arguments(block: CodeBlock, writer: Writer) -> list[str]:
    """Return the arguments of `forward`, with their annotations, but without `self`.

    Args:
        block: the class.
        writer: has the names and statements of its `forward`.
    """
    if block.is_stateful:  # an argument for each element of its input
        first, *states = writer.input.unpacked
        return [f"{first}: Tensor", *(f"{state}: Any = None" for state in states)]
    annotation = "Tensor"
    if writer.input.unpacked:
        reads_elements_of_elements = any(ref.is_in_input and len(ref.path) > 1 for _, ref in block.links())
        annotation = "list[Any]" if reads_elements_of_elements else "list[Tensor]"
    elif block.input_kind.is_list:
        annotation = _annotation(block.input_kind)
    elif writer.input.argument == "inputs":  # its elements are used, as of a list or a tensor
        annotation = "Any"
    arguments = [f"{writer.input.argument}: {annotation}"]
    if writer.reads("target"):
        arguments.append("target: Any = None")
    return arguments


def _return_type(block: CodeBlock) -> str:
    """Return the annotation of the output of `forward`."""
    result = block.result
    if block.is_stateful:
        return "tuple[Any, ...]"
    if isinstance(result, list):
        return "list[Any]" if any(isinstance(item, list) for item in result) else "list[Tensor]"
    step = block.steps[result.step]
    is_input_or_element = result.is_in_input or bool(result.path)
    if step is None or is_input_or_element:
        return "Any"
    return _annotation(step.kind)


def _annotation(kind: Kind) -> str:
    """Return the type of a value as an annotation: `list[Tensor]`."""
    if kind.is_list:
        elements = kind.items or (kind.each,)
        types = {_annotation(element or ANY) for element in elements}
        return f"list[{types.pop()}]" if len(types) == 1 else "list[Any]"
    return "Tensor" if kind == TENSOR else "Any"


def _summary_of_forward(block: CodeBlock, names: list[str]) -> str:
    """Return the docstring of `forward`: its inputs and outputs, as far as they are known.

    Args:
        block: the class.
        names: the names of the elements of its input, if these are unpacked.
    """
    if block.is_stateful:
        return "Take the state, None for that of a beginning; return the output and the new state."
    inputs = ""
    first_module = end_of(block.spec)
    layer = TORCH.get(first_module.target.removeprefix("torch.nn."))
    # The shape only of the model's input, which its users have to know.
    if layer is not None and layer.shape and block.is_whole_model:
        # `(batch, {0}, height, width)`: the first argument of such a layer is its number of channels or features.
        inputs = layer.shape.format(argument_at(first_module, 0))
    elif names:
        inputs = f"a list of {len(names)}"
    elif block.input_kind.is_list:
        inputs = "a list"
    outputs = {"Residual": "their sum", "Branches": "their outputs"}.get(block.base_name, "the output")
    if isinstance(block.result, list):
        outputs = f"a list of {len(block.result)}"
    return f"Take {inputs}; return {outputs}." if inputs else f"Return {outputs}."


def _load(additions: Additions) -> list[str]:
    """Return the function `load` as lines of source; it sets element types other than float32."""
    conversion = f".{additions.cast_of_model}()" if additions.cast_of_model else ""
    return [
        "def load(weights: str | Path | None = None) -> Model:",
        '    """Return the model in evaluation mode, with these weights or those of model.pt."""',
        f"    model = Model(){conversion}",
        *(line for statement in additions.casts_of_modules for line in lines(statement, 4)),
        '    path = weights or Path(__file__).with_name("model.pt")',
        "    model.load_state_dict(torch.load(path, weights_only=True))",
        "    return model.eval()",
    ]
