-- Networks in which t7bridge and Lua Torch once differed, each the smallest example of its class, as one list of records.
--   th found_nets.lua OUT.t7            (needs dpnn and rnn)
local out = arg[1]
arg = {[0] = arg[0], 'none', '5', '0'}
require 'nn' require 'nngraph'
dofile((arg[0]:match('^(.*/)') or './') .. 'random_nets.lua')
torch.manualSeed(5)
local list = {}
local function save(name, m, x) local r = measure(m, x) r.text = name list[#list + 1] = r end
local function seq(...) local s = nn.Sequential() for _, m in ipairs{...} do s:add(m) end return s end
local function both(...) local s = nn.ConcatTable() for _, m in ipairs{...} do s:add(m) end return s end
local function bn() local m = nn.SpatialBatchNormalization(1) m.running_mean:normal() m.running_var:uniform(.5, 2) return m end

local a, b = nn.PReLU(), nn.PReLU() a.weight:fill(.1) b.weight:fill(.7)
save('one element: PReLU', seq(a, nn.AddConstant(-1), b), torch.randn(2, 3))
a, b = nn.Mul(), nn.Mul() a.weight:fill(2) b.weight:fill(5)
save('one element: Mul', both(a, b), torch.randn(2, 3))
save('one element: Linear', both(nn.Linear(1, 1), nn.Linear(1, 1)), torch.randn(2, 1))
save('one element: convolution', seq(nn.SpatialConvolution(1, 1, 1, 1), nn.Tanh(), nn.SpatialConvolution(1, 1, 1, 1)), torch.randn(2, 1, 3, 3))
save('one element: batch normalization', seq(bn(), nn.Tanh(), bn()), torch.randn(2, 1, 3, 3))
a, b = nn.Linear(4, 1), nn.Linear(4, 1) b.weight, b.gradWeight = a.weight, a.gradWeight
save('tied weight, own bias', both(a, b), torch.randn(2, 4))
save('AddConstant before TemporalConvolution', seq(nn.AddConstant(2), nn.TemporalConvolution(4, 2, 2)), torch.randn(2, 5, 4))
save('sum before TemporalConvolution', seq(both(nn.Tanh(), nn.Identity()), nn.CAddTable(), nn.TemporalConvolution(4, 2, 1)), torch.randn(2, 4, 4))
save('LogSoftMax after unbatched TemporalConvolution', seq(nn.TemporalConvolution(3, 4, 1), nn.LogSoftMax()), torch.randn(5, 3))
save('LogSoftMax after TemporalConvolution', seq(nn.TemporalConvolution(3, 4, 1), nn.LogSoftMax()), torch.randn(2, 5, 3))
save('SoftMax after unbatched VolumetricConvolution', seq(nn.VolumetricConvolution(2, 3, 1, 1, 1), nn.SoftMax()), torch.randn(2, 3, 4, 4))
local m, x = nn.LinearWeightNorm(3, 2), torch.randn(4, 3)
m:training() m:forward(x) m:zeroGradParameters() m:backward(x, torch.randn(4, 2)) m:updateParameters(.5)
save('LinearWeightNorm after backward', m, x)
local n = nn.Identity()() local t = nn.Tanh()(n) local s = nn.CAddTable(true){t, n}
save('CAddTable in place, its input is an output', nn.gModule({n}, {t, s}), torch.randn(2, 3))
save('CAddTable in place, its input goes elsewhere', seq(both(nn.Identity(), seq(both(nn.Identity(), nn.Tanh()), nn.CAddTable(true)))), torch.randn(2, 3))
save('AddConstant in place, its input goes elsewhere', both(nn.AddConstant(2, true), nn.Tanh()), torch.randn(2, 3))
save('MulConstant in place, its input goes elsewhere', both(nn.Tanh(), nn.MulConstant(2, true), nn.Abs()), torch.randn(2, 3))
save('ReLU in place behind Replicate', seq(nn.Replicate(2), nn.ReLU(true)), torch.randn(2, 3))
save('LeakyReLU in place behind Replicate', seq(nn.Linear(3, 3), nn.Replicate(2, 2), nn.LeakyReLU(.1, true)), torch.randn(2, 3))
save('AddConstant in place behind Replicate', seq(nn.Replicate(2), nn.AddConstant(1, true)), torch.randn(2, 3))
save('Select in place: a copy', seq(both(seq(nn.Select(1, 1), nn.MulConstant(3, true)), nn.Identity())), torch.randn(2, 3))
save('MapTable of WeightedEuclidean', nn.MapTable(nn.WeightedEuclidean(3, 2)), {torch.randn(2, 3), torch.randn(2, 3)})
n = nn.Identity()() local d = nn.SpatialFullConvolution(3, 3, 1, 4, 2, 2, 1, 0, 0, 1)
save('tied full convolutions, one with a target', nn.gModule({n}, {d:clone('weight', 'bias', 'gradWeight', 'gradBias')(both(nn.Identity(), nn.Identity())(d(n)))}), torch.randn(1, 3, 3, 7))
save('Reshape with one plane', seq(nn.SpatialConvolution(1, 2, 1, 1), nn.Reshape(24), nn.Tanh()), torch.randn(2, 1, 2, 6))
save('Normalize(1)', nn.Normalize(1), torch.randn(3, 4))
save('clone of PartialLinear', nn.PartialLinear(3, 4):clone(), torch.randn(2, 3))
save('three inputs of CosineDistance', seq(nn.SplitTable(1), nn.CosineDistance()), torch.randn(3, 4))

require 'dpnn' require 'rnn'
save('SpatialBinaryConvolution', nn.SpatialBinaryConvolution(2, 3, 3, 3), torch.randn(2, 2, 5, 5))
m = nn.Sequencer(nn.LSTM(2, 3)):remember('both') m:evaluate() m:forward{torch.randn(1, 2)}
save('remember, saved in evaluation', m, {torch.randn(1, 2)})
save('NormStabilizer, the last step alone', seq(nn.Sequencer(seq(nn.Linear(2, 3), nn.NormStabilizer())), nn.SelectTable(-1)), {torch.randn(2, 2), torch.randn(2, 2), torch.randn(2, 2)})
-- Dropout copies in evaluation; without probability it does so in training too, and both can be compared.
save('Dropout, its input is changed later', seq(nn.Tanh(), both(nn.Dropout(0), nn.MulConstant(3, true))), torch.randn(2, 3))
save('Dropout and View, their input is changed later', seq(nn.Linear(3, 4), both(seq(nn.Dropout(0), nn.View(2, 2)), nn.MulConstant(3, true))), torch.randn(2, 3))
save('Dropout, its output is changed', seq(nn.Tanh(), both(nn.Identity(), seq(nn.Dropout(0), nn.MulConstant(3, true)))), torch.randn(2, 3))
save('Dropout in place, its input goes elsewhere', seq(nn.Tanh(), both(nn.Identity(), seq(nn.Dropout(0, nil, true), nn.MulConstant(3, true)))), torch.randn(2, 3))
n = nn.Identity()() t = nn.Linear(3, 4)(n) local d = nn.Dropout(0)(t)
save('Dropout in a graph, its input is changed later', nn.gModule({n}, {nn.View(2, 2)(d), nn.AddConstant(1, true)(t), nn.Linear(4, 2)(d)}), torch.randn(2, 3))
-- Elements of a tensor that is taken as a list.
save('steps of a tensor, changed in place', seq(nn.Linear(3, 4), nn.Sequencer(seq(nn.ReLU(true), nn.Linear(4, 2)))), torch.randn(3, 3))
save('NarrowTable of a tensor, changed in place', seq(nn.Linear(3, 4), nn.NarrowTable(1, 2), nn.ParallelTable():add(nn.ReLU(true)):add(nn.Tanh()), nn.CAddTable()), torch.randn(3, 3))
torch.save(out, list)
