-- Lists, clones and compound layers in which t7bridge and Lua Torch once differed, as one list of records; in a second
-- file recurrent modules in nn.MapTable, of which each element has a clone with a state of its own.
--   th found_lists.lua found_lists.t7 found_states.t7            (needs nngraph, dpnn and rnn)
local out, states = arg[1], arg[2]
arg = {[0] = arg[0], 'none', '6', '0'}
require 'nn' require 'nngraph' require 'dpnn' require 'rnn'
dofile((arg[0]:match('^(.*/)') or './') .. 'random_nets.lua')
torch.manualSeed(6)
local list = {}
local function small(m) for _, q in ipairs(m:listModules()) do q.output, q.gradInput, q.gradWeight, q.gradBias = nil end return m end -- not compared
local function save(name, m, x)
  if not name:find('Criterion') then m:clearState() end
  local r = measure(m, x) r.text, r.model = name, small(r.model:clone()) list[#list + 1] = r
end
local function seq(...) local s = nn.Sequential() for _, m in ipairs{...} do s:add(m) end return s end
local function both(...) local s = nn.ConcatTable() for _, m in ipairs{...} do s:add(m) end return s end
local function two() return both(nn.Tanh(), nn.Abs()) end
local function graph() local x = nn.Identity()() return nn.gModule({x}, {nn.Tanh()(x), nn.Abs()(x)}) end
local x = torch.randn(2, 3)

-- What returns a list behind a layer that returns a tensor, in a list that is flattened
local forms = {
  {'graph', graph}, {'NaN', function() return nn.NaN(two()) end}, {'Decorator', function() return nn.Decorator(two()) end}, {'DontCast', function() return nn.DontCast(two()) end},
  {'Sequential', function() return seq(two()) end}, {'SplitTable', function() return nn.SplitTable(1) end}, {'ParallelTable', function() return seq(two(), nn.ParallelTable():add(nn.Abs()):add(nn.Tanh())) end},
  {'MapTable', function() return seq(two(), nn.MapTable(nn.Tanh())) end}, {'Sequencer', function() return seq(two(), nn.Sequencer(nn.Linear(3, 3))) end},
  {'ZipTable', function() return seq(both(two(), two()), nn.ZipTable()) end}, {'BiSequencer', function() return seq(two(), nn.BiSequencer(nn.Linear(3, 3))) end}, {'ReverseTable', function() return seq(two(), nn.ReverseTable()) end},
  {'Repeater', function() return nn.Repeater(nn.Recurrent(3, nn.Linear(3, 3), nn.Linear(3, 3)), 2) end}, {'FlattenTable', function() return seq(two(), nn.FlattenTable()) end}, {'NarrowTable', function() return seq(two(), nn.NarrowTable(1, 2)) end},
}
for _, f in ipairs(forms) do
  save('flattened: ' .. f[1], seq(both(seq(nn.LeakyReLU(), f[2]()), nn.Sigmoid()), nn.FlattenTable(), nn.SelectTable(2)), x)
end
for _, f in ipairs{forms[1]} do
  local i = nn.Identity()()
  save('flattened in a graph: ' .. f[1], nn.gModule({i}, {nn.SelectTable(2)(nn.FlattenTable()({nn.Sigmoid()(i), seq(nn.LeakyReLU(), f[2]())(i)}))}), x)
end
local twice = both(seq(nn.LeakyReLU(), two()), nn.Linear(3, 3), nn.Tanh())
save('flattened: joined', seq(twice:clone(), nn.FlattenTable(), nn.JoinTable(2)), x)
save('flattened: added', seq(twice:clone(), nn.FlattenTable(), nn.CAddTable()), x)
save('Sequencer copies its steps', seq(both(nn.Identity(), nn.Identity()), nn.Sequencer(nn.Identity()), nn.ParallelTable():add(nn.MulConstant(3, true)):add(nn.Tanh())), x)

-- Clones that differ
local m = nn.MapTable(nn.Linear(2, 2), false) m:resize(3) for i = 1, 3 do m:get(i).weight:normal() end
local function raw(name, m, x) m:evaluate() list[#list + 1] = {model = small(m:clone()), input = x, text = name, output = m:clone():forward(x)} end
raw('MapTable of unshared clones', m, {torch.randn(1, 2), torch.randn(1, 2), torch.randn(1, 2)})
raw('MapTable of unshared clones, fewer elements', m:clone(), {torch.randn(1, 2), torch.randn(1, 2)})
raw('MapTable of unshared clones, more elements', m:clone(), {torch.randn(1, 2), torch.randn(1, 2), torch.randn(1, 2), torch.randn(1, 2)})
m = nn.MapTable(seq(nn.Linear(2, 2), nn.BatchNormalization(2))) m:training() for _ = 1, 9 do m:forward{torch.randn(8, 2), torch.randn(8, 2):mul(5):add(3)} end
raw('MapTable with statistics for each element', m, {torch.randn(2, 2), torch.randn(2, 2)})
m = nn.MapTable(nn.Linear(2, 2)) m:forward{torch.randn(1, 2), torch.randn(1, 2)} m.modules[2] = nn.Tanh()
raw('MapTable with another layer for one element', m, {torch.randn(1, 2), torch.randn(1, 2)})

-- Compounds changed inside
local function instead(m, old, new) return m:replace(function(q) return torch.type(q) == old and new() or q end) end
save('CReLU of other layers', seq(nn.SpatialConvolution(1, 2, 3, 3), instead(nn.CReLU(3), 'nn.ReLU', function() return nn.LeakyReLU(.2) end)), torch.randn(1, 1, 5, 5))
save('CReLU', nn.CReLU(3), torch.randn(2, 2, 3, 3))
save('LayerNormalization of other layers', instead(nn.LayerNormalization(4), 'nn.Identity', nn.Tanh), torch.randn(2, 4))
save('LayerNormalization', nn.LayerNormalization(4), torch.randn(2, 4))
save('MuFuRu of other layers', instead(nn.MuFuRu(2, 3), 'nn.Sigmoid', function() return nn.HardTanh(0, 1) end), torch.randn(1, 2))
save('GRU of other layers', instead(nn.GRU(2, 3), 'nn.Tanh', nn.Abs), torch.randn(1, 2))
m = nn.LSTM(3, 3) for _, q in ipairs(m:listModules()) do if torch.type(q) == 'nn.NarrowTable' then q.offset, q.length = 2, 2 break end end
raw('LSTM with another NarrowTable', m, torch.randn(1, 3))
m = nn.GRU(3, 3) for _, q in ipairs(m:listModules()) do if torch.type(q) == 'nn.SelectTable' and q.index == 1 then q.index = 2 end end
raw('GRU with another SelectTable', nn.Sequencer(m), {torch.randn(1, 3), torch.randn(1, 3)})

-- Lists and sequences of other lengths
save('Repeater in a Sequencer', seq(two(), nn.Sequencer(nn.Repeater(nn.Linear(3, 3), 1))), x)
save('Repeater in containers in a Sequencer', seq(two(), nn.Sequencer(both(nn.Repeater(nn.Tanh(), 3), nn.Decorator(nn.Repeater(nn.Repeater(nn.Tanh(), 1), 1))))), x)
save('Repeater in a Recurrence in a Sequencer', seq(two(), nn.Sequencer(nn.Recurrence(seq(nn.CAddTable(), nn.Repeater(nn.Tanh(), 3), nn.SelectTable(-1)), 3, 1))), x)
save('Repeater in a Sequencer in a Repeater', nn.Repeater(seq(two(), nn.Sequencer(nn.Repeater(nn.Tanh(), 3))), 1), x)
save('Repeater in a Sequencer, flattened', seq(two(), nn.Sequencer(nn.Repeater(nn.Tanh(), 3)), nn.FlattenTable(), nn.SelectTable(-1)), x)
local function parallel(n) local p = nn.ParallelTable() for _ = 1, n do p:add(nn.Identity()) end return p end
local uneven = {{torch.randn(1, 3)}, {torch.randn(1, 3), torch.randn(1, 3)}}
save('ParallelTable of lists of other lengths', nn.MapTable(parallel(2)), uneven)
save('ParallelTable of longer lists', nn.Sequencer(parallel(1)), uneven)
save('ParallelTable of layers, longer lists', nn.Sequencer(nn.ParallelTable():add(nn.Linear(3, 3))), uneven)
save('ParallelTable of a shorter list', seq(nn.NarrowTable(1, 1), nn.Sequencer(nn.Identity()), parallel(2)), {x, x})
save('ParallelTable of a sequence', seq(nn.Sequencer(nn.Tanh()), parallel(2), nn.SelectTable(1)), {x})
for _, cell in ipairs{nn.LSTM(3, 3), nn.FastLSTM(3, 3), nn.GRU(3, 3)} do
  raw('Steps with and without a batch: ' .. torch.type(cell), nn.Sequencer(cell), {torch.randn(1, 3), torch.randn(3), torch.randn(1, 3)})
end

-- Options
m = nn.SpatialAveragePooling(1, 1, 2, 2):ceil() m.divide = false
raw('sum pooling with windows after the input', m, torch.randn(1, 1, 4, 4))
for _, name in ipairs{'CMaxTable', 'CMinTable'} do
  save(name .. ' of equal values', seq(both(nn.Tanh(), seq(nn.Tanh(), nn.GradientReversal())), nn[name]()), x)
end
local function criterion(c) local p, t = nn.Identity()(), nn.Identity()() return nn.gModule({p, t}, {nn.ModuleFromCriterion(c)({nn.Linear(3, 3)(p), t})}) end
save('ModuleFromCriterion', criterion(nn.MSECriterion()), {x, torch.randn(2, 3)})
torch.save(out, list)

list = {}
torch.manualSeed(6)
local cells = {nn.LSTM(2, 2), nn.FastLSTM(2, 2), nn.GRU(2, 2)}
for _, cell in ipairs(cells) do
  for _, mode in ipairs{'both', 'eval', 'train'} do
    save('MapTable, a state for each element: ' .. torch.type(cell) .. ' ' .. mode, nn.MapTable(nn.Sequencer(cell:clone()):remember(mode)), {{torch.randn(1, 2)}, {torch.randn(1, 2)}})
  end
  save('MapTable of cells that resume: ' .. torch.type(cell), nn.MapTable(seq(nn.Linear(2, 2), cell:clone())), {torch.randn(1, 2), torch.randn(1, 2)})
  save('MapTable of MapTables of cells: ' .. torch.type(cell), nn.MapTable(nn.MapTable(cell:clone())), {{torch.randn(1, 2), torch.randn(1, 2)}, {torch.randn(1, 2)}})
end
torch.save(states, list)
