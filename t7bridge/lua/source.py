"""`model.lua`: readable source that builds a model and loads its weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from importlib.resources import files
from itertools import groupby
from typing import Any

from attrs import field

from ..data import __version__, define
from .layers import CLASSES, LuaLayer, WeightRef, walk
from .trace import Program

USUAL = ("weight", "bias", "running_mean", "running_var")
MOST_LOCALS = 120
_WORDS = """
and break do else elseif end false for function goto if in local nil not or repeat return then true until while nn
nngraph torch model named numbers prefix tie build load M unpack
"""

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
-- Says which tensors of the PyTorch state dict a module holds: by their common prefix, or one by one.
local function named(module, names)
   if type(names) == 'string' then
      local prefix = names
      names = {{}}
      for _, field in ipairs({{'weight', 'bias', 'running_mean', 'running_var'}}) do
         local tensor = module[field]
         if tensor then names[field] = {{key = prefix .. '.' .. field, size = tensor:size():totable()}} end
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
      local value = number == 'inf' and math.huge or number == '-inf' and -math.huge or tonumber(number)
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

_TAIL = """
-- Modules that hold the same tensor share its memory.
local function tie(model)
   local places = {{}}
   for _, module in ipairs(model:listModules()) do
      for field, entry in pairs(module.t7bridge or {{}}) do
         if module[field] then
            places[entry.key] = places[entry.key] or {{}}
            table.insert(places[entry.key], {{module, field, entry}})
         end
      end
   end
   for _, holders in pairs(places) do
      if #holders > 1 then
         local size = holders[1][3].size
         local sizes = torch.LongStorage(#size > 0 and size or {{1}})
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

local M = {{}}

-- The model with random weights.
function M.build()
   local model = {main}
   return tie(model:{type}())
end

-- The model with the weights of a table: name in the PyTorch state dict → tensor.
function M.load(weights)
   local model = M.build()
   for _, module in ipairs(model:listModules()) do
{lstm}      for field, entry in pairs(module.t7bridge or {{}}) do
         local tensor = weights[entry.key]
         if not tensor then error('the weights have no tensor ' .. entry.key) end
         local own = module[field]
         if entry.transposed then tensor = tensor:t() end
         local elements = tensor:contiguous():view(-1)
         local count = 1
         for _, extent in ipairs(entry.size) do count = count * extent end
         if elements:nElement() ~= count then error('the tensor ' .. entry.key .. ' has another size') end
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
    body = functions + main
    rnn = "nn.SeqLSTM(" in body
    more, requires = (", and rnn", "require 'rnn'\n") if rnn else ("", "")
    if PACKAGE in body:
        more, requires = more + ", and layers.lua beside it", requires + _BESIDE
    inputs = "Inputs" if len(program.sizes) > 1 else "Input"
    head = _HEAD.format(
        inputs=f"{inputs}: {', '.join(program.sizes)}.", name=safe, version=__version__, more=more, requires=requires
    )
    numbers = _NUMBERS if "numbers(" in body else ""
    parts = {"lstm": "      if torch.type(module) == 'nn.SeqLSTM' then fill_lstm(module, weights) end\n" if rnn else ""}
    parts |= {"if_own": "if own then " if rnn else "", "end_own": " end" if rnn else ""}
    tail = _TAIL.format(main=main, type="double" if double else "float", **parts)
    return head + numbers + functions + (_LSTM if rnn else "") + tail


@define(eq=False)
class _Block:
    """A function of the source: a module that may occur several times.

    Attributes:
        name: of the function.
        layer: one of those that it creates.
        prefix: of that layer's keys; if it is not empty, the function has a parameter.
        text: its body, which calls functions for all blocks inside.
        inline: whether its body stands where it would be called.
    """

    name: str
    layer: LuaLayer
    prefix: str
    text: str
    inline: bool = False


@define(eq=False)
class _Writer:
    program: Program
    blocks: dict[str, _Block] = field(factory=dict)
    _known: dict[LuaLayer, tuple[_Block, str]] = field(factory=dict)

    def source(self, root: LuaLayer) -> tuple[str, str]:
        """Return the functions, inner ones first, and the expression of the whole model."""
        self._expression(root, "", 1, root=True)
        uses = Counter(re.findall(r"(?<![.:\w])\w+(?=\()", "".join(block.text for block in self.blocks.values())))
        for block in self.blocks.values():
            is_graph = block.layer.name == "nn.gModule"
            block.inline = not is_graph and not block.layer.label and uses[block.name] <= 1
        functions = ""
        for block in self.blocks.values():
            if not block.inline:
                parameter = "prefix" if block.prefix else ""
                functions += (
                    f"\nlocal function {block.name}({parameter})\n   {self._body(block.layer, block.prefix)}\nend\n"
                )
        return functions, self._expression(root, "", 1, root=True)

    def _expression(self, layer: LuaLayer, prefix: str, depth: int, root: bool = False) -> str:
        """Return the expression that creates a layer, its keys after a prefix."""
        if layer.name != "nn.gModule" and (root or len(walk(layer)) < 3):
            return self._plain(layer, prefix, depth)
        if layer not in self._known:
            own = _common([ref.key for inner in walk(layer) for ref in inner.weights.values()])
            text = self._body(layer, own)
            if text not in self.blocks:
                self.blocks[text] = _Block(self._name(layer), layer, own, text)
            self._known[layer] = self.blocks[text], own
        block, own = self._known[layer]
        return (
            self._plain(layer, prefix, depth) if block.inline else f"{block.name}({_key(own, prefix) if own else ''})"
        )

    def _body(self, layer: LuaLayer, prefix: str) -> str:
        """Return the statements of the function that creates a layer."""
        return self._graph(layer, prefix) if layer.name == "nn.gModule" else f"return {self._plain(layer, prefix, 1)}"

    def _name(self, layer: LuaLayer) -> str:
        module = self.program.modules.get(layer.path)
        kind = layer.label or (layer.name.rpartition(".")[2] if module is None else type(module).__name__)
        word = re.sub(r"[^A-Za-z0-9_]", "", kind) or "block"
        word = word[0].lower() + word[1:] if not word.isupper() else word.lower()
        if word in _WORDS.split() or not word[0].isalpha():
            word += "Block" if word[0].isalpha() else ""
            word = word if word[0].isalpha() else "block" + word
        used = {block.name for block in self.blocks.values()}
        name, number = word, 2
        while name in used:
            name, number = f"{word}{number}", number + 1
        return name

    def _plain(self, layer: LuaLayer, prefix: str, depth: int) -> str:
        """Return a constructor call with its additions."""
        indent = "   " * (depth + 1)
        if layer.name == "nn.Bottle":
            inner = self._expression(layer.children[0], prefix, depth)
            return f"nn.Bottle({inner}, {', '.join(map(_value, layer.args))})"
        text = f"{layer.name}({', '.join(_arguments(layer))})"
        text += "".join(f":{name}({', '.join(map(_value, args))})" for name, args in layer.calls)
        for child in layer.children:
            text += f"\n{indent}:add({self._expression(child, prefix, depth + 1)})"
        return self._named(text, layer, prefix)

    def _named(self, text: str, layer: LuaLayer, prefix: str) -> str:
        if not layer.weights:
            return text
        homes = {ref.key.rpartition(".")[0] for ref in layer.weights.values()}
        plain = all(self._whole(ref) and ref.key.rpartition(".")[2] == name for name, ref in layer.weights.items())
        if plain and len(homes) == 1 and set(layer.weights) <= set(USUAL):
            home = homes.pop()
            if home:
                return f"named({text}, {_key(home, prefix)})"
        entries = ", ".join(f"{name} = {self._entry(ref, prefix)}" for name, ref in layer.weights.items())
        return f"named({text}, {{{entries}}})"

    def _whole(self, ref: WeightRef) -> bool:
        return tuple(self.program.state[ref.key].shape) == ref.size and not ref.start and not ref.transposed

    def _entry(self, ref: WeightRef, prefix: str) -> str:
        size = ", ".join(str(int(extent)) for extent in self.program.state[ref.key].shape)
        parts = [f"key = {_key(ref.key, prefix)}", f"size = {{{size}}}"]
        if ref.start:
            parts.append(f"start = {ref.start}")
        if ref.transposed:
            parts.append("transposed = true")
        return "{" + ", ".join(parts) + "}"

    def _graph(self, layer: LuaLayer, prefix: str) -> str:
        """Return the statements that create an nn.gModule."""
        many = len(layer.steps) > MOST_LOCALS
        names: dict[int, str] = {}
        lines = ["local x = {}"] if many else []
        given = []
        for number, step in enumerate(layer.steps, 1):
            name = f"x[{number}]" if many else f"x{number}"
            names[id(step)] = name
            mark = "" if many else "local "
            if step.layer is None:
                lines.append(f"{mark}{name} = nn.Identity()()")
                given.append(name)
                continue
            sources = ", ".join(names[id(source)] for source in step.inputs)
            sources = sources if len(step.inputs) == 1 else f"{{{sources}}}"
            lines.append(f"{mark}{name} = {self._expression(step.layer, prefix, 1)}({sources})")
        returned = ", ".join(names[id(step)] for step in layer.outputs)
        inputs = ", ".join(given)
        return "\n   ".join([*lines, f"return nn.gModule({{{inputs}}}, {{{returned}}})"])


def _common(keys: list[str]) -> str:
    """Return the longest common prefix of keys that ends before a dot."""
    if not keys:
        return ""
    parts = [key.split(".")[:-1] for key in keys]
    found: list[str] = []
    for words in zip(*parts):
        if len(set(words)) > 1:
            break
        found.append(words[0])
    return ".".join(found)


def _key(key: str, prefix: str) -> str:
    """Return a key as an expression: a string, after the parameter `prefix` if there is one."""
    if not prefix:
        return lua_string(key)
    rest = key[len(prefix) :]
    return f"prefix .. {lua_string(rest)}" if rest else "prefix"


def lua_string(text: str) -> str:
    """Return text as a Lua string literal; special characters are escaped byte by byte."""
    plain = "".join(
        chr(byte) if (chr(byte).isalnum() and byte < 128) or chr(byte) in "._-/ :" else f"\\{byte:03d}"
        for byte in text.encode("utf-8", "surrogatepass")
    )
    return f"'{plain}'"


def _arguments(layer: LuaLayer) -> list[str]:
    """Return the constructor's arguments, without trailing defaults."""
    args = list(layer.args)
    row = CLASSES.get(layer.name.partition(".")[2])
    if row is not None:
        pads = [value for word, value in zip(row.args, args) if word.startswith("pad")]
        while args and len(args) <= len(row.args) and row.args[len(args) - 1] in row.defaults:
            word, last = row.args[len(args) - 1], args[-1]
            if last != row.defaults[word] or (word.startswith("pad") and any(pads)):  # Lua pads the height by the width
                break
            args.pop()
    return [_value(value) for value in args]


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
    return f"numbers({{{sizes}}}, '{' '.join(words)}')"
