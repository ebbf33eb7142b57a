"""Facts about the classes that Lua's layers become, besides their arguments: lists, memory, shapes, and their source.

An entry in `layers/` declares them by class; the planner and the source generator look them up here and know no layer
by name. May import errors. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..data import define
from ..errors import ModelError
from .flows import Flow
from .mapping import LAYERS
from .output_shapes import Rule
from .torch_nn import Refused, Shape, output_of, tensors_like


@define(frozen=True)
class Traits:
    """Facts about one class of modules.

    A layer changes its input in place if it has an argument `inplace` that is true.

    Attributes:
        takes_list: the input is a list.
        returns_list: the output is a list.
        flow: how the structure of the output follows from that of the input, see `flows`; without it the output is
            a tensor, or a list of anything.
        may_take_list: the input is a tensor, or a list whose second element is used for its size.
        shares_memory: the output may share memory with the input.
        copies: the output has memory of its own, though the expression named by `written` is a view.
        copying: the class with the same arguments whose output always has memory of its own, like Lua's layer.
        repeats: several elements of the output are the same memory.
        loses_batch: a single example may be returned without the batch dimension that it had.
        keeps_batch_if: the argument that prevents this if it is true.
        plain_examples: the positional arguments with which `Call.plain` accepts single examples too.
        plain_rank: minimum dimensions of one example for `Call.plain` to be used; below, it would refuse examples.
        written: how generated source expresses it without the class: the name of a writer in `codegen/idioms.py` or
            `codegen/lists.py`, and arguments for it.
        block: the base name of its class if it becomes a class of the source.
        shapes: the shapes of its tensors by name, as a function of its arguments, if known; it raises `Refused` where
            the constructor would raise. A module among the arguments has `tensors`, its own shapes.
        like: the class of torch.nn whose tensors and output shape it has, by the same arguments, as far as it has them.
        output: the shape of its output, if known otherwise: a rule of `output_shapes`.
        remembering: the class with the same arguments that remembers what a module referring to it needs.
        is_identity: it returns its input and does nothing else.
        is_graph: its arguments are the nodes of the graph of its children.
    """

    takes_list: bool = False
    returns_list: bool = False
    flow: Flow | None = None
    may_take_list: bool = False
    shares_memory: bool = False
    copies: bool = False
    copying: str = ""
    repeats: bool = False
    loses_batch: bool = False
    keeps_batch_if: str = ""
    plain_examples: tuple[Any, ...] | None = None
    plain_rank: int = 0
    written: tuple[Any, ...] = ()
    block: str = ""
    shapes: Callable[..., Mapping[str, Shape]] | None = None
    like: str = ""
    output: Rule | None = None
    remembering: str = ""
    is_identity: bool = False
    is_graph: bool = False


_NONE = Traits()
_TRAITS: dict[str, Traits] = {}


def traits_of(target: str) -> Traits:
    """Return the facts about a class by its dotted name; all false if no entry declares any."""
    return _TRAITS.get(target.removeprefix(LAYERS), _NONE)


def like_of(target: str) -> str:
    """Return the class of torch.nn that a class is, or is like; its own name otherwise."""
    return traits_of(target).like or target.removeprefix("torch.nn.")


def tensor_shapes(target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the shapes of the parameters and buffers of a module constructed with these arguments, by name.

    Args:
        target: its class, by the dotted name.
        args: positional arguments.
        kwargs: arguments by keyword.

    Returns:
        Shapes by name; none if they are unknown.
    """
    facts = traits_of(target)
    if facts.shapes is None:
        return tensors_like(like_of(target), args, kwargs)
    try:
        return dict(facts.shapes(*args, **kwargs))
    except (ArithmeticError, LookupError, Refused, TypeError, ValueError):
        return {}


def output_rule(target: str) -> Rule | None:
    """Return the shape of a class's output as a function of its input's, by the dotted name; `None` if unknown."""
    facts = traits_of(target)
    return facts.output or output_of(f"torch.nn.{facts.like}" if facts.like else target)


def add_traits(traits: Mapping[str, Traits]) -> None:
    """Declare facts about classes: those of the runtime by family and name, `shape.View`, others by dotted name.

    Raises:
        ModelError: another entry already declares traits of the same class.
    """
    for target, facts in traits.items():
        if _TRAITS.get(target, facts) != facts:
            raise ModelError(f"the traits of {target} are already declared", hint="One entry declares them.")
    _TRAITS.update(traits)


def remove_traits(traits: Mapping[str, Traits]) -> None:
    """Remove a declaration."""
    for target in traits:
        _TRAITS.pop(target, None)


def declared_traits() -> dict[str, Traits]:
    """Return all facts by class, sorted: for tests."""
    return dict(sorted(_TRAITS.items()))
