-- Lists, clones and compound layers in which t7bridge and Lua Torch once differed, as one list of records.
--   th found_lists.lua OUT.t7            (needs nngraph, dpnn and rnn)
local out = arg[1]
arg = {[0] = arg[0], 'none', '6', '0'}
require 'nn' require 'nngraph' require 'dpnn' require 'rnn'
dofile((arg[0]:match('^(.*/)') or './') .. 'random_nets.lua')
torch.manualSeed(6)
local list = {}
local function save(name, m, x) if not name:find('Criterion') then m:clearState() end local r = measure(m, x) r.text = name list[#list + 1] = r end
local function seq(...) local s = nn.Sequential() for _, m in ipairs{...} do s:add(m) end return s end
local function both(...) local s = nn.ConcatTable() for _, m in ipairs{...} do s:add(m) end return s end
local function two() return both(nn.Tanh(), nn.Linear(3, 3)) end
local function graph() local x = nn.Identity()() return nn.gModule({x}, {nn.Tanh()(x), nn.Linear(3, 3)(x)}) end
local x = torch.randn(2, 3)

-- What returns a list behind a layer that returns a tensor, in a list that is flattened
local forms = {
  {'graph', graph}, {'NaN', function() return nn.NaN(graph()) end}, {'Decorator', function() return nn.Decorator(graph()) end}, {'DontCast', function() return nn.DontCast(graph()) end},
  {'Sequential', function() return seq(graph()) end}, {'SplitTable', function() return nn.SplitTable(1) end}, {'ParallelTable', function() return seq(two(), nn.ParallelTable():add(nn.Abs()):add(nn.Tanh())) end},
  {'MapTable', function() return seq(two(), nn.MapTable(nn.Linear(3, 3))) end}, {'Sequencer', function() return seq(two(), nn.Sequencer(nn.Linear(3, 3))) end}, {'LSTM', function() return seq(two(), nn.Sequencer(nn.LSTM(3, 3))) end},
  {'ZipTable', function() return seq(both(two(), two()), nn.ZipTable()) end}, {'BiSequencer', function() return seq(two(), nn.BiSequencer(nn.Linear(3, 3))) end}, {'ReverseTable', function() return seq(two(), nn.ReverseTable()) end},
  {'Repeater', function() return nn.Repeater(nn.Recurrent(3, nn.Linear(3, 3), nn.Linear(3, 3)), 2) end}, {'FlattenTable', function() return seq(two(), nn.FlattenTable()) end}, {'NarrowTable', function() return seq(two(), nn.NarrowTable(1, 2)) end},
}
for _, f in ipairs(forms) do
  save('flattened: ' .. f[1], seq(both(seq(nn.LeakyReLU(), f[2]()), nn.Linear(3, 3)), nn.FlattenTable(), nn.SelectTable(2)), x)
  local i = nn.Identity()()
  save('flattened in a graph: ' .. f[1], nn.gModule({i}, {nn.SelectTable(2)(nn.FlattenTable()({nn.Linear(3, 3)(i), seq(nn.LeakyReLU(), f[2]())(i)}))}), x)
end
local twice = both(seq(nn.LeakyReLU(), graph()), nn.Linear(3, 3), nn.Tanh())
save('flattened: joined', seq(twice:clone(), nn.FlattenTable(), nn.JoinTable(2)), x)
save('flattened: added', seq(twice:clone(), nn.FlattenTable(), nn.CAddTable()), x)
save('flattened: narrowed', seq(twice:clone(), nn.FlattenTable(), nn.NarrowTable(2, 2)), x)
save('Sequencer copies its steps', seq(both(nn.Identity(), nn.Identity()), nn.Sequencer(nn.Identity()), nn.ParallelTable():add(nn.MulConstant(3, true)):add(nn.Tanh())), x)

-- Clones that differ
local m = nn.MapTable(nn.Linear(2, 2), false) m:resize(3) for i = 1, 3 do m:get(i).weight:normal() end
local function raw(name, m, x) m:evaluate() list[#list + 1] = {model = m, input = x, text = name, output = m:clone():forward(x)} end
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
nn.FastLSTM.usenngraph = true raw('FastLSTM as a graph', nn.Sequencer(nn.FastLSTM(3, 3)), {torch.randn(1, 3), torch.randn(1, 3)}) nn.FastLSTM.usenngraph = false

-- Options
m = nn.SpatialAveragePooling(1, 1, 2, 2):ceil() m.divide = false
raw('sum pooling with windows after the input', m, torch.randn(1, 1, 4, 4))
for _, name in ipairs{'CMaxTable', 'CMinTable'} do
  local i = nn.Identity()()
  save(name .. ' of equal values', nn.gModule({i}, {nn[name](){nn.Tanh()(i), nn.MulConstant(1)(nn.GradientReversal()(nn.Tanh()(i)))}}), x)
end
local function criterion(c) local p, t = nn.Identity()(), nn.Identity()() return nn.gModule({p, t}, {nn.ModuleFromCriterion(c)({nn.Linear(3, 3)(p), t})}) end
save('ModuleFromCriterion', criterion(nn.MSECriterion()), {x, torch.randn(2, 3)})
torch.save(out, list)
