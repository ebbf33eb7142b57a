-- Gradients where functions have none: at 0, at thresholds, of equal elements. What Lua Torch takes there.
--   th found_kinks.lua MODULES.t7 CRITERIONS.t7            (needs dpnn)
-- Modules are records like those of random_nets.lua; criterions have input, target, output and gradInput. Not here: `nn.Abs`, whose
-- gradient at 0 is 1 in Lua and 0 in PyTorch, and the L1 distances of equal numbers, for which Lua draws a sign.
require 'nn' require 'dpnn'
torch.setdefaulttensortype('torch.DoubleTensor') torch.manualSeed(24) torch.setnumthreads(1)
local modules, criterions = {}, {}
local function copy(x)
  if torch.isTensor(x) then return x:clone() end
  local t = {} for i, v in ipairs(x) do t[i] = copy(v) end return t
end
local function noise(x)
  if torch.isTensor(x) then return torch.randn(x:size()) end
  local t = {} for i, v in ipairs(x) do t[i] = noise(v) end return t
end
local function module(m, x)
  local e, t = m:clone(), m:clone()
  e:evaluate()
  m:clearState()
  local r = {model = m:clone(), input = copy(x), output = copy(e:forward(copy(x))), text = tostring(m), random = false}
  t:training() t:zeroGradParameters()
  r.trainOutput = copy(t:forward(copy(x)))
  r.gradOutput = noise(r.trainOutput)
  r.gradInput = copy(t:backward(copy(x), copy(r.gradOutput)))
  local _, g = t:parameters()
  r.gradParameters = {} for i, each in ipairs(g or {}) do r.gradParameters[i] = each:clone() end
  modules[#modules + 1] = r
end
local function criterion(c, x, y)
  local r = {module = c:clone(), input = copy(x), target = y, text = torch.type(c)}
  r.output = c:forward(copy(x), y)
  r.gradInput = copy(c:backward(copy(x), y))
  criterions[#criterions + 1] = r
end

-- Elementwise
local z = torch.Tensor{{0, -1, 1, .5}, {-.5, 6, 2, 0}}
for _, m in ipairs{
  nn.ReLU(), nn.ReLU6(), nn.HardTanh(), nn.HardTanh(-.5, .5), nn.Clamp(-1, 1), nn.Threshold(.5, .2), nn.Threshold(0, 0),
  nn.LeakyReLU(.3), nn.PReLU(), nn.PReLU(4), nn.ELU(2), nn.SoftShrink(.5), nn.HardShrink(.5), nn.SoftSign(), nn.SoftPlus(2), nn.Square(),
  nn.Power(1), nn.Power(2), nn.Power(3), nn.GradientReversal(), nn.CReLU and nn.Sequential():add(nn.CReLU(1)) or nn.Identity(),
  nn.Normalize(1), nn.Normalize(2), nn.Normalize(3), nn.Normalize(math.huge), nn.SoftMax(), nn.LogSigmoid(), nn.Clip and nn.Clip(-1, 1) or nn.Identity(),
} do module(m, z) end
module(nn.Sqrt(), torch.Tensor{{0, 1, 4}, {0, 0, 9}})
for _, m in ipairs{nn.Normalize(1), nn.Normalize(2), nn.Normalize(3), nn.Normalize(math.huge)} do module(m, torch.zeros(2, 3)) end
module(nn.Normalize(math.huge), torch.Tensor{{1, -1, 1}, {2, 2, -2}})

-- Equal elements
local t = torch.Tensor{{1, 1, 0, 1}, {2, 0, 2, 0}, {0, 0, 0, 0}}
for _, m in ipairs{nn.Max(1), nn.Max(2), nn.Min(1), nn.Min(2), nn.Max(1, 1), nn.Min(1, 1)} do module(m, t) end
for _, name in ipairs{'CMaxTable', 'CMinTable', 'CSubTable', 'CMulTable'} do module(nn[name](), {t, t:clone()}) end
module(nn.CMaxTable(), {t, t * 0, t:clone()})
local maxout = nn.Maxout(4, 3, 2)
for _, each in ipairs(maxout:parameters()) do each:zero() end
module(maxout, t)
local image = torch.Tensor(2, 2, 4, 4):random(0, 2)
for _, m in ipairs{
  nn.SpatialMaxPooling(2, 2), nn.SpatialMaxPooling(3, 3, 1, 1, 1, 1), nn.SpatialMaxPooling(3, 3, 2, 2):ceil(), nn.SpatialAdaptiveMaxPooling(3, 3),
  nn.SpatialDilatedMaxPooling(2, 2, 1, 1, 0, 0, 2, 2), nn.SpatialLPPooling(2, 2, 2, 2, 2, 2), nn.SpatialSubtractiveNormalization(2), nn.SpatialDivisiveNormalization(2),
  nn.SpatialContrastiveNormalization(2), nn.SpatialCrossMapLRN(3),
} do module(m, image) module(m, image * 0) end
module(nn.VolumetricMaxPooling(2, 2, 2), image:view(1, 2, 2, 4, 4)) module(nn.VolumetricMaxPooling(2, 2, 2, 1, 1, 1, 1, 1, 1), image:view(1, 2, 2, 4, 4))
module(nn.TemporalMaxPooling(2), t) module(nn.TemporalMaxPooling(2, 1), t)

-- Distances of equal and of zero vectors
local pair = {torch.Tensor{{1, 2}, {0, 0}, {0, 1}}, torch.Tensor{{1, 2}, {0, 0}, {0, 0}}}
for _, m in ipairs{
  nn.PairwiseDistance(2), nn.PairwiseDistance(3), nn.CosineDistance(), nn.DotProduct(),
} do module(m, pair) end
for _, m in ipairs{nn.Euclidean(3, 2), nn.WeightedEuclidean(3, 2), nn.Cosine(3, 2)} do
  local x = torch.Tensor{{0, 0, 0}, {1, 2, 3}}
  if m.weight then
    if torch.type(m) == 'nn.Cosine' then m.weight[1]:zero() else m.weight:select(2, 1):copy(x[2]) end
  end
  module(m, x)
end
for _, n in ipairs{3, 1} do
  module(nn.LayerNormalization(n), torch.randn(2, n))
end

-- Criterions
local x, y = torch.Tensor{{0, 1, -1, .5}, {2, 0, .5, -.5}}, torch.Tensor{{0, 0, -1, 1.5}, {1, 0, .5, .5}}
for _, c in ipairs{nn.AbsCriterion(), nn.MSECriterion(), nn.SmoothL1Criterion(), nn.L1Cost()} do criterion(c, x, y) end
local signs = torch.Tensor{1, -1, 1, -1}
for _, c in ipairs{nn.MarginCriterion(1), nn.MarginCriterion(.5), nn.SoftMarginCriterion(), nn.HingeEmbeddingCriterion(1)} do
  criterion(c, torch.Tensor{1, -1, 0, 1}, signs) criterion(c, torch.Tensor{.5, -.5, .5, 0}, signs)
end
criterion(nn.MarginRankingCriterion(1), {torch.Tensor{1, 0, 2, 0}, torch.Tensor{0, 1, 2, 0}}, signs)
criterion(nn.MarginRankingCriterion(0), {torch.Tensor{1, 0, 2, 0}, torch.Tensor{0, 1, 2, 0}}, signs)
criterion(nn.CosineEmbeddingCriterion(.5), {torch.Tensor{{1, 0}, {0, 0}, {1, 1}, {1, 0}}, torch.Tensor{{1, 0}, {0, 1}, {0, 0}, {1, 0}}}, signs)
local scores = torch.Tensor{{1, 0, 0}, {0, 0, 1}, {1, 1, 1}}
for p = 1, 2 do criterion(nn.MultiMarginCriterion(p), scores, torch.LongTensor{1, 3, 2}) end
criterion(nn.MultiLabelMarginCriterion(), scores, torch.LongTensor{{1, 0, 0}, {3, 1, 0}, {2, 0, 0}})
criterion(nn.MultiLabelSoftMarginCriterion(), scores, scores:clone())
criterion(nn.BCECriterion(), torch.Tensor{0, 1, .5, 1, 0}, torch.Tensor{0, 1, 1, 0, 1})
criterion(nn.DistKLDivCriterion(), torch.log(torch.Tensor{{.5, .5, .1}, {.2, .8, 1}}), torch.Tensor{{0, 1, 0}, {.2, .8, 0}})
criterion(nn.DistanceRatioCriterion(true), {torch.Tensor{0, 1, 2}, torch.Tensor{0, 1, 1}}, nil)
torch.save(arg[1], modules) torch.save(arg[2], criterions)
print(#modules .. ' modules, ' .. #criterions .. ' criterions')
