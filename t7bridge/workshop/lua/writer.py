"""Lua source of layers: functions for containers that are repeated, an expression for the rest.

Containers of one structure are a *block*: one function, whose parameters are what differs among them.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain, count
from os.path import commonprefix
from typing import Any

from attrs import field

from ...data import define
from .fields import CLASSES
from .layers import LuaLayer, LuaNode, WeightRef, structure_of, walk
from .literals import lua_string, lua_text
from .trace import Program

USUAL = ("weight", "bias", "running_mean", "running_var")
"""Fields that `named` of the source finds by the prefix of their keys."""
MOST_LOCALS = 120
"""Nodes of a graph up to which they are local variables, of which Lua allows 200 in a function."""
_WORDS = """
and break do else elseif end false for function goto if in local nil not or repeat return then true until while nn
nngraph torch model named numbers prefix suffix tie tied build load M unpack
"""
"""Names that the source cannot give: Lua's words, and those of the page itself."""
_DIGITS = "0123456789"
_NAMES = {
    **dict.fromkeys(("dW", "dH", "dT"), "stride"),
    **dict.fromkeys(("kW", "kH", "kT"), "kernel"),
    **dict.fromkeys(("padW", "padH", "padT"), "pad"),
    **dict.fromkeys(("dilationW", "dilationH", "dilationT"), "dilation"),
    "constant_scalar": "scalar",
    "p": "dropout",
    "-": "n",
}
"""Arguments of constructors → parameters of our functions."""
_SETTINGS = {"stride", "kernel", "pad", "dilation", "dimension", "index", "size", "dropout"}
"""Parameters that stay apart from others of equal values."""
_POSITIONS = {"Linear": ("nInput", "nOutput"), "LookupTable": ("nIndex", "nOutput"), "View": ("size",) * 9}
"""Names of arguments that are not stored."""
_NODES = {
    "CAddTable": "sum",
    "CMulTable": "product",
    "CSubTable": "difference",
    "CDivTable": "quotient",
    "JoinTable": "joined",
    "MM": "product",
    "SelectTable": "item",
    "gModule": "out",
    "ConcatTable": "parts",
}
"""Names of nodes, where they are not those of attributes."""


@define(frozen=True)
class _Key:
    """A key of the state dict in the source, relative to the prefix and the suffix of the function."""

    key: str

    def __str__(self) -> str:
        return lua_string(self.key)


@define(frozen=True)
class _Args:
    """Arguments in the source, those that vary among the layers of a function as its parameters.

    Attributes:
        texts: of the arguments, defaults included.
        names: for parameters.
        needed: the number of arguments without trailing defaults.
    """

    texts: tuple[str, ...]
    names: tuple[str, ...]
    needed: int

    @staticmethod
    def alike(texts: tuple[str, ...], name: str) -> _Args:
        """Return arguments without defaults that have one name."""
        return _Args(texts, (name,) * len(texts), len(texts))

    def __str__(self) -> str:
        return ", ".join(self.texts[: self.needed])


_Parts = list[Any]
"""Source: text, `_Key` and `_Args`; outside of functions it is their texts."""


@define(eq=False)
class _Block:
    """A function of the source, or a container that is written where it is used.

    Attributes:
        layers: those that it creates, which differ in arguments and prefix only.
        prefixes: of the keys of each.
        suffixes: likewise: `_hh_l0`.
        height: of its tree.
        inline: whether it is written where it would be called.
        name: of the function, once it is written.
        values: the parameters' names, and the texts of their values for each layer, once it is written.
    """

    layers: list[LuaLayer] = field(factory=list)
    prefixes: list[str] = field(factory=list)
    suffixes: list[str] = field(factory=list)
    height: int = 0
    inline: bool = False
    name: str = ""
    values: dict[str, list[str]] = field(factory=dict)

    @property
    def has_prefix(self) -> bool:
        """Whether the prefix is a parameter."""
        return len(set(self.prefixes)) > 1

    @property
    def has_suffix(self) -> bool:
        """Whether the suffix is a parameter."""
        return len(set(self.suffixes)) > 1

    @property
    def parameters(self) -> list[str]:
        """The names of the function's parameters."""
        names = []
        if self.has_prefix:
            names.append("prefix")
        if self.has_suffix:
            names.append("suffix")
        return [*names, *self.values]

    def key(self, key: str) -> str:
        """Return a key of the first layer as an expression of the parameters."""
        start = len(self.prefixes[0]) if self.has_prefix else 0
        end = len(key)
        if self.has_suffix and key.endswith(self.suffixes[0]):
            end -= len(self.suffixes[0])
        words = []
        if start > 0:
            words.append("prefix")
        if start < end:
            words.append(lua_string(key[start:end]))
        if end < len(key):
            words.append("suffix")
        return " .. ".join(words)


@define(eq=False)
class Writer:
    """The source of one model.

    Attributes:
        program: the traced program, for names and shapes.
        blocks: by what their layers have in common.
        block_of: the block of a container.
    """

    program: Program
    blocks: dict[Any, _Block] = field(factory=dict)
    block_of: dict[LuaLayer, _Block] = field(factory=dict)

    # Blocks

    def group(self, root: LuaLayer) -> None:
        """Find the blocks of a model."""
        for layer in dict.fromkeys(walk(root)):
            if layer.name == "nn.gModule" or (layer is not root and _is_large(layer)):
                self._add(layer)
        callers = [block.layers[0] for block in self.blocks.values()]
        if root not in self.block_of:
            callers.append(root)
        uses = Counter(self.block_of[inner] for layer in callers for inner in self._called(layer))
        for block in self.blocks.values():
            first = block.layers[0]
            # A graph has statements, and a label is the name of a function.
            block.inline = first.name != "nn.gModule" and not first.label and uses[block] <= 1

    def is_inside(self, layer: LuaLayer, name: str) -> bool:
        """Return whether a container of a class may be written as a part of another of the class."""
        block = self.block_of.get(layer)
        return layer.name == name and not layer.label and (block is None or block.inline)

    def _add(self, layer: LuaLayer) -> None:
        """Add a container to the block of those with the same structure."""
        inner = walk(layer)
        keys: list[str] = []
        for part in inner:
            keys += [ref.key for ref in part.weights.values()]
        # What the keys begin and end with may differ between the layers of a block: it is a parameter of the function.
        prefix = _common_prefix(keys)
        if keys and layer.path and all(key.startswith(f"{layer.path}.") for key in keys):
            prefix = layer.path
        suffix = _common_suffix(keys)

        def settings(part: LuaLayer) -> Any:
            """Return the numbers of arguments; their values may differ."""
            values, _ = _constructor_values(part)
            return len(values), tuple((name, len(args)) for name, args in part.calls)

        def form(ref: WeightRef) -> Any:
            """Return what must be equal of a tensor: the rest of its key, and how the source describes it."""
            word = ref.key[len(prefix) :].removesuffix(suffix)
            rank = len(self.program.state[ref.key].shape)
            return word, bool(suffix), self._is_whole(ref), bool(ref.start), ref.transposed, rank

        structure = structure_of(layer, settings, form)
        block = self.blocks.setdefault(structure, _Block())
        self.block_of[layer] = block
        block.layers.append(layer)
        block.prefixes.append(prefix)
        block.suffixes.append(suffix)
        block.height = len(inner)

    def _called(self, layer: LuaLayer) -> list[LuaLayer]:
        """Return the containers that the function of a layer uses, without those inside them."""
        containers: list[LuaLayer] = []
        stack = [layer]
        while stack:
            for inner in stack.pop().inside:
                if inner in self.block_of:
                    containers.append(inner)
                else:
                    stack.append(inner)
        return containers

    # Functions

    def source(self, root: LuaLayer) -> tuple[str, str]:
        """Return the functions, inner ones first, and the expression of the whole model."""
        self.group(root)
        blocks = sorted((block for block in self.blocks.values() if not block.inline), key=lambda block: block.height)
        functions = "".join(self._function(block) for block in blocks)
        return functions, "".join(map(str, self._expression(root, 1)))

    def _function(self, block: _Block) -> str:
        """Return a function that creates any of the layers of a block, and name it and its parameters."""
        bodies = [self._body(layer) for layer in block.layers]
        block.name = self._function_name(block.layers[0])
        used = self._reserved
        for part in bodies[0]:
            if isinstance(part, str):
                used.update(re.findall(r"\w+", part))
        text = ""
        for parts in zip(*bodies):  # the same part of each layer
            first = parts[0]
            if isinstance(first, str):
                text += first
            elif isinstance(first, _Key):
                text += block.key(first.key)
            else:
                text += _arguments(block, list(parts), used)
        return f"\nlocal function {block.name}({', '.join(block.parameters)})\n   {text}\nend\n"

    def _function_name(self, layer: LuaLayer) -> str:
        """Return the name of a container's function: that of its class in PyTorch, or of its attribute."""
        kind = type(self.program.modules.get(layer.path)).__name__
        if kind in ("Sequential", "NoneType"):
            words = [word for word in layer.path.split(".") if word.rstrip(_DIGITS)]
            kind = words[-1] if words else layer.name.removeprefix("nn.")
        kind = layer.label or kind.rstrip(_DIGITS)
        words = re.split(r"[^A-Za-z0-9]+", kind)
        name = "".join(word[:1].upper() + word[1:] for word in words) or "Block"
        if not name[0].isalpha():
            name = f"Block{name}"
        return _unused(name, self._reserved)

    @property
    def _reserved(self) -> set[str]:
        """The names that others cannot have: the page's own, and its functions'."""
        return {*_WORDS.split(), *(block.name for block in self.blocks.values())}

    def _body(self, layer: LuaLayer) -> _Parts:
        """Return the statements of the function that creates a layer."""
        if layer.name == "nn.gModule":
            return self._graph(layer)
        return ["return ", *self._constructor(layer, 1)]

    def _graph(self, layer: LuaLayer) -> _Parts:
        """Return the statements that create an nn.gModule; its nodes have the names of PyTorch's attributes."""
        parts: _Parts = []
        prefix = ""
        declaration = "local "
        if len(layer.steps) > MOST_LOCALS:  # they are fields of one table
            parts = ["local x = {}\n   "]
            prefix = "x."
            declaration = ""
        variables: dict[int, str] = {}  # by the id of a step
        used = self._reserved
        for step in layer.steps:
            name = _unused(_node_name(step, layer.path), used)
            used.add(name)
            variables[id(step)] = prefix + name
            parts.append(f"{declaration}{prefix}{name} = ")
            if step.layer is None:
                parts.append("nn.Identity()()\n   ")
                continue
            sources = ", ".join(variables[id(source)] for source in step.inputs)
            if len(step.inputs) != 1:
                sources = f"{{{sources}}}"
            parts += [*self._expression(step.layer, 1), f"({sources})\n   "]
        inputs = ", ".join(variables[id(step)] for step in layer.steps if step.layer is None)
        outputs = ", ".join(variables[id(step)] for step in layer.outputs)
        return [*parts, f"return nn.gModule({{{inputs}}}, {{{outputs}}})"]

    # Expressions

    def _expression(self, layer: LuaLayer, depth: int) -> _Parts:
        """Return the expression that creates a layer: a call of its function, or of its constructor."""
        block = self.block_of.get(layer)
        if block is None or block.inline:
            return self._constructor(layer, depth)
        number = block.layers.index(layer)
        arguments = {name: values[number] for name, values in block.values.items()}
        if block.has_suffix:
            arguments = {"suffix": lua_string(block.suffixes[number]), **arguments}
        parts: _Parts = [f"{block.name}("]
        if block.has_prefix:
            parts.append(_Key(block.prefixes[number]))
        if block.has_prefix and arguments:
            parts.append(", ")
        if arguments:
            parts.append(_Args(tuple(arguments.values()), tuple(arguments), len(arguments)))
        return [*parts, ")"]

    def _constructor(self, layer: LuaLayer, depth: int) -> _Parts:
        """Return a constructor call with its additions."""
        arguments = _constructor_arguments(layer)
        if layer.name == "nn.Bottle":
            return ["nn.Bottle(", *self._expression(layer.children[0], depth), ", ", arguments, ")"]
        parts: _Parts = [f"{layer.name}(", arguments, ")"]
        for name, args in layer.calls:
            parts += [f":{name}(", _Args.alike(tuple(map(lua_text, args)), name.removeprefix("set")), ")"]
        for child in layer.children:
            parts += ["\n" + "   " * (depth + 1) + ":add(", *self._expression(child, depth + 1), ")"]
        return self._named(parts, layer)

    def _named(self, parts: _Parts, layer: LuaLayer) -> _Parts:
        """Return a constructor call that says which tensors of the state dict the layer holds."""
        if not layer.weights:
            return parts
        prefixes = {ref.key.rpartition(".")[0] for ref in layer.weights.values()}
        has_own_names = all(
            self._is_whole(ref) and ref.key.rpartition(".")[2] == name for name, ref in layer.weights.items()
        )
        if has_own_names and len(prefixes) == 1 and set(layer.weights) <= set(USUAL):
            prefix = prefixes.pop()
            if prefix:
                return ["named(", *parts, ", ", _Key(prefix), ")"]
        entries: _Parts = []
        for name, ref in layer.weights.items():
            if entries:
                entries.append(", ")
            entries += self._entry(name, ref)
        return ["named(", *parts, ", {", *entries, "})"]

    def _entry(self, name: str, ref: WeightRef) -> _Parts:
        """Return a field of a layer with its key, and with what part of the tensor it is."""
        if self._is_whole(ref):
            return [f"{name} = ", _Key(ref.key)]
        sizes = tuple(str(int(extent)) for extent in self.program.state[ref.key].shape)
        parts = [f"{name} = {{key = ", _Key(ref.key), ", size = {", _Args.alike(sizes, "extent"), "}"]
        if ref.start:
            parts += [", start = ", _Args.alike((str(ref.start),), "start")]
        return [*parts, ", transposed = true}" if ref.transposed else "}"]

    def _is_whole(self, ref: WeightRef) -> bool:
        """Return whether a field has all of a tensor in its shape."""
        return tuple(self.program.state[ref.key].shape) == ref.size and not ref.start and not ref.transposed


def _arguments(block: _Block, args_of_layers: list[_Args], used: set[str]) -> str:
    """Return the arguments of a constructor for all layers of a block, those that vary as parameters.

    Args:
        block: receives new parameters.
        args_of_layers: the arguments in each layer.
        used: names in the function; receives those of new parameters.
    """
    needed = max(args.needed for args in args_of_layers)
    texts = []
    for position, name in enumerate(args_of_layers[0].names[:needed]):
        values = [args.texts[position] for args in args_of_layers]
        texts.append(_parameter(block, name, values, used))
    return ", ".join(texts)


def _parameter(block: _Block, name: str, values: list[str], used: set[str]) -> str:
    """Return an argument of the layers of a block as source: text, a parameter, or a multiple of one.

    Args:
        block: receives a new parameter.
        name: of the argument.
        values: its text for each layer.
        used: names in the function; receives that of a new parameter.
    """
    if len(set(values)) == 1:
        return values[0]
    name = name.rstrip(_DIGITS)
    for parameter, others in block.values.items():
        kind = parameter.rstrip(_DIGITS)
        if others == values and (name in (kind, "extent") or {kind, name}.isdisjoint(_SETTINGS)):
            return parameter
    for parameter, others in block.values.items():
        ratios = {_ratio(value, other) for value, other in zip(values, others)}
        are_counts = parameter.startswith("n") and name.startswith("n")  # of channels: nInputPlane
        if are_counts and len(ratios) == 1:
            ratio = ratios.pop()
            if ratio:
                return f"{ratio} * {parameter}"
    parameter = _unused(name, used)
    used.add(parameter)
    block.values[parameter] = values
    return parameter


def _ratio(value: str, other: str) -> int:
    """Return the whole number, above 1, times which one number is another; 0 if there is none."""
    if not (value.isdecimal() and other.isdecimal() and int(other)):
        return 0
    ratio, rest = divmod(int(value), int(other))
    return ratio if ratio > 1 and not rest else 0


def _unused(word: str, used: set[str]) -> str:
    """Return a name, with a number if it is used already."""
    names = chain([word], (f"{word}{number}" for number in count(2)))
    return next(name for name in names if name not in used)


def _node_name(step: LuaNode, path: str) -> str:
    """Return the name of a node of the graph at a path: its module's attribute, else of what it computes."""
    layer = step.layer
    if layer is None:
        return "input"
    inner = layer.path[len(path) + 1 :] if path else layer.path
    if layer.path.startswith(path) and inner:
        word = re.sub(r"\W", "_", inner)
        return word if word[0].isalpha() or word[0] == "_" else f"layer{word}"
    while layer.name in ("nn.Bottle", "nn.Sequential") and not layer.label:
        layer = layer.children[-1]
    kind = layer.label or layer.name.rpartition(".")[2]
    if kind in _NODES:
        return _NODES[kind]
    return kind.lower() if kind.isupper() else kind[0].lower() + kind[1:]


def _is_large(layer: LuaLayer) -> bool:
    """Return whether a container is worth a function if it is repeated: a module of PyTorch sooner than a part."""
    inner = walk(layer)
    has_weights = any(part.weights for part in inner)
    return len(inner) > (3 if layer.path else 8) or (len(inner) == 3 and has_weights)


def _common_prefix(keys: list[str]) -> str:
    """Return the longest common prefix of keys that ends before a dot."""
    return ".".join(commonprefix([key.split(".")[:-1] for key in keys]))  # noqa: RUF071  of words, not of a path


def _common_suffix(keys: list[str]) -> str:
    """Return what the last words of keys have in common from an underscore on: `_hh_l0` of `weight_hh_l0`."""
    words = [key.rpartition(".")[2] for key in keys]
    if not words or not set(words).isdisjoint(USUAL):
        return ""
    ending = commonprefix([word[::-1] for word in words])[::-1]  # noqa: RUF071  of letters, not of a path
    _, underscore, rest = ending.partition("_")
    return underscore + rest


def _constructor_values(layer: LuaLayer) -> tuple[list[Any], int]:
    """Return all arguments of a constructor, defaults included, and the number of those without trailing defaults."""
    values = list(layer.args)
    needed = len(values)
    row = CLASSES.get(layer.name.partition(".")[2])
    if row is None or len(values) > len(row.args):
        return values, needed
    has_padding = any(value for word, value in zip(row.args, values) if word.startswith("pad"))
    while needed and row.args[needed - 1] in row.defaults:
        word = row.args[needed - 1]
        # Lua pads the height by the width: an argument that pads is needed where any does.
        if values[needed - 1] != row.defaults[word] or (word.startswith("pad") and has_padding):
            break
        needed -= 1
    values += [row.defaults[word] for word in row.args[len(values) :] if word in row.defaults]
    return values, needed


def _constructor_arguments(layer: LuaLayer) -> _Args:
    """Return the arguments of a constructor as source."""
    values, needed = _constructor_values(layer)
    kind = layer.name.partition(".")[2]
    words = _POSITIONS.get(kind)
    if words is None:
        words = CLASSES[kind].args if kind in CLASSES else ()
    names = [_NAMES.get(word, word) for word in words[: len(values)]]
    names += ["n"] * (len(values) - len(names))
    return _Args(tuple(map(lua_text, values)), tuple(names), needed)
