"""`model.lua`: readable source that builds a model and loads its weights."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Collection
from importlib.resources import files
from itertools import chain, count, groupby
from os.path import commonprefix
from typing import Any

from attrs import field

from ...data import __version__, define
from .layers import CLASSES, LuaLayer, WeightRef, structure_of, walk
from .trace import Program

USUAL = ("weight", "bias", "running_mean", "running_var")
MOST_LOCALS = 120
_WIDTH = 100
"""Columns of a line."""
_WORDS = """
and break do else elseif end false for function goto if in local nil not or repeat return then true until while nn
nngraph torch model named numbers prefix suffix tie tied build load M unpack
"""

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

_HEAD = """\
-- {name}, from PyTorch by t7bridge {version}. Needs torch, nn and nngraph{more}.
--
--   local source = dofile('model.lua')
--   local model = source.load(torch.load('weights.t7'))   -- t7bridge convert weights.pt weights.t7
--   local fresh = source.build()                          -- the same with random weights
--
-- {inputs}

require 'nn'
require 'nngraph'
{requires}
-- Says which tensors of the PyTorch state dict a module holds: by their prefix, or one by one.
local function named(module, names)
   if type(names) == 'string' then
      local prefix = names
      names = {{}}
      for _, field in ipairs({{'weight', 'bias', 'running_mean', 'running_var'}}) do
         names[field] = module[field] and prefix .. '.' .. field
      end
   end
   for field, entry in pairs(names) do
      if type(entry) == 'string' then
         names[field] = {{key = entry, size = module[field]:size():totable()}}
      end
   end
   module.t7bridge = names
   return module
end
"""

_NUMBERS = """
-- A constant tensor, from its sizes and its elements: `2.5*3 1` is 2.5 2.5 2.5 1.
local function numbers(sizes, text)
   local values = {}
   for number, times in text:gmatch('([^%s*]+)%*?(%d*)') do
      local value = ({inf = math.huge, ['-inf'] = -math.huge})[number] or tonumber(number)
      for _ = 1, tonumber(times) or 1 do values[#values + 1] = value end
   end
   return torch.Tensor(values):view(torch.LongStorage(sizes))
end
"""

_LSTM = """
-- Fills an nn.SeqLSTM: its gates are i f o g, and it has one bias; PyTorch's are i f g o, and it adds two.
local function fill_lstm(module, weights)
   local function gates(field)
      local entry = module.t7bridge[field]
      local tensor = entry and weights[entry.key]
      if entry and not tensor then error('the weights have no tensor ' .. entry.key) end
      local parts = tensor and tensor:chunk(4, 1)
      return parts and torch.cat({parts[1], parts[2], parts[4], parts[3]}, 1)
   end
   local input, hidden = gates('weight_ih_l0'), gates('weight_hh_l0')
   module.weight:copy(torch.cat(input:t():contiguous(), hidden:t():contiguous(), 1))
   module.bias:zero()
   for _, field in ipairs({'bias_ih_l0', 'bias_hh_l0'}) do
      local bias = gates(field)
      if bias then module.bias:add(bias:typeAs(module.bias)) end
   end
end
"""

_TIE = """
-- Modules that hold the same tensor share its memory.
local function tie(model)
   local places = {}
   for _, module in ipairs(model:listModules()) do
      for field, entry in pairs(module.t7bridge or {}) do
         if module[field] then
            places[entry.key] = places[entry.key] or {}
            table.insert(places[entry.key], {module, field, entry})
         end
      end
   end
   for _, holders in pairs(places) do
      if #holders > 1 then
         local size = holders[1][3].size
         local sizes = torch.LongStorage(#size > 0 and size or {1})
         local weight, gradient
         for _, holder in ipairs(holders) do
            local module, field, entry = unpack(holder)
            local own, first = module[field], (entry.start or 0) + 1
            local slope = field == 'weight' and 'gradWeight' or field == 'bias' and 'gradBias'
            local strides = own:stride()
            if entry.transposed then
               local last = own:dim()
               strides[last - 1], strides[last] = 1, own:size(last - 1)
            end
            weight = weight or own.new(sizes):zero()
            local shared = own.new(weight:storage(), first, own:size(), strides)
            shared:copy(own)
            own:set(shared)
            if slope and module[slope] then
               gradient = gradient or own.new(sizes):zero()
               module[slope]:set(gradient:storage(), first, own:size(), strides)
            end
         end
      end
   end
   return model
end
"""

_TIED = """
-- Other keys of a tensor in the state dict, and the key under which it is loaded.
local tied = {{
{keys}
}}

-- Whether two tensors have the same elements, NaN included.
local function is_equal(tensor, other)
   tensor, other = tensor:double(), other:double()
   if not tensor:isSameSizeAs(other) then return false end
   if tensor:nElement() == 0 then return true end
   local both_nan = tensor:ne(tensor):cmul(other:ne(other))
   return tensor:ne(other):sum() == both_nan:sum()
end

local function check_tied(weights)
   for key, first in pairs(tied) do
      local tensor, other = weights[first], weights[key]
      if tensor and other and not is_equal(tensor, other) then
         error(first .. ' and ' .. key .. ' are different, and the model has one tensor for both')
      end
   end
end
"""

_TAIL = """
-- The weights under the names that the modules have.
-- All names of the weights may have another prefix, `net.`.
local function under_own_names(weights, model)
   local wanted = {{}}
   for _, module in ipairs(model:listModules()) do
      for field, entry in pairs(module.t7bridge or {{}}) do
         if module[field] then wanted[entry.key] = true end
      end
   end
   local function fits(own, other)
      for key in pairs(wanted) do
         local is_there = key:sub(1, #own) == own and weights[other .. key:sub(#own + 1)]
         if not is_there then return false end
      end
      return true
   end
   local key, own = next(wanted), ''
   while key and own and not fits('', '') do
      local rest, found = key:sub(#own + 1), {{}}
      for name in pairs(weights) do
         local other = name:sub(1, -#rest - 1)
         local is_step = other == '' or other:sub(-1) == '.'
         if name:sub(-#rest) == rest and is_step and fits(own, other) then
            table.insert(found, other)
         end
      end
      if #found > 1 then
         error('several prefixes of the weights fit: ' .. table.concat(found, ', '))
      end
      if #found == 1 then
         local text = 'the names of the weights begin with "%s", not with "%s"'
         print(text:format(found[1], own))
         local function renamed(_, name)
            -- A tied tensor may also have a key outside.
            if name:sub(1, #own) ~= own then return weights[name] end
            return weights[found[1] .. name:sub(#own + 1)]
         end
         return setmetatable({{}}, {{__index = renamed}})
      end
      own = key:match('^' .. own:gsub('%p', '%%%0') .. '[^.]*%.')
   end
   return weights
end

local function has_size(tensor, size)
   local own = tensor:size():totable()
   -- Lua has no tensors without dimensions.
   if #size == 0 then return tensor:nElement() == 1 end
   for place = 1, math.max(#own, #size) do
      if own[place] ~= size[place] then return false end
   end
   return true
end

local M = {{}}

-- The model with random weights.
function M.build()
   local model = {main}
   return {tied}
end

-- The model with the weights of a table: name in the PyTorch state dict → tensor.
function M.load(weights)
   local model = M.build()
   weights = under_own_names(weights, model)
{check_tied}   for _, module in ipairs(model:listModules()) do
{lstm}      for field, entry in pairs(module.t7bridge or {{}}) do
         local tensor = weights[entry.key]
         if not tensor then error('the weights have no tensor ' .. entry.key) end
         local own = module[field]
         if not has_size(tensor, entry.size) then
            error(string.format('the tensor %s is %s, not %s', entry.key,
               table.concat(tensor:size():totable(), ' x '), table.concat(entry.size, ' x ')))
         end
         if entry.transposed then tensor = tensor:t() end
         local elements = tensor:contiguous():view(-1)
         {if_own}own:copy(elements:narrow(1, (entry.start or 0) + 1, own:nElement())){end_own}
      end
   end
   model:evaluate()
   return model
end

return M
"""


PACKAGE = "pt."
"""Beginning of the names of the classes in `classes.lua`."""
_BESIDE = """dofile((debug.getinfo(1, 'S').source:match('^@(.*[/\\\\])') or '') .. 'layers.lua')
"""


def classes_source(names: Collection[str]) -> str:
    """Return the source of the classes of `classes.lua` among some names, with what they call; empty for none.

    Args:
        names: of classes, `pt.Sort`.
    """
    head, *parts = (files(__package__) / "classes.lua").read_text("utf-8").split("-- [")
    sections = {name: text for name, _, text in (part.partition("]\n") for part in parts)}
    used = [text for name, text in sections.items() if PACKAGE + name in names]
    called = [text for name, text in sections.items() if any(f"{name}(" in each for each in used) and text not in used]
    return head + "".join([*called, *used]) if used else ""


def flatten(root: LuaLayer, program: Program) -> None:
    """Move the layers of chains inside of chains into the outer one, and leave out those that do nothing.

    Chains that are repeated, for which the source has a function, stay.
    """
    writer = _Writer(program)
    writer.group(root)
    for layer in reversed(walk(root)):
        if layer.name == "nn.Sequential":
            kept: list[LuaLayer] = []
            for child in layer.children:
                block = writer.block_of.get(child)
                chain_inside = child.name == layer.name and not child.label and (block is None or block.inline)
                kept += child.children if chain_inside else [child]
            useful = [
                child
                for before, child in zip([None, *kept], kept)
                if child.name != "nn.Identity" and not (before and before.name == child.name == "nn.Contiguous")
            ]
            layer.children = useful or kept[:1]


def lua_source(layer: LuaLayer, program: Program, name: str, double: bool = False) -> str:
    """Return the source of a model.

    Args:
        layer: the model.
        program: the traced program, for shapes and names.
        name: of the model, for the first line.
        double: whether its tensors are doubles.
    """
    functions, main = _Writer(program).source(layer)
    safe = "".join(char if char.isprintable() else "?" for char in name)
    functions, main = (re.sub(f".{{{_WIDTH + 1},}}", _wrapped, text) for text in (functions, main))
    body = functions + main
    rnn = "nn.SeqLSTM(" in body
    more, requires = (", and rnn", "require 'rnn'\n") if rnn else ("", "")
    if PACKAGE in body:
        more, requires = more + ", and layers.lua beside it", requires + _BESIDE
    inputs = "Inputs" if len(program.texts) > 1 else "Input"
    head = _HEAD.format(
        inputs=f"{inputs}: {', '.join(program.texts)}.", name=safe, version=__version__, more=more, requires=requires
    )
    numbers = _NUMBERS if "numbers(" in body else ""
    parts = {"lstm": "      if torch.type(module) == 'nn.SeqLSTM' then fill_lstm(module, weights) end\n" if rnn else ""}
    parts |= {"if_own": "if own then " if rnn else "", "end_own": " end" if rnn else ""}
    held: list[str] = []
    of_lstm: list[str] = []
    for inner in dict.fromkeys(walk(layer)):
        keys = of_lstm if inner.name == "nn.SeqLSTM" else held
        keys += [ref.key for ref in inner.weights.values()]
    is_tied = len(set(held)) < len(held)
    aliases = {key: first for key, first in program.aliases.items() if first in held or first in of_lstm}
    keys_of_tied = ",\n".join(f"   [{lua_string(key)}] = {lua_string(first)}" for key, first in aliases.items())
    parts["check_tied"] = "   check_tied(weights)\n" if aliases else ""
    typed = f"model:{'double' if double else 'float'}()"
    tail = _TAIL.format(main=main, tied=f"tie({typed})" if is_tied else typed, **parts)
    sections = [
        head,
        numbers,
        functions,
        _LSTM if rnn else "",
        _TIE if is_tied else "",
        _TIED.format(keys=keys_of_tied) if aliases else "",
        tail,
    ]
    return "".join(sections)


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
        name: of the function.
        values: the parameters' names, and the texts of their values for each layer.
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

    def key(self, key: str) -> str:
        """Return a key of the first layer as an expression of the parameters."""
        start = len(self.prefixes[0]) if self.has_prefix else 0
        own = self.suffixes[0] if self.has_suffix else ""
        end = len(key) - len(own) if key.endswith(own) else len(key)
        words = ["prefix"] * (start > 0) + [lua_string(key[start:end])] * (start < end)
        return " .. ".join(words + ["suffix"] * (end < len(key)))


@define(eq=False)
class _Writer:
    """The source of one model.

    Attributes:
        program: the traced program, for names and shapes.
        blocks: by what their layers have in common.
        block_of: the block of a container.
    """

    program: Program
    blocks: dict[Any, _Block] = field(factory=dict)
    block_of: dict[LuaLayer, _Block] = field(factory=dict)

    def group(self, root: LuaLayer) -> None:
        """Find the blocks."""
        for layer in dict.fromkeys(walk(root)):
            if layer.name == "nn.gModule" or (layer is not root and _is_large(layer)):
                self._add(layer)
        tops = [root] * (root not in self.block_of) + [block.layers[0] for block in self.blocks.values()]
        uses = Counter(self.block_of[inner] for layer in tops for inner in self._called(layer))
        for block in self.blocks.values():
            first = block.layers[0]
            block.inline = first.name != "nn.gModule" and not first.label and uses[block] <= 1

    def source(self, root: LuaLayer) -> tuple[str, str]:
        """Return the functions, inner ones first, and the expression of the whole model."""
        self.group(root)
        ordered = sorted((block for block in self.blocks.values() if not block.inline), key=lambda block: block.height)
        functions = "".join(map(self._function, ordered))
        return functions, "".join(map(str, self._expression(root, 1)))

    def _add(self, layer: LuaLayer) -> None:
        inner = walk(layer)
        keys = [ref.key for each in inner for ref in each.weights.values()]
        is_own = layer.path and all(key.startswith(f"{layer.path}.") for key in keys)
        prefix = layer.path if keys and is_own else _common(keys)
        suffix = _suffix(keys)

        def settings(each: LuaLayer) -> Any:
            return len(_with_defaults(each)[0]), tuple((name, len(args)) for name, args in each.calls)

        def form(ref: WeightRef) -> Any:
            own = ref.key[len(prefix) :].removesuffix(suffix)
            rank = len(self.program.state[ref.key].shape)
            return own, bool(suffix), self._whole(ref), bool(ref.start), ref.transposed, rank

        shape = structure_of(layer, settings, form)
        block = self.block_of[layer] = self.blocks.setdefault(shape, _Block())
        block.layers.append(layer)
        block.prefixes.append(prefix)
        block.suffixes.append(suffix)
        block.height = len(inner)

    def _called(self, layer: LuaLayer) -> list[LuaLayer]:
        """Return the containers that the function of a layer uses, without those inside them."""
        found: list[LuaLayer] = []
        stack = [layer]
        while stack:
            for inner in stack.pop().inside:
                (found if inner in self.block_of else stack).append(inner)
        return found

    def _function(self, block: _Block) -> str:
        """Return a function that creates any of the layers of a block, and name it and its parameters."""
        bodies = [self._body(layer) for layer in block.layers]
        block.name = self._name(block.layers[0])
        words = {word for part in bodies[0] if isinstance(part, str) for word in re.findall(r"\w+", part)}
        words |= self._words
        text = ""
        for column in zip(*bodies):
            part = column[0]
            if isinstance(part, str):
                text += part
            elif isinstance(part, _Key):
                text += block.key(part.key)
            else:
                needed = max(each.needed for each in column)
                rows = zip(part.names, zip(*(each.texts for each in column)))
                text += ", ".join([_parameter(block, name, list(values), words) for name, values in rows][:needed])
        parameters = ", ".join(["prefix"] * block.has_prefix + ["suffix"] * block.has_suffix + [*block.values])
        return f"\nlocal function {block.name}({parameters})\n   {text}\nend\n"

    def _expression(self, layer: LuaLayer, depth: int) -> _Parts:
        """Return the expression that creates a layer."""
        block = self.block_of.get(layer)
        if block is None or block.inline:
            return self._plain(layer, depth)
        number = block.layers.index(layer)
        prefix: _Parts = [_Key(block.prefixes[number])] if block.has_prefix else []
        arguments = {"suffix": lua_string(block.suffixes[number])} if block.has_suffix else {}
        arguments |= {name: values[number] for name, values in block.values.items()}
        args = [_Args(tuple(arguments.values()), tuple(arguments), len(arguments))] if arguments else []
        return [f"{block.name}(", *prefix, ", " if prefix and args else "", *args, ")"]

    def _body(self, layer: LuaLayer) -> _Parts:
        """Return the statements of the function that creates a layer."""
        return self._graph(layer) if layer.name == "nn.gModule" else ["return ", *self._plain(layer, 1)]

    def _name(self, layer: LuaLayer) -> str:
        kind = type(self.program.modules.get(layer.path)).__name__
        if kind in ("Sequential", "NoneType"):
            kind = next((word for word in reversed(layer.path.split(".")) if word.rstrip(_DIGITS)), layer.name[3:])
        kind = layer.label or kind.rstrip(_DIGITS)
        word = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", kind)) or "Block"
        return _unused(word if word[0].isalpha() else f"Block{word}", self._words)

    @property
    def _words(self) -> set[str]:
        """The names that others cannot have: the page's own, and its functions'."""
        return {*_WORDS.split(), *(block.name for block in self.blocks.values())}

    def _plain(self, layer: LuaLayer, depth: int) -> _Parts:
        """Return a constructor call with its additions."""
        if layer.name == "nn.Bottle":
            return ["nn.Bottle(", *self._expression(layer.children[0], depth), ", ", _arguments(layer), ")"]
        parts: _Parts = [f"{layer.name}(", _arguments(layer), ")"]
        for name, args in layer.calls:
            texts = tuple(map(_value, args))
            parts += [f":{name}(", _Args(texts, (name.removeprefix("set"),) * len(texts), len(texts)), ")"]
        for child in layer.children:
            parts += ["\n" + "   " * (depth + 1) + ":add(", *self._expression(child, depth + 1), ")"]
        return self._named(parts, layer)

    def _named(self, parts: _Parts, layer: LuaLayer) -> _Parts:
        if not layer.weights:
            return parts
        homes = {ref.key.rpartition(".")[0] for ref in layer.weights.values()}
        plain = all(self._whole(ref) and ref.key.rpartition(".")[2] == name for name, ref in layer.weights.items())
        if plain and len(homes) == 1 and set(layer.weights) <= set(USUAL) and (home := homes.pop()):
            return ["named(", *parts, ", ", _Key(home), ")"]
        entries = [[", "] * (number > 0) + self._entry(*each) for number, each in enumerate(layer.weights.items())]
        return ["named(", *parts, ", {", *(part for entry in entries for part in entry), "})"]

    def _whole(self, ref: WeightRef) -> bool:
        return tuple(self.program.state[ref.key].shape) == ref.size and not ref.start and not ref.transposed

    def _entry(self, name: str, ref: WeightRef) -> _Parts:
        if self._whole(ref):
            return [f"{name} = ", _Key(ref.key)]
        sizes = tuple(str(int(extent)) for extent in self.program.state[ref.key].shape)
        parts = [
            f"{name} = {{key = ",
            _Key(ref.key),
            ", size = {",
            _Args(sizes, ("extent",) * len(sizes), len(sizes)),
            "}",
        ]
        if ref.start:
            parts += [", start = ", _Args((str(ref.start),), ("start",), 1)]
        return [*parts, ", transposed = true}" if ref.transposed else "}"]

    def _graph(self, layer: LuaLayer) -> _Parts:
        """Return the statements that create an nn.gModule; its nodes have the names of PyTorch's attributes."""
        many = len(layer.steps) > MOST_LOCALS
        names: dict[int, str] = {}
        parts: _Parts = ["local x = {}\n   "] if many else []
        used = self._words
        inputs = [step for step in layer.steps if step.layer is None]
        for step in layer.steps:
            word = "input" if step.layer is None else self._local(step.layer, layer.path)
            names[id(step)] = name = _unused(word, used)
            used.add(name)
            names[id(step)] = f"x.{name}" if many else name
            parts.append(f"{'' if many else 'local '}{names[id(step)]} = ")
            if step.layer is None:
                parts.append("nn.Identity()()\n   ")
                continue
            sources = ", ".join(names[id(source)] for source in step.inputs)
            sources = sources if len(step.inputs) == 1 else f"{{{sources}}}"
            parts += [*self._expression(step.layer, 1), f"({sources})\n   "]
        returned = ", ".join(names[id(step)] for step in layer.outputs)
        taken = ", ".join(names[id(step)] for step in inputs)
        return [*parts, f"return nn.gModule({{{taken}}}, {{{returned}}})"]

    def _local(self, layer: LuaLayer, path: str) -> str:
        """Return the name of a node: its module's attribute in the module at a path, else of what it computes."""
        inner = layer.path[len(path) + 1 :] if path else layer.path
        if layer.path.startswith(path) and inner:
            word = re.sub(r"\W", "_", inner)
            return word if word[0].isalpha() or word[0] == "_" else f"layer{word}"
        while layer.name in ("nn.Bottle", "nn.Sequential") and not layer.label:
            layer = layer.children[-1]
        kind = layer.label or layer.name.rpartition(".")[2]
        return _NODES.get(kind) or (kind.lower() if kind.isupper() else kind[0].lower() + kind[1:])


def _parameter(block: _Block, name: str, values: list[str], words: set[str]) -> str:
    """Return an argument of the layers of a block as source: text, a parameter, or a multiple of one."""
    if len(set(values)) == 1:
        return values[0]
    name = name.rstrip(_DIGITS)
    kinds = {known: known.rstrip(_DIGITS) for known in block.values}
    for known, kind in kinds.items():
        if block.values[known] == values and (name in (kind, "extent") or {kind, name}.isdisjoint(_SETTINGS)):
            return known
    for known, kind in kinds.items():
        ratios = {_ratio(*pair) for pair in zip(values, block.values[known])}
        if len(ratios) == 1 and (ratio := ratios.pop()) and kind.startswith("n") and name.startswith("n"):
            return f"{ratio} * {known}"
    known = _unused(name, words)
    words.add(known)
    block.values[known] = values
    return known


def _ratio(value: str, other: str) -> int:
    """Return the whole number, above 1, times which one number is another; 0 if there is none."""
    if not (value.isdecimal() and other.isdecimal() and int(other)):
        return 0
    ratio, rest = divmod(int(value), int(other))
    return ratio if ratio > 1 and not rest else 0


def _unused(word: str, used: set[str]) -> str:
    """Return a name, with a number if it is used already."""
    return next(name for name in chain([word], (f"{word}{number}" for number in count(2))) if name not in used)


def _is_large(layer: LuaLayer) -> bool:
    """Return whether a container is worth a function if it is repeated: a module of PyTorch sooner than a part."""
    inner = walk(layer)
    return len(inner) > (3 if layer.path else 8) or (len(inner) == 3 and any(each.weights for each in inner))


def _common(keys: list[str]) -> str:
    """Return the longest common prefix of keys that ends before a dot."""
    return ".".join(commonprefix([key.split(".")[:-1] for key in keys]))  # noqa: RUF071  of words, not of a path


def _suffix(keys: list[str]) -> str:
    """Return what the last words of keys have in common from an underscore on: `_hh_l0` of `weight_hh_l0`."""
    words = [key.rpartition(".")[2] for key in keys]
    if not words or not set(words).isdisjoint(USUAL):
        return ""
    ending = commonprefix([word[::-1] for word in words])[::-1]  # noqa: RUF071  of letters, not of a path
    return "".join(ending.partition("_")[1:])


def _wrapped(line: re.Match[str]) -> str:
    """Return a long line as several, broken behind the outermost commas, or where their bracket opens."""
    rest = line[0]
    indent = " " * (len(rest) - len(rest.lstrip()) + 6)
    found = []
    while len(rest) > _WIDTH:
        depth, commas, opened = 0, [], {}
        for part in re.finditer(r"'[^']*'|[(){},]", rest[: 2 * _WIDTH]):
            depth += (part[0] in "({") - (part[0] in ")}")
            if part[0] == ",":
                commas.append((depth, -part.end()))
            elif part[0] in "({" and part.end() <= _WIDTH:
                opened[depth] = part.end()
        fitting = [(depth, end) for depth, end in commas if -end <= _WIDTH]
        if not fitting:
            break
        outer, (depth, end) = min(commas)[0], min(fitting)
        end = -end if depth == outer else opened.get(outer, -end)
        found.append(rest[:end])
        rest = indent + rest[end:].lstrip()
    return "\n".join([*found, rest])


def lua_string(text: str) -> str:
    """Return text as a Lua string literal; special characters are escaped byte by byte."""
    plain = "".join(
        chr(byte) if (chr(byte).isalnum() and byte < 128) or chr(byte) in "._-/ :" else f"\\{byte:03d}"
        for byte in text.encode("utf-8", "surrogatepass")
    )
    return f"'{plain}'"


def _arguments(layer: LuaLayer) -> _Args:
    """Return the arguments of the constructor."""
    args, names, needed = _with_defaults(layer)
    return _Args(tuple(map(_value, args)), tuple(names), needed)


def _with_defaults(layer: LuaLayer) -> tuple[list[Any], list[str], int]:
    """Return all arguments of the constructor, their names, and the number of those without trailing defaults."""
    args = list(layer.args)
    kind = layer.name.partition(".")[2]
    row = CLASSES.get(kind)
    words = row.args if row is not None else ()
    needed = len(args)
    if row is not None and len(args) <= len(words):
        pads = [value for word, value in zip(words, args) if word.startswith("pad")]
        while needed and words[needed - 1] in row.defaults:
            word, last = words[needed - 1], args[needed - 1]
            if last != row.defaults[word] or (word.startswith("pad") and any(pads)):  # Lua pads the height by the width
                break
            needed -= 1
        args += [row.defaults[word] for word in words[len(args) :] if word in row.defaults]
    names = [_NAMES.get(word, word) for word in _POSITIONS.get(kind, words)]
    names += ["n"] * (len(args) - len(names))
    return args, names[: len(args)], needed


def _value(value: Any) -> str:
    """Return a value as Lua source."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return lua_string(value)
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, tuple):
        if value and isinstance(value[0], tuple):
            return "{" + ", ".join(f"{name} = {_value(item)}" for name, item in value) + "}"
        return "{" + ", ".join(map(_value, value)) + "}"
    return _tensor(value)


def _number(value: float) -> str:
    if value != value:
        return "0/0"
    if value in (float("inf"), float("-inf")):
        return "math.huge" if value > 0 else "-math.huge"
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def _tensor(array: Any) -> str:
    """Return a constant tensor: filled if all elements are equal, else listed with repetitions."""
    sizes = ", ".join(map(str, array.shape))
    flat = array.reshape(-1)
    if (flat == flat[0]).all():
        return f"torch.Tensor({sizes}):fill({_number(float(flat[0]))})"
    words = []
    for value, group in groupby(flat.tolist()):
        text, times = f"{value:.9g}" if array.dtype.itemsize == 4 else repr(value), len(list(group))
        words.append(text if times == 1 else f"{text}*{times}")
    text = " ".join(words)
    if len(text) <= _WIDTH // 2:
        return f"numbers({{{sizes}}}, '{text}')"
    return f"numbers({{{sizes}}}, [[\n{textwrap.fill(text, _WIDTH, break_on_hyphens=False)}]])"
