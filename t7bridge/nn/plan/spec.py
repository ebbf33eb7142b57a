"""A Lua model as a plan of PyTorch modules: data from which a live module, or its source, is made.

May import graph. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field

from ...data import define
from ...graph.lua import TorchObject
from ..mapping import Literal

SEQUENTIAL = "torch.nn.Sequential"
"""The only class of PyTorch known by its behaviour: its children are called in sequence."""
Link = tuple[int, tuple[int, ...]]
"""Input of a node: the number of another node, and the elements of its output, one inside the other, from 0."""


@define(frozen=True)
class GraphNode:
    """One node of a graph.

    Attributes:
        module: the name of the child that it applies; `None` for a node that passes its input through.
        takes: the sources of its inputs, in order; several are passed to the module as one list.
        name: its annotation.
    """

    module: str | None
    takes: tuple[Link, ...]
    name: str = ""


@define(frozen=True)
class GraphSpec:
    """A directed graph of modules, in the order of execution. Node 0 is the input of the whole.

    Attributes:
        nodes: nodes 1 and up.
        outputs: the outputs of the graph, as links.
        returns_list: whether it returns a list, as it does for several outputs.
    """

    nodes: tuple[GraphNode, ...]
    outputs: tuple[Link, ...]
    returns_list: bool


@define(eq=False)
class ModuleSpec:
    """One module to be built. A module shared in Lua is one spec at several places.

    Attributes:
        target: the class to call: of `torch.nn`, or of the runtime's layers.
        args: positional arguments, literals; none if there are children.
        kwargs: arguments by keyword, literals.
        children: the modules inside, by their names in state dicts. Those named 0, 1, … come first as
            positional arguments of the constructor, others by keyword.
        refers: modules elsewhere in the model that the constructor receives by keyword without containing them.
        graph: the graph that the children form, for a graph.
        plain: an equivalent class of `torch.nn` if every input is a tensor with a batch dimension.
        class_name: the class in Lua.
        obj: the object in Lua.
        path: the path there, for messages.
    """

    target: str
    args: tuple[Literal, ...] = ()
    kwargs: Mapping[str, Literal] = field(factory=dict)
    children: dict[str, ModuleSpec] = field(factory=dict)
    refers: dict[str, ModuleSpec] = field(factory=dict)
    graph: GraphSpec | None = None
    plain: str = ""
    class_name: str = ""
    obj: TorchObject | None = field(default=None, repr=False)
    path: str = ""


@define(eq=False)
class Plan:
    """A whole model to be built.

    Attributes:
        root: its module.
        parameters: the keys of its state dict that are learned.
    """

    root: ModuleSpec
    parameters: frozenset[str] = frozenset()
