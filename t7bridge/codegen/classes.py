"""The classes of a page before their text is written. They are tidied: chains of modules become one Sequential, others
become functions, and what is left gets its names. Then those that differ only in numbers become one class, with
parameters for these numbers.

A block is such a class with its steps and attributes, each of which holds a module. A step applies a module or an
operation to the results of earlier steps; step 0 is the input of the class. A construction is the call that makes a
module, which may be of another block, which is then inside. A piece is a class, function or constant that is copied
from this package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..data import define
from ..nn.graphs import is_free_name
from .code import TAKEN, Construction, dotted
from .copied import SourcePiece, pieces
from .flow import SourceBuilder
from .statements import Writer
from .steps import GATES, PARTS, Attribute, CodeBlock, Ref, SharedMemory, Step


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


# Tidying


def tidy(block: CodeBlock) -> None:
    """Join chains of modules, replace stateless modules by functions, and name the modules, all in the class itself."""
    # Before modules become parts of chains: it asks for the class that reads a value.
    _name_gates(block)
    # Before chains are joined: as expressions, these layers are no barriers between chains.
    _write_out_of_place(block)
    _join_chains(block)
    # After that, for what is left alone: in a chain, a module reads better.
    _replace_by_functions(block)
    used_attributes = {id(step.attribute) for step in block.steps if step}
    block.attributes = [attribute for attribute in block.attributes if id(attribute) in used_attributes]
    _name_attributes(block.attributes)


def _write_out_of_place(block: CodeBlock) -> None:
    """Turn in-place layers whose writing nobody sees into expressions, with results in memory of their own."""
    # What calls a class inside the model may use the input again.
    shared_memory = SharedMemory(block, is_input_shared=not block.is_whole_model)
    for step in block.steps:
        if step is None or step.out_of_place is None:
            continue
        # A module that several steps use, or the user named, is kept.
        if step.attribute is None or step.attribute.stays_separate:
            continue
        if not shared_memory.is_write_seen(step):
            step.write = step.out_of_place
            step.attribute = None
            step.inplace = False
            step.shares_memory = False


def _replace_by_functions(block: CodeBlock) -> None:
    """Turn modules that are not in a chain into equivalent functions of PyTorch, where there are any."""
    for step in block.steps:
        if step is None or step.function is None or step.attribute is None:
            continue
        is_in_chain = len(step.attribute.constructions) > 1
        if not is_in_chain:
            step.write = step.function
            step.attribute = None
            step.inplace = False  # a function returns a new tensor


def _name_gates(block: CodeBlock) -> None:
    """Name the parts of a value gates, not parts, if each is only the input of a sigmoid or tanh.

    As in an LSTM, at least one must be that of a sigmoid.
    """
    users: dict[int, set[str]] = {}
    """By the number of a step, what uses its result, see `_class_of_user`."""
    for number, ref in block.links():
        users.setdefault(ref.step, set()).add(_class_of_user(block, number, ref))
    for number, step in enumerate(block.steps):
        if step is None or step.suggested_name != PARTS:  # the name of every tensor that is split
            continue
        classes = users.get(number, set())
        if "nn.Sigmoid" in classes and classes <= {"nn.Sigmoid", "nn.Tanh"}:
            step.suggested_name = GATES


def _class_of_user(block: CodeBlock, number: int, ref: Ref) -> str:
    """Return the class of the module that a step applies to one element of a result; empty for any other use.

    Args:
        block: the class of the page, in which no chains are joined yet.
        number: of the step that uses the result; beyond the last if the class returns it.
        ref: what it uses.
    """
    if number == len(block.steps) or len(ref.path) != 1:
        return ""
    step = block.steps[number]
    if step is None or step.attribute is None:  # `None` is a part of a later step
        return ""
    (module,) = step.attribute.constructions
    return module.name


def _join_chains(block: CodeBlock) -> None:
    """Join modules into one Sequential where the result of one has no other use than to be the input of the next.

    In `block.steps`, `None` takes the place of a step that became part of a later one: all modules of a chain are
    called where the last of them was.
    """
    shared_memory = SharedMemory(block)
    changing_steps = [number for number, step in enumerate(block.steps) if step and shared_memory.is_changed_by(step)]
    for number, step in enumerate(block.steps):
        source = _number_of_source(step)
        if step is None or source is None or shared_memory.uses[source] != 1:
            continue
        earlier = block.steps[source]
        # A node of a graph with a name keeps its variable; of the later step, it is the variable of the whole chain.
        if earlier is None or not _can_be_chained(earlier) or earlier.is_node_name:
            continue
        # It is called behind the steps between. If any of these, or of the two, changes shared memory in place, one
        # would read what another has written meanwhile.
        is_moved = any(between is not None for between in block.steps[source + 1 : number])
        if is_moved and any(source <= changing <= number for changing in changing_steps):
            continue
        _append_to_chain(earlier, step)
        block.steps[source] = None


def _number_of_source(step: Step | None) -> int | None:
    """Return the number of the step whose whole result a step passes through a module; `None` if it does anything else.

    Also if the module may not be part of a chain.
    """
    if step is None or not _can_be_chained(step):
        return None
    (operand,) = step.operands
    if not isinstance(operand, Ref) or operand.path:  # a list, or an element of one
        return None
    return operand.step


def _append_to_chain(chain: Step, step: Step) -> None:
    """Append the module of a step to the chain of the step before it, and let the later step apply the whole chain.

    The later one stays, so that the steps that use its result need no change. It takes over the attribute of the other.

    Args:
        chain: the earlier step, of one module or a chain, whose result nothing else uses; the caller removes it.
        step: the later step.
    """
    modules = chain.attribute
    last = step.attribute
    assert modules is not None
    assert last is not None
    modules.constructions += last.constructions
    # The output of a branch is that of its last module, which has the name of the branch.
    modules.base_name = last.base_name if last.base_name in _BRANCHES else "layers"
    step.attribute = modules
    step.operands = chain.operands
    step.function = None  # it would replace the last module only
    # The last module changes the input of the chain if those before it pass on its memory.
    step.inplace = chain.inplace or (chain.shares_memory and step.inplace)
    step.shares_memory = chain.shares_memory and step.shares_memory


_BRANCHES = ("body", "shortcut", "branch")
"""Names for the last modules of branches (`Steps._branch_name`)."""


def _can_be_chained(step: Step) -> bool:
    """Return whether a step passes one value, or list, through a module that may become part of a Sequential."""
    module = step.called_module
    return module is not None and not module.stays_separate and len(step.operands) == 1


def _name_attributes(attributes: list[Attribute]) -> None:
    """Name attributes after their bases, numbered in the order of use if several have the same."""
    counts = Counter(attribute.base_name for attribute in attributes)
    numbers: dict[str, int] = {}
    names: set[str] = set()
    for item in attributes:
        name = item.base_name
        if counts[name] > 1:
            numbers[name] = numbers.get(name, 0) + 1
            name = f"{name}{numbers[name]}"
        # Not that of an attribute of every module, such as `forward`.
        while name in names or not is_free_name(name):
            name += "_"
        names.add(name)
        item.name = name


# Merging

_NAMES_OF_EQUAL_SIZES = {
    frozenset(("in_channels", "out_channels")): "channels",
    frozenset(("in_features", "out_features")): "features",
}
"""The name of a parameter that is both of two arguments of a layer."""


def merge_alike(blocks: list[CodeBlock], class_names: frozenset[str]) -> list[CodeBlock]:
    """Choose one of the blocks that differ only in numbers as their class, with parameters, and set its name.

    Args:
        blocks: all blocks, those that others contain first; the model's own is the last.
        class_names: names of other classes in the same source.

    Returns:
        The classes, those that others contain first; all constructions are of these now, with arguments.
    """
    constructions_by_block = _constructions_by_block(blocks)
    classes: list[CodeBlock] = []
    last_numbers: Counter[str] = Counter()
    """The number in the last class name given, by base name."""
    # Inner classes first: those that contain them are compared by the names of what they construct.
    for blocks_of_height in _by_height(blocks):
        for group in _groups_alike(blocks_of_height):
            first = group[0]
            first.name = _next_class_name(first.base_name, last_numbers, class_names)
            classes.append(first)
            _parametrize(group, constructions_by_block)  # from here on all constructions are of the first
    _drop_needless_numbers(classes, class_names)
    for constructions in constructions_by_block.values():
        for construction in constructions:
            construction.name = construction.block.name
    return classes


def _constructions_by_block(blocks: list[CodeBlock]) -> dict[int, list[Construction]]:
    """Return the constructions of each block, by its id; of one that none of these constructs, nothing."""
    constructions_by_block: dict[int, list[Construction]] = {}
    for block in blocks:
        for construction in _constructions_of_blocks(block):
            constructions_by_block.setdefault(id(construction.block), []).append(construction)
    return constructions_by_block


def _next_class_name(base_name: str, last_numbers: Counter[str], class_names: frozenset[str]) -> str:
    """Return the base name with the next number that no other class has, and note that in `last_numbers`."""
    last_numbers[base_name] += 1
    while f"{base_name}{last_numbers[base_name]}" in class_names:
        last_numbers[base_name] += 1
    return f"{base_name}{last_numbers[base_name]}"


def _drop_needless_numbers(classes: list[CodeBlock], class_names: frozenset[str]) -> None:
    """Name a class that is the only one of its base name without a number.

    Args:
        classes: the classes with their names, the model's own last.
        class_names: names of other classes in the same source.
    """
    counts = Counter(block.base_name for block in classes)
    *inner, model = classes
    for block in inner:
        if counts[block.base_name] == 1 and block.base_name not in class_names:
            block.name = block.base_name
    model.name = model.base_name  # `Model`, as `load` has it: no other class has this name, see `TAKEN`


def _constructions_of_blocks(block: CodeBlock) -> list[Construction]:
    """Return the constructions in a class whose classes are in the same source."""
    return [construction for construction in block.constructions() if construction.block is not None]


def _by_height(blocks: list[CodeBlock]) -> list[list[CodeBlock]]:
    """Group blocks by the length of the longest chain of blocks inside them, those without any first.

    Args:
        blocks: all blocks, those that others contain first.
    """
    heights: dict[int, int] = {}
    levels: dict[int, list[CodeBlock]] = {}
    for block in blocks:
        heights_inside = [heights[id(construction.block)] for construction in _constructions_of_blocks(block)]
        height = 1 + max(heights_inside, default=0)
        heights[id(block)] = height
        levels.setdefault(height, []).append(block)
    return [level for _, level in sorted(levels.items())]


def _groups_alike(blocks: list[CodeBlock]) -> Iterable[list[CodeBlock]]:
    """Group blocks that differ only in numbers; the blocks inside them are merged already, and have their names."""
    groups: dict[str, list[CodeBlock]] = {}
    for block in blocks:
        modules = [f"{item.name}={_without_numbers(item.construction)}" for item in block.attributes]
        # Writing it also sets the names of its states, by which outer classes are written.
        text = "\n".join((block.base_name, *modules, Writer(block).text()))
        groups.setdefault(text, []).append(block)
    return groups.values()


def _without_numbers(value: Any) -> str:
    """Return a construction or literal as text, with 0 for each number."""
    if isinstance(value, Construction):
        name = value.block.name if value.block is not None else value.name
        arguments = [f"{place}={_without_numbers(argument)}" for place, argument in value.arguments()]
        return f"{name}({', '.join(arguments)})"
    return "0" if _is_numeric(value) else repr(value)


def _is_numeric(value: Any) -> bool:
    """Return whether a literal is a number or a tuple of numbers."""
    if isinstance(value, tuple):
        return all(map(_is_numeric, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parametrize(group: list[CodeBlock], constructions_by_block: dict[int, list[Construction]]) -> None:
    """Make the numbers that differ within a group parameters of its first block, and arguments of all constructions.

    Args:
        group: blocks that differ in numbers only; the first one is kept and modified.
        constructions_by_block: the constructions of each block, by its id; they are modified.
    """
    first = group[0]
    parameters: dict[str, list[Any]] = {}
    """The value of each parameter in each block, by the parameter's name."""
    for literal in _differing_literals(group):
        name = _parameter_name(literal, parameters)
        parameters[name] = literal.values
        for owner, place in literal.places:
            owner.replace_argument(place, dotted(name))
    first.parameters = {name: _annotation(values) for name, values in parameters.items()}
    # The others are constructed as the first, each with the values of its own block.
    for number, block in enumerate(group):
        for construction in constructions_by_block.get(id(block), ()):
            construction.block = first
            construction.args = [values[number] for values in parameters.values()]
            construction.arg_names = tuple(parameters)


@define(eq=False)
class _Literal:
    """A literal that differs between blocks of a group.

    Attributes:
        values: its value in each block.
        places: where it is in the first block: a construction, and the position or keyword of its argument.
    """

    values: list[Any]
    places: list[tuple[Construction, int | str]]


def _differing_literals(group: list[CodeBlock]) -> list[_Literal]:
    """Return the literals that differ between blocks that differ in numbers only, and so have equally many literals.

    Literals that are equal to each other in every block are one, with several places.
    """
    literals_of_blocks = [
        [literal for item in block.attributes for literal in item.construction.literals()] for block in group
    ]
    # By texts of the values, as 1, 1.0 and True are equal, but not the same.
    differing: dict[tuple[str, ...], _Literal] = {}
    for occurrences in zip(*literals_of_blocks):
        values = [value for _, _, value in occurrences]
        texts = tuple(map(repr, values))
        if len(set(texts)) == 1:  # the same in all blocks
            continue
        owner, place, _ = occurrences[0]  # in the first block
        differing.setdefault(texts, _Literal(values, [])).places.append((owner, place))
    return list(differing.values())


def _parameter_name(literal: _Literal, taken_names: Collection[str]) -> str:
    """Return a name for the parameter that replaces a literal, after the first argument that it is: `channels2`."""
    # Empty where the class does not name its arguments.
    argument_names = [owner.argument_name(place) for owner, place in literal.places]
    # The first two places are in one layer if it keeps the number of channels or features.
    name = _NAMES_OF_EQUAL_SIZES.get(frozenset(argument_names[:2]))
    if name is None:
        name = next(filter(None, argument_names), "size")
    number = 2
    while name in taken_names:
        name = f"{name.rstrip('0123456789')}{number}"
        number += 1
    return name


def _annotation(values: list[Any]) -> str:
    """Return the type of a parameter with these values."""
    kinds = {"tuple[int, ...]" if isinstance(value, tuple) else type(value).__name__ for value in values}
    return " | ".join(sorted(kinds))
