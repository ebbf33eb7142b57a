-- changed_inside.lua OUT: layers whose constructor builds modules inside, each with one change in one of these modules.
-- A list of {name=, change=, module=, input=, output=, gradInput=} as Lua Torch computes them; only changes that show.
-- With `original=true` the layer as it was made. Needs nn, rnn and dpnn of Element-Research.
require 'nn'
require 'rnn'
local T = torch.FloatTensor
torch.setdefaulttensortype('torch.FloatTensor')
torch.manualSeed(7)
local function image(...) return torch.rand(...):add(0.1) end
local function pair() return {torch.rand(2, 3), torch.rand(2, 3)} end
local makers = {
   {'CategoricalEntropy', function() return nn.CategoricalEntropy(0.5) end, function() return torch.rand(3, 4) end},
   {'CReLU', function() return nn.CReLU(3) end, function() return torch.randn(2, 3, 4, 4) end},
   {'CrossEntropyCriterion', function() return nn.CrossEntropyCriterion() end, function() return torch.randn(3, 4) end, torch.LongTensor{1, 4, 2}},
   {'MultiLabelSoftMarginCriterion', function() return nn.MultiLabelSoftMarginCriterion() end, function() return torch.randn(3, 4) end, torch.Tensor(3, 4):bernoulli()},
   {'FireModule', function() return nn.FireModule(3, 2, 2, 2) end, function() return image(2, 3, 5, 5) end},
   {'Inception', function() return nn.Inception{inputSize = 3, kernelSize = {3}, kernelStride = {1}, outputSize = {2}, reduceSize = {2, 2, 2}} end, function() return image(2, 3, 6, 6) end},
   {'LayerNormalization', function() return nn.LayerNormalization(4) end, function() return torch.randn(3, 4) end},
   {'Maxout', function() return nn.Maxout(3, 2, 2) end, function() return torch.randn(2, 3) end},
   {'PartialLinear', function() return nn.PartialLinear(3, 4) end, function() return torch.randn(2, 3) end},
   {'SpatialContrastiveNormalization', function() return nn.SpatialContrastiveNormalization(2, torch.rand(3)) end, function() return image(2, 6, 6) end},
   {'SpatialDivisiveNormalization', function() return nn.SpatialDivisiveNormalization(2, torch.rand(3)) end, function() return image(2, 6, 6) end},
   {'SpatialSubtractiveNormalization', function() return nn.SpatialSubtractiveNormalization(2, torch.rand(3)) end, function() return image(2, 6, 6) end},
   {'SpatialLPPooling', function() return nn.SpatialLPPooling(2, 3, 2, 2, 2, 2) end, function() return image(2, 2, 6, 6) end},
   {'TanhShrink', function() return nn.TanhShrink() end, function() return torch.randn(2, 3) end},
   {'NormStabilizer', function() return nn.NormStabilizer() end, function() return torch.randn(2, 3) end},
   {'LSTM', function() return nn.LSTM(3, 2) end, function() return torch.randn(2, 3) end},
   {'FastLSTM', function() return nn.FastLSTM(3, 2) end, function() return torch.randn(2, 3) end},
   {'GRU', function() return nn.GRU(3, 2) end, function() return torch.randn(2, 3) end},
   {'Recurrent', function() return nn.Recurrent(2, nn.Linear(3, 2), nn.Linear(2, 2)) end, function() return torch.randn(2, 3) end},
   {'SeqBRNN', function() return nn.SeqBRNN(3, 2) end, function() return torch.randn(4, 2, 3) end},
   {'BiSequencer', function() return nn.BiSequencer(nn.Recurrent(2, nn.Linear(3, 2), nn.Linear(2, 2))) end, pair},
   {'BiSequencerLM', function() return nn.BiSequencerLM(nn.Recurrent(2, nn.Linear(3, 2), nn.Linear(2, 2))) end, pair},
}
local SWAPS = {['nn.Tanh'] = 'Sigmoid', ['nn.Sigmoid'] = 'Tanh', ['nn.Identity'] = 'Abs', ['nn.CopyGrad'] = 'Abs',
   ['nn.Square'] = 'Abs', ['nn.Sqrt'] = 'Abs', ['nn.Log'] = 'Tanh', ['nn.Abs'] = 'Square', ['nn.CAddTable'] = 'CSubTable',
   ['nn.CSubTable'] = 'CAddTable', ['nn.CMulTable'] = 'CAddTable', ['nn.CDivTable'] = 'CMulTable', ['nn.ReLU'] = 'Abs',
   ['nn.LogSoftMax'] = 'SoftMax', ['nn.SoftMax'] = 'LogSoftMax', ['nn.Max'] = 'Min', ['nn.Mean'] = 'Max'}
local NUMBERS = {'constant_scalar', 'addend', 'threshold', 'val', 'pow', 'eps', 'scale', 'index', 'offset', 'padW', 'pad_l', 'dW', 'momentum'}
local FLAGS = {'sizeAverage', 'negate', 'transB', 'transA', 'ceil_mode', 'squash', 'train'}
local function inside(module)
   local found, seen = {}, {}
   local function visit(value, path)
      if torch.isTensor(value) or seen[value] or type(value) ~= 'table' then return end
      seen[value] = true
      if torch.typename(value) and path ~= '' then table.insert(found, {path, value}) end
      local keys = {}
      for key in pairs(value) do if type(key) ~= 'table' then table.insert(keys, key) end end
      table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
      for _, key in ipairs(keys) do
         if type(value[key]) == 'table' then visit(value[key], path .. '.' .. tostring(key)) end
      end
   end
   visit(module, '')
   return found
end
local function copied(value)
   if torch.isTensor(value) then return value:clone() end
   if type(value) ~= 'table' then return value end
   local made = {}
   for key, item in pairs(value) do made[key] = copied(item) end
   return made
end
local function ones(value)
   if torch.isTensor(value) then return value:clone():copy(torch.range(1, value:nElement())):div(value:nElement()) end
   local made = {}
   for key, item in ipairs(value) do made[key] = ones(item) end
   return made
end
local function run(module, input, target)
   local module = module:clone()
   local function compute()
      local output, gradient
      if target then
         output = module:forward(copied(input), target)
         gradient = module:backward(copied(input), target)
      else
         output = copied(module:forward(copied(input)))
         gradient = module:backward(copied(input), ones(output))
      end
      return {output = output, gradInput = copied(gradient)}
   end
   local ok, found = pcall(compute)
   return ok and found or nil
end
local function same(a, b)
   if torch.isTensor(a) then return torch.isTensor(b) and a:isSameSizeAs(b) and (a:nElement() == 0 or (a - b):abs():max() < 1e-5) end
   if type(a) == 'number' then return math.abs(a - b) < 1e-5 end
   if type(a) ~= type(b) or #a ~= #b then return false end
   for key, item in ipairs(a) do if not same(item, b[key]) then return false end end
   return true
end
local cases = {}
for _, row in ipairs(makers) do
   local name, make, input, target = row[1], row[2], row[3](), row[4]
   local ok, original = pcall(make)
   local before = ok and run(original, input, target)
   if not before then
      print('cannot run ' .. name, original)
   else
      local function keep(change, module, found)
         if module.clearState then module:clearState() end
         if module.parameters then
            local _, gradients = module:parameters()
            for _, each in ipairs(gradients or {}) do each:set() end
         end
         table.insert(cases, {name = name, change = change, module = module, input = input, target = target,
            output = found.output, gradInput = found.gradInput, original = change == '' or nil})
      end
      keep('', original:clone(), before)
      local times = {}
      for place, row in ipairs(inside(original)) do
         local path, kind = row[1], torch.typename(row[2])
         local changes = {}
         if SWAPS[kind] then
            changes['class'] = function(m) debug.setmetatable(m, debug.getmetatable(nn[SWAPS[kind]](1))) end
         end
         for _, field in ipairs(NUMBERS) do
            if type(row[2][field]) == 'number' then changes[field] = function(m) m[field] = m[field] + 1 end end
         end
         for _, field in ipairs(FLAGS) do
            if type(row[2][field]) == 'boolean' then changes[field] = function(m) m[field] = not m[field] end end
         end
         local names = {}
         for change in pairs(changes) do table.insert(names, change) end
         table.sort(names)
         for _, change in ipairs(names) do
            local module = original:clone()
            changes[change](inside(module)[place][2])
            local found = run(module, input, target)
            local sort = kind .. change
            if found and not times[sort] and not (same(before.output, found.output) and same(before.gradInput, found.gradInput)) then
               times[sort] = true
               keep(path .. ' ' .. kind .. ' ' .. change, module, found)
            end
         end
      end
   end
end
torch.save(arg[1], cases)
print(#cases)
