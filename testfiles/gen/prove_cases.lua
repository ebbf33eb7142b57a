-- prove_cases.lua OUTDIR [SEED] [SIZE] [NAME]: models saved as training programs leave them, with the outputs and gradients of
-- their last pass: OUTDIR/<name>.t7. Names end in .eval (a forward in evaluation), .train (forward and backward in
-- training, no update), .stale (forward, backward, and an update after it). With Element-Research's rnn, nngraph, optim.
require 'nn'; require 'nngraph'; require 'optim'
local out, seed, size = assert(arg[1]), tonumber(arg[2] or 15), tonumber(arg[3] or 1)
torch.manualSeed(seed); torch.setdefaulttensortype('torch.FloatTensor')
local N = torch.randn
local cases = {}
local only = arg[4]
local function put(name, make, input, opt) if not only or only == name then cases[#cases + 1] = {name = name, make = make, input = input, opt = opt or {}} end end
local w = function(n) return n * size end

put('lenet', function()
   return nn.Sequential():add(nn.SpatialConvolution(1, w(4), 5, 5)):add(nn.Tanh()):add(nn.SpatialMaxPooling(2, 2, 2, 2))
      :add(nn.SpatialConvolution(w(4), w(6), 3, 3, 1, 1, 1, 1)):add(nn.ReLU(true)):add(nn.SpatialMaxPooling(3, 3, 2, 2):ceil())
      :add(nn.View(-1):setNumInputDims(3)):add(nn.Linear(w(6) * 4, w(12))):add(nn.Sigmoid()):add(nn.Linear(w(12), 5)):add(nn.LogSoftMax())
end, function() return N(2, 1, 12, 12) end)
put('mlp', function()
   return nn.Sequential():add(nn.Linear(w(9), w(16))):add(nn.BatchNormalization(w(16))):add(nn.ReLU(true)):add(nn.Dropout(0.3))
      :add(nn.Linear(w(16), w(12))):add(nn.PReLU(w(12))):add(nn.Linear(w(12), w(7))):add(nn.Threshold(0.1, 0)):add(nn.Linear(w(7), 4)):add(nn.SoftMax())
end, function() return N(6, w(9)) end)
put('mlp_double', function()
   return nn.Sequential():add(nn.Linear(w(9), w(8))):add(nn.Tanh()):add(nn.Linear(w(8), w(6))):add(nn.ELU(0.7)):add(nn.Linear(w(6), 3)):double()
end, function() return N(5, w(9)):double() end)
put('resnet', function()
   local function block(ni, no, s)
      local main = nn.Sequential():add(nn.SpatialConvolution(ni, no, 3, 3, s, s, 1, 1)):add(nn.SpatialBatchNormalization(no)):add(nn.ReLU(true))
         :add(nn.SpatialConvolution(no, no, 3, 3, 1, 1, 1, 1)):add(nn.SpatialBatchNormalization(no))
      local short = ni == no and s == 1 and nn.Identity() or nn.Sequential():add(nn.SpatialConvolution(ni, no, 1, 1, s, s)):add(nn.SpatialBatchNormalization(no))
      return nn.Sequential():add(nn.ConcatTable():add(main):add(short)):add(nn.CAddTable(true)):add(nn.ReLU(true))
   end
   return nn.Sequential():add(nn.SpatialConvolution(2, w(3), 3, 3, 1, 1, 1, 1)):add(nn.SpatialBatchNormalization(w(3))):add(nn.ReLU(true))
      :add(block(w(3), w(3), 1)):add(block(w(3), w(4), 2)):add(nn.SpatialAveragePooling(4, 4, 1, 1)):add(nn.View(w(4)):setNumInputDims(3)):add(nn.Linear(w(4), 5))
end, function() return N(2, 2, 8, 8) end)
put('inception', function()
   local c = nn.Concat(2)
   c:add(nn.SpatialConvolution(w(3), w(2), 1, 1))
   c:add(nn.Sequential():add(nn.SpatialConvolution(w(3), w(2), 1, 1)):add(nn.ReLU(true)):add(nn.SpatialConvolution(w(2), w(3), 3, 3, 1, 1, 1, 1)):add(nn.ReLU(true)))
   c:add(nn.Sequential():add(nn.SpatialAveragePooling(3, 3, 1, 1, 1, 1)):add(nn.SpatialConvolution(w(3), w(2), 1, 1)):add(nn.LeakyReLU(0.1, true)))
   return nn.Sequential():add(nn.SpatialConvolution(1, w(3), 3, 3)):add(nn.ReLU()):add(c):add(nn.SpatialCrossMapLRN(3, 0.01, 0.75))
      :add(nn.DepthConcat(2):add(nn.SpatialConvolution(w(7), 2, 3, 3)):add(nn.SpatialConvolution(w(7), 2, 1, 1)))
      :add(nn.SpatialFullConvolution(4, 3, 4, 4, 2, 2, 1, 1)):add(nn.SpatialZeroPadding(1, 0, 1, 0))
end, function() return N(2, 1, 9, 9) end)
put('dilated', function()
   return nn.Sequential():add(nn.SpatialDilatedConvolution(2, w(3), 3, 3, 1, 1, 2, 2, 2, 2)):add(nn.SpatialBatchNormalization(w(3), 1e-3)):add(nn.LeakyReLU(0.2))
      :add(nn.SpatialConvolutionMM(w(3), w(4), 3, 3, 2, 2, 1, 1)):add(nn.SpatialDropout(0.4)):add(nn.SpatialAveragePooling(2, 2, 2, 2)):add(nn.Bottle(nn.Linear(2, 3), 2))
      :add(nn.Reshape(w(4) * 6)):add(nn.Normalize(2)):add(nn.CMul(w(4) * 6)):add(nn.Linear(w(4) * 6, 3))
end, function() return N(2, 2, 8, 8) end)
put('tables', function()
   local p = nn.ParallelTable():add(nn.Linear(w(4), w(5))):add(nn.Sequential():add(nn.Linear(w(3), w(5))):add(nn.ReLU(true)))
   return nn.Sequential():add(nn.ParallelTable():add(nn.Linear(4, w(4))):add(nn.Tanh())):add(p):add(nn.ConcatTable():add(nn.CMulTable()):add(nn.JoinTable(2)):add(nn.SelectTable(1)))
      :add(nn.ParallelTable():add(nn.Linear(w(5), 2)):add(nn.Linear(w(10), 2)):add(nn.Linear(w(5), 2))):add(nn.CAddTable()):add(nn.SoftPlus())
end, function() return {N(3, 4), N(3, w(3))} end)
put('graph', function()
   local x = nn.Identity()()
   local function conv(i, ni, no) return nn.ReLU(true)(nn.SpatialBatchNormalization(no)(nn.SpatialConvolution(ni, no, 3, 3, 1, 1, 1, 1)(i))) end
   local d1 = conv(x, 1, w(4)); local d2 = conv(nn.SpatialMaxPooling(2, 2, 2, 2)(d1), w(4), w(6))
   local u = nn.SpatialFullConvolution(w(6), w(4), 2, 2, 2, 2)(d2)
   return nn.gModule({x}, {nn.SpatialConvolution(w(4), 2, 1, 1)(conv(nn.JoinTable(2)({d1, u}), w(8), w(4)))})
end, function() return N(2, 1, 8, 8) end)
put('graph_lstm', function()
   local h, vocab = w(6), 9
   local x, c1, h1 = nn.Identity()(), nn.Identity()(), nn.Identity()()
   local e = nn.LookupTable(vocab, h)(x)
   local sums = nn.CAddTable()({nn.Linear(h, 4 * h)(e), nn.Linear(h, 4 * h)(h1)})
   local n1, n2, n3, n4 = nn.SplitTable(2)(nn.Reshape(4, h)(sums)):split(4)
   local c = nn.CAddTable()({nn.CMulTable()({nn.Sigmoid()(n2), c1}), nn.CMulTable()({nn.Sigmoid()(n1), nn.Tanh()(n4)})})
   local nh = nn.CMulTable()({nn.Sigmoid()(n3), nn.Tanh()(c)})
   return nn.gModule({x, c1, h1}, {c, nh, nn.LogSoftMax()(nn.Linear(h, vocab)(nn.Dropout(0.5)(nh)):annotate{name = 'decoder'})})
end, function() return {torch.Tensor{1, 5, 9, 2}, N(4, w(6)), N(4, w(6))} end)
put('text', function()
   return nn.Sequential():add(nn.LookupTable(12, w(6))):add(nn.TemporalConvolution(w(6), w(8), 3)):add(nn.ReLU(true)):add(nn.TemporalMaxPooling(5))
      :add(nn.Squeeze()):add(nn.Linear(w(8), w(5))):add(nn.HardTanh()):add(nn.Linear(w(5), 3)):add(nn.LogSoftMax())
end, function() return torch.rand(4, 7):mul(11):floor():add(1) end)
put('volumes', function()
   return nn.Sequential():add(nn.VolumetricConvolution(1, w(2), 3, 3, 3)):add(nn.VolumetricBatchNormalization(w(2))):add(nn.ReLU(true))
      :add(nn.VolumetricMaxPooling(2, 2, 2)):add(nn.VolumetricConvolution(w(2), w(3), 2, 2, 2)):add(nn.View(-1):setNumInputDims(4)):add(nn.Linear(w(3), 2)):add(nn.MulConstant(0.5, true)):add(nn.AddConstant(1, true))
end, function() return N(2, 1, 6, 6, 6) end)
put('shared', function()
   local enc = nn.Sequential():add(nn.Linear(5, w(4))):add(nn.Tanh()):add(nn.Linear(w(4), w(3)))
   return nn.Sequential():add(nn.ParallelTable():add(enc):add(enc:clone('weight', 'bias', 'gradWeight', 'gradBias'))):add(nn.PairwiseDistance(2))
end, function() return {N(3, 5), N(3, 5)} end)
-- Of these each was written by a run of its own, with NAME.
put('constants', function()
   return nn.Sequential():add(nn.Linear(5, 6)):add(nn.AddConstant(0.7, true)):add(nn.Tanh()):add(nn.Linear(6, 5)):add(nn.MulConstant(1.7, true)):add(nn.Sigmoid())
      :add(nn.Linear(5, 4)):add(nn.LeakyReLU(0.2, true)):add(nn.Linear(4, 3)):add(nn.MulConstant(2, true)):add(nn.AddConstant(0.25, true))
end, function() return N(7, 5) end)
put('alone', function()
   return nn.Sequential():add(nn.SpatialConvolution(2, 3, 3, 3)):add(nn.SpatialBatchNormalization(3)):add(nn.ReLU(true)):add(nn.SpatialConvolution(3, 2, 3, 3)):add(nn.SpatialBatchNormalization(2)):add(nn.Tanh())
end, function() return N(1, 2, 7, 7) end)
if pcall(require, 'rnn') then
   local function steps(n, b, d) local t = {}; for i = 1, n do t[i] = N(b, d) end; return t end
   nn.FastLSTM.usenngraph = false
   put('rnn_lstm', function() return nn.Sequential():add(nn.Sequencer(nn.Linear(4, w(4)))):add(nn.Sequencer(nn.LSTM(w(4), w(5)))):add(nn.Sequencer(nn.Linear(w(5), 3))):add(nn.Sequencer(nn.LogSoftMax())) end, function() return steps(2, 2, 4) end)
   put('rnn_fast', function() return nn.Sequential():add(nn.SplitTable(1)):add(nn.Sequencer(nn.Sequential():add(nn.Linear(4, w(4))):add(nn.FastLSTM(w(4), w(5))):add(nn.Dropout(.5)):add(nn.GRU(w(5), w(3))):add(nn.Linear(w(3), 2)))) end, function() return N(2, 2, 4) end)
   put('rnn_seq', function() return nn.Sequential():add(nn.Linear(4, w(4)) and nn.SeqLSTM(4, w(5))):add(nn.SeqGRU(w(5), w(4))):add(nn.Sequencer(nn.Linear(w(4), 3))) end, function() return N(5, 2, 4) end)
   put('rnn_steps', function()
      local step = nn.Sequential():add(nn.ParallelTable():add(nn.Linear(4, 3)):add(nn.Linear(3, 3))):add(nn.CAddTable()):add(nn.Tanh())
      return nn.Sequential():add(nn.Sequencer(nn.Recurrence(step, 3, 1))):add(nn.BiSequencerLM(nn.GRU(3, 2), nn.GRU(3, 2))):add(nn.SelectTable(-1))
         :add(nn.Repeater(nn.Recurrent(3, nn.Linear(4, 3), nn.Linear(3, 3), nn.Tanh()), 2)):add(nn.SelectTable(-1)):add(nn.Linear(3, 2))
   end, function() return steps(3, 2, 4) end)
   put('rnn_simple', function() return nn.Sequential():add(nn.Sequencer(nn.Linear(4, w(4)))):add(nn.Sequencer(nn.Recurrent(w(5), nn.Linear(w(4), w(5)), nn.Linear(w(5), w(5)), nn.Sigmoid()))):add(nn.BiSequencer(nn.FastLSTM(w(5), 3), nn.FastLSTM(w(5), 3))) end, function() return steps(2, 2, 4) end)
end

local function like(y) if torch.isTensor(y) then return N(y:size()):typeAs(y) end; local o = {}; for i, e in ipairs(y) do o[i] = like(e) end; return o end
local function train(m, x)
   m:training(); if m.forget then m:forget() end
   m:zeroGradParameters(); local y = m:forward(x); m:backward(x, like(y))
end
-- What convolutions unfolded would be most of the file; it is kept in lenet alone.
local function put_down(file, m)
   if not file:find('lenet') then
      m:apply(function(e) for _, f in ipairs{'finput', 'fgradInput'} do if torch.isTensor(e[f]) then e[f]:set() end end end)
   end
   torch.save(out .. '/' .. file .. '.t7', m)
end
for _, case in ipairs(cases) do
   local ok, err = pcall(function()
      local m = case.make(); local x = case.input()
      local p = m:parameters(); for _, e in ipairs(p) do if e:dim() == 1 then e:add(N(e:size()):typeAs(e):mul(0.1)) end end
      for i = 1, 3 do train(m, case.input()); m:updateParameters(0.01) end
      train(m, x); put_down(case.name .. '.train', m)
      m:updateParameters(0.02); put_down(case.name .. '.stale', m)
      m:evaluate(); if m.forget then m:forget() end
      m:forward(case.input()); put_down(case.name .. '.eval', m)
   end)
   if not ok then io.stderr:write(case.name, ': ', tostring(err), '\n') end
end
if only then return end
-- A checkpoint as training programs write it, after several steps with momentum.
do
   local m = nn.Sequential():add(nn.Linear(6, w(8))):add(nn.ReLU(true)):add(nn.Linear(w(8), w(5))):add(nn.Tanh()):add(nn.Linear(w(5), 4)):add(nn.LogSoftMax())
   local c, state = nn.ClassNLLCriterion(), {learningRate = 0.05, momentum = 0.9}
   local p, g = m:getParameters()
   for i = 1, 8 do
      local x, t = N(10, 6), torch.rand(10):mul(4):floor():add(1)
      optim.sgd(function() g:zero(); local l = c:forward(m:forward(x), t); m:backward(x, c:backward(m.output, t)); return l, g end, p, state)
   end
   torch.save(out .. '/momentum.stale.t7', {model = m, criterion = c, epoch = 8, optimState = state})
   m:evaluate(); local x, t = N(10, 6), torch.rand(10):mul(4):floor():add(1); c:forward(m:forward(x), t)
   torch.save(out .. '/checkpoint.eval.t7', {model = m, criterion = c, epoch = 8})
end
