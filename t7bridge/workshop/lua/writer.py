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
from .fields import CLASSES, LuaClass
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
"""Names that functions and nodes cannot get: Lua's words, and those that every source has."""
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
_UNSTORED_ARGUMENTS = {"Linear": ("nInput", "nOutput"), "LookupTable": ("nIndex", "nOutput"), "View": ("size",) * 9}
"""Class → names of its arguments by position, where the constructor does not store them under names."""
_NODE_NAMES = {
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
    """Arguments of a call in the source; those that vary among the layers of a function become its parameters.

    Attributes:
        texts: of the arguments, defaults included.
        names: of the parameters that they may become.
        count_written: the number of arguments that are written: all but trailing defaults.
    """

    texts: tuple[str, ...]
    names: tuple[str, ...]
    count_written: int

    @staticmethod
    def without_defaults(texts: tuple[str, ...], names: tuple[str, ...]) -> _Args:
        """Return arguments that are all written."""
        return _Args(texts, names, count_written=len(texts))

    @staticmethod
    def of_one_name(texts: tuple[str, ...], name: str) -> _Args:
        """Return arguments that are all written, and become parameters of one name with numbers behind it."""
        return _Args.without_defaults(texts, (name,) * len(texts))

    def __str__(self) -> str:
        return ", ".join(self.texts[: self.count_written])


_Parts = list[Any]
"""Pieces of source in order: texts, and `_Key` and `_Args`, which depend on the function that they are in. Outside of
functions, `str` of each piece is its source."""


@define(eq=False)
class _Block:
    """Containers of equal structure: a function of the source, or a single one that is written where it is used.

    Attributes:
        layers: those that it creates, which differ in arguments, prefix and suffix only.
        prefixes: for each layer, what all keys of its tensors begin with: `encoder.0`; empty if they have nothing in
            common, or there are none.
        suffixes: for each layer, what all of them end with: `_hh_l0`; empty likewise.
        height: the number of layers in each, itself included, by which functions come after those that they call.
        inline: whether it is written where it would be called; `find_blocks` decides when it knows all uses.
        name: of the function; empty until it is written.
        values: parameter → the texts of its arguments, one for each layer; empty until the function is written. Prefix
            and suffix, which may be parameters, too, are not among them.
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

    def key_expression(self, key: str) -> str:
        """Return a key of the first layer's tensors as Lua source: `prefix .. '.weight' .. suffix`.

        The keys of the other layers have the same source, as they differ in prefix and suffix only.
        """
        start = len(self.prefixes[0]) if self.has_prefix else 0
        end = len(key)
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
class Writer:
    """Writes the Lua source of one model.

    Attributes:
        program: the traced program, for names of classes and sizes of tensors.
        blocks: structure of a container (see `structure_of`) → the block of all containers with it.
        block_of: container → its block.
    """

    program: Program
    blocks: dict[Any, _Block] = field(factory=dict)
    block_of: dict[LuaLayer, _Block] = field(factory=dict)

    # Blocks

    def find_blocks(self, root: LuaLayer) -> None:
        """Set the blocks of a model, and `inline` of each: whether it is written where it is used, and no function."""
        for layer in dict.fromkeys(walk(root)):
            if layer.name == "nn.gModule" or (layer is not root and _is_large(layer)):
                self._add_to_block(layer)
        # A function is written once, from the first layer of its block: it is the caller of the containers in that.
        callers = [block.layers[0] for block in self.blocks.values()]
        if root not in self.block_of:
            callers.append(root)
        uses: Counter[_Block] = Counter()
        for caller in callers:
            uses.update(self.block_of[container] for container in self._containers_called(caller))
        for block in self.blocks.values():
            first = block.layers[0]
            # A graph needs statements, and a label is the name of a function: these are never inline.
            block.inline = first.name != "nn.gModule" and not first.label and uses[block] <= 1

    def can_be_merged(self, inner: LuaLayer, into: LuaLayer) -> bool:
        """Return whether the layers of a container can be written in one of the same class that contains it."""
        block = self.block_of.get(inner)
        has_function = block is not None and not block.inline
        return inner.name == into.name and not inner.label and not has_function

    def _add_to_block(self, layer: LuaLayer) -> None:
        """Add a container to the block of those with the same structure."""
        prefix, suffix = _common_ends_of_keys(layer)

        def key_of_settings(part: LuaLayer) -> Any:
            """Return the numbers of arguments; their values may differ, and become parameters of the function."""
            values, _ = _constructor_values(part)
            return len(values), tuple((name, len(args)) for name, args in part.calls)

        def key_of_weight(ref: WeightRef) -> Any:
            """Return what must be equal of a tensor: its key but for prefix and suffix, which may become parameters.

            Also the form of its entry in the source, see `_entry`.
            """
            middle = ref.key[len(prefix) :].removesuffix(suffix)
            rank = len(self.program.state[ref.key].shape)
            return middle, bool(suffix), self._is_whole(ref), bool(ref.start), ref.transposed, rank

        structure = structure_of(layer, key_of_settings, key_of_weight)
        block = self.blocks.setdefault(structure, _Block())
        self.block_of[layer] = block
        block.layers.append(layer)
        block.prefixes.append(prefix)
        block.suffixes.append(suffix)
        block.height = len(walk(layer))

    def _containers_called(self, layer: LuaLayer) -> list[LuaLayer]:
        """Return the containers with blocks that are inside a layer, without those inside them, in no certain order.

        One that is at several places is there as often.
        """
        containers: list[LuaLayer] = []
        pending = [layer]
        while pending:
            for inner in pending.pop().inside:
                if inner in self.block_of:
                    containers.append(inner)
                else:
                    pending.append(inner)
        return containers

    # Functions

    def source(self, root: LuaLayer) -> tuple[str, str]:
        """Return the source of the functions, and the expression of the whole model, which calls them."""
        self.find_blocks(root)
        # Called functions before their callers, which contain more layers: Lua has to know them, and their names and
        # parameters are known when a call is written.
        blocks = sorted((block for block in self.blocks.values() if not block.inline), key=lambda block: block.height)
        functions = "".join(self._function(block) for block in blocks)
        return functions, "".join(map(str, self._expression(root, depth=1)))

    def _function(self, block: _Block) -> str:
        """Return a function that creates any of the layers of a block; set the block's name and parameters.

        The layers have one structure, and so their bodies the same parts, but for keys and arguments.
        """
        bodies = [self._body(layer) for layer in block.layers]
        # No parameter has the name of the function, which is set first, or a word of its body.
        block.name = self._function_name(block.layers[0])
        used_names = self._reserved_names()
        for part in bodies[0]:
            if isinstance(part, str):
                used_names.update(re.findall(r"\w+", part))
        text = ""
        for same_part in zip(*bodies):  # of each layer
            first = same_part[0]
            if isinstance(first, str):
                text += first
            elif isinstance(first, _Key):
                text += block.key_expression(first.key)
            else:
                text += _arguments(block, list(same_part), used_names)
        return f"\nlocal function {block.name}({', '.join(block.parameters)})\n   {text}\nend\n"

    def _function_name(self, layer: LuaLayer) -> str:
        """Return the name of a container's function, in CamelCase: of its label, PyTorch class or attribute."""
        class_name = type(self.program.modules.get(layer.path)).__name__
        title = class_name
        if class_name in ("Sequential", "NoneType"):  # which say nothing: `NoneType` is that of no module
            attributes = [word for word in layer.path.split(".") if word.rstrip(_DIGITS)]  # without numbers
            title = attributes[-1] if attributes else layer.name.removeprefix("nn.")
        title = layer.label or title.rstrip(_DIGITS)
        words = re.split(r"[^A-Za-z0-9]+", title)
        name = "".join(word[:1].upper() + word[1:] for word in words) or "Block"
        if not name[0].isalpha():
            name = f"Block{name}"
        return _unused(name, self._reserved_names())

    def _reserved_names(self) -> set[str]:
        """Return a new set of the names that others cannot have: Lua's words, the source's own, and its functions'."""
        return {*_WORDS.split(), *(block.name for block in self.blocks.values())}

    def _body(self, layer: LuaLayer) -> _Parts:
        """Return the statements of a function that creates and returns a container."""
        if layer.name == "nn.gModule":
            return self._graph(layer)
        return ["return ", *self._constructor(layer, depth=1)]

    def _graph(self, layer: LuaLayer) -> _Parts:
        """Return the statements that create an nn.gModule: an assignment for each node, and a return.

        Nodes are local variables with the names of PyTorch's attributes, or fields of one table if there are too many.
        """
        parts: _Parts = []
        declaration = "local "
        table = ""
        if len(layer.steps) > MOST_LOCALS:
            parts = ["local x = {}\n   "]
            declaration = ""
            table = "x."
        variables: dict[int, str] = {}  # by the id of a step
        used_names = self._reserved_names()
        for step in layer.steps:
            name = _unused(_node_name(step, layer.path), used_names)
            used_names.add(name)
            variables[id(step)] = table + name
            parts.append(f"{declaration}{table}{name} = ")
            if step.layer is None:
                parts.append("nn.Identity()()\n   ")
                continue
            sources = ", ".join(variables[id(source)] for source in step.inputs)
            if len(step.inputs) != 1:
                sources = f"{{{sources}}}"  # a table
            parts += [*self._expression(step.layer, depth=1), f"({sources})\n   "]
        inputs = ", ".join(variables[id(step)] for step in layer.steps if step.layer is None)
        outputs = ", ".join(variables[id(step)] for step in layer.outputs)
        return [*parts, f"return nn.gModule({{{inputs}}}, {{{outputs}}})"]

    # Expressions

    def _expression(self, layer: LuaLayer, depth: int) -> _Parts:
        """Return the expression that creates a layer: a call of its block's function, or of its constructor.

        Args:
            layer: the layer.
            depth: of the indentation.
        """
        block = self.block_of.get(layer)
        if block is None or block.inline:
            return self._constructor(layer, depth)
        # The arguments are in the order of `_Block.parameters`: the prefix, the suffix, and the others.
        number = block.layers.index(layer)
        texts = {}
        if block.has_suffix:
            texts["suffix"] = lua_string(block.suffixes[number])
        for parameter, values in block.values.items():
            texts[parameter] = values[number]
        arguments: _Parts = []
        if block.has_prefix:
            # A `_Key`, and no text: where this call is in a function itself, that may have a part of it as its prefix.
            arguments.append(_Key(block.prefixes[number]))
        if block.has_prefix and texts:
            arguments.append(", ")
        if texts:
            arguments.append(_Args.without_defaults(texts=tuple(texts.values()), names=tuple(texts)))
        return [f"{block.name}(", *arguments, ")"]

    def _constructor(self, layer: LuaLayer, depth: int) -> _Parts:
        """Return a constructor call, the methods called on the layer, and its children.

        Args:
            layer: the layer.
            depth: of the indentation; children have one more.
        """
        arguments = _constructor_arguments(layer)
        if layer.name == "nn.Bottle":  # its child is an argument, and it has no weights or methods
            return ["nn.Bottle(", *self._expression(layer.children[0], depth), ", ", arguments, ")"]
        parts: _Parts = [f"{layer.name}(", arguments, ")"]
        for method, args in layer.calls:
            texts = tuple(map(lua_text, args))
            # Arguments that become parameters are named after the method, without its `set`.
            parts += [f":{method}(", _Args.of_one_name(texts, method.removeprefix("set")), ")"]
        for child in layer.children:
            parts += ["\n" + "   " * (depth + 1) + ":add(", *self._expression(child, depth + 1), ")"]
        return self._named(parts, layer)

    def _named(self, parts: _Parts, layer: LuaLayer) -> _Parts:
        """Return a constructor call with what says which tensors of the state dict the layer holds, if it holds any.

        `named`, a function of the source, takes a table of fields and keys. Where the keys are the names of the fields
        behind one prefix, it takes that: `conv1` for `conv1.weight` and `conv1.bias`.

        Args:
            parts: the call.
            layer: the layer.
        """
        if not layer.weights:
            return parts
        prefixes = {ref.key.rpartition(".")[0] for ref in layer.weights.values()}
        has_names_of_fields = all(
            self._is_whole(ref) and ref.key.rpartition(".")[2] == name for name, ref in layer.weights.items()
        )
        # `named` looks for no other fields by a prefix than `USUAL`.
        if has_names_of_fields and len(prefixes) == 1 and set(layer.weights) <= set(USUAL):
            prefix = prefixes.pop()
            if prefix:  # empty for parameters of the outermost module
                return ["named(", *parts, ", ", _Key(prefix), ")"]
        entries: _Parts = []
        for name, ref in layer.weights.items():
            if entries:
                entries.append(", ")
            entries += self._entry(name, ref)
        return ["named(", *parts, ", {", *entries, "})"]

    def _entry(self, name: str, ref: WeightRef) -> _Parts:
        """Return a field of a layer with its key, as an entry of the table that `named` takes.

        Of a whole tensor it is `weight = 'fc.weight'`; of a part, `weight = {key = 'fc.weight', size = {64, 3}, start =
        96}`, with `transposed = true` if the last two dimensions are exchanged.

        Args:
            name: of the field.
            ref: the part: `start` is its first element, counted from 0 in the whole tensor. `size` in the source is the
                shape of the whole tensor, as the field itself has that of the part.
        """
        if self._is_whole(ref):
            return [f"{name} = ", _Key(ref.key)]
        sizes = tuple(str(int(extent)) for extent in self.program.state[ref.key].shape)
        # Numbers are `_Args`: where the layers of a function differ in them, they become its parameters.
        parts = [f"{name} = {{key = ", _Key(ref.key), ", size = {", _Args.of_one_name(sizes, "extent"), "}"]
        if ref.start:
            parts += [", start = ", _Args.of_one_name((str(ref.start),), "start")]
        return [*parts, ", transposed = true}" if ref.transposed else "}"]

    def _is_whole(self, ref: WeightRef) -> bool:
        """Return whether a field has all of a tensor of the state dict, in the tensor's own shape."""
        return tuple(self.program.state[ref.key].shape) == ref.size and not ref.start and not ref.transposed


def _arguments(block: _Block, args_of_layers: list[_Args], used: set[str]) -> str:
    """Return the arguments of a call as source for all layers of a block, with parameters for those that vary.

    Args:
        block: receives new parameters.
        args_of_layers: the arguments in each layer, as many of the same names.
        used: names in the function; receives those of new parameters.
    """
    # A default is written where any layer has another value.
    count_written = max(args.count_written for args in args_of_layers)
    texts = []
    for position, name in enumerate(args_of_layers[0].names[:count_written]):
        values = [args.texts[position] for args in args_of_layers]
        texts.append(_parameter(block, name, values, used))
    return ", ".join(texts)


def _parameter(block: _Block, name: str, values: list[str], used: set[str]) -> str:
    """Return an argument of the layers of a block as source: text, a parameter, or a multiple of one.

    Args:
        block: receives a new parameter, if no one that it has will do.
        name: of the argument; digits behind it do not count.
        values: its text for each layer.
        used: names in the function; receives that of a new parameter.
    """
    if len(set(values)) == 1:
        return values[0]
    name = name.rstrip(_DIGITS)
    source = _equal_parameter(block, name, values) or _multiple_of_parameter(block, name, values)
    if source is not None:
        return source
    parameter = _unused(name, used)
    used.add(parameter)
    block.values[parameter] = values
    return parameter


def _equal_parameter(block: _Block, name: str, values: list[str]) -> str | None:
    """Return the parameter of a block that has the values of an argument, and may stand for it; `None` if none has.

    Args:
        block: its layers and the parameters that these have so far.
        name: of the argument, without the digits that tell apart several of a kind.
        values: its text for each layer.
    """
    for parameter, other_values in block.values.items():
        if other_values != values:
            continue
        kind = parameter.rstrip(_DIGITS)
        # An extent of a tensor has no meaning of its own: any parameter will do.
        if name in (kind, "extent"):
            return parameter
        # A stride that happens to equal a kernel is not the same parameter, but numbers of channels are.
        if kind not in _SETTINGS and name not in _SETTINGS:
            return parameter
    return None


def _multiple_of_parameter(block: _Block, name: str, values: list[str]) -> str | None:
    """Return the source of values that are one multiple of a parameter: `4 * nOutput`; `None` if they are of none.

    That is so for numbers of channels and of others that are counted, whose names begin with n. The arguments are those
    of `_parameter`, the name without digits.
    """
    for parameter, other_values in block.values.items():
        are_counts = parameter.startswith("n") and name.startswith("n")
        ratios = {_ratio(value, other) for value, other in zip(values, other_values)}
        if are_counts and len(ratios) == 1:
            ratio = ratios.pop()
            if ratio:  # not 0, which is no multiple
                return f"{ratio} * {parameter}"
    return None


def _ratio(value: str, other: str) -> int:
    """Return how many times the other number the first one is, both as text; 0 if not a whole number of at least 2."""
    if not (value.isdecimal() and other.isdecimal() and int(other)):
        return 0
    ratio, rest = divmod(int(value), int(other))
    return ratio if ratio > 1 and not rest else 0


def _unused(word: str, used: set[str]) -> str:
    """Return a name that is not used: the word itself, or with the first free number from 2 on behind it."""
    names = chain([word], (f"{word}{number}" for number in count(2)))
    return next(name for name in names if name not in used)


def _node_name(step: LuaNode, path: str) -> str:
    """Return a Lua name for a node: the attribute of its PyTorch module, or else what its layer computes.

    Args:
        step: the node.
        path: of the module whose graph it is in; empty for the outermost one.
    """
    layer = step.layer
    if layer is None:
        return "input"
    prefix = f"{path}." if path else ""
    if layer.path.startswith(prefix) and layer.path != prefix:  # a module inside that one, and not itself
        word = re.sub(r"\W", "_", layer.path.removeprefix(prefix))
        is_name = word[0].isalpha() or word[0] == "_"
        return word if is_name else f"layer{word}"  # of an nn.Sequential, whose attributes are numbers
    while layer.name in ("nn.Bottle", "nn.Sequential") and not layer.label:
        layer = layer.children[-1]  # the last one makes the value
    kind = layer.label or layer.name.rpartition(".")[2]
    if kind in _NODE_NAMES:
        return _NODE_NAMES[kind]
    return kind.lower() if kind.isupper() else kind[0].lower() + kind[1:]


_FEWEST_IN_MODULE = 4
_FEWEST_WITH_WEIGHTS = 3
_FEWEST_WITHOUT_MODULE = 9
"""Layers of a container, itself included, from which on it is a function if it is repeated: one of a PyTorch module,
any with weights, and one that is only a part of a module, which has no good name. Smaller ones read as easily."""


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
    """Return what the last words of keys have in common from an underscore on: `_hh_l0` of `weight_hh_l0`."""
    words = [key.rpartition(".")[2] for key in keys]
    if not words or not set(words).isdisjoint(USUAL):  # `running_mean` has no suffix `_mean`
        return ""
    ending = commonprefix([word[::-1] for word in words])[::-1]  # noqa: RUF071  of letters, not of a path
    _, underscore, rest = ending.partition("_")
    return underscore + rest


def _constructor_values(layer: LuaLayer) -> tuple[list[Any], int]:
    """Return all arguments of a constructor, defaults included, and how many there are without trailing defaults."""
    values = list(layer.args)
    lua_class = CLASSES.get(layer.name.partition(".")[2])
    if lua_class is None or len(values) > len(lua_class.args):  # any number of sizes, as nn.View takes
        return values, len(values)
    count_written = _count_without_defaults(values, lua_class)
    # Arguments that are not stated have their defaults, so that another layer of the block may state them.
    for name in lua_class.args[len(values) :]:
        if name in lua_class.defaults:
            values.append(lua_class.defaults[name])
    return values, count_written


def _count_without_defaults(values: list[Any], lua_class: LuaClass) -> int:
    """Return how many arguments of a constructor are written: all but those at the end that have their defaults."""
    has_padding = any(value for name, value in zip(lua_class.args, values) if name.startswith("pad"))
    for count_written in range(len(values), 0, -1):
        last_value = values[count_written - 1]
        name = lua_class.args[count_written - 1]
        if name not in lua_class.defaults or last_value != lua_class.defaults[name]:
            return count_written
        # The default of padH is padW, and not the 0 that it is here: if any pads, both are written.
        if name.startswith("pad") and has_padding:
            return count_written
    return 0


def _constructor_arguments(layer: LuaLayer) -> _Args:
    """Return the arguments of a constructor as source, with names for the parameters that they may become."""
    values, count_written = _constructor_values(layer)
    kind = layer.name.partition(".")[2]
    arguments = _UNSTORED_ARGUMENTS.get(kind)
    if arguments is None:
        arguments = CLASSES[kind].args if kind in CLASSES else ()
    names = [_NAMES.get(argument, argument) for argument in arguments[: len(values)]]
    names += ["n"] * (len(values) - len(names))  # for arguments beyond those that have names
    return _Args(tuple(map(lua_text, values)), tuple(names), count_written)
