"""The steps of a class are tidied before they become statements: chains of modules become one Sequential, others become
functions, and what is left gets its names. A step applies a module or an operation to the results of earlier steps;
step 0 is the input of the class. A block is one class of a page with its steps and attributes, each of which holds a
module.
"""

from __future__ import annotations

from collections import Counter

from ..nn.graphs import is_free_name
from .steps import GATES, PARTS, Attribute, CodeBlock, Ref, Step, refs


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
    if step is None or step.attribute is None:
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
    """Make a step that of a whole chain: of the modules of the step whose result it takes, and of its own.

    It is the later step that is changed, so that the steps that use its result need no change.

    Args:
        chain: the earlier step, whose result nothing else uses; the caller removes it.
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


class SharedMemory:
    """Knows which steps write to memory that anything else uses.

    Attributes:
        uses: number of uses of each step's result, by the number of the step; 0 for one without use. That the class
            returns it is a use.

    Args:
        block: the class, whose steps stay as they are while this is in use; they may be replaced by expressions that
            share less memory.
        is_input_shared: whether the memory of the input counts as used by something else, whatever uses it here.
    """

    def __init__(self, block: CodeBlock, is_input_shared: bool = False) -> None:
        """Count the uses; what is shared is found when it is asked for, once for each step."""
        self._block = block
        self.uses = block.uses()
        self._shared: list[bool] = [True] if is_input_shared else []
        """Of each step so far, whether something else uses the memory of its result; step 0 is the input."""

    def is_changed_by(self, step: Step) -> bool:
        """Return whether a step works in place, and other steps use the memory of any of its operands, too."""
        return step.inplace and any(map(self._has_several_users, refs(step.operands)))

    def is_write_seen(self, step: Step) -> bool:
        """Return whether other steps, also outside of the class, would see a step write into its first operand."""
        first = step.operands[0]
        # A layer on a list writes into the first element.
        while isinstance(first, list):
            if not first:  # nothing is known of where it would write
                return True
            first = first[0]
        return self._has_several_users(first)

    def _has_several_users(self, ref: Ref) -> bool:
        """Return whether anything but one step may use the memory of a value; of an element, its list does."""
        return bool(ref.path) or self._is_result_shared(ref.step)

    def _is_result_shared(self, number: int) -> bool:
        """Return whether anything but one step uses the memory of a step's result, which may be its operands'."""
        # In order, as the operands of a step come before it.
        for earlier in range(len(self._shared), number + 1):
            step = self._block.steps[earlier]
            operands = refs(step.operands) if step and step.shares_memory else ()
            is_memory_of_shared = any(self._shared[ref.step] for ref in operands)
            self._shared.append(self.uses[earlier] > 1 or is_memory_of_shared)
        return self._shared[number]


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
