-- prove_states.lua OUTDIR: models in states that training programs leave, small: after steps of optimizers with and without their
-- state beside the model, partly cleared, of another type, and with layers that only gradients or equations check.
require 'nn'; require 'optim'; require 'rnn'
local out = assert(arg[1])
torch.setdefaulttensortype('torch.FloatTensor'); torch.setnumthreads(1)
local N = torch.randn
local function seq(...) local s = nn.Sequential(); for _, e in ipairs{...} do s:add(e) end; return s end
local function net() return seq(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 7), nn.BatchNormalization(7), nn.ReLU(true), nn.Linear(7, 6), nn.PReLU(6), nn.Linear(6, 4), nn.LogSoftMax()) end
-- Steps of an optimizer on minibatches that have nothing in common.
local function trained(name, steps, config)
   local m, c = net(), nn.ClassNLLCriterion()
   local p, g = m:getParameters()
   for i = 1, steps do
      local x, t = N(6, 5), torch.rand(6):mul(4):floor():add(1)
      optim[name](function() g:zero(); local l = c:forward(m:forward(x), t); m:backward(x, c:backward(m.output, t)); return l, g end, p, config)
   end
   return m, config
end
for seed, case in ipairs{{'momentum', 'sgd', 12, {learningRate = .01, momentum = .9}}, {'nesterov', 'sgd', 5, {learningRate = .01, momentum = .9, nesterov = true, dampening = 0, weightDecay = 1e-3}},
   {'adam', 'adam', 9, {learningRate = 2e-3}}, {'adamax', 'adamax', 9, {learningRate = 2e-3}}, {'rmsprop', 'rmsprop', 9, {learningRate = 1e-3}}, {'adagrad', 'adagrad', 9, {learningRate = 1e-2}}, {'adadelta', 'adadelta', 9, {}}} do
   torch.manualSeed(seed)
   local m, state = trained(case[2], case[3], case[4])
   if case[1] == 'momentum' or case[1] == 'adam' then torch.save(out..'/'..case[1]..'_alone.stale.t7', m) end
   torch.save(out..'/'..case[1]..'_state.stale.t7', {model = m, optimState = state, epoch = 3})
end
local function pass(m, x) m:training(); m:zeroGradParameters(); m:forward(x); m:backward(x, N(m.output:size()):typeAs(x)); return m end
torch.manualSeed(20)
-- An activation that works in place, without its state.
local m = pass(seq(nn.Linear(5, 8), nn.BatchNormalization(8), nn.ReLU(true), nn.Linear(8, 4)), N(6, 5)); m:get(3):clearState()
torch.save(out..'/cleared.train.t7', m)
-- Computed as floats, saved as doubles, few numbers a layer.
torch.save(out..'/widened.train.t7', pass(seq(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.SoftMax()), N(6)):double())
-- Layers whose options show in gradients alone, or in the noise; normalization made of layers.
torch.save(out..'/penalties.train.t7', pass(seq(nn.Linear(5, 7), nn.L1Penalty(0.1), nn.Tanh(), nn.Linear(7, 6), nn.GradientReversal(0.3), nn.Linear(6, 6), nn.Dropout(0.25), nn.LayerNormalization(6), nn.Linear(6, 3)), N(6, 5)))
-- A first layer of more outputs than inputs, in evaluation.
m = seq(nn.Linear(4, 9), nn.Sigmoid(), nn.Linear(9, 3), nn.LogSigmoid()); m:evaluate(); m:forward(N(5, 4):mul(8))
torch.save(out..'/wide.eval.t7', m)
-- Thresholds that were set.
m = seq(nn.SpatialConvolution(2, 3, 3, 3), nn.ReLU(true), nn.SpatialConvolution(3, 2, 3, 3, 2, 2, 1, 1), nn.ReLU()); m:get(2).threshold = 0.1; m:get(2).val = 0.05; m:get(4).threshold = -0.2; m:get(4).val = -0.3
torch.save(out..'/thresholds.train.t7', pass(m, N(2, 2, 6, 6)))
-- A plain recurrent layer in front of others, whose last forward was in evaluation and was followed by a backward.
torch.manualSeed(30)
m = nn.Sequencer(seq(nn.Recurrent(5, nn.LookupTable(9, 5), nn.Linear(5, 5), nn.Sigmoid(), 3), nn.Linear(5, 9), nn.LogSoftMax()))
local words, slopes = {}, {}
for i = 1, 3 do words[i] = torch.rand(4):mul(9):floor():add(1); slopes[i] = N(4, 9) end
m:evaluate(); m:forward(words); m:backward(words, slopes)
torch.save(out..'/backward.eval.t7', m)
-- Two passes with one pattern of zeros: only the noise of the dropout is not that of the recorded gradients.
torch.manualSeed(31)
m = seq(nn.Linear(5, 5), nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 7), nn.Dropout(0.5), nn.Linear(7, 4), nn.LogSoftMax()); m:get(2).bias:copy(torch.range(1, 8):remainder(2):mul(2):add(-1):mul(60))
pass(m, N(6, 5)):forward(N(6, 5))
torch.save(out..'/redrawn.train.t7', m)
