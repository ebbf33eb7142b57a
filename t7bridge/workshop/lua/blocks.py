"""Blocks: the containers of a model by their structure, of which repeated ones become functions of the source.

Containers of one structure differ only in the arguments of their layers, and in what the keys of their tensors begin
and end with: these are the parameters of their function.
"""

from __future__ import annotations

from collections import Counter
from os.path import commonprefix
from typing import Any

from attrs import field

from ...data import define
from .fields import constructor_values
from .layers import LuaLayer, WeightRef, structure_of, walk
from .literals import lua_string
from .trace import Program

USUAL = ("weight", "bias", "running_mean", "running_var")
"""Fields that `named` of the source finds by the prefix of their keys."""
_FEWEST_IN_MODULE = 4
_FEWEST_WITH_WEIGHTS = 3
_FEWEST_WITHOUT_MODULE = 9
"""Layers of a container, itself included, from which on it is a function if it is repeated: one of a PyTorch module,
any with weights, and one that is only a part of a module, which has no good name. Smaller ones read as easily."""


@define(eq=False)
class Block:
    """Containers of equal structure: one function of the source creates them, or a single one is written where it is.

    Attributes:
        layers: the containers.
        prefixes: for each container, what all keys of its tensors begin with: `encoder.0`; empty if they have nothing
            in common, or there are none.
        suffixes: for each container, what all of these keys end with: `_hh_l0`; empty likewise.
    """

    layers: list[LuaLayer] = field(factory=list)
    prefixes: list[str] = field(factory=list)
    suffixes: list[str] = field(factory=list)

    @property
    def first(self) -> LuaLayer:
        """The first container, which stands for all where these are alike."""
        return self.layers[0]

    @property
    def has_prefix(self) -> bool:
        """Whether the prefix differs, and so is a parameter of the function."""
        return len(set(self.prefixes)) > 1

    @property
    def has_suffix(self) -> bool:
        """Whether the suffix differs, and so is a parameter of the function."""
        return len(set(self.suffixes)) > 1

    def key_expression(self, key: str) -> str:
        """Return a key of the first container's tensors as Lua source in the function: `prefix .. '.weight' .. suffix`.

        The keys of the other containers have the same source, as only prefix and suffix differ.
        """
        start = len(self.prefixes[0]) if self.has_prefix else 0
        end = len(key)
        # The keys of tensors end with the suffix; what those of a module inside begin with, which is passed on to its
        # function, does not.
        if self.has_suffix and key.endswith(self.suffixes[0]):
            end -= len(self.suffixes[0])
        terms = []
        if start > 0:
            terms.append("prefix")
        if start < end:
            terms.append(lua_string(key[start:end]))
        if end < len(key):
            terms.append("suffix")
        return " .. ".join(terms)


@define(eq=False)
class Blocks:
    """The blocks of a model, see `find_blocks`.

    Attributes:
        of: container → its block. Small containers, and layers that contain none, have no block.
        with_function: the blocks that have a function; each behind those whose functions it calls.
    """

    of: dict[LuaLayer, Block]
    with_function: list[Block]

    def whose_function_creates(self, layer: LuaLayer) -> Block | None:
        """Return the block whose function creates a layer; `None` if no function does."""
        block = self.of.get(layer)
        return block if block in self.with_function else None

    def can_be_merged(self, inner: LuaLayer, into: LuaLayer) -> bool:
        """Return whether the layers of a container can be written in one of the same class that contains it."""
        return inner.name == into.name and not inner.label and self.whose_function_creates(inner) is None


def find_blocks(root: LuaLayer, program: Program) -> Blocks:
    """Return the blocks of a model: of its graphs, and of containers that are worth a function.

    Args:
        root: the whole model.
        program: the traced program, for the shapes of the tensors.
    """
    blocks: dict[Any, Block] = {}  # by the structure
    block_of: dict[LuaLayer, Block] = {}
    for layer in dict.fromkeys(walk(root)):
        if layer.name != "nn.gModule" and (layer is root or not _is_large(layer)):
            continue
        prefix, suffix = _common_ends_of_keys(layer)
        block = blocks.setdefault(_structure(layer, prefix, suffix, program), Block())
        block.layers.append(layer)
        block.prefixes.append(prefix)
        block.suffixes.append(suffix)
        block_of[layer] = block
    uses = _count_uses(root, list(blocks.values()), block_of)
    # A graph needs statements, and a label is the name of a function: these have one though they are used once.
    with_function = []
    for block in blocks.values():
        if block.first.name == "nn.gModule" or block.first.label or uses[block] > 1:
            with_function.append(block)
    # A container has more layers than those inside it, whose functions it calls.
    with_function.sort(key=lambda block: len(walk(block.first)))
    return Blocks(block_of, with_function)


def _count_uses(root: LuaLayer, blocks: list[Block], block_of: dict[LuaLayer, Block]) -> Counter[Block]:
    """Return how often the source creates a container of each block, if every block is written once."""
    # A block is written as its first container, and uses the containers that are in that.
    written = [block.first for block in blocks]
    if root not in block_of:
        written.append(root)
    uses: Counter[Block] = Counter()
    for layer in written:
        uses.update(block_of[container] for container in _nearest_containers(layer, block_of))
    return uses


def _nearest_containers(layer: LuaLayer, block_of: dict[LuaLayer, Block]) -> list[LuaLayer]:
    """Return the containers with blocks that are inside a layer, without those inside them, in no certain order.

    One that is at several places is there as often.
    """
    containers: list[LuaLayer] = []
    pending = [layer]
    while pending:
        for inner in pending.pop().inside:
            if inner in block_of:
                containers.append(inner)
            else:
                pending.append(inner)
    return containers


def _structure(layer: LuaLayer, prefix: str, suffix: str, program: Program) -> Any:
    """Return the structure of a container, a value that is equal for containers that one function can create.

    Args:
        layer: the container.
        prefix: of the keys of its tensors, which the function may have as a parameter.
        suffix: of these keys, likewise.
        program: the traced program, for the shapes of the tensors.
    """

    def structure_of_settings(part: LuaLayer) -> Any:
        """Return the numbers of arguments; their values may differ, and become parameters of the function."""
        values, _ = constructor_values(part)
        return len(values), tuple((name, len(args)) for name, args in part.calls)

    def structure_of_weight(ref: WeightRef) -> Any:
        """Return what must be equal of a tensor: its key without prefix and suffix, and how the source writes it."""
        middle = ref.key[len(prefix) :].removesuffix(suffix)
        # The source has the key alone for a whole tensor; else its size, too, and a start and a mark if it has them.
        has_start = ref.start != 0
        rank = len(program.state[ref.key].shape)
        written_as = (is_whole(ref, program), has_start, ref.transposed, rank)
        has_suffix = suffix != ""
        return middle, has_suffix, written_as

    return structure_of(layer, structure_of_settings, structure_of_weight)


def is_whole(ref: WeightRef, program: Program) -> bool:
    """Return whether a field has all of a tensor of the state dict, in the tensor's own shape."""
    return tuple(program.state[ref.key].shape) == ref.size and not ref.start and not ref.transposed


def _is_large(layer: LuaLayer) -> bool:
    """Return whether a container is worth a function if it is repeated."""
    layers = walk(layer)
    fewest = _FEWEST_IN_MODULE if layer.path else _FEWEST_WITHOUT_MODULE
    has_weights = any(inner.weights for inner in layers)
    return len(layers) >= fewest or (len(layers) == _FEWEST_WITH_WEIGHTS and has_weights)


def _common_ends_of_keys(container: LuaLayer) -> tuple[str, str]:
    """Return what all keys of a container's tensors begin with, and what they end with; empty if nothing."""
    keys: list[str] = []
    for layer in walk(container):
        keys += [ref.key for ref in layer.weights.values()]
    path = container.path
    prefix = _common_prefix(keys)
    # All of the module's path, though its weights may be in one layer of it: `block.0`, and not `block.0.conv`.
    if keys and path and all(key.startswith(f"{path}.") for key in keys):
        prefix = path
    return prefix, _common_suffix(keys)


def _common_prefix(keys: list[str]) -> str:
    """Return the longest common prefix of keys that ends before a dot."""
    return ".".join(commonprefix([key.split(".")[:-1] for key in keys]))  # noqa: RUF071  of words, not of a path


def _common_suffix(keys: list[str]) -> str:
    """Return what all keys end with, from an underscore in their last words on: `_hh_l0` of `weight_hh_l0`.

    Empty if there is nothing, or if a key ends with a usual name: `running_mean` has no suffix `_mean`.
    """
    words = [key.rpartition(".")[2] for key in keys]
    if not words or not set(words).isdisjoint(USUAL):
        return ""
    backwards = commonprefix([word[::-1] for word in words])  # noqa: RUF071  of letters, not of a path
    _, underscore, rest = backwards[::-1].partition("_")
    return underscore + rest
