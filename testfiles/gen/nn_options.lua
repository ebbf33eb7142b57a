-- nn_options.lua OUTFILE: further options, sizes and unbatched inputs of the classes of nn, and small nngraph graphs, run
-- by Lua Torch 7 in evaluate mode. OUTFILE is one table: name → {module=, input=, output=[, target=][, gradOutput=,
-- gradInput=, gradParameters=]}, as in nn_cases.lua. Combinations that Lua refuses are left out.
require 'nn'; require 'nngraph'
local out = assert(arg[1])
torch.manualSeed(101); math.randomseed(101)
torch.setdefaulttensortype('torch.FloatTensor')
local T, N, odd = torch.Tensor, torch.randn, true
local function pick(a, b) if odd then return a else return b end end
local cases = {}
local function put(name, module, input) cases[#cases + 1] = {name, module, input} end
local function graph(name, module, input) put('graph.' .. name, function() return module end, function() return input end) end
local function pos(...) return torch.rand(...):add(0.1) end
local function bn(m) m.weight:uniform(); m.bias:normal(); m.running_mean:normal(); m.running_var:uniform(0.5, 2) return m end
local function ints(n, hi) return T(n):apply(function() return math.random(1, hi) end) end

put('u.conv', function() return nn.SpatialConvolution(3,4,3,2,2,1,1,0) end, function() return N(3,9,8) end)
put('u.bnnet', function() local m = nn.Sequential():add(nn.SpatialConvolution(3,4,3,3)):add(bn(nn.SpatialBatchNormalization(4))):add(nn.ReLU(true)):add(nn.SpatialMaxPooling(2,2,2,2)):add(nn.View(-1)):add(nn.Linear(48,5)):add(bn(nn.BatchNormalization(5))):add(nn.LogSoftMax()); return m end, function() return N(3,9,10) end)
put('u.full', function() return nn.SpatialFullConvolution(3,4,3,3,2,2,1,1,1,1) end, function() return N(3,5,6) end)
put('u.full.size', function() return nn.SpatialFullConvolution(3,4,3,3,2,2,1,1) end, function() return {N(3,5,6), N(7,10,12)} end)
put('u.full.nobias', function() return nn.SpatialFullConvolution(3,4,3,3,2,2,1,1):noBias() end, function() return N(2,3,5,6) end)
put('u.avg', function() return nn.SpatialAveragePooling(3,2,2,1,1,0):ceil() end, function() return N(3,9,8) end)
put('avg.sum.ceil', function() local m = nn.SpatialAveragePooling(3,3,2,2,1,1):ceil(); m.divide = false; return m end, function() return N(2,3,10,8) end)
put('avg.sum.excl', function() local m = nn.SpatialAveragePooling(3,3,2,2,1,1):setCountExcludePad(); m.divide = false; return m end, function() return N(2,3,10,8) end)
put('u.max', function() return nn.SpatialMaxPooling(3,2,2,1,1,0):ceil() end, function() return N(3,9,8) end)
put('u.dmax', function() return nn.SpatialDilatedMaxPooling(3,2,2,1,1,0,2,3):ceil() end, function() return N(3,12,11) end)
put('u.lrn', function() return nn.SpatialCrossMapLRN(5, 0.1, 0.5, 2) end, function() return N(7,4,5) end)
put('lrn.big', function() return nn.SpatialCrossMapLRN(5, 0.1, 0.5, 2) end, function() return N(2,3,4,5) end)
put('u.sub', function() return nn.SpatialSubtractiveNormalization(3, T(5):fill(1)) end, function() return N(3,9,8) end)
put('sub.rect', function() return nn.SpatialSubtractiveNormalization(3, torch.rand(3,5)) end, function() return N(2,3,9,8) end)
put('div.rect', function() return nn.SpatialDivisiveNormalization(3, torch.rand(3,5), 0.3, 0.7) end, function() return N(2,3,9,8) end)
put('div.1d', function() return nn.SpatialDivisiveNormalization(2, torch.rand(7), 0.3, 0.7) end, function() return N(2,9,8) end)
put('contr.1d', function() return nn.SpatialContrastiveNormalization(2, torch.rand(5)) end, function() return N(2,2,9,8) end)
put('u.nearest', function() return nn.SpatialUpSamplingNearest(3) end, function() return N(3,4,5) end)
put('u.bilin', function() return nn.SpatialUpSamplingBilinear(3) end, function() return N(3,4,5) end)
put('up.vol', function() return nn.UpSampling(2, pick('nearest','linear')) end, function() return N(2,3,3,4,5) end)
put('up.size', function() return nn.UpSampling({owidth=9,oheight=8}, 'linear') end, function() return N(2,3,4,5) end)
put('u.adapt', function() return nn.SpatialAdaptiveMaxPooling(3,2) end, function() return N(3,7,8) end)
put('u.adaptavg', function() return nn.SpatialAdaptiveAveragePooling(3,2) end, function() return N(3,7,8) end)
put('u.local', function() return nn.SpatialConvolutionLocal(3,2,8,9,3,2,2,1,1,0) end, function() return N(3,9,8) end)
put('u.dw', function() return nn.SpatialDepthWiseConvolution(3,2,3,2,2,1,1,0) end, function() return N(3,9,8) end)
put('dw.sq', function() return nn.SpatialDepthWiseConvolution(3,2,3,3,2,2,1,1) end, function() return N(2,3,9,9) end)
put('dw.nobias', function() return nn.SpatialDepthWiseConvolution(3,2,3,3,2,2,1,1):noBias() end, function() return N(2,3,9,9) end)
put('u.dil', function() return nn.SpatialDilatedConvolution(3,4,3,2,1,2,2,1,2,3) end, function() return N(3,12,11) end)
put('map.batch', function() return nn.SpatialConvolutionMap(nn.tables.random(3,5,2),3,2,2,1) end, function() return N(2,3,9,8) end)
put('map.more', function() return nn.SpatialConvolutionMap(nn.tables.full(2,3),3,2) end, function() return N(2,3,9,8) end)
put('fullmap', function() return nn.SpatialFullConvolutionMap(nn.tables.random(3,4,2),3,2,2,2) end, function() return N(3,6,5) end)
put('u.subs', function() return nn.SpatialSubSampling(3,3,2,2,1) end, function() return N(3,9,8) end)
put('u.ps', function() return nn.PixelShuffle(3) end, function() return N(9,2,4) end)
put('u.flp', function() return nn.FeatureLPPooling(3,2,2,false) end, function() return N(9,4) end)
put('flp.p3', function() return nn.FeatureLPPooling(3,2,3,true) end, function() return pos(2,9,4) end)
put('lpp.3', function() return nn.SpatialLPPooling(3,3,2,2,2,2) end, function() return pos(2,3,8,8) end)
put('zp', function() return nn.SpatialZeroPadding(-1,2,-2,-1) end, function() return N(3,9,8) end)
put('refl.u', function() return nn.SpatialReflectionPadding(1,2,3,1) end, function() return N(3,9,8) end)
put('repl.u', function() return nn.SpatialReplicationPadding(1,2,3,1) end, function() return N(3,9,8) end)
put('vrepl.u', function() return nn.VolumetricReplicationPadding(1,2,3,1,2,1) end, function() return N(3,4,9,8) end)
put('tc', function() return nn.TemporalConvolution(4,3,3,2) end, function() return N(10,4) end)
put('trow', function() return nn.TemporalRowConvolution(4,3,2,false) end, function() return N(2,9,4) end)
put('trow.u', function() return nn.TemporalRowConvolution(4,3,1,true) end, function() return N(4,9) end)
put('trow.nb', function() return nn.TemporalRowConvolution(4,3,1,true):noBias() end, function() return N(2,4,9) end)
put('tmp.u', function() return nn.TemporalMaxPooling(3,1) end, function() return N(9,4) end)
put('tdk.u', function() return nn.TemporalDynamicKMaxPooling(3,0.2) end, function() return N(9,4) end)
put('tss', function() return nn.TemporalSubSampling(4,3,1) end, function() return N(9,4) end)
put('vc.u', function() return nn.VolumetricConvolution(3,4,2,3,3,1,2,1,0,1,1) end, function() return N(3,5,6,7) end)
put('vc.nb', function() return nn.VolumetricConvolution(3,4,2,3,2,1,2,1,1,1,0):noBias() end, function() return N(2,3,5,6,7) end)
put('vf.u', function() return nn.VolumetricFullConvolution(3,2,2,3,4,2,2,1,0,1,1,1,0,0) end, function() return N(3,4,4,5) end)
put('vf.size', function() return nn.VolumetricFullConvolution(3,2,3,3,3,2,2,2,1,1,1) end, function() return {N(2,3,4,4,5), N(2,1,8,7,10)} end)
put('vd.u', function() return nn.VolumetricDilatedConvolution(3,2,2,2,2,1,1,1,1,0,0,1,2,2) end, function() return N(3,5,6,7) end)
put('vmax.u', function() return nn.VolumetricMaxPooling(2,3,2,1,2,1,0,1,1):ceil() end, function() return N(3,5,6,7) end)
put('vavg', function() return nn.VolumetricAveragePooling(2,3,2,1,2,1,1,1,0):ceil() end, function() return N(2,3,5,6,7) end)
put('vavg.e', function() return nn.VolumetricAveragePooling(2,3,2,1,2,1,1,1,0):setCountExcludePad() end, function() return N(2,3,5,6,7) end)
put('vbn.u', function() return bn(nn.VolumetricBatchNormalization(3)) end, function() return N(3,4,5,6) end)
put('sbn.u', function() return bn(nn.SpatialBatchNormalization(3,1e-2,0.3)) end, function() return N(3,5,6) end)
put('bn.u', function() return bn(nn.BatchNormalization(3)) end, function() return N(3) end)
put('vmu.u', function() local p = nn.VolumetricMaxPooling(2,2,2); return nn.Sequential():add(p):add(nn.Tanh()):add(nn.VolumetricMaxUnpooling(p)) end, function() return N(3,5,5,4) end)
put('smu.u', function() local p = nn.SpatialMaxPooling(2,3,2,3); return nn.Sequential():add(p):add(nn.Tanh()):add(nn.SpatialMaxUnpooling(p)) end, function() return N(3,9,9) end)
-- shape
for i, a in ipairs{{12},{3,4},{-1,4},{2,-1}} do for j, b in ipairs{{3,4},{1,12},{5,12},{2,6}, {5,3,4},{1,3,4}} do for n=0,3 do
put('view.'..i..'.'..j..'.'..n, function() local m = nn.View(unpack(a)); if n > 0 then m:setNumInputDims(n) end; return m end, function() return N(unpack(b)) end)
end end end
for i, a in ipairs{{12},{3,4},{4,3}} do for j, b in ipairs{{3,4},{1,12},{5,12},{5,3,4},{1,3,4},{12}} do for n=1,3 do
put('reshape.'..i..'.'..j..'.'..n, function() local t = {unpack(a)}; if n > 1 then t[#t+1] = n == 2 end; return nn.Reshape(unpack(t)) end, function() return N(unpack(b)) end)
end end end
put('collapse.b', function() return nn.Collapse(2) end, function() return N(5,3,4) end)
put('collapse.1', function() return nn.Collapse(3) end, function() return N(5,3,4) end)
for d=1,4 do for n=1,3 do put('squeeze.'..d..'.'..n, function() return nn.Squeeze(d < 4 and d or nil, n < 3 and n or nil) end, function() return N(1,3,1) end)
 put('squeezeb.'..d..'.'..n, function() return nn.Squeeze(d < 4 and d or nil, n < 3 and n or nil) end, function() return N(1,1,3,1) end) end end
for d=1,3 do for n=1,3 do put('unsq.'..d..'.'..n, function() return nn.Unsqueeze(d, n<3 and n or nil) end, function() return N(3,4) end) end end
for d=1,3 do for n=1,3 do put('repl.'..d..'.'..n, function() return nn.Replicate(3, d, n<3 and n or nil) end, function() return N(3,4) end) end end
for d=1,2 do for _,p in ipairs{2,-3} do for _,ix in ipairs{1,2,3} do for n=1,3 do put('pad.'..d..'.'..p..'.'..ix..'.'..n, function() return nn.Padding(d,p,n<3 and n or nil,0.3,ix) end, function() return N(3,4,5) end) end end end end
put('transp.n', function() return nn.Transpose({1,2}):setNumInputDims(2) end, function() return N(2,3,4) end)
for _,o in ipairs{1,2,-1,-2} do for _,l in ipairs{1,2,-1,-2} do put('narrow.'..o..'.'..l, function() return nn.Narrow(2,o,l) end, function() return N(3,5) end) end end
put('narrow.neg', function() return nn.Narrow(-1,2,2) end, function() return N(3,5,4) end)
put('select.neg', function() return nn.Select(-1,-2) end, function() return N(3,5,4) end)
for _,c in ipairs{'Max','Min'} do for _,d in ipairs{1,2,-1} do for n=1,3 do put(c..'.'..d..'.'..n, function() return nn[c](d,n<3 and n or nil) end, function() return N(3,4,5) end) end end 
 put(c..'.v', function() return nn[c](1) end, function() return N(5) end) end
for _,c in ipairs{'Sum','Mean'} do for _,d in ipairs{1,2,-1} do for n=1,3 do put(c..'.'..d..'.'..n, function() return nn[c](d,n<3 and n or nil) end, function() return N(3,4,5) end) end end 
 put(c..'.v', function() return nn[c](1) end, function() return N(5) end) end
put('sum.keep', function() return nn.Sum(2,nil,true,false) end, function() return N(3,4,5) end)
for _,d in ipairs{1,2,-1} do for n=1,3 do put('join.'..d..'.'..n, function() return nn.JoinTable(d,n<3 and n or nil) end, function() return {N(3,4,4),N(3,4,4)} end)
 put('split.'..d..'.'..n, function() return nn.SplitTable(d,n<3 and n or nil) end, function() return N(3,4,4) end) end end
put('cadd.1', function() return nn.CAdd(4,3) end, function() return N(2,4,3) end)
put('cadd.2', function() return nn.CAdd(4,3) end, function() return N(4,3) end)
put('cadd.3', function() return nn.CAdd(1,3) end, function() return N(4,3) end)
put('cmul.1', function() return nn.CMul(4,3) end, function() return N(2,4,3) end)
put('cmul.2', function() return nn.CMul(4,3) end, function() return N(4,3) end)
put('cmul.3', function() return nn.CMul(12) end, function() return N(2,4,3) end)
put('add.v', function() return nn.Add(4) end, function() return N(4) end)
put('add.3', function() return nn.Add(12) end, function() return N(2,4,3) end)
put('addc.t', function() return nn.AddConstant(T{1,2,3}) end, function() return N(2,3) end)
put('addc.v', function() return nn.AddConstant(T{1,2,3}) end, function() return N(3) end)
put('mulc.in', function() return nn.MulConstant(3,true) end, function() return N(3,2) end)
put('const', function() return nn.Constant(3.5) end, function() return N(4,2) end)
put('const2', function() return nn.Constant(N(2,3),2) end, function() return N(4,2,2) end)
put('addtable.shapes', function() return nn.CAddTable() end, function() return {N(4,1), N(4), N(1,4)} end)
put('multable.shapes', function() return nn.CMulTable() end, function() return {N(2,3), N(3,2)} end)
put('maxtable2', function() return nn.CMaxTable() end, function() return {N(2,3), N(2,3), N(2,3), N(2,3)} end)
put('addtable.in', function() return nn.CAddTable(true) end, function() return {N(4), N(4)} end)
put('mixture.t', function() return nn.MixtureTable() end, function() return {torch.rand(3,4), N(3,4,5)} end)
put('mixture.d', function() return nn.MixtureTable(3) end, function() return {torch.rand(3,4), N(3,5,4)} end)
put('mixture.v', function() return nn.MixtureTable() end, function() return {torch.rand(2), {N(5), N(5)}} end)
put('mixture.3', function() return nn.MixtureTable() end, function() return {torch.rand(3,2), {N(3,4,5), N(3,4,5)}} end)
put('pd.v', function() return nn.PairwiseDistance(2) end, function() return {N(4),N(4)} end)
put('pd.3', function() return nn.PairwiseDistance(3) end, function() return {N(2,4),N(2,4)} end)
put('cd.v', function() return nn.CosineDistance() end, function() return {N(4),N(4)} end)
put('dp.v', function() return nn.DotProduct() end, function() return {N(4),N(4)} end)
put('mm.2', function() return nn.MM(true,true) end, function() return {N(3,4),N(5,3)} end)
put('mv.2', function() return nn.MV(true) end, function() return {N(3,4),N(3)} end)
put('euc.v', function() return nn.Euclidean(4,3) end, function() return N(4) end)
put('weuc.v', function() return nn.WeightedEuclidean(4,3) end, function() return N(4) end)
put('cos.v', function() return nn.Cosine(4,3) end, function() return N(4) end)
for _,p in ipairs{1,2,3,1.5,math.huge} do put('norm.'..p, function() return nn.Normalize(p) end, function() return N(3,4) end); put('normv.'..p, function() return nn.Normalize(p, 1e-2) end, function() return N(4) end) end
put('ln.v', function() return nn.LayerNormalization(6) end, function() return N(6) end)
put('ln.b', function() local m = nn.LayerNormalization(6, 0.3, 1e-2); m:get(5).weight:uniform(); return m end, function() return N(4,6) end)
put('ln.na', function() return nn.LayerNormalization(6, nil, 1e-2, false) end, function() return N(4,6) end)
put('lt.v', function() return nn.LookupTable(10,4) end, function() return T{1,5,10} end)
put('lt.max', function() return nn.LookupTable(10,4,0,0.5,1) end, function() return T{{1,5},{3,5}} end)
put('lt.freq', function() return nn.LookupTable(10,4):scaleGradByFreq() end, function() return T{{1,5},{5,5}} end)
put('lt.long', function() return nn.LookupTable(10,4) end, function() return torch.LongTensor{{1,5},{5,5}} end)
put('sl.batch', function() return nn.SparseLinear(10,3) end, function() return T{{{1,.5},{2,3}},{{4,1},{5,2}}} end)
put('sl.one', function() return nn.SparseLinear(10,3) end, function() return T{{1,.5},{2,3}} end)
put('il.batch', function() local m = nn.IndexLinear(10,3); m.weight:normal(); m.bias:normal(); return m end, function() return {{torch.LongTensor{1,5},torch.LongTensor{7}}, {T{.5,1},T{2}}} end)
put('il.flat', function() local m = nn.IndexLinear(10,3); m.weight:normal(); m.bias:normal(); return m end, function() return {torch.LongTensor{1,5,7}, T{.5,1,2}, torch.LongTensor{2,1}} end)
put('il.norm', function() local m = nn.IndexLinear(10,3,false,nil,nil,nil,true); m.weight:uniform(); m.bias:normal(); return m end, function() return {torch.LongTensor{1,5,7}, T{.5,-1,.2}} end)
put('il.norm1', function() local m = nn.IndexLinear(10,1,false,nil,nil,nil,true); m.weight:uniform(); m.bias:normal(); return m end, function() return {torch.LongTensor{1,5,7}, T{.5,-1,.2}} end)
put('il.off', function() local m = nn.IndexLinear(10,2,false,3); m.weight:uniform(); m.bias:normal(); return m end, function() return {torch.LongTensor{1,5,7}, T{.5,-1,.2}} end)
put('pl.part', function() local m = nn.PartialLinear(4,6); m.bias:normal(); m:setPartition(T{2,5}); return m end, function() return N(2,4) end)
put('pl.nb', function() return nn.PartialLinear(4,6,false) end, function() return N(2,4) end)
put('bil.nb', function() return nn.Bilinear(3,4,2,false) end, function() return {N(5,3),N(5,4)} end)
put('lwn.nb', function() return nn.LinearWeightNorm(4,3,false) end, function() return N(4) end)
put('wn.conv', function() return nn.WeightNorm(nn.SpatialConvolution(3,4,3,2)) end, function() return N(2,3,6,5) end)
put('wn.tc', function() return nn.WeightNorm(nn.SpatialFullConvolution(3,4,3,2),2) end, function() return N(2,3,6,5) end)
put('wn.temporal', function() return nn.WeightNorm(nn.TemporalConvolution(3,4,3)) end, function() return N(2,9,3) end)
put('wn.mm', function() return nn.WeightNorm(nn.SpatialConvolutionMM(3,4,3,2)) end, function() return N(2,3,6,5) end)
put('wn.lin2', function() return nn.WeightNorm(nn.Linear(4,3),2) end, function() return N(2,4) end)
put('bottle.3', function() return nn.Bottle(nn.SpatialConvolution(2,3,3,3),4,4) end, function() return N(2,3,2,5,5) end)
put('bottle.out', function() return nn.Bottle(nn.Sequential():add(nn.View(-1,3,2,2)):add(nn.SpatialConvolution(3,2,1,1)),2,4) end, function() return N(2,3,12) end)
put('bottle.2', function() return nn.Bottle(nn.Linear(5,2)) end, function() return N(4,5) end)
put('concat.3', function() return nn.Concat(3):add(nn.Identity()):add(nn.Tanh()) end, function() return N(2,3,4) end)
put('dc.odd', function() return nn.DepthConcat(1):add(nn.SpatialConvolution(2,3,2,1)):add(nn.SpatialConvolution(2,3,3,4)):add(nn.SpatialConvolution(2,4,4,5)) end, function() return N(2,8,9) end)
put('par.3', function() return nn.Parallel(1,2):add(nn.Linear(4,3)):add(nn.Linear(4,2)):add(nn.Linear(4,1)) end, function() return N(3,2,4) end)
put('par.less', function() return nn.Parallel(1,2):add(nn.Linear(4,3)):add(nn.Linear(4,2)):add(nn.Linear(4,1)) end, function() return N(2,2,4) end)
put('dontcast.d', function() return nn.DontCast(nn.Linear(5,3):double(), true) end, function() return N(4,5) end)
put('crelu.2', function() return nn.CReLU(3) end, function() return N(2,3,4,5) end)
put('crelu.3', function() return nn.CReLU(3) end, function() return N(3,4,5) end)
put('maxout.pre', function() return nn.Maxout(4,3,2) end, function() return N(4) end)
put('glu.n', function() return nn.GatedLinearUnit() end, function() return N(3,6) end)
put('glu.1', function() return nn.GatedLinearUnit(1) end, function() return N(6,3) end)
put('prelu.v', function() local m = nn.PReLU(3); m.weight:uniform(); return m end, function() return N(3) end)
put('prelu.u', function() local m = nn.PReLU(4); m.weight:uniform(); return m end, function() return N(3,4,5) end)
put('prelu.shared3', function() return nn.PReLU() end, function() return N(2,3,4,5) end)
for _,c in ipairs{'SoftMax','LogSoftMax','SoftMin','SpatialSoftMax','SpatialLogSoftMax'} do for j,b in ipairs{{6},{3,4},{3,4,5},{2,3,4,5}} do put('sm.'..c..j, function() return nn[c]() end, function() return N(unpack(b)) end) end end
put('dbl', function() return nn.Sequential():add(nn.SpatialConvolution(3,4,3,3)):add(nn.ReLU(true)):add(nn.View(-1):setNumInputDims(3)):add(nn.Linear(144,2)):double() end, function() return torch.DoubleTensor(2,3,8,8):normal() end)
put('onehot.2', function() return nn.OneHot(5) end, function() return ints(4,5):view(2,2) end)
put('index.2', function() return nn.Index(2) end, function() return {N(5,3), torch.LongTensor{2,3,1,1}} end)
put('sqrt0', function() return nn.Sqrt() end, function() return pos(3,4):add(-.3):cmax(0) end)
put('thr', function() return nn.Threshold() end, function() return N(3,4) end)
put('elu.in', function() return nn.ELU(0.3,true) end, function() return N(3,4) end)
put('sp', function() return nn.SoftPlus(3) end, function() return N(3,4):mul(10) end)
put('l1p', function() return nn.L1Penalty(0.3) end, function() return N(3,4) end)
put('l1pavg', function() return nn.L1Penalty(0.3,true,false) end, function() return N(3,4) end)
put('km', function() local m = nn.Kmeans(5, 4, 2.5); m:initRandom(N(8,4)); return m end, function() return N(12,4) end)
put('wn.noise', function() return nn.WhiteNoise(0.7,0.1) end, function() return N(3,4) end)
put('sd.u', function() return nn.SpatialDropout(.2) end, function() return N(3,4,4) end)
put('copy.same', function() return nn.Copy('torch.FloatTensor','torch.FloatTensor') end, function() return N(3,4) end)
put('conv.old', function() return nn.Convert('bft','tbf') end, function() return N(3,4,2) end)
put('conv.u', function() return nn.Convert('bft','btf') end, function() return N(4,2) end)
put('zip3', function() return nn.ZipTable() end, function() return {{N(2),N(3),N(1)},{N(3),N(4),N(5)}} end)
put('mapnest', function() return nn.MapTable():add(nn.Sequential():add(nn.Linear(4,3)):add(nn.Tanh())) end, function() return {N(3,4)} end)
put('share.double', function() local l = nn.Linear(4,4); return nn.Sequential():add(l):add(nn.Tanh()):add(l) end, function() return N(3,4) end)
put('tied.t', function() local a, b = nn.Linear(4,3), nn.Linear(3,4); b.weight:set(a.weight:t()); return nn.Sequential():add(a):add(b) end, function() return N(3,4) end)
local criteria = {}
local function crit(name, make, input, target) criteria[#criteria + 1] = {name, make, input, target} end
local f43 = function() return N(4,3) end
for _,c in ipairs{'MSE','Abs','SmoothL1','SoftMargin','Margin'} do
crit('c.'..c, function() local m = nn[c..'Criterion'](); m.sizeAverage = false; return m end, f43, function() return torch.sign(N(4,3)) end)
crit('c.s.'..c, function() return nn[c..'Criterion']() end, function() return N(4,1) end, function() return torch.sign(N(4)) end) end
crit('c.bce', function() return nn.BCECriterion(T{.2,.5,1}) end, function() return torch.rand(4,3) end, function() return torch.rand(4,3) end)
crit('c.bce0', function() return nn.BCECriterion(nil,false) end, function() return torch.rand(4,3):gt(.5):float() end, function() return torch.rand(4,3):gt(.5):float() end)
crit('c.nll1', function() return nn.ClassNLLCriterion(T{.2,.5,1},false) end, f43, function() return ints(4,3) end)
crit('c.nllv', function() return nn.ClassNLLCriterion() end, function() return N(3) end, function() return 2 end)
crit('c.nllvt', function() return nn.ClassNLLCriterion() end, function() return N(3) end, function() return T{2} end)
crit('c.nllw', function() return nn.ClassNLLCriterion(T{.2,.5,1}) end, f43, function() return ints(4,3) end)
crit('c.nlli', function() return nn.ClassNLLCriterion(T{.2,.5,1},true,2) end, f43, function() return T{1,2,3,2} end)
crit('c.nlli0', function() return nn.ClassNLLCriterion(nil,true,2) end, f43, function() return T{2,2,2,2} end)
crit('c.ce1', function() return nn.CrossEntropyCriterion(T{.2,.5,1},false) end, f43, function() return ints(4,3) end)
crit('c.cev', function() return nn.CrossEntropyCriterion() end, function() return N(3) end, function() return 2 end)
crit('c.ce4', function() return nn.CrossEntropyCriterion() end, function() return N(4,3,1,1) end, function() return ints(4,3) end)
crit('c.ce11', function() return nn.CrossEntropyCriterion() end, function() return N(1,3) end, function() return T{3} end)
crit('c.snll', function() return nn.SpatialClassNLLCriterion(T{.2,.5,1},false) end, function() return N(2,3,4,4) end, function() return T(2, 4, 4):apply(function() return math.random(1, 3) end) end)
crit('c.mm', function() return nn.MultiMarginCriterion(2,T{.2,.5,1},.7) end, f43, function() return ints(4,3) end)
crit('c.mmv', function() local m = nn.MultiMarginCriterion(); m.sizeAverage = false; return m end, function() return N(3) end, function() return 2 end)
crit('c.mlm', function() local m = nn.MultiLabelMarginCriterion(); m.sizeAverage = pick(true,false); return m end, function() return N(2,4) end, function() return T{{3,1,0,0},{2,0,4,1}} end)
crit('c.mlsm', function() return nn.MultiLabelSoftMarginCriterion(T{.2,.5,1}) end, f43, function() return torch.rand(4,3):gt(.5):float() end)
crit('c.mlsmv', function() return nn.MultiLabelSoftMarginCriterion() end, function() return N(3) end, function() return T{1,0,1} end)
crit('c.kl', function() local m = nn.DistKLDivCriterion(); m.sizeAverage=false; return m end, function() return nn.LogSoftMax():forward(N(4, 3)):clone() end, function() return T{{.5,.5,0},{.1,.2,.7},{1,0,0},{.3,.3,.4}} end)
crit('c.he', function() local m = nn.HingeEmbeddingCriterion(2); m.sizeAverage=false; return m end, function() return pos(4,2) end, function() return torch.sign(N(4,2)) end)
crit('c.hen', function() return nn.HingeEmbeddingCriterion(2) end, function() return pos(1) end, function() return -1 end)
crit('c.l1he', function() return nn.L1HingeEmbeddingCriterion(20) end, function() return {N(4),N(4)} end, function() return -1 end)
crit('c.l1hep', function() return nn.L1HingeEmbeddingCriterion(20) end, function() return {N(4),N(4)} end, function() return 1 end)
crit('c.cosn', function() return nn.CosineEmbeddingCriterion(.2) end, function() return {N(4),N(4)} end, function() return -1 end)
crit('c.cos', function() local m = nn.CosineEmbeddingCriterion(.2); m.sizeAverage=false; return m end, function() return {N(3,4),N(3,4)} end, function() return T{1,-1,1} end)
crit('c.mr', function() return nn.MarginRankingCriterion(.2) end, function() return {N(1),N(1)} end, function() return 1 end)
crit('c.mr2', function() return nn.MarginRankingCriterion(.2) end, function() return {N(4,2),N(4,2)} end, function() return torch.sign(N(4,2)) end)
crit('c.wmse', function() return nn.WeightedMSECriterion(T{.1,.5,1}) end, f43, f43)
crit('c.acrop', function() return nn.SpatialAutoCropMSECriterion() end, function() return N(2,3,4,5) end, function() return N(2,3,7,8) end)
crit('c.dr', function() return nn.DistanceRatioCriterion(pick(true,false)) end, function() return {N(4),N(4)} end, function() return nil end)
crit('c.simplex', function() local m = nn.ClassSimplexCriterion(4); return m end, function() return N(5,4) end, function() return ints(5,4) end)
crit('c.par', function() return nn.ParallelCriterion(true):add(nn.MSECriterion(),.5):add(nn.AbsCriterion(),2) end, function() return {N(4),N(4)} end, function() return N(4) end)
crit('c.mod', function() return nn.ModuleCriterion(nn.MSECriterion(), nn.Tanh(), nn.Sigmoid()) end, function() return N(4) end, function() return N(4) end)
crit('c.modn', function() return nn.ModuleCriterion(nn.MSECriterion(), nil, nn.Sigmoid()) end, function() return N(4) end, function() return N(4) end)
put('ct', function() return nn.CriterionTable(nn.MSECriterion()) end, function() return {N(4),N(4)} end)
-- graphs
do local x = nn.Identity()(); local a,b,c = nn.SplitTable(2)(nn.Linear(4,3)(x)):split(3); graph('split', nn.gModule({x},{nn.CAddTable()({a,nn.Sigmoid()(b)}), c}), N(2,4)) end
do local x = nn.Identity()(); local a = nn.SplitTable(2)(nn.Linear(4,1)(x)):split(1); graph('split1', nn.gModule({x},{a}), N(2,4)) end
do local x = nn.Identity()(); graph('tableout', nn.gModule({x},{nn.SplitTable(2)(x)}), N(2,4)) end
do local x = nn.Identity()(); local a,b = x:split(2); graph('inputsplit', nn.gModule({x},{nn.CSubTable()({a,b})}), {N(2,4),N(2,4)}) end
do local x,y = nn.Identity()(), nn.Identity()(); local a,b = x:split(2); local c,d = b:split(2); graph('nested', nn.gModule({x,y},{nn.CSubTable()({a,c}), nn.CAddTable()({d,y}), nn.Identity()({a,y})}), {{N(2,4),{N(2,4),N(2,4)}},N(2,4)}) end
do local x = nn.Identity()(); local inner; do local p,q = nn.Identity()(), nn.Identity()(); inner = nn.gModule({p,q},{nn.CAddTable()({nn.Linear(4,3)(p),nn.Linear(4,3)(q)}), nn.Tanh()(q)}) end
 local a,b = inner({nn.Tanh()(x),nn.Linear(4,4)(x)}):split(2); graph('inner', nn.gModule({x},{nn.JoinTable(2)({a,b})}), N(2,4)) end
do local x = nn.Linear(4,3)(); local y = nn.Tanh()(x); graph('noident', nn.gModule({x},{y,nn.Sigmoid()(x)}), N(2,4)) end
do local x,y = nn.Linear(4,3)(), nn.Linear(5,3)(); graph('noident2', nn.gModule({x,y},{nn.CAddTable()({x,y})}), {N(2,4),N(2,5)}) end
do local x = nn.Identity()(); local h = x; for i=1,30 do h = nn.CAddTable()({h, nn.Tanh()(nn.Linear(4,4)(h))}) end; graph('deep', nn.gModule({x},{h}), N(2,4)) end
do local x = - nn.Identity() ; local y = x - nn.Linear(4,3) - nn.Tanh(); graph('dash', nn.gModule({x},{y}), N(2,4)) end
do local x = nn.Identity()(); local t = nn.ConcatTable():add(nn.Linear(4,2)):add(nn.Identity())(x); local s = nn.SelectTable(1)(t); local n = nn.NarrowTable(2,1)(t); local e = nn.FlattenTable()({n,s}); graph('tables', nn.gModule({x},{s,e}), N(2,4)) end
do local x,y = nn.Identity()(), nn.Identity()(); graph('pass', nn.gModule({x,y},{y,x}), {N(2,4),N(1)}) end

-- Lua's buffers are not part of what a module computes: they are emptied, and outputs copied.
local function copy(v) if torch.isTensor(v) then return v:clone() elseif type(v) == 'table' then local o = {}; for k, e in pairs(v) do o[k] = copy(e) end; return o end; return v end
local function like(v) if torch.isTensor(v) then return v.new():resize(v:size()):normal() end; local o = {}; for k, e in pairs(v) do o[k] = like(e) end; return o end
local all, done, refused = {}, 0, 0
for _, c in ipairs(cases) do
   local ok = pcall(function()
      local m = c[2](); m:evaluate()
      local input = c[3](); local case = {input = copy(input)}
      case.output = copy(m:forward(input))
      pcall(function()
         local g = like(case.output); m:zeroGradParameters()
         local kept = copy(g)
         local gi = copy(m:backward(input, g)); local _, gp = m:parameters()
         case.gradOutput, case.gradInput, case.gradParameters = kept, gi, gp and copy(gp) or nil
      end)
      pcall(m.clearState, m); case.module = m; all[c[1]] = case
   end)
   if ok then done = done + 1 else refused = refused + 1 end
end
for _, c in ipairs(criteria) do
   local m, input, target = c[2](), c[3](), c[4]()
   local case = {module = m, input = copy(input), target = copy(target)}
   case.output = m:forward(input, target); all[c[1]] = case; done = done + 1
end
torch.save(out, all)
print(done .. ' written, ' .. refused .. ' refused')
