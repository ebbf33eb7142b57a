"""The names of the states of recurrent cells, after which variables are named: `h` and `c` of an LSTM, `h2` of `lstm2`.
A block is one class of a page; its steps apply modules and operations to the results of earlier steps. A step has
`result_names` if its results are states: its module is a cell, or of another class of the page with cells in it.

An empty name stands for a value that is no state.
"""

from __future__ import annotations

from .steps import CodeBlock, ElementPath, Ref, Step, Value


def name_results_of_calls(block: CodeBlock) -> None:
    """Set `result_names` of the steps that call other classes of the page, where each result can have a variable.

    The classes that are called are written, so that the names of their results are known.
    """
    used_elements = block.used_elements()
    for number, step in enumerate(block.steps):
        if step is None or step.suggested_name:
            continue
        called_class = _class_called_by(step)
        if called_class is None or not any(called_class.result_names):
            continue
        if _can_have_variables(used_elements.get(number, set()), len(called_class.result_names)):
            step.result_names = called_class.result_names


def _can_have_variables(used_elements: set[ElementPath], count: int) -> bool:
    """Return whether the results of a step can be assigned to `count` variables.

    A single result has to be used as it is; several only one by one, not as the list that the class returns, and
    counted from the front: no variable would be found for the element -1.

    Args:
        used_elements: what is used of the result: elements, as paths of one index, or the whole, the empty path.
        count: the number of results.
    """
    is_used_whole = () in used_elements
    if count == 1:
        return is_used_whole
    # A damaged file may use an element that is none of them.
    return not is_used_whole and all(index in range(count) for (index,) in used_elements)


def input_state_names(block: CodeBlock) -> dict[ElementPath, str]:
    """Return the names of the inputs of a class that are states of cells, by their paths; the first cell's, of several.

    The classes that it calls are written, so that the names of their inputs are known.
    """
    names: dict[ElementPath, str] = {}
    for step in block.steps:
        if step is None or not step.result_names:
            continue
        # A module takes a list as one operand, an expression its elements.
        first_operand = step.operands[0]
        inputs = first_operand if isinstance(first_operand, list) else step.operands
        called_class = _class_called_by(step)
        if called_class is not None:
            state_names = [called_class.state_names.get((index,), "") for index in range(len(inputs))]
        else:
            # The input of a cell is no state. After it come the states, of which the results are the next ones.
            state_names = ["", *step.result_names]
        for state_name, value in zip(state_names, inputs):
            if state_name and isinstance(value, Ref) and value.is_in_input:
                names.setdefault(value.path, numbered_state(step, state_name))
    return names


def result_state_names(block: CodeBlock) -> tuple[str, ...]:
    """Return the names of the results of a class that are states of cells.

    There is one for each element of a returned list, and one for any other result. For a list of one there is none: it
    would be taken for that of a result that is no list.
    """
    result = block.result
    if not isinstance(result, list):
        return (_name_as_state(block, result),)
    if len(result) == 1:
        return ()
    return tuple(_name_as_state(block, value) for value in result)


def _name_as_state(block: CodeBlock, value: Value) -> str:
    """Return the name of a value that a class returns, if it is a state of a cell; otherwise an empty one."""
    if not isinstance(value, Ref):
        return ""
    step = block.steps[value.step]
    if step is None or not step.result_names:
        return ""
    if len(step.result_names) == 1:
        # The state is the whole result of the step; an element of it has no name.
        (state_name,) = step.result_names
        return "" if value.path else numbered_state(step, state_name)
    # The result of the step is a list with a state in each place.
    if len(value.path) != 1:
        return ""
    (index,) = value.path
    return numbered_state(step, step.result_names[int(index)])


def numbered_state(step: Step, state_name: str) -> str:
    """Return the name of a state with the number of the step's module, if that has one: `h2` of `lstm2`.

    A name that ends with a number, as that of a state of another class may, stays as it is.
    """
    if not state_name or state_name[-1].isdigit():
        return state_name
    module_name = step.attribute.name if step.attribute is not None else ""
    number = module_name[len(module_name.rstrip("0123456789")) :]
    return state_name + number


def _class_called_by(step: Step) -> CodeBlock | None:
    """Return the class of the page that a step calls with a list of values; `None` if it does anything else."""
    module = step.called_module
    if module is None or len(module.constructions) != 1:
        return None
    if len(step.operands) != 1 or not isinstance(step.operands[0], list):
        return None
    block: CodeBlock | None = module.construction.block
    return block
