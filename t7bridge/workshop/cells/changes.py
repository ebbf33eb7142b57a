"""Tells whether layers of a model change values in place after a node of a graph. The nodes of a graph, and the modules
of any other container, have numbers from 1 in the order in which they run. A link is a number and a path: it leads to
the output of a node or module, or to the input of the container, whose number is 0, and by the path to an element of
it. A holder is a container around another one.

Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...data import define
from ...nn.mapping import SEQUENTIAL, Link, ModuleSpec
from ...nn.memory import MemoryEffects
from .values import graph_of, upstream

_INPUT: Link = (0, ())
"""The whole input of a container."""


@define(frozen=True)
class _Place:
    """Where some values are, in a container and at a time.

    Attributes:
        container: the container.
        number: that of the node or module after which it counts what runs.
        links: to the values in the container. For which modules of a container that is no graph they are the input is
            not followed.
    """

    container: ModuleSpec
    number: int
    links: frozenset[Link]


class Changes:
    """Tells whether modules of a model change values in place. A place is where some values are, in a container: links
    to them, and the number of the node or module after which it counts what runs. The memory of values is the links to
    all values that may be views of it, theirs among them.

    Args:
        specs: all modules of the model.
    """

    def __init__(self, specs: Iterable[ModuleSpec]) -> None:
        self._effects = MemoryEffects()
        self._holders: dict[ModuleSpec, list[tuple[ModuleSpec, str]]] = {}
        """The containers of each module, with its name in them."""
        for spec in specs:
            for name, child in spec.children.items():
                self._holders.setdefault(child, []).append((spec, name))

    def between(self, spec: ModuleSpec, first: int, last: int) -> bool:
        """Return whether a node of a graph between two others changes anything.

        Args:
            spec: the graph.
            first: the number of the node before.
            last: that of the node behind.
        """
        nodes = graph_of(spec).nodes[first : last - 1]  # those with numbers first + 1 to last - 1
        return any(self._effects.of_node(node, spec.children).changes for node in nodes)

    def after(self, spec: ModuleSpec, number: int, links: Iterable[Link]) -> bool:
        """Return whether anything that runs after a node of a graph may change some values.

        What the containers around the graph run afterwards counts too, as far as the values may be the graph's input or
        in its output.

        Args:
            spec: the graph.
            number: that of the node.
            links: to the values, from nodes of the graph or its input.
        """
        places = [_Place(spec, number, frozenset(links))]
        # All links with which a node was reached are followed together: a module may be on any number of paths.
        links_of: dict[tuple[ModuleSpec, int], frozenset[Link]] = {}
        while places:
            place = places.pop()
            reached_before = links_of.get((place.container, place.number), frozenset())
            if place.links <= reached_before:
                continue
            place = _Place(place.container, place.number, place.links | reached_before)
            links_of[place.container, place.number] = place.links
            if self._may_be_changed(place):
                return True
            places += self._places_outside(place)
        return False

    def _may_be_changed(self, place: _Place) -> bool:
        """Return whether what a container runs after a place may change the values there."""
        container = place.container
        if container.graph is None:
            # Which of the modules get the values is not followed: any change counts.
            later = [*container.children.values()][place.number :]
            return any(self._effects.of(child).changes for child in later)
        memory = self._memory_of(container, place.links)
        for node in container.graph.nodes[place.number :]:
            changes_input = self._effects.of_node(node, container.children).changes
            if changes_input and _have_common_part(memory, self._memory_of(container, node.takes)):
                return True
        return False

    def _places_outside(self, place: _Place) -> Iterator[_Place]:
        """Yield where the values of a place may be in the holders of its container; nothing if they stay inside.

        That is in what the container took, if they are in its input, and in what it returned, if they are in that.
        """
        container = place.container
        if container.graph is None:
            may_be_in_input = True  # which modules take it is not followed
            paths_in_output = _paths_in_output(place)
        else:
            memory = self._memory_of(container, place.links)
            may_be_in_input = any(number == 0 for number, _ in memory)
            paths_in_output = self._paths_in_output_of_graph(container, memory)
        if not may_be_in_input and not paths_in_output:
            return
        for holder, name in self._holders.get(container, ()):
            for number, taken in _calls(holder, name):
                links = [(number, path) for path in paths_in_output]
                if may_be_in_input:
                    links += taken
                yield _Place(holder, number, frozenset(links))

    def _paths_in_output_of_graph(self, spec: ModuleSpec, memory: set[Link]) -> list[tuple[int, ...]]:
        """Return the paths to those elements of a graph's output that may be in the memory of some values.

        Args:
            spec: the graph.
            memory: links to the values, see `_memory_of`.

        Returns:
            Of a graph that returns no list, an empty path for the output itself.
        """
        graph = graph_of(spec)
        paths: list[tuple[int, ...]] = []
        for index, output in enumerate(graph.outputs):
            if _have_common_part(memory, self._memory_of(spec, [output])):
                paths.append((index,) if graph.returns_list else ())
        return paths

    def _memory_of(self, spec: ModuleSpec, links: Iterable[Link]) -> set[Link]:
        """Return links of a graph, and those to all values whose memory theirs may be."""
        nodes = graph_of(spec).nodes

        def shared_inputs(number: int) -> tuple[Link, ...]:
            """Return what a node takes if its output may be in that memory, else nothing."""
            node = nodes[number - 1]
            return node.takes if self._effects.of_node(node, spec.children).shares else ()

        return upstream(links, shared_inputs)


def _calls(holder: ModuleSpec, name: str) -> Iterator[tuple[int, tuple[Link, ...]]]:
    """Yield the number of each node or module of a container that calls a module, and what it takes.

    Args:
        holder: the container.
        name: that of the module in it.
    """
    if holder.graph is None:
        # What it takes is not followed: it may be the input of the container.
        yield [*holder.children].index(name) + 1, (_INPUT,)
        return
    for number, node in enumerate(holder.graph.nodes, 1):
        if node.module == name:
            yield number, node.takes


def _paths_in_output(place: _Place) -> list[tuple[int, ...]]:
    """Return the paths to those elements of a container's output that may be the values of a place in it.

    Args:
        place: the place. Its container is no graph.
    """
    returned = [path for number, path in place.links if number == place.number]
    is_last = place.number == len(place.container.children)
    # The output of a Sequential is that of its last module. Of what other containers and later modules do with the
    # values nothing is known: they may be anywhere in the output.
    if place.container.target == SEQUENTIAL and (is_last or not returned):
        return returned
    return [()]


def _have_common_part(links: Iterable[Link], others: Iterable[Link]) -> bool:
    """Return whether a value of the first links is one of the second, or a part of one, or has one as a part."""
    for number, path in links:
        for other_number, other_path in others:
            # The shorter path is the beginning of the longer one.
            if number == other_number and all(index == other for index, other in zip(path, other_path)):
                return True
    return False
