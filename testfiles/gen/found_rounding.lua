-- Layers that compute with numbers or sizes in a way of their own, as one list of records.
--   th found_rounding.lua OUT.t7
-- Adaptive max pooling, whose windows are computed in single precision; fractional pooling of volumes, which has time as
-- the last dimension; ceil modes that Lua loses when it reads the object; gradients of nn.Normalize with a large eps.
-- The models in ceil mode are as they were saved, and what is recorded is what they compute once they are loaded.
require 'nn'
torch.setdefaulttensortype('torch.DoubleTensor') torch.manualSeed(53) torch.setnumthreads(1)
local R, list = torch.random, {}
local function record(m, x)
  local saved, t = m, m:clone()
  t:training()
  local r = {model = saved, input = x, output = m:clone():forward(x:clone()):clone(), text = torch.type(m)}
  r.trainOutput = t:forward(x:clone()):clone()
  t:zeroGradParameters()
  r.gradOutput = torch.randn(r.output:size())
  r.gradInput = t:backward(x, r.gradOutput):clone()
  r.gradParameters = {}
  list[#list + 1] = r
end
for _, s in ipairs{{7, 5, 21, 25}, {7, 7, 42, 20}, {9, 1, 27, 5}, {10, 5, 45, 25}, {13, 2, 39, 3}, {14, 6, 49, 9}, {5, 19, 50, 19}, {7, 7, 7, 14}} do
  record(nn.SpatialAdaptiveMaxPooling(s[2], s[1]), torch.randn(1, 1, s[3], s[4]))
  record(nn.SpatialAdaptiveMaxPooling(s[1], s[2]), torch.randn(1, s[4], s[3]):mul(2):round()) -- equal numbers
end
for i = 1, 6 do
  local m = nn.VolumetricFractionalMaxPooling(2, 3, 2, R(1, 3), R(1, 3), R(2, 4)):fixPoolingRegions()
  if i > 3 then m = nn.VolumetricFractionalMaxPooling(3, 2, 2, torch.uniform(.2, .4), torch.uniform(.3, .5), torch.uniform(.4, .6)):fixPoolingRegions() end
  local x = i % 2 == 0 and torch.randn(2, 1, 8, 7, 9) or torch.randn(2, 7, 8, 9)
  m:forward(x)
  record(m, x)
end
for _, dilation in ipairs{1, 2} do
  record(nn.VolumetricDilatedMaxPooling(2, 2, 2, 2, 2, 2, 0, 0, 0, dilation, 1, dilation):ceil(), torch.randn(1, 1, 6, 7, 6))
  record(nn.VolumetricDilatedMaxPooling(2, 1, 2, 3, 2, 3, 0, 0, 0, dilation, 1, 1):ceil(), torch.randn(1, 7, 6, 7))
end
record(nn.VolumetricMaxPooling(2, 2, 2, 2, 2, 2):ceil(), torch.randn(1, 1, 5, 7, 6))
for _, p in ipairs{.5, 1, 1.5, 3, math.huge} do
  record(nn.Normalize(p, .5), torch.randn(3, 4))
  local x = torch.randn(4) x[2] = 0
  record(nn.Normalize(p), x)
end
torch.save(arg[1], list)
