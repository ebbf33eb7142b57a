"""Why recognized cells of a model stay as they are: what else uses or changes their layers, tensors or values. A cell,
some nodes of a graph, can be a single module only if nothing but the cell uses the layers of which it consists, or
their memory. Its pieces say which tensors of these layers become which of the module.

Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...graph.tensor import place_of
from ...nn.layouts import overlapping
from ...nn.mapping import ModuleSpec, specs_in, way_to
from ...nn.pieces import content_of_piece
from ...nn.state_dict import StateDict
from .changes import Changes
from .nodes import cells_by_graph, names_of_modules, nodes_inside, nodes_outside
from .search import GraphCell

Obstacles = dict[GraphCell, str]
"""Why cells stay as they are, in words."""
_Role = tuple[Any, int]
"""What a tensor is in a cell: the identity of the cell (`_identity`), and the tensor's number among its tensors."""


def groups_of_equal_cells(cells: Iterable[GraphCell], state: StateDict) -> list[list[GraphCell]]:
    """Return cells in groups that have all tensors in common: the same cell in several steps of an unrolled layer."""
    groups: dict[Any, list[GraphCell]] = {}
    for cell in cells:
        groups.setdefault(_identity(cell, state), []).append(cell)
    return list(groups.values())


def _identity(cell: GraphCell, state: StateDict) -> Any:
    """Return what is equal for cells of one kind whose tensors are in the same memory, hashable.

    That is the class with its options, and for each piece the memory of its tensor, and the piece without its key.
    """
    kind = cell.module.target, *cell.module.kwargs.items()
    return kind, tuple(content_of_piece(piece, state[cell.prefix + piece.key]) for piece in cell.pieces)


def obstacles_to(
    cells: list[GraphCell], groups: list[list[GraphCell]], root: ModuleSpec, state: StateDict
) -> Obstacles:
    """Return the obstacles to the cells of a model.

    Args:
        cells: all cells. Of two that have the same tensors for different purposes, the message names the later one.
        groups: the same, in groups that can only be one module or none.
        root: the plan of the model.
        state: its state dict.
    """
    if not cells:
        return {}  # neither the memory of all tensors nor all modules need to be looked at
    obstacles = _obstacles_by_tensors(cells, root, state) | _obstacles_by_changes(cells, root)
    # After all others: a cell that stays keeps those from being modules with which it shares layers.
    _add_obstacles_between_cells(groups, obstacles)
    return obstacles


def _obstacles_by_tensors(cells: list[GraphCell], root: ModuleSpec, state: StateDict) -> Obstacles:
    """Return the obstacles to cells whose tensors share memory with others than those of equal cells (`_identity`)."""
    obstacles: Obstacles = {}
    roles: dict[tuple[ModuleSpec, str], _Role] = {}
    """What each tensor is in a cell, by the graph and the key there."""
    for cell in cells:
        identity = _identity(cell, state)
        # Equal cells have the same tensors in the same order. A cell with some of another's stays as it is, and so does
        # the other, whose layers are then used outside of it.
        for number, key in enumerate(dict.fromkeys(piece.key for piece in cell.pieces)):
            role = identity, number
            if roles.setdefault((cell.graph, key), role) != role:
                obstacles[cell] = "another cell has the same tensors"
    shared = _shared_memory(roles, root, state)
    for cell in cells:
        if any(place_of(state[cell.prefix + piece.key]) in shared for piece in cell.pieces):
            obstacles[cell] = "its tensors are also those of something else"
    return obstacles


def _shared_memory(roles: Mapping[tuple[ModuleSpec, str], _Role], root: ModuleSpec, state: StateDict) -> set[Any]:
    """Return the memory of tensors that overlap others, unless all are the same tensor in the same role.

    Args:
        roles: what tensors are in cells, by the graph and the key there; a tensor in no cell has none.
        root: the model.
        state: its state dict.

    Returns:
        Views of memory, as `place_of` returns them.
    """
    ranges: dict[int, list[tuple[int, int, Any, _Role | None]]] = {}
    """Begin, end, memory and role of each tensor, by the id of its storage; `overlapping` takes the first two."""
    for key, tensor in state.items():
        if tensor.storage is None or not tensor.numel:
            continue
        # One of the modules around the tensor may be a graph with a cell that has it, by its key in that graph.
        graphs_and_keys = [(spec, key_there) for spec, _, key_there in way_to(root, key)]
        role = next((roles[place] for place in graphs_and_keys if place in roles), None)
        begin, end = tensor.reach()
        ranges.setdefault(id(tensor.storage), []).append((begin, end, place_of(tensor), role))
    shared: set[Any] = set()
    for ranges_of_storage in ranges.values():
        for group in overlapping(ranges_of_storage):
            if len({(memory, role) for _, _, memory, role in group}) > 1:
                shared.update(memory for _, _, memory, _ in group)
    return shared


def _obstacles_by_changes(cells: list[GraphCell], root: ModuleSpec) -> Obstacles:
    """Return the obstacles to cells whose values a layer changes in place.

    For gradients, Lua's layers use what is in these values then, changed or not. A cell of PyTorch keeps other values
    than they do, so that its gradients would be others.
    """
    specs = [*specs_in(root)]
    if not any(spec.kwargs.get("inplace") for spec in specs):
        return {}
    obstacles: Obstacles = {}
    changes = Changes(specs)
    for cell in cells:
        numbers = nodes_inside(cell)
        first = min(numbers)
        last = max(numbers)
        # The nodes of the cell change nothing in place, as `Values` knows nothing of a layer that does. But others may
        # run after its first node and before its last.
        if changes.between(cell.graph, first, last) or changes.after(cell.graph, last, cell.inputs):
            obstacles[cell] = "a layer changes one of its values in place"
    return obstacles


def _add_obstacles_between_cells(groups: list[list[GraphCell]], obstacles: Obstacles) -> None:
    """Add the obstacles to cells whose layers are used outside of them, and to all cells that share a module with one.

    The layers of a cell that stays as it is are outside of all others, so this repeats until nothing is added.

    Args:
        groups: the cells that become one module, of each module.
        obstacles: those known so far; more are added.
    """
    cells_of = cells_by_graph(cell for group in groups for cell in group)
    while True:
        for group in groups:
            reasons = [obstacles[cell] for cell in group if cell in obstacles]
            if reasons:
                obstacles.update(dict.fromkeys(group, reasons[0]))
        new_obstacles: Obstacles = {}
        for graph, cells in cells_of.items():
            accepted = [cell for cell in cells if cell not in obstacles]
            new_obstacles |= _obstacles_by_layers(graph, accepted)
        if not new_obstacles:
            return
        obstacles.update(new_obstacles)


def _obstacles_by_layers(spec: ModuleSpec, cells: list[GraphCell]) -> Obstacles:
    """Return the obstacles to cells of a graph whose layers nodes outside of all these cells use, too."""
    obstacles: Obstacles = {}
    names_outside = names_of_modules(spec, nodes_outside(spec, cells))
    for cell in cells:
        for layer in cell.layers:
            if layer in names_outside:
                obstacles[cell] = f"its layer {layer} is also used outside of it"
                break
    return obstacles
