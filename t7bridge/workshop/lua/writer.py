"""Lua source of layers: functions for containers that are repeated (see `blocks`), an expression for the rest.

Source is made of pieces: texts, and keys and arguments, which read otherwise in a function, where its parameters take
their place.
"""

from __future__ import annotations

import re
from itertools import chain, count
from typing import Any

from attrs import field

from ...data import define
from .blocks import USUAL, Block, Blocks, find_blocks, is_whole
from .fields import CLASSES, constructor_values
from .layers import LuaLayer, LuaNode, WeightRef
from .literals import lua_string, lua_text
from .trace import Program

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
"""Parameters that do not stand for others that have equal values by chance, nor others for them."""
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
    """A key of the state dict in the source; in a function, it is relative to the function's prefix and suffix."""

    key: str

    def __str__(self) -> str:
        return lua_string(self.key)


@define(frozen=True)
class _Args:
    """Arguments of a call in the source; in a function, those that vary among its layers are its parameters.

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


_Pieces = list[Any]
"""Source in order: texts, `_Key`s and `_Args`. Outside of functions, `str` of each piece is its source."""


@define(eq=False)
class _Function:
    """A function of the source, which creates each container of a block.

    Attributes:
        block: the block.
        name: of the function.
        used_names: names in its body, which no new parameter can have; receives those of the parameters.
        values: parameter → the texts of its argument, one for each container; prefix and suffix, which may be
            parameters, too, are not among them. `arguments` adds them.
    """

    block: Block
    name: str
    used_names: set[str]
    values: dict[str, list[str]] = field(factory=dict)

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters, in order."""
        names = []
        if self.block.has_prefix:
            names.append("prefix")
        if self.block.has_suffix:
            names.append("suffix")
        return [*names, *self.values]

    def call(self, container: LuaLayer) -> _Pieces:
        """Return the call that creates a container of the block, with arguments in the order of the parameters."""
        number = self.block.layers.index(container)
        texts = {}
        if self.block.has_suffix:
            texts["suffix"] = lua_string(self.block.suffixes[number])
        for parameter, values in self.values.items():
            texts[parameter] = values[number]
        arguments: _Pieces = []
        if self.block.has_prefix:
            # A `_Key`, and no text: a call inside another function may have that one's prefix in its own.
            arguments.append(_Key(self.block.prefixes[number]))
        if self.block.has_prefix and texts:
            arguments.append(", ")
        if texts:
            arguments.append(_Args.without_defaults(texts=tuple(texts.values()), names=tuple(texts)))
        return [f"{self.name}(", *arguments, ")"]

    def arguments(self, args_of_containers: list[_Args]) -> str:
        """Return the arguments of a call in the body as source, with parameters for those that vary.

        Args:
            args_of_containers: the arguments in each container of the block, as many of the same names.
        """
        first, *_ = args_of_containers
        # A default is written where any container has another value.
        count_written = max(args.count_written for args in args_of_containers)
        texts = []
        for position, name in enumerate(first.names[:count_written]):
            values = [args.texts[position] for args in args_of_containers]
            texts.append(self._argument(name, values))
        return ", ".join(texts)

    def _argument(self, name: str, values: list[str]) -> str:
        """Return an argument as source: a text, or a parameter or a multiple of one; a new parameter if none will do.

        Args:
            name: of the argument; digits behind it only tell apart several of a kind.
            values: its text for each container of the block.
        """
        if len(set(values)) == 1:
            return values[0]
        name = name.rstrip(_DIGITS)
        source = self._parameter_of(name, values) or self._multiple_of_parameter(name, values)
        if source is not None:
            return source
        parameter = _unused(name, self.used_names)
        self.used_names.add(parameter)
        self.values[parameter] = values
        return parameter

    def _parameter_of(self, name: str, values: list[str]) -> str | None:
        """Return a parameter that has the values of an argument, and may stand for it; `None` if there is none.

        Args:
            name: of the argument, without digits.
            values: its text for each container of the block.
        """
        for parameter, other_values in self.values.items():
            if other_values != values:
                continue
            other_name = parameter.rstrip(_DIGITS)
            # An extent of a tensor has no meaning of its own: any parameter will do.
            if name in (other_name, "extent"):
                return parameter
            # A stride that happens to equal a kernel is not the same parameter, but numbers of channels are.
            if other_name not in _SETTINGS and name not in _SETTINGS:
                return parameter
        return None

    def _multiple_of_parameter(self, name: str, values: list[str]) -> str | None:
        """Return the source of values that are one multiple of a parameter: `4 * nOutput`; `None` if they are of none.

        That is so for numbers of channels and of others that are counted, whose names begin with n.

        Args:
            name: of the argument, without digits.
            values: its text for each container of the block.
        """
        for parameter, other_values in self.values.items():
            are_counts = parameter.startswith("n") and name.startswith("n")
            ratios = {_ratio(value, other) for value, other in zip(values, other_values)}
            if are_counts and len(ratios) == 1:
                ratio = ratios.pop()
                if ratio:  # not 0, which is no multiple
                    return f"{ratio} * {parameter}"
        return None


def functions_and_model(root: LuaLayer, program: Program) -> tuple[str, str]:
    """Return the source of the functions, and the expression of the whole model, which calls them.

    Args:
        root: the whole model.
        program: the traced program, for names of classes and sizes of tensors.
    """
    blocks = find_blocks(root, program)
    writer = _Writer(program, blocks)
    # In their order, as Lua has to know a function before a call of it, and a call its function's name and parameters.
    functions = "".join(writer.function(block) for block in blocks.with_function)
    pieces = writer.expression(root, depth=1)  # its lines are indented in the function that makes the model
    return functions, "".join(map(str, pieces))


@define(eq=False)
class _Writer:
    """Writes the Lua source of one model.

    Attributes:
        program: the traced program, for names of classes and sizes of tensors.
        blocks: the containers that functions create.
        functions: block → its function, of those that are written. `function` adds them.
    """

    program: Program
    blocks: Blocks
    functions: dict[Block, _Function] = field(factory=dict)

    # Functions

    def function(self, block: Block) -> str:
        """Return the source of the function of a block, all functions that it calls being written.

        The containers have one structure, and so their bodies the same pieces, but for keys and arguments.
        """
        bodies = [self._body(container) for container in block.layers]
        name = self._function_name(block.first)
        # A parameter can neither be called as a function nor as a variable of the body.
        used_names = {*self._reserved_names(), name}
        for piece in bodies[0]:
            if isinstance(piece, str):
                used_names.update(re.findall(r"\w+", piece))
        function = _Function(block, name, used_names)
        text = ""
        for pieces in zip(*bodies):  # the same one of each container
            first = pieces[0]
            if isinstance(first, str):
                text += first
            elif isinstance(first, _Key):
                text += block.key_expression(first.key)
            else:
                text += function.arguments(list(pieces))
        self.functions[block] = function
        return f"\nlocal function {name}({', '.join(function.parameters)})\n   {text}\nend\n"

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
        return {*_WORDS.split(), *(function.name for function in self.functions.values())}

    def _body(self, layer: LuaLayer) -> _Pieces:
        """Return the statements of a function that creates and returns a container."""
        if layer.name == "nn.gModule":
            return self._graph(layer)
        return ["return ", *self._constructor(layer, depth=1)]

    def _graph(self, graph: LuaLayer) -> _Pieces:
        """Return the statements that create an nn.gModule: an assignment for each node, and a return."""
        is_large = len(graph.steps) > MOST_LOCALS
        table = "x." if is_large else ""
        declaration = "" if is_large else "local "
        variables = self._variables(graph, table)
        pieces: _Pieces = ["local x = {}\n   "] if is_large else []
        for step in graph.steps:
            pieces.append(f"{declaration}{variables[id(step)]} = ")
            pieces += self._node(step, variables)
            pieces.append("\n   ")
        inputs = ", ".join(variables[id(step)] for step in graph.steps if step.layer is None)
        outputs = ", ".join(variables[id(step)] for step in graph.outputs)
        return [*pieces, f"return nn.gModule({{{inputs}}}, {{{outputs}}})"]

    def _variables(self, graph: LuaLayer, table: str) -> dict[int, str]:
        """Return the variable of each node of a graph, by the id of its step: `conv1`, after PyTorch's attributes.

        Args:
            graph: the nn.gModule.
            table: `x.` if they are fields of a table x, and not local variables; else empty.
        """
        used_names = self._reserved_names()
        variables = {}
        for step in graph.steps:
            name = _unused(_node_name(step, graph.path), used_names)
            used_names.add(name)
            variables[id(step)] = table + name
        return variables

    def _node(self, step: LuaNode, variables: dict[int, str]) -> _Pieces:
        """Return the expression of a node: a layer called with the nodes whose values it takes, a table if not one."""
        if step.layer is None:
            return ["nn.Identity()()"]
        sources = ", ".join(variables[id(source)] for source in step.inputs)
        if len(step.inputs) != 1:
            sources = f"{{{sources}}}"
        return [*self.expression(step.layer, depth=1), f"({sources})"]

    # Expressions

    def expression(self, layer: LuaLayer, depth: int) -> _Pieces:
        """Return the expression that creates a layer: a call of its block's function, or of its constructor.

        Args:
            layer: the layer.
            depth: of the indentation.
        """
        block = self.blocks.whose_function_creates(layer)
        if block is not None:
            return self.functions[block].call(layer)
        return self._constructor(layer, depth)

    def _constructor(self, layer: LuaLayer, depth: int) -> _Pieces:
        """Return a constructor call, the methods called on the layer, and its children.

        Args:
            layer: the layer.
            depth: of the indentation; children have one more.
        """
        arguments = _constructor_arguments(layer)
        if layer.name == "nn.Bottle":  # its child is an argument, and it has no weights or methods
            return ["nn.Bottle(", *self.expression(layer.children[0], depth), ", ", arguments, ")"]
        pieces: _Pieces = [f"{layer.name}(", arguments, ")"]
        for method, args in layer.calls:
            texts = tuple(map(lua_text, args))
            # Arguments that become parameters are named after the method, without its `set`.
            pieces += [f":{method}(", _Args.of_one_name(texts, method.removeprefix("set")), ")"]
        for child in layer.children:
            pieces += ["\n" + "   " * (depth + 1) + ":add(", *self.expression(child, depth + 1), ")"]
        if not layer.weights:
            return pieces
        return ["named(", *pieces, ", ", *self._names_of_weights(layer), ")"]

    def _names_of_weights(self, layer: LuaLayer) -> _Pieces:
        """Return what tells `named` of the source which tensors of the state dict a layer holds.

        That is the prefix of their keys, `'conv1'`, or else a table: name of a field → its key.
        """
        prefix = self._prefix_of_usual_keys(layer)
        if prefix:
            return [_Key(prefix)]
        entries: _Pieces = []
        for name, ref in layer.weights.items():
            if entries:
                entries.append(", ")
            entries += self._entry(name, ref)
        return ["{", *entries, "}"]

    def _prefix_of_usual_keys(self, layer: LuaLayer) -> str:
        """Return the prefix of a layer's keys: `conv1` of `conv1.weight` and `conv1.bias`.

        Empty if they have none, or `named` would not find each tensor by it: under the name of its field, one of
        `USUAL`, and whole.
        """
        prefixes = set()
        for name, ref in layer.weights.items():
            prefix, _, word = ref.key.rpartition(".")
            if name not in USUAL or word != name or not is_whole(ref, self.program):
                return ""
            prefixes.add(prefix)
        return prefixes.pop() if len(prefixes) == 1 else ""

    def _entry(self, name: str, ref: WeightRef) -> _Pieces:
        """Return a field of a layer with its key, as an entry of the table that `named` takes.

        Of a whole tensor it is `weight = 'fc.weight'`; of a part, `weight = {key = 'fc.weight', size = {64, 3}, start =
        96}`, with `transposed = true` if the last two dimensions are exchanged.

        Args:
            name: of the field.
            ref: the part: `start` is its first element, counted from 0 in the whole tensor. `size` in the source is the
                shape of the whole tensor, as the field itself has that of the part.
        """
        if is_whole(ref, self.program):
            return [f"{name} = ", _Key(ref.key)]
        sizes = tuple(str(int(extent)) for extent in self.program.state[ref.key].shape)
        # Numbers are `_Args`: where the containers of a block differ in them, they become parameters.
        pieces = [f"{name} = {{key = ", _Key(ref.key), ", size = {", _Args.of_one_name(sizes, "extent"), "}"]
        if ref.start:
            pieces += [", start = ", _Args.of_one_name((str(ref.start),), "start")]
        return [*pieces, ", transposed = true}" if ref.transposed else "}"]


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
    title = layer.label or layer.kind
    if title in _NODE_NAMES:
        return _NODE_NAMES[title]
    return title.lower() if title.isupper() else title[0].lower() + title[1:]


def _constructor_arguments(layer: LuaLayer) -> _Args:
    """Return the arguments of a constructor as source, with names for the parameters that they may become."""
    values, count_written = constructor_values(layer)
    names_in_lua: tuple[str, ...] = ()
    if layer.kind in _UNSTORED_ARGUMENTS:
        names_in_lua = _UNSTORED_ARGUMENTS[layer.kind]
    elif layer.kind in CLASSES:
        names_in_lua = CLASSES[layer.kind].args
    names = [_NAMES.get(name, name) for name in names_in_lua[: len(values)]]
    names += ["n"] * (len(values) - len(names))  # of arguments that have no names, such as sizes
    return _Args(tuple(map(lua_text, values)), tuple(names), count_written)
