"""Makes each recognized cell of a model, the nodes of a graph that compute an LSTM or the like, a single module. Nodes
have numbers from 1, each after those whose outputs it takes. A link is a number and a path: it leads to the output of a
node, or to the input of the graph, whose number is 0, and by the path to an element of it.

The nodes of each cell become one node, and their tensors those of one module. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve

from ...data import define
from ...graph.tensor import place_of
from ...nn.layouts import overlapping
from ...nn.mapping import SEQUENTIAL, GraphNode, GraphSpec, Link, ModuleSpec, Plan, specs_in, way_to
from ...nn.memory import MemoryEffects
from ...nn.pieces import CLASS_IN_TORCH_OF_CELL, Lifted, Piece, content_of_piece, replace_tensors
from ...nn.plan import graph_arguments
from ...nn.state_dict import StateDict
from ...text import and_elsewhere
from .search import GraphCell, Search
from .values import graph_of, upstream

_Obstacles = dict[int, str]
"""Why cells stay as they are, by their ids, in words."""
_Place = tuple[ModuleSpec, int, tuple[Link, ...]]
"""Where some values are. In a graph: the graph, the number of the node after which it counts what runs, and links to
the values. In another container: that, 0, and links to its own output, as node 0, as far as they may be in it.
"""
_Tensors = tuple[Any, ...]
"""The tensors of a graph, as `place_of` returns them: equal for graphs with the same tensors."""


def lifted(plan: Plan, state: StateDict, only_torch: bool = False) -> Lifted:
    """Return a model whose cells are single modules, with notes for the user about these, and about cells that stay.

    Args:
        plan: the plan; its graphs are modified.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks stay as they are.
    """
    result = Lifted(plan, state)
    accepted, notes = _accepted(plan.root, state, only_torch)
    for message, paths in notes.items():
        result.note(paths[0], f"{message}{and_elsewhere(len(paths) - 1)}", len(paths))
    if accepted:
        # In the order of their first outputs, by which they are named and numbered.
        _rewrite(result, sorted(accepted, key=lambda cell: cell.outputs))
    return result


def cells_in(root: ModuleSpec, state: StateDict) -> list[tuple[GraphCell, set[int]]]:
    """Return the cells of a model that `lifted` makes single modules, each with the nodes that it consists of.

    Nothing is modified.

    Args:
        root: the plan of the model.
        state: its state dict.
    """
    accepted, _ = _accepted(root, state, only_torch=False)
    remaining: dict[int, set[int]] = {}
    """The nodes of each graph that are in no cell, by its id."""
    for cell in accepted:
        graph = cell.graph
        if id(graph) not in remaining:
            remaining[id(graph)] = _remaining(graph, [other for other in accepted if other.graph is graph])
    return [(cell, _nodes_of(cell) - remaining[id(cell.graph)]) for cell in accepted]


def _nodes_of(cell: GraphCell) -> set[int]:
    """Return the numbers of the nodes that compute a cell, from its inputs, which do not count, to its outputs."""
    nodes = graph_of(cell.graph).nodes

    def takes(number: int) -> list[Link]:
        """Return the links of a node that do not lead to the cell's inputs."""
        return [link for link in nodes[number - 1].takes if link not in cell.inputs]

    outputs: list[Link] = [(number, ()) for number in cell.outputs]
    return {number for number, _ in upstream(outputs, takes)} - {0}  # without the input of the graph


def _accepted(root: ModuleSpec, state: StateDict, only_torch: bool) -> tuple[list[GraphCell], dict[str, list[str]]]:
    """Return the cells that become single modules, and the paths of the graphs in which others stay, by the reason.

    Args:
        root: the plan of the model.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks are left out.
    """
    cells, notes = _cells_and_notes(root, state, only_torch)
    groups = _groups(cells, state)
    obstacles = {**_obstacles_by_tensors(cells, root, state), **_obstacles_by_changes(cells, root)}
    # After all others: a cell that stays keeps those from being modules with which it shares layers.
    _add_obstacles_between_cells(groups, obstacles)
    for cell in cells:
        if id(cell) in obstacles:
            message = f"{cell.kind.name} stays as it is: {obstacles[id(cell)]}"
            notes.setdefault(message, []).append(cell.graph.path)
    return [cell for group in groups for cell in group if id(cell) not in obstacles], notes


def _cells_and_notes(
    root: ModuleSpec, state: StateDict, only_torch: bool
) -> tuple[list[GraphCell], dict[str, list[str]]]:
    """Return the cells of all graphs of a model, each graph searched by itself, whether they may become modules or not.

    Args:
        root: the plan of the model.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks are left out.

    Returns:
        The cells; and the paths of graphs, by the obstacle to cells there, which is the same for each step of an
        unrolled model.
    """
    graphs = _graphs(root)
    carried_over = _carried_over(graphs, state)
    cells: list[GraphCell] = []
    notes: dict[str, list[str]] = {}
    for spec, prefix in graphs.values():
        search = Search(spec, prefix, state, frozenset(carried_over[id(spec)])).run()
        cells += [cell for cell in search.cells if not only_torch or cell.module.target in CLASS_IN_TORCH_OF_CELL]
        for message in search.obstacles:
            notes.setdefault(message, []).append(spec.path)
    return cells, notes


def _graphs(root: ModuleSpec) -> dict[int, tuple[ModuleSpec, str]]:
    """Return the graphs of a model, by id, with the prefix of each at its first place."""
    graphs: dict[int, tuple[ModuleSpec, str]] = {}
    visited: set[int] = set()
    stack = [(root, "")]
    while stack:
        spec, prefix = stack.pop()
        if id(spec) in visited:
            continue
        visited.add(id(spec))
        if spec.graph is not None:
            graphs[id(spec)] = spec, prefix
        stack += [(child, f"{prefix}{name}.") for name, child in reversed(spec.children.items())]
    return graphs


def _carried_over(graphs: Mapping[int, tuple[ModuleSpec, str]], state: StateDict) -> dict[int, set[tuple[int, int]]]:
    """Return the states that the steps of unrolled models pass on: of each graph, pairs of an input and an output.

    The steps of one recurrent layer are graphs with the same tensors, which are nodes of the graph around them. Where
    such a node takes an output of another, the place of the input and that of the output are a pair.

    Args:
        graphs: the graphs of a model, as `_graphs` returns them.
        state: the state dict.

    Returns:
        By the id of the graph, the same for all of the same tensors. Places count from 0.
    """
    views = {key: place_of(tensor) for key, tensor in state.items()}
    tensors_of: dict[int, _Tensors] = {}
    for graph, (_, prefix) in graphs.items():
        tensors_of[graph] = tuple(view for key, view in views.items() if key.startswith(prefix))
    pairs: dict[_Tensors, set[tuple[int, int]]] = {tensors: set() for tensors in tensors_of.values()}
    for spec, _ in graphs.values():
        for tensors, input_and_output in _passed_on(spec, tensors_of):
            pairs[tensors].add(input_and_output)
    return {graph: pairs[tensors] for graph, tensors in tensors_of.items()}


def _passed_on(spec: ModuleSpec, tensors_of: Mapping[int, _Tensors]) -> Iterator[tuple[_Tensors, tuple[int, int]]]:
    """Yield where nodes of a graph that are steps of one layer take outputs of one another: graphs of the same tensors.

    Args:
        spec: the graph.
        tensors_of: the tensors of each graph of the model, by its id.

    Yields:
        The tensors of both steps, and the place of the input and that of the output, from 0.
    """
    tensors_of_nodes: dict[int, _Tensors] = {}
    """The tensors of each node before that is a graph with tensors, by its number."""
    for number, node in enumerate(graph_of(spec).nodes, 1):
        tensors = tensors_of.get(id(spec.children[node.module]), ()) if node.module else ()
        if not tensors:
            continue
        tensors_of_nodes[number] = tensors
        for place, (source, path) in enumerate(node.takes):
            if tensors_of_nodes.get(source) == tensors:
                output = path[0] if path else 0  # without a path it is the only output
                yield tensors, (place, output)


# Obstacles


def _identity(cell: GraphCell, state: StateDict) -> Any:
    """Return what is equal for cells of one kind whose tensors are in the same memory.

    That is the class with its options, and for each piece the memory of its tensor, and the piece without its key.
    """
    kind = cell.module.target, *cell.module.kwargs.items()
    return kind, tuple(content_of_piece(piece, state[cell.prefix + piece.key]) for piece in cell.pieces)


def _groups(cells: list[GraphCell], state: StateDict) -> list[list[GraphCell]]:
    """Return the cells in groups that have all tensors in common; those of a group get the module of its first one.

    They are the same cell in several steps of an unrolled layer.
    """
    groups: dict[Any, list[GraphCell]] = {}
    for cell in cells:
        group = groups.setdefault(_identity(cell, state), [])
        group.append(cell)
        cell.module = group[0].module
    return list(groups.values())


def _obstacles_by_tensors(cells: list[GraphCell], root: ModuleSpec, state: StateDict) -> _Obstacles:
    """Return the obstacles to cells whose tensors share memory with others than those of equal cells (`_identity`).

    Args:
        cells: all cells of the model.
        root: the plan of the model.
        state: its state dict.
    """
    if not cells:
        return {}  # the memory of all tensors need not be looked at
    obstacles: _Obstacles = {}
    users: dict[tuple[int, str], Any] = {}
    """The identity of the cell that has a tensor, and the tensor's number in it, by the graph and the key there."""
    for cell in cells:
        identity = _identity(cell, state)
        # Equal cells have the same tensors in the same order. A cell with some of another's stays as it is, and so does
        # the other, whose layers are then used outside of it.
        for number, key in enumerate(dict.fromkeys(piece.key for piece in cell.pieces)):
            user = identity, number
            if users.setdefault((id(cell.graph), key), user) != user:
                obstacles[id(cell)] = "another cell has the same tensors"
    shared = _shared_memory(users, root, state)
    for cell in cells:
        if any(place_of(state[cell.prefix + piece.key]) in shared for piece in cell.pieces):
            obstacles[id(cell)] = "its tensors are also those of something else"
    return obstacles


def _shared_memory(users: Mapping[tuple[int, str], Any], root: ModuleSpec, state: StateDict) -> set[Any]:
    """Return the memory of tensors that overlap others, unless they are the same tensor of the same user.

    Args:
        users: the cell and number of a tensor, equal for equal cells, by the graph and the key there.
        root: the model.
        state: its state dict.

    Returns:
        Views of memory, as `place_of` returns them.
    """
    ranges: dict[int, list[tuple[int, int, Any, Any]]] = {}
    """Begin, end, memory and user of each tensor, by the id of its storage."""
    for key, tensor in state.items():
        if tensor.storage is None or not tensor.numel:
            continue
        # A key leads through several modules; one of them may be a graph with a cell that has the tensor.
        places = [(id(spec), rest) for spec, _, rest in way_to(root, key)]
        user = next((users[place] for place in places if place in users), None)
        begin, end = tensor.reach()
        ranges.setdefault(id(tensor.storage), []).append((begin, end, place_of(tensor), user))
    shared: set[Any] = set()
    for ranges_of_storage in ranges.values():
        for overlap in overlapping(ranges_of_storage):
            if len({(memory, user) for _, _, memory, user in overlap}) > 1:
                shared.update(memory for _, _, memory, _ in overlap)
    return shared


def _add_obstacles_between_cells(groups: list[list[GraphCell]], obstacles: _Obstacles) -> None:
    """Add the obstacles to cells whose layers are used outside of them, and to all cells that share a module with one.

    The layers of a cell that stays as it is are outside of all others, so this repeats until nothing is added.

    Args:
        groups: the cells that become one module, of each module.
        obstacles: those known so far; more are added.
    """
    cells_of_graphs: dict[int, list[GraphCell]] = {}
    for group in groups:
        for cell in group:
            cells_of_graphs.setdefault(id(cell.graph), []).append(cell)
    while True:
        for group in groups:
            reasons = [obstacles[id(cell)] for cell in group if id(cell) in obstacles]
            if reasons:
                obstacles.update((id(cell), reasons[0]) for cell in group)
        new_obstacles: _Obstacles = {}
        for cells in cells_of_graphs.values():
            accepted = [cell for cell in cells if id(cell) not in obstacles]
            new_obstacles |= _layers_used_outside(cells[0].graph, accepted)
        if not new_obstacles:
            return
        obstacles.update(new_obstacles)


def _layers_used_outside(spec: ModuleSpec, cells: list[GraphCell]) -> _Obstacles:
    """Return the obstacles to cells of a graph whose layers nodes outside of all cells use, too."""
    obstacles: _Obstacles = {}
    names_outside = _names(spec, _remaining(spec, cells))
    for cell in cells:
        for layer in _layers_of(cell):
            if layer in names_outside:
                obstacles[id(cell)] = f"its layer {layer} is also used outside of it"
                break
    return obstacles


def _layers_of(cell: GraphCell) -> list[str]:
    """Return the names of the modules of a graph whose tensors a cell has, each once."""
    layers = [piece.key.partition(".")[0] for piece in cell.pieces]  # of `linear.weight`, `linear`
    return list(dict.fromkeys(layers))


def _obstacles_by_changes(cells: list[GraphCell], root: ModuleSpec) -> _Obstacles:
    """Return the obstacles to cells whose values a layer changes in place.

    For gradients, Lua's layers use what is in these values then, changed or not. A cell of PyTorch keeps other values
    than they do, so that its gradients would be others.
    """
    specs = [*specs_in(root)]
    if not any(spec.kwargs.get("inplace") for spec in specs):
        return {}
    obstacles: _Obstacles = {}
    changes = _Changes(specs)
    for cell in cells:
        numbers_in_cell = set(range(1, len(graph_of(cell.graph).nodes) + 1)) - _remaining(cell.graph, [cell])
        first = min(numbers_in_cell)
        last = max(numbers_in_cell)
        # The nodes of the cell change nothing in place, as `Values` knows nothing of a layer that does. But others may
        # run after its first node and before its last.
        if changes.between(cell.graph, first, last) or changes.after(cell.graph, last, cell.inputs):
            obstacles[id(cell)] = "a layer changes one of its values in place"
    return obstacles


class _Changes:
    """Tells whether modules of a model change values in place.

    Args:
        specs: all modules of the model.
    """

    def __init__(self, specs: Iterable[ModuleSpec]) -> None:
        self._effects = MemoryEffects()
        self._holders: dict[int, list[tuple[ModuleSpec, str]]] = {}
        """The containers of each module, by its id, with its name in them."""
        for spec in specs:
            for name, child in spec.children.items():
                self._holders.setdefault(id(child), []).append((spec, name))

    def between(self, spec: ModuleSpec, first: int, last: int) -> bool:
        """Return whether a node of a graph between two others changes anything.

        Args:
            spec: the graph.
            first: the number of the node before, from 1.
            last: that of the node behind.
        """
        nodes = graph_of(spec).nodes[first : last - 1]  # those with numbers first + 1 to last - 1
        return any(self._effects.of_node(node, spec.children).changes for node in nodes)

    def after(self, spec: ModuleSpec, number: int, links: tuple[Link, ...]) -> bool:
        """Return whether anything that runs after a node of a graph may change values that it takes.

        If these may be the input of the graph or in its output, what the containers around it run afterwards counts,
        too: in a graph, what changes the memory that the node of the inner one takes or returns; in any other
        container, whatever changes its own input.

        Args:
            spec: the graph.
            number: of the node, from 1.
            links: to the values, from nodes of the graph or its input.
        """
        stack: list[_Place] = [(spec, number, links)]
        # All links with which a node was reached are followed together: a module may be on any number of paths.
        links_of_node: dict[tuple[int, int], set[Link]] = {}
        while stack:
            module, number_in_module, new_links = stack.pop()
            node = (id(module), number_in_module)
            known_links = links_of_node.get(node)
            if known_links is not None and known_links.issuperset(new_links):
                continue
            links_of_node[node] = {*(known_links or ()), *new_links}
            places = self._places_outside(module, number_in_module, links_of_node[node])
            if places is None:
                return True
            stack += places
        return False

    def _places_outside(self, module: ModuleSpec, number: int, links: set[Link]) -> list[_Place] | None:
        """Return where values are in the containers around one; `None` if it, or one of these, may change them.

        Args:
            module: the container, with `number` and `links` as in a `_Place`.
            number: see there.
            links: see there.
        """
        if module.graph is None:
            # Whether they are the input of such a container is not followed: they may be.
            is_input = True
            paths = [path for _, path in links]
        else:
            memory = self._memory_of(module, links)
            if self._changes_memory(module, number, memory):
                return None
            is_input = any(source == 0 for source, _ in memory)  # 0 is the input of the graph
            paths = self._paths_in_output(module, memory)
        if not (is_input or paths):
            return []  # nothing outside has them
        return self._places_in_holders(module, is_input, paths)

    def _places_in_holders(
        self, module: ModuleSpec, is_input: bool, paths: list[tuple[int, ...]]
    ) -> list[_Place] | None:
        """Return where values of a module are in the containers around it; `None` if one of these may change them.

        Args:
            module: the module.
            is_input: whether they may be its input.
            paths: to those elements of its output that may have them.
        """
        places: list[_Place] = []
        for holder, name in self._holders.get(id(module), ()):
            if holder.graph is not None:
                places += _nodes_with_values(holder, name, is_input, paths)
                continue
            later = _children_after(holder, name)
            # Here it is not followed which of them get the values: any change counts.
            if any(self._effects.of(child).changes for child in later):
                return None
            may_be_anywhere = holder.target != SEQUENTIAL or (later and paths)
            links_to_output = [(0, ())] if may_be_anywhere else [(0, path) for path in paths]
            places.append((holder, 0, tuple(links_to_output)))
        return places

    def _changes_memory(self, spec: ModuleSpec, number: int, memory: set[Link]) -> bool:
        """Return whether a node of a graph after one may change memory of some values.

        Args:
            spec: the graph.
            number: of the node before, from 1.
            memory: links to the values, see `_memory_of`.
        """
        for node in graph_of(spec).nodes[number:]:
            is_change = self._effects.of_node(node, spec.children).changes
            if is_change and _have_common_part(memory, self._memory_of(spec, node.takes)):
                return True
        return False

    def _paths_in_output(self, spec: ModuleSpec, memory: set[Link]) -> list[tuple[int, ...]]:
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


def _nodes_with_values(holder: ModuleSpec, name: str, is_input: bool, paths: list[tuple[int, ...]]) -> list[_Place]:
    """Return where values of a module are in a graph around it, for each node that calls it.

    Args:
        holder: the graph.
        name: of the module in it.
        is_input: whether they may be the module's input.
        paths: to those elements of its output that may have them.
    """
    places: list[_Place] = []
    for number, node in enumerate(graph_of(holder).nodes, 1):
        if node.module == name:
            taken = node.takes if is_input else ()
            returned = [(number, path) for path in paths]
            places.append((holder, number, (*taken, *returned)))
    return places


def _children_after(holder: ModuleSpec, name: str) -> list[ModuleSpec]:
    """Return the modules of a container, which run in their order, that come after one, given by its name."""
    names = [*holder.children]
    return [holder.children[other] for other in names[names.index(name) + 1 :]]


def _have_common_part(links: Iterable[Link], others: Iterable[Link]) -> bool:
    """Return whether a value of the first links is one of the second, or a part of one, or has one as a part."""
    for node, path in links:
        for other_node, other_path in others:
            # The shorter path is the beginning of the longer one.
            if node == other_node and all(index == other for index, other in zip(path, other_path)):
                return True
    return False


def _remaining(spec: ModuleSpec, cells: list[GraphCell]) -> set[int]:
    """Return the numbers of the nodes of a graph that are still needed if cells become single nodes.

    These are all but those from which only cells are computed, and the outputs of cells. Nodes that no output of the
    graph depends on remain too, as they are not inside a cell, with those that they depend on.

    Args:
        spec: the graph, not modified.
        cells: those in it.
    """
    graph = graph_of(spec)
    inputs_of_cells: dict[int, tuple[Link, ...]] = {}
    """What the cell takes, by each node that is an output of one."""
    for cell in cells:
        inputs_of_cells.update(dict.fromkeys(cell.outputs, cell.inputs))

    def needed(outputs: Iterable[Link], inputs: Mapping[int, tuple[Link, ...]]) -> set[int]:
        """Return the nodes that some outputs depend on, if those in `inputs` take these instead."""
        links = upstream(outputs, lambda number: inputs.get(number, graph.nodes[number - 1].takes))
        return {number for number, _ in links} - {0}  # without the input of the graph

    unused = set(range(1, len(graph.nodes) + 1)) - needed(graph.outputs, {})
    outputs_of_unused: list[Link] = [(number, ()) for number in unused]
    return needed([*graph.outputs, *outputs_of_unused], inputs_of_cells) - set(inputs_of_cells)


def _names(spec: ModuleSpec, nodes: set[int]) -> set[str | None]:
    """Return the names of the modules of nodes, which are given by their numbers; with `None` if a node has none."""
    return {graph_of(spec).nodes[number - 1].module for number in nodes}


# Cells as nodes


@define(frozen=True)
class _Rewritten:
    """What became of the modules of a graph whose cells are single nodes now.

    Attributes:
        names: of the cells' modules in the graph, by the module's id.
        owners: the cells that have the tensors of each former module, by its name.
    """

    names: Mapping[int, str]
    owners: Mapping[str, list[GraphCell]]


def _rewrite(result: Lifted, cells: list[GraphCell]) -> None:
    """Make each cell one node, and its tensors those of the state dict; note the names of the cells for the user.

    Args:
        result: the model, whose plan, state dict and notes are modified.
        cells: those that become single modules, in the order by which they are named.
    """
    graphs: dict[int, _Rewritten] = {}
    paths_of_notes: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    """The paths of graphs, by a note and the modules that it is about: the steps of an unrolled layer have one note."""
    for spec in {id(cell.graph): cell.graph for cell in cells}.values():
        inside = [cell for cell in cells if cell.graph is spec]
        graphs[id(spec)] = _replace_nodes(spec, inside)
        text = _names_and_classes(inside, graphs[id(spec)].names)
        modules = tuple(id(cell.module) for cell in inside)
        paths_of_notes.setdefault((text, modules), []).append(spec.path)
    for (text, _), paths in paths_of_notes.items():
        result.note(paths[0], f"recognized: {text}{and_elsewhere(len(paths) - 1)}", len(paths))
    _replace_tensors(result, graphs)


def _names_and_classes(cells: list[GraphCell], names: Mapping[int, str]) -> str:
    """Return the modules of cells in words, `lstm1 (LSTMCell), lstm2 (LSTMCell)`.

    Args:
        cells: the cells, of which several may have one module.
        names: of their modules, by the module's id.
    """
    texts = []
    for cell in cells:
        *_, class_name = cell.module.target.split(".")
        texts.append(f"{names[id(cell.module)]} ({class_name})")
    return ", ".join(dict.fromkeys(texts))


def _replace_tensors(result: Lifted, graphs: Mapping[int, _Rewritten]) -> None:
    """Replace the tensors of former modules by those of cells, at each place of a graph: a shared one has several.

    Args:
        result: the model, whose state dict is modified.
        graphs: those with cells, by id.
    """
    pieces: dict[Piece, None] = {}
    """Each once, in the order of the state dict."""
    shapes: dict[str, Mapping[str, tuple[int, ...]]] = {}
    """The shapes of each new module's tensors, by the prefix of their keys."""
    for key in result.state:
        # The graphs around the tensor, whose former modules its key still names.
        for spec, prefix, key_in_graph in way_to(result.plan.root, key):
            if id(spec) not in graphs:
                continue
            rewritten = graphs[id(spec)]
            former_module, _, _ = key_in_graph.partition(".")
            for cell in rewritten.owners.get(former_module, ()):
                home = f"{prefix}{rewritten.names[id(cell.module)]}."
                shapes[home] = cell.shapes
                pieces.update(dict.fromkeys(_moved_pieces(cell, prefix, home)))
    replace_tensors(result, [*pieces], shapes)


def _moved_pieces(cell: GraphCell, prefix: str, home: str) -> Iterator[Piece]:
    """Yield the pieces of a cell by keys of the whole model.

    Args:
        cell: the cell, whose pieces have keys in its graph and names of its own.
        prefix: of the graph's tensors, at one of its places.
        home: of those of the cell's module there.
    """
    for piece in cell.pieces:
        second_bias = home + piece.second_bias if piece.second_bias else ""
        yield evolve(piece, key=prefix + piece.key, target=home + piece.target, second_bias=second_bias)


def _replace_nodes(spec: ModuleSpec, cells: list[GraphCell]) -> _Rewritten:
    """Replace the nodes of each cell of a graph by one, and its modules by the cell's; the graph is modified.

    Args:
        spec: the graph.
        cells: all cells in it that become modules.
    """
    graph = graph_of(spec)
    remaining = _remaining(spec, cells)
    names_outside = _names(spec, remaining)
    names_in_graph = {node.module for node in graph.nodes}
    # A child that no node calls stays too.
    lasting_names = {name for name in spec.children if name in names_outside or name not in names_in_graph}
    names = _names_of_cells(cells, lasting_names)
    owners = _owners(cells)
    children: dict[str, ModuleSpec] = {}
    for name, child in spec.children.items():
        if name in lasting_names:
            children[name] = child
        # A cell's module comes where the first of its layers was.
        for cell in owners.get(name, ()):
            children.setdefault(names[id(cell.module)], cell.module)
    spec.graph = _graph_with_cells(graph, cells, names, remaining)
    spec.kwargs = graph_arguments(spec.graph)  # the constructor gets the nodes, too
    spec.children = children
    return _Rewritten(names, owners)


def _graph_with_cells(
    graph: GraphSpec, cells: list[GraphCell], names: Mapping[int, str], remaining: set[int]
) -> GraphSpec:
    """Return a graph with each cell as one node, where the first of its outputs was.

    The nodes come after what they take, as before: a cell takes nothing from nodes after its first output
    (`GraphCell.outputs`).

    Args:
        graph: the graph.
        cells: in it.
        names: of the cells' modules, by the module's id.
        remaining: the numbers of the nodes that stay; all others are inside cells.
    """
    cell_at = {min(cell.outputs): cell for cell in cells}
    nodes: list[GraphNode] = []
    new_links: dict[int, Link] = {0: (0, ())}
    """The new link to the output of each former node so far, and to the input of the graph, number 0."""
    for number, node in enumerate(graph.nodes, 1):
        if number in cell_at:
            cell = cell_at[number]
            nodes.append(GraphNode(names[id(cell.module)], _moved(cell.inputs, new_links)))
            for index, output in enumerate(cell.outputs):
                # One output is the value itself, several are a list.
                path = (index,) if len(cell.outputs) > 1 else ()
                new_links[output] = len(nodes), path
        elif number in remaining:
            nodes.append(evolve(node, takes=_moved(node.takes, new_links)))
            new_links[number] = len(nodes), ()
    return GraphSpec(tuple(nodes), _moved(graph.outputs, new_links), graph.returns_list)


def _moved(links: Iterable[Link], new_links: Mapping[int, Link]) -> tuple[Link, ...]:
    """Return links to former nodes of a graph, or elements of their outputs, as links to the new ones.

    Args:
        links: the links.
        new_links: the new link to the output of each former node, by its number.
    """
    moved: list[Link] = []
    for source, path in links:
        number, path_to_source = new_links[source]
        moved.append((number, (*path_to_source, *path)))
    return tuple(moved)


def _owners(cells: list[GraphCell]) -> dict[str, list[GraphCell]]:
    """Return the cells that have the tensors of each module of a graph, by its name."""
    owners: dict[str, list[GraphCell]] = {}
    for cell in cells:
        for name in _layers_of(cell):
            owners.setdefault(name, []).append(cell)
    return owners


def _names_of_cells(cells: list[GraphCell], names_in_use: set[str]) -> dict[int, str]:
    """Return names for the modules of cells, with numbers if several of a kind differ in their tensors.

    Args:
        cells: those of a graph.
        names_in_use: those of its other modules.

    Returns:
        The names by the ids of the modules.
    """
    modules: dict[str, dict[int, None]] = {}
    """The ids of the modules of each kind, in order: several cells may have one module."""
    for cell in cells:
        modules.setdefault(cell.kind.name.lower(), {})[id(cell.module)] = None
    names: dict[int, str] = {}
    unavailable = {*names_in_use}
    for kind, modules_of_kind in modules.items():
        for number, module in enumerate(modules_of_kind, 1):
            name = f"{kind}{number}" if len(modules_of_kind) > 1 else kind
            while name in unavailable:
                name += "_"
            unavailable.add(name)
            names[module] = name
    return names
