"""`model.lua`: readable source that builds a model and loads its weights."""

from __future__ import annotations

from collections.abc import Collection
from importlib.resources import files

from ...data import __version__
from .blocks import find_blocks
from .layers import LuaLayer, walk
from .literals import lua_string, wrapped
from .trace import Program
from .writer import functions_and_model

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
   return {cast}
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
         {copy}
      end
   end
   model:evaluate()
   return model
end

return M
"""


PACKAGE = "pt."
"""Beginning of the names of the classes in `classes.lua`."""
_REQUIRE_CLASSES = """dofile((debug.getinfo(1, 'S').source:match('^@(.*[/\\\\])') or '') .. 'layers.lua')
"""
"""Loads `layers.lua` beside the model's source."""


def classes_source(names: Collection[str]) -> str:
    """Return those sections of `classes.lua` that some classes need: their own, and the functions that they call.

    A section is a class or a function. No function calls another.

    Args:
        names: of classes, `pt.Sort`; others are ignored. Without any of `classes.lua`, the source is empty.
    """
    source = (files(__package__) / "classes.lua").read_text("utf-8")
    head, *parts = source.split("-- [")  # each section begins with its name: `-- [Sort]`
    sections = {}
    for part in parts:
        name, _, text = part.partition("]\n")
        sections[name] = text
    classes = [text for name, text in sections.items() if PACKAGE + name in names]
    if not classes:
        return ""
    functions = []
    for name, text in sections.items():
        is_called = any(f"{name}(" in text_of_class for text_of_class in classes)
        is_class = text in classes  # one may have its own name before a bracket
        if is_called and not is_class:
            functions.append(text)
    # Lua's local functions have to be before their callers.
    return head + "".join([*functions, *classes])


def flatten(root: LuaLayer, program: Program) -> None:
    """Move the layers of an nn.Sequential inside another into the outer one, and leave out those that do nothing.

    Those that are repeated, for which the source has a function, stay.

    Args:
        root: the whole model, which is changed.
        program: the traced program, for the names of functions.
    """
    blocks = find_blocks(root, program)  # which have a function is decided before layers are merged
    for outer in reversed(walk(root)):  # inner ones first
        if outer.name != "nn.Sequential":
            continue
        layers: list[LuaLayer] = []
        for child in outer.children:
            if blocks.can_be_merged(child, into=outer):
                layers += child.children
            else:
                layers.append(child)
        # Lua's nn.Sequential needs a layer, though that does nothing.
        outer.children = _without_identities(layers) or layers[:1]


def _without_identities(layers: list[LuaLayer]) -> list[LuaLayer]:
    """Return layers, to be applied one after another, without those that return what they take."""
    effective: list[LuaLayer] = []
    for layer in layers:
        is_after_contiguous = bool(effective) and effective[-1].name == "nn.Contiguous"
        is_contiguous_again = is_after_contiguous and layer.name == "nn.Contiguous"
        if layer.name != "nn.Identity" and not is_contiguous_again:
            effective.append(layer)
    return effective


def lua_source(layer: LuaLayer, program: Program, name: str, double: bool = False) -> str:
    """Return the source of a model, `model.lua`: with those of its helper functions that it needs.

    Args:
        layer: the model.
        program: the traced program, for shapes and names.
        name: of the model, for the first line.
        double: whether its tensors are doubles.
    """
    functions, main = map(wrapped, functions_and_model(layer, program))
    class_names = {inner.name for inner in walk(layer)}
    has_lstm = "nn.SeqLSTM" in class_names
    is_tied = _shares_tensors(layer)
    lines_of_tied_keys = _lines_of_tied_keys(layer, program)
    source = _head(program, name, class_names)
    if "numbers(" in functions + main:
        source += _NUMBERS
    source += functions
    if has_lstm:
        source += _LSTM
    if is_tied:
        source += _TIE
    if lines_of_tied_keys:
        source += _TIED.format(keys=",\n".join(lines_of_tied_keys))
    return source + _tail(main, double, has_lstm, is_tied, has_tied_keys=bool(lines_of_tied_keys))


def _head(program: Program, name: str, class_names: Collection[str]) -> str:
    """Return the comment at the beginning, and the packages that the source requires besides nn and nngraph.

    Args:
        program: the traced program, for the sizes of its inputs.
        name: of the model.
        class_names: the classes of its layers, `nn.Linear`.
    """
    more = ""
    requires = ""
    if "nn.SeqLSTM" in class_names:  # of the package rnn
        more += ", and rnn"
        requires += "require 'rnn'\n"
    if any(class_name.startswith(PACKAGE) for class_name in class_names):
        more += ", and layers.lua beside it"
        requires += _REQUIRE_CLASSES
    word = "Inputs" if len(program.texts) > 1 else "Input"
    return _HEAD.format(
        name="".join(char if char.isprintable() else "?" for char in name),  # a line break would end the comment
        version=__version__,
        more=more,
        inputs=f"{word}: {', '.join(program.texts)}.",
        requires=requires,
    )


def _shares_tensors(layer: LuaLayer) -> bool:
    """Return whether several layers hold one tensor: one that PyTorch uses twice has two modules in Lua.

    Layers that hold parts of one tensor share it, too.
    """
    keys = []
    for inner in dict.fromkeys(walk(layer)):  # a layer may be at several places
        if inner.name != "nn.SeqLSTM":  # its tensors are put together of several
            keys += [ref.key for ref in inner.weights.values()]
    return len(set(keys)) < len(keys)


def _lines_of_tied_keys(layer: LuaLayer, program: Program) -> list[str]:
    """Return the lines of a Lua table: further key of a tensor that has several, and that a layer holds → its first."""
    keys_of_layers: set[str] = set()
    for inner in walk(layer):
        keys_of_layers.update(ref.key for ref in inner.weights.values())
    lines = []
    for key, first_key in program.aliases.items():
        if first_key in keys_of_layers:
            lines.append(f"   [{lua_string(key)}] = {lua_string(first_key)}")
    return lines


def _tail(main: str, double: bool, has_lstm: bool, is_tied: bool, has_tied_keys: bool) -> str:
    """Return the functions that build the model and load its weights.

    Args:
        main: the expression that creates the model.
        double: whether its tensors are doubles.
        has_lstm: whether it has an nn.SeqLSTM, which `fill_lstm` of the source loads.
        is_tied: whether layers share tensors, which `tie` has them do again after the cast.
        has_tied_keys: whether the state dict has a tensor that a layer holds under several keys (one that is tied in
            PyTorch); `check_tied` raises an error if the values of these differ. Several layers may share a tensor of
            one key, and one layer may hold a tensor of several keys: neither flag implies the other.
    """
    cast = f"model:{'double' if double else 'float'}()"
    if is_tied:
        cast = f"tie({cast})"
    check_tied = "   check_tied(weights)\n" if has_tied_keys else ""
    lstm = ""
    copy = "own:copy(elements:narrow(1, (entry.start or 0) + 1, own:nElement()))"
    if has_lstm:
        lstm = "      if torch.type(module) == 'nn.SeqLSTM' then fill_lstm(module, weights) end\n"
        # `local own = module[field]` of the template is nil for an nn.SeqLSTM, whose tensors have other names in Lua.
        copy = f"if own then {copy} end"
    return _TAIL.format(main=main, cast=cast, check_tied=check_tied, lstm=lstm, copy=copy)
