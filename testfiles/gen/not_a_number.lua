-- What layers of Lua Torch compute of NaN, which comparisons pass over, and of infinity.
--   th not_a_number.lua FILE.t7
-- A table by class: the module, the input, and the output in evaluation.
require 'nn' require 'rnn'
torch.setdefaulttensortype('torch.FloatTensor') torch.manualSeed(41) torch.setnumthreads(1)
local nan = 0 / 0
local row = torch.Tensor{nan, math.huge, -math.huge, -2, -.5, 0, .3, 1, 7, nan, 3, 25}:view(3, 4)
local image = torch.randn(1, 2, 4, 4)
image[1][1][1][1], image[1][1][2][4], image[1][2][4][3] = nan, nan, nan
image[1][2]:narrow(1, 1, 2):narrow(2, 1, 2):fill(nan)
local volume = torch.randn(1, 1, 2, 4, 4)
volume[1][1][1][1][1], volume[1][1][2][4][4] = nan, nan
local records = {}
local function record(module, input)
  module:evaluate()
  local output = module:forward(input):clone()
  records[torch.type(module)] = {model = module:clone():clearState(), input = input, output = output}
end
for _, module in ipairs{
  nn.ReLU(), nn.ReLU6(), nn.Threshold(.2, -1), nn.HardTanh(), nn.Clamp(-1, 2), nn.Clip(-1, 2), nn.HardShrink(.4), nn.SoftShrink(.4), nn.CReLU(1),
  nn.ELU(1.5), nn.LeakyReLU(.1), nn.RReLU(.1, .3), nn.PReLU(), nn.SoftPlus(), nn.SoftSign(), nn.LogSigmoid(), nn.Sigmoid(), nn.Tanh(),
  nn.TanhShrink(), nn.Abs(), nn.Sqrt(), nn.Square(), nn.Exp(), nn.Log(), nn.Power(2), nn.SoftMax(), nn.LogSoftMax(), nn.SoftMin(),
  nn.Max(1), nn.Min(2), nn.Mean(1), nn.Sum(2), nn.Normalize(2), nn.MulConstant(0), nn.Dropout(), nn.TemporalMaxPooling(2, 1),
} do record(module, row:clone()) end
for _, module in ipairs{
  nn.SpatialMaxPooling(2, 2, 2, 2), nn.SpatialDilatedMaxPooling(2, 2, 1, 1, 0, 0, 2, 2), nn.SpatialAdaptiveMaxPooling(2, 2),
  nn.SpatialAveragePooling(2, 2, 2, 2), nn.SpatialBatchNormalization(2), nn.SpatialLPPooling(2, 2, 2, 2),
} do record(module, image:clone()) end
record(nn.VolumetricMaxPooling(2, 2, 2), volume)
for _, module in ipairs{nn.CMaxTable(), nn.CMinTable(), nn.CMulTable(), nn.CAddTable()} do record(module, {row:clone(), row:t():contiguous():view(3, 4)}) end
torch.save(arg[1], records)
