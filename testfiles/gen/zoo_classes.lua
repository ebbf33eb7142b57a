-- zoo_classes.lua OUTFILE SOURCES: classes of popular programs, run by Lua Torch 7 in evaluate mode on a CPU. SOURCES is a
-- directory with a copy of each program under its name on GitHub; its classes are loaded from there, none is in this
-- file. OUTFILE is one table: name → {module=, input=, output=[, target=][, gradOutput=, gradInput=, gradParameters=]}.
-- nnx's C part is expected as `libnnx` on LUA_CPATH.
require 'nn'; require 'nngraph'
local out, sources = assert(arg[1]), assert(arg[2])
torch.manualSeed(77); math.randomseed(77)
torch.setdefaulttensortype('torch.FloatTensor')
local N, T = torch.randn, torch.Tensor
local function use(...) for _, path in ipairs{...} do dofile(sources .. '/' .. path .. '.lua') end end
-- Cases run at once, as later classes may take over earlier names. Buffers are not part of what a module computes: the
-- module is written as it was before it ran.
local function copy(v) if torch.isTensor(v) then return v:clone() elseif type(v) == 'table' then local o = {}; for k, e in pairs(v) do o[k] = copy(e) end; return o end; return v end
local function like(v) if torch.isTensor(v) then return v.new():resize(v:size()):normal() end; local o = {}; for k, e in pairs(v) do o[k] = like(e) end; return o end
local all, done = {}, 0
local function put(name, m, input, train)
   if train then m:training() else m:evaluate() end
   for _, field in ipairs{'clones', 'lookup_tables'} do if m[field] then m[field] = name:find('crnn') and {} or nil end end
   local case, before = {input = copy(input), train = train}, torch.serialize(m)
   case.output = copy(m:forward(copy(input)))
   pcall(function()
      local g = like(case.output); m:zeroGradParameters()
      local gi = copy(m:backward(copy(input), copy(g))); local _, gp = m:parameters()
      assert(gi); case.gradOutput, case.gradInput, case.gradParameters = g, gi, gp and copy(gp) or nil
   end)
   case.module = torch.deserialize(before); all[name] = case; done = done + 1
end
local function crit(name, m, input, target)
   local before = torch.serialize(m)
   local case = {input = copy(input), target = copy(target), output = m:forward(input:clone(), target:clone())}
   pcall(function() case.gradInput = m:backward(input:clone(), target:clone()):clone() end)
   case.module = torch.deserialize(before); all[name] = case; done = done + 1
end
local function pos(...) return torch.rand(...):add(0.1) end
local function ints(hi, ...) return T(...):apply(function() return math.random(1, hi) end) end

-- imagine-nn: what runs without CUDA
inn = {C = {}}
for _, name in ipairs{'ConstAffine', 'MeanSubtraction', 'SpatialAveragePooling', 'SpatialMaxPooling', 'SpatialPyramidPooling',
   'SpatialCrossResponseNormalization', 'SpatialSameResponseNormalization'} do use('imagine-nn/' .. name) end
local function affine(class) local m = class(3); m.a:uniform(0.5, 2); m.b:normal(); return m end
put('inn.affine', affine(inn.ConstAffine), N(2, 3, 4, 5)); put('inn.affine.rows', affine(inn.ConstAffine), N(2, 3))
torch.class('nn.SpatialConstDiagonal', 'inn.ConstAffine'); put('inn.diagonal', affine(nn.SpatialConstDiagonal), N(2, 3, 4, 5))
put('inn.mean', inn.MeanSubtraction(N(3, 4, 5)), N(3, 4, 5)); put('inn.mean.batch', inn.MeanSubtraction(N(3, 4, 5)), N(2, 3, 4, 5))
put('inn.avg', inn.SpatialAveragePooling(3, 2, 2, 2), N(2, 3, 8, 9)); put('inn.max', inn.SpatialMaxPooling(3, 3, 2, 2), N(2, 3, 8, 8))
do local m = inn.SpatialMaxPooling(3, 3, 2, 2); m.ceil_mode = nil; put('inn.max.old', m, N(2, 3, 8, 8)) end
put('inn.spp', inn.SpatialPyramidPooling({4, 3}, {2, 1}), N(2, 3, 9, 8)); put('inn.spp.u', inn.SpatialPyramidPooling({{4, 4}, {1, 1}}), N(3, 9, 8))
put('inn.lrn', inn.SpatialCrossResponseNormalization(5, 0.1, 0.5, 2), N(2, 7, 4, 5))
put('inn.samelrn', inn.SpatialSameResponseNormalization(3, 0.1, 0.5), N(2, 3, 6, 5))

-- waifu2x
w2nn = {}; local cunn = package.loaded.cunn; package.loaded.cunn = true
for _, name in ipairs{'ShakeShakeTable', 'InplaceClip01', 'EdgeFilter', 'SSIMCriterion', 'LeakyReLU', 'RandomBinaryConvolution',
   'LBPCriterion', 'GradWeight', 'AuxiliaryLossTable', 'ScaleTable', 'ClippedMSECriterion', 'L1Criterion', 'ClippedWeightedHuberCriterion'} do
   if name == 'LeakyReLU' then dofile(sources .. '/waifu2x/lib/LeakyReLU.lua') else use('waifu2x/lib/' .. name) end
end
package.loaded.cunn = cunn
put('w2nn.leaky', w2nn.LeakyReLU(0.1), N(2, 3, 4, 5)); put('w2nn.clip', w2nn.InplaceClip01(), N(2, 3, 4, 5))
put('w2nn.aux', w2nn.AuxiliaryLossTable(2), {N(2, 3), N(2, 3)}); put('w2nn.aux.train', w2nn.AuxiliaryLossTable(2), {N(2, 3), N(2, 3)}, true)
put('w2nn.scale', w2nn.ScaleTable(), {N(2, 3, 4, 5), N(2, 3, 1, 1)}); put('w2nn.shake', w2nn.ShakeShakeTable(), {N(2, 3), N(2, 3)})
put('w2nn.gradweight', w2nn.GradWeight(0.3), N(2, 3)); put('w2nn.edge', w2nn.EdgeFilter(3), N(2, 3, 6, 5))
put('w2nn.random', w2nn.RandomBinaryConvolution(3, 4, 3, 3), N(2, 3, 6, 5))
crit('w2nn.huber', w2nn.ClippedWeightedHuberCriterion(pos(3 * 4 * 4), 0.3, {0, 1}), N(2, 48), N(2, 48))
crit('w2nn.huber.image', w2nn.ClippedWeightedHuberCriterion(pos(3, 4, 4), 0.1, {0, 1}), N(2, 3, 4, 4), N(2, 3, 4, 4))
crit('w2nn.mse', w2nn.ClippedMSECriterion(0, 1), N(2, 3, 4), N(2, 3, 4)); crit('w2nn.l1', w2nn.L1Criterion(), N(2, 3, 4), N(2, 3, 4))
crit('w2nn.lbp', w2nn.LBPCriterion(3, 8, 3, 1), N(2, 3, 6, 6), N(2, 3, 6, 6)); crit('w2nn.lbp.rows', w2nn.LBPCriterion(1, 8, 3, 2), N(2, 64), N(2, 64))
crit('w2nn.ssim', w2nn.SSIMCriterion(3, 5, 1.5), torch.rand(2, 3, 9, 9), torch.rand(2, 3, 9, 9))

-- Two programs that have a class of the same name: the later one replaces the methods of the earlier.
local function replace(path)
   local class = torch.class
   torch.class = function(name, parent)
      local known = torch.getmetatable(name)
      if not known then return class(name, parent) end
      for key in pairs(known) do if type(key) == 'string' and not key:find('^__') then known[key] = nil end end
      known.__init = nil
      return known, torch.getmetatable(parent)
   end
   use(path); torch.class = class
end
-- style transfer. Since 2017-08 (919eeca) nn normalizes a batch of one with running means even in training, which turns
-- instance normalization off. All these programs are older: SOURCES/nn has the file of nn before.
replace('nn/BatchNormalization')
for _, name in ipairs{'ShaveImage', 'TotalVariation', 'DeepDreamLoss', 'GramMatrix', 'InstanceNormalization'} do use('fast-neural-style/fast_neural_style/' .. name) end
local function instance(m) if m.weight then m.weight:uniform(0.5, 2); m.bias:normal() end return m end
put('style.instance', instance(nn.InstanceNormalization(3)), N(2, 3, 5, 6))
put('style.shave', nn.ShaveImage(2), N(2, 3, 8, 9)); put('style.tv', nn.TotalVariation(0.3), N(2, 3, 5, 6))
put('style.dream', nn.DeepDreamLoss(0.2, 0.5), N(2, 3, 5, 6))
put('style.gram', nn.GramMatrix(), N(2, 3, 5, 6)); put('style.gram.raw', nn.GramMatrix(false), N(3, 5, 6))
replace('CycleGAN/util/InstanceNormalization')
put('cyclegan.instance', instance(nn.InstanceNormalization(3, 1e-3)), N(2, 3, 5, 6))
put('cyclegan.instance.plain', instance(nn.InstanceNormalization(3, 1e-5, 0, false)), N(2, 3, 5, 6))
replace('AdaIN-style/lib/InstanceNormalization')
put('adain.instance', instance(nn.InstanceNormalization(3)), N(3, 5, 6)); put('adain.instance.off', nn.InstanceNormalization(3, true), N(2, 3, 5, 6))
put('adain.instance.plain', nn.InstanceNormalization(3, false, 1e-3, false), N(2, 3, 5, 6))
use('texture_nets/src/SpatialCircularPadding', 'AdaIN-style/lib/AdaptiveInstanceNormalization', 'AdaIN-style/lib/TVLossCriterion')
put('texture.circular', nn.SpatialCircularPadding(1, 2, 2, 1), N(2, 3, 5, 6))
put('adain', nn.AdaptiveInstanceNormalization(3), {N(2, 3, 5, 6), N(2, 3, 4, 7)}); put('adain.off', nn.AdaptiveInstanceNormalization(3, true), {N(2, 3, 5, 6), N(2, 3, 4, 7)})
put('adain.u', nn.AdaptiveInstanceNormalization(3, false, 1e-3), {N(3, 5, 6), N(3, 4, 7)})
crit('adain.tv', nn.TVLossCriterion(), N(2, 3, 5, 6), N(1)); crit('adain.tv.u', nn.TVLossCriterion(), N(3, 5, 6), N(1))
use('deepmask/SpatialSymmetricPadding')
put('deepmask.symmetric', nn.SpatialSymmetricPadding(1, 2, 2, 1), N(2, 3, 5, 6)); put('deepmask.symmetric.crop', nn.SpatialSymmetricPadding(-1, 2, 0, -2), N(2, 3, 5, 6))

-- nnx
require 'xlua'; require 'libnnx'
for _, name in ipairs{'SpatialPadding', 'SpatialLinear', 'SpatialClassifier', 'SpatialNormalization', 'SpatialUpSampling', 'SpatialDownSampling', 'SpatialReSampling',
   'SpatialReSamplingEx', 'SpatialMaxSampling', 'Minus', 'SaturatedLU', 'MultiSoftMax'} do use('lua---nnx/' .. name) end
put('nnx.linear', nn.SpatialLinear(3, 4), N(3, 5, 6)); put('nnx.classifier', nn.SpatialClassifier(nn.Sequential():add(nn.Linear(3, 4)):add(nn.LogSoftMax())), N(3, 5, 6))
do local m = nn.SpatialClassifier(nn.Linear(3, 4)); m.spatialOutput = false; put('nnx.classifier.rows', m, N(3, 5, 6)) end
do local m = nn.SpatialClassifier(nn.Linear(3, 4)); m.modules = nil; put('nnx.classifier.old', m, N(3, 5, 6)) end
local kept = print; print = function() end
put('nnx.norm', nn.SpatialNormalization(3, pos(5, 3)), N(3, 9, 8)); put('nnx.norm.even', nn.SpatialNormalization(2, pos(4, 2)), N(2, 9, 8))
put('nnx.norm.fixed', nn.SpatialNormalization(3, pos(5, 5), 0.2), N(3, 9, 8)); put('nnx.norm.pair', nn.SpatialNormalization(3, {pos(1, 5), pos(5, 1)}), N(3, 9, 8))
put('nnx.norm.plane', nn.SpatialNormalization(1, pos(5, 5)), N(9, 8)); put('nnx.norm.flat', nn.SpatialNormalization(1, pos(3, 3)), N(1, 9, 8):mul(1e-4))
print = kept
put('nnx.up', nn.SpatialUpSampling{dW = 2, dH = 3}, N(3, 4, 5)); put('nnx.up.batch', nn.SpatialUpSampling{dW = 2, dH = 3, yDim = 3, xDim = 4}, N(2, 3, 4, 5))
put('nnx.up.first', nn.SpatialUpSampling{dW = 2, dH = 3, yDim = 1, xDim = 2}, N(4, 5, 3))
put('nnx.down', nn.SpatialDownSampling{rW = 2, rH = 3}, N(3, 7, 8))
put('nnx.resample', nn.SpatialReSampling{owidth = 9, oheight = 7}, N(3, 4, 5)); put('nnx.resample.ratio', nn.SpatialReSampling{rwidth = 1.5, rheight = 0.7}, N(2, 3, 6, 5))
for _, mode in ipairs{'simple', 'average', 'bilinear'} do
   put('nnx.ex.' .. mode, nn.SpatialReSamplingEx{owidth = 9, oheight = 7, mode = mode}, N(3, 4, 5))
   put('nnx.ex.small.' .. mode, nn.SpatialReSamplingEx{rwidth = 0.45, rheight = 0.4, mode = mode}, N(3, 9, 8))
   put('nnx.ex.dims.' .. mode, nn.SpatialReSamplingEx{owidth = 3, oheight = 2, mode = mode, yDim = 2, xDim = 3}, N(2, 6, 7, 3))
   put('nnx.ex.first.' .. mode, nn.SpatialReSamplingEx{rwidth = 2, rheight = 2, mode = mode, yDim = 1, xDim = 2}, N(4, 5, 3))
end
put('nnx.maxsampling', nn.SpatialMaxSampling{owidth = 3, oheight = 4}, N(3, 9, 8)); put('nnx.maxsampling.up', nn.SpatialMaxSampling{owidth = 12, oheight = 11}, N(3, 5, 4))
put('nnx.minus', nn.Minus(), N(2, 3)); put('nnx.saturated', nn.SaturatedLU(-0.5, -2, 0.5, 3), N(2, 30)); put('nnx.multisoftmax', nn.MultiSoftMax(), N(2, 3, 4))
-- a factor for each plane that is kept as kernels, as in a tracker of 2011
do local m = nn.SpatialSubSampling(3, 2, 2, 2, 2); m.weight = N(3, 2, 2); put('subsampling.kernels', m, N(3, 6, 8)) end

-- signs
bnn = {}; use('bnn.torch/Binary', 'XNOR-Net/newLayers/BinActiveZ')
put('bnn.binary', bnn.Binary(), N(2, 3, 4)); put('xnor.active', nn.BinActiveZ(), N(2, 3, 4))

-- language: neuraltalk2, torch-rnn, crnn, OpenNMT
package.loaded.cjson = {} -- only for reading options
package.path = sources .. '/neuraltalk2/?.lua;' .. package.path
use('neuraltalk2/misc/LanguageModel'); 
do
   local function model() return nn.LanguageModel{vocab_size = 5, input_encoding_size = 4, rnn_size = 3, num_layers = 2, seq_length = 4} end
   local words = torch.LongTensor{{1, 2, 5}, {3, 4, 1}, {2, 0, 1}, {0, 0, 3}}
   put('neuraltalk2.model', model(), {N(3, 4), words})
   put('neuraltalk2.expand', nn.FeatExpander(3), N(2, 4)); put('neuraltalk2.expand.1', nn.FeatExpander(1), N(2, 4))
   crit('neuraltalk2.criterion', nn.LanguageModelCriterion(), N(6, 3, 6), words)
end
package.path = sources .. '/torch-rnn/?.lua;' .. package.path; package.loaded['util.utils'] = nil
replace('torch-rnn/LanguageModel'); do
   for _, kind in ipairs{'lstm', 'rnn'} do for _, norm in ipairs{0, 1} do
      local m = nn.LanguageModel{idx_to_token = {'a', 'b', 'c', 'd'}, model_type = kind, wordvec_size = 3, rnn_size = 5, num_layers = 2, dropout = 0.5, batchnorm = norm}
      m:evaluate(); m:resetStates(); put('torchrnn.' .. kind .. norm, m, ints(4, 2, 6))
   end end
end
use('torch-rnn/TemporalAdapter', 'torch-rnn/TemporalCrossEntropyCriterion')
put('torchrnn.adapter', nn.TemporalAdapter(nn.Linear(3, 4)), N(2, 5, 3))
crit('torchrnn.criterion', nn.TemporalCrossEntropyCriterion(), N(2, 3, 4), torch.LongTensor{{1, 4, 0}, {2, 0, 3}})
do local m = nn.TemporalCrossEntropyCriterion(); m.time_average = true; m.batch_average = false; crit('torchrnn.criterion.time', m, N(2, 3, 4), torch.LongTensor{{1, 4, 0}, {2, 0, 3}}) end
torch.CudaTensor = torch.CudaTensor or torch.FloatTensor
function cloneList(list) local o = {}; for k, v in ipairs(list) do o[k] = v:clone() end; return o end
function cloneManyTimes(net, n) local o = {}; for k = 1, n do o[k] = net:clone('weight', 'bias', 'gradWeight', 'gradBias') end; return o end
use('crnn/src/LstmLayer', 'crnn/src/BiRnnJoin', 'crnn/src/SharedParallelTable')
local function steps(n) local o = {}; for k = 1, n do o[k] = N(2, 3) end; return o end
put('crnn.lstm', nn.LstmLayer(3, 4, 6, 0), steps(5)); put('crnn.lstm.reverse', nn.LstmLayer(3, 4, 6, 0.5, true), steps(5))
put('crnn.join', nn.BiRnnJoin(3, 4, 6), {steps(5), steps(5)}); put('crnn.shared', nn.SharedParallelTable(nn.Linear(3, 4), 6), steps(5))
onmt = {Constants = {PAD = 1}, utils = {ExtendedCmdLine = {getModuleOpts = function() return {global_attention = onmt.attention} end}}}
use('OpenNMT/onmt/modules/Network'); onmt.Network = onmt.Network
for _, name in ipairs{'GlobalAttention', 'NoAttention', 'JoinReplicateTable', 'Generator', 'WordEmbedding', 'MaskedSoftmax'} do use('OpenNMT/onmt/modules/' .. name) end
for _, kind in ipairs{'general', 'dot', 'concat'} do onmt.attention = kind; put('onmt.attention.' .. kind, onmt.GlobalAttention({}, 4), {N(2, 4), N(2, 5, 4)}) end
put('onmt.attention.none', onmt.NoAttention({}, 4), {N(2, 4), N(2, 5, 4)}); put('onmt.join', onmt.JoinReplicateTable(2, 3), {N(2, 1, 3), N(2, 5, 4)})
put('onmt.generator', onmt.Generator({rnn_size = 4}, {5, 3}), {N(2, 4), N(2, 4)}); put('onmt.embedding', onmt.WordEmbedding(5, 3), ints(5, 2, 4))
put('onmt.masked', onmt.MaskedSoftmax(torch.LongTensor{3, 5}, 5), N(2, 5))


torch.save(out, all)
print(done .. ' written')
