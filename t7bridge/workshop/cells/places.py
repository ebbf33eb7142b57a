"""The places of the modules in a model, and how the tensors of its state dict follow modules that get other places. A
module has one place if one container has it, under one name, and so has each container around that one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import evolve

from ...data import define
from ...graph.tensor import Tensor, place_of
from ...nn.mapping import ModuleSpec, specs_in, way_to
from ...nn.pieces import Lifted, Piece, replace_tensors
from ...nn.registry import tensor_shapes
from ...nn.state_dict import StateDict


class Places:
    """The places of the modules in a model, and of their tensors, as they are before it is changed.

    Attributes:
        is_tree: whether every module has one place.

    Args:
        root: the model.
        state: its state dict.
    """

    def __init__(self, root: ModuleSpec, state: StateDict) -> None:
        self._prefixes = dict(_single_places(root))
        """The modules of one place, each container before those in it, with the prefixes of their tensors' keys."""
        self.is_tree = len(self._prefixes) == sum(1 for _ in specs_in(root))
        self._tied = _prefixes_of_tied(state)

    def inner_first(self) -> list[ModuleSpec]:
        """Return the modules of one place, each container after those in it."""
        return [*reversed(self._prefixes)]

    def is_single(self, spec: ModuleSpec) -> bool:
        """Return whether a module has one place."""
        return spec in self._prefixes

    def is_single_throughout(self, spec: ModuleSpec) -> bool:
        """Return whether a module and all modules inside it have one place."""
        return all(inside in self._prefixes for inside in specs_in(spec))

    def put(self, spec: ModuleSpec, former: ModuleSpec) -> None:
        """Give a new module the place of one that it replaces, which has one place."""
        self._prefixes[spec] = self._prefixes[former]

    def have_ties(self, specs: Iterable[ModuleSpec]) -> bool:
        """Return whether another layer has the same weights as one of these modules, each of which has one place."""
        return not self._tied.isdisjoint(self._prefixes[spec] for spec in specs)


def _single_places(root: ModuleSpec) -> Iterator[tuple[ModuleSpec, str]]:
    """Yield the modules of one place, each with the prefix of its tensors; a container before the modules in it."""
    holder_counts = Counter(child for spec in specs_in(root) for child in spec.children.values())
    stack = [(root, "")]
    while stack:
        spec, prefix = stack.pop()
        yield spec, prefix
        for name, child in spec.children.items():
            # What is inside of a module of several places has several, too.
            if holder_counts[child] == 1:
                stack.append((child, f"{prefix}{name}."))


def _prefixes_of_tied(state: StateDict) -> set[str]:
    """Return the prefixes of all keys whose tensor another key has, too: of `a.b.weight` these are `a.` and `a.b.`."""
    counts = Counter(place_of(tensor) for tensor in state.values())
    prefixes: set[str] = set()
    for key, tensor in state.items():
        if counts[place_of(tensor)] > 1:
            prefixes.update(key[: dot + 1] for dot, letter in enumerate(key) if letter == ".")
    return prefixes


# Tensors


class TensorMoves:
    """Gives the tensors of a state dict new keys, after modules of one place got others or became other modules. A home
    is where the tensors of a module belong then: a prefix, and the level of a layer that became one of several.

    Args:
        result: the model, before its modules are moved; its state dict is changed by `finish`.
        places: of its modules.
    """

    def __init__(self, result: Lifted, places: Places) -> None:
        self._result = result
        self._owners = {key: _owner(result.plan.root, key, places) for key in result.state}
        """The innermost module of one place around each tensor, and the tensor's name in it."""
        self._pieces_of_cells: dict[tuple[ModuleSpec, str], Piece] = {}
        """What becomes of the tensors of a cell that is a layer now, by the layer and the tensor's name in the cell."""
        self._levels: dict[ModuleSpec, list[ModuleSpec]] = {}
        """The layers that became levels of one layer."""

    def cell_became_layer(self, layer: ModuleSpec, pieces: Iterable[Piece]) -> None:
        """Note that a cell was made a layer over sequences.

        Args:
            layer: the module, which was the cell.
            pieces: what its tensors are made of. Keys are names of tensors in the cell, targets in the layer.
        """
        for piece in pieces:
            self._pieces_of_cells[layer, piece.key] = piece

    def layers_became_levels(self, layers: list[ModuleSpec], layer: ModuleSpec) -> None:
        """Note that layers were replaced by one, with a level for each."""
        self._levels[layer] = layers

    def finish(self) -> None:
        """Give the tensors of the state dict the keys of their modules' new places, and make those of new layers."""
        homes = self._homes()
        pieces: list[Piece] = []
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        """The shapes of the new tensors, by the prefix of their module and their names there; see `replace_tensors`."""
        for key, tensor in self._result.state.items():
            owner, name = self._owners[key]
            if owner not in homes:  # a module of several places, which stays where it is
                continue
            home = homes[owner]
            shapes_of_new: dict[str, tuple[int, ...]]
            if (owner, name) in self._pieces_of_cells:  # of a cell: it becomes rows of a tensor of the layer
                piece = self._pieces_of_cells[owner, name]
                shapes_of_new = tensor_shapes(owner.target, owner.args, owner.kwargs)  # of all tensors of the layer
            elif home.key(name) == key:  # most tensors stay where they are
                continue
            else:  # only its key changes
                piece = _whole(name, tensor)
                shapes_of_new = {name: tensor.shape}
            pieces.append(home.moved(piece, key))
            shapes_at_home = shapes.setdefault(home.prefix, {})
            for own_name, shape in shapes_of_new.items():
                shapes_at_home[home.name_of(own_name)] = shape
        if pieces:
            replace_tensors(self._result, pieces, shapes)

    def _homes(self) -> dict[ModuleSpec, _Home]:
        """Return where the tensors of each module that has one place in the changed plan belong."""
        homes: dict[ModuleSpec, _Home] = {}
        for spec, prefix in _single_places(self._result.plan.root):
            for level, layer in enumerate(self._levels.get(spec, [spec])):
                homes[layer] = _Home(prefix, level)
        return homes


@define(frozen=True)
class _Home:
    """Where the tensors of a module belong in the changed plan.

    Attributes:
        prefix: that of their keys, which ends in a dot.
        level: of the module in the layer that it became a level of; 0 of any other.
    """

    prefix: str
    level: int

    def name_of(self, name: str) -> str:
        """Return the new name of a tensor of the module: of level 1, `weight_ih_l0` becomes `weight_ih_l1`."""
        return name.replace("_l0", f"_l{self.level}") if self.level else name

    def key(self, name: str) -> str:
        """Return the new key of a tensor of the module."""
        return self.prefix + self.name_of(name)

    def moved(self, piece: Piece, key: str) -> Piece:
        """Return the piece of a tensor of the module by keys of the whole model.

        Args:
            piece: the piece, by names of tensors in the module.
            key: the former key of the tensor.
        """
        second_bias = self.key(piece.second_bias) if piece.second_bias else ""
        return evolve(piece, key=key, target=self.key(piece.target), second_bias=second_bias)


def _owner(root: ModuleSpec, key: str, places: Places) -> tuple[ModuleSpec, str]:
    """Return the innermost module of one place around a tensor, and the tensor's name in it.

    The model itself has one place.
    """
    owner = root, key
    for spec, _, key_there in way_to(root, key):
        if places.is_single(spec):
            owner = spec, key_there
    return owner


def _whole(name: str, tensor: Tensor) -> Piece:
    """Return the piece of a tensor that keeps its name and values, under another prefix."""
    start = (0,) * len(tensor.shape)
    return Piece(name, start, tensor.shape, target=name, at=start)
