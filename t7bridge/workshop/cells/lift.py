"""Makes each recognized cell of a model, the nodes of a graph that compute an LSTM or the like, a single module. Nodes
have numbers from 1, each after those whose outputs it takes. A link is a number and a path: it leads to the output of a
node, or to the input of the graph, whose number is 0, and by the path to an element of it.

The nodes of each cell become one node, and their tensors those of one module. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from attrs import evolve, field

from ...data import define
from ...nn.mapping import GraphNode, GraphSpec, Link, ModuleSpec, Plan, way_to
from ...nn.pieces import CLASS_IN_TORCH_OF_CELL, Lifted, Piece, replace_tensors
from ...nn.plan import graph_arguments
from ...nn.state_dict import StateDict
from ...text import and_elsewhere
from .nodes import cells_by_graph, names_of_modules, nodes_outside, nodes_that_compute
from .obstacles import groups_of_equal_cells, obstacles_to
from .search import GraphCell, Search
from .unrolled import carried_over, graphs_in
from .values import graph_of


def lifted(plan: Plan, state: StateDict, only_torch: bool = False) -> Lifted:
    """Return a model whose cells are single modules, with notes for the user about these, and about cells that stay.

    Args:
        plan: the plan; its graphs are modified.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks stay as they are.
    """
    result = Lifted(plan, state)
    findings = _findings(plan.root, state, only_torch)
    for message, paths in findings.paths_of_obstacles.items():
        result.note(paths[0], f"{message}{and_elsewhere(len(paths) - 1)}", len(paths))
    if findings.cells:
        # In the order of their first outputs, by which they are named and numbered.
        _rewrite(result, sorted(findings.cells, key=lambda cell: cell.outputs))
    return result


def cells_in(root: ModuleSpec, state: StateDict) -> list[tuple[GraphCell, set[int]]]:
    """Return the cells of a model that `lifted` makes single modules, each with the nodes that it consists of.

    Nothing is modified.

    Args:
        root: the plan of the model.
        state: its state dict.
    """
    cells = _findings(root, state, only_torch=False).cells
    outside = {graph: nodes_outside(graph, cells_there) for graph, cells_there in cells_by_graph(cells).items()}
    return [(cell, nodes_that_compute(cell) - outside[cell.graph]) for cell in cells]


@define(eq=False)
class _Findings:
    """What the search for cells in a model found.

    Attributes:
        cells: the cells that become single modules.
        paths_of_obstacles: the graphs in which others stay, by their paths, for each obstacle: a message, which is the
            same for each step of an unrolled layer.
    """

    cells: list[GraphCell]
    paths_of_obstacles: dict[str, list[str]] = field(factory=dict)

    def add_obstacle(self, message: str, path: str) -> None:
        """Add an obstacle to a cell in a graph, given by its path."""
        self.paths_of_obstacles.setdefault(message, []).append(path)


def _findings(root: ModuleSpec, state: StateDict, only_torch: bool) -> _Findings:
    """Return the cells of a model that become single modules, and why others stay.

    Args:
        root: the plan of the model.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks are left out.
    """
    findings = _search_graphs(root, state)
    cells = findings.cells
    if only_torch:
        cells = [cell for cell in cells if cell.module.target in CLASS_IN_TORCH_OF_CELL]
    groups = groups_of_equal_cells(cells, state)
    _give_one_module(groups)
    obstacles = obstacles_to(cells, groups, root, state)
    for cell in cells:
        if cell in obstacles:
            findings.add_obstacle(f"{cell.kind.name} stays as it is: {obstacles[cell]}", cell.graph.path)
    findings.cells = [cell for group in groups for cell in group if cell not in obstacles]
    return findings


def _search_graphs(root: ModuleSpec, state: StateDict) -> _Findings:
    """Return all cells in the graphs of a model, each with a module of its own, and the obstacles to others.

    Args:
        root: the plan of the model.
        state: its state dict.
    """
    findings = _Findings(cells=[])
    graphs = graphs_in(root)
    states_carried_over = carried_over(graphs, state)
    for spec, prefix in graphs.items():
        search = Search(spec, prefix, state, states_carried_over[spec]).run()
        findings.cells += search.cells
        for message in search.obstacles:
            findings.add_obstacle(message, spec.path)
    return findings


def _give_one_module(groups: Iterable[list[GraphCell]]) -> None:
    """Give all cells of a group the module of its first: they have the same tensors, as the steps of a layer do."""
    for first, *others in groups:
        for cell in others:
            cell.module = first.module


# Cells as nodes


@define(frozen=True)
class _Rewritten:
    """What became of the modules of a graph whose cells are single nodes now.

    Attributes:
        names: of the cells' modules in the graph.
        cells_of_layers: the cells that have tensors of each former module, by its name.
    """

    names: Mapping[ModuleSpec, str]
    cells_of_layers: Mapping[str, list[GraphCell]]


def _rewrite(result: Lifted, cells: list[GraphCell]) -> None:
    """Make each cell one node, and its tensors those of the state dict; note the names of the cells for the user.

    Args:
        result: the model, whose plan, state dict and notes are modified.
        cells: those that become single modules, in the order by which they are named.
    """
    graphs: dict[ModuleSpec, _Rewritten] = {}
    for spec, cells_there in cells_by_graph(cells).items():
        graphs[spec] = _replace_nodes(spec, cells_there)
    _note_names(result, cells, graphs)
    _replace_tensors(result, graphs)


def _note_names(result: Lifted, cells: list[GraphCell], graphs: Mapping[ModuleSpec, _Rewritten]) -> None:
    """Note the names and classes of the cells of each graph, `recognized: lstm1 (LSTMCell), lstm2 (LSTMCell)`.

    Args:
        result: the model, which gets the notes.
        cells: those that became single modules.
        graphs: the graphs with cells.
    """
    paths_of: dict[tuple[str, tuple[ModuleSpec, ...]], list[str]] = {}
    """The paths of graphs, by a note and the modules that it is about: the steps of an unrolled layer have one note."""
    for spec, cells_there in cells_by_graph(cells).items():
        texts: list[str] = []
        for cell in cells_there:
            *_, class_name = cell.module.target.split(".")
            texts.append(f"{graphs[spec].names[cell.module]} ({class_name})")
        text = ", ".join(dict.fromkeys(texts))  # each once: several cells may have one module
        modules = tuple(cell.module for cell in cells_there)
        paths_of.setdefault((text, modules), []).append(spec.path)
    for (text, _), paths in paths_of.items():
        result.note(paths[0], f"recognized: {text}{and_elsewhere(len(paths) - 1)}", len(paths))


def _replace_tensors(result: Lifted, graphs: Mapping[ModuleSpec, _Rewritten]) -> None:
    """Replace the tensors of former modules by those of cells, at each place of a graph: a shared one has several.

    Args:
        result: the model, whose state dict is modified.
        graphs: those with cells.
    """
    pieces: dict[Piece, None] = {}
    """Each once, in the order of the state dict."""
    shapes: dict[str, Mapping[str, tuple[int, ...]]] = {}
    """The shapes of each new module's tensors, by the prefix of their keys."""
    for key in result.state:
        # The graphs around the tensor, whose former modules its key still names.
        for spec, prefix, key_in_graph in way_to(result.plan.root, key):
            if spec not in graphs:
                continue
            rewritten = graphs[spec]
            former_module, _, _ = key_in_graph.partition(".")
            for cell in rewritten.cells_of_layers.get(former_module, ()):
                home = f"{prefix}{rewritten.names[cell.module]}."
                shapes[home] = cell.shapes
                pieces.update(dict.fromkeys(_pieces_with_keys(cell, prefix, home)))
    replace_tensors(result, [*pieces], shapes)


def _pieces_with_keys(cell: GraphCell, prefix: str, home: str) -> Iterator[Piece]:
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
    """Replace the nodes of each cell of a graph by one, and its modules by the cell's.

    Args:
        spec: the graph, modified.
        cells: all cells in it that become modules.
    """
    graph = graph_of(spec)
    outside = nodes_outside(spec, cells)
    names_inside = {node.module for node in graph.nodes} - names_of_modules(spec, outside)
    # A child that no node calls stays too.
    lasting_names = {name for name in spec.children if name not in names_inside}
    names = _names_of_cells(cells, lasting_names)
    cells_of_layers: dict[str, list[GraphCell]] = {}
    for cell in cells:
        for layer in cell.layers:
            cells_of_layers.setdefault(layer, []).append(cell)
    rewritten = _Rewritten(names, cells_of_layers)
    spec.graph = _graph_with_cells(graph, cells, names, outside)
    spec.kwargs = graph_arguments(spec.graph)  # the constructor gets the nodes, too
    spec.children = _children_with_cells(spec, lasting_names, rewritten)
    return rewritten


def _children_with_cells(spec: ModuleSpec, lasting_names: set[str], rewritten: _Rewritten) -> dict[str, ModuleSpec]:
    """Return the modules of a graph with those of its cells, each where the first of the cell's layers was.

    Args:
        spec: the graph, with its former modules.
        lasting_names: the names of those that stay.
        rewritten: the names of the new ones, and which former modules they take the place of.
    """
    children: dict[str, ModuleSpec] = {}
    for name, child in spec.children.items():
        if name in lasting_names:
            children[name] = child
        for cell in rewritten.cells_of_layers.get(name, ()):
            children.setdefault(rewritten.names[cell.module], cell.module)  # the first layer decides on the place
    return children


def _graph_with_cells(
    graph: GraphSpec, cells: list[GraphCell], names: Mapping[ModuleSpec, str], outside: set[int]
) -> GraphSpec:
    """Return a graph with each cell as one node, where the first of its outputs was.

    The nodes come after what they take, as before: a cell takes nothing from nodes after its first output
    (`GraphCell.outputs`).

    Args:
        graph: the graph.
        cells: in it.
        names: of the cells' modules.
        outside: the numbers of the nodes that stay; all others are inside cells.
    """
    cell_at = {min(cell.outputs): cell for cell in cells}
    nodes: list[GraphNode] = []
    new_links: dict[int, Link] = {0: (0, ())}
    """The new link to the output of each former node so far, and to the input of the graph, number 0."""
    for number, node in enumerate(graph.nodes, 1):
        if number in cell_at:
            cell = cell_at[number]
            nodes.append(GraphNode(names[cell.module], _moved(cell.inputs, new_links)))
            for index, output in enumerate(cell.outputs):
                # One output is the value itself, several are a list.
                path = (index,) if len(cell.outputs) > 1 else ()
                new_links[output] = len(nodes), path
        elif number in outside:
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


def _names_of_cells(cells: list[GraphCell], names_in_use: set[str]) -> dict[ModuleSpec, str]:
    """Return names for the modules of cells, with numbers if several of a kind differ in their tensors.

    Args:
        cells: those of a graph.
        names_in_use: those of its other modules.
    """
    modules_of: dict[str, list[ModuleSpec]] = {}
    """The modules of each kind, each once and in order: several cells may have one."""
    for cell in cells:
        modules = modules_of.setdefault(cell.kind.name.lower(), [])
        if cell.module not in modules:
            modules.append(cell.module)
    names: dict[ModuleSpec, str] = {}
    unavailable = {*names_in_use}
    for kind, modules in modules_of.items():
        for number, module in enumerate(modules, 1):
            name = f"{kind}{number}" if len(modules) > 1 else kind
            while name in unavailable:
                name += "_"
            unavailable.add(name)
            names[module] = name
    return names
