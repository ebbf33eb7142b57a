-- Recurrent modules in nn.MapTable, of which each element has a clone with a state of its own, as one list of records.
--   th found_states.lua OUT.t7            (needs nngraph, dpnn and rnn)
local out = arg[1]
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
local cells = {nn.LSTM(2, 2), nn.FastLSTM(2, 2), nn.GRU(2, 2)}
for _, cell in ipairs(cells) do
  for _, mode in ipairs{'both', 'eval', 'train'} do
    save('MapTable, a state for each element: ' .. torch.type(cell) .. ' ' .. mode, nn.MapTable(nn.Sequencer(cell:clone()):remember(mode)), {{torch.randn(1, 2)}, {torch.randn(1, 2)}})
  end
  save('MapTable of cells that resume: ' .. torch.type(cell), nn.MapTable(seq(nn.Linear(2, 2), cell:clone())), {torch.randn(1, 2), torch.randn(1, 2)})
  save('MapTable of MapTables of cells: ' .. torch.type(cell), nn.MapTable(nn.MapTable(cell:clone())), {{torch.randn(1, 2), torch.randn(1, 2)}, {torch.randn(1, 2)}})
end
torch.save(out, list)
