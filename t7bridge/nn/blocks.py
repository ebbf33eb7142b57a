"""The structure of a model as pictures and `inspect` show it: nested blocks, and the arrows between them.

`blocks_of` makes them from a module, and `structure_blocks` from named tensors and Python objects, by the nesting of
names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from attrs import field

from ..data import define, pattern
from ..errors import LimitError, ModelError
from ..graph.lua import Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.python import MODULE_PARTS, PythonObject
from ..graph.storage import Storage, integers
from ..graph.tensor import Tensor
from ..graph.walk import entries
from ..limits import DEFAULT_LIMITS, Limits
from ..text import clean, counted, extents, listed, short
from .mapping import SEQUENTIAL, GraphSpec, Literal, ModuleSpec, is_torch_or_ours
from .places import Places, find_models, is_module, is_scratch
from .plan import sketch
from .registry import traits_of
from .state_dict import StateDict, lua_named
from .walk import FLOW_ERRORS, Domain

_STEPS_PER_WORK = 5
"""Levels of nesting, summed over all modules, that cost one step of `Limits.work`: paths are as long as these."""
_DETAIL_CHARS = 48
"""Maximum characters of a line in a block."""
_MAX_FIELDS = 40
"""Maximum number of fields of an object that are shown."""
_FIELD_CHARS = 80
"""Maximum characters of the value of a field."""
_NAME_CHARS = 60
"""Maximum characters of the name of a block that is not a module, or of an attribute."""
_CLASS_CHARS = 80
"""Maximum characters of the name of a class in Python."""
_OWNER_CHARS = 40
"""Maximum characters of a key in the line about shared weights."""
_LISTED_WEIGHTS = 3
"""Number of tensors listed in a block that has no arguments by which one knows it."""
_MOST_OUTPUTS = 8
"""Maximum number of tensors of an output whose shapes are shown."""
_MOST_DIMENSIONS = 8
"""Maximum number of dimensions of a shape that are shown."""
_MOST_INDICES = 8
"""Maximum number of indices of an element of nested lists that the label of an arrow shows."""
_MOST_SIZES = 16
"""Maximum number of elements of a storage of sizes that is shown by its elements."""
_DEEPEST = 200
"""Maximum nesting of values that are drawn by their names."""
_HOLDERS = (Tensor, PythonObject, TorchObject, Table, TdsHash, TdsVec, dict, list, tuple)
"""Types of the values that are drawn by their names."""
_VALUES_PER_BLOCK = 100
"""Number of values, for each block that `Limits.blocks` allows, that are searched for tensors."""
_PICKLED_SEQUENTIAL = "torch.nn.modules.container.Sequential"
"""The name of torch.nn.Sequential in a pickle."""
_BUFFERS = {"running_mean", "running_var", "num_batches_tracked"}
"""Names of tensors that are not learned, in a state dict that does not say which are."""
_STRUCTURE_FIELDS = ("modules", "forwardnodes", "backwardnodes", "fg", "bg", "gradInput")
"""Fields of Lua's modules that hold modules and nodes of graphs, which are drawn, and the last gradient."""
_DEFAULTS: Mapping[str, Literal] = {
    "padding": 0,
    "dilation": 1,
    "groups": 1,
    "bias": True,
    "eps": 1e-5,
    "momentum": 0.1,
    "affine": True,
    "inplace": False,
    "ceil_mode": False,
    "count_include_pad": True,
    "output_padding": 0,
    "padding_mode": "zeros",
    "track_running_stats": True,
    "return_indices": False,
    "batch_first": False,
    "plain": False,
}
"""Arguments of `torch.nn` that are omitted from labels if they have their default."""


_CATEGORIES = {
    "conv": "conv",
    "recurrent": "lstm gru rnn recurren sequencer",
    "join": "cadd cmul csub cdiv cmax cmin concat select split join mm narrow dotproduct pairwise mixture",
    "linear": "linear embedding lookup add mul",
    "norm": "norm dropout lrn",
    "pool": "pool upsample unpool sampling",
    "shape": "view reshape flatten transpose squeeze pad replicate contiguous permute",
    "activation": "relu tanh sigmoid softmax elu softplus softsign abs power square",
    "loss": "loss criterion",
}
"""Families of classes, which determine their colours, and parts of the names of their classes.

The first family with a fitting part counts, so that `CAddTable` is a `join`, not a `linear` for its `add`.
"""


@lru_cache(1024)
def _category_of(class_name: str) -> str:
    """Return the family of a class by its name."""
    base_name = class_name.rpartition(".")[2].lower()
    for category, words in _CATEGORIES.items():
        if any(word in base_name for word in words.split()):
            return category
    return "other"


@define(frozen=True)
class Flow:
    """An arrow between two of the blocks inside one block.

    Attributes:
        start: number of the block it leaves, from 0, in `Block.inside`.
        end: number of the block it enters.
        label: the elements of the output that it carries, if not all.
    """

    start: int
    end: int
    label: str = ""


@define(frozen=True)
class Weight:
    """A tensor of a block.

    Attributes:
        name: in the block, `weight`.
        key: in the state dict, `0.weight`.
        tensor: the tensor itself.
        kind: `parameter` or `buffer`.
        shared: key of an earlier tensor with the same elements in memory.
    """

    name: str
    key: str
    tensor: Tensor
    kind: str = "parameter"
    shared: str = ""


@define(eq=False)
class Block:
    """A module, a group of weights, or an end of a graph.

    Attributes:
        name: in the block around it, as in the state dict.
        title: class in PyTorch; in Lua if there is none.
        kind: `layer`; `chain` for containers whose blocks are called in sequence, `side` for others; `graph` with
            explicit flows; `end` for input and output of a graph; in pictures `closed` for one whose blocks are hidden.
        mark: `weights` for a layer with some, `unmapped` for a class without PyTorch module, `again` for a module that
            is already drawn elsewhere, `cell` for layers that are recognized as one.
        lines: other text of the label: arguments, counts, notes.
        summary: text of a container whose blocks are hidden: the most frequent classes of these.
        class_name: class in the file.
        target: dotted name of the PyTorch class.
        key: its name in the state dict.
        path: its path in the file.
        shape: recorded output: the sizes of each tensor.
        arguments: the constructor arguments of PyTorch's class, as text.
        spec: the module that it represents.
        place_in_plan: the plan of the module that contains it, by id, and its name there; in a graph the number of its
            node, from 0. By this place the shapes of a run are assigned to blocks.
        fields: other fields of the object, as text.
        weights: its own tensors.
        parameters: number of learned elements in it and in all blocks inside, those shared counted once.
        same: key of the block that is the same module, for `again`.
        repeat: number of consecutive blocks that it stands for.
        inside: the blocks in it, in order.
        flows: of a graph.
        source: in pictures, the block that is shown; none for one that stands for several, or is named once more.
    """

    name: str
    title: str
    kind: str = "layer"
    mark: str = ""
    lines: list[str] = field(factory=list)
    summary: list[str] = field(factory=list)
    class_name: str = ""
    target: str = ""
    key: str = ""
    path: str = ""
    shape: tuple[tuple[int, ...], ...] = ()
    arguments: dict[str, str] = field(factory=dict)
    spec: ModuleSpec | None = field(default=None, repr=False)
    place_in_plan: tuple[int, int | str] = (0, "")
    fields: dict[str, str] = field(factory=dict)
    weights: list[Weight] = field(factory=list)
    parameters: int = 0
    same: str = ""
    repeat: int = 1
    inside: list[Block] = field(factory=list)
    flows: list[Flow] = field(factory=list)
    source: Block | None = field(default=None, repr=False)

    @property
    def arrows(self) -> list[Flow]:
        """Return the flows between the blocks inside, including those of a chain."""
        if self.kind == "chain":
            return [Flow(number, number + 1) for number in range(len(self.inside) - 1)]
        return self.flows

    @property
    def category(self) -> str:
        """Family of its class, which determines its colour: `conv`, `norm`, `pool`, …, or `other`."""
        if self.kind == "end":
            return "end"
        has_blocks = bool(self.inside) or self.kind == "closed"
        # A cell has the colour of its class, like a layer.
        if has_blocks and self.mark != "cell":
            return "container"
        if self.mark == "unmapped":
            return "unmapped"
        class_name = self.target or self.class_name or self.title
        is_class_of_user = bool(self.target) and not is_torch_or_ours(self.target)
        if is_class_of_user:
            # The name of a user's class does not say what it does; the class that its entry says it is like does.
            class_name = traits_of(self.target).like
        return _category_of(class_name)

    @property
    def hint(self) -> str:
        """Return class and path in the file."""
        return ", ".join(filter(None, (self.class_name, self.path)))

    @property
    def owner(self) -> str:
        """Return the key of the block that is the same module, or of the tensor that it shares; empty if none."""
        if self.same:
            return self.same
        return next((weight.shared for weight in self.weights if weight.shared), "")

    def walk(self) -> Iterator[Block]:
        """Yield the block and all inside it, each before those inside it."""
        stack = [self]
        while stack:
            block = stack.pop()
            yield block
            stack += reversed(block.inside)


@define(eq=False)
class DrawnModel:
    """A model of a file with its blocks.

    Attributes:
        path: its path in the file.
        module: an nn module or criterion of Lua.
        state: its state dict, under Lua's names.
        blocks: all of them, each before those inside it; the first is the module itself.
    """

    path: str
    module: TorchObject
    state: StateDict
    blocks: list[Block]


def blocks_of(module: TorchObject, path: str, limits: Limits = DEFAULT_LIMITS) -> list[Block]:
    """Return all blocks of a module; see `drawn_model`."""
    return drawn_model(module, path, limits).blocks


def drawn_model(module: TorchObject, path: str, limits: Limits = DEFAULT_LIMITS) -> DrawnModel:
    """Return a model with its blocks, which show the PyTorch modules that its layers become, where there are some.

    Args:
        module: an nn module or criterion of Lua.
        path: its path in the file.
        limits: resource limits.

    Raises:
        LimitError: the model is nested or shared too much, or has more blocks than `Limits.blocks`.
    """
    places = Places(module, path, limits)
    _check_levels(places, limits)
    state = lua_named(places)
    # The plan of PyTorch modules as conversion makes it, but with a gap for each layer that has no PyTorch module: such
    # a layer is drawn by its Lua class.
    spec, unmapped_layers = sketch(state)
    unmapped_paths = {layer_path for layer_path, _, _ in unmapped_layers}
    blocks = _Sketcher(state, unmapped_paths, limits).run(spec)
    return DrawnModel(path, module, state, blocks)


def _check_levels(places: Places, limits: Limits) -> None:
    """Refuse a model whose blocks would have too long paths together: each is as long as its module is deep.

    Args:
        places: those of the model's modules.
        limits: resource limits, of which `work` counts.

    Raises:
        LimitError: the levels of nesting, summed over all modules, are more than `Limits.work` allows.
    """
    levels = 0
    for place in places:
        levels += place.depth
        if levels > _STEPS_PER_WORK * limits.work:
            raise LimitError(
                "the modules are nested too deep for a picture",
                limit="work",
                value=limits.work,
                found=f"{place.depth} levels",
                hint="Draw a part with --at (at=… in Python), or raise it: --limit work=N.",
            )


def models_in(value: Any, path: str, limits: Limits = DEFAULT_LIMITS) -> list[DrawnModel]:
    """Return each model in a value.

    Args:
        value: a module, or a value that holds some.
        path: its path in the file.
        limits: resource limits.

    Raises:
        LimitError: see `drawn_model`.
    """
    models = [(path, value)] if is_module(value) else find_models(value, path, limits)
    return [drawn_model(module, model_path, limits) for model_path, module in models]


def group_of(models: list[DrawnModel], title: str, path: str = "root") -> list[Block]:
    """Return the blocks of several models in one, which are named by their paths in the value that holds them.

    Args:
        models: the result of `models_in`; the first block of each gets its name.
        title: of the whole.
        path: of the value.

    Returns:
        The block of the whole, and all blocks of the models, each before those inside it.
    """
    root = Block(name="", title=title, kind="side", lines=[counted(len(models), "model")])
    all_blocks = [root]
    for model in models:
        model_block = model.blocks[0]
        model_block.name = model.path.removeprefix(path).lstrip(".")
        root.inside.append(model_block)
        root.parameters += model_block.parameters
        all_blocks += model.blocks
    return all_blocks


class _Sketcher:
    """Makes the blocks of a plan, which has the PyTorch modules that a Lua model becomes; each is a `ModuleSpec`.

    Args:
        state: the model's state dict.
        unmapped: the paths of layers without a PyTorch module.
        limits: resource limits.
    """

    def __init__(self, state: StateDict, unmapped: set[str], limits: Limits) -> None:
        self._unmapped = unmapped
        self._limits = limits
        self._drawn: dict[int, str] = {}
        """By the id of a module's plan, the key of its first block."""
        buffers = {key for key, origin in state.origins.items() if origin.param and origin.param.kind != "parameter"}
        self._weights = _weights_by_block(state, buffers)

    def run(self, root: ModuleSpec) -> list[Block]:
        """Return all blocks, each before those inside it. A module's content is drawn at its first place only.

        Args:
            root: the plan of the model.

        Raises:
            LimitError: there are more than `Limits.blocks`.
        """
        root_block = self._block(name="", spec=root, key="")
        blocks = [root_block]
        stack = [(root_block, root, "")]
        while stack:
            block, spec, key = stack.pop()
            if block.kind == "layer":  # or a module that is drawn elsewhere
                continue
            if spec.graph is not None:
                modules_inside = self._fill_graph(block, spec, spec.graph, key)
            else:
                modules_inside = self._fill(block, spec, key)
            blocks += block.inside
            stack += reversed(modules_inside)
            _check_count(len(blocks), self._limits)
        _summarize(blocks)
        return blocks

    def _fill(self, block: Block, spec: ModuleSpec, key: str) -> list[tuple[Block, ModuleSpec, str]]:
        """Add to the block of a container, not empty, the blocks of its modules; return block, plan and key of each.

        Args:
            block: that of the container.
            spec: its plan.
            key: with which the keys of its weights in the state dict begin; empty for the root.
        """
        modules_inside = []
        for name, child in spec.children.items():
            child_key = f"{key}.{name}" if key else name
            child_block = self._block(name, child, child_key)
            child_block.place_in_plan = (id(spec), name)
            block.inside.append(child_block)
            modules_inside.append((child_block, child, child_key))
        _add_container_flows(block, spec)
        return modules_inside

    def _fill_graph(
        self, block: Block, spec: ModuleSpec, graph: GraphSpec, key: str
    ) -> list[tuple[Block, ModuleSpec, str]]:
        """Add to the block of a graph the blocks of its nodes; return block, plan and key of each module inside.

        Args:
            block: that of the graph.
            spec: the plan of the graph's module.
            graph: `spec.graph`.
            key: with which the keys of its weights in the state dict begin; empty for the root.
        """
        modules_inside = []
        # Here nodes count from 0, as the blocks inside; only in links they count from 1.
        for number, node in enumerate(graph.nodes):
            if node.module is None:  # it makes a list of its inputs
                block.inside.append(Block(name="", title="", kind="end", lines=["list"]))
                continue
            child = spec.children[node.module]
            child_key = f"{key}.{node.module}" if key else node.module
            label_in_lua = node.name
            child_block = self._block(label_in_lua or node.module, child, child_key)
            child_block.place_in_plan = (id(spec), number)
            block.inside.append(child_block)
            modules_inside.append((child_block, child, child_key))
        _add_graph_ends(block, graph)
        return modules_inside

    def _block(self, name: str, spec: ModuleSpec, key: str) -> Block:
        """Return the block of a module, without the blocks inside it; a reference, if the module has a block elsewhere.

        The module then counts as drawn.

        Args:
            name: of the module in the block around it.
            spec: its plan.
            key: its name in the state dict; empty for the whole model.
        """
        title = spec.target.rpartition(".")[2] or spec.class_name
        block = Block(name, title, class_name=spec.class_name, target=spec.target, key=key, path=spec.path, spec=spec)
        block.shape = _recorded_shape(spec.obj)
        if id(spec) in self._drawn:
            block.same = self._drawn[id(spec)]
            block.mark = "again"
            block.lines = [f"the same as {block.same}"]
            return block
        self._drawn[id(spec)] = key
        block.kind = _kind_of(spec)
        self._describe(block, spec)
        if spec.obj is not None:
            block.fields = _field_texts(spec.obj)
        block.weights = self._weights.get(key, [])
        _describe_weights(block)
        return block

    def _describe(self, block: Block, spec: ModuleSpec) -> None:
        """Give the block of a module its arguments and their label, or the title and mark that a special one has."""
        if spec.graph is not None:
            block.title = "Graph"
        if spec.path in self._unmapped:
            block.mark = "unmapped"
            block.title = spec.class_name
            block.lines = ["no PyTorch module"]
        elif spec.graph is None:  # the arguments of a graph are its nodes, which have blocks
            block.arguments = _arguments(spec)
            block.lines = _label(spec)


def _kind_of(spec: ModuleSpec) -> str:
    """Return the kind of a module's block; that of a container whose arrows are known is set with these again."""
    if spec.graph is not None:
        return "graph"
    if not spec.children:
        return "layer"
    is_chain = spec.target == SEQUENTIAL or len(spec.children) == 1
    return "chain" if is_chain else "side"


def _weights_by_block(tensors: Mapping[str, Tensor], buffers: set[str]) -> dict[str, list[Weight]]:
    """Return the tensors of a state dict by the keys of their blocks.

    A tensor in the memory of an earlier one, of the same shape, refers to it if that is in another block.

    Args:
        tensors: by key.
        buffers: the keys of those that are not parameters.
    """
    weights: dict[str, list[Weight]] = {}
    # By memory: block and key of the first tensor in it.
    first_users: dict[object, tuple[str, str]] = {}
    for key, tensor in tensors.items():
        block, _, name = key.rpartition(".")
        memory: object = object()  # a tensor without elements shares nothing
        if tensor.storage is not None:
            memory = (id(tensor.storage), tensor.offset, tensor.shape)
        first_block, first_key = first_users.setdefault(memory, (block, key))
        kind = "buffer" if key in buffers else "parameter"
        shared = first_key if first_block != block else ""
        weights.setdefault(block, []).append(Weight(name, key, tensor, kind, shared))
    return weights


def _describe_weights(block: Block) -> None:
    """Mark a block that has weights, and add to its label their number of elements, and the key of what it shares."""
    count = sum(prod(weight.tensor.shape) for weight in block.weights)
    if count:
        block.mark = block.mark or "weights"  # a class without a PyTorch module keeps its mark
        block.lines.append(counted(count, "element"))
    if block.owner:
        block.lines.append(f"shares {clean(block.owner, _OWNER_CHARS)}")


def counts_elements(line: str) -> bool:
    """Return whether a line of a block is the number of elements of its weights."""
    return line.endswith((" element", " elements"))


def _summarize(blocks: list[Block]) -> None:
    """Set what blocks say about those inside them: `parameters`, and `summary` of the containers.

    Args:
        blocks: all of them, each before those inside it.
    """
    # The classes of layers inside each container, by its id, until they are added to those of the container around.
    classes: dict[int, Counter[str]] = {}
    # By their ids: the containers in which there are branches, at any depth.
    branching: set[int] = set()
    # From the last to the first, so that what is inside a block is done before it.
    for block in reversed(blocks):
        learned = [weight for weight in block.weights if weight.kind == "parameter" and not weight.shared]
        own_count = sum(prod(weight.tensor.shape) for weight in learned)
        block.parameters = own_count + sum(inner.parameters for inner in block.inside)
        if not block.inside:
            continue
        classes[id(block)] = _count_classes(block, classes)
        names = _frequent_names(classes[id(block)])
        block.summary = [names] if names else []
        if _is_branched(block) or any(id(inner) in branching for inner in block.inside):
            branching.add(id(block))
            block.summary.append("branches inside")


def _is_branched(block: Block) -> bool:
    """Return whether the flow of a graph has branches: without any, there is one arrow less than blocks."""
    return len(block.flows) >= len(block.inside)


def _count_classes(block: Block, classes: dict[int, Counter[str]]) -> Counter[str]:
    """Count the classes of layers in a container, at any depth.

    Args:
        block: the container.
        classes: the counts of the containers in it, by their ids, which are taken out.
    """
    counts = Counter[str]()
    for inner in block.inside:
        if id(inner) in classes:
            counts.update(classes.pop(id(inner)))
        elif inner.kind != "end":
            counts[inner.title] += 1
    return counts


def _frequent_names(counts: Counter[str]) -> str:
    """Return the three most frequent classes: `Conv2d ×4, ReLU ×2, Linear`."""
    texts = []
    for name, count in counts.most_common(3):
        if name:  # groups of names in a state dict have no class
            texts.append(f"{name} ×{count}" if count > 1 else name)
    return clean(", ".join(texts), _DETAIL_CHARS)


def _check_count(count: int, limits: Limits) -> None:
    """Refuse a model with too many blocks.

    Args:
        count: the blocks so far.
        limits: resource limits, of which `blocks` counts.

    Raises:
        LimitError: there are more than `Limits.blocks`.
    """
    if count > limits.blocks:
        raise limits.exceeded(
            "blocks",
            "the model has too many modules for a picture",
            hint="Draw a part with --at (at=… in Python), or raise it: --limit blocks=N, or limits=Limits(blocks=N) in "
            "Python.",
        )


def _recorded_shape(obj: TorchObject | None) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of the tensors of a module's last output, from its field `output`; of a table the first ones.

    A tensor without elements was cleared, and says nothing.
    """
    value: Value = obj.get("output") if obj is not None else None
    outputs = [value]
    if isinstance(value, Table):
        outputs = (value.sequence() or [])[:_MOST_OUTPUTS]
    return tuple(output.shape for output in outputs if isinstance(output, Tensor) and output.numel)


def shape_text(shape: tuple[tuple[int, ...], ...]) -> str:
    """Return `1×64×56×56`; of several tensors all, separated by commas."""
    return ", ".join(extents(sizes[:_MOST_DIMENSIONS]) for sizes in shape)


def _arguments(spec: ModuleSpec) -> dict[str, str]:
    """Return the arguments of the constructor, as text: positional ones by number, from 0; others unless `None`."""
    arguments: dict[str, Literal] = {str(number): value for number, value in enumerate(spec.args)}
    arguments.update((name, value) for name, value in spec.kwargs.items() if value is not None)
    return {name: clean(_literal_text(value), _FIELD_CHARS) for name, value in arguments.items()}


def _label(spec: ModuleSpec) -> list[str]:
    """Return one line of limited length with the arguments that are not defaults, or nothing."""
    texts = [*_positional_texts(spec), *_keyword_texts(spec)]
    label = ", ".join(texts)
    if len(label) > _DETAIL_CHARS:
        label = label[: _DETAIL_CHARS - 1] + "…"
    return [label] if label else []


def _is_convolution(spec: ModuleSpec) -> bool:
    """Return whether the first arguments of a class are channels of input and output, and the size of the kernel."""
    return is_torch_or_ours(spec.target) and "Conv" in spec.target


def _positional_texts(spec: ModuleSpec) -> list[str]:
    """Return positional arguments as text: `3 → 64`, `kernel 7` of a convolution."""
    texts = [_literal_text(value) for value in spec.args]
    is_linear = is_torch_or_ours(spec.target) and spec.target.endswith("Linear")
    if len(texts) < 2 or not (_is_convolution(spec) or is_linear):
        return texts
    inputs, outputs, *others = texts
    if _is_convolution(spec) and others:
        others[0] = f"kernel {others[0]}"
    return [f"{inputs} → {outputs}", *others]


def _keyword_texts(spec: ModuleSpec) -> list[str]:
    """Return arguments by keyword as text, without defaults, and without `inplace`, as the output is the same."""
    defaults: dict[str, Literal] = {}
    if is_torch_or_ours(spec.target):
        defaults.update(_DEFAULTS)
    if _is_convolution(spec):
        defaults["stride"] = 1
    texts = []
    for name, value in spec.kwargs.items():
        # As text, by which (1, 1) is the default 1.
        is_default = name in defaults and _literal_text(value) == repr(defaults[name])
        is_inplace = name == "inplace" and is_torch_or_ours(spec.target)
        if value is not None and not is_default and not is_inplace:
            texts.append(f"{name}={_literal_text(value)}")
    return texts


def _literal_text(value: Literal) -> str:
    """Return a literal as text; for a tuple of equal elements only one of these."""
    if isinstance(value, tuple) and len(value) > 1 and len(set(map(repr, value))) == 1:
        return repr(value[0])
    return repr(value)


def _field_texts(obj: TorchObject) -> dict[str, str]:
    """Return the descriptive fields of the object, as text: no modules, weights or temporary values."""
    texts: dict[str, str] = {}
    if obj.fields is None:
        return texts
    for key, value in obj.fields.raw_items():
        name = _key_text(key) if isinstance(key, bytes) else short(key)
        if is_scratch(name) or name in _STRUCTURE_FIELDS:
            continue
        if value is None or isinstance(value, Tensor):
            continue
        texts[clean(name, _FIELD_CHARS)] = clean(_field_text(value), _FIELD_CHARS)
        if len(texts) >= _MAX_FIELDS:
            break
    return texts


def _field_text(value: Value) -> str:
    """Return the value of a field as text: of a storage of few integers, as sizes are, its elements."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, Storage):
        return short(value)
    is_of_signed_integers = value.element.code[0] == "i"  # by numpy's code; of these are Lua's sizes
    if is_of_signed_integers and value.count <= _MOST_SIZES:
        return str(integers(value))
    return f"{value.element.name} [{value.count}]"


@define(frozen=True)
class Wire:
    """A value in a container, of which only the source is known: the input of the container, or a module inside.

    Attributes:
        origin: its source and the elements selected from there, counted from 0: `()` is the input of the container,
            `(2,)` its third element; `(-1,)` is the output of the first module inside, `(-1, 2)` its third element.
            `None` if it is computed from several values.
        items: the elements of a list.
        is_open: whether the list may have more elements, of the same source as its only one in `items`.
    """

    origin: tuple[int, ...] | None = None
    items: tuple[Wire, ...] | None = None
    is_open: bool = False

    @property
    def origins(self) -> list[tuple[int, ...]]:
        """The source of the value, or those of the elements of a list; none of a value that is computed from others."""
        if self.origin is not None:
            return [self.origin]
        origins: list[tuple[int, ...]] = []
        for item in self.items or ():
            origins += item.origins
        return origins


class Wires(Domain[Wire]):
    """The sources of the inputs of the modules in a container: its arrows.

    Attributes:
        inputs: of each module inside, by its name, that of its first call.
    """

    def __init__(self) -> None:
        self.inputs: dict[str, Wire] = {}
        self._sources: dict[int, dict[str, int]] = {}
        """By the id of a container, the number of each module inside in a `Wire.origin`: -1, -2, ..."""

    def tensor(self) -> Wire:
        """Return a value that no module inside returned."""
        return Wire()

    def items(self, values: Sequence[Wire]) -> Wire:
        """Return a list."""
        return Wire(items=tuple(values))

    def many(self, values: Sequence[Wire]) -> Wire:
        """Return a list of unknown length; its elements have a known source only if all values have the same."""
        element = values[0] if len(set(values)) == 1 else Wire()
        return Wire(items=(element,), is_open=True)

    def item(self, value: Wire, index: int, dim: int | None = None) -> Wire:
        """Return an element; one that is not known by itself has the source of the whole, if that is known.

        Args:
            value: the list, or a tensor.
            index: of the element, from 0, or from -1 backwards.
            dim: the dimension of which it is a slice; that makes no difference to its source.
        """
        items = value.items or ()
        if not value.is_open and -len(items) <= index < len(items):
            return items[index]
        if value.origin is not None:
            return Wire((*value.origin, index))
        # Any further element of an open list is like its only known one.
        return items[0] if value.is_open else Wire()

    def length(self, value: Wire, dim: int | None = None) -> int | None:
        """Return the number of elements of a list; that of slices is not known."""
        if value.items is None or value.is_open or dim is not None:
            return None
        return len(value.items)

    def is_list(self, value: Wire) -> bool | None:
        """Return whether a value is a list, as far as that is known."""
        return True if value.items is not None else None

    def concat(self, values: Sequence[Wire], dim: int, *, pads: bool = False) -> Wire:
        """Return a value that is computed from others."""
        return Wire()

    def merge(self, value: Wire, dims: int, apply: Callable[[Wire], Wire]) -> Wire:
        """Apply the function to the tensor itself, which has the same source."""
        return apply(value)

    def steps(self, value: Wire, apply: Callable[[Wire], Wire]) -> Wire:
        """Return a list for a list; the steps of anything else have the source of the whole."""
        return super().steps(value, apply) if value.items is not None else apply(value)

    def stack(self, value: Wire, apply: Callable[[Wire], Wire]) -> Wire:
        """Return a list for a list; apply the function to anything else as a whole."""
        return super().stack(value, apply) if value.items is not None else apply(value)

    def call(self, spec: ModuleSpec, child: str, value: Wire, node: int | None = None) -> Wire:
        """Note the input of a module inside, and return its output, whose source is the module.

        Args:
            spec: the container.
            child: the name of the module in it.
            value: the input; of several calls of a module, that of the first is kept.
            node: not needed.
        """
        self.inputs.setdefault(child, value)
        sources = self._sources.get(id(spec))
        if sources is None:
            # Negative numbers, as others are elements of the container's input.
            sources = {name: -1 - number for number, name in enumerate(spec.children)}
            self._sources[id(spec)] = sources
        return Wire((sources[child],))


def _add_container_flows(block: Block, spec: ModuleSpec) -> None:
    """Add the arrows of a container to its block, and the ends that they need.

    A container without a flow, or whose flow does not say what each module inside receives, is drawn without arrows.
    """
    names = list(spec.children)
    wires = Wires()
    output = _output_of(spec, wires)
    if output is None or len(wires.inputs) < len(names):
        return
    flows = _container_flows([wires.inputs[name] for name in names], output)
    end_label = _end_label(spec, output)
    is_plain_chain = end_label == _OUTPUT and _is_chain(flows, len(names))
    if is_plain_chain or _lists_calls_of_one(names, output):
        block.kind = "chain"  # which has its arrows without `flows`, and no ends
        return
    block.kind = "graph"
    block.inside += [_end_block("input"), _end_block(end_label)]
    block.flows = flows


def _lists_calls_of_one(modules: Sequence[str], output: Wire) -> bool:
    """Return whether a container returns a list of what several calls of its only module return, as an nn.MapTable.

    Args:
        modules: the names of those inside.
        output: that of the container.
    """
    if len(modules) != 1 or output.items is None:
        return False
    # `is_open`: as many calls as the input has elements.
    return output.is_open or len(output.items) != 1


def _output_of(spec: ModuleSpec, wires: Wires) -> Wire | None:
    """Run the flow of a container on values that only say where they come from, and return its output.

    Args:
        spec: the container.
        wires: receives the inputs of the modules inside.

    Returns:
        `None` if the class has no flow, or it fails for values of which nothing else is known; `wires` is then of no
        use, as it may lack modules.
    """
    facts = traits_of(spec.target)
    if facts.flow is None:
        return None
    container_input = Wire(origin=())  # the whole input; `(0,)` is its first element
    if facts.takes_list and len(spec.children) > 1:
        # One element for each of several modules inside: a flow may ask how many there are. A single module may be
        # applied to each element of a list of any length, as in an nn.MapTable.
        elements = tuple(Wire(origin=(number,)) for number in range(len(spec.children)))
        container_input = Wire(origin=(), items=elements)
    try:
        output: Wire = facts.flow(spec, container_input, wires)
    except FLOW_ERRORS:
        return None
    return output


_OUTPUT = "output"
"""The label of the end of a container that returns what a module inside returned, or something computed from it."""


def _end_block(label: str) -> Block:
    """Return the block of the input or output of a graph."""
    return Block(name="", title="", kind="end", lines=[label])


def _is_chain(flows: list[Flow], count: int) -> bool:
    """Return whether arrows lead from the input through all modules in order to the output, and nowhere else.

    Args:
        flows: the arrows; `count` is the number of the input, and `count + 1` that of the output.
        count: number of modules.
    """
    steps = [count, *range(count), count + 1]
    return set(flows) == {Flow(start, end) for start, end in pairwise(steps)}


def _end_label(spec: ModuleSpec, output: Wire) -> str:
    """Return what the end of a container is called: what it makes of the outputs of the modules inside."""
    if output.items is not None:
        return "table"
    # Containers that concatenate have one of these arguments.
    dim = spec.kwargs.get("output_dim", spec.kwargs.get("dim"))
    is_of_one_source = output.origin is not None  # one module, or the input: nothing was joined
    if is_of_one_source or dim is None:
        return _OUTPUT
    return f"concat, dim {dim}"


def _container_flows(inputs: list[Wire], output: Wire) -> list[Flow]:
    """Return the arrows of a container: first those from its input, last those to its output.

    In them its input has the number after those of the modules, and its output the next one.

    Args:
        inputs: those of the modules inside, which are numbered from 0 in this order.
        output: that of the container.
    """
    input_number = len(inputs)
    output_number = input_number + 1
    flows: list[Flow] = []
    for number, wire in enumerate(inputs):
        # A module whose input is unknown receives something of the container's.
        for origin in wire.origins or [()]:
            flows.append(_arrow(origin, input_number, end=number))
    if output.origins:
        flows += [_arrow(origin, input_number, end=output_number) for origin in output.origins]
    else:
        # The container computes its output of all outputs that no module inside receives.
        used = {flow.start for flow in flows}
        flows += [Flow(number, output_number) for number in range(len(inputs)) if number not in used]
    distinct_flows = dict.fromkeys(flows)
    return sorted(distinct_flows, key=lambda flow: (flow.end == output_number, flow.start != input_number))


def _arrow(origin: tuple[int, ...], input_number: int, end: int) -> Flow:
    """Return the arrow of a value in a container.

    Args:
        origin: the source of the value, see `Wire.origin`.
        input_number: that of the container's input among its blocks.
        end: number of the block that receives the value.
    """
    is_of_module = len(origin) > 0 and origin[0] < 0
    if not is_of_module:
        return Flow(input_number, end, _indices_text(origin))
    module, *elements = origin
    return Flow(-1 - module, end, _indices_text(elements))  # -1 is the first module, whose block is number 0


def _indices_text(indices: Sequence[int]) -> str:
    """Return the indices of an element of nested lists as text, the outermost list's first: `[0][2]`."""
    return "".join(f"[{index}]" for index in indices)


def _add_graph_ends(block: Block, graph: GraphSpec) -> None:
    """Add the input, the output and the flows of a graph to its block, which has the blocks of its nodes.

    In a graph, 0 is the input and nodes count from 1; blocks count from 0, and the ends come after those of the nodes.
    """
    count = len(graph.nodes)
    input_number = count
    output_number = count + 1
    block.inside += [_end_block("input"), _end_block(_OUTPUT)]
    links_by_end = {number: node.takes for number, node in enumerate(graph.nodes)}
    links_by_end[output_number] = graph.outputs
    # Several arrows between two blocks are one with several labels.
    labels: dict[tuple[int, int], list[str]] = {}
    for end, links in links_by_end.items():
        for position, (source, elements) in enumerate(links, 1):
            start = input_number if source == 0 else source - 1
            label = _carried(elements, position if len(links) > 1 else None)
            labels.setdefault((start, end), []).append(label)
    block.flows = []
    for (start, end), texts in labels.items():
        label = clean(", ".join(filter(None, texts)), _FIELD_CHARS)
        block.flows.append(Flow(start, end, label))


def _carried(elements: Sequence[int], position: int | None) -> str:
    """Return the label of an arrow: the input that it leads to, and the element that it carries, `2: [0]`.

    Either may be missing: `[0]`, `2`, or nothing.

    Args:
        elements: the indices of that element in the output that the arrow leaves, from 0, the outermost list's first;
            none for the whole output.
        position: of the input among those of the block, from 1; `None` for the only one.
    """
    element_text = _indices_text(elements[:_MOST_INDICES])
    position_text = str(position) if position is not None else ""
    return ": ".join(filter(None, (position_text, element_text)))


def carried_text(label: str, shapes: tuple[tuple[int, ...], ...]) -> str:
    """Return what an arrow carries, as pictures show it: `#1 [0] 1×6`.

    This is the first element of an output, of the shape 1×6, that is the second of several inputs, `#1`.

    Args:
        label: of the flow: texts of `_carried`, where inputs count from 1, separated by commas.
        shapes: of the output that it comes from; several arrows in one have those of all of it.
    """
    matches: list[re.Match[str]] = []
    for text in label.split(", "):
        match = _CARRIED.fullmatch(text)
        if match is None:  # it has elements of elements, or was cut: the label stays as it is
            return f"{label} {shape_text(shapes)}".strip()
        matches.append(match)
    if len(matches) == 1 and matches[0]["element"] is not None:
        shapes = _shapes_at(int(matches[0]["element"]), shapes)
    shown_label = ", ".join(map(_shown_text, matches))
    return f"{shown_label} {shape_text(shapes)}".strip()


_CARRIED = pattern(r"(?P<position>\d+)?(?:: )?(?:\[(?P<element>\d+)\])?")
"""A text of `_carried`: the position of an input, from 1, and one element, from 0; each may be missing."""


def _shown_text(match: re.Match[str]) -> str:
    """Return a text of `_carried` as pictures show it, where inputs count from 0: `#1 [0]` for `2: [0]`."""
    position = match["position"]
    element = match["element"]
    position_text = "" if position is None else f"#{int(position) - 1}"
    element_text = "" if element is None else f"[{element}]"
    return " ".join(filter(None, (position_text, element_text)))


def _shapes_at(element: int, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return the shape of an element of an output; nothing if it is not among those known.

    Args:
        element: its number, from 0.
        shapes: of the output: those of the elements of a list. A single one may be that of a tensor, and stays.
    """
    return shapes if len(shapes) == 1 else shapes[element : element + 1]


def structure_blocks(value: Any, title: str, limits: Limits = DEFAULT_LIMITS) -> list[Block]:
    """Return all blocks of a value that holds tensors, each before those inside it.

    Args:
        value: a state dict, a checkpoint, an object of a pickled module, or a Lua table of tensors.
        title: of the whole.
        limits: resource limits.

    Raises:
        ModelError: it contains no tensors, or none whose name is a path or that of a layer's tensor.
        LimitError: there are too many blocks, or they are nested too deep.
    """
    tensors, objects = _gather(value, limits)
    has_named_tensors = any(key for key in tensors)  # the key of a tensor that is the value itself is empty
    if not has_named_tensors:
        raise ModelError("the file holds no module and no tensors", hint="t7bridge inspect shows its content.")
    if not any("." in key or key in ("weight", "bias") for key in tensors):
        found = listed(f"a tensor {key}" for key in tensors)
        raise ModelError("the file holds no model", found=found, hint="t7bridge inspect shows its content.")
    root = _tree_of_blocks(tensors, objects, limits)
    root.title = root.class_name or title
    root.target = ""  # else tables would name its class beside the title again
    root.kind = "side" if root.inside else "layer"
    blocks = list(root.walk())
    _summarize(blocks)
    return blocks


def _tree_of_blocks(
    tensors: Mapping[str, Tensor], objects: Mapping[str, PythonObject | TorchObject], limits: Limits
) -> Block:
    """Return the block of a whole, with the blocks of objects and of the prefixes of the tensors' names inside it.

    Args:
        tensors: the tensors, by path.
        objects: the objects, by path.
        limits: resource limits.

    Raises:
        LimitError: there are too many blocks.
    """
    weights = _weights_by_block(tensors, {key for key in tensors if key.rpartition(".")[2] in _BUFFERS})
    root = _structure_block("", objects.get(""), weights.get("", []))
    by_path = {"": root}
    for key in [*weights, *objects]:
        for path in _prefixes(key):
            if path in by_path:
                continue
            block = _structure_block(path, objects.get(path), weights.get(path, []))
            by_path[path] = block
            _check_count(len(by_path) - 1, limits)  # without the root
            parent_path, _, _ = path.rpartition(".")
            parent = by_path[parent_path]
            parent.inside.append(block)
            parent.kind = "chain" if parent.class_name == _PICKLED_SEQUENTIAL else "side"
    return root


def _prefixes(key: str) -> Iterator[str]:
    """Yield the paths that lead to a key, and the key: `a`, `a.b` and `a.b.c` for `a.b.c`."""
    return accumulate(key.split("."), lambda path, name: f"{path}.{name}")


def _structure_block(path: str, obj: PythonObject | TorchObject | None, weights: list[Weight]) -> Block:
    """Return the block of an object, or of the tensors whose names have a common prefix, without the blocks inside it.

    Args:
        path: of the object, or the prefix; empty for the whole.
        obj: the object; `None` for a prefix.
        weights: its own tensors.
    """
    _, _, name = path.rpartition(".")
    class_name = _class_of(obj) if obj is not None else ""
    block = Block(clean(name, _NAME_CHARS), class_name.rpartition(".")[2], class_name=class_name, key=path, path=path)
    if class_name.startswith("torch.nn."):
        block.target = class_name
    block.weights = weights
    block.fields = _attribute_texts(obj)
    _describe_weights(block)
    # A few name the kind of layer; the page lists all of them.
    for weight in weights[:_LISTED_WEIGHTS]:
        block.lines.append(clean(f"{weight.name} {extents(weight.tensor.shape)}"))
    return block


def _gather(value: Any, limits: Limits) -> tuple[dict[str, Tensor], dict[str, PythonObject | TorchObject]]:
    """Return the tensors of a value, and the objects in it, by their paths: `layer1.0.weight`.

    Raises:
        LimitError: there are too many, or they are nested too deep.
    """
    tensors: dict[str, Tensor] = {}
    objects: dict[str, PythonObject | TorchObject] = {}
    for path, item in _all_inside(value, limits):
        if isinstance(item, Tensor):
            tensors[path] = item
            _check_count(len(tensors), limits)
        elif isinstance(item, (PythonObject, TorchObject)):
            objects[path] = item
            _check_count(len(objects), limits)
    return tensors, objects


def _all_inside(value: Any, limits: Limits) -> Iterator[tuple[str, Any]]:
    """Yield a value and what is in it at any depth, each with its path: a tensor at all of its paths, others at one.

    Raises:
        LimitError: they are nested too deep, or too many.
    """
    seen: set[int] = set()
    stack = [("", value, 0)]
    steps = 0
    while stack:
        path, item, depth = stack.pop()
        if isinstance(item, Tensor):
            yield path, item
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield path, item
        inside = _inside(item)
        steps += len(inside)
        if depth > _DEEPEST or steps > _VALUES_PER_BLOCK * limits.blocks:
            raise LimitError("the values are nested too deep, or are too many, for a picture", found=path[:60])
        for name, inner in reversed(inside):
            stack.append((f"{path}.{name}" if path else name, inner, depth + 1))


def _inside(value: Any) -> list[tuple[str, Any]]:
    """Return the tensors, objects and containers in a value by name; a key that is neither text nor number has none.

    Of a torch.nn.Module these are its parameters, buffers and modules; of another object of Python its attributes.
    """
    named: list[tuple[str, Any]] = []
    for key, item in _pairs_inside(value):
        if isinstance(item, _HOLDERS) and type(key) in (bytes, float, int, str):
            named.append((_key_text(key), item))
    return named


def _pairs_inside(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return what `_inside` names, whatever it is, by keys of any type."""
    if isinstance(value, PythonObject):
        return _module_parts(value) or _public_attributes(value)
    return entries(value)


def _module_parts(value: PythonObject) -> list[tuple[Any, Any]]:
    """Return the parameters, buffers and modules of a torch.nn.Module, each with its name; none of another object."""
    parts: list[tuple[Any, Any]] = []
    for name in MODULE_PARTS:
        part = value.attributes.get(name)
        if isinstance(part, dict):
            parts += part.items()
    return parts


def _key_text(key: bytes | float | int | str) -> str:
    """Return the key of an entry as a step of a path."""
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    # A float as Lua prints it: 1, not 1.0.
    return f"{key:.14g}" if isinstance(key, float) else str(key)


def _public_attributes(value: PythonObject) -> list[tuple[str, Any]]:
    attributes = value.attributes.items()
    return [(name, item) for name, item in attributes if isinstance(name, str) and not name.startswith("_")]


def _class_of(value: PythonObject | TorchObject) -> str:
    return clean(value.path if isinstance(value, PythonObject) else value.class_name, _CLASS_CHARS)


def _attribute_texts(value: PythonObject | TorchObject | None) -> dict[str, str]:
    """Return the first public attributes of an object of Python that are numbers, strings or tuples, as text."""
    if not isinstance(value, PythonObject):
        return {}
    shown = []
    for name, item in _public_attributes(value):
        if isinstance(item, (bool, int, float, str, tuple)):
            shown.append((name, item))
    return {clean(name, _NAME_CHARS): clean(short(item), _FIELD_CHARS) for name, item in shown[:_MAX_FIELDS]}
