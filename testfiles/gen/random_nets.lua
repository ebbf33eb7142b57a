-- Random networks and what Lua Torch computes with them, as one list of records.
--   th random_nets.lua KIND SEED COUNT OUT.t7 [INPUTS]    KIND: nn, graph, expr, rnn, lists   (the last two need dpnn and rnn)
-- A network grows layer by layer: each candidate is run on the value so far, and kept where Lua takes it.
-- A record: model, input, output (evaluation), and where the network is the same function in training: trainOutput,
-- gradOutput, gradInput, gradParameters; for recurrent ones also again: the output of a second call. With INPUTS, as many
-- further inputs, and the outputs of one module for them in turn: moreInputs, moreOutputs.
require 'nn' require 'nngraph'
local KIND, SEED, COUNT, OUT, INPUTS = arg[1] or 'nn', tonumber(arg[2] or 1), tonumber(arg[3] or 10), arg[4] or 'out.t7', tonumber(arg[5] or 0)
if KIND == 'rnn' or KIND == 'lists' then require 'dpnn' require 'rnn' end
torch.setdefaulttensortype('torch.DoubleTensor') torch.manualSeed(SEED) torch.setnumthreads(1)

local function int(a, b) return torch.random(a, b) end
local function chance(p) return torch.uniform() < p end
local function pick(list) return list[int(1, #list)] end
local function copy(v)
  if torch.isTensor(v) then return v:clone() end
  local t = {} for i, e in ipairs(v) do t[i] = copy(e) end return t
end
local function leaves(v, out)
  out = out or {}
  if torch.isTensor(v) then out[#out + 1] = v else for _, e in ipairs(v) do leaves(e, out) end end
  return out
end
local function noise(v)
  if torch.isTensor(v) then return v.new():resize(v:size()):normal() end
  local t = {} for i, e in ipairs(v) do t[i] = noise(e) end return t
end
local function good(v)
  local total, any = 0, false
  if not torch.isTensor(v) and type(v) ~= 'table' then return false end
  for _, t in ipairs(leaves(v)) do
    any = true
    if t:dim() == 0 or t:type() ~= 'torch.DoubleTensor' then return false end
    total = total + t:nElement()
    if t:ne(t):any() or t:clone():abs():max() > 1e4 then return false end
  end
  return any and total <= 3000
end
local random_layers, kinked = false, false -- set where training differs from call to call

-- Transfer functions and other layers for tensors of any shape
local pointwise = {
  function() return nn.ReLU(chance(.4)) end, function() return nn.Tanh() end, function() return nn.Sigmoid() end,
  function() return nn.ELU(torch.uniform(.5, 2), chance(.3)) end, function() return nn.LeakyReLU(torch.uniform(.01, .5), chance(.3)) end,
  function() return nn.HardTanh(-torch.uniform(.1, 1), torch.uniform(.1, 1), chance(.3)) end, function() return nn.ReLU6(chance(.3)) end,
  function() return nn.Threshold(torch.uniform(-.5, .5), torch.uniform(-.5, .5), false) end, function() return nn.Clamp(-.5, torch.uniform(.1, 1)) end,
  function() return nn.HardShrink(torch.uniform(.1, .6)) end, function() return nn.SoftShrink(torch.uniform(.1, .6)) end,
  function() return nn.SoftPlus(torch.uniform(.5, 3)) end, function() return nn.SoftSign() end, function() return nn.LogSigmoid() end,
  function() return nn.TanhShrink() end, function() return nn.Abs() end, function() return nn.Exp() end, function() return nn.Square() end,
  function() return nn.Power(pick{1, 2, 3}) end, function() return nn.AddConstant(torch.normal(), chance(.3)) end,
  function() return nn.MulConstant(torch.normal(), chance(.3)) end, function() return nn.Mul() end, function() return nn.Identity() end,
  function() return nn.Sequential():add(nn.Abs()):add(nn.Sqrt()) end, function() return nn.Contiguous() end, function() return nn.Copy('torch.DoubleTensor', 'torch.DoubleTensor') end,
  function() return nn.Dropout(0, false, true) end, function() return nn.GradientReversal(.5) end, function() return nn.PReLU() end,
  function() return nn.SoftMax() end, function() return nn.LogSoftMax() end, function() return nn.SoftMin() end,
  function() random_layers = true return nn.Dropout(.5) end, function() random_layers = true return nn.RReLU(1/8, 1/3, chance(.2)) end,
  function() return nn.Sequential():add(nn.Square()):add(nn.AddConstant(1)):add(nn.Log()) end,
}
local expressions = {
  function() return nn.AddConstant(torch.normal(), chance(.2)) end, function() return nn.MulConstant(torch.normal(), chance(.2)) end,
  function() return nn.Square() end, function() return nn.Abs() end, function() return nn.Power(pick{1, 2, 3}) end, function() return nn.Tanh() end,
  function() return nn.Sigmoid() end, function() return nn.ReLU() end, function() return nn.Identity() end, function() return nn.Mul() end,
  function() return nn.SoftMax() end, function() return nn.LogSoftMax() end, function() return nn.SoftMin() end, function() return nn.Exp() end,
}
local function factor(n) -- a random way to write n as a product of two
  local ways = {} for a = 1, n do if n % a == 0 then ways[#ways + 1] = {a, n / a} end end
  return unpack(pick(ways))
end

local grow -- (value, batched, steps) -> module, value

-- Layers that move elements
local function moving(v, b)
  local d, f = v:dim(), b and 1 or 0
  local n = v:nElement() / (b and v:size(1) or 1)
  local some = int(1, d)
  local own = math.max(1, int(f + 1, math.max(d, f + 1)))
  local p, q = factor(n)
  return pick{
    function() return nn.View(-1):setNumInputDims(d - f) end, function() return nn.View(-1, p, q) end, function() return nn.View(p, q) end,
    function() return nn.View(n) end, function() return nn.View(-1, n) end, function() return nn.Reshape(p, q) end, function() return nn.Reshape(p, q, b) end,
    function() return nn.Reshape(n) end, function() return nn.Reshape(n, true) end, function() return nn.Reshape(n, false) end, function() return nn.Reshape(v:size(1), n, false) end,
    function() return nn.View(p, q):setNumInputDims(d - f) end, function() return nn.Squeeze() end, function() return nn.Squeeze(some) end,
    function() return nn.Squeeze(pick{1, math.max(1, d - f)}, d - f) end, function() return nn.Unsqueeze(int(1, d + 1)) end,
    function() return nn.Unsqueeze(int(1, d - f + 1), d - f) end, function() return nn.Transpose({some, int(1, d)}) end,
    function() return nn.Transpose({some, int(1, d)}, {int(1, d), int(1, d)}) end, function() return nn.Transpose({int(1, math.max(1, d - f)), int(1, math.max(1, d - f))}):setNumInputDims(d - f) end,
    function() return nn.Narrow(own, int(1, v:size(math.min(own, d))), 1) end, function() return nn.Narrow(own, 1, -1) end, function() return nn.Narrow(-1, 1, int(1, v:size(d))) end,
    function() return nn.Select(own, int(1, v:size(math.min(own, d)))) end, function() return nn.Select(-1, -1) end,
    function() return nn.Replicate(int(1, 3), int(1, d + 1)) end, function() return nn.Replicate(2, int(1, d - f + 1), d - f) end,
    function() return nn.Padding(own, int(-2, 2), d, torch.normal()) end, function() return nn.Padding(math.max(1, own - f), int(-2, 2), d - f, 0, int(1, 2)) end,
    function() return nn.Sum(some) end, function() return nn.Sum(math.max(1, own - f), d - f) end, function() return nn.Sum(some, -1, chance(.5), chance(.5)) end,
    function() return nn.Mean(some) end, function() return nn.Mean(-1) end, function() return nn.Max(some) end, function() return nn.Min(some) end,
    function() return nn.Max(math.max(1, own - f), d - f) end, function() return nn.Min(-1) end,
  }()
end

local function learned(v, b) -- layers with weights, and those for one kind of shape
  local d = v:dim()
  local last = v:size(d)
  local k, s, p = int(1, 3), int(1, 2), int(0, 1)
  local kh, sh, ph = int(1, 3), int(1, 2), int(0, 1)
  local out = int(1, 4)
  local list = {}
  local function may(f) list[#list + 1] = f end
  may(function() return nn.CMul(1, unpack(v:size():totable(), 2)) end)
  may(function() return nn.CAdd(1, unpack(v:size():totable(), 2)) end)
  may(function() local sizes = v:size():totable() if b then table.remove(sizes, 1) end return nn.CMul(unpack(sizes)) end)
  may(function() local sizes = v:size():totable() if b then table.remove(sizes, 1) end return nn.CAdd(unpack(sizes)) end)
  may(function() return nn.Add(v:nElement() / (b and v:size(1) or 1)) end)
  may(function() return nn.Add(1, true) end)
  if d <= 2 then
    may(function() return nn.Linear(last, out, chance(.8)) end) may(function() return nn.Linear(last, out) end) may(function() return nn.Linear(last, last) end)
    may(function() return nn.LinearWeightNorm(last, out, chance(.8)) end) may(function() return nn.BatchNormalization(last, nil, nil, chance(.7)) end)
    may(function() return nn.Cosine(last, out) end) may(function() return nn.Euclidean(last, out) end) may(function() return nn.WeightedEuclidean(last, out) end)
    may(function() return nn.Normalize(pick{1, 2, 3, math.huge}) end) may(function() return nn.Maxout(last, out, 2) end)
    may(function() return nn.PReLU(last) end) may(function() return nn.WeightNorm(nn.Linear(last, out), 1) end) may(function() return nn.LayerNormalization(last) end)
    may(function() return nn.PartialLinear(last, out + 1) end) may(function() return nn.Highway and nn.Highway(last) or nn.Linear(last, 2) end)
    may(function() return nn.Sequential():add(nn.Linear(last, 2 * out)):add(nn.GatedLinearUnit()) end) may(function() return nn.CReLU(1, chance(.3)) end)
  end
  if d == 3 then
    may(function() return nn.TemporalConvolution(last, out, k, s) end) may(function() return nn.TemporalConvolution(last, out, k, 1) end) may(function() return nn.TemporalMaxPooling(k, s) end)
    may(function() return nn.TemporalSubSampling(last, k, s) end) may(function() return nn.TemporalDynamicKMaxPooling(int(1, 2)) end)
    may(function() return nn.TemporalRowConvolution(last, k, 1) end) may(function() return nn.Bottle(nn.Linear(last, out)) end)
    may(function() return nn.WeightNorm(nn.TemporalConvolution(last, out, k, 1), 1) end) may(function() return nn.TemporalRowConvolution(v:size(2), k, 1, true) end)
  end
  if d == 2 then may(function() return nn.TemporalConvolution(last, out, k, 1) end) may(function() return nn.TemporalMaxPooling(k, s) end) may(function() return nn.TemporalSubSampling(last, k, s) end) end
  if d == 3 or d == 4 then
    local c = v:size(d - 2)
    local h, w = v:size(d - 1), v:size(d)
    may(function() return nn.SpatialConvolution(c, out, k, kh, s, sh, p, ph) end) may(function() return nn.SpatialConvolution(c, out, 3, 3, 1, 1, 1, 1) end)
    may(function() return nn.SpatialConvolution(c, out, 1, 1) end) may(function() return nn.SpatialConvolution(c, out, k, kh):noBias() end)
    may(function() return nn.SpatialConvolutionMM(c, out, k, kh, s, sh, p, ph) end) may(function() return nn.SpatialDilatedConvolution(c, out, k, kh, s, sh, p, ph, int(1, 2), int(1, 2)) end)
    may(function() return nn.SpatialFullConvolution(c, out, k, kh, s, sh, math.min(p, k - 1), math.min(ph, kh - 1), int(0, s - 1), int(0, sh - 1)) end)
    may(function() return nn.SpatialConvolutionLocal(c, out, w, h, k, kh, s, sh, p, ph) end) may(function() return nn.SpatialDepthWiseConvolution(c, int(1, 2), k, kh, s, sh, p, ph) end)
    may(function() return nn.SpatialConvolutionMap(nn.tables.random(c, out, 1), k, kh, s, sh) end) may(function() return nn.SpatialFullConvolutionMap(nn.tables.full(c, out), k, kh, s, sh) end)
    may(function() local m = nn.SpatialMaxPooling(k, kh, math.min(s, k), math.min(sh, kh), math.min(p, math.floor(k / 2)), math.min(ph, math.floor(kh / 2))) if chance(.4) then m:ceil() end return m end)
    may(function() local m = nn.SpatialAveragePooling(k, kh, math.min(s, k), math.min(sh, kh), math.min(p, math.floor(k / 2)), math.min(ph, math.floor(kh / 2))) if chance(.4) then m:ceil() end if chance(.4) then m:setCountExcludePad() end return m end)
    may(function() return nn.SpatialDilatedMaxPooling(k, kh, math.min(s, k), math.min(sh, kh), 0, 0, 2, 1) end) may(function() return nn.SpatialAdaptiveMaxPooling(int(1, 3), int(1, 3)) end)
    may(function() return nn.SpatialAdaptiveAveragePooling(int(1, 3), int(1, 3)) end) may(function() return nn.SpatialLPPooling(c, 2, k, kh, s, sh) end)
    may(function() return nn.SpatialSubSampling(c, k, kh, s, sh) end) may(function() return nn.SpatialBatchNormalization(c, nil, nil, chance(.7)) end)
    may(function() return nn.SpatialCrossMapLRN(pick{1, 3, 5}, torch.uniform(.1, 1), .75, 1) end) may(function() return nn.SpatialContrastiveNormalization(c, torch.ones(3)) end)
    may(function() return nn.SpatialDivisiveNormalization(c, torch.ones(3)) end) may(function() return nn.SpatialSubtractiveNormalization(c, torch.ones(3, 3)) end)
    may(function() return nn.SpatialUpSamplingNearest(2) end) may(function() return nn.SpatialUpSamplingBilinear(2) end) may(function() return nn.SpatialZeroPadding(int(-1, 2), int(-1, 2), int(0, 2), int(0, 2)) end)
    may(function() return nn.SpatialReflectionPadding(int(0, 1), int(0, 1), int(0, 1), int(0, 1)) end) may(function() return nn.SpatialReplicationPadding(int(0, 2), int(0, 2), int(0, 1), int(0, 1)) end)
    may(function() return nn.SpatialSoftMax() end) may(function() return nn.SpatialLogSoftMax() end) may(function() return nn.PReLU(c) end) may(function() return nn.PixelShuffle(2) end)
    may(function() return nn.SpatialLogSoftMax() end) may(function() return nn.SpatialDropout(0) end) may(function() return nn.WeightNorm(nn.SpatialConvolution(c, out, k, kh)) end)
    may(function() return nn.DepthConcat(d == 4 and 2 or 1):add(nn.SpatialConvolution(c, 1, 1, 1)):add(nn.SpatialConvolution(c, 2, 3, 3, 1, 1)) end)
  end
  if d == 4 or d == 5 then
    local c, kt, st, pt = v:size(d - 3), int(1, 2), int(1, 2), int(0, 1)
    may(function() return nn.VolumetricConvolution(c, out, kt, k, kh, st, s, sh, pt, p, ph) end) may(function() return nn.VolumetricConvolution(c, out, 1, 1, 1) end)
    may(function() return nn.VolumetricFullConvolution(c, out, kt, k, kh, st, s, sh) end) may(function() return nn.VolumetricDilatedConvolution(c, out, kt, k, kh, 1, 1, 1, pt, p, ph, 1, 2, 1) end)
    may(function() return nn.VolumetricMaxPooling(kt, k, kh, math.min(st, kt), math.min(s, k), math.min(sh, kh)) end) may(function() return nn.VolumetricAveragePooling(kt, k, kh, kt, k, kh) end)
    may(function() return nn.VolumetricBatchNormalization(c) end) may(function() return nn.VolumetricReplicationPadding(1, 0, 1, 1, 0, 1) end) may(function() return nn.VolumetricDropout(0) end)
  end
  local m = pick(list)()
  if m.running_mean then m.running_mean:normal() m.running_var:uniform(.5, 2) end
  if m.weight and torch.typename(m):find('BatchNorm') then m.weight:uniform(.5, 1.5) m.bias:normal() end
  if torch.typename(m) == 'nn.PReLU' or torch.typename(m) == 'nn.Mul' then m.weight:uniform(.1, .9) end
  return m
end

local function combine(v) -- from a table
  local one = v[1]
  local d = torch.isTensor(one) and one:dim() or 2
  return pick{
    function() return nn.CAddTable(chance(.3)) end, function() return nn.CAddTable() end, function() return nn.CMulTable() end, function() return nn.CSubTable() end,
    function() return nn.CMaxTable() end, function() return nn.CMinTable() end, function() return nn.JoinTable(int(1, d)) end, function() return nn.JoinTable(math.max(1, d - 1), d - 1) end,
    function() return nn.JoinTable(-1) end, function() return nn.SelectTable(pick{1, 2, -1}) end, function() return nn.NarrowTable(int(1, 2), 1) end, function() return nn.NarrowTable(1, 2) end,
    function() return nn.FlattenTable() end, function() return nn.DotProduct() end, function() return nn.CosineDistance() end, function() return nn.PairwiseDistance(pick{1, 2}) end,
    function() return nn.MM(chance(.5), chance(.5)) end, function() return nn.MV(chance(.5)) end, function() return nn.MixtureTable() end, function() return nn.Bilinear(v[1]:size(d), v[2]:size(d), int(1, 3)) end,
    function() return nn.Sequential():add(nn.MapTable(nn.Sequential():add(nn.Abs()):add(nn.AddConstant(1)))):add(nn.CDivTable()) end, function() return nn.ZipTable() end,
    function() local m = nn.ParallelTable() for i = 1, #v do m:add(pick(pointwise)()) end return m end, function() return nn.MapTable(pick(pointwise)()) end,
    function() return nn.MapTable(torch.isTensor(v[1]) and nn.Linear(v[1]:size(v[1]:dim()), 2) or nn.Identity()) end,
    function() local m = nn.ParallelTable() for i = 1, #v do m:add((grow(v[i], true, int(1, 2)))) end return m end,
    function() return nn.ConcatTable():add(nn.SelectTable(1)):add(nn.SelectTable(-1)) end, function() return nn.CAddTable() end, function() return nn.JoinTable(int(1, d)) end,
  }()
end

local function branch(v, b) -- one value to several
  local d = torch.isTensor(v) and v:dim() or 1
  return pick{
    function() local m = nn.ConcatTable() for _ = 1, int(1, 3) do m:add((grow(v, b, int(1, 2)))) end return m end,
    function() return nn.ConcatTable():add(nn.Identity()):add((grow(v, b, 1))) end,
    function() local m = nn.Concat(int(1, d)) for _ = 1, int(1, 3) do m:add((grow(v, b, 1))) end return m end,
    function() local m = nn.Parallel(d, int(1, math.max(1, d - 1))) for i = 1, v:size(d) do m:add((grow(v:select(d, 1):clone(), b, 1))) end return m end,
    function() return nn.SplitTable(int(1, d)) end, function() return nn.SplitTable(math.max(1, d - 1), d - 1) end, function() return nn.SplitTable(-1) end,
    function() return nn.Sequential():add(nn.ConcatTable():add(pick(pointwise)()):add(nn.Identity())):add(nn.CAddTable(chance(.5))) end,
    function() local s = nn.Linear(v:size(d), 2) return nn.ConcatTable():add(s):add(s:clone('weight', 'bias', 'gradWeight', 'gradBias')) end,
    function() local s = nn.Linear(v:size(d), 2) local t = nn.Linear(v:size(d), 2) t.weight = s.weight t.gradWeight = s.gradWeight return nn.ConcatTable():add(s):add(t) end,
    function() local s = nn.Linear(v:size(d), v:size(d)) return nn.Sequential():add(s):add(nn.Tanh()):add(s:clone('weight', 'bias', 'gradWeight', 'gradBias')) end,
  }()
end

local function candidate(v, b)
  if not torch.isTensor(v) then return combine(v) end
  local r = torch.uniform()
  if KIND == 'expr' then
    if r < .45 then return pick(expressions)() elseif r < .75 then return learned(v, b) elseif r < .9 then return moving(v, b) else return branch(v, b) end
  end
  if r < .3 then return pick(pointwise)() elseif r < .65 then return learned(v, b) elseif r < .85 then return moving(v, b) else return branch(v, b) end
end

-- Lua copies by number of elements and reads behind the ends of memory; networks that mean something do neither.
local function sound(m, v)
  local name = torch.typename(m)
  local function alike(list, except)
    for _, t in ipairs(list) do
      if not torch.isTensor(t) or t:dim() ~= list[1]:dim() then return false end
      for d = 1, t:dim() do if d ~= except and t:size(d) ~= list[1]:size(d) then return false end end
    end
    return true
  end
  if name == 'nn.JoinTable' then
    local d = torch.isTensor(v[1]) and m:_getPositiveDimension(v)
    if not d or not alike(v, d) then return false end
  end
  if name == 'nn.DotProduct' or name == 'nn.CosineDistance' or name == 'nn.PairwiseDistance' then return #v == 2 and alike(v) and v[1]:dim() <= 2 end
  if name == 'nn.Squeeze' and torch.isTensor(v) and v:nElement() == 1 then return false end -- returns memory that nobody wrote
  if name == 'nn.Abs' and torch.isTensor(v) and v:eq(0):sum() > 0 then return false end -- whose gradient at 0 is 1 here, and 0 in PyTorch
  if name == 'nn.ZipTable' then for _, t in ipairs(v) do if torch.isTensor(t) or #t ~= #v[1] then return false end end end
  if name == 'nn.MixtureTable' then return torch.isTensor(v[1]) and v[1]:dim() <= 2 and torch.isTensor(v[2]) == false and alike(v[2]) end
  if name == 'nn.Concat' or name == 'nn.Parallel' then
    local outs = {} for i, c in ipairs(m.modules) do outs[i] = c.output end
    if not alike(outs, name == 'nn.Concat' and m.dimension or m.outputDimension) then return false end
  end
  if name:find('Convolution') and m.kW and torch.isTensor(v) and not name:find('Full') and not name:find('Temporal') then
    local d = v:dim()
    local function fits(size, k, pad, dilation) return size + 2 * (pad or 0) >= (dilation or 1) * (k - 1) + 1 end
    if not fits(v:size(d), m.kW, m.padW, m.dilationW) or not fits(v:size(d - 1), m.kH, m.padH, m.dilationH) then return false end
    if name:find('DepthWise') and not (fits(v:size(d), m.kH, m.padH) and fits(v:size(d - 1), m.kW, m.padW)) then return false end -- takes h for w
    if m.kT and not fits(v:size(d - 2), m.kT, m.padT, m.dilationT) then return false end
  end
  if name:find('DepthWise') and ((v:size(v:dim()) + 2 * m.padW - m.kH) % m.dW > 0 or (v:size(v:dim() - 1) + 2 * m.padH - m.kW) % m.dH > 0
    or (v:size(v:dim()) + 2 * m.padW - m.kW) % m.dW > 0 or (v:size(v:dim() - 1) + 2 * m.padH - m.kH) % m.dH > 0) then return false end -- wrong gradients
  if name == 'nn.SpatialConvolutionMap' and ((v:size(v:dim()) - m.kW) % m.dW > 0 or (v:size(v:dim() - 1) - m.kH) % m.dH > 0) then return false end -- wrong gradients
  if name == 'nn.SpatialReflectionPadding' then return math.max(m.pad_l, m.pad_r) < v:size(v:dim()) and math.max(m.pad_t, m.pad_b) < v:size(v:dim() - 1) end
  if name == 'nn.SpatialUpSamplingBilinear' then return math.max(v:size(v:dim()), v:size(v:dim() - 1)) <= 40 end -- places of elements in single precision
  if name:find('BatchNormalization') and v:size(1) == 1 then random_layers = true end -- today's nn takes the running statistics then
  for _, c in ipairs(m.modules or {}) do
    if name ~= 'nn.Sequential' and name ~= 'nn.Concat' and name ~= 'nn.ConcatTable' then break end
    if v and not sound(c, v) then return false end
    if name == 'nn.Sequential' then v = c.output end
  end
  return true
end

-- A layer that Lua takes, and its output; nil where none was found
local function try(v, b, make)
  for _ = 1, 12 do
    local before = random_layers
    local ok, m = pcall(make or candidate, v, b)
    if ok and m then
      local fine, out = pcall(function() local e = m:clone() e:evaluate() local a = copy(e:forward(copy(v)))        
        assert(sound(e, v))
        local t = m:clone() t:training() assert(good(copy(t:forward(copy(v))))) return a end)
      if fine and good(out) then return m, out end
    end
    random_layers = before
  end
end

function grow(v, b, steps)
  local net = nn.Sequential()
  for _ = 1, steps do
    local m, out = try(v, b)
    if m then
      if torch.isTensor(v) and torch.isTensor(out) and b and out:dim() == 1 then b = false end
      net:add(m) v = out
    end
  end
  if #net.modules == 0 then return nn.Identity(), v end
  if #net.modules == 1 and chance(.7) then return net.modules[1], v end
  return net, v
end

local function start()
  local n = pick{1, 2, 2, 3}
  local sizes = pick{{int(1, 5)}, {n, int(1, 5)}, {n, int(2, 5)}, {n, int(1, 6), int(1, 5)}, {int(1, 3), int(2, 7), int(2, 7)}, {n, int(1, 4), int(3, 7), int(3, 7)},
    {n, int(1, 3), int(3, 7), int(3, 7)}, {n, int(1, 2), int(2, 4), int(2, 5), int(2, 5)}}
  return torch.randn(unpack(sizes)), #sizes == 2 or #sizes >= 4 or (#sizes == 3 and chance(.6))
end

local function graph()
  local inputs, nodes = {}, {}
  for i = 1, pick{1, 1, 1, 2, 2, 3} do
    local v, b
    if i == 1 or chance(.4) then v, b = start() else v, b = torch.randn(nodes[1].value:size()), nodes[1].batched end
    local node = nn.Identity()()
    inputs[i] = node nodes[i] = {node = node, value = v, batched = b, used = 0}
  end
  local x = {} for i, e in ipairs(nodes) do x[i] = e.value end
  for _ = 1, int(2, 8) do
    local a = chance(.6) and nodes[#nodes] or pick(nodes)
    if chance(.35) and #nodes > 1 then
      local others = {a} for _ = 1, pick{1, 1, 1, 2} do local e, new = pick(nodes), true for _, o in ipairs(others) do new = new and o ~= e end if new then others[#others + 1] = e end end
      local values, from = {}, {} for i, e in ipairs(others) do values[i] = e.value from[i] = e.node end
      local m, out = try(values, true, combine)
      if m then for _, e in ipairs(others) do e.used = e.used + 1 end nodes[#nodes + 1] = {node = m(from), value = out, batched = true, used = 0} end
    else
      local m, out = try(a.value, a.batched)
      if m then
        a.used = a.used + 1
        local node = m(a.node)
        if not torch.isTensor(out) and chance(.5) then
          local parts = {node:split(#out)}
          for i, part in ipairs(parts) do nodes[#nodes + 1] = {node = part, value = out[i], batched = a.batched, used = #parts == 1 and 0 or 0} end
        else nodes[#nodes + 1] = {node = node, value = out, batched = a.batched, used = 0} end
      end
    end
  end
  local outs = {} for _, e in ipairs(nodes) do if e.used == 0 then outs[#outs + 1] = e.node end end
  return nn.gModule(inputs, outs), #x == 1 and x[1] or x
end

local function recurrent()
  local n, f, t = int(1, 3), int(1, 4), int(2, 4)
  local function cell(i, o)
    return pick{
      function() nn.FastLSTM.usenngraph = false nn.FastLSTM.bn = false return nn.FastLSTM(i, o) end, function() return nn.LSTM(i, o) end, function() return nn.GRU(i, o) end,
      function() return nn.LSTM(i, o, nil, false) end, function() return nn.Recurrent(o, nn.Linear(i, o), nn.Linear(o, o), nn[pick{'Tanh', 'Sigmoid'}](), 9) end,
      function() return nn.Recurrence(nn.Sequential():add(nn.ParallelTable():add(nn.Linear(i, o)):add(nn.Linear(o, o))):add(nn.CAddTable()):add(nn.Tanh()), o, 1) end,
      function() return nn.Recursor(nn.Sequential():add(nn.Linear(i, o)):add(nn.Tanh())) end, function() return nn.MuFuRu and nn.MuFuRu(i, o) or nn.GRU(i, o) end,
      function() return nn.Sequential():add(nn.LSTM(i, 3)):add(nn.Linear(3, o)):add(nn.Tanh()) end, function() return nn.Linear(i, o) end,
      function() return nn.MaskZero(nn.LSTM(i, o), 1) end, function() return nn.Sequential():add(nn.GRU(i, o)):add(nn.NormStabilizer()) end,
    }()
  end
  local function seq(i, o)
    return pick{
      function() local m = nn.Sequencer(cell(i, o)) if chance(.4) then m:remember(pick{'both', 'eval', 'train', 'neither'}) end return m end,
      function() return nn.Sequencer(cell(i, o)) end,
      function() return nn.BiSequencer(cell(i, o), cell(i, o)) end, function() return nn.BiSequencer(nn.LSTM(i, o)) end, function() return nn.BiSequencer(nn.GRU(i, o), nn.GRU(i, o), nn.CAddTable()) end,
    }()
  end
  local x, m = {}, nn.Sequential()
  if chance(.35) then
    x = torch.randn(t, n, f)
    for _ = 1, int(1, 2) do
      local o = int(1, 4)
      local step = pick{
        function() local l = nn.SeqLSTM(f, o) if chance(.3) then l:remember(pick{'both', 'eval', 'neither'}) end l.maskzero = chance(.2) return l, o end, function() return nn.SeqGRU(f, o), o end,
        function() return nn.SeqBRNN(f, f), f end, function() return nn.Sequencer(cell(f, o)), o end, function() return nn.SeqLSTMP and nn.SeqLSTMP(f, o + 1, o) or nn.SeqLSTM(f, o), o end,
      }
      local l, o2 = step() m:add(l) f = o2
    end
    if chance(.4) then m:add(pick{nn.Select(1, -1), nn.Tanh(), nn.Mean(1), nn.SeqReverseSequence and nn.SeqReverseSequence(1) or nn.Tanh()}) end
    if chance(.2) then x[1][1]:zero() end
  else
    for i = 1, t do x[i] = chance(.85) and torch.randn(n, f) or torch.randn(n, f):fill(chance(.3) and 0 or .5) end
    for _ = 1, int(1, 3) do local o = int(1, 4) m:add(seq(f, o)) local e = m:clone() e:evaluate() local out = e:forward(copy(x)) f = out[1]:size(out[1]:dim()) end
    if chance(.5) then m:add(pick{nn.SelectTable(-1), nn.JoinTable(2), nn.CAddTable(), nn.SelectTable(1), nn.ReverseTable and nn.ReverseTable() or nn.Identity()}) end
    if chance(.3) then m = nn.Sequential():add(m):add(pick{nn.Identity(), nn.FlattenTable()}) end
  end
  if chance(.15) then m = nn.Repeater(cell(f, f), 3) x = torch.randn(n, f) end
  return m, x
end

-- Lists in every order: what makes them, what takes them, and what passes them on, inside one another
local depth = 0
local listed -- (value, steps) -> module, value
local width = 3 -- every tensor is (n, 3), as far as possible, so that lists can be joined and added
local function deeper(f, ...) depth = depth + 1 local a, b = f(...) depth = depth - 1 return a, b end
local function inner(v) -- one module for a value, mostly small
  if depth >= 4 or chance(.4) then
    if not torch.isTensor(v) then return nn.Identity() end
    return pick{nn.Tanh, nn.Abs, nn.Identity, nn.LeakyReLU, nn.Sigmoid, function() return nn.Linear(v:size(v:dim()), width) end}()
  end
  return (deeper(listed, v, int(1, 2)))
end
local function cell(v)
  local i = v:size(v:dim())
  return pick{
    function() return nn.Linear(i, width) end, function() return nn.LSTM(i, width) end, function() return nn.GRU(i, width) end,
    function() nn.FastLSTM.usenngraph = false return nn.FastLSTM(i, width) end, function() return nn.Recursor(nn.Sequential():add(nn.Linear(i, width)):add(nn.Tanh())) end,
    function() return nn.Recurrent(width, nn.Linear(i, width), nn.Linear(width, width), nn.Sigmoid(), 9) end,
    function() return nn.Recurrence(nn.Sequential():add(nn.ParallelTable():add(nn.Linear(i, width)):add(nn.Linear(width, width))):add(nn.CAddTable()), width, 1) end,
    function() return nn.Sequential():add(nn.LSTM(i, width)):add(nn.Tanh()) end,
  }()
end
local function few_outputs(v) -- a graph of several outputs
  local i = nn.Identity()()
  local first = torch.isTensor(v) and i or nn.SelectTable(int(1, #v))(i)
  local outs = {inner(torch.isTensor(v) and v or v[first.data.module.index])(first)}
  for _ = 1, int(1, 2) do outs[#outs + 1] = chance(.5) and inner(v)(i) or nn.Identity()(pick(outs)) end
  return nn.gModule({i}, outs)
end
local function listing(v) -- from a tensor
  return pick{
    function() local m = nn.ConcatTable() for _ = 1, int(1, 3) do m:add(inner(v)) end return m end, function() return nn.SplitTable(1) end, function() return nn.SplitTable(v:dim()) end,
    function() return few_outputs(v) end, function() return nn.Repeater(cell(v), int(1, 3)) end, function() return nn.Sequential():add(nn.LeakyReLU()):add(few_outputs(v)) end,
    function() local m = nn.ConcatTable() for _ = 1, int(2, 3) do m:add(nn.Linear(v:size(v:dim()), width)) end return m end,
    function() return nn.Linear(v:size(v:dim()), width) end, function() return pick{nn.Tanh, nn.LeakyReLU, nn.Identity, nn.Abs, nn.Mul, nn.SoftMax}() end,
    function() return nn.Recursor(nn.Linear(v:size(v:dim()), width)) end, function() return nn.ReLU(true) end,
    function() return nn.Concat(v:dim()):add(inner(v)):add(inner(v)) end, function() return nn.Decorator(inner(v)) end,
  }()
end
local function listed_from(v) -- from a list
  local one, n = v[1], #v
  local d = torch.isTensor(one) and one:dim() or 2
  local options = {
    function() return nn.FlattenTable() end, function() return nn.FlattenTable() end, function() return nn.FlattenTable() end,
    function() return nn.SelectTable(int(1, n)) end, function() return nn.SelectTable(-int(1, n)) end, function() return nn.NarrowTable(int(1, n), int(1, n)) end,
    function() return nn.JoinTable(int(1, d)) end, function() return nn.JoinTable(1, d - 1) end, function() return nn.CAddTable() end, function() return nn.CAddTable(true) end, function() return nn.CMulTable() end,
    function() return pick{nn.CMaxTable, nn.CMinTable, nn.CSubTable}() end, function() return nn.ReverseTable() end, function() return nn.ZipTable() end, function() return nn.ZipTableOneToMany() end,
    function() local m = nn.ParallelTable() for i = 1, n do m:add(inner(v[i])) end return m end, function() local m = nn.ParallelTable() for i = 1, n do m:add(inner(v[i])) end return m end,
    function() return nn.MapTable(inner(one)) end, function() local m = nn.MapTable(inner(one), chance(.4)) m:resize(int(1, n + 1)) for i = 1, #m.modules do m.modules[i]:reset() end return m end,
    function() return nn.MapTable(torch.isTensor(one) and nn.Linear(one:size(d), width) or nn.Identity()) end,
    function() local m = nn.Sequencer(torch.isTensor(one) and cell(one) or inner(one)) if chance(.3) then m:remember(pick{'both', 'eval', 'train'}) end return m end,
    function() return nn.Sequencer(inner(one)) end, function() return nn.BiSequencer(cell(one), cell(one), pick{nn.CAddTable(), nn.CMulTable(), nn.JoinTable(1, 1), nn.Identity(), nn.FlattenTable()}) end,
    function() local m = nn.ConcatTable() for _ = 1, int(1, 3) do m:add(chance(.3) and nn.SelectTable(int(1, n)) or inner(v)) end return m end, function() return few_outputs(v) end,
    function() return nn.ConcatTable():add(nn.Identity()):add(nn.FlattenTable()) end, function() return nn.NaN(inner(v)) end, function() return nn.Decorator(inner(v)) end, function() return nn.DontCast(inner(v)) end,
    function() return nn.Recursor(inner(v)) end, function() return nn.Sequential():add(inner(v)):add(nn.Identity()) end, function() return nn.MixtureTable() end, function() return nn.DotProduct() end,
    function() return pick{nn.CosineDistance, nn.MM, nn.CAddTensorTable, function() return nn.PairwiseDistance(2) end}() end,
    function() return nn.Sequential():add(nn.MapTable(nn.Sequential():add(nn.Abs()):add(nn.AddConstant(1)))):add(nn.CDivTable()) end,
    function() local m = nn.ParallelTable() for i = 1, int(1, n) do m:add(inner(v[i])) end return m end,
    function() -- a graph of several inputs
      local inputs, outs = {}, {}
      for i = 1, n do inputs[i] = nn.Identity()() outs[i] = inner(v[i])(inputs[i]) end
      if chance(.5) then outs[#outs + 1] = nn.FlattenTable()(outs) end
      if chance(.3) then local _, last = 0, nn.Identity()(outs) outs = {last} end
      return nn.gModule(inputs, outs)
    end,
    function() -- one element of several that a node returns
      local i = nn.Identity()() local parts = n > 1 and {inner(v)(nn.Identity()(i))} or {} local split = n > 1 and {i:split(n)} or {i}
      for k = 1, n do if chance(.7) then parts[#parts + 1] = split[k] end end
      return nn.gModule({i}, parts)
    end,
    function() local shared = nn.FlattenTable() return nn.ConcatTable():add(shared):add(nn.Sequential():add(shared):add(nn.SelectTable(-1))) end,
  }
  return pick(options)()
end
function listed(v, steps)
  local net = nn.Sequential()
  for _ = 1, steps do
    local m, out = try(v, true, function(v) return torch.isTensor(v) and listing(v) or listed_from(v) end)
    if m and #leaves(out) <= 24 then net:add(m) v = out end
  end
  if #net.modules == 0 then return nn.Identity(), v end
  if #net.modules == 1 and chance(.5) then return net.modules[1], v end
  return net, v
end
function lists()
  local n, x = int(1, 3)
  local function tensor() return torch.randn(n, width) end
  x = pick{tensor, tensor, function() return {tensor(), tensor()} end, function() return {tensor(), tensor(), tensor()} end,
    function() return {tensor(), {tensor(), tensor()}} end, function() return {{tensor()}, {tensor(), {tensor()}}} end, function() return {tensor()} end}()
  return (listed(x, int(2, 6))), x
end

-- In evaluation a Sequencer copies each step's list over that of its last call, and leaves the elements after its end: such calls
-- return the elements of earlier inputs.
local function form(v)
  if torch.isTensor(v) then return 't' end
  local s = '{' for _, each in ipairs(v) do s = s .. form(each) end return s .. '}'
end
local function whole(v) -- tables whose length is defined
  if torch.isTensor(v) then return true end
  local n = 0
  for _, each in pairs(v) do n = n + 1 if not whole(each) then return false end end
  for i = 1, n do if v[i] == nil then return false end end
  return true
end
local function same(a, b)
  if form(a) ~= form(b) then return false end
  local others = leaves(b)
  for i, t in ipairs(leaves(a)) do if not t:isSameSizeAs(others[i]) or (t - others[i]):abs():max() > 1e-9 then return false end end
  return true
end
local guarded = false -- whether what `sound` excludes is an error
if KIND == 'lists' then
  local pairs_only = {DotProduct = true, CosineDistance = true, PairwiseDistance = true} -- of the first two elements
  for _, name in ipairs{'JoinTable', 'ZipTable', 'MixtureTable', 'DotProduct', 'CosineDistance', 'PairwiseDistance', 'Concat'} do
    local class = nn[name]
    local update = class.updateOutput
    local function check(self, input) if guarded then assert(sound(self, pairs_only[name] and {input[1], input[2]} or input), 'not sound') end end
    function class:updateOutput(input)
      if name ~= 'Concat' then check(self, input) end
      local output = update(self, input)
      if name == 'Concat' then check(self, input) end
      return output
    end
  end
end

-- Further inputs: other numbers, and of each network that Lua takes them for other sizes of the batch, longer, shorter and empty
-- lists; refusedInputs: those that it does not take.
function more(r, m, x)
  local e = r.model:clone() e:evaluate()
  r.moreInputs, r.moreOutputs, r.refusedInputs = {}, {}, {}
  local batch = leaves(x)[1]:size(1)
  local forgets = r.again and same(r.again, r.output)
  local function like(v, n)
    if torch.isTensor(v) then local s = v:size() if s[1] == batch then s[1] = n end return torch.randn(s) end
    local t = {} for i, each in ipairs(v) do t[i] = like(each, n) end return t
  end
  local function lists_in(v, out) if not torch.isTensor(v) then out[#out + 1] = v for _, each in ipairs(v) do lists_in(each, out) end end return out end
  local function change(input)
    local found = lists_in(input, {})
    local list, way = chance(.5) and found[1] or pick(found), int(1, 5)
    if way <= 2 then for _ = 1, way do list[#list + 1] = #list > 0 and like(list[int(1, #list)], batch) or torch.randn(batch, 3) end
    elseif way <= 4 then list[#list] = nil
    else for i = #list, 1, -1 do list[i] = nil end end
  end
  local copies = r.text:find('Sequencer') or r.text:find('Repeater')
  -- What a module and a fresh one compute; nil where Lua fails, and 'stale' where the first returns elements of earlier inputs.
  local function compute(module, input, check)
    local defined
    local ok, out = pcall(function() local out = module:forward(copy(input)) defined = whole(out) return copy(out) end)
    if not ok then return nil, not out:find('not sound') end
    if not check then return out end
    local fresh = r.model:clone() fresh:evaluate()
    local ok, wanted = pcall(function() return copy(fresh:forward(copy(input))) end)
    if not ok or not defined or form(out) ~= form(wanted) or (forgets and not same(out, wanted)) then return 'stale' end
    return out
  end
  for _ = 1, INPUTS do
    local other = chance(.3)
    local n = batch
    if other and (torch.isTensor(x) or chance(.2)) then n = int(1, 4) end
    local input = like(x, n)
    if other and n == batch and not torch.isTensor(x) then change(input) end
    local probe = other and e:clone() or e -- what fails may leave half a step behind
    guarded = other
    local out, refused = compute(probe, input, other or copies)
    guarded = false
    local fine = out and out ~= 'stale' and (good(out) or (other and #leaves(out) == 0))
    if fine and other then -- and it leaves nothing behind that a later call returns
      local after = compute(probe:clone(), x, true)
      fine = after and after ~= 'stale'
    end
    if fine then
      r.moreInputs[#r.moreInputs + 1] = input r.moreOutputs[#r.moreOutputs + 1] = out
      if other then e = probe r.lengths = (r.lengths or 0) + 1 end
    elseif not other then break
    elseif refused then r.refusedInputs[#r.refusedInputs + 1] = input end
  end
end

-- What Lua computes with a network
function measure(m, x)
  local r = {input = copy(x), model = m:clone(), random = random_layers, text = tostring(m)}
  local function run(e, x)
    local ok, out = pcall(function() return copy(e:forward(copy(x))) end)
    return ok and good(out) and out or nil
  end
  local e = r.model:clone() e:evaluate()
  r.output = assert(run(e, x), 'no output')
  if KIND == 'rnn' or KIND == 'lists' then r.again = run(e, x) end
  if r.again and form(r.again) ~= form(r.output) then r.again, r.stale = nil, true end
  local check = r.model:clone() check:evaluate()
  local again = assert(run(check, x))
  for i, a in ipairs(leaves(again)) do if (a - leaves(r.output)[i]):abs():max() > 1e-9 then error('not deterministic') end end
  if random_layers then return r end
  -- In training a Sequencer inside another writes each step's outputs over those of the last: clones of it share their cells.
  for _, l in ipairs(m:listModules()) do
    if torch.typename(l) == 'nn.Sequencer' then
      for _, q in ipairs(l.module:listModules()) do if torch.typename(q) == 'nn.Sequencer' then return r end end
    end
  end
  local e = r.model:clone() e:training() e:zeroGradParameters()
  local input = copy(x)
  local ok, out = pcall(function() return e:forward(input) end)
  if not ok then return r end
  r.trainOutput = copy(out)
  local go = noise(out)
  r.gradOutput = copy(go)
  -- The gradients of what changes its input in place, and of a penalty on steps that nothing uses, are those of Lua alone.
  local own = r.text:find('NormStabilizer') and r.text:find('SelectTable')
  -- All nn.MuFuRu share the modules of their operations, so that the first steps of two read one another's outputs backward.
  own = own or select(2, r.text:gsub('MuFuRu', '')) > 1
  for _, l in ipairs(m:listModules()) do own = own or l.inplace end
  local ok, gi = pcall(function() return e:backward(input, go) end)
  if ok and gi and not own then
    pcall(function() r.gradInput = copy(gi) end)
    local _, g = e:parameters()
    r.gradParameters = {} for i, t in ipairs(g or {}) do r.gradParameters[i] = t:clone() end
  end
  return r
end

local function record()
  random_layers = false
  local m, x, b
  if KIND == 'graph' or (KIND == 'expr' and chance(.3)) then m, x = graph()
  elseif KIND == 'rnn' then m, x = recurrent()
  elseif KIND == 'lists' then m, x = lists()
  else
    x, b = start() m = grow(x, b, int(1, 6))
    if chance(.1) then x = {x, torch.randn(x:size())} m = nn.ParallelTable():add(m):add((grow(x[2], b, 2))) end
  end
  if KIND == 'rnn' and chance(.2) then m:evaluate() m:forward(copy(x)) else m:clearState() end -- or saved amid a sequence
  local r = measure(m, x)
  if INPUTS > 0 and not r.stale then more(r, m, x) end
  return r
end

if KIND ~= 'none' then
  local list, failed = {}, 0
  while #list < COUNT and failed < 50 * COUNT do
    local ok, r = pcall(record)
    if ok then list[#list + 1] = r else failed = failed + 1 if os.getenv('V') then print(r) end end
  end
  torch.save(OUT, list)
  print(KIND, SEED, #list .. ' records', failed .. ' failed')
end
