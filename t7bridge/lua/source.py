"""`model.lua`: readable source that builds a model and loads its weights."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from attrs import field

from ..data import __version__, define
from .layers import CLASSES, LuaLayer, WeightRef, walk
from .trace import Program

USUAL = ("weight", "bias", "running_mean", "running_var")
MOST_LOCALS = 120
PREFIX = "\1"
"""Marks the parameter of a function until the source is finished: no user's name has this character."""
_WORDS = frozenset(
    (
        *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in", "local"),
        *("nil", "not", "or", "repeat", "return", "then", "true", "until", "while", "nn", "nngraph", "torch", "model"),
        *("named", "numbers", "prefix", "tie", "build", "load", "M", "unpack"),
    )
)

_HEAD = """\
-- {name}, from PyTorch by t7bridge {version}. Needs torch, nn and nngraph{more}.
--
--   local source = dofile('model.lua')
--   local model = source.load(torch.load('weights.t7'))   -- t7bridge convert weights.pt weights.t7
--   local fresh = source.build()                          -- the same with random weights

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


def lua_source(layer: LuaLayer, program: Program, name: str, double: bool = False) -> str:
    """Return the source of a model.

    Args:
        layer: the model.
        program: the traced program, for shapes and names.
        name: of the model, for the first line.
        double: whether its tensors are doubles.
    """
    writer = _Writer(program)
    main = writer.expression(layer, "", 1)
    writer.inline_single()
    functions, main = writer.finished(main)
    functions, main = functions.replace(PREFIX, "prefix"), main.replace(PREFIX, "prefix")
    safe = "".join(char if char.isprintable() else "?" for char in name)
    body = functions + main
    rnn = "nn.SeqLSTM(" in body
    more, requires = (", and rnn", "require 'rnn'\n") if rnn else ("", "")
    head = _HEAD.format(name=safe, version=__version__, more=more, requires=requires)
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
        text: its body, with `@n@` for calls of other blocks.
        is_graph: whether the body is statements.
        takes_prefix: whether it has a parameter.
    """

    name: str
    text: str
    is_graph: bool
    takes_prefix: bool


@define(eq=False)
class _Writer:
    program: Program
    blocks: list[_Block] = field(factory=list)
    _known: dict[tuple[str, bool], int] = field(factory=dict)
    _inline: set[int] = field(factory=set)

    def expression(self, layer: LuaLayer, prefix: str, depth: int, root: bool = True) -> str:
        """Return the expression that creates a layer, its keys after a prefix."""
        graph = layer.name == "nn.gModule"
        if graph or (not root and len(_keys_and_layers(layer)[1]) >= 3):
            return self._call(layer, prefix, graph)
        return self._plain(layer, prefix, depth)

    def _call(self, layer: LuaLayer, prefix: str, graph: bool) -> str:
        """Return the call of a function that creates a layer."""
        keys, _ = _keys_and_layers(layer)
        own = _common(keys)
        body = self._graph(layer, own) if graph else self._plain(layer, own, 1)
        takes = PREFIX in body
        number = self._known.setdefault((body, graph), len(self.blocks))
        if number == len(self.blocks):
            self.blocks.append(_Block(self._name(layer), body, graph, takes))
        return f"@{number}@{_key(own, prefix) if takes else ''}@"

    def _name(self, layer: LuaLayer) -> str:
        kind = self.program.classes.get(layer.path, "") or layer.name.rpartition(".")[2]
        word = re.sub(r"[^A-Za-z0-9_]", "", kind) or "block"
        word = word[0].lower() + word[1:] if not word.isupper() else word.lower()
        if word in _WORDS or not word[0].isalpha():
            word += "Block" if word[0].isalpha() else ""
            word = word if word[0].isalpha() else "block" + word
        used = {block.name for block in self.blocks}
        name, number = word, 2
        while name in used:
            name, number = f"{word}{number}", number + 1
        return name

    def _plain(self, layer: LuaLayer, prefix: str, depth: int) -> str:
        """Return a constructor call with its additions."""
        indent = "   " * (depth + 1)
        if layer.name == "nn.Bottle":
            inner = self.expression(layer.children[0], prefix, depth, False)
            return f"nn.Bottle({inner}, {', '.join(map(_value, layer.args))})"
        text = f"{layer.name}({', '.join(_arguments(layer))})"
        text += "".join(f":{name}({', '.join(map(_value, args))})" for name, args in layer.calls)
        for child in layer.children:
            text += f"\n{indent}:add({self.expression(child, prefix, depth + 1, False)})"
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
            lines.append(f"{mark}{name} = {self.expression(step.layer, prefix, 1, False)}({sources})")
        returned = ", ".join(names[id(step)] for step in layer.outputs)
        inputs = ", ".join(given)
        return "\n   ".join([*lines, f"return nn.gModule({{{inputs}}}, {{{returned}}})"])

    def inline_single(self) -> None:
        """Inline blocks that are used once, unless they are statements."""
        uses: Counter[int] = Counter()
        for block in self.blocks:
            uses.update(int(number) for number in re.findall(r"@(\d+)@", block.text))
        self._inline = {number for number, block in enumerate(self.blocks) if not block.is_graph and uses[number] <= 1}

    def finished(self, main: str) -> tuple[str, str]:
        """Return the functions, inner ones first, and the expression of the whole model."""
        text = ""
        for number, block in enumerate(self.blocks):
            if number in self._inline:
                continue
            parameter = "prefix" if block.takes_prefix else ""
            body = self._resolve(block.text)
            body = body if block.is_graph else f"return {body}"
            text += f"\nlocal function {block.name}({parameter})\n   {body}\nend\n"
        return text, self._resolve(main)

    def _resolve(self, text: str) -> str:
        def call(match: re.Match[str]) -> str:
            number, argument = int(match[1]), match[2]
            block = self.blocks[number]
            if number in self._inline:
                body = self._resolve(block.text)
                if block.takes_prefix:
                    body = _moved(body, argument)
                line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
                shift = len(line) - len(line.lstrip()) - 3
                return body.replace("\n", "\n" + " " * max(shift, 0))
            return f"{block.name}({argument})"

        return re.sub(r"@(\d+)@([^@]*)@", call, text)


def _moved(body: str, argument: str) -> str:
    """Return a body whose prefix is an expression: a string, the prefix itself, or the prefix and a string."""
    start = argument[:-1]  # without the closing quote, so that the strings after it continue
    marked = body.replace(f"{PREFIX} .. '", "\0").replace(PREFIX, argument)
    return marked.replace("\0", f"{PREFIX} .. '" if argument == PREFIX else start)


def _keys_and_layers(layer: LuaLayer) -> tuple[list[str], list[LuaLayer]]:
    layers = walk(layer)
    return [ref.key for inner in layers for ref in inner.weights.values()], layers


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
    return f"{PREFIX} .. {lua_string(rest)}" if rest else PREFIX


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
    if row is not None and row.special is None:
        defaults = dict(zip(reversed(row.args), reversed(row.defaults)))
        pads = [value for word, value in zip(row.args, args) if word.startswith("pad")]
        while args and len(args) <= len(row.args) and row.args[len(args) - 1] in defaults:
            word, last = row.args[len(args) - 1], args[-1]
            known = defaults[word]
            if last != known or isinstance(last, bool) != isinstance(known, bool):
                break
            if word.startswith("pad") and any(pads):  # in Lua a missing height means the width
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
    words: list[str] = []
    place = 0
    values = flat.tolist()
    while place < len(values):
        end = place
        while end < len(values) and values[end] == values[place]:
            end += 1
        end = max(end, place + 1)
        text = f"{values[place]:.9g}" if array.dtype.itemsize == 4 else repr(values[place])
        words.append(text if end == place + 1 else f"{text}*{end - place}")
        place = end
    return f"numbers({{{sizes}}}, '{' '.join(words)}')"
