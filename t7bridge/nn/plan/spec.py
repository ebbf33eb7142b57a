"""A Lua model as a plan of PyTorch modules: data that a live module, or the source of one, is made from.

May import graph. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field

from ...data import define
from ...graph.lua import TorchObject
from ..mapping import Literal

SEQUENTIAL = "torch.nn.Sequential"
"""The one class of PyTorch that is known by what it does: its children take each other's outputs."""
Link = tuple[int, tuple[int, ...]]
"""Input of a node: the number of another node, and the elements of its output, one inside the other, from 0."""


@define(frozen=True)
class GraphNode:
    """One node of a graph.

    Attributes:
        module: the name of the child it applies; `None` for a node that passes its input through.
        takes: where its inputs come from, in order; several are given to the module as one list.
        name: what its annotation calls it.
    """

    module: str | None
    takes: tuple[Link, ...]
    name: str = ""


@define(frozen=True)
class GraphSpec:
    """A directed graph of modules, in the order of execution. Node 0 is the input of the whole.

    Attributes:
        nodes: nodes 1 and up.
        gives: what the graph returns.
        gives_list: whether it returns a list, as it does for several outputs.
    """

    nodes: tuple[GraphNode, ...]
    gives: tuple[Link, ...]
    gives_list: bool


@define(eq=False)
class ModuleSpec:
    """One module to be built. A module that Lua has at several places is one spec at several places.

    Attributes:
        target: the class to call: of `torch.nn`, or of the runtime's layers.
        args: positional arguments, literals; none where there are children.
        kwargs: arguments by keyword, literals.
        children: the modules inside, by their names in state dicts. Those named 0, 1, … come first as
            positional arguments of the constructor, others by keyword.
        refers: modules elsewhere in the model that the constructor takes by keyword without containing them.
        graph: the graph that the children form, for a graph.
        plain: the class of `torch.nn` that does as well where every input is a tensor with a batch dimension.
        class_name: the class in Lua.
        obj: the object in Lua.
        path: its path there, for messages.
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
