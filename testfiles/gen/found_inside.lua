-- What Lua runs where a class holds a module twice, and other rules of its own, as one list of records; what one step of
-- SGD does to layers of recurrence, as another.
--   th found_inside.lua OUT.t7 STEPS.t7            (needs Element-Research's rnn, dpnn, nnx and nngraph)
-- Records are like those of random_nets.lua. Those whose text begins with `shapes` have parts of other shapes than the
-- first, which model.py refuses. Steps are {text=, model=, input=, gradOutput=, output=, after=}: the model before, its
-- output in evaluation after one step with a rate of 0.1, and the model then.
require 'rnn' require 'nngraph' require 'nnx'
torch.setdefaulttensortype('torch.DoubleTensor') torch.manualSeed(41) torch.setnumthreads(1)
local R, list, steps = torch.random, {}, {}
local function copy(x)
  if torch.isTensor(x) then return x:clone() end
  local t = {} for i, v in ipairs(x) do t[i] = copy(v) end return t
end
local function noise(x)
  if torch.isTensor(x) then return x.new(x:size()):normal() end
  local t = {} for i, v in ipairs(x) do t[i] = noise(v) end return t
end
local function equal(a, b)
  if torch.isTensor(a) then return a:isSameSizeAs(b) and a:equal(b) end
  for i, v in ipairs(a) do if not equal(v, b[i]) then return false end end
  return true
end
-- A copy without buffers, where it computes the same.
local function cleared(m, x, output)
  local c = m:clone()
  local ok, same = pcall(function() c:clearState() return equal(c:clone():forward(copy(x)), output) end)
  return ok and same and c or m:clone()
end
local function evaluated(text, m, x)
  m:evaluate()
  local output = copy(m:clone():forward(copy(x)))
  list[#list + 1] = {text = text, model = cleared(m, x, output), input = copy(x), output = output}
end
local function both(text, m, x, no_backward)
  evaluated(text, m, x)
  local r, t = list[#list], m:clone()
  t:training()
  r.trainOutput = copy(t:forward(copy(x)))
  if no_backward then return end
  r.gradOutput = noise(r.trainOutput)
  r.gradInput = copy(t:backward(copy(x), copy(r.gradOutput)))
  r.gradParameters = {}
end
local function sequence(n, d) local t = {} for i = 1, n do t[i] = torch.randn(2, d) end return t end

-- A module that a field and `modules` hold, replaced in `modules`: Lua runs the field, or only what is inside.
local function replaced(text, m, x, from, to)
  m:evaluate() m:forward(copy(x))
  if m.forget then m:forget() end
  m:replace(function(q) if q == from or torch.type(q) == from then return to(q) end return q end)
  evaluated(text, m, x)
end
local function hard() return nn.HardTanh() end
local function halved(q) return nn.Sequential():add(q):add(nn.MulConstant(.5)) end
local function recurrent() return nn.Recurrent(4, nn.Linear(3, 4), nn.Linear(4, 4), nn.Tanh()) end
local x = sequence(3, 3)
for _, type in ipairs{'nn.Tanh', 'nn.Linear', 'nn.CAddTable', 'nn.Add'} do
  replaced('Recurrent, ' .. type, nn.Sequencer(recurrent()), x, type, type == 'nn.Tanh' and hard or halved)
end
replaced('Repeater', nn.Repeater(recurrent(), 3), x[1], 'nn.Recurrent', function() return nn.Recursor(nn.Linear(3, 4)) end)
replaced('Repeater of a layer', nn.Repeater(nn.Linear(3, 4), 2), x[1], 'nn.Recursor', function() return nn.Recursor(nn.Linear(3, 4)) end)
local function step() return nn.Sequential():add(nn.JoinTable(1, 1)):add(nn.Linear(7, 4)):add(nn.Tanh()) end
local inner = step()
replaced('Recurrence', nn.Sequencer(nn.Recurrence(inner, 4, 1)), x, inner, halved)
replaced('Recurrence, inside', nn.Sequencer(nn.Recurrence(step(), 4, 1)), x, 'nn.Tanh', hard)
for _, name in ipairs{'GRU', 'LSTM', 'FastLSTM', 'MuFuRu'} do
  local cell = nn[name](3, 4)
  replaced(name .. ', its step', nn.Sequencer(cell), x, cell.recurrentModule, step)
  replaced(name .. ' itself', nn.Sequencer(nn[name](3, 4)), x, 'nn.' .. name, function() return nn.FastLSTM(3, 4) end)
end
replaced('LSTM, inside', nn.Sequencer(nn.LSTM(3, 4)), x, 'nn.Tanh', hard)
local recursor = nn.Recursor(nn.Linear(3, 4))
replaced('Recursor', nn.Sequencer(nn.Sequential():add(recursor):add(nn.LSTM(4, 2))), x, recursor.recurrentModule, halved)
local lm = nn.BiSequencerLM(nn.FastLSTM(3, 4), nn.GRU(3, 4))
replaced('BiSequencerLM', lm, x, lm._fwd, function() return nn.Sequencer(nn.LSTM(3, 4)) end)
local brnn = nn.SeqBRNN(3, 4)
replaced('SeqBRNN', brnn, torch.randn(3, 2, 3), brnn.module, halved)
local look = nn.Sequential():add(nn.ParallelTable():add(nn.Linear(3, 4)):add(nn.Linear(2, 4))):add(nn.CAddTable()):add(nn.Tanh())
local attention = nn.RecurrentAttention(look, nn.Linear(4, 2), 3, {4})
replaced('RecurrentAttention', nn.Sequential():add(attention):add(nn.SelectTable(-1)), x[1], attention.action, halved)
local profiled = nn.Sequential():add(nn.Linear(3, 4)):add(nn.Tanh())
replaced('Profile', nn.Sequential():add(nn.Profile(profiled)), x[1], profiled, halved)
replaced('Serial, whose module Lua runs from modules', nn.Serial(nn.Sequential():add(nn.Linear(3, 4))), x[1], 'nn.Linear', halved)

-- One copy of an nn.MapTable inside nn.MuFuRu that differs from the others.
local unit = nn.Sequencer(nn.MuFuRu(3, 4))
unit:evaluate() unit:forward(x) unit:forget()
for _, map in ipairs(unit:findModules('nn.MapTable')) do
  if #map.modules > 1 then map.modules[2] = nn.Sequential():add(map.modules[2]):add(nn.MulConstant(.7)) break end
end
evaluated('MuFuRu, one copy', unit, x)

-- nn.Convert: to 'bf' Lua swaps the batch with the first dimension.
for _, way in ipairs{'chwb bf', 'chbw bf', 'cwb bf', 'cbw bf', 'tb bf', 'bchw bf', 'cwb wbc', 'bc b', 'tb b', 'b bf'} do
  local from, to = way:match('(%w+) (%w+)')
  local sizes = {2, 3, 4, 2}
  local x = torch.randn(torch.LongStorage({unpack(sizes, 1, #from)}))
  if way == 'bc b' then x, from = torch.randn(3, 1), 'bf' end
  both('Convert ' .. way, nn.Convert(from, to), x)
end
both('Convert of one example', nn.Convert('cwb', 'bf'), torch.randn(3, 4))

-- Ties of nn.TemporalDynamicKMaxPooling; of more than eleven steps Lua's sort is not stable.
for _, n in ipairs{7, 11, 12, 25, 40} do
  for k = 2, n, math.ceil(n / 4) do
    local m = nn.TemporalDynamicKMaxPooling(k)
    both(('KMax %d of %d'):format(k, n), m, torch.randn(2, n, 3):cmax(0):mul(2):round())
  end
end

-- Windows of padding alone. Lua runs volumes backward outside of memory, so these are not.
for _, p in ipairs{{2, 1, 1, 1, 1, 0, 2, 1}, {2, 1, 1, 1, 1, 0, 3, 1}, {3, 3, 2, 1, 1, 1, 4, 2}, {4, 2, 1, 2, 2, 1, 2, 3}, {3, 3, 1, 1, 1, 1, 2, 2}} do
  for _, ceil in ipairs{false, true} do
    local m = nn.SpatialDilatedMaxPooling(unpack(p))
    m.ceil_mode = ceil
    for _, size in ipairs{{1, 2, 2, 1}, {1, 1, 2, 2}, {2, 1, 6, 5}} do
      local x = torch.randn(unpack(size))
      if pcall(function() m:clone():forward(x) end) then both('DilatedMaxPool', m, x) end
    end
  end
end
for _, p in ipairs{{2, 2, 1, 1, 1, 1, 1, 1, 0, 2, 3, 1}, {4, 3, 4, 1, 2, 1, 2, 1, 2, 2, 2, 2}, {4, 4, 4, 2, 1, 1, 2, 2, 2, 3, 2, 1}} do
  for _, size in ipairs{{1, 1, 2, 2, 2}, {1, 2, 5, 6, 4}, {1, 1, 7, 7, 7}} do
    local m, x = nn.VolumetricDilatedMaxPooling(unpack(p)), torch.randn(unpack(size))
    if pcall(function() m:clone():forward(x) end) then both('DilatedMaxPool of a volume', m, x, true) end
  end
end

-- A kernel larger than its padded input, by less than the stride.
both('Conv', nn.SpatialConvolution(1, 1, 4, 1, 2, 1, 1, 0), torch.randn(1, 1, 2, 1))
both('Conv', nn.SpatialConvolution(1, 2, 5, 5, 3, 4, 1, 1), torch.randn(2, 1, 2, 1))
both('Conv of a volume', nn.VolumetricConvolution(1, 2, 4, 2, 4, 2, 1, 2, 1, 0, 1), torch.randn(1, 1, 1, 1, 2))

-- Penalties in branches that no output uses: Lua adds their gradients.
for _, rest in ipairs{nn.NarrowTable(1, 1), nn.SelectTable(1), nn.SelectTable(-1)} do
  local branches = nn.ConcatTable():add(nn.Identity()):add(nn.Sequential():add(nn.Tanh()):add(nn.L1Penalty(.5))):add(nn.L1Penalty(.2, true))
  both('penalties', nn.Sequential():add(branches):add(rest), torch.randn(2, 3))
end

-- Branches of two element types: Lua copies them into the type of the container.
for _, d in ipairs{'Float', 'Double'} do
  local from, to = 'torch.' .. d .. 'Tensor', 'torch.' .. (d == 'Float' and 'Double' or 'Float') .. 'Tensor'
  torch.setdefaulttensortype(from)
  local function branches(m) return m:add(nn.Copy(from, to)):add(nn.Identity()) end
  evaluated('types', nn.Sequential():add(branches(nn.Concat(2))):add(nn.Linear(6, 2)), torch.randn(2, 3))
  evaluated('types', nn.Sequential():add(branches(nn.DepthConcat(2))):add(nn.Linear(6, 2)), torch.randn(2, 3))
  evaluated('types', nn.Sequential():add(branches(nn.Parallel(1, 1))):add(nn.Linear(6, 2)), torch.randn(2, 3))
  evaluated('types', nn.Sequential():add(branches(nn.ConcatTable())):add(nn.JoinTable(2)):add(nn.Linear(6, 2)), torch.randn(2, 3))
end
torch.setdefaulttensortype('torch.DoubleTensor')

-- Parts of other shapes than the first, of as many elements.
both('Parallel of other shapes', nn.Parallel(1, 1):add(nn.View(2, 6)):add(nn.View(2, 3, 2)), torch.randn(2, 12), true)
both('Parallel of other shapes', nn.Parallel(2, 1):add(nn.Reshape(2, 6)):add(nn.Reshape(2, 2, 3)), torch.randn(12, 2), true)
both('shapes of nn.Concat', nn.Concat(2):add(nn.Identity()):add(nn.View(2, 3, 2, 2)), torch.randn(2, 3, 4), true)
both('shapes of nn.JoinTable', nn.Sequential():add(nn.ConcatTable():add(nn.View(2, 6)):add(nn.View(2, 6, 1))):add(nn.JoinTable(1)), torch.randn(2, 6), true)

-- Options that no other record has.
both('Local with other padding above than beside', nn.SpatialConvolutionLocal(2, 2, 5, 4, 3, 2, 1, 1, 0, 1), torch.randn(2, 2, 4, 5))
both('CDivTable of two shapes', nn.CDivTable(), {torch.randn(2, 6), torch.randn(2, 3, 2)}, true)
evaluated('UniformCrop', nn.SpatialUniformCrop(3, 4), torch.randn(2, 1, 9, 8))
local doubled = nn.Sequential():add(nn.ZeroGrad()):add(nn.MulConstant(2, true))
local seen = nn.ConcatTable():add(nn.MulConstant(3)):add(doubled):add(nn.MulConstant(5))
both('ZeroGrad before a layer in place', nn.Sequential():add(nn.Linear(3, 3)):add(seen):add(nn.JoinTable(1)), torch.randn(2, 3), true)
local bell = torch.Tensor{{1, 2, 1}, {2, 5, 2}, {1, 2, 1}}
for _, name in ipairs{'Subtractive', 'Divisive', 'Contrastive'} do
  for _, kernel in ipairs{bell, torch.Tensor{1, 3, 2, 1, 1}} do
    both('weighted ' .. name, nn['Spatial' .. name .. 'Normalization'](2, kernel), torch.randn(1, 2, 6, 6))
  end
end
evaluated('ArgMax', nn.ArgMax(1, 1), torch.randn(3, 4))

-- One bias of Lua, where PyTorch adds two.
local function trained(text, m, x)
  local before = m:clone()
  m:training() m:zeroGradParameters()
  local r = {text = text, model = before, input = copy(x), gradOutput = noise(m:forward(copy(x)))}
  m:backward(copy(x), copy(r.gradOutput)) m:updateParameters(.1)
  if m.forget then m:forget() end
  m:evaluate()
  r.output = copy(m:clone():forward(copy(x)))
  r.after = cleared(m, x, r.output)
  steps[#steps + 1] = r
end
local whole = torch.randn(5, 2, 3)
trained('SeqLSTM', nn.SeqLSTM(3, 4), whole)
trained('SeqLSTMP', nn.SeqLSTMP(3, 6, 4), whole)
local masked = nn.SeqLSTM(3, 4)
masked.maskzero = true
trained('SeqLSTM with masks', masked, whole)
trained('two levels', nn.Sequential():add(nn.SeqLSTM(3, 4)):add(nn.SeqLSTM(4, 4)), whole)
trained('Sequencer of FastLSTM', nn.Sequencer(nn.FastLSTM(3, 4)), whole)
trained('Sequencer of LSTM', nn.Sequencer(nn.LSTM(3, 4, nil, false)), whole)
trained('Sequencer of GRU', nn.Sequencer(nn.GRU(3, 4)), whole)
trained('two directions', nn.SeqBRNN(3, 4), whole)
trained('simple', nn.Sequencer(nn.Recurrent(4, nn.Linear(3, 4), nn.LinearNoBias(4, 4), nn.Tanh())), whole)
torch.save(arg[1], list) torch.save(arg[2], steps)
print(#list, #steps)
