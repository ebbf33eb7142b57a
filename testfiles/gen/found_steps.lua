-- Recurrent models and a MapTable that were once converted with other states, statistics or biases than Lua has.
--     th found_steps.lua found_steps.t7
-- A list of {name, model, calls}: a call has `train`, `input` and `output`; the calls of a model follow one another.
require 'nn'
require 'nngraph'
require 'rnn'
torch.manualSeed(11)
torch.setdefaulttensortype('torch.DoubleTensor')

local records = {}

local function copy(value)
   if torch.isTensor(value) then return value:clone() end
   local made = {}
   for at, each in ipairs(value) do made[at] = copy(each) end
   return made
end

-- Inputs are listed with the mode; the model is saved as it is before the first call.
local function record(name, model, calls)
   local run, made = model:clone(), {}
   for _, call in ipairs(calls) do
      if call.train then run:training() else run:evaluate() end
      table.insert(made, {train = call.train or false, input = copy(call[1]), output = copy(run:forward(call[1]))})
   end
   table.insert(records, {name = name, model = model, calls = made})
end

local function inputs(count, scale)
   local made = {}
   for at = 1, count do made[at] = torch.randn(4, 3) * scale * at + at end
   return made
end

-- Each element has statistics of its own; clones are made when so many elements are first seen.
local normalized = nn.Sequential():add(nn.BatchNormalization(3)):add(nn.Linear(3, 2))
record('map_statistics', nn.MapTable():add(normalized), {
   {inputs(2, 1)}, {inputs(2, 2), train = true}, {inputs(3, 1), train = true}, {inputs(3, 1)},
   {inputs(1, 3), train = true}, {inputs(4, 1)}, {inputs(4, 2), train = true}, {inputs(4, 1)},
})

-- The state after the last call is in the file.
local function remembering(name, model)
   model:evaluate()
   model:forward(torch.randn(3, 2, 3))
   record(name, model, {{torch.randn(2, 2, 3)}})
end
remembering('state_seqlstm', nn.SeqLSTM(3, 4):remember('both'))
remembering('state_fastlstm', nn.Sequential():add(nn.Sequencer(nn.FastLSTM(3, 4)):remember('both')))
remembering('state_gru', nn.Sequential():add(nn.Sequencer(nn.GRU(3, 4)):remember('both')))

record('bidirectional', nn.Sequential():add(nn.SeqBRNN(3, 4)):add(nn.Bottle(nn.Linear(4, 2))), {{torch.randn(5, 2, 3)}})

local function id() return nn.Identity()() end

local function lstm(hidden, bias_of_input, bias_of_state)
   local x, c, h = id(), id(), id()
   local total = nn.CAddTable(){
      nn.Linear(3, 4 * hidden, bias_of_input)(x), nn.Linear(hidden, 4 * hidden, bias_of_state)(h)
   }
   local parts = {nn.SplitTable(2)(nn.Reshape(4, hidden)(total)):split(4)}
   local new = nn.CAddTable(){
      nn.CMulTable(){nn.Sigmoid()(parts[2]), c}, nn.CMulTable(){nn.Sigmoid()(parts[1]), nn.Tanh()(parts[4])}
   }
   return nn.gModule({x, c, h}, {new, nn.CMulTable(){nn.Sigmoid()(parts[3]), nn.Tanh()(new)}})
end

-- The gates are rows of a reshape, as many as each has elements.
local function unrolled(hidden)
   local cell, c, h, xs, outputs = lstm(hidden, true, true), id(), id(), {}, {}
   local taken = {}
   local last_c, last_h = c, h
   for step = 1, 2 do
      xs[step] = id()
      taken[step] = xs[step]
      local both = cell:clone('weight', 'bias', 'gradWeight', 'gradBias')({xs[step], last_c, last_h})
      last_c, last_h = nn.SelectTable(1)(both), nn.SelectTable(2)(both)
      outputs[step] = last_h
   end
   taken[3], taken[4], outputs[3] = c, h, last_c
   return nn.gModule(taken, outputs)
end
local x, h = torch.randn(2, 3), torch.randn(2, 4)
record('square_lstm_unrolled', unrolled(4), {{{x, x * 2, h, h * 2}}})
record('square_lstm', lstm(4, true, true), {{{x, h, h * 2}}})

-- Only some layers of a cell have a bias.
local function gru(bias_of_gates, bias_of_candidate)
   local x, h = id(), id()
   local function gate()
      return nn.Sigmoid()(nn.CAddTable(){nn.Linear(3, 4, bias_of_gates)(x), nn.Linear(4, 4, false)(h)})
   end
   local r, z = gate(), gate()
   local seen = nn.Linear(4, 4, false)(nn.CMulTable(){r, h})
   local n = nn.Tanh()(nn.CAddTable(){nn.Linear(3, 4, bias_of_candidate)(x), seen})
   local kept = nn.CMulTable(){nn.AddConstant(1)(nn.MulConstant(-1)(z)), h}
   return nn.gModule({x, h}, {nn.CAddTable(){nn.CMulTable(){z, n}, kept}})
end
local function gru_after(bias_of_input, bias_of_state)
   local x, h = id(), id()
   local a = {nn.SplitTable(2)(nn.Reshape(3, 4)(nn.Linear(3, 12, bias_of_input)(x))):split(3)}
   local b = {nn.SplitTable(2)(nn.Reshape(3, 4)(nn.Linear(4, 12, bias_of_state)(h))):split(3)}
   local r, z = nn.Sigmoid()(nn.CAddTable(){a[1], b[1]}), nn.Sigmoid()(nn.CAddTable(){a[2], b[2]})
   local n = nn.Tanh()(nn.CAddTable(){a[3], nn.CMulTable(){r, b[3]}})
   local kept = nn.CMulTable(){nn.AddConstant(1)(nn.MulConstant(-1)(z)), n}
   return nn.gModule({x, h}, {nn.CAddTable(){nn.CMulTable(){z, h}, kept}})
end
record('gru_bias_of_gates', gru(true, false), {{{x, h}}})
record('gru_bias_of_candidate', gru(false, true), {{{x, h}}})
record('gru_after_bias_of_input', gru_after(true, false), {{{x, h}}})
record('gru_after_bias_of_state', gru_after(false, true), {{{x, h}}})
record('lstm_bias_of_input', lstm(4, true, false), {{{x, h, h * 2}}})

-- Every step has only some biases: one note names them all.
local function unrolled_gru()
   local cell, last, taken, outputs = gru_after(true, false), id(), {}, {}
   local state = last
   for step = 1, 3 do
      taken[step] = id()
      last = cell:clone('weight', 'bias', 'gradWeight', 'gradBias')({taken[step], last})
      outputs[step] = last
   end
   taken[4] = state
   return nn.gModule(taken, outputs)
end
record('gru_after_bias_of_input_unrolled', unrolled_gru(), {{{x, x * 2, x * 3, h}}})

torch.save(arg[1], records)
