"""The text of a page, the `model.py` of a model: imports, included layers, classes, `load`; and what the tensors of the
model require of it besides the classes: modules and parameters that are one, element types, what is not trained.

A block is one class of the page with its modules and the steps of its `forward`; a piece is a class, function or
constant that is copied from this package. The modules of a page have paths from the instance of the model's class, as
their tensors have keys in the state dict: `layers`, `3`, `weight`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from symtable import symtable

from attrs import field

from ..data import __version__, define
from ..errors import ModelError
from ..graph.tensor import Tensor, place_of
from ..nn.kinds import ANY, TENSOR, Kind
from ..nn.mapping import ModuleSpec, Plan, first_module_in
from ..nn.pieces import Lifted, constant_biases
from ..nn.state_dict import StateDict
from ..nn.torch_nn import TORCH, argument_at
from .code import WIDTH, Construction, attribute, bracketed, checked_name, expression, lines, method
from .copied import Import, import_lines, remembers
from .flow import SourceBuilder
from .plans import TensorsByModule, owner_of
from .statements import Writer
from .steps import Attribute, CodeBlock

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
    elif writer.input.is_plural:  # elements of it are used, but it may be a list or a tensor
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
    first_module = first_module_in(block.spec)
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
    if isinstance(block.result, list):  # which says more than the name of the class does
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


# What the tensors require

_CAST_METHODS = {"float64": "double", "float16": "half", "bfloat16": "bfloat16", "float32": "float"}
"""Methods of torch.nn.Module that change the element type of all floating point parameters and buffers."""
AttributePath = tuple[str, ...]
"""The path of a module or tensor from an instance of the model's class."""
ModulePaths = list[tuple[AttributePath, ModuleSpec]]
"""The path of each module, in the order of the state dict."""


@define(eq=False)
class Additions:
    """What a page has besides its classes and layers, as its tensors require.

    Attributes:
        connections: statements at the end of the model's constructor: `self.decoder.weight = self.encoder.weight`.
        untrained: statements after these, for biases that stay zero: `self.lstm.bias_hh_l0.requires_grad_(False)`.
        cast_of_model: the method that sets the element type of all parameters: `double`; empty for float32.
        casts_of_modules: statements of `load` that set that of single modules: `model.layers[3].half()`.
    """

    connections: list[ast.stmt] = field(factory=list)
    untrained: list[ast.stmt] = field(factory=list)
    cast_of_model: str = ""
    casts_of_modules: list[ast.stmt] = field(factory=list)


def additions_of(lifted: Lifted, owned: TensorsByModule, module_paths: ModulePaths) -> Additions:
    """Return what the tensors of a plan require of its page.

    Args:
        lifted: the plan, in which recognized cells are single modules, and its state dict.
        owned: the tensors of the plan's modules, by the module's id and by their names in it.
        module_paths: the path of each module of the page.
    """
    constants = {id(lifted.state[key]) for key in constant_biases(lifted)}
    cast_of_model, casts_of_modules = _element_types(module_paths, owned)
    return Additions(
        connections=[
            *_shared_modules(module_paths, owned),
            *_references(module_paths),
            *_tied_parameters(module_paths, owned, lifted.plan, lifted.state),
        ],
        untrained=[*_constant_parameters(module_paths, owned, constants)],
        cast_of_model=cast_of_model,
        casts_of_modules=casts_of_modules,
    )


def paths_of_modules(
    attributes: list[Attribute], path: AttributePath = ()
) -> Iterator[tuple[AttributePath, ModuleSpec]]:
    """Yield each module that is held by the attributes of a class, and those inside, with their paths.

    A path is that of attributes in the page, `("layers", "3")`, not that of the module in Lua.

    Args:
        attributes: those of the class.
        path: of its instance; empty for the whole model.
    """

    def of_construction(construction: Construction, path: AttributePath) -> Iterator[tuple[AttributePath, ModuleSpec]]:
        """Yield a constructed module with its path, which is given, and those inside with theirs."""
        if construction.spec is not None:  # a Sequential that groups adjacent modules has none
            yield path, construction.spec
        # Not `block`, which may be that of an equal module: this one has tensors of its own.
        if construction.original_block is not None:
            yield from paths_of_modules(construction.original_block.attributes, path)
        for name, inner in construction.inner_modules():
            yield from of_construction(inner, (*path, name))

    for item in attributes:
        yield from of_construction(item.construction, (*path, item.name))


def _expression_of(path: AttributePath, start: str = "self") -> ast.expr:
    """Return a path as an expression: `self.layers[3].weight`."""
    node: ast.expr = ast.Name(start)
    for name in path:
        node = ast.Subscript(node, expression(int(name))) if name.isdigit() else attribute(node, name)
    return node


def _first_path_by_id(module_paths: ModulePaths) -> dict[int, AttributePath]:
    """Return the first path of each module, by id."""
    return {id(spec): path for path, spec in reversed(module_paths)}  # the first replaces all later ones


def _shared_modules(module_paths: ModulePaths, owned: TensorsByModule) -> Iterator[ast.stmt]:
    """Yield an assignment for each further place of a shared module with tensors, or a state kept between calls.

    The class constructs it at each place: `self.layers[3] = self.layers[0]` makes one of them.

    Args:
        module_paths: the path of each module of the page.
        owned: the tensors of each module, by the module's id and by their names in it.
    """
    first_paths = _first_path_by_id(module_paths)
    replaced_paths: list[AttributePath] = []
    for path, spec in module_paths:  # a module before those inside it
        first_path = first_paths[id(spec)]
        # A module that was replaced brought those inside it along.
        is_inside_replaced = any(path[: len(above)] == above for above in replaced_paths)
        if first_path == path or is_inside_replaced:
            continue
        module_and_inner = (inner for inner_path, inner in module_paths if inner_path[: len(path)] == path)
        # Without tensors and state, two modules are as good as one.
        if any(owned.get(id(inner)) or remembers(inner) for inner in module_and_inner):
            yield ast.Assign([_expression_of(path)], _expression_of(first_path))
            replaced_paths.append(path)


def _references(module_paths: ModulePaths) -> Iterator[ast.stmt]:
    """Yield a statement for each module that others refer to without containing it: `self.a.refer(module=self.b)`."""
    first_paths = _first_path_by_id(module_paths)
    for path, spec in module_paths:
        for name, other in spec.refers.items():
            # One without a path has no module in the page.
            if id(other) in first_paths:
                referred = _expression_of(first_paths[id(other)])
                yield ast.Expr(method(_expression_of(path), "refer", **{name: referred}))


def _tied_parameters(
    module_paths: ModulePaths, owned: TensorsByModule, plan: Plan, state: StateDict
) -> Iterator[ast.stmt]:
    """Yield an assignment for each parameter that in Lua is one with that of another module.

    Such as `self.decoder.weight = self.encoder.weight`; PyTorch then trains one parameter.

    Args:
        module_paths: the path of each module of the page.
        owned: the tensors of each module, by the module's id and by their names in it.
        plan: has the keys of the parameters; all other tensors are buffers.
        state: the plan's state dict.
    """
    parameters = {id(state[key]) for key in plan.parameters}
    first_places: dict[object, tuple[AttributePath, int]] = {}
    """The first path of a tensor, and the id of its module, by the tensor's view of memory."""
    for module_path, spec in module_paths:
        for name, tensor in owned.get(id(spec), {}).items():
            # Buffers are not trained, and so need not be one; without elements or memory, nothing is shared.
            if id(tensor) not in parameters or tensor.storage is None or not tensor.numel:
                continue
            path = (*module_path, name)
            first_path, owner = first_places.setdefault(place_of(tensor), (path, id(spec)))
            # Another place of the same module is no tie: `_shared_modules` connects these.
            if owner != id(spec):
                yield ast.Assign([_expression_of(path)], _expression_of(first_path))


def _constant_parameters(module_paths: ModulePaths, owned: TensorsByModule, constants: set[int]) -> Iterator[ast.stmt]:
    """Yield a statement for each parameter that is not trained, `self.lstm.bias_hh_l0.requires_grad_(False)`.

    Args:
        module_paths: the path of each module.
        owned: the tensors of each module, by the module's id and by their names in it.
        constants: the tensors that are not trained, by id.
    """
    written: set[int] = set()  # a tensor of a shared module has several paths, and needs one statement
    for path, spec in module_paths:
        for name, tensor in owned.get(id(spec), {}).items():
            if id(tensor) in constants and id(tensor) not in written:
                written.add(id(tensor))
                yield ast.Expr(method(_expression_of((*path, name)), "requires_grad_", False))


def _element_types(module_paths: ModulePaths, owned: TensorsByModule) -> tuple[str, list[ast.stmt]]:
    """Return the method that sets the element type of most modules, and statements for the others.

    The method, such as `double`, is empty if most have float32, with which modules are constructed. A statement is one
    of `load`: `model.layers[3].half()`.

    Args:
        module_paths: the path of each module of the page.
        owned: the tensors of each module, by the module's id and by their names in it.
    """
    types_of_modules = [(path, _float_types(owned.get(id(spec), {}))) for path, spec in module_paths]
    usual = _most_common(name for _, types in types_of_modules for name in types)
    statements: list[ast.stmt] = []
    types_set: dict[AttributePath, str] = {(): usual}
    """The type that `load` sets for a module and all inside it; the empty path is the model."""
    for path, types in types_of_modules:  # a module before those inside it
        if not types:
            continue
        # None of these methods suits a module of several types, as each changes it as a whole: it has the usual one,
        # and `load_state_dict` converts its values.
        wanted = types[0] if len(types) == 1 else usual
        if wanted != _type_set_around(path, types_set):
            statements.append(ast.Expr(method(_expression_of(path, "model"), _CAST_METHODS[wanted])))
            types_set[path] = wanted
    return "" if usual == "float32" else _CAST_METHODS[usual], statements


def _float_types(tensors: dict[str, Tensor]) -> list[str]:
    """Return the different floating point types of the tensors of a module, in the order of the tensors."""
    all_types = dict.fromkeys(tensor.element.name for tensor in tensors.values())  # in order, as a set is not
    return [name for name in all_types if name in _CAST_METHODS]


def _type_set_around(path: AttributePath, types_set: dict[AttributePath, str]) -> str:
    """Return the element type that was set for the nearest module around a module; the model always has one."""
    while path not in types_set:
        path = path[:-1]
    return types_set[path]


def _most_common(float_types: Iterable[str]) -> str:
    """Return the most common of some element types, the first of several; float32 if there are none."""
    counts = Counter(float_types)
    return max(counts, key=counts.__getitem__, default="float32")


def check_tensors_are_in_page(
    plan: Plan, source: dict[str, Tensor], module_paths: ModulePaths, page: dict[str, Tensor]
) -> None:
    """Check that each tensor of Lua is in the page at every place of its module: constructors make it at each.

    Args:
        plan: the plan.
        source: the tensors of Lua, by their keys in the plan; with those composed for recognized cells.
        module_paths: the path of each module of the page.
        page: the tensors of the page, by their keys there.

    Raises:
        ModelError: a tensor is missing, or replaced by another one.
    """
    paths: dict[int, list[AttributePath]] = {}
    """All paths of a module, by its id."""
    for path, spec in module_paths:
        paths.setdefault(id(spec), []).append(path)
    for key, tensor in source.items():
        spec, name = owner_of(plan, key)
        counterparts = [page.get(".".join((*path, name))) for path in paths.get(id(spec), ())]
        if not counterparts or not all(other is not None and _are_same(tensor, other) for other in counterparts):
            raise ModelError(
                "a tensor would be lost or replaced by another one in model.pt",
                path=f"{spec.path}.{name}",
                expected=f"the values of {key}",
                found="another tensor" if counterparts else "no attribute for it in the source",
            )


def _are_same(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same view of the same memory, or have equal type, shape and bytes."""
    if tensor is other or place_of(tensor) == place_of(other):
        return True
    same_form = tensor.element == other.element and tensor.shape == other.shape
    return same_form and bool(tensor.numpy().tobytes() == other.numpy().tobytes())
