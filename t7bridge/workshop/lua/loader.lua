-- Puts a PyTorch state dict into an nn or nngraph model that exists, by name. Needs torch and nn only.
--
--   local loader = dofile('loader.lua')
--   local weights = torch.load('weights.t7')                -- t7bridge convert weights.pt weights.t7
--   loader.load(model, weights, {
--      conv1 = model:get(1),                                -- the prefix of the keys, and the module they go to
--      ['layer1.0'] = {conv1 = a, bn1 = b},                 -- prefixes inside prefixes
--      conv2 = {model:get(4), norm = 'bn2'},                -- a batch normalization that is fused into a convolution
--      rnn = {first, second},                               -- the layers of an nn.LSTM or nn.RNN: nn.SeqLSTM, nn.FastLSTM …
--      cell = {i2h = c, h2h = d, gates = 'ifog'},           -- an LSTM of two linear layers, and the order of its gates
--      scale = model:get(7),                                -- a parameter: the module that holds it
--   })
--
-- A name in the table counts for the modules inside too. Without a table, and inside a container that is named, modules are
-- found by their own names: a field `name`, an annotation `name` of an nngraph node, or else the place in the container,
-- counted from 0 as PyTorch does: '0.2.1'.
--
-- Everything that does not fit is one error: tensors that no module takes, modules that get none, other sizes. With
-- loader.load(model, weights, names, {partial = true}) the first two are allowed, and are returned as lists.

local loader = {}

-- Rows of PyTorch's LSTM are the gates i, f, g, o; these classes have another order.
loader.gates = {['nn.SeqLSTM'] = 'ifog', ['nn.SeqLSTMP'] = 'ifog', ['nn.LSTM'] = 'ifog', ['nn.FastLSTM'] = 'igfo'}
local PYTORCH = {[4] = 'ifgo', [3] = 'rzn'}
local FIELDS = {'weight', 'bias', 'running_mean', 'running_var', 'running_std'}
-- These compute something else than PyTorch's layers of that name, whatever their weights.
local REFUSED = {
   ['nn.GRU'] = 'resets the state before it is multiplied, PyTorch after', ['nn.MuFuRu'] = 'has no counterpart in PyTorch',
   ['nn.SeqGRU'] = 'resets the state before it is multiplied, PyTorch after',
}

local function kind(value)
   return torch.type(value)
end

local function is_module(value)
   return torch.isTypeOf(value, 'nn.Module')
end

-- One table of tensors by key, whether tables stand inside tables or keys have dots.
local function flattened(weights, prefix, found)
   found = found or {}
   for key, value in pairs(weights) do
      local name = prefix and prefix .. '.' .. tostring(key) or tostring(key)
      if torch.isTensor(value) then
         found[name] = value
      elseif type(value) == 'table' and not torch.typename(value) then
         flattened(value, name, found)
      end
   end
   return found
end

local function without(found, prefix)
   local renamed = {}
   for key, value in pairs(found) do
      if key:sub(1, #prefix) ~= prefix then return found end
      renamed[key:sub(#prefix + 1)] = value
   end
   return renamed
end

local function has(self, prefix)
   if self.weights[prefix] then return true end
   for key in pairs(self.weights) do
      if key:sub(1, #prefix + 1) == prefix .. '.' then return true end
   end
   return false
end

-- The names of the weights without the step that all begin with, if all names of modules are there then, and not before.
local function without_step(found, names)
   local first = next(found)
   local step = first and first:match('^[^.]+%.')
   if not step or type(names) ~= 'table' or is_module(names) then return found end
   local plain = without(found, step)
   if plain == found then return found end
   local function has_all(weights)
      for name in pairs(names) do
         name = type(name) == 'number' and tostring(name - 1) or name
         if not has({weights = weights}, name) then return false end
      end
      return true
   end
   if has_all(found) or not has_all(plain) then return found end
   print('the names of the weights begin with "' .. step .. '", which is left out')
   return plain
end

local function joined(prefix, name)
   return prefix == '' and name or prefix .. '.' .. name
end

-- The tensor of a key, marked as used.
local function take(self, key)
   local tensor = self.weights[key]
   if tensor then self.used[key] = true end
   return tensor
end

local function wrong(self, text)
   table.insert(self.problems, text)
end

local function sizes(tensor)
   return tensor:dim() == 0 and 'nothing' or table.concat(tensor:size():totable(), ' x ')
end

-- Sizes without dimensions of one element at the end, or at both ends of a vector: layers compute the same with them.
local function trimmed(tensor)
   local all, others = tensor:size():totable(), {}
   for _, extent in ipairs(all) do
      if extent ~= 1 then table.insert(others, extent) end
   end
   if #others < 2 then return others end
   while all[#all] == 1 do table.remove(all) end
   return all
end

-- Whether a layer computes the same with the elements in another shape: a kernel of n x c x h x w is a matrix of n x (c h w).
local function fits(tensor, own)
   if tensor:nElement() ~= own:nElement() then return false end
   if tensor:nElement() == 0 then return true end
   local one, other = trimmed(tensor), trimmed(own)
   if math.min(#one, #other) == 2 and #one ~= #other then return one[1] == other[1] end
   return table.concat(one, ' ') == table.concat(other, ' ')
end

-- Copies elements into a field of a module, in the field's own shape.
local function put(self, module, field, tensor, key)
   local own = module[field]
   if not own or not fits(tensor, own) then
      wrong(self, string.format('%s is %s, and %s of %s is %s', key, sizes(tensor), field, kind(module), own and sizes(own) or 'missing'))
      return
   end
   -- Modules that share memory get the same values, or one of them would get another one's.
   local place = torch.pointer(own:storage()) .. ':' .. own:storageOffset()
   local values, before = own:clone():copy(tensor:contiguous():viewAs(own)), self.places[place]
   if before and before ~= key and not own:equal(values) then
      wrong(self, before .. ' and ' .. key .. ' are different, and go to the same memory')
      return
   end
   self.places[place] = key
   own:copy(values)
   self.filled[module] = self.filled[module] or {}
   self.filled[module][field] = true
end

-- Rows in blocks, put from PyTorch's order of gates into another.
local function regated(tensor, order, usual)
   if order == usual then return tensor end
   local rows = tensor:size(1) / #order
   local made = tensor:clone()
   for place = 1, #order do
      local from = usual:find(order:sub(place, place), 1, true)
      made:narrow(1, (place - 1) * rows + 1, rows):copy(tensor:narrow(1, (from - 1) * rows + 1, rows))
   end
   return made
end

-- Fills one module that has tensors of its own.
local function fill(self, prefix, module, norm)
   local name = kind(module)
   local weight, bias = take(self, joined(prefix, 'weight')), take(self, joined(prefix, 'bias'))
   if not weight and self.weights[prefix] then -- a parameter of its own
      put(self, module, module.weight and 'weight' or 'bias', take(self, prefix), prefix)
      return
   end
   if norm then -- w x gamma / sqrt(var + eps), (b - mean) x gamma / sqrt(var + eps) + beta
      local mean, var = take(self, norm .. '.running_mean'), take(self, norm .. '.running_var')
      local gamma, beta = take(self, norm .. '.weight'), take(self, norm .. '.bias')
      if not (mean and var and weight) then
         wrong(self, prefix .. ' and ' .. norm .. ' are not a convolution and a batch normalization')
         return
      end
      local factor = var:double():add(self.options.eps or 1e-5):sqrt():pow(-1)
      if gamma then factor:cmul(gamma:double()) end
      local shift = (bias and bias:double() or mean:double():zero()):add(-1, mean:double()):cmul(factor)
      if beta then shift:add(beta:double()) end
      local transposed = name:find('FullConvolution')
      local scale = weight:double():clone()
      for row = 1, factor:size(1) do scale:select(transposed and 2 or 1, row):mul(factor[row]) end
      weight, bias = scale, shift
   end
   if weight then
      if name == 'nn.TemporalConvolution' and weight:dim() == 3 then -- out x in x k becomes out x (k x in)
         weight = weight:transpose(2, 3)
      elseif name == 'nn.SpatialDepthWiseConvolution' and module.nOutputPlane > 1 then -- (in x times) becomes times x in
         local planes, rest = module.nInputPlane, weight:nElement() / module.nInputPlane / module.nOutputPlane
         weight = weight:contiguous():view(planes, module.nOutputPlane, rest):transpose(1, 2):contiguous():viewAs(module.weight)
         bias = bias and bias:contiguous():view(planes, module.nOutputPlane):t()
      end
      put(self, module, 'weight', weight, joined(prefix, 'weight'))
   end
   if bias then
      put(self, module, 'bias', bias, joined(prefix, 'bias'))
   elseif weight and weight:dim() > 1 and module.bias then -- PyTorch has none there
      module.bias:zero()
      self.filled[module].bias = true
   end
   for _, field in ipairs({'running_mean', 'running_var'}) do
      local tensor = take(self, joined(prefix, field))
      if tensor and field == 'running_var' and module.running_std and not module.running_var then
         put(self, module, 'running_std', tensor:double():add(module.eps or 1e-5):pow(-0.5), joined(prefix, field))
      elseif tensor then
         put(self, module, field, tensor, joined(prefix, field))
      end
   end
end

-- The module that has the weights of a recurrent layer, inside a Sequencer or other decorator.
local function inner(module)
   while not (module.i2g or (torch.isTensor(module.weight) and module.bias)) do
      local inside = module.recurrentModule or module.module or (module.modules and #module.modules == 1 and module.modules[1])
      if not inside then break end
      module = inside
   end
   return module
end

-- Fills one layer and direction of a PyTorch nn.LSTM or nn.RNN: `suffix` is '_l0', '_l1_reverse', or '' for a cell.
local function fill_recurrent(self, prefix, suffix, layer)
   local function key(name) return joined(prefix, name .. suffix) end
   local ih, hh = take(self, key('weight_ih')), take(self, key('weight_hh'))
   local b_ih, b_hh = take(self, key('bias_ih')), take(self, key('bias_hh'))
   if not ih or not hh then
      wrong(self, 'there are no ' .. key('weight_ih') .. ' and ' .. key('weight_hh'))
      return
   end
   local projection = take(self, key('weight_hr'))
   local usual = PYTORCH[ih:size(1) / (projection or hh):size(2)]
   local cell = is_module(layer) and inner(layer) or layer
   local name = is_module(cell) and kind(cell) or 'a cell'
   local order = cell.gates or usual
   if is_module(cell) then
      if REFUSED[name] then wrong(self, prefix .. ': ' .. name .. ' ' .. REFUSED[name]) return end
      if usual == PYTORCH[3] then wrong(self, prefix .. ': no class of Lua computes what nn.GRU does; name its linear layers') return end
      if usual == PYTORCH[4] and not cell.i2g and not torch.isTensor(cell.weight) then
         wrong(self, prefix .. ': ' .. name .. ' is no LSTM as PyTorch has it')
         return
      end
      order = usual and loader.gates[name] or usual
   elseif usual and not cell.gates then
      wrong(self, prefix .. ': the order of the gates is not named: gates = ' .. string.format('%q', usual))
      return
   end
   if usual then
      local one, other = {order:byte(1, -1)}, {usual:byte(1, -1)}
      table.sort(one) table.sort(other)
      if table.concat(one, ' ') ~= table.concat(other, ' ') then
         wrong(self, prefix .. ': ' .. order .. ' is no order of the gates ' .. usual)
         return
      end
      ih, hh = regated(ih, order, usual), regated(hh, order, usual)
      b_ih, b_hh = b_ih and regated(b_ih, order, usual), b_hh and regated(b_hh, order, usual)
   end
   local first, second = cell.i2h or cell.i2g, cell.h2h or cell.o2g
   if first and second then
      put(self, first, 'weight', ih, key('weight_ih'))
      put(self, second, 'weight', hh, key('weight_hh'))
      if first.bias and second.bias then
         put(self, first, 'bias', b_ih or first.bias:clone():zero(), key('bias_ih'))
         put(self, second, 'bias', b_hh or second.bias:clone():zero(), key('bias_hh'))
      elseif first.bias then -- one bias where PyTorch adds two
         put(self, first, 'bias', b_ih and b_ih + b_hh or first.bias:clone():zero(), key('bias_ih'))
      elseif b_ih then
         wrong(self, prefix .. ': Lua has no bias there, and PyTorch has two')
      end
      return
   end
   put(self, cell, 'weight', torch.cat(ih:t():contiguous(), hh:t():contiguous(), 1), key('weight_ih'))
   put(self, cell, 'bias', b_ih and b_ih + b_hh or cell.bias:clone():zero(), key('bias_ih'))
   if projection then put(self, cell, 'weightO', projection:t(), key('weight_hr')) end
end

-- Names of the modules inside a container: pairs of name and module.
local function children(module)
   local found, named = {}, {}
   for _, node in ipairs(module.forwardnodes or {}) do
      local name = node.data.annotations and node.data.annotations.name
      if node.data.module and name then named[node.data.module] = name end
   end
   for place, child in ipairs(module.modules or {}) do
      local name = named[child] or (type(child.name) == 'string' and child.name) or tostring(place - 1)
      table.insert(found, {name, child})
   end
   return found
end

-- The names of a model's own modules, as keys.
local function own_names(model)
   local names = {}
   for _, pair in ipairs(children(model)) do
      if #pair[2]:listModules() > 1 or pair[2].weight or pair[2].bias then names[pair[1]] = true end
   end
   return next(names) and names
end

local assign

local function assign_module(self, prefix, module, norm)
   local suffix = has(self, joined(prefix, 'weight_ih_l0')) and '_l0' or has(self, joined(prefix, 'weight_ih')) and ''
   if suffix then
      fill_recurrent(self, prefix, suffix, module)
      return
   end
   if module.modules and not torch.isTensor(module.weight) then
      for _, pair in ipairs(children(module)) do
         local name = pair[1]
         -- a name of a module may be the whole prefix, or what follows that of its container
         local whole = name:find('%a') and has(self, name) and name or joined(prefix, name)
         if has(self, whole) then
            assign_module(self, whole, pair[2])
         elseif pair[2].modules and not name:find('^%d+$') then
            assign_module(self, prefix, pair[2])
         elseif pair[2].modules then
            assign_module(self, whole, pair[2])
         end
      end
      return
   end
   fill(self, prefix, module, norm)
end

function assign(self, prefix, value)
   if is_module(value) then
      assign_module(self, prefix, value)
   elseif type(value) ~= 'table' then
      wrong(self, prefix .. ': ' .. type(value) .. ' is no module')
   elseif value.norm then
      assign_module(self, prefix, value[1], value.norm)
   elseif value.i2h then
      fill_recurrent(self, prefix, has(self, joined(prefix, 'weight_ih')) and '' or '_l0', value)
   elseif value.forward then
      fill_recurrent(self, prefix, '_l0', value.forward)
      fill_recurrent(self, prefix, '_l0_reverse', value.backward)
   elseif #value > 0 and has(self, joined(prefix, 'weight_ih_l0')) then
      for place, layer in ipairs(value) do
         local suffix = '_l' .. (place - 1)
         fill_recurrent(self, prefix, suffix, layer.forward and not is_module(layer) and layer.forward or layer)
         if not is_module(layer) and layer.backward then fill_recurrent(self, prefix, suffix .. '_reverse', layer.backward) end
      end
   else
      for name, inside in pairs(value) do
         assign(self, joined(prefix, type(name) == 'number' and tostring(name - 1) or name), inside)
      end
   end
end

-- Fills a model.
--   model    any nn.Module
--   weights  a table: key of the state dict, or tables inside tables → tensor
--   names    see above; nil where the model says them itself
--   options  partial = true; eps = of fused batch normalizations
-- Returns the model, the keys that no module took, and the tensors of modules that got nothing.
function loader.load(model, weights, names, options)
   local found = flattened(weights.state_dict or weights)
   found = without_step(without(without(found, '_orig_mod.'), 'module.'), names or own_names(model))
   local self = {weights = found, used = {}, problems = {}, filled = {}, places = {}, options = options or {}}
   assign(self, '', names or model)
   local left, empty, seen = {}, {}, {}
   for key in pairs(found) do
      if not self.used[key] and not key:find('num_batches_tracked$') then table.insert(left, key) end
   end
   for module, fields in pairs(self.filled) do -- tensors that other modules share have their values, too
      for field in pairs(fields) do seen[torch.pointer(module[field]:storage()) .. ':' .. module[field]:storageOffset()] = true end
   end
   for place, module in ipairs(model:listModules()) do
      for _, field in ipairs(FIELDS) do
         local own = module[field]
         if torch.isTensor(own) and own:nElement() > 0 and not seen[torch.pointer(own:storage()) .. ':' .. own:storageOffset()] then
            table.insert(empty, string.format('%s of %s (module %d of listModules)', field, kind(module), place))
         end
      end
   end
   table.sort(left)
   if not self.options.partial then
      for _, key in ipairs(left) do wrong(self, 'no module takes ' .. key) end
      for _, text in ipairs(empty) do wrong(self, 'the state dict has nothing for ' .. text) end
   end
   if #self.problems > 0 then
      error('the state dict does not fit the model:\n  ' .. table.concat(self.problems, '\n  '), 2)
   end
   return model, left, empty
end

return loader
