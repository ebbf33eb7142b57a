-- Lists that are longer, shorter or empty where layers pair their elements with modules or with one another, as one list of records.
--   th found_lengths.lua OUT.t7            (needs nngraph, dpnn and rnn)
-- Each: input, output (evaluation); moreInputs and moreOutputs: other lengths that Lua takes; refusedInputs: those that it does not.
local out = arg[1]
require 'nn' require 'nngraph' require 'dpnn' require 'rnn'
torch.setdefaulttensortype('torch.DoubleTensor') torch.manualSeed(7)
local list = {}
local function t() return torch.randn(1, 2) end
local function copy(v) if torch.isTensor(v) then return v:clone() end local c = {} for i, e in ipairs(v) do c[i] = copy(e) end return c end
local function small(m) for _, q in ipairs(m:listModules()) do q.output, q.gradInput, q.gradWeight, q.gradBias = nil end return m end -- not compared
local function save(name, m, inputs)
  m:evaluate()
  local r = {text = name, moreInputs = {}, moreOutputs = {}, refusedInputs = {}}
  for i, x in ipairs(inputs) do
    local clone = m:clone()
    local ok, y = pcall(function() return copy(clone:forward(copy(x))) end)
    if i == 1 then r.input, r.output = x, y assert(ok, name) end
    if ok then table.insert(r.moreInputs, x) table.insert(r.moreOutputs, y) else table.insert(r.refusedInputs, x) end
  end
  m:clearState() r.model = small(m) list[#list + 1] = r
end
local function seq(...) local s = nn.Sequential() for _, m in ipairs{...} do s:add(m) end return s end
local function par(...) local s = nn.ParallelTable() for _, m in ipairs{...} do s:add(m) end return s end
local function both(...) local s = nn.ConcatTable() for _, m in ipairs{...} do s:add(m) end return s end
local function I() return nn.Identity() end
local function L() return nn.Linear(2, 2) end
local function lengths() return {{t(), t()}, {t(), t(), t()}, {t(), t(), t(), t()}, {t()}, {}} end

local parallel = { -- a missing element becomes what the module makes of nil
  {'layers', par(L(), nn.Tanh())}, {'the last an Identity', par(L(), I())}, {'the first an Identity', par(I(), L())}, {'Identities', par(I(), I())},
  {'the last of none', par(L(), seq())}, {'the last a Sequential', par(L(), seq(I(), I()))}, {'the last of layers', par(I(), seq(I(), L()))},
  {'the last a ConcatTable', par(L(), both(I(), I()))}, {'the last a Residual', par(L(), seq(both(L(), I()), nn.CAddTable()))}, {'the last a Recursor', par(L(), nn.Recursor(I()))},
  {'the last a ParallelTable of none', par(L(), par())}, {'the last a Constant', par(L(), nn.Constant(torch.randn(2)))}, {'one module', par(nn.Tanh())},
}
for _, p in ipairs(parallel) do
  local name, m = 'ParallelTable, ' .. p[1], p[2]
  save(name, m:clone(), lengths())
  save(name .. ', behind a SplitTable', seq(nn.SplitTable(1), m:clone(), nn.FlattenTable(), nn.SelectTable(-1)), {torch.randn(2, 2), torch.randn(3, 2), torch.randn(1, 2), torch.randn(5, 2)})
end
save('ParallelTable, added', seq(par(L(), I()), nn.CAddTable()), lengths())
save('ParallelTable, joined', seq(par(L(), nn.Tanh()), nn.JoinTable(2)), lengths())
save('ParallelTable in a ConcatTable', both(par(L(), I()), par(L()), nn.SelectTable(-1), nn.SelectTable(2)), lengths())
save('ParallelTables of other lengths', seq(both(par(L(), nn.Tanh(), nn.Abs()), par(L(), L())), nn.FlattenTable()), {{t(), t(), t()}, {t(), t(), t(), t()}, {t(), t()}})
save('ParallelTable and a later element', seq(both(par(L(), L()), nn.SelectTable(3)), nn.FlattenTable()), {{t(), t(), t()}, {t(), t(), t(), t()}, {t(), t()}})
save('ParallelTable of lists', par(nn.CAddTable(), par(nn.Tanh(), I()), nn.MapTable(L())), {{{t(), t()}, {t(), t()}, {t()}}, {{t()}, {t()}, {}}, {{t(), t(), t()}, {t(), t(), t()}, {t(), t()}, t()}})
local function added() return seq(I(), par(L(), L()), nn.CAddTable()) end
save('ParallelTables of known and of unknown length', both(seq(nn.SelectTable(1), both(I(), I()), both(added(), added())), seq(nn.SelectTable(2), nn.MapTable(added()))), {{t(), {{t(), t()}, {t(), t()}}}, {t(), {{t(), t(), t()}, {t(), t()}}}, {t(), {{t()}}}})
local a, b = I()(), I()()
save('graph of two inputs', nn.gModule({a, b}, {L()(a), nn.CAddTable()({a, b})}), lengths())
local i = I()() local c, d = i:split(2)
save('graph that splits its input', nn.gModule({i}, {nn.Tanh()(c), nn.CMulTable()({c, d})}), lengths())
for _, m in ipairs{nn.CSubTable(), nn.CMulTable(), nn.CAddTable(), nn.CAddTable(true), nn.CMaxTable(), nn.CMinTable(), nn.DotProduct(), nn.CosineDistance(), nn.PairwiseDistance(2), nn.SelectTable(2), nn.SelectTable(-2),
  nn.NarrowTable(1, 2), nn.NarrowTable(2, 3), nn.NarrowTable(2), nn.FlattenTable(), nn.ReverseTable(), nn.MapTable(L()), nn.Sequencer(L()), nn.Sequencer(nn.LSTM(2, 2)), nn.BiSequencer(L()), I(), both(nn.SelectTable(1), I())} do
  save(torch.type(m), m, lengths())
end
save('CDivTable', seq(nn.MapTable(seq(nn.Abs(), nn.AddConstant(1))), nn.CDivTable()), lengths())
save('JoinTable', nn.JoinTable(2), {{t(), t()}, {t(), t(), t()}, {t()}})
local function square() return torch.randn(2, 2) end
save('MM', nn.MM(), {{square(), square()}, {square(), square(), square()}, {square()}})
save('CAddTensorTable', nn.CAddTensorTable(), {{t(), {t(), t()}}, {t(), {t()}}, {t(), {}}, {t(), {t()}, t()}, {t()}})
save('ZipTableOneToMany', nn.ZipTableOneToMany(), {{t(), {t(), t()}}, {t(), {t()}}, {t(), {}}, {t(), {t()}, t()}, {t()}})
save('ZipTable', nn.ZipTable(), {{{t(), t()}, {t(), t()}}, {{t()}, {t()}, {t()}}, {{t(), t()}}, {{}, {}}, {}})
save('MixtureTable', nn.MixtureTable(), {{torch.rand(1, 2), {t(), t()}}, {torch.rand(1, 2), {t(), t()}, t()}, {torch.rand(1, 3), {t(), t(), t()}}, {torch.rand(1, 3), {t(), t()}}})
torch.save(out, list)
