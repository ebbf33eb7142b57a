-- rnn_options.lua OUTFILE [TORCH_RNN]: further options, sizes, successive calls and gradients of the classes of rnn and dpnn, run by
-- Lua Torch 7 with Element-Research's rnn, or with torch's rnn where that is installed (nn.StepLSTM tells).
-- OUTFILE is one table: name → {module=, calls={{input=, output=[, target=]} or {say=}, …}[, train=true][, gradOutput=,
-- gradInput=, parameters=, gradParameters=][, drawn={input=, output=, reward=, gradInput=}]}. `say` is forget, training, evaluate
-- or mask, with a mask: what happens between two calls.
-- The module is saved before the first call; gradients are those of the first call; `parameters` are the module's own.
-- TORCH_RNN is a folder with LSTM.lua and VanillaRNN.lua of torch-rnn, whose class nn.LSTM is another: then only those.
-- Combinations that Lua refuses are left out, and named.
package.preload.nnx = package.preload.nnx or function() return {} end -- dpnn asks for it, and uses it for other scales
require 'torch'; torch.setdefaulttensortype('torch.FloatTensor') -- first: rnn has modules that all MuFuRu share
require 'nn'; require 'nngraph'
local out, torch_rnn = assert(arg[1]), arg[2]
if torch_rnn then dofile(torch_rnn .. '/LSTM.lua'); dofile(torch_rnn .. '/VanillaRNN.lua') else require 'rnn' end
torch.manualSeed(77); math.randomseed(77)
local N, T, torchs = torch.randn, torch.Tensor, nn.StepLSTM ~= nil
if torchs then collectgarbage('stop') end -- VariableLength of torch's rnn frees memory twice
local all, done, refused = {}, 0, {}
local function copy(v) if torch.isTensor(v) then return v:clone() elseif type(v) == 'table' then local o = {}; for k, e in pairs(v) do o[k] = copy(e) end; return o end; return v end
local function like(v) if torch.isTensor(v) then return v.new():resize(v:size()):normal() end; local o = {}; for k, e in pairs(v) do o[k] = like(e) end; return o end
local function steps(n, ...) local t = {}; for i = 1, n do t[i] = N(...) end; return t end
local function holes(x) -- some rows of zeros
   if torch.isTensor(x) then x = x:clone(); if x:dim() == 3 then x[2][1]:zero(); x[1][2]:zero(); x[x:size(1)][1]:zero() elseif x:dim() == 2 then x[1]:zero() else x:zero() end; return x end
   local o = {}; for i, e in ipairs(x) do o[i] = (i % 2 == 0) and holes(e) or e end; return o
end
local function sorted(t) local keys = {}; for k in pairs(t) do keys[#keys + 1] = k end; table.sort(keys); local i = 0; return function() i = i + 1; return keys[i], t[keys[i]] end end
local function slim(m) for _, x in ipairs(m:listModules()) do x.gradWeight, x.gradBias = nil, nil end; return m end -- for small files
local function run(m, input) local kept = copy(input); return {input = kept, output = copy(m:forward(input))} end
-- inputs: a list of inputs and of words; options: train, grad, warm (inputs of calls before the module is saved).
local function case(name, make, inputs, options)
   options = options or {}
   local ok, why = pcall(function()
      local m = make(); if options.train or options.grad then m:training() else m:evaluate() end
      for _, x in ipairs(options.warm or {}) do if type(x) == 'string' then m[x](m) else m:forward(x) end end
      local c = {train = (options.train or options.grad) and true or nil}
      if options.grad then m:zeroGradParameters() end
      local saved = torch.deserialize(torch.serialize(m)); c.module = slim(saved); c.calls = {}
      for n, x in ipairs(inputs) do
         if type(x) == 'string' then m[x](m); c.calls[n] = {say = x}
         elseif type(x) == 'table' and x.mask ~= nil then m:setZeroMask(x.mask); c.calls[n] = {say = 'mask', mask = x.mask}
         else c.calls[n] = run(m, x) end
         if options.grad and n == 1 then
            local g = like(c.calls[1].output); local kept = copy(g); local gi = copy(m:backward(x, g))
            local _, gp = m:parameters()
            c.gradOutput, c.gradInput, c.parameters, c.gradParameters = kept, gi, (saved:parameters()), gp and copy(gp)
         end
      end
      all[name] = c
   end)
   if ok then done = done + 1 else refused[#refused + 1] = name .. ': ' .. tostring(why):gsub('\n.*', '') end
end
local function criterion(name, make, input, target)
   local ok, why = pcall(function()
      local m = make(); local c = {module = torch.deserialize(torch.serialize(m))}
      local kept, goal = copy(input), copy(target)
      c.calls = {{input = kept, target = goal, output = m:forward(input, target)}}
      c.gradInput = copy(m:backward(input, target)); all[name] = c
   end)
   if ok then done = done + 1 else refused[#refused + 1] = name .. ': ' .. tostring(why):gsub('\n.*', '') end
end
local function warm(m) for _, p in ipairs(m:parameters()) do p:normal(0, 0.6) end; return m end

if torch_rnn then
   for kind, size in sorted{LSTM = 5, VanillaRNN = 5} do
      local function new(remember) return function() local m = warm(nn[kind](4, size)); m.remember_states = remember or false; return m end end
      case(kind, new(), {N(2, 6, 4), N(3, 1, 4)})
      case(kind .. '.remember', new(true), {N(2, 3, 4), N(2, 2, 4), 'resetStates', N(3, 3, 4), N(3, 1, 4)})
      case(kind .. '.midway', new(true), {N(2, 3, 4), N(2, 2, 4)}, {warm = {N(2, 4, 4)}})
      case(kind .. '.midwayplain', new(), {N(2, 3, 4)}, {warm = {N(2, 4, 4)}})
      case(kind .. '.h0', new(), {{N(2, 5), N(2, 3, 4)}, N(2, 3, 4)})
      if kind == 'LSTM' then case(kind .. '.c0', new(), {{N(2, 5), N(2, 5), N(2, 3, 4)}, N(2, 3, 4)}) end
      case(kind .. '.grad', new(), {N(2, 4, 4)}, {grad = true})
      case(kind .. '.gradremember', new(true), {N(2, 4, 4), N(2, 4, 4)}, {grad = true})
      case(kind .. '.gradh0', new(), {{N(2, 5), N(2, 4, 4)}}, {grad = true})
   end
else
-- Cells, bare and in sequencers.
local cells = {
   lstm = function() return nn.LSTM(4, 5) end,
   blind = function() return nn.LSTM(4, 5, nil, false) end,
   fast = function() return nn.FastLSTM(4, 5) end,
   graph = function() nn.FastLSTM.usenngraph = true; local m = nn.FastLSTM(4, 5); nn.FastLSTM.usenngraph = false; return m end,
   gru = function() return nn.GRU(4, 5) end,
   mufuru = function() return nn.MuFuRu(4, 5) end,
   square = function() return nn.FastLSTM(4, 4) end,
   recurrence = function() return nn.Recurrence(nn.Sequential():add(nn.ParallelTable():add(nn.Linear(4, 5)):add(nn.Linear(5, 5))):add(nn.CAddTable()):add(nn.Tanh()), 5, 1) end,
}
if torchs then
   cells.reclstm = function() return nn.RecLSTM(4, 5) end
   cells.reclstmp = function() return nn.RecLSTM(4, 6, 3) end
   cells.recgru = function() return nn.RecGRU(4, 5) end
   cells.linearnet = function() return nn.LinearRNN(4, 5) end
   cells.linearrelu = function() return nn.LinearRNN(4, 5, nn.ReLU()) end
else
   cells.recurrent = function() return nn.Recurrent(5, nn.Linear(4, 5), nn.Linear(5, 5), nn.Tanh()) end
   cells.recurrent2 = function() return nn.Recurrent(nn.Add(5), nn.Linear(4, 5), nn.Linear(5, 5), nn.Sigmoid(), nil, nn.CMulTable()) end
end
-- Of cells that differ little from others, only some cases.
local some = 'list single both bare midway grad mask maskgrad '
local few = {blind = some, graph = some, square = some, mufuru = some .. 'bi bigrad bilm ', recurrent2 = some, linearrelu = some, reclstmp = some .. 'start '}
if torchs then few.lstm, few.fast, few.gru, few.recurrence = some, some .. 'user start ', some .. 'start ', some .. 'start ' else few.lstm = some .. 'switch forgotten cleared user trim bi ' end
for name, make in sorted(cells) do
   local function cell() return warm(make()) end
   local case = few[name] and function(what, ...) if few[name]:find(what:match('%.(%w+)') .. ' ') then case(what, ...) end end or case
   local function seq(word) return function() local m = nn.Sequencer(cell()); if word then m:remember(word) end; return m end end
   case(name .. '.list', seq(), {steps(4, 3, 4), steps(2, 3, 4)})
   case(name .. '.tensor', seq(), {N(4, 3, 4)})
   case(name .. '.single', seq(), {steps(3, 4)})
   case(name .. '.batches', seq(), {steps(3, 1, 4), steps(3, 3, 4), steps(1, 2, 4)})
   case(name .. '.both', seq('both'), {steps(3, 2, 4), steps(2, 2, 4), 'forget', steps(3, 3, 4), steps(1, 3, 4)})
   case(name .. '.eval', seq('eval'), {N(3, 2, 4), N(2, 2, 4)})
   case(name .. '.train', seq('train'), {N(3, 2, 4), N(2, 2, 4)})
   case(name .. '.switch', seq('both'), {N(3, 2, 4), 'training', N(2, 2, 4), N(2, 2, 4), 'evaluate', N(2, 2, 4)})
   case(name .. '.bare', cell, {N(2, 4), N(2, 4), 'forget', N(3, 4), N(3, 4)})
   case(name .. '.bare1', cell, {N(4), N(4)})
   case(name .. '.midway', cell, {N(2, 4), N(2, 4)}, {warm = {N(2, 4), N(2, 4)}})
   case(name .. '.midwaytrain', cell, {N(2, 4), N(2, 4)}, {warm = {N(2, 4), N(2, 4)}, train = true})
   case(name .. '.forgotten', cell, {N(3, 4), N(3, 4)}, {warm = {N(2, 4), N(2, 4), 'forget'}})
   case(name .. '.cleared', cell, {N(3, 4), N(3, 4)}, {warm = {N(2, 4), N(2, 4), 'clearState'}})
   case(name .. '.midwayseq', seq(), {steps(2, 2, 4)}, {warm = {steps(3, 2, 4)}})
   case(name .. '.midwayboth', seq('both'), {steps(2, 2, 4), steps(1, 2, 4)}, {warm = {steps(3, 2, 4)}})
   case(name .. '.grad', seq(), {steps(3, 2, 4)}, {grad = true})
   case(name .. '.gradtensor', seq(), {N(4, 2, 4), N(2, 2, 4)}, {grad = true})
   case(name .. '.gradboth', seq('both'), {N(3, 2, 4), N(2, 2, 4)}, {grad = true})
   if torchs then
      case(name .. '.start', function() local m = cell(); m:setStartState((name:find('lstm') or name == 'fast' or name == 'blind' or name == 'graph' or name == 'square') and {N(2, name == 'reclstmp' and 3 or name == 'square' and 4 or 5), N(2, name == 'reclstmp' and 6 or name == 'square' and 4 or 5)} or N(2, 5)); return nn.Sequencer(m) end, {N(3, 2, 4), N(2, 2, 4)})
      case(name .. '.mask', function() return nn.Sequencer(cell():maskZero(true)) end, {holes(N(4, 2, 4)), holes(steps(3, 2, 4))})
      case(name .. '.maskgrad', function() return nn.Sequencer(cell():maskZero(true)) end, {holes(N(4, 2, 4))}, {grad = true})
   else
      case(name .. '.user', function() local m = cell(); m.userPrevOutput = N(2, name == 'square' and 4 or 5); if m.cells and not name:find('u') then m.userPrevCell = N(2, name == 'square' and 4 or 5) end; return nn.Sequencer(m) end, {N(3, 2, 4), N(2, 2, 4)})
      case(name .. '.mask', function() return nn.Sequencer(cell():maskZero(1)) end, {holes(N(4, 2, 4)), holes(steps(3, 2, 4))})
      case(name .. '.mask1', function() return nn.Sequencer(cell():maskZero(1)) end, {holes(steps(4, 4))})
      case(name .. '.trim', function() return nn.Sequencer(cell():trimZero(1)) end, {holes(N(4, 2, 4)), holes(steps(3, 2, 4))})
      case(name .. '.maskgrad', function() return nn.Sequencer(cell():maskZero(1)) end, {holes(N(4, 2, 4))}, {grad = true})
      case(name .. '.bi', function() return nn.BiSequencer(cell(), cell()) end, {steps(3, 2, 4), steps(2, 1, 4)})
      case(name .. '.bigrad', function() return nn.BiSequencer(cell(), cell(), nn.CAddTable()) end, {steps(3, 2, 4)}, {grad = true})
      case(name .. '.bilm', function() return nn.BiSequencerLM(cell(), cell()) end, {steps(3, 2, 4), steps(4, 2, 4)})
   end
   case(name .. '.bilm.sum', function() return nn.BiSequencerLM(cell(), cell(), nn.CAddTable()) end, {steps(3, 2, 4)}, {grad = true})
   case(name .. '.repeat', function() return nn.Repeater(cell(), 3) end, {N(2, 4), N(3, 4)})
end
for _, p in ipairs{{'drop', .3}, {'mono', .3, true}} do
   case('lstm.' .. p[1], function() return nn.Sequencer(warm(nn.LSTM(4, 5, nil, true, p[2], p[3]))) end, {N(3, 2, 4)})
   case('fast.' .. p[1], function() return nn.Sequencer(warm(nn.FastLSTM(4, 5, nil, nil, nil, nil, p[2], p[3]))) end, {N(3, 2, 4)})
   case('gru.' .. p[1], function() return nn.Sequencer(warm(nn.GRU(4, 5, nil, p[2], p[3]))) end, {N(3, 2, 4)})
end
nn.FastLSTM.bn = true
case('fast.bn', function() local m = nn.FastLSTM(4, 5); for _, n in ipairs(m:findModules('nn.BatchNormalization')) do n.running_mean:normal(); n.running_var:uniform(.5, 2) end; return nn.Sequencer(warm(m)) end, {N(3, 2, 4)})
case('fast.bn.grad', function() return nn.Sequencer(warm(nn.FastLSTM(4, 5))) end, {N(3, 4, 4)}, {grad = true})
nn.FastLSTM.bn = false
case('mufuru.ops', function() return nn.Sequencer(warm(nn.MuFuRu(4, 5, {'keep', 'replace', 'mul'}))) end, {N(3, 2, 4)})

-- Stacks, graphs and other modules in sequencers.
local function stack() return nn.Sequential():add(nn.FastLSTM(4, 5)):add(nn.Dropout(.3)):add(nn.LSTM(5, 3)):add(nn.Linear(3, 2)):add(nn.LogSoftMax()) end
case('stack', function() return nn.Sequencer(stack()) end, {steps(3, 2, 4), steps(3, 2, 4)})
case('stack.both', function() return nn.Sequencer(stack()):remember('both') end, {steps(3, 2, 4), steps(3, 2, 4)})
case('stack.recursor', function() return nn.Recursor(stack()) end, {N(2, 4), N(2, 4), 'forget', N(3, 4)})
case('stack.recursor.midway', function() return nn.Recursor(stack()) end, {N(2, 4), N(2, 4)}, {warm = {N(2, 4), N(2, 4)}})
case('stack.grad', function() return nn.Sequencer(nn.Sequential():add(nn.GRU(4, 5)):add(nn.FastLSTM(5, 3)):add(nn.Tanh())) end, {steps(3, 2, 4)}, {grad = true})
case('stack.sequencers', function() return nn.Sequential():add(nn.Sequencer(nn.FastLSTM(4, 5))):add(nn.Sequencer(nn.GRU(5, 3))):add(nn.SelectTable(-1)):add(nn.Linear(3, 2)) end, {steps(4, 2, 4)}, {grad = true})
case('stack.split', function() return nn.Sequential():add(nn.SplitTable(1)):add(nn.Sequencer(nn.FastLSTM(4, 5))):add(nn.JoinTable(1)) end, {N(4, 2, 4)})
case('linear', function() return nn.Sequencer(nn.Linear(4, 5)) end, {steps(3, 2, 4), N(3, 2, 4), N(3, 4)})
case('linear.grad', function() return nn.Sequencer(nn.Linear(4, 5)) end, {steps(3, 2, 4)}, {grad = true})
case('tables', function() return nn.Sequencer(nn.ConcatTable():add(nn.FastLSTM(4, 5)):add(nn.Identity())) end, {steps(3, 2, 4)})
case('tables.in', function() return nn.Sequencer(nn.Sequential():add(nn.ParallelTable():add(nn.GRU(4, 5)):add(nn.Linear(3, 5))):add(nn.CAddTable())) end, {{{N(2, 4), N(2, 3)}, {N(2, 4), N(2, 3)}}})
case('gmodule', function() local x = nn.Identity()(); local h = nn.FastLSTM(4, 5)(x); local y = nn.CAddTable()({nn.Linear(5, 3)(h), nn.Linear(4, 3)(x)}); return nn.Sequencer(nn.gModule({x}, {y})) end, {N(3, 2, 4), steps(2, 2, 4)})
case('gmodule.grad', function() local x = nn.Identity()(); local h = nn.GRU(4, 5)(x); local y = nn.CAddTable()({nn.Linear(5, 3)(h), nn.Linear(4, 3)(x)}); return nn.Sequencer(nn.gModule({x}, {y})) end, {steps(3, 2, 4)}, {grad = true})
case('gmodule.both', function() local x = nn.Identity()(); local h = nn.FastLSTM(4, 5)(x); return nn.Sequencer(nn.gModule({x}, {h, nn.Tanh()(h)})):remember('both') end, {steps(3, 2, 4), steps(3, 2, 4)})
case('nested', function() return nn.Sequencer(nn.Sequencer(nn.FastLSTM(4, 5))) end, {N(2, 3, 2, 4)})
case('recursor.recursor', function() return nn.Recursor(nn.Recursor(nn.GRU(4, 5))) end, {N(2, 4), N(2, 4)})
case('recurrence.table', function() local step = nn.Sequential():add(nn.FlattenTable()):add(nn.ConcatTable():add(nn.Sequential():add(nn.NarrowTable(1, 2)):add(nn.ParallelTable():add(nn.Linear(4, 5)):add(nn.Linear(5, 5))):add(nn.CAddTable()):add(nn.Tanh())):add(nn.Sequential():add(nn.SelectTable(3)):add(nn.AddConstant(1)))); return nn.Sequencer(nn.Recurrence(step, {{5}, {3}}, 1)) end, {steps(3, 2, 4), steps(2, 4)})
case('recurrence.image', function() return nn.Sequencer(nn.Recurrence(nn.Sequential():add(nn.ParallelTable():add(nn.SpatialConvolution(2, 3, 3, 3, 1, 1, 1, 1)):add(nn.SpatialConvolution(3, 3, 1, 1))):add(nn.CAddTable()):add(nn.Tanh()), {3, 5, 6}, 3)) end, {N(3, 2, 2, 5, 6), N(2, 2, 5, 6)})
case('lookup', function() return nn.Sequential():add(nn.LookupTableMaskZero(9, 4)):add(nn.SplitTable(1)):add(nn.Sequencer(torchs and nn.FastLSTM(4, 5):maskZero(true) or nn.FastLSTM(4, 5):maskZero(1))):add(nn.Sequencer(torchs and nn.MaskZero(nn.Linear(5, 3), true) or nn.MaskZero(nn.Linear(5, 3), 1))) end, {T{{0, 3}, {2, 0}, {9, 1}}, T{{0, 3, 4}, {2, 0, 0}}})
case('norm', function() return nn.Sequencer(nn.Sequential():add(nn.LSTM(4, 5)):add(nn.NormStabilizer(.7))) end, {steps(3, 2, 4)})
case('norm.grad', function() return nn.Sequencer(nn.Sequential():add(nn.LSTM(4, 5)):add(nn.NormStabilizer(.7))) end, {steps(4, 3, 4)}, {grad = true})
case('bn.train', function() return nn.Sequencer(nn.Sequential():add(nn.FastLSTM(4, 5)):add(nn.BatchNormalization(5))) end, {steps(3, 4, 4), 'evaluate', steps(3, 4, 4)}, {train = true})

-- Whole sequences.
local function flat(m, f) f(warm(m)); return m end
local function no() end
local seqs = {
   lstm = {function() return nn.SeqLSTM(4, 5) end}, lstm1 = {function() return nn.SeqLSTM(4, 1) end},
   gru = {function() return nn.SeqGRU(4, 5) end},
   lstmp = {function() return torchs and nn.SeqLSTM(4, 6, 3) or nn.SeqLSTMP(4, 6, 3) end},
   wide = {function() return torchs and nn.SeqLSTM(4, 3, 6) or nn.SeqLSTMP(4, 3, 6) end},
   equal = {function() return torchs and nn.SeqLSTM(4, 3, 3) or nn.SeqLSTMP(4, 3, 3) end},
}
for name, list in sorted(seqs) do
   local function new(f) return function() local m = warm(list[1]()); m = f and f(m) or m; return m end end
   local function rem(word) return function(m) m:remember(word); return m end end
   local size = ({lstm1 = 1, lstmp = 3, wide = 6, equal = 3})[name] or 5
   name = 'seq.' .. name
   case(name, new(), {N(6, 3, 4), N(2, 1, 4)})
   case(name .. '.one', new(), {N(1, 1, 4)})
   case(name .. '.both', new(rem('both')), {N(3, 2, 4), N(2, 2, 4), 'forget', N(3, 4, 4), N(1, 4, 4)})
   case(name .. '.eval', new(rem('eval')), {N(3, 2, 4), N(2, 2, 4)})
   case(name .. '.train', new(rem('train')), {N(3, 2, 4), N(2, 2, 4), 'training', N(3, 2, 4), N(2, 2, 4)})
   case(name .. '.switch', new(rem('both')), {N(3, 2, 4), 'training', N(2, 2, 4), 'evaluate', N(2, 2, 4)})
   case(name .. '.midway', new(), {N(3, 2, 4)}, {warm = {N(2, 2, 4)}})
   case(name .. '.midwayboth', new(rem('both')), {N(3, 2, 4), N(1, 2, 4)}, {warm = {N(2, 2, 4)}})
   case(name .. '.grad', new(), {N(4, 2, 4)}, {grad = true})
   case(name .. '.gradboth', new(rem('both')), {N(4, 2, 4), N(4, 2, 4)}, {grad = true})
   if torchs then
      case(name .. '.mask', new(function(m) m:maskZero(true); return m end), {holes(N(4, 2, 4))})
      case(name .. '.maskgrad', new(function(m) m:maskZero(true); return m end), {holes(N(4, 2, 4))}, {grad = true})
      case(name .. '.start', new(function(m) m:remember('both'); return m end), {N(3, 2, 4), N(2, 2, 4)})
      case(name .. '.lengths', function() return nn.VariableLength(warm(list[1]())) end, {{N(4, 4), N(2, 4), N(1, 4), N(3, 4)}, {N(2, 4)}})
      case(name .. '.lengths.last', function() return nn.VariableLength(warm(list[1]()), true) end, {{N(4, 4), N(2, 4), N(3, 4)}})
      case(name .. '.lengths.grad', function() return nn.VariableLength(warm(list[1]())) end, {{N(4, 4), N(2, 4), N(3, 4)}}, {grad = true})
   else
      case(name .. '.batchfirst', new(function(m) m.batchfirst = true; return m end), {N(3, 5, 4), N(1, 2, 4)})
      case(name .. '.batchfirst.both', new(function(m) m.batchfirst = true; m:remember('both'); return m end), {N(3, 5, 4), N(3, 2, 4)})
      case(name .. '.mask', new(function(m) m.maskzero = true; return m end), {holes(N(4, 2, 4)), holes(N(3, 2, 4))})
      case(name .. '.mask.both', new(function(m) m.maskzero = true; m.batchfirst = true; m:remember('both'); return m end), {holes(N(2, 4, 4)), holes(N(2, 3, 4))})
      case(name .. '.maskgrad', new(function(m) m.maskzero = true; return m end), {holes(N(4, 2, 4))}, {grad = true})
      case(name .. '.h0', new(), {{N(2, size), N(3, 2, 4)}, N(3, 2, 4)})
      case(name .. '.c0', new(), {{N(2, name:find('lstmp') and 6 or name:find('wide') and 3 or size), N(2, size), N(3, 2, 4)}, N(2, 2, 4)})
      case(name .. '.h0grad', new(), {{N(2, size), N(3, 2, 4)}}, {grad = true})
      case(name .. '.user', new(function(m) m.userPrevOutput = N(2, size); return m end), {N(3, 2, 4), N(3, 2, 4)})
      case(name .. '.usercell', new(function(m) m.userPrevOutput = N(2, size); m.userPrevCell = N(2, m.hiddensize or size); return m end), {N(3, 2, 4), N(3, 2, 4)})
   end
end
if torchs then
   case('bilstm', function() return nn.SeqBLSTM(4, 5) end, {N(4, 2, 4), N(1, 2, 4)})
   case('bilstm.p', function() return nn.SeqBLSTM(4, 5, 3) end, {N(4, 2, 4)})
   case('bilstm.join', function() return nn.SeqBLSTM(4, 5, nn.JoinTable(3)) end, {N(4, 2, 4)}, {grad = true})
   case('bigru', function() return nn.SeqBGRU(4, 5) end, {N(4, 2, 4)})
   case('bigru.join', function() return nn.SeqBGRU(4, 5, nn.JoinTable(1, 1)) end, {N(4, 2, 4)})
   case('biseq', function() return nn.BiSequencer(nn.RecLSTM(4, 5), nn.RecGRU(4, 5)) end, {N(4, 2, 4)})
   case('biseq.table', function() return nn.BiSequencer(nn.RecLSTM(4, 5), nn.RecGRU(4, 5), nn.Sequential():add(nn.ZipTable()):add(nn.Sequencer(nn.JoinTable(1, 1)))) end, {steps(4, 2, 4)})
   case('biseq.both', function() return nn.SeqBLSTM(4, 5):remember('both') end, {N(4, 2, 4), N(2, 2, 4)})
   case('lookuprnn', function() return nn.Sequencer(nn.LookupRNN(9, 5)) end, {T{{1, 9}, {0, 3}, {4, 4}}, T{{1, 2, 3}}})
   case('lookuprnn.tanh', function() return nn.Sequencer(nn.LookupRNN(9, 5, nn.Tanh())) end, {T{{1, 9}, {0, 3}, {4, 4}}})
   case('steplstm', function() return warm(nn.StepLSTM(4, 5)) end, {{N(2, 4), N(2, 5), N(2, 5)}})
   case('steplstmp', function() return warm(nn.StepLSTM(4, 6, 3)) end, {{N(2, 4), N(2, 3), N(2, 6)}})
   case('stepgru', function() return warm(nn.StepGRU(4, 5)) end, {{N(2, 4), N(2, 5)}})
   case('step.recurrence', function() return nn.Sequencer(nn.Recurrence(warm(nn.StepGRU(4, 5)), 5, 1)) end, {N(3, 2, 4)}, {grad = true})
   case('reverse', function() return nn.ReverseSequence() end, {N(3, 2, 4), steps(3, 2, 4)})
   local function mask(n) local x = torch.ByteTensor(n, 2):zero(); x[2][1] = 1; x[1][2] = 1; x[n][2] = 1; return {mask = x} end
   local none = {mask = false}
   case('mask.seqlstm', function() return warm(nn.SeqLSTM(4, 5):maskZero()) end, {mask(4), N(4, 2, 4), mask(3), N(3, 2, 4), none, N(3, 2, 4)})
   case('mask.seqlstmp', function() return warm(nn.SeqLSTM(4, 6, 3):maskZero()) end, {mask(4), N(4, 2, 4)})
   case('mask.seqgru', function() return warm(nn.SeqGRU(4, 5):maskZero()) end, {mask(4), N(4, 2, 4), none, N(3, 2, 4)})
   case('mask.reclstm', function() return nn.Sequencer(warm(nn.RecLSTM(4, 5):maskZero())) end, {mask(4), N(4, 2, 4), none, N(3, 2, 4)})
   case('mask.recgru', function() return nn.Sequencer(warm(nn.RecGRU(4, 5):maskZero())) end, {mask(4), N(4, 2, 4), none, N(3, 2, 4)})
   case('mask.gru', function() return nn.Sequencer(warm(nn.GRU(4, 5):maskZero())) end, {mask(4), N(4, 2, 4), none, N(3, 2, 4)})
   case('mask.lstm', function() return nn.Sequencer(warm(nn.LSTM(4, 5):maskZero())) end, {mask(4), N(4, 2, 4)})
   case('mask.linear', function() return nn.Sequencer(nn.MaskZero(nn.Linear(4, 3))) end, {mask(4), N(4, 2, 4)})
   case('mask.linearrnn', function() return nn.Sequencer(nn.LinearRNN(4, 3):maskZero()) end, {mask(4), N(4, 2, 4)})
   case('mask.stack', function() return nn.Sequential():add(nn.Sequencer(warm(nn.RecLSTM(4, 5):maskZero()))):add(warm(nn.SeqGRU(5, 3):maskZero())) end, {mask(4), N(4, 2, 4)})
   case('mask.bilstm', function() return nn.BiSequencer(warm(nn.SeqLSTM(4, 5):maskZero()), warm(nn.SeqGRU(4, 5):maskZero())) end, {mask(4), N(4, 2, 4), none, N(3, 2, 4)})
   case('mask.birec', function() return nn.BiSequencer(warm(nn.RecLSTM(4, 5):maskZero()), warm(nn.RecGRU(4, 5):maskZero())) end, {mask(4), N(4, 2, 4)})
   case('maskzero.v1', function() return nn.MaskZero(nn.Linear(4, 3), true) end, {holes(N(3, 4)), N(2, 4)})
   case('maskzero.input', function() return nn.MaskZero(nn.Linear(4, 3), true, true, false) end, {holes(N(3, 4))})
   case('rec.lengths', function() return nn.VariableLength(nn.Sequencer(warm(nn.RecLSTM(4, 5)))) end, {{N(4, 4), N(2, 4), N(3, 4)}})
   case('recgru.lengths', function() return nn.VariableLength(nn.Sequencer(warm(nn.RecGRU(4, 5))), true) end, {{N(4, 4), N(2, 4), N(3, 4)}})
else
   case('sbrnn', function() return nn.SeqBRNN(4, 5) end, {N(4, 2, 4), N(2, 1, 4)})
   case('sbrnn.join', function() return nn.SeqBRNN(4, 5, false, nn.JoinTable(3)) end, {N(4, 2, 4)})
   case('sbrnn.batchfirst', function() return nn.SeqBRNN(4, 5, true) end, {N(2, 4, 4)})
   case('sbrnn.grad', function() return nn.SeqBRNN(4, 5, true, nn.JoinTable(3)) end, {N(2, 4, 4)}, {grad = true})
   case('biseq.linear', function() return nn.BiSequencer(nn.Linear(4, 3), nn.FastLSTM(4, 3)) end, {steps(3, 2, 4)})
   case('biseq.stack', function() return nn.BiSequencer(nn.Sequential():add(nn.FastLSTM(4, 3)):add(nn.GRU(3, 2)), nn.LSTM(4, 2), nn.CMulTable()) end, {steps(3, 2, 4), steps(2, 2, 4)})
   case('biseq.both', function() return nn.BiSequencer(nn.FastLSTM(4, 3), nn.FastLSTM(4, 3)):remember('both') end, {steps(3, 2, 4), steps(3, 2, 4)})
   case('bilm.seq', function() return nn.BiSequencerLM(nn.Sequential():add(nn.Sequencer(nn.FastLSTM(4, 3))):add(nn.Sequencer(nn.GRU(3, 2))), nn.Sequencer(nn.FastLSTM(4, 2))) end, {steps(4, 2, 4)})
   case('maskzero.rows', function() return nn.MaskZero(nn.Linear(4, 3), 1) end, {holes(N(3, 4)), N(4), holes(N(4))})
   case('maskzero.table', function() return nn.MaskZero(nn.ParallelTable():add(nn.Linear(4, 3)):add(nn.Linear(2, 2)), 1) end, {{holes(N(3, 4)), N(3, 2)}})
   case('maskzero.2', function() return nn.MaskZero(nn.Identity(), 2) end, {holes(N(3, 2, 4)):mul(0), N(3, 2, 4), N(2, 4)})
   case('maskzero.grad', function() return nn.MaskZero(nn.Linear(4, 3), 1) end, {holes(N(3, 4))}, {grad = true})
   case('trimzero', function() return nn.TrimZero(nn.Linear(4, 3), 1) end, {holes(N(3, 4)), N(4), holes(N(4)), torch.zeros(2, 4)})
   case('serial', function() return nn.Serial(nn.Sequential():add(nn.Linear(4, 3)):add(nn.Tanh())) end, {N(2, 4)})
   case('serial.rnn', function() return nn.Serial(nn.Sequencer(nn.FastLSTM(4, 3))):mediumSerial() end, {steps(3, 2, 4)})
   case('serial.light', function() return nn.Serial(nn.Sequencer(nn.FastLSTM(4, 3))):lightSerial() end, {steps(3, 2, 4)})
end

-- Attention and glimpses.
case('glimpse', function() return nn.SpatialGlimpse(4, 3, 2) end, {{torch.rand(2, 3, 20, 22), T{{-.5, .3}, {.9, -1}}}, {torch.rand(3, 20, 22), T{0, 0}}})
case('glimpse.rect', function() return nn.SpatialGlimpse({4, 6}, 2, 2) end, {{torch.rand(2, 1, 20, 22), T{{-.5, .3}, {1, 1}}}})
case('glimpse.odd', function() return nn.SpatialGlimpse(5, 1, 2) end, {{torch.rand(2, 2, 9, 8), T{{-.5, .3}, {1, -1}}}})
case('glimpse.grad', function() return nn.SpatialGlimpse(4, 2, 2) end, {{torch.rand(2, 3, 12, 12), T{{-.5, .3}, {.9, -1}}}}, {grad = true})
local function attention(full)
   local rnn = nn.Recurrent and nn.Recurrent(5, nn.Sequential():add(nn.ParallelTable():add(nn.Linear(4, 5)):add(nn.Linear(2, 5))):add(nn.CAddTable()), nn.Linear(5, 5), nn.Tanh())
      or nn.Recurrence(nn.Sequential():add(nn.FlattenTable()):add(nn.JoinTable(1, 1)):add(nn.Linear(11, 5)):add(nn.Tanh()), 5, 1)
   local action = nn.Sequential():add(nn.Linear(5, 2)):add(nn.HardTanh()):add(nn.ReinforceNormal(.1)):add(nn.HardTanh())
   local m = nn.RecurrentAttention(rnn, action, 4, {5}); if full then m.forwardActions = true end; return m
end
-- In evaluation Lua writes all outputs into the same memory: only the last is what it was.
case('attention', function() return nn.Sequential():add(attention()):add(nn.SelectTable(-1)) end, {N(2, 4), N(3, 4)})
case('attention.all', function() return attention() end, {N(2, 4)})
case('attention.place', function() return nn.Sequential():add(attention(true)):add(nn.SelectTable(-1)) end, {N(2, 4)})
local kinds = {bernoulli = function() return nn.ReinforceBernoulli() end, categorical = function() return nn.ReinforceCategorical() end, normal = function() return nn.ReinforceNormal(.3) end}
for name, make in sorted(kinds) do case('reinforce.' .. name, make, {torch.rand(3, 4)}) end
for name, make in sorted{bernoulli = kinds.bernoulli, categorical = kinds.categorical, normal = kinds.normal, table = function() return nn.ReinforceNormal() end} do
   local m = make(); m:training(); local saved = torch.deserialize(torch.serialize(m))
   local x = nn.SoftMax():forward(N(3, 4)):clone(); if name == 'table' then x = {N(3, 4), torch.rand(3, 4):add(.1)} end
   local y, reward = m:forward(x):clone(), N(3); m:reinforce(reward)
   all['drawn.' .. name] = {module = saved, calls = {}, drawn = {input = x, output = y, reward = reward, gradInput = m:backward(x, y:clone())}}; done = done + 1
end
case('reinforce.normal.table', function() return nn.ReinforceNormal() end, {{N(3, 4), torch.rand(3, 4)}})
case('entropy', function() return nn.CategoricalEntropy(.5) end, {torch.rand(3, 4)})
case('entropy.grad', function() return nn.CategoricalEntropy(.5) end, {torch.rand(3, 4)}, {grad = true})
case('entropy.min', function() return nn.CategoricalEntropy(.5, .1) end, {torch.rand(3, 4)}, {grad = true})
case('totaldropout', function() return nn.TotalDropout(.3) end, {N(3, 4)})
case('argmax', function() return nn.ArgMax(1, 1) end, {N(3, 4), N(4)})
if not torchs then
   case('fire', function() return nn.FireModule(3, 2, 3, 4) end, {N(2, 3, 5, 6)})
   case('fire.grad', function() return nn.FireModule(3, 2, 3, 4, 'Tanh') end, {N(2, 3, 5, 6)}, {grad = true})
   case('featnorm', function() return nn.SpatialFeatNormalization(T{1, 2, 3}, T{.5, 2, 3}) end, {N(2, 3, 4, 5), N(3, 4, 5)})
   case('featnorm.mean', function() return nn.SpatialFeatNormalization(T{1, 2, 3}) end, {N(2, 3, 4, 5)}, {grad = true})
   case('color', function() return nn.SimpleColorTransform(3, T{.1, .2, .3}) end, {N(2, 3, 4, 5)})
   case('pca', function() return nn.PCAColorTransform(3, N(3, 3), torch.rand(3), .2) end, {N(2, 3, 4, 5)})
   case('region', function() return nn.SpatialRegionDropout(.3) end, {N(2, 3, 4, 5)})
   case('crop', function() return nn.SpatialUniformCrop(4, 3) end, {N(2, 3, 9, 8), N(3, 9, 8)})
   case('crop.square', function() return nn.SpatialUniformCrop(5) end, {N(2, 3, 9, 8)})
   case('clip', function() return nn.Clip(-.5, .25) end, {N(3, 4)}, {grad = true})
   for _, bias in ipairs{false, true} do
      case('binary' .. tostring(bias), function() local m = nn.SpatialBinaryConvolution(3, 4, 3, 3, 1, 1, 1, 1); if bias then m:noBias() end; return m end, {N(2, 3, 5, 6)})
   end
   case('inception', function() return nn.Inception{inputSize = 3, outputSize = {4, 3}, reduceSize = {2, 2, 3, 3}, reduceStride = {1, 1}, pool = nn.SpatialMaxPooling(3, 3, 1, 1, 1, 1)} end, {N(2, 3, 8, 8), N(3, 8, 8)})
end
local function nce(f) local m = nn.NCEModule(4, 6, 3, torch.range(1, 6)); m:reset(.5); m.bias:normal(); if f then f(m) end; return m end
case('nce', function() return nce(function(m) m.normalized = true end) end, {{N(3, 4), torch.LongTensor{1, 5, 6}}})
case('nce.log', function() return nce(function(m) m.normalized = true; m.logsoftmax = true end) end, {{N(3, 4), torch.LongTensor{1, 5, 6}}})

-- Criterions.
local function classes(...) local v = {...}; return T(v) end
criterion('c.sequencer', function() return nn.SequencerCriterion(nn.ClassNLLCriterion()) end, steps(3, 2, 4), {classes(1, 4), classes(2, 2), classes(3, 1)})
criterion('c.sequencer.tensor', function() return nn.SequencerCriterion(nn.MSECriterion()) end, N(3, 2, 4), N(3, 2, 4))
criterion('c.sequencer.average', function() return nn.SequencerCriterion(nn.ClassNLLCriterion(), true) end, N(3, 2, 4), T{{1, 4}, {2, 2}, {3, 1}})
criterion('c.sequencer.table', function() return nn.SequencerCriterion(nn.ParallelCriterion():add(nn.MSECriterion()):add(nn.ClassNLLCriterion(), .5)) end, {{N(2, 3), N(2, 4)}, {N(2, 3), N(2, 4)}}, {{N(2, 3), classes(1, 2)}, {N(2, 3), classes(4, 3)}})
criterion('c.repeater', function() return nn.RepeaterCriterion(nn.ClassNLLCriterion()) end, steps(3, 2, 4), classes(1, 4))
criterion('c.repeater.tensor', function() return nn.RepeaterCriterion(nn.MSECriterion()) end, N(3, 2, 4), N(2, 4))
criterion('c.mask', function() return nn.MaskZeroCriterion(nn.ClassNLLCriterion(), torchs or 1) end, holes(N(3, 4)), classes(1, 4, 2))
criterion('c.mask.all', function() return nn.MaskZeroCriterion(nn.MSECriterion(), torchs or 1) end, torch.zeros(3, 4), N(3, 4))
criterion('c.mask.table', function() return nn.MaskZeroCriterion(nn.ParallelCriterion():add(nn.MSECriterion()):add(nn.ClassNLLCriterion()), torchs or 1) end, {holes(N(3, 2)), N(3, 4)}, {N(3, 2), classes(2, 3, 1)})
criterion('c.mask.sequencer', function() return nn.SequencerCriterion(nn.MaskZeroCriterion(nn.ClassNLLCriterion(), torchs or 1)) end, holes(N(3, 2, 4)), T{{1, 4}, {2, 2}, {3, 1}})
criterion('c.mask.2', function() return nn.MaskZeroCriterion(nn.MSECriterion(), torchs or 2) end, holes(N(3, 2, 4)), N(3, 2, 4))
criterion('c.nce', function() return nn.NCECriterion() end, {torch.rand(3), torch.rand(3, 5), torch.rand(3), torch.rand(3, 5)}, classes(1, 2, 3))
local function reward(class, ...) local list = {...}; local m = nn[class](nn.Sequential():add(nn.ReinforceNormal(.1)), unpack(list)); m.module:training(); m.module:forward(N(3, 4)); return m end
criterion('c.vr', function() return reward('VRClassReward') end, {torch.rand(3, 4), torch.rand(3, 1)}, classes(1, 4, 2))
criterion('c.vr.scale', function() return reward('VRClassReward', 2.5) end, {torch.rand(3, 4), torch.rand(3, 1)}, torch.LongTensor{1, 4, 2})
criterion('c.vr.sum', function() local m = reward('VRClassReward', 2.5, nn.AbsCriterion()); m.sizeAverage = false; return m end, {torch.rand(3, 4), torch.rand(3, 1)}, classes(1, 4, 2))
criterion('c.binary', function() return reward('BinaryClassReward') end, {torch.rand(3), torch.rand(3)}, classes(1, 0, 1))
if not torchs then
   criterion('c.logistic', function() return nn.BinaryLogisticRegression() end, N(4), T{1, -1, -1, 1})
   criterion('c.logistic.sum', function() return nn.BinaryLogisticRegression(false) end, N(4, 1), T{1, -1, -1, 1}:view(4, 1))
   criterion('c.logistic.image', function() return nn.SpatialBinaryLogisticRegression() end, N(2, 1, 3, 4), N(2, 1, 3, 4):sign())
   criterion('c.logistic.one', function() return nn.SpatialBinaryLogisticRegression() end, N(1, 3, 4), N(1, 3, 4):sign())
   criterion('c.logistic.total', function() local m = nn.SpatialBinaryLogisticRegression(); m.sizeAverage = false; return m end, N(2, 1, 3, 4), N(2, 1, 3, 4):sign())
end
end
torch.save(out, all)
print(done .. ' written, ' .. #refused .. ' refused'); for _, why in ipairs(refused) do print('  ' .. why) end
